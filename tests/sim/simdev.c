/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A simulated member in memory.
 *
 * What it holds, what is durable of it and what a crash leaves is store.c's; here are I/O, its order in time,
 * and what goes wrong with it.
 *
 * What is in flight when a member freezes (crash, pulled) has by then written any of its sectors:
 * it becomes entries whose blocks are mixed from old and new. The same mixing serves failed and
 * torn writes.
 *
 * Data of a write is taken from memory block by block, some at submission and some at completion,
 * as a DMA engine might: whoever changes a buffer in flight writes a mixture and finds out.
 */
#include "simdev.h"
#include "raid/buf.h"
#include "store.h"
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#define LATENCY_NS_LO (20 * 1000ull)
#define LATENCY_NS_HI (200 * 1000ull)
#define SLOW_ONE_IN   64
#define SLOW_TIMES    30
#define DEAD_NS_MAX   (20 * 1000ull) /* how soon a dead handle answers -ENODEV */
#define NS_PER_BLOCK  300ull	     /* 13 GB/s: long I/O takes longer than short */

struct simdev {
	struct world_thing thing;
	struct world *world;
	char name[64];
	unsigned id; /* in traces */
	struct simdev_params params;
	struct store store;
	uint64_t seq; /* of the last completed write */
	struct rng rng; /* what the medium does: crash lottery, faults */
	struct list handles;
	unsigned handle_count;
	struct list inflight; /* struct sim_io, in order of submission */
	struct simfault faults[SIMFAULTS_MAX];
	unsigned fault_count;
	uint64_t faults_hit, errors_given;
	struct simfail *fail;
	simfate_fn *fate;
	void *fate_arg;
	void (*hit)(void *arg, struct simdev *d, uint8_t tag);
	void *hit_arg;
	bool gone, read_only, shrunk;
	struct simdev_stats stats;
};

struct handle {
	struct dev dev;
	struct simdev *d;
	struct list node;
	bool dead;   /* of a run that crashed, or the member was pulled */
	bool closed; /* freed with the last I/O in flight */
	unsigned inflight;
};

struct sim_io {
	struct list node;
	struct world_event ev;
	struct handle *h;
	struct io *io; /* NULL once the submitter has been told -ETIMEDOUT */
	enum io_op op;
	bool fua;
	uint64_t off_bytes, len_bytes;
	struct iovec *iov, one; /* our own copy: the submitter's dies at the deadline */
	unsigned iov_count;
	struct simblock *
	    *early; /* of a write: blocks taken at submission; NULL: taken at completion */
	uint64_t flush_seq;
	uint64_t done_ns; /* when the device lets go; LOOP_NEVER: hung */
	uint64_t due_ns;  /* deadline; LOOP_NEVER: none */
	uint64_t piece_ns; /* of short I/O: how long the second piece takes; 0: there is none to come */
	struct simfault fault;
	bool faulted;
	bool fails; /* -EIO without effect (struct simfail) */
	bool dying; /* completes with -ENODEV and without effect */
};

static void tell_hit(struct simdev *d, uint8_t tag)
{
	if (tag && d->hit)
		d->hit(d->hit_arg, d, tag);
}

/* ---- I/O ---- */

/* The memory of the n-th block of an I/O. Calls come in ascending order; the cursor remembers. */
struct cursor {
	unsigned iov;
	uint64_t base; /* blocks before that iovec */
};

static uint8_t *io_memory(const struct sim_io *s, struct cursor *c, uint64_t n)
{
	while (n - c->base >= s->iov[c->iov].iov_len / BLOCK_BYTES) {
		c->base += s->iov[c->iov].iov_len / BLOCK_BYTES;
		c->iov++;
		assert(c->iov < s->iov_count);
	}
	return (uint8_t *)s->iov[c->iov].iov_base + (n - c->base) * BLOCK_BYTES;
}

/* The content of the n-th block of a write. A new reference. */
static struct simblock *io_block(struct sim_io *s, struct cursor *c, uint64_t n)
{
	if (s->early && s->early[n])
		return block_ref(s->early[n]);
	return block_share(io_memory(s, c, n));
}

static void take_early(struct sim_io *s)
{
	uint64_t count = s->len_bytes / BLOCK_BYTES;
	struct rng *r = world_rng(s->h->d->world);
	uint64_t bits = rng_next(r);
	struct cursor c = {0};

	switch (rng_below(r, 3)) {
	case 0:
		return;
	case 1:
		bits = UINT64_MAX;
		break;
	}
	s->early = must(calloc(count, sizeof(*s->early)));
	for (uint64_t i = 0; i < count; i++) {
		if (bits >> i % 64 & 1)
			s->early[i] = block_share(io_memory(s, &c, i));
	}
}

