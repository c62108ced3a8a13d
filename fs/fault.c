/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The table of faults. F01 superblock, F02 tree, F03 inodes and directories, F04 names, F05 data,
 * F06 symlinks and attributes, F07 orphans, F09 the check itself.
 */
#include "fault.h"
#include "raid/base.h"

static const struct fault_row rows[FAULT_COUNT] = {
    [FAULT_SUPER_UNREADABLE] = {"F0101", FAULT_FATAL, "the superblock cannot be read"},
    [FAULT_SUPER_DAMAGED] = {"F0102", FAULT_FATAL, "the superblock is damaged"},
    [FAULT_SUPER_UNSUPPORTED] = {"F0103", FAULT_FATAL, "the filesystem needs a newer version"},
    [FAULT_SUPER_INODES] = {"F0104", FAULT_MINOR, "number of inodes is wrong"},
    [FAULT_SUPER_DATA_BLOCKS] = {"F0105", FAULT_MINOR, "number of data blocks is wrong"},
    [FAULT_SUPER_META_BLOCKS] = {"F0106", FAULT_MINOR, "number of metadata blocks is wrong"},
    [FAULT_SUPER_PREALLOC_BLOCKS] = {"F0107", FAULT_MINOR,
				     "number of preallocated blocks is wrong"},
    [FAULT_SUPER_INO_NEXT] = {"F0108", FAULT_WRONG, "an inode number would be given twice"},
    [FAULT_NODE_UNREADABLE] = {"F0201", FAULT_LOSS, "a tree node cannot be read"},
    [FAULT_NODE_DAMAGED] = {"F0202", FAULT_LOSS, "a tree node is damaged"},
    [FAULT_NODE_LEVEL] = {"F0203", FAULT_LOSS, "a tree node has the wrong level"},
    [FAULT_NODE_RANGE] = {"F0204", FAULT_LOSS, "a key is outside the range of its tree node"},
    [FAULT_NODE_TWICE] = {"F0205", FAULT_LOSS, "a tree node is referred to twice"},
    [FAULT_NODE_DEAD] = {"F0206", FAULT_LOSS, "a tree node is not allocated in the volume"},
    [FAULT_NODE_EMPTY] = {"F0207", FAULT_MINOR, "a tree node is empty"},
    [FAULT_NODE_LEAKED] = {"F0208", FAULT_MINOR, "a metadata block is allocated and unused"},
    [FAULT_NODE_FUTURE] = {"F0209", FAULT_WRONG, "a tree node is newer than the superblock"},
    [FAULT_ITEM_KEY] = {"F0301", FAULT_WRONG, "an item has an impossible key"},
    [FAULT_ITEM_NO_INODE] = {"F0302", FAULT_LOSS, "an item belongs to no inode"},
    [FAULT_ITEM_KIND] = {"F0303", FAULT_WRONG, "an item does not suit the type of its inode"},
    [FAULT_INODE_DAMAGED] = {"F0304", FAULT_LOSS, "an inode is damaged"},
    [FAULT_INODE_LINKS] = {"F0305", FAULT_WRONG, "the link count of an inode is wrong"},
    [FAULT_INODE_NO_NAME] = {"F0306", FAULT_LOSS, "an inode has no name"},
    [FAULT_INODE_BLOCKS] = {"F0307", FAULT_MINOR, "the block count of an inode is wrong"},
    [FAULT_INODE_NOT_ORPHAN] = {"F0308", FAULT_MINOR,
				"an inode without links is not listed as an orphan"},
    [FAULT_ROOT_MISSING] = {"F0309", FAULT_FATAL, "the root directory is missing"},
    [FAULT_DIR_ENTRIES] = {"F0310", FAULT_MINOR, "the entry count of a directory is wrong"},
    [FAULT_DIR_PARENT] = {"F0311", FAULT_WRONG, "a directory names the wrong parent"},
    [FAULT_DIR_NAMES] = {"F0312", FAULT_WRONG, "a directory has several names"},
    [FAULT_DIR_LOOP] = {"F0313", FAULT_LOSS, "directories contain each other"},
    [FAULT_NAME_DAMAGED] = {"F0401", FAULT_LOSS, "names in a directory are damaged"},
    [FAULT_NAME_HASH] = {"F0402", FAULT_LOSS, "a name is stored in the wrong place"},
    [FAULT_NAME_TWICE] = {"F0403", FAULT_WRONG, "a name occurs twice in a directory"},
    [FAULT_NAME_DANGLING] = {"F0404", FAULT_LOSS, "a name refers to no inode"},
    [FAULT_NAME_TYPE] = {"F0405", FAULT_MINOR, "a name tells the wrong file type"},
    [FAULT_NAME_INVALID] = {"F0406", FAULT_WRONG, "a name cannot be one"},
    [FAULT_EXTENT_DAMAGED] = {"F0501", FAULT_LOSS, "an extent is damaged"},
    [FAULT_EXTENT_OVERLAP] = {"F0502", FAULT_LOSS, "extents of a file overlap"},
    [FAULT_EXTENT_DEAD] = {"F0503", FAULT_LOSS, "file data is not allocated in the volume"},
    [FAULT_EXTENT_SHARED] = {"F0504", FAULT_LOSS, "two extents claim the same block"},
    [FAULT_EXTENT_INLINE] = {"F0505", FAULT_WRONG,
			     "a file has inline data and an extent in the same place"},
    [FAULT_DATA_LEAKED] = {"F0506", FAULT_MINOR, "a data block is allocated and unused"},
    [FAULT_BACKREF_DAMAGED] = {"F0507", FAULT_WRONG, "a back-reference is damaged"},
    [FAULT_BACKREF_MISSING] = {"F0508", FAULT_WRONG, "an extent has no back-reference"},
    [FAULT_BACKREF_WRONG] = {"F0509", FAULT_WRONG, "a back-reference fits no extent"},
    [FAULT_SYMLINK_DAMAGED] = {"F0601", FAULT_LOSS, "the target of a symlink is damaged"},
    [FAULT_XATTR_DAMAGED] = {"F0602", FAULT_LOSS, "an extended attribute is damaged"},
    [FAULT_XATTR_HASH] = {"F0603", FAULT_LOSS,
			  "an extended attribute is stored in the wrong place"},
    [FAULT_ORPHAN_DAMAGED] = {"F0701", FAULT_MINOR, "an orphan item is damaged"},
    [FAULT_ORPHAN_WRONG] = {"F0702", FAULT_WRONG, "an inode is listed as an orphan and is none"},
    [FAULT_INCOMPLETE] = {"F0901", FAULT_WRONG,
			  "damage keeps part of the filesystem from being checked"},
};

const struct fault_row *fault_row(enum fault fault)
{
	assert(fault < FAULT_COUNT);
	return &rows[fault];
}

const char *fault_severity_text(enum fault_severity severity)
{
	static const char *const texts[] = {"fatal", "loss", "wrong", "minor"};
	assert(severity < ARRAY_SIZE(texts));
	return texts[severity];
}
