/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Open files through the FUSE front end, spoken to as the kernel does: data, its cache in the
 * kernel, requests that wait, are interrupted, or find no memory.
 */
#include "fuse_world.h"
#include <linux/falloc.h>
#include <linux/fs.h>

#define CACHED FUSE_WRITE_CACHE

static struct created new_file(const char *name)
{
	return created_of(do_create(ROOT, name, O_RDWR, S_IFREG | 0644));
}

static void read_is(uint64_t ino, uint64_t fh, uint64_t off, size_t len, const char *want,
		    size_t want_len)
{
	struct fk_reply r = do_read(ino, fh, off, len);

	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, want_len);
	assert_memory_equal(r.data, want, want_len);
}

/* ---- data ---- */

static void test_data(void **state)
{
	static char big[256 << 10], back[300 << 10];
	struct created c;
	uint64_t ino, reader;

	srv_start(NULL, NULL);
	c = new_file("a");
	ino = c.entry.nodeid;
	assert_int_equal(c.entry.attr.mode, S_IFREG | 0644);
	assert_true(c.open.open_flags & FOPEN_KEEP_CACHE);
	reply_is(do_create(ROOT, "a", O_RDWR, 0644), -EEXIST);
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (char)(i * 7 + i / 4096);
	read_is(ino, c.open.fh, 0, 100, "", 0);
	write_file(ino, c.open.fh, 0, "hello", 5);
	read_is(ino, c.open.fh, 0, 100, "hello", 5);
	read_is(ino, c.open.fh, 3, 1, "l", 1);
	read_is(ino, c.open.fh, 5, 4096, "", 0);
	/* A message that keeps its receive buffer; not aligned in the file. */
	write_file(ino, c.open.fh, 1000, big, sizeof(big));
	assert_int_equal(getattr(ino).size, 1000 + sizeof(big));
	read_is(ino, c.open.fh, 1000, sizeof(big), big, sizeof(big));
	memset(back, 0, sizeof(back));
	memcpy(back, "hello", 5);
	memcpy(back + 1000, big, sizeof(big));
	reader = open_file(ino, O_RDONLY);
	read_is(ino, reader, 0, 5u << 20, back, 1000 + sizeof(big)); /* more than is ever given */
	reply_is(do_fsync(FUSE_FSYNC, ino, c.open.fh, 0), 0);
	reply_is(do_fsync(FUSE_FSYNC, ino, reader, FUSE_FSYNC_FDATASYNC), 0);
	reply_is(do_flush(ino, c.open.fh), 0);
	reply_is(do_flush(ino, 0), 0); /* without a handle */
	reply_is(do_fsync(FUSE_FSYNC, ino, 0, 0), 0);
	reply_is(do_release(ino, c.open.fh), 0);
	reply_is(do_release(ino, reader), 0);
	srv_remount();
	reader = open_file(ino, O_RDONLY);
	read_is(ino, reader, 0, sizeof(back), back, 1000 + sizeof(big));
	reply_is(do_read(4711, reader, 0, 10), -ESTALE);
	reply_is(do_write(4711, reader, 0, "x", 1, 0), -ESTALE);
	reply_is(do_write(ROOT, reader, 0, "x", 1, 0), -EISDIR);
	srv_stop();
}

