// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Rebuild: every column that is not what it should be, made so again.
 *
 * There is no list of work. What is to be done follows from the table at any time:
 *
 *   resync  a column is stale and its member is in service: it came back, or got the column while
 * it was away. The column gets what it missed, in place; blocks that are still right are not
 * written. move    a column lies on a member that somebody in service replaces: a new slice there
 * gets a copy, read from the old member where that can be read, computed from the others where it
 * cannot.
 *
 * So nothing has to be written down to survive a crash or an unmount: what was not finished is
 * still to be done. One column at a time, always of the chunk that has least redundancy left; a
 * column that was interrupted starts again, those that are done are done. A second failure only
 * changes what is to be done next.
 *
 * A column, step by step:
 *   1. The target becomes the column's second home (chunk.move_to): from here on every write goes
 * to both. A resync needs nothing, since a stale column gets every write.
 *   2. A checkpoint that is under way ends, so no page is being written by a list made before 1.
 * All pages with a copy on the column are marked dirty, and reach the target with the next
 * checkpoint.
 *   3. Row by row under the lock of the cell (writers from before 1 hold it) what is there is
 * verified or recovered, and written to the target alone. Blocks with an image are left out: the
 * image goes home to both.
 *   4. A checkpoint: pages and images are on the target. Its flush, which comes last, is that of the
 * rows as well.
 *   5. The table says so. While it is written both homes still get every write, so that if it
 * cannot be written, or the target fails right then, the old home is as good as before.
 *   6. When nobody can still be writing to the slice that was given up, it is free.
 *
 * Cells that do not count (walk.c) are not copied. A block that cannot be recovered is named,
 * counted and left; it never ends the rebuild. A target that fails ends its column, and the states
 * are looked at anew. What fails otherwise (no memory, no slice) is left aside until something
 * changes: there is no retrying on a timer.
 *
 * A member whose last column has gone is REMOVED: first in the table, then its labels are wiped, so
 * that a crash between finds a member that everybody knows was replaced. Its device is closed when
 * the deadline of any I/O that was on its way has passed.
 */
#include "walk.h"

#define FAILED_MAX	     64u   /* columns left aside before the rebuild gives up */
#define CHAIN_MAX	     8u	   /* successors that failed before their turn was over */
#define PAGES_PER_CHECKPOINT 1024u /* dirty pages made before they are written */

struct work {
	struct chunk *chunk;
	unsigned column;
	int target; /* member; -1: in place */
};

struct rebuild {
	struct raid *r;
	struct {
		uint32_t chunk;
		unsigned column;
	} failed[FAILED_MAX];
	unsigned failed_count;
	int error;  /* the last, unless a column was finished since */
	bool stuck; /* a column has nowhere to go */
	struct work work;
};

/* ---- what is to be done ---- */

static bool member_here(const struct table *t, unsigned member)
{
	return member_in_service(&t->members[member]);
}

static int successor(const struct table *t, unsigned member, unsigned depth)
{
	for (unsigned i = 0; i < t->member_count; i++)
		if (t->members[i].replaces == (int)member && member_here(t, i))
			return (int)i;
	/* The table on the members may say anything: no endless circles. */
	for (unsigned i = 0; i < t->member_count && depth; i++) {
		int next = t->members[i].replaces == (int)member ? successor(t, i, depth - 1) : -1;

		if (next >= 0 && next != (int)member)
			return next;
	}
	return -1;
}

int rebuild_successor(const struct table *t, unsigned member)
{
	return successor(t, member, CHAIN_MAX);
}

static bool chunk_has_member(const struct chunk *c, unsigned member)
{
	for (unsigned k = 0; k < c->geom.columns; k++)
		if (c->columns[k].member == member)
			return true;
	return false;
}

/*
 * The successor, unless it has a column of this chunk already (made while both were away) or is
 * full: then whoever has most room. -1: nobody can take it.
 */
