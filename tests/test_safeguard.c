/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Safeguards whose absence only shows in a moment that chance does not hit: here each gets that moment. What becomes of
 * each sector at the crash is not drawn but chosen. tests/broken builds the safeguards out and sees these tests fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "die.h"

#include "raid/label.h"
#include "raid/volume.h"
#include "sim/simdev.h"
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#define DISKS_MAX  4
#define DISK_BYTES (80ull << 20)
#define JOURNAL_BYTES (4u << 20)
#define POOL_BYTES (64u << 20)
#define BLOCKS_MAX 4096
#define POINTS_MAX 2000 /* of one crash loop: it must have come to its end by then */

static struct world *world;
static struct loop *loop;
static struct raid *raid;
static struct simdev *disks[DISKS_MAX];
static bool offered[DISKS_MAX];
static unsigned disk_count, level;
static struct {
	uint64_t lba, version;
} model[BLOCKS_MAX];
static unsigned model_count;
static const struct uuid *want_fs; /* NULL: whatever is there */
static uint64_t version_next;

/* ---- the bench; in the coroutine of the test ---- */

static void disks_new(void)
{
	static const struct simdev_params p = {
	    .size_bytes = DISK_BYTES, .sector_bytes = 512, .volatile_cache = true, .crash_keep = 40, .crash_garble = 20};

	for (unsigned i = 0; i < disk_count; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "disk%u", i);
		disks[i] = simdev_new(world, name, &p);
		assert_non_null(disks[i]);
		offered[i] = true;
	}
}

static int format(void)
{
	struct raid_format_params params = {
	    .level = (int)level, .journal_bytes = JOURNAL_BYTES, .slice_bytes = 4 << 20, .strip_bytes = 16 << 10};
	struct dev *devs[DISKS_MAX];
	int err;

	for (unsigned i = 0; i < disk_count; i++)
		devs[i] = simdev_open(disks[i]);
	err = raid_format(loop, devs, disk_count, &params);
	for (unsigned i = 0; i < disk_count; i++)
		dev_close(devs[i]);
	return err;
}

static int open_flags(unsigned flags)
{
	struct raid_options options = {.flags = flags};
	struct dev *devs[DISKS_MAX];
	unsigned count = 0;
	int err;

	for (unsigned i = 0; i < disk_count; i++)
		if (offered[i])
			devs[count++] = simdev_open(disks[i]);
	err = raid_open(loop, devs, count, want_fs, &options, &raid);
	while (err && count)
		dev_close(devs[--count]);
	if (err)
		raid = NULL;
	return err;
}

static void close_volume(void)
{
	assert_int_equal(raid_close(raid), 0);
	raid = NULL;
}

static void crash(void)
{
	world_crash(world);
	if (raid)
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

/* New blocks, live and not committed; an error is a crash. */
static int write_blocks(unsigned count)
{
	struct raid_block blocks[64];
	struct raid_run runs[16];
	int err = 0;

	while (count && !err) {
		unsigned want = MIN(count, ARRAY_SIZE(blocks)), n = 0, run_count = 0;
		unsigned before = model_count;
		char *data = buf_get_wait((size_t)want * BLOCK_BYTES);

		err = raid_alloc_data(raid, want, 0, runs, ARRAY_SIZE(runs), &run_count);
		for (unsigned i = 0; i < run_count && !err; i++) {
			for (unsigned k = 0; k < runs[i].count; k++, n++) {
				assert_true(model_count < BLOCKS_MAX);
				model[model_count].lba = runs[i].lba + k;
				model[model_count].version = version_next++;
				blocks[n] = (struct raid_block){.lba = runs[i].lba + k,
								.data = data + (size_t)n * BLOCK_BYTES};
				fill(blocks[n].data, model[model_count].lba, model[model_count].version);
				model_count++;
			}
		}
		if (!err)
			err = raid_write(raid, blocks, n, 0);
		for (unsigned i = 0; i < run_count && !err; i++)
			raid_stage_live(raid, runs[i].lba, runs[i].count);
		buf_put(data);
		count -= MIN(n, count);
		if (err)
			model_count = before;
	}
	return err;
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

/* Opened for looking: sound, and everything of the model is there. */
static void check_opened(void)
{
	assert_int_equal(raid_check(raid, print_problem, NULL), 0);
	compare();
	close_volume();
}

static void check_clean(void)
{
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	check_opened();
}

/* ---- what a crash leaves ---- */

static bool in_labels(struct simdev *d, uint64_t block)
{
	return block < LABEL_AREA_BYTES / BLOCK_BYTES ||
	       block >= label_b_off(simdev_size_bytes(d)) / BLOCK_BYTES;
}

static enum simfate labels_stay(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	return in_labels(d, block) ? SIMFATE_KEEP : SIMFATE_DROP;
}

static enum simfate labels_go(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	return in_labels(d, block) ? SIMFATE_DROP : SIMFATE_KEEP;
}

static void set_fate(simfate_fn *fn)
{
	for (unsigned i = 0; i < disk_count; i++)
		simdev_set_fate(disks[i], fn, NULL);
}

/* The disks as they are now, to go back to as often as need be. */
static struct simdev *saved[DISKS_MAX];

static void save(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		saved[i] = simdev_clone(disks[i], "saved");
}

static void restore(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		simdev_revert(disks[i], saved[i]);
}

static void save_end(void)
{
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(saved[i]);
}

/* ---- running them ---- */

static int run_co(void *arg)
{
	void (**test)(void) = arg;

	(*test)();
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
static void run_on(void (*test)(void), unsigned on_level, unsigned disks_wanted)
{
	level = on_level;
	disk_count = disks_wanted;
	model_count = 0;
	version_next = 1;
	want_fs = NULL;
	world = world_new(1);
	loop = loop_new(&world_backend, world);
	assert_int_equal(loop_run_co(loop, run_co, &test), 0);
	assert_int_equal(loop_co_count(loop), 0);
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(disks[i]);
	loop_free(loop);
	world_free(world);
	assert_int_equal(buf_pool_used_bytes(), 0);
}

static void run(void (*test)(void))
{
	run_on(test, 5, 3);
}

/* ---- making a volume ---- */

static bool any_label(void)
{
	bool any = false;

	for (unsigned i = 0; i < disk_count; i++) {
		struct dev *dev = simdev_open(disks[i]);
		struct label l;

		if (!label_read(dev, &l)) {
			any = true;
			label_clear(&l);
		}
		dev_close(dev);
	}
	return any;
}

/*
 * Labels that a crash keeps must not promise a chunk that it does not. (Of a mkfs that was cut short some labels may be
 * all there is: so too few members are legal, and fsck would have something to say.)
 */
static void do_format_crash(void)
{
	char *block = buf_get_wait(BLOCK_BYTES);
	int err = -1, opened;

	disks_new();
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		set_fate(labels_stay);
		world_crash_at(world, POINT_CHANGES, n);
		err = format();
		world_crash_at(world, 0, 0);
		crash();
		set_fate(NULL);
		opened = any_label() ? open_flags(0) : -ENODATA;
		if (opened) {
			assert_true(err && (opened == -ENODATA || opened == -ENODEV));
			continue;
		}
		assert_int_equal(raid_read(raid, LBA_ROOT, 1, block), 0);
		close_volume();
	}
	buf_put(block);
	save_end();
}

static void test_format_crash(void **state)
{
	(void)state;
	run(do_format_crash);
}

/* What was there before is whole until its labels have gone, also where a crash keeps all else that was written. */
static void do_format_over_crash(void)
{
	struct raid_info info;
	int err = -1;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(300), 0);
	raid_info(raid, &info);
	want_fs = &info.fs;
	close_volume();
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		set_fate(labels_go);
		world_crash_at(world, POINT_CHANGES, n);
		err = format();
		world_crash_at(world, 0, 0);
		crash();
		if (!open_flags(RAID_OPEN_CHECK))
			check_opened();
	}
	save_end();
}

static void test_format_over_crash(void **state)
{
	(void)state;
	run(do_format_over_crash);
}

/* ---- a new chunk ---- */

