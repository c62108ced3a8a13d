/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * trussfs-sim: runs seeds. Each seed is a whole life of a volume: made, worked on, crashed, robbed,
 * damaged, mended.
 *
 * Many seeds run in processes of their own (farm.c). A seed named alone runs in this process: that is
 * the form which a failure prints, and which a debugger wants.
 */
#include "farm.h"
#include "parts.h"
#include "fsrun.h"
#include "raid/buf.h"
#include "raidrun.h"
#include "shrink.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define POOL_BYTES	 (64u << 20)
#define AIMED_SEEDS	 4  /* at a time */
#define AIMED_SEEDS_MAX	 32 /* for one cell */
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
    "  --faults LIST      of members, within what the level tolerates; default: all. all, none, or\n"
    "                     names by comma: eio-read eio-write eio-flush short lost day misdirected\n"
    "                     duplicate torn lie reset rot-read hang delay read-only vanish shrink damage\n"
    "                     zero clone rename stale freeze beyond; -NAME leaves one out\n"
    "  --jobs N           seeds at a time; default 1\n"
    "  --twice            run each seed twice and compare the traces\n"
    "  --keep-going       go on after a failure\n"
    "  --aim FAULT@STATE  each seed goes for this cell of the matrix; none: no seed does; default: drawn\n"
    "  --matrix           how often each fault hit in each state of the volume\n"
    "  --complete         and aim at the cells that were never hit; fail if one still is not\n"
    "  --verbose          one line for each event\n"
    "  --script           only what is done: operations, faults, crashes\n"
    "  --legend           what the lines of --verbose mean\n"
    "  --shrink           with --seed: look for the least of a seed that still fails (--minutes, default 3;\n"
    "                     --jobs), print it as a script, and the command that runs it\n"
    "  --skip LIST        leave out, by numbers: f faults, m meddling, c crashes, w0: w1: ... operations of\n"
    "                     each worker; like f3,f7-9,m0,w0:5-80\n"
    "  --salt N           other latencies and crash points for the same seed\n"
    "  -h, --help\n";

static const char legend[] =
    "SECONDS -- round R: WHAT                  a step begins\n"
    "SECONDS MEMBER submit OP OFF+LEN SUM      I/O begins; SUM of what is written. OFF and LEN in bytes\n"
    "SECONDS MEMBER done OP OFF+LEN: RESULT    and ends; RESULT 0 or -errno; (too late): after its deadline\n"
    "SECONDS MEMBER timed out OP OFF+LEN       its submitter has been told; the device still has it\n"
    "SECONDS MEMBER fault NAME: OFF+LEN skip S count C part 1/P param X (fN)\n"
    "                                          armed: hits I/O on these bytes (0+0: all) after S have passed, C times\n"
    "                                          (0: for good), one in P (0: each). fN: its number for --skip\n"
    "SECONDS MEMBER fault K on the next        the I/O submitted next has it\n"
    "SECONDS MEMBER: N blocks damaged|zeroed   at rest\n"
    "SECONDS MEMBER vanishes|is back|is lost|is put back|is copied|is put back as it was|shrinks to N\n"
    "SECONDS NAME is a copy of MEMBER          offered beside it at this opening\n"
    "SECONDS MEMBER is NAME from now on\n"
    "SECONDS faults end                        all that is armed is taken away, what hung is let go\n"
    "SECONDS meddle K (mN)                     0 scrub, 1 replace, 2 fail and replace, 3 pull, 4 mend\n"
    "SECONDS replace MEMBER by NAME: RESULT\n"
    "SECONDS will crash at point P number N (cN)\n"
    "                                          P, of bits: 1 2 4 a read, write, flush is submitted; 8 16 32 done\n"
    "SECONDS crash                             nothing reaches any member until all is buried\n"
    "SECONDS wK.N WHAT: RESULT                 operation N of worker K; those with effects twice: as called,\n"
    "                                          as returned. Inode numbers stand for files; offsets in bytes\n"
    "SECONDS error|warning|info|debug: TEXT    what the volume and the filesystem log\n"
    "trace HASH                                of everything that happened: two runs of a seed have the same\n";

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

