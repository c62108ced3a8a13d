/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The map from file blocks to logical addresses, and back. All in atoms.
 */
#ifndef FS_EXTENT_H
#define FS_EXTENT_H

#include "private.h"

#define LBA_HOLE      (UINT64_MAX - 1) /* of a change: nothing there any more */
#define EXTENT_TO_END (1ull << 50)     /* a count that reaches behind the end of any file */

struct extent {
	uint64_t off;
	uint64_t lba; /* LBA_NONE: promised */
	uint32_t count;
};
static inline uint64_t extent_end(const struct extent *x)
{
	return x->off + x->count;
}
/* The extent that holds `block`, or else the first one behind it. -ENOENT: neither. */
int extent_find(struct fs *fs, uint64_t ino, uint64_t block, struct extent *ret);

#define EXTENT_EDIT_OLD_MAX 24 /* extents that one change takes away */
#define EXTENT_EDIT_NEW_MAX 3

/* A planned change. */
struct extent_edit {
	uint64_t ino;
	uint64_t end;  /* blocks up to here are dealt with */
	bool complete; /* that is all that was asked for */
	unsigned old_count, new_count, dead_count;
	struct extent old[EXTENT_EDIT_OLD_MAX], new[EXTENT_EDIT_NEW_MAX];
	struct raid_run dead[EXTENT_EDIT_OLD_MAX];
	struct raid_run live;
	int64_t data_delta, promised_delta;
};
/*
 * Plans that blocks [off, off + count) stand at lba and following (allocated and written), or are
 * promised (LBA_NONE), or are nowhere (LBA_HOLE). A change that would take away too many extents is
 * cut short: see end. Prepares all keys.
 */
int extent_plan(struct fs *fs, uint64_t ino, uint64_t off, uint64_t count, uint64_t lba,
		struct extent_edit *ret);
/* Carries it out: items, back-references, live and dead blocks, counters. Not the inode: that is
 * extent_account's. */
void extent_apply(struct fs *fs, const struct extent_edit *e);
void extent_account(struct inode_disk *d, const struct extent_edit *e);

/*
 * Not in an atom, yields: takes away the blocks behind the end of a file in steps and then the
 * orphan item that says so (if the inode has names). The inode's lock is held, or nobody else is
 * there.
 */
int extent_cut_tail(struct fs *fs, uint64_t ino);

#endif
