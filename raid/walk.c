// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The walker over rows that count.
 *
 * What counts. A cell of which no block is occupied (used and written) may hold anything: whoever
 * writes to it next sets all its checksums, and nobody reads it before. So rebuild does not copy
 * such cells, and then scrub and check must not look at them, since on the new member they are what
 * the device had there before, under checksums that were right once. As soon as one block of a
 * parity cell is occupied all its slots count, dead ones too: they are inputs to the recovery of
 * their neighbours. Where there is no parity each block stands for itself. All three users ask
 * walk_slot_counts, so they agree.
 *
 * The question is asked again under the lock of the cells: rows that were empty when the unit was
 * chosen stay uncopied, but a write that came since has gone to the new slice as well.
 *
 * Units. One group of up to ROWS_MAX rows is worked on under one lock; several units are in flight,
 * so that the seeks of one hide behind the transfer of another. Their number and their memory are
 * bounded, and a unit that ends lets everything runnable go first. Rejected: locks over a whole
 * stripe or chunk, which the foreground would wait for. While there is a foreground the jobs have
 * less in flight and smaller units: pace.c says when and how large.
 */
#include "walk.h"

#define WALK_WORKERS_MAX    8u
#define WALK_UNIT_BYTES_MAX (2u << 20) /* of one group; there may be few rows of a wide one */
#define WALK_POOL_SHARE	    4u	       /* units in flight take at most this part of the pool */

/* ---- jobs ---- */

bool walk_stopped(const struct raid *r, const struct job *job)
{
	return r->stopping || r->abandoned || r->error || (job && job->cancel);
}

int walk_job_start(struct raid *r, struct job *job, void (*fn)(struct raid *r))
{
	uint64_t last_end_s = job->info.last_end_s;
	int err;

	job->info = (struct raid_job_info){
	    .running = true, .started_ns = loop_now_ns(r->loop), .last_end_s = last_end_s};
	job->cancel = false;
	pace_job_begin(&r->pace);
	err = raid_background(r, fn);
	if (err) {
		pace_job_end(&r->pace);
		job->info.running = false;
		job->info.last_error = err;
	}
	return err;
}

void walk_job_end(struct raid *r, struct job *job, int err)
{
	pace_job_end(&r->pace);
	job->info.running = false;
	job->info.eta_ns = 0;
	job->info.last_error = err;
	co_cond_wake_all(&job->ended);
}

void walk_job_progress(struct raid *r, struct job *job, uint64_t blocks)
{
	struct raid_job_info *i = &job->info;
	uint64_t now = loop_now_ns(r->loop);

	i->done_blocks = MIN(i->done_blocks + blocks, i->total_blocks);
	if (i->done_blocks)
		i->eta_ns =
		    now + (uint64_t)((double)(now - i->started_ns) / (double)i->done_blocks *
				     (double)(i->total_blocks - i->done_blocks));
}

void walk_stop(struct raid *r)
{
	r->rebuild.cancel = r->scrub.cancel = true;
	co_cond_wake_all(&r->rebuild.ended);
	co_cond_wake_all(&r->scrub.ended);
	co_cond_wake_all(&r->pace_changed);
}

struct chunk *walk_chunk_from(const struct table *t, uint32_t number)
{
	for (unsigned i = 0; i < t->chunk_count; i++) {
		struct chunk *c = t->chunks[i];

		/* Without its space the chunk is still being made. */
		if (c->number >= number && !c->hidden && c->space)
			return c;
	}
	return NULL;
}

int raid_set_priority(struct raid *r, enum raid_job job, unsigned priority)
{
	uint8_t *stored = job == RAID_JOB_SCRUB ? &r->t->scrub_priority : &r->t->rebuild_priority;
	int err;

	static_assert(RAID_PRIORITY_MAX == TABLE_PRIORITY_MAX && RAID_PRIORITY_MAX == PACE_PRIORITY_MAX,
		      "three names for the three sides of it");
	static_assert(TABLE_PRIORITY_DEFAULT == PACE_BALANCED, "what 0 in the table stands for");
	if (priority > RAID_PRIORITY_MAX)
		return -EINVAL;
	if (r->read_only)
		return -EROFS;
	if (r->error)
		return r->error;
	*stored = (uint8_t)(priority + 1);
	co_cond_wake_all(&r->pace_changed);
	co_mutex_lock(&r->table_lock);
	err = health_table_write_locked(r);
	co_mutex_unlock(&r->table_lock);
	return err;
}

