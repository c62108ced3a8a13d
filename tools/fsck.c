/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fsck.trussfs: checks a filesystem that is not mounted, and writes nothing.
 *
 * The checks are those of raid_check and fs_check, which tests run after every simulated crash.
 * Members are held exclusively meanwhile, so nobody can mount what is being looked at. There is no
 * repair yet: -a, -p and -y are accepted, since fsck(8) passes them, and answered by saying so when
 * there is something to repair.
 */
#include "args.h"
#include "fs/fs.h"
#include "fs/log.h"
#include "fs/rundir.h"
#include "raid/buf.h"
#include "raid/uring.h"
#include "scan.h"
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TOOL		   "fsck.trussfs"
#define POOL_BYTES	   (128u << 20)
#define OPEN_TRIES	   50 /* a daemon or another fsck that is just ending */
#define OPEN_PAUSE_US	   100000
#define PROBLEMS_SHOWN_MAX 10000

/* fsck(8) */
#define EXIT_CLEAN     0
#define EXIT_ERRORS    4
#define EXIT_FAILED    8
#define EXIT_USAGE     16
#define EXIT_CANCELLED 32

struct fsck {
	char **sources;
	unsigned source_count;
	bool wants_repair;
	struct scan scan;
	struct uuid fs;
	struct uring *uring;
	struct loop *loop;
	struct fs_check_stats stats;
	uint64_t problems, shown;
	unsigned unusable; /* members named that cannot be looked at */
	bool degraded;
};

static const char usage_text[] =
    "Usage: fsck.trussfs [OPTIONS] MEMBER...|LABEL=NAME|UUID=UUID\n"
    "Checks a trussfs filesystem that is not mounted. Writes nothing.\n"
    "One member is enough: the others are looked for as mount.trussfs does.\n"
    "\n"
    "  -n, --dry-run       change nothing (always so)\n"
    "  -j, --jobs N        members read at the same time (accepted; all are)\n"
    "  -f, --force         check even if it was unmounted cleanly (always so)\n"
    "  -a, -p, -y          repair: not possible yet, says so\n"
    "  -C, --progress      accepted for fsck(8)\n"
    "  -h, --help          show this text\n"
    "  -V, --version       show the version\n"
    "\n"
    "Exit status: 0 clean, 4 errors found, 8 could not check, 16 usage, 32 cancelled.\n";

/* 1: go on; else *ret_exit. */
static int parse_arguments(struct fsck *f, int argc, char **argv, int *ret_exit)
{
	static const struct option options[] = {
	    {"dry-run", no_argument, NULL, 'n'},
	    {"jobs", required_argument, NULL, 'j'},
	    {"force", no_argument, NULL, 'f'},
	    {"progress", no_argument, NULL, 'C'},
	    {"help", no_argument, NULL, 'h'},
	    {"version", no_argument, NULL, 'V'},
	    {NULL, 0, NULL, 0},
	};
	int c;

	*ret_exit = EXIT_USAGE;
	while ((c = getopt_long(argc, argv, "nj:fapyC::hVTlMPrtv", options, NULL)) != -1) {
		switch (c) {
		case 'h':
			fputs(usage_text, stdout);
			*ret_exit = EXIT_CLEAN;
			return 0;
		case 'V':
			printf(VERSION_LINE, TOOL);
			*ret_exit = EXIT_CLEAN;
			return 0;
		case 'j': {
			char *end;
			unsigned long n = strtoul(optarg, &end, 10);
			if (*end || n == 0 || n > 1024)
				return fail(0, TOOL,
					    "--jobs: got \"%s\", expected a number from 1 to 1024",
					    optarg);
			break;
		}
		case 'a':
		case 'p':
		case 'y':
			f->wants_repair = true;
			break;
		case '?':
			return fail(0, TOOL, "try --help");
		default:
			break; /* what fsck(8) may hand through */
		}
	}
	f->sources = argv + optind;
	f->source_count = (unsigned)(argc - optind);
	if (!f->source_count)
		return fail(0, TOOL, "no member given; try --help");
	if (f->source_count > MEMBERS_MAX)
		return fail(0, TOOL, "got %u members, expected at most %d", f->source_count,
			    MEMBERS_MAX);
	return 1;
}

static void report_line(struct fsck *f, const char *id, const char *text)
{
	if (f->shown++ < PROBLEMS_SHOWN_MAX)
		printf("%s%s%s\n", id ? id : "", id ? ": " : "", text);
	else if (f->shown == PROBLEMS_SHOWN_MAX + 1)
		printf("(more problems are counted but not shown)\n");
}

static void report_raid(void *arg, const char *text)
{
	report_line(arg, NULL, text);
}

static void report_fs(void *arg, const char *id, const char *text)
{
	report_line(arg, id, text);
}

static void say_degraded(struct fsck *f, unsigned index, const struct raid_member_info *m,
			 const char *what)
{
	printf("degraded: member %u (%s) %s\n", index, m->path[0] ? m->path : "never seen", what);
	f->degraded = true;
}

/* Less redundancy than there should be is no error: it is what the redundancy is for. */
static void report_degraded(struct fsck *f, const struct raid *raid)
{
	struct raid_info info;
	struct raid_member_info m;

	raid_info(raid, &info);
	for (unsigned i = 0; i < info.member_count; i++) {
		if (raid_member_info(raid, i, &m) < 0 || m.state == MEMBER_REMOVED)
			continue;
		if (m.state == MEMBER_FAILED)
			say_degraded(f, i, &m, "was taken out of service");
		else if (!m.present)
			say_degraded(f, i, &m, "is missing");
		else if (m.state == MEMBER_MISSING)
			say_degraded(f, i, &m, "missed changes and is not used");
		else if (m.columns_stale)
			say_degraded(f, i, &m, "is being rebuilt");
	}
	if (!f->degraded && !info.chunks_below_target)
		return;
	f->degraded = true;
	printf("degraded: %" PRIu64 " chunks have less redundancy than they should; %u more "
	       "member%s may be lost\n",
	       info.chunks_below_target, info.redundancy, info.redundancy == 1 ? "" : "s");
}