static int move_target(const struct table *t, const struct chunk *c, unsigned wanted)
{
	int best = -1;

	if (!chunk_has_member(c, wanted) && t->members[wanted].slices_free)
		return (int)wanted;
	for (unsigned i = 0; i < t->member_count; i++) {
		const struct member *m = &t->members[i];

		if (!table_member_takes_chunks(t, i) || !m->slices_free || chunk_has_member(c, i))
			continue;
		if (best < 0 || m->slices_free > t->members[best].slices_free)
			best = (int)i;
	}
	return best;
}

/* Whether the column needs anything; *ret_target is -2 when nobody can take it. */
static bool column_needs(const struct table *t, const struct chunk *c, unsigned k, int *ret_target)
{
	const struct column *col = &c->columns[k];
	int next = rebuild_successor(t, col->member);

	if (next >= 0) {
		*ret_target = move_target(t, c, (unsigned)next);
		if (*ret_target < 0)
			*ret_target = -2;
		return true;
	}
	*ret_target = -1;
	return col->stale && table_column_writable(t, col);
}

static bool was_left_aside(const struct rebuild *rb, const struct chunk *c, unsigned column)
{
	for (unsigned i = 0; i < rb->failed_count; i++)
		if (rb->failed[i].chunk == c->number && rb->failed[i].column == column)
			return true;
	return false;
}

/* The most urgent column, and how many member blocks there are to do in all. */
static bool rebuild_next(struct rebuild *rb, struct work *ret, uint64_t *ret_blocks)
{
	const struct table *t = rb->r->t;
	int best = 0;
	bool found = false;

	*ret_blocks = 0;
	rb->stuck = false;
	for (unsigned i = 0; i < t->chunk_count; i++) {
		struct chunk *c = t->chunks[i];

		if (c->hidden || !c->space)
			continue;
		for (unsigned k = 0; k < c->geom.columns; k++) {
			int target, spare;

			if (!column_needs(t, c, k, &target) || was_left_aside(rb, c, k))
				continue;
			if (target == -2) {
				rb->stuck = true;
				continue;
			}
			*ret_blocks += c->geom.rows;
			spare = table_chunk_spare(t, c);
			if (found && spare >= best)
				continue;
			found = true;
			best = spare;
			*ret = (struct work){.chunk = c, .column = k, .target = target};
		}
	}
	return found;
}

/* Somebody takes over from the member, and has: nothing lies on it any more. */
static bool can_retire(const struct table *t, unsigned member)
{
	const struct member *m = &t->members[member];
	bool replaced = false;

	if (m->state == MEMBER_REMOVED)
		return false;
	for (unsigned i = 0; i < t->member_count; i++)
		replaced |= t->members[i].replaces == (int)member;
	/* A healthy one stays when its successor has failed. */
	replaced &= rebuild_successor(t, member) >= 0 || !member_here(t, member);
	/* It may itself be the successor of one that still has something: its own successor needs
	 * to know. */
	if (!replaced || m->replaces >= 0)
		return false;
	for (unsigned i = 0; i < t->chunk_count; i++)
		if (chunk_has_member(t->chunks[i], member))
			return false;
	return true;
}

bool rebuild_wanted(struct raid *r)
{
	struct rebuild *rb = mem_zalloc(sizeof(*rb));
	struct work work;
	uint64_t blocks;
	bool wanted;

	if (!rb)
		return false;
	rb->r = r;
	wanted = rebuild_next(rb, &work, &blocks);
	for (unsigned i = 0; i < r->t->member_count && !wanted; i++)
		wanted = can_retire(r->t, i);
	mem_free(rb);
	return wanted;
}

/* ---- copying ---- */

static struct column *work_to(const struct work *w)
{
	return w->target < 0 ? &w->chunk->columns[w->column] : &w->chunk->move_to;
}

static bool work_possible(struct raid *r, const struct work *w)
{
	return table_column_writable(r->t, work_to(w));
}

