/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Waits for any; true if it passed. */
static bool part_end(pid_t pids[PARTS_JOBS_MAX])
{
	int status;
	pid_t pid = wait(&status);

	for (unsigned j = 0; j < PARTS_JOBS_MAX; j++)
		if (pids[j] == pid)
			pids[j] = 0;
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

void parts_run(const struct parts *p, unsigned *ret_passed, unsigned *ret_failed)
{
	pid_t pids[PARTS_JOBS_MAX] = {0};
	unsigned ended[2] = {0}, running = 0; /* failed, passed */

	for (unsigned i = 0; i < p->count; i++) {
		unsigned j = 0;

		if (!p->wanted(i) || (ended[false] && !p->keep_going))
			continue;
		if (running == p->jobs) {
			ended[part_end(pids)]++;
			running--;
		}
		while (pids[j])
			j++;
		fflush(NULL);
		pids[j] = fork();
		if (pids[j] < 0) {
			perror("fork");
			exit(1);
		}
		if (!pids[j]) {
			p->run(i, p->arg);
			abort(); /* it was to end the process */
		}
		running++;
	}
	for (; running; running--)
		ended[part_end(pids)]++;
	*ret_failed = ended[false];
	*ret_passed = ended[true];
}

unsigned parts_number(const char *program, const char *text)
{
	char *end;
	unsigned long x = strtoul(text, &end, 0);

	if (end == text || *end || x > UINT32_MAX) {
		fprintf(stderr, "%s: not a number: %s\n", program, text);
		exit(2);
	}
	return (unsigned)x;
}

double parts_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
