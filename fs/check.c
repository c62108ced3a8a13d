/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fsck as a library: reads everything, writes nothing, and shares as little as it can with what it
 * judges: it has its own walk over the tree, and its own idea of what follows from what.
 *
 *   1. superblock: without it nothing else can be believed.
 *   2. which blocks are live, as the volume says. A node is only read if it is one of them.
 *   3. the tree, depth first, in key order. Structure first, then each item by itself, then what
 * can be told from the items of one inode, which follow each other. What concerns two inodes is
 * noted.
 *   4. the notes: names against inodes, directories against loops, extents against live blocks and
 * back-references, counters against sums.
 *
 * Back-references come last in key order, so all extents are known (and sorted by address) when the
 * first one is met, and need no notes themselves. Memory is by what is found: 56 bytes an inode, 24
 * a name, 32 an extent.
 *
 * Damage to the tree hides items. Then (incomplete) nothing is concluded from something's absence;
 * one line says so.
 */
#include "node.h"
#include "fault.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#define READ_TRIES_MAX	    16	 /* times that memory is lost to a hung device */
#define YIELD_EVERY	    4096 /* steps of work in memory */
#define AHEAD_BLOCKS	    32u	 /* leaves read at once */
#define SYMLINK_PIECE_BYTES 1800u
#define NAME_NUMBER_MAX	    124 /* with the 3 of "." and ".." in 7 bits */
#define FILE_BLOCKS_MAX	    (FS_FILE_BYTES_MAX >> BLOCK_SHIFT)

struct array {
	void *p;
	size_t count, cap;
};

struct inode_rec {
	uint64_t ino;
	uint64_t parent;     /* as the inode says */
	uint64_t dir_parent; /* directories: where its name was found; 0: nowhere */
	uint64_t entries;    /* directories: found */
	uint64_t entries_said;
	uint32_t links, names, subdirs;
	uint16_t mode;
	uint8_t visit; /* of the search for loops */
};
enum { VISIT_NONE, VISIT_NOW, VISIT_DONE };

struct name_rec {
	uint64_t child, dir;
	uint8_t dtype;
};

struct extent_rec {
	uint64_t lba, ino, off;
	uint32_t count;
};

struct piece_rec {
	uint64_t off;
	uint32_t piece, piece_len, value_len;
};

/* Items of one inode number. */
struct group {
	uint64_t ino;
	bool known; /* its inode item was there and good */
	struct inode_disk inode;
	size_t rec; /* in inodes, if known */
	uint64_t blocks, extent_end, symlink_bytes, symlink_pieces;
	bool inlined;
	struct array pieces; /* of xattrs */
};

struct check {
	struct raid *raid;
	struct fs fs; /* stands in where others want one: identity and hash seed */
	struct super_disk super;
	void (*report)(void *arg, const char *id, const char *text);
	void *report_arg;
	int64_t problems;
	bool incomplete;
	struct array meta, data; /* struct raid_run: live */
	uint64_t *meta_before;	 /* blocks in the runs before each of meta */
	uint8_t *seen;		 /* bit for each block in meta: met in the tree */
	struct array inodes, names, extents, orphans;
	size_t backref_at; /* extents before this one have been compared */
	bool extents_sorted;
	uint64_t data_blocks, prealloc_blocks, meta_blocks, steps, ino_max;
	struct { /* leaves read ahead; bytes NULL: none */
		uint8_t *bytes;
		uint64_t lba[AHEAD_BLOCKS];
		unsigned count;
	} ahead;
	struct group g;
	struct fs_check_stats stats;
};

/* ---- small help ---- */

