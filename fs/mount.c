/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * From an empty volume to a filesystem, and from a volume to a mounted one and back.
 *
 * fs_format writes two blocks in one transaction: the superblock at LBA_ROOT, and a leaf with the
 * root directory's inode. LBA_ROOT is live with zeros on a fresh volume, so a format cut short is
 * no filesystem rather than half of one.
 *
 * Order of mounting: superblock (magic, checksum, identity, features) before anything else is
 * believed; hooks before the volume's timers may commit; orphans last, since freeing them needs
 * everything. Unmounting goes the other way round: the flusher stops, orphans go, one commit, then
 * the hooks are taken away, because the volume stays open a little longer than we do.
 */
#include "node.h"
#include "inode.h"
#include "writeback.h"
#include <time.h>

#define SUPER_VERSION		 1u
#define NODE_CACHE_BYTES_DEFAULT (64ull << 20)
#define READ_TRIES_MAX		 16 /* times that memory is lost to a hung device */
/* Inodes that a free metadata block is taken to hold, for statfs: inode, name and a little more. */
#define INODES_PER_BLOCK 12u

static const char *const incompat_names[64] = {0}; /* by bit; none yet */

/* ---- formatting ---- */

static struct time_disk now_disk(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (struct time_disk){.s = to_le64((uint64_t)t.tv_sec),
				  .ns = to_le32((uint32_t)t.tv_nsec)};
}

static void root_leaf(struct node *n)
{
	struct inode_disk root = {
	    .mode = to_le32(S_IFDIR | 0755),
	    .links = to_le32(2),
	    .generation = to_le32(1),
	    .parent = to_le64(FS_ROOT_INO),
	};
	root.atime = root.mtime = root.ctime = root.btime = now_disk();
	node_init_disk(&n->disk, 0);
	n->used = 0;
	node_insert(n, 0, (struct key){FS_ROOT_INO, KEY_OFF(TYPE_INODE, 0)}, &root, sizeof(root));
}

int fs_format(struct raid *raid)
{
	struct raid_info info;
	raid_info(raid, &info);
	struct node *n = mem_zalloc(sizeof(*n));
	struct super_disk *super = mem_zalloc(sizeof(*super));
	int e = -ENOMEM;
	if (!n || !super)
		goto out;
	e = raid_meta_ensure(raid, 1, 0);
	if (e)
		goto out;
	uint64_t lba = raid_alloc_meta(raid, 0);
	if (lba == LBA_NONE) {
		e = -ENOSPC;
		goto out;
	}
	root_leaf(n);
	super->version = to_le32(SUPER_VERSION);
	super->height = to_le32(1);
	super->root = to_le64(lba);
	super->ino_next = to_le64(FS_INODE_FIRST);
	super->inodes = to_le64(1);
	super->meta_blocks = to_le64(2);
	super->hash_seed = to_le64(loop_random(co_loop()));
	super->compat = to_le64(FS_FEATURES_COMPAT);
	super->ro_compat = to_le64(FS_FEATURES_RO_COMPAT);
	super->incompat = to_le64(FS_FEATURES_INCOMPAT);
	super->created_s = now_disk().s;
	meta_seal(&n->disk, NODE_MAGIC, &info.fs, lba, 1);
	meta_seal(super, SUPER_MAGIC, &info.fs, LBA_ROOT, 1);
	raid_stage_live(raid, lba, 1);
	e = raid_stage_image(raid, lba, &n->disk);
	if (e == 0)
		e = raid_stage_image(raid, LBA_ROOT, super);
	if (e == 0)
		e = raid_commit(raid);
out:
	mem_free(n);
	mem_free(super);
	return e;
}

/* ---- the superblock ---- */

const char *super_wrong(const struct super_disk *s, const struct uuid *fs)
{
	const char *why = meta_wrong(s, SUPER_MAGIC, fs, LBA_ROOT);
	if (why)
		return why;
	for (size_t i = 0; i < sizeof(s->reserved); i++)
		if (s->reserved[i])
			return "a reserved field is not 0";
	if (from_le32(s->height) < 1 || from_le32(s->height) > TREE_HEIGHT_MAX)
		return "height of the tree out of range";
	if (from_le64(s->root) == LBA_ROOT || from_le64(s->root) == LBA_NONE)
		return "root of the tree out of range";
	if (from_le64(s->ino_next) < FS_INODE_FIRST || from_le64(s->ino_next) >= BACKREF_INO)
		return "next inode number out of range";
	return NULL;
}

