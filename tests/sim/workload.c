/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The workload.
 *
 * Each worker has a home directory and, in the directory that all share, the names that begin with
 * its number. So the oracle knows the one right answer to everything a worker asks, errors
 * included, while the trees, the journal, the buffer and one directory are contended.
 *
 * After a crash any call may return any error; the operation stays "begun" in the oracle. Before
 * it, only the predicted answer and, where space is needed, -ENOSPC are right.
 *
 * Data tells where it comes from: each 8-byte word of a file is the tick of its write and its
 * position.
 */
#include "workload.h"
#include "raid/buf.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

#define IO_BYTES_MAX	 (512u << 10)
#define FILE_BYTES_SMALL (96u << 10)
#define FILE_BYTES_BIG	 (3u << 20)
#define TINY_BYTES 1024 /* INLINE_BYTES_MAX; the oracle shares no header with what it judges */
#define FAR_BYTES_MAX	 (1ull << 32)
#define DEPTH_MAX	 6
#define XATTR_BYTES_MAX	 20000u
#define FOUND_DIRS_MAX	 4096
#define READ_BYTES	 (256u << 10)

static const struct fs_cred root_cred;

/* Or worse went wrong than can be judged: whoever asked for something asks no more. */
static bool crashed(const struct worker *w)
{
	return rig_excused(w->work->rig) && (world_crashed(w->work->rig->world) || !w->work->rig->honest);
}

static void say(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct worker *w, const char *format, ...)
{
	char text[400];
	va_list ap;

	if (!world_tells(w->work->rig->world))
		return;
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	world_tell(w->work->rig->world, "w%u.%u %s", w->number,
		   w->work->rig->turns[SKIP_WORKER + w->number] - 1, text);
}

/*
 * 0 when the result is the one wanted; else, after a crash, an error to end the worker with. A
 * wrong result fails the seed. -EIO: beyond tolerance it may be so, and the worker goes on.
 */
static int expect(struct worker *w, int err, int want, const char *what)
{
	if (crashed(w))
		return -ENODEV;
	if (err != want && rig_beyond_error(w->work->rig, err))
		return -EIO;
	if (err != want)
		rig_fail(w->work->rig, "worker %u: %s: got %s, expected %s", w->number, what,
			 err ? strerror(-err) : "success", want ? strerror(-want) : "success");
	return 0;
}

/* Told before it is done: after a crash nobody returns to tell. */
static struct mop *begin(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static struct mop *begin(struct worker *w, const char *format, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	say(w, "%s", text);
	return model_begin(&w->work->model, w->number, "%s", text);
}

/* Ends an operation on names or attributes that should have given `want`, or perhaps ENOSPC. */
static int finish(struct worker *w, struct mop *op, int err, int want, bool may_lack_space)
{
	int stop;

	if (world_is_verbose(w->work->rig->world))
		say(w, "%s: %d", op->what, err);
	if (crashed(w))
		return -ENODEV; /* the operation stays begun */
	if (err == -ENOSPC && !want && may_lack_space) {
		w->work->rig->was_full = true;
		model_end(op, false);
		return 0;
	}
	stop = expect(w, err, want, op->what);
	if (stop)
		return -ENODEV; /* beyond tolerance: it has happened or not, and nobody knows what follows from it */
	w->work->model.now_ns = world_now_ns(w->work->rig->world);
	model_end(op, !err);
	return stop;
}

/* ---- choosing ---- */

static bool own(const struct worker *w, const struct mobj *o)
{
	return o->worker == w->number;
}

static struct mobj *pick(struct worker *w, int type, bool linked)
{
	struct mworker *mw = &w->work->model.workers[w->number];

	for (unsigned i = 0; i < 12 && mw->exist_count; i++) {
		struct mobj *o = mw->exist[rng_below(&w->rng, mw->exist_count)];

		if ((type < 0 || (int)o->type == type) && (!linked || o->links))
			return o;
	}
	return NULL;
}

static unsigned depth(const struct mobj *dir)
{
	unsigned n = 0;

	for (; dir; dir = dir->parent)
		n++;
	return n;
}

static struct mobj *pick_dir(struct worker *w)
{
	struct mobj *d;

	switch (rng_below(&w->rng, 4)) {
	case 0:
		return w->work->model.shared;
	case 1:
		return w->work->model.workers[w->number].home;
	default:
		d = pick(w, M_DIR, true);
		return d ? d : w->work->model.workers[w->number].home;
	}
}

static void pick_name(struct worker *w, const struct mobj *dir, char name[MODEL_NAME_BYTES])
{
	int n = 0;

	if (dir->shared)
		n = snprintf(name, MODEL_NAME_BYTES, "w%u-", w->number);
	if (rng_chance(&w->rng, 1, 24)) {
		memset(name + n, 'a' + (int)rng_below(&w->rng, 3),
		       MODEL_NAME_BYTES - 1 - (size_t)n);
		name[MODEL_NAME_BYTES - 1] = 0;
		return;
	}
	snprintf(name + n, MODEL_NAME_BYTES - (size_t)n, "n%llu",
		 (unsigned long long)rng_below(&w->rng, rng_chance(&w->rng, 1, 4) ? 200 : 12));
}

/* A name that exists, of this worker, if the directory has one. */
static bool pick_entry(struct worker *w, const struct mobj *dir, char name[MODEL_NAME_BYTES])
{
	for (unsigned i = 0; i < 8 && dir->entry_count; i++) {
		const struct mentry *e = &dir->entries[rng_below(&w->rng, dir->entry_count)];

		if (own(w, e->obj)) {
			memcpy(name, e->name, MODEL_NAME_BYTES);
			return true;
		}
	}
	return false;
}

static const char *short_name(const char *name)
{
	return strlen(name) > 40 ? "(long)" : name;
}

/* ---- names ---- */

static int op_make(struct worker *w)
{
	static const enum mtype types[] = {M_REG, M_REG,     M_REG,  M_REG, M_DIR,
					   M_DIR, M_SYMLINK, M_FIFO, M_CHR};
	struct work *work = w->work;
	struct mobj *dir = pick_dir(w), *o = NULL;
	enum mtype type = types[rng_below(&w->rng, ARRAY_SIZE(types))];
	uint32_t mode = (uint32_t)rng_below(&w->rng, 01000), minor = 0;
	char name[MODEL_NAME_BYTES], target[FS_SYMLINK_BYTES_MAX + 1];
	struct fs_attr attr;
	struct mop *op;
	bool there;
	int err;

	pick_name(w, dir, name);
	if (type == M_DIR && depth(dir) > DEPTH_MAX)
		type = M_REG;
	there = model_lookup(dir, name);
	if (type == M_CHR)
		minor = (uint32_t)rng_range(&w->rng, 1, 200);
	if (type == M_SYMLINK) {
		size_t n = rng_chance(&w->rng, 1, 8) ? rng_range(&w->rng, 1, FS_SYMLINK_BYTES_MAX)
						     : rng_range(&w->rng, 1, 60);

		memset(target, 'a' + (int)rng_below(&w->rng, 26), n);
		target[n] = 0;
		mode = 0777;
	}
	op = begin(w, "make type %d %llu/%s mode %o", (int)type,
			 (unsigned long long)dir->ino, short_name(name), mode);
	if (!there)
		o = model_create(op, dir, name, type, mode, minor,
				 type == M_SYMLINK ? target : NULL);
	switch (type) {
	case M_DIR:
		err = fs_mkdir(work->fs, dir->ino, name, mode, &root_cred, &attr);
		break;
	case M_SYMLINK:
		err = fs_symlink(work->fs, dir->ino, name, target, &root_cred, &attr);
		break;
	case M_REG:
		err = fs_mknod(work->fs, dir->ino, name, S_IFREG | mode, 0, 0, &root_cred, &attr);
		break;
	case M_FIFO:
		err = fs_mknod(work->fs, dir->ino, name, S_IFIFO | mode, 0, 0, &root_cred, &attr);
		break;
	default:
		err =
		    fs_mknod(work->fs, dir->ino, name, S_IFCHR | mode, 0, minor, &root_cred, &attr);
		break;
	}
	if (!err && o) {
		rig_must(work->rig, !model_by_ino(&work->model, attr.ino) || crashed(w),
			 "inode number %llu was given twice", (unsigned long long)attr.ino);
		o->ino = attr.ino;
		fs_unref(work->fs, attr.ino, 1);
	}
	return finish(w, op, err, there ? -EEXIST : 0, true);
}

static int op_tmpfile(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *dir = pick_dir(w), *o;
	struct fs_attr attr;
	struct mop *op;
	int err;

	op = begin(w, "tmpfile in %llu", (unsigned long long)dir->ino);
	o = model_create(op, NULL, NULL, M_REG, 0640, 0, NULL);
	err = fs_tmpfile(work->fs, dir->ino, 0640, &root_cred, &attr);
	if (!err)
		o->ino = attr.ino;
	err = finish(w, op, err, 0, true);
	if (!err && o->ino)
		model_ref(&work->model, o, 1);
	return err;
}

static int op_link(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, -1, false), *dir = pick_dir(w);
	char name[MODEL_NAME_BYTES];
	struct fs_attr attr;
	struct mop *op;
	int want, err;

	if (!o || o->type == M_DIR || (!o->links && !o->unnamed))
		return 0;
	pick_name(w, dir, name);
	want = model_lookup(dir, name) ? -EEXIST : 0;
	op =
	    begin(w, "link %llu to %llu/%s", (unsigned long long)o->ino,
			(unsigned long long)dir->ino, short_name(name));
	if (!want)
		model_link(op, o, dir, name);
	err = fs_link(work->fs, o->ino, dir->ino, name, &attr);
	if (!err)
		fs_unref(work->fs, attr.ino, 1);
	return finish(w, op, err, want, true);
}

