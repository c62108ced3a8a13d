/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the tests of the FUSE front end share: a front end and a filesystem on the volume in memory,
 * served by a thread with a real loop, and requests as the kernel sends them. Included once by
 * each.
 */
#ifndef TESTS_FUSE_WORLD_H
#define TESTS_FUSE_WORLD_H

#include "fs_world.h"
#include "fuse_kernel.h"
#include "fs/fuse.h"
#include "raid/uring.h"
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ROOT FS_ROOT_INO

static struct {
	struct fake_raid_params params;
	struct fs_fuse_options options;
	struct fs_options fs_options;
	pthread_t thread;
	sem_t go, ran, opened;
	int open_result;
	bool again;    /* serve once more after this time */
	bool may_fail; /* unmounting, that is */
	unsigned ready, gone;
	int do_fd;
	void (*do_fn)(void);
	struct uring *uring;
	struct loop *loop;
	struct raid *raid;
	struct fs *fs;
	struct fs_fuse *front;
} srv;

/* ---- the serving thread ---- */

static void srv_ready(void *arg)
{
	srv.ready++;
}

static int srv_end(void *arg)
{
	fs_fuse_wait(srv.front);
	int r = fs_unmount(srv.fs), closed = raid_close(srv.raid);
	if (!srv.may_fail) {
		check_ok(r);
		check_ok(closed);
	}
	return 0;
}

static void srv_gone(void *arg)
{
	srv.gone++;
	loop_stop(srv.loop);
}

static int srv_begin(void *arg)
{
	bool *fresh = arg;
	if (*fresh)
		check_ok(fs_format(srv.raid));
	else
		fake_raid_reopen(srv.raid);
	return fs_mount(srv.raid, &srv.fs_options, &srv.fs);
}

static int srv_check(void *arg)
{
	struct world w = {.raid = srv.raid};
	fake_raid_reopen(srv.raid);
	world_check(&w);
	co_sleep_ns(1100 * NS_PER_MS *
		    (srv.params.eagain_one_in ? 1 : 0)); /* pinned memory is let go */
	return 0;
}

static void srv_do_it(void *arg)
{
	eventfd_t n;
	check_ok(eventfd_read(srv.do_fd, &n));
	srv.do_fn();
	sem_post(&srv.ran);
}

static int srv_not_opened(void *arg)
{
	return fs_unmount(srv.fs) + raid_close(srv.raid);
}

static void srv_serve(bool *fresh)
{
	static const struct fs_fuse_hooks hooks = {.ready = srv_ready, .gone = srv_gone};
	struct uring_watch *watch;

	check_ok(loop_run_co(srv.loop, srv_begin, fresh));
	*fresh = false;
	check_ok(uring_watch(srv.uring, srv.do_fd, srv_do_it, NULL, &watch));
	srv.open_result =
	    fs_fuse_open(srv.fs, srv.loop, srv.uring, &srv.options, &hooks, &srv.front);
	sem_post(&srv.opened);
	if (srv.open_result == 0) {
		loop_run(srv.loop);
		check_ok(loop_run_co(srv.loop, srv_end, NULL));
		fs_fuse_close(srv.front);
	} else {
		check_ok(loop_run_co(srv.loop, srv_not_opened, NULL));
	}
	uring_unwatch(srv.uring, watch);
}

static void *srv_main(void *arg)
{
	bool fresh = true, again;

	check_ok(uring_new(&srv.uring));
	srv.loop = loop_new(&uring_backend, srv.uring);
	check_ok(buf_pool_init(POOL_BYTES));
	srv.raid = fake_raid_new(srv.loop, &srv.params);
	do {
		sem_down(&srv.go);
		srv_serve(&fresh);
		again = srv.again;
		sem_post(&srv.ran);
	} while (again);
	if (!srv.may_fail)
		check_ok(loop_run_co(srv.loop, srv_check, NULL));
	fake_raid_free(srv.raid);
	loop_free(srv.loop);
	uring_free(srv.uring);
	assert_int_equal(buf_pool_used_bytes(), 0);
	buf_pool_exit();
	return NULL;
}

/* ---- for the test ---- */

/* Runs it in the serving thread, in loop context. */
static inline void srv_do(void (*fn)(void))
{
	srv.do_fn = fn;
	check_ok(eventfd_write(srv.do_fd, 1));
	sem_down(&srv.ran);
}

