/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Inodes. The item in the tree is the truth for everything but what dirty data brings with it: the
 * size and the times of a file that is being written are kept in struct inode ("over") and reach
 * the tree with the data.
 *
 * The size on disk never passes the first dirty block behind the old one, but those of which an older
 * content has been written out (else fsync of a file that is being written would not keep its promise):
 * what a crash leaves of a growing file is a prefix of what was written, not a tail of zeros. inode_store applies this each
 * time the item is put, and since the last block of a file that becomes clean puts it, a file
 * without dirty blocks is the same in memory and on disk. (Rejected: an atom for each write, with
 * the size at once. Legal, but every crash would leave zeros at the end of logs.)
 *
 * Lifetime: an inode whose last name goes gets an orphan item in the same atom. When its last
 * reference is gone too, the reaper frees it: extents in bounded steps, then the rest. A crash in
 * between leaves the orphan item, and the next mount goes on. An orphan item of an inode that has
 * names says that a truncation was under way.
 *
 * Bytes of the last block behind the end of the file are not trusted anywhere: they are cut off
 * when reading, and zeroed by the write or truncation that moves the end past them (file.c).
 */
#include "inode.h"
#include "extent.h"
#include "writeback.h"

#define TABLE_BUCKETS_FIRST 1024u
#define TABLE_BUCKETS_MAX   (1u << 20)
#define REAP_ITEMS_MAX	    24 /* one atom deletes */
#define SUID_SGID	    (S_ISUID | S_ISGID)

struct inode_table {
	struct list *buckets;
	unsigned bucket_count;
	uint64_t count;
	struct list reap; /* inodes whose time has come */
	uint64_t reap_count;
	struct co_cond reap_cond; /* reaper waits for work, others for it to be done */
	struct co_cond idle_cond;
	bool reaper_runs, stopping;
};

/* ---- time ---- */

void inode_now(struct fs *fs, struct timespec *ret)
{
	if (fs->options.now)
		fs->options.now(ret);
	else
		(void)clock_gettime(CLOCK_REALTIME, ret); /* cannot fail with this clock */
}

struct time_disk time_to_disk(struct timespec t)
{
	return (struct time_disk){.s = to_le64((uint64_t)t.tv_sec),
				  .ns = to_le32((uint32_t)t.tv_nsec)};
}

struct timespec time_from_disk(struct time_disk t)
{
	return (struct timespec){.tv_sec = (time_t)from_le64(t.s), .tv_nsec = from_le32(t.ns)};
}

/* ---- the table ---- */

static struct list *bucket(struct inode_table *t, uint64_t ino)
{
	return &t->buckets[(ino * 0x9e3779b97f4a7c15ull >> 32) & (t->bucket_count - 1)];
}

struct inode *inode_find(struct fs *fs, uint64_t ino)
{
	struct list *b = bucket(fs->inodes, ino);
	struct inode *i;
	list_for_each (i, b, node) {
		if (i->ino == ino)
			return i;
	}
	return NULL;
}

/* Without memory the chains get longer, that is all. */
static void table_grow(struct inode_table *t)
{
	unsigned old_count = t->bucket_count;
	struct list *old = t->buckets;
	struct list *new = mem_alloc(2 * (size_t)old_count * sizeof(*new));
	if (!new)
		return;
	t->buckets = new;
	t->bucket_count = 2 * old_count;
	for (unsigned b = 0; b < t->bucket_count; b++)
		list_init(&new[b]);
	for (unsigned b = 0; b < old_count; b++) {
		while (!list_empty(&old[b])) {
			struct inode *i = list_first(&old[b], struct inode, node);
			list_del(&i->node);
			list_add_tail(bucket(t, i->ino), &i->node);
		}
	}
	mem_free(old);
}

static struct inode *find_or_new(struct fs *fs, uint64_t ino)
{
	struct inode *i = inode_find(fs, ino);
	if (i)
		return i;
	struct inode_table *t = fs->inodes;
	if (t->count >= 2 * (uint64_t)t->bucket_count && t->bucket_count < TABLE_BUCKETS_MAX)
		table_grow(t);
	i = mem_zalloc(sizeof(*i));
	if (!i)
		return NULL;
	i->ino = ino;
	co_rwlock_init(&i->lock);
	co_cond_init(&i->wb_cond);
	list_init(&i->reap_node);
	list_init(&i->dirty);
	list_init(&i->writing);
	list_init(&i->promises);
	list_init(&i->wb_link);
	list_add_tail(bucket(t, ino), &i->node);
	t->count++;
	return i;
}

