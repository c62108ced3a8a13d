/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A volume in memory with the interface of raid/raid.h as far as fs/ uses it, so that fs/ is tested
 * without raid/ and faster. Link tests/fake_raid.c in place of the raid library's volume (base,
 * loop, co and buf are the real ones).
 *
 * It yields now and then wherever the real one may, so that interleavings happen; it keeps the last
 * committed state of every block, so that a test can crash; and it aborts with a message on misuse:
 * reading what is not allocated, making live what is not allocated or never written, killing what
 * is not live, a metadata block that is live without an image at commit, data changed during a
 * write, using the volume from a hook ...
 */
#ifndef TESTS_FAKE_RAID_H
#define TESTS_FAKE_RAID_H

#include "raid/raid.h"

struct fake_raid_params {
	uint64_t seed;
	unsigned yield_one_in;	      /* 0: never, 1: always, n: one call in n */
	uint32_t meta_chunk_blocks;   /* 0: 4096 */
	unsigned meta_chunks_max;     /* 0: 16; the first exists from the start */
	uint32_t meta_reserve_blocks; /* 0: 64; of the last chunk that can be made */
	uint32_t data_chunk_blocks;   /* 0: 16384 */
	unsigned data_chunks_max;     /* 0: 16; made when needed */
	uint32_t data_reserve_blocks; /* 0: 64 */
	uint32_t run_blocks_max;      /* longest run that raid_alloc_data gives; 0: no limit */
	uint64_t commit_ns_max;	      /* of the timer that raid_start starts; 0: 5 s */
	uint64_t dirty_blocks_max;    /* raid_throttle commits above this; 0: 2048 */
	uint32_t stripe_blocks; /* for the cleaner; 0: it never has anything to do */
	uint64_t clean_mark;	/* free blocks in stripes of which nothing is used: the cleaner wants more */
	unsigned eagain_one_in; /* one read in n says -EAGAIN and keeps the memory pinned for 1 s;
				   0: never */
};

/* Loop whose clock jumps to the next timer; aborts when everything waits for ever. Free with
 * fake_loop_free. */
struct loop *fake_loop_new(uint64_t seed);
void fake_loop_free(struct loop *loop);

/* A formatted and opened volume: LBA_ROOT is live and zero. params may be NULL. */
struct raid *fake_raid_new(struct loop *loop, const struct fake_raid_params *params);
/* The memory of it all. Takes NULL. Not while coroutines use it. */
void fake_raid_free(struct raid *r);

/*
 * As after a power cut and a new raid_open: everything is as the last commit that became durable
 * left it. Call it after raid_abandon (and fs_abandon), when no coroutine uses the volume.
 */
void fake_raid_crash(struct raid *r);
/* Opens again after raid_close. */
void fake_raid_reopen(struct raid *r);

/* The volume takes no more writes from now on, as after losing too many members. */
void fake_raid_set_error(struct raid *r, int error);
/* The n-th raid_read or run of raid_readv from now fails with error (once); 0 turns it off. */
void fake_raid_fail_read(struct raid *r, uint64_t n, int error);
/* Every read of this block fails, until a crash or reopening; LBA_NONE: none. */
void fake_raid_fail_reads_of(struct raid *r, uint64_t lba, int error);
/* The n-th raid_write from now fails with error (once). */
void fake_raid_fail_write(struct raid *r, uint64_t n, int error);
/*
 * The next so many raid_alloc_data, and raid_meta_ensure, say -ENOSPC, whatever is free: as when what died is still
 * being read.
 */
void fake_raid_set_short(struct raid *r, unsigned data, unsigned meta);
/* How many of them are left. */
unsigned fake_raid_short(const struct raid *r);
/* As a scrub that has lost these blocks: calls the hook. Yields. */
void fake_raid_report_lost(struct raid *r, uint64_t lba, uint32_t count);
/* Off: reading blocks that are not allocated gives -EBADMSG instead of an abort. For tests of
 * damage. */
void fake_raid_set_strict(struct raid *r, bool strict);
/* As fake_raid_params.eagain_one_in, from now on. */
void fake_raid_set_eagain(struct raid *r, unsigned one_in);
void fake_raid_set_yield(struct raid *r, unsigned one_in);
/* Whatever may yield hangs from now on, as on devices that do not answer; false: it goes on. */
void fake_raid_hold(struct raid *r, bool hold);
/* Every commit from now on fails to become durable until a crash; its callers get -EIO. */
void fake_raid_freeze(struct raid *r);

/* Bytes of a live block, to look at and to damage; the committed and the current copy are both
 * changed. NULL: not live. */
void *fake_raid_bytes(struct raid *r, uint64_t lba);
/* Makes a block live or dead behind everybody's back, committed. */
void fake_raid_force_live(struct raid *r, uint64_t lba, bool live);
uint64_t fake_raid_live_blocks(struct raid *r, enum chunk_class class);
/* In existing data stripes of which nothing is used. */
uint64_t fake_raid_clean_blocks(struct raid *r);
/* Allocated and not (yet) live: 0 when nothing is under way, else somebody leaks space. */
uint64_t fake_raid_allocated_blocks(struct raid *r, enum chunk_class class);
/* The earliest time that raid_commit_by was called with since the last commit; UINT64_MAX: it was not. */
uint64_t fake_raid_commit_by_ns(const struct raid *r);
uint64_t fake_raid_commits(const struct raid *r);
uint64_t fake_raid_reads(const struct raid *r);
uint64_t fake_raid_writes(const struct raid *r);

#endif
