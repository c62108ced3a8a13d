/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume table: where chunks go, that what is promised as free can really be had, and that its
 * bytes survive a round trip and whatever else may stand there instead.
 */
#include "raid/table.h"
#include "raid/format.h"
#include "raid/io.h"
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static struct dev devs[MEMBERS_MAX];
static uint64_t seed = 88172645463325252ull;

static uint64_t random64(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static const struct uuid fs_uuid = {{1, 2, 3}};

/* slices[i] slices on member i. */
static struct table *make_table(unsigned level, unsigned groups, unsigned count,
				const uint32_t *slices)
{
	struct table *t = table_new();

	assert_non_null(t);
	t->fs = fs_uuid;
	(void)snprintf(t->name, sizeof(t->name), "a name");
	t->gen = 7;
	t->epoch = 3;
	t->salt = random64();
	t->level = level;
	t->groups = groups;
	t->tolerance = geom_tolerance(level, count);
	t->strip_blocks = 16;
	t->slice_bytes = SLICE_BYTES_MIN;
	t->journal_off_bytes = LABEL_AREA_BYTES;
	t->journal_bytes = JOURNAL_BYTES_MIN;
	t->slices_off_bytes = LABEL_AREA_BYTES + JOURNAL_BYTES_MIN;
	for (unsigned i = 0; i < count; i++) {
		struct uuid uuid = {{(uint8_t)(i + 1), 9}};
		unsigned index;

		assert_int_equal(table_member_add(t, &uuid, table_member_bytes_min(t, slices[i]),
						  slices[i], &index),
				 0);
		assert_int_equal(index, i);
		t->members[i].dev = &devs[i];
		t->members[i].last_gen = i % 8;
		t->members[i].errors_sum = i;
		(void)snprintf(t->members[i].hint, sizeof(t->members[i].hint), "/dev/member%u", i);
	}
	return t;
}

static struct table *make_equal(unsigned level, unsigned groups, unsigned count, uint32_t slices)
{
	uint32_t each[MEMBERS_MAX];

	for (unsigned i = 0; i < count; i++)
		each[i] = slices;
	return make_table(level, groups, count, each);
}

static const struct shape {
	unsigned level, groups, count;
} shapes[] = {
    {0, 1, 1},	{0, 1, 5},  {1, 1, 2},	{1, 1, 3},   {5, 1, 3},	 {5, 1, 4},
    {5, 1, 9},	{6, 1, 4},  {6, 1, 7},	{10, 1, 2},  {10, 1, 4}, {10, 1, 5},
    {50, 2, 6}, {50, 2, 7}, {60, 2, 8}, {60, 3, 13}, {6, 1, 64},
};

static void check_chunk(const struct table *t, const struct chunk *c, bool any_absent)
{
	const struct geom *g = &c->geom;
	uint64_t seen = 0;

	if (c->class == CHUNK_META) {
		assert_int_equal(g->columns, t->tolerance + 1);
		assert_int_equal(g->width, 1);
	} else {
		assert_int_equal(g->level, t->level);
	}
	assert_true(g->tolerance >= t->tolerance);
	for (unsigned i = 0; i < g->columns; i++) {
		const struct column *col = &c->columns[i];
		const struct member *m = &t->members[col->member];

		assert_true(i == 0 || col->member > c->columns[i - 1].member);
		assert_false(seen >> col->member & 1);
		seen |= 1ull << col->member;
		assert_true(col->slice < m->slice_count);
		assert_int_equal(m->slice_used[col->slice], 1);
		assert_int_equal(col->stale, !table_member_takes_chunks(t, col->member));
		assert_true(any_absent || !col->stale);
	}
}

static void check_slices(const struct table *t)
{
	uint64_t used = 0, columns = 0;

	for (unsigned i = 0; i < t->member_count; i++) {
		uint32_t n = 0;

		for (uint32_t k = 0; k < t->members[i].slice_count; k++)
			n += t->members[i].slice_used[k];
		assert_int_equal(n, t->members[i].slice_count - t->members[i].slices_free);
		used += n;
	}
	for (unsigned i = 0; i < t->chunk_count; i++)
		columns += t->chunks[i]->geom.columns;
	assert_int_equal(used, columns);
}

/* Adds until it is refused; the blocks that came. */
static uint64_t fill(struct table *t, enum chunk_class class, bool any_absent)
{
	uint64_t blocks = 0;
	struct chunk *c;
	int err;

	while ((err = table_chunk_add(t, class, &c)) == 0) {
		blocks += c->geom.blocks;
		check_chunk(t, c, any_absent);
	}
	assert_int_equal(err, -ENOSPC);
	check_slices(t);
	return blocks;
}

/* What is promised comes, exactly, for any sizes and any loss within tolerance; and metadata is
 * never starved. */
static void test_potential_is_kept(void **state)
{
	for (unsigned round = 0; round < 400; round++) {
		const struct shape *s = &shapes[round % ARRAY_SIZE(shapes)];
		uint32_t slices[MEMBERS_MAX];
		struct table *t;
		struct chunk *c;
		uint64_t promised;
		unsigned lost = 0;

		for (unsigned i = 0; i < s->count; i++)
			slices[i] = 4 + (round % 3 ? (uint32_t)(random64() % 60) : 40);
		t = make_table(s->level, s->groups, s->count, slices);
		assert_int_equal(table_chunk_add(t, CHUNK_META, &c), 0);
		assert_int_equal(c->number, 1);
		for (; lost < t->tolerance && random64() % 2; lost++) {
			struct member *m = &t->members[random64() % s->count];

			m->dev = NULL;
			m->state = random64() % 2 ? MEMBER_MISSING : MEMBER_ACTIVE;
		}
		promised = table_potential_blocks(t, CHUNK_DATA);
		assert_int_equal(fill(t, CHUNK_DATA, lost), promised);
		assert_int_equal(table_potential_blocks(t, CHUNK_DATA), 0);
		promised = table_potential_blocks(t, CHUNK_META);
		if (t->chunk_count > 1)
			assert_true(promised > 0);
		assert_int_equal(fill(t, CHUNK_META, lost), promised);
		assert_int_equal(table_potential_blocks(t, CHUNK_META), 0);
		table_free(t);
	}
}

static void test_equal_members_fill_up(void **state)
{
	struct table *t = make_equal(6, 1, 6, 64);
	struct chunk *c;

	assert_int_equal(table_chunk_add(t, CHUNK_META, &c), 0);
	assert_true(fill(t, CHUNK_DATA, false) > 0);
	/* 384 slices: 1/32 are 12, 4 chunks of 3; one is there, 3 more are kept: 12 - 3 of 6 * 63.
	 */
	for (unsigned i = 0; i < 6; i++)
		assert_true(t->members[i].slices_free >= 1 && t->members[i].slices_free <= 3);
	assert_true(table_potential_blocks(t, CHUNK_META) >= 3 * c->geom.blocks);
	table_free(t);
}

static void test_same_pairs(void **state)
{
	struct table *t = make_equal(10, 1, 6, 20);
	struct chunk *c;

	while (table_chunk_add(t, CHUNK_DATA, &c) == 0) {
		for (unsigned i = 0; i < 6; i++)
			assert_int_equal(c->columns[i].member, i);
	}
	table_free(t);
}

static void lose(struct table *t, unsigned index)
{
	t->members[index].dev = NULL;
	t->members[index].state = MEMBER_MISSING;
}

static unsigned stale_columns(const struct chunk *c)
{
	unsigned n = 0;

	for (unsigned i = 0; i < c->geom.columns; i++)
		n += c->columns[i].stale;
	return n;
}

static void expect_columns(struct table *t, enum chunk_class class, unsigned columns,
			   unsigned stale)
{
	struct chunk *c;

	assert_int_equal(table_chunk_add(t, class, &c), 0);
	assert_int_equal(c->geom.columns, columns);
	assert_int_equal(stale_columns(c), stale);
	check_chunk(t, c, true);
}

static void expect_none(struct table *t, enum chunk_class class)
{
	struct chunk *c;

	assert_int_equal(table_chunk_add(t, class, &c), -ENOSPC);
	assert_int_equal(table_potential_blocks(t, class), 0);
}

static void test_members_lost(void **state)
{
	struct table *t = make_equal(5, 1, 4, 40);

	expect_columns(t, CHUNK_DATA, 4, 0);
	lose(t, 1);
	expect_columns(t, CHUNK_DATA, 3, 0); /* whole, on those that are there */
	expect_columns(t, CHUNK_META, 2, 0);
	lose(t, 2);
	expect_columns(t, CHUNK_DATA, 3, 1);
	expect_columns(t, CHUNK_META, 2, 0);
	lose(t, 0);
	expect_none(t, CHUNK_DATA);
	table_free(t);

	t = make_equal(1, 1, 2, 40);
	lose(t, 0);
	expect_columns(t, CHUNK_DATA, 2, 1);
	expect_columns(t, CHUNK_META, 2, 1);
	lose(t, 1);
	expect_none(t, CHUNK_DATA);
	expect_none(t, CHUNK_META);
	table_free(t);

	t = make_equal(6, 1, 5, 40);
	lose(t, 0);
	lose(t, 4);
	expect_columns(t, CHUNK_DATA, 4, 1);
	expect_columns(t, CHUNK_META, 3, 0);
	table_free(t);
}

/* Full is not missing: a chunk is not made weak because a small member is full. */
static void test_full_is_not_lost(void **state)
{
	uint32_t slices[] = {4, 40, 40};
	struct table *t = make_table(5, 1, 3, slices);
	struct chunk *c;

	(void)fill(t, CHUNK_DATA, false);
	assert_true(t->members[1].slices_free >= 30);
	assert_int_equal(table_chunk_add(t, CHUNK_META, &c), 0);
	table_free(t);
}

static void test_being_replaced(void **state)
{
	struct table *t = make_equal(5, 1, 4, 40);
	struct uuid uuid = {{77}};
	unsigned index;

	assert_int_equal(table_member_add(t, &uuid, 400 << 20, 40, &index), 0);
	assert_int_equal(index, 4);
	t->members[4].dev = &devs[4];
	t->members[4].replaces = 1;
	assert_false(table_member_takes_chunks(t, 1));
	assert_true(table_member_takes_chunks(t, 4));
	for (int i = 0; i < 5; i++) {
		struct chunk *c;

		assert_int_equal(table_chunk_add(t, CHUNK_DATA, &c), 0);
		assert_int_equal(c->geom.columns, 4);
		for (unsigned k = 0; k < 4; k++)
			assert_int_not_equal(c->columns[k].member, 1);
	}
	lose(t, 4); /* the replacement is gone: the old one is in service again */
	assert_true(table_member_takes_chunks(t, 1));
	table_free(t);
}

static void test_member_sizes(void **state)
{
	struct table *t = make_equal(5, 1, 3, 20);
	struct uuid uuid = {{78}};
	uint64_t least = table_member_bytes_min(t, 20);
	unsigned index = 99;

	assert_int_equal(table_member_add(t, &uuid, least - 4096, 20, &index), -ENOSPC);
	assert_int_equal(table_member_add(t, &uuid, 4096, 0, &index), -ENOSPC);
	assert_int_equal(index, 99);
	assert_int_equal(t->member_count, 3);
	assert_int_equal(table_member_add(t, &uuid, least, 20, &index), 0);
	assert_int_equal(t->members[index].slice_count, 20);
	/* A new member of the same size keeps slack and gets less. */
	assert_int_equal(table_slices_fit(t, least), 19);
	/* 64 GiB: a thousandth stays unused. */
	assert_true((64ull << 30) -
			(t->slices_off_bytes + table_slices_fit(t, 64ull << 30) * t->slice_bytes) >=
		    (64ull << 30) / 1000);
	while (t->member_count < MEMBERS_MAX) {
		uuid.b[1]++;
		assert_int_equal(table_member_add(t, &uuid, least, 20, &index), 0);
	}
	assert_int_equal(table_member_add(t, &uuid, least, 20, &index), -E2BIG);
	table_free(t);
}

static void test_lookup_and_drop(void **state)
{
	struct table *t = make_equal(5, 1, 4, 40);
	struct chunk *c[5], *again;

	for (int i = 0; i < 5; i++)
		assert_int_equal(table_chunk_add(t, i % 2 ? CHUNK_DATA : CHUNK_META, &c[i]), 0);
	assert_ptr_equal(table_chunk(t, 3), c[2]);
	table_chunk_drop(t, c[2]);
	check_slices(t);
	assert_null(table_chunk(t, 3));
	assert_null(table_chunk(t, 0));
	assert_null(table_chunk(t, 6));
	assert_ptr_equal(table_chunk(t, 4), c[3]);
	assert_int_equal(table_chunk_add(t, CHUNK_DATA, &again), 0);
	assert_int_equal(again->number, 6); /* numbers are never used twice */
	table_free(t);
}

static void test_slices(void **state)
{
	struct table *t = make_equal(5, 1, 3, 10);
	uint16_t slice;

	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(table_slice_get(t, 1, &slice), 0);
		assert_int_equal(slice, i);
	}
	assert_int_equal(table_slice_get(t, 1, &slice), -ENOSPC);
	table_slice_put(t, 1, 4);
	assert_int_equal(table_slice_get(t, 1, &slice), 0);
	assert_int_equal(slice, 4);
	table_free(t);
}

