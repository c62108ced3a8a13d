/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume on simulated members: what is written is read back, with members gone, damaged,
 * replaced and returned; and after each repair the redundancy that is claimed is there, which is
 * shown by taking other members away.
 */
#include "volume_world.h"

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

static void checkpoint_co(void *arg)
{
	struct writer *w = arg;

	assert_int_equal(journal_checkpoint(raid), 0);
	w->ended = true;
	co_cond_wake_all(&w->done);
}

/*
 * A column moves while pages of the chunk are on their way to its old home, by a list that was made before: they
 * must be at the new one too. The last disk has columns of data only.
 */
static void do_move_under_checkpoint(void)
{
	const struct simfault slow = {.kind = SIMFAULT_DELAY,
				      .off_bytes = LABEL_AREA_BYTES + (4 << 20), /* not the journal */
				      .len_bytes = DISK_BYTES - 2 * LABEL_AREA_BYTES - (4 << 20),
				      .param = 2 * NS_PER_S,
				      .on = SIMFAULT_ON_WRITE};
	unsigned last = member_count - 1;
	struct writer w = {0};

	format();
	open_volume();
	write_blocks(1500);
	commit();
	co_cond_init(&w.done);
	assert_int_equal(simdev_fault(disks[last].dev, &slow), 0);
	assert_int_equal(co_spawn(loop, checkpoint_co, &w), 0);
	co_sleep_ns(NS_PER_S / 2);
	assert_true(simdev_faults_hit(disks[last].dev) > 0);
	simdev_faults_clear(disks[last].dev);
	(void)replace(last);
	rebuild();
	assert_true(w.ended);
	close_volume();
	check_clean();
	prove_redundancy();
}

static void test_move_under_checkpoint(void **state)
{
	(void)state;
	run(do_move_under_checkpoint, 5, 3, 1);
	run(do_move_under_checkpoint, 6, 5, 1);
}

/*
 * The new member fails just when the table names it as the home of a column, with nothing to spare: the old home has
 * had every write, and serves on.
 */
static void do_switch_fails(void)
{
	const struct simfault labels = {.kind = SIMFAULT_EIO_WRITE, .len_bytes = LABEL_AREA_BYTES};
	unsigned fresh;

	format();
	open_volume();
	work(300);
	close_volume();
	disks[member_count - 1].offered = false;
	open_volume();
	work(100);
	fresh = replace(0);
	assert_int_equal(simdev_fault(disks[fresh].dev, &labels), 0);
	(void)raid_rebuild_wait(raid); /* there is nobody left to rebuild on */
	assert_true(simdev_faults_hit(disks[fresh].dev) > 0);
	assert_int_equal(raid->t->members[member_on(fresh)].state, MEMBER_MISSING);
	assert_int_equal(raid_error(raid), 0);
	work(100);
	compare();
	crash();
	open_volume();
	compare();
	close_volume();
}

