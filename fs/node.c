/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Nodes: bytes and memory.
 *
 *   0        64          64 + 24 * count        low                  4096
 *   | head   | slot 0 | slot 1 | ... |  free    | values, any order  |
 *
 * Slots are sorted by key. Values grow down and are aligned to 8; removing leaves holes, which are
 * squeezed out when the room in the middle no longer suffices. An empty value points to the end of
 * the block. A value never moves but in bt_put and bt_del.
 *
 * In memory a node is loading, clean, dirty or dead. Clean ones are evicted, least recently used
 * first, when the cache is over its size; dirty ones stay until the commit that stages them, which
 * copies the bytes, so that a node may change again at once. Each dirty node is staged once a
 * commit, however often it changed.
 *
 * A node is changed or freed only while it is in memory, and is not in memory while it is being
 * loaded: so nothing can happen to a block between the lookup that missed it and the end of its
 * load, and no reader's guard (raid_read_begin) is needed.
 *
 * Pins exist so that an atom that needs more nodes than the cache may hold gets on: every node it
 * had to load stays until the atom ends, so each round brings it closer, however many others load
 * at the same time. Evicting by age alone was tried on paper and lets two atoms throw out each
 * other's nodes for ever.
 *
 * A new block is staged live at once and a freed one dead at once: the volume takes both in one
 * transaction in their order, so a node that comes and goes between two commits needs no case of
 * its own.
 */
#include "node.h"
#include "raid/xxh3.h"

#define HASH_BUCKETS_MIN 256u
#define LOAD_TRIES_MAX	 16 /* times that memory is lost to a hung device */

struct node_cache {
	struct node **buckets;
	unsigned bucket_count; /* a power of two */
	unsigned count;	       /* nodes in the table, loading ones included */
	unsigned dirty_count;
	struct list lru, dirty, fix;
	struct node *spare; /* linked by hash_next */
	unsigned spare_count;
	struct co_cond loaded;
};

/* ---- bytes ---- */

uint64_t meta_sum(const void *block)
{
	struct node_disk copy;
	memcpy(&copy, block, sizeof(copy));
	copy.head.sum = to_le64(0);
	return XXH3_64bits(&copy, sizeof(copy));
}

void meta_seal(void *block, uint64_t magic, const struct uuid *fs, uint64_t lba, uint64_t gen)
{
	struct meta_head *h = block;
	h->magic = to_le64(magic);
	h->fs = *fs;
	h->lba = to_le64(lba);
	h->gen = to_le64(gen);
	h->sum = to_le64(0);
	h->sum = to_le64(XXH3_64bits(block, BLOCK_BYTES));
}

const char *meta_wrong(const void *block, uint64_t magic, const struct uuid *fs, uint64_t lba)
{
	const struct meta_head *h = block;
	if (from_le64(h->magic) != magic)
		return "wrong magic number";
	if (from_le64(h->sum) != meta_sum(block) && !BREAK(fs_node_sum))
		return "wrong checksum";
	if (!uuid_equal(&h->fs, fs))
		return "belongs to another filesystem";
	if (from_le64(h->lba) != lba && !BREAK(fs_node_addr))
		return "was written for another address";
	return NULL;
}

unsigned node_used(const struct node_disk *d)
{
	unsigned used = 0;
	for (unsigned i = 0; i < node_count(d); i++)
		used += NODE_ITEM_BYTES(from_le16(node_slot(d, i)->len));
	return used;
}

static const char *slots_wrong(const struct node_disk *d)
{
	unsigned count = node_count(d), low = from_le16(d->low);
	unsigned slots_end = NODE_HEAD_BYTES + count * (unsigned)sizeof(struct slot_disk);
	if (count > NODE_BODY_BYTES / sizeof(struct slot_disk) || low > BLOCK_BYTES || low % 8 ||
	    low < slots_end)
		return "slots and values overlap";
	uint64_t taken[BLOCK_BYTES / 8 / 64] = {0};
	for (unsigned i = 0; i < count; i++) {
		const struct slot_disk *s = node_slot(d, i);
		unsigned off = from_le16(s->off), len = from_le16(s->len);
		if (off % 8 || off < low || off > BLOCK_BYTES || len > BLOCK_BYTES - off)
			return "a value lies outside";
		if (from_le32(s->reserved) != 0)
			return "a reserved field is not 0";
		if (node_level(d) ? len != sizeof(le64) : len > ITEM_BYTES_MAX)
			return "a value has a wrong length";
		if (i > 0 && key_cmp(node_key(d, i - 1), node_key(d, i)) >= 0)
			return "keys are not in order";
		for (unsigned u = off / 8; u < (off + ROUND_UP(len, 8)) / 8; u++) {
			if (taken[u / 64] >> u % 64 & 1)
				return "values overlap";
			taken[u / 64] |= 1ull << u % 64;
		}
	}
	return NULL;
}

