/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One node of the tree: its bytes, and the nodes in memory. The bytes are the same in memory and on
 * disk, so that staging is a copy. Used by btree.c, atom.c, mount.c and check.c.
 *
 * Nothing here yields but node_load.
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include "private.h"

/* Inner nodes hold 126 children; sixteen levels are more than any volume can hold blocks for. */
#define TREE_HEIGHT_MAX 16u
#define NODE_HEAD_BYTES 64u
#define NODE_BODY_BYTES (BLOCK_BYTES - NODE_HEAD_BYTES)
/* What an item takes: values are aligned to 8, so that the structs in them may be pointed to. */
#define NODE_ITEM_BYTES(len) ((unsigned)sizeof(struct slot_disk) + ROUND_UP((unsigned)(len), 8u))
static_assert(2 * NODE_ITEM_BYTES(ITEM_BYTES_MAX) <= NODE_BODY_BYTES,
	      "a split always finds a place");

struct node {
	struct node *hash_next;
	struct list link; /* clean: lru, oldest first; dirty: dirty list; else on none */
	struct list fix;  /* underfull after a bt_del: looked at when the atom ends */
	struct key fix_key;
	uint64_t lba;
	enum { NODE_LOADING, NODE_CLEAN, NODE_DIRTY, NODE_DEAD } state;
	unsigned pins;	   /* not evicted; a dead one is freed when the last goes */
	unsigned used;	   /* bytes of body that slots and values take */
	unsigned last_pos; /* of the last insert: a run of ascending ones splits at its end */
	struct node_disk disk;
};

/* ---- bytes ---- */

static inline unsigned node_level(const struct node_disk *d)
{
	return from_le16(d->level);
}
static inline unsigned node_count(const struct node_disk *d)
{
	return from_le16(d->count);
}
static inline const struct slot_disk *node_slot(const struct node_disk *d, unsigned i)
{
	return (const struct slot_disk *)d->body + i;
}
static inline struct key node_key(const struct node_disk *d, unsigned i)
{
	const struct slot_disk *s = node_slot(d, i);
	return (struct key){from_le64(s->key.ino), from_le64(s->key.off)};
}
static inline struct bt_value node_value(const struct node_disk *d, unsigned i)
{
	const struct slot_disk *s = node_slot(d, i);
	return (struct bt_value){(const uint8_t *)d + from_le16(s->off), from_le16(s->len)};
}
/* Inner nodes: where the i-th child is. */
static inline uint64_t node_child(const struct node_disk *d, unsigned i)
{
	return from_le64(*(const le64 *)node_value(d, i).data);
}
static inline unsigned node_room(const struct node *n)
{
	return NODE_BODY_BYTES - n->used;
}

/* XXH3-64 of a metadata block with head.sum taken as 0. */
uint64_t meta_sum(const void *block);
/* Fills the head of a metadata block and its sum. */
void meta_seal(void *block, uint64_t magic, const struct uuid *fs, uint64_t lba, uint64_t gen);
/* Head of any metadata block as it comes from disk: NULL, or what is wrong with it. */
const char *meta_wrong(const void *block, uint64_t magic, const struct uuid *fs, uint64_t lba);
/* The same for all of a node: head, slots in order, values inside and apart, lengths. NULL: it may
 * be used. */
const char *node_wrong(const struct node_disk *d, const struct uuid *fs, uint64_t lba);
unsigned node_used(const struct node_disk *d);

/* Position of the first slot with key >= `key`. */
unsigned node_find(const struct node_disk *d, struct key key, bool *ret_found);
/* Inner nodes: position of the child whose range holds key. */
unsigned node_find_child(const struct node_disk *d, struct key key);
/* The caller has checked that there is room; the node becomes dirty by node_dirty, not by these. */
void node_insert(struct node *n, unsigned pos, struct key key, const void *value, unsigned len);
void node_remove(struct node *n, unsigned pos);
/* Another value of the same length rounded up to 8. */
void node_replace(struct node *n, unsigned pos, const void *value, unsigned len);
/* Moves the slots from pos on to the end of `to`. */
void node_move_tail(struct node *from, unsigned pos, struct node *to);
void node_set_key(struct node *n, unsigned pos, struct key key);
/* An empty node in memory that is in no cache; for fs_format. */
void node_init_disk(struct node_disk *d, unsigned level);

/* ---- the nodes in memory ---- */

int nodes_init(struct fs *fs);
/* Forgets everything, dirty or not. Takes a fs without nodes. */
void nodes_exit(struct fs *fs);
/* NULL: not in memory (or just being loaded). */
struct node *node_get(struct fs *fs, uint64_t lba);
/*
 * Brings a node into memory and pins it. Yields. Two that ask for the same one share one read.
 * -EBADMSG: its bytes are wrong (named in the log), -EIO, -ENOMEM. -EAGAIN: another one's load was
 * waited for, and it failed or the node is out of memory again: look where it is now. The address
 * must have been looked up without a yield before the call.
 */
int node_load(struct fs *fs, uint64_t lba, struct node **ret);
void node_unpin(struct fs *fs, struct node *n);
/* Memory for n new nodes is kept ready from here on. -ENOMEM. */
int nodes_spare(struct fs *fs, unsigned n);
unsigned nodes_spare_count(const struct fs *fs);
/* A new node, live and dirty: only after raid_meta_ready and nodes_spare said so. flags of
 * raid_alloc_meta. */
struct node *node_new(struct fs *fs, unsigned level, unsigned flags);
/* Its block dies with this transaction. */
void node_free(struct fs *fs, struct node *n);
void node_dirty(struct fs *fs, struct node *n);
/* Drops clean nodes until the cache is no larger than it may be. Never inside an atom. */
void nodes_shrink(struct fs *fs);
void node_fix_later(struct fs *fs, struct node *n, struct key key);
/* The next node to be fixed, taken off the list; NULL: none left. */
struct node *node_fix_next(struct fs *fs);

/* mount.c, for check.c: what is wrong with a superblock, NULL: nothing; features (-ENOTSUP,
 * logged); its bytes. */
const char *super_wrong(const struct super_disk *s, const struct uuid *fs);
int super_unsupported(const struct super_disk *s, bool *ret_read_only);
int super_read(struct raid *raid, struct super_disk *ret);

/* btree.c, for atom.c: merges and frees what the atom left underfull. */
void btree_fix(struct fs *fs);

#endif