static void inode_free(struct fs *fs, struct inode *i)
{
	list_del(&i->node);
	fs->inodes->count--;
	writeback_forget(fs, i);
	mem_free(i);
}

void inode_settle(struct fs *fs, struct inode *i)
{
	if (i->refs || i->pins)
		return;
	if (i->orphan) {
		if (list_empty(&i->reap_node) && !i->reaping) {
			list_add_tail(&fs->inodes->reap, &i->reap_node);
			fs->inodes->reap_count++;
			co_cond_wake_all(&fs->inodes->reap_cond);
		}
		return;
	}
	if (!i->dirty_count && list_empty(&i->writing))
		inode_free(fs, i);
}

struct inode *inode_pin(struct fs *fs, uint64_t ino)
{
	struct inode *i = find_or_new(fs, ino);
	if (i)
		i->pins++;
	return i;
}

void inode_unpin(struct fs *fs, struct inode *i)
{
	assert(i->pins > 0);
	i->pins--;
	inode_settle(fs, i);
}

int inode_ref(struct fs *fs, uint64_t ino)
{
	struct inode *i = find_or_new(fs, ino);
	if (!i)
		return -ENOMEM;
	i->refs++;
	return 0;
}

void fs_ref(struct fs *fs, uint64_t ino)
{
	if (inode_ref(fs, ino) != 0)
		log_error("inode %llu: no memory to count a reference", (unsigned long long)ino);
}

void fs_unref(struct fs *fs, uint64_t ino, uint64_t count)
{
	struct inode *i = inode_find(fs, ino);
	if (!i)
		return; /* its fs_ref had no memory */
	i->refs -= MIN(count, i->refs);
	inode_settle(fs, i);
}

void fs_errseq_sample(struct fs *fs, uint64_t ino, struct fs_errseq *ret)
{
	struct inode *i = inode_find(fs, ino);
	ret->seen = i ? i->err_seq : 0;
}

/* ---- the item ---- */

static struct key inode_key(uint64_t ino)
{
	return (struct key){ino, KEY_OFF(TYPE_INODE, 0)};
}

int inode_load(struct fs *fs, uint64_t ino, struct inode_disk *ret)
{
	struct bt_value v;
	if (ino == 0 || ino >= BACKREF_INO)
		return -ESTALE;
	int r = bt_get(fs, inode_key(ino), &v);
	if (r == -ENOENT)
		return -ESTALE;
	if (r)
		return r;
	if (v.len != sizeof(*ret))
		return -EBADMSG;
	memcpy(ret, v.data, sizeof(*ret));
	struct inode *i = inode_find(fs, ino);
	if (i && i->over) {
		ret->mtime = time_to_disk(i->mtime);
		ret->ctime = time_to_disk(i->ctime);
	}
	return 0;
}

int inode_prepare(struct fs *fs, uint64_t ino)
{
	return bt_prepare(fs, inode_key(ino), sizeof(struct inode_disk));
}

void inode_store(struct fs *fs, uint64_t ino, struct inode_disk *d)
{
	struct inode *i = inode_find(fs, ino);
	if (i && i->over) {
		i->mtime = time_from_disk(d->mtime);
		i->ctime = time_from_disk(d->ctime);
		uint64_t size = from_le64(d->size);
		d->size = to_le64(MAX(size, BREAK(fs_prefix) ? i->size : MIN(i->size, writeback_standing(i, size))));
		if (!i->dirty_count)
			i->over = false;
	}
	d->version = to_le64(from_le64(d->version) + 1);
	bt_put(fs, inode_key(ino), d, sizeof(*d));
}

uint64_t inode_size(struct fs *fs, uint64_t ino, const struct inode_disk *d)
{
	struct inode *i = inode_find(fs, ino);
	return i && i->over ? i->size : from_le64(d->size);
}

