// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Replay: what the journal holds is applied in memory, and written home by an ordinary checkpoint afterwards (or, in a
 * read-only volume, not at all).
 *
 *   1. Every ring is read once from end to end. A record counts if it is of this filesystem and epoch and its
 *      checksum, salted with the epoch's secret, is right; so neither old records nor blocks of a file that look like one do.
 *   2. The newest record says where the tail is. From there on the records must follow each other; the first that
 *      is missing ends the log. A record tells which one was durable when it was written: if that lies beyond the
 *      gap, something acknowledged is lost, and the volume is not opened.
 *   3. The items are applied in order. A direct write, whose bytes are already in place, cancels the images of earlier records: they
 *      must not be written over it.
 *
 * Every step may be repeated: nothing on the members changes before the checkpoint, and that writes what the records say, however often. The
 * new epoch begins only when all of it is home.
 *
 * A member that is named by a durable record and does not have it has lost flushed data, and is counted.
 */
#include <stdlib.h>

#include "volume.h"
#include "xxh3.h"

#define SCAN_BYTES (1u << 20)
/* Smaller extents are tried where one cannot be read, down to a block: SCAN_BYTES, a 16th, a 256th. */
#define SCAN_NARROW 16
static_assert(SCAN_BYTES / SCAN_NARROW / SCAN_NARROW == BLOCK_BYTES, "ends with a block");
#define RING_ERRORS_MAX 64 /* reads of a ring that fail before what is left of it is given up */
#define RING_VAIN_SHARE 2  /* so many times its size may be read of records that turn out wrong */

/* A record that was found, and where. */
struct found {
	uint64_t seq, tail, durable, members;
	uint64_t off;      /* on the member */
	uint32_t len;
	unsigned member;   /* one that has it */
	uint64_t have;     /* all that have it */
	struct record_disk *kept; /* its content, if it is not known that it was durable */
};

struct replay {
	struct raid *r;
	struct found *found;
	size_t count, cap;
	struct found *copies; /* each copy of each record, in order of sequence number */
	size_t copy_count;
	unsigned given_up; /* rings that were not read to the end */
};

/* ---- finding records ---- */

static int found_add(struct replay *rp, const struct record_disk *d, unsigned member, uint64_t off)
{
	struct found *f;

	if (rp->count == rp->cap) {
		size_t cap = rp->cap ? rp->cap * 2 : 256;

		f = mem_realloc(rp->found, cap * sizeof(*f));
		if (!f)
			return -ENOMEM;
		rp->found = f;
		rp->cap = cap;
	}
	rp->found[rp->count++] = (struct found){
		.seq = from_le64(d->seq),
		.tail = from_le64(d->tail),
		.durable = from_le64(d->durable),
		.members = from_le64(d->members),
		.off = off,
		.len = from_le32(d->total_bytes),
		.member = member,
		.have = 1ull << member,
	};
	return 0;
}

static bool record_head_plausible(struct raid *r, const struct record_disk *d, uint64_t room)
{
	uint64_t total = from_le32(d->total_bytes), items = from_le32(d->items_bytes);

	return from_le64(d->magic) == RECORD_MAGIC && uuid_equal(&d->fs, &r->t->fs) &&
	       (from_le64(d->epoch) == r->t->epoch || BREAK(epoch)) && total % BLOCK_BYTES == 0 && total <= room &&
	       total == BLOCK_BYTES + ROUND_UP(items, BLOCK_BYTES) +
				(uint64_t)from_le32(d->image_count) * BLOCK_BYTES;
}

/* Reads a whole record into heap memory by way of pool memory. */
static int record_read(struct raid *r, unsigned member, uint64_t off, uint64_t len, void **ret)
{
	char *bounce = buf_get_wait(SCAN_BYTES), *out = mem_alloc(len);
	int err = out ? 0 : -ENOMEM;

	for (uint64_t at = 0; at < len && !err; at += SCAN_BYTES) {
		uint64_t n = MIN(len - at, SCAN_BYTES);

		err = io_read_sync(r->t->members[member].dev, off + at, bounce, n);
		if (!err)
			memcpy(out + at, bounce, n);
	}
	buf_put(bounce);
	if (err) {
		mem_free(out);
		return err;
	}
	*ret = out;
	return 0;
}

static bool record_right(struct raid *r, struct record_disk *d, uint64_t len)
{
	uint64_t sum = from_le64(d->sum), is;

	d->sum = to_le64(0);
	is = XXH3_64bits_withSeed(d, len, r->t->salt);
	d->sum = to_le64(sum);
	return is == sum || BREAK(record_again);
}

