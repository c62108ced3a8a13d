/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The real world: one io_uring for member I/O, readiness of descriptors and waiting.
 *
 * Way of an I/O
 *
 *	submit --> waiting list of its device --> slot, SQE --> kernel --> CQE --> io_done
 *	               (fill, at poll or kick)
 *
 * submit only queues. At each poll the queues become SQEs, and one system call gives them all to
 *the kernel and waits; so a batch, and all batches of a round, cost one system call. A device has
 *SLOTS_PER_DEV slots: what is inside the kernel. They bound what one hung device can take, and all
 *together fit into the completion queue.
 *
 * Deadlines. A hung device never answers, and the kernel cannot be made to forget a read into our
 *memory. So at the deadline the I/O is answered -ETIMEDOUT, and its slot becomes an orphan: it no
 *longer refers to the struct io (which goes away), but keeps the memory pinned until the kernel
 *completes it. Pinning at the deadline and not at submit costs the ordinary path nothing, and is as
 *good: nobody may put memory before its I/O was answered. All I/O of a device is in one list by due
 *time, since a later submission has a later deadline, and one loop timer looks at its head: no
 *timer per I/O. The clock starts anew when an I/O enters the kernel, and an I/O that waits for a
 *slot is not given up while its device makes progress: a long queue is not a hang. Linked time-outs
 *were rejected: one more SQE per I/O, and they cancel the request, which for a block device means
 *to wait for it all the same.
 *
 * Closing a device with orphans only takes it out of service; its slots are freed by the last
 *completion. A device that never completes keeps its file open, and thus its lock, as long as the
 *process lives.
 *
 * The kernel takes the iovecs at submission (IORING_FEAT_SUBMIT_STABLE, implied by what is asked
 *for below), so they need no copy: the caller's stay valid until io_done, and after a time-out
 *nothing is submitted again.
 */
#include "uring.h"

#include "buf.h"

#include <ctype.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define SQ_ENTRIES	  1024
#define CQ_ENTRIES	  32768 /* 64 members with all their slots */
#define SLOTS_PER_DEV	  512
#define REAP_BATCH	  64
#define REAP_MAX	  (4 * SQ_ENTRIES) /* completions handled in one poll */
#define RETRIES_MAX	  8		   /* of an I/O that the kernel said to try again */
#define RESUBMIT_NS	  NS_PER_MS	   /* the kernel took no SQEs: look again soon */
#define ORPHAN_RETRY_NS	  (100 * NS_PER_MS)
#define GIVE_BACK_TRIES	  100 /* 1 ms apart */
#define SECTOR_BYTES_FILE 512 /* of an image file whose filesystem does not say */

enum tag_kind { TAG_SLOT, TAG_WATCH };
/* What the user data of an SQE points to. 0 is for SQEs whose completion nobody waits for. */
struct tag {
	enum tag_kind kind;
};

struct uring_dev;

struct slot {
	struct tag tag;
	unsigned retries;
	struct uring_dev *dev;
	struct slot *next_free;
	struct io *io; /* NULL: orphan */
	uint64_t done_bytes;
	/* Memory pinned for an orphan. */
	struct iovec *orphan_iov;
	unsigned orphan_count;
};

struct uring_dev {
	struct dev dev;
	struct list node; /* uring.devs or uring.closing */
	struct uring *uring;
	struct loop *loop;
	int fd;
	bool is_block, exclusive;
	struct list waiting; /* io.queue_node */
	struct list due;     /* io.due_node of all that has a deadline, ascending */
	struct loop_timer timer;
	uint64_t progress_ns; /* last completion */
	struct slot *slots, *free_slots;
	unsigned in_kernel;
};

struct uring_watch {
	struct tag tag;
	struct list node;
	int fd;
	bool armed; /* the kernel has it */
	bool dead;  /* freed when the kernel has answered */
	bool failed;
	void (*ready)(void *arg);
	void *arg;
};

