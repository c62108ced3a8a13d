/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume table: who the members are, which chunk lies where, and what is kept free.
 *
 * Invariants, kept here and checked on every decode:
 *   - a slice belongs to at most one column; a member has at most one column of a chunk;
 *   - chunk numbers ascend, are below chunk_next, and none is given out twice;
 *   - nothing refers to a REMOVED member;
 *   - the bytes fit one label place, whatever chunks are added (table_chunk_add refuses before they
 * do not). slice_used and slices_free follow from the chunks. A slice taken by table_slice_get for
 * a rebuild is not stored: a crash simply gives it back.
 *
 * Where chunks go. In service are members that are ACTIVE, are here, and are not being replaced.
 * The members with most free slices come first, so members of different sizes run full together;
 * among those chosen, columns ascend by member index, so that with equal members RAID 10 always has
 * the same pairs, and a second loss is as unlikely to be fatal as people expect of it. Data takes
 * all members that have a free slice (10: an even number, 50/60: a multiple of the groups).
 *
 * With too few members in service for a chunk of full redundancy (RAID 5 of three with one lost)
 * there are three choices: refuse, make a chunk of less redundancy, or make the chunk it ought to
 * be with columns on the absent members, stale from the start. The third is taken: a missing member
 * must not stop writes, and the rebuild that has to come anyway makes the chunk whole, while a
 * narrow chunk would stay as weak as it was made. A member that is merely full is no reason for it.
 *
 * Reserve. Metadata must never wait for data: each data chunk leaves free slices for so many
 * metadata chunks as are lacking from 1/32 of all slices, and at least for one. The 32nd is what
 * back-references and extents of a volume of single blocks come to; a volume of large files simply
 * never makes those chunks before it is full, when they are the price of always being able to
 * delete. table_potential_blocks plays the same choices on a copy of the free counts, so it is
 * exact for as long as members stay as they are.
 */
#include "table.h"
#include "buf.h"
#include "format.h"

#define META_SHARE	  32u /* 1/32 of all slices may become metadata before data may have them */
#define META_CHUNKS_MIN	  2   /* ... but never fewer chunks than this */
#define SLACK_BYTES_MIN	  (1ull << 20)
#define SLACK_BYTES_MAX	  (1ull << 30)
#define SLACK_SHARE	  1000u
#define CHUNK_CAP_FIRST	  16u
#define FILL_HINT_UNKNOWN UINT32_MAX

/* ---- life ---- */

struct table *table_new(void)
{
	struct table *t = mem_zalloc(sizeof(*t));

	if (!t)
		return NULL;
	t->chunk_next = 1;
	co_mutex_init(&t->write_lock);
	return t;
}

static void chunk_free(struct chunk *c)
{
	if (!c)
		return;
	mem_free(c->columns);
	mem_free(c);
}

void table_free(struct table *t)
{
	if (!t)
		return;
	for (unsigned i = 0; i < t->chunk_count; i++)
		chunk_free(t->chunks[i]);
	mem_free(t->chunks);
	for (unsigned i = 0; i < t->member_count; i++)
		mem_free(t->members[i].slice_used);
	buf_put(t->write_memory);
	mem_free(t);
}

/* ---- members and slices ---- */

static uint32_t slices_between(const struct table *t, uint64_t end_bytes)
{
	if (end_bytes < t->slices_off_bytes)
		return 0;
	return (uint32_t)MIN((end_bytes - t->slices_off_bytes) / t->slice_bytes, SLICES_TOTAL_MAX);
}

uint32_t table_slices_fit(const struct table *t, uint64_t member_bytes)
{
	uint64_t slack = MIN(MAX(member_bytes / SLACK_SHARE, SLACK_BYTES_MIN), SLACK_BYTES_MAX);

	if (member_bytes < MEMBER_BYTES_MIN)
		return 0;
	return slices_between(t, label_b_off(member_bytes) - slack);
}

uint64_t table_member_bytes_min(const struct table *t, uint32_t slices)
{
	uint64_t end = ROUND_UP(t->slices_off_bytes + slices * t->slice_bytes, 1ull << 20);

	return MAX(end + LABEL_AREA_BYTES, MEMBER_BYTES_MIN);
}

/* The REMOVED member that went first, of those whose device is closed; NULL: none. */
static struct member *find_reusable(struct table *t)
{
	struct member *best = NULL;

	for (unsigned i = 0; i < t->member_count; i++) {
		struct member *m = &t->members[i];

		if (m->state == MEMBER_REMOVED && !m->dev && (!best || m->last_gen < best->last_gen))
			best = m;
	}
	return best;
}

