/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The cleaner: stripes become clean, nothing else changes; whoever writes, overwrites in place, cuts
 * or deletes meanwhile wins; crashes, reads and writes that fail, no space.
 *
 * Every block of a file is one number, repeated; 0 is a hole. After a crash a block has one of the
 * numbers it had since the last sync.
 */
#include "fs_world.h"
#include <fcntl.h>
#include <linux/falloc.h>

#define BLOCKS	    300u
#define WAS_MAX	    64u
#define STRIPE	    16u
#define CHUNK	    512u
#define WAIT_ROUNDS 2000

static const struct fs_cred root_cred = {0, 0, 022};

struct file {
	uint64_t ino;
	uint32_t now[BLOCKS];
	uint32_t was[BLOCKS][WAS_MAX]; /* since the last sync, that one too */
	unsigned was_count[BLOCKS];
};

static const struct fake_raid_params eager = {
    .yield_one_in = 3,
    .commit_ns_max = UINT64_MAX / 4,
    .data_chunk_blocks = CHUNK,
    .data_chunks_max = 1,
    .data_reserve_blocks = 4,
    .stripe_blocks = STRIPE,
    .clean_mark = UINT64_MAX / 2, /* never clean enough */
};

static struct file *file_new(struct world *w, const char *name)
{
	struct fs_attr a;
	struct file *f = calloc(1, sizeof(*f));
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &a));
	fs_unref(w->fs, a.ino, 1);
	f->ino = a.ino;
	for (unsigned b = 0; b < BLOCKS; b++)
		f->was_count[b] = 1;
	return f;
}

static void file_set(struct file *f, unsigned b, uint32_t value)
{
	f->now[b] = value;
	assert_true(f->was_count[b] < WAS_MAX);
	f->was[b][f->was_count[b]++] = value;
}

static void file_synced(struct file *f)
{
	for (unsigned b = 0; b < BLOCKS; b++) {
		f->was[b][0] = f->now[b];
		f->was_count[b] = 1;
	}
}

static bool file_writable(const struct file *f, unsigned from, unsigned to)
{
	for (unsigned b = from; b < to; b++)
		if (f->was_count[b] == WAS_MAX)
			return false;
	return true;
}

static int file_write(struct world *w, struct file *f, unsigned from, unsigned count)
{
	uint32_t *data = malloc((size_t)count * BLOCK_BYTES);
	for (unsigned b = from; b < from + count; b++) {
		uint32_t value = (uint32_t)rnd(w, UINT32_MAX - 1) + 1;
		for (unsigned k = 0; k < BLOCK_BYTES / 4; k++)
			data[(b - from) * (BLOCK_BYTES / 4) + k] = value;
		file_set(f, b, value);
	}
	int r = fs_write(w->fs, f->ino, (uint64_t)from * BLOCK_BYTES, data, (size_t)count * BLOCK_BYTES, 0);
	free(data);
	return r;
}

static void file_punch(struct world *w, struct file *f, unsigned from, unsigned count)
{
	check_ok(fs_fallocate(w->fs, f->ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (uint64_t)from * BLOCK_BYTES,
			      (uint64_t)count * BLOCK_BYTES));
	for (unsigned b = from; b < from + count; b++)
		file_set(f, b, 0);
}

static uint32_t block_read(struct world *w, struct file *f, unsigned b)
{
	uint32_t *data = buf_get_wait(2 * BLOCK_BYTES);
	void *at;
	size_t got;
	check_ok(fs_read(w->fs, f->ino, (uint64_t)b * BLOCK_BYTES, BLOCK_BYTES, data, &at, &got));
	uint32_t value = got ? *(uint32_t *)at : 0;
	for (unsigned k = 0; k < got / 4; k++)
		if (((uint32_t *)at)[k] != value)
			die("block %u is a mixture of %#x and %#x", b, value, ((uint32_t *)at)[k]);
	buf_put(data);
	return value;
}

static void file_compare(struct world *w, struct file *f)
{
	for (unsigned b = 0; b < BLOCKS; b++) {
		uint32_t value = block_read(w, f, b);
		if (value != f->now[b])
			die("inode %llu block %u is %#x, not %#x", (unsigned long long)f->ino, b, value, f->now[b]);
	}
}

static void file_crashed(struct world *w, struct file *f)
{
	for (unsigned b = 0; b < BLOCKS; b++) {
		uint32_t value = block_read(w, f, b);
		bool legal = false;
		for (unsigned k = 0; k < f->was_count[b]; k++)
			legal |= f->was[b][k] == value;
		if (!legal)
			die("inode %llu block %u is %#x after the crash", (unsigned long long)f->ino, b, value);
		f->now[b] = value;
	}
	file_synced(f);
}

