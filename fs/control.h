/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control socket: one JSON object a line, each answered by one line.
 *
 *   {"op": "ping" | "status" | "info" | "sync" | "scrub-start" | "scrub-cancel"}
 *   {"op": "fail", "member": INDEX}
 *   {"op": "replace", "member": INDEX, "path": DEVICE}
 *
 * Answers carry "version": 1, and "error" with "errno" if it failed. status and info come from
 * memory and never wait for a device. What needs one runs in a coroutine of its own.
 */
#ifndef FS_CONTROL_H
#define FS_CONTROL_H

#include "fs.h"
#include "raid/uring.h"

#define CONTROL_VERSION 1

struct control;

struct control_options {
	const char *socket_path;
	const char *mount_point, *source;
};

/* -errno, message logged. */
int control_open(struct fs *fs, struct raid *raid, struct loop *loop, struct uring *uring,
		 const struct control_options *options, struct control **ret);
/*
 * From now on only ping, status and info are answered (state "closing"). Waits (coroutine) for what
 * is under way.
 */
void control_drain(struct control *control);
/* Takes NULL. After control_drain. */
void control_close(struct control *control);

#endif
