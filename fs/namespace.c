/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Names: what creates, finds, moves and removes them. Each operation is one atom, so that whatever
 * instant a crash finds, names, link counts, entry counts, the orphan list and the counters fit
 * together; and no operation ever sees another half done.
 *
 * An operation touches a few inodes and at most two buckets, which may turn out to be the same ones
 * (a rename within a directory, two names with one hash). So it works on copies held in a set
 * (struct touch): the same inode is loaded once, changed as often as need be, and stored once.
 *
 * Directories: links = 2 + directories in it, entries are counted, parent is exact. For files
 * parent is a hint: the directory of one of the names, as far as we know.
 */
#include "dir.h"
#include "inode.h"
#include "writeback.h"
#include <linux/fs.h>
#include <stdio.h>

#define TOUCH_MAX     6
#define SYMLINK_PIECE 1800u /* bytes of a target in one item */
#define DEPTH_MAX     (1u << 20)
#define PATH_DEPTH    64 /* of a path that is printed */

/* ---- inodes of one operation ---- */

struct touched {
	uint64_t ino;
	struct inode_disk d;
	bool dirty;
	bool new;
};
struct touch {
	unsigned count;
	struct touched t[TOUCH_MAX];
};

static int touch_load(struct fs *fs, struct touch *set, uint64_t ino, struct touched **ret)
{
	for (unsigned k = 0; k < set->count; k++) {
		if (set->t[k].ino == ino) {
			*ret = &set->t[k];
			return 0;
		}
	}
	assert(set->count < TOUCH_MAX);
	struct touched *t = &set->t[set->count];
	int r = inode_load(fs, ino, &t->d);
	if (r)
		return r;
	t->ino = ino;
	t->dirty = t->new = false;
	set->count++;
	*ret = t;
	return 0;
}

static int touch_load_dir(struct fs *fs, struct touch *set, uint64_t ino, struct touched **ret)
{
	struct touched *t;
	int r = touch_load(fs, set, ino, &t);
	if (r)
		return r;
	if (!S_ISDIR(inode_mode(&t->d)))
		return -ENOTDIR;
	if (from_le32(t->d.links) == 0)
		return -ENOENT;
	*ret = t;
	return 0;
}

static struct touched *touch_new(struct touch *set)
{
	assert(set->count < TOUCH_MAX);
	struct touched *t = &set->t[set->count++];
	t->dirty = t->new = true;
	return t;
}

static int touch_prepare(struct fs *fs, const struct touch *set)
{
	int r = 0;
	for (unsigned k = 0; k < set->count && r == 0; k++)
		if (set->t[k].dirty)
			r = inode_prepare(fs, set->t[k].ino);
	return r;
}

static void touch_store(struct fs *fs, struct touch *set)
{
	for (unsigned k = 0; k < set->count; k++) {
		struct touched *t = &set->t[k];
		if (t->new)
			inode_create(fs, t->ino, &t->d);
		else if (t->dirty)
			inode_store(fs, t->ino, &t->d);
	}
}

static void links_add(struct touched *t, int by)
{
	t->d.links = to_le32(from_le32(t->d.links) + (uint32_t)by);
	t->dirty = true;
}

/* A directory got (or lost) entries. */
static void dir_changed(struct fs *fs, struct touched *dir, int entries, int subdirs)
{
	dir->d.subdirs_or_entries =
	    to_le64(from_le64(dir->d.subdirs_or_entries) + (uint64_t)(int64_t)entries);
	links_add(dir, subdirs);
	inode_times_now(fs, &dir->d, true);
}

static void ctime_now(struct fs *fs, struct touched *t)
{
	inode_times_now(fs, &t->d, false);
	t->dirty = true;
}

static bool is_dir(const struct touched *t)
{
	return S_ISDIR(inode_mode(&t->d));
}

/* ---- finding ---- */

struct lookup {
	uint64_t parent;
	const char *name;
	struct fs_attr attr;
};