struct uring {
	struct io_uring ring;
	struct list devs, closing;
	struct list watches;
	uint64_t random;
	uint64_t reap_ns; /* when the completions that are being handled were taken */
	bool refused; /* the kernel did not take all SQEs */
};

/* ---- completing ---- */

static void slot_free(struct slot *s)
{
	struct uring_dev *d = s->dev;

	s->io = NULL;
	s->next_free = d->free_slots;
	d->free_slots = s;
	assert(d->in_kernel > 0);
	d->in_kernel--;
}

static void dev_free(struct uring_dev *d)
{
	list_del(&d->node);
	mem_free(d->slots);
	mem_free(d);
}

static void finish(struct io *io, int result)
{
	list_del(&io->due_node);
	io_done(io, result);
}

static int map_error(const struct uring_dev *d, enum io_op op, int err)
{
	switch (err) {
	case 0:
		/* No progress: the end of a file, or of a device that has just shrunk to nothing.
		 */
		return d->is_block && op == IO_READ ? -ENODEV : -EIO;
	case -ENODEV:
	case -ENXIO:
		return -ENODEV;
	case -ENOSPC:
		/* A write to a drive that was pulled. On a file it says that the host is full. */
		return d->is_block ? -ENODEV : -EIO;
	case -EPERM: /* what Linux says of a block device that was set read-only while open */
	case -EROFS:
		return op == IO_WRITE ? -EROFS : -EIO;
	default:
		return -EIO;
	}
}

static bool worth_retrying(int err)
{
	return err == -EAGAIN || err == -EINTR || err == -ECANCELED || err == -ENOMEM;
}

static void orphan_complete(struct slot *s)
{
	for (unsigned i = 0; i < s->orphan_count; i++)
		buf_unpin(s->orphan_iov[i].iov_base);
	mem_free(s->orphan_iov);
	s->orphan_iov = NULL;
	s->orphan_count = 0;
	slot_free(s);
}

static bool slot_send(struct slot *s);

static void slot_complete(struct slot *s, int res)
{
	struct uring_dev *d = s->dev;
	struct io *io = s->io;
	int result = 0;

	d->progress_ns = d->uring->reap_ns;
	if (!io) {
		orphan_complete(s);
		return;
	}
	if (worth_retrying(res) && s->retries < RETRIES_MAX) {
		s->retries++;
		goto again;
	}
	if (io->op == IO_FLUSH) {
		result = res < 0 ? map_error(d, io->op, res) : 0;
	} else if (res <= 0) {
		result = map_error(d, io->op, res);
		d->dev.read_only |= result == -EROFS;
	} else {
		s->done_bytes += (unsigned)res;
		assert(s->done_bytes <= io->len_bytes);
		if (s->done_bytes < io->len_bytes)
			goto again;
	}
	if (result)
		log_debug("%s: %s of %llu bytes at %llu: %s", d->dev.name,
			  io->op == IO_READ    ? "read"
			  : io->op == IO_WRITE ? "write"
					       : "flush",
			  (unsigned long long)io->len_bytes, (unsigned long long)io->off_bytes,
			  res < 0 ? strerror(-res) : "no progress");
	slot_free(s);
	finish(io, result);
	return;
again:
	if (slot_send(s))
		return;
	/* The kernel takes nothing now: from the beginning, later. */
	slot_free(s);
	io->priv = NULL;
	list_add(&d->waiting, &io->queue_node);
}

/* ---- sending ---- */

/*
 * A signal, or a kernel short of memory: what was not taken stays in the ring and is tried again by
 * the next poll. The rest are our mistakes, such as use by another thread or after a fork.
 */
static void check_enter(struct uring *u, int res)
{
	assert(res != -EEXIST && res != -EBADF && res != -EFAULT && res != -EINVAL &&
	       res != -EOPNOTSUPP && res != -ENXIO);
	if (res < 0 && io_uring_sq_ready(&u->ring))
		u->refused = true;
}

