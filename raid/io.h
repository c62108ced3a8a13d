/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Member I/O: *add, add, submit, wait*. Real devices (uring.h) and simulated ones (tests) fill in the
 * same struct dev; nothing above knows which it has.
 *
 * Rules for callers
 *   - offsets and lengths are multiples of BLOCK_BYTES; memory comes from the pool (buf.h);
 *   - a write is durable only after a later flush of the same device that was submitted after the
 *     write had completed (dev.volatile_cache says whether the flush does anything), or if it is a FUA write, once it
 *     is done: which says nothing of the writes before it;
 *   - results: 0, -EIO (and what the device said otherwise), -ENODEV/-ENXIO/-ENOSPC as from a pulled drive
 *     are all mapped to -ENODEV, -EROFS when the device has become read-only, -ETIMEDOUT after the deadline. Short I/O is carried on by the device layer;
 *     if it makes no progress: -EIO;
 *   - a write to a handle that is read-only is -EROFS; an I/O beyond the end of the device is -EIO; a flush of a device without volatile cache is done at once;
 *   - after -ETIMEDOUT the memory stays pinned until the device lets go. A read buffer must then not
 *     be used for anything, only put.
 */
#ifndef RAID_IO_H
#define RAID_IO_H

#include "base.h"
#include "co.h"
#include "loop.h"
#include <sys/uio.h>

#define IO_DEADLINE_NS_DEFAULT (8 * NS_PER_S)
#define IO_IOV_MAX 1024 /* the kernel's limit of one readv */

enum io_op { IO_READ, IO_WRITE, IO_FLUSH };

struct io;
struct io_batch;

struct dev {
	const struct dev_ops *ops;
	uint64_t size_bytes;   /* rounded down to BLOCK_BYTES */
	uint32_t sector_bytes; /* logical sector: 512 or 4096 */
	bool volatile_cache;   /* writes need a flush to be durable */
	bool read_only;
	uint64_t deadline_ns;  /* per I/O; 0: none */
	char name[256];        /* path as given: for messages, never identity */
	char serial[64];       /* hint from the device, may be empty */
	void *user;            /* the volume's */
};

struct dev_ops {
	/* Queues it; the device calls io_done(io, result) later, never from inside submit. */
	void (*submit)(struct dev *dev, struct io *io);
	/* Pushes what is queued to the kernel; may be NULL. */
	void (*kick)(struct dev *dev);
	/* All I/O is done or abandoned. Frees dev. */
	void (*close)(struct dev *dev);
};

/*
 * Attempts at one write that the device answers with -EIO. The next attempt writes the same bytes to the same place; only
 * what has failed so often counts as failed. Flushes are not tried again: a device that has failed one may have
 * dropped what it should have kept, and then says yes to the next. A FUA write is: the caller has to know that it may stand
 * for a write and a flush, and if io.errors says that it failed once, what else was in the cache may be gone.
 */
#define IO_WRITE_TRIES 3

/* One I/O. The memory is the caller's and lives until io_batch_wait has returned. */
struct io {
	struct dev *dev;
	struct io_batch *batch;
	uint64_t off_bytes;
	uint64_t len_bytes;
	void *data;              /* when iov is NULL */
	const struct iovec *iov; /* stays valid until done */
	unsigned iov_count;
	enum io_op op;
	bool fua; /* force unit access: done means durable */
	int result;
	unsigned errors; /* attempts that failed with -EIO; result is that of the last */
	bool done;
	void *user; /* the submitter's */
	struct io *failed_next; /* io_batch_wait's: on batch->failed */
	/* The device layer's, opaque here and not initialised. */
	void *priv;
	struct list queue_node, due_node;
	uint64_t due_ns;
};

struct io_batch {
	struct loop *loop;
	struct co *waiter;
	unsigned pending;
	int error; /* the first error of any of them, but for those on `failed` */
	struct io *failed; /* writes that ended with -EIO */
};

void io_batch_init(struct io_batch *batch, struct loop *loop);
/* Each starts the I/O (it reaches the kernel at kick or when the loop polls). `io` need not be initialised. */
void io_read(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes, void *data,
	     uint64_t len_bytes);
void io_readv(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes,
	      const struct iovec *iov, unsigned iov_count);
void io_write(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes, const void *data,
	      uint64_t len_bytes);
void io_writev(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes,
	       const struct iovec *iov, unsigned iov_count);
/* The same, as a FUA write. */
void io_writev_fua(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes, const struct iovec *iov,
		   unsigned iov_count);
void io_flush(struct io_batch *batch, struct io *io, struct dev *dev);
/*
 * Waits until all are done, with up to IO_WRITE_TRIES attempts at each write; the first error (each io has its own
 * result). Errors that another attempt cured are in io.errors, for whoever counts them.
 */
int io_batch_wait(struct io_batch *batch);

/* One I/O and its wait. */
int io_read_sync(struct dev *dev, uint64_t off_bytes, void *data, uint64_t len_bytes);
int io_write_sync(struct dev *dev, uint64_t off_bytes, const void *data, uint64_t len_bytes);
int io_flush_sync(struct dev *dev);

/* For device implementations. */
void io_done(struct io *io, int result);
/* Takes NULL. */
void dev_close(struct dev *dev);

#endif
