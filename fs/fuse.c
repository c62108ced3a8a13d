/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The FUSE front end.
 *
 * Requests are read from /dev/fuse by the loop thread whenever the descriptor is readable, many in
 * a row, and each is handed to libfuse's decoder inside a coroutine of its own. So the handlers
 * below are straight code: they call fs.h, which may wait for members, and then reply; the
 * decoder's frame simply stays on the coroutine's stack meanwhile. No request holds a thread.
 *
 * Memory. A message of up to SMALL_BYTES (everything but writes, long xattrs and symlinks) is
 * copied into its request, so one large receive buffer, hot in the cache, serves nearly all of
 * them. A larger one keeps the buffer it was read into until its coroutine ends, and the next read
 * takes another. Both kinds have a maximum; when one is used up we stop reading, the kernel queues,
 * and reading goes on as soon as a request ends. This cannot deadlock: no request waits for another
 * one to be received (write-back is done by the filesystem itself). Receive buffers begin so that
 * the payload of a WRITE is block-aligned.
 *
 * What never waits (FORGET, STATFS, INTERRUPT ...) is answered without a coroutine, so that `df`
 * works while everything else hangs on a device, and a FORGET cannot fail for memory.
 *
 * We mount by ourselves, with mount(2), and give libfuse the descriptor (fuse_session_custom_io),
 * because its reply to INIT has to be amended: libfuse 3.14 does not know FUSE_HANDLE_KILLPRIV_V2,
 * without which the kernel asks for security.capability before every single write(2). With it the
 * kernel says in each write whether set-id bits must go; libfuse does not pass that on, so handlers
 * look at the raw message. Two requests that libfuse 3.14 has no handler for are decoded here:
 * TMPFILE (O_TMPFILE) and STATX (birth time).
 *
 * On purpose without a handler, so that the kernel does it and stops asking: access
 * (default_permissions), locks (there is only this kernel), ioctl, bmap, poll, copy_file_range
 * (falls back to splicing).
 *
 * Attributes and names are cached by the kernel for TIMEOUT_S, absent names too: nobody but this
 * kernel changes anything. The one exception, set-id bits cleared by a write, is told to it.
 */
#define FUSE_USE_VERSION 314

#include "fuse.h"
#include "raid/buf.h"
#include "raid/co.h"
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#define TIMEOUT_S	 86400.0
#define WRITE_BYTES_MAX	 (1u << 20)
#define SMALL_BYTES	 1024u
#define REQUESTS_MAX	 1024u
/* More than the kernel keeps in flight of its own (BACKGROUND_MAX): writes that hang must leave one to read STATFS with. */
#define LARGE_MAX	 192u
#define ROUND_MAX	 64u  /* requests taken before members get their turn */
#define BACKGROUND_MAX	 128u /* asynchronous requests the kernel keeps in flight */
static_assert(LARGE_MAX > BACKGROUND_MAX && REQUESTS_MAX > LARGE_MAX, "see LARGE_MAX");
#define READAHEAD_KB	 4096u
#define READ_RETRIES	 3
#define WRITE_HEAD_BYTES (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
/* What libfuse and the kernel want of a receive buffer, and room to align. */
#define LARGE_BYTES (WRITE_BYTES_MAX + 4 * BLOCK_BYTES)

/* Newer than the oldest kernel headers we build with. */
#define OPCODE_TMPFILE 51
#define OPCODE_STATX   52
#ifndef FUSE_HANDLE_KILLPRIV_V2
#define FUSE_HANDLE_KILLPRIV_V2 (1 << 28)
#endif
static_assert(sizeof(struct fuse_in_header) == 40, "protocol");
static_assert(sizeof(struct fuse_write_in) == 40, "protocol");

struct statx_time_out {
	int64_t s;
	uint32_t ns;
	int32_t reserved;
};
/* struct fuse_statx_in and fuse_statx_out of protocol 7.39. */
struct statx_in {
	uint32_t getattr_flags, reserved;
	uint64_t fh;
	uint32_t sx_flags, sx_mask;
};
struct statx_out {
	uint64_t attr_valid;
	uint32_t attr_valid_ns, flags;
	uint64_t spare0[2];
	uint32_t mask, blksize;
	uint64_t attributes;
	uint32_t nlink, uid, gid;
	uint16_t mode, spare1;
	uint64_t ino, size, blocks, attributes_mask;
	struct statx_time_out atime, btime, ctime, mtime;
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t spare2[14];
};
static_assert(sizeof(struct statx_out) == 32 + 256, "protocol");

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
	bool killpriv_v2;     /* the kernel offers it */
};

/* An open file. */
struct handle {
	struct list node; /* in fs_fuse.writers or readers */
	uint64_t ino;
	struct fs_errseq err;
};

static struct fs_fuse *front_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static struct handle *handle_of(const struct fuse_file_info *fi)
{
	return fi ? (struct handle *)(uintptr_t)fi->fh : NULL;
}

/* ---- translation ---- */

static void attr_to_stat(const struct fs_attr *a, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = a->ino;
	st->st_mode = a->mode;
	st->st_nlink = a->links;
	st->st_uid = a->uid;
	st->st_gid = a->gid;
	st->st_rdev = makedev(a->rdev_major, a->rdev_minor);
	st->st_size = (off_t)a->size;
	st->st_blocks = (blkcnt_t)a->blocks512;
	st->st_blksize = BLOCK_BYTES;
	st->st_atim = a->atime;
	st->st_mtim = a->mtime;
	st->st_ctim = a->ctime;
}

