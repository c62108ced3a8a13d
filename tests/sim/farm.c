/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Seeds run in worker processes, so that an assert or a crash of the code under test is one failure
 * and not the end, and so that all cores are used. A worker takes seed after seed from a pipe and
 * ends with the first that fails; the next seed then gets a new worker. A process for each seed was
 * the first way: half its time went into page faults of memory that the one before had just given
 * back. A seed must not be able to tell whether others ran before it; --twice shows if it can.
 *
 * Sanitized, a worker takes one seed: leaks are looked for at its end, and must be that seed's.
 */
#include "farm.h"
#include "parts.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#define SEEDS_MAX 1
#else
#define SEEDS_MAX 64
#endif
#define FAILED_MAX 32

struct worker {
	pid_t pid; /* 0: none */
	int to, from;
	uint64_t seed;
	bool busy;
	unsigned seeds; /* it has been given */
};

const char *sim_command(void)
{
	const char *command = getenv("TRUSSFS_SIM_COMMAND"); /* tests/sim/run sets it */

	return command ? command : "trussfs-sim";
}

static bool read_all(int fd, void *to, size_t len)
{
	uint8_t *p = to;

	while (len) {
		ssize_t n = read(fd, p, len);

		if (n <= 0)
			return false;
		p += n;
		len -= (size_t)n;
	}
	return true;
}

static bool write_all(int fd, const void *from, size_t len)
{
	const uint8_t *p = from;

	while (len) {
		ssize_t n = write(fd, p, len);

		if (n <= 0)
			return false;
		p += n;
		len -= (size_t)n;
	}
	return true;
}

_Noreturn static void worker_main(const struct farm_plan *p, const struct sim_options *o, int in,
				  int out)
{
	uint64_t seed;

	while (read_all(in, &seed, sizeof(seed))) {
		struct sim_stats stats = {0};

		p->run(o, seed, &stats);
		if (!write_all(out, &stats, sizeof(stats)))
			_exit(1);
	}
	exit(0); /* not _exit: the leak checker wants to look */
}

static bool worker_start(struct worker *w, struct worker *all, const struct farm_plan *p,
			 const struct sim_options *o)
{
	int to[2], from[2];

	if (pipe(to) || pipe(from))
		return false;
	fflush(NULL);
	w->pid = fork();
	if (w->pid < 0)
		return false;
	if (!w->pid) {
		/* Others' ends held open here would keep them from seeing the end of their input. */
		for (unsigned i = 0; i < p->jobs; i++) {
			if (&all[i] != w && all[i].pid) {
				close(all[i].to);
				close(all[i].from);
			}
		}
		close(to[1]);
		close(from[0]);
		worker_main(p, o, to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	w->to = to[1];
	w->from = from[0];
	w->seeds = 0;
	return true;
}

/* True if it ended well. */
static bool worker_end(struct worker *w)
{
	int status = 1;

	close(w->to);
	(void)waitpid(w->pid, &status, 0);
	close(w->from);
	w->pid = 0;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Waits for any that is busy. True if its seed passed. */
static bool wait_any(struct worker *workers, unsigned jobs, struct sim_stats *total,
		     uint64_t *ret_seed)
{
	struct sim_stats stats;
	struct worker *w = NULL;
	bool passed;
	fd_set set;
	int max = 0;

	FD_ZERO(&set);
	for (unsigned i = 0; i < jobs; i++) {
		if (!workers[i].busy)
			continue;
		FD_SET(workers[i].from, &set);
		max = MAX(max, workers[i].from);
	}
	if (select(max + 1, &set, NULL, NULL, NULL) < 1)
		die("trussfs-sim: select");
	for (unsigned i = 0; i < jobs && !w; i++) {
		if (workers[i].busy && FD_ISSET(workers[i].from, &set))
			w = &workers[i];
	}
	w->busy = false;
	*ret_seed = w->seed;
	passed = read_all(w->from, &stats, sizeof(stats));
	if (passed)
		sim_stats_add(total, &stats);
	if (!passed || w->seeds == SEEDS_MAX)
		passed &= worker_end(w);
	return passed;
}

void farm_run(const struct farm_plan *p, const struct sim_options *o, struct sim_stats *total,
	      uint64_t *ret_passed, uint64_t *ret_failed)
{
	struct worker workers[FARM_JOBS_MAX] = {0};
	double until = p->minutes > 0 ? parts_seconds() + p->minutes * 60 : 0;
	uint64_t next = p->first, failed[FAILED_MAX], failed_count = 0, seed;
	unsigned running = 0;

	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		bool more = next <= p->last && (!until || parts_seconds() < until) &&
			    (p->keep_going || !failed_count);
		struct worker *w = NULL;

		for (unsigned i = 0; i < p->jobs && more; i++) {
			if (!workers[i].busy)
				w = &workers[i];
		}
		if (w) {
			if (!w->pid && !worker_start(w, workers, p, o))
				die("trussfs-sim: fork");
			w->seed = next++;
			w->busy = true;
			w->seeds++;
			(void)write_all(w->to, &w->seed, sizeof(w->seed)); /* else it is seen to have died */
			running++;
			continue;
		}
		if (!running)
			break;
		running--;
		if (wait_any(workers, p->jobs, total, &seed)) {
			++*ret_passed;
			continue;
		}
		if (failed_count < FAILED_MAX)
			failed[failed_count] = seed;
		failed_count++;
	}
	for (unsigned i = 0; i < p->jobs; i++) {
		if (!workers[i].pid || worker_end(&workers[i]))
			continue;
		if (failed_count < FAILED_MAX)
			failed[failed_count] = workers[i].seed; /* or one before it: leaks show at the end */
		failed_count++;
	}
	*ret_failed = failed_count;
	for (unsigned i = 0; i < MIN(failed_count, (uint64_t)FAILED_MAX); i++)
		printf("failed: seed %llu\n", (unsigned long long)failed[i]);
}