int super_unsupported(const struct super_disk *s, bool *ret_read_only)
{
	if (from_le32(s->version) != SUPER_VERSION) {
		log_error("filesystem version %u is not supported, this program knows %u",
			  from_le32(s->version), SUPER_VERSION);
		return -ENOTSUP;
	}
	uint64_t unknown = from_le64(s->incompat) & ~FS_FEATURES_INCOMPAT;
	for (unsigned bit = 0; bit < 64; bit++)
		if (unknown >> bit & 1)
			log_error("filesystem feature %s (bit %u) is not supported by this version",
				  incompat_names[bit] ? incompat_names[bit] : "unknown", bit);
	if (unknown)
		return -ENOTSUP;
	unknown = from_le64(s->ro_compat) & ~FS_FEATURES_RO_COMPAT;
	if (unknown)
		log_warning("filesystem has features %#llx that this version can only read: "
			    "mounted read-only",
			    (unsigned long long)unknown);
	*ret_read_only = unknown != 0;
	return 0;
}

int super_read(struct raid *raid, struct super_disk *ret)
{
	int e = -EIO;
	for (int i = 0; i < READ_TRIES_MAX; i++) {
		void *data = buf_get_wait(BLOCK_BYTES);
		e = raid_read(raid, LBA_ROOT, 1, data);
		if (e == 0)
			memcpy(ret, data, sizeof(*ret));
		buf_put(data);
		if (e != -EAGAIN)
			return e;
	}
	return -EIO;
}

/* ---- hooks ---- */

struct lost {
	uint64_t lba;
	uint64_t ino, off;
};

static int lost_atom(struct fs *fs, void *arg)
{
	struct lost *l = arg;
	struct key at = {BACKREF_INO | LBA_CHUNK(l->lba), KEY_OFF(TYPE_BACKREF, LBA_BLOCK(l->lba))},
		   found;
	struct bt_value v;
	int e = bt_le(fs, at, &found, &v);
	if (e)
		return e;
	const struct backref_disk *b = v.data;
	if (found.ino != at.ino || KEY_TYPE(found) != TYPE_BACKREF || v.len != sizeof(*b))
		return -ENOENT;
	uint64_t in = LBA_BLOCK(l->lba) - KEY_OFFSET(found);
	if (in >= from_le32(b->count))
		return -ENOENT;
	l->ino = from_le64(b->ino);
	l->off = from_le64(b->off) + in;
	return 0;
}

static void name_lost(struct fs *fs, uint64_t lba, uint32_t count)
{
	uint64_t last_ino = 0;
	for (uint32_t i = 0; i < count && !fs->leaving; i++) {
		struct lost l = {.lba = lba + i};
		int e = fs_atom(fs, ATOM_READ, lost_atom, &l);
		if (e) {
			log_error("lost block %#llx belongs to no file: metadata or free",
				  (unsigned long long)l.lba);
			continue;
		}
		char path[512];
		if (l.ino != last_ino)
			fs_path(fs, l.ino, path, sizeof(path));
		last_ino = l.ino;
		log_error("%s: lost 4096 bytes at offset %llu (block %#llx)", path,
			  (unsigned long long)(l.off << BLOCK_SHIFT), (unsigned long long)l.lba);
	}
}

static void lost_block(void *ctx, uint64_t lba, uint32_t count)
{
	struct fs *fs = ctx;
	fs->naming++;
	name_lost(fs, lba, count);
	if (--fs->naming == 0)
		co_cond_wake_all(&fs->named);
}

static const struct raid_hooks hooks = {
    .pre_commit = nodes_pre_commit,
    .dirty_blocks = nodes_dirty_blocks,
    .lost_block = lost_block,
};
/* While nobody is mounted. */
static const struct raid_hooks no_hooks = {0};

/*
 * The volume's jobs outlive us, and one of them may be in the middle of naming what it lost: that one is waited
 * for. It reads the tree, and each read ends.
 */
static void hooks_away(struct fs *fs)
{
	fs->leaving = true;
	raid_set_hooks(fs->raid, &no_hooks, NULL);
	while (fs->naming)
		co_cond_wait(&fs->named);
}

/* ---- mounting ---- */

static void wall_clock(struct timespec *ret)
{
	clock_gettime(CLOCK_REALTIME, ret);
}

