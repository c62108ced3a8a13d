/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The tree, its nodes in memory and atoms, against a sorted array: random work by one and by
 * several coroutines, small caches, crashes back to the last commit, no space, bad bytes. After
 * each stretch the whole tree is walked and compared, and every live metadata block must be one of
 * its nodes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "fake_raid.h"
#include "fs/node.h"
#include "fs/writeback.h"

#define POOL_BYTES (16u << 20)

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
uint64_t writeback_reserved_blocks(const struct fs *fs)
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
/* What was freed can be used after a commit. */
bool writeback_make_space(struct fs *fs)
{
	struct raid_space before, after;
	raid_space(fs->raid, &before);
	if (raid_commit(fs->raid) != 0)
		return false;
	raid_space(fs->raid, &after);
	return after.meta_free > before.meta_free;
}
void inodes_reap_wait(struct fs *fs)
{
}
void fs_path(struct fs *fs, uint64_t ino, char *ret, size_t cap)
{
	snprintf(ret, cap, "inode %llu", (unsigned long long)ino);
}

/* ---- the model: a sorted array ---- */

struct entry {
	struct key key;
	unsigned len;
	uint32_t seed; /* of the bytes */
};
struct model {
	struct entry *e;
	size_t count, cap;
};

static size_t model_find(const struct model *m, struct key key, bool *found)
{
	size_t lo = 0, hi = m->count;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (key_cmp(m->e[mid].key, key) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	*found = lo < m->count && key_cmp(m->e[lo].key, key) == 0;
	return lo;
}

static void model_put(struct model *m, struct entry e)
{
	bool found;
	size_t pos = model_find(m, e.key, &found);
	if (!found) {
		if (m->count == m->cap) {
			m->cap = m->cap ? 2 * m->cap : 1024;
			m->e = realloc(m->e, m->cap * sizeof(*m->e));
			assert_non_null(m->e);
		}
		memmove(m->e + pos + 1, m->e + pos, (m->count - pos) * sizeof(*m->e));
		m->count++;
	}
	m->e[pos] = e;
}

static void model_del(struct model *m, struct key key)
{
	bool found;
	size_t pos = model_find(m, key, &found);
	assert_true(found);
	memmove(m->e + pos, m->e + pos + 1, (m->count - pos - 1) * sizeof(*m->e));
	m->count--;
}

static void model_copy(struct model *to, const struct model *from)
{
	to->e = realloc(to->e, (from->count + 1) * sizeof(*to->e));
	assert_non_null(to->e);
	if (from->count)
		memcpy(to->e, from->e, from->count * sizeof(*to->e));
	to->count = from->count;
	to->cap = from->count + 1;
}

static void bytes_of(const struct entry *e, uint8_t *out)
{
	uint32_t x = e->seed | 1;
	for (unsigned i = 0; i < e->len; i++) {
		x = x * 1664525u + 1013904223u;
		out[i] = (uint8_t)(x >> 24);
	}
}

static void assert_value(const struct entry *e, struct bt_value v)
{
	uint8_t want[ITEM_BYTES_MAX];
	assert_int_equal(v.len, e->len);
	bytes_of(e, want);
	assert_memory_equal(v.data, want, e->len);
	assert_int_equal((uintptr_t)v.data % 8, 0);
}

/* ---- the world ---- */

struct world {
	struct loop *loop;
	struct raid *raid;
	struct fs *fs;
	struct fs_options options;
	struct model model;	/* what the tree holds */
	struct model committed; /* what it held at the last commit */
	uint64_t random;
	unsigned running;
	uint64_t key_space;
	unsigned len_max;
	unsigned steps;
	unsigned ops;
};

static uint64_t rnd(struct world *w)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random;
}

/* The root directory's inode that fs_format made. */
static const struct key root_key = {FS_ROOT_INO, KEY_OFF(TYPE_INODE, 0)};

static int run(struct world *w, int (*fn)(void *arg))
{
	return loop_run_co(w->loop, fn, w);
}

static int open_co(void *arg)
{
	struct world *w = arg;
	int e = fs_format(w->raid);
	return e ? e : fs_mount(w->raid, &w->options, &w->fs);
}

static int close_co(void *arg)
{
	struct world *w = arg;
	int e = fs_unmount(w->fs);
	assert_int_equal(e, 0);
	e = raid_close(w->raid);
	co_sleep_ns(2 * NS_PER_S); /* what a hung device still held on to */
	return e;
}

