// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Scrub: everything that is not read otherwise is read, verified and repaired before it is needed.
 *
 *   labels   every place of every member in service is valid, and the newest is of this generation
 *   pages    every copy of every chunk page is of the newest generation
 *   rows     every slot that counts (walk.c) hashes to its checksum; the parity of the row is that
 * of its data
 *
 * Since data and parity have checksums of their own, a wrong block is known by itself, and what is
 * recovered is verified before it is written back (read.c). Two things are left over:
 *   - parity that is right by its checksum, but not the parity of its data: can only be a fault of
 * ours. The data is right by its own checksums, so parity is computed anew;
 *   - a dead block, or parity, that cannot be recovered while all live blocks of the row are right:
 * nothing is lost. The dead block is dropped from the row, and parity computed anew. Both go
 * through the journal like any shared row (W1).
 *
 * A cursor goes into the table every minute, when the scrub is cancelled, and with the table that
 * closes the volume; so does the flag that a scrub is running, and the next start goes on from
 * there. While a rebuild runs the scrub waits: the rebuild reads the same blocks, and redundancy
 * comes first.
 */
#include "walk.h"

#define STRETCH_UNITS 256u	      /* between looks at the clock */
#define PAGE_WORKERS  16u	      /* pages that are looked at side by side */
#define SAVE_NS	      (60 * NS_PER_S) /* the cursor goes into the table */
#define RESTAGED_ROWS_MAX                                                                          \
	16u /* rows whose parity is staged under one lock: a transaction has limits */
#define PARITY_MAX 2u

struct scrub {
	struct raid *r;
	uint64_t saved_ns;
};

static struct raid_job_info *info(struct raid *r)
{
	return &r->scrub.info;
}

/* ---- rows ---- */

struct scrub_unit {
	struct raid *r;
	struct rows rows;
	char *parity; /* PARITY_MAX blocks */
	unsigned restaged;
	bool more; /* rows whose turn did not come */
	struct walk_lost lost;
};

static bool slot_is_lost_data(const struct scrub_unit *u, unsigned slot, unsigned i)
{
	const struct geom *g = &u->rows.chunk->geom;

	return u->rows.state[slot * u->rows.count + i] == SLOT_LOST && slot < g->data && !BREAK(scrub_verify) &&
	       space_occupied(u->rows.chunk, u->rows.row + i, u->rows.group * g->data + slot);
}

/* What the parity of the row must be; false: it cannot be told. */
static bool row_parity(struct scrub_unit *u, unsigned i)
{
	const struct geom *g = &u->rows.chunk->geom;
	void *cols[MEMBERS_MAX];

	for (unsigned s = 0; s < g->data; s++) {
		if (slot_is_lost_data(u, s, i))
			return false;
		cols[s] =
		    *walk_state(&u->rows, s, i) == SLOT_LOST && !BREAK(scrub_verify) ? NULL : walk_block(&u->rows, s, i);
	}
	for (unsigned k = 0; k < g->parity; k++)
		cols[g->data + k] = u->parity + (size_t)k * BLOCK_BYTES;
	parity_compute(g->data, g->parity, BLOCK_BYTES, cols);
	return true;
}

static bool row_parity_right(struct scrub_unit *u, unsigned i)
{
	const struct geom *g = &u->rows.chunk->geom;

	for (unsigned s = 0; s < g->span; s++)
		if (*walk_state(&u->rows, s, i) == SLOT_LOST)
			return false;
	for (unsigned k = 0; k < g->parity; k++)
		if (memcmp(u->parity + (size_t)k * BLOCK_BYTES,
			   walk_block(&u->rows, g->data + k, i), BLOCK_BYTES))
			return false;
	return true;
}

/* Lost dead blocks count as empty from now on. Never yields; the pages are pinned. */
static int row_restage(struct scrub_unit *u, unsigned i)
{
	const struct geom *g = &u->rows.chunk->geom;
	unsigned first = u->rows.group * g->span;
	struct chunk *c = u->rows.chunk;
	uint64_t row = u->rows.row + i;
	int err = 0;

	for (unsigned s = 0; s < g->data; s++) {
		if (*walk_state(&u->rows, s, i) != SLOT_LOST || BREAK(scrub_verify))
			continue;
		image_cancel(u->r, c, row, first + s);
		page_sum_set(u->r, c, row, first + s, 0);
		journal_stage_sums(u->r, c, row, first + s, 1);
	}
	for (unsigned k = 0; k < g->parity && !err; k++)
		err = image_stage(u->r, c, row, first + g->data + k,
				  u->parity + (size_t)k * BLOCK_BYTES);
	if (err && !u->r->error)
		u->r->error = err; /* the dead blocks are dropped already */
	u->restaged++;
	return err;
}

