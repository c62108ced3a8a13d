/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mount.trussfs, called by people and by mount(8): `mount.trussfs SOURCE DIR [-sfnv] [-o OPTIONS]
 * [-t TYPE] [-N NS]`.
 *
 * Finds the members, then forks. The child becomes the daemon; the parent waits until the mount
 * point works, or passes on the child's exit code. The child's messages go to the same terminal, as
 * nobody else could show them; once the mount point works it lets go of terminal, directory and
 * session, and goes on in the system's log.
 *
 * Note on -f: mount(8) means "fake" with it but never passes it to a helper (it does not call one
 * then), so here it is "foreground".
 */
#include "args.h"
#include "fs/log.h"
#include "fs/main.h"
#include "fs/rundir.h"
#include "scan.h"
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOOL	      "mount.trussfs"
#define DAEMON	      "trussfsd"
#define SCAN_DIRS_MAX 16
#define COMMIT_S_MAX  5

/* mount(8) */
#define EXIT_USAGE  1
#define EXIT_SYSTEM 2
#define EXIT_MOUNT  32

#ifndef MS_LAZYTIME
#define MS_LAZYTIME (1 << 25)
#endif

struct mount_args {
	const char *source, *dir;
	struct daemon_options daemon;
	unsigned long flags;
	bool remount, foreground, verbose, sloppy, fake;
	const char *scan_dirs[SCAN_DIRS_MAX];
	unsigned scan_dir_count;
	int ready_fd; /* of the pipe to the parent; -1 in the foreground */
};

static const char usage_text[] =
    "Usage: mount.trussfs SOURCE DIR [-o OPTIONS] [-f] [-v]\n"
    "Mounts a trussfs filesystem. SOURCE is a member, several members with colons\n"
    "between them, LABEL=NAME or UUID=UUID.\n"
    "\n"
    "  -o OPTIONS          options, with commas between them\n"
    "  -f, --foreground    stay in the foreground, messages on stderr\n"
    "  -r, --read-only     the same as -o ro\n"
    "  -w, --rw            the same as -o rw\n"
    "  -v, --verbose       more messages\n"
    "  -d, --debug         print each request (implies -f)\n"
    "  -n, -s, -t TYPE, -N NAMESPACE\n"
    "                      as mount(8) passes them\n"
    "  -h, --help          show this text\n"
    "  -V, --version       show the version\n"
    "\n"
    "Options of trussfs, besides those of mount(8):\n"
    "  cache=SIZE          memory for I/O and written data\n"
    "  commit=SECONDS      commit at least that often, 1 to 5; default 5\n"
    "  nowriteback_cache   let the kernel pass on each write at once\n"
    "  scan=DIR            look for members in this directory too (may be repeated)\n"
    "\n"
    "Exit status: 0 mounted, 1 usage, 2 system error, 32 mount failed.\n";

/* ---- options ---- */

static const struct {
	const char *name;
	unsigned long set, clear;
} flag_options[] = {
    {"ro", MS_RDONLY, 0},
    {"rw", 0, MS_RDONLY},
    {"suid", 0, MS_NOSUID},
    {"nosuid", MS_NOSUID, 0},
    {"dev", 0, MS_NODEV},
    {"nodev", MS_NODEV, 0},
    {"exec", 0, MS_NOEXEC},
    {"noexec", MS_NOEXEC, 0},
    {"sync", MS_SYNCHRONOUS, 0},
    {"async", 0, MS_SYNCHRONOUS},
    {"dirsync", MS_DIRSYNC, 0},
    {"atime", 0, MS_NOATIME},
    {"noatime", MS_NOATIME, 0},
    {"diratime", 0, MS_NODIRATIME},
    {"nodiratime", MS_NODIRATIME, 0},
    {"relatime", MS_RELATIME, 0},
    {"norelatime", 0, MS_RELATIME},
    {"strictatime", MS_STRICTATIME, 0},
    {"nostrictatime", 0, MS_STRICTATIME},
    {"lazytime", MS_LAZYTIME, 0},
    {"nolazytime", 0, MS_LAZYTIME},
    {"silent", MS_SILENT, 0},
    {"loud", 0, MS_SILENT},
    {"defaults", 0, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_SYNCHRONOUS},
    {"user", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0},
    {"users", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0},
    {"owner", MS_NOSUID | MS_NODEV, 0},
    {"group", MS_NOSUID | MS_NODEV, 0},
};

