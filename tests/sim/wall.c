/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The simulated wall clock: stands in the way of the C library's, so that whatever asks for the
 * time of day gets it from the seed. Time stamps decide nothing, so the clock may go where it
 * likes: here it jumps back twenty years now and then.
 */
#include "wall.h"
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WALL_START_S 1800000000
#define JUMP_S	     (20 * 365 * 86400)

static struct world *wall_world;

void wall_set(struct world *w)
{
	wall_world = w;
}

int clock_gettime(clockid_t id, struct timespec *ret)
{
	uint64_t ns;

	if (id != CLOCK_REALTIME || !wall_world)
		return (int)syscall(SYS_clock_gettime, id, ret);
	ns = world_now_ns(wall_world);
	ret->tv_sec = WALL_START_S + (time_t)(ns / NS_PER_S);
	ret->tv_nsec = (long)(ns % NS_PER_S);
	if (ns / NS_PER_S % 7 == 3)
		ret->tv_sec -= JUMP_S;
	return 0;
}