/* ---- bytes ---- */

static uint8_t bytes[TABLE_BYTES_MAX], more[TABLE_BYTES_MAX];

static struct table *decode_ok(const void *from, size_t len)
{
	const char *why = "";
	struct table *t = NULL;
	int err = table_decode(from, len, &fs_uuid, "a name", &t, &why);

	if (err)
		fail_msg("refused: %s", why);
	return t;
}

static void test_round_trip(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		const struct shape *s = &shapes[i];
		struct table *t = make_equal(s->level, s->groups, s->count, 30), *u;
		size_t len, len_again;
		struct chunk *c;

		for (int k = 0; k < 8; k++) {
			if (table_chunk_add(t, k % 3 ? CHUNK_DATA : CHUNK_META, &c) == 0)
				c->columns[0].stale = k == 4;
		}
		table_chunk_drop(t, t->chunks[1]);
		t->flags = TABLE_CLEAN;
		t->rebuild_priority = 101;
		t->scrub_priority = 1;
		t->scrub_cursor = 5ull << 32 | 77;
		t->members[0].state = MEMBER_FAILED;
		if (s->count > 1)
			t->members[s->count - 1].replaces = 0;
		assert_int_equal(table_encode(t, bytes, sizeof(bytes), &len), 0);
		u = decode_ok(bytes, len);
		assert_string_equal(u->name, t->name);
		assert_true(uuid_equal(&u->fs, &t->fs));
		assert_int_equal(u->member_count, t->member_count);
		assert_int_equal(u->chunk_count, t->chunk_count);
		assert_int_equal(u->chunk_next, t->chunk_next);
		assert_int_equal(u->rebuild_priority, 101);
		assert_int_equal(u->scrub_priority, 1);
		for (unsigned k = 0; k < t->member_count; k++) {
			assert_int_equal(u->members[k].slices_free, t->members[k].slices_free);
			assert_memory_equal(u->members[k].slice_used, t->members[k].slice_used, 30);
			assert_null(u->members[k].dev);
			assert_int_equal(u->members[k].replaces, t->members[k].replaces);
		}
		for (unsigned k = 0; k < t->chunk_count; k++) {
			assert_memory_equal(&u->chunks[k]->geom, &t->chunks[k]->geom,
					    sizeof(struct geom));
			assert_int_equal(u->chunks[k]->move_column, -1);
		}
		assert_int_equal(table_encode(u, more, sizeof(more), &len_again), 0);
		assert_int_equal(len_again, len);
		assert_memory_equal(more, bytes, len);
		assert_int_equal(table_encode(t, bytes, len - 1, &len_again), -E2BIG);
		table_free(t);
		table_free(u);
	}
}

