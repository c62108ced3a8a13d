/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Labels on devices of memory with a volatile cache: what is written is there, whatever may happen
 * while it is written; who may be believed is believed, and nobody else. And the making of a
 * volume.
 */
#include "raid/label.h"
#include "raid/buf.h"
#include "raid/co.h"
#include "raid/io.h"
#include "raid/loop.h"
#include "raid/page.h"
#include "raid/raid.h"
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include <cmocka.h>

/* ---- a small world ---- */

#define DEVICES	     8
#define DEVICE_BYTES (48ull << 20)
#define ROOM_BYTES   (64ull << 20) /* a device may grow */
#define PENDING_MAX  4096u
#define QUEUE_MAX    512u

struct fake {
	struct dev dev;
	uint8_t *now, *durable;
	uint64_t pending[PENDING_MAX]; /* blocks written since the last flush */
	unsigned pending_count;
	int fail_after; /* I/Os; -1: never */
	int fail_with;
};

static struct fake fakes[DEVICES];
static struct io *queue[QUEUE_MAX];
static unsigned queue_count;
static int power_left; /* I/Os until the power goes; -1: it stays */
static bool power_is_off;
static uint64_t clock_ns, seed = 88172645463325252ull;
static struct loop *loop;
static unsigned errors_logged, warnings_logged;
static char log_text[65536];

static uint64_t random64(void *ctx)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static unsigned pick(unsigned n)
{
	return (unsigned)(random64(NULL) % n);
}

static uint64_t now_ns(void *ctx)
{
	return clock_ns;
}

static void submit(struct dev *dev, struct io *io)
{
	assert(queue_count < QUEUE_MAX);
	queue[queue_count++] = io;
}

static void write_block(struct fake *f, uint64_t block, const uint8_t *data)
{
	memcpy(f->now + block * BLOCK_BYTES, data, BLOCK_BYTES);
	assert(f->pending_count < PENDING_MAX);
	f->pending[f->pending_count++] = block;
}

static void transfer(struct fake *f, struct io *io)
{
	struct iovec one = {io->data, io->len_bytes};
	const struct iovec *iov = io->iov ? io->iov : &one;
	unsigned iov_count = io->iov ? io->iov_count : 1;
	uint64_t off = io->off_bytes;

	for (unsigned i = 0; i < iov_count; i++) {
		for (size_t at = 0; at < iov[i].iov_len; at += BLOCK_BYTES, off += BLOCK_BYTES) {
			uint8_t *data = (uint8_t *)iov[i].iov_base + at;

			if (io->op == IO_READ)
				memcpy(data, f->now + off, BLOCK_BYTES);
			else
				write_block(f, off / BLOCK_BYTES, data);
		}
	}
}

static void flush_now(struct fake *f)
{
	for (unsigned i = 0; i < f->pending_count; i++)
		memcpy(f->durable + f->pending[i] * BLOCK_BYTES,
		       f->now + f->pending[i] * BLOCK_BYTES, BLOCK_BYTES);
	f->pending_count = 0;
}

static int carry_out(struct io *io)
{
	struct fake *f = container_of(io->dev, struct fake, dev);

	if (power_left == 0) {
		/* In flight when the power went: may have reached the cache. */
		if (!power_is_off && io->op == IO_WRITE && pick(2))
			transfer(f, io);
		return -EIO;
	}
	if (power_left > 0)
		power_left--;
	if (f->fail_after == 0) {
		if (io->op == IO_WRITE && pick(2))
			transfer(f, io);
		return f->fail_with;
	}
	if (f->fail_after > 0)
		f->fail_after--;
	if (io->op == IO_FLUSH)
		flush_now(f);
	else
		transfer(f, io);
	return 0;
}

static void poll_world(void *ctx, uint64_t until_ns)
{
	unsigned round = queue_count;

	if (queue_count == 0) {
		assert(until_ns != LOOP_NEVER); /* everybody waits for nothing */
		clock_ns = MAX(clock_ns, until_ns);
		return;
	}
	while (round--) {
		unsigned i = pick(queue_count);
		struct io *io = queue[i];

		clock_ns += 1000;
		queue[i] = queue[--queue_count];
		io_done(io, carry_out(io));
	}
	if (power_left == 0)
		power_is_off = true;
}

static const struct loop_backend backend = {now_ns, poll_world, random64};
static const struct dev_ops ops = {.submit = submit};

/* What was not flushed is kept, dropped or garbled, block by block. */
static void power_returns(void)
{
	for (unsigned i = 0; i < DEVICES; i++) {
		struct fake *f = &fakes[i];

		for (unsigned k = 0; k < f->pending_count; k++) {
			uint8_t *to = f->durable + f->pending[k] * BLOCK_BYTES;

			switch (pick(4)) {
			case 0:
				for (unsigned b = 0; b < BLOCK_BYTES; b += 8)
					*(uint64_t *)(void *)(to + b) = random64(NULL);
				break;
			case 1:
				break;
			default:
				memcpy(to, f->now + f->pending[k] * BLOCK_BYTES, BLOCK_BYTES);
			}
		}
		for (unsigned k = 0; k < f->pending_count; k++)
			memcpy(f->now + f->pending[k] * BLOCK_BYTES,
			       f->durable + f->pending[k] * BLOCK_BYTES, BLOCK_BYTES);
		f->pending_count = 0;
		f->fail_after = -1;
	}
	power_left = -1;
	power_is_off = false;
}

static void count_log(enum log_level level, const char *text, void *arg)
{
	size_t len = strlen(log_text);

	errors_logged += level == LOG_LEVEL_ERROR;
	warnings_logged += level == LOG_LEVEL_WARNING;
	if (len + strlen(text) + 2 < sizeof(log_text))
		(void)sprintf(log_text + len, "%s\n", text);
}

static int reset_world(void **state)
{
	for (unsigned i = 0; i < DEVICES; i++) {
		struct fake *f = &fakes[i];

		if (!f->now) {
			f->now = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			f->durable = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			assert_true(f->now != MAP_FAILED && f->durable != MAP_FAILED);
		}
		assert_int_equal(madvise(f->now, ROOM_BYTES, MADV_DONTNEED), 0);
		assert_int_equal(madvise(f->durable, ROOM_BYTES, MADV_DONTNEED), 0);
		f->pending_count = 0;
		f->fail_after = -1;
		f->dev = (struct dev){.ops = &ops,
				      .size_bytes = DEVICE_BYTES,
				      .sector_bytes = 512,
				      .volatile_cache = true};
		(void)sprintf(f->dev.name, "/dev/fake%u", i);
	}
	power_left = -1;
	power_is_off = false;
	errors_logged = warnings_logged = 0;
	log_text[0] = 0;
	return 0;
}

