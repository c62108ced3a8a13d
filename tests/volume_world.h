/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A volume on simulated members, and what it must give back: the bench of the tests of raid/ that work on whole
 * volumes. Included once by each of them.
 */
#ifndef TESTS_VOLUME_WORLD_H
#define TESTS_VOLUME_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "die.h"

#include "raid/volume.h"
#include "sim/simdev.h"
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>

#define DISKS_MAX  16
#define BLOCKS_MAX 32768
#define DISK_BYTES (80ull << 20)
#define POOL_BYTES (64u << 20)

struct disk {
	struct simdev *dev;
	bool offered; /* at the next open */
};

static struct world *world;
static struct loop *loop;
static struct raid *raid;
static struct disk disks[DISKS_MAX];
static unsigned disk_count, member_count, tolerance, level;
static struct rng rng;
static struct {
	uint64_t lba, version;
} model[BLOCKS_MAX];
static unsigned model_count;
static uint64_t version_next = 1;

/* What the next disks are like. */
static uint64_t disk_bytes = DISK_BYTES, disk_garbage_bytes;
static uint32_t disk_sector_bytes = 512;
static bool disk_write_through;

/* ---- the bench; all in the coroutine of the test unless said otherwise ---- */

static inline unsigned disk_add_bytes(uint64_t bytes)
{
	struct simdev_params p = {.size_bytes = bytes,
				  .sector_bytes = disk_sector_bytes,
				  .volatile_cache = !disk_write_through,
				  .crash_keep = 40,
				  .crash_garble = 20};
	char name[16];

	assert_true(disk_count < DISKS_MAX);
	(void)snprintf(name, sizeof(name), "disk%u", disk_count);
	disks[disk_count].dev = simdev_new(world, name, &p);
	assert_non_null(disks[disk_count].dev);
	disks[disk_count].offered = true;
	if (disk_garbage_bytes)
		simdev_garble(disks[disk_count].dev, 0, disk_garbage_bytes);
	return disk_count++;
}

static inline void format(void)
{
	struct raid_format_params params = {.level = (int)level,
					    .groups = level >= 50 ? 2 : 0,
					    .journal_bytes = 4 << 20,
					    .slice_bytes = 4 << 20,
					    .strip_bytes = 16 << 10};
	struct dev *devs[DISKS_MAX];

	for (unsigned i = 0; i < member_count; i++)
		devs[i] = simdev_open(disks[disk_add_bytes(disk_bytes)].dev);
	assert_int_equal(raid_format(loop, devs, member_count, &params), 0);
	for (unsigned i = 0; i < member_count; i++)
		dev_close(devs[i]);
}

static inline int open_flags(unsigned flags)
{
	struct raid_options options = {.flags = flags};
	struct dev *devs[DISKS_MAX];
	unsigned count = 0;
	int err;

	for (unsigned i = disk_count; i-- > 0;)
		if (disks[i].offered && !simdev_is_gone(disks[i].dev))
			devs[count++] = simdev_open(disks[i].dev);
	err = raid_open(loop, devs, count, NULL, &options, &raid);
	while (err && count)
		dev_close(devs[--count]);
	if (err)
		raid = NULL;
	return err;
}

static inline void open_volume(void)
{
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(raid_start(raid), 0);
}

static inline void close_volume(void)
{
	assert_int_equal(raid_close(raid), 0);
	raid = NULL;
	for (unsigned i = 0; i < disk_count; i++)
		assert_int_equal(simdev_handles(disks[i].dev), 0);
}

static inline void crash(void)
{
	world_crash(world);
	raid_abandon(raid);
	raid = NULL;
	world_restart(world);
}

static inline void fill(void *data, uint64_t lba, uint64_t version)
{
	uint64_t *w = data, x = lba * 0x9e3779b97f4a7c15ull ^ version * 0xbf58476d1ce4e5b9ull;

	for (unsigned i = 0; i < BLOCK_BYTES / 8; i++)
		w[i] = x += 0x94d049bb133111ebull;
}

/* `count` new blocks, live; not committed. */
static inline void write_blocks(unsigned count)
{
	struct raid_block blocks[64];
	struct raid_run runs[16];

	while (count) {
		unsigned want = MIN(count, ARRAY_SIZE(blocks)), n = 0, run_count;
		char *data = buf_get_wait((size_t)want * BLOCK_BYTES);

		assert_int_equal(raid_alloc_data(raid, want, 0, runs, ARRAY_SIZE(runs), &run_count),
				 0);
		for (unsigned i = 0; i < run_count; i++) {
			for (unsigned k = 0; k < runs[i].count; k++) {
				assert_true(model_count < BLOCKS_MAX);
				model[model_count].lba = runs[i].lba + k;
				model[model_count].version = version_next++;
				blocks[n] = (struct raid_block){
				    .lba = runs[i].lba + k, .data = data + (size_t)n * BLOCK_BYTES};
				fill(blocks[n].data, model[model_count].lba,
				     model[model_count].version);
				model_count++;
				n++;
			}
		}
		assert_int_equal(
		    raid_write(raid, blocks, n, rng_chance(&rng, 1, 4) ? RAID_WRITE_JOURNAL : 0),
		    0);
		for (unsigned i = 0; i < run_count; i++)
			raid_stage_live(raid, runs[i].lba, runs[i].count);
		buf_put(data);
		count -= n;
	}
}

