/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Open files: what the kernel asks of their data.
 *
 * With a write-back cache the kernel holds data that we have not been given. Before truncating,
 * punching and copying it hands that over by itself; where it does not (LSEEK, and the rename that
 * replaces a file), we make it: see launder.
 */
#include "fuse_ops.h"
#include "raid/buf.h"
#include "raid/co.h"
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define READ_RETRIES 3

static struct handle *handle_of(const struct fuse_file_info *fi)
{
	return fi ? (struct handle *)(uintptr_t)fi->fh : NULL;
}

struct handle *handle_new(struct fs_fuse *f, uint64_t ino, int flags)
{
	struct handle *h = mem_alloc(sizeof(*h));

	if (!h)
		return NULL;
	h->ino = ino;
	fs_errseq_sample(f->fs, ino, &h->err);
	list_add((flags & O_ACCMODE) == O_RDONLY ? &f->readers : &f->writers, &h->node);
	return h;
}

void handle_free(struct handle *h)
{
	if (!h)
		return;
	list_del(&h->node);
	mem_free(h);
}

void fuse_file_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = handle_new(front_of(req), ino, fi->flags);

	if (!h) {
		front_error(req, -ENOMEM);
		return;
	}
	fi->fh = (uintptr_t)h;
	fi->keep_cache = 1; /* nobody changes files behind the kernel's back */
	if (fuse_reply_open(req, fi) < 0)
		handle_free(h); /* interrupted: there will be no release */
}

void fuse_file_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);
	struct fs_cred cred = front_cred(req);
	struct fuse_entry_param e;
	struct fs_attr a;

	int r = fs_mknod(f->fs, parent, name, (mode & ~(mode_t)S_IFMT) | S_IFREG, 0, 0, &cred, &a);
	r = front_made(f, r, &a);
	if (r < 0) {
		front_error(req, r);
		return;
	}
	struct handle *h = handle_new(f, a.ino, fi->flags);
	if (!h) {
		fs_unref(f->fs, a.ino, 1);
		front_error(req, -ENOMEM);
		return;
	}
	fi->fh = (uintptr_t)h;
	fi->keep_cache = 1;
	front_entry(&a, &e);
	if (fuse_reply_create(req, &e, fi) < 0) {
		handle_free(h);
		fs_unref(f->fs, a.ino, 1);
	}
}

void fuse_file_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	handle_free(handle_of(fi));
	front_error(req, 0);
}

void fuse_file_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
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
			(void)fuse_reply_buf(req, found, len); /* see front_error */
		buf_put(data);
	}
	if (r < 0)
		front_error(req, r);
}

void fuse_file_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
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
		front_error(req, r);
		return;
	}
	/* The kernel goes on believing the mode it knows, for TIMEOUT_S. */
	if (kill)
		(void)fuse_lowlevel_notify_inval_inode(f->se, ino, -1, 0); /* -ENOENT: not cached */
	(void)fuse_reply_write(req, size);				   /* see front_error */
}

void fuse_file_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);

	front_error(req, fs_flush(front_of(req)->fs, ino, h ? &h->err : NULL));
}

void fuse_file_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);

	front_error(req, fs_fsync(front_of(req)->fs, ino, datasync, h ? &h->err : NULL));
}

void fuse_file_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);

	if (mode & FS_FALLOC_KEEP_TIMES) {
		front_error(req, -EOPNOTSUPP); /* ours, and no mode of fallocate(2) */
		return;
	}
	/* A kernel with a write-back cache has the times, and sends them. */
	if (f->options.writeback_cache)
		mode |= FS_FALLOC_KEEP_TIMES;
	front_error(req, fs_fallocate(f->fs, ino, mode, (uint64_t)off, (uint64_t)len));
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
 * Makes the kernel write back a file's dirty pages. Coroutine; -errno: not done. The thread takes
 * none of the locks under which the kernel waits for our answer to LSEEK or RENAME.
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
 * Whoever replaces a file by renaming wants the old content or the new after a crash, also while
 * the new one is still open for writing: fs_rename sees to it for what we have been given, so the
 * kernel is to give us the rest. (It does so by itself when a file is closed.)
 */
int fuse_file_launder_for_rename(struct fs_fuse *f, uint64_t parent, const char *name,
				 uint64_t new_parent, const char *new_name)
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

void fuse_file_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	struct fs_fuse *f = front_of(req);
	uint64_t found;
	int r = may_be_dirty(f, ino) ? launder(f, ino) : 0;

	if (r == 0)
		r = fs_lseek(f->fs, ino, (uint64_t)off, whence, &found);
	if (r < 0)
		front_error(req, r);
	else
		(void)fuse_reply_lseek(req, (off_t)found); /* see front_error */
}
