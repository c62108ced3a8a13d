/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one printer of a filesystem's geometry, for mkfs and info. It reads the JSON that the
 * daemon's `info` gives, which print_table_json makes of a table for filesystems that are not
 * mounted.
 */
#ifndef TOOLS_PRINT_H
#define TOOLS_PRINT_H

#include "raid/table.h"
#include <jansson.h>
#include <stdio.h>

/* paths: where each member is now, NULL for those that are not there; itself NULL: where they were
 * last seen. */
json_t *print_table_json(const struct table *table, const char *const *paths);
void print_geometry(FILE *out, const json_t *info);
/* One line, indented if the output is a terminal; and frees it. 0 or -EIO. */
int print_json(json_t *value);

#endif