static void list_to(struct raid *r, struct write_list *l, const struct work *w, uint64_t row,
		    void *data)
{
	const struct column *col = work_to(w);

	write_list_add(l, col->member, table_column_off(r->t, col, geom_slice_block(&w->chunk->geom, row)), data);
}

/* What the stale column holds now; NULL: nothing that could be read. A column's rows lie one behind
 * the other. */
static char *read_stale(struct raid *r, const struct work *w, uint64_t row, unsigned count)
{
	const struct column *col = work_to(w);
	char *old = buf_get((size_t)count * BLOCK_BYTES);
	int err;

	/* Without memory everything is written: that is only slower. */
	if (!old)
		return NULL;
	err = io_read_sync(r->t->members[col->member].dev,
			   table_column_off(r->t, col, geom_slice_block(&w->chunk->geom, row)), old,
			   (size_t)count * BLOCK_BYTES);
	if (!err)
		return old;
	health_read_error(r, col->member, err);
	buf_put(old);
	return NULL;
}

static unsigned work_slot(const struct work *w, uint64_t row)
{
	return geom_slot(&w->chunk->geom, row, w->column) % w->chunk->geom.span;
}

/* A block that cannot be recovered may be one that the stale column did not miss. The pages are
 * pinned. */
static bool stale_is_right(struct raid *r, const struct work *w, uint64_t row, const char *block)
{
	unsigned sum = geom_slot_sum(&w->chunk->geom, geom_slot(&w->chunk->geom, row, w->column));

	return block_sum(&r->t->fs, w->chunk->number, row, sum, block) ==
	       page_sum(r, w->chunk, row, sum);
}

/* How many of the others cannot be recovered without this one. */
static unsigned others_lost(struct rows *rows, unsigned slot, unsigned i)
{
	unsigned n = 0;

	for (unsigned s = 0; s < rows->span; s++)
		n += s != slot && *walk_state(rows, s, i) == SLOT_LOST;
	return n;
}

/*
 * A block that is read wrong where it should have helped is lost with the one that needed it, whoever may be rebuilt next. Not
 * where that one turns out to be right: whoever reads recovers the others from it.
 */
static void list_lost_sources(struct raid *r, struct rows *rows, unsigned slot, unsigned i, bool kept,
			      struct walk_lost *lost)
{
	if (kept && others_lost(rows, slot, i) <= rows->chunk->geom.parity)
		return;
	for (unsigned s = 0; s < rows->span; s++) {
		uint8_t found = rows->found[s * rows->count + i];

		if (s != slot && (found == SLOT_BAD_SUM || found == SLOT_BAD_IO))
			walk_lost_slot(r, lost, rows, s, i);
	}
}

/* Under the lock: lists what the target needs. Returns how many blocks. */
static unsigned unit_list(struct raid *r, const struct work *w, struct rows *rows, const char *old,
			  struct write_list *list, struct walk_lost *lost)
{
	bool copies = w->chunk->geom.copies > 1;
	unsigned n = 0;

	for (unsigned i = 0; i < rows->count; i++) {
		unsigned slot = work_slot(w, rows->row + i);
		uint8_t *state = walk_state(rows, slot, i);
		const char *old_block = old ? old + (size_t)i * BLOCK_BYTES : NULL;
		bool kept;

		if (!walk_slot_counts(w->chunk, rows->row + i, rows->group, slot))
			continue;
		kept = *state == SLOT_LOST && old && stale_is_right(r, w, rows->row + i, old_block);
		if (!copies)
			list_lost_sources(r, rows, slot, i, kept, lost);
		if (kept)
			continue;
		if (*state == SLOT_LOST)
			walk_lost_slot(r, lost, rows, copies ? 0 : slot, i);
		if (*state != SLOT_OK && *state != SLOT_RECOVERED)
			continue;
		if (old && !memcmp(old_block, walk_block(rows, slot, i), BLOCK_BYTES))
			continue;
		list_to(r, list, w, rows->row + i, walk_block(rows, slot, i));
		n++;
	}
	return n;
}

