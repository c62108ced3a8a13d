/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The simulated world judged by itself: what is durable when, what a crash may leave, that each
 * fault does what it says, and that one seed gives one run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "raid/buf.h"
#include "raid/co.h"
#include "sim/simdev.h"
#include "sim/world.h"

#include <stdlib.h>

#define DEV_BYTES  (4u << 20)
#define BLOCKS_MAX 16

static struct world *world;
static struct loop *loop;
static struct simdev *member;

struct ask {
	enum io_op op;
	uint64_t block;
	unsigned count;
	uint8_t fill;
	int result;
	uint8_t *data;
	struct dev *dev;
};

static int ask_co(void *arg)
{
	struct ask *a = arg;
	size_t len = (size_t)a->count * BLOCK_BYTES;
	uint8_t *p;

	if (a->op == IO_FLUSH)
		return io_flush_sync(a->dev);
	p = buf_get_wait(len);
	if (a->op == IO_WRITE)
		memset(p, a->fill, len);
	a->result = a->op == IO_WRITE ? io_write_sync(a->dev, a->block * BLOCK_BYTES, p, len)
				      : io_read_sync(a->dev, a->block * BLOCK_BYTES, p, len);
	if (a->op == IO_READ && !a->result && a->data)
		memcpy(a->data, p, len);
	buf_put(p);
	return a->result;
}

static int do_write(struct dev *dev, uint64_t block, unsigned count, uint8_t fill)
{
	struct ask a = {.op = IO_WRITE, .block = block, .count = count, .fill = fill, .dev = dev};

	return loop_run_co(loop, ask_co, &a);
}

static int do_read(struct dev *dev, uint64_t block, unsigned count, uint8_t *data)
{
	struct ask a = {.op = IO_READ, .block = block, .count = count, .data = data, .dev = dev};

	return loop_run_co(loop, ask_co, &a);
}

static int do_flush(struct dev *dev)
{
	struct ask a = {.op = IO_FLUSH, .dev = dev};

	return loop_run_co(loop, ask_co, &a);
}

static uint8_t peek_byte(uint64_t off_bytes)
{
	uint8_t b;

	simdev_peek(member, off_bytes, &b, 1);
	return b;
}

static void begin(uint64_t seed, const struct simdev_params *params)
{
	struct simdev_params p = {
	    .size_bytes = DEV_BYTES, .sector_bytes = 512, .volatile_cache = true, .crash_keep = 50};

	world = world_new(seed);
	loop = loop_new(&world_backend, world);
	member = simdev_new(world, "m0", params ? params : &p);
}

static void end(void)
{
	assert_int_equal(loop_co_count(loop), 0);
	simdev_free(member);
	loop_free(loop);
	world_free(world);
	assert_int_equal(buf_pool_used_bytes(), 0);
}

static int setup(void **state)
{
	return buf_pool_init(16u << 20);
}

static int teardown(void **state)
{
	buf_pool_exit();
	return 0;
}

static void test_rng(void **state)
{
	struct rng a, b;
	uint64_t hist[7] = {0};

	rng_seed(&a, 1);
	rng_seed(&b, 1);
	for (unsigned i = 0; i < 7000; i++) {
		uint64_t x = rng_below(&a, 7);

		assert_true(x < 7);
		assert_int_equal(x, rng_below(&b, 7));
		hist[x]++;
	}
	for (unsigned i = 0; i < 7; i++)
		assert_in_range(hist[i], 800, 1200);
	rng_fork(&a, "one", 5);
	rng_fork(&b, "two", 5);
	assert_int_not_equal(rng_next(&a), rng_next(&b));
}

static void test_read_back(void **state)
{
	uint8_t data[2 * BLOCK_BYTES];
	struct dev *dev;

	begin(1, NULL);
	dev = simdev_open(member);
	assert_int_equal(do_read(dev, 3, 1, data), 0);
	assert_int_equal(data[0], 0);
	assert_int_equal(do_write(dev, 3, 2, 0x5a), 0);
	assert_int_equal(do_read(dev, 3, 2, data), 0);
	assert_int_equal(data[0], 0x5a);
	assert_int_equal(data[2 * BLOCK_BYTES - 1], 0x5a);
	assert_int_equal(simdev_pending_blocks(member), 2);
	assert_int_equal(do_flush(dev), 0);
	assert_int_equal(simdev_pending_blocks(member), 0);
	assert_true(world_now_ns(world) > NS_PER_S);
	dev_close(dev);
	end();
}