static uint64_t shifted(const struct simdev *d, uint64_t off_bytes, uint64_t by_bytes)
{
	return (off_bytes / BLOCK_BYTES + by_bytes / BLOCK_BYTES) % d->store.blocks;
}

static bool durable_at_once(const struct sim_io *s)
{
	bool cached = s->faulted && (s->fault.kind == SIMFAULT_LYING_FLUSH || s->fault.kind == SIMFAULT_EIO_FLUSH);

	return !s->h->d->params.volatile_cache || (s->fua && !cached);
}

static void carry_out_write(struct sim_io *s, uint64_t first, bool partial, unsigned keep,
			    unsigned garble)
{
	struct simdev *d = s->h->d;
	struct cursor c = {0};

	d->seq++;
	for (uint64_t i = 0; i < s->len_bytes / BLOCK_BYTES; i++) {
		uint64_t at = (first + i) % d->store.blocks;
		struct simblock *b = io_block(s, &c, i);

		if (partial) {
			struct simblock *whole = b;

			b = store_mix(&d->store, store_visible(&d->store, at), whole, keep, garble);
			block_unref(whole);
		}
		store_write(&d->store, at, b, d->seq, durable_at_once(s));
	}
}

/*
 * The first piece of a short I/O: `sectors` from the front. Reading again what comes with the second piece
 * changes nothing that a caller may rely on.
 */
static void carry_out_piece(struct sim_io *s)
{
	struct simdev *d = s->h->d;
	uint64_t all = s->len_bytes / d->params.sector_bytes, left;
	struct cursor c = {0};

	left = all > 1 ? rng_range(&d->rng, 1, all - 1) * d->params.sector_bytes : 0;
	if (s->op == IO_WRITE)
		d->seq++;
	for (uint64_t i = 0; left; i++) {
		uint64_t at = s->off_bytes / BLOCK_BYTES + i, n = MIN(left, (uint64_t)BLOCK_BYTES);
		struct simblock *old = store_visible(&d->store, at), *b;

		if (s->op == IO_READ) {
			uint8_t *to = io_memory(s, &c, i);

			if (old)
				memcpy(to, old->data, n);
			else
				memset(to, 0, n);
		} else {
			struct simblock *new = io_block(s, &c, i);

			b = block_new(old ? old->data : NULL);
			memcpy(b->data, new->data, n);
			block_unref(new);
			store_write(&d->store, at, b, d->seq, !d->params.volatile_cache);
		}
		left -= n;
	}
}

/* What was in flight when the member froze: any of its sectors. */
static void freeze_write(struct sim_io *s)
{
	struct simdev *d = s->h->d;
	bool durable = !d->params.volatile_cache;

	/* It goes to the pending list in any case, for the lottery to see. */
	d->params.volatile_cache = true;
	s->fua = false;
	carry_out_write(s, s->off_bytes / BLOCK_BYTES, !d->fate, (unsigned)rng_below(&d->rng, 101),
			d->params.crash_garble);
	d->params.volatile_cache = !durable;
}

static int carry_out_read(struct sim_io *s)
{
	struct simdev *d = s->h->d;
	struct cursor c = {0};
	uint64_t count = s->len_bytes / BLOCK_BYTES;
	uint64_t rot = UINT64_MAX;

	if (s->faulted && s->fault.kind == SIMFAULT_EIO_READ)
		return -EIO;
	if (s->faulted && s->fault.kind == SIMFAULT_ROT_READ)
		rot = rng_below(&d->rng, count);
	for (uint64_t i = 0; i < count; i++) {
		struct simblock *b = store_visible(&d->store, s->off_bytes / BLOCK_BYTES + i);
		uint8_t *to = io_memory(s, &c, i);

		tell_hit(d, store_marked(&d->store, s->off_bytes / BLOCK_BYTES + i));

		if (b)
			memcpy(to, b->data, BLOCK_BYTES);
		else
			memset(to, 0, BLOCK_BYTES);
		if (i == rot)
			to[rng_below(&d->rng, BLOCK_BYTES)] ^=
			    (uint8_t)(1u << rng_below(&d->rng, 8));
	}
	return 0;
}

