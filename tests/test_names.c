/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Names, links, attributes, extended attributes: each call with its errors, then random operations
 * against a model (a table of names) with crashes back to the last commit, and several coroutines
 * at once. The checker runs after every unmount and crash.
 */
#include "fs_world.h"
#include <dirent.h>
#include <linux/fs.h>
#include <linux/xattr.h>
#include "fs/inode.h"

static const struct fs_cred root_cred = {0, 0, 022};

/* fs_name_hash by another name (see meson.build), to have names with the same hash. */
static bool hashes_few;
uint64_t __real_fs_name_hash(const struct fs *fs, const char *name, size_t len);
uint64_t __wrap_fs_name_hash(const struct fs *fs, const char *name, size_t len);
uint64_t __wrap_fs_name_hash(const struct fs *fs, const char *name, size_t len)
{
	uint64_t hash = __real_fs_name_hash(fs, name, len);
	return hashes_few ? hash % 3 + 1 : hash;
}

static uint64_t make(struct world *w, uint64_t parent, const char *name, uint32_t mode)
{
	struct fs_attr a;
	if (S_ISDIR(mode))
		check_ok(fs_mkdir(w->fs, parent, name, mode, &root_cred, &a));
	else
		check_ok(fs_mknod(w->fs, parent, name, mode, 5, 6, &root_cred, &a));
	fs_unref(w->fs, a.ino, 1);
	return a.ino;
}

static uint64_t find(struct world *w, uint64_t parent, const char *name)
{
	struct fs_attr a;
	int r = fs_lookup(w->fs, parent, name, &a);
	if (r == -ENOENT)
		return 0;
	check_ok(r);
	fs_unref(w->fs, a.ino, 1);
	return a.ino;
}

static struct fs_attr attr_of(struct world *w, uint64_t ino)
{
	struct fs_attr a;
	check_ok(fs_getattr(w->fs, ino, &a));
	return a;
}

/* ---- one thing after the other ---- */

static void basics(struct world *w)
{
	struct fs_attr a, b;
	char name[300], text[5000];
	uint64_t d = make(w, FS_ROOT_INO, "dir", S_IFDIR | 0777);
	a = attr_of(w, d);
	assert_int_equal(a.mode, S_IFDIR | 0755);
	assert_int_equal(a.links, 2);
	assert_int_not_equal(a.generation, 0);
	assert_int_equal(attr_of(w, FS_ROOT_INO).links, 3);
	uint64_t f = make(w, d, "file", S_IFREG | 0666);
	assert_int_equal(attr_of(w, f).mode, S_IFREG | 0644);
	uint64_t c = make(w, d, "char", S_IFCHR | 0600);
	a = attr_of(w, c);
	assert_int_equal(a.rdev_major, 5);
	assert_int_equal(a.rdev_minor, 6);
	make(w, d, "fifo", S_IFIFO | 0600);
	make(w, d, "sock", S_IFSOCK | 0600);
	check_err(fs_mknod(w->fs, d, "file", S_IFREG, 0, 0, &root_cred, &a), -EEXIST);
	check_err(fs_mkdir(w->fs, d, "file", 0, &root_cred, &a), -EEXIST);
	check_err(fs_mkdir(w->fs, f, "x", 0, &root_cred, &a), -ENOTDIR);
	check_err(fs_lookup(w->fs, f, "x", &a), -ENOTDIR);
	check_err(fs_lookup(w->fs, d, "nothing", &a), -ENOENT);
	memset(name, 'n', sizeof(name));
	name[256] = '\0';
	check_err(fs_mkdir(w->fs, d, name, 0, &root_cred, &a), -ENAMETOOLONG);
	check_err(fs_lookup(w->fs, d, name, &a), -ENAMETOOLONG);
	name[255] = '\0';
	assert_int_equal(find(w, d, name), 0);
	assert_int_equal(make(w, d, name, S_IFREG), find(w, d, name));
	assert_int_equal(find(w, d, "."), d);
	assert_int_equal(find(w, d, ".."), FS_ROOT_INO);
	assert_int_equal(find(w, FS_ROOT_INO, ".."), FS_ROOT_INO);
	assert_int_equal(find(w, f, "."), f);
	fs_path(w->fs, f, text, sizeof(text));
	assert_string_equal(text, "/dir/file");
	fs_path(w->fs, FS_ROOT_INO, text, sizeof(text));
	assert_string_equal(text, "/");
	fs_path(w->fs, f, text, 5);
	assert_string_equal(text, "inod");

	/* symlinks up to the longest */
	memset(text, 't', sizeof(text));
	for (unsigned len = 1; len <= FS_SYMLINK_BYTES_MAX; len += 1364 - (len == 1)) {
		char back[FS_SYMLINK_BYTES_MAX + 1];
		text[len] = '\0';
		check_ok(fs_symlink(w->fs, d, "link", text, &root_cred, &a));
		assert_int_equal(a.size, len);
		check_ok(fs_readlink(w->fs, a.ino, back, sizeof(back)));
		assert_string_equal(back, text);
		check_ok(fs_unlink(w->fs, d, "link"));
		check_ok(fs_readlink(w->fs, a.ino, back, sizeof(back)));
		fs_unref(w->fs, a.ino, 1);
		text[len] = 't';
	}
	text[4096] = '\0';
	check_err(fs_symlink(w->fs, d, "link", text, &root_cred, &a), -ENAMETOOLONG);
	check_err(fs_readlink(w->fs, f, text, sizeof(text)), -EINVAL);

	/* hard links */
	check_ok(fs_link(w->fs, f, FS_ROOT_INO, "hard", &b));
	assert_int_equal(b.links, 2);
	check_err(fs_link(w->fs, f, FS_ROOT_INO, "hard", &b), -EEXIST);
	check_err(fs_link(w->fs, d, FS_ROOT_INO, "dirlink", &b), -EPERM);
	check_ok(fs_unlink(w->fs, d, "file"));
	assert_int_equal(attr_of(w, f).links, 1);
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "hard"));
	assert_int_equal(attr_of(w, f).links, 0); /* held by the link's reference */
	check_err(fs_unlink(w->fs, FS_ROOT_INO, "hard"), -ENOENT);
	fs_unref(w->fs, f, 1);
	for (int k = 0; k < 100 && fs_getattr(w->fs, f, &a) == 0; k++)
		co_yield ();
	check_err(fs_getattr(w->fs, f, &a), -ESTALE);

	/* removing */
	check_err(fs_unlink(w->fs, FS_ROOT_INO, "dir"), -EISDIR);
	check_err(fs_rmdir(w->fs, FS_ROOT_INO, "dir"), -ENOTEMPTY);
	check_err(fs_rmdir(w->fs, d, "char"), -ENOTDIR);
	check_err(fs_rmdir(w->fs, d, "."), -EINVAL);
	check_err(fs_rmdir(w->fs, d, ".."), -ENOTEMPTY);
	check_ok(fs_unlink(w->fs, d, "char"));
	check_ok(fs_unlink(w->fs, d, "fifo"));
	check_ok(fs_unlink(w->fs, d, "sock"));
	check_ok(fs_unlink(w->fs, d, name));
	fs_ref(w->fs, d);
	check_ok(fs_rmdir(w->fs, FS_ROOT_INO, "dir"));
	check_err(fs_mkdir(w->fs, d, "in removed", 0, &root_cred, &a), -ENOENT);
	assert_int_equal(attr_of(w, FS_ROOT_INO).links, 2);
	fs_unref(w->fs, d, 1);

	/* unnamed, named later; unnamed for good */
	check_ok(fs_tmpfile(w->fs, FS_ROOT_INO, 0600, &root_cred, &a));
	check_ok(fs_tmpfile(w->fs, FS_ROOT_INO, 0600, &root_cred, &b));
	assert_int_equal(a.links, 0);
	uint64_t tmp = a.ino;
	check_ok(fs_link(w->fs, tmp, FS_ROOT_INO, "named", &a));
	fs_unref(w->fs, tmp, 2);
	assert_int_equal(attr_of(w, tmp).links, 1);
	world_remount(w);
	assert_int_equal(find(w, FS_ROOT_INO, "named"), tmp);
	check_err(fs_getattr(w->fs, b.ino, &a), -ESTALE);
}

