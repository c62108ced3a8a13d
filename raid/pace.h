/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How fast a rebuild or a scrub may go while files are in use. Arithmetic alone: the caller says what time it is and does
 * the waiting. What it decides and why stands in pace.c.
 */
#ifndef RAID_PACE_H
#define RAID_PACE_H

#include "base.h"
#include "loop.h"

#define PACE_PRIORITY_MAX 100u
/* What their names stand for: foreground first; a bargain; the job first. */
#define PACE_HOST 0u
#define PACE_BALANCED 50u
#define PACE_REBUILD PACE_PRIORITY_MAX

/* Whatever the foreground does, each member is worked on at this rate: 1 TiB in at most 73 hours, or 5.4 when balanced. */
#define PACE_RATE_MIN (4ull << 20)
#define PACE_RATE_MIN_PER_PRIORITY (1ull << 20)

/* Requests are compared with their like alone. */
enum pace_class { PACE_READ, PACE_READ_LARGE, PACE_WRITE, PACE_COMMIT, PACE_CLASSES };
#define PACE_READ_LARGE_BLOCKS 16u /* and up */

/* Logarithmic, 8 steps to a doubling: 1 us to 16 s. */
#define PACE_STEPS 8u
#define PACE_BUCKETS (24u * PACE_STEPS)
struct pace_hist {
	uint32_t total, count[PACE_BUCKETS];
};

enum pace_phase {
	PACE_IDLE,  /* no foreground: as fast as it goes */
	PACE_QUIET, /* the job holds still, so that one sees what latency is without it */
	PACE_BUSY,  /* it works at `rate` */
};

struct pace {
	unsigned jobs;     /* that run: without, nothing is measured */
	unsigned units;    /* of the jobs under way */
	unsigned requests; /* of the foreground under way */
	uint64_t last_ns;  /* when one of them ended last */
	bool seen;         /* there was one since the job began */
	enum pace_phase phase;
	uint64_t phase_ns;      /* when it began */
	uint32_t phases;
	uint64_t rate;          /* bytes of each member in a second; 0: not yet known */
	uint64_t rate_slow;     /* from here on it grows by steps and no longer by doubling */
	uint64_t next_ns;       /* when the next unit may begin */
	uint64_t bytes;         /* of each member in this phase */
	struct pace_hist quiet[PACE_CLASSES], busy[PACE_CLASSES];
};

/* A request of the foreground, between its begin and its end. */
struct pace_request {
	uint64_t begin_ns;
	bool counted, quiet;
};
void pace_request_begin(struct pace *p, uint64_t now_ns, struct pace_request *q);
void pace_request_end(struct pace *p, uint64_t now_ns, struct pace_request *q, enum pace_class class);

void pace_job_begin(struct pace *p);
void pace_job_end(struct pace *p);
/* How long the job is to wait before its next unit; 0: it may begin. The answer may have changed afterwards: ask again. */
uint64_t pace_wait_ns(struct pace *p, uint64_t now_ns, unsigned priority);
/* How many blocks of each member the next unit should have, a power of two, or blocks_max. */
unsigned pace_unit_blocks(const struct pace *p, unsigned priority, unsigned blocks_max);
void pace_unit_begin(struct pace *p, uint64_t now_ns, uint64_t member_bytes);
void pace_unit_end(struct pace *p);

/* Of bytes of each member in a second. */
uint64_t pace_rate_min(unsigned priority);

#endif
