/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The write buffer. A dirty block is one struct wb_block: in a radix tree of its inode (to find
 * it), and on one of the inode's two lists: `dirty`, oldest first, or `writing`. The inodes stand in a
 * heap by their oldest dirty block: what has waited longest goes first, whosoever it is.
 *
 * Writing out takes a batch: blocks of as many inodes as it needs, so that small files fill whole
 * stripes together.
 *
 *   pick    blocks go from dirty to writing; their content is frozen (W4): a write meanwhile gets
 * new memory inline  block 0 of a tiny file goes into the tree alloc   new places for the rest
 *   write   raid_write, all in one call
 *   map     one atom for each run: the block is clean, its old place dead, the size on disk follows
 *
 * raid_write returned -> map atom -> commit: the tree names only what is durable with it or before
 * it.
 *
 * What is cut off (truncated, punched, unlinked) meanwhile has lost its inode pointer: its new
 * place is given back instead of mapped. Batches run side by side, of one file too: each block is
 * in one batch at most.
 *
 * Space: a block without a place of its own holds a reservation (fresh) from the write on, so that
 * what was accepted can be written. Overwriting goes to new places too while there is plenty; when
 * there is not, into the old place, under the shared lock of the inode so that the place cannot die
 * under the write.
 *
 * Metadata comes in steps, so that each can rely on what those before it leave; meta_unit() each:
 *
 *   new names and attributes  leave 4 units and what dirty data needs, so that data can still come
 *   accepting data            leaves 2 units and what dirty data needs
 *   overwriting, cleaning     leave 2 units and what dirty data needs, or do without
 *   write-out, punching       leaves 1 unit: it has what was kept for dirty data
 *   deleting                  leaves nothing
 *
 * What dirty data needs: each block is at worst an extent and its back-reference, each in a node of
 * its own that is full and has to be split; but no more splits than there are nodes, beside the
 * nodes that the new items fill. That is far too much most of the time, so that near the end ENOSPC
 * waits for the buffer to be written out first (writeback_make_space). Overwriting needs nothing,
 * since it may go to the old place.
 *
 * Failure: the block stays dirty and is tried again, WB_TRIES_MAX times in all; then it is given
 * up, which every holder of the file learns from its next fsync (err_seq).
 *
 * Rejected: write-out at close of small files. It would make one stripe of one file.
 */
#include "writeback.h"
#include "clean.h"
#include "extent.h"
#include <stdlib.h>

#define FANOUT_SHIFT	6
#define FANOUT		(1u << FANOUT_SHIFT)
#define HEIGHT_MAX	8 /* 48 bits of block number */
#define BATCH_MAX	2048u
#define WORKERS		4
#define WB_TRIES_MAX	5
/*
 * Of the time after which the volume promises what was changed: data is written out after 3/5, so that what the
 * map says of it is committed by 4/5, and the last fifth is for the commit itself.
 */
#define AGE_FIFTHS	3u
#define COMMIT_FIFTHS	4u
#define ROUND_NS	(1 * NS_PER_S)
#define SMALL_BLOCKS	8u /* a synchronous write of no more than this goes through the journal */
#define RUNS_MAX	64u
#define SPACE_TRIES_MAX 8
#define SPACE_WAIT_NS	(10 * NS_PER_MS)
#define IN_PLACE_MAX	64u
#define SPARE_PER_META	8u /* blocks that are mapped anew take one of metadata, at a rough guess */
#define META_UNIT_SHARE 16u /* metadata is kept back in units of 1/16 of all, at most so many blocks */
#define META_UNIT_MAX	256u

struct wb_node {
	void *slot[FANOUT];
	unsigned count;
};

struct writeback {
	struct list inodes;  /* with something on their dirty list */
	struct heap oldest;  /* the same, by what has waited longest */
	struct list batches; /* being written */
	struct co_cond room_cond, work_cond, batch_cond, end_cond;
	uint64_t seq;
	uint64_t blocks;  /* buffers that exist, second copies included */
	uint64_t queued;  /* on dirty lists */
	uint64_t pending; /* promised to writers by writeback_room */
	uint64_t fresh;	  /* reservations */
	uint64_t meta;	  /* blocks that may need metadata */
	uint64_t max;	  /* blocks */
	uint64_t retry_ns;
	uint64_t age_ns, commit_age_ns;
	uint64_t fail_count;
	int fail_error;
	unsigned workers;
	unsigned overwriting; /* in place, under way: have looked up places */
	uint64_t overwrites;  /* that have ended */
	bool stopping;
	bool freed;
	struct co_mutex space_lock; /* guards nothing but the order of those who lack space */
	unsigned space_short;	    /* who hold it or wait for it */
};

struct batch {
	struct list link;
	uint64_t seq_min, dirtied_min_ns;
	bool sync;
	unsigned count, cap;
	struct wb_block **b;
	uint64_t *lba; /* LBA_NONE: none yet */
	struct raid_block *io;
	int error;
};

/* ---- radix tree of an inode ---- */

static struct wb_block *radix_find(const struct inode *i, uint64_t index)
{
	if (!i->blocks || index >> (FANOUT_SHIFT * i->blocks_height))
		return NULL;
	void *p = i->blocks;
	for (unsigned h = i->blocks_height; h-- > 0 && p;)
		p = ((struct wb_node *)p)->slot[index >> (FANOUT_SHIFT * h) & (FANOUT - 1)];
	return p;
}

/* The place of index; nodes on the way are made. */
static void **radix_make(struct inode *i, uint64_t index)
{
	while (!i->blocks || index >> (FANOUT_SHIFT * i->blocks_height)) {
		assert(i->blocks_height < HEIGHT_MAX);
		struct wb_node *root = mem_zalloc(sizeof(*root));
		if (!root)
			return NULL;
		if (i->blocks) {
			root->slot[0] = i->blocks;
			root->count = 1;
		}
		i->blocks = root;
		i->blocks_height++;
	}
	struct wb_node *n = i->blocks;
	for (unsigned h = i->blocks_height - 1; h > 0; h--) {
		void **slot = &n->slot[index >> (FANOUT_SHIFT * h) & (FANOUT - 1)];
		if (!*slot) {
			*slot = mem_zalloc(sizeof(struct wb_node));
			if (!*slot)
				return NULL;
			n->count++;
		}
		n = *slot;
	}
	return &n->slot[index & (FANOUT - 1)];
}