const char *node_wrong(const struct node_disk *d, const struct uuid *fs, uint64_t lba)
{
	const char *why = meta_wrong(d, NODE_MAGIC, fs, lba);
	if (why)
		return why;
	if (node_level(d) >= TREE_HEIGHT_MAX)
		return "level out of range";
	if (node_level(d) && !node_count(d))
		return "inner node without children";
	if (from_le16(d->reserved0) || from_le32(d->reserved1[0]) || from_le32(d->reserved1[1]))
		return "a reserved field is not 0";
	return slots_wrong(d);
}

unsigned node_find(const struct node_disk *d, struct key key, bool *ret_found)
{
	unsigned lo = 0, hi = node_count(d);
	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;
		int c = key_cmp(node_key(d, mid), key);
		if (c == 0) {
			*ret_found = true;
			return mid;
		}
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	*ret_found = false;
	return lo;
}

unsigned node_find_child(const struct node_disk *d, struct key key)
{
	bool found;
	unsigned pos = node_find(d, key, &found);
	/* Slot 0 has no key below it that could be looked for, but a damaged parent may say
	 * otherwise. */
	return found || pos == 0 ? pos : pos - 1;
}

static struct slot_disk *slots(struct node *n)
{
	return (struct slot_disk *)n->disk.body;
}

/* Squeezes the holes out. */
static void compact(struct node *n)
{
	struct node_disk *d = &n->disk;
	uint8_t old[BLOCK_BYTES];
	memcpy(old, d, BLOCK_BYTES);
	unsigned low = BLOCK_BYTES;
	for (unsigned i = 0; i < node_count(d); i++) {
		struct slot_disk *s = &slots(n)[i];
		unsigned len = from_le16(s->len);
		low -= ROUND_UP(len, 8u);
		memcpy((uint8_t *)d + low, old + from_le16(s->off), ROUND_UP(len, 8u));
		s->off = to_le16((uint16_t)(len ? low : BLOCK_BYTES));
	}
	d->low = to_le16((uint16_t)low);
	unsigned slots_end = NODE_HEAD_BYTES + node_count(d) * (unsigned)sizeof(struct slot_disk);
	memset((uint8_t *)d + slots_end, 0, low - slots_end);
}

void node_insert(struct node *n, unsigned pos, struct key key, const void *value, unsigned len)
{
	struct node_disk *d = &n->disk;
	unsigned count = node_count(d), bytes = ROUND_UP(len, 8u);
	assert(pos <= count && NODE_ITEM_BYTES(len) <= node_room(n));
	unsigned slots_end = NODE_HEAD_BYTES + (count + 1) * (unsigned)sizeof(struct slot_disk);
	if (from_le16(d->low) < slots_end + bytes)
		compact(n);
	unsigned off = from_le16(d->low) - bytes;
	struct slot_disk *s = slots(n) + pos;
	memmove(s + 1, s, (count - pos) * sizeof(*s));
	*s = (struct slot_disk){
	    .key = {to_le64(key.ino), to_le64(key.off)},
	    .off = to_le16((uint16_t)(len ? off : BLOCK_BYTES)),
	    .len = to_le16((uint16_t)len),
	};
	if (len)
		memcpy((uint8_t *)d + off, value, len);
	memset((uint8_t *)d + off + len, 0, bytes - len);
	d->low = to_le16((uint16_t)off);
	d->count = to_le16((uint16_t)(count + 1));
	n->used += NODE_ITEM_BYTES(len);
	n->last_pos = pos;
}