static int lookup_atom(struct fs *fs, void *arg)
{
	struct lookup *l = arg;
	struct inode_disk d;
	struct bucket b;
	uint64_t ino = l->parent;
	int gone = -EBADMSG; /* a name of nothing */
	int r = inode_load(fs, ino, &d);
	if (r)
		return r;
	/* "." of anything: how a file server gets from a handle to an inode. */
	if (strcmp(l->name, ".") != 0) {
		if (!S_ISDIR(inode_mode(&d)))
			return -ENOTDIR;
		if (strcmp(l->name, "..") == 0) {
			/* Of a directory that was removed the parent may have gone as well. */
			if (!from_le32(d.links))
				gone = -ENOENT;
			ino = from_le64(d.parent);
		} else {
			r = dir_load(fs, l->parent, l->name, &b);
			if (r)
				return r;
			struct name_disk *n = dir_find(&b, l->name);
			if (!n)
				return -ENOENT;
			ino = from_le64(n->ino);
		}
		r = inode_load(fs, ino, &d);
		if (r)
			return r == -ESTALE ? gone : r;
	}
	inode_attr(fs, ino, &d, &l->attr);
	return inode_ref(fs, ino);
}

int fs_lookup(struct fs *fs, uint64_t parent, const char *name, struct fs_attr *ret)
{
	struct lookup l = {.parent = parent, .name = name};
	int r = dir_name_check(name);
	if (r == 0)
		r = fs_atom(fs, ATOM_READ, lookup_atom, &l);
	if (r == 0)
		*ret = l.attr;
	return r;
}

/* ---- making ---- */

struct create {
	uint64_t parent;
	const char *name; /* NULL: unnamed */
	uint32_t mode, rdev_major, rdev_minor;
	const char *target;
	const struct fs_cred *cred;
	struct fs_attr attr;
};

static int prepare_target(struct fs *fs, uint64_t ino, size_t len)
{
	int r = 0;
	for (size_t at = 0; at < len && r == 0; at += SYMLINK_PIECE)
		r = bt_prepare(fs, (struct key){ino, KEY_OFF(TYPE_SYMLINK, at / SYMLINK_PIECE)},
			       (unsigned)MIN(SYMLINK_PIECE, len - at));
	return r;
}

static void put_target(struct fs *fs, uint64_t ino, const char *target, size_t len)
{
	for (size_t at = 0; at < len; at += SYMLINK_PIECE)
		bt_put(fs, (struct key){ino, KEY_OFF(TYPE_SYMLINK, at / SYMLINK_PIECE)},
		       target + at, (unsigned)MIN(SYMLINK_PIECE, len - at));
}

static int create_atom(struct fs *fs, void *arg)
{
	struct create *c = arg;
	struct touch set = {0};
	struct touched *dir, *new;
	struct bucket b;
	uint32_t mode = c->mode, gid = c->cred->gid;
	size_t target_len = c->target ? strlen(c->target) : 0;
	int r = touch_load_dir(fs, &set, c->parent, &dir);
	if (r)
		return r;
	if (inode_mode(&dir->d) & S_ISGID) {
		gid = from_le32(dir->d.gid);
		if (S_ISDIR(mode))
			mode |= S_ISGID;
	}
	new = touch_new(&set);
	new->ino = inode_fresh(fs, &new->d, mode, c->cred->uid, gid, c->parent);
	new->d.rdev_major = to_le32(c->rdev_major);
	new->d.rdev_minor = to_le32(c->rdev_minor);
	new->d.size = to_le64(target_len);
	if (c->name) {
		r = dir_load(fs, c->parent, c->name, &b);
		if (r == 0 && dir_find(&b, c->name))
			r = -EEXIST;
		if (r == 0)
			r = dir_add(&b, c->name, new->ino, mode);
		if (r == 0)
			r = dir_prepare(fs, &b);
		dir_changed(fs, dir, 1, S_ISDIR(mode) ? 1 : 0);
	} else {
		new->d.links = to_le32(0);
		new->d.parent = to_le64(0);
		r = bt_prepare(fs, orphan_key(new->ino), 0);
	}
	if (r == 0)
		r = touch_prepare(fs, &set);
	if (r == 0)
		r = prepare_target(fs, new->ino, target_len);
	if (r == 0)
		r = inode_ref(fs, new->ino);
	if (r)
		return r;
	touch_store(fs, &set);
	put_target(fs, new->ino, c->target, target_len);
	if (c->name) {
		dir_store(fs, &b);
	} else {
		bt_put(fs, orphan_key(new->ino), "", 0);
		inode_find(fs, new->ino)->orphan = true;
	}
	inode_attr(fs, new->ino, &new->d, &c->attr);
	return 0;
}