/* The scan of one ring, and what it has cost. */
struct scan {
	unsigned member;
	char *buf, *bounce; /* SCAN_BYTES each */
	unsigned errors;
	uint64_t vain_bytes;
};

/* Whether the record at `off` has its checksum, without room for all of it: nobody knows yet that its length is true. */
static int record_check(struct replay *rp, struct scan *sc, uint64_t off, uint64_t len, uint64_t sum, bool *ret)
{
	XXH3_state_t *state = XXH3_createState();
	int err = 0;

	if (!state)
		return -ENOMEM;
	(void)XXH3_64bits_reset_withSeed(state, rp->r->t->salt); /* cannot fail with a state */
	for (uint64_t at = 0; at < len && !err; at += SCAN_BYTES) {
		uint64_t n = MIN(len - at, SCAN_BYTES);

		err = io_read_sync(rp->r->t->members[sc->member].dev, off + at, sc->bounce, n);
		if (err)
			break;
		if (!at)
			((struct record_disk *)sc->bounce)->sum = to_le64(0);
		(void)XXH3_64bits_update(state, sc->bounce, n);
	}
	*ret = !err && (XXH3_64bits_digest(state) == sum || BREAK(record_sum));
	XXH3_freeState(state);
	return err;
}

/* A plausible head at `off`: the length of the record if it is right, 0 if it is not one. */
static int record_try(struct replay *rp, struct scan *sc, uint64_t off, const struct record_disk *head, uint64_t room,
		      uint64_t *ret_len)
{
	uint64_t len = from_le32(head->total_bytes);
	bool right;
	int err;

	*ret_len = 0;
	if (!record_head_plausible(rp->r, head, room))
		return 0;
	err = record_check(rp, sc, off, len, from_le64(head->sum), &right);
	if (err == -ENOMEM)
		return err;
	if (err) {
		health_read_error(rp->r, sc->member, err);
		sc->errors++;
		return 0;
	}
	if (!right) {
		sc->vain_bytes += len;
		return 0;
	}
	*ret_len = len;
	return found_add(rp, head, sc->member, off);
}

/* All records that begin in what was read. Returns how far. */
static int scan_extent(struct replay *rp, struct scan *sc, uint64_t at, uint64_t n, uint64_t *ret_used)
{
	uint64_t start = rp->r->t->journal_off_bytes, size = rp->r->t->journal_bytes, used = 0, len;
	int err = 0;

	while (used < n && !err) {
		err = record_try(rp, sc, start + at + used, (void *)(sc->buf + used), size - at - used, &len);
		used += len ? len : BLOCK_BYTES;
	}
	*ret_used = used;
	return err;
}

/*
 * Reads a ring once. What cannot be read is narrowed down and passed over: it may have other copies. A ring that goes on
 * failing, or that leads us about with heads of records that are none, is given up: the time a mount takes is bounded.
 */
static int ring_scan(struct replay *rp, unsigned member)
{
	struct raid *r = rp->r;
	const struct member *m = &r->t->members[member];
	uint64_t size = r->t->journal_bytes, at = 0, extent = SCAN_BYTES, used;
	struct scan sc = {.member = member};
	int err = 0;

	sc.buf = buf_get_wait(2 * SCAN_BYTES);
	sc.bounce = sc.buf + SCAN_BYTES;
	while (at < size && !err) {
		uint64_t n = MIN(size - at, extent);
		int read = io_read_sync(m->dev, r->t->journal_off_bytes + at, sc.buf, n);

		if (!read) {
			err = scan_extent(rp, &sc, at, n, &used);
			at += used;
			extent = MIN(extent * SCAN_NARROW, SCAN_BYTES);
		} else {
			health_read_error(r, member, read);
			sc.errors++;
			if (n <= BLOCK_BYTES)
				at += BLOCK_BYTES;
			else
				extent = MAX(extent / SCAN_NARROW, (uint64_t)BLOCK_BYTES);
			if (read == -ETIMEDOUT || !member_in_service(m))
				break;
		}
		if (sc.errors > RING_ERRORS_MAX || sc.vain_bytes > RING_VAIN_SHARE * size) {
			log_warning("%s: its journal is given up after %u errors", m->dev->name, sc.errors);
			break;
		}
	}
	rp->given_up += at < size && !err;
	buf_put(sc.buf);
	return err;
}

