// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Verified reading. Nothing leaves here that does not hash to what its checksum page says.
 *
 * The fast way takes no lock: find the newest content of each block (image, never written, or in place), read what is in
 * place straight into the caller's memory, with one I/O for strips that follow each other on a member, verify against the checksum as it is *after* the read. A mismatch may be
 * damage, or a shared row that changed under us; the slow way tells them apart, since it looks again under the lock of the cell.
 *
 * The slow way works on `struct rows`: one group of up to ROWS_MAX rows with all its slots. Since data and parity are both
 * checksummed, each slot is known to be good or bad by itself, so the set of erasures given to the decoder is exact (missing, stale,
 * unreadable, wrong) and no combination has to be guessed. What was recovered is verified again before it
 * is believed, written back to the member that had it wrong, and counted against it.
 */
#include <stdlib.h>

#include "volume.h"

#define SEGMENT_ROWS_MAX 32u /* recovery of one segment at a time: bounds its memory to span * 128 KiB */

#define SEGMENTS_INLINE	 6u /* of a read, without memory from the heap */
#define PIECES_MAX	 64u /* segments of one I/O */
static_assert(PIECES_MAX <= IO_IOV_MAX, "one vector");

#define ROWS_POOL_SHARE 8u /* of the pool may be rows: half of what is kept for the volume */
static_assert(ROWS_POOL_SHARE > BUF_BELOW_SHARE, "pages are read while rows are held");

/* ---- rows ---- */

void rows_reserve(struct raid *r, uint64_t bytes)
{
	if (!bytes)
		return;
	co_mutex_lock(&r->rows_turn);
	while (r->rows_bytes && r->rows_bytes + bytes > buf_pool_bytes() / ROWS_POOL_SHARE)
		co_cond_wait(&r->rows_room);
	r->rows_bytes += bytes;
	co_mutex_unlock(&r->rows_turn);
}

void rows_unreserve(struct raid *r, uint64_t bytes)
{
	r->rows_bytes -= bytes;
	co_cond_wake_all(&r->rows_room);
}

static unsigned rows_sum(const struct rows *rows, unsigned slot)
{
	return geom_slot_sum(&rows->chunk->geom, rows->group * rows->span + slot);
}

static struct column *rows_column(const struct rows *rows, unsigned slot, uint64_t row)
{
	return &rows->chunk->columns[geom_column(&rows->chunk->geom, row, rows->group * rows->span + slot)];
}

static char *rows_block(const struct rows *rows, unsigned slot, unsigned i)
{
	return (char *)rows->slots[slot] + (size_t)i * BLOCK_BYTES;
}

static int rows_alloc(struct raid *r, struct rows *rows)
{
	rows->slots = mem_zalloc(rows->span * sizeof(*rows->slots));
	rows->state = mem_zalloc((size_t)rows->span * rows->count);
	rows->found = mem_zalloc((size_t)rows->span * rows->count);
	if (!rows->slots || !rows->state || !rows->found)
		return -ENOMEM;
	for (unsigned s = 0; s < rows->span; s++)
		rows->slots[s] = buf_get_wait_below((size_t)rows->count * BLOCK_BYTES);
	return 0;
}

void rows_free(struct rows *rows)
{
	if (rows->slots)
		for (unsigned s = 0; s < rows->span; s++)
			buf_put(rows->slots[s]);
	mem_free(rows->slots);
	mem_free(rows->state);
	mem_free(rows->found);
	memset(rows, 0, sizeof(*rows));
}

/* Blocks of a slot from i on that lie behind each other on one column: a rotation ends a run. */
static unsigned rows_run(const struct rows *rows, unsigned i)
{
	uint32_t strip = rows->chunk->geom.strip_blocks;

	return (unsigned)MIN(rows->count - i, strip - (rows->row + i) % strip);
}

struct rows_io {
	struct io io;
	unsigned slot, i, count, member;
};

/* Whether the run has a block that must come from the member. */
static bool rows_run_needs(struct raid *r, const struct rows *rows, unsigned slot, unsigned i, unsigned count)
{
	for (unsigned k = i; k < i + count; k++)
		if (page_sum(r, rows->chunk, rows->row + k, rows_sum(rows, slot)) &&
		    !image_find(r, rows->chunk, rows->row + k, rows_sum(rows, slot)))
			return true;
	return false;
}

