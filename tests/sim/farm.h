/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Many seeds, in processes of their own.
 */
#ifndef SIM_FARM_H
#define SIM_FARM_H

#include "rig.h"

struct farm_plan {
	uint64_t first, last;
	double minutes; /* no new seed after them; 0: no limit */
	unsigned jobs;
	bool keep_going; /* after a failure */
	/* Runs one seed; does not return if it fails. */
	void (*run)(const struct sim_options *o, uint64_t seed, struct sim_stats *stats);
};
#define FARM_JOBS_MAX 16

void farm_run(const struct farm_plan *p, const struct sim_options *o, struct sim_stats *total,
	      uint64_t *ret_passed, uint64_t *ret_failed);
/* How a user starts the simulator: for commands that are printed. */
const char *sim_command(void);

#endif