static int found_cmp(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (x->seq != y->seq)
		return x->seq < y->seq ? -1 : 1;
	return (x->member > y->member) - (x->member < y->member);
}

/* Copies of one record become one. */
static int found_merge(struct replay *rp)
{
	size_t n = 0;

	qsort(rp->found, rp->count, sizeof(*rp->found), found_cmp);
	rp->copies = mem_alloc(rp->count * sizeof(*rp->copies));
	if (!rp->copies)
		return -ENOMEM;
	memcpy(rp->copies, rp->found, rp->count * sizeof(*rp->copies));
	rp->copy_count = rp->count;
	for (size_t i = 0; i < rp->count; i++) {
		if (!n || rp->found[n - 1].seq != rp->found[i].seq) {
			rp->found[n++] = rp->found[i];
			continue;
		}
		rp->found[n - 1].have |= rp->found[i].have;
		rp->found[n - 1].members |= rp->found[i].members;
	}
	rp->count = n;
	return 0;
}

/* Cuts the found records down to those from the tail to the first gap. */
static int replay_choose(struct replay *rp, uint64_t *ret_durable)
{
	struct raid *r = rp->r;
	uint64_t tail = 1, durable = 0, next;
	size_t first = 0, n = 0;

	r->journal.tail = tail;
	if (!rp->count && r->t->flags & TABLE_RECORDS) {
		log_error("journal: there were records, and none is left: acknowledged data is lost");
		return -EUCLEAN;
	}
	if (!rp->count)
		return 0;
	if (found_merge(rp))
		return -ENOMEM;
	for (size_t i = 0; i < rp->count; i++) {
		tail = BREAK(replay_tail) ? rp->found[0].seq : MAX(tail, rp->found[i].tail);
		durable = MAX(durable, rp->found[i].durable);
	}
	while (first < rp->count && rp->found[first].seq < tail)
		first++;
	next = tail;
	while (first + n < rp->count && rp->found[first + n].seq == next) {
		n++;
		next++;
	}
	if (durable >= next && !BREAK(gap)) {
		log_error("journal: record %llu is missing, but %llu was durable: acknowledged data is lost",
			  (unsigned long long)next, (unsigned long long)durable);
		return -EUCLEAN;
	}
	if (BREAK(gap))
		n = rp->count - first;
	memmove(rp->found, rp->found + first, n * sizeof(*rp->found));
	rp->count = n;
	*ret_durable = durable;
	r->journal.tail = tail;
	for (size_t i = 0; i < n; i++) {
		struct found *f = &rp->found[i];

		for (unsigned m = 0; m < r->t->member_count && f->seq <= durable; m++)
			if (f->members >> m & 1 && !(f->have >> m & 1) && member_in_service(&r->t->members[m]) &&
			    !BREAK(record_lost)) {
				log_warning("%s: lost journal record %llu, which it had flushed",
					    r->t->members[m].dev->name, (unsigned long long)f->seq);
				r->t->members[m].errors_lost++;
			}
	}
	return 0;
}

/* ---- items ---- */

static bool item_in_range(const struct chunk *c, const struct item_disk *item)
{
	uint64_t row = from_le64(item->row), count = from_le32(item->count);

	if (!c)
		return false;
	switch (from_le32(item->kind)) {
	case ITEM_LIVE:
	case ITEM_DEAD:
		return row < c->geom.blocks && count <= c->geom.blocks - row;
	case ITEM_SUMS:
		return row < c->geom.rows && count >> 16 <= c->geom.rows - row &&
		       (uint64_t)from_le32(item->slot) + (count & 0xffff) <= c->geom.sums;
	case ITEM_IMAGE:
		return row < c->geom.rows && from_le32(item->slot) < c->geom.sums;
	}
	return false;
}

static int apply_sums(struct replay *rp, struct chunk *c, const struct item_disk *item, const le64 *sums)
{
	uint32_t count = from_le32(item->count);
	uint64_t row = from_le64(item->row);
	int err = 0;

	for (uint32_t i = 0; i < count >> 16 && !err; i++, row++) {
		err = page_get_rows(rp->r, c, row, 1);
		for (uint32_t s = 0; s < (count & 0xffff) && !err; s++) {
			if (!BREAK(revoke))
				image_cancel(rp->r, c, row, from_le32(item->slot) + s);
			page_sum_set(rp->r, c, row, from_le32(item->slot) + s, from_le64(*sums++));
		}
		if (!err)
			page_put_rows(rp->r, c, row, 1);
	}
	return err;
}

