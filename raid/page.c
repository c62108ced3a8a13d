// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Chunk pages: which blocks live (bitmap pages), and what every block's bytes must hash to (checksum pages).
 * They are the root of trust: what a page says decides whether a member's bytes are believed.
 *
 * Each page has tolerance + 1 copies on different columns, and each copy three places, of which a generation takes two, one
 * after the other (format.h). So
 *   - a torn write leaves the generation before in one place at least, and the journal still holds every change
 *     since (the tail moves on only after the flush that ends a checkpoint);
 *   - a member that silently dropped writes is found out: another copy has a newer generation;
 *   - an older generation that is all that is left is not taken for the newest: no copy has two valid places then.
 * A page is read from all copies at once and the newest generation counts.
 *
 * Changes belong to the open transaction and exist only in memory until a checkpoint. A checkpoint captures the dirty
 * pages at the instant a transaction is sealed, waits until that is durable, and writes them as captured;
 * a page that changes meanwhile is put aside first. Checksums of images are added when those go home. Thus a page on a member never holds a change that the journal
 * does not.
 *
 * A checksum page that was never written has no place that could be read. Its init bit in the covering bitmap page tells
 * it from one whose copies are all lost. Checksum pages are therefore flushed before the bitmap pages that
 * announce them. Writing pages takes three steps, with a flush between them:
 *
 *   1. checksum pages to their first places
 *   2. checksum pages to their second places, bitmap pages to their first
 *   3. bitmap pages to their second places
 *
 * A copy without a valid place, so that there is nothing to be kept, gets both in the first step: who announces it must find
 * two.
 *
 * A page of which no copy has two valid places is beyond what the level tolerates. What it covers is hurt, and nothing else may be: no
 * commit, checkpoint or replay fails for it. In memory it stands for the worst that it may have said: a lost checksum page has
 * SUM_LOST for every block, which no content has, so that reading gives -EBADMSG and whatever is written to a clean row from
 * now on is as good as ever; a lost bitmap page says that all is live and all is announced, so that nothing is overwritten, and
 * what the checksum pages know can still be read. It is written only when something in it changes: until then a copy that turns
 * up again is believed. Then its generation is above all that the lost one can have had.
 */
#include <stdlib.h>

#include "volume.h"
#include "xxh3.h"

#define PAGE_CACHE_BYTES_DEFAULT (64ull << 20)
#define PAGES_MIN 16u /* of the cache: parts of it may be dirty, and may be marked by a rebuild */
#define PAGES_PER_BATCH 64u
#define PAGE_COPIES_MAX MEMBERS_MAX
#define PAGE_SURE 2u /* valid places of a copy by which it has the newest generation: format.h */
#define PAGE_LOST_GEN_SHIFT 40 /* no page is written so often in one epoch */
#define READ_TRIES_MAX 4 /* with fresh memory, after a device kept the last */

uint64_t block_sum(const struct uuid *fs, uint32_t chunk, uint64_t row, unsigned sum, const void *data)
{
	/* The address is mixed in after hashing: as strong as a seed against misdirection, and cheaper. */
	uint64_t where[4];
	uint64_t h;

	memcpy(where, fs, sizeof(*fs));
	where[2] = BREAK(seed) ? 0 : (uint64_t)chunk << 32 | sum;
	where[3] = BREAK(seed) ? 0 : row;
	h = XXH3_64bits(data, BLOCK_BYTES) ^ XXH3_64bits(where, sizeof(where));
	return h && h != SUM_LOST ? h : 1;
}

static uint64_t page_bytes_sum(const struct page_disk *d, uint32_t chunk, uint32_t number, unsigned copy)
{
	/* The copy is part of the seed: a copy written over another's place does not pass. */
	struct page_disk tmp = *d;

	tmp.sum = to_le64(0);
	if (BREAK(page_seed))
		return XXH3_64bits(&tmp, sizeof(tmp));
	return XXH3_64bits_withSeed(&tmp, sizeof(tmp),
				    ((uint64_t)chunk << 32 | number) * 64 + copy);
}

static bool page_disk_valid(const struct raid *r, const struct page_disk *d, uint32_t chunk, uint32_t number,
			    unsigned copy)
{
	bool here = from_le32(d->chunk) == chunk && from_le32(d->page) == number;

	return from_le64(d->magic) == PAGE_MAGIC && uuid_equal(&d->fs, &r->t->fs) &&
	       (here || BREAK(page_seed)) && from_le64(d->gen) > 0 &&
	       (from_le64(d->sum) == page_bytes_sum(d, chunk, number, copy) || BREAK(page_sum));
}