static uint64_t moved(struct world *w)
{
	struct fs_cleaned c;
	fs_cleaned(w->fs, &c);
	return c.moved_blocks;
}

/* Until so many blocks are clean. */
static void wait_clean(struct world *w, uint64_t blocks)
{
	for (unsigned t = 0; fake_raid_clean_blocks(w->raid) < blocks; t++) {
		if (t == WAIT_ROUNDS)
			die("only %llu blocks are clean, not %llu", (unsigned long long)fake_raid_clean_blocks(w->raid),
			    (unsigned long long)blocks);
		co_sleep_ns(10 * NS_PER_MS);
	}
}

/* Every stripe keeps a quarter. */
static void make_holes(struct world *w, struct file *f)
{
	check_ok(file_write(w, f, 0, BLOCKS));
	check_ok(fs_sync(w->fs));
	for (unsigned b = 0; b < BLOCKS; b++)
		if (b % 4)
			file_punch(w, f, b, 1);
	check_ok(fs_sync(w->fs));
	file_synced(f);
}

static void cleans(struct world *w)
{
	struct file *f = file_new(w, "f");
	struct fs_attr before, after;
	make_holes(w, f);
	check_ok(file_write(w, f, 0, 1)); /* a file of nothing but holes writes nothing that wakes the cleaner */
	check_ok(fs_sync(w->fs));
	check_ok(fs_getattr(w->fs, f->ino, &before));
	/* 75 blocks fit into 5 stripes; those that are 3/4 full stay. */
	wait_clean(w, CHUNK - 7 * STRIPE);
	assert_true(moved(w) > 0);
	file_compare(w, f);
	check_ok(fs_getattr(w->fs, f->ino, &after));
	assert_memory_equal(&before, &after, sizeof(before));
	world_remount(w);
	file_compare(w, f);
	free(f);
}

static void test_cleans(void **state)
{
	world_test(1, &eager, 0, cleans);
}

/* Nothing is clean enough to be worth it: it rests, and does not move the same blocks for ever. */
static void rests(struct world *w)
{
	struct file *f = file_new(w, "f");
	check_ok(file_write(w, f, 0, BLOCKS));
	check_ok(fs_sync(w->fs));
	co_sleep_ns(10 * NS_PER_S);
	uint64_t before = moved(w);
	co_sleep_ns(100 * NS_PER_S);
	assert_true(moved(w) - before <= 100 * STRIPE);
	file_compare(w, f);
	free(f);
}

static void test_rests(void **state)
{
	world_test(1, &eager, 0, rests);
}

/* ---- races ---- */

static struct file *files[2];

static void race_step(struct world *w, struct file *f)
{
	unsigned from = (unsigned)rnd(w, BLOCKS), count = 1 + (unsigned)rnd(w, MIN(BLOCKS - from, 40u));
	if (!file_writable(f, from, from + count)) {
		check_ok(fs_sync(w->fs));
		file_synced(f);
	}
	switch (rnd(w, 8)) {
	case 0:
	case 1:
		file_punch(w, f, from, count);
		break;
	case 2: {
		struct fs_errseq none = {0};
		check_ok(fs_fsync(w->fs, f->ino, false, &none));
		file_synced(f);
		break;
	}
	case 3:
		check_ok(fs_sync(w->fs));
		break;
	case 4:
		/* It pauses for a second when there is nothing to gain. */
		co_sleep_ns(rnd(w, 3) ? rnd(w, 20) * NS_PER_MS : NS_PER_S);
		break;
	default: {
		int r = file_write(w, f, from, count);
		if (r)
			die("write: %s", strerror(-r));
		break;
	}
	}
}

static void race_part(struct world *w, unsigned number)
{
	unsigned steps = 20 + (unsigned)rnd(w, 60);
	for (unsigned s = 0; s < steps; s++)
		race_step(w, files[number]);
}

static uint64_t race_moved;

/* Both files together are smaller than the volume: whatever the cleaner holds, nothing may fail. */
static void races(struct world *w)
{
	files[0] = file_new(w, "a");
	files[1] = file_new(w, "b");
	for (unsigned round = 0; round < 6; round++) {
		world_side_by_side(w, 2, race_part);
		race_moved += moved(w);
		if (rnd(w, 2)) {
			world_crash(w);
			file_crashed(w, files[0]);
			file_crashed(w, files[1]);
		} else {
			file_compare(w, files[0]);
			file_compare(w, files[1]);
			check_ok(fs_sync(w->fs));
			file_synced(files[0]);
			file_synced(files[1]);
		}
	}
	free(files[0]);
	free(files[1]);
}

