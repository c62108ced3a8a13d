/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * File data: read, write, truncate, allocate, seek, sync. A block of a file is, in this order:
 * dirty (write buffer), block 0 of a tiny file (in the tree), a block on the volume, promised, or a
 * hole.
 *
 * Readers take no lock. A read looks at one instant, in its atom: it copies dirty blocks then and
 * there and notes where the others stand; what it noted cannot be reused while the reader stands
 * between raid_read_begin and _end. So a block that is written out between look and read does no
 * harm: the reader has either its dirty copy or its old place.
 *
 * Writers of one file exclude each other, and truncation, by the inode's lock; they wait for room
 * and memory before they take it, since write-out may need the lock to make room.
 *
 * The bytes of the last block behind the end of the file may be anything. Whoever moves the end up
 * zeroes them first (extend_tail), through the write buffer; the size on disk does not pass a dirty
 * block, so that after a crash too the end is either the old one or behind zeros.
 */
#include "extent.h"
#include "inode.h"
#include "writeback.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#define READ_RUNS	64
#define WRITE_BYTES_MAX (1u << 20) /* taken in at one instant */
#define SMALL_BYTES	(8 * BLOCK_BYTES) /* when there is no space for more at once */
#define AGAIN_MAX	8	   /* memory that hung devices kept, before a block is given up */
#define SPACE_TRIES_MAX 3
#define BLOCKS_MAX	(FS_FILE_BYTES_MAX >> BLOCK_SHIFT)
/* Extents that one atom looks at: a file may have millions, and an atom keeps every node that it had to load. */
#define SCAN_EXTENTS_MAX 1024u

static int want_regular(const struct inode_disk *d)
{
	if (S_ISREG(inode_mode(d)))
		return 0;
	return S_ISDIR(inode_mode(d)) ? -EISDIR : -EINVAL;
}

static struct key inline_key(uint64_t ino)
{
	return (struct key){ino, KEY_OFF(TYPE_INLINE, 0)};
}

/* ---- reading ---- */

struct read {
	uint64_t ino, off, len;
	char *data; /* where the block of off goes */
	uint64_t size;
	uint64_t covered; /* blocks before this one are in data or in runs */
	unsigned run_count;
	struct raid_read_run runs[READ_RUNS];
};

/* Block 0, which no extent covers: inline or a hole. */
static int read_inline(struct fs *fs, uint64_t ino, char *to)
{
	struct bt_value v;
	int r = bt_get(fs, inline_key(ino), &v);
	if (r && r != -ENOENT)
		return r;
	if (r == 0 && v.len > INLINE_BYTES_MAX)
		return -EBADMSG;
	memset(to, 0, BLOCK_BYTES);
	if (r == 0)
		memcpy(to, v.data, v.len);
	return 0;
}

/* Blocks from b on that are alike, up to end: into data, or a run. */
static int read_piece(struct fs *fs, struct read *rd, uint64_t first, uint64_t b, uint64_t end,
		      uint64_t *ret_next)
{
	char *to = rd->data + (b - first) * BLOCK_BYTES;
	struct inode *i = inode_find(fs, rd->ino);
	struct extent x;
	uint64_t dirty;
	if (i && writeback_next_dirty(i, b, &dirty)) {
		if (dirty == b) {
			memcpy(to, writeback_peek(i, b), BLOCK_BYTES);
			*ret_next = b + 1;
			return 0;
		}
		end = MIN(end, dirty);
	}
	int r = extent_find(fs, rd->ino, b, &x);
	if (r && r != -ENOENT)
		return r;
	if (r == 0 && x.off <= b) {
		end = MIN(end, extent_end(&x));
		if (x.lba == LBA_NONE) {
			memset(to, 0, (end - b) * BLOCK_BYTES);
		} else {
			rd->runs[rd->run_count++] = (struct raid_read_run){
			    .lba = x.lba + (b - x.off),
			    .count = (uint32_t)(end - b),
			    .data = to,
			};
		}
		*ret_next = end;
		return 0;
	}
	if (r == 0)
		end = MIN(end, x.off);
	*ret_next = end;
	if (b > 0) {
		memset(to, 0, (end - b) * BLOCK_BYTES);
		return 0;
	}
	memset(to + BLOCK_BYTES, 0, (end - 1) * BLOCK_BYTES);
	return read_inline(fs, rd->ino, to);
}

static int read_atom(struct fs *fs, void *arg)
{
	struct read *rd = arg;
	struct inode_disk d;
	rd->run_count = 0;
	int r = inode_load(fs, rd->ino, &d);
	if (r == 0)
		r = want_regular(&d);
	if (r)
		return r;
	rd->size = inode_size(fs, rd->ino, &d);
	uint64_t first = rd->off >> BLOCK_SHIFT, b = first;
	uint64_t end =
	    rd->off >= rd->size ? b : DIV_ROUND_UP(MIN(rd->off + rd->len, rd->size), BLOCK_BYTES);
	while (b < end && rd->run_count < READ_RUNS) {
		r = read_piece(fs, rd, first, b, end, &b);
		if (r)
			return r;
	}
	rd->covered = b;
	return 0;
}

/* One look and its reads. */
static int read_some(struct fs *fs, struct read *rd)
{
	struct raid_reader reader;
	if (BREAK(fs_guard))
		list_init(&reader.node);
	else
		raid_read_begin(fs->raid, &reader);
	int r = fs_atom(fs, ATOM_READ, read_atom, rd);
	if (r == 0 && rd->run_count)
		r = raid_readv(fs->raid, rd->runs, rd->run_count);
	raid_read_end(fs->raid, &reader);
	return r;
}

