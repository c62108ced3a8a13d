/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Everything that can be wrong with a filesystem, one row each. The id is permanent: scripts,
 * manuals and bug reports use it; rows are added, never renumbered.
 */
#ifndef FS_FAULT_H
#define FS_FAULT_H

enum fault_severity {
	FAULT_FATAL, /* cannot be mounted */
	FAULT_LOSS,  /* data or names are lost, or another file's may be returned */
	FAULT_WRONG, /* inconsistent; nothing is lost yet, writing may make it worse */
	FAULT_MINOR, /* a count or a hint is off, or space is wasted */
};

enum fault {
	FAULT_SUPER_UNREADABLE,
	FAULT_SUPER_DAMAGED,
	FAULT_SUPER_UNSUPPORTED,
	FAULT_SUPER_INODES,
	FAULT_SUPER_DATA_BLOCKS,
	FAULT_SUPER_META_BLOCKS,
	FAULT_SUPER_PREALLOC_BLOCKS,
	FAULT_SUPER_INO_NEXT,
	FAULT_NODE_UNREADABLE,
	FAULT_NODE_DAMAGED,
	FAULT_NODE_LEVEL,
	FAULT_NODE_RANGE,
	FAULT_NODE_TWICE,
	FAULT_NODE_DEAD,
	FAULT_NODE_EMPTY,
	FAULT_NODE_LEAKED,
	FAULT_NODE_FUTURE,
	FAULT_ITEM_KEY,
	FAULT_ITEM_NO_INODE,
	FAULT_ITEM_KIND,
	FAULT_INODE_DAMAGED,
	FAULT_INODE_LINKS,
	FAULT_INODE_NO_NAME,
	FAULT_INODE_BLOCKS,
	FAULT_INODE_NOT_ORPHAN,
	FAULT_ROOT_MISSING,
	FAULT_DIR_ENTRIES,
	FAULT_DIR_PARENT,
	FAULT_DIR_NAMES,
	FAULT_DIR_LOOP,
	FAULT_NAME_DAMAGED,
	FAULT_NAME_HASH,
	FAULT_NAME_TWICE,
	FAULT_NAME_DANGLING,
	FAULT_NAME_TYPE,
	FAULT_NAME_INVALID,
	FAULT_EXTENT_DAMAGED,
	FAULT_EXTENT_OVERLAP,
	FAULT_EXTENT_DEAD,
	FAULT_EXTENT_SHARED,
	FAULT_EXTENT_INLINE,
	FAULT_DATA_LEAKED,
	FAULT_BACKREF_DAMAGED,
	FAULT_BACKREF_MISSING,
	FAULT_BACKREF_WRONG,
	FAULT_SYMLINK_DAMAGED,
	FAULT_XATTR_DAMAGED,
	FAULT_XATTR_HASH,
	FAULT_ORPHAN_DAMAGED,
	FAULT_ORPHAN_WRONG,
	FAULT_INCOMPLETE,
	FAULT_COUNT,
};

struct fault_row {
	const char *id;
	enum fault_severity severity;
	const char *text;
};
const struct fault_row *fault_row(enum fault fault);
const char *fault_severity_text(enum fault_severity severity);

#endif
