/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Names hashed by directory and name into one table of fixed size: millions of names make long chains,
 * thousands do not. Inodes are their own numbers, by address.
 */
#include "names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUCKETS (1u << 20)

static struct names_inode *buckets[BUCKETS];
static struct names_inode root;
static uint64_t cookie_next = 16;

static struct names_inode **bucket_of(const struct names_inode *dir, const char *name)
{
	uint64_t h = (uint64_t)(uintptr_t)dir * 0x9e3779b97f4a7c15ull;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
	return &buckets[(h ^ h >> 32) % BUCKETS];
}

static void stat_init(struct names_inode *n, mode_t mode)
{
	n->st.st_ino = (ino_t)(uintptr_t)n;
	n->st.st_mode = mode;
	n->st.st_nlink = S_ISDIR(mode) ? 2 : 1;
	n->st.st_blksize = 4096;
	clock_gettime(CLOCK_REALTIME, &n->st.st_mtim);
	n->st.st_atim = n->st.st_ctim = n->st.st_mtim;
}

struct names_inode *names_root(void)
{
	if (!root.linked) {
		stat_init(&root, S_IFDIR | 0755);
		root.st.st_ino = 1;
		root.linked = true;
		root.parent = &root;
	}
	return &root;
}

struct names_inode *names_find(struct names_inode *dir, const char *name)
{
	for (struct names_inode *n = *bucket_of(dir, name); n; n = n->next)
		if (n->parent == dir && !strcmp(n->name, name))
			return n;
	return NULL;
}

static void link_in(struct names_inode *n, struct names_inode *dir)
{
	struct names_inode **b = bucket_of(dir, n->name);

	n->parent = dir;
	n->next = *b;
	*b = n;
	n->cookie = cookie_next++;
	n->younger = NULL;
	n->older = dir->children;
	if (n->older)
		n->older->younger = n;
	dir->children = n;
	n->linked = true;
}

static void unlink_from(struct names_inode *n)
{
	struct names_inode **p = bucket_of(n->parent, n->name);

	while (*p != n)
		p = &(*p)->next;
	*p = n->next;
	if (n->younger)
		n->younger->older = n->older;
	else
		n->parent->children = n->older;
	if (n->older)
		n->older->younger = n->younger;
	n->linked = false;
}

static void free_unused(struct names_inode *n)
{
	if (n->linked || n->refs || n == &root)
		return;
	free(n->name);
	free(n);
}

struct names_inode *names_add(struct names_inode *dir, const char *name, mode_t mode)
{
	struct names_inode *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->name = strdup(name);
	if (!n->name) {
		free(n);
		return NULL;
	}
	stat_init(n, mode);
	link_in(n, dir);
	return n;
}

void names_remove(struct names_inode *n)
{
	unlink_from(n);
	n->st.st_nlink = 0;
	free_unused(n);
}

int names_move(struct names_inode *n, struct names_inode *dir, const char *name)
{
	struct names_inode *there = names_find(dir, name);
	char *copy = strdup(name);

	if (!copy)
		return -ENOMEM;
	if (there && there != n)
		names_remove(there);
	unlink_from(n);
	free(n->name);
	n->name = copy;
	link_in(n, dir);
	return 0;
}

void names_ref(struct names_inode *n)
{
	n->refs++;
}

void names_unref(struct names_inode *n, uint64_t count)
{
	n->refs -= count < n->refs ? count : n->refs;
	free_unused(n);
}
