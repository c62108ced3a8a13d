/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume on simulated members: what is written is read back, with members gone, damaged,
 * replaced and returned; and after each repair the redundancy that is claimed is there, which is
 * shown by taking other members away.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "raid/volume.h"
#include "sim/simdev.h"
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>

#define DISKS_MAX  16
#define BLOCKS_MAX 8192
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

/* ---- the bench; all in the coroutine of the test unless said otherwise ---- */

static unsigned disk_add_bytes(uint64_t bytes)
{
	struct simdev_params p = {.size_bytes = bytes,
				  .sector_bytes = 512,
				  .volatile_cache = true,
				  .crash_keep = 40,
				  .crash_garble = 20};
	char name[16];

	assert_true(disk_count < DISKS_MAX);
	(void)snprintf(name, sizeof(name), "disk%u", disk_count);
	disks[disk_count].dev = simdev_new(world, name, &p);
	assert_non_null(disks[disk_count].dev);
	disks[disk_count].offered = true;
	return disk_count++;
}

static void format(void)
{
	struct raid_format_params params = {.level = (int)level,
					    .groups = level >= 50 ? 2 : 0,
					    .journal_bytes = 4 << 20,
					    .slice_bytes = 4 << 20,
					    .strip_bytes = 16 << 10};
	struct dev *devs[DISKS_MAX];

	for (unsigned i = 0; i < member_count; i++)
		devs[i] = simdev_open(disks[disk_add_bytes(DISK_BYTES)].dev);
	assert_int_equal(raid_format(loop, devs, member_count, &params), 0);
	for (unsigned i = 0; i < member_count; i++)
		dev_close(devs[i]);
}

static int open_flags(unsigned flags)
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

static void open_volume(void)
{
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(raid_start(raid), 0);
}

static void close_volume(void)
{
	assert_int_equal(raid_close(raid), 0);
	raid = NULL;
	for (unsigned i = 0; i < disk_count; i++)
		assert_int_equal(simdev_handles(disks[i].dev), 0);
}

static void crash(void)
{
	world_crash(world);
	raid_abandon(raid);
	raid = NULL;
	world_restart(world);
}

static void fill(void *data, uint64_t lba, uint64_t version)
{
	uint64_t *w = data, x = lba * 0x9e3779b97f4a7c15ull ^ version * 0xbf58476d1ce4e5b9ull;

	for (unsigned i = 0; i < BLOCK_BYTES / 8; i++)
		w[i] = x += 0x94d049bb133111ebull;
}

/* `count` new blocks, live; not committed. */
static void write_blocks(unsigned count)
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
static void overwrite_blocks(unsigned count)
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

static void kill_blocks(unsigned count)
{
	while (count-- && model_count) {
		unsigned i = (unsigned)rng_below(&rng, model_count);

		raid_stage_dead(raid, model[i].lba, 1);
		model[i] = model[--model_count];
	}
}

static void commit(void)
{
	assert_int_equal(raid_commit(raid), 0);
}

static void work(unsigned count)
{
	write_blocks(count);
	overwrite_blocks(count / 8);
	kill_blocks(count / 4);
	commit();
}

static void compare(void)
{
	char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];

	for (unsigned i = 0; i < model_count; i++) {
		assert_int_equal(raid_read(raid, model[i].lba, 1, data), 0);
		fill(want, model[i].lba, model[i].version);
		assert_memory_equal(data, want, BLOCK_BYTES);
	}
	buf_put(data);
}

static void print_problem(void *arg, const char *text)
{
	(void)arg;
	printf("problem: %s\n", text);
}

static void quiet_problem(void *arg, const char *text)
{
	(void)arg;
	(void)text;
}

static void check_clean(void)
{
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	assert_int_equal(raid_check(raid, print_problem, NULL), 0);
	compare();
	close_volume();
}

/* Index of the member on that disk. */
static unsigned member_on(unsigned disk)
{
	for (unsigned i = 0; i < raid->t->member_count; i++)
		if (raid->t->members[i].state != MEMBER_REMOVED &&
		    !strcmp(raid->t->members[i].hint, simdev_name(disks[disk].dev)))
			return i;
	fail_msg("disk %u is no member", disk);
	return 0;
}