static void rows_judge(struct raid *r, struct rows *rows, unsigned slot, unsigned i)
{
	unsigned sum = rows_sum(rows, slot);
	uint64_t row = rows->row + i, value = page_sum(r, rows->chunk, row, sum);
	struct image *image = image_find(r, rows->chunk, row, sum);
	uint8_t *state = &rows->state[slot * rows->count + i];
	char *block = rows_block(rows, slot, i);

	if (image) {
		*state = SLOT_IMAGE;
		memcpy(block, image->data, BLOCK_BYTES);
	} else if (!value) {
		*state = SLOT_EMPTY;
		memset(block, 0, BLOCK_BYTES);
	} else if (value == SUM_LOST) {
		*state = SLOT_ABSENT; /* what the member has may be right: nobody is to blame */
	} else if (*state == SLOT_OK &&
		   block_sum(&r->t->fs, rows->chunk->number, row, sum, block) != value) {
		/* P2: what does not hash to its checksum is neither returned nor used. */
		if (!BREAK(checksum) && !BREAK(checksum_row))
			*state = SLOT_BAD_SUM;
	}
	if (*state >= SLOT_ABSENT)
		rows->any_bad = true;
}

/* One block at a time where a longer read failed: the error may be about one sector. */
static void rows_reread(struct raid *r, struct rows *rows, struct rows_io *x)
{
	for (unsigned i = x->i; i < x->i + x->count; i++) {
		struct column *col = rows_column(rows, x->slot, rows->row + i);
		uint8_t *state = &rows->state[x->slot * rows->count + i];
		int err = -EIO;

		if (table_column_readable(r->t, col))
			err = io_read_sync(r->t->members[col->member].dev,
					   table_column_off(r->t, col, geom_slice_block(&rows->chunk->geom, rows->row + i)),
					   rows_block(rows, x->slot, i), BLOCK_BYTES);
		*state = err ? SLOT_BAD_IO : SLOT_OK;
		if (err == -ETIMEDOUT) {
			health_read_error(r, col->member, err);
			x->io.result = err;
			return;
		}
	}
}

static void rows_finish_io(struct raid *r, struct rows *rows, struct rows_io *x)
{
	if (!x->io.result)
		return;
	health_read_error(r, x->member, x->io.result);
	memset(&rows->state[x->slot * rows->count + x->i], SLOT_BAD_IO, x->count);
	if (x->io.result == -EIO && x->count > 1)
		rows_reread(r, rows, x);
	if (x->io.result == -ETIMEDOUT) {
		/* A hung device may still write into the memory: go on with other. Its member is out now. */
		void *fresh = buf_get_wait_below((size_t)rows->count * BLOCK_BYTES);

		memcpy(fresh, rows->slots[x->slot], (size_t)rows->count * BLOCK_BYTES);
		buf_put(rows->slots[x->slot]);
		rows->slots[x->slot] = fresh;
	}
}

static int rows_read_media(struct raid *r, struct rows *rows)
{
	unsigned n = 0, max = rows->span * (rows->count / rows->chunk->geom.strip_blocks + 2);
	struct rows_io *ios = mem_alloc(max * sizeof(*ios));
	struct io_batch batch;

	if (!ios)
		return -ENOMEM;
	io_batch_init(&batch, r->loop);
	for (unsigned slot = 0; slot < rows->span; slot++) {
		for (unsigned i = 0, run; i < rows->count; i += run) {
			struct column *col = rows_column(rows, slot, rows->row + i);

			run = rows_run(rows, i);
			if (!rows_run_needs(r, rows, slot, i, run))
				continue;
			if (!table_column_readable(r->t, col)) {
				memset(&rows->state[slot * rows->count + i], SLOT_ABSENT, run);
				continue;
			}
			assert(n < max);
			ios[n].slot = slot;
			ios[n].i = i;
			ios[n].count = run;
			ios[n].member = col->member;
			io_read(&batch, &ios[n].io, r->t->members[col->member].dev,
				table_column_off(r->t, col, geom_slice_block(&rows->chunk->geom, rows->row + i)),
				rows_block(rows, slot, i), (uint64_t)run * BLOCK_BYTES);
			n++;
		}
	}
	(void)io_batch_wait(&batch); /* each has its own result */
	for (unsigned k = 0; k < n; k++)
		rows_finish_io(r, rows, &ios[k]);
	mem_free(ios);
	return 0;
}

