// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which blocks are used, and who gets the next one.
 *
 * On the members a block is live or not (bitmap pages). In memory there is more to say, since between being given out
 * and being live, and between dying and being free, a block must not be given to anybody (W3):
 *
 *            alloc            raid_write       stage_live        stage_dead       durable, no readers
 *   free ----------> used+fresh -------> used ----------> used,live ------> used ---------------> free
 *
 * `fresh` separates blocks whose bytes do not count: a row of which only fresh blocks are used may be written directly.
 *
 * Data is given out as whole clean stripes first, then as rows of a stripe opened for that, then as single blocks in
 * rows that are shared. Small synchronous writes have a stripe of their own that they fill row by row through
 * the journal. A new chunk is made before holes are filled, but the last free slices are left for metadata as long as
 * there are holes: the more a filesystem is written at random, the more of it it needs. The last clean rows are the cleaner's (clean.c) as long
 * as there are holes, and the stripes that it empties get nothing new.
 *
 * How many blocks of each stripe are used, and how many rows are clean, is counted, so that nobody looks for what is
 * not there.
 *
 * Bitmaps are loaded chunk by chunk as they are needed; metadata chunks at open, so that a metadata block can be had
 * without waiting; after an unclean end all of them, since their fill is not known then.
 */
#include "volume.h"

#define META_RESERVE_BLOCKS 256u    /* for deleting on a full filesystem */
#define DATA_RESERVE_FRACTION 128u  /* of all data blocks, kept from ordinary allocation */
#define DATA_RESERVE_BLOCKS_MAX (256u << 10)
#define GROW_KEEP_SHARE 16u         /* of all data blocks: what is left in free slices */

/* ---- bits ---- */

static bool bit_test(const uint64_t *map, uint64_t bit)
{
	return map[bit / 64] >> (bit % 64) & 1;
}

static void bit_set(uint64_t *map, uint64_t bit)
{
	map[bit / 64] |= 1ull << (bit % 64);
}

static void bit_clear(uint64_t *map, uint64_t bit)
{
	map[bit / 64] &= ~(1ull << (bit % 64));
}

static bool bits_any(const uint64_t *map, uint64_t bit, uint64_t count)
{
	while (count) {
		unsigned shift = bit % 64, n = (unsigned)MIN(64u - shift, count);
		uint64_t mask = (n == 64 ? ~0ull : (1ull << n) - 1) << shift;

		if (map[bit / 64] & mask)
			return true;
		bit += n;
		count -= n;
	}
	return false;
}

static uint32_t bits_count(const uint64_t *map, uint64_t bit, uint64_t count)
{
	uint32_t n = 0;

	while (count) {
		unsigned shift = bit % 64, part = (unsigned)MIN(64u - shift, count);
		uint64_t mask = (part == 64 ? ~0ull : (1ull << part) - 1) << shift;

		n += (uint32_t)__builtin_popcountll(map[bit / 64] & mask);
		bit += part;
		count -= part;
	}
	return n;
}

static uint64_t chunk_bits(const struct chunk *c)
{
	return c->geom.rows * c->geom.width;
}

static uint64_t chunk_stripes(const struct chunk *c)
{
	return c->geom.rows / c->geom.strip_blocks;
}

static uint64_t bit_lba(const struct chunk *c, uint64_t bit)
{
	return LBA_MAKE(c->number, geom_block(&c->geom, bit / c->geom.width, (unsigned)(bit % c->geom.width)));
}

static uint64_t block_bit(const struct chunk *c, uint64_t block)
{
	uint64_t row;
	unsigned index;

	geom_locate(&c->geom, block, &row, &index);
	return row * c->geom.width + index;
}

/* ---- chunks ---- */

static uint64_t *class_free(struct raid *r, const struct chunk *c)
{
	return c->class == CHUNK_META ? &r->meta_free : &r->data_free;
}

/* What is clean has become more or less. */
static void clean_add(struct raid *r, struct chunk *c, uint64_t blocks)
{
	c->space->clean += blocks;
	if (c->class == CHUNK_DATA)
		r->data_clean += blocks;
}

static int space_attach(struct raid *r, struct chunk *c)
{
	struct chunk_space *s = mem_zalloc(sizeof(*s));

	if (!s)
		return -ENOMEM;
	/* Metadata blocks are given out without a wait: those of a chunk count when it is loaded. */
	if (c->class == CHUNK_DATA) {
		s->free = c->geom.blocks;
		if (c->fill_hint != UINT32_MAX)
			s->free -= MIN(s->free, c->fill_hint);
	}
	*class_free(r, c) += s->free;
	*(c->class == CHUNK_META ? &r->meta_total : &r->data_total) += c->geom.blocks;
	c->space = s;
	clean_add(r, c, s->free);
	return 0;
}