static int check_left(void **state)
{
	assert_int_equal(buf_pool_used_bytes(), 0);
	assert_int_equal(queue_count, 0);
	assert_int_equal(loop_co_count(loop), 0);
	return 0;
}

/* ---- calls from outside a coroutine ---- */

static int co_write(void *arg)
{
	return label_write_table(arg, loop, NULL);
}

static int write_table(struct table *t)
{
	return loop_run_co(loop, co_write, t);
}

static struct label_vote vote;
static const struct uuid *wanted;
static struct dev *given[DEVICES];
static unsigned given_count;

static int co_vote(void *arg)
{
	return label_vote(loop, given, given_count, wanted, &vote);
}

/* The devices in the mask, in order. */
static int vote_of(unsigned mask)
{
	given_count = 0;
	for (unsigned i = 0; i < DEVICES; i++) {
		if (mask >> i & 1)
			given[given_count++] = &fakes[i].dev;
	}
	return loop_run_co(loop, co_vote, NULL);
}

static int verdict_of(unsigned device)
{
	for (unsigned i = 0; i < given_count; i++) {
		if (given[i] == &fakes[device].dev)
			return (int)vote.verdicts[i].what;
	}
	return -1;
}

struct read_args {
	struct dev *dev;
	struct label *label;
};

static int co_read(void *arg)
{
	struct read_args *a = arg;

	return label_read(a->dev, a->label);
}

static int read_label(unsigned device, struct label *label)
{
	struct read_args a = {&fakes[device].dev, label};

	return loop_run_co(loop, co_read, &a);
}

static int co_wipe(void *arg)
{
	return label_wipe(arg);
}

static struct table *make_table(unsigned count, uint8_t fs)
{
	struct table *t = table_new();

	t->fs = (struct uuid){{fs}};
	(void)strcpy(t->name, "scratch");
	t->epoch = 1;
	t->level = count == 1 ? 0 : 1;
	t->groups = 1;
	t->tolerance = count - 1;
	t->strip_blocks = 16;
	t->slice_bytes = SLICE_BYTES_MIN;
	t->journal_off_bytes = LABEL_AREA_BYTES;
	t->journal_bytes = JOURNAL_BYTES_MIN;
	t->slices_off_bytes = LABEL_AREA_BYTES + JOURNAL_BYTES_MIN;
	for (unsigned i = 0; i < count; i++) {
		struct uuid uuid = {{(uint8_t)(i + 1), fs}};
		unsigned index;

		assert_int_equal(table_member_add(t, &uuid, DEVICE_BYTES, 0, &index), 0);
		label_member_here(&t->members[index], &fakes[i].dev);
	}
	return t;
}

/* A volume on the first `count` devices, as mkfs leaves it. */
static void make_volume(unsigned count)
{
	struct table *t = make_table(count, 1);

	assert_int_equal(write_table(t), 0);
	assert_int_equal(write_table(t), 0);
	assert_int_equal(t->gen, 2);
	table_free(t);
}

/* As an open does it: who is stale comes back into service, who is absent is MISSING; then a new
 * generation. */
static struct table *open_volume(unsigned mask, uint64_t marker)
{
	struct table *t;

	assert_int_equal(vote_of(mask), 0);
	t = vote.table;
	for (unsigned i = 0; i < given_count; i++) {
		unsigned index = vote.verdicts[i].label.member_index;

		if (vote.verdicts[i].what == VERDICT_STALE) {
			t->members[index].state = MEMBER_ACTIVE;
			label_member_here(&t->members[index], given[i]);
		}
	}
	t->scrub_cursor = marker;
	assert_int_equal(write_table(t), 0);
	return t;
}

static void use_volume(unsigned mask, uint64_t marker)
{
	table_free(open_volume(mask, marker));
}

static void expect_vote(unsigned mask, uint64_t marker, unsigned used, unsigned stale)
{
	assert_int_equal(vote_of(mask), 0);
	assert_int_equal(vote.table->scrub_cursor, marker);
	for (unsigned i = 0; i < DEVICES; i++) {
		if (used >> i & 1)
			assert_int_equal(verdict_of(i), VERDICT_USED);
		if (stale >> i & 1)
			assert_int_equal(verdict_of(i), VERDICT_STALE);
	}
	table_free(vote.table);
}

static void garble(unsigned device, uint64_t off, size_t len)
{
	for (size_t i = 0; i < len; i++)
		fakes[device].now[off + i] = fakes[device].durable[off + i] =
		    (uint8_t)random64(NULL);
}

/* ---- tests ---- */

static void test_round_trip(void **state)
{
	struct table *t = make_table(3, 1);
	struct label label;
	struct chunk *c;

	assert_int_equal(table_chunk_add(t, CHUNK_META, &c), 0);
	c->columns[1].stale = true;
	for (uint64_t gen = 1; gen <= 5; gen++) {
		t->scrub_cursor = gen * 10;
		assert_int_equal(write_table(t), 0);
		assert_int_equal(t->gen, gen);
		for (unsigned i = 0; i < 3; i++) {
			assert_int_equal(t->members[i].last_gen, gen);
			assert_int_equal(fakes[i].pending_count, 0); /* durable */
			assert_int_equal(read_label(i, &label), 0);
			assert_int_equal(label.gen, gen);
			assert_int_equal(label.gen_seen, gen);
			assert_int_equal(label.member_index, i);
			assert_int_equal(label.places_valid, gen == 1 ? 2 : 4);
			assert_string_equal(label.name, "scratch");
			assert_int_equal(label.table->chunk_count, 1);
			assert_true(label.table->chunks[0]->columns[1].stale);
			assert_int_equal(label.table->scrub_cursor, gen * 10);
			assert_int_equal(label.table->members[2].last_gen, gen);
			assert_null(label.prepared);
			label_clear(&label);
		}
	}
	table_free(t);
	assert_int_equal(vote_of(7), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_ptr_equal(vote.table->members[i].dev, &fakes[i].dev);
		assert_string_equal(vote.table->members[i].hint, fakes[i].dev.name);
	}
	table_free(vote.table);
	assert_int_equal(errors_logged + warnings_logged, 0);
}