/* Once while the inode is in use: who cannot read a piece goes on asking. */
static void say_hurt(struct fs *fs, uint64_t ino, uint64_t off, size_t len, int error)
{
	struct inode *i = inode_pin(fs, ino);
	char path[512];
	if (!i)
		return;
	if (!i->hurt) {
		i->hurt = true;
		fs_path(fs, ino, path, sizeof(path));
		log_error("%s: cannot be read between %llu and %llu: %s: trussfs scrub lists all that is lost",
			  path, (unsigned long long)off, (unsigned long long)(off + len), strerror(-error));
	}
	inode_unpin(fs, i);
}

int fs_read(struct fs *fs, uint64_t ino, uint64_t off, size_t len, void *data, void **ret_data,
	    size_t *ret_len)
{
	struct read rd; /* its runs need no zeros */
	rd.ino = ino;
	rd.off = off;
	rd.len = len;
	if (off >= FS_FILE_BYTES_MAX)
		len = rd.len = 0;
	uint64_t end = MIN(off + len, FS_FILE_BYTES_MAX), at = off;
	do {
		rd.off = at;
		rd.len = end - at;
		rd.data = (char *)data + ((at >> BLOCK_SHIFT) - (off >> BLOCK_SHIFT)) * BLOCK_BYTES;
		int r = read_some(fs, &rd);
		if (r == -EBADMSG || r == -EIO)
			say_hurt(fs, ino, rd.off, rd.len, r);
		if (r)
			return r;
		end = MIN(end, rd.size);
		if (rd.size <= rd.off)
			break;
		at = rd.covered << BLOCK_SHIFT;
	} while (at < end);
	*ret_data = (char *)data + off % BLOCK_BYTES;
	*ret_len = end > off ? end - off : 0;
	return 0;
}

/* The newest content of one block, with zeros behind the end of the file, into the memory of a
 * spare. The lock is held. */
static int read_block(struct fs *fs, uint64_t ino, uint64_t block, struct wb_block *spare)
{
	struct read rd = {.ino = ino, .off = block << BLOCK_SHIFT, .len = BLOCK_BYTES};
	int r = -EAGAIN;
	for (int t = 0; t < AGAIN_MAX && r == -EAGAIN; t++) {
		if (t) {
			/* A hung device may still write to it. */
			buf_put(spare->data);
			spare->data = buf_get_wait(BLOCK_BYTES);
		}
		rd.data = spare->data;
		r = read_some(fs, &rd);
	}
	if (r)
		return r == -EAGAIN ? -EIO : r;
	uint64_t valid = rd.size > rd.off ? MIN(rd.size - rd.off, BLOCK_BYTES) : 0;
	memset((char *)spare->data + valid, 0, BLOCK_BYTES - valid);
	return 0;
}

/* ---- changing blocks in the write buffer ---- */

/* From now on memory says what size and times are. In atoms. */
static void over_begin(struct inode *i, const struct inode_disk *d)
{
	if (i->over)
		return;
	i->over = true;
	i->size = from_le64(d->size);
	i->mtime = time_from_disk(d->mtime);
	i->ctime = time_from_disk(d->ctime);
}

struct zero {
	struct inode *i;
	uint64_t block;
	unsigned from, to;
	struct wb_block **spare; /* holds the content */
};

static int zero_atom(struct fs *fs, void *arg)
{
	struct zero *z = arg;
	struct inode_disk d;
	int r = inode_load(fs, z->i->ino, &d);
	if (r == 0)
		r = writeback_prepare(z->i, z->block);
	if (r)
		return r;
	over_begin(z->i, &d);
	struct wb_block *b = writeback_find(z->i, z->block);
	if (b) {
		memset((char *)writeback_modify(fs, b, z->spare) + z->from, 0, z->to - z->from);
		return 0;
	}
	memset((char *)(*z->spare)->data + z->from, 0, z->to - z->from);
	/* It has a place: a hole would have been zeros already. In a tiny file that place may be
	 * the tree. */
	writeback_add(fs, z->i, z->block, *z->spare, false);
	*z->spare = NULL;
	return 0;
}

static bool all_zero(const char *p, unsigned len)
{
	return len == 0 || (p[0] == 0 && memcmp(p, p + 1, len - 1) == 0);
}

/*
 * Bytes [from, to) of a block become zeros. Bytes behind the end of the file count as not zero,
 * since on the volume they may be anything, unless there is nothing at all. The lock is held;
 * *spare is used up where needed.
 */
static int zero_part(struct fs *fs, struct inode *i, uint64_t block, unsigned from, unsigned to,
		     struct wb_block **spare)
{
	struct zero z = {i, block, from, to, spare};
	if (from >= to)
		return 0;
	int r = read_block(fs, i->ino, block, *spare);
	if (r)
		return r;
	/* read_block has cut off what is behind the end: whether there is anything, its place
	 * tells. */
	if (all_zero((char *)(*spare)->data + from, to - from)) {
		struct wb_block *b = writeback_find(i, block);
		if (b && all_zero((const char *)b->data + from, to - from))
			return 0;
		if (!b) {
			uint64_t next;
			r = fs_lseek(fs, i->ino, block << BLOCK_SHIFT, SEEK_DATA, &next);
			if (r == -ENXIO || (r == 0 && next >= (block + 1) << BLOCK_SHIFT))
				return 0;
			if (r)
				return r;
		}
	}
	return fs_atom(fs, ATOM_WRITE | ATOM_FREES, zero_atom, &z);
}

struct beyond {
	uint64_t ino, size;
	uint64_t at; /* block: no data from the end up to here */
	bool any;
};

static int beyond_atom(struct fs *fs, void *arg)
{
	struct beyond *y = arg;
	struct bt_value v;
	struct extent x;
	if (y->size == 0) {
		int r = bt_get(fs, inline_key(y->ino), &v);
		y->any = r == 0;
		if (r != -ENOENT)
			return r;
	}
	for (; !y->any; y->at = extent_end(&x)) {
		int r = extent_find(fs, y->ino, y->at, &x);
		if (r)
			return r == -ENOENT ? 0 : r;
		y->any = x.lba != LBA_NONE;
	}
	return 0;
}

