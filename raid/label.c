/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Labels: how the volume table gets onto the members, and whom to believe when it is read back.
 *
 * Writing generation g, all members in parallel:
 *
 *   1. prepare: labels A, then flush;   all members, before
 *   2. commit:  labels B, then flush;   all members, before label_write_table returns.
 *
 * At each end of each member it goes to the place that does not hold the newest valid label of that
 * end, so no interrupted write destroys the newest of either end. What follows:
 *   - What a member has seen (prepared) and what it has committed never go back.
 *   - g in anybody's labels B proves that g was durable in labels A of everybody in service. A
 * member that then lacks it is stale: it was away, was put back from a copy, or lied about a flush.
 *   - g in labels A alone was never depended on, and is ignored. It must be: a member that prepared
 * g and then was absent, while the others went on, would else come back with the highest number.
 *   - A write that is acknowledged is in labels B of everybody, so whoever of them is there at the
 * next open knows it. If a member fails in either step it is set MISSING and the whole is repeated
 * as g + 1 without it.
 *
 * The first number after a vote is above all that was seen on any device, prepared or not. If some
 * g was committed anywhere it was prepared on all others, so whichever of them are there next have
 * seen it and go above it: committed numbers order rightly, also over crashes in a row with other
 * members absent each time.
 *
 * The vote. Every device shows its newest table in labels B; the newest of all is T. Where a place
 * of labels B is damaged, a newer table in labels A counts if everybody who is there and in service
 * in it has seen it, that one and not another of the same number: true if it was committed and then
 * damaged. A and B are forked if each is out
 * of service in the other's table and each went on since they were last together: then neither
 * history may be dropped by us, and the open is refused. Went on means a number beyond last_gen,
 * which counts those that a member may have committed although nobody ever used them, because
 * somebody else who was in service has not. Nor is A forked if some C, in service in A's table,
 * is so in a newer one without A. Otherwise T decides: who is ACTIVE in T and has
 * seen T is used. A single stale device alone cannot be found out: no vote can, since nothing of
 * what it missed is there.
 *
 * Rejected: both ends at once (cannot tell an interrupted write from a copy of the member that is
 * one generation old); the place chosen by the parity of g (after a crash either the last prepared
 * or the last committed table stands where the next one has to go); believing what was only
 * prepared (see above).
 *
 * A clone has the same label, so nothing in it tells which is which. Only the serial number of the
 * drive can.
 */
#include "label.h"
#include "buf.h"
#include "co.h"
#include "format.h"
#include "io.h"
#include "xxh3.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#define LABEL_VERSION	       2u
#define LABEL_DEVICE_BYTES_MIN (2ull * LABEL_AREA_BYTES)

/* Memory of a write: the table, then a label block for each member. */
#define WRITE_BLOCKS_OFF LABEL_PLACE_BYTES
#define WRITE_BYTES	 (WRITE_BLOCKS_OFF + MEMBERS_MAX * BLOCK_BYTES)
static_assert(WRITE_BYTES <= BUF_BYTES_MAX, "one allocation");

/* ---- reading ---- */

/* Where bytes come from: a device, or an open file without a loop. */
struct source {
	const char *name;
	uint64_t size_bytes;
	struct dev *dev;
	int fd;
};

static void *source_get(const struct source *s, size_t len)
{
	char *raw;
	void **aligned;

	if (s->dev)
		return buf_get_wait(len);
	/* Aligned for O_DIRECT; what to free stands right before. */
	raw = mem_alloc(len + BLOCK_BYTES + sizeof(void *));
	if (!raw)
		return NULL;
	aligned = (void **)ROUND_UP((uintptr_t)raw + sizeof(void *), BLOCK_BYTES);
	aligned[-1] = raw;
	return aligned;
}

static void source_put(const struct source *s, void *p)
{
	if (s->dev)
		buf_put(p);
	else if (p)
		mem_free(((void **)p)[-1]);
}

static int source_read(const struct source *s, uint64_t off, void *data, size_t len)
{
	size_t done = 0;

	if (s->dev)
		return io_read_sync(s->dev, off, data, len);
	while (done < len) {
		ssize_t n = pread(s->fd, (char *)data + done, len - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -EIO;
		done += (size_t)n;
	}
	return 0;
}

static uint64_t block_sum(struct label_disk *d)
{
	le64 kept = d->sum;
	uint64_t sum;

	d->sum = to_le64(0);
	sum = XXH3_64bits(d, sizeof(*d));
	d->sum = kept;
	return sum;
}

static bool is_zero(const uint8_t *b, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (b[i])
			return false;
	}
	return true;
}

static int check_block(struct label_disk *d, uint64_t off, unsigned place)
{
	if (from_le64(d->magic) != LABEL_MAGIC)
		return -ENODATA;
	if (block_sum(d) != from_le64(d->sum) && !BREAK(label_sum))
		return -EBADMSG;
	if (from_le32(d->version) != LABEL_VERSION || from_le64(d->incompat) & ~FEATURES_INCOMPAT)
		return -ENOTSUP;
	if (from_le32(d->place) != place || from_le64(d->off_bytes) != off)
		return -EBADMSG;
	if (uuid_is_null(&d->fs) || uuid_is_null(&d->member))
		return -EBADMSG;
	if (from_le32(d->table_bytes) > TABLE_BYTES_MAX || d->name[LABEL_NAME_BYTES - 1] ||
	    from_le32(d->member_index) >= MEMBERS_MAX || !is_zero(d->reserved, sizeof(d->reserved)))
		return -EBADMSG;
	return 0;
}

