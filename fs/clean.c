/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The cleaner. raid/clean.c says when, how fast and which stripes; what stands there and whose it is
 * is asked here, by the back-references, and the blocks are moved:
 *
 *   find   back-references of the stripes: which blocks of which files. Not those that are dirty:
 *          they are about to move by themselves
 *   alloc  new places, from what nobody is promised
 *   copy   verified, to the new places: durable there before the tree names them, as with all data
 *   map    one atom for each run: the file's blocks stand at the new places, the old ones are dead
 *
 * Whoever comes in between wins. Nothing is locked; the map atom looks again, and moves a block only
 * if
 *
 *   - its extent still names the old place. As a reader we stand between raid_read_begin and _end, so
 *     that the old place cannot have been freed and given to the same block again;
 *   - nothing was overwritten in place since before the copy: that leaves the extent as it is, and
 *     the copy is of the old content.
 *
 * The inode is not touched: neither size nor times nor the number of blocks change. A failure is
 * nobody's: what cannot be moved stays where it is.
 *
 * Space that is moved to is taken only when there is plenty, and whoever lacks some waits for the
 * end of the move (cleaner_wait) before being told so.
 *
 * Rejected: making clean blocks dirty and leaving the rest to the write buffer. fsync would wait
 * for them, their errors would be the file's, and the size on disk would wait for them too.
 */
#include "clean.h"
#include "extent.h"
#include "writeback.h"
#include <stdlib.h>

#define BLOCKS_MAX     1024u /* moved at once */
#define POOL_SHARE     32u   /* of the pool, at most */
#define STRIPES_MAX    16u
#define RUNS_MAX       64u
#define FIND_ITEMS_MAX 64u /* back-references that one atom looks at */
#define PAUSE_NS       (1 * NS_PER_S)
#define PAUSE_SHORT_NS (100 * NS_PER_MS)
#define PLENTY_PARTS   2u    /* free blocks that there must be beside those that are promised */
#define PLENTY_SHARE   32u   /* or this part of all */
#define URGENT	       75u /* need beyond which each part is committed at once */

struct piece {
	uint64_t ino, block;
	uint64_t from, to; /* LBA_NONE: none (any more) */
};

struct cleaner {
	struct co_cond work, idle;
	bool runs, stopping;
	bool moving; /* holds places */
	struct fs_cleaned cleaned;
};

/* What is moved at once. */
struct part {
	unsigned count, max;
	struct piece *pieces;
	uint64_t overwrites; /* of the write buffer, when this began */
};

/* ---- whose ---- */

struct find {
	struct part *part;
	uint64_t at, end; /* lba */
};

/* Blocks [from, to) of the file, of which the first stands at lba. */
static void find_take(struct fs *fs, struct part *part, uint64_t ino, uint64_t from, uint64_t to, uint64_t lba)
{
	struct inode *i = inode_find(fs, ino);
	for (uint64_t b = from; b < to && part->count < part->max; b++) {
		if (i && writeback_find(i, b))
			continue;
		part->pieces[part->count++] = (struct piece){ino, b, lba + (b - from), LBA_NONE};
	}
}

/* Goes on where it was when a node was missing: what it found stands in `part` once. */
static int find_atom(struct fs *fs, void *arg)
{
	struct find *f = arg;
	uint64_t tree = BACKREF_INO | LBA_CHUNK(f->at);
	for (unsigned n = 0; n < FIND_ITEMS_MAX && f->at < f->end; n++) {
		struct key key = {tree, KEY_OFF(TYPE_BACKREF, LBA_BLOCK(f->at))}, found = {0};
		struct bt_value v = {0};
		int r = bt_le(fs, key, &found, &v);
		if (r && r != -ENOENT)
			return r;
		const struct backref_disk *d = v.data;
		uint64_t in = LBA_BLOCK(f->at) - KEY_OFFSET(found);
		if (r || found.ino != tree || KEY_TYPE(found) != TYPE_BACKREF || v.len != sizeof(*d) ||
		    in >= from_le32(d->count)) {
			/* Nobody's: on to the next that is somebody's. */
			r = bt_ge(fs, key, &found, &v);
			if (r && r != -ENOENT)
				return r;
			uint64_t next = LBA_MAKE(LBA_CHUNK(f->at), KEY_OFFSET(found));
			if (r || found.ino != tree || KEY_TYPE(found) != TYPE_BACKREF || next >= f->end)
				f->at = f->end;
			else
				f->at = next;
			continue;
		}
		uint64_t off = from_le64(d->off) + in;
		uint64_t count = MIN(from_le32(d->count) - in, f->end - f->at);
		find_take(fs, f->part, from_le64(d->ino), off, off + count, f->at);
		f->at += count;
	}
	return 0;
}