/*
 * Before the end of the file moves up from `size` over bytes that are not written: they must be
 * zeros. Whole blocks of data behind the end are what a crash left when later blocks had got to the
 * tree and earlier ones had not.
 */
static int extend_tail(struct fs *fs, struct inode *i, uint64_t size, struct wb_block **spare)
{
	struct beyond y = {.ino = i->ino, .size = size, .at = DIV_ROUND_UP(size, BLOCK_BYTES)};
	if (BREAK(fs_tail))
		return 0;
	int r = fs_atom(fs, ATOM_READ, beyond_atom, &y);
	if (r == 0 && y.any)
		r = extent_cut_tail(fs, i->ino);
	if (r == 0 && size % BLOCK_BYTES)
		r = zero_part(fs, i, size >> BLOCK_SHIFT, size % BLOCK_BYTES, BLOCK_BYTES, spare);
	return r;
}

struct size_of {
	uint64_t ino;
	uint64_t size;
};

static int size_atom(struct fs *fs, void *arg)
{
	struct size_of *s = arg;
	struct inode_disk d;
	int r = inode_load(fs, s->ino, &d);
	if (r == 0)
		r = want_regular(&d);
	if (r == 0)
		s->size = inode_size(fs, s->ino, &d);
	return r;
}

static int size_of(struct fs *fs, uint64_t ino, uint64_t *ret)
{
	struct size_of s = {.ino = ino};
	int r = fs_atom(fs, ATOM_READ, size_atom, &s);
	if (r == 0)
		*ret = s.size;
	return r;
}

/* Memory for an operation, gathered before the lock is taken. */
struct spares {
	unsigned count;
	struct wb_block **b;
};

static void spares_put(struct fs *fs, struct spares *s)
{
	for (unsigned k = 0; s->b && k < s->count; k++)
		writeback_spare_free(s->b[k]);
	mem_free(s->b);
	writeback_room_done(fs, s->count);
}

static int spares_get(struct fs *fs, struct spares *s, unsigned count)
{
	s->b = NULL;
	s->count = count;
	int r = writeback_room(fs, count);
	if (r)
		return r;
	s->b = mem_zalloc(count * sizeof(*s->b));
	for (unsigned k = 0; s->b && k < count; k++) {
		s->b[k] = writeback_spare(fs);
		if (!s->b[k])
			break;
	}
	if (s->b && s->b[count - 1])
		return 0;
	spares_put(fs, s);
	return -ENOMEM;
}

/* ---- writing ---- */

struct write {
	struct inode *i;
	uint64_t off;
	unsigned len;
	const char *data;
	unsigned flags;
	uint64_t first, end; /* blocks */
	struct wb_block **spare;
};

/* Whether the tree holds all of a tiny file already, so that overwriting it takes nothing more. */
static int write_inline_fits(struct fs *fs, uint64_t ino, uint64_t new_size, bool *ret)
{
	struct bt_value v;
	int r = bt_get(fs, inline_key(ino), &v);
	*ret = r == 0 && v.len >= new_size;
	return r == -ENOENT ? 0 : r;
}

/* How many of the blocks need space of their own; marks them in the spares. And how many may need
 * metadata: those that have no old place. */
static int write_needs(struct fs *fs, struct write *w, uint64_t new_size, uint64_t *ret_fresh,
		       uint64_t *ret_meta)
{
	struct extent x = {0};
	bool known = false, none = false, fits = false;
	uint64_t fresh = 0, meta = 0;
	for (uint64_t b = w->first; b < w->end; b++) {
		if (writeback_find(w->i, b))
			continue;
		if (!none && (!known || extent_end(&x) <= b)) {
			int r = extent_find(fs, w->i->ino, b, &x);
			if (r && r != -ENOENT)
				return r;
			known = r == 0;
			none = r == -ENOENT;
		}
		bool placed = !none && x.off <= b;
		/* Of a tiny file the tree takes it. */
		w->spare[b - w->first]->fresh =
		    !placed && !(b == 0 && new_size <= INLINE_BYTES_MAX);
		fresh += w->spare[b - w->first]->fresh;
		int r = writeback_prepare(w->i, b);
		if (r == 0 && b == 0 && !placed)
			r = write_inline_fits(fs, w->i->ino, new_size, &fits);
		if (r)
			return r;
		w->spare[b - w->first]->meta = placed ? x.lba == LBA_NONE : b != 0 || !fits;
		meta += w->spare[b - w->first]->meta;
	}
	*ret_fresh = fresh;
	*ret_meta = meta;
	return 0;
}

/* A tiny file that grows: its dirty block 0 will need space after all. */
static int write_outgrows(struct fs *fs, struct write *w, uint64_t size, uint64_t new_size,
			  struct wb_block **ret)
{
	struct extent x;
	*ret = NULL;
	if (size > INLINE_BYTES_MAX || new_size <= INLINE_BYTES_MAX)
		return 0;
	struct wb_block *b = writeback_find(w->i, 0);
	if (!b || b->fresh || b->took)
		return 0;
	int r = extent_find(fs, w->i->ino, 0, &x);
	if (r && r != -ENOENT)
		return r;
	if (r == -ENOENT || x.off > 0)
		*ret = b;
	return 0;
}

static void write_copy(struct fs *fs, struct write *w)
{
	for (uint64_t blk = w->first; blk < w->end; blk++) {
		uint64_t start = blk << BLOCK_SHIFT;
		unsigned from = w->off > start ? (unsigned)(w->off - start) : 0;
		unsigned to = (unsigned)MIN(w->off + w->len - start, BLOCK_BYTES);
		const char *src = w->data + (start + from - w->off);
		struct wb_block **spare = &w->spare[blk - w->first];
		struct wb_block *b = writeback_find(w->i, blk);
		if (b) {
			memcpy((char *)writeback_modify(fs, b, spare) + from, src, to - from);
		} else {
			bool fresh = (*spare)->fresh;
			memcpy((char *)(*spare)->data + from, src, to - from);
			writeback_add(fs, w->i, blk, *spare, fresh);
			*spare = NULL;
		}
	}
}

