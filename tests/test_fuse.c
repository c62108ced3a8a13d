/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The FUSE front end's session, names, directories and attributes, spoken to as the kernel does.
 * Data: test_fuse_file.c.
 */
#include "fuse_world.h"
#include <dirent.h>
#include <linux/fs.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static char long_name[FS_NAME_BYTES_MAX + 2]; /* one too long */

/* ---- the session ---- */

static void test_open(void **state)
{
	const struct fs_fuse_options o = {.mount_flags = MS_NOSUID | MS_NODEV};
	const struct fk_mounted *m;

	srv_start(NULL, &o);
	m = fk_mounted();
	assert_string_equal(m->source, "/dev/nothing");
	assert_string_equal(m->target, "/");
	assert_string_equal(m->type, "fuse.trussfs");
	assert_int_equal(m->flags, MS_NOSUID | MS_NODEV);
	/* Without the first permissions are nobody's, without the second only root gets in. */
	assert_true(strstr(m->data, "default_permissions"));
	assert_true(strstr(m->data, "allow_other"));
	assert_true(strstr(m->data, "rootmode=40000"));
	assert_int_equal(srv.ready, 1);
	assert_int_equal(fk_readahead_kb(), 4096);
	srv_stop();
}

static void open_fails(const struct fs_fuse_options *o, const struct fk_setup *setup, int want)
{
	assert_int_equal(srv_start_raw(NULL, o, setup), want);
	srv_join();
}

static void test_open_fails(void **state)
{
	static const struct fs_fuse_options nowhere = {.mount_point = "/no/such/place"};

	open_fails(NULL, &(struct fk_setup){.open_error = ENOENT}, -ENOENT);
	open_fails(NULL, &(struct fk_setup){.open_error = EACCES}, -EACCES);
	open_fails(NULL, &(struct fk_setup){.mount_error = EBUSY}, -EBUSY);
	open_fails(&nowhere, NULL, -ENOENT);
}

static struct fuse_init_out init_of(struct fk_reply r)
{
	struct fuse_init_out out = {0};

	assert_int_equal(r.error, 0);
	assert_true(r.len >= 8);
	memcpy(&out, r.data, MIN(r.len, sizeof(out)));
	return out;
}

static struct fuse_init_out init_with(const struct fs_fuse_options *o, uint32_t flags)
{
	struct fuse_init_out out;

	check_ok(srv_start_raw(NULL, o, NULL));
	out = init_of(fk_init(38, flags, 0));
	/* And then it works. */
	assert_int_equal(getattr(ROOT).mode, S_IFDIR | 0755);
	srv_stop();
	return out;
}

/* What is asked of the kernel, and what is left to it. */
static void test_init(void **state)
{
	const struct fs_fuse_options cached = {.writeback_cache = true};
	const uint32_t want = FUSE_ASYNC_READ | FUSE_EXPORT_SUPPORT | FUSE_DO_READDIRPLUS |
			      FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS |
			      FUSE_CACHE_SYMLINKS | FUSE_HANDLE_KILLPRIV_V2;
	/* Of libfuse itself, whatever we want. */
	const uint32_t own = FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_INIT_EXT;
	struct fuse_init_out out = init_with(NULL, FK_KERNEL_FLAGS);

	assert_int_equal(out.major, FUSE_KERNEL_VERSION);
	assert_int_equal(out.flags & ~own, want);
	assert_int_equal(out.max_write, 1 << 20);
	assert_int_equal(out.max_pages, 256);
	assert_int_equal(out.max_readahead, UINT32_MAX); /* the kernel takes the smaller */
	assert_int_equal(out.max_background, 128);
	assert_int_equal(out.congestion_threshold, 96);
	assert_int_equal(out.time_gran, 1);
	/* Locks are the kernel's own: nobody else has this filesystem. */
	assert_int_equal(out.flags & (FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS), 0);

	out = init_with(&cached, FK_KERNEL_FLAGS);
	assert_int_equal(out.flags & ~own, want | FUSE_WRITEBACK_CACHE);
	/* Nothing that was not offered. */
	out =
	    init_with(&cached, FK_KERNEL_FLAGS & ~(FUSE_HANDLE_KILLPRIV_V2 | FUSE_WRITEBACK_CACHE));
	assert_int_equal(out.flags & ~own, want & ~FUSE_HANDLE_KILLPRIV_V2);
	out = init_with(NULL, 0);
	assert_int_equal(out.flags & ~own, 0);
}

/* A kernel of a later major version asks again with ours. */
static void test_init_twice(void **state)
{
	struct fuse_init_in in = {.major = 8, .minor = 3};

	check_ok(srv_start_raw(NULL, NULL, NULL));
	assert_int_equal(init_of(fk_call(FUSE_INIT, 0, &in, sizeof(in), NULL)).major, 7);
	assert_int_equal(init_of(fk_init(38, FK_KERNEL_FLAGS, 0)).major, 7);
	assert_int_equal(srv.ready, 1);
	srv_stop();
}

static void test_destroy(void **state)
{
	srv_start(NULL, NULL);
	(void)open_file(created_of(do_create(ROOT, "open to the end", O_RDWR, 0644)).entry.nodeid,
			O_RDONLY);
	reply_is(fk_call(FUSE_DESTROY, 0, NULL, 0, NULL), 0);
	srv_stop();
}