static void radix_insert(struct inode *i, uint64_t index, struct wb_block *b)
{
	struct wb_node *n = i->blocks;
	for (unsigned h = i->blocks_height - 1; h > 0; h--)
		n = n->slot[index >> (FANOUT_SHIFT * h) & (FANOUT - 1)];
	assert(!n->slot[index & (FANOUT - 1)]);
	n->slot[index & (FANOUT - 1)] = b;
	n->count++;
}

static void radix_remove(struct inode *i, uint64_t index)
{
	struct wb_node *path[HEIGHT_MAX];
	struct wb_node *n = i->blocks;
	for (unsigned h = i->blocks_height; h-- > 0;) {
		path[h] = n;
		n = n->slot[index >> (FANOUT_SHIFT * h) & (FANOUT - 1)];
	}
	for (unsigned h = 0; h < i->blocks_height; h++) {
		path[h]->slot[index >> (FANOUT_SHIFT * h) & (FANOUT - 1)] = NULL;
		if (--path[h]->count)
			return;
		mem_free(path[h]);
	}
	i->blocks = NULL;
	i->blocks_height = 0;
}

static struct wb_block *next_in(struct wb_node *n, unsigned height, uint64_t base, uint64_t from)
{
	unsigned shift = FANOUT_SHIFT * (height - 1);
	unsigned first = from > base ? (unsigned)((from - base) >> shift) : 0;
	for (unsigned s = first; s < FANOUT; s++) {
		if (!n->slot[s])
			continue;
		if (height == 1)
			return n->slot[s];
		struct wb_block *b =
		    next_in(n->slot[s], height - 1, base + ((uint64_t)s << shift), from);
		if (b)
			return b;
	}
	return NULL;
}

static struct wb_block *radix_next(const struct inode *i, uint64_t from)
{
	if (!i->blocks || from >> (FANOUT_SHIFT * i->blocks_height))
		return NULL;
	return next_in(i->blocks, i->blocks_height, 0, from);
}

static void radix_free(struct wb_node *n, unsigned height)
{
	for (unsigned s = 0; s < FANOUT && height > 1; s++)
		if (n->slot[s])
			radix_free(n->slot[s], height - 1);
	mem_free(n);
}

/*
 * A sync under way: the size that the file had at the call is on disk when it ends, also when blocks that
 * were dirtied since, in holes below it, would hold it back.
 */
struct promise {
	struct list of_inode, of_call;
	struct list *call;
	struct inode *inode; /* pinned */
	uint64_t size;
};

/* ---- blocks ---- */

struct wb_block *writeback_spare(struct fs *fs)
{
	struct wb_block *b = mem_zalloc(sizeof(*b));
	if (!b)
		return NULL;
	list_init(&b->link);
	b->data = buf_get_wait(BLOCK_BYTES);
	return b;
}

void writeback_spare_free(struct wb_block *b)
{
	if (!b)
		return;
	buf_put(b->data);
	mem_free(b);
}

struct wb_block *writeback_find(struct inode *i, uint64_t block)
{
	return radix_find(i, block);
}

const void *writeback_peek(struct inode *i, uint64_t block)
{
	struct wb_block *b = radix_find(i, block);
	return b ? b->data : NULL;
}

bool writeback_next_dirty(struct inode *i, uint64_t from, uint64_t *ret)
{
	struct wb_block *b = radix_next(i, from);
	if (b)
		*ret = b->block;
	return b != NULL;
}

uint64_t writeback_standing(struct inode *i, uint64_t size)
{
	struct wb_block *b = radix_next(i, size >> BLOCK_SHIFT);
	while (b && b->stands_end >= (b->block + 1) << BLOCK_SHIFT)
		b = radix_next(i, b->block + 1);
	return b ? MAX(b->stands_end, b->block << BLOCK_SHIFT) : UINT64_MAX;
}

void writeback_cut(struct inode *i, uint64_t size)
{
	struct wb_block *b = radix_find(i, size >> BLOCK_SHIFT);
	struct promise *p;
	list_for_each (p, &i->promises, of_inode)
		p->size = MIN(p->size, size);
	if (!b)
		return;
	b->io_end = MIN(b->io_end, size);
	b->stands_end = MIN(b->stands_end, size);
}

int writeback_prepare(struct inode *i, uint64_t block)
{
	return radix_make(i, block) ? 0 : -ENOMEM;
}

static void stamp(struct fs *fs, struct wb_block *b)
{
	b->seq = ++fs->wb->seq;
	b->dirtied_ns = loop_now_ns(fs->loop);
}

/* Back in order of seq: what was dirtied while it was written out is younger than its neighbours
 * think. */
static void enqueue(struct fs *fs, struct wb_block *b)
{
	struct writeback *wb = fs->wb;
	struct inode *i = b->inode;
	struct list *after = i->dirty.prev;
	while (after != &i->dirty && list_entry(after, struct wb_block, link)->seq > b->seq)
		after = after->prev;
	list_add(after, &b->link);
	if (list_empty(&i->wb_link))
		list_add_tail(&wb->inodes, &i->wb_link);
	/* A key that is too small is put right when it comes up (oldest_inode). */
	if (!i->oldest.in || b->seq < i->oldest.key) {
		heap_take(&wb->oldest, &i->oldest);
		heap_put(&wb->oldest, &i->oldest, b->seq, 0);
	}
	if (wb->queued++ == 0)
		co_cond_wake_all(
		    &wb->work_cond); /* they sleep without a time while there is nothing */
}

static void unqueue(struct fs *fs, struct wb_block *b)
{
	struct inode *i = b->inode;
	list_del(&b->link);
	fs->wb->queued--;
	if (!list_empty(&i->dirty))
		return;
	list_del(&i->wb_link);
	heap_take(&fs->wb->oldest, &i->oldest);
}

/* Whose oldest dirty block is the oldest of all; NULL: nothing is dirty. */
static struct inode *oldest_inode(struct writeback *wb)
{
	while (wb->oldest.first) {
		struct inode *i = list_entry(wb->oldest.first, struct inode, oldest);
		uint64_t seq = list_first(&i->dirty, struct wb_block, link)->seq;
		if (seq == i->oldest.key)
			return i;
		heap_take(&wb->oldest, &i->oldest);
		heap_put(&wb->oldest, &i->oldest, seq, 0);
	}
	return NULL;
}

void writeback_add(struct fs *fs, struct inode *i, uint64_t block, struct wb_block *b, bool fresh)
{
	b->inode = i;
	b->block = block;
	b->fresh = fresh;
	radix_insert(i, block, b);
	i->dirty_count++;
	fs->wb->blocks++;
	if (fresh) {
		i->fresh_count++;
		fs->wb->fresh++;
	}
	fs->wb->meta += b->meta;
	stamp(fs, b);
	enqueue(fs, b);
}