/* Starts serving; the test sends INIT. params and options may be NULL. Returns what opening did. */
static inline int srv_start_raw(const struct fake_raid_params *params,
				const struct fs_fuse_options *options, const struct fk_setup *setup)
{
	memset(&srv, 0, sizeof(srv));
	srv.params = params ? *params : (struct fake_raid_params){.yield_one_in = 3};
	srv.params.commit_ns_max = UINT64_MAX / 4;
	srv.options = options ? *options : (struct fs_fuse_options){0};
	srv.options.source = "/dev/nothing";
	srv.options.mount_point = srv.options.mount_point ? srv.options.mount_point : "/";
	srv.fs_options = (struct fs_options){.now = test_now};
	log_set_hook(no_log, NULL);
	sem_init(&srv.go, 0, 0);
	sem_init(&srv.ran, 0, 0);
	sem_init(&srv.opened, 0, 0);
	srv.do_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fk_start(setup);
	check_ok(pthread_create(&srv.thread, NULL, srv_main, NULL));
	sem_post(&srv.go);
	sem_down(&srv.opened);
	return srv.open_result;
}

static inline void srv_join(void)
{
	sem_down(&srv.ran);
	pthread_join(srv.thread, NULL);
	fk_end();
	close(srv.do_fd);
	sem_destroy(&srv.go);
	sem_destroy(&srv.ran);
	sem_destroy(&srv.opened);
}

static inline struct fuse_attr getattr(uint64_t ino);

static inline void srv_start(const struct fake_raid_params *params,
			     const struct fs_fuse_options *options)
{
	check_ok(srv_start_raw(params, options, NULL));
	assert_int_equal(fk_init(38, FK_KERNEL_FLAGS, 0).error, 0);
	(void)getattr(ROOT); /* what follows the answer to INIT has been done, too */
}

/* Unmounts, and sees that everything ended well and the filesystem is sound. */
static inline void srv_stop(void)
{
	fk_unmount();
	srv_join();
	assert_int_equal(srv.gone, 1);
}

/* Unmounts and mounts again: the kernel and the front end know nothing any more. */
static inline void srv_remount(void)
{
	srv.again = true;
	fk_unmount();
	sem_down(&srv.ran);
	srv.again = false;
	srv.gone = 0;
	fk_end();
	fk_start(NULL);
	sem_post(&srv.go);
	sem_down(&srv.opened);
	check_ok(srv.open_result);
	assert_int_equal(fk_init(38, FK_KERNEL_FLAGS, 0).error, 0);
	(void)getattr(ROOT); /* what follows the answer to INIT has been done, too */
}

/* ---- requests ---- */

#define reply_is(reply, want) assert_int_equal((reply).error, want)

static inline struct fuse_entry_out entry_of(struct fk_reply r)
{
	struct fuse_entry_out e;
	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, sizeof(e));
	memcpy(&e, r.data, sizeof(e));
	assert_true(e.nodeid != 0);
	assert_int_equal(e.nodeid, e.attr.ino);
	return e;
}

static inline struct fk_reply do_lookup(uint64_t parent, const char *name)
{
	return fk_call(FUSE_LOOKUP, parent, NULL, 0, name);
}

static inline struct fk_reply do_mknod(uint64_t parent, const char *name, uint32_t mode,
				       uint32_t rdev)
{
	struct fuse_mknod_in in = {.mode = mode, .rdev = rdev};
	return fk_call(FUSE_MKNOD, parent, &in, sizeof(in), name);
}

static inline struct fk_reply do_mkdir(uint64_t parent, const char *name, uint32_t mode)
{
	struct fuse_mkdir_in in = {.mode = mode};
	return fk_call(FUSE_MKDIR, parent, &in, sizeof(in), name);
}

static inline struct fk_reply do_symlink(uint64_t parent, const char *name, const char *target)
{
	fk_begin(FUSE_SYMLINK, parent);
	fk_add_name(name);
	fk_add_name(target);
	return fk_run();
}

static inline struct fk_reply do_link(uint64_t ino, uint64_t parent, const char *name)
{
	struct fuse_link_in in = {.oldnodeid = ino};
	return fk_call(FUSE_LINK, parent, &in, sizeof(in), name);
}

static inline struct fk_reply do_unlink(uint64_t parent, const char *name)
{
	return fk_call(FUSE_UNLINK, parent, NULL, 0, name);
}

static inline struct fk_reply do_rmdir(uint64_t parent, const char *name)
{
	return fk_call(FUSE_RMDIR, parent, NULL, 0, name);
}

static inline struct fk_reply do_rename(uint64_t parent, const char *name, uint64_t new_parent,
					const char *new_name, unsigned flags)
{
	struct fuse_rename2_in in = {.newdir = new_parent, .flags = flags};
	/* As the kernel does. */
	fk_begin(flags ? FUSE_RENAME2 : FUSE_RENAME, parent);
	fk_add(&in, flags ? sizeof(in) : sizeof(struct fuse_rename_in));
	fk_add_name(name);
	fk_add_name(new_name);
	return fk_run();
}

static inline void forget(uint64_t ino, uint64_t count)
{
	struct fuse_forget_in in = {.nlookup = count};
	fk_begin(FUSE_FORGET, ino);
	fk_add(&in, sizeof(in));
	(void)fk_send(); /* is not answered */
}