static void world_init(struct world *w, uint64_t seed, const struct fake_raid_params *params)
{
	w->random = seed * 0x9e3779b97f4a7c15ull | 1;
	assert_int_equal(buf_pool_init(POOL_BYTES), 0);
	w->loop = fake_loop_new(seed);
	assert_non_null(w->loop);
	w->raid = fake_raid_new(w->loop, params);
	assert_int_equal(run(w, open_co), 0);
}

static void world_exit(struct world *w)
{
	assert_int_equal(run(w, close_co), 0);
	assert_int_equal(buf_pool_used_bytes(), 0);
	fake_raid_free(w->raid);
	fake_loop_free(w->loop);
	buf_pool_exit();
	free(w->model.e);
	free(w->committed.e);
}

/* ---- atoms ---- */

struct act {
	struct world *w;
	struct entry e[8];
	bool del[8];
	unsigned count;
};

static int act_atom(struct fs *fs, void *arg)
{
	struct act *a = arg;
	struct bt_value v;
	for (unsigned i = 0; i < a->count; i++) {
		bool found;
		size_t pos = model_find(&a->w->model, a->e[i].key, &found);
		int e = bt_get(fs, a->e[i].key, &v);
		if (e == -EAGAIN)
			return e;
		assert_int_equal(e, found ? 0 : -ENOENT);
		if (found)
			assert_value(&a->w->model.e[pos], v);
		else if (a->del[i])
			return -ENOENT;
		e = bt_prepare(fs, a->e[i].key, a->del[i] ? 0 : a->e[i].len);
		if (e)
			return e;
	}
	for (unsigned i = 0; i < a->count; i++) {
		uint8_t bytes[ITEM_BYTES_MAX];
		if (a->del[i]) {
			bt_del(fs, a->e[i].key);
			model_del(&a->w->model, a->e[i].key);
			continue;
		}
		bytes_of(&a->e[i], bytes);
		bt_put(fs, a->e[i].key, bytes, a->e[i].len);
		model_put(&a->w->model, a->e[i]);
	}
	return 0;
}

struct look {
	struct world *w;
	struct key key;
};

static int look_atom(struct fs *fs, void *arg)
{
	struct look *l = arg;
	const struct model *m = &l->w->model;
	bool found;
	size_t pos = model_find(m, l->key, &found);
	struct key k;
	struct bt_value v;
	int e = bt_ge(fs, l->key, &k, &v);
	if (e == -EAGAIN)
		return e;
	/* the root's inode is one of the model's entries */
	assert_int_equal(e, pos < m->count ? 0 : -ENOENT);
	if (e == 0) {
		assert_int_equal(key_cmp(k, m->e[pos].key), 0);
		assert_value(&m->e[pos], v);
	}
	e = bt_le(fs, l->key, &k, &v);
	if (e == -EAGAIN)
		return e;
	size_t end = found ? pos + 1 : pos;
	assert_int_equal(e, end ? 0 : -ENOENT);
	if (e == 0) {
		assert_int_equal(key_cmp(k, m->e[end - 1].key), 0);
		assert_value(&m->e[end - 1], v);
	}
	return 0;
}

static struct key random_key(struct world *w)
{
	uint64_t n = rnd(w) % w->key_space;
	return (struct key){n / 16, KEY_OFF(1 + n % 8, n % 16 / 8)};
}

static void random_act(struct world *w, struct act *a)
{
	*a = (struct act){.w = w, .count = 1 + (unsigned)(rnd(w) % 4)};
	unsigned grow = w->ops / 4000 % 3; /* mostly puts, mixed, mostly dels */
	for (unsigned i = 0; i < a->count; i++) {
		struct entry *e = &a->e[i];
		e->key = random_key(w);
		e->seed = (uint32_t)rnd(w);
		e->len = (unsigned)(rnd(w) % 8 == 0 ? rnd(w) % (w->len_max + 1) : rnd(w) % 60);
		a->del[i] = rnd(w) % 8 < 1 + 3 * grow;
		if (a->del[i] && w->model.count) { /* one that exists, mostly */
			if (rnd(w) % 8)
				e->key = w->model.e[rnd(w) % w->model.count].key;
		}
		for (unsigned j = 0; j < i; j++) /* each key once in an atom */
			if (key_cmp(a->e[j].key, e->key) == 0) {
				a->count = i;
				return;
			}
	}
}

