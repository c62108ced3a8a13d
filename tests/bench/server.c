/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two FUSE servers that are limits: what the filesystem's mount is measured against.
 *
 *   null   answers from memory: what FUSE costs. One thread (-T: more) that blocks in read(2).
 *   thin   the filesystem's loop and member I/O, each read and write of /file forwarded to one raw
 *          member; no RAID, checksum or filesystem: what FUSE and the I/O cost together. Offsets go
 *          round the members in pieces of 1 MiB; what crosses a border is two I/Os. Data goes
 *          between the receive buffer and the member, and the member and the reply, without a copy.
 *          fsync flushes the members written since their last flush.
 *
 * Mount options and what INIT negotiates are those of fs/fuse.c, which this file does not share
 * otherwise: a yardstick must not move with what it measures. Other names than /file, and the sizes of
 * files, are kept in memory by both; their data is not: reads give zeros.
 */
#define FUSE_USE_VERSION 314

#include "names.h"
#include "raid/buf.h"
#include "raid/co.h"
#include "raid/uring.h"

#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TIMEOUT_S	 86400.0
#define MESSAGE_BYTES	 (1u << 20) /* of data in one request */
#define BACKGROUND_MAX	 128u
#define ROUND_MAX	 64u
#define SMALL_BYTES	 1024u
#define LARGE_MAX	 160u
#define REQUESTS_MAX	 1024u
#define PIECE_BYTES	 (1u << 20)
#define READAHEAD_KB	 4096u
#define WRITE_HEAD_BYTES (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
#define LARGE_BYTES	 (MESSAGE_BYTES + 2 * BLOCK_BYTES) /* head, data, and what aligns it */
#define POOL_BYTES	 (768u << 20)

struct request {
	struct request *next;
	char *msg;
	size_t len;
	char *large; /* receive buffer that it keeps */
	_Alignas(16) char small[SMALL_BYTES];
};

static struct fuse_session *se;
static const char *mount_point;
static bool writeback_cache = true, thin;
static int fuse_fd;
static unsigned threads = 1;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct names_inode *file; /* the one with data, of the thin server */
static uint64_t file_bytes;
static char zeros[MESSAGE_BYTES] __attribute__((aligned(BLOCK_BYTES)));

/* thin */
static struct uring *uring;
static struct loop *loop;
static struct uring_watch *watch;
static struct dev *devs[64];
static bool written[64];
static unsigned dev_count;
static struct request *idle;
static unsigned requests;
static char *large[LARGE_MAX];
static unsigned large_count;
static bool busy, stalled, gone;

/* ---- names ---- */

static struct names_inode *inode_of(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? names_root() : (struct names_inode *)(uintptr_t)ino;
}

static void lock(void)
{
	if (threads > 1)
		pthread_mutex_lock(&names_lock);
}

static void unlock(void)
{
	if (threads > 1)
		pthread_mutex_unlock(&names_lock);
}

static struct fuse_entry_param entry_of(struct names_inode *n)
{
	names_ref(n);
	return (struct fuse_entry_param){
	    .ino = (fuse_ino_t)(uintptr_t)n, .attr = n->st, .attr_timeout = TIMEOUT_S, .entry_timeout = TIMEOUT_S};
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {.entry_timeout = TIMEOUT_S};

	lock();
	struct names_inode *n = names_find(inode_of(parent), name);
	if (n)
		e = entry_of(n);
	unlock();
	fuse_reply_entry(req, &e);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	lock();
	names_unref(inode_of(ino), count);
	unlock();
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *f)
{
	lock();
	for (size_t i = 0; i < count; i++)
		names_unref(inode_of(f[i].ino), f[i].nlookup);
	unlock();
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fuse_reply_attr(req, &inode_of(ino)->st, TIMEOUT_S);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int set, struct fuse_file_info *fi)
{
	struct stat *to = &inode_of(ino)->st;

	if (set & FUSE_SET_ATTR_MODE)
		to->st_mode = (to->st_mode & S_IFMT) | (st->st_mode & 07777);
	if (set & FUSE_SET_ATTR_UID)
		to->st_uid = st->st_uid;
	if (set & FUSE_SET_ATTR_GID)
		to->st_gid = st->st_gid;
	if (set & FUSE_SET_ATTR_SIZE && inode_of(ino) != file)
		to->st_size = st->st_size;
	if (set & FUSE_SET_ATTR_MTIME)
		to->st_mtim = st->st_mtim;
	fuse_reply_attr(req, to, TIMEOUT_S);
}