static int carry_out_changes(struct sim_io *s)
{
	struct simdev *d = s->h->d;
	uint64_t first = s->off_bytes / BLOCK_BYTES;

	if (s->op == IO_FLUSH) {
		if (s->faulted && s->fault.kind == SIMFAULT_EIO_FLUSH)
			return -EIO;
		if (!s->faulted || s->fault.kind != SIMFAULT_LYING_FLUSH)
			store_flush(&d->store, s->flush_seq);
		return 0;
	}
	if (d->read_only)
		return -EIO;
	if (!s->faulted) {
		carry_out_write(s, first, false, 0, 0);
		return 0;
	}
	switch (s->fault.kind) {
	case SIMFAULT_EIO_WRITE:
		carry_out_write(s, first, true, (unsigned)rng_below(&d->rng, 101), 0);
		return -EIO;
	case SIMFAULT_EIO_FLUSH:
		carry_out_write(s, first, false, 0, 0);
		return -EIO;
	case SIMFAULT_LOST:
		return 0;
	case SIMFAULT_MISDIRECTED:
		carry_out_write(s, shifted(d, s->off_bytes, s->fault.param), false, 0, 0);
		return 0;
	case SIMFAULT_DUPLICATE:
		carry_out_write(s, shifted(d, s->off_bytes, s->fault.param), false, 0, 0);
		break;
	case SIMFAULT_TORN:
		carry_out_write(s, first, true, 50, 0);
		return 0;
	default:
		break;
	}
	carry_out_write(s, first, false, 0, 0);
	return 0;
}

static void handle_put(struct handle *h)
{
	if (!h->closed || h->inflight)
		return;
	list_del(&h->node);
	free(h);
}

static void sim_io_free(struct sim_io *s)
{
	struct handle *h = s->h;

	world_event_cancel(h->d->world, &s->ev);
	list_del(&s->node);
	for (unsigned i = 0; i < s->iov_count; i++)
		if (buf_in_pool(s->iov[i].iov_base))
			buf_unpin(s->iov[i].iov_base);
	if (s->early) {
		for (uint64_t i = 0; i < s->len_bytes / BLOCK_BYTES; i++)
			block_unref(s->early[i]);
		free(s->early);
	}
	if (s->iov != &s->one)
		free(s->iov);
	free(s);
	h->inflight--;
	handle_put(h);
}

static enum world_point point_of(enum io_op op, bool done)
{
	static const enum world_point points[2][3] = {
	    {POINT_SUBMIT_READ, POINT_SUBMIT_WRITE, POINT_SUBMIT_FLUSH},
	    {POINT_DONE_READ, POINT_DONE_WRITE, POINT_DONE_FLUSH},
	};

	return points[done][op];
}

static bool beyond_end(const struct sim_io *s)
{
	return s->off_bytes + s->len_bytes > s->h->d->params.size_bytes;
}

static const char *const op_text[] = {"read", "write", "flush"};

static void sim_io_complete(struct sim_io *s)
{
	struct simdev *d = s->h->d;
	struct io *io = s->io;
	int result = -ENODEV;

	if (!s->dying) {
		/* Off the list first, so that a crash at this point does not find it in flight. */
		list_del(&s->node);
		if (s->fails)
			result = -EIO;
		else if (beyond_end(s))
			result = d->shrunk ? -ENODEV : -EIO;
		else if (s->faulted && s->fault.kind == SIMFAULT_SHORT && s->fault.param)
			result = -EIO; /* the piece was all */
		else
			result = s->op == IO_READ ? carry_out_read(s) : carry_out_changes(s);
		if (world_point(d->world, point_of(s->op, true)))
			result = -ENODEV;
	}
	world_trace(d->world, 'd' << 8 | s->op, d->id, s->off_bytes, (uint64_t)(int64_t)result);
	if (world_is_verbose(d->world))
		world_say(d->world, "%s done %s %llu+%llu: %d%s", d->name, op_text[s->op],
			  (unsigned long long)s->off_bytes, (unsigned long long)s->len_bytes,
			  result, io ? "" : " (too late)");
	sim_io_free(s);
	if (io)
		io_done(io, result);
}

/* True if a second piece is to come. */
static bool first_piece(struct sim_io *s)
{
	struct world *w = s->h->d->world;

	if (s->dying || !s->piece_ns || s->done_ns > world_now_ns(w) || s->fails || beyond_end(s))
		return false;
	if (s->op != IO_WRITE || !s->h->d->read_only)
		carry_out_piece(s);
	s->done_ns = world_now_ns(w) + s->piece_ns;
	s->piece_ns = 0;
	world_event_arm(w, &s->ev, s->io ? MIN(s->done_ns, s->due_ns) : s->done_ns);
	return true;
}