static int op_unlink(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *dir = pick_dir(w), *o;
	char name[MODEL_NAME_BYTES];
	bool is_rmdir = rng_chance(&w->rng, 1, 4);
	struct mop *op;
	int want = 0, err;

	if (rng_chance(&w->rng, 1, 8) || !pick_entry(w, dir, name))
		pick_name(w, dir, name);
	o = model_lookup(dir, name);
	if (o && rng_chance(&w->rng, 7, 8))
		is_rmdir = o->type == M_DIR;
	if (!o)
		want = -ENOENT;
	else if (is_rmdir && o->type != M_DIR)
		want = -ENOTDIR;
	else if (is_rmdir && o->entry_count)
		want = -ENOTEMPTY;
	else if (!is_rmdir && o->type == M_DIR)
		want = -EISDIR;
	op = begin(w, "%s %llu/%s", is_rmdir ? "rmdir" : "unlink",
			 (unsigned long long)dir->ino, short_name(name));
	if (!want)
		model_unlink(op, dir, name);
	err = is_rmdir ? fs_rmdir(work->fs, dir->ino, name) : fs_unlink(work->fs, dir->ino, name);
	/* P6: deleting never lacks space. */
	return finish(w, op, err, want, false);
}

static int rename_want(const struct mobj *dir, const struct mobj *from, const struct mobj *new_dir,
		       const struct mobj *to, unsigned flags)
{
	bool exchange = flags & RENAME_EXCHANGE;

	if (!from)
		return -ENOENT;
	if (to && (flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (from == to)
		return 0; /* names of one and the same: nothing to do */
	if (exchange && !to)
		return -ENOENT;
	if (from->type == M_DIR && model_below(new_dir, from))
		return -EINVAL;
	if (exchange && to->type == M_DIR && model_below(dir, to))
		return -EINVAL;
	if (!to || exchange)
		return 0;
	if (from->type == M_DIR && to->type != M_DIR)
		return -ENOTDIR;
	if (from->type != M_DIR && to->type == M_DIR)
		return -EISDIR;
	return to->type == M_DIR && to->entry_count ? -ENOTEMPTY : 0;
}

static int op_rename(struct worker *w)
{
	static const unsigned all_flags[] = {0,
					     0,
					     0,
					     0,
					     RENAME_NOREPLACE,
					     RENAME_EXCHANGE,
					     RENAME_WHITEOUT,
					     RENAME_NOREPLACE | RENAME_WHITEOUT};
	struct work *work = w->work;
	struct mobj *dir = pick_dir(w), *new_dir = pick_dir(w), *from, *to, *white = NULL;
	unsigned flags = all_flags[rng_below(&w->rng, ARRAY_SIZE(all_flags))];
	char name[MODEL_NAME_BYTES], new_name[MODEL_NAME_BYTES];
	struct fs_attr attr;
	struct mop *op;
	int want, err;

	if (rng_chance(&w->rng, 1, 16) || !pick_entry(w, dir, name))
		pick_name(w, dir, name);
	if (rng_chance(&w->rng, 1, 2) || !pick_entry(w, new_dir, new_name))
		pick_name(w, new_dir, new_name);
	from = model_lookup(dir, name);
	to = model_lookup(new_dir, new_name);
	if (from && from == to && flags)
		return 0; /* nobody agrees on what that means */
	if (from && from->type == M_DIR && depth(new_dir) > DEPTH_MAX)
		return 0;
	if (to && to->type == M_DIR && depth(dir) > DEPTH_MAX)
		return 0;
	want = rename_want(dir, from, new_dir, to, flags);
	op = begin(w, "rename %llu/%s to %llu/%s flags %u",
			 (unsigned long long)dir->ino, short_name(name),
			 (unsigned long long)new_dir->ino, short_name(new_name), flags);
	if (!want && from != to) {
		if (flags & RENAME_EXCHANGE)
			model_exchange(op, dir, name, new_dir, new_name);
		else
			model_rename(op, dir, name, new_dir, new_name);
		if (flags & RENAME_WHITEOUT)
			white = model_create(op, dir, name, M_CHR, 0, 0, NULL);
	}
	err = fs_rename(work->fs, dir->ino, name, new_dir->ino, new_name, flags);
	if (!err && white && !crashed(w)) {
		err = expect(w, fs_lookup(work->fs, dir->ino, name, &attr), 0,
			     "lookup of a whiteout");
		if (err)
			return -ENODEV;
		white->ino = attr.ino;
		fs_unref(work->fs, attr.ino, 1);
	}
	return finish(w, op, err, want, true);
}

static int op_hold(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, M_REG, false);

	if (!o)
		return 0;
	if (o->refs && rng_chance(&w->rng, 3, 4)) {
		say(w, "let go of %llu", (unsigned long long)o->ino);
		fs_unref(work->fs, o->ino, 1);
		model_ref(&work->model, o, -1);
	} else if (o->links) {
		fs_ref(work->fs, o->ino);
		model_ref(&work->model, o, 1);
	}
	return 0;
}

/* ---- attributes ---- */

static int op_chmod(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, -1, true);
	struct fs_attr attr = {0}, now;
	struct mop *op;
	int err;

	if (!o || o->type == M_SYMLINK)
		return 0;
	attr.mode = (uint32_t)rng_below(&w->rng, 01000);
	op = begin(w, "chmod %llu %o", (unsigned long long)o->ino,
			 attr.mode);
	model_chmod(op, o, attr.mode);
	err = fs_setattr(work->fs, o->ino, &attr, FS_SET_MODE, &now);
	return finish(w, op, err, 0, true);
}

