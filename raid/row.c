// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Cells and how they are written.
 *
 * A cell is one group of one row: for parity levels its data and parity blocks, for mirrors one block in its copies. Two ways,
 * chosen for each cell:
 *
 *   direct   nothing in the cell counts yet, but perhaps what is being written: data and parity go to their
 *            places at once, what is not given counts as zeros and is not even written. The checksums go into the
 *            open transaction. A crash before it is durable leaves bytes that no live block needs.
 *   shared   something else in the cell is live, or a live block is overwritten in place, or the caller asks for it (small
 *            synchronous writes): new data and new parity become images in the open transaction (W1) and reach their
 *            places at a checkpoint. Live neighbours are read and verified first (W4); dead ones are dropped from
 *            parity rather than read.
 *
 * "Counts" means used and written (space.c), which includes blocks that have died in a transaction that is not durable yet, since a
 * crash brings them back.
 *
 * Rejected: read-modify-write of old data and old parity for shared cells. It saves reads on wide groups only, and its inputs
 * would include dead blocks.
 */
#include <stdlib.h>

#include "volume.h"

#define CELLS_PER_BATCH 256u
#define WRITE_IOV_MAX 256u /* blocks merged into one I/O: 1 MiB */
#define BATCH_POOL_SHARE 32u /* of the pool at most, for parity and what is read of shared rows */

/* ---- locks ---- */

static struct list *cell_bucket(struct raid *r, uint32_t chunk, uint64_t row)
{
	uint64_t h = ((uint64_t)chunk << 40 ^ row / ROWS_MAX) * 0x9e3779b97f4a7c15ull;

	return &r->cell_hash[(h >> 32) & (r->cell_hash_size - 1)];
}

void cell_lock(struct raid *r, struct cell_lock *l, const struct chunk *c, uint64_t row, uint64_t count,
	       unsigned group)
{
	struct list *bucket = cell_bucket(r, c->number, row);
	struct cell_lock *held;

	assert(count && row / ROWS_MAX == (row + count - 1) / ROWS_MAX);
	l->chunk = c->number;
	l->row = row;
	l->count = count;
	l->group = group;
	co_cond_init(&l->wait);
again:
	list_for_each(held, bucket, node) {
		if (held->chunk != l->chunk || held->row >= row + count || row >= held->row + held->count ||
		    BREAK(cell_lock))
			continue;
		if (held->group != group && held->group != GROUP_ALL && group != GROUP_ALL)
			continue;
		co_cond_wait(&held->wait);
		goto again;
	}
	list_add(bucket, &l->node);
}

void cell_unlock(struct raid *r, struct cell_lock *l)
{
	list_del(&l->node);
	co_cond_wake_all(&l->wait);
}

/* ---- lists of writes ---- */

void write_list_init(struct write_list *l)
{
	memset(l, 0, sizeof(*l));
}

void write_list_add(struct write_list *l, unsigned member, uint64_t off_bytes, void *data)
{
	if (l->count == l->cap) {
		unsigned cap = l->cap ? l->cap * 2 : 64;
		struct write_entry *entries = mem_realloc(l->entries, cap * sizeof(*entries));

		if (!entries) {
			l->failed = true;
			return;
		}
		l->entries = entries;
		l->cap = cap;
	}
	l->entries[l->count++] = (struct write_entry){.member = member, .off_bytes = off_bytes, .data = data};
}

void write_list_column(struct raid *r, struct write_list *l, struct chunk *c, unsigned column, uint64_t slice_block,
		       void *data)
{
	const struct column *col = &c->columns[column];

	if (table_column_writable(r->t, col))
		write_list_add(l, col->member, table_column_off(r->t, col, slice_block), data);
	if (c->move_column == (int)column && table_column_writable(r->t, &c->move_to) && !BREAK(move_both))
		write_list_add(l, c->move_to.member, table_column_off(r->t, &c->move_to, slice_block), data);
}

