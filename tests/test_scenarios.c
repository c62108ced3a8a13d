/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What went wrong for users of other systems, as far as it concerns the volume: each a test by its number in
 * tests/scenarios.txt, which also says where the rest is tested. The simulator finds such things by chance; here
 * each is made to happen.
 */
#include "volume_world.h"

#define LIVE_BLOCKS 300u

/* ---- where things are ---- */

/* Everything that is stored of one row: which disk, where. The volume is open and its members are the first disks, in order. */
struct places {
	unsigned count, own; /* own: of the block asked for */
	unsigned disk[DISKS_MAX];
	uint64_t off_bytes[DISKS_MAX];
};

static struct places places_of(uint64_t lba)
{
	const struct chunk *c = table_chunk(raid->t, LBA_CHUNK(lba));
	struct places p = {0};
	unsigned index, slot, group;
	uint64_t row;

	assert_non_null(c);
	geom_locate(&c->geom, LBA_BLOCK(lba), &row, &index);
	slot = geom_index_slot(&c->geom, index);
	group = slot / c->geom.span;
	for (unsigned s = 0; s < c->geom.span; s++) {
		const struct column *col = &c->columns[geom_column(&c->geom, row, group * c->geom.span + s)];

		if (group * c->geom.span + s == slot)
			p.own = p.count;
		p.disk[p.count] = col->member;
		p.off_bytes[p.count++] =
		    table_column_off(raid->t, col, geom_slice_block(&c->geom, row));
	}
	return p;
}

static bool same_row(uint64_t a, uint64_t b)
{
	struct places p = places_of(a), q = places_of(b);

	return p.disk[0] == q.disk[0] && p.off_bytes[0] == q.off_bytes[0];
}

/* The first block of the model, from i on, whose row has none before it in the model. */
static unsigned next_row(unsigned i)
{
	for (; i < model_count; i++) {
		bool fresh = true;

		for (unsigned k = 0; k < i && fresh; k++)
			fresh = !same_row(model[k].lba, model[i].lba);
		if (fresh)
			return i;
	}
	fail_msg("no row is left");
	return 0;
}

static void hurt(const struct places *p, unsigned which)
{
	simdev_garble(disks[p->disk[which]].dev, p->off_bytes[which], BLOCK_BYTES);
}

static void fault(unsigned disk, struct simfault f)
{
	assert_int_equal(simdev_fault(disks[disk].dev, &f), 0);
}

/* A volume with data that is all in its place: nothing of it is in the journal any more. Open. */
static void begin(unsigned blocks)
{
	format();
	open_volume();
	write_blocks(blocks);
	commit();
	close_volume();
	open_volume();
}

static void reopen(void)
{
	close_volume();
	open_volume();
}

static void expect_read(uint64_t lba, int want)
{
	char *data = buf_get_wait(BLOCK_BYTES);

	assert_int_equal(raid_read(raid, lba, 1, data), want);
	buf_put(data);
}

static void write_one(unsigned i)
{
	char *data = buf_get_wait(BLOCK_BYTES);
	struct raid_block block = {.lba = model[i].lba, .data = data};

	model[i].version = version_next++;
	fill(data, block.lba, model[i].version);
	assert_int_equal(raid_write(raid, &block, 1, 0), 0);
	buf_put(data);
}

/* One block at a time until there is no room. */
static void fill_up(void)
{
	struct raid_run r;
	unsigned n;
	char *data = buf_get_wait(BLOCK_BYTES);

	while (model_count < BLOCKS_MAX && !raid_alloc_data(raid, 1, 0, &r, 1, &n)) {
		struct raid_block block = {.lba = r.lba, .data = data};

		fill(data, r.lba, version_next);
		assert_int_equal(raid_write(raid, &block, 1, 0), 0);
		raid_stage_live(raid, r.lba, 1);
		model[model_count].lba = r.lba;
		model[model_count++].version = version_next++;
		if (model_count % 500 == 0)
			commit();
	}
	assert_true(model_count < BLOCKS_MAX);
	buf_put(data);
	commit();
}

static uint64_t all_stats(bool reads)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < disk_count; i++) {
		struct simdev_stats s;

		simdev_stats(disks[i].dev, &s);
		sum += reads ? s.read_bytes : s.write_bytes;
	}
	return sum;
}

static struct simdev *saved[DISKS_MAX];

static void save_disks(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		saved[i] = simdev_clone(disks[i].dev, "saved");
}

static void load_disks(void)
{
	for (unsigned i = 0; i < disk_count; i++) {
		simdev_revert(disks[i].dev, saved[i]);
		disks[i].offered = true;
	}
}

static void free_saved(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(saved[i]);
}

/* ---- A. write hole, journal, flush, torn writes ---- */

#define HOLE_WRITES 5u

/* Five blocks are overwritten in place and committed, until the crash. Whether the commit returned. */
static bool hole_write(uint64_t versions[HOLE_WRITES])
{
	char *data = buf_get_wait(HOLE_WRITES * BLOCK_BYTES);
	struct raid_block blocks[HOLE_WRITES];
	int err;

	for (unsigned i = 0; i < HOLE_WRITES; i++) {
		blocks[i].lba = model[i * 7].lba;
		blocks[i].data = data + i * BLOCK_BYTES;
		versions[i] = version_next++;
		fill(blocks[i].data, blocks[i].lba, versions[i]);
	}
	err = raid_write(raid, blocks, HOLE_WRITES, 0);
	if (!err)
		err = raid_commit(raid);
	buf_put(data);
	return !err && !world_crashed(world);
}

/* Untouched blocks are as they were; the others old or new, and new if that was promised. */
static void hole_judge(const uint64_t versions[HOLE_WRITES], bool promised)
{
	char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];

	for (unsigned i = 0; i < model_count; i++) {
		bool touched = i % 7 == 0 && i / 7 < HOLE_WRITES;

		assert_int_equal(raid_read(raid, model[i].lba, 1, data), 0);
		fill(want, model[i].lba, model[i].version);
		if (touched && (promised || memcmp(data, want, BLOCK_BYTES)))
			fill(want, model[i].lba, versions[i / 7]);
		assert_memory_equal(data, want, BLOCK_BYTES);
	}
	buf_put(data);
}