/* Without a name its data lives until the kernel lets go; and not beyond, also if it never does. */
static void test_open_unlinked(void **state)
{
	struct created c, d;
	uint64_t before;

	srv_start(NULL, NULL);
	before = inodes_used();
	c = new_file("a");
	d = new_file("b");
	write_file(c.entry.nodeid, c.open.fh, 0, "still there", 11);
	reply_is(do_unlink(ROOT, "a"), 0);
	reply_is(do_rename(ROOT, "b", ROOT, "c", 0), 0);
	write_file(c.entry.nodeid, c.open.fh, 11, "!", 1);
	read_is(c.entry.nodeid, c.open.fh, 0, 100, "still there!", 12);
	assert_int_equal(getattr(c.entry.nodeid).nlink, 0);
	assert_int_equal(getattr(c.entry.nodeid).size, 12);
	/* No .hidden names: nothing else is in the directory. */
	begin_read(FUSE_READDIR, ROOT, 0, 0, 4096);
	struct fk_reply r = fk_run();
	size_t names = 0;
	for (size_t at = 0; at < r.len; names++)
		at += FUSE_DIRENT_SIZE((const struct fuse_dirent *)(r.data + at));
	assert_int_equal(names, 3);
	reply_is(do_release(c.entry.nodeid, c.open.fh), 0);
	forget(c.entry.nodeid, 1);
	inodes_become(before + 1);
	reply_is(do_unlink(ROOT, "c"), 0);
	(void)d; /* open and unlinked when the kernel goes: freed by then */
	srv_remount();
	inodes_become(before);
	srv_stop();
}

static struct fk_reply do_fallocate(uint64_t ino, uint64_t fh, uint32_t mode, uint64_t off,
				    uint64_t len)
{
	struct fuse_fallocate_in in = {.fh = fh, .offset = off, .length = len, .mode = mode};

	return fk_call(FUSE_FALLOCATE, ino, &in, sizeof(in), NULL);
}

static void test_fallocate(void **state)
{
	static const uint32_t refused[] = {
	    FALLOC_FL_PUNCH_HOLE,
	    FALLOC_FL_COLLAPSE_RANGE,
	    FALLOC_FL_INSERT_RANGE,
	    FALLOC_FL_UNSHARE_RANGE,
	    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
	    0x40000000,
	    0x80000000,
	};
	static const char zeros[8192];
	struct created c;
	uint64_t ino, fh;
	char data[16384];

	srv_start(NULL, NULL);
	c = new_file("a");
	ino = c.entry.nodeid;
	fh = c.open.fh;
	memset(data, 'd', sizeof(data));
	write_file(ino, fh, 0, data, sizeof(data));
	for (unsigned i = 0; i < ARRAY_SIZE(refused); i++)
		reply_is(do_fallocate(ino, fh, refused[i], 0, 4096), -EOPNOTSUPP);
	read_is(ino, fh, 0, sizeof(data), data, sizeof(data));
	reply_is(do_fallocate(ino, fh, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192), 0);
	read_is(ino, fh, 4096, 8192, zeros, 8192);
	read_is(ino, fh, 12288, 4096, data, 4096);
	reply_is(do_fallocate(ino, fh, FALLOC_FL_KEEP_SIZE, 1 << 20, 4096), 0);
	assert_int_equal(getattr(ino).size, sizeof(data));
	reply_is(do_fallocate(ino, fh, 0, 16384, 4096), 0);
	assert_int_equal(getattr(ino).size, 20480);
	reply_is(do_fallocate(ino, fh, FALLOC_FL_ZERO_RANGE, 16000, 10000), 0);
	assert_int_equal(getattr(ino).size, 26000);
	reply_is(do_fallocate(ino, fh, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 100000), 0);
	assert_int_equal(getattr(ino).size, 26000);
	read_is(ino, fh, 12288, 4096, zeros, 4096);
	reply_is(do_fallocate(ino, fh, 0, 0, UINT64_MAX / 2), -EFBIG);
	reply_is(do_fallocate(ROOT, 0, 0, 0, 4096), -EISDIR);
	srv_stop();
}

/* ---- set-id bits ---- */

static void suid(uint64_t ino)
{
	struct fuse_setattr_in in = {.valid = FATTR_MODE, .mode = S_IFREG | 06755};

	assert_int_equal(attr_of(do_setattr(ino, in)).mode, S_IFREG | 06755);
}

/* HANDLE_KILLPRIV_V2: the kernel says when, we do it, and tell it, as it goes on believing what it
 * knew. */