static void test_hidden(void **state)
{
	struct table *t = make_equal(5, 1, 4, 30), *u;
	struct chunk *a, *b;
	size_t len;

	assert_int_equal(table_chunk_add(t, CHUNK_META, &a), 0);
	assert_int_equal(table_chunk_add(t, CHUNK_DATA, &b), 0);
	b->hidden = true;
	assert_int_equal(table_encode(t, bytes, sizeof(bytes), &len), 0);
	u = decode_ok(bytes, len);
	assert_int_equal(u->chunk_count, 1);
	assert_int_equal(u->chunk_next, 3); /* its number is spent all the same */
	assert_int_equal(u->members[3].slices_free,
			 30 - (a->columns[0].member == 3 || a->columns[1].member == 3));
	table_free(t);
	table_free(u);
}

static size_t encode_sample(void)
{
	struct table *t = make_equal(6, 1, 6, 30);
	struct chunk *c;
	size_t len;

	for (int k = 0; k < 5; k++)
		assert_int_equal(table_chunk_add(t, k % 3 ? CHUNK_DATA : CHUNK_META, &c), 0);
	assert_int_equal(table_encode(t, bytes, sizeof(bytes), &len), 0);
	table_free(t);
	return len;
}

/* Whatever stands there is refused, or is a table that says the same when written again. Never a
 * crash. */