void write_list_slot(struct raid *r, struct write_list *l, struct chunk *c, uint64_t row, unsigned slot, void *data)
{
	write_list_column(r, l, c, geom_column(&c->geom, row, slot), geom_slice_block(&c->geom, row), data);
}

void write_list_sum(struct raid *r, struct write_list *l, struct chunk *c, uint64_t row, unsigned sum, void *data)
{
	const struct geom *g = &c->geom;

	if (g->parity || g->copies == 1) {
		write_list_slot(r, l, c, row, sum, data);
		return;
	}
	for (unsigned copy = 0; copy < g->span; copy++)
		write_list_slot(r, l, c, row, sum * g->span + copy, data);
}

static int write_entry_cmp(const void *a, const void *b)
{
	const struct write_entry *x = a, *y = b;

	if (x->member != y->member)
		return x->member < y->member ? -1 : 1;
	return (x->off_bytes > y->off_bytes) - (x->off_bytes < y->off_bytes);
}

struct merged_write {
	struct io io;
	unsigned first;     /* entry */
	unsigned iov_count; /* from iov[first] on; fewer than entries where these lie side by side in memory, too */
	bool skipped;
};

/*
 * By member and offset. Entries come row by row, so that those of one member nearly always ascend already: they only
 * have to be told apart by member.
 */
static bool write_list_sort(struct write_list *l)
{
	struct write_entry *sorted = mem_alloc(l->count * sizeof(*sorted));
	unsigned first[MEMBERS_MAX + 1] = {0};
	bool ascending = true;

	if (!sorted)
		return false;
	for (unsigned i = 0; i < l->count; i++)
		first[l->entries[i].member + 1]++;
	for (unsigned m = 0; m < MEMBERS_MAX; m++)
		first[m + 1] += first[m];
	for (unsigned i = 0; i < l->count; i++)
		sorted[first[l->entries[i].member]++] = l->entries[i];
	mem_free(l->entries);
	l->entries = sorted;
	l->cap = l->count;
	for (unsigned i = 1; i < l->count && ascending; i++)
		ascending = write_entry_cmp(&sorted[i - 1], &sorted[i]) <= 0;
	if (!ascending)
		qsort(sorted, l->count, sizeof(*sorted), write_entry_cmp);
	return true;
}

/* Whether entry i continues what ends with the one before it. */
static bool write_list_follows(const struct write_list *l, unsigned i)
{
	const struct write_entry *e = &l->entries[i];

	return i && e[-1].member == e->member && e[-1].off_bytes + BLOCK_BYTES == e->off_bytes;
}

static void merged_write_add(struct merged_write *w, struct iovec *iov, void *data)
{
	struct iovec *next = &iov[w->first + w->iov_count];

	if (w->iov_count && (char *)next[-1].iov_base + next[-1].iov_len == data) {
		next[-1].iov_len += BLOCK_BYTES;
		return;
	}
	*next = (struct iovec){.iov_base = data, .iov_len = BLOCK_BYTES};
	w->iov_count++;
}

/* Of a sorted list. Returns how many I/Os; NULL for merged: only counts. */
static unsigned write_list_merge(const struct write_list *l, struct merged_write *merged, struct iovec *iov)
{
	unsigned n = 0, count = 0;

	for (unsigned i = 0; i < l->count; i++) {
		if (!write_list_follows(l, i) || count == WRITE_IOV_MAX) {
			count = 0;
			if (merged)
				merged[n] = (struct merged_write){.first = i};
			n++;
		}
		count++;
		if (merged)
			merged_write_add(&merged[n - 1], iov, l->entries[i].data);
	}
	return n;
}

