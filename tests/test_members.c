/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Membership of a volume in use: what happens to it when members vanish together, fail now and then, turn read-only,
 * cannot be read in their journals, or are replaced time and again. What a commit promised is in the model, and must be
 * there whenever no more than the level tolerates is gone for good.
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

#define DISKS_MAX     256
#define PROMISES_MAX  4096
#define DISK_BYTES    (64ull << 20)
#define POOL_BYTES    (64u << 20)
#define JOURNAL_BYTES (4u << 20)

static struct world *world;
static struct loop *loop;
static struct raid *raid;
static struct rng rng;
static struct simdev *disks[DISKS_MAX];
static bool offered[DISKS_MAX];
static unsigned disk_count, level, member_count;
static struct {
	uint64_t lba, version;
} promised[PROMISES_MAX];
static unsigned promised_count;
static uint64_t version_next;
static bool verbose;

/* ---- the bench; in the coroutine of the test unless said otherwise ---- */

static unsigned disk_add(void)
{
	struct simdev_params p = {.size_bytes = DISK_BYTES,
				  .sector_bytes = 512,
				  .volatile_cache = true,
				  .crash_keep = 40,
				  .crash_garble = 20};
	char name[16];

	assert_true(disk_count < DISKS_MAX);
	(void)snprintf(name, sizeof(name), "disk%u", disk_count);
	disks[disk_count] = simdev_new(world, name, &p);
	assert_non_null(disks[disk_count]);
	offered[disk_count] = true;
	return disk_count++;
}

static void format(void)
{
	struct raid_format_params params = {.level = (int)level,
					    .groups = level >= 50 ? 2 : 0,
					    .journal_bytes = JOURNAL_BYTES,
					    .slice_bytes = 4 << 20,
					    .strip_bytes = 16 << 10};
	struct dev *devs[MEMBERS_MAX];

	for (unsigned i = 0; i < member_count; i++)
		devs[i] = simdev_open(disks[disk_add()]);
	assert_int_equal(raid_format(loop, devs, member_count, &params), 0);
	for (unsigned i = 0; i < member_count; i++)
		dev_close(devs[i]);
}

static int open_flags(unsigned flags)
{
	struct raid_options options = {.flags = flags};
	struct dev *devs[MEMBERS_MAX];
	unsigned count = 0;
	int err;

	for (unsigned i = disk_count; i-- > 0;)
		if (offered[i] && !simdev_is_gone(disks[i]))
			devs[count++] = simdev_open(disks[i]);
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

/* Writes a block and commits it; what is acknowledged is promised. */
static int promise_one(void)
{
	struct raid_block block = {.data = buf_get_wait(BLOCK_BYTES)};
	struct raid_run run;
	unsigned count;
	int err = raid_alloc_data(raid, 1, 0, &run, 1, &count);

	if (!err) {
		block.lba = run.lba;
		fill(block.data, run.lba, ++version_next);
		err = raid_write(raid, &block, 1, rng_chance(&rng, 1, 4) ? RAID_WRITE_JOURNAL : 0);
	}
	if (!err) {
		raid_stage_live(raid, run.lba, 1);
		err = raid_commit(raid);
	}
	buf_put(block.data);
	if (err)
		return err;
	assert_true(promised_count < PROMISES_MAX);
	promised[promised_count].lba = run.lba;
	promised[promised_count++].version = version_next;
	return 0;
}

static void promise(unsigned count)
{
	while (count--)
		assert_int_equal(promise_one(), 0);
}

static void compare(void)
{
	char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];

	for (unsigned i = 0; i < promised_count; i++) {
		assert_int_equal(raid_read(raid, promised[i].lba, 1, data), 0);
		fill(want, promised[i].lba, promised[i].version);
		assert_memory_equal(data, want, BLOCK_BYTES);
	}
	buf_put(data);
}

static void print_problem(void *arg, const char *text)
{
	(void)arg;
	printf("problem: %s\n", text);
}

static void check_clean(void)
{
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	assert_int_equal(raid_check(raid, print_problem, NULL), 0);
	compare();
	close_volume();
}