/* Overwrites some of what is there, in place. */
static inline void overwrite_blocks(unsigned count)
{
	char *data = buf_get_wait(BLOCK_BYTES);

	while (count--) {
		unsigned i = (unsigned)rng_below(&rng, model_count);
		struct raid_block block = {.lba = model[i].lba, .data = data};

		model[i].version = version_next++;
		fill(data, block.lba, model[i].version);
		assert_int_equal(raid_write(raid, &block, 1, 0), 0);
	}
	buf_put(data);
}

static inline void kill_blocks(unsigned count)
{
	while (count-- && model_count) {
		unsigned i = (unsigned)rng_below(&rng, model_count);

		raid_stage_dead(raid, model[i].lba, 1);
		model[i] = model[--model_count];
	}
}

static inline void commit(void)
{
	assert_int_equal(raid_commit(raid), 0);
}

static inline void work(unsigned count)
{
	write_blocks(count);
	overwrite_blocks(count / 8);
	kill_blocks(count / 4);
	commit();
}

static inline void compare(void)
{
	char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];

	for (unsigned i = 0; i < model_count; i++) {
		assert_int_equal(raid_read(raid, model[i].lba, 1, data), 0);
		fill(want, model[i].lba, model[i].version);
		assert_memory_equal(data, want, BLOCK_BYTES);
	}
	buf_put(data);
}

static inline void print_problem(void *arg, const char *text)
{
	(void)arg;
	printf("problem: %s\n", text);
}

static inline void quiet_problem(void *arg, const char *text)
{
	(void)arg;
	(void)text;
}

static inline void check_clean(void)
{
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	assert_int_equal(raid_check(raid, print_problem, NULL), 0);
	compare();
	close_volume();
}

/* Index of the member on that disk. */
static inline unsigned member_on(unsigned disk)
{
	for (unsigned i = 0; i < raid->t->member_count; i++)
		if (raid->t->members[i].state != MEMBER_REMOVED &&
		    !strcmp(raid->t->members[i].hint, simdev_name(disks[disk].dev)))
			return i;
	fail_msg("disk %u is no member", disk);
	return 0;
}

static inline struct raid_info info(void)
{
	struct raid_info i;

	raid_info(raid, &i);
	return i;
}

static inline struct raid_job_info scrub(void)
{
	assert_int_equal(raid_scrub_start(raid), 0);
	assert_int_equal(raid_scrub_wait(raid), 0);
	return info().scrub;
}

static inline unsigned replace(unsigned old)
{
	unsigned disk = disk_add_bytes(simdev_size_bytes(disks[old].dev));

	assert_int_equal(raid_replace(raid, member_on(old), simdev_open(disks[disk].dev)), 0);
	return disk;
}

static inline void rebuild(void)
{
	assert_int_equal(raid_rebuild_wait(raid), 0);
	assert_int_equal(info().chunks_below_target, 0);
	assert_int_equal(info().state, RAID_OPTIMAL);
	assert_int_equal(info().rebuild.lost, 0);
}

/* Closed: everything is read with each set of `tolerance` members away that contains `first`, or
 * some of them. */
static inline void prove_redundancy(void)
{
	for (unsigned first = 0; first < disk_count; first++) {
		unsigned second =
		    tolerance > 1
			? (first + 1 + (unsigned)rng_below(&rng, disk_count - 1)) % disk_count
			: first;
		bool was_first = disks[first].offered, was_second = disks[second].offered;

		disks[first].offered = disks[second].offered = false;
		assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
		compare();
		close_volume();
		disks[first].offered = was_first;
		disks[second].offered = was_second;
	}
}

/* Somebody else at work on the volume meanwhile. */
struct writer {
	bool stop, ended;
	struct co_cond done;
};

static inline void writer_stop(struct writer *w)
{
	w->stop = true;
	while (!w->ended)
		co_cond_wait(&w->done);
}

/* ---- running them ---- */

struct run {
	void (*test)(void);
};

static inline int run_co(void *arg)
{
	struct run *r = arg;

	r->test();
	return 0;
}

static bool verbose;

static inline void quiet(enum log_level l, const char *text, void *arg)
{
	(void)arg;
	if (verbose)
		printf("%d %s\n", (int)l, text);
}

/* Not in a coroutine. */
static inline void run(void (*test)(void), unsigned on_level, unsigned members, uint64_t seed)
{
	struct run r = {test};

	level = on_level;
	member_count = members;
	tolerance = geom_tolerance(level, members);
	disk_count = model_count = 0;
	version_next = 1;
	world = world_new(seed);
	loop = loop_new(&world_backend, world);
	rng_seed(&rng, seed);
	assert_int_equal(loop_run_co(loop, run_co, &r), 0);
	assert_int_equal(loop_co_count(loop), 0);
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(disks[i].dev);
	loop_free(loop);
	world_free(world);
	assert_int_equal(buf_pool_used_bytes(), 0);
}

static inline void run_levels(void (*test)(void))
{
	static const struct {
		unsigned level, members;
	} shapes[] = {{1, 2}, {5, 3}, {6, 5}, {10, 4}, {50, 6}};

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
		for (uint64_t seed = 1; seed <= 2; seed++)
			run(test, shapes[i].level, shapes[i].members, seed * 100 + i);
}

static inline int setup(void **state)
{
	verbose = getenv("VERBOSE") != NULL;
	log_set_hook(quiet, NULL);
	return buf_pool_init(POOL_BYTES);
}

static inline int teardown(void **state)
{
	buf_pool_exit();
	return 0;
}

#endif
