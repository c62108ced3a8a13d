/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * File data against a model that holds every byte: random writes, truncation, holes, promises,
 * seeks, with write-out, remounts and crashes in between; several files and coroutines at once; one
 * file under many hands; a full volume; failing writes and reads.
 *
 * After a crash a block has one of the contents it had since the last sync, and the file one of its
 * sizes.
 */
#include "fs_world.h"
#include "fs/inode.h"
#include "fs/writeback.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#define FILE_BLOCKS  80u
#define FILE_BYTES   (FILE_BLOCKS * BLOCK_BYTES)
#define VERSIONS_MAX 400u

static const struct fs_cred root_cred = {0, 0, 022};

struct version {
	unsigned block;
	uint8_t bytes[BLOCK_BYTES];
};

struct file {
	uint64_t ino;
	char name[20];
	uint64_t size;
	uint8_t bytes[FILE_BYTES]; /* zero behind size */
	/* since the last sync */
	struct version *versions;
	unsigned version_count;
	uint64_t sizes[VERSIONS_MAX];
	unsigned size_count;
};

static void file_synced(struct file *f)
{
	f->version_count = 0;
	f->size_count = 1;
	f->sizes[0] = f->size;
	for (unsigned b = 0; b < FILE_BLOCKS; b++) {
		struct version *v = &f->versions[f->version_count++];
		v->block = b;
		memcpy(v->bytes, f->bytes + b * BLOCK_BYTES, BLOCK_BYTES);
	}
}

static struct file *file_new(struct world *w, const char *name)
{
	struct fs_attr a;
	struct file *f = calloc(1, sizeof(*f));
	f->versions = calloc(FILE_BLOCKS * (VERSIONS_MAX + 2), sizeof(*f->versions));
	snprintf(f->name, sizeof(f->name), "%s", name);
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &a));
	fs_unref(w->fs, a.ino, 1);
	f->ino = a.ino;
	file_synced(f);
	return f;
}

static void file_free(struct file *f)
{
	free(f->versions);
	free(f);
}

static bool file_full(const struct file *f)
{
	return f->size_count == VERSIONS_MAX;
}

/* Call after each change of [off, end). */
static void file_changed(struct file *f, uint64_t off, uint64_t end)
{
	f->sizes[f->size_count++] = f->size;
	for (unsigned b = (unsigned)(off / BLOCK_BYTES);
	     b < FILE_BLOCKS && (uint64_t)b * BLOCK_BYTES < end; b++) {
		struct version *v = &f->versions[f->version_count++];
		v->block = b;
		memcpy(v->bytes, f->bytes + b * BLOCK_BYTES, BLOCK_BYTES);
	}
}

/* -EAGAIN: as the front end does, with other memory. */
static int read_again(struct world *w, uint64_t ino, uint64_t off, size_t len, uint8_t *out,
		      size_t *ret_len)
{
	int r = -EAGAIN;
	for (int t = 0; t < 50 && r == -EAGAIN; t++) {
		void *data = buf_get_wait(ROUND_UP(len, BLOCK_BYTES) + BLOCK_BYTES), *at;
		r = fs_read(w->fs, ino, off, len, data, &at, ret_len);
		if (r == 0)
			memcpy(out, at, *ret_len);
		buf_put(data);
	}
	return r;
}

static void file_compare(struct world *w, struct file *f, uint64_t off, size_t len)
{
	static uint8_t shared[FILE_BYTES + BLOCK_BYTES];
	uint8_t *out = malloc(sizeof(shared));
	size_t got;
	check_ok(read_again(w, f->ino, off, len, out, &got));
	assert_int_equal(got, off >= f->size ? 0 : MIN(len, f->size - off));
	for (size_t k = 0; k < got; k++)
		if (out[k] != f->bytes[off + k])
			die("%s: byte %llu is %#x, not %#x (size %llu)", f->name,
			    (unsigned long long)(off + k), out[k], f->bytes[off + k],
			    (unsigned long long)f->size);
	free(out);
}

static void file_compare_all(struct world *w, struct file *f)
{
	struct fs_attr a;
	check_ok(fs_getattr(w->fs, f->ino, &a));
	assert_int_equal(a.size, f->size);
	file_compare(w, f, 0, FILE_BYTES);
}

/* The model becomes what the crash left, if that is legal. */
static void file_crashed(struct world *w, struct file *f)
{
	struct fs_attr a;
	size_t got;
	bool legal = false;
	static uint8_t out[FILE_BYTES + BLOCK_BYTES];
	check_ok(fs_getattr(w->fs, f->ino, &a));
	/* A size on the way from one to another: a file that grows is a prefix. */
	uint64_t low = UINT64_MAX, high = 0;
	for (unsigned k = 0; k < f->size_count; k++) {
		low = MIN(low, f->sizes[k]);
		high = MAX(high, f->sizes[k]);
		legal |= f->sizes[k] == a.size;
	}
	if (a.size < low || a.size > high || (!legal && a.size % BLOCK_BYTES != 0))
		die("%s: size %llu after the crash", f->name, (unsigned long long)a.size);
	check_ok(read_again(w, f->ino, 0, FILE_BYTES, out, &got));
	assert_int_equal(got, a.size);
	memset(out + got, 0, sizeof(out) - got);
	for (unsigned b = 0; b < DIV_ROUND_UP(got, BLOCK_BYTES); b++) {
		size_t n = MIN(got - b * BLOCK_BYTES, BLOCK_BYTES);
		legal = false;
		for (unsigned k = 0; k < f->version_count && !legal; k++)
			legal = f->versions[k].block == b &&
				memcmp(f->versions[k].bytes, out + b * BLOCK_BYTES, n) == 0;
		if (!legal)
			die("%s: block %u has a content it never had", f->name, b);
	}
	f->size = a.size;
	memcpy(f->bytes, out, FILE_BYTES);
	file_synced(f);
}

/* ---- random steps ---- */

static uint64_t some_off(struct world *w, struct file *f)
{
	switch (rnd(w, 6)) {
	case 0:
		return 0;
	case 1:
		return rnd(w, 1500);
	case 2:
		return MIN(f->size, FILE_BYTES - 1);
	case 3:
		return rnd(w, FILE_BLOCKS) * BLOCK_BYTES;
	default:
		return rnd(w, FILE_BYTES);
	}
}

static uint64_t some_len(struct world *w, uint64_t off)
{
	static const uint64_t lens[] = {1, 100, 1000, 4096, 5000, 16384, 50000, 200000};
	uint64_t len = lens[rnd(w, ARRAY_SIZE(lens))];
	if (rnd(w, 2))
		len = 1 + rnd(w, len);
	return MIN(len, FILE_BYTES - off);
}

static void step_write(struct world *w, struct file *f)
{
	uint64_t off = some_off(w, f), len = some_len(w, off), old = f->size;
	uint8_t *data = malloc(len), seed = (uint8_t)rnd(w, 256);
	for (uint64_t k = 0; k < len; k++)
		data[k] = (uint8_t)(seed + k * 31 + (k >> 8));
	check_ok(fs_write(w->fs, f->ino, off, data, len, rnd(w, 2)));
	memcpy(f->bytes + off, data, len);
	f->size = MAX(f->size, off + len);
	file_changed(f, MIN(old, off), off + len);
	free(data);
}