/* Of labels B the older place of a member: then what was only prepared counts where all have it. */
static void damage_labels_b(struct simdev *d)
{
	struct label_disk l[LABEL_PLACES];
	uint64_t off = label_b_off(simdev_size_bytes(d));

	for (unsigned p = 0; p < LABEL_PLACES; p++)
		simdev_peek(d, off + p * LABEL_PLACE_BYTES, &l[p], sizeof(l[p]));
	simdev_garble(d, off + (from_le64(l[0].gen) < from_le64(l[1].gen) ? 0 : LABEL_PLACE_BYTES), BLOCK_BYTES);
}

static void do_grow_crash(void)
{
	unsigned count;
	int err = -1;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(300), 0);
	close_volume();
	count = model_count;
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		set_fate(NULL);
		assert_int_equal(open_flags(0), 0);
		set_fate(labels_stay);
		world_crash_at(world, POINT_CHANGES, n);
		err = raid_meta_ensure(raid, raid_meta_ready(raid, 0) + 1, 0);
		world_crash_at(world, 0, 0);
		crash();
		damage_labels_b(disks[0]);
		model_count = count;
		check_clean();
	}
	save_end();
}

static void test_grow_crash(void **state)
{
	(void)state;
	run(do_grow_crash);
}

/* ---- the journal ---- */

/* A block that anybody may have written into a file, in a piece of the ring that no record covers any more. */
static void forge_record(const struct raid_info *info)
{
	struct record_disk *d = mem_zalloc(sizeof(*d));

	assert_non_null(d);
	d->magic = to_le64(RECORD_MAGIC);
	d->fs = info->fs;
	d->epoch = to_le64(info->epoch);
	d->seq = to_le64(info->journal_seq + 1000);
	d->tail = d->seq;
	d->durable = to_le64(info->journal_seq + 999);
	d->total_bytes = to_le32(BLOCK_BYTES);
	d->sum = to_le64(XXH3_64bits_withSeed(d, sizeof(*d), 0));
	for (unsigned i = 0; i < disk_count; i++)
		simdev_poke(disks[i], LABEL_AREA_BYTES + JOURNAL_BYTES - BLOCK_BYTES, d, sizeof(*d));
	mem_free(d);
}

static void do_forged_record(void)
{
	struct raid_info info;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(100), 0);
	assert_int_equal(raid_commit(raid), 0);
	raid_info(raid, &info);
	crash();
	forge_record(&info);
	check_clean();
	assert_int_equal(open_flags(0), 0);
	compare();
	close_volume();
}

static void test_forged_record(void **state)
{
	(void)state;
	run(do_forged_record);
}

/* Which disk keeps what it has of the journal. */
static unsigned keeper;

static enum simfate journal_on_one(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	bool journal = block >= LABEL_AREA_BYTES / BLOCK_BYTES &&
		       block < (LABEL_AREA_BYTES + JOURNAL_BYTES) / BLOCK_BYTES;

	return journal && d != disks[keeper] ? SIMFATE_DROP : SIMFATE_KEEP;
}

/* Live blocks get new content in place, in one transaction; the power goes while its record is on its way to both members. */
static void overwrite_cut_short(unsigned count)
{
	char *data = buf_get_wait(BLOCK_BYTES);

	for (unsigned i = 0; i < count; i++) {
		struct raid_block block = {.lba = model[i].lba, .data = data};

		fill(data, block.lba, model[i].version + 1000000);
		assert_int_equal(raid_write(raid, &block, 1, 0), 0);
	}
	buf_put(data);
	world_crash_at(world, POINT_SUBMIT_WRITE, raid->t->tolerance + 1);
	assert_int_not_equal(raid_commit(raid), 0);
	world_crash_at(world, 0, 0);
	crash();
}

/* All of the first `count` blocks are as before, or all are as they were to be. True: the latter. */
static bool compare_either(unsigned count)
{
	char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];
	bool new = false;

	for (unsigned i = 0; i < model_count; i++) {
		assert_int_equal(raid_read(raid, model[i].lba, 1, data), 0);
		fill(want, model[i].lba, model[i].version);
		if (i == 0)
			new = memcmp(data, want, BLOCK_BYTES) != 0;
		if (new && i < count)
			fill(want, model[i].lba, model[i].version + 1000000);
		assert_memory_equal(data, want, BLOCK_BYTES);
	}
	buf_put(data);
	return new;
}

/*
 * A record that was never acknowledged is on one member alone. Replay takes it for good and its blocks go home; the
 * power goes in the middle of that, and that member with it.
 */
static bool replay_cut_short(unsigned count)
{
	struct simdev *then[DISKS_MAX];
	bool opened = false, new = false;

	for (unsigned i = 0; i < disk_count; i++)
		then[i] = simdev_clone(disks[i], "then");
	for (unsigned n = 1; !opened; n++) {
		assert_true(n < POINTS_MAX);
		for (unsigned i = 0; i < disk_count; i++)
			simdev_revert(disks[i], then[i]);
		set_fate(journal_on_one);
		world_crash_at(world, POINT_CHANGES, n);
		opened = !open_flags(0);
		world_crash_at(world, 0, 0);
		crash();
		set_fate(NULL);
		offered[keeper] = false;
		assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
		assert_int_equal(raid_check(raid, print_problem, NULL), 0);
		new |= compare_either(count);
		close_volume();
		offered[keeper] = true;
	}
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(then[i]);
	return new;
}

static void do_spread(void)
{
	unsigned replayed = 0;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(60), 0);
	close_volume();
	save();
	for (keeper = 0; keeper < disk_count; keeper++) {
		restore();
		set_fate(NULL);
		assert_int_equal(open_flags(0), 0);
		set_fate(journal_on_one);
		overwrite_cut_short(20);
		replayed += replay_cut_short(20);
	}
	/* A record has two copies. */
	assert_int_equal(replayed, 2);
	save_end();
}

static void test_spread(void **state)
{
	(void)state;
	run(do_spread);
}

/* ---- members that lie ---- */

static struct raid_member_info member_info(unsigned index)
{
	struct raid_member_info m;

	assert_int_equal(raid_member_info(raid, index, &m), 0);
	return m;
}

/* Which member is on the disk. */
static unsigned member_on(unsigned disk)
{
	for (unsigned i = 0; i < disk_count; i++)
		if (!strcmp(member_info(i).path, simdev_name(disks[disk])))
			return i;
	fail_msg("disk %u is no member", disk);
	return 0;
}

/* A member that has flushed the records of the journal, and has not got them. */
static void do_lost_records(void)
{
	char *zeros = mem_zalloc(JOURNAL_BYTES);

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(write_blocks(5), 0);
		assert_int_equal(raid_commit(raid), 0);
	}
	crash();
	simdev_poke(disks[1], LABEL_AREA_BYTES, zeros, JOURNAL_BYTES);
	mem_free(zeros);
	assert_int_equal(open_flags(0), 0);
	compare();
	assert_int_not_equal(member_info(member_on(1)).errors_lost, 0);
	assert_int_equal(member_info(member_on(0)).errors_lost, 0);
	close_volume();
}

static void test_lost_records(void **state)
{
	(void)state;
	run(do_lost_records);
}

/* A FUA write that failed once and then did not: the flush in it may have emptied the cache, and lost what was there. */
static void do_fua_failed(void)
{
	const struct io clean = {.fua = true}, once = {.fua = true, .errors = 1};

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(60), 0);
	assert_int_equal(raid_commit(raid), 0);
	health_written(raid, 1, &once);
	assert_int_equal(member_info(1).state, MEMBER_ACTIVE);
	assert_int_equal(member_info(1).errors_write, 1);
	assert_int_equal(write_blocks(60), 0);
	health_written(raid, 1, &clean);
	assert_int_equal(member_info(1).state, MEMBER_ACTIVE);
	health_written(raid, 1, &once);
	assert_int_equal(member_info(1).state, MEMBER_MISSING);
	assert_int_equal(raid_commit(raid), 0);
	compare();
	close_volume();
}

static void test_fua_failed(void **state)
{
	(void)state;
	run(do_fua_failed);
}