void *writeback_modify(struct fs *fs, struct wb_block *b, struct wb_block **spare)
{
	if (writeback_is_shared(b)) {
		b->data = (*spare)->data;
		memcpy(b->data, b->io_data, BLOCK_BYTES);
		mem_free(*spare);
		*spare = NULL;
		fs->wb->blocks++;
		stamp(fs, b);
	}
	return b->data;
}

static void buffer_gone(struct fs *fs, void *data)
{
	buf_put(data);
	fs->wb->blocks--;
	co_cond_wake_all(&fs->wb->room_cond);
}

static void drop_reservation(struct fs *fs, struct wb_block *b)
{
	if (b->fresh)
		fs->wb->fresh--;
	if (b->fresh || b->took)
		b->inode->fresh_count--;
	b->fresh = b->took = false;
}

/* The map knows it. */
static void drop_meta(struct fs *fs, struct wb_block *b)
{
	fs->wb->meta -= b->meta;
	b->meta = false;
}

/* Its inode does not know it any more; on which list it stands, and its memory, is for the caller. */
static void block_forget(struct fs *fs, struct wb_block *b)
{
	drop_reservation(fs, b);
	drop_meta(fs, b);
	radix_remove(b->inode, b->block);
	b->inode->dirty_count--;
}

/* The block is no more, or (in a batch) only the batch's. */
static void block_drop(struct fs *fs, struct wb_block *b)
{
	struct inode *i = b->inode;
	block_forget(fs, b);
	if (!b->io_data) {
		unqueue(fs, b);
		buffer_gone(fs, b->data);
		mem_free(b);
		return;
	}
	list_del(&b->link);
	if (b->data != b->io_data)
		buffer_gone(fs, b->data);
	b->data = b->io_data;
	b->inode = NULL;
	co_cond_wake_all(&i->wb_cond);
}

void writeback_drop(struct fs *fs, struct inode *i, uint64_t from, uint64_t to)
{
	struct wb_block *b;
	while (i->dirty_count && (b = radix_next(i, from)) != NULL && b->block < to) {
		/* What was said of it is as old as it is, and now stands in the inode alone: its size. */
		raid_commit_by(fs->raid, b->dirtied_ns + fs->wb->commit_age_ns);
		block_drop(fs, b);
	}
}

void writeback_unreserve(struct fs *fs, struct inode *i, uint64_t from, uint64_t to)
{
	for (struct wb_block *b = radix_next(i, from); b && b->block < to;
	     b = radix_next(i, b->block + 1)) {
		if (b->fresh)
			drop_reservation(fs, b);
	}
}

void writeback_reserve(struct fs *fs, struct wb_block *b)
{
	assert(!b->fresh && !b->took);
	fs->wb->meta += !b->meta;
	b->fresh = b->meta = true;
	b->inode->fresh_count++;
	fs->wb->fresh++;
}

/* At the end of everything: fs->wb may be gone. */
void writeback_forget(struct fs *fs, struct inode *i)
{
	struct wb_block *b;
	assert(list_empty(&i->writing));
	while (i->dirty_count && (b = radix_next(i, 0)) != NULL) {
		radix_remove(i, b->block);
		i->dirty_count--;
		list_del(&b->link);
		buf_put(b->data);
		mem_free(b);
	}
	list_del(&i->wb_link);
	if (fs->wb)
		heap_take(&fs->wb->oldest, &i->oldest);
	if (i->blocks)
		radix_free(i->blocks, i->blocks_height);
	i->blocks = NULL;
}

/* ---- room and space ---- */

static bool half_full(const struct writeback *wb)
{
	return wb->queued > wb->max / 2;
}

void writeback_kick(struct fs *fs)
{
	if (half_full(fs->wb))
		co_cond_wake_all(&fs->wb->work_cond);
}

int writeback_room(struct fs *fs, uint64_t blocks)
{
	struct writeback *wb = fs->wb;
	while (wb->blocks + wb->pending && wb->blocks + wb->pending + blocks > wb->max) {
		int e = raid_error(fs->raid);
		if (e || wb->stopping)
			return -EIO;
		co_cond_wake_all(&wb->work_cond);
		co_cond_wait(&wb->room_cond);
	}
	wb->pending += blocks;
	return 0;
}

void writeback_room_done(struct fs *fs, uint64_t blocks)
{
	assert(fs->wb->pending >= blocks);
	fs->wb->pending -= blocks;
	co_cond_wake_all(&fs->wb->room_cond);
}

static uint64_t meta_unit(const struct raid_space *s)
{
	return MIN((s->meta_total + s->meta_potential) / META_UNIT_SHARE, META_UNIT_MAX);
}

/* For `blocks` dirty blocks, at worst. */
static uint64_t meta_need(const struct fs *fs, uint64_t blocks)
{
	return MIN(2 * blocks, fs->counters.meta_blocks + blocks / 2);
}

static uint64_t dirty_blocks(const struct fs *fs)
{
	return fs->wb ? fs->wb->blocks : 0;
}

/* Blocks that write-out may have to take from free slices, as metadata chunks, and thus from data. */
static uint64_t growth_margin(const struct fs *fs, const struct raid_space *s)
{
	uint64_t need = meta_need(fs, dirty_blocks(fs)) + meta_unit(s);
	if (!s->data_potential || !s->meta_chunk || need <= s->meta_free)
		return 0;
	return MIN(DIV_ROUND_UP(need - s->meta_free, s->meta_chunk) * s->data_chunk, s->data_potential);
}

uint64_t writeback_avail(struct fs *fs)
{
	struct raid_space space;
	raid_space(fs->raid, &space);
	uint64_t taken = fs->wb->fresh + fs_counters(fs)->prealloc_blocks + growth_margin(fs, &space);
	if (BREAK(fs_avail))
		taken = 0;
	return space.data_free > taken ? space.data_free - taken : 0;
}

bool writeback_meta_avail(struct fs *fs, uint64_t blocks)
{
	struct raid_space space;
	raid_space(fs->raid, &space);
	uint64_t need = meta_need(fs, dirty_blocks(fs) + blocks) + 2 * meta_unit(&space);
	return space.meta_free + space.meta_potential >= need;
}

/* From those that can do without: overwriting, cleaning. */
static uint64_t meta_kept_from_spare(const struct fs *fs, const struct raid_space *s)
{
	return 2 * meta_unit(s) + meta_need(fs, fs->wb->meta);
}