/* The connection is cut with everything open. */
static void test_abort(void **state)
{
	srv_start(NULL, NULL);
	(void)do_create(ROOT, "a", O_RDWR, 0644);
	fk_fail_read(ENODEV);
	srv_join();
	assert_int_equal(srv.gone, 1);
	/* Read errors that there cannot be, and a message too short to have a header. */
	srv_start(NULL, NULL);
	fk_fail_read(EBADF);
	srv_join();
	assert_int_equal(srv.gone, 1);
	srv_start(NULL, NULL);
	fk_send_raw("short", 5);
	srv_join();
	assert_int_equal(srv.gone, 1);
}

/* Interrupted while we read it: there is no such request any more, and the next one is served. */
static void test_read_retries(void **state)
{
	srv_start(NULL, NULL);
	for (int i = 0; i < 10; i++) {
		fk_fail_read(i % 2 ? ENOENT : EINTR);
		(void)getattr(ROOT);
	}
	srv_stop();
}

static void test_unknown(void **state)
{
	static const uint32_t left_to_the_kernel[] = {
	    FUSE_ACCESS, FUSE_GETLK, FUSE_SETLK,	   FUSE_SETLKW, FUSE_BMAP,
	    FUSE_IOCTL,	 FUSE_POLL,  FUSE_COPY_FILE_RANGE, 4000,
	};
	char arg[64] = {0};

	srv_start(NULL, NULL);
	for (unsigned i = 0; i < ARRAY_SIZE(left_to_the_kernel); i++)
		reply_is(fk_call(left_to_the_kernel[i], ROOT, arg, sizeof(arg), NULL), -ENOSYS);
	srv_stop();
}

/* ---- malformed ---- */

static void malformed(uint32_t opcode, const void *arg, size_t len)
{
	fk_begin(opcode, ROOT);
	fk_add(arg, len);
	reply_is(fk_run(), -EINVAL);
}

static void test_malformed(void **state)
{
	static const struct {
		uint32_t opcode;
		size_t len;
	} fixed[] = {
	    {FUSE_GETATTR, 16},	 {FUSE_SETATTR, 88},   {FUSE_MKNOD, 16},    {FUSE_MKDIR, 8},
	    {FUSE_RENAME, 8},	 {FUSE_RENAME2, 16},   {FUSE_LINK, 8},	    {FUSE_OPEN, 8},
	    {FUSE_READ, 40},	 {FUSE_WRITE, 40},     {FUSE_RELEASE, 24},  {FUSE_FSYNC, 16},
	    {FUSE_SETXATTR, 8},	 {FUSE_GETXATTR, 8},   {FUSE_LISTXATTR, 8}, {FUSE_FLUSH, 24},
	    {FUSE_OPENDIR, 8},	 {FUSE_READDIR, 40},   {FUSE_CREATE, 16},   {FUSE_RELEASEDIR, 24},
	    {FUSE_FSYNCDIR, 16}, {FUSE_FALLOCATE, 32}, {FUSE_LSEEK, 24},    {FUSE_READDIRPLUS, 40},
	    {FUSE_TMPFILE, 16},	 {52 /* STATX */, 24}, {FUSE_INIT, 16},
	};
	static const uint32_t named[] = {FUSE_LOOKUP, FUSE_UNLINK, FUSE_RMDIR, FUSE_REMOVEXATTR,
					 FUSE_SYMLINK};
	char bytes[128];

	srv_start(NULL, NULL);
	memset(bytes, 'x', sizeof(bytes));
	for (unsigned i = 0; i < ARRAY_SIZE(fixed); i++) {
		malformed(fixed[i].opcode, bytes, 0);
		malformed(fixed[i].opcode, bytes, fixed[i].len - 1);
	}
	/* Names without their end. */
	for (unsigned i = 0; i < ARRAY_SIZE(named); i++)
		malformed(named[i], bytes, 20);
	malformed(FUSE_SYMLINK, "name\0target", 11); /* the second has none */
	memset(bytes, 0, 16);
	malformed(FUSE_RENAME2, bytes, 16 + 10);
	malformed(FUSE_MKNOD, bytes, 16 + 10);
	/* Longer than the message: the memory behind it is not ours to read. */
	malformed(FUSE_WRITE, &(struct fuse_write_in){.size = 1}, sizeof(struct fuse_write_in));
	malformed(FUSE_WRITE, &(struct fuse_write_in){.size = UINT32_MAX},
		  sizeof(struct fuse_write_in));
	malformed(FUSE_SETXATTR, "\5\0\0\0\0\0\0\0user.a\0four", 8 + 7 + 4);
	/* The header says another length. */
	struct fuse_in_header h = {
	    .len = 4000, .opcode = FUSE_GETATTR, .unique = 2000, .nodeid = ROOT};
	fk_send_raw(&h, sizeof(h));
	reply_is(fk_wait(2000), -EINVAL);
	/* These are not answered, and change nothing. */
	fk_begin(FUSE_BATCH_FORGET, 0);
	fk_add(&(struct fuse_batch_forget_in){.count = 3}, sizeof(struct fuse_batch_forget_in));
	uint64_t batch = fk_send();
	fk_begin(FUSE_FORGET, ROOT);
	uint64_t one = fk_send();
	fk_begin(FUSE_INTERRUPT, 0);
	uint64_t interrupt = fk_send();
	assert_int_equal(getattr(ROOT).ino, ROOT);
	assert_true(!fk_answered(batch) && !fk_answered(one) && !fk_answered(interrupt));
	srv_stop();
}

/* ---- names ---- */