void node_remove(struct node *n, unsigned pos)
{
	struct node_disk *d = &n->disk;
	unsigned count = node_count(d);
	assert(pos < count);
	struct slot_disk *s = slots(n) + pos;
	n->used -= NODE_ITEM_BYTES(from_le16(s->len));
	/* The lowest value gives its room back without a squeeze. */
	if (from_le16(s->off) == from_le16(d->low) && from_le16(s->len))
		d->low = to_le16((uint16_t)(from_le16(s->off) + ROUND_UP(from_le16(s->len), 8u)));
	memmove(s, s + 1, (count - pos - 1) * sizeof(*s));
	d->count = to_le16((uint16_t)(count - 1));
	if (count == 1)
		d->low = to_le16(BLOCK_BYTES);
}

void node_replace(struct node *n, unsigned pos, const void *value, unsigned len)
{
	struct slot_disk *s = slots(n) + pos;
	unsigned room = ROUND_UP(from_le16(s->len), 8u);
	assert(pos < node_count(&n->disk) && ROUND_UP(len, 8u) == room);
	uint8_t *place = (uint8_t *)&n->disk + from_le16(s->off);
	if (len)
		memcpy(place, value, len);
	memset(place + len, 0, room - len);
	s->len = to_le16((uint16_t)len);
}

void node_move_tail(struct node *from, unsigned pos, struct node *to)
{
	while (node_count(&from->disk) > pos) {
		struct bt_value v = node_value(&from->disk, pos);
		node_insert(to, node_count(&to->disk), node_key(&from->disk, pos), v.data, v.len);
		node_remove(from, pos);
	}
}

void node_set_key(struct node *n, unsigned pos, struct key key)
{
	assert(pos < node_count(&n->disk));
	slots(n)[pos].key = (struct key_disk){to_le64(key.ino), to_le64(key.off)};
}

void node_init_disk(struct node_disk *d, unsigned level)
{
	memset(d, 0, sizeof(*d));
	d->level = to_le16((uint16_t)level);
	d->low = to_le16(BLOCK_BYTES);
}

/* ---- memory ---- */

static struct node **bucket(struct node_cache *c, uint64_t lba)
{
	return &c->buckets[(lba * 0x9e3779b97f4a7c15ull >> 32) & (c->bucket_count - 1)];
}

static struct node *lookup(struct node_cache *c, uint64_t lba)
{
	for (struct node *n = *bucket(c, lba); n; n = n->hash_next)
		if (n->lba == lba)
			return n;
	return NULL;
}

/* Without memory for more buckets the chains grow longer, that is all. */
static void grow(struct node_cache *c)
{
	struct node **old = c->buckets;
	unsigned old_count = c->bucket_count;
	struct node **buckets = mem_zalloc(2ull * old_count * sizeof(*buckets));
	if (!buckets)
		return;
	c->buckets = buckets;
	c->bucket_count = 2 * old_count;
	for (unsigned i = 0; i < old_count; i++) {
		struct node *next;
		for (struct node *n = old[i]; n; n = next) {
			next = n->hash_next;
			struct node **b = bucket(c, n->lba);
			n->hash_next = *b;
			*b = n;
		}
	}
	mem_free(old);
}

static void table_add(struct node_cache *c, struct node *n)
{
	if (c->count >= c->bucket_count)
		grow(c);
	struct node **b = bucket(c, n->lba);
	n->hash_next = *b;
	*b = n;
	c->count++;
}

static void table_del(struct node_cache *c, struct node *n)
{
	struct node **b = bucket(c, n->lba);
	while (*b != n)
		b = &(*b)->hash_next;
	*b = n->hash_next;
	n->hash_next = NULL;
	c->count--;
}

int nodes_init(struct fs *fs)
{
	struct node_cache *c = mem_zalloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->bucket_count = HASH_BUCKETS_MIN;
	c->buckets = mem_zalloc(c->bucket_count * sizeof(struct node *));
	if (!c->buckets) {
		mem_free(c);
		return -ENOMEM;
	}
	list_init(&c->lru);
	list_init(&c->dirty);
	list_init(&c->fix);
	co_cond_init(&c->loaded);
	fs->nodes = c;
	return 0;
}

void nodes_exit(struct fs *fs)
{
	struct node_cache *c = fs->nodes;
	if (!c)
		return;
	struct node *next;
	for (unsigned i = 0; i < c->bucket_count; i++) {
		for (struct node *n = c->buckets[i]; n; n = next) {
			next = n->hash_next;
			assert(n->state != NODE_LOADING);
			mem_free(n);
		}
	}
	for (struct node *n = c->spare; n; n = next) {
		next = n->hash_next;
		mem_free(n);
	}
	mem_free(c->buckets);
	mem_free(c);
	fs->nodes = NULL;
}

