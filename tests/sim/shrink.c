/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The shrinker: delta debugging on what a seed does.
 *
 * An attempt is a seed with some of its faults, meddling, crashes and operations left out (skip.h). It is as good as
 * what it came from if it fails with the same message. What is left out moves everything after it in
 * time, and a crash then comes at another point; so each attempt is made with a few *salts*, other latencies
 * and crash points, and any of them will do. First whole classes are left out, then halves of what is left, quarters,
 * and so on to single ones, until a pass over all of them changes nothing or the time is over.
 */
#include "shrink.h"
#include "parts.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SALTS		 4
#define MINUTES_DEFAULT	 3
#define PASSES_MAX	 8

struct attempt {
	struct skip skip;
	unsigned crashes, salt;
};

struct shrinker {
	const struct farm_plan *plan;
	const struct sim_options *o;
	struct sim_trail *trails; /* of FARM_JOBS_MAX children, shared */
	char failure[sizeof(((struct sim_trail *)0)->failure)]; /* that is looked for; "": any */
	double until;
	unsigned tries;
};

/* ---- one run ---- */

static void options_of(const struct shrinker *s, const struct attempt *a, struct sim_options *ret)
{
	*ret = *s->o;
	ret->skip = &a->skip;
	ret->crashes = a->crashes;
	ret->salt = a->salt;
	ret->alone = false;
}

static pid_t child(struct shrinker *s, const struct attempt *a, struct sim_trail *trail, bool show)
{
	struct sim_options o;
	pid_t pid;

	memset(trail, 0, sizeof(*trail));
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		perror("trussfs-sim: fork");
		exit(2);
	}
	if (!pid) {
		struct sim_stats stats;
		int fd = open("/dev/null", O_WRONLY);

		options_of(s, a, &o);
		o.trail = trail;
		o.verbose = false;
		o.script = show;
		if (!show)
			dup2(fd, 1);
		dup2(fd, 2);
		s->plan->run(&o, s->plan->first, &stats);
		_exit(0);
	}
	return pid;
}

/* Why it failed, in trail->failure; false: it did not. */
static bool child_failed(pid_t pid, struct sim_trail *trail)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return false;
	if (WIFSIGNALED(status)) {
		snprintf(trail->failure, sizeof(trail->failure), "signal %d", WTERMSIG(status));
		return true;
	}
	return WEXITSTATUS(status) != 0;
}

/* With this salt or another: true, and a->salt is the one, if it fails as it should. */
static bool fails(struct shrinker *s, struct attempt *a, struct sim_trail *ret)
{
	unsigned first = a->salt, batch = MIN(MAX(s->plan->jobs, 1u), (unsigned)SALTS);

	for (unsigned at = 0; at < SALTS; at += batch) {
		pid_t pids[SALTS];
		bool found = false;
		unsigned n = MIN(batch, SALTS - at);

		for (unsigned i = 0; i < n; i++) {
			a->salt = (first + at + i) % SALTS;
			pids[i] = child(s, a, &s->trails[i], false);
		}
		for (unsigned i = 0; i < n; i++) {
			s->tries++;
			if (!child_failed(pids[i], &s->trails[i]) || found)
				continue;
			if (s->failure[0] && strcmp(s->failure, s->trails[i].failure))
				continue;
			found = true;
			a->salt = (first + at + i) % SALTS;
			*ret = s->trails[i];
		}
		if (found)
			return true;
	}
	a->salt = first;
	return false;
}

/* ---- leaving out ---- */

struct atom {
	unsigned class, number;
};

static unsigned atoms_left(const struct attempt *a, const unsigned *count, struct atom *ret, bool ops)
{
	unsigned n = 0;

	for (unsigned class = 0; class < SKIP_CLASSES; class++) {
		if ((class >= SKIP_WORKER) != ops)
			continue;
		for (unsigned i = 0; i < MIN(count[class], (unsigned)SKIP_MAX); i++) {
			if (!skip_has(&a->skip, class, i))
				ret[n++] = (struct atom){class, i};
		}
	}
	return n;
}

static bool time_is_over(const struct shrinker *s)
{
	return parts_seconds() > s->until;
}

static bool try_without(struct shrinker *s, struct attempt *best, const struct atom *atoms, unsigned n)
{
	struct sim_trail trail;
	struct attempt *a = malloc(sizeof(*a));
	bool ok;

	if (!a)
		abort();
	*a = *best;
	for (unsigned i = 0; i < n; i++)
		skip_set(&a->skip, atoms[i].class, atoms[i].number, true);
	ok = fails(s, a, &trail);
	if (ok)
		*best = *a;
	free(a);
	return ok;
}

