/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The FUSE front end: the session. Its handlers are in fuse_ops.c and fuse_file.c.
 *
 * Requests are read from /dev/fuse by the loop thread whenever the descriptor is readable, many in
 * a row, and each is handed to libfuse's decoder inside a coroutine of its own. So the handlers
 * are straight code: they call fs.h, which may wait for members, and then reply; the
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
 * because its reply to INIT has to be amended: libfuse 3.14 does not pass on FUSE_PARALLEL_DIROPS,
 * without which the kernel looks up one name at a time in each directory, and does not know
 * FUSE_HANDLE_KILLPRIV_V2, without which the kernel asks for security.capability before every
 * single write(2). With it the kernel says in each write whether set-id bits must go; libfuse does
 * not pass that on, so handlers look at the raw message.
 *
 * Attributes and names are cached by the kernel for TIMEOUT_S, absent names too: nobody but this
 * kernel changes anything. The one exception, set-id bits cleared by a write, is told to it.
 */
#include "fuse_ops.h"
#include "raid/buf.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REQUESTS_MAX 1024u
#define ROUND_MAX    64u /* requests taken before members get their turn */
static_assert(LARGE_MAX > BACKGROUND_MAX && REQUESTS_MAX > LARGE_MAX, "see LARGE_MAX");
#define READAHEAD_KB	 4096u
#define WRITE_HEAD_BYTES (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
/* What libfuse and the kernel want of a receive buffer, and room to align. */
#define LARGE_BYTES (WRITE_BYTES_MAX + 4 * BLOCK_BYTES)

/* Newer than the oldest kernel headers we build with. */
#ifndef FUSE_HANDLE_KILLPRIV_V2
#define FUSE_HANDLE_KILLPRIV_V2 (1 << 28)
#endif
/* libfuse 3.14 does not know the first, and knows but never answers the second. */
#define INIT_FLAGS_WANTED (FUSE_HANDLE_KILLPRIV_V2 | FUSE_PARALLEL_DIROPS)
static_assert(sizeof(struct fuse_in_header) == 40, "protocol");
static_assert(sizeof(struct fuse_write_in) == 40, "protocol");

/* ---- replies ---- */

static ssize_t custom_read(int fd, void *data, size_t len, void *userdata)
{
	return read(fd, data, len);
}

