/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Coroutines, the loop and what coroutines wait on, with a clock that jumps to the next event. */
#include "raid/buf.h"
#include "raid/co.h"
#include "raid/io.h"
#include "raid/loop.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a world of nothing but time, and one device that answers at the next poll ---- */

struct world {
	uint64_t now_ns;
	uint64_t polls;
	struct list queued; /* io.queue_node */
	int answer;
};
static struct world world;
static struct loop *loop;

static uint64_t world_now(void *ctx)
{
	return ((struct world *)ctx)->now_ns;
}

static void world_poll(void *ctx, uint64_t until_ns)
{
	struct world *w = ctx;

	w->polls++;
	if (!list_empty(&w->queued)) {
		while (!list_empty(&w->queued)) {
			struct io *io = list_first(&w->queued, struct io, queue_node);

			list_del(&io->queue_node);
			io_done(io, w->answer);
		}
		return;
	}
	assert_true(until_ns != LOOP_NEVER); /* else it would sleep for ever */
	if (until_ns > w->now_ns)
		w->now_ns = until_ns;
}

static uint64_t world_random(void *ctx)
{
	return 4;
}

static const struct loop_backend world_backend = {world_now, world_poll, world_random};

static void fake_submit(struct dev *dev, struct io *io)
{
	list_add_tail(&world.queued, &io->queue_node);
}
static void fake_close(struct dev *dev)
{
}
static const struct dev_ops fake_ops = {.submit = fake_submit, .close = fake_close};

static int setup(void **state)
{
	world = (struct world){.now_ns = 1000};
	list_init(&world.queued);
	loop = loop_new(&world_backend, &world);
	return loop ? 0 : -1;
}

static int teardown(void **state)
{
	/* An assertion failed in a coroutine: what is left would only hide its message. */
	if (loop_co_count(loop))
		return -1;
	loop_free(loop);
	return 0;
}

/* What happened, in order. */
static char story[4096];
static void tell(const char *what)
{
	assert_true(strlen(story) + strlen(what) < sizeof(story));
	strcat(story, what);
}

static int run(int (*fn)(void *))
{
	story[0] = '\0';
	return loop_run_co(loop, fn, NULL);
}

/* With its name, which it does not change. */
static int spawn(void (*fn)(void *arg), const char *name)
{
	return co_spawn(loop, fn, (void *)(uintptr_t)name);
}

/* ---- coroutines ---- */

static void teller(void *arg)
{
	char name[2] = {*(char *)arg, 0};

	for (int i = 0; i < 3; i++) {
		tell(name);
		co_yield ();
	}
}

static int yields(void *arg)
{
	assert_non_null(co_self());
	assert_ptr_equal(co_loop(), loop);
	assert_int_equal(spawn(teller, "a"), 0);
	assert_int_equal(spawn(teller, "b"), 0);
	tell("-");
	assert_int_equal(loop_co_count(loop), 3);
	while (loop_co_count(loop) > 1)
		co_yield ();
	return 42;
}

static void test_order(void **state)
{
	assert_null(co_self());
	assert_int_equal(run(yields), 42);
	assert_string_equal(story, "-ababab");
	assert_int_equal(loop_random(loop), 4);
}

static int drain(void *arg)
{
	while (loop_co_count(loop) > 1)
		co_yield ();
	return 0;
}

static void test_start(void **state)
{
	story[0] = '\0';
	assert_int_equal(co_start(loop, teller, (char[]){"s"}), 0);
	assert_string_equal(story, "s");
	assert_int_equal(loop_run_co(loop, drain, NULL), 0);
	assert_string_equal(story, "sss");
}

static void test_no_memory(void **state)
{
	mem_fail_after(1, false);
	assert_int_equal(spawn(teller, "x"), -ENOMEM);
	assert_int_equal(loop_co_count(loop), 0);
	mem_fail_after(1, false);
	assert_null(loop_new(&world_backend, &world));
}