static struct raid_info info(void)
{
	struct raid_info i;

	raid_info(raid, &i);
	return i;
}

/* Index of the member on that disk. */
static unsigned member_on(unsigned disk)
{
	for (unsigned i = 0; i < raid->t->member_count; i++)
		if (raid->t->members[i].state != MEMBER_REMOVED &&
		    !strcmp(raid->t->members[i].hint, simdev_name(disks[disk])))
			return i;
	fail_msg("disk %u is no member", disk);
	return 0;
}

static struct raid_member_info member_info(unsigned disk)
{
	struct raid_member_info m;

	assert_int_equal(raid_member_info(raid, member_on(disk), &m), 0);
	return m;
}

static int run_co(void *arg)
{
	void (**test)(void) = arg;

	(*test)();
	return 0;
}

static void quiet(enum log_level l, const char *text, void *arg)
{
	(void)arg;
	if (verbose)
		printf("%d %s\n", (int)l, text);
}

/* Not in a coroutine. */
static void run(void (*test)(void), unsigned on_level, unsigned members, uint64_t seed)
{
	level = on_level;
	member_count = members;
	disk_count = promised_count = 0;
	version_next = 0;
	world = world_new(seed);
	loop = loop_new(&world_backend, world);
	rng_seed(&rng, seed);
	assert_int_equal(loop_run_co(loop, run_co, &test), 0);
	assert_int_equal(loop_co_count(loop), 0);
	for (unsigned i = 0; i < disk_count; i++) {
		assert_int_equal(simdev_handles(disks[i]), 0);
		simdev_free(disks[i]);
	}
	loop_free(loop);
	world_free(world);
	assert_int_equal(buf_pool_used_bytes(), 0);
}

/* ---- gone at once ---- */

static uint64_t gone_set;

/* Some vanish together; either the volume goes on without them, or it freezes and has them all back. */
static void do_gone_at_once(void)
{
	format();
	open_volume();
	promise(20 + (unsigned)rng_below(&rng, 20));
	for (unsigned i = 0; i < member_count; i++)
		if (gone_set >> i & 1)
			simdev_vanish(disks[i], rng_chance(&rng, 1, 2));
	/* The fewer, the more of what the journal holds is not yet at home. */
	for (unsigned i = 1 + (unsigned)rng_below(&rng, rng_chance(&rng, 1, 4) ? 40 : 3); i && !promise_one(); i--)
		;
	if (!raid_error(raid))
		compare();
	crash();
	for (unsigned i = 0; i < member_count; i++)
		if (gone_set >> i & 1)
			simdev_return(disks[i]);
	open_volume();
	compare();
	assert_int_equal(raid_rebuild_wait(raid), 0);
	compare();
	close_volume();
	check_clean();
}

/* Every set of up to tolerance + 2 members that leaves somebody, on levels with and without groups. */
static void test_gone_at_once(void **state)
{
	static const struct {
		unsigned level, members;
	} shapes[] = {{1, 3}, {5, 4}, {6, 5}, {10, 4}, {10, 6}, {50, 6}, {60, 8}};

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		unsigned most = geom_tolerance(shapes[i].level, shapes[i].members) + 2;

		for (uint64_t set = 1; set + 1 < 1ull << shapes[i].members; set++) {
			if ((unsigned)__builtin_popcountll(set) > most)
				continue;
			gone_set = set;
			run(do_gone_at_once, shapes[i].level, shapes[i].members, set * 10 + i);
		}
	}
}

/* ---- errors now and then ---- */

static struct simfault fault;