static int write_atom(struct fs *fs, void *arg)
{
	struct write *w = arg;
	struct inode_disk d;
	struct wb_block *grown = NULL;
	uint64_t fresh = 0, meta = 0;
	bool store = false, caps = false;
	int r = inode_load(fs, w->i->ino, &d);
	if (r == 0)
		r = want_regular(&d);
	if (r)
		return r;
	uint64_t size = inode_size(fs, w->i->ino, &d), new_size = MAX(size, w->off + w->len);
	r = write_needs(fs, w, new_size, &fresh, &meta);
	if (r == 0)
		r = write_outgrows(fs, w, size, new_size, &grown);
	if (r)
		return r;
	fresh += grown != NULL;
	meta += grown != NULL;
	if ((fresh && fresh > writeback_avail(fs)) || (meta && !writeback_meta_avail(fs, meta)))
		return -ENOSPC;
	if (w->flags & FS_WRITE_KILL_PRIV) {
		store = inode_drop_suid(&d);
		r = xattr_caps_prepare(fs, w->i->ino, &caps);
		store |= caps;
		if (r == 0 && store)
			r = inode_prepare(fs, w->i->ino);
		if (r)
			return r;
	}
	over_begin(w->i, &d);
	w->i->size = new_size;
	if (!(w->flags & FS_WRITE_KEEP_TIMES)) {
		inode_times_now(fs, &d, true);
		w->i->mtime = w->i->ctime = time_from_disk(d.mtime);
	}
	if (grown)
		writeback_reserve(fs, grown);
	write_copy(fs, w);
	if (caps)
		xattr_caps_drop(fs, w->i->ino);
	if (store)
		inode_store(fs, w->i->ino, &d);
	return 0;
}

/* Old content of the blocks that the write covers in part. The lock is held. */
static int write_fill(struct fs *fs, struct write *w, uint64_t size)
{
	uint64_t end = w->off + w->len;
	for (uint64_t b = w->first; b < w->end; b += MAX(w->end - w->first - 1, 1)) {
		uint64_t start = b << BLOCK_SHIFT;
		struct wb_block *spare = w->spare[b - w->first];
		if (w->off <= start && end >= start + BLOCK_BYTES)
			continue;
		if (start >= size || (w->off <= start && end >= size)) {
			memset(spare->data, 0, BLOCK_BYTES);
			continue;
		}
		int r = read_block(fs, w->i->ino, b, spare);
		if (r)
			return r;
	}
	return 0;
}

static int write_locked(struct fs *fs, struct write *w, struct wb_block **tail)
{
	uint64_t size;
	int r = size_of(fs, w->i->ino, &size);
	if (r)
		return r;
	/* The end moves over bytes that are not written: what is behind it there would come to
	 * light. */
	if (w->off > size)
		r = extend_tail(fs, w->i, size, tail);
	if (r == 0)
		r = write_fill(fs, w, size);
	if (r == 0)
		r = fs_atom(fs, ATOM_WRITE | ATOM_LOCKED | (w->flags & FS_WRITE_KILL_PRIV ? ATOM_FREES : 0),
			    write_atom, w);
	return r;
}

static int write_piece(struct fs *fs, struct inode *i, uint64_t off, const char *data, unsigned len,
		       unsigned flags)
{
	struct write w = {.i = i, .off = off, .len = len, .data = data, .flags = flags};
	struct spares spares;
	w.first = off >> BLOCK_SHIFT;
	w.end = DIV_ROUND_UP(off + len, BLOCK_BYTES);
	unsigned count = (unsigned)(w.end - w.first);
	int r = spares_get(fs, &spares, count + 1);
	if (r)
		return r;
	w.spare = spares.b;
	bool in_turn = writeback_space_enter(fs, false);
	for (int t = 0; t < SPACE_TRIES_MAX; t++) {
		if (!spares.b[count])
			spares.b[count] = writeback_spare(fs); /* used up by the last try */
		if (!spares.b[count]) {
			r = -ENOMEM;
			break;
		}
		co_rwlock_write(&i->lock);
		r = write_locked(fs, &w, &spares.b[count]);
		co_rwlock_unlock(&i->lock);
		if (r != -ENOSPC)
			break;
		if (!in_turn)
			in_turn = writeback_space_enter(fs, true);
		if (!writeback_make_space(fs))
			break;
	}
	if (in_turn)
		writeback_space_leave(fs);
	spares_put(fs, &spares);
	return r;
}

int fs_write(struct fs *fs, uint64_t ino, uint64_t off, const void *data, size_t len,
	     unsigned flags)
{
	size_t piece = WRITE_BYTES_MAX;
	int r = 0;
	if (fs->read_only)
		return -EROFS;
	if (off > FS_FILE_BYTES_MAX || len > FS_FILE_BYTES_MAX - off)
		return -EFBIG;
	struct inode *i = inode_pin(fs, ino);
	if (!i)
		return -ENOMEM;
	for (size_t at = 0; at < len && r == 0;) {
		/* Cut at block boundaries, so that no block is filled twice. */
		size_t n = MIN(len - at, piece - (off + at) % BLOCK_BYTES);
		r = write_piece(fs, i, off + at, (const char *)data + at, (unsigned)n, flags);
		if (r == -ENOSPC && n > SMALL_BYTES) {
			/* A large piece asks for much at once: the last space goes to small ones. */
			piece = SMALL_BYTES;
			r = 0;
			continue;
		}
		at += n;
	}
	inode_unpin(fs, i);
	writeback_kick(fs);
	return r;
}

/* ---- attributes, and with them the size ---- */

struct setattr {
	struct inode *i;
	const struct fs_attr *attr;
	unsigned set;
	bool more;	 /* extents are left behind the end */
	bool keep_times; /* those of who asks come by themselves */
	struct fs_attr ret;
};