/* Registers and floating point must survive the switches, whatever runs in between. */
static unsigned checked;
static void computes(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg, a = seed, b = seed * 3, c = seed * 5,
		 d = seed * 7, e = seed * 11, f = seed * 13, want;
	double x = (double)seed;
	unsigned rounds = 20 + (unsigned)seed % 5;

	for (unsigned i = 0; i < rounds; i++) {
		a += b ^ c;
		b += c ^ d;
		c += d ^ e;
		d += e ^ f;
		e += f ^ a;
		f += a ^ b;
		x = x * 1.25 + 1;
		co_yield ();
	}
	want = a + b + c + d + e + f;
	a = seed, b = seed * 3, c = seed * 5, d = seed * 7, e = seed * 11, f = seed * 13;
	for (unsigned i = 0; i < rounds; i++) {
		a += b ^ c;
		b += c ^ d;
		c += d ^ e;
		d += e ^ f;
		e += f ^ a;
		f += a ^ b;
	}
	assert_true(want == a + b + c + d + e + f);
	for (unsigned i = 0; i < rounds; i++)
		x = (x - 1) / 1.25;
	assert_true(x > (double)seed - 0.001 && x < (double)seed + 0.001);
	checked++;
}

static int many(void *arg)
{
	for (int round = 0; round < 3; round++) {
		for (uintptr_t i = 1; i <= 1000; i++)
			assert_int_equal(co_spawn(loop, computes, (void *)i), 0);
		while (loop_co_count(loop) > 1)
			co_yield ();
	}
	return 0;
}

static void test_many(void **state)
{
	checked = 0;
	assert_int_equal(run(many), 0);
	assert_int_equal(checked, 3000);
}

static void stop_loop(struct loop_timer *t)
{
	loop_stop(loop);
}

static void ends(void *arg)
{
}

static void test_count_max(void **state)
{
	struct loop_timer t;
	unsigned count = 0;

	while (co_spawn(loop, ends, NULL) == 0)
		count++;
	assert_int_equal(count, CO_COUNT_MAX);
	assert_int_equal(loop_run_co(loop, drain, NULL), -ENOMEM);
	assert_int_equal(loop_co_count(loop), CO_COUNT_MAX);
	loop_timer_init(&t, stop_loop);
	loop_timer_arm(loop, &t, 0);
	loop_run(loop);
	assert_int_equal(loop_co_count(loop), 0);
}

/* Uses most of its stack, at both ends of its life. */
static unsigned deep(unsigned n)
{
	volatile char frame[1024];

	memset((char *)(uintptr_t)frame, (int)n, sizeof(frame));
	if (n)
		return deep(n - 1) + (unsigned)frame[n];
	co_yield ();
	return 0;
}

static void deep_main(void *arg)
{
	unsigned got = deep(40), want = 0;

	for (unsigned i = 1; i <= 40; i++)
		want += i;
	assert_int_equal(got, want);
}

/* Overflows its stack: a fault, caught by the parent, and nobody else's memory. */
static void too_deep_main(void *arg)
{
	(void)deep(10 * CO_STACK_BYTES / 1024);
}

static void test_guard_page(void **state)
{
	int status;
	pid_t pid;

	pid = fork();
	if (pid == 0) {
		(void)freopen("/dev/null", "w", stderr);
		(void)co_start(loop, too_deep_main, NULL);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* Sanitizers exit with 1 where others are killed. */
	assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) ||
		    (WIFEXITED(status) && WEXITSTATUS(status) == 1));
}

static int deep_all(void *arg)
{
	for (int i = 0; i < 20; i++) {
		assert_int_equal(co_spawn(loop, deep_main, NULL), 0);
		assert_int_equal(co_spawn(loop, deep_main, NULL), 0);
		co_yield ();
	}
	while (loop_co_count(loop) > 1)
		co_yield ();
	return 0;
}

static void test_deep(void **state)
{
	assert_int_equal(run(deep_all), 0);
}

/* ---- time ---- */

static struct loop_timer timers[200];
static unsigned fired[200], fired_count;
static uint64_t last_due;

static void timer_fired(struct loop_timer *t)
{
	assert_false(loop_timer_armed(t));
	assert_true(loop_timer_due_ns(t) <= world.now_ns);
	assert_true(loop_timer_due_ns(t) >= last_due);
	last_due = loop_timer_due_ns(t);
	fired[fired_count++] = (unsigned)(t - timers);
}

static int sleeps(void *arg)
{
	uint64_t start = loop_now_ns(loop);

	co_sleep_ns(*(uint64_t *)arg);
	return (int)(loop_now_ns(loop) - start);
}

