// SPDX-License-Identifier: GPL-2.0-or-later
/* Of a unit test program TRUSSFS_TEST names the tests that run, `*` and `?` as in names of files; all without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

__attribute__((constructor)) static void filter_set(void)
{
	const char *pattern = getenv("TRUSSFS_TEST");

	if (pattern)
		cmocka_set_test_filter(pattern);
}