static struct names_inode *add(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
			       struct fuse_entry_param *ret)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	lock();
	struct names_inode *n = names_add(inode_of(parent), name, mode & ~ctx->umask);
	if (n) {
		n->st.st_uid = ctx->uid;
		n->st.st_gid = ctx->gid;
		*ret = entry_of(n);
	}
	unlock();
	return n;
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct fuse_entry_param e;

	if (add(req, parent, name, mode, &e))
		fuse_reply_entry(req, &e);
	else
		fuse_reply_err(req, ENOMEM);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	op_mknod(req, parent, name, S_IFDIR | (mode & 07777), 0);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fuse_entry_param e;

	fi->keep_cache = 1;
	if (add(req, parent, name, S_IFREG | (mode & 07777), &e))
		fuse_reply_create(req, &e, fi);
	else
		fuse_reply_err(req, ENOMEM);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	int e = 0;

	lock();
	struct names_inode *n = names_find(inode_of(parent), name);
	if (!n || n == file)
		e = n ? EPERM : ENOENT;
	else if (n->children)
		e = ENOTEMPTY;
	else
		names_remove(n);
	unlock();
	fuse_reply_err(req, e);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
		      const char *new_name, unsigned flags)
{
	lock();
	struct names_inode *n = names_find(inode_of(parent), name);
	int e = flags ? -EINVAL : n ? names_move(n, inode_of(new_parent), new_name) : -ENOENT;
	unlock();
	fuse_reply_err(req, -e);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	char *out = malloc(size);
	size_t used = 0;

	if (!out) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	lock();
	/* Newest first, each with its own cookie: what is removed meanwhile moves nobody. */
	for (struct names_inode *n = inode_of(ino)->children; n; n = n->older) {
		if (off && n->cookie >= (uint64_t)off)
			continue;
		size_t need = fuse_add_direntry(req, out + used, size - used, n->name, &n->st, (off_t)n->cookie);
		if (need > size - used)
			break;
		used += need;
	}
	unlock();
	fuse_reply_buf(req, out, used);
	free(out);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->keep_cache = 1;
	fuse_reply_open(req, fi);
}

static void op_ok(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs v = {.f_bsize = 4096, .f_frsize = 4096, .f_blocks = 1 << 30, .f_bfree = 1 << 29,
			    .f_bavail = 1 << 29, .f_files = 1 << 30, .f_ffree = 1 << 29, .f_namemax = 255};

	fuse_reply_statfs(req, &v);
}

/* ---- data ---- */

/* The part of a range that lies in one piece. */
static uint64_t place(uint64_t off, size_t len, struct dev **ret_dev, unsigned *ret_index, size_t *ret_len)
{
	uint64_t piece = off / PIECE_BYTES, in = off % PIECE_BYTES;

	*ret_index = (unsigned)(piece % dev_count);
	*ret_dev = devs[*ret_index];
	*ret_len = MIN(len, (size_t)(PIECE_BYTES - in));
	return piece / dev_count * PIECE_BYTES + in;
}

static int forward(enum io_op op, uint64_t off, char *data, size_t len)
{
	struct io_batch batch;
	struct io io[3];
	unsigned n = 0;

	io_batch_init(&batch, loop);
	for (size_t part; len; off += part, data += part, len -= part) {
		struct dev *d;
		unsigned index;
		uint64_t at = place(off, len, &d, &index, &part);
		if (op == IO_READ) {
			io_read(&batch, &io[n++], d, at, data, part);
		} else {
			io_write(&batch, &io[n++], d, at, data, part);
			written[index] = true;
		}
	}
	return io_batch_wait(&batch);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct names_inode *n = inode_of(ino);

	size = off >= n->st.st_size ? 0 : MIN(MIN(size, (size_t)MESSAGE_BYTES), (size_t)(n->st.st_size - off));
	if (n != file || !thin || !size) {
		fuse_reply_buf(req, zeros, size);
		return;
	}
	uint64_t start = ROUND_DOWN((uint64_t)off, BLOCK_BYTES);
	size_t room = ROUND_UP((uint64_t)off + size, BLOCK_BYTES) - start;
	char *data = buf_get_wait(room);
	int e = forward(IO_READ, start, data, room);
	if (e)
		fuse_reply_err(req, -e);
	else
		fuse_reply_buf(req, data + ((uint64_t)off - start), size);
	buf_put(data);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	struct names_inode *n = inode_of(ino);

	if (n == file && thin) {
		int e = ((uint64_t)off | size) % BLOCK_BYTES || (uint64_t)off + size > file_bytes
			    ? -EINVAL
			    : forward(IO_WRITE, (uint64_t)off, (char *)(uintptr_t)data, size);
		if (e) {
			fuse_reply_err(req, -e);
			return;
		}
	}
	n->st.st_size = MAX(n->st.st_size, off + (off_t)size);
	fuse_reply_write(req, size);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	int e = 0;

	if (inode_of(ino) == file && thin) {
		struct io_batch batch;
		struct io io[ARRAY_SIZE(devs)];
		io_batch_init(&batch, loop);
		for (unsigned i = 0; i < dev_count; i++) {
			if (!written[i])
				continue;
			written[i] = false;
			io_flush(&batch, &io[i], devs[i]);
		}
		e = io_batch_wait(&batch);
	}
	fuse_reply_err(req, -e);
}

