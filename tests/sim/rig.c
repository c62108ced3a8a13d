/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The bench.
 *
 * The budget: a member is *suspect* while it may lack something that it should hold: it is away,
 * was put back stale, was damaged and not scrubbed since, or replaces another and is not complete.
 * No more members than the level tolerates are ever suspect, so nothing may be lost and no call may
 * fail (but for lack of space). Everything that makes a member suspect asks rig_budget first.
 *
 * After a crash calls fail as they like. Whoever gets an error looks at world_crashed: if the world
 * stands, the error fails the seed.
 */
#include "rig.h"
#include "raid/buf.h"
#include "wall.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB		 (1ull << 20)
#define OPEN_CRASHES_MAX 4
#define LOG_LINES	 24
#define LOG_LINE_BYTES	 240
#define UNWIND_NS_MAX	 (900 * NS_PER_S) /* simulated: a step that takes longer hangs */
#define CHECK_LINES_MAX	 20
#define FAULT_BLOCKS_MAX 4096
#define MEND_TRIES_MAX	 6

/* The last messages of the libraries, for a failure. */
static struct {
	char line[LOG_LINES][LOG_LINE_BYTES];
	unsigned next;
	struct rig *rig;
} log_ring;

static void rig_log(enum log_level level, const char *text, void *arg)
{
	struct rig *g = arg;
	static const char *const names[] = {"error", "warning", "info", "debug"};

	if (world_is_verbose(g->world))
		world_say(g->world, "%s: %s", names[level], text);
	if (level > LOG_LEVEL_INFO)
		return;
	snprintf(log_ring.line[log_ring.next++ % LOG_LINES], LOG_LINE_BYTES, "%s: %s", names[level],
		 text);
}

void rig_fail(struct rig *g, const char *format, ...)
{
	va_list ap;

	fflush(stdout);
	for (unsigned i = 0; i < LOG_LINES; i++) {
		const char *line = log_ring.line[(log_ring.next + i) % LOG_LINES];

		if (*line)
			fprintf(stderr, "  %s\n", line);
	}
	fprintf(stderr,
		"seed %llu: level %u, %u members, round %u, %s%s: ", (unsigned long long)g->o->seed,
		g->level, g->member_count, g->round, g->doing,
		world_crashed(g->world) ? " (crashed)" : "");
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "\nreplay: %s\n", g->o->replay);
	if (g->o->alone)
		printf("0 passed, 1 failed\n");
	fflush(NULL);
	_exit(1); /* what is left is not worth a leak report */
}

static void rig_stuck(void *arg, const char *why)
{
	struct rig *g = arg;

	rig_fail(g, "%s (%u coroutines, %u workers)", why, loop_co_count(g->loop), g->workers);
}

void rig_say(struct rig *g, const char *doing)
{
	g->doing = doing;
	world_watch(g->world, world_now_ns(g->world) + UNWIND_NS_MAX, rig_stuck, g);
	world_say(g->world, "-- round %u: %s", g->round, doing);
}

void sim_stats_add(struct sim_stats *to, const struct sim_stats *s)
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

/* ---- configuration ---- */

static unsigned members_min(unsigned level)
{
	switch (level) {
	case 0:
	case 1:
		return 2;
	case 5:
		return 3;
	case 6:
	case 10:
		return 4;
	case 50:
		return 6;
	default:
		return 8;
	}
}

static struct slot *slot_add(struct rig *g, uint64_t size_bytes)
{
	struct simdev_params params;
	struct slot *s;
	char name[16];

	rig_must(g, g->slot_count < RIG_SPARES_MAX, "too many members");
	s = &g->slots[g->slot_count++];
	snprintf(name, sizeof(name), "m%u", g->spare_number++);
	simdev_params_random(&params, &g->rng, size_bytes);
	*s = (struct slot){.dev = simdev_new(g->world, name, &params), .replaces = -1};
	rig_must(g, s->dev, "no memory");
	return s;
}