/* Every reply passes here; the one to INIT gets the flags that libfuse 3.14 does not set. */
static ssize_t custom_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	struct fs_fuse *f = userdata;

	if (f->init_unique && count >= 2) {
		const struct fuse_out_header *head = iov[0].iov_base;
		if (iov[0].iov_len == sizeof(*head) && head->unique == f->init_unique &&
		    iov[1].iov_len >= offsetof(struct fuse_init_out, max_background)) {
			struct fuse_init_out *out = iov[1].iov_base;
			out->flags |= f->init_offered & INIT_FLAGS_WANTED;
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

	struct fuse_buf b = {.size = q->len_bytes, .mem = q->msg};

	if (front_raw(f, in, q->len_bytes))
		return;
	f->current = q;
	fuse_session_process_buf(f->se, &b);
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

/*
 * libfuse takes the sizes on trust. What of each request must be there: a fixed part, as kernels
 * send it since io_uring came (5.11, protocol 7.32), then strings.
 */
static const struct {
	uint32_t opcode;
	uint16_t fixed_bytes, strings;
} shapes[] = {
    {FUSE_LOOKUP, 0, 1},
    {FUSE_FORGET, sizeof(struct fuse_forget_in), 0},
    {FUSE_GETATTR, sizeof(struct fuse_getattr_in), 0},
    {FUSE_SETATTR, sizeof(struct fuse_setattr_in), 0},
    {FUSE_SYMLINK, 0, 2},
    {FUSE_MKNOD, sizeof(struct fuse_mknod_in), 1},
    {FUSE_MKDIR, sizeof(struct fuse_mkdir_in), 1},
    {FUSE_UNLINK, 0, 1},
    {FUSE_RMDIR, 0, 1},
    {FUSE_RENAME, sizeof(struct fuse_rename_in), 2},
    {FUSE_LINK, sizeof(struct fuse_link_in), 1},
    {FUSE_OPEN, sizeof(struct fuse_open_in), 0},
    {FUSE_READ, sizeof(struct fuse_read_in), 0},
    {FUSE_WRITE, sizeof(struct fuse_write_in), 0},
    {FUSE_RELEASE, sizeof(struct fuse_release_in), 0},
    {FUSE_FSYNC, sizeof(struct fuse_fsync_in), 0},
    {FUSE_SETXATTR, FUSE_COMPAT_SETXATTR_IN_SIZE, 1},
    {FUSE_GETXATTR, sizeof(struct fuse_getxattr_in), 1},
    {FUSE_LISTXATTR, sizeof(struct fuse_getxattr_in), 0},
    {FUSE_REMOVEXATTR, 0, 1},
    {FUSE_FLUSH, sizeof(struct fuse_flush_in), 0},
    {FUSE_INIT, offsetof(struct fuse_init_in, flags2), 0},
    {FUSE_OPENDIR, sizeof(struct fuse_open_in), 0},
    {FUSE_READDIR, sizeof(struct fuse_read_in), 0},
    {FUSE_RELEASEDIR, sizeof(struct fuse_release_in), 0},
    {FUSE_FSYNCDIR, sizeof(struct fuse_fsync_in), 0},
    {FUSE_CREATE, sizeof(struct fuse_create_in), 1},
    {FUSE_INTERRUPT, sizeof(struct fuse_interrupt_in), 0},
    {FUSE_BATCH_FORGET, sizeof(struct fuse_batch_forget_in), 0},
    {FUSE_FALLOCATE, sizeof(struct fuse_fallocate_in), 0},
    {FUSE_READDIRPLUS, sizeof(struct fuse_read_in), 0},
    {FUSE_RENAME2, sizeof(struct fuse_rename2_in), 2},
    {FUSE_LSEEK, sizeof(struct fuse_lseek_in), 0},
};

/* Whether libfuse's decoder and the handlers stay within the message. Others than these have no
 * handler. */
static bool message_ok(const struct request *q)
{
	const struct fuse_in_header *in = (const void *)q->msg;
	const void *arg = in + 1;
	size_t i = 0, at = sizeof(*in);

	if (in->len != q->len_bytes)
		return false;
	while (i < ARRAY_SIZE(shapes) && shapes[i].opcode != in->opcode)
		i++;
	if (i == ARRAY_SIZE(shapes))
		return true;
	at += shapes[i].fixed_bytes;
	if (at > q->len_bytes)
		return false;
	for (unsigned n = shapes[i].strings; n; n--) {
		const char *end = memchr(q->msg + at, 0, q->len_bytes - at);
		if (!end)
			return false;
		at = (size_t)(end + 1 - q->msg);
	}
	/* What follows says its length itself. */
	switch (in->opcode) {
	case FUSE_WRITE:
		return ((const struct fuse_write_in *)arg)->size <= q->len_bytes - at;
	case FUSE_SETXATTR:
		return ((const struct fuse_setxattr_in *)arg)->size <= q->len_bytes - at;
	case FUSE_BATCH_FORGET:
		return ((const struct fuse_batch_forget_in *)arg)->count <=
		       (q->len_bytes - at) / sizeof(struct fuse_forget_one);
	default:
		return true;
	}
}

/* Not as the protocol has it: nothing is done. */
static void request_refuse(struct request *q)
{
	const struct fuse_in_header *in = (const void *)q->msg;

	log_error("/dev/fuse: request %u of %zu bytes is malformed", in->opcode, q->len_bytes);
	if (in->opcode != FUSE_FORGET && in->opcode != FUSE_BATCH_FORGET &&
	    in->opcode != FUSE_INTERRUPT)
		front_reply_raw(q->front, in->unique, -EINVAL, NULL, 0, NULL);
	request_put(q);
}

/* q->msg holds a whole message. */
static void request_start(struct request *q)
{
	const struct fuse_in_header *in = (const void *)q->msg;
	struct fs_fuse *f = q->front;

	if (!message_ok(q)) {
		request_refuse(q);
		return;
	}
	if (in->opcode == FUSE_INIT) {
		const struct fuse_init_in *init = (const void *)(in + 1);
		f->init_unique = in->unique;
		f->init_offered = init->flags;
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
		front_reply_raw(f, in->unique, -ENOMEM, NULL, 0, NULL);
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
	loop_set_idle_hook(loop, front_idle, f);
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
	loop_set_idle_hook(f->loop, NULL, NULL);
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
