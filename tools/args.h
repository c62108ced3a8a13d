/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What all programs share of reading their arguments and printing numbers.
 */
#ifndef TOOLS_ARGS_H
#define TOOLS_ARGS_H

#include "raid/base.h"

#define VERSION_LINE "%s (trussfs) " TRUSSFS_VERSION "\n"

/* "64k", "1.5GiB", "4096": powers of 1024, with or without iB; "100MB": powers of 1000. -EINVAL,
 * -ERANGE. */
int size_parse(const char *text, uint64_t *ret);
/* "1.50 TiB"; exact where it is a whole number: "64 KiB". */
#define SIZE_TEXT_BYTES 32
const char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]);
/* "2 h 05 min", "3 min 20 s", "12 s". */
const char *duration_text(uint64_t seconds, char out[SIZE_TEXT_BYTES]);
/* `tool: object: text`; returns code for `return fail(...)`. */
int fail(int code, const char *tool, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