static void test_killpriv(void **state)
{
	struct fuse_notify_inval_inode_out note;
	struct created c;
	uint64_t ino;

	srv_start(NULL, NULL);
	c = new_file("a");
	ino = c.entry.nodeid;
	reply_is(fk_call(FUSE_SETXATTR, ino, "\2\0\0\0\0\0\0\0security.capability\0xy", 8 + 20 + 2,
			 NULL),
		 0);
	suid(ino);
	write_file(ino, c.open.fh, 0, "root may", 8);
	assert_int_equal(getattr(ino).mode, S_IFREG | 06755);
	assert_int_equal(fk_invals(NULL), 0);
	reply_is(do_write(ino, c.open.fh, 0, "others", 6, FUSE_WRITE_KILL_SUIDGID), 0);
	assert_int_equal(getattr(ino).mode, S_IFREG | 0755);
	assert_int_equal(fk_invals(&note), 1);
	assert_int_equal(note.ino, ino);
	assert_true(note.off < 0); /* attributes alone: with pages it would wait for us */
	reply_is(fk_call(FUSE_GETXATTR, ino, "\0\0\0\0\0\0\0\0security.capability", 8 + 20, NULL),
		 -ENODATA);
	srv_stop();
}

/* ---- the kernel's cache ---- */

/* With it times are the kernel's, whoever writes. */
static void test_times(void **state)
{
	struct fs_fuse_options o = {0};

	for (int cached = 0; cached < 2; cached++) {
		struct created c;
		struct fuse_attr a, b;

		o.writeback_cache = cached;
		srv_start(NULL, &o);
		c = new_file("a");
		a = getattr(c.entry.nodeid);
		write_file(c.entry.nodeid, c.open.fh, 0, "x", 1);
		b = getattr(c.entry.nodeid);
		assert_int_equal(b.mtime == a.mtime, cached);
		a = b;
		reply_is(do_write(c.entry.nodeid, c.open.fh, 1, "x", 1, CACHED), 0);
		b = getattr(c.entry.nodeid);
		assert_int_equal(b.mtime, a.mtime);
		reply_is(do_fallocate(c.entry.nodeid, c.open.fh, 0, 0, 1 << 20), 0);
		b = getattr(c.entry.nodeid);
		assert_int_equal(b.mtime == a.mtime, cached);
		srv_stop();
	}
}

/* The thread that notifies is held until the test has written the dirty page, as the kernel holds
 * it. */
static sem_t inval_came, inval_done;
static void on_inval(uint64_t ino, int64_t off, int64_t len)
{
	assert_true(off == 0 && len == 0); /* the whole file */
	sem_post(&inval_came);
	sem_down(&inval_done);
}

/* The kernel is asked for what it holds, gives it, and lets go. */
static void dirty_page(uint64_t ino, uint64_t fh, uint64_t off, const char *data, size_t len)
{
	sem_down(&inval_came);
	reply_is(do_write(ino, fh, off, data, len, CACHED), 0);
	sem_post(&inval_done);
}

static struct fk_reply do_lseek(uint64_t ino, uint64_t fh, uint64_t off, uint32_t whence)
{
	struct fuse_lseek_in in = {.fh = fh, .offset = off, .whence = whence};

	return fk_call(FUSE_LSEEK, ino, &in, sizeof(in), NULL);
}

static uint64_t offset_of(struct fk_reply r)
{
	struct fuse_lseek_out out;

	assert_int_equal(r.error, 0);
	assert_int_equal(r.len, sizeof(out));
	memcpy(&out, r.data, sizeof(out));
	return out.offset;
}