static int apply_live(struct replay *rp, struct chunk *c, const struct item_disk *item, bool live)
{
	struct page *p = NULL;
	int err = 0;

	for (uint32_t i = 0; i < from_le32(item->count) && !err; i++) {
		uint64_t row;
		unsigned index;

		geom_locate(&c->geom, from_le64(item->row) + i, &row, &index);
		if (!p || p->number != geom_bitmap_page(&c->geom, row)) {
			if (p)
				page_put(rp->r, p);
			p = NULL;
			err = page_get(rp->r, c, geom_bitmap_page(&c->geom, row), &p);
		}
		if (!err)
			page_live_set(rp->r, c, row, index, live);
	}
	if (p)
		page_put(rp->r, p);
	return err;
}

static int item_apply(struct replay *rp, const struct item_disk *item, const le64 *sums, const void *image)
{
	struct chunk *c = table_chunk(rp->r->t, from_le32(item->chunk));

	switch (from_le32(item->kind)) {
	case ITEM_LIVE:
		return apply_live(rp, c, item, true);
	case ITEM_DEAD:
		return apply_live(rp, c, item, false);
	case ITEM_SUMS:
		return apply_sums(rp, c, item, sums);
	case ITEM_IMAGE:
		return image_replay(rp->r, c, from_le64(item->row), from_le32(item->slot), from_le64(item->sum),
				    image);
	}
	return -EBADMSG;
}

static int record_apply(struct replay *rp, const struct record_disk *d)
{
	const uint8_t *items = (const uint8_t *)d + BLOCK_BYTES;
	size_t bytes = from_le32(d->items_bytes), at = 0;
	const uint8_t *image = items + ROUND_UP(bytes, BLOCK_BYTES);
	const uint8_t *end = (const uint8_t *)d + from_le32(d->total_bytes);
	int err = 0;

	for (uint32_t n = 0; n < from_le32(d->item_count) && !err; n++) {
		const struct item_disk *item = (const void *)(items + at);
		const void *content = NULL;
		size_t sums = 0;

		if (at + sizeof(*item) > bytes)
			return -EBADMSG;
		at += sizeof(*item);
		if (!item_in_range(table_chunk(rp->r->t, from_le32(item->chunk)), item))
			return -EBADMSG;
		if (from_le32(item->kind) == ITEM_SUMS)
			sums = (size_t)(from_le32(item->count) >> 16) * (from_le32(item->count) & 0xffff) *
			       sizeof(le64);
		if (at + sums > bytes)
			return -EBADMSG;
		if (from_le32(item->kind) == ITEM_IMAGE) {
			if (image + BLOCK_BYTES > end)
				return -EBADMSG;
			content = image;
			image += BLOCK_BYTES;
		}
		err = item_apply(rp, item, (const void *)(items + at), content);
		at += sums;
	}
	return err;
}

/* Any copy that still reads right. */
static int found_read(struct replay *rp, const struct found *f, struct record_disk **ret)
{
	size_t lo = 0, hi = rp->copy_count;
	int err = -EIO;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (rp->copies[mid].seq < f->seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < rp->copy_count && rp->copies[lo].seq == f->seq; lo++) {
		const struct found *copy = &rp->copies[lo];
		const struct member *m = &rp->r->t->members[copy->member];

		if (!member_in_service(m)) /* it hung meanwhile */
			continue;
		err = record_read(rp->r, copy->member, copy->off, copy->len, (void **)ret);
		if (!err && record_right(rp->r, *ret, copy->len))
			return 0;
		if (!err)
			mem_free(*ret);
		else if (err == -ENOMEM)
			return err;
		else
			health_read_error(rp->r, copy->member, err);
		err = err ? err : -EBADMSG;
	}
	return err;
}

/*
 * The last records may be on fewer members than they were meant for, so that one member that no longer reads takes
 * them away. They are read for the last time before anything is applied: what cannot be is the gap.
 */
static int replay_keep(struct replay *rp, uint64_t durable)
{
	for (size_t i = 0; i < rp->count; i++) {
		struct found *f = &rp->found[i];
		int err;

		if (f->seq <= durable)
			continue;
		err = found_read(rp, f, &f->kept);
		if (!err)
			continue;
		f->kept = NULL;
		if (err == -ENOMEM || f->have == f->members) /* it may have been acknowledged */
			return err;
		log_warning("journal: record %llu was never complete and cannot be read any more",
			    (unsigned long long)f->seq);
		rp->count = i;
	}
	return 0;
}

