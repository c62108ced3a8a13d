/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fsck as a library. A small filesystem with one of everything is built item by item, without the
 * code that normally writes those items; it must be found clean. Then, for each kind of fault, the
 * same filesystem with exactly that fault must be reported with exactly the ids that follow from
 * it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <dirent.h>
#include "fake_raid.h"
#include "fs/fault.h"
#include "fs/node.h"
#include "fs/writeback.h"

#define POOL_BYTES (8u << 20)
#define FILLERS	   400u

/* ---- what mount.c needs of the other parts: nothing of it is under test here ---- */

int inodes_init(struct fs *fs)
{
	return 0;
}
void inodes_exit(struct fs *fs)
{
}
int inodes_reap_orphans(struct fs *fs)
{
	return 0;
}
void inodes_reap_wait(struct fs *fs)
{
}
int writeback_init(struct fs *fs)
{
	return 0;
}
int writeback_stop(struct fs *fs)
{
	return 0;
}
void writeback_exit(struct fs *fs)
{
}
int cleaner_init(struct fs *fs)
{
	return 0;
}
void cleaner_exit(struct fs *fs)
{
}
uint64_t writeback_dirty_bytes(const struct fs *fs)
{
	return 0;
}
bool writeback_meta_may(const struct fs *fs, unsigned kind, uint32_t want)
{
	return true;
}
bool writeback_meta_may_grow(struct fs *fs)
{
	return true;
}
uint64_t writeback_meta_kept(const struct fs *fs)
{
	return 0;
}
bool writeback_space_enter(struct fs *fs, bool always)
{
	return false;
}
void writeback_space_leave(struct fs *fs)
{
}
bool writeback_make_space(struct fs *fs)
{
	return false;
}
uint64_t writeback_reserved_blocks(const struct fs *fs)
{
	return 0;
}
void fs_path(struct fs *fs, uint64_t ino, char *ret, size_t cap)
{
	snprintf(ret, cap, "inode %llu", (unsigned long long)ino);
}

/* ---- items ---- */

struct item_spec {
	struct key key;
	unsigned len;
	bool del;
	_Alignas(16) uint8_t data[ITEM_BYTES_MAX];
};

struct world {
	struct loop *loop;
	struct raid *raid;
	struct fs *fs;
	struct uuid uuid;
	struct item_spec item;
	struct raid_run data[3]; /* of the file's two extents and the orphan's */
	uint64_t live_lba, dead_lba;
	uint32_t count;
	char found[FAULT_COUNT][8]; /* ids reported, each once, in order of id */
	unsigned found_count;
	int64_t problems;
	struct fs_check_stats stats;
	void (*damage)(struct world *w);      /* while mounted */
	void (*break_bytes)(struct world *w); /* after unmount */
};

static int put_atom(struct fs *fs, void *arg)
{
	struct item_spec *i = arg;
	int e = bt_prepare(fs, i->key, i->len);
	if (e)
		return e;
	if (i->del)
		bt_del(fs, i->key);
	else
		bt_put(fs, i->key, i->data, i->len);
	return 0;
}

static void put(struct world *w, struct key key, const void *data, unsigned len)
{
	struct item_spec *i = &w->item;
	*i = (struct item_spec){.key = key, .len = len};
	if (len)
		memcpy(i->data, data, len);
	assert_int_equal(fs_atom(w->fs, ATOM_WRITE, put_atom, i), 0);
}

static int get_atom(struct fs *fs, void *arg)
{
	struct item_spec *i = arg;
	struct bt_value v;
	int e = bt_get(fs, i->key, &v);
	if (e == 0) {
		memcpy(i->data, v.data, v.len);
		i->len = v.len;
	}
	return e;
}

static struct item_spec *get(struct world *w, struct key key)
{
	w->item = (struct item_spec){.key = key};
	assert_int_equal(fs_atom(w->fs, ATOM_READ, get_atom, &w->item), 0);
	return &w->item;
}

static void again(struct world *w)
{
	assert_int_equal(fs_atom(w->fs, ATOM_WRITE, put_atom, &w->item), 0);
}

static void del(struct world *w, struct key key)
{
	get(w, key)->del = true;
	w->item.len = 0;
	again(w);
}

static struct key key_of(uint64_t ino, unsigned type, uint64_t off)
{
	return (struct key){ino, KEY_OFF(type, off)};
}

static struct inode_disk *inode_get(struct world *w, uint64_t ino)
{
	return (struct inode_disk *)get(w, key_of(ino, TYPE_INODE, 0))->data;
}

static void inode_put(struct world *w, uint64_t ino, uint32_t mode, uint32_t links, uint64_t parent,
		      uint64_t size, uint64_t blocks, uint64_t entries)
{
	struct inode_disk d = {.mode = to_le32(mode),
			       .links = to_le32(links),
			       .size = to_le64(size),
			       .blocks = to_le64(blocks),
			       .generation = to_le32(1),
			       .parent = to_le64(parent),
			       .subdirs_or_entries = to_le64(entries)};
	put(w, key_of(ino, TYPE_INODE, 0), &d, sizeof(d));
}

