/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Finding members.
 *
 * A path is never identity: a member is known by its label alone, and the same device may have many
 * names. It is taken once, by device number (block devices) or inode (files). A loop device stands
 * for its backing file, and what carries other block devices (multipath, device mapper, md) is
 * passed over in favour of what is built on it; otherwise one member would look like two clones.
 * Real clones are left in: the volume refuses them by name.
 *
 * Reading goes through the page cache of the device, which writes with O_DIRECT keep coherent.
 */
#include "scan.h"
#include "args.h"
#include "fs/rundir.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

void scan_init(struct scan *scan)
{
	memset(scan, 0, sizeof(*scan));
}

static void member_clear(struct scan_member *m)
{
	mem_free(m->path);
	label_clear(&m->label);
}

void scan_clear(struct scan *scan)
{
	for (unsigned i = 0; i < scan->count; i++)
		member_clear(&scan->members[i]);
	mem_free(scan->members);
	scan_init(scan);
}

static bool known(const struct scan *scan, const struct stat *st)
{
	for (unsigned i = 0; i < scan->count; i++) {
		const struct scan_member *m = &scan->members[i];
		if (S_ISBLK(st->st_mode) ? m->rdev == st->st_rdev
					 : !m->rdev && m->dev == st->st_dev && m->ino == st->st_ino)
			return true;
	}
	return false;
}

static int scan_add(struct scan *scan, const char *path, const struct stat *st, uint64_t size,
		    const struct label *label)
{
	char *absolute = realpath(path, NULL);

	if (!absolute)
		return -errno;
	if (scan->count == scan->cap) {
		unsigned cap = scan->cap ? scan->cap * 2 : 16;
		void *p = cap <= SCAN_MEMBERS_MAX
			      ? mem_realloc(scan->members, cap * sizeof(*scan->members))
			      : NULL;
		if (!p) {
			free(absolute);
			return -ENOMEM;
		}
		scan->members = p;
		scan->cap = cap;
	}
	struct scan_member *m = &scan->members[scan->count];
	memset(m, 0, sizeof(*m));
	m->path = mem_strdup(absolute);
	free(absolute);
	if (!m->path)
		return -ENOMEM;
	m->label = *label;
	m->size_bytes = size;
	if (S_ISBLK(st->st_mode)) {
		m->rdev = st->st_rdev;
	} else {
		m->dev = st->st_dev;
		m->ino = st->st_ino;
	}
	scan->count++;
	return 0;
}

int scan_path(struct scan *scan, const char *path)
{
	struct label label;
	struct stat st;
	uint64_t size = 0;
	/* Without O_NONBLOCK a fifo would hang us, and a drive without a medium too. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		r = -errno;
	else if (S_ISBLK(st.st_mode))
		r = ioctl(fd, BLKGETSIZE64, &size) < 0 ? -errno : 0;
	else if (S_ISREG(st.st_mode))
		size = (uint64_t)st.st_size;
	else
		r = -ENOTBLK;
	if (r == 0 && !known(scan, &st)) {
		memset(&label, 0, sizeof(label));
		r = size < 2 * LABEL_AREA_BYTES
			? -ENODATA
			: label_probe_fd(fd, ROUND_DOWN(size, BLOCK_BYTES), &label);
		if (r == 0) {
			r = scan_add(scan, path, &st, size, &label);
			if (r < 0)
				label_clear(&label);
		}
	}
	close(fd);
	return r;
}

static bool has_entries(const char *path)
{
	DIR *dir = opendir(path);
	bool found = false;
	struct dirent *d;

	while (dir && (d = readdir(dir))) {
		if (d->d_name[0] != '.')
			found = true;
	}
	if (dir)
		closedir(dir);
	return found;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names in a directory, sorted so that two scans of the same machine agree. */
static unsigned list_directory(const char *path, char ***ret)
{
	DIR *dir = opendir(path);
	unsigned count = 0, cap = 0;
	char **names = NULL;
	struct dirent *d;

	while (dir && (d = readdir(dir))) {
		if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
			continue;
		if (count == cap) {
			cap = cap ? cap * 2 : 64;
			char **more = mem_realloc(names, cap * sizeof(*names));
			if (!more)
				break;
			names = more;
		}
		names[count] = mem_strdup(d->d_name);
		if (!names[count])
			break;
		count++;
	}
	if (dir)
		closedir(dir);
	if (count)
		qsort(names, count, sizeof(*names), compare_names);
	*ret = names;
	return count;
}

static void free_list(char **names, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		mem_free(names[i]);
	mem_free(names);
}

void scan_block_devices(struct scan *scan)
{
	char **names, path[PATH_MAX];
	unsigned count = list_directory("/sys/class/block", &names);

	for (unsigned i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "/sys/class/block/%s/holders", names[i]);
		if (has_entries(path))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", names[i]);
		/* Sysfs writes '!' for '/' in names like cciss/c0d0. */
		for (char *p = path + 5; *p; p++) {
			if (*p == '!')
				*p = '/';
		}
		(void)scan_path(scan, path); /* no label, no medium, gone meanwhile: not ours */
	}
	free_list(names, count);
}