/* Whether the table says of its bearer what the label says. */
static bool table_suits(const struct table *t, const struct label *l)
{
	const struct member *m = &t->members[l->member_index]; /* below MEMBERS_MAX */

	return t->gen == l->gen && l->member_index < t->member_count &&
	       uuid_equal(&m->uuid, &l->member) && m->size_bytes == l->member_bytes &&
	       m->state == MEMBER_ACTIVE;
}

static int read_place_table(const struct source *s, uint64_t off, uint32_t bytes, struct label *l)
{
	size_t len = ROUND_UP(bytes, BLOCK_BYTES);
	const char *why = "its bearer is not in it";
	void *data;
	int err;

	if (len == 0)
		return -EBADMSG;
	data = source_get(s, len);
	if (!data)
		return -ENOMEM;
	err = source_read(s, off, data, len);
	if (!err && XXH3_64bits(data, bytes) != l->table_sum && !BREAK(label_sum))
		err = -EBADMSG;
	if (!err) {
		err = table_decode(data, bytes, &l->fs, l->name, &l->table, &why);
		if (!err && !table_suits(l->table, l)) {
			table_free(l->table);
			l->table = NULL;
			err = -EBADMSG;
		}
		/* The sum was right: this is a mistake of whoever wrote it, and worth telling. */
		if (err == -EBADMSG)
			log_warning("%s: volume table at %" PRIu64 ": %s", s->name, off, why);
	}
	source_put(s, data);
	return err;
}

/* One place, with its table. -ENODATA: nothing of ours; -EBADMSG; -ENOTSUP; -EIO; -ENOMEM. */
static int read_place(const struct source *s, uint64_t off, unsigned place, struct label *ret)
{
	struct label_disk *d = source_get(s, BLOCK_BYTES);
	struct label l = {0};
	uint32_t table_bytes = 0;
	int err;

	if (!d)
		return -ENOMEM;
	err = source_read(s, off, d, BLOCK_BYTES);
	if (!err)
		err = check_block(d, off, place);
	if (err == -ENOTSUP)
		log_error("%s: label: unsupported: got version %u, features %#" PRIx64
			  ", expected version %u, features %#" PRIx64,
			  s->name, from_le32(d->version), from_le64(d->incompat), LABEL_VERSION,
			  (uint64_t)FEATURES_INCOMPAT);
	if (!err) {
		l.fs = d->fs;
		l.member = d->member;
		l.gen = from_le64(d->gen);
		l.member_index = from_le32(d->member_index);
		l.member_bytes = from_le64(d->member_bytes);
		memcpy(l.name, d->name, sizeof(l.name));
		l.compat = from_le64(d->compat);
		l.ro_compat = from_le64(d->ro_compat);
		l.incompat = from_le64(d->incompat);
		l.table_sum = from_le64(d->table_sum);
		table_bytes = from_le32(d->table_bytes);
	}
	source_put(s, d);
	if (!err)
		err = read_place_table(s, off + BLOCK_BYTES, table_bytes, &l);
	if (!err)
		*ret = l;
	return err;
}

/* Labels A and labels B. */
enum { NEAR, FAR, ENDS };

/* What was found on a device. */
struct places {
	struct label found[ENDS][LABEL_PLACES];
	bool garbage, unsupported;
	int io_error;
};

static void places_clear(struct places *p)
{
	for (unsigned end = 0; end < ENDS; end++) {
		for (unsigned place = 0; place < LABEL_PLACES; place++)
			label_clear(&p->found[end][place]);
	}
}

/* Returns only what stops the reading: -ENOMEM, -ENODEV, -ETIMEDOUT. */
static int places_read(struct places *p, const struct source *s, unsigned end, uint64_t area_off)
{
	for (unsigned place = 0; place < LABEL_PLACES; place++) {
		int err = read_place(s, area_off + place * LABEL_PLACE_BYTES, place,
				     &p->found[end][place]);

		switch (err) {
		case 0:
		case -ENODATA:
			break;
		case -ENOMEM:
		case -ENODEV:
		case -ETIMEDOUT: /* one deadline is enough */
			return err;
		case -EBADMSG:
			p->garbage = true;
			break;
		case -ENOTSUP:
			p->unsupported = true;
			break;
		default:
			p->io_error = err;
		}
	}
	return 0;
}

static struct label *newest_of(struct places *p, unsigned end)
{
	struct label *a = &p->found[end][0], *b = &p->found[end][1];

	if (!a->table && !b->table)
		return NULL;
	return !b->table || (a->table && a->gen > b->gen) ? a : b;
}

static int read_all_places(const struct source *s, struct places *p)
{
	uint64_t far = s->size_bytes;
	struct label *near;
	int err;

	if (s->size_bytes < LABEL_DEVICE_BYTES_MIN)
		return -ENODATA;
	err = places_read(p, s, NEAR, 0);
	if (err)
		return err;
	/* The device may have grown since; labels B stay where they were. */
	near = newest_of(p, NEAR);
	if (near && near->member_bytes < far)
		far = near->member_bytes;
	return places_read(p, s, FAR, label_b_off(far));
}

