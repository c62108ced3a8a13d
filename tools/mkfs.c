/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mkfs.trussfs.
 *
 * Order: arguments; every member opened exclusively; every member probed; geometry worked out; and
 * only then the first write. So a mistake in the last argument costs nothing. Image files that were
 * created here are removed again when anything fails. Both ends of a member are cleared before its
 * labels are written, or blkid would go on finding what was there before.
 */
#include "args.h"
#include "fs/fs.h"
#include "fs/log.h"
#include "print.h"
#include "probe.h"
#include "raid/buf.h"
#include "raid/uring.h"
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOOL	    "mkfs.trussfs"
#define POOL_BYTES  (64u << 20)
#define CLEAR_BYTES (1u << 20)
#define EXIT_USAGE  1
#define EXIT_FAILED 2

struct mkfs {
	struct raid_format_params params;
	uint64_t create_bytes;
	bool force, dry_run, json;
	char **paths;
	unsigned count;
	bool created[MEMBERS_MAX];
	struct dev *devs[MEMBERS_MAX];
	struct dev fakes[MEMBERS_MAX]; /* dry run: files that would be created */
	struct uring *uring;
	struct loop *loop;
	struct table *plan;
};

static const char usage_text[] =
    "Usage: mkfs.trussfs [OPTIONS] MEMBER...\n"
    "Makes a trussfs filesystem over block devices or image files.\n"
    "\n"
    "  -r, --raid LEVEL    0, 1, 5, 6, 10, 50 or 60; without it 2 members make RAID 1,\n"
    "                      3 or 4 RAID 5, more RAID 6\n"
    "  -L, --label NAME    name of the filesystem, up to 63 bytes\n"
    "      --strip SIZE    what one member holds of a stripe; default 64k\n"
    "      --journal SIZE  journal on each member; default 1/64 of it, 8 to 128 MiB\n"
    "      --size SIZE     create members that do not exist as image files of this size\n"
    "  -f, --force         also over existing data\n"
    "  -n, --dry-run       say what would be done and write nothing\n"
    "      --json          print the geometry as JSON\n"
    "  -h, --help          show this text\n"
    "  -V, --version       show the version\n"
    "\n"
    "SIZE is in bytes or with k, m, g, t (powers of 1024).\n";

/* ---- arguments ---- */

static int parse_size(const char *option, const char *text, uint64_t *ret)
{
	if (size_parse(text, ret) == 0 && *ret)
		return 0;
	return fail(-EINVAL, TOOL, "--%s: got \"%s\", expected a size such as 64k or 1g", option,
		    text);
}

static int parse_label(struct mkfs *m, const char *name)
{
	if (strlen(name) >= LABEL_NAME_BYTES)
		return fail(-EINVAL, TOOL, "--label: got %zu bytes, expected at most %d",
			    strlen(name), LABEL_NAME_BYTES - 1);
	for (const char *p = name; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f || *p == '/')
			return fail(-EINVAL, TOOL,
				    "--label: control characters and '/' cannot be in a label");
	}
	m->params.name = name;
	return 0;
}

static int parse_option(struct mkfs *m, int c)
{
	unsigned level;

	switch (c) {
	case 'r':
		if (geom_level_parse(optarg, &level) < 0)
			return fail(-EINVAL, TOOL,
				    "--raid: got \"%s\", expected 0, 1, 5, 6, 10, 50 or 60",
				    optarg);
		m->params.level = (int)level;
		return 0;
	case 'L':
		return parse_label(m, optarg);
	case 's':
		return parse_size("strip", optarg, &m->params.strip_bytes);
	case 'j':
		return parse_size("journal", optarg, &m->params.journal_bytes);
	case 'z':
		if (parse_size("size", optarg, &m->create_bytes) < 0)
			return -EINVAL;
		m->create_bytes = ROUND_UP(m->create_bytes, BLOCK_BYTES);
		return 0;
	case 'f':
		m->force = true;
		return 0;
	case 'n':
		m->dry_run = true;
		return 0;
	case 'J':
		m->json = true;
		return 0;
	default:
		return -EINVAL;
	}
}

