/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The arithmetic of all levels, exhausted over levels, column counts, tolerances and slice sizes:
 * everything has exactly one place, nothing overlaps, and what must stand on different members
 * does.
 */
#include "raid/geom.h"
#include "raid/format.h"
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct shape {
	unsigned level, columns, groups, tolerance;
};

static void for_each_shape(void (*fn)(const struct shape *s))
{
	static const unsigned levels[] = {0, 1, 5, 6, 10, 50, 60};

	for (size_t l = 0; l < ARRAY_SIZE(levels); l++) {
		for (unsigned columns = 1; columns <= MEMBERS_MAX;
		     columns += columns < 18 ? 1 : 7) {
			for (unsigned groups = 1; groups <= (levels[l] >= 50 ? 4u : 1u); groups++) {
				for (unsigned tolerance = 0; tolerance < 3; tolerance++) {
					struct shape s = {levels[l], columns, groups, tolerance};

					fn(&s);
				}
			}
		}
	}
}

static bool shape_fits(const struct shape *s)
{
	switch (s->level) {
	case 5:
		return s->columns >= 3;
	case 6:
		return s->columns >= 4;
	case 10:
		return s->columns % 2 == 0;
	case 50:
		return s->columns % s->groups == 0 && s->columns / s->groups >= 3;
	case 60:
		return s->columns % s->groups == 0 && s->columns / s->groups >= 4;
	}
	return true;
}

static void check_formula(const struct geom *g)
{
	unsigned live = g->groups * g->data;

	assert_int_equal(g->columns, g->groups * g->span);
	assert_int_equal(g->width, live);
	assert_int_equal(g->span, g->copies > 1 ? g->data * g->copies : g->data + g->parity);
	assert_int_equal(g->sums, g->parity ? g->columns : live);
	assert_int_equal(g->blocks, g->rows * g->width);
	assert_int_equal(g->rows % g->strip_blocks, 0);
	assert_int_equal(g->rows_per_bitmap_page % g->rows_per_sum_page, 0);
	assert_true(g->rows_per_sum_page * g->sums <= PAGE_SUMS);
	assert_true(g->rows_per_bitmap_page > 0);
	assert_true(g->rows_per_bitmap_page * g->width <= PAGE_LIVE_BITS);
	assert_true(g->rows_per_bitmap_page / g->rows_per_sum_page <= PAGE_INIT_BYTES * 8);
	assert_true((uint64_t)g->sum_pages * g->rows_per_sum_page >= g->rows);
	assert_true((uint64_t)g->bitmap_pages * g->rows_per_bitmap_page >= g->rows);
}

/* Every page copy and every (column, row) gets a byte in a map of the chunk; none is taken twice.
 */
static void check_places(const struct geom *g, uint64_t slice_blocks)
{
	uint8_t *taken = calloc(g->columns, slice_blocks);

	assert_non_null(taken);
	for (uint32_t page = 0; page < g->bitmap_pages + g->sum_pages; page++) {
		uint64_t seen = 0;

		for (unsigned copy = 0; copy < g->page_copies; copy++) {
			unsigned column;
			uint64_t block;

			geom_page_place(g, page, copy, &column, &block);
			assert_true(column < g->columns);
			assert_true(block + PAGE_PLACES <= g->area_blocks);
			assert_false(seen >> column & 1);
			seen |= 1ull << column;
			for (unsigned place = 0; place < PAGE_PLACES; place++) {
				assert_int_equal(taken[column * slice_blocks + block + place], 0);
				taken[column * slice_blocks + block + place] = 1;
			}
		}
	}
	for (uint64_t row = 0; row < g->rows; row++) {
		uint64_t block = geom_slice_block(g, row);

		assert_true(block < slice_blocks);
		for (unsigned slot = 0; slot < g->columns; slot++) {
			unsigned column = geom_column(g, row, slot);

			assert_true(column < g->columns);
			assert_int_equal(column / g->span, slot / g->span);
			assert_int_equal(geom_slot(g, row, column), slot);
			assert_int_equal(taken[column * slice_blocks + block], 0);
			taken[column * slice_blocks + block] = 1;
		}
	}
	free(taken);
}