static void sim_io_fire(struct world_event *ev)
{
	struct sim_io *s = container_of(ev, struct sim_io, ev);
	struct world *w = s->h->d->world;

	if (first_piece(s))
		return;
	if (s->dying || s->done_ns <= world_now_ns(w)) {
		sim_io_complete(s);
		return;
	}
	/* The deadline. The device holds on to the memory until it lets go. */
	struct io *io = s->io;

	s->io = NULL;
	if (s->done_ns != LOOP_NEVER)
		world_event_arm(w, ev, s->done_ns);
	world_trace(w, 't', s->h->d->id, s->off_bytes, s->len_bytes);
	world_say(w, "%s timed out %s %llu+%llu", s->h->d->name, op_text[s->op],
		  (unsigned long long)s->off_bytes, (unsigned long long)s->len_bytes);
	io_done(io, -ETIMEDOUT);
}

/* Of the kinds that concern flushes, those that a FUA write can have, too. */
#define ON_FUA 8u

static bool fault_matches(const struct simfault *f, const struct sim_io *s)
{
	static const uint8_t by_kind[] = {
	    [SIMFAULT_EIO_READ] = SIMFAULT_ON_READ,
	    [SIMFAULT_EIO_WRITE] = SIMFAULT_ON_WRITE,
	    [SIMFAULT_EIO_FLUSH] = SIMFAULT_ON_FLUSH | ON_FUA,
	    [SIMFAULT_LOST] = SIMFAULT_ON_WRITE,
	    [SIMFAULT_MISDIRECTED] = SIMFAULT_ON_WRITE,
	    [SIMFAULT_DUPLICATE] = SIMFAULT_ON_WRITE,
	    [SIMFAULT_TORN] = SIMFAULT_ON_WRITE,
	    [SIMFAULT_LYING_FLUSH] = SIMFAULT_ON_FLUSH | ON_FUA,
	    [SIMFAULT_ROT_READ] = SIMFAULT_ON_READ,
	    [SIMFAULT_HANG] = SIMFAULT_ON_READ | SIMFAULT_ON_WRITE | SIMFAULT_ON_FLUSH,
	    [SIMFAULT_DELAY] = SIMFAULT_ON_READ | SIMFAULT_ON_WRITE | SIMFAULT_ON_FLUSH,
	    [SIMFAULT_SHORT] = SIMFAULT_ON_READ | SIMFAULT_ON_WRITE,
	    [SIMFAULT_RESET] = SIMFAULT_ON_READ | SIMFAULT_ON_WRITE | SIMFAULT_ON_FLUSH,
	    [SIMFAULT_VANISH] = SIMFAULT_ON_READ | SIMFAULT_ON_WRITE | SIMFAULT_ON_FLUSH,
	    [SIMFAULT_READ_ONLY] = SIMFAULT_ON_WRITE,
	    [SIMFAULT_SHRINK] = SIMFAULT_ON_READ | SIMFAULT_ON_WRITE,
	};
	unsigned on = by_kind[f->kind];

	if (f->on)
		on &= f->on;
	if (!(on & (1u << s->op | (s->fua ? ON_FUA : 0))))
		return false;
	if (s->op == IO_FLUSH || !f->len_bytes)
		return true;
	return s->off_bytes < f->off_bytes + f->len_bytes &&
	       f->off_bytes < s->off_bytes + s->len_bytes;
}

static void fault_draw(struct simdev *d, struct sim_io *s)
{
	for (unsigned i = 0; i < d->fault_count; i++) {
		struct simfault *f = &d->faults[i];

		if (!fault_matches(f, s))
			continue;
		if (f->whole && !rng_chance(&d->rng, f->part, f->whole))
			continue;
		if (f->skip) {
			f->skip--;
			continue;
		}
		s->fault = *f;
		s->faulted = true;
		d->faults_hit++;
		d->errors_given += f->kind == SIMFAULT_EIO_READ || f->kind == SIMFAULT_EIO_WRITE ||
				   f->kind == SIMFAULT_EIO_FLUSH;
		if (f->count && !--f->count) {
			memmove(f, f + 1, (d->fault_count - i - 1) * sizeof(*f));
			d->fault_count--;
		}
		world_say(d->world, "%s fault %d on the next", d->name, s->fault.kind);
		tell_hit(d, s->fault.tag);
		return;
	}
}

static bool fail_draw(struct simfail *f)
{
	if (!f || (!f->left && !(f->for_good && f->hits)))
		return false;
	if (f->left && --f->left)
		return false;
	f->hits++;
	return true;
}