/* NULL when the kernel takes nothing at the moment. */
static struct io_uring_sqe *get_sqe(struct uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	if (sqe)
		return sqe;
	check_enter(u, io_uring_submit(&u->ring));
	sqe = io_uring_get_sqe(&u->ring);
	if (!sqe)
		u->refused = true;
	return sqe;
}

/*
 * The rest of an I/O, from done_bytes on. Short I/O inside of a vector goes on segment by segment,
 * which needs no changed copy of the vector.
 */
static bool slot_send(struct slot *s)
{
	struct uring_dev *d = s->dev;
	struct io *io = s->io;
	struct io_uring_sqe *sqe = get_sqe(d->uring);
	uint64_t off_bytes = io->off_bytes + s->done_bytes, skip = s->done_bytes;
	char *data = io->data;
	uint64_t len_bytes = io->len_bytes;
	unsigned i = 0;

	if (!sqe)
		return false;
	if (io->op == IO_FLUSH) {
		io_uring_prep_fsync(sqe, d->fd, IORING_FSYNC_DATASYNC);
		io_uring_sqe_set_data(sqe, &s->tag);
		return true;
	}
	if (io->iov) {
		while (skip >= io->iov[i].iov_len)
			skip -= io->iov[i++].iov_len;
		data = io->iov[i].iov_base;
		len_bytes = io->iov[i].iov_len;
	}
	if (io->iov && skip == 0 && io->iov_count - i > 1) {
		if (io->op == IO_READ)
			io_uring_prep_readv(sqe, d->fd, io->iov + i, io->iov_count - i, off_bytes);
		else
			io_uring_prep_writev(sqe, d->fd, io->iov + i, io->iov_count - i, off_bytes);
	} else if (io->op == IO_READ) {
		io_uring_prep_read(sqe, d->fd, data + skip,
				   (unsigned)MIN(len_bytes - skip, 1u << 30), off_bytes);
	} else {
		io_uring_prep_write(sqe, d->fd, data + skip,
				    (unsigned)MIN(len_bytes - skip, 1u << 30), off_bytes);
	}
	/* On block devices this is the FUA bit, or a flush behind the write where the device does not know it. */
	if (io->fua && d->dev.volatile_cache)
		sqe->rw_flags = RWF_DSYNC;
	io_uring_sqe_set_data(sqe, &s->tag);
	return true;
}

static uint64_t due_of(const struct uring_dev *d, uint64_t from_ns)
{
	return from_ns > LOOP_NEVER - d->dev.deadline_ns ? LOOP_NEVER
							 : from_ns + d->dev.deadline_ns;
}

/* At the end of the list, which stays ascending even if somebody has shortened deadline_ns
 * meanwhile. */
static void due_set(struct uring_dev *d, struct io *io, uint64_t due_ns)
{
	list_del(&io->due_node);
	if (!d->dev.deadline_ns)
		return;
	if (!list_empty(&d->due))
		due_ns = MAX(due_ns, list_entry(d->due.prev, struct io, due_node)->due_ns);
	io->due_ns = due_ns;
	list_add_tail(&d->due, &io->due_node);
	if (!loop_timer_armed(&d->timer))
		loop_timer_arm(d->loop, &d->timer, due_ns);
}

static void fill_dev(struct uring_dev *d)
{
	uint64_t now_ns = 0;

	while (!list_empty(&d->waiting) && d->free_slots) {
		struct io *io = list_first(&d->waiting, struct io, queue_node);
		struct slot *s = d->free_slots;

		s->io = io;
		s->retries = 0;
		s->done_bytes = 0;
		if (!slot_send(s)) {
			s->io = NULL;
			return;
		}
		d->free_slots = s->next_free;
		d->in_kernel++;
		list_del(&io->queue_node);
		io->priv = s;
		if (!now_ns)
			now_ns = loop_now_ns(d->loop);
		due_set(d, io, due_of(d, now_ns));
	}
}