/* 1: go on; else the exit code is in *ret_exit. */
static int parse_arguments(struct mkfs *m, int argc, char **argv, int *ret_exit)
{
	static const struct option options[] = {
	    {"raid", required_argument, NULL, 'r'},
	    {"label", required_argument, NULL, 'L'},
	    {"strip", required_argument, NULL, 's'},
	    {"journal", required_argument, NULL, 'j'},
	    {"size", required_argument, NULL, 'z'},
	    {"force", no_argument, NULL, 'f'},
	    {"dry-run", no_argument, NULL, 'n'},
	    {"json", no_argument, NULL, 'J'},
	    {"help", no_argument, NULL, 'h'},
	    {"version", no_argument, NULL, 'V'},
	    {NULL, 0, NULL, 0},
	};
	int c;

	m->params.level = -1;
	*ret_exit = EXIT_USAGE;
	while ((c = getopt_long(argc, argv, "r:L:fnhV", options, NULL)) != -1) {
		if (c == 'h') {
			fputs(usage_text, stdout);
			*ret_exit = 0;
			return 0;
		}
		if (c == 'V') {
			printf(VERSION_LINE, TOOL);
			*ret_exit = 0;
			return 0;
		}
		if (c == '?')
			return fail(0, TOOL, "try --help");
		if (parse_option(m, c) < 0)
			return 0;
	}
	m->paths = argv + optind;
	m->count = (unsigned)(argc - optind);
	if (m->count == 0)
		return fail(0, TOOL, "no members given; try --help");
	if (m->count > MEMBERS_MAX)
		return fail(0, TOOL, "got %u members, expected at most %d", m->count, MEMBERS_MAX);
	return 1;
}

/* ---- members ---- */

static int create_file(struct mkfs *m, unsigned i)
{
	const char *path = m->paths[i];
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), r = 0;

	if (fd < 0) {
		r = -errno;
		return fail(r, TOOL, "%s: cannot create: %s", path, strerror(-r));
	}
	m->created[i] = true;
	if (ftruncate(fd, (off_t)m->create_bytes) < 0) {
		r = -errno;
		fail(r, TOOL, "%s: cannot make it %llu bytes long: %s", path,
		     (unsigned long long)m->create_bytes, strerror(-r));
	}
	close(fd);
	return r;
}

static int open_member(struct mkfs *m, unsigned i)
{
	const char *path = m->paths[i];
	char found[PROBE_TEXT_BYTES];
	struct stat st;

	if (m->create_bytes && stat(path, &st) < 0 && errno == ENOENT) {
		if (m->dry_run) {
			struct dev *fake = &m->fakes[i];
			fake->size_bytes = m->create_bytes;
			fake->sector_bytes = 512;
			snprintf(fake->name, sizeof(fake->name), "%s", path);
			m->devs[i] = fake;
			return 0;
		}
		int r = create_file(m, i);
		if (r < 0)
			return r;
	}
	int r = uring_dev_open(m->uring, m->loop, path, m->dry_run ? DEV_OPEN_READ_ONLY : 0,
			       &m->devs[i]);
	if (r < 0)
		return r; /* logged */
	r = probe_fd(uring_dev_fd(m->devs[i]), found);
	if (r < 0)
		return fail(r, TOOL, "%s: cannot look what it holds: %s", path, strerror(-r));
	if (r > 0 && !m->force)
		return fail(-EEXIST, TOOL, "%s: refused: found %s; --force overwrites it", path,
			    found);
	if (r > 0)
		fprintf(stderr, TOOL ": %s: %s %s\n", path,
			m->dry_run ? "would overwrite" : "overwriting", found);
	return 0;
}

static void close_members(struct mkfs *m)
{
	for (unsigned i = 0; i < m->count; i++) {
		if (m->devs[i] != &m->fakes[i])
			dev_close(m->devs[i]);
		m->devs[i] = NULL;
	}
}

static void remove_created(struct mkfs *m)
{
	for (unsigned i = 0; i < m->count; i++) {
		if (m->created[i])
			(void)unlink(m->paths[i]); /* was not there before */
	}
}

/* ---- writing ---- */

static int clear_ends(struct dev *dev, void *zeros)
{
	uint64_t size = ROUND_DOWN(dev->size_bytes, BLOCK_BYTES), tail = label_b_off(size);
	int r = io_write_sync(dev, 0, zeros, CLEAR_BYTES);

	while (r == 0 && tail < size) {
		uint64_t n = MIN(size - tail, CLEAR_BYTES);
		r = io_write_sync(dev, tail, zeros, n);
		tail += n;
	}
	return r;
}