static void test_timers(void **state)
{
	uint64_t ns = 100000, x = 1;

	fired_count = 0;
	last_due = 0;
	for (unsigned i = 0; i < 200; i++)
		loop_timer_init(&timers[i], timer_fired);
	for (unsigned i = 0; i < 200; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		assert_int_equal(loop_timer_arm(loop, &timers[i], 2000 + (x >> 33) % 5000), 0);
	}
	/* Moved, earlier and later, and taken out. */
	for (unsigned i = 0; i < 200; i += 3)
		loop_timer_arm(loop, &timers[i], 1500 + i * 20 % 7000);
	for (unsigned i = 0; i < 200; i += 4)
		loop_timer_cancel(loop, &timers[i]);
	loop_timer_cancel(loop, &timers[0]);
	assert_int_equal(loop_run_co(loop, sleeps, &ns), 100000);
	assert_int_equal(fired_count, 150);
	for (unsigned i = 0; i < fired_count; i++)
		assert_int_not_equal(fired[i] % 4, 0);
}

static void test_equal_timers(void **state)
{
	uint64_t ns = 10000;

	fired_count = 0;
	last_due = 0;
	for (unsigned i = 0; i < 100; i++) {
		loop_timer_init(&timers[i], timer_fired);
		loop_timer_arm(loop, &timers[i], 5000);
	}
	loop_timer_arm(loop, &timers[7], 5000); /* to the end of the equals */
	assert_int_equal(loop_run_co(loop, sleeps, &ns), 10000);
	assert_int_equal(fired_count, 100);
	assert_int_equal(fired[99], 7);
	for (unsigned i = 0; i < 99; i++)
		assert_int_equal(fired[i], i < 7 ? i : i + 1);
}

/* A timer that arms itself for now must not keep the loop from its coroutines. */
static unsigned rearmed;
static void rearm(struct loop_timer *t)
{
	rearmed++;
	loop_timer_arm(loop, t, world.now_ns);
}

static int with_busy_timer(void *arg)
{
	for (int i = 0; i < 10; i++)
		co_yield ();
	return 0;
}

static void test_busy_timer(void **state)
{
	struct loop_timer t;

	rearmed = 0;
	loop_timer_init(&t, rearm);
	loop_timer_arm(loop, &t, world.now_ns);
	assert_int_equal(run(with_busy_timer), 0);
	assert_in_range(rearmed, 5, 12);
	loop_timer_cancel(loop, &t);
}

static void test_run_stop(void **state)
{
	struct loop_timer t;

	loop_timer_init(&t, stop_loop);
	loop_timer_arm(loop, &t, 77777);
	loop_run(loop);
	assert_int_equal(world.now_ns, 77777);
	story[0] = '\0';
	assert_int_equal(spawn(teller, "z"), 0);
	loop_timer_arm(loop, &t, 88888);
	loop_run(loop);
	assert_string_equal(story, "zzz");
}

/* ---- conditions and locks ---- */

static struct co_cond cond;
static struct co_mutex mutex;
static struct co_rwlock rwlock;

static void waits(void *arg)
{
	co_cond_wait(&cond);
	tell(arg);
}

static void waits_until(void *arg)
{
	int err = co_cond_wait_until(&cond, 5000);

	tell(err == -ETIMEDOUT ? "T" : "W");
	tell(arg);
}

static int conditions(void *arg)
{
	co_cond_init(&cond);
	co_cond_wake_one(&cond); /* nobody: not remembered */
	assert_int_equal(spawn(waits, "a"), 0);
	assert_int_equal(spawn(waits_until, "b"), 0);
	assert_int_equal(spawn(waits_until, "c"), 0);
	assert_int_equal(spawn(waits, "d"), 0);
	co_yield ();
	assert_true(co_cond_has_waiters(&cond));
	assert_string_equal(story, "");
	co_cond_wake_one(&cond);
	co_cond_wake_one(&cond);
	co_yield ();
	assert_string_equal(story, "aWb");
	co_sleep_ns(10000);
	assert_string_equal(story, "aWbTc");
	co_cond_wake_all(&cond);
	assert_false(co_cond_has_waiters(&cond));
	co_yield ();
	assert_string_equal(story, "aWbTcd");
	/* Already past, and never. */
	assert_int_equal(co_cond_wait_until(&cond, 0), -ETIMEDOUT);
	assert_false(co_cond_has_waiters(&cond));
	return 0;
}

