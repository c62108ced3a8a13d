/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The real world: one io_uring that carries member I/O, readiness of file descriptors and the loop's
 * waiting. Device files are opened with O_DIRECT.
 */
#ifndef RAID_URING_H
#define RAID_URING_H

#include "base.h"
#include "io.h"
#include "loop.h"

struct uring;

/*
 * -ENOSYS or -EPERM, and a message, when the kernel has no io_uring (5.11 is needed) or an administrator has
 * disabled it. Used only by the thread and process that made it: fork first.
 */
int uring_new(struct uring **ret);
/* All devices are closed. Takes NULL. */
void uring_free(struct uring *u);
/* What loop_new takes. */
extern const struct loop_backend uring_backend;

enum {
	DEV_OPEN_READ_ONLY = 1,
	DEV_OPEN_SHARED = 2, /* without the exclusive lock: for list and info, read only */
};
/*
 * Opens a block device (exclusively: O_EXCL) or an image file (flock exclusive, not waited for).
 * -EBUSY when somebody has it; -ENOTBLK for anything else. The message is logged, naming the path.
 */
int uring_dev_open(struct uring *u, struct loop *loop, const char *path, unsigned flags, struct dev **ret);
/* The open file behind a device, for libblkid and ioctls. */
int uring_dev_fd(struct dev *dev);

/*
 * Calls ready(arg) in loop context whenever fd is readable (level: again next round while it stays so).
 * The callback must not yield. -ENOMEM.
 */
struct uring_watch;
int uring_watch(struct uring *u, int fd, void (*ready)(void *arg), void *arg, struct uring_watch **ret);
void uring_unwatch(struct uring *u, struct uring_watch *w);

#endif
