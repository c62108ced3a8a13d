/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The io_uring device on an image file and on a loop device. A device that hangs, answers short, or
 * is pulled is played by putting another open file (a pipe, /dev/null, /dev/full) under the
 * device's descriptor.
 */
#include "raid/buf.h"
#include "raid/io.h"
#include "raid/uring.h"

#include <fcntl.h>
#include <liburing.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE_BYTES (64u << 20)

/* ---- a kernel that does not do as it should ---- */

static struct {
	int init_error;	      /* io_uring_setup(2) */
	bool no_ext_arg;      /* and a kernel without this */
	unsigned refuse;      /* so many times it takes nothing from the queue */
	unsigned dio_align;   /* what statx(2) says of direct I/O */
	int size_error;	      /* of BLKGETSIZE64 */
	int sector_bytes;     /* BLKSSZGET */
	const char *serial;   /* in sysfs */
} odd;

int __real_io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *p);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *p);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *p)
{
	int r = odd.init_error ? odd.init_error : __real_io_uring_queue_init_params(entries, ring, p);

	if (odd.no_ext_arg)
		p->features &= ~IORING_FEAT_EXT_ARG;
	return r;
}

static bool refused(void)
{
	return odd.refuse && odd.refuse--;
}

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring)
{
	return refused() ? -EAGAIN : __real_io_uring_submit(ring);
}

int __real_io_uring_submit_and_get_events(struct io_uring *ring);
int __wrap_io_uring_submit_and_get_events(struct io_uring *ring);
int __wrap_io_uring_submit_and_get_events(struct io_uring *ring)
{
	return refused() ? -EAGAIN : __real_io_uring_submit_and_get_events(ring);
}

int __real_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
					    struct __kernel_timespec *ts, sigset_t *set);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
					    struct __kernel_timespec *ts, sigset_t *set);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
					    struct __kernel_timespec *ts, sigset_t *set)
{
	return refused() ? -EAGAIN : __real_io_uring_submit_and_wait_timeout(ring, cqe, n, ts, set);
}

int __real_statx(int fd, const char *name, int flags, unsigned mask, struct statx *st);
int __wrap_statx(int fd, const char *name, int flags, unsigned mask, struct statx *st);
int __wrap_statx(int fd, const char *name, int flags, unsigned mask, struct statx *st)
{
	int r = __real_statx(fd, name, flags, mask, st);

#ifdef STATX_DIOALIGN
	if (odd.dio_align) {
		st->stx_mask |= STATX_DIOALIGN;
		st->stx_dio_mem_align = 512;
		st->stx_dio_offset_align = odd.dio_align;
	}
#endif
	return r;
}

int __real_ioctl(int fd, unsigned long request, void *arg);
int __wrap_ioctl(int fd, unsigned long request, void *arg);
int __wrap_ioctl(int fd, unsigned long request, void *arg)
{
	if (request == BLKGETSIZE64 && odd.size_error) {
		errno = odd.size_error;
		return -1;
	}
	if (request == BLKSSZGET && odd.sector_bytes) {
		*(int *)arg = odd.sector_bytes;
		return 0;
	}
	return __real_ioctl(fd, request, arg);
}

FILE *__real_fopen64(const char *name, const char *mode);
FILE *__wrap_fopen64(const char *name, const char *mode);
FILE *__wrap_fopen64(const char *name, const char *mode)
{
	if (odd.serial && strstr(name, "serial"))
		return fmemopen((void *)odd.serial, strlen(odd.serial), "r");
	return __real_fopen64(name, mode);
}

/* ---- the bench ---- */

static struct uring *uring;
static struct loop *loop;
static char path[] = "/tmp/test_uring.XXXXXX";
static char last_error[512];

static void log_remember(enum log_level level, const char *text, void *arg)
{
	if (level == LOG_LEVEL_ERROR)
		snprintf(last_error, sizeof(last_error), "%s", text);
}

static int setup(void **state)
{
	int fd, err;

	strcpy(path + strlen(path) - 6, "XXXXXX");
	last_error[0] = '\0';
	log_set_hook(log_remember, NULL);
	fd = mkstemp(path);
	if (fd < 0 || ftruncate(fd, SIZE_BYTES + 100) || close(fd))
		return -1;
	err = uring_new(&uring);
	if (err)
		return err;
	loop = loop_new(&uring_backend, uring);
	return loop ? buf_pool_init(16u << 20) : -ENOMEM;
}

