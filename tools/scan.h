/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Finding members: reading the labels of block devices and image files, without a lock and without
 * a loop.
 */
#ifndef TOOLS_SCAN_H
#define TOOLS_SCAN_H

#include "raid/label.h"

#define SCAN_MEMBERS_MAX 1024

struct scan_member {
	char *path;	    /* absolute */
	struct label label; /* with its table */
	uint64_t size_bytes;
	uint64_t rdev;	   /* block devices: to know one under two names */
	uint64_t dev, ino; /* image files */
};

struct scan {
	struct scan_member *members;
	unsigned count, cap;
	unsigned unusable; /* paths given, that are no member of what the others are members of */
};

void scan_init(struct scan *scan);
void scan_clear(struct scan *scan);
/*
 * Looks at one path. 0: it is a member and stands in the scan (once). -ENODATA: no label; -EBADMSG,
 * -ENOTSUP, -EIO ...: see label_probe_fd. Nothing is logged.
 */
int scan_path(struct scan *scan, const char *path);
/* Every block device that nothing else is built on. Unreadable ones are passed over. */
void scan_block_devices(struct scan *scan);
/* Every regular file in a directory, not below it. */
int scan_directory(struct scan *scan, const char *dir);

/*
 * Resolves what a user names: one member, several with colons between, LABEL=name, UUID=uuid.
 * Members of the one filesystem meant are left in the scan, all others removed. scan_dirs: more
 * directories to look into. 0, or -errno and a message logged.
 */
int scan_source(struct scan *scan, const char *source, const char *const *scan_dirs,
		unsigned scan_dir_count, struct uuid *ret_fs);
/* The same for several paths that are given one by one; a single one is completed by scanning. */
int scan_sources(struct scan *scan, char *const *paths, unsigned count, struct uuid *ret_fs);
/* The member with the newest table of a filesystem; NULL: none. */
const struct scan_member *scan_newest(const struct scan *scan, const struct uuid *fs);

#endif
