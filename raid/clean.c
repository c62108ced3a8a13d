// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which stripes are worth cleaning, and when. The moving is the filesystem's, who alone knows whose a block is.
 *
 * Redirecting on write leaves holes everywhere. A block that goes into a row with others costs a read of these and
 * the journal (row.c): several times what it costs in a clean row. Moving what is left of a stripe that is u full
 * costs u reads and writes and gives 1 - u clean: worth it up to STRIPE_USED_MAX, beyond which the shared rows are
 * cheaper. Blocks of mirrors and of level 0 have no neighbours: there is nothing to clean.
 *
 * Cleaning begins when clean blocks fall below a mark, a small part of the volume, since what is kept clean is taken
 * from what the rest can spread over, and fuller stripes cost more. It yields to the foreground as rebuild and scrub
 * do (pace.c), with a priority that rises from 0 at the mark to 100 where only the cleaner's own last clean rows are
 * left. Those are not given to others as long as there are holes, for without a clean place to move to there is no
 * gain in moving. They may be taken all the same: nothing that is promised depends on the cleaner.
 *
 * Victims are the emptiest stripes of the chunk with the most holes: two short scans of counts in memory. They are
 * closed: what is freed in them meanwhile is not given out again, so that they become clean as a whole. Closed is a
 * wish too, and ends when space is short. What could not be cleaned is not tried again at once.
 */
#include <stdlib.h>

#include "volume.h"

#define MARK_SHARE 32u		/* of all data blocks */
#define MARK_MAX (256u << 10)	/* blocks */
#define KEEP_SHARE 4u		/* of the mark: the cleaner's own */
#define STRIPE_USED_MAX_4TH 3u	/* of a stripe */
#define COPY_RUN_MAX 64u	/* blocks read into one piece of memory */
#define COPY_TRIES_MAX 4	/* memory that hung devices kept */

static bool has_neighbours(const struct raid *r)
{
	return r->t->level != 0 && r->t->level != 1 && r->t->level != 10;
}

static uint64_t clean_mark(const struct raid *r)
{
	return MIN((r->data_total + r->data_potential) / MARK_SHARE, MARK_MAX);
}

uint64_t clean_keep(const struct raid *r)
{
	return has_neighbours(r) ? clean_mark(r) / KEEP_SHARE : 0;
}

unsigned raid_clean_need(const struct raid *r)
{
	uint64_t mark = clean_mark(r), keep = clean_keep(r), clean = r->data_clean + space_growable(r);

	/* Redundancy comes first. */
	if (!has_neighbours(r) || r->read_only || r->error || r->stopping || r->abandoned || r->rebuild.info.running)
		return 0;
	if (clean >= mark)
		return 0;
	return 1 + (unsigned)(PACE_PRIORITY_MAX * (mark - MAX(clean, keep)) / (mark - keep));
}

uint64_t raid_clean_wait_ns(struct raid *r, unsigned need)
{
	if (!r->clean.working) {
		r->clean.working = true;
		pace_job_begin(&r->pace);
	}
	return pace_wait_ns(&r->pace, loop_round_ns(r->loop), need - 1);
}

void raid_clean_rest(struct raid *r)
{
	if (r->clean.working)
		pace_job_end(&r->pace);
	r->clean.working = false;
}

/* ---- victims ---- */

static bool is_among(const struct clean_stripe *list, unsigned count, const struct chunk *c, uint64_t stripe)
{
	for (unsigned i = 0; i < count; i++)
		if (list[i].chunk == c->number && list[i].stripe == stripe)
			return true;
	return false;
}

bool clean_is_closed(const struct raid *r, const struct chunk *c, uint64_t stripe)
{
	return is_among(r->clean.closed, r->clean.closed_count, c, stripe);
}

void clean_open(struct raid *r)
{
	r->clean.closed_count = 0;
}

static bool being_filled(const struct chunk *c, uint64_t stripe)
{
	const struct chunk_space *s = c->space;

	return (s->row_next < s->row_end && s->row_next / c->geom.strip_blocks == stripe) ||
	       (s->small_next < s->small_end && s->small_next / space_stripe_bits(c) == stripe);
}

/* Blocks used in it; 0: it is no victim. */
static uint32_t victim_used(const struct raid *r, const struct chunk *c, uint64_t stripe)
{
	const struct clean *w = &r->clean;
	uint32_t used = c->space->stripe_used[stripe];

	if (!used || used * 4ull > space_stripe_bits(c) * STRIPE_USED_MAX_4TH || being_filled(c, stripe) ||
	    clean_is_closed(r, c, stripe) || is_among(w->shunned, w->shunned_count, c, stripe))
		return 0;
	return used;
}

/* The chunk with the most holes; NULL: there are none. */
static struct chunk *victim_chunk(const struct raid *r)
{
	struct chunk *best = NULL;
	uint64_t most = 0;