void rig_init(struct rig *g, const struct sim_options *o)
{
	static const unsigned levels[] = {1, 5, 5, 5, 6, 6, 6, 10, 10, 0, 50, 60};
	static const uint64_t strips[] = {4096, 16384, 65536, 65536, 131072, 262144};
	uint64_t size_bytes;
	unsigned min;

	*g = (struct rig){.o = o, .doing = "starting"};
	g->world = world_new(o->seed);
	if (o->verbose)
		world_verbose(g->world, stdout);
	wall_set(g->world);
	g->loop = loop_new(&world_backend, g->world);
	memset(&log_ring, 0, sizeof(log_ring));
	log_set_hook(rig_log, g);
	co_cond_init(&g->workers_done);
	rng_fork(&g->rng, "rig", o->seed);
	rng_fork(&g->fault_rng, "faults", o->seed);
	rng_fork(&g->priority_rng, "priority", o->seed);
	for (unsigned i = 0; i < ARRAY_SIZE(g->priority); i++)
		g->priority[i].acked = g->priority[i].tried = 50;

	g->level =
	    o->level >= 0 ? (unsigned)o->level : levels[rng_below(&g->rng, ARRAY_SIZE(levels))];
	min = members_min(g->level);
	g->member_count = min + (unsigned)rng_below(&g->rng, 4);
	if (g->level == 1)
		g->member_count = 2 + (unsigned)rng_below(&g->rng, 2);
	if (o->members)
		g->member_count = MAX(o->members, min);
	if (g->level == 10 || g->level == 50 || g->level == 60)
		g->member_count = ROUND_UP(g->member_count, 2);
	g->member_count = MIN(g->member_count, RIG_MEMBERS_MAX);
	g->tolerance = geom_tolerance(g->level, g->member_count);

	rng_fill(&g->rng, &g->fs, sizeof(g->fs));
	g->format = (struct raid_format_params){
	    .level = (int)g->level,
	    .strip_bytes = strips[rng_below(&g->rng, ARRAY_SIZE(strips))],
	    .journal_bytes = rng_range(&g->rng, 4, 6) * MIB,
	    .slice_bytes = (4 * MIB) << rng_below(&g->rng, 2),
	    .name = "sim",
	    .fs = &g->fs,
	};
	size_bytes = rng_range(&g->rng, 56, 80) * MIB;
	for (unsigned i = 0; i < g->member_count; i++) {
		bool other = rng_chance(&g->rng, 1, 6);
		uint64_t more = rng_below(&g->rng, 32 * MIB);

		slot_add(g, size_bytes + (other ? more : 0))->in = true;
	}
	world_say(g->world,
		  "level %u, %u members of %llu MiB, strip %llu, journal %llu MiB, slice %llu MiB",
		  g->level, g->member_count, (unsigned long long)(size_bytes / MIB),
		  (unsigned long long)g->format.strip_bytes,
		  (unsigned long long)(g->format.journal_bytes / MIB),
		  (unsigned long long)(g->format.slice_bytes / MIB));
}

void rig_exit(struct rig *g)
{
	rig_must(g, loop_co_count(g->loop) == 0, "%u coroutines left", loop_co_count(g->loop));
	for (unsigned i = 0; i < g->slot_count; i++) {
		g->stats.faults_hit += simdev_faults_hit(g->slots[i].dev);
		simdev_free(g->slots[i].dev);
		simdev_free(g->slots[i].old);
	}
	g->stats.hash = world_trace_hash(g->world);
	g->stats.simulated_ns = world_now_ns(g->world);
	rig_must(g, buf_pool_used_bytes() == 0, "%zu bytes of the pool never put",
		 buf_pool_used_bytes());
	log_set_hook(NULL, NULL);
	wall_set(NULL);
	loop_free(g->loop);
	world_free(g->world);
}

/* ---- workers ---- */

int rig_spawn(struct rig *g, void (*fn)(void *arg), void *arg)
{
	int err = co_spawn(g->loop, fn, arg);

	if (!err)
		g->workers++;
	return err;
}

void rig_worker_done(struct rig *g)
{
	assert(g->workers);
	if (!--g->workers)
		co_cond_wake_all(&g->workers_done);
}

void rig_join(struct rig *g)
{
	while (g->workers)
		co_cond_wait(&g->workers_done);
}

/* ---- crash ---- */

void rig_crash_soon(struct rig *g, uint64_t expected)
{
	static const unsigned kinds[] = {POINT_CHANGES,	    POINT_CHANGES,    POINT_SUBMIT_WRITE,
					 POINT_DONE_WRITE,  POINT_DONE_FLUSH, POINT_SUBMIT_FLUSH,
					 POINT_SUBMIT_READ, POINT_DONE_READ};
	unsigned kind = kinds[rng_below(&g->rng, ARRAY_SIZE(kinds))];
	uint64_t n = 1 + rng_below(&g->rng, MAX(expected, 1));

	/* Flushes are the rarest and the most telling. */
	if (!(kind & (POINT_SUBMIT_WRITE | POINT_DONE_WRITE | POINT_SUBMIT_READ | POINT_DONE_READ)))
		n = 1 + rng_below(&g->rng, MAX(expected / 8, 1));
	world_crash_at(g->world, kind, n);
	world_say(g->world, "will crash at point %#x number %llu", kind, (unsigned long long)n);
}

void rig_crash_off(struct rig *g)
{
	world_crash_at(g->world, 0, 0);
}

static void handles_none(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++)
		rig_must(g, simdev_handles(g->slots[i].dev) == 0, "%s is still open",
			 simdev_name(g->slots[i].dev));
}

void rig_bury(struct rig *g)
{
	rig_must(g, world_crashed(g->world), "buried alive");
	rig_say(g, "unwinding after the crash");
	g->stats.crashes++;
	rig_join(g);
	if (g->abandon)
		g->abandon(g->abandon_arg);
	if (g->raid)
		raid_abandon(g->raid);
	g->raid = NULL;
	/* What was about to end may need a round more. */
	for (unsigned i = 0; i < 4 && loop_co_count(g->loop) > 1; i++)
		co_sleep_ns(NS_PER_MS);
	rig_must(g, loop_co_count(g->loop) == 1, "%u coroutines survived the crash",
		 loop_co_count(g->loop) - 1);
	handles_none(g);
	rig_must(g, buf_pool_used_bytes() == 0, "%zu bytes of the pool never put",
		 buf_pool_used_bytes());
	world_restart(g->world);
}

/* ---- open, close ---- */

static struct simdev *closed_faults(struct rig *g);

bool rig_excused(const struct rig *g)
{
	return world_crashed(g->world) || g->beyond;
}

