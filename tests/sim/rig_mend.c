/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Mending: members replaced, rebuilt and scrubbed until all is as it should be, which is checked, with what
 * was counted against whom.
 */
#include "rig_private.h"
#include <stdio.h>

#define MEND_TRIES_MAX 6

static struct slot *slot_by_name(struct rig *g, const char *name)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (!strcmp(simdev_name(g->slots[i].dev), name))
			return &g->slots[i];
	}
	return NULL;
}

/* Index in the volume of the member on this drive; -1: none. */
static int member_index(struct rig *g, const struct slot *s)
{
	struct raid_info info;

	raid_info(g->raid, &info);
	for (unsigned i = 0; i < info.member_count; i++) {
		struct raid_member_info m;

		if (raid_member_info(g->raid, i, &m) || m.state == MEMBER_REMOVED)
			continue;
		if (slot_by_name(g, m.path) == s)
			return (int)i;
	}
	return -1;
}

/* Out of service: for good, or because it did not do what it was asked. */
static bool slot_out(struct rig *g, const struct slot *s)
{
	int index = member_index(g, s);
	struct raid_member_info m;

	return index >= 0 && !raid_member_info(g->raid, (unsigned)index, &m) &&
	       (m.state == MEMBER_FAILED || m.state == MEMBER_MISSING);
}

/* Whether somebody is taking over from it, since before a crash perhaps. */
static bool slot_being_replaced(struct rig *g, const struct slot *s)
{
	int index = member_index(g, s);
	struct raid_member_info m;
	struct raid_info info;

	raid_info(g->raid, &info);
	for (unsigned i = 0; i < info.member_count; i++) {
		if (!raid_member_info(g->raid, i, &m) && m.state == MEMBER_ACTIVE && m.present &&
		    m.replaces == index)
			return true;
	}
	return false;
}

/*
 * A blank drive takes the place of s, which is no member from now on. 0 as well if it ceased to be one by itself: the
 * blank one then stays a stranger.
 */
static int replace_slot(struct rig *g, struct slot *s)
{
	int index = member_index(g, s);
	struct slot *blank;
	struct dev *dev;
	int err;

	rig_must(g, index >= 0, "%s is no member", simdev_name(s->dev));
	blank = rig_slot_add(g, s->size_bytes);
	dev = rig_slot_open(g, blank);
	err = raid_replace(g->raid, (unsigned)index, dev);
	world_tell(g->world, "replace %s by %s: %d", simdev_name(s->dev), simdev_name(blank->dev),
		  err);
	if (err) {
		dev_close(dev);
		/* While it waited for its turn a rebuild found nothing on the old one, and retired it. */
		if (err == -ENOENT && member_index(g, s) < 0)
			return 0;
		/* After a crash the volume may or may not know it. */
		if (!world_crashed(g->world))
			rig_fail(g, "raid_replace of %s: %s", simdev_name(s->dev), strerror(-err));
	}
	blank->in = true;
	blank->suspect = true;
	blank->replaces = (int)(s - g->slots);
	g->stats.rebuilds++;
	return err;
}

/* All that the volume has counted against the member on this drive. */
static uint64_t slot_errors(struct rig *g, const struct slot *s)
{
	int index = member_index(g, s);
	struct raid_member_info m;

	if (index < 0 || raid_member_info(g->raid, (unsigned)index, &m))
		return 0;
	return m.errors_read + m.errors_write + m.errors_sum + m.errors_lost + m.errors_hung;
}

/*
 * Who is a member now, as the volume says. Drives that were replaced are strangers from here on.
 */
static void slots_update(struct rig *g, bool whole)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];
		int index = member_index(g, s);

		if (index < 0) {
			s->in = s->suspect = s->damaged = s->must_count = false;
			continue;
		}
		s->in = true;
		if (whole && !s->away) {
			s->suspect = s->damaged = false;
			s->replaces = -1;
		}
	}
}