static void survive(const uint8_t *from, size_t len)
{
	const char *why = NULL;
	struct table *t = NULL;
	static uint8_t again[TABLE_BYTES_MAX];
	size_t len_again;
	uint8_t *exact = malloc(len ? len : 1); /* its end is guarded by the sanitizer */
	int err;

	memcpy(exact, from, len);
	err = table_decode(exact, len, &fs_uuid, "", &t, &why);
	free(exact);
	if (err) {
		assert_int_equal(err, -EBADMSG);
		assert_non_null(why);
		assert_null(t);
		return;
	}
	check_slices(t);
	assert_int_equal(table_encode(t, again, sizeof(again), &len_again), 0);
	assert_int_equal(len_again, len);
	assert_memory_equal(again, from, len);
	table_free(t);
}

static void test_fuzz(void **state)
{
	size_t len = encode_sample();

	for (size_t cut = 0; cut <= len; cut++)
		survive(bytes, cut);
	survive(bytes, len + 4);
	for (unsigned round = 0; round < 60000; round++) {
		unsigned n = 1 + (unsigned)(random64() % 4);

		memcpy(more, bytes, len);
		while (n--) {
			/* Half of them where the counts and sizes stand. */
			size_t at =
			    random64() % (random64() % 2 ? len : sizeof(struct table_head_disk));
			uint64_t how = random64();

			more[at] = how % 3 == 0	  ? (uint8_t)(more[at] ^ 1u << how / 3 % 8)
				   : how % 3 == 1 ? (uint8_t)(how >> 8)
						  : (uint8_t)(how & 256 ? 255 : 0);
		}
		survive(more, len);
	}
	for (unsigned round = 0; round < 2000; round++) {
		size_t n = random64() % 3000;

		for (size_t i = 0; i < n; i++)
			more[i] = (uint8_t)random64();
		survive(more, n);
	}
}

