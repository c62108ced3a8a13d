/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A heap of things that each have a key: the smallest is at hand. The entries lie in the things themselves, so
 * that nothing here can fail. Pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986): putting in takes
 * constant time, taking out logarithmic time on average.
 */
#ifndef RAID_HEAP_H
#define RAID_HEAP_H

#include "base.h"

struct heap_entry {
	struct heap_entry *child, *next; /* first child; next sibling */
	struct heap_entry *prev;         /* sibling before it, or the parent of a first child */
	uint64_t key, tie; /* tie decides between equal keys */
	bool in;
};
struct heap {
	struct heap_entry *first; /* smallest key; NULL: empty */
};

/* Not in a heap. */
void heap_put(struct heap *h, struct heap_entry *e, uint64_t key, uint64_t tie);
/* Nothing if it is in none. */
void heap_take(struct heap *h, struct heap_entry *e);

#endif