static int unit_write(struct raid *r, const struct work *w, struct rows *rows,
		      struct walk_lost *lost)
{
	struct raid_job_info *info = &r->rebuild.info;
	struct write_list list;
	uint64_t healed = 0;
	char *old = NULL;
	unsigned n;
	int err;

	rows_recover(r, rows, NULL);
	/* With so many gone that writing has stopped nothing is lost yet: they may come back. */
	if (r->error)
		return r->error;
	/* What is found on the way is repaired on the way. */
	err = rows_heal(r, rows, false, &healed);
	if (err)
		return err;
	info->found += healed;
	info->repaired += healed;
	if (w->target < 0 && work_possible(r, w))
		old = read_stale(r, w, rows->row, rows->count);
	err = page_get_rows(r, w->chunk, rows->row, rows->count);
	if (!err) {
		write_list_init(&list);
		n = unit_list(r, w, rows, old, &list, lost);
		page_put_rows(r, w->chunk, rows->row, rows->count);
		err = write_list_run(r, &list);
		if (w->target < 0) { /* what it missed */
			info->found += n;
			info->repaired += err ? 0 : n;
		}
	}
	buf_put(old);
	return err;
}

static int copy_unit(struct walk *walk, uint64_t row, unsigned count)
{
	struct rebuild *rb = walk->user;
	struct raid *r = rb->r;
	const struct work *w = &rb->work;
	unsigned group = w->column / w->chunk->geom.span;
	struct walk_lost lost = {0};
	struct cell_lock lock;
	struct rows rows;
	int err;

	if (!work_possible(r, w))
		return -ENODEV;
	/* One slot more: what the stale column holds. */
	rows_reserve(r, rows_bytes(w->chunk, count) + count * BLOCK_BYTES);
	cell_lock(r, &lock, w->chunk, row, count, group);
	err = walk_load(r, &rows, w->chunk, group, row, count);
	if (!err) {
		err = unit_write(r, w, &rows, &lost);
		rows_free(&rows);
	} else if (err == -EBADMSG || err == -EIO) {
		/* Their checksums are lost: nothing can be believed, and nothing made worse by
		 * going on. */
		walk_lost_rows(r, &lost, w->chunk, group, row, count);
		err = r->error;
	}
	cell_unlock(r, &lock);
	rows_unreserve(r, rows_bytes(w->chunk, count) + count * BLOCK_BYTES);
	r->rebuild.info.lost += walk_lost_report(r, &lost);
	if (!err && !work_possible(r, w))
		err = -ENODEV;
	return err;
}

static void copy_passed(struct walk *walk, unsigned count)
{
	walk_job_progress(walk->r, walk->job, count);
}

static bool page_is_on(const struct chunk *c, uint32_t number, unsigned column)
{
	for (unsigned copy = 0; copy < c->geom.page_copies; copy++) {
		unsigned k;
		uint64_t block;

		geom_page_place(&c->geom, number, copy, &k, &block);
		if (k == column)
			return true;
	}
	return false;
}

/* Marks every page with a copy on the column; few enough at a time that the cache does not
 * overflow. */
static int copy_pages(struct raid *r, const struct work *w)
{
	const struct geom *g = &w->chunk->geom;
	uint64_t most = MIN(PAGES_PER_CHECKPOINT, r->page_count_max / 4), marked = 0;
	int err = 0;

	for (uint32_t number = 0; number < g->bitmap_pages + g->sum_pages && !err; number++) {
		struct page *p;

		if (!page_is_on(w->chunk, number, w->column))
			continue;
		if (walk_stopped(r, &r->rebuild))
			return -ECANCELED;
		err = page_get(r, w->chunk, number, &p);
		if (err == -EBADMSG || err == -EIO) {
			err = r->error; /* lost before: said by whoever reads it */
			continue;
		}
		if (err)
			break;
		/* One that was never written has nothing to be kept. */
		if ((p->gen && !p->lost) || p->is_dirty) {
			page_mark_dirty(r, p);
			marked++;
		}
		page_put(r, p);
		if (marked >= most) {
			marked = 0;
			err = journal_checkpoint(r);
		}
	}
	return err;
}