static void attributes(struct world *w)
{
	struct fs_attr a = {0}, b;
	struct fs_cred user = {1000, 1000, 0};
	uint64_t d = make(w, FS_ROOT_INO, "d", S_IFDIR | 0777);
	a.mode = 02775;
	a.gid = 50;
	check_ok(fs_setattr(w->fs, d, &a, FS_SET_MODE | FS_SET_GID, &b));
	assert_int_equal(b.mode, S_IFDIR | 02775);
	check_ok(fs_mkdir(w->fs, d, "sub", 0755, &user, &b));
	assert_int_equal(b.mode, S_IFDIR | 02755);
	assert_int_equal(b.gid, 50);
	assert_int_equal(b.uid, 1000);
	fs_unref(w->fs, b.ino, 1);
	check_ok(fs_mknod(w->fs, d, "f", S_IFREG | 06755, 0, 0, &user, &b));
	fs_unref(w->fs, b.ino, 1);
	uint64_t f = b.ino;
	assert_int_equal(b.mode, S_IFREG | 06755);
	check_ok(fs_setxattr(w->fs, f, "security.capability", "caps", 4, 0));
	a.uid = 7;
	check_ok(fs_setattr(w->fs, f, &a, FS_SET_UID, &b));
	assert_int_equal(b.mode, S_IFREG | 0755);
	assert_int_equal(b.uid, 7);
	size_t len;
	check_err(fs_getxattr(w->fs, f, "security.capability", NULL, 0, &len), -ENODATA);
	a.mode = 06644; /* no group execute: sgid stays */
	check_ok(fs_setattr(w->fs, f, &a, FS_SET_MODE, &b));
	check_ok(fs_write(w->fs, f, 0, "x", 1, false));
	assert_int_equal(attr_of(w, f).mode, S_IFREG | 06644);
	check_ok(fs_setxattr(w->fs, f, "security.capability", "caps", 4, 0));
	check_ok(fs_write(w->fs, f, 1, "x", 1, true));
	assert_int_equal(attr_of(w, f).mode, S_IFREG | 02644);
	check_err(fs_getxattr(w->fs, f, "security.capability", NULL, 0, &len), -ENODATA);
	a.mtime = (struct timespec){-5, 123456789};
	a.atime = (struct timespec){1ll << 33, 1};
	check_ok(fs_setattr(w->fs, f, &a, FS_SET_MTIME | FS_SET_ATIME, &b));
	b = attr_of(w, f);
	assert_int_equal(b.mtime.tv_sec, -5);
	assert_int_equal(b.mtime.tv_nsec, 123456789);
	assert_int_equal(b.atime.tv_sec, 1ll << 33);
	assert_true(b.ctime.tv_sec > b.btime.tv_sec);
	world_remount(w);
	b = attr_of(w, f);
	assert_int_equal(b.mtime.tv_sec, -5);
	assert_int_equal(b.size, 2);
	check_err(fs_setattr(w->fs, d, &a, FS_SET_SIZE, &b), -EISDIR);
	a.size = FS_FILE_BYTES_MAX + 1;
	check_err(fs_setattr(w->fs, f, &a, FS_SET_SIZE, &b), -EFBIG);
}

