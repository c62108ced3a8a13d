/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Arithmetic of all levels: which column holds which block of a chunk, and where its pages stand.
 *
 * A chunk of RAID 5 on four columns with strips of two blocks (P parity, numbers are data blocks):
 *
 *   row   column 0   1     2     3
 *         | pages at the head of each column                |
 *   0     0          2     4     P      stripe 0
 *   1     1          3     5     P
 *   2     8          10    P     6      stripe 1
 *   3     9          11    P     7
 *   4     16         P     12    14     stripe 2
 *   5     17         P     13    15
 *
 * Rotation. A stripe begins where the one before it ended, counting data strips only (for parity
 * this is the left-symmetric layout of the Linux md driver, generalised to P and Q): stripe s is
 * turned by s * parity columns to the left. So any run of `columns` data strips touches every
 * column once, parity is spread evenly over any span / gcd(span, parity) stripes, and sequential
 * reads keep all members busy. Turning to the right by one would put the strips that follow one
 * another on 0 1 2, 1 2 3, ... and leave a member idle in each round. Striping without redundancy
 * is spread already and is not turned. Mirrors are turned by one a stripe, so that a reader that
 * prefers the first copy uses all of them.
 *
 * The page area and the rows share the slice, and the number of pages follows from the rows: the
 * largest number of whole strips that fits is found by halving, since both only grow with the rows.
 */
#include "geom.h"
#include "format.h"
#include <strings.h>

struct level {
	unsigned level;
	unsigned columns_min; /* of a volume: a mirror of one is for chunks only */
	const char *text;
};

static const struct level levels[] = {
    {0, 1, "raid0"},   {1, 2, "raid1"},	  {5, 3, "raid5"},   {6, 4, "raid6"},
    {10, 2, "raid10"}, {50, 6, "raid50"}, {60, 8, "raid60"},
};

static const struct level *find_level(unsigned level)
{
	for (size_t i = 0; i < ARRAY_SIZE(levels); i++) {
		if (levels[i].level == level)
			return &levels[i];
	}
	return NULL;
}

int geom_level_parse(const char *text, unsigned *ret_level)
{
	for (size_t i = 0; i < ARRAY_SIZE(levels); i++) {
		const char *name = levels[i].text;

		if (strcasecmp(text, name) == 0 || strcmp(text, name + strlen("raid")) == 0) {
			*ret_level = levels[i].level;
			return 0;
		}
	}
	return -EINVAL;
}

const char *geom_level_text(unsigned level)
{
	const struct level *l = find_level(level);

	return l ? l->text : "raid?";
}

unsigned geom_tolerance(unsigned level, unsigned columns)
{
	switch (level) {
	case 1:
		return columns ? columns - 1 : 0;
	case 5:
	case 10:
	case 50:
		return 1;
	case 6:
	case 60:
		return 2;
	default:
		return 0;
	}
}

unsigned geom_columns_min(unsigned level)
{
	const struct level *l = find_level(level);

	return l ? l->columns_min : UINT32_MAX;
}

/* Groups, data, parity and copies: the table in geom.h. */
static int init_level(struct geom *g, unsigned level, unsigned columns, unsigned groups)
{
	g->groups = 1;
	g->copies = 1;
	switch (level) {
	case 0:
		g->data = columns;
		break;
	case 1:
		g->data = 1;
		g->copies = columns;
		break;
	case 10:
		if (columns % 2)
			return -EINVAL;
		g->groups = columns / 2;
		g->data = 1;
		g->copies = 2;
		break;
	case 5:
	case 6:
	case 50:
	case 60:
		if (level >= 50)
			g->groups = groups;
		if (g->groups == 0 || columns % g->groups)
			return -EINVAL;
		g->parity = level == 5 || level == 50 ? 1 : 2;
		if (columns / g->groups < g->parity + 2)
			return -EINVAL;
		g->data = columns / g->groups - g->parity;
		break;
	default:
		return -EINVAL;
	}
	g->span = g->copies > 1 ? g->copies : g->data + g->parity;
	g->width = g->groups * g->data;
	g->sums = g->parity ? g->columns : g->width;
	return 0;
}

