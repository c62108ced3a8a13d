// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fsck of the volume: the same walk as a scrub, only told and not repaired.
 *
 * Usually the volume was opened for this and nothing is written (RAID_OPEN_CHECK); what replay
 * found is in memory and counts as the newest content. Two things are judged less strictly where
 * they may rightly be otherwise:
 *   - a volume that was not closed cleanly may have been caught writing a label or a page: of
 * labels one at each end must do, of a page any copy;
 *   - so may one that is running, since it goes on.
 * Members that are out of service are a state, not damage: they are named as a warning and not
 * counted.
 */
#include <stdio.h>

#include "walk.h"

#define TEXT_BYTES 512
#define PARITY_MAX 2u

struct check {
	struct raid *r;
	void (*report)(void *arg, const char *text);
	void *arg;
	int64_t problems;
	bool strict;
};

static void problem(struct check *k, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void problem(struct check *k, const char *format, ...)
{
	char text[TEXT_BYTES];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args); /* cut off is good enough */
	va_end(args);
	k->problems++;
	k->report(k->arg, text);
}

static const char *member_name(const struct table *t, unsigned member)
{
	return t->members[member].dev ? t->members[member].dev->name : t->members[member].hint;
}

/* ---- labels ---- */

static void check_label(struct check *k, unsigned member)
{
	struct member *m = &k->r->t->members[member];
	struct label label;
	int err = label_read(m->dev, &label);

	if (err) {
		problem(k, "%s: label: %s", m->dev->name,
			err == -EBADMSG ? "all copies are damaged" : strerror(-err));
		return;
	}
	if (label.places_valid < (k->strict ? 2 * LABEL_PLACES : LABEL_PLACES))
		problem(k, "%s: label: %u of %u places are damaged", m->dev->name,
			2 * LABEL_PLACES - label.places_valid, 2 * LABEL_PLACES);
	/* In an unclean volume the newest generation may not have reached everybody: the vote has
	 * judged that. */
	if (k->strict && label.gen != k->r->t->gen)
		problem(k, "%s: label: got generation %llu, expected %llu", m->dev->name,
			(unsigned long long)label.gen, (unsigned long long)k->r->t->gen);
	label_clear(&label);
}

static void check_members(struct check *k)
{
	struct table *t = k->r->t;

	/* No label is being written meanwhile. */
	co_mutex_lock(&k->r->table_lock);
	for (unsigned i = 0; i < t->member_count; i++) {
		unsigned columns = 0, stale = 0;

		if (member_in_service(&t->members[i]))
			check_label(k, i);
		for (unsigned n = 0; n < t->chunk_count; n++) {
			const struct chunk *c = t->chunks[n];

			for (unsigned x = 0; x < c->geom.columns; x++) {
				if (c->columns[x].member != i)
					continue;
				columns++;
				stale += !table_column_readable(t, &c->columns[x]);
			}
		}
		if (stale)
			log_warning("member %u (%s): %u of its %u columns are out of service or "
				    "stale and not checked",
				    i, member_name(t, i), stale, columns);
	}
	co_mutex_unlock(&k->r->table_lock);
}

/* ---- pages ---- */

static int check_page(struct check *k, struct chunk *c, uint32_t number)
{
	unsigned bad = 0;
	struct page *p;
	int err;

	if (k->strict) {
		err = page_verify_copies(k->r, c, number, &bad);
	} else {
		err = page_get(k->r, c, number, &p);
		if (!err) {
			err = p->lost ? -EBADMSG : 0;
			page_put(k->r, p);
		}
	}
	if (err == -ENOMEM)
		return err;
	if (err)
		problem(k, "chunk %u page %u: no valid copy: %s", c->number, number,
			strerror(-err));
	else if (bad)
		problem(k, "chunk %u page %u: %u of %u copies are damaged or old", c->number,
			number, bad, c->geom.page_copies);
	return 0;
}

/* ---- rows ---- */

static void check_slot(struct check *k, struct rows *rows, unsigned slot, unsigned i)
{
	const struct geom *g = &rows->chunk->geom;
	uint64_t row = rows->row + i;
	uint8_t found = rows->found[slot * rows->count + i];
	unsigned column = geom_column(g, row, rows->group * rows->span + slot);
	const char *what = geom_slot_is_parity(g, slot) ? "parity"
			   : g->copies > 1		? "copy"
							: "data";

	if (found != SLOT_BAD_IO && found != SLOT_BAD_SUM &&
	    *walk_state(rows, slot, i) != SLOT_LOST)
		return;
	problem(k, "%s: chunk %u row %llu: %s block %s%s",
		member_name(k->r->t, rows->chunk->columns[column].member), rows->chunk->number,
		(unsigned long long)row, what,
		found == SLOT_BAD_IO	? "cannot be read"
		: found == SLOT_BAD_SUM ? "does not match its checksum"
					: "is not there",
		*walk_state(rows, slot, i) == SLOT_LOST ? ", and cannot be recovered" : "");
}

