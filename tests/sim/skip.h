/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What of a seed is left out, for shrinking it. Everything that may be left out has a class and a number in
 * it, in order of its turn. Each draws from a generator of its own (rig_fork), so that leaving one out changes
 * the others as little as can be.
 */
#ifndef SIM_SKIP_H
#define SIM_SKIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum skip_class {
	SKIP_FAULT,  /* f: a fault is not armed */
	SKIP_MEDDLE, /* m: no scrub, replacement, pulling, loss, damage */
	SKIP_CRASH,  /* c: a crash is not armed; the round ends with one all the same */
	SKIP_WORKER, /* w0: the first worker's operations; one class each */
	SKIP_CLASSES = SKIP_WORKER + 8,
};
#define SKIP_MAX 16384 /* of a class */

struct skip {
	uint64_t bits[SKIP_CLASSES][SKIP_MAX / 64];
};
bool skip_has(const struct skip *s, unsigned class, unsigned number);
void skip_set(struct skip *s, unsigned class, unsigned number, bool skip);
/* "f3,f7-9,m0,w1:5-80". False: not such a list. */
bool skip_parse(const char *text, struct skip *ret);
/* Cut off if it does not fit; false then. */
bool skip_print(const struct skip *s, char *text, size_t bytes);

#endif
