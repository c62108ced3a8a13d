/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Rounds.
 *
 * A round works until the crash comes or the work is done, and then either closes cleanly or is cut
 * off. Meanwhile the driver meddles: scrubs, replaces, pulls members, arms faults. Coming back may
 * be crashed again and again; nothing goes on before what came back has been judged.
 */
#include "round.h"

#define POINTS_START	   600 /* of a round, before one was seen */
#define LEFT_ALONE_NS	   (10 * NS_PER_S) /* after the work, at most */
#define MEND_POINTS	   400
#define REPLAY_CRASHES_MAX 4
#define BEYOND_OPENINGS	   2

static void must_not_crash(struct round *r, int err)
{
	if (err)
		rig_fail(r->rig, "crashed without being asked to");
}

/* From whatever state the members are in, through as many crashes as come. */
static void come_back(struct round *r)
{
	struct rig *g = r->rig;

	for (unsigned tries = 0;; tries++) {
		int err;

		if (tries < REPLAY_CRASHES_MAX && rng_chance(&g->rng, 1, 4))
			rig_crash_soon(g, r->ops->replay_points);
		rig_faults_soon(g);
		rig_aim_fire(g, g->after_crash ? STATE_REPLAYING : STATE_MOUNTING);
		err = r->ops->come_back(r->arg);
		if (!err && !world_crashed(g->world)) {
			rig_crash_off(g);
			return;
		}
		g->stats.replay_crashes++;
		rig_bury(g);
		rig_lose(g, 1);
	}
}

static int meddle_once(struct rig *g)
{
	struct rng r;
	bool skip = !rig_turn(g, SKIP_MEDDLE, &r);
	unsigned what = (unsigned)rng_below(&r, 9);

	if (skip)
		return 0;
	if (what < 5)
		world_tell(g->world, "meddle %u (m%u)", what, g->turns[SKIP_MEDDLE] - 1);
	switch (what) {
	case 0:
		return rig_scrub_begin(g);
	case 1:
		return rig_replace_any(g, &r, false);
	case 2:
		return rig_replace_any(g, &r, true);
	case 3:
		if (rig_pull(g, &r) && rng_chance(&r, 1, 2)) /* or there was none to spare */
			(void)rig_pull(g, &r);
		return 0;
	case 4:
		return rig_mend(g);
	default:
		return 0;
	}
}

/* What happens besides the work; an error is a crash. */
static int meddle(struct round *r)
{
	struct rig *g = r->rig;
	int err;

	if (rig_aim_reach(g))
		rig_aim_fire(g, g->aim.state);
	rig_faults(g);
	co_sleep_ns(rng_below(&g->rng, r->ops->meddle_ns));
	if (world_crashed(g->world))
		return -ENODEV;
	err = meddle_once(g);
	if (!err)
		rig_faults_soon(g); /* while rebuilding and scrubbing */
	if (!err)
		err = rig_set_priority(g);
	return err;
}

static void one_round(struct round *r)
{
	struct rig *g = r->rig;
	uint64_t before = world_points(g->world, POINT_CHANGES);
	bool alone, shut = (rig_aims_at(g, STATE_UNMOUNTING) || rig_aims_at(g, STATE_MOUNTING)) && rng_chance(&g->fault_rng, 3, 4);

	g->stats.rounds++;
	/* Left alone after the work, for what time makes a promise of; else crashed in it, mostly. */
	alone = rng_chance(&g->rng, 1, 5);
	if (alone || shut)
		rig_crash_off(g);
	else
		rig_crash_soon(g, r->points * 5 / 4);
	rig_say(g, "working");
	g->was_full = false;
	r->ops->work(r->arg);
	(void)meddle(r); /* an error is a crash, and that is seen below */
	rig_join(g);
	r->points = world_points(g->world, POINT_CHANGES) - before;
	if (!world_crashed(g->world) && (rng_chance(&g->rng, 1, 3) || shut)) {
		/* Nothing is under way, and still a crash may come in the end of it. */
		rig_faults_soon(g);
		if (rig_aims_at(g, STATE_UNMOUNTING))
			(void)rig_scrub_begin(g); /* reads */
		rig_aim_fire(g, STATE_UNMOUNTING);
		if (!r->ops->close(r->arg)) {
			rig_crash_off(g);
			g->stats.remounts++;
			r->ops->closed(r->arg);
			if (rng_chance(&g->rng, 1, 3))
				rig_damage(g);
			rig_return(g);
			come_back(r);
			return;
		}
	}
	if (alone && !world_crashed(g->world))
		co_sleep_ns(rng_below(&g->rng, LEFT_ALONE_NS));
	world_crash(g->world);
	if (r->ops->cut)
		r->ops->cut(r->arg);
	rig_bury(g);
	rig_return(g);
	rig_lose(g, RIG_MEMBERS_MAX);
	if (rng_chance(&g->rng, 1, 6))
		rig_damage(g);
	come_back(r);
}

/* A scrub of what is left ends, whatever it finds. */
static void scrub_beyond(struct rig *g)
{
	struct raid_job_info job;

	rig_say(g, "scrubbing what is left");
	if (rng_chance(&g->fault_rng, 1, 2))
		(void)rig_scrub(g, &job);
}