/* Whichever one place is left, it opens the member. */
static void test_one_place_is_enough(void **state)
{
	for (unsigned left = 0; left < 4; left++) {
		struct label label;

		(void)reset_world(state);
		make_volume(1);
		for (unsigned i = 0; i < 4; i++) {
			uint64_t off =
			    (i & 2 ? label_b_off(DEVICE_BYTES) : 0) + (i & 1) * LABEL_PLACE_BYTES;

			if (i != left)
				garble(0, off + (i % 3 == 0 ? BLOCK_BYTES : 0),
				       64); /* label or table */
		}
		assert_int_equal(read_label(0, &label), 0);
		assert_int_equal(label.places_valid, 1);
		assert_int_equal(label.gen, 2 - (left & 1));
		label_clear(&label);
		assert_int_equal(vote_of(1), 0);
		table_free(vote.table);
	}
	garble(0, 0, LABEL_AREA_BYTES);
	garble(0, label_b_off(DEVICE_BYTES), LABEL_AREA_BYTES);
	memcpy(fakes[0].now, "trrsbel1", 8);
	assert_int_equal(vote_of(1), -EBADMSG);
	memcpy(fakes[0].now, "nothing.", 8);
	assert_int_equal(vote_of(1), -ENODATA);
	assert_int_equal(verdict_of(0), VERDICT_NO_LABEL);
}

/* The newest copy is lost in labels B: its twin in labels A counts, alone and among others. */
static void test_damaged_newest(void **state)
{
	make_volume(2);
	use_volume(3, 42);
	/* Generation 3: mkfs wrote places 1 and 0. */
	garble(0, label_b_off(DEVICE_BYTES) + LABEL_PLACE_BYTES, BLOCK_BYTES);
	expect_vote(1, 42, 1, 0);
	expect_vote(3, 42, 3, 0);
	garble(1, label_b_off(DEVICE_BYTES) + LABEL_PLACE_BYTES, BLOCK_BYTES);
	expect_vote(3, 42, 3, 0);
	use_volume(3, 43);
	expect_vote(3, 43, 3, 0);
}

/* Random bytes over labels that are right again in their sums: refused or taken, never a crash. */
static void test_fuzz(void **state)
{
	for (unsigned round = 0; round < 3000; round++) {
		unsigned n = 1 + pick(3);
		struct label label;

		if (round % 100 == 0) {
			(void)reset_world(state);
			make_volume(2);
		}
		while (n--) {
			uint64_t off =
			    (pick(2) ? label_b_off(DEVICE_BYTES) : 0) + pick(2) * LABEL_PLACE_BYTES;
			struct label_disk *d = (struct label_disk *)(void *)(fakes[0].now + off);
			uint32_t bytes;

			fakes[0].now[off + pick(pick(2) ? 200 : 4800)] = (uint8_t)random64(NULL);
			bytes = from_le32(d->table_bytes);
			if (bytes <= TABLE_BYTES_MAX && pick(2))
				d->table_sum = to_le64(XXH3_64bits(d + 1, bytes));
			if (pick(8)) {
				d->sum = to_le64(0);
				d->sum = to_le64(XXH3_64bits(d, sizeof(*d)));
			}
		}
		if (read_label(0, &label) == 0) {
			assert_true(label.places_valid >= 1);
			label_clear(&label);
		}
		if (vote_of(3) == 0)
			table_free(vote.table);
	}
}

static void set_incompat(unsigned device, uint64_t bits)
{
	for (unsigned i = 0; i < 4; i++) {
		uint64_t off =
		    (i & 2 ? label_b_off(DEVICE_BYTES) : 0) + (i & 1) * LABEL_PLACE_BYTES;
		struct label_disk *d = (struct label_disk *)(void *)(fakes[device].now + off);

		d->incompat = to_le64(bits);
		d->sum = to_le64(0);
		d->sum = to_le64(XXH3_64bits(d, sizeof(*d)));
	}
}

static void test_unknown_feature(void **state)
{
	make_volume(2);
	set_incompat(0, 4);
	set_incompat(1, 4);
	assert_int_equal(vote_of(3), -ENOTSUP);
	assert_non_null(strstr(log_text, "0x4"));
	assert_non_null(strstr(log_text, "/dev/fake0"));
}

static void test_foreign_and_none(void **state)
{
	struct table *t;
	struct uuid other = {{9}};

	make_volume(3);
	/* Another filesystem on devices 4 and 5, nothing on 6. */
	t = make_table(2, 9);
	for (unsigned i = 0; i < 2; i++)
		label_member_here(&t->members[i], &fakes[4 + i].dev);
	assert_int_equal(write_table(t), 0);
	assert_int_equal(write_table(t), 0);
	table_free(t);

	assert_int_equal(vote_of(0x77), 0);
	assert_int_equal(vote.table->fs.b[0], 1);
	assert_int_equal(verdict_of(2), VERDICT_USED);
	assert_int_equal(verdict_of(4), VERDICT_FOREIGN);
	assert_int_equal(verdict_of(5), VERDICT_FOREIGN);
	assert_int_equal(verdict_of(6), VERDICT_NO_LABEL);
	assert_non_null(strstr(log_text, "/dev/fake4"));
	assert_non_null(strstr(log_text, "/dev/fake6"));
	table_free(vote.table);

	wanted = &other;
	assert_int_equal(vote_of(0x77), 0);
	assert_int_equal(vote.table->fs.b[0], 9);
	assert_int_equal(verdict_of(0), VERDICT_FOREIGN);
	table_free(vote.table);
	assert_int_equal(vote_of(0x47), -ENODATA);
	wanted = NULL;
	assert_int_equal(vote_of(0x40), -ENODATA);
}

static void copy_device(unsigned from, unsigned to)
{
	static const uint64_t offs[] = {0, DEVICE_BYTES - LABEL_AREA_BYTES};

	for (unsigned i = 0; i < 2; i++) {
		memcpy(fakes[to].now + offs[i], fakes[from].now + offs[i], LABEL_AREA_BYTES);
		memcpy(fakes[to].durable + offs[i], fakes[from].durable + offs[i],
		       LABEL_AREA_BYTES);
	}
}