static void step_truncate(struct world *w, struct file *f)
{
	struct fs_attr a = {.size = some_off(w, f)}, b;
	uint64_t old = f->size;
	check_ok(fs_setattr(w->fs, f->ino, &a, FS_SET_SIZE, &b));
	assert_int_equal(b.size, a.size);
	if (a.size < f->size)
		memset(f->bytes + a.size, 0, f->size - a.size);
	f->size = a.size;
	file_changed(f, MIN(old, a.size), MAX(old, a.size));
}

static void step_fallocate(struct world *w, struct file *f)
{
	static const int modes[] = {0,
				    FALLOC_FL_KEEP_SIZE,
				    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				    FALLOC_FL_ZERO_RANGE,
				    FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
	int mode = modes[rnd(w, ARRAY_SIZE(modes))];
	uint64_t off = some_off(w, f), len = some_len(w, off), old = f->size;
	check_ok(fs_fallocate(w->fs, f->ino, mode, off, len));
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		memset(f->bytes + off, 0, len);
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		f->size = MAX(f->size, off + len);
	file_changed(f, MIN(old, off), off + len);
}

static bool model_zero(const struct file *f, uint64_t from, uint64_t to)
{
	for (uint64_t k = from; k < MIN(to, FILE_BYTES); k++)
		if (f->bytes[k])
			return false;
	return true;
}

/* Holes hold nothing but zeros; data and holes follow each other to the end. */
static void step_seek(struct world *w, struct file *f)
{
	uint64_t at = 0, data, hole;
	check_err(fs_lseek(w->fs, f->ino, f->size, SEEK_DATA, &data), -ENXIO);
	check_err(fs_lseek(w->fs, f->ino, f->size, SEEK_HOLE, &data), -ENXIO);
	while (at < f->size) {
		int r = fs_lseek(w->fs, f->ino, at, SEEK_DATA, &data);
		if (r == -ENXIO)
			data = f->size;
		else
			check_ok(r);
		assert_true(data >= at && data <= f->size);
		assert_true(model_zero(f, at, data));
		if (data == f->size)
			break;
		check_ok(fs_lseek(w->fs, f->ino, data, SEEK_HOLE, &hole));
		assert_true(hole > data && hole <= f->size);
		at = hole;
	}
}

static void step_replace(struct world *w, struct file *f)
{
	struct fs_attr a;
	/* A new file takes the name; whoever sees the name sees one of the two whole. */
	uint64_t size = 1 + rnd(w, 30000);
	uint8_t *data = malloc(size);
	char temp[32];
	memset(data, (int)rnd(w, 256), size);
	snprintf(temp, sizeof(temp), "%s.tmp", f->name);
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, temp, S_IFREG | 0644, 0, 0, &root_cred, &a));
	check_ok(fs_write(w->fs, a.ino, 0, data, size, 0));
	check_ok(fs_rename(w->fs, FS_ROOT_INO, temp, FS_ROOT_INO, f->name, 0));
	fs_unref(w->fs, a.ino, 1);
	check_ok(fs_fsync(w->fs, a.ino, false, NULL));
	f->ino = a.ino;
	f->size = size;
	memset(f->bytes, 0, FILE_BYTES);
	memcpy(f->bytes, data, size);
	file_synced(f);
	free(data);
}

static void step(struct world *w, struct file *f)
{
	if (file_full(f)) {
		check_ok(fs_fsync(w->fs, f->ino, false, NULL));
		file_synced(f);
	}
	switch (rnd(w, 20)) {
	case 0 ... 6:
		step_write(w, f);
		break;
	case 7 ... 8:
		step_truncate(w, f);
		break;
	case 9 ... 11:
		step_fallocate(w, f);
		break;
	case 12: {
		uint64_t off = some_off(w, f);
		file_compare(w, f, off, some_len(w, off));
		break;
	}
	case 13:
		step_seek(w, f);
		break;
	case 14:
		if (rnd(w, 2)) {
			check_ok(fs_fsync(w->fs, f->ino, true, NULL));
			file_synced(f);
		}
		break;
	case 15:
		file_compare_all(w, f);
		break;
	case 16:
		co_sleep_ns(rnd(w, 4) * NS_PER_S);
		break;
	case 17:
		if (rnd(w, 10) == 0)
			step_replace(w, f);
		break;
	default:
		co_yield ();
	}
}

static void against_model(struct world *w)
{
	struct file *f[3];
	const unsigned count = ARRAY_SIZE(f);
	char name[20];
	for (unsigned k = 0; k < count; k++) {
		snprintf(name, sizeof(name), "file%u", k);
		f[k] = file_new(w, name);
	}
	check_ok(fs_sync(w->fs));
	for (unsigned n = 0; n < 1200; n++) {
		step(w, f[rnd(w, count)]);
		if (rnd(w, 40) == 0) {
			for (unsigned k = 0; k < count; k++)
				file_compare_all(w, f[k]);
			if (rnd(w, 2)) {
				world_crash(w);
				for (unsigned k = 0; k < count; k++)
					file_crashed(w, f[k]);
			} else {
				world_remount(w);
				for (unsigned k = 0; k < count; k++)
					file_synced(f[k]);
			}
			for (unsigned k = 0; k < count; k++)
				file_compare_all(w, f[k]);
		}
		if (rnd(w, 30) == 0) {
			check_ok(fs_sync(w->fs));
			for (unsigned k = 0; k < count; k++)
				file_synced(f[k]);
		}
	}
	for (unsigned k = 0; k < count; k++)
		file_free(f[k]);
}

/* ---- side by side ---- */

static struct file *own[8];
static uint64_t shared_ino;

static void own_file(struct world *w, unsigned number)
{
	for (unsigned n = 0; n < 150; n++)
		step(w, own[number]);
}

static void side_by_side(struct world *w)
{
	char name[20];
	for (unsigned k = 0; k < ARRAY_SIZE(own); k++) {
		snprintf(name, sizeof(name), "own%u", k);
		own[k] = file_new(w, name);
	}
	check_ok(fs_sync(w->fs));
	for (unsigned round = 0; round < 3; round++) {
		world_side_by_side(w, ARRAY_SIZE(own), own_file);
		for (unsigned k = 0; k < ARRAY_SIZE(own); k++)
			file_compare_all(w, own[k]);
		world_crash(w);
		for (unsigned k = 0; k < ARRAY_SIZE(own); k++)
			file_crashed(w, own[k]);
	}
	for (unsigned k = 0; k < ARRAY_SIZE(own); k++)
		file_free(own[k]);
}

/* Every write fills whole pieces of 3 blocks with one stamp: what is read of a piece is of one
 * write, or zeros. */
