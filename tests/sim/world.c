/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The simulated world.
 *
 * Owns the clock, the events and the order in which they come true. Events stand in a heap by (due
 * time, tie, order of arming); the tie is drawn from the seed, so that completions of the same
 * instant come in any order, but always the same one for one seed. The clock moves in poll only: to
 * the next event when something is due before the time the loop wants to be woken, else to that
 * time. A poll that finds nothing still costs POLL_COST_NS, so that code that waits by yielding
 * sees time pass.
 *
 * Random streams are forked by name. A single stream would do for replay, but then one more
 * draw in the harness would reshuffle everything, and a shrunk workload would lose its crash.
 */
#include "world.h"
#include <stdlib.h>

#define POLL_COST_NS 100

struct world {
	uint64_t seed, now_ns;
	struct rng rng, loop_rng;
	struct world_event **heap;
	size_t heap_count, heap_cap;
	uint64_t order;
	uint64_t hash;
	FILE *say;
	bool script;
	struct list things;
	uint64_t points[6];
	unsigned crash_points;
	uint64_t crash_left;
	bool crashed;
	uint64_t crash_ns;
	uint64_t watch_until_ns;
	void (*stuck)(void *arg, const char *why);
	void *stuck_arg;
	uint64_t polls, polls_since_ns;
};

/* ---- randomness ---- */

