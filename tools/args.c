/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Arguments and numbers. Pure.
 */
#include "args.h"
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

int size_parse(const char *text, uint64_t *ret)
{
	static const char units[] = "kmgtpe";
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	uint64_t whole = strtoull(text, &end, 10);
	double fraction = 0;
	if (errno == ERANGE)
		return -ERANGE;
	if (*end == '.') {
		/* By hand: strtod follows the locale. */
		double place = 0.1;
		for (end++; *end >= '0' && *end <= '9'; end++, place /= 10)
			fraction += (*end - '0') * place;
	}
	uint64_t unit = 1;
	if (*end) {
		const char *u = strchr(units, *end | 0x20);
		if (u && *u) {
			const char *rest = end + 1;
			uint64_t base = 1024;
			if (!strcasecmp(rest, "b"))
				base = 1000;
			else if (*rest && strcasecmp(rest, "ib"))
				return -EINVAL;
			for (long i = 0; i <= u - units; i++)
				unit *= base;
		} else if (strcasecmp(end, "b") != 0) {
			return -EINVAL;
		}
	}
	if (whole > UINT64_MAX / unit - 1)
		return -ERANGE;
	*ret = whole * unit + (uint64_t)(fraction * (double)unit);
	return 0;
}

const char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	unsigned i = 0;
	uint64_t unit = 1;

	while (i + 1 < ARRAY_SIZE(units) && bytes / unit >= 1024) {
		unit *= 1024;
		i++;
	}
	if (bytes % unit == 0)
		snprintf(out, SIZE_TEXT_BYTES, "%llu %s", (unsigned long long)(bytes / unit),
			 units[i]);
	else
		snprintf(out, SIZE_TEXT_BYTES, "%.2f %s", (double)bytes / (double)unit, units[i]);
	return out;
}

const char *duration_text(uint64_t s, char out[SIZE_TEXT_BYTES])
{
	unsigned long long n = s;

	if (s >= 3600)
		snprintf(out, SIZE_TEXT_BYTES, "%llu h %02llu min", n / 3600, n / 60 % 60);
	else if (s >= 60)
		snprintf(out, SIZE_TEXT_BYTES, "%llu min %02llu s", n / 60, n % 60);
	else
		snprintf(out, SIZE_TEXT_BYTES, "%llu s", n);
	return out;
}

int fail(int code, const char *tool, const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "%s: ", tool);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
	return code;
}
