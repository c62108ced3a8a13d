/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "skip.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool skip_has(const struct skip *s, unsigned class, unsigned number)
{
	return number < SKIP_MAX && s->bits[class][number / 64] >> number % 64 & 1;
}

void skip_set(struct skip *s, unsigned class, unsigned number, bool skip)
{
	uint64_t bit = 1ull << number % 64;

	if (number >= SKIP_MAX)
		return;
	if (skip)
		s->bits[class][number / 64] |= bit;
	else
		s->bits[class][number / 64] &= ~bit;
}

static bool parse_class(const char **at, unsigned *ret)
{
	static const char letters[] = "fmc";
	const char *l = **at ? strchr(letters, **at) : NULL;

	if (l) {
		*ret = (unsigned)(l - letters);
		++*at;
		return true;
	}
	if ((*at)[0] != 'w' || (*at)[1] < '0' || (*at)[1] > '7' || (*at)[2] != ':')
		return false;
	*ret = SKIP_WORKER + (unsigned)((*at)[1] - '0');
	*at += 3;
	return true;
}

bool skip_parse(const char *text, struct skip *ret)
{
	memset(ret, 0, sizeof(*ret));
	while (*text) {
		unsigned long first, last;
		unsigned class;
		char *end;

		if (!parse_class(&text, &class))
			return false;
		first = last = strtoul(text, &end, 10);
		if (end == text)
			return false;
		if (*end == '-') {
			text = end + 1;
			last = strtoul(text, &end, 10);
			if (end == text)
				return false;
		}
		if (last >= SKIP_MAX || (*end && *end != ','))
			return false;
		while (first <= last)
			skip_set(ret, class, (unsigned)first++, true);
		text = end + (*end == ',');
	}
	return true;
}

bool skip_print(const struct skip *s, char *text, size_t bytes)
{
	size_t n = 0;

	*text = 0;
	for (unsigned class = 0; class < SKIP_CLASSES; class++) {
		for (unsigned i = 0; i < SKIP_MAX; i++) {
			unsigned first = i;
			char name[4] = {"fmcw"[class < SKIP_WORKER ? class : 3], 0};

			if (!skip_has(s, class, i))
				continue;
			if (class >= SKIP_WORKER)
				snprintf(name + 1, 3, "%c:", (char)('0' + class - SKIP_WORKER));
			while (skip_has(s, class, i + 1))
				i++;
			n += (size_t)snprintf(text + n, bytes - n, "%s%s%u", n ? "," : "", name, first);
			if (n < bytes && i > first)
				n += (size_t)snprintf(text + n, bytes - n, "-%u", i);
			if (n >= bytes)
				return false;
		}
	}
	return true;
}
