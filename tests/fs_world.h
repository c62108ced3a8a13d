/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the tests of names and of file data share: a filesystem on the volume in memory, crashes,
 * the checker, a random number. Included once by each of them.
 */
#ifndef TESTS_FS_WORLD_H
#define TESTS_FS_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "die.h"
#include "fake_raid.h"
#include "fs/private.h"

#define POOL_BYTES (64u << 20)

struct world {
	struct loop *loop;
	struct raid *raid;
	struct fs *fs;
	struct fs_options options;
	uint64_t random;
};

static uint64_t clock_s;
static inline void test_now(struct timespec *ret)
{
	*ret = (struct timespec){.tv_sec = (time_t)++clock_s, .tv_nsec = 7};
}

static inline uint64_t rnd(struct world *w, uint64_t below)
{
	w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
	uint64_t x = w->random ^ w->random >> 32;
	return (x * 0x9e3779b97f4a7c15ull >> 16) % below;
}

#define check_ok(expr)                                                                             \
	do {                                                                                       \
		int ok_r = (expr);                                                                 \
		if (ok_r)                                                                          \
			die("%s: %d (%s)", #expr, ok_r, strerror(-ok_r));                          \
	} while (0)
#define check_err(expr, want)                                                                      \
	do {                                                                                       \
		int err_r = (expr);                                                                \
		if (err_r != (want))                                                               \
			die("%s: %d instead of %d", #expr, err_r, (want));                         \
	} while (0)

static inline void no_log(enum log_level level, const char *text, void *arg)
{
	if (getenv("TEST_LOG"))
		fprintf(stderr, "%s\n", text);
}

static inline void check_report(void *arg, const char *id, const char *text)
{
	fprintf(stderr, "fsck: %s: %s\n", id, text);
}

/* Nothing is mounted. */
static inline void world_check(struct world *w)
{
	struct fs_check_stats stats;
	int64_t n = fs_check(w->raid, check_report, NULL, &stats);
	if (n)
		die("fs_check found %lld problems", (long long)n);
}

static inline void world_mount(struct world *w)
{
	check_ok(fs_mount(w->raid, &w->options, &w->fs));
}

static inline void world_remount(struct world *w)
{
	check_ok(fs_unmount(w->fs));
	check_ok(raid_close(w->raid));
	fake_raid_reopen(w->raid);
	assert_int_equal(fake_raid_allocated_blocks(w->raid, CHUNK_DATA), 0);
	world_check(w);
	world_mount(w);
}

static inline void world_crash(struct world *w)
{
	raid_abandon(w->raid);
	fs_abandon(w->fs);
	fake_raid_crash(w->raid);
	world_check(w);
	world_mount(w);
}

/* More seeds than the usual few: TEST_SEEDS=count TEST_SEED=first test_file. */
static inline uint64_t env_number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text ? strtoull(text, NULL, 10) : otherwise;
}
#define for_seeds(seed, count)                                                                     \
	for (uint64_t seed = env_number("TEST_SEED", 1),                                           \
		      seed_end = seed + env_number("TEST_SEEDS", count);                           \
	     seed < seed_end; seed++)

struct world_run {
	struct world *w;
	void (*fn)(struct world *w);
};

static inline int world_co(void *arg)
{
	struct world_run *run = arg;
	check_ok(fs_format(run->w->raid));
	world_mount(run->w);
	run->fn(run->w);
	check_ok(fs_unmount(run->w->fs));
	check_ok(raid_close(run->w->raid));
	fake_raid_reopen(run->w->raid);
	world_check(run->w);
	co_sleep_ns(2 * NS_PER_S); /* memory that "hung" reads keep is let go */
	return 0;
}

/* Runs fn in a coroutine on a fresh, mounted filesystem; unmounts and checks it afterwards. */
static inline void world_test(uint64_t seed, const struct fake_raid_params *params,
			      uint64_t dirty_bytes_max, void (*fn)(struct world *w))
{
	if (getenv("TEST_SEEDS"))
		fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	struct world w = {.random = seed * 2 + 1,
			  .options = {.now = test_now, .dirty_bytes_max = dirty_bytes_max}};
	struct fake_raid_params p = {.yield_one_in = 3, .commit_ns_max = UINT64_MAX / 4};
	struct world_run run = {&w, fn};
	if (params)
		p = *params;
	p.seed = seed;
	assert_int_equal(buf_pool_init(POOL_BYTES), 0);
	log_set_hook(no_log, NULL); /* crashes and full volumes are what is tested */
	w.loop = fake_loop_new(seed);
	w.raid = fake_raid_new(w.loop, &p);
	assert_int_equal(loop_run_co(w.loop, world_co, &run), 0);
	fake_raid_free(w.raid);
	fake_loop_free(w.loop);
	assert_int_equal(buf_pool_used_bytes(), 0);
	buf_pool_exit();
}

/* Several coroutines side by side; waits for all. */
struct world_part {
	struct world *w;
	unsigned number;
	void (*fn)(struct world *w, unsigned number);
	unsigned *left;
	struct co_cond *done;
};

static inline void world_part_co(void *arg)
{
	struct world_part *p = arg;
	p->fn(p->w, p->number);
	if (--*p->left == 0)
		co_cond_wake_all(p->done);
}

static inline void world_side_by_side(struct world *w, unsigned count,
				      void (*fn)(struct world *w, unsigned number))
{
	struct world_part parts[16];
	struct co_cond done;
	unsigned left = count;
	co_cond_init(&done);
	for (unsigned k = 0; k < count; k++) {
		parts[k] = (struct world_part){w, k, fn, &left, &done};
		assert_int_equal(co_spawn(w->loop, world_part_co, &parts[k]), 0);
	}
	while (left)
		co_cond_wait(&done);
}

#endif