/* The inline data shrinks with the file, so that nothing old is behind the end. */
struct inline_cut {
	bool any;
	unsigned len;
	uint8_t data[INLINE_BYTES_MAX];
};

static int inline_cut_prepare(struct fs *fs, uint64_t ino, uint64_t size, struct inline_cut *cut)
{
	struct bt_value v;
	cut->any = false;
	int r = bt_get(fs, inline_key(ino), &v);
	if (r)
		return r == -ENOENT ? 0 : r;
	if (v.len > INLINE_BYTES_MAX)
		return -EBADMSG;
	if (v.len <= size)
		return 0;
	cut->any = true;
	cut->len = (unsigned)size;
	memcpy(cut->data, v.data, cut->len);
	return bt_prepare(fs, inline_key(ino), cut->len);
}

static void inline_cut_apply(struct fs *fs, uint64_t ino, const struct inline_cut *cut)
{
	if (!cut->any)
		return;
	if (cut->len)
		bt_put(fs, inline_key(ino), cut->data, cut->len);
	else
		bt_del(fs, inline_key(ino));
}

static void set_times(struct fs *fs, struct inode_disk *d, const struct setattr *s)
{
	struct timespec now;
	if (s->keep_times)
		return;
	inode_now(fs, &now);
	if (s->set & FS_SET_ATIME_NOW)
		d->atime = time_to_disk(now);
	else if (s->set & FS_SET_ATIME)
		d->atime = time_to_disk(s->attr->atime);
	if (s->set & FS_SET_MTIME)
		d->mtime = time_to_disk(s->attr->mtime);
	else if (s->set & (FS_SET_MTIME_NOW | FS_SET_SIZE))
		d->mtime = time_to_disk(now);
	d->ctime = time_to_disk(s->set & FS_SET_CTIME ? s->attr->ctime : now);
}

/* Returns whether capabilities are to go as well. */
static bool set_owner(struct inode_disk *d, const struct setattr *s)
{
	bool drop = s->set & FS_SET_KILL_SUIDGID;
	if (s->set & (FS_SET_UID | FS_SET_GID))
		drop = true;
	if (s->set & FS_SET_UID)
		d->uid = to_le32(s->attr->uid);
	if (s->set & FS_SET_GID)
		d->gid = to_le32(s->attr->gid);
	if (drop)
		(void)inode_drop_suid(d); /* stored in any case */
	if (s->set & FS_SET_MODE)
		d->mode = to_le32((inode_mode(d) & S_IFMT) | (s->attr->mode & 07777));
	return drop && S_ISREG(inode_mode(d));
}

static int setattr_atom(struct fs *fs, void *arg)
{
	struct setattr *s = arg;
	uint64_t ino = s->i->ino, new = s->attr->size, size = 0;
	struct inode_disk d;
	struct extent_edit edit;
	struct inline_cut cut = {.any = false};
	bool caps = false, resize = s->set & FS_SET_SIZE, shrink = false;
	s->more = false;
	int r = inode_load(fs, ino, &d);
	if (r == 0 && resize)
		r = want_regular(&d);
	if (r)
		return r;
	if (set_owner(&d, s))
		r = xattr_caps_prepare(fs, ino, &caps);
	set_times(fs, &d, s);
	if (r == 0)
		r = inode_prepare(fs, ino);
	if (r == 0 && resize) {
		size = inode_size(fs, ino, &d);
		/* Equal too: what fallocate put behind the end goes. */
		shrink = new <= size;
	}
	if (r == 0 && shrink) {
		r = extent_plan(fs, ino, DIV_ROUND_UP(new, BLOCK_BYTES), EXTENT_TO_END, LBA_HOLE,
				&edit);
		s->more = r == 0 && !edit.complete;
		if (s->more)
			r = bt_prepare(fs, orphan_key(ino), 0);
		if (r == 0)
			r = inline_cut_prepare(fs, ino, new, &cut);
	}
	if (r)
		return r;
	if (shrink) {
		extent_apply(fs, &edit);
		extent_account(&d, &edit);
		inline_cut_apply(fs, ino, &cut);
		writeback_drop(fs, s->i, DIV_ROUND_UP(new, BLOCK_BYTES), UINT64_MAX);
		writeback_cut(s->i, new);
		d.size = to_le64(MIN(from_le64(d.size), new));
		if (s->more) {
			bt_put(fs, orphan_key(ino), "", 0);
			s->i->truncating = true;
		}
	}
	if (resize && s->i->over)
		s->i->size = new;
	else if (resize)
		d.size = to_le64(new);
	if (caps)
		xattr_caps_drop(fs, ino);
	inode_store(fs, ino, &d);
	inode_attr(fs, ino, &d, &s->ret);
	return 0;
}

static int setattr_size(struct fs *fs, struct setattr *s)
{
	struct spares spares;
	uint64_t size;
	int r = spares_get(fs, &spares, 1);
	if (r)
		return r;
	co_rwlock_write(&s->i->lock);
	r = size_of(fs, s->i->ino, &size);
	if (r == 0 && s->attr->size > size)
		r = extend_tail(fs, s->i, size, &spares.b[0]);
	if (r == 0)
		r = fs_atom(fs, ATOM_WRITE | ATOM_FREES, setattr_atom, s);
	if (r == 0 && s->more) {
		r = extent_cut_tail(fs, s->i->ino);
		s->i->truncating = false;
		struct fs_attr attr;
		if (r == 0 && fs_getattr(fs, s->i->ino, &attr) == 0)
			s->ret = attr;
	}
	co_rwlock_unlock(&s->i->lock);
	spares_put(fs, &spares);
	return r;
}