/* The faults that are not of one I/O. */
static void fault_member(struct simdev *d, const struct simfault *f)
{
	switch (f->kind) {
	case SIMFAULT_RESET:
		store_lottery(&d->store);
		break;
	case SIMFAULT_VANISH:
		simdev_vanish(d, f->param);
		break;
	case SIMFAULT_READ_ONLY:
		d->read_only = true;
		break;
	case SIMFAULT_SHRINK:
		simdev_shrink(d, f->param);
		break;
	default:
		break;
	}
}

static uint64_t latency_draw(struct simdev *d, uint64_t len_bytes)
{
	struct rng *r = world_rng(d->world);
	uint64_t ns = rng_range(r, d->params.latency_ns_lo, d->params.latency_ns_hi);

	ns += len_bytes / BLOCK_BYTES * NS_PER_BLOCK;
	if (rng_chance(r, 1, SLOW_ONE_IN))
		ns *= SLOW_TIMES;
	return ROUND_UP(ns, d->params.latency_grain_ns);
}

static void count_io(struct simdev *d, const struct sim_io *s)
{
	switch (s->op) {
	case IO_READ:
		d->stats.reads++;
		d->stats.read_bytes += s->len_bytes;
		break;
	case IO_WRITE:
		d->stats.writes++;
		d->stats.write_bytes += s->len_bytes;
		break;
	case IO_FLUSH:
		d->stats.flushes++;
		break;
	}
}

static struct sim_io *sim_io_new(struct handle *h, struct io *io)
{
	struct sim_io *s = must(calloc(1, sizeof(*s)));
	uint64_t len = 0;

	s->h = h;
	s->io = io;
	s->op = io->op;
	s->fua = io->fua;
	world_event_init(&s->ev, sim_io_fire);
	if (io->op != IO_FLUSH) {
		s->off_bytes = io->off_bytes;
		s->len_bytes = io->len_bytes;
		s->one = (struct iovec){.iov_base = io->data, .iov_len = io->len_bytes};
		s->iov = &s->one;
		s->iov_count = io->iov ? io->iov_count : 1;
		if (io->iov) {
			s->iov = must(calloc(s->iov_count, sizeof(*s->iov)));
			memcpy(s->iov, io->iov, s->iov_count * sizeof(*s->iov));
		}
		/* The rules of io.h for callers. */
		assert(s->len_bytes && s->off_bytes % BLOCK_BYTES == 0 &&
		       s->len_bytes % BLOCK_BYTES == 0);
		for (unsigned i = 0; i < s->iov_count; i++) {
			assert((uintptr_t)s->iov[i].iov_base % BLOCK_BYTES == 0);
			assert(s->iov[i].iov_len && s->iov[i].iov_len % BLOCK_BYTES == 0);
			len += s->iov[i].iov_len;
			/* Images and records may be from the heap. */
			if (buf_in_pool(s->iov[i].iov_base))
				buf_pin(s->iov[i].iov_base);
		}
		assert(len == s->len_bytes);
	}
	list_add_tail(&h->d->inflight, &s->node);
	h->inflight++;
	return s;
}

static void trace_submit(struct simdev *d, const struct sim_io *s)
{
	uint64_t sum = 0;

	if (s->op == IO_WRITE) {
		struct cursor c = {0};

		for (uint64_t i = 0; i < s->len_bytes / BLOCK_BYTES; i++)
			sum = XXH3_64bits_withSeed(io_memory(s, &c, i), BLOCK_BYTES, sum);
	}
	world_trace(d->world, 's' << 8 | s->op, d->id, s->off_bytes, s->len_bytes);
	world_trace(d->world, 'c', d->id, sum, 0);
	if (world_is_verbose(d->world))
		world_say(d->world, "%s submit %s %llu+%llu %016llx%s", d->name, op_text[s->op],
			  (unsigned long long)s->off_bytes, (unsigned long long)s->len_bytes,
			  (unsigned long long)sum, s->dying ? " to a dead handle" : "");
}