static void renames(struct world *w)
{
	struct fs *fs = w->fs;
	uint64_t a = make(w, FS_ROOT_INO, "a", S_IFDIR | 0755), b = make(w, a, "b", S_IFDIR | 0755);
	uint64_t c = make(w, b, "c", S_IFDIR | 0755), f = make(w, a, "f", S_IFREG),
		 g = make(w, b, "g", S_IFREG);
	check_err(fs_rename(fs, FS_ROOT_INO, "a", b, "x", 0), -EINVAL);
	check_err(fs_rename(fs, FS_ROOT_INO, "a", a, "x", 0), -EINVAL);
	check_err(fs_rename(fs, FS_ROOT_INO, "a", c, "x", RENAME_NOREPLACE), -EINVAL);
	check_err(fs_rename(fs, FS_ROOT_INO, "a", b, "c", RENAME_EXCHANGE), -EINVAL);
	check_err(fs_rename(fs, b, "c", FS_ROOT_INO, "a", RENAME_EXCHANGE), -EINVAL);
	check_err(fs_rename(fs, b, "c", FS_ROOT_INO, "a", 0), -ENOTEMPTY);
	check_err(fs_rename(fs, a, "f", a, "b", 0), -EISDIR);
	check_err(fs_rename(fs, a, "b", a, "f", 0), -ENOTDIR);
	check_err(fs_rename(fs, a, "none", a, "f", 0), -ENOENT);
	check_err(fs_rename(fs, a, "f", a, "none", RENAME_EXCHANGE), -ENOENT);
	check_err(fs_rename(fs, a, "f", b, "g", RENAME_NOREPLACE), -EEXIST);
	check_err(fs_rename(fs, a, "f", b, "g", RENAME_NOREPLACE | RENAME_EXCHANGE), -EINVAL);
	check_err(fs_rename(fs, a, "f", b, "g", RENAME_WHITEOUT | RENAME_EXCHANGE), -EINVAL);
	check_err(fs_rename(fs, a, "f", b, "g", 8), -EINVAL);
	check_err(fs_rename(fs, a, ".", b, "g", 0), -EBUSY);
	check_ok(fs_rename(fs, a, "f", a, "f", 0));
	check_ok(fs_rename(fs, a, "f", a, "f2", 0));
	assert_int_equal(find(w, a, "f2"), f);
	assert_int_equal(find(w, a, "f"), 0);
	check_ok(fs_rename(fs, a, "f2", b, "g", 0));
	assert_int_equal(find(w, b, "g"), f);
	struct fs_attr attr;
	for (int k = 0; k < 100 && fs_getattr(fs, g, &attr) == 0; k++)
		co_yield ();
	check_err(fs_getattr(fs, g, &attr), -ESTALE);
	/* directories move with their ".." and counts */
	check_ok(fs_rename(fs, b, "c", FS_ROOT_INO, "c", 0));
	assert_int_equal(find(w, c, ".."), FS_ROOT_INO);
	assert_int_equal(attr_of(w, FS_ROOT_INO).links, 4);
	assert_int_equal(attr_of(w, b).links, 2);
	check_ok(fs_rename(fs, FS_ROOT_INO, "c", b, "g", RENAME_EXCHANGE));
	assert_int_equal(find(w, FS_ROOT_INO, "c"), f);
	assert_int_equal(find(w, b, "g"), c);
	assert_int_equal(find(w, c, ".."), b);
	assert_int_equal(attr_of(w, FS_ROOT_INO).links, 3);
	assert_int_equal(attr_of(w, b).links, 3);
	/* over an empty directory */
	uint64_t e = make(w, FS_ROOT_INO, "e", S_IFDIR | 0755);
	check_ok(fs_rename(fs, b, "g", FS_ROOT_INO, "e", 0));
	assert_int_equal(find(w, FS_ROOT_INO, "e"), c);
	assert_int_not_equal(c, e);
	/* whiteout */
	check_ok(fs_rename(fs, FS_ROOT_INO, "c", FS_ROOT_INO, "h", RENAME_WHITEOUT));
	attr = attr_of(w, find(w, FS_ROOT_INO, "c"));
	assert_int_equal(attr.mode, S_IFCHR);
	assert_int_equal(attr.rdev_major | attr.rdev_minor, 0);
	/* two names of one file: nothing happens */
	check_ok(fs_link(fs, f, b, "twin", &attr));
	fs_unref(fs, f, 1);
	check_ok(fs_rename(fs, b, "twin", FS_ROOT_INO, "h", 0));
	assert_int_equal(find(w, b, "twin"), f);
	assert_int_equal(attr_of(w, f).links, 2);
	world_remount(w);
	assert_int_equal(find(w, b, "twin"), f);
}

struct seen {
	char name[4096][16];
	unsigned count, stop_after;
	uint64_t cookie;
	bool attr;
	struct fs *fs;
};

static bool see(void *arg, const char *name, uint64_t ino, unsigned dtype, uint64_t cookie,
		const struct fs_attr *attr)
{
	struct seen *s = arg;
	if (s->stop_after-- == 0)
		return false;
	assert_true(cookie > s->cookie && cookie <= INT64_MAX);
	s->cookie = cookie;
	snprintf(s->name[s->count++], 16, "%.15s", name);
	if (s->attr && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
		assert_int_equal(attr->ino, ino);
		assert_int_equal(IFTODT(attr->mode), dtype);
		fs_unref(s->fs, ino, 1);
	}
	return true;
}

static bool seen_name(const struct seen *s, const char *name)
{
	for (unsigned k = 0; k < s->count; k++)
		if (strcmp(s->name[k], name) == 0)
			return true;
	return false;
}

static void listings(struct world *w)
{
	char name[32];
	uint64_t d = make(w, FS_ROOT_INO, "big", S_IFDIR | 0755);
	struct seen *s = calloc(1, sizeof(*s));
	for (unsigned k = 0; k < 1000; k++) {
		snprintf(name, sizeof(name), "f%u", k);
		make(w, d, name, S_IFREG);
	}
	/* in small portions; what is deleted and made meanwhile does not disturb the others */
	s->fs = w->fs;
	unsigned deleted = 0;
	for (unsigned round = 0;; round++) {
		unsigned before = s->count;
		s->stop_after = 1 + (unsigned)rnd(w, 20);
		s->attr = round & 1;
		check_ok(fs_readdir(w->fs, d, s->cookie, s->attr, see, s));
		if (s->count == before)
			break;
		if (deleted < 500) {
			snprintf(name, sizeof(name), "f%u", deleted++ * 2 + 1);
			check_ok(fs_unlink(w->fs, d, name));
			snprintf(name, sizeof(name), "new%u", deleted);
			make(w, d, name, S_IFREG);
		}
	}
	assert_string_equal(s->name[0], ".");
	assert_string_equal(s->name[1], "..");
	for (unsigned k = 0; k < 1000; k += 2) {
		snprintf(name, sizeof(name), "f%u", k);
		assert_true(seen_name(s, name));
	}
	for (unsigned k = 0; k < s->count; k++)
		for (unsigned x = 0; x < k; x++)
			assert_string_not_equal(s->name[k], s->name[x]);
	/* everything goes while it is being listed, as rm -r does */
	check_err(fs_readdir(w->fs, s->count ? find(w, d, "f0") : 0, 0, false, see, s), -ENOTDIR);
	for (;;) {
		*s = (struct seen){.stop_after = 50, .fs = w->fs};
		check_ok(fs_readdir(w->fs, d, 0, false, see, s));
		if (s->count == 2)
			break;
		for (unsigned k = 2; k < s->count; k++)
			check_ok(fs_unlink(w->fs, d, s->name[k]));
	}
	check_ok(fs_rmdir(w->fs, FS_ROOT_INO, "big"));
	free(s);
}

