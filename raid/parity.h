/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * P and Q over whole buffers, and the recovery of any two lost columns of a group, through isa-l.
 * P = sum d_i, Q = sum 2^i d_i in GF(2^8) with polynomial 0x11d (H. P. Anvin, "The mathematics of RAID-6").
 * Buffers are 64-byte aligned, lengths a multiple of 64. Never yields.
 */
#ifndef RAID_PARITY_H
#define RAID_PARITY_H

#include "base.h"

/* cols[0 .. data-1] in, cols[data .. data+parity-1] out. parity is 1 or 2, data >= 1. NULL data columns count as zeros. */
void parity_compute(unsigned data, unsigned parity, size_t len, void **cols);
/*
 * Fills the lost columns (indices into cols, ascending, data or parity, lost_count <= parity) from the others.
 * NULL columns that are not lost count as zeros. Lost columns must have memory. -EINVAL if too many.
 */
int parity_recover(unsigned data, unsigned parity, size_t len, void **cols, const unsigned *lost,
		   unsigned lost_count);

#endif
