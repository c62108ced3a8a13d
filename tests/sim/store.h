/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a simulated member holds: blocks with a durable content, a content that readers see, and
 * everything in between that a crash may leave (store.c). It knows neither time nor I/O.
 */
#ifndef SIM_STORE_H
#define SIM_STORE_H

#include "world.h"

struct simblock {
	uint32_t refs;
	uint64_t hash; /* 0: not known yet */
	_Alignas(16) uint8_t data[BLOCK_BYTES];
};
/* A copy of data, or zeros. Ends the process without memory, as everything here does. */
struct simblock *block_new(const void *data);
/* The same, for content that will not change: all zeros are one block. */
struct simblock *block_share(const void *data);
/* Take NULL. */
struct simblock *block_ref(struct simblock *b);
void block_unref(struct simblock *b);
void *must(void *p);

/* What a crash makes of one sector of one version of a block. */
enum simfate { SIMFATE_DROP, SIMFATE_KEEP, SIMFATE_GARBLE };

struct store_leaf;
struct store_pending;
struct store {
	uint64_t blocks;
	uint32_t sector_bytes;
	/* Of 100 sectors not durable at a crash: how many are kept, how many garbled. */
	unsigned crash_keep, crash_garble;
	struct rng *rng; /* of the lottery */
	/* Decides instead of it, if not NULL; each sector of all that is pending, in order of completion. */
	enum simfate (*fate)(void *arg, uint64_t seq, uint64_t block, unsigned sector);
	void *fate_arg;
	struct store_leaf **leafs;
	struct store_pending *pending; /* entries head .. count - 1 */
	size_t pending_head, pending_count, pending_cap;
};
/* False without memory. blocks, sector_bytes, crash_* and rng are the caller's to set first. */
bool store_init(struct store *s);
void store_exit(struct store *s);
/* All zeros again. */
void store_clear(struct store *s);
/* Takes over what readers of `from` see, sharing memory, as far as it fits. `s` is empty. */
void store_share(struct store *s, const struct store *from);

/* Of all that a reader sees: stores with the same content have the same. */
uint64_t store_hash(const struct store *s);
/* What a reader sees; NULL: zeros. */
struct simblock *store_visible(const struct store *s, uint64_t block);
/*
 * A block of a write that has completed as number seq (ascending). Takes over the reference. `durable`: at once.
 */
void store_write(struct store *s, uint64_t block, struct simblock *b, uint64_t seq, bool durable);
/* A flush: what was written up to seq is durable. */
void store_flush(struct store *s, uint64_t seq);
/* A block of which each sector is the old one (NULL: zeros), the new one or garbage. A new reference. */
struct simblock *store_mix(struct store *s, const struct simblock *old, const struct simblock *new,
			   unsigned keep, unsigned garble);
/* A crash: decides what became of everything that is not durable. */
void store_lottery(struct store *s);
uint64_t store_pending(const struct store *s);
/* The i-th of them. */
void store_pending_get(const struct store *s, uint64_t i, uint64_t *ret_seq, uint64_t *ret_block);
/* Bytes within one block, into all versions that there are: no crash brings back what was there. */
void store_poke(struct store *s, uint64_t block, size_t at, const void *data, size_t n);

/*
 * Damage: the block does not hold what was written to it. The tag (not 0) stays until the block is written
 * again.
 */
void store_mark(struct store *s, uint64_t block, uint8_t tag);
uint8_t store_marked(const struct store *s, uint64_t block);

#endif
