// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The pace of background jobs.
 *
 * Without foreground requests a job goes as fast as it can. With them, what it costs them is measured and not guessed: every
 * 400 ms or so it holds still for 40 ms, and the latency of the requests that begin then is compared with that of the others.
 * (Or so: a program that asks every 100 ms would else be met always or never.) So the comparison is with the load of this moment, whatever that is, and needs no idea of the devices.
 * What is compared is what one request of 128 of each class exceeds: means hide what a burst of background work does to the few
 * that are behind it. A slow load has too few for that in a second; of it, what one of 32 exceeds.
 *
 * The rate follows from that by additive increase and multiplicative decrease: halved when latency is more than the
 * priority allows times what it is without the job, otherwise doubled up to half of where it was last too much, and from
 * there on raised in steps. Priority is in the bound (1.25 times at 0, 2 times at 50), in the steps, and in the minimum
 * rate, which holds whatever the latency, so that a rebuild ends. At 100 nothing holds back.
 *
 * Slow jobs work in small units: what delays a request is the unit before it.
 *
 * A rate, and not a number of units in flight: one unit in flight all the time may already be too much. Rejected too: a moving
 * minimum as the measure of undisturbed latency, which a load that grows makes look like the job's fault, and the latency of member
 * I/O, which does not see that the loop is busy with the job's checksums.
 */
#include "pace.h"

#define IDLE_NS	      (250 * NS_PER_MS) /* without a request: there is no foreground */
#define QUIET_NS      (40 * NS_PER_MS)
#define BUSY_NS	      (300 * NS_PER_MS) /* and up to BUSY_MORE_NS */
#define BUSY_MORE_NS  (128 * NS_PER_MS)
#define BURST_NS      QUIET_NS /* what was not used may be made up for: the time of holding still */
#define SAMPLES_MIN   32u      /* of each kind before they are compared */
#define SAMPLES_OLD   4096u    /* more are halved: what was long ago fades */
#define TAIL	      128u     /* one of so many is slower than what is compared */
#define TAIL_FEW      32u      /* with fewer requests than TAIL_SAMPLES */
#define TAIL_SAMPLES  512u
#define UNIT_NS	      (8 * NS_PER_MS) /* work of one unit at the present rate */
#define UNIT_BLOCKS   8u	      /* at least */
#define RATE_MAX      (64ull << 30)
#define STEP_SHARE    16u /* of the rate, at priority 50 */
#define HOST_WEIGHT   10u /* added to the priority: at 0 it has steps, too */

/* ---- latencies ---- */

static unsigned hist_bucket(uint64_t ns)
{
	uint64_t us = ns >> 10;
	unsigned octave, step;

	if (us < PACE_STEPS)
		return (unsigned)us;
	octave = 63u - (unsigned)__builtin_clzll(us);
	step = (unsigned)(us >> (octave - 3)) & (PACE_STEPS - 1);
	return MIN((octave - 2) * PACE_STEPS + step, PACE_BUCKETS - 1);
}

/* The first value of the bucket behind it, in units of 1024 ns. */
static uint64_t hist_bound(unsigned bucket)
{
	unsigned next = bucket + 1;

	if (next < PACE_STEPS)
		return next;
	return (uint64_t)(PACE_STEPS + next % PACE_STEPS) << (next / PACE_STEPS - 1);
}

static void hist_halve(struct pace_hist *h)
{
	h->total = 0;
	for (unsigned i = 0; i < PACE_BUCKETS; i++)
		h->total += h->count[i] /= 2;
}

static void hist_add(struct pace_hist *h, uint64_t ns)
{
	h->count[hist_bucket(ns)]++;
	h->total++;
}

/* One of `tail` is slower. */
static uint64_t hist_tail(const struct pace_hist *h, unsigned tail)
{
	uint32_t above = h->total / tail;
	unsigned i = PACE_BUCKETS;

	while (i-- > 0) {
		if (h->count[i] > above)
			return hist_bound(i);
		above -= h->count[i];
	}
	return 0;
}

void pace_request_begin(struct pace *p, uint64_t now_ns, struct pace_request *q)
{
	q->counted = p->jobs != 0;
	if (!q->counted)
		return;
	q->begin_ns = now_ns;
	q->quiet = p->phase == PACE_QUIET && !p->units;
	p->requests++;
	p->seen = true;
}

void pace_request_end(struct pace *p, uint64_t now_ns, struct pace_request *q, enum pace_class class)
{
	struct pace_hist *h = q->quiet ? &p->quiet[class] : &p->busy[class];

	if (!q->counted)
		return;
	assert(p->requests > 0);
	p->requests--;
	p->last_ns = now_ns;
	/* Those from memory take no time and say nothing. What the job left behind when it held still is nobody's. */
	if (now_ns <= q->begin_ns || p->phase == PACE_IDLE || (!q->quiet && p->phase == PACE_QUIET))
		return;
	hist_add(h, now_ns - q->begin_ns);
}

/* ---- the rate ---- */

uint64_t pace_rate_min(unsigned priority)
{
	return PACE_RATE_MIN + priority * PACE_RATE_MIN_PER_PRIORITY;
}

/* Of what it would be without the job, in percent. */
static uint64_t latency_allowed(unsigned priority)
{
	return 125 + 3 * priority / 2;
}

enum verdict { VERDICT_UNKNOWN, VERDICT_GOOD, VERDICT_TOO_MUCH };

static enum verdict latency_judge(struct pace *p, unsigned priority)
{
	enum verdict v = VERDICT_UNKNOWN;

