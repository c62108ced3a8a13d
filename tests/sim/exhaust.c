/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * trussfs-exhaust: short scripts, crashed at every point, with every outcome of every crash.
 *
 *     for each script and level
 *         prepare                                         once
 *         for each write, flush and completion of the step: crash there
 *             for each outcome of what was then not durable
 *                 for each set of members that may be lost with it
 *                     fsck, mount, oracle, raid_check, rebuild, scrub, scrub again, fsck
 *
 * A process forks at each "for": what was prepared is there for all cases, an assert is one case's failure, and no case
 * can spoil another.
 *
 * Outcomes. What is not durable at a crash is a list of sectors. Each may be dropped, kept or garbled, so with n of them
 * there are 3^n outcomes: all are tried where they are no more than --outcomes. Where they are more, sectors share
 * their fate block by block, write by write or member by member, whichever is the finest that stays within the limit (a
 * shared "garbled" is torn: each sector by itself). As many again are drawn sector by sector from the seed, beginning with
 * nothing kept and everything kept. The number of an outcome is grain * GRAIN + index, and replays it.
 */
#include "parts.h"
#include "raid/buf.h"
#include "scenes.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL_BYTES	 (32u << 20)
#define GRAIN		 100000u
#define GRAIN_DRAWN	 4u
#define SECTORS_MAX	 65536u
#define SEEN_MAX	 (1u << 20)
#define POINTS_MAX	 20000u
#define CASE_SECONDS_MAX 120 /* real time */
#define EXIT_DONE	 3 /* of a point: the step ended before it */
#define MIB		 (1ull << 20)

struct counts {
	uint64_t points, outcomes, cases, exhausted, sectors_max, same;
};
/* What has been judged of one scene: open addressing, shared by its processes, which run one at a time. */
struct seen {
	uint64_t keys[SEEN_MAX];
	uint64_t count;
};

static struct {
	unsigned outcomes, losses, jobs, every;
	int level; /* -1: all */
	const char *only;
	unsigned point, outcome; /* 0, UINT32_MAX: all */
	unsigned lost;		 /* UINT32_MAX: all */
	unsigned thorough;	 /* of so many cases one is mended and scrubbed */
	bool verbose, count, keep_going;
} opt = {.outcomes = 3,
	 .losses = 1,
	 .jobs = 1,
	 .every = 1,
	 .level = -1,
	 .outcome = UINT32_MAX,
	 .lost = UINT32_MAX,
	 .thorough = 4};

static struct counts *counts; /* shared by all processes */
static struct seen *seen;

struct run {
	struct script s;
	const struct scene *scene;
	unsigned level, point, outcome, lost;
	bool leaf; /* this process has a case to end */
	int rc;
};

/* ---- judging a case ---- */

/* For taking turns. */
static unsigned case_number(const struct run *run)
{
	return 3 * run->point + run->outcome % GRAIN;
}

static int crashed_unasked(struct script *s)
{
	rig_fail(&s->rig, "crashed without being asked to");
}

/* Formatting that was cut off leaves strangers, or a volume, and can be begun again. */
static void judge_mkfs(struct script *s)
{
	struct rig *g = &s->rig;
	static const struct raid_options none;
	struct dev *devs[RIG_MEMBERS_MAX];
	int err;

	rig_say(g, "opening what may be no volume");
	for (unsigned i = 0; i < g->member_count; i++) {
		devs[i] = simdev_open(g->slots[i].dev);
		rig_must(g, devs[i], "no memory");
	}
	err = raid_open(g->loop, devs, g->member_count, NULL, &none, &g->raid);
	if (err) {
		g->raid = NULL;
		for (unsigned i = 0; i < g->member_count; i++)
			dev_close(devs[i]);
		rig_must(g, err == -ENODATA || err == -ENODEV || err == -EBADMSG, "opened: %s",
			 strerror(-err));
	} else {
		err = fs_mount(g->raid, &s->fs_options, &s->work.fs);
		rig_must(g, !err || err == -EBADMSG, "mounted: %s", strerror(-err));
		if (!err && fs_unmount(s->work.fs))
			rig_fail(g, "unmounting");
		s->work.fs = NULL;
		if (rig_close(g))
			crashed_unasked(s);
		if (!err && work_check(&s->rig))
			crashed_unasked(s);
	}
	if (script_begin(s) || script_unmount(s) || work_check(&s->rig))
		crashed_unasked(s);
}

