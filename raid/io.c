/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Batches of member I/O: counts what is under way, remembers the first error, wakes the waiter.
 *
 * Rejected: a callback per I/O. Everything above is a coroutine that needs several I/Os at once and
 * then goes on; a counter and one waiter is all it takes, and errors are handled where the I/O was
 * asked for.
 */
#include "io.h"

void io_batch_init(struct io_batch *batch, struct loop *loop)
{
	*batch = (struct io_batch){.loop = loop};
}

static bool in_range(const struct dev *dev, const struct io *io)
{
	return io->off_bytes <= dev->size_bytes && io->len_bytes <= dev->size_bytes - io->off_bytes;
}

static void start(struct io_batch *batch, struct io *io)
{
	struct dev *dev = io->dev;

	assert(io->off_bytes % BLOCK_BYTES == 0 && io->len_bytes % BLOCK_BYTES == 0);
	io->batch = batch;
	io->result = 0;
	io->done = false;
	batch->pending++;
	if (io->op == IO_FLUSH) {
		/* Nothing volatile: what was written is durable already. */
		if (!dev->volatile_cache) {
			io_done(io, 0);
			return;
		}
	} else if (io->op == IO_WRITE && dev->read_only) {
		/* Of a member of a volume that is not: it fails like any that cannot be written. */
		io_done(io, -EROFS);
		return;
	} else if (!in_range(dev, io)) {
		/* The address may come from a damaged disk: not our mistake, so no assert. */
		log_error("%s: I/O beyond the end: %llu bytes at %llu of %llu", dev->name,
			  (unsigned long long)io->len_bytes, (unsigned long long)io->off_bytes,
			  (unsigned long long)dev->size_bytes);
		io_done(io, -EIO);
		return;
	}
	dev->ops->submit(dev, io);
}

static void start_plain(struct io_batch *batch, struct io *io, struct dev *dev, enum io_op op,
			uint64_t off_bytes, void *data, uint64_t len_bytes)
{
	assert(len_bytes > 0 && (uintptr_t)data % BLOCK_BYTES == 0);
	io->errors = 0;
	io->fua = false;
	io->dev = dev;
	io->op = op;
	io->off_bytes = off_bytes;
	io->len_bytes = len_bytes;
	io->data = data;
	io->iov = NULL;
	io->iov_count = 0;
	start(batch, io);
}

static void start_vector(struct io_batch *batch, struct io *io, struct dev *dev, enum io_op op,
			 bool fua, uint64_t off_bytes, const struct iovec *iov, unsigned iov_count)
{
	assert(iov_count > 0 && iov_count <= IO_IOV_MAX);
	io->errors = 0;
	io->fua = fua;
	io->dev = dev;
	io->op = op;
	io->off_bytes = off_bytes;
	io->len_bytes = 0;
	io->data = NULL;
	io->iov = iov;
	io->iov_count = iov_count;
	for (unsigned i = 0; i < iov_count; i++) {
		assert(iov[i].iov_len > 0 && iov[i].iov_len % BLOCK_BYTES == 0);
		assert((uintptr_t)iov[i].iov_base % BLOCK_BYTES == 0);
		io->len_bytes += iov[i].iov_len;
	}
	start(batch, io);
}

void io_read(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes, void *data,
	     uint64_t len_bytes)
{
	start_plain(batch, io, dev, IO_READ, off_bytes, data, len_bytes);
}

void io_readv(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes,
	      const struct iovec *iov, unsigned iov_count)
{
	start_vector(batch, io, dev, IO_READ, false, off_bytes, iov, iov_count);
}

void io_write(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes,
	      const void *data, uint64_t len_bytes)
{
	/* Reads and writes share the field; a write does not change it. */
	start_plain(batch, io, dev, IO_WRITE, off_bytes, (void *)(uintptr_t)data, len_bytes);
}

void io_writev(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes,
	       const struct iovec *iov, unsigned iov_count)
{
	start_vector(batch, io, dev, IO_WRITE, false, off_bytes, iov, iov_count);
}

void io_writev_fua(struct io_batch *batch, struct io *io, struct dev *dev, uint64_t off_bytes, const struct iovec *iov,
		   unsigned iov_count)
{
	start_vector(batch, io, dev, IO_WRITE, true, off_bytes, iov, iov_count);
}

void io_flush(struct io_batch *batch, struct io *io, struct dev *dev)
{
	io->errors = 0;
	io->fua = false;
	io->dev = dev;
	io->op = IO_FLUSH;
	io->off_bytes = io->len_bytes = 0;
	io->data = NULL;
	io->iov = NULL;
	io->iov_count = 0;
	start(batch, io);
}

void io_done(struct io *io, int result)
{
	struct io_batch *batch = io->batch;

	assert(!io->done && batch->pending > 0);
	io->result = result;
	io->done = true;
	io->errors += result == -EIO;
	if (result == -EIO && io->op == IO_WRITE) {
		io->failed_next = batch->failed;
		batch->failed = io;
	} else if (result && !batch->error) {
		batch->error = result;
	}
	if (--batch->pending == 0 && batch->waiter) {
		struct co *waiter = batch->waiter;

		batch->waiter = NULL;
		co_wake(waiter);
	}
}

static void wait_pending(struct io_batch *batch)
{
	if (batch->pending) {
		assert(!batch->waiter);
		batch->waiter = co_self();
		co_wait();
	}
	assert(batch->pending == 0);
}

int io_batch_wait(struct io_batch *batch)
{
	wait_pending(batch);
	for (unsigned tries = 1; batch->failed && tries < IO_WRITE_TRIES; tries++) {
		struct io *io = batch->failed;

		batch->failed = NULL;
		while (io) {
			struct io *next = io->failed_next; /* start puts it on the list again */

			start(batch, io);
			io = next;
		}
		wait_pending(batch);
	}
	if (batch->failed && !batch->error)
		batch->error = -EIO;
	return batch->error;
}

int io_read_sync(struct dev *dev, uint64_t off_bytes, void *data, uint64_t len_bytes)
{
	struct io_batch batch;
	struct io io;

	io_batch_init(&batch, co_loop());
	io_read(&batch, &io, dev, off_bytes, data, len_bytes);
	return io_batch_wait(&batch);
}

int io_write_sync(struct dev *dev, uint64_t off_bytes, const void *data, uint64_t len_bytes)
{
	struct io_batch batch;
	struct io io;

	io_batch_init(&batch, co_loop());
	io_write(&batch, &io, dev, off_bytes, data, len_bytes);
	return io_batch_wait(&batch);
}

int io_flush_sync(struct dev *dev)
{
	struct io_batch batch;
	struct io io;

	io_batch_init(&batch, co_loop());
	io_flush(&batch, &io, dev);
	return io_batch_wait(&batch);
}

void dev_close(struct dev *dev)
{
	if (dev)
		dev->ops->close(dev);
}