static void test_switch_fails(void **state)
{
	(void)state;
	run(do_switch_fails, 5, 3, 1);
	run(do_switch_fails, 1, 2, 2);
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

/* ---- the pace ---- */

/* Reads one block after the other until it is told to stop. */
static void reader_co(void *arg)
{
	struct writer *w = arg;
	char *data = buf_get_wait(BLOCK_BYTES);

	while (!w->stop)
		assert_int_equal(raid_read(raid, model[rng_below(&rng, model_count)].lba, 1, data), 0);
	buf_put(data);
	w->ended = true;
	co_cond_wake_all(&w->done);
}

/* Simulated time that a rebuild takes, and how much it does of the new member. */
static uint64_t rebuild_ns(unsigned old, uint64_t *ret_bytes)
{
	uint64_t begin_ns = world_now_ns(world);
	unsigned fresh = replace(old);
	struct simdev_stats stats;

	rebuild();
	simdev_stats(disks[fresh].dev, &stats);
	*ret_bytes = stats.write_bytes;
	disks[old].offered = false;
	return world_now_ns(world) - begin_ns;
}

/*
 * With somebody who reads all the time a rebuild at `host` takes longer, and still does its minimum (twice that is allowed for what
 * is not paced: pages, tables); at `rebuild` it takes what it takes alone, and so it does from the moment at which that is set.
 */
static void do_pace(void)
{
	uint64_t idle_ns, host_ns, first_ns, bytes;
	struct writer w = {0};

	format();
	open_volume();
	write_blocks(6000);
	commit();
	assert_int_equal(info().rebuild_priority, 50);
	assert_int_equal(info().scrub_priority, 50);
	assert_int_equal(raid_set_priority(raid, RAID_JOB_REBUILD, 101), -EINVAL);
	assert_int_equal(raid_set_priority(raid, RAID_JOB_REBUILD, 0), 0);
	idle_ns = rebuild_ns(0, &bytes);
	co_cond_init(&w.done);
	assert_int_equal(co_spawn(loop, reader_co, &w), 0);
	host_ns = rebuild_ns(1, &bytes);
	assert_true(host_ns > 3 * idle_ns);
	assert_true(host_ns < NS_PER_S / 4 + 2 * bytes * NS_PER_S / PACE_RATE_MIN);
	assert_int_equal(raid_set_priority(raid, RAID_JOB_REBUILD, 100), 0);
	first_ns = rebuild_ns(2, &bytes);
	assert_true(first_ns < 2 * idle_ns);
	/* While it runs. */
	assert_int_equal(raid_set_priority(raid, RAID_JOB_REBUILD, 0), 0);
	first_ns = world_now_ns(world);
	(void)replace(disk_count - 1);
	co_sleep_ns(idle_ns);
	assert_true(raid->rebuild.info.running);
	assert_int_equal(raid_set_priority(raid, RAID_JOB_REBUILD, 100), 0);
	rebuild();
	assert_true(world_now_ns(world) - first_ns < 4 * idle_ns);
	disks[disk_count - 2].offered = false;
	/* A scrub has its own. */
	assert_int_equal(raid_set_priority(raid, RAID_JOB_SCRUB, 0), 0);
	first_ns = world_now_ns(world);
	assert_int_equal(scrub().found, 0);
	assert_true(world_now_ns(world) - first_ns > 2 * idle_ns);
	/* And ends at once when it is asked to. */
	assert_int_equal(raid_scrub_start(raid), 0);
	co_sleep_ns(300 * NS_PER_MS);
	first_ns = world_now_ns(world);
	assert_int_equal(raid_scrub_cancel(raid), 0);
	assert_int_equal(raid_scrub_wait(raid), 0);
	assert_true(world_now_ns(world) - first_ns < 50 * NS_PER_MS);
	writer_stop(&w);
	close_volume();
	assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
	assert_int_equal(info().rebuild_priority, 100);
	assert_int_equal(info().scrub_priority, 0);
	assert_int_equal(raid_set_priority(raid, RAID_JOB_SCRUB, 1), -EROFS);
	close_volume();
	check_clean();
}

static void test_pace(void **state)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		run(do_pace, 5, 5, seed);
		run(do_pace, 6, 6, seed);
	}
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

/*
 * A member was away while others wrote, and a block of another one is damaged that it did not miss: what it has is
 * right, by its checksum, and is all there is to recover the other from.
 */
static void do_stale_is_right(void)
{
	uint64_t row, off = 0;
	unsigned index, disk = 0;
	struct chunk *c;

	format();
	open_volume();
	write_blocks(200);
	commit();
	close_volume();
	disks[0].offered = false;
	open_volume();
	for (unsigned i = 0; i < model_count && !disk; i++) {
		c = table_chunk(raid->t, LBA_CHUNK(model[i].lba));
		geom_locate(&c->geom, LBA_BLOCK(model[i].lba), &row, &index);
		index = geom_column(&c->geom, row, geom_index_slot(&c->geom, index));
		disk = c->columns[index].member;
		off = table_column_off(raid->t, &c->columns[index], geom_slice_block(&c->geom, row));
	}
	assert_int_not_equal(disk, 0);
	write_blocks(20);
	commit();
	close_volume();
	simdev_garble(disks[disk].dev, off, BLOCK_BYTES);
	disks[0].offered = true;
	open_volume();
	rebuild();
	assert_int_equal(scrub().lost, 0);
	compare();
	close_volume();
	check_clean();
}