static void page_disk_seal(struct page_disk *d, const struct uuid *fs, uint32_t chunk, uint32_t number,
			   unsigned copy, uint64_t gen)
{
	d->magic = to_le64(PAGE_MAGIC);
	d->fs = *fs;
	d->chunk = to_le32(chunk);
	d->page = to_le32(number);
	d->gen = to_le64(gen);
	d->sum = to_le64(page_bytes_sum(d, chunk, number, copy));
}

static bool page_is_bitmap(const struct chunk *c, uint32_t number)
{
	return number < c->geom.bitmap_pages;
}

/* ---- cache ---- */

int pages_init(struct raid *r)
{
	uint64_t bytes = r->options.page_cache_bytes ? r->options.page_cache_bytes : PAGE_CACHE_BYTES_DEFAULT;

	r->page_count_max = MAX(bytes / BLOCK_BYTES, PAGES_MIN);
	r->page_hash_size = 1024;
	while (r->page_hash_size < r->page_count_max)
		r->page_hash_size *= 2;
	r->page_hash = mem_alloc(r->page_hash_size * sizeof(*r->page_hash));
	if (!r->page_hash)
		return -ENOMEM;
	for (size_t i = 0; i < r->page_hash_size; i++)
		list_init(&r->page_hash[i]);
	list_init(&r->page_lru);
	list_init(&r->pages_dirty);
	co_cond_init(&r->page_loaded);
	return 0;
}

static void page_free(struct raid *r, struct page *p)
{
	list_del(&p->hash);
	list_del(&p->lru);
	list_del(&p->dirty);
	mem_free(p->cur);
	mem_free(p->aside);
	mem_free(p);
	r->page_count--;
}

void pages_exit(struct raid *r)
{
	if (!r->page_hash)
		return;
	for (size_t i = 0; i < r->page_hash_size; i++)
		while (!list_empty(&r->page_hash[i]))
			page_free(r, list_first(&r->page_hash[i], struct page, hash));
	mem_free(r->page_hash);
	r->page_hash = NULL;
}

static struct list *page_bucket(struct raid *r, uint32_t chunk, uint32_t number)
{
	uint64_t h = ((uint64_t)chunk << 32 | number) * 0x9e3779b97f4a7c15ull;

	return &r->page_hash[(h >> 32) & (r->page_hash_size - 1)];
}

static struct page *page_find(struct raid *r, const struct chunk *c, uint32_t number)
{
	struct list *bucket = page_bucket(r, c->number, number);
	struct page *p;

	list_for_each(p, bucket, hash)
		if (p->number == number && p->chunk == c)
			return p;
	return NULL;
}

static void page_evict(struct raid *r)
{
	while (r->page_count >= r->page_count_max && !list_empty(&r->page_lru)) {
		struct page *p = list_first(&r->page_lru, struct page, lru);

		assert(!p->pins && !p->is_dirty && !p->loading);
		page_free(r, p);
	}
}

static struct page *page_new(struct raid *r, struct chunk *c, uint32_t number)
{
	struct page *p;

	page_evict(r);
	p = mem_zalloc(sizeof(*p) + c->geom.page_copies * sizeof(p->places[0]));
	if (!p)
		return NULL;
	p->cur = mem_zalloc(sizeof(*p->cur));
	if (!p->cur) {
		mem_free(p);
		return NULL;
	}
	for (unsigned copy = 0; copy < c->geom.page_copies; copy++)
		p->places[copy] = (struct page_places){.first = 0, .second = 1, .empty = true};
	p->chunk = c;
	p->number = number;
	list_init(&p->lru);
	list_init(&p->dirty);
	list_add(page_bucket(r, c->number, number), &p->hash);
	r->page_count++;
	return p;
}

static void page_pin(struct page *p)
{
	if (!p->pins++)
		list_del(&p->lru);
}

void page_put(struct raid *r, struct page *p)
{
	assert(p->pins > 0);
	if (--p->pins || p->loading)
		return;
	if (p->error)
		page_free(r, p);
	else if (!p->is_dirty)
		list_add_tail(&r->page_lru, &p->lru);
}

static void page_set_dirty(struct raid *r, struct page *p)
{
	if (p->is_dirty)
		return;
	p->is_dirty = true;
	list_del(&p->lru);
	list_add_tail(&r->pages_dirty, &p->dirty);
	r->pages_dirty_count++;
}

void page_mark_dirty(struct raid *r, struct page *p)
{
	if (r->read_only || p->is_dirty)
		return;
	page_set_dirty(r, p);
	/* A running checkpoint may take it along: it is as it was when that began. */
	p->captured = r->journal.checkpointing;
}

/* ---- loading ---- */