static uint64_t splitmix(uint64_t *x)
{
	uint64_t z = (*x += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint64_t mix(uint64_t h, uint64_t v)
{
	uint64_t x = h ^ v;

	return splitmix(&x);
}

void rng_seed(struct rng *r, uint64_t seed)
{
	for (unsigned i = 0; i < 4; i++)
		r->s[i] = splitmix(&seed);
}

void rng_fork(struct rng *r, const char *name, uint64_t seed)
{
	uint64_t h = seed;

	for (; *name; name++)
		h = mix(h, (uint8_t)*name);
	rng_seed(r, h);
}

static uint64_t rotl(uint64_t x, int k)
{
	return x << k | x >> (64 - k);
}

uint64_t rng_next(struct rng *r)
{
	uint64_t *s = r->s, ret = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotl(s[3], 45);
	return ret;
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
	assert(n > 0);
	return (uint64_t)((unsigned __int128)rng_next(r) * n >> 64);
}

uint64_t rng_range(struct rng *r, uint64_t lo, uint64_t hi)
{
	return lo + rng_below(r, hi - lo + 1);
}

bool rng_chance(struct rng *r, uint64_t part, uint64_t whole)
{
	return rng_below(r, whole) < part;
}

void rng_fill(struct rng *r, void *out, size_t len)
{
	uint8_t *p = out;

	while (len) {
		uint64_t x = rng_next(r);
		size_t n = MIN(len, sizeof(x));

		memcpy(p, &x, n);
		p += n;
		len -= n;
	}
}

/* ---- events ---- */

static bool event_before(const struct world_event *a, const struct world_event *b)
{
	if (a->due_ns != b->due_ns)
		return a->due_ns < b->due_ns;
	if (a->tie != b->tie)
		return a->tie < b->tie;
	return a->order < b->order;
}

static void heap_set(struct world *w, size_t i, struct world_event *ev)
{
	w->heap[i] = ev;
	ev->heap_index = i;
}

static void heap_up(struct world *w, size_t i)
{
	struct world_event *ev = w->heap[i];

	while (i && event_before(ev, w->heap[(i - 1) / 2])) {
		heap_set(w, i, w->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_set(w, i, ev);
}

static void heap_down(struct world *w, size_t i)
{
	struct world_event *ev = w->heap[i];

	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= w->heap_count)
			break;
		if (child + 1 < w->heap_count && event_before(w->heap[child + 1], w->heap[child]))
			child++;
		if (!event_before(w->heap[child], ev))
			break;
		heap_set(w, i, w->heap[child]);
		i = child;
	}
	heap_set(w, i, ev);
}

void world_event_init(struct world_event *ev, void (*fire)(struct world_event *ev))
{
	*ev = (struct world_event){.fire = fire};
}

void world_event_arm(struct world *w, struct world_event *ev, uint64_t due_ns)
{
	world_event_cancel(w, ev);
	if (w->heap_count == w->heap_cap) {
		w->heap_cap = MAX(64, 2 * w->heap_cap);
		w->heap = realloc(w->heap, w->heap_cap * sizeof(*w->heap));
		if (!w->heap)
			abort();
	}
	ev->due_ns = MAX(due_ns, w->now_ns);
	ev->tie = rng_next(&w->rng);
	ev->order = w->order++;
	ev->armed = true;
	w->heap[w->heap_count] = ev;
	ev->heap_index = w->heap_count++;
	heap_up(w, ev->heap_index);
}

void world_event_cancel(struct world *w, struct world_event *ev)
{
	struct world_event *last;

	if (!ev->armed)
		return;
	ev->armed = false;
	last = w->heap[--w->heap_count];
	if (last == ev)
		return;
	heap_set(w, ev->heap_index, last);
	heap_up(w, last->heap_index);
	heap_down(w, last->heap_index);
}

/* ---- backend ---- */

static void default_stuck(void *arg, const char *why)
{
	(void)arg;
	fprintf(stderr, "world: %s\n", why);
	abort();
}

static uint64_t world_backend_now(void *ctx)
{
	return world_now_ns(ctx);
}

static uint64_t world_backend_random(void *ctx)
{
	struct world *w = ctx;

	return rng_next(&w->loop_rng);
}

static void world_backend_poll(void *ctx, uint64_t until_ns)
{
	struct world *w = ctx;
	uint64_t to_ns;

	if (!w->heap_count && until_ns == LOOP_NEVER)
		w->stuck(w->stuck_arg, "everything waits and nothing will happen any more");
	if (w->now_ns > w->watch_until_ns)
		w->stuck(w->stuck_arg, "not done within the simulated time allowed");
	if (w->now_ns - w->polls_since_ns > NS_PER_MS) {
		w->polls_since_ns = w->now_ns;
		w->polls = 0;
	}
	if (++w->polls > WORLD_POLLS_MAX)
		w->stuck(w->stuck_arg, "the loop spins");

	to_ns = until_ns;
	if (w->heap_count && w->heap[0]->due_ns < to_ns)
		to_ns = w->heap[0]->due_ns;
	w->now_ns = MAX(to_ns, w->now_ns + POLL_COST_NS);
	/*
	 * All of one instant, not all that is due: coroutines run between completions, which is
	 * where interleavings come from.
	 */
	if (w->heap_count && w->heap[0]->due_ns <= w->now_ns) {
		uint64_t due_ns = w->heap[0]->due_ns;

		while (w->heap_count && w->heap[0]->due_ns == due_ns) {
			struct world_event *ev = w->heap[0];

			world_event_cancel(w, ev);
			ev->fire(ev);
		}
	}
}

const struct loop_backend world_backend = {
    .now_ns = world_backend_now,
    .poll = world_backend_poll,
    .random = world_backend_random,
};

/* ---- the world ---- */

struct world *world_new(uint64_t seed)
{
	struct world *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->seed = seed;
	w->now_ns = NS_PER_S; /* so that "a time in the past" exists */
	w->polls_since_ns = w->now_ns;
	rng_fork(&w->rng, "world", seed);
	rng_fork(&w->loop_rng, "loop", seed);
	list_init(&w->things);
	w->watch_until_ns = LOOP_NEVER;
	w->stuck = default_stuck;
	return w;
}

void world_free(struct world *w)
{
	if (!w)
		return;
	assert(list_empty(&w->things));
	assert(!w->heap_count);
	free(w->heap);
	free(w);
}

uint64_t world_seed(const struct world *w)
{
	return w->seed;
}

uint64_t world_now_ns(const struct world *w)
{
	return w->now_ns;
}

struct rng *world_rng(struct world *w)
{
	return &w->rng;
}

void world_trace(struct world *w, uint64_t what, uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t h = mix(w->hash, what);

	h = mix(h, a);
	h = mix(h, b);
	h = mix(h, c);
	w->hash = mix(h, w->now_ns);
}

uint64_t world_trace_hash(const struct world *w)
{
	return w->hash;
}

void world_verbose(struct world *w, FILE *to)
{
	w->say = to;
}

bool world_is_verbose(const struct world *w)
{
	return w->say && !w->script;
}

bool world_tells(const struct world *w)
{
	return w->say;
}

void world_script(struct world *w, bool script)
{
	w->script = script;
}

static void say(struct world *w, const char *format, va_list ap)
{
	fprintf(w->say, "%6llu.%09llu ", w->now_ns / NS_PER_S, w->now_ns % NS_PER_S);
	vfprintf(w->say, format, ap);
	fputc('\n', w->say);
}

void world_say(struct world *w, const char *format, ...)
{
	va_list ap;

	if (!w->say || w->script)
		return;
	va_start(ap, format);
	say(w, format, ap);
	va_end(ap);
}

void world_tell(struct world *w, const char *format, ...)
{
	va_list ap;

	if (!w->say)
		return;
	va_start(ap, format);
	say(w, format, ap);
	va_end(ap);
}

void world_watch(struct world *w, uint64_t until_ns, void (*stuck)(void *arg, const char *why),
		 void *arg)
{
	w->watch_until_ns = until_ns;
	w->stuck = stuck ? stuck : default_stuck;
	w->stuck_arg = arg;
}

/* ---- the crash ---- */

void world_crash_at(struct world *w, unsigned points, uint64_t n)
{
	w->crash_points = points;
	w->crash_left = n;
}

void world_crash(struct world *w)
{
	struct world_thing *t;

	if (w->crashed)
		return;
	w->crashed = true;
	w->crash_ns = w->now_ns;
	w->crash_left = 0;
	world_trace(w, 'X', 0, 0, 0);
	world_tell(w, "crash");
	list_for_each (t, &w->things, node)
		t->crash(t);
}

bool world_crashed(const struct world *w)
{
	return w->crashed;
}

uint64_t world_crash_ns(const struct world *w)
{
	return w->crash_ns;
}

uint64_t world_points(const struct world *w, unsigned points)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(w->points); i++) {
		if (points & 1u << i)
			sum += w->points[i];
	}
	return sum;
}

void world_restart(struct world *w)
{
	struct world_thing *t;

	w->crashed = false;
	w->crash_left = 0;
	list_for_each (t, &w->things, node)
		t->restart(t);
}

void world_add(struct world *w, struct world_thing *thing)
{
	list_add_tail(&w->things, &thing->node);
}

void world_remove(struct world *w, struct world_thing *thing)
{
	(void)w;
	list_del(&thing->node);
}

bool world_point(struct world *w, enum world_point point)
{
	if (w->crashed)
		return false;
	w->points[__builtin_ctz(point)]++;
	if (!w->crash_left || !(w->crash_points & point))
		return false;
	if (--w->crash_left)
		return false;
	world_crash(w);
	return true;
}
