/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where messages of the libraries go in a program: `tool: text` on stderr, or the system's log.
 */
#ifndef FS_LOG_H
#define FS_LOG_H

#include "raid/base.h"

/* Errors and warnings, with verbose also the rest. tool stays valid. */
void log_to_stderr(const char *tool, bool verbose);
/* For a daemon that has left its terminal. */
void log_to_syslog(const char *tool);
/* Nothing at all: while something that may fail is tried again. */
void log_mute(bool mute);

#define LOG_KEPT 32
/* The last errors and warnings, oldest first. time_s is wall clock, for people. */
void log_recent(void (*fn)(void *arg, enum log_level level, int64_t time_s, const char *text),
		void *arg);
/* How many there were ever, and the newest error after that many that has `about` in it; NULL:
 * none. */
unsigned log_count(void);
const char *log_error_since(unsigned count, const char *about);

#endif