static void many_hands(struct world *w, unsigned number)
{
	const size_t piece = 3 * BLOCK_BYTES;
	uint32_t *data = malloc(piece), *out = malloc(piece);
	struct fs_attr a = {0}, b;
	for (unsigned n = 0; n < 120; n++) {
		uint64_t off = rnd(w, 12) * piece;
		size_t got;
		switch (rnd(w, 10)) {
		case 0 ... 3:
			for (size_t k = 0; k < piece / 4; k++)
				data[k] = (number + 1) << 16 | n;
			check_ok(fs_write(w->fs, shared_ino, off, data, piece, 0));
			break;
		case 4:
			a.size = off;
			check_ok(fs_setattr(w->fs, shared_ino, &a, FS_SET_SIZE, &b));
			break;
		case 5:
			check_ok(fs_fallocate(w->fs, shared_ino,
					      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off,
					      piece));
			break;
		case 6:
			check_ok(fs_fsync(w->fs, shared_ino, false, NULL));
			break;
		default:
			check_ok(read_again(w, shared_ino, off, piece, (uint8_t *)out, &got));
			assert_true(got % piece == 0);
			for (size_t k = 1; k < got / 4; k++)
				if (out[k] != out[0])
					die("piece at %llu: %#x and %#x", (unsigned long long)off,
					    out[0], out[k]);
		}
	}
	free(data);
	free(out);
}

static void one_file_many_hands(struct world *w)
{
	struct fs_attr a;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "shared", S_IFREG | 0644, 0, 0, &root_cred, &a));
	shared_ino = a.ino;
	for (unsigned round = 0; round < 3; round++) {
		world_side_by_side(w, 8, many_hands);
		world_remount(w);
	}
	/* unlinked while all are at it: it lives on until it is let go */
	check_ok(fs_lookup(w->fs, FS_ROOT_INO, "shared", &a));
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "shared"));
	world_side_by_side(w, 8, many_hands);
	fs_unref(w->fs, shared_ino, 1);
	world_crash(w);
	check_err(fs_getattr(w->fs, shared_ino, &a), -ESTALE);
}

/* ---- small things ---- */

static void limits(struct world *w)
{
	struct fs_attr a, b;
	size_t got;
	uint64_t at;
	uint8_t out[100];
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	fs_unref(w->fs, a.ino, 1);
	check_ok(fs_write(w->fs, a.ino, 0, "tiny", 4, 0));
	check_ok(fs_fsync(w->fs, a.ino, false, NULL));
	assert_int_equal(fake_raid_live_blocks(w->raid, CHUNK_DATA), 0); /* it is in the tree */
	check_ok(fs_getattr(w->fs, a.ino, &b));
	assert_int_equal(b.blocks512, 1);
	check_ok(fs_lseek(w->fs, a.ino, 0, SEEK_HOLE, &at));
	assert_int_equal(at, 4);
	check_ok(fs_write(w->fs, a.ino, 0, "tiny, cut", 9, 0));
	check_ok(fs_fsync(w->fs, a.ino, false, NULL));
	b.size = 4;
	check_ok(fs_setattr(w->fs, a.ino, &b, FS_SET_SIZE, NULL));
	check_err(fs_write(w->fs, a.ino, FS_FILE_BYTES_MAX, "x", 1, 0), -EFBIG);
	check_err(fs_write(w->fs, a.ino, UINT64_MAX, "x", 1, 0), -EFBIG);
	check_err(fs_write(w->fs, FS_ROOT_INO, 0, "x", 1, 0), -EISDIR);
	check_err(fs_write(w->fs, 12345, 0, "x", 1, 0), -ESTALE);
	check_err(fs_fsync(w->fs, 12345, false, NULL), -ESTALE);
	check_err(fs_fsync(w->fs, 0, false, NULL), -ESTALE);
	check_ok(fs_fsync(w->fs, a.ino, false, NULL)); /* nobody holds it, but it is there */
	check_ok(fs_write(w->fs, a.ino, FS_FILE_BYTES_MAX - 3, "end", 3, 0));
	check_ok(fs_getattr(w->fs, a.ino, &b));
	assert_int_equal(b.size, FS_FILE_BYTES_MAX);
	check_ok(fs_lseek(w->fs, a.ino, 5000, SEEK_DATA, &at));
	assert_int_equal(at, FS_FILE_BYTES_MAX - BLOCK_BYTES);
	world_remount(w);
	check_ok(read_again(w, a.ino, 0, 10, out, &got));
	assert_memory_equal(out, "tiny\0\0\0\0\0\0", 10);
	check_ok(read_again(w, a.ino, FS_FILE_BYTES_MAX - 3, 10, out, &got));
	assert_int_equal(got, 3);
	assert_memory_equal(out, "end", 3);
	check_ok(fs_lseek(w->fs, a.ino, 0, SEEK_HOLE, &at));
	assert_int_equal(at, BLOCK_BYTES);
	check_err(fs_fallocate(w->fs, a.ino, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -EOPNOTSUPP);
	check_err(fs_fallocate(w->fs, a.ino, 0, 0, 0), -EINVAL);
	check_err(fs_fallocate(w->fs, a.ino, 0, FS_FILE_BYTES_MAX, 1), -EFBIG);
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "f"));
}

static void old_bytes_stay_gone(struct world *w)
{
	struct fs_attr a, b = {0}, c;
	static uint8_t data[10000], out[10000];
	size_t got;
	memset(data, 'x', sizeof(data));
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	for (unsigned how = 0; how < 8; how++) {
		check_ok(fs_write(w->fs, a.ino, 0, data, sizeof(data), 0));
		if (how & 1)
			check_ok(fs_fsync(w->fs, a.ino, false, NULL));
		b.size = 10;
		check_ok(fs_setattr(w->fs, a.ino, &b, FS_SET_SIZE, &c));
		if (how & 2)
			check_ok(fs_fsync(w->fs, a.ino, false, NULL));
		if (how & 4) {
			check_ok(fs_write(w->fs, a.ino, 4090, "y", 1, 0));
		} else {
			b.size = 4091;
			check_ok(fs_setattr(w->fs, a.ino, &b, FS_SET_SIZE, &c));
		}
		check_ok(read_again(w, a.ino, 0, 5000, out, &got));
		assert_int_equal(got, 4091);
		for (unsigned k = 0; k < 4090; k++)
			assert_int_equal(out[k], k < 10 ? 'x' : 0);
	}
}

/* A log that grows: what a crash leaves of it is a prefix, never a tail of zeros. */
static void growing(struct world *w)
{
	struct fs_attr a;
	static uint8_t data[9000], out[600000 + BLOCK_BYTES];
	size_t got;
	memset(data, 'g', sizeof(data));
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "log", S_IFREG | 0644, 0, 0, &root_cred, &a));
	fs_unref(w->fs, a.ino, 1);
	uint64_t size = 0, synced = 0;
	for (unsigned round = 0; round < 12; round++) {
		for (unsigned n = 0; n < 30; n++) {
			size_t len = 1 + rnd(w, sizeof(data));
			if (size + len > 600000)
				break;
			check_ok(fs_write(w->fs, a.ino, size, data, len, 0));
			size += len;
			if (rnd(w, 8) == 0)
				co_sleep_ns(rnd(w, 3) * NS_PER_S);
			if (rnd(w, 10) == 0) {
				check_ok(fs_fsync(w->fs, a.ino, false, NULL));
				synced = size;
			}
		}
		check_ok(
		    fs_fsync(w->fs, FS_ROOT_INO, false, NULL)); /* a commit with much still dirty */
		world_crash(w);
		check_ok(fs_getattr(w->fs, a.ino, &a));
		assert_true(a.size >= synced && a.size <= size);
		check_ok(read_again(w, a.ino, 0, 600000, out, &got));
		assert_int_equal(got, a.size);
		for (size_t k = 0; k < got; k++)
			assert_int_equal(out[k], 'g');
		size = a.size;
	}
}