static int op_xattr(struct worker *w)
{
	static const int all_flags[] = {0, 0, 0, XATTR_CREATE, XATTR_REPLACE};
	struct work *work = w->work;
	struct mobj *o = pick(w, rng_chance(&w->rng, 3, 4) ? M_REG : M_DIR, true);
	const struct mxattr *old;
	size_t len = rng_chance(&w->rng, 1, 12) ? rng_below(&w->rng, XATTR_BYTES_MAX)
						: rng_below(&w->rng, 200);
	int flags = all_flags[rng_below(&w->rng, ARRAY_SIZE(all_flags))], want = 0, err;
	char name[32];
	struct mop *op;

	if (!o)
		return 0;
	snprintf(name, sizeof(name), "user.%c", (char)('a' + rng_below(&w->rng, 5)));
	old = model_xattr(o, name);
	if (rng_chance(&w->rng, 1, 4)) {
		want = old ? 0 : -ENODATA;
		op = begin(w, "removexattr %llu %s",
				 (unsigned long long)o->ino, name);
		if (!want)
			model_setxattr(op, o, name, NULL, 0);
		err = fs_removexattr(work->fs, o->ino, name);
		return finish(w, op, err, want, false);
	}
	if (old && (flags & XATTR_CREATE))
		want = -EEXIST;
	if (!old && (flags & XATTR_REPLACE))
		want = -ENODATA;
	rng_fill(&w->rng, w->bytes, len);
	op = begin(w, "setxattr %llu %s %zu flags %d",
			 (unsigned long long)o->ino, name, len, flags);
	if (!want)
		model_setxattr(op, o, name, w->bytes, len);
	err = fs_setxattr(work->fs, o->ino, name, w->bytes, len, flags);
	return finish(w, op, err, want, true);
}

static int op_xattr_read(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, rng_chance(&w->rng, 3, 4) ? M_REG : M_DIR, true);
	size_t len = 0, names = 0;
	int stop;

	if (!o)
		return 0;
	for (unsigned i = 0; i < o->xattr_count; i++) {
		const struct mxattr *x = &o->xattrs[i];

		stop =
		    expect(w, fs_getxattr(work->fs, o->ino, x->name, w->bytes, IO_BYTES_MAX, &len),
			   0, "getxattr");
		if (stop)
			return stop;
		rig_must(work->rig, len == x->len && !memcmp(w->bytes, x->value, len),
			 "inode %llu: attribute %s is wrong", (unsigned long long)o->ino, x->name);
		names += strlen(x->name) + 1;
	}
	stop = expect(w, fs_listxattr(work->fs, o->ino, (char *)w->bytes, IO_BYTES_MAX, &len), 0,
		      "listxattr");
	if (stop)
		return stop;
	rig_must(work->rig, len == names, "inode %llu: %zu bytes of attribute names, expected %zu",
		 (unsigned long long)o->ino, len, names);
	stop = fs_getxattr(work->fs, o->ino, "user.none", w->bytes, IO_BYTES_MAX, &len);
	return expect(w, stop, -ENODATA, "getxattr of what is not there");
}