static void test_clones(void **state)
{
	make_volume(3);
	copy_device(1, 5);
	assert_int_equal(vote_of(0x27), -EEXIST);
	assert_int_equal(verdict_of(1), VERDICT_CLONE);
	assert_int_equal(verdict_of(5), VERDICT_CLONE);
	assert_non_null(strstr(log_text, "/dev/fake1"));
	assert_non_null(strstr(log_text, "/dev/fake5"));

	(void)reset_world(state);
	for (unsigned i = 0; i < 3; i++)
		(void)sprintf(fakes[i].dev.serial, "SN%u", i);
	make_volume(3);
	copy_device(1, 5);
	assert_int_equal(vote_of(0x27), 0);
	assert_int_equal(verdict_of(1), VERDICT_USED);
	assert_int_equal(verdict_of(5), VERDICT_CLONE);
	assert_ptr_equal(vote.table->members[1].dev, &fakes[1].dev);
	table_free(vote.table);
	(void)strcpy(fakes[5].dev.serial, "SN1"); /* both have it */
	assert_int_equal(vote_of(0x27), -EEXIST);
	fakes[1].dev.serial[0] = fakes[5].dev.serial[0] = 0; /* neither */
	assert_int_equal(vote_of(0x27), -EEXIST);
	assert_int_equal(vote_of(0x22), -EEXIST); /* nobody else */
}

static void test_sizes(void **state)
{
	struct label label;

	make_volume(2);
	fakes[0].dev.size_bytes += 8 << 20;
	assert_int_equal(read_label(0, &label), 0);
	assert_int_equal(label.places_valid, 4);
	label_clear(&label);
	use_volume(3, 5);
	expect_vote(3, 5, 3, 0);
	assert_int_equal(read_label(0, &label), 0);
	assert_int_equal(label.places_valid, 4);
	label_clear(&label);

	fakes[0].dev.size_bytes = DEVICE_BYTES - BLOCK_BYTES;
	assert_int_equal(vote_of(3), 0);
	assert_int_equal(verdict_of(0), VERDICT_UNREADABLE);
	assert_int_equal(vote.verdicts[0].error, -ENOSPC);
	assert_null(vote.table->members[0].dev);
	assert_non_null(strstr(log_text, "shrunk"));
	table_free(vote.table);
	assert_int_equal(vote_of(1), -ENOSPC);
	fakes[0].dev.size_bytes = 4096;
	assert_int_equal(vote_of(1), -ENODATA);
}

static void test_wipe(void **state)
{
	struct label label;

	make_volume(2);
	fakes[0].dev.size_bytes += 8 << 20; /* labels B are where they were */
	assert_int_equal(loop_run_co(loop, co_wipe, &fakes[0].dev), 0);
	assert_int_equal(fakes[0].pending_count, 0);
	assert_int_equal(read_label(0, &label), -ENODATA);
	fakes[0].dev.size_bytes -= 8 << 20;
	assert_int_equal(read_label(0, &label), -ENODATA);
	assert_int_equal(read_label(1, &label), 0);
	label_clear(&label);
	fakes[1].fail_after = 12;
	fakes[1].fail_with = -EIO;
	assert_int_equal(loop_run_co(loop, co_wipe, &fakes[1].dev), -EIO);
}

static void test_probe(void **state)
{
	struct label label;
	int fd = memfd_create("member", 0);

	make_volume(2);
	assert_int_equal(ftruncate(fd, DEVICE_BYTES), 0);
	assert_int_equal(label_probe_fd(fd, DEVICE_BYTES, &label), -ENODATA);
	assert_int_equal(pwrite(fd, fakes[1].now, LABEL_AREA_BYTES, 0), LABEL_AREA_BYTES);
	assert_int_equal(label_probe_fd(fd, DEVICE_BYTES, &label), 0);
	assert_int_equal(label.places_valid, 2);
	label_clear(&label);
	assert_int_equal(pwrite(fd, fakes[1].now + DEVICE_BYTES - LABEL_AREA_BYTES,
				LABEL_AREA_BYTES, DEVICE_BYTES - LABEL_AREA_BYTES),
			 LABEL_AREA_BYTES);
	assert_int_equal(label_probe_fd(fd, DEVICE_BYTES, &label), 0);
	assert_int_equal(label.places_valid, 4);
	assert_int_equal(label.member_index, 1);
	assert_int_equal(label.table->member_count, 2);
	label_clear(&label);
	assert_int_equal(label_probe_fd(fd, 100, &label), -ENODATA);
	assert_int_equal(close(fd), 0);
	assert_int_equal(label_probe_fd(fd, DEVICE_BYTES, &label), -EIO);
}

/* A member that fails is out, in what is written as well; the rest goes on. */
static void test_member_fails(void **state)
{
	static const int errors[] = {-EIO, -ENODEV, -ETIMEDOUT};

	for (int after = 0; after < 4; after++) {
		struct table *t;

		(void)reset_world(state);
		make_volume(3);
		t = open_volume(7, 5);
		fakes[1].fail_after = after;
		fakes[1].fail_with = errors[after % 3];
		t->scrub_cursor = 6;
		assert_int_equal(write_table(t), 0);
		assert_int_equal(t->members[1].state, MEMBER_MISSING);
		assert_int_equal(t->members[1].last_gen,
				 4); /* it may have that, and never used it */
		assert_int_equal(t->members[0].state, MEMBER_ACTIVE);
		assert_int_equal(t->members[0].last_gen, t->gen);
		t->scrub_cursor = 7;
		assert_int_equal(write_table(t), 0);
		table_free(t);
		power_returns();
		expect_vote(7, 7, 5, 2);
		expect_vote(3, 7, 1, 2);
		use_volume(7, 8);
		expect_vote(7, 8, 7, 0);
	}
}

static void test_too_many_fail(void **state)
{
	struct table *t = make_table(3, 1);
	struct chunk *c;

	assert_int_equal(table_chunk_add(t, CHUNK_META, &c), 0);
	assert_int_equal(write_table(t), 0);
	assert_int_equal(write_table(t), 0);
	t->scrub_cursor = 9;
	for (unsigned i = 0; i < 3; i++) {
		fakes[i].fail_after = (int)i;
		fakes[i].fail_with = -EIO;
	}
	assert_int_equal(write_table(t), -EIO);
	assert_int_equal(t->gen, 2);
	/* It is not enough, so nothing more is recorded, also when they answer again. */
	for (unsigned i = 0; i < 3; i++)
		fakes[i].fail_after = -1;
	assert_int_equal(write_table(t), -EIO);
	table_free(t);
	expect_vote(7, 0, 7, 0);
}