/* Its index is to be another's: only its UUID is kept. */
static void member_forget(struct table *t, struct member *m)
{
	if (t->gone_count == GONE_MAX) {
		t->gone_count--;
		memmove(&t->gone[0], &t->gone[1], t->gone_count * sizeof(t->gone[0]));
	}
	t->gone[t->gone_count++] = m->uuid;
	mem_free(m->slice_used);
	m->slice_used = NULL;
}

bool table_is_gone(const struct table *t, const struct uuid *uuid)
{
	for (unsigned i = 0; i < t->member_count; i++)
		if (t->members[i].state == MEMBER_REMOVED && uuid_equal(&t->members[i].uuid, uuid))
			return true;
	for (unsigned i = 0; i < t->gone_count; i++)
		if (uuid_equal(&t->gone[i], uuid))
			return true;
	return false;
}

int table_member_add(struct table *t, const struct uuid *uuid, uint64_t size_bytes,
		     uint32_t slices_wanted, unsigned *ret_index)
{
	struct member *m, *old = NULL;
	uint32_t slices = table_slices_fit(t, size_bytes);
	uint8_t *used;

	if (t->member_count == MEMBERS_MAX && !(old = find_reusable(t)))
		return -E2BIG;
	if (slices < slices_wanted && size_bytes >= MEMBER_BYTES_MIN)
		slices = MIN(slices_wanted, slices_between(t, label_b_off(size_bytes)));
	if (slices == 0 || slices < slices_wanted)
		return -ENOSPC;
	used = mem_zalloc(slices);
	if (!used)
		return -ENOMEM;
	m = old ? old : &t->members[t->member_count];
	if (old)
		member_forget(t, old);
	*m = (struct member){
	    .uuid = *uuid,
	    .size_bytes = size_bytes,
	    .state = MEMBER_ACTIVE,
	    .slice_count = slices,
	    .replaces = -1,
	    .slice_used = used,
	    .slices_free = slices,
	};
	t->member_count += !old;
	*ret_index = (unsigned)(m - t->members);
	return 0;
}

static bool is_being_replaced(const struct table *t, unsigned index)
{
	for (unsigned i = 0; i < t->member_count; i++) {
		const struct member *m = &t->members[i];

		if (m->replaces == (int)index && member_in_service(m))
			return true;
	}
	return false;
}

void table_member_set_stale(struct table *t, unsigned index)
{
	for (unsigned i = 0; i < t->chunk_count; i++) {
		struct chunk *c = t->chunks[i];

		for (unsigned k = 0; k < c->geom.columns; k++)
			if (c->columns[k].member == index)
				c->columns[k].stale = true;
	}
}

bool table_member_takes_chunks(const struct table *t, unsigned index)
{
	return member_in_service(&t->members[index]) && !is_being_replaced(t, index);
}

int table_slice_get(struct table *t, unsigned member, uint16_t *ret_slice)
{
	struct member *m = &t->members[member];

	assert(member < t->member_count);
	if (m->slices_free == 0)
		return -ENOSPC;
	for (uint32_t i = 0; i < m->slice_count; i++) {
		if (!m->slice_used[i]) {
			m->slice_used[i] = 1;
			m->slices_free--;
			*ret_slice = (uint16_t)i;
			return 0;
		}
	}
	assert(!"slices_free counts the zeros of slice_used");
	return -ENOSPC;
}

void table_slice_put(struct table *t, unsigned member, uint16_t slice)
{
	struct member *m = &t->members[member];

	assert(member < t->member_count && slice < m->slice_count && m->slice_used[slice]);
	m->slice_used[slice] = 0;
	m->slices_free++;
}

/* ---- what may be lost ---- */

int table_chunk_spare(const struct table *t, const struct chunk *c)
{
	const struct geom *g = &c->geom;
	int worst = MEMBERS_MAX;

	for (unsigned group = 0; group < g->groups; group++) {
		int left = g->parity ? (int)g->parity : (int)g->copies - 1;

		for (unsigned k = group * g->span; k < (group + 1) * g->span; k++)
			left -= !table_column_readable(t, &c->columns[k]);
		worst = MIN(worst, left);
	}
	/* The sets repeat after so many pages at the latest. */
	for (uint32_t page = 0; page < MIN(g->columns, g->bitmap_pages + g->sum_pages); page++) {
		int left = (int)g->page_copies - 1;

		for (unsigned copy = 0; copy < g->page_copies; copy++) {
			unsigned column;
			uint64_t block;

			geom_page_place(g, page, copy, &column, &block);
			left -= !table_column_readable(t, &c->columns[column]);
		}
		worst = MIN(worst, left);
	}
	return worst;
}