/* Takes what counts out of the places. */
static int places_sum_up(struct places *p, struct label *ret)
{
	struct label *near = newest_of(p, NEAR), *far = newest_of(p, FAR), *best = far ? far : near;
	struct label_seen seen[ENDS * LABEL_PLACES];
	unsigned valid = 0;
	uint64_t seen_max = 0;

	if (p->unsupported)
		return -ENOTSUP; /* the newer program's word, not what an older one left behind */
	if (!best)
		return p->garbage ? -EBADMSG : p->io_error ? p->io_error : -ENODATA;
	for (unsigned end = 0; end < ENDS; end++) {
		for (unsigned place = 0; place < LABEL_PLACES; place++) {
			const struct label *l = &p->found[end][place];

			seen[end * LABEL_PLACES + place] = (struct label_seen){l->gen, l->table_sum};
			valid += l->table != NULL;
			seen_max = MAX(seen_max, l->gen);
		}
	}
	*ret = *best;
	best->table = NULL; /* its gen stays */
	ret->far = best == far;
	ret->place[NEAR] = near == &p->found[NEAR][1];
	ret->place[FAR] = far == &p->found[FAR][1];
	ret->gen_seen = seen_max;
	memcpy(ret->seen, seen, sizeof(ret->seen));
	ret->places_valid = valid;
	if (far && near && near->gen > far->gen) {
		ret->prepared = near->table;
		ret->prepared_sum = near->table_sum;
		near->table = NULL;
		ret->prepared_counts = !p->found[FAR][0].gen || !p->found[FAR][1].gen || BREAK(vote_prepared);
	}
	return 0;
}

static int read_labels(const struct source *s, struct label *ret)
{
	struct places p;
	int err;

	memset(&p, 0, sizeof(p));
	err = read_all_places(s, &p);
	if (!err)
		err = places_sum_up(&p, ret);
	places_clear(&p);
	return err;
}

int label_read(struct dev *dev, struct label *ret)
{
	struct source s = {.name = dev->name, .size_bytes = dev->size_bytes, .dev = dev, .fd = -1};

	return read_labels(&s, ret);
}

int label_probe_fd(int fd, uint64_t size_bytes, struct label *ret)
{
	char name[32];
	struct source s = {
	    .name = name, .size_bytes = ROUND_DOWN(size_bytes, BLOCK_BYTES), .fd = fd};

	(void)snprintf(name, sizeof(name), "file descriptor %d", fd);
	return read_labels(&s, ret);
}

void label_clear(struct label *label)
{
	table_free(label->table);
	table_free(label->prepared);
	label->table = label->prepared = NULL;
}

/* ---- writing ---- */

/* One attempt at one generation. */
struct attempt {
	struct table *t;
	struct loop *loop;
	const struct label_owner *owner;
	uint64_t gen;
	uint32_t table_bytes;
	uint64_t table_sum;
	/* who gets it; those that fail leave */
	unsigned members[MEMBERS_MAX], count;
	struct dev *devs[MEMBERS_MAX];
	bool lost_any, refused, memory_busy;
};

static struct label_disk *label_block(const struct attempt *a, unsigned member)
{
	char *memory = a->t->write_memory;

	return (struct label_disk *)(memory + WRITE_BLOCKS_OFF + (size_t)member * BLOCK_BYTES);
}

static void fill_label_block(const struct attempt *a, unsigned member, unsigned place, uint64_t off)
{
	struct label_disk *d = label_block(a, member);
	const struct table *t = a->t;

	*d = (struct label_disk){
	    .magic = to_le64(LABEL_MAGIC),
	    .version = to_le32(LABEL_VERSION),
	    .place = to_le32(place),
	    .off_bytes = to_le64(off),
	    .fs = t->fs,
	    .member = t->members[member].uuid,
	    .member_bytes = to_le64(t->members[member].size_bytes),
	    .compat = to_le64(FEATURES_COMPAT),
	    .ro_compat = to_le64(FEATURES_RO_COMPAT),
	    .incompat = to_le64(FEATURES_INCOMPAT),
	    .gen = to_le64(a->gen),
	    .table_bytes = to_le32(a->table_bytes),
	    .member_index = to_le32(member),
	    .table_sum = to_le64(a->table_sum),
	};
	memcpy(d->name, t->name, strnlen(t->name, sizeof(d->name) - 1));
	d->sum = to_le64(block_sum(d));
}

static bool lose_member(struct attempt *a, unsigned member, const struct io *io)
{
	struct member *m = &a->t->members[member];

	log_error("%s: member %u: label: write failed: %s", io->dev->name, member, strerror(-io->result));
	/* Somebody else may have judged it meanwhile. */
	if (m->state != MEMBER_ACTIVE)
		return true;
	if (a->owner)
		return a->owner->lose(a->owner->ctx, member, io->result);
	m->state = MEMBER_MISSING;
	return true;
}