static void close_all(struct dev **devs, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		dev_close(devs[i]);
}

static struct dev *slot_open(struct rig *g, struct slot *s)
{
	struct dev *dev = simdev_open(s->dev);

	rig_must(g, dev, "no memory");
	return dev;
}

/* 0, or an error after a crash; everything is closed again. */
static int format_once(struct rig *g)
{
	struct dev *devs[RIG_MEMBERS_MAX];
	unsigned count = 0;
	int err;

	for (unsigned i = 0; i < g->slot_count; i++) {
		if (g->slots[i].in)
			devs[count++] = slot_open(g, &g->slots[i]);
	}
	err = raid_format(g->loop, devs, count, &g->format);
	close_all(devs, count);
	handles_none(g);
	if (err && !world_crashed(g->world))
		rig_fail(g, "raid_format: %s", strerror(-err));
	return err;
}

void rig_format(struct rig *g)
{
	rig_say(g, "formatting");
	if (rng_chance(&g->rng, 1, 4)) {
		rig_crash_soon(g, 40);
		(void)format_once(g); /* crashed or not: done again */
		rig_crash_off(g);
		if (world_crashed(g->world))
			rig_bury(g);
	}
	if (format_once(g))
		rig_fail(g, "crashed without being asked to");
}

/* What was acknowledged is kept; what was not, may be. */
static void priority_check(struct rig *g, enum raid_job job, unsigned value, bool lasts)
{
	rig_must(g, value == g->priority[job].acked || value == g->priority[job].tried,
		 "the priority of job %d is %u; it was set to %u, and %u was tried", (int)job, value,
		 g->priority[job].acked, g->priority[job].tried);
	/* Looking at it alone does not make it last. */
	if (lasts)
		g->priority[job].acked = g->priority[job].tried = value;
}

static void priorities_check(struct rig *g, bool lasts)
{
	struct raid_info info;

	raid_info(g->raid, &info);
	priority_check(g, RAID_JOB_REBUILD, info.rebuild_priority, lasts);
	priority_check(g, RAID_JOB_SCRUB, info.scrub_priority, lasts);
}

int rig_open(struct rig *g, unsigned flags)
{
	static const struct raid_options none;
	struct raid_options options = none;
	struct dev *devs[RIG_SPARES_MAX];
	struct simdev *clone;
	unsigned count = 0;
	int err;

	rig_say(g, flags & RAID_OPEN_CHECK ? "opening to check" : "opening");
	g->openings++;
	clone = closed_faults(g);
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (s->away || simdev_is_gone(s->dev) || (!s->in && rng_chance(&g->rng, 1, 2)))
			continue;
		devs[count++] = slot_open(g, s);
	}
	if (clone && count < RIG_SPARES_MAX) {
		devs[count] = simdev_open(clone);
		rig_must(g, devs[count++], "no memory");
	}
	/* Any order: members are known by their labels. */
	for (unsigned i = count; i > 1; i--) {
		unsigned j = (unsigned)rng_below(&g->rng, i);
		struct dev *dev = devs[i - 1];

		devs[i - 1] = devs[j];
		devs[j] = dev;
	}
	options.flags = flags;
	err = raid_open(g->loop, devs, count, rng_chance(&g->rng, 1, 2) ? &g->fs : NULL, &options,
			&g->raid);
	if (err) {
		g->raid = NULL;
		close_all(devs, count);
		if (!world_crashed(g->world))
			rig_fail(g, "raid_open: %s", strerror(-err));
	}
	if (clone) {
		rig_must(g, !simdev_handles(clone), "a copy is used as a member");
		simdev_free(clone);
	}
	if (!err)
		priorities_check(g, !flags);
	for (unsigned i = 0; i < g->slot_count && !err && !flags; i++)
		g->slots[i].renamed = false, g->slots[i].old_is_stale = true;
	return err;
}

int rig_close(struct rig *g)
{
	int err;

	rig_say(g, "closing");
	err = raid_close(g->raid);
	g->raid = NULL;
	if (err && !rig_excused(g))
		rig_fail(g, "raid_close: %s", strerror(-err));
	handles_none(g);
	return err;
}

/* ---- members ---- */

unsigned rig_budget(const struct rig *g)
{
	unsigned used = 0;

	for (unsigned i = 0; i < g->slot_count; i++) {
		const struct slot *s = &g->slots[i];

		if (!s->in || !s->suspect)
			continue;
		used += s->replaces < 0 || !g->slots[s->replaces].in;
	}
	return used < g->tolerance ? g->tolerance - used : 0;
}

/* A member that is sound, or NULL. */
static struct slot *sound_slot(struct rig *g)
{
	struct slot *sound[RIG_SPARES_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < g->slot_count; i++) {
		if (g->slots[i].in && !g->slots[i].suspect && !g->slots[i].renamed)
			sound[count++] = &g->slots[i];
	}
	return count ? sound[rng_below(&g->rng, count)] : NULL;
}

unsigned rig_lose(struct rig *g, unsigned max)
{
	unsigned n = (unsigned)rng_below(&g->rng, MIN(max, rig_budget(g)) + 1);

	for (unsigned i = 0; i < n; i++) {
		struct slot *s = sound_slot(g);

		if (!s)
			return i;
		s->suspect = s->away = true;
		g->stats.lost++;
		world_say(g->world, "%s is lost", simdev_name(s->dev));
	}
	return n;
}