static void judge_case(struct run *run)
{
	struct script *s = &run->s;
	struct rig *g = &s->rig;
	struct raid_job_info job;
	bool damaged = false;

	if (run->scene->unformatted) {
		judge_mkfs(s);
		return;
	}
	for (unsigned i = 0; i < g->slot_count; i++)
		damaged |= g->slots[i].damaged;
	if (work_check(&s->rig) || script_mount(s) || script_judge(s))
		crashed_unasked(s);
	if (rig_check(g))
		crashed_unasked(s);
	if (opt.thorough > 1 && case_number(run) / 2 % opt.thorough) {
		if (script_unmount(s))
			crashed_unasked(s);
		return;
	}
	if (rig_mend(g) || rig_scrub(g, &job))
		crashed_unasked(s);
	rig_must(g, damaged || !job.found, "scrub found %llu", (unsigned long long)job.found);
	if (rig_scrub(g, &job) || rig_check(g) || script_judge(s))
		crashed_unasked(s);
	rig_must(g, !job.found, "the second scrub found %llu", (unsigned long long)job.found);
	if (script_unmount(s) || work_check(&s->rig))
		crashed_unasked(s);
}

/* ---- outcomes ---- */

struct sector {
	struct simdev *dev;
	uint64_t write, block;
	unsigned sector;
	uint8_t fate;
};
static struct sector *sectors;
static unsigned sector_count, sector_next;

static enum simfate sector_list(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	struct rig *g = arg;

	rig_must(g, sector_count < SECTORS_MAX, "too many sectors not durable");
	sectors[sector_count++] = (struct sector){d, write, block, sector, SIMFATE_DROP};
	return SIMFATE_DROP;
}

/* They are asked for in the order of sector_list, but members may come in any. */
static enum simfate sector_fate(void *arg, struct simdev *d, uint64_t write, uint64_t block, unsigned sector)
{
	struct rig *g = arg;

	for (unsigned n = 0; n < sector_count; n++) {
		struct sector *c = &sectors[sector_next++ % sector_count];

		if (c->dev == d && c->write == write && c->block == block && c->sector == sector)
			return (enum simfate)c->fate;
	}
	rig_fail(g, "a sector that was not in the list");
}

static bool same_unit(const struct sector *a, const struct sector *b, unsigned grain)
{
	return a->dev == b->dev && (grain >= 3 || a->write == b->write) &&
	       (grain >= 2 || a->block == b->block) && (grain >= 1 || a->sector == b->sector);
}

static unsigned unit_count(unsigned grain)
{
	unsigned n = 0;

	for (unsigned i = 0; i < sector_count; i++)
		n += !i || !same_unit(&sectors[i - 1], &sectors[i], grain);
	return n;
}

/* 3^units, or more than the limit. */
static uint64_t combinations(unsigned units, uint64_t limit)
{
	uint64_t n = 1;

	while (units-- && n <= limit)
		n *= 3;
	return n;
}

static void decide(unsigned outcome, uint64_t seed)
{
	unsigned grain = outcome / GRAIN, index = outcome % GRAIN, digit = index % 3;
	struct rng r;
	unsigned keep, garble;

	rng_fork(&r, "outcome", seed + outcome);
	keep = (unsigned)rng_range(&r, 5, 95);
	garble = rng_chance(&r, 1, 2) ? 0 : (unsigned)rng_range(&r, 1, 30);
	for (unsigned i = 0; i < sector_count; i++) {
		uint8_t drawn = rng_chance(&r, garble, 100) ? SIMFATE_GARBLE
				: rng_chance(&r, keep, 100) ? SIMFATE_KEEP
							    : SIMFATE_DROP;

		if (grain == GRAIN_DRAWN) {
			sectors[i].fate = index < 2 ? (uint8_t)index : drawn;
			continue;
		}
		if (i && !same_unit(&sectors[i - 1], &sectors[i], grain)) {
			index /= 3;
			digit = index % 3;
		}
		sectors[i].fate = (uint8_t)digit;
		if (digit == SIMFATE_GARBLE && grain) /* torn */
			sectors[i].fate = (uint8_t)rng_below(&r, 3);
	}
}

/* ---- processes ---- */

static void name_case(struct run *run)
{
	snprintf(run->s.replay, sizeof(run->s.replay),
		 "trussfs-exhaust --only %s --level %u --point %u --outcome %u --lost %#x --seed %llu",
		 run->scene->name, run->level, run->point, run->outcome, run->lost,
		 (unsigned long long)run->s.options.seed);
}

/* True in the child. The parent waits; false: *ret_rc is how it ended. */
static bool forked(struct run *run, int *ret_rc)
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
	*ret_rc = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	if (WIFSIGNALED(status)) {
		name_case(run);
		fprintf(stderr, "signal %d (%s)\nreplay: %s\n", WTERMSIG(status),
			strsignal(WTERMSIG(status)), run->s.replay);
	}
	return false;
}