/*
 * The power goes at every single write, flush and completion in turn, and with it as many members as the level can
 * still lose; `before` are away from the start.
 */
static void write_hole(unsigned before)
{
	bool through = false;

	begin(60);
	close_volume();
	save_disks();
	for (unsigned n = 1; !through; n++) {
		uint64_t versions[HOLE_WRITES];
		bool promised;

		load_disks();
		for (unsigned i = 0; i < before; i++)
			disks[i].offered = false;
		open_volume();
		world_crash_at(world, POINT_CHANGES, n);
		promised = hole_write(versions);
		through = !world_crashed(world);
		world_crash_at(world, 0, 0);
		crash();
		for (unsigned k = before; k < tolerance; k++)
			disks[(n + k) % member_count].offered = false;
		if (level >= 10) /* which of two halves is lost matters */
			disks[n % member_count].offered = before > 0;
		assert_int_equal(open_flags(n % 2 ? 0 : RAID_OPEN_READ_ONLY), 0);
		hole_judge(versions, promised);
		close_volume();
	}
	free_saved();
}

static void do_hole_healthy(void)
{
	write_hole(0);
}

static void do_hole_degraded(void)
{
	write_hole(1);
}

static void scenario_01_power_cut_while_degraded(void **state)
{
	run(do_hole_degraded, 5, 3, 1);
	run(do_hole_degraded, 5, 5, 2);
	run(do_hole_degraded, 6, 5, 3);
	run(do_hole_degraded, 10, 4, 4);
}

static void scenario_02_power_cut_with_members(void **state)
{
	run(do_hole_healthy, 5, 4, 1);
	run(do_hole_healthy, 6, 4, 2);
	run(do_hole_healthy, 6, 6, 3);
	run(do_hole_healthy, 10, 4, 4);
}

static void garble_journals(unsigned from, unsigned count, uint64_t off_bytes, uint64_t len_bytes)
{
	for (unsigned i = from; i < from + count; i++)
		simdev_garble(disks[i].dev, off_bytes, len_bytes);
}

static void do_journal_lost(void)
{
	uint64_t off_bytes, len_bytes;

	begin(LIVE_BLOCKS);
	off_bytes = raid->t->journal_off_bytes;
	len_bytes = raid->t->journal_bytes;
	work(100);
	crash();
	garble_journals(0, tolerance, off_bytes, len_bytes);
	open_volume();
	compare();
	work(50);
	crash();
	/* All copies of what was promised and was in no other place: said, and not passed over. */
	garble_journals(0, member_count, off_bytes, len_bytes);
	assert_int_equal(open_flags(0), -EUCLEAN);
	assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), -EUCLEAN);
}

/* An epoch in which nothing was promised has none, and needs none. */
static void do_journal_empty(void)
{
	begin(LIVE_BLOCKS);
	crash();
	open_volume();
	crash();
	garble_journals(0, member_count, LABEL_AREA_BYTES, 4 << 20);
	open_volume();
	compare();
	close_volume();
	check_clean();
}

static void scenario_03_journal_members_die(void **state)
{
	run_levels(do_journal_lost);
	run_levels(do_journal_empty);
}

static void do_cache_off(void)
{
	struct simdev_stats s;

	begin(LIVE_BLOCKS);
	work(100);
	compare();
	close_volume();
	for (unsigned i = 0; i < disk_count; i++) {
		simdev_stats(disks[i].dev, &s);
		assert_int_equal(s.flushes, 0);
	}
}

/* Nothing that was promised is only in a cache. */
static void do_cache_on(void)
{
	begin(LIVE_BLOCKS);
	for (unsigned k = 0; k < 20; k++) {
		work(20);
		for (unsigned i = 0; i < member_count; i++)
			simdev_lose_cache(disks[i].dev);
		world_crash(world);
		raid_abandon(raid);
		world_restart(world);
		open_volume();
		compare();
	}
	close_volume();
}

static void scenario_04_volatile_caches(void **state)
{
	run_levels(do_cache_on);
	disk_write_through = true;
	run_levels(do_cache_off);
	disk_write_through = false;
}

static void do_flush_lies(void)
{
	unsigned told = 0;

	begin(LIVE_BLOCKS);
	for (unsigned k = 0; k < 10; k++) {
		uint64_t before;

		work(10); /* the table that says that there are records is not what is lied about */
		fault(0, (struct simfault){.kind = SIMFAULT_LYING_FLUSH});
		for (unsigned n = 0; n < 4; n++) /* a record says which ones before it were durable */
			work(10);
		crash();
		simdev_faults_clear(disks[0].dev);
		open_volume();
		before = raid->t->members[0].errors_lost;
		told += before > 0;
		compare();
		assert_int_equal(raid_rebuild_wait(raid), 0);
	}
	assert_true(told > 0);
	for (unsigned i = 1; i < member_count; i++)
		assert_int_equal(raid->t->members[i].errors_lost, 0);
	assert_int_equal(scrub().lost, 0);
	assert_int_equal(scrub().found, 0);
	close_volume();
	check_clean();
}

static void scenario_05_flush_lies(void **state)
{
	run_levels(do_flush_lies);
}

static void do_journal_wraps(void)
{
	begin(LIVE_BLOCKS);
	for (unsigned k = 0; k < 60; k++) {
		for (unsigned i = 0; i < 200; i++)
			write_one((unsigned)rng_below(&rng, model_count));
		commit();
		if (k % 6)
			continue;
		crash();
		open_volume();
		compare();
	}
	close_volume();
	check_clean();
}

static void scenario_08_journal_wraps(void **state)
{
	run(do_journal_wraps, 5, 3, 1);
	run(do_journal_wraps, 6, 5, 2);
	run(do_journal_wraps, 10, 4, 3);
}