static void attr_to_entry(const struct fs_attr *a, struct fuse_entry_param *e)
{
	memset(e, 0, sizeof(*e));
	e->ino = a->ino;
	e->generation = a->generation;
	e->attr_timeout = TIMEOUT_S;
	e->entry_timeout = TIMEOUT_S;
	attr_to_stat(a, &e->attr);
}

/* For the requests that libfuse does not decode. */
static void attr_to_wire(const struct fs_attr *a, struct fuse_attr *w)
{
	memset(w, 0, sizeof(*w));
	w->ino = a->ino;
	w->size = a->size;
	w->blocks = a->blocks512;
	w->atime = (uint64_t)a->atime.tv_sec;
	w->mtime = (uint64_t)a->mtime.tv_sec;
	w->ctime = (uint64_t)a->ctime.tv_sec;
	w->atimensec = (uint32_t)a->atime.tv_nsec;
	w->mtimensec = (uint32_t)a->mtime.tv_nsec;
	w->ctimensec = (uint32_t)a->ctime.tv_nsec;
	w->mode = a->mode;
	w->nlink = a->links;
	w->uid = a->uid;
	w->gid = a->gid;
	w->rdev = (uint32_t)makedev(a->rdev_major, a->rdev_minor);
	w->blksize = BLOCK_BYTES;
}

static struct fs_cred cred_of(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	return (struct fs_cred){.uid = ctx->uid, .gid = ctx->gid, .umask = ctx->umask};
}

static void reply_error(fuse_req_t req, int r)
{
	/* A reply fails only if the request is no longer there: then nobody waits for it. */
	(void)fuse_reply_err(req, -r);
}

/* Answers with an entry that carries a reference, and takes the reference back if nobody received
 * it. */
static void reply_entry(fuse_req_t req, int r, const struct fs_attr *a)
{
	struct fs_fuse *f = front_of(req);
	struct fuse_entry_param e;

	if (r < 0) {
		reply_error(req, r);
		return;
	}
	attr_to_entry(a, &e);
	if (fuse_reply_entry(req, &e) < 0)
		fs_unref(f->fs, a->ino, 1);
}

/* -o dirsync, -o sync: a change of names is durable before it is answered. */
static int names_done(struct fs_fuse *f, int r)
{
	if (r < 0 || !(f->options.mount_flags & (MS_DIRSYNC | MS_SYNCHRONOUS)))
		return r;
	return fs_fsync(f->fs, FS_ROOT_INO, false, NULL);
}

/* The same for what has got a name and a reference. */
static int made(struct fs_fuse *f, int r, const struct fs_attr *a)
{
	int done = names_done(f, r);

	if (r == 0 && done < 0)
		fs_unref(f->fs, a->ino, 1);
	return done;
}

/* ---- names and inodes ---- */

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_attr a;
	int r = fs_lookup(front_of(req)->fs, parent, name, &a);

	if (r == -ENOENT) {
		/* Remembered by the kernel as absent. */
		struct fuse_entry_param e = {.entry_timeout = TIMEOUT_S};
		(void)fuse_reply_entry(req, &e); /* see reply_error */
		return;
	}
	reply_entry(req, r, &a);
}