/* ---- where chunks go ---- */

/* Free slices while a choice is tried out; nothing of the table is touched. */
struct pool {
	uint32_t free[MEMBERS_MAX];
	unsigned in[MEMBERS_MAX], in_count;	    /* in service */
	unsigned absent[MEMBERS_MAX], absent_count; /* would be, were they here */
	uint64_t slices;			    /* of all of them, used or not */
};

static void pool_init(struct pool *p, const struct table *t)
{
	p->in_count = p->absent_count = 0;
	p->slices = 0;
	for (unsigned i = 0; i < t->member_count; i++) {
		const struct member *m = &t->members[i];

		p->free[i] = m->slices_free;
		if (m->state == MEMBER_REMOVED || is_being_replaced(t, i))
			continue;
		p->slices += m->slice_count;
		if (table_member_takes_chunks(t, i))
			p->in[p->in_count++] = i;
		else
			p->absent[p->absent_count++] = i;
	}
}

/* Most free first, ties by index. The lists stay nearly sorted from call to call. */
static void sort_by_free(unsigned *list, unsigned count, const uint32_t *free)
{
	for (unsigned i = 1; i < count; i++) {
		unsigned x = list[i], k = i;

		while (k > 0 && (free[list[k - 1]] < free[x] ||
				 (free[list[k - 1]] == free[x] && list[k - 1] > x))) {
			list[k] = list[k - 1];
			k--;
		}
		list[k] = x;
	}
}

static unsigned meta_columns(const struct table *t)
{
	return t->tolerance + 1;
}

/* Fewest columns with full redundancy. */
static unsigned columns_min(const struct table *t, enum chunk_class class)
{
	if (class == CHUNK_META)
		return meta_columns(t);
	switch (t->level) {
	case 5:
	case 6:
		return t->tolerance + 2;
	case 50:
	case 60:
		return t->groups * (t->tolerance + 2);
	default:
		return t->tolerance + 1;
	}
}

static unsigned columns_of(const struct table *t, enum chunk_class class, unsigned usable)
{
	if (class == CHUNK_META)
		return meta_columns(t);
	switch (t->level) {
	case 10:
		return ROUND_DOWN(usable, 2);
	case 50:
	case 60:
		return ROUND_DOWN(usable, t->groups);
	default:
		return usable;
	}
}

/*
 * Picks a member for each column, ascending by index, and takes the slices from the pool. -ENOSPC,
 * with the pool as it was.
 */
static int pool_pick(struct pool *p, const struct table *t, enum chunk_class class,
		     unsigned *picked, unsigned *ret_count)
{
	unsigned need = columns_min(t, class), count, usable = 0, lacking;

	sort_by_free(p->in, p->in_count, p->free);
	while (usable < p->in_count && p->free[p->in[usable]] > 0)
		usable++;
	if (p->in_count >= need) {
		count = columns_of(t, class, usable);
		if (usable < need || count < need)
			return -ENOSPC;
		memcpy(picked, p->in, count * sizeof(picked[0]));
	} else {
		lacking = need - p->in_count;
		if (usable < p->in_count || lacking > t->tolerance || lacking > p->absent_count)
			return -ENOSPC;
		sort_by_free(p->absent, p->absent_count, p->free);
		if (p->free[p->absent[lacking - 1]] == 0)
			return -ENOSPC;
		count = need;
		memcpy(picked, p->in, usable * sizeof(picked[0]));
		memcpy(picked + usable, p->absent, lacking * sizeof(picked[0]));
	}
	for (unsigned i = 0; i < count; i++) {
		unsigned x = picked[i], k = i;

		p->free[x]--;
		for (; k > 0 && picked[k - 1] > x; k--)
			picked[k] = picked[k - 1];
		picked[k] = x;
	}
	*ret_count = count;
	return 0;
}

/*
 * How many times `columns` different members of the list can give a slice: the largest k with
 * sum min(free, k) >= columns * k, which taking from the fullest each time also reaches.
 */
static uint32_t picks_possible(const unsigned *list, unsigned count, const uint32_t *free,
			       unsigned columns)
{
	uint64_t low = 0, high = 0;

	for (unsigned i = 0; i < count; i++)
		high += free[list[i]];
	high /= columns;
	while (low < high) {
		uint64_t k = high - (high - low) / 2, sum = 0;

		for (unsigned i = 0; i < count; i++)
			sum += MIN(free[list[i]], k);
		if (sum >= columns * k)
			low = k;
		else
			high = k - 1;
	}
	return (uint32_t)low;
}

