/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "fuse_kernel.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MESSAGE_BYTES (1u << 21)
#define ANSWERS_MAX   2048
#define PATIENCE_MS   60000

#define die(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "fuse_kernel: " __VA_ARGS__);                                      \
		fprintf(stderr, "\n");                                                             \
		exit(1);                                                                           \
	} while (0)

struct fk_cred fk_cred;

/* What goes over the socket beside messages: shorter than any header. */
struct order {
	int32_t error;
};

static struct {
	struct fk_setup setup;
	int server, kernel; /* the two ends */
	struct fk_mounted mounted;
	int sys_fd; /* what the front end opened of /sys */
	bool is_mounted, lose, gone;
	/* Guards the two above and below, and mounted: the front end calls from its threads. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	void (*on_inval)(uint64_t ino, int64_t off, int64_t len);
	unsigned invals;
	struct fuse_notify_inval_inode_out last_inval;
	/* The test's own. */
	uint64_t unique;
	char *out, *in;
	size_t out_len;
	struct answer {
		uint64_t unique;
		struct fk_reply reply;
	} answers[ANSWERS_MAX];
	unsigned answer_count;
	char *last; /* data of the reply given last */
} fk = {.server = -1,
	.kernel = -1,
	.sys_fd = -1,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER};

/* ---- what the front end calls ---- */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
ssize_t __real_read(int fd, void *data, size_t len);
ssize_t __wrap_read(int fd, void *data, size_t len);
ssize_t __real_writev(int fd, const struct iovec *iov, int count);
ssize_t __wrap_writev(int fd, const struct iovec *iov, int count);
int __wrap_mount(const char *source, const char *target, const char *type, unsigned long flags,
		 const void *data);
int __wrap_umount2(const char *target, int flags);
int __wrap_statx(int dir, const char *path, int flags, unsigned mask, struct statx *ret);

/* The mount's read-ahead in /sys: not that of what the mount point stands on. */
int __wrap_statx(int dir, const char *path, int flags, unsigned mask, struct statx *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->stx_dev_major = 0;
	ret->stx_dev_minor = 77;
	return 0;
}