static void test_cond(void **state)
{
	assert_int_equal(run(conditions), 0);
}

static unsigned inside;
static void locks(void *arg)
{
	co_mutex_lock(&mutex);
	assert_int_equal(inside++, 0);
	tell(arg);
	co_yield ();
	co_sleep_ns(10);
	assert_int_equal(--inside, 0);
	co_mutex_unlock(&mutex);
	/* Fair: whoever waits is before us. */
	co_mutex_lock(&mutex);
	tell(arg);
	co_mutex_unlock(&mutex);
}

static int mutexes(void *arg)
{
	co_mutex_init(&mutex);
	assert_true(co_mutex_trylock(&mutex));
	assert_false(co_mutex_trylock(&mutex));
	assert_int_equal(spawn(locks, "a"), 0);
	assert_int_equal(spawn(locks, "b"), 0);
	assert_int_equal(spawn(locks, "c"), 0);
	co_yield ();
	co_mutex_unlock(&mutex);
	assert_false(co_mutex_trylock(&mutex)); /* handed to a already */
	while (loop_co_count(loop) > 1)
		co_sleep_ns(10);
	assert_true(co_mutex_trylock(&mutex));
	co_mutex_unlock(&mutex);
	return 0;
}

static void test_mutex(void **state)
{
	assert_int_equal(run(mutexes), 0);
	assert_string_equal(story, "abcabc");
}

static int readers, writers;
static void reads(void *arg)
{
	co_rwlock_read(&rwlock);
	readers++;
	assert_int_equal(writers, 0);
	tell(arg);
	co_sleep_ns(100);
	readers--;
	co_rwlock_unlock(&rwlock);
}

static void writes(void *arg)
{
	co_rwlock_write(&rwlock);
	writers++;
	assert_int_equal(readers, 0);
	assert_int_equal(writers, 1);
	tell(arg);
	co_sleep_ns(100);
	writers--;
	co_rwlock_unlock(&rwlock);
}

static int rwlocks(void *arg)
{
	uint64_t start = loop_now_ns(loop);

	co_rwlock_init(&rwlock);
	assert_int_equal(spawn(reads, "1"), 0);
	assert_int_equal(spawn(reads, "2"), 0);
	assert_int_equal(spawn(writes, "A"), 0);
	assert_int_equal(spawn(reads, "3"), 0); /* behind the writer */
	assert_int_equal(spawn(reads, "4"), 0);
	assert_int_equal(spawn(writes, "B"), 0);
	assert_int_equal(spawn(writes, "C"), 0);
	co_yield ();
	assert_string_equal(story, "12");
	while (loop_co_count(loop) > 1)
		co_sleep_ns(1);
	assert_in_range(loop_now_ns(loop) - start, 500, 505); /* 12 A 34 B C */
	return 0;
}

static void test_rwlock(void **state)
{
	assert_int_equal(run(rwlocks), 0);
	assert_string_equal(story, "12A34BC");
}

/* ---- memory and I/O that wait ---- */

static void takes(void *arg)
{
	size_t bytes = *(char *)arg == 'L' ? BUF_BYTES_MAX : BLOCK_BYTES;
	void *p = buf_get_wait(bytes);

	tell(arg);
	co_yield ();
	buf_put(p);
}

static int memory(void *arg)
{
	void *all = buf_get_wait(BUF_BYTES_MAX);

	assert_int_equal(spawn(takes, "a"), 0);
	assert_int_equal(spawn(takes, "L"), 0);
	assert_int_equal(spawn(takes, "b"), 0);
	for (int i = 0; i < 5; i++)
		co_yield ();
	assert_string_equal(story, "");
	buf_put(all);
	while (loop_co_count(loop) > 1)
		co_yield ();
	assert_int_equal(buf_pool_used_bytes(), 0);
	return 0;
}

static void test_buf_wait(void **state)
{
	assert_int_equal(buf_pool_init(BUF_BYTES_MAX), 0);
	assert_int_equal(run(memory), 0);
	assert_string_equal(story, "aLb");
	buf_pool_exit();
}

static void quiet(enum log_level level, const char *text, void *arg)
{
}