/* Whether to begin to give `blocks` that have a place a new one. The map atoms look again. */
static bool meta_spare(const struct fs *fs, uint64_t blocks)
{
	struct raid_space space;
	raid_space(fs->raid, &space);
	return space.meta_free + space.meta_potential >= meta_kept_from_spare(fs, &space) + blocks / SPARE_PER_META;
}

bool writeback_meta_may(const struct fs *fs, unsigned kind, uint32_t want)
{
	struct raid_space space;
	if (kind & ATOM_FREES)
		return true;
	raid_space(fs->raid, &space);
	uint64_t keep = meta_unit(&space);
	if (kind & ATOM_SPARE)
		keep = meta_kept_from_spare(fs, &space);
	else if (!(kind & ATOM_INTERNAL))
		keep = 4 * keep + meta_need(fs, dirty_blocks(fs));
	return space.meta_free + space.meta_potential >= keep + want;
}

bool writeback_meta_may_grow(struct fs *fs)
{
	struct raid_space space;
	raid_space(fs->raid, &space);
	return !fs->wb || !space.data_potential || writeback_avail(fs) >= space.data_chunk;
}

uint64_t writeback_meta_kept(const struct fs *fs)
{
	struct raid_space space;
	raid_space(fs->raid, &space);
	return 4 * meta_unit(&space) + meta_need(fs, dirty_blocks(fs));
}

void writeback_note_freed(struct fs *fs)
{
	if (fs->wb)
		fs->wb->freed = true;
}

bool writeback_make_space(struct fs *fs)
{
	struct writeback *wb = fs->wb;
	struct raid_space before, after;
	bool tried = false;
	if (!wb || raid_error(fs->raid))
		return false;
	raid_space(fs->raid, &before);
	if (inodes_reaping(fs)) {
		inodes_reap_wait(fs);
		tried = true;
	}
	/* What is being moved or written holds new places and old ones at once. */
	tried |= cleaner_wait(fs);
	if (wb->queued || !list_empty(&wb->batches)) {
		(void)writeback_write(fs, NULL,
				      false); /* counted; the commit below is what we are after */
		tried = true;
	}
	tried |= wb->freed;
	wb->freed = false;
	/* Also when there is nothing of ours: another's commit may be under way. */
	if (raid_commit(fs->raid) != 0)
		return false;
	raid_space(fs->raid, &after);
	return tried || after.data_free > before.data_free || after.meta_free > before.meta_free;
}

uint64_t writeback_overwrites(const struct fs *fs)
{
	return fs->wb->overwrites;
}

bool writeback_overwritten(const struct fs *fs, uint64_t since)
{
	return fs->wb->overwriting || fs->wb->overwrites != since;
}

bool writeback_plenty(struct fs *fs, uint64_t blocks)
{
	return !fs->wb->space_short && writeback_avail(fs) > blocks && meta_spare(fs, blocks);
}

bool writeback_space_enter(struct fs *fs, bool always)
{
	struct writeback *wb = fs->wb;
	if (!wb || (!always && !wb->space_short))
		return false;
	wb->space_short++;
	co_mutex_lock(&wb->space_lock);
	return true;
}

void writeback_space_leave(struct fs *fs)
{
	co_mutex_unlock(&fs->wb->space_lock);
	fs->wb->space_short--;
}

uint64_t writeback_dirty_bytes(const struct fs *fs)
{
	return fs->wb ? fs->wb->blocks * BLOCK_BYTES : 0;
}

uint64_t writeback_reserved_blocks(const struct fs *fs)
{
	return fs->wb ? fs->wb->fresh : 0;
}

/* ---- batches ---- */

static void batch_free(struct batch *batch)
{
	if (!batch)
		return;
	mem_free(batch->b);
	mem_free(batch->lba);
	mem_free(batch->io);
	mem_free(batch);
}

static struct batch *batch_new(uint64_t cap)
{
	struct batch *batch = mem_zalloc(sizeof(*batch));
	if (!batch)
		return NULL;
	batch->cap = (unsigned)MIN(MAX(cap, 1), BATCH_MAX);
	batch->b = mem_alloc(batch->cap * sizeof(*batch->b));
	batch->lba = mem_alloc(batch->cap * sizeof(*batch->lba));
	batch->io = mem_alloc(batch->cap * sizeof(*batch->io));
	batch->seq_min = batch->dirtied_min_ns = UINT64_MAX;
	if (batch->b && batch->lba && batch->io)
		return batch;
	batch_free(batch);
	return NULL;
}

static int by_block(const void *a, const void *b)
{
	const struct wb_block *x = *(struct wb_block *const *)a, *y = *(struct wb_block *const *)b;
	return x->block < y->block ? -1 : x->block > y->block;
}

static void pick_inode(struct fs *fs, struct batch *batch, struct inode *i, uint64_t seq_max)
{
	unsigned first = batch->count;
	while (!list_empty(&i->dirty) && batch->count < batch->cap) {
		struct wb_block *b = list_first(&i->dirty, struct wb_block, link);
		if (b->seq > seq_max)
			break;
		unqueue(fs, b);
		list_add_tail(&i->writing, &b->link);
		b->io_data = b->data;
		b->io_seq = b->seq;
		b->io_end = MIN(i->size, (b->block + 1) << BLOCK_SHIFT);
		batch->seq_min = MIN(batch->seq_min, b->seq);
		batch->dirtied_min_ns = MIN(batch->dirtied_min_ns, b->dirtied_ns);
		batch->lba[batch->count] = LBA_NONE;
		batch->b[batch->count++] = b;
	}
	qsort(batch->b + first, batch->count - first, sizeof(*batch->b), by_block);
}

/* NULL: nothing to do, or no memory (*ret_error). */
static struct batch *pick(struct fs *fs, struct inode *only, uint64_t seq_max, int *ret_error)
{
	struct writeback *wb = fs->wb;
	struct inode *i;
	if (only ? list_empty(&only->dirty) : !wb->queued)
		return NULL;
	struct batch *batch = batch_new(only ? only->dirty_count : wb->queued);
	if (!batch) {
		*ret_error = -ENOMEM;
		return NULL;
	}
	if (only) {
		pick_inode(fs, batch, only, seq_max);
	} else {
		while (batch->count < batch->cap && (i = oldest_inode(wb)) != NULL && i->oldest.key <= seq_max)
			pick_inode(fs, batch, i, seq_max);
	}
	if (!batch->count) {
		batch_free(batch);
		return NULL;
	}
	list_add_tail(&wb->batches, &batch->link);
	return batch;
}

