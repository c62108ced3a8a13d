/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * P and Q, and what can be got back from them. With g = 2 in GF(2^8), polynomial 0x11d:
 *
 *   P = d0 + d1 + d2 + ...           Q = d0 + g d1 + g^2 d2 + ...
 *
 * Recovery goes in two steps: first the lost data columns, each one a sum of surviving columns with
 * coefficients; then lost parity, from data that is now whole.
 *
 *   one data column x, P is there     d_x = P + sum of the others
 *   one data column x, P is lost too  d_x = g^-x (Q + sum g^i d_i)
 *   two data columns x < y            d_x = A (P + sum d_i) + B (Q + sum g^i d_i), d_y = P + sum
 * d_i + d_x A = g^(y-x) / (g^(y-x) + 1), B = g^-x / (g^(y-x) + 1)
 *
 * after H. P. Anvin, "The mathematics of RAID-6". The closed form was taken over inverting a
 * matrix: it costs no more than the coefficients themselves, and a row of blocks is short enough
 * for that to be felt. The bulk work is isa-l's xor_gen, pq_gen and ec_encode_data. A column that
 * is there is never written, not even with the value it ought to have: it may be somebody's only
 * copy.
 *
 * No state: several threads may be in here at once.
 */
#include "parity.h"
#include "format.h"
#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

#define GENERATOR		    2
#define TABLE_BYTES_PER_COEFFICIENT 32 /* of ec_init_tables */
#define PIECE_BYTES		    16384u /* work in pieces of this, so that the buffer of zeros can be small */

/* Stands in for a column that was never written. isa-l wants it writable by type and only reads it.
 */
static uint8_t zeros[PIECE_BYTES] __attribute__((aligned(64)));

static uint8_t gf_pow(unsigned n)
{
	uint8_t x = 1;

	for (n %= 255; n; n--)
		x = gf_mul(x, GENERATOR);
	return x;
}

/* A sum being put together: columns that count, each with its coefficient. */
struct sum {
	unsigned count;
	void *cols[MEMBERS_MAX];
	uint8_t coefficients[MEMBERS_MAX];
};

static void sum_add(struct sum *s, void *col, uint8_t coefficient)
{
	if (!col)
		return;
	s->cols[s->count] = col;
	s->coefficients[s->count++] = coefficient;
}

static void sum_weighted(struct sum *s, size_t len, void *out)
{
	uint8_t tables[MEMBERS_MAX * TABLE_BYTES_PER_COEFFICIENT];
	uint8_t *outs[1] = {out};

	if (s->count == 0) {
		memset(out, 0, len);
		return;
	}
	ec_init_tables((int)s->count, 1, s->coefficients, tables);
	ec_encode_data((int)len, (int)s->count, 1, tables, (uint8_t **)s->cols, outs);
}

/* All coefficients are 1. */
static void sum_plain(struct sum *s, size_t len, void *out)
{
	void *vects[MEMBERS_MAX + 1];

	if (s->count == 0) {
		memset(out, 0, len);
	} else if (s->count == 1) {
		memcpy(out, s->cols[0], len);
	} else {
		memcpy(vects, s->cols, s->count * sizeof(vects[0]));
		vects[s->count] = out;
		xor_gen((int)s->count + 1, (int)len, vects);
	}
}

static void compute_p(unsigned data, size_t len, void **cols, void *out)
{
	struct sum s = {0};

	for (unsigned i = 0; i < data; i++)
		sum_add(&s, cols[i], 1);
	sum_plain(&s, len, out);
}

static void compute_q(unsigned data, size_t len, void **cols, void *out)
{
	struct sum s = {0};
	uint8_t power = 1;

	for (unsigned i = 0; i < data; i++) {
		sum_add(&s, cols[i], power);
		power = gf_mul(power, GENERATOR);
	}
	sum_weighted(&s, len, out);
}

