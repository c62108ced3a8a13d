/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * trussfs-nth: fails the n-th allocation, or the n-th I/O, of everything that a volume and a filesystem are
 * asked to do: n = 1, 2, 3 ... until the request is through before the failure comes.
 *
 *     for each act (a request, or a thing like mounting and rebuilding), level and kind of failure
 *         prepare                      once: an object of each kind, mounted anew with nothing in memory
 *         for n = 1, 2, 3 ...          in a process of its own
 *             the act, with the n-th failing
 *             the failure ends; the act again, if it failed: it must succeed now
 *             closed, fsck, opened, the oracle, raid_check
 *
 * What must hold whichever n: the error is one that says so (-ENOMEM; -EIO), what failed has not happened, what was promised
 * is there, nothing is left behind (the leak checker looks at each process in a sanitized build), nothing hangs. I/O of one
 * member failing is within the tolerance: no error at all. A volume may stop taking writes for good where a change is
 * half made and cannot be taken back (raid_error); then everything must be there when it is opened again. How often that
 * was is printed.
 */
#include "acts.h"
#include "parts.h"
#include "raid/buf.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL_BYTES	 (32u << 20)
#define CASE_SECONDS_MAX 120 /* real time */
#define N_MAX		 100000u
#define EXIT_DONE	 3 /* the act was through before the failure came */
#define MEND_NS		 (60 * NS_PER_S)

enum kind {
	MEM_ONCE,
	MEM_GOOD, /* for good, until the act ends */
	IO_ONCE,
	IO_ONE,	  /* all of one member from the n-th on */
	IO_ALL,	  /* of all members: beyond what is tolerated */
	KINDS,
};
static const char *const kind_names[KINDS] = {"mem-once", "mem-good", "io-once", "io-one", "io-all"};

struct counts {
	uint64_t cases, errors, stops;
};

static struct {
	const char *only;
	int kind, level; /* -1: all */
	unsigned n, jobs, every;
	bool verbose, keep_going;
} opt = {.kind = -1, .level = -1, .jobs = 1, .every = 1};

static struct counts *counts; /* shared by all processes */

struct run {
	struct script s;
	const struct act *act;
	enum kind kind;
	unsigned level, n;
	struct simfail fail;
	bool leaf;
	int rc;
};

static void name_case(struct run *run)
{
	snprintf(run->s.replay, sizeof(run->s.replay),
		 "trussfs-nth --only %s --kind %s --level %u --n %u", run->act->name,
		 kind_names[run->kind], run->level, run->n);
}

static void fail_begin(struct run *run)
{
	struct rig *g = &run->s.rig;

	if (run->kind == MEM_ONCE || run->kind == MEM_GOOD) {
		mem_fail_after(run->n, run->kind == MEM_GOOD);
		return;
	}
	run->fail = (struct simfail){.left = run->n, .for_good = run->kind != IO_ONCE};
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (run->kind != IO_ONE || i == 1)
			simdev_set_fail(g->slots[i].dev, &run->fail);
	}
}

/* Whether it struck. */
static bool fail_end(struct run *run)
{
	struct rig *g = &run->s.rig;
	bool waits = mem_fail_waits();

	if (run->kind == MEM_ONCE || run->kind == MEM_GOOD) {
		mem_fail_after(0, false);
		return !waits;
	}
	for (unsigned i = 0; i < g->slot_count; i++)
		simdev_set_fail(g->slots[i].dev, NULL);
	return run->fail.hits;
}

/* Which errors are right. */
static bool error_right(const struct run *run, int err)
{
	switch (run->kind) {
	case MEM_ONCE:
	case MEM_GOOD:
		/* -EIO of a volume that has stopped; a device whose handle could not be had is not there. */
		return err == -ENOMEM || err == -EIO;
	case IO_ALL:
		return err == -EIO || err == -ENODEV || err == -EBADMSG || err == -ENODATA || err == -EUCLEAN;
	default:
		return false;
	}
}

/* Everything is well again: nothing is lost and nothing is wrong. */
static void judge_all(struct run *run)
{
	struct script *s = &run->s;
	struct rig *g = &s->rig;

	if (script_unmount(s) || work_check(&s->rig) || script_mount(s) || script_judge(s) || rig_check(g) ||
	    script_unmount(s))
		rig_fail(g, "crashed without being asked to");
}

/* What I/O errors did to members is mended: all are whole again, and what was counted is forgiven. */
static void mend(struct run *run)
{
	struct rig *g = &run->s.rig;

	for (unsigned i = 0; i < g->slot_count; i++)
		g->slots[i].suspect |= g->slots[i].in;
	if (rig_mend(g))
		rig_fail(g, "crashed without being asked to");
}