int rows_load(struct raid *r, struct rows *rows, struct chunk *c, unsigned group, uint64_t row, unsigned count)
{
	int err;

	memset(rows, 0, sizeof(*rows));
	rows->chunk = c;
	rows->group = group;
	rows->row = row;
	rows->count = count;
	rows->span = c->geom.span;
	err = page_get_rows(r, c, row, count);
	if (err)
		return err;
	err = rows_alloc(r, rows);
	if (!err)
		err = rows_read_media(r, rows);
	for (unsigned slot = 0; slot < rows->span && !err; slot++)
		for (unsigned i = 0; i < count; i++)
			rows_judge(r, rows, slot, i);
	page_put_rows(r, c, row, count);
	if (err)
		rows_free(rows);
	else
		memcpy(rows->found, rows->state, (size_t)rows->span * count);
	return err;
}

static bool slot_is_bad(uint8_t state)
{
	return state == SLOT_ABSENT || state == SLOT_BAD_IO || state == SLOT_BAD_SUM;
}

static bool rows_recovered_right(struct raid *r, struct rows *rows, unsigned slot, unsigned i)
{
	uint64_t row = rows->row + i;

	if (BREAK(verify))
		return true;
	return block_sum(&r->t->fs, rows->chunk->number, row, rows_sum(rows, slot), rows_block(rows, slot, i)) ==
	       page_sum(r, rows->chunk, row, rows_sum(rows, slot));
}

/* One row. Returns the number of blocks lost. */
static unsigned row_recover(struct raid *r, struct rows *rows, unsigned i)
{
	const struct geom *g = &rows->chunk->geom;
	unsigned bad[MEMBERS_MAX], bad_count = 0, lost = 0, good = rows->span;
	void *cols[MEMBERS_MAX];
	bool solved = false;

	for (unsigned s = 0; s < rows->span; s++) {
		cols[s] = rows_block(rows, s, i);
		bool is_bad = slot_is_bad(rows->state[s * rows->count + i]);

		/* Parity that is wrong is an erasure like any other: solving with it spoils what is recovered. */
		if (BREAK(erasures) && s >= g->data && rows->state[s * rows->count + i] == SLOT_BAD_SUM)
			is_bad = false;
		if (is_bad)
			bad[bad_count++] = s;
		else
			good = s;
	}
	if (!bad_count)
		return 0;
	if (g->parity && bad_count <= g->parity) {
		solved = !parity_recover(g->data, g->parity, BLOCK_BYTES, cols, bad, bad_count);
	} else if (!g->parity && g->copies > 1 && good < rows->span) {
		for (unsigned k = 0; k < bad_count; k++)
			memcpy(cols[bad[k]], cols[good], BLOCK_BYTES);
		solved = true;
	}
	for (unsigned k = 0; k < bad_count; k++) {
		bool right = solved && rows_recovered_right(r, rows, bad[k], i);

		rows->state[bad[k] * rows->count + i] = right ? SLOT_RECOVERED : SLOT_LOST;
		lost += !right;
	}
	return lost;
}

void rows_recover(struct raid *r, struct rows *rows, uint64_t *ret_lost)
{
	if (!rows->any_bad)
		return;
	/* The pages were just loaded; they are pinned again for the checksums. */
	if (page_get_rows(r, rows->chunk, rows->row, rows->count)) {
		for (unsigned k = 0; k < rows->span * rows->count; k++)
			if (slot_is_bad(rows->state[k]))
				rows->state[k] = SLOT_LOST;
		return;
	}
	for (unsigned i = 0; i < rows->count; i++) {
		unsigned lost = row_recover(r, rows, i);

		if (ret_lost)
			*ret_lost += lost;
	}
	page_put_rows(r, rows->chunk, rows->row, rows->count);
}

int rows_heal(struct raid *r, struct rows *rows, bool include_absent, uint64_t *ret_healed)
{
	struct write_list list;
	uint64_t healed = 0;
	int err;

	if (!rows->any_bad)
		return 0;
	write_list_init(&list);
	for (unsigned s = 0; s < rows->span; s++) {
		for (unsigned i = 0; i < rows->count; i++) {
			uint8_t found = rows->found[s * rows->count + i];

			if (found == SLOT_BAD_SUM)
				health_sum_error(r, rows_column(rows, s, rows->row + i)->member);
			if (rows->state[s * rows->count + i] != SLOT_RECOVERED ||
			    (found == SLOT_ABSENT && !include_absent))
				continue;
			write_list_slot(r, &list, rows->chunk, rows->row + i, rows->group * rows->span + s,
					rows_block(rows, s, i));
			healed++;
		}
	}
	if (r->read_only || r->error || BREAK(heal)) {
		mem_free(list.entries);
		return 0;
	}
	err = write_list_run(r, &list);
	if (!err && ret_healed)
		*ret_healed += healed;
	return err;
}

