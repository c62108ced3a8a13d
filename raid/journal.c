// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Transactions and the journal they become durable in.
 *
 * One transaction is open at any time; everything staged goes into it. A commit seals it at one instant (the filesystem stages
 * its dirty nodes, the next transaction opens), and then
 *
 *   1. flushes the members that were written, so that the data it makes live is durable      (W2)
 *   2. writes the table if a member went out                                                (W5)
 *   3. writes the record to tolerance + 1 members, those whose rings are emptiest, durably (FUA)
 *   4. writes the table if a member went out meanwhile, or if it is the first record of the epoch
 *   5. calls it durable: waiters go on, older images are superseded, dead blocks wait for readers (W3)
 *
 * One commit runs at a time, so a record is written only after its predecessor is durable; commits that
 * are asked for meanwhile share the next one. A record names the newest durable one, by which replay proves that
 * nothing acknowledged is missing.
 *
 * A checkpoint writes home what the journal holds. It begins at the sealing of a transaction, where the pages are captured; when that
 * is durable, images and pages are written, everything is flushed, and the tail moves on. Ring space is free for use only when a
 * record that carries the new tail is durable: an empty record is written for it, for which room is always kept.
 *
 * Bounds, as parts of one ring: a transaction starts committing at 1/16 and stops its writers at 1/8; a checkpoint starts when more than
 * 3/8 is in use. So a sealed transaction always fits: 3/8 + 1/8 when the checkpoint was captured, and further ones wait for its end
 * when less than they need is left.
 *
 * An empty transaction writes no record: there is nothing to be lost.
 */
#include <stdlib.h>

#include "volume.h"
#include "xxh3.h"

#define COMMIT_NS_DEFAULT (5 * NS_PER_S)
#define COMMIT_PARTS 5u /* one of them of the time that is promised is for the commit itself */
#define RECORD_IOV_MAX 512u      /* blocks in one I/O of a record */
#define RING_KEEP_BYTES (4 * BLOCK_BYTES) /* for records that only carry a new tail */
#define RECORD_TRIES_MAX MEMBERS_MAX      /* each failure takes a member out */

/* ---- staging ---- */

static struct txn *txn_new(uint64_t seq)
{
	struct txn *x = mem_zalloc(sizeof(*x));

	if (!x)
		return NULL;
	x->seq = seq;
	x->last_sums = SIZE_MAX;
	list_init(&x->images);
	list_init(&x->node);
	return x;
}

static void txn_free(struct txn *x)
{
	if (!x)
		return;
	list_del(&x->node);
	mem_free(x->items);
	mem_free(x->dead);
	mem_free(x);
}

static bool txn_empty(const struct txn *x)
{
	return !x->item_count && !x->dead_count;
}

/* Room for `bytes` more; without memory the volume stops: the members stay as of the last commit. */
static void *txn_room(struct raid *r, size_t bytes)
{
	struct txn *x = r->journal.open;
	void *room;

	if (x->items_bytes + bytes > x->items_cap) {
		size_t cap = MAX(x->items_cap * 2, (size_t)4096);
		uint8_t *items = mem_realloc(x->items, cap);

		if (!items) {
			if (!r->error)
				log_error("out of memory: the volume takes no more writes");
			r->error = -ENOMEM;
			return NULL;
		}
		x->items = items;
		x->items_cap = cap;
	}
	room = x->items + x->items_bytes;
	x->items_bytes += bytes;
	return room;
}

static void txn_item(struct raid *r, const struct item_disk *item)
{
	struct item_disk *room = txn_room(r, sizeof(*room));

	if (!room)
		return;
	*room = *item;
	r->journal.open->item_count++;
	r->journal.open->last_sums = SIZE_MAX;
}

/* The row behind the last item, same checksums: the item grows by a row. */
static bool sums_follow(struct raid *r, const struct chunk *c, uint64_t row, unsigned first_sum, unsigned sums)
{
	const struct txn *x = r->journal.open;
	const struct item_disk *last;
	uint32_t count;

	if (x->last_sums == SIZE_MAX)
		return false;
	last = (const void *)(x->items + x->last_sums);
	count = from_le32(last->count);
	return from_le32(last->chunk) == c->number && from_le32(last->slot) == first_sum &&
	       (count & 0xffff) == sums && count >> 16 < 0xffff && from_le64(last->row) + (count >> 16) == row;
}

void journal_stage_sums(struct raid *r, struct chunk *c, uint64_t row, unsigned first_sum, unsigned sums)
{
	struct txn *x = r->journal.open;
	le64 *values;

	if (sums_follow(r, c, row, first_sum, sums)) {
		size_t at = x->last_sums;
		struct item_disk *last;

		values = txn_room(r, sums * sizeof(*values));
		last = (void *)(x->items + at);
		if (values)
			last->count = to_le32(from_le32(last->count) + 0x10000);
	} else {
		size_t at = x->items_bytes;

		txn_item(r, &(struct item_disk){.kind = to_le32(ITEM_SUMS),
						.count = to_le32(0x10000 | sums),
						.chunk = to_le32(c->number),
						.slot = to_le32(first_sum),
						.row = to_le64(row)});
		values = txn_room(r, sums * sizeof(*values));
		x->last_sums = values ? at : SIZE_MAX; /* without memory there may not even be an item */
	}
	for (unsigned i = 0; values && i < sums; i++)
		values[i] = to_le64(page_sum(r, c, row, first_sum + i));
}

