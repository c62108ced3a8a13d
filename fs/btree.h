/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The tree. Operations on it never yield: when a node is not in memory they return -EAGAIN and remember which
 * (and likewise when no metadata block is ready). An *atom* is a function that does one whole filesystem operation: it first looks up
 * and prepares every key it will touch, and only then changes anything. fs_atom runs it, loads what was missing, and runs it again from its
 * start, so what an atom does happens at one instant: no locks, no half-done states, no errors after the first change.
 *
 *     static int atom(struct fs *fs, void *arg)
 *     {
 *             r = bt_get(...);            look, decide, fail: nothing has changed yet
 *             r = bt_prepare(fs, key, bytes) for each key that will be put or deleted;
 *             if (r) return r;            -EAGAIN: will be called again
 *             bt_put(...); bt_del(...);   cannot fail any more
 *             return 0;
 *     }
 */
#ifndef FS_BTREE_H
#define FS_BTREE_H

#include "fs.h"

struct key {
	uint64_t ino;
	uint64_t off; /* KEY(type, offset) */
};
#define KEY_OFF(type, o) ((uint64_t)(type) << KEY_OFF_BITS | (o))
#define KEY_TYPE(k) ((unsigned)((k).off >> KEY_OFF_BITS))
#define KEY_OFFSET(k) ((k).off & KEY_OFF_MASK)
static inline int key_cmp(struct key a, struct key b)
{
	if (a.ino != b.ino)
		return a.ino < b.ino ? -1 : 1;
	if (a.off != b.off)
		return a.off < b.off ? -1 : 1;
	return 0;
}

typedef int fs_atom_fn(struct fs *fs, void *arg);
enum {
	ATOM_READ = 0,
	ATOM_WRITE = 1,    /* throttled; -EROFS when read-only; -EIO after the volume stopped taking writes */
	ATOM_FREES = 2,    /* deletes, or must not fail on a full filesystem: may use the reserve */
	ATOM_INTERNAL = 4, /* writeback, which others wait for: may use the reserve */
	/* An inode's lock is held: on -ENOSPC the caller lets go of it and calls writeback_make_space. Else fs_atom does. */
	ATOM_LOCKED = 8,
	/* Can be done without: leaves alone what dirty data and others need. -ENOSPC at once. */
	ATOM_SPARE = 16,
};
/* Runs the atom until it returns something but -EAGAIN. Yields. -EBADMSG, -EIO from loading. */
int fs_atom(struct fs *fs, unsigned kind, fs_atom_fn *fn, void *arg);

/* A found value lies inside the cached node: valid until the next bt_put, bt_del or yield. */
struct bt_value {
	const void *data;
	unsigned len;
};
/* -ENOENT, -EAGAIN. */
int bt_get(struct fs *fs, struct key key, struct bt_value *ret);
/* First item >= key / last item <= key. -ENOENT: none at all. */
int bt_ge(struct fs *fs, struct key key, struct key *ret_key, struct bt_value *ret);
int bt_le(struct fs *fs, struct key key, struct key *ret_key, struct bt_value *ret);
/*
 * Makes sure that bt_put or bt_del of key, with a value of up to `bytes`, cannot fail in this atom: its path is in memory and
 * blocks for splits are ready (counts accumulate over the atom). -EAGAIN, -ENOSPC (from fs_atom).
 */
int bt_prepare(struct fs *fs, struct key key, unsigned bytes);
/* Insert or replace; delete what exists. Only prepared keys. Assert on misuse. */
void bt_put(struct fs *fs, struct key key, const void *value, unsigned len);
void bt_del(struct fs *fs, struct key key);

/* The superblock's counters in memory; changed inside write atoms only, staged with the next commit. */
struct fs_counters {
	uint64_t ino_next, inodes, data_blocks, meta_blocks, prealloc_blocks;
};
struct fs_counters *fs_counters(struct fs *fs);

#endif