static int find(struct fs *fs, struct part *part, const struct raid_run *stripes, unsigned count)
{
	int r = 0;
	for (unsigned k = 0; k < count && r == 0; k++) {
		struct find f = {part, stripes[k].lba, stripes[k].lba + stripes[k].count};
		while (r == 0 && f.at < f.end && part->count < part->max)
			r = fs_atom(fs, ATOM_READ, find_atom, &f);
	}
	return r;
}

static int by_place_in_file(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return (x->block > y->block) - (x->block < y->block);
}

/* ---- where to ---- */

static int alloc(struct fs *fs, struct part *part)
{
	struct raid_run runs[RUNS_MAX];
	unsigned n = 0, at = 0;
	int r = writeback_alloc_spare(fs, part->count, runs, RUNS_MAX, &n);
	if (r)
		return r;
	for (unsigned k = 0; k < n; k++) {
		for (uint32_t o = 0; o < runs[k].count; o++) {
			if (at < part->count)
				part->pieces[at++].to = runs[k].lba + o;
			else
				raid_unalloc(fs->raid, runs[k].lba + o, 1);
		}
	}
	part->count = at; /* what has got none stays where it is */
	return 0;
}

static void give_back(struct fs *fs, struct part *part)
{
	for (unsigned k = 0; k < part->count; k++)
		if (part->pieces[k].to != LBA_NONE)
			raid_unalloc(fs->raid, part->pieces[k].to, 1);
}

static int copy(struct fs *fs, struct part *part)
{
	struct raid_move *moves = mem_alloc(part->count * sizeof(*moves));
	if (!moves)
		return -ENOMEM;
	for (unsigned k = 0; k < part->count; k++)
		moves[k] = (struct raid_move){part->pieces[k].from, part->pieces[k].to};
	int r = raid_copy(fs->raid, moves, part->count);
	mem_free(moves);
	return r;
}

/* ---- the map ---- */

struct map {
	struct part *part;
	struct piece *first; /* a run in file and new places */
	unsigned count;
	unsigned done; /* of them: moved, or given up */
	bool moved;
};

/* How many of the run, from its first on, still stand where they were copied from. */
static int map_valid(struct fs *fs, const struct map *m, unsigned *ret)
{
	struct extent x = {0};
	unsigned n = 0;
	*ret = 0;
	if (writeback_overwritten(fs, m->part->overwrites) && !BREAK(fs_clean_over))
		return 0;
	while (n < m->count) {
		const struct piece *p = &m->first[n];
		if (n == 0 || extent_end(&x) <= p->block) {
			int r = extent_find(fs, p->ino, p->block, &x);
			if (r == -ENOENT)
				break;
			if (r)
				return r;
		}
		if (x.off > p->block || x.lba == LBA_NONE)
			break;
		if (x.lba + (p->block - x.off) != p->from && !BREAK(fs_clean_place))
			break;
		n++;
	}
	*ret = n;
	return 0;
}

static int map_atom(struct fs *fs, void *arg)
{
	struct map *m = arg;
	struct extent_edit e;
	unsigned n;
	m->moved = false;
	m->done = 1;
	int r = map_valid(fs, m, &n);
	if (r || n == 0)
		return r;
	r = extent_plan(fs, m->first->ino, m->first->block, n, m->first->to, &e);
	if (r)
		return r;
	assert(e.data_delta == 0 && e.promised_delta == 0);
	extent_apply(fs, &e);
	m->moved = true;
	m->done = (unsigned)(e.end - m->first->block);
	return 0;
}

static unsigned run_length(const struct part *part, unsigned k)
{
	const struct piece *p = &part->pieces[k];
	unsigned n = 1;
	while (k + n < part->count && p[n].ino == p->ino && p[n].block == p->block + n && p[n].to == p->to + n)
		n++;
	return n;
}

static int map_all(struct fs *fs, struct part *part)
{
	for (unsigned k = 0; k < part->count;) {
		struct map m = {.part = part, .first = &part->pieces[k], .count = run_length(part, k)};
		int r = fs_atom(fs, ATOM_WRITE | ATOM_SPARE, map_atom, &m);
		if (r)
			return r;
		for (unsigned x = 0; x < m.done && m.moved; x++)
			m.first[x].to = LBA_NONE;
		fs->cleaner->cleaned.moved_blocks += m.moved ? m.done : 0;
		k += m.done;
	}
	return 0;
}

/* ---- one part ---- */

static int move(struct fs *fs, struct part *part)
{
	uint64_t before = fs->cleaner->cleaned.moved_blocks;
	qsort(part->pieces, part->count, sizeof(*part->pieces), by_place_in_file);
	int r = alloc(fs, part);
	if (r)
		return r;
	r = copy(fs, part);
	if (r == 0)
		r = map_all(fs, part);
	give_back(fs, part);
	return r == 0 && fs->cleaner->cleaned.moved_blocks == before ? -EAGAIN : r;
}