/* The labels of `from`, and nothing else. */
static void copy_labels(struct simdev *to, struct simdev *from)
{
	char *area = mem_zalloc(LABEL_AREA_BYTES);
	uint64_t far = label_b_off(simdev_size_bytes(to));

	assert_non_null(area);
	simdev_peek(from, 0, area, LABEL_AREA_BYTES);
	simdev_poke(to, 0, area, LABEL_AREA_BYTES);
	simdev_peek(from, far, area, LABEL_AREA_BYTES);
	simdev_poke(to, far, area, LABEL_AREA_BYTES);
	mem_free(area);
}

static void overwrite(unsigned count)
{
	char *data = buf_get_wait(BLOCK_BYTES);

	for (unsigned i = 0; i < count; i++) {
		struct raid_block block = {.lba = model[i].lba, .data = data};

		model[i].version = version_next++;
		fill(data, block.lba, model[i].version);
		assert_int_equal(raid_write(raid, &block, 1, 0), 0);
	}
	buf_put(data);
}

/*
 * A member drops a day of writes and says that it has flushed them, but for its labels: neither its pages nor its blocks
 * may be believed, and it is named. Each disk in turn.
 */
static void do_lost_day(void)
{
	unsigned count;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(300), 0);
	close_volume();
	save();
	assert_int_equal(open_flags(0), 0);
	overwrite(200);
	assert_int_equal(write_blocks(100), 0);
	close_volume();
	count = model_count;
	for (unsigned d = 0; d < disk_count; d++) {
		struct simdev *now = simdev_clone(disks[d], "now");
		struct raid_member_info m;

		simdev_revert(disks[d], saved[d]);
		copy_labels(disks[d], now);
		assert_int_equal(open_flags(0), 0);
		model_count = count;
		compare();
		assert_int_equal(raid_start(raid), 0);
		assert_int_equal(raid_scrub_start(raid), 0);
		assert_int_equal(raid_scrub_wait(raid), 0);
		m = member_info(member_on(d));
		assert_int_not_equal(m.errors_lost, 0);
		assert_int_not_equal(m.errors_sum, 0);
		compare();
		close_volume();
		check_clean();
		simdev_free(now);
	}
	save_end();
}

static void test_lost_day(void **state)
{
	(void)state;
	run(do_lost_day);
}

/* ---- members that fail ---- */

static void fail_writes(unsigned disk, uint64_t off, uint64_t len)
{
	struct simfault f = {.kind = SIMFAULT_EIO_WRITE, .off_bytes = off, .len_bytes = len};

	assert_int_equal(simdev_fault(disks[disk], &f), 0);
}

struct seeking {
	uint64_t lba;
	bool found;
};

static int is_it(void *arg, uint64_t lba, uint32_t count)
{
	struct seeking *s = arg;

	s->found |= s->lba >= lba && s->lba < lba + count;
	return 0;
}

static bool is_live(uint64_t lba)
{
	struct seeking s = {.lba = lba};

	assert_int_equal(raid_for_each_live(raid, CHUNK_DATA, is_it, &s), 0);
	return s.found;
}

/*
 * Data misses a member, and the power goes in the commit of it. The member comes back as if nothing had happened: if the
 * data has become live then the volume must know what the member lacks, or it is lost with the next one.
 */
static void do_missed_data(void)
{
	const uint64_t slices = LABEL_AREA_BYTES + JOURNAL_BYTES;
	unsigned count, came = 0;
	int err = -1;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(40), 0);
	close_volume();
	count = model_count;
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		model_count = count;
		assert_int_equal(open_flags(0), 0);
		fail_writes(1, slices, label_b_off(DISK_BYTES) - slices);
		assert_int_equal(write_blocks(40), 0);
		world_crash_at(world, POINT_CHANGES, n);
		err = raid_commit(raid);
		world_crash_at(world, 0, 0);
		crash();
		simdev_faults_clear(disks[1]);
		assert_int_equal(open_flags(0), 0);
		if (is_live(model[count].lba))
			came++;
		else
			model_count = count;
		assert_int_equal(raid_start(raid), 0);
		assert_int_equal(raid_rebuild_wait(raid), 0);
		close_volume();
		offered[0] = false;
		assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
		compare();
		close_volume();
		offered[0] = true;
	}
	assert_true(came > 1); /* acknowledged, and not yet acknowledged */
	save_end();
}

static void test_missed_data(void **state)
{
	(void)state;
	run(do_missed_data);
}

/*
 * A mirror acknowledges a record that missed one half. Then that half is used alone: it cannot know. When the other is
 * back it can be known, and what was acknowledged must not be taken for old.
 */
static void do_missed_record(void)
{
	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(40), 0);
	assert_int_equal(raid_commit(raid), 0);
	fail_writes(1, LABEL_AREA_BYTES, JOURNAL_BYTES);
	assert_int_equal(write_blocks(40), 0);
	assert_int_equal(raid_commit(raid), 0);
	crash();
	simdev_faults_clear(disks[1]);
	offered[0] = false;
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(10), 0);
	close_volume();
	offered[0] = true;
	assert_int_equal(open_flags(0), -ESTALE);
}

static void test_missed_record(void **state)
{
	(void)state;
	run_on(do_missed_record, 1, 2);
}

/* ---- rows ---- */

/* Where the slot of the row that holds the block stands, `behind` slots further; which disk, and the byte on it. */
static unsigned slot_place(uint64_t lba, unsigned behind, uint64_t *ret_off)
{
	struct chunk *c = table_chunk(raid->t, LBA_CHUNK(lba));
	struct column *col;
	unsigned index;
	uint64_t row;

	geom_locate(&c->geom, LBA_BLOCK(lba), &row, &index);
	col = &c->columns[geom_column(&c->geom, row, (geom_index_slot(&c->geom, index) + behind) % c->geom.span)];
	*ret_off = table_column_off(raid->t, col, geom_slice_block(&c->geom, row));
	for (unsigned d = 0; d < disk_count; d++)
		if (member_on(d) == col->member)
			return d;
	fail_msg("no disk");
	return 0;
}

static unsigned parity_behind(uint64_t lba)
{
	struct chunk *c = table_chunk(raid->t, LBA_CHUNK(lba));
	unsigned index;
	uint64_t row;

	geom_locate(&c->geom, LBA_BLOCK(lba), &row, &index);
	return c->geom.data - geom_index_slot(&c->geom, index);
}

static struct raid_job_info scrub(void)
{
	struct raid_info info;

	assert_int_equal(raid_start(raid), 0);
	assert_int_equal(raid_scrub_start(raid), 0);
	assert_int_equal(raid_scrub_wait(raid), 0);
	raid_info(raid, &info);
	return info.scrub;
}

/* Without that disk everything is there. */
static void compare_without(unsigned disk)
{
	offered[disk] = false;
	assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
	compare();
	close_volume();
	offered[disk] = true;
}

static void open_with_blocks(unsigned count)
{
	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(write_blocks(count), 0);
	assert_int_equal(journal_checkpoint(raid), 0);
}

/* Parity that is right by its checksum and not that of its data recovers nothing wrong, and scrub finds it. */
static void do_wrong_parity(void)
{
	char *data = buf_get_wait(BLOCK_BYTES);
	unsigned index, disk;
	struct chunk *c;
	uint64_t row, off;

	open_with_blocks(60);
	c = table_chunk(raid->t, LBA_CHUNK(model[0].lba));
	geom_locate(&c->geom, LBA_BLOCK(model[0].lba), &row, &index);
	disk = slot_place(model[0].lba, 0, &off);
	fill(data, 1, 1);
	assert_int_equal(page_get_rows(raid, c, row, 1), 0);
	assert_int_equal(image_stage(raid, c, row, c->geom.data, data), 0);
	page_put_rows(raid, c, row, 1);
	close_volume();
	offered[disk] = false;
	assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
	assert_int_equal(raid_read(raid, model[0].lba, 1, data), -EBADMSG);
	close_volume();
	offered[disk] = true;
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	assert_int_equal(raid_check(raid, print_problem, NULL), 1);
	close_volume();
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(scrub().found, 1);
	close_volume();
	compare_without(disk);
	buf_put(data);
}

static void test_wrong_parity(void **state)
{
	(void)state;
	run(do_wrong_parity);
}

/*
 * A block and its parity are wrong for a while, and a scrub comes by: it must not make parity of what it could not
 * verify, for the block may come back.
 */
