/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Extended attributes. An attribute stands in the tree by the hash of its name, in pieces: piece p
 * at hash + p, so that values may be longer than an item. The first piece carries the name. An item
 * may hold pieces of several attributes whose ranges of hashes overlap; a piece is known by its
 * number (key - number = hash). What cannot be told apart, two names with one hash on one inode, is
 * refused; with 56 bits of seeded hash nobody will see that.
 *
 * A change rewrites all pieces in one atom: the attribute has its old value or its new one.
 *
 * POSIX ACLs are stored like any other value.
 */
#include "inode.h"
#include <linux/xattr.h>

#define PIECE_BYTES                                                                                \
	1600u /* name and value bytes of one piece; leaves room in the item for a neighbour */
#define LIST_BYTES_MAX 65536u

struct xbucket {
	struct key key;
	unsigned len;
	uint8_t data[ITEM_BYTES_MAX + 4] __attribute__((aligned(8)));
};

/* One piece as it stands in an item. */
struct piece {
	unsigned off, bytes; /* in the item, padded */
	unsigned name_len, piece, piece_len, value_len;
	const char *name;
	const uint8_t *value;
};

static struct key xattr_key(uint64_t ino, uint64_t hash, unsigned piece)
{
	return (struct key){ino, KEY_OFF(TYPE_XATTR, (hash + piece) & KEY_OFF_MASK)};
}

static unsigned entry_bytes(unsigned name_len, unsigned piece_len)
{
	return ROUND_UP((unsigned)sizeof(struct xattr_disk) + name_len + piece_len, 8u);
}

/* Decodes the piece at off. 1: there is none; -EBADMSG. */
static int piece_at(const void *data, unsigned len, unsigned off, struct piece *ret)
{
	struct xattr_disk d;
	if (off == len)
		return 1;
	if (len - off < sizeof(d))
		return -EBADMSG;
	memcpy(&d, (const char *)data + off, sizeof(d));
	ret->off = off;
	ret->piece = from_le32(d.piece);
	ret->name_len = from_le16(d.name_len);
	ret->piece_len = from_le32(d.piece_len);
	ret->value_len = from_le32(d.value_len);
	if (ret->name_len > FS_XATTR_NAME_BYTES_MAX || ret->piece_len > ITEM_BYTES_MAX ||
	    ret->value_len > FS_XATTR_VALUE_BYTES_MAX || (ret->piece == 0) != (ret->name_len != 0))
		return -EBADMSG;
	ret->bytes = entry_bytes(ret->name_len, ret->piece_len);
	if (ret->bytes > len - off)
		return -EBADMSG;
	ret->name = (const char *)data + off + sizeof(d);
	ret->value = (const uint8_t *)ret->name + ret->name_len;
	return 0;
}

static int bucket_load(struct fs *fs, struct key key, struct xbucket *ret)
{
	struct bt_value v;
	int r = bt_get(fs, key, &v);
	ret->key = key;
	ret->len = 0;
	if (r == -ENOENT)
		return 0;
	if (r)
		return r;
	if (v.len > ITEM_BYTES_MAX)
		return -EBADMSG;
	ret->len = v.len;
	memcpy(ret->data, v.data, v.len);
	return 0;
}

/* Piece number `number` of the attribute whose hash leads here. -ENODATA. */
static int bucket_piece(const struct xbucket *b, unsigned number, struct piece *ret)
{
	int r;
	for (unsigned off = 0; (r = piece_at(b->data, b->len, off, ret)) == 0; off += ret->bytes)
		if (ret->piece == number)
			return 0;
	return r < 0 ? r : -ENODATA;
}

static unsigned first_bytes(unsigned name_len)
{
	return PIECE_BYTES - name_len;
}

static unsigned piece_count(unsigned name_len, unsigned value_len)
{
	unsigned first = first_bytes(name_len);
	return value_len <= first ? 1 : 1 + DIV_ROUND_UP(value_len - first, PIECE_BYTES);
}

/* Where piece p of a value begins. */
static unsigned piece_start(unsigned name_len, unsigned p)
{
	return p == 0 ? 0 : first_bytes(name_len) + (p - 1) * PIECE_BYTES;
}

struct find {
	uint64_t ino, hash;
	const char *name;
	unsigned name_len;
};

static void find_init(struct fs *fs, struct find *f, uint64_t ino, const char *name)
{
	f->ino = ino;
	f->name = name;
	f->name_len = (unsigned)strlen(name);
	f->hash = fs_name_hash(fs, name, f->name_len);
}

/* The first piece of the attribute. -ENODATA; -EEXIST: the hash belongs to another name. b keeps
 * what ret points to. */