static void do_torn(void)
{
	begin(LIVE_BLOCKS);
	/* Label, journal and rows alike: any write may be one. (Of all four places of a label in a row, and the member is lost.) */
	fault(0, (struct simfault){.kind = SIMFAULT_TORN, .part = 1, .whole = 8});
	for (unsigned k = 0; k < 8; k++) {
		work(40);
		crash();
		open_volume();
		compare();
	}
	simdev_faults_clear(disks[0].dev);
	assert_int_equal(raid_rebuild_wait(raid), 0);
	assert_int_equal(scrub().lost, 0);
	assert_int_equal(scrub().found, 0);
	close_volume();
	check_clean();
	prove_redundancy();
}

static void scenario_09_torn_writes(void **state)
{
	run_levels(do_torn);
}

static void do_firmware(void)
{
	begin(LIVE_BLOCKS);
	close_volume();
	for (unsigned i = 0; i < disk_count; i++)
		simdev_zero(disks[i].dev, 0x1000, 0x3000);
	open_volume();
	assert_int_equal(info().state, RAID_OPTIMAL);
	compare();
	close_volume();
	check_clean();
}

static void scenario_10_firmware_overwrites_all_heads(void **state)
{
	run_levels(do_firmware);
}

static void do_unclean_is_short(void)
{
	uint64_t before, journals;

	begin(6000);
	journals = raid->t->journal_bytes * member_count;
	work(20);
	crash();
	before = all_stats(true);
	open_volume();
	assert_true(info().state == RAID_OPTIMAL);
	assert_true(all_stats(true) - before < journals + 6000 * BLOCK_BYTES / 4);
	compare();
	close_volume();
}

static void scenario_13_unclean_stop_no_resync(void **state)
{
	run_levels(do_unclean_is_short);
}

/* ---- B. scrub, parity, checksums ---- */

static void do_scrub_leaves_lost(void)
{
	static char before[DISKS_MAX][BLOCK_BYTES], after[BLOCK_BYTES];
	struct places p;

	begin(LIVE_BLOCKS);
	p = places_of(model[9].lba);
	for (unsigned k = 0; k <= tolerance; k++)
		hurt(&p, (p.own + k) % p.count);
	for (unsigned k = 0; k < p.count; k++)
		simdev_peek(disks[p.disk[k]].dev, p.off_bytes[k], before[k], BLOCK_BYTES);
	assert_true(scrub().lost > 0);
	for (unsigned k = 0; k < p.count; k++) {
		simdev_peek(disks[p.disk[k]].dev, p.off_bytes[k], after, BLOCK_BYTES);
		assert_memory_equal(before[k], after, BLOCK_BYTES);
	}
	expect_read(model[9].lba, -EBADMSG);
	close_volume();
}

static void scenario_14_scrub_makes_no_parity_of_bad_data(void **state)
{
	run(do_scrub_leaves_lost, 5, 4, 1);
	run(do_scrub_leaves_lost, 6, 5, 2);
	run(do_scrub_leaves_lost, 10, 4, 3);
	run(do_scrub_leaves_lost, 60, 8, 4);
}

/* A block rots unseen; its neighbours in the row are overwritten; then a member goes. */
static void do_rot_then_write(void)
{
	begin(LIVE_BLOCKS);
	for (unsigned n = 0, i = 0; n < 10; n++, i++) {
		struct places p;
		unsigned beside = 0;

		i = next_row(i);
		p = places_of(model[i].lba);
		hurt(&p, p.own);
		for (unsigned k = i + 1; k < model_count; k++) {
			if (same_row(model[i].lba, model[k].lba)) {
				write_one(k);
				beside++;
			}
		}
		assert_true(beside > 0);
	}
	commit();
	reopen();
	for (unsigned d = 1; d < tolerance; d++)
		disks[d].offered = false;
	reopen();
	compare();
	close_volume();
	for (unsigned d = 1; d < tolerance; d++)
		disks[d].offered = true;
	open_volume();
	assert_int_equal(raid_rebuild_wait(raid), 0);
	assert_int_equal(scrub().lost, 0);
	close_volume();
	prove_redundancy();
}

static void scenario_15_write_beside_rot(void **state)
{
	run(do_rot_then_write, 5, 4, 1);
	run(do_rot_then_write, 6, 6, 2);
	run(do_rot_then_write, 60, 8, 3);
}

/* As many of each row as may be: data and parity alike. */
static void do_scrub_twice(void)
{
	begin(LIVE_BLOCKS);
	for (unsigned i = 0; i < 60; i++) {
		struct places p = places_of(model[i].lba);
		unsigned first = (unsigned)rng_below(&rng, p.count);
		unsigned most = p.count - 1 < tolerance ? p.count - 1 : tolerance;

		/* The same for all blocks of a row. */
		first = (unsigned)(p.off_bytes[0] / BLOCK_BYTES % p.count);
		for (unsigned k = 0; k < most; k++)
			hurt(&p, (first + k) % p.count);
	}
	assert_true(scrub().repaired > 0);
	assert_int_equal(info().scrub.lost, 0);
	assert_int_equal(scrub().found, 0);
	compare();
	close_volume();
	prove_redundancy();
}

static void scenario_16_second_scrub_is_clean(void **state)
{
	run_levels(do_scrub_twice);
}

static void do_old_garbage(void)
{
	disk_garbage_bytes = 20 << 20;
	format();
	disk_garbage_bytes = 0;
	open_volume();
	for (unsigned k = 0; k < 12; k++) {
		write_blocks(3);
		commit();
	}
	assert_int_equal(scrub().found, 0);
	close_volume();
	check_clean();
	prove_redundancy();
	open_volume();
	assert_int_equal(raid_fail(raid, 0), 0);
	(void)replace(0);
	rebuild();
	assert_int_equal(scrub().found, 0);
	close_volume();
	disks[0].offered = false;
	prove_redundancy();
}

static void scenario_17_old_garbage_is_no_input(void **state)
{
	run_levels(do_old_garbage);
}