void inode_attr(struct fs *fs, uint64_t ino, const struct inode_disk *d, struct fs_attr *ret)
{
	struct inode *i = inode_find(fs, ino);
	uint64_t blocks = from_le64(d->blocks) + (i ? i->fresh_count : 0);
	memset(ret, 0, sizeof(*ret));
	ret->ino = ino;
	ret->generation = from_le32(d->generation);
	ret->mode = inode_mode(d);
	ret->size = inode_size(fs, ino, d);
	ret->blocks512 = blocks * (BLOCK_BYTES / 512);
	/* Data in the tree: programs take "no blocks" to mean "all holes". */
	if (S_ISREG(ret->mode) && !blocks && ret->size <= INLINE_BYTES_MAX)
		ret->blocks512 = DIV_ROUND_UP(ret->size, 512);
	ret->links = from_le32(d->links);
	if (S_ISDIR(ret->mode)) {
		ret->size = BLOCK_BYTES;
		/* More than a program expects to be possible: 1 says "not counted" to find(1) and
		 * its like. */
		if (ret->links > FS_LINK_MAX)
			ret->links = 1;
	}
	ret->uid = from_le32(d->uid);
	ret->gid = from_le32(d->gid);
	ret->rdev_major = from_le32(d->rdev_major);
	ret->rdev_minor = from_le32(d->rdev_minor);
	ret->atime = time_from_disk(d->atime);
	ret->mtime = time_from_disk(d->mtime);
	ret->ctime = time_from_disk(d->ctime);
	ret->btime = time_from_disk(d->btime);
}

uint64_t inode_fresh(struct fs *fs, struct inode_disk *d, uint32_t mode, uint32_t uid, uint32_t gid,
		     uint64_t parent)
{
	struct timespec now;
	inode_now(fs, &now);
	memset(d, 0, sizeof(*d));
	d->mode = to_le32(mode);
	d->links = to_le32(S_ISDIR(mode) ? 2 : 1);
	d->uid = to_le32(uid);
	d->gid = to_le32(gid);
	/* Numbers are not used twice, so this only has to differ should that ever change. */
	uint32_t generation = (uint32_t)fs->gen;
	d->generation = to_le32(generation ? generation : 1);
	d->parent = to_le64(parent);
	d->atime = d->mtime = d->ctime = d->btime = time_to_disk(now);
	return fs_counters(fs)->ino_next;
}

void inode_create(struct fs *fs, uint64_t ino, struct inode_disk *d)
{
	struct fs_counters *c = fs_counters(fs);
	assert(ino == c->ino_next);
	c->ino_next++;
	c->inodes++;
	bt_put(fs, inode_key(ino), d, sizeof(*d));
}

void inode_times_now(struct fs *fs, struct inode_disk *d, bool mtime)
{
	struct timespec now;
	inode_now(fs, &now);
	d->ctime = time_to_disk(now);
	if (mtime)
		d->mtime = d->ctime;
}

bool inode_drop_suid(struct inode_disk *d)
{
	uint32_t mode = inode_mode(d), kept = mode;
	if (!S_ISREG(mode))
		return false;
	kept &= ~(uint32_t)S_ISUID;
	/* Without group execute the bit does not say "set group" but asks for mandatory locking. */
	if (mode & S_IXGRP)
		kept &= ~(uint32_t)S_ISGID;
	d->mode = to_le32(kept);
	return kept != mode;
}

static int getattr_atom(struct fs *fs, void *arg)
{
	struct fs_attr *attr = arg;
	struct inode_disk d;
	uint64_t ino = attr->ino;
	int r = inode_load(fs, ino, &d);
	if (r == 0)
		inode_attr(fs, ino, &d, attr);
	return r;
}

int fs_getattr(struct fs *fs, uint64_t ino, struct fs_attr *ret)
{
	struct fs_attr attr = {.ino = ino};
	int r = fs_atom(fs, ATOM_READ, getattr_atom, &attr);
	if (r == 0)
		*ret = attr;
	return r;
}

/* ---- freeing what nobody names or holds ---- */

void inode_orphaned(struct fs *fs, struct inode *i)
{
	assert(i->pins > 0); /* so that inode_unpin settles it */
	i->orphan = true;
}

struct reap {
	struct inode *i;
	bool done;
};

/* One step: some extents; with the last of them other items; with the last of those the inode
 * itself. */