static void xattrs(struct world *w)
{
	struct fs *fs = w->fs;
	uint64_t f = make(w, FS_ROOT_INO, "f", S_IFREG);
	size_t len, sizes[] = {0, 1, 1580, 1600, 1700, 5000, 65535, 65536};
	uint8_t *in = malloc(70000), *out = malloc(70000);
	char list[1000];
	check_err(fs_getxattr(fs, f, "user.none", out, 10, &len), -ENODATA);
	check_err(fs_setxattr(fs, f, "none.x", out, 1, 0), -EOPNOTSUPP);
	check_err(fs_setxattr(fs, f, "user.", out, 1, 0), -EINVAL);
	check_err(fs_setxattr(fs, f, "user.a", out, 65537, 0), -E2BIG);
	check_err(fs_removexattr(fs, f, "user.a"), -ENODATA);
	check_err(fs_setxattr(fs, f, "user.a", in, 1, XATTR_REPLACE), -ENODATA);
	for (unsigned k = 0; k < 40; k++) {
		size_t n = sizes[rnd(w, ARRAY_SIZE(sizes))];
		const char *name = k & 1 ? "user.a" : "trusted.other";
		for (size_t b = 0; b < n; b++)
			in[b] = (uint8_t)(b * 7 + k);
		check_ok(fs_setxattr(fs, f, name, in, n, 0));
		check_ok(fs_getxattr(fs, f, name, NULL, 0, &len));
		assert_int_equal(len, n);
		check_ok(fs_getxattr(fs, f, name, out, 70000, &len));
		assert_int_equal(len, n);
		assert_memory_equal(in, out, n);
		if (n > 1)
			check_err(fs_getxattr(fs, f, name, out, n - 1, &len), -ERANGE);
		if (k == 20)
			world_remount(w);
		fs = w->fs;
	}
	check_err(fs_setxattr(fs, f, "user.a", in, 1, XATTR_CREATE), -EEXIST);
	check_ok(fs_setxattr(fs, f, "system.posix_acl_access", in, 44, XATTR_CREATE));
	check_ok(fs_listxattr(fs, f, NULL, 0, &len));
	assert_int_equal(len, sizeof("user.a") + sizeof("trusted.other") +
				  sizeof("system.posix_acl_access"));
	check_err(fs_listxattr(fs, f, list, 10, &len), -ERANGE);
	check_ok(fs_listxattr(fs, f, list, sizeof(list), &len));
	for (size_t at = 0; at < len; at += strlen(list + at) + 1)
		check_ok(fs_getxattr(fs, f, list + at, NULL, 0, &(size_t){0}));
	check_ok(fs_removexattr(fs, f, "user.a"));
	check_err(fs_getxattr(fs, f, "user.a", out, 10, &len), -ENODATA);
	world_crash(w);
	free(in);
	free(out);
}

static void links_max(struct world *w)
{
	struct fs_attr a;
	char name[32];
	uint64_t f = make(w, FS_ROOT_INO, "f", S_IFREG);
	for (unsigned k = 1; k < FS_LINK_MAX; k++) {
		snprintf(name, sizeof(name), "l%u", k);
		check_ok(fs_link(w->fs, f, FS_ROOT_INO, name, &a));
	}
	assert_int_equal(a.links, FS_LINK_MAX);
	check_err(fs_link(w->fs, f, FS_ROOT_INO, "more", &a), -EMLINK);
}

/* ---- against a model ---- */

#define NODES	400
#define ENTRIES 300

struct node_model {
	uint64_t ino;
	uint32_t type;
	int links;	/* -1: free */
	char value[40]; /* of user.x */
};
struct entry_model {
	int dir, node; /* dir -1: free */
	char name[20];
};
struct model {
	struct node_model n[NODES];
	struct entry_model e[ENTRIES];
	int nodes;
};

static struct model now, committed;

static int model_find(int dir, const char *name)
{
	for (int k = 0; k < ENTRIES; k++)
		if (now.e[k].dir == dir && strcmp(now.e[k].name, name) == 0)
			return k;
	return -1;
}

static int model_free_entry(void)
{
	for (int k = 0; k < ENTRIES; k++)
		if (now.e[k].dir < 0)
			return k;
	return -1;
}

static bool model_empty(int dir)
{
	for (int k = 0; k < ENTRIES; k++)
		if (now.e[k].dir == dir)
			return false;
	return true;
}

static int model_parent(int node)
{
	for (int k = 0; k < ENTRIES; k++)
		if (now.e[k].dir >= 0 && now.e[k].node == node)
			return now.e[k].dir;
	return -1;
}

static bool model_above(int node, int dir)
{
	for (; dir > 0; dir = model_parent(dir))
		if (dir == node)
			return true;
	return node == 0;
}

static void model_add(int slot, int dir, const char *name, int node)
{
	now.e[slot].dir = dir;
	now.e[slot].node = node;
	snprintf(now.e[slot].name, sizeof(now.e[slot].name), "%s", name);
	now.n[node].links++;
}

static void model_del(int slot)
{
	now.n[now.e[slot].node].links--;
	now.e[slot].dir = -1;
}

static int random_dir(struct world *w)
{
	for (;;) {
		int k = (int)rnd(w, (uint64_t)now.nodes);
		if (now.n[k].type == S_IFDIR && (k == 0 || now.n[k].links > 0))
			return k;
	}
}

static void random_name(struct world *w, char *ret)
{
	snprintf(ret, 20, "n%u", (unsigned)rnd(w, 12));
}

