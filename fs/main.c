/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon.
 *
 * Order at start: the lock in /run/trussfs (so that two daemons of one filesystem cannot get into
 * each other's way, and the second can say where it is mounted), members (each opened exclusively),
 * volume, filesystem, control socket, and the mount point last: what can be seen works.
 *
 * Order at the end, whoever unmounts: the kernel closes the connection; requests under way end;
 * filesystem, volume and members are closed; the result goes into the lock file; the lock is
 * released. The members stay locked until nothing more is written, so somebody who calls umount2(2)
 * himself and mounts again at once meets -EBUSY for a moment, which the start below waits out, and
 * never a half-written member.
 *
 * umount2 waits for us to write back the kernel's dirty pages, so the loop must never call it. On a
 * signal a thread of its own does, and touches nothing else.
 */
#include "main.h"
#include "control.h"
#include "fs.h"
#include "fuse.h"
#include "log.h"
#include "raid/buf.h"
#include "raid/co.h"
#include "rundir.h"
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define OPEN_TRIES     50 /* members of a daemon that is just ending */
#define OPEN_PAUSE_NS  (100 * NS_PER_MS)
#define CACHE_MIN      (64ull << 20)
#define CACHE_MAX      (512ull << 20)
#define CACHE_FRACTION 32 /* of the machine's memory */

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

struct daemon {
	const struct daemon_options *options;
	void (*ready)(void *arg);
	void *ready_arg;
	struct rundir_lock *lock;
	struct uring *uring;
	struct loop *loop;
	struct raid *raid;
	struct fs *fs;
	struct control *control;
	struct fs_fuse *front;
	struct uring_watch *signal_watch;
	int signal_fd;
	unsigned signals;
	char mount_point[PATH_MAX]; /* for the thread that unmounts */
	int result;
};

/* ---- start ---- */

static int open_one(struct daemon *d, const char *path, struct dev **ret)
{
	/*
	 * The volume of a read-only mount still replays its journal in memory only, so nothing is
	 * written; a write-protected device must be openable then.
	 */
	unsigned flags = d->options->read_only ? DEV_OPEN_READ_ONLY : 0;
	int r = -EBUSY;

	for (int i = 0; r == -EBUSY && i < OPEN_TRIES; i++) {
		if (i)
			co_sleep_ns(OPEN_PAUSE_NS);
		log_mute(true);
		r = uring_dev_open(d->uring, d->loop, path, flags, ret);
		log_mute(false);
	}
	/* Once more, for the message. */
	if (r < 0)
		r = uring_dev_open(d->uring, d->loop, path, flags, ret);
	return r;
}

static int open_members(struct daemon *d, struct dev **devs, unsigned *ret_count)
{
	const struct daemon_options *o = d->options;
	unsigned count = 0;

	for (unsigned i = 0; i < o->path_count; i++) {
		int r = open_one(d, o->paths[i], &devs[count]);
		if (r == 0) {
			count++;
		} else if (r == -EBUSY) {
			/* Going on without it would make it stale while somebody uses it. */
			while (count)
				dev_close(devs[--count]);
			return r;
		}
		/* Otherwise it is as if it were not there; the volume decides whether that is
		 * enough. */
	}
	*ret_count = count;
	return 0;
}

static uint64_t wall_clock_s(void)
{
	return (uint64_t)time(NULL);
}

static int daemon_start(void *arg)
{
	struct daemon *d = arg;
	const struct daemon_options *o = d->options;
	struct raid_options raid_options = {
	    .flags = o->read_only ? RAID_OPEN_READ_ONLY : 0,
	    .commit_ns_max = o->commit_ns,
	    .wall_clock_s = wall_clock_s,
	};
	struct fs_options fs_options = {.read_only = o->read_only};
	struct dev *devs[MEMBERS_MAX];
	unsigned count;

	int r = open_members(d, devs, &count);
	if (r < 0)
		return r;
	r = raid_open(d->loop, devs, count, &o->fs, &raid_options, &d->raid);
	if (r < 0) {
		while (count)
			dev_close(devs[--count]);
		return r;
	}
	r = fs_mount(d->raid, &fs_options, &d->fs);
	if (r < 0) {
		log_error("%s: mount failed: %s", o->source, strerror(-r));
		(void)raid_close(d->raid); /* nothing was changed; the first error counts */
		d->raid = NULL;
	}
	return r;
}

/* ---- end ---- */

static int daemon_stop(void *arg)
{
	struct daemon *d = arg;
	int r;

	if (d->control)
		control_drain(d->control);
	if (d->front)
		fs_fuse_wait(d->front);
	control_close(d->control);
	d->control = NULL;
	r = fs_unmount(d->fs);
	if (r < 0)
		log_error("%s: unmounting failed: %s", d->mount_point, strerror(-r));
	d->fs = NULL;
	int closed = raid_close(d->raid);
	if (closed < 0)
		log_error("%s: closing the volume failed: %s", d->mount_point, strerror(-closed));
	d->raid = NULL;
	return r < 0 ? r : closed;
}

static void daemon_stop_co(void *arg)
{
	struct daemon *d = arg;

	d->result = daemon_stop(d);
	loop_stop(d->loop);
}

static void on_gone(void *arg)
{
	struct daemon *d = arg;

	/* For umount's helper; if it cannot be written the lock still tells. */
	(void)rundir_append(d->lock, "closing", 1);
	if (co_spawn(d->loop, daemon_stop_co, d) < 0) {
		log_error("%s: no memory to unmount: what was not synced is replayed or lost",
			  d->mount_point);
		d->result = -ENOMEM;
		loop_stop(d->loop);
	}
}

static void on_ready(void *arg)
{
	struct daemon *d = arg;

	if (d->ready)
		d->ready(d->ready_arg);
}

/* ---- signals ---- */

static void *umount_thread(void *arg)
{
	struct daemon *d = arg;

	if (umount2(d->mount_point, UMOUNT_NOFOLLOW) == 0)
		return NULL;
	/* In use: nobody new gets in, and it ends when the last user has gone. */
	(void)umount2(d->mount_point,
		      UMOUNT_NOFOLLOW | MNT_DETACH); /* EINVAL: unmounted meanwhile */
	return NULL;
}

static void on_signal(void *arg)
{
	struct daemon *d = arg;
	struct signalfd_siginfo info;
	pthread_attr_t attr;
	pthread_t thread;

	if (read(d->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	log_info("%s: signal %u: unmounting", d->mount_point, info.ssi_signo);
	if (d->signals++) {
		/* Asked twice: does not wait for those who use it. */
		(void)umount2(d->mount_point, UMOUNT_NOFOLLOW | MNT_FORCE | MNT_DETACH);
		return;
	}
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, umount_thread, d) != 0) {
		d->signals = 0;
		log_error("%s: no thread to unmount with", d->mount_point);
	}
	pthread_attr_destroy(&attr);
}

static int signals_open(struct daemon *d)
{
	sigset_t set;

	(void)signal(SIGHUP, SIG_IGN); /* cannot fail */
	(void)signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (d->signal_fd < 0)
		return -errno;
	return uring_watch(d->uring, d->signal_fd, on_signal, d, &d->signal_watch);
}

/* ---- all together ---- */

static size_t cache_bytes(const struct daemon_options *o)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (o->cache_bytes)
		return MAX(o->cache_bytes, DAEMON_CACHE_BYTES_MIN);
	return MIN(MAX(memory / CACHE_FRACTION, CACHE_MIN), CACHE_MAX);
}

