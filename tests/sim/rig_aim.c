/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Aiming. Left to chance, some faults hardly ever hit in some states: a flush that fails is rare, a full volume is
 * rare, and both at once does not happen in a thousand seeds. So half of the seeds have an aim: one cell of the
 * matrix, drawn. They bring the volume into its state and arm its fault there, within the budget, so that it hits
 * with one of the next I/Os. All else goes on beside it.
 */
#include "rig_private.h"
#include <stdio.h>

#define REACH_TRIES_MAX 100
#define REACH_NS	(2 * NS_PER_MS)

void rig_aim_draw(struct rig *g)
{
	struct rng r;
	const char *why;

	rng_fork(&r, "aim", g->o->seed);
	g->aim = (struct rig_aim){.kind = FAULT_KINDS, .state = RIG_STATES};
	if (g->o->aim)
		g->aim = *g->o->aim;
	else if (rng_chance(&r, 1, 2)) {
		do {
			g->aim.kind = (enum rig_fault)rng_below(&r, FAULT_KINDS);
			g->aim.state = (enum rig_state)rng_below(&r, RIG_STATES);
		} while (!rig_hit_possible(g->aim.kind, g->aim.state, &why));
	}
	if (g->aim.kind < FAULT_KINDS && !(g->o->faults >> g->aim.kind & 1))
		g->aim.kind = FAULT_KINDS;
	if (g->aim.kind < FAULT_KINDS)
		world_tell(g->world, "aims at %s in state %s", rig_fault_names[g->aim.kind],
			   rig_state_names[g->aim.state]);
}

bool rig_aim_parse(const char *text, struct rig_aim *ret)
{
	const char *at = strchr(text, '@');
	const char *why;

	*ret = (struct rig_aim){.kind = FAULT_KINDS, .state = RIG_STATES};
	if (!strcmp(text, "none"))
		return true;
	for (unsigned k = 0; at && k < FAULT_KINDS; k++) {
		if (!strncmp(rig_fault_names[k], text, (size_t)(at - text)) && !rig_fault_names[k][at - text])
			ret->kind = (enum rig_fault)k;
	}
	for (unsigned i = 0; at && i < RIG_STATES; i++) {
		if (!strcmp(rig_state_names[i], at + 1))
			ret->state = (enum rig_state)i;
	}
	return ret->kind < FAULT_KINDS && ret->state < RIG_STATES && rig_hit_possible(ret->kind, ret->state, &why);
}

bool rig_aims_at(const struct rig *g, enum rig_state state)
{
	return g->aim.kind < FAULT_KINDS && g->aim.state == state;
}

bool rig_aims_full(const struct rig *g)
{
	/* When unmounting, too: what is left to write then goes to shared rows, for which others are read. */
	return rig_aims_at(g, STATE_NEARLY_FULL) || rig_aims_at(g, STATE_FULL) || rig_aims_at(g, STATE_UNMOUNTING);
}

/* Takes `count` members out of service: pulled, or, where a fault would then be too much, replaced. */
static void degrade(struct rig *g, struct rng *r, unsigned count)
{
	bool pull = g->tolerance > count || g->aim.kind == FAULT_BEYOND;

	for (unsigned i = 0; i < count && !world_crashed(g->world); i++) {
		if (pull)
			(void)rig_pull(g, r);
		else
			(void)rig_replace_any(g, r, true); /* an error is a crash, which is seen */
	}
}

bool rig_aim_reach(struct rig *g)
{
	struct rng r;

	if (g->aim.kind == FAULT_KINDS || g->aim.state < STATE_HEALTHY || g->aim.state > STATE_FULL)
		return false;
	if (!rig_turn(g, SKIP_MEDDLE, &r) || world_crashed(g->world))
		return false;
	world_tell(g->world, "meddle towards the aim (m%u)", g->turns[SKIP_MEDDLE] - 1);
	switch (g->aim.state) {
	case STATE_DEGRADED_1:
		degrade(g, &r, 1);
		break;
	case STATE_DEGRADED_2:
		degrade(g, &r, 2);
		break;
	case STATE_REBUILDING:
		(void)rig_replace_any(g, &r, false);
		break;
	case STATE_SCRUBBING:
		(void)rig_scrub_begin(g);
		break;
	default:
		break; /* the work does it */
	}
	for (unsigned i = 0; i < REACH_TRIES_MAX && !world_crashed(g->world); i++) {
		if (rig_states(g) & 1u << g->aim.state)
			return true;
		co_sleep_ns(REACH_NS);
	}
	return false;
}
