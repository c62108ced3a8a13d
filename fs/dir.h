/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Names in directories. All but fs_readdir in atoms.
 */
#ifndef FS_DIR_H
#define FS_DIR_H

#include "private.h"

/* All names of a directory with one hash, copied from the tree: looked at, changed, put back. */
struct bucket {
	struct key key;
	unsigned len;
	uint8_t data[ITEM_BYTES_MAX + 4] __attribute__((aligned(8)));
};

/* 0, -ENAMETOOLONG, -ENOENT (empty), -EINVAL (a slash). "." and ".." are the caller's business. */
int dir_name_check(const char *name);
static inline bool dir_name_is_dots(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}
int dir_load(struct fs *fs, uint64_t dir, const char *name, struct bucket *ret);
/* NULL: not there. */
struct name_disk *dir_find(struct bucket *b, const char *name);
/* -ENOSPC: too many names with this hash (the volume would have to hold about 2^28 names in one
 * directory first). */
int dir_add(struct bucket *b, const char *name, uint64_t ino, uint32_t mode);
void dir_set(struct name_disk *n, uint64_t ino, uint32_t mode);
void dir_remove(struct bucket *b, struct name_disk *n);
int dir_prepare(struct fs *fs, const struct bucket *b);
void dir_store(struct fs *fs, const struct bucket *b);
/* The name of `ino` in dir; out has FS_NAME_BYTES_MAX + 1 bytes. Begins at *from and moves it on,
 * so that it can be called again. */
int dir_name_of(struct fs *fs, uint64_t dir, uint64_t ino, uint64_t *from, char *out);

#endif