static void do_scrub_unverified(void)
{
	char *was = mem_zalloc(2 * BLOCK_BYTES);
	unsigned disk[3], parity;
	uint64_t off[3];

	open_with_blocks(64);
	parity = parity_behind(model[0].lba);
	disk[0] = slot_place(model[0].lba, 0, &off[0]);
	disk[1] = slot_place(model[0].lba, parity, &off[1]);
	disk[2] = slot_place(model[0].lba, 3 - parity, &off[2]); /* the other data */
	for (unsigned i = 0; i < 2; i++) {
		simdev_peek(disks[disk[i]], off[i], was + i * BLOCK_BYTES, BLOCK_BYTES);
		simdev_garble(disks[disk[i]], off[i], BLOCK_BYTES);
	}
	assert_int_not_equal(scrub().lost, 0);
	close_volume();
	for (unsigned i = 0; i < 2; i++)
		simdev_poke(disks[disk[i]], off[i], was + i * BLOCK_BYTES, BLOCK_BYTES);
	mem_free(was);
	compare_without(disk[2]);
}

static void test_scrub_unverified(void **state)
{
	(void)state;
	run(do_scrub_unverified);
}

/* One member is away, and of another all blocks are wrong, data and parity: both are erasures, whichever they are. */
static void do_two_erasures(void)
{
	open_with_blocks(200);
	close_volume();
	save();
	for (unsigned wrong = 0; wrong < disk_count; wrong++) {
		restore();
		assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
		for (unsigned i = 0; i < model_count; i++) {
			for (unsigned behind = 0; behind < disk_count; behind++) {
				uint64_t off;

				if (slot_place(model[i].lba, behind, &off) == wrong)
					simdev_garble(disks[wrong], off, BLOCK_BYTES);
			}
		}
		close_volume();
		for (unsigned away = 0; away < disk_count; away++)
			if (away != wrong)
				compare_without(away);
	}
	save_end();
}

static void test_two_erasures(void **state)
{
	(void)state;
	run_on(do_two_erasures, 6, 4);
}

static bool checkpoints_stop, checkpoints_ended;

static void checkpoints(void *arg)
{
	while (!checkpoints_stop && !raid->error) {
		(void)journal_checkpoint(raid); /* a crash, perhaps */
		co_sleep_ns(NS_PER_MS / 10);
	}
	checkpoints_ended = true;
}

/*
 * A member has come back and is brought up to date. A table that says so, of which a crash keeps the first half and damage
 * makes it count, must not have been written before what it speaks of is flushed. Others' checkpoints meanwhile leave
 * nothing to write for the rebuild's own, which has to flush all the same.
 */
static void do_rebuild_crash(void)
{
	unsigned whole = 0;
	int err = -1;

	open_with_blocks(60);
	close_volume();
	offered[1] = false;
	assert_int_equal(open_flags(0), 0);
	overwrite(60);
	close_volume();
	offered[1] = true;
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		set_fate(NULL);
		assert_int_equal(open_flags(0), 0);
		set_fate(labels_stay);
		world_crash_at(world, POINT_CHANGES, n);
		err = raid_start(raid);
		checkpoints_stop = checkpoints_ended = false;
		assert_int_equal(co_spawn(loop, checkpoints, NULL), 0);
		if (!err)
			err = raid_rebuild_wait(raid);
		checkpoints_stop = true;
		while (!checkpoints_ended)
			co_sleep_ns(NS_PER_MS);
		world_crash_at(world, 0, 0);
		crash();
		damage_labels_b(disks[0]);
		assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
		compare();
		whole += !member_info(member_on(1)).columns_stale;
		assert_int_equal(member_info(member_on(1)).errors_sum, 0);
		close_volume();
	}
	assert_true(whole > 1); /* after it has ended, and before */
	save_end();
}

static void test_rebuild_crash(void **state)
{
	(void)state;
	run(do_rebuild_crash);
}

/* ---- pages ---- */

static uint64_t page_off(struct chunk *c, uint32_t number, unsigned copy, unsigned *ret_disk)
{
	unsigned column;
	uint64_t block;

	geom_page_place(&c->geom, number, copy, &column, &block);
	for (*ret_disk = 0; member_on(*ret_disk) != c->columns[column].member; ++*ret_disk)
		;
	return table_column_off(raid->t, &c->columns[column], block);
}

/* The newest of the places; bit k of *ret_newest: place k has it. */
static void page_peek(struct simdev *d, uint64_t off, struct page_disk *ret, unsigned *ret_newest)
{
	struct page_disk at;

	*ret = (struct page_disk){0};
	for (unsigned place = 0; place < PAGE_PLACES; place++) {
		simdev_peek(d, off + place * BLOCK_BYTES, &at, sizeof(at));
		if (from_le64(at.gen) > from_le64(ret->gen)) {
			*ret = at;
			*ret_newest = 0;
		}
		*ret_newest |= (unsigned)(at.gen.raw == ret->gen.raw) << place;
	}
}

/* A bit of a checksum page is wrong in one copy; in the older place of the same stands what belongs to another page. */
static void do_page_damage(void)
{
	unsigned disk[2], copy, newest, any;
	struct page_disk sums, bitmap;
	uint64_t off[2];
	struct chunk *c;

	for (copy = 0; copy < 2; copy++) {
		model_count = 0;
		if (copy)
			for (unsigned i = 0; i < disk_count; i++)
				simdev_free(disks[i]);
		open_with_blocks(60);
		c = table_chunk(raid->t, LBA_CHUNK(model[0].lba));
		for (unsigned i = 0; i < 4; i++) { /* the bitmap gets ahead */
			raid_stage_dead(raid, model[--model_count].lba, 1);
			assert_int_equal(journal_checkpoint(raid), 0);
		}
		off[0] = page_off(c, c->geom.bitmap_pages, copy, &disk[0]);
		off[1] = page_off(c, 0, copy, &disk[1]);
		close_volume();
		page_peek(disks[disk[0]], off[0], &sums, &newest);
		page_peek(disks[disk[1]], off[1], &bitmap, &any);
		assert_true(from_le64(bitmap.gen) > from_le64(sums.gen));
		sums.body[model[0].version % 8] ^= 1;
		for (unsigned place = 0; place < PAGE_PLACES; place++)
			simdev_poke(disks[disk[0]], off[0] + place * BLOCK_BYTES,
				    newest >> place & 1 ? &sums : &bitmap, BLOCK_BYTES);
		assert_int_equal(open_flags(0), 0);
		compare();
		close_volume();
	}
}

static void test_page_damage(void **state)
{
	(void)state;
	run(do_page_damage);
}

/*
 * What replay has written home is not in the journal of the new epoch: a table that announces it, of which a crash keeps
 * the first half and damage makes it count, must not have been written before all is home and flushed.
 */
static void do_replay_crash(void)
{
	int err = -1;

	open_with_blocks(60);
	overwrite(20);
	assert_int_equal(write_blocks(40), 0);
	assert_int_equal(raid_commit(raid), 0);
	set_fate(labels_stay);
	crash();
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		set_fate(labels_stay);
		world_crash_at(world, POINT_CHANGES, n);
		err = open_flags(0);
		world_crash_at(world, 0, 0);
		crash();
		damage_labels_b(disks[0]);
		assert_int_equal(open_flags(0), 0);
		compare();
		for (unsigned i = 0; i < model_count; i++)
			assert_true(is_live(model[i].lba));
		close_volume();
	}
	save_end();
}

static void test_replay_crash(void **state)
{
	(void)state;
	run(do_replay_crash);
	run_on(do_replay_crash, 0, 4); /* the first record of the epoch flushes one of them */
}

/* Blocks of bitmap pages or of checksum pages, all places of each copy. */
static struct {
	const struct simdev *d;
	uint64_t block;
} page_blocks[4096];
static unsigned page_block_count;

static void page_blocks_note(struct chunk *c, bool bitmaps)
{
	uint32_t first = bitmaps ? 0 : c->geom.bitmap_pages;
	uint32_t end = c->geom.bitmap_pages + (bitmaps ? 0 : c->geom.sum_pages);

	page_block_count = 0;
	for (uint32_t n = first; n < end; n++) {
		for (unsigned copy = 0; copy < c->geom.page_copies; copy++) {
			unsigned disk;
			uint64_t block = page_off(c, n, copy, &disk) / BLOCK_BYTES;

			for (unsigned place = 0; place < PAGE_PLACES; place++) {
				assert_true(page_block_count < ARRAY_SIZE(page_blocks));
				page_blocks[page_block_count].d = disks[disk];
				page_blocks[page_block_count++].block = block + place;
			}
		}
	}
}