/* What a flush covered survives every crash. */
static void test_flushed_survives(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct dev *dev;

		begin(seed, NULL);
		dev = simdev_open(member);
		assert_int_equal(do_write(dev, 0, 4, 1), 0);
		assert_int_equal(do_flush(dev), 0);
		world_crash(world);
		assert_int_equal(do_write(dev, 0, 1, 9), -ENODEV);
		dev_close(dev);
		world_restart(world);
		for (unsigned at = 0; at < 4 * BLOCK_BYTES; at += 512)
			assert_int_equal(peek_byte(at), 1);
		end();
	}
}

/* What none covered: any version of each sector, by itself; all of them occur, and nothing else. */
static void test_pending_lottery(void **state)
{
	bool seen[4] = {0}, mixed = false;

	for (uint64_t seed = 1; seed <= 40; seed++) {
		uint8_t first = 0;
		struct dev *dev;

		begin(seed, NULL);
		dev = simdev_open(member);
		assert_int_equal(do_write(dev, 0, 1, 1), 0);
		assert_int_equal(do_flush(dev), 0);
		assert_int_equal(do_write(dev, 0, 1, 2), 0);
		assert_int_equal(do_write(dev, 0, 1, 3), 0);
		assert_int_equal(peek_byte(0), 3);
		world_crash(world);
		dev_close(dev);
		world_restart(world);
		for (unsigned at = 0; at < BLOCK_BYTES; at += 512) {
			uint8_t b = peek_byte(at);

			assert_in_range(b, 1, 3);
			for (unsigned i = 0; i < 512; i++)
				assert_int_equal(peek_byte(at + i), b);
			seen[b] = true;
			if (at && b != first)
				mixed = true;
			first = b;
		}
		end();
	}
	assert_true(seen[1] && seen[2] && seen[3] && mixed);
}

/* A sector is the unit: with 4096-byte sectors no block is mixed. */
static void test_sector_size(void **state)
{
	struct simdev_params p = {.size_bytes = DEV_BYTES,
				  .sector_bytes = 4096,
				  .volatile_cache = true,
				  .crash_keep = 50};

	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct dev *dev;

		begin(seed, &p);
		dev = simdev_open(member);
		assert_int_equal(do_write(dev, 0, 8, 2), 0);
		world_crash(world);
		dev_close(dev);
		world_restart(world);
		for (unsigned block = 0; block < 8; block++) {
			uint8_t b = peek_byte(block * BLOCK_BYTES);

			for (unsigned at = 0; at < BLOCK_BYTES; at += 512)
				assert_int_equal(peek_byte(block * BLOCK_BYTES + at), b);
		}
		end();
	}
}

static void test_garbled(void **state)
{
	struct simdev_params p = {.size_bytes = DEV_BYTES,
				  .sector_bytes = 512,
				  .volatile_cache = true,
				  .crash_keep = 50,
				  .crash_garble = 50};
	unsigned garbage = 0;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct dev *dev;

		begin(seed, &p);
		dev = simdev_open(member);
		assert_int_equal(do_write(dev, 1, 1, 2), 0);
		world_crash(world);
		dev_close(dev);
		world_restart(world);
		for (unsigned at = 0; at < BLOCK_BYTES; at++) {
			uint8_t b = peek_byte(BLOCK_BYTES + at);

			garbage += b != 0 && b != 2;
			assert_int_equal(peek_byte(at), 0); /* neighbours are untouched */
			assert_int_equal(peek_byte(2 * BLOCK_BYTES + at), 0);
		}
		end();
	}
	assert_true(garbage > 1000);
}