/* Makes block 0 dirty for the first time while the flusher writes out the others. */
static void block_0_comes_late(struct world *w, unsigned number)
{
	uint8_t data[BLOCK_BYTES];
	struct inode *i = inode_pin(w->fs, shared_ino);
	(void)number;
	assert_non_null(i);
	memset(data, 'd', sizeof(data));
	for (unsigned turn = 0; turn < 800 && list_empty(&i->writing); turn++) {
		if (turn % 100 == 0)
			co_sleep_ns(NS_PER_S);
		else
			co_yield ();
	}
	if (!list_empty(&i->writing))
		check_ok(fs_write(w->fs, shared_ino, 0, data, sizeof(data), 0));
	inode_unpin(w->fs, i);
}

/* Later blocks got to the tree, the first did not, a crash: the later ones are not to come to light
 * when the file grows. */
static void behind_the_end(struct world *w)
{
	struct fs_attr a, b = {.size = 5 * BLOCK_BYTES}, c;
	static uint8_t data[3 * BLOCK_BYTES], out[6 * BLOCK_BYTES];
	size_t got;
	unsigned cut = 0;
	memset(data, 'd', sizeof(data));
	for (unsigned round = 0; round < 30; round++) {
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
		fs_unref(w->fs, a.ino, 1);
		shared_ino = a.ino;
		check_ok(fs_write(w->fs, a.ino, BLOCK_BYTES, data, 2 * BLOCK_BYTES, 0));
		world_side_by_side(w, 1, block_0_comes_late);
		for (unsigned turn = 0; turn < round; turn++)
			co_yield ();
		check_ok(fs_fsync(w->fs, FS_ROOT_INO, false, NULL));
		world_crash(w);
		check_ok(fs_getattr(w->fs, a.ino, &a));
		cut += a.size == 0;
		check_ok(fs_setattr(w->fs, a.ino, &b, FS_SET_SIZE, &c));
		check_ok(read_again(w, a.ino, 0, b.size, out, &got));
		for (size_t k = 0; k < got; k++)
			assert_true(out[k] == (k < a.size ? 'd' : 0) || (k < BLOCK_BYTES && !out[k]));
		check_ok(fs_unlink(w->fs, FS_ROOT_INO, "f"));
	}
	assert_true(cut > 0);
}

/* Dirties a hole while the block at the end is written out. */
static void sync_size_part(struct world *w, unsigned number)
{
	static const uint8_t data[BLOCK_BYTES] = {3};
	struct inode *i;
	if (number == 0) {
		check_ok(fs_fsync(w->fs, shared_ino, false, NULL));
		return;
	}
	i = inode_pin(w->fs, shared_ino);
	assert_non_null(i);
	while (list_empty(&i->writing))
		co_yield ();
	check_ok(fs_write(w->fs, shared_ino, 2 * BLOCK_BYTES, data, sizeof(data), 0));
	inode_unpin(w->fs, i);
}

/* The size that a file had when its sync began is there after a crash, whatever was written below it meanwhile. */
static void sync_keeps_size(struct world *w)
{
	static const uint8_t data[BLOCK_BYTES] = {7};
	struct fs_attr a;
	uint8_t out[2 * BLOCK_BYTES];
	size_t got;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	check_ok(fs_sync(w->fs));
	fs_unref(w->fs, a.ino, 1);
	shared_ino = a.ino;
	check_ok(fs_write(w->fs, a.ino, 5 * BLOCK_BYTES, data, sizeof(data), 0));
	world_side_by_side(w, 2, sync_size_part);
	assert_int_equal(inode_find(w->fs, a.ino)->dirty_count, 1); /* the hole */
	world_crash(w);
	check_ok(fs_getattr(w->fs, a.ino, &a));
	assert_int_equal(a.size, 6 * BLOCK_BYTES);
	check_ok(read_again(w, a.ino, 5 * BLOCK_BYTES, BLOCK_BYTES, out, &got));
	assert_int_equal(got, BLOCK_BYTES);
	assert_memory_equal(out, data, BLOCK_BYTES);
}

/* Rename over a file, without any fsync: after a crash the name has all of the old content or all
 * of the new. */
static void replacing(struct world *w)
{
	struct fs_attr a;
	static uint8_t data[50000], out[50000 + 2 * BLOCK_BYTES];
	size_t got;
	uint8_t last = 0;
	for (unsigned n = 1; n < 60; n++) {
		memset(data, (int)n, sizeof(data));
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, "new", S_IFREG | 0644, 0, 0, &root_cred, &a));
		check_ok(fs_write(w->fs, a.ino, 0, data, 100 + rnd(w, sizeof(data) - 100), 0));
		fs_unref(w->fs, a.ino, 1);
		check_ok(fs_rename(w->fs, FS_ROOT_INO, "new", FS_ROOT_INO, "name", 0));
		if (n == 1)
			check_ok(fs_sync(w->fs));
		if (rnd(w, 3))
			continue;
		if (rnd(w, 2))
			check_ok(fs_fsync(w->fs, FS_ROOT_INO, false, NULL));
		world_crash(w);
		check_ok(fs_lookup(w->fs, FS_ROOT_INO, "name", &a));
		fs_unref(w->fs, a.ino, 1);
		(void)fs_unlink(w->fs, FS_ROOT_INO,
				"new"); /* may have survived without its rename */
		check_ok(read_again(w, a.ino, 0, sizeof(data), out, &got));
		assert_true(got >= 100 && out[0] >= last && out[0] <= n);
		for (size_t k = 0; k < got; k++)
			assert_int_equal(out[k], out[0]);
		last = out[0];
	}
}

/* Thousands of extents are freed in steps; a crash in the middle is gone on with. */
static void many_extents(struct world *w)
{
	struct fs_attr a, b = {0}, c;
	uint8_t data[BLOCK_BYTES];
	memset(data, 7, sizeof(data));
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	for (unsigned k = 0; k < 3000; k++)
		check_ok(fs_write(w->fs, a.ino, k * 2ull * BLOCK_BYTES, data, sizeof(data), 0));
	check_ok(fs_sync(w->fs));
	assert_int_equal(fake_raid_live_blocks(w->raid, CHUNK_DATA), 3000);
	b.size = 5;
	check_ok(fs_setattr(w->fs, a.ino, &b, FS_SET_SIZE, &c));
	check_ok(fs_getattr(w->fs, a.ino, &c));
	assert_int_equal(c.size, 5);
	assert_int_equal(c.blocks512, 8);
	world_remount(w);
	assert_int_equal(fake_raid_live_blocks(w->raid, CHUNK_DATA), 1);
	for (unsigned k = 0; k < 3000; k++)
		check_ok(fs_write(w->fs, a.ino, k * 2ull * BLOCK_BYTES, data, sizeof(data), 0));
	check_ok(fs_sync(w->fs));
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "f"));
	check_ok(fs_sync(w->fs)); /* the reaper is at work, or waits for its turn */
	world_crash(w);
	check_ok(fs_sync(w->fs));
	assert_int_equal(fake_raid_live_blocks(w->raid, CHUNK_DATA), 0);
	struct fs_stat st;
	fs_statfs(w->fs, &st);
	assert_int_equal(st.files - st.files_free, 1);
}

