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
		world_crash_at(world, POINT_SUBMIT_FLUSH, 1);
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


int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_torn_record),
	    cmocka_unit_test(test_rotten_reads),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