static int reap_atom(struct fs *fs, void *arg)
{
	struct reap *reap = arg;
	uint64_t ino = reap->i->ino;
	struct inode_disk d;
	struct extent_edit edit;
	struct key doomed[REAP_ITEMS_MAX];
	unsigned count = 0;
	reap->done = false;
	int r = inode_load(fs, ino, &d);
	if (r == -ESTALE) {
		reap->done = true;
		return 0;
	}
	if (r)
		return r;
	if (from_le32(d.links) != 0 || reap->i->refs) {
		reap->i->orphan = from_le32(d.links) == 0;
		reap->done = true; /* somebody found it by its number, or gave it a name */
		return 0;
	}
	r = extent_plan(fs, ino, 0, EXTENT_TO_END, LBA_HOLE, &edit);
	if (r)
		return r;
	bool all = edit.complete;
	struct key key = {ino, KEY_OFF(TYPE_XATTR, 0)}, found;
	struct bt_value v;
	while (all) {
		r = bt_ge(fs, key, &found, &v);
		if (r && r != -ENOENT)
			return r;
		if (r == -ENOENT || found.ino != ino)
			break;
		if (KEY_TYPE(found) == TYPE_EXTENT) {
			key.off = KEY_OFF(TYPE_EXTENT + 1, 0); /* the edit has them */
			continue;
		}
		if (count == REAP_ITEMS_MAX) {
			all = false;
			break;
		}
		r = bt_prepare(fs, found, 0);
		if (r)
			return r;
		doomed[count++] = found;
		key = (struct key){ino, found.off + 1};
	}
	r = inode_prepare(fs, ino);
	if (r == 0 && all)
		r = bt_prepare(fs, orphan_key(ino), 0);
	bool listed = false;
	if (r == 0 && all) {
		r = bt_get(fs, orphan_key(ino), &v);
		listed = r == 0;
		if (r == -ENOENT)
			r = 0;
	}
	if (r)
		return r;

	writeback_drop(fs, reap->i, 0, UINT64_MAX);
	reap->i->over = false;
	extent_apply(fs, &edit);
	for (unsigned k = 0; k < count; k++)
		bt_del(fs, doomed[k]);
	if (!all) {
		extent_account(&d, &edit);
		bt_put(fs, inode_key(ino), &d, sizeof(d));
		return 0;
	}
	bt_del(fs, inode_key(ino));
	if (listed)
		bt_del(fs, orphan_key(ino));
	fs_counters(fs)->inodes--;
	reap->done = true;
	reap->i->orphan = false;
	return 0;
}

static int reap_one(struct fs *fs, struct inode *i)
{
	struct reap reap = {.i = i};
	int r = 0;
	i->pins++;
	i->reaping = true;
	co_rwlock_write(&i->lock);
	while (r == 0 && !reap.done)
		r = fs_atom(fs, ATOM_WRITE | ATOM_FREES, reap_atom, &reap);
	co_rwlock_unlock(&i->lock);
	if (r) {
		/* It stays on the list in the tree: the next mount tries again. */
		if (!raid_error(fs->raid))
			log_warning("inode %llu: not freed: %s", (unsigned long long)i->ino,
				    strerror(-r));
		writeback_drop(fs, i, 0, UINT64_MAX);
		i->over = false;
		i->orphan = false;
	}
	i->reaping = false;
	inode_unpin(fs, i);
	return r;
}

static void reaper(void *arg)
{
	struct fs *fs = arg;
	struct inode_table *t = fs->inodes;
	while (!t->stopping) {
		if (list_empty(&t->reap)) {
			co_cond_wait(&t->reap_cond);
			continue;
		}
		struct inode *i = list_first(&t->reap, struct inode, reap_node);
		list_del(&i->reap_node);
		(void)reap_one(fs, i); /* said what there is to say; the orphan item keeps it */
		t->reap_count--;
		co_cond_wake_all(&t->idle_cond);
	}
	t->reaper_runs = false;
	co_cond_wake_all(&t->idle_cond);
}

bool inodes_reaping(const struct fs *fs)
{
	return fs->inodes->reap_count > 0;
}

void inodes_reap_wait(struct fs *fs)
{
	while (fs->inodes->reap_count && fs->inodes->reaper_runs && !fs->inodes->stopping)
		co_cond_wait(&fs->inodes->idle_cond);
}

struct next_orphan {
	uint64_t from;
	uint64_t ino; /* 0: none */
	bool named;   /* a truncation to be finished */
	bool gone;    /* the item names nothing */
};

