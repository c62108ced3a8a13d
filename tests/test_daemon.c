/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon whole, on image files, with the test in the kernel's place (fuse_kernel.h): start and
 * end, signals, the lock in /run, and the control socket.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "fs/fs.h"
#include "fs/log.h"
#include "fs/main.h"
#include "fs/rundir.h"
#include "fuse_kernel.h"
#include "raid/buf.h"
#include "raid/format.h"
#include "raid/uring.h"
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MEMBERS	     4 /* the last is a spare */
#define MEMBER_BYTES (160ull << 20)
#define SLICES_AT    (LABEL_AREA_BYTES + (8 << 20)) /* the labels, and the least of a journal */

static char dir[] = "/tmp/test_daemon.XXXXXX";
static char paths[MEMBERS][64];
static const char *path_list[MEMBERS] = {paths[0], paths[1], paths[2], paths[3]};
static const struct uuid fs_uuid = {.b = {1, 2, 3, 4, 5, 6, 7, 8, 9}};

/* ---- making a volume ---- */

static struct uring *uring;
static struct loop *loop;
static bool without_fs;

static int make_co(void *arg)
{
	const struct raid_format_params params = {.level = 5, .name = "box", .fs = &fs_uuid};
	struct dev *devs[MEMBERS];
	struct raid *raid;

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(uring_dev_open(uring, loop, paths[i], 0, &devs[i]), 0);
	assert_int_equal(raid_format(loop, devs, 3, &params), 0);
	assert_int_equal(raid_open(loop, devs, 3, NULL, &(struct raid_options){0}, &raid), 0);
	if (!without_fs)
		assert_int_equal(fs_format(raid), 0);
	return raid_close(raid);
}