static void test_races(void **state)
{
	struct fake_raid_params p = eager;
	p.data_chunk_blocks = 2 * BLOCKS + 64;
	p.yield_one_in = 1;
	race_moved = 0;
	for_seeds (seed, 60)
		world_test(seed, &p, 256u << 10, races);
	assert_true(race_moved > 1000);
}

/*
 * A file is overwritten as a whole while less is free than that takes, so that it goes to where it
 * stands, and while the cleaner moves it: its stripes have lost their other blocks.
 */
#define OTHERS 180u

static void overwriter(struct world *w, unsigned number)
{
	for (unsigned t = 0; t < 4; t++) {
		unsigned from = number ? 0 : (unsigned)rnd(w, 8);
		check_ok(file_write(w, files[number], from, number ? 1 : BLOCKS - from));
		check_ok(fs_sync(w->fs));
		file_synced(files[number]);
		co_sleep_ns(rnd(w, 3) * NS_PER_MS);
	}
}

static void in_place(struct world *w)
{
	files[0] = file_new(w, "a");
	files[1] = file_new(w, "b");
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned b = 0; b < BLOCKS; b += 5) {
			check_ok(file_write(w, files[0], b, 5));
			check_ok(file_write(w, files[1], b * OTHERS / BLOCKS, 5 * OTHERS / BLOCKS));
			check_ok(fs_sync(w->fs));
			file_synced(files[0]);
			file_synced(files[1]);
		}
		file_punch(w, files[1], 0, OTHERS);
		check_ok(fs_sync(w->fs));
		file_synced(files[1]);
		co_sleep_ns(NS_PER_S);
		world_side_by_side(w, 2, overwriter);
		file_compare(w, files[0]);
		file_compare(w, files[1]);
	}
	race_moved += moved(w);
	world_remount(w);
	file_compare(w, files[0]);
	file_compare(w, files[1]);
	free(files[0]);
	free(files[1]);
}

static void test_in_place(void **state)
{
	struct fake_raid_params p = eager;
	p.data_chunk_blocks = BLOCKS + OTHERS + 80;
	race_moved = 0;
	for_seeds (seed, 40)
		world_test(seed, &p, 4u << 20, in_place);
	assert_true(race_moved > 1000);
}

/* ---- failures ---- */

static void failures(struct world *w)
{
	struct file *f = file_new(w, "f");
	make_holes(w, f);
	fake_raid_fail_read(w->raid, 1 + rnd(w, 20), -EBADMSG);
	check_ok(file_write(w, f, 0, 1));
	check_ok(fs_sync(w->fs));
	fake_raid_fail_write(w->raid, 1 + rnd(w, 20), -ENOMEM);
	wait_clean(w, CHUNK - 7 * STRIPE);
	fake_raid_fail_read(w->raid, 0, 0);
	fake_raid_fail_write(w->raid, 0, 0);
	file_compare(w, f);
	/* Nobody is told of what failed. */
	struct fs_errseq none = {0};
	check_ok(fs_fsync(w->fs, f->ino, false, &none));
	file_synced(f);
	world_remount(w);
	file_compare(w, f);
	free(f);
}

static void test_failures(void **state)
{
	for_seeds (seed, 20)
		world_test(seed, &eager, 0, failures);
}

/* The volume stops while blocks are being moved. */
static void stops(struct world *w)
{
	struct file *f = file_new(w, "f");
	make_holes(w, f);
	check_ok(file_write(w, f, 0, 1));
	check_ok(fs_sync(w->fs));
	file_synced(f);
	for (uint64_t n = rnd(w, 40); n; n--)
		co_yield ();
	fake_raid_set_error(w->raid, -EIO);
	co_sleep_ns(NS_PER_S);
	world_crash(w);
	file_crashed(w, f);
	file_compare(w, f);
	free(f);
}

static void test_stops(void **state)
{
	for_seeds (seed, 40)
		world_test(seed, &eager, 0, stops);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_cleans),   cmocka_unit_test(test_rests),
	    cmocka_unit_test(test_races),    cmocka_unit_test(test_in_place),
	    cmocka_unit_test(test_failures), cmocka_unit_test(test_stops),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
