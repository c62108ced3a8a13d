/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The FUSE front end: takes requests from the kernel and answers them through fs.h. For the daemon
 * alone.
 */
#ifndef FS_FUSE_H
#define FS_FUSE_H

#include "fs.h"
#include "raid/uring.h"

struct fs_fuse;

struct fs_fuse_options {
	const char *source;	   /* shown as the device in /proc/mounts */
	const char *mount_point;   /* absolute */
	unsigned long mount_flags; /* MS_* of mount(2) */
	bool writeback_cache;
	bool debug; /* libfuse prints each request to stderr */
};

struct fs_fuse_hooks {
	/* The kernel and we have agreed on the protocol: the mount point works. Loop context. */
	void (*ready)(void *arg);
	/* Unmounted, or the connection was aborted: no request comes any more. Loop context, once.
	 */
	void (*gone)(void *arg);
	void *arg;
};

/*
 * Mounts, and serves from the loop from then on. Not from a coroutine. Messages are logged.
 * -errno of mount(2) or of /dev/fuse.
 */
int fs_fuse_open(struct fs *fs, struct loop *loop, struct uring *uring,
		 const struct fs_fuse_options *options, const struct fs_fuse_hooks *hooks,
		 struct fs_fuse **ret);
/* Waits (coroutine) until no request is being worked on. After gone. */
void fs_fuse_wait(struct fs_fuse *front);
/* Closes the connection, which makes what is still mounted answer ENOTCONN. Takes NULL. No request
 * may be left. */
void fs_fuse_close(struct fs_fuse *front);

#endif