/* ---- what counts ---- */

bool walk_slot_counts(const struct chunk *c, uint64_t row, unsigned group, unsigned slot)
{
	const struct geom *g = &c->geom;

	if (!space_loaded(c))
		return true;
	if (g->copies > 1)
		return space_occupied(c, row, group);
	if (!g->parity)
		return space_occupied(c, row, slot);
	for (unsigned i = 0; i < g->data; i++)
		if (space_occupied(c, row, group * g->data + i))
			return true;
	return false;
}

static bool slot_state_bad(uint8_t state)
{
	return state >= SLOT_ABSENT && state != SLOT_RECOVERED;
}

int walk_load(struct raid *r, struct rows *rows, struct chunk *c, unsigned group, uint64_t row,
	      unsigned count)
{
	int err = rows_load(r, rows, c, group, row, count);

	if (err || !rows->any_bad)
		return err;
	rows->any_bad = false;
	for (unsigned s = 0; s < rows->span; s++) {
		for (unsigned i = 0; i < count; i++) {
			uint8_t *state = walk_state(rows, s, i);

			if (!slot_state_bad(*state))
				continue;
			if (walk_slot_counts(c, row + i, group, s))
				rows->any_bad = true;
			else
				*state = rows->found[s * count + i] = SLOT_EMPTY;
		}
	}
	return 0;
}

/* ---- lost blocks ---- */

static void lost_add(struct raid *r, struct walk_lost *l, const struct chunk *c, uint64_t row,
		     unsigned index)
{
	if (space_loaded(c) && !page_live(r, (struct chunk *)c, row, index))
		return;
	if (l->count == l->cap) {
		unsigned cap = l->cap ? l->cap * 2 : 64;
		uint64_t *lbas = mem_realloc(l->lbas, cap * sizeof(*lbas));

		if (!lbas) {
			log_error(
			    "chunk %u row %llu: a block is lost, and there is no memory to name it",
			    c->number, (unsigned long long)row);
			return;
		}
		l->lbas = lbas;
		l->cap = cap;
	}
	l->lbas[l->count++] = LBA_MAKE(c->number, geom_block(&c->geom, row, index));
}

void walk_lost_slot(struct raid *r, struct walk_lost *l, struct rows *rows, unsigned slot,
		    unsigned i)
{
	const struct geom *g = &rows->chunk->geom;

	if (*walk_state(rows, slot, i) != SLOT_LOST || geom_slot_is_parity(g, slot))
		return;
	/* Of a mirrored block it is lost once, not with every copy. */
	if (g->copies > 1 && slot)
		return;
	lost_add(r, l, rows->chunk, rows->row + i,
		 rows->group * g->data + (g->copies > 1 ? 0 : slot));
}

void walk_lost_rows(struct raid *r, struct walk_lost *l, struct chunk *c, unsigned group,
		    uint64_t row, unsigned count)
{
	for (unsigned k = 0; k < c->geom.data; k++)
		for (unsigned i = 0; i < count; i++)
			lost_add(r, l, c, row + i, group * c->geom.data + k);
}

uint64_t walk_lost_report(struct raid *r, struct walk_lost *l)
{
	uint64_t total = l->count;
	uint32_t run;

	for (unsigned i = 0; i < l->count; i += run) {
		for (run = 1; i + run < l->count && l->lbas[i + run] == l->lbas[i] + run; run++)
			;
		log_error("chunk %u block %u: %u blocks are lost", LBA_CHUNK(l->lbas[i]),
			  LBA_BLOCK(l->lbas[i]), run);
		if (r->hooks.lost_block && !r->abandoned)
			r->hooks.lost_block(r->hooks_ctx, l->lbas[i], run);
	}
	mem_free(l->lbas);
	memset(l, 0, sizeof(*l));
	return total;
}