/* Writers that had listed what they write before the column's homes changed have ended on return.
 */
static int wait_for_pages(struct raid *r)
{
	while (r->journal.checkpointing && !r->error && !BREAK(move_wait))
		co_cond_wait(&r->journal.done);
	return r->error;
}

static void wait_for_writers(struct raid *r, const struct work *w)
{
	unsigned group = w->column / w->chunk->geom.span;

	for (uint64_t row = 0; row < w->chunk->geom.rows && !BREAK(move_wait); row += ROWS_MAX) {
		struct cell_lock lock;

		cell_lock(r, &lock, w->chunk, row, MIN(ROWS_MAX, w->chunk->geom.rows - row), group);
		cell_unlock(r, &lock);
	}
	(void)wait_for_pages(r); /* after an error there is nothing to wait for */
}

/* Steps 2 to 4. */
static int copy_column(struct rebuild *rb)
{
	struct raid *r = rb->r;
	struct walk walk = {
	    .r = r,
	    .job = &r->rebuild,
	    .chunk = rb->work.chunk,
	    .end = rb->work.chunk->geom.rows,
	    .unit = copy_unit,
	    .passed = copy_passed,
	    .user = rb,
	};
	int err = wait_for_pages(r);

	/* Without its bitmap everything in the chunk counts. */
	if (!err && space_load(r, rb->work.chunk))
		log_warning("chunk %u: its bitmap is lost: all of it is rebuilt",
			    rb->work.chunk->number);
	if (!err && !BREAK(rebuild_pages))
		err = copy_pages(r, &rb->work);
	if (!err)
		err = walk_rows(&walk);
	/* It also flushes what the walk wrote: a crash after the table is written must not find it
	 * naming a slice whose copy was only in a cache. */
	if (!err)
		err = journal_checkpoint(r);
	return err ? err : work_possible(r, &rb->work) ? 0 : -ENODEV;
}

static int resync_column(struct rebuild *rb)
{
	struct raid *r = rb->r;
	struct column *col = work_to(&rb->work);
	int err = copy_column(rb);

	if (err)
		return err;
	co_mutex_lock(&r->table_lock);
	err = work_possible(r, &rb->work) ? 0 : -ENODEV;
	if (!err) {
		col->stale = false;
		err = health_table_write_locked(r);
		if (err)
			col->stale = true;
	}
	co_mutex_unlock(&r->table_lock);
	return err;
}

/* Step 1. */
static int move_begin(struct rebuild *rb)
{
	struct raid *r = rb->r;
	struct chunk *c = rb->work.chunk;
	unsigned target = (unsigned)rb->work.target;
	uint16_t slice;
	int err;

	co_mutex_lock(&r->table_lock);
	/* Things may have changed while we waited for the lock. */
	if (!member_here(r->t, target) || chunk_has_member(c, target))
		err = -ENODEV;
	else
		err = table_slice_get(r->t, target, &slice);
	if (!err) {
		c->move_to =
		    (struct column){.member = (uint16_t)target, .slice = slice, .stale = true};
		c->move_column = (int)rb->work.column;
		space_recount(r);
	}
	co_mutex_unlock(&r->table_lock);
	return err;
}

static void swap_homes(struct chunk *c, unsigned column)
{
	struct column tmp = c->columns[column];

	c->columns[column] = c->move_to;
	c->move_to = tmp;
}