static void space_drop_pages(struct raid *r, struct chunk *c)
{
	struct chunk_space *s = c->space;

	if (s->bitmap)
		for (uint32_t n = 0; n < c->geom.bitmap_pages; n++)
			if (s->bitmap[n])
				page_put(r, s->bitmap[n]);
	mem_free(s->bitmap);
	mem_free(s->used);
	mem_free(s->fresh);
	mem_free(s->stripe_used);
	s->bitmap = NULL;
	s->used = s->fresh = NULL;
	s->stripe_used = NULL;
}

static uint64_t space_copy_live(struct chunk *c, uint32_t number)
{
	struct chunk_space *s = c->space;
	const uint8_t *live = s->bitmap[number]->cur->body + PAGE_INIT_BYTES;
	uint64_t first = (uint64_t)number * c->geom.rows_per_bitmap_page * c->geom.width;
	uint64_t bits = MIN((uint64_t)c->geom.rows_per_bitmap_page * c->geom.width, chunk_bits(c) - first);
	uint64_t count = 0;

	for (uint64_t b = 0; b < bits; b++) {
		if (!live[b / 8]) {
			b |= 7;
			continue;
		}
		if (live[b / 8] >> (b % 8) & 1) {
			bit_set(s->used, first + b);
			count++;
		}
	}
	return count;
}

static void space_count_clean(struct raid *r, struct chunk *c)
{
	struct chunk_space *s = c->space;
	uint64_t clean = 0, per_stripe = space_stripe_bits(c);

	s->stripes_clean = 0;
	for (uint64_t stripe = 0; stripe < chunk_stripes(c); stripe++) {
		s->stripe_used[stripe] = bits_count(s->used, stripe * per_stripe, per_stripe);
		s->stripes_clean += !s->stripe_used[stripe];
	}
	for (uint64_t row = 0; row < c->geom.rows; row++)
		if (!space_row_in_use(c, row))
			clean += c->geom.width;
	clean_add(r, c, clean - s->clean);
}

static int space_load_pages(struct raid *r, struct chunk *c)
{
	struct chunk_space *s = c->space;
	size_t words = DIV_ROUND_UP(chunk_bits(c), 64);
	uint64_t used = 0;
	int err = 0;

	s->used = mem_zalloc(words * 8);
	s->fresh = mem_zalloc(words * 8);
	s->bitmap = mem_zalloc(c->geom.bitmap_pages * sizeof(*s->bitmap));
	s->stripe_used = mem_alloc(chunk_stripes(c) * sizeof(*s->stripe_used));
	if (!s->used || !s->fresh || !s->bitmap || !s->stripe_used)
		return -ENOMEM;
	for (uint32_t n = 0; n < c->geom.bitmap_pages && !err; n++)
		err = page_get(r, c, n, &s->bitmap[n]);
	if (err)
		return err;
	for (uint32_t n = 0; n < c->geom.bitmap_pages; n++)
		used += space_copy_live(c, n);
	*class_free(r, c) -= s->free;
	s->free = c->geom.blocks - used;
	*class_free(r, c) += s->free;
	space_count_clean(r, c);
	return 0;
}

int space_load(struct raid *r, struct chunk *c)
{
	struct chunk_space *s = c->space;

	while (s->loading)
		co_cond_wait(&r->space_loaded);
	if (s->loaded)
		return 0;
	if (s->error && s->error != -ENOMEM)
		return s->error;
	s->loading = true;
	s->error = space_load_pages(r, c);
	s->loading = false;
	s->loaded = !s->error;
	if (s->error) {
		space_drop_pages(r, c);
		*class_free(r, c) -= s->free;
		s->free = 0;
		clean_add(r, c, -s->clean);
	}
	co_cond_wake_all(&r->space_loaded);
	return s->error;
}

bool space_loaded(const struct chunk *c)
{
	return c->space->loaded;
}

/* Only counted: all bitmaps of a large volume would not fit into memory. */
static void space_count(struct raid *r, struct chunk *c)
{
	if (space_load(r, c)) {
		log_warning("chunk %u: its bitmap cannot be read: nothing is allocated there", c->number);
		return;
	}
	space_drop_pages(r, c);
	c->space->loaded = false;
	clean_add(r, c, c->space->free - c->space->clean);
}