static int op_getattr(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, -1, false);
	struct fs_attr attr;
	int stop;

	if (!o)
		return 0;
	stop = expect(w, fs_getattr(work->fs, o->ino, &attr), 0, "getattr");
	if (stop)
		return stop;
	rig_must(work->rig, (attr.mode & 07777) == o->mode, "inode %llu: mode %o, expected %o",
		 (unsigned long long)o->ino, attr.mode, o->mode);
	rig_must(work->rig, o->type == M_DIR || attr.links == o->links,
		 "inode %llu: %u links, expected %u", (unsigned long long)o->ino, attr.links,
		 o->links);
	rig_must(work->rig, o->type != M_REG || attr.size == model_size(o) || work->rig->beyond,
		 "inode %llu: size %llu, expected %llu", (unsigned long long)o->ino,
		 (unsigned long long)attr.size, (unsigned long long)model_size(o));
	return 0;
}

static int op_lookup(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *dir = pick_dir(w), *o;
	char name[MODEL_NAME_BYTES];
	struct fs_attr attr;
	int stop, err;

	pick_name(w, dir, name);
	o = model_lookup(dir, name);
	err = fs_lookup(work->fs, dir->ino, name, &attr);
	stop = expect(w, err, o ? 0 : -ENOENT, "lookup");
	if (!err)
		fs_unref(work->fs, attr.ino, 1);
	if (!stop && o)
		rig_must(work->rig, attr.ino == o->ino, "%llu/%s is %llu, expected %llu",
			 (unsigned long long)dir->ino, short_name(name),
			 (unsigned long long)attr.ino, (unsigned long long)o->ino);
	return stop;
}

/* ---- reading directories ---- */

struct listing {
	struct rig *rig;
	struct found_entry {
		char name[MODEL_NAME_BYTES];
		uint64_t ino;
		unsigned dtype;
	} * entries;
	unsigned count, cap, dots;
	unsigned until; /* stops after so many: then it is to be called again */
	uint64_t cookie;
};

static bool listing_emit(void *arg, const char *name, uint64_t ino, unsigned dtype,
			 uint64_t cookie_next, const struct fs_attr *attr)
{
	struct listing *l = arg;

	if (!l->until)
		return false;
	l->until--;
	l->cookie = cookie_next;
	rig_must(l->rig, cookie_next < 1ull << 63, "a cookie of 64 bits");
	if (!strcmp(name, ".") || !strcmp(name, "..")) {
		l->dots++;
		return true;
	}
	if (l->count == l->cap) {
		l->cap = MAX(32, 2 * l->cap);
		l->entries = realloc(l->entries, l->cap * sizeof(*l->entries));
		if (!l->entries)
			abort();
	}
	snprintf(l->entries[l->count].name, MODEL_NAME_BYTES, "%s", name);
	l->entries[l->count].ino = ino;
	l->entries[l->count++].dtype = dtype;
	return true;
}

/* The whole directory in pieces of random size. The caller frees l->entries. */
static int list_dir(struct rig *g, struct fs *fs, struct rng *rng, uint64_t ino, struct listing *l)
{
	unsigned before;
	int err;

	*l = (struct listing){.rig = g};
	do {
		before = l->count + l->dots;
		l->until = (unsigned)rng_range(rng, 3, 200);
		err = fs_readdir(fs, ino, l->cookie, false, listing_emit, l);
	} while (!err && l->count + l->dots != before);
	return err;
}

static int op_readdir(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *dir = pick_dir(w);
	unsigned want = 0, have = 0;
	struct listing l;
	int stop = expect(w, list_dir(work->rig, work->fs, &w->rng, dir->ino, &l), 0, "readdir");

	if (stop)
		goto out;
	rig_must(work->rig, l.dots == 2, "directory %llu has %u dots", (unsigned long long)dir->ino,
		 l.dots);
	for (unsigned i = 0; i < dir->entry_count; i++)
		want += own(w, dir->entries[i].obj);
	for (unsigned i = 0; i < l.count; i++) {
		struct mobj *o;

		if (dir->shared && (l.entries[i].name[0] != 'w' ||
				    l.entries[i].name[1] != (char)('0' + w->number)))
			continue;
		o = model_lookup(dir, l.entries[i].name);
		rig_must(work->rig, o && o->ino == l.entries[i].ino,
			 "directory %llu: %s is %llu, expected %llu", (unsigned long long)dir->ino,
			 short_name(l.entries[i].name), (unsigned long long)l.entries[i].ino,
			 o ? (unsigned long long)o->ino : 0);
		have++;
	}
	rig_must(work->rig, have == want, "directory %llu: %u names, expected %u",
		 (unsigned long long)dir->ino, have, want);
out:
	free(l.entries);
	return stop;
}

static int op_readlink(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, M_SYMLINK, true);
	int stop;

	if (!o)
		return 0;
	stop = expect(w, fs_readlink(work->fs, o->ino, (char *)w->bytes, FS_SYMLINK_BYTES_MAX + 1),
		      0, "readlink");
	if (!stop)
		rig_must(work->rig, !strcmp((char *)w->bytes, o->target),
			 "symlink %llu leads elsewhere", (unsigned long long)o->ino);
	return stop;
}

/* ---- data ---- */

static uint64_t file_max(const struct worker *w)
{
	return w->work->big ? FILE_BYTES_BIG : FILE_BYTES_SMALL;
}

static uint64_t pick_off(struct worker *w, const struct mobj *o)
{
	uint64_t size = model_size(o), off;

	switch (rng_below(&w->rng, 8)) {
	case 0:
	case 1:
		return size < FAR_BYTES_MAX ? size : 0;
	case 2:
		if (rng_chance(&w->rng, 1, 8))
			return rng_below(&w->rng, FAR_BYTES_MAX);
		return 0;
	default:
		off = rng_below(&w->rng, MIN(size, file_max(w)) + BLOCK_BYTES);
		return rng_chance(&w->rng, 1, 2) ? ROUND_DOWN(off, BLOCK_BYTES) : off;
	}
}

static size_t pick_len(struct worker *w, bool block_sized)
{
	size_t len;

	switch (rng_below(&w->rng, 8)) {
	case 0:
		len = rng_range(&w->rng, 1, 64);
		break;
	case 1:
	case 2:
		len = rng_range(&w->rng, 1, BLOCK_BYTES);
		break;
	case 3:
		len = w->work->big ? rng_range(&w->rng, 1, IO_BYTES_MAX - BLOCK_BYTES)
				   : rng_range(&w->rng, 1, FILE_BYTES_SMALL);
		break;
	default:
		len = rng_range(&w->rng, 1, 8 * BLOCK_BYTES);
		break;
	}
	return block_sized ? ROUND_UP(len, (size_t)BLOCK_BYTES) : len;
}

