/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Every byte that fs/ writes. trussfs(5) says the same in prose; the two change in one commit.
 *
 * One B+tree holds everything. Its nodes are metadata blocks of the volume, 4 KiB each, updated in place
 * through the journal. The superblock stands at LBA_ROOT.
 */
#ifndef FS_FORMAT_H
#define FS_FORMAT_H

#include "raid/base.h"

#define SUPER_MAGIC 0x7265707573737274ull /* "trssuper" */
#define NODE_MAGIC 0x65646f6e73737274ull  /* "trssnode" */

#define FS_NAME_BYTES_MAX 255
#define FS_LINK_MAX 65000u
#define FS_SYMLINK_BYTES_MAX 4095
#define FS_XATTR_NAME_BYTES_MAX 255
#define FS_XATTR_VALUE_BYTES_MAX 65536u /* long values are cut into several items */
#define FS_FILE_BYTES_MAX (1ull << 55)  /* 2^43 blocks */
#define FS_ROOT_INO 1ull
#define FS_INODE_FIRST 2ull

/* One bit each; an unknown incompat bit refuses the mount, an unknown ro_compat bit a writable one. */
#define FS_FEATURES_COMPAT 0ull
#define FS_FEATURES_RO_COMPAT 0ull
#define FS_FEATURES_INCOMPAT 0ull

/* Head of every metadata block. */
struct meta_head {
	le64 magic;
	le64 sum;   /* XXH3-64 of the block with this field 0 */
	struct uuid fs;
	le64 lba;   /* own address */
	le64 gen;   /* transaction counter when last changed */
};
static_assert(sizeof(struct meta_head) == 48, "pinned");

struct super_disk {
	struct meta_head head;
	le32 version;
	le32 height;      /* levels of the tree, 1: the root is a leaf */
	le64 root;        /* lba of the root node */
	le64 ino_next;    /* inode numbers grow and are not used twice */
	le64 inodes;      /* that exist, orphans included */
	le64 data_blocks; /* live */
	le64 meta_blocks; /* live: tree nodes and this block */
	le64 prealloc_blocks; /* promised by fallocate, not yet written */
	le64 hash_seed;   /* of names */
	le64 compat, ro_compat, incompat;
	le64 created_s;
	le32 mount_count;
	le32 flags;
	uint8_t reserved[4096 - 152];
};
static_assert(sizeof(struct super_disk) == 4096, "one block");

/* A node: head, then an array of slots growing up, values growing down from the end. */
struct node_disk {
	struct meta_head head;
	le16 level;    /* 0: leaf */
	le16 count;
	le16 low;      /* lowest byte used by values, from the start of the block */
	le16 reserved0;
	le32 reserved1[2];
	uint8_t body[4096 - 64];
};
static_assert(sizeof(struct node_disk) == 4096, "one block");

struct key_disk {
	le64 ino;
	le64 off; /* type << 56 | offset */
};
struct slot_disk {
	struct key_disk key;
	le16 off, len; /* of the value, in the block; inner nodes: an 8-byte lba */
	le32 reserved;
};
static_assert(sizeof(struct slot_disk) == 24, "pinned");

/* Longest value: two items always fit into a node. */
#define ITEM_BYTES_MAX 1900u

enum item_type {
	TYPE_INODE = 1,   /* off 0: struct inode_disk */
	TYPE_XATTR = 2,   /* off hash of the name: one or more struct xattr_disk; see xattr.c */
	TYPE_NAME = 3,    /* off hash of the name: one or more struct name_disk (a bucket) */
	TYPE_SYMLINK = 4, /* off n: n-th piece of the target */
	TYPE_INLINE = 5,  /* off 0: the whole data of a tiny file */
	TYPE_EXTENT = 6,  /* off first block: struct extent_disk */
	TYPE_BACKREF = 7, /* ino BACKREF_INO | chunk, off block in chunk: struct backref_disk */
	TYPE_ORPHAN = 8,  /* ino 0, off inode number: empty; links 0 or truncation under way */
};
#define BACKREF_INO (1ull << 62)
#define KEY_OFF_BITS 56
#define KEY_OFF_MASK ((1ull << KEY_OFF_BITS) - 1)

struct time_disk {
	le64 s; /* two's complement */
	le32 ns;
	le32 reserved;
};
struct inode_disk {
	le32 mode, links, uid, gid;
	le64 size, blocks; /* blocks: allocated, in BLOCK_BYTES, promised ones included */
	le32 generation;   /* never 0; differs when a number were ever used again */
	le32 rdev_major, rdev_minor;
	le32 flags;
	le64 parent;       /* directory of one of its names: to tell a path; 0 unknown */
	struct time_disk atime, mtime, ctime, btime;
	le64 version;      /* counts changes */
	le64 subdirs_or_entries; /* directories: entries */
	le64 reserved[2];
};
static_assert(sizeof(struct inode_disk) == 152, "pinned");

struct name_disk {
	le64 ino;
	uint8_t dtype; /* DT_* */
	uint8_t name_len;
	uint8_t reserved[6];
	/* name_len bytes, no NUL, padded to 8 */
};
static_assert(sizeof(struct name_disk) == 16, "pinned");

struct extent_disk {
	le64 lba;   /* LBA_NONE: promised by fallocate, reads as zeros */
	le32 count; /* blocks */
	le32 reserved;
};
static_assert(sizeof(struct extent_disk) == 16, "pinned");
#define EXTENT_BLOCKS_MAX (1u << 20)

struct backref_disk {
	le64 ino;
	le64 off; /* first file block */
	le32 count;
	le32 reserved;
};
static_assert(sizeof(struct backref_disk) == 24, "pinned");

struct xattr_disk {
	le16 name_len;
	le16 reserved;
	le32 value_len; /* whole */
	le32 piece;     /* which piece of the value follows */
	le32 piece_len;
	/* name (piece 0 only: every piece of one attribute hangs at hash + piece), value piece; padded to 8 */
};
static_assert(sizeof(struct xattr_disk) == 16, "pinned");

#endif
