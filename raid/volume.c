// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The volume: start reading here.
 *
 * Opening: the members vote on the table (label.c); the journal of an unclean volume is replayed in memory and written
 * home (replay.c, journal.c); only then members that are absent become MISSING and members that have come back join, since
 * until then the table must say what the journal was written under; and with the table that says so a new epoch begins, in which no old
 * record counts. A crash anywhere before that last step finds the same table and the same journal again.
 *
 * Closing: jobs end at their next unit, everything is committed and written home, and the table is marked clean.
 */
#include "volume.h"

#define CELL_HASH_SIZE 1024u

/* ---- background ---- */

struct background {
	struct raid *r;
	void (*fn)(struct raid *r);
};

static void background_run(void *arg)
{
	struct background *b = arg;
	struct raid *r = b->r;

	b->fn(r);
	mem_free(b);
	r->background--;
	co_cond_wake_all(&r->background_done);
}

int raid_background(struct raid *r, void (*fn)(struct raid *r))
{
	struct background *b = mem_alloc(sizeof(*b));
	int err;

	if (!b)
		return -ENOMEM;
	*b = (struct background){.r = r, .fn = fn};
	r->background++;
	err = co_spawn(r->loop, background_run, b);
	if (err) {
		r->background--;
		mem_free(b);
	}
	return err;
}

static void background_stop(struct raid *r)
{
	r->stopping = true;
	walk_stop(r);
	while (r->background) {
		co_cond_wake_all(&r->journal.timer_kick);
		co_cond_wake_all(&r->journal.checkpoint_kick);
		co_cond_wake_all(&r->journal.done); /* nobody commits for those who wait any more */
		co_cond_wait(&r->background_done);
	}
	r->started = false;
}

/* ---- open ---- */

static int raid_init(struct raid *r)
{
	int err;

	co_cond_init(&r->background_done);
	co_cond_init(&r->rebuild.ended);
	co_cond_init(&r->scrub.ended);
	co_cond_init(&r->pace_changed);
	co_mutex_init(&r->table_lock);
	co_mutex_init(&r->rows_turn);
	co_cond_init(&r->rows_room);
	r->cell_hash_size = CELL_HASH_SIZE;
	r->cell_hash = mem_alloc(r->cell_hash_size * sizeof(*r->cell_hash));
	if (!r->cell_hash)
		return -ENOMEM;
	for (size_t i = 0; i < r->cell_hash_size; i++)
		list_init(&r->cell_hash[i]);
	err = pages_init(r);
	if (!err)
		err = images_init(r);
	if (!err)
		err = journal_init(r);
	return err;
}

/* Memory only; the devices stay. */
static void raid_free(struct raid *r)
{
	if (!r)
		return;
	if (r->t)
		space_exit(r);
	images_exit(r);
	journal_exit(r);
	pages_exit(r);
	mem_free(r->cell_hash);
	table_free(r->t);
	mem_free(r);
}

/* The journal's content goes home as with any checkpoint. */
static int replay_write_home(struct raid *r)
{
	struct journal *j = &r->journal;
	int err;

	j->checkpointing = true;
	j->captured_record = j->replay_seq;
	pages_capture(r);
	err = journal_write_home(r, UINT64_MAX);
	pages_release(r);
	j->checkpointing = false;
	return err;
}

static int new_epoch(struct raid *r, struct dev **stale)
{
	int err;

	health_open(r, stale);
	if (!BREAK(epoch)) {
		r->t->epoch = MAX(r->t->epoch, r->t->gen) + 1;
		/* A secret: nobody can make a block of a file that replay would take for a record. */
		r->t->salt = BREAK(salt) ? 0 : loop_random(r->loop);
	}
	r->t->flags &= ~TABLE_RECORDS;
	if (!BREAK(clean))
		r->t->flags &= ~TABLE_CLEAN;
	err = health_table_write_locked(r);
	if (!err)
		journal_reset(r);
	return err;
}

static int raid_recover(struct raid *r, struct dev **stale)
{
	bool clean = r->t->flags & TABLE_CLEAN;
	int err = 0;

	if (!clean) {
		/* In a read-only volume for good: its pages stay as on the members but for what is in memory. */
		r->replaying = true;
		/*
		 * W6: of what a daemon left in the caches that was killed, what replay reads must survive a power cut in
		 * the middle of it: else a page's newest place is lost beside the one that was just being written.
		 */
		if (!r->read_only) {
			for (unsigned m = 0; m < r->t->member_count; m++)
				journal_member_written(r, m);
			if (!BREAK(flush_recover))
				err = journal_flush_before_replay(r);
		}
		if (!err)
			err = journal_replay(r);
		if (!err && !r->read_only && BREAK(replay_home))
			err = new_epoch(r, stale);
		/* Home before the new epoch begins: after a crash between the two all of it is replayed again. */
		if (!err && !r->read_only)
			err = replay_write_home(r);
		r->replaying = r->read_only;
	}
	if (!err && !r->read_only)
		err = new_epoch(r, stale);
	if (!err)
		err = space_init(r, clean);
	return err;
}