static struct raid_info info(void)
{
	struct raid_info i;

	raid_info(raid, &i);
	return i;
}

static struct raid_job_info scrub(void)
{
	assert_int_equal(raid_scrub_start(raid), 0);
	assert_int_equal(raid_scrub_wait(raid), 0);
	return info().scrub;
}

static unsigned replace(unsigned old)
{
	unsigned disk = disk_add_bytes(simdev_size_bytes(disks[old].dev));

	assert_int_equal(raid_replace(raid, member_on(old), simdev_open(disks[disk].dev)), 0);
	return disk;
}

static void rebuild(void)
{
	assert_int_equal(raid_rebuild_wait(raid), 0);
	assert_int_equal(info().chunks_below_target, 0);
	assert_int_equal(info().state, RAID_OPTIMAL);
	assert_int_equal(info().rebuild.lost, 0);
}

/* Closed: everything is read with each set of `tolerance` members away that contains `first`, or
 * some of them. */
static void prove_redundancy(void)
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

/* ---- running them ---- */

struct run {
	void (*test)(void);
};

static int run_co(void *arg)
{
	struct run *r = arg;

	r->test();
	return 0;
}

static bool verbose;

static void quiet(enum log_level l, const char *text, void *arg)
{
	(void)arg;
	if (verbose)
		printf("%d %s\n", (int)l, text);
}

/* Not in a coroutine. */
static void run(void (*test)(void), unsigned on_level, unsigned members, uint64_t seed)
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

static void run_levels(void (*test)(void))
{
	static const struct {
		unsigned level, members;
	} shapes[] = {{1, 2}, {5, 3}, {6, 5}, {10, 4}, {50, 6}};

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
		for (uint64_t seed = 1; seed <= 2; seed++)
			run(test, shapes[i].level, shapes[i].members, seed * 100 + i);
}

/* ---- tests ---- */

static void do_reopen(void)
{
	format();
	open_volume();
	work(800);
	compare();
	close_volume();
	check_clean();
	open_volume();
	compare();
	work(300);
	crash();
	open_volume();
	compare();
	close_volume();
	check_clean();
	prove_redundancy();
}

static void test_reopen(void **state)
{
	run_levels(do_reopen);
}

static void do_degraded(void)
{
	format();
	open_volume();
	work(500);
	simdev_vanish(disks[0].dev, true);
	work(300);
	assert_int_equal(info().state, RAID_DEGRADED);
	compare();
	close_volume();
	open_volume();
	compare();
	work(200);
	compare();
	close_volume();
	check_clean();
}

static void test_degraded(void **state)
{
	run_levels(do_degraded);
}

/* Random bytes over blocks of up to `tolerance` disks, and of all in turn over one label place. */
static void damage(void)
{
	for (unsigned d = 0; d < tolerance; d++) {
		struct simdev *dev = disks[d].dev;

		for (unsigned i = 0; i < 200; i++)
			simdev_garble(dev,
				      (1 << 20) +
					  rng_below(&rng, (DISK_BYTES - (2 << 20)) / BLOCK_BYTES) *
					      BLOCK_BYTES,
				      BLOCK_BYTES);
		/* What is used lies in front. */
		for (unsigned i = 0; i < 200; i++)
			simdev_garble(dev,
				      (5 << 20) +
					  rng_below(&rng, (16 << 20) / BLOCK_BYTES) * BLOCK_BYTES,
				      BLOCK_BYTES);
		simdev_garble(dev, d * LABEL_PLACE_BYTES, BLOCK_BYTES);
	}
}

static void do_scrub(void)
{
	struct raid_job_info job;
	uint64_t errors = 0;

	format();
	open_volume();
	work(1500);
	assert_int_equal(scrub().found, 0);
	close_volume();
	damage();
	open_volume();
	job = scrub();
	assert_true(job.found > 0);
	assert_int_equal(job.lost, 0);
	assert_int_equal(job.repaired, job.found);
	job = scrub();
	assert_int_equal(job.found, 0);
	compare();
	for (unsigned i = 0; i < member_count; i++) {
		if (i < tolerance)
			errors += raid->t->members[i].errors_sum;
		else
			assert_int_equal(raid->t->members[i].errors_sum, 0);
	}
	assert_true(errors > 0);
	close_volume();
	check_clean();
	prove_redundancy();
}