bool rig_pull(struct rig *g)
{
	struct slot *s = rig_budget(g) ? sound_slot(g) : NULL;

	if (!s)
		return false;
	s->suspect = s->away = true;
	g->stats.lost++;
	simdev_vanish(s->dev, rng_chance(&g->rng, 1, 2));
	return true;
}

void rig_return(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (!s->in || !s->away || rng_chance(&g->rng, 1, 4))
			continue;
		s->away = false;
		if (simdev_is_gone(s->dev))
			simdev_return(s->dev);
		world_say(g->world, "%s is put back", simdev_name(s->dev));
	}
}

/*
 * A block that was ever written, by preference: damage to empty space is no damage. The labels at
 * the end are spared: without any a member is a stranger and not a damaged member.
 */
static uint64_t damage_place(struct rng *r, struct simdev *d)
{
	uint64_t size_bytes = simdev_size_bytes(d) - 2 * MIB, off_bytes = 0;

	for (unsigned i = 0; i < 64; i++) {
		off_bytes = rng_below(r, size_bytes / BLOCK_BYTES) * BLOCK_BYTES;
		if (rng_chance(r, 1, 16)) /* the front: one label area and the journal */
			off_bytes = rng_below(r, 6 * MIB / BLOCK_BYTES) * BLOCK_BYTES;
		if (simdev_written(d, off_bytes))
			break;
	}
	return off_bytes;
}

static void damage_slot(struct rig *g, struct rng *r, struct slot *s, unsigned blocks)
{
	s->suspect = s->damaged = true;
	world_say(g->world, "%s: %u blocks damaged", simdev_name(s->dev), blocks);
	while (blocks--) {
		uint64_t off_bytes = damage_place(r, s->dev);

		switch (rng_below(r, 3)) {
		case 0:
			simdev_garble(s->dev, off_bytes, BLOCK_BYTES);
			break;
		case 1:
			simdev_zero(s->dev, off_bytes, BLOCK_BYTES);
			break;
		case 2:
			simdev_rot(s->dev, off_bytes, BLOCK_BYTES, 1);
			break;
		}
	}
}

unsigned rig_damage(struct rig *g)
{
	unsigned n = rig_budget(g) ? (unsigned)rng_range(&g->rng, 1, rig_budget(g)) : 0;

	for (unsigned i = 0; i < n; i++) {
		struct slot *s = sound_slot(g);

		if (!s)
			return i;
		damage_slot(g, &g->rng, s, (unsigned)rng_range(&g->rng, 1, 200));
	}
	if (n)
		g->stats.damages++;
	return n;
}

/* ---- faults ---- */

const char *const rig_fault_names[FAULT_KINDS] = {
    "eio-read", "eio-write", "eio-flush", "lost",      "misdirected", "duplicate",
    "torn",	"lie",	     "rot-read",  "hang",      "delay",	      "read-only",
    "damage",	"clone",     "rename",	  "stale",     "freeze",      "beyond",
};

static uint32_t fault_bit(const char *name, size_t len)
{
	for (unsigned k = 0; k < FAULT_KINDS; k++) {
		if (strlen(rig_fault_names[k]) == len && !strncmp(name, rig_fault_names[k], len))
			return 1u << k;
	}
	return 0;
}

bool rig_faults_parse(const char *list, uint32_t *ret)
{
	/* A list that begins by taking away takes away from all. */
	uint32_t faults = *list == '-' ? RIG_FAULTS_DEFAULT : 0;

	while (*list) {
		bool less = *list == '-';
		size_t len = strcspn(list += less, ",");
		uint32_t bit = len == 3 && !strncmp(list, "all", 3) ? RIG_FAULTS_DEFAULT
								    : fault_bit(list, len);

		if (!bit && !(len == 4 && !strncmp(list, "none", 4)))
			return false;
		faults = less ? faults & ~bit : faults | bit;
		list += len + (list[len] == ',');
	}
	*ret = faults;
	return true;
}

bool rig_fault_chance(struct rig *g, enum rig_fault kind, uint64_t part, uint64_t whole)
{
	/*
	 * Where the tolerance is one for each group, members of several groups may go at once and be taken out of
	 * service, though the journal's records had only so many copies: not by default yet.
	 */
	if (kind == FAULT_FREEZE && !g->o->faults_text[0] && g->level != 1 && g->level != 5 && g->level != 6)
		return false;
	return g->o->faults >> kind & 1 && !g->faults_off && rng_chance(&g->fault_rng, part, whole);
}

static const struct slot *chain_root(const struct rig *g, const struct slot *s)
{
	while (s->replaces >= 0 && g->slots[s->replaces].in)
		s = &g->slots[s->replaces];
	return s;
}

/*
 * Whether a fault on it is within the budget: a sound member while there is room, or one that is suspect already. Of
 * those that take over from each other one alone: they count once, but either may hold a record of the journal.
 */
static bool may_be_faulty(struct rig *g, const struct slot *s)
{
	if (!s->in || s->away || s->renamed || simdev_is_gone(s->dev))
		return false;
	if (!s->suspect)
		return rig_budget(g) > 0;
	for (unsigned i = 0; i < g->slot_count; i++) {
		const struct slot *o = &g->slots[i];

		if (o != s && o->in && (o->faulty || o->damaged) &&
		    chain_root(g, o) == chain_root(g, s))
			return false;
	}
	return true;
}

