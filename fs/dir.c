/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Directories. The names of a directory stand in the tree by the hash of the name, those with the
 * same hash together in one item (a bucket): practically always one.
 *
 * A readdir cookie is a place in that order: hash << 7 | number, where the number is given to an
 * entry when it comes into its bucket and stored with it, so that it stays when others come and go.
 * Entries of a bucket are sorted by number. 0, 1 and 2 are the start, "." and "..": numbers begin
 * at 3.
 *
 * "." and ".." are not stored: ".." is the inode's parent.
 */
#include "dir.h"
#include "inode.h"
#include <dirent.h>

#define COOKIE_SHIFT 7
#define NUMBER_FIRST 3u
#define NUMBER_MAX   127u
#define READ_ENTRIES 64 /* looked up in one atom */

static unsigned entry_bytes(unsigned name_len)
{
	return ROUND_UP(sizeof(struct name_disk) + name_len, 8u);
}

static struct name_disk *entry_at(const struct bucket *b, unsigned off)
{
	return (struct name_disk *)(uintptr_t)(b->data + off);
}

static unsigned entry_number(const struct name_disk *n)
{
	return n->reserved[0] + NUMBER_FIRST;
}

static const char *entry_name(const struct name_disk *n)
{
	return (const char *)(n + 1);
}

/* Bytes from disk. */
static int bucket_check(const struct bucket *b)
{
	unsigned off = 0;
	while (off < b->len) {
		if (b->len - off < sizeof(struct name_disk))
			return -EBADMSG;
		struct name_disk *n = entry_at(b, off);
		if (n->name_len == 0 || entry_bytes(n->name_len) > b->len - off ||
		    entry_number(n) > NUMBER_MAX)
			return -EBADMSG;
		off += entry_bytes(n->name_len);
	}
	return 0;
}

static int bucket_copy(struct bucket *b, struct key key, const struct bt_value *v)
{
	b->key = key;
	b->len = v->len;
	if (v->len > ITEM_BYTES_MAX)
		return -EBADMSG;
	memcpy(b->data, v->data, v->len);
	return bucket_check(b);
}

int dir_name_check(const char *name)
{
	size_t len = strlen(name);
	if (!len)
		return -ENOENT;
	if (len > FS_NAME_BYTES_MAX)
		return -ENAMETOOLONG;
	return strchr(name, '/') ? -EINVAL : 0;
}

int dir_load(struct fs *fs, uint64_t dir, const char *name, struct bucket *ret)
{
	struct bt_value v;
	struct key key = {dir, KEY_OFF(TYPE_NAME, fs_name_hash(fs, name, strlen(name)))};
	int r = bt_get(fs, key, &v);
	if (r == -ENOENT) {
		ret->key = key;
		ret->len = 0;
		return 0;
	}
	return r ? r : bucket_copy(ret, key, &v);
}

struct name_disk *dir_find(struct bucket *b, const char *name)
{
	size_t len = strlen(name);
	for (unsigned off = 0; off < b->len;) {
		struct name_disk *n = entry_at(b, off);
		if ((n->name_len == len && memcmp(entry_name(n), name, len) == 0) || BREAK(fs_hash))
			return n;
		off += entry_bytes(n->name_len);
	}
	return NULL;
}

void dir_set(struct name_disk *n, uint64_t ino, uint32_t mode)
{
	n->ino = to_le64(ino);
	n->dtype = (uint8_t)IFTODT(mode);
}

int dir_add(struct bucket *b, const char *name, uint64_t ino, uint32_t mode)
{
	unsigned len = (unsigned)strlen(name), bytes = entry_bytes(len), off = 0,
		 number = NUMBER_FIRST;
	if (b->len + bytes > ITEM_BYTES_MAX)
		return -ENOSPC;
	/* The lowest number that is free; with it the place. */
	while (off < b->len && entry_number(entry_at(b, off)) == number) {
		off += entry_bytes(entry_at(b, off)->name_len);
		number++;
	}
	if (number > NUMBER_MAX)
		return -ENOSPC;
	memmove(b->data + off + bytes, b->data + off, b->len - off);
	memset(b->data + off, 0, bytes);
	struct name_disk *n = entry_at(b, off);
	dir_set(n, ino, mode);
	n->name_len = (uint8_t)len;
	n->reserved[0] = (uint8_t)(number - NUMBER_FIRST);
	memcpy(n + 1, name, len);
	b->len += bytes;
	return 0;
}

void dir_remove(struct bucket *b, struct name_disk *n)
{
	unsigned off = (unsigned)((uint8_t *)n - b->data), bytes = entry_bytes(n->name_len);
	memmove(b->data + off, b->data + off + bytes, b->len - off - bytes);
	b->len -= bytes;
}

int dir_prepare(struct fs *fs, const struct bucket *b)
{
	return bt_prepare(fs, b->key, b->len);
}

void dir_store(struct fs *fs, const struct bucket *b)
{
	if (b->len)
		bt_put(fs, b->key, b->data, b->len);
	else
		bt_del(fs, b->key);
}

int dir_name_of(struct fs *fs, uint64_t dir, uint64_t ino, uint64_t *from, char *out)
{
	struct bucket b;
	for (;;) {
		struct key key;
		struct bt_value v;
		int r = bt_ge(fs, (struct key){dir, KEY_OFF(TYPE_NAME, *from)}, &key, &v);
		if (r)
			return r;
		if (key.ino != dir || KEY_TYPE(key) != TYPE_NAME)
			return -ENOENT;
		r = bucket_copy(&b, key, &v);
		if (r)
			return r;
		for (unsigned off = 0; off < b.len;
		     off += entry_bytes(entry_at(&b, off)->name_len)) {
			struct name_disk *n = entry_at(&b, off);
			if (from_le64(n->ino) != ino)
				continue;
			memcpy(out, entry_name(n), n->name_len);
			out[n->name_len] = '\0';
			return 0;
		}
		if (KEY_OFFSET(key) == KEY_OFF_MASK)
			return -ENOENT;
		*from = KEY_OFFSET(key) + 1;
	}
}