static void test_names(void **state)
{
	struct fuse_entry_out none, e, file, dir;
	struct fk_reply r;
	uint64_t before;

	srv_start(NULL, NULL);
	before = inodes_used();
	/* Absent: an answer that the kernel remembers. */
	r = do_lookup(ROOT, "a");
	reply_is(r, 0);
	memcpy(&none, r.data, sizeof(none));
	assert_int_equal(none.nodeid, 0);
	assert_int_equal(none.entry_valid, 86400);

	fk_cred = (struct fk_cred){.uid = 1000, .gid = 100, .pid = 7};
	file = entry_of(do_mknod(ROOT, "a", S_IFREG | 0640, 0));
	assert_int_equal(file.attr.mode, S_IFREG | 0640);
	assert_int_equal(file.attr.uid, 1000);
	assert_int_equal(file.attr.gid, 100);
	assert_int_equal(file.attr.nlink, 1);
	assert_int_equal(file.entry_valid, 86400);
	assert_int_equal(file.attr_valid, 86400);
	assert_true(file.generation != 0);
	reply_is(do_mknod(ROOT, "a", S_IFREG | 0640, 0), -EEXIST);
	e = entry_of(do_lookup(ROOT, "a"));
	assert_int_equal(e.nodeid, file.nodeid);
	assert_int_equal(e.generation, file.generation);

	dir = entry_of(do_mkdir(ROOT, "d", 0755));
	assert_int_equal(dir.attr.mode, S_IFDIR | 0755);
	assert_int_equal(dir.attr.nlink, 2);
	e = entry_of(do_mknod(dir.nodeid, "dev", S_IFBLK | 0600, (uint32_t)makedev(8, 3)));
	assert_int_equal(e.attr.mode, S_IFBLK | 0600);
	assert_int_equal(e.attr.rdev, makedev(8, 3));
	e = entry_of(do_symlink(dir.nodeid, "sym", "../a"));
	assert_int_equal(e.attr.size, 4);
	r = fk_call(FUSE_READLINK, e.nodeid, NULL, 0, NULL);
	reply_is(r, 0);
	assert_int_equal(r.len, 4);
	assert_string_equal(r.data, "../a");
	reply_is(fk_call(FUSE_READLINK, file.nodeid, NULL, 0, NULL), -EINVAL);
	e = entry_of(do_link(file.nodeid, dir.nodeid, "b"));
	assert_int_equal(e.nodeid, file.nodeid);
	assert_int_equal(e.attr.nlink, 2);
	reply_is(do_link(file.nodeid, dir.nodeid, "b"), -EEXIST);
	reply_is(do_link(dir.nodeid, ROOT, "dirlink"), -EPERM);

	reply_is(do_rmdir(ROOT, "d"), -ENOTEMPTY);
	reply_is(do_unlink(ROOT, "d"), -EISDIR);
	reply_is(do_rmdir(ROOT, "a"), -ENOTDIR);
	reply_is(do_unlink(ROOT, "nothing"), -ENOENT);
	reply_is(do_mknod(file.nodeid, "under a file", S_IFREG | 0644, 0), -ENOTDIR);
	reply_is(do_getattr(12345), -ESTALE);
	reply_is(do_unlink(dir.nodeid, "dev"), 0);
	reply_is(do_unlink(dir.nodeid, "sym"), 0);
	reply_is(do_unlink(dir.nodeid, "b"), 0);
	reply_is(do_rmdir(ROOT, "d"), 0);
	reply_is(do_unlink(ROOT, "a"), 0);
	assert_int_equal(getattr(file.nodeid).nlink, 0); /* the kernel still knows it */
	assert_int_equal(inodes_used(), before + 4);
	forget(file.nodeid, 3);
	inodes_become(before + 3);
	/* The others by one message. */
	struct {
		struct fuse_batch_forget_in in;
		struct fuse_forget_one one[4];
	} batch = {.in = {.count = 4}};
	batch.one[0] = (struct fuse_forget_one){dir.nodeid, 1};
	batch.one[1] = (struct fuse_forget_one){dir.nodeid + 1, 1};
	batch.one[2] = (struct fuse_forget_one){dir.nodeid + 2, 1};
	batch.one[3] = (struct fuse_forget_one){ROOT, 1000}; /* is never counted */
	fk_begin(FUSE_BATCH_FORGET, 0);
	fk_add(&batch, sizeof(batch));
	(void)fk_send();
	inodes_become(before);
	forget(ROOT, 5);
	assert_int_equal(getattr(ROOT).ino, ROOT);
	srv_stop();
}