static int create(struct fs *fs, struct create *c, struct fs_attr *ret)
{
	int r = c->name ? dir_name_check(c->name) : 0;
	if (r)
		return r;
	if (c->name && dir_name_is_dots(c->name))
		return -EEXIST;
	r = fs_atom(fs, ATOM_WRITE, create_atom, c);
	if (r == 0)
		*ret = c->attr;
	return r == -ESTALE ? -ENOENT : r;
}

int fs_mknod(struct fs *fs, uint64_t parent, const char *name, uint32_t mode, uint32_t rdev_major,
	     uint32_t rdev_minor, const struct fs_cred *cred, struct fs_attr *ret)
{
	struct create c = {.parent = parent, .name = name, .cred = cred};
	if (!(mode & S_IFMT))
		mode |= S_IFREG;
	if (!S_ISREG(mode) && !S_ISCHR(mode) && !S_ISBLK(mode) && !S_ISFIFO(mode) &&
	    !S_ISSOCK(mode))
		return -EINVAL;
	c.mode = (mode & S_IFMT) | (mode & 07777 & ~cred->umask);
	if (S_ISCHR(mode) || S_ISBLK(mode)) {
		c.rdev_major = rdev_major;
		c.rdev_minor = rdev_minor;
	}
	return create(fs, &c, ret);
}

int fs_mkdir(struct fs *fs, uint64_t parent, const char *name, uint32_t mode,
	     const struct fs_cred *cred, struct fs_attr *ret)
{
	struct create c = {.parent = parent, .name = name, .cred = cred};
	c.mode = S_IFDIR | (mode & 07777 & ~cred->umask);
	return create(fs, &c, ret);
}

int fs_symlink(struct fs *fs, uint64_t parent, const char *name, const char *target,
	       const struct fs_cred *cred, struct fs_attr *ret)
{
	struct create c = {.parent = parent, .name = name, .cred = cred, .target = target};
	c.mode = S_IFLNK | 0777;
	if (!target[0])
		return -ENOENT;
	if (strlen(target) > FS_SYMLINK_BYTES_MAX)
		return -ENAMETOOLONG;
	return create(fs, &c, ret);
}

int fs_tmpfile(struct fs *fs, uint64_t parent, uint32_t mode, const struct fs_cred *cred,
	       struct fs_attr *ret)
{
	struct create c = {.parent = parent, .cred = cred};
	c.mode = S_IFREG | (mode & 07777 & ~cred->umask);
	return create(fs, &c, ret);
}

struct readlink {
	uint64_t ino;
	char *ret;
	size_t cap;
};

static int readlink_atom(struct fs *fs, void *arg)
{
	struct readlink *l = arg;
	struct inode_disk d;
	struct bt_value v;
	int r = inode_load(fs, l->ino, &d);
	if (r)
		return r;
	if (!S_ISLNK(inode_mode(&d)))
		return -EINVAL;
	uint64_t len = from_le64(d.size);
	if (len == 0 || len > FS_SYMLINK_BYTES_MAX)
		return -EBADMSG;
	if (len >= l->cap)
		return -ERANGE;
	for (size_t at = 0; at < len; at += SYMLINK_PIECE) {
		r = bt_get(fs, (struct key){l->ino, KEY_OFF(TYPE_SYMLINK, at / SYMLINK_PIECE)}, &v);
		if (r)
			return r == -ENOENT ? -EBADMSG : r;
		if (v.len != MIN(SYMLINK_PIECE, len - at))
			return -EBADMSG;
		memcpy(l->ret + at, v.data, v.len);
	}
	l->ret[len] = '\0';
	return 0;
}