/* Metadata chunks that could be made from the pool: agrees with pool_pick called until it fails. */
static uint32_t pool_meta_chunks(const struct pool *p, const struct table *t)
{
	unsigned need = meta_columns(t), lacking;
	uint32_t chunks;

	if (p->in_count >= need)
		return picks_possible(p->in, p->in_count, p->free, need);
	lacking = need - p->in_count;
	if (lacking > t->tolerance || lacking > p->absent_count)
		return 0;
	chunks = picks_possible(p->absent, p->absent_count, p->free, lacking);
	for (unsigned i = 0; i < p->in_count; i++)
		chunks = MIN(chunks, p->free[p->in[i]]);
	return chunks;
}

/* Metadata chunks that data has to leave room for. */
static uint32_t meta_reserve(const struct pool *p, const struct table *t)
{
	uint64_t target = MAX(p->slices / META_SHARE / meta_columns(t), META_CHUNKS_MIN);
	uint64_t have = 0;

	for (unsigned i = 0; i < t->chunk_count; i++)
		have += t->chunks[i]->class == CHUNK_META;
	return have < target ? (uint32_t)(target - have) : 1;
}

static int class_geom(const struct table *t, enum chunk_class class, unsigned columns,
		      struct geom *ret)
{
	unsigned level = class == CHUNK_DATA ? t->level : t->tolerance ? 1 : 0;

	return geom_init(ret, level, columns, t->groups, t->tolerance,
			 t->slice_bytes >> BLOCK_SHIFT, t->strip_blocks);
}

uint64_t table_potential_blocks(const struct table *t, enum chunk_class class)
{
	unsigned picked[MEMBERS_MAX], count, known_count = 0;
	uint64_t blocks = 0;
	struct geom geom;
	struct pool p;
	uint32_t reserve;

	pool_init(&p, t);
	if (class == CHUNK_META) {
		if (class_geom(t, class, meta_columns(t), &geom) != 0)
			return 0;
		return pool_meta_chunks(&p, t) * geom.blocks;
	}
	reserve = meta_reserve(&p, t);
	while (pool_pick(&p, t, class, picked, &count) == 0 && pool_meta_chunks(&p, t) >= reserve) {
		if (count != known_count && class_geom(t, class, count, &geom) != 0)
			break;
		known_count = count;
		blocks += geom.blocks;
	}
	return blocks;
}

uint64_t table_chunk_blocks(const struct table *t, enum chunk_class class)
{
	unsigned picked[MEMBERS_MAX], count;
	struct geom geom;
	struct pool p;

	pool_init(&p, t);
	if (pool_pick(&p, t, class, picked, &count) != 0 || class_geom(t, class, count, &geom) != 0)
		return 0;
	if (class == CHUNK_DATA && pool_meta_chunks(&p, t) < meta_reserve(&p, t))
		return 0;
	return geom.blocks;
}

/* ---- chunks ---- */

static uint64_t bytes_of(const struct table *t)
{
	uint64_t bytes =
	    sizeof(struct table_head_disk) + t->member_count * sizeof(struct table_member_disk) +
	    t->gone_count * sizeof(struct uuid);

	for (unsigned i = 0; i < t->chunk_count; i++)
		bytes += sizeof(struct table_chunk_disk) +
			 t->chunks[i]->geom.columns * sizeof(struct table_column_disk);
	return bytes;
}

