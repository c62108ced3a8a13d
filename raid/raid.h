/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume: what the filesystem and the tools see of raid/. Blocks of 4 KiB at logical addresses,
 * each checksummed and redundant; changes become durable in transactions.
 *
 * Context: everything runs on the one loop thread. "Yields" means that it may only be called in a coroutine and that
 * others run meanwhile; the rest never yields.
 *
 * A logical address (lba) is chunk number << 32 | block within the chunk. Two classes of blocks:
 *   meta  mirrored, written whole into the journal (raid_stage_image) and to its place later;
 *   data  parity or mirrors as the level says, written to its place before the transaction that makes it
 *         live, or through the journal where a row is shared with live blocks.
 *
 * The life of a block: allocated (raid_alloc: nobody else gets it) -> written -> live (raid_stage_live, with the
 * transaction) -> dead (raid_stage_dead). A dead block is allocated again only when the transaction
 * that killed it is durable, and readers that began before have ended (raid_read_begin).
 */
#ifndef RAID_RAID_H
#define RAID_RAID_H

#include "base.h"
#include "format.h"
#include "io.h"
#include "label.h"
#include "loop.h"

struct raid;

#define LBA_CHUNK(lba) ((uint32_t)((lba) >> 32))
#define LBA_BLOCK(lba) ((uint32_t)(lba))
#define LBA_MAKE(chunk, block) ((uint64_t)(chunk) << 32 | (block))
#define LBA_NONE UINT64_MAX
/* The first metadata block of the first chunk: live from mkfs on, where the filesystem keeps its root. */
#define LBA_ROOT LBA_MAKE(1, 0)

/* ---- making ---- */

struct raid_format_params {
	int level;              /* -1: by the number of members: 2 -> 1, 3-4 -> 5, more -> 6 */
	unsigned groups;        /* for 50 and 60; 0: 2 */
	uint64_t strip_bytes;   /* 0: 64 KiB */
	uint64_t journal_bytes; /* on each member; 0: member / 64, between 8 and 128 MiB */
	uint64_t slice_bytes;   /* 0: chosen */
	const char *name;       /* may be NULL */
	const struct uuid *fs;  /* NULL: random */
};
/* Works out and checks the geometry without touching anything; the table's members have no slices used yet. Message logged. */
int raid_plan(struct dev **devs, unsigned count, const struct raid_format_params *params, struct table **ret);
/*
 * Writes labels and the first metadata chunk, and makes LBA_ROOT live with zeros. Yields. The devices stay the
 * caller's. On failure the labels are wiped again.
 */
int raid_format(struct loop *loop, struct dev **devs, unsigned count, const struct raid_format_params *params);

/* ---- opening ---- */

struct raid_hooks {
	/*
	 * Called right before a transaction is sealed: the filesystem stages its dirty nodes. Never yields. What it
	 * stages belongs to this transaction.
	 */
	void (*pre_commit)(void *ctx);
	/* Blocks that pre_commit would stage now: for throttling. */
	uint64_t (*dirty_blocks)(void *ctx);
	/* A block that could not be recovered (scrub, rebuild): name it for the administrator. May yield. */
	void (*lost_block)(void *ctx, uint64_t lba, uint32_t count);
};

enum { RAID_OPEN_READ_ONLY = 1, RAID_OPEN_CHECK = 2 /* fsck: nothing is written, replay stays in memory */ };
struct raid_options {
	unsigned flags;
	uint64_t page_cache_bytes; /* bitmap and checksum pages; those in use or dirty are kept beyond it; 0: 64 MiB */
	uint64_t commit_ns_max;    /* what was changed is durable so much later at the latest, by the commit timer; 0: 5 s */
	uint64_t (*wall_clock_s)(void); /* for people: when a scrub ended; NULL: not known */
};
/*
 * Votes, replays the journal, starts a new epoch. Yields. The devices belong to the volume on success (closed with it;
 * those not used are closed at once) and stay the caller's on failure. -ENODEV: too few members; -EROFS: too few that can be
 * written (those that cannot are taken out of service where that may be); -ESTALE: forked;
 * -EEXIST: clones; -ENODATA: no label; -EUCLEAN: the journal lost acknowledged records. Messages are logged.
 */
int raid_open(struct loop *loop, struct dev **devs, unsigned count, const struct uuid *fs,
	      const struct raid_options *options, struct raid **ret);
void raid_set_hooks(struct raid *r, const struct raid_hooks *hooks, void *ctx);
/* Starts the timers and background work (commit timer, checkpoint, pending rebuilds). After set_hooks. */
int raid_start(struct raid *r);
/* Commits, writes everything home, marks clean, closes the devices. Yields. The volume is gone also on error. */
int raid_close(struct raid *r);
/* As if the process had died: nothing more is written. For tests. Yields until its coroutines are gone. */
void raid_abandon(struct raid *r);

/* ---- space ---- */