static enum simfate pages_go(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	for (unsigned i = 0; i < page_block_count; i++)
		if (page_blocks[i].d == d && page_blocks[i].block == block)
			return SIMFATE_DROP;
	return SIMFATE_KEEP;
}

/* Through the journal, each into a row of its own. */
static void write_lone_blocks(unsigned count)
{
	char *data = buf_get_wait(BLOCK_BYTES);

	while (count--) {
		struct raid_block block = {.data = data};
		struct raid_run run;
		unsigned runs;

		assert_int_equal(raid_alloc_data(raid, 1, 0, &run, 1, &runs), 0);
		block.lba = model[model_count].lba = run.lba;
		model[model_count].version = version_next++;
		fill(data, run.lba, model[model_count++].version);
		assert_int_equal(raid_write(raid, &block, 1, RAID_WRITE_JOURNAL), 0);
		raid_stage_live(raid, run.lba, 1);
	}
	buf_put(data);
}

static enum simfate pages_torn(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	return pages_go(arg, d, write, block, sector) == SIMFATE_DROP ? SIMFATE_GARBLE : SIMFATE_KEEP;
}

/*
 * A checkpoint writes pages, some for the first time; a crash keeps everything but those of one kind. Nothing counts as lost then,
 * and blocks that are alone in their rows can do without any member.
 */
static void pages_crash(bool bitmaps, simfate_fn *fate)
{
	struct raid_info info;
	unsigned count;
	int err = -1;

	model_count = 0;
	open_with_blocks(60);
	page_blocks_note(table_chunk(raid->t, LBA_CHUNK(model[0].lba)), bitmaps);
	close_volume();
	count = model_count;
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		set_fate(NULL);
		model_count = count;
		assert_int_equal(open_flags(0), 0);
		assert_int_equal(write_blocks(700), 0);
		write_lone_blocks(4);
		assert_int_equal(raid_commit(raid), 0);
		set_fate(fate);
		world_crash_at(world, POINT_CHANGES, n);
		err = journal_checkpoint(raid);
		world_crash_at(world, 0, 0);
		crash();
		for (unsigned away = 0; away < disk_count; away++)
			compare_without(away);
		assert_int_equal(open_flags(0), 0);
		compare();
		raid_info(raid, &info);
		assert_int_equal(info.chunks_damaged, 0);
		close_volume();
		for (unsigned away = 0; away < disk_count; away++)
			compare_without(away);
	}
	save_end();
}

static void do_pages_crash(void)
{
	for (unsigned i = 0; i < 4; i++) {
		for (unsigned d = 0; d < disk_count && i; d++)
			simdev_free(disks[d]);
		pages_crash(i & 1, i & 2 ? pages_torn : pages_go);
	}
}

static void test_pages_crash(void **state)
{
	(void)state;
	run(do_pages_crash);
}

/* ---- and what else is promised ---- */

static void do_read_errors(void)
{
	struct simfault f = {.kind = SIMFAULT_EIO_READ, .off_bytes = LABEL_AREA_BYTES + JOURNAL_BYTES, .len_bytes = 1 << 24};

	open_with_blocks(200);
	close_volume();
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(simdev_fault(disks[0], &f), 0);
	compare();
	assert_int_not_equal(member_info(member_on(0)).errors_read, 0);
	assert_int_equal(member_info(member_on(0)).state, MEMBER_ACTIVE);
	simdev_faults_clear(disks[0]);
	close_volume();
}

/* A member is never taken out for them. */
static void test_read_errors(void **state)
{
	(void)state;
	run(do_read_errors);
}

static void do_commit_timer(void)
{
	open_with_blocks(20);
	assert_int_equal(raid_start(raid), 0);
	assert_int_equal(write_blocks(20), 0);
	co_sleep_ns(6 * NS_PER_S);
	crash();
	assert_int_equal(open_flags(0), 0);
	assert_true(is_live(model[model_count - 1].lba));
	compare();
	close_volume();
}

/* Nobody asks for a commit, and it comes. */
static void test_commit_timer(void **state)
{
	(void)state;
	run(do_commit_timer);
}

static void do_reserve(void)
{
	struct raid_run runs[16];
	unsigned count;
	int err = 0;

	open_with_blocks(20);
	while (!err)
		err = raid_alloc_data(raid, 4096, 0, runs, ARRAY_SIZE(runs), &count);
	assert_int_equal(err, -ENOSPC);
	assert_int_equal(raid_alloc_data(raid, 1, RAID_ALLOC_RESERVE, runs, ARRAY_SIZE(runs), &count), 0);
	crash();
}

/* A full volume has blocks for those who are about to free some. */
static void test_reserve(void **state)
{
	(void)state;
	run(do_reserve);
}

static void do_scrub_labels(void)
{
	open_with_blocks(20);
	simdev_garble(disks[1], 0, BLOCK_BYTES);
	assert_int_not_equal(scrub().found, 0);
	assert_int_equal(scrub().found, 0);
	close_volume();
}

static void test_scrub_labels(void **state)
{
	(void)state;
	run(do_scrub_labels);
}

/* ---- what only shows beside another safeguard ---- */

/* Every copy of the record with that number loses its head. */
static void lose_record(uint64_t seq)
{
	char *ring = mem_zalloc(JOURNAL_BYTES);
	unsigned lost = 0;

	for (unsigned i = 0; i < disk_count; i++) {
		simdev_peek(disks[i], LABEL_AREA_BYTES, ring, JOURNAL_BYTES);
		for (uint64_t off = 0; off < JOURNAL_BYTES; off += BLOCK_BYTES) {
			const struct record_disk *d = (void *)(ring + off);

			if (from_le64(d->magic) != RECORD_MAGIC || from_le64(d->seq) != seq)
				continue;
			simdev_zero(disks[i], LABEL_AREA_BYTES + off, BLOCK_BYTES);
			lost++;
		}
	}
	mem_free(ring);
	assert_int_not_equal(lost, 0);
}

static uint64_t commit_some(unsigned records)
{
	struct raid_info info;

	for (unsigned i = 0; i < records; i++) {
		assert_int_equal(write_blocks(5), 0);
		assert_int_equal(raid_commit(raid), 0);
	}
	raid_info(raid, &info);
	return info.journal_seq;
}

static void do_gap(void)
{
	uint64_t last;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	last = commit_some(6);
	crash();
	lose_record(last - 2);
	assert_int_equal(open_flags(0), -EUCLEAN);
}

/* A record that was acknowledged is on no member any more, and later ones are. */
static void test_gap(void **state)
{
	(void)state;
	run(do_gap);
}

static void do_old_record(void)
{
	uint64_t old;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	old = commit_some(4) - 1;
	assert_int_equal(journal_checkpoint(raid), 0);
	(void)commit_some(3);
	crash();
	lose_record(old);
	check_clean();
	assert_int_equal(open_flags(0), 0);
	compare();
	close_volume();
}

/* A record before the tail is as good as not there. */
static void test_old_record(void **state)
{
	(void)state;
	run(do_old_record);
}

/* All that can be had is taken: none of it is of the model. */
static void take_others(void)
{
	struct raid_run runs[16];
	unsigned count;

	while (!raid_alloc_data(raid, 4096, 0, runs, ARRAY_SIZE(runs), &count))
		for (unsigned i = 0; i < count; i++)
			for (unsigned k = 0; k < model_count; k++)
				assert_true(model[k].lba < runs[i].lba || model[k].lba >= runs[i].lba + runs[i].count);
}

static void do_freed_early(void)
{
	open_with_blocks(600);
	for (unsigned i = 0; i < model_count; i++)
		raid_stage_dead(raid, model[i].lba, 1);
	take_others();
	crash();
}

/* What is about to be freed is not given out again: a crash brings it back. */
static void test_freed_early(void **state)
{
	(void)state;
	run(do_freed_early);
}