static void forget_one(struct fs_fuse *f, uint64_t ino, uint64_t count)
{
	if (ino != FS_ROOT_INO && count)
		fs_unref(f->fs, ino, count);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	forget_one(front_of(req), ino, count);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		forget_one(front_of(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_attr a;
	struct stat st;
	int r = fs_getattr(front_of(req)->fs, ino, &a);

	if (r < 0) {
		reply_error(req, r);
		return;
	}
	attr_to_stat(&a, &st);
	(void)fuse_reply_attr(req, &st, TIMEOUT_S); /* see reply_error */
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
		       struct fuse_file_info *fi)
{
	static const struct {
		int fuse;
		unsigned fs;
	} map[] = {
	    {FUSE_SET_ATTR_MODE, FS_SET_MODE},
	    {FUSE_SET_ATTR_UID, FS_SET_UID},
	    {FUSE_SET_ATTR_GID, FS_SET_GID},
	    {FUSE_SET_ATTR_SIZE, FS_SET_SIZE},
	    {FUSE_SET_ATTR_ATIME, FS_SET_ATIME},
	    {FUSE_SET_ATTR_MTIME, FS_SET_MTIME},
	    {FUSE_SET_ATTR_ATIME_NOW, FS_SET_ATIME_NOW},
	    {FUSE_SET_ATTR_MTIME_NOW, FS_SET_MTIME_NOW},
	    {FUSE_SET_ATTR_CTIME, FS_SET_CTIME},
	};
	struct fs_fuse *f = front_of(req);
	const struct fuse_setattr_in *in =
	    (const void *)(f->current->msg + sizeof(struct fuse_in_header));
	struct fs_attr a = {
	    .mode = st->st_mode,
	    .uid = st->st_uid,
	    .gid = st->st_gid,
	    .size = (uint64_t)st->st_size,
	    .atime = st->st_atim,
	    .mtime = st->st_mtim,
	    .ctime = st->st_ctim,
	};
	struct fs_attr now;
	struct stat out;
	unsigned set = 0;

	for (size_t i = 0; i < ARRAY_SIZE(map); i++) {
		if (to_set & map[i].fuse)
			set |= map[i].fs;
	}
	/* The kernel sends both bits of a time that is to be the present one. */
	if (set & FS_SET_ATIME_NOW)
		set &= ~FS_SET_ATIME;
	if (set & FS_SET_MTIME_NOW)
		set &= ~FS_SET_MTIME;
	if (in->valid & FATTR_KILL_SUIDGID)
		set |= FS_SET_KILL_SUIDGID;
	int r = fs_setattr(f->fs, ino, &a, set, &now);
	if (r < 0) {
		reply_error(req, r);
		return;
	}
	attr_to_stat(&now, &out);
	(void)fuse_reply_attr(req, &out, TIMEOUT_S); /* see reply_error */
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char *target = buf_get_wait(BLOCK_BYTES);
	int r = fs_readlink(front_of(req)->fs, ino, target, BLOCK_BYTES);

	if (r < 0)
		reply_error(req, r);
	else
		(void)fuse_reply_readlink(req, target); /* see reply_error */
	buf_put(target);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct fs_cred cred = cred_of(req);
	struct fs_attr a;
	int r =
	    fs_mknod(front_of(req)->fs, parent, name, mode, major(rdev), minor(rdev), &cred, &a);

	reply_entry(req, made(front_of(req), r, &a), &a);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fs_cred cred = cred_of(req);
	struct fs_attr a;
	int r = fs_mkdir(front_of(req)->fs, parent, name, mode, &cred, &a);

	reply_entry(req, made(front_of(req), r, &a), &a);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct fs_cred cred = cred_of(req);
	struct fs_attr a;
	int r = fs_symlink(front_of(req)->fs, parent, name, target, &cred, &a);

	reply_entry(req, made(front_of(req), r, &a), &a);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	struct fs_attr a;
	int r = fs_link(front_of(req)->fs, ino, parent, name, &a);

	reply_entry(req, made(front_of(req), r, &a), &a);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_fuse *f = front_of(req);

	reply_error(req, names_done(f, fs_unlink(f->fs, parent, name)));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_fuse *f = front_of(req);

	reply_error(req, names_done(f, fs_rmdir(f->fs, parent, name)));
}

/* ---- directories ---- */

struct dir_fill {
	fuse_req_t req;
	char *data;
	size_t used, cap;
	bool plus;
};

static bool dir_emit(void *arg, const char *name, uint64_t ino, unsigned dtype,
		     uint64_t cookie_next, const struct fs_attr *attr)
{
	struct dir_fill *d = arg;
	size_t left = d->cap - d->used, need;

	if (d->plus) {
		struct fuse_entry_param e;
		if (attr) {
			attr_to_entry(attr, &e);
		} else {
			memset(&e, 0, sizeof(e)); /* inode 0: "." and ".." carry no reference */
		}
		e.attr.st_ino = ino;
		e.attr.st_mode = attr ? attr->mode : (mode_t)DTTOIF(dtype);
		if (!strcmp(name, ".") || !strcmp(name, ".."))
			e.ino = 0;
		need = fuse_add_direntry_plus(d->req, d->data + d->used, left, name, &e,
					      (off_t)cookie_next);
	} else {
		struct stat st = {.st_ino = ino, .st_mode = (mode_t)DTTOIF(dtype)};
		need = fuse_add_direntry(d->req, d->data + d->used, left, name, &st,
					 (off_t)cookie_next);
	}
	if (need > left)
		return false;
	d->used += need;
	return true;
}

/* Nobody received the entries: gives their references back. */
static void dir_unref(struct fs_fuse *f, const struct dir_fill *d)
{
	size_t off = 0;

	while (off + FUSE_NAME_OFFSET_DIRENTPLUS <= d->used) {
		const struct fuse_direntplus *p = (const void *)(d->data + off);
		if (p->entry_out.nodeid)
			forget_one(f, p->entry_out.nodeid, 1);
		off += FUSE_DIRENTPLUS_SIZE(p);
	}
}

static void dir_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	struct fs_fuse *f = front_of(req);
	struct dir_fill d = {.req = req, .cap = MIN(size, (size_t)WRITE_BYTES_MAX), .plus = plus};

	d.data = buf_get_wait(d.cap);
	int r = fs_readdir(f->fs, ino, (uint64_t)off, plus, dir_emit, &d);
	/* An error after some entries comes up again at the next call, which starts there. */
	if (r < 0 && d.used == 0)
		reply_error(req, r);
	else if (fuse_reply_buf(req, d.data, d.used) < 0 && plus)
		dir_unref(f, &d);
	buf_put(d.data);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	dir_read(req, ino, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	dir_read(req, ino, size, off, true);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->fh = 0;
	(void)fuse_reply_open(req, fi); /* see reply_error */
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	reply_error(req, 0);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	reply_error(req, fs_fsync(front_of(req)->fs, ino, datasync, NULL));
}

/* ---- files ---- */

static struct handle *handle_new(struct fs_fuse *f, uint64_t ino, int flags)
{
	struct handle *h = mem_alloc(sizeof(*h));

	if (!h)
		return NULL;
	h->ino = ino;
	fs_errseq_sample(f->fs, ino, &h->err);
	list_add((flags & O_ACCMODE) == O_RDONLY ? &f->readers : &f->writers, &h->node);
	return h;
}

static void handle_free(struct handle *h)
{
	if (!h)
		return;
	list_del(&h->node);
	mem_free(h);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = handle_new(front_of(req), ino, fi->flags);

	if (!h) {
		reply_error(req, -ENOMEM);
		return;
	}
	fi->fh = (uintptr_t)h;
	fi->keep_cache = 1; /* nobody changes files behind the kernel's back */
	if (fuse_reply_open(req, fi) < 0)
		handle_free(h); /* interrupted: there will be no release */
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);
	struct fs_cred cred = cred_of(req);
	struct fuse_entry_param e;
	struct fs_attr a;

	int r = fs_mknod(f->fs, parent, name, (mode & ~(mode_t)S_IFMT) | S_IFREG, 0, 0, &cred, &a);
	r = made(f, r, &a);
	if (r < 0) {
		reply_error(req, r);
		return;
	}
	struct handle *h = handle_new(f, a.ino, fi->flags);
	if (!h) {
		fs_unref(f->fs, a.ino, 1);
		reply_error(req, -ENOMEM);
		return;
	}
	fi->fh = (uintptr_t)h;
	fi->keep_cache = 1;
	attr_to_entry(&a, &e);
	if (fuse_reply_create(req, &e, fi) < 0) {
		handle_free(h);
		fs_unref(f->fs, a.ino, 1);
	}
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	handle_free(handle_of(fi));
	reply_error(req, 0);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);
	uint64_t start = (uint64_t)off;
	int r = -EAGAIN;

	size = MIN(size, (size_t)WRITE_BYTES_MAX);
	size_t room = ROUND_UP(start + size, BLOCK_BYTES) - ROUND_DOWN(start, BLOCK_BYTES);
	/*
	 * -EAGAIN: a hung device may still write into the memory we gave. It stays pinned, and the
	 * next attempt, with other memory, does not ask that device.
	 */
	for (int i = 0; r == -EAGAIN && i < READ_RETRIES; i++) {
		void *data = buf_get_wait(MAX(room, (size_t)BLOCK_BYTES)), *found = NULL;
		size_t len = 0;
		r = fs_read(f->fs, ino, start, size, data, &found, &len);
		if (r >= 0)
			(void)fuse_reply_buf(req, found, len); /* see reply_error */
		buf_put(data);
	}
	if (r < 0)
		reply_error(req, r == -EAGAIN ? -EIO : r);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);
	const struct fuse_write_in *in =
	    (const void *)(f->current->msg + sizeof(struct fuse_in_header));
	bool kill = in->write_flags & FUSE_WRITE_KILL_SUIDGID;
	/*
	 * What comes from the kernel's cache may come late: its times are the kernel's, and come by
	 * SETATTR. With such a cache it keeps those of direct writes as well.
	 */
	bool cached = (in->write_flags & FUSE_WRITE_CACHE) || f->options.writeback_cache;

	int r = fs_write(f->fs, ino, (uint64_t)off, data, size,
			 (kill ? FS_WRITE_KILL_PRIV : 0) | (cached ? FS_WRITE_KEEP_TIMES : 0));
	if (r < 0) {
		reply_error(req, r);
		return;
	}
	/* The kernel goes on believing the mode it knows, for TIMEOUT_S. */
	if (kill)
		(void)fuse_lowlevel_notify_inval_inode(f->se, ino, -1, 0); /* -ENOENT: not cached */
	(void)fuse_reply_write(req, size);				   /* see reply_error */
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);

	reply_error(req, fs_flush(front_of(req)->fs, ino, h ? &h->err : NULL));
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);

	reply_error(req, fs_fsync(front_of(req)->fs, ino, datasync, h ? &h->err : NULL));
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);

	/* A kernel with a write-back cache has the times, and sends them. */
	if (f->options.writeback_cache)
		mode |= FS_FALLOC_KEEP_TIMES;
	reply_error(req, fs_fallocate(f->fs, ino, mode, (uint64_t)off, (uint64_t)len));
}