static void step_create(struct world *w)
{
	static const uint32_t types[] = {S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFLNK, S_IFIFO};
	struct fs_attr a;
	char name[20];
	int dir = random_dir(w), slot = model_free_entry(), r;
	uint32_t type = types[rnd(w, ARRAY_SIZE(types))];
	random_name(w, name);
	if (slot < 0 || now.nodes == NODES)
		return;
	uint64_t parent = now.n[dir].ino;
	if (type == S_IFDIR)
		r = fs_mkdir(w->fs, parent, name, 0755, &root_cred, &a);
	else if (type == S_IFLNK)
		r = fs_symlink(w->fs, parent, name, "target", &root_cred, &a);
	else
		r = fs_mknod(w->fs, parent, name, type | 0644, 0, 0, &root_cred, &a);
	if (model_find(dir, name) >= 0) {
		check_err(r, -EEXIST);
		return;
	}
	check_ok(r);
	fs_unref(w->fs, a.ino, 1);
	now.n[now.nodes] = (struct node_model){.ino = a.ino, .type = type};
	model_add(slot, dir, name, now.nodes++);
}

static void step_link(struct world *w)
{
	struct fs_attr a;
	char name[20];
	int node = (int)rnd(w, (uint64_t)now.nodes), dir = random_dir(w), slot = model_free_entry();
	random_name(w, name);
	if (slot < 0)
		return;
	int r = fs_link(w->fs, now.n[node].ino, now.n[dir].ino, name, &a);
	if (now.n[node].links <= 0 && node != 0) {
		assert_true(r == -ESTALE || r == -ENOENT ||
			    (now.n[node].type == S_IFDIR && r == -EPERM));
	} else if (now.n[node].type == S_IFDIR) {
		check_err(r, -EPERM);
	} else if (model_find(dir, name) >= 0) {
		check_err(r, -EEXIST);
	} else {
		check_ok(r);
		fs_unref(w->fs, a.ino, 1);
		model_add(slot, dir, name, node);
		assert_int_equal(a.links, now.n[node].links);
	}
}

static void step_remove(struct world *w)
{
	char name[20];
	int dir = random_dir(w);
	bool rmdir = rnd(w, 2);
	random_name(w, name);
	int slot = model_find(dir, name);
	int r =
	    rmdir ? fs_rmdir(w->fs, now.n[dir].ino, name) : fs_unlink(w->fs, now.n[dir].ino, name);
	if (slot < 0) {
		check_err(r, -ENOENT);
		return;
	}
	int node = now.e[slot].node;
	bool is_dir = now.n[node].type == S_IFDIR;
	if (is_dir != rmdir)
		check_err(r, rmdir ? -ENOTDIR : -EISDIR);
	else if (is_dir && !model_empty(node))
		check_err(r, -ENOTEMPTY);
	else {
		check_ok(r);
		model_del(slot);
	}
}