static unsigned chunk_position(const struct table *t, uint32_t number)
{
	unsigned low = 0, high = t->chunk_count;

	while (low < high) {
		unsigned mid = low + (high - low) / 2;

		if (t->chunks[mid]->number < number)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct chunk *table_chunk(const struct table *t, uint32_t number)
{
	unsigned i = chunk_position(t, number);

	return i < t->chunk_count && t->chunks[i]->number == number ? t->chunks[i] : NULL;
}

static struct chunk *chunk_new(const struct geom *geom)
{
	struct chunk *c = mem_zalloc(sizeof(*c));

	if (!c)
		return NULL;
	c->columns = mem_zalloc(geom->columns * sizeof(c->columns[0]));
	if (!c->columns) {
		mem_free(c);
		return NULL;
	}
	c->geom = *geom;
	c->move_column = -1;
	c->fill_hint = FILL_HINT_UNKNOWN;
	return c;
}

/* At the end: numbers ascend. */
static int append_chunk(struct table *t, struct chunk *c)
{
	if (t->chunk_count == t->chunk_cap) {
		unsigned cap = t->chunk_cap ? t->chunk_cap * 2 : CHUNK_CAP_FIRST;
		struct chunk **chunks = mem_realloc(t->chunks, cap * sizeof(*chunks));

		if (!chunks)
			return -ENOMEM;
		t->chunks = chunks;
		t->chunk_cap = cap;
	}
	t->chunks[t->chunk_count++] = c;
	return 0;
}

int table_chunk_add(struct table *t, enum chunk_class class, struct chunk **ret)
{
	unsigned picked[MEMBERS_MAX], count;
	struct chunk *c;
	struct geom geom;
	struct pool p;
	int err;

	pool_init(&p, t);
	err = pool_pick(&p, t, class, picked, &count);
	if (err)
		return err;
	if (class == CHUNK_DATA && pool_meta_chunks(&p, t) < meta_reserve(&p, t))
		return -ENOSPC;
	if (t->chunk_next == UINT32_MAX || class_geom(t, class, count, &geom) != 0)
		return -ENOSPC;
	if (bytes_of(t) + sizeof(struct table_chunk_disk) +
		count * sizeof(struct table_column_disk) >
	    TABLE_BYTES_MAX)
		return -ENOSPC;
	c = chunk_new(&geom);
	if (!c)
		return -ENOMEM;
	c->number = t->chunk_next;
	c->class = class;
	err = append_chunk(t, c);
	if (err) {
		chunk_free(c);
		return err;
	}
	for (unsigned i = 0; i < count; i++) {
		c->columns[i].member = (uint16_t)picked[i];
		c->columns[i].stale = !table_member_takes_chunks(t, picked[i]);
		err = table_slice_get(t, picked[i], &c->columns[i].slice);
		assert(err == 0); /* the pool said so */
	}
	t->chunk_next++;
	*ret = c;
	return 0;
}

void table_chunk_drop(struct table *t, struct chunk *chunk)
{
	unsigned i = chunk_position(t, chunk->number);

	assert(i < t->chunk_count && t->chunks[i] == chunk);
	for (unsigned k = 0; k < chunk->geom.columns; k++)
		table_slice_put(t, chunk->columns[k].member, chunk->columns[k].slice);
	t->chunk_count--;
	memmove(&t->chunks[i], &t->chunks[i + 1], (t->chunk_count - i) * sizeof(t->chunks[0]));
	chunk_free(chunk);
}

/* ---- bytes ---- */

static void encode_head(const struct table *t, unsigned chunk_count, struct table_head_disk *h)
{
	*h = (struct table_head_disk){
	    .gen = to_le64(t->gen),
	    .epoch = to_le64(t->epoch),
	    .salt = to_le64(t->salt),
	    .slice_bytes = to_le64(t->slice_bytes),
	    .journal_off_bytes = to_le64(t->journal_off_bytes),
	    .journal_bytes = to_le64(t->journal_bytes),
	    .slices_off_bytes = to_le64(t->slices_off_bytes),
	    .chunk_next = to_le64(t->chunk_next),
	    .level = to_le32(t->level),
	    .tolerance = to_le32(t->tolerance),
	    .strip_blocks = to_le32(t->strip_blocks),
	    .groups = to_le32(t->groups),
	    .member_count = to_le32(t->member_count),
	    .chunk_count = to_le32(chunk_count),
	    .gone_count = to_le32(t->gone_count),
	    .flags = to_le32(t->flags),
	    .rebuild_priority = t->rebuild_priority,
	    .scrub_priority = t->scrub_priority,
	    .created_s = to_le64(t->created_s),
	    .scrub_cursor = to_le64(t->scrub_cursor),
	    .scrub_last_end_s = to_le64(t->scrub_last_end_s),
	};
}

static void encode_member(const struct member *m, struct table_member_disk *d)
{
	*d = (struct table_member_disk){
	    .uuid = m->uuid,
	    .size_bytes = to_le64(m->size_bytes),
	    .last_gen = to_le64(m->last_gen),
	    .state = to_le32(m->state),
	    .slice_count = to_le32(m->slice_count),
	    .replaces = to_le32((uint32_t)(m->replaces + 1)),
	    .errors_read = to_le64(m->errors_read),
	    .errors_write = to_le64(m->errors_write),
	    .errors_sum = to_le64(m->errors_sum),
	    .errors_lost = to_le64(m->errors_lost),
	    .errors_hung = to_le64(m->errors_hung),
	};
	memcpy(d->hint, m->hint, strnlen(m->hint, sizeof(d->hint) - 1));
	memcpy(d->serial, m->serial, strnlen(m->serial, sizeof(d->serial) - 1));
}

static uint8_t *encode_chunk(const struct chunk *c, uint8_t *at)
{
	const struct geom *g = &c->geom;
	struct table_chunk_disk d = {
	    .number = to_le32(c->number),
	    .class = (uint8_t)c->class,
	    .level = (uint8_t)g->level,
	    .columns = to_le16((uint16_t)g->columns),
	    .groups = to_le16((uint16_t)g->groups),
	    .fill_hint = to_le32(c->fill_hint),
	};

	memcpy(at, &d, sizeof(d));
	at += sizeof(d);
	for (unsigned i = 0; i < g->columns; i++) {
		const struct column *col = &c->columns[i];
		struct table_column_disk cd = {
		    .member = to_le16(col->member | (col->stale ? COLUMN_STALE : 0)),
		    .slice = to_le16(col->slice),
		};

		memcpy(at, &cd, sizeof(cd));
		at += sizeof(cd);
	}
	return at;
}

int table_encode(const struct table *t, void *out, size_t cap, size_t *ret_bytes)
{
	struct table_member_disk member;
	struct table_head_disk head;
	unsigned shown = 0;
	uint8_t *at = out;
	uint64_t bytes = bytes_of(t);

	if (bytes > TABLE_BYTES_MAX || bytes > cap)
		return -E2BIG;
	at += sizeof(head);
	for (unsigned i = 0; i < t->member_count; i++) {
		encode_member(&t->members[i], &member);
		memcpy(at, &member, sizeof(member));
		at += sizeof(member);
	}
	for (unsigned i = 0; i < t->chunk_count; i++) {
		if (t->chunks[i]->hidden)
			continue;
		at = encode_chunk(t->chunks[i], at);
		shown++;
	}
	memcpy(at, t->gone, t->gone_count * sizeof(t->gone[0]));
	at += t->gone_count * sizeof(t->gone[0]);
	encode_head(t, shown, &head);
	memcpy(out, &head, sizeof(head));
	*ret_bytes = (size_t)(at - (uint8_t *)out);
	return 0;
}

static bool is_power_of_two(uint64_t x)
{
	return x && (x & (x - 1)) == 0;
}

static bool is_zero(const void *p, size_t len)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < len; i++) {
		if (b[i])
			return false;
	}
	return true;
}