static int walk_from(struct fs *fs, void *arg)
{
	struct look *l = arg;
	struct bt_value v;
	int e = bt_ge(fs, l->key, &l->key, &v);
	if (e)
		return e;
	bool found;
	size_t pos = model_find(&l->w->model, l->key, &found);
	assert_true(found);
	assert_value(&l->w->model.e[pos], v);
	return 0;
}

static int compare_co(void *arg)
{
	struct world *w = arg;
	struct look l = {.w = w};
	size_t n = 0;
	int e;
	while ((e = fs_atom(w->fs, ATOM_READ, walk_from, &l)) == 0) {
		assert_int_equal(key_cmp(l.key, w->model.e[n].key), 0);
		n++;
		l.key.off++;
	}
	assert_int_equal(e, -ENOENT);
	assert_int_equal(n, w->model.count);
	return 0;
}

/* Structure of the tree from its bytes: levels, ranges, no empty node; counts the nodes. */
static uint64_t walk_nodes(struct world *w, uint64_t lba, unsigned level, struct key lo,
			   const struct key *hi)
{
	struct node *n;
	assert_int_equal(node_load(w->fs, lba, &n), 0);
	struct node_disk *d = malloc(sizeof(*d));
	assert_non_null(d);
	memcpy(d, &n->disk, sizeof(*d));
	assert_int_equal(n->used, node_used(d));
	node_unpin(w->fs, n);
	assert_int_equal(node_level(d), level);
	if (lba != w->fs->root_lba)
		assert_true(node_count(d) > 0);
	uint64_t total = 1;
	for (unsigned i = 0; i < node_count(d); i++) {
		struct key k = node_key(d, i);
		if (level == 0 || i)
			assert_true(key_cmp(k, lo) >= 0);
		if (hi)
			assert_true(key_cmp(k, *hi) < 0);
		if (i)
			assert_true(key_cmp(node_key(d, i - 1), k) < 0);
		if (level) {
			struct key next;
			const struct key *top = hi;
			if (i + 1 < node_count(d)) {
				next = node_key(d, i + 1);
				top = &next;
			}
			total += walk_nodes(w, node_child(d, i), level - 1, i ? k : lo, top);
		}
	}
	free(d);
	return total;
}

static int structure_co(void *arg)
{
	struct world *w = arg;
	uint64_t n = walk_nodes(w, w->fs->root_lba, w->fs->height - 1, (struct key){0, 0}, NULL);
	assert_int_equal(n + 1, w->fs->counters.meta_blocks);
	assert_int_equal(n + 1, fake_raid_live_blocks(w->raid, CHUNK_META));
	assert_int_equal(fake_raid_allocated_blocks(w->raid, CHUNK_META), 0);
	return 0;
}

static void compare(struct world *w)
{
	assert_int_equal(run(w, compare_co), 0);
	assert_int_equal(run(w, structure_co), 0);
}

static int adopt_atom(struct fs *fs, void *arg)
{
	struct world *w = arg;
	struct entry root = {root_key, 152, 77};
	int e = bt_prepare(fs, root.key, root.len);
	if (e)
		return e;
	uint8_t bytes[ITEM_BYTES_MAX];
	bytes_of(&root, bytes);
	bt_put(fs, root.key, bytes, root.len);
	model_put(&w->model, root);
	return 0;
}

/* The model starts with what fs_format put there, with our bytes in it. */
static int adopt_co(void *arg)
{
	struct world *w = arg;
	return fs_atom(w->fs, ATOM_WRITE, adopt_atom, w);
}

/* ---- random work ---- */

static int random_steps(struct world *w)
{
	for (unsigned i = 0; i < w->steps; i++) {
		if (rnd(w) % 3 == 0) {
			struct look l = {w, random_key(w)};
			if (rnd(w) % 2) /* not in the tree: between two */
				l.key.off += 1 + rnd(w) % 100;
			assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), 0);
		} else {
			struct act a;
			random_act(w, &a);
			int e = fs_atom(w->fs, ATOM_WRITE, act_atom, &a);
			assert_true(e == 0 || e == -ENOENT);
			w->ops++;
		}
	}
	return 0;
}

static int random_co(void *arg)
{
	return random_steps(arg);
}

