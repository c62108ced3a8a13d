/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Inodes: the item in the tree, and what is known of an inode in memory only: references, dirty
 * data, the size that is not yet on disk, write errors.
 *
 * "In atoms" means: called from within an atom, never yields, -EAGAIN where it returns int.
 */
#ifndef FS_INODE_H
#define FS_INODE_H

#include "raid/heap.h"
#include "private.h"

struct wb_node;

#define INLINE_BYTES_MAX 1024u /* a file no longer than this keeps its data in the tree */

/* Exists while anything in it says something: references, pins, dirty blocks. */
struct inode {
	struct list node; /* chain of the table */
	uint64_t ino;
	uint64_t refs;	   /* fs_ref: the kernel's */
	unsigned pins;	   /* operations that use this struct */
	bool orphan;	   /* its last name is gone: freed with the last reference */
	bool reaping;	   /* being freed: takes no new names */
	bool never_inline; /* fallocate has promised block 0 */
	bool truncating;   /* the orphan item in the tree says "truncation under way" */
	bool hurt;	   /* that some of it cannot be read has been said */
	struct list reap_node;

	/*
	 * Data of one file: writers, truncation and whatever takes blocks away are exclusive;
	 * writing in place (which must not see its block die) is shared. Readers take nothing: they
	 * see one instant (file.c).
	 */
	struct co_rwlock lock;

	/* While there are dirty blocks these stand before the ones on disk. */
	bool over;
	uint64_t size;
	struct timespec mtime, ctime;

	/* writeback.c */
	struct wb_node *blocks; /* radix tree of dirty blocks by file block */
	unsigned blocks_height;
	uint64_t dirty_count;	/* blocks in the tree */
	uint64_t fresh_count;	/* of them, those that will need space of their own */
	struct list dirty;	/* to be written out, oldest first */
	struct list writing;	/* being written out */
	struct list promises;	/* sizes that syncs under way have promised */
	struct list wb_link;	/* of those with something on `dirty` */
	struct heap_entry oldest; /* of the same; key: seq of the first of `dirty`, or less */
	struct co_cond wb_cond; /* blocks left `writing` */
	uint64_t fail_count;	/* write-outs that failed */
	int fail_error;
	uint64_t err_seq; /* times that dirty data was given up */
	int err;
};

/* The struct of an inode, which stays until inode_unpin. NULL without memory. Whether the inode
 * exists is not asked. */
struct inode *inode_pin(struct fs *fs, uint64_t ino);
/* NULL when nothing is known of it in memory. Not pinned. */
struct inode *inode_find(struct fs *fs, uint64_t ino);
void inode_unpin(struct fs *fs, struct inode *i);
/* fs_ref that can say -ENOMEM. Never yields. */
int inode_ref(struct fs *fs, uint64_t ino);
/* Called when something that kept the struct alive is gone; may free it. */
void inode_settle(struct fs *fs, struct inode *i);

/*
 * In atoms. -ESTALE: no such inode. The times are the newest ones; the size is the one on disk,
 * inode_size gives the newest.
 */
int inode_load(struct fs *fs, uint64_t ino, struct inode_disk *ret);
int inode_prepare(struct fs *fs, uint64_t ino);
/* Counts the version, keeps times in memory and on disk together, and lets the size on disk follow
 * (see inode.c). */
void inode_store(struct fs *fs, uint64_t ino, struct inode_disk *d);
uint64_t inode_size(struct fs *fs, uint64_t ino, const struct inode_disk *d);
void inode_attr(struct fs *fs, uint64_t ino, const struct inode_disk *d, struct fs_attr *ret);
/* Fills in a new inode with the next number (which is only used up by inode_create). */
uint64_t inode_fresh(struct fs *fs, struct inode_disk *d, uint32_t mode, uint32_t uid, uint32_t gid,
		     uint64_t parent);
void inode_create(struct fs *fs, uint64_t ino, struct inode_disk *d);
void inode_times_now(struct fs *fs, struct inode_disk *d, bool mtime);
/* suid and sgid go as a write or a change of owner makes them go. Returns whether something
 * changed. */
bool inode_drop_suid(struct inode_disk *d);
static inline uint32_t inode_mode(const struct inode_disk *d)
{
	return from_le32(d->mode);
}
/* One link less; at 0 (directories: whenever all is gone) the caller puts the orphan item and calls
 * inode_orphaned. */
static inline struct key orphan_key(uint64_t ino)
{
	return (struct key){0, KEY_OFF(TYPE_ORPHAN, ino)};
}
/* In atoms, among the changes: the pinned inode has lost its last name. */
void inode_orphaned(struct fs *fs, struct inode *i);
/* Waits until nothing is being freed. Yields. */
void inodes_reap_wait(struct fs *fs);
bool inodes_reaping(const struct fs *fs);

void inode_now(struct fs *fs, struct timespec *ret);
struct time_disk time_to_disk(struct timespec t);
struct timespec time_from_disk(struct time_disk t);

/*
 * xattr.c, in atoms: removes the capabilities of a file that is written to or changes its owner.
 * Prepare says whether there are any; drop only if so.
 */
int xattr_caps_prepare(struct fs *fs, uint64_t ino, bool *ret_any);
void xattr_caps_drop(struct fs *fs, uint64_t ino);

#endif