int fs_setattr(struct fs *fs, uint64_t ino, const struct fs_attr *attr, unsigned set,
	       struct fs_attr *ret)
{
	struct setattr s = {.attr = attr, .set = set};
	if (fs->read_only)
		return -EROFS;
	if ((set & FS_SET_SIZE) && attr->size > FS_FILE_BYTES_MAX)
		return -EFBIG;
	s.i = inode_pin(fs, ino);
	if (!s.i)
		return -ENOMEM;
	int r = set & FS_SET_SIZE ? setattr_size(fs, &s)
				  : fs_atom(fs, ATOM_WRITE | ATOM_FREES, setattr_atom, &s);
	inode_unpin(fs, s.i);
	if (r == 0 && ret)
		*ret = s.ret;
	return r;
}

/* ---- fallocate ---- */

struct range {
	struct inode *i;
	uint64_t at, end; /* blocks; at moves on */
	uint64_t count;
	uint64_t size;
	unsigned scanned; /* extents by this atom */
	bool keep_times;
};

/* Counts the blocks of the range that have neither a place nor a promise nor a reservation.
 * Read-only, so it may go on where it was. */
static int count_atom(struct fs *fs, void *arg)
{
	struct range *g = arg;
	while (g->at < g->end && g->scanned++ < SCAN_EXTENTS_MAX) {
		struct extent x;
		int r = extent_find(fs, g->i->ino, g->at, &x);
		if (r && r != -ENOENT)
			return r;
		uint64_t hole_end = r == -ENOENT ? g->end : MIN(g->end, x.off);
		if (hole_end > g->at)
			g->count += hole_end - g->at;
		g->at = r == -ENOENT ? g->end : MAX(extent_end(&x), g->at + 1);
	}
	return 0;
}

/* Of `holes` blocks in [first, end): not those that are dirty and have a reservation. */
static bool holes_fit(struct fs *fs, struct inode *i, uint64_t first, uint64_t end, uint64_t holes)
{
	uint64_t block;
	for (uint64_t b = first; holes && writeback_next_dirty(i, b, &block) && block < end;
	     b = block + 1)
		holes -= writeback_find(i, block)->fresh;
	return holes <= writeback_avail(fs);
}

static int range_fits(struct fs *fs, struct inode *i, uint64_t first, uint64_t end)
{
	struct range g = {.i = i, .at = first, .end = end};
	while (g.at < end) {
		g.scanned = 0;
		int r = fs_atom(fs, ATOM_READ, count_atom, &g);
		if (r)
			return r;
	}
	return holes_fit(fs, i, first, end, g.count) ? 0 : -ENOSPC;
}

/* Promises the next hole of the range. */
static int promise_atom(struct fs *fs, void *arg)
{
	struct range *g = arg;
	uint64_t ino = g->i->ino, at = g->at;
	struct inode_disk d;
	struct extent_edit e;
	struct extent x;
	struct bt_value v;
	uint64_t hole_end = g->end;
	int r = inode_load(fs, ino, &d);
	if (r)
		return r;
	if (at == 0) {
		r = bt_get(fs, inline_key(ino), &v);
		if (r == 0)
			at = 1; /* came back since move_out: it has a place, if a small one */
		else if (r != -ENOENT)
			return r;
	}
	/* What has a place keeps it: the inode's lock is held. */
	for (; at < g->end; g->at = at = extent_end(&x)) {
		if (g->scanned++ == SCAN_EXTENTS_MAX)
			return 0;
		r = extent_find(fs, ino, at, &x);
		if (r && r != -ENOENT)
			return r;
		hole_end = r == -ENOENT ? g->end : MIN(g->end, x.off);
		if (hole_end > at)
			break;
	}
	if (at >= g->end) {
		g->at = g->end;
		return 0;
	}
	hole_end = MIN(hole_end, at + EXTENT_BLOCKS_MAX);
	if (!holes_fit(fs, g->i, at, hole_end, hole_end - at))
		return -ENOSPC;
	r = extent_plan(fs, ino, at, hole_end - at, LBA_NONE, &e);
	if (r == 0)
		r = inode_prepare(fs, ino);
	if (r)
		return r;
	if (!g->keep_times)
		inode_times_now(fs, &d, false);
	extent_apply(fs, &e);
	extent_account(&d, &e);
	writeback_unreserve(fs, g->i, at, e.end);
	inode_store(fs, ino, &d);
	g->at = e.end;
	return 0;
}

/* Takes away the next part of the range; with `promise`, in exchange for promises. */
static int clear_part(struct fs *fs, struct range *g, uint64_t lba)
{
	uint64_t ino = g->i->ino, first = g->at;
	struct inode_disk d;
	struct extent_edit e;
	struct bt_value v;
	int r = inode_load(fs, ino, &d);
	if (r == 0)
		r = extent_plan(fs, ino, first, g->end - first, lba, &e);
	bool was_inline = false;
	if (r == 0 && first == 0) {
		r = bt_get(fs, inline_key(ino), &v);
		was_inline = r == 0;
		if (r == 0)
			r = bt_prepare(fs, inline_key(ino), 0);
		else if (r == -ENOENT)
			r = 0;
	}
	if (r == 0)
		r = inode_prepare(fs, ino);
	if (r)
		return r;
	if (!g->keep_times)
		inode_times_now(fs, &d, true);
	writeback_drop(fs, g->i, first, e.end);
	extent_apply(fs, &e);
	extent_account(&d, &e);
	if (was_inline)
		bt_del(fs, inline_key(ino));
	inode_store(fs, ino, &d);
	g->at = e.end;
	return 0;
}

static int punch_atom(struct fs *fs, void *arg)
{
	return clear_part(fs, arg, LBA_HOLE);
}

static int zero_range_atom(struct fs *fs, void *arg)
{
	return clear_part(fs, arg, LBA_NONE);
}

static int for_range(struct fs *fs, struct inode *i, uint64_t first, uint64_t end, bool keep_times,
		     unsigned kind, fs_atom_fn *fn)
{
	struct range g = {.i = i, .at = first, .end = end, .keep_times = keep_times};
	int r = 0;
	while (r == 0 && g.at < g.end) {
		g.scanned = 0;
		r = fs_atom(fs, kind, fn, &g);
	}
	return r;
}