static void problem(struct check *c, enum fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void problem(struct check *c, enum fault fault, const char *format, ...)
{
	char text[640];
	int len = snprintf(text, sizeof(text), "%s: ", fault_row(fault)->text);
	va_list args;
	va_start(args, format);
	vsnprintf(text + len, sizeof(text) - (size_t)len, format, args);
	va_end(args);
	c->problems++;
	c->report(c->report_arg, fault_row(fault)->id, text);
}
#define ULL(x) ((unsigned long long)(x))

static void *array_add(struct array *a, size_t bytes)
{
	if (a->count == a->cap) {
		size_t cap = a->cap ? 2 * a->cap : 256;
		void *p = mem_realloc(a->p, cap * bytes);
		if (!p)
			return NULL;
		a->p = p;
		a->cap = cap;
	}
	return memset((char *)a->p + a->count++ * bytes, 0, bytes);
}

static void breathe(struct check *c)
{
	if (++c->steps % YIELD_EVERY == 0)
		co_yield ();
}

static int read_block(struct check *c, uint64_t lba, void *ret)
{
	for (unsigned i = 0; i < c->ahead.count; i++) {
		if (c->ahead.lba[i] == lba) {
			memcpy(ret, c->ahead.bytes + i * BLOCK_BYTES, BLOCK_BYTES);
			return 0;
		}
	}
	for (int i = 0; i < READ_TRIES_MAX; i++) {
		void *data = buf_get_wait(BLOCK_BYTES);
		int e = raid_read(c->raid, lba, 1, data);
		if (e == 0)
			memcpy(ret, data, BLOCK_BYTES);
		buf_put(data);
		if (e != -EAGAIN)
			return e;
	}
	return -EIO;
}

static struct inode_rec *inode_find_rec(struct check *c, uint64_t ino)
{
	struct inode_rec *recs = c->inodes.p;
	size_t lo = 0, hi = c->inodes.count;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (recs[mid].ino == ino)
			return &recs[mid];
		if (recs[mid].ino < ino)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

static bool is_orphan(struct check *c, uint64_t ino)
{
	const uint64_t *orphans = c->orphans.p;
	size_t lo = 0, hi = c->orphans.count;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (orphans[mid] < ino)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < c->orphans.count && orphans[lo] == ino;
}

static bool all_zero(const void *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (((const uint8_t *)p)[i])
			return false;
	return true;
}

/* ---- live blocks ---- */

static int add_run(void *arg, uint64_t lba, uint32_t count)
{
	struct raid_run *run = array_add(arg, sizeof(*run));
	if (!run)
		return -ENOMEM;
	*run = (struct raid_run){lba, count};
	return 0;
}

static int load_live(struct check *c)
{
	int e = raid_for_each_live(c->raid, CHUNK_META, add_run, &c->meta);
	if (e == 0)
		e = raid_for_each_live(c->raid, CHUNK_DATA, add_run, &c->data);
	if (e)
		return e;
	const struct raid_run *runs = c->meta.p;
	uint64_t total = 0;
	c->meta_before = mem_alloc((c->meta.count + 1) * sizeof(uint64_t));
	if (!c->meta_before)
		return -ENOMEM;
	for (size_t i = 0; i < c->meta.count; i++) {
		c->meta_before[i] = total;
		total += runs[i].count;
	}
	c->seen = mem_zalloc(total / 8 + 1);
	return c->seen ? 0 : -ENOMEM;
}

/* Number of a live metadata block among all; false: it is none. */
static bool meta_index(struct check *c, uint64_t lba, uint64_t *ret)
{
	const struct raid_run *runs = c->meta.p;
	size_t lo = 0, hi = c->meta.count;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (runs[mid].lba <= lba)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == 0 || lba - runs[lo - 1].lba >= runs[lo - 1].count)
		return false;
	*ret = c->meta_before[lo - 1] + (lba - runs[lo - 1].lba);
	return true;
}

static void check_meta_leaks(struct check *c)
{
	const struct raid_run *runs = c->meta.p;
	for (size_t i = 0; i < c->meta.count; i++) {
		for (uint32_t b = 0; b < runs[i].count; b++) {
			uint64_t n = c->meta_before[i] + b;
			if (!(c->seen[n / 8] >> n % 8 & 1))
				problem(c, FAULT_NODE_LEAKED, "block %#llx", ULL(runs[i].lba + b));
			breathe(c);
		}
	}
}

/* ---- inodes ---- */

static bool time_wrong(const struct time_disk *t)
{
	return from_le32(t->ns) >= 1000000000u || from_le32(t->reserved) != 0;
}

static const char *inode_wrong(const struct inode_disk *d)
{
	uint32_t mode = from_le32(d->mode);
	if (mode & ~(uint32_t)(S_IFMT | 07777))
		return "mode";
	switch (mode & S_IFMT) {
	case S_IFREG:
		if (from_le64(d->size) > FS_FILE_BYTES_MAX)
			return "size";
		break;
	case S_IFLNK:
		if (from_le64(d->size) < 1 || from_le64(d->size) > FS_SYMLINK_BYTES_MAX)
			return "size";
		break;
	case S_IFDIR:
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		break;
	default:
		return "type";
	}
	if ((mode & S_IFMT) != S_IFDIR && from_le32(d->links) > FS_LINK_MAX)
		return "link count";
	if (from_le32(d->generation) == 0)
		return "generation";
	if (from_le32(d->flags) != 0 || !all_zero(d->reserved, sizeof(d->reserved)))
		return "a reserved field";
	if (time_wrong(&d->atime) || time_wrong(&d->mtime) || time_wrong(&d->ctime) ||
	    time_wrong(&d->btime))
		return "a time";
	return NULL;
}

static int item_inode(struct check *c, struct key key, struct bt_value v)
{
	struct group *g = &c->g;
	const struct inode_disk *d = v.data;
	if (KEY_OFFSET(key) != 0 || v.len != sizeof(*d)) {
		problem(c, FAULT_INODE_DAMAGED, "inode %llu: offset %llu, %u bytes", ULL(key.ino),
			ULL(KEY_OFFSET(key)), v.len);
		return 0;
	}
	const char *why = inode_wrong(d);
	if (why)
		problem(c, FAULT_INODE_DAMAGED, "inode %llu: %s", ULL(key.ino), why);
	struct inode_rec *rec = array_add(&c->inodes, sizeof(*rec));
	if (!rec)
		return -ENOMEM;
	rec->ino = key.ino;
	rec->parent = from_le64(d->parent);
	rec->entries_said = from_le64(d->subdirs_or_entries);
	rec->links = from_le32(d->links);
	rec->mode = (uint16_t)from_le32(d->mode);
	g->known = true;
	g->inode = *d;
	g->rec = c->inodes.count - 1;
	c->ino_max = MAX(c->ino_max, key.ino);
	c->stats.inodes++;
	c->stats.directories += S_ISDIR(rec->mode);
	c->stats.files += S_ISREG(rec->mode);
	return 0;
}

/* ---- names ---- */

static bool name_invalid(const char *name, unsigned len)
{
	if (memchr(name, '/', len) || memchr(name, 0, len))
		return true;
	return (len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.');
}

static int one_name(struct check *c, struct key key, const struct name_disk *n, const char *name)
{
	if (name_invalid(name, n->name_len))
		problem(c, FAULT_NAME_INVALID, "directory %llu: '%.*s'", ULL(key.ino), n->name_len,
			name);
	if (fs_name_hash(&c->fs, name, n->name_len) != KEY_OFFSET(key))
		problem(c, FAULT_NAME_HASH, "directory %llu: '%.*s' at %#llx", ULL(key.ino),
			n->name_len, name, ULL(KEY_OFFSET(key)));
	struct name_rec *rec = array_add(&c->names, sizeof(*rec));
	if (!rec)
		return -ENOMEM;
	*rec = (struct name_rec){.child = from_le64(n->ino), .dir = key.ino, .dtype = n->dtype};
	if (c->g.known)
		((struct inode_rec *)c->inodes.p)[c->g.rec].entries++;
	return 0;
}

static int item_name(struct check *c, struct key key, struct bt_value v)
{
	const uint8_t *b = v.data;
	unsigned at = 0;
	int number = -1;
	while (at < v.len) {
		const struct name_disk *n = (const void *)(b + at);
		unsigned left = v.len - at;
		if (left < sizeof(*n) || n->name_len == 0 ||
		    left - sizeof(*n) < ROUND_UP(n->name_len, 8u) ||
		    !all_zero(n->reserved + 1, sizeof(n->reserved) - 1))
			break;
		/* The first of the reserved bytes tells the entries of a bucket apart in readdir
		 * cookies. */
		if (n->reserved[0] <= number || n->reserved[0] > NAME_NUMBER_MAX)
			break;
		number = n->reserved[0];
		const char *name = (const char *)(n + 1);
		if (!all_zero(name + n->name_len, ROUND_UP(n->name_len, 8u) - n->name_len))
			break;
		for (unsigned o = 0; o < at;) {
			const struct name_disk *other = (const void *)(b + o);
			if (other->name_len == n->name_len &&
			    memcmp(other + 1, name, n->name_len) == 0)
				problem(c, FAULT_NAME_TWICE, "directory %llu: '%.*s'", ULL(key.ino),
					n->name_len, name);
			o += (unsigned)sizeof(*n) + ROUND_UP(other->name_len, 8u);
		}
		int e = one_name(c, key, n, name);
		if (e)
			return e;
		at += (unsigned)sizeof(*n) + ROUND_UP(n->name_len, 8u);
	}
	if (at < v.len || v.len == 0)
		problem(c, FAULT_NAME_DAMAGED, "directory %llu, hash %#llx, byte %u of %u",
			ULL(key.ino), ULL(KEY_OFFSET(key)), at, v.len);
	return 0;
}

/* ---- data ---- */

static int item_extent(struct check *c, struct key key, struct bt_value v)
{
	struct group *g = &c->g;
	const struct extent_disk *d = v.data;
	uint64_t off = KEY_OFFSET(key);
	uint32_t count = v.len == sizeof(*d) ? from_le32(d->count) : 0;
	if (v.len != sizeof(*d) || count < 1 || count > EXTENT_BLOCKS_MAX ||
	    from_le32(d->reserved) != 0 || off >= FILE_BLOCKS_MAX ||
	    count > FILE_BLOCKS_MAX - off) {
		problem(c, FAULT_EXTENT_DAMAGED, "inode %llu, block %llu, %u blocks", ULL(key.ino),
			ULL(off), count);
		return 0;
	}
	if (off < g->extent_end)
		problem(c, FAULT_EXTENT_OVERLAP,
			"inode %llu, block %llu, the one before ends at %llu", ULL(key.ino),
			ULL(off), ULL(g->extent_end));
	if (off == 0 && g->inlined)
		problem(c, FAULT_EXTENT_INLINE, "inode %llu", ULL(key.ino));
	g->extent_end = MAX(g->extent_end, off + count);
	g->blocks += count;
	uint64_t lba = from_le64(d->lba);
	if (lba == LBA_NONE) {
		c->prealloc_blocks += count;
		return 0;
	}
	c->data_blocks += count;
	if (count > UINT32_MAX - LBA_BLOCK(lba)) {
		problem(c, FAULT_EXTENT_DAMAGED, "inode %llu, block %llu, address %#llx",
			ULL(key.ino), ULL(off), ULL(lba));
		return 0;
	}
	struct extent_rec *rec = array_add(&c->extents, sizeof(*rec));
	if (!rec)
		return -ENOMEM;
	*rec = (struct extent_rec){lba, key.ino, off, count};
	return 0;
}

static int extent_cmp(const void *a, const void *b)
{
	const struct extent_rec *x = a, *y = b;
	if (x->lba != y->lba)
		return x->lba < y->lba ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return x->off < y->off ? -1 : x->off > y->off;
}

static void sort_extents(struct check *c)
{
	if (c->extents_sorted)
		return;
	if (c->extents.count)
		qsort(c->extents.p, c->extents.count, sizeof(struct extent_rec), extent_cmp);
	c->extents_sorted = true;
}

/* Extents before lba that no back-reference has come for. */
static void backrefs_missing(struct check *c, uint64_t lba)
{
	const struct extent_rec *x = c->extents.p;
	for (; c->backref_at < c->extents.count && x[c->backref_at].lba < lba; c->backref_at++) {
		if (!c->incomplete)
			problem(c, FAULT_BACKREF_MISSING, "inode %llu, block %llu at %#llx",
				ULL(x[c->backref_at].ino), ULL(x[c->backref_at].off),
				ULL(x[c->backref_at].lba));
		breathe(c);
	}
}

static void item_backref(struct check *c, struct key key, struct bt_value v)
{
	const struct backref_disk *d = v.data;
	uint64_t lba = LBA_MAKE(key.ino & UINT32_MAX, KEY_OFFSET(key));
	sort_extents(c);
	if (KEY_TYPE(key) != TYPE_BACKREF || KEY_OFFSET(key) > UINT32_MAX) {
		problem(c, FAULT_ITEM_KEY, "%#llx, %#llx", ULL(key.ino), ULL(key.off));
		return;
	}
	backrefs_missing(c, lba);
	if (v.len != sizeof(*d) || from_le32(d->reserved) != 0) {
		problem(c, FAULT_BACKREF_DAMAGED, "at %#llx, %u bytes", ULL(lba), v.len);
		return;
	}
	const struct extent_rec *x = c->extents.p;
	if (c->backref_at == c->extents.count || x[c->backref_at].lba != lba) {
		if (!c->incomplete)
			problem(c, FAULT_BACKREF_WRONG, "at %#llx for inode %llu, block %llu",
				ULL(lba), ULL(from_le64(d->ino)), ULL(from_le64(d->off)));
		return;
	}
	x += c->backref_at++;
	if (x->ino != from_le64(d->ino) || x->off != from_le64(d->off) ||
	    x->count != from_le32(d->count))
		problem(c, FAULT_BACKREF_WRONG,
			"at %#llx: says inode %llu, block %llu, %u blocks; is inode %llu, block "
			"%llu, %u blocks",
			ULL(lba), ULL(from_le64(d->ino)), ULL(from_le64(d->off)),
			from_le32(d->count), ULL(x->ino), ULL(x->off), x->count);
}

/* Every block of every extent once, and live; and every live block in an extent. */
static void check_data(struct check *c)
{
	const struct extent_rec *x = c->extents.p;
	const struct raid_run *runs = c->data.p;
	size_t r = 0;
	uint64_t end = 0;
	for (size_t i = 0; i < c->extents.count; i++) {
		uint64_t at = x[i].lba, stop = x[i].lba + x[i].count;
		if (at < end)
			problem(c, FAULT_EXTENT_SHARED,
				"inode %llu, block %llu and inode %llu, block %llu at %#llx",
				ULL(x[i - 1].ino), ULL(x[i - 1].off), ULL(x[i].ino), ULL(x[i].off),
				ULL(at));
		end = MAX(end, stop);
		while (r < c->data.count && runs[r].lba + runs[r].count <= at)
			r++;
		for (size_t s = r; s < c->data.count && runs[s].lba <= at && at < stop; s++)
			at = MAX(at, runs[s].lba + runs[s].count);
		if (at < stop)
			problem(c, FAULT_EXTENT_DEAD, "inode %llu, block %llu at %#llx",
				ULL(x[i].ino), ULL(x[i].off + (at - x[i].lba)), ULL(at));
		breathe(c);
	}
	if (c->incomplete)
		return;
	size_t i = 0;
	for (r = 0; r < c->data.count; r++) {
		uint64_t at = runs[r].lba, stop = at + runs[r].count;
		while (at < stop) {
			while (i < c->extents.count && x[i].lba + x[i].count <= at)
				i++;
			uint64_t next = i < c->extents.count ? MIN(x[i].lba, stop) : stop;
			if (next > at)
				problem(c, FAULT_DATA_LEAKED, "%llu blocks at %#llx",
					ULL(next - at), ULL(at));
			at = i < c->extents.count && next < stop ? MIN(x[i].lba + x[i].count, stop)
								 : stop;
			breathe(c);
		}
	}
}

/* ---- symlinks and attributes ---- */

static void item_symlink(struct check *c, struct key key, struct bt_value v)
{
	struct group *g = &c->g;
	if (KEY_OFFSET(key) != g->symlink_pieces || v.len < 1 || v.len > SYMLINK_PIECE_BYTES ||
	    g->symlink_bytes % SYMLINK_PIECE_BYTES || memchr(v.data, 0, v.len))
		problem(c, FAULT_SYMLINK_DAMAGED, "inode %llu, piece %llu, %u bytes", ULL(key.ino),
			ULL(KEY_OFFSET(key)), v.len);
	g->symlink_pieces = KEY_OFFSET(key) + 1;
	g->symlink_bytes += v.len;
}

static int item_xattr(struct check *c, struct key key, struct bt_value v)
{
	const uint8_t *b = v.data;
	unsigned at = 0;
	while (at < v.len) {
		const struct xattr_disk *d = (const void *)(b + at);
		unsigned left = v.len - at;
		if (left < sizeof(*d) || from_le16(d->reserved) != 0)
			break;
		uint64_t name_len = from_le16(d->name_len), len = from_le32(d->piece_len);
		uint64_t bytes = sizeof(*d) + ROUND_UP(name_len + len, 8);
		if (bytes > left || name_len > FS_XATTR_NAME_BYTES_MAX ||
		    (from_le32(d->piece) == 0) != (name_len > 0) ||
		    from_le32(d->value_len) > FS_XATTR_VALUE_BYTES_MAX ||
		    len > from_le32(d->value_len))
			break;
		const char *name = (const char *)(d + 1);
		if (name_len && fs_name_hash(&c->fs, name, name_len) != KEY_OFFSET(key))
			problem(c, FAULT_XATTR_HASH, "inode %llu: '%.*s' at %#llx", ULL(key.ino),
				(int)name_len, name, ULL(KEY_OFFSET(key)));
		struct piece_rec *rec = array_add(&c->g.pieces, sizeof(*rec));
		if (!rec)
			return -ENOMEM;
		*rec = (struct piece_rec){KEY_OFFSET(key), from_le32(d->piece), (uint32_t)len,
					  from_le32(d->value_len)};
		at += (unsigned)bytes;
	}
	if (at < v.len || v.len == 0)
		problem(c, FAULT_XATTR_DAMAGED, "inode %llu, hash %#llx, byte %u of %u",
			ULL(key.ino), ULL(KEY_OFFSET(key)), at, v.len);
	return 0;
}

/* The pieces of a value hang at the hash of the name and the offsets that follow. */
static const struct piece_rec *find_piece(const struct array *pieces, uint64_t off, uint32_t piece,
					  uint32_t value_len)
{
	const struct piece_rec *p = pieces->p;
	size_t lo = 0, hi = pieces->count;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (p[mid].off < off)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < pieces->count && p[lo].off == off; lo++)
		if (p[lo].piece == piece && p[lo].value_len == value_len)
			return &p[lo];
	return NULL;
}

static void check_xattrs(struct check *c)
{
	const struct array *pieces = &c->g.pieces;
	const struct piece_rec *p = pieces->p;
	for (size_t i = 0; i < pieces->count; i++) {
		if (p[i].piece != 0) {
			if (!find_piece(pieces, (p[i].off - 1) & KEY_OFF_MASK, p[i].piece - 1,
					p[i].value_len))
				problem(c, FAULT_XATTR_DAMAGED,
					"inode %llu: piece %u at %#llx follows nothing",
					ULL(c->g.ino), p[i].piece, ULL(p[i].off));
			continue;
		}
		const struct piece_rec *q = &p[i];
		uint64_t bytes = q->piece_len;
		while (bytes < p[i].value_len &&
		       (q = find_piece(pieces, (q->off + 1) & KEY_OFF_MASK, q->piece + 1,
				       p[i].value_len)) &&
		       q->piece_len)
			bytes += q->piece_len;
		if (bytes != p[i].value_len)
			problem(c, FAULT_XATTR_DAMAGED,
				"inode %llu: value at %#llx has %llu of %u bytes", ULL(c->g.ino),
				ULL(p[i].off), ULL(bytes), p[i].value_len);
	}
}

/* ---- items ---- */

static void group_end(struct check *c)
{
	struct group *g = &c->g;
	if (g->known) {
		uint32_t mode = from_le32(g->inode.mode);
		if (!c->incomplete) {
			if (g->blocks != from_le64(g->inode.blocks))
				problem(c, FAULT_INODE_BLOCKS, "inode %llu: says %llu, is %llu",
					ULL(g->ino), ULL(from_le64(g->inode.blocks)),
					ULL(g->blocks));
			if (S_ISLNK(mode) && g->symlink_bytes != from_le64(g->inode.size))
				problem(c, FAULT_SYMLINK_DAMAGED,
					"inode %llu: %llu bytes, the inode says %llu", ULL(g->ino),
					ULL(g->symlink_bytes), ULL(from_le64(g->inode.size)));
			check_xattrs(c);
		}
	}
	mem_free(g->pieces.p);
	*g = (struct group){.ino = 0};
}

static bool suits(uint32_t mode, unsigned type)
{
	switch (type) {
	case TYPE_NAME:
		return S_ISDIR(mode);
	case TYPE_SYMLINK:
		return S_ISLNK(mode);
	case TYPE_INLINE:
	case TYPE_EXTENT:
		return S_ISREG(mode);
	default:
		return true;
	}
}

static int item_of_inode(struct check *c, struct key key, struct bt_value v)
{
	struct group *g = &c->g;
	if (g->ino != key.ino) {
		group_end(c);
		g->ino = key.ino;
		if (KEY_TYPE(key) != TYPE_INODE && !c->incomplete)
			problem(c, FAULT_ITEM_NO_INODE, "inode %llu, type %u, offset %#llx",
				ULL(key.ino), KEY_TYPE(key), ULL(KEY_OFFSET(key)));
	}
	if (g->known && !suits(from_le32(g->inode.mode), KEY_TYPE(key)))
		problem(c, FAULT_ITEM_KIND, "inode %llu, mode %o, type %u, offset %#llx",
			ULL(key.ino), from_le32(g->inode.mode), KEY_TYPE(key),
			ULL(KEY_OFFSET(key)));
	switch (KEY_TYPE(key)) {
	case TYPE_INODE:
		return item_inode(c, key, v);
	case TYPE_XATTR:
		return item_xattr(c, key, v);
	case TYPE_NAME:
		return item_name(c, key, v);
	case TYPE_SYMLINK:
		item_symlink(c, key, v);
		return 0;
	case TYPE_INLINE:
		if (KEY_OFFSET(key) != 0)
			problem(c, FAULT_ITEM_KEY, "%#llx, %#llx", ULL(key.ino), ULL(key.off));
		g->inlined = true;
		return 0;
	case TYPE_EXTENT:
		return item_extent(c, key, v);
	default:
		problem(c, FAULT_ITEM_KEY, "%#llx, %#llx", ULL(key.ino), ULL(key.off));
		return 0;
	}
}

static int item_orphan(struct check *c, struct key key, struct bt_value v)
{
	if (KEY_TYPE(key) != TYPE_ORPHAN) {
		problem(c, FAULT_ITEM_KEY, "%#llx, %#llx", ULL(key.ino), ULL(key.off));
		return 0;
	}
	if (v.len != 0)
		problem(c, FAULT_ORPHAN_DAMAGED, "inode %llu, %u bytes", ULL(KEY_OFFSET(key)),
			v.len);
	uint64_t *ino = array_add(&c->orphans, sizeof(*ino));
	if (!ino)
		return -ENOMEM;
	*ino = KEY_OFFSET(key);
	return 0;
}

static int item(struct check *c, struct key key, struct bt_value v)
{
	breathe(c);
	if (key.ino == 0)
		return item_orphan(c, key, v);
	if (key.ino < BACKREF_INO)
		return item_of_inode(c, key, v);
	if (c->g.ino)
		group_end(c);
	if (key.ino - BACKREF_INO > UINT32_MAX)
		problem(c, FAULT_ITEM_KEY, "%#llx, %#llx", ULL(key.ino), ULL(key.off));
	else
		item_backref(c, key, v);
	return 0;
}

/* ---- the tree ---- */

static void ahead_drop(struct check *c)
{
	buf_put(c->ahead.bytes);
	c->ahead.bytes = NULL;
	c->ahead.count = 0;
}

/* Reads children from slot i on in one go. Whatever goes wrong is left to the reading of each by
 * itself. */
static void read_ahead(struct check *c, const struct node_disk *d, unsigned i)
{
	struct raid_read_run runs[AHEAD_BLOCKS];
	uint64_t index;
	ahead_drop(c); /* not kept: after an error it may still belong to a device */
	c->ahead.bytes = buf_get(AHEAD_BLOCKS * BLOCK_BYTES);
	if (!c->ahead.bytes)
		return;
	unsigned count = 0;
	for (; i < node_count(d) && count < AHEAD_BLOCKS; i++) {
		uint64_t lba = node_child(d, i);
		if (!meta_index(c, lba, &index))
			continue;
		c->ahead.lba[count] = lba;
		runs[count] = (struct raid_read_run){lba, 1, c->ahead.bytes + count * BLOCK_BYTES};
		count++;
	}
	if (count && raid_readv(c->raid, runs, count) == 0)
		c->ahead.count = count;
	else
		ahead_drop(c);
}

struct frame {
	struct node_disk disk;
	unsigned next;	   /* slot */
	struct key lo, hi; /* keys are in [lo, hi) */
	bool open;	   /* hi counts as endless */
};

static const char *range_wrong(const struct frame *f)
{
	const struct node_disk *d = &f->disk;
	unsigned count = node_count(d);
	if (count && key_cmp(node_key(d, 0), f->lo) < 0)
		return "below";
	if (count && !f->open && key_cmp(node_key(d, count - 1), f->hi) >= 0)
		return "above";
	return NULL;
}

/* 1: f holds a node that can be gone through; 0: it is left out (reported). */
static int enter(struct check *c, struct frame *f, uint64_t lba, unsigned level)
{
	uint64_t index;
	f->next = 0;
	if (lba == LBA_ROOT || !meta_index(c, lba, &index)) {
		problem(c, FAULT_NODE_DEAD, "block %#llx, level %u", ULL(lba), level);
		goto skip;
	}
	if (c->seen[index / 8] >> index % 8 & 1) {
		problem(c, FAULT_NODE_TWICE, "block %#llx, level %u", ULL(lba), level);
		goto skip;
	}
	c->seen[index / 8] |= (uint8_t)(1u << index % 8);
	c->meta_blocks++;
	int e = read_block(c, lba, &f->disk);
	if (e) {
		problem(c, FAULT_NODE_UNREADABLE, "block %#llx, level %u: %s", ULL(lba), level,
			strerror(-e));
		goto skip;
	}
	const char *why = node_wrong(&f->disk, &c->fs.uuid, lba);
	if (why) {
		problem(c, FAULT_NODE_DAMAGED, "block %#llx, level %u: %s", ULL(lba), level, why);
		goto skip;
	}
	if (node_level(&f->disk) != level) {
		problem(c, FAULT_NODE_LEVEL, "block %#llx: is %u, should be %u", ULL(lba),
			node_level(&f->disk), level);
		goto skip;
	}
	if (from_le64(f->disk.head.gen) > from_le64(c->super.head.gen))
		problem(c, FAULT_NODE_FUTURE, "block %#llx: %llu, superblock %llu", ULL(lba),
			ULL(from_le64(f->disk.head.gen)), ULL(from_le64(c->super.head.gen)));
	why = range_wrong(f);
	if (why) {
		problem(c, FAULT_NODE_RANGE, "block %#llx, level %u: %s its range", ULL(lba), level,
			why);
		goto skip;
	}
	if (node_count(&f->disk) == 0 && lba != from_le64(c->super.root))
		problem(c, FAULT_NODE_EMPTY, "block %#llx", ULL(lba));
	return 1;
skip:
	c->incomplete = true;
	return 0;
}

static int walk(struct check *c)
{
	unsigned height = from_le32(c->super.height);
	struct frame *frames = mem_zalloc(height * sizeof(*frames));
	if (!frames)
		return -ENOMEM;
	frames[0].open = true;
	int e = enter(c, &frames[0], from_le64(c->super.root), height - 1);
	unsigned depth = e > 0 ? 1 : 0;
	e = MIN(e, 0);
	while (depth && e == 0) {
		struct frame *f = &frames[depth - 1];
		unsigned count = node_count(&f->disk), i = f->next++, level = height - depth;
		if (i == count) {
			depth--;
		} else if (level == 0) {
			e = item(c, node_key(&f->disk, i), node_value(&f->disk, i));
		} else {
			struct frame *below = f + 1;
			below->lo = i ? node_key(&f->disk, i) : f->lo;
			below->open = i + 1 == count && f->open;
			below->hi = i + 1 < count ? node_key(&f->disk, i + 1) : f->hi;
			if (level == 1 && i % AHEAD_BLOCKS == 0)
				read_ahead(c, &f->disk, i);
			if (enter(c, below, node_child(&f->disk, i), level - 1) > 0)
				depth++;
		}
	}
	mem_free(frames);
	ahead_drop(c);
	if (e)
		return e;
	group_end(c);
	sort_extents(c);
	backrefs_missing(c, UINT64_MAX);
	return 0;
}

/* ---- across inodes ---- */

static void check_names(struct check *c)
{
	const struct name_rec *n = c->names.p;
	for (size_t i = 0; i < c->names.count; i++, n++) {
		breathe(c);
		struct inode_rec *child = inode_find_rec(c, n->child),
				 *dir = inode_find_rec(c, n->dir);
		if (!child) {
			problem(c, FAULT_NAME_DANGLING, "directory %llu names inode %llu",
				ULL(n->dir), ULL(n->child));
			continue;
		}
		child->names++;
		if (n->dtype != IFTODT(child->mode))
			problem(c, FAULT_NAME_TYPE, "directory %llu, inode %llu: says %u, is %u",
				ULL(n->dir), ULL(n->child), n->dtype, IFTODT(child->mode));
		if (!S_ISDIR(child->mode))
			continue;
		if (dir)
			dir->subdirs++;
		if (child->dir_parent || child->ino == FS_ROOT_INO)
			problem(c, FAULT_DIR_NAMES, "inode %llu in directories %llu and %llu",
				ULL(child->ino), ULL(child->dir_parent), ULL(n->dir));
		/* Of several the one that the directory itself says, if it is among them. */
		if (child->ino != FS_ROOT_INO && (!child->dir_parent || n->dir == child->parent))
			child->dir_parent = n->dir;
	}
}

static void check_directory(struct check *c, const struct inode_rec *r)
{
	if (r->entries != r->entries_said)
		problem(c, FAULT_DIR_ENTRIES, "inode %llu: says %llu, is %llu", ULL(r->ino),
			ULL(r->entries_said), ULL(r->entries));
	uint32_t links = 2 + r->subdirs;
	bool root = r->ino == FS_ROOT_INO;
	if (r->links == 0 && !r->names && !r->entries && !root)
		links = 0; /* removed and still open */
	if (r->links != links)
		problem(c, FAULT_INODE_LINKS, "directory inode %llu: says %u, is %u", ULL(r->ino),
			r->links, links);
	uint64_t parent = root ? FS_ROOT_INO : r->dir_parent;
	if (parent && r->parent != parent)
		problem(c, FAULT_DIR_PARENT, "inode %llu: says %llu, is %llu", ULL(r->ino),
			ULL(r->parent), ULL(parent));
}

static void check_inodes(struct check *c)
{
	const struct inode_rec *r = c->inodes.p;
	for (size_t i = 0; i < c->inodes.count; i++, r++) {
		breathe(c);
		bool orphan = is_orphan(c, r->ino), root = r->ino == FS_ROOT_INO;
		if (S_ISDIR(r->mode))
			check_directory(c, r);
		else if (r->names && r->links != r->names)
			problem(c, FAULT_INODE_LINKS, "inode %llu: says %u, is %u", ULL(r->ino),
				r->links, r->names);
		if (!r->names && r->links && !root)
			problem(c, FAULT_INODE_NO_NAME, "inode %llu, mode %o, %u links",
				ULL(r->ino), r->mode, r->links);
		if (!r->links && !orphan)
			problem(c, FAULT_INODE_NOT_ORPHAN, "inode %llu", ULL(r->ino));
		if (orphan && r->links && !S_ISREG(r->mode))
			problem(c, FAULT_ORPHAN_WRONG, "inode %llu, mode %o, %u links", ULL(r->ino),
				r->mode, r->links);
	}
	const uint64_t *orphan = c->orphans.p;
	for (size_t i = 0; i < c->orphans.count; i++, orphan++)
		if (!inode_find_rec(c, *orphan))
			problem(c, FAULT_ORPHAN_DAMAGED, "inode %llu does not exist", ULL(*orphan));
}

/* From each directory up until the root, or something seen before. Who comes back to this very walk
 * is in a loop. */
static void check_loops(struct check *c)
{
	struct inode_rec *recs = c->inodes.p;
	for (size_t i = 0; i < c->inodes.count; i++) {
		struct inode_rec *at = &recs[i];
		breathe(c);
		while (at && S_ISDIR(at->mode) && at->visit == VISIT_NONE) {
			at->visit = VISIT_NOW;
			at = at->dir_parent ? inode_find_rec(c, at->dir_parent) : NULL;
		}
		if (at && at->visit == VISIT_NOW)
			problem(c, FAULT_DIR_LOOP, "inode %llu is below itself", ULL(at->ino));
		for (at = &recs[i]; at && at->visit == VISIT_NOW;) {
			at->visit = VISIT_DONE;
			at = at->dir_parent ? inode_find_rec(c, at->dir_parent) : NULL;
		}
	}
}

static void check_root(struct check *c)
{
	const struct inode_rec *root = inode_find_rec(c, FS_ROOT_INO);
	if (!root)
		problem(c, FAULT_ROOT_MISSING, "inode 1 does not exist");
	else if (!S_ISDIR(root->mode) || root->links == 0)
		problem(c, FAULT_ROOT_MISSING, "inode 1, mode %o, %u links", root->mode,
			root->links);
}

static void check_counter(struct check *c, enum fault fault, le64 said, uint64_t is)
{
	if (from_le64(said) != is)
		problem(c, fault, "says %llu, is %llu", ULL(from_le64(said)), ULL(is));
}

/* ---- all of it ---- */

/* 1: go on. 0: hopeless, reported. */
static int check_super(struct check *c)
{
	int e = read_block(c, LBA_ROOT, &c->super);
	if (e == -ENOMEM)
		return e;
	if (e) {
		problem(c, FAULT_SUPER_UNREADABLE, "block %#llx: %s", ULL(LBA_ROOT), strerror(-e));
		return 0;
	}
	bool read_only;
	if (from_le64(c->super.head.magic) == SUPER_MAGIC &&
	    from_le64(c->super.head.sum) == meta_sum(&c->super) &&
	    super_unsupported(&c->super, &read_only) != 0) {
		problem(c, FAULT_SUPER_UNSUPPORTED, "version %u, features %#llx",
			from_le32(c->super.version), ULL(from_le64(c->super.incompat)));
		return 0;
	}
	const char *why = super_wrong(&c->super, &c->fs.uuid);
	if (why) {
		problem(c, FAULT_SUPER_DAMAGED, "%s", why);
		return 0;
	}
	c->fs.hash_seed = from_le64(c->super.hash_seed);
	return 1;
}

static int check_all(struct check *c)
{
	int e = check_super(c);
	if (e <= 0)
		return e;
	e = load_live(c);
	if (e)
		return e;
	uint64_t index;
	if (meta_index(c, LBA_ROOT, &index))
		c->seen[index / 8] |= (uint8_t)(1u << index % 8);
	else
		problem(c, FAULT_NODE_DEAD, "superblock");
	c->meta_blocks = 1;
	e = walk(c);
	if (e)
		return e;
	check_data(c);
	if (c->incomplete) {
		problem(c, FAULT_INCOMPLETE, "names, links and space were not compared");
		return 0;
	}
	check_meta_leaks(c);
	check_root(c);
	check_names(c);
	check_inodes(c);
	check_loops(c);
	check_counter(c, FAULT_SUPER_INODES, c->super.inodes, c->inodes.count);
	check_counter(c, FAULT_SUPER_DATA_BLOCKS, c->super.data_blocks, c->data_blocks);
	check_counter(c, FAULT_SUPER_META_BLOCKS, c->super.meta_blocks, c->meta_blocks);
	check_counter(c, FAULT_SUPER_PREALLOC_BLOCKS, c->super.prealloc_blocks, c->prealloc_blocks);
	if (from_le64(c->super.ino_next) <= c->ino_max)
		problem(c, FAULT_SUPER_INO_NEXT, "next %llu, highest %llu",
			ULL(from_le64(c->super.ino_next)), ULL(c->ino_max));
	return 0;
}

int64_t fs_check(struct raid *raid, void (*report)(void *arg, const char *id, const char *text),
		 void *arg, struct fs_check_stats *ret)
{
	struct check *c = mem_zalloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	struct raid_info info;
	raid_info(raid, &info);
	c->raid = raid;
	c->fs.uuid = info.fs;
	c->report = report;
	c->report_arg = arg;
	int e = check_all(c);
	c->stats.data_blocks = c->data_blocks;
	c->stats.meta_blocks = c->meta_blocks;
	if (ret)
		*ret = c->stats;
	int64_t result = e < 0 ? e : c->problems;
	mem_free(c->meta_before);
	mem_free(c->seen);
	struct array *arrays[] = {&c->meta,    &c->data,    &c->inodes,	 &c->names,
				  &c->extents, &c->orphans, &c->g.pieces};
	for (size_t i = 0; i < ARRAY_SIZE(arrays); i++)
		mem_free(arrays[i]->p);
	mem_free(c);
	return result;
}
