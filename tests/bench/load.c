/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two ways of loading. Closed: `depth` coroutines, each with one operation in flight. Open: arrivals at a
 * rate, whatever the target does; latency counts from the time that an operation was due and not from
 * when it was started, so that a stall is seen by all that it delayed.
 *
 * Memory of each operation is taken and touched before the clock starts.
 */
#include "load.h"

#include "raid/buf.h"
#include "raid/co.h"

#include <math.h>
#include <stdio.h>
#include <sys/resource.h>

struct load {
	const struct load_target *target;
	const struct load_params *params;
	struct load_result *res;
	struct loop *loop;
	uint64_t start_ns, end_ns;
	uint64_t cursor[2];
	uint64_t rng;
	unsigned running;
	int error;
	struct co_cond ended; /* an operation or a worker has */
	void **idle;          /* memory of operations that do not run now */
	unsigned idle_count;
};

struct op {
	struct load *load;
	void *data;
	uint64_t due_ns;
};

static uint64_t rng_next(struct load *l)
{
	/* splitmix64 */
	uint64_t z = l->rng += 0x9e3779b97f4a7c15ull;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static unsigned bucket_of(uint64_t ns)
{
	if (ns < 1u << LOAD_SUB_SHIFT)
		return (unsigned)ns;
	unsigned top = 63u - (unsigned)__builtin_clzll(ns), shift = top - LOAD_SUB_SHIFT;
	return ((shift + 1) << LOAD_SUB_SHIFT) + (unsigned)(ns >> shift) - (1u << LOAD_SUB_SHIFT);
}

static double bucket_us(unsigned b)
{
	unsigned shift = b >> LOAD_SUB_SHIFT, low = b & ((1u << LOAD_SUB_SHIFT) - 1);
	if (shift == 0)
		return low / 1000.0;
	return (double)((uint64_t)(low + (1u << LOAD_SUB_SHIFT)) << (shift - 1)) / 1000.0;
}

static double percentile_us(const struct load_result *r, unsigned dir, double part)
{
	uint64_t want = (uint64_t)((double)r->ops[dir] * part), seen = 0;

	for (unsigned b = 0; b < LOAD_BUCKETS; b++) {
		seen += r->latency[dir][b];
		if (seen > want)
			return bucket_us(b);
	}
	return 0;
}

static bool over(const struct load *l)
{
	return l->error || loop_now_ns(l->loop) >= l->end_ns ||
	       (l->target->over && l->target->over(l->target->ctx));
}

static void one_op(struct load *l, void *data, uint64_t due_ns)
{
	const struct load_params *p = l->params;
	uint64_t slots = l->target->blocks / p->op_blocks, at;
	unsigned dir = rng_next(l) % 100 < p->write_percent;

	at = p->random ? rng_next(l) % slots : l->cursor[dir]++ % slots;
	int e = dir ? l->target->write(l->target->ctx, at * p->op_blocks, p->op_blocks, data)
		    : l->target->read(l->target->ctx, at * p->op_blocks, p->op_blocks, data);
	if (e) {
		l->error = l->error ? l->error : e;
		return;
	}
	l->res->ops[dir]++;
	l->res->latency[dir][bucket_of(loop_now_ns(l->loop) - due_ns)]++;
}

static void worker_ended(struct load *l)
{
	l->running--;
	co_cond_wake_all(&l->ended);
}

/* Closed. */
static void worker(void *arg)
{
	struct load *l = arg;
	void *data = l->idle[--l->idle_count];

	while (!over(l))
		one_op(l, data, loop_now_ns(l->loop));
	l->idle[l->idle_count++] = data;
	worker_ended(l);
}

/* Open. */
static void arrival(void *arg)
{
	struct op *op = arg;
	struct load *l = op->load;

	one_op(l, op->data, op->due_ns);
	l->idle[l->idle_count++] = op->data;
	mem_free(op);
	worker_ended(l);
}

static int arrivals(struct load *l)
{
	double due = (double)l->start_ns;

	while (!over(l)) {
		double u = ((double)(rng_next(l) >> 11) + 0.5) / 9007199254740992.0;
		due += -log(u) * 1e9 / (double)l->params->rate;
		for (uint64_t now = loop_now_ns(l->loop); now < (uint64_t)due && !over(l); now = loop_now_ns(l->loop))
			co_sleep_ns((uint64_t)due - now);
		while (!l->idle_count)
			co_cond_wait(&l->ended);
		struct op *op = mem_alloc(sizeof(*op));
		if (!op)
			return -ENOMEM;
		*op = (struct op){l, l->idle[--l->idle_count], (uint64_t)due};
		l->running++;
		if (co_spawn(l->loop, arrival, op) < 0) {
			l->idle[l->idle_count++] = op->data;
			l->running--;
			mem_free(op);
			return -ENOMEM;
		}
	}
	return 0;
}

static int workers(struct load *l)
{
	for (unsigned i = 0; i < l->params->depth; i++) {
		l->running++;
		if (co_spawn(l->loop, worker, l) < 0) {
			l->running--;
			l->error = -ENOMEM;
			break;
		}
	}
	return l->error;
}

static uint64_t cpu_ns(uint64_t *ret_switches)
{
	struct rusage u;

	(void)getrusage(RUSAGE_SELF, &u); /* cannot fail */
	*ret_switches = (uint64_t)u.ru_nvcsw;
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * NS_PER_S +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

int load_run(const struct load_target *target, const struct load_params *params, struct load_result *ret)
{
	struct load l = {.target = target, .params = params, .res = ret, .loop = co_loop(), .rng = params->seed};
	size_t bytes = (size_t)params->op_blocks * BLOCK_BYTES;
	uint64_t switches, cpu;
	int e;

	memset(ret, 0, sizeof(*ret));
	co_cond_init(&l.ended);
	l.idle = mem_zalloc(params->depth * sizeof(*l.idle));
	if (!l.idle)
		return -ENOMEM;
	for (; l.idle_count < params->depth; l.idle_count++) {
		l.idle[l.idle_count] = buf_get_wait(bytes);
		memset(l.idle[l.idle_count], 0x5a, bytes);
	}
	cpu = cpu_ns(&switches);
	l.start_ns = loop_now_ns(l.loop);
	l.end_ns = l.start_ns + params->duration_ns;
	e = params->rate ? arrivals(&l) : workers(&l);
	while (l.running)
		co_cond_wait(&l.ended);
	e = l.error ? l.error : e;
	if (e == 0 && target->finish)
		e = target->finish(target->ctx);
	ret->elapsed_ns = loop_now_ns(l.loop) - l.start_ns;
	ret->cpu_ns = cpu_ns(&ret->switches) - cpu;
	ret->switches -= switches;
	while (l.idle_count)
		buf_put(l.idle[--l.idle_count]);
	mem_free(l.idle);
	return e;
}

void load_print(const struct load_params *params, const struct load_result *r, const char *more)
{
	static const char *const dirs[2] = {"read", "write"};
	double s = (double)MAX(r->elapsed_ns, 1u) / 1e9, ops = (double)(r->ops[0] + r->ops[1]);
	double mib = params->op_blocks * (double)BLOCK_BYTES / (1 << 20);

	printf("{\"seconds\": %.4f, \"iops\": %.1f, \"mibps\": %.2f, \"cpu_us\": %.3f, \"switches\": %.4f", s,
	       ops / s, ops * mib / s, ops ? (double)r->cpu_ns / 1e3 / ops : 0,
	       ops ? (double)r->switches / ops : 0);
	for (unsigned d = 0; d < 2; d++) {
		if (r->ops[d])
			printf(", \"%s\": {\"iops\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f}",
			       dirs[d], (double)r->ops[d] / s, percentile_us(r, d, 0.5),
			       percentile_us(r, d, 0.99), percentile_us(r, d, 0.999));
	}
	printf("%s}\n", more);
}