static void worker(void *arg)
{
	struct world *w = arg;
	random_steps(w);
	w->running--;
}

static int workers_co(void *arg)
{
	struct world *w = arg;
	for (int i = 0; i < 6; i++) {
		w->running++;
		assert_int_equal(co_spawn(w->loop, worker, w), 0);
	}
	while (w->running)
		co_sleep_ns(NS_PER_MS);
	return 0;
}

static int commit_co(void *arg)
{
	struct world *w = arg;
	model_copy(&w->committed, &w->model);
	return raid_commit(w->raid);
}

static int crash_co(void *arg)
{
	struct world *w = arg;
	fs_abandon(w->fs);
	raid_abandon(w->raid);
	fake_raid_crash(w->raid);
	model_copy(&w->model, &w->committed);
	return fs_mount(w->raid, &w->options, &w->fs);
}

static int remount_co(void *arg)
{
	struct world *w = arg;
	assert_int_equal(fs_unmount(w->fs), 0);
	assert_int_equal(raid_close(w->raid), 0);
	fake_raid_reopen(w->raid);
	return fs_mount(w->raid, &w->options, &w->fs);
}

static void random_one(uint64_t seed, unsigned yield, uint64_t cache, unsigned len_max,
		       uint64_t key_space, unsigned rounds, unsigned steps)
{
	struct world w = {.options.node_cache_bytes = cache,
			  .key_space = key_space,
			  .len_max = len_max,
			  .steps = steps};
	struct fake_raid_params p = {.seed = seed,
				     .yield_one_in = yield,
				     .commit_ns_max = 1000 * NS_PER_S,
				     .dirty_blocks_max = UINT32_MAX};
	world_init(&w, seed, &p);
	assert_int_equal(run(&w, adopt_co), 0);
	assert_int_equal(run(&w, commit_co), 0);
	for (unsigned i = 0; i < rounds; i++) {
		assert_int_equal(run(&w, random_co), 0);
		if (i % 3 == 0)
			assert_int_equal(run(&w, commit_co), 0);
		if (i % 3 == 1)
			assert_int_equal(run(&w, rnd(&w) % 2 ? crash_co : remount_co), 0);
		if (i % 4 == 0)
			compare(&w);
	}
	compare(&w);
	world_exit(&w);
}

static void test_random_small(void **state)
{
	for (uint64_t seed = 1; seed <= 12; seed++)
		random_one(seed, 0, 1, 200, 2000, 10, 1500);
}

static void test_random_large_values(void **state)
{
	for (uint64_t seed = 1; seed <= 8; seed++)
		random_one(seed, 5, 1 << 16, ITEM_BYTES_MAX, 4000, 10, 1500);
}

static void test_random_deep(void **state)
{
	random_one(99, 0, 1 << 20, ITEM_BYTES_MAX, 400000, 8, 8000);
}

/* Several at once, with a cache that holds less than one of them needs. */
static void test_interleaved(void **state)
{
	for (uint64_t seed = 1; seed <= 6; seed++) {
		struct world w = {.options.node_cache_bytes = seed % 2 ? 1 : 1 << 17,
				  .key_space = 6000,
				  .len_max = 900,
				  .steps = 600};
		struct fake_raid_params p = {.seed = seed,
					     .yield_one_in = 1 + seed % 3,
					     .dirty_blocks_max = 20,
					     .eagain_one_in = seed % 2 ? 50 : 0};
		world_init(&w, seed, &p);
		assert_int_equal(run(&w, adopt_co), 0);
		for (int i = 0; i < 4; i++) {
			assert_int_equal(run(&w, workers_co), 0);
			compare(&w);
		}
		assert_int_equal(run(&w, remount_co), 0);
		compare(&w);
		world_exit(&w);
	}
}

/* ---- waves: ranges that fill up and go, in a tree of large items, so that inner nodes split,
 * empty and merge ---- */