struct raid_run {
	uint64_t lba;
	uint32_t count;
};
enum {
	RAID_ALLOC_RESERVE = 1, /* may use what is kept for deleting, committing and rebuilding */
	RAID_ALLOC_SMALL = 2,   /* data: next to other small writes, through the journal, instead of opening clean rows */
	RAID_ALLOC_CLEANER = 4, /* data: clean rows, also those kept for this; holes only when there are none; no new chunk */
};
/*
 * Allocates up to `want` data blocks, in up to `runs_max` runs, filling clean stripes, then clean rows, then holes in
 * shared rows. At least 1 block on success. May make a chunk. Yields. -ENOSPC.
 */
int raid_alloc_data(struct raid *r, uint32_t want, unsigned flags, struct raid_run *runs, unsigned runs_max,
		    unsigned *ret_count);
/* Makes sure that raid_alloc_meta can give `want` blocks at once. Yields. -ENOSPC. */
int raid_meta_ensure(struct raid *r, uint32_t want, unsigned flags);
/* How many metadata blocks raid_alloc_meta can give now, with these flags. */
uint32_t raid_meta_ready(const struct raid *r, unsigned flags);
/* One metadata block, LBA_NONE when none is ready. */
uint64_t raid_alloc_meta(struct raid *r, unsigned flags);
/* Gives back what was allocated and never staged live. */
void raid_unalloc(struct raid *r, uint64_t lba, uint32_t count);

struct raid_space {
	uint64_t data_total;   /* blocks: existing data chunks and what free slices could become */
	uint64_t data_free;    /* that raid_alloc_data could still give, without the reserve */
	uint64_t data_reserve; /* kept back */
	uint64_t data_clean;   /* of all that is free: in rows of which nothing is used. Those of chunks not looked at count as such */
	uint64_t meta_total, meta_free; /* of existing metadata chunks */
	uint64_t meta_potential;        /* that free slices could become */
	/* The part of data_free that is not in chunks yet: a metadata chunk may take as much as a data chunk of it. */
	uint64_t data_potential;
	uint64_t data_chunk, meta_chunk; /* blocks of the next chunk; 0: there cannot be one */
};
/* data_free counts chunks whose bitmap is not loaded by their hint. */
void raid_space(const struct raid *r, struct raid_space *ret);

/* ---- transactions ---- */

/* A metadata block's new content (copied): readers see it at once, it is durable after the next commit. */
int raid_stage_image(struct raid *r, uint64_t lba, const void *block);
void raid_stage_live(struct raid *r, uint64_t lba, uint32_t count);
void raid_stage_dead(struct raid *r, uint64_t lba, uint32_t count);
/*
 * Everything staged before the call, and everything raid_write had returned for, is durable on return. Calls
 * that overlap share one record. Yields. After an error the volume takes no more writes (raid_error).
 */
int raid_commit(struct raid *r);
/*
 * What was staged before the call has waited for long already: the commit timer commits at ns (on the loop's clock) and
 * not later. Never yields.
 */
void raid_commit_by(struct raid *r, uint64_t ns);
/* Waits while the open transaction or the journal's backlog is too large. Call before each change. Yields. */
int raid_throttle(struct raid *r);
/* 0, or why the volume takes no more writes. */
int raid_error(const struct raid *r);

/* ---- data ---- */

struct raid_block {
	uint64_t lba;
	void *data; /* BLOCK_BYTES of pool memory, stable until raid_write returns */
};
enum {
	RAID_WRITE_JOURNAL = 1, /* through the journal even where the row is clean: small synchronous writes */
};
/*
 * Writes allocated (or, to overwrite in place, live) data blocks; whole rows are best given in one call. On return
 * their content is what raid_read gives, and it is durable with the next commit. The checksums are staged. Yields.
 * -EIO: too many members failed; nothing was staged.
 */
int raid_write(struct raid *r, const struct raid_block *blocks, unsigned count, unsigned flags);
/*
 * Reads blocks, meta or data, verified, recovering and healing. Yields. data: pool memory, block-aligned. -EBADMSG: beyond
 * recovery. -EIO: too few members answer. -EAGAIN: the memory is still in the hands of a hung device: put it and
 * call again with other memory (the device is not asked again).
 */
int raid_read(struct raid *r, uint64_t lba, uint32_t count, void *data);
/* The same over several runs, each into its own memory, as one batch. */
struct raid_read_run {
	uint64_t lba;
	uint32_t count;
	void *data;
};
int raid_readv(struct raid *r, const struct raid_read_run *runs, unsigned count);
/*
 * A reader that looks up an address and reads it later stands between begin and end: blocks that die
 * meanwhile are not reused before end.
 */
struct raid_reader {
	struct list node;
	uint64_t seq;
};
void raid_read_begin(struct raid *r, struct raid_reader *reader);
void raid_read_end(struct raid *r, struct raid_reader *reader);

/* ---- cleaning: clean.c ---- */

/*
 * Rows of which nothing is used are written with the least effort. When they become few, who knows whose the blocks are
 * (fs/) may move the last of sparsely used stripes together:
 *
 *   need -> wait_ns, until it says 0 -> pick -> raid_alloc_data (RAID_ALLOC_CLEANER), raid_copy, map -> done
 *
 * and rest when there is no more to do. Nothing depends on that.
 */
