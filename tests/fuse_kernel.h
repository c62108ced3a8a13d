/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The kernel's side of FUSE, played by a test: it speaks the protocol as linux/fuse.h has it, to
 * the front end unmodified, in the same process and without a mount. What the front end asks of the
 * system (open of /dev/fuse, mount, umount2, statx, read, writev) is caught at link time (--wrap),
 * and goes to a socket pair that keeps message boundaries.
 *
 * The front end runs in a thread of its own; the test is the thread that calls these functions,
 * which wait for the answers. An answer that does not come within a minute ends the test.
 */
#ifndef TESTS_FUSE_KERNEL_H
#define TESTS_FUSE_KERNEL_H

#include <linux/fuse.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* sem_wait, which io_uring interrupts. */
static inline void sem_down(sem_t *s)
{
	while (sem_wait(s) < 0)
		;
}

#define FK_LOST (-9999) /* the error of an answer that fk_lose_reply took away */

/* What the front end meets; set before it opens. */
struct fk_setup {
	int open_error, mount_error; /* of /dev/fuse and of mount(2): an errno, or 0 */
};
void fk_start(const struct fk_setup *setup);
/* Closes what is left. */
void fk_end(void);

/* What mount(2) was called with; empty when it was not. */
struct fk_mounted {
	char source[256], target[256], type[64], data[256];
	unsigned long flags;
	unsigned unmounts;
	int umount_flags;
};
const struct fk_mounted *fk_mounted(void);
/* Waits until the front end has mounted. */
void fk_wait_mounted(void);

/* What the front end wrote into the mount's read_ahead_kb; 0: nothing. */
unsigned fk_readahead_kb(void);

/* The header of the messages that follow. */
struct fk_cred {
	uint32_t uid, gid, pid;
};
extern struct fk_cred fk_cred;

/* A message: begun, filled, and sent by one of the last two. */
void fk_begin(uint32_t opcode, uint64_t nodeid);
void fk_add(const void *bytes, size_t len);
void fk_add_name(const char *name); /* with its NUL */
uint64_t fk_send(void);		    /* its unique number */

struct fk_reply {
	int error; /* 0 or negative */
	size_t len;
	char *data; /* until the next call, aligned */
};
/* Sends and waits. */
struct fk_reply fk_run(void);
struct fk_reply fk_wait(uint64_t unique);
/* Whether it has been answered by now. */
bool fk_answered(uint64_t unique);

/* Often enough: opcode, node, fixed argument (may be NULL), name (may be NULL). */
struct fk_reply fk_call(uint32_t opcode, uint64_t nodeid, const void *arg, size_t len,
			const char *name);

/* INIT as a kernel with these capabilities does. */
struct fk_reply fk_init(uint32_t minor, uint32_t flags, uint32_t flags2);
#define FK_KERNEL_FLAGS                                                                            \
	(FUSE_ASYNC_READ | FUSE_POSIX_LOCKS | FUSE_ATOMIC_O_TRUNC | FUSE_EXPORT_SUPPORT |          \
	 FUSE_BIG_WRITES | FUSE_DONT_MASK | FUSE_SPLICE_WRITE | FUSE_SPLICE_MOVE |                 \
	 FUSE_SPLICE_READ | FUSE_FLOCK_LOCKS | FUSE_HAS_IOCTL_DIR | FUSE_AUTO_INVAL_DATA |         \
	 FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO | FUSE_WRITEBACK_CACHE |     \
	 FUSE_NO_OPEN_SUPPORT | FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV | FUSE_POSIX_ACL |     \
	 FUSE_ABORT_ERROR | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS | FUSE_NO_OPENDIR_SUPPORT |       \
	 FUSE_EXPLICIT_INVAL_DATA | FUSE_HANDLE_KILLPRIV_V2 | FUSE_SETXATTR_EXT | FUSE_INIT_EXT)

/* The next read of /dev/fuse fails with this error, as when a request was interrupted meanwhile
 * (ENOENT). */
void fk_fail_read(int error);
/* The next read gives these bytes, which are no whole message. */
void fk_send_raw(const void *bytes, size_t len);
/* Whoever waited for the next answer is gone: the front end's write of it fails with ENOENT. */
void fk_lose_reply(void);
/* Unmounted: the device says ENODEV. */
void fk_unmount(void);

/*
 * INVAL_INODE: hook is called by the thread that notifies, which the kernel keeps until every dirty
 * page has been written: in the hook the test says so by returning. NULL: at once.
 */
void fk_on_inval(void (*hook)(uint64_t ino, int64_t off, int64_t len));
/* How many came, and the last one. */
unsigned fk_invals(struct fuse_notify_inval_inode_out *ret_last);

#endif