static int waves_co(void *arg)
{
	struct world *w = arg;
	for (unsigned i = 0; i < w->steps; i++) {
		uint64_t from = rnd(w) % w->key_space, len = 1 + rnd(w) % (w->key_space / 2);
		unsigned way = (unsigned)(rnd(w) % 3);
		bool gone = rnd(w) % 2;
		for (uint64_t n = 0; n < len; n++) {
			uint64_t at = way == 0 ? n : way == 1 ? len - 1 - n : rnd(w) % len;
			struct act a = {.w = w, .count = 1, .del = {gone}};
			a.e[0] = (struct entry){{10 + from + at, KEY_OFF(TYPE_INODE, 0)},
						ITEM_BYTES_MAX - (unsigned)(rnd(w) % 1000),
						(uint32_t)rnd(w)};
			int e = fs_atom(w->fs, ATOM_WRITE, act_atom, &a);
			assert_true(e == 0 || (gone && e == -ENOENT));
		}
		/* neighbours out of memory now and then */
		if (i % 4 == 0)
			assert_int_equal(raid_commit(w->raid), 0);
	}
	return 0;
}

static void test_waves(void **state)
{
	unsigned tall = 0;
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct world w = {.options.node_cache_bytes = seed % 2 ? 1 : 1 << 20,
				  .key_space = 500 + 200 * seed,
				  .steps = 6};
		struct fake_raid_params p = {.seed = seed, .dirty_blocks_max = 40};
		world_init(&w, seed, &p);
		assert_int_equal(run(&w, adopt_co), 0);
		for (int i = 0; i < 8; i++) {
			assert_int_equal(run(&w, waves_co), 0);
			compare(&w);
			tall += w.fs->height >= 3;
		}
		world_exit(&w);
	}
	assert_true(tall > 40);
}

/* ---- order of keys ---- */

static int put_one(struct world *w, struct entry e, unsigned kind)
{
	struct act a = {.w = w, .count = 1};
	a.e[0] = e;
	return fs_atom(w->fs, kind, act_atom, &a);
}

static int ascending_co(void *arg)
{
	struct world *w = arg;
	uint64_t before = w->fs->counters.meta_blocks;
	/* Three interleaved ascending runs, as inodes, extents and back-references make them. */
	for (unsigned i = 0; i < 6000; i++)
		for (uint64_t run_no = 0; run_no < 3; run_no++) {
			struct entry e = {
			    {10 + run_no * 1000000 + i, KEY_OFF(TYPE_INODE, 0)}, 40, i};
			assert_int_equal(put_one(w, e, ATOM_WRITE), 0);
		}
	uint64_t nodes = w->fs->counters.meta_blocks - before;
	uint64_t full = DIV_ROUND_UP(18000ull * NODE_ITEM_BYTES(40), NODE_BODY_BYTES);
	assert_in_range(nodes, full, full + full / 10);
	return 0;
}

static int descending_co(void *arg)
{
	struct world *w = arg;
	for (unsigned i = 20000; i-- > 0;)
		assert_int_equal(
		    put_one(w, (struct entry){{10 + i, KEY_OFF(TYPE_INODE, 0)}, 20, i}, ATOM_WRITE),
		    0);
	assert_true(w->fs->height >= 2);
	return 0;
}

/* Everything but the root's inode goes again, in an order of its own. */
static int empty_co(void *arg)
{
	struct world *w = arg;
	while (w->model.count > 1) {
		struct act a = {.w = w, .count = 1, .del = {true}};
		size_t pos = w->steps == 0   ? w->model.count - 1
			     : w->steps == 1 ? 1
					     : 1 + rnd(w) % (w->model.count - 1);
		a.e[0] = w->model.e[pos];
		assert_int_equal(fs_atom(w->fs, ATOM_WRITE | ATOM_FREES, act_atom, &a), 0);
	}
	assert_int_equal(w->fs->height, 1);
	assert_int_equal(w->fs->counters.meta_blocks, 2);
	return 0;
}

static void test_ascending_descending(void **state)
{
	struct fake_raid_params p = {.seed = 5};
	struct world w = {.options.node_cache_bytes = 1 << 16};
	world_init(&w, 5, &p);
	assert_int_equal(run(&w, adopt_co), 0);
	for (w.steps = 0; w.steps < 3; w.steps++) {
		assert_int_equal(run(&w, w.steps == 1 ? descending_co : ascending_co), 0);
		compare(&w);
		assert_int_equal(run(&w, empty_co), 0);
		compare(&w);
	}
	world_exit(&w);
}

/* ---- edges of a node ---- */