static void simdev_submit(struct dev *dev, struct io *io)
{
	struct handle *h = container_of(dev, struct handle, dev);
	struct simdev *d = h->d;
	struct world *w = d->world;
	struct sim_io *s = sim_io_new(h, io);
	uint64_t now_ns = world_now_ns(w), first_ns;

	assert(!h->closed);
	s->dying = h->dead;
	trace_submit(d, s);
	if (s->dying) {
		world_event_arm(w, &s->ev, now_ns + 1 + rng_below(world_rng(w), DEAD_NS_MAX));
		return;
	}
	count_io(d, s);
	fault_draw(d, s);
	s->fails = fail_draw(d->fail);
	s->done_ns = now_ns + latency_draw(d, s->len_bytes);
	s->flush_seq = d->seq;
	if (s->faulted && s->fault.kind == SIMFAULT_HANG)
		s->done_ns = s->fault.param ? s->done_ns + s->fault.param : LOOP_NEVER;
	if (s->faulted && s->fault.kind == SIMFAULT_SHORT)
		s->piece_ns = 1 + s->done_ns - now_ns;
	if (s->faulted && s->fault.kind == SIMFAULT_DELAY)
		s->done_ns += s->fault.param;
	if (s->op == IO_WRITE && s->off_bytes + s->len_bytes <= d->params.size_bytes)
		take_early(s);
	s->due_ns = dev->deadline_ns ? now_ns + dev->deadline_ns : LOOP_NEVER;
	first_ns = MIN(s->done_ns, s->due_ns);
	if (first_ns != LOOP_NEVER)
		world_event_arm(w, &s->ev, first_ns);
	if (s->faulted)
		fault_member(d, &s->fault); /* s is in flight by now, and is seen to */
	(void)world_point(w, point_of(s->op, false)); /* the crash hook sees to s */
}

static void simdev_close(struct dev *dev)
{
	struct handle *h = container_of(dev, struct handle, dev);
	struct sim_io *s;

	list_for_each (s, &h->d->inflight, node)
		assert(s->h != h || !s->io); /* only abandoned I/O may be left */
	h->closed = true;
	h->d->handle_count--;
	handle_put(h);
}

static const struct dev_ops simdev_ops = {
    .submit = simdev_submit,
    .close = simdev_close,
};

/* ---- the member ---- */

/* Every handle dies; what is in flight has written any of its sectors and completes with -ENODEV.
 */
static void member_freeze(struct simdev *d)
{
	struct world *w = d->world;
	struct handle *h;
	struct sim_io *s, *tmp;

	list_for_each (h, &d->handles, node)
		h->dead = true;
	list_for_each_safe (s, tmp, &d->inflight, node) {
		if (s->dying)
			continue;
		if (s->op == IO_WRITE && !d->read_only && !s->fails &&
		    s->off_bytes + s->len_bytes <= d->params.size_bytes)
			freeze_write(s);
		if (!s->io) {
			sim_io_free(s);
			continue;
		}
		s->dying = true;
		world_event_arm(w, &s->ev,
				world_now_ns(w) + 1 + rng_below(world_rng(w), DEAD_NS_MAX));
	}
}

static void member_crash(struct world_thing *thing)
{
	member_freeze(container_of(thing, struct simdev, thing));
}

static void member_restart(struct world_thing *thing)
{
	struct simdev *d = container_of(thing, struct simdev, thing);

	assert(list_empty(&d->inflight)); /* the harness has let everything unwind */
	store_lottery(&d->store);
}

void simdev_params_random(struct simdev_params *p, struct rng *r, uint64_t size_bytes)
{
	static const uint64_t grains[] = {1, 1, 1000, 50000};

	*p = (struct simdev_params){
	    .size_bytes = size_bytes,
	    .sector_bytes = rng_chance(r, 1, 2) ? 512 : 4096,
	    .volatile_cache = rng_chance(r, 7, 8),
	    .latency_ns_lo = rng_range(r, 1000, 50000),
	    .latency_grain_ns = grains[rng_below(r, ARRAY_SIZE(grains))],
	    .crash_keep = (unsigned)rng_range(r, 10, 90),
	    .crash_garble = (unsigned)rng_below(r, 20),
	};
	p->latency_ns_hi = p->latency_ns_lo + rng_range(r, 1000, 400000);
}

struct simdev *simdev_new(struct world *w, const char *name, const struct simdev_params *params)
{
	struct simdev *d = calloc(1, sizeof(*d));
	uint64_t id = 0;