/* The frozen content is on the volume and in the tree. In atoms, among the changes. */
static void block_done(struct fs *fs, struct wb_block *b, bool placed)
{
	struct inode *i = b->inode;
	list_del(&b->link);
	if (b->took) {
		b->took = false;
		i->fresh_count--;
	}
	b->tries = 0;
	if (b->data != b->io_data) {
		b->stands_end = b->io_end;
		/* Inline data has no place that the new content could go to. */
		if (placed) {
			drop_reservation(fs, b);
			drop_meta(fs, b);
		}
		buffer_gone(fs, b->io_data);
		b->io_data = NULL;
		enqueue(fs, b);
	} else {
		block_forget(fs, b);
		buffer_gone(fs, b->data);
		mem_free(b);
	}
	co_cond_wake_all(&i->wb_cond);
}

struct store {
	uint64_t ino;
};

static int store_atom(struct fs *fs, void *arg)
{
	struct store *s = arg;
	struct inode_disk d;
	int r = inode_load(fs, s->ino, &d);
	if (r == 0)
		r = inode_prepare(fs, s->ino);
	if (r == 0)
		inode_store(fs, s->ino, &d);
	return r;
}

/* Not in an atom; yields only after the last try. */
static void block_failed(struct fs *fs, struct wb_block *b, int error)
{
	struct writeback *wb = fs->wb;
	struct inode *i = b->inode;
	wb->fail_count++;
	wb->fail_error = error;
	i->fail_count++;
	i->fail_error = error;
	list_del(&b->link);
	if (b->took) {
		b->took = false;
		b->fresh = true;
		wb->fresh++;
	}
	if (b->data != b->io_data)
		buffer_gone(fs, b->io_data);
	b->io_data = NULL;
	if (!raid_error(fs->raid) && ++b->tries < WB_TRIES_MAX) {
		/* As the youngest: who waits for it now is told of the error instead of waiting for
		 * the next try. */
		stamp(fs, b);
		enqueue(fs, b);
		co_cond_wake_all(&i->wb_cond);
		return;
	}
	/* Of a volume that has stopped, one message is enough, and it is not ours. */
	if (i->err_seq++ == 0 && !raid_error(fs->raid))
		log_error("inode %llu: data lost, it cannot be written: %s",
			  (unsigned long long)i->ino, strerror(-error));
	i->err = error;
	block_forget(fs, b);
	buffer_gone(fs, b->data);
	mem_free(b);
	co_cond_wake_all(&i->wb_cond);
	if (i->dirty_count)
		return;
	/* The size stays what everybody has seen. */
	i->pins++;
	struct store s = {i->ino};
	if (fs_atom(fs, ATOM_WRITE | ATOM_INTERNAL, store_atom, &s) != 0 && !i->dirty_count)
		i->over = false; /* it does not reach the disk; the data has not either */
	inode_unpin(fs, i);
}

static void give_back(struct fs *fs, struct batch *batch, unsigned k)
{
	if (batch->lba[k] != LBA_NONE)
		raid_unalloc(fs->raid, batch->lba[k], 1);
	batch->lba[k] = LBA_NONE;
}

/* Everything that has not got anywhere: cut off (freed here), or failed. Leaves the batch empty. */
static void batch_clear(struct fs *fs, struct batch *batch)
{
	for (unsigned k = 0; k < batch->count; k++) {
		struct wb_block *b = batch->b[k];
		if (!b)
			continue;
		give_back(fs, batch, k);
		if (b->inode) {
			block_failed(fs, b, batch->error ? batch->error : -EIO);
		} else {
			buffer_gone(fs, b->io_data);
			mem_free(b);
		}
	}
	batch->count = 0;
}

static void note_error(struct batch *batch, int r)
{
	if (r && !batch->error)
		batch->error = r;
}

/* ---- inline ---- */

struct inline_arg {
	struct wb_block *b;
	bool done;
};

static int inline_atom(struct fs *fs, void *arg)
{
	struct inline_arg *a = arg;
	struct wb_block *b = a->b;
	struct inode_disk d;
	struct extent x;
	a->done = false;
	if (!b->inode || b->inode->size > INLINE_BYTES_MAX || b->inode->never_inline)
		return 0;
	struct inode *i = b->inode;
	uint64_t ino = i->ino;
	int r = extent_find(fs, ino, 0, &x);
	if (r == 0 && x.off == 0)
		return 0; /* it has a block, or was promised one */
	if (r && r != -ENOENT)
		return r;
	struct key key = {ino, KEY_OFF(TYPE_INLINE, 0)};
	r = inode_load(fs, ino, &d);
	if (r == 0)
		r = inode_prepare(fs, ino);
	if (r == 0)
		r = bt_prepare(fs, key, (unsigned)i->size);
	if (r)
		return r;
	bt_put(fs, key, b->io_data, (unsigned)i->size);
	block_done(fs, b, false);
	inode_store(fs, ino, &d);
	inode_settle(fs, i);
	a->done = true;
	return 0;
}

static void write_inline(struct fs *fs, struct batch *batch)
{
	for (unsigned k = 0; k < batch->count; k++) {
		struct wb_block *b = batch->b[k];
		if (!b->inode || b->block != 0 || b->inode->size > INLINE_BYTES_MAX)
			continue;
		struct inline_arg a = {.b = b};
		/* An error leaves it to the general way, which will meet it too. */
		if (fs_atom(fs, ATOM_WRITE | ATOM_INTERNAL, inline_atom, &a) == 0 && a.done)
			batch->b[k] = NULL;
	}
	unsigned n = 0;
	for (unsigned k = 0; k < batch->count; k++)
		if (batch->b[k])
			batch->b[n++] = batch->b[k];
	batch->count = n;
}

/* ---- new places ---- */

static int alloc_hard(struct fs *fs, uint32_t want, unsigned flags, struct raid_run *runs,
		      unsigned *n)
{
	int r = raid_alloc_data(fs->raid, want, flags, runs, RUNS_MAX, n);
	/* The space is ours by reservation: what was overwritten or deleted has to become free
	 * first. */
	for (int t = 0; r == -ENOSPC && t < SPACE_TRIES_MAX; t++) {
		r = raid_commit(fs->raid);
		if (r)
			return r;
		if (t)
			co_sleep_ns(SPACE_WAIT_NS); /* readers of what died are to end */
		r = raid_alloc_data(fs->raid, want, flags, runs, RUNS_MAX, n);
	}
	if (r == -ENOSPC)
		r = raid_alloc_data(fs->raid, want, flags | RAID_ALLOC_RESERVE, runs, RUNS_MAX, n);
	return r;
}