static void test_stale_is_right(void **state)
{
	run(do_stale_is_right, 5, 3, 1);
	run(do_stale_is_right, 5, 4, 2);
}

/* All there is, with the reserve: clean rows and holes. It is given back. */
static unsigned take_all(void)
{
	static struct raid_run runs[BLOCKS_MAX];
	unsigned n = 0, count, blocks = 0;
	int err;

	while (!(err = raid_alloc_data(raid, 64, RAID_ALLOC_RESERVE, &runs[n], 64, &count))) {
		for (unsigned i = 0; i < count; i++)
			blocks += runs[n + i].count;
		n += count;
		assert_true(n + 64 <= BLOCKS_MAX);
	}
	assert_int_equal(err, -ENOSPC);
	for (unsigned i = 0; i < n; i++)
		raid_unalloc(raid, runs[i].lba, runs[i].count);
	return blocks;
}

/* A full volume gives out its last block, and again what is freed. */
static void do_full(void)
{
	unsigned all;

	disk_bytes = 48ull << 20;
	format();
	disk_bytes = DISK_BYTES;
	open_volume();
	write_blocks(4000);
	commit();
	all = model_count + take_all();
	for (unsigned round = 0; round < 3; round++) {
		kill_blocks(500);
		commit();
		assert_int_equal(model_count + take_all(), all);
		write_blocks(300);
		commit();
	}
	compare();
	close_volume();
	check_clean();
}

static void test_full(void **state)
{
	run(do_full, 5, 3, 1);
	run(do_full, 6, 5, 1);
	run(do_full, 10, 4, 1);
}

/*
 * A small member takes over, and what is written meanwhile takes its last slices: what cannot move stays where it is.
 * When another member comes, that one takes it.
 */
static void do_successor_full(void)
{
	const struct simfault slow = {
	    .kind = SIMFAULT_DELAY, .len_bytes = DISK_BYTES, .param = NS_PER_S, .on = SIMFAULT_ON_READ};
	const struct member *m;
	unsigned old, small;

	format();
	open_volume();
	write_blocks(4000);
	commit();
	old = member_on(0);
	m = &raid->t->members[old];
	small = disk_add_bytes(table_member_bytes_min(raid->t, m->slice_count - m->slices_free));
	assert_int_equal(simdev_fault(disks[0].dev, &slow), 0);
	assert_int_equal(raid_replace(raid, old, simdev_open(disks[small].dev)), 0);
	for (unsigned n = 0; n < 20 && raid->t->members[member_on(small)].slices_free; n++)
		write_blocks(1000);
	commit();
	assert_int_equal(raid->t->members[member_on(small)].slices_free, 0);
	simdev_faults_clear(disks[0].dev);
	assert_int_equal(raid_rebuild_wait(raid), -ENOSPC);
	compare();
	(void)replace(1);
	(void)raid_rebuild_wait(raid);
	m = &raid->t->members[old];
	assert_int_equal(m->slices_free, m->slice_count);
	compare();
	close_volume();
	check_clean();
}

static void test_successor_full(void **state)
{
	run(do_successor_full, 5, 3, 1);
}