struct launder {
	struct fs_fuse *front;
	uint64_t ino;
	int event_fd;
	struct co *waiter;
};

static void *launder_thread(void *arg)
{
	struct launder *l = arg;
	int fd = l->event_fd;

	/* Blocks until we have answered a WRITE for each dirty page. -ENOENT: nothing cached. */
	(void)fuse_lowlevel_notify_inval_inode(l->front->se, l->ino, 0, 0);
	(void)eventfd_write(fd, 1); /* l may be gone from here on */
	return NULL;
}

static void launder_ready(void *arg)
{
	struct launder *l = arg;
	eventfd_t value;

	if (eventfd_read(l->event_fd, &value) == 0)
		co_wake(l->waiter);
}

/*
 * Makes the kernel write back a file's dirty pages. Coroutine; -errno: not done. The thread takes none
 * of the locks under which the kernel waits for our answer to LSEEK or RENAME.
 *
 * Before truncating, punching and copying the kernel does that by itself, before LSEEK it does not,
 * and would have SEEK_DATA skip what was just written. Invalidating is the one way of asking for it
 * that leads through the connection and takes no lock that the waiting lseek(2) holds (fsync does).
 */
static int launder(struct fs_fuse *f, uint64_t ino)
{
	struct launder l = {.front = f, .ino = ino, .waiter = co_self()};
	struct uring_watch *watch;
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	l.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l.event_fd < 0)
		return -errno;
	r = uring_watch(f->uring, l.event_fd, launder_ready, &l, &watch);
	if (r == 0) {
		pthread_attr_init(&attr);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		r = -pthread_create(&thread, &attr, launder_thread, &l);
		pthread_attr_destroy(&attr);
		if (r == 0)
			co_wait();
		uring_unwatch(f->uring, watch);
	}
	close(l.event_fd);
	return r;
}