#define REPLAY_BYTES_MAX 65536
static void make_replay(const struct sim_options *o, char *text)
{
	size_t n = 0;

#define ADD(...) n += (size_t)snprintf(text + n, REPLAY_BYTES_MAX - n, __VA_ARGS__)
	ADD("%s --seed %llu", sim_command(), (unsigned long long)o->seed);
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
	if (o->aim)
		ADD(" --aim %s", o->aim_text);
	if (o->salt)
		ADD(" --salt %u", o->salt);
	if (o->skip) {
		ADD(" --skip ");
		if (!skip_print(o->skip, text + n, REPLAY_BYTES_MAX - n))
			strcpy(text + REPLAY_BYTES_MAX - 4, "...");
	}
#undef ADD
}

static void run_once(const struct sim_options *options, uint64_t seed, struct sim_stats *stats)
{
	static char replay[REPLAY_BYTES_MAX];
	struct sim_options o = *options;

	o.seed = seed;
	make_replay(&o, replay);
	o.replay = replay_line = replay;
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

/* Faults by states, as they hit. The number of cells that should not be empty and are. */
static unsigned print_matrix(const struct sim_stats *stats, uint32_t faults)
{
	unsigned empty = 0;
	const char *why;

	printf("%-12s", "hits");
	for (unsigned i = 0; i < RIG_STATES; i++)
		printf(" %9s", rig_state_names[i]);
	printf("\n");
	for (unsigned k = 0; k < FAULT_KINDS; k++) {
		printf("%-12s", rig_fault_names[k]);
		for (unsigned i = 0; i < RIG_STATES; i++) {
			bool possible = rig_hit_possible((enum rig_fault)k, (enum rig_state)i, &why);

			if (possible || stats->hit[k][i])
				printf(" %9llu", (unsigned long long)stats->hit[k][i]);
			else
				printf(" %9s", "-");
			empty += possible && !stats->hit[k][i] && faults >> k & 1;
		}
		printf("\n");
	}
	for (unsigned k = 0; k < FAULT_KINDS; k++) {
		for (unsigned i = 0; i < RIG_STATES; i++) {
			if (rig_hit_possible((enum rig_fault)k, (enum rig_state)i, &why)) {
				if (!stats->hit[k][i] && faults >> k & 1)
					printf("never hit: %s in state %s\n", rig_fault_names[k],
					       rig_state_names[i]);
			} else if (stats->hit[k][i]) {
				printf("hit, though it cannot be: %s in state %s: %s\n",
				       rig_fault_names[k], rig_state_names[i], why);
			}
		}
	}
	return empty;
}

/* Seeds that aim at the cells which the others left empty: what chance does not do is done on purpose. */
static void complete(const struct farm_plan *plan, const struct sim_options *options, struct sim_stats *total,
		     uint64_t *ret_passed, uint64_t *ret_failed)
{
	const char *why;

	for (unsigned k = 0; k < FAULT_KINDS; k++) {
		for (unsigned i = 0; i < RIG_STATES; i++) {
			struct rig_aim aim = {.kind = (enum rig_fault)k, .state = (enum rig_state)i};
			struct sim_options o = *options;
			struct farm_plan p = *plan;

			o.aim = &aim;
			snprintf(o.aim_text, sizeof(o.aim_text), "%s@%s", rig_fault_names[k], rig_state_names[i]);
			p.last = 0;
			while (rig_hit_possible(aim.kind, aim.state, &why) && !total->hit[k][i] &&
			       options->faults >> k & 1 && p.last < AIMED_SEEDS_MAX) {
				uint64_t failed = 0;

				p.first = p.last + 1;
				p.last += AIMED_SEEDS;
				farm_run(&p, &o, total, ret_passed, &failed);
				*ret_failed += failed;
				printf("never hit by those: --aim %s --seeds %llu..%llu: %llu hits\n", o.aim_text,
				       (unsigned long long)p.first, (unsigned long long)p.last,
				       (unsigned long long)total->hit[k][i]);
			}
		}
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
	OPT_VERBOSE,
	OPT_AIM,
	OPT_MATRIX,
	OPT_COMPLETE,
	OPT_SCRIPT,
	OPT_SKIP,
	OPT_SALT,
	OPT_SHRINK,
	OPT_LEGEND
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
    {"aim", required_argument, NULL, OPT_AIM},
    {"matrix", no_argument, NULL, OPT_MATRIX},
    {"complete", no_argument, NULL, OPT_COMPLETE},
    {"script", no_argument, NULL, OPT_SCRIPT},
    {"skip", required_argument, NULL, OPT_SKIP},
    {"salt", required_argument, NULL, OPT_SALT},
    {"shrink", no_argument, NULL, OPT_SHRINK},
    {"legend", no_argument, NULL, OPT_LEGEND},
    {"help", no_argument, NULL, 'h'},
    {0},
};

struct modes {
	bool one, matrix, complete, shrink;
};

static void parse(int argc, char **argv, struct sim_options *o, struct farm_plan *p, struct modes *m)
{
	static struct skip skipped;
	static struct rig_aim aim;
	bool seeds = false;
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (c) {
		case OPT_SEED:
			p->first = p->last = number(optarg, NULL);
			m->one = true;
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
		case OPT_AIM:
			if (!rig_aim_parse(optarg, &aim)) {
				fprintf(stderr, "trussfs-sim: --aim: got %s, expected a fault and a state as in "
						"the matrix, like lost@full, and one that can be\n", optarg);
				exit(2);
			}
			o->aim = &aim;
			snprintf(o->aim_text, sizeof(o->aim_text), "%s", optarg);
			break;
		case OPT_MATRIX:
			m->matrix = true;
			break;
		case OPT_COMPLETE:
			m->matrix = m->complete = true;
			break;
		case OPT_SCRIPT:
			o->script = true;
			break;
		case OPT_SKIP:
			if (!skip_parse(optarg, &skipped)) {
				fprintf(stderr, "trussfs-sim: --skip: got %s, expected a list like "
						"f3,f7-9,m0,c1,w0:5-80\n", optarg);
				exit(2);
			}
			o->skip = &skipped;
			break;
		case OPT_SALT:
			o->salt = (unsigned)number(optarg, NULL);
			break;
		case OPT_SHRINK:
			m->shrink = true;
			break;
		case OPT_LEGEND:
			fputs(legend, stdout);
			exit(0);
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (!seeds && !m->one && p->minutes > 0)
		p->last = UINT64_MAX - 1;
}

int main(int argc, char **argv)
{
	struct sim_options o = {.level = -1, .faults = RIG_FAULTS_DEFAULT};
	struct farm_plan p = {.first = 1, .last = 100, .jobs = 1, .run = run_seed};
	struct sim_stats total = {0};
	uint64_t passed = 0, failed = 0;
	double begin = parts_seconds();
	struct modes m = {0};
	unsigned empty = 0;

	parse(argc, argv, &o, &p, &m);
	catch_signals();
	if (m.shrink)
		return shrink(&p, &o);
	if (m.one) {
		o.alone = true;
		run_seed(&o, p.first, &total);
		passed = 1;
	} else {
		farm_run(&p, &o, &total, &passed, &failed);
		if (m.complete)
			complete(&p, &o, &total, &passed, &failed);
	}
	printf("%llu rounds, %llu crashes (%llu in replay), %llu operations, %llu members lost, "
	       "%llu replaced, "
	       "%llu scrubs, %llu damaged, %llu faults (%llu I/Os), %llu remounts, %llu blocks cleaned, %.0f simulated seconds, %.1f seconds\n",
	       (unsigned long long)total.rounds, (unsigned long long)total.crashes,
	       (unsigned long long)total.replay_crashes, (unsigned long long)total.ops,
	       (unsigned long long)total.lost, (unsigned long long)total.rebuilds,
	       (unsigned long long)total.scrubs, (unsigned long long)total.damages,
	       (unsigned long long)total.faults, (unsigned long long)total.faults_hit,
	       (unsigned long long)total.remounts, (unsigned long long)total.cleaned, (double)total.simulated_ns / 1e9,
	       parts_seconds() - begin);
	if (m.matrix)
		empty = print_matrix(&total, o.faults);
	if (m.complete && !total.cleaned && !o.raid_only && o.level >= 5 && o.level != 10) {
		printf("the cleaner never moved anything\n");
		empty++;
	}
	if (m.complete && empty)
		failed++;
	printf("%llu passed, %llu failed\n", (unsigned long long)passed,
	       (unsigned long long)failed);
	return failed ? 1 : 0;
}