static void dev_submit(struct dev *dev, struct io *io)
{
	struct uring_dev *d = container_of(dev, struct uring_dev, dev);

	io->priv = NULL;
	list_init(&io->due_node);
	list_add_tail(&d->waiting, &io->queue_node);
	due_set(d, io, due_of(d, loop_round_ns(d->loop))); /* anew when it enters the kernel */
}

static void push(struct uring *u)
{
	if (io_uring_sq_ready(&u->ring))
		check_enter(u, io_uring_submit_and_get_events(&u->ring));
}

static void dev_kick(struct dev *dev)
{
	struct uring_dev *d = container_of(dev, struct uring_dev, dev);

	fill_dev(d);
	push(d->uring);
}

/* ---- deadlines ---- */

/* Lets go of the io of a slot, pinning its memory. False without memory for the list of pins. */
static bool make_orphan(struct slot *s)
{
	struct io *io = s->io;
	struct iovec plain = {io->data, io->len_bytes};
	const struct iovec *iov = io->iov ? io->iov : &plain;
	unsigned count = io->iov ? io->iov_count : 1;

	if (io->op == IO_FLUSH)
		count = 0;
	s->orphan_iov = mem_alloc(count * sizeof(*iov));
	if (!s->orphan_iov)
		return false;
	s->orphan_count = 0;
	for (unsigned i = 0; i < count; i++) {
		if (!buf_in_pool(iov[i].iov_base))
			continue;
		buf_pin(iov[i].iov_base);
		s->orphan_iov[s->orphan_count++] = iov[i];
	}
	s->io = NULL;
	return true;
}

static void deadline_passed(struct loop_timer *timer)
{
	struct uring_dev *d = container_of(timer, struct uring_dev, timer);
	uint64_t now_ns = loop_now_ns(d->loop);

	while (!list_empty(&d->due)) {
		struct io *io = list_first(&d->due, struct io, due_node);
		struct slot *s = io->priv;

		if (io->due_ns > now_ns) {
			loop_timer_arm(d->loop, timer, io->due_ns);
			return;
		}
		if (!s && due_of(d, d->progress_ns) > now_ns) {
			due_set(d, io, due_of(d, d->progress_ns));
			continue;
		}
		/*
		 * An SQE that the kernel has not taken yet still refers to the caller's vector: it
		 * must go first. Both this and a lack of memory only make the answer late.
		 */
		if (s) {
			push(d->uring);
			if (io_uring_sq_ready(&d->uring->ring) || !make_orphan(s)) {
				loop_timer_arm(d->loop, timer, now_ns + ORPHAN_RETRY_NS);
				return;
			}
		}
		log_debug("%s: no answer within %llu ms", d->dev.name,
			  (unsigned long long)(d->dev.deadline_ns / NS_PER_MS));
		list_del(&io->queue_node);
		finish(io, -ETIMEDOUT);
	}
}

/* ---- the loop's backend ---- */

static uint64_t backend_now_ns(void *ctx)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail */
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static uint64_t backend_random(void *ctx)
{
	struct uring *u = ctx;

	/* xorshift64* */
	u->random ^= u->random >> 12;
	u->random ^= u->random << 25;
	u->random ^= u->random >> 27;
	return u->random * 2685821657736338717ull;
}

static void watch_free(struct uring_watch *w)
{
	list_del(&w->node);
	mem_free(w);
}

static void watches_arm(struct uring *u)
{
	struct uring_watch *w;

	list_for_each (w, &u->watches, node) {
		struct io_uring_sqe *sqe;

		if (w->armed || w->dead || w->failed)
			continue;
		sqe = get_sqe(u);
		if (!sqe)
			return;
		io_uring_prep_poll_add(sqe, w->fd, POLLIN);
		io_uring_sqe_set_data(sqe, &w->tag);
		w->armed = true;
	}
}

static void watch_complete(struct uring_watch *w, int res)
{
	w->armed = false;
	if (w->dead) {
		watch_free(w);
		return;
	}
	if (worth_retrying(res))
		return;
	if (res < 0) {
		/* Asking again would be answered the same at once, for ever. */
		log_error("watched descriptor %d: %s", w->fd, strerror(-res));
		w->failed = true;
		return;
	}
	w->ready(w->arg);
}

