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
#include "rig_private.h"
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

/* The last messages of the libraries, for a failure. */
static struct {
	char line[LOG_LINES][LOG_LINE_BYTES];
	unsigned next;
	unsigned complaints;
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
	log_ring.complaints += level <= LOG_LEVEL_WARNING;
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
	if (g->o->trail) {
		snprintf(g->o->trail->failure, sizeof(g->o->trail->failure), "%s", format);
		g->o->trail->round = g->round;
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

void rig_alive(struct rig *g)
{
	world_watch(g->world, world_now_ns(g->world) + UNWIND_NS_MAX, rig_stuck, g);
}

void rig_say(struct rig *g, const char *doing)
{
	g->doing = doing;
	rig_alive(g);
	world_tell(g->world, "-- round %u: %s", g->round, doing);
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
	to->cleaned += s->cleaned;
	to->simulated_ns += s->simulated_ns;
	for (unsigned k = 0; k < FAULT_KINDS; k++) {
		for (unsigned i = 0; i < RIG_STATES; i++)
			to->hit[k][i] += s->hit[k][i];
	}
}

bool rig_turn(struct rig *g, unsigned class, struct rng *ret)
{
	char name[] = {'t', (char)('a' + class), 0};
	unsigned n = g->turns[class]++;

	rng_fork(ret, name, g->o->seed * 0x9e3779b97f4a7c15ull + n);
	if (class == SKIP_CRASH && g->o->salt)
		rng_fork(ret, name, rng_next(ret) + g->o->salt);
	if (g->o->trail)
		g->o->trail->count[class] = n + 1;
	return !g->o->skip || !skip_has(g->o->skip, class, n);
}

static void slot_hit(void *arg, struct simdev *d, uint8_t tag)
{
	struct rig *g = arg;
	enum rig_fault kind = (enum rig_fault)(tag - 1);

	rig_hit(g, kind);
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (s->dev != d)
			continue;
		if (kind == FAULT_VANISH)
			s->away = s->suspect = true;
		if (kind == FAULT_SHRINK)
			s->shrunk = s->suspect = true;
	}
}

void rig_watch(struct rig *g, struct simdev *d)
{
	simdev_on_hit(d, slot_hit, g);
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

struct slot *rig_slot_add(struct rig *g, uint64_t size_bytes)
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
	s->size_bytes = simdev_size_bytes(s->dev);
	rig_watch(g, s->dev);
	return s;
}

void rig_init(struct rig *g, const struct sim_options *o)
{
	static const unsigned levels[] = {1, 5, 5, 5, 6, 6, 6, 10, 10, 0, 50, 60};
	static const uint64_t strips[] = {4096, 16384, 65536, 65536, 131072, 262144};
	uint64_t size_bytes;
	struct rng caches;
	unsigned min;

	*g = (struct rig){.o = o, .doing = "starting"};
	g->world = world_new(o->seed + o->salt * 1000003ull);
	if (o->verbose || o->script)
		world_verbose(g->world, stdout);
	world_script(g->world, o->script);
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

	rig_aim_draw(g);
	rng_fork(&caches, "caches", o->seed);
	g->page_cache_bytes = rng_chance(&caches, 1, 2) ? 0 : (uint64_t)BLOCK_BYTES << rng_range(&caches, 4, 7);
	g->node_cache_bytes = rng_chance(&caches, 1, 2) ? 0 : (uint64_t)BLOCK_BYTES << rng_below(&caches, 9);
	g->level =
	    o->level >= 0 ? (unsigned)o->level : levels[rng_below(&g->rng, ARRAY_SIZE(levels))];
	if (o->level < 0 && rig_aims_at(g, STATE_DEGRADED_2))
		g->level = 1; /* where a third may fail */
	min = members_min(g->level);
	g->member_count = min + (unsigned)rng_below(&g->rng, 4);
	if (rng_chance(&g->rng, 1, 6))
		g->member_count += 2;
	if (g->level == 1)
		g->member_count = rig_aims_at(g, STATE_DEGRADED_2) ? 4 : MIN(g->member_count, 4);
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
	g->small = rng_chance(&g->rng, 1, 3) || rig_aims_full(g);
	if (g->small)
		size_bytes = rng_range(&g->rng, 48, 52) * MIB;
	for (unsigned i = 0; i < g->member_count; i++) {
		bool other = rng_chance(&g->rng, 1, 6);
		uint64_t more = rng_below(&g->rng, 32 * MIB);

		rig_slot_add(g, size_bytes + (other ? more : 0))->in = true;
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
	struct rng r;
	bool arm = rig_turn(g, SKIP_CRASH, &r);
	unsigned kind = kinds[rng_below(&r, ARRAY_SIZE(kinds))];
	uint64_t n = 1 + rng_below(&r, MAX(expected, 1));

	/* Flushes are the rarest and the most telling. */
	if (!(kind & (POINT_SUBMIT_WRITE | POINT_DONE_WRITE | POINT_SUBMIT_READ | POINT_DONE_READ)))
		n = 1 + rng_below(&r, MAX(expected / 8, 1));
	if (!arm)
		return;
	world_crash_at(g->world, kind, n);
	world_tell(g->world, "will crash at point %#x number %llu (c%u)", kind, (unsigned long long)n,
		   g->turns[SKIP_CRASH] - 1);
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
	g->after_crash = true;
}

/* ---- open, close ---- */

bool rig_excused(const struct rig *g)
{
	return world_crashed(g->world) || g->beyond;
}

static void close_all(struct dev **devs, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		dev_close(devs[i]);
}

struct dev *rig_slot_open(struct rig *g, struct slot *s)
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
			devs[count++] = rig_slot_open(g, &g->slots[i]);
	}
	g->phase = PHASE_FORMAT;
	err = raid_format(g->loop, devs, count, &g->format);
	close_all(devs, count);
	handles_none(g);
	if (err && !rig_excused(g))
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
	if (rng_chance(&g->fault_rng, 1, 3) || rig_aims_at(g, STATE_FORMATTING)) {
		/* No redundancy stands behind it yet: it may fail, and then must have said so. */
		g->beyond = true;
		rig_faults_format(g);
		(void)format_once(g);
		rig_faults_format_end(g);
	}
	if (format_once(g))
		rig_fail(g, "crashed without being asked to");
	g->after_crash = false;
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
	unsigned count = 0, complaints = log_ring.complaints;
	int err;