static void test_write_through(void **state)
{
	struct simdev_params p = {.size_bytes = DEV_BYTES, .sector_bytes = 512, .crash_garble = 50};
	struct dev *dev;

	begin(3, &p);
	dev = simdev_open(member);
	assert_false(dev->volatile_cache);
	assert_int_equal(do_write(dev, 0, 4, 7), 0);
	assert_int_equal(simdev_pending_blocks(member), 0);
	world_crash(world);
	dev_close(dev);
	world_restart(world);
	for (unsigned at = 0; at < 4 * BLOCK_BYTES; at += 512)
		assert_int_equal(peek_byte(at), 7);
	end();
}

/* A flush covers what had completed when it was submitted, and not what completed while it ran. */
struct race {
	struct dev *dev;
	struct world_event unused;
};

static int flush_race_co(void *arg)
{
	struct race *race = arg;
	struct io_batch flush, write;
	struct io f, w;
	uint8_t *p = buf_get_wait(BLOCK_BYTES);

	memset(p, 5, BLOCK_BYTES);
	io_batch_init(&flush, co_loop());
	io_batch_init(&write, co_loop());
	io_flush(&flush, &f, race->dev);
	io_write(&write, &w, race->dev, 0, p, BLOCK_BYTES);
	assert_int_equal(io_batch_wait(&write), 0);
	assert_int_equal(io_batch_wait(&flush), 0);
	assert_int_equal(simdev_pending_blocks(member), 1);
	buf_put(p);
	return 0;
}

static void test_flush_is_not_for_later_writes(void **state)
{
	struct race race;

	begin(4, NULL);
	race.dev = simdev_open(member);
	assert_int_equal(loop_run_co(loop, flush_race_co, &race), 0);
	dev_close(race.dev);
	end();
}

/* In flight at the crash: any subset of sectors, submitter told -ENODEV. */
static int crash_in_flight_co(void *arg)
{
	struct dev *dev = arg;
	uint8_t *p = buf_get_wait(BLOCK_BYTES);
	int err;

	memset(p, 6, BLOCK_BYTES);
	world_crash_at(world, POINT_SUBMIT_WRITE, 1);
	err = io_write_sync(dev, 0, p, BLOCK_BYTES);
	memset(p, 0xee, BLOCK_BYTES); /* ours again: the member must have looked before */
	buf_put(p);
	return err;
}

static void test_crash_in_flight(void **state)
{
	unsigned old = 0, new = 0;

	for (uint64_t seed = 1; seed <= 30; seed++) {
		struct dev *dev;

		begin(seed, NULL);
		dev = simdev_open(member);
		assert_int_equal(loop_run_co(loop, crash_in_flight_co, dev), -ENODEV);
		assert_true(world_crashed(world));
		dev_close(dev);
		world_restart(world);
		assert_false(world_crashed(world));
		for (unsigned at = 0; at < BLOCK_BYTES; at += 512) {
			uint8_t b = peek_byte(at);

			assert_true(b == 0 || b == 6);
			old += b == 0;
			new += b == 6;
		}
		dev = simdev_open(member);
		assert_int_equal(do_write(dev, 0, 1, 8), 0);
		assert_int_equal(peek_byte(0), 8);
		dev_close(dev);
		end();
	}
	assert_true(old > 30 && new > 20);
}

static void test_crash_points(void **state)
{
	struct dev *dev;

	begin(5, NULL);
	dev = simdev_open(member);
	world_crash_at(world, POINT_DONE_FLUSH, 2);
	assert_int_equal(do_write(dev, 0, 1, 1), 0);
	assert_int_equal(do_flush(dev), 0);
	assert_int_equal(do_write(dev, 0, 1, 2), 0);
	assert_int_equal(do_flush(dev), -ENODEV); /* carried out, never acknowledged */
	assert_true(world_crashed(world));
	assert_int_equal(world_points(world, POINT_DONE_FLUSH), 2);
	dev_close(dev);
	world_restart(world);
	assert_int_equal(peek_byte(0), 2);
	end();
}