static void reap(struct uring *u)
{
	struct io_uring_cqe *cqes[REAP_BATCH];
	struct {
		struct tag *tag;
		int res;
	} got[REAP_BATCH];
	unsigned total = 0, count;

	while (total < REAP_MAX &&
	       (count = io_uring_peek_batch_cqe(&u->ring, cqes, REAP_BATCH)) > 0) {
		/* Copied out first: callbacks may submit, and that may come back to the queues. */
		for (unsigned i = 0; i < count; i++) {
			got[i].tag = io_uring_cqe_get_data(cqes[i]);
			got[i].res = cqes[i]->res;
		}
		io_uring_cq_advance(&u->ring, count);
		u->reap_ns = backend_now_ns(u);
		for (unsigned i = 0; i < count; i++) {
			if (!got[i].tag)
				continue;
			if (got[i].tag->kind == TAG_SLOT)
				slot_complete(container_of(got[i].tag, struct slot, tag),
					      got[i].res);
			else
				watch_complete(container_of(got[i].tag, struct uring_watch, tag),
					       got[i].res);
		}
		total += count;
	}
}

static void free_closed(struct uring *u)
{
	struct uring_dev *d, *tmp;

	list_for_each_safe (d, tmp, &u->closing, node)
		if (d->in_kernel == 0)
			dev_free(d);
}

static void backend_poll(void *ctx, uint64_t until_ns)
{
	struct uring *u = ctx;
	struct io_uring_cqe *cqe;
	struct uring_dev *d;
	uint64_t now_ns, wait_ns;

	u->refused = false;
	watches_arm(u);
	list_for_each (d, &u->devs, node)
		fill_dev(d);
	now_ns = until_ns == 0 || until_ns == LOOP_NEVER ? 0 : backend_now_ns(u);
	if (until_ns <= now_ns || io_uring_cq_ready(&u->ring)) {
		push(u);
	} else if (until_ns == LOOP_NEVER && !u->refused) {
		check_enter(u, io_uring_submit_and_wait(&u->ring, 1));
	} else {
		struct __kernel_timespec ts;

		wait_ns = until_ns - now_ns;
		if (u->refused)
			wait_ns = MIN(wait_ns, RESUBMIT_NS);
		ts.tv_sec = (int64_t)(wait_ns / NS_PER_S);
		ts.tv_nsec = (long long)(wait_ns % NS_PER_S);
		check_enter(u, io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &ts, NULL));
	}
	reap(u);
	free_closed(u);
}

const struct loop_backend uring_backend = {
    .now_ns = backend_now_ns,
    .poll = backend_poll,
    .random = backend_random,
};

/* ---- opening devices ---- */

/* First line of a file in the device's directory in sysfs, or of its disk if it is a partition. */
static bool sysfs_read(dev_t rdev, const char *name, char *text, size_t bytes)
{
	static const char *const where[] = {"", "../"};

	for (unsigned i = 0; i < ARRAY_SIZE(where); i++) {
		char path[256];
		FILE *f;
		bool got;

		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s%s", major(rdev), minor(rdev),
			 where[i], name);
		f = fopen(path, "re");
		if (!f)
			continue;
		got = fgets(text, (int)bytes, f) != NULL;
		(void)fclose(f); /* only read */
		if (!got)
			continue;
		for (size_t len = strlen(text); len > 0 && isspace((unsigned char)text[len - 1]);)
			text[--len] = '\0';
		return true;
	}
	return false;
}

static void read_serial(dev_t rdev, char *serial, size_t bytes)
{
	char text[128];
	const char *begin = text;

	if (!sysfs_read(rdev, "device/serial", text, sizeof(text)) &&
	    !sysfs_read(rdev, "serial", text, sizeof(text)))
		return;
	while (isspace((unsigned char)*begin))
		begin++;
	snprintf(serial, bytes, "%.*s", (int)bytes - 1, begin);
}