static int second_result;
static struct table *shared;

static void write_second(void *arg)
{
	shared->scrub_cursor = 22;
	second_result = label_write_table(shared, loop, NULL);
}

static int co_write_twice(void *arg)
{
	int err;

	assert_int_equal(co_spawn(loop, write_second, NULL), 0);
	err = label_write_table(shared, loop, NULL);
	while (second_result > 0)
		co_yield ();
	return err;
}

static void test_two_writers(void **state)
{
	struct table *t = make_table(2, 1);

	shared = t;
	second_result = 1;
	t->scrub_cursor = 11;
	assert_int_equal(loop_run_co(loop, co_write_twice, NULL), 0);
	assert_int_equal(second_result, 0);
	assert_int_equal(t->gen, 2);
	table_free(t);
	expect_vote(3, 22, 3, 0);
}

/* ---- who missed what ---- */

static void test_stale(void **state)
{
	make_volume(3);
	use_volume(3, 10); /* member 2 is not there */
	expect_vote(7, 10, 3, 4);
	expect_vote(5, 10, 1, 4);
	assert_non_null(strstr(log_text, "/dev/fake2: member 2 is stale"));
	use_volume(7, 11); /* back, rebuilt */
	expect_vote(7, 11, 7, 0);
}

/* Copied while everything was in order, put back later: one generation old is enough to be found
 * out. */
static void test_old_copy(void **state)
{
	make_volume(3);
	use_volume(7, 10);
	copy_device(1, 6);
	use_volume(7, 11);
	copy_device(6, 1);
	expect_vote(7, 11, 5, 2);
}

static void test_stale_columns(void **state)
{
	struct table *t = make_table(2, 1);
	struct chunk *c;

	assert_int_equal(table_chunk_add(t, CHUNK_META, &c), 0);
	assert_int_equal(write_table(t), 0);
	table_free(t);
	use_volume(1, 3);
	assert_int_equal(vote_of(3), 0);
	t = vote.table;
	assert_int_equal(t->members[1].state, MEMBER_MISSING);
	assert_null(t->members[1].dev);
	assert_int_equal(vote.verdicts[1].label.member_index, 1);
	assert_false(t->chunks[0]->columns[0].stale);
	assert_true(t->chunks[0]->columns[1].stale);
	assert_true(table_enough(t, true));
	table_free(t);
	assert_int_equal(vote_of(2), 0); /* alone it knows no better */
	assert_true(table_enough(vote.table, true));
	table_free(vote.table);
}

static void test_forked(void **state)
{
	make_volume(4);
	use_volume(3, 10);
	use_volume(12, 20);
	assert_int_equal(vote_of(15), -ESTALE);
	assert_true(vote.forked);
	assert_null(vote.table);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(verdict_of(i), VERDICT_FORKED);
	assert_non_null(strstr(log_text, "/dev/fake0 and /dev/fake2"));
	assert_int_equal(vote_of(5), -ESTALE);
	expect_vote(3, 10, 3, 0);
	expect_vote(12, 20, 12, 0);
	/* More generations on one side do not make it right. */
	use_volume(3, 11);
	use_volume(3, 12);
	assert_int_equal(vote_of(15), -ESTALE);
}

/* Went on alone, was brought back, the other alone: one history, no fork. */
static void test_taking_turns(void **state)
{
	make_volume(2);
	for (uint64_t i = 0; i < 10; i++) {
		use_volume(1u << (i & 1), i * 2);
		expect_vote(3, i * 2, 1u << (i & 1), 2u >> (i & 1));
		use_volume(3, i * 2 + 1);
		expect_vote(3, i * 2 + 1, 3, 0);
	}
}

/* Device 4 takes over from member 1. The table is freed. */
static void replace_one(struct table *t)
{
	struct uuid uuid = {{0x33}};
	unsigned index;

	assert_int_equal(
	    table_member_add(t, &uuid, DEVICE_BYTES, t->members[1].slice_count, &index), 0);
	t->members[index].replaces = 1;
	label_member_here(&t->members[index], &fakes[4].dev);
	assert_int_equal(write_table(t), 0);
	t->members[1].state = MEMBER_REMOVED;
	t->scrub_cursor = 11;
	assert_int_equal(write_table(t), 0);
	table_free(t);
}

static void test_removed_and_failed(void **state)
{
	struct table *t;

	make_volume(3);
	t = open_volume(7, 10);
	t->members[0].state = MEMBER_FAILED;
	replace_one(t);
	expect_vote(0x17, 11, 0x14, 0);
	assert_int_equal(verdict_of(0), VERDICT_REMOVED);
	assert_int_equal(verdict_of(1), VERDICT_REMOVED);
	assert_non_null(strstr(log_text, "/dev/fake1: not used: this member was replaced"));
	/* Somebody opens the old ones alone: newer, and still out. */
	use_volume(2, 99);
	use_volume(2, 99);
	use_volume(2, 99);
	expect_vote(0x16, 11, 0x14, 0);
	assert_int_equal(verdict_of(1), VERDICT_REMOVED);
	assert_non_null(strstr(log_text, "/dev/fake1"));
}

/* All that is current has shrunk: who was replaced must not be taken for what is left. */
static void test_witness(void **state)
{
	make_volume(2);
	replace_one(open_volume(3, 10));
	/* Nor does a copy of it keep the others from being used. */
	copy_device(1, 5);
	assert_int_equal(vote_of(0x33), 0);
	assert_int_equal(verdict_of(1), VERDICT_REMOVED);
	assert_int_equal(verdict_of(5), VERDICT_REMOVED);
	table_free(vote.table);
	fakes[4].dev.size_bytes -= LABEL_AREA_BYTES;
	assert_int_equal(vote_of(0x12), -ENOSPC);
	assert_int_equal(verdict_of(1), VERDICT_REMOVED);
	fakes[4].dev.size_bytes += LABEL_AREA_BYTES;
}

