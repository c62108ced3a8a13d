/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * trussfs-sim: runs seeds. Each seed is a whole life of a volume: made, worked on, crashed, robbed,
 * damaged, mended.
 *
 * Many seeds run in processes of their own (farm.c). A seed named alone runs in this process: that is
 * the form which a failure prints, and which a debugger wants.
 */
#include "farm.h"
#include "fsrun.h"
#include "raid/buf.h"
#include "raidrun.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define POOL_BYTES	 (64u << 20)
#define SEED_SECONDS_MAX 600 /* real time: then it hangs without letting the simulated clock move  \
			      */

static const char usage[] =
    "usage: trussfs-sim [options]\n"
    "  --seed N           run one seed, in this process\n"
    "  --seeds A..B       run these; default 1..100\n"
    "  --minutes M        stop after so long; without --seeds: any number of seeds from 1 on\n"
    "  --level L          0 1 5 6 10 50 60; default: drawn\n"
    "  --members N        default: drawn\n"
    "  --ops N            operations of one round; default: drawn\n"
    "  --crashes N        rounds; default: drawn\n"
    "  --raid-only        the volume without a filesystem\n"
    "  --faults LIST         of members, within what the level tolerates; default: all. all, none, or\n"
    "                        names by comma: eio-read eio-write eio-flush lost misdirected duplicate\n"
    "                        torn lie rot-read hang delay read-only damage clone rename stale freeze\n"
    "                        beyond; -NAME leaves one out\n"
    "  --jobs N           seeds at a time; default 1\n"
    "  --twice            run each seed twice and compare the traces\n"
    "  --keep-going       go on after a failure\n"
    "  --verbose          one line for each event:\n"
    "       SECONDS MEMBER submit|done OP OFFSET+LENGTH SUM|RESULT; '--' begins a step\n"
    "       SECONDS MEMBER fault NAME ...: is armed; MEMBER fault N on the next: the I/O submitted next has it\n"
    "  -h, --help\n";

static const char *replay_line;

static void die(int sig)
{
	static const char text[] = "\nreplay: ";

	/* Only what a signal handler may. */
	if (replay_line) {
		(void)!write(2, text, sizeof(text) - 1);
		(void)!write(2, replay_line, strlen(replay_line));
		(void)!write(2, "\n", 1);
	}
	signal(sig, SIG_DFL);
	raise(sig);
}

static void catch_signals(void)
{
	static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM};
	static char stack[64 << 10];
	const stack_t alt = {.ss_sp = stack, .ss_size = sizeof(stack)};
	struct sigaction act = {.sa_handler = die, .sa_flags = SA_ONSTACK};

	(void)sigaltstack(&alt, NULL); /* else only overflows of a coroutine's stack go unnamed */
	for (unsigned i = 0; i < ARRAY_SIZE(signals); i++)
		(void)sigaction(signals[i], &act, NULL);
}

static void make_replay(struct sim_options *o)
{
	int n = snprintf(o->replay, sizeof(o->replay), "trussfs-sim --seed %llu",
			 (unsigned long long)o->seed);

#define ADD(...) n += snprintf(o->replay + n, sizeof(o->replay) - (size_t)n, __VA_ARGS__)
	if (o->level >= 0)
		ADD(" --level %d", o->level);
	if (o->members)
		ADD(" --members %u", o->members);
	if (o->ops)
		ADD(" --ops %u", o->ops);
	if (o->crashes)
		ADD(" --crashes %u", o->crashes);
	if (o->raid_only)
		ADD(" --raid-only");
	if (o->faults_text[0])
		ADD(" --faults %s", o->faults_text);
#undef ADD
}

static void run_once(const struct sim_options *options, uint64_t seed, struct sim_stats *stats)
{
	struct sim_options o = *options;

	o.seed = seed;
	make_replay(&o);
	replay_line = o.replay;
	alarm(SEED_SECONDS_MAX);
	if (buf_pool_init(POOL_BYTES)) {
		fprintf(stderr, "trussfs-sim: no memory\n");
		exit(1);
	}
	if (o.raid_only)
		raidrun_seed(&o, stats);
	else
		fsrun_seed(&o, stats);
	buf_pool_exit();
	alarm(0);
	if (o.verbose)
		printf("trace %016llx\n", (unsigned long long)stats->hash);
	replay_line = NULL;
}

static void run_seed(const struct sim_options *o, uint64_t seed, struct sim_stats *stats)
{
	struct sim_stats again;

	run_once(o, seed, stats);
	if (!o->twice)
		return;
	run_once(o, seed, &again);
	if (again.hash != stats->hash || again.ops != stats->ops) {
		fprintf(stderr, "seed %llu: two runs differ: trace %016llx and %016llx\n",
			(unsigned long long)seed, (unsigned long long)stats->hash,
			(unsigned long long)again.hash);
		exit(1);
	}
}