int fs_readlink(struct fs *fs, uint64_t ino, char *ret, size_t cap)
{
	struct readlink l = {ino, ret, cap};
	return fs_atom(fs, ATOM_READ, readlink_atom, &l);
}

struct link {
	uint64_t ino, parent;
	const char *name;
	struct fs_attr attr;
};

static int link_atom(struct fs *fs, void *arg)
{
	struct link *l = arg;
	struct touch set = {0};
	struct touched *dir, *t;
	struct bucket b;
	struct bt_value v;
	int r = touch_load(fs, &set, l->ino, &t);
	if (r)
		return r;
	if (is_dir(t))
		return -EPERM;
	struct inode *i = inode_find(fs, l->ino);
	uint32_t links = from_le32(t->d.links);
	if (links == 0 && (!i || i->reaping || !i->refs))
		return -ENOENT;
	if (links >= FS_LINK_MAX)
		return -EMLINK;
	r = touch_load_dir(fs, &set, l->parent, &dir);
	if (r)
		return r == -ESTALE ? -ENOENT : r;
	r = dir_load(fs, l->parent, l->name, &b);
	if (r == 0 && dir_find(&b, l->name))
		r = -EEXIST;
	if (r == 0)
		r = dir_add(&b, l->name, l->ino, inode_mode(&t->d));
	if (r == 0)
		r = dir_prepare(fs, &b);
	/* A truncation that is under way needs its item for itself. */
	bool unlist = false;
	if (r == 0 && links == 0 && !i->truncating) {
		r = bt_get(fs, orphan_key(l->ino), &v);
		unlist = r == 0;
		if (r == 0)
			r = bt_prepare(fs, orphan_key(l->ino), 0);
		else if (r == -ENOENT)
			r = 0;
	}
	links_add(t, 1);
	ctime_now(fs, t);
	t->d.parent = to_le64(l->parent);
	dir_changed(fs, dir, 1, 0);
	if (r == 0)
		r = touch_prepare(fs, &set);
	if (r == 0)
		r = inode_ref(fs, l->ino);
	if (r)
		return r;
	touch_store(fs, &set);
	dir_store(fs, &b);
	if (unlist)
		bt_del(fs, orphan_key(l->ino));
	inode_find(fs, l->ino)->orphan = false;
	inode_attr(fs, l->ino, &t->d, &l->attr);
	return 0;
}

int fs_link(struct fs *fs, uint64_t ino, uint64_t parent, const char *name, struct fs_attr *ret)
{
	struct link l = {.ino = ino, .parent = parent, .name = name};
	int r = dir_name_check(name);
	if (r)
		return r;
	if (dir_name_is_dots(name))
		return -EEXIST;
	r = fs_atom(fs, ATOM_WRITE, link_atom, &l);
	if (r == 0)
		*ret = l.attr;
	return r;
}

/* ---- removing ---- */

/*
 * An inode loses a name; with the last one (a directory: its only one) it goes on the orphan list.
 * The struct is to be unpinned after the atom.
 */
static int lose_name(struct fs *fs, struct touched *t, bool *ret_last)
{
	links_add(t, is_dir(t) ? -(int)from_le32(t->d.links) : -1);
	ctime_now(fs, t);
	*ret_last = from_le32(t->d.links) == 0;
	return *ret_last ? bt_prepare(fs, orphan_key(t->ino), 0) : 0;
}

static void lost_name(struct fs *fs, struct inode *i, bool last)
{
	if (!last)
		return;
	if (!BREAK(fs_orphan))
		bt_put(fs, orphan_key(i->ino), "", 0);
	inode_orphaned(fs, i);
}

struct removal {
	uint64_t parent;
	const char *name;
	bool dir;
};

