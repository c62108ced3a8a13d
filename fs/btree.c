/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The tree: lookups, and changes that cannot fail.
 *
 * An inner node's slot is the lowest key that may stand below its child; slot 0 counts as the lower
 * bound of the node itself, whatever key is stored in it (when the first child goes, its range
 * falls to the next one, which need not be in memory to be told). The stored key only has to be in
 * order; it is lowered when a new slot 1 would not be above it.
 *
 * bt_prepare counts how many blocks all the puts of an atom could take at worst. It follows one
 * rule: if the last prepared key that passes a node finds room there for everything that the whole
 * atom may add, the node will not split. `chain` is the longest run of levels, from a leaf up,
 * without such room; each put splits at most that many. Within an atom nodes are not merged and not
 * freed, since that would take away room that was counted on, and would hand ranges to neighbours
 * that need not be in memory. bt_del only notes the node; btree_fix does it when the atom ends,
 * with those siblings that happen to be in memory: an optimisation, but for empty nodes, which
 * always go.
 *
 * Splits are by bytes. A node that grows at its end, or where the last insert was, splits there, so
 * that ascending keys (blocks of a file, inode numbers, back-references) leave full nodes behind
 * instead of half full ones.
 */
#include "node.h"
#include "writeback.h"

#define INNER_ITEM_BYTES NODE_ITEM_BYTES(sizeof(le64))
/* A node with less than this in it is merged with a sibling. */
#define UNDERFULL_BYTES (NODE_BODY_BYTES / 4)
/* But not to a full one, which the next put would split again. */
#define MERGED_BYTES_MAX (NODE_BODY_BYTES - NODE_BODY_BYTES / 8)

struct path {
	unsigned height;
	struct {
		struct node *node;
		unsigned pos;  /* inner: of the child taken */
	} at[TREE_HEIGHT_MAX]; /* by level: 0 is the leaf */
};

/* ---- looking ---- */

static int step(struct fs *fs, uint64_t lba, unsigned level, struct node **ret)
{
	struct node *n = node_get(fs, lba);
	if (!n) {
		fs->atom.missing_lba = lba;
		return -EAGAIN;
	}
	if (node_level(&n->disk) != level) {
		log_error("metadata block %#llx: tree node of level %u where %u is expected",
			  (unsigned long long)lba, node_level(&n->disk), level);
		return -EBADMSG;
	}
	*ret = n;
	return 0;
}

static int descend(struct fs *fs, struct key key, struct path *p)
{
	uint64_t lba = fs->root_lba;
	p->height = fs->height;
	for (unsigned level = fs->height; level-- > 0;) {
		struct node *n;
		int e = step(fs, lba, level, &n);
		if (e)
			return e;
		p->at[level].node = n;
		if (level) {
			p->at[level].pos = node_find_child(&n->disk, key);
			lba = node_child(&n->disk, p->at[level].pos);
		}
	}
	return 0;
}

/* From the leaf of p to the next one (dir 1) or the one before (-1). -ENOENT: there is none. */
static int sideways(struct fs *fs, struct path *p, int dir)
{
	unsigned level = 1;
	while (level < p->height) {
		unsigned count = node_count(&p->at[level].node->disk);
		if (dir > 0 ? p->at[level].pos + 1 < count : p->at[level].pos > 0)
			break;
		level++;
	}
	if (level >= p->height)
		return -ENOENT;
	p->at[level].pos += (unsigned)dir;
	for (; level > 0; level--) {
		struct node *n;
		uint64_t lba = node_child(&p->at[level].node->disk, p->at[level].pos);
		int e = step(fs, lba, level - 1, &n);
		if (e)
			return e;
		p->at[level - 1].node = n;
		if (level > 1)
			p->at[level - 1].pos = dir > 0 ? 0 : node_count(&n->disk) - 1;
	}
	return 0;
}

