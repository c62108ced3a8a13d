/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon: one mounted filesystem, from opening its members to closing them.
 */
#ifndef FS_MAIN_H
#define FS_MAIN_H

#include "raid/base.h"

struct daemon_options {
	struct uuid fs;
	const char *name;	  /* label, for finding it */
	const char *source;	  /* as given */
	const char *mount_point;  /* absolute, resolved */
	const char *const *paths; /* of the members found, absolute */
	unsigned path_count;
	unsigned long mount_flags;
	bool read_only;
	bool writeback_cache;
	bool debug;
	uint64_t cache_bytes; /* I/O memory; 0: by the machine's memory */
	uint64_t commit_ns;   /* 0: 5 s */
};

#define DAEMON_CACHE_BYTES_MIN (32ull << 20)

/*
 * Mounts, calls ready(arg) when the mount point works, serves, and returns when the filesystem is
 * unmounted and everything is on the members. SIGTERM and SIGINT unmount. 0; -EBUSY: mounted or in
 * use (logged); else -errno, logged.
 */
int daemon_run(const struct daemon_options *options, void (*ready)(void *arg), void *arg);

#endif
