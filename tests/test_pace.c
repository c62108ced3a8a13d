/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The arithmetic of the pace, against a foreground whose latency is a function of what the job has just done. Time is
 * counted here and never read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "raid/pace.h"

#define MIB (1024.0 * 1024)
#define TICK_NS (NS_PER_MS / 10)
#define UNIT_BLOCKS_MAX 64u
#define WINDOW_TICKS 100u /* 10 ms: what latency depends on */
#define REQUESTS_MAX 64u

/* A job that does at most device_rate, and a foreground that begins a request every so often. */
static struct bench {
	struct pace pace;
	unsigned priority;
	double device_rate;	 /* bytes of a member in a second */
	uint64_t request_every;	 /* ticks; 0: no foreground */
	double base_ns, slope;	 /* latency is base * (1 + slope * rate of the last 10 ms / device_rate) */
	uint64_t tick;
	double unit_end_ns;	 /* of the one under way */
	bool unit;
	double window[WINDOW_TICKS], window_sum, bytes;
	struct {
		struct pace_request q;
		uint64_t end_tick;
	} requests[REQUESTS_MAX];
	double latency_sum;
	unsigned latency_count;
} b;

static void bench_begin(unsigned priority, double slope)
{
	memset(&b, 0, sizeof(b));
	b.tick = 1000;
	b.priority = priority;
	b.device_rate = 1000 * MIB;
	b.request_every = 2;
	b.base_ns = 1000000;
	b.slope = slope;
	pace_job_begin(&b.pace);
}

static void requests_tick(void)
{
	uint64_t now_ns = b.tick * TICK_NS;
	double rate = b.window_sum / (WINDOW_TICKS * TICK_NS) * 1e9;

	for (unsigned i = 0; i < REQUESTS_MAX; i++) {
		if (b.requests[i].end_tick && b.requests[i].end_tick <= b.tick) {
			pace_request_end(&b.pace, now_ns, &b.requests[i].q, PACE_READ);
			b.requests[i].end_tick = 0;
		}
	}
	if (!b.request_every || b.tick % b.request_every)
		return;
	for (unsigned i = 0; i < REQUESTS_MAX; i++) {
		double ns = b.base_ns * (1 + b.slope * rate / b.device_rate);

		if (b.requests[i].end_tick)
			continue;
		pace_request_begin(&b.pace, now_ns, &b.requests[i].q);
		b.requests[i].end_tick = b.tick + (uint64_t)(ns / TICK_NS + 0.5);
		b.latency_sum += ns;
		b.latency_count++;
		return;
	}
}

static void job_tick(void)
{
	uint64_t now_ns = b.tick * TICK_NS;
	double done = 0;

	/* Several may fit into one tick. */
	while (b.unit_end_ns <= (double)now_ns) {
		unsigned blocks;

		if (b.unit)
			pace_unit_end(&b.pace);
		b.unit = false;
		if (pace_wait_ns(&b.pace, now_ns, b.priority))
			break;
		blocks = pace_unit_blocks(&b.pace, b.priority, UNIT_BLOCKS_MAX);
		assert_in_range(blocks, 1, UNIT_BLOCKS_MAX);
		pace_unit_begin(&b.pace, now_ns, blocks * (uint64_t)BLOCK_BYTES);
		b.unit = true;
		b.unit_end_ns = MAX(b.unit_end_ns, (double)(now_ns - TICK_NS)) +
				blocks * (double)BLOCK_BYTES / b.device_rate * 1e9;
		done += blocks * (double)BLOCK_BYTES;
	}
	b.window_sum += done - b.window[b.tick % WINDOW_TICKS];
	b.window[b.tick % WINDOW_TICKS] = done;
	b.bytes += done;
}

/* What the job did in a second of that many seconds. */
static double bench_run(double seconds)
{
	double before = b.bytes;
	uint64_t ticks = (uint64_t)(seconds * 1e9 / TICK_NS);

	b.latency_sum = 0;
	b.latency_count = 0;
	for (uint64_t i = 0; i < ticks; i++) {
		b.tick++;
		requests_tick();
		job_tick();
	}
	return (b.bytes - before) / seconds;
}

static double latency(void)
{
	return b.latency_sum / b.latency_count;
}