/* Drops those from the attempt whose I/O failed. */
static void drop_failed(struct attempt *a, const struct io *ios)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < a->count; i++) {
		struct member *m = &a->t->members[a->members[i]];

		if (ios[i].result == 0) {
			m->errors_write += ios[i].errors;
			a->members[kept] = a->members[i];
			a->devs[kept++] = a->devs[i];
			continue;
		}
		/* It may have this one, and whoever is in service in it knows that it was never
		 * used. */
		if (lose_member(a, a->members[i], &ios[i]))
			m->last_gen = a->gen;
		else
			a->refused = true;
		a->lost_any = true;
		if (ios[i].result == -ETIMEDOUT)
			a->memory_busy = true;
	}
	a->count = kept;
}

/* Step 1 (NEAR) or 2 (FAR) of the order above. */
static void write_end(struct attempt *a, unsigned end)
{
	struct io ios[MEMBERS_MAX];
	struct iovec iov[MEMBERS_MAX][2];
	struct io_batch batch;

	io_batch_init(&batch, a->loop);
	for (unsigned i = 0; i < a->count; i++) {
		const struct member *m = &a->t->members[a->members[i]];
		unsigned place = BREAK(label_place) ? 0 : 1 - m->label_place[end];
		uint64_t off = end == FAR ? label_b_off(m->size_bytes) : 0;

		off += place * LABEL_PLACE_BYTES;
		fill_label_block(a, a->members[i], place, off);
		iov[i][0] = (struct iovec){label_block(a, a->members[i]), BLOCK_BYTES};
		iov[i][1] =
		    (struct iovec){a->t->write_memory, ROUND_UP(a->table_bytes, BLOCK_BYTES)};
		io_writev(&batch, &ios[i], a->devs[i], off, iov[i], 2);
	}
	/* With as many attempts as any write has: whoever goes now is one less for the rest. */
	(void)io_batch_wait(&batch); /* each result is looked at */
	drop_failed(a, ios);

	if (end == NEAR ? BREAK(flush_label_a) : BREAK(flush_label_b))
		goto written;
	/*
	 * W6. The crash this flush is there for: labels A, that nobody begins to write labels B while
	 * somebody's labels A may still vanish, since g in labels B is taken as proof; labels B,
	 * that the caller acts on g and the power goes with g on nobody.
	 */
	io_batch_init(&batch, a->loop);
	for (unsigned i = 0; i < a->count; i++)
		io_flush(&batch, &ios[i], a->devs[i]);
	(void)io_batch_wait(&batch);
	drop_failed(a, ios);
written:
	for (unsigned i = 0; i < a->count; i++)
		a->t->members[a->members[i]].label_place[end] ^= 1;
}

/* The bytes of the table as they shall be on disk, with t itself untouched. */
static int encode_as(struct attempt *a)
{
	struct table *t = a->t;
	uint64_t gen = t->gen, last_gen[MEMBERS_MAX];
	size_t bytes;
	int err;

	for (unsigned i = 0; i < a->count; i++) {
		struct member *m = &t->members[a->members[i]];

		last_gen[i] = m->last_gen;
		m->last_gen = a->gen;
	}
	t->gen = a->gen;
	err = table_encode(t, t->write_memory, TABLE_BYTES_MAX, &bytes);
	t->gen = gen;
	for (unsigned i = 0; i < a->count; i++)
		t->members[a->members[i]].last_gen = last_gen[i];
	if (err)
		return err;
	a->table_bytes = (uint32_t)bytes;
	a->table_sum = XXH3_64bits(t->write_memory, bytes);
	memset((char *)t->write_memory + bytes, 0, ROUND_UP(bytes, BLOCK_BYTES) - bytes);
	return 0;
}

/* 0: durable. -EAGAIN: a member was lost, once more without it. */
static int write_once(struct table *t, struct loop *loop, const struct label_owner *owner)
{
	struct attempt a = {.t = t, .loop = loop, .owner = owner, .gen = t->gen + t->gen_skip + 1};
	int err;

	if (!t->write_memory)
		t->write_memory = buf_get_wait(WRITE_BYTES);
	for (unsigned i = 0; i < t->member_count; i++) {
		struct member *m = &t->members[i];

		if (m->state != MEMBER_ACTIVE)
			continue;
		if (!m->dev) {
			m->state = MEMBER_MISSING;
			continue;
		}
		a.members[a.count] = i;
		a.devs[a.count++] = m->dev;
	}
	if (a.count == 0)
		return -EIO;
	err = encode_as(&a);
	if (err)
		return err;
	write_end(&a, NEAR);
	if (!a.lost_any)
		write_end(&a, FAR);
	if (a.memory_busy) {
		/* A hung device still reads from it. */
		buf_put(t->write_memory);
		t->write_memory = NULL;
	}
	if (a.lost_any) {
		t->gen_skip++;
		return a.refused ? -EIO : -EAGAIN;
	}
	t->gen = a.gen;
	t->gen_skip = 0;
	for (unsigned i = 0; i < a.count; i++)
		t->members[a.members[i]].last_gen = a.gen;
	return 0;
}

int label_write_table(struct table *t, struct loop *loop, const struct label_owner *owner)
{
	int err = -EAGAIN;

	co_mutex_lock(&t->write_lock);
	/* Each time around has at least one member less. */
	for (unsigned i = 0; err == -EAGAIN && i <= MEMBERS_MAX; i++)
		err = write_once(t, loop, owner);
	co_mutex_unlock(&t->write_lock);
	return err == -EAGAIN ? -EIO : err;
}