int bt_get(struct fs *fs, struct key key, struct bt_value *ret)
{
	struct path p;
	int e = descend(fs, key, &p);
	if (e)
		return e;
	bool found;
	unsigned pos = node_find(&p.at[0].node->disk, key, &found);
	if (!found)
		return -ENOENT;
	*ret = node_value(&p.at[0].node->disk, pos);
	return 0;
}

int bt_ge(struct fs *fs, struct key key, struct key *ret_key, struct bt_value *ret)
{
	struct path p;
	int e = descend(fs, key, &p);
	if (e)
		return e;
	bool found;
	unsigned pos = node_find(&p.at[0].node->disk, key, &found);
	/* One step suffices but for leaves emptied in this atom; there are no more leaves than
	 * blocks. */
	while (pos >= node_count(&p.at[0].node->disk)) {
		e = sideways(fs, &p, 1);
		if (e)
			return e;
		pos = 0;
	}
	*ret_key = node_key(&p.at[0].node->disk, pos);
	*ret = node_value(&p.at[0].node->disk, pos);
	return 0;
}

int bt_le(struct fs *fs, struct key key, struct key *ret_key, struct bt_value *ret)
{
	struct path p;
	int e = descend(fs, key, &p);
	if (e)
		return e;
	bool found;
	unsigned pos = node_find(&p.at[0].node->disk, key, &found);
	unsigned end = found ? pos + 1 : pos;
	while (end == 0) {
		e = sideways(fs, &p, -1);
		if (e)
			return e;
		end = node_count(&p.at[0].node->disk);
	}
	*ret_key = node_key(&p.at[0].node->disk, end - 1);
	*ret = node_value(&p.at[0].node->disk, end - 1);
	return 0;
}

/* ---- preparing ---- */

static unsigned alloc_flags(const struct fs *fs)
{
	return fs->atom.kind & (ATOM_FREES | ATOM_INTERNAL) ? RAID_ALLOC_RESERVE : 0;
}

int bt_prepare(struct fs *fs, struct key key, unsigned bytes)
{
	assert(fs->atom.kind && !fs->atom.changed && bytes <= ITEM_BYTES_MAX);
	struct path p;
	int e = descend(fs, key, &p);
	if (e)
		return e;
	struct node *leaf = p.at[0].node;
	bool found;
	unsigned pos = node_find(&leaf->disk, key, &found);
	unsigned add = NODE_ITEM_BYTES(bytes);
	unsigned old = found ? NODE_ITEM_BYTES(node_value(&leaf->disk, pos).len) : 0;
	fs->atom.keys++;
	fs->atom.bytes += add > old ? add - old : 0;

	unsigned chain = 0;
	if (fs->atom.bytes > node_room(leaf)) {
		chain = 1;
		while (chain < p.height &&
		       fs->atom.keys * INNER_ITEM_BYTES > node_room(p.at[chain].node))
			chain++;
	}
	fs->atom.chain = MAX(fs->atom.chain, chain);
	uint32_t want = fs->atom.keys * fs->atom.chain;
	if (fs->atom.chain >= fs->height && want) {
		/* The root may split: a level is added, and its own splits if the atom is that
		 * large. */
		if (fs->height + 1 >= TREE_HEIGHT_MAX)
			return -ENOSPC;
		want += 1 + fs->atom.keys / 32;
	}
	fs->atom.meta_wanted = want;
	if (raid_meta_ready(fs->raid, alloc_flags(fs)) < want || nodes_spare_count(fs) < want ||
	    (want && !writeback_meta_may(fs, fs->atom.kind, want))) {
		fs->atom.meta_short = true;
		return -EAGAIN;
	}
	return 0;
}

/* ---- putting ---- */

static void put_at(struct fs *fs, struct path *p, unsigned level, unsigned pos, struct key key,
		   const void *value, unsigned len);

/* The lowest key that the path's node at `level` may hold. */
static struct key lower_bound(const struct path *p, unsigned level)
{
	for (unsigned l = level + 1; l < p->height; l++)
		if (p->at[l].pos > 0)
			return node_key(&p->at[l].node->disk, p->at[l].pos);
	return (struct key){0, 0};
}

