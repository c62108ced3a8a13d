/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The event loop: run queue, timers, rounds.
 *
 * A round runs what was runnable when it began, fires the timers that are due, and asks the backend
 * for news. What becomes runnable during a round waits for the next one, so a coroutine that yields
 * in a loop starves neither timers nor I/O. For the same reason a timer armed while timers fire is
 * left for the next round.
 *
 * Timers are a pairing heap (heap.h) threaded through the timers themselves, ordered by (due, armed):
 * insertion is O(1), removal O(log n) amortised. A binary heap in an array was the first thought,
 * but it must grow, and then a coroutine that only wants to sleep, or an I/O that needs its
 * deadline, can fail for lack of memory.
 */
#include "loop.h"

#include "co.h"

struct loop {
	const struct loop_backend *backend;
	void *ctx;
	struct list runnable;	   /* struct loop_task, in order */
	struct heap timers;
	uint64_t timer_seq;
	unsigned co_count;
	bool stopping;
	bool in_round; /* rounds do not nest */
	bool in_poll;
	uint64_t round_ns; /* when the present one began */
	bool (*hook)(void *arg);
	void *hook_arg;
};

/* ---- timers ---- */

void loop_timer_init(struct loop_timer *timer, void (*fire)(struct loop_timer *))
{
	*timer = (struct loop_timer){.fire = fire};
}

int loop_timer_arm(struct loop *loop, struct loop_timer *timer, uint64_t due_ns)
{
	heap_take(&loop->timers, &timer->heap);
	heap_put(&loop->timers, &timer->heap, due_ns, loop->timer_seq++);
	return 0;
}

void loop_timer_cancel(struct loop *loop, struct loop_timer *timer)
{
	heap_take(&loop->timers, &timer->heap);
}

static void fire_due(struct loop *loop)
{
	uint64_t seq_end = loop->timer_seq;

	/* What has become due during the round is not waited for by the poll, and fires in the next one. */
	while (loop->timers.first && loop->timers.first->key <= loop->round_ns && loop->timers.first->tie < seq_end) {
		struct loop_timer *timer = container_of(loop->timers.first, struct loop_timer, heap);

		loop_timer_cancel(loop, timer);
		timer->fire(timer);
	}
}

/* ---- rounds ---- */

static void round_run(struct loop *loop)
{
	struct list now;

	assert(!co_self() && !loop->in_round);
	loop->in_round = true;
	loop->round_ns = loop_now_ns(loop);
	list_init(&now);
	list_splice_tail(&now, &loop->runnable);
	while (!list_empty(&now)) {
		struct loop_task *task = list_first(&now, struct loop_task, node);

		list_del(&task->node);
		task->run(task);
	}
	fire_due(loop);
	loop->in_round = false;
}

static void round_poll(struct loop *loop)
{
	uint64_t until_ns = LOOP_NEVER;
	bool more;

	loop->in_round = loop->in_poll = true;
	/* First: what it makes runnable, or due, must not wait for something else to happen. */
	more = loop->hook && loop->hook(loop->hook_arg);
	if (more || loop->stopping || !list_empty(&loop->runnable))
		until_ns = 0;
	else if (loop->timers.first)
		until_ns = loop->timers.first->key;
	loop->backend->poll(loop->ctx, until_ns);
	loop->in_round = loop->in_poll = false;
}

void loop_set_idle_hook(struct loop *loop, bool (*hook)(void *arg), void *arg)
{
	loop->hook = hook;
	loop->hook_arg = arg;
}

void loop_run(struct loop *loop)
{
	loop->stopping = false;
	for (;;) {
		round_run(loop);
		if (loop->stopping)
			break;
		round_poll(loop);
	}
}

void loop_stop(struct loop *loop)
{
	loop->stopping = true;
}

struct run_co {
	int (*fn)(void *arg);
	void *arg;
	int result;
	bool done;
};

static void run_co_main(void *arg)
{
	struct run_co *run = arg;

	run->result = run->fn(run->arg);
	run->done = true;
}

int loop_run_co(struct loop *loop, int (*fn)(void *arg), void *arg)
{
	struct run_co run = {.fn = fn, .arg = arg};
	int err = co_spawn(loop, run_co_main, &run);

	if (err)
		return err;
	for (;;) {
		round_run(loop);
		if (run.done)
			return run.result;
		round_poll(loop);
	}
}

/* ---- the rest ---- */

void loop_run_soon(struct loop *loop, struct loop_task *task)
{
	list_add_tail(&loop->runnable, &task->node);
}

void loop_co_born(struct loop *loop)
{
	loop->co_count++;
}

void loop_co_gone(struct loop *loop)
{
	assert(loop->co_count > 0);
	loop->co_count--;
}

unsigned loop_co_count(const struct loop *loop)
{
	return loop->co_count;
}

uint64_t loop_now_ns(struct loop *loop)
{
	return loop->backend->now_ns(loop->ctx);
}

uint64_t loop_round_ns(struct loop *loop)
{
	return loop->in_round && !loop->in_poll ? loop->round_ns : loop_now_ns(loop);
}

uint64_t loop_random(struct loop *loop)
{
	return loop->backend->random(loop->ctx);
}

struct loop *loop_new(const struct loop_backend *backend, void *ctx)
{
	struct loop *loop = mem_zalloc(sizeof(*loop));

	if (!loop)
		return NULL;
	loop->backend = backend;
	loop->ctx = ctx;
	list_init(&loop->runnable);
	return loop;
}

void loop_free(struct loop *loop)
{
	if (!loop)
		return;
	assert(loop->co_count == 0 && list_empty(&loop->runnable));
	mem_free(loop);
}