static void set_rows(struct geom *g, uint64_t rows)
{
	uint64_t pages, triples;

	g->rows = rows;
	g->blocks = rows * g->width;
	g->sum_pages = (uint32_t)DIV_ROUND_UP(rows, g->rows_per_sum_page);
	g->bitmap_pages = (uint32_t)DIV_ROUND_UP(rows, g->rows_per_bitmap_page);
	pages = (uint64_t)g->sum_pages + g->bitmap_pages;
	triples = DIV_ROUND_UP(pages * g->page_copies, g->columns);
	g->area_blocks = triples * PAGE_PLACES;
}

int geom_init(struct geom *ret, unsigned level, unsigned columns, unsigned groups,
	      unsigned tolerance, uint64_t slice_blocks, uint32_t strip_blocks)
{
	struct geom g = {.level = level, .columns = columns, .strip_blocks = strip_blocks};
	uint64_t low = 0, high;
	uint32_t by_bits, by_init;
	int err;

	if (columns == 0 || columns > MEMBERS_MAX || strip_blocks == 0 || slice_blocks > UINT32_MAX)
		return -EINVAL;
	err = init_level(&g, level, columns, groups);
	if (err)
		return err;
	g.tolerance = geom_tolerance(level, columns);
	g.page_copies = MIN(tolerance, columns - 1) + 1;
	g.rows_per_sum_page = PAGE_SUMS / g.sums;
	by_bits = PAGE_LIVE_BITS / g.width;
	by_init = PAGE_INIT_BYTES * 8 * g.rows_per_sum_page;
	g.rows_per_bitmap_page = ROUND_DOWN(MIN(by_bits, by_init), g.rows_per_sum_page);

	high = slice_blocks / strip_blocks;
	while (low < high) {
		uint64_t strips = high - (high - low) / 2;

		set_rows(&g, strips * strip_blocks);
		if (g.area_blocks + g.rows <= slice_blocks)
			low = strips;
		else
			high = strips - 1;
	}
	set_rows(&g, low * strip_blocks);
	/* A block within a chunk is 32 bits of a logical address. */
	if (low == 0 || g.blocks > UINT32_MAX)
		return -EINVAL;
	*ret = g;
	return 0;
}

void geom_locate(const struct geom *g, uint64_t block, uint64_t *ret_row, unsigned *ret_index)
{
	uint64_t strip = block / g->strip_blocks;

	*ret_row = strip / g->width * g->strip_blocks + block % g->strip_blocks;
	*ret_index = (unsigned)(strip % g->width);
}

uint64_t geom_block(const struct geom *g, uint64_t row, unsigned index)
{
	uint64_t strip = row / g->strip_blocks * g->width + index;

	return strip * g->strip_blocks + row % g->strip_blocks;
}

uint32_t geom_run(const struct geom *g, uint64_t block)
{
	return g->strip_blocks - (uint32_t)(block % g->strip_blocks);
}

/* How far the slots of a row's stripe are turned to the left within their group: below span. */
static unsigned turn(const struct geom *g, uint64_t row)
{
	unsigned step = g->copies > 1 ? 1 : g->parity;

	return (unsigned)(row / g->strip_blocks * step % g->span);
}

unsigned geom_column(const struct geom *g, uint64_t row, unsigned slot)
{
	unsigned place = slot % g->span;

	return slot - place + (place + g->span - turn(g, row)) % g->span;
}

unsigned geom_slot(const struct geom *g, uint64_t row, unsigned column)
{
	unsigned place = column % g->span;

	return column - place + (place + turn(g, row)) % g->span;
}

void geom_page_place(const struct geom *g, uint32_t page, unsigned copy, unsigned *ret_column,
		     uint64_t *ret_block)
{
	uint64_t n = (uint64_t)page * g->page_copies + copy;

	*ret_column = (unsigned)(n % g->columns);
	*ret_block = n / g->columns * PAGE_PLACES;
}