static void fill(struct worker *w, uint64_t off, size_t len)
{
	uint64_t tick = w->work->model.tick + 1;

	for (size_t i = 0; i < len; i++) {
		uint64_t at = off + i, word = tick << 24 | (at / 8 & 0xffffff);

		w->bytes[i] = (uint8_t)(word >> at % 8 * 8);
	}
}

/* Pool memory as fs_read wants it, and its answer checked against `want`. */
static int read_into(struct rig *g, struct fs *fs, uint64_t ino, uint64_t off, size_t len,
		     uint8_t *out, size_t *ret_len)
{
	int err = -EAGAIN;

	/* Again with other memory while a hung device holds what it was given. */
	for (unsigned tries = 0; err == -EAGAIN && tries < RIG_MEMBERS_MAX; tries++) {
		uint8_t *pool = buf_get_wait(ROUND_UP(len, (size_t)BLOCK_BYTES) + BLOCK_BYTES);
		void *data = NULL;

		err = fs_read(fs, ino, off, len, pool, &data, ret_len);
		if (!err) {
			rig_must(g, *ret_len <= len, "read gave %zu bytes of %zu", *ret_len, len);
			if (*ret_len)
				memcpy(out, data, *ret_len);
		}
		buf_put(pool);
	}
	if (g->beyond)
		rig_alive(g); /* each may wait for deadlines */
	/* As the front end does, when there is always another that hangs. */
	return err == -EAGAIN && g->beyond ? -EIO : err;
}

/* A change of data could not be made: what is there now is the truth, if it is old or new. */
static int settle(struct worker *w, struct mobj *o, uint64_t off, uint64_t len)
{
	struct work *work = w->work;
	uint64_t from = ROUND_DOWN(off, BLOCK_BYTES);
	struct fs_attr attr;
	size_t got = 0, n;
	int stop;

	stop = expect(w, fs_getattr(work->fs, o->ino, &attr), 0, "getattr");
	if (stop)
		return stop;
	n = MIN(ROUND_UP(off + len, BLOCK_BYTES) - from, (uint64_t)IO_BYTES_MAX);
	stop =
	    expect(w, read_into(work->rig, work->fs, o->ino, from, n, w->bytes, &got), 0, "read");
	if (stop)
		return stop;
	model_data_settle(&work->model, o, from, w->bytes, got, attr.size);
	return 0;
}

static int op_write(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, M_REG, false);
	uint64_t off;
	size_t len;
	bool written;
	int err;

	if (!o)
		return 0;
	off = pick_off(w, o);
	len = pick_len(w, off % BLOCK_BYTES == 0 && rng_chance(&w->rng, 1, 2));
	/* A tiny file stands in the tree: for more it needs its first block. */
	written = model_written(o, off, len) && (model_size(o) > TINY_BYTES || off + len <= model_size(o));
	fill(w, off, len);
	say(w, "write %llu %llu+%zu tick %llu", (unsigned long long)o->ino, (unsigned long long)off,
	    len, (unsigned long long)work->model.tick + 1);
	model_write(&work->model, o, off, w->bytes, len);
	err = fs_write(work->fs, o->ino, off, w->bytes, len, false);
	say(w, "wrote: %d", err);
	if (crashed(w))
		return -ENODEV;
	if (err == -ENOSPC) {
		work->rig->was_full = true;
		rig_must(work->rig, !written, "overwriting %llu %llu+%zu: no space",
			 (unsigned long long)o->ino, (unsigned long long)off, len);
		return settle(w, o, off, len) ? -ENODEV : 0;
	}
	if (expect(w, err, 0, "write"))
		return -ENODEV;
	work->model.now_ns = world_now_ns(work->rig->world);
	model_data_end(&work->model, o);
	return err;
}

static int op_truncate(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, M_REG, false);
	struct fs_attr attr = {0}, now;
	int err;

	if (!o)
		return 0;
	attr.size = rng_chance(&w->rng, 1, 4)
			? 0
			: rng_below(&w->rng, MIN(model_size(o), file_max(w)) + 5000);
	if (rng_chance(&w->rng, 1, 16))
		attr.size = rng_below(&w->rng, FAR_BYTES_MAX);
	say(w, "truncate %llu to %llu", (unsigned long long)o->ino, (unsigned long long)attr.size);
	model_truncate(&work->model, o, attr.size);
	err = fs_setattr(work->fs, o->ino, &attr, FS_SET_SIZE, &now);
	if (expect(w, err, 0, "truncate"))
		return -ENODEV;
	rig_must(work->rig, now.size == attr.size, "truncated to %llu, expected %llu",
		 (unsigned long long)now.size, (unsigned long long)attr.size);
	work->model.now_ns = world_now_ns(work->rig->world);
	model_data_end(&work->model, o);
	return 0;
}