static void test_scrub(void **state)
{
	run_levels(do_scrub);
}

static void do_scrub_cursor(void)
{
	format();
	open_volume();
	work(2000);
	assert_int_equal(raid_scrub_start(raid), 0);
	assert_int_equal(raid_scrub_start(raid), -EALREADY);
	co_sleep_ns(2 * NS_PER_MS);
	assert_int_equal(raid_scrub_cancel(raid), 0);
	assert_int_equal(raid_scrub_wait(raid), 0);
	assert_false(raid->t->flags & TABLE_SCRUBBING);
	assert_int_equal(raid_scrub_cancel(raid), -ENOENT);
	assert_int_equal(raid_scrub_start(raid), 0);
	co_sleep_ns(2 * NS_PER_MS);
	close_volume();
	open_volume();
	assert_true(raid->scrub.info.running);
	assert_int_equal(raid_scrub_wait(raid), 0);
	assert_int_equal(raid->t->scrub_cursor, 0);
	assert_false(raid->t->flags & TABLE_SCRUBBING);
	/* And over a crash. */
	assert_int_equal(raid_scrub_start(raid), 0);
	co_sleep_ns(3 * NS_PER_MS);
	crash();
	open_volume();
	if (raid->scrub.info.running)
		assert_int_equal(raid_scrub_wait(raid), 0);
	assert_int_equal(scrub().found, 0);
	close_volume();
	check_clean();
}

static void test_scrub_cursor(void **state)
{
	run_levels(do_scrub_cursor);
}

static void do_fail_replace(void)
{
	unsigned fresh;

	format();
	open_volume();
	work(1000);
	assert_int_equal(raid_fail(raid, 0), 0);
	assert_int_equal(info().state, RAID_DEGRADED);
	work(300);
	compare();
	fresh = replace(0);
	work(100);
	rebuild();
	assert_int_equal(raid->t->members[0].state, MEMBER_REMOVED);
	assert_int_equal(raid->t->members[member_on(fresh)].replaces, -1);
	compare();
	close_volume();
	check_clean();
	prove_redundancy();
	open_volume();
	assert_int_equal(scrub().found, 0);
	close_volume();
}

static void test_fail_replace(void **state)
{
	run_levels(do_fail_replace);
}

struct writer {
	bool stop, ended;
	struct co_cond done;
};

static void writer_co(void *arg)
{
	struct writer *w = arg;

	while (!w->stop && model_count < 4000)
		work(60);
	w->ended = true;
	co_cond_wake_all(&w->done);
}

static void writer_start(struct writer *w)
{
	*w = (struct writer){0};
	co_cond_init(&w->done);
	assert_int_equal(co_spawn(loop, writer_co, w), 0);
}

static void writer_stop(struct writer *w)
{
	w->stop = true;
	while (!w->ended)
		co_cond_wait(&w->done);
}

/* A healthy member is replaced while somebody writes; the old one serves until the end. */
static void do_replace_healthy(void)
{
	struct writer w;
	struct label label;
	struct dev *dev;

	format();
	open_volume();
	work(1200);
	writer_start(&w);
	(void)replace(1);
	rebuild();
	writer_stop(&w);
	compare();
	/* The device of the old one is let go, without its label. */
	co_sleep_ns(20 * NS_PER_S);
	assert_int_equal(simdev_handles(disks[1].dev), 0);
	dev = simdev_open(disks[1].dev);
	assert_int_equal(label_read(dev, &label), -ENODATA);
	dev_close(dev);
	disks[1].offered = false;
	close_volume();
	check_clean();
	prove_redundancy();
}

static void test_replace_healthy(void **state)
{
	run_levels(do_replace_healthy);
}