/* Asked to do what cannot be, or is done already. */
static void do_member_refusals(void)
{
	unsigned first, second, old;
	struct dev *dev;

	format();
	open_volume();
	work(300);
	old = member_on(0);
	first = disk_add_bytes(DISK_BYTES);
	second = disk_add_bytes(DISK_BYTES);
	assert_int_equal(raid_fail(raid, 63), -ENOENT);
	simdev_set_read_only(disks[first].dev, true);
	dev = simdev_open(disks[first].dev);
	assert_int_equal(raid_replace(raid, old, dev), -EROFS);
	dev_close(dev);
	simdev_set_read_only(disks[first].dev, false);
	assert_int_equal(raid_fail(raid, old), 0);
	assert_int_equal(raid_fail(raid, old), 0); /* it is */
	assert_int_equal(raid_replace(raid, old, simdev_open(disks[first].dev)), 0);
	dev = simdev_open(disks[second].dev);
	assert_int_equal(raid_replace(raid, old, dev), -EBUSY);
	rebuild();
	assert_int_equal(raid_fail(raid, old), -ENOENT);
	assert_int_equal(raid_replace(raid, old, dev), -ENOENT);
	dev_close(dev);
	compare();
	close_volume();
	disks[0].offered = disks[second].offered = false;
	check_clean();
}

static void test_member_refusals(void **state)
{
	run(do_member_refusals, 5, 3, 1);
	run(do_member_refusals, 6, 5, 2);
	run(do_member_refusals, 10, 4, 3);
}

/*
 * A longer read fails, and hangs when its blocks are read one by one: the member is done without, and writes into
 * nobody's memory when it wakes up.
 */
static void do_hung_reread(void)
{
	struct simfault f = {.kind = SIMFAULT_EIO_READ, .count = 1};
	struct chunk *c;
	uint64_t row;
	unsigned index, disk;

	format();
	open_volume();
	write_blocks(800);
	commit();
	close_volume();
	open_volume(); /* no image is left in the journal */
	c = table_chunk(raid->t, LBA_CHUNK(model[0].lba));
	geom_locate(&c->geom, LBA_BLOCK(model[0].lba), &row, &index);
	index = geom_column(&c->geom, row, geom_index_slot(&c->geom, index));
	disk = c->columns[index].member;
	f.off_bytes = table_column_off(raid->t, &c->columns[index], geom_slice_block(&c->geom, row));
	f.len_bytes = 64 * BLOCK_BYTES;
	assert_int_equal(simdev_fault(disks[disk].dev, &f), 0);
	f.kind = SIMFAULT_HANG;
	f.count = 0;
	assert_int_equal(simdev_fault(disks[disk].dev, &f), 0);
	(void)scrub();
	assert_int_equal(info().redundancy, tolerance - 1); /* it is out */
	compare();
	simdev_faults_clear(disks[disk].dev);
	simdev_unhang(disks[disk].dev);
	co_sleep_ns(NS_PER_S);
	compare();
	close_volume();
}