static void write_list_submit(struct raid *r, struct write_list *l, struct merged_write *merged, unsigned n,
			      const struct iovec *iov)
{
	struct io_batch batch;

	io_batch_init(&batch, r->loop);
	for (unsigned i = 0; i < n; i++) {
		const struct write_entry *e = &l->entries[merged[i].first];
		struct member *m = &r->t->members[e->member];

		merged[i].skipped = !member_in_service(m); /* went out meanwhile */
		if (!merged[i].skipped)
			io_writev(&batch, &merged[i].io, m->dev, e->off_bytes, &iov[merged[i].first],
				  merged[i].iov_count);
	}
	(void)io_batch_wait(&batch); /* each has its own result */
	for (unsigned i = 0; i < n; i++)
		if (!merged[i].skipped)
			health_written(r, l->entries[merged[i].first].member, &merged[i].io);
}

int write_list_run(struct raid *r, struct write_list *l)
{
	struct merged_write *merged = NULL;
	struct iovec *iov = NULL;
	unsigned n = 0;
	int err = 0;

	assert(!r->read_only);
	/* What goes on after an error may hold half of a change. */
	if (r->error && !BREAK(after_error))
		l->count = 0;
	if (l->count && !l->failed && write_list_sort(l)) {
		n = write_list_merge(l, NULL, NULL);
		merged = mem_alloc(n * sizeof(*merged));
		iov = mem_alloc(l->count * sizeof(*iov));
	}
	if (l->failed || (l->count && (!merged || !iov))) {
		err = -ENOMEM;
	} else if (l->count) {
		(void)write_list_merge(l, merged, iov);
		write_list_submit(r, l, merged, n, iov);
	}
	mem_free(merged);
	mem_free(iov);
	mem_free(l->entries);
	write_list_init(l);
	return err ? err : r->error;
}

/* ---- writing ---- */

/* A block and where it goes: worked out once. */
struct placed_block {
	struct chunk *chunk;
	uint64_t row;
	unsigned index;
	void *data;
};

struct wcell {
	struct chunk *chunk;
	uint64_t row;
	unsigned group;
	const struct placed_block *blocks; /* ascending by index */
	unsigned count;
	bool shared;
	struct rows rows;  /* shared, when neighbours count */
	char *parity;      /* memory for the parity blocks */
};

struct wbatch {
	struct wcell *cells;
	struct cell_lock *locks;
	unsigned count, lock_count;
	/* By what was known when it was put together: images that it may stage, memory that it needs. */
	uint32_t images;
	uint64_t memory;
};

/* Memory the parity computation works on, by place within the group: what is written, what counts, NULL for zeros. */
static void wcell_columns(const struct wcell *cell, bool *ret_given, void **cols)
{
	const struct geom *g = &cell->chunk->geom;

	for (unsigned i = 0; i < g->data; i++) {
		cols[i] = NULL;
		ret_given[i] = false;
		if (cell->rows.slots && space_occupied(cell->chunk, cell->row, cell->group * g->data + i))
			cols[i] = cell->rows.slots[i];
	}
	for (unsigned k = 0; k < cell->count; k++) {
		unsigned i = cell->blocks[k].index % g->data;

		cols[i] = cell->blocks[k].data;
		ret_given[i] = true;
	}
	for (unsigned i = 0; i < g->parity; i++)
		cols[g->data + i] = cell->parity + (size_t)i * BLOCK_BYTES;
}

/* Direct or shared; for shared cells reads the neighbours. The cell is locked. */
static int wcell_prepare(struct raid *r, struct wcell *cell, unsigned flags)
{
	const struct geom *g = &cell->chunk->geom;
	bool others = false, overwrites = false;
	uint64_t given = 0;
	int err;

	for (unsigned k = 0; k < cell->count; k++)
		given |= 1ull << cell->blocks[k].index % g->data;
	for (unsigned i = 0; i < g->data; i++) {
		if (!space_occupied(cell->chunk, cell->row, cell->group * g->data + i))
			continue;
		if (given >> i & 1)
			overwrites = true;
		else
			others = true;
	}
	cell->shared = (others && g->parity) || overwrites || (flags & RAID_WRITE_JOURNAL);
	if (BREAK(w1) && overwrites)
		cell->shared = others && g->parity;
	if (!others || !g->parity)
		return 0;
	err = rows_load(r, &cell->rows, cell->chunk, cell->group, cell->row, 1);
	if (err)
		return err;
	/* W4: into parity goes only what was verified, or recovered. */
	if (!BREAK(w4))
		rows_recover(r, &cell->rows, NULL);
	for (unsigned i = 0; i < g->data; i++)
		if (!(given >> i & 1) && cell->rows.state[i] == SLOT_LOST &&
		    space_occupied(cell->chunk, cell->row, cell->group * g->data + i)) {
			cell->chunk->space->no_holes = true;
			return -EBADMSG;
		}
	return 0;
}