static int rename_expect(int from, int to, int dir, int new_dir, unsigned flags)
{
	if (from < 0)
		return -ENOENT;
	if (to >= 0 && (flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (to < 0 && (flags & RENAME_EXCHANGE))
		return -ENOENT;
	int a = now.e[from].node, b = to < 0 ? -1 : now.e[to].node;
	if (a == b)
		return 1;
	if (now.n[a].type == S_IFDIR && model_above(a, new_dir))
		return -EINVAL;
	if (b >= 0 && (flags & RENAME_EXCHANGE))
		return now.n[b].type == S_IFDIR && model_above(b, dir) ? -EINVAL : 0;
	if (b >= 0 && now.n[a].type == S_IFDIR && now.n[b].type != S_IFDIR)
		return -ENOTDIR;
	if (b >= 0 && now.n[a].type != S_IFDIR && now.n[b].type == S_IFDIR)
		return -EISDIR;
	if (b >= 0 && now.n[b].type == S_IFDIR && !model_empty(b))
		return -ENOTEMPTY;
	return 0;
}

static void step_rename(struct world *w)
{
	static const unsigned all_flags[] = {
	    0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_EXCHANGE};
	char name[20], new_name[20];
	int dir = random_dir(w), new_dir = rnd(w, 3) ? random_dir(w) : dir;
	unsigned flags = all_flags[rnd(w, ARRAY_SIZE(all_flags))];
	random_name(w, name);
	random_name(w, new_name);
	int from = model_find(dir, name), to = model_find(new_dir, new_name);
	int want = rename_expect(from, to, dir, new_dir, flags);
	int r = fs_rename(w->fs, now.n[dir].ino, name, now.n[new_dir].ino, new_name, flags);
	check_err(r, MIN(want, 0));
	if (want)
		return;
	int node = now.e[from].node;
	if (flags & RENAME_EXCHANGE) {
		now.e[from].node = now.e[to].node;
		now.e[to].node = node;
		return;
	}
	if (to >= 0)
		model_del(to);
	model_del(from);
	model_add(from, new_dir, new_name, node);
}

static void step_xattr(struct world *w)
{
	int k = (int)rnd(w, (uint64_t)now.nodes);
	if (k && now.n[k].links <= 0)
		return;
	char value[40];
	snprintf(value, sizeof(value), "v%llu", (unsigned long long)rnd(w, 1000000));
	check_ok(fs_setxattr(w->fs, now.n[k].ino, "user.x", value, strlen(value), 0));
	memcpy(now.n[k].value, value, sizeof(value));
}

struct listed {
	int dir;
	unsigned count;
};

static bool list_model(void *arg, const char *name, uint64_t ino, unsigned dtype, uint64_t cookie,
		       const struct fs_attr *attr)
{
	struct listed *l = arg;
	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return true;
	int k = model_find(l->dir, name);
	if (k < 0)
		die("unexpected name %s", name);
	assert_int_equal(ino, now.n[now.e[k].node].ino);
	assert_int_equal(dtype, IFTODT(now.n[now.e[k].node].type));
	l->count++;
	return true;
}

static void compare(struct world *w)
{
	for (int k = 0; k < now.nodes; k++) {
		struct node_model *n = &now.n[k];
		if (k && n->links <= 0)
			continue;
		struct fs_attr a = attr_of(w, n->ino);
		char value[40] = "";
		size_t len;
		int r = fs_getxattr(w->fs, n->ino, "user.x", value, sizeof(value) - 1, &len);
		assert_true(r == 0 || r == -ENODATA);
		assert_string_equal(value, n->value);
		if (n->type != S_IFDIR) {
			assert_int_equal(a.links, n->links);
			continue;
		}
		struct listed l = {.dir = k};
		unsigned want = 0, subdirs = 0;
		check_ok(fs_readdir(w->fs, n->ino, 0, false, list_model, &l));
		for (int e = 0; e < ENTRIES; e++) {
			want += now.e[e].dir == k;
			subdirs += now.e[e].dir == k && now.n[now.e[e].node].type == S_IFDIR;
		}
		assert_int_equal(l.count, want);
		assert_int_equal(a.links, 2 + subdirs);
		assert_int_equal(find(w, n->ino, ".."),
				 k ? now.n[model_parent(k)].ino : FS_ROOT_INO);
	}
}

static void against_model(struct world *w)
{
	memset(&now, 0, sizeof(now));
	for (int k = 0; k < ENTRIES; k++)
		now.e[k].dir = -1;
	now.n[0] = (struct node_model){.ino = FS_ROOT_INO, .type = S_IFDIR};
	now.nodes = 1;
	committed = now;
	check_ok(fs_sync(w->fs));
	for (unsigned step = 0; step < 1500; step++) {
		switch (rnd(w, 40)) {
		case 0:
			check_ok(fs_fsync(w->fs, FS_ROOT_INO, false, NULL));
			committed = now;
			break;
		case 1:
			if (rnd(w, 4) == 0) {
				world_crash(w);
				now = committed;
			}
			compare(w);
			break;
		case 2:
			if (rnd(w, 8) == 0) {
				world_remount(w);
				committed = now;
			}
			break;
		case 3 ... 4:
			step_xattr(w);
			break;
		case 5 ... 9:
			step_link(w);
			break;
		case 10 ... 14:
			step_remove(w);
			break;
		case 15 ... 22:
			step_rename(w);
			break;
		default:
			step_create(w);
		}
	}
	compare(w);
}

/* ---- side by side ---- */

static void one_of_many(struct world *w, unsigned number)
{
	struct fs_attr a;
	char name[20], other[20];
	uint64_t held[8] = {0};
	for (unsigned k = 0; k < 300; k++) {
		uint64_t dir = FS_ROOT_INO;
		random_name(w, name);
		random_name(w, other);
		if (rnd(w, 2) && fs_lookup(w->fs, dir, name, &a) == 0) {
			uint64_t *place = &held[rnd(w, ARRAY_SIZE(held))];
			if (*place)
				fs_unref(w->fs, *place, 1);
			*place = a.ino;
			dir = S_ISDIR(a.mode) ? a.ino : dir;
		}
		int r = 0;
		unsigned what = (unsigned)rnd(w, 8);
		bool took = what < 2 || what == 5 || what == 6;
		switch (what) {
		case 0:
			r = fs_mkdir(w->fs, dir, name, 0755, &root_cred, &a);
			break;
		case 1:
			r = fs_mknod(w->fs, dir, name, S_IFREG, 0, 0, &root_cred, &a);
			break;
		case 2:
			r = fs_unlink(w->fs, dir, name);
			break;
		case 3:
			r = fs_rmdir(w->fs, dir, name);
			break;
		case 4:
			r = fs_rename(w->fs, dir, name, FS_ROOT_INO, other,
				      rnd(w, 2) ? RENAME_EXCHANGE : 0);
			break;
		case 5:
			r = held[0] ? fs_link(w->fs, held[0], dir, name, &a) : -ENOENT;
			break;
		case 6:
			r = fs_tmpfile(w->fs, dir, 0600, &root_cred, &a);
			break;
		default:
			if (held[1])
				(void)fs_setxattr(w->fs, held[1], "user.y", name, 5, 0);
			r = -ENOENT;
		}
		assert_true(r == 0 || r == -EEXIST || r == -ENOENT || r == -ENOTDIR ||
			    r == -EISDIR || r == -ENOTEMPTY || r == -EINVAL || r == -EPERM ||
			    r == -ESTALE);
		if (r == 0 && took)
			fs_unref(w->fs, a.ino, 1);
	}
	for (unsigned k = 0; k < ARRAY_SIZE(held); k++)
		if (held[k])
			fs_unref(w->fs, held[k], 1);
}

static void side_by_side(struct world *w)
{
	world_side_by_side(w, 8, one_of_many);
	check_ok(fs_sync(w->fs));
	world_side_by_side(w, 8, one_of_many);
	world_crash(w);
	world_side_by_side(w, 8, one_of_many);
	world_remount(w);
}

static void no_memory(struct world *w)
{
	struct fs_attr a;
	/* The n-th allocation fails, until it succeeds: nothing is half done. */
	for (uint64_t n = 1; n < 200; n++) {
		mem_fail_after(n, false);
		int r = fs_mknod(w->fs, FS_ROOT_INO, "f", S_IFREG | 0644, 0, 0, &root_cred, &a);
		mem_fail_after(0, false);
		if (r) {
			check_err(r, -ENOMEM);
			assert_int_equal(find(w, FS_ROOT_INO, "f"), 0);
			continue;
		}
		mem_fail_after(n, false);
		r = fs_unlink(w->fs, FS_ROOT_INO, "f");
		mem_fail_after(0, false);
		fs_unref(w->fs, a.ino, 1);
		if (r) {
			check_err(r, -ENOMEM);
			check_ok(fs_unlink(w->fs, FS_ROOT_INO, "f"));
		}
		if (n > 20)
			break;
	}
	world_remount(w);
}

/* ".." of a directory that is held though it was removed, and its parent after it. */
static void removed_parent(struct world *w)
{
	struct fs_attr outer, inner, a;
	check_ok(fs_mkdir(w->fs, FS_ROOT_INO, "outer", 0755, &root_cred, &outer));
	check_ok(fs_mkdir(w->fs, outer.ino, "inner", 0755, &root_cred, &inner));
	check_ok(fs_rmdir(w->fs, outer.ino, "inner"));
	check_ok(fs_lookup(w->fs, inner.ino, "..", &a));
	assert_int_equal(a.ino, outer.ino);
	fs_unref(w->fs, a.ino, 1);
	check_ok(fs_rmdir(w->fs, FS_ROOT_INO, "outer"));
	fs_unref(w->fs, outer.ino, 1);
	check_ok(fs_sync(w->fs));
	co_sleep_ns(NS_PER_S); /* its inode is freed in the background */
	check_err(fs_lookup(w->fs, inner.ino, "..", &a), -ENOENT);
	fs_unref(w->fs, inner.ino, 1);
}

/* Names with the same hash are told apart. */
static void few_hashes(struct world *w)
{
	uint64_t ino[12];
	char name[16];
	hashes_few = true;
	for (unsigned i = 0; i < ARRAY_SIZE(ino); i++) {
		snprintf(name, sizeof(name), "n%u", i);
		assert_int_equal(find(w, FS_ROOT_INO, name), 0);
		ino[i] = make(w, FS_ROOT_INO, name, S_IFREG | 0644);
	}
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "n3"));
	ino[3] = 0;
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < ARRAY_SIZE(ino); i++) {
			snprintf(name, sizeof(name), "n%u", i);
			assert_int_equal(find(w, FS_ROOT_INO, name), ino[i]);
		}
		world_remount(w);
	}
}