/* At whatever point a rebuild is cut short, the new member counts for what is complete on it and no more. */
static void do_half_rebuilt(void)
{
	for (unsigned round = 0; round < 6; round++) {
		unsigned fresh, gone = 1 + (unsigned)rng_below(&rng, member_count - 1);

		if (!round)
			begin(1500);
		(void)raid_fail(raid, member_on(0));
		fresh = replace(0);
		co_sleep_ns(rng_below(&rng, 40) * NS_PER_MS);
		crash();
		disks[0].offered = false;
		save_disks();
		/* Without another one: right, or refused. */
		for (unsigned k = 0; k < tolerance; k++)
			disks[(gone + k) % member_count].offered = false;
		if (!open_flags(RAID_OPEN_READ_ONLY)) {
			compare();
			close_volume();
		}
		for (unsigned k = 0; k < tolerance; k++)
			disks[(gone + k) % member_count].offered = (gone + k) % member_count != 0;
		free_saved();
		open_volume();
		compare();
		rebuild();
		compare();
		/* The next round begins with the new one in the place of the old. */
		close_volume();
		simdev_free(disks[0].dev);
		disks[0] = disks[fresh];
		disk_count--;
		open_volume();
	}
	close_volume();
}

static void scenario_18_rebuilding_member_is_stale(void **state)
{
	run(do_half_rebuilt, 5, 4, 1);
	run(do_half_rebuilt, 6, 5, 2);
	run(do_half_rebuilt, 10, 4, 3);
	run(do_half_rebuilt, 1, 2, 4);
}

static void scenario_34_half_rebuilt_member_returns(void **state)
{
	run(do_half_rebuilt, 5, 3, 5);
	run(do_half_rebuilt, 6, 4, 6);
}

/* Each pair of blocks of a row, parity included: wrong both, or one wrong and the member of the other away. */
static void do_erasures(void)
{
	struct places p;
	unsigned pairs = tolerance > 1 ? member_count : 1;

	begin(40);
	p = places_of(model[0].lba);
	close_volume();
	save_disks();
	for (unsigned a = 0; a < p.count; a++) {
		for (unsigned b = 0; b < pairs; b++) {
			for (unsigned away = 0; away < 2; away++) {
				load_disks();
				hurt(&p, a);
				if (tolerance > 1 && b != a && away)
					disks[p.disk[b]].offered = false;
				else if (tolerance > 1 && b != a)
					hurt(&p, b);
				open_volume();
				compare();
				assert_int_equal(raid_rebuild_wait(raid), 0);
				close_volume();
				disks[p.disk[b]].offered = true;
			}
		}
	}
	free_saved();
}

static void scenario_20_all_erasures_parity_too(void **state)
{
	run(do_erasures, 5, 4, 1);
	run(do_erasures, 6, 4, 2);
	run(do_erasures, 6, 6, 3);
	run(do_erasures, 60, 8, 4);
}

/* No read error, only wrong bytes; the guilty are named, and nobody else. */
static void do_silent(void)
{
	struct places p;

	begin(LIVE_BLOCKS);
	p = places_of(model[5].lba);
	for (unsigned k = 0; k < tolerance && k + 1 < p.count; k++)
		hurt(&p, (p.own + k) % p.count);
	compare();
	assert_int_equal(scrub().lost, 0);
	for (unsigned k = 0; k < p.count; k++) {
		bool guilty = (k + p.count - p.own) % p.count < tolerance && (k + p.count - p.own) % p.count + 1 < p.count;

		assert_int_equal(raid->t->members[p.disk[k]].errors_sum > 0, guilty);
	}
	assert_int_equal(scrub().found, 0);
	close_volume();
}

static void scenario_22_silent_wrong_data(void **state)
{
	run_levels(do_silent);
}

static void do_lost_write(void)
{
	struct places p;

	begin(LIVE_BLOCKS);
	for (unsigned i = 0; i < 20; i++) {
		p = places_of(model[i].lba);
		simdev_faults_clear(disks[p.disk[p.own]].dev);
		fault(p.disk[p.own], (struct simfault){.kind = SIMFAULT_LOST,
						      .off_bytes = p.off_bytes[p.own],
						      .len_bytes = BLOCK_BYTES});
		write_one(i);
		commit();
		reopen();
		simdev_faults_clear(disks[p.disk[p.own]].dev);
		compare();
	}
	assert_int_equal(scrub().lost, 0);
	assert_int_equal(scrub().found, 0);
	/* A whole day of them: labels and journal too. */
	fault(0, (struct simfault){.kind = SIMFAULT_LOST});
	work(200);
	close_volume();
	simdev_faults_clear(disks[0].dev);
	open_volume();
	compare();
	assert_int_equal(raid_rebuild_wait(raid), 0);
	assert_int_equal(scrub().lost, 0);
	assert_int_equal(scrub().found, 0);
	close_volume();
	prove_redundancy();
}

static void scenario_23_lost_writes(void **state)
{
	run_levels(do_lost_write);
}

static void do_misdirected(void)
{
	begin(LIVE_BLOCKS);
	for (unsigned i = 0; i < 20; i++) {
		struct places p = places_of(model[i].lba);

		fault(p.disk[p.own], (struct simfault){.kind = i % 2 ? SIMFAULT_MISDIRECTED
								    : SIMFAULT_DUPLICATE,
						      .off_bytes = p.off_bytes[p.own],
						      .len_bytes = BLOCK_BYTES,
						      .count = 1,
						      .param = BLOCK_BYTES * (1 + i % 3)});
		write_one(i);
		commit();
		reopen();
		simdev_faults_clear(disks[p.disk[p.own]].dev);
		compare();
		assert_int_equal(scrub().lost, 0);
		assert_int_equal(scrub().found, 0);
	}
	close_volume();
	prove_redundancy();
}

static void scenario_24_misdirected_writes(void **state)
{
	run_levels(do_misdirected);
}

static void do_errors_eject_nobody(void)
{
	begin(2000);
	for (unsigned i = 0; i < 1000; i++) {
		struct places p = places_of(model[i].lba);

		for (unsigned k = 0; k < p.count; k++)
			if (p.disk[k] == 0)
				hurt(&p, k);
	}
	assert_true(scrub().found > 100);
	assert_int_equal(raid->t->members[0].state, MEMBER_ACTIVE);
	assert_int_equal(info().state, RAID_OPTIMAL);
	assert_int_equal(info().scrub.lost, 0);
	compare();
	close_volume();
}