/* ---- readdir ---- */

struct entry {
	uint64_t ino, cookie;
	uint8_t dtype;
	char name[FS_NAME_BYTES_MAX + 1];
};

struct read_names {
	uint64_t dir, cookie; /* entries behind it */
	uint64_t parent;
	unsigned count;
	bool end;
	struct entry *entries;
};

static int read_names_atom(struct fs *fs, void *arg)
{
	struct read_names *rn = arg;
	struct inode_disk d;
	struct bucket b;
	rn->count = 0;
	rn->end = false;
	int r = inode_load(fs, rn->dir, &d);
	if (r)
		return r;
	if (!S_ISDIR(inode_mode(&d)))
		return -ENOTDIR;
	rn->parent = from_le64(d.parent);
	uint64_t hash = rn->cookie >> COOKIE_SHIFT;
	while (rn->count < READ_ENTRIES) {
		struct key key;
		struct bt_value v;
		r = bt_ge(fs, (struct key){rn->dir, KEY_OFF(TYPE_NAME, hash)}, &key, &v);
		if (r && r != -ENOENT)
			return r;
		if (r == -ENOENT || key.ino != rn->dir || KEY_TYPE(key) != TYPE_NAME) {
			rn->end = true;
			return 0;
		}
		r = bucket_copy(&b, key, &v);
		if (r)
			return r;
		hash = KEY_OFFSET(key);
		for (unsigned off = 0; off < b.len;
		     off += entry_bytes(entry_at(&b, off)->name_len)) {
			struct name_disk *n = entry_at(&b, off);
			uint64_t cookie = hash << COOKIE_SHIFT | entry_number(n);
			if (cookie <= rn->cookie)
				continue;
			if (rn->count == READ_ENTRIES)
				return 0;
			struct entry *e = &rn->entries[rn->count++];
			e->ino = from_le64(n->ino);
			e->cookie = cookie;
			e->dtype = n->dtype;
			memcpy(e->name, entry_name(n), n->name_len);
			e->name[n->name_len] = '\0';
		}
		if (hash == KEY_OFF_MASK) {
			rn->end = true;
			return 0;
		}
		hash++;
	}
	return 0;
}

struct entry_attr {
	uint64_t ino;
	struct fs_attr attr;
};

static int entry_attr_atom(struct fs *fs, void *arg)
{
	struct entry_attr *a = arg;
	struct inode_disk d;
	int r = inode_load(fs, a->ino, &d);
	if (r)
		return r;
	inode_attr(fs, a->ino, &d, &a->attr);
	return inode_ref(fs, a->ino);
}

/* Emits one entry. 0: go on; 1: enough. */
static int emit_entry(struct fs *fs, const struct entry *e, bool want_attr, fs_emit *emit,
		      void *arg)
{
	if (!want_attr)
		return !emit(arg, e->name, e->ino, e->dtype, e->cookie, NULL);
	struct entry_attr a = {.ino = e->ino};
	int r = fs_atom(fs, ATOM_READ, entry_attr_atom, &a);
	if (r == -ESTALE)
		return 0; /* it went away since its name was read */
	if (r)
		return r;
	/* The reference was taken first, so that it cannot go away before emit has said whether it
	 * wants it. */
	bool taken = emit(arg, e->name, e->ino, e->dtype, e->cookie, &a.attr);
	if (!taken)
		fs_unref(fs, e->ino, 1);
	return !taken;
}

static int emit_dots(struct fs *fs, const struct read_names *rn, bool want_attr, fs_emit *emit,
		     void *arg, uint64_t *cookie)
{
	for (; *cookie < 2; ++*cookie) {
		uint64_t ino = *cookie == 0 ? rn->dir : rn->parent;
		struct fs_attr attr = {.ino = ino};
		const struct fs_attr *known = NULL;
		if (want_attr) {
			int r = fs_getattr(fs, ino, &attr);
			if (r && r != -ESTALE)
				return r;
			known = r ? NULL : &attr;
		}
		if (!emit(arg, *cookie == 0 ? "." : "..", ino, DT_DIR, *cookie + 1, known))
			return 1;
	}
	return 0;
}

int fs_readdir(struct fs *fs, uint64_t ino, uint64_t cookie, bool want_attr, fs_emit *emit,
	       void *arg)
{
	struct read_names rn = {.dir = ino, .cookie = MAX(cookie, 2)};
	int r = 0;
	bool first = cookie < 2;
	rn.entries = mem_alloc(READ_ENTRIES * sizeof(*rn.entries));
	if (!rn.entries)
		return -ENOMEM;
	while (r == 0 && !rn.end) {
		r = fs_atom(fs, ATOM_READ, read_names_atom, &rn);
		if (r == 0 && first)
			r = emit_dots(fs, &rn, want_attr, emit, arg, &cookie);
		first = false;
		for (unsigned k = 0; k < rn.count && r == 0; k++)
			r = emit_entry(fs, &rn.entries[k], want_attr, emit, arg);
		if (rn.count)
			rn.cookie = rn.entries[rn.count - 1].cookie;
	}
	mem_free(rn.entries);
	return MIN(r, 0);
}