static bool may_be_dirty(const struct fs_fuse *f, uint64_t ino)
{
	const struct handle *h;

	if (!f->options.writeback_cache)
		return false;
	list_for_each (h, &f->writers, node) {
		if (h->ino == ino)
			return true;
	}
	return false;
}

/*
 * Whoever replaces a file by renaming wants the old content or the new after a crash, also while the
 * new one is still open for writing: fs_rename sees to it for what we have been given, so the kernel
 * is to give us the rest. (It does so by itself when a file is closed.)
 */
static int rename_launder(struct fs_fuse *f, uint64_t parent, const char *name, uint64_t new_parent,
			  const char *new_name)
{
	struct fs_attr from, to;
	int r = 0;

	if (list_empty(&f->writers) || fs_lookup(f->fs, parent, name, &from) < 0)
		return 0; /* fs_rename says what is wrong */
	if (may_be_dirty(f, from.ino) && fs_lookup(f->fs, new_parent, new_name, &to) == 0) {
		r = launder(f, from.ino);
		fs_unref(f->fs, to.ino, 1);
	}
	fs_unref(f->fs, from.ino, 1);
	return r;
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
		      const char *new_name, unsigned flags)
{
	struct fs_fuse *f = front_of(req);
	int r = flags & (RENAME_NOREPLACE | RENAME_EXCHANGE)
		    ? 0
		    : rename_launder(f, parent, name, new_parent, new_name);

	if (r == 0)
		r = fs_rename(f->fs, parent, name, new_parent, new_name, flags);
	reply_error(req, names_done(f, r));
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);
	uint64_t found;
	int r = may_be_dirty(f, ino) ? launder(f, ino) : 0;

	if (r == 0)
		r = fs_lseek(f->fs, ino, (uint64_t)off, whence, &found);
	if (r < 0)
		reply_error(req, r);
	else
		(void)fuse_reply_lseek(req, (off_t)found); /* see reply_error */
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs_stat s;

	fs_statfs(front_of(req)->fs, &s);
	struct statvfs v = {
	    .f_bsize = BLOCK_BYTES,
	    .f_frsize = BLOCK_BYTES,
	    .f_blocks = s.blocks,
	    .f_bfree = s.blocks_free,
	    .f_bavail = s.blocks_avail,
	    .f_files = s.files,
	    .f_ffree = s.files_free,
	    .f_favail = s.files_free,
	    .f_namemax = FS_NAME_BYTES_MAX,
	};
	(void)fuse_reply_statfs(req, &v); /* see reply_error */
}

/* ---- extended attributes ---- */

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
			size_t size, int flags)
{
	/*
	 * Without FUSE_POSIX_ACL the kernel stores ACLs through us and enforces none: an entry that
	 * takes a right away must not seem to.
	 */
	if (!strncmp(name, "system.posix_acl_", strlen("system.posix_acl_"))) {
		reply_error(req, -EOPNOTSUPP);
		return;
	}
	reply_error(req, fs_setxattr(front_of(req)->fs, ino, name, value, size, flags));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	reply_error(req, fs_removexattr(front_of(req)->fs, ino, name));
}

