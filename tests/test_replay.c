/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What replay makes of journals that are torn, that read differently from time to time, or that are full. */
#include "volume_world.h"

#define JOURNAL_BYTES (4u << 20)
#define POINTS_MAX    2000 /* of one crash loop: it must have come to its end by then */

static struct simdev *saved[DISKS_MAX];

static void save(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		saved[i] = simdev_clone(disks[i].dev, "saved");
}

static void restore(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		simdev_revert(disks[i].dev, saved[i]);
}

static void save_end(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(saved[i]);
}

/* ---- records that are not what was written ---- */

static unsigned torn;

/* Of everything in the journal one block in eight. */
static enum simfate tears(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	bool journal = block >= LABEL_AREA_BYTES / BLOCK_BYTES &&
		       block < (LABEL_AREA_BYTES + JOURNAL_BYTES) / BLOCK_BYTES;

	return journal && block % 8 == torn ? SIMFATE_DROP : SIMFATE_KEEP;
}

static void set_fate(simfate_fn *fn)
{
	for (unsigned i = 0; i < disk_count; i++)
		simdev_set_fate(disks[i].dev, fn, NULL);
}

/* The first blocks of the model get new content in place, in one record. */
static void overwrite_first(unsigned count, uint64_t version)
{
	char *data = buf_get_wait(BLOCK_BYTES);

	for (unsigned i = 0; i < count; i++) {
		struct raid_block block = {.lba = model[i].lba, .data = data};

		fill(data, block.lba, version);
		assert_int_equal(raid_write(raid, &block, 1, 0), 0);
	}
	buf_put(data);
}

static void do_torn_record(void)
{
	format();
	assert_int_equal(open_flags(0), 0);
	write_blocks(60);
	close_volume();
	save();
	for (torn = 0; torn < 8; torn++) {
		restore();
		set_fate(tears);
		assert_int_equal(open_flags(0), 0);
		overwrite_first(20, 1000000);
		world_crash_at(world, POINT_SUBMIT_WRITE, raid->t->tolerance + 1); /* all copies are on their way */
		assert_int_not_equal(raid_commit(raid), 0);
		world_crash_at(world, 0, 0);
		crash();
		set_fate(NULL);
		check_clean();
		assert_int_equal(open_flags(0), 0);
		compare();
		close_volume();
	}
	save_end();
}

/* All copies of a record lack the same part of it: it is none. */
static void test_torn_record(void **state)
{
	(void)state;
	run(do_torn_record, 5, 3, 1);
	run(do_torn_record, 0, 2, 1);
}

static void do_rotten_reads(void)
{
	struct simfault f = {.kind = SIMFAULT_ROT_READ,
			     .off_bytes = LABEL_AREA_BYTES,
			     .len_bytes = JOURNAL_BYTES,
			     .count = 1};
	uint64_t hit;

	format();
	assert_int_equal(open_flags(0), 0);
	write_blocks(60);
	close_volume();
	assert_int_equal(open_flags(0), 0);
	for (unsigned i = 0; i < 4; i++) {
		overwrite_blocks(40);
		commit();
	}
	crash();
	for (unsigned d = 0; d < disk_count; d++) {
		f.skip = 0;
		do {
			assert_true(f.skip < POINTS_MAX);
			hit = simdev_faults_hit(disks[d].dev);
			assert_int_equal(simdev_fault(disks[d].dev, &f), 0);
			assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
			compare();
			close_volume();
			simdev_faults_clear(disks[d].dev);
			f.skip++;
		} while (simdev_faults_hit(disks[d].dev) > hit);
		assert_true(f.skip > 4); /* each megabyte of the ring */
	}
}

/* Each read of a journal in turn gives a wrong bit, of records that have another copy. */
static void test_rotten_reads(void **state)
{
	(void)state;
	run(do_rotten_reads, 5, 3, 1);
}

/* ---- a ring that is full ---- */

#define METAS 64u
static uint64_t metas[METAS], metas_version; /* the newest that was acknowledged */
static unsigned at_work;
static struct co_cond work_done;