static void test_lseek(void **state)
{
	const struct fs_fuse_options o = {.writeback_cache = true};
	struct fuse_lseek_in in = {.whence = SEEK_DATA};
	struct created c;
	uint64_t ino, asked;
	char data[4096];

	srv_start(NULL, NULL);
	c = new_file("a");
	ino = c.entry.nodeid;
	memset(data, 'd', sizeof(data));
	write_file(ino, c.open.fh, 65536, data, sizeof(data));
	assert_int_equal(offset_of(do_lseek(ino, c.open.fh, 0, SEEK_DATA)), 65536);
	assert_int_equal(offset_of(do_lseek(ino, c.open.fh, 65536, SEEK_HOLE)), 65536 + 4096);
	reply_is(do_lseek(ino, c.open.fh, 1 << 20, SEEK_DATA), -ENXIO);
	reply_is(do_lseek(ino, c.open.fh, 0, 7), -EINVAL);
	assert_int_equal(fk_invals(NULL), 0); /* nothing can be dirty: not asked */
	srv_stop();

	srv_start(NULL, &o);
	sem_init(&inval_came, 0, 0);
	sem_init(&inval_done, 0, 0);
	c = new_file("a");
	ino = c.entry.nodeid;
	reply_is(do_setattr(ino, (struct fuse_setattr_in){.valid = FATTR_SIZE, .size = 1 << 20}),
		 0);
	fk_on_inval(on_inval);
	in.fh = c.open.fh;
	fk_begin(FUSE_LSEEK, ino);
	fk_add(&in, sizeof(in));
	asked = fk_send();
	dirty_page(ino, c.open.fh, 8192, data, sizeof(data));
	assert_int_equal(offset_of(fk_wait(asked)), 8192);
	/* Only open for reading: cannot be dirty. */
	reply_is(do_release(ino, c.open.fh), 0);
	c.open.fh = open_file(ino, O_RDONLY);
	assert_int_equal(offset_of(do_lseek(ino, c.open.fh, 0, SEEK_DATA)), 8192);
	assert_int_equal(fk_invals(NULL), 1);
	srv_stop();
}

/* A file that replaces another one: what the kernel still holds of it is part of the bargain. */
static void test_rename_cached(void **state)
{
	const struct fs_fuse_options o = {.writeback_cache = true};
	struct fuse_rename_in in = {.newdir = ROOT};
	struct created c, other;
	uint64_t asked;

	srv_start(NULL, &o);
	sem_init(&inval_came, 0, 0);
	sem_init(&inval_done, 0, 0);
	other = new_file("other");
	c = new_file("new");
	reply_is(
	    do_setattr(c.entry.nodeid, (struct fuse_setattr_in){.valid = FATTR_SIZE, .size = 3}),
	    0);
	fk_on_inval(on_inval);
	/* Nothing is replaced, or the names change places: nothing is asked. */
	reply_is(do_rename(ROOT, "new", ROOT, "new2", 0), 0);
	reply_is(do_rename(ROOT, "none", ROOT, "new2", 0), -ENOENT);
	reply_is(do_rename(ROOT, "new2", ROOT, "other", RENAME_EXCHANGE), 0);
	reply_is(do_rename(ROOT, "new2", ROOT, "other", RENAME_EXCHANGE), 0);
	reply_is(do_rename(ROOT, "new2", ROOT, "other", RENAME_NOREPLACE), -EEXIST);
	assert_int_equal(fk_invals(NULL), 0);
	fk_begin(FUSE_RENAME, ROOT);
	fk_add(&in, sizeof(in));
	fk_add_name("new2");
	fk_add_name("other");
	asked = fk_send();
	dirty_page(c.entry.nodeid, c.open.fh, 0, "new", 3);
	reply_is(fk_wait(asked), 0);
	assert_int_equal(entry_of(do_lookup(ROOT, "other")).nodeid, c.entry.nodeid);
	assert_int_equal(getattr(other.entry.nodeid).nlink, 0);
	/* Durable with the rename, though nobody closed it. */
	read_is(c.entry.nodeid, c.open.fh, 0, 10, "new", 3);
	srv_stop();
}

/* ---- errors ---- */

static uint64_t fail_reads;
static void set_fail_read(void)
{
	fake_raid_fail_read(srv.raid, fail_reads, -EBADMSG);
}
static void set_fail_write(void)
{
	fake_raid_fail_write(srv.raid, 1, -EIO);
}

static void set_error(void)
{
	fake_raid_set_error(srv.raid, -EIO);
}