static void test_enough(void **state)
{
	static const struct {
		unsigned level, groups, count, fatal; /* a loss that is too much, and less is not */
	} cases[] = {
	    {0, 1, 3, 1 << 1}, {1, 1, 3, 7},  {5, 1, 4, 3},
	    {6, 1, 5, 7},      {10, 1, 4, 3}, {50, 2, 6, 3},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		unsigned lost = cases[i].fatal;
		struct table *t = table_new();
		struct chunk *c;

		t->level = cases[i].level;
		t->groups = cases[i].groups;
		t->tolerance = geom_tolerance(t->level, cases[i].count);
		t->strip_blocks = 16;
		t->slice_bytes = SLICE_BYTES_MIN;
		t->slices_off_bytes = 8 << 20;
		for (unsigned k = 0; k < cases[i].count; k++) {
			unsigned index;

			assert_int_equal(table_member_add(t, &(struct uuid){{(uint8_t)(k + 1)}},
							  200 << 20, 0, &index),
					 0);
			t->members[k].dev = &fakes[k].dev;
		}
		assert_int_equal(table_chunk_add(t, CHUNK_DATA, &c), 0);
		assert_true(table_enough(t, true));
		while (lost & (lost - 1)) {
			unsigned k = (unsigned)__builtin_ctz(lost);

			lost &= lost - 1;
			if (k % 3 == 0)
				t->members[k].dev = NULL;
			else if (k % 3 == 1)
				t->members[k].state = MEMBER_MISSING;
			else
				c->columns[k].stale = true;
			assert_true(table_enough(t, true));
		}
		t->members[__builtin_ctz(lost)].dev = NULL;
		assert_false(table_enough(t, false));
		if (cases[i].level == 10) { /* the other pair may lose one too */
			t->members[__builtin_ctz(lost)].dev = &fakes[0].dev;
			t->members[2].dev = NULL;
			assert_true(table_enough(t, true));
		}
		table_free(t);
	}
	assert_int_equal(errors_logged, 0);
}

/* ---- crashes ---- */

/* The power goes at each I/O of one write, many times over; whoever of the members is there
 * afterwards is used. */
static void test_crash_everywhere(void **state)
{
	for (int at = 0; at < 14; at++) {
		for (unsigned round = 0; round < 60; round++) {
			unsigned mask = 1 + pick(7);
			struct table *t;
			uint64_t seen;
			int err;

			(void)reset_world(state);
			make_volume(3);
			t = open_volume(7, 10);
			t->scrub_cursor = 11;
			power_left = at;
			err = write_table(t);
			table_free(t);
			power_returns();
			assert_int_equal(err, at < 12 ? -EIO : 0);
			assert_int_equal(vote_of(mask), 0);
			seen = vote.table->scrub_cursor;
			table_free(vote.table);
			assert_true(seen == 11 || (seen == 10 && err));
			expect_vote(mask, seen, mask, 0);
			/* Go on with those; the others are stale, and nothing looks like a fork. */
			use_volume(mask, 12);
			expect_vote(7, 12, mask, 7 & ~mask);
		}
	}
}

/*
 * A long life: opens with whoever is there, writes, failing members, crashes. The model knows which
 * members have all that was acknowledged.
 */
static void test_long_life(void **state)
{
	enum { MEMBERS = 4, EVERYBODY = (1 << MEMBERS) - 1 };
	unsigned must, may, sessions = 0, crashes = 0, failures = 0;
	uint64_t acked = 0, marker = 0;

	make_volume(MEMBERS);
	must = may = EVERYBODY;
	for (unsigned round = 0; round < 4000; round++) {
		unsigned mask = 1 + pick(EVERYBODY), failed = 0, writes = 1 + pick(3);
		struct table *t;
		bool crashed = false;

		if (!(mask & must))
			continue;
		sessions++;
		if (vote_of(mask) != 0)
			fail_msg("round %u: refused: %s", round, log_text);
		t = vote.table;
		log_text[0] = 0;
		if (t->scrub_cursor < acked || t->scrub_cursor > marker)
			fail_msg("round %u: got state %" PRIu64 ", acknowledged %" PRIu64, round,
				 t->scrub_cursor, acked);
		for (unsigned i = 0; i < MEMBERS; i++) {
			int what = verdict_of(i);

			if (what < 0)
				continue;
			if ((must >> i & 1) && what != VERDICT_USED)
				fail_msg("round %u: member %u is good and not used", round, i);
			if (!(may >> i & 1) && what == VERDICT_USED)
				fail_msg("round %u: member %u is stale and used", round, i);
			label_member_here(&t->members[i], &fakes[i].dev);
			t->members[i].state = MEMBER_ACTIVE;
		}
		while (writes-- && !crashed) {
			t->scrub_cursor = ++marker;
			if (pick(3) == 0)
				power_left = (int)pick(20);
			if (pick(4) == 0) {
				unsigned f = pick(MEMBERS);

				/* One that has everything stays. */
				if ((mask >> f & 1) && (must & mask & ~failed & ~(1u << f))) {
					fakes[f].fail_after = (int)pick(5);
					fakes[f].fail_with = pick(2) ? -EIO : -ETIMEDOUT;
				}
			}
			int err = write_table(t);

			for (unsigned i = 0; i < MEMBERS; i++) {
				if ((mask >> i & 1) && fakes[i].fail_after == 0 &&
				    !(failed >> i & 1)) {
					failed |= 1u << i;
					failures++;
				}
			}
			if (power_left == 0 && err) {
				crashed = true;
				crashes++;
				break;
			}
			assert_int_equal(err, 0);
			power_left = -1;
			acked = marker;
			must = 0;
			for (unsigned i = 0; i < MEMBERS; i++) {
				if (t->members[i].state == MEMBER_ACTIVE && t->members[i].dev)
					must |= 1u << i;
			}
			may = must;
		}
		if (crashed) {
			/* Who had everything and was there still does; the others may be counted
			 * either way. */
			must &= mask & ~failed;
			may |= mask;
		}
		table_free(t);
		power_returns();
	}
	assert_true(sessions > 1000 && crashes > 300 && failures > 100);
}

/*
 * Never fewer than all but `away` of the members are there, and never so many away that two openings have nobody in
 * common: whatever is cut short, and however often in a row, there is one history, and nobody is refused.
 */
