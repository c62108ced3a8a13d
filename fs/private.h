/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * struct fs and what the parts of fs/ ask of each other. Not for front end, tools or tests of behaviour.
 */
#ifndef FS_PRIVATE_H
#define FS_PRIVATE_H

#include "btree.h"
#include "fs.h"
#include "raid/buf.h"
#include "raid/co.h"

struct node_cache;  /* node.c: nodes in memory, clean ones evicted, dirty ones staged by pre_commit */
struct inode_table; /* inode.c: references, write error counts */
struct writeback;   /* writeback.c: dirty blocks by (inode, block), the flusher */
struct cleaner;     /* clean.c: moves blocks, so that whole stripes become free */

struct fs {
	struct loop *loop;
	struct raid *raid;
	struct fs_options options;
	struct uuid uuid; /* of the filesystem: stands in every block */
	struct super_disk super; /* as last staged; counters and root below are the truth */
	struct fs_counters counters;
	uint64_t root_lba;
	unsigned height;
	uint64_t hash_seed;
	uint64_t gen;       /* of changes: stamped into nodes */
	bool super_dirty;
	bool read_only;
	struct node_cache *nodes;
	struct inode_table *inodes;
	struct writeback *wb;
	struct cleaner *cleaner; /* NULL: there is none (yet, or any more) */
	/* Calls of the volume's that look things up here: whoever frees us waits for their end (mount.c). */
	unsigned naming;
	bool leaving;
	struct co_cond named;
	/* of the atom that runs */
	struct {
		unsigned kind;
		uint64_t missing_lba;  /* LBA_NONE: none */
		unsigned keys;         /* prepared so far */
		unsigned bytes;        /* that the prepared items may add to one leaf */
		unsigned chain;        /* levels that one put may split, at most */
		uint32_t meta_wanted;  /* blocks for splits prepared so far */
		bool meta_short;
		bool changed;          /* the first bt_put or bt_del has happened: -EAGAIN is a bug from here on */
	} atom;
};

/* inode.c */
int inodes_init(struct fs *fs);
void inodes_exit(struct fs *fs);
/* After mount: everything on the orphan list goes (nobody holds it). */
int inodes_reap_orphans(struct fs *fs);

/* writeback.c */
int writeback_init(struct fs *fs);  /* starts the flusher unless read-only */
int writeback_stop(struct fs *fs);  /* writes everything, ends the flusher */
void writeback_exit(struct fs *fs); /* frees, writes nothing */
uint64_t writeback_dirty_bytes(const struct fs *fs); /* not yet written; never yields */

/* clean.c */
int cleaner_init(struct fs *fs);  /* starts it unless read-only */
void cleaner_exit(struct fs *fs); /* waits for the end of what it is moving. Yields */

/* node.c and mount.c: hooks given to the volume */
void nodes_pre_commit(void *ctx);
uint64_t nodes_dirty_blocks(void *ctx);
/* node.c: offset of a name in TYPE_NAME keys; never 0, 1 or 2. */
uint64_t fs_name_hash(const struct fs *fs, const char *name, size_t len);

#endif