static void expect_refused(size_t len, size_t at, const void *value, size_t value_len)
{
	const char *why = NULL;
	struct table *t;

	memcpy(more, bytes, len);
	memcpy(more + at, value, value_len);
	if (table_decode(more, len, &fs_uuid, "", &t, &why) != -EBADMSG)
		fail_msg("byte %zu: not refused", at);
}

#define HEAD(field) offsetof(struct table_head_disk, field)
#define MEMBER(i, field)                                                                           \
	(sizeof(struct table_head_disk) + (i) * sizeof(struct table_member_disk) +                 \
	 offsetof(struct table_member_disk, field))
#define CHUNK(field) (MEMBER(6, uuid) + offsetof(struct table_chunk_disk, field))
#define COLUMN(i, field)                                                                           \
	(MEMBER(6, uuid) + sizeof(struct table_chunk_disk) +                                       \
	 (i) * sizeof(struct table_column_disk) + offsetof(struct table_column_disk, field))

static void refuse64(size_t len, size_t at, uint64_t x)
{
	le64 v = to_le64(x);

	expect_refused(len, at, &v, sizeof(v));
}

static void refuse32(size_t len, size_t at, uint32_t x)
{
	le32 v = to_le32(x);

	expect_refused(len, at, &v, sizeof(v));
}