void rig_members_update(struct rig *g)
{
	slots_update(g, false);
	/* What was counted and not yet in the table is forgotten in a crash. */
	for (unsigned i = 0; i < g->slot_count; i++)
		g->slots[i].errors = MIN(g->slots[i].errors, slot_errors(g, &g->slots[i]));
}

static bool any_damaged(const struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (g->slots[i].damaged)
			return true;
	}
	return false;
}

static int mend_error(struct rig *g, int err, const char *what)
{
	if (err && !rig_excused(g))
		rig_fail(g, "%s: %s", what, strerror(-err));
	return err;
}

static bool slot_wants_replacing(struct rig *g, const struct slot *s)
{
	return s->in && member_index(g, s) >= 0 && (s->away || s->shrunk || slot_out(g, s)) &&
	       !slot_being_replaced(g, s);
}

static bool any_out(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (slot_wants_replacing(g, &g->slots[i]))
			return true;
	}
	return false;
}

static int replace_all(struct rig *g)
{
	int err = 0;

	for (unsigned i = 0, n = g->slot_count; i < n && !err; i++) {
		if (slot_wants_replacing(g, &g->slots[i]))
			err = replace_slot(g, &g->slots[i]);
	}
	return err;
}

static const char *errors_text(struct rig *g, const struct slot *s)
{
	static char text[160];
	struct raid_member_info m;

	if (raid_member_info(g->raid, (unsigned)member_index(g, s), &m))
		return "?";
	snprintf(text, sizeof(text), "read %llu, write %llu, sum %llu, lost %llu, hung %llu",
		 (unsigned long long)m.errors_read, (unsigned long long)m.errors_write,
		 (unsigned long long)m.errors_sum, (unsigned long long)m.errors_lost,
		 (unsigned long long)m.errors_hung);
	return text;
}

/* The guilty were counted, and nobody else. */
static void check_counts(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];
		uint64_t errors = MAX(slot_errors(g, s), s->errors_seen);

		if (!s->in)
			continue;
		rig_must(g, s->suspect || errors <= s->errors,
			 "%s is sound, and %llu errors were counted against it: %s", simdev_name(s->dev),
			 (unsigned long long)(errors - s->errors), errors_text(g, s));
		rig_must(g,
			 !s->must_count || s->opening != g->openings ||
			     simdev_errors_given(s->dev) == s->hits || errors > s->errors,
			 "%s failed %llu times, and nothing was counted against it",
			 simdev_name(s->dev),
			 (unsigned long long)(simdev_errors_given(s->dev) - s->hits));
		s->must_count = false;
		s->errors = errors;
	}
}

int rig_mend(struct rig *g)
{
	struct raid_job_info job;
	struct raid_info info;
	int err = 0;

	rig_say(g, "mending");
	rig_faults_end(g);
	for (unsigned i = 0; i < g->slot_count; i++)
		g->slots[i].errors_seen = slot_errors(g, &g->slots[i]);
	/* What was under way when the faults ended may still take a member out. */
	for (unsigned tries = 0; !err && tries < MEND_TRIES_MAX; tries++) {
		if (tries && !any_out(g))
			break;
		err = replace_all(g);
		if (!err)
			err = mend_error(g, raid_rebuild_wait(g->raid), "raid_rebuild_wait");
	}
	if (err)
		return err;
	raid_info(g->raid, &info);
	rig_must(g, info.chunks_below_target == 0, "%llu chunks below target after the rebuild",
		 (unsigned long long)info.chunks_below_target);
	/*
	 * Damage is not mended by a rebuild. All else is, and must be: a scrub that went over it
	 * each time would hide a member that nobody knew to be stale (W5).
	 */
	if (any_damaged(g) || rng_chance(&g->rng, 1, 4)) {
		bool damaged = any_damaged(g);

		err = rig_scrub(g, &job);
		if (err)
			return err;
		rig_must(g, job.lost == 0, "scrub lost %llu blocks", (unsigned long long)job.lost);
		rig_must(g, damaged || !job.found, "scrub found %llu though nothing was damaged",
			 (unsigned long long)job.found);
	}
	raid_info(g->raid, &info);
	rig_must(g, info.state == RAID_OPTIMAL,
		 "not optimal after mending: state %d, redundancy %u", info.state, info.redundancy);
	check_counts(g);
	slots_update(g, true);
	g->slow = false;
	for (unsigned i = 0; i < g->slot_count; i++)
		rig_must(g, !g->slots[i].in || !g->slots[i].suspect, "%s was not mended",
			 simdev_name(g->slots[i].dev));
	return 0;
}