int space_init(struct raid *r, bool clean)
{
	int err = 0;

	co_cond_init(&r->space_loaded);
	for (unsigned i = 0; i < r->t->chunk_count && !err; i++)
		err = space_attach(r, r->t->chunks[i]);
	/* After an unclean end what the table says of the data chunks is old: they are counted anew. */
	for (unsigned i = 0; i < r->t->chunk_count && !err; i++) {
		struct chunk *c = r->t->chunks[i];

		if (c->class == CHUNK_META)
			err = space_load(r, c);
		else if (!clean)
			space_count(r, c);
	}
	space_recount(r);
	return err;
}

void space_exit(struct raid *r)
{
	for (unsigned i = 0; i < r->t->chunk_count; i++) {
		struct chunk *c = r->t->chunks[i];

		if (!c->space)
			continue;
		space_drop_pages(r, c);
		mem_free(c->space);
		c->space = NULL;
	}
}

void space_recount(struct raid *r)
{
	r->meta_potential = table_potential_blocks(r->t, CHUNK_META);
	r->data_potential = table_potential_blocks(r->t, CHUNK_DATA);
	r->data_chunk_blocks = table_chunk_blocks(r->t, CHUNK_DATA);
	r->meta_chunk_blocks = table_chunk_blocks(r->t, CHUNK_META);
}

uint32_t space_fill_hint(const struct chunk *c)
{
	return (uint32_t)(c->geom.blocks - c->space->free);
}

int space_grow(struct raid *r, enum chunk_class class)
{
	uint32_t next = r->t->chunk_next;
	struct chunk *c;
	int err;

	if (r->read_only)
		return -EROFS;
	co_mutex_lock(&r->table_lock);
	/* Many run short at the same instant: one chunk is enough for all of them. */
	for (unsigned i = r->t->chunk_count; i-- > 0 && r->t->chunks[i]->number >= next;) {
		c = r->t->chunks[i];
		if (c->class != class || !c->space)
			continue;
		co_mutex_unlock(&r->table_lock);
		return space_load(r, c);
	}
	err = r->error ? r->error : table_chunk_add(r->t, class, &c);
	if (!err) {
		c->hidden = true;
		err = pages_format(r, c);
		/* W6: the table must not announce a chunk whose bitmap pages a crash can still lose. */
		if (!err && !BREAK(flush_grow))
			err = journal_flush_members(r);
		c->hidden = false;
		if (!err)
			err = health_table_write_locked(r);
		if (!err)
			err = space_attach(r, c);
		if (err) {
			table_chunk_drop(r->t, c);
			if (!r->error)
				(void)health_table_write_locked(r); /* its error stays in r->error */
		}
	}
	space_recount(r);
	co_mutex_unlock(&r->table_lock);
	if (!err)
		err = space_load(r, c);
	return err;
}

/* ---- questions ---- */

bool space_occupied(const struct chunk *c, uint64_t row, unsigned index)
{
	uint64_t bit = row * c->geom.width + index;

	return bit_test(c->space->used, bit) && !bit_test(c->space->fresh, bit);
}

void space_written(struct chunk *c, uint64_t row, unsigned index)
{
	bit_clear(c->space->fresh, row * c->geom.width + index);
}

bool space_row_in_use(const struct chunk *c, uint64_t row)
{
	return bits_any(c->space->used, row * c->geom.width, c->geom.width);
}

/* ---- giving out ---- */

struct grant {
	struct raid *r;
	struct raid_run *runs;
	unsigned count, max;
	uint32_t want;
	uint64_t keep; /* clean blocks that are to be left */
	bool full; /* no run left */
};

static void bit_take(struct raid *r, struct chunk *c, uint64_t bit)
{
	struct chunk_space *s = c->space;

	assert(!bit_test(s->used, bit));
	if (!space_row_in_use(c, bit / c->geom.width))
		clean_add(r, c, -(uint64_t)c->geom.width);
	s->stripes_clean -= !s->stripe_used[bit / space_stripe_bits(c)]++;
	bit_set(s->used, bit);
	bit_set(s->fresh, bit);
}

static void bit_give(struct raid *r, struct chunk *c, uint64_t bit)
{
	struct chunk_space *s = c->space;

	assert(bit_test(s->used, bit));
	bit_clear(s->used, bit);
	bit_clear(s->fresh, bit);
	s->stripes_clean += !--s->stripe_used[bit / space_stripe_bits(c)];
	if (!space_row_in_use(c, bit / c->geom.width))
		clean_add(r, c, c->geom.width);
}

