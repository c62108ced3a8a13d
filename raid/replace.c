// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What an administrator does to members, and the reconciler that acts on the states that follow.
 *
 * fail     the member is FAILED, for good. Its device stays open (and locked) until the volume is closed or the member
 *          is replaced, so that nobody makes something else of it in between.
 * replace  another device becomes a member that takes over from it. The old one goes on serving, if it can, until
 *          nothing lies on it any more (rebuild.c).
 *
 * The reconciler is called whenever a state may have changed and looks at the states alone, never
 * at what happened. It starts a rebuild where there is something to do, and tells one that runs to
 * look again.
 */
#include <inttypes.h>

#include "walk.h"

#define FAIL_TRIES_MAX 3 /* checkpoints before a member is said to be needed by the journal */

void health_reconcile(struct raid *r)
{
	bool told = r->rebuild.info.last_error == -ENOMEM;

	if (!r->started || r->stopping || r->abandoned || r->read_only || r->error)
		return;
	if (r->rebuild.info.running)
		r->rebuild.again = true;
	else if (!rebuild_wanted(r))
		scrub_resume(r);
	else if (walk_rebuild_start(r) && !told)
		log_error("no memory to begin a rebuild: it is tried again");
}

/*
 * The index was right when the caller asked. By the time it is our turn the member may have been removed, and its index
 * given to another, whom nobody meant.
 */
static bool is_still(const struct raid *r, unsigned index, const struct uuid *uuid)
{
	return uuid_equal(&r->t->members[index].uuid, uuid);
}

/* ---- fail ---- */

static int fail_locked(struct raid *r, unsigned index)
{
	struct member *m;

	if (index >= r->t->member_count || r->t->members[index].state == MEMBER_REMOVED)
		return -ENOENT;
	m = &r->t->members[index];
	if (m->state == MEMBER_FAILED)
		return 0;
	if (!table_enough_without(r->t, 1ull << index) || !journal_can_spare(r, index)) {
		log_error("%s: not taken out of service: without it data would be lost; rebuild or "
			  "replace the "
			  "other members first",
			  m->hint);
		return -EBUSY;
	}
	m->state = MEMBER_FAILED;
	log_warning("%s: taken out of service as asked", m->hint);
	r->table_dirty = true;
	space_recount(r);
	return health_table_write_locked(r);
}

int raid_fail(struct raid *r, unsigned index)
{
	struct uuid uuid;
	int err;

	if (r->read_only)
		return -EROFS;
	if (index >= r->t->member_count)
		return -ENOENT;
	uuid = r->t->members[index].uuid;
	/* Records whose other copies went with other members: home first. */
	for (unsigned n = 0; n < FAIL_TRIES_MAX && table_enough_without(r->t, 1ull << index) && !journal_can_spare(r, index); n++) {
		err = journal_checkpoint(r);
		if (err)
			return err;
	}
	co_mutex_lock(&r->table_lock);
	err = r->error;
	if (!err)
		err = is_still(r, index, &uuid) ? fail_locked(r, index) : -ENOENT;
	co_mutex_unlock(&r->table_lock);
	health_reconcile(r);
	return err;
}

/* ---- replace ---- */

/* A member cannot take over from itself or another; one that is out of service for good may come
 * back as a new one. */
static int check_stranger(struct raid *r, struct dev *dev)
{
	struct label label;
	int err = label_read(dev, &label);

	if (err == -ENODATA || err == -EBADMSG || err == -ENOTSUP)
		return 0;
	if (err) {
		log_error("%s: cannot be read: %s", dev->name, strerror(-err));
		return err;
	}
	for (unsigned i = 0; i < r->t->member_count && uuid_equal(&label.fs, &r->t->fs); i++) {
		const struct member *m = &r->t->members[i];

		if (!uuid_equal(&m->uuid, &label.member) || m->state == MEMBER_FAILED ||
		    m->state == MEMBER_REMOVED)
			continue;
		log_error("%s: is already member %u of this volume", dev->name, i);
		err = -EEXIST;
	}
	label_clear(&label);
	return err;
}

/* Slices that must move: those of the member, and of whom it was taking over from when it went. */
static uint32_t slices_needed(const struct table *t, unsigned index)
{
	uint32_t needed = 0;

	for (unsigned hops = 0; hops < MEMBERS_MAX; hops++) {
		needed += t->members[index].slice_count - t->members[index].slices_free;
		if (t->members[index].replaces < 0)
			break;
		index = (unsigned)t->members[index].replaces;
	}
	return needed;
}

