/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume table in memory: members and chunks, their states, and its bytes. Pure: no I/O, never yields.
 * Who may be believed at open is decided in label.c.
 */
#ifndef RAID_TABLE_H
#define RAID_TABLE_H

#include "base.h"
#include "co.h"
#include "format.h"
#include "geom.h"

struct dev;

struct member {
	struct uuid uuid;
	uint64_t size_bytes;
	uint64_t last_gen;
	enum member_state state;
	uint32_t slice_count;
	int replaces; /* member index or -1 */
	uint64_t errors_read, errors_write, errors_sum, errors_lost, errors_hung;
	char hint[64], serial[64];
	/* not stored */
	struct dev *dev;       /* NULL: not here */
	unsigned silent;       /* deadlines that passed while it could not be spared */
	bool leaving;          /* gets no more journal records: it is about to be REMOVED */
	uint8_t *slice_used;   /* slice_count bytes, derived from the chunks */
	uint32_t slices_free;
	uint8_t label_place[2]; /* label.c's: where the newest label stands in labels A and B */
};

/* Is here and gets every write: the one meaning of "in service". The two below build on it. */
static inline bool member_in_service(const struct member *m)
{
	return m->dev && m->state == MEMBER_ACTIVE;
}
/* Gets journal records: a durable table names it, since replay reads the rings of those alone, and it stays. */
static inline bool member_takes_records(const struct member *m)
{
	return member_in_service(m) && m->last_gen && !m->leaving;
}

struct column {
	uint16_t member;
	uint16_t slice;
	bool stale;
};

struct chunk {
	uint32_t number;
	enum chunk_class class;
	struct geom geom;
	uint32_t fill_hint;
	struct column *columns; /* geom.columns */
	/* not stored: a column being copied to a new slice gets every write twice; -1: none */
	int move_column;
	struct column move_to;
	bool move_switched; /* move_to is the old home, while the table is written that names the new one */
	/* Not stored: table_encode leaves the chunk out while its first pages are being written. */
	bool hidden;
	uint32_t pages_lost; /* bitmap and checksum pages found without a valid copy since the volume was opened */
	struct chunk_space *space; /* space.c's */
	uint32_t blocks_imaged; /* image.c's: blocks that have images; chunks of data seldom have any */
};

struct table {
	uint64_t gen, epoch, salt;
	uint64_t slice_bytes, journal_off_bytes, journal_bytes, slices_off_bytes;
	uint32_t chunk_next;
	unsigned level, tolerance, groups;
	uint32_t strip_blocks;
	uint32_t flags; /* TABLE_CLEAN ... */
	uint8_t rebuild_priority, scrub_priority; /* 0 .. 100 plus 1; 0: never set */
	uint64_t created_s, scrub_cursor, scrub_last_end_s;
	struct uuid fs;
	char name[LABEL_NAME_BYTES];
	struct member members[MEMBERS_MAX];
	unsigned member_count;
	struct uuid gone[GONE_MAX]; /* replaced, and their index is another's now; oldest first */
	unsigned gone_count;
	struct chunk **chunks; /* ascending by number */
	unsigned chunk_count, chunk_cap;
	/* label.c's, not stored */
	struct co_mutex write_lock; /* one label_write_table at a time */
	void *write_memory;         /* from the pool, kept so that the write never waits for memory */
	uint64_t gen_skip;          /* generations that are spent: on a member, but never used */
};

/* An empty one. NULL without memory. */
struct table *table_new(void);
void table_free(struct table *t); /* not the devices, nor chunk->space. Takes NULL. */
/* How many slices a member of that size gets, with the slack that every new member keeps. */
uint32_t table_slices_fit(const struct table *t, uint64_t member_bytes);
/* The smallest device that can hold so many slices, without slack. */
uint64_t table_member_bytes_min(const struct table *t, uint32_t slices);
/*
 * Adds a member, ACTIVE, with all its slices free. slices_wanted: as many as the member that it replaces has; the
 * slack is given up for them (0: none wanted). When all indices are taken it gets that of a REMOVED member whose
 * device is closed: no record of the journal that counts may name it any more. -ENOSPC: too small; -E2BIG: too
 * many members; -ENOMEM.
 */