static struct slot *fault_slot(struct rig *g)
{
	struct slot *list[RIG_SPARES_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < g->slot_count; i++) {
		if (may_be_faulty(g, &g->slots[i]))
			list[count++] = &g->slots[i];
	}
	return count ? list[rng_below(&g->fault_rng, count)] : NULL;
}

/* Which I/O: of all of the member or of a piece of it, once, some times or for good. */
static void fault_scope(struct rig *g, struct slot *s, struct simfault *f)
{
	struct rng *r = &g->fault_rng;

	if (rng_chance(r, 1, 2)) {
		f->off_bytes = damage_place(r, s->dev);
		f->len_bytes = rng_range(r, 1, FAULT_BLOCKS_MAX) * BLOCK_BYTES;
	}
	if (rng_chance(r, 1, 2))
		f->skip = rng_below(r, 200);
	switch (rng_below(r, 4)) {
	case 0:
		f->count = 1;
		break;
	case 1:
		f->count = rng_range(r, 2, 40);
		break;
	case 2: /* now and then, for good */
		f->part = 1;
		f->whole = (unsigned)rng_range(r, 2, 30);
		break;
	}
}

/* Which of them is always noticed by whoever submitted the I/O. What hangs may be let go in time. */
static bool fault_is_noticed(enum rig_fault kind)
{
	return kind == FAULT_EIO_READ || kind == FAULT_EIO_WRITE || kind == FAULT_EIO_FLUSH;
}

static void fault_arm(struct rig *g, struct slot *s, enum rig_fault kind)
{
	static const enum simfault_kind kinds[] = {
	    [FAULT_EIO_READ] = SIMFAULT_EIO_READ,   [FAULT_EIO_WRITE] = SIMFAULT_EIO_WRITE,
	    [FAULT_EIO_FLUSH] = SIMFAULT_EIO_FLUSH, [FAULT_LOST] = SIMFAULT_LOST,
	    [FAULT_MISDIRECTED] = SIMFAULT_MISDIRECTED,
	    [FAULT_DUPLICATE] = SIMFAULT_DUPLICATE, [FAULT_TORN] = SIMFAULT_TORN,
	    [FAULT_LIE] = SIMFAULT_LYING_FLUSH,	    [FAULT_ROT_READ] = SIMFAULT_ROT_READ,
	    [FAULT_HANG] = SIMFAULT_HANG,	    [FAULT_DELAY] = SIMFAULT_DELAY,
	};
	struct simfault f = {.kind = kinds[kind]};
	struct rng *r = &g->fault_rng;

	fault_scope(g, s, &f);
	if (kind == FAULT_MISDIRECTED || kind == FAULT_DUPLICATE)
		f.param = rng_chance(r, 1, 2)
			      ? rng_range(r, 1, 64) * BLOCK_BYTES
			      : rng_below(r, simdev_size_bytes(s->dev) / BLOCK_BYTES) * BLOCK_BYTES;
	if (kind == FAULT_DELAY) {
		f.param = rng_range(r, 1, 4000) * NS_PER_MS;
		f.count = rng_range(r, 1, 5);
	}
	if (kind == FAULT_DELAY || kind == FAULT_HANG)
		g->slow = true;
	world_say(g->world, "%s fault %s: %llu+%llu skip %llu count %llu part 1/%u param %llu",
		  simdev_name(s->dev), rig_fault_names[kind], (unsigned long long)f.off_bytes,
		  (unsigned long long)f.len_bytes, (unsigned long long)f.skip,
		  (unsigned long long)f.count, f.whole, (unsigned long long)f.param);
	if (simdev_fault(s->dev, &f))
		return;
	g->stats.faults++;
	s->faulty = true;
	if (kind == FAULT_DELAY)
		return;
	/* With the volume closed the next to meet it is who reads the labels, and there it only costs a vote. */
	if (g->raid && fault_is_noticed(kind) && !s->suspect) {
		s->must_count = true;
		s->hits = simdev_faults_hit(s->dev);
		s->opening = g->openings;
	} else {
		s->must_count = false; /* hits are no longer told apart */
	}
	s->suspect = s->damaged = true;
}

static void fault_one(struct rig *g)
{
	struct rng *r = &g->fault_rng;
	enum rig_fault kind = (enum rig_fault)rng_below(r, FAULT_CLONE);
	struct slot *s;

	if (!(g->o->faults >> kind & 1))
		return;
	s = kind == FAULT_DELAY ? &g->slots[rng_below(r, g->slot_count)] : fault_slot(g);
	if (!s)
		return;
	switch (kind) {
	case FAULT_READ_ONLY:
		if (!g->raid)
			return; /* opening it for writing would fail: it would not be offered */
		world_say(g->world, "%s fault read-only", simdev_name(s->dev));
		simdev_set_read_only(s->dev, true);
		s->suspect = s->damaged = s->faulty = true;
		g->stats.faults++;
		break;
	case FAULT_DAMAGE:
		damage_slot(g, r, s, (unsigned)rng_range(r, 1, 60));
		g->stats.faults++;
		break;
	default:
		fault_arm(g, s, kind);
		break;
	}
}

