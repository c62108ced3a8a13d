/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Labels: reading every place of a device, choosing among members, writing the table to all of them.
 */
#ifndef RAID_LABEL_H
#define RAID_LABEL_H

#include "base.h"
#include "table.h"

struct dev;
struct loop;

/* What one device says of itself: up to four valid places. */
struct label {
	struct uuid fs, member;
	/* The newest in labels B: it was durable in labels A of every member before. Without labels B, in labels A. */
	uint64_t gen;
	uint64_t gen_seen; /* newest of all valid places, also if that write was interrupted */
	unsigned member_index;
	uint64_t member_bytes;
	char name[LABEL_NAME_BYTES];
	uint64_t compat, ro_compat, incompat;
	unsigned places_valid; /* of 4 */
	uint64_t table_sum;    /* tells two tables of one generation apart */
	struct label_seen {
		uint64_t gen, table_sum;
	} seen[4]; /* what each place shows; gen 0: nothing that is valid */
	bool far;              /* gen is from labels B */
	uint8_t place[2];      /* which place of labels A and of labels B is the newest */
	struct table *table;   /* of gen; label_clear frees it */
	/* Newer, but in labels A only; or NULL. Counts, if others bear it out, where a place of labels B is damaged. */
	struct table *prepared;
	uint64_t prepared_sum;
	bool prepared_counts;
};

/*
 * Reads and checks all places (coroutine). -ENODATA: no trussfs label at all; -EBADMSG: something that was one, none
 * valid; -ENOTSUP: newer version or unknown incompat feature (logged by name); -EIO.
 */
int label_read(struct dev *dev, struct label *ret);
void label_clear(struct label *label);
/* The same from an open file, without a loop, first label area and last: for scanning (list, mount LABEL=). */
int label_probe_fd(int fd, uint64_t size_bytes, struct label *ret);

/*
 * Makes the next generation durable on every member in service (ACTIVE with a device; coroutine): table and label to
 * the older place of labels A, a flush, then of labels B, a flush. On return t->gen is the new one. A member that
 * cannot be written (owner agreeing, NULL: always), or is ACTIVE without a device, is set MISSING and the write
 * repeated with that in it, so that no generation claims a member that does not have it. Writes that are cured by another
 * attempt are counted against the member. -EIO when nobody is left, or the owner does without no more (nothing
 * refers to the new generation then), and t is as before but for states. -E2BIG.
 * What is written is the table as it is once earlier calls have ended; calls are served one after the other.
 */
struct label_owner {
	/*
	 * A member could not be written. Takes it out of service and returns true; false: it must not be done without, and
	 * the write ends with -EIO, with the member's state as it was. Never yields.
	 */
	bool (*lose)(void *ctx, unsigned member, int result);
	void *ctx;
};
int label_write_table(struct table *t, struct loop *loop, const struct label_owner *owner);

/* Sets dev, and what the table remembers of it: the hint and the serial number that tells a clone. */
void label_member_here(struct member *m, struct dev *dev);

/* Overwrites all label places (for a member taken out by replace, and for mkfs before anything else). */
int label_wipe(struct dev *dev);

struct label_vote {
	/*
	 * Newest that a consistent set agrees on. dev, hint and serial of the members that are used are set; those that
	 * are not here keep their state, with no dev; stale ones are MISSING, with no dev, all columns stale. The index
	 * of a used or stale device is verdicts[].label.member_index.
	 */
	struct table *table;
	/* for each device given: why it is or is not used */
	struct label_verdict {
		enum {
			VERDICT_USED,
			VERDICT_STALE,      /* member, but missed generations: MISSING in the table, to be rebuilt */
			VERDICT_FOREIGN,    /* another filesystem */
			VERDICT_CLONE,      /* same member UUID twice */
			VERDICT_NO_LABEL,
			VERDICT_REMOVED,    /* was replaced, taken out for good, or is unknown to the table */
			VERDICT_FORKED,     /* advanced without the others */
			VERDICT_UNREADABLE, /* error says why; -ENOSPC: the device is smaller than it was */
		} what;
		struct label label; /* its tables are cleared */
		int error;
	} verdicts[MEMBERS_MAX];
	bool forked; /* members advanced without each other: refuse */
};
/*
 * Reads the labels of all devices and decides (coroutine). fs: the filesystem wanted, or NULL for the one that most
 * devices belong to. Each refusal is logged by device name, saying what to do. 0: vote->table opens, though perhaps
 * with too few members (table_enough); -EEXIST: clones of which neither can be told the true one; -ESTALE: forked;
 * -ENODATA: no label.
 */
int label_vote(struct loop *loop, struct dev **devs, unsigned count, const struct uuid *fs, struct label_vote *vote);
/* Whether every chunk can be read with the members that are there; logs which chunk and members lack if not. */
bool table_enough(const struct table *t, bool log);
/* The same if the members of the mask were gone too. */
bool table_enough_without(struct table *t, uint64_t members);

#endif