/* Block numbers and (row, index) are the same set, and a run stays on one column. */
static void check_blocks(const struct geom *g)
{
	for (uint64_t block = 0; block < g->blocks; block++) {
		uint64_t row, next_row;
		unsigned index, next_index, slot;

		geom_locate(g, block, &row, &index);
		assert_true(row < g->rows);
		assert_true(index < g->width);
		assert_int_equal(geom_block(g, row, index), block);
		slot = geom_index_slot(g, index);
		assert_true(slot < g->columns);
		assert_false(geom_slot_is_parity(g, slot));
		assert_int_equal(geom_slot_sum(g, slot), geom_index_sum(g, index));
		assert_true(geom_index_sum(g, index) < g->sums);
		assert_true(geom_sum_page(g, row) >= g->bitmap_pages);
		assert_true(geom_sum_page(g, row) < g->bitmap_pages + g->sum_pages);
		assert_true(geom_bitmap_page(g, row) < g->bitmap_pages);
		assert_true(geom_run(g, block) >= 1);
		if (geom_run(g, block) > 1) {
			geom_locate(g, block + 1, &next_row, &next_index);
			assert_int_equal(next_row, row + 1);
			assert_int_equal(next_index, index);
			assert_int_equal(geom_column(g, next_row, slot), geom_column(g, row, slot));
		}
	}
}

/* Slots of a row that are not data are parity or further copies: all sums are used, parity ones
 * once. */
static void check_slots(const struct geom *g)
{
	unsigned per_sum[MEMBERS_MAX] = {0}, parities = 0;

	for (unsigned slot = 0; slot < g->columns; slot++) {
		assert_true(geom_slot_sum(g, slot) < g->sums);
		per_sum[geom_slot_sum(g, slot)]++;
		parities += geom_slot_is_parity(g, slot);
	}
	for (unsigned sum = 0; sum < g->sums; sum++)
		assert_int_equal(per_sum[sum], g->copies);
	assert_int_equal(parities, g->groups * g->parity);
}

static void check_shape(const struct shape *s)
{
	static const uint32_t strips[] = {1, 4, 16};
	static const uint64_t slices[] = {1024, 1777};

	for (size_t i = 0; i < ARRAY_SIZE(strips); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(slices); k++) {
			struct geom g, wider;
			int err = geom_init(&g, s->level, s->columns, s->groups, s->tolerance,
					    slices[k], strips[i]);

			if (!shape_fits(s)) {
				assert_int_equal(err, -EINVAL);
				continue;
			}
			assert_int_equal(err, 0);
			assert_int_equal(g.page_copies, MIN(s->tolerance + 1, s->columns));
			check_formula(&g);
			check_slots(&g);
			check_places(&g, slices[k]);
			check_blocks(&g);
			/* One more strip would not fit: nothing is wasted. */
			assert_int_equal(geom_init(&wider, s->level, s->columns, s->groups,
						   s->tolerance, g.area_blocks + g.rows, strips[i]),
					 0);
			assert_int_equal(wider.rows, g.rows);
			if (geom_init(&wider, s->level, s->columns, s->groups, s->tolerance,
				      slices[k] + strips[i] + 8, strips[i]) == 0)
				assert_true(wider.rows >= g.rows + strips[i] ||
					    wider.area_blocks > g.area_blocks);
		}
	}
}

static void test_all_shapes(void **state)
{
	for_each_shape(check_shape);
}

/* Any run of `columns` data strips of one group touches every column once: nobody idles in a
 * sequential read. */
static void test_sequential_is_spread(void **state)
{
	static const unsigned levels[] = {0, 5, 6};

	for (size_t l = 0; l < ARRAY_SIZE(levels); l++) {
		for (unsigned columns = MAX(levels[l] - 1, 4u); columns < 20; columns++) {
			struct geom g;

			assert_int_equal(geom_init(&g, levels[l], columns, 1, 1, 4096, 4), 0);
			for (uint64_t strip = 0; strip + columns < 200; strip++) {
				uint64_t seen = 0;

				for (unsigned i = 0; i < columns; i++) {
					uint64_t row;
					unsigned index;

					geom_locate(&g, (strip + i) * 4, &row, &index);
					seen |= 1ull
						<< geom_column(&g, row, geom_index_slot(&g, index));
				}
				assert_int_equal(seen, (1ull << columns) - 1);
			}
		}
	}
}

/* Parity takes every column equally often. */
static void test_parity_is_spread(void **state)
{
	for (unsigned level = 5; level <= 6; level++) {
		for (unsigned columns = level - 1; columns < 20; columns++) {
			unsigned count[MEMBERS_MAX] = {0};
			struct geom g;

			if (geom_init(&g, level, columns, 1, level - 4, 4096, 1) != 0)
				continue;
			for (uint64_t row = 0; row < columns * 2; row++) {
				for (unsigned slot = g.data; slot < columns; slot++)
					count[geom_column(&g, row, slot)]++;
			}
			for (unsigned i = 0; i < columns; i++)
				assert_int_equal(count[i], 2 * g.parity);
		}
	}
}

