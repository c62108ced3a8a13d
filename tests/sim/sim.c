/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * trussfs-sim: runs seeds. Each seed is a whole life of a volume: made, worked on, crashed, robbed,
 * damaged, mended.
 *
 * More than one seed run as one process each, so that an assert or a crash of the code under test
 * is one failure and not the end, and so that two cores are used. A seed named alone runs in this
 * process: that is the form which a failure prints, and which a debugger wants.
 */
#include "rig.h"
#include "fsrun.h"
#include "raidrun.h"
#include "raid/buf.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POOL_BYTES	 (64u << 20)
#define SEED_SECONDS_MAX 600 /* real time: then it hangs without letting the simulated clock move  \
			      */
#define JOBS_MAX 16

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

static void stats_add(struct sim_stats *to, const struct sim_stats *s)
{
	to->rounds += s->rounds;
	to->crashes += s->crashes;
	to->replay_crashes += s->replay_crashes;
	to->ops += s->ops;
	to->lost += s->lost;
	to->rebuilds += s->rebuilds;
	to->scrubs += s->scrubs;
	to->damages += s->damages;
	to->remounts += s->remounts;
	to->faults += s->faults;
	to->faults_hit += s->faults_hit;
	to->simulated_ns += s->simulated_ns;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- many seeds ---- */

struct job {
	pid_t pid;
	int fd;
	uint64_t seed;
};

static bool job_start(struct job *j, const struct sim_options *o, uint64_t seed)
{
	int fds[2];

	if (pipe(fds))
		return false;
	fflush(NULL);
	j->pid = fork();
	if (j->pid < 0)
		return false;
	if (!j->pid) {
		struct sim_stats stats;

		close(fds[0]);
		run_seed(o, seed, &stats);
		if (write(fds[1], &stats, sizeof(stats)) != (ssize_t)sizeof(stats))
			_exit(1);
		exit(0); /* not _exit: the leak checker wants to look */
	}
	close(fds[1]);
	j->fd = fds[0];
	j->seed = seed;
	return true;
}

/* Waits for any; true if it passed. */
static bool job_end(struct job *jobs, unsigned count, struct job **ret, struct sim_stats *total)
{
	struct sim_stats stats;
	int status;
	pid_t pid = wait(&status);
	bool passed;

	for (unsigned i = 0; i < count; i++) {
		if (jobs[i].pid == pid)
			*ret = &jobs[i];
	}
	passed = read((*ret)->fd, &stats, sizeof(stats)) == (ssize_t)sizeof(stats) &&
		 WIFEXITED(status) && WEXITSTATUS(status) == 0;
	if (passed)
		stats_add(total, &stats);
	close((*ret)->fd);
	(*ret)->pid = 0;
	return passed;
}

struct plan {
	uint64_t first, last;
	double minutes;
	unsigned jobs;
	bool keep_going;
};

static void run_many(const struct plan *p, const struct sim_options *o, struct sim_stats *total,
		     uint64_t *ret_passed, uint64_t *ret_failed)
{
	struct job jobs[JOBS_MAX] = {0}, *free_job;
	double until = p->minutes > 0 ? seconds() + p->minutes * 60 : 0;
	uint64_t next = p->first, failed[32], failed_count = 0;
	unsigned running = 0;

	for (;;) {
		bool more = next <= p->last && (!until || seconds() < until) &&
			    (p->keep_going || !failed_count);

		free_job = NULL;
		for (unsigned i = 0; i < p->jobs && more; i++) {
			if (!jobs[i].pid)
				free_job = &jobs[i];
		}
		if (free_job) {
			if (!job_start(free_job, o, next)) {
				perror("trussfs-sim: fork");
				exit(1);
			}
			running++;
			next++;
			continue;
		}
		if (!running)
			break;
		running--;
		if (job_end(jobs, p->jobs, &free_job, total)) {
			++*ret_passed;
			continue;
		}
		if (failed_count < ARRAY_SIZE(failed))
			failed[failed_count] = free_job->seed;
		failed_count++;
	}
	*ret_failed = failed_count;
	for (unsigned i = 0; i < MIN(failed_count, ARRAY_SIZE(failed)); i++)
		printf("failed: seed %llu\n", (unsigned long long)failed[i]);
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

static void parse(int argc, char **argv, struct sim_options *o, struct plan *p, bool *ret_one)
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
			p->jobs = MIN(MAX((unsigned)number(optarg, NULL), 1u), (unsigned)JOBS_MAX);
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
	struct plan p = {.first = 1, .last = 100, .jobs = 1};
	struct sim_stats total = {0};
	uint64_t passed = 0, failed = 0;
	double begin = seconds();
	bool one = false;

	parse(argc, argv, &o, &p, &one);
	catch_signals();
	if (one) {
		o.alone = true;
		run_seed(&o, p.first, &total);
		passed = 1;
	} else {
		run_many(&p, &o, &total, &passed, &failed);
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
	       seconds() - begin);
	printf("%llu passed, %llu failed\n", (unsigned long long)passed,
	       (unsigned long long)failed);
	return failed ? 1 : 0;
}