int scan_directory(struct scan *scan, const char *dir)
{
	char **names, path[PATH_MAX];
	struct stat st;

	if (stat(dir, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	unsigned count = list_directory(dir, &names);
	for (unsigned i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
			(void)scan_path(scan, path); /* no label: not ours */
	}
	free_list(names, count);
	return 0;
}

/* Image files that a loop device in the scan already stands for. */
static void drop_backing_files(struct scan *scan)
{
	for (unsigned i = 0; i < scan->count; i++) {
		const struct scan_member *loop = &scan->members[i];
		char sys[PATH_MAX], backing[PATH_MAX];
		struct stat st;
		if (!loop->rdev || strncmp(loop->path, "/dev/loop", 9) != 0)
			continue;
		snprintf(sys, sizeof(sys), "/sys/class/block/%s/loop/backing_file",
			 loop->path + strlen("/dev/"));
		FILE *f = fopen(sys, "re");
		bool ok = f && fgets(backing, sizeof(backing), f);
		if (f)
			fclose(f);
		if (!ok)
			continue;
		backing[strcspn(backing, "\n")] = 0;
		if (stat(backing, &st) < 0)
			continue;
		for (unsigned j = 0; j < scan->count; j++) {
			struct scan_member *m = &scan->members[j];
			if (m->rdev || m->dev != st.st_dev || m->ino != st.st_ino)
				continue;
			member_clear(m);
			memmove(m, m + 1, (scan->count - j - 1) * sizeof(*m));
			scan->count--;
			if (j < i)
				i--;
			break;
		}
	}
}

static void keep_only(struct scan *scan, const struct uuid *fs)
{
	unsigned n = 0;

	for (unsigned i = 0; i < scan->count; i++) {
		if (uuid_equal(&scan->members[i].label.fs, fs))
			scan->members[n++] = scan->members[i];
		else
			member_clear(&scan->members[i]);
	}
	scan->count = n;
}

const struct scan_member *scan_newest(const struct scan *scan, const struct uuid *fs)
{
	const struct scan_member *best = NULL;

	for (unsigned i = 0; i < scan->count; i++) {
		const struct scan_member *m = &scan->members[i];
		if (uuid_equal(&m->label.fs, fs) && (!best || m->label.gen > best->label.gen))
			best = m;
	}
	return best;
}

static int log_path_error(const char *path, int r)
{
	if (r == -ENODATA)
		log_error("%s: no trussfs label found", path);
	else if (r == -EBADMSG)
		log_error(
		    "%s: was a member of a trussfs filesystem, but no copy of its label is valid",
		    path);
	else if (r == -ENOTSUP)
		log_error("%s: belongs to a trussfs filesystem of a newer version", path);
	else if (r == -ENOTBLK)
		log_error("%s: got something else, expected a block device or an image file", path);
	else
		log_error("%s: cannot read: %s", path, strerror(-r));
	return r;
}

/* One name may stand for a filesystem that cannot be told from another of the same name. */
static int choose_by_label(struct scan *scan, const char *name, struct uuid *ret_fs)
{
	bool found = false;

	for (unsigned i = 0; i < scan->count; i++) {
		const struct label *l = &scan->members[i].label;
		if (strcmp(l->name, name) != 0)
			continue;
		if (found && !uuid_equal(ret_fs, &l->fs)) {
			char a[UUID_TEXT_BYTES], b[UUID_TEXT_BYTES];
			log_error("LABEL=%s: two filesystems have this label: UUID=%s and UUID=%s",
				  name, uuid_text(ret_fs, a), uuid_text(&l->fs, b));
			return -EEXIST;
		}
		*ret_fs = l->fs;
		found = true;
	}
	if (!found) {
		log_error("LABEL=%s: no such filesystem found among block devices (image files: "
			  "mount.trussfs -o scan=DIR)",
			  name);
		return -ENOENT;
	}
	return 0;
}

static int resolve_tag(struct scan *scan, const char *source, struct uuid *ret_fs)
{
	bool by_label = !strncmp(source, "LABEL=", 6);
	char value[PATH_MAX];

	snprintf(value, sizeof(value), "%s", strchr(source, '=') + 1);
	size_t len = strlen(value);
	if (len >= 2 && value[0] == '"' && value[len - 1] == '"') {
		value[len - 1] = 0;
		memmove(value, value + 1, len - 1);
	}
	if (by_label)
		return choose_by_label(scan, value, ret_fs);
	if (uuid_parse_text(value, ret_fs) < 0) {
		log_error("%s: not a UUID", source);
		return -EINVAL;
	}
	if (!scan_newest(scan, ret_fs)) {
		log_error("%s: no such filesystem found among block devices (image files: "
			  "mount.trussfs -o scan=DIR)",
			  source);
		return -ENOENT;
	}
	return 0;
}

/* The others of a member that is in the scan: beside it if it is a file, else among the devices. */
static void scan_siblings(struct scan *scan, const char *path)
{
	struct stat st;
	char dir[PATH_MAX];

	if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
		char *absolute = realpath(path, NULL);
		snprintf(dir, sizeof(dir), "%s", absolute ? absolute : path);
		free(absolute);
		char *slash = strrchr(dir, '/');
		if (slash == dir)
			slash[1] = 0;
		else if (slash)
			*slash = 0;
		(void)scan_directory(scan, slash ? dir : "."); /* what is not found is missing */
	} else {
		scan_block_devices(scan);
	}
}

static void scan_directories(struct scan *scan, const char *const *dirs, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		int r = scan_directory(scan, dirs[i]);
		if (r < 0)
			log_warning("%s: cannot scan: %s", dirs[i], strerror(-r));
	}
}