/* What could not be written is kept and tried again; once it is given up, each that has the file
 * open is told. */
static void test_write_error(void **state)
{
	static char data[65536];
	struct created c;
	uint64_t ino, second;

	srv_start(NULL, NULL);
	c = new_file("a");
	ino = c.entry.nodeid;
	second = open_file(ino, O_RDONLY);
	reply_is(do_fsync(FUSE_FSYNC, ino, c.open.fh, 0), 0);
	memset(data, 'd', sizeof(data));
	write_file(ino, c.open.fh, 0, data, sizeof(data));
	srv_do(set_fail_write);
	reply_is(do_fsync(FUSE_FSYNC, ino, c.open.fh, 0), -EIO);
	reply_is(do_fsync(FUSE_FSYNC, ino, c.open.fh, 0), 0);
	srv_remount();
	c.open.fh = open_file(ino, O_RDWR);
	second = open_file(ino, O_RDONLY);
	read_is(ino, c.open.fh, 0, sizeof(data), data, sizeof(data));
	write_file(ino, c.open.fh, 0, data, sizeof(data));
	srv.may_fail = true;
	srv_do(set_error);
	reply_is(do_flush(ino, c.open.fh), 0);
	reply_is(do_fsync(FUSE_FSYNC, ino, c.open.fh, 0), -EIO);
	reply_is(do_fsync(FUSE_FSYNC, ino, second, 0), -EIO);
	reply_is(do_write(ino, c.open.fh, 0, data, 1, 0), -EIO);
	srv_stop();
}

static void test_read_error(void **state)
{
	struct created c;
	char data[8192];

	srv_start(NULL, NULL);
	c = new_file("a");
	memset(data, 'd', sizeof(data));
	write_file(c.entry.nodeid, c.open.fh, 0, data, sizeof(data));
	reply_is(do_fsync(FUSE_FSYNC, c.entry.nodeid, c.open.fh, 0), 0);
	srv_remount();
	uint64_t ino = entry_of(do_lookup(ROOT, "a")).nodeid, fh = open_file(ino, O_RDONLY);
	read_is(ino, fh, 0, 8192, data, 8192);
	fail_reads = 1;
	srv_do(set_fail_read);
	/* Bytes that are wrong are an I/O error to a program. */
	reply_is(do_read(ino, fh, 0, 8192), -EIO);
	read_is(ino, fh, 0, 8192, data, 8192);
	srv_stop();
}

/* A hung device keeps the memory: other memory is used, and in the end there is an error and not a
 * wait. */
static void test_read_again(void **state)
{
	static const unsigned one_in[] = {2, 1};
	char data[8192];

	memset(data, 'd', sizeof(data));
	for (unsigned i = 0; i < ARRAY_SIZE(one_in); i++) {
		struct fake_raid_params p = {.yield_one_in = 3, .seed = 5};
		unsigned good = 0, bad = 0;

		srv_start(&p, NULL);
		struct created c = new_file("a");
		write_file(c.entry.nodeid, c.open.fh, 0, data, sizeof(data));
		reply_is(do_fsync(FUSE_FSYNC, c.entry.nodeid, c.open.fh, 0), 0);
		srv.params.eagain_one_in = one_in[i];
		fake_raid_set_eagain(srv.raid, one_in[i]);
		for (int k = 0; k < 40; k++) {
			struct fk_reply r = do_read(c.entry.nodeid, c.open.fh, 0, 8192);
			if (r.error) {
				assert_int_equal(r.error, -EIO);
				bad++;
			} else {
				assert_memory_equal(r.data, data, 8192);
				good++;
			}
		}
		assert_int_equal(good > 0, one_in[i] > 1);
		assert_true(bad > 0);
		fake_raid_set_eagain(srv.raid, 0);
		srv_stop();
	}
}

/* ---- waiting ---- */

static void hold(void)
{
	fake_raid_hold(srv.raid, true);
}
static void let_go(void)
{
	fake_raid_hold(srv.raid, false);
}