int rig_replace_any(struct rig *g, struct rng *r, bool fail_first)
{
	struct slot *s = rig_budget(g) ? rig_sound_slot(g, r) : NULL;
	int err;

	if (!s)
		return 0;
	s->suspect = true;
	if (fail_first) {
		err = mend_error(g, raid_fail(g->raid, (unsigned)member_index(g, s)), "raid_fail");
		if (err)
			return err;
	}
	return replace_slot(g, s);
}

static int scrub_once(struct rig *g, struct raid_job_info *ret)
{
	struct raid_info info;
	int err = raid_scrub_start(g->raid);

	g->scrub_partial = true; /* until it has come to its end: what it has passed may be damaged meanwhile */
	if (err != -EALREADY && mend_error(g, err, "raid_scrub_start"))
		return err;
	err = mend_error(g, raid_scrub_wait(g->raid), "raid_scrub_wait");
	if (err)
		return err;
	g->scrub_partial = false;
	raid_info(g->raid, &info);
	*ret = info.scrub;
	g->stats.scrubs++;
	world_tell(g->world, "scrub: %llu found, %llu repaired, %llu lost",
		  (unsigned long long)ret->found, (unsigned long long)ret->repaired,
		  (unsigned long long)ret->lost);
	return 0;
}

int rig_set_priority(struct rig *g)
{
	static const unsigned named[] = {0, 50, RAID_PRIORITY_MAX};
	struct rng *r = &g->priority_rng;
	enum raid_job job = rng_chance(r, 1, 4) ? RAID_JOB_SCRUB : RAID_JOB_REBUILD;
	unsigned value = rng_chance(r, 1, 2) ? named[rng_below(r, ARRAY_SIZE(named))]
					     : (unsigned)rng_range(r, 0, RAID_PRIORITY_MAX);
	int err;

	if (!rng_chance(r, 1, 2))
		return 0;
	g->priority[job].tried = value;
	err = mend_error(g, raid_set_priority(g->raid, job, value), "raid_set_priority");
	world_say(g->world, "priority of %s %u: %d", job == RAID_JOB_SCRUB ? "scrub" : "rebuild",
		  value, err);
	if (!err)
		g->priority[job].acked = value;
	return err;
}

int rig_scrub_begin(struct rig *g)
{
	int err = raid_scrub_start(g->raid);

	g->scrub_partial = true;
	if (err == -EALREADY || err == -EBUSY)
		return 0;
	return mend_error(g, err, "raid_scrub_start");
}

int rig_scrub(struct rig *g, struct raid_job_info *ret)
{
	struct raid_job_info first = {0};

	if (g->scrub_partial) {
		int err = scrub_once(g, &first);

		if (err)
			return err;
	}
	return scrub_once(g, ret);
}

static void check_line(void *arg, const char *text)
{
	struct rig *g = arg;

	log_error("check: %s", text);
	(void)g;
}

int rig_check(struct rig *g)
{
	int64_t problems = raid_check(g->raid, check_line, g);

	if (problems > 0 && any_damaged(g))
		problems = 0; /* it is right: there are */
	if (world_crashed(g->world))
		return -ENODEV;
	if (problems < 0 && rig_excused(g))
		return (int)problems;
	rig_must(g, problems >= 0, "raid_check: %s", strerror((int)-problems));
	rig_must(g, problems == 0, "raid_check: %lld problems", (long long)problems);
	return 0;
}
