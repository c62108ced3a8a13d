/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Walking over the rows of a chunk that count: what rebuild, scrub and check have in common.
 */
#ifndef RAID_WALK_H
#define RAID_WALK_H

#include "volume.h"

/* A pass over rows of one chunk, in units that never cross a ROWS_MAX boundary, several units in flight. */
struct walk {
	struct raid *r;
	struct job *job; /* NULL: only the volume can stop it */
	struct chunk *chunk;
	uint64_t row, end;
	/* Called for each unit in which anything is used. An error ends the walk. Yields. */
	int (*unit)(struct walk *w, uint64_t row, unsigned count);
	/* Called for all units, before they are looked at: progress. NULL allowed. */
	void (*passed)(struct walk *w, unsigned count);
	/* Called before each unit is taken, for what else it has to wait for. Yields. NULL allowed. */
	void (*turn)(struct walk *w);
	void *user;
	/* walk.c's */
	unsigned unit_rows, workers;
	int error;
	struct co_cond done;
};

/* Walks to `end`. 0, the first error, or -ECANCELED when asked to stop. Yields. */
int walk_rows(struct walk *w);
/* Whether the job, or everything, is to end. */
bool walk_stopped(const struct raid *r, const struct job *job);

/*
 * Whether the content of the slot matters: see walk.c. A chunk whose bitmap cannot be loaded: everything does.
 */
bool walk_slot_counts(const struct chunk *c, uint64_t row, unsigned group, unsigned slot);
/* rows_load, after which slots that do not count are SLOT_EMPTY. The cells are locked. Yields. */
int walk_load(struct raid *r, struct rows *rows, struct chunk *c, unsigned group, uint64_t row, unsigned count);
static inline uint8_t *walk_state(struct rows *rows, unsigned slot, unsigned i)
{
	return &rows->state[slot * rows->count + i];
}
static inline char *walk_block(const struct rows *rows, unsigned slot, unsigned i)
{
	return (char *)rows->slots[slot] + (size_t)i * BLOCK_BYTES;
}

/* Live blocks that are lost, gathered under a cell's lock and reported after it. */
struct walk_lost {
	uint64_t *lbas;
	unsigned count, cap;
};
/* Adds slot `slot` of the group if it is lost, is data and is live. */
void walk_lost_slot(struct raid *r, struct walk_lost *l, struct rows *rows, unsigned slot, unsigned i);
/* All live data blocks of the group in these rows: their checksums are lost. */
void walk_lost_rows(struct raid *r, struct walk_lost *l, struct chunk *c, unsigned group, uint64_t row, unsigned count);
/* Names them to the filesystem and frees the list. Yields; no cell may be held. Returns how many. */
uint64_t walk_lost_report(struct raid *r, struct walk_lost *l);

/* Chunk with the smallest number >= `number` whose pages are all on the members; NULL: none. */
struct chunk *walk_chunk_from(const struct table *t, uint32_t number);
/* Starts a job's coroutine. Never yields. */
int walk_job_start(struct raid *r, struct job *job, void (*fn)(struct raid *r));
void walk_job_end(struct raid *r, struct job *job, int err);
void walk_job_progress(struct raid *r, struct job *job, uint64_t blocks);

/* rebuild.c: whether the states call for a rebuild. Never yields. */
bool rebuild_wanted(struct raid *r);
/* Who takes over from the member, also when who was to do so is itself being replaced; -1: nobody in service. */
int rebuild_successor(const struct table *t, unsigned member);
/* The member is about to be done without: a column for which it is being written down as the home falls back on the old one. */
void rebuild_home_lost(struct raid *r, unsigned member);
/* scrub.c: goes on with a scrub that the last close or crash interrupted. Never yields. */
void scrub_resume(struct raid *r);

#endif