/* 255 bytes and no more, in every request that has a name (the kernel would let 1024 pass). */
static void test_long_names(void **state)
{
	struct fuse_entry_out file;
	struct fuse_create_in tmp = {.flags = O_RDWR, .mode = 0600};
	char *fits = long_name + 1, target[FS_SYMLINK_BYTES_MAX + 2];
	struct fk_reply r;

	srv_start(NULL, NULL);
	memset(long_name, 'n', FS_NAME_BYTES_MAX + 1);
	file = entry_of(do_mknod(ROOT, "f", S_IFREG | 0644, 0));
	reply_is(do_lookup(ROOT, long_name), -ENAMETOOLONG);
	reply_is(do_mknod(ROOT, long_name, S_IFREG | 0644, 0), -ENAMETOOLONG);
	reply_is(do_mkdir(ROOT, long_name, 0755), -ENAMETOOLONG);
	reply_is(do_symlink(ROOT, long_name, "x"), -ENAMETOOLONG);
	reply_is(do_link(file.nodeid, ROOT, long_name), -ENAMETOOLONG);
	reply_is(do_unlink(ROOT, long_name), -ENAMETOOLONG);
	reply_is(do_rmdir(ROOT, long_name), -ENAMETOOLONG);
	reply_is(do_create(ROOT, long_name, O_RDWR, 0644), -ENAMETOOLONG);
	reply_is(do_rename(ROOT, "f", ROOT, long_name, 0), -ENAMETOOLONG);
	reply_is(do_rename(ROOT, long_name, ROOT, "f", 0), -ENAMETOOLONG);
	reply_is(do_rename(ROOT, "f", ROOT, long_name, RENAME_NOREPLACE), -ENAMETOOLONG);
	reply_is(do_rename(ROOT, long_name, ROOT, "f", RENAME_EXCHANGE), -ENAMETOOLONG);

	entry_of(do_mknod(ROOT, fits, S_IFREG | 0644, 0));
	entry_of(do_lookup(ROOT, fits));
	reply_is(do_rename(ROOT, fits, ROOT, "short", 0), 0);
	reply_is(do_rename(ROOT, "short", ROOT, fits, 0), 0);
	reply_is(do_unlink(ROOT, fits), 0);
	entry_of(do_mkdir(ROOT, fits, 0755));
	reply_is(do_rmdir(ROOT, fits), 0);
	entry_of(do_link(file.nodeid, ROOT, fits));
	reply_is(do_unlink(ROOT, fits), 0);

	memset(target, 't', sizeof(target));
	target[FS_SYMLINK_BYTES_MAX + 1] = 0;
	reply_is(do_symlink(ROOT, "s", target), -ENAMETOOLONG);
	target[FS_SYMLINK_BYTES_MAX] = 0;
	r = fk_call(FUSE_READLINK, entry_of(do_symlink(ROOT, "s", target)).nodeid, NULL, 0, NULL);
	reply_is(r, 0);
	assert_int_equal(r.len, FS_SYMLINK_BYTES_MAX);
	assert_string_equal(r.data, target);
	/* TMPFILE has one, which is only the directory's "/". */
	reply_is(fk_call(FUSE_TMPFILE, ROOT, &tmp, sizeof(tmp), "/"), 0);
	srv_stop();
}

/* Names that only a foreign host of ours could send: the kernel looks up "." and "..", never makes
 * them. */
static void test_rename(void **state)
{
	struct fuse_entry_out a, b, d, w;

	srv_start(NULL, NULL);
	a = entry_of(do_mknod(ROOT, "a", S_IFREG | 0644, 0));
	b = entry_of(do_mknod(ROOT, "b", S_IFREG | 0644, 0));
	d = entry_of(do_mkdir(ROOT, "d", 0755));
	reply_is(do_rename(ROOT, "a", ROOT, "b", RENAME_NOREPLACE), -EEXIST);
	reply_is(do_rename(ROOT, "a", ROOT, "c", RENAME_NOREPLACE), 0);
	assert_int_equal(entry_of(do_lookup(ROOT, "c")).nodeid, a.nodeid);
	reply_is(do_rename(ROOT, "c", ROOT, "none", RENAME_EXCHANGE), -ENOENT);
	reply_is(do_rename(ROOT, "c", d.nodeid, "x", RENAME_EXCHANGE), -ENOENT);
	reply_is(do_rename(ROOT, "c", ROOT, "d", RENAME_EXCHANGE), 0);
	assert_int_equal(entry_of(do_lookup(ROOT, "c")).nodeid, d.nodeid);
	assert_int_equal(entry_of(do_lookup(ROOT, "d")).nodeid, a.nodeid);
	/* What overlayfs does. */
	reply_is(do_rename(ROOT, "d", ROOT, "e", RENAME_WHITEOUT), 0);
	w = entry_of(do_lookup(ROOT, "d"));
	assert_int_equal(w.attr.mode & S_IFMT, S_IFCHR);
	assert_int_equal(w.attr.rdev, 0);
	/* Never ignored. */
	reply_is(do_rename(ROOT, "e", ROOT, "b", RENAME_NOREPLACE | RENAME_EXCHANGE), -EINVAL);
	reply_is(do_rename(ROOT, "e", ROOT, "b", RENAME_WHITEOUT | RENAME_EXCHANGE), -EINVAL);
	reply_is(do_rename(ROOT, "e", ROOT, "b", 8), -EINVAL);
	assert_int_equal(entry_of(do_lookup(ROOT, "b")).nodeid, b.nodeid);
	reply_is(do_rename(ROOT, "e", ROOT, "b", 0), 0);
	assert_int_equal(entry_of(do_lookup(ROOT, "b")).nodeid, a.nodeid);
	assert_int_equal(getattr(b.nodeid).nlink, 0);
	reply_is(do_rename(ROOT, "c", d.nodeid, "in itself", 0), -EINVAL);
	srv_stop();
}

static uint64_t commits;
static void count_commits(void)
{
	commits = fake_raid_commits(srv.raid);
}

static uint64_t commits_now(void)
{
	srv_do(count_commits);
	return commits;
}