static void judge_stopped(struct run *run)
{
	struct script *s = &run->s;
	struct rig *g = &s->rig;

	__atomic_add_fetch(&counts->stops, 1, __ATOMIC_RELAXED);
	world_crash(g->world);
	rig_bury(g);
	g->beyond = false;
	if (script_mount(s))
		rig_fail(g, "crashed without being asked to");
	if (run->kind >= IO_ONCE)
		mend(run);
	if (script_judge(s))
		rig_fail(g, "crashed without being asked to");
}

/* One case, in its own process. */
static int one_case(struct run *run)
{
	struct script *s = &run->s;
	struct rig *g = &s->rig;
	const struct act *act = run->act;
	int err;
	bool struck;

	name_case(run);
	rig_say(g, act->name);
	g->beyond = true; /* errors are looked at here */
	fail_begin(run);
	err = act->fn(s);
	struck = fail_end(run);
	if (opt.verbose)
		world_say(g->world, "%s: %d%s", act->name, err, struck ? ", struck" : "");
	if (!struck) {
		rig_must(g, !err, "nothing failed, and %s says %s", act->name, strerror(-err));
		return EXIT_DONE;
	}
	__atomic_add_fetch(&counts->cases, 1, __ATOMIC_RELAXED);
	if (err) {
		__atomic_add_fetch(&counts->errors, 1, __ATOMIC_RELAXED);
		rig_must(g, error_right(run, err), "%s says %s", act->name, strerror(-err));
	}
	if (g->raid && (raid_error(g->raid) || run->kind == IO_ALL)) {
		judge_stopped(run);
	} else {
		g->beyond = false;
		if (err) {
			rig_say(g, "once more");
			err = act->fn(s);
			rig_must(g, !err, "%s once more, without failures: %s", act->name, strerror(-err));
		}
		if (!g->raid && act->unformatted && script_begin(s))
			rig_fail(g, "crashed without being asked to");
		if (!g->raid && (script_mount(s) || script_judge(s)))
			rig_fail(g, "crashed without being asked to");
		if (run->kind >= IO_ONCE)
			mend(run);
	}
	judge_all(run);
	return 0;
}

/* ---- processes ---- */

/* True in the child. */
static bool forked(struct run *run)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	rig_must(&run->s.rig, pid >= 0, "fork: %s", strerror(errno));
	if (!pid) {
		alarm(CASE_SECONDS_MAX);
		return true;
	}
	if (waitpid(pid, &status, 0) != pid)
		rig_fail(&run->s.rig, "waitpid: %s", strerror(errno));
	run->rc = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	if (WIFSIGNALED(status) || (run->rc && run->rc != EXIT_DONE && run->rc != 1)) {
		name_case(run);
		fprintf(stderr, "status %d (%s)\nreplay: %s\n", status,
			WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit", run->s.replay);
	}
	return false;
}

static int run_main(void *arg)
{
	struct run *run = arg;
	struct script *s = &run->s;
	bool failed = false;
	int err = 0;

	if (!run->act->unformatted) {
		err = script_begin(s);
		if (!err)
			err = acts_prepare(s, run->act);
	}
	if (err)
		rig_fail(&s->rig, "preparing: %s", strerror(-err));
	for (run->n = MAX(opt.n, 1u); run->n < N_MAX; run->n += opt.every) {
		if (forked(run)) {
			run->rc = one_case(run);
			run->leaf = true;
			return 0;
		}
		failed |= run->rc && run->rc != EXIT_DONE;
		if (run->rc == EXIT_DONE || opt.n || (failed && !opt.keep_going))
			break;
	}
	rig_must(&s->rig, run->n < N_MAX, "it never succeeds");
	run->rc = failed;
	printf("%-5s %s, %s, level %u: up to number %u\n", run->rc ? "FAILED" : "ok", run->act->name,
	       kind_names[run->kind], run->level, run->n);
	fflush(NULL);
	_exit(run->rc);
}

