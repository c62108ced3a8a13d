// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Images: blocks whose newest content stands in the journal (or will, with the open transaction) and not yet in its place.
 * Metadata blocks always go this way, data and parity of shared rows too (W1).
 *
 * The checksum of an image stands with it and reaches the checksum page when the image goes home: until then the page speaks of what is
 * in place.
 *
 * A block has at most one image for each transaction; they form a chain from newest to oldest. Readers take the
 * newest. A checkpoint writes the committed ones home, under the lock of their cell, so that neither a direct
 * write nor a recovery sees a row half new. When an image's transaction becomes durable the older ones need not go
 * home any more: replay would redo the newer one anyway.
 *
 * A direct write to the place (a clean row, after everything in it has died) cancels images: they stay in the record that
 * carries them but never go home. Replay knows by the later record's ITEM_SUMS.
 *
 * Memory comes from the pool; from the heap when the pool is empty (a commit must not fail for lack of memory), and always
 * in a read-only volume, where replay keeps everything.
 */
#include <stdlib.h>

#include "volume.h"

#define HOME_BATCH 256u /* images written home at once */

int images_init(struct raid *r)
{
	r->image_hash_size = 8192;
	r->image_hash = mem_alloc(r->image_hash_size * sizeof(*r->image_hash));
	if (!r->image_hash)
		return -ENOMEM;
	for (size_t i = 0; i < r->image_hash_size; i++)
		list_init(&r->image_hash[i]);
	list_init(&r->images_committed);
	return 0;
}

static struct list *image_bucket(struct raid *r, uint32_t chunk, uint64_t row, unsigned sum)
{
	uint64_t h = ((uint64_t)chunk << 40 ^ row << 6 ^ sum) * 0x9e3779b97f4a7c15ull;

	return &r->image_hash[(h >> 32) & (r->image_hash_size - 1)];
}

static void image_release(struct raid *r, struct image *i)
{
	if (i->heap)
		free(i->data);
	else
		buf_put(i->data);
	mem_free(i);
	r->journal.image_count--;
}

/* Off the hash and out of the chain of its block. */
static void image_unlink(struct raid *r, struct image *i)
{
	if (i->older)
		i->older->newer = i->newer;
	if (i->newer)
		i->newer->older = i->older;
	else if (i->older) /* which is now the newest */
		list_add(&i->hash, &i->older->hash);
	else if (!list_empty(&i->hash))
		i->chunk->blocks_imaged--;
	list_del(&i->hash);
	i->older = i->newer = NULL;
}

static void image_free(struct raid *r, struct image *i)
{
	image_unlink(r, i);
	list_del(&i->txn);
	if (i->busy)
		i->dropped = true;
	else
		image_release(r, i);
}

void images_exit(struct raid *r)
{
	if (!r->image_hash)
		return;
	for (size_t b = 0; b < r->image_hash_size; b++)
		while (!list_empty(&r->image_hash[b]))
			image_free(r, list_first(&r->image_hash[b], struct image, hash));
	while (!list_empty(&r->images_committed))
		image_free(r, list_first(&r->images_committed, struct image, txn));
	/* Those that were cancelled are on the list of their transaction alone. */
	while (r->journal.open && !list_empty(&r->journal.open->images))
		image_free(r, list_first(&r->journal.open->images, struct image, txn));
	mem_free(r->image_hash);
	r->image_hash = NULL;
}

struct image *image_find(struct raid *r, const struct chunk *c, uint64_t row, unsigned sum)
{
	struct image *i;

	if (!c->blocks_imaged)
		return NULL;
	list_for_each(i, image_bucket(r, c->number, row, sum), hash)
		if (i->sum == sum && i->row == row && i->chunk == c)
			return i;
	return NULL;
}

static struct image *image_new(struct raid *r, struct chunk *c, uint64_t row, unsigned sum)
{
	struct image *i = mem_zalloc(sizeof(*i));

	if (!i)
		return NULL;
	/* Not of what others wait for. */
	if (!r->read_only && buf_pool_free_bytes() > buf_pool_bytes() / BUF_BELOW_SHARE)
		i->data = buf_get(BLOCK_BYTES);
	if (!i->data) {
		i->heap = true;
		if (posix_memalign(&i->data, BLOCK_BYTES, BLOCK_BYTES)) {
			mem_free(i);
			return NULL;
		}
	}
	i->chunk = c;
	i->row = row;
	i->sum = sum;
	list_init(&i->txn);
	list_init(&i->hash);
	r->journal.image_count++;
	return i;
}

/* Puts a new image in front of the chain of its block. */
static void image_link(struct raid *r, struct image *i, struct image *older)
{
	i->older = older;
	if (older) {
		older->newer = i;
		list_del(&older->hash);
	} else {
		i->chunk->blocks_imaged++;
	}
	list_add(image_bucket(r, i->chunk->number, i->row, i->sum), &i->hash);
}

int image_stage(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, const void *data)
{
	struct image *i = image_find(r, c, row, sum);

	if (!i || i->sealed) {
		struct image *older = i;

		i = image_new(r, c, row, sum);
		if (!i)
			return -ENOMEM;
		image_link(r, i, older);
		i->seq = r->journal.open->seq;
		journal_stage_image(r, i);
	}
	memcpy(i->data, data, BLOCK_BYTES);
	i->value = block_sum(&r->t->fs, c->number, row, sum, data);
	return 0;
}