static int alloc_unpromised(struct fs *fs, uint32_t want, unsigned flags, struct raid_run *runs, unsigned runs_max,
			    unsigned *n)
{
	fs->wb->fresh += want; /* nobody is promised it meanwhile */
	int r = raid_alloc_data(fs->raid, want, flags, runs, runs_max, n);
	fs->wb->fresh -= want;
	return r;
}

int writeback_alloc_spare(struct fs *fs, uint32_t want, struct raid_run *runs, unsigned runs_max, unsigned *n)
{
	if (!writeback_plenty(fs, want))
		return -ENOSPC;
	return alloc_unpromised(fs, want, RAID_ALLOC_CLEANER, runs, runs_max, n);
}

static void take_place(struct fs *fs, struct batch *batch, unsigned k, uint64_t lba)
{
	struct wb_block *b = batch->b[k];
	batch->lba[k] = lba;
	if (b->inode && b->fresh) {
		b->fresh = false;
		b->took = true;
		fs->wb->fresh--;
	}
}

/* Places for blocks that have none, either those that must have one (fresh) or those that could do
 * without. */
static void alloc_places(struct fs *fs, struct batch *batch, bool fresh)
{
	struct raid_run runs[RUNS_MAX];
	unsigned flags = batch->sync && batch->count <= SMALL_BLOCKS ? RAID_ALLOC_SMALL : 0;
	for (;;) {
		uint32_t want = 0;
		for (unsigned k = 0; k < batch->count; k++) {
			struct wb_block *b = batch->b[k];
			want += b->inode && b->fresh == fresh && batch->lba[k] == LBA_NONE;
		}
		if (!want)
			return;
		unsigned n = 0;
		int r;
		if (fresh) {
			r = alloc_hard(fs, want, flags, runs, &n);
		} else {
			/* Must not eat what others hold reservations for: there is the old place. Nor
			 * cut extents when there is little to keep the pieces in. */
			if (writeback_avail(fs) < want || !meta_spare(fs, want))
				return;
			r = alloc_unpromised(fs, want, flags, runs, RUNS_MAX, &n);
		}
		if (r) {
			if (fresh || r != -ENOSPC)
				note_error(batch, r);
			return;
		}
		unsigned k = 0;
		for (unsigned x = 0; x < n; x++) {
			for (uint32_t o = 0; o < runs[x].count; o++) {
				while (k < batch->count &&
				       (!batch->b[k]->inode || batch->b[k]->fresh != fresh ||
					batch->lba[k] != LBA_NONE))
					k++;
				if (k < batch->count)
					take_place(fs, batch, k++, runs[x].lba + o);
				else
					raid_unalloc(fs->raid, runs[x].lba + o, 1);
			}
		}
	}
}

struct map {
	struct wb_block **b;
	uint64_t lba;
	unsigned count;
	unsigned done; /* mapped */
};

/* The first blocks that are still wanted. The caller has seen to it that they follow each other in
 * file and volume. */
static int map_atom(struct fs *fs, void *arg)
{
	struct map *m = arg;
	struct inode_disk d;
	struct extent_edit e;
	struct bt_value v;
	unsigned n = 0;
	m->done = 0;
	while (n < m->count && m->b[n]->inode)
		n++;
	if (!n)
		return 0;
	struct inode *i = m->b[0]->inode;
	uint64_t ino = i->ino, first = m->b[0]->block;
	struct key inline_key = {ino, KEY_OFF(TYPE_INLINE, 0)};
	int r = inode_load(fs, ino, &d);
	if (r == 0)
		r = extent_plan(fs, ino, first, n, m->lba, &e);
	if (r == 0)
		r = inode_prepare(fs, ino);
	bool was_inline = false;
	if (r == 0 && first == 0) {
		r = bt_get(fs, inline_key, &v);
		was_inline = r == 0;
		if (r == 0)
			r = bt_prepare(fs, inline_key, 0);
		else if (r == -ENOENT)
			r = 0;
	}
	if (r)
		return r;
	extent_apply(fs, &e);
	extent_account(&d, &e);
	if (was_inline)
		bt_del(fs, inline_key);
	m->done = (unsigned)(e.end - first);
	for (unsigned k = 0; k < m->done; k++)
		block_done(fs, m->b[k], true);
	inode_store(fs, ino, &d);
	inode_settle(fs, i);
	return 0;
}

static unsigned run_length(const struct batch *batch, unsigned k)
{
	unsigned n = 1;
	while (k + n < batch->count && batch->b[k + n] &&
	       batch->b[k + n]->inode == batch->b[k]->inode && batch->b[k + n]->meta == batch->b[k]->meta &&
	       batch->b[k + n]->block == batch->b[k]->block + n &&
	       batch->lba[k + n] == batch->lba[k] + n)
		n++;
	return n;
}

/* Everything that has a place, and is written there, goes into the tree. */
static void map_all(struct fs *fs, struct batch *batch)
{
	for (unsigned k = 0; k < batch->count;) {
		if (!batch->b[k] || !batch->b[k]->inode || batch->lba[k] == LBA_NONE) {
			k++;
			continue;
		}
		struct map m = {
		    .b = batch->b + k, .lba = batch->lba[k], .count = run_length(batch, k)};
		/* What was accepted without asking for metadata can go to its old place: must not take that of others. */
		int r = fs_atom(fs, ATOM_WRITE | (batch->b[k]->meta ? ATOM_INTERNAL : ATOM_SPARE), map_atom, &m);
		if (r == -ENOSPC && !batch->b[k]->meta) {
			/* It has an old place, which needs no metadata. */
			give_back(fs, batch, k++);
			continue;
		}
		if (r) {
			note_error(batch, r);
			k += m.count;
			continue;
		}
		for (unsigned x = 0; x < m.done; x++) {
			batch->b[k + x] = NULL;
			batch->lba[k + x] = LBA_NONE;
		}
		k += MAX(m.done, 1);
	}
}