static void test_deadline(void **state)
{
	struct simfault hang = {.kind = SIMFAULT_HANG, .count = 1, .on = SIMFAULT_ON_WRITE};
	uint64_t before_ns;
	struct dev *dev;

	begin(6, NULL);
	dev = simdev_open(member);
	assert_int_equal(simdev_fault(member, &hang), 0);
	before_ns = world_now_ns(world);
	assert_int_equal(do_write(dev, 0, 1, 1), -ETIMEDOUT);
	assert_true(world_now_ns(world) - before_ns >= dev->deadline_ns);
	assert_int_equal(buf_pool_used_bytes(), BLOCK_BYTES); /* put, but pinned */
	assert_int_equal(do_write(dev, 1, 1, 2), 0);
	simdev_unhang(member);
	assert_int_equal(do_write(dev, 2, 1, 3), 0);
	assert_int_equal(buf_pool_used_bytes(), 0);
	assert_int_equal(peek_byte(0), 1);
	/* One that never comes back does not outlive the crash. */
	hang.on = SIMFAULT_ON_READ;
	assert_int_equal(simdev_fault(member, &hang), 0);
	assert_int_equal(do_read(dev, 0, 1, NULL), -ETIMEDOUT);
	dev_close(dev);
	world_crash(world);
	world_restart(world);
	end();
}

static void test_faults(void **state)
{
	uint8_t data[BLOCK_BYTES], other[BLOCK_BYTES];
	struct dev *dev;
	unsigned differ = 0;

	begin(7, NULL);
	dev = simdev_open(member);
	assert_int_equal(do_write(dev, 0, 8, 1), 0);

	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_EIO_READ,
						.off_bytes = BLOCK_BYTES,
						.len_bytes = BLOCK_BYTES,
						.count = 1});
	assert_int_equal(do_read(dev, 0, 1, data), 0);
	assert_int_equal(do_read(dev, 0, 2, NULL), -EIO);
	assert_int_equal(do_read(dev, 1, 1, data), 0);

	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_LOST, .skip = 1, .count = 1});
	assert_int_equal(do_write(dev, 0, 1, 2), 0);
	assert_int_equal(do_write(dev, 0, 1, 3), 0);
	assert_int_equal(peek_byte(0), 2);

	simdev_fault(
	    member,
	    &(struct simfault){.kind = SIMFAULT_MISDIRECTED, .count = 1, .param = 5 * BLOCK_BYTES});
	assert_int_equal(do_write(dev, 1, 1, 4), 0);
	assert_int_equal(peek_byte(1 * BLOCK_BYTES), 1);
	assert_int_equal(peek_byte(6 * BLOCK_BYTES), 4);

	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_TORN, .count = 1});
	assert_int_equal(do_write(dev, 2, 1, 5), 0);
	for (unsigned at = 0; at < BLOCK_BYTES; at += 512)
		differ += peek_byte(2 * BLOCK_BYTES + at) != 5;
	assert_in_range(differ, 1, 7);

	assert_int_equal(do_flush(dev), 0);
	assert_int_equal(do_write(dev, 3, 1, 6), 0);
	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_LYING_FLUSH, .count = 1});
	assert_int_equal(do_flush(dev), 0);
	assert_int_equal(simdev_pending_blocks(member), 1);

	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_ROT_READ, .count = 1});
	assert_int_equal(do_read(dev, 7, 1, other), 0);
	assert_int_equal(do_read(dev, 7, 1, data), 0);
	assert_memory_not_equal(data, other, BLOCK_BYTES);

	simdev_rot(member, 7 * BLOCK_BYTES, BLOCK_BYTES, 1);
	assert_int_equal(do_read(dev, 7, 1, other), 0);
	assert_memory_not_equal(data, other, BLOCK_BYTES);
	assert_int_equal(simdev_faults_hit(member), 6);

	simdev_set_read_only(member, true);
	assert_int_equal(do_write(dev, 0, 1, 9), -EIO);
	simdev_set_read_only(member, false);
	assert_int_equal(do_write(dev, 0, 1, 9), 0);

	simdev_vanish(member, false);
	assert_int_equal(do_read(dev, 0, 1, NULL), -ENODEV);
	simdev_return(member);
	assert_int_equal(do_read(dev, 0, 1, NULL), -ENODEV); /* the old handle stays dead */
	dev_close(dev);
	dev = simdev_open(member);
	assert_int_equal(do_read(dev, 0, 1, data), 0);
	assert_int_equal(data[0], 9);
	dev_close(dev);
	end();
}