static int remove_atom(struct fs *fs, void *arg)
{
	struct removal *rm = arg;
	struct touch set = {0};
	struct touched *dir, *t;
	struct bucket b;
	bool last;
	int r = touch_load_dir(fs, &set, rm->parent, &dir);
	if (r)
		return r;
	r = dir_load(fs, rm->parent, rm->name, &b);
	if (r)
		return r;
	struct name_disk *n = dir_find(&b, rm->name);
	if (!n)
		return -ENOENT;
	r = touch_load(fs, &set, from_le64(n->ino), &t);
	if (r)
		return r == -ESTALE ? -EBADMSG : r;
	if (rm->dir && !is_dir(t))
		return -ENOTDIR;
	if (!rm->dir && is_dir(t))
		return -EISDIR;
	if (t == dir || from_le32(t->d.links) == 0)
		return -EBADMSG;
	if (rm->dir && from_le64(t->d.subdirs_or_entries))
		return -ENOTEMPTY;
	dir_remove(&b, n);
	r = lose_name(fs, t, &last);
	dir_changed(fs, dir, -1, rm->dir ? -1 : 0);
	if (r == 0)
		r = dir_prepare(fs, &b);
	if (r == 0)
		r = touch_prepare(fs, &set);
	if (r)
		return r;
	struct inode *i = inode_pin(fs, t->ino);
	if (!i)
		return -ENOMEM;
	touch_store(fs, &set);
	dir_store(fs, &b);
	lost_name(fs, i, last);
	inode_unpin(fs, i);
	return 0;
}

int fs_unlink(struct fs *fs, uint64_t parent, const char *name)
{
	struct removal rm = {parent, name, false};
	int r = dir_name_check(name);
	if (r)
		return r;
	if (dir_name_is_dots(name))
		return -EISDIR;
	r = fs_atom(fs, ATOM_WRITE | ATOM_FREES, remove_atom, &rm);
	return r == -ESTALE ? -ENOENT : r;
}

int fs_rmdir(struct fs *fs, uint64_t parent, const char *name)
{
	struct removal rm = {parent, name, true};
	int r = dir_name_check(name);
	if (r)
		return r;
	if (dir_name_is_dots(name))
		return name[1] ? -ENOTEMPTY : -EINVAL;
	r = fs_atom(fs, ATOM_WRITE | ATOM_FREES, remove_atom, &rm);
	return r == -ESTALE ? -ENOENT : r;
}

/* ---- renaming ---- */

struct rename {
	uint64_t parent[2];
	const char *name[2];
	unsigned flags;
	/* found by the first look: whose data is to be written before it replaces another file's */
	uint64_t data_ino;
};

/* Whether `ino` is `dir` or above it. */
static int is_above(struct fs *fs, uint64_t ino, uint64_t dir, bool *ret)
{
	struct inode_disk d;
	for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
		*ret = dir == ino;
		if (*ret || dir == FS_ROOT_INO)
			return 0;
		int r = inode_load(fs, dir, &d);
		if (r)
			return r == -ESTALE ? -EBADMSG : r;
		if (from_le64(d.parent) == dir)
			return 0; /* removed, or not linked to the root: above nothing */
		dir = from_le64(d.parent);
	}
	return -ELOOP;
}

struct rename_state {
	struct touch set;
	struct touched *dir[2], *t[2]; /* t[1]: what the new name is, NULL: nothing */
	struct bucket b[2];
	struct bucket *in[2]; /* both may be the same */
	struct name_disk *n[2];
};

static int rename_find(struct fs *fs, struct rename *rn, struct rename_state *s)
{
	int r;
	for (int k = 0; k < 2; k++) {
		r = touch_load_dir(fs, &s->set, rn->parent[k], &s->dir[k]);
		if (r)
			return r;
	}
	r = dir_load(fs, rn->parent[0], rn->name[0], &s->b[0]);
	if (r == 0)
		r = dir_load(fs, rn->parent[1], rn->name[1], &s->b[1]);
	if (r)
		return r;
	s->in[0] = &s->b[0];
	s->in[1] = key_cmp(s->b[0].key, s->b[1].key) == 0 ? &s->b[0] : &s->b[1];
	for (int k = 0; k < 2; k++) {
		s->n[k] = dir_find(s->in[k], rn->name[k]);
		s->t[k] = NULL;
		if (!s->n[k])
			continue;
		r = touch_load(fs, &s->set, from_le64(s->n[k]->ino), &s->t[k]);
		if (r)
			return r == -ESTALE ? -EBADMSG : r;
	}
	return s->n[0] ? 0 : -ENOENT;
}