static void report_lost_co(void *arg)
{
	struct world *w = arg;
	fake_raid_report_lost(w->raid, LBA_MAKE(2, 0), 1000);
}

/* A job of the volume is naming what it lost while the filesystem goes. */
static void naming_at_the_end(struct world *w)
{
	struct fs_attr a;
	char name[16];
	w->options.node_cache_bytes = 1; /* each look-up reads */
	for (unsigned i = 0; i < 2000; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &a));
		fs_unref(w->fs, a.ino, 1);
	}
	for (unsigned round = 0; round < 8; round++) {
		world_remount(w);
		check_ok(co_spawn(w->loop, report_lost_co, w));
		for (unsigned i = 0; i <= round; i++)
			co_yield ();
		if (round % 2)
			world_crash(w);
		else
			world_remount(w);
	}
}

/* What the kernel does not ask for is refused all the same. */
static void refused(struct world *w)
{
	uint64_t d = make(w, FS_ROOT_INO, "dir", S_IFDIR | 0755), f;
	char text[300] = "untouched";
	struct fs_attr a;

	f = make(w, d, "plain", 0644); /* without a type */
	assert_int_equal(attr_of(w, f).mode, S_IFREG | 0644);
	check_err(fs_lookup(w->fs, d, "", &a), -ENOENT);
	check_err(fs_mknod(w->fs, d, ".", S_IFREG, 0, 0, &root_cred, &a), -EEXIST);
	check_err(fs_mkdir(w->fs, d, "..", 0, &root_cred, &a), -EEXIST);
	check_err(fs_mknod(w->fs, d, "x", S_IFDIR, 0, 0, &root_cred, &a), -EINVAL);
	check_err(fs_symlink(w->fs, d, "x", "", &root_cred, &a), -ENOENT);
	check_err(fs_link(w->fs, f, d, "..", &a), -EEXIST);
	check_err(fs_unlink(w->fs, d, "."), -EISDIR);
	check_ok(fs_symlink(w->fs, d, "link", "target", &root_cred, &a));
	check_err(fs_readlink(w->fs, a.ino, text, 6), -ERANGE);
	fs_unref(w->fs, a.ino, 1);
	fs_path(w->fs, f, text, 0);
	assert_string_equal(text, "untouched");
	check_err(fs_setxattr(w->fs, f, "user.x", "", 0, 4), -EINVAL);
	memset(text, 'n', sizeof(text) - 1);
	memcpy(text, "user.", 5);
	text[299] = '\0';
	check_err(fs_setxattr(w->fs, f, text, "", 0, 0), -ERANGE);
	assert_int_equal(find(w, d, "x"), 0);

	w->options.read_only = true;
	world_remount(w);
	check_ok(fs_sync(w->fs));
	check_err(fs_mkdir(w->fs, d, "x", 0, &root_cred, &a), -EROFS);
	w->options.read_only = false;
	world_remount(w);
}

#define HELD 5000

/* So many inodes in use that their table grows. */
static void many_held(struct world *w)
{
	static uint64_t ino[HELD];
	struct fs_attr a;
	char name[16];

	for (unsigned i = 0; i < HELD; i++) {
		snprintf(name, sizeof(name), "h%u", i);
		check_ok(fs_mknod(w->fs, FS_ROOT_INO, name, S_IFREG | 0644, 0, 0, &root_cred, &a));
		ino[i] = a.ino;
	}
	for (unsigned i = 0; i < HELD; i++) {
		/* The one reference of each is found: the last to go. */
		snprintf(name, sizeof(name), "h%u", i);
		check_ok(fs_unlink(w->fs, FS_ROOT_INO, name));
		assert_int_equal(attr_of(w, ino[i]).links, 0);
	}
	for (unsigned i = 0; i < HELD; i++)
		fs_unref(w->fs, ino[i], 1);
	world_remount(w);
	for (unsigned i = 0; i < HELD; i++)
		check_err(fs_getattr(w->fs, ino[i], &a), -ESTALE);
}

/* A file with more items than one transaction deletes. */
static void many_items(struct world *w)
{
	uint64_t f = make(w, FS_ROOT_INO, "f", S_IFREG | 0644);
	struct fs_attr a;
	char name[16];

	for (unsigned i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "user.%u", i);
		check_ok(fs_setxattr(w->fs, f, name, name, strlen(name), 0));
	}
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "f"));
	world_remount(w);
	check_err(fs_getattr(w->fs, f, &a), -ESTALE);
}

struct item {
	struct key key;
	const void *data; /* NULL: deleted */
	unsigned len;
	bool there; /* when it was only looked at */
	uint64_t lba;
};

static int item_put_atom(struct fs *fs, void *arg)
{
	struct item *i = arg;
	int r = bt_prepare(fs, i->key, i->data ? i->len : 0);

	if (r)
		return r;
	if (i->data)
		bt_put(fs, i->key, i->data, i->len);
	else
		bt_del(fs, i->key);
	return 0;
}

static int item_get_atom(struct fs *fs, void *arg)
{
	struct item *i = arg;
	struct bt_value v;
	int r = bt_get(fs, i->key, &v);

	i->there = r == 0;
	if (r == 0 && v.len == sizeof(struct extent_disk))
		i->lba = from_le64(((const struct extent_disk *)v.data)->lba);
	return r == -ENOENT ? 0 : r;
}