/* -o dirsync: whatever changes names is durable before it is answered. */
static void test_dirsync(void **state)
{
	const struct fs_fuse_options o = {.mount_flags = MS_DIRSYNC};
	uint64_t before, file;

	srv_start(NULL, &o);
#define durable(expr)                                                                              \
	do {                                                                                       \
		before = commits_now();                                                            \
		reply_is(expr, 0);                                                                 \
		assert_true(commits_now() > before);                                               \
	} while (0)
	durable(do_mknod(ROOT, "a", S_IFREG | 0644, 0));
	file = entry_of(do_lookup(ROOT, "a")).nodeid;
	durable(do_mkdir(ROOT, "d", 0755));
	durable(do_symlink(ROOT, "s", "x"));
	durable(do_link(file, ROOT, "b"));
	durable(do_create(ROOT, "c", O_RDWR, 0644));
	durable(do_rename(ROOT, "a", ROOT, "aa", 0));
	durable(do_unlink(ROOT, "b"));
	durable(do_rmdir(ROOT, "d"));
	before = commits_now();
	reply_is(do_mkdir(ROOT, "c", 0755), -EEXIST);
	assert_int_equal(commits_now(), before);
	srv_stop();
}

static void freeze(void)
{
	fake_raid_freeze(srv.raid);
}

/* It is there but not durable: the error is told, and no reference stays behind. */
static void test_dirsync_fails(void **state)
{
	const struct fs_fuse_options o = {.mount_flags = MS_SYNCHRONOUS};

	srv_start(NULL, &o);
	srv.may_fail = true;
	entry_of(do_mknod(ROOT, "a", S_IFREG | 0644, 0));
	srv_do(freeze);
	reply_is(do_mknod(ROOT, "b", S_IFREG | 0644, 0), -EIO);
	reply_is(do_create(ROOT, "c", O_RDWR, 0644), -EIO);
	reply_is(do_unlink(ROOT, "a"), -EIO);
	srv_stop();
}

/* Open, without a name, and then with one. */
static void test_tmpfile(void **state)
{
	struct fuse_create_in in = {.flags = O_RDWR, .mode = S_IFREG | 0666, .umask = 022};
	struct created c;
	uint64_t before, ino;

	srv_start(NULL, NULL);
	before = inodes_used();
	fk_cred = (struct fk_cred){.uid = 3, .gid = 4};
	c = created_of(fk_call(FUSE_TMPFILE, ROOT, &in, sizeof(in), "/"));
	ino = c.entry.nodeid;
	assert_int_equal(c.entry.attr.mode, S_IFREG | 0644);
	assert_int_equal(c.entry.attr.nlink, 0);
	assert_int_equal(c.entry.attr.uid, 3);
	assert_int_equal(c.entry.attr.gid, 4);
	assert_int_equal(c.entry.attr.blksize, 4096);
	assert_int_equal(c.entry.attr_valid, 86400);
	assert_true(c.open.open_flags & FOPEN_KEEP_CACHE);
	write_file(ino, c.open.fh, 0, "unnamed", 7);
	assert_int_equal(entry_of(do_link(ino, ROOT, "named")).attr.nlink, 1);
	reply_is(do_release(ino, c.open.fh), 0);
	forget(ino, 2);
	srv_remount();
	assert_int_equal(entry_of(do_lookup(ROOT, "named")).nodeid, ino);
	assert_int_equal(getattr(ino).size, 7);
	/* Never named: gone with its last reference. */
	c = created_of(fk_call(FUSE_TMPFILE, ROOT, &in, sizeof(in), "/"));
	reply_is(do_release(c.entry.nodeid, c.open.fh), 0);
	assert_int_equal(inodes_used(), before + 2);
	forget(c.entry.nodeid, 1);
	inodes_become(before + 1);
	/* Nobody received it. */
	fk_lose_reply();
	reply_is(fk_call(FUSE_TMPFILE, ROOT, &in, sizeof(in), "/"), FK_LOST);
	inodes_become(before + 1);
	reply_is(fk_call(FUSE_TMPFILE, ino, &in, sizeof(in), "/"), -ENOTDIR);
	srv_stop();
}

/* Looked up by number alone, after the kernel has forgotten everything and so have we: NFS. */
static void test_export(void **state)
{
	struct fuse_entry_out d, f, e;

	srv_start(NULL, NULL);
	d = entry_of(do_mkdir(ROOT, "d", 0755));
	f = entry_of(do_mknod(d.nodeid, "f", S_IFREG | 0644, 0));
	srv_remount();
	e = entry_of(do_lookup(f.nodeid, "."));
	assert_int_equal(e.nodeid, f.nodeid);
	assert_int_equal(e.generation, f.generation);
	srv_remount();
	e = entry_of(do_lookup(d.nodeid, ".."));
	assert_int_equal(e.nodeid, ROOT);
	e = entry_of(do_lookup(d.nodeid, "."));
	assert_int_equal(e.generation, d.generation);
	e = entry_of(do_lookup(ROOT, ".."));
	assert_int_equal(e.nodeid, ROOT);
	/* A number that nobody has. */
	assert_true(do_lookup(f.nodeid + 1000, ".").error != 0 ||
		    !*(uint64_t *)do_lookup(f.nodeid + 1000, ".").data);
	/* Used again, it is told apart. */
	reply_is(do_unlink(d.nodeid, "f"), 0);
	srv_remount();
	e = entry_of(do_mknod(d.nodeid, "g", S_IFREG | 0644, 0));
	assert_true(e.nodeid != f.nodeid || e.generation != f.generation);
	srv_stop();
}

/* ---- directories ---- */

#define ENTRIES 500

/* Reads all of it through replies of `size` bytes; counts what it sees; plus: gives the references
 * back. */