	for (unsigned c = 0; c < PACE_CLASSES; c++) {
		struct pace_hist *quiet = &p->quiet[c], *busy = &p->busy[c];
		unsigned tail = MIN(quiet->total, busy->total) < TAIL_SAMPLES ? TAIL_FEW : TAIL;

		if (quiet->total < SAMPLES_MIN || busy->total < SAMPLES_MIN)
			continue;
		if (hist_tail(busy, tail) * 100 > hist_tail(quiet, tail) * latency_allowed(priority))
			v = VERDICT_TOO_MUCH;
		else if (v == VERDICT_UNKNOWN)
			v = VERDICT_GOOD;
		memset(busy, 0, sizeof(*busy));
		/* The load of the next moment counts as much as all that was before. */
		do
			hist_halve(quiet);
		while (quiet->total > SAMPLES_OLD);
	}
	return v;
}

static void rate_raise(struct pace *p, unsigned priority, uint64_t used, bool sure)
{
	uint64_t step = MAX(PACE_RATE_MIN, p->rate / STEP_SHARE) * (priority + (sure ? HOST_WEIGHT : 0)) / 50;

	if (sure && p->rate < p->rate_slow)
		p->rate = MIN(p->rate * 2, p->rate_slow);
	else
		p->rate += step;
	/* Beyond what the job can do it would have to come down a long way before that helped. */
	p->rate = MIN(p->rate, MAX(2 * used, pace_rate_min(priority)));
}

static void rate_adjust(struct pace *p, uint64_t now_ns, unsigned priority)
{
	uint64_t used = p->bytes * NS_PER_S / (now_ns - p->phase_ns);

	switch (latency_judge(p, priority)) {
	case VERDICT_TOO_MUCH:
		/* It may have done less than it was allowed to. */
		p->rate = p->rate_slow = MIN(p->rate, used) / 2;
		break;
	case VERDICT_GOOD:
		rate_raise(p, priority, used, true);
		break;
	case VERDICT_UNKNOWN:
		/* So few requests that it takes long to know: it goes on carefully meanwhile, or (at 0) waits for that. */
		rate_raise(p, priority, used, false);
		break;
	}
	p->rate = MAX(p->rate, pace_rate_min(priority));
}

/* ---- the job ---- */

void pace_job_begin(struct pace *p)
{
	if (p->jobs++)
		return;
	/* Requests that an earlier job has counted may still be under way. */
	*p = (struct pace){.jobs = 1, .requests = p->requests, .rate_slow = RATE_MAX};
}

void pace_job_end(struct pace *p)
{
	assert(p->jobs > 0);
	p->jobs--;
}

static void phase_begin(struct pace *p, uint64_t now_ns, enum pace_phase phase)
{
	p->phase = phase;
	p->phase_ns = now_ns;
	p->phases++;
	p->bytes = 0;
}

/* Spread evenly over what it may be: 0.618.. has the least regular multiples. */
static uint64_t busy_ns(const struct pace *p)
{
	return BUSY_NS + (uint32_t)(p->phases * 2654435769u) * BUSY_MORE_NS / UINT32_MAX;
}

static bool foreground(const struct pace *p, uint64_t now_ns)
{
	return p->requests || (p->seen && now_ns < p->last_ns + IDLE_NS);
}

uint64_t pace_wait_ns(struct pace *p, uint64_t now_ns, unsigned priority)
{
	if (priority >= PACE_PRIORITY_MAX || !foreground(p, now_ns)) {
		if (p->phase != PACE_IDLE)
			phase_begin(p, now_ns, PACE_IDLE);
		return 0;
	}
	if (p->phase == PACE_IDLE) {
		p->rate = MAX(p->rate, pace_rate_min(priority));
		p->next_ns = now_ns;
		phase_begin(p, now_ns, PACE_QUIET);
	} else if (p->phase == PACE_QUIET && now_ns >= p->phase_ns + QUIET_NS) {
		phase_begin(p, now_ns, PACE_BUSY);
	} else if (p->phase == PACE_BUSY && now_ns >= p->phase_ns + busy_ns(p)) {
		rate_adjust(p, now_ns, priority);
		phase_begin(p, now_ns, PACE_QUIET);
	}
	/* Also of a priority that has just been raised. */
	p->rate = MAX(p->rate, pace_rate_min(priority));
	if (p->phase == PACE_QUIET)
		return p->phase_ns + QUIET_NS - now_ns;
	return p->next_ns > now_ns ? p->next_ns - now_ns : 0;
}

unsigned pace_unit_blocks(const struct pace *p, unsigned priority, unsigned blocks_max)
{
	unsigned blocks = UNIT_BLOCKS;

	if (p->phase == PACE_IDLE)
		return blocks_max;
	while (blocks < blocks_max && blocks * BLOCK_BYTES * (NS_PER_S / UNIT_NS) < p->rate)
		blocks *= 2;
	return MIN(blocks, blocks_max);
}

void pace_unit_begin(struct pace *p, uint64_t now_ns, uint64_t member_bytes)
{
	p->units++;
	p->bytes += member_bytes;
	if (p->phase == PACE_IDLE)
		return;
	p->next_ns = MAX(p->next_ns, now_ns > BURST_NS ? now_ns - BURST_NS : 0) +
		     member_bytes * NS_PER_S / p->rate;
}

void pace_unit_end(struct pace *p)
{
	assert(p->units > 0);
	p->units--;
}