static int unit_parity(struct scrub_unit *u)
{
	struct chunk *c = u->rows.chunk;
	int err = page_get_rows(u->r, c, u->rows.row, u->rows.count);

	if (err)
		return err;
	for (unsigned i = 0; i < u->rows.count && !err; i++) {
		/* What is written to a lost page stands for good: only what must be. */
		if (!space_loaded(c) || page_rows_lost(u->r, c, u->rows.row + i, 1) ||
		    !walk_slot_counts(c, u->rows.row + i, u->rows.group, 0) ||
		    !row_parity(u, i) || row_parity_right(u, i))
			continue;
		if (u->restaged == RESTAGED_ROWS_MAX) {
			u->more = true;
			break;
		}
		info(u->r)->found++;
		err = row_restage(u, i);
		info(u->r)->repaired += !err;
	}
	page_put_rows(u->r, c, u->rows.row, u->rows.count);
	return err;
}

static void unit_count(struct scrub_unit *u)
{
	for (unsigned s = 0; s < u->rows.span; s++) {
		for (unsigned i = 0; i < u->rows.count; i++) {
			uint8_t found = u->rows.found[s * u->rows.count + i];

			info(u->r)->found += found == SLOT_BAD_IO || found == SLOT_BAD_SUM;
			walk_lost_slot(u->r, &u->lost, &u->rows, s, i);
		}
	}
}

/* One group of the unit, under its lock. */
static int scrub_group(struct scrub_unit *u, struct chunk *c, unsigned group, uint64_t row,
		       unsigned count)
{
	uint64_t healed = 0;
	int err = walk_load(u->r, &u->rows, c, group, row, count);

	if (err == -EBADMSG || err == -EIO) {
		info(u->r)->found++;
		walk_lost_rows(u->r, &u->lost, c, group, row, count);
		return u->r->error;
	}
	if (err)
		return err;
	rows_recover(u->r, &u->rows, NULL);
	/* With so many gone that writing has stopped nothing is lost yet: they may come back. */
	if (u->r->error) {
		rows_free(&u->rows);
		return u->r->error;
	}
	if (!u->more) /* the second time round it has been counted */
		unit_count(u);
	u->more = false;
	err = rows_heal(u->r, &u->rows, false, &healed);
	info(u->r)->repaired += healed;
	if (!err && c->geom.parity && !BREAK(scrub_parity))
		err = unit_parity(u);
	rows_free(&u->rows);
	return err;
}

static int scrub_rows(struct walk *w, uint64_t row, unsigned count)
{
	struct scrub_unit u = {.r = w->r};
	struct chunk *c = w->chunk;
	int err = 0;

	u.parity = buf_get_wait_below(PARITY_MAX * BLOCK_BYTES);
	for (unsigned group = 0; group < c->geom.groups && !err; group += !u.more) {
		struct cell_lock lock;

		/* Not under the lock: what is staged must find room. */
		err = raid_throttle(w->r);
		if (err)
			break;
		u.restaged = 0;
		rows_reserve(w->r, rows_bytes(c, count));
		cell_lock(w->r, &lock, c, row, count, group);
		err = scrub_group(&u, c, group, row, count);
		cell_unlock(w->r, &lock);
		rows_unreserve(w->r, rows_bytes(c, count));
		info(w->r)->lost += walk_lost_report(w->r, &u.lost);
	}
	buf_put(u.parity);
	return err;
}

static void scrub_passed(struct walk *w, unsigned count)
{
	walk_job_progress(w->r, w->job, (uint64_t)count * w->chunk->geom.columns);
}

/* ---- pages and labels ---- */

struct scrub_pages {
	struct raid *r;
	struct chunk *chunk;
	uint32_t next, end;
	uint64_t bad;
	int error;
	unsigned workers;
	struct co_cond done;
};