/* ---- walking ---- */

void walk_foreground_begin(struct raid *r, struct pace_request *q)
{
	/* While nothing runs there is nothing to ask the clock for. */
	pace_request_begin(&r->pace, r->pace.jobs ? loop_round_ns(r->loop) : 0, q);
}

void walk_foreground_end(struct raid *r, struct pace_request *q, enum pace_class class)
{
	if (q->counted)
		pace_request_end(&r->pace, loop_round_ns(r->loop), q, class);
}

static unsigned walk_priority(const struct walk *w)
{
	const struct table *t = w->r->t;

	return table_priority(w->job == &w->r->scrub ? t->scrub_priority : t->rebuild_priority);
}

/* Lets the foreground go first for as long as the pace says. */
static void walk_wait_turn(struct walk *w)
{
	struct raid *r = w->r;
	uint64_t wait_ns;

	if (w->turn)
		w->turn(w);
	if (!w->job)
		return;
	while (!walk_stopped(r, w->job) &&
	       (wait_ns = pace_wait_ns(&r->pace, loop_round_ns(r->loop), walk_priority(w))))
		(void)co_cond_wait_until(&r->pace_changed, loop_round_ns(r->loop) + wait_ns); /* either is fine */
}

static unsigned walk_unit_rows(const struct walk *w)
{
	return w->job ? pace_unit_blocks(&w->r->pace, walk_priority(w), w->unit_rows) : w->unit_rows;
}

static int walk_unit(struct walk *w, uint64_t row, unsigned count)
{
	int err;

	if (!w->job)
		return w->unit(w, row, count);
	pace_unit_begin(&w->r->pace, loop_round_ns(w->r->loop), (uint64_t)count * BLOCK_BYTES);
	err = w->unit(w, row, count);
	pace_unit_end(&w->r->pace);
	return err;
}

static bool unit_in_use(const struct chunk *c, uint64_t row, unsigned count)
{
	if (!space_loaded(c))
		return true;
	for (unsigned i = 0; i < count; i++)
		if (space_row_in_use(c, row + i))
			return true;
	return false;
}

static void walk_work(struct walk *w)
{
	for (;;) {
		uint64_t row;
		unsigned rows, count;
		int err = 0;

		/* Before a unit is taken: one that is taken is done, or the walk has an error. */
		walk_wait_turn(w);
		if (w->row >= w->end || w->error || walk_stopped(w->r, w->job))
			break;
		row = w->row;
		rows = walk_unit_rows(w);
		count = (unsigned)MIN(w->end - row, rows - row % rows);
		w->row += count;
		if (unit_in_use(w->chunk, row, count)) {
			err = walk_unit(w, row, count);
			co_yield ();
		}
		if (err && !w->error)
			w->error = err;
		if (w->passed && !err)
			w->passed(w, count);
	}
}

static void walk_worker(void *arg)
{
	struct walk *w = arg;

	walk_work(w);
	w->workers--;
	co_cond_wake_all(&w->done);
}

int walk_rows(struct walk *w)
{
	unsigned span = w->chunk->geom.span, workers;
	uint64_t unit_bytes;

	w->unit_rows = ROWS_MAX;
	while (w->unit_rows > 1 &&
	       (uint64_t)w->unit_rows * span * BLOCK_BYTES > WALK_UNIT_BYTES_MAX)
		w->unit_rows /= 2;
	unit_bytes = (uint64_t)w->unit_rows * (span + 1) * BLOCK_BYTES;
	workers = (unsigned)MIN(WALK_WORKERS_MAX,
				MAX(buf_pool_bytes() / WALK_POOL_SHARE / unit_bytes, 1u));
	w->error = 0;
	w->workers = 0;
	co_cond_init(&w->done);
	while (w->workers < workers - 1) {
		if (co_spawn(w->r->loop, walk_worker, w))
			break; /* fewer do it as well */
		w->workers++;
	}
	walk_work(w);
	while (w->workers)
		co_cond_wait(&w->done);
	if (w->error)
		return w->error;
	return w->row < w->end ? -ECANCELED : 0;
}
