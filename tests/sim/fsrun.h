/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One seed of the whole: the filesystem on its volume. */
#ifndef SIM_FSRUN_H
#define SIM_FSRUN_H

#include "rig.h"

/* Not in a coroutine. Returns when the seed has passed; rig_fail otherwise. */
void fsrun_seed(const struct sim_options *o, struct sim_stats *stats);

#endif