static void one_history(unsigned members, unsigned away)
{
	unsigned everybody = (1u << members) - 1, crashes = 0, in_a_row = 0, in_a_row_max = 0;
	uint64_t acked = 0, marker = 0;

	make_volume(members);
	for (unsigned round = 0; round < 500; round++) {
		unsigned mask = everybody, writes = 1 + pick(2);
		struct table *t;
		int err = 0;

		for (unsigned n = pick(away + 1); n; n--)
			mask &= ~(1u << pick(members));
		if (vote_of(mask) != 0)
			fail_msg("round %u of %u members: refused: %s", round, members, log_text);
		t = vote.table;
		log_text[0] = 0;
		if (t->scrub_cursor < acked || t->scrub_cursor > marker)
			fail_msg("round %u: got state %" PRIu64 ", acknowledged %" PRIu64, round, t->scrub_cursor, acked);
		for (unsigned i = 0; i < members; i++) {
			if (verdict_of(i) != VERDICT_STALE)
				continue;
			label_member_here(&t->members[i], &fakes[i].dev);
			t->members[i].state = MEMBER_ACTIVE;
		}
		while (writes-- && !err) {
			t->scrub_cursor = ++marker;
			power_left = pick(5) ? (int)pick(4 * members) : -1;
			err = write_table(t);
			if (!err)
				acked = marker;
		}
		in_a_row = err ? in_a_row + 1 : 0;
		in_a_row_max = MAX(in_a_row_max, in_a_row);
		crashes += err != 0;
		table_free(t);
		power_returns();
	}
	assert_true(crashes > 100 && in_a_row_max > 3);
}

static void test_one_history(void **state)
{
	one_history(3, 1);
	(void)reset_world(state);
	one_history(5, 2);
}

/* ---- writes that were cut short ---- */

static uint8_t *areas_saved[DEVICES][2];

static void areas_save(void)
{
	for (unsigned i = 0; i < DEVICES; i++) {
		for (unsigned end = 0; end < 2; end++) {
			uint64_t off = end ? label_b_off(DEVICE_BYTES) : 0;

			areas_saved[i][end] = malloc(LABEL_AREA_BYTES);
			memcpy(areas_saved[i][end], fakes[i].now + off, LABEL_AREA_BYTES);
		}
	}
}

/* Of the masks, labels A and labels B are as they were. */
static void areas_restore(unsigned near, unsigned far)
{
	for (unsigned i = 0; i < DEVICES; i++) {
		for (unsigned end = 0; end < 2; end++) {
			uint64_t off = end ? label_b_off(DEVICE_BYTES) : 0;

			if ((end ? far : near) >> i & 1) {
				memcpy(fakes[i].now + off, areas_saved[i][end], LABEL_AREA_BYTES);
				memcpy(fakes[i].durable + off, areas_saved[i][end], LABEL_AREA_BYTES);
			}
			free(areas_saved[i][end]);
		}
	}
}

/* The volume is opened with those, and the power goes when not more than these have it in labels A, and in labels B. */
static void use_cut_short(unsigned mask, uint64_t marker, unsigned near, unsigned far)
{
	areas_save();
	use_volume(mask, marker);
	areas_restore(mask & ~near, mask & ~far);
}

/*
 * Member 0 alone commits a table without 1, which 2, who is being rebuilt, has only seen: nothing was acknowledged under
 * it. Then 1 and 2 go on. That is known with whoever of them is there.
 */
static void test_left_behind(void **state)
{
	make_volume(3);
	use_volume(3, 10);
	use_cut_short(5, 11, 5, 1);
	use_volume(6, 12);
	expect_vote(7, 12, 6, 1);
	expect_vote(3, 12, 2, 1);
	expect_vote(5, 12, 4, 1);
}

/*
 * A table stands in labels A of member 0 alone, and a place of its labels B is damaged. Members 1 and 2, who know
 * nothing of it, go on, and have given its number to another when the three meet again.
 */
static void test_number_twice(void **state)
{
	struct label label;
	uint64_t gen;

	make_volume(3);
	use_volume(7, 10);
	use_cut_short(3, 11, 1, 0);
	use_cut_short(3, 12, 1, 0);
	assert_int_equal(read_label(0, &label), 0);
	assert_int_equal(label.prepared->scrub_cursor, 12);
	gen = label.prepared->gen;
	garble(0, label_b_off(DEVICE_BYTES) + (1 - label.place[1]) * LABEL_PLACE_BYTES, BLOCK_BYTES);
	label_clear(&label);
	use_volume(6, 20);
	use_cut_short(6, 21, 6, 0);
	assert_int_equal(read_label(1, &label), 0);
	assert_int_equal(label.prepared->gen, gen);
	label_clear(&label);
	expect_vote(3, 20, 2, 1);
	expect_vote(7, 20, 6, 1);
}

/* ---- making a volume ---- */

static struct raid_format_params params;

static int co_format(void *arg)
{
	return raid_format(loop, given, given_count, &params);
}

static void give(unsigned count)
{
	given_count = count;
	for (unsigned i = 0; i < count; i++)
		given[i] = &fakes[i].dev;
}

static struct table *plan_ok(unsigned count)
{
	struct table *t;

	give(count);
	assert_int_equal(raid_plan(given, given_count, &params, &t), 0);
	return t;
}

static void plan_refused(unsigned count, int expected)
{
	struct table *t;
	unsigned before = errors_logged;

	give(count);
	assert_int_equal(raid_plan(given, given_count, &params, &t), expected);
	assert_int_equal(errors_logged, before + 1);
}

static void test_plan(void **state)
{
	static const unsigned level_by_count[] = {0, 0, 1, 5, 5, 6, 6, 6};
	struct table *t;

	params = (struct raid_format_params){.level = -1};
	for (unsigned count = 2; count < 8; count++) {
		t = plan_ok(count);
		assert_int_equal(t->level, level_by_count[count]);
		assert_int_equal(t->member_count, count);
		assert_int_equal(t->strip_blocks, 16);
		assert_int_equal(t->slice_bytes, SLICE_BYTES_MIN);
		assert_int_equal(t->journal_bytes, 6 << 20);
		assert_int_equal(t->chunk_count, 0);
		assert_true(table_potential_blocks(t, CHUNK_DATA) > 0);
		table_free(t);
	}
	for (unsigned i = 0; i < DEVICES; i++)
		fakes[i].dev.size_bytes = 1ull << 40;
	fakes[1].dev.size_bytes = 64ull << 40;
	t = plan_ok(6); /* 69 TiB in at most 20000 slices */
	assert_int_equal(t->slice_bytes, 4ull << 30);
	assert_int_equal(t->journal_bytes, 128 << 20);
	assert_true(t->members[0].slice_count >= 250 && t->members[0].slice_count <= 256);
	assert_true(t->members[1].slice_count >= 16300);
	table_free(t);
	for (unsigned i = 0; i < DEVICES; i++)
		fakes[i].dev.size_bytes = 10ull << 30;
	params = (struct raid_format_params){
	    .level = 60, .name = "x", .journal_bytes = 32 << 20, .strip_bytes = 4 << 20};
	t = plan_ok(8);
	assert_int_equal(t->slice_bytes, 128 << 20);
	assert_int_equal(t->groups, 2);
	assert_int_equal(t->tolerance, 2);
	assert_int_equal(t->journal_bytes, 32 << 20);
	table_free(t);
}