void journal_stage_image(struct raid *r, struct image *i)
{
	struct txn *x = r->journal.open;

	/* The checksum is filled in when the transaction is sealed: until then the content may change. */
	txn_item(r, &(struct item_disk){.kind = to_le32(ITEM_IMAGE),
					.count = to_le32(1),
					.chunk = to_le32(i->chunk->number),
					.slot = to_le32(i->sum),
					.row = to_le64(i->row)});
	list_add_tail(&x->images, &i->txn);
	x->image_count++;
}

int raid_stage_image(struct raid *r, uint64_t lba, const void *block)
{
	struct chunk *c = table_chunk(r->t, LBA_CHUNK(lba));
	uint64_t row;
	unsigned index;
	int err;

	assert(c && c->class == CHUNK_META && LBA_BLOCK(lba) < c->geom.blocks);
	geom_locate(&c->geom, LBA_BLOCK(lba), &row, &index);
	space_written(c, row, index);
	err = image_stage(r, c, row, index, block);
	if (err && !r->error) {
		/* Who stages a set of blocks cannot take it back: half of it must not be committed. */
		log_error("out of memory: the volume takes no more writes");
		r->error = err;
	}
	return err;
}

static void stage_live(struct raid *r, struct chunk *c, uint64_t lba, uint32_t count, bool live)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t row;
		unsigned index;

		geom_locate(&c->geom, LBA_BLOCK(lba) + i, &row, &index);
		page_live_set(r, c, row, index, live);
	}
}

void raid_stage_live(struct raid *r, uint64_t lba, uint32_t count)
{
	struct chunk *c = table_chunk(r->t, LBA_CHUNK(lba));

	assert(c && space_loaded(c));
	stage_live(r, c, lba, count, true);
	txn_item(r, &(struct item_disk){.kind = to_le32(ITEM_LIVE),
					.count = to_le32(count),
					.chunk = to_le32(c->number),
					.row = to_le64(LBA_BLOCK(lba))});
}

void raid_stage_dead(struct raid *r, uint64_t lba, uint32_t count)
{
	struct txn *x = r->journal.open;
	struct chunk *c = table_chunk(r->t, LBA_CHUNK(lba));

	if (x->dead_count == x->dead_cap) {
		size_t cap = x->dead_cap ? x->dead_cap * 2 : 64;
		struct txn_dead *dead = mem_realloc(x->dead, cap * sizeof(*dead));

		if (!dead) {
			r->error = -ENOMEM;
			return;
		}
		x->dead = dead;
		x->dead_cap = cap;
	}
	x->dead[x->dead_count++] = (struct txn_dead){.lba = lba, .count = count};
	txn_item(r, &(struct item_disk){.kind = to_le32(ITEM_DEAD),
					.count = to_le32(count),
					.chunk = to_le32(c->number),
					.row = to_le64(LBA_BLOCK(lba))});
	/* In order with the items, as far as bitmaps are loaded; the rest before sealing. */
	if (x->dead_applied == x->dead_count - 1 && space_loaded(c)) {
		stage_live(r, c, lba, count, false);
		x->dead_applied++;
		/* W3: free when the transaction is durable (dead_release). */
		if (BREAK(w3)) {
			space_release(r, lba, count);
			x->dead[x->dead_count - 1].count = 0;
		}
	}
}

/* Clears the live bits of blocks in chunks that had to be loaded first. */
static int txn_settle_dead(struct raid *r)
{
	struct txn *x = r->journal.open;
	int err = 0;

	while (!err && x->dead_applied < x->dead_count) {
		struct txn_dead d = x->dead[x->dead_applied];
		struct chunk *c = table_chunk(r->t, LBA_CHUNK(d.lba));

		err = space_load(r, c);
		if (err)
			break;
		stage_live(r, c, d.lba, d.count, false);
		x->dead_applied++;
	}
	return err;
}

/* ---- readers ---- */

void raid_read_begin(struct raid *r, struct raid_reader *reader)
{
	reader->seq = r->journal.open->seq;
	list_add_tail(&r->journal.readers, &reader->node);
}

/* Blocks that died in durable transactions before any reader began are free. */
static void dead_release(struct raid *r)
{
	struct journal *j = &r->journal;

	while (!list_empty(&j->settled)) {
		struct txn *x = list_first(&j->settled, struct txn, node);

		if (!BREAK(readers) && !list_empty(&j->readers) &&
		    list_first(&j->readers, struct raid_reader, node)->seq <= x->seq)
			return;
		for (size_t i = 0; i < x->dead_count; i++)
			space_release(r, x->dead[i].lba, x->dead[i].count);
		txn_free(x);
	}
}