/* ---- reading ---- */

/*
 * Blocks one after the other in one strip, whose checksums stand in one page. Those that lie one after the other on one
 * member too, as strips of consecutive stripes do, are read with one I/O: of its first segment, the head.
 */
struct segment {
	struct chunk *chunk;
	struct page *page; /* pinned */
	uint64_t row;
	unsigned index, sum, count;
	unsigned member;
	char *data;
	bool asked;
	struct segment *head; /* itself, or of an earlier one whose I/O takes this along */
	/* Of a head. */
	struct segment *last, *head_before;
	uint64_t off_bytes, end_bytes; /* on the member */
	unsigned pieces;
	struct io io;
	/* Of those that a head takes along. */
	struct segment *next;
};

/* Of segment k of n. The copies share a long read by halves, and not strip by strip, so that each has strips in a row. */
static struct column *segment_column(struct raid *r, const struct segment *s, unsigned k, unsigned n)
{
	const struct geom *g = &s->chunk->geom;
	unsigned slot = geom_index_slot(g, s->index);
	unsigned copies = g->parity ? 1 : g->copies;
	unsigned start = copies > 1 ? (unsigned)((r->read_rotor + (uint64_t)k * copies / n) % copies) : 0;

	for (unsigned c = 0; c < copies; c++) {
		struct column *col = &s->chunk->columns[geom_column(g, s->row, slot + (start + c) % copies)];

		if (table_column_readable(r->t, col))
			return col;
	}
	return NULL;
}

/* From memory where the newest content is there; true if the block has to come from a member. */
static bool segment_block_pending(struct raid *r, const struct segment *s, unsigned i)
{
	struct image *image = image_find(r, s->chunk, s->row + i, s->sum);
	char *block = s->data + (size_t)i * BLOCK_BYTES;

	if (image)
		memcpy(block, image->data, BLOCK_BYTES);
	else if (!page_sum_of(s->page, s->row + i, s->sum))
		memset(block, 0, BLOCK_BYTES);
	else
		return true;
	return false;
}

/* Under the lock of the cells: all slots, recovered, healed. Rows i .. i+count-1 of the segment. */
static int segment_recover(struct raid *r, struct segment *s, unsigned i, unsigned count)
{
	const struct geom *g = &s->chunk->geom;
	unsigned slot = geom_index_slot(g, s->index) % g->span, group = s->index / g->data;
	struct cell_lock lock;
	struct rows rows;
	int err, heal;

	rows_reserve(r, rows_bytes(s->chunk, count));
	cell_lock(r, &lock, s->chunk, s->row + i, count, group);
	err = rows_load(r, &rows, s->chunk, group, s->row + i, count);
	if (!err) {
		rows_recover(r, &rows, NULL);
		for (unsigned k = 0; k < count; k++) {
			if (rows.state[slot * count + k] == SLOT_LOST)
				err = -EBADMSG;
			else
				memcpy(s->data + (size_t)(i + k) * BLOCK_BYTES, rows_block(&rows, slot, k),
				       BLOCK_BYTES);
		}
		heal = rows_heal(r, &rows, false, NULL);
		if (heal)
			log_warning("chunk %u row %llu: repair not written back: %s", s->chunk->number,
				    (unsigned long long)rows.row, strerror(-heal));
		rows_free(&rows);
	}
	cell_unlock(r, &lock);
	rows_unreserve(r, rows_bytes(s->chunk, count));
	return err;
}

static int segment_recover_all(struct raid *r, struct segment *s, unsigned i, unsigned count)
{
	int err = 0, one;

	while (count) {
		unsigned n = (unsigned)MIN(MIN(count, SEGMENT_ROWS_MAX), ROWS_MAX - (s->row + i) % ROWS_MAX);

		one = segment_recover(r, s, i, n);
		if (one)
			err = one;
		i += n;
		count -= n;
	}
	return err;
}