/* name NULL: the list of names. size 0: only how long it is. */
static void xattr_read(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fs *fs = front_of(req)->fs;
	size_t cap = MIN(size, (size_t)FS_XATTR_VALUE_BYTES_MAX), len = 0;
	char *value = cap ? buf_get_wait(cap) : NULL;
	int r = name ? fs_getxattr(fs, ino, name, value, cap, &len)
		     : fs_listxattr(fs, ino, value, cap, &len);

	if (r < 0)
		reply_error(req, r);
	else if (!size)
		(void)fuse_reply_xattr(req, len); /* see reply_error */
	else
		(void)fuse_reply_buf(req, value, len); /* see reply_error */
	buf_put(value);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	xattr_read(req, ino, name, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	xattr_read(req, ino, NULL, size);
}

/* ---- what libfuse does not decode ---- */

static void raw_reply(struct fs_fuse *f, uint64_t unique, int r, const void *body, size_t len,
		      int *ret_error)
{
	struct fuse_out_header head = {
	    .len = (uint32_t)(sizeof(head) + (r < 0 ? 0 : len)),
	    .error = r,
	    .unique = unique,
	};
	struct iovec iov[2] = {
	    {.iov_base = &head, .iov_len = sizeof(head)},
	    {.iov_base = (void *)(uintptr_t)body, .iov_len = len},
	};
	ssize_t n = writev(f->fd, iov, r < 0 || !len ? 1 : 2);

	if (ret_error)
		*ret_error = n < 0 ? -errno : 0;
}

static void raw_tmpfile(struct fs_fuse *f, const struct fuse_in_header *in, size_t len)
{
	const struct fuse_create_in *arg = (const void *)(in + 1);
	struct {
		struct fuse_entry_out entry;
		struct fuse_open_out open;
	} out = {0};
	uint64_t unique = in->unique;
	struct fs_attr a;
	uint32_t flags;
	int r;

	if (len < sizeof(*in) + sizeof(*arg)) {
		raw_reply(f, unique, -EINVAL, NULL, 0, NULL);
		return;
	}
	struct fs_cred cred = {.uid = in->uid, .gid = in->gid, .umask = arg->umask};
	flags = arg->flags;
	r = fs_tmpfile(f->fs, in->nodeid, (arg->mode & ~(uint32_t)S_IFMT) | S_IFREG, &cred, &a);
	if (r < 0) {
		raw_reply(f, unique, r, NULL, 0, NULL);
		return;
	}
	struct handle *h = handle_new(f, a.ino, (int)flags);
	if (!h) {
		fs_unref(f->fs, a.ino, 1);
		raw_reply(f, unique, -ENOMEM, NULL, 0, NULL);
		return;
	}
	out.entry.nodeid = a.ino;
	out.entry.generation = a.generation;
	out.entry.entry_valid = out.entry.attr_valid = (uint64_t)TIMEOUT_S;
	attr_to_wire(&a, &out.entry.attr);
	out.open.fh = (uintptr_t)h;
	out.open.open_flags = FOPEN_KEEP_CACHE;
	raw_reply(f, unique, 0, &out, sizeof(out), &r);
	if (r < 0) {
		handle_free(h);
		fs_unref(f->fs, a.ino, 1);
	}
}

static struct statx_time_out statx_time(const struct timespec *t)
{
	return (struct statx_time_out){.s = t->tv_sec, .ns = (uint32_t)t->tv_nsec};
}

static void raw_statx(struct fs_fuse *f, const struct fuse_in_header *in, size_t len)
{
	struct fs_attr a;
	uint64_t unique = in->unique;
	int r = len < sizeof(*in) + sizeof(struct statx_in) ? -EINVAL
							    : fs_getattr(f->fs, in->nodeid, &a);

	if (r < 0) {
		raw_reply(f, unique, r, NULL, 0, NULL);
		return;
	}
	struct statx_out out = {
	    .attr_valid = (uint64_t)TIMEOUT_S,
	    .mask = STATX_BASIC_STATS | STATX_BTIME,
	    .blksize = BLOCK_BYTES,
	    .nlink = a.links,
	    .uid = a.uid,
	    .gid = a.gid,
	    .mode = (uint16_t)a.mode,
	    .ino = a.ino,
	    .size = a.size,
	    .blocks = a.blocks512,
	    .atime = statx_time(&a.atime),
	    .btime = statx_time(&a.btime),
	    .ctime = statx_time(&a.ctime),
	    .mtime = statx_time(&a.mtime),
	    .rdev_major = a.rdev_major,
	    .rdev_minor = a.rdev_minor,
	};
	raw_reply(f, unique, 0, &out, sizeof(out), NULL);
}

/* ---- the session ---- */

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs_fuse *f = userdata;
	unsigned want = FUSE_CAP_ASYNC_READ | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_READDIRPLUS |
			FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS |
			FUSE_CAP_CACHE_SYMLINKS;

	if (f->options.writeback_cache)
		want |= FUSE_CAP_WRITEBACK_CACHE;
	/*
	 * Exactly these. Not wanted though libfuse offers them: splice (slower here),
	 * ATOMIC_O_TRUNC (the kernel then truncates by SETATTR, which we have anyway),
	 * AUTO_INVAL_DATA (nobody else writes), HANDLE_KILLPRIV (version 2 instead, see
	 * custom_writev), POSIX_ACL.
	 */
	conn->want = conn->capable & want;
	conn->max_write = WRITE_BYTES_MAX;
	conn->max_read = 0;
	conn->max_readahead = UINT32_MAX;
	conn->max_background = BACKGROUND_MAX;
	conn->congestion_threshold = BACKGROUND_MAX / 4 * 3;
	conn->time_gran = 1;
}

static const struct fuse_lowlevel_ops fuse_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .create = op_create,
    .read = op_read,
    .write = op_write,
    .flush = op_flush,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsyncdir,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .fallocate = op_fallocate,
    .lseek = op_lseek,
};

static ssize_t custom_read(int fd, void *data, size_t len, void *userdata)
{
	return read(fd, data, len);
}

/* Every reply passes here; the one to INIT gets the flag that libfuse 3.14 cannot set. */
static ssize_t custom_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	struct fs_fuse *f = userdata;

	if (f->init_unique && count >= 2) {
		const struct fuse_out_header *head = iov[0].iov_base;
		if (iov[0].iov_len == sizeof(*head) && head->unique == f->init_unique &&
		    iov[1].iov_len >= offsetof(struct fuse_init_out, max_background)) {
			struct fuse_init_out *out = iov[1].iov_base;
			if (f->killpriv_v2)
				out->flags |= FUSE_HANDLE_KILLPRIV_V2;
			f->init_unique = 0;
		}
	}
	return writev(fd, iov, count);
}

/* ---- requests ---- */