static int setup_block(struct uring_dev *d, const struct stat *st)
{
	char text[64];
	int sector_bytes;

	if (ioctl(d->fd, BLKGETSIZE64, &d->dev.size_bytes) ||
	    ioctl(d->fd, BLKSSZGET, &sector_bytes)) {
		int err = -errno;

		log_error("%s: cannot ask for its size: %s", d->dev.name, strerror(-err));
		return err;
	}
	if (sector_bytes < 512 || (unsigned)sector_bytes > BLOCK_BYTES) {
		log_error("%s: sectors of %d bytes: got more than %u", d->dev.name, sector_bytes,
			  BLOCK_BYTES);
		return -EINVAL;
	}
	d->dev.sector_bytes = (uint32_t)sector_bytes;
	/* Unknown counts as volatile: a flush too many is only slow. */
	d->dev.volatile_cache = !sysfs_read(st->st_rdev, "queue/write_cache", text, sizeof(text)) ||
				strcmp(text, "write through") != 0;
	read_serial(st->st_rdev, d->dev.serial, sizeof(d->dev.serial));
	return 0;
}

/* Direct I/O on a file works in units of its filesystem's choice, where it works at all. */
static int setup_file(struct uring_dev *d, const struct stat *st)
{
	int flags = fcntl(d->fd, F_GETFL);
	const char *why = "not supported";
	bool direct;

	d->dev.size_bytes = (uint64_t)st->st_size;
	d->dev.sector_bytes = SECTOR_BYTES_FILE;
	/* The host's page cache and the disk below: only fdatasync says when it is safe. */
	d->dev.volatile_cache = true;
	direct = flags >= 0 && fcntl(d->fd, F_SETFL, flags | O_DIRECT) == 0;
#ifdef STATX_DIOALIGN
	if (direct) {
		struct statx sx;

		if (statx(d->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
		    (sx.stx_mask & STATX_DIOALIGN)) {
			uint32_t align = MAX(sx.stx_dio_offset_align, sx.stx_dio_mem_align);

			if (align == 0 || align > BLOCK_BYTES) {
				why = "alignment above 4096";
				direct = false;
				if (fcntl(d->fd, F_SETFL, flags & ~O_DIRECT))
					return -errno;
			} else if (sx.stx_dio_offset_align > SECTOR_BYTES_FILE) {
				d->dev.sector_bytes = BLOCK_BYTES;
			}
		}
	}
#endif
	if (!direct)
		log_debug("%s: direct I/O: %s: going through the page cache", d->dev.name, why);
	return 0;
}

static int open_fd(const char *path, unsigned flags, struct stat *st)
{
	bool read_only = flags & (DEV_OPEN_READ_ONLY | DEV_OPEN_SHARED);
	int mode = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	struct stat before;
	int fd, err;

	/* Asked before opening: a fifo would block, a tape would rewind. */
	if (stat(path, &before))
		return -errno;
	if (!S_ISBLK(before.st_mode) && !S_ISREG(before.st_mode))
		return -ENOTBLK;
	if (S_ISBLK(before.st_mode))
		mode |= O_DIRECT | (flags & DEV_OPEN_SHARED ? 0 : O_EXCL);
	fd = open(path, mode);
	if (fd < 0)
		return -errno;
	/* And after it: the name may have got another meaning. */
	if (fstat(fd, st))
		goto failed;
	if ((st->st_mode & S_IFMT) != (before.st_mode & S_IFMT) || st->st_rdev != before.st_rdev) {
		errno = EBUSY;
		goto failed;
	}
	/* Only to get through open: meaningless on these, but it would make io_uring answer EAGAIN.
	 */
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK))
		goto failed;
	if (S_ISREG(st->st_mode) && !(flags & DEV_OPEN_SHARED) && flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno == EWOULDBLOCK)
			errno = EBUSY;
		goto failed;
	}
	return fd;