static int replay_apply(struct replay *rp)
{
	int err = 0;

	for (size_t n = 0; n < rp->count && !err; n++) {
		const struct found *f = &rp->found[BREAK(replay_order) ? rp->count - 1 - n : n];
		struct record_disk *d = f->kept;

		if (!d)
			err = found_read(rp, f, &d);
		if (err)
			break;
		rp->r->journal.replay_seq = f->seq;
		err = record_apply(rp, d);
		if (!f->kept)
			mem_free(d);
	}
	return err;
}

static void replay_free(struct replay *rp)
{
	for (size_t i = 0; i < rp->count; i++)
		mem_free(rp->found[i].kept);
	mem_free(rp->found);
	mem_free(rp->copies);
}

/*
 * A record that was not known to be durable may be on one member only. Once its blocks go home it must not be lost any
 * more: a crash in the middle, and then that member gone, would leave rows half of it and half of what was before. So it
 * gets the copies that it lacks first.
 */
static int replay_spread(struct replay *rp)
{
	struct raid *r = rp->r;
	int err = 0;

	for (size_t i = 0; i < rp->copy_count && !err; i++) {
		const struct found *copy = &rp->copies[i];

		if (copy->seq >= r->journal.tail)
			err = journal_ring_restore(r, copy->member, copy->seq,
						   copy->off - r->t->journal_off_bytes, copy->len);
	}
	for (size_t i = 0; i < rp->count && !err; i++) {
		uint64_t have = 0;

		if (!rp->found[i].kept)
			continue;
		for (unsigned m = 0; m < r->t->member_count; m++)
			if (rp->found[i].have >> m & 1 && member_in_service(&r->t->members[m]))
				have |= 1ull << m;
		err = journal_spread_record(r, rp->found[i].seq, rp->found[i].kept, rp->found[i].len, have);
		if (err == -ENOSPC || err == -ENOMEM) {
			log_warning("journal: record %llu stays on fewer members than it should",
				    (unsigned long long)rp->found[i].seq);
			err = 0;
		}
	}
	return err;
}

/*
 * Any record may have been on so many members alone, and the newest would not even be missed. Where groups leave every
 * chunk readable with more members absent than the level tolerates, they are waited for; to look at what is here is fine.
 */
static int rings_enough(const struct replay *rp)
{
	const struct raid *r = rp->r;
	unsigned absent = 0;
	char uuid[UUID_TEXT_BYTES];

	for (unsigned m = 0; m < r->t->member_count && !r->read_only; m++)
		absent += r->t->members[m].state == MEMBER_ACTIVE && !r->t->members[m].dev;
	if (rp->given_up + absent <= r->t->tolerance || BREAK(rings))
		return 0;
	log_error("journal: it cannot be read on %u members, and the newest records may be on those alone", rp->given_up + absent);
	for (unsigned m = 0; m < r->t->member_count && absent; m++) {
		const struct member *it = &r->t->members[m];

		if (it->state == MEMBER_ACTIVE && !it->dev)
			log_error("  member %u, %s, last seen as %s: not here: bring it back, or open the volume read-only", m,
				  uuid_text(&it->uuid, uuid), it->hint);
	}
	return absent ? -ENODEV : -EIO;
}

int journal_replay(struct raid *r)
{
	struct replay rp = {.r = r};
	uint64_t durable = 0;
	int err = 0;

	for (unsigned m = 0; m < r->t->member_count && !err; m++)
		if (member_in_service(&r->t->members[m]))
			err = ring_scan(&rp, m);
	if (!err)
		err = rings_enough(&rp);
	if (!err)
		err = replay_choose(&rp, &durable);
	if (!err && !BREAK(keep))
		err = replay_keep(&rp, durable);
	if (!err && !r->read_only && !BREAK(spread))
		err = replay_spread(&rp);
	if (!err) {
		r->replaying = true;
		err = replay_apply(&rp);
		r->replaying = false;
	}
	if (err)
		log_error("journal: replay failed: %s", strerror(-err));
	else if (rp.count)
		log_info("journal: %zu records replayed, %llu to %llu", rp.count,
			 (unsigned long long)rp.found[0].seq,
			 (unsigned long long)rp.found[rp.count - 1].seq);
	replay_free(&rp);
	return err;
}