struct page_read {
	unsigned copies, asked;
	char *buf; /* PAGE_PLACES blocks each copy */
	struct io ios[PAGE_COPIES_MAX];
	unsigned copy_of[PAGE_COPIES_MAX], member_of[PAGE_COPIES_MAX];
	/* What the places of those asked hold. */
	struct page_copy {
		const struct page_disk *at[PAGE_PLACES]; /* NULL: nothing that is valid */
		const struct page_disk *newest;
		unsigned valid;
	} found[PAGE_COPIES_MAX];
};

/* Where a copy could not be read as a whole, the rest of it perhaps can. */
static void page_read_places(struct raid *r, struct page_read *pr)
{
	struct io *ios = mem_alloc((size_t)pr->asked * PAGE_PLACES * sizeof(*ios)), *io;
	struct io_batch batch;

	if (!ios)
		return;
	io_batch_init(&batch, r->loop);
	for (unsigned i = 0; i < pr->asked; i++) {
		io = &pr->ios[i];
		for (unsigned place = 0; place < PAGE_PLACES && io->result == -EIO; place++)
			io_read(&batch, &ios[i * PAGE_PLACES + place], io->dev, io->off_bytes + place * BLOCK_BYTES,
				(char *)io->data + place * BLOCK_BYTES, BLOCK_BYTES);
	}
	(void)io_batch_wait(&batch); /* each has its own result */
	for (unsigned i = 0; i < pr->asked; i++) {
		bool readable = false;

		if (pr->ios[i].result != -EIO)
			continue;
		for (unsigned place = 0; place < PAGE_PLACES; place++) {
			io = &ios[i * PAGE_PLACES + place];
			if (io->result == -EIO)
				memset(io->data, 0, BLOCK_BYTES);
			else if (io->result)
				pr->ios[i].result = io->result;
			readable |= !io->result;
		}
		if (pr->ios[i].result != -EIO || !readable)
			continue;
		health_read_error(r, pr->member_of[i], -EIO);
		pr->ios[i].result = 0;
	}
	mem_free(ios);
}

static bool page_is_newer(const struct page_disk *a, const struct page_disk *b)
{
	if (!a || !b)
		return a;
	if (a->gen.raw != b->gen.raw)
		return from_le64(a->gen) > from_le64(b->gen);
	if (a->epoch.raw != b->epoch.raw)
		return from_le64(a->epoch) > from_le64(b->epoch);
	return from_le64(a->seq) > from_le64(b->seq);
}

static void page_look(struct raid *r, const struct chunk *c, uint32_t number, struct page_read *pr, unsigned i)
{
	const struct page_disk *d = (const void *)(pr->buf + (size_t)pr->copy_of[i] * PAGE_PLACES * BLOCK_BYTES);
	struct page_copy *k = &pr->found[i];

	*k = (struct page_copy){0};
	for (unsigned place = 0; place < PAGE_PLACES && !pr->ios[i].result; place++, d++) {
		if (!page_disk_valid(r, d, c->number, number, pr->copy_of[i]))
			continue;
		k->at[place] = d;
		k->valid++;
		if (page_is_newer(d, k->newest))
			k->newest = d;
	}
}

/* How many places of the copy have what is newest of all. */
static unsigned page_places_with(const struct page_copy *k, const struct page_disk *newest)
{
	unsigned count = 0;

	for (unsigned place = 0; place < PAGE_PLACES; place++)
		count += k->at[place] && !page_is_newer(newest, k->at[place]);
	return count;
}

/* One that is not valid, or else the oldest: what a crash cuts short must not be one of two that are needed. */
static struct page_places page_places_next(const struct page_copy *k)
{
	unsigned first = 0, second;

	for (unsigned place = 1; place < PAGE_PLACES; place++)
		if (page_is_newer(k->at[first], k->at[place]))
			first = place;
	second = !first;
	for (unsigned place = second + 1; place < PAGE_PLACES; place++)
		if (place != first && page_is_newer(k->at[second], k->at[place]))
			second = place;
	return (struct page_places){.first = (uint8_t)first, .second = (uint8_t)second, .empty = !k->valid};
}