/* More requests than we take wait in the kernel, and go on when there is room; df answers
 * meanwhile. */
static void test_hang(void **state)
{
	enum { FEW = 400, MANY = 1100 };
	static uint64_t asked[MANY];
	struct created c;
	uint64_t ino, fh;
	char data[8192];

	srv_start(NULL, NULL);
	c = new_file("a");
	ino = c.entry.nodeid;
	fh = c.open.fh;
	memset(data, 'd', sizeof(data));
	write_file(ino, fh, 0, data, sizeof(data));
	reply_is(do_fsync(FUSE_FSYNC, ino, fh, 0), 0);
	for (int round = 0; round < 2; round++) {
		unsigned count = round ? MANY : FEW;
		uint64_t late;

		srv_do(hold);
		for (unsigned i = 0; i < count; i++) {
			begin_read(FUSE_READ, ino, fh, 0, 4096);
			asked[i] = fk_send();
		}
		if (!round) {
			assert_int_equal(do_statfs().bsize, 4096);
			struct fuse_open_in in = {0};
			reply_is(fk_call(FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL), 0);
		}
		fk_begin(FUSE_STATFS, ROOT);
		late = fk_send();
		for (unsigned i = 0; i < count; i++)
			assert_true(!fk_answered(asked[i]));
		srv_do(let_go);
		for (unsigned i = 0; i < count; i++)
			reply_is(fk_wait(asked[i]), 0);
		reply_is(fk_wait(late), 0);
	}
	srv_stop();
}

/* Writes that hang keep large buffers: those run out first. */
static void test_hang_writes(void **state)
{
	enum { WRITES = 300 };
	static uint64_t asked[WRITES];
	static char data[65536];
	struct created c;

	srv_start(NULL, NULL);
	c = new_file("a");
	memset(data, 'd', sizeof(data));
	srv_do(hold);
	for (unsigned i = 0; i < WRITES; i++) {
		begin_write(c.entry.nodeid, c.open.fh, (uint64_t)i * sizeof(data), data,
			    sizeof(data), 0);
		asked[i] = fk_send();
		if (i == 60)
			srv_do(let_go);
		if (i == 61)
			srv_do(hold);
	}
	srv_do(let_go);
	for (unsigned i = 0; i < WRITES; i++)
		reply_is(fk_wait(asked[i]), 0);
	assert_int_equal(getattr(c.entry.nodeid).size, WRITES * sizeof(data));
	srv_stop();
}

/* An operation that was interrupted is done or not, and answered once either way. */
static void test_interrupt(void **state)
{
	struct fuse_interrupt_in in;
	struct created c;
	uint64_t read, ino;
	char data[4096];

	srv_start(NULL, NULL);
	c = new_file("a");
	ino = c.entry.nodeid;
	memset(data, 'd', sizeof(data));
	write_file(ino, c.open.fh, 0, data, sizeof(data));
	reply_is(do_fsync(FUSE_FSYNC, ino, c.open.fh, 0), 0);
	srv_do(hold);
	begin_read(FUSE_READ, ino, c.open.fh, 0, 4096);
	read = fk_send();
	in.unique = read;
	fk_begin(FUSE_INTERRUPT, 0);
	fk_add(&in, sizeof(in));
	(void)fk_send();
	/* A request that the kernel interrupts before we have seen it, or after we answered. */
	in.unique = 9999998;
	fk_begin(FUSE_INTERRUPT, 0);
	fk_add(&in, sizeof(in));
	uint64_t unknown = fk_send();
	assert_int_equal(do_statfs().bsize, 4096);
	srv_do(let_go);
	reply_is(fk_wait(read), 0);
	/* "Send it again if it still matters." */
	(void)getattr(ROOT);
	reply_is(fk_wait(unknown), -EAGAIN);
	/* The write whose writer was killed: nobody takes the answer, and the data is there. */
	fk_lose_reply();
	reply_is(do_write(ino, c.open.fh, 0, "killed", 6, 0), FK_LOST);
	read_is(ino, c.open.fh, 0, 6, "killed", 6);
	srv_stop();
}