/* Halves, quarters, ... of what is left. True if anything could be left out. */
static bool pass(struct shrinker *s, struct attempt *best, const unsigned *count, struct atom *atoms, bool ops)
{
	unsigned n = atoms_left(best, count, atoms, ops);
	bool any = false;

	for (unsigned size = n; size; size /= 2) {
		for (unsigned at = 0; at < n && !time_is_over(s);) {
			unsigned k = MIN(size, n - at);

			if (!try_without(s, best, atoms + at, k)) {
				at += k;
				continue;
			}
			memmove(atoms + at, atoms + at + k, (n - at - k) * sizeof(*atoms));
			n -= k;
			any = true;
		}
		fprintf(stderr, "shrink: %u %s left, %u runs\n", n, ops ? "operations" : "faults, crashes and meddlings",
			s->tries);
	}
	return any;
}

static void shrink_to_end(struct shrinker *s, struct attempt *best, const unsigned *count)
{
	struct atom *atoms = calloc((size_t)SKIP_CLASSES * SKIP_MAX, sizeof(*atoms));
	struct sim_trail trail;

	if (!atoms)
		abort();
	/* Nothing beyond what there was: what is left out must not let something new have its turn. */
	for (unsigned class = 0; class < SKIP_CLASSES; class++) {
		for (unsigned i = count[class]; i < SKIP_MAX; i++)
			skip_set(&best->skip, class, i, true);
	}
	for (unsigned class = SKIP_WORKER; class < SKIP_CLASSES && !time_is_over(s); class++) {
		unsigned n = 0;

		for (unsigned i = 0; i < MIN(count[class], (unsigned)SKIP_MAX); i++)
			atoms[n++] = (struct atom){class, i};
		if (n)
			(void)try_without(s, best, atoms, n);
	}
	for (unsigned i = 0; i < PASSES_MAX && !time_is_over(s); i++) {
		bool any = pass(s, best, count, atoms, false);

		any |= pass(s, best, count, atoms, true);
		if (!any)
			break;
	}
	while (best->crashes > 1 && !time_is_over(s)) {
		struct attempt fewer = *best;

		fewer.crashes--;
		if (!fails(s, &fewer, &trail))
			break;
		*best = fewer;
	}
	free(atoms);
}

static void print_command(const struct shrinker *s, const struct attempt *a)
{
	static char text[65536];

	printf("replay: %s --seed %llu", sim_command(), (unsigned long long)s->plan->first);
	if (s->o->level >= 0)
		printf(" --level %d", s->o->level);
	if (s->o->members)
		printf(" --members %u", s->o->members);
	if (s->o->ops)
		printf(" --ops %u", s->o->ops);
	if (s->o->raid_only)
		printf(" --raid-only");
	if (s->o->faults_text[0])
		printf(" --faults %s", s->o->faults_text);
	(void)skip_print(&a->skip, text, sizeof(text)); /* long enough for whatever is worth looking at */
	if (a->crashes)
		printf(" --crashes %u", a->crashes);
	if (a->salt)
		printf(" --salt %u", a->salt);
	printf(" --skip %s\n", text);
}

int shrink(const struct farm_plan *plan, const struct sim_options *o)
{
	struct shrinker s = {.plan = plan, .o = o};
	static struct attempt best;
	struct sim_trail trail;
	unsigned count[SKIP_CLASSES], round;

	s.trails = mmap(NULL, sizeof(*s.trails) * FARM_JOBS_MAX, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s.trails == MAP_FAILED)
		abort();
	s.until = parts_seconds() + (plan->minutes > 0 ? plan->minutes : MINUTES_DEFAULT) * 60;
	best.crashes = o->crashes;
	best.salt = o->salt;
	if (o->skip)
		best.skip = *o->skip;
	if (!child_failed(child(&s, &best, &s.trails[0], false), &s.trails[0])) {
		printf("seed %llu passes\n", (unsigned long long)plan->first);
		return 1;
	}
	memcpy(s.failure, s.trails[0].failure, sizeof(s.failure));
	memcpy(count, s.trails[0].count, sizeof(count));
	round = s.trails[0].round;
	fprintf(stderr, "shrink: looking for: %s\n", s.failure);
	/* Rounds after the one that fails need not be. */
	for (unsigned i = 2; i-- > 0 && round > i && !best.crashes;) {
		struct attempt shorter = best;

		shorter.crashes = round - i;
		if (fails(&s, &shorter, &trail))
			best = shorter;
	}
	shrink_to_end(&s, &best, count);
	printf("what is left, in order (%s --legend):\n", sim_command());
	(void)child_failed(child(&s, &best, &s.trails[0], true), &s.trails[0]);
	printf("fails with: %s\n", s.trails[0].failure);
	print_command(&s, &best);
	return 0;
}
