/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon's status as an operator reads it.
 */
#ifndef TOOLS_SHOW_H
#define TOOLS_SHOW_H

#include <jansson.h>
#include <stdbool.h>

void show_status(const json_t *status);
/* One job ("rebuild" or "scrub"): what it does, or how it ended. */
void show_job(const json_t *status, const char *job);
/* One line that is overwritten by the next; for terminals. */
void show_progress(const json_t *status, const char *job);
bool job_running(const json_t *status, const char *job);

#endif