/* The parts of [off, end) that do not fill a block. */
static int zero_edges(struct fs *fs, struct inode *i, uint64_t off, uint64_t end,
		      struct wb_block **spare)
{
	uint64_t head = off >> BLOCK_SHIFT, tail = end >> BLOCK_SHIFT;
	int r = 0;
	if (off % BLOCK_BYTES)
		r = zero_part(fs, i, head, off % BLOCK_BYTES,
			      head == tail ? end % BLOCK_BYTES : BLOCK_BYTES, &spare[0]);
	if (r == 0 && end % BLOCK_BYTES && (tail != head || off % BLOCK_BYTES == 0))
		r = zero_part(fs, i, tail, 0, end % BLOCK_BYTES, &spare[1]);
	return r;
}

/* Block 0 of a tiny file becomes a dirty block that will not go into the tree again. */
static int move_out_atom(struct fs *fs, void *arg)
{
	struct zero *z = arg;
	struct inode_disk d;
	struct bt_value v;
	int r = bt_get(fs, inline_key(z->i->ino), &v);
	if (r)
		return r == -ENOENT ? 0 : r;
	r = inode_load(fs, z->i->ino, &d);
	if (r == 0)
		r = writeback_prepare(z->i, 0);
	if (r)
		return r;
	struct wb_block *b = writeback_find(z->i, 0);
	if (!b || !(b->fresh || b->took)) {
		if (!writeback_avail(fs))
			return -ENOSPC;
		if (b) {
			writeback_reserve(fs, b);
		} else {
			over_begin(z->i, &d);
			(*z->spare)->meta = true;
			writeback_add(fs, z->i, 0, *z->spare, true);
			*z->spare = NULL;
		}
	}
	z->i->never_inline = true;
	return 0;
}

/* What is promised must not depend on a place in the tree, where it cannot grow. No lock is held.
 */
static int move_out(struct fs *fs, struct inode *i)
{
	struct spares spares;
	int r = spares_get(fs, &spares, 1);
	if (r)
		return r;
	struct zero z = {.i = i, .spare = &spares.b[0]};
	co_rwlock_write(&i->lock);
	r = read_block(fs, i->ino, 0, spares.b[0]);
	if (r == 0)
		r = fs_atom(fs, ATOM_WRITE | ATOM_LOCKED, move_out_atom, &z);
	co_rwlock_unlock(&i->lock);
	spares_put(fs, &spares);
	if (r == 0 && i->never_inline && i->dirty_count)
		r = writeback_write(fs, i, false);
	return r;
}

static int fallocate_locked(struct fs *fs, struct inode *i, int mode, uint64_t off, uint64_t len,
			    struct wb_block **spare)
{
	uint64_t size, end = off + len;
	uint64_t first = off >> BLOCK_SHIFT, last = DIV_ROUND_UP(end, BLOCK_BYTES);
	uint64_t full_first = DIV_ROUND_UP(off, BLOCK_BYTES), full_end = end >> BLOCK_SHIFT;
	bool punch = mode & FALLOC_FL_PUNCH_HOLE, zero = mode & FALLOC_FL_ZERO_RANGE;
	bool keep_times = mode & FS_FALLOC_KEEP_TIMES;
	int r = size_of(fs, i->ino, &size);
	if (r)
		return r;
	if (!punch)
		r = range_fits(fs, i, first, last);
	/* Bytes behind the end are nobody's: whoever moves the end zeroes them. */
	if (r == 0 && (punch || zero) && off < size)
		r = zero_edges(fs, i, off, MIN(end, size), spare);
	/* It cuts extents in two, so that there are more of them: the last metadata is left to who deletes all of a file. */
	if (r == 0 && (punch || zero) && full_first < full_end)
		r = for_range(fs, i, full_first, full_end, keep_times, ATOM_WRITE | ATOM_INTERNAL,
			      punch ? punch_atom : zero_range_atom);
	if (r == 0 && !punch)
		r = for_range(fs, i, first, last, keep_times, ATOM_WRITE | ATOM_LOCKED,
			      promise_atom);
	if (r || (mode & FALLOC_FL_KEEP_SIZE) || end <= size)
		return r;
	struct fs_attr attr = {.size = end};
	struct setattr s = {
	    .i = i, .attr = &attr, .set = FS_SET_SIZE, .keep_times = keep_times};
	r = extend_tail(fs, i, size, &spare[2]);
	return r ? r : fs_atom(fs, ATOM_WRITE | ATOM_LOCKED, setattr_atom, &s);
}

int fs_fallocate(struct fs *fs, uint64_t ino, int mode, uint64_t off, uint64_t len)
{
	struct spares spares;
	int what = mode & ~FS_FALLOC_KEEP_TIMES;
	if (what != 0 && what != FALLOC_FL_KEEP_SIZE &&
	    what != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) && what != FALLOC_FL_ZERO_RANGE &&
	    what != (FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE))
		return -EOPNOTSUPP;
	if (!len)
		return -EINVAL;
	if (off > FS_FILE_BYTES_MAX || len > FS_FILE_BYTES_MAX - off)
		return -EFBIG;
	if (fs->read_only)
		return -EROFS;
	struct inode *i = inode_pin(fs, ino);
	if (!i)
		return -ENOMEM;
	int r = 0;
	for (int t = 0; t < SPACE_TRIES_MAX; t++) {
		r = off < BLOCK_BYTES && !(mode & FALLOC_FL_PUNCH_HOLE) ? move_out(fs, i) : 0;
		if (r == 0)
			r = spares_get(fs, &spares, 3);
		if (r == 0) {
			co_rwlock_write(&i->lock);
			r = fallocate_locked(fs, i, mode, off, len, spares.b);
			co_rwlock_unlock(&i->lock);
			spares_put(fs, &spares);
		}
		if (r != -ENOSPC || !writeback_make_space(fs))
			break;
	}
	inode_unpin(fs, i);
	return r;
}