static int batches(void *arg)
{
	struct dev dev = {
	    .ops = &fake_ops, .size_bytes = 1u << 20, .volatile_cache = true, .name = "fake"};
	char *p = buf_get(4 * BLOCK_BYTES);
	struct iovec iov[2] = {{p, BLOCK_BYTES}, {p + 2 * BLOCK_BYTES, 2 * BLOCK_BYTES}};
	struct io_batch batch;
	struct io io[4];

	io_batch_init(&batch, loop);
	assert_int_equal(io_batch_wait(&batch), 0); /* empty: does not wait */
	io_read(&batch, &io[0], &dev, 0, p, BLOCK_BYTES);
	io_writev(&batch, &io[1], &dev, BLOCK_BYTES, iov, 2);
	io_flush(&batch, &io[2], &dev);
	assert_int_equal(batch.pending, 3);
	assert_int_equal(io[1].len_bytes, 3 * BLOCK_BYTES);
	assert_false(io[0].done);
	assert_int_equal(io_batch_wait(&batch), 0);
	assert_true(io[0].done && io[1].done && io[2].done);

	world.answer = -ETIMEDOUT;
	log_set_hook(quiet, NULL);
	io_batch_init(&batch, loop);
	io_read(&batch, &io[0], &dev, 0, p, BLOCK_BYTES);
	io_read(&batch, &io[1], &dev, 1u << 20, p, BLOCK_BYTES);	  /* at the end */
	io_read(&batch, &io[2], &dev, UINT64_MAX - 4095, p, BLOCK_BYTES); /* would wrap around */
	io_write(&batch, &io[3], &dev, (1u << 20) - BLOCK_BYTES, p, 2 * BLOCK_BYTES);
	assert_int_equal(io_batch_wait(&batch), -EIO);
	assert_int_equal(io[0].result, -ETIMEDOUT);
	assert_int_equal(io[1].result, -EIO);
	assert_int_equal(io[2].result, -EIO);
	assert_int_equal(io[3].result, -EIO);

	log_set_hook(NULL, NULL);
	assert_int_equal(io_write_sync(&dev, 0, p, BLOCK_BYTES), -ETIMEDOUT);
	assert_int_equal(io_flush_sync(&dev), -ETIMEDOUT);
	dev.volatile_cache = false;
	assert_int_equal(io_flush_sync(&dev), 0); /* not asked */
	world.answer = 0;
	assert_int_equal(io_read_sync(&dev, 4096, p, BLOCK_BYTES), 0);
	buf_put(p);
	dev_close(&dev);
	dev_close(NULL);
	return 0;
}

static void test_batch(void **state)
{
	assert_int_equal(buf_pool_init(BUF_BYTES_MAX), 0);
	assert_int_equal(run(batches), 0);
	assert_int_equal(buf_pool_used_bytes(), 0);
	buf_pool_exit();
}

/* ---- the idle hook ---- */

static struct {
	unsigned calls;
	bool ran;
} idle;

static void idle_work(void *arg)
{
	co_yield ();
	idle.ran = true;
	loop_stop(loop);
}

/* Starts work that goes on by itself, and says that it has nothing more. */
static bool idle_hook(void *arg)
{
	if (idle.calls++ == 0)
		assert_int_equal(co_start(loop, idle_work, NULL), 0);
	return false;
}

static bool idle_stop(void *arg)
{
	loop_stop(loop);
	return false;
}

/* The world sleeps for ever, and says so, when the loop does not look after its hook. */
static void test_idle_hook(void **state)
{
	memset(&idle, 0, sizeof(idle));
	loop_set_idle_hook(loop, idle_hook, NULL);
	loop_run(loop);
	assert_true(idle.ran);
	assert_int_equal(idle.calls, 1);
	loop_set_idle_hook(loop, idle_stop, NULL);
	loop_run(loop);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    T(test_order),	T(test_start),	    T(test_no_memory), T(test_many),
	    T(test_count_max),	T(test_deep),	    T(test_timers),    T(test_equal_timers),
	    T(test_busy_timer), T(test_run_stop),   T(test_cond),      T(test_mutex),
	    T(test_rwlock),	T(test_guard_page), T(test_buf_wait),  T(test_batch),
	    T(test_idle_hook),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