static int teardown(void **state)
{
	size_t used = buf_pool_used_bytes();

	/* An assertion failed in a coroutine: what is left would only hide its message. */
	if (loop_co_count(loop))
		return unlink(path) ? -2 : -1;
	loop_free(loop);
	uring_free(uring);
	buf_pool_exit();
	log_set_hook(NULL, NULL);
	return unlink(path) || used ? -1 : 0;
}

static struct dev *open_file(void)
{
	struct dev *dev = NULL;

	assert_int_equal(uring_dev_open(uring, loop, path, 0, &dev), 0);
	return dev;
}

static void fill(void *p, size_t bytes, uint32_t seed)
{
	uint32_t *w = p;

	for (size_t i = 0; i < bytes / 4; i++)
		w[i] = seed * 2654435761u + (uint32_t)i;
}

static void check(const void *p, size_t bytes, uint32_t seed)
{
	const uint32_t *w = p;

	for (size_t i = 0; i < bytes / 4; i++)
		assert_int_equal(w[i], seed * 2654435761u + (uint32_t)i);
}

/* ---- reading and writing ---- */

static int basics(void *arg)
{
	struct dev *dev = arg;
	char *p = buf_get(1u << 20), *q = buf_get(1u << 20);
	struct iovec iov[3] = {{q, 8192}, {q + 65536, 4096}, {q + 16384, 16384}};
	struct io_batch batch;
	struct io io;

	fill(p, 1u << 20, 1);
	assert_int_equal(io_write_sync(dev, 0, p, 1u << 20), 0);
	assert_int_equal(io_flush_sync(dev), 0);
	memset(q, 0, 1u << 20);
	assert_int_equal(io_read_sync(dev, 0, q, 1u << 20), 0);
	assert_memory_equal(p, q, 1u << 20);
	/* The last block. */
	assert_int_equal(io_write_sync(dev, dev->size_bytes - 4096, p, 4096), 0);
	assert_int_equal(io_read_sync(dev, dev->size_bytes - 4096, q, 4096), 0);
	assert_memory_equal(p, q, 4096);
	assert_int_equal(io_read_sync(dev, dev->size_bytes, q, 4096), -EIO);
	/* Vectors. */
	memset(q, 0, 1u << 20);
	io_batch_init(&batch, loop);
	io_readv(&batch, &io, dev, 4096, iov, 3);
	assert_int_equal(io_batch_wait(&batch), 0);
	assert_memory_equal(q, p + 4096, 8192);
	assert_memory_equal(q + 65536, p + 12288, 4096);
	assert_memory_equal(q + 16384, p + 16384, 16384);
	io_batch_init(&batch, loop);
	io_writev(&batch, &io, dev, 1u << 20, iov, 3);
	assert_int_equal(io_batch_wait(&batch), 0);
	assert_int_equal(io_read_sync(dev, 1u << 20, q, 28672), 0);
	assert_memory_equal(q, p + 4096, 28672);
	buf_put(p);
	buf_put(q);
	return 0;
}

static void test_file(void **state)
{
	struct dev *dev = open_file();

	assert_int_equal(dev->size_bytes, SIZE_BYTES);
	assert_true(dev->volatile_cache);
	assert_false(dev->read_only);
	assert_true(dev->sector_bytes == 512 || dev->sector_bytes == 4096);
	assert_string_equal(dev->name, path);
	assert_int_equal(loop_run_co(loop, basics, dev), 0);
	dev_close(dev);
}

