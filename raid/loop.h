/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The event loop: run queue of coroutines, timers, and one backend that says what happened in the
 * world. With the io_uring backend (uring.h) time is CLOCK_MONOTONIC; with the simulated one (tests)
 * time jumps to the next event, so that one seed decides a whole run.
 *
 * One loop is used by one thread. Nothing here is thread-safe.
 */
#ifndef RAID_LOOP_H
#define RAID_LOOP_H

#include "base.h"
#include "heap.h"

struct co;
struct loop;

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull
#define LOOP_NEVER UINT64_MAX

struct loop_backend {
	uint64_t (*now_ns)(void *ctx);
	/*
	 * Submits what is queued and collects what is done; completions call co_wake or callbacks.
	 * Waits at most until `until_ns` on this clock when nothing is ready (LOOP_NEVER: no limit;
	 * a time in the past: do not wait).
	 */
	void (*poll)(void *ctx, uint64_t until_ns);
	/* A random number that decides nothing about security; the simulator's comes from its seed. */
	uint64_t (*random)(void *ctx);
};

/* The loop owns neither backend nor ctx. NULL without memory. */
struct loop *loop_new(const struct loop_backend *backend, void *ctx);
/* No coroutine may be left. Takes NULL. */
void loop_free(struct loop *loop);

uint64_t loop_now_ns(struct loop *loop);
/* What the clock said when this round began: costs nothing. Between rounds the time now. */
uint64_t loop_round_ns(struct loop *loop);
uint64_t loop_random(struct loop *loop);

/* Runs until loop_stop. Each round: everything runnable, due timers, backend poll. */
void loop_run(struct loop *loop);
void loop_stop(struct loop *loop);
/* Spawns fn(arg) as a coroutine and runs the loop until it has returned; its result. For tools and tests. */
int loop_run_co(struct loop *loop, int (*fn)(void *arg), void *arg);
/*
 * Called once a round before the loop decides how long it may wait: lets a server drain a busy descriptor
 * without polling it. May wake, spawn and arm. True: there is more, do not wait. NULL: none.
 */
void loop_set_idle_hook(struct loop *loop, bool (*hook)(void *arg), void *arg);
/* Number of coroutines that exist. */
unsigned loop_co_count(const struct loop *loop);

/*
 * One-shot; fires in loop context (not in a coroutine), must not yield, may wake and spawn. Belongs to its
 * owner, who must not free it while it is armed.
 */
struct loop_timer {
	struct heap_entry heap; /* by time, and among equal times by when it was armed */
	void (*fire)(struct loop_timer *timer);
};
static inline bool loop_timer_armed(const struct loop_timer *timer)
{
	return timer->heap.in;
}
/* When it is, or last was, due. */
static inline uint64_t loop_timer_due_ns(const struct loop_timer *timer)
{
	return timer->heap.key;
}
void loop_timer_init(struct loop_timer *timer, void (*fire)(struct loop_timer *));
/*
 * Re-arming moves it. Equal times fire in the order of arming. Returns 0: it needs no memory and cannot fail, so
 * that a deadline can always be set; the result may be ignored.
 */
int loop_timer_arm(struct loop *loop, struct loop_timer *timer, uint64_t due_ns);
void loop_timer_cancel(struct loop *loop, struct loop_timer *timer);

/* For co.c: something that runs in the next round. run() may free it. */
struct loop_task {
	struct list node;
	void (*run)(struct loop_task *task);
};
void loop_run_soon(struct loop *loop, struct loop_task *task);
void loop_co_born(struct loop *loop);
void loop_co_gone(struct loop *loop);

#endif