static int op_fallocate(struct worker *w)
{
	static const int modes[] = {0,
				    FALLOC_FL_KEEP_SIZE,
				    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				    FALLOC_FL_ZERO_RANGE,
				    FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
	struct work *work = w->work;
	struct mobj *o = pick(w, M_REG, false);
	int mode = modes[rng_below(&w->rng, ARRAY_SIZE(modes))], err;
	bool zero = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
	uint64_t off, len, size;

	if (!o)
		return 0;
	off = pick_off(w, o);
	len = pick_len(w, rng_chance(&w->rng, 1, 2));
	size = model_size(o);
	say(w, "fallocate %llu mode %d %llu+%llu", (unsigned long long)o->ino, mode,
	    (unsigned long long)off, (unsigned long long)len);
	if (zero && off < size)
		/* To the end of the last block: what is zeroed whole need not have a place any more. */
		model_zero(&work->model, o, off,
			   MIN(off + len, ROUND_UP(size, BLOCK_BYTES)) - off);
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		model_extend(&work->model, o, off + len);
	err = fs_fallocate(work->fs, o->ino, mode, off, len);
	if (crashed(w))
		return -ENODEV;
	if (err == -ENOSPC && !(mode & FALLOC_FL_PUNCH_HOLE))
		return settle(w, o, off, len) ? -ENODEV : 0;
	if (expect(w, err, 0, "fallocate"))
		return -ENODEV;
	work->model.now_ns = world_now_ns(work->rig->world);
	model_data_end(&work->model, o);
	return err;
}

/* What could not be written may be old again, block by block. Blocks that were read in part say nothing. */
static int read_beyond(struct worker *w, const struct mobj *o, uint64_t off, size_t got)
{
	uint64_t at = ROUND_UP(off, (uint64_t)BLOCK_BYTES);

	for (; at + BLOCK_BYTES <= off + got; at += BLOCK_BYTES)
		rig_must(w->work->rig,
			 model_block_legal(o, at / BLOCK_BYTES, w->bytes + (at - off), BLOCK_BYTES),
			 "read of %llu: block %llu is neither old nor new", (unsigned long long)o->ino,
			 (unsigned long long)(at / BLOCK_BYTES));
	return 0;
}

static int op_read(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, M_REG, false);
	uint8_t *want = w->bytes + IO_BYTES_MAX;
	uint64_t off, size;
	size_t len, got = 0, expected;
	int stop;

	if (!o)
		return 0;
	off = pick_off(w, o);
	len = rng_chance(&w->rng, 1, 4) ? IO_BYTES_MAX : pick_len(w, false);
	size = model_size(o);
	expected = off < size ? MIN(len, size - off) : 0;
	stop =
	    expect(w, read_into(work->rig, work->fs, o->ino, off, len, w->bytes, &got), 0, "read");
	if (stop)
		return stop;
	if (work->rig->beyond)
		return read_beyond(w, o, off, got);
	rig_must(work->rig, got == expected, "read of %llu %llu+%zu gave %zu bytes, expected %zu",
		 (unsigned long long)o->ino, (unsigned long long)off, len, got, expected);
	model_read(o, off, want, got);
	for (size_t i = 0; i < got; i++)
		rig_must(work->rig, w->bytes[i] == want[i],
			 "read of %llu %llu+%zu: byte %llu is %02x, expected %02x",
			 (unsigned long long)o->ino, (unsigned long long)off, len,
			 (unsigned long long)(off + i), w->bytes[i], want[i]);
	return 0;
}

/* What is said to be a hole must read as zeros; data must not be passed over. */
static int op_lseek(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, M_REG, false);
	uint64_t off, to = 0, size;
	int err;

	if (!o)
		return 0;
	off = pick_off(w, o);
	size = model_size(o);
	err = fs_lseek(work->fs, o->ino, off, SEEK_DATA, &to);
	if (crashed(w))
		return -ENODEV;
	if (err == -ENXIO)
		to = size;
	else if (err)
		return expect(w, err, 0, "lseek");
	/* What could not be written is a hole. */
	if (work->rig->beyond)
		return 0;
	rig_must(work->rig, off >= size || to >= off, "SEEK_DATA went back");
	for (unsigned i = 0; i < o->block_count; i++) {
		const struct mblock *b = &o->blocks[i];
		uint64_t at = b->index * BLOCK_BYTES;
		uint8_t *bytes = b->v[b->count - 1].data;

		for (unsigned j = 0; bytes && j < BLOCK_BYTES; j++)
			rig_must(work->rig,
				 !bytes[j] || at + j < off || at + j >= to || at + j >= size,
				 "SEEK_DATA from %llu of %llu passed over byte %llu",
				 (unsigned long long)off, (unsigned long long)o->ino,
				 (unsigned long long)(at + j));
	}
	return 0;
}

/* ---- promises ---- */

static int op_fsync(struct worker *w)
{
	struct work *work = w->work;
	struct mobj *o = pick(w, rng_chance(&w->rng, 1, 4) ? M_DIR : M_REG, false);
	struct fs_errseq seq;
	uint64_t call;
	int err;

	if (!o)
		return 0;
	fs_errseq_sample(work->fs, o->ino, &seq);
	call = model_tick(&work->model);
	say(w, "fsync %llu", (unsigned long long)o->ino);
	err = fs_fsync(work->fs, o->ino, rng_chance(&w->rng, 1, 3), &seq);
	say(w, "fsynced %llu: %d", (unsigned long long)o->ino, err);
	/* A promise made just as the lights went out is one all the same. */
	if (!err)
		model_fsynced(&work->model, o, call);
	return expect(w, err, 0, "fsync");
}

static int op_sync(struct worker *w)
{
	struct work *work = w->work;
	uint64_t call = model_tick(&work->model);
	int err;

	say(w, "sync");
	err = fs_sync(work->fs);
	say(w, "synced tick %llu: %d", (unsigned long long)call, err);
	if (!err)
		model_synced(&work->model, call);
	return expect(w, err, 0, "sync");
}

static int op_statfs(struct worker *w)
{
	struct fs_stat st;

	fs_statfs(w->work->fs, &st);
	rig_must(w->work->rig, st.blocks_free <= st.blocks && st.blocks_avail <= st.blocks_free,
		 "statfs: %llu blocks, %llu free, %llu available", (unsigned long long)st.blocks,
		 (unsigned long long)st.blocks_free, (unsigned long long)st.blocks_avail);
	return 0;
}

static int op_pause(struct worker *w)
{
	uint64_t ns = w->work->idle && rng_chance(&w->rng, 1, 4) ? 10 * NS_PER_S : 30 * NS_PER_MS;

	co_sleep_ns(rng_below(&w->rng, ns));
	return 0;
}

static const struct {
	int (*fn)(struct worker *w);
	unsigned weight;
	const char *what; /* of those that say nothing themselves */
} ops[] = {
    {op_make, 14, NULL},      {op_write, 26, NULL},	   {op_read, 10, "read"},
    {op_truncate, 4, NULL},   {op_fallocate, 4, NULL},	   {op_unlink, 7, NULL},
    {op_rename, 8, NULL},     {op_link, 4, NULL},	   {op_tmpfile, 1, NULL},
    {op_hold, 3, "hold"},     {op_chmod, 2, NULL},	   {op_xattr, 6, NULL},
    {op_xattr_read, 2, "getxattr"}, {op_getattr, 3, "getattr"}, {op_lookup, 3, "lookup"},
    {op_readdir, 2, "readdir"}, {op_readlink, 1, "readlink"}, {op_lseek, 2, "lseek"},
    {op_statfs, 1, "statfs"}, {op_pause, 3, "pause"},
};

