/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * XXH3 by the widest vectors that the processor has. xxhash.h alone means functions that the library was built with for the
 * oldest processor of its architecture; where it has others, xxh_x86dispatch.h puts those in their place, which are
 * three to five times as fast on blocks in cache. The values are the same.
 */
#ifndef RAID_XXH3_H
#define RAID_XXH3_H

#ifdef HAVE_XXH3_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#endif