static void op_init(void *arg, struct fuse_conn_info *conn)
{
	unsigned want = FUSE_CAP_ASYNC_READ | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS |
			FUSE_CAP_CACHE_SYMLINKS;

	if (writeback_cache)
		want |= FUSE_CAP_WRITEBACK_CACHE;
	conn->want = conn->capable & want;
	conn->max_write = MESSAGE_BYTES;
	conn->max_read = 0;
	conn->max_readahead = UINT32_MAX;
	conn->max_background = BACKGROUND_MAX;
	conn->congestion_threshold = BACKGROUND_MAX / 4 * 3;
	conn->time_gran = 1;
}

static const struct fuse_lowlevel_ops ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .create = op_create,
    .unlink = op_unlink,
    .rmdir = op_unlink,
    .rename = op_rename,
    .opendir = op_open,
    .readdir = op_readdir,
    .releasedir = op_ok,
    .fsyncdir = op_fsync,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .flush = op_ok,
    .release = op_ok,
    .fsync = op_fsync,
    .statfs = op_statfs,
};

/* ---- carrying requests ---- */

static ssize_t custom_read(int fd, void *data, size_t len, void *arg)
{
	return read(fd, data, len);
}

static ssize_t custom_writev(int fd, struct iovec *iov, int count, void *arg)
{
	return writev(fd, iov, count);
}

static void set_readahead(void)
{
	char path[64], text[16];
	struct stat st;

	if (stat(mount_point, &st) < 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", (unsigned)(st.st_dev >> 8),
		 (unsigned)(st.st_dev & 255));
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	(void)!write(fd, text, (size_t)snprintf(text, sizeof(text), "%u", READAHEAD_KB)); /* better effort */
	close(fd);
}

static void *prepare_thread(void *arg)
{
	set_readahead();
	puts("ready");
	fflush(stdout);
	return NULL;
}

/* stat(2) asks us: another thread does it. */
static int prepare(void)
{
	pthread_t t;
	int r = pthread_create(&t, NULL, prepare_thread, NULL);

	return r ? -r : -pthread_detach(t);
}