static bool segment_block_right(struct raid *r, const struct segment *s, unsigned i)
{
	if (BREAK(checksum) || BREAK(checksum_read))
		return true;
	return block_sum(&r->t->fs, s->chunk->number, s->row + i, s->sum, s->data + (size_t)i * BLOCK_BYTES) ==
	       page_sum_of(s->page, s->row + i, s->sum);
}

/* An image first: until it goes home, what is in place is right by its checksum, and old. */
static bool segment_block_done(struct raid *r, const struct segment *s, unsigned i)
{
	if (BREAK(read_image))
		return s->asked && segment_block_right(r, s, i);
	return !segment_block_pending(r, s, i) || (s->asked && segment_block_right(r, s, i));
}

/* Verifies what was read; what is wrong or was not read goes the slow way, in runs. */
static int segment_finish(struct raid *r, struct segment *s)
{
	unsigned i = 0, run;
	int err = 0, one;

	if (s->asked && s->head->io.result) {
		if (s == s->head)
			health_read_error(r, s->member, s->io.result);
		if (s->head->io.result == -ETIMEDOUT)
			return -EAGAIN;
		s->asked = false;
	}
	while (i < s->count) {
		if (segment_block_done(r, s, i)) {
			i++;
			continue;
		}
		for (run = 1; i + run < s->count; run++)
			if (segment_block_done(r, s, i + run))
				break;
		one = segment_recover_all(r, s, i, run);
		if (one)
			err = one;
		i += run;
	}
	return err;
}

/* At most. Segments end at strips, and within each at the pages of its checksums. */
static unsigned segments_count(struct raid *r, const struct raid_read_run *runs, unsigned count)
{
	unsigned n = 0;

	for (unsigned i = 0; i < count; i++) {
		struct chunk *c;
		uint32_t strips, pages;

		if (runs[i].count == 1 || !(c = table_chunk(r->t, LBA_CHUNK(runs[i].lba)))) {
			n++;
			continue;
		}
		strips = runs[i].count / c->geom.strip_blocks + 2;
		pages = MIN(runs[i].count, c->geom.strip_blocks) / c->geom.rows_per_sum_page + 2;
		n += MIN(runs[i].count, strips * pages);
	}
	return n;
}

/* Where to read, from its first to its last block that has to come from a member. */
static void segment_aim(struct raid *r, struct segment *s, unsigned k, unsigned n)
{
	struct column *col;
	unsigned first = s->count, last = 0;

	for (unsigned i = 0; i < s->count; i++) {
		if (!segment_block_pending(r, s, i))
			continue;
		first = MIN(first, i);
		last = i;
	}
	if (first == s->count) {
		s->count = 0; /* all of it was in memory */
		return;
	}
	/* What lies before and behind is done; what lies between is overwritten by the read, and looked at again. */
	s->row += first;
	s->data += (size_t)first * BLOCK_BYTES;
	s->count = last - first + 1;
	col = segment_column(r, s, k, n);
	s->asked = col != NULL;
	if (!col)
		return;
	s->member = col->member;
	s->off_bytes = table_column_off(r->t, col, geom_slice_block(&s->chunk->geom, s->row));
}

/* To the I/O that ends where this one begins; else it has its own. */
static void segment_join(struct segment *s, struct segment **heads)
{
	uint64_t len_bytes = (uint64_t)s->count * BLOCK_BYTES;

	for (struct segment *h = *heads; h; h = h->head_before) {
		if (h->member != s->member || h->end_bytes != s->off_bytes || h->pieces == PIECES_MAX)
			continue;
		h->last->next = s;
		h->last = s;
		h->end_bytes += len_bytes;
		h->pieces++;
		s->head = h;
		return;
	}
	s->head = s->last = s;
	s->end_bytes = s->off_bytes + len_bytes;
	s->pieces = 1;
	s->head_before = *heads;
	*heads = s;
}