void rig_faults(struct rig *g)
{
	unsigned n;

	if (g->faults_off || !g->o->faults || world_crashed(g->world))
		return;
	n = rng_chance(&g->fault_rng, 1, 2) ? 0 : (unsigned)rng_range(&g->fault_rng, 1, 3);
	while (n--)
		fault_one(g);
}

void rig_faults_end(struct rig *g)
{
	bool any = false;

	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (!s->faulty)
			continue;
		any = true;
		s->faulty = false;
		simdev_faults_clear(s->dev);
		simdev_set_read_only(s->dev, false);
		simdev_unhang(s->dev);
	}
	if (any) {
		world_say(g->world, "faults end");
		co_sleep_ns(10 * NS_PER_MS);
	}
}

/* The volume is closed: what comes back otherwise than it went. Returns a copy to be offered as well, or NULL. */
static struct simdev *closed_faults(struct rig *g)
{
	struct rng *r = &g->fault_rng;
	struct slot *s = &g->slots[rng_below(r, g->slot_count)];
	struct simdev *clone = NULL;
	char name[16];

	/* Whoever hung has been reset. A drive that fails goes on failing, perhaps. */
	for (unsigned i = 0; i < g->slot_count; i++) {
		simdev_set_read_only(g->slots[i].dev, false);
		simdev_unhang(g->slots[i].dev);
	}
	if (rng_chance(r, 1, 2))
		rig_faults_end(g);
	co_sleep_ns(NS_PER_MS);
	if (world_crashed(g->world) || s->away || simdev_is_gone(s->dev))
		return NULL;
	if (rig_fault_chance(g, FAULT_STALE, 1, 4)) {
		if (!s->old && s->in) {
			world_say(g->world, "%s is copied", simdev_name(s->dev));
			snprintf(name, sizeof(name), "o%u", g->spare_number++);
			s->old = simdev_clone(s->dev, name);
			s->old_is_stale = false;
		} else if (s->old && s->old_is_stale && may_be_faulty(g, s)) {
			world_say(g->world, "%s is put back as it was", simdev_name(s->dev));
			simdev_revert(s->dev, s->old);
			simdev_free(s->old);
			s->old = NULL;
			s->old_is_stale = false;
			s->suspect = s->damaged = true;
			g->stats.faults++;
		}
	}
	if (s->faulty || s->suspect || s->renamed)
		return NULL;
	snprintf(name, sizeof(name), "c%u", g->spare_number);
	if (s->in && rig_fault_chance(g, FAULT_RENAME, 1, 12)) {
		clone = simdev_clone(s->dev, name);
		world_say(g->world, "%s is %s from now on", simdev_name(s->dev), name);
		simdev_free(s->dev);
		s->dev = clone;
		s->renamed = true;
		g->spare_number++;
		g->stats.faults++;
		return NULL;
	}
	if (!rig_fault_chance(g, FAULT_CLONE, 1, 8))
		return NULL;
	g->spare_number++;
	g->stats.faults++;
	world_say(g->world, "%s is a copy of %s", name, simdev_name(s->dev));
	return simdev_clone(s->dev, name);
}

void rig_faults_beyond(struct rig *g)
{
	struct rng *r = &g->fault_rng;

	rig_say(g, "beyond what is tolerated");
	g->beyond = g->slow = true;
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];
		unsigned n = (unsigned)rng_range(r, 1, 3);

		if (!s->in || s->away || simdev_is_gone(s->dev) || rng_chance(r, 1, 4))
			continue;
		if (rng_chance(r, 1, 6)) {
			simdev_vanish(s->dev, rng_chance(r, 1, 2));
			continue;
		}
		while (n--) {
			enum rig_fault kind = (enum rig_fault)rng_below(r, FAULT_CLONE);

			if (!(g->o->faults >> kind & 1))
				continue;
			if (kind == FAULT_READ_ONLY)
				simdev_set_read_only(s->dev, true);
			else if (kind == FAULT_DAMAGE)
				damage_slot(g, r, s, (unsigned)rng_range(r, 1, 2000));
			else
				fault_arm(g, s, kind);
			s->faulty = true;
		}
	}
}

void rig_freeze(struct rig *g)
{
	struct rng *r = &g->fault_rng;

	rig_say(g, "freezing");
	rig_faults_end(g);
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (!s->in || s->away || simdev_is_gone(s->dev) || rng_chance(r, 1, 3))
			continue;
		s->frozen = s->suspect = true;
		simdev_vanish(s->dev, rng_chance(r, 1, 2));
	}
}

void rig_thaw(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (!g->slots[i].frozen)
			continue;
		g->slots[i].frozen = false;
		simdev_return(g->slots[i].dev);
	}
	g->beyond = false;
}

/* ---- mending ---- */

static struct slot *slot_by_name(struct rig *g, const char *name)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (!strcmp(simdev_name(g->slots[i].dev), name))
			return &g->slots[i];
	}
	return NULL;
}

/* Index in the volume of the member on this drive; -1: none. */
static int member_index(struct rig *g, const struct slot *s)
{
	struct raid_info info;

	raid_info(g->raid, &info);
	for (unsigned i = 0; i < info.member_count; i++) {
		struct raid_member_info m;

		if (raid_member_info(g->raid, i, &m) || m.state == MEMBER_REMOVED)
			continue;
		if (slot_by_name(g, m.path) == s)
			return (int)i;
	}
	return -1;
}