static void make_members(void)
{
	for (unsigned i = 0; i < MEMBERS; i++) {
		int fd = open(paths[i], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		assert_true(fd >= 0 && ftruncate(fd, MEMBER_BYTES) == 0);
		close(fd);
	}
	assert_int_equal(uring_new(&uring), 0);
	loop = loop_new(&uring_backend, uring);
	assert_int_equal(buf_pool_init(64u << 20), 0);
	assert_int_equal(loop_run_co(loop, make_co, NULL), 0);
	buf_pool_exit();
	loop_free(loop);
	uring_free(uring);
}

/* ---- the daemon ---- */

static struct {
	pthread_t thread;
	struct daemon_options options;
	int result;
	sem_t ready;
	char source[64];
} daemon_;

static void is_ready(void *arg)
{
	sem_post(&daemon_.ready);
}

static void *daemon_main(void *arg)
{
	daemon_.result = daemon_run(&daemon_.options, is_ready, NULL);
	sem_post(&daemon_.ready);
	return NULL;
}

static struct daemon_options options_new(void)
{
	return (struct daemon_options){
	    .fs = fs_uuid,
	    .name = "box",
	    .source = "LABEL=box",
	    .mount_point = dir,
	    .paths = path_list,
	    .path_count = 3,
	    .cache_bytes = 1, /* the least */
	};
}

static void start_raw(struct daemon_options options, const struct fk_setup *setup)
{
	daemon_.options = options;
	sem_init(&daemon_.ready, 0, 0);
	fk_start(setup);
	assert_int_equal(pthread_create(&daemon_.thread, NULL, daemon_main, NULL), 0);
}

static void start(struct daemon_options options)
{
	start_raw(options, NULL);
	fk_wait_mounted();
	assert_int_equal(fk_init(38, FK_KERNEL_FLAGS, 0).error, 0);
	sem_down(&daemon_.ready);
}

static int join(void)
{
	pthread_join(daemon_.thread, NULL);
	fk_end();
	return daemon_.result;
}

static int stop(void)
{
	fk_unmount();
	return join();
}

/* ---- the control socket ---- */

static int client(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 60};
	char path[PATH_MAX];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	rundir_socket_path(&fs_uuid, path);
	assert_true(strlen(path) < sizeof(a.sun_path));
	strcpy(a.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fd;
}

static void say(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* One line. NULL: the daemon has closed. */
static json_t *hear(int fd)
{
	static char line[1 << 20];
	size_t n = 0;

	while (n == 0 || line[n - 1] != '\n') {
		ssize_t got = recv(fd, line + n, sizeof(line) - n, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno != ECONNRESET)
			fail_msg("no answer: %s", strerror(errno));
		if (got <= 0) {
			return NULL;
		}
		n += (size_t)got;
	}
	json_t *o = json_loadb(line, n, 0, NULL);
	assert_non_null(o);
	assert_int_equal(json_integer_value(json_object_get(o, "version")), 1);
	return o;
}

static json_t *ask_on(int fd, const char *text)
{
	say(fd, text);
	say(fd, "\n");
	return hear(fd);
}

/*
 * On a connection of its own. The daemon learns of those that ended when it comes to it: until then
 * there may be no room.
 */
static json_t *ask(const char *text)
{
	json_t *o = NULL;

	for (int tries = 0; !o && tries < 10000; tries++) {
		int fd = client();
		if (send(fd, text, strlen(text), MSG_NOSIGNAL) > 0 &&
		    send(fd, "\n", 1, MSG_NOSIGNAL) == 1)
			o = hear(fd);
		close(fd);
	}
	assert_non_null(o);
	return o;
}

static const char *text_of(json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

static long long number_of(json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

/* The answer is an error with this number, whose text has `about` in it. */
static void refused(const char *request, int error, const char *about)
{
	json_t *o = ask(request);

	if (number_of(o, "errno") != error || !strstr(text_of(o, "error"), about))
		fail_msg("%s: %lld: %s", request, number_of(o, "errno"), text_of(o, "error"));
	json_decref(o);
}

static void accepted(const char *request)
{
	json_t *o = ask(request);

	if (json_object_get(o, "error"))
		fail_msg("%s: %s", request, text_of(o, "error"));
	json_decref(o);
}

/* Whether a line of the list has this in it. */
static bool says(json_t *o, const char *key, const char *part)
{
	json_t *list = json_object_get(o, key), *line;
	size_t i;

	json_array_foreach(list, i, line)
	{
		if (strstr(json_string_value(line), part))
			return true;
	}
	return false;
}

static json_t *member(json_t *status, unsigned i)
{
	return json_array_get(json_object_get(status, "members"), i);
}

static void test_control(void **state)
{
	json_t *o;
	int fd;

	make_members();
	start(options_new());
	accepted("{\"op\":\"ping\"}");
	o = ask("{\"op\":\"status\"}");
	assert_string_equal(text_of(o, "uuid"), "01020304-0506-0708-0900-000000000000");
	assert_string_equal(text_of(o, "label"), "box");
	assert_string_equal(text_of(o, "mount"), dir);
	assert_string_equal(text_of(o, "source"), "LABEL=box");
	assert_string_equal(text_of(o, "state"), "optimal");
	assert_int_equal(number_of(o, "level"), 5);
	assert_int_equal(number_of(o, "tolerance"), 1);
	assert_int_equal(number_of(o, "redundancy"), 1);
	assert_int_equal(json_array_size(json_object_get(o, "members")), 3);
	assert_string_equal(text_of(member(o, 1), "path"), paths[1]);
	assert_string_equal(text_of(member(o, 1), "state"), "active");
	assert_true(json_is_null(json_object_get(member(o, 1), "replaces")));
	assert_int_equal(json_array_size(json_object_get(o, "happened")), 0);
	assert_int_equal(json_array_size(json_object_get(o, "next")), 0);
	assert_true(number_of(json_object_get(o, "space"), "total_bytes") > 0);
	assert_null(json_object_get(o, "strip_bytes"));
	json_decref(o);
	o = ask("{\"op\":\"info\"}");
	assert_int_equal(number_of(o, "strip_bytes"), 65536);
	assert_true(number_of(o, "epoch") > 0);
	json_decref(o);
	accepted("{\"op\":\"sync\"}");

	/* A priority is told, set, and kept. */
	static const char *const jobs[] = {"rebuild", "scrub"};
	for (int i = 0; i < 2; i++) {
		char get[64], set[64];
		snprintf(get, sizeof(get), "{\"op\":\"%s-priority\"}", jobs[i]);
		snprintf(set, sizeof(set), "{\"op\":\"%s-priority\",\"value\":%d}", jobs[i], 71 + i);
		o = ask(get);
		assert_true(number_of(o, "priority") >= 0 && number_of(o, "priority") < 71);
		json_decref(o);
		o = ask(set);
		assert_int_equal(number_of(o, "priority"), 71 + i);
		json_decref(o);
		o = ask(get);
		assert_int_equal(number_of(o, "priority"), 71 + i);
		json_decref(o);
		o = ask("{\"op\":\"status\"}");
		assert_int_equal(number_of(json_object_get(o, jobs[i]), "priority"), 71 + i);
		json_decref(o);
	}
	refused("{\"op\":\"scrub-priority\",\"value\":101}", EINVAL, "from 0 to 100");
	refused("{\"op\":\"rebuild-priority\",\"value\":-1}", EINVAL, "from 0 to 100");
	refused("{\"op\":\"rebuild-priority\",\"value\":\"7\"}", EINVAL, "from 0 to 100");

	/* What is not a request is told so, and the next one is heard. */
	fd = client();
	static const char *const nonsense[] = {"",
					       "nonsense",
					       "[]",
					       "17",
					       "{}",
					       "{\"op\":3}",
					       "{\"op\":\"dance\"}",
					       "{\"op\":\"status\""};
	for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
		o = ask_on(fd, nonsense[i]);
		assert_int_equal(number_of(o, "errno"), EINVAL);
		json_decref(o);
	}
	/* In pieces. */
	say(fd, "{\"op\":");
	json_decref(ask("{\"op\":\"ping\"}"));
	o = ask_on(fd, "\"ping\"}");
	assert_null(json_object_get(o, "error"));
	json_decref(o);
	close(fd);

	refused("{\"op\":\"fail\"}", EINVAL, "no such member");
	refused("{\"op\":\"fail\",\"member\":-1}", EINVAL, "no such member");
	refused("{\"op\":\"fail\",\"member\":3}", EINVAL, "no such member");
	refused("{\"op\":\"fail\",\"member\":99999999999}", EINVAL, "no such member");
	refused("{\"op\":\"fail\",\"member\":\"1\"}", EINVAL, "no such member");
	refused("{\"op\":\"replace\",\"member\":0}", EINVAL, "absolute path");
	refused("{\"op\":\"replace\",\"member\":0,\"path\":\"x\"}", EINVAL, "absolute path");
	refused("{\"op\":\"replace\",\"member\":7,\"path\":\"/x\"}", EINVAL, "no such member");
	refused("{\"op\":\"replace\",\"member\":0,\"path\":\"/no/such\"}", ENOENT, "/no/such");
	refused("{\"op\":\"replace\",\"member\":0,\"path\":\"/dev/null\"}", ENOTBLK, "/dev/null");
	refused("{\"op\":\"scrub-cancel\"}", ENOENT, "no scrub");
	assert_int_equal(stop(), 0);
}

/* Waits in the daemon's own time: each question is answered after the work that came before. */
static void wait_optimal(void)
{
	for (;;) {
		json_t *o = ask("{\"op\":\"status\"}");
		bool done =
		    !strcmp(text_of(o, "state"), "optimal") &&
		    !json_is_true(json_object_get(json_object_get(o, "rebuild"), "running"));
		json_decref(o);
		if (done)
			return;
	}
}

static void test_replace(void **state)
{
	char request[256], small[80];
	json_t *o;

	make_members();
	start(options_new());
	snprintf(small, sizeof(small), "%s/small", dir);
	int fd = open(small, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0 && ftruncate(fd, 32 << 20) == 0);
	close(fd);
	accepted("{\"op\":\"fail\",\"member\":1}");
	o = ask("{\"op\":\"status\"}");
	assert_string_equal(text_of(o, "state"), "degraded");
	assert_int_equal(number_of(o, "redundancy"), 0);
	assert_string_equal(text_of(member(o, 1), "state"), "failed");
	assert_true(says(o, "happened", "member 1"));
	assert_true(says(o, "next", "trussfs replace"));
	json_decref(o);
	/* There is nothing left to lose. */
	refused("{\"op\":\"fail\",\"member\":0}", EBUSY, "");
	snprintf(request, sizeof(request), "{\"op\":\"replace\",\"member\":1,\"path\":\"%s\"}",
		 small);
	refused(request, ENOSPC, "");
	snprintf(request, sizeof(request), "{\"op\":\"replace\",\"member\":1,\"path\":\"%s\"}",
		 paths[0]);
	refused(request, EBUSY, paths[0]);
	snprintf(request, sizeof(request), "{\"op\":\"replace\",\"member\":1,\"path\":\"%s\"}",
		 paths[3]);
	accepted(request);
	wait_optimal();
	o = ask("{\"op\":\"status\"}");
	assert_string_equal(text_of(member(o, 3), "path"), paths[3]);
	assert_string_equal(text_of(member(o, 3), "state"), "active");
	/* The errors that were told are kept for whoever asks. */
	assert_true(json_array_size(json_object_get(o, "messages")) > 0);
	json_decref(o);
	accepted("{\"op\":\"scrub-start\"}");
	o = ask("{\"op\":\"scrub-start\"}"); /* runs still, or has ended */
	assert_true(number_of(o, "errno") == 0 || number_of(o, "errno") == EALREADY);
	json_decref(o);
	json_decref(ask("{\"op\":\"scrub-cancel\"}"));
	assert_int_equal(stop(), 0);
	unlink(small);
}

/* All that was ever written behind the journal of a member. */
static void rot(const char *path)
{
	static char rubbish[1 << 16];
	int fd = open(path, O_RDWR | O_CLOEXEC);
	off_t at = SLICES_AT;

	assert_true(fd >= 0);
	memset(rubbish, 0xa5, sizeof(rubbish));
	while ((at = lseek(fd, at, SEEK_DATA)) >= 0 && at < (off_t)label_b_off(MEMBER_BYTES)) {
		size_t len = MIN(sizeof(rubbish), (size_t)((off_t)label_b_off(MEMBER_BYTES) - at));
		assert_int_equal(pwrite(fd, rubbish, len, at), len);
		at += (off_t)len;
	}
	close(fd);
}

/* What a member returns is wrong: it is healed, counted, and told with what to do. */
static void test_errors(void **state)
{
	struct fuse_mknod_in in = {.mode = S_IFREG | 0644};
	json_t *o, *scrub;
	bool running;

	make_members();
	start(options_new());
	assert_int_equal(fk_call(FUSE_MKNOD, 1, &in, sizeof(in), "kept").error, 0);
	assert_int_equal(stop(), 0);
	rot(paths[1]);
	start(options_new());
	accepted("{\"op\":\"scrub-start\"}");
	do {
		o = ask("{\"op\":\"status\"}");
		scrub = json_object_get(o, "scrub");
		running = json_is_true(json_object_get(scrub, "running"));
		if (!running) {
			assert_true(number_of(scrub, "found") > 0);
			assert_int_equal(number_of(scrub, "repaired"), number_of(scrub, "found"));
			assert_int_equal(number_of(scrub, "lost"), 0);
			assert_true(number_of(scrub, "last_end") > 1000000000); /* by the wall clock */
			assert_true(says(o, "happened", "member 1"));
			assert_true(says(o, "happened", "had errors"));
			assert_true(says(o, "next", "trussfs scrub start"));
		}
		json_decref(o);
	} while (running);
	assert_int_equal(fk_call(FUSE_LOOKUP, 1, NULL, 0, "kept").error, 0);
	assert_int_equal(stop(), 0);
}

/* A client can end only itself. */
static void test_clients(void **state)
{
	static char line[8191];
	int fds[40], fd, closed = 0;
	json_t *o;

	make_members();
	start(options_new());
	/* Longer than any request. */
	memset(line, 'x', sizeof(line));
	fd = client();
	assert_int_equal(send(fd, line, sizeof(line), MSG_NOSIGNAL), sizeof(line));
	assert_null(hear(fd));
	close(fd);
	/* One line at a time: what comes with it is dropped. */
	fd = client();
	say(fd, "{\"op\":\"ping\"}\n{\"op\":\"ping\"}\n");
	json_decref(hear(fd));
	o = ask_on(fd, "{\"op\":\"status\"}");
	assert_string_equal(text_of(o, "state"), "optimal");
	json_decref(o);
	close(fd);
	/* Gone before the answer, and in the middle of a line. */
	for (int i = 0; i < 10; i++) {
		fd = client();
		say(fd, i % 2 ? "{\"op\":\"sync\"}\n" : "{\"op\"");
		close(fd);
	}
	/* More than there is room for; again while those before still count. */
	for (int tries = 0; closed != 8; tries++) {
		assert_true(tries < 1000);
		closed = 0;
		for (int i = 0; i < 40; i++)
			fds[i] = client();
		for (int i = 0; i < 40; i++) {
			if (send(fds[i], "{\"op\":\"ping\"}\n", 14, MSG_NOSIGNAL) == 14 &&
			    (o = hear(fds[i])))
				json_decref(o);
			else
				closed++;
		}
		assert_true(closed >= 8);
		for (int i = 0; i < 40; i++)
			close(fds[i]);
	}
	/* One that asks and does not read is dropped when its answers do not fit; nobody waits for
	 * it. */
	fd = client();
	for (int i = 0; i < 100000; i++) {
		if (send(fd, "{\"op\":\"status\"}\n", 16, MSG_NOSIGNAL) < 0)
			break;
		if (i % 100 == 0)
			json_decref(ask("{\"op\":\"ping\"}"));
		assert_true(i < 99999);
	}
	close(fd);
	/* One stays connected until the end. */
	json_decref(ask("{\"op\":\"ping\"}"));
	fd = client();
	assert_int_equal(stop(), 0);
	assert_null(hear(fd));
	close(fd);
}

/* ---- start and end ---- */

static void test_life(void **state)
{
	struct daemon_options o = options_new();
	struct fuse_mknod_in in = {.mode = S_IFREG | 0644};
	struct rundir_entry e;
	int fd;

	make_members();
	o.mount_flags = MS_NOATIME;
	start(o);
	assert_int_equal(fk_mounted()->flags, MS_NOATIME);
	assert_string_equal(fk_mounted()->source, "LABEL=box");
	assert_int_equal(fk_call(FUSE_MKNOD, 1, &in, sizeof(in), "kept").error, 0);
	assert_int_equal(rundir_find_mount(dir, &e, &fd), 0);
	assert_true(uuid_equal(&e.fs, &fs_uuid));
	assert_int_equal(e.pid, getpid());
	assert_string_equal(e.name, "box");
	assert_true(rundir_held(fd));
	assert_false(e.closing);
	/* Asked to end: everything is on the members, and whoever waits for the lock is told so. */
	assert_int_equal(kill(getpid(), SIGTERM), 0);
	assert_int_equal(join(), 0);
	assert_false(rundir_held(fd));
	assert_int_equal(rundir_read(fd, &e), 0);
	assert_true(e.closing && e.has_result && e.result == 0);
	close(fd);
	assert_int_equal(rundir_find_uuid(&fs_uuid, &e, NULL), -ENOENT);
	/* Read only, and it is there. */
	o.read_only = true;
	start(o);
	assert_int_equal(fk_call(FUSE_LOOKUP, 1, NULL, 0, "kept").error, 0);
	assert_int_equal(fk_call(FUSE_MKNOD, 1, &in, sizeof(in), "new").error, -EROFS);
	assert_int_equal(stop(), 0);
}

static void test_degraded(void **state)
{
	const char *missing[] = {paths[0], "/no/such/member", paths[2]};
	struct daemon_options o = options_new();
	json_t *s;

	make_members();
	o.paths = missing;
	start(o);
	s = ask("{\"op\":\"status\"}");
	assert_string_equal(text_of(s, "state"), "degraded");
	assert_string_equal(text_of(member(s, 1), "state"), "missing");
	assert_true(says(s, "happened", "member 1"));
	assert_true(says(s, "next", "reconnect member 1"));
	json_decref(s);
	assert_int_equal(stop(), 0);
	missing[0] = "/no/such/member/either";
	start_raw(o, NULL);
	assert_int_equal(join(), -ENODEV);
}

static void test_does_not_start(void **state)
{
	struct daemon_options o = options_new();
	struct rundir_lock *lock;
	struct rundir_entry e = {
	    .fs = fs_uuid, .pid = 1, .mount = "/elsewhere", .source = "x", .name = "box"};
	char path[PATH_MAX];
	int fd;

	make_members();
	/* mount(2) refuses: all is closed again, the lock too, and the next one gets in. */
	start_raw(o, &(struct fk_setup){.mount_error = EPERM});
	assert_int_equal(join(), -EPERM);
	/* Another daemon has it. */
	assert_int_equal(rundir_lock(&fs_uuid, &lock), 0);
	assert_int_equal(rundir_write(lock, &e), 0);
	start_raw(o, NULL);
	assert_int_equal(join(), -EBUSY);
	rundir_unlock(lock);
	/* A member that somebody is just letting go of is waited for. */
	fd = open(paths[1], O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	start_raw(o, NULL);
	close(fd);
	fk_wait_mounted();
	assert_int_equal(fk_init(38, FK_KERNEL_FLAGS, 0).error, 0);
	assert_int_equal(stop(), 0);
	/* A volume without a filesystem. */
	without_fs = true;
	make_members();
	without_fs = false;
	start_raw(o, NULL);
	assert_int_equal(join(), -EBADMSG);
	/* No place for the lock. */
	snprintf(path, sizeof(path), "%s/no/such", dir);
	setenv("TRUSSFS_RUNDIR", path, 1);
	start_raw(o, NULL);
	assert_int_equal(join(), -ENOENT);
	snprintf(path, sizeof(path), "%s/run", dir);
	setenv("TRUSSFS_RUNDIR", path, 1);
}

static int setup_all(void **state)
{
	char run[64];
	sigset_t set;

	if (!mkdtemp(dir))
		return -1;
	for (unsigned i = 0; i < MEMBERS; i++)
		snprintf(paths[i], sizeof(paths[i]), "%s/m%u", dir, i);
	snprintf(run, sizeof(run), "%s/run", dir);
	setenv("TRUSSFS_RUNDIR", run, 1);
	/* In every thread: the daemon's descriptor takes them. */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	log_to_syslog("test_daemon");
	return 0;
}

static int teardown_all(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_control),  cmocka_unit_test(test_replace),
	    cmocka_unit_test(test_clients),  cmocka_unit_test(test_life),
	    cmocka_unit_test(test_degraded), cmocka_unit_test(test_does_not_start),
	    cmocka_unit_test(test_errors),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