static int wipe_area(struct dev *dev, uint64_t off, const void *zeros)
{
	int err = 0;

	for (unsigned place = 0; place < LABEL_PLACES && !err; place++)
		err = io_write_sync(dev, off + place * LABEL_PLACE_BYTES, zeros, LABEL_PLACE_BYTES);
	return err;
}

int label_wipe(struct dev *dev)
{
	struct label label;
	uint64_t recorded = 0;
	void *zeros;
	int err;

	if (dev->size_bytes < LABEL_DEVICE_BYTES_MIN)
		return -EINVAL;
	/* Labels B of a device that has grown are not at its end. */
	if (label_read(dev, &label) == 0) {
		if (label.member_bytes < dev->size_bytes)
			recorded = label_b_off(label.member_bytes);
		label_clear(&label);
	}
	zeros = buf_get_wait(LABEL_PLACE_BYTES);
	memset(zeros, 0, LABEL_PLACE_BYTES);
	err = wipe_area(dev, label_b_off(dev->size_bytes), zeros);
	if (!err && recorded)
		err = wipe_area(dev, recorded, zeros);
	if (!err)
		err = wipe_area(dev, 0, zeros);
	/* W6. The crash: old labels are back after a new filesystem was begun. */
	if (!err && !BREAK(flush_wipe))
		err = io_flush_sync(dev);
	buf_put(zeros);
	return err;
}

/* ---- whether it is enough ---- */

static void log_lacking(const struct table *t, const struct chunk *c)
{
	char uuid[UUID_TEXT_BYTES];

	log_error("chunk %u (%s, %u columns): too few members to read it", c->number,
		  geom_level_text(c->geom.level), c->geom.columns);
	for (unsigned i = 0; i < c->geom.columns; i++) {
		const struct column *col = &c->columns[i];
		const struct member *m = &t->members[col->member];

		if (!table_column_readable(t, col))
			log_error("  member %u, %s, last seen as %s: %s", col->member,
				  uuid_text(&m->uuid, uuid), m->hint[0] ? m->hint : "?",
				  !m->dev		      ? "not here"
				  : m->state != MEMBER_ACTIVE ? "out of service"
							      : "stale");
	}
}

bool table_enough(const struct table *t, bool log)
{
	for (unsigned i = 0; i < t->chunk_count; i++) {
		if (table_chunk_spare(t, t->chunks[i]) >= 0)
			continue;
		if (log)
			log_lacking(t, t->chunks[i]);
		return false;
	}
	return true;
}

bool table_enough_without(struct table *t, uint64_t members)
{
	enum member_state states[MEMBERS_MAX];
	bool enough;

	for (unsigned i = 0; i < t->member_count; i++) {
		states[i] = t->members[i].state;
		if (members >> i & 1)
			t->members[i].state = MEMBER_MISSING;
	}
	enough = table_enough(t, false);
	for (unsigned i = 0; i < t->member_count; i++)
		t->members[i].state = states[i];
	return enough;
}

/* ---- the vote ---- */

struct gather {
	struct co *waiter;
	unsigned pending;
	bool waiting;
};
struct reader {
	struct gather *gather;
	struct dev *dev;
	struct label_verdict *verdict;
};

static void read_one(void *arg)
{
	struct reader *r = arg;
	struct gather *g = r->gather;

	r->verdict->error = label_read(r->dev, &r->verdict->label);
	if (--g->pending == 0 && g->waiting)
		co_wake(g->waiter);
}

/* All devices at once: one that hangs costs its deadline, not the sum of them. */
static void read_everybody(struct loop *loop, struct dev **devs, unsigned count,
			   struct label_vote *vote)
{
	struct gather gather = {.waiter = co_self(), .pending = count};
	struct reader readers[MEMBERS_MAX];

	for (unsigned i = 0; i < count; i++) {
		readers[i] = (struct reader){&gather, devs[i], &vote->verdicts[i]};
		if (co_spawn(loop, read_one, &readers[i]) != 0)
			read_one(&readers[i]);
	}
	while (gather.pending) {
		gather.waiting = true;
		co_wait();
	}
}

static bool takes_part(const struct label_verdict *v)
{
	return v->what == VERDICT_USED;
}

static const struct member *find_member(const struct table *t, const struct uuid *uuid)
{
	for (unsigned i = 0; i < t->member_count; i++) {
		if (uuid_equal(&t->members[i].uuid, uuid))
			return &t->members[i];
	}
	return NULL;
}

static void judge_readability(const struct dev *dev, struct label_verdict *v)
{
	const struct label *l = &v->label;

	if (v->error == -ENODATA) {
		v->what = VERDICT_NO_LABEL;
		log_warning("%s: not used: no trussfs label", dev->name);
	} else if (v->error) {
		v->what = VERDICT_UNREADABLE;
		log_warning("%s: not used: label: %s", dev->name,
			    v->error == -EBADMSG ? "all copies are damaged" : strerror(-v->error));
	} else if (l->member_bytes > dev->size_bytes) {
		v->what = VERDICT_UNREADABLE;
		v->error = -ENOSPC;
		log_error("%s: not used: the device has shrunk: got %" PRIu64
			  " bytes, expected %" PRIu64,
			  dev->name, dev->size_bytes, l->member_bytes);
	}
}