static inline struct fk_reply do_getattr(uint64_t ino)
{
	struct fuse_getattr_in in = {0};
	return fk_call(FUSE_GETATTR, ino, &in, sizeof(in), NULL);
}

static inline struct fuse_attr attr_of(struct fk_reply r)
{
	struct fuse_attr_out out;
	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, sizeof(out));
	memcpy(&out, r.data, sizeof(out));
	return out.attr;
}

static inline struct fuse_attr getattr(uint64_t ino)
{
	return attr_of(do_getattr(ino));
}

static inline struct fk_reply do_setattr(uint64_t ino, struct fuse_setattr_in in)
{
	return fk_call(FUSE_SETATTR, ino, &in, sizeof(in), NULL);
}

static inline struct fuse_kstatfs do_statfs(void)
{
	struct fuse_statfs_out out;
	struct fk_reply r = fk_call(FUSE_STATFS, ROOT, NULL, 0, NULL);
	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, sizeof(out));
	memcpy(&out, r.data, sizeof(out));
	return out.st;
}

/* Inodes that exist, also those without a name. Freeing goes on in the background: the answer waits
 * for it. */
static inline uint64_t inodes_used(void)
{
	struct fuse_kstatfs s = do_statfs();
	return s.files - s.ffree;
}

/* Waits for the reaper: any number of requests, each gives it a turn. */
#define inodes_become(want)                                                                        \
	do {                                                                                       \
		uint64_t tries_left = 10000;                                                       \
		while (inodes_used() != (want) && --tries_left)                                    \
			(void)getattr(ROOT);                                                       \
		assert_int_equal(inodes_used(), want);                                             \
	} while (0)

static inline uint64_t open_file(uint64_t ino, uint32_t flags)
{
	struct fuse_open_in in = {.flags = flags};
	struct fuse_open_out out;
	struct fk_reply r = fk_call(FUSE_OPEN, ino, &in, sizeof(in), NULL);
	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, sizeof(out));
	memcpy(&out, r.data, sizeof(out));
	assert_true(out.open_flags & FOPEN_KEEP_CACHE);
	assert_true(!(out.open_flags & FOPEN_DIRECT_IO));
	return out.fh;
}

struct created {
	struct fuse_entry_out entry;
	struct fuse_open_out open;
};
static inline struct fk_reply do_create(uint64_t parent, const char *name, uint32_t flags,
					uint32_t mode)
{
	struct fuse_create_in in = {.flags = flags, .mode = mode};
	return fk_call(FUSE_CREATE, parent, &in, sizeof(in), name);
}

static inline struct created created_of(struct fk_reply r)
{
	struct created c;
	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, sizeof(c));
	memcpy(&c, r.data, sizeof(c));
	return c;
}

static inline struct fk_reply do_release(uint64_t ino, uint64_t fh)
{
	struct fuse_release_in in = {.fh = fh};
	return fk_call(FUSE_RELEASE, ino, &in, sizeof(in), NULL);
}

static inline void begin_write(uint64_t ino, uint64_t fh, uint64_t off, const void *data,
			       size_t len, uint32_t flags)
{
	struct fuse_write_in in = {
	    .fh = fh, .offset = off, .size = (uint32_t)len, .write_flags = flags};
	fk_begin(FUSE_WRITE, ino);
	fk_add(&in, sizeof(in));
	fk_add(data, len);
}

static inline struct fk_reply do_write(uint64_t ino, uint64_t fh, uint64_t off, const void *data,
				       size_t len, uint32_t flags)
{
	begin_write(ino, fh, off, data, len, flags);
	return fk_run();
}

static inline void write_file(uint64_t ino, uint64_t fh, uint64_t off, const void *data, size_t len)
{
	struct fuse_write_out out;
	struct fk_reply r = do_write(ino, fh, off, data, len, 0);
	assert_int_equal(r.error, 0);
	memcpy(&out, r.data, sizeof(out));
	assert_int_equal(out.size, len);
}

static inline void begin_read(uint32_t opcode, uint64_t ino, uint64_t fh, uint64_t off, size_t len)
{
	struct fuse_read_in in = {.fh = fh, .offset = off, .size = (uint32_t)len};
	fk_begin(opcode, ino);
	fk_add(&in, sizeof(in));
}

static inline struct fk_reply do_read(uint64_t ino, uint64_t fh, uint64_t off, size_t len)
{
	begin_read(FUSE_READ, ino, fh, off, len);
	return fk_run();
}

static inline struct fk_reply do_fsync(uint32_t opcode, uint64_t ino, uint64_t fh, uint32_t flags)
{
	struct fuse_fsync_in in = {.fh = fh, .fsync_flags = flags};
	return fk_call(opcode, ino, &in, sizeof(in), NULL);
}

static inline struct fk_reply do_flush(uint64_t ino, uint64_t fh)
{
	struct fuse_flush_in in = {.fh = fh};
	return fk_call(FUSE_FLUSH, ino, &in, sizeof(in), NULL);
}

#endif