/* Ends within its field, and nothing is hidden behind the end. */
static bool is_text(const char *text, size_t cap)
{
	size_t len = strnlen(text, cap);

	return len < cap && is_zero(text + len, cap - len);
}

/* NULL, or what is wrong. */
static const char *check_level(const struct table *t)
{
	if (geom_columns_min(t->level) > MEMBERS_MAX)
		return "unknown level";
	if (t->level == 1 ? t->tolerance < 1 || t->tolerance >= MEMBERS_MAX
			  : t->tolerance != geom_tolerance(t->level, 0))
		return "tolerance does not suit the level";
	if (t->level >= 50 ? t->groups < 1 || t->groups > MEMBERS_MAX / 3 : t->groups != 1)
		return "groups do not suit the level";
	return NULL;
}

static const char *decode_head(struct table *t, const struct table_head_disk *h)
{
	uint64_t chunk_next = from_le64(h->chunk_next);

	t->gen = from_le64(h->gen);
	t->epoch = from_le64(h->epoch);
	t->salt = from_le64(h->salt);
	t->slice_bytes = from_le64(h->slice_bytes);
	t->journal_off_bytes = from_le64(h->journal_off_bytes);
	t->journal_bytes = from_le64(h->journal_bytes);
	t->slices_off_bytes = from_le64(h->slices_off_bytes);
	t->chunk_next = (uint32_t)chunk_next;
	t->level = from_le32(h->level);
	t->tolerance = from_le32(h->tolerance);
	t->strip_blocks = from_le32(h->strip_blocks);
	t->groups = from_le32(h->groups);
	t->flags = from_le32(h->flags);
	t->rebuild_priority = h->rebuild_priority;
	t->scrub_priority = h->scrub_priority;
	t->created_s = from_le64(h->created_s);
	t->scrub_cursor = from_le64(h->scrub_cursor);
	t->scrub_last_end_s = from_le64(h->scrub_last_end_s);
	if (t->gen == 0)
		return "generation 0";
	if (t->slice_bytes % BLOCK_BYTES || t->slice_bytes < SLICE_BYTES_MIN ||
	    t->slice_bytes >> BLOCK_SHIFT > UINT32_MAX)
		return "slice size";
	if (t->journal_off_bytes != LABEL_AREA_BYTES || t->journal_bytes % BLOCK_BYTES ||
	    t->journal_bytes < JOURNAL_BYTES_MIN || t->journal_bytes > JOURNAL_BYTES_MAX)
		return "journal place";
	if (t->slices_off_bytes % BLOCK_BYTES ||
	    t->slices_off_bytes < t->journal_off_bytes + t->journal_bytes ||
	    t->slices_off_bytes > 2 * JOURNAL_BYTES_MAX)
		return "slices place";
	if (chunk_next == 0 || chunk_next > UINT32_MAX)
		return "next chunk number";
	if (!is_power_of_two(t->strip_blocks) || t->strip_blocks > STRIP_BYTES_MAX / BLOCK_BYTES)
		return "strip size";
	if (t->flags & ~(TABLE_CLEAN | TABLE_SCRUBBING | TABLE_RECORDS))
		return "unknown flags";
	if (t->rebuild_priority > TABLE_PRIORITY_MAX + 1 || t->scrub_priority > TABLE_PRIORITY_MAX + 1)
		return "a priority beyond 100";
	if (from_le16(h->reserved0) || !is_zero(h->reserved, sizeof(h->reserved)) || from_le32(h->reserved1))
		return "reserved bytes of the head";
	return check_level(t);
}