enum { MANY = 3000 };
static int many(void *arg)
{
	static struct io io[MANY];
	struct dev *dev = arg;
	char *p[3];
	struct io_batch batch;

	for (int i = 0; i < 3; i++)
		p[i] = buf_get(BUF_BYTES_MAX);
	for (uint32_t i = 0; i < MANY; i++)
		fill(p[i / 1024] + i % 1024 * 4096, 4096, i);
	io_batch_init(&batch, loop);
	for (uint64_t i = 0; i < MANY; i++)
		io_write(&batch, &io[i], dev, (i * 7919 % 8192) * 4096,
			 p[i / 1024] + i % 1024 * 4096, 4096);
	dev->ops->kick(dev);
	assert_int_equal(io_batch_wait(&batch), 0);
	for (int i = 0; i < 3; i++)
		memset(p[i], 0, BUF_BYTES_MAX);
	io_batch_init(&batch, loop);
	for (uint64_t i = 0; i < MANY; i++)
		io_read(&batch, &io[i], dev, (i * 7919 % 8192) * 4096,
			p[i / 1024] + i % 1024 * 4096, 4096);
	assert_int_equal(io_batch_wait(&batch), 0);
	for (uint32_t i = 0; i < MANY; i++)
		check(p[i / 1024] + i % 1024 * 4096, 4096, i);
	for (int i = 0; i < 3; i++)
		buf_put(p[i]);
	return 0;
}

static void test_many(void **state)
{
	struct dev *dev = open_file();

	assert_int_equal(loop_run_co(loop, many, dev), 0);
	dev_close(dev);
}

/* ---- who may open ---- */

/* Goes away when the last descriptor is closed. */
static int loop_device(char *name, size_t bytes, unsigned sector_bytes)
{
	struct loop_config config = {.block_size = sector_bytes};
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	int fd = -1;

	if (control < 0)
		return -1;
	config.fd = (uint32_t)open(path, O_RDWR | O_CLOEXEC);
	config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
	/* Others may be faster. */
	for (int tries = 0; tries < 20; tries++) {
		int n = ioctl(control, LOOP_CTL_GET_FREE);

		if (n < 0)
			break;
		snprintf(name, bytes, "/dev/loop%d", n);
		fd = open(name, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			break;
		if (ioctl(fd, LOOP_CONFIGURE, &config) == 0)
			break;
		close(fd);
		fd = -1;
	}
	close((int)config.fd);
	close(control);
	return fd;
}

static void test_exclusive(void **state)
{
	struct dev *dev = open_file(), *other = NULL;

	assert_int_equal(uring_dev_open(uring, loop, path, 0, &other), -EBUSY);
	assert_non_null(strstr(last_error, path));
	assert_int_equal(uring_dev_open(uring, loop, path, DEV_OPEN_READ_ONLY, &other), -EBUSY);
	assert_null(other);
	assert_int_equal(uring_dev_open(uring, loop, path, DEV_OPEN_SHARED, &other), 0);
	assert_true(other->read_only);
	dev_close(other);
	dev_close(dev);
	dev = open_file();
	dev_close(dev);
}

static void *close_later(void *arg)
{
	usleep(20000);
	close(*(int *)arg);
	return NULL;
}

/* The kernel may hold the open file a moment longer than we do; a second descriptor plays that. */
static void test_free_at_once(void **state)
{
	struct dev *dev = open_file();
	char name[32];
	int fd = loop_device(name, sizeof(name), 512), held = dup(uring_dev_fd(dev));
	pthread_t thread;

	assert_true(fd >= 0 && held >= 0);
	dev_close(dev);
	dev_close(open_file());
	close(held);
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &dev), 0);
	held = dup(uring_dev_fd(dev));
	assert_int_equal(pthread_create(&thread, NULL, close_later, &held), 0);
	dev_close(dev);
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &dev), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	dev_close(dev);
	close(fd);
}

static void test_refused(void **state)
{
	struct dev *dev = NULL;
	char fifo[64];

	assert_int_equal(uring_dev_open(uring, loop, "/dev/null", 0, &dev), -ENOTBLK);
	assert_non_null(strstr(last_error, "/dev/null"));
	assert_int_equal(uring_dev_open(uring, loop, "/tmp", 0, &dev), -ENOTBLK);
	assert_int_equal(uring_dev_open(uring, loop, "/nonexistent/x", 0, &dev), -ENOENT);
	snprintf(fifo, sizeof(fifo), "%s.fifo", path);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(uring_dev_open(uring, loop, fifo, 0, &dev), -ENOTBLK);
	unlink(fifo);
	for (uint64_t n = 1; n <= 2; n++) {
		mem_fail_after(n, false);
		assert_int_equal(uring_dev_open(uring, loop, path, 0, &dev), -ENOMEM);
	}
	mem_fail_after(0, false);
	assert_null(dev);
	dev = open_file(); /* the lock was given back each time */
	dev_close(dev);
}