failed:
	err = -errno;
	(void)close(fd); /* nothing was written */
	return err;
}

static int slots_init(struct uring_dev *d)
{
	d->slots = mem_zalloc(SLOTS_PER_DEV * sizeof(*d->slots));
	if (!d->slots)
		return -ENOMEM;
	for (unsigned i = SLOTS_PER_DEV; i-- > 0;) {
		d->slots[i].tag.kind = TAG_SLOT;
		d->slots[i].dev = d;
		d->slots[i].next_free = d->free_slots;
		d->free_slots = &d->slots[i];
	}
	return 0;
}

/*
 * The kernel may keep an open file a moment longer than we do: the worker that ran a flush drops its
 * reference some time after we saw it complete, and then only when we enter the ring again. Whoever
 * comes next must find the member free all the same.
 */
static void give_back(struct uring_dev *d)
{
	struct stat st;
	int fd = -EBUSY;

	/* What hangs there may still be written: nobody may have it. */
	bool free_now = d->exclusive && !d->in_kernel;

	if (free_now && !d->is_block)
		(void)flock(d->fd, LOCK_UN);
	(void)close(d->fd); /* what counts was flushed, and a late error has no receiver */
	d->fd = -1;
	for (int i = 0; free_now && d->is_block && fd == -EBUSY && i < GIVE_BACK_TRIES; i++) {
		static const struct timespec pause = {.tv_nsec = 1000000};

		if (i > 0)
			(void)nanosleep(&pause, NULL);
		(void)io_uring_get_events(&d->uring->ring);
		fd = open_fd(d->dev.name, DEV_OPEN_READ_ONLY, &st);
	}
	if (fd >= 0)
		(void)close(fd);
}

static void dev_ops_close(struct dev *dev)
{
	struct uring_dev *d = container_of(dev, struct uring_dev, dev);

	assert(list_empty(&d->waiting) && list_empty(&d->due));
	loop_timer_cancel(d->loop, &d->timer);
	give_back(d);
	list_del(&d->node);
	if (d->in_kernel)
		list_add_tail(&d->uring->closing, &d->node);
	else
		dev_free(d);
}

static const struct dev_ops uring_dev_ops = {
    .submit = dev_submit,
    .kick = dev_kick,
    .close = dev_ops_close,
};

static const char *open_error_text(int err)
{
	switch (err) {
	case -ENOTBLK:
		return "neither a block device nor a regular file";
	case -EBUSY:
		return "in use by somebody else (mounted, or another trussfs program)";
	default:
		return strerror(-err);
	}
}

int uring_dev_open(struct uring *u, struct loop *loop, const char *path, unsigned flags,
		   struct dev **ret)
{
	struct uring_dev *d;
	struct stat st;
	int fd, err;

	fd = open_fd(path, flags, &st);
	if (fd < 0) {
		log_error("%s: cannot open: %s", path, open_error_text(fd));
		return fd;
	}
	d = mem_zalloc(sizeof(*d));
	if (!d || slots_init(d)) {
		mem_free(d);
		(void)close(fd); /* nothing was written */
		return -ENOMEM;
	}
	d->uring = u;
	d->loop = loop;
	d->fd = fd;
	d->is_block = S_ISBLK(st.st_mode);
	d->exclusive = !(flags & DEV_OPEN_SHARED);
	d->dev.ops = &uring_dev_ops;
	d->dev.read_only = flags & (DEV_OPEN_READ_ONLY | DEV_OPEN_SHARED);
	d->dev.deadline_ns = IO_DEADLINE_NS_DEFAULT;
	snprintf(d->dev.name, sizeof(d->dev.name), "%s", path);
	list_init(&d->waiting);
	list_init(&d->due);
	loop_timer_init(&d->timer, deadline_passed);
	list_add_tail(&u->devs, &d->node);
	err = d->is_block ? setup_block(d, &st) : setup_file(d, &st);
	if (err) {
		dev_ops_close(&d->dev);
		return err;
	}
	d->dev.size_bytes = ROUND_DOWN(d->dev.size_bytes, BLOCK_BYTES);
	*ret = &d->dev;
	return 0;
}