/* For others to read: mount(8), systemd, libfuse's habits. We always have allow_other and
 * default_permissions. */
static const char *const ignored_options[] = {
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
    "allow_other",
    "default_permissions",
    "nonempty",
    "loop",
    "writeback_cache",
};
static const char *const ignored_prefixes[] = {
    "x-",      "X-",	"comment=", "uhelper=",	  "helper=",	 "subtype=",
    "fsname=", "user=", "context=", "fscontext=", "defcontext=", "rootcontext=",
};

static int option_flag(struct mount_args *a, const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(flag_options); i++) {
		if (strcmp(name, flag_options[i].name) != 0)
			continue;
		a->flags = (a->flags & ~flag_options[i].clear) | flag_options[i].set;
		return 1;
	}
	for (size_t i = 0; i < ARRAY_SIZE(ignored_options); i++) {
		if (!strcmp(name, ignored_options[i]))
			return 1;
	}
	for (size_t i = 0; i < ARRAY_SIZE(ignored_prefixes); i++) {
		if (!strncmp(name, ignored_prefixes[i], strlen(ignored_prefixes[i])))
			return 1;
	}
	return 0;
}

static int option_value(struct mount_args *a, const char *name, const char *value)
{
	char *end;

	if (!strcmp(name, "cache")) {
		uint64_t bytes;
		if (size_parse(value, &bytes) < 0 || bytes < DAEMON_CACHE_BYTES_MIN ||
		    bytes > (64ull << 30))
			return fail(-EINVAL, TOOL,
				    "option cache: got \"%s\", expected a size from %llum to 64g",
				    value, DAEMON_CACHE_BYTES_MIN >> 20);
		a->daemon.cache_bytes = bytes;
		return 0;
	}
	if (!strcmp(name, "commit")) {
		unsigned long s = strtoul(value, &end, 10);
		if (*end || !*value || s < 1 || s > COMMIT_S_MAX)
			return fail(-EINVAL, TOOL,
				    "option commit: got \"%s\", expected 1 to %d seconds", value,
				    COMMIT_S_MAX);
		a->daemon.commit_ns = s * 1000000000ull;
		return 0;
	}
	if (!strcmp(name, "scan")) {
		if (a->scan_dir_count == SCAN_DIRS_MAX)
			return fail(-EINVAL, TOOL, "option scan: more than %d directories",
				    SCAN_DIRS_MAX);
		a->scan_dirs[a->scan_dir_count++] = value;
		return 0;
	}
	if (a->sloppy)
		return 0;
	return fail(-EINVAL, TOOL, "unknown option \"%s=%s\"", name, value);
}

/* The text is cut up and stays in use. */
static int parse_mount_options(struct mount_args *a, char *text)
{
	char *save = NULL;

	for (char *o = strtok_r(text, ",", &save); o; o = strtok_r(NULL, ",", &save)) {
		if (!strcmp(o, "remount")) {
			a->remount = true;
			continue;
		}
		if (!strcmp(o, "nowriteback_cache")) {
			a->daemon.writeback_cache = false;
			continue;
		}
		if (option_flag(a, o))
			continue;
		char *value = strchr(o, '=');
		if (value) {
			*value = 0;
			if (option_value(a, o, value + 1) < 0)
				return -EINVAL;
			continue;
		}
		if (!a->sloppy)
			return fail(-EINVAL, TOOL, "unknown option \"%s\"", o);
	}
	return 0;
}

