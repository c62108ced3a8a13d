/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What nth.c has fail: one of each request, and what else a volume does. */
#ifndef SIM_ACTS_H
#define SIM_ACTS_H

#include "script.h"

struct act {
	const char *name;
	/* Once; may be called again after an error, and then must succeed. 0 or -errno. */
	int (*fn)(struct script *s);
	int (*prepare)(struct script *s); /* mounted; NULL: nothing more */
	bool unformatted; /* begins with blank members, and ends closed */
	bool unmounted;	  /* begins closed */
	bool spends;	  /* a member goes by it: no other may fail */
};
extern const struct act acts[];
extern const unsigned act_count;

/* Objects for all of them, and everything mounted anew (or not) with nothing in memory. */
int acts_prepare(struct script *s, const struct act *act);

#endif