/* Writes what has got places. */
static int write_places(struct fs *fs, struct batch *batch)
{
	unsigned n = 0;
	for (unsigned k = 0; k < batch->count; k++) {
		if (!batch->b[k] || batch->lba[k] == LBA_NONE)
			continue;
		if (!batch->b[k]->inode) {
			give_back(fs, batch, k);
			continue;
		}
		batch->io[n++] = (struct raid_block){batch->lba[k], batch->b[k]->io_data};
	}
	if (!n)
		return 0;
	unsigned flags = batch->sync && batch->count <= SMALL_BLOCKS ? RAID_WRITE_JOURNAL : 0;
	char *late = BREAK(fs_data_first) ? buf_get_wait((size_t)n * BLOCK_BYTES) : NULL;
	for (unsigned k = 0; late && k < n; k++)
		batch->io[k].data = memcpy(late + (size_t)k * BLOCK_BYTES, batch->io[k].data, BLOCK_BYTES);
	if (late)
		map_all(fs, batch);
	int r = raid_write(fs->raid, batch->io, n, flags);
	buf_put(late);
	if (r == 0)
		return 0;
	note_error(batch, r);
	for (unsigned k = 0; k < batch->count; k++)
		give_back(fs, batch, k);
	return r;
}

/* ---- old places ---- */

struct old_place {
	uint64_t ino;
	struct batch *batch;
	unsigned first, count;
	uint64_t lba[IN_PLACE_MAX];
};

static int old_place_atom(struct fs *fs, void *arg)
{
	struct old_place *p = arg;
	for (unsigned k = 0; k < p->count; k++) {
		struct wb_block *b = p->batch->b[p->first + k];
		struct extent x;
		p->lba[k] = LBA_NONE;
		if (!b->inode)
			continue;
		int r = extent_find(fs, p->ino, b->block, &x);
		if (r == -ENOENT || (r == 0 && (x.off > b->block || x.lba == LBA_NONE)))
			continue;
		if (r)
			return r;
		p->lba[k] = x.lba + (b->block - x.off);
	}
	return 0;
}

static int rewritten_atom(struct fs *fs, void *arg)
{
	struct old_place *p = arg;
	struct inode_disk d;
	struct inode *i = NULL;
	int r = inode_load(fs, p->ino, &d);
	if (r == 0)
		r = inode_prepare(fs, p->ino);
	if (r)
		return r;
	for (unsigned k = 0; k < p->count; k++) {
		struct wb_block *b = p->batch->b[p->first + k];
		if (p->lba[k] == LBA_NONE || !b->inode)
			continue;
		i = b->inode;
		block_done(fs, b, true);
		p->batch->b[p->first + k] = NULL;
	}
	if (i)
		inode_store(fs, p->ino, &d);
	return 0;
}

/*
 * Overwrites [first, first + count) of the batch, all of one inode, where they are. Under the
 * inode's shared lock nobody takes the places away; the cleaner, who takes no lock, looks whether somebody is here. What turns out to have none gets new ones from
 * the caller.
 */
static void write_old_places(struct fs *fs, struct batch *batch, struct inode *i, unsigned first,
			     unsigned count)
{
	struct old_place p = {.ino = i->ino, .batch = batch, .first = first, .count = count};
	struct raid_block io[IN_PLACE_MAX];
	unsigned n = 0;
	i->pins++;
	co_rwlock_read(&i->lock);
	fs->wb->overwriting++;
	int r = fs_atom(fs, ATOM_READ, old_place_atom, &p);
	for (unsigned k = 0; k < count && r == 0; k++)
		if (p.lba[k] != LBA_NONE)
			io[n++] = (struct raid_block){p.lba[k], batch->b[first + k]->io_data};
	if (r == 0 && n)
		r = raid_write(fs->raid, io, n, 0);
	if (r == 0 && n)
		r = fs_atom(fs, ATOM_WRITE | ATOM_INTERNAL, rewritten_atom, &p);
	fs->wb->overwriting--;
	fs->wb->overwrites++;
	co_rwlock_unlock(&i->lock);
	inode_unpin(fs, i);
	note_error(batch, r);
}

static void overwrite(struct fs *fs, struct batch *batch)
{
	bool left = false;
	for (unsigned k = 0; k < batch->count;) {
		struct wb_block *b = batch->b[k];
		if (!b || !b->inode || b->fresh || batch->lba[k] != LBA_NONE) {
			k++;
			continue;
		}
		struct inode *i = b->inode;
		unsigned n = 0;
		while (k + n < batch->count && n < IN_PLACE_MAX && batch->b[k + n] &&
		       batch->b[k + n]->inode == i && !batch->b[k + n]->fresh &&
		       batch->lba[k + n] == LBA_NONE)
			n++;
		write_old_places(fs, batch, i, k, n);
		for (unsigned x = 0; x < n; x++)
			left |= batch->b[k + x] && batch->b[k + x]->inode;
		k += n;
	}
	/* Promised blocks: their space is there, since promises are kept out of everybody's reach.
	 */
	if (!left || batch->error)
		return;
	for (unsigned k = 0; k < batch->count; k++) {
		struct wb_block *b = batch->b[k];
		struct raid_run run;
		unsigned n;
		if (!b || !b->inode || batch->lba[k] != LBA_NONE)
			continue;
		int r = alloc_hard(fs, 1, 0, &run, &n);
		if (r) {
			note_error(batch, r);
			return;
		}
		take_place(fs, batch, k, run.lba);
	}
	if (write_places(fs, batch) == 0)
		map_all(fs, batch);
}

/* Carries a picked batch through and frees it. */
static int batch_write(struct fs *fs, struct batch *batch, bool sync)
{
	batch->sync = sync;
	write_inline(fs, batch);
	for (unsigned k = 0; k < batch->count; k++)
		batch->lba[k] = LBA_NONE;
	alloc_places(fs, batch, true);
	if (!batch->error)
		alloc_places(fs, batch, false);
	if (write_places(fs, batch) == 0)
		map_all(fs, batch);
	if (!batch->error)
		overwrite(fs, batch);
	raid_commit_by(fs->raid, batch->dirtied_min_ns + fs->wb->commit_age_ns);
	batch_clear(fs, batch);
	int r = batch->error;
	list_del(&batch->link);
	batch_free(batch);
	co_cond_wake_all(&fs->wb->batch_cond);
	co_cond_wake_all(&fs->wb->room_cond);
	cleaner_kick(fs);
	return r;
}

/* ---- who writes ---- */

static bool still_writing(struct fs *fs, struct inode *only, uint64_t seq_max)
{
	if (BREAK(fs_wait))
		return false;
	if (only) {
		struct wb_block *b;
		list_for_each (b, &only->writing, link) {
			if (b->io_seq <= seq_max)
				return true;
		}
		return false;
	}
	struct batch *batch;
	list_for_each (batch, &fs->wb->batches, link) {
		if (batch->seq_min <= seq_max)
			return true;
	}
	return false;
}