static int edges_co(void *arg)
{
	struct world *w = arg;
	/* every length that a value may have, next to each other, grown and shrunk in place */
	for (unsigned len = 0; len <= ITEM_BYTES_MAX; len++)
		assert_int_equal(put_one(w,
					 (struct entry){{50, KEY_OFF(TYPE_XATTR, len)}, len, len},
					 ATOM_WRITE),
				 0);
	for (unsigned len = 0; len <= ITEM_BYTES_MAX; len++) {
		struct entry e = {{50, KEY_OFF(TYPE_XATTR, len)}, ITEM_BYTES_MAX - len, len + 7};
		assert_int_equal(put_one(w, e, ATOM_WRITE), 0);
	}
	/* the longest between the longest */
	for (unsigned i = 0; i < 64; i++) {
		struct entry e = {{60, KEY_OFF(TYPE_XATTR, i * 37 % 64)}, ITEM_BYTES_MAX, i};
		assert_int_equal(put_one(w, e, ATOM_WRITE), 0);
	}
	/* all of the smallest */
	for (unsigned i = 0; i < 3000; i++) {
		struct entry e = {{0, KEY_OFF(TYPE_ORPHAN, i * 1237 % 3000)}, 0, i};
		assert_int_equal(put_one(w, e, ATOM_WRITE), 0);
	}
	/* the lowest and the highest key there are */
	assert_int_equal(put_one(w, (struct entry){{0, 0}, 8, 1}, ATOM_WRITE), 0);
	assert_int_equal(put_one(w, (struct entry){{UINT64_MAX, UINT64_MAX}, 8, 1}, ATOM_WRITE), 0);
	return 0;
}

static void test_edges(void **state)
{
	struct fake_raid_params p = {.seed = 6};
	struct world w = {.options.node_cache_bytes = 1};
	world_init(&w, 6, &p);
	assert_int_equal(run(&w, adopt_co), 0);
	assert_int_equal(run(&w, edges_co), 0);
	/* compare_co steps over the highest key by wrapping: take it out again first */
	struct key top = {UINT64_MAX, UINT64_MAX};
	bool found;
	size_t pos = model_find(&w.model, top, &found);
	assert_true(found && pos == w.model.count - 1);
	assert_int_equal(run(&w, structure_co), 0);
	world_exit(&w);
}

/* ---- no space, no memory, no volume ---- */

static int full_co(void *arg)
{
	struct world *w = arg;
	unsigned i = 0;
	int e;
	for (;; i++) {
		struct entry x = {{100 + i * 7919 % 100000, KEY_OFF(TYPE_XATTR, 0)}, 1000, i};
		size_t before = w->model.count;
		uint64_t blocks = w->fs->counters.meta_blocks;
		e = put_one(w, x, ATOM_WRITE);
		if (e) {
			assert_int_equal(w->model.count, before);
			assert_int_equal(w->fs->counters.meta_blocks, blocks);
			break;
		}
		assert_true(i < 100000);
	}
	assert_int_equal(e, -ENOSPC);
	assert_true(i > 100);
	/* What frees or is internal still gets at the reserve ... */
	struct entry x = {{5, KEY_OFF(TYPE_XATTR, 0)}, 1000, 1};
	assert_int_equal(put_one(w, x, ATOM_WRITE | ATOM_FREES), 0);
	x.key.ino++;
	assert_int_equal(put_one(w, x, ATOM_WRITE | ATOM_INTERNAL), 0);
	compare_co(w);
	/* ... and overwriting what is there needs none. */
	for (size_t n = 1; n < w->model.count; n += 5) {
		struct entry over = w->model.e[n];
		over.seed++;
		assert_int_equal(put_one(w, over, ATOM_WRITE), 0);
	}
	/* Deleting makes room again. */
	for (int n = 0; n < 60; n++) {
		struct act a = {.w = w, .count = 1, .del = {true}};
		a.e[0] = w->model.e[w->model.count - 1];
		assert_int_equal(fs_atom(w->fs, ATOM_WRITE | ATOM_FREES, act_atom, &a), 0);
	}
	x.key.ino++;
	assert_int_equal(put_one(w, x, ATOM_WRITE), 0);
	return 0;
}

static void test_full(void **state)
{
	struct fake_raid_params p = {.seed = 7,
				     .meta_chunk_blocks = 128,
				     .meta_chunks_max = 3,
				     .meta_reserve_blocks = 32,
				     .yield_one_in = 3};
	struct world w = {.options.node_cache_bytes = 1 << 16};
	world_init(&w, 7, &p);
	assert_int_equal(run(&w, adopt_co), 0);
	assert_int_equal(run(&w, full_co), 0);
	compare(&w);
	world_exit(&w);
}

