/* SPDX-License-Identifier: GPL-2.0-or-later */
/* clock_gettime(CLOCK_REALTIME) of the whole program, from the simulated world. */
#ifndef SIM_WALL_H
#define SIM_WALL_H

#include "world.h"

/* NULL: the real one again. */
void wall_set(struct world *w);

#endif