static uint32_t blocks_max(void)
{
	return (uint32_t)MIN(BLOCKS_MAX, MAX(buf_pool_bytes() / POOL_SHARE / BLOCK_BYTES, 1u));
}

/* -ENOENT: nothing is worth it. -EAGAIN: what stands there is going by itself. */
static int clean_part(struct fs *fs, unsigned need)
{
	struct raid_run stripes[STRIPES_MAX];
	struct raid_reader reader;
	struct part part = {.overwrites = writeback_overwrites(fs)};
	unsigned count = raid_clean_pick(fs->raid, need, blocks_max(), stripes, STRIPES_MAX);
	if (!count)
		return -ENOENT;
	for (unsigned k = 0; k < count; k++)
		part.max += stripes[k].count;
	part.pieces = mem_alloc(part.max * sizeof(*part.pieces));
	if (!part.pieces)
		return -ENOMEM;
	fs->cleaner->moving = true;
	if (BREAK(fs_guard))
		list_init(&reader.node);
	else
		raid_read_begin(fs->raid, &reader);
	int r = find(fs, &part, stripes, count);
	if (r == 0)
		r = part.count ? move(fs, &part) : -EAGAIN;
	raid_read_end(fs->raid, &reader);
	mem_free(part.pieces);
	for (unsigned k = 0; k < count && r == 0; k++)
		fs->cleaner->cleaned.stripe_blocks += stripes[k].count;
	fs->cleaner->moving = false;
	co_cond_wake_all(&fs->cleaner->idle);
	return r;
}

/* ---- when ---- */

static unsigned need(struct fs *fs)
{
	struct raid_space space;
	if (fs->read_only || raid_error(fs->raid))
		return 0;
	raid_space(fs->raid, &space);
	if (!writeback_plenty(fs, MIN(PLENTY_PARTS * blocks_max(), space.data_total / PLENTY_SHARE)))
		return 0;
	return raid_clean_need(fs->raid);
}

/* What was moved becomes free. */
static void settle(struct fs *fs, bool failed)
{
	(void)raid_clean_done(fs->raid, failed); /* an error stays in raid_error */
}

static void pause_for(struct fs *fs, uint64_t ns)
{
	uint64_t until_ns = loop_now_ns(fs->loop) + ns;
	raid_clean_rest(fs->raid);
	while (!fs->cleaner->stopping && loop_now_ns(fs->loop) < until_ns)
		(void)co_cond_wait_until(&fs->cleaner->work, until_ns); /* either is fine */
}

static void cleaner_co(void *arg)
{
	struct fs *fs = arg;
	struct cleaner *c = fs->cleaner;
	while (!c->stopping) {
		unsigned n = need(fs);
		if (!n) {
			settle(fs, false);
			raid_clean_rest(fs->raid);
			if (!c->stopping && !need(fs))
				co_cond_wait(&c->work);
			continue;
		}
		uint64_t wait_ns = raid_clean_wait_ns(fs->raid, n);
		if (wait_ns) {
			(void)co_cond_wait_until(&c->work, loop_now_ns(fs->loop) + wait_ns);
			continue;
		}
		int r = clean_part(fs, n);
		if (r || n > URGENT || raid_clean_full(fs->raid))
			settle(fs, r && r != -ENOENT && r != -ENOSPC && r != -EAGAIN);
		if (r)
			pause_for(fs, r == -EAGAIN ? PAUSE_SHORT_NS : PAUSE_NS);
		co_yield ();
	}
	settle(fs, false);
	raid_clean_rest(fs->raid);
	c->runs = false;
	co_cond_wake_all(&c->idle);
}

void cleaner_kick(struct fs *fs)
{
	if (fs->cleaner && co_cond_has_waiters(&fs->cleaner->work))
		co_cond_wake_all(&fs->cleaner->work);
}

bool cleaner_wait(struct fs *fs)
{
	bool any = false;
	while (fs->cleaner && fs->cleaner->moving) {
		co_cond_wait(&fs->cleaner->idle);
		any = true;
	}
	return any;
}

int cleaner_init(struct fs *fs)
{
	if (fs->read_only)
		return 0;
	struct cleaner *c = mem_zalloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	co_cond_init(&c->work);
	co_cond_init(&c->idle);
	fs->cleaner = c;
	int r = co_spawn(fs->loop, cleaner_co, fs);
	c->runs = r == 0;
	if (r)
		cleaner_exit(fs);
	return r;
}

void cleaner_exit(struct fs *fs)
{
	struct cleaner *c = fs->cleaner;
	if (!c)
		return;
	c->stopping = true;
	co_cond_wake_all(&c->work);
	while (c->runs)
		co_cond_wait(&c->idle);
	fs->cleaner = NULL;
	mem_free(c);
}

void fs_cleaned(const struct fs *fs, struct fs_cleaned *ret)
{
	*ret = fs->cleaner ? fs->cleaner->cleaned : (struct fs_cleaned){0};
}