static int no_memory_co(void *arg)
{
	struct world *w = arg;
	unsigned failed = 0;
	for (uint64_t n = 1; n < 6; n++) {
		for (unsigned i = 0; i < 400; i++) {
			struct act a;
			random_act(w, &a);
			mem_fail_after(n, false);
			int e = fs_atom(w->fs, ATOM_WRITE, act_atom, &a);
			mem_fail_after(0, false);
			failed += e == -ENOMEM;
			assert_true(e == 0 || e == -ENOENT || e == -ENOMEM);
		}
	}
	assert_true(failed > 10);
	return 0;
}

static void test_no_memory(void **state)
{
	struct fake_raid_params p = {.seed = 8, .dirty_blocks_max = 10};
	struct world w = {
	    .options.node_cache_bytes = 1, .key_space = 3000, .len_max = 900, .steps = 2000};
	world_init(&w, 8, &p);
	assert_int_equal(run(&w, adopt_co), 0);
	assert_int_equal(run(&w, random_co), 0);
	assert_int_equal(run(&w, no_memory_co), 0);
	compare(&w);
	world_exit(&w);
}

static int refused_co(void *arg)
{
	struct world *w = arg;
	struct entry x = {{500, KEY_OFF(TYPE_XATTR, 0)}, 10, 1};
	struct look l = {w, {500, 0}};
	fake_raid_set_error(w->raid, -ENODEV);
	assert_int_equal(put_one(w, x, ATOM_WRITE), -EIO);
	assert_int_equal(put_one(w, x, ATOM_WRITE | ATOM_INTERNAL), -EIO);
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), 0);
	fake_raid_set_error(w->raid, 0);
	assert_int_equal(fs_unmount(w->fs), 0);
	w->options.read_only = true;
	assert_int_equal(raid_close(w->raid), 0);
	fake_raid_reopen(w->raid);
	assert_int_equal(fs_mount(w->raid, &w->options, &w->fs), 0);
	assert_int_equal(put_one(w, x, ATOM_WRITE), -EROFS);
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), 0);
	return 0;
}

static void test_refused(void **state)
{
	struct fake_raid_params p = {.seed = 9};
	struct world w = {.options.node_cache_bytes = 1};
	world_init(&w, 9, &p);
	assert_int_equal(run(&w, adopt_co), 0);
	assert_int_equal(run(&w, refused_co), 0);
	world_exit(&w);
}

/* ---- damage ---- */

static unsigned messages;
static void count_messages(enum log_level level, const char *text, void *arg)
{
	messages += level <= LOG_LEVEL_WARNING;
}