/* How urgent: 0 not at all, otherwise 1 + a priority as of raid_set_priority. From memory. */
unsigned raid_clean_need(const struct raid *r);
/* How long to give way to requests before the next part; 0: go on now. Never yields. */
uint64_t raid_clean_wait_ns(struct raid *r, unsigned need);
/*
 * Up to `max` stripes, with up to blocks_max blocks in use together (or one stripe), which get nothing new until done is called or
 * space is short. 0: none is worth it. Never yields.
 */
unsigned raid_clean_pick(struct raid *r, unsigned need, uint32_t blocks_max, struct raid_run *runs, unsigned max);
/* So many stripes have been picked that it is time for done. */
bool raid_clean_full(const struct raid *r);
/*
 * Commits, so that what died in the stripes picked since the last call becomes free, and lets go of them. `failed`: they are not
 * picked again soon. Yields.
 */
int raid_clean_done(struct raid *r, bool failed);
void raid_clean_rest(struct raid *r);
struct raid_move {
	uint64_t from, to;
};
/* Reads live data blocks, verified, and writes them to allocated places. Changes the order of moves. As raid_write. Yields. */
int raid_copy(struct raid *r, struct raid_move *moves, unsigned count);

/* Calls fn for each run of live blocks of the class, ascending: for fsck. Yields. */
int raid_for_each_live(struct raid *r, enum chunk_class class,
		       int (*fn)(void *arg, uint64_t lba, uint32_t count), void *arg);

/* ---- health ---- */

enum raid_state { RAID_OPTIMAL, RAID_DEGRADED, RAID_REBUILDING, RAID_FAILED };
struct raid_member_info {
	struct uuid uuid;
	char path[256], serial[64];
	enum member_state state;
	bool present;
	bool read_only; /* the device says so: why it is out of service, in a volume that is not */
	uint64_t size_bytes;
	uint32_t slices, slices_free, columns, columns_stale;
	uint64_t errors_read, errors_write, errors_sum, errors_lost, errors_hung;
	int replaces;
};
struct raid_job_info {
	bool running;
	uint64_t done_blocks, total_blocks; /* member blocks */
	uint64_t found, repaired, lost;     /* blocks */
	uint64_t started_ns, eta_ns;        /* monotonic; eta 0: unknown */
	uint64_t last_end_s;                /* wall clock */
	int last_error;
};
struct raid_info {
	struct uuid fs;
	char name[LABEL_NAME_BYTES];
	unsigned level, tolerance, groups, member_count, chunk_count;
	uint64_t strip_bytes, slice_bytes, journal_bytes, member_bytes_min; /* smallest member that may replace one */
	uint64_t gen, epoch, journal_seq, journal_tail;
	uint64_t commit_ns_max; /* as asked for at opening, or the default */
	enum raid_state state;
	unsigned redundancy; /* members that may still be lost without losing data; by the worst chunk */
	uint64_t chunks_below_target;
	/* With pages that are lost: what they covered cannot be read, or its space not used; all else can. */
	unsigned chunks_damaged;
	uint32_t chunk_damaged; /* the first of them */
	struct raid_job_info rebuild, scrub;
	unsigned rebuild_priority, scrub_priority; /* 0 .. RAID_PRIORITY_MAX */
	int error;
	bool read_only;
};
/* From memory, never waits for a device. */
void raid_info(const struct raid *r, struct raid_info *ret);
int raid_member_info(const struct raid *r, unsigned index, struct raid_member_info *ret);

/* By index. Takes a member out of service for good. Refused (-EBUSY) where that would lose data. Yields. */
int raid_fail(struct raid *r, unsigned index);
/*
 * Adds dev (the volume's on success) as the member that takes over from `index`, and starts the rebuild. -ENOSPC: too small
 * (logged with sizes); -EEXIST: already a member. Yields, but not for the rebuild.
 */
int raid_replace(struct raid *r, unsigned index, struct dev *dev);
/* Starts (or continues from the stored cursor), or cancels and keeps the cursor. -EALREADY, -EBUSY while rebuilding. */
int raid_scrub_start(struct raid *r);
int raid_scrub_cancel(struct raid *r);
/*
 * How much a job takes from requests that come meanwhile, kept with the volume, and in force at once: at 0 the slowest of them
 * may take 1.25 times as long as without it, at 50 (which is so until it is set) twice as long; at 100 it waits for
 * nobody. It always does at least 4 MiB and 1 MiB more for each point of each member in a second. -EINVAL: more than 100;
 * -EROFS. Yields.
 */
#define RAID_PRIORITY_MAX 100u
enum raid_job { RAID_JOB_REBUILD, RAID_JOB_SCRUB };
int raid_set_priority(struct raid *r, enum raid_job job, unsigned priority);
/* Wait until no rebuild / no scrub runs. Yields. For tests and tools. Returns the job's last_error. */
int raid_rebuild_wait(struct raid *r);
int raid_scrub_wait(struct raid *r);
/*
 * fsck of the volume: every label place, page copy, live block, parity. Writes nothing. Yields. Each problem
 * goes to report(arg, text). Returns the number of problems or a negative errno.
 */
int64_t raid_check(struct raid *r, void (*report)(void *arg, const char *text), void *arg);

#endif
