/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The content of a simulated member.
 *
 * Two levels of pointers to blocks with reference counts, so that a member costs what was written
 * to it, and a clone costs pointers. Each block address has two contents: `medium`, which is
 * durable, and `cache`, which is what a reader sees when it differs. In between stands the pending
 * list: one entry for each block of each write that is complete but not durable, in order of
 * completion.
 *
 *     completion of a write   append entries, point cache at them
 *     flush                   entries older than its submission, in order: medium = entry
 *     crash                   entries in order, sector by sector: medium = entry's sector, or not,
 *                             or garbage; then the cache is empty
 *
 * Since entries are applied in order and each may be passed over, any version of a sector between
 * the durable one and the newest can be the one that survives, which is all that a drive with a
 * cache promises.
 *
 * All I/O is in whole blocks, so entries are whole blocks whatever the sector size; sectors matter
 * in the lottery only.
 *
 * Blocks come from slabs that are kept for the life of the process: with malloc, half the time of a
 * run went into cutting up the heap and into page faults.
 */
#include "store.h"
#include <stdlib.h>
#include <xxhash.h>

#define LEAF_BLOCKS 512
#define SLAB_BLOCKS 256

struct store_leaf {
	struct simblock *medium[LEAF_BLOCKS]; /* NULL: zeros */
	struct simblock *cache[LEAF_BLOCKS];  /* NULL: as the medium */
	uint8_t mark[LEAF_BLOCKS];
};

struct store_pending {
	uint64_t seq; /* of the write's completion */
	uint64_t block;
	struct simblock *b;
};

/* ---- blocks ---- */

void *must(void *p)
{
	if (!p) {
		fprintf(stderr, "simulated member: out of memory\n");
		abort();
	}
	return p;
}

#ifdef __SANITIZE_ADDRESS__
/* One by one, for the sanitizer to see each. */
static struct simblock *slab_get(void)
{
	return must(malloc(sizeof(struct simblock)));
}

static void slab_put(struct simblock *b)
{
	free(b);
}
#else
union slot {
	struct simblock block;
	union slot *next;
};
static union slot *slab_free;

static struct simblock *slab_get(void)
{
	union slot *s = slab_free;

	if (!s) {
		union slot *slab = must(malloc(SLAB_BLOCKS * sizeof(*slab)));

		for (unsigned i = SLAB_BLOCKS; i-- > 0;) {
			slab[i].next = s;
			s = &slab[i];
		}
	}
	slab_free = s->next;
	return &s->block;
}

static void slab_put(struct simblock *b)
{
	union slot *s = (union slot *)b;

	s->next = slab_free;
	slab_free = s;
}
#endif

struct simblock *block_new(const void *data)
{
	struct simblock *b = slab_get();

	b->refs = 1;
	b->hash = 0;
	if (data)
		memcpy(b->data, data, BLOCK_BYTES);
	else
		memset(b->data, 0, BLOCK_BYTES);
	return b;
}

/* Most of a fresh member. */
static struct simblock zero_block = {.refs = 1};

static bool is_zeros(const uint8_t *data)
{
	return !data[0] && !memcmp(data, data + 1, BLOCK_BYTES - 1);
}

struct simblock *block_share(const void *data)
{
	return is_zeros(data) ? block_ref(&zero_block) : block_new(data);
}

struct simblock *block_ref(struct simblock *b)
{
	if (b)
		b->refs++;
	return b;
}

void block_unref(struct simblock *b)
{
	if (b && !--b->refs)
		slab_put(b);
}

/* ---- the two contents ---- */

static struct store_leaf *leaf_get(struct store *s, uint64_t block)
{
	struct store_leaf **p = &s->leafs[block / LEAF_BLOCKS];

	if (!*p)
		*p = must(calloc(1, sizeof(**p)));
	return *p;
}

struct simblock *store_visible(const struct store *s, uint64_t block)
{
	struct store_leaf *leaf = s->leafs[block / LEAF_BLOCKS];

	if (!leaf)
		return NULL;
	return leaf->cache[block % LEAF_BLOCKS] ? leaf->cache[block % LEAF_BLOCKS]
						: leaf->medium[block % LEAF_BLOCKS];
}

/* Takes over the reference. */
static void medium_set(struct store *s, uint64_t block, struct simblock *b)
{
	struct simblock **p = &leaf_get(s, block)->medium[block % LEAF_BLOCKS];

	block_unref(*p);
	*p = b;
}

static void cache_set(struct store *s, uint64_t block, struct simblock *b)
{
	struct simblock **p = &leaf_get(s, block)->cache[block % LEAF_BLOCKS];

	block_unref(*p);
	*p = b;
}