/* ---- seeking ---- */

struct seek {
	uint64_t ino, off;
	bool hole;
	uint64_t at; /* block: everything before it is what is not looked for */
	uint64_t ret;
	unsigned scanned; /* extents by this atom */
	bool more;	  /* the next atom goes on at `at` */
};

/* The first block >= s->at with data of its own. -ENXIO: none. */
static int next_data(struct fs *fs, struct seek *s, uint64_t *ret)
{
	uint64_t ino = s->ino, at = s->at;
	struct inode *i = inode_find(fs, ino);
	struct bt_value v;
	uint64_t dirty = UINT64_MAX;
	if (i)
		(void)writeback_next_dirty(i, at, &dirty); /* none: stays behind everything */
	int r = at == 0 ? bt_get(fs, inline_key(ino), &v) : -ENOENT;
	if (r != -ENOENT) {
		*ret = 0;
		return r;
	}
	for (uint64_t b = at; b < dirty;) {
		struct extent x;
		s->more = s->scanned++ == SCAN_EXTENTS_MAX;
		if (s->more)
			return 0;
		r = extent_find(fs, ino, b, &x);
		if (r && r != -ENOENT)
			return r;
		if (r == -ENOENT)
			break;
		if (x.lba != LBA_NONE) {
			*ret = MIN(MAX(x.off, b), dirty);
			return 0;
		}
		b = extent_end(&x);
		s->at = MIN(b, dirty);
	}
	*ret = dirty;
	return dirty == UINT64_MAX ? -ENXIO : 0;
}

/* Blocks from `at` on that are data of one kind: *ret is behind them; *ret == at: a hole. */
static int data_end(struct fs *fs, uint64_t ino, uint64_t at, uint64_t *ret)
{
	struct inode *i = inode_find(fs, ino);
	struct bt_value v;
	struct extent x;
	*ret = at;
	if (i && writeback_find(i, at)) {
		*ret = at + 1;
		return 0;
	}
	int r = extent_find(fs, ino, at, &x);
	if (r == 0 && x.off <= at) {
		if (x.lba != LBA_NONE)
			*ret = extent_end(&x);
		return 0;
	}
	if (r && r != -ENOENT)
		return r;
	if (at != 0)
		return 0;
	r = bt_get(fs, inline_key(ino), &v);
	*ret = r == 0;
	return r == -ENOENT ? 0 : r;
}

static int seek_atom(struct fs *fs, void *arg)
{
	struct seek *s = arg;
	struct inode_disk d;
	uint64_t next = 0;
	s->more = false;
	int r = inode_load(fs, s->ino, &d);
	if (r == 0)
		r = want_regular(&d);
	if (r)
		return r;
	uint64_t size = inode_size(fs, s->ino, &d), blocks = DIV_ROUND_UP(size, BLOCK_BYTES);
	if (s->off >= size)
		return -ENXIO;
	if (!s->hole) {
		r = next_data(fs, s, &next);
		if (r || s->more)
			return r;
		if (next >= blocks)
			return -ENXIO;
		s->ret = MAX(next << BLOCK_SHIFT, s->off);
		return 0;
	}
	/* A file may have many pieces: goes on where it was when a node was missing. */
	while (s->at < blocks) {
		s->more = s->scanned++ == SCAN_EXTENTS_MAX;
		if (s->more)
			return 0;
		r = data_end(fs, s->ino, s->at, &next);
		if (r)
			return r;
		if (next == s->at)
			break;
		s->at = next;
	}
	s->ret = MIN(MAX(s->at << BLOCK_SHIFT, s->off), size);
	return 0;
}

int fs_lseek(struct fs *fs, uint64_t ino, uint64_t off, int whence, uint64_t *ret)
{
	struct seek s = {
	    .ino = ino, .off = off, .hole = whence == SEEK_HOLE, .at = off >> BLOCK_SHIFT};
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	int r;
	do {
		s.scanned = 0;
		r = fs_atom(fs, ATOM_READ, seek_atom, &s);
	} while (r == 0 && s.more);
	if (r == 0)
		*ret = s.ret;
	return r;
}

/* ---- making it last ---- */

static int errseq_check(struct fs *fs, uint64_t ino, struct fs_errseq *err, bool advance)
{
	struct inode *i = inode_find(fs, ino);
	if (!err || !i || i->err_seq == err->seen || BREAK(fs_errseq))
		return 0;
	if (advance)
		err->seen = i->err_seq;
	return i->err;
}

static int exists_atom(struct fs *fs, void *arg)
{
	struct inode_disk d;

	return inode_load(fs, *(uint64_t *)arg, &d);
}

int fs_fsync(struct fs *fs, uint64_t ino, bool datasync, struct fs_errseq *err)
{
	int r = 0;
	struct inode *i = inode_find(fs, ino);
	if (!i) {
		/* Nothing of it is in memory. There may be such a file all the same, and then it is to last. */
		r = fs_atom(fs, ATOM_READ, exists_atom, &ino);
		if (r)
			return r;
	}
	if (i && i->dirty_count && !BREAK(fs_fsync)) {
		i->pins++;
		r = writeback_write(fs, i, true);
		inode_unpin(fs, i);
	}
	/* Names and attributes are in the tree before the commit, and it keeps their order. */
	int c = fs->read_only ? 0 : raid_commit(fs->raid);
	int e = errseq_check(fs, ino, err, true);
	return r ? r : c ? c : e;
}

int fs_flush(struct fs *fs, uint64_t ino, struct fs_errseq *err)
{
	writeback_kick(fs);
	return errseq_check(fs, ino, err, false);
}

int fs_sync(struct fs *fs)
{
	if (fs->read_only)
		return 0;
	int r = writeback_write(fs, NULL, true);
	int c = raid_commit(fs->raid);
	return r ? r : c;
}