static void wcell_add_direct(struct raid *r, struct wcell *cell, struct write_list *list)
{
	const struct geom *g = &cell->chunk->geom;
	bool given[MEMBERS_MAX];
	void *cols[MEMBERS_MAX];

	wcell_columns(cell, given, cols);
	if (g->parity)
		parity_compute(g->data, g->parity, BLOCK_BYTES, cols);
	for (unsigned i = 0; i < g->data; i++)
		if (given[i])
			write_list_sum(r, list, cell->chunk, cell->row,
				       g->parity ? cell->group * g->span + i : cell->group + i, cols[i]);
	for (unsigned i = 0; i < g->parity; i++)
		write_list_slot(r, list, cell->chunk, cell->row, cell->group * g->span + g->data + i,
				cols[g->data + i]);
}

/* First checksum of the cell and how many it has. */
static unsigned wcell_sums(const struct wcell *cell, unsigned *ret_first)
{
	const struct geom *g = &cell->chunk->geom;

	*ret_first = cell->group * (g->parity ? g->span : g->data);
	return g->parity ? g->span : g->data;
}

static void wcell_stage_direct(struct raid *r, struct wcell *cell)
{
	const struct geom *g = &cell->chunk->geom;
	bool given[MEMBERS_MAX];
	void *cols[MEMBERS_MAX];
	unsigned first, sums = wcell_sums(cell, &first);

	wcell_columns(cell, given, cols);
	for (unsigned i = 0; i < sums; i++) {
		uint64_t value = 0;

		if (!g->parity && !given[i])
			continue; /* level 0: each block stands for itself */
		if (i >= g->data || given[i])
			value = block_sum(&r->t->fs, cell->chunk->number, cell->row, first + i, cols[i]);
		if (!BREAK(cancel))
			image_cancel(r, cell->chunk, cell->row, first + i);
		page_sum_set(r, cell->chunk, cell->row, first + i, value);
		if (!g->parity)
			journal_stage_sums(r, cell->chunk, cell->row, first + i, 1);
		if (i < g->data && given[i])
			space_written(cell->chunk, cell->row, cell->group * g->data + i);
	}
	if (g->parity)
		journal_stage_sums(r, cell->chunk, cell->row, first, sums);
}

/* Never yields: neighbours, data, parity and checksums change together. */
static int wcell_stage_shared(struct raid *r, struct wcell *cell)
{
	static const uint8_t zeros[BLOCK_BYTES];
	const struct geom *g = &cell->chunk->geom;
	bool given[MEMBERS_MAX];
	void *cols[MEMBERS_MAX];
	unsigned first, sums = wcell_sums(cell, &first);
	int err = 0;

	wcell_columns(cell, given, cols);
	if (g->parity)
		parity_compute(g->data, g->parity, BLOCK_BYTES, cols);
	for (unsigned i = 0; i < sums && !err; i++) {
		if (i >= g->data || given[i]) {
			err = image_stage(r, cell->chunk, cell->row, first + i, cols[i]);
			if (i < g->data)
				space_written(cell->chunk, cell->row, cell->group * g->data + i);
		} else if (g->parity && !cols[i] && !BREAK(dead_image) &&
			   image_find(r, cell->chunk, cell->row, first + i)) {
			/* The image is in the parity that may yet go home with it: it goes too, and zeros after both. */
			err = image_stage(r, cell->chunk, cell->row, first + i, zeros);
		} else if (g->parity && !cols[i] && page_sum(r, cell->chunk, cell->row, first + i)) {
			page_sum_set(r, cell->chunk, cell->row, first + i, 0);
			journal_stage_sums(r, cell->chunk, cell->row, first + i, 1);
		}
	}
	if (err) {
		log_error("out of memory in the middle of a row: the volume takes no more writes");
		r->error = err;
	}
	return err;
}