static void cut_part(struct world *w, unsigned number)
{
	struct fs_attr b = {.size = 4096}, c;
	if (number == 0) {
		int r = fs_setattr(w->fs, shared_ino, &b, FS_SET_SIZE, &c);
		assert_true(r == 0 || r == -EIO);
		return;
	}
	/* commits in the middle of the truncation, then the lights go out */
	for (unsigned k = 0; k < 20; k++)
		co_yield ();
	check_ok(fs_fsync(w->fs, FS_ROOT_INO, false, NULL));
	raid_abandon(w->raid);
}

static void crash_in_truncate(struct world *w)
{
	struct fs_attr a;
	uint8_t data[BLOCK_BYTES];
	memset(data, 7, sizeof(data));
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	shared_ino = a.ino;
	for (unsigned k = 0; k < 2000; k++)
		check_ok(fs_write(w->fs, a.ino, k * 2ull * BLOCK_BYTES, data, sizeof(data), 0));
	check_ok(fs_sync(w->fs));
	world_side_by_side(w, 2, cut_part);
	fs_abandon(w->fs);
	fake_raid_crash(w->raid);
	world_check(w);
	world_mount(w);
	check_ok(fs_getattr(w->fs, shared_ino, &a));
	assert_int_equal(a.size, 4096);
	check_ok(fs_sync(w->fs));
	assert_int_equal(fake_raid_live_blocks(w->raid, CHUNK_DATA), 1);
}

/* ---- a full volume ---- */

#define RESERVE_BLOCKS 64u /* of metadata, as fake_raid has it */

static void fill(struct world *w, uint64_t ino, uint64_t *ret_blocks)
{
	uint8_t data[BLOCK_BYTES];
	memset(data, 1, sizeof(data));
	for (uint64_t k = 0;; k++) {
		int r = fs_write(w->fs, ino, k * BLOCK_BYTES, data, sizeof(data), 0);
		if (r) {
			check_err(r, -ENOSPC);
			*ret_blocks = k;
			return;
		}
	}
}

static void full_volume(struct world *w)
{
	struct fs_attr a, b;
	uint8_t data[BLOCK_BYTES], out[BLOCK_BYTES + 100];
	uint64_t blocks, again;
	size_t got;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	fill(w, a.ino, &blocks);
	assert_int_equal(blocks, 1024 - 64);
	check_ok(fs_fsync(w->fs, a.ino, false, NULL)); /* what was accepted can be written */
	check_err(fs_write(w->fs, a.ino, blocks * BLOCK_BYTES, "x", 1, 0), -ENOSPC);
	check_err(fs_fallocate(w->fs, a.ino, 0, 0, (blocks + 100) * BLOCK_BYTES), -ENOSPC);
	/* overwriting works, as often as one likes */
	for (unsigned round = 2; round < 6; round++) {
		memset(data, (int)round, sizeof(data));
		for (uint64_t k = 0; k < blocks; k++)
			check_ok(
			    fs_write(w->fs, a.ino, k * BLOCK_BYTES, data, sizeof(data), 0));
		if (round & 1)
			check_ok(fs_fsync(w->fs, a.ino, false, NULL));
	}
	check_ok(fs_sync(w->fs));
	for (uint64_t k = 0; k < blocks; k++) {
		check_ok(read_again(w, a.ino, k * BLOCK_BYTES, BLOCK_BYTES, out, &got));
		assert_int_equal(out[0], 5);
		assert_int_equal(out[4095], 5);
	}
	/* a tiny file and names still fit: they are metadata */
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "g", S_IFREG | 0644, 0, 0, &root_cred, &b));
	check_ok(fs_write(w->fs, b.ino, 0, "tiny", 4, 0));
	check_ok(fs_fsync(w->fs, b.ino, false, NULL));
	check_err(fs_write(w->fs, b.ino, 0, data, sizeof(data), 0), -ENOSPC);
	/* what is deleted can be written again at once */
	for (unsigned round = 0; round < 3; round++) {
		check_ok(fs_unlink(w->fs, FS_ROOT_INO, "f"));
		fs_unref(w->fs, a.ino, 1);
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
		fill(w, a.ino, &again);
		assert_int_equal(again, blocks);
	}
	world_remount(w);
	check_ok(fs_fallocate(w->fs, a.ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			      50 * BLOCK_BYTES));
	check_ok(fs_fallocate(w->fs, b.ino, 0, 0, 50 * BLOCK_BYTES));
	check_err(fs_write(w->fs, a.ino, 0, "x", 1, 0), -ENOSPC); /* promised to g */
	memset(data, 9, sizeof(data));
	for (unsigned k = 0; k < 50; k++)
		check_ok(fs_write(w->fs, b.ino, k * BLOCK_BYTES, data, sizeof(data), 0));
	check_ok(fs_sync(w->fs));
	world_crash(w);
	check_ok(read_again(w, b.ino, 49 * BLOCK_BYTES, BLOCK_BYTES, out, &got));
	assert_int_equal(out[0], 9);
}

/* P6: what was accepted is written, though the space for it comes late, or only from the reserve. */
static void space_late(struct world *w)
{
	static const unsigned late[] = {1, 2, 5, 9};
	static uint8_t data[BLOCK_BYTES], out[2 * BLOCK_BYTES];
	struct fs_attr a;
	char name[16];
	size_t got;

	for (unsigned n = 0; n < ARRAY_SIZE(late); n++) {
		snprintf(name, sizeof(name), "late%u", n);
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &a));
		/* Every second block: each is an extent, and the tree grows. */
		for (unsigned k = 0; k < 300; k++) {
			memset(data, (int)(k % 250 + 1), sizeof(data));
			check_ok(fs_write(w->fs, a.ino, 2ull * k * BLOCK_BYTES, data, sizeof(data), 0));
		}
		fake_raid_set_short(w->raid, late[n], late[n]);
		check_ok(fs_fsync(w->fs, a.ino, false, NULL));
		assert_int_equal(fake_raid_short(w->raid), 0);
		world_crash(w);
		for (unsigned k = 0; k < 300; k++) {
			check_ok(read_again(w, a.ino, 2ull * k * BLOCK_BYTES, BLOCK_BYTES, out, &got));
			assert_int_equal(got, BLOCK_BYTES);
			assert_int_equal(out[0], k % 250 + 1);
			assert_int_equal(out[BLOCK_BYTES - 1], k % 250 + 1);
		}
	}
}