/* The layout on disk does not change: drawn in geom.c. */
static void test_pinned(void **state)
{
	struct geom g;

	assert_int_equal(geom_init(&g, 5, 4, 1, 1, 4096, 2), 0);
	assert_int_equal(geom_column(&g, 0, 0), 0);
	assert_int_equal(geom_column(&g, 1, 3), 3);
	assert_int_equal(geom_column(&g, 2, 0), 3);
	assert_int_equal(geom_column(&g, 2, 3), 2);
	assert_int_equal(geom_column(&g, 5, 3), 1);
	assert_int_equal(geom_block(&g, 5, 2), 17);
	assert_int_equal(geom_column(&g, 5, 2), 0);

	/* 256 MiB slices, 64 KiB strips: the sizes that a common volume has. */
	assert_int_equal(geom_init(&g, 6, 6, 1, 2, 65536, 16), 0);
	assert_int_equal(g.rows_per_sum_page, 84);
	assert_int_equal(g.rows_per_bitmap_page, 7980);
	assert_int_equal(g.sum_pages, DIV_ROUND_UP(g.rows, 84));
	assert_int_equal(g.rows % 16, 0);
	assert_true(g.rows > 65536 - 1200);
}

static void test_refused(void **state)
{
	struct geom g = {.rows = 77};

	assert_int_equal(geom_init(&g, 4, 4, 1, 1, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 5, 0, 1, 1, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 5, 65, 1, 1, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 5, 2, 1, 1, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 6, 3, 1, 2, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 10, 5, 1, 1, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 50, 6, 0, 1, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 50, 6, 4, 1, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 60, 6, 2, 2, 4096, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 5, 4, 1, 1, 17, 16),
			 -EINVAL); /* no room for pages and a strip */
	assert_int_equal(geom_init(&g, 5, 4, 1, 1, 0, 16), -EINVAL);
	assert_int_equal(geom_init(&g, 5, 4, 1, 1, 4096, 0), -EINVAL);
	assert_int_equal(geom_init(&g, 0, 64, 1, 0, UINT32_MAX, 16),
			 -EINVAL); /* more than 2^32 blocks */
	assert_int_equal(geom_init(&g, 5, 4, 1, 1, 1ull << 60, 16), -EINVAL);
	assert_int_equal(g.rows, 77); /* untouched on failure */
}

static void test_names(void **state)
{
	static const unsigned levels[] = {0, 1, 5, 6, 10, 50, 60};
	unsigned level;
	char text[16];

	for (size_t i = 0; i < ARRAY_SIZE(levels); i++) {
		(void)snprintf(text, sizeof(text), "%u", levels[i]);
		assert_int_equal(geom_level_parse(text, &level), 0);
		assert_int_equal(level, levels[i]);
		(void)snprintf(text, sizeof(text), "RAID%u", levels[i]);
		assert_int_equal(geom_level_parse(text, &level), 0);
		assert_int_equal(level, levels[i]);
		assert_int_equal(geom_level_parse(geom_level_text(levels[i]), &level), 0);
		assert_int_equal(level, levels[i]);
	}
	assert_int_equal(geom_level_parse("", &level), -EINVAL);
	assert_int_equal(geom_level_parse("raid", &level), -EINVAL);
	assert_int_equal(geom_level_parse("4", &level), -EINVAL);
	assert_int_equal(geom_level_parse("5 ", &level), -EINVAL);
	assert_int_equal(geom_level_parse("55", &level), -EINVAL);

	assert_int_equal(geom_tolerance(0, 4), 0);
	assert_int_equal(geom_tolerance(1, 4), 3);
	assert_int_equal(geom_tolerance(5, 4), 1);
	assert_int_equal(geom_tolerance(6, 4), 2);
	assert_int_equal(geom_tolerance(10, 4), 1);
	assert_int_equal(geom_tolerance(50, 6), 1);
	assert_int_equal(geom_tolerance(60, 8), 2);
	assert_int_equal(geom_columns_min(6), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_all_shapes),	     cmocka_unit_test(test_sequential_is_spread),
	    cmocka_unit_test(test_parity_is_spread), cmocka_unit_test(test_pinned),
	    cmocka_unit_test(test_refused),	     cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