/* The filesystem that most devices belong to; of equals, the one named first. */
static const struct uuid *most_wanted(const struct label_vote *vote, unsigned count)
{
	const struct uuid *best = NULL;
	unsigned best_votes = 0;

	for (unsigned i = 0; i < count; i++) {
		const struct label_verdict *v = &vote->verdicts[i];
		unsigned votes = 0;

		if (!takes_part(v))
			continue;
		for (unsigned k = 0; k < count; k++)
			votes += takes_part(&vote->verdicts[k]) &&
				 uuid_equal(&vote->verdicts[k].label.fs, &v->label.fs);
		if (votes > best_votes) {
			best_votes = votes;
			best = &v->label.fs;
		}
	}
	return best;
}

static void refuse_foreign(struct dev **devs, unsigned count, struct uuid fs,
			   struct label_vote *vote)
{
	char got[UUID_TEXT_BYTES], expected[UUID_TEXT_BYTES];

	for (unsigned i = 0; i < count; i++) {
		struct label_verdict *v = &vote->verdicts[i];

		if (!takes_part(v) || uuid_equal(&v->label.fs, &fs) || BREAK(vote_foreign))
			continue;
		v->what = VERDICT_FOREIGN;
		log_warning("%s: not used: belongs to another filesystem: got %s, expected %s",
			    devs[i]->name, uuid_text(&v->label.fs, got), uuid_text(&fs, expected));
	}
}

/* The device that shows the newest table that was committed. */
static struct label_verdict *newest(struct label_vote *vote, unsigned count)
{
	struct label_verdict *best = NULL;

	for (unsigned i = 0; i < count; i++) {
		struct label_verdict *v = &vote->verdicts[i];

		if (!takes_part(v))
			continue;
		/* Labels B first: without them a table may be one that nobody else has. */
		if (!best || v->label.far > best->label.far ||
		    (v->label.far == best->label.far && v->label.gen > best->label.gen))
			best = v;
	}
	return best;
}

/* All devices with the member UUID of `first`, which is the first of them. */
static int judge_clones_of(struct dev **devs, unsigned count, unsigned first, const struct table *t,
			   struct label_vote *vote)
{
	struct uuid uuid = vote->verdicts[first].label.member;
	const struct member *m = find_member(t, &uuid);
	unsigned matches = 0, true_one = 0, found = 0;
	char text[UUID_TEXT_BYTES];

	for (unsigned i = first; i < count; i++) {
		struct label_verdict *v = &vote->verdicts[i];

		if (!takes_part(v) || !uuid_equal(&v->label.member, &uuid))
			continue;
		found++;
		if (m && m->serial[0] &&
		    strncmp(m->serial, devs[i]->serial, sizeof(m->serial) - 1) == 0) {
			matches++;
			true_one = i;
		}
	}
	/* Two of what is no member harm nobody. */
	if (found < 2 || !m || m->state == MEMBER_REMOVED || BREAK(vote_clone))
		return 0;
	for (unsigned i = first; i < count; i++) {
		struct label_verdict *v = &vote->verdicts[i];

		if (!takes_part(v) || !uuid_equal(&v->label.member, &uuid) ||
		    (matches == 1 && i == true_one))
			continue;
		v->what = VERDICT_CLONE;
		if (matches == 1)
			log_warning(
			    "%s: not used: a copy of %s, which has the recorded serial number",
			    devs[i]->name, devs[true_one]->name);
		else
			log_error("%s: the same member as another device (%s): leave out or wipe "
				  "the copy",
				  devs[i]->name, uuid_text(&uuid, text));
	}
	return matches == 1 ? 0 : -EEXIST;
}

static int judge_clones(struct dev **devs, unsigned count, struct label_vote *vote)
{
	const struct table *t = newest(vote, count)->label.table;
	int ret = 0;

	for (unsigned i = 0; i < count; i++) {
		if (takes_part(&vote->verdicts[i]) && judge_clones_of(devs, count, i, t, vote) != 0)
			ret = -EEXIST;
	}
	return ret;
}

static bool is_forked(const struct label *a, const struct label *b)
{
	const struct member *a_in_b = find_member(b->table, &a->member);
	const struct member *b_in_a = find_member(a->table, &b->member);

	if (BREAK(vote_fork))
		return false;
	if (a->far && b->far && a->gen == b->gen && a->table_sum != b->table_sum)
		return true;
	if (!a_in_b || !b_in_a || a_in_b->state == MEMBER_ACTIVE || b_in_a->state == MEMBER_ACTIVE)
		return false;
	return a->gen > a_in_b->last_gen && b->gen > b_in_a->last_gen;
}

/* Somebody whom both tables count on. */
static bool shares_member(const struct table *a, const struct table *b)
{
	for (unsigned i = 0; i < a->member_count; i++) {
		const struct member *in_b = find_member(b, &a->members[i].uuid);

		if (a->members[i].state == MEMBER_ACTIVE && in_b && in_b->state == MEMBER_ACTIVE)
			return true;
	}
	return false;
}