static void do_returning(void)
{
	uint64_t written;
	struct simdev_stats before, after;

	format();
	open_volume();
	work(3000);
	close_volume();
	disks[1].offered = false;
	open_volume();
	work(100);
	close_volume();
	disks[1].offered = true;
	simdev_stats(disks[1].dev, &before);
	open_volume();
	assert_int_equal(info().state, RAID_REBUILDING);
	compare();
	rebuild();
	simdev_stats(disks[1].dev, &after);
	/* It gets what it missed, which is little. */
	written = (after.write_bytes - before.write_bytes) / BLOCK_BYTES;
	assert_true(info().rebuild.repaired > 0);
	assert_true(info().rebuild.repaired < 500);
	assert_true(written < 4000);
	compare();
	close_volume();
	check_clean();
	prove_redundancy();
}

static void test_returning(void **state)
{
	run_levels(do_returning);
}

/* Closed and crashed in the middle of a rebuild, which goes on at the next start. */
static void do_interrupted(void)
{
	format();
	open_volume();
	work(1500);
	(void)raid_fail(raid, 0);
	(void)replace(0);
	co_sleep_ns(rng_below(&rng, 30) * NS_PER_MS);
	close_volume();
	open_volume();
	compare();
	co_sleep_ns(rng_below(&rng, 30) * NS_PER_MS);
	crash();
	open_volume();
	compare();
	work(200);
	co_sleep_ns(rng_below(&rng, 30) * NS_PER_MS);
	crash();
	open_volume();
	rebuild();
	compare();
	disks[0].offered = false;
	close_volume();
	check_clean();
	prove_redundancy();
}

static void test_interrupted(void **state)
{
	run_levels(do_interrupted);
}

/* The new member fails in the middle, and is itself replaced: its successor takes over from both.
 */
static void do_second_failure(void)
{
	unsigned fresh, third;

	format();
	open_volume();
	work(1500);
	assert_int_equal(raid_fail(raid, 0), 0);
	fresh = replace(0);
	co_sleep_ns(5 * NS_PER_MS);
	simdev_vanish(disks[fresh].dev, true);
	work(200);
	(void)raid_rebuild_wait(raid);
	if (raid->t->members[member_on(fresh)].state == MEMBER_ACTIVE) /* nobody has noticed */
		assert_int_equal(raid_fail(raid, member_on(fresh)), 0);
	assert_int_not_equal(info().state, RAID_FAILED);
	compare();
	third = replace(fresh);
	rebuild();
	assert_int_equal(raid->t->members[0].state, MEMBER_REMOVED);
	(void)third;
	compare();
	close_volume();
	disks[0].offered = false;
	check_clean();
	prove_redundancy();
}

static void test_second_failure(void **state)
{
	run_levels(do_second_failure);
}

/* The source of a copy has bad spots and is pulled half way. */
static void do_bad_source(void)
{
	format();
	open_volume();
	work(1500);
	for (unsigned i = 0; i < 50; i++)
		simdev_garble(disks[0].dev,
			      (5 << 20) + rng_below(&rng, (8 << 20) / BLOCK_BYTES) * BLOCK_BYTES,
			      BLOCK_BYTES);
	assert_int_equal(simdev_fault(disks[0].dev, &(struct simfault){.kind = SIMFAULT_EIO_READ,
								       .off_bytes = 6 << 20,
								       .len_bytes = 64 << 10}),
			 0);
	(void)replace(0);
	co_sleep_ns(10 * NS_PER_MS);
	simdev_vanish(disks[0].dev, true);
	work(100);
	rebuild();
	compare();
	close_volume();
	check_clean();
	prove_redundancy();
}

static void test_bad_source(void **state)
{
	run_levels(do_bad_source);
}