/* Everything that may be wrong with it. 1: there is nothing to do. */
static int rename_check(struct fs *fs, struct rename *rn, struct rename_state *s)
{
	struct touched *from = s->t[0], *to = s->t[1];
	bool exchange = rn->flags & RENAME_EXCHANGE, above;
	if (to && (rn->flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (exchange && !to)
		return -ENOENT;
	if (from == to)
		return 1;
	for (int k = 0; k < (exchange ? 2 : 1) && !BREAK(fs_cycle); k++) {
		if (!is_dir(s->t[k]))
			continue;
		int r = is_above(fs, s->t[k]->ino, rn->parent[!k], &above);
		if (r)
			return r;
		if (above)
			return -EINVAL;
	}
	if (!to || exchange)
		return 0;
	if (is_dir(from) && !is_dir(to))
		return -ENOTDIR;
	if (!is_dir(from) && is_dir(to))
		return -EISDIR;
	if (is_dir(to) && from_le64(to->d.subdirs_or_entries))
		return -ENOTEMPTY;
	return 0;
}

static void count_exchange(struct fs *fs, struct rename *rn, struct rename_state *s)
{
	int d0 = is_dir(s->t[0]), d1 = is_dir(s->t[1]);
	dir_set(s->n[0], s->t[1]->ino, inode_mode(&s->t[1]->d));
	dir_set(s->n[1], s->t[0]->ino, inode_mode(&s->t[0]->d));
	dir_changed(fs, s->dir[0], 0, d1 - d0);
	dir_changed(fs, s->dir[1], 0, d0 - d1);
	s->t[1]->d.parent = to_le64(rn->parent[0]);
	ctime_now(fs, s->t[1]);
}

/* The buckets and counts of a plain rename. */
static int count_move(struct fs *fs, struct rename *rn, struct rename_state *s,
		      struct touched *whiteout)
{
	int moved = is_dir(s->t[0]), r = 0;
	uint32_t mode = inode_mode(&s->t[0]->d);
	/* The new name first: taking out an entry moves those behind it. */
	if (s->n[1])
		dir_set(s->n[1], s->t[0]->ino, mode);
	else
		r = dir_add(s->in[1], rn->name[1], s->t[0]->ino, mode);
	if (r)
		return r;
	s->n[0] = dir_find(s->in[0], rn->name[0]);
	if (whiteout)
		dir_set(s->n[0], whiteout->ino, inode_mode(&whiteout->d));
	else
		dir_remove(s->in[0], s->n[0]);
	dir_changed(fs, s->dir[0], whiteout ? 0 : -1, -moved);
	dir_changed(fs, s->dir[1], s->n[1] ? 0 : 1, moved - (s->t[1] && is_dir(s->t[1]) ? 1 : 0));
	return 0;
}

static int rename_atom(struct fs *fs, void *arg)
{
	struct rename *rn = arg;
	struct rename_state s = {.set.count = 0};
	struct touched *whiteout = NULL;
	struct inode *gone = NULL;
	bool last = false;
	int r = rename_find(fs, rn, &s);
	if (r == 0)
		r = rename_check(fs, rn, &s);
	if (r)
		return MIN(r, 0);
	if (rn->flags & RENAME_WHITEOUT) {
		whiteout = touch_new(&s.set);
		whiteout->ino = inode_fresh(fs, &whiteout->d, S_IFCHR, 0, 0, rn->parent[0]);
	}
	if (rn->flags & RENAME_EXCHANGE)
		count_exchange(fs, rn, &s);
	else
		r = count_move(fs, rn, &s, whiteout);
	s.t[0]->d.parent = to_le64(rn->parent[1]);
	ctime_now(fs, s.t[0]);
	if (r == 0 && s.t[1] && !(rn->flags & RENAME_EXCHANGE))
		r = lose_name(fs, s.t[1], &last);
	if (r == 0)
		r = dir_prepare(fs, s.in[0]);
	if (r == 0 && s.in[1] != s.in[0])
		r = dir_prepare(fs, s.in[1]);
	if (r == 0)
		r = touch_prepare(fs, &s.set);
	if (r)
		return r;
	if (last) {
		gone = inode_pin(fs, s.t[1]->ino);
		if (!gone)
			return -ENOMEM;
	}
	touch_store(fs, &s.set);
	dir_store(fs, s.in[0]);
	if (s.in[1] != s.in[0])
		dir_store(fs, s.in[1]);
	if (gone) {
		lost_name(fs, gone, last);
		inode_unpin(fs, gone);
	}
	return 0;
}

/* Finds the file whose data has to be written before it may replace another. */
static int rename_look_atom(struct fs *fs, void *arg)
{
	struct rename *rn = arg;
	struct rename_state s = {.set.count = 0};
	rn->data_ino = 0;
	int r = rename_find(fs, rn, &s);
	if (r)
		return r;
	if (s.t[1] && s.t[1] != s.t[0] && S_ISREG(inode_mode(&s.t[0]->d)))
		rn->data_ino = s.t[0]->ino;
	return 0;
}

static int rename_data_first(struct fs *fs, struct rename *rn)
{
	int r = fs_atom(fs, ATOM_READ, rename_look_atom, rn);
	if (r || !rn->data_ino)
		return r;
	struct inode *i = inode_find(fs, rn->data_ino);
	if (!i || !i->dirty_count)
		return 0;
	i->pins++;
	r = writeback_write(fs, i, false);
	inode_unpin(fs, i);
	return r;
}

int fs_rename(struct fs *fs, uint64_t parent, const char *name, uint64_t new_parent,
	      const char *new_name, unsigned flags)
{
	struct rename rn = {
	    .parent = {parent, new_parent}, .name = {name, new_name}, .flags = flags};
	if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT))
		return -EINVAL;
	if ((flags & RENAME_EXCHANGE) && (flags & (RENAME_NOREPLACE | RENAME_WHITEOUT)))
		return -EINVAL;
	int r = dir_name_check(name);
	if (r == 0)
		r = dir_name_check(new_name);
	if (r)
		return r;
	if (dir_name_is_dots(name) || dir_name_is_dots(new_name))
		return -EBUSY;
	if (!(flags & (RENAME_NOREPLACE | RENAME_EXCHANGE)) && !BREAK(fs_rename))
		r = rename_data_first(fs, &rn);
	if (r == 0)
		r = fs_atom(fs, ATOM_WRITE, rename_atom, &rn);
	return r == -ESTALE ? -ENOENT : r;
}