static unsigned read_all(uint64_t dir, size_t size, bool plus, bool *seen)
{
	uint64_t off = 0;
	unsigned count = 0;

	for (;;) {
		begin_read(plus ? FUSE_READDIRPLUS : FUSE_READDIR, dir, 0, off, size);
		struct fk_reply r = fk_run();
		reply_is(r, 0);
		assert_true(r.len <= size);
		if (!r.len)
			return count;
		char *data = malloc(r.len);
		memcpy(data, r.data, r.len);
		for (size_t at = 0; at < r.len;) {
			const struct fuse_direntplus *p = (const void *)(data + at);
			const struct fuse_dirent *d = plus ? &p->dirent : (const void *)(data + at);
			char name[256] = "";
			memcpy(name, d->name, d->namelen);
			off = d->off;
			count++;
			bool dot = !strcmp(name, ".") || !strcmp(name, "..");
			assert_int_equal(d->type, dot ? DT_DIR : DT_REG);
			if (!dot) {
				unsigned n = (unsigned)atoi(name + 4);
				assert_true(n < ENTRIES && !seen[n]);
				seen[n] = true;
			}
			if (plus && dot) {
				assert_int_equal(p->entry_out.nodeid, 0);
			} else if (plus) {
				assert_int_equal(p->entry_out.nodeid, d->ino);
				assert_int_equal(p->entry_out.attr.ino, d->ino);
				assert_int_equal(p->entry_out.attr.mode, S_IFREG | 0644);
				assert_true(p->entry_out.generation != 0);
				forget(d->ino, 1);
			}
			at += plus ? FUSE_DIRENTPLUS_SIZE(p) : FUSE_DIRENT_SIZE(d);
		}
		free(data);
	}
}

static void test_readdir(void **state)
{
	static const size_t sizes[] = {4096, 280, 65536, 5u << 20};
	struct fuse_open_in in = {.flags = O_RDONLY | O_DIRECTORY};
	struct fk_reply r;
	uint64_t before, dir;

	srv_start(NULL, NULL);
	before = inodes_used();
	dir = entry_of(do_mkdir(ROOT, "d", 0755)).nodeid;
	reply_is(fk_call(FUSE_OPENDIR, dir, &in, sizeof(in), NULL), 0);
	for (unsigned i = 0; i < ENTRIES; i++) {
		char name[32];
		snprintf(name, sizeof(name), "name%u", i);
		forget(entry_of(do_mknod(dir, name, S_IFREG | 0644, 0)).nodeid, 1);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		for (int plus = 0; plus < 2; plus++) {
			bool seen[ENTRIES] = {0};
			assert_int_equal(read_all(dir, sizes[i], plus, seen), ENTRIES + 2);
		}
	}
	/* Too small for one entry, and for nothing at all. */
	begin_read(FUSE_READDIR, dir, 0, 0, 8);
	r = fk_run();
	reply_is(r, 0);
	assert_int_equal(r.len, 0);
	begin_read(FUSE_READDIRPLUS, dir, 0, 0, 0);
	r = fk_run();
	reply_is(r, 0);
	assert_int_equal(r.len, 0);
	/* Nobody received it: then nobody holds what it named. */
	fk_lose_reply();
	begin_read(FUSE_READDIRPLUS, dir, 0, 0, 65536);
	reply_is(fk_run(), FK_LOST);
	fk_lose_reply();
	begin_read(FUSE_READDIR, dir, 0, 0, 65536);
	reply_is(fk_run(), FK_LOST);
	for (unsigned i = 0; i < ENTRIES; i++) {
		char name[32];
		snprintf(name, sizeof(name), "name%u", i);
		reply_is(do_unlink(dir, name), 0);
	}
	inodes_become(before + 1);
	reply_is(do_fsync(FUSE_FSYNCDIR, dir, 0, 0), 0);
	reply_is(do_release(dir, 0), 0);
	struct fuse_release_in out = {0};
	reply_is(fk_call(FUSE_RELEASEDIR, dir, &out, sizeof(out), NULL), 0);
	begin_read(FUSE_READDIR, 999999, 0, 0, 4096);
	reply_is(fk_run(), -ESTALE);
	srv_stop();
}

/* An answer that nobody received leaves no reference. */
static void test_lost_replies(void **state)
{
	uint64_t before, ino;

	srv_start(NULL, NULL);
	before = inodes_used();
#define lost(expr)                                                                                 \
	do {                                                                                       \
		fk_lose_reply();                                                                   \
		reply_is(expr, FK_LOST);                                                           \
	} while (0)
	lost(do_mknod(ROOT, "a", S_IFREG | 0644, 0));
	lost(do_lookup(ROOT, "a"));
	lost(do_create(ROOT, "b", O_RDWR, 0644));
	lost(do_mkdir(ROOT, "d", 0755));
	lost(do_symlink(ROOT, "s", "x"));
	ino = entry_of(do_lookup(ROOT, "a")).nodeid;
	lost(do_link(ino, ROOT, "a2"));
	lost(do_getattr(ino));
	lost(fk_call(FUSE_STATFS, ROOT, NULL, 0, NULL));
	lost(fk_call(FUSE_OPEN, ino, &(struct fuse_open_in){.flags = O_RDWR},
		     sizeof(struct fuse_open_in), NULL));
	lost(do_unlink(ROOT, "a2"));
	forget(ino, 1);
	reply_is(do_unlink(ROOT, "a"), 0);
	reply_is(do_unlink(ROOT, "b"), 0);
	reply_is(do_unlink(ROOT, "s"), 0);
	reply_is(do_rmdir(ROOT, "d"), 0);
	inodes_become(before);
	srv_stop();
}