/* Out of service: for good, or because it did not do what it was asked. */
static bool slot_out(struct rig *g, const struct slot *s)
{
	int index = member_index(g, s);
	struct raid_member_info m;

	return index >= 0 && !raid_member_info(g->raid, (unsigned)index, &m) &&
	       (m.state == MEMBER_FAILED || m.state == MEMBER_MISSING);
}

/* Whether somebody is taking over from it, since before a crash perhaps. */
static bool slot_being_replaced(struct rig *g, const struct slot *s)
{
	int index = member_index(g, s);
	struct raid_member_info m;
	struct raid_info info;

	raid_info(g->raid, &info);
	for (unsigned i = 0; i < info.member_count; i++) {
		if (!raid_member_info(g->raid, i, &m) && m.state == MEMBER_ACTIVE && m.present &&
		    m.replaces == index)
			return true;
	}
	return false;
}

/* A blank drive takes the place of s, which is no member from now on. */
static int replace_slot(struct rig *g, struct slot *s)
{
	int index = member_index(g, s);
	struct slot *blank;
	struct dev *dev;
	int err;

	rig_must(g, index >= 0, "%s is no member", simdev_name(s->dev));
	blank = slot_add(g, simdev_size_bytes(s->dev));
	dev = slot_open(g, blank);
	err = raid_replace(g->raid, (unsigned)index, dev);
	world_say(g->world, "replace %s by %s: %d", simdev_name(s->dev), simdev_name(blank->dev),
		  err);
	if (err) {
		dev_close(dev);
		/* After a crash the volume may or may not know it. */
		if (!world_crashed(g->world))
			rig_fail(g, "raid_replace of %s: %s", simdev_name(s->dev), strerror(-err));
	}
	blank->in = true;
	blank->suspect = true;
	blank->replaces = (int)(s - g->slots);
	g->stats.rebuilds++;
	return err;
}

/* All that the volume has counted against the member on this drive. */
static uint64_t slot_errors(struct rig *g, const struct slot *s)
{
	int index = member_index(g, s);
	struct raid_member_info m;

	if (index < 0 || raid_member_info(g->raid, (unsigned)index, &m))
		return 0;
	return m.errors_read + m.errors_write + m.errors_sum + m.errors_lost + m.errors_hung;
}

/*
 * Who is a member now, as the volume says. Drives that were replaced are strangers from here on.
 */
static void slots_update(struct rig *g, bool whole)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];
		int index = member_index(g, s);

		if (index < 0) {
			s->in = s->suspect = s->damaged = s->must_count = false;
			continue;
		}
		s->in = true;
		if (whole && !s->away) {
			s->suspect = s->damaged = false;
			s->replaces = -1;
		}
	}
}

void rig_members_update(struct rig *g)
{
	slots_update(g, false);
	/* What was counted and not yet in the table is forgotten in a crash. */
	for (unsigned i = 0; i < g->slot_count; i++)
		g->slots[i].errors = MIN(g->slots[i].errors, slot_errors(g, &g->slots[i]));
}

static bool any_damaged(const struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (g->slots[i].damaged)
			return true;
	}
	return false;
}

static int mend_error(struct rig *g, int err, const char *what)
{
	if (err && !rig_excused(g))
		rig_fail(g, "%s: %s", what, strerror(-err));
	return err;
}

static bool slot_wants_replacing(struct rig *g, const struct slot *s)
{
	return s->in && member_index(g, s) >= 0 && (s->away || slot_out(g, s)) &&
	       !slot_being_replaced(g, s);
}

static bool any_out(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (slot_wants_replacing(g, &g->slots[i]))
			return true;
	}
	return false;
}

static int replace_all(struct rig *g)
{
	int err = 0;

	for (unsigned i = 0, n = g->slot_count; i < n && !err; i++) {
		if (slot_wants_replacing(g, &g->slots[i]))
			err = replace_slot(g, &g->slots[i]);
	}
	return err;
}

static const char *errors_text(struct rig *g, const struct slot *s)
{
	static char text[160];
	struct raid_member_info m;

	if (raid_member_info(g->raid, (unsigned)member_index(g, s), &m))
		return "?";
	snprintf(text, sizeof(text), "read %llu, write %llu, sum %llu, lost %llu, hung %llu",
		 (unsigned long long)m.errors_read, (unsigned long long)m.errors_write,
		 (unsigned long long)m.errors_sum, (unsigned long long)m.errors_lost,
		 (unsigned long long)m.errors_hung);
	return text;
}

/* The guilty were counted, and nobody else. */
static void check_counts(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];
		uint64_t errors = MAX(slot_errors(g, s), s->errors_seen);

		if (!s->in)
			continue;
		rig_must(g, s->suspect || errors <= s->errors,
			 "%s is sound, and %llu errors were counted against it: %s", simdev_name(s->dev),
			 (unsigned long long)(errors - s->errors), errors_text(g, s));
		rig_must(g,
			 !s->must_count || s->opening != g->openings ||
			     simdev_faults_hit(s->dev) == s->hits || errors > s->errors,
			 "%s failed %llu times, and nothing was counted against it",
			 simdev_name(s->dev),
			 (unsigned long long)(simdev_faults_hit(s->dev) - s->hits));
		s->must_count = false;
		s->errors = errors;
	}
}