static void page_read_copies(struct raid *r, struct chunk *c, uint32_t number, struct page_read *pr)
{
	struct io_batch batch;
	bool failed = false;

	pr->copies = c->geom.page_copies;
	pr->asked = 0;
	pr->buf = buf_get_wait_below((size_t)pr->copies * PAGE_PLACES * BLOCK_BYTES);
	io_batch_init(&batch, r->loop);
	for (unsigned copy = 0; copy < pr->copies; copy++) {
		unsigned column;
		uint64_t block;
		struct column *col;

		geom_page_place(&c->geom, number, copy, &column, &block);
		col = &c->columns[column];
		if (!table_column_readable(r->t, col))
			continue;
		pr->copy_of[pr->asked] = copy;
		pr->member_of[pr->asked] = col->member;
		io_read(&batch, &pr->ios[pr->asked], r->t->members[col->member].dev,
			table_column_off(r->t, col, block), pr->buf + (size_t)copy * PAGE_PLACES * BLOCK_BYTES,
			PAGE_PLACES * BLOCK_BYTES);
		pr->asked++;
	}
	(void)io_batch_wait(&batch); /* each copy has its own result */
	for (unsigned i = 0; i < pr->asked; i++)
		failed |= pr->ios[i].result == -EIO;
	if (failed)
		page_read_places(r, pr);
	for (unsigned i = 0; i < pr->asked; i++)
		page_look(r, c, number, pr, i);
}

/* An older copy where the newest was flushed before this epoch began or its tail: that member lost a write. */
static bool page_copy_was_durable(const struct raid *r, const struct page_disk *newest)
{
	if (from_le64(newest->epoch) != r->t->epoch)
		return true;
	return from_le64(newest->seq) < r->journal.tail;
}

/*
 * One generation behind with the same content: a rewrite for the sake of redundancy alone, which a crash cut short. No record
 * touches the page then, so it is met in a later epoch, and still nobody has lost anything.
 */
static bool page_copy_is_same(const struct page_disk *d, const struct page_disk *newest)
{
	return d && from_le64(d->gen) + 1 == from_le64(newest->gen) &&
	       !memcmp(d->body, newest->body, sizeof(d->body));
}

static int page_choose(struct raid *r, struct page *p, const struct page_read *pr, bool written)
{
	/* One that was never announced is in the journal as a whole. */
	bool hung = false, uneven = false, sure = !written || BREAK(page_older);
	const struct page_disk *newest = NULL;

	for (unsigned i = 0; i < pr->asked; i++) {
		const struct page_copy *k = &pr->found[i];

		if (pr->ios[i].result) {
			health_read_error(r, pr->member_of[i], pr->ios[i].result);
			hung |= pr->ios[i].result == -ETIMEDOUT;
			continue;
		}
		p->places[pr->copy_of[i]] = page_places_next(k);
		sure |= k->valid >= PAGE_SURE;
		/* A member that lost writes, or is older than we know, has an older generation. */
		if (page_is_newer(k->newest, newest) && !(newest && BREAK(page_gen)))
			newest = k->newest;
	}
	if (newest)
		p->gen = from_le64(newest->gen);
	if (!newest || !sure)
		return hung ? -EAGAIN : -EBADMSG;
	for (unsigned i = 0; i < pr->asked; i++) {
		const struct page_copy *k = &pr->found[i];

		if (pr->ios[i].result || page_places_with(k, newest) >= PAGE_SURE)
			continue;
		uneven = true;
		if (page_is_newer(newest, k->newest) && !page_copy_is_same(k->newest, newest) &&
		    page_copy_was_durable(r, newest) && !BREAK(page_lost))
			r->t->members[pr->member_of[i]].errors_lost++;
	}
	memcpy(p->cur, newest, sizeof(*p->cur));
	if (uneven)
		page_mark_dirty(r, p);
	return 0;
}

static bool page_initialised(const struct page *bitmap, uint32_t sum_page)
{
	return bitmap->cur->body[sum_page / 8] >> (sum_page % 8) & 1;
}

static uint32_t page_covering_bitmap(const struct chunk *c, uint32_t number, uint32_t *ret_bit)
{
	const struct geom *g = &c->geom;
	uint32_t per = g->rows_per_bitmap_page / g->rows_per_sum_page;

	*ret_bit = (number - g->bitmap_pages) % per;
	return (number - g->bitmap_pages) / per;
}

/* No copy is sure: it stands for the worst that it may have said. */
static void page_lose(struct raid *r, struct page *p)
{
	bool bitmap = page_is_bitmap(p->chunk, p->number);

	log_error("chunk %u: all copies of %s page %u are lost: %s", p->chunk->number,
		  bitmap ? "bitmap" : "checksum", p->number,
		  bitmap ? "its free space there is not used any more" : "the data that it covered cannot be read");
	memset(p->cur->body, 0xff, sizeof(p->cur->body));
	p->gen = MAX(p->gen, (r->t->epoch << PAGE_LOST_GEN_SHIFT) + r->journal.record_seq);
	p->lost = true;
	p->chunk->pages_lost++;
}

bool page_rows_lost(struct raid *r, const struct chunk *c, uint64_t row, uint64_t count)
{
	struct page *p;

	for (uint32_t n = geom_sum_page(&c->geom, row); n <= geom_sum_page(&c->geom, row + count - 1); n++) {
		p = page_find(r, c, n);
		if (p && p->lost)
			return true;
	}
	return false;
}