static int reads_only(void *arg)
{
	char *p = buf_get(4096);
	int err = io_read_sync(arg, 4096, p, 4096);

	for (int i = 0; !err && i < 4096; i++)
		assert_int_equal(p[i], 0);
	buf_put(p);
	return err;
}

static void test_read_only(void **state)
{
	struct dev *dev = NULL;

	assert_int_equal(uring_dev_open(uring, loop, path, DEV_OPEN_READ_ONLY, &dev), 0);
	assert_true(dev->read_only);
	assert_int_equal(fcntl(uring_dev_fd(dev), F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(loop_run_co(loop, reads_only, dev), 0);
	dev_close(dev);
}

/* ---- devices that misbehave ---- */

/* Puts another open file under the device. */
static void replace_fd(struct dev *dev, const char *with)
{
	int fd = open(with, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_true(dup2(fd, uring_dev_fd(dev)) >= 0);
	close(fd);
}

static void replace_by_pipe(struct dev *dev, int *ret_write_fd)
{
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_true(dup2(fds[0], uring_dev_fd(dev)) >= 0);
	close(fds[0]);
	*ret_write_fd = fds[1];
}

static int truncated(void *arg)
{
	struct dev *dev = arg;
	char *p = buf_get(65536);
	int err = io_read_sync(dev, (4u << 20) - 8192, p, 65536); /* two blocks, then nothing */

	buf_put(p);
	return err;
}

static void test_file_end(void **state)
{
	struct dev *dev = open_file();

	assert_int_equal(truncate(path, 4u << 20), 0);
	assert_int_equal(loop_run_co(loop, truncated, dev), -EIO);
	dev_close(dev);
}

static int write_one(void *arg)
{
	char *p = buf_get(4096);
	int err;

	memset(p, 0, 4096);
	err = io_write_sync(arg, 0, p, 4096);
	buf_put(p);
	return err;
}

static void test_file_full(void **state)
{
	struct dev *dev = open_file();

	replace_fd(dev, "/dev/full");
	assert_int_equal(loop_run_co(loop, write_one, dev), -EIO);
	dev_close(dev);
}

struct pieces {
	struct dev *dev;
	int fd;
	bool vector;
};

static void feed(void *arg)
{
	struct pieces *t = arg;
	static const unsigned sizes[] = {1000, 3096, 5000, 1, 3191, 8192, 4096};
	char data[24576];
	unsigned at = 0;

	fill(data, sizeof(data), 9);
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		assert_int_equal(write(t->fd, data + at, sizes[i]), sizes[i]);
		at += sizes[i];
		for (int k = 0; k < 5; k++)
			co_sleep_ns(NS_PER_MS / 5);
	}
	assert_int_equal(at, sizeof(data));
}

static int in_pieces(void *arg)
{
	struct pieces *t = arg;
	char *p = buf_get(32768);
	struct iovec iov[4] = {{p, 4096}, {p + 4096, 8192}, {p + 12288, 4096}, {p + 16384, 8192}};
	struct io_batch batch;
	struct io io;

	assert_int_equal(co_spawn(loop, feed, t), 0);
	io_batch_init(&batch, loop);
	if (t->vector)
		io_readv(&batch, &io, t->dev, 0, iov, 4);
	else
		io_read(&batch, &io, t->dev, 0, p, 24576);
	assert_int_equal(io_batch_wait(&batch), 0);
	check(p, 24576, 9);
	while (loop_co_count(loop) > 1)
		co_sleep_ns(NS_PER_MS);
	buf_put(p);
	return 0;
}

static void test_short(void **state)
{
	for (int vector = 0; vector < 2; vector++) {
		struct pieces t = {.dev = open_file(), .vector = vector};

		replace_by_pipe(t.dev, &t.fd);
		assert_int_equal(loop_run_co(loop, in_pieces, &t), 0);
		close(t.fd);
		dev_close(t.dev);
	}
}

static int hangs(void *arg)
{
	struct pieces *t = arg;
	static struct io
	    io[700]; /* more than the device takes at once: the rest waits, and gives up too */
	char *p = buf_get(8192), *q = buf_get(1u << 20);
	struct iovec iov[2] = {{p, 4096}, {p + 4096, 4096}};
	struct io_batch batch;
	char late[4096];

	t->dev->deadline_ns = 30 * NS_PER_MS;
	memset(p, 1, 8192);
	io_batch_init(&batch, loop);
	io_readv(&batch, &io[0], t->dev, 0, iov, 2);
	for (unsigned i = 1; i < ARRAY_SIZE(io); i++)
		io_read(&batch, &io[i], t->dev, i * 4096, q, 4096);
	assert_int_equal(io_batch_wait(&batch), -ETIMEDOUT);
	for (unsigned i = 0; i < ARRAY_SIZE(io); i++)
		assert_int_equal(io[i].result, -ETIMEDOUT);
	memset(iov, 0xff, sizeof(iov));
	memset(io, 0xff, sizeof(io));
	buf_put(p);
	buf_put(q);
	/* In the hands of the device still. */
	assert_int_equal(buf_pool_used_bytes(), 8192 + (1u << 20));
	/* It answers one after the other, in whatever order, until the first of them is through. */
	memset(late, 2, sizeof(late));
	assert_int_equal(fcntl(t->fd, F_SETFL, O_NONBLOCK), 0);
	while (buf_pool_used_bytes() != 1u << 20) {
		ssize_t got = write(t->fd, late, sizeof(late));

		assert_true(got == sizeof(late) || (got < 0 && errno == EAGAIN));
		co_sleep_ns(NS_PER_MS / 10);
	}
	if (t->vector)
		return 0; /* closed with the others under way */
	close(t->fd);	  /* the rest ends with 0 bytes */
	while (buf_pool_used_bytes())
		co_sleep_ns(NS_PER_MS);
	/* And it works again. */
	replace_fd(t->dev, path);
	return reads_only(t->dev);
}

static int wait_put(void *arg)
{
	while (buf_pool_used_bytes())
		co_sleep_ns(NS_PER_MS);
	return 0;
}

static void test_deadline(void **state)
{
	struct pieces t = {.dev = open_file()};

	replace_by_pipe(t.dev, &t.fd);
	assert_int_equal(loop_run_co(loop, hangs, &t), 0);
	dev_close(t.dev);

	/* Closed while the device still has memory. */
	t.dev = open_file();
	t.vector = true;
	replace_by_pipe(t.dev, &t.fd);
	assert_int_equal(loop_run_co(loop, hangs, &t), 0);
	dev_close(t.dev);
	close(t.fd);
	assert_int_equal(loop_run_co(loop, wait_put, NULL), 0);
}

static int one_timeout(void *arg)
{
	char *p = buf_get(4096);
	struct io_batch batch;
	struct io io;

	mem_fail_after(1, false); /* the pin list: the answer comes later, but it comes */
	io_batch_init(&batch, loop);
	io_read(&batch, &io, arg, 0, p, 4096);
	assert_int_equal(io_batch_wait(&batch), -ETIMEDOUT);
	buf_put(p);
	assert_int_equal(buf_pool_used_bytes(), 4096);
	return 0;
}

/* The program ends while a device hangs: nothing leaks but what the device holds. */
static void test_deadline_exit(void **state)
{
	struct dev *dev = open_file();
	int fd;

	replace_by_pipe(dev, &fd);
	dev->deadline_ns = 10 * NS_PER_MS;
	assert_int_equal(loop_run_co(loop, one_timeout, dev), 0);
	dev_close(dev);
	loop_free(loop);
	uring_free(uring);
	buf_pool_exit();
	close(fd);
	unlink(path);
	assert_int_equal(setup(state), 0);
}

/* ---- loop device ---- */

static void check_loop_device(unsigned sector_bytes)
{
	struct dev *dev = NULL, *other = NULL;
	char name[32];
	int fd = loop_device(name, sizeof(name), sector_bytes), raw;

	assert_true(fd >= 0);
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &dev), 0);
	assert_int_equal(dev->size_bytes, SIZE_BYTES);
	assert_int_equal(dev->sector_bytes, sector_bytes);
	assert_true(dev->volatile_cache); /* loop devices pass flushes on */
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &other), -EBUSY);
	assert_int_equal(uring_dev_open(uring, loop, name, DEV_OPEN_READ_ONLY, &other), -EBUSY);
	assert_int_equal(uring_dev_open(uring, loop, name, DEV_OPEN_SHARED, &other), 0);
	dev_close(other);
	raw = open(name, O_RDONLY | O_EXCL);
	assert_int_equal(raw, -1);
	assert_int_equal(loop_run_co(loop, basics, dev), 0);
	assert_int_equal(loop_run_co(loop, many, dev), 0);
	/* Pulled: reads give nothing, writes have no space. */
	replace_fd(dev, "/dev/null");
	assert_int_equal(loop_run_co(loop, reads_only, dev), -ENODEV);
	replace_fd(dev, "/dev/full");
	assert_int_equal(loop_run_co(loop, write_one, dev), -ENODEV);
	dev_close(dev);
	close(fd);
}