static int promise_make(struct fs *fs, struct inode *i, struct list *call)
{
	if (!list_empty(&i->promises) && list_entry(i->promises.prev, struct promise, of_inode)->call == call)
		return 0;
	struct promise *p = mem_alloc(sizeof(*p));
	if (!p)
		return -ENOMEM;
	*p = (struct promise){.call = call, .inode = inode_pin(fs, i->ino), .size = i->size};
	list_add_tail(&i->promises, &p->of_inode);
	list_add_tail(call, &p->of_call);
	return 0;
}

/* Of one inode, or of all that have dirty data or data that is being written out. */
static int promises_make(struct fs *fs, struct inode *only, struct list *call)
{
	struct inode *i;
	struct batch *batch;
	int r = 0;
	if (only)
		return only->over ? promise_make(fs, only, call) : 0;
	list_for_each (i, &fs->wb->inodes, wb_link)
		r = r ? r : promise_make(fs, i, call);
	list_for_each (batch, &fs->wb->batches, link)
		for (unsigned k = 0; k < batch->count && r == 0; k++)
			if (batch->b[k] && batch->b[k]->inode)
				r = promise_make(fs, batch->b[k]->inode, call);
	return r;
}

static int promise_atom(struct fs *fs, void *arg)
{
	struct promise *p = arg;
	struct inode_disk d;
	int r = inode_load(fs, p->inode->ino, &d);
	if (r == 0)
		r = inode_prepare(fs, p->inode->ino);
	if (r || !p->inode->over || from_le64(d.size) >= p->size)
		return r;
	d.size = to_le64(p->size);
	inode_store(fs, p->inode->ino, &d);
	return 0;
}

/* Keeps them (error: what they were about is not on disk) and lets go. */
static int promises_end(struct fs *fs, struct list *call, int error)
{
	while (!list_empty(call)) {
		struct promise *p = list_first(call, struct promise, of_call);
		if (error == 0 && p->inode->over) {
			int r = fs_atom(fs, ATOM_WRITE | ATOM_INTERNAL, promise_atom, p);
			error = r == -ESTALE ? 0 : r; /* gone meanwhile */
		}
		list_del(&p->of_call);
		list_del(&p->of_inode);
		inode_unpin(fs, p->inode);
		mem_free(p);
	}
	return error;
}

static int write_dirty(struct fs *fs, struct inode *only, bool sync)
{
	struct writeback *wb = fs->wb;
	uint64_t seq_max = wb->seq;
	uint64_t *fails = only ? &only->fail_count : &wb->fail_count;
	uint64_t fails_before = *fails;
	int error = 0;
	for (;;) {
		struct batch *batch = pick(fs, only, seq_max, &error);
		if (batch)
			(void)batch_write(fs, batch,
					  sync); /* told by fail_count, also when another did it */
		else if (error)
			return error;
		else if (still_writing(fs, only, seq_max))
			co_cond_wait(only ? &only->wb_cond : &wb->batch_cond);
		else
			break;
	}
	if (*fails == fails_before)
		return 0;
	return only ? only->fail_error : wb->fail_error;
}

int writeback_write(struct fs *fs, struct inode *only, bool sync)
{
	struct list call;
	list_init(&call);
	/* The flusher promises nothing to anybody. */
	int r = (only || sync) && !BREAK(fs_promise) ? promises_make(fs, only, &call) : 0;
	if (r == 0)
		r = write_dirty(fs, only, sync);
	return promises_end(fs, &call, r);
}

/* When there will be something to do if nothing more comes; something is queued. */
static uint64_t due_ns(struct fs *fs)
{
	struct writeback *wb = fs->wb;
	if (half_full(wb) || co_cond_has_waiters(&wb->room_cond))
		return wb->retry_ns;
	struct inode *i = oldest_inode(wb);
	return MAX(list_first(&i->dirty, struct wb_block, link)->dirtied_ns + wb->age_ns, wb->retry_ns);
}

static void worker(void *arg)
{
	struct fs *fs = arg;
	struct writeback *wb = fs->wb;
	while (!wb->stopping) {
		if (!wb->queued) {
			co_cond_wait(&wb->work_cond);
			continue;
		}
		uint64_t due = due_ns(fs);
		if (due > loop_now_ns(fs->loop)) {
			(void)co_cond_wait_until(&wb->work_cond, due); /* it looks again anyway */
			continue;
		}
		int r = 0;
		struct batch *batch = pick(fs, NULL, UINT64_MAX, &r);
		if (batch)
			r = batch_write(fs, batch, false);
		if (r)
			wb->retry_ns = loop_now_ns(fs->loop) + ROUND_NS;
	}
	wb->workers--;
	co_cond_wake_all(&wb->end_cond);
}

int writeback_init(struct fs *fs)
{
	struct writeback *wb = mem_zalloc(sizeof(*wb));
	if (!wb)
		return -ENOMEM;
	list_init(&wb->inodes);
	list_init(&wb->batches);
	co_cond_init(&wb->room_cond);
	co_cond_init(&wb->work_cond);
	co_cond_init(&wb->batch_cond);
	co_cond_init(&wb->end_cond);
	co_mutex_init(&wb->space_lock);
	struct raid_info info;
	raid_info(fs->raid, &info);
	wb->age_ns = info.commit_ns_max / 5 * AGE_FIFTHS;
	wb->commit_age_ns = info.commit_ns_max / 5 * COMMIT_FIFTHS;
	wb->max = MAX(fs->options.dirty_bytes_max / BLOCK_BYTES, 8);
	fs->wb = wb;
	for (unsigned w = 0; w < WORKERS && !fs->read_only; w++) {
		int r = co_spawn(fs->loop, worker, fs);
		if (r) {
			writeback_exit(fs);
			return r;
		}
		wb->workers++;
	}
	return 0;
}

static void workers_stop(struct fs *fs)
{
	struct writeback *wb = fs->wb;
	wb->stopping = true;
	co_cond_wake_all(&wb->work_cond);
	co_cond_wake_all(&wb->room_cond);
	while (wb->workers)
		co_cond_wait(&wb->end_cond);
}

int writeback_stop(struct fs *fs)
{
	int error = 0;
	/* Every failure costs each block a try, so that this ends. */
	for (int t = 0; t <= WB_TRIES_MAX && fs->wb->blocks; t++) {
		int r = writeback_write(fs, NULL, false);
		if (!error)
			error = r;
	}
	workers_stop(fs);
	return error;
}

void writeback_exit(struct fs *fs)
{
	if (!fs->wb)
		return;
	workers_stop(fs);
	mem_free(fs->wb);
	fs->wb = NULL;
}