int table_member_add(struct table *t, const struct uuid *uuid, uint64_t size_bytes, uint32_t slices_wanted,
		     unsigned *ret_index);
/* Whether a member with this UUID was replaced. */
bool table_is_gone(const struct table *t, const struct uuid *uuid);
/* In service, and nobody in service is taking over from it: gets new chunks. */
bool table_member_takes_chunks(const struct table *t, unsigned index);
/* It comes back, and nothing on it is to be trusted: all its columns are stale. While it is away its state says so. */
void table_member_set_stale(struct table *t, unsigned index);
/* Exact bytes of the table; -E2BIG past TABLE_BYTES_MAX. */
int table_encode(const struct table *t, void *out, size_t cap, size_t *ret_bytes);
/* Every field is checked (states, ranges, slices used twice, column members): -EBADMSG and *ret_why. */
int table_decode(const void *bytes, size_t len, const struct uuid *fs, const char *name, struct table **ret,
		 const char **ret_why);

/* Of rebuild or scrub, 0 .. 100, of what is stored. */
#define TABLE_PRIORITY_DEFAULT 50u
static inline unsigned table_priority(uint8_t stored)
{
	return stored ? stored - 1u : TABLE_PRIORITY_DEFAULT;
}
struct chunk *table_chunk(const struct table *t, uint32_t number); /* NULL: none */
/*
 * Columns that may still be lost, whichever they are: of the worst of its groups and of the sets of columns that hold the
 * copies of one page, which lie across groups. Negative: there is something that cannot be read.
 */
int table_chunk_spare(const struct table *t, const struct chunk *c);
/*
 * Adds a chunk in memory on free slices of members that are in service (state ACTIVE with a dev and not being
 * replaced), most free slices first, ties by index; each column on another member. Columns: metadata
 * tolerance + 1; data as many as there are members in service with a free slice, within what the level allows,
 * but never fewer than needed for full redundancy. Where there are not even that many members in service, the
 * rest of the columns lie on members that are not there, stale from the start: to be rebuilt when those return
 * or are replaced. -ENOSPC when it does not fit or (data) would eat what is kept for metadata, -ENOMEM.
 * The caller writes the table before anything refers to the chunk, or calls table_chunk_drop.
 */
int table_chunk_add(struct table *t, enum chunk_class class, struct chunk **ret);
void table_chunk_drop(struct table *t, struct chunk *chunk);
/* Blocks that chunks of the class could still get from free slices if only chunks of that class were added. */
uint64_t table_potential_blocks(const struct table *t, enum chunk_class class);
/* Blocks of the chunk that table_chunk_add would make next; 0: there is no room for one. */
uint64_t table_chunk_blocks(const struct table *t, enum chunk_class class);
/* Finds a free slice on a member: -ENOSPC. */
int table_slice_get(struct table *t, unsigned member, uint16_t *ret_slice);
void table_slice_put(struct table *t, unsigned member, uint16_t slice);
/* Byte offset of a block of a column on its member. */
static inline uint64_t table_column_off(const struct table *t, const struct column *c, uint64_t slice_block)
{
	return t->slices_off_bytes + (uint64_t)c->slice * t->slice_bytes + slice_block * BLOCK_BYTES;
}
/*
 * A member that does not answer and cannot be taken out is not asked for ever: each read holds memory until the device
 * lets go, and when it has all of it everybody waits. The volume takes no writes any more; opening it again asks anew.
 */
#define MEMBER_SILENT_MAX 16u
/* May be read as truth / must get every write. */
static inline bool table_column_readable(const struct table *t, const struct column *c)
{
	return member_in_service(&t->members[c->member]) && (!c->stale || BREAK(stale)) &&
	       t->members[c->member].silent < MEMBER_SILENT_MAX;
}
static inline bool table_column_writable(const struct table *t, const struct column *c)
{
	return member_in_service(&t->members[c->member]);
}

#endif