static void compute_pq(unsigned data, size_t len, void **cols)
{
	void *vects[MEMBERS_MAX];

	if (data == 1) { /* pq_gen wants two */
		compute_p(data, len, cols, cols[1]);
		compute_p(data, len, cols, cols[2]);
		return;
	}
	for (size_t off = 0; off < len; off += PIECE_BYTES) {
		size_t n = MIN(len - off, PIECE_BYTES);

		for (unsigned i = 0; i < data + 2; i++)
			vects[i] = cols[i] ? (uint8_t *)cols[i] + off : zeros;
		pq_gen((int)data + 2, (int)n, vects);
	}
}

static void check_arguments(unsigned data, unsigned parity, size_t len)
{
	assert(data >= 1 && parity >= 1 && parity <= 2 && data + parity <= MEMBERS_MAX);
	assert(len % 64 == 0 && len <= INT32_MAX);
}

void parity_compute(unsigned data, unsigned parity, size_t len, void **cols)
{
	check_arguments(data, parity, len);
	for (unsigned i = data; i < data + parity; i++)
		assert(cols[i]);
	if (len == 0)
		return;
	if (parity == 1)
		compute_p(data, len, cols, cols[data]);
	else
		compute_pq(data, len, cols);
}

static void recover_one_by_p(unsigned data, size_t len, void **cols, unsigned x)
{
	struct sum s = {0};

	for (unsigned i = 0; i <= data; i++) {
		if (i != x)
			sum_add(&s, cols[i], 1);
	}
	sum_plain(&s, len, cols[x]);
}

static void recover_one_by_q(unsigned data, size_t len, void **cols, unsigned x)
{
	struct sum s = {0};
	uint8_t power = gf_pow(255 - x % 255); /* g^(i - x) */

	sum_add(&s, cols[data + 1], power);
	for (unsigned i = 0; i < data; i++) {
		if (i != x)
			sum_add(&s, cols[i], power);
		power = gf_mul(power, GENERATOR);
	}
	sum_weighted(&s, len, cols[x]);
}

static void recover_two(unsigned data, size_t len, void **cols, unsigned x, unsigned y)
{
	struct sum s = {0};
	uint8_t ratio = gf_pow(y - x);
	uint8_t below = gf_inv(ratio ^ 1);
	uint8_t a = gf_mul(ratio, below);
	uint8_t b = gf_mul(gf_pow(255 - x % 255), below);
	uint8_t b_power = b; /* b g^i */

	sum_add(&s, cols[data], a);
	sum_add(&s, cols[data + 1], b);
	for (unsigned i = 0; i < data; i++) {
		if (i != x && i != y)
			sum_add(&s, cols[i], a ^ b_power);
		b_power = gf_mul(b_power, GENERATOR);
	}
	sum_weighted(&s, len, cols[x]);
	recover_one_by_p(data, len, cols, y);
}

int parity_recover(unsigned data, unsigned parity, size_t len, void **cols, const unsigned *lost,
		   unsigned lost_count)
{
	unsigned lost_data = 0;
	bool lost_p = false, lost_q = false;

	check_arguments(data, parity, len);
	if (lost_count > parity)
		return -EINVAL;
	for (unsigned i = 0; i < lost_count; i++) {
		assert(lost[i] < data + parity && cols[lost[i]]);
		assert(i == 0 || lost[i] > lost[i - 1]);
		if (lost[i] < data)
			lost_data++;
		else if (lost[i] == data)
			lost_p = true;
		else
			lost_q = true;
	}
	if (len == 0)
		return 0;
	if (lost_data == 2)
		recover_two(data, len, cols, lost[0], lost[1]);
	else if (lost_data == 1 && !lost_p)
		recover_one_by_p(data, len, cols, lost[0]);
	else if (lost_data == 1)
		recover_one_by_q(data, len, cols, lost[0]);
	if (lost_p && lost_q)
		compute_pq(data, len, cols);
	else if (lost_p)
		compute_p(data, len, cols, cols[data]);
	else if (lost_q)
		compute_q(data, len, cols, cols[data + 1]);
	return 0;
}