static int damage_co(void *arg)
{
	struct world *w = arg;
	assert_int_equal(fs_unmount(w->fs), 0);
	assert_int_equal(raid_close(w->raid), 0);
	fake_raid_reopen(w->raid);
	/* any bit of the superblock */
	struct fs *fs;
	uint8_t *super = fake_raid_bytes(w->raid, LBA_ROOT);
	for (unsigned i = 0; i < BLOCK_BYTES; i += 61) {
		super = fake_raid_bytes(w->raid, LBA_ROOT);
		super[i] ^= 1u << i % 8;
		assert_int_equal(fs_mount(w->raid, &w->options, &fs), -EBADMSG);
		super[i] ^= 1u << i % 8;
	}
	/* features */
	struct super_disk *s = (void *)super;
	struct uuid uuid = s->head.fs;
	s->incompat = to_le64(1ull << 40);
	meta_seal(s, SUPER_MAGIC, &uuid, LBA_ROOT, 9);
	messages = 0;
	assert_int_equal(fs_mount(w->raid, &w->options, &fs), -ENOTSUP);
	assert_int_equal(messages, 1);
	s->incompat = to_le64(0);
	s->ro_compat = to_le64(2);
	meta_seal(s, SUPER_MAGIC, &uuid, LBA_ROOT, 9);
	assert_int_equal(fs_mount(w->raid, &w->options, &fs), 0);
	assert_true(fs->read_only);
	assert_int_equal(fs_unmount(fs), 0);
	assert_int_equal(raid_close(w->raid), 0);
	fake_raid_reopen(w->raid);
	s = fake_raid_bytes(w->raid, LBA_ROOT);
	s->ro_compat = to_le64(0);
	meta_seal(s, SUPER_MAGIC, &uuid, LBA_ROOT, 9);
	/* a node whose bytes are wrong, or right but another's */
	assert_int_equal(fs_mount(w->raid, &w->options, &w->fs), 0);
	uint64_t root = w->fs->root_lba;
	struct node_disk *d = fake_raid_bytes(w->raid, root);
	uint64_t child_lba[2] = {node_child(d, 0), node_child(d, 1)};
	struct look l = {w, {0, 0}};
	struct node_disk *a = fake_raid_bytes(w->raid, child_lba[0]);
	struct node_disk *b = fake_raid_bytes(w->raid, child_lba[1]);
	struct node_disk saved = *a;
	messages = 0;
	a->body[77] ^= 4;
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), -EBADMSG);
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), -EBADMSG);
	*a = *b;
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), -EBADMSG);
	*a = saved;
	a->level = to_le16(3);
	meta_seal(a, NODE_MAGIC, &uuid, child_lba[0], 1);
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), -EBADMSG);
	assert_int_equal(messages, 4);
	/* reading again after a passing error works */
	assert_int_equal(fs_unmount(w->fs), 0);
	assert_int_equal(raid_close(w->raid), 0);
	fake_raid_reopen(w->raid);
	a = fake_raid_bytes(w->raid, child_lba[0]);
	*a = saved;
	assert_int_equal(fs_mount(w->raid, &w->options, &w->fs), 0);
	fake_raid_fail_read(w->raid, 1, -EIO);
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), -EIO);
	assert_int_equal(fs_atom(w->fs, ATOM_READ, look_atom, &l), 0);
	return compare_co(w);
}

static void test_damage(void **state)
{
	struct fake_raid_params p = {.seed = 10};
	struct world w = {
	    .options.node_cache_bytes = 1, .key_space = 5000, .len_max = 300, .steps = 3000};
	world_init(&w, 10, &p);
	assert_int_equal(run(&w, adopt_co), 0);
	assert_int_equal(run(&w, random_co), 0);
	log_set_hook(count_messages, NULL);
	assert_int_equal(run(&w, damage_co), 0);
	log_set_hook(NULL, NULL);
	world_exit(&w);
}

/* Any bytes with a right checksum are either refused or harmless. */
static void test_node_fuzz(void **state)
{
	struct world w = {.random = 4711};
	struct uuid fs = {{1}};
	struct node *n = calloc(1, sizeof(*n));
	assert_non_null(n);
	unsigned refused = 0;
	for (unsigned i = 0; i < 20000; i++) {
		node_init_disk(&n->disk, i % 2);
		n->used = 0;
		for (unsigned k = 0; k < 5; k++)
			node_insert(n, k, (struct key){k, k}, "12345678", 8);
		for (unsigned k = 0; k < 1 + i % 4; k++) {
			unsigned at = 48 + (unsigned)(rnd(&w) % (rnd(&w) % 2 ? 16 : 136));
			((uint8_t *)&n->disk)[at] = (uint8_t)(rnd(&w) % 3 ? rnd(&w) : 255);
		}
		meta_seal(&n->disk, NODE_MAGIC, &fs, 5, 1);
		if (node_wrong(&n->disk, &fs, 5)) {
			refused++;
			continue;
		}
		unsigned sum = 0;
		for (unsigned k = 0; k < node_count(&n->disk); k++) {
			struct bt_value v = node_value(&n->disk, k);
			for (unsigned b = 0; b < v.len; b++)
				sum += ((const uint8_t *)v.data)[b];
		}
		assert_true(sum < UINT32_MAX);
		assert_true(node_used(&n->disk) <= NODE_BODY_BYTES);
	}
	assert_true(refused > 5000 && refused < 20000);
	free(n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_random_small),
	    cmocka_unit_test(test_random_large_values),
	    cmocka_unit_test(test_random_deep),
	    cmocka_unit_test(test_interleaved),
	    cmocka_unit_test(test_waves),
	    cmocka_unit_test(test_ascending_descending),
	    cmocka_unit_test(test_edges),
	    cmocka_unit_test(test_full),
	    cmocka_unit_test(test_no_memory),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_damage),
	    cmocka_unit_test(test_node_fuzz),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