/* Pages are small: what takes time is to wait for each. */
static void scrub_pages_work(struct scrub_pages *sp)
{
	struct raid *r = sp->r;

	while (sp->next < sp->end && !sp->error) {
		unsigned bad = 0;
		int err;

		if (walk_stopped(r, &r->scrub)) {
			sp->error = -ECANCELED;
			break;
		}
		err = page_verify_copies(r, sp->chunk, sp->next++, &bad);
		if (err == -EBADMSG || err == -EIO) {
			info(r)->found++; /* logged, and what it covered is named with its rows */
			err = r->error;
		}
		sp->bad += bad;
		if (err && !sp->error)
			sp->error = err;
		/* Those that were never written are told from memory. */
		if (sp->next % 64 == 0)
			co_yield ();
	}
}

static void scrub_pages_worker(void *arg)
{
	struct scrub_pages *sp = arg;

	scrub_pages_work(sp);
	sp->workers--;
	co_cond_wake_all(&sp->done);
}

static int scrub_pages(struct raid *r, struct chunk *c)
{
	struct scrub_pages sp = {.r = r, .chunk = c, .end = c->geom.bitmap_pages + c->geom.sum_pages};
	int err;

	co_cond_init(&sp.done);
	while (sp.workers < PAGE_WORKERS - 1) {
		if (co_spawn(r->loop, scrub_pages_worker, &sp))
			break; /* fewer do it as well */
		sp.workers++;
	}
	scrub_pages_work(&sp);
	while (sp.workers)
		co_cond_wait(&sp.done);
	err = sp.error;
	info(r)->found += sp.bad;
	if (!err && sp.bad)
		err = journal_checkpoint(r); /* they are dirty now */
	if (!err)
		info(r)->repaired += sp.bad;
	return err;
}

/* The table lock is held: no label is being written. */
static uint64_t label_places_bad(struct raid *r, struct member *m)
{
	struct label label;
	int err = label_read(m->dev, &label);
	unsigned bad = 2 * LABEL_PLACES;

	if (!err) {
		bad -= label.places_valid;
		if (!bad && label.gen != r->t->gen)
			bad = 1; /* it lost the newest */
		label_clear(&label);
	}
	if (bad) {
		log_warning("%s: %u label places are damaged", m->hint, bad);
		m->errors_sum += bad;
	}
	return bad;
}

static int scrub_labels_locked(struct raid *r)
{
	uint64_t bad = 0;
	int err = 0;

	for (unsigned i = 0; i < r->t->member_count; i++) {
		struct member *m = &r->t->members[i];

		if (member_in_service(m) && !BREAK(scrub_labels))
			bad += label_places_bad(r, m);
	}
	info(r)->found += bad;
	/* Each generation goes to one place at both ends. */
	for (unsigned n = 0; bad && n < LABEL_PLACES && !err; n++)
		err = health_table_write_locked(r);
	if (!err)
		info(r)->repaired += bad;
	return err;
}

/* ---- the job ---- */

static int scrub_begin(struct scrub *s)
{
	struct raid *r = s->r;
	int err;

	co_mutex_lock(&r->table_lock);
	err = scrub_labels_locked(r);
	if (!err && !(r->t->flags & TABLE_SCRUBBING)) {
		r->t->flags |= TABLE_SCRUBBING;
		err = health_table_write_locked(r);
	}
	co_mutex_unlock(&r->table_lock);
	s->saved_ns = loop_now_ns(r->loop);
	return err;
}

static int scrub_save(struct scrub *s, uint64_t cursor, bool now)
{
	struct raid *r = s->r;
	int err;

	r->t->scrub_cursor = cursor;
	if (!now && loop_now_ns(r->loop) < s->saved_ns + SAVE_NS)
		return 0;
	co_mutex_lock(&r->table_lock);
	err = health_table_write_locked(r);
	co_mutex_unlock(&r->table_lock);
	s->saved_ns = loop_now_ns(r->loop);
	return err;
}

static void scrub_wait_for_rebuild(struct raid *r)
{
	while (r->rebuild.info.running && !walk_stopped(r, &r->scrub))
		co_cond_wait(&r->rebuild.ended);
}

static void scrub_turn(struct walk *w)
{
	scrub_wait_for_rebuild(w->r);
}