static void do_refusals(void)
{
	unsigned small, half;
	struct dev *dev;

	format();
	open_volume();
	work(200);
	small = disk_add_bytes(48ull << 20);
	disks[small].offered = false;
	half = disk_add_bytes(DISK_BYTES - (1ull << 20));
	/* A member of this volume. */
	dev = simdev_open(disks[1].dev);
	assert_int_equal(raid_replace(raid, 0, dev), -EEXIST);
	dev_close(dev);
	assert_int_equal(raid_replace(raid, 63, NULL), -ENOENT);
	/* Too many failures. */
	for (unsigned i = 0; i < tolerance; i++)
		assert_int_equal(raid_fail(raid, i), 0);
	assert_int_equal(raid_fail(raid, tolerance == 1 && level >= 10 ? 1 : tolerance), -EBUSY);
	assert_int_not_equal(info().state, RAID_FAILED);
	/* Filled up to more than fits the small one. */
	work(6000);
	if (raid->t->members[0].slice_count - raid->t->members[0].slices_free > 9) {
		dev = simdev_open(disks[small].dev);
		assert_int_equal(raid_replace(raid, 0, dev), -ENOSPC);
		dev_close(dev);
	}
	/* A little smaller is no matter. */
	dev = simdev_open(disks[half].dev);
	assert_int_equal(raid_replace(raid, 0, dev), 0);
	assert_int_equal(raid_rebuild_wait(raid), 0);
	compare();
	close_volume();
}

static void test_refusals(void **state)
{
	run(do_refusals, 5, 3, 1);
	run(do_refusals, 6, 5, 2);
	run(do_refusals, 10, 4, 3);
}

static void do_check_finds(void)
{
	const struct chunk *c = NULL;
	struct column col[DISKS_MAX];
	uint64_t row, offs[DISKS_MAX];
	unsigned index, columns;

	format();
	open_volume();
	work(400);
	close_volume();
	open_volume(); /* no image is left in the journal */
	for (unsigned i = 0; i < raid->t->chunk_count; i++)
		if (raid->t->chunks[i]->number == LBA_CHUNK(model[7].lba))
			c = raid->t->chunks[i];
	assert_non_null(c);
	geom_locate(&c->geom, LBA_BLOCK(model[7].lba), &row, &index);
	columns = c->geom.columns;
	for (unsigned k = 0; k < columns; k++) {
		col[k] = c->columns[k];
		offs[k] = table_column_off(raid->t, &col[k], geom_slice_block(&c->geom, row));
	}
	index = geom_column(&c->geom, row, geom_index_slot(&c->geom, index));
	close_volume();
	simdev_rot(disks[col[index].member].dev, offs[index], BLOCK_BYTES, 1);
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	assert_int_equal(raid_check(raid, quiet_problem, NULL), 1);
	close_volume();
	simdev_garble(disks[0].dev, LABEL_PLACE_BYTES, 512);
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	assert_int_equal(raid_check(raid, quiet_problem, NULL), 2);
	close_volume();
	/* Nothing was written: it is found again, then repaired. */
	open_volume();
	assert_true(scrub().found >= 1); /* opening has written one label place anew */
	assert_int_equal(scrub().found, 0);
	close_volume();
	check_clean();
	/* All copies of what one row holds: the block is lost, named, and the rest goes on. */
	for (unsigned k = 0; k < columns; k++)
		simdev_garble(disks[col[k].member].dev, offs[k], BLOCK_BYTES);
	open_volume();
	assert_true(scrub().lost > 0);
	assert_true(scrub().lost > 0);
	close_volume();
}

static void test_check_finds(void **state)
{
	run(do_check_finds, 1, 2, 1);
	run(do_check_finds, 5, 3, 2);
	run(do_check_finds, 6, 5, 3);
}

static int setup(void **state)
{
	verbose = getenv("VERBOSE") != NULL;
	log_set_hook(quiet, NULL);
	return buf_pool_init(POOL_BYTES);
}

static int teardown(void **state)
{
	buf_pool_exit();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_reopen),	   cmocka_unit_test(test_degraded),
	    cmocka_unit_test(test_scrub),	   cmocka_unit_test(test_scrub_cursor),
	    cmocka_unit_test(test_fail_replace),   cmocka_unit_test(test_replace_healthy),
	    cmocka_unit_test(test_returning),	   cmocka_unit_test(test_interrupted),
	    cmocka_unit_test(test_second_failure), cmocka_unit_test(test_bad_source),
	    cmocka_unit_test(test_refusals),	   cmocka_unit_test(test_check_finds),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
