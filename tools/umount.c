/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * umount.trussfs, called by umount(8) also as umount.fuse.trussfs: `umount.trussfs DIR [-flnrv] [-t
 * TYPE] [-N NS]`.
 *
 * umount2(2) returns as soon as the kernel has let go; the daemon then still writes. We wait until
 * it has ended and say how that went, so that whoever comes next (mount, fsck, the power switch)
 * finds everything on the members.
 *
 * Not waited for: a lazy unmount; and a filesystem that is still mounted elsewhere (bind mounts,
 * other namespaces), as its daemon goes on. The daemon writes "closing" into its lock file when the
 * kernel has let go of the last mount.
 */
#include "args.h"
#include "fs/log.h"
#include "fs/rundir.h"
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define TOOL "umount.trussfs"

/* umount(8) */
#define EXIT_USAGE  1
#define EXIT_SYSTEM 2
#define EXIT_UMOUNT 32

#define POLL_MS 10
#define NOTICE_MS_MAX                                                                              \
	10000 /* for the daemon to notice; it is at most busy with one round of its loop */

struct umount_args {
	const char *dir;
	bool force, lazy, read_only, verbose;
};

static const char usage_text[] =
    "Usage: umount.trussfs DIR [-flnrv] [-t TYPE] [-N NAMESPACE]\n"
    "Unmounts a trussfs filesystem and waits until everything is on its members.\n"
    "\n"
    "  -f, --force         cut off those who use it; what they have not written is lost\n"
    "  -l, --lazy          detach now, unmount when nobody uses it; does not wait\n"
    "  -r, --read-only     if it is in use, make it read-only instead\n"
    "  -n, -t TYPE, -N NAMESPACE\n"
    "                      as umount(8) passes them\n"
    "  -v, --verbose       say what is done\n"
    "  -h, --help          show this text\n"
    "  -V, --version       show the version\n"
    "\n"
    "Exit status: 0 unmounted, 1 usage, 2 system error, 32 failed or in use.\n";

static int enter_namespace(const char *text)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), strchr(text, '/') ? "%s" : "/proc/%s/ns/mnt", text);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNS) < 0)
		return fail(-EINVAL, TOOL, "%s: cannot enter namespace: %s", path, strerror(errno));
	close(fd);
	return 0;
}

/* 1: go on; else *ret_exit. */
static int parse_arguments(struct umount_args *a, int argc, char **argv, int *ret_exit)
{
	static const struct option options[] = {
	    {"force", no_argument, NULL, 'f'},
	    {"lazy", no_argument, NULL, 'l'},
	    {"read-only", no_argument, NULL, 'r'},
	    {"verbose", no_argument, NULL, 'v'},
	    {"help", no_argument, NULL, 'h'},
	    {"version", no_argument, NULL, 'V'},
	    {NULL, 0, NULL, 0},
	};
	int c;

	*ret_exit = EXIT_USAGE;
	while ((c = getopt_long(argc, argv, "flrvnt:N:hV", options, NULL)) != -1) {
		switch (c) {
		case 'h':
			fputs(usage_text, stdout);
			*ret_exit = 0;
			return 0;
		case 'V':
			printf(VERSION_LINE, TOOL);
			*ret_exit = 0;
			return 0;
		case 'f':
			a->force = true;
			break;
		case 'l':
			a->lazy = true;
			break;
		case 'r':
			a->read_only = true;
			break;
		case 'v':
			a->verbose = true;
			break;
		case 'N':
			if (enter_namespace(optarg) < 0)
				return 0;
			break;
		case 'n':
		case 't':
			break;
		default:
			return fail(0, TOOL, "try --help");
		}
	}
	if (argc - optind != 1)
		return fail(0, TOOL, "got %d arguments, expected one mount point; try --help",
			    argc - optind);
	a->dir = argv[optind];
	return 1;
}

/* Works for a mount point that answers nothing any more, too. */
static void resolve(const char *dir, char out[PATH_MAX])
{
	char parent[PATH_MAX], copy[PATH_MAX];

	if (realpath(dir, out))
		return;
	snprintf(copy, sizeof(copy), "%s", dir);
	size_t len = strlen(copy);
	while (len > 1 && copy[len - 1] == '/')
		copy[--len] = 0;
	char *slash = strrchr(copy, '/');
	if (slash)
		*slash = 0;
	if (!realpath(slash ? (slash == copy ? "/" : copy) : ".", parent)) {
		snprintf(out, PATH_MAX, "%s", dir);
		return;
	}
	if (snprintf(out, PATH_MAX, "%s/%s", strcmp(parent, "/") ? parent : "",
		     slash ? slash + 1 : copy) >= PATH_MAX)
		snprintf(out, PATH_MAX, "%s", dir);
}

