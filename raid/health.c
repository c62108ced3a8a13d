// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Member states. Four different things happen to members, and are kept apart:
 *
 *   an error once     a write is tried again (io.h); what cannot be read is rebuilt from the others and written back;
 *                     either is counted, and the member stays
 *   gone, or a write  MISSING: everything on it is stale from now on; the table that says so is durable
 *   that fails        before anything is acknowledged that the member has missed (W5)
 *   hung              the deadline of an I/O: as gone, so that everything is read around it
 *   more than may be  the volume takes no more writes, and the table is left as it is: nothing is recorded that
 *   lost at once      would make the members that are left disbelieve those that are gone. What may be lost is for
 *                     the chunks to say, and for the journal: its records have tolerance + 1 copies, wherever
 *
 * A member is never taken out for a read error or a wrong checksum: what it still has may be needed.
 */
#include "walk.h"

static bool member_can_be_lost(struct raid *r, unsigned member)
{
	/* Members of several groups may go at once and leave every chunk readable, and records on none of those that stay. */
	return table_enough_without(r->t, 1ull << member) && (journal_can_spare(r, member) || BREAK(spare));
}

static void member_out(struct raid *r, unsigned member, const char *why)
{
	struct member *m = &r->t->members[member];

	rebuild_home_lost(r, member);
	if (!member_can_be_lost(r, member) && !BREAK(limit)) {
		if (!r->error) {
			log_error("%s: %s, and without it data would be lost: the volume takes no more writes "
				  "until it is back",
				  m->hint, why);
			r->error = -EIO;
		}
		return;
	}
	log_error("%s: %s: taken out of service", m->hint, why);
	m->state = MEMBER_MISSING;
	r->table_dirty = true;
	/* Records that it shared with others are on fewer members now: the journal should not need them for long. */
	r->journal.want_checkpoint = true;
	journal_kick(r);
	space_recount(r);
	health_reconcile(r);
}

void health_failed(struct raid *r, unsigned member, enum io_op op, int result)
{
	struct member *m = &r->t->members[member];

	if (!member_in_service(&r->t->members[member]))
		return;
	if (result == -ETIMEDOUT) {
		m->errors_hung++;
		member_out(r, member, "does not answer");
		/* Or it could not be spared. */
		if (member_in_service(m) && r->error)
			m->silent++;
	} else if (result == -ENODEV) {
		member_out(r, member, "has vanished");
	} else {
		m->errors_write++;
		member_out(r, member,
			   op == IO_FLUSH      ? "cannot be flushed"
			   : result == -EROFS ? "is read-only"
					      : "cannot be written");
	}
}

void health_written(struct raid *r, unsigned member, const struct io *io)
{
	if (io->result) {
		health_failed(r, member, IO_WRITE, io->result);
	} else {
		r->t->members[member].errors_write += io->errors;
		if (!io->fua)
			journal_member_written(r, member);
		else if (io->errors && journal_member_unflushed(r, member) && !BREAK(fua))
			/* It may have been the flush that failed, and the cache may be empty now. */
			health_failed(r, member, IO_FLUSH, -EIO);
	}
}

void health_read_error(struct raid *r, unsigned member, int result)
{
	if (!member_in_service(&r->t->members[member]))
		return;
	if (result == -ETIMEDOUT || result == -ENODEV || BREAK(eject))
		health_failed(r, member, IO_READ, result);
	else
		r->t->members[member].errors_read++;
}

void health_sum_error(struct raid *r, unsigned member)
{
	r->t->members[member].errors_sum += !BREAK(count);
}

/* A member that its labels cannot be written to: whether the table may be written without it. */
static bool lose_label(void *ctx, unsigned member, int result)
{
	struct raid *r = ctx;
	bool dirty = r->table_dirty;

	health_failed(r, member, IO_WRITE, result);
	r->table_dirty = dirty; /* the write that goes on has it in it */
	return r->t->members[member].state != MEMBER_ACTIVE;
}

int health_table_write_locked(struct raid *r)
{
	const struct label_owner owner = {.lose = lose_label, .ctx = r};
	int err = 0;

	assert(!r->read_only);
	do {
		r->table_dirty = false;
		r->table_writing = true;
		err = label_write_table(r->t, r->loop, &owner);
		r->table_writing = false;
	} while (!err && r->table_dirty);
	if (err && !r->error) {
		log_error("the volume table cannot be written: %s: the volume takes no more writes",
			  strerror(-err));
		r->error = err;
	}
	space_recount(r);
	health_reconcile(r);
	return err;
}

int health_table_sync(struct raid *r)
{
	int err = 0;

	/* What somebody else is writing counts when it is durable. */
	if (!r->table_dirty && !r->table_writing)
		return r->error;
	co_mutex_lock(&r->table_lock);
	if (r->table_dirty)
		err = health_table_write_locked(r);
	co_mutex_unlock(&r->table_lock);
	return err ? err : r->error;
}

void health_open(struct raid *r, struct dev **stale)
{
	for (unsigned i = 0; i < r->t->member_count; i++) {
		struct member *m = &r->t->members[i];

		if (m->state == MEMBER_ACTIVE && !m->dev) {
			log_warning("member %u (%s) is missing", i, m->hint);
			m->state = MEMBER_MISSING;
		} else if (m->state == MEMBER_MISSING && stale[i]) {
			log_info("%s: member %u is back: it gets what it missed", stale[i]->name, i);
			label_member_here(m, stale[i]);
			m->state = MEMBER_ACTIVE; /* its columns are stale since the vote */
		}
	}
}
