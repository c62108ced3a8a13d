/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Extents: which file blocks stand where. An extent item and its back-reference are made and
 * removed together; a block is live in the volume exactly while an extent names it. Promised
 * extents (fallocate) have no address and no back-reference; they are counted, so that others do
 * not get their space.
 *
 * Every change is one kind: "this range is now there". The plan collects the extents it touches (in
 * old), cuts off what stays at both ends, joins neighbours, and prepares each key; carrying it out
 * cannot fail. An inode may have millions of extents, so a change takes at most EXTENT_EDIT_OLD_MAX
 * of them and says how far it got.
 *
 * Block 0 of a tiny file is not here but in the TYPE_INLINE item; no extent covers block 0 while
 * there is one.
 */
#include "extent.h"
#include "inode.h"
#include "writeback.h"

static struct key extent_key(uint64_t ino, uint64_t block)
{
	return (struct key){ino, KEY_OFF(TYPE_EXTENT, block)};
}

static struct key backref_key(uint64_t lba)
{
	return (struct key){BACKREF_INO | LBA_CHUNK(lba), KEY_OFF(TYPE_BACKREF, LBA_BLOCK(lba))};
}

/* Bytes from disk: whatever they say must not take us out of our arithmetic. */
static int decode(struct key key, const struct bt_value *v, struct extent *ret)
{
	const struct extent_disk *d = v->data;
	if (v->len != sizeof(*d))
		return -EBADMSG;
	ret->off = KEY_OFFSET(key);
	ret->lba = from_le64(d->lba);
	ret->count = from_le32(d->count);
	if (ret->count == 0 || ret->count > EXTENT_BLOCKS_MAX ||
	    ret->off > FS_FILE_BYTES_MAX >> BLOCK_SHIFT || ret->lba == LBA_HOLE)
		return -EBADMSG;
	if (ret->lba != LBA_NONE && LBA_BLOCK(ret->lba) > UINT32_MAX - ret->count)
		return -EBADMSG;
	return 0;
}

/* The last extent that begins at or before block. -ENOENT. */
static int find_le(struct fs *fs, uint64_t ino, uint64_t block, struct extent *ret)
{
	struct key key;
	struct bt_value v;
	int r = bt_le(fs, extent_key(ino, block), &key, &v);
	if (r)
		return r;
	if (key.ino != ino || KEY_TYPE(key) != TYPE_EXTENT)
		return -ENOENT;
	return decode(key, &v, ret);
}

static int find_ge(struct fs *fs, uint64_t ino, uint64_t block, struct extent *ret)
{
	struct key key;
	struct bt_value v;
	int r = bt_ge(fs, extent_key(ino, block), &key, &v);
	if (r)
		return r;
	if (key.ino != ino || KEY_TYPE(key) != TYPE_EXTENT)
		return -ENOENT;
	return decode(key, &v, ret);
}

int extent_find(struct fs *fs, uint64_t ino, uint64_t block, struct extent *ret)
{
	int r = find_le(fs, ino, block, ret);
	if (r == 0 && extent_end(ret) > block)
		return 0;
	if (r && r != -ENOENT)
		return r;
	return find_ge(fs, ino, block, ret);
}

/* Whether b, directly behind a in the file, can be one extent with it. */
static bool joins(const struct extent *a, const struct extent *b)
{
	if (extent_end(a) != b->off || a->count + b->count > EXTENT_BLOCKS_MAX)
		return false;
	if (a->lba == LBA_NONE || b->lba == LBA_NONE)
		return a->lba == b->lba;
	return a->lba + a->count == b->lba && LBA_CHUNK(a->lba) == LBA_CHUNK(b->lba);
}

static struct extent part(const struct extent *x, uint64_t from, uint64_t to)
{
	return (struct extent){
	    .off = from,
	    .lba = x->lba == LBA_NONE ? LBA_NONE : x->lba + (from - x->off),
	    .count = (uint32_t)(to - from),
	};
}

/* Blocks [from, to) of x go. */
static void kill_part(struct extent_edit *e, const struct extent *x, uint64_t from, uint64_t to)
{
	struct extent gone = part(x, from, to);
	if (gone.lba == LBA_NONE) {
		e->promised_delta -= gone.count;
		return;
	}
	e->data_delta -= gone.count;
	e->dead[e->dead_count++] = (struct raid_run){gone.lba, gone.count};
}