/* With nobody else the device is the limit. */
static void test_idle(void **state)
{
	static const unsigned priorities[] = {PACE_HOST, PACE_BALANCED, PACE_REBUILD};

	for (unsigned i = 0; i < ARRAY_SIZE(priorities); i++) {
		bench_begin(priorities[i], 100);
		b.request_every = 0;
		assert_true(bench_run(1) > 0.8 * b.device_rate);
		assert_int_equal(pace_unit_blocks(&b.pace, b.priority, 48), 48);
	}
}

/* However bad it is for the foreground, the minimum is done, and hardly more. */
static void test_minimum(void **state)
{
	static const unsigned priorities[] = {PACE_HOST, 10, PACE_BALANCED, 99};

	for (unsigned i = 0; i < ARRAY_SIZE(priorities); i++) {
		double min, rate;

		bench_begin(priorities[i], 5000);
		min = (double)pace_rate_min(b.priority);
		(void)bench_run(2);
		rate = bench_run(20);
		assert_true(rate > 0.97 * min);
		assert_true(rate < 1.5 * min);
	}
	assert_int_equal(pace_rate_min(PACE_HOST), PACE_RATE_MIN);
}

/* A foreground that does not feel it does not slow it down for long. */
static void test_harmless(void **state)
{
	bench_begin(PACE_HOST, 0);
	(void)bench_run(10);
	assert_true(bench_run(10) > 0.75 * b.device_rate);
}

/* Between the two: what the priority allows is used and not exceeded for long. */
static void test_balance(void **state)
{
	static const unsigned priorities[] = {PACE_HOST, PACE_BALANCED, 80};
	double last = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(priorities); i++) {
		/* At a tenth of what the device can latency is doubled. */
		double allowed, rate;

		bench_begin(priorities[i], 10);
		allowed = 1.25 + 0.015 * b.priority;
		(void)bench_run(20);
		rate = bench_run(60);
		assert_true(rate > MAX((allowed - 1) / 10 * b.device_rate * 0.4, (double)pace_rate_min(b.priority) * 0.97));
		assert_true(latency() < allowed * 1.2 * b.base_ns);
		assert_true(rate > last);
		last = rate;
	}
}

/* Few requests: it takes longer to know, and the minimum is exceeded meanwhile. */
static void test_sparse(void **state)
{
	bench_begin(PACE_BALANCED, 0);
	b.request_every = 1000; /* ten in a second */
	(void)bench_run(30);
	assert_true(bench_run(10) > 2.0 * (double)pace_rate_min(b.priority));
	bench_begin(PACE_HOST, 200);
	b.request_every = 1000;
	(void)bench_run(60);
	(void)bench_run(120);
	assert_true(latency() < 6 * b.base_ns);
}

static void test_priority_changes(void **state)
{
	bench_begin(PACE_HOST, 200);
	assert_true(bench_run(5) < 20 * MIB);
	b.priority = PACE_REBUILD;
	assert_true(bench_run(1) > 0.8 * b.device_rate);
	b.priority = PACE_BALANCED;
	(void)bench_run(5);
	assert_true(bench_run(5) < 100 * MIB);
	/* The foreground ends. */
	b.request_every = 0;
	(void)bench_run(0.3);
	assert_true(bench_run(1) > 0.8 * b.device_rate);
	/* And comes again. */
	b.request_every = 2;
	(void)bench_run(5);
	assert_true(bench_run(5) < 100 * MIB);
}

/* Requests that outlive the job they were counted under, and one that began before any. */
static void test_jobs(void **state)
{
	struct pace p = {0};
	struct pace_request a, c;

	pace_request_begin(&p, 5, &a);
	pace_job_begin(&p);
	pace_request_begin(&p, 6, &c);
	pace_request_end(&p, 7, &a, PACE_WRITE);
	assert_int_equal(p.requests, 1);
	pace_job_end(&p);
	pace_job_begin(&p);
	assert_int_equal(p.requests, 1);
	assert_true(pace_wait_ns(&p, 8, PACE_BALANCED) > 0);
	pace_request_end(&p, 9, &c, PACE_COMMIT);
	assert_int_equal(p.requests, 0);
	pace_job_end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_idle),    cmocka_unit_test(test_minimum),
	    cmocka_unit_test(test_harmless), cmocka_unit_test(test_balance),
	    cmocka_unit_test(test_sparse),  cmocka_unit_test(test_priority_changes),
	    cmocka_unit_test(test_jobs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