static int features_check(const struct label_vote *vote, unsigned count, bool read_only)
{
	for (unsigned i = 0; i < count; i++) {
		uint64_t unknown = vote->verdicts[i].label.ro_compat & ~FEATURES_RO_COMPAT;

		if (vote->verdicts[i].what != VERDICT_USED || !unknown || read_only)
			continue;
		log_error("unknown feature bits %llx: the volume can only be opened read-only",
			  (unsigned long long)unknown);
		return -EROFS;
	}
	return 0;
}

/*
 * A member that cannot be written is good for what it still holds, as long as the journal is read; its first write then takes
 * it out of service. Where that would be too much nothing is begun.
 */
static int read_only_check(struct raid *r)
{
	uint64_t read_only = 0;

	for (unsigned i = 0; i < r->t->member_count; i++) {
		struct member *m = &r->t->members[i];

		if (!member_in_service(m) || !m->dev->read_only)
			continue;
		log_warning("%s: member %u is read-only: to be taken out of service", m->dev->name, i);
		read_only |= 1ull << i;
	}
	if (table_enough_without(r->t, read_only))
		return 0;
	log_error("too many members are read-only: the volume can only be opened read-only");
	return -EROFS;
}

/* Those that do not take part are closed; sets *stale by member index. */
static void devices_sort(struct raid *r, struct dev **devs, unsigned count, const struct label_vote *vote,
			 struct dev **stale, struct dev **unused, unsigned *ret_unused)
{
	*ret_unused = 0;
	for (unsigned i = 0; i < count; i++) {
		const struct label_verdict *v = &vote->verdicts[i];

		if (v->what == VERDICT_USED)
			continue;
		if (v->what == VERDICT_STALE && !r->read_only && !devs[i]->read_only)
			stale[v->label.member_index] = devs[i];
		else
			unused[(*ret_unused)++] = devs[i];
	}
}

int raid_open(struct loop *loop, struct dev **devs, unsigned count, const struct uuid *fs,
	      const struct raid_options *options, struct raid **ret)
{
	struct dev *stale[MEMBERS_MAX] = {0}, *unused[MEMBERS_MAX];
	struct label_vote *vote = mem_zalloc(sizeof(*vote));
	struct raid *r = mem_zalloc(sizeof(*r));
	unsigned unused_count = 0;
	int err = vote && r ? 0 : -ENOMEM;

	if (!err)
		err = label_vote(loop, devs, count, fs, vote);
	if (!err) {
		r->loop = loop;
		r->options = *options;
		r->read_only = options->flags & (RAID_OPEN_READ_ONLY | RAID_OPEN_CHECK);
		r->t = vote->table;
		err = features_check(vote, count, r->read_only);
	} else if (vote) {
		table_free(vote->table);
	}
	if (!err && !table_enough(r->t, true))
		err = -ENODEV;
	if (!err && !r->read_only)
		err = read_only_check(r);
	if (!err)
		err = raid_init(r);
	if (!err) {
		devices_sort(r, devs, count, vote, stale, unused, &unused_count);
		err = raid_recover(r, stale);
	}
	mem_free(vote);
	if (err) {
		raid_free(r);
		return err;
	}
	for (unsigned i = 0; i < unused_count; i++)
		dev_close(unused[i]);
	*ret = r;
	return 0;
}

void raid_set_hooks(struct raid *r, const struct raid_hooks *hooks, void *ctx)
{
	r->hooks = *hooks;
	r->hooks_ctx = ctx;
}

int raid_start(struct raid *r)
{
	int err;

	if (r->read_only || r->started)
		return 0;
	err = journal_start(r);
	if (err)
		return err;
	r->started = true;
	health_reconcile(r);
	return 0;
}

/* ---- close ---- */

static void devices_close(struct raid *r)
{
	for (unsigned i = 0; i < r->t->member_count; i++) {
		dev_close(r->t->members[i].dev);
		r->t->members[i].dev = NULL;
	}
}