/* One or two names in one bucket. */
static unsigned name_bytes(uint8_t *out, const char *name, uint64_t ino, unsigned dtype,
			   unsigned number)
{
	struct name_disk n = {.ino = to_le64(ino),
			      .dtype = (uint8_t)dtype,
			      .name_len = (uint8_t)strlen(name),
			      .reserved = {(uint8_t)number}};
	memset(out, 0, sizeof(n) + ROUND_UP(n.name_len, 8));
	memcpy(out, &n, sizeof(n));
	memcpy(out + sizeof(n), name, n.name_len);
	return (unsigned)sizeof(n) + ROUND_UP(n.name_len, 8u);
}

static struct key name_key(struct world *w, uint64_t dir, const char *name)
{
	return key_of(dir, TYPE_NAME, fs_name_hash(w->fs, name, strlen(name)));
}

static void name_put(struct world *w, uint64_t dir, const char *name, uint64_t ino, unsigned dtype)
{
	uint8_t b[400];
	put(w, name_key(w, dir, name), b, name_bytes(b, name, ino, dtype, 0));
}

static void extent_put(struct world *w, uint64_t ino, uint64_t off, uint64_t lba, uint32_t count)
{
	struct extent_disk d = {.lba = to_le64(lba), .count = to_le32(count)};
	put(w, key_of(ino, TYPE_EXTENT, off), &d, sizeof(d));
}

static struct key backref_key(uint64_t lba)
{
	return key_of(BACKREF_INO | LBA_CHUNK(lba), TYPE_BACKREF, LBA_BLOCK(lba));
}

static void backref_put(struct world *w, uint64_t ino, uint64_t off, uint64_t lba, uint32_t count)
{
	struct backref_disk d = {.ino = to_le64(ino), .off = to_le64(off), .count = to_le32(count)};
	put(w, backref_key(lba), &d, sizeof(d));
}

static struct raid_run data_new(struct world *w, uint32_t count)
{
	struct raid_run run;
	unsigned n;
	assert_int_equal(raid_alloc_data(w->raid, count, 0, &run, 1, &n), 0);
	assert_int_equal(run.count, count);
	void *data = buf_get_wait(BLOCK_BYTES);
	memset(data, 'x', BLOCK_BYTES);
	for (uint32_t i = 0; i < count; i++) {
		struct raid_block b = {run.lba + i, data};
		assert_int_equal(raid_write(w->raid, &b, 1, 0), 0);
	}
	buf_put(data);
	raid_stage_live(w->raid, run.lba, count);
	fs_counters(w->fs)->data_blocks += count;
	return run;
}

static void xattr_put(struct world *w, uint64_t ino, const char *name, uint32_t value_len)
{
	uint64_t hash = fs_name_hash(w->fs, name, strlen(name));
	for (uint32_t piece = 0, at = 0; piece == 0 || at < value_len; piece++) {
		uint8_t b[ITEM_BYTES_MAX] = {0};
		uint32_t name_len = piece ? 0 : (uint32_t)strlen(name),
			 len = MIN(value_len - at, 1600 - name_len);
		struct xattr_disk d = {.name_len = to_le16((uint16_t)name_len),
				       .value_len = to_le32(value_len),
				       .piece = to_le32(piece),
				       .piece_len = to_le32(len)};
		memcpy(b, &d, sizeof(d));
		memcpy(b + sizeof(d), name, name_len);
		put(w, key_of(ino, TYPE_XATTR, hash + piece), b,
		    (unsigned)ROUND_UP(sizeof(d) + name_len + len, 8));
		at += len;
	}
}

/*
 * 1 /              2 /dir           6 /dir/sub       7 /dir/sub/tiny: inline
 * 3 /file /hard /dir/hard2: two extents, a promised one, attributes
 * 4 /link          5 /dev           8 open and unlinked, with data
 * 9 open and removed directory      10 /cut: truncation under way
 * 100.. /dir/f000 and so on: so that the tree has levels
 */