static uint64_t number(const char *text, char **end)
{
	char *e;
	unsigned long long x = strtoull(text, &e, 10);

	if (e == text || (!end && *e)) {
		fprintf(stderr, "trussfs-sim: not a number: %s\n", text);
		exit(2);
	}
	if (end)
		*end = e;
	return x;
}

enum {
	OPT_SEED = 256,
	OPT_SEEDS,
	OPT_MINUTES,
	OPT_LEVEL,
	OPT_MEMBERS,
	OPT_OPS,
	OPT_CRASHES,
	OPT_RAID,
	OPT_FAULTS,
	OPT_JOBS,
	OPT_KEEP,
	OPT_TWICE,
	OPT_VERBOSE
};

static const struct option long_options[] = {
    {"seed", required_argument, NULL, OPT_SEED},
    {"seeds", required_argument, NULL, OPT_SEEDS},
    {"minutes", required_argument, NULL, OPT_MINUTES},
    {"level", required_argument, NULL, OPT_LEVEL},
    {"members", required_argument, NULL, OPT_MEMBERS},
    {"ops", required_argument, NULL, OPT_OPS},
    {"crashes", required_argument, NULL, OPT_CRASHES},
    {"raid-only", no_argument, NULL, OPT_RAID},
    {"faults", required_argument, NULL, OPT_FAULTS},
    {"jobs", required_argument, NULL, OPT_JOBS},
    {"twice", no_argument, NULL, OPT_TWICE},
    {"keep-going", no_argument, NULL, OPT_KEEP},
    {"verbose", no_argument, NULL, OPT_VERBOSE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static void parse(int argc, char **argv, struct sim_options *o, struct farm_plan *p, bool *ret_one)
{
	bool seeds = false;
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (c) {
		case OPT_SEED:
			p->first = p->last = number(optarg, NULL);
			*ret_one = true;
			break;
		case OPT_SEEDS:
			p->first = number(optarg, &end);
			if (strncmp(end, "..", 2)) {
				fprintf(stderr, "trussfs-sim: --seeds: got %s, expected A..B\n",
					optarg);
				exit(2);
			}
			p->last = number(end + 2, NULL);
			seeds = true;
			break;
		case OPT_MINUTES:
			p->minutes = strtod(optarg, NULL);
			break;
		case OPT_LEVEL:
			o->level = (int)number(optarg, NULL);
			break;
		case OPT_MEMBERS:
			o->members = (unsigned)number(optarg, NULL);
			break;
		case OPT_OPS:
			o->ops = (unsigned)number(optarg, NULL);
			break;
		case OPT_CRASHES:
			o->crashes = (unsigned)number(optarg, NULL);
			break;
		case OPT_RAID:
			o->raid_only = true;
			break;
		case OPT_FAULTS:
			if (!rig_faults_parse(optarg, &o->faults)) {
				fprintf(stderr, "trussfs-sim: --faults: unknown name in %s\n", optarg);
				exit(2);
			}
			snprintf(o->faults_text, sizeof(o->faults_text), "%s", optarg);
			break;
		case OPT_JOBS:
			p->jobs = MIN(MAX((unsigned)number(optarg, NULL), 1u), (unsigned)FARM_JOBS_MAX);
			break;
		case OPT_TWICE:
			o->twice = true;
			break;
		case OPT_KEEP:
			p->keep_going = true;
			break;
		case OPT_VERBOSE:
			o->verbose = true;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (!seeds && !*ret_one && p->minutes > 0)
		p->last = UINT64_MAX - 1;
}

int main(int argc, char **argv)
{
	struct sim_options o = {.level = -1, .faults = RIG_FAULTS_DEFAULT};
	struct farm_plan p = {.first = 1, .last = 100, .jobs = 1, .run = run_seed};
	struct sim_stats total = {0};
	uint64_t passed = 0, failed = 0;
	double begin = farm_seconds();
	bool one = false;

	parse(argc, argv, &o, &p, &one);
	catch_signals();
	if (one) {
		o.alone = true;
		run_seed(&o, p.first, &total);
		passed = 1;
	} else {
		farm_run(&p, &o, &total, &passed, &failed);
	}
	printf("%llu rounds, %llu crashes (%llu in replay), %llu operations, %llu members lost, "
	       "%llu replaced, "
	       "%llu scrubs, %llu damaged, %llu faults (%llu I/Os), %llu remounts, %.0f simulated seconds, %.1f seconds\n",
	       (unsigned long long)total.rounds, (unsigned long long)total.crashes,
	       (unsigned long long)total.replay_crashes, (unsigned long long)total.ops,
	       (unsigned long long)total.lost, (unsigned long long)total.rebuilds,
	       (unsigned long long)total.scrubs, (unsigned long long)total.damages,
	       (unsigned long long)total.faults, (unsigned long long)total.faults_hit,
	       (unsigned long long)total.remounts, (double)total.simulated_ns / 1e9,
	       farm_seconds() - begin);
	printf("%llu passed, %llu failed\n", (unsigned long long)passed,
	       (unsigned long long)failed);
	return failed ? 1 : 0;
}
