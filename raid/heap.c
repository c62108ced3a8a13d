/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The heap is a tree in which no child is smaller than its parent; children hang in a list. Two trees become one
 * when the larger root becomes the first child of the smaller. An entry is taken out by melding its children, in
 * pairs from left to right and then those from right to left, which is what makes the average logarithmic.
 */
#include "heap.h"

static bool before(const struct heap_entry *a, const struct heap_entry *b)
{
	return a->key != b->key ? a->key < b->key : a->tie < b->tie;
}

static struct heap_entry *meld(struct heap_entry *a, struct heap_entry *b)
{
	if (!a || !b)
		return a ? a : b;
	if (before(b, a)) {
		struct heap_entry *t = a;
		a = b;
		b = t;
	}
	b->next = a->child;
	b->prev = a;
	if (a->child)
		a->child->prev = b;
	a->child = b;
	return a;
}

/* One tree of a list of siblings. */
static struct heap_entry *meld_all(struct heap_entry *e)
{
	struct heap_entry *pairs = NULL, *root = NULL, *next;
	for (; e; e = next) {
		struct heap_entry *b = e->next;
		next = b ? b->next : NULL;
		e->next = e->prev = NULL;
		if (b)
			b->next = b->prev = NULL;
		e = meld(e, b);
		e->next = pairs;
		pairs = e;
	}
	for (; pairs; pairs = next) {
		next = pairs->next;
		pairs->next = NULL;
		root = meld(root, pairs);
	}
	return root;
}

void heap_put(struct heap *h, struct heap_entry *e, uint64_t key, uint64_t tie)
{
	assert(!e->in);
	*e = (struct heap_entry){.key = key, .tie = tie, .in = true};
	h->first = meld(h->first, e);
}

void heap_take(struct heap *h, struct heap_entry *e)
{
	if (!e->in)
		return;
	struct heap_entry *rest = meld_all(e->child);
	if (e == h->first) {
		h->first = rest;
	} else {
		if (e->prev->child == e)
			e->prev->child = e->next;
		else
			e->prev->next = e->next;
		if (e->next)
			e->next->prev = e->prev;
		h->first = meld(h->first, rest);
	}
	e->in = false;
}