	if (!d)
		return NULL;
	assert(params->sector_bytes == 512 || params->sector_bytes == 4096);
	d->world = w;
	d->params = *params;
	d->params.size_bytes = ROUND_DOWN(params->size_bytes, BLOCK_BYTES);
	if (!d->params.latency_grain_ns)
		d->params.latency_grain_ns = 1;
	if (!d->params.latency_ns_lo && !d->params.latency_ns_hi) {
		d->params.latency_ns_lo = LATENCY_NS_LO;
		d->params.latency_ns_hi = LATENCY_NS_HI;
	}
	snprintf(d->name, sizeof(d->name), "%s", name);
	d->store = (struct store){
	    .blocks = d->params.size_bytes / BLOCK_BYTES,
	    .sector_bytes = params->sector_bytes,
	    .crash_keep = params->crash_keep,
	    .crash_garble = params->crash_garble,
	    .rng = &d->rng,
	};
	assert(d->store.blocks);
	if (!store_init(&d->store)) {
		free(d);
		return NULL;
	}
	list_init(&d->handles);
	list_init(&d->inflight);
	d->thing.crash = member_crash;
	d->thing.restart = member_restart;
	/* Of its name, so that what one member does not depend on how many there are. */
	rng_fork(&d->rng, name, world_seed(w));
	for (const char *c = name; *c; c++)
		id = id * 31 + (uint8_t)*c;
	d->id = (unsigned)id;
	world_add(w, &d->thing);
	return d;
}

void simdev_free(struct simdev *d)
{
	struct sim_io *s, *tmp;

	if (!d)
		return;
	assert(!d->handle_count);
	list_for_each_safe (s, tmp, &d->inflight, node) {
		assert(!s->io);
		sim_io_free(s);
	}
	assert(list_empty(&d->handles));
	world_remove(d->world, &d->thing);
	store_exit(&d->store);
	free(d);
}

struct simdev *simdev_clone(struct simdev *d, const char *name)
{
	struct simdev *c = simdev_new(d->world, name, &d->params);

	if (c)
		store_share(&c->store, &d->store);
	return c;
}

void simdev_revert(struct simdev *d, struct simdev *from)
{
	assert(list_empty(&d->inflight));
	store_clear(&d->store);
	store_share(&d->store, &from->store);
}

struct dev *simdev_open(struct simdev *d)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->d = d;
	h->dead = d->gone || world_crashed(d->world);
	h->dev = (struct dev){
	    .ops = &simdev_ops,
	    .size_bytes = d->params.size_bytes,
	    .sector_bytes = d->params.sector_bytes,
	    .volatile_cache = d->params.volatile_cache,
	    .read_only = d->read_only,
	    .deadline_ns = IO_DEADLINE_NS_DEFAULT,
	};
	snprintf(h->dev.name, sizeof(h->dev.name), "%s", d->name);
	snprintf(h->dev.serial, sizeof(h->dev.serial), "SIM-%.50s", d->name);
	list_add_tail(&d->handles, &h->node);
	d->handle_count++;
	return &h->dev;
}

struct simdev *simdev_of(struct dev *dev)
{
	assert(dev->ops == &simdev_ops);
	return container_of(dev, struct handle, dev)->d;
}

const char *simdev_name(const struct simdev *d)
{
	return d->name;
}

uint64_t simdev_size_bytes(const struct simdev *d)
{
	return d->params.size_bytes;
}

unsigned simdev_handles(const struct simdev *d)
{
	return d->handle_count;
}

/* ---- from outside ---- */

void simdev_peek(struct simdev *d, uint64_t off_bytes, void *out, size_t len)
{
	uint8_t *to = out;

	assert(off_bytes + len <= d->params.size_bytes);
	while (len) {
		size_t at = off_bytes % BLOCK_BYTES, n = MIN(len, BLOCK_BYTES - at);
		struct simblock *b = store_visible(&d->store, off_bytes / BLOCK_BYTES);

		if (b)
			memcpy(to, b->data + at, n);
		else
			memset(to, 0, n);
		to += n;
		off_bytes += n;
		len -= n;
	}
}

void simdev_poke(struct simdev *d, uint64_t off_bytes, const void *data, size_t len)
{
	const uint8_t *from = data;

	assert(off_bytes + len <= d->params.size_bytes);
	while (len) {
		size_t at = off_bytes % BLOCK_BYTES, n = MIN(len, BLOCK_BYTES - at);

		store_poke(&d->store, off_bytes / BLOCK_BYTES, at, from, n);
		from += n;
		off_bytes += n;
		len -= n;
	}
}

void simdev_garble(struct simdev *d, uint64_t off_bytes, size_t len)
{
	uint8_t bytes[BLOCK_BYTES];

	while (len) {
		size_t n = MIN(len, sizeof(bytes));

		rng_fill(&d->rng, bytes, n);
		simdev_poke(d, off_bytes, bytes, n);
		off_bytes += n;
		len -= n;
	}
}