static int find_first(struct fs *fs, const struct find *f, struct xbucket *b, struct piece *ret)
{
	int r = bucket_load(fs, xattr_key(f->ino, f->hash, 0), b);
	if (r == 0)
		r = bucket_piece(b, 0, ret);
	if (r)
		return r;
	if (ret->name_len != f->name_len || memcmp(ret->name, f->name, f->name_len) != 0)
		return -EEXIST;
	return 0;
}

static int name_check(const char *name)
{
	static const char *const prefixes[] = {"user.", "trusted.", "security.",
					       "system.posix_acl_"};
	size_t len = strlen(name);
	if (len > FS_XATTR_NAME_BYTES_MAX)
		return -ERANGE;
	for (unsigned k = 0; k < ARRAY_SIZE(prefixes); k++)
		if (strncmp(name, prefixes[k], strlen(prefixes[k])) == 0)
			return name[strlen(prefixes[k])] ? 0 : -EINVAL;
	return -EOPNOTSUPP;
}

/* ---- reading ---- */

struct get {
	struct find f;
	uint8_t *value;
	size_t cap;
	size_t len;
};

static int get_atom(struct fs *fs, void *arg)
{
	struct get *g = arg;
	struct xbucket b;
	struct piece first, p;
	struct inode_disk d;
	int r = inode_load(fs, g->f.ino, &d);
	if (r == 0)
		r = find_first(fs, &g->f, &b, &first);
	if (r)
		return r == -EEXIST ? -ENODATA : r;
	g->len = first.value_len;
	if (!g->cap)
		return 0;
	if (g->len > g->cap)
		return -ERANGE;
	unsigned value_len = first.value_len, count = piece_count(g->f.name_len, value_len);
	for (unsigned k = 0; k < count; k++) {
		r = bucket_load(fs, xattr_key(g->f.ino, g->f.hash, k), &b);
		if (r == 0)
			r = bucket_piece(&b, k, &p);
		if (r)
			return r == -ENODATA ? -EBADMSG : r;
		unsigned start = piece_start(g->f.name_len, k);
		unsigned end = MIN(piece_start(g->f.name_len, k + 1), value_len);
		if (p.piece_len != end - start)
			return -EBADMSG;
		memcpy(g->value + start, p.value, p.piece_len);
	}
	return 0;
}

int fs_getxattr(struct fs *fs, uint64_t ino, const char *name, void *value, size_t cap,
		size_t *ret_len)
{
	struct get g = {.value = value, .cap = cap};
	int r = name_check(name);
	if (r)
		return r;
	find_init(fs, &g.f, ino, name);
	r = fs_atom(fs, ATOM_READ, get_atom, &g);
	if (r == 0)
		*ret_len = g.len;
	return r;
}

struct listing {
	uint64_t ino;
	char *list;
	size_t cap, len;
};

static int list_atom(struct fs *fs, void *arg)
{
	struct listing *l = arg;
	struct inode_disk d;
	struct key key = {l->ino, KEY_OFF(TYPE_XATTR, 0)};
	l->len = 0;
	int r = inode_load(fs, l->ino, &d);
	if (r)
		return r;
	for (;;) {
		struct bt_value v;
		struct piece p;
		r = bt_ge(fs, key, &key, &v);
		if (r && r != -ENOENT)
			return r;
		if (r == -ENOENT || key.ino != l->ino || KEY_TYPE(key) != TYPE_XATTR)
			return 0;
		for (unsigned off = 0; (r = piece_at(v.data, v.len, off, &p)) == 0;
		     off += p.bytes) {
			if (p.piece)
				continue;
			if (l->cap) {
				if (l->len + p.name_len + 1 > l->cap)
					return -ERANGE;
				memcpy(l->list + l->len, p.name, p.name_len);
				l->list[l->len + p.name_len] = '\0';
			}
			l->len += p.name_len + 1;
		}
		if (r < 0)
			return r;
		key.off++; /* past the last hash comes the next type */
	}
}

int fs_listxattr(struct fs *fs, uint64_t ino, char *list, size_t cap, size_t *ret_len)
{
	struct listing l = {.ino = ino, .list = list, .cap = cap};
	int r = fs_atom(fs, ATOM_READ, list_atom, &l);
	if (r)
		return r;
	if (l.len > LIST_BYTES_MAX)
		return -E2BIG;
	*ret_len = l.len;
	return 0;
}

/* ---- changing ---- */

struct set {
	struct find f;
	const uint8_t *value;
	unsigned len;
	int flags;
	bool remove;
	unsigned old_pieces, new_pieces; /* of the atom */
};