static int scan_paths(struct scan *scan, char *const *paths, unsigned count,
		      const char *const *scan_dirs, unsigned scan_dir_count, struct uuid *ret_fs)
{
	int error = 0;

	for (unsigned i = 0; i < count; i++) {
		int r = scan_path(scan, paths[i]);
		/* Among several a bad one may be the very reason why we are called. */
		if (r < 0) {
			error = log_path_error(paths[i], r);
			scan->unusable++;
		}
	}
	if (!scan->count)
		return error ? error : -ENODATA;
	*ret_fs = scan->members[0].label.fs;
	for (unsigned i = 0; i < scan->count; i++) {
		if (!uuid_equal(&scan->members[i].label.fs, ret_fs)) {
			log_warning("%s: belongs to another filesystem than %s: not used",
				    scan->members[i].path, scan->members[0].path);
			scan->unusable++;
		}
	}
	if (count == 1)
		scan_siblings(scan, paths[0]);
	scan_directories(scan, scan_dirs, scan_dir_count);
	drop_backing_files(scan);
	keep_only(scan, ret_fs);
	return 0;
}

static bool is_tag(const char *source)
{
	return !strncmp(source, "LABEL=", 6) || !strncmp(source, "UUID=", 5);
}

int scan_sources(struct scan *scan, char *const *paths, unsigned count, struct uuid *ret_fs)
{
	if (count == 1 && is_tag(paths[0]))
		return scan_source(scan, paths[0], NULL, 0, ret_fs);
	return scan_paths(scan, paths, count, NULL, 0, ret_fs);
}

/*
 * Cuts at colons; a piece that does not exist is joined with the next ones as long as that makes a
 * name that does (names in /dev/disk/by-path have colons). Text is changed.
 */
static unsigned split_source(char *text, char **pieces, unsigned max)
{
	unsigned count = 0;

	while (*text && count < max) {
		char *end = strchr(text, ':'), *first = end;
		while (end) {
			*end = 0;
			bool exists = access(text, F_OK) == 0;
			if (exists)
				break;
			*end = ':';
			end = strchr(end + 1, ':');
		}
		if (!end && access(text, F_OK) != 0 && first) {
			/* Nothing fits: as it stands, for the message. */
			end = first;
			*end = 0;
		}
		pieces[count++] = text;
		if (!end)
			break;
		text = end + 1;
	}
	return count;
}

int scan_source(struct scan *scan, const char *source, const char *const *scan_dirs,
		unsigned scan_dir_count, struct uuid *ret_fs)
{
	char *pieces[MEMBERS_MAX];
	int r;

	if (is_tag(source)) {
		scan_block_devices(scan);
		scan_directories(scan, scan_dirs, scan_dir_count);
		drop_backing_files(scan);
		r = resolve_tag(scan, source, ret_fs);
		if (r == 0)
			keep_only(scan, ret_fs);
		return r;
	}
	char *text = mem_strdup(source);
	if (!text)
		return -ENOMEM;
	unsigned count = 1;
	pieces[0] = text;
	if (access(text, F_OK) < 0)
		count = split_source(text, pieces, MEMBERS_MAX);
	r = scan_paths(scan, pieces, count, scan_dirs, scan_dir_count, ret_fs);
	mem_free(text);
	return r;
}