static void full_hands(struct world *w, unsigned number)
{
	struct fs_attr a;
	char name[20];
	static uint8_t data[20 * BLOCK_BYTES];
	snprintf(name, sizeof(name), "h%u", number);
	for (unsigned n = 0; n < 30; n++) {
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &a));
		for (unsigned k = 0; k < 15; k++) {
			int r = fs_write(w->fs, a.ino, rnd(w, 200) * BLOCK_BYTES, data,
					 1 + rnd(w, sizeof(data)), false);
			assert_true(r == 0 || r == -ENOSPC);
			if (rnd(w, 10) == 0)
				check_ok(fs_fsync(w->fs, a.ino, false, NULL));
		}
		check_ok(fs_unlink(w->fs, FS_ROOT_INO, name));
		fs_unref(w->fs, a.ino, 1);
	}
}

static void full_many_hands(struct world *w)
{
	world_side_by_side(w, 8, full_hands);
	check_ok(fs_sync(w->fs));
}

/*
 * The tree is full of tiny files before the data is: then too what was accepted can be written, data still comes,
 * overwriting works with the blocks of a file scattered, and everything can be deleted.
 */
static void full_of_tiny_files(struct world *w)
{
	struct fs_attr a, t;
	uint8_t data[BLOCK_BYTES], out[BLOCK_BYTES + 100];
	static uint8_t big[60 * BLOCK_BYTES];
	char name[20];
	unsigned count = 0;
	size_t got;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	for (unsigned k = 0; k < 50; k++)
		check_ok(fs_write(w->fs, a.ino, k * sizeof(big), big, sizeof(big), 0));
	check_ok(fs_sync(w->fs));
	for (;; count++) {
		memset(data, (int)count, sizeof(data));
		snprintf(name, sizeof(name), "t%u", count);
		int r = fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &t);
		if (r == 0) {
			fs_unref(w->fs, t.ino, 1);
			r = fs_write(w->fs, t.ino, 0, data, 900, 0);
		}
		if (r) {
			check_err(r, -ENOSPC);
			break;
		}
	}
	assert_true(count > 500);
	check_ok(fs_sync(w->fs));
	check_ok(fs_write(w->fs, a.ino, 50 * sizeof(big), big, sizeof(big), 0));
	check_ok(fs_sync(w->fs));
	/* Each block that moves would cut an extent in three. */
	for (unsigned round = 1; round < 4; round++) {
		memset(data, (int)round, sizeof(data));
		for (unsigned k = 0; k < 3000; k += 2) {
			check_ok(fs_write(w->fs, a.ino, k * BLOCK_BYTES, data, sizeof(data), 0));
			if (rnd(w, 300) == 0)
				check_ok(fs_fsync(w->fs, a.ino, false, NULL));
		}
		check_ok(fs_sync(w->fs));
	}
	for (unsigned k = 0; k < 3000; k++) {
		check_ok(read_again(w, a.ino, k * BLOCK_BYTES, BLOCK_BYTES, out, &got));
		assert_int_equal(out[77], k % 2 ? 0 : 3);
	}
	world_remount(w);
	for (unsigned k = 0; k < count; k++) {
		snprintf(name, sizeof(name), "t%u", k);
		check_ok(fs_lookup(w->fs, FS_ROOT_INO, name, &t));
		check_ok(read_again(w, t.ino, 0, BLOCK_BYTES, out, &got));
		assert_int_equal(got, 900);
		assert_int_equal(out[899], k & 255);
		fs_unref(w->fs, t.ino, 1);
		check_ok(fs_unlink(w->fs, FS_ROOT_INO, name));
	}
	inodes_reap_wait(w->fs);
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "again", S_IFREG | 0644, 0, 0, &root_cred, &t));
	check_ok(fs_write(w->fs, t.ino, 0, data, 900, 0));
}

static bool punch_all;

/*
 * Names took all metadata that they may have, and then holes were punched, which cuts extents in two, until the reserve was
 * begun, or for as long as that went. Files that are open are deleted all the same, each of which needs a place on the list of
 * orphans.
 */
static void full_deletes(struct world *w)
{
	const unsigned blocks = 16000;
	static uint8_t big[100 * BLOCK_BYTES];
	static uint64_t open[20000];
	struct fs_attr a, t;
	char name[20];
	unsigned names = 0, k;
	int r = 0;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	fs_unref(w->fs, a.ino, 1);
	for (k = 0; k < blocks; k += 100)
		check_ok(fs_write(w->fs, a.ino, k * (uint64_t)BLOCK_BYTES, big, sizeof(big), 0));
	check_ok(fs_sync(w->fs));
	for (; r == 0 && names < ARRAY_SIZE(open); names += r == 0) {
		snprintf(name, sizeof(name), "t%u", names);
		r = fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &t);
		if (r == 0)
			fs_unref(w->fs, t.ino, 1);
	}
	check_err(r, -ENOSPC);
	assert_true(names > 500);
	for (k = 0, r = 0; r == 0; k += 2) {
		if (!punch_all && raid_meta_ready(w->raid, RAID_ALLOC_RESERVE) < RESERVE_BLOCKS)
			break;
		assert_true(k < blocks);
		r = fs_fallocate(w->fs, a.ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 k * (uint64_t)BLOCK_BYTES, BLOCK_BYTES);
	}
	check_err(r, punch_all ? -ENOSPC : 0);
	world_remount(w); /* no node is left that was made ready before */
	for (k = 0; k < names; k++) {
		snprintf(name, sizeof(name), "t%u", k);
		check_ok(fs_lookup(w->fs, FS_ROOT_INO, name, &t));
		open[k] = t.ino;
		check_ok(fs_unlink(w->fs, FS_ROOT_INO, name));
	}
	for (k = 0; k < names; k++)
		fs_unref(w->fs, open[k], 1);
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "f"));
	inodes_reap_wait(w->fs);
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "again", S_IFREG | 0644, 0, 0, &root_cred, &t));
	fs_unref(w->fs, t.ino, 1);
}

/* ---- failures ---- */