static void build(struct world *w)
{
	struct fs_counters *c = fs_counters(w->fs);
	char text[3000];
	memset(text, 't', sizeof(text));
	inode_put(w, 1, S_IFDIR | 0755, 3, 1, 0, 0, 6);
	inode_put(w, 2, S_IFDIR | 0755, 3, 1, 0, 0, 2 + FILLERS);
	inode_put(w, 3, S_IFREG | 0644, 3, 1, 140000, 19, 0);
	inode_put(w, 4, S_IFLNK | 0777, 1, 1, sizeof(text), 0, 0);
	inode_put(w, 5, S_IFCHR | 0600, 1, 1, 0, 0, 0);
	inode_put(w, 6, S_IFDIR | 0755, 2, 2, 0, 0, 1);
	inode_put(w, 7, S_IFREG | 0644, 1, 6, 100, 0, 0);
	inode_put(w, 8, S_IFREG | 0644, 0, 0, 8192, 2, 0);
	inode_put(w, 9, S_IFDIR | 0755, 0, 2, 0, 0, 0);
	inode_put(w, 10, S_IFREG | 0644, 1, 1, 0, 0, 0);
	for (unsigned i = 0; i < FILLERS; i++) {
		char name[16];
		snprintf(name, sizeof(name), "f%03u", i);
		inode_put(w, 100 + i, S_IFREG | 0644, 1, 2, 0, 0, 0);
		name_put(w, 2, name, 100 + i, DT_REG);
	}
	name_put(w, 1, "dir", 2, DT_DIR);
	name_put(w, 1, "file", 3, DT_REG);
	name_put(w, 1, "hard", 3, DT_REG);
	name_put(w, 2, "hard2", 3, DT_REG);
	name_put(w, 1, "link", 4, DT_LNK);
	name_put(w, 1, "dev", 5, DT_CHR);
	name_put(w, 2, "sub", 6, DT_DIR);
	name_put(w, 6, "tiny", 7, DT_REG);
	name_put(w, 1, "cut", 10, DT_REG);
	put(w, key_of(4, TYPE_SYMLINK, 0), text, 1800);
	put(w, key_of(4, TYPE_SYMLINK, 1), text, 1200);
	put(w, key_of(7, TYPE_INLINE, 0), text, 100);
	put(w, key_of(0, TYPE_ORPHAN, 8), NULL, 0);
	put(w, key_of(0, TYPE_ORPHAN, 9), NULL, 0);
	put(w, key_of(0, TYPE_ORPHAN, 10), NULL, 0);
	xattr_put(w, 3, "user.long", 5000);
	xattr_put(w, 3, "user.short", 7);
	xattr_put(w, 2, "user.empty", 0);
	uint32_t counts[3] = {10, 5, 2};
	for (unsigned i = 0; i < 3; i++) {
		w->data[i] = data_new(w, counts[i]);
		uint64_t ino = i < 2 ? 3 : 8, off = i == 1 ? 30 : 0;
		extent_put(w, ino, off, w->data[i].lba, counts[i]);
		backref_put(w, ino, off, w->data[i].lba, counts[i]);
	}
	extent_put(w, 3, 20, LBA_NONE, 4);
	c->prealloc_blocks = 4;
	c->inodes = 10 + FILLERS;
	c->ino_next = 100 + FILLERS;
}

/* ---- running the check ---- */

static void report(void *arg, const char *id, const char *text)
{
	struct world *w = arg;
	unsigned at = 0;
	w->problems++;
	assert_non_null(strchr(text, ':'));
	if (getenv("TEST_VERBOSE"))
		fprintf(stderr, "%s %s\n", id, text);
	while (at < w->found_count && strcmp(w->found[at], id) < 0)
		at++;
	if (at < w->found_count && strcmp(w->found[at], id) == 0)
		return;
	memmove(w->found[at + 1], w->found[at], (w->found_count - at) * sizeof(w->found[0]));
	snprintf(w->found[at], sizeof(w->found[at]), "%s", id);
	w->found_count++;
}

static int case_co(void *arg)
{
	struct world *w = arg;
	struct raid_info info;
	raid_info(w->raid, &info);
	w->uuid = info.fs;
	assert_int_equal(fs_format(w->raid), 0);
	assert_int_equal(fs_mount(w->raid, NULL, &w->fs), 0);
	build(w);
	if (w->damage)
		w->damage(w);
	assert_int_equal(fs_unmount(w->fs), 0);
	assert_int_equal(raid_close(w->raid), 0);
	fake_raid_reopen(w->raid);
	if (w->break_bytes)
		w->break_bytes(w);
	int64_t n = fs_check(w->raid, report, w, &w->stats);
	assert_int_equal(n, w->problems);
	assert_int_equal(raid_close(w->raid), 0);
	return 0;
}

static void run_case(struct world *w)
{
	struct fake_raid_params p = {.seed = 3, .yield_one_in = 10};
	assert_int_equal(buf_pool_init(POOL_BYTES), 0);
	w->loop = fake_loop_new(3);
	assert_non_null(w->loop);
	w->raid = fake_raid_new(w->loop, &p);
	fake_raid_set_strict(w->raid, false);
	assert_int_equal(loop_run_co(w->loop, case_co, w), 0);
	assert_int_equal(buf_pool_used_bytes(), 0);
	fake_raid_free(w->raid);
	fake_loop_free(w->loop);
	buf_pool_exit();
}

static void test_clean(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	run_case(w);
	assert_int_equal(w->problems, 0);
	assert_int_equal(w->stats.inodes, 10 + FILLERS);
	assert_int_equal(w->stats.directories, 4);
	assert_int_equal(w->stats.files, 4 + FILLERS);
	assert_int_equal(w->stats.data_blocks, 17);
	assert_true(w->stats.meta_blocks > 20);
	free(w);
}

/* ---- faults, one function each ---- */