void simdev_rot(struct simdev *d, uint64_t off_bytes, size_t len, unsigned bits)
{
	for (unsigned i = 0; i < bits; i++) {
		uint64_t at = off_bytes + rng_below(&d->rng, len);
		uint8_t byte;

		simdev_peek(d, at, &byte, 1);
		byte ^= (uint8_t)(1u << rng_below(&d->rng, 8));
		simdev_poke(d, at, &byte, 1);
	}
}

void simdev_zero(struct simdev *d, uint64_t off_bytes, size_t len)
{
	static const uint8_t zeros[BLOCK_BYTES];

	while (len) {
		size_t n = MIN(len, sizeof(zeros));

		simdev_poke(d, off_bytes, zeros, n);
		off_bytes += n;
		len -= n;
	}
}

bool simdev_written(struct simdev *d, uint64_t off_bytes)
{
	return store_visible(&d->store, off_bytes / BLOCK_BYTES);
}

uint64_t simdev_hash(struct simdev *d)
{
	return store_hash(&d->store);
}

void simdev_lose_cache(struct simdev *d)
{
	store_lottery(&d->store);
}

static enum simfate fate_ask(void *arg, uint64_t seq, uint64_t block, unsigned sector)
{
	struct simdev *d = arg;

	return d->fate(d->fate_arg, d, seq, block, sector);
}

void simdev_set_fate(struct simdev *d, simfate_fn *fn, void *arg)
{
	d->fate = fn;
	d->fate_arg = arg;
	d->store.fate = fn ? fate_ask : NULL;
	d->store.fate_arg = d;
}

void simdev_each_pending(struct simdev *d, simfate_fn *fn, void *arg)
{
	for (size_t i = 0; i < store_pending(&d->store); i++) {
		uint64_t seq, block;

		store_pending_get(&d->store, i, &seq, &block);
		for (unsigned j = 0; j < BLOCK_BYTES / d->params.sector_bytes; j++)
			(void)fn(arg, d, seq, block, j);
	}
}

uint64_t simdev_pending_blocks(const struct simdev *d)
{
	return store_pending(&d->store);
}

/* ---- faults ---- */

int simdev_fault(struct simdev *d, const struct simfault *fault)
{
	if (d->fault_count == SIMFAULTS_MAX)
		return -ENOSPC;
	d->faults[d->fault_count++] = *fault;
	return 0;
}

void simdev_faults_clear(struct simdev *d)
{
	d->fault_count = 0;
}

uint64_t simdev_errors_given(const struct simdev *d)
{
	return d->errors_given;
}

uint64_t simdev_faults_hit(const struct simdev *d)
{
	return d->faults_hit;
}

void simdev_on_hit(struct simdev *d, void (*hit)(void *arg, struct simdev *d, uint8_t tag), void *arg)
{
	d->hit = hit;
	d->hit_arg = arg;
}

void simdev_mark(struct simdev *d, uint64_t off_bytes, uint8_t tag)
{
	store_mark(&d->store, off_bytes / BLOCK_BYTES, tag);
}

void simdev_set_fail(struct simdev *d, struct simfail *f)
{
	d->fail = f;
}

void simdev_vanish(struct simdev *d, bool lose_cache)
{
	if (d->gone)
		return;
	world_say(d->world, "%s vanishes", d->name);
	world_trace(d->world, 'v', d->id, lose_cache, 0);
	member_freeze(d);
	d->gone = true;
	if (lose_cache)
		store_lottery(&d->store);
}

void simdev_return(struct simdev *d)
{
	world_say(d->world, "%s is back", d->name);
	d->gone = false;
}

void simdev_shrink(struct simdev *d, uint64_t size_bytes)
{
	size_bytes = MAX(ROUND_DOWN(size_bytes, BLOCK_BYTES), (uint64_t)BLOCK_BYTES);
	if (size_bytes >= d->params.size_bytes)
		return;
	world_say(d->world, "%s shrinks to %llu", d->name, (unsigned long long)size_bytes);
	d->params.size_bytes = size_bytes;
	d->shrunk = true;
}

bool simdev_is_gone(const struct simdev *d)
{
	return d->gone;
}

void simdev_set_read_only(struct simdev *d, bool read_only)
{
	d->read_only = read_only;
}

void simdev_unhang(struct simdev *d)
{
	struct sim_io *s;

	list_for_each (s, &d->inflight, node) {
		if (!s->faulted || s->fault.kind != SIMFAULT_HANG || s->dying)
			continue;
		s->done_ns = world_now_ns(d->world);
		world_event_arm(d->world, &s->ev, s->done_ns);
	}
}

void simdev_stats(const struct simdev *d, struct simdev_stats *ret)
{
	*ret = d->stats;
}