/* All metadata blocks get the next version, in one record. */
static int write_metas(void)
{
	char *data = buf_get_wait(BLOCK_BYTES);
	int err;

	for (unsigned i = 0; i < METAS; i++) {
		fill(data, metas[i], metas_version + 1);
		assert_int_equal(raid_stage_image(raid, metas[i], data), 0);
	}
	buf_put(data);
	err = raid_commit(raid);
	metas_version += !err;
	return err;
}

/* They are of the version that was acknowledged, or all of the next. */
static void compare_metas(void)
{
	char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];
	bool next = false;

	for (unsigned i = 0; i < METAS; i++) {
		assert_int_equal(raid_read(raid, metas[i], 1, data), 0);
		fill(want, metas[i], metas_version + next);
		if (i == 0 && memcmp(data, want, BLOCK_BYTES)) {
			next = true;
			fill(want, metas[i], metas_version + next);
		}
		assert_memory_equal(data, want, BLOCK_BYTES);
	}
	buf_put(data);
}

static void checkpoint_co(void *arg)
{
	(void)journal_checkpoint(raid); /* the power may go */
	at_work--;
	co_cond_wake_all(&work_done);
}

/*
 * While a checkpoint takes its time commits fill the rings, until one has to wait for its end. The power goes at the
 * n-th point from the beginning of the checkpoint on. Returns the first error.
 */
static int fill_rings(uint64_t n)
{
	const uint64_t slices = LABEL_AREA_BYTES + JOURNAL_BYTES;
	struct simfault f = {.kind = SIMFAULT_DELAY,
			     .on = SIMFAULT_ON_WRITE,
			     .off_bytes = slices,
			     .len_bytes = label_b_off(disk_bytes) - slices,
			     .param = NS_PER_S};
	uint64_t began = world_now_ns(world);
	int err;

	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(write_metas(), 0);
	write_blocks(64); /* for the checkpoint to write home */
	for (unsigned i = 0; i < disk_count; i++)
		assert_int_equal(simdev_fault(disks[i].dev, &f), 0);
	co_cond_init(&work_done);
	at_work = 1;
	assert_int_equal(co_spawn(loop, checkpoint_co, NULL), 0);
	while (!raid->journal.finishing)
		co_cond_wait(&raid->journal.done);
	world_crash_at(world, POINT_CHANGES, n);
	do
		err = write_metas();
	while (!err && raid->journal.checkpointing);
	assert_true(err || world_now_ns(world) - began > NS_PER_S); /* it did wait */
	if (!err)
		err = write_metas();
	world_crash(world);
	while (at_work)
		co_cond_wait(&work_done);
	return err;
}

/* Of what is on its way every other block gets there. */
static enum simfate every_other(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	return block % 2 ? SIMFATE_KEEP : SIMFATE_DROP;
}

static void do_full_ring(void)
{
	int err = -1;

	format();
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(raid_meta_ensure(raid, METAS, 0), 0);
	for (unsigned i = 0; i < METAS; i++) {
		metas[i] = raid_alloc_meta(raid, 0);
		raid_stage_live(raid, metas[i], 1);
	}
	metas_version = 0;
	assert_int_equal(write_metas(), 0);
	close_volume();
	save();
	for (uint64_t n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		rng_seed(world_rng(world), 1); /* each pass takes the same way, so that they meet each point */
		metas_version = 1;
		model_count = 0;
		assert_int_equal(open_flags(0), 0);
		set_fate(every_other);
		err = fill_rings(n);
		crash();
		set_fate(NULL);
		for (unsigned i = 0; i < disk_count; i++)
			simdev_faults_clear(disks[i].dev);
		assert_int_equal(open_flags(0), 0);
		compare();
		compare_metas();
		close_volume();
	}
	save_end();
}

/* The record that goes where old ones were is not yet there: then they still count. */
static void test_full_ring(void **state)
{
	(void)state;
	run(do_full_ring, 1, 2, 1); /* all records are in both rings */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_torn_record),
	    cmocka_unit_test(test_rotten_reads),
	    cmocka_unit_test(test_full_ring),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