static void do_readers(void)
{
	struct raid_reader first, second;
	struct raid_run run;
	unsigned count;

	open_with_blocks(600);
	raid_read_begin(raid, &first);
	for (unsigned i = 0; i < model_count; i++)
		raid_stage_dead(raid, model[i].lba, 1);
	raid_read_begin(raid, &second);
	assert_int_equal(raid_commit(raid), 0);
	take_others();
	raid_read_end(raid, &first);
	take_others();
	raid_read_end(raid, &second);
	assert_int_equal(raid_alloc_data(raid, 1, 0, &run, 1, &count), 0);
	crash();
}

/* What is freed while others still read it is not given out before the last of them has ended. */
static void test_readers(void **state)
{
	(void)state;
	run(do_readers);
}

/* One block, live and durable. */
static void write_lba(uint64_t lba, uint64_t version, unsigned flags)
{
	char *data = buf_get_wait(BLOCK_BYTES);
	struct raid_block block = {.lba = lba, .data = data};

	fill(data, lba, version);
	assert_int_equal(raid_write(raid, &block, 1, flags), 0);
	raid_stage_live(raid, lba, 1);
	assert_int_equal(raid_commit(raid), 0);
	buf_put(data);
}

/*
 * A block is in the journal, dies, and its place is written directly: the image is older than what stands there, for a checkpoint as for
 * replay.
 */
static void older_image(bool crashes)
{
	struct raid_run run;
	unsigned count;

	open_with_blocks(60);
	assert_int_equal(raid_alloc_data(raid, 1, 0, &run, 1, &count), 0);
	write_lba(run.lba, 1000001, RAID_WRITE_JOURNAL);
	raid_stage_dead(raid, run.lba, 1);
	assert_int_equal(raid_commit(raid), 0);
	write_lba(run.lba, 1000002, 0);
	model[model_count].lba = run.lba;
	model[model_count++].version = 1000002;
	if (crashes) {
		crash();
		assert_int_equal(open_flags(0), 0);
	}
	compare();
	close_volume();
	check_clean();
}

static void do_older_image(void)
{
	older_image(false);
}

static void do_older_image_crash(void)
{
	older_image(true);
}

static void test_older_image(void **state)
{
	(void)state;
	run_on(do_older_image, 0, 2);
	run_on(do_older_image, 1, 2);
}

static void test_older_image_crash(void **state)
{
	(void)state;
	run_on(do_older_image_crash, 0, 2);
	run_on(do_older_image_crash, 1, 2);
}

/* A volume with the data blocks of one row, of which the first lives, at home. */
static void open_with_row(uint64_t lba[3])
{
	struct raid_run run;
	struct chunk *c;
	unsigned count;

	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	assert_int_equal(raid_alloc_data(raid, 12, 0, &run, 1, &count), 0);
	c = table_chunk(raid->t, LBA_CHUNK(run.lba));
	assert_int_equal(c->geom.width, 3);
	assert_int_equal(run.count, c->geom.strip_blocks * c->geom.width);
	for (unsigned i = 0; i < 3; i++)
		lba[i] = run.lba + (uint64_t)i * c->geom.strip_blocks;
	write_lba(lba[0], 1, 0);
	assert_int_equal(journal_checkpoint(raid), 0);
}

/*
 * A row of three data blocks. The first lives; the second is written beside it and dies with its image still in the
 * journal; the third is written beside the first. The second counts in the parity that went before, and not in the new one.
 */
static void do_dead_image(void)
{
	uint64_t lba[3], off;
	unsigned disk;

	open_with_row(lba);
	write_lba(lba[1], 2, 0);
	raid_stage_dead(raid, lba[1], 1);
	assert_int_equal(raid_commit(raid), 0);
	write_lba(lba[2], 3, 0);
	model[model_count].lba = lba[0];
	model[model_count++].version = 1;
	model[model_count].lba = lba[2];
	model[model_count++].version = 3;
	disk = slot_place(lba[0], 0, &off);
	close_volume();
	check_clean();
	compare_without(disk);
}

static void test_dead_image(void **state)
{
	(void)state;
	run_on(do_dead_image, 5, 4);
}

/* Beside a block that a member has wrong another is written: the parity is of what the first ought to be. */
static void do_wrong_neighbour(void)
{
	uint64_t lba[3], off;
	unsigned disk;

	open_with_row(lba);
	disk = slot_place(lba[0], 0, &off);
	simdev_garble(disks[disk], off, BLOCK_BYTES);
	write_lba(lba[1], 2, 0);
	for (unsigned i = 0; i < 2; i++) {
		model[model_count].lba = lba[i];
		model[model_count++].version = 1 + i;
	}
	close_volume();
	compare_without(disk);
}

static void test_wrong_neighbour(void **state)
{
	(void)state;
	run_on(do_wrong_neighbour, 5, 4);
}

/* One of the blocks of a read has its newest content in the journal; what is in place is right by its checksum, and old. */
static void do_read_image(void)
{
	char *data = buf_get_wait(4 * BLOCK_BYTES), *want = data + 3 * BLOCK_BYTES;

	open_with_blocks(60);
	write_lba(model[1].lba, 1000001, 0);
	assert_int_equal(raid_read(raid, model[0].lba, 3, data), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(model[i].lba, model[0].lba + i);
		fill(want, model[i].lba, i == 1 ? 1000001 : model[i].version);
		assert_memory_equal(data + (size_t)i * BLOCK_BYTES, want, BLOCK_BYTES);
	}
	crash();
	buf_put(data);
}

static void test_read_image(void **state)
{
	(void)state;
	run(do_read_image);
}

static uint64_t writes_of_all(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < disk_count; i++) {
		struct simdev_stats stats;

		simdev_stats(disks[i], &stats);
		sum += stats.writes;
	}
	return sum;
}

/*
 * A member fails that must not be missed: it is read all the same, nothing more is written, and when it is back
 * everything is as it was.
 */
static void do_needed_member(void)
{
	const uint64_t slices = LABEL_AREA_BYTES + JOURNAL_BYTES;
	unsigned count;
	uint64_t writes;

	open_with_blocks(200);
	close_volume();
	count = model_count;
	offered[0] = false;
	assert_int_equal(open_flags(0), 0);
	fail_writes(1, slices, label_b_off(DISK_BYTES) - slices);
	assert_int_not_equal(write_blocks(100), 0);
	model_count = count;
	simdev_faults_clear(disks[1]);
	compare();
	writes = writes_of_all();
	assert_int_not_equal(write_blocks(100), 0);
	assert_int_equal(writes_of_all(), writes);
	model_count = count;
	crash();
	assert_int_equal(open_flags(0), 0);
	compare();
	close_volume();
	offered[0] = true;
}

static void test_needed_member(void **state)
{
	(void)state;
	run(do_needed_member);
}

/* Two of three refuse their labels for a while: the table of the third must not say that it went on alone. */
static void do_labels_refused(void)
{
	open_with_blocks(60);
	for (unsigned d = 1; d < 3; d++) {
		fail_writes(d, 0, LABEL_AREA_BYTES);
		fail_writes(d, label_b_off(DISK_BYTES), DISK_BYTES - label_b_off(DISK_BYTES));
	}
	assert_int_not_equal(raid_meta_ensure(raid, raid_meta_ready(raid, 0) + 1, 0), 0);
	crash();
	for (unsigned d = 1; d < 3; d++)
		simdev_faults_clear(disks[d]);
	assert_int_equal(open_flags(0), 0);
	compare();
	close_volume();
}

static void test_labels_refused(void **state)
{
	(void)state;
	run(do_labels_refused);
}

/* A member comes back and lacks what it missed: that is known, and no error of its own. */
static void do_returned(void)
{
	open_with_blocks(200);
	close_volume();
	offered[1] = false;
	assert_int_equal(open_flags(0), 0);
	overwrite(200);
	close_volume();
	offered[1] = true;
	assert_int_equal(open_flags(0), 0);
	compare();
	assert_int_equal(member_info(member_on(1)).errors_sum, 0);
	assert_int_equal(member_info(member_on(1)).errors_lost, 0);
	close_volume();
}

static void test_returned(void **state)
{
	(void)state;
	run(do_returned);
}

