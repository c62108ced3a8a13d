/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pure arithmetic of all levels. One formula: `groups` groups, each of `data` data columns and `parity`
 * parity columns, or of 1 data column in `copies` copies.
 *
 *   level      groups   data   parity  copies
 *   0          1        N      0       1
 *   1          1        1      0       N
 *   5 / 6      1        N-P    1 / 2   1
 *   10         N/2      1      0       2
 *   50 / 60    G        N/G-P  1 / 2   1
 *   metadata   1        1      0       tolerance + 1
 *
 * Within a chunk, data blocks are numbered strip by strip across the stripe (SNIA: a strip is what one
 * column holds of a stripe). A *row* is one block high. `slot` numbers the blocks of a row as they are
 * stored: group g, place i -> g * span + i, where span is data + parity or copies; data before parity.
 * `sum` numbers the checksums of a row: like slots, but one for all copies of a mirrored block.
 * Slots rotate over the columns of their group by stripe.
 */
#ifndef RAID_GEOM_H
#define RAID_GEOM_H

#include "base.h"

struct geom {
	unsigned level;
	unsigned columns, groups, data, parity, copies;
	unsigned span;      /* columns of a group */
	unsigned width;     /* data blocks of a row, all groups */
	unsigned sums;      /* checksums of a row */
	unsigned tolerance; /* members that may be lost whatever they are */
	unsigned page_copies; /* tolerance + 1 as the volume has it, at most columns */
	uint32_t strip_blocks;
	uint64_t rows;      /* whole strips */
	uint64_t blocks;    /* data blocks: rows * width */
	/* chunk pages, see format.h */
	uint32_t rows_per_sum_page, rows_per_bitmap_page; /* the second a multiple of the first */
	uint32_t bitmap_pages, sum_pages;
	uint64_t area_blocks; /* page area at the head of each slice; a multiple of strip_blocks is not needed */
};

/*
 * tolerance is the volume's (page_copies comes from it). columns must suit the level: 0: >= 1, 1: >= 1,
 * 5: >= 3, 6: >= 4, 10: even >= 2 (groups = columns / 2), 50 / 60: divisible by groups, each >= 3 / 4.
 * `groups` is used by 50 and 60 only. -EINVAL when it does not fit, also when a slice is too small.
 */
int geom_init(struct geom *g, unsigned level, unsigned columns, unsigned groups, unsigned tolerance,
	      uint64_t slice_blocks, uint32_t strip_blocks);

/* Level names as people write them: "0" "1" "5" "6" "10" "50" "60", "raid5" ... -EINVAL. */
int geom_level_parse(const char *text, unsigned *ret_level);
const char *geom_level_text(unsigned level);
/* Members that may be lost at level with that many columns. */
unsigned geom_tolerance(unsigned level, unsigned columns);
unsigned geom_columns_min(unsigned level);

/* Data block number within the chunk <-> row and data index (0 .. width-1). */
void geom_locate(const struct geom *g, uint64_t block, uint64_t *ret_row, unsigned *ret_index);
uint64_t geom_block(const struct geom *g, uint64_t row, unsigned index);
/* How many blocks from `block` on lie one after the other in the same strip (row by row on one column). */
uint32_t geom_run(const struct geom *g, uint64_t block);

static inline bool geom_mirrored(const struct geom *g)
{
	return g->parity == 0;
}
/* Data index -> its slot (the first copy), and its checksum number. */
static inline unsigned geom_index_slot(const struct geom *g, unsigned index)
{
	return index / g->data * g->span + index % g->data;
}
static inline unsigned geom_index_sum(const struct geom *g, unsigned index)
{
	return g->parity ? geom_index_slot(g, index) : index;
}
/* Checksum number of a slot. For level 0 and mirrors: one for all copies. */
static inline unsigned geom_slot_sum(const struct geom *g, unsigned slot)
{
	if (g->parity)
		return slot;
	return g->copies > 1 ? slot / g->span : slot;
}
static inline bool geom_slot_is_parity(const struct geom *g, unsigned slot)
{
	return slot % g->span >= g->data && g->parity;
}
/* Column that holds a slot of a row, and back. */
unsigned geom_column(const struct geom *g, uint64_t row, unsigned slot);
unsigned geom_slot(const struct geom *g, uint64_t row, unsigned column);
/* Block within the slice where a row lies. */
static inline uint64_t geom_slice_block(const struct geom *g, uint64_t row)
{
	return g->area_blocks + row;
}

/* Chunk pages. A page number counts bitmap pages first. */
static inline uint32_t geom_sum_page(const struct geom *g, uint64_t row)
{
	return g->bitmap_pages + (uint32_t)(row / g->rows_per_sum_page);
}
static inline uint32_t geom_bitmap_page(const struct geom *g, uint64_t row)
{
	return (uint32_t)(row / g->rows_per_bitmap_page);
}
/* Column and first of the PAGE_PLACES blocks within the slice of copy j of a page. */
void geom_page_place(const struct geom *g, uint32_t page, unsigned copy, unsigned *ret_column,
		     uint64_t *ret_block);

#endif