/* 1: go on; else *ret_exit. */
static int parse_arguments(struct mount_args *a, int argc, char **argv, int *ret_exit)
{
	static const struct option options[] = {
	    {"options", required_argument, NULL, 'o'},
	    {"foreground", no_argument, NULL, 'f'},
	    {"read-only", no_argument, NULL, 'r'},
	    {"rw", no_argument, NULL, 'w'},
	    {"verbose", no_argument, NULL, 'v'},
	    {"debug", no_argument, NULL, 'd'},
	    {"help", no_argument, NULL, 'h'},
	    {"version", no_argument, NULL, 'V'},
	    {NULL, 0, NULL, 0},
	};
	char *texts[64];
	unsigned text_count = 0;
	int c;

	*ret_exit = EXIT_USAGE;
	while ((c = getopt_long(argc, argv, "o:frwvdnst:N:hV", options, NULL)) != -1) {
		switch (c) {
		case 'h':
			fputs(usage_text, stdout);
			*ret_exit = 0;
			return 0;
		case 'V':
			printf(VERSION_LINE, TOOL);
			*ret_exit = 0;
			return 0;
		case 'o':
			if (text_count == ARRAY_SIZE(texts))
				return fail(0, TOOL, "too many -o");
			texts[text_count++] = optarg;
			break;
		case 'd':
			a->daemon.debug = true;
			a->foreground = true;
			break;
		case 'f':
			a->foreground = true;
			break;
		case 'r':
			a->flags |= MS_RDONLY;
			break;
		case 'w':
			a->flags &= ~(unsigned long)MS_RDONLY;
			break;
		case 'v':
			a->verbose = true;
			break;
		case 's':
			a->sloppy = true;
			break;
		case 'N': {
			/* A mount namespace, by path or process. */
			char path[PATH_MAX];
			snprintf(path, sizeof(path), strchr(optarg, '/') ? "%s" : "/proc/%s/ns/mnt",
				 optarg);
			int fd = open(path, O_RDONLY | O_CLOEXEC);
			if (fd < 0 || setns(fd, CLONE_NEWNS) < 0)
				return fail(0, TOOL, "%s: cannot enter namespace: %s", path,
					    strerror(errno));
			close(fd);
			break;
		}
		case 'n':
		case 't':
			break;
		default:
			return fail(0, TOOL, "try --help");
		}
	}
	for (unsigned i = 0; i < text_count; i++) {
		if (parse_mount_options(a, texts[i]) < 0)
			return 0;
	}
	if (argc - optind != 2)
		return fail(0, TOOL, "got %d arguments, expected SOURCE and DIR; try --help",
			    argc - optind);
	a->source = argv[optind];
	a->dir = argv[optind + 1];
	return 1;
}

/* ---- mounting ---- */

static int remount(const struct mount_args *a)
{
	if (mount(NULL, a->dir, NULL, a->flags | MS_REMOUNT, NULL) < 0)
		return fail(EXIT_MOUNT, TOOL, "%s: remount failed: %s", a->dir, strerror(errno));
	return 0;
}

static void on_ready(void *arg)
{
	struct mount_args *a = arg;

	if (a->ready_fd < 0) {
		if (a->verbose)
			fprintf(stderr, TOOL ": %s is mounted on %s\n", a->source, a->dir);
		return;
	}
	log_to_syslog(DAEMON);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		for (int fd = 0; fd <= 2; fd++)
			(void)dup2(null, fd); /* then the terminal merely stays open */
		close(null);
	}
	/* If the parent is gone nobody waits. */
	(void)!write(a->ready_fd, "", 1);
	close(a->ready_fd);
	a->ready_fd = -1;
}

static int exit_code(int r)
{
	switch (r) {
	case 0:
		return 0;
	case -ENOMEM:
	case -ENOSYS:
	case -EMFILE:
	case -ENFILE:
		return EXIT_SYSTEM;
	default:
		return EXIT_MOUNT;
	}
}

static int run_daemon(struct mount_args *a)
{
	int r = daemon_run(&a->daemon, on_ready, a);

	return exit_code(r);
}