static int machine_open(struct daemon *d)
{
	int r = uring_new(&d->uring);

	if (r < 0)
		return r;
	d->loop = loop_new(&uring_backend, d->uring);
	if (!d->loop)
		return -ENOMEM;
	r = buf_pool_init(cache_bytes(d->options));
	if (r < 0)
		log_error("cannot get %zu bytes of I/O memory: %s", cache_bytes(d->options),
			  strerror(-r));
	return r;
}

static int daemon_lock(struct daemon *d)
{
	const struct daemon_options *o = d->options;
	struct rundir_entry *e = mem_zalloc(sizeof(*e));
	int r = -ENOMEM;

	if (!e)
		return r;
	for (int i = 0; i < OPEN_TRIES; i++) {
		r = rundir_lock(&o->fs, &d->lock);
		/* One that is just ending is waited for. */
		if (r != -EBUSY || (rundir_find_uuid(&o->fs, e, NULL) == 0 && !e->closing))
			break;
		usleep(OPEN_PAUSE_NS / 1000);
	}
	if (r == -EBUSY)
		log_error("%s: already mounted on %s", o->source, e->mount);
	if (r == 0) {
		memset(e, 0, sizeof(*e));
		e->pid = getpid();
		snprintf(e->mount, sizeof(e->mount), "%s", o->mount_point);
		snprintf(e->source, sizeof(e->source), "%s", o->source);
		snprintf(e->name, sizeof(e->name), "%s", o->name);
		r = rundir_write(d->lock, e);
	}
	mem_free(e);
	return r;
}

static int daemon_serve(struct daemon *d)
{
	const struct daemon_options *o = d->options;
	const struct fs_fuse_hooks hooks = {.ready = on_ready, .gone = on_gone, .arg = d};
	const struct fs_fuse_options fuse_options = {
	    .source = o->source,
	    .mount_point = d->mount_point,
	    .mount_flags = o->mount_flags,
	    .writeback_cache = o->writeback_cache,
	    .debug = o->debug,
	};
	char socket_path[PATH_MAX];
	const struct control_options control_options = {
	    .socket_path = socket_path,
	    .mount_point = d->mount_point,
	    .source = o->source,
	};

	int r = loop_run_co(d->loop, daemon_start, d);
	if (r < 0)
		return r;
	rundir_socket_path(&o->fs, socket_path);
	r = signals_open(d);
	if (r == 0)
		r = control_open(d->fs, d->raid, d->loop, d->uring, &control_options, &d->control);
	if (r == 0)
		r = fs_fuse_open(d->fs, d->loop, d->uring, &fuse_options, &hooks, &d->front);
	if (r < 0) {
		(void)loop_run_co(d->loop, daemon_stop, d); /* logs; the first error counts */
		return r;
	}
	loop_run(d->loop);
	return d->result;
}

int daemon_run(const struct daemon_options *options, void (*ready)(void *arg), void *arg)
{
	struct daemon d = {.options = options, .ready = ready, .ready_arg = arg, .signal_fd = -1};

	snprintf(d.mount_point, sizeof(d.mount_point), "%s", options->mount_point);
	(void)prctl(PR_SET_NAME, "trussfsd"); /* for people */
	/* Memory that we allocate must not wait for pages that only we can write. Root only; else a
	 * smaller promise. */
	(void)prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
	int r = daemon_lock(&d);
	if (r < 0)
		return r;
	r = machine_open(&d);
	if (r == 0)
		r = daemon_serve(&d);
	if (d.front)
		fs_fuse_close(d.front);
	if (d.signal_watch)
		uring_unwatch(d.uring, d.signal_watch);
	if (d.signal_fd >= 0)
		close(d.signal_fd);
	buf_pool_exit();
	loop_free(d.loop);
	uring_free(d.uring);
	(void)rundir_append(d.lock, "result", r); /* no result reads as a failure */
	rundir_unlock(d.lock);
	return r;
}
