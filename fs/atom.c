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

#define ATOM_ROUNDS_MAX 2000
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

static int ensure_blocks(struct fs *fs, unsigned kind)
{
	uint32_t want = fs->atom.meta_wanted;
	unsigned flags = kind & (ATOM_FREES | ATOM_INTERNAL) ? RAID_ALLOC_RESERVE : 0;
	int e = nodes_spare(fs, want + META_MARGIN);
	if (e)
		return e;
	e = raid_meta_ensure(fs->raid, want + META_MARGIN, flags);
	if (e == -ENOSPC)
		e = raid_meta_ensure(fs->raid, want, flags);
	if (e == -ENOSPC) {
		/* What was freed lately may be used after a commit. */
		e = raid_commit(fs->raid);
		if (e == 0)
			e = raid_meta_ensure(fs->raid, want, flags);
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
	struct pins pins = {.all = pins.few, .cap = PINS_INLINE};
	e = rounds(fs, kind, fn, arg, &pins);
	for (unsigned i = 0; i < pins.count; i++)
		node_unpin(fs, pins.all[i]);
	if (pins.all != pins.few)
		mem_free(pins.all);
	nodes_shrink(fs);
	return e;
}