static void test_hung_reread(void **state)
{
	run(do_hung_reread, 5, 3, 1);
	run(do_hung_reread, 6, 5, 2);
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

#define HANDS	   8
#define HAND_ROUNDS 100
#define HAND_BLOCKS 8

static unsigned hands_left;
static struct co_cond hands_done;

static void meta_hand(void *arg)
{
	for (unsigned k = 0; k < HAND_ROUNDS; k++) {
		assert_int_equal(raid_meta_ensure(raid, HAND_BLOCKS, 0), 0);
		/* What is ready can be had at once, also while another makes a chunk. */
		for (unsigned i = 0; i < HAND_BLOCKS; i++)
			assert_true(raid_alloc_meta(raid, 0) != LBA_NONE);
		co_yield();
	}
	if (--hands_left == 0)
		co_cond_wake_all(&hands_done);
}

/* Many who run short of metadata at the same instant get what they were told, and make one chunk together. */
static void do_meta_many_hands(void)
{
	uint64_t chunk_blocks = 0, metas = 0;

	format();
	open_volume();
	co_cond_init(&hands_done);
	hands_left = HANDS;
	for (unsigned k = 0; k < HANDS; k++)
		assert_int_equal(co_spawn(loop, meta_hand, NULL), 0);
	while (hands_left)
		co_cond_wait(&hands_done);
	for (unsigned i = 0; i < raid->t->chunk_count; i++) {
		if (raid->t->chunks[i]->class != CHUNK_META)
			continue;
		metas++;
		chunk_blocks = raid->t->chunks[i]->geom.blocks;
	}
	assert_true(metas <= 2 + HANDS * HAND_ROUNDS * HAND_BLOCKS / chunk_blocks);
	crash();
}

static void test_meta_many_hands(void **state)
{
	run(do_meta_many_hands, 5, 4, 1);
	run(do_meta_many_hands, 10, 4, 2);
}

/* ---- many at once: none may wait for what another of them holds ---- */

struct crowd {
	unsigned left, errors;
	struct co_cond done;
	uint64_t number;
};

#define CROWD 120u
#define CROWD_BLOCKS 64u

static void crowd_run(struct crowd *c, void (*fn)(void *arg))
{
	*c = (struct crowd){.left = CROWD};
	co_cond_init(&c->done);
	for (unsigned i = 0; i < CROWD; i++)
		assert_int_equal(co_spawn(loop, fn, c), 0);
	while (c->left)
		co_cond_wait(&c->done);
	assert_int_equal(c->errors, 0);
}

static void crowd_left(struct crowd *c, int err)
{
	c->errors += err != 0;
	c->left--;
	co_cond_wake_all(&c->done);
}

static void crowd_reader(void *arg)
{
	struct crowd *c = arg;
	unsigned from = (unsigned)(c->number++ * CROWD_BLOCKS % (model_count - CROWD_BLOCKS));
	uint64_t lba = model[from].lba;
	uint32_t blocks = table_chunk(raid->t, LBA_CHUNK(lba))->geom.blocks;
	char *data;

	lba = LBA_MAKE(LBA_CHUNK(lba), MIN(LBA_BLOCK(lba), blocks - CROWD_BLOCKS));
	/* As the front end has it: what is read together is one piece of memory. */
	data = buf_get_wait((CROWD_BLOCKS + 1) * BLOCK_BYTES);
	crowd_left(c, raid_read(raid, lba, CROWD_BLOCKS, data));
	buf_put(data);
}

static void do_crowd_reads(void)
{
	struct crowd c;

	format();
	open_volume();
	write_blocks(2000);
	commit();
	close_volume();
	open_volume(); /* no page is in memory */
	crowd_run(&c, crowd_reader);
	simdev_vanish(disks[0].dev, true);
	simdev_vanish(disks[1].dev, true);
	crowd_run(&c, crowd_reader);
	compare();
	close_volume();
}

static void test_crowd_reads(void **state)
{
	run(do_crowd_reads, 6, 16, 1);
}

static void crowd_writer(void *arg)
{
	struct crowd *c = arg;
	unsigned from = (unsigned)(c->number++ * CROWD_BLOCKS % (model_count - CROWD_BLOCKS));
	struct raid_block blocks[CROWD_BLOCKS];
	char *data = buf_get_wait(CROWD_BLOCKS * BLOCK_BYTES);

	for (unsigned i = 0; i < CROWD_BLOCKS; i++) {
		blocks[i] = (struct raid_block){.lba = model[from + i].lba,
						.data = data + (size_t)i * BLOCK_BYTES};
		fill(blocks[i].data, blocks[i].lba, model[from + i].version);
	}
	crowd_left(c, raid_write(raid, blocks, CROWD_BLOCKS, 0));
	buf_put(data);
}

/* In place, so all of it goes through the journal, which is small. */
static void do_crowd_writes(void)
{
	struct crowd c;

	format();
	open_volume();
	write_blocks(2000);
	commit();
	crowd_run(&c, crowd_writer);
	commit();
	compare();
	close_volume();
	check_clean();
	/* Before the background work begins nobody but the writers commits. */
	assert_int_equal(open_flags(0), 0);
	crowd_run(&c, crowd_writer);
	close_volume();
	check_clean();
}

static void test_crowd_writes(void **state)
{
	run(do_crowd_writes, 5, 3, 1);
	run(do_crowd_writes, 6, 8, 1);
	run(do_crowd_writes, 10, 4, 1);
}

/* Bad spots where new chunks would begin: their member goes, and writing goes on. */
static void do_bad_slices(void)
{
	format();
	open_volume();
	write_blocks(100);
	commit();
	assert_int_equal(simdev_fault(disks[0].dev,
				      &(struct simfault){.kind = SIMFAULT_EIO_WRITE,
							 .off_bytes = 13 << 20, /* the third slice */
							 .len_bytes = 60 << 20}),
			 0);
	write_blocks(5000);
	commit();
	assert_int_equal(info().state, RAID_DEGRADED);
	compare();
	close_volume();
	check_clean();
}

static void test_bad_slices(void **state)
{
	run_levels(do_bad_slices);
}

/* ---- crashes that no seed comes upon soon ---- */

/* Commits, and leaves the checkpoint that was captured with it to the test. */
static void capture(void)
{
	raid->journal.checkpointer_runs = true;
	raid->journal.want_checkpoint = true;
	commit();
	assert_true(raid->journal.checkpointing);
	raid->journal.checkpointer_runs = false;
}

/*
 * A checkpoint is cut short when one copy of a page has its new generation and the other has not; replay is cut short
 * when it writes the next one, and the member with the newer copy is lost.
 */
static void do_page_generations(void)
{
	struct simdev *before[2], *after[2];
	bool opened = false;

	format();
	assert_int_equal(open_flags(0), 0);
	write_blocks(40);
	assert_int_equal(journal_checkpoint(raid), 0);
	write_blocks(40);
	assert_int_equal(journal_checkpoint(raid), 0);
	write_blocks(40);
	capture();
	before[1] = simdev_clone(disks[1].dev, "before");
	assert_int_equal(journal_write_home(raid, raid->journal.captured), 0);
	before[0] = simdev_clone(disks[0].dev, "before");
	crash();
	for (unsigned n = 1; !opened; n++) {
		for (unsigned i = 0; i < 2; i++)
			simdev_revert(disks[i].dev, before[i]);
		world_crash_at(world, POINT_SUBMIT_WRITE, n);
		opened = !open_flags(0);
		world_crash_at(world, 0, 0);
		if (opened)
			crash();
		else
			world_restart(world);
		for (unsigned i = 0; i < 2; i++)
			after[i] = simdev_clone(disks[i].dev, "after");
		for (unsigned i = 0; i < 2; i++) {
			disks[i].offered = false;
			assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
			compare();
			close_volume();
			disks[i].offered = true;
		}
		for (unsigned i = 0; i < 2; i++)
			simdev_free(after[i]);
	}
	for (unsigned i = 0; i < 2; i++)
		simdev_free(before[i]);
}

static void test_page_generations(void **state)
{
	for (uint64_t seed = 1; seed <= 4; seed++)
		run(do_page_generations, 1, 2, seed);
}

/*
 * A dead block is dropped from its row by a write that no crash may bring to light; meanwhile the row goes home as it was
 * before, with the dead block, as its parity says.
 */
static void do_dropped_slot(void)
{
	struct raid_block block;
	unsigned a = 0, b = 0, index_a, index_b;
	struct chunk *c = NULL;
	struct txn *open, *empty;
	uint64_t row_a, row_b, version;

	format();
	assert_int_equal(open_flags(0), 0);
	write_blocks(200);
	assert_int_equal(journal_checkpoint(raid), 0);
	for (b = 1; b < model_count; b++) { /* two of one row */
		c = table_chunk(raid->t, LBA_CHUNK(model[b].lba));
		geom_locate(&c->geom, LBA_BLOCK(model[a].lba), &row_a, &index_a);
		geom_locate(&c->geom, LBA_BLOCK(model[b].lba), &row_b, &index_b);
		if (row_a == row_b)
			break;
	}
	assert_true(b < model_count);
	block.lba = model[a].lba;
	block.data = buf_get_wait(BLOCK_BYTES);
	fill(block.data, block.lba, version_next++);
	assert_int_equal(raid_write(raid, &block, 1, 0), 0);
	commit();
	raid_stage_dead(raid, model[a].lba, 1);
	commit();
	version = model[b].version;
	overwrite_blocks(0);
	capture();
	block.lba = model[b].lba;
	fill(block.data, block.lba, version_next++);
	assert_int_equal(raid_write(raid, &block, 1, 0), 0);
	buf_put(block.data);
	assert_int_equal(journal_write_home(raid, raid->journal.captured), 0);
	raid->journal.tail = raid->journal.captured_record + 1;
	pages_release(raid);
	raid->journal.checkpointing = false;
	/* The tail becomes durable, the transaction does not. */
	open = raid->journal.open;
	empty = mem_zalloc(sizeof(*empty));
	assert_non_null(empty);
	empty->seq = open->seq;
	list_init(&empty->images);
	list_init(&empty->node);
	raid->journal.open = empty;
	commit();
	mem_free(raid->journal.open);
	raid->journal.open = open;
	crash();
	model[0] = model[b];
	model[0].version = version;
	model_count = 1;
	prove_redundancy();
}

static void test_dropped_slot(void **state)
{
	run(do_dropped_slot, 5, 3, 1);
	run(do_dropped_slot, 6, 5, 1);
}

/* Commits one block after the other; what is acknowledged is in the model. */
static void retire_writer(void *arg)
{
	struct writer *w = arg;
	char *data = buf_get_wait(BLOCK_BYTES);

	while (!w->stop) {
		struct raid_run run;
		unsigned count;
		struct raid_block block = {.data = data};

		if (raid_alloc_data(raid, 1, 0, &run, 1, &count))
			break;
		block.lba = run.lba;
		fill(data, run.lba, version_next);
		if (raid_write(raid, &block, 1, 0))
			break;
		raid_stage_live(raid, run.lba, 1);
		if (raid_commit(raid))
			break;
		model[model_count].lba = run.lba;
		model[model_count++].version = version_next++;
	}
	buf_put(data);
	w->ended = true;
	co_cond_wake_all(&w->done);
}

/* The power goes when a replaced member has just gone, and with it one of those that stay. */
static void do_retire_crash(void)
{
	struct writer w = {0};

	format();
	open_volume();
	write_blocks(100);
	commit();
	co_cond_init(&w.done);
	assert_int_equal(co_spawn(loop, retire_writer, &w), 0);
	(void)replace(1);
	while (raid->t->members[1].state != MEMBER_REMOVED || raid->table_writing)
		co_sleep_ns(1000);
	world_crash(world);
	writer_stop(&w);
	crash();
	disks[1].offered = false;
	prove_redundancy();
}

static void test_retire_crash(void **state)
{
	for (uint64_t seed = 1; seed <= 8; seed++)
		run(do_retire_crash, 1, 2, seed);
}

/* ---- the commit timer ---- */

static bool durable_after(uint64_t seq, uint64_t ns)
{
	co_sleep_ns(ns);
	return raid->journal.durable >= seq;
}

static void do_commit_timer(void)
{
	uint64_t seq;

	format();
	open_volume();
	/* By itself, within 5 s of the change, the commit included; nothing is written for nothing. */
	for (unsigned i = 0; i < 8; i++) {
		co_sleep_ns(rng_below(&rng, 5 * NS_PER_S));
		seq = raid->journal.open->seq;
		write_blocks(3);
		assert_true(durable_after(seq, 5 * NS_PER_S));
	}
	seq = raid->journal.record_seq;
	assert_true(durable_after(0, 60 * NS_PER_S));
	assert_int_equal(raid->journal.record_seq, seq);
	/* Sooner for what has waited already. */
	for (unsigned i = 0; i < 8; i++) {
		uint64_t by = rng_below(&rng, 3 * NS_PER_S);

		commit();
		seq = raid->journal.open->seq;
		write_blocks(3);
		raid_commit_by(raid, loop_now_ns(loop) + by);
		raid_commit_by(raid, loop_now_ns(loop) + by + NS_PER_S);
		assert_true(durable_after(seq, by + 100 * NS_PER_MS));
	}
	compare();
	close_volume();
}

static void test_commit_timer(void **state)
{
	run_levels(do_commit_timer);
}

#define LONG_BLOCKS 48u /* 12 strips */

static uint64_t reads_of_all(void)
{
	uint64_t reads = 0;

	for (unsigned i = 0; i < disk_count; i++) {
		struct simdev_stats stats;

		simdev_stats(disks[i].dev, &stats);
		reads += stats.reads;
	}
	return reads;
}

/* Strips of consecutive stripes lie one after the other on a member, and are read with one I/O. */
static void do_long_read(void)
{
	char *data = buf_get_wait(LONG_BLOCKS * BLOCK_BYTES), *want = buf_get_wait(BLOCK_BYTES);
	unsigned at = 0; /* in the model: the first of so many in a row */
	uint64_t before;

	format();
	open_volume();
	write_blocks(8 * LONG_BLOCKS);
	commit();
	close_volume();
	open_volume(); /* no images any more */
	for (unsigned i = 1; i < at + LONG_BLOCKS; i++) {
		assert_true(i < model_count);
		if (model[i].lba != model[at].lba + (i - at))
			at = i;
	}
	for (int turn = 0; turn < 3; turn++) { /* the first brings the pages in */
		memset(data, 0xa5, LONG_BLOCKS * BLOCK_BYTES);
		before = reads_of_all();
		assert_int_equal(raid_read(raid, model[at].lba, LONG_BLOCKS, data), 0);
		if (turn)
			assert_in_range(reads_of_all() - before, 1, 9); /* of 12 or 13 strips */
		for (unsigned i = 0; i < LONG_BLOCKS; i++) {
			fill(want, model[at + i].lba, model[at + i].version);
			assert_memory_equal(data + (size_t)i * BLOCK_BYTES, want, BLOCK_BYTES);
		}
	}
	buf_put(want);
	buf_put(data);
	close_volume();
}

static void test_long_read(void **state)
{
	run(do_long_read, 6, 6, 1);
	run(do_long_read, 5, 5, 2);
	run(do_long_read, 10, 6, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_reopen),	   cmocka_unit_test(test_degraded),
	    cmocka_unit_test(test_scrub),	   cmocka_unit_test(test_scrub_cursor),
	    cmocka_unit_test(test_fail_replace),   cmocka_unit_test(test_replace_healthy),
	    cmocka_unit_test(test_move_under_checkpoint), cmocka_unit_test(test_switch_fails),
	    cmocka_unit_test(test_returning),	   cmocka_unit_test(test_interrupted),
	    cmocka_unit_test(test_second_failure), cmocka_unit_test(test_bad_source),
	    cmocka_unit_test(test_full),
	    cmocka_unit_test(test_refusals),	   cmocka_unit_test(test_successor_full),
	    cmocka_unit_test(test_member_refusals),
	    cmocka_unit_test(test_stale_is_right),
	    cmocka_unit_test(test_hung_reread),	   cmocka_unit_test(test_check_finds),
	    cmocka_unit_test(test_crowd_reads),	   cmocka_unit_test(test_crowd_writes),
	    cmocka_unit_test(test_page_generations), cmocka_unit_test(test_dropped_slot),
	    cmocka_unit_test(test_retire_crash),   cmocka_unit_test(test_bad_slices),
	    cmocka_unit_test(test_meta_many_hands), cmocka_unit_test(test_pace),
	    cmocka_unit_test(test_commit_timer),
	    cmocka_unit_test(test_long_read),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