static void d_inodes(struct world *w)
{
	fs_counters(w->fs)->inodes++;
}
static void d_data(struct world *w)
{
	fs_counters(w->fs)->data_blocks--;
}
static void d_meta(struct world *w)
{
	fs_counters(w->fs)->meta_blocks++;
}
static void d_prealloc(struct world *w)
{
	fs_counters(w->fs)->prealloc_blocks = 0;
}
static void d_ino_next(struct world *w)
{
	fs_counters(w->fs)->ino_next = 100;
}
static void d_key_type(struct world *w)
{
	put(w, key_of(3, 9, 0), "", 0);
}
static void d_key_zero(struct world *w)
{
	put(w, key_of(0, TYPE_INODE, 5), "", 0);
}
static void d_key_high(struct world *w)
{
	put(w, key_of(BACKREF_INO << 1, TYPE_BACKREF, 5), "", 0);
}
static void d_key_backref(struct world *w)
{
	put(w, key_of(BACKREF_INO | 7, TYPE_EXTENT, 5), "", 0);
}
static void d_no_inode(struct world *w)
{
	put(w, key_of(50, TYPE_INLINE, 0), "hello", 5);
}
static void d_kind_dir(struct world *w)
{
	put(w, key_of(2, TYPE_INLINE, 0), "hello", 5);
}
static void d_kind_file(struct world *w)
{
	name_put(w, 7, "what", 100, DT_REG);
}
static void d_inode_size(struct world *w)
{
	inode_get(w, 3)->size = to_le64(UINT64_MAX);
	again(w);
}
static void d_inode_type(struct world *w)
{
	inode_get(w, 5)->mode = to_le32(S_IFMT);
	again(w);
}
static void d_inode_time(struct world *w)
{
	inode_get(w, 3)->ctime.ns = to_le32(1000000000);
	again(w);
}
static void d_inode_generation(struct world *w)
{
	inode_get(w, 3)->generation = to_le32(0);
	again(w);
}
static void d_inode_reserved(struct world *w)
{
	inode_get(w, 3)->reserved[1] = to_le64(1);
	again(w);
}
static void d_inode_short(struct world *w)
{
	get(w, key_of(103, TYPE_INODE, 0))->len -= 8;
	again(w);
}
static void d_links(struct world *w)
{
	inode_get(w, 3)->links = to_le32(2);
	again(w);
}
static void d_links_zero(struct world *w)
{
	inode_get(w, 3)->links = to_le32(0);
	again(w);
}
static void d_dir_links(struct world *w)
{
	inode_get(w, 2)->links = to_le32(2);
	again(w);
}
static void d_no_name(struct world *w)
{
	inode_put(w, 60, S_IFREG, 1, 1, 0, 0, 0);
	fs_counters(w->fs)->inodes++;
}
static void d_no_name_dir(struct world *w)
{
	inode_put(w, 60, S_IFDIR, 2, 1, 0, 0, 0);
	fs_counters(w->fs)->inodes++;
}
static void d_blocks(struct world *w)
{
	inode_get(w, 3)->blocks = to_le64(15);
	again(w);
}
static void d_not_orphan(struct world *w)
{
	del(w, key_of(0, TYPE_ORPHAN, 8));
}
static void d_not_orphan_dir(struct world *w)
{
	del(w, key_of(0, TYPE_ORPHAN, 9));
}
static void d_root_type(struct world *w)
{
	inode_get(w, 1)->mode = to_le32(S_IFREG);
	again(w);
}
static void d_root_gone(struct world *w)
{
	del(w, key_of(1, TYPE_INODE, 0));
}
static void d_entries(struct world *w)
{
	inode_get(w, 2)->subdirs_or_entries = to_le64(1);
	again(w);
}
static void d_parent(struct world *w)
{
	inode_get(w, 6)->parent = to_le64(1);
	again(w);
}
static void d_root_parent(struct world *w)
{
	inode_get(w, 1)->parent = to_le64(2);
	again(w);
}
static void d_dir_names(struct world *w)
{
	name_put(w, 1, "again", 6, DT_DIR);
	inode_get(w, 1)->subdirs_or_entries = to_le64(7);
	((struct inode_disk *)w->item.data)->links = to_le32(4);
	again(w);
}
static void d_root_named(struct world *w)
{
	name_put(w, 6, "root", 1, DT_DIR);
	inode_get(w, 6)->subdirs_or_entries = to_le64(2);
	((struct inode_disk *)w->item.data)->links = to_le32(3);
	again(w);
}
/* /dir is taken out of / and put into /dir/sub: counts all fit. */
static void d_loop(struct world *w)
{
	del(w, name_key(w, 1, "dir"));
	name_put(w, 6, "dir", 2, DT_DIR);
	inode_get(w, 1)->subdirs_or_entries = to_le64(5);
	((struct inode_disk *)w->item.data)->links = to_le32(2);
	again(w);
	inode_get(w, 6)->subdirs_or_entries = to_le64(2);
	((struct inode_disk *)w->item.data)->links = to_le32(3);
	again(w);
	inode_get(w, 2)->parent = to_le64(6);
	again(w);
}
static void d_name_cut(struct world *w)
{
	get(w, name_key(w, 1, "dev"))->len -= 8;
	again(w);
}
static void d_name_empty(struct world *w)
{
	((struct name_disk *)get(w, name_key(w, 1, "dev"))->data)->name_len = 0;
	again(w);
}
static void d_name_number(struct world *w)
{
	((struct name_disk *)get(w, name_key(w, 1, "dev"))->data)->reserved[0] = 125;
	again(w);
}
static void d_name_padding(struct world *w)
{
	get(w, name_key(w, 1, "dev"))->data[sizeof(struct name_disk) + 3] = 'x';
	again(w);
}
static void d_name_hash(struct world *w)
{
	uint8_t b[64];
	del(w, name_key(w, 1, "dev"));
	put(w, key_of(1, TYPE_NAME, 12345), b, name_bytes(b, "dev", 5, DT_CHR, 0));
}
static void d_name_twice(struct world *w)
{
	uint8_t b[128];
	unsigned len = name_bytes(b, "file", 3, DT_REG, 0);
	len += name_bytes(b + len, "file", 3, DT_REG, 1);
	put(w, name_key(w, 1, "file"), b, len);
	inode_get(w, 1)->subdirs_or_entries = to_le64(7);
	again(w);
	inode_get(w, 3)->links = to_le32(4);
	again(w);
}
static void d_dangling(struct world *w)
{
	name_put(w, 1, "ghost", 70, DT_REG);
	inode_get(w, 1)->subdirs_or_entries = to_le64(7);
	again(w);
}
static void d_name_type(struct world *w)
{
	name_put(w, 1, "file", 3, DT_FIFO);
}
static void d_name_slash(struct world *w)
{
	del(w, name_key(w, 1, "dev"));
	name_put(w, 1, "d/v", 5, DT_CHR);
}
static void d_name_dots(struct world *w)
{
	del(w, name_key(w, 1, "dev"));
	name_put(w, 1, "..", 5, DT_CHR);
}
static void d_extent_count(struct world *w)
{
	extent_put(w, 3, 20, LBA_NONE, 0);
	fs_counters(w->fs)->prealloc_blocks = 0;
	inode_get(w, 3)->blocks = to_le64(15);
	again(w);
}
static void d_extent_far(struct world *w)
{
	extent_put(w, 3, FS_FILE_BYTES_MAX / BLOCK_BYTES - 1, LBA_NONE, 2);
}
static void d_extent_overlap(struct world *w)
{
	extent_put(w, 3, 29, LBA_NONE, 2);
	fs_counters(w->fs)->prealloc_blocks += 2;
	inode_get(w, 3)->blocks = to_le64(21);
	again(w);
}
static void d_extent_dead(struct world *w)
{
	raid_stage_dead(w->raid, w->data[1].lba + 2, 1);
}
static void d_extent_nowhere(struct world *w)
{
	extent_put(w, 7, 5, LBA_MAKE(77, 5), 1);
	backref_put(w, 7, 5, LBA_MAKE(77, 5), 1);
	inode_get(w, 7)->blocks = to_le64(1);
	again(w);
	fs_counters(w->fs)->data_blocks++;
}
static void d_extent_meta(struct world *w)
{
	extent_put(w, 7, 5, LBA_ROOT, 1);
	backref_put(w, 7, 5, LBA_ROOT, 1);
	inode_get(w, 7)->blocks = to_le64(1);
	again(w);
	fs_counters(w->fs)->data_blocks++;
}
static void d_extent_shared(struct world *w)
{
	extent_put(w, 7, 5, w->data[0].lba + 3, 1);
	backref_put(w, 7, 5, w->data[0].lba + 3, 1);
	inode_get(w, 7)->blocks = to_le64(1);
	again(w);
	fs_counters(w->fs)->data_blocks++;
}
static void d_extent_inline(struct world *w)
{
	extent_put(w, 7, 0, LBA_NONE, 1);
	inode_get(w, 7)->blocks = to_le64(1);
	again(w);
	fs_counters(w->fs)->prealloc_blocks++;
}
static void d_data_leaked(struct world *w)
{
	data_new(w, 3);
	fs_counters(w->fs)->data_blocks -= 3;
}
static void d_extent_gone(struct world *w)
{
	del(w, key_of(3, TYPE_EXTENT, 30));
}
static void d_backref_reserved(struct world *w)
{
	((struct backref_disk *)get(w, backref_key(w->data[0].lba))->data)->reserved = to_le32(1);
	again(w);
}
static void d_backref_missing(struct world *w)
{
	del(w, backref_key(w->data[0].lba));
}
static void d_backref_last_missing(struct world *w)
{
	del(w, backref_key(w->data[2].lba));
}
static void d_backref_ino(struct world *w)
{
	backref_put(w, 7, 0, w->data[0].lba, 10);
}
static void d_backref_count(struct world *w)
{
	backref_put(w, 3, 0, w->data[0].lba, 9);
}
static void d_backref_extra(struct world *w)
{
	backref_put(w, 3, 1, w->data[0].lba + 1, 1);
}
static void d_symlink_gone(struct world *w)
{
	del(w, key_of(4, TYPE_SYMLINK, 0));
}
static void d_symlink_short(struct world *w)
{
	get(w, key_of(4, TYPE_SYMLINK, 1))->len--;
	again(w);
}
static void d_symlink_nul(struct world *w)
{
	get(w, key_of(4, TYPE_SYMLINK, 1))->data[5] = 0;
	again(w);
}
static uint64_t long_hash(struct world *w)
{
	return fs_name_hash(w->fs, "user.long", 9);
}
static void d_xattr_piece_gone(struct world *w)
{
	del(w, key_of(3, TYPE_XATTR, long_hash(w) + 1));
}
static void d_xattr_first_gone(struct world *w)
{
	del(w, key_of(3, TYPE_XATTR, long_hash(w)));
}
static void d_xattr_cut(struct world *w)
{
	get(w, key_of(3, TYPE_XATTR, long_hash(w) + 2))->len -= 8;
	again(w);
}
static void d_xattr_hash(struct world *w)
{
	struct item_spec *i = get(w, key_of(3, TYPE_XATTR, fs_name_hash(w->fs, "user.short", 10)));
	struct item_spec copy = *i;
	del(w, copy.key);
	put(w, key_of(3, TYPE_XATTR, 99), copy.data, copy.len);
}
static void d_orphan_len(struct world *w)
{
	put(w, key_of(0, TYPE_ORPHAN, 8), "x", 1);
}
static void d_orphan_ghost(struct world *w)
{
	put(w, key_of(0, TYPE_ORPHAN, 88), "", 0);
}
static void d_orphan_dir(struct world *w)
{
	put(w, key_of(0, TYPE_ORPHAN, 2), "", 0);
}

