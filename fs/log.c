/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where messages go. One program has one place at a time, so this is static.
 */
#include "log.h"
#include <stdio.h>
#include <syslog.h>
#include <time.h>

static const char *log_tool = "trussfs";
static bool log_verbose, log_muted;

/* Kept for status: a system may have no log at all. */
static struct kept {
	enum log_level level;
	int64_t time_s;
	char text[256];
} kept[LOG_KEPT];
static unsigned kept_count; /* ever; the next one goes to kept_count % LOG_KEPT */

static void keep(enum log_level level, const char *text)
{
	struct kept *k = &kept[kept_count % LOG_KEPT];

	if (level > LOG_LEVEL_WARNING)
		return;
	k->level = level;
	k->time_s = time(NULL);
	snprintf(k->text, sizeof(k->text), "%s", text);
	kept_count++;
}

void log_recent(void (*fn)(void *arg, enum log_level level, int64_t time_s, const char *text),
		void *arg)
{
	for (unsigned i = kept_count > LOG_KEPT ? kept_count - LOG_KEPT : 0; i < kept_count; i++) {
		const struct kept *k = &kept[i % LOG_KEPT];
		fn(arg, k->level, k->time_s, k->text);
	}
}

unsigned log_count(void)
{
	return kept_count;
}

const char *log_error_since(unsigned count, const char *about)
{
	for (unsigned i = kept_count; i > count && kept_count - i < LOG_KEPT; i--) {
		const struct kept *k = &kept[(i - 1) % LOG_KEPT];
		if (k->level == LOG_LEVEL_ERROR && strstr(k->text, about))
			return k->text;
	}
	return NULL;
}

static void stderr_hook(enum log_level level, const char *text, void *arg)
{
	if (log_muted || (level > LOG_LEVEL_WARNING && !log_verbose))
		return;
	keep(level, text);
	fprintf(stderr, "%s: %s%s\n", log_tool, level == LOG_LEVEL_WARNING ? "warning: " : "",
		text);
}

static void syslog_hook(enum log_level level, const char *text, void *arg)
{
	static const int priority[] = {
	    [LOG_LEVEL_ERROR] = LOG_ERR,
	    [LOG_LEVEL_WARNING] = LOG_WARNING,
	    [LOG_LEVEL_INFO] = LOG_INFO,
	    [LOG_LEVEL_DEBUG] = LOG_DEBUG,
	};

	if (log_muted || (level >= LOG_LEVEL_DEBUG && !log_verbose))
		return;
	keep(level, text);
	syslog(priority[level], "%s", text);
}

void log_to_stderr(const char *tool, bool verbose)
{
	log_tool = tool;
	log_verbose = verbose;
	log_set_hook(stderr_hook, NULL);
}

void log_to_syslog(const char *tool)
{
	log_tool = tool;
	openlog(tool, LOG_PID, LOG_DAEMON);
	log_set_hook(syslog_hook, NULL);
}

void log_mute(bool mute)
{
	log_muted = mute;
}