static int wbatch_run(struct raid *r, struct wbatch *b, unsigned flags)
{
	struct write_list list;
	int err = 0;
	unsigned k;

	write_list_init(&list);
	for (k = 0; k < b->count && !err; k++)
		err = wcell_prepare(r, &b->cells[k], flags);
	for (k = 0; k < b->count && !err; k++)
		if (!b->cells[k].shared)
			wcell_add_direct(r, &b->cells[k], &list);
	if (err)
		mem_free(list.entries);
	else
		err = write_list_run(r, &list);
	for (k = 0; k < b->count && !err; k++) {
		if (b->cells[k].shared)
			err = wcell_stage_shared(r, &b->cells[k]);
		else
			wcell_stage_direct(r, &b->cells[k]);
	}
	return err;
}

static bool cell_may_be_shared(const struct chunk *c, uint64_t row, unsigned group, unsigned flags)
{
	if ((flags & RAID_WRITE_JOURNAL) || !space_loaded(c))
		return true;
	for (unsigned i = 0; i < c->geom.data; i++)
		if (space_occupied(c, row, group * c->geom.data + i))
			return true;
	return false;
}

/* Takes the next cells off the sorted blocks, as many as may be staged at once. Returns how many blocks. */
static unsigned wbatch_fill(struct raid *r, struct wbatch *b, const struct placed_block *blocks, unsigned count,
			    unsigned flags)
{
	unsigned used = 0, n;

	b->count = 0;
	b->images = 0;
	b->memory = 0;
	while (used < count && b->count < CELLS_PER_BATCH) {
		const struct placed_block *first = &blocks[used];
		struct chunk *c = first->chunk;
		uint64_t row = first->row, memory = (uint64_t)c->geom.parity * BLOCK_BYTES;
		unsigned group = first->index / c->geom.data;
		uint32_t images = 0;

		for (n = 1; used + n < count; n++)
			if (first[n].chunk != c || first[n].row != row || first[n].index / c->geom.data != group)
				break;
		if (cell_may_be_shared(c, row, group, flags)) {
			images = c->geom.data + c->geom.parity;
			memory += c->geom.parity ? rows_bytes(c, 1) : 0;
		}
		if (b->count && (b->images + images > journal_images_max(r->t) ||
				 b->memory + memory > buf_pool_bytes() / BATCH_POOL_SHARE))
			break;
		b->images += images;
		b->memory += memory;
		b->cells[b->count++] =
			(struct wcell){.chunk = c, .row = row, .group = group, .blocks = first, .count = n};
		used += n;
	}
	return used;
}

/*
 * One lock for rows that follow each other. All who hold several locks take them in ascending order of rows, so no two
 * wait for each other.
 */
static void wbatch_lock(struct raid *r, struct wbatch *b)
{
	unsigned k = 0;

	b->lock_count = 0;
	while (k < b->count) {
		const struct wcell *first = &b->cells[k];
		unsigned group = first->group;
		uint64_t end = first->row + 1;

		for (k++; k < b->count; k++) {
			const struct wcell *cell = &b->cells[k];

			if (cell->chunk != first->chunk || cell->row > end ||
			    cell->row / ROWS_MAX != first->row / ROWS_MAX)
				break;
			end = cell->row + 1;
			if (cell->group != group)
				group = GROUP_ALL;
		}
		cell_lock(r, &b->locks[b->lock_count++], first->chunk, first->row, end - first->row, group);
	}
}