/* One kind of write fails once or twice on one member: it stays, all is well, and each failure was counted. */
static void do_write_errors_cured(void)
{
	uint64_t hits;

	format();
	open_volume();
	promise(3);
	for (unsigned i = 0; i < member_count; i++)
		assert_int_equal(simdev_fault(disks[i], &fault), 0);
	promise(8);
	for (unsigned i = 0; i < member_count; i++)
		raid->table_dirty = true;
	assert_int_equal(health_table_sync(raid), 0);
	assert_int_equal(journal_checkpoint(raid), 0);
	for (unsigned i = 0; i < member_count; i++) {
		hits = simdev_faults_hit(disks[i]);
		assert_int_equal(hits, fault.count);
		assert_int_equal(member_info(i).state, MEMBER_ACTIVE);
		assert_int_equal(member_info(i).errors_write, hits);
	}
	assert_int_equal(info().state, RAID_OPTIMAL);
	compare();
	close_volume();
	open_volume();
	for (unsigned i = 0; i < member_count; i++)
		assert_int_equal(member_info(i).errors_write, fault.count);
	compare();
	close_volume();
	check_clean();
}

/* The same for good: taken out, and nobody else. */
static void do_write_errors_last(void)
{
	format();
	open_volume();
	promise(3);
	assert_int_equal(simdev_fault(disks[1], &fault), 0);
	promise(8);
	raid->table_dirty = true;
	assert_int_equal(health_table_sync(raid), 0);
	assert_int_equal(journal_checkpoint(raid), 0);
	assert_int_equal(member_info(1).state, MEMBER_MISSING);
	assert_int_equal(member_info(1).errors_write, 1);
	assert_int_equal(simdev_faults_hit(disks[1]), IO_WRITE_TRIES);
	for (unsigned i = 0; i < member_count; i++)
		assert_true(i == 1 || member_info(i).state == MEMBER_ACTIVE);
	compare();
	close_volume();
}

static void test_write_errors(void **state)
{
	const struct {
		uint64_t off, len;
	} places[] = {
		{LABEL_AREA_BYTES, JOURNAL_BYTES}, /* records */
		{0, LABEL_AREA_BYTES},
		{label_b_off(DISK_BYTES), LABEL_AREA_BYTES},
	};

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		fault = (struct simfault){
		    .kind = SIMFAULT_EIO_WRITE, .off_bytes = places[i].off, .len_bytes = places[i].len};
		for (fault.count = 1; fault.count < IO_WRITE_TRIES; fault.count++) {
			run(do_write_errors_cured, 1, 2, i);
			run(do_write_errors_cured, 5, 3, i);
		}
		fault.count = 0;
		run(do_write_errors_last, 1, 2, i);
		run(do_write_errors_last, 5, 3, i);
	}
}

/* ---- read-only ---- */

/* A member that is read-only when the volume is opened for writing: read for the last time, and then out. */
static void do_read_only_open(void)
{
	format();
	open_volume();
	promise(20);
	crash();
	simdev_set_read_only(disks[1], true);
	open_volume();
	assert_int_equal(member_info(1).state, MEMBER_MISSING);
	assert_true(member_info(1).read_only);
	assert_int_equal(info().state, RAID_DEGRADED);
	promise(5);
	compare();
	close_volume();
	/* As good as new: it gets what it missed. */
	simdev_set_read_only(disks[1], false);
	open_volume();
	assert_false(member_info(1).read_only);
	assert_int_equal(raid_rebuild_wait(raid), 0);
	assert_int_equal(info().state, RAID_OPTIMAL);
	close_volume();
	check_clean();
}

/* More of them than may be lost: refused, and nothing is recorded against them. */
static void do_read_only_beyond(void)
{
	format();
	open_volume();
	promise(20);
	crash();
	for (unsigned i = 0; i < member_count; i++)
		simdev_set_read_only(disks[i], true);
	assert_int_equal(open_flags(0), -EROFS);
	assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
	compare();
	close_volume();
	for (unsigned i = 0; i < member_count; i++)
		simdev_set_read_only(disks[i], false);
	open_volume();
	assert_int_equal(info().state, RAID_OPTIMAL);
	compare();
	close_volume();
	check_clean();
}

/* While in use. */
static void do_read_only_turned(void)
{
	format();
	open_volume();
	promise(20);
	simdev_set_read_only(disks[1], true);
	promise(20);
	assert_int_equal(member_info(1).state, MEMBER_MISSING);
	compare();
	close_volume();
}