static int next_orphan_atom(struct fs *fs, void *arg)
{
	struct next_orphan *o = arg;
	struct key found;
	struct bt_value v;
	struct inode_disk d;
	o->ino = 0;
	int r = bt_ge(fs, orphan_key(o->from), &found, &v);
	if (r == -ENOENT)
		return 0;
	if (r)
		return r;
	if (found.ino != 0 || KEY_TYPE(found) != TYPE_ORPHAN)
		return 0;
	uint64_t ino = KEY_OFFSET(found);
	r = inode_load(fs, ino, &d);
	if (r && r != -ESTALE)
		return r;
	o->gone = r == -ESTALE;
	o->named = r == 0 && from_le32(d.links) != 0;
	o->ino = ino;
	return 0;
}

static int unlist_atom(struct fs *fs, void *arg)
{
	uint64_t ino = *(uint64_t *)arg;
	struct bt_value v;
	int r = bt_get(fs, orphan_key(ino), &v);
	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = bt_prepare(fs, orphan_key(ino), 0);
	if (r == 0)
		bt_del(fs, orphan_key(ino));
	return r;
}

/*
 * Everything on the orphan list is done with, whoever still counts references: at mount nobody
 * holds anything, and at unmount nobody can come back to it.
 */
int inodes_reap_orphans(struct fs *fs)
{
	if (fs->read_only)
		return 0;
	struct next_orphan o = {.from = 0};
	int first_error = 0;
	inodes_reap_wait(fs);
	for (;;) {
		int r = fs_atom(fs, ATOM_READ, next_orphan_atom, &o);
		if (r)
			return first_error ? first_error : r;
		if (!o.ino)
			return first_error;
		if (o.gone) {
			r = fs_atom(fs, ATOM_WRITE | ATOM_FREES, unlist_atom, &o.ino);
		} else if (o.named) {
			r = extent_cut_tail(fs, o.ino);
		} else {
			struct inode *i = inode_pin(fs, o.ino);
			if (!i)
				return -ENOMEM;
			i->refs = 0;
			i->orphan = true;
			bool queued = !list_empty(&i->reap_node);
			if (queued) {
				list_del(&i->reap_node);
				fs->inodes->reap_count--;
			}
			r = reap_one(fs, i);
			if (!r)
				i->orphan = false;
			inode_unpin(fs, i);
		}
		if (r == -EIO || r == -EBADMSG) {
			/* One that cannot be read must not keep the others, or the mount. */
			log_warning("inode %llu: stays on the orphan list: %s",
				    (unsigned long long)o.ino, strerror(-r));
			first_error = first_error ? first_error : r;
		} else if (r) {
			return r;
		}
		o.from = o.ino + 1;
	}
}

/* ---- beginning and end ---- */

int inodes_init(struct fs *fs)
{
	struct inode_table *t = mem_zalloc(sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->bucket_count = TABLE_BUCKETS_FIRST;
	t->buckets = mem_alloc(t->bucket_count * sizeof(*t->buckets));
	if (!t->buckets) {
		mem_free(t);
		return -ENOMEM;
	}
	for (unsigned b = 0; b < t->bucket_count; b++)
		list_init(&t->buckets[b]);
	list_init(&t->reap);
	co_cond_init(&t->reap_cond);
	co_cond_init(&t->idle_cond);
	fs->inodes = t;
	if (fs->read_only)
		return 0;
	int r = co_spawn(fs->loop, reaper, fs);
	if (r) {
		mem_free(t->buckets);
		mem_free(t);
		fs->inodes = NULL;
		return r;
	}
	t->reaper_runs = true;
	return 0;
}

/* Yields until the reaper is gone. */
void inodes_exit(struct fs *fs)
{
	struct inode_table *t = fs->inodes;
	if (!t)
		return;
	t->stopping = true;
	co_cond_wake_all(&t->reap_cond);
	co_cond_wake_all(&t->idle_cond);
	while (t->reaper_runs)
		co_cond_wait(&t->idle_cond);
	for (unsigned b = 0; b < t->bucket_count; b++) {
		while (!list_empty(&t->buckets[b])) {
			struct inode *i = list_first(&t->buckets[b], struct inode, node);
			list_del(&i->reap_node);
			inode_free(fs, i);
		}
	}
	mem_free(t->buckets);
	mem_free(t);
	fs->inodes = NULL;
}