static const char *check_member(const struct table *t, const struct member *m, unsigned index,
				unsigned count)
{
	if (uuid_is_null(&m->uuid))
		return "member without UUID";
	for (unsigned i = 0; i < index; i++) {
		if (uuid_equal(&m->uuid, &t->members[i].uuid))
			return "two members of one UUID";
	}
	if (m->last_gen > t->gen)
		return "member of a later generation";
	if (m->size_bytes % BLOCK_BYTES || m->size_bytes < MEMBER_BYTES_MIN ||
	    m->size_bytes > INT64_MAX)
		return "member size";
	if (m->slice_count == 0 || m->slice_count > SLICES_TOTAL_MAX ||
	    t->slices_off_bytes + m->slice_count * t->slice_bytes > label_b_off(m->size_bytes))
		return "more slices than the member has room for";
	if (m->replaces >= (int)count || m->replaces == (int)index)
		return "member replaces nobody";
	return NULL;
}

static const char *decode_member(struct table *t, const struct table_member_disk *d, unsigned count,
				 int *ret_err)
{
	unsigned index = t->member_count;
	struct member *m = &t->members[index];
	uint32_t state = from_le32(d->state), replaces = from_le32(d->replaces);
	const char *why;

	if (state < MEMBER_ACTIVE || state > MEMBER_REMOVED)
		return "unknown member state";
	if (replaces > MEMBERS_MAX || from_le32(d->reserved0))
		return "reserved bytes of a member";
	if (!is_text(d->hint, sizeof(d->hint)) || !is_text(d->serial, sizeof(d->serial)))
		return "text without end";
	*m = (struct member){
	    .uuid = d->uuid,
	    .size_bytes = from_le64(d->size_bytes),
	    .last_gen = from_le64(d->last_gen),
	    .state = (enum member_state)state,
	    .slice_count = from_le32(d->slice_count),
	    .replaces = (int)replaces - 1,
	    .errors_read = from_le64(d->errors_read),
	    .errors_write = from_le64(d->errors_write),
	    .errors_sum = from_le64(d->errors_sum),
	    .errors_lost = from_le64(d->errors_lost),
	    .errors_hung = from_le64(d->errors_hung),
	};
	memcpy(m->hint, d->hint, sizeof(m->hint));
	memcpy(m->serial, d->serial, sizeof(m->serial));
	why = check_member(t, m, index, count);
	if (why)
		return why;
	m->slice_used = mem_zalloc(m->slice_count);
	if (!m->slice_used) {
		*ret_err = -ENOMEM;
		return "no memory";
	}
	m->slices_free = m->slice_count;
	t->member_count++;
	return NULL;
}

static const char *decode_column(struct table *t, struct chunk *c, unsigned index,
				 const uint8_t *at)
{
	struct column *col = &c->columns[index];
	struct table_column_disk d;
	struct member *m;

	memcpy(&d, at, sizeof(d));
	col->member = from_le16(d.member) & (uint16_t)~COLUMN_STALE;
	col->stale = from_le16(d.member) & COLUMN_STALE;
	col->slice = from_le16(d.slice);
	if (col->member >= t->member_count)
		return "column on an unknown member";
	m = &t->members[col->member];
	if (m->state == MEMBER_REMOVED)
		return "column on a member that was removed";
	if (col->slice >= m->slice_count)
		return "column beyond the end of its member";
	if (m->slice_used[col->slice])
		return "slice used twice";
	for (unsigned i = 0; i < index; i++) {
		if (c->columns[i].member == col->member)
			return "two columns of a chunk on one member";
	}
	m->slice_used[col->slice] = 1;
	m->slices_free--;
	return NULL;
}