static void scenario_25_scrub_errors_eject_nobody(void **state)
{
	run_levels(do_errors_eject_nobody);
}

/* Every block of a row once, all members together: never once for each member. */
static void do_scrub_reads_once(void)
{
	uint64_t before, stored = 0;

	begin(4000);
	for (unsigned i = 0; i < model_count; i++)
		stored += BLOCK_BYTES * (raid->t->members[0].slices_free ? 1 : 1);
	stored = stored * member_count / (level == 1 || level == 10 ? member_count / 2 : member_count - tolerance);
	before = all_stats(true);
	assert_int_equal(scrub().found, 0);
	assert_true(all_stats(true) - before < stored * 3 / 2 + (4 << 20));
	close_volume();
}

static void scenario_28_scrub_reads_a_row_once(void **state)
{
	run(do_scrub_reads_once, 5, 4, 1);
	run(do_scrub_reads_once, 6, 8, 2);
	run(do_scrub_reads_once, 10, 4, 3);
}

static uint64_t named_lba[8];
static unsigned named_count;

static void name_lost(void *ctx, uint64_t lba, uint32_t count)
{
	for (uint32_t i = 0; i < count && named_count < ARRAY_SIZE(named_lba); i++)
		named_lba[named_count++] = lba + i;
}

static const struct raid_hooks naming = {.lost_block = name_lost};

/* One block too many is wrong when a member is rebuilt. */
static void do_rebuild_goes_on(void)
{
	unsigned victim = 0;
	struct places p;

	disk_bytes = 48ull << 20;
	begin(800);
	raid_set_hooks(raid, &naming, NULL);
	named_count = 0;
	/* A data block whose place is not on the member that goes. */
	for (p = places_of(model[victim].lba); p.disk[p.own] < tolerance;)
		p = places_of(model[++victim].lba);
	for (unsigned k = 0; k < tolerance; k++)
		assert_int_equal(raid_fail(raid, k), 0);
	hurt(&p, p.own);
	for (unsigned k = 0; k < tolerance; k++)
		(void)replace(k);
	(void)raid_rebuild_wait(raid);
	assert_int_equal(info().chunks_below_target, 0);
	assert_true(named_count >= 1);
	for (unsigned i = 0; i < model_count; i++) {
		bool named = false;

		for (unsigned k = 0; k < named_count; k++)
			named |= named_lba[k] == model[i].lba;
		expect_read(model[i].lba, named ? -EBADMSG : 0);
		assert_true(i != victim || named);
	}
	/* It is a block that is lost, not a place: when nobody wants it any more the place is as good as any. */
	for (unsigned k = 0; k < named_count; k++) {
		for (unsigned i = 0; i < model_count; i++) {
			if (model[i].lba == named_lba[k]) {
				raid_stage_dead(raid, model[i].lba, 1);
				model[i--] = model[--model_count];
			}
		}
	}
	commit();
	fill_up();
	for (unsigned k = 0; k < named_count; k++) {
		unsigned i = 0;

		while (i < model_count && model[i].lba != named_lba[k])
			i++;
		assert_true(i < model_count);
	}
	compare();
	assert_int_equal(scrub().lost, 0);
	assert_int_equal(scrub().found, 0);
	for (unsigned k = 0; k < tolerance; k++)
		disks[k].offered = false;
	close_volume();
	check_clean();
	disk_bytes = DISK_BYTES;
}

static void scenario_29_rebuild_continues_past_lost_blocks(void **state)
{
	run(do_rebuild_goes_on, 5, 4, 1);
	run(do_rebuild_goes_on, 6, 5, 2);
}

static void scenario_30_lost_block_is_cleared_by_overwriting(void **state)
{
	run(do_rebuild_goes_on, 5, 3, 3);
	run(do_rebuild_goes_on, 6, 4, 4);
}

/* ---- C. membership ---- */

static void offer_only(unsigned mask)
{
	for (unsigned i = 0; i < disk_count; i++)
		disks[i].offered = mask >> i & 1;
}

static void do_diverged(void)
{
	uint64_t before;

	begin(100);
	close_volume();
	offer_only(1);
	open_volume();
	work(20);
	close_volume();
	offer_only(2);
	open_volume();
	close_volume();
	offer_only(3);
	before = all_stats(false);
	assert_int_equal(open_flags(0), -ESTALE);
	assert_int_equal(all_stats(false), before);
	/* Either half alone is still what it was. */
	offer_only(1);
	open_volume();
	compare();
	close_volume();
}

static void scenario_32_diverged_members_are_not_merged(void **state)
{
	run(do_diverged, 1, 2, 1);
}

static void do_diverged_halves(void)
{
	begin(100);
	close_volume();
	offer_only(5); /* one of each pair */
	open_volume();
	work(20);
	close_volume();
	offer_only(10);
	open_volume();
	work(30);
	close_volume();
	offer_only(15);
	assert_int_equal(open_flags(0), -ESTALE);
}

static void scenario_33_two_halves_on_two_boots(void **state)
{
	run(do_diverged_halves, 10, 4, 1);
}

/* All orders, and each time under other names. */
static void do_permutations(void)
{
	unsigned order[4] = {0, 1, 2, 3}, n = 0;

	begin(100);
	close_volume();
	for (;; n++) {
		struct raid_options options = {0};
		struct dev *devs[4];
		struct simdev *renamed[4];
		char name[16];

		for (unsigned i = 0; i < 4; i++) {
			(void)snprintf(name, sizeof(name), "nvme%un1", i);
			renamed[i] = simdev_clone(disks[order[i]].dev, name);
			devs[i] = simdev_open(renamed[i]);
		}
		assert_int_equal(raid_open(loop, devs, 4, NULL, &options, &raid), 0);
		assert_int_equal(info().state, RAID_OPTIMAL);
		compare();
		close_volume();
		for (unsigned i = 0; i < 4; i++)
			simdev_free(renamed[i]);
		/* The next in lexical order. */
		unsigned k = 3, m = 3;

		while (k > 0 && order[k - 1] >= order[k])
			k--;
		if (!k)
			break;
		while (order[m] <= order[k - 1])
			m--;
		unsigned t = order[k - 1];

		order[k - 1] = order[m];
		order[m] = t;
		for (m = 3; k < m; k++, m--) {
			t = order[k];
			order[k] = order[m];
			order[m] = t;
		}
	}
	assert_int_equal(n, 23);
}