static void run_act(const struct act *act, enum kind kind, unsigned level)
{
	struct run *run = calloc(1, sizeof(*run));
	int rc;

	if (!run || buf_pool_init(POOL_BYTES))
		abort();
	run->act = act;
	run->kind = kind;
	run->level = level;
	script_init(&run->s, level, 1, opt.verbose);
	if (loop_run_co(run->s.rig.loop, run_main, run))
		rig_fail(&run->s.rig, "no memory");
	rc = run->rc;
	if (rc == EXIT_DONE) { /* the volume is still in use, and every other case has looked for leaks */
		fflush(NULL);
		_exit(rc);
	}
	rig_must(&run->s.rig, !buf_pool_used_bytes() && !loop_co_count(run->s.rig.loop),
		 "something is left of the volume");
#ifndef __SANITIZE_ADDRESS__
	fflush(NULL);
	_exit(rc);
#endif
	script_exit(&run->s);
	buf_pool_exit();
	free(run);
	exit(rc);
}

/* ---- all ---- */

static const char usage[] =
    "usage: trussfs-nth [options]\n"
    "  --only NAME     one act; default: all\n"
    "  --list          names of all acts\n"
    "  --kind NAME     mem-once mem-good io-once io-one io-all; default: all\n"
    "  --level L       1 5 6 10; default: 5\n"
    "  --n N           the N-th alone\n"
    "  --every N       only each N-th n\n"
    "  --jobs N        at a time; default 1\n"
    "  --keep-going    go on after a failure\n"
    "  --verbose       one line for each event\n"
    "  -h, --help\n";

enum { O_ONLY = 256, O_LIST, O_KIND, O_LEVEL, O_N, O_EVERY, O_JOBS, O_KEEP, O_VERBOSE };

static const struct option long_options[] = {
    {"only", required_argument, NULL, O_ONLY},   {"list", no_argument, NULL, O_LIST},
    {"kind", required_argument, NULL, O_KIND},   {"level", required_argument, NULL, O_LEVEL},
    {"n", required_argument, NULL, O_N},	 {"every", required_argument, NULL, O_EVERY},
    {"jobs", required_argument, NULL, O_JOBS},   {"keep-going", no_argument, NULL, O_KEEP},
    {"verbose", no_argument, NULL, O_VERBOSE},   {"help", no_argument, NULL, 'h'},
    {0},
};

static unsigned number(const char *text)
{
	return parts_number("trussfs-nth", text);
}

static int kind_of(const char *text)
{
	for (int i = 0; i < KINDS; i++) {
		if (!strcmp(kind_names[i], text))
			return i;
	}
	fprintf(stderr, "trussfs-nth: --kind: unknown: %s\n", text);
	exit(2);
}

static void parse(int argc, char **argv)
{
	int c;

	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (c) {
		case O_ONLY:
			opt.only = optarg;
			break;
		case O_LIST:
			for (unsigned i = 0; i < act_count; i++)
				printf("%s\n", acts[i].name);
			exit(0);
		case O_KIND:
			opt.kind = kind_of(optarg);
			break;
		case O_LEVEL:
			opt.level = (int)number(optarg);
			break;
		case O_N:
			opt.n = number(optarg);
			break;
		case O_EVERY:
			opt.every = MAX(number(optarg), 1u);
			break;
		case O_JOBS:
			opt.jobs = MIN(MAX(number(optarg), 1u), (unsigned)PARTS_JOBS_MAX);
			break;
		case O_KEEP:
			opt.keep_going = true;
			break;
		case O_VERBOSE:
			opt.verbose = true;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
}

/* A part is an act with a kind of failure. */
static bool part_wanted(unsigned part)
{
	const struct act *act = &acts[part / KINDS];
	enum kind kind = (enum kind)(part % KINDS);

	return (!opt.only || !strcmp(opt.only, act->name)) && (opt.kind < 0 || opt.kind == (int)kind) &&
	       !((act->unformatted || act->spends) && (kind == IO_ONCE || kind == IO_ONE));
}

static void part_run(unsigned part, void *arg)
{
	run_act(&acts[part / KINDS], (enum kind)(part % KINDS), *(const unsigned *)arg);
}

int main(int argc, char **argv)
{
	unsigned passed, failed, level;
	double begin = parts_seconds();

	parse(argc, argv);
	level = opt.level >= 0 ? (unsigned)opt.level : 5;
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counts == MAP_FAILED)
		return 1;
	parts_run(&(struct parts){.count = act_count * KINDS,
				  .jobs = opt.jobs,
				  .keep_going = opt.keep_going,
				  .wanted = part_wanted,
				  .run = part_run,
				  .arg = &level},
		  &passed, &failed);
	printf("%llu cases, %llu of them an error, %llu a stop, %.1f seconds\n", (unsigned long long)counts->cases,
	       (unsigned long long)counts->errors, (unsigned long long)counts->stops, parts_seconds() - begin);
	printf("%u passed, %u failed\n", passed, failed);
	return failed || !passed;
}