/* null: each thread reads and answers. */
static void *serve_blocking(void *arg)
{
	char *buf = aligned_alloc(BLOCK_BYTES, LARGE_BYTES);

	for (;;) {
		ssize_t n = read(fuse_fd, buf, LARGE_BYTES);
		if (n < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
			continue;
		if (n <= 0)
			break;
		struct fuse_buf b = {.size = (size_t)n, .mem = buf};
		fuse_session_process_buf(se, &b);
	}
	free(buf);
	return NULL;
}

/* thin: as fs/fuse.c, a coroutine for what may wait. */
static void request_put(struct request *q)
{
	if (q->large)
		large[large_count++] = q->large;
	q->next = idle;
	idle = q;
	if (stalled) {
		stalled = false;
		busy = true;
	}
}

static void request_run(void *arg)
{
	struct request *q = arg;
	struct fuse_buf b = {.size = q->len, .mem = q->msg};

	fuse_session_process_buf(se, &b);
	request_put(q);
}

static struct request *request_get(void)
{
	struct request *q = idle;

	if (q)
		idle = q->next;
	else if (requests < REQUESTS_MAX && (q = mem_alloc(sizeof(*q))))
		requests++;
	if (q)
		q->large = NULL;
	return q;
}

static void connection_gone(void)
{
	gone = true;
	busy = false;
	if (watch)
		uring_unwatch(uring, watch);
	watch = NULL;
	loop_stop(loop);
}

static void drain(void *arg)
{
	for (unsigned i = 0; i < ROUND_MAX && !gone; i++) {
		struct request *q = large_count ? request_get() : NULL;
		if (!q) {
			stalled = true;
			busy = false;
			return;
		}
		char *buf = large[large_count - 1];
		ssize_t n = read(fuse_fd, buf, LARGE_BYTES - BLOCK_BYTES + WRITE_HEAD_BYTES);
		if (n < 0) {
			request_put(q);
			if (errno == EINTR || errno == ENOENT)
				continue;
			busy = false;
			if (errno != EAGAIN)
				connection_gone();
			return;
		}
		q->len = (size_t)n;
		if (q->len <= SMALL_BYTES) {
			memcpy(q->small, buf, q->len);
			q->msg = q->small;
		} else {
			q->msg = q->large = buf;
			large_count--;
		}
		const struct fuse_in_header *in = (const void *)q->msg;
		bool waits = in->opcode == FUSE_READ || in->opcode == FUSE_WRITE || in->opcode == FUSE_FSYNC;
		if (!waits || co_start(loop, request_run, q) < 0)
			request_run(q);
	}
	busy = !gone;
}

static bool drain_idle(void *arg)
{
	if (gone || !busy)
		return false;
	drain(NULL);
	return busy;
}

static int open_members(char **paths, int count)
{
	uint64_t least = UINT64_MAX;
	int e = uring_new(&uring);

	if (e)
		return e;
	loop = loop_new(&uring_backend, uring);
	e = loop ? buf_pool_init(POOL_BYTES) : -ENOMEM;
	for (int i = 0; i < count && !e; i++) {
		e = uring_dev_open(uring, loop, paths[i], 0, &devs[i]);
		if (e)
			break;
		least = MIN(least, devs[dev_count]->size_bytes);
		dev_count++;
	}
	if (e == 0 && least / PIECE_BYTES * PIECE_BYTES * dev_count < file_bytes) {
		fprintf(stderr, "bench-fuse: the members are too small for the file\n");
		e = -ENOSPC;
	}
	for (; e == 0 && large_count < LARGE_MAX; large_count++) {
		char *p = buf_get(LARGE_BYTES);
		if (!p)
			return -ENOMEM;
		large[large_count] = p + BLOCK_BYTES - WRITE_HEAD_BYTES;
	}
	return e;
}

static int serve(void)
{
	pthread_t t[64];
	unsigned n = 0;
	int e = prepare();

	if (e)
		return e;
	if (!thin) {
		for (; n + 1 < threads && n < ARRAY_SIZE(t); n++)
			pthread_create(&t[n], NULL, serve_blocking, NULL);
		serve_blocking(NULL);
		while (n)
			pthread_join(t[--n], NULL);
		return 0;
	}
	e = uring_watch(uring, fuse_fd, drain, NULL, &watch);
	if (e)
		return e;
	loop_set_idle_hook(loop, drain_idle, NULL);
	loop_run(loop);
	return 0;
}

static int mount_here(void)
{
	char data[128];

	fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC | (thin ? O_NONBLOCK : 0));
	if (fuse_fd < 0)
		return -errno;
	snprintf(data, sizeof(data), "fd=%d,rootmode=40755,user_id=%u,group_id=%u,default_permissions,allow_other",
		 fuse_fd, getuid(), getgid());
	return mount("bench", mount_point, thin ? "fuse.benchthin" : "fuse.benchnull", 0, data) < 0 ? -errno : 0;
}

int main(int argc, char **argv)
{
	static const struct fuse_custom_io io = {.writev = custom_writev, .read = custom_read};
	char *fuse_argv[] = {(char *)"bench-fuse", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(1, fuse_argv);
	int c, e = 0;

	while ((c = getopt(argc, argv, "T:Wz:")) != -1) {
		switch (c) {
		case 'T': threads = (unsigned)atoi(optarg); break;
		case 'W': writeback_cache = false; break;
		case 'z': file_bytes = (uint64_t)atoll(optarg) << 20; break;
		default: goto usage;
		}
	}
	if (argc - optind < 1)
		goto usage;
	mount_point = argv[optind++];
	thin = optind < argc;
	signal(SIGPIPE, SIG_IGN);
	if (thin)
		e = argc - optind > (int)ARRAY_SIZE(devs) ? -E2BIG : open_members(argv + optind, argc - optind);
	file = names_add(names_root(), "file", S_IFREG | 0644);
	if (e == 0 && !file)
		e = -ENOMEM;
	if (e == 0) {
		file->st.st_size = (off_t)file_bytes;
		se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
		e = se ? mount_here() : -ENOMEM;
	}
	if (e == 0) {
		e = fuse_session_custom_io(se, &io, fuse_fd);
		e = e ? e : serve();
		(void)umount2(mount_point, MNT_DETACH); /* EINVAL: unmounted by others, as it should be */
	}
	if (e)
		fprintf(stderr, "bench-fuse: %s: %s\n", mount_point, strerror(-e));
	return e ? 1 : 0;
usage:
	fputs("usage: bench-fuse [-T THREADS] [-W (no write-back cache)] [-z FILE-MIB] MOUNTPOINT [MEMBER...]\n"
	      "  without members: the null server; with: the thin one\n",
	      stderr);
	return 2;
}