static bool never_waits(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_INIT:
	case FUSE_DESTROY:
	case FUSE_INTERRUPT:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_STATFS:
	case FUSE_OPENDIR:
	case FUSE_RELEASEDIR:
		return true;
	default:
		return false;
	}
}

static void request_process(struct request *q)
{
	const struct fuse_in_header *in = (const void *)q->msg;
	struct fs_fuse *f = q->front;

	if (in->opcode == OPCODE_TMPFILE) {
		raw_tmpfile(f, in, q->len_bytes);
	} else if (in->opcode == OPCODE_STATX) {
		raw_statx(f, in, q->len_bytes);
	} else {
		struct fuse_buf b = {.size = q->len_bytes, .mem = q->msg};
		f->current = q;
		fuse_session_process_buf(f->se, &b);
	}
}

static struct request *request_get(struct fs_fuse *f)
{
	struct request *q = f->free;

	if (q) {
		f->free = q->next;
	} else {
		if (f->allocated == REQUESTS_MAX)
			return NULL;
		q = mem_alloc(sizeof(*q));
		if (!q)
			return NULL;
		f->allocated++;
	}
	q->front = f;
	q->large = NULL;
	f->active++;
	return q;
}

static void front_watch(struct fs_fuse *f);

static void request_put(struct request *q)
{
	struct fs_fuse *f = q->front;

	if (q->large)
		f->large[f->large_count++] = q->large;
	q->next = f->free;
	f->free = q;
	f->active--;
	if (f->active == 0)
		co_cond_wake_all(&f->idle);
	if (f->stalled && !f->gone) {
		f->stalled = false;
		f->busy = true;
		front_watch(f);
	}
}

static void request_run(void *arg)
{
	struct request *q = arg;

	request_process(q);
	request_put(q);
}

/*
 * The kernel's own read-ahead is made for one slow disk; INIT can only make it smaller. Better
 * effort only: without it reading is slower. Asks for nothing that we would have to answer.
 */
static void set_readahead(const struct fs_fuse *f)
{
	char path[64], text[16];
	struct statx st;
	int flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;

	if (statx(AT_FDCWD, f->options.mount_point, flags, 0, &st) < 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", st.stx_dev_major,
		 st.stx_dev_minor);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	int len = snprintf(text, sizeof(text), "%u", READAHEAD_KB);
	(void)!write(fd, text, (size_t)len);
	close(fd);
}

/* q->msg holds a whole message. */
static void request_start(struct request *q)
{
	const struct fuse_in_header *in = (const void *)q->msg;
	struct fs_fuse *f = q->front;

	if (in->opcode == FUSE_INIT) {
		const struct fuse_init_in *init = (const void *)(in + 1);
		f->init_unique = in->unique;
		f->killpriv_v2 =
		    q->len_bytes >= sizeof(*in) + offsetof(struct fuse_init_in, flags) + 4 &&
		    (init->flags & FUSE_HANDLE_KILLPRIV_V2);
	}
	if (never_waits(in->opcode)) {
		uint32_t opcode = in->opcode;
		request_run(q);
		if (opcode == FUSE_INIT && f->hooks.ready) {
			void (*ready)(void *) = f->hooks.ready;
			f->hooks.ready = NULL; /* an old kernel may negotiate twice */
			set_readahead(f);
			ready(f->hooks.arg);
		}
		return;
	}
	if (co_start(f->loop, request_run, q) < 0) {
		raw_reply(f, in->unique, -ENOMEM, NULL, 0, NULL);
		request_put(q);
	}
}

static void front_unwatch(struct fs_fuse *f)
{
	f->busy = false;
	if (f->watch)
		uring_unwatch(f->uring, f->watch);
	f->watch = NULL;
}

static void front_gone(struct fs_fuse *f)
{
	f->gone = true;
	front_unwatch(f);
	if (f->hooks.gone)
		f->hooks.gone(f->hooks.arg);
}

static void front_stall(struct fs_fuse *f)
{
	f->stalled = true;
	/* Readiness is a level: watched without being read it would keep the loop spinning. */
	front_unwatch(f);
}

/* Reads one message. 0: none now. */
static ssize_t front_receive(struct fs_fuse *f, char *msg)
{
	/* ENOENT: that request was interrupted while we read it. As many in a row as there can be
	 * requests. */
	for (unsigned i = 0; i < REQUESTS_MAX; i++) {
		ssize_t n = read(f->fd, msg, LARGE_BYTES - BLOCK_BYTES);
		if (n >= (ssize_t)sizeof(struct fuse_in_header))
			return n;
		if (n >= 0)
			return -EIO;
		if (errno == EAGAIN)
			return 0;
		if (errno != ENOENT && errno != EINTR)
			return -errno;
	}
	return 0;
}

/* Takes what the kernel has for us, up to ROUND_MAX. */
static void front_drain(void *arg)
{
	struct fs_fuse *f = arg;

	for (unsigned i = 0; i < ROUND_MAX; i++) {
		if (f->gone)
			return;
		struct request *q = f->large_count ? request_get(f) : NULL;
		if (!q) {
			front_stall(f);
			return;
		}
		char *large = f->large[f->large_count - 1];
		ssize_t n = front_receive(f, large);
		if (n <= 0) {
			f->busy = false;
			request_put(q);
			if (n < 0) {
				if (n != -ENODEV)
					log_error("/dev/fuse: read failed: %s", strerror((int)-n));
				front_gone(f);
			}
			return;
		}
		q->len_bytes = (size_t)n;
		if ((size_t)n <= SMALL_BYTES) {
			q->msg = q->small;
			memcpy(q->small, large, (size_t)n);
		} else {
			q->msg = q->large = large;
			f->large_count--;
		}
		request_start(q);
	}
	f->busy = true;
}