static void worker_main(void *arg)
{
	struct worker *w = arg;
	unsigned total = 0;
	int stop = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(ops); i++)
		total += ops[i].weight;
	while (!stop && w->ops_left && !w->work->stop && !crashed(w)) {
		unsigned x, i = 0;

		w->ops_left--;
		if (!rig_turn(w->work->rig, SKIP_WORKER + w->number, &w->rng))
			continue;
		x = (unsigned)rng_below(&w->rng, total);
		w->work->rig->stats.ops++;
		if (rng_chance(&w->rng, w->work->sync_percent, 100)) {
			stop = rng_chance(&w->rng, 1, 4) ? op_sync(w) : op_fsync(w);
			if (stop == -EIO)
				stop = 0;
			continue;
		}
		while (x >= ops[i].weight)
			x -= ops[i++].weight;
		if (ops[i].what)
			say(w, "%s", ops[i].what);
		stop = ops[i].fn(w);
		if (stop == -EIO)
			stop = 0;
	}
	rig_worker_done(w->work->rig);
}

/* ---- reading everything back ---- */

static int found_type(struct rig *g, uint32_t mode, enum mtype *ret)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		*ret = M_REG;
		return 0;
	case S_IFDIR:
		*ret = M_DIR;
		return 0;
	case S_IFLNK:
		*ret = M_SYMLINK;
		return 0;
	case S_IFIFO:
		*ret = M_FIFO;
		return 0;
	case S_IFCHR:
		*ret = M_CHR;
		return 0;
	}
	rig_fail(g, "found mode %o", mode);
}

/* Block by block, since some cannot be read. */
static int found_pieces(struct work *w, struct mobj *o, uint64_t off, size_t len, uint8_t *bytes)
{
	static const uint8_t zeros[BLOCK_BYTES];

	for (size_t at = 0; at < len; at += BLOCK_BYTES) {
		size_t n = MIN(len - at, (size_t)BLOCK_BYTES), got = 0;
		int err = read_into(w->rig, w->fs, o->ino, off + at, n, bytes, &got);

		if (rig_beyond_error(w->rig, err)) {
			model_found_lost(o, (off + at) / BLOCK_BYTES);
			continue;
		}
		if (err)
			return err;
		memset(bytes + got, 0, BLOCK_BYTES - got);
		if (memcmp(bytes, zeros, BLOCK_BYTES))
			model_found_block(o, (off + at) / BLOCK_BYTES, bytes);
	}
	return 0;
}

static int found_data(struct work *w, struct mobj *o, uint64_t size, uint8_t *bytes)
{
	static const uint8_t zeros[BLOCK_BYTES];
	uint64_t off = 0, next;

	model_found_size(o, size);
	while (off < size) {
		size_t len = MIN(size - off, (uint64_t)READ_BYTES), got = 0;
		int err;

		/* Only what is far out is skipped by way of holes: elsewhere holes are read. */
		if (size > FILE_BYTES_BIG * 2ull) {
			err = fs_lseek(w->fs, o->ino, off, SEEK_DATA, &next);
			if (err == -ENXIO)
				return 0;
			if (rig_beyond_error(w->rig, err))
				o->vague = true;
			if (err)
				return err;
			off = ROUND_DOWN(next, BLOCK_BYTES);
			len = MIN(size - off, (uint64_t)READ_BYTES);
		}
		err = read_into(w->rig, w->fs, o->ino, off, len, bytes, &got);
		if (rig_beyond_error(w->rig, err)) {
			err = found_pieces(w, o, off, len, bytes);
			if (err)
				return err;
			off += len;
			continue;
		}
		if (err)
			return err;
		rig_must(w->rig, got == len, "file %llu: read %zu of %zu bytes at %llu",
			 (unsigned long long)o->ino, got, len, (unsigned long long)off);
		memset(bytes + got, 0, ROUND_UP(got, (size_t)BLOCK_BYTES) - got);
		for (size_t at = 0; at < got; at += BLOCK_BYTES) {
			if (memcmp(bytes + at, zeros, BLOCK_BYTES))
				model_found_block(o, (off + at) / BLOCK_BYTES, bytes + at);
		}
		off += len;
	}
	return 0;
}

static int found_xattrs(struct work *w, struct model *found, struct mobj *o, uint8_t *bytes)
{
	char *names = (char *)bytes + XATTR_BYTES_MAX + 1024;
	size_t len, value_len;
	int err = fs_listxattr(w->fs, o->ino, names, 65536, &len);

	if (err)
		return err;
	for (size_t at = 0; at < len; at += strlen(names + at) + 1) {
		err = fs_getxattr(w->fs, o->ino, names + at, bytes, XATTR_BYTES_MAX, &value_len);
		if (err)
			return err;
		model_found_xattr(found, o, names + at, bytes, value_len);
	}
	return 0;
}

