/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The scripts that exhaust.c cuts off. */
#ifndef SIM_SCENES_H
#define SIM_SCENES_H

#include "script.h"

struct scene {
	const char *name;
	int (*prepare)(struct script *s); /* in a mounted filesystem with homes; NULL: nothing */
	int (*step)(struct script *s);	  /* 0, or an error after a crash */
	bool unformatted;		  /* begins with blank members */
	bool unmounted;			  /* prepare leaves it so */
	bool parity;			  /* only where blocks share rows */
	unsigned degraded;		  /* only where so many members may be lost */
};
extern const struct scene scenes[];
extern const unsigned scene_count;

#endif