uint64_t store_hash(const struct store *s)
{
	uint64_t sum = s->blocks;

	for (uint64_t i = 0; i < s->blocks; i++) {
		struct simblock *b = store_visible(s, i);

		if (!s->leafs[i / LEAF_BLOCKS])
			i = ROUND_DOWN(i, LEAF_BLOCKS) + LEAF_BLOCKS - 1;
		if (!b || b == &zero_block)
			continue; /* written with zeros is as never written */
		if (!b->hash)
			b->hash = is_zeros(b->data) ? 1 : XXH3_64bits(b->data, BLOCK_BYTES) | 2;
		if (b->hash != 1)
			sum += XXH3_64bits_withSeed(&b->hash, sizeof(b->hash), i);
	}
	return sum;
}

void store_mark(struct store *s, uint64_t block, uint8_t tag)
{
	leaf_get(s, block)->mark[block % LEAF_BLOCKS] = tag;
}

uint8_t store_marked(const struct store *s, uint64_t block)
{
	struct store_leaf *leaf = s->leafs[block / LEAF_BLOCKS];

	return leaf ? leaf->mark[block % LEAF_BLOCKS] : 0;
}

/* ---- the pending list ---- */

/* No version of the block comes back any more. */
static void pending_forget(struct store *s, uint64_t block)
{
	struct store_leaf *leaf = leaf_get(s, block);
	size_t to = s->pending_head;

	if (!leaf->cache[block % LEAF_BLOCKS])
		return;
	for (size_t i = s->pending_head; i < s->pending_count; i++) {
		if (s->pending[i].block == block)
			block_unref(s->pending[i].b);
		else
			s->pending[to++] = s->pending[i];
	}
	s->pending_count = to;
	cache_set(s, block, NULL);
}

void store_write(struct store *s, uint64_t block, struct simblock *b, uint64_t seq, bool durable)
{
	store_mark(s, block, 0);
	if (durable) {
		pending_forget(s, block);
		medium_set(s, block, b);
		return;
	}
	if (s->pending_count == s->pending_cap && s->pending_head > s->pending_cap / 2) {
		memmove(s->pending, s->pending + s->pending_head,
			(s->pending_count - s->pending_head) * sizeof(*s->pending));
		s->pending_count -= s->pending_head;
		s->pending_head = 0;
	}
	if (s->pending_count == s->pending_cap) {
		s->pending_cap = MAX(256, 2 * s->pending_cap);
		s->pending = must(realloc(s->pending, s->pending_cap * sizeof(*s->pending)));
	}
	s->pending[s->pending_count++] =
	    (struct store_pending){.seq = seq, .block = block, .b = b};
	cache_set(s, block, block_ref(b));
}

void store_flush(struct store *s, uint64_t seq)
{
	while (s->pending_head < s->pending_count && s->pending[s->pending_head].seq <= seq) {
		struct store_pending *p = &s->pending[s->pending_head++];
		struct store_leaf *leaf = leaf_get(s, p->block);

		if (leaf->cache[p->block % LEAF_BLOCKS] == p->b)
			cache_set(s, p->block, NULL);
		medium_set(s, p->block, p->b);
	}
	if (s->pending_head == s->pending_count)
		s->pending_head = s->pending_count = 0;
}

static enum simfate fate_draw(struct rng *r, unsigned keep, unsigned garble)
{
	uint64_t x = rng_below(r, 100);

	if (x < garble)
		return SIMFATE_GARBLE;
	return rng_below(r, 100) < keep ? SIMFATE_KEEP : SIMFATE_DROP;
}

static void sector_set(struct store *s, struct simblock *b, const struct simblock *new, uint32_t at,
		       enum simfate fate)
{
	switch (fate) {
	case SIMFATE_DROP:
		break;
	case SIMFATE_KEEP:
		memcpy(b->data + at, new->data + at, s->sector_bytes);
		break;
	case SIMFATE_GARBLE:
		if (rng_chance(s->rng, 1, 2))
			rng_fill(s->rng, b->data + at, s->sector_bytes);
		else /* cut off in the middle */
			memcpy(b->data + at, new->data + at, s->sector_bytes / 2);
		break;
	}
}

struct simblock *store_mix(struct store *s, const struct simblock *old, const struct simblock *new,
			   unsigned keep, unsigned garble)
{
	struct simblock *b = block_new(old ? old->data : NULL);

	for (uint32_t at = 0; at < BLOCK_BYTES; at += s->sector_bytes)
		sector_set(s, b, new, at, fate_draw(s->rng, keep, garble));
	return b;
}

