/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Talking to the daemon of a mounted filesystem.
 */
#ifndef TOOLS_CLIENT_H
#define TOOLS_CLIENT_H

#include "fs/rundir.h"
#include <jansson.h>

/*
 * Finds the daemon of what a user names: a mount point, a label, a UUID (LABEL= and UUID= may stand
 * before them). -ENOENT: not mounted; -EEXIST: several have that label. Nothing is printed.
 */
int client_find(const char *name, struct rundir_entry *ret);
/*
 * Sends a request and waits for its answer; takes the request over. NULL and errno without an
 * answer. The answer may hold "error".
 */
json_t *client_ask(const struct rundir_entry *entry, json_t *request);

#endif
