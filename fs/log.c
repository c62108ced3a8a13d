/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where messages go. One program has one place at a time, so this is static.
 *
 * The daemon does not use syslog(3), which waits for the logger: that may be waiting for us, with its
 * files on the filesystem whose trouble is to be told. What does not get through is still in status.
 */
#include "log.h"
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

static const char *log_tool = "trussfs";
static bool log_verbose, log_muted;
static int log_fd = -1; /* to the system's logger */

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

static void logger_connect(void)
{
	static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};

	if (log_fd >= 0)
		close(log_fd);
	log_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (log_fd >= 0 && connect(log_fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		close(log_fd);
		log_fd = -1;
	}
}

static void logger_send(int priority, const char *text)
{
	char line[1024], when[32];
	time_t now = time(NULL);
	struct tm tm;

	strftime(when, sizeof(when), "%b %e %T", localtime_r(&now, &tm));
	int n = snprintf(line, sizeof(line), "<%d>%s %s[%d]: %s", LOG_DAEMON | priority, when,
			 log_tool, getpid(), text);
	size_t len = MIN((size_t)n, sizeof(line) - 1);
	/* Once more after a logger that was restarted. */
	for (int i = 0; i < 2; i++) {
		if (log_fd >= 0 && (send(log_fd, line, len, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
				    errno == EAGAIN || errno == ENOBUFS))
			return;
		logger_connect();
	}
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
	logger_send(priority[level], text);
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
	tzset(); /* reads its file now */
	logger_connect();
	log_set_hook(syslog_hook, NULL);
}

void log_mute(bool mute)
{
	log_muted = mute;
}