/* So that what goes wrong now does so on a full volume. */
static void fill(struct round *r)
{
	if (rig_aims_full(r->rig) && r->ops->fill)
		must_not_crash(r, r->ops->fill(r->arg));
}

/* Opened, scrubbed, judged and closed, again and again. */
static void open_what_is_left(struct round *r)
{
	struct rig *g = r->rig;

	for (unsigned i = 0; i < BEYOND_OPENINGS; i++) {
		rig_beyond_closed(g);
		if (r->ops->open_beyond(r->arg))
			continue;
		scrub_beyond(g);
		r->ops->judge_beyond(r->arg);
		(void)r->ops->close(r->arg);
	}
}

/*
 * From a sound volume that was closed: the newest generation of some pages is lost, and what was before that is there. All that was
 * written was durable, so nothing older counts.
 */
static void pages_round(struct round *r)
{
	struct rig *g = r->rig;

	r->ops->work(r->arg);
	rig_join(g);
	must_not_crash(r, r->ops->close(r->arg));
	r->ops->closed(r->arg);
	r->ops->keep(r->arg);
	rig_lose_pages(g);
	open_what_is_left(r);
}

/*
 * From a sound volume beyond what is tolerated, while it is used. P2: what can be read is right, all else is an error to who
 * asks for it and to nobody else, and everything ends: calls, scrubs, unmounting, opening again. Judged while it is
 * open, after that, and once more after the judges themselves have used it.
 */
static void beyond_round(struct round *r)
{
	struct rig *g = r->rig;

	g->faults_off = true;
	must_not_crash(r, rig_mend(g));
	if (g->aim.kind != FAULT_BEYOND && rng_chance(&g->fault_rng, 1, 3)) {
		pages_round(r);
		return;
	}
	must_not_crash(r, r->ops->close(r->arg));
	r->ops->closed(r->arg);
	must_not_crash(r, r->ops->come_back(r->arg));
	fill(r);
	g->faults_off = false;
	r->ops->keep(r->arg);
	rig_say(g, "working before too much fails");
	r->ops->work(r->arg);
	if (rng_chance(&g->fault_rng, 1, 3))
		(void)rig_scrub_begin(g);
	co_sleep_ns(rng_below(&g->fault_rng, r->ops->meddle_ns / 2));
	if (g->aim.kind == FAULT_BEYOND)
		(void)rig_aim_reach(g);
	rig_faults_beyond(g, rng_chance(&g->fault_rng, 3, 4));
	rig_join(g);
	r->ops->judge_beyond(r->arg);
	if (rng_chance(&g->fault_rng, 1, 2)) {
		world_crash(g->world);
		rig_bury(g);
	} else {
		(void)r->ops->close(r->arg);
	}
	open_what_is_left(r);
}

/* The last round of some seeds: more goes wrong than the level tolerates. True: beyond coming back. */
static bool bad_round(struct round *r)
{
	struct rig *g = r->rig;
	bool freeze = rig_fault_chance(g, FAULT_FREEZE, 1, 8);

	if (!freeze && !rig_fault_chance(g, FAULT_BEYOND, 1, 12))
		return false;
	rig_say(g, "failing");
	rig_crash_off(g);
	if (!freeze) {
		beyond_round(r);
		return true;
	}
	must_not_crash(r, rig_mend(g));
	fill(r);
	g->beyond = true;
	r->ops->work(r->arg);
	co_sleep_ns(rng_below(&g->fault_rng, r->ops->meddle_ns / 2));
	if (g->aim.kind == FAULT_FREEZE)
		(void)rig_aim_reach(g);
	rig_freeze(g);
	rig_join(g);
	world_crash(g->world);
	rig_bury(g);
	rig_thaw(g);
	come_back(r);
	return false;
}

/* Everything sound again, twice scrubbed, closed, and looked at. */
static void last_round(struct round *r)
{
	struct rig *g = r->rig;
	struct raid_job_info job;

	g->faults_off = true;
	rig_crash_off(g);
	must_not_crash(r, rig_mend(g));
	must_not_crash(r, rig_scrub(g, &job));
	rig_must(g, !job.found, "the second scrub found %llu", (unsigned long long)job.found);
	must_not_crash(r, r->ops->last(r->arg));
}

void round_run_all(struct round *r)
{
	struct rig *g = r->rig;
	unsigned rounds = (unsigned)rng_range(&g->rng, 1, 6);

	if (g->o->crashes)
		rounds = g->o->crashes;
	r->points = POINTS_START;
	must_not_crash(r, r->ops->make(r->arg));
	for (g->round = 1; g->round <= rounds; g->round++) {
		one_round(r);
		if (!rng_chance(&g->rng, 1, 4))
			continue;
		if (rng_chance(&g->rng, 1, 2))
			rig_crash_soon(g, MEND_POINTS);
		if (rig_mend(g)) {
			rig_bury(g);
			come_back(r);
		}
		rig_crash_off(g);
	}
	if (!bad_round(r))
		last_round(r);
}