/* The parent's side: 0 once the child says that it is ready, its exit code if it ends before. */
static int wait_ready(pid_t child, int fd)
{
	char byte;
	int status;
	ssize_t n;

	do {
		n = read(fd, &byte, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1)
		return 0;
	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return EXIT_SYSTEM;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status))
		return WEXITSTATUS(status);
	return fail(EXIT_MOUNT, TOOL, "the daemon ended before the filesystem was mounted%s",
		    WIFSIGNALED(status) ? " (killed by a signal)" : "");
}

static int run_background(struct mount_args *a)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return fail(EXIT_SYSTEM, TOOL, "pipe: %s", strerror(errno));
	fflush(NULL);
	pid_t child = fork();
	if (child < 0)
		return fail(EXIT_SYSTEM, TOOL, "fork: %s", strerror(errno));
	if (child > 0) {
		close(fds[1]);
		return wait_ready(child, fds[0]);
	}
	/* The daemon stays: what the caller happened to have open (a lock, a pipe) must not stay with it. */
	a->ready_fd = dup2(fds[1], 3);
	if (a->ready_fd < 0 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0)
		return fail(EXIT_SYSTEM, TOOL, "pipe: %s", strerror(errno));
	(void)close_range(4, ~0u, 0); /* ENOSYS: then they stay */
	(void)setsid();	   /* a fresh child leads no group */
	(void)!chdir("/"); /* there always is one */
	return run_daemon(a);
}

static int check_mount_point(const char *dir, char resolved[PATH_MAX])
{
	struct stat st;

	if (!realpath(dir, resolved)) {
		if (errno == ENOTCONN)
			return fail(-ENOTCONN, TOOL,
				    "%s: a filesystem whose daemon died is still mounted there; "
				    "unmount it first: umount %s",
				    dir, dir);
		return fail(-errno, TOOL, "%s: mount point: %s", dir, strerror(errno));
	}
	if (stat(resolved, &st) < 0)
		return fail(-errno, TOOL, "%s: mount point: %s", dir, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return fail(-ENOTDIR, TOOL, "%s: mount point is not a directory", dir);
	if (strchr(resolved, '\n'))
		return fail(-EINVAL, TOOL, "mount point has a line break in its name");
	return 0;
}

static int mount_source(struct mount_args *a)
{
	static char resolved[PATH_MAX], source[PATH_MAX];
	static const char *paths[SCAN_MEMBERS_MAX];
	struct scan scan;

	if (check_mount_point(a->dir, resolved) < 0)
		return EXIT_MOUNT;
	scan_init(&scan);
	int r = scan_source(&scan, a->source, a->scan_dirs, a->scan_dir_count, &a->daemon.fs);
	if (r < 0) {
		scan_clear(&scan);
		return EXIT_MOUNT; /* logged */
	}
	/* Clones included: that there are two is for the volume to say. */
	unsigned count = MIN(scan.count, (unsigned)MEMBERS_MAX);
	for (unsigned i = 0; i < count; i++)
		paths[i] = scan.members[i].path;
	const struct scan_member *newest = scan_newest(&scan, &a->daemon.fs);
	a->daemon.name = newest ? newest->label.name : "";
	/* /proc/mounts is read in other directories than this one. */
	a->daemon.source = realpath(a->source, source) ? source : a->source;
	a->daemon.mount_point = resolved;
	a->daemon.paths = paths;
	a->daemon.path_count = count;
	a->daemon.mount_flags = a->flags;
	a->daemon.read_only = a->flags & MS_RDONLY;
	if (a->verbose) {
		for (unsigned i = 0; i < count; i++)
			fprintf(stderr, TOOL ": member %u: %s\n",
				scan.members[i].label.member_index, paths[i]);
	}
	r = a->foreground ? run_daemon(a) : run_background(a);
	scan_clear(&scan);
	return r;
}

int main(int argc, char **argv)
{
	static struct mount_args a;
	int code;

	a.ready_fd = -1;
	a.daemon.writeback_cache = true;
	if (parse_arguments(&a, argc, argv, &code) != 1)
		return code;
	log_to_stderr(TOOL, a.verbose);
	if (geteuid() != 0)
		return fail(EXIT_USAGE, TOOL, "only root can mount");
	return a.remount ? remount(&a) : mount_source(&a);
}
