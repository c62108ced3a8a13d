/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A tree of names in memory, for servers that keep no files: enough for creating, finding, renaming,
 * listing and removing. One lock around it is the caller's.
 */
#ifndef BENCH_NAMES_H
#define BENCH_NAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct names_inode {
	struct names_inode *next;             /* of the hash bucket */
	struct names_inode *parent;
	struct names_inode *children, *younger, *older; /* siblings, newest first */
	char *name;
	struct stat st;
	uint64_t refs;                        /* that the kernel has */
	uint64_t cookie;                      /* in the directory; falls from newest to oldest */
	bool linked;
};

struct names_inode *names_root(void);
/* NULL: absent. */
struct names_inode *names_find(struct names_inode *dir, const char *name);
/* The name must be absent. NULL without memory. */
struct names_inode *names_add(struct names_inode *dir, const char *name, mode_t mode);
void names_remove(struct names_inode *n);
int names_move(struct names_inode *n, struct names_inode *dir, const char *name);
void names_ref(struct names_inode *n);
/* Frees it when the last reference has gone and it has no name. */
void names_unref(struct names_inode *n, uint64_t count);

#endif