/* ---- bytes ---- */

static struct super_disk *super_of(struct world *w)
{
	return fake_raid_bytes(w->raid, LBA_ROOT);
}
static void super_seal(struct world *w, struct super_disk *s)
{
	meta_seal(s, SUPER_MAGIC, &w->uuid, LBA_ROOT, from_le64(s->head.gen));
}
static uint64_t root_of(struct world *w)
{
	return from_le64(super_of(w)->root);
}
static struct node_disk *root_node(struct world *w)
{
	return fake_raid_bytes(w->raid, root_of(w));
}
static struct node_disk *child_node(struct world *w, unsigned i)
{
	return fake_raid_bytes(w->raid, node_child(root_node(w), i));
}
static void node_seal(struct world *w, struct node_disk *d)
{
	meta_seal(d, NODE_MAGIC, &w->uuid, from_le64(d->head.lba), from_le64(d->head.gen));
}

static void b_super_dead(struct world *w)
{
	fake_raid_fail_read(w->raid, 1, -EIO);
}
static void b_super_bit(struct world *w)
{
	super_of(w)->reserved[1000] ^= 1;
}
static void b_super_reserved(struct world *w)
{
	struct super_disk *s = super_of(w);
	s->reserved[1000] ^= 1;
	super_seal(w, s);
}
static void b_super_feature(struct world *w)
{
	struct super_disk *s = super_of(w);
	s->incompat = to_le64(1);
	super_seal(w, s);
}
static void b_super_other(struct world *w)
{
	struct super_disk *s = super_of(w);
	w->uuid.b[3] ^= 1;
	super_seal(w, s);
}
static void b_root_nowhere(struct world *w)
{
	struct super_disk *s = super_of(w);
	s->root = to_le64(LBA_MAKE(1, 4000));
	super_seal(w, s);
}
static void b_root_self(struct world *w)
{
	struct super_disk *s = super_of(w);
	s->root = to_le64(LBA_ROOT);
	super_seal(w, s);
}
static void b_height(struct world *w)
{
	struct super_disk *s = super_of(w);
	s->height = to_le32(from_le32(s->height) + 1);
	super_seal(w, s);
}
static void b_old_super(struct world *w)
{
	struct super_disk *s = super_of(w);
	meta_seal(s, SUPER_MAGIC, &w->uuid, LBA_ROOT, 1);
}
static void b_node_bit(struct world *w)
{
	child_node(w, 1)->body[2000] ^= 1;
}
static void b_node_unreadable(struct world *w)
{
	/* once when it is read with others, and again by itself */
	fake_raid_fail_reads_of(w->raid, node_child(root_node(w), 1), -EIO);
}
static void b_node_order(struct world *w)
{
	struct node_disk *d = child_node(w, 1);
	struct slot_disk *s = (struct slot_disk *)d->body, t = s[1];
	s[1] = s[2];
	s[2] = t;
	node_seal(w, d);
}
static void b_node_level(struct world *w)
{
	struct node_disk *d = root_node(w);
	le64 *child = (le64 *)(uintptr_t)node_value(d, 1).data;
	*child = to_le64(node_child(child_node(w, 1), 0));
	node_seal(w, d);
}
static void b_node_twice(struct world *w)
{
	struct node_disk *d = root_node(w);
	le64 *child = (le64 *)(uintptr_t)node_value(d, 1).data;
	*child = to_le64(node_child(d, 0));
	node_seal(w, d);
}
static void b_node_range(struct world *w)
{
	struct node_disk *d = root_node(w);
	struct slot_disk *s = (struct slot_disk *)d->body;
	s[1].key.off = to_le64(from_le64(s[1].key.off) + 1);
	node_seal(w, d);
}
static void b_node_range_high(struct world *w)
{
	struct node_disk *d = root_node(w);
	struct slot_disk *s = (struct slot_disk *)d->body;
	const struct node_disk *first = child_node(w, 0);
	s[1].key = node_slot(first, node_count(first) - 1)->key;
	node_seal(w, d);
}
static void b_node_dead(struct world *w)
{
	fake_raid_force_live(w->raid, node_child(root_node(w), 1), false);
}
static void b_node_empty(struct world *w)
{
	struct node_disk *d = child_node(w, 1);
	d->count = to_le16(0);
	d->low = to_le16(4096);
	node_seal(w, d);
}
static void b_node_leaked(struct world *w)
{
	fake_raid_force_live(w->raid, LBA_MAKE(1, 4000), true);
}
static void b_self_loop(struct world *w)
{
	struct node_disk *d = root_node(w);
	le64 *child = (le64 *)(uintptr_t)node_value(d, 1).data;
	*child = to_le64(root_of(w));
	node_seal(w, d);
}