static void refuse16(size_t len, size_t at, uint16_t x)
{
	le16 v = to_le16(x);

	expect_refused(len, at, &v, sizeof(v));
}

/* Each thing that is checked, one by one. */
static void test_refused(void **state)
{
	size_t len = encode_sample();

	refuse64(len, HEAD(gen), 0);
	refuse64(len, HEAD(slice_bytes), 0);
	refuse64(len, HEAD(slice_bytes), SLICE_BYTES_MIN + 1);
	refuse64(len, HEAD(slice_bytes), 1ull << 63);
	refuse64(len, HEAD(journal_off_bytes), 0);
	refuse64(len, HEAD(journal_bytes), 4096);
	refuse64(len, HEAD(journal_bytes), 1ull << 62);
	refuse64(len, HEAD(slices_off_bytes), LABEL_AREA_BYTES);
	refuse64(len, HEAD(slices_off_bytes), 1ull << 62);
	refuse64(len, HEAD(chunk_next), 0);
	refuse64(len, HEAD(chunk_next), 5); /* chunk 5 exists */
	refuse64(len, HEAD(chunk_next), 1ull << 32);
	refuse32(len, HEAD(level), 4);
	refuse32(len, HEAD(level), 5); /* tolerance 2 */
	refuse32(len, HEAD(tolerance), 1);
	refuse32(len, HEAD(strip_blocks), 0);
	refuse32(len, HEAD(strip_blocks), 17);
	refuse32(len, HEAD(strip_blocks), 1u << 31);
	refuse32(len, HEAD(groups), 0);
	refuse32(len, HEAD(groups), 2);
	refuse32(len, HEAD(member_count), 0);
	refuse32(len, HEAD(member_count), 5);
	refuse32(len, HEAD(member_count), 65);
	refuse32(len, HEAD(member_count), UINT32_MAX);
	refuse32(len, HEAD(chunk_count), 4);
	refuse32(len, HEAD(chunk_count), 6);
	refuse32(len, HEAD(chunk_count), UINT32_MAX);
	refuse32(len, HEAD(flags), 8);
	expect_refused(len, HEAD(rebuild_priority), (uint8_t[]){102}, 1);
	expect_refused(len, HEAD(scrub_priority), (uint8_t[]){102}, 1);
	refuse16(len, HEAD(reserved0), 1);
	refuse64(len, HEAD(reserved), 1);
	expect_refused(len, MEMBER(1, uuid), bytes + MEMBER(0, uuid), 16);
	expect_refused(len, MEMBER(1, uuid), (uint8_t[16]){0}, 16);
	refuse64(len, MEMBER(2, size_bytes), 4096);
	refuse64(len, MEMBER(2, size_bytes), UINT64_MAX - 4095);
	refuse64(len, MEMBER(2, size_bytes), 100 << 20); /* 30 slices of 4 MiB do not fit */
	refuse64(len, MEMBER(2, last_gen), 8);
	refuse32(len, MEMBER(2, state), 0);
	refuse32(len, MEMBER(2, state), 5);
	refuse32(len, MEMBER(2, state), MEMBER_REMOVED); /* columns refer to it */
	refuse32(len, MEMBER(2, slice_count), 0);
	refuse32(len, MEMBER(2, slice_count), 3);
	refuse32(len, MEMBER(2, slice_count), 20001);
	refuse32(len, MEMBER(2, replaces), 3); /* itself */
	refuse32(len, MEMBER(2, replaces), 7);
	refuse32(len, MEMBER(2, replaces), UINT32_MAX);
	refuse32(len, MEMBER(2, reserved0), 1);
	expect_refused(len, MEMBER(2, hint) + 63, "x", 1);
	expect_refused(len, MEMBER(2, serial) + 63, "x", 1);
	refuse32(len, CHUNK(number), 0);
	refuse32(len, CHUNK(number), 2);
	expect_refused(len, CHUNK(class), (uint8_t[]){0}, 1);
	expect_refused(len, CHUNK(class), (uint8_t[]){3}, 1);
	expect_refused(len, CHUNK(level), (uint8_t[]){6}, 1);
	expect_refused(len, CHUNK(level), (uint8_t[]){2}, 1);
	refuse16(len, CHUNK(columns), 0);
	refuse16(len, CHUNK(columns), 65);
	refuse16(len, CHUNK(columns), 2);
	refuse16(len, CHUNK(groups), 2);
	refuse16(len, CHUNK(reserved0), 1);
	refuse16(len, COLUMN(0, member), 6);
	refuse16(len, COLUMN(0, member), 1); /* has the second column */
	refuse16(len, COLUMN(0, slice), 30);
	refuse16(len, COLUMN(0, slice), 1); /* another chunk's */
}

