/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Control memory and messages.
 *
 * All control memory passes through here for one reason: so that a test can make the n-th
 * allocation fail and see that the failure is an error and not a crash. The state is plain and
 * global, since everything that allocates runs on the loop's thread.
 */
#include "base.h"

#include <stdio.h>
#include <stdlib.h>

#define LOG_TEXT_BYTES 1024

static struct {
	uint64_t left; /* until the failure; 0: off */
	bool for_good;
	bool failing; /* for_good, and it has begun */
} mem_failure;

static struct {
	log_hook *hook;
	void *arg;
} log_target;

const char *uuid_text(const struct uuid *u, char out[UUID_TEXT_BYTES])
{
	static const char digits[] = "0123456789abcdef";
	char *o = out;

	for (unsigned i = 0; i < sizeof(u->b); i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*o++ = '-';
		*o++ = digits[u->b[i] >> 4];
		*o++ = digits[u->b[i] & 15];
	}
	*o = '\0';
	return out;
}

void mem_fail_after(uint64_t n, bool for_good)
{
	mem_failure.left = n;
	mem_failure.for_good = for_good;
	mem_failure.failing = false;
}

bool mem_fail_waits(void)
{
	return mem_failure.left > 0;
}

static bool mem_fails(void)
{
	if (mem_failure.failing)
		return true;
	if (mem_failure.left == 0 || --mem_failure.left > 0)
		return false;
	mem_failure.failing = mem_failure.for_good;
	return true;
}

void *mem_alloc(size_t bytes)
{
	if (mem_fails())
		return NULL;
	/* malloc(0) may give NULL, which would read as "no memory". */
	return malloc(bytes ? bytes : 1);
}

void *mem_zalloc(size_t bytes)
{
	if (mem_fails())
		return NULL;
	return calloc(1, bytes ? bytes : 1);
}

void *mem_realloc(void *p, size_t bytes)
{
	if (mem_fails())
		return NULL;
	return realloc(p, bytes ? bytes : 1);
}

char *mem_strdup(const char *s)
{
	size_t bytes = strlen(s) + 1;
	char *copy = mem_alloc(bytes);

	if (copy)
		memcpy(copy, s, bytes);
	return copy;
}

void mem_free(void *p)
{
	free(p);
}

void log_set_hook(log_hook *hook, void *arg)
{
	log_target.hook = hook;
	log_target.arg = arg;
}

void log_print(enum log_level level, const char *format, ...)
{
	int saved_errno = errno;
	char text[LOG_TEXT_BYTES];
	va_list ap;

	if (!log_target.hook && level > LOG_LEVEL_WARNING)
		return;
	va_start(ap, format);
	(void)vsnprintf(text, sizeof(text), format, ap); /* longer messages are cut */
	va_end(ap);
	if (log_target.hook)
		log_target.hook(level, text, log_target.arg);
	else
		fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
	errno = saved_errno;
}