static void clean_to_lru(struct node_cache *c, struct node *n)
{
	if (n->state == NODE_CLEAN && !n->pins)
		list_add_tail(&c->lru, &n->link);
}

struct node *node_get(struct fs *fs, uint64_t lba)
{
	struct node_cache *c = fs->nodes;
	struct node *n = lookup(c, lba);
	if (!n || n->state == NODE_LOADING)
		return NULL;
	if (n->state == NODE_CLEAN && !n->pins) {
		list_del(&n->link);
		list_add_tail(&c->lru, &n->link);
	}
	return n;
}

void nodes_shrink(struct fs *fs)
{
	struct node_cache *c = fs->nodes;
	uint64_t max = fs->options.node_cache_bytes / sizeof(struct node);
	while (c->count > max && !list_empty(&c->lru)) {
		struct node *n = list_first(&c->lru, struct node, link);
		list_del(&n->link);
		table_del(c, n);
		mem_free(n);
	}
}

static struct node *node_alloc(uint64_t lba)
{
	struct node *n = mem_alloc(sizeof(*n));
	if (!n)
		return NULL;
	memset(n, 0, offsetof(struct node, disk));
	n->lba = lba;
	list_init(&n->link);
	list_init(&n->fix);
	return n;
}

/* Reads and checks; the bytes of n are set on success only. */
static int load_bytes(struct fs *fs, struct node *n)
{
	int e = -EIO;
	for (int i = 0; i < LOAD_TRIES_MAX; i++) {
		/* "Below": those who wait for the node hold what the others wait for. */
		void *data = buf_get_wait_below(BLOCK_BYTES);
		e = raid_read(fs->raid, n->lba, 1, data);
		if (e == 0) {
			const char *why = node_wrong(data, &fs->uuid, n->lba);
			if (why) {
				log_error("metadata block %#llx: %s", (unsigned long long)n->lba,
					  why);
				e = -EBADMSG;
			} else {
				memcpy(&n->disk, data, BLOCK_BYTES);
			}
		}
		buf_put(data);
		if (e != -EAGAIN)
			return e;
	}
	return -EIO;
}

int node_load(struct fs *fs, uint64_t lba, struct node **ret)
{
	struct node_cache *c = fs->nodes;
	struct node *n = lookup(c, lba);
	if (n && n->state == NODE_LOADING) {
		/* Each load ends, so this does. */
		do {
			co_cond_wait(&c->loaded);
		} while ((n = lookup(c, lba)) && n->state == NODE_LOADING);
		/* Gone again: by now it may not even be a node any more. */
		if (!n)
			return -EAGAIN;
	}
	if (!n) {
		n = node_alloc(lba);
		if (!n)
			return -ENOMEM;
		n->state = NODE_LOADING;
		table_add(c, n);
		int e = load_bytes(fs, n);
		co_cond_wake_all(&c->loaded);
		if (e) {
			table_del(c, n);
			mem_free(n);
			return e;
		}
		n->used = node_used(&n->disk);
		n->last_pos = UINT32_MAX - 1;
		n->state = NODE_CLEAN;
		clean_to_lru(c, n);
	}
	if (n->state == NODE_CLEAN && !n->pins)
		list_del(&n->link);
	n->pins++;
	nodes_shrink(fs);
	*ret = n;
	return 0;
}

void node_unpin(struct fs *fs, struct node *n)
{
	assert(n->pins);
	if (--n->pins)
		return;
	if (n->state == NODE_DEAD)
		mem_free(n);
	else
		clean_to_lru(fs->nodes, n);
}

int nodes_spare(struct fs *fs, unsigned count)
{
	struct node_cache *c = fs->nodes;
	while (c->spare_count < count) {
		struct node *n = node_alloc(LBA_NONE);
		if (!n)
			return -ENOMEM;
		n->hash_next = c->spare;
		c->spare = n;
		c->spare_count++;
	}
	return 0;
}

unsigned nodes_spare_count(const struct fs *fs)
{
	return fs->nodes->spare_count;
}