static bool front_idle(void *arg)
{
	struct fs_fuse *f = arg;

	if (f->gone || f->stalled || !f->busy)
		return false;
	front_drain(f);
	return f->busy;
}

static void front_watch(struct fs_fuse *f)
{
	/* Without memory for it we keep looking each round. */
	if (uring_watch(f->uring, f->fd, front_drain, f, &f->watch) < 0) {
		f->watch = NULL;
		f->busy = true;
	}
}

/* ---- opening and closing ---- */

static int large_init(struct fs_fuse *f)
{
	f->region = mmap(NULL, (size_t)LARGE_MAX * LARGE_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (f->region == MAP_FAILED) {
		f->region = NULL;
		return -ENOMEM;
	}
	for (unsigned i = 0; i < LARGE_MAX; i++) {
		/* The lowest is on top of the stack: what is rarely needed is never touched. */
		size_t n = LARGE_MAX - 1 - i;
		f->large[i] = f->region + n * LARGE_BYTES + BLOCK_BYTES - WRITE_HEAD_BYTES;
	}
	f->large_count = LARGE_MAX;
	return 0;
}

static int front_mount(struct fs_fuse *f)
{
	char data[256];
	struct stat st;

	if (stat(f->options.mount_point, &st) < 0) {
		int r = -errno;
		log_error("%s: cannot look at the mount point: %s", f->options.mount_point,
			  strerror(-r));
		return r;
	}
	f->fd = open("/dev/fuse", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (f->fd < 0) {
		int r = -errno;
		log_error("/dev/fuse: cannot open: %s%s", strerror(-r),
			  r == -ENOENT ? " (is the fuse module loaded? try: modprobe fuse)" : "");
		return r;
	}
	snprintf(data, sizeof(data),
		 "fd=%d,rootmode=%o,user_id=%u,group_id=%u,default_permissions,allow_other", f->fd,
		 (unsigned)(st.st_mode & S_IFMT), getuid(), getgid());
	if (mount(f->options.source, f->options.mount_point, "fuse.trussfs", f->options.mount_flags,
		  data) < 0) {
		int r = -errno;
		log_error("%s: mount failed: %s", f->options.mount_point, strerror(-r));
		return r;
	}
	return 0;
}

int fs_fuse_open(struct fs *fs, struct loop *loop, struct uring *uring,
		 const struct fs_fuse_options *options, const struct fs_fuse_hooks *hooks,
		 struct fs_fuse **ret)
{
	static const struct fuse_custom_io io = {.writev = custom_writev, .read = custom_read};
	char *argv[] = {(char *)"trussfs", (char *)"-odebug", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(options->debug ? 2 : 1, argv);
	struct fs_fuse *f = mem_zalloc(sizeof(*f));
	bool mounted = false, given = false;
	int r = -ENOMEM;

	if (!f)
		return -ENOMEM;
	f->fd = -1;
	f->fs = fs;
	f->loop = loop;
	f->uring = uring;
	f->options = *options;
	f->hooks = *hooks;
	co_cond_init(&f->idle);
	list_init(&f->writers);
	list_init(&f->readers);
	if (large_init(f) < 0)
		goto fail;
	f->se = fuse_session_new(&args, &fuse_ops, sizeof(fuse_ops), f);
	fuse_opt_free_args(&args);
	if (!f->se)
		goto fail;
	r = front_mount(f);
	if (r < 0)
		goto fail;
	mounted = true;
	r = fuse_session_custom_io(f->se, &io, f->fd);
	if (r < 0)
		goto fail;
	given = true;
	r = uring_watch(uring, f->fd, front_drain, f, &f->watch);
	if (r < 0)
		goto fail;
	uring_set_idle_hook(uring, front_idle, f);
	*ret = f;
	return 0;
fail:
	if (mounted)
		(void)umount2(options->mount_point, MNT_DETACH); /* nothing more can be done */
	if (f->se)
		fuse_session_destroy(f->se); /* closes the descriptor given to it */
	if (f->fd >= 0 && !given)
		close(f->fd);
	if (f->region)
		munmap(f->region, (size_t)LARGE_MAX * LARGE_BYTES);
	mem_free(f);
	return r;
}

void fs_fuse_wait(struct fs_fuse *f)
{
	while (f->active)
		co_cond_wait(&f->idle);
}

void fs_fuse_close(struct fs_fuse *f)
{
	if (!f)
		return;
	assert(f->active == 0);
	uring_set_idle_hook(f->uring, NULL, NULL);
	front_unwatch(f);
	fuse_session_destroy(f->se); /* closes the descriptor */
	/* What was still open when the connection was cut. */
	list_splice_tail(&f->writers, &f->readers);
	while (!list_empty(&f->writers))
		handle_free(list_first(&f->writers, struct handle, node));
	while (f->free) {
		struct request *q = f->free;
		f->free = q->next;
		mem_free(q);
	}
	munmap(f->region, (size_t)LARGE_MAX * LARGE_BYTES);
	mem_free(f);
}