static void test_read_only(void **state)
{
	run(do_read_only_open, 1, 2, 1);
	run(do_read_only_open, 5, 3, 2);
	run(do_read_only_open, 10, 4, 3);
	run(do_read_only_beyond, 1, 2, 1);
	run(do_read_only_beyond, 6, 5, 2);
	run(do_read_only_turned, 1, 2, 1);
	run(do_read_only_turned, 6, 5, 2);
}

/* ---- journals that cannot be read ---- */

/* One ring cannot be read at all: it costs a bounded number of I/Os, and the others do. */
static void do_ring_unreadable(void)
{
	struct simdev_stats before, after;

	format();
	open_volume();
	promise(50);
	crash();
	fault = (struct simfault){
	    .kind = SIMFAULT_EIO_READ, .off_bytes = LABEL_AREA_BYTES, .len_bytes = JOURNAL_BYTES};
	assert_int_equal(simdev_fault(disks[0], &fault), 0);
	simdev_stats(disks[0], &before);
	open_volume();
	simdev_stats(disks[0], &after);
	assert_true(after.reads - before.reads < 200);
	assert_true(member_info(0).errors_read > 0);
	compare();
	close_volume();
}

/* Single bad blocks: all around them is read. On a level without tolerance, so that nobody else has it. */
static void do_ring_spots(void)
{
	format();
	open_volume();
	promise(50);
	crash();
	for (unsigned i = 0; i < 3; i++) {
		fault = (struct simfault){.kind = SIMFAULT_EIO_READ,
					  .off_bytes = LABEL_AREA_BYTES + JOURNAL_BYTES - (i + 1) * 100 * BLOCK_BYTES,
					  .len_bytes = BLOCK_BYTES};
		assert_int_equal(simdev_fault(disks[0], &fault), 0);
	}
	open_volume();
	compare();
	close_volume();
}

/* None can be read on more members than the level tolerates: nothing may be said to be complete. */
static void do_rings_unreadable(void)
{
	format();
	open_volume();
	promise(50);
	crash();
	fault = (struct simfault){
	    .kind = SIMFAULT_EIO_READ, .off_bytes = LABEL_AREA_BYTES, .len_bytes = JOURNAL_BYTES};
	for (unsigned i = 0; i < member_count; i++)
		assert_int_equal(simdev_fault(disks[i], &fault), 0);
	assert_int_equal(open_flags(0), -EIO);
	for (unsigned i = 0; i < member_count; i++)
		simdev_faults_clear(disks[i]);
	open_volume();
	compare();
	close_volume();
}

static void test_ring_reads(void **state)
{
	run(do_ring_unreadable, 1, 2, 1);
	run(do_ring_unreadable, 6, 5, 2);
	run(do_ring_spots, 0, 2, 1);
	run(do_rings_unreadable, 1, 2, 1);
	run(do_rings_unreadable, 5, 3, 2);
}

/* ---- away after an unclean stop ---- */

/*
 * One of each pair is away: every chunk can be read, and the newest record may be on just those. Nothing is written
 * before they are back.
 */
static void do_away_beyond(void)
{
	for (unsigned n = 0; n < 4; n++) {
		unsigned first = n & 1, second = 2 + (n >> 1);
		int err;

		if (!disk_count)
			format();
		open_volume();
		promise(1 + (unsigned)rng_below(&rng, 10));
		crash();
		offered[first] = offered[second] = false;
		assert_int_equal(open_flags(0), -ENODEV);
		err = open_flags(RAID_OPEN_READ_ONLY);
		assert_true(!err || err == -EUCLEAN); /* older ones are not all here either */
		if (!err)
			close_volume();
		offered[first] = true;
		open_volume();
		compare();
		assert_int_equal(member_info(second).state, MEMBER_MISSING);
		close_volume();
		/* The journal is empty. */
		offered[first] = false;
		open_volume();
		compare();
		close_volume();
		offered[first] = offered[second] = true;
		open_volume();
		assert_int_equal(raid_rebuild_wait(raid), 0);
		assert_int_equal(info().state, RAID_OPTIMAL);
		compare();
		close_volume();
		check_clean();
	}
}

static void test_away_beyond(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		run(do_away_beyond, 10, 4, seed);
}