int rig_mend(struct rig *g)
{
	struct raid_job_info job;
	struct raid_info info;
	int err = 0;

	rig_say(g, "mending");
	rig_faults_end(g);
	for (unsigned i = 0; i < g->slot_count; i++)
		g->slots[i].errors_seen = slot_errors(g, &g->slots[i]);
	/* What was under way when the faults ended may still take a member out. */
	for (unsigned tries = 0; !err && tries < MEND_TRIES_MAX; tries++) {
		if (tries && !any_out(g))
			break;
		err = replace_all(g);
		if (!err)
			err = mend_error(g, raid_rebuild_wait(g->raid), "raid_rebuild_wait");
	}
	if (err)
		return err;
	raid_info(g->raid, &info);
	rig_must(g, info.chunks_below_target == 0, "%llu chunks below target after the rebuild",
		 (unsigned long long)info.chunks_below_target);
	/*
	 * Damage is not mended by a rebuild. All else is, and must be: a scrub that went over it
	 * each time would hide a member that nobody knew to be stale (W5).
	 */
	if (any_damaged(g) || rng_chance(&g->rng, 1, 4)) {
		bool damaged = any_damaged(g);

		err = rig_scrub(g, &job);
		if (err)
			return err;
		rig_must(g, job.lost == 0, "scrub lost %llu blocks", (unsigned long long)job.lost);
		rig_must(g, damaged || !job.found, "scrub found %llu though nothing was damaged",
			 (unsigned long long)job.found);
	}
	raid_info(g->raid, &info);
	rig_must(g, info.state == RAID_OPTIMAL,
		 "not optimal after mending: state %d, redundancy %u", info.state, info.redundancy);
	check_counts(g);
	slots_update(g, true);
	g->slow = false;
	for (unsigned i = 0; i < g->slot_count; i++)
		rig_must(g, !g->slots[i].in || !g->slots[i].suspect, "%s was not mended",
			 simdev_name(g->slots[i].dev));
	return 0;
}

int rig_replace_any(struct rig *g, bool fail_first)
{
	struct slot *s = rig_budget(g) ? sound_slot(g) : NULL;
	int err;

	if (!s)
		return 0;
	s->suspect = true;
	if (fail_first) {
		err = mend_error(g, raid_fail(g->raid, (unsigned)member_index(g, s)), "raid_fail");
		if (err)
			return err;
	}
	return replace_slot(g, s);
}

static int scrub_once(struct rig *g, struct raid_job_info *ret)
{
	struct raid_info info;
	int err = raid_scrub_start(g->raid);

	if (err != -EALREADY && mend_error(g, err, "raid_scrub_start"))
		return err;
	err = mend_error(g, raid_scrub_wait(g->raid), "raid_scrub_wait");
	if (err)
		return err;
	raid_info(g->raid, &info);
	*ret = info.scrub;
	g->stats.scrubs++;
	world_say(g->world, "scrub: %llu found, %llu repaired, %llu lost",
		  (unsigned long long)ret->found, (unsigned long long)ret->repaired,
		  (unsigned long long)ret->lost);
	return 0;
}

int rig_set_priority(struct rig *g)
{
	static const unsigned named[] = {0, 50, RAID_PRIORITY_MAX};
	struct rng *r = &g->priority_rng;
	enum raid_job job = rng_chance(r, 1, 4) ? RAID_JOB_SCRUB : RAID_JOB_REBUILD;
	unsigned value = rng_chance(r, 1, 2) ? named[rng_below(r, ARRAY_SIZE(named))]
					     : (unsigned)rng_range(r, 0, RAID_PRIORITY_MAX);
	int err;

	if (!rng_chance(r, 1, 2))
		return 0;
	g->priority[job].tried = value;
	err = mend_error(g, raid_set_priority(g->raid, job, value), "raid_set_priority");
	world_say(g->world, "priority of %s %u: %d", job == RAID_JOB_SCRUB ? "scrub" : "rebuild",
		  value, err);
	if (!err)
		g->priority[job].acked = value;
	return err;
}

int rig_scrub_begin(struct rig *g)
{
	int err = raid_scrub_start(g->raid);

	g->scrub_partial = true;
	if (err == -EALREADY || err == -EBUSY)
		return 0;
	return mend_error(g, err, "raid_scrub_start");
}

int rig_scrub(struct rig *g, struct raid_job_info *ret)
{
	struct raid_job_info first = {0};

	if (g->scrub_partial) {
		int err = scrub_once(g, &first);

		if (err)
			return err;
		g->scrub_partial = false;
	}
	return scrub_once(g, ret);
}

static void check_line(void *arg, const char *text)
{
	struct rig *g = arg;

	log_error("check: %s", text);
	(void)g;
}

int rig_check(struct rig *g)
{
	int64_t problems = raid_check(g->raid, check_line, g);

	if (problems > 0 && any_damaged(g))
		problems = 0; /* it is right: there are */
	if (world_crashed(g->world))
		return -ENODEV;
	if (problems < 0 && rig_excused(g))
		return (int)problems;
	rig_must(g, problems >= 0, "raid_check: %s", strerror((int)-problems));
	rig_must(g, problems == 0, "raid_check: %lld problems", (long long)problems);
	return 0;
}