static unsigned sectors_with(uint8_t fill, unsigned block, unsigned blocks)
{
	unsigned n = 0;

	for (unsigned at = 0; at < blocks * BLOCK_BYTES; at += 512)
		n += peek_byte(block * BLOCK_BYTES + at) == fill;
	return n;
}

/* Short I/O comes whole in the end, in two pieces that a crash can fall between; or it makes no progress. */
static void test_short(void **state)
{
	uint8_t data[4 * BLOCK_BYTES];
	unsigned between = 0;
	struct dev *dev;

	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct simdev_params p = {.size_bytes = DEV_BYTES, .sector_bytes = 512, .crash_keep = 50};
		unsigned n;

		begin(seed, &p);
		dev = simdev_open(member);
		assert_int_equal(do_write(dev, 0, 4, 1), 0);
		simdev_fault(member, &(struct simfault){.kind = SIMFAULT_SHORT, .count = 2});
		assert_int_equal(do_write(dev, 0, 4, 2), 0);
		assert_int_equal(sectors_with(2, 0, 4), 32);
		assert_int_equal(do_read(dev, 0, 4, data), 0);
		for (unsigned i = 0; i < sizeof(data); i++)
			assert_int_equal(data[i], 2);
		assert_int_equal(simdev_faults_hit(member), 2);

		simdev_fault(member,
			     &(struct simfault){.kind = SIMFAULT_SHORT, .count = IO_WRITE_TRIES, .param = 1});
		assert_int_equal(do_write(dev, 0, 4, 3), -EIO);
		n = sectors_with(3, 0, 4);
		assert_in_range(n, 1, 31);
		assert_int_equal(peek_byte(n * 512 - 1), 3); /* from the front */
		between += n % 8 != 0;
		dev_close(dev);
		end();
	}
	assert_in_range(between, 20, 40);
}

/* A drive that forgets its cache and says nothing. */
static void test_reset(void **state)
{
	unsigned kept = 0;

	for (uint64_t seed = 1; seed <= 30; seed++) {
		struct dev *dev;

		begin(seed, NULL);
		dev = simdev_open(member);
		assert_int_equal(do_write(dev, 0, 1, 1), 0);
		assert_int_equal(do_flush(dev), 0);
		assert_int_equal(do_write(dev, 0, 1, 2), 0);
		simdev_fault(member, &(struct simfault){.kind = SIMFAULT_RESET, .count = 1});
		assert_int_equal(do_write(dev, 1, 1, 7), 0);
		assert_int_equal(simdev_pending_blocks(member), 1);
		assert_int_equal(do_flush(dev), 0);
		assert_int_equal(sectors_with(1, 0, 1) + sectors_with(2, 0, 1), 8);
		assert_int_equal(sectors_with(7, 1, 1), 8);
		kept += sectors_with(2, 0, 1);
		dev_close(dev);
		end();
	}
	assert_in_range(kept, 1, 30 * 8 - 1);
}

static uint8_t hits[8];

static void count_hit(void *arg, struct simdev *d, uint8_t tag)
{
	assert_ptr_equal(arg, hits);
	assert_ptr_equal(d, member);
	hits[tag]++;
}