static void failing_writes(struct world *w)
{
	struct fs_attr a;
	struct fs_errseq one, two;
	uint8_t data[BLOCK_BYTES] = {1}, out[2 * BLOCK_BYTES];
	size_t got;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	fs_errseq_sample(w->fs, a.ino, &one);
	two = one;
	/* once: the fsync that meets it says so, the next try succeeds */
	check_ok(fs_write(w->fs, a.ino, 0, data, sizeof(data), 0));
	fake_raid_fail_write(w->raid, 1, -EIO);
	check_err(fs_fsync(w->fs, a.ino, false, &one), -EIO);
	check_ok(fs_fsync(w->fs, a.ino, false, &one));
	/* for good: the data is given up, every holder learns of it once */
	data[0] = 2;
	check_ok(fs_write(w->fs, a.ino, 0, data, sizeof(data), 0));
	for (unsigned k = 0; k < 5; k++) {
		fake_raid_fail_write(w->raid, 1, -EIO);
		check_err(fs_fsync(w->fs, a.ino, false, NULL), -EIO);
	}
	fake_raid_fail_write(w->raid, 0, 0);
	check_ok(fs_fsync(w->fs, a.ino, false, NULL));
	check_err(fs_flush(w->fs, a.ino, &one), -EIO);
	check_err(fs_fsync(w->fs, a.ino, false, &one), -EIO);
	check_ok(fs_fsync(w->fs, a.ino, false, &one));
	check_err(fs_fsync(w->fs, a.ino, false, &two), -EIO);
	check_ok(read_again(w, a.ino, 0, BLOCK_BYTES, out, &got));
	assert_int_equal(out[0], 1);
	fake_raid_fail_read(w->raid, 1, -EBADMSG);
	check_err(read_again(w, a.ino, 0, BLOCK_BYTES, out, &got), -EBADMSG);
	check_ok(read_again(w, a.ino, 0, BLOCK_BYTES, out, &got));
	fs_unref(w->fs, a.ino, 1);
	/* nothing leaks: */
	world_remount(w);
	/* the volume stops taking writes: everything ends with an error, nothing hangs */
	check_ok(fs_write(w->fs, a.ino, 0, data, sizeof(data), 0));
	fake_raid_set_error(w->raid, -EIO);
	check_err(fs_fsync(w->fs, a.ino, false, NULL), -EIO);
	check_err(fs_write(w->fs, a.ino, 0, data, sizeof(data), 0), -EIO);
	world_crash(w);
	check_ok(read_again(w, a.ino, 0, BLOCK_BYTES, out, &got));
	assert_int_equal(out[0], 1);
}

static void no_memory(struct world *w)
{
	struct file *f = file_new(w, "f");
	for (uint64_t n = 1; n < 300; n++) {
		uint8_t data[3000];
		uint64_t off = rnd(w, FILE_BYTES - 3000);
		memset(data, (int)n, sizeof(data));
		mem_fail_after(n % 40 + 1, false);
		int r = fs_write(w->fs, f->ino, off, data, sizeof(data), 0);
		mem_fail_after(0, false);
		assert_true(r == 0 || r == -ENOMEM);
		if (r == 0) {
			memcpy(f->bytes + off, data, sizeof(data));
			f->size = MAX(f->size, off + sizeof(data));
		}
		if (n % 20 == 0) {
			mem_fail_after(n % 30 + 1, false);
			r = fs_fsync(w->fs, f->ino, false, NULL);
			mem_fail_after(0, false);
			assert_true(r == 0 || r == -ENOMEM);
		}
	}
	file_compare_all(w, f);
	world_remount(w);
	file_compare_all(w, f);
	file_free(f);
}

/* ---- many extents and little memory ---- */

#define PIECES	     230000u /* more leaves than an atom may load */
#define PIECES_ATOM  64u
static const uint64_t pieces_lba = LBA_MAKE(900, 0); /* never read */

struct pieces {
	uint64_t ino, from;
	bool put;
};

static int pieces_atom(struct fs *fs, void *arg)
{
	const struct pieces *p = arg;
	uint64_t end = MIN(p->from + PIECES_ATOM, PIECES);
	int r = 0;
	for (uint64_t b = p->from; b < end && r == 0; b++)
		r = bt_prepare(fs, (struct key){p->ino, KEY_OFF(TYPE_EXTENT, b)},
			       sizeof(struct extent_disk));
	for (uint64_t b = p->from; b < end && r == 0; b++) {
		struct key key = {p->ino, KEY_OFF(TYPE_EXTENT, b)};
		struct extent_disk d = {to_le64(pieces_lba + 2 * b), to_le32(1), to_le32(0)};
		if (p->put)
			bt_put(fs, key, &d, sizeof(d));
		else
			bt_del(fs, key);
	}
	return r;
}

/* A file that was overwritten here and there until each block stands apart. */
static void seek_in_pieces(struct world *w)
{
	struct fs_attr a, size = {.size = (uint64_t)PIECES * BLOCK_BYTES};
	uint64_t found;
	w->options.node_cache_bytes = 1u << 18;
	world_remount(w);
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	check_ok(fs_setattr(w->fs, a.ino, &size, FS_SET_SIZE, NULL));
	struct pieces p = {.ino = a.ino, .put = true};
	for (; p.from < PIECES; p.from += PIECES_ATOM)
		check_ok(fs_atom(w->fs, ATOM_WRITE, pieces_atom, &p));
	check_ok(raid_commit(w->raid));
	check_ok(fs_lseek(w->fs, a.ino, 100, SEEK_HOLE, &found));
	assert_int_equal(found, size.size);
	check_ok(fs_lseek(w->fs, a.ino, 100, SEEK_DATA, &found));
	assert_int_equal(found, 100);
	check_ok(fs_fallocate(w->fs, a.ino, FALLOC_FL_KEEP_SIZE, BLOCK_BYTES,
			      size.size - BLOCK_BYTES));
	p.put = false;
	for (p.from = 0; p.from < PIECES; p.from += PIECES_ATOM)
		check_ok(fs_atom(w->fs, ATOM_WRITE, pieces_atom, &p));
	fs_unref(w->fs, a.ino, 1);
}

static uint64_t pool_reader_inos[16];

static void pool_reader(struct world *w, unsigned number)
{
	size_t len;
	void *data = buf_get_wait(BUF_BYTES_MAX), *at;
	co_yield();
	check_ok(fs_read(w->fs, pool_reader_inos[number], 0, 100, data, &at, &len));
	assert_int_equal(len, 100);
	buf_put(data);
}

/* As many readers as the pool has memory for, and none of the nodes is in memory yet. */
static void readers_fill_pool(struct world *w)
{
	struct fs_attr a;
	static const uint8_t data[100] = {1};
	for (unsigned k = 0; k < ARRAY_SIZE(pool_reader_inos); k++) {
		char name[20];
		snprintf(name, sizeof(name), "f%u", k);
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &a));
		check_ok(fs_write(w->fs, a.ino, 0, data, sizeof(data), 0));
		fs_unref(w->fs, a.ino, 1);
		pool_reader_inos[k] = a.ino;
	}
	world_remount(w);
	world_side_by_side(w, ARRAY_SIZE(pool_reader_inos), pool_reader);
}

/* ---- */