/* ---- replaced time and again ---- */

#define REPLACEMENTS 200

/* One member after the other is replaced, more often than there are indices; none of the old ones has a say again. */
static void do_replace_often(void)
{
	struct simdev *old;
	unsigned at[2] = {0, 1};

	format();
	open_volume();
	promise(20);
	crash();
	old = simdev_clone(disks[1], "old");
	assert_non_null(old);
	open_volume();
	for (unsigned n = 0; n < REPLACEMENTS; n++) {
		unsigned disk = disk_add(), *slot = &at[rng_below(&rng, 2)];

		assert_int_equal(raid_replace(raid, member_on(*slot), simdev_open(disks[disk])), 0);
		assert_int_equal(raid_rebuild_wait(raid), 0);
		assert_int_equal(info().state, RAID_OPTIMAL);
		co_sleep_ns(20 * NS_PER_S); /* until the device of the old one is closed */
		assert_int_equal(simdev_handles(disks[*slot]), 0);
		offered[*slot] = false;
		*slot = disk;
		promise(2);
		if (rng_chance(&rng, 1, 10)) {
			crash();
			open_volume();
		}
	}
	assert_int_equal(raid->t->member_count, MEMBERS_MAX);
	compare();
	close_volume();
	check_clean();
	/* A copy of one that was replaced first, used alone until its table is by far the newest. */
	simdev_free(disks[1]);
	disks[1] = old;
	offered[at[0]] = offered[at[1]] = false;
	offered[1] = true;
	open_volume();
	for (unsigned i = 0; i < 20 * REPLACEMENTS; i++) {
		raid->table_dirty = true;
		assert_int_equal(health_table_sync(raid), 0);
	}
	close_volume();
	offered[at[0]] = offered[at[1]] = true;
	open_volume();
	compare();
	close_volume();
}

static void test_replace_often(void **state)
{
	run(do_replace_often, 1, 2, 1);
}

/* ---- asked for, and gone when its turn comes ---- */

struct turn {
	struct dev *blank; /* NULL: the member is to fail */
	unsigned index;
	bool ended;
	int err;
};

static void take_turn(void *arg)
{
	struct turn *w = arg;

	w->err = w->blank ? raid_replace(raid, w->index, w->blank) : raid_fail(raid, w->index);
	w->ended = true;
}

/* While somebody waits to replace it, or to take it out, the index becomes another member's, who is left alone. */
static void do_index_given_away(void)
{
	format();
	open_volume();
	promise(5);
	for (unsigned n = 0; n < 2; n++) {
		struct turn w = {.index = member_on(0), .blank = n ? simdev_open(disks[disk_add()]) : NULL};
		struct member *m = &raid->t->members[w.index];
		struct uuid uuid = m->uuid;
		unsigned count = raid->t->member_count;

		co_mutex_lock(&raid->table_lock);
		assert_int_equal(co_spawn(loop, take_turn, &w), 0);
		co_sleep_ns(NS_PER_S / 10);
		assert_false(w.ended);
		m->uuid.b[0] ^= 1;
		co_mutex_unlock(&raid->table_lock);
		for (unsigned i = 0; i < 100 && !w.ended; i++)
			co_sleep_ns(NS_PER_S / 10);
		m->uuid = uuid;
		assert_true(w.ended);
		assert_int_equal(w.err, -ENOENT);
		assert_int_equal(raid->t->member_count, count);
		assert_int_equal(info().state, RAID_OPTIMAL);
		if (w.blank)
			dev_close(w.blank);
	}
	offered[disk_count - 1] = false;
	compare();
	close_volume();
	check_clean();
}

static void test_index_given_away(void **state)
{
	run(do_index_given_away, 6, 5, 4);
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
	    cmocka_unit_test(test_gone_at_once),
	    cmocka_unit_test(test_write_errors),
	    cmocka_unit_test(test_read_only),
	    cmocka_unit_test(test_ring_reads),
	    cmocka_unit_test(test_away_beyond),
	    cmocka_unit_test(test_replace_often),
	    cmocka_unit_test(test_index_given_away),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