static int check_co(void *arg)
{
	struct fsck *f = arg;
	struct raid_options options = {.flags = RAID_OPEN_CHECK | RAID_OPEN_READ_ONLY};
	struct dev *devs[MEMBERS_MAX];
	unsigned count = 0;
	struct raid *raid;
	int r;

	for (unsigned i = 0; i < f->scan.count && count < MEMBERS_MAX; i++) {
		const char *path = f->scan.members[i].path;
		r = -EBUSY;
		for (int n = 0; r == -EBUSY && n < OPEN_TRIES; n++) {
			log_mute(n < OPEN_TRIES - 1);
			r = uring_dev_open(f->uring, f->loop, path, DEV_OPEN_READ_ONLY,
					   &devs[count]);
			log_mute(false);
			if (r == -EBUSY)
				co_sleep_ns(OPEN_PAUSE_US * 1000ull);
		}
		if (r == 0) {
			count++;
		} else if (r == -EBUSY) {
			while (count)
				dev_close(devs[--count]);
			return r;
		} else {
			log_warning("%s: cannot open: %s", path, strerror(-r));
			f->unusable++;
		}
	}
	r = raid_open(f->loop, devs, count, &f->fs, &options, &raid);
	if (r < 0) {
		while (count)
			dev_close(devs[--count]);
		return fail(r, TOOL, "the volume does not open: %s", strerror(-r));
	}
	report_degraded(f, raid);
	int64_t found = raid_check(raid, report_raid, f);
	int64_t found_fs = fs_check(raid, report_fs, f, &f->stats);
	if (found < 0)
		r = fail((int)found, TOOL, "checking the volume failed: %s", strerror((int)-found));
	else
		f->problems += (uint64_t)found;
	if (found_fs < 0)
		r = fail((int)found_fs, TOOL, "checking the filesystem failed: %s",
			 strerror((int)-found_fs));
	else
		f->problems += (uint64_t)found_fs;
	(void)raid_close(raid); /* nothing is written, so nothing can be lost */
	return r;
}

static int check(struct fsck *f)
{
	struct rundir_entry *e = mem_zalloc(sizeof(*e));
	char uuid[UUID_TEXT_BYTES];
	int r;

	if (!e)
		return -ENOMEM;
	r = scan_sources(&f->scan, f->sources, f->source_count, &f->fs);
	for (int n = 0; r == 0 && rundir_find_uuid(&f->fs, e, NULL) == 0; n++) {
		/* One that is being unmounted is waited for. */
		if (!e->closing || n == OPEN_TRIES) {
			r = fail(-EBUSY, TOOL, "%s: is mounted on %s: unmount it first",
				 f->sources[0], e->mount);
			break;
		}
		usleep(OPEN_PAUSE_US);
	}
	mem_free(e);
	if (r < 0)
		return r;
	r = uring_new(&f->uring);
	if (r < 0)
		return r;
	f->loop = loop_new(&uring_backend, f->uring);
	if (!f->loop || buf_pool_init(POOL_BYTES) < 0)
		return fail(-ENOMEM, TOOL, "no memory");
	const struct scan_member *newest = scan_newest(&f->scan, &f->fs);
	printf("%s: checking UUID=%s%s%s, %u members\n", TOOL, uuid_text(&f->fs, uuid),
	       newest && newest->label.name[0] ? " LABEL=" : "", newest ? newest->label.name : "",
	       f->scan.count);
	fflush(stdout);
	return loop_run_co(f->loop, check_co, f);
}

int main(int argc, char **argv)
{
	static struct fsck f;
	int code;

	log_to_stderr(TOOL, false);
	setvbuf(stdout, NULL, _IOLBF, 0); /* in order with what goes to stderr, where both go to one log */
	if (parse_arguments(&f, argc, argv, &code) != 1)
		return code;
	scan_init(&f.scan);
	int r = check(&f);
	code = f.problems ? EXIT_ERRORS : EXIT_CLEAN;
	f.unusable += f.scan.unusable;
	if (r < 0 || f.unusable)
		code |= EXIT_FAILED;
	if (r == 0 || f.problems) {
		printf("%s: %" PRIu64 " inodes (%" PRIu64 " files, %" PRIu64
		       " directories), %" PRIu64 " data and %" PRIu64 " metadata blocks: ",
		       TOOL, f.stats.inodes, f.stats.files, f.stats.directories,
		       f.stats.data_blocks, f.stats.meta_blocks);
		if (f.problems)
			printf("%" PRIu64 " problem%s found\n", f.problems,
			       f.problems == 1 ? "" : "s");
		else
			printf("clean%s\n", f.degraded ? ", degraded" : "");
	}
	if (f.unusable)
		fail(0, TOOL, "%u of the members given could not be checked", f.unusable);
	if (f.problems && f.wants_repair)
		fail(0, TOOL, "repair is not possible yet: nothing was changed");
	scan_clear(&f.scan);
	loop_free(f.loop);
	buf_pool_exit();
	uring_free(f.uring);
	return fflush(stdout) ? code | EXIT_FAILED : code;
}