static void test_loop_device(void **state)
{
	check_loop_device(512);
	check_loop_device(4096);
}

/* What a device says of itself, and does not say. */
static void test_odd_device(void **state)
{
	struct dev *dev = NULL;
	char name[32];
	int fd = loop_device(name, sizeof(name), 512);

	assert_true(fd >= 0);
	odd.serial = "  S4EWNX0R123456 \n";
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &dev), 0);
	assert_string_equal(dev->serial, "S4EWNX0R123456");
	dev_close(dev);
	odd.serial = NULL;
	dev = NULL;
	odd.size_error = EIO;
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &dev), -EIO);
	assert_non_null(strstr(last_error, name));
	odd.size_error = 0;
	odd.sector_bytes = 16384;
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &dev), -EINVAL);
	assert_non_null(strstr(last_error, "16384"));
	odd.sector_bytes = 0;
	assert_null(dev);
	/* All is closed again: it can be opened by one alone. */
	assert_int_equal(uring_dev_open(uring, loop, name, 0, &dev), 0);
	dev_close(dev);
	close(fd);
}

/* A file whose filesystem wants larger units for direct I/O. */
static void test_odd_file(void **state)
{
	static const unsigned aligns[] = {512, 4096, 65536};

#ifndef STATX_DIOALIGN
	skip(); /* the headers are too old to ask */
#endif
	for (unsigned i = 0; i < 3; i++) {
		struct dev *dev;

		odd.dio_align = aligns[i];
		dev = open_file();
		assert_int_equal(dev->sector_bytes, aligns[i] == 4096 ? 4096 : 512);
		assert_int_equal(loop_run_co(loop, basics, dev), 0);
		dev_close(dev);
	}
	odd.dio_align = 0;
}