static int scrub_chunk(struct scrub *s, struct chunk *c, uint64_t from)
{
	struct raid *r = s->r;
	struct walk w = {.r = r,
			 .job = &r->scrub,
			 .chunk = c,
			 .row = from,
			 .unit = scrub_rows,
			 .turn = scrub_turn,
			 .passed = scrub_passed};
	int err = 0;

	if (space_load(r, c))
		log_warning("chunk %u: its bitmap is lost: all of it is looked at", c->number);
	while (w.row < c->geom.rows && !err) {
		w.end = MIN(w.row + STRETCH_UNITS * ROWS_MAX, c->geom.rows);
		err = walk_rows(&w);
		if (!err)
			err = scrub_save(s, LBA_MAKE(c->number, w.row), false);
	}
	if (!err)
		err = scrub_pages(r, c);
	return err;
}

static void scrub_total(struct raid *r, uint64_t cursor)
{
	info(r)->total_blocks = info(r)->done_blocks = 0;
	for (unsigned i = 0; i < r->t->chunk_count; i++) {
		const struct chunk *c = r->t->chunks[i];

		info(r)->total_blocks += c->geom.rows * c->geom.columns;
		if (c->number < LBA_CHUNK(cursor))
			info(r)->done_blocks += c->geom.rows * c->geom.columns;
		else if (c->number == LBA_CHUNK(cursor))
			info(r)->done_blocks +=
			    MIN(LBA_BLOCK(cursor), c->geom.rows) * c->geom.columns;
	}
}

static int scrub_all(struct scrub *s)
{
	struct raid *r = s->r;
	uint64_t cursor = r->t->scrub_cursor;
	struct chunk *c;
	int err = 0;

	scrub_total(r, cursor);
	while (!err && (c = walk_chunk_from(r->t, LBA_CHUNK(cursor)))) {
		err = scrub_chunk(s, c, c->number == LBA_CHUNK(cursor) ? LBA_BLOCK(cursor) : 0);
		if (!err) {
			cursor = LBA_MAKE(c->number + 1, 0);
			err = scrub_save(s, cursor, false);
		}
	}
	/*
	 * What was repaired through the journal is to be durable when we say that it is repaired. And the journal itself
	 * is not read: a member may have lost records of it, which are not needed any more when all is home.
	 */
	return err ? err : journal_checkpoint(r);
}

/* Stopped with the volume: the flag stays, and the next start goes on. Otherwise it is over. */
static int scrub_end(struct scrub *s, int err)
{
	struct raid *r = s->r;

	if (r->error)
		return r->error;
	if (r->stopping || r->abandoned)
		return 0;
	r->t->flags &= ~TABLE_SCRUBBING;
	if (err)
		return scrub_save(s, r->t->scrub_cursor, true) || err == -ECANCELED ? r->error
										    : err;
	if (r->options.wall_clock_s)
		r->t->scrub_last_end_s = info(r)->last_end_s = r->options.wall_clock_s();
	return scrub_save(s, 0, true);
}

static void scrub_run(struct raid *r)
{
	struct scrub s = {.r = r};
	int err;

	log_info("scrub: begins");
	info(r)->last_end_s = r->t->scrub_last_end_s;
	err = scrub_begin(&s);
	if (!err)
		err = scrub_all(&s);
	err = scrub_end(&s, err);
	log_info("scrub: %s: %llu found, %llu repaired, %llu lost", err ? strerror(-err) : "ends",
		 (unsigned long long)info(r)->found, (unsigned long long)info(r)->repaired,
		 (unsigned long long)info(r)->lost);
	walk_job_end(r, &r->scrub, err);
}

void scrub_resume(struct raid *r)
{
	if (!r->started || !(r->t->flags & TABLE_SCRUBBING) || r->scrub.info.running ||
	    r->read_only || walk_stopped(r, NULL))
		return;
	if (walk_job_start(r, &r->scrub, scrub_run))
		log_warning("no memory to go on with the scrub");
}

int raid_scrub_start(struct raid *r)
{
	if (r->read_only)
		return -EROFS;
	if (r->error)
		return r->error;
	if (r->scrub.info.running)
		return -EALREADY;
	if (r->rebuild.info.running)
		return -EBUSY;
	return walk_job_start(r, &r->scrub, scrub_run);
}

int raid_scrub_cancel(struct raid *r)
{
	if (!r->scrub.info.running)
		return -ENOENT;
	r->scrub.cancel = true;
	/* It may be waiting for a rebuild, or for its turn. */
	co_cond_wake_all(&r->rebuild.ended);
	co_cond_wake_all(&r->pace_changed);
	return 0;
}

int raid_scrub_wait(struct raid *r)
{
	while (r->scrub.info.running)
		co_cond_wait(&r->scrub.ended);
	return r->scrub.info.last_error;
}