void rebuild_home_lost(struct raid *r, unsigned member)
{
	for (unsigned i = 0; i < r->t->chunk_count; i++) {
		struct chunk *c = r->t->chunks[i];

		if (!c->move_switched || c->columns[c->move_column].member != member)
			continue;
		swap_homes(c, (unsigned)c->move_column);
		c->move_switched = false;
	}
}

/* Step 5. The table lock is held. */
static int move_switch(struct raid *r, const struct work *w)
{
	struct chunk *c = w->chunk;
	int err = r->error;

	if (!err && !work_possible(r, w))
		err = -ENODEV;
	if (err)
		return err;
	swap_homes(c, w->column);
	c->columns[w->column].stale = false;
	c->move_switched = true;
	err = health_table_write_locked(r);
	if (!c->move_switched) /* rebuild_home_lost: what was written in the end names the old home */
		return err ? err : -ENODEV;
	c->move_switched = false;
	if (err)
		swap_homes(c, w->column);
	return err;
}

static int move_column(struct rebuild *rb)
{
	struct raid *r = rb->r;
	struct chunk *c = rb->work.chunk;
	struct column given_up;
	int err = move_begin(rb);

	if (err)
		return err;
	err = copy_column(rb);
	co_mutex_lock(&r->table_lock);
	if (!err)
		err = move_switch(r, &rb->work);
	given_up = c->move_to;
	c->move_column = -1;
	co_mutex_unlock(&r->table_lock);
	/* A slice that somebody may still write to must not become part of another chunk. */
	wait_for_writers(r, &rb->work);
	co_mutex_lock(&r->table_lock);
	table_slice_put(r->t, given_up.member, given_up.slice);
	space_recount(r);
	co_mutex_unlock(&r->table_lock);
	return err;
}

/* ---- members that are done with ---- */

static int retire(struct raid *r, unsigned member)
{
	struct member *m = &r->t->members[member];
	enum member_state state = m->state;
	bool wipe, replacing[MEMBERS_MAX];
	int err;

	/* Records that it shares with one other member are on that one alone when it has gone: the journal must not
	 * need them any more. */
	m->leaving = true;
	err = BREAK(retire) ? 0 : journal_checkpoint(r);
	co_mutex_lock(&r->table_lock);
	if (err || r->error || !can_retire(r->t, member)) {
		m->leaving = false;
		co_mutex_unlock(&r->table_lock);
		return err ? err : r->error;
	}
	wipe = member_here(r->t, member);
	m->state = MEMBER_REMOVED;
	for (unsigned i = 0; i < r->t->member_count; i++) {
		replacing[i] = r->t->members[i].replaces == (int)member;
		if (replacing[i])
			r->t->members[i].replaces = -1;
	}
	err = health_table_write_locked(r);
	if (err) {
		m->state = state;
		m->leaving = false;
		for (unsigned i = 0; i < r->t->member_count; i++)
			if (replacing[i])
				r->t->members[i].replaces = (int)member;
	}
	co_mutex_unlock(&r->table_lock);
	if (err)
		return err;
	log_info("%s: member %u is replaced and out of service", m->hint, member);
	if (wipe && label_wipe(m->dev))
		log_warning(
		    "%s: its labels could not be wiped; they are known to be of a replaced member",
		    m->hint);
	return 0;
}

static int retire_all(struct raid *r)
{
	int err = 0;

	for (unsigned i = 0; i < r->t->member_count && !err; i++) {
		if (!can_retire(r->t, i))
			continue;
		err = retire(r, i);
		i = UINT32_MAX; /* who it replaced may be next */
	}
	return err;
}

static bool dev_is_left(const struct raid *r, unsigned member)
{
	const struct member *m = &r->t->members[member];

	return m->state == MEMBER_REMOVED && m->dev && m->dev->deadline_ns;
}

/* Closes devices of removed members, when every I/O that was begun before has ended or been given
 * up. */