static void test_old_kernel(void **state)
{
	static const struct {
		int error, result;
		const char *about;
	} cases[] = {
	    {-ENOSYS, -ENOSYS, "kernel"},      {-EINVAL, -ENOSYS, "kernel"},    {-EPERM, -EPERM, "io_uring_disabled"},
	    {-EACCES, -EACCES, "not permitted"}, {-EMFILE, -EMFILE, "set it up"},
	};
	struct uring *u = NULL;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		odd.init_error = cases[i].error;
		assert_int_equal(uring_new(&u), cases[i].result);
		assert_non_null(strstr(last_error, cases[i].about));
	}
	odd.init_error = 0;
	odd.no_ext_arg = true;
	assert_int_equal(uring_new(&u), -ENOSYS);
	odd.no_ext_arg = false;
	assert_null(u);
}

enum { CROWD_DEVS = 4, CROWD_IOS = 700 };

static int crowd(void *arg)
{
	static struct io io[CROWD_DEVS][CROWD_IOS];
	struct dev **devs = arg;
	char *p = buf_get(CROWD_DEVS * 4096);
	struct io_batch batch;

	odd.refuse = 100;
	io_batch_init(&batch, loop);
	for (unsigned d = 0; d < CROWD_DEVS; d++)
		for (uint64_t i = 0; i < CROWD_IOS; i++)
			io_read(&batch, &io[d][i], devs[d], i * 4096, p + d * 4096, 4096);
	assert_int_equal(io_batch_wait(&batch), 0);
	assert_int_equal(odd.refuse, 0);
	buf_put(p);
	return 0;
}