/* Gives out `count` blocks that lie one after the other; false when they do not fit into the runs. */
static bool grant_run(struct grant *g, struct chunk *c, uint64_t lba, uint32_t count)
{
	struct raid_run *last = g->count ? &g->runs[g->count - 1] : NULL;

	if (last && last->lba + last->count == lba) {
		last->count += count;
	} else if (g->count < g->max) {
		g->runs[g->count++] = (struct raid_run){.lba = lba, .count = count};
	} else {
		g->full = true;
		return false;
	}
	for (uint32_t i = 0; i < count; i++)
		bit_take(g->r, c, block_bit(c, LBA_BLOCK(lba) + i));
	c->space->free -= count;
	*class_free(g->r, c) -= count;
	g->want -= MIN(g->want, count);
	return true;
}

/* Next stripe in which nothing is used; UINT64_MAX: none. */
static uint64_t find_stripe(struct chunk *c)
{
	struct chunk_space *s = c->space;
	uint64_t stripes = chunk_stripes(c);

	for (uint64_t i = 0; i < stripes && s->stripes_clean; i++) {
		uint64_t stripe = (s->stripe_cursor + i) % stripes;

		if (!s->stripe_used[stripe]) {
			s->stripe_cursor = stripe + 1;
			return stripe;
		}
	}
	return UINT64_MAX;
}

/* Whether the chunk's clean rows may be taken: the last ones of all are kept. */
static bool grant_may(const struct grant *g)
{
	return !g->full && g->r->data_clean > g->keep;
}

static void grant_stripes(struct grant *g, struct chunk *c)
{
	while (g->want >= space_stripe_bits(c) && grant_may(g)) {
		uint64_t stripe = find_stripe(c);

		if (stripe == UINT64_MAX)
			return;
		if (!grant_run(g, c, LBA_MAKE(c->number, stripe * space_stripe_bits(c)), (uint32_t)space_stripe_bits(c)))
			return;
	}
}

/* Rows in which nothing is used: of the opened stripe, or of another, or wherever there are some. */
static uint64_t find_rows(struct raid *r, struct chunk *c, uint64_t want, uint64_t *ret_row)
{
	struct chunk_space *s = c->space;
	unsigned width = c->geom.width;
	uint64_t stripe, row, end, n;

	if (s->row_next == s->row_end && (stripe = find_stripe(c)) != UINT64_MAX) {
		s->row_next = stripe * c->geom.strip_blocks;
		s->row_end = s->row_next + c->geom.strip_blocks;
	}
	while (s->row_next < s->row_end && space_row_in_use(c, s->row_next))
		s->row_next++;
	if (s->row_next < s->row_end) {
		*ret_row = s->row_next;
		for (n = 0; n < want && s->row_next < s->row_end && !space_row_in_use(c, s->row_next); n++)
			s->row_next++;
		return n;
	}
	for (uint64_t i = 0; i < chunk_stripes(c) && s->clean; i++) {
		stripe = (s->row_cursor + i) % chunk_stripes(c);
		if (s->stripe_used[stripe] + width > space_stripe_bits(c) || clean_is_closed(r, c, stripe))
			continue;
		row = stripe * c->geom.strip_blocks;
		end = row + c->geom.strip_blocks;
		while (row < end && space_row_in_use(c, row))
			row++;
		if (row == end)
			continue;
		s->row_cursor = stripe;
		*ret_row = row;
		for (n = 1; n < want && row + n < end && !space_row_in_use(c, row + n); n++)
			;
		return n;
	}
	return 0;
}

/* Index by index down the rows, so that what follows in the file follows on a member. */
static void grant_rows(struct grant *g, struct chunk *c)
{
	unsigned width = c->geom.width;
	uint64_t row, rows;

	while (g->want && grant_may(g)) {
		rows = find_rows(g->r, c, DIV_ROUND_UP(g->want, width), &row);
		if (!rows)
			return;
		for (unsigned index = 0; index < width && g->want; index++) {
			uint32_t n = (uint32_t)MIN(rows, g->want);

			if (!grant_run(g, c, LBA_MAKE(c->number, geom_block(&c->geom, row, index)), n))
				return;
		}
	}
}