/* ---- the table ---- */

struct fault_case {
	const char *name;
	void (*damage)(struct world *w);
	void (*break_bytes)(struct world *w);
	const char *expect; /* ids, ascending; "*": only that there are some, no crash */
};
#define D(fn, expect)                                                                              \
	{                                                                                          \
#fn, fn, NULL, expect                                                              \
	}
#define B(fn, expect)                                                                              \
	{                                                                                          \
#fn, NULL, fn, expect                                                              \
	}

static const struct fault_case cases[] = {
    D(d_inodes, "F0104"),
    D(d_data, "F0105"),
    D(d_meta, "F0106"),
    D(d_prealloc, "F0107"),
    D(d_ino_next, "F0108"),
    D(d_key_type, "F0301"),
    D(d_key_zero, "F0301"),
    D(d_key_high, "F0301"),
    D(d_key_backref, "F0301"),
    D(d_no_inode, "F0302"),
    D(d_kind_dir, "F0303"),
    D(d_kind_file, "F0303 F0305"),
    D(d_inode_size, "F0304"),
    D(d_inode_type, "F0304 F0405"),
    D(d_inode_time, "F0304"),
    D(d_inode_generation, "F0304"),
    D(d_inode_reserved, "F0304"),
    D(d_inode_short, "F0104 F0304 F0404"),
    D(d_links, "F0305"),
    D(d_links_zero, "F0305 F0308"),
    D(d_dir_links, "F0305"),
    D(d_no_name, "F0306"),
    D(d_no_name_dir, "F0306"),
    D(d_blocks, "F0307"),
    D(d_not_orphan, "F0308"),
    D(d_not_orphan_dir, "F0308"),
    D(d_root_type, "F0303 F0309"),
    D(d_root_gone, "F0104 F0302 F0309"),
    D(d_entries, "F0310"),
    D(d_parent, "F0311"),
    D(d_root_parent, "F0311"),
    D(d_dir_names, "F0312"),
    D(d_root_named, "F0312"),
    D(d_loop, "F0313"),
    D(d_name_cut, "F0306 F0310 F0401"),
    D(d_name_empty, "F0306 F0310 F0401"),
    D(d_name_number, "F0306 F0310 F0401"),
    D(d_name_padding, "F0306 F0310 F0401"),
    D(d_name_hash, "F0402"),
    D(d_name_twice, "F0403"),
    D(d_dangling, "F0404"),
    D(d_name_type, "F0405"),
    D(d_name_slash, "F0406"),
    D(d_name_dots, "F0406"),
    D(d_extent_count, "F0501"),
    D(d_extent_far, "F0501"),
    D(d_extent_overlap, "F0502"),
    D(d_extent_dead, "F0503"),
    D(d_extent_nowhere, "F0503"),
    D(d_extent_meta, "F0503"),
    D(d_extent_shared, "F0504"),
    D(d_extent_inline, "F0505"),
    D(d_data_leaked, "F0506"),
    D(d_extent_gone, "F0105 F0307 F0506 F0509"),
    D(d_backref_reserved, "F0507 F0508"),
    D(d_backref_missing, "F0508"),
    D(d_backref_last_missing, "F0508"),
    D(d_backref_ino, "F0509"),
    D(d_backref_count, "F0509"),
    D(d_backref_extra, "F0509"),
    D(d_symlink_gone, "F0601"),
    D(d_symlink_short, "F0601"),
    D(d_symlink_nul, "F0601"),
    D(d_xattr_piece_gone, "F0602"),
    D(d_xattr_first_gone, "F0602"),
    D(d_xattr_cut, "F0602"),
    D(d_xattr_hash, "F0603"),
    D(d_orphan_len, "F0701"),
    D(d_orphan_ghost, "F0701"),
    D(d_orphan_dir, "F0702"),
    B(b_super_dead, "F0101"),
    B(b_super_bit, "F0102"),
    B(b_super_reserved, "F0102"),
    B(b_super_feature, "F0103"),
    B(b_super_other, "F0102"),
    B(b_root_nowhere, "F0206 F0901"),
    B(b_root_self, "F0102"),
    B(b_height, "F0203 F0901"),
    B(b_old_super, "F0209"),
    B(b_node_bit, "F0202 F0901"),
    B(b_node_unreadable, "F0201 F0901"),
    B(b_node_order, "F0202 F0901"),
    B(b_node_level, "*"),
    B(b_node_twice, "F0205 F0901"),
    B(b_node_range, "F0204 F0901"),
    B(b_node_range_high, "F0204 F0901"),
    B(b_node_dead, "F0206 F0901"),
    B(b_node_empty, "*"),
    B(b_node_leaked, "F0208"),
    B(b_self_loop, "F0205 F0901"),
};

