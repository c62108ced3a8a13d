/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The simulated world: a clock that jumps to the next event, one seed for every random choice, and
 * the crash. A run of trussfs on it is a function of the seed.
 *
 *     struct world *w = world_new(seed);
 *     struct loop *loop = loop_new(&world_backend, w);
 *     ... simdev.h: members; raid.h, fs.h: what runs on them
 *
 * Nothing here uses mem_alloc: allocations that tests make fail are those of the code under test.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "raid/base.h"
#include "raid/loop.h"
#include <stdio.h>

/* ---- randomness: xoshiro256**, seeded through splitmix64 ---- */

struct rng {
	uint64_t s[4];
};
void rng_seed(struct rng *r, uint64_t seed);
/* A generator of its own: what one part draws does not change what another gets. */
void rng_fork(struct rng *r, const char *name, uint64_t seed);
uint64_t rng_next(struct rng *r);
/* 0 .. n - 1; n >= 1. */
uint64_t rng_below(struct rng *r, uint64_t n);
/* lo .. hi, both included. */
uint64_t rng_range(struct rng *r, uint64_t lo, uint64_t hi);
/* True in `part` of `whole` cases. */
bool rng_chance(struct rng *r, uint64_t part, uint64_t whole);
void rng_fill(struct rng *r, void *out, size_t len);

/* ---- the world ---- */

struct world;
extern const struct loop_backend world_backend;

struct world *world_new(uint64_t seed);
/* No member may be left. Takes NULL. */
void world_free(struct world *w);
uint64_t world_seed(const struct world *w);
uint64_t world_now_ns(const struct world *w);
/* The generator of schedule and latencies. */
struct rng *world_rng(struct world *w);

/* ---- events ---- */

struct world_event {
	uint64_t due_ns, tie, order;
	size_t heap_index;
	bool armed;
	/* In loop context, not in a coroutine. May wake coroutines and arm events. */
	void (*fire)(struct world_event *ev);
};
void world_event_init(struct world_event *ev, void (*fire)(struct world_event *ev));
/* Equal times fire in an order drawn from the seed. */
void world_event_arm(struct world *w, struct world_event *ev, uint64_t due_ns);
void world_event_cancel(struct world *w, struct world_event *ev);

/* ---- the record of what happened ---- */

/* Mixed into the trace hash: two runs of one seed have the same. */
void world_trace(struct world *w, uint64_t what, uint64_t a, uint64_t b, uint64_t c);
uint64_t world_trace_hash(const struct world *w);
/* A line with the time in front; NULL: silent (the default). */
void world_verbose(struct world *w, FILE *to);
bool world_is_verbose(const struct world *w);
/* The same for what is done to the volume, as against what comes of it: all that a script shows. */
void world_tell(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool world_tells(const struct world *w);
void world_script(struct world *w, bool script);
void world_say(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- liveness ---- */

/*
 * stuck(arg, why) is called, and must not return, when everything waits and no event is left, when
 * the clock passes until_ns, or when the loop polls more than WORLD_POLLS_MAX times without time
 * moving by a millisecond. Until set: prints and aborts.
 */
#define WORLD_POLLS_MAX 10000000ull
void world_watch(struct world *w, uint64_t until_ns, void (*stuck)(void *arg, const char *why),
		 void *arg);

/* ---- the crash ----
 *
 * A crash is a power cut that the process survives only to be buried:
 *
 *   1. At the chosen point every member freezes: what is in flight is put aside with the data as it
 * stands in the caller's memory at that instant. From here on nothing reaches any member.
 *   2. I/O in flight, and all that is submitted later, completes with -ENODEV after a moment, so
 * that every coroutine unwinds through its own error path. (Completing nothing would leave their
 * stacks behind; killing them would leave what they hold.)
 *   3. The harness waits for its own coroutines, calls raid_abandon and fs_abandon, and sees that
 * none is left.
 *   4. world_restart: each member decides by the seed, sector by sector, what became of what was
 * not durable (simdev.h). All handles of the old run are dead for good; members are opened anew.
 *
 * A crash may come again at any time after the restart: inside replay, too.
 */
enum world_point {
	POINT_SUBMIT_READ = 1,
	POINT_SUBMIT_WRITE = 2,
	POINT_SUBMIT_FLUSH = 4,
	POINT_DONE_READ = 8,
	POINT_DONE_WRITE = 16,
	POINT_DONE_FLUSH = 32,
	POINT_CHANGES =
	    POINT_SUBMIT_WRITE | POINT_SUBMIT_FLUSH | POINT_DONE_WRITE | POINT_DONE_FLUSH,
};
/*
 * Crash at the n-th (from 1) of these points counted from now: a submit point after the I/O has
 * begun, so that it is in flight; a done point after the member has carried it out, before its
 * submitter hears of it. 0: never.
 */
void world_crash_at(struct world *w, unsigned points, uint64_t n);
void world_crash(struct world *w);
bool world_crashed(const struct world *w);
/* When the last crash was. */
uint64_t world_crash_ns(const struct world *w);
/* How many points of each kind in `points` there have been since the world began. */
uint64_t world_points(const struct world *w, unsigned points);
void world_restart(struct world *w);

/* For members (simdev.c). */
struct world_thing {
	struct list node;
	void (*crash)(struct world_thing *thing);
	void (*restart)(struct world_thing *thing);
};
void world_add(struct world *w, struct world_thing *thing);
void world_remove(struct world *w, struct world_thing *thing);
/* Counts a point; true if the crash came with it. */
bool world_point(struct world *w, enum world_point point);

#endif