static void test_pieces(void **state)
{
	world_test(1, NULL, 0, seek_in_pieces);
}
static void test_pool(void **state)
{
	world_test(1, NULL, 0, readers_fill_pool);
}
static void test_limits(void **state)
{
	world_test(1, NULL, 0, limits);
}
static void test_old_bytes(void **state)
{
	world_test(1, NULL, 0, old_bytes_stay_gone);
}
static void test_crashes(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 2, .commit_ns_max = 5 * NS_PER_S};
	for_seeds(seed, 6)
	{
		world_test(seed, &p, seed & 1 ? 100000 : 0, growing);
		world_test(seed, &p, 0, replacing);
		world_test(seed, &p, 0, behind_the_end);
	}
}
static void test_sync_size(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 1, .commit_ns_max = UINT64_MAX / 4};
	for_seeds(seed, 4) world_test(seed, &p, 0, sync_keeps_size);
}
static void test_many_extents(void **state)
{
	world_test(1, NULL, 0, many_extents);
	world_test(2, NULL, 0, crash_in_truncate);
}
static void test_against_model(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 3, .commit_ns_max = 5 * NS_PER_S};
	for_seeds(seed, 6)
	{
		p.run_blocks_max = seed & 1 ? 3 : 0;
		p.eagain_one_in = seed & 2 ? 100 : 0;
		world_test(seed, &p, seed & 4 ? 100000 : 0, against_model);
	}
}
static void test_side_by_side(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 2, .commit_ns_max = 5 * NS_PER_S};
	for_seeds(seed, 4) world_test(seed, &p, seed & 1 ? 600000 : 0, side_by_side);
}
static void test_many_hands(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 2, .commit_ns_max = 5 * NS_PER_S};
	for_seeds(seed, 4) world_test(seed, &p, seed & 1 ? 300000 : 0, one_file_many_hands);
}
static void test_full(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 3,
				     .commit_ns_max = 5 * NS_PER_S,
				     .data_chunk_blocks = 512,
				     .data_chunks_max = 2};
	world_test(1, &p, 0, full_volume);
	world_test(2, &p, 200000, full_volume);
	world_test(3, &p, 0, full_many_hands);
	world_test(4, &p, 400000, full_many_hands);
	p.data_chunk_blocks = 8192;
	p.meta_chunk_blocks = 512;
	p.meta_chunks_max = 3;
	world_test(5, &p, 0, full_of_tiny_files);
	world_test(6, &p, 400000, full_of_tiny_files);
	p.run_blocks_max = 1;
	world_test(7, &p, 0, full_of_tiny_files);
	world_test(8, NULL, 0, space_late);
}
static void test_full_delete(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 3,
				     .commit_ns_max = 5 * NS_PER_S,
				     .data_chunk_blocks = 20000,
				     .data_chunks_max = 1,
				     .meta_chunk_blocks = 512,
				     .meta_chunks_max = 1,
				     .meta_reserve_blocks = RESERVE_BLOCKS};
	for (unsigned all = 0; all < 2; all++) {
		punch_all = all;
		world_test(1, &p, 0, full_deletes);
	}
}
static void test_failures(void **state)
{
	world_test(1, NULL, 0, failing_writes);
	world_test(1, NULL, 0, no_memory);
}

/* ---- age ---- */

#define HOG_BLOCKS 2100u /* more than one batch */

static void write_blocks(struct world *w, uint64_t ino, uint64_t first, unsigned count, uint8_t byte)
{
	static uint8_t bytes[BLOCK_BYTES];
	memset(bytes, byte, sizeof(bytes));
	for (unsigned k = 0; k < count; k++)
		check_ok(fs_write(w->fs, ino, (first + k) * BLOCK_BYTES, bytes, BLOCK_BYTES, 0));
}

static uint64_t hog_ino;
static bool hog_done;

static void hog_fsync(void *arg)
{
	struct world *w = arg;
	struct fs_errseq seq;
	fs_errseq_sample(w->fs, hog_ino, &seq);
	check_ok(fs_fsync(w->fs, hog_ino, false, &seq));
	hog_done = true;
}

/*
 * A file that is synced and written at once, again and again, so that something of it is always dirty and nothing of
 * it is old, and was there first. What others wrote must be safe in time all the same.
 */
static void young_before_old(struct world *w)
{
	struct fs_attr hog, small;
	uint8_t *data, want[BLOCK_BYTES];
	void *at;
	size_t got;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "hog", S_IFREG | 0644, 0, 0, &root_cred, &hog));
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "small", S_IFREG | 0644, 0, 0, &root_cred, &small));
	check_ok(fs_sync(w->fs));
	write_blocks(w, hog.ino, 0, 1, 1);
	write_blocks(w, small.ino, 0, 1, 2);
	hog_ino = hog.ino;
	for (unsigned round = 0; round < 10; round++) {
		hog_done = false;
		write_blocks(w, hog.ino, 0, HOG_BLOCKS, 1);
		check_ok(co_spawn(w->loop, hog_fsync, w));
		while (!hog_done) {
			co_yield ();
			if (writeback_peek(inode_find(w->fs, hog.ino), HOG_BLOCKS + round + 1) == NULL)
				write_blocks(w, hog.ino, HOG_BLOCKS + round + 1, 1, 3);
		}
		assert_true(inode_find(w->fs, hog.ino)->dirty_count);
		co_sleep_ns(NS_PER_S);
	}
	fs_unref(w->fs, hog.ino, 1);
	fs_unref(w->fs, small.ino, 1);
	world_crash(w);
	data = buf_get_wait(2 * BLOCK_BYTES);
	check_ok(fs_read(w->fs, small.ino, 0, BLOCK_BYTES, data, &at, &got));
	assert_int_equal(got, BLOCK_BYTES);
	memset(want, 2, sizeof(want));
	assert_memory_equal(at, want, BLOCK_BYTES);
	buf_put(data);
}

/* A file of which a block was written when it says, two seconds ago, and a commit between that knows nothing of it. */
static uint64_t file_written_before(struct world *w, uint64_t block, uint64_t *ret_ns)
{
	struct fs_attr a;
	check_ok(fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a));
	check_ok(fs_sync(w->fs));
	*ret_ns = loop_now_ns(w->loop);
	write_blocks(w, a.ino, block, 1, 1);
	co_sleep_ns(2 * NS_PER_S);
	check_ok(raid_commit(w->raid));
	return a.ino;
}

/* Says by when what is written out must be committed, the older of two dirtyings deciding. */
static void committed_by(struct world *w)
{
	uint64_t start, ino = file_written_before(w, 1, &start);
	write_blocks(w, ino, 2, 1, 1);
	co_sleep_ns(1500 * NS_PER_MS);
	assert_int_equal(inode_find(w->fs, ino)->dirty_count, 0);
	assert_true(fake_raid_commit_by_ns(w->raid) < start + 5 * NS_PER_S);
	fs_unref(w->fs, ino, 1);
}

/* The size that a write gave is due with it, also when the blocks are taken away before they are written out. */
static void size_committed_by(struct world *w)
{
	uint64_t start, ino = file_written_before(w, 0, &start);
	check_ok(fs_fallocate(w->fs, ino, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 4 * BLOCK_BYTES));
	assert_true(fake_raid_commit_by_ns(w->raid) <= start + 5 * NS_PER_S);
	fs_unref(w->fs, ino, 1);
}

static void test_age(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 1, .commit_ns_max = NS_PER_S};
	world_test(1, &p, 48u << 20, young_before_old);
	p.commit_ns_max = UINT64_MAX / 4;
	world_test(1, &p, 0, committed_by);
	world_test(1, &p, 0, size_committed_by);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_limits),	 cmocka_unit_test(test_old_bytes),
	    cmocka_unit_test(test_many_extents), cmocka_unit_test(test_against_model),
	    cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_many_hands),
	    cmocka_unit_test(test_full),	 cmocka_unit_test(test_full_delete),
	    cmocka_unit_test(test_failures),	 cmocka_unit_test(test_sync_size),
	    cmocka_unit_test(test_crashes),	 cmocka_unit_test(test_pool),
	    cmocka_unit_test(test_pieces),	 cmocka_unit_test(test_age),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