static void test_no_memory(void **state)
{
	size_t len = encode_sample();
	const char *why;
	struct table *t;
	struct chunk *c;
	unsigned n = 0;
	int err;

	do {
		mem_fail_after(++n, false);
		err = table_decode(bytes, len, &fs_uuid, "", &t, &why);
		mem_fail_after(0, false);
		assert_true(err == 0 || err == -ENOMEM);
		assert_true(n < 100);
	} while (err);
	assert_true(n > 10);
	for (unsigned i = 0; i < t->member_count; i++)
		t->members[i].dev = &devs[i];
	n = 0;
	do {
		unsigned count = t->chunk_count, next = t->chunk_next;

		mem_fail_after(++n, false);
		err = table_chunk_add(t, CHUNK_DATA, &c);
		mem_fail_after(0, false);
		if (err) {
			assert_int_equal(err, -ENOMEM);
			assert_int_equal(t->chunk_count, count);
			assert_int_equal(t->chunk_next, next);
			check_slices(t);
		}
	} while (err);
	table_free(t);
}

/* The largest volume that can be made fits a label place, with a member being replaced on top. */
static void test_largest(void **state)
{
	struct table *t = make_equal(0, 1, 1, 20000);
	struct uuid uuid = {{77}};
	struct chunk *c;
	unsigned index;
	size_t len;

	while (table_chunk_add(t, CHUNK_META, &c) == 0)
		;
	assert_int_equal(t->chunk_count, 20000);
	assert_int_equal(table_encode(t, bytes, sizeof(bytes), &len), 0);
	table_free(decode_ok(bytes, len));
	/* Beyond that chunks are refused, and what there is can still be written. */
	assert_int_equal(table_member_add(t, &uuid, t->members[0].size_bytes, 20000, &index), 0);
	t->members[index].dev = &devs[1];
	while (table_chunk_add(t, CHUNK_META, &c) == 0)
		;
	assert_true(t->members[index].slices_free > 0);
	assert_int_equal(table_encode(t, bytes, sizeof(bytes), &len), 0);
	table_free(decode_ok(bytes, len));
	table_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_potential_is_kept),
	    cmocka_unit_test(test_equal_members_fill_up),
	    cmocka_unit_test(test_same_pairs),
	    cmocka_unit_test(test_members_lost),
	    cmocka_unit_test(test_full_is_not_lost),
	    cmocka_unit_test(test_being_replaced),
	    cmocka_unit_test(test_member_sizes),
	    cmocka_unit_test(test_lookup_and_drop),
	    cmocka_unit_test(test_slices),
	    cmocka_unit_test(test_round_trip),
	    cmocka_unit_test(test_hidden),
	    cmocka_unit_test(test_fuzz),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_no_memory),
	    cmocka_unit_test(test_largest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