	for (unsigned i = 0; i < r->t->chunk_count; i++) {
		struct chunk *c = r->t->chunks[i];

		if (c->class != CHUNK_DATA || !c->geom.parity || !c->space || !c->space->loaded || c->pages_lost ||
		    c->space->free - c->space->clean <= most)
			continue;
		most = c->space->free - c->space->clean;
		best = c;
	}
	return best;
}

/* Stripes up to a little fuller than the emptiest, until they have `blocks` together. */
static unsigned victims_take(struct raid *r, const struct chunk *c, uint64_t blocks, struct raid_run *runs, unsigned max)
{
	uint64_t stripes = c->geom.rows / c->geom.strip_blocks, bits = space_stripe_bits(c), sum = 0;
	uint32_t least = UINT32_MAX, used;
	unsigned n = 0;

	for (uint64_t stripe = 0; stripe < stripes; stripe++)
		if ((used = victim_used(r, c, stripe)) != 0)
			least = MIN(least, used);
	for (uint64_t stripe = 0; stripe < stripes && n < max && r->clean.closed_count < CLEAN_CLOSED_MAX; stripe++) {
		used = victim_used(r, c, stripe);
		if (!used || used > least + c->geom.width || (n && sum + used > blocks))
			continue;
		sum += used;
		r->clean.closed[r->clean.closed_count++] = (struct clean_stripe){c->number, stripe};
		runs[n++] = (struct raid_run){LBA_MAKE(c->number, stripe * bits), (uint32_t)bits};
	}
	return n;
}

unsigned raid_clean_pick(struct raid *r, unsigned need, uint32_t blocks_max, struct raid_run *runs, unsigned max)
{
	struct chunk *c = victim_chunk(r);
	uint64_t blocks;

	if (!c)
		return 0;
	/* A block moved is read from one member and written, with its parity, to one and a part of another. */
	blocks = (uint64_t)pace_unit_blocks(&r->pace, need - 1, blocks_max) * c->geom.width / 2;
	return victims_take(r, c, MIN(blocks, blocks_max), runs, max);
}

int raid_clean_done(struct raid *r, bool failed)
{
	struct clean *w = &r->clean;
	int err = r->clean.closed_count ? journal_commit(r) : 0;

	for (unsigned i = 0; i < w->closed_count && failed; i++) {
		w->shunned[w->shunned_next] = w->closed[i];
		w->shunned_next = (w->shunned_next + 1) % CLEAN_SHUNNED_MAX;
		w->shunned_count = MAX(w->shunned_count, w->shunned_next ? w->shunned_next : CLEAN_SHUNNED_MAX);
	}
	clean_open(r);
	return err;
}

bool raid_clean_full(const struct raid *r)
{
	return r->clean.closed_count >= CLEAN_CLOSED_MAX / 2;
}

/* ---- copying ---- */

struct copy {
	struct raid_move *moves; /* by `from` */
	unsigned count, run_count;
	struct raid_read_run *runs;
	struct raid_block *blocks;
};

static int by_from(const void *a, const void *b)
{
	const struct raid_move *x = a, *y = b;

	return (x->from > y->from) - (x->from < y->from);
}

/* What lies together is read together. */
static void copy_runs(struct copy *k)
{
	for (unsigned i = 0, n; i < k->count; i += n) {
		void *data;

		for (n = 1; i + n < k->count && n < COPY_RUN_MAX && k->moves[i + n].from == k->moves[i].from + n; n++)
			;
		data = buf_get_wait((size_t)n * BLOCK_BYTES);
		k->runs[k->run_count++] = (struct raid_read_run){.lba = k->moves[i].from, .count = n, .data = data};
		for (unsigned b = 0; b < n; b++)
			k->blocks[i + b] = (struct raid_block){k->moves[i + b].to, (char *)data + (size_t)b * BLOCK_BYTES};
	}
}

static void copy_free(struct copy *k)
{
	for (unsigned i = 0; i < k->run_count; i++)
		buf_put(k->runs[i].data);
	k->run_count = 0;
}

int raid_copy(struct raid *r, struct raid_move *moves, unsigned count)
{
	struct copy k = {.moves = moves, .count = count};
	int err = -ENOMEM;

	k.runs = mem_alloc(count * sizeof(*k.runs));
	k.blocks = mem_alloc(count * sizeof(*k.blocks));
	qsort(moves, count, sizeof(*moves), by_from);
	pace_unit_begin(&r->pace, loop_round_ns(r->loop), 2ull * count * BLOCK_BYTES /
			table_chunk(r->t, LBA_CHUNK(moves[0].to))->geom.width);
	for (int t = 0; t < COPY_TRIES_MAX && k.runs && k.blocks && (t == 0 || err == -EAGAIN); t++) {
		copy_free(&k);
		copy_runs(&k);
		err = read_runs(r, k.runs, k.run_count);
	}
	if (!err)
		err = row_write(r, k.blocks, count, 0);
	pace_unit_end(&r->pace);
	copy_free(&k);
	mem_free(k.runs);
	mem_free(k.blocks);
	return err;
}