/* One name; its object, if it is new, with all that belongs to it. */
static int found_entry(struct work *w, struct model *found, struct mobj *dir,
		       const struct found_entry *e, uint8_t *bytes, struct mobj **ret_dir)
{
	char target[FS_SYMLINK_BYTES_MAX + 1];
	unsigned worker = dir->worker;
	struct fs_attr attr;
	enum mtype type;
	struct mobj *o;
	bool new;
	int err = fs_lookup(w->fs, dir->ino, e->name, &attr);

	rig_alive(w->rig);
	if (rig_beyond_error(w->rig, err))
		dir->vague = true;
	if (err)
		return err;
	fs_unref(w->fs, attr.ino, 1);
	rig_must(w->rig, attr.ino == e->ino, "%llu/%s: readdir says %llu, lookup %llu",
		 (unsigned long long)dir->ino, short_name(e->name), (unsigned long long)e->ino,
		 (unsigned long long)attr.ino);
	rig_must(w->rig, e->dtype == (attr.mode & S_IFMT) >> 12,
		 "%llu/%s: readdir says type %u, mode is %o", (unsigned long long)dir->ino,
		 short_name(e->name), e->dtype, attr.mode);
	(void)found_type(w->rig, attr.mode, &type);
	if (dir->shared || dir == found->root) {
		if (e->name[0] == 'w' && e->name[1] >= '0' &&
		    e->name[1] < (char)('0' + w->worker_count))
			worker = (unsigned)(e->name[1] - '0');
	}
	target[0] = 0;
	if (type == M_SYMLINK) {
		err = fs_readlink(w->fs, attr.ino, target, sizeof(target));
		if (rig_beyond_error(w->rig, err))
			dir->vague = true;
		if (err)
			return err;
	}
	o = model_found(found, worker, dir, e->name, attr.ino, type, attr.mode & 07777,
			attr.rdev_minor, attr.links, type == M_SYMLINK ? target : NULL, &new);
	rig_must(w->rig, new || type != M_DIR, "directory %llu has two names",
		 (unsigned long long)attr.ino);
	*ret_dir = type == M_DIR ? o : NULL;
	if (!new)
		return 0;
	if (dir == found->root && !strcmp(e->name, "shared"))
		o->shared = true;
	if (type == M_REG || type == M_DIR)
		err = found_xattrs(w, found, o, bytes);
	if (rig_beyond_error(w->rig, err)) {
		o->vague = true;
		err = 0;
	}
	if (!err && type == M_REG)
		err = found_data(w, o, attr.size, bytes);
	return err;
}

static int found_dir(struct work *w, struct model *found, struct mobj *dir, struct mobj **queue,
		     unsigned *count, uint8_t *bytes)
{
	struct listing l;
	int err = list_dir(w->rig, w->fs, &w->rig->rng, dir->ino, &l);

	/* What was listed before the gap is there, and all below it. */
	if (rig_beyond_error(w->rig, err)) {
		dir->vague = true;
		err = 0;
	}
	for (unsigned i = 0; i < l.count && !err; i++) {
		struct mobj *sub = NULL;

		rig_must(w->rig, !model_lookup(dir, l.entries[i].name), "%llu/%s is there twice",
			 (unsigned long long)dir->ino, short_name(l.entries[i].name));
		err = found_entry(w, found, dir, &l.entries[i], bytes, &sub);
		if (rig_beyond_error(w->rig, err))
			err = 0;
		if (!err && sub) {
			rig_must(w->rig, *count < FOUND_DIRS_MAX, "too many directories");
			queue[(*count)++] = sub;
		}
	}
	free(l.entries);
	return err;
}

static void work_fail(void *arg, const char *text)
{
	struct work *w = arg;

	rig_fail(w->rig, "%s", text);
}

int work_read_all(struct work *w, struct model *found)
{
	struct mobj **queue = calloc(FOUND_DIRS_MAX, sizeof(*queue));
	uint8_t *bytes = malloc(READ_BYTES + 2 * 65536);
	unsigned count = 0;
	bool new;
	int err = 0;

	if (!queue || !bytes)
		abort();
	model_init(found, w->worker_count, work_fail, w);
	queue[count++] =
	    model_found(found, 0, NULL, "", FS_ROOT_INO, M_DIR, 0755, 0, 1, NULL, &new);
	for (unsigned i = 0; i < count && !err; i++)
		err = found_dir(w, found, queue[i], queue, &count, bytes);
	free(queue);
	free(bytes);
	if (err) {
		if (!crashed(&w->workers[0]))
			rig_fail(w->rig, "reading everything: %s", strerror(-err));
		model_exit(found);
		return err;
	}
	model_found_end(found);
	return 0;
}

/* ---- setting up ---- */

void work_init(struct work *w, struct rig *g, unsigned workers)
{
	*w = (struct work){.rig = g, .worker_count = workers, .sync_percent = 8};
	model_init(&w->model, workers, work_fail, w);
	for (unsigned i = 0; i < workers; i++) {
		char name[] = {'w', (char)('0' + i), 0};

		w->workers[i].work = w;
		w->workers[i].number = i;
		w->workers[i].bytes = malloc(2 * IO_BYTES_MAX);
		if (!w->workers[i].bytes)
			abort();
		rng_fork(&w->workers[i].rng, name, g->o->seed);
	}
}

void work_exit(struct work *w)
{
	model_exit(&w->model);
	for (unsigned i = 0; i < w->worker_count; i++)
		free(w->workers[i].bytes);
}

int work_make_homes(struct work *w)
{
	struct model found;
	struct fs_attr attr;
	char name[8];
	int err = 0;

	for (unsigned i = 0; i <= w->worker_count && !err; i++) {
		snprintf(name, sizeof(name), i < w->worker_count ? "w%u" : "shared", i);
		err = fs_mkdir(w->fs, FS_ROOT_INO, name, 0755, &root_cred, &attr);
		if (!err)
			fs_unref(w->fs, attr.ino, 1);
	}
	if (!err)
		err = fs_sync(w->fs);
	if (!err)
		err = work_read_all(w, &found);
	if (err) {
		if (!world_crashed(w->rig->world))
			rig_fail(w->rig, "making the first directories: %s", strerror(-err));
		return err;
	}
	model_adopt(&w->model, &found);
	return 0;
}

void work_start(struct work *w, unsigned ops_each)
{
	w->stop = false;
	for (unsigned i = 0; i < w->worker_count; i++) {
		w->workers[i].ops_left = ops_each;
		rig_must(w->rig, !rig_spawn(w->rig, worker_main, &w->workers[i]), "no memory");
	}
}

void work_check_line(void *arg, const char *id, const char *text)
{
	(void)arg;
	log_error("check: %s: %s", id, text);
}

int work_check(struct rig *g)
{
	struct fs_check_stats stats;
	int64_t problems;
	int err = rig_open(g, RAID_OPEN_CHECK);

	if (err)
		return err;
	rig_say(g, "checking");
	problems = fs_check(g->raid, work_check_line, NULL, &stats);
	if (world_crashed(g->world))
		return -ENODEV;
	rig_must(g, problems >= 0, "fs_check: %s", strerror((int)-problems));
	rig_must(g, problems == 0, "fs_check: %lld problems", (long long)problems);
	world_trace(g->world, 'f', stats.inodes, stats.data_blocks, stats.meta_blocks);
	return rig_close(g);
}