/* The connection goes while requests hang: they end, then everything else does. */
static void test_gone_while_busy(void **state)
{
	struct created c;
	char data[4096];

	srv_start(NULL, NULL);
	c = new_file("a");
	memset(data, 'd', sizeof(data));
	write_file(c.entry.nodeid, c.open.fh, 0, data, sizeof(data));
	reply_is(do_fsync(FUSE_FSYNC, c.entry.nodeid, c.open.fh, 0), 0);
	srv_do(hold);
	for (int i = 0; i < 20; i++) {
		begin_read(FUSE_READ, c.entry.nodeid, c.open.fh, 0, 4096);
		(void)fk_send();
	}
	(void)do_statfs(); /* they have been taken */
	srv_do(let_go);
	srv_stop();
}

/* ---- no memory ---- */

static void no_memory(void)
{
	mem_fail_after(1, true);
}
static void memory_again(void)
{
	mem_fail_after(0, false);
}

/* An answer to everything, -ENOMEM at worst, and nothing is left behind. */
static void test_no_memory(void **state)
{
	struct fuse_create_in tmp = {.flags = O_RDWR, .mode = 0600};
	struct fuse_open_in in = {.flags = O_RDWR};
	uint64_t before, ino;

	srv_start(NULL, NULL);
	before = inodes_used();
	ino = entry_of(do_mknod(ROOT, "a", S_IFREG | 0644, 0)).nodeid;
	srv_do(no_memory);
	reply_is(fk_call(FUSE_OPEN, ino, &in, sizeof(in), NULL), -ENOMEM);
	assert_true(do_create(ROOT, "b", O_RDWR, 0644).error < 0);
	assert_true(fk_call(FUSE_TMPFILE, ROOT, &tmp, sizeof(tmp), "/").error < 0);
	assert_int_equal(do_statfs().bsize, 4096);
	/* Several at once have no request to be put into: they wait in the kernel. */
	srv_do(hold);
	for (int i = 0; i < 4; i++) {
		begin_read(FUSE_READ, ino, 0, 0, 4096);
		(void)fk_send();
	}
	srv_do(memory_again);
	srv_do(let_go);
	reply_is(do_unlink(ROOT, "a"), 0);
	forget(ino, 1);
	/* The n-th allocation of each, until it succeeds. */
	for (uint64_t n = 1, done = 0; !done; n++) {
		mem_fail_after(n, false);
		struct fk_reply r = do_create(ROOT, "c", O_RDWR, 0644);
		mem_fail_after(0, false);
		if (r.error == 0) {
			struct created c = created_of(r);
			reply_is(do_release(c.entry.nodeid, c.open.fh), 0);
			forget(c.entry.nodeid, 1);
			done = 1;
		}
		r = do_unlink(ROOT, "c"); /* made, and then not opened */
		assert_true(r.error == 0 || r.error == -ENOENT);
		mem_fail_after(n, false);
		r = fk_call(FUSE_TMPFILE, ROOT, &tmp, sizeof(tmp), "/");
		mem_fail_after(0, false);
		if (r.error == 0) {
			struct created c = created_of(r);
			reply_is(do_release(c.entry.nodeid, c.open.fh), 0);
			forget(c.entry.nodeid, 1);
		}
	}
	inodes_become(before);
	srv_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_data),	  cmocka_unit_test(test_open_unlinked),
	    cmocka_unit_test(test_fallocate),	  cmocka_unit_test(test_killpriv),
	    cmocka_unit_test(test_times),	  cmocka_unit_test(test_lseek),
	    cmocka_unit_test(test_rename_cached), cmocka_unit_test(test_write_error),
	    cmocka_unit_test(test_read_error),	  cmocka_unit_test(test_read_again),
	    cmocka_unit_test(test_hang),	  cmocka_unit_test(test_hang_writes),
	    cmocka_unit_test(test_interrupt),	  cmocka_unit_test(test_gone_while_busy),
	    cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