/* What happens to the member with the n-th I/O, and who is told. */
static void test_member_faults(void **state)
{
	struct dev *dev;

	memset(hits, 0, sizeof(hits));
	begin(11, NULL);
	simdev_on_hit(member, count_hit, hits);
	dev = simdev_open(member);
	assert_int_equal(do_write(dev, 0, 8, 1), 0);

	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_READ_ONLY, .skip = 1, .count = 1, .tag = 1});
	assert_int_equal(do_write(dev, 0, 1, 2), 0);
	assert_int_equal(do_write(dev, 0, 1, 3), -EIO);
	assert_int_equal(do_write(dev, 0, 1, 4), -EIO);
	assert_int_equal(do_read(dev, 0, 1, NULL), 0);
	assert_int_equal(peek_byte(0), 2);
	simdev_set_read_only(member, false);

	simdev_mark(member, 3 * BLOCK_BYTES, 2);
	assert_int_equal(do_read(dev, 2, 2, NULL), 0);
	assert_int_equal(do_write(dev, 3, 1, 5), 0);
	assert_int_equal(do_read(dev, 2, 2, NULL), 0);
	assert_int_equal(hits[2], 1);

	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_SHRINK,
						.count = 1,
						.param = 6 * BLOCK_BYTES,
						.tag = 3});
	assert_int_equal(do_read(dev, 4, 4, NULL), -ENODEV);
	assert_int_equal(do_read(dev, 4, 2, NULL), 0);
	assert_int_equal(do_write(dev, 5, 2, 9), -ENODEV);
	assert_int_equal(do_write(dev, 5, 1, 9), 0);
	dev_close(dev);
	dev = simdev_open(member);
	assert_int_equal(dev->size_bytes, 6 * BLOCK_BYTES);

	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_VANISH, .count = 1, .param = 1, .tag = 4});
	assert_int_equal(do_read(dev, 0, 1, NULL), -ENODEV);
	assert_true(simdev_is_gone(member));
	assert_int_equal(simdev_pending_blocks(member), 0);
	simdev_return(member);
	dev_close(dev);
	for (unsigned tag = 1; tag <= 4; tag++)
		assert_int_equal(hits[tag], 1);
	end();
}

/* A hang that ends by itself, after the deadline: the write arrives long after its submitter was told. */
static void test_hang_lets_go(void **state)
{
	struct dev *dev;

	begin(12, NULL);
	dev = simdev_open(member);
	assert_int_equal(do_write(dev, 0, 1, 1), 0);
	simdev_fault(member, &(struct simfault){.kind = SIMFAULT_HANG,
						.count = 1,
						.param = IO_DEADLINE_NS_DEFAULT + NS_PER_S});
	assert_int_equal(do_write(dev, 0, 1, 2), -ETIMEDOUT);
	assert_int_equal(peek_byte(0), 1);
	assert_int_not_equal(buf_pool_used_bytes(), 0); /* the device holds on to it */
	for (unsigned i = 0; i < 100000 && peek_byte(0) == 1; i++)
		assert_int_equal(do_read(dev, 1, 1, NULL), 0);
	assert_int_equal(peek_byte(0), 2);
	dev_close(dev);
	end();
}

static void test_clone(void **state)
{
	struct simdev *copy;
	struct dev *dev;

	begin(8, NULL);
	dev = simdev_open(member);
	assert_int_equal(do_write(dev, 0, 2, 1), 0);
	copy = simdev_clone(member, "copy");
	assert_int_equal(do_write(dev, 0, 1, 2), 0);
	assert_int_equal(do_flush(dev), 0);
	dev_close(dev);
	dev = simdev_open(copy);
	assert_int_equal(do_write(dev, 1, 1, 3), 0);
	dev_close(dev);
	assert_int_equal(peek_byte(0), 2);
	assert_int_equal(peek_byte(BLOCK_BYTES), 1);
	simdev_revert(member, copy);
	assert_int_equal(peek_byte(0), 1);
	assert_int_equal(peek_byte(BLOCK_BYTES), 3);
	simdev_free(copy);
	end();
}

/* Poking is durable whatever is pending. */
static void test_poke(void **state)
{
	struct dev *dev;

	begin(9, NULL);
	dev = simdev_open(member);
	assert_int_equal(do_write(dev, 0, 1, 1), 0);
	assert_int_equal(do_write(dev, 0, 1, 2), 0);
	simdev_poke(member, 10, "x", 1);
	assert_int_equal(peek_byte(10), 'x');
	assert_int_equal(peek_byte(11), 2);
	dev_close(dev);
	world_crash(world);
	world_restart(world);
	assert_int_equal(peek_byte(10), 'x');
	end();
}

/* Several coroutines, random work, a crash: the trace is a function of the seed. */
struct worker {
	struct dev *dev;
	struct rng rng;
};

