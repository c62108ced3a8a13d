/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One seed of the volume alone: no filesystem on it. */
#ifndef SIM_RAIDRUN_H
#define SIM_RAIDRUN_H

#include "rig.h"

/* Not in a coroutine. Returns when the seed has passed; rig_fail otherwise. */
void raidrun_seed(const struct sim_options *o, struct sim_stats *stats);

#endif