static void close_removed(struct raid *r)
{
	struct dev *devs[MEMBERS_MAX] = {0};
	uint64_t until = loop_now_ns(r->loop);

	for (unsigned i = 0; i < r->t->member_count; i++) {
		if (!dev_is_left(r, i))
			continue;
		devs[i] = r->t->members[i].dev;
		until = MAX(until, loop_now_ns(r->loop) + devs[i]->deadline_ns + NS_PER_S);
	}
	while (!r->stopping && !r->abandoned && loop_now_ns(r->loop) < until)
		(void)co_cond_wait_until(&r->rebuild.ended,
					 until); /* why it ended is looked at above */
	if (r->stopping || r->abandoned)
		return; /* closing closes them */
	for (unsigned i = 0; i < r->t->member_count; i++) {
		if (!devs[i] || r->t->members[i].dev != devs[i])
			continue;
		r->t->members[i].dev = NULL;
		dev_close(devs[i]);
	}
}

/* ---- the job ---- */

static void leave_aside(struct rebuild *rb, int err)
{
	const struct work *w = &rb->work;

	rb->error = err;
	log_warning("rebuild: chunk %u column %u: %s: left aside", w->chunk->number, w->column,
		    strerror(-err));
	/* A target that went away is seen in the states; everything else is not tried again for
	 * now. */
	if (rb->failed_count < FAILED_MAX) {
		rb->failed[rb->failed_count].chunk = w->chunk->number;
		rb->failed[rb->failed_count].column = w->column;
		rb->failed_count++;
	}
}

static void rebuild_pass(struct rebuild *rb)
{
	struct raid *r = rb->r;
	struct raid_job_info *info = &r->rebuild.info;
	uint64_t left;

	while (!walk_stopped(r, &r->rebuild) && rb->failed_count < FAILED_MAX) {
		int err = retire_all(r);

		if (err || !rebuild_next(rb, &rb->work, &left))
			break;
		info->total_blocks = info->done_blocks + left;
		err = rb->work.target < 0 ? resync_column(rb) : move_column(rb);
		if (!err)
			rb->error = 0;
		else if (!walk_stopped(r, &r->rebuild))
			leave_aside(rb, err);
	}
}

static void rebuild_run(struct raid *r)
{
	struct rebuild *rb = mem_zalloc(sizeof(*rb));
	struct raid_job_info *info = &r->rebuild.info;
	bool removed = false;

	if (!rb) {
		walk_job_end(r, &r->rebuild, -ENOMEM);
		return;
	}
	rb->r = r;
	log_info("rebuild: begins");
	/* Each time round something has changed: a column was finished, or a member came or went.
	 */
	do {
		r->rebuild.again = false;
		rb->failed_count = 0;
		rebuild_pass(rb);
	} while (r->rebuild.again && rb->failed_count && !walk_stopped(r, &r->rebuild));
	if (!rb->error && rb->failed_count)
		rb->error = -EIO; /* logged above */
	if (!rb->error && rb->stuck)
		rb->error = -ENOSPC;
	if (r->error)
		rb->error = r->error;
	log_info("rebuild: %s: %llu blocks found wrong, %llu lost",
		 rb->error ? strerror(-rb->error) : "ends", (unsigned long long)info->found,
		 (unsigned long long)info->lost);
	for (unsigned i = 0; i < r->t->member_count; i++)
		removed |= dev_is_left(r, i);
	if (removed && !r->stopping && raid_background(r, close_removed))
		log_warning("devices of replaced members stay open until the volume is closed");
	walk_job_end(r, &r->rebuild, rb->error);
	mem_free(rb);
	scrub_resume(r);
}

int walk_rebuild_start(struct raid *r)
{
	if (r->rebuild.info.running)
		return -EALREADY;
	return walk_job_start(r, &r->rebuild, rebuild_run);
}

int raid_rebuild_wait(struct raid *r)
{
	while (r->rebuild.info.running)
		co_cond_wait(&r->rebuild.ended);
	return r->rebuild.info.last_error;
}
