/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * /run/trussfs. The lock, not the file's being there, says whether a daemon lives: after a crash
 * the file is left over and simply taken by the next one. A file is unlinked only by the holder of
 * its lock, and whoever has taken a lock checks that the name still leads to the file it locked, so
 * two daemons can never both believe to have it.
 */
#include "rundir.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUNDIR_DEFAULT "/run/trussfs"
#define FILE_BYTES_MAX (3 * PATH_MAX)
#define LOCK_TRIES     100

struct rundir_lock {
	int fd;
	struct uuid fs;
	char path[PATH_MAX];
};

/* Tests run beside a mounted system: they set their own. */
static const char *rundir_path(void)
{
	const char *p = secure_getenv("TRUSSFS_RUNDIR");

	return p && *p ? p : RUNDIR_DEFAULT;
}

static void entry_path(const struct uuid *fs, const char *suffix, char out[PATH_MAX])
{
	char text[UUID_TEXT_BYTES];

	snprintf(out, PATH_MAX, "%s/%s.%s", rundir_path(), uuid_text(fs, text), suffix);
}

void rundir_socket_path(const struct uuid *fs, char out[PATH_MAX])
{
	entry_path(fs, "sock", out);
}

int uuid_parse_text(const char *text, struct uuid *ret)
{
	struct uuid u;
	unsigned n = 0;

	for (const char *p = text; *p;) {
		if (*p == '-') {
			if (p - text != 8 && p - text != 13 && p - text != 18 && p - text != 23)
				return -EINVAL;
			p++;
			continue;
		}
		char pair[3] = {p[0], p[0] ? p[1] : 0, 0};
		if (n == sizeof(u.b) || strspn(pair, "0123456789abcdefABCDEF") != 2)
			return -EINVAL;
		u.b[n++] = (uint8_t)strtoul(pair, NULL, 16);
		p += 2;
	}
	if (n != sizeof(u.b) || strlen(text) != UUID_TEXT_BYTES - 1)
		return -EINVAL;
	*ret = u;
	return 0;
}

int rundir_lock(const struct uuid *fs, struct rundir_lock **ret)
{
	struct rundir_lock *l = mem_zalloc(sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->fs = *fs;
	entry_path(fs, "pid", l->path);
	if (mkdir(rundir_path(), 0755) < 0 && errno != EEXIST) {
		r = -errno;
		log_error("%s: cannot make directory: %s", rundir_path(), strerror(-r));
		mem_free(l);
		return r;
	}
	r = -EBUSY;
	for (int i = 0; i < LOCK_TRIES; i++) {
		struct stat by_fd, by_name;
		l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
		if (l->fd < 0) {
			r = -errno;
			log_error("%s: cannot open: %s", l->path, strerror(-r));
			break;
		}
		struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		if (fcntl(l->fd, F_OFD_SETLK, &whole) < 0) {
			r = errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
			close(l->fd);
			break;
		}
		if (fstat(l->fd, &by_fd) == 0 && stat(l->path, &by_name) == 0 &&
		    by_fd.st_ino == by_name.st_ino && by_fd.st_dev == by_name.st_dev) {
			*ret = l;
			return 0;
		}
		close(l->fd); /* its last holder removed it between open and lock */
	}
	mem_free(l);
	return r;
}

static int write_all(int fd, const char *text, size_t len)
{
	ssize_t n = write(fd, text, len);

	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -EIO;
}

int rundir_write(struct rundir_lock *l, const struct rundir_entry *e)
{
	char text[FILE_BYTES_MAX];
	int n = snprintf(text, sizeof(text), "pid %d\nmount %s\nsource %s\nname %s\n", e->pid,
			 e->mount, e->source, e->name);

	if (n < 0 || (size_t)n >= sizeof(text))
		return -ENAMETOOLONG;
	if (ftruncate(l->fd, 0) < 0 || lseek(l->fd, 0, SEEK_SET) < 0)
		return -errno;
	return write_all(l->fd, text, (size_t)n);
}

int rundir_append(struct rundir_lock *l, const char *key, long value)
{
	char line[64];
	int n = snprintf(line, sizeof(line), "%s %ld\n", key, value);

	return write_all(l->fd, line, (size_t)n);
}

void rundir_unlock(struct rundir_lock *l)
{
	char sock[PATH_MAX];

	if (!l)
		return;
	rundir_socket_path(&l->fs, sock);
	(void)unlink(sock);    /* may not be there */
	(void)unlink(l->path); /* the lock is what counts */
	close(l->fd);
	mem_free(l);
}

static void copy_value(char *out, size_t cap, const char *value)
{
	snprintf(out, cap, "%s", value);
}

int rundir_read(int fd, struct rundir_entry *e)
{
	char text[FILE_BYTES_MAX], *save = NULL;
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n < 0)
		return -errno;
	text[n] = 0;
	struct uuid fs = e->fs;
	memset(e, 0, sizeof(*e));
	e->fs = fs;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *value = strchr(line, ' ');
		if (!value)
			continue;
		*value++ = 0;
		if (!strcmp(line, "pid")) {
			e->pid = atoi(value);
		} else if (!strcmp(line, "mount")) {
			copy_value(e->mount, sizeof(e->mount), value);
		} else if (!strcmp(line, "source")) {
			copy_value(e->source, sizeof(e->source), value);
		} else if (!strcmp(line, "name")) {
			copy_value(e->name, sizeof(e->name), value);
		} else if (!strcmp(line, "closing")) {
			e->closing = true;
		} else if (!strcmp(line, "result")) {
			e->has_result = true;
			e->result = atoi(value);
		}
	}
	return 0;
}