static int load_super(struct fs *fs)
{
	int e = super_read(fs->raid, &fs->super);
	if (e) {
		log_error("superblock: cannot be read: %s", strerror(-e));
		return e;
	}
	const struct super_disk *s = &fs->super;
	bool read_only = false;
	if (from_le64(s->head.magic) == SUPER_MAGIC && from_le64(s->head.sum) == meta_sum(s)) {
		e = super_unsupported(s, &read_only);
		if (e)
			return e;
	}
	const char *why = super_wrong(s, &fs->uuid);
	if (why) {
		log_error("superblock: %s", why);
		return -EBADMSG;
	}
	fs->read_only |= read_only;
	fs->counters = (struct fs_counters){
	    .ino_next = from_le64(s->ino_next),
	    .inodes = from_le64(s->inodes),
	    .data_blocks = from_le64(s->data_blocks),
	    .meta_blocks = from_le64(s->meta_blocks),
	    .prealloc_blocks = from_le64(s->prealloc_blocks),
	};
	fs->root_lba = from_le64(s->root);
	fs->height = from_le32(s->height);
	fs->hash_seed = from_le64(s->hash_seed);
	fs->gen = from_le64(s->head.gen);
	return 0;
}

/*
 * The flusher has stopped, or never ran. The reaper (inodes_exit waits for it) may still look at
 * the write buffer, and inodes hang in its lists, so that one goes later.
 */
static void free_all(struct fs *fs)
{
	if (fs->inodes)
		inodes_exit(fs);
	if (fs->wb)
		writeback_exit(fs);
	nodes_exit(fs);
	mem_free(fs);
}

int fs_mount(struct raid *raid, const struct fs_options *options, struct fs **ret)
{
	struct fs *fs = mem_zalloc(sizeof(*fs));
	if (!fs)
		return -ENOMEM;
	struct raid_info info;
	raid_info(raid, &info);
	co_cond_init(&fs->named);
	fs->loop = co_loop();
	fs->raid = raid;
	fs->uuid = info.fs;
	if (options)
		fs->options = *options;
	if (!fs->options.dirty_bytes_max)
		fs->options.dirty_bytes_max = buf_pool_bytes() / 4;
	if (!fs->options.node_cache_bytes)
		fs->options.node_cache_bytes = NODE_CACHE_BYTES_DEFAULT;
	if (!fs->options.now)
		fs->options.now = wall_clock;
	fs->read_only = fs->options.read_only || info.read_only;
	int e = load_super(fs);
	if (e == 0)
		e = nodes_init(fs);
	if (e == 0)
		e = inodes_init(fs);
	if (e)
		goto fail;
	if (!fs->read_only) {
		fs->super.mount_count = to_le32(from_le32(fs->super.mount_count) + 1);
		fs->super_dirty = true;
	}
	raid_set_hooks(raid, &hooks, fs);
	e = writeback_init(fs);
	if (e == 0)
		e = raid_start(raid);
	if (e == 0)
		e = cleaner_init(fs);
	if (e) {
		if (fs->wb)
			(void)writeback_stop(fs); /* nothing was written yet; e says what failed */
		hooks_away(fs);
		goto fail;
	}
	if (!fs->read_only && !BREAK(fs_reap)) {
		int r = inodes_reap_orphans(fs);
		if (r)
			log_warning("some files that nobody names could not be freed: %s",
				    strerror(-r));
	}
	*ret = fs;
	return 0;
fail:
	free_all(fs);
	return e;
}

int fs_unmount(struct fs *fs)
{
	cleaner_exit(fs);
	int e = writeback_stop(fs);
	if (!fs->read_only) {
		inodes_reap_wait(fs);
		/* What cannot be freed now stays on the list for the next mount. */
		if (raid_error(fs->raid) == 0)
			(void)inodes_reap_orphans(fs);
		int r = raid_commit(fs->raid);
		e = e ? e : r;
	}
	hooks_away(fs);
	free_all(fs);
	return e;
}

void fs_abandon(struct fs *fs)
{
	/* Nothing more is staged or changed: what the flusher has in hand fails and is given up. */
	hooks_away(fs);
	fs->read_only = true;
	cleaner_exit(fs);
	(void)writeback_stop(fs);
	free_all(fs);
}

void fs_statfs(struct fs *fs, struct fs_stat *ret)
{
	struct raid_space space;
	raid_space(fs->raid, &space);
	/* Promised and buffered blocks are as good as used. */
	uint64_t taken = writeback_reserved_blocks(fs) + fs->counters.prealloc_blocks;
	uint64_t avail = space.data_free > taken ? space.data_free - taken : 0;
	uint64_t meta = space.meta_free + space.meta_potential;
	*ret = (struct fs_stat){
	    .blocks = space.data_total,
	    .blocks_free = MIN(avail + space.data_reserve, space.data_total),
	    .blocks_avail = avail,
	    .files_free = (meta - MIN(meta, writeback_meta_kept(fs))) * INODES_PER_BLOCK,
	    .dirty_bytes = writeback_dirty_bytes(fs),
	};
	ret->files = fs->counters.inodes + ret->files_free;
}