/* ---- paths ---- */

struct step {
	uint64_t ino, parent, from;
	char name[FS_NAME_BYTES_MAX + 1];
};

static int step_atom(struct fs *fs, void *arg)
{
	struct step *s = arg;
	struct inode_disk d;
	int r = inode_load(fs, s->ino, &d);
	if (r)
		return r;
	if (s->parent != from_le64(d.parent)) {
		s->parent = from_le64(d.parent);
		s->from = 0;
	}
	return dir_name_of(fs, s->parent, s->ino, &s->from, s->name);
}

void fs_path(struct fs *fs, uint64_t ino, char *ret, size_t cap)
{
	size_t used = 1; /* the NUL; built from the end of ret */
	if (!cap)
		return;
	ret[cap - 1] = '\0';
	uint64_t at = ino;
	for (unsigned depth = 0; at != FS_ROOT_INO || used == 1; depth++) {
		struct step s = {.ino = at};
		if (at != FS_ROOT_INO &&
		    (depth == PATH_DEPTH || fs_atom(fs, ATOM_READ, step_atom, &s) != 0))
			goto unknown;
		size_t len = strlen(s.name);
		if (used + len + 1 > cap)
			goto unknown;
		used += len + 1;
		ret[cap - used] = '/';
		memcpy(ret + cap - used + 1, s.name, len);
		if (at == FS_ROOT_INO)
			break;
		at = s.parent;
	}
	memmove(ret, ret + cap - used, used);
	return;
unknown:
	(void)snprintf(ret, cap, "inode %llu", (unsigned long long)ino);
}