static int format_co(void *arg)
{
	struct mkfs *m = arg;
	struct raid_options options = {0};
	struct raid *raid;
	void *zeros = buf_get_wait(CLEAR_BYTES);
	int r = 0;

	memset(zeros, 0, CLEAR_BYTES);
	for (unsigned i = 0; r == 0 && i < m->count; i++) {
		r = clear_ends(m->devs[i], zeros);
		if (r < 0)
			fail(r, TOOL, "%s: cannot write: %s", m->paths[i], strerror(-r));
	}
	buf_put(zeros);
	if (r < 0)
		return r;
	r = raid_format(m->loop, m->devs, m->count, &m->params);
	if (r < 0)
		return fail(r, TOOL, "making the volume failed: %s", strerror(-r));
	r = raid_open(m->loop, m->devs, m->count, m->params.fs, &options, &raid);
	if (r < 0)
		return fail(r, TOOL, "the new volume does not open: %s", strerror(-r));
	/* The volume's from here on. */
	memset(m->devs, 0, sizeof(m->devs));
	r = fs_format(raid);
	if (r < 0)
		fail(r, TOOL, "making the filesystem failed: %s", strerror(-r));
	int closed = raid_close(raid);
	if (closed < 0 && r == 0)
		r = fail(closed, TOOL, "writing failed: %s", strerror(-closed));
	return r;
}

/* What was made, as whoever mounts it will find it: members have their UUIDs only now. */
static int read_back(const struct mkfs *m, struct label *ret)
{
	static struct dev here;
	int fd = open(m->paths[0], O_RDONLY | O_CLOEXEC);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	int r =
	    size < 0 ? -errno : label_probe_fd(fd, ROUND_DOWN((uint64_t)size, BLOCK_BYTES), ret);

	if (fd >= 0)
		close(fd);
	if (r < 0)
		return fail(r, TOOL, "%s: cannot read the new label: %s", m->paths[0],
			    strerror(-r));
	/* Free space is counted on members that are here. */
	for (unsigned i = 0; i < ret->table->member_count; i++)
		ret->table->members[i].dev = &here;
	return 0;
}

static int run(struct mkfs *m)
{
	struct label label = {0};
	int r = uring_new(&m->uring);

	if (r < 0)
		return r;
	m->loop = loop_new(&uring_backend, m->uring);
	if (!m->loop || buf_pool_init(POOL_BYTES) < 0)
		return fail(-ENOMEM, TOOL, "no memory");
	for (unsigned i = 0; r == 0 && i < m->count; i++)
		r = open_member(m, i);
	if (r == 0)
		r = raid_plan(m->devs, m->count, &m->params, &m->plan);
	if (r < 0)
		return r;
	m->plan->fs = *m->params.fs;
	if (m->params.name)
		snprintf(m->plan->name, sizeof(m->plan->name), "%s", m->params.name);
	if (!m->dry_run) {
		r = loop_run_co(m->loop, format_co, m);
		if (r == 0)
			r = read_back(m, &label);
	}
	json_t *info =
	    print_table_json(label.table ? label.table : m->plan, (const char *const *)m->paths);
	if (r == 0 && m->json) {
		r = print_json(json_incref(info));
	} else if (r == 0) {
		printf("%s\n", m->dry_run ? "Would make:" : "Made:");
		print_geometry(stdout, info);
	}
	json_decref(info);
	label_clear(&label);
	return r;
}

int main(int argc, char **argv)
{
	static struct mkfs m; /* zeroed, and too large for the stack's taste */
	static struct uuid fs;
	int code;

	log_to_stderr(TOOL, false);
	if (parse_arguments(&m, argc, argv, &code) != 1)
		return code;
	int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	if (random < 0 || read(random, &fs, sizeof(fs)) != sizeof(fs))
		return fail(EXIT_FAILED, TOOL, "/dev/urandom: %s", strerror(errno));
	close(random);
	fs.b[6] = (fs.b[6] & 0x0f) | 0x40; /* RFC 4122: random */
	fs.b[8] = (fs.b[8] & 0x3f) | 0x80;
	m.params.fs = &fs;
	int r = run(&m);
	table_free(m.plan);
	close_members(&m);
	if (r < 0)
		remove_created(&m);
	loop_free(m.loop);
	buf_pool_exit();
	uring_free(m.uring);
	return r < 0 ? EXIT_FAILED : 0;
}
