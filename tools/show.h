/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon's status as an operator reads it.
 */
#ifndef TOOLS_SHOW_H
#define TOOLS_SHOW_H

#include <jansson.h>
#include <stdbool.h>

/* Priorities of a job that have a name. */
#define PRIORITY_NAMES 3
extern const struct priority_name {
	const char *name;
	unsigned value;
} priority_names[PRIORITY_NAMES];
/* The name, or the number, written to `out`. */
#define PRIORITY_TEXT_BYTES 12
const char *priority_text(unsigned priority, char out[PRIORITY_TEXT_BYTES]);

void show_status(const json_t *status);
/* One job ("rebuild" or "scrub"): what it does, or how it ended. */
void show_job(const json_t *status, const char *job);
/* One line that is overwritten by the next; for terminals. */
void show_progress(const json_t *status, const char *job);
bool job_running(const json_t *status, const char *job);

#endif