	rig_say(g, flags & RAID_OPEN_CHECK ? "opening to check" : "opening");
	g->openings++;
	g->phase = PHASE_OPEN;
	clone = rig_faults_closed(g);
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (s->in && s->away)
			rig_hit(g, FAULT_VANISH);
		if (s->in && s->shrunk)
			rig_hit(g, FAULT_SHRINK);
		if (s->away || simdev_is_gone(s->dev) || (!s->in && rng_chance(&g->rng, 1, 2)))
			continue;
		devs[count++] = rig_slot_open(g, s);
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
	options.page_cache_bytes = g->page_cache_bytes;
	g->checking = flags & RAID_OPEN_CHECK;
	err = raid_open(g->loop, devs, count, rng_chance(&g->rng, 1, 2) ? &g->fs : NULL, &options,
			&g->raid);
	if (err) {
		g->raid = NULL;
		close_all(devs, count);
		if (!world_crashed(g->world) &&
		    !(rig_beyond_error(g, err) || (g->beyond &&
		       (err == -ENODEV || err == -ENODATA || err == -EUCLEAN || err == -ENOSPC)))) /* the last: has shrunk */
			rig_fail(g, "raid_open: %s", strerror(-err));
		rig_must(g, world_crashed(g->world) || log_ring.complaints != complaints, "raid_open: %s, and not a word why",
			 strerror(-err));
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
	g->phase = PHASE_CLOSE;
	err = raid_close(g->raid);
	g->raid = NULL;
	if (!err && !g->checking)
		g->after_crash = false;
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
struct slot *rig_sound_slot(struct rig *g, struct rng *r)
{
	struct slot *sound[RIG_SPARES_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < g->slot_count; i++) {
		if (g->slots[i].in && !g->slots[i].suspect && !g->slots[i].renamed)
			sound[count++] = &g->slots[i];
	}
	return count ? sound[rng_below(r, count)] : NULL;
}

unsigned rig_lose(struct rig *g, unsigned max)
{
	struct rng r;
	bool skip = !rig_turn(g, SKIP_MEDDLE, &r);
	unsigned n = (unsigned)rng_below(&r, MIN(max, rig_budget(g)) + 1);

	for (unsigned i = 0; i < n && !skip; i++) {
		struct slot *s = rig_sound_slot(g, &r);

		if (!s)
			return i;
		s->suspect = s->away = true;
		g->stats.lost++;
		world_tell(g->world, "%s is lost (m%u)", simdev_name(s->dev), g->turns[SKIP_MEDDLE] - 1);
	}
	return n;
}

bool rig_pull(struct rig *g, struct rng *r)
{
	struct slot *s = rig_budget(g) ? rig_sound_slot(g, r) : NULL;

	if (!s)
		return false;
	rig_hit(g, FAULT_VANISH);
	s->suspect = s->away = true;
	g->stats.lost++;
	simdev_vanish(s->dev, rng_chance(r, 1, 2));
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
		world_tell(g->world, "%s is put back", simdev_name(s->dev));
	}
}