struct node *node_new(struct fs *fs, unsigned level, unsigned flags)
{
	struct node_cache *c = fs->nodes;
	struct node *n = c->spare;
	assert(n);
	c->spare = n->hash_next;
	c->spare_count--;
	n->lba = raid_alloc_meta(fs->raid, flags);
	assert(n->lba != LBA_NONE);
	assert(!lookup(c, n->lba));
	raid_stage_live(fs->raid, n->lba, 1);
	fs->counters.meta_blocks++;
	node_init_disk(&n->disk, level);
	n->last_pos = UINT32_MAX - 1;
	table_add(c, n);
	n->state = NODE_CLEAN;
	node_dirty(fs, n);
	return n;
}

void node_free(struct fs *fs, struct node *n)
{
	struct node_cache *c = fs->nodes;
	assert(n->state == NODE_CLEAN || n->state == NODE_DIRTY);
	raid_stage_dead(fs->raid, n->lba, 1);
	fs->counters.meta_blocks--;
	if (n->state == NODE_DIRTY)
		c->dirty_count--;
	list_del(&n->link);
	list_del(&n->fix);
	table_del(c, n);
	n->state = NODE_DEAD;
	if (!n->pins)
		mem_free(n);
}

void node_dirty(struct fs *fs, struct node *n)
{
	struct node_cache *c = fs->nodes;
	if (n->state == NODE_DIRTY)
		return;
	assert(n->state == NODE_CLEAN);
	n->state = NODE_DIRTY;
	list_del(&n->link);
	list_add_tail(&c->dirty, &n->link);
	c->dirty_count++;
}

void node_fix_later(struct fs *fs, struct node *n, struct key key)
{
	n->fix_key = key;
	if (list_empty(&n->fix))
		list_add_tail(&fs->nodes->fix, &n->fix);
}

struct node *node_fix_next(struct fs *fs)
{
	if (list_empty(&fs->nodes->fix))
		return NULL;
	struct node *n = list_first(&fs->nodes->fix, struct node, fix);
	list_del(&n->fix);
	return n;
}

/* ---- commit ---- */

/* The superblock as it should stand now; head and sum are left to meta_seal. */
static void super_fill(const struct fs *fs, struct super_disk *s)
{
	*s = fs->super;
	s->height = to_le32(fs->height);
	s->root = to_le64(fs->root_lba);
	s->ino_next = to_le64(fs->counters.ino_next);
	s->inodes = to_le64(fs->counters.inodes);
	s->data_blocks = to_le64(fs->counters.data_blocks);
	s->meta_blocks = to_le64(fs->counters.meta_blocks);
	s->prealloc_blocks = to_le64(fs->counters.prealloc_blocks);
}

/*
 * A volume that cannot keep an image refuses the transaction by itself (raid_error); what is left
 * dirty here then never becomes durable in part.
 */
static int stage(struct fs *fs, uint64_t lba, void *block, uint64_t magic)
{
	meta_seal(block, magic, &fs->uuid, lba, fs->gen);
	int e = raid_stage_image(fs->raid, lba, block);
	if (e)
		log_error("metadata block %#llx: cannot be staged: %s", (unsigned long long)lba,
			  strerror(-e));
	return e;
}

void nodes_pre_commit(void *ctx)
{
	struct fs *fs = ctx;
	struct node_cache *c = fs->nodes;
	struct super_disk super;
	super_fill(fs, &super);
	if (list_empty(&c->dirty) && !fs->super_dirty &&
	    memcmp(&super, &fs->super, sizeof(super)) == 0)
		return;
	fs->gen++;
	while (!list_empty(&c->dirty)) {
		struct node *n = list_first(&c->dirty, struct node, link);
		if (stage(fs, n->lba, &n->disk, NODE_MAGIC) != 0)
			return;
		list_del(&n->link);
		c->dirty_count--;
		n->state = NODE_CLEAN;
		clean_to_lru(c, n);
	}
	/* With every change, so that the generation only grows over mounts. */
	if (stage(fs, LBA_ROOT, &super, SUPER_MAGIC) != 0)
		return;
	fs->super = super;
	fs->super_dirty = false;
	nodes_shrink(fs);
}

uint64_t nodes_dirty_blocks(void *ctx)
{
	struct fs *fs = ctx;
	return fs->nodes->dirty_count ? fs->nodes->dirty_count + 1ull : fs->super_dirty;
}

uint64_t fs_name_hash(const struct fs *fs, const char *name, size_t len)
{
	uint64_t h = XXH3_64bits_withSeed(name, len, fs->hash_seed) >> 8;
	return h > 2 ? h : h + 3;
}
