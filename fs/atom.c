/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Running atoms (btree.h): throttle, run, load what was missing, run again.
 *
 * An atom sees and makes a state of the tree at one instant, because it runs from its start to its
 * end without a wait. What it learned in a round that ended in -EAGAIN is forgotten, so others may
 * change anything while it waits. To get on nevertheless, it holds the nodes it loaded (pins) until
 * it is done: each round needs one node less, and only changes by others can make it need more. The
 * rounds are bounded all the same.
 */
#include "node.h"
#include "writeback.h"

#define ATOM_ROUNDS_MAX 2000
#define SPACE_TRIES_MAX 8
#define SPACE_WAIT_NS	(10 * NS_PER_MS)
#define PINS_INLINE	16
/* Asked for beyond what was prepared so far, since more keys will follow. */
#define META_MARGIN 8u

struct pins {
	struct node *few[PINS_INLINE];
	struct node **all;
	unsigned count, cap;
};

static int pins_room(struct pins *pins)
{
	if (pins->count < pins->cap)
		return 0;
	unsigned cap = pins->cap * 2;
	struct node **all = mem_alloc(cap * sizeof(struct node *));
	if (!all)
		return -ENOMEM;
	memcpy(all, pins->all, pins->count * sizeof(struct node *));
	if (pins->all != pins->few)
		mem_free(pins->all);
	pins->all = all;
	pins->cap = cap;
	return 0;
}

static int load(struct fs *fs, struct pins *pins)
{
	struct node *n;
	int e = pins_room(pins);
	if (e == 0)
		e = node_load(fs, fs->atom.missing_lba, &n);
	if (e == 0)
		pins->all[pins->count++] = n;
	return e == -EAGAIN ? 0 : e;
}

static int ensure_some(struct fs *fs, unsigned kind, uint32_t want, unsigned flags)
{
	if (!writeback_meta_may(fs, kind, want))
		return -ENOSPC;
	/* A chunk for metadata must not take the place of data that has been accepted. */
	if (!(kind & (ATOM_FREES | ATOM_INTERNAL)) && raid_meta_ready(fs->raid, flags) < want &&
	    !writeback_meta_may_grow(fs))
		return -ENOSPC;
	return raid_meta_ensure(fs->raid, want, flags);
}

static int ensure_blocks(struct fs *fs, unsigned kind)
{
	uint32_t want = fs->atom.meta_wanted;
	unsigned flags = kind & (ATOM_FREES | ATOM_INTERNAL) && !BREAK(fs_reserve) ? RAID_ALLOC_RESERVE : 0;
	int e = nodes_spare(fs, want + META_MARGIN);
	if (e)
		return e;
	e = ensure_some(fs, kind, want + META_MARGIN, flags);
	if (e == -ENOSPC)
		e = ensure_some(fs, kind, want, flags);
	/* What was freed lately may be used after a commit, and when readers of it have ended. The others are told to
	 * make space first. */
	for (int t = 0; e == -ENOSPC && kind & (ATOM_FREES | ATOM_INTERNAL) && t < SPACE_TRIES_MAX; t++) {
		if (t)
			co_sleep_ns(SPACE_WAIT_NS);
		e = raid_commit(fs->raid);
		if (e)
			return e;
		e = ensure_some(fs, kind, want, flags);
	}
	return e;
}

static int begin(struct fs *fs, unsigned kind)
{
	if (!kind)
		return 0;
	if (fs->read_only)
		return -EROFS;
	return raid_error(fs->raid) ? -EIO : 0;
}

static int rounds(struct fs *fs, unsigned kind, fs_atom_fn *fn, void *arg, struct pins *pins)
{
	for (unsigned round = 0; round < ATOM_ROUNDS_MAX; round++) {
		/*
		 * Right before each run, with no wait in between: so the open transaction never exceeds its bound by more
		 * than one atom, however many run side by side.
		 */
		if (kind && raid_throttle(fs->raid) != 0)
			return -EIO;
		memset(&fs->atom, 0, sizeof(fs->atom));
		fs->atom.kind = kind;
		fs->atom.missing_lba = LBA_NONE;
		int e = fn(fs, arg);
		assert(!fs->atom.changed || e == 0); /* after the first change nothing may fail */
		if (e != -EAGAIN) {
			if (fs->atom.changed)
				btree_fix(fs);
			fs->atom.kind = 0;
			return e;
		}
		assert(fs->atom.missing_lba != LBA_NONE || fs->atom.meta_short);
		if (fs->atom.missing_lba != LBA_NONE)
			e = load(fs, pins);
		else
			e = ensure_blocks(fs, kind);
		if (kind && raid_error(fs->raid) != 0)
			e = -EIO;
		if (e)
			return e;
	}
	log_error("an operation did not get its %u tree nodes together in %d rounds", pins->count,
		  ATOM_ROUNDS_MAX);
	return -EIO;
}

int fs_atom(struct fs *fs, unsigned kind, fs_atom_fn *fn, void *arg)
{
	if (kind)
		kind |= ATOM_WRITE;
	int e = begin(fs, kind);
	if (e)
		return e;
	bool in_turn = false;
	for (int t = 0; t < SPACE_TRIES_MAX; t++) {
		struct pins pins = {.all = pins.few, .cap = PINS_INLINE};
		e = rounds(fs, kind, fn, arg, &pins);
		for (unsigned i = 0; i < pins.count; i++)
			node_unpin(fs, pins.all[i]);
		if (pins.all != pins.few)
			mem_free(pins.all);
		nodes_shrink(fs);
		if (e != -ENOSPC || !kind || kind & (ATOM_FREES | ATOM_INTERNAL | ATOM_LOCKED | ATOM_SPARE))
			break;
		if (!in_turn)
			in_turn = writeback_space_enter(fs, true);
		if (!writeback_make_space(fs))
			break;
	}
	if (in_turn)
		writeback_space_leave(fs);
	return e;
}