static void test_plan_refused(void **state)
{
	params = (struct raid_format_params){.level = -1};
	plan_refused(0, -EINVAL);
	plan_refused(1, -EINVAL);
	params.level = 0;
	table_free(plan_ok(1));
	params.level = 5;
	plan_refused(2, -EINVAL);
	params.level = 6;
	plan_refused(3, -EINVAL);
	params.level = 4;
	plan_refused(4, -EINVAL);
	params.level = 50;
	plan_refused(5, -EINVAL);
	params.groups = 3;
	plan_refused(8, -EINVAL);
	params = (struct raid_format_params){.level = 5, .groups = 2};
	plan_refused(6, -EINVAL);
	params = (struct raid_format_params){.level = 5, .strip_bytes = 5000};
	plan_refused(3, -EINVAL);
	params.strip_bytes = 8 << 20;
	plan_refused(3, -EINVAL);
	params = (struct raid_format_params){.level = 5, .journal_bytes = 1 << 20};
	plan_refused(3, -EINVAL);
	params.journal_bytes = 40 << 20;
	plan_refused(3, -EINVAL);
	params = (struct raid_format_params){.level = 5, .slice_bytes = 12 << 20};
	plan_refused(3, -EINVAL);
	params.slice_bytes = 16 << 20; /* two on each: metadata, its spare, and nothing for data */
	plan_refused(3, -ENOSPC);
	params = (struct raid_format_params){.level = 5, .strip_bytes = 4 << 20};
	plan_refused(3, -ENOSPC);
	params = (struct raid_format_params){.level = 5,
					     .name = "0123456789012345678901234567890123456789"
						     "0123456789012345678901234"};
	plan_refused(3, -EINVAL);
	params = (struct raid_format_params){.level = 5};
	fakes[2].dev.size_bytes = MEMBER_BYTES_MIN - BLOCK_BYTES;
	plan_refused(3, -ENOSPC);
	assert_non_null(strstr(log_text, "/dev/fake2: too small"));
	fakes[2].dev.size_bytes = DEVICE_BYTES;
	fakes[1].dev.sector_bytes = 8192;
	plan_refused(3, -EINVAL);
}

static void test_format(void **state)
{
	struct table *t;

	for (unsigned i = 0; i < 4; i++)
		garble(i, 0, 4096);
	params = (struct raid_format_params){.level = 5, .name = "made"};
	/* A dry run opens them for reading. */
	fakes[1].dev.read_only = true;
	table_free(plan_ok(4));
	assert_int_equal(loop_run_co(loop, co_format, NULL), -EROFS);
	assert_int_equal(errors_logged, 1);
	assert_int_equal(vote_of(15), -ENODATA);
	errors_logged = 0;
	fakes[1].dev.read_only = false;
	give(4);
	assert_int_equal(loop_run_co(loop, co_format, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(fakes[i].pending_count, 0);
	assert_int_equal(vote_of(15), 0);
	t = vote.table;
	assert_string_equal(t->name, "made");
	assert_int_equal(t->flags, TABLE_CLEAN);
	assert_int_equal(t->chunk_count, 1);
	assert_int_equal(t->chunks[0]->number, 1);
	assert_int_equal(t->chunks[0]->class, CHUNK_META);
	assert_int_equal(t->level, 5);
	assert_true(table_enough(t, true));
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(vote.verdicts[i].what, VERDICT_USED);
		assert_int_equal(vote.verdicts[i].label.places_valid, 4);
	}
	table_free(t);
	assert_int_equal(errors_logged, 0);
}

/* Whichever I/O fails, no half-made filesystem is left on those that can still be written. */
static void test_format_fails(void **state)
{
	int after, err = -1;

	params = (struct raid_format_params){.level = 5};
	for (after = 0; err; after++) {
		assert_true(after < 200);
		(void)reset_world(state);
		make_volume(3); /* what was there before */
		give(3);
		fakes[1].fail_after = after;
		fakes[1].fail_with = -EIO;
		err = loop_run_co(loop, co_format, NULL);
		if (err) {
			assert_int_equal(err, -EIO);
			assert_true(errors_logged > 0);
			assert_int_equal(vote_of(5), -ENODATA);
		}
	}
	assert_true(after > 15);
	assert_int_equal(vote_of(7), 0);
	table_free(vote.table);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, reset_world, check_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_round_trip),
	    TEST(test_one_place_is_enough),
	    TEST(test_damaged_newest),
	    TEST(test_fuzz),
	    TEST(test_unknown_feature),
	    TEST(test_foreign_and_none),
	    TEST(test_clones),
	    TEST(test_sizes),
	    TEST(test_wipe),
	    TEST(test_probe),
	    TEST(test_member_fails),
	    TEST(test_too_many_fail),
	    TEST(test_two_writers),
	    TEST(test_stale),
	    TEST(test_old_copy),
	    TEST(test_stale_columns),
	    TEST(test_forked),
	    TEST(test_taking_turns),
	    TEST(test_removed_and_failed),
	    TEST(test_witness),
	    TEST(test_enough),
	    TEST(test_crash_everywhere),
	    TEST(test_long_life),
	    TEST(test_one_history),
	    TEST(test_left_behind),
	    TEST(test_number_twice),
	    TEST(test_plan),
	    TEST(test_plan_refused),
	    TEST(test_format),
	    TEST(test_format_fails),
	};
	int failed;

	log_set_hook(count_log, NULL);
	if (buf_pool_init(16 << 20) != 0)
		return 1;
	loop = loop_new(&backend, NULL);
	if (!loop)
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	loop_free(loop);
	buf_pool_exit();
	return failed ? 1 : 0;
}