static void grant_small(struct grant *g, struct chunk *c)
{
	struct chunk_space *s = c->space;
	uint64_t stripe;

	while (g->want && !g->full) {
		if (s->small_next == s->small_end) {
			stripe = grant_may(g) ? find_stripe(c) : UINT64_MAX;
			if (stripe == UINT64_MAX)
				return;
			s->small_next = stripe * space_stripe_bits(c);
			s->small_end = s->small_next + space_stripe_bits(c);
		}
		if (!bit_test(s->used, s->small_next) && !grant_run(g, c, bit_lba(c, s->small_next), 1))
			return;
		s->small_next++;
	}
}

static void grant_holes(struct grant *g, struct chunk *c)
{
	struct chunk_space *s = c->space;
	uint64_t bits = chunk_bits(c);

	/* A row cannot take new blocks when one that counts in its parity is lost: other chunks can. */
	if (c->geom.parity && (s->no_holes || c->pages_lost))
		return;
	for (uint64_t i = 0; i < bits && g->want && !g->full && s->free; i++) {
		uint64_t bit = (s->hole_cursor + i) % bits;

		if (bit % 64 == 0 && bit + 64 <= bits && s->used[bit / 64] == ~0ull) {
			i += 63;
			continue;
		}
		if (bit_test(s->used, bit) || clean_is_closed(g->r, c, bit / space_stripe_bits(c)))
			continue;
		if (!grant_run(g, c, bit_lba(c, bit), 1))
			return;
		s->hole_cursor = bit + 1;
	}
}

typedef void grant_fn(struct grant *g, struct chunk *c);

/* One way of giving out over all data chunks, from the one being filled on. Yields where a bitmap must be loaded. */
static void grant_over_chunks(struct grant *g, grant_fn *fn)
{
	struct raid *r = g->r;

	/* A chunk that could not be made may leave the table while we wait. */
	for (unsigned i = 0; i < r->t->chunk_count && g->want && !g->full; i++) {
		unsigned at = (r->data_cursor + i) % r->t->chunk_count;
		struct chunk *c = r->t->chunks[at];

		if (c->class != CHUNK_DATA || !c->space || !c->space->free || space_load(r, c))
			continue;
		fn(g, c);
		if (!g->want)
			r->data_cursor = at;
	}
}

static uint64_t data_reserve(const struct raid *r)
{
	return MIN((r->data_total + r->data_potential) / DATA_RESERVE_FRACTION, DATA_RESERVE_BLOCKS_MAX);
}

/* What there is, from the best on, without making chunks. Yields. */
static void grant_clean(struct grant *g, unsigned flags)
{
	if (flags & RAID_ALLOC_SMALL) {
		grant_over_chunks(g, grant_small);
	} else {
		grant_over_chunks(g, grant_stripes);
		grant_over_chunks(g, grant_rows);
	}
}

uint64_t space_growable(const struct raid *r)
{
	uint64_t keep = (r->data_total + r->data_potential) / GROW_KEEP_SHARE;

	return r->data_potential > keep ? r->data_potential - keep : 0;
}

/* No chunk can be made any more. Yields. */
static void grant_last(struct grant *g, unsigned flags)
{
	uint32_t before = g->want;

	grant_over_chunks(g, grant_holes);
	if (g->want < before)
		return;
	/* Now what the cleaner has is needed, too. */
	clean_open(g->r);
	g->keep = 0;
	grant_clean(g, flags);
	grant_over_chunks(g, grant_holes);
}

/* Clean rows; when there are none at all, and thus no way to get any without, holes. Yields. */
static int grant_cleaner(struct grant *g)
{
	grant_clean(g, 0);
	if (!g->count)
		grant_over_chunks(g, grant_holes);
	return g->count ? 0 : -ENOSPC;
}

int raid_alloc_data(struct raid *r, uint32_t want, unsigned flags, struct raid_run *runs, unsigned runs_max,
		    unsigned *ret_count)
{
	struct grant g = {.r = r, .runs = runs, .max = runs_max};
	uint64_t all = r->data_free + r->data_potential, keep = flags & RAID_ALLOC_RESERVE ? 0 : data_reserve(r);
	int err = 0;

	if (BREAK(reserve))
		keep = 0;

	if (r->read_only)
		return -EROFS;
	if (all <= keep)
		return -ENOSPC;
	want = (uint32_t)MIN(want, all - keep);
	g.want = want;
	g.keep = flags & RAID_ALLOC_CLEANER ? 0 : clean_keep(r);
	if (flags & RAID_ALLOC_CLEANER)
		err = grant_cleaner(&g);
	while (g.want && !g.full && !(flags & RAID_ALLOC_CLEANER)) {
		uint32_t before = g.want;

		grant_clean(&g, flags);
		if (g.want && !g.full && !space_growable(r))
			grant_over_chunks(&g, grant_holes);
		if (!g.want || g.full)
			break;
		err = space_grow(r, CHUNK_DATA);
		if (err && err != -ENOSPC)
			break;
		if (err == -ENOSPC) {
			grant_last(&g, flags);
			if (g.want == before)
				break;
		}
	}
	*ret_count = g.count;
	if (g.count)
		return 0;
	return err ? err : -ENOSPC;
}

