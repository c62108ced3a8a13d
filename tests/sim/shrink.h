/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef SIM_SHRINK_H
#define SIM_SHRINK_H

#include "farm.h"

/*
 * Looks for the least of seed plan->first that still fails in the same way, for plan->minutes at most, and prints it.
 * What the process is to exit with: 0 found, 1 the seed passes.
 */
int shrink(const struct farm_plan *plan, const struct sim_options *o);

#endif
