/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * cmocka's assertions jump to the end of the test, which must not be done from a coroutine's stack. These end the program
 * instead, which is a failure too. Included behind cmocka.h.
 */
#ifndef TESTS_DIE_H
#define TESTS_DIE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define die(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                    \
		fprintf(stderr, __VA_ARGS__);                                                      \
		fprintf(stderr, "\n");                                                             \
		exit(1);                                                                           \
	} while (0)
#undef assert_true
#undef assert_int_equal
#undef assert_int_not_equal
#undef assert_string_equal
#undef assert_string_not_equal
#undef assert_memory_equal
#define assert_true(x)                                                                             \
	do {                                                                                       \
		if (!(x))                                                                          \
			die("not so: %s", #x);                                                     \
	} while (0)
#define assert_int_equal(a, b)                                                                     \
	do {                                                                                       \
		long long eq_a = (long long)(a), eq_b = (long long)(b);                            \
		if (eq_a != eq_b)                                                                  \
			die("%s is %lld, not %lld", #a, eq_a, eq_b);                               \
	} while (0)
#define assert_int_not_equal(a, b)    assert_true((a) != (b))
#define assert_string_not_equal(a, b) assert_true(strcmp(a, b) != 0)
#define assert_memory_equal(a, b, n)  assert_true(memcmp(a, b, n) == 0)
#define assert_string_equal(a, b)                                                                  \
	do {                                                                                       \
		if (strcmp(a, b) != 0)                                                             \
			die("%s is \"%s\", not \"%s\"", #a, a, b);                                 \
	} while (0)
#undef assert_false
#undef assert_non_null
#undef fail_msg
#define assert_false(x)	   assert_true(!(x))
#define assert_non_null(x) assert_true((x) != NULL)
#define fail_msg(...)	   die(__VA_ARGS__)

#endif