int __wrap_open64(const char *path, int flags, ...)
{
	int mode = 0, fds[2], size = 8 << 20;
	va_list ap;

	if (flags & (O_CREAT | O_TMPFILE)) {
		va_start(ap, flags);
		mode = va_arg(ap, int);
		va_end(ap);
	}
	if (!strcmp(path, "/sys/class/bdi/0:77/read_ahead_kb")) {
		fk.sys_fd = memfd_create("read_ahead_kb", MFD_CLOEXEC);
		return dup(fk.sys_fd);
	}
	if (strcmp(path, "/dev/fuse") != 0)
		return __real_open64(path, flags, mode);
	if (fk.setup.open_error) {
		errno = fk.setup.open_error;
		return -1;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		die("no socket pair");
	for (int i = 0; i < 2; i++) {
		/* Root only; without it long messages are not tested. */
		if (setsockopt(fds[i], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
			(void)setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	}
	if (flags & O_NONBLOCK)
		(void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
	pthread_mutex_lock(&fk.lock);
	fk.server = fds[0];
	fk.kernel = fds[1];
	pthread_mutex_unlock(&fk.lock);
	return fds[0];
}

ssize_t __wrap_read(int fd, void *data, size_t len)
{
	ssize_t n = __real_read(fd, data, len);
	struct order order;

	if (fd != fk.server || fd < 0)
		return n;
	if (n == 0 && fk.gone) {
		errno = ENODEV;
		return -1;
	}
	if (n == (ssize_t)sizeof(order)) {
		memcpy(&order, data, sizeof(order));
		errno = order.error;
		return -1;
	}
	return n;
}

/* A notification: INVAL_INODE is the only one that the front end sends. */
static void notified(const struct iovec *iov, int count)
{
	struct fuse_notify_inval_inode_out arg;
	void (*hook)(uint64_t ino, int64_t off, int64_t len);

	if (count != 2 || iov[1].iov_len != sizeof(arg))
		die("a notification that is not understood");
	memcpy(&arg, iov[1].iov_base, sizeof(arg));
	pthread_mutex_lock(&fk.lock);
	fk.invals++;
	fk.last_inval = arg;
	hook = fk.on_inval;
	pthread_mutex_unlock(&fk.lock);
	if (hook)
		hook(arg.ino, arg.off, arg.len);
}

ssize_t __wrap_writev(int fd, const struct iovec *iov, int count)
{
	struct fuse_out_header head;
	size_t len = 0;
	bool lose;

	if (fd != fk.server || fd < 0)
		return __real_writev(fd, iov, count);
	for (int i = 0; i < count; i++)
		len += iov[i].iov_len;
	memcpy(&head, iov[0].iov_base, sizeof(head));
	if (iov[0].iov_len != sizeof(head) || head.len != len)
		die("an answer of %zu bytes says that it has %u", len, head.len);
	if (!head.unique) {
		notified(iov, count);
		return (ssize_t)len;
	}
	pthread_mutex_lock(&fk.lock);
	lose = fk.lose;
	fk.lose = false;
	pthread_mutex_unlock(&fk.lock);
	if (lose) {
		head.len = sizeof(head);
		head.error = FK_LOST;
		if (write(fd, &head, sizeof(head)) != sizeof(head))
			die("cannot tell that an answer was lost");
		errno = ENOENT;
		return -1;
	}
	return __real_writev(fd, iov, count);
}

int __wrap_mount(const char *source, const char *target, const char *type, unsigned long flags,
		 const void *data)
{
	struct fk_mounted *m = &fk.mounted;

	pthread_mutex_lock(&fk.lock);
	snprintf(m->source, sizeof(m->source), "%s", source);
	snprintf(m->target, sizeof(m->target), "%s", target);
	snprintf(m->type, sizeof(m->type), "%s", type);
	snprintf(m->data, sizeof(m->data), "%s", (const char *)data);
	m->flags = flags;
	fk.is_mounted = true;
	pthread_cond_broadcast(&fk.changed);
	pthread_mutex_unlock(&fk.lock);
	errno = fk.setup.mount_error;
	return fk.setup.mount_error ? -1 : 0;
}

int __wrap_umount2(const char *target, int flags)
{
	bool ours;

	pthread_mutex_lock(&fk.lock);
	fk.mounted.unmounts++;
	fk.mounted.umount_flags = flags;
	ours = fk.is_mounted && !strcmp(target, fk.mounted.target);
	pthread_mutex_unlock(&fk.lock);
	if (!ours) {
		errno = EINVAL;
		return -1;
	}
	fk_unmount();
	return 0;
}

/* ---- start and end ---- */

void fk_start(const struct fk_setup *setup)
{
	fk.setup = setup ? *setup : (struct fk_setup){0};
	memset(&fk.mounted, 0, sizeof(fk.mounted));
	fk.is_mounted = fk.lose = fk.gone = false;
	fk.on_inval = NULL;
	fk.invals = 0;
	fk.unique = 0;
	fk.out_len = 0;
	fk.server = fk.kernel = -1;
	fk.out = malloc(MESSAGE_BYTES);
	fk.in = malloc(MESSAGE_BYTES);
	fk_cred = (struct fk_cred){0};
	if (!fk.out || !fk.in)
		die("no memory");
}

void fk_end(void)
{
	if (fk.kernel >= 0)
		close(fk.kernel);
	if (fk.sys_fd >= 0)
		close(fk.sys_fd);
	fk.kernel = fk.server = fk.sys_fd = -1;
	while (fk.answer_count)
		free(fk.answers[--fk.answer_count].reply.data);
	free(fk.last);
	free(fk.out);
	free(fk.in);
	fk.last = fk.out = fk.in = NULL;
}

const struct fk_mounted *fk_mounted(void)
{
	return &fk.mounted;
}

void fk_wait_mounted(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_MS / 1000;
	pthread_mutex_lock(&fk.lock);
	while (!fk.is_mounted) {
		if (pthread_cond_timedwait(&fk.changed, &fk.lock, &until) == ETIMEDOUT)
			die("nobody mounts");
	}
	pthread_mutex_unlock(&fk.lock);
}

unsigned fk_readahead_kb(void)
{
	char text[32] = "";

	if (fk.sys_fd >= 0)
		(void)!pread(fk.sys_fd, text, sizeof(text) - 1, 0);
	return (unsigned)strtoul(text, NULL, 10);
}

/* ---- messages ---- */

void fk_begin(uint32_t opcode, uint64_t nodeid)
{
	struct fuse_in_header *h = (void *)fk.out;

	fk.unique += 2; /* odd ones are interrupts */
	*h = (struct fuse_in_header){
	    .opcode = opcode,
	    .unique = fk.unique,
	    .nodeid = nodeid,
	    .uid = fk_cred.uid,
	    .gid = fk_cred.gid,
	    .pid = fk_cred.pid,
	};
	fk.out_len = sizeof(*h);
}

void fk_add(const void *bytes, size_t len)
{
	if (fk.out_len + len > MESSAGE_BYTES)
		die("message too long");
	memcpy(fk.out + fk.out_len, bytes, len);
	fk.out_len += len;
}

void fk_add_name(const char *name)
{
	fk_add(name, strlen(name) + 1);
}

void fk_send_raw(const void *bytes, size_t len)
{
	ssize_t n;

	do {
		n = send(fk.kernel, bytes, len, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n != (ssize_t)len)
		die("cannot send %zu bytes: %s", len, strerror(errno));
}

uint64_t fk_send(void)
{
	struct fuse_in_header *h = (void *)fk.out;

	h->len = (uint32_t)fk.out_len;
	fk_send_raw(fk.out, fk.out_len);
	return h->unique;
}

/* Takes one message off the socket. False: none within the time. */
static bool receive(int patience_ms)
{
	struct pollfd p = {.fd = fk.kernel, .events = POLLIN};
	struct fuse_out_header head;
	struct answer *a;

	int ready;
	do {
		ready = poll(&p, 1, patience_ms);
	} while (ready < 0 && errno == EINTR); /* io_uring's doing */
	if (ready <= 0)
		return false;
	ssize_t n = recv(fk.kernel, fk.in, MESSAGE_BYTES, MSG_DONTWAIT);
	if (n < (ssize_t)sizeof(head))
		die("the front end is gone (%zd)", n);
	memcpy(&head, fk.in, sizeof(head));
	for (unsigned i = 0; i < fk.answer_count; i++) {
		if (fk.answers[i].unique == head.unique)
			die("request %llu is answered twice", (unsigned long long)head.unique);
	}
	if (fk.answer_count == ANSWERS_MAX)
		die("too many answers that nobody asked for");
	a = &fk.answers[fk.answer_count++];
	a->unique = head.unique;
	a->reply.error = head.error;
	a->reply.len = (size_t)n - sizeof(head);
	a->reply.data = malloc(a->reply.len + 1);
	if (!a->reply.data)
		die("no memory");
	memcpy(a->reply.data, fk.in + sizeof(head), a->reply.len);
	a->reply.data[a->reply.len] = 0;
	return true;
}

static struct answer *answer_of(uint64_t unique)
{
	for (unsigned i = 0; i < fk.answer_count; i++) {
		if (fk.answers[i].unique == unique)
			return &fk.answers[i];
	}
	return NULL;
}

struct fk_reply fk_wait(uint64_t unique)
{
	struct answer *a;
	struct fk_reply r;

	while (!(a = answer_of(unique))) {
		if (!receive(PATIENCE_MS))
			die("request %llu is not answered", (unsigned long long)unique);
	}
	r = a->reply;
	*a = fk.answers[--fk.answer_count];
	free(fk.last);
	fk.last = r.data;
	return r;
}

bool fk_answered(uint64_t unique)
{
	while (receive(0))
		;
	return answer_of(unique) != NULL;
}

struct fk_reply fk_run(void)
{
	return fk_wait(fk_send());
}

struct fk_reply fk_call(uint32_t opcode, uint64_t nodeid, const void *arg, size_t len,
			const char *name)
{
	fk_begin(opcode, nodeid);
	if (arg)
		fk_add(arg, len);
	if (name)
		fk_add_name(name);
	return fk_run();
}

struct fk_reply fk_init(uint32_t minor, uint32_t flags, uint32_t flags2)
{
	struct fuse_init_in in = {
	    .major = FUSE_KERNEL_VERSION,
	    .minor = minor,
	    .max_readahead = 128 << 10,
	    .flags = flags,
	    .flags2 = flags2,
	};

	return fk_call(FUSE_INIT, 0, &in, sizeof(in), NULL);
}

/* ---- trouble ---- */

void fk_fail_read(int error)
{
	struct order order = {.error = error};

	fk_send_raw(&order, sizeof(order));
}

void fk_lose_reply(void)
{
	pthread_mutex_lock(&fk.lock);
	fk.lose = true;
	pthread_mutex_unlock(&fk.lock);
}

void fk_unmount(void)
{
	pthread_mutex_lock(&fk.lock);
	fk.gone = true;
	fk.is_mounted = false;
	pthread_mutex_unlock(&fk.lock);
	if (fk.kernel >= 0)
		(void)shutdown(fk.kernel, SHUT_WR);
}

void fk_on_inval(void (*hook)(uint64_t ino, int64_t off, int64_t len))
{
	pthread_mutex_lock(&fk.lock);
	fk.on_inval = hook;
	pthread_mutex_unlock(&fk.lock);
}

unsigned fk_invals(struct fuse_notify_inval_inode_out *ret_last)
{
	unsigned n;

	pthread_mutex_lock(&fk.lock);
	n = fk.invals;
	if (ret_last)
		*ret_last = fk.last_inval;
	pthread_mutex_unlock(&fk.lock);
	return n;
}