static int wbatch_write(struct raid *r, struct wbatch *b, unsigned flags)
{
	unsigned pinned = 0, k;
	int err = 0;

	rows_reserve(r, b->memory);
	/* One by one: a long run of free memory may not come up for as long as others wait for us. */
	for (k = 0; k < b->count; k++)
		if (b->cells[k].chunk->geom.parity)
			b->cells[k].parity =
				buf_get_wait_below((size_t)b->cells[k].chunk->geom.parity * BLOCK_BYTES);
	for (k = 0; k < b->count && !err; k++) {
		err = space_load(r, b->cells[k].chunk);
		if (!err)
			err = page_get_rows(r, b->cells[k].chunk, b->cells[k].row, 1);
		pinned += !err;
	}
	if (!err) {
		wbatch_lock(r, b);
		err = wbatch_run(r, b, flags);
		for (k = 0; k < b->count; k++)
			rows_free(&b->cells[k].rows);
		for (k = 0; k < b->lock_count; k++)
			cell_unlock(r, &b->locks[k]);
	}
	for (k = 0; k < pinned; k++)
		page_put_rows(r, b->cells[k].chunk, b->cells[k].row, 1);
	for (k = 0; k < b->count; k++)
		buf_put(b->cells[k].parity);
	rows_unreserve(r, b->memory);
	return err;
}

static int placed_block_cmp(const void *a, const void *b)
{
	const struct placed_block *x = a, *y = b;

	if (x->chunk != y->chunk)
		return x->chunk->number < y->chunk->number ? -1 : 1;
	if (x->row != y->row)
		return x->row < y->row ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

static struct placed_block *blocks_placed(struct raid *r, const struct raid_block *blocks, unsigned count)
{
	struct placed_block *out = mem_alloc(count * sizeof(*out));

	if (!out)
		return NULL;
	for (unsigned i = 0; i < count; i++) {
		struct chunk *c = table_chunk(r->t, LBA_CHUNK(blocks[i].lba));

		assert(c && LBA_BLOCK(blocks[i].lba) < c->geom.blocks);
		out[i].chunk = c;
		out[i].data = blocks[i].data;
		geom_locate(&c->geom, LBA_BLOCK(blocks[i].lba), &out[i].row, &out[i].index);
	}
	qsort(out, count, sizeof(*out), placed_block_cmp);
	return out;
}

int row_write(struct raid *r, const struct raid_block *blocks, unsigned count, unsigned flags)
{
	struct placed_block *placed = NULL;
	struct wbatch b = {0};
	unsigned done = 0;
	int err = r->error;

	if (!err) {
		unsigned cells = MIN(count, CELLS_PER_BATCH); /* a cell takes a block at least */

		placed = blocks_placed(r, blocks, count);
		b.cells = mem_alloc(cells * sizeof(*b.cells));
		b.locks = mem_alloc(cells * sizeof(*b.locks));
		if (!placed || !b.cells || !b.locks)
			err = -ENOMEM;
	}
	while (!err && done < count) {
		done += wbatch_fill(r, &b, placed + done, count - done, flags);
		err = journal_reserve_images(r, b.images);
		if (err)
			break;
		err = wbatch_write(r, &b, flags);
		journal_unreserve_images(r, b.images);
	}
	mem_free(b.cells);
	mem_free(b.locks);
	mem_free(placed);
	return err;
}

int raid_write(struct raid *r, const struct raid_block *blocks, unsigned count, unsigned flags)
{
	struct pace_request q;
	int err;

	if (r->read_only)
		return -EROFS;
	walk_foreground_begin(r, &q);
	err = row_write(r, blocks, count, flags);
	walk_foreground_end(r, &q, PACE_WRITE);
	return err;
}