/*
 * A newer table without it has somebody in service whom its own table counts on: nothing was acknowledged under that which
 * he would not have known, and gone on from. Needed beside last_gen where several writes in a row were interrupted, each
 * with others in service.
 */
static bool is_left_behind(const struct label_vote *vote, unsigned count, const struct label *l)
{
	for (unsigned i = 0; i < count; i++) {
		const struct label_verdict *v = &vote->verdicts[i];
		const struct member *me;

		if (!takes_part(v) || v->label.gen <= l->gen || BREAK(vote_left))
			continue;
		me = find_member(v->label.table, &l->member);
		if (me && me->state != MEMBER_ACTIVE && shares_member(l->table, v->label.table))
			return true;
	}
	return false;
}

/*
 * What cannot be used because it has shrunk may still know who was replaced: with all others gone, somebody replaced long ago
 * would else be taken for all that is left, and show the files of that time.
 */
static bool bears_witness(const struct label_verdict *v)
{
	return takes_part(v) || (v->error == -ENOSPC && !BREAK(vote_witness));
}

/* Replacing is for good: who was replaced has no say, whatever it did on its own afterwards. */
static void judge_removed(struct dev **devs, unsigned count, struct label_vote *vote)
{
	bool removed[MEMBERS_MAX] = {false};

	for (unsigned i = 0; i < count; i++) {
		for (unsigned k = 0; k < count; k++) {
			const struct label_verdict *a = &vote->verdicts[i], *b = &vote->verdicts[k];

			if (i == k || !takes_part(a) || !bears_witness(b))
				continue;
			if (table_is_gone(b->label.table, &a->label.member) && !BREAK(vote_removed) &&
			    !table_is_gone(a->label.table, &b->label.member))
				removed[i] = true;
		}
	}
	for (unsigned i = 0; i < count; i++) {
		if (!removed[i])
			continue;
		vote->verdicts[i].what = VERDICT_REMOVED;
		log_warning("%s: not used: this member was replaced", devs[i]->name);
	}
}

static int judge_forks(struct dev **devs, unsigned count, struct label_vote *vote)
{
	bool forked[MEMBERS_MAX] = {false};

	for (unsigned i = 0; i < count; i++) {
		for (unsigned k = i + 1; k < count; k++) {
			struct label_verdict *a = &vote->verdicts[i], *b = &vote->verdicts[k];

			if (!takes_part(a) || !takes_part(b) || !is_forked(&a->label, &b->label) ||
			    is_left_behind(vote, count, &a->label) ||
			    is_left_behind(vote, count, &b->label))
				continue;
			if (!vote->forked)
				log_error("%s and %s: each was used without the other (generations "
					  "%" PRIu64 " and %" PRIu64
					  "): give only the devices of one side, "
					  "then replace the others",
					  devs[i]->name, devs[k]->name, a->label.gen, b->label.gen);
			forked[i] = forked[k] = vote->forked = true;
		}
	}
	for (unsigned i = 0; i < count; i++) {
		if (forked[i])
			vote->verdicts[i].what = VERDICT_FORKED;
	}
	return vote->forked ? -ESTALE : 0;
}

static void set_stale(struct table *t, unsigned index, uint64_t gen)
{
	struct member *m = &t->members[index];

	m->state = MEMBER_MISSING;
	m->last_gen = MIN(m->last_gen, gen);
	table_member_set_stale(t, index);
}

/* The end of a long path says more than its beginning. */
static void copy_tail(char *to, size_t cap, const char *from)
{
	size_t len = strlen(from);

	if (len >= cap) {
		from += len - (cap - 1);
		len = cap - 1;
	}
	memset(to, 0, cap);
	memcpy(to, from, len);
}

void label_member_here(struct member *m, struct dev *dev)
{
	m->dev = dev;
	copy_tail(m->hint, sizeof(m->hint), dev->name);
	copy_tail(m->serial, sizeof(m->serial), dev->serial);
}

static void judge_member(struct table *t, struct dev *dev, struct label_verdict *v)
{
	const struct member *found = find_member(t, &v->label.member);
	struct member *m;
	unsigned index;

	if (!found || found->state == MEMBER_REMOVED || found->state == MEMBER_FAILED) {
		v->what = VERDICT_REMOVED;
		log_warning("%s: not used: %s", dev->name,
			    !found ? "the volume does not know this member"
				   : "this member was taken out of service for good");
		return;
	}
	index = (unsigned)(found - t->members);
	m = &t->members[index];
	v->label.member_index = index;
	memcpy(m->label_place, v->label.place, sizeof(m->label_place));
	if (!BREAK(vote_stale) && (m->state == MEMBER_MISSING || v->label.gen_seen < t->gen)) {
		v->what = VERDICT_STALE;
		log_warning("%s: member %u is stale: got generation %" PRIu64 ", expected %" PRIu64
			    "; to be rebuilt",
			    dev->name, index, v->label.gen, t->gen);
		set_stale(t, index, v->label.gen);
		return;
	}
	label_member_here(m, dev);
}

static bool has_seen(const struct label *l, uint64_t gen, uint64_t table_sum)
{
	for (size_t i = 0; i < ARRAY_SIZE(l->seen); i++) {
		if (l->seen[i].gen == gen && l->seen[i].table_sum == table_sum)
			return true;
	}
	return false;
}