static void scenario_36_names_shuffle(void **state)
{
	run(do_permutations, 5, 4, 1);
}

static void scenario_37_slots_swapped(void **state)
{
	run(do_permutations, 6, 4, 2);
	run(do_permutations, 10, 4, 3);
}

static void do_clone(void)
{
	uint64_t before;

	begin(100);
	close_volume();
	/* Neither has the serial number that is on record. */
	disks[disk_count].dev = simdev_clone(disks[1].dev, "copy");
	disks[disk_count++].offered = true;
	disks[disk_count].dev = simdev_clone(disks[1].dev, "another");
	disks[disk_count++].offered = true;
	disks[1].offered = false;
	before = all_stats(false);
	assert_int_equal(open_flags(0), -EEXIST);
	assert_int_equal(all_stats(false), before);
	/* One has it: the others are left aside. */
	disks[1].offered = true;
	open_volume();
	assert_int_equal(info().state, RAID_OPTIMAL);
	work(50);
	compare();
	close_volume();
	for (unsigned i = disk_count - 2; i < disk_count; i++) {
		struct simdev_stats stats;

		simdev_stats(disks[i].dev, &stats);
		assert_int_equal(stats.writes, 0);
	}
}

static void scenario_38_cloned_member(void **state)
{
	run_levels(do_clone);
}

/* Too few members, and a blank device beside them: still too few, and nothing is written to anybody. */
static void do_blank_does_not_help(void)
{
	uint64_t before;

	begin(100);
	close_volume();
	(void)disk_add_bytes(DISK_BYTES);
	for (unsigned i = 0; i <= tolerance; i++)
		disks[i].offered = false;
	before = all_stats(false);
	assert_int_equal(open_flags(0), level == 1 ? -ENODATA : -ENODEV);
	assert_int_equal(all_stats(false), before);
	for (unsigned i = 0; i <= tolerance; i++)
		disks[i].offered = true;
	open_volume();
	assert_int_equal(info().state, RAID_OPTIMAL);
	compare();
	close_volume();
}

static void scenario_41_blank_device_is_no_member(void **state)
{
	run_levels(do_blank_does_not_help);
}

static void scenario_42_refused_means_untouched(void **state)
{
	run(do_blank_does_not_help, 5, 4, 7);
	run(do_diverged, 1, 2, 8);
	run(do_clone, 6, 5, 9);
}

static void do_smaller(void)
{
	uint64_t least;
	unsigned d;
	struct dev *dev;

	begin(200);
	least = info().member_bytes_min;
	assert_true(least < DISK_BYTES);
	d = disk_add_bytes(least - (1 << 20));
	disks[d].offered = false;
	dev = simdev_open(disks[d].dev);
	assert_int_equal(raid_replace(raid, 0, dev), -ENOSPC);
	dev_close(dev);
	assert_int_equal(info().state, RAID_OPTIMAL);
	d = disk_add_bytes(least);
	assert_int_equal(raid_replace(raid, 0, simdev_open(disks[d].dev)), 0);
	rebuild();
	compare();
	close_volume();
	disks[0].offered = false;
	prove_redundancy();
}

static void scenario_47_replacement_a_little_smaller(void **state)
{
	run_levels(do_smaller);
}

static void do_sector_mix(void)
{
	unsigned fresh;

	begin(300);
	(void)raid_fail(raid, 0);
	disk_sector_bytes = 4096;
	fresh = replace(0);
	disk_sector_bytes = 512;
	rebuild();
	work(100);
	crash();
	open_volume();
	compare();
	(void)fresh;
	close_volume();
	disks[0].offered = false;
	check_clean();
	prove_redundancy();
}

static void scenario_48_sectors_of_512_and_4096(void **state)
{
	run_levels(do_sector_mix);
}

/* ---- D. failure, rebuild ---- */

/* The last member that cannot be spared goes in the middle of a rebuild, and comes back. */
static void do_one_too_many(void)
{
	unsigned last = tolerance;
	int err;

	begin(1500);
	for (unsigned k = 0; k < tolerance; k++)
		assert_int_equal(raid_fail(raid, k), 0);
	(void)replace(0);
	co_sleep_ns(3 * NS_PER_MS);
	simdev_vanish(disks[last].dev, false);
	(void)raid_rebuild_wait(raid);
	err = raid_commit(raid);
	/* What can be told from the rest can still be read; never a wrong byte. */
	for (unsigned i = 0; i < model_count; i += 50) {
		char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];

		if (!raid_read(raid, model[i].lba, 1, data)) {
			fill(want, model[i].lba, model[i].version);
			assert_memory_equal(data, want, BLOCK_BYTES);
		}
		buf_put(data);
	}
	(void)err;
	crash();
	simdev_return(disks[last].dev);
	for (unsigned k = 0; k < tolerance; k++)
		disks[k].offered = false;
	open_volume();
	compare();
	for (unsigned k = 1; k < tolerance; k++)
		(void)replace(k);
	rebuild();
	compare();
	close_volume();
	check_clean();
}

static void scenario_49_second_failure_during_rebuild(void **state)
{
	run(do_one_too_many, 5, 4, 1);
	run(do_one_too_many, 6, 5, 2);
	run(do_one_too_many, 1, 2, 3);
}