static void quiet(enum log_level level, const char *text, void *arg)
{
}

static void test_faults(void **state)
{
	bool seen[FAULT_COUNT] = {false};
	log_set_hook(quiet, NULL);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct world *w = calloc(1, sizeof(*w));
		w->damage = cases[i].damage;
		w->break_bytes = cases[i].break_bytes;
		run_case(w);
		char ids[sizeof(w->found)] = "";
		for (unsigned k = 0; k < w->found_count; k++) {
			snprintf(ids + strlen(ids), sizeof(ids) - strlen(ids), "%s%s", k ? " " : "",
				 w->found[k]);
			for (unsigned f = 0; f < FAULT_COUNT; f++)
				seen[f] |= strcmp(fault_row(f)->id, w->found[k]) == 0;
		}
		if (cases[i].expect[0] == '*' ? !w->problems : strcmp(ids, cases[i].expect) != 0)
			fail_msg("%s: got '%s', expected '%s'", cases[i].name, ids,
				 cases[i].expect);
		free(w);
	}
	log_set_hook(NULL, NULL);
	for (unsigned f = 0; f < FAULT_COUNT; f++)
		if (!seen[f])
			fail_msg("no case provokes %s (%s)", fault_row(f)->id, fault_row(f)->text);
}

static void test_table(void **state)
{
	for (unsigned f = 0; f < FAULT_COUNT; f++) {
		const struct fault_row *r = fault_row(f);
		assert_non_null(r->id);
		assert_int_equal(strlen(r->id), 5);
		assert_non_null(r->text);
		assert_non_null(fault_severity_text(r->severity));
		if (f)
			assert_true(strcmp(fault_row(f - 1)->id, r->id) < 0);
	}
}