/* Starts the I/O of a head; returns how many of iov it uses. */
static unsigned segment_start(struct raid *r, struct io_batch *batch, struct segment *head, struct iovec *iov)
{
	struct dev *dev = r->t->members[head->member].dev;
	unsigned n = 0;

	for (struct segment *s = head; s; s = s->next) {
		size_t len_bytes = (size_t)s->count * BLOCK_BYTES;

		if (n && (char *)iov[n - 1].iov_base + iov[n - 1].iov_len == s->data)
			iov[n - 1].iov_len += len_bytes;
		else
			iov[n++] = (struct iovec){s->data, len_bytes};
	}
	if (n == 1)
		io_read(batch, &head->io, dev, head->off_bytes, head->data, iov->iov_len);
	else
		io_readv(batch, &head->io, dev, head->off_bytes, iov, n);
	return n;
}

/* All that is wanted, each with its page pinned. */
static int segments_make(struct raid *r, const struct raid_read_run *runs, unsigned count, struct segment *segments,
			 unsigned *ret_count)
{
	unsigned n = 0;
	int err = 0;

	for (unsigned k = 0; k < count && !err; k++) {
		struct chunk *c = table_chunk(r->t, LBA_CHUNK(runs[k].lba));
		uint64_t block = LBA_BLOCK(runs[k].lba);
		uint32_t left = runs[k].count;
		char *data = runs[k].data;

		if (!c || block + left > c->geom.blocks)
			err = -EBADMSG; /* an address that cannot be: it came from damaged metadata */
		while (left && !err) {
			struct segment *s = &segments[n];
			uint32_t per_page = c->geom.rows_per_sum_page;

			s->chunk = c;
			geom_locate(&c->geom, block, &s->row, &s->index);
			s->sum = geom_index_sum(&c->geom, s->index);
			s->count = (unsigned)MIN(MIN(left, geom_run(&c->geom, block)), per_page - s->row % per_page);
			s->data = data;
			s->asked = false;
			s->head = s->next = NULL;
			block += s->count;
			data += (size_t)s->count * BLOCK_BYTES;
			left -= s->count;
			err = page_get(r, c, geom_sum_page(&c->geom, s->row), &s->page);
			n += !err;
		}
	}
	*ret_count = n;
	return err;
}

static void segments_start(struct raid *r, struct io_batch *batch, struct segment *segments, unsigned n,
			   struct iovec *iov)
{
	struct segment *heads = NULL;

	for (unsigned i = 0; i < n; i++) {
		segment_aim(r, &segments[i], i, n);
		if (segments[i].asked)
			segment_join(&segments[i], &heads);
	}
	r->read_rotor++;
	for (unsigned i = 0; i < n; i++)
		if (segments[i].head == &segments[i])
			iov += segment_start(r, batch, &segments[i], iov);
}

int read_runs(struct raid *r, const struct raid_read_run *runs, unsigned count)
{
	struct segment few[SEGMENTS_INLINE], *segments = few;
	struct iovec iov_few[SEGMENTS_INLINE], *iov = iov_few;
	unsigned n = 0, max = segments_count(r, runs, count);
	struct io_batch batch;
	int err;

	if (max > SEGMENTS_INLINE) {
		segments = mem_alloc(max * (sizeof(*segments) + sizeof(*iov)));
		if (!segments)
			return -ENOMEM;
		iov = (struct iovec *)(segments + max);
	}
	err = segments_make(r, runs, count, segments, &n);
	if (!err) {
		io_batch_init(&batch, r->loop);
		segments_start(r, &batch, segments, n, iov);
		(void)io_batch_wait(&batch); /* each has its own result */
		for (unsigned i = 0; i < n; i++) {
			int one = segments[i].count ? segment_finish(r, &segments[i]) : 0;

			/* Told last: then nothing of ours still uses the memory. */
			if (one && err != -EAGAIN)
				err = one;
		}
	}
	for (unsigned i = 0; i < n; i++)
		page_put(r, segments[i].page);
	if (segments != few)
		mem_free(segments);
	return err;
}

int raid_readv(struct raid *r, const struct raid_read_run *runs, unsigned count)
{
	struct pace_request q;
	uint64_t blocks = 0;
	int err;

	for (unsigned i = 0; i < count; i++)
		blocks += runs[i].count;
	walk_foreground_begin(r, &q);
	err = read_runs(r, runs, count);
	walk_foreground_end(r, &q, blocks < PACE_READ_LARGE_BLOCKS ? PACE_READ : PACE_READ_LARGE);
	return err;
}

int raid_read(struct raid *r, uint64_t lba, uint32_t count, void *data)
{
	struct raid_read_run run = {.lba = lba, .count = count, .data = data};

	return raid_readv(r, &run, 1);
}
