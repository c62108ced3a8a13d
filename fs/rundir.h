/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * /run/trussfs: one lock file and one control socket for each mounted filesystem, named by its
 * UUID.
 *
 * UUID.pid is locked (an open file description lock) from before the members are opened until they
 * are closed and the daemon ends. It holds lines of `key value`: pid, mount, source, name; then
 * "closing 1" once the filesystem is no longer mounted; at the very end "result N", 0 or a negative
 * errno. So whoever waits for the lock knows that everything is written, or that it is not.
 */
#ifndef FS_RUNDIR_H
#define FS_RUNDIR_H

#include "raid/base.h"
#include <limits.h>

struct rundir_lock;

struct rundir_entry {
	struct uuid fs;
	int pid;
	char mount[PATH_MAX], source[PATH_MAX], name[64];
	bool closing;
	bool has_result;
	int result;
};

/* For the daemon. -EBUSY: another one has it. */
int rundir_lock(const struct uuid *fs, struct rundir_lock **ret);
/* Replaces the content. Fields other than fs and has_result are written. */
int rundir_write(struct rundir_lock *lock, const struct rundir_entry *entry);
int rundir_append(struct rundir_lock *lock, const char *key, long value);
/* Removes the files and lets go. Takes NULL. */
void rundir_unlock(struct rundir_lock *lock);

/* The socket's path. */
void rundir_socket_path(const struct uuid *fs, char out[PATH_MAX]);
/*
 * The filesystem of a daemon that lives. The file stays open in *ret_fd (not locked), to wait for
 * its end; ret_fd may be NULL. -ENOENT: not mounted.
 */
int rundir_find_uuid(const struct uuid *fs, struct rundir_entry *ret, int *ret_fd);
int rundir_find_mount(const char *mount_point, struct rundir_entry *ret, int *ret_fd);
/* By label; -EEXIST: several. */
int rundir_find_name(const char *name, struct rundir_entry *ret, int *ret_fd);
/* Calls fn for each daemon that lives, until it returns non-zero, which is then the result. */
int rundir_for_each(int (*fn)(void *arg, const struct rundir_entry *entry), void *arg);
/* What the file behind an open descriptor says now. */
int rundir_read(int fd, struct rundir_entry *ret);
/* Whether the daemon still holds it. */
bool rundir_held(int fd);

/* 36 characters. -EINVAL. */
int uuid_parse_text(const char *text, struct uuid *ret);

#endif
