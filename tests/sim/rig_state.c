/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which fault has hit in which state. A fault counts where it hits and not where it is armed: when an I/O
 * suffers it, or damage is read. A volume may be in several states at once (degraded, rebuilding and full);
 * then it counts in each.
 */
#include "rig_private.h"

const char *const rig_state_names[RIG_STATES] = {
    "format",  "mount",  "replay", "healthy",	 "degraded1", "degraded2",
    "rebuild", "scrub",	 "nearly", "full", "unmount",
};

#define BIT(x)	 (1u << (x))
#define WORKING	 (BIT(STATE_HEALTHY) | BIT(STATE_DEGRADED_1) | BIT(STATE_DEGRADED_2) | BIT(STATE_REBUILDING) | \
		  BIT(STATE_SCRUBBING) | BIT(STATE_NEARLY_FULL) | BIT(STATE_FULL))
#define OPENING	 (BIT(STATE_MOUNTING) | BIT(STATE_REPLAYING))
#define ALL	 ((1u << RIG_STATES) - 1)

/* Cells that stay empty, and why. */
static const struct {
	enum rig_fault kind;
	unsigned states;
	const char *why;
} impossible[] = {
    {FAULT_CLONE, ALL & ~OPENING, "a copy is offered to whoever opens"},
    {FAULT_RENAME, ALL & ~OPENING, "a name is what it is opened by"},
    {FAULT_STALE, ALL & ~OPENING, "it is put back between two openings"},
    {FAULT_FREEZE, ALL & ~(BIT(STATE_HEALTHY) | BIT(STATE_NEARLY_FULL) | BIT(STATE_FULL)), "whole arrays vanish and come back after mending, and while working"},
    {FAULT_BEYOND, ALL & ~WORKING, "what is too much is armed while working, by definition of the round"},
};

bool rig_hit_possible(enum rig_fault kind, enum rig_state state, const char **ret_why)
{
	for (unsigned i = 0; i < ARRAY_SIZE(impossible); i++) {
		if (impossible[i].kind == kind && impossible[i].states & BIT(state)) {
			*ret_why = impossible[i].why;
			return false;
		}
	}
	return true;
}

/* Members that are not in service. */
static unsigned members_out(struct rig *g)
{
	struct raid_info info;
	unsigned out = 0;

	raid_info(g->raid, &info);
	for (unsigned i = 0; i < info.member_count; i++) {
		struct raid_member_info m;

		if (raid_member_info(g->raid, i, &m) || m.state == MEMBER_REMOVED)
			continue;
		out += m.state != MEMBER_ACTIVE || !m.present;
	}
	return out;
}

static unsigned states_working(struct rig *g)
{
	struct raid_info info;
	struct raid_space space;
	unsigned states = 0, out = members_out(g);
	uint64_t free_blocks, all;

	raid_info(g->raid, &info);
	raid_space(g->raid, &space);
	free_blocks = space.data_free;
	all = space.data_total;
	if (g->space)
		g->space(g->abandon_arg, &free_blocks, &all);
	if (out)
		states |= BIT(out > 1 ? STATE_DEGRADED_2 : STATE_DEGRADED_1);
	if (info.rebuild.running)
		states |= BIT(STATE_REBUILDING);
	if (info.scrub.running)
		states |= BIT(STATE_SCRUBBING);
	if (free_blocks < all / 10)
		states |= BIT(STATE_NEARLY_FULL);
	if (free_blocks < all / 256 || (g->was_full && states & BIT(STATE_NEARLY_FULL)))
		states |= BIT(STATE_FULL);
	return states ? states : BIT(STATE_HEALTHY);
}

unsigned rig_states(struct rig *g)
{
	switch (g->phase) {
	case PHASE_FORMAT:
		return BIT(STATE_FORMATTING);
	case PHASE_OPEN:
		return BIT(g->after_crash ? STATE_REPLAYING : STATE_MOUNTING);
	case PHASE_MOUNT:
		return BIT(STATE_MOUNTING);
	case PHASE_CLOSE:
		return BIT(STATE_UNMOUNTING);
	case PHASE_WORK:
		break;
	}
	return g->raid ? states_working(g) : 0;
}

void rig_hit(struct rig *g, enum rig_fault kind)
{
	unsigned states = world_crashed(g->world) ? 0 : rig_states(g);

	for (unsigned i = 0; i < RIG_STATES; i++) {
		if (states & BIT(i))
			g->stats.hit[kind][i]++;
	}
}