static void add_root(struct fs *fs, struct path *p)
{
	assert(p->height < TREE_HEIGHT_MAX);
	struct node *root = node_new(fs, p->height, alloc_flags(fs));
	le64 child = to_le64(fs->root_lba);
	node_insert(root, 0, (struct key){0, 0}, &child, sizeof(child));
	fs->root_lba = root->lba;
	fs->height++;
	p->at[p->height].node = root;
	p->at[p->height].pos = 0;
	p->height++;
}

/* Where to cut so that the new item, which would stand at pos, fits: items from the result on go
 * right. */
static unsigned cut_by_bytes(const struct node *n, unsigned pos, unsigned bytes, bool *ret_new_left)
{
	unsigned count = node_count(&n->disk), left = 0, half = (n->used + bytes) / 2;
	/* Walks the items as they would stand with the new one among them. */
	for (unsigned i = 0; i <= count; i++) {
		bool is_new = i == pos;
		unsigned at = i > pos ? i - 1 : i;
		unsigned item = is_new ? bytes : NODE_ITEM_BYTES(node_value(&n->disk, at).len);
		if (left + item > half) {
			/* It straddles the middle: to the side where it fits, which is one of them.
			 */
			bool to_left = left + item <= NODE_BODY_BYTES &&
				       (left + item - half <= half - left ||
					n->used + bytes - left > NODE_BODY_BYTES);
			*ret_new_left = pos < i || (is_new && to_left);
			return is_new ? pos : at + to_left;
		}
		left += item;
	}
	assert(false);
	return 0;
}

/* The node at `level` has no room: cut it, and put the item into the half where it belongs. */
static void split(struct fs *fs, struct path *p, unsigned level, unsigned pos, struct key key,
		  const void *value, unsigned len)
{
	struct node *n = p->at[level].node;
	unsigned count = node_count(&n->disk), bytes = NODE_ITEM_BYTES(len);
	unsigned cut;
	bool new_left = false;
	bool ascending = pos > 0 && pos == n->last_pos + 1 && pos >= count / 2;
	if (pos == count) {
		cut = count;
	} else {
		cut = cut_by_bytes(n, pos, bytes, &new_left);
		if (ascending) {
			unsigned right = bytes;
			for (unsigned i = pos; i < count; i++)
				right += NODE_ITEM_BYTES(node_value(&n->disk, i).len);
			if (right <= NODE_BODY_BYTES) {
				cut = pos;
				new_left = false;
			}
		}
	}
	if (level + 1 == p->height)
		add_root(fs, p);
	struct node *right = node_new(fs, level, alloc_flags(fs));
	node_move_tail(n, cut, right);
	node_dirty(fs, n);
	if (new_left)
		node_insert(n, pos, key, value, len);
	else
		node_insert(right, pos - cut, key, value, len);
	assert(node_count(&n->disk) && node_count(&right->disk));
	le64 child = to_le64(right->lba);
	put_at(fs, p, level + 1, p->at[level + 1].pos + 1, node_key(&right->disk, 0), &child,
	       sizeof(child));
}

static void put_at(struct fs *fs, struct path *p, unsigned level, unsigned pos, struct key key,
		   const void *value, unsigned len)
{
	struct node *n = p->at[level].node;
	if (level && pos == 1)
		node_set_key(n, 0, lower_bound(p, level));
	if (NODE_ITEM_BYTES(len) > node_room(n)) {
		split(fs, p, level, pos, key, value, len);
		return;
	}
	node_insert(n, pos, key, value, len);
	node_dirty(fs, n);
}

static void descend_prepared(struct fs *fs, struct key key, struct path *p)
{
	int e = descend(fs, key, p);
	assert(e == 0); /* bt_prepare has been here */
	fs->atom.changed = true;
}