/*
 * Members that may be lost: within the budget, those that are suspect for nothing; but not more at once than the level
 * tolerates, since one that takes over from another has journal records like everybody.
 */
static bool loss_allowed(struct rig *g, unsigned mask)
{
	unsigned sound = 0, all = 0;

	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *m = &g->slots[i];

		if (!(mask >> i & 1))
			continue;
		if (!m->in || m->away)
			return false;
		sound += !m->suspect;
		all++;
	}
	return sound <= rig_budget(g) && all <= g->tolerance;
}

/* Of what is left after the crash: every set of members lost, or some. True: this process judges. */
static bool each_loss(struct run *run)
{
	struct rig *g = &run->s.rig;
	unsigned masks[64], count = 0;

	for (unsigned mask = 0; mask < 1u << g->slot_count && count < ARRAY_SIZE(masks); mask++) {
		if ((!run->scene->unformatted || !mask) && loss_allowed(g, mask))
			masks[count++] = mask;
	}
	for (unsigned i = 0; i < (opt.losses ? MIN(count, opt.losses) : count); i++) {
		unsigned mask = opt.losses ? masks[(case_number(run) + i) % count] : masks[i];

		run->lost = opt.lost != UINT32_MAX ? opt.lost : mask;
		__atomic_add_fetch(&counts->cases, 1, __ATOMIC_RELAXED);
		if (!forked(run, &run->rc)) {
			if (run->rc || opt.lost != UINT32_MAX)
				return false;
			continue;
		}
		name_case(run);
		for (unsigned j = 0; j < g->slot_count; j++) {
			if (run->lost >> j & 1)
				g->slots[j].suspect = g->slots[j].away = true;
		}
		judge_case(run);
		return true;
	}
	return false;
}

/*
 * Many outcomes are the same: a sector is written as it was, or what was in flight is now complete. Those with the same
 * bytes on the same members after the same promises need judging once.
 */
static bool seen_before(struct run *run)
{
	struct rig *g = &run->s.rig;
	uint64_t key = run->s.work.model.tick;
	struct rng r;

	for (unsigned i = 0; i < g->slot_count; i++) {
		const struct slot *m = &g->slots[i];

		key ^= simdev_hash(m->dev) + m->away + 2 * m->suspect + 4 * m->in;
		rng_seed(&r, key);
		key = rng_next(&r) | 1;
	}
	for (uint64_t i = key % SEEN_MAX;; i = (i + 1) % SEEN_MAX) {
		if (seen->keys[i] == key)
			return true;
		if (seen->keys[i])
			continue;
		if (seen->count < SEEN_MAX / 2) { /* else it is judged again */
			seen->keys[i] = key;
			seen->count++;
		}
		return false;
	}
}

/* The world has crashed. True in a process that has a case to end. */
static bool one_outcome(struct run *run, unsigned outcome)
{
	run->outcome = outcome;
	__atomic_add_fetch(&counts->outcomes, 1, __ATOMIC_RELAXED);
	if (!forked(run, &run->rc))
		return false;
	name_case(run);
	decide(outcome, run->s.options.seed);
	rig_bury(&run->s.rig);
	/* A second crash, if there should be one, is the seed's. */
	for (unsigned i = 0; i < run->s.rig.slot_count; i++)
		simdev_set_fate(run->s.rig.slots[i].dev, NULL, NULL);
	if (opt.outcome == UINT32_MAX && seen_before(run)) {
		__atomic_add_fetch(&counts->same, 1, __ATOMIC_RELAXED);
		_exit(0);
	}
	if (each_loss(run))
		return true;
	_exit(run->rc);
}

static bool each_outcome(struct run *run)
{
	unsigned grain = 0;
	uint64_t n;

	sector_count = sector_next = 0;
	for (unsigned i = 0; i < run->s.rig.slot_count; i++)
		simdev_each_pending(run->s.rig.slots[i].dev, sector_list, &run->s.rig);
	counts->sectors_max = MAX(counts->sectors_max, sector_count);
	if (opt.outcome != UINT32_MAX)
		return one_outcome(run, opt.outcome);
	while (grain < GRAIN_DRAWN && combinations(unit_count(grain), opt.outcomes) > opt.outcomes)
		grain++;
	if (grain < GRAIN_DRAWN) {
		n = combinations(unit_count(grain), opt.outcomes);
		for (unsigned i = 0; i < n && !run->rc; i++) {
			if (one_outcome(run, grain * GRAIN + i))
				return true;
		}
		if (!grain) {
			__atomic_add_fetch(&counts->exhausted, 1, __ATOMIC_RELAXED);
			return false; /* these are all there are */
		}
	}
	for (unsigned i = 0; i < opt.outcomes && !run->rc; i++) {
		/* A single one: nothing kept, everything kept, or drawn, by turns. */
		unsigned index = opt.outcomes == 1 ? run->point % 5 : i;

		if (one_outcome(run, GRAIN_DRAWN * GRAIN + index))
			return true;
	}
	return false;
}