void raid_read_end(struct raid *r, struct raid_reader *reader)
{
	list_del(&reader->node);
	dead_release(r);
}

/* ---- rings ---- */

static struct ring_record *ring_oldest(struct ring *g)
{
	return g->count ? &g->records[g->first] : NULL;
}

static void ring_forget(struct ring *g, uint64_t before_seq)
{
	while (g->count && g->records[g->first].seq < before_seq) {
		g->first = (g->first + 1) % g->cap;
		g->count--;
	}
}

static int ring_remember(struct ring *g, uint64_t seq, uint64_t off, uint64_t len)
{
	if (g->count == g->cap) {
		unsigned cap = g->cap ? g->cap * 2 : 64;
		struct ring_record *records = mem_alloc(cap * sizeof(*records));

		if (!records)
			return -ENOMEM;
		for (unsigned i = 0; i < g->count; i++)
			records[i] = g->records[(g->first + i) % g->cap];
		mem_free(g->records);
		g->records = records;
		g->cap = cap;
		g->first = 0;
	}
	g->records[(g->first + g->count) % g->cap] = (struct ring_record){.seq = seq, .off = off, .len = len};
	g->count++;
	return 0;
}

/* Where a record of `len` bytes would go; UINT64_MAX: there is no room. */
static uint64_t ring_place(struct ring *g, uint64_t ring_bytes, uint64_t len)
{
	const struct ring_record *oldest = ring_oldest(g);

	if (!oldest)
		return len <= ring_bytes - g->head ? g->head : len <= ring_bytes ? 0 : UINT64_MAX;
	if (g->head > oldest->off) {
		if (len <= ring_bytes - g->head)
			return g->head;
		return len <= oldest->off ? 0 : UINT64_MAX;
	}
	return len <= oldest->off - g->head ? g->head : UINT64_MAX;
}

static uint64_t ring_used(struct ring *g, uint64_t ring_bytes)
{
	const struct ring_record *oldest = ring_oldest(g);

	if (!oldest)
		return 0;
	if (g->head > oldest->off)
		return g->head - oldest->off;
	return ring_bytes - oldest->off + g->head;
}

static uint64_t rings_used_max(struct raid *r)
{
	uint64_t max = 0;

	for (unsigned m = 0; m < r->t->member_count; m++)
		if (member_takes_records(&r->t->members[m]))
			max = MAX(max, ring_used(&r->journal.rings[m], r->t->journal_bytes));
	return max;
}

/* Room in every ring, so that it does not matter which members the record goes to. */
static bool rings_have_room(struct raid *r, uint64_t len)
{
	for (unsigned m = 0; m < r->t->member_count; m++)
		if (member_takes_records(&r->t->members[m]) &&
		    ring_place(&r->journal.rings[m], r->t->journal_bytes, len + RING_KEEP_BYTES) == UINT64_MAX)
			return false;
	return true;
}

static const struct ring_record *ring_nth(const struct ring *g, unsigned n)
{
	return &g->records[(g->first + n) % g->cap];
}