static int page_load(struct raid *r, struct page *p)
{
	struct page *bitmap = NULL;
	struct page_read *pr;
	uint32_t bit = 0;
	bool written = true;
	int err;

	if (!page_is_bitmap(p->chunk, p->number)) {
		err = page_get(r, p->chunk, page_covering_bitmap(p->chunk, p->number, &bit), &bitmap);
		if (err)
			return err;
		written = page_initialised(bitmap, bit);
		/* While replaying, a page may be on the members before the bit that announces it. */
		if (!written && (!r->replaying || BREAK(page_early))) {
			page_put(r, bitmap);
			return 0;
		}
	}
	pr = mem_alloc(sizeof(*pr));
	err = pr ? -EAGAIN : -ENOMEM;
	/* What is wrong is read once more: it may have been the reading. */
	for (int i = 0; i < READ_TRIES_MAX && (err == -EAGAIN || (err == -EBADMSG && written && i < 2)); i++) {
		page_read_copies(r, p->chunk, p->number, pr);
		err = page_choose(r, p, pr, written);
		buf_put(pr->buf);
	}
	/* With members gone beyond tolerance nobody can say what is lost. */
	if (err == -EAGAIN || (err == -EBADMSG && (r->error || !pr->asked)))
		err = -EIO;
	mem_free(pr);
	if (err == -EBADMSG) {
		if (written)
			page_lose(r, p);
		err = 0;
	}
	if (err)
		log_error("chunk %u page %u: cannot be read: %s", p->chunk->number, p->number, strerror(-err));
	if (bitmap)
		page_put(r, bitmap);
	return err;
}

int page_get(struct raid *r, struct chunk *c, uint32_t number, struct page **ret)
{
	struct page *p = page_find(r, c, number);
	int err;

	if (p) {
		page_pin(p);
		while (p->loading)
			co_cond_wait(&r->page_loaded);
	} else {
		p = page_new(r, c, number);
		if (!p)
			return -ENOMEM;
		p->loading = true;
		page_pin(p);
		p->error = page_load(r, p);
		p->loading = false;
		co_cond_wake_all(&r->page_loaded);
	}
	err = p->error;
	if (err) {
		page_put(r, p);
		return err;
	}
	*ret = p;
	return 0;
}

int page_get_rows(struct raid *r, struct chunk *c, uint64_t row, uint64_t count)
{
	uint32_t first = geom_sum_page(&c->geom, row), last = geom_sum_page(&c->geom, row + count - 1);
	uint32_t b_first = geom_bitmap_page(&c->geom, row), b_last = geom_bitmap_page(&c->geom, row + count - 1);
	struct page *p;
	uint32_t n, b;
	int err = 0;

	for (b = b_first; b <= b_last && !err; b++)
		err = page_get(r, c, b, &p);
	if (err)
		b--;
	for (n = first; n <= last && !err; n++)
		err = page_get(r, c, n, &p);
	if (!err)
		return 0;
	if (n > first)
		n--;
	while (n-- > first)
		page_put(r, page_find(r, c, n));
	while (b-- > b_first)
		page_put(r, page_find(r, c, b));
	return err;
}

void page_put_rows(struct raid *r, struct chunk *c, uint64_t row, uint64_t count)
{
	for (uint32_t n = geom_sum_page(&c->geom, row); n <= geom_sum_page(&c->geom, row + count - 1); n++)
		page_put(r, page_find(r, c, n));
	for (uint32_t b = geom_bitmap_page(&c->geom, row); b <= geom_bitmap_page(&c->geom, row + count - 1); b++)
		page_put(r, page_find(r, c, b));
}

/* ---- reading and changing ---- */

static struct page *page_pinned(struct raid *r, struct chunk *c, uint32_t number)
{
	struct page *p = page_find(r, c, number);

	assert(p && p->pins && !p->loading);
	return p;
}

/*
 * Before each change by the open transaction: keeps what the running checkpoint captured, and of a page that was clean then, what
 * it may still have to add checksums to (page_sum_home).
 */
static void page_change(struct raid *r, struct page *p)
{
	if (!p->aside && !BREAK(capture) && (p->captured || (r->journal.checkpointing && !p->is_dirty))) {
		p->aside = mem_alloc(sizeof(*p->aside));
		if (p->aside) {
			memcpy(p->aside, p->cur, sizeof(*p->aside));
		} else {
			/* The members stay as of the last checkpoint, the journal has the rest. */
			log_error("out of memory: the volume takes no more writes");
			r->error = -ENOMEM;
		}
	}
	page_set_dirty(r, p);
}