/* Of the two places at each end the newer generation, as it counts for whoever has only this disk. */
static bool prepared_only(struct simdev *d)
{
	struct dev *dev = simdev_open(d);
	struct label l;
	bool is = !label_read(dev, &l) && l.far && l.prepared;

	label_clear(&l);
	dev_close(dev);
	return is;
}

/*
 * A table without a member is prepared and the power goes. Nobody acts on it: that member and one of the others must
 * still be enough.
 */
static void do_prepared(void)
{
	const uint64_t slices = LABEL_AREA_BYTES + JOURNAL_BYTES;
	unsigned count, came = 0;
	int err = -1;

	open_with_blocks(40);
	close_volume();
	count = model_count;
	save();
	for (unsigned n = 1; err; n++) {
		assert_true(n < POINTS_MAX);
		restore();
		set_fate(labels_stay);
		model_count = count;
		assert_int_equal(open_flags(0), 0);
		overwrite(1);
		assert_int_equal(raid_commit(raid), 0); /* not the first: that writes a table by itself */
		fail_writes(1, slices, label_b_off(DISK_BYTES) - slices);
		assert_int_equal(write_blocks(40), 0);
		world_crash_at(world, POINT_CHANGES, n);
		err = raid_commit(raid);
		world_crash_at(world, 0, 0);
		crash();
		simdev_faults_clear(disks[1]);
		model_count = count;
		if (!err || !prepared_only(disks[0]) || !prepared_only(disks[2]))
			continue;
		came++;
		offered[2] = false;
		assert_int_equal(open_flags(0), 0);
		compare();
		close_volume();
		offered[2] = true;
	}
	assert_int_not_equal(came, 0);
	save_end();
}

static void test_prepared(void **state)
{
	(void)state;
	run(do_prepared);
}

/* What stands at one address is not right at another, nor in another filesystem. */
static void test_sum_address(void **state)
{
	static const char data[BLOCK_BYTES] = "the same";
	static const struct uuid fs = {{1}}, other = {{2}};
	uint64_t sum = block_sum(&fs, 1, 2, 3, data);

	(void)state;
	assert_int_equal(block_sum(&fs, 1, 2, 3, data), sum);
	assert_int_not_equal(block_sum(&fs, 2, 2, 3, data), sum);
	assert_int_not_equal(block_sum(&fs, 1, 3, 3, data), sum);
	assert_int_not_equal(block_sum(&fs, 1, 2, 4, data), sum);
	assert_int_not_equal(block_sum(&other, 1, 2, 3, data), sum);
}

static enum simfate journal_goes(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	bool journal = block >= LABEL_AREA_BYTES / BLOCK_BYTES &&
		       block < (LABEL_AREA_BYTES + JOURNAL_BYTES) / BLOCK_BYTES;

	return journal ? SIMFATE_DROP : SIMFATE_KEEP;
}

static enum simfate all_stays(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	return SIMFATE_KEEP;
}

/* What the journals hold is in the caches of the members alone: they have what `before` has. */
static void journals_to_caches(struct simdev **before, struct simdev **now)
{
	char *ring = buf_get_wait(BUF_BYTES_MAX);

	for (unsigned i = 0; i < disk_count; i++) {
		struct dev *dev;

		for (uint64_t off = 0; off < JOURNAL_BYTES; off += BUF_BYTES_MAX) {
			simdev_peek(before[i], LABEL_AREA_BYTES + off, ring, MIN(BUF_BYTES_MAX, JOURNAL_BYTES));
			simdev_poke(disks[i], LABEL_AREA_BYTES + off, ring, MIN(BUF_BYTES_MAX, JOURNAL_BYTES));
		}
		dev = simdev_open(disks[i]);
		for (uint64_t off = 0; off < JOURNAL_BYTES; off += BUF_BYTES_MAX) {
			simdev_peek(now[i], LABEL_AREA_BYTES + off, ring, MIN(BUF_BYTES_MAX, JOURNAL_BYTES));
			assert_int_equal(
			    io_write_sync(dev, LABEL_AREA_BYTES + off, ring, MIN(BUF_BYTES_MAX, JOURNAL_BYTES)), 0);
		}
		dev_close(dev);
	}
	buf_put(ring);
}

/* The daemon is killed with a record that no flush has reached; the power goes while the next one replays it. */
static void do_killed(void)
{
	struct simdev *before[DISKS_MAX], *now[DISKS_MAX];
	bool opened = false;

	open_with_blocks(60);
	close_volume();
	assert_int_equal(open_flags(0), 0);
	for (unsigned i = 0; i < disk_count; i++)
		before[i] = simdev_clone(disks[i], "before");
	set_fate(all_stays);
	overwrite_cut_short(20);
	for (unsigned i = 0; i < disk_count; i++)
		now[i] = simdev_clone(disks[i], "now");
	for (unsigned n = 1; !opened; n++) {
		assert_true(n < POINTS_MAX);
		for (unsigned i = 0; i < disk_count; i++)
			simdev_revert(disks[i], now[i]);
		journals_to_caches(before, now);
		set_fate(journal_goes);
		world_crash_at(world, POINT_CHANGES, n);
		opened = !open_flags(0);
		world_crash_at(world, 0, 0);
		crash();
		set_fate(NULL);
		assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
		assert_int_equal(raid_check(raid, print_problem, NULL), 0);
		(void)compare_either(20);
		close_volume();
	}
	for (unsigned i = 0; i < disk_count; i++) {
		simdev_free(before[i]);
		simdev_free(now[i]);
	}
}

static void test_killed(void **state)
{
	(void)state;
	run(do_killed);
}

static void do_after_error(void)
{
	char *data = buf_get_wait(BLOCK_BYTES);
	struct write_list list;
	uint64_t writes;

	open_with_blocks(20);
	fill(data, 1, 1);
	write_list_init(&list);
	write_list_slot(raid, &list, table_chunk(raid->t, LBA_CHUNK(model[0].lba)), 50, 0, data);
	writes = writes_of_all();
	raid->error = -EIO;
	assert_int_equal(write_list_run(raid, &list), -EIO);
	assert_int_equal(writes_of_all(), writes);
	crash();
	buf_put(data);
}

/* What others were about to write when the volume failed is not written. */
static void test_after_error(void **state)
{
	(void)state;
	run(do_after_error);
}

static enum simfate sums_on_one(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	return d == disks[keeper] ? SIMFATE_KEEP : pages_go(arg, d, write, block, sector);
}

/* Opened again and again, with a crash at each point that garbles pages: without the disk that had newer ones. */
static void reopen_torn(void)
{
	struct simdev *then[DISKS_MAX];
	bool opened = false;

	for (unsigned i = 0; i < disk_count; i++)
		then[i] = simdev_clone(disks[i], "then");
	for (unsigned n = 1; !opened; n++) {
		assert_true(n < POINTS_MAX);
		for (unsigned i = 0; i < disk_count; i++)
			simdev_revert(disks[i], then[i]);
		set_fate(pages_torn);
		world_crash_at(world, POINT_CHANGES, n);
		opened = !open_flags(0);
		world_crash_at(world, 0, 0);
		crash();
		set_fate(NULL);
		offered[keeper] = false;
		assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
		compare();
		close_volume();
		offered[keeper] = true;
	}
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(then[i]);
}

/* A checkpoint is cut short with one copy of a page written, and so is the one of the replay after it. */
static void do_pages_twice(void)
{
	disks_new();
	assert_int_equal(format(), 0);
	assert_int_equal(open_flags(0), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(write_blocks(20), 0);
		assert_int_equal(journal_checkpoint(raid), 0);
	}
	page_blocks_note(table_chunk(raid->t, LBA_CHUNK(model[0].lba)), false);
	close_volume();
	save();
	for (keeper = 0; keeper < disk_count; keeper++) {
		restore();
		set_fate(NULL);
		model_count = 60;
		assert_int_equal(open_flags(0), 0);
		assert_int_equal(write_blocks(20), 0);
		assert_int_equal(raid_commit(raid), 0);
		set_fate(sums_on_one);
		/* Pages have been written and are not flushed. */
		world_crash_at(world, POINT_SUBMIT_FLUSH, 2);
		assert_int_not_equal(journal_checkpoint(raid), 0);
		world_crash_at(world, 0, 0);
		crash();
		reopen_torn();
	}
	save_end();
}