/* ---- attributes ---- */

static void test_setattr(void **state)
{
	struct fuse_attr a;
	uint64_t ino;

	srv_start(NULL, NULL);
	ino = entry_of(do_mknod(ROOT, "a", S_IFREG | 0644, 0)).nodeid;
	a = attr_of(do_setattr(
	    ino, (struct fuse_setattr_in){.valid = FATTR_MODE, .mode = S_IFREG | 04711}));
	assert_int_equal(a.mode, S_IFREG | 04711);
	a = attr_of(do_setattr(
	    ino, (struct fuse_setattr_in){.valid = FATTR_UID | FATTR_GID, .uid = 5, .gid = 6}));
	assert_int_equal(a.uid, 5);
	assert_int_equal(a.gid, 6);
	a = attr_of(do_setattr(ino, (struct fuse_setattr_in){.valid = FATTR_SIZE, .size = 123456}));
	assert_int_equal(a.size, 123456);
	a = attr_of(do_setattr(
	    ino, (struct fuse_setattr_in){.valid = FATTR_ATIME | FATTR_MTIME | FATTR_CTIME,
					  .atime = 11,
					  .atimensec = 12,
					  .mtime = 13,
					  .mtimensec = 14,
					  .ctime = 15,
					  .ctimensec = 16}));
	assert_int_equal(a.atime, 11);
	assert_int_equal(a.atimensec, 12);
	assert_int_equal(a.mtime, 13);
	assert_int_equal(a.mtimensec, 14);
	assert_int_equal(a.ctime, 15);
	assert_int_equal(a.ctimensec, 16);
	/* "Now" is ours; the kernel sends both bits. */
	a = attr_of(
	    do_setattr(ino, (struct fuse_setattr_in){.valid = FATTR_ATIME | FATTR_ATIME_NOW |
							      FATTR_MTIME | FATTR_MTIME_NOW,
						     .atime = 99,
						     .mtime = 98}));
	assert_int_equal(a.atimensec, 7);
	assert_int_equal(a.mtimensec, 7);
	assert_true(a.atime != 99 && a.mtime != 98);
	a = getattr(ino);
	assert_int_equal(a.mode,
			 S_IFREG | 0711); /* the new owner does not get the old one's rights */
	assert_int_equal(a.uid, 5);
	(void)do_setattr(ino,
			 (struct fuse_setattr_in){.valid = FATTR_MODE, .mode = S_IFREG | 04711});
	assert_int_equal(getattr(ino).mode, S_IFREG | 04711);
	/* A truncation or a change of owner that takes set-id bits away. */
	a = attr_of(do_setattr(
	    ino, (struct fuse_setattr_in){.valid = FATTR_SIZE | FATTR_KILL_SUIDGID, .size = 1}));
	assert_int_equal(a.mode, S_IFREG | 0711);
	reply_is(do_setattr(4711, (struct fuse_setattr_in){.valid = FATTR_MODE, .mode = 0}),
		 -ESTALE);
	reply_is(do_setattr(ROOT, (struct fuse_setattr_in){.valid = FATTR_SIZE, .size = 1}),
		 -EISDIR);
	reply_is(do_setattr(ino, (struct fuse_setattr_in){.valid = FATTR_SIZE, .size = UINT64_MAX}),
		 -EFBIG);
	srv_stop();
}

static void test_statfs(void **state)
{
	struct fuse_kstatfs s;

	srv_start(NULL, NULL);
	s = do_statfs();
	assert_int_equal(s.bsize, 4096);
	assert_int_equal(s.frsize, 4096);
	assert_int_equal(s.namelen, 255);
	assert_true(s.blocks > 0 && s.bfree <= s.blocks && s.bavail <= s.bfree);
	assert_true(s.files > 0 && s.ffree <= s.files);
	srv_stop();
}

/* Protocol 7.39, written down a second time. */
static void test_statx(void **state)
{
	struct {
		uint32_t getattr_flags, reserved;
		uint64_t fh;
		uint32_t sx_flags, sx_mask;
	} in = {.sx_mask = STATX_BASIC_STATS | STATX_BTIME};
	struct {
		uint64_t attr_valid;
		uint32_t attr_valid_ns, flags;
		uint64_t spare[2];
		struct statx stat; /* whose beginning is the same */
	} out;
	struct fk_reply r;
	struct fuse_attr a;
	uint64_t ino;

	srv_start(NULL, NULL);
	ino = entry_of(do_mknod(ROOT, "dev", S_IFCHR | 0600, (uint32_t)makedev(10, 200))).nodeid;
	a = getattr(ino);
	r = fk_call(52, ino, &in, sizeof(in), NULL);
	reply_is(r, 0);
	assert_int_equal(r.len, 32 + 256);
	memcpy(&out, r.data, sizeof(out));
	assert_int_equal(out.attr_valid, 86400);
	assert_int_equal(out.stat.stx_mask, STATX_BASIC_STATS | STATX_BTIME);
	assert_int_equal(out.stat.stx_ino, ino);
	assert_int_equal(out.stat.stx_mode, S_IFCHR | 0600);
	assert_int_equal(out.stat.stx_nlink, 1);
	assert_int_equal(out.stat.stx_blksize, 4096);
	assert_int_equal(out.stat.stx_rdev_major, 10);
	assert_int_equal(out.stat.stx_rdev_minor, 200);
	assert_int_equal(out.stat.stx_mtime.tv_sec, a.mtime);
	assert_int_equal(out.stat.stx_ctime.tv_sec, a.ctime);
	assert_int_equal(out.stat.stx_atime.tv_sec, a.atime);
	assert_int_equal(out.stat.stx_btime.tv_sec, a.mtime); /* nothing was changed since */
	assert_int_equal(out.stat.stx_btime.tv_nsec, 7);
	reply_is(fk_call(52, 777777, &in, sizeof(in), NULL), -ESTALE);
	srv_stop();
}