static le64 *page_sum_slot(const struct page *p, struct page_disk *d, uint64_t row, unsigned sum)
{
	const struct geom *g = &p->chunk->geom;

	return (le64 *)d->body + row % g->rows_per_sum_page * g->sums + sum;
}

uint64_t page_sum(struct raid *r, struct chunk *c, uint64_t row, unsigned sum)
{
	struct page *p = page_pinned(r, c, geom_sum_page(&c->geom, row));

	return from_le64(*page_sum_slot(p, p->cur, row, sum));
}

void page_sum_set(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, uint64_t value)
{
	struct page *p = page_pinned(r, c, geom_sum_page(&c->geom, row)), *bitmap;
	uint32_t bit;
	bool announced;

	bitmap = page_pinned(r, c, page_covering_bitmap(c, p->number, &bit));
	announced = page_initialised(bitmap, bit);
	/* A crash between the two flushes of a checkpoint leaves a page that is right and not announced. */
	if (from_le64(*page_sum_slot(p, p->cur, row, sum)) == value && (announced || !value))
		return;
	if (!announced) {
		page_change(r, bitmap);
		bitmap->cur->body[bit / 8] |= (uint8_t)(1u << bit % 8);
	}
	page_change(r, p);
	*page_sum_slot(p, p->cur, row, sum) = to_le64(value);
}

/* The page takes part in the running checkpoint; what it writes of it is returned. */
static struct page_disk *page_capture_now(struct raid *r, struct page *p)
{
	assert(p->captured || p->aside || !p->is_dirty || BREAK(capture));
	page_set_dirty(r, p);
	p->captured = true;
	return p->aside ? p->aside : p->cur;
}

void page_sum_home(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, uint64_t value)
{
	struct page *p = page_pinned(r, c, geom_sum_page(&c->geom, row)), *bitmap;
	uint32_t bit;

	bitmap = page_pinned(r, c, page_covering_bitmap(c, p->number, &bit));
	if (!page_initialised(bitmap, bit)) {
		page_capture_now(r, bitmap)->body[bit / 8] |= (uint8_t)(1u << bit % 8);
		bitmap->cur->body[bit / 8] |= (uint8_t)(1u << bit % 8);
	}
	*page_sum_slot(p, page_capture_now(r, p), row, sum) = to_le64(value);
	*page_sum_slot(p, p->cur, row, sum) = to_le64(value);
}

static uint8_t *page_live_byte(struct page *p, uint64_t row, unsigned index, unsigned *ret_bit)
{
	const struct geom *g = &p->chunk->geom;
	uint64_t bit = row % g->rows_per_bitmap_page * g->width + index;

	*ret_bit = bit % 8;
	return &p->cur->body[PAGE_INIT_BYTES + bit / 8];
}

bool page_live(struct raid *r, struct chunk *c, uint64_t row, unsigned index)
{
	unsigned bit;
	const uint8_t *byte = page_live_byte(page_pinned(r, c, geom_bitmap_page(&c->geom, row)), row, index, &bit);

	return *byte >> bit & 1;
}

void page_live_set(struct raid *r, struct chunk *c, uint64_t row, unsigned index, bool live)
{
	struct page *p = page_pinned(r, c, geom_bitmap_page(&c->geom, row));
	unsigned bit;
	uint8_t *byte = page_live_byte(p, row, index, &bit);

	if ((*byte >> bit & 1) == live)
		return;
	page_change(r, p);
	*byte = (uint8_t)((*byte & ~(1u << bit)) | (unsigned)live << bit);
}

/* ---- writing ---- */

void pages_capture(struct raid *r)
{
	struct page *p;

	list_for_each(p, &r->pages_dirty, dirty) {
		assert(!p->captured && !p->aside);
		p->captured = true;
	}
}

void pages_release(struct raid *r)
{
	struct page *p;

	list_for_each(p, &r->pages_dirty, dirty) {
		mem_free(p->aside);
		p->aside = NULL;
		p->captured = false;
		p->half = false;
	}
}

static void page_written(struct raid *r, struct page *p)
{
	bool changed = p->aside != NULL;

	p->gen++;
	for (unsigned copy = 0; copy < p->chunk->geom.page_copies; copy++) {
		struct page_places *at = &p->places[copy];

		/* The third place has the generation before. */
		*at = (struct page_places){.first = PAGE_PLACES - at->first - at->second, .second = at->first};
	}
	p->half = false;
	p->lost = false;
	p->captured = false;
	mem_free(p->aside);
	p->aside = NULL;
	if (changed)
		return;
	p->is_dirty = false;
	list_del(&p->dirty);
	r->pages_dirty_count--;
	if (!p->pins)
		list_add_tail(&r->page_lru, &p->lru);
}

