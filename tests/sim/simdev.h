/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A simulated member. The *member* is the thing in the slot: it outlives crashes and whoever opened
 * it. A *handle* is the struct dev that the volume opens, uses and closes.
 *
 * What a member promises, and no more:
 *   - with a volatile cache, a write is durable after a flush that was submitted after the write
 * had completed; without one, when it has completed;
 *   - at a crash each sector of each write that was not durable, and of each write in flight, is by
 * itself kept, dropped or garbled; of several versions of a sector any may be the one that stays;
 *   - I/O completes in any order; what overlaps takes effect in order of completion; data is taken
 * from memory at any time between submission and completion;
 *   - a failed write leaves any of its sectors written.
 */
#ifndef SIM_SIMDEV_H
#define SIM_SIMDEV_H

#include "raid/io.h"
#include "store.h"
#include "world.h"

struct simdev;

struct simdev_params {
	uint64_t size_bytes;   /* rounded down to BLOCK_BYTES */
	uint32_t sector_bytes; /* 512 or 4096 */
	bool volatile_cache;
	/* Latency of one I/O: lo .. hi, and in one of 64 cases 30 times that. 0, 0: 20 us .. 200
	 * us. */
	uint64_t latency_ns_lo, latency_ns_hi;
	/* Latencies are multiples of it, so that completions coincide; 0: 1. */
	uint64_t latency_grain_ns;
	/* Of 100 sectors not durable at a crash: how many are kept, how many garbled; the rest is
	 * dropped. */
	unsigned crash_keep, crash_garble;
};
/* Sizes, cache and latencies drawn from r; 512-byte sectors or 4096, caches mostly volatile. */
void simdev_params_random(struct simdev_params *p, struct rng *r, uint64_t size_bytes);

/* Empty: reads as zeros. NULL without memory. */
struct simdev *simdev_new(struct world *w, const char *name, const struct simdev_params *params);
/* No handle may be open. Takes NULL. */
void simdev_free(struct simdev *d);
/*
 * A new member with the content that a reader sees now, sharing memory with the old one until
 * either changes. For copies made with dd, and for the old member put back.
 */
struct simdev *simdev_clone(struct simdev *d, const char *name);
/* The member takes over what `from` holds, as far as it fits; its own content and cache are gone.
 * No I/O in flight. */
void simdev_revert(struct simdev *d, struct simdev *from);

/* A handle; closed by dev_close. NULL without memory. Several may be open (nothing locks here). */
struct dev *simdev_open(struct simdev *d);
/* The member behind a handle. */
struct simdev *simdev_of(struct dev *dev);
const char *simdev_name(const struct simdev *d);
uint64_t simdev_size_bytes(const struct simdev *d);
/* Handles that are open: 0 when a volume has closed all it had. */
unsigned simdev_handles(const struct simdev *d);

/* ---- from outside, past all caches of the code under test; off and len are any bytes ---- */

void simdev_peek(struct simdev *d, uint64_t off_bytes, void *out, size_t len);
/* At once and durable. */
void simdev_poke(struct simdev *d, uint64_t off_bytes, const void *data, size_t len);
/* Bytes from the seed; flips `bits` bits at random places within; zeros. */
void simdev_garble(struct simdev *d, uint64_t off_bytes, size_t len);
void simdev_rot(struct simdev *d, uint64_t off_bytes, size_t len, unsigned bits);
void simdev_zero(struct simdev *d, uint64_t off_bytes, size_t len);
/* Whether anything but zeros was ever written to the block at this offset. */
bool simdev_written(struct simdev *d, uint64_t off_bytes);
/* Of all that a reader sees: members that hold the same have the same. */
uint64_t simdev_hash(struct simdev *d);
/* As a crash does it to this member alone, at once: what is not durable is kept, dropped or
 * garbled. */
void simdev_lose_cache(struct simdev *d);
/* Sectors that are not durable: blocks in the pending list. */
uint64_t simdev_pending_blocks(const struct simdev *d);

/*
 * Who decides, instead of the seed, what becomes of each sector that is not durable: asked at a crash's restart for every
 * sector of every pending write in order of completion. `write` numbers the member's writes. With a decider, what is
 * in flight at the crash is whole until then. NULL: the seed.
 */
typedef enum simfate simfate_fn(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector);
void simdev_set_fate(struct simdev *d, simfate_fn *fn, void *arg);
/* Calls fn in the same way, changing nothing. */
void simdev_each_pending(struct simdev *d, simfate_fn *fn, void *arg);

/* ---- faults ---- */