/* The decider's word on a block. A new reference. */
static struct simblock *block_decided(struct store *s, struct simblock *old,
				      const struct store_pending *p)
{
	struct simblock *b = block_new(old ? old->data : NULL);

	for (uint32_t at = 0; at < BLOCK_BYTES; at += s->sector_bytes)
		sector_set(s, b, p->b, at,
			   s->fate(s->fate_arg, p->seq, p->block, at / s->sector_bytes));
	return b;
}

void store_lottery(struct store *s)
{
	unsigned keep = s->crash_keep, garble = s->crash_garble;

	/* Whole caches that survive or die are likely too, and other bugs show there. */
	switch (rng_below(s->rng, 6)) {
	case 0:
		keep = 0;
		garble = 0;
		break;
	case 1:
		keep = 100;
		garble = 0;
		break;
	case 2:
		keep = (unsigned)rng_below(s->rng, 101);
		break;
	}
	for (size_t i = s->pending_head; i < s->pending_count; i++) {
		struct store_pending *p = &s->pending[i];
		struct store_leaf *leaf = leaf_get(s, p->block);
		struct simblock *old = leaf->medium[p->block % LEAF_BLOCKS];

		medium_set(s, p->block,
			   s->fate ? block_decided(s, old, p)
				   : store_mix(s, old, p->b, keep, garble));
	}
	for (size_t i = s->pending_head; i < s->pending_count; i++) {
		cache_set(s, s->pending[i].block, NULL);
		block_unref(s->pending[i].b);
	}
	s->pending_head = s->pending_count = 0;
}

uint64_t store_pending(const struct store *s)
{
	return s->pending_count - s->pending_head;
}

void store_pending_get(const struct store *s, uint64_t i, uint64_t *ret_seq, uint64_t *ret_block)
{
	*ret_seq = s->pending[s->pending_head + i].seq;
	*ret_block = s->pending[s->pending_head + i].block;
}

void store_poke(struct store *s, uint64_t block, size_t at, const void *data, size_t n)
{
	struct simblock *old = store_visible(s, block);
	struct simblock *b = block_new(old ? old->data : NULL);

	memcpy(b->data + at, data, n);
	for (size_t i = s->pending_head; i < s->pending_count; i++) {
		struct simblock *copy;

		if (s->pending[i].block != block)
			continue;
		copy = block_new(s->pending[i].b->data);
		memcpy(copy->data + at, data, n);
		block_unref(s->pending[i].b);
		s->pending[i].b = copy;
	}
	if (leaf_get(s, block)->cache[block % LEAF_BLOCKS]) {
		struct simblock *m = leaf_get(s, block)->medium[block % LEAF_BLOCKS];

		m = block_new(m ? m->data : NULL);
		memcpy(m->data + at, data, n);
		medium_set(s, block, m);
		/* The newest pending version is what readers see. */
		for (size_t i = s->pending_head; i < s->pending_count; i++) {
			if (s->pending[i].block == block)
				cache_set(s, block, block_ref(s->pending[i].b));
		}
		block_unref(b);
	} else {
		medium_set(s, block, b);
	}
}

/* ---- whole stores ---- */

bool store_init(struct store *s)
{
	s->leafs = calloc(DIV_ROUND_UP(s->blocks, LEAF_BLOCKS), sizeof(*s->leafs));
	return s->leafs;
}

void store_clear(struct store *s)
{
	for (size_t i = s->pending_head; i < s->pending_count; i++)
		block_unref(s->pending[i].b);
	s->pending_head = s->pending_count = 0;
	for (uint64_t i = 0; i < DIV_ROUND_UP(s->blocks, LEAF_BLOCKS); i++) {
		for (unsigned j = 0; s->leafs[i] && j < LEAF_BLOCKS; j++) {
			block_unref(s->leafs[i]->medium[j]);
			block_unref(s->leafs[i]->cache[j]);
		}
		free(s->leafs[i]);
		s->leafs[i] = NULL;
	}
}

void store_exit(struct store *s)
{
	store_clear(s);
	free(s->pending);
	free(s->leafs);
}

void store_share(struct store *s, const struct store *from)
{
	uint64_t blocks = MIN(s->blocks, from->blocks);

	for (uint64_t i = 0; i < DIV_ROUND_UP(blocks, LEAF_BLOCKS); i++) {
		for (unsigned j = 0; from->leafs[i] && j < LEAF_BLOCKS; j++) {
			uint64_t block = i * LEAF_BLOCKS + j;
			struct simblock *b = block < blocks ? store_visible(from, block) : NULL;

			if (!b)
				continue;
			medium_set(s, block, block_ref(b));
			store_mark(s, block, from->leafs[i]->mark[j]);
		}
	}
}
