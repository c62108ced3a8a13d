/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The life of a volume, whatever stands on it: made, worked on, cut off or closed, buried, robbed,
 * opened and judged, again and again; in the end mended, or beyond mending. What is worked and
 * judged is the caller's (fsrun.c, raidrun.c).
 */
#ifndef SIM_ROUND_H
#define SIM_ROUND_H

#include "rig.h"

/* Those that return int: 0, or an error that rig_excused explains. arg is round.arg. */
struct round_ops {
	/* The first time: formatted, open, and ready to be worked on. */
	int (*make)(void *arg);
	/* Opens the volume and what stands on it, and judges it. */
	int (*come_back)(void *arg);
	/* Leaves next to nothing free, while nobody works. May be NULL. */
	int (*fill)(void *arg);
	/* Spawns the workers of a round. */
	void (*work)(void *arg);
	/* Closes cleanly; then everything done is a promise. */
	int (*close)(void *arg);
	void (*closed)(void *arg);
	/* The lights went out: what was old enough was a promise. May be NULL. */
	void (*cut)(void *arg);
	/*
	 * More is going to be lost than is tolerated: nothing is a promise from here on. Then judges what is open as far as it
	 * can be read; and opens, judges and leaves open what was closed: 0, or it failed as it may.
	 */
	void (*keep)(void *arg);
	void (*judge_beyond)(void *arg);
	int (*open_beyond)(void *arg);
	/* Everything is sound: judged, closed, and looked at once more. */
	int (*last)(void *arg);
	uint64_t meddle_ns;	/* how long a round may be left alone at first */
	uint64_t replay_points; /* of coming back: a crash there comes within them */
};

struct round {
	struct rig *rig;
	const struct round_ops *ops;
	void *arg;
	uint64_t points; /* of the last round */
};
/* In the driver. All rounds of a seed. */
void round_run_all(struct round *r);

#endif