/* They stand in order of sequence number. */
static bool ring_has(const struct ring *g, uint64_t seq)
{
	unsigned lo = 0, hi = g->count;

	while (lo < hi) {
		unsigned mid = lo + (hi - lo) / 2;

		if (ring_nth(g, mid)->seq < seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < g->count && ring_nth(g, lo)->seq == seq;
}

bool journal_can_spare(const struct raid *r, unsigned member)
{
	const struct journal *j = &r->journal;
	const struct ring *own = &j->rings[member];

	for (unsigned n = 0; n < own->count; n++) {
		uint64_t seq = ring_nth(own, n)->seq;
		bool elsewhere = false;

		/* Home already, or not yet promised to anybody. */
		if (seq < j->tail_durable || seq > j->record_flushed)
			continue;
		for (unsigned m = 0; m < r->t->member_count && !elsewhere; m++)
			elsewhere = m != member && member_in_service(&r->t->members[m]) &&
				    ring_has(&j->rings[m], seq);
		if (!elsewhere)
			return false;
	}
	return true;
}

/* ---- flushing ---- */

void journal_member_written(struct raid *r, unsigned member)
{
	r->journal.rings[member].written++;
}

bool journal_member_unflushed(const struct raid *r, unsigned member)
{
	const struct ring *g = &r->journal.rings[member];

	return g->written != g->flushed;
}

/* Flushes the members of the mask whose writes are not all covered by a flush. */
static int flush_members(struct raid *r, uint64_t mask, bool lenient)
{
	struct io ios[MEMBERS_MAX];
	uint64_t covers[MEMBERS_MAX];
	struct io_batch batch;
	uint64_t asked = 0;

	io_batch_init(&batch, r->loop);
	for (unsigned m = 0; m < r->t->member_count; m++) {
		struct ring *g = &r->journal.rings[m];

		if (!(mask >> m & 1) || !member_in_service(&r->t->members[m]) || !journal_member_unflushed(r, m))
			continue;
		covers[m] = g->written;
		if (!r->t->members[m].dev->volatile_cache) {
			g->flushed = covers[m];
			continue;
		}
		asked |= 1ull << m;
		io_flush(&batch, &ios[m], r->t->members[m].dev);
	}
	(void)io_batch_wait(&batch); /* each has its own result */
	for (unsigned m = 0; m < r->t->member_count; m++) {
		if (!(asked >> m & 1))
			continue;
		if (ios[m].result == -EIO && lenient)
			r->t->members[m].errors_write++;
		else if (ios[m].result)
			health_failed(r, m, IO_FLUSH, ios[m].result);
		else
			r->journal.rings[m].flushed = MAX(r->journal.rings[m].flushed, covers[m]);
	}
	return r->error;
}

int journal_flush_members(struct raid *r)
{
	return flush_members(r, ~0ull, false);
}

int journal_flush_before_replay(struct raid *r)
{
	return flush_members(r, ~0ull, true);
}

/* ---- commit ---- */

static uint64_t txn_bytes(const struct txn *x, uint64_t more_images)
{
	uint64_t items = x->items_bytes + more_images * sizeof(struct item_disk);

	return BLOCK_BYTES + ROUND_UP(items, BLOCK_BYTES) + (x->image_count + more_images) * BLOCK_BYTES;
}

static uint64_t open_bytes(struct raid *r)
{
	uint64_t dirty = r->hooks.dirty_blocks ? r->hooks.dirty_blocks(r->hooks_ctx) : 0;

	/* Freshly allocated nodes stage their life as well. */
	return txn_bytes(r->journal.open, dirty + 2);
}

struct record {
	struct record_disk *head; /* and the items behind it */
	void *heap;
	struct iovec *iov;
	unsigned iov_count;
	uint64_t len;
	uint64_t members; /* that have it */
};

static int record_build(struct raid *r, struct txn *x, struct record *rec)
{
	size_t head_bytes = BLOCK_BYTES + ROUND_UP(x->items_bytes, BLOCK_BYTES);
	struct item_disk *item;
	struct image *i;
	size_t at = 0;

	rec->head = head_bytes <= BUF_BYTES_MAX ? buf_get(head_bytes) : NULL;
	if (!rec->head) {
		if (posix_memalign(&rec->heap, BLOCK_BYTES, head_bytes))
			return -ENOMEM;
		rec->head = rec->heap;
	}
	rec->iov = mem_alloc((x->image_count + 1) * sizeof(*rec->iov));
	if (!rec->iov)
		return -ENOMEM;
	memset(rec->head, 0, BLOCK_BYTES);
	memset((char *)rec->head + head_bytes - BLOCK_BYTES, 0, BLOCK_BYTES);
	rec->iov[rec->iov_count++] = (struct iovec){.iov_base = rec->head, .iov_len = head_bytes};
	rec->len = head_bytes;
	i = list_first(&x->images, struct image, txn);
	for (uint32_t n = 0; n < x->item_count; n++) {
		item = (void *)(x->items + at);
		at += sizeof(*item);
		if (from_le32(item->kind) == ITEM_SUMS)
			at += (from_le32(item->count) >> 16) * (from_le32(item->count) & 0xffff) * sizeof(le64);
		if (from_le32(item->kind) != ITEM_IMAGE)
			continue;
		item->sum = to_le64(i->value);
		rec->iov[rec->iov_count++] = (struct iovec){.iov_base = i->data, .iov_len = BLOCK_BYTES};
		rec->len += BLOCK_BYTES;
		i = list_entry(i->txn.next, struct image, txn);
	}
	if (x->items_bytes)
		memcpy((char *)rec->head + BLOCK_BYTES, x->items, x->items_bytes);
	rec->head->magic = to_le64(RECORD_MAGIC);
	rec->head->fs = r->t->fs;
	rec->head->epoch = to_le64(r->t->epoch);
	rec->head->seq = to_le64(r->journal.record_seq + 1);
	rec->head->tail = to_le64(r->journal.tail);
	rec->head->durable = to_le64(r->journal.record_seq);
	rec->head->total_bytes = to_le32((uint32_t)rec->len);
	rec->head->items_bytes = to_le32((uint32_t)x->items_bytes);
	rec->head->item_count = to_le32(x->item_count);
	rec->head->image_count = to_le32(x->image_count);
	return 0;
}

static void record_free(struct record *rec)
{
	if (rec->heap)
		free(rec->heap);
	else
		buf_put(rec->head);
	mem_free(rec->iov);
}

static int record_seal(struct raid *r, struct record *rec)
{
	XXH3_state_t *state = XXH3_createState();

	if (!state)
		return -ENOMEM;
	rec->head->sum = to_le64(0);
	(void)XXH3_64bits_reset_withSeed(state, r->t->salt); /* cannot fail with a state */
	for (unsigned i = 0; i < rec->iov_count; i++)
		(void)XXH3_64bits_update(state, rec->iov[i].iov_base, rec->iov[i].iov_len);
	rec->head->sum = to_le64(XXH3_64bits_digest(state));
	XXH3_freeState(state);
	return 0;
}

/* Members for the copies that are still missing, emptiest rings first, starting elsewhere for each record. */
static unsigned record_members(struct raid *r, uint64_t seq, uint64_t have, unsigned wanted, unsigned *ret)
{
	unsigned n = 0;

	while (n < wanted) {
		uint64_t best_used = UINT64_MAX;
		unsigned best = MEMBERS_MAX;

		for (unsigned k = 0; k < r->t->member_count; k++) {
			unsigned m = (unsigned)((seq + k) % r->t->member_count);
			uint64_t used = ring_used(&r->journal.rings[m], r->t->journal_bytes);

			if (!member_takes_records(&r->t->members[m]) || have >> m & 1 || used >= best_used)
				continue;
			best = m;
			best_used = used;
		}
		if (best == MEMBERS_MAX)
			break;
		have |= 1ull << best;
		ret[n++] = best;
	}
	return n;
}

static unsigned record_copies(const struct raid *r)
{
	unsigned in_service = 0;

	for (unsigned m = 0; m < r->t->member_count; m++)
		in_service += member_takes_records(&r->t->members[m]);
	return MIN(BREAK(record_copies) ? 1 : r->t->tolerance + 1, in_service);
}

/*
 * One attempt at the copies that are missing. `durable`: on return. A record of one piece is then a FUA write, which is
 * one round to the device instead of two, and no work for a thread of the kernel, as a flush is; more pieces share
 * one flush.
 */
static int record_write_to(struct raid *r, struct record *rec, uint64_t seq, const unsigned *members, unsigned count,
			   bool durable)
{
	unsigned pieces = DIV_ROUND_UP(rec->iov_count, RECORD_IOV_MAX), n = 0;
	bool fua = durable && pieces == 1;
	struct io *ios = mem_alloc((size_t)pieces * count * sizeof(*ios));
	struct io_batch batch;

	if (!ios)
		return -ENOMEM;
	io_batch_init(&batch, r->loop);
	for (unsigned k = 0; k < count; k++) {
		struct ring *g = &r->journal.rings[members[k]];
		uint64_t off = ring_place(g, r->t->journal_bytes, rec->len);

		if (off == UINT64_MAX || ring_remember(g, seq, off, rec->len)) {
			/* Room was made sure of before sealing. */
			log_error("journal: no room for a record of %llu bytes", (unsigned long long)rec->len);
			r->error = -EIO;
			break;
		}
		g->head = off + rec->len;
		off += r->t->journal_off_bytes;
		for (unsigned i = 0; i < rec->iov_count; i += RECORD_IOV_MAX) {
			unsigned iovs = MIN(RECORD_IOV_MAX, rec->iov_count - i);

			ios[n].user = (void *)(uintptr_t)members[k];
			(fua ? io_writev_fua : io_writev)(&batch, &ios[n++], r->t->members[members[k]].dev, off,
							  &rec->iov[i], iovs);
			for (unsigned v = 0; v < iovs; v++)
				off += rec->iov[i + v].iov_len;
		}
	}
	(void)io_batch_wait(&batch); /* each has its own result */
	for (unsigned i = 0; i < n; i++) {
		unsigned m = (unsigned)(uintptr_t)ios[i].user;

		health_written(r, m, &ios[i]);
	}
	for (unsigned k = 0; k < count; k++)
		if (member_takes_records(&r->t->members[members[k]]))
			rec->members |= 1ull << members[k];
	mem_free(ios);
	if (!durable || fua || r->error)
		return r->error;
	/* W6: of what is acknowledged or applied next, as the callers say. */
	return flush_members(r, rec->members, false);
}

/* Until enough members in service have it, durably. */
static int record_write(struct raid *r, struct record *rec)
{
	uint64_t seq = r->journal.record_seq + 1;
	unsigned members[MEMBERS_MAX], count;
	int err = 0;

	for (unsigned tries = 0; !err && tries <= RECORD_TRIES_MAX; tries++) {
		unsigned have = 0;

		for (unsigned m = 0; m < r->t->member_count; m++) {
			if (!member_takes_records(&r->t->members[m]))
				rec->members &= ~(1ull << m);
			have += rec->members >> m & 1;
		}
		count = record_copies(r);
		if (have >= count && count)
			r->journal.record_flushed = seq;
		if (have >= count)
			return count ? 0 : -EIO;
		count = record_members(r, seq, rec->members, count - have, members);
		/* The header names all who get it; those of an earlier try have an older list, which only says less. */
		for (unsigned k = 0; k < count; k++)
			rec->head->members = to_le64(from_le64(rec->head->members) | 1ull << members[k]);
		err = record_seal(r, rec);
		/* W6: what is acknowledged next must survive a power cut. */
		if (!err)
			err = record_write_to(r, rec, seq, members, count, !BREAK(flush_record));
	}
	return err ? err : -EIO;
}

void journal_ring_new(struct raid *r, unsigned member)
{
	struct ring *g = &r->journal.rings[member];

	g->head = 0;
	g->first = g->count = 0;
	g->written = g->flushed = 0;
}

int journal_ring_restore(struct raid *r, unsigned member, uint64_t seq, uint64_t off, uint64_t len)
{
	r->journal.rings[member].head = off + len;
	return ring_remember(&r->journal.rings[member], seq, off, len);
}

int journal_spread_record(struct raid *r, uint64_t seq, const void *record, uint64_t len, uint64_t have)
{
	struct record rec = {.members = have, .len = len};
	unsigned members[MEMBERS_MAX], count = 0;
	struct iovec *iov;
	void *pool;
	int err;

	for (unsigned m = 0; m < r->t->member_count; m++)
		count += have >> m & 1;
	if (count >= record_copies(r))
		return 0;
	count = record_members(r, seq, have, record_copies(r) - count, members);
	for (unsigned k = 0; k < count; k++)
		if (ring_place(&r->journal.rings[members[k]], r->t->journal_bytes, len) == UINT64_MAX)
			return -ENOSPC;
	pool = len <= BUF_BYTES_MAX ? buf_get_wait(len) : NULL;
	iov = mem_alloc(sizeof(*iov));
	if (!pool || !iov) {
		buf_put(pool);
		mem_free(iov);
		return -ENOMEM;
	}
	memcpy(pool, record, len);
	*iov = (struct iovec){.iov_base = pool, .iov_len = len};
	rec.iov = iov;
	rec.iov_count = 1;
	/*
	 * W6: its blocks go home next. A power cut in the middle of that must find the copies: the member with
	 * the only old one may be gone then.
	 */
	err = record_write_to(r, &rec, seq, members, count, !BREAK(flush_spread));
	buf_put(pool);
	mem_free(iov);
	return err;
}

static bool checkpoint_is_due(struct raid *r, const struct txn *x)
{
	return r->journal.want_checkpoint ||
	       rings_used_max(r) + txn_bytes(x, 0) > r->t->journal_bytes * 3 / 8 ||
	       r->journal.image_count > buf_pool_bytes() / BLOCK_BYTES / 4 ||
	       r->pages_dirty_count > r->page_count_max / 2;
}

/* The instant: returns the sealed transaction; NULL without memory. Never yields. */
static struct txn *commit_seal(struct raid *r)
{
	struct journal *j = &r->journal;
	struct txn *next = txn_new(j->open->seq + 1), *x = j->open;
	struct image *i;

	if (!next)
		return NULL;
	if (r->hooks.pre_commit)
		r->hooks.pre_commit(r->hooks_ctx);
	assert(x->dead_applied == x->dead_count || r->error);
	list_for_each(i, &x->images, txn)
		i->sealed = true;
	j->open = next;
	j->opened_ns = loop_now_ns(r->loop);
	j->commit_by_ns = UINT64_MAX;
	if (!j->checkpointing && checkpoint_is_due(r, x)) {
		j->checkpointing = true;
		j->want_checkpoint = false;
		j->captured = x->seq;
		pages_capture(r);
	}
	return x;
}

static void commit_durable(struct raid *r, struct txn *x)
{
	struct journal *j = &r->journal;

	j->durable = x->seq;
	if (j->checkpointing && j->captured == x->seq)
		j->captured_record = j->record_seq;
	while (!list_empty(&x->images))
		image_committed(r, list_first(&x->images, struct image, txn));
	list_add_tail(&j->settled, &x->node);
	dead_release(r);
}

static int commit_write(struct raid *r, struct txn *x)
{
	struct record rec = {0};
	uint64_t tail = r->journal.tail;
	int err = 0;

	if (txn_empty(x) && tail == r->journal.tail_durable)
		return 0;
	/* W2, W6: the record must not be durable before the data it makes live: a power cut between the two. */
	if (!BREAK(w2))
		err = journal_flush_members(r);
	/* W5: what is made live here has missed the members that are out, and must not be read from them. */
	if (!err && !BREAK(w5) && !BREAK(w5_before))
		err = health_table_sync(r);
	if (!err)
		err = record_build(r, x, &rec);
	if (!err)
		err = record_write(r, &rec);
	record_free(&rec);
	/* Before it is acknowledged: else the loss of every copy of every record would look like an epoch without any. */
	if (!err && !(r->t->flags & TABLE_RECORDS) && !BREAK(records)) {
		r->t->flags |= TABLE_RECORDS;
		r->table_dirty = true;
	}
	/* W5: members that failed meanwhile must not come back as if nothing had happened. */
	if (!err && !BREAK(w5) && !BREAK(w5_after))
		err = health_table_sync(r);
	if (err)
		return err;
	r->journal.record_seq++;
	r->journal.tail_durable = tail;
	for (unsigned m = 0; m < r->t->member_count; m++)
		ring_forget(&r->journal.rings[m], tail);
	return 0;
}

/* An empty record, to free the ring space before a new tail. */
static int commit_publish_tail(struct raid *r)
{
	struct txn *empty = txn_new(r->journal.open->seq);
	int err = empty ? commit_write(r, empty) : -ENOMEM;

	txn_free(empty);
	return err;
}

/*
 * What the next record takes, and, while a checkpoint runs, another one as large as they get: when it has ended and freed
 * what was before it, there must be room for the record that begins the next, or nothing ever frees any.
 */
static uint64_t commit_bytes(struct raid *r)
{
	return open_bytes(r) + (r->journal.checkpointing ? r->t->journal_bytes / 6 : 0);
}

/* Before sealing: room in every ring, and no dead block whose bitmap is not loaded. */
static int commit_make_room(struct raid *r)
{
	struct journal *j = &r->journal;
	int err = 0;

	while (!err && !r->error) {
		err = txn_settle_dead(r);
		if (err || BREAK(make_room) || rings_have_room(r, commit_bytes(r)))
			break;
		if (j->tail != j->tail_durable)
			err = commit_publish_tail(r);
		else if (j->checkpointing)
			co_cond_wait(&j->done);
		else
			break; /* larger than a ring: writing it tells */
	}
	return err ? err : r->error;
}

static int commit_run(struct raid *r)
{
	struct txn *x = NULL;
	int err = commit_make_room(r);

	if (!err) {
		x = commit_seal(r);
		err = x ? r->error : -ENOMEM; /* staging may have failed: then nothing of it is written */
	}
	if (!err)
		err = commit_write(r, x);
	if (!err) {
		commit_durable(r, x);
		return 0;
	}
	if (!r->error) {
		log_error("commit failed: %s: the volume takes no more writes", strerror(-err));
		r->error = err;
	}
	if (x) { /* what it staged stays the newest content for readers */
		list_splice_tail(&r->images_committed, &x->images);
		txn_free(x);
	}
	return err;
}

static int checkpoint_finish(struct raid *r);

int journal_commit(struct raid *r)
{
	struct journal *j = &r->journal;
	uint64_t target = j->open->seq;

	if (r->read_only)
		return r->error;
	while (j->durable < target) {
		if (r->error)
			return r->error;
		if (j->committing) {
			co_cond_wait(&j->done);
			continue;
		}
		j->committing = true;
		(void)commit_run(r); /* leaves its error in r->error */
		j->committing = false;
		co_cond_wake_all(&j->done);
		if (!j->checkpointing || j->finishing || r->error)
			continue;
		if (j->checkpointer_runs)
			co_cond_wake_all(&j->checkpoint_kick);
		else
			(void)checkpoint_finish(r); /* likewise */
	}
	return 0;
}

int raid_commit(struct raid *r)
{
	struct pace_request q;
	int err;

	walk_foreground_begin(r, &q);
	err = journal_commit(r);
	walk_foreground_end(r, &q, PACE_COMMIT);
	return err;
}

/* Waits until the open transaction has room for `more` images beside those that others are about to stage. */
static int throttle(struct raid *r, uint32_t more)
{
	struct journal *j = &r->journal;
	uint64_t ring = r->t->journal_bytes;

	while (!r->error && !BREAK(throttle)) {
		bool crowded = j->image_count > buf_pool_bytes() / BLOCK_BYTES / 3;
		uint64_t bytes = open_bytes(r);
		/* Against what others have reserved and not staged yet it does nothing: that is waited for. */
		bool commit_helps = !j->committing && (bytes > ring / 16 || (crowded && !j->checkpointing));

		if (commit_helps)
			journal_kick(r);
		if (bytes + (uint64_t)(j->images_reserved + more) * BLOCK_BYTES <= ring / 8 && !crowded)
			break;
		if (commit_helps && (!r->started || r->stopping))
			(void)journal_commit(r); /* leaves its error in r->error */
		else
			co_cond_wait(&j->done);
	}
	return r->error;
}

int raid_throttle(struct raid *r)
{
	return throttle(r, 0);
}

int journal_reserve_images(struct raid *r, uint32_t count)
{
	int err = throttle(r, count);

	if (!err)
		r->journal.images_reserved += count;
	return err;
}

void journal_unreserve_images(struct raid *r, uint32_t count)
{
	r->journal.images_reserved -= count;
	if (count)
		co_cond_wake_all(&r->journal.done);
}

int raid_error(const struct raid *r)
{
	return r->error;
}

/* ---- checkpoint ---- */

int journal_write_home(struct raid *r, uint64_t seq)
{
	int err = images_write_home(r, seq);

	if (!err)
		err = pages_write(r);
	/* W6: the tail moves on: a crash must not lose what the journal then no longer holds. */
	if (!err && !BREAK(flush_home))
		err = journal_flush_members(r);
	return err;
}

/* The transaction at whose sealing the pages were captured is durable. */
static int checkpoint_finish(struct raid *r)
{
	struct journal *j = &r->journal;
	int err;

	j->finishing = true;
	if (BREAK(tail_early))
		j->tail = j->captured_record + 1;
	err = journal_write_home(r, j->captured);
	j->finishing = false;
	if (!err) {
		j->tail = j->captured_record + 1;
		/* Not yet: until a durable record carries the new tail, replay begins at the old one. */
		for (unsigned m = 0; BREAK(tail_durable) && m < r->t->member_count; m++)
			ring_forget(&j->rings[m], j->tail);
	} else {
		if (!r->error)
			r->error = err;
		log_error("checkpoint failed: %s: the volume takes no more writes", strerror(-err));
	}
	pages_release(r);
	j->checkpointing = false;
	co_cond_wake_all(&j->done);
	co_cond_wake_all(&j->checkpoint_kick); /* it may have waited for this one, to stop */
	return err;
}

int journal_checkpoint(struct raid *r)
{
	struct journal *j = &r->journal;
	uint64_t from = j->open->seq;

	/* One that was captured after we were called. */
	while (!r->error && (j->captured < from || j->checkpointing)) {
		if (j->checkpointing) {
			co_cond_wait(&j->done);
			continue;
		}
		j->want_checkpoint = true;
		(void)journal_commit(r); /* leaves its error in r->error */
	}
	return r->error ? r->error : journal_commit(r); /* publishes the tail */
}

/* ---- background ---- */

static void checkpointer(struct raid *r)
{
	struct journal *j = &r->journal;

	j->checkpointer_runs = true;
	while (!r->abandoned) {
		if (j->checkpointing && !j->finishing && j->durable >= j->captured && !r->error) {
			if (!checkpoint_finish(r))
				(void)journal_commit(r); /* publishes the tail; its error stays in r->error */
			continue;
		}
		/* One that is captured is finished first: there are jobs that rely on it. */
		if (r->stopping && (!j->checkpointing || r->error))
			break;
		co_cond_wait(&j->checkpoint_kick);
	}
	j->checkpointer_runs = false;
	if (j->checkpointing && !j->finishing) { /* an error ended it: nobody must wait for it */
		pages_release(r);
		j->checkpointing = false;
		co_cond_wake_all(&j->done);
	}
}

static bool commit_is_due(struct raid *r)
{
	return !txn_empty(r->journal.open) || (r->hooks.dirty_blocks && r->hooks.dirty_blocks(r->hooks_ctx));
}

uint64_t journal_commit_ns(const struct raid *r)
{
	return r->options.commit_ns_max ? r->options.commit_ns_max : COMMIT_NS_DEFAULT;
}

void journal_kick(struct raid *r)
{
	r->journal.kicked = true;
	co_cond_wake_all(&r->journal.timer_kick);
}

void raid_commit_by(struct raid *r, uint64_t ns)
{
	if (ns >= r->journal.commit_by_ns)
		return;
	r->journal.commit_by_ns = ns;
	co_cond_wake_all(&r->journal.timer_kick);
}

/*
 * The promise is that a change is durable so long after it was made, so the timer leaves a part of that to the
 * commit itself. With nothing to commit it sleeps on: what comes meanwhile is younger than its next look.
 */
static void commit_timer(struct raid *r)
{
	struct journal *j = &r->journal;
	uint64_t period = journal_commit_ns(r) / COMMIT_PARTS * (COMMIT_PARTS - 1);

	while (!r->stopping && !r->abandoned) {
		/* Nothing tells when there is memory again. */
		if (!r->rebuild.info.running && r->rebuild.info.last_error == -ENOMEM)
			health_reconcile(r);

		uint64_t now = loop_now_ns(r->loop);
		uint64_t due = MIN(commit_is_due(r) ? j->opened_ns + period : now + period, j->commit_by_ns);

		if (r->error || BREAK(timer)) { /* nobody commits for those who wait any more */
			co_cond_wake_all(&j->done);
			(void)co_cond_wait_until(&j->timer_kick, now + period);
			continue;
		}
		if (!j->kicked && due > now) {
			(void)co_cond_wait_until(&j->timer_kick, due); /* it looks again anyway */
			continue;
		}
		j->kicked = false;
		(void)journal_commit(r); /* its error stays in r->error */
	}
}

int journal_start(struct raid *r)
{
	int err = raid_background(r, commit_timer);

	return err ? err : raid_background(r, checkpointer);
}

/* ---- life ---- */

int journal_init(struct raid *r)
{
	struct journal *j = &r->journal;

	list_init(&j->settled);
	list_init(&j->readers);
	co_cond_init(&j->done);
	co_cond_init(&j->timer_kick);
	co_cond_init(&j->checkpoint_kick);
	j->opened_ns = loop_now_ns(r->loop);
	j->commit_by_ns = UINT64_MAX;
	j->open = txn_new(1);
	return j->open ? 0 : -ENOMEM;
}

void journal_reset(struct raid *r)
{
	struct journal *j = &r->journal;

	assert(txn_empty(j->open));
	j->open->seq = 1;
	j->durable = j->record_seq = j->record_flushed = j->captured = j->captured_record = 0;
	j->tail = j->tail_durable = 1;
	for (unsigned m = 0; m < MEMBERS_MAX; m++) {
		j->rings[m].head = 0;
		j->rings[m].first = j->rings[m].count = 0;
	}
}

void journal_exit(struct raid *r)
{
	struct journal *j = &r->journal;

	while (j->settled.next && !list_empty(&j->settled))
		txn_free(list_first(&j->settled, struct txn, node));
	txn_free(j->open);
	j->open = NULL;
	for (unsigned m = 0; m < MEMBERS_MAX; m++)
		mem_free(j->rings[m].records);
}