/* Random bytes anywhere in the metadata, with right checksums: it must end and say something, or
 * find it harmless. */
static uint64_t fuzz_random;

static void b_fuzz(struct world *w)
{
	uint64_t lba = root_of(w);
	struct node_disk *d = root_node(w);
	fuzz_random = fuzz_random * 6364136223846793005ull + 1442695040888963407ull;
	uint64_t r = fuzz_random >> 16;
	unsigned level = (unsigned)(r % 4);
	for (; level && node_level(d); level--) {
		lba = node_child(d, (unsigned)(r / 7 % node_count(d)));
		d = fake_raid_bytes(w->raid, lba);
	}
	for (unsigned i = 0; i < 1 + r % 3; i++) {
		fuzz_random = fuzz_random * 6364136223846793005ull + 1442695040888963407ull;
		((uint8_t *)d)[48 + (fuzz_random >> 20) % (BLOCK_BYTES - 48)] =
		    (uint8_t)(fuzz_random >> 50);
	}
	node_seal(w, d);
}

static void test_fuzz(void **state)
{
	unsigned noticed = 0;
	log_set_hook(quiet, NULL);
	for (unsigned i = 0; i < 150; i++) {
		struct world *w = calloc(1, sizeof(*w));
		fuzz_random = i * 7919;
		w->break_bytes = b_fuzz;
		run_case(w);
		noticed += w->problems > 0;
		free(w);
	}
	log_set_hook(NULL, NULL);
	assert_true(noticed > 50);
}

static int no_memory_co(void *arg)
{
	struct world *w = arg;
	assert_int_equal(fs_format(w->raid), 0);
	assert_int_equal(fs_mount(w->raid, NULL, &w->fs), 0);
	build(w);
	assert_int_equal(fs_unmount(w->fs), 0);
	for (uint64_t n = 1;; n++) {
		mem_fail_after(n, false);
		int64_t r = fs_check(w->raid, report, w, NULL);
		mem_fail_after(0, false);
		assert_int_equal(w->problems, 0);
		if (r == 0)
			break;
		assert_int_equal(r, -ENOMEM);
		assert_true(n < 1000);
	}
	return raid_close(w->raid);
}

static void test_no_memory(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	assert_int_equal(buf_pool_init(POOL_BYTES), 0);
	w->loop = fake_loop_new(4);
	w->raid = fake_raid_new(w->loop, NULL);
	assert_int_equal(loop_run_co(w->loop, no_memory_co, w), 0);
	assert_int_equal(buf_pool_used_bytes(), 0);
	fake_raid_free(w->raid);
	fake_loop_free(w->loop);
	buf_pool_exit();
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_clean),     cmocka_unit_test(test_faults),
	    cmocka_unit_test(test_table),     cmocka_unit_test(test_fuzz),
	    cmocka_unit_test(test_no_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