static int close_clean(struct raid *r)
{
	int err = journal_checkpoint(r);

	if (err)
		return err;
	for (unsigned i = 0; i < r->t->chunk_count; i++)
		r->t->chunks[i]->fill_hint = space_fill_hint(r->t->chunks[i]);
	r->t->flags |= TABLE_CLEAN;
	return health_table_write_locked(r);
}

int raid_close(struct raid *r)
{
	int err;

	background_stop(r);
	err = r->read_only ? 0 : r->error ? r->error : close_clean(r);
	devices_close(r);
	raid_free(r);
	return err;
}

void raid_abandon(struct raid *r)
{
	r->abandoned = true;
	if (!r->error)
		r->error = -EIO;
	co_cond_wake_all(&r->journal.done);
	background_stop(r);
	devices_close(r);
	raid_free(r);
}

/* ---- info ---- */

void raid_info(const struct raid *r, struct raid_info *ret)
{
	const struct table *t = r->t;
	int redundancy = (int)t->tolerance;
	uint32_t slices = 0;

	memset(ret, 0, sizeof(*ret));
	ret->fs = t->fs;
	memcpy(ret->name, t->name, sizeof(ret->name));
	ret->level = t->level;
	ret->tolerance = t->tolerance;
	ret->groups = t->groups;
	ret->member_count = t->member_count;
	ret->chunk_count = t->chunk_count;
	ret->strip_bytes = (uint64_t)t->strip_blocks * BLOCK_BYTES;
	ret->slice_bytes = t->slice_bytes;
	ret->journal_bytes = t->journal_bytes;
	ret->gen = t->gen;
	ret->epoch = t->epoch;
	ret->journal_seq = r->journal.record_seq;
	ret->journal_tail = r->journal.tail;
	ret->commit_ns_max = journal_commit_ns(r);
	for (unsigned i = 0; i < t->chunk_count; i++) {
		int left = table_chunk_spare(t, t->chunks[i]);

		if (t->chunks[i]->pages_lost && !ret->chunks_damaged++)
			ret->chunk_damaged = t->chunks[i]->number;
		ret->chunks_below_target += left < (int)t->tolerance;
		redundancy = MIN(redundancy, left);
	}
	for (unsigned i = 0; i < t->member_count; i++)
		if (t->members[i].state != MEMBER_REMOVED)
			slices = MAX(slices, t->members[i].slice_count - t->members[i].slices_free);
	ret->member_bytes_min = table_member_bytes_min(t, slices);
	ret->redundancy = (unsigned)MAX(redundancy, 0);
	ret->rebuild = r->rebuild.info;
	ret->scrub = r->scrub.info;
	ret->scrub.last_end_s = t->scrub_last_end_s;
	ret->rebuild_priority = table_priority(t->rebuild_priority);
	ret->scrub_priority = table_priority(t->scrub_priority);
	ret->error = r->error;
	ret->read_only = r->read_only;
	if (r->error || redundancy < 0)
		ret->state = RAID_FAILED;
	else if (r->rebuild.info.running)
		ret->state = RAID_REBUILDING;
	else if (ret->chunks_below_target)
		ret->state = RAID_DEGRADED;
	else
		ret->state = RAID_OPTIMAL;
}

int raid_member_info(const struct raid *r, unsigned index, struct raid_member_info *ret)
{
	const struct member *m;

	if (index >= r->t->member_count)
		return -ENOENT;
	m = &r->t->members[index];
	memset(ret, 0, sizeof(*ret));
	ret->uuid = m->uuid;
	ret->present = member_in_service(m);
	ret->read_only = m->dev && m->dev->read_only;
	memcpy(ret->path, m->hint, sizeof(m->hint));
	if (m->dev)
		memcpy(ret->path, m->dev->name, sizeof(ret->path));
	memcpy(ret->serial, m->serial, sizeof(m->serial));
	ret->state = m->state;
	ret->size_bytes = m->size_bytes;
	ret->slices = m->slice_count;
	ret->slices_free = m->slices_free;
	ret->errors_read = m->errors_read;
	ret->errors_write = m->errors_write;
	ret->errors_sum = m->errors_sum;
	ret->errors_lost = m->errors_lost;
	ret->errors_hung = m->errors_hung;
	ret->replaces = m->replaces;
	for (unsigned i = 0; i < r->t->chunk_count; i++) {
		const struct chunk *c = r->t->chunks[i];

		for (unsigned k = 0; k < c->geom.columns; k++) {
			if (c->columns[k].member != index)
				continue;
			ret->columns++;
			ret->columns_stale += c->columns[k].stale || m->state != MEMBER_ACTIVE;
		}
	}
	return 0;
}
