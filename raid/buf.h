/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pool of I/O memory: one region of a stated size, aligned to the block, handed out as runs of
 * blocks by a buddy allocator. Nothing else is given to member I/O.
 *
 * Memory of an I/O that missed its deadline may still be read or written by the device, so the device layer
 * pins it until the device has really let go; buf_put of pinned memory is carried out then.
 */
#ifndef RAID_BUF_H
#define RAID_BUF_H

#include "base.h"

#define BUF_BYTES_MAX (4u << 20) /* one allocation */

/* One pool a process, since buffers cross every layer. bytes is rounded up to BUF_BYTES_MAX. -ENOMEM. */
int buf_pool_init(size_t bytes);
void buf_pool_exit(void);
/*
 * At least `bytes` (rounded up to a power of two of blocks), block-aligned, content undefined.
 * NULL when the pool has none left: callers on the request path use buf_get_wait.
 */
void *buf_get(size_t bytes);
/*
 * Waits (coroutine) until there is some. First come, first served among those who wait; buf_get may overtake
 * them, since what needs memory without waiting often gives more back. Never wait while holding pool
 * memory that others of your kind need too.
 */
void *buf_get_wait(size_t bytes);
/*
 * The same for who serves those that wait in buf_get_wait, or hold what they got there: the last 1/BUF_BELOW_SHARE of the
 * pool is kept for them, and they do not stand behind the others.
 */
#define BUF_BELOW_SHARE 4u
void *buf_get_wait_below(size_t bytes);
/* p is what buf_get returned, or NULL. */
void buf_put(void *p);
bool buf_in_pool(const void *p);
/* Any address inside an allocation. Pins nest. */
void buf_pin(const void *p);
void buf_unpin(const void *p);
size_t buf_pool_free_bytes(void);
size_t buf_pool_bytes(void);
/* Allocations that were never put: for tests, 0 at the end. */
size_t buf_pool_used_bytes(void);

#endif
