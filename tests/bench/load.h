/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Load for the benchmarks: operations at a depth or at a rate, their latencies, and what the process
 * spent on them. On the loop's thread; what is loaded is the caller's.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "raid/loop.h"

#define LOAD_DEPTH_MAX 1024u
/* Latencies: 32 buckets for each power of two of ns: within 3 %. */
#define LOAD_SUB_SHIFT 5
#define LOAD_BUCKETS ((64 - LOAD_SUB_SHIFT + 1) << LOAD_SUB_SHIFT)

struct load_target {
	/* Each yields. count blocks from `block` on, below `blocks`. 0 or -errno, which ends the run. */
	int (*read)(void *ctx, uint64_t block, unsigned count, void *data);
	int (*write)(void *ctx, uint64_t block, unsigned count, void *data);
	/* What was accepted is durable on return; its time counts. May be NULL. */
	int (*finish)(void *ctx);
	/* The run ends early when this says so. May be NULL. */
	bool (*over)(void *ctx);
	uint64_t blocks;
	void *ctx;
};

struct load_params {
	unsigned op_blocks;     /* blocks of one operation */
	unsigned depth;         /* in flight; with a rate: at most */
	unsigned write_percent;
	bool random;
	uint64_t duration_ns;
	uint64_t rate;          /* operations a second, Poisson; 0: as many as go */
	uint64_t seed;
};

struct load_result {
	uint64_t ops[2];                 /* reads, writes */
	uint64_t elapsed_ns, cpu_ns;     /* of the whole process */
	uint64_t switches;               /* voluntary context switches */
	uint32_t latency[2][LOAD_BUCKETS];
};

/* Coroutine; yields. 0 or the first error. */
int load_run(const struct load_target *target, const struct load_params *params, struct load_result *ret);
/* One line of JSON on stdout, `more` (may be empty, else begins with a comma) inside it. */
void load_print(const struct load_params *params, const struct load_result *res, const char *more);

#endif