/* A kernel short of memory takes nothing for a while: what waits is more than the queue holds, and all of it comes. */
static void test_kernel_refuses(void **state)
{
	struct dev *devs[CROWD_DEVS];
	char more[CROWD_DEVS][sizeof(path) + 4];

	for (unsigned d = 0; d < CROWD_DEVS; d++) {
		int fd;

		snprintf(more[d], sizeof(more[d]), "%s.%u", path, d);
		fd = open(more[d], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		assert_true(fd >= 0 && ftruncate(fd, SIZE_BYTES) == 0 && close(fd) == 0);
		assert_int_equal(uring_dev_open(uring, loop, more[d], 0, &devs[d]), 0);
	}
	assert_int_equal(loop_run_co(loop, crowd, devs), 0);
	for (unsigned d = 0; d < CROWD_DEVS; d++) {
		dev_close(devs[d]);
		assert_int_equal(unlink(more[d]), 0);
	}
}

/* ---- watches, hook, time ---- */

static struct {
	int fd;
	unsigned calls, hook_calls;
	bool take;
	struct uring_watch *watch;
} watched;

static void on_ready(void *arg)
{
	char byte;

	assert_null(co_self());
	watched.calls++;
	if (watched.take)
		assert_int_equal(read(watched.fd, &byte, 1), 1);
	if (watched.calls == 5) {
		uring_unwatch(uring, watched.watch); /* from inside */
		watched.watch = NULL;
		loop_stop(loop);
	}
}

static bool idle_hook(void *arg)
{
	return watched.hook_calls++ < 3;
}

static int two_calls(void *arg)
{
	while (watched.calls < 2)
		co_sleep_ns(NS_PER_MS);
	return 0;
}

static int sleeps(void *arg)
{
	uint64_t start = loop_now_ns(loop);

	co_sleep_ns(5 * NS_PER_MS);
	assert_true(loop_now_ns(loop) - start >= 5 * NS_PER_MS);
	assert_true(loop_random(loop) != loop_random(loop));
	return 0;
}

static void test_watch(void **state)
{
	int fds[2];

	memset(&watched, 0, sizeof(watched));
	assert_int_equal(pipe(fds), 0);
	watched.fd = fds[0];
	assert_int_equal(write(fds[1], "ab", 2), 2);
	loop_set_idle_hook(loop, idle_hook, NULL);
	assert_int_equal(uring_watch(uring, fds[0], on_ready, NULL, &watched.watch), 0);
	loop_run(loop); /* level: called again as long as nobody reads */
	assert_int_equal(watched.calls, 5);
	assert_true(watched.hook_calls >= 5);
	loop_set_idle_hook(loop, NULL, NULL);

	/* Taken out while the kernel has it, and then it becomes readable. */
	watched.calls = 0;
	watched.take = true;
	assert_int_equal(uring_watch(uring, fds[0], on_ready, NULL, &watched.watch), 0);
	assert_int_equal(loop_run_co(loop, two_calls, NULL), 0); /* takes a byte each time */
	assert_int_equal(loop_run_co(loop, sleeps, NULL), 0);
	assert_int_equal(watched.calls, 2);
	uring_unwatch(uring, watched.watch);
	assert_int_equal(write(fds[1], "c", 1), 1);
	assert_int_equal(loop_run_co(loop, sleeps, NULL), 0);
	assert_int_equal(watched.calls, 2);
	uring_unwatch(uring, NULL);
	close(fds[1]);
	close(fds[0]);

	/* One that cannot be watched is told once, and the others go on. */
	watched.calls = 0;
	assert_int_equal(uring_watch(uring, fds[0], on_ready, NULL, &watched.watch), 0);
	assert_int_equal(loop_run_co(loop, sleeps, NULL), 0);
	assert_int_equal(watched.calls, 0);
	assert_non_null(strstr(last_error, "watched descriptor"));
	last_error[0] = '\0';
	assert_int_equal(loop_run_co(loop, sleeps, NULL), 0);
	assert_string_equal(last_error, "");
	uring_unwatch(uring, watched.watch);
}

static void test_time(void **state)
{
	assert_int_equal(loop_run_co(loop, sleeps, NULL), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    T(test_file),      T(test_many),	      T(test_exclusive), T(test_free_at_once),   T(test_refused),
	    T(test_read_only), T(test_file_end),      T(test_file_full),   T(test_short),
	    T(test_deadline),  T(test_deadline_exit), T(test_loop_device), T(test_watch),
	    T(test_time),      T(test_odd_device),    T(test_odd_file),	   T(test_old_kernel),
	    T(test_kernel_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