/* Seals and lists all copies of one captured page, for the places whose turn it is. */
static void page_write_add(struct raid *r, struct write_list *list, struct page *p, char *buf)
{
	const struct page_disk *from = p->aside ? p->aside : p->cur;

	for (unsigned copy = 0; copy < p->chunk->geom.page_copies; copy++) {
		struct page_disk *d = (void *)(buf + (size_t)copy * BLOCK_BYTES);
		const struct page_places *at = &p->places[copy];
		bool both = at->empty && !BREAK(page_both);
		unsigned column;
		uint64_t block;

		memcpy(d, from, sizeof(*d));
		d->seq = to_le64(r->journal.captured_record);
		d->epoch = to_le64(r->t->epoch);
		page_disk_seal(d, &r->t->fs, p->chunk->number, p->number, copy, p->gen + 1);
		geom_page_place(&p->chunk->geom, p->number, copy, &column, &block);
		if (!p->half)
			write_list_column(r, list, p->chunk, column, block + (BREAK(page_place) ? 0 : at->first), d);
		if (p->half != both)
			write_list_column(r, list, p->chunk, column, block + (BREAK(page_place) ? 1 : at->second), d);
	}
}

/* Captured, of that kind, and written to its first places or not. */
static bool page_is_due(const struct page *p, bool bitmaps, bool half)
{
	return p->captured && p->half == half && page_is_bitmap(p->chunk, p->number) == bitmaps;
}

static bool pages_are_due(struct raid *r, bool bitmaps, bool half)
{
	struct page *p;

	list_for_each(p, &r->pages_dirty, dirty)
		if (page_is_due(p, bitmaps, half))
			return true;
	return false;
}

/* To their first places (half: not yet), or to their second. */
static int pages_write_places(struct raid *r, bool bitmaps, bool half)
{
	struct page *batch[PAGES_PER_BATCH];
	void *bufs[PAGES_PER_BATCH];
	struct page *p;
	int err = 0;

	while (!err && pages_are_due(r, bitmaps, half)) {
		struct write_list list;
		unsigned n = 0;

		write_list_init(&list);
		/* Nothing between choosing and sealing yields: the content is as captured. */
		list_for_each(p, &r->pages_dirty, dirty) {
			if (n == PAGES_PER_BATCH)
				break;
			if (!page_is_due(p, bitmaps, half))
				continue;
			bufs[n] = buf_get((size_t)p->chunk->geom.page_copies * BLOCK_BYTES);
			if (!bufs[n])
				break;
			page_write_add(r, &list, p, bufs[n]);
			page_pin(p);
			batch[n++] = p;
		}
		if (!n) {
			void *wait = buf_get_wait_below(BLOCK_BYTES);

			buf_put(wait);
		}
		err = write_list_run(r, &list);
		for (unsigned i = 0; i < n; i++) {
			buf_put(bufs[i]);
			if (!err && half)
				page_written(r, batch[i]);
			else if (!err)
				batch[i]->half = true;
			page_put(r, batch[i]);
		}
	}
	return err;
}

int pages_write(struct raid *r)
{
	int err = pages_write_places(r, false, false);

	/*
	 * W6: a crash must neither take both places of a checksum page, nor leave a bitmap page that announces one which
	 * nobody has.
	 */
	if (!err && pages_are_due(r, false, true) && !BREAK(flush_sums))
		err = journal_flush_members(r);
	if (!err)
		err = pages_write_places(r, false, true);
	if (!err)
		err = pages_write_places(r, true, false);
	/* W6: a crash must not take both places of a bitmap page. */
	if (!err && pages_are_due(r, true, true) && !BREAK(flush_bitmaps))
		err = journal_flush_members(r);
	if (!err)
		err = pages_write_places(r, true, true);
	return err;
}

int page_verify_copies(struct raid *r, struct chunk *c, uint32_t number, unsigned *ret_bad)
{
	struct page_read *pr;
	struct page *p;
	unsigned bad = 0;
	uint64_t gen;
	bool dirty;
	int err = page_get(r, c, number, &p);

	if (err)
		return err;
	if (p->lost) {
		page_put(r, p);
		return -EBADMSG;
	}
	pr = mem_alloc(sizeof(*pr));
	gen = p->gen; /* a checkpoint may write newer ones meanwhile */
	dirty = p->is_dirty; /* all copies are about to be rewritten, and may be uneven until then (page_choose) */
	if (!pr || !gen) {
		mem_free(pr);
		page_put(r, p);
		*ret_bad = 0;
		return pr ? 0 : -ENOMEM;
	}
	page_read_copies(r, c, number, pr);
	for (unsigned i = 0; i < pr->asked; i++) {
		const struct page_copy *k = &pr->found[i];
		unsigned good = 0;

		for (unsigned place = 0; place < PAGE_PLACES; place++)
			good += k->at[place] && (dirty || from_le64(k->at[place]->gen) >= gen);
		if (good < PAGE_SURE) {
			bad++;
			if (pr->ios[i].result)
				health_read_error(r, pr->member_of[i], pr->ios[i].result);
			else
				health_sum_error(r, pr->member_of[i]);
		}
	}
	if (bad)
		page_mark_dirty(r, p);
	buf_put(pr->buf);
	mem_free(pr);
	page_put(r, p);
	*ret_bad = bad;
	return 0;
}

