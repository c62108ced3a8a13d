/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Stackful coroutines on one event loop. Only one runs at a time and it runs until it waits, so what
 * does not wait is atomic and needs no lock. Code that must not wait says so ("never yields").
 */
#ifndef RAID_CO_H
#define RAID_CO_H

#include "base.h"
#include "loop.h"

#define CO_STACK_BYTES (64u << 10) /* sanitizers, and without optimization: four times that */
/* That exist at the same time; each costs two of the kernel's 65530 mappings (stack and guard page). */
#define CO_COUNT_MAX 16384

struct co;

/*
 * Makes a coroutine that will call fn(arg); it first runs in the next round of the loop, in order of
 * spawning. Frees itself on return. -ENOMEM without a stack.
 */
int co_spawn(struct loop *loop, void (*fn)(void *arg), void *arg);
/* The same, but runs it at once, until its first wait, before returning. Not from within a coroutine. */
int co_start(struct loop *loop, void (*fn)(void *arg), void *arg);

/* NULL outside a coroutine. */
struct co *co_self(void);
struct loop *co_loop(void);
/* Suspends the caller until somebody calls co_wake on it. */
void co_wait(void);
/* Puts a waiting coroutine on the run queue. Waking one that is not waiting is an error (assert). */
void co_wake(struct co *co);
/* Lets everything else that is runnable run first. */
void co_yield(void);
/* Sleeps on the loop's clock. */
void co_sleep_ns(uint64_t ns);

/* A condition: coroutines that wait for something to be so. First come, first woken. */
struct co_cond {
	struct list waiters;
};
void co_cond_init(struct co_cond *c);
void co_cond_wait(struct co_cond *c);
/* Returns 0, or -ETIMEDOUT if the loop's clock passed until_ns first. */
int co_cond_wait_until(struct co_cond *c, uint64_t until_ns);
void co_cond_wake_one(struct co_cond *c);
void co_cond_wake_all(struct co_cond *c);
bool co_cond_has_waiters(const struct co_cond *c);

/* Fair: handed to the first waiter. Not recursive. */
struct co_mutex {
	struct co *owner;
	struct co_cond waiters;
};
void co_mutex_init(struct co_mutex *m);
void co_mutex_lock(struct co_mutex *m);
bool co_mutex_trylock(struct co_mutex *m);
void co_mutex_unlock(struct co_mutex *m);

/* Fair between readers and writers: a reader queues behind a waiting writer. */
struct co_rwlock {
	int holders; /* -1: one writer */
	struct list waiters;
};
void co_rwlock_init(struct co_rwlock *l);
void co_rwlock_read(struct co_rwlock *l);
void co_rwlock_write(struct co_rwlock *l);
void co_rwlock_unlock(struct co_rwlock *l);

#endif