/* True in a process that has a case to end. */
static bool one_point(struct run *run)
{
	struct script *s = &run->s;
	struct rig *g = &s->rig;

	if (!forked(run, &run->rc))
		return false;
	name_case(run);
	for (unsigned i = 0; i < g->slot_count; i++)
		simdev_set_fate(g->slots[i].dev, sector_fate, g);
	world_crash_at(g->world, POINT_CHANGES, run->point);
	rig_say(g, "the step");
	(void)run->scene->step(s);
	if (!world_crashed(g->world))
		_exit(EXIT_DONE);
	__atomic_add_fetch(&counts->points, 1, __ATOMIC_RELAXED);
	if (each_outcome(run))
		return true;
	_exit(run->rc);
}

static int run_main(void *arg)
{
	struct run *run = arg;
	struct script *s = &run->s;

	if (!run->scene->unformatted && script_begin(s))
		crashed_unasked(s);
	if (run->scene->prepare && run->scene->prepare(s))
		crashed_unasked(s);
	if (opt.count) {
		uint64_t before = world_points(s->rig.world, POINT_CHANGES);

		if (run->scene->step(s))
			crashed_unasked(s);
		printf("%s level %u: %llu points\n", run->scene->name, run->level,
		       (unsigned long long)(world_points(s->rig.world, POINT_CHANGES) - before));
		fflush(NULL);
		_exit(0);
	}
	for (unsigned i = 0; i < s->rig.slot_count; i++)
		(void)simdev_hash(s->rig.slots[i].dev); /* known to all processes from here on */
	for (run->point = MAX(opt.point, 1u); run->point < POINTS_MAX; run->point += opt.every) {
		run->leaf = one_point(run);
		if (run->leaf || run->rc || opt.point)
			break;
	}
	if (!run->leaf) {
		if (run->rc == EXIT_DONE)
			run->rc = 0;
		else if (!run->rc && !opt.point)
			rig_fail(&s->rig, "more than %u points", POINTS_MAX);
		printf("%-5s %s, level %u: %u points\n", run->rc ? "FAILED" : "ok", run->scene->name, run->level,
		       run->point - 1);
		fflush(NULL);
		_exit(run->rc);
	}
	return 0;
}

static void run_scene(const struct scene *scene, unsigned level, uint64_t seed)
{
	struct run *run = calloc(1, sizeof(*run));

	seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (seen == MAP_FAILED)
		abort();
	sectors = calloc(SECTORS_MAX, sizeof(*sectors));
	if (!run || !sectors || buf_pool_init(POOL_BYTES))
		abort();
	run->scene = scene;
	run->level = level;
	script_init(&run->s, level, seed, opt.verbose);
	if (run->s.rig.tolerance < scene->degraded || (scene->parity && level != 5 && level != 6))
		exit(0);
	if (loop_run_co(run->s.rig.loop, run_main, run))
		rig_fail(&run->s.rig, "no memory");
	/*
	 * A case has been judged. What it had is given back for the leak checker alone to see: freeing the members block by
	 * block would copy every page that is shared with the process which forked.
	 */
	rig_must(&run->s.rig, !run->s.rig.raid && !buf_pool_used_bytes() && !loop_co_count(run->s.rig.loop),
		 "something is left of the volume");
#ifndef __SANITIZE_ADDRESS__
	fflush(NULL);
	_exit(0);
#endif
	script_exit(&run->s);
	buf_pool_exit();
	free(sectors);
	free(run);
	exit(0);
}

/* ---- all ---- */

static const char usage[] =
    "usage: trussfs-exhaust [options]\n"
    "  --only NAME     one script; default: all\n"
    "  --list          names of all scripts\n"
    "  --count         how many points each has, and nothing more\n"
    "  --level L       1 5 6 10; default: all\n"
    "  --outcomes N    of each crash: all if there are no more, and as many drawn; default 3\n"
    "  --losses N      sets of members lost after each outcome, by turns; 0: every set; default 1\n"
    "  --thorough N    one case of N is rebuilt and scrubbed twice; default 4\n"
    "  --every N       crash at each N-th point only; default 1\n"
    "  --seed N        default 1\n"
    "  --jobs N        at a time; default 1\n"
    "  --keep-going    go on after a failure\n"
    "  --point N       crash at this point alone (write, flush and completion, from 1)\n"
    "  --outcome N     this outcome alone, as a failure prints it\n"
    "  --lost MASK     these members lost, by bit\n"
    "  --verbose       one line for each event\n"
    "  -h, --help\n";