bool rundir_held(int fd)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	/* Asks, does not take: a daemon that starts at this moment must not fail. */
	return fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

struct search {
	const struct uuid *fs;
	const char *mount, *name;
	int (*fn)(void *arg, const struct rundir_entry *entry);
	void *arg;
};

static bool search_matches(const struct search *s, const struct rundir_entry *e)
{
	if (s->fs)
		return uuid_equal(s->fs, &e->fs);
	if (s->mount)
		return !strcmp(s->mount, e->mount);
	if (s->name)
		return e->name[0] && !strcmp(s->name, e->name);
	return true;
}

/* One pass over the directory: matches go to s->fn, or the last one to ret and ret_fd. */
static int search_run(const struct search *s, struct rundir_entry *ret, int *ret_fd)
{
	struct rundir_entry *e = mem_alloc(sizeof(*e));
	DIR *dir = opendir(rundir_path());
	int r = -ENOENT, found_fd = -1;
	struct dirent *d;

	while (e && dir && (d = readdir(dir))) {
		char uuid[UUID_TEXT_BYTES], path[PATH_MAX];
		size_t len = strlen(d->d_name);
		if (len != UUID_TEXT_BYTES - 1 + 4 || strcmp(d->d_name + len - 4, ".pid") != 0)
			continue;
		memcpy(uuid, d->d_name, UUID_TEXT_BYTES - 1);
		uuid[UUID_TEXT_BYTES - 1] = 0;
		memset(e, 0, sizeof(*e));
		if (uuid_parse_text(uuid, &e->fs) < 0)
			continue;
		entry_path(&e->fs, "pid", path);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (!rundir_held(fd) || rundir_read(fd, e) < 0 || !search_matches(s, e)) {
			close(fd);
			continue;
		}
		if (s->fn) {
			r = s->fn(s->arg, e);
			close(fd);
			if (r)
				break;
			continue;
		}
		if (found_fd >= 0) {
			close(fd);
			r = -EEXIST;
			continue;
		}
		*ret = *e;
		found_fd = fd;
		r = 0;
	}
	if (dir)
		closedir(dir);
	if (!e)
		r = -ENOMEM;
	mem_free(e);
	if (r == 0 && ret_fd)
		*ret_fd = found_fd;
	else if (found_fd >= 0)
		close(found_fd);
	return r;
}

int rundir_find_uuid(const struct uuid *fs, struct rundir_entry *ret, int *ret_fd)
{
	return search_run(&(struct search){.fs = fs}, ret, ret_fd);
}

int rundir_find_mount(const char *mount_point, struct rundir_entry *ret, int *ret_fd)
{
	return search_run(&(struct search){.mount = mount_point}, ret, ret_fd);
}

int rundir_find_name(const char *name, struct rundir_entry *ret, int *ret_fd)
{
	return search_run(&(struct search){.name = name}, ret, ret_fd);
}

int rundir_for_each(int (*fn)(void *arg, const struct rundir_entry *entry), void *arg)
{
	int r = search_run(&(struct search){.fn = fn, .arg = arg}, NULL, NULL);

	return r == -ENOENT ? 0 : r;
}