static void do_latent_error(void)
{
	struct places p;
	unsigned victim = 0, errors = 0;

	begin(600);
	raid_set_hooks(raid, &naming, NULL);
	for (p = places_of(model[victim].lba); p.disk[p.own] < tolerance;)
		p = places_of(model[++victim].lba);
	for (unsigned k = 0; k < tolerance; k++)
		assert_int_equal(raid_fail(raid, k), 0);
	fault(p.disk[p.own], (struct simfault){.kind = SIMFAULT_EIO_READ,
					      .off_bytes = p.off_bytes[p.own],
					      .len_bytes = BLOCK_BYTES});
	for (unsigned k = 0; k < tolerance; k++)
		(void)replace(k);
	(void)raid_rebuild_wait(raid);
	assert_int_equal(raid->t->members[p.disk[p.own]].state, MEMBER_ACTIVE);
	assert_int_equal(info().chunks_below_target, 0);
	for (unsigned i = 0; i < model_count; i++) {
		char *data = buf_get_wait(BLOCK_BYTES);

		errors += raid_read(raid, model[i].lba, 1, data) != 0;
		buf_put(data);
	}
	assert_true(errors >= 1 && errors <= member_count);
	expect_read(model[victim].lba, -EBADMSG);
	for (unsigned k = 0; k < tolerance; k++)
		disks[k].offered = false;
	close_volume();
}

static void scenario_50_latent_error_without_redundancy(void **state)
{
	run(do_latent_error, 5, 4, 1);
	run(do_latent_error, 6, 5, 2);
}

/* What was complete before the crash is not copied again. */
static void do_rebuild_continues(void)
{
	unsigned fresh, columns, done = 0;
	uint64_t copied;
	struct simdev_stats before, after;

	begin(6000);
	(void)raid_fail(raid, 0);
	fresh = replace(0);
	while (done < 2) { /* the first of them is durable then */
		struct raid_member_info m;

		co_sleep_ns(NS_PER_MS);
		assert_int_equal(raid_member_info(raid, member_on(fresh), &m), 0);
		done = m.columns - m.columns_stale;
	}
	(void)raid_member_info(raid, member_on(1), &(struct raid_member_info){0});
	crash();
	disks[0].offered = false;
	assert_int_equal(open_flags(0), 0);
	{
		struct raid_member_info m;

		assert_int_equal(raid_member_info(raid, member_on(fresh), &m), 0);
		columns = m.columns;
		assert_true(columns >= 1);
		assert_true(info().chunks_below_target < info().chunk_count);
	}
	simdev_stats(disks[fresh].dev, &before);
	assert_int_equal(raid_start(raid), 0);
	rebuild();
	simdev_stats(disks[fresh].dev, &after);
	copied = after.write_bytes - before.write_bytes;
	assert_true(copied < 6000ull * BLOCK_BYTES);
	compare();
	close_volume();
	check_clean();
}

static void scenario_51_rebuild_does_not_start_over(void **state)
{
	run(do_rebuild_continues, 5, 4, 1);
	run(do_rebuild_continues, 6, 5, 2);
}

static void scenario_52_rebuild_survives_a_crash(void **state)
{
	run(do_rebuild_continues, 10, 4, 3);
	run(do_rebuild_continues, 1, 2, 4);
}

static void hung_reader(void *arg)
{
	struct writer *w = arg;

	compare();
	w->ended = true;
	co_cond_wake_all(&w->done);
}

static void do_hang(void)
{
	struct writer w = {0};

	begin(LIVE_BLOCKS);
	fault(0, (struct simfault){.kind = SIMFAULT_HANG});
	co_cond_init(&w.done);
	assert_int_equal(co_spawn(loop, hung_reader, &w), 0);
	co_sleep_ns(NS_PER_MS);
	/* Answers from memory, now. */
	{
		uint64_t now = world_now_ns(world);

		(void)info();
		assert_int_equal(world_now_ns(world), now);
	}
	writer_stop(&w);
	work(50);
	assert_int_equal(info().state, RAID_DEGRADED);
	assert_true(raid->t->members[0].errors_hung > 0);
	compare();
	crash();
	simdev_faults_clear(disks[0].dev);
	simdev_unhang(disks[0].dev);
	open_volume();
	compare();
	assert_int_equal(raid_rebuild_wait(raid), 0);
	close_volume();
	check_clean();
}

static void scenario_55_hung_device(void **state)
{
	run_levels(do_hang);
}

static void do_error_once(void)
{
	begin(LIVE_BLOCKS);
	fault(0, (struct simfault){.kind = SIMFAULT_EIO_READ, .count = 1});
	fault(0, (struct simfault){.kind = SIMFAULT_EIO_WRITE,
				  .off_bytes = raid->t->slices_off_bytes,
				  .len_bytes = DISK_BYTES - raid->t->slices_off_bytes,
				  .count = 1});
	compare();
	for (unsigned i = 0; i < 30; i++)
		write_one(i);
	reopen();
	assert_int_equal(raid->t->members[0].state, MEMBER_ACTIVE);
	assert_int_equal(info().state, RAID_OPTIMAL);
	assert_true(raid->t->members[0].errors_read + raid->t->members[0].errors_write > 0);
	compare();
	close_volume();
	check_clean();
}

static void scenario_57_error_once_ejects_nobody(void **state)
{
	run_levels(do_error_once);
}

static void do_vanished(void)
{
	struct simdev_stats before, after;

	begin(LIVE_BLOCKS);
	simdev_vanish(disks[0].dev, true);
	work(20);
	assert_int_equal(raid->t->members[0].state, MEMBER_MISSING);
	simdev_stats(disks[0].dev, &before);
	work(200);
	compare();
	simdev_stats(disks[0].dev, &after);
	/* Nobody knocks there any more. */
	assert_int_equal(before.reads + before.writes + before.flushes,
			 after.reads + after.writes + after.flushes);
	close_volume();
}

static void scenario_58_vanished_device_is_left_alone(void **state)
{
	run_levels(do_vanished);
}

static void puller(void *arg)
{
	struct writer *w = arg;

	co_sleep_ns(rng_below(&rng, 20 * NS_PER_MS));
	simdev_vanish(disks[0].dev, true);
	w->ended = true;
	co_cond_wake_all(&w->done);
}

static void do_pulled_while_chunks_are_made(void)
{
	struct writer w = {0};

	format();
	open_volume();
	co_cond_init(&w.done);
	assert_int_equal(co_spawn(loop, puller, &w), 0);
	write_blocks(4000);
	commit();
	writer_stop(&w);
	work(10);
	compare();
	close_volume();
	check_clean();
	simdev_return(disks[0].dev);
	open_volume();
	rebuild();
	close_volume();
	check_clean();
	prove_redundancy();
}