static void test_pages_twice(void **state)
{
	(void)state;
	run(do_pages_twice);
}

static enum simfate all_goes(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	return SIMFATE_DROP;
}

static void do_acknowledged(void)
{
	open_with_blocks(20); /* the first commit writes a table as well */
	assert_int_equal(write_blocks(40), 0);
	assert_int_equal(raid_commit(raid), 0);
	set_fate(all_goes);
	crash();
	set_fate(NULL);
	check_clean();
}

/* Nothing that a commit has acknowledged is in caches alone: neither its record nor the data that it makes live. */
static void test_acknowledged(void **state)
{
	(void)state;
	run(do_acknowledged);
}

static struct co_cond checkpoint_ended;
static bool checkpoint_runs;

static void checkpoint_co(void *arg)
{
	assert_int_not_equal(journal_checkpoint(raid), 0); /* the power goes before it returns */
	checkpoint_runs = false;
	co_cond_wake_all(&checkpoint_ended);
}

/* Until it has begun to write home. */
static void checkpoint_begin(void)
{
	co_cond_init(&checkpoint_ended);
	checkpoint_runs = true;
	assert_int_equal(co_spawn(loop, checkpoint_co, NULL), 0);
	while (!raid->journal.finishing)
		co_cond_wait(&raid->journal.done);
}

/* Nothing stays that is not flushed. */
static void checkpoint_crash(void)
{
	set_fate(all_goes);
	world_crash(world);
	while (checkpoint_runs)
		co_cond_wait(&checkpoint_ended);
	crash();
	set_fate(NULL);
	for (unsigned i = 0; i < disk_count; i++)
		simdev_faults_clear(disks[i]);
}

/*
 * The power goes when a checkpoint has written and flushed the checksum pages and not yet what announces them, and when more has
 * become durable since it began.
 */
static void checkpoint_cut_short(void)
{
	struct chunk *c = table_chunk(raid->t, LBA_CHUNK(model[0].lba));
	struct simfault f = {.kind = SIMFAULT_DELAY, .on = SIMFAULT_ON_WRITE, .len_bytes = PAGE_PLACES * BLOCK_BYTES, .param = NS_PER_S};
	unsigned disk;

	assert_int_equal(c->geom.bitmap_pages, 1);
	for (unsigned copy = 0; copy < c->geom.page_copies; copy++) {
		f.off_bytes = page_off(c, 0, copy, &disk);
		assert_int_equal(simdev_fault(disks[disk], &f), 0);
	}
	checkpoint_begin();
	co_sleep_ns(NS_PER_S / 2);
	assert_int_equal(write_blocks(20), 0);
	assert_int_equal(raid_commit(raid), 0);
	assert_true(raid->journal.finishing);
	checkpoint_crash();
}

/*
 * Replay meets checksum pages that nothing announces yet, and one member loses what is written of them then: that its
 * copies are older must be known.
 */
static void do_pages_early(void)
{
	struct simfault f = {.kind = SIMFAULT_LOST, .len_bytes = BLOCK_BYTES};
	unsigned count, named = 0;

	open_with_blocks(60);
	page_blocks_note(table_chunk(raid->t, LBA_CHUNK(model[0].lba)), false);
	close_volume();
	count = model_count;
	save();
	for (unsigned d = 0; d < disk_count; d++) {
		restore();
		model_count = count;
		assert_int_equal(open_flags(0), 0);
		assert_int_equal(write_blocks(700), 0);
		checkpoint_cut_short();
		for (unsigned i = 0; i < page_block_count; i++) {
			f.off_bytes = page_blocks[i].block * BLOCK_BYTES;
			if (page_blocks[i].d == disks[d])
				assert_int_equal(simdev_fault(disks[d], &f), 0);
		}
		assert_int_equal(open_flags(0), 0);
		close_volume();
		assert_int_not_equal(simdev_faults_hit(disks[d]), 0);
		simdev_faults_clear(disks[d]);
		assert_int_equal(open_flags(0), 0);
		compare();
		named += member_info(member_on(d)).errors_lost != 0;
		close_volume();
		check_clean();
	}
	assert_int_equal(named, 2); /* who has a copy of the page that changed meanwhile; the others lost nothing new */
	save_end();
}

static void test_pages_early(void **state)
{
	(void)state;
	run(do_pages_early);
}

/*
 * Blocks become live while a checkpoint has the checksum pages under way, and the bitmap page is yet to come. Their transaction is not
 * durable when the checkpoint has ended and the power goes.
 */
static void do_capture(void)
{
	struct simfault f = {.kind = SIMFAULT_DELAY, .on = SIMFAULT_ON_WRITE, .len_bytes = BLOCK_BYTES, .param = NS_PER_S};
	unsigned count;

	open_with_blocks(60);
	assert_int_equal(write_blocks(20), 0);
	count = model_count;
	page_blocks_note(table_chunk(raid->t, LBA_CHUNK(model[0].lba)), false);
	for (unsigned d = 0; d < disk_count; d++) {
		for (unsigned i = 0; i < page_block_count; i++) {
			f.off_bytes = page_blocks[i].block * BLOCK_BYTES;
			if (page_blocks[i].d == disks[d])
				assert_int_equal(simdev_fault(disks[d], &f), 0);
		}
	}
	checkpoint_begin();
	assert_int_equal(write_blocks(20), 0);
	assert_true(raid->journal.finishing);
	while (raid->journal.checkpointing)
		co_cond_wait(&raid->journal.done);
	assert_int_equal(raid->error, 0);
	checkpoint_crash();
	model_count = count;
	check_clean();
	assert_int_equal(open_flags(0), 0);
	assert_false(is_live(model[count].lba));
	close_volume();
}

/* A checkpoint writes pages as they were when it began. */
static void test_capture(void **state)
{
	(void)state;
	run(do_capture);
}

static int setup(void **state)
{
	(void)state;
	verbose = getenv("VERBOSE") != NULL;
	log_set_hook(quiet, NULL);
	return buf_pool_init(POOL_BYTES);
}

static int teardown(void **state)
{
	(void)state;
	buf_pool_exit();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_format_crash),
	    cmocka_unit_test(test_format_over_crash),
	    cmocka_unit_test(test_grow_crash),
	    cmocka_unit_test(test_forged_record),
	    cmocka_unit_test(test_spread),
	    cmocka_unit_test(test_lost_records),
	    cmocka_unit_test(test_fua_failed),
	    cmocka_unit_test(test_lost_day),
	    cmocka_unit_test(test_missed_data),
	    cmocka_unit_test(test_missed_record),
	    cmocka_unit_test(test_rebuild_crash),
	    cmocka_unit_test(test_wrong_parity),
	    cmocka_unit_test(test_scrub_unverified),
	    cmocka_unit_test(test_two_erasures),
	    cmocka_unit_test(test_page_damage),
	    cmocka_unit_test(test_replay_crash),
	    cmocka_unit_test(test_pages_crash),
	    cmocka_unit_test(test_read_errors),
	    cmocka_unit_test(test_commit_timer),
	    cmocka_unit_test(test_reserve),
	    cmocka_unit_test(test_scrub_labels),
	    cmocka_unit_test(test_gap),
	    cmocka_unit_test(test_old_record),
	    cmocka_unit_test(test_freed_early),
	    cmocka_unit_test(test_readers),
	    cmocka_unit_test(test_older_image),
	    cmocka_unit_test(test_older_image_crash),
	    cmocka_unit_test(test_dead_image),
	    cmocka_unit_test(test_wrong_neighbour),
	    cmocka_unit_test(test_read_image),
	    cmocka_unit_test(test_needed_member),
	    cmocka_unit_test(test_labels_refused),
	    cmocka_unit_test(test_returned),
	    cmocka_unit_test(test_prepared),
	    cmocka_unit_test(test_sum_address),
	    cmocka_unit_test(test_killed),
	    cmocka_unit_test(test_after_error),
	    cmocka_unit_test(test_acknowledged),
	    cmocka_unit_test(test_pages_twice),
	    cmocka_unit_test(test_pages_early),
	    cmocka_unit_test(test_capture),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