void bt_put(struct fs *fs, struct key key, const void *value, unsigned len)
{
	assert(fs->atom.kind && fs->atom.keys && len <= ITEM_BYTES_MAX);
	struct path p;
	descend_prepared(fs, key, &p);
	struct node *leaf = p.at[0].node;
	/* The caller's value may lie in this very node. */
	uint8_t copy[ITEM_BYTES_MAX];
	if (len)
		memcpy(copy, value, len);
	bool found;
	unsigned pos = node_find(&leaf->disk, key, &found);
	if (!found) {
		put_at(fs, &p, 0, pos, key, copy, len);
	} else if (ROUND_UP(node_value(&leaf->disk, pos).len, 8u) == ROUND_UP(len, 8u)) {
		node_replace(leaf, pos, copy, len);
		node_dirty(fs, leaf);
	} else {
		node_remove(leaf, pos);
		put_at(fs, &p, 0, pos, key, copy, len);
	}
}

/* ---- deleting ---- */

void bt_del(struct fs *fs, struct key key)
{
	assert(fs->atom.kind && fs->atom.keys);
	struct path p;
	descend_prepared(fs, key, &p);
	struct node *leaf = p.at[0].node;
	bool found;
	unsigned pos = node_find(&leaf->disk, key, &found);
	assert(found);
	node_remove(leaf, pos);
	node_dirty(fs, leaf);
	if (leaf->used < UNDERFULL_BYTES)
		node_fix_later(fs, leaf, key);
}

/* Takes the child at `pos` out of its parent; the left neighbour, or the right one, gets its range.
 */
static void drop_child(struct fs *fs, struct node *parent, unsigned pos)
{
	node_remove(parent, pos);
	node_dirty(fs, parent);
}

static bool merge(struct fs *fs, struct node *parent, unsigned left_pos)
{
	struct node *l = node_get(fs, node_child(&parent->disk, left_pos));
	struct node *r = node_get(fs, node_child(&parent->disk, left_pos + 1));
	if (!l || !r || l->used + r->used > MERGED_BYTES_MAX)
		return false;
	if (node_level(&r->disk))
		node_set_key(r, 0, node_key(&parent->disk, left_pos + 1));
	node_move_tail(r, 0, l);
	node_dirty(fs, l);
	node_free(fs, r);
	drop_child(fs, parent, left_pos + 1);
	return true;
}

/* A root with one child is none. */
static void shrink_root(struct fs *fs)
{
	struct node *root;
	while (fs->height > 1 && (root = node_get(fs, fs->root_lba)) &&
	       node_count(&root->disk) < 2) {
		if (node_count(&root->disk) == 0) {
			/* Only when what was read had an only child: the tree is empty. */
			node_init_disk(&root->disk, 0);
			root->used = 0;
			fs->height = 1;
			return;
		}
		fs->root_lba = node_child(&root->disk, 0);
		fs->height--;
		node_free(fs, root);
	}
}

void btree_fix(struct fs *fs)
{
	struct node *n;
	while ((n = node_fix_next(fs))) {
		struct path p;
		int e = descend(fs, n->fix_key, &p);
		assert(
		    e ==
		    0); /* the atom had it all in memory, and nothing is evicted before its end */
		for (unsigned level = 0; level + 1 < p.height; level++) {
			struct node *at = p.at[level].node, *parent = p.at[level + 1].node;
			unsigned pos = p.at[level + 1].pos;
			if (node_count(&at->disk) == 0) {
				node_free(fs, at);
				drop_child(fs, parent, pos);
			} else if (at->used >= UNDERFULL_BYTES) {
				break;
			} else if (!(pos + 1 < node_count(&parent->disk) &&
				     merge(fs, parent, pos)) &&
				   !(pos > 0 && merge(fs, parent, pos - 1))) {
				break;
			}
		}
		shrink_root(fs);
	}
}

struct fs_counters *fs_counters(struct fs *fs)
{
	return &fs->counters;
}