/*
 * Whether everybody who is here and in service in the table has at least seen it: this very one, since the number of
 * one that was only prepared is given out again by those who were not there.
 */
static bool is_borne_out(const struct label_vote *vote, unsigned count, const struct table *t,
			 uint64_t table_sum)
{
	for (unsigned i = 0; i < count; i++) {
		const struct label_verdict *v = &vote->verdicts[i];
		const struct member *m = takes_part(v) ? find_member(t, &v->label.member) : NULL;

		if (m && m->state == MEMBER_ACTIVE && !has_seen(&v->label, t->gen, table_sum))
			return false;
	}
	return true;
}

/* Takes T out of the label that has it. */
static struct table *choose_table(struct label_vote *vote, unsigned count)
{
	struct table **best = &newest(vote, count)->label.table, *t;

	for (unsigned i = 0; i < count; i++) {
		struct label *l = &vote->verdicts[i].label;
		struct table **other = l->far ? &l->prepared : &l->table;

		if (!takes_part(&vote->verdicts[i]) || !*other || (l->far && !l->prepared_counts))
			continue;
		if ((*other)->gen > (*best)->gen &&
		    is_borne_out(vote, count, *other, l->far ? l->prepared_sum : l->table_sum))
			best = other;
	}
	t = *best;
	*best = NULL;
	return t;
}

/* Numbers above T's that are spent: see the top of the file. */
static uint64_t gens_spent(const struct label_vote *vote, unsigned count, uint64_t gen)
{
	uint64_t seen = gen;

	for (unsigned i = 0; i < count; i++) {
		const struct label_verdict *v = &vote->verdicts[i];

		if (v->what == VERDICT_USED || v->what == VERDICT_STALE)
			seen = MAX(seen, v->label.gen_seen);
	}
	return seen - gen;
}

/*
 * What a member that is used has prepared and not committed was never used by anybody. Those who
 * were in service in it may have committed it, and have not gone their own way by that; and what it
 * knew of others in the same way is not forgotten.
 */
static void note_unused(struct table *t, const struct label *l)
{
	for (unsigned i = 0; i < t->member_count; i++) {
		struct member *m = &t->members[i];
		const struct member *in_it = find_member(l->prepared, &m->uuid);

		if (in_it)
			m->last_gen = MAX(
			    m->last_gen, in_it->last_gen); /* its own number for those in service */
	}
}

static void judge_members(struct dev **devs, unsigned count, struct label_vote *vote)
{
	struct table *t = choose_table(vote, count);

	vote->table = t;
	for (unsigned i = 0; i < count; i++) {
		if (takes_part(&vote->verdicts[i]))
			judge_member(t, devs[i], &vote->verdicts[i]);
	}
	for (unsigned i = 0; i < count; i++) {
		if (takes_part(&vote->verdicts[i]) && vote->verdicts[i].label.prepared && !BREAK(vote_unused))
			note_unused(t, &vote->verdicts[i].label);
	}
	t->gen_skip = BREAK(vote_spent) ? 0 : gens_spent(vote, count, t->gen);
}

/* When nobody takes part: the most telling reason. */
static int why_nobody(const struct label_vote *vote, unsigned count)
{
	static const int order[] = {-ENOTSUP, -ENOSPC, -EBADMSG, -ETIMEDOUT,
				    -EIO,     -ENODEV, -ENOMEM};

	for (size_t k = 0; k < ARRAY_SIZE(order); k++) {
		for (unsigned i = 0; i < count; i++) {
			if (vote->verdicts[i].error == order[k])
				return order[k];
		}
	}
	return -ENODATA;
}

static int judge(struct dev **devs, unsigned count, const struct uuid *fs, struct label_vote *vote)
{
	int err;

	for (unsigned i = 0; i < count; i++)
		judge_readability(devs[i], &vote->verdicts[i]);
	if (!fs)
		fs = most_wanted(vote, count);
	if (fs)
		refuse_foreign(devs, count, *fs, vote);
	if (!newest(vote, count))
		return why_nobody(vote, count);
	err = judge_clones(devs, count, vote);
	if (err)
		return err;
	judge_removed(devs, count, vote);
	if (!newest(vote, count))
		return why_nobody(vote, count);
	err = judge_forks(devs, count, vote);
	if (err)
		return err;
	judge_members(devs, count, vote);
	return 0;
}

int label_vote(struct loop *loop, struct dev **devs, unsigned count, const struct uuid *fs,
	       struct label_vote *vote)
{
	int err = 0;

	memset(vote, 0, sizeof(*vote));
	if (count > MEMBERS_MAX) {
		log_error("too many devices: got %u, at most %u", count, MEMBERS_MAX);
		return -E2BIG;
	}
	if (!count)
		log_error("no device to open a volume from");
	read_everybody(loop, devs, count, vote);
	/* Who could not be read for our own lack of memory has not said that it is no member. */
	for (unsigned i = 0; i < count && !err; i++)
		if (vote->verdicts[i].error == -ENOMEM)
			err = -ENOMEM;
	if (!err)
		err = judge(devs, count, fs, vote);
	for (unsigned i = 0; i < count; i++)
		label_clear(&vote->verdicts[i].label);
	return err;
}