int image_replay(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, uint64_t value, const void *data)
{
	struct image *older = image_find(r, c, row, sum);
	struct image *i = image_new(r, c, row, sum);

	if (!i)
		return -ENOMEM;
	image_link(r, i, older);
	i->seq = r->journal.replay_seq;
	i->sealed = true;
	memcpy(i->data, data, BLOCK_BYTES);
	i->value = value;
	image_committed(r, i);
	return 0;
}

void image_committed(struct raid *r, struct image *i)
{
	i->committed = true;
	while (i->older) {
		assert(i->older->committed);
		image_free(r, i->older);
	}
	if (i->cancelled) {
		image_free(r, i);
		return;
	}
	list_del(&i->txn);
	list_add_tail(&r->images_committed, &i->txn);
}

void image_cancel(struct raid *r, struct chunk *c, uint64_t row, unsigned sum)
{
	struct image *i = image_find(r, c, row, sum), *older;

	/* Those of a transaction that is not yet durable still have to be written with its record. */
	for (; i; i = older) {
		older = i->older;
		if (i->committed) {
			image_free(r, i);
			continue;
		}
		image_unlink(r, i);
		i->cancelled = true;
	}
}

/* ---- home ---- */

static unsigned image_group(const struct image *i)
{
	const struct geom *g = &i->chunk->geom;

	return i->sum / (g->parity ? g->span : g->data);
}

static int image_cmp(const void *a, const void *b)
{
	const struct image *x = *(struct image *const *)a, *y = *(struct image *const *)b;

	if (x->chunk != y->chunk)
		return x->chunk->number < y->chunk->number ? -1 : 1;
	if (x->row != y->row)
		return x->row < y->row ? -1 : 1;
	return (x->sum > y->sum) - (x->sum < y->sum);
}

/* What a cell's lock protects is looked up again under the lock: the image may have gone while we waited. */
struct home {
	struct chunk *chunk;
	uint64_t row;
	unsigned sum, group;
	struct image *image; /* busy while it is written: superseding it only drops it */
	bool locked;         /* this entry holds the lock of its cell (the first of the cell) */
	struct cell_lock lock;
};

static unsigned home_collect(struct raid *r, uint64_t seq, struct home *homes, struct image **sorted)
{
	struct image *i;
	unsigned n = 0;

	list_for_each(i, &r->images_committed, txn) {
		if (n == HOME_BATCH || i->seq > seq)
			break;
		sorted[n++] = i;
	}
	qsort(sorted, n, sizeof(*sorted), image_cmp);
	for (unsigned k = 0; k < n; k++) {
		homes[k].chunk = sorted[k]->chunk;
		homes[k].row = sorted[k]->row;
		homes[k].sum = sorted[k]->sum;
		homes[k].group = image_group(sorted[k]);
	}
	return n;
}

/* The committed image of the chain, if it is to go home at this checkpoint. */
static struct image *home_image(struct raid *r, const struct home *h, uint64_t seq)
{
	struct image *i = image_find(r, h->chunk, h->row, h->sum);

	while (i && !i->committed)
		i = i->older;
	return i && i->seq <= seq ? i : NULL;
}

static int home_write_batch(struct raid *r, struct home *homes, unsigned n, uint64_t seq)
{
	struct write_list list;
	unsigned pinned;
	int err = 0;

	for (pinned = 0; pinned < n && !err; pinned += !err)
		err = page_get_rows(r, homes[pinned].chunk, homes[pinned].row, 1);
	if (err)
		goto out;
	for (unsigned k = 0; k < n; k++) {
		struct home *h = &homes[k], *prev = k ? &homes[k - 1] : NULL;

		h->locked = !prev || prev->chunk != h->chunk || prev->row != h->row || prev->group != h->group;
		if (h->locked)
			cell_lock(r, &h->lock, h->chunk, h->row, 1, h->group);
	}
	write_list_init(&list);
	for (unsigned k = 0; k < n; k++) {
		struct image *i = homes[k].image = home_image(r, &homes[k], seq);

		if (!i)
			continue;
		i->busy = true;
		write_list_sum(r, &list, i->chunk, i->row, i->sum, i->data);
	}
	err = write_list_run(r, &list);
	for (unsigned k = 0; k < n; k++) {
		struct image *i = homes[k].image;

		if (!i)
			continue;
		i->busy = false;
		if (i->dropped) {
			/* Superseded: what is in place now is covered by the newer image until that goes home. */
			image_release(r, i);
		} else if (!err) {
			page_sum_home(r, i->chunk, i->row, i->sum, i->value);
			image_free(r, i);
		}
	}
	for (unsigned k = 0; k < n; k++)
		if (homes[k].locked)
			cell_unlock(r, &homes[k].lock);
out:
	for (unsigned k = 0; k < pinned; k++)
		page_put_rows(r, homes[k].chunk, homes[k].row, 1);
	return err;
}

int images_write_home(struct raid *r, uint64_t seq)
{
	struct image **sorted = mem_alloc(HOME_BATCH * sizeof(*sorted));
	struct home *homes = mem_zalloc(HOME_BATCH * sizeof(*homes));
	int err = sorted && homes ? 0 : -ENOMEM;
	unsigned n;

	while (!err && (n = home_collect(r, seq, homes, sorted)) > 0)
		err = home_write_batch(r, homes, n, seq);
	mem_free(sorted);
	mem_free(homes);
	return err;
}