static void worker_co(void *arg)
{
	struct worker *wk = arg;
	uint8_t *p = buf_get_wait(8 * BLOCK_BYTES);

	for (unsigned i = 0; i < 50 && !world_crashed(world); i++) {
		unsigned count = (unsigned)rng_range(&wk->rng, 1, 8);
		uint64_t block = rng_below(&wk->rng, 100);

		rng_fill(&wk->rng, p, (size_t)count * BLOCK_BYTES);
		switch (rng_below(&wk->rng, 4)) {
		case 0:
			(void)io_flush_sync(wk->dev);
			break;
		case 1:
			(void)io_read_sync(wk->dev, block * BLOCK_BYTES, p,
					   (size_t)count * BLOCK_BYTES);
			break;
		default:
			(void)io_write_sync(wk->dev, block * BLOCK_BYTES, p,
					    (size_t)count * BLOCK_BYTES);
		}
	}
	buf_put(p);
}

static int wait_all_co(void *arg)
{
	while (loop_co_count(loop) > 1)
		co_sleep_ns(NS_PER_MS);
	return 0;
}

static uint64_t one_run(uint64_t seed, uint64_t *ret_store)
{
	struct simdev_params params;
	struct worker workers[4];
	uint64_t sum = 0, hash;
	struct rng rng;

	rng_fork(&rng, "test", seed);
	simdev_params_random(&params, &rng, DEV_BYTES);
	begin(seed, &params);
	world_crash_at(world, POINT_CHANGES, rng_range(&rng, 1, 200));
	for (unsigned i = 0; i < 4; i++) {
		rng_fork(&workers[i].rng, "worker", seed * 4 + i);
		workers[i].dev = simdev_open(member);
		assert_int_equal(co_spawn(loop, worker_co, &workers[i]), 0);
	}
	assert_int_equal(loop_run_co(loop, wait_all_co, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		dev_close(workers[i].dev);
	world_restart(world);
	for (uint64_t at = 0; at < 108 * BLOCK_BYTES; at++)
		sum = sum * 31 + peek_byte(at);
	hash = world_trace_hash(world);
	end();
	*ret_store = sum;
	return hash;
}

static void test_determinism(void **state)
{
	uint64_t last = 0;

	for (uint64_t seed = 1; seed <= 10; seed++) {
		uint64_t store_a, store_b;
		uint64_t a = one_run(seed, &store_a), b = one_run(seed, &store_b);

		assert_int_equal(a, b);
		assert_int_equal(store_a, store_b);
		assert_int_not_equal(a, last);
		last = a;
	}
}

static jmp_buf stuck_env;

static void stuck(void *arg, const char *why)
{
	*(const char **)arg = why;
	longjmp(stuck_env, 1);
}

static void test_watch(void **state)
{
	const char *volatile why = NULL;

	world = world_new(1);
	world_watch(world, LOOP_NEVER, stuck, (void *)&why);
	if (!setjmp(stuck_env))
		world_backend.poll(world, LOOP_NEVER);
	assert_non_null(why);
	why = NULL;
	world_watch(world, 10 * NS_PER_S, stuck, (void *)&why);
	if (!setjmp(stuck_env)) {
		for (unsigned i = 0; i < 100; i++)
			world_backend.poll(world, world_now_ns(world) + NS_PER_S);
	}
	assert_non_null(why);
	assert_in_range(world_now_ns(world), 10 * NS_PER_S, 12 * NS_PER_S);
	world_free(world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_rng),
	    cmocka_unit_test(test_read_back),
	    cmocka_unit_test(test_flushed_survives),
	    cmocka_unit_test(test_pending_lottery),
	    cmocka_unit_test(test_sector_size),
	    cmocka_unit_test(test_garbled),
	    cmocka_unit_test(test_write_through),
	    cmocka_unit_test(test_flush_is_not_for_later_writes),
	    cmocka_unit_test(test_crash_in_flight),
	    cmocka_unit_test(test_crash_points),
	    cmocka_unit_test(test_deadline),
	    cmocka_unit_test(test_faults),
	    cmocka_unit_test(test_short),
	    cmocka_unit_test(test_reset),
	    cmocka_unit_test(test_member_faults),
	    cmocka_unit_test(test_hang_lets_go),
	    cmocka_unit_test(test_clone),
	    cmocka_unit_test(test_poke),
	    cmocka_unit_test(test_determinism),
	    cmocka_unit_test(test_watch),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