/* ---- extended attributes ---- */

static struct fk_reply do_setxattr(uint64_t ino, const char *name, const void *value, size_t len,
				   uint32_t flags)
{
	struct fuse_setxattr_in in = {.size = (uint32_t)len, .flags = flags};

	fk_begin(FUSE_SETXATTR, ino);
	fk_add(&in, FUSE_COMPAT_SETXATTR_IN_SIZE); /* SETXATTR_EXT is not asked for */
	fk_add_name(name);
	fk_add(value, len);
	return fk_run();
}

static struct fk_reply do_getxattr(uint64_t ino, const char *name, uint32_t size)
{
	struct fuse_getxattr_in in = {.size = size};

	return fk_call(name ? FUSE_GETXATTR : FUSE_LISTXATTR, ino, &in, sizeof(in), name);
}

static uint32_t size_of(struct fk_reply r)
{
	struct fuse_getxattr_out out;

	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, sizeof(out));
	memcpy(&out, r.data, sizeof(out));
	return out.size;
}

static void test_xattr(void **state)
{
	static char value[FS_XATTR_VALUE_BYTES_MAX + 1];
	struct fk_reply r;
	uint64_t ino;

	srv_start(NULL, NULL);
	memset(value, 'v', sizeof(value));
	ino = entry_of(do_mknod(ROOT, "a", S_IFREG | 0644, 0)).nodeid;
	assert_int_equal(size_of(do_getxattr(ino, NULL, 0)), 0);
	reply_is(do_getxattr(ino, "user.a", 0), -ENODATA);
	reply_is(do_setxattr(ino, "user.a", "12345", 5, 0), 0);
	reply_is(do_setxattr(ino, "user.a", "1", 1, XATTR_CREATE), -EEXIST);
	reply_is(do_setxattr(ino, "user.b", "1", 1, XATTR_REPLACE), -ENODATA);
	reply_is(do_setxattr(ino, "user.empty", "", 0, XATTR_CREATE), 0);
	assert_int_equal(size_of(do_getxattr(ino, "user.a", 0)), 5);
	r = do_getxattr(ino, "user.a", 100);
	reply_is(r, 0);
	assert_int_equal(r.len, 5);
	assert_string_equal(r.data, "12345");
	reply_is(do_getxattr(ino, "user.a", 4), -ERANGE);
	r = do_getxattr(ino, "user.empty", 100);
	reply_is(r, 0);
	assert_int_equal(r.len, 0);
	reply_is(do_setxattr(ino, "user.long", value, FS_XATTR_VALUE_BYTES_MAX, 0), 0);
	reply_is(do_setxattr(ino, "user.long", value, FS_XATTR_VALUE_BYTES_MAX + 1, 0), -E2BIG);
	r = do_getxattr(ino, "user.long", UINT32_MAX); /* more than there can be */
	reply_is(r, 0);
	assert_int_equal(r.len, FS_XATTR_VALUE_BYTES_MAX);
	assert_int_equal(size_of(do_getxattr(ino, NULL, 0)), 7 + 11 + 10);
	r = do_getxattr(ino, NULL, 4096);
	reply_is(r, 0);
	assert_int_equal(r.len, 7 + 11 + 10);
	reply_is(do_getxattr(ino, NULL, 9), -ERANGE);
	reply_is(do_setxattr(ino, "other.a", "1", 1, 0), -EOPNOTSUPP);
	/* An ACL that nobody enforces must not seem to be set. */
	reply_is(do_setxattr(ino, "system.posix_acl_access", "1", 1, 0), -EOPNOTSUPP);
	reply_is(do_setxattr(ino, "system.posix_acl_default", "1", 1, 0), -EOPNOTSUPP);
	reply_is(fk_call(FUSE_REMOVEXATTR, ino, NULL, 0, "user.a"), 0);
	reply_is(fk_call(FUSE_REMOVEXATTR, ino, NULL, 0, "user.a"), -ENODATA);
	srv_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_open),	 cmocka_unit_test(test_open_fails),
	    cmocka_unit_test(test_init),	 cmocka_unit_test(test_init_twice),
	    cmocka_unit_test(test_destroy),	 cmocka_unit_test(test_abort),
	    cmocka_unit_test(test_read_retries), cmocka_unit_test(test_unknown),
	    cmocka_unit_test(test_malformed),	 cmocka_unit_test(test_names),
	    cmocka_unit_test(test_long_names),	 cmocka_unit_test(test_rename),
	    cmocka_unit_test(test_dirsync),	 cmocka_unit_test(test_dirsync_fails),
	    cmocka_unit_test(test_tmpfile),	 cmocka_unit_test(test_export),
	    cmocka_unit_test(test_readdir),	 cmocka_unit_test(test_lost_replies),
	    cmocka_unit_test(test_setattr),	 cmocka_unit_test(test_statfs),
	    cmocka_unit_test(test_statx),	 cmocka_unit_test(test_xattr),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