/* The item that holds piece k, as it is to become. */
static int rebuild(struct fs *fs, const struct set *s, unsigned k, struct xbucket *b)
{
	struct piece p;
	int r = bucket_load(fs, xattr_key(s->f.ino, s->f.hash, k), b);
	if (r)
		return r;
	if (k < s->old_pieces) {
		r = bucket_piece(b, k, &p);
		if (r)
			return r == -ENODATA ? -EBADMSG : r;
		memmove(b->data + p.off, b->data + p.off + p.bytes, b->len - p.off - p.bytes);
		b->len -= p.bytes;
	}
	if (k >= s->new_pieces)
		return 0;
	unsigned start = piece_start(s->f.name_len, k);
	unsigned len = MIN(piece_start(s->f.name_len, k + 1), s->len) - start;
	unsigned name_len = k == 0 ? s->f.name_len : 0, bytes = entry_bytes(name_len, len);
	if (b->len + bytes > ITEM_BYTES_MAX)
		return -ENOSPC;
	struct xattr_disk d = {
	    .name_len = to_le16((uint16_t)name_len),
	    .value_len = to_le32(s->len),
	    .piece = to_le32(k),
	    .piece_len = to_le32(len),
	};
	uint8_t *at = b->data + b->len;
	memset(at, 0, bytes);
	memcpy(at, &d, sizeof(d));
	memcpy(at + sizeof(d), s->f.name, name_len);
	if (len)
		memcpy(at + sizeof(d) + name_len, s->value + start, len);
	b->len += bytes;
	return 0;
}

static int set_prepare(struct fs *fs, struct set *s)
{
	struct xbucket b;
	struct piece first;
	int r = find_first(fs, &s->f, &b, &first);
	s->old_pieces = r == 0 ? piece_count(s->f.name_len, first.value_len) : 0;
	s->new_pieces = s->remove ? 0 : piece_count(s->f.name_len, s->len);
	if (r == -EEXIST)
		return s->remove ? -ENODATA : -ENOSPC;
	if (r && r != -ENODATA)
		return r;
	if (r == -ENODATA && (s->remove || (s->flags & XATTR_REPLACE)))
		return -ENODATA;
	if (r == 0 && (s->flags & XATTR_CREATE))
		return -EEXIST;
	r = 0;
	for (unsigned k = 0; k < MAX(s->old_pieces, s->new_pieces) && r == 0; k++) {
		r = rebuild(fs, s, k, &b);
		if (r == 0)
			r = bt_prepare(fs, b.key, b.len);
	}
	return r;
}

static void set_apply(struct fs *fs, const struct set *s)
{
	struct xbucket b;
	for (unsigned k = 0; k < MAX(s->old_pieces, s->new_pieces); k++) {
		int r = rebuild(fs, s, k, &b);
		assert(r == 0); /* the same as when it was prepared */
		if (b.len)
			bt_put(fs, b.key, b.data, b.len);
		else
			bt_del(fs, b.key);
	}
}

static int set_atom(struct fs *fs, void *arg)
{
	struct set *s = arg;
	struct inode_disk d;
	int r = inode_load(fs, s->f.ino, &d);
	if (r == 0)
		r = set_prepare(fs, s);
	if (r == 0)
		r = inode_prepare(fs, s->f.ino);
	if (r)
		return r;
	inode_times_now(fs, &d, false);
	set_apply(fs, s);
	inode_store(fs, s->f.ino, &d);
	return 0;
}

int fs_setxattr(struct fs *fs, uint64_t ino, const char *name, const void *value, size_t len,
		int flags)
{
	struct set s = {.value = value, .len = (unsigned)len, .flags = flags};
	int r = name_check(name);
	if (r)
		return r;
	if (len > FS_XATTR_VALUE_BYTES_MAX)
		return -E2BIG;
	if (flags & ~(XATTR_CREATE | XATTR_REPLACE))
		return -EINVAL;
	find_init(fs, &s.f, ino, name);
	return fs_atom(fs, ATOM_WRITE, set_atom, &s);
}

int fs_removexattr(struct fs *fs, uint64_t ino, const char *name)
{
	struct set s = {.remove = true};
	int r = name_check(name);
	if (r)
		return r;
	find_init(fs, &s.f, ino, name);
	return fs_atom(fs, ATOM_WRITE | ATOM_FREES, set_atom, &s);
}

/* ---- capabilities ---- */

static void caps_set(struct fs *fs, struct set *s, uint64_t ino)
{
	*s = (struct set){.remove = true};
	find_init(fs, &s->f, ino, "security.capability");
}

int xattr_caps_prepare(struct fs *fs, uint64_t ino, bool *ret_any)
{
	struct set s;
	caps_set(fs, &s, ino);
	int r = set_prepare(fs, &s);
	*ret_any = r == 0;
	return r == -ENODATA ? 0 : r;
}

void xattr_caps_drop(struct fs *fs, uint64_t ino)
{
	struct set s;
	struct xbucket b;
	struct piece first;
	caps_set(fs, &s, ino);
	int r = find_first(fs, &s.f, &b, &first);
	assert(r == 0); /* prepared */
	s.old_pieces = piece_count(s.f.name_len, first.value_len);
	set_apply(fs, &s);
}
