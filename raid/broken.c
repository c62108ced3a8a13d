// SPDX-License-Identifier: GPL-2.0-or-later
/* Which safeguard is out, in a build with -Dbreak=all; no part of any other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broken.h"

enum broken broken_now;

__attribute__((constructor)) static void broken_choose(void)
{
#define BREAK_TEXT(name) #name,
	static const char *const names[] = {"none", BREAKS(BREAK_TEXT)};
#undef BREAK_TEXT
	const char *wanted = getenv("TRUSSFS_BREAK");

	for (unsigned i = 0; wanted && i < BREAK_COUNT; i++) {
		if (!strcmp(wanted, names[i])) {
			broken_now = (enum broken)i;
			return;
		}
	}
	if (!wanted)
		return;
	fprintf(stderr, "TRUSSFS_BREAK: no safeguard is named %s\n", wanted);
	exit(2);
}