/*
 * The n-th I/O of all members that share it fails with -EIO, once or from then on for good. A write that fails has
 * written nothing.
 */
struct simfail {
	uint64_t left; /* until it strikes; 0: never, or it has */
	bool for_good;
	uint64_t hits;
};
/* NULL: none. */
void simdev_set_fail(struct simdev *d, struct simfail *f);

enum simfault_kind {
	SIMFAULT_EIO_READ,
	SIMFAULT_EIO_WRITE,   /* any of its sectors may have been written */
	SIMFAULT_EIO_FLUSH,   /* nothing became durable by it */
	SIMFAULT_LOST,	      /* a write says success and does nothing */
	SIMFAULT_MISDIRECTED, /* it goes to param bytes further (wrapping) instead */
	SIMFAULT_DUPLICATE,   /* it goes there as well */
	SIMFAULT_TORN,	      /* it says success and writes only some of its sectors */
	SIMFAULT_LYING_FLUSH, /* a flush says success and does nothing */
	SIMFAULT_ROT_READ,    /* a read returns one wrong bit; the medium is as it was */
	SIMFAULT_HANG,	/* the device never lets go; the submitter hears of it at the deadline */
	SIMFAULT_DELAY, /* param nanoseconds longer */
	/*
	 * It comes in two pieces, as the device layer carries on what the kernel did by part: first some sectors from
	 * the front, after as long again the rest. param 1: there is no second piece but -EIO.
	 */
	SIMFAULT_SHORT,
	/* What follows happens to the whole member when the I/O that is hit is submitted. */
	SIMFAULT_RESET,	    /* its cache is gone, as in a crash, and nobody is told */
	SIMFAULT_VANISH,    /* it is pulled (simdev_vanish), and with param 1 loses its cache */
	SIMFAULT_READ_ONLY, /* writes fail from this one on */
	SIMFAULT_SHRINK,    /* it ends at param bytes */
};
enum { SIMFAULT_ON_READ = 1, SIMFAULT_ON_WRITE = 2, SIMFAULT_ON_FLUSH = 4 };
struct simfault {
	enum simfault_kind kind;
	uint64_t off_bytes,
	    len_bytes; /* hit by I/O that overlaps; len 0: the whole member. Flushes always match */
	uint64_t skip; /* matching I/O to let pass first */
	uint64_t count; /* how many to hit; 0: for good */
	uint64_t param;	      /* HANG: lets go after so many nanoseconds; 0: never */
	unsigned on;	      /* those that may hit any I/O: which; 0: all */
	unsigned part, whole; /* of the matching I/O hit only some, by the seed; 0: all */
	uint8_t tag;	      /* for simdev_on_hit */
};
#define SIMFAULTS_MAX 64
/* Added behind those that are there; each I/O meets the first one that matches. -ENOSPC past
 * SIMFAULTS_MAX. */
int simdev_fault(struct simdev *d, const struct simfault *fault);
void simdev_faults_clear(struct simdev *d);
/* How many I/O were hit by a fault since the member was made. */
uint64_t simdev_faults_hit(const struct simdev *d);
/* The part of them that was or will be answered with an error by SIMFAULT_EIO_*. */
uint64_t simdev_errors_given(const struct simdev *d);
/* Told of each fault that hits and of each read of a marked block, with its tag (not 0). In loop context. */
void simdev_on_hit(struct simdev *d, void (*hit)(void *arg, struct simdev *d, uint8_t tag), void *arg);
/* The block was damaged from outside: reads of it are told, with the tag, until it is written. */
void simdev_mark(struct simdev *d, uint64_t off_bytes, uint8_t tag);
/* Pulled: what is in flight and all that comes fails with -ENODEV; its cache dies as in a crash if
 * lose_cache. */
void simdev_vanish(struct simdev *d, bool lose_cache);
/* Put back as it was. Old handles stay dead. */
void simdev_return(struct simdev *d);
bool simdev_is_gone(const struct simdev *d);
/*
 * It ends at size_bytes from now on: for handles that are open I/O beyond fails with -ENODEV, as that of a block
 * device does, and those opened later are smaller. Never larger than it is.
 */
void simdev_shrink(struct simdev *d, uint64_t size_bytes);
/* Writes fail with -EIO; handles opened from now on say read_only. */
void simdev_set_read_only(struct simdev *d, bool read_only);
/* Lets hung I/O go (it is carried out now); the end of SIMFAULT_HANG. */
void simdev_unhang(struct simdev *d);

struct simdev_stats {
	uint64_t reads, writes, flushes, read_bytes, write_bytes;
};
void simdev_stats(const struct simdev *d, struct simdev_stats *ret);

#endif