int uring_dev_fd(struct dev *dev)
{
	return container_of(dev, struct uring_dev, dev)->fd;
}

/* ---- watches ---- */

int uring_watch(struct uring *u, int fd, void (*ready)(void *arg), void *arg,
		struct uring_watch **ret)
{
	struct uring_watch *w = mem_zalloc(sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->tag.kind = TAG_WATCH;
	w->fd = fd;
	w->ready = ready;
	w->arg = arg;
	list_add_tail(&u->watches, &w->node);
	*ret = w;
	return 0;
}

void uring_unwatch(struct uring *u, struct uring_watch *w)
{
	struct io_uring_sqe *sqe;

	if (!w)
		return;
	w->dead = true;
	if (!w->armed) {
		watch_free(w);
		return;
	}
	/* Without an SQE it stays with the kernel until it fires; nobody is called then either. */
	sqe = get_sqe(u);
	if (sqe) {
		io_uring_prep_poll_remove(sqe, (uint64_t)(uintptr_t)&w->tag);
		io_uring_sqe_set_data(sqe, NULL);
	}
}

/* ---- the ring ---- */

/*
 * Completions are run when we ask for them and not by interrupting us, which is what a loop wants;
 * kernels before 6.1 do not know how, and those before 5.19 not even half of it.
 */
static int ring_init(struct io_uring *ring)
{
	static const unsigned flags[] = {
	    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
	    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
	    0,
	};
	int err = -EINVAL;

	for (unsigned i = 0; i < ARRAY_SIZE(flags) && err == -EINVAL; i++) {
		struct io_uring_params params = {
		    .flags = flags[i] | IORING_SETUP_CQSIZE,
		    .cq_entries = CQ_ENTRIES,
		};

		err = io_uring_queue_init_params(SQ_ENTRIES, ring, &params);
		if (!err && !(params.features & IORING_FEAT_EXT_ARG)) {
			io_uring_queue_exit(ring);
			return -ENOSYS;
		}
	}
	return err;
}

int uring_new(struct uring **ret)
{
	struct uring *u = mem_zalloc(sizeof(*u));
	int err;

	if (!u)
		return -ENOMEM;
	err = ring_init(&u->ring);
	if (err) {
		if (err == -ENOSYS || err == -EINVAL)
			log_error("io_uring: this kernel has none, or an old one: 5.11 is needed");
		else if (err == -EPERM || err == -EACCES)
			log_error(
			    "io_uring: not permitted: see the sysctl kernel.io_uring_disabled, "
			    "or the seccomp filter of a container");
		else
			log_error("io_uring: cannot set it up: %s", strerror(-err));
		mem_free(u);
		return err == -EINVAL ? -ENOSYS : err;
	}
	list_init(&u->devs);
	list_init(&u->closing);
	list_init(&u->watches);
	/* Early in boot there may be no entropy yet; the clock will do. */
	if (getrandom(&u->random, sizeof(u->random), GRND_NONBLOCK) != sizeof(u->random))
		u->random = backend_now_ns(u);
	u->random |= 1; /* 0 would stay 0 */
	*ret = u;
	return 0;
}

void uring_free(struct uring *u)
{
	if (!u)
		return;
	assert(list_empty(&u->devs));
	io_uring_queue_exit(&u->ring);
	while (!list_empty(&u->watches))
		watch_free(list_first(&u->watches, struct uring_watch, node));
	while (!list_empty(&u->closing)) {
		struct uring_dev *d = list_first(&u->closing, struct uring_dev, node);

		/* What a hung device holds stays pinned: it may still write there. */
		for (unsigned i = 0; i < SLOTS_PER_DEV; i++)
			mem_free(d->slots[i].orphan_iov);
		dev_free(d);
	}
	mem_free(u);
}