static void add_new(struct extent_edit *e, struct extent x)
{
	if (e->new_count && joins(&e->new[e->new_count - 1], &x))
		e->new[e->new_count - 1].count += x.count;
	else
		e->new[e->new_count++] = x;
}

static bool is_new(const struct extent_edit *e, const struct extent *x)
{
	for (unsigned k = 0; k < e->new_count; k++)
		if (e->new[k].off == x->off)
			return true;
	return false;
}

static bool is_new_ref(const struct extent_edit *e, const struct extent *x)
{
	for (unsigned k = 0; k < e->new_count; k++)
		if (e->new[k].lba == x->lba)
			return true;
	return false;
}

static int prepare(struct fs *fs, const struct extent_edit *e)
{
	int r = 0;
	for (unsigned k = 0; k < e->old_count && r == 0; k++) {
		const struct extent *x = &e->old[k];
		if (!is_new(e, x))
			r = bt_prepare(fs, extent_key(e->ino, x->off), 0);
		if (r == 0 && x->lba != LBA_NONE && !is_new_ref(e, x))
			r = bt_prepare(fs, backref_key(x->lba), 0);
	}
	for (unsigned k = 0; k < e->new_count && r == 0; k++) {
		const struct extent *x = &e->new[k];
		r = bt_prepare(fs, extent_key(e->ino, x->off), sizeof(struct extent_disk));
		if (r == 0 && x->lba != LBA_NONE)
			r = bt_prepare(fs, backref_key(x->lba), sizeof(struct backref_disk));
	}
	return r;
}

/* The extents that begin within [off, e->end); cuts the end short when there are too many. Sets
 * *right to what stays behind. */
static int collect(struct fs *fs, struct extent_edit *e, uint64_t off, struct extent *right,
		   bool *has_right)
{
	for (uint64_t at = off; at < e->end;) {
		struct extent x;
		int r = find_ge(fs, e->ino, at, &x);
		if (r == -ENOENT)
			return 0;
		if (r)
			return r;
		if (x.off >= e->end)
			return 0;
		/* One place is kept for a neighbour to be joined. */
		if (e->old_count >= EXTENT_EDIT_OLD_MAX - 1) {
			e->end = x.off;
			e->complete = false;
			return 0;
		}
		e->old[e->old_count++] = x;
		kill_part(e, &x, x.off, MIN(extent_end(&x), e->end));
		if (extent_end(&x) > e->end) {
			*right = part(&x, e->end, extent_end(&x));
			*has_right = true;
		}
		at = extent_end(&x);
	}
	return 0;
}

int extent_plan(struct fs *fs, uint64_t ino, uint64_t off, uint64_t count, uint64_t lba,
		struct extent_edit *e)
{
	struct extent left, right, new;
	bool has_left = false, has_right = false;
	assert(count > 0);
	e->ino = ino;
	e->end = off + count;
	e->complete = true;
	e->old_count = e->new_count = e->dead_count = 0;
	e->data_delta = e->promised_delta = 0;
	e->live.count = 0;
	if (lba != LBA_HOLE && count > EXTENT_BLOCKS_MAX) {
		e->end = off + EXTENT_BLOCKS_MAX;
		e->complete = false;
	}
	if (off) {
		int r = find_le(fs, ino, off - 1, &left);
		if (r && r != -ENOENT)
			return r;
		has_left = r == 0;
	}
	struct extent beside; /* on the left, whole: only to be joined */
	bool has_beside = has_left && extent_end(&left) == off;
	if (has_beside) {
		beside = left;
		has_left = false;
	}
	if (has_left && extent_end(&left) > off) {
		uint64_t end = extent_end(&left);
		e->old[e->old_count++] = left;
		kill_part(e, &left, off, MIN(end, e->end));
		if (end > e->end) {
			right = part(&left, e->end, end);
			has_right = true;
		}
		left = part(&left, left.off, off);
	} else {
		has_left = false;
	}
	int r = has_right ? 0 : collect(fs, e, off, &right, &has_right);
	if (r)
		return r;
	new = (struct extent){.off = off, .lba = lba, .count = 0};
	if (lba != LBA_HOLE) {
		new.count = (uint32_t)(e->end - off);
		if (has_beside && joins(&beside, &new)) {
			e->old[e->old_count++] = beside;
			left = beside;
			has_left = true;
		}
		struct extent next;
		if (!has_right && e->old_count < EXTENT_EDIT_OLD_MAX) {
			r = find_ge(fs, ino, e->end, &next);
			if (r && r != -ENOENT)
				return r;
			if (r == 0 && joins(&new, &next) &&
			    (!has_left ||
			     left.count + new.count + next.count <= EXTENT_BLOCKS_MAX)) {
				e->old[e->old_count++] = next;
				right = next;
				has_right = true;
			}
		}
		if (lba == LBA_NONE) {
			e->promised_delta += new.count;
		} else {
			e->data_delta += new.count;
			e->live = (struct raid_run){lba, new.count};
		}
	}
	if (has_left)
		add_new(e, left);
	if (new.count)
		add_new(e, new);
	if (has_right)
		add_new(e, right);
	return prepare(fs, e);
}