static uint32_t meta_reserve(const struct raid *r, unsigned flags)
{
	if (flags & RAID_ALLOC_RESERVE || BREAK(reserve))
		return 0;
	return (uint32_t)MIN(META_RESERVE_BLOCKS, r->meta_total / 8);
}

uint32_t raid_meta_ready(const struct raid *r, unsigned flags)
{
	uint32_t reserve = meta_reserve(r, flags);

	return r->meta_free > reserve ? (uint32_t)MIN(r->meta_free - reserve, UINT32_MAX) : 0;
}

int raid_meta_ensure(struct raid *r, uint32_t want, unsigned flags)
{
	int err = 0;

	while (raid_meta_ready(r, flags) < want && !err)
		err = space_grow(r, CHUNK_META);
	return err;
}

uint64_t raid_alloc_meta(struct raid *r, unsigned flags)
{
	struct raid_run run;
	struct grant g = {.r = r, .runs = &run, .max = 1, .want = 1};

	if (!raid_meta_ready(r, flags))
		return LBA_NONE;
	for (unsigned i = 0; i < r->t->chunk_count && g.want; i++) {
		struct chunk *c = r->t->chunks[i];

		if (c->class == CHUNK_META && c->space && c->space->loaded && c->space->free)
			grant_holes(&g, c);
	}
	return g.count ? run.lba : LBA_NONE;
}

void space_release(struct raid *r, uint64_t lba, uint32_t count)
{
	struct chunk *c = table_chunk(r->t, LBA_CHUNK(lba));
	struct chunk_space *s = c->space;

	if (!s->loaded)
		return;
	for (uint32_t i = 0; i < count; i++)
		bit_give(r, c, block_bit(c, LBA_BLOCK(lba) + i));
	s->free += count;
	*class_free(r, c) += count;
}

void raid_unalloc(struct raid *r, uint64_t lba, uint32_t count)
{
	space_release(r, lba, count);
}

void raid_space(const struct raid *r, struct raid_space *ret)
{
	uint64_t all = r->data_free + r->data_potential;

	ret->data_reserve = data_reserve(r);
	ret->data_total = r->data_total + r->data_potential;
	ret->data_free = all > ret->data_reserve ? all - ret->data_reserve : 0;
	ret->data_clean = r->data_clean + r->data_potential;
	ret->meta_total = r->meta_total;
	ret->meta_free = r->meta_free;
	ret->meta_potential = r->meta_potential;
	ret->data_potential = r->data_potential;
	ret->data_chunk = r->data_chunk_blocks;
	ret->meta_chunk = r->meta_chunk_blocks;
}

/* ---- live blocks ---- */

static int chunk_for_each_live(struct raid *r, struct chunk *c,
			       int (*fn)(void *arg, uint64_t lba, uint32_t count), void *arg)
{
	uint64_t row, start = 0;
	uint32_t run = 0;
	unsigned index;
	int err = space_load(r, c);

	for (uint64_t block = 0; block <= c->geom.blocks && !err; block++) {
		bool live = false;

		if (block < c->geom.blocks) {
			geom_locate(&c->geom, block, &row, &index);
			live = page_live(r, c, row, index);
		}
		if (live && !run++)
			start = block;
		if (!live && run) {
			err = fn(arg, LBA_MAKE(c->number, start), run);
			run = 0;
		}
	}
	return err;
}

int raid_for_each_live(struct raid *r, enum chunk_class class,
		       int (*fn)(void *arg, uint64_t lba, uint32_t count), void *arg)
{
	int err = 0;

	for (unsigned i = 0; i < r->t->chunk_count && !err; i++)
		if (r->t->chunks[i]->class == class && r->t->chunks[i]->space)
			err = chunk_for_each_live(r, r->t->chunks[i], fn, arg);
	return err;
}
