/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A program of many parts, each in a process of its own, some at a time: so that an assert of the code under test is one
 * failure and not the end. And what such programs need besides.
 */
#ifndef SIM_PARTS_H
#define SIM_PARTS_H

#include "raid/base.h"

#define PARTS_JOBS_MAX 16

struct parts {
	unsigned count;
	unsigned jobs;	 /* at a time, 1 .. PARTS_JOBS_MAX */
	bool keep_going; /* after a failure */
	bool (*wanted)(unsigned part);
	/* In the child; ends the process, with 0 if the part passed. */
	void (*run)(unsigned part, void *arg);
	void *arg;
};
/* Returns when all have ended. Ends the program if there can be no process. */
void parts_run(const struct parts *p, unsigned *ret_passed, unsigned *ret_failed);

/* An argument of the command line; ends the program with 2 if it is none. */
unsigned parts_number(const char *program, const char *text);
/* Seconds of the monotonic clock. */
double parts_seconds(void);

#endif