static int add_member(struct raid *r, unsigned index, struct dev *dev, unsigned *ret)
{
	struct table *t = r->t;
	uint32_t needed = slices_needed(t, index);
	struct uuid uuid;
	uint64_t random[2] = {loop_random(r->loop), loop_random(r->loop)};
	int err;

	memcpy(&uuid, random, sizeof(uuid));
	uuid.b[6] = (uuid.b[6] & 0x0f) | 0x40; /* version 4, variant 1 */
	uuid.b[8] = (uuid.b[8] & 0x3f) | 0x80;
	err = table_member_add(t, &uuid, dev->size_bytes,
			       MAX(t->members[index].slice_count, needed), ret);
	/* A smaller one will do if all that is there fits. */
	if (err == -ENOSPC)
		err = table_member_add(t, &uuid, dev->size_bytes, MAX(needed, 1u), ret);
	if (err == -ENOSPC)
		log_error("%s: too small: got %" PRIu64 " bytes, needed %" PRIu64, dev->name,
			  dev->size_bytes, table_member_bytes_min(t, MAX(needed, 1u)));
	else if (err == -E2BIG)
		log_error("%s: the volume has %u members, more are not possible", dev->name, MEMBERS_MAX);
	return err;
}

/* The table was not written to the new member: it never was one. */
static void forget_member(struct raid *r, unsigned index)
{
	struct member *m = &r->t->members[index];

	m->state = MEMBER_REMOVED;
	m->replaces = -1;
	m->dev = NULL;
	space_recount(r);
	if (!r->error)
		(void)health_table_write_locked(r); /* an error stays in r->error */
}

static int replace_check(struct raid *r, unsigned index, struct dev *dev)
{
	const struct table *t = r->t;

	if (index >= t->member_count || t->members[index].state == MEMBER_REMOVED)
		return -ENOENT;
	if (dev->read_only) {
		log_error("%s: is read-only", dev->name);
		return -EROFS;
	}
	for (unsigned i = 0; i < t->member_count; i++) {
		const struct member *m = &t->members[i];

		if (m->replaces != (int)index || !member_in_service(m))
			continue;
		log_error("%s: %s is taking over from it already", t->members[index].hint, m->hint);
		return -EBUSY;
	}
	return check_stranger(r, dev);
}

static int replace_locked(struct raid *r, unsigned index, struct dev *dev)
{
	unsigned added;
	struct member *m;
	int err = replace_check(r, index, dev);

	if (err)
		return err;
	err = add_member(r, index, dev, &added);
	if (err)
		return err;
	journal_ring_new(r, added);
	m = &r->t->members[added];
	m->state = MEMBER_MISSING; /* nobody writes to it yet */
	/* An older label of whatever volume, in a place that is not written at once, would be
	 * believed. */
	err = label_wipe(dev);
	if (err)
		log_error("%s: cannot be written: %s", dev->name, strerror(-err));
	if (!err)
		err = r->error;
	if (!err) {
		label_member_here(m, dev);
		m->replaces = (int)index;
		m->state = MEMBER_ACTIVE;
		/* Twice: so all places of its label are valid, as everybody's are. */
		for (unsigned n = 0; n < LABEL_PLACES && !err; n++)
			err = health_table_write_locked(r);
		if (!err && !member_in_service(m))
			err = -EIO;
	}
	if (err) {
		forget_member(r, added);
		return err;
	}
	log_info("%s: member %u, takes over from member %u (%s)", dev->name, added, index,
		 r->t->members[index].hint);
	space_recount(r);
	return 0;
}

int raid_replace(struct raid *r, unsigned index, struct dev *dev)
{
	struct uuid uuid;
	int err;

	if (r->read_only)
		return -EROFS;
	if (index >= r->t->member_count)
		return -ENOENT;
	uuid = r->t->members[index].uuid;
	/* It may get the index of one that was removed: no record that a crash would replay may name that. */
	err = r->t->member_count == MEMBERS_MAX ? journal_checkpoint(r) : 0;
	co_mutex_lock(&r->table_lock);
	if (!err)
		err = r->error;
	if (!err)
		err = is_still(r, index, &uuid) ? replace_locked(r, index, dev) : -ENOENT;
	co_mutex_unlock(&r->table_lock);
	health_reconcile(r);
	return err;
}