/* ---- making a chunk ---- */

static int page_format_write(struct loop *loop, struct table *t, struct chunk *c, uint32_t number,
			     const struct page_disk *content)
{
	struct io ios[PAGE_COPIES_MAX];
	struct io_batch batch;
	char *buf = buf_get_wait_below((size_t)c->geom.page_copies * PAGE_PLACES * BLOCK_BYTES);
	int err;

	io_batch_init(&batch, loop);
	for (unsigned copy = 0; copy < c->geom.page_copies; copy++) {
		struct page_disk *d = (void *)(buf + (size_t)copy * PAGE_PLACES * BLOCK_BYTES);
		unsigned column;
		uint64_t block;

		memcpy(d, content, sizeof(*d));
		page_disk_seal(d, &t->fs, c->number, number, copy, 1);
		for (unsigned place = 1; place < PAGE_PLACES; place++)
			memcpy(&d[place], d, sizeof(*d));
		geom_page_place(&c->geom, number, copy, &column, &block);
		if (!table_column_writable(t, &c->columns[column]))
			continue;
		io_write(&batch, &ios[copy], t->members[c->columns[column].member].dev,
			 table_column_off(t, &c->columns[column], block), d, PAGE_PLACES * BLOCK_BYTES);
	}
	err = io_batch_wait(&batch);
	buf_put(buf);
	return err;
}

int page_format_chunk(struct loop *loop, struct table *t, struct chunk *c)
{
	struct page_disk *d = mem_zalloc(sizeof(*d));
	int err = d ? 0 : -ENOMEM;

	for (uint32_t n = 0; n < c->geom.bitmap_pages && !err; n++)
		err = page_format_write(loop, t, c, n, d);
	mem_free(d);
	return err;
}

int pages_format(struct raid *r, struct chunk *c)
{
	struct page_disk *content = mem_zalloc(sizeof(*content));
	unsigned copies = c->geom.page_copies;
	char *buf = buf_get_wait_below((size_t)copies * BLOCK_BYTES);
	int err = content ? 0 : -ENOMEM;

	for (uint32_t n = 0; n < c->geom.bitmap_pages && !err; n++) {
		struct write_list list;

		write_list_init(&list);
		for (unsigned copy = 0; copy < copies; copy++) {
			struct page_disk *d = (void *)(buf + (size_t)copy * BLOCK_BYTES);
			unsigned column;
			uint64_t block;

			memcpy(d, content, sizeof(*d));
			page_disk_seal(d, &r->t->fs, c->number, n, copy, 1);
			geom_page_place(&c->geom, n, copy, &column, &block);
			for (unsigned place = 0; place < PAGE_PLACES; place++)
				write_list_column(r, &list, c, column, block + place, d);
		}
		err = write_list_run(r, &list);
	}
	buf_put(buf);
	mem_free(content);
	return err;
}

int page_format_root(struct loop *loop, struct table *t, struct chunk *c)
{
	struct page_disk *d = mem_zalloc(sizeof(*d));
	char *zero = buf_get_wait_below(BLOCK_BYTES);
	int err = d ? 0 : -ENOMEM;

	memset(zero, 0, BLOCK_BYTES);
	for (unsigned column = 0; column < c->geom.columns && !err; column++)
		err = io_write_sync(t->members[c->columns[column].member].dev,
				    table_column_off(t, &c->columns[column], geom_slice_block(&c->geom, 0)),
				    zero, BLOCK_BYTES);
	if (!err) {
		d->body[0] = 1; /* the first checksum page is initialised */
		d->body[PAGE_INIT_BYTES] = 1;
		err = page_format_write(loop, t, c, 0, d);
	}
	if (!err) {
		memset(d, 0, sizeof(*d));
		*(le64 *)d->body = to_le64(block_sum(&t->fs, c->number, 0, 0, zero));
		err = page_format_write(loop, t, c, c->geom.bitmap_pages, d);
	}
	buf_put(zero);
	mem_free(d);
	return err;
}