enum { O_ONLY = 256, O_LIST, O_COUNT, O_LEVEL, O_OUTCOMES, O_LOSSES, O_THOROUGH, O_EVERY, O_SEED, O_JOBS, O_KEEP, O_POINT, O_OUTCOME, O_LOST, O_VERBOSE };

static const struct option long_options[] = {
    {"only", required_argument, NULL, O_ONLY},
    {"list", no_argument, NULL, O_LIST},
    {"count", no_argument, NULL, O_COUNT},
    {"level", required_argument, NULL, O_LEVEL},
    {"outcomes", required_argument, NULL, O_OUTCOMES},
    {"losses", required_argument, NULL, O_LOSSES},
    {"thorough", required_argument, NULL, O_THOROUGH},
    {"every", required_argument, NULL, O_EVERY},
    {"seed", required_argument, NULL, O_SEED},
    {"jobs", required_argument, NULL, O_JOBS},
    {"keep-going", no_argument, NULL, O_KEEP},
    {"point", required_argument, NULL, O_POINT},
    {"outcome", required_argument, NULL, O_OUTCOME},
    {"lost", required_argument, NULL, O_LOST},
    {"verbose", no_argument, NULL, O_VERBOSE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static unsigned number(const char *text)
{
	return parts_number("trussfs-exhaust", text);
}

static uint64_t parse(int argc, char **argv)
{
	uint64_t seed = 1;
	int c;

	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (c) {
		case O_ONLY:
			opt.only = optarg;
			break;
		case O_LIST:
			for (unsigned i = 0; i < scene_count; i++)
				printf("%s\n", scenes[i].name);
			exit(0);
		case O_COUNT:
			opt.count = true;
			break;
		case O_LEVEL:
			opt.level = (int)number(optarg);
			break;
		case O_OUTCOMES:
			opt.outcomes = MIN(number(optarg), GRAIN - 1);
			break;
		case O_LOSSES:
			opt.losses = number(optarg);
			break;
		case O_THOROUGH:
			opt.thorough = number(optarg);
			break;
		case O_EVERY:
			opt.every = MAX(number(optarg), 1u);
			break;
		case O_SEED:
			seed = number(optarg);
			break;
		case O_JOBS:
			opt.jobs = MIN(MAX(number(optarg), 1u), (unsigned)PARTS_JOBS_MAX);
			break;
		case O_KEEP:
			opt.keep_going = true;
			break;
		case O_POINT:
			opt.point = number(optarg);
			break;
		case O_OUTCOME:
			opt.outcome = number(optarg);
			break;
		case O_LOST:
			opt.lost = number(optarg);
			opt.thorough = 1;
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
	return seed;
}

/* A part is a scene at a level. */
static const unsigned levels[] = {1, 5, 6, 10};

static const struct scene *part_scene(unsigned part)
{
	return &scenes[part / ARRAY_SIZE(levels)];
}

static bool part_wanted(unsigned part)
{
	return (!opt.only || !strcmp(opt.only, part_scene(part)->name)) &&
	       (opt.level < 0 || (unsigned)opt.level == levels[part % ARRAY_SIZE(levels)]);
}

static void part_run(unsigned part, void *arg)
{
	run_scene(part_scene(part), levels[part % ARRAY_SIZE(levels)], *(const uint64_t *)arg);
}

int main(int argc, char **argv)
{
	uint64_t seed = parse(argc, argv);
	const struct parts parts = {.count = scene_count * ARRAY_SIZE(levels),
				    .jobs = opt.jobs,
				    .keep_going = opt.keep_going,
				    .wanted = part_wanted,
				    .run = part_run,
				    .arg = &seed};
	double begin = parts_seconds();
	unsigned passed, failed;

	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counts == MAP_FAILED)
		return 1;
	parts_run(&parts, &passed, &failed);
	printf("%llu points, %llu outcomes (%llu points with every outcome of every sector, at most %llu sectors), "
	       "%llu the same as another, %llu cases, %.1f seconds\n",
	       (unsigned long long)counts->points, (unsigned long long)counts->outcomes,
	       (unsigned long long)counts->exhausted, (unsigned long long)counts->sectors_max,
	       (unsigned long long)counts->same, (unsigned long long)counts->cases, parts_seconds() - begin);
	printf("%u passed, %u failed\n", passed, failed);
	return failed || !passed;
}