static bool on_orphan_list(struct world *w, uint64_t ino)
{
	struct item i = {.key = orphan_key(ino)};

	check_ok(fs_atom(w->fs, ATOM_READ, item_get_atom, &i));
	return i.there;
}

/* One orphan cannot be read, one item names nothing: the others are freed all the same, and it is tried again. */
static void orphans_odd(struct world *w)
{
	uint64_t bad = make(w, FS_ROOT_INO, "bad", S_IFREG | 0644), good = make(w, FS_ROOT_INO, "good", S_IFREG | 0644);
	struct item nobody = {.key = orphan_key(987654), .data = ""};
	struct item damage = {.key = {bad, KEY_OFF(TYPE_EXTENT, 1000)}, .data = "?", .len = 1};
	static const char data[BLOCK_BYTES] = "x";
	struct fs_attr a;

	assert_true(bad < good);
	check_ok(fs_write(w->fs, bad, 0, data, BLOCK_BYTES, 0));
	check_ok(fs_write(w->fs, good, 0, data, BLOCK_BYTES, 0));
	check_ok(fs_lookup(w->fs, FS_ROOT_INO, "bad", &a));
	check_ok(fs_lookup(w->fs, FS_ROOT_INO, "good", &a));
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "bad"));
	check_ok(fs_unlink(w->fs, FS_ROOT_INO, "good"));
	check_ok(fs_atom(w->fs, ATOM_WRITE, item_put_atom, &nobody));
	check_ok(fs_sync(w->fs));
	check_ok(fs_atom(w->fs, ATOM_WRITE, item_put_atom, &damage));
	check_ok(raid_commit(w->raid));
	assert_true(on_orphan_list(w, bad) && on_orphan_list(w, good) && on_orphan_list(w, 987654));
	raid_abandon(w->raid);
	fs_abandon(w->fs);
	fake_raid_crash(w->raid);
	world_mount(w);
	assert_true(on_orphan_list(w, bad));
	assert_false(on_orphan_list(w, good));
	assert_false(on_orphan_list(w, 987654));
	check_err(fs_getattr(w->fs, good, &a), -ESTALE);
	check_ok(fs_getattr(w->fs, bad, &a));
	damage.data = NULL;
	check_ok(fs_atom(w->fs, ATOM_WRITE, item_put_atom, &damage));
	world_remount(w);
	assert_false(on_orphan_list(w, bad));
	check_err(fs_getattr(w->fs, bad, &a), -ESTALE);
}

static char said[8][200];
static unsigned said_count;

static void keep_log(enum log_level level, const char *text, void *arg)
{
	if (strstr(text, "lost") && said_count < ARRAY_SIZE(said))
		snprintf(said[said_count++], sizeof(said[0]), "%s", text);
}

/* P2: what is lost is named, by path and place in the file. */
static void lost_named(struct world *w)
{
	uint64_t d = make(w, FS_ROOT_INO, "dir", S_IFDIR | 0755), f = make(w, d, "file", S_IFREG | 0644);
	struct item extent = {.key = {f, KEY_OFF(TYPE_EXTENT, 2)}};
	static uint8_t data[8 * BLOCK_BYTES];
	char want[200];

	memset(data, 1, sizeof(data));
	check_ok(fs_write(w->fs, f, 2 * BLOCK_BYTES, data, sizeof(data), 0));
	check_ok(fs_fsync(w->fs, f, false, NULL));
	check_ok(fs_atom(w->fs, ATOM_READ, item_get_atom, &extent));
	assert_true(extent.there);
	said_count = 0;
	log_set_hook(keep_log, NULL);
	fake_raid_report_lost(w->raid, extent.lba + 6, 3);
	log_set_hook(no_log, NULL);
	assert_int_equal(said_count, 3);
	for (unsigned i = 0; i < 2; i++) {
		snprintf(want, sizeof(want), "/dir/file: lost 4096 bytes at offset %u (block %#llx)", (8 + i) * BLOCK_BYTES,
			 (unsigned long long)extent.lba + 6 + i);
		assert_string_equal(said[i], want);
	}
	snprintf(want, sizeof(want), "lost block %#llx belongs to no file: metadata or free",
		 (unsigned long long)extent.lba + 8);
	assert_string_equal(said[2], want);
}

#define TEST(name, fn)                                                                             \
	static void test_##name(void **state)                                                      \
	{                                                                                          \
		world_test(1, NULL, 0, fn);                                                        \
	}
TEST(basics, basics)
TEST(attributes, attributes)
TEST(renames, renames)
TEST(listings, listings)
TEST(xattrs, xattrs)
TEST(links_max, links_max)
TEST(side_by_side, side_by_side)
TEST(no_memory, no_memory)
TEST(removed_parent, removed_parent)
TEST(refused, refused)
TEST(many_held, many_held)
TEST(many_items, many_items)
TEST(orphans_odd, orphans_odd)
TEST(lost_named, lost_named)

static void test_naming_at_the_end(void **state)
{
	struct fake_raid_params p = {.yield_one_in = 1, .commit_ns_max = UINT64_MAX / 4};
	world_test(1, &p, 0, naming_at_the_end);
}

static void test_few_hashes(void **state)
{
	world_test(1, NULL, 0, few_hashes);
	hashes_few = false;
}

static void test_against_model(void **state)
{
	for_seeds(seed, 8) world_test(seed, NULL, 0, against_model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_basics),	  cmocka_unit_test(test_attributes),
	    cmocka_unit_test(test_renames),	  cmocka_unit_test(test_listings),
	    cmocka_unit_test(test_xattrs),	  cmocka_unit_test(test_links_max),
	    cmocka_unit_test(test_against_model), cmocka_unit_test(test_side_by_side),
	    cmocka_unit_test(test_no_memory),	  cmocka_unit_test(test_removed_parent),
	    cmocka_unit_test(test_naming_at_the_end), cmocka_unit_test(test_few_hashes),
	    cmocka_unit_test(test_refused),	  cmocka_unit_test(test_many_held),
	    cmocka_unit_test(test_many_items),	  cmocka_unit_test(test_orphans_odd),
	    cmocka_unit_test(test_lost_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