static void scenario_61_pulled_while_chunks_are_made(void **state)
{
	for (uint64_t seed = 1; seed <= 6; seed++) {
		run(do_pulled_while_chunks_are_made, 5, 4, seed);
		run(do_pulled_while_chunks_are_made, 6, 5, seed);
		run(do_pulled_while_chunks_are_made, 10, 4, seed);
	}
}

/* What was written while degraded is as redundant as the rest when the rebuild says that it is done. */
static void do_written_while_degraded(void)
{
	begin(LIVE_BLOCKS);
	(void)raid_fail(raid, 0);
	work(2000);
	(void)replace(0);
	rebuild();
	close_volume();
	disks[0].offered = false;
	check_clean();
	prove_redundancy();
}

static void scenario_62_done_means_redundant(void **state)
{
	run_levels(do_written_while_degraded);
}

static void do_full(void)
{
	disk_bytes = 48ull << 20;
	format();
	open_volume();
	fill_up();
	(void)raid_fail(raid, 0);
	(void)replace(0);
	rebuild();
	compare();
	/* And deleting goes, and gives room. */
	kill_blocks(model_count / 2);
	commit();
	write_blocks(100);
	commit();
	compare();
	close_volume();
	disks[0].offered = false;
	check_clean();
	prove_redundancy();
	disk_bytes = DISK_BYTES;
}

static void scenario_63_rebuild_of_a_full_volume(void **state)
{
	run(do_full, 6, 4, 1);
	run(do_full, 1, 2, 2);
}

static void do_rebuild_verifies(void)
{
	begin(800);
	for (unsigned n = 0, i = 0; n < 10; n++, i++) {
		struct places p;

		i = next_row(i);
		p = places_of(model[i].lba);
		hurt(&p, n % p.count);
	}
	(void)replace(0);
	rebuild();
	compare();
	assert_int_equal(scrub().lost, 0);
	assert_int_equal(scrub().found, 0);
	close_volume();
	disks[0].offered = false;
	check_clean();
	prove_redundancy();
}

static void scenario_65_rebuild_verifies(void **state)
{
	run_levels(do_rebuild_verifies);
}

static void do_bad_leg(void)
{
	struct places p;

	begin(LIVE_BLOCKS);
	for (unsigned leg = 0; leg < 2; leg++) {
		p = places_of(model[3].lba);
		hurt(&p, leg);
		for (unsigned k = 0; k < 3; k++)
			expect_read(model[3].lba, 0);
		compare();
		assert_int_equal(scrub().found, 0); /* reading has mended it */
		hurt(&p, leg);
		assert_int_equal(scrub().repaired, 1); /* and so does scrubbing */
	}
	close_volume();
	prove_redundancy();
}

static void scenario_70_both_legs_are_verified(void **state)
{
	run(do_bad_leg, 10, 4, 1);
	run(do_bad_leg, 1, 2, 2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(scenario_01_power_cut_while_degraded),
	    cmocka_unit_test(scenario_02_power_cut_with_members),
	    cmocka_unit_test(scenario_03_journal_members_die),
	    cmocka_unit_test(scenario_04_volatile_caches),
	    cmocka_unit_test(scenario_05_flush_lies),
	    cmocka_unit_test(scenario_08_journal_wraps),
	    cmocka_unit_test(scenario_09_torn_writes),
	    cmocka_unit_test(scenario_10_firmware_overwrites_all_heads),
	    cmocka_unit_test(scenario_13_unclean_stop_no_resync),
	    cmocka_unit_test(scenario_14_scrub_makes_no_parity_of_bad_data),
	    cmocka_unit_test(scenario_15_write_beside_rot),
	    cmocka_unit_test(scenario_16_second_scrub_is_clean),
	    cmocka_unit_test(scenario_17_old_garbage_is_no_input),
	    cmocka_unit_test(scenario_18_rebuilding_member_is_stale),
	    cmocka_unit_test(scenario_20_all_erasures_parity_too),
	    cmocka_unit_test(scenario_22_silent_wrong_data),
	    cmocka_unit_test(scenario_23_lost_writes),
	    cmocka_unit_test(scenario_24_misdirected_writes),
	    cmocka_unit_test(scenario_25_scrub_errors_eject_nobody),
	    cmocka_unit_test(scenario_28_scrub_reads_a_row_once),
	    cmocka_unit_test(scenario_29_rebuild_continues_past_lost_blocks),
	    cmocka_unit_test(scenario_30_lost_block_is_cleared_by_overwriting),
	    cmocka_unit_test(scenario_32_diverged_members_are_not_merged),
	    cmocka_unit_test(scenario_33_two_halves_on_two_boots),
	    cmocka_unit_test(scenario_34_half_rebuilt_member_returns),
	    cmocka_unit_test(scenario_36_names_shuffle),
	    cmocka_unit_test(scenario_37_slots_swapped),
	    cmocka_unit_test(scenario_38_cloned_member),
	    cmocka_unit_test(scenario_41_blank_device_is_no_member),
	    cmocka_unit_test(scenario_42_refused_means_untouched),
	    cmocka_unit_test(scenario_47_replacement_a_little_smaller),
	    cmocka_unit_test(scenario_48_sectors_of_512_and_4096),
	    cmocka_unit_test(scenario_49_second_failure_during_rebuild),
	    cmocka_unit_test(scenario_50_latent_error_without_redundancy),
	    cmocka_unit_test(scenario_51_rebuild_does_not_start_over),
	    cmocka_unit_test(scenario_52_rebuild_survives_a_crash),
	    cmocka_unit_test(scenario_55_hung_device),
	    cmocka_unit_test(scenario_57_error_once_ejects_nobody),
	    cmocka_unit_test(scenario_58_vanished_device_is_left_alone),
	    cmocka_unit_test(scenario_61_pulled_while_chunks_are_made),
	    cmocka_unit_test(scenario_62_done_means_redundant),
	    cmocka_unit_test(scenario_63_rebuild_of_a_full_volume),
	    cmocka_unit_test(scenario_65_rebuild_verifies),
	    cmocka_unit_test(scenario_70_both_legs_are_verified),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, setup, teardown);
}