void extent_apply(struct fs *fs, const struct extent_edit *e)
{
	for (unsigned k = 0; k < e->old_count; k++) {
		const struct extent *x = &e->old[k];
		if (!is_new(e, x))
			bt_del(fs, extent_key(e->ino, x->off));
		if (x->lba != LBA_NONE && !is_new_ref(e, x))
			bt_del(fs, backref_key(x->lba));
	}
	for (unsigned k = 0; k < e->new_count; k++) {
		const struct extent *x = &e->new[k];
		struct extent_disk d = {.lba = to_le64(x->lba), .count = to_le32(x->count)};
		bt_put(fs, extent_key(e->ino, x->off), &d, sizeof(d));
		if (x->lba == LBA_NONE)
			continue;
		struct backref_disk b = {
		    .ino = to_le64(e->ino),
		    .off = to_le64(x->off),
		    .count = to_le32(x->count),
		};
		bt_put(fs, backref_key(x->lba), &b, sizeof(b));
	}
	for (unsigned k = 0; k < e->dead_count; k++)
		raid_stage_dead(fs->raid, e->dead[k].lba, e->dead[k].count);
	if (e->live.count)
		raid_stage_live(fs->raid, e->live.lba, e->live.count);
	struct fs_counters *c = fs_counters(fs);
	c->data_blocks += (uint64_t)e->data_delta;
	c->prealloc_blocks += (uint64_t)e->promised_delta;
	if (e->dead_count || e->promised_delta < 0)
		writeback_note_freed(fs);
}

void extent_account(struct inode_disk *d, const struct extent_edit *e)
{
	d->blocks = to_le64(from_le64(d->blocks) + (uint64_t)(e->data_delta + e->promised_delta));
}

struct cut {
	uint64_t ino;
	bool done;
};

static int cut_atom(struct fs *fs, void *arg)
{
	struct cut *cut = arg;
	struct inode_disk d;
	struct extent_edit e;
	struct bt_value v;
	int r = inode_load(fs, cut->ino, &d);
	if (r)
		return r;
	uint64_t from = DIV_ROUND_UP(inode_size(fs, cut->ino, &d), BLOCK_BYTES);
	r = extent_plan(fs, cut->ino, from, EXTENT_TO_END, LBA_HOLE, &e);
	if (r == 0)
		r = inode_prepare(fs, cut->ino);
	struct key inline_key = {cut->ino, KEY_OFF(TYPE_INLINE, 0)};
	bool was_inline = false;
	if (r == 0 && from == 0) {
		r = bt_get(fs, inline_key, &v);
		was_inline = r == 0;
		if (r == 0)
			r = bt_prepare(fs, inline_key, 0);
		else if (r == -ENOENT)
			r = 0;
	}
	bool unlist = false;
	if (r == 0 && e.complete && from_le32(d.links) != 0) {
		r = bt_get(fs, orphan_key(cut->ino), &v);
		unlist = r == 0;
		if (r == 0)
			r = bt_prepare(fs, orphan_key(cut->ino), 0);
		else if (r == -ENOENT)
			r = 0;
	}
	if (r)
		return r;
	extent_apply(fs, &e);
	extent_account(&d, &e);
	inode_store(fs, cut->ino, &d);
	if (was_inline)
		bt_del(fs, inline_key);
	if (unlist)
		bt_del(fs, orphan_key(cut->ino));
	cut->done = e.complete;
	return 0;
}

int extent_cut_tail(struct fs *fs, uint64_t ino)
{
	struct cut cut = {.ino = ino};
	int r = 0;
	while (r == 0 && !cut.done)
		r = fs_atom(fs, ATOM_WRITE | ATOM_FREES, cut_atom, &cut);
	return r;
}