static void check_parity(struct check *k, struct rows *rows, unsigned i, char *parity)
{
	const struct geom *g = &rows->chunk->geom;
	void *cols[MEMBERS_MAX];

	for (unsigned s = 0; s < g->span; s++) {
		if (*walk_state(rows, s, i) == SLOT_LOST)
			return; /* said already */
		cols[s] = s < g->data ? walk_block(rows, s, i)
				      : parity + (size_t)(s - g->data) * BLOCK_BYTES;
	}
	parity_compute(g->data, g->parity, BLOCK_BYTES, cols);
	for (unsigned p = 0; p < g->parity; p++)
		if (memcmp(cols[g->data + p], walk_block(rows, g->data + p, i), BLOCK_BYTES))
			problem(k, "chunk %u row %llu group %u: parity %u is not that of the data",
				rows->chunk->number, (unsigned long long)rows->row + i, rows->group,
				p + 1);
}

/* Live blocks that nothing was ever written to. Never yields; the pages are pinned. */
static void check_live(struct check *k, struct chunk *c, unsigned group, uint64_t row)
{
	const struct geom *g = &c->geom;

	for (unsigned n = 0; n < g->data; n++) {
		unsigned index = group * g->data + n, sum = geom_index_sum(g, index);

		if (page_live(k->r, c, row, index) && !page_sum(k->r, c, row, sum) &&
		    !image_find(k->r, c, row, sum))
			problem(k, "chunk %u row %llu index %u: live, and was never written",
				c->number, (unsigned long long)row, index);
	}
}

static int check_group(struct check *k, struct chunk *c, unsigned group, uint64_t row,
		       unsigned count, char *parity)
{
	struct rows rows;
	int err = page_get_rows(k->r, c, row, count);

	if (err)
		return err == -ENOMEM ? err : 0; /* the page was said to be lost */
	for (unsigned i = 0; i < count; i++)
		check_live(k, c, group, row + i);
	err = walk_load(k->r, &rows, c, group, row, count);
	page_put_rows(k->r, c, row, count);
	if (err)
		return err == -ENOMEM ? err : 0;
	rows_recover(k->r, &rows, NULL);
	for (unsigned i = 0; i < count; i++) {
		for (unsigned s = 0; s < rows.span; s++)
			check_slot(k, &rows, s, i);
		if (c->geom.parity && walk_slot_counts(c, row + i, group, 0))
			check_parity(k, &rows, i, parity);
	}
	rows_free(&rows);
	return 0;
}

static int check_rows(struct walk *w, uint64_t row, unsigned count)
{
	struct check *k = w->user;
	struct chunk *c = w->chunk;
	char *parity = buf_get_wait_below(PARITY_MAX * BLOCK_BYTES);
	int err = 0;

	for (unsigned group = 0; group < c->geom.groups && !err; group++) {
		struct cell_lock lock;

		rows_reserve(k->r, rows_bytes(c, count));
		cell_lock(k->r, &lock, c, row, count, group);
		err = check_group(k, c, group, row, count, parity);
		cell_unlock(k->r, &lock);
		rows_unreserve(k->r, rows_bytes(c, count));
	}
	buf_put(parity);
	return err;
}

static int check_chunk(struct check *k, struct chunk *c)
{
	struct walk w = {.r = k->r, .chunk = c, .end = c->geom.rows, .unit = check_rows, .user = k};
	int err = 0;

	for (uint32_t number = 0; number < c->geom.bitmap_pages + c->geom.sum_pages && !err;
	     number++)
		err = check_page(k, c, number);
	if (err)
		return err;
	/* Without it nobody can say what is live; that the bitmap is lost has been said. */
	err = space_load(k->r, c);
	if (err)
		return err == -ENOMEM ? err : 0;
	return walk_rows(&w);
}

int64_t raid_check(struct raid *r, void (*report)(void *arg, const char *text), void *arg)
{
	struct check k = {.r = r, .report = report, .arg = arg};
	uint32_t number = 0;
	struct chunk *c;
	int err = 0;

	k.strict = r->read_only && r->t->flags & TABLE_CLEAN;
	check_members(&k);
	while (!err && (c = walk_chunk_from(r->t, number))) {
		number = c->number + 1;
		err = check_chunk(&k, c);
	}
	return err ? err : k.problems;
}
