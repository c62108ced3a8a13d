/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * P and Q against a slow byte-wise implementation that shares nothing with isa-l, and every loss of
 * up to two columns for every number of data columns up to 20 and some beyond, with and without
 * empty columns.
 */
#include "raid/parity.h"
#include "raid/format.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#define LEN_MAX 40960u /* longer than a piece */

static uint8_t *memory[MEMBERS_MAX], *wanted[MEMBERS_MAX];
static uint64_t seed = 1;

static uint64_t random64(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* Shift and reduce, one bit at a time. */
static uint8_t slow_double(uint8_t x)
{
	return (uint8_t)(x << 1 ^ (x & 0x80 ? 0x1d : 0));
}

static void slow_compute(unsigned data, unsigned parity, size_t len, uint8_t **cols,
			 const bool *empty)
{
	for (size_t k = 0; k < len; k++) {
		uint8_t p = 0, q = 0;

		for (unsigned i = data; i-- > 0;) {
			uint8_t d = empty[i] ? 0 : cols[i][k];

			p ^= d;
			q = slow_double(q) ^ d;
		}
		cols[data][k] = p;
		if (parity == 2)
			cols[data + 1][k] = q;
	}
}

static void fill(unsigned data, unsigned parity, size_t len, uint64_t empty_mask, void **cols)
{
	bool empty[MEMBERS_MAX];

	for (unsigned i = 0; i < data; i++) {
		empty[i] = empty_mask >> i & 1;
		for (size_t k = 0; k < len; k += 8) {
			uint64_t x = empty[i] ? 0 : random64();

			memcpy(memory[i] + k, &x, 8);
		}
	}
	slow_compute(data, parity, len, memory, empty);
	for (unsigned i = 0; i < data + parity; i++) {
		memcpy(wanted[i], memory[i], len);
		cols[i] = i < data && empty[i] ? NULL : memory[i];
	}
}

static void check_same(unsigned count, size_t len, void **cols)
{
	for (unsigned i = 0; i < count; i++) {
		if (cols[i])
			assert_memory_equal(cols[i], wanted[i], len);
	}
}

static void check_compute(unsigned data, unsigned parity, size_t len, uint64_t empty_mask)
{
	void *cols[MEMBERS_MAX];

	fill(data, parity, len, empty_mask, cols);
	for (unsigned i = data; i < data + parity; i++)
		memset(cols[i], 0xa5, len);
	parity_compute(data, parity, len, cols);
	check_same(data + parity, len, cols);
}

static void check_loss(unsigned data, unsigned parity, size_t len, uint64_t empty_mask,
		       const unsigned *lost, unsigned lost_count)
{
	void *cols[MEMBERS_MAX];

	fill(data, parity, len, empty_mask, cols);
	for (unsigned i = 0; i < lost_count; i++) {
		cols[lost[i]] = memory[lost[i]];
		memset(cols[lost[i]], 0x5a, len);
	}
	assert_int_equal(parity_recover(data, parity, len, cols, lost, lost_count), 0);
	check_same(data + parity, len, cols);
}

static void check_all_losses(unsigned data, unsigned parity, size_t len, uint64_t empty_mask)
{
	unsigned lost[2];

	check_compute(data, parity, len, empty_mask);
	check_loss(data, parity, len, empty_mask, lost, 0);
	for (lost[0] = 0; lost[0] < data + parity; lost[0]++) {
		check_loss(data, parity, len, empty_mask, lost, 1);
		for (lost[1] = lost[0] + 1; parity == 2 && lost[1] < data + parity; lost[1]++)
			check_loss(data, parity, len, empty_mask, lost, 2);
	}
}

static void test_all_losses(void **state)
{
	for (unsigned data = 1; data <= 20; data++) {
		for (unsigned parity = 1; parity <= 2; parity++)
			check_all_losses(data, parity, 256, 0);
	}
}

static void test_wide(void **state)
{
	check_all_losses(32, 2, 64, 0);
	check_all_losses(62, 2, 64, 0);
	check_all_losses(63, 1, 64, 0);
}

/* Every pattern of empty columns, every loss. */
static void test_empty_columns(void **state)
{
	for (unsigned data = 1; data <= 6; data++) {
		for (unsigned parity = 1; parity <= 2; parity++) {
			for (uint64_t mask = 0; mask < 1ull << data; mask++)
				check_all_losses(data, parity, 64, mask);
		}
	}
	for (int i = 0; i < 20; i++)
		check_all_losses(14, 2, 64, random64());
}

static void test_lengths(void **state)
{
	static const size_t lens[] = {0, 64, 128, 192, 4096, 16320, 16384, 16448, LEN_MAX};

	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		unsigned pairs[][2] = {{0, 1}, {1, 4}, {3, 5}, {0, 6}, {5, 6}};

		check_compute(5, 1, lens[i], 0);
		check_compute(5, 2, lens[i], 0);
		check_compute(5, 2, lens[i], 4);
		for (size_t k = 0; k < ARRAY_SIZE(pairs); k++)
			check_loss(5, 2, lens[i], k % 2 * 4, pairs[k], 2);
	}
}

/* What is there is not written to, even where it is not what it should be. */
static void test_survivors_untouched(void **state)
{
	void *cols[MEMBERS_MAX];
	unsigned lost = 4; /* Q of 3 + 2 */

	fill(3, 2, 64, 0, cols);
	memset(cols[3], 0xee, 64);
	assert_int_equal(parity_recover(3, 2, 64, cols, &lost, 1), 0);
	assert_memory_equal(cols[4], wanted[4], 64);
	for (int i = 0; i < 64; i++)
		assert_int_equal(((uint8_t *)cols[3])[i], 0xee);
}

/* Neither side of the buffers is touched, and parity needs nothing but its length. */
static void test_bounds(void **state)
{
	void *cols[MEMBERS_MAX];

	fill(3, 2, 128, 0, cols);
	memset(memory[3], 0x11, LEN_MAX);
	memset(memory[4], 0x11, LEN_MAX);
	parity_compute(3, 2, 128, cols);
	for (int i = 128; i < 4096; i++) {
		assert_int_equal(memory[3][i], 0x11);
		assert_int_equal(memory[4][i], 0x11);
	}
}

static void test_too_many(void **state)
{
	void *cols[MEMBERS_MAX];
	unsigned lost[3] = {0, 1, 2};

	fill(3, 2, 64, 0, cols);
	assert_int_equal(parity_recover(3, 2, 64, cols, lost, 3), -EINVAL);
	assert_int_equal(parity_recover(3, 1, 64, cols, lost, 2), -EINVAL);
	check_same(5, 64, cols);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_all_losses),
	    cmocka_unit_test(test_wide),
	    cmocka_unit_test(test_empty_columns),
	    cmocka_unit_test(test_lengths),
	    cmocka_unit_test(test_survivors_untouched),
	    cmocka_unit_test(test_bounds),
	    cmocka_unit_test(test_too_many),
	};
	int failed;

	for (unsigned i = 0; i < MEMBERS_MAX; i++) {
		memory[i] = aligned_alloc(64, LEN_MAX);
		wanted[i] = aligned_alloc(64, LEN_MAX);
		if (!memory[i] || !wanted[i])
			return 1;
	}
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	for (unsigned i = 0; i < MEMBERS_MAX; i++) {
		free(memory[i]);
		free(wanted[i]);
	}
	return failed ? 1 : 0;
}