static bool level_suits(const struct table_chunk_disk *d, const struct table *t)
{
	if (d->class == CHUNK_META)
		return d->level <= 1;
	return d->class == CHUNK_DATA && d->level == t->level;
}

static const char *decode_chunk(struct table *t, const uint8_t **at, const uint8_t *end,
				int *ret_err)
{
	uint32_t last = t->chunk_count ? t->chunks[t->chunk_count - 1]->number : 0;
	struct table_chunk_disk d;
	struct chunk *c;
	struct geom geom;
	const char *why;

	if ((size_t)(end - *at) < sizeof(d))
		return "cut short";
	memcpy(&d, *at, sizeof(d));
	*at += sizeof(d);
	if (!level_suits(&d, t))
		return "chunk class or level";
	if (from_le16(d.reserved0))
		return "reserved bytes of a chunk";
	if (from_le32(d.number) <= last || from_le32(d.number) >= t->chunk_next)
		return "chunk number";
	if (geom_init(&geom, d.level, from_le16(d.columns), from_le16(d.groups), t->tolerance,
		      t->slice_bytes >> BLOCK_SHIFT, t->strip_blocks) != 0 ||
	    geom.groups != from_le16(d.groups))
		return "geometry of a chunk";
	if ((size_t)(end - *at) < geom.columns * sizeof(struct table_column_disk))
		return "cut short";
	c = chunk_new(&geom);
	if (!c || append_chunk(t, c) != 0) {
		chunk_free(c);
		*ret_err = -ENOMEM;
		return "no memory";
	}
	c->number = from_le32(d.number);
	c->class = (enum chunk_class)d.class;
	c->fill_hint = from_le32(d.fill_hint);
	for (unsigned i = 0; i < geom.columns; i++) {
		why = decode_column(t, c, i, *at);
		if (why)
			return why;
		*at += sizeof(struct table_column_disk);
	}
	return NULL;
}

static const char *decode(struct table *t, const uint8_t *at, const uint8_t *end, int *ret_err)
{
	struct table_member_disk member;
	struct table_head_disk head;
	uint32_t members, chunks;
	const char *why;

	if ((size_t)(end - at) < sizeof(head))
		return "cut short";
	memcpy(&head, at, sizeof(head));
	at += sizeof(head);
	why = decode_head(t, &head);
	if (why)
		return why;
	members = from_le32(head.member_count);
	chunks = from_le32(head.chunk_count);
	if (members == 0 || members > MEMBERS_MAX)
		return "number of members";
	if ((size_t)(end - at) < members * sizeof(member))
		return "cut short";
	for (uint32_t i = 0; i < members; i++) {
		memcpy(&member, at, sizeof(member));
		at += sizeof(member);
		why = decode_member(t, &member, members, ret_err);
		if (why)
			return why;
	}
	for (uint32_t i = 0; i < chunks; i++) { /* ends with the bytes at the latest */
		why = decode_chunk(t, &at, end, ret_err);
		if (why)
			return why;
	}
	if (from_le32(head.gone_count) > GONE_MAX)
		return "number of members long gone";
	t->gone_count = from_le32(head.gone_count);
	if ((size_t)(end - at) < t->gone_count * sizeof(t->gone[0]))
		return "cut short";
	memcpy(t->gone, at, t->gone_count * sizeof(t->gone[0]));
	at += t->gone_count * sizeof(t->gone[0]);
	for (unsigned i = 0; i < t->member_count; i++)
		for (unsigned k = 0; k < t->gone_count; k++)
			if (uuid_equal(&t->members[i].uuid, &t->gone[k]))
				return "a member that is long gone";
	return at == end ? NULL : "bytes left over";
}

int table_decode(const void *bytes, size_t len, const struct uuid *fs, const char *name,
		 struct table **ret, const char **ret_why)
{
	struct table *t = table_new();
	int err = -EBADMSG;
	const char *why;

	if (!t) {
		*ret_why = "no memory";
		return -ENOMEM;
	}
	t->fs = *fs;
	memcpy(t->name, name, strnlen(name, sizeof(t->name) - 1));
	why = decode(t, bytes, (const uint8_t *)bytes + len, &err);
	if (why) {
		*ret_why = why;
		table_free(t);
		return err;
	}
	*ret = t;
	return 0;
}
