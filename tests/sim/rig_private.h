/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What rig.c, rig_fault.c and rig_mend.c know of each other.
 */
#ifndef SIM_RIG_PRIVATE_H
#define SIM_RIG_PRIVATE_H

#include "rig.h"

/* A blank drive in a new slot. */
struct slot *rig_slot_add(struct rig *g, uint64_t size_bytes);
struct dev *rig_slot_open(struct rig *g, struct slot *s);
/* A member that is sound, or NULL. */
struct slot *rig_sound_slot(struct rig *g, struct rng *r);
/* Tells rig_hit of the faults of this member. */
void rig_watch(struct rig *g, struct simdev *d);
/* For rig_init. */
void rig_aim_draw(struct rig *g);
/* What the volume is doing now: bits of enum rig_state. */
unsigned rig_states(struct rig *g);
/* Arms a few faults, on anybody. */
void rig_faults_format(struct rig *g);
void rig_faults_format_end(struct rig *g);
/*
 * The volume is closed: what comes back otherwise than it went. Returns a copy to be offered as well, or
 * NULL.
 */
struct simdev *rig_faults_closed(struct rig *g);

#endif