/* The filesystem's device number of the topmost mount on a path, and how many mounts of a device
 * there are. */
static bool mount_device(const char *path, unsigned *ret_major, unsigned *ret_minor)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, *point = mem_alloc(PATH_MAX * 4);
	size_t cap = 0;
	bool found = false;

	while (f && point && getline(&line, &cap, f) > 0) {
		unsigned major, minor;
		if (strlen(line) >= PATH_MAX * 4 ||
		    sscanf(line, "%*d %*d %u:%u %*s %s", &major, &minor, point) != 3)
			continue;
		/* Blanks and the like stand there in octal. */
		char *out = point;
		for (char *p = point; *p; p++) {
			if (p[0] == '\\' && p[1] && p[2] && p[3]) {
				*out++ =
				    (char)((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0'));
				p += 3;
			} else {
				*out++ = *p;
			}
		}
		*out = 0;
		if (!strcmp(point, path)) {
			*ret_major = major; /* the last one is on top */
			*ret_minor = minor;
			found = true;
		}
	}
	free(line);
	if (f)
		fclose(f);
	mem_free(point);
	return found;
}

static unsigned mount_count(unsigned major, unsigned minor)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t cap = 0;
	unsigned count = 0;

	while (f && getline(&line, &cap, f) > 0) {
		unsigned a, b;
		if (sscanf(line, "%*d %*d %u:%u", &a, &b) == 2 && a == major && b == minor)
			count++;
	}
	free(line);
	if (f)
		fclose(f);
	return count;
}

static void pause_ms(unsigned ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};

	(void)nanosleep(&t, NULL); /* waking early only looks once more */
}

/* The daemon's file is open in fd since before the unmount. */
static int wait_daemon(const struct umount_args *a, int fd, struct rundir_entry *e)
{
	unsigned waited = 0;

	while (rundir_held(fd)) {
		if (!e->closing) {
			(void)rundir_read(fd, e); /* then it is read the next time */
			if (!e->closing && waited >= NOTICE_MS_MAX) {
				fail(0, TOOL, "%s: still mounted in another namespace", a->dir);
				return 0;
			}
		}
		pause_ms(POLL_MS);
		waited += POLL_MS;
	}
	int r = rundir_read(fd, e);
	if (r < 0)
		return fail(EXIT_SYSTEM, TOOL, "%s: %s", a->dir, strerror(-r));
	if (!e->has_result)
		return fail(EXIT_UMOUNT, TOOL,
			    "%s: the daemon died before everything was written; what was synced is "
			    "in the journal and comes back with the next mount",
			    a->dir);
	if (e->result)
		return fail(EXIT_UMOUNT, TOOL,
			    "%s: unmounted, but writing failed: %s; see the system's log", a->dir,
			    strerror(-e->result));
	if (a->verbose)
		printf("%s: unmounted, everything is on the members\n", a->dir);
	return 0;
}

static int do_umount(const struct umount_args *a)
{
	static char path[PATH_MAX];
	static struct rundir_entry e;
	int flags = UMOUNT_NOFOLLOW | (a->force ? MNT_FORCE : 0) | (a->lazy ? MNT_DETACH : 0);
	int fd = -1;
	unsigned major = 0, minor = 0;

	resolve(a->dir, path);
	bool known = mount_device(path, &major, &minor);
	int found = rundir_find_mount(path, &e, &fd);
	if (umount2(path, flags) < 0) {
		int error = errno;
		if (error == EBUSY && a->read_only &&
		    mount(NULL, path, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0) {
			printf("%s: in use: made read-only\n", a->dir);
			return 0;
		}
		return fail(EXIT_UMOUNT, TOOL, "%s: %s", a->dir,
			    error == EBUSY    ? "in use"
			    : error == EINVAL ? "not mounted"
					      : strerror(error));
	}
	if (found < 0 || a->lazy || (known && mount_count(major, minor) > 0))
		return 0;
	int r = wait_daemon(a, fd, &e);
	close(fd);
	return r;
}

int main(int argc, char **argv)
{
	struct umount_args a = {0};
	int code;

	log_to_stderr(TOOL, false);
	if (parse_arguments(&a, argc, argv, &code) != 1)
		return code;
	return do_umount(&a);
}
