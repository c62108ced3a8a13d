/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the files of the FUSE front end share: fuse.c has the session, fuse_ops.c and fuse_file.c
 * the handlers. Included by nobody else.
 */
#ifndef FS_FUSE_OPS_H
#define FS_FUSE_OPS_H

#define FUSE_USE_VERSION 314

#include "fuse.h"
#include "raid/co.h"
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>

#define TIMEOUT_S	86400.0 /* attributes and names in the kernel, see fuse.c */
#define WRITE_BYTES_MAX (1u << 20)
#define SMALL_BYTES	1024u
/*
 * Receive buffers. More than the kernel keeps in flight of its own (BACKGROUND_MAX): writes that
 * hang must leave one to read STATFS with.
 */
#define LARGE_MAX      192u
#define BACKGROUND_MAX 128u /* asynchronous requests the kernel keeps in flight */

/* A message being worked on. */
struct request {
	struct fs_fuse *front;
	struct request *next; /* free list */
	char *msg;
	size_t len_bytes;
	char *large; /* the receive buffer it keeps, or NULL */
	_Alignas(16) char small[SMALL_BYTES];
};

struct fs_fuse {
	struct fs *fs;
	struct loop *loop;
	struct uring *uring;
	struct uring_watch *watch;
	struct fs_fuse_options options;
	struct fs_fuse_hooks hooks;
	struct fuse_session *se;
	int fd;
	bool gone;
	bool busy;    /* the last round found something: look again without waiting for the watch */
	bool stalled; /* no memory for another request */
	struct request *current; /* set for a handler until its first wait */
	struct request *free;
	unsigned allocated, active;
	struct co_cond idle;
	char *region; /* LARGE_MAX receive buffers; touched only as far as they are needed */
	char *large[LARGE_MAX];
	unsigned large_count;
	/* Open files. Only what the second kind has open may have dirty pages in the kernel. */
	struct list readers, writers;
	uint64_t init_unique; /* of the INIT being answered */
	uint32_t init_offered; /* flags that the kernel sent with it */
};

/* An open file. */
struct handle {
	struct list node; /* in fs_fuse.writers or readers */
	uint64_t ino;
	struct fs_errseq err;
};

static inline struct fs_fuse *front_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* ---- fuse_ops.c ---- */

extern const struct fuse_lowlevel_ops fuse_ops;
/* A whole message that libfuse does not decode: answers it (yields). False: it is libfuse's. */
bool front_raw(struct fs_fuse *f, const struct fuse_in_header *in, size_t len);
/* An answer without libfuse. ret_error: why nobody received it; may be NULL. */
void front_reply_raw(struct fs_fuse *f, uint64_t unique, int r, const void *body, size_t len,
		     int *ret_error);
void front_error(fuse_req_t req, int r);
struct fs_cred front_cred(fuse_req_t req);
void front_entry(const struct fs_attr *a, struct fuse_entry_param *e);
/*
 * -o dirsync, -o sync: what has got a name and a reference is durable before it is answered. r: how
 * making it went. On failure the reference is put.
 */
int front_made(struct fs_fuse *f, int r, const struct fs_attr *a);

/* ---- fuse_file.c ---- */

struct handle *handle_new(struct fs_fuse *f, uint64_t ino, int flags);
void handle_free(struct handle *h);
void fuse_file_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fuse_file_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi);
void fuse_file_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fuse_file_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void fuse_file_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
		     struct fuse_file_info *fi);
void fuse_file_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fuse_file_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void fuse_file_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi);
void fuse_file_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		     struct fuse_file_info *fi);
/*
 * Makes the kernel give us what it has cached of a file that is about to replace another one, see
 * fuse_file.c. Yields. -errno: not done.
 */
int fuse_file_launder_for_rename(struct fs_fuse *f, uint64_t parent, const char *name,
				 uint64_t new_parent, const char *new_name);

#endif
