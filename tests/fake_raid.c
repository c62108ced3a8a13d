/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume in memory: see fake_raid.h.
 *
 * Every block has a state and two contents, the current one and the last durable one; contents are
 * shared and counted, so that a commit costs pointers. Staging appends to a list; a commit cuts the
 * list off (seal), lets others run, and then applies it to the durable side. A crash copies the
 * durable side back. Nothing here knows how raid/ does it, only what raid.h promises; where the
 * promise is weak (content of a block whose transaction did not become durable) the fake gives back
 * noise.
 */
#include "fake_raid.h"
#include "raid/buf.h"
#include "raid/co.h"
#include <stdio.h>
#include <stdlib.h>

#define THROTTLE_ROUNDS_MAX 1000
#define PIN_NS		    NS_PER_S
#define CLOSED_MAX	    8

#define MISUSE(r, ...)                                                                             \
	do {                                                                                       \
		fprintf(stderr, "fake_raid: misuse: " __VA_ARGS__);                                \
		fprintf(stderr, " (seed %llu, commit %llu)\n",                                     \
			(unsigned long long)(r)->params.seed, (unsigned long long)(r)->commits);   \
		abort();                                                                           \
	} while (0)
#define ULL(x) ((unsigned long long)(x))

enum state { FREE, ALLOC, LIVE, DYING };

struct content {
	unsigned refs;
	_Alignas(16) uint8_t bytes[BLOCK_BYTES];
};

struct fchunk {
	uint32_t number;
	enum chunk_class class;
	uint32_t blocks;
	uint32_t low; /* no free block before it */
	uint8_t *state;
	uint8_t *committed_live;
	struct content **cur, **committed;
};

struct op {
	enum { OP_LIVE, OP_DEAD, OP_CONTENT } kind;
	uint64_t lba;
	uint32_t count;
	struct content *content;
};

struct dying {
	uint64_t lba;
	uint64_t tick;
	uint64_t txn;
};

struct raid {
	struct loop *loop;
	struct fake_raid_params params;
	struct uuid fs;
	uint64_t commit_by_ns;
	const struct raid_hooks *hooks;
	void *hooks_ctx;
	uint64_t random;
	struct fchunk **chunks;
	unsigned chunk_count;
	uint32_t chunk_next;
	struct op *ops;
	size_t op_count, op_cap;
	struct dying *dying;
	size_t dying_count, dying_cap;
	struct list readers;
	uint64_t tick;
	uint64_t txn;	       /* number of the open transaction */
	uint64_t txn_durable;  /* all up to this one are */
	uint64_t counts[3][4]; /* class, state */
	struct co_mutex commit_lock;
	struct co_cond timer_stop;
	bool hold; /* calls that may yield wait in `held` */
	struct co_cond held;
	bool timer_running, timer_ends;
	bool in_hook, strict, frozen, opened;
	int error;
	uint64_t fail_read, fail_write;
	unsigned short_data, short_meta;
	uint64_t fail_lba;
	int fail_read_error, fail_write_error, fail_lba_error;
	uint64_t commits, reads, writes;
	uint64_t filling;	     /* stripe that the cleaner moves to */
	uint64_t closed[CLOSED_MAX]; /* stripes that are being cleaned: their first block */
	unsigned closed_count;
	unsigned busy; /* calls under way */
};

/* ---- loop ---- */

struct fake_backend {
	uint64_t now_ns, random;
};

static uint64_t mix(uint64_t *s)
{
	*s += 0x9e3779b97f4a7c15ull;
	uint64_t z = *s;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint64_t fake_now(void *ctx)
{
	return ((struct fake_backend *)ctx)->now_ns;
}

static void fake_poll(void *ctx, uint64_t until_ns)
{
	struct fake_backend *b = ctx;
	if (until_ns == LOOP_NEVER) {
		fprintf(stderr, "fake_loop: everything waits and nothing will happen\n");
		abort();
	}
	if (until_ns > b->now_ns)
		b->now_ns = until_ns;
}

static uint64_t fake_random(void *ctx)
{
	return mix(&((struct fake_backend *)ctx)->random);
}

static const struct loop_backend fake_loop_backend = {fake_now, fake_poll, fake_random};
static struct fake_backend the_backend;

struct loop *fake_loop_new(uint64_t seed)
{
	the_backend = (struct fake_backend){.now_ns = NS_PER_S, .random = seed};
	return loop_new(&fake_loop_backend, &the_backend);
}

void fake_loop_free(struct loop *loop)
{
	loop_free(loop);
}

/* ---- blocks ---- */

static void *need(void *p)
{
	if (!p) {
		fprintf(stderr, "fake_raid: no memory\n");
		abort();
	}
	return p;
}

static struct content *content_new(const void *bytes)
{
	struct content *c = need(malloc(sizeof(*c)));
	c->refs = 1;
	memcpy(c->bytes, bytes, BLOCK_BYTES);
	return c;
}

static struct content *content_get(struct content *c)
{
	if (c)
		c->refs++;
	return c;
}

static void content_put(struct content *c)
{
	if (c && --c->refs == 0)
		free(c);
}

static void content_set(struct content **place, struct content *c)
{
	content_get(c);
	content_put(*place);
	*place = c;
}

static uint64_t rnd(struct raid *r)
{
	return mix(&r->random);
}

static void held(struct raid *r)
{
	while (r->hold) {
		r->busy++;
		co_cond_wait(&r->held);
		r->busy--;
	}
}

static void maybe_yield(struct raid *r)
{
	if (r->in_hook)
		MISUSE(r, "a call that yields from within pre_commit");
	if (!co_self())
		MISUSE(r, "a call that yields outside a coroutine");
	held(r);
	if (r->params.yield_one_in && rnd(r) % r->params.yield_one_in == 0) {
		r->busy++;
		co_yield ();
		r->busy--;
	}
}

static struct fchunk *find(struct raid *r, uint64_t lba)
{
	for (unsigned i = 0; i < r->chunk_count; i++) {
		struct fchunk *c = r->chunks[i];
		if (c->number == LBA_CHUNK(lba))
			return LBA_BLOCK(lba) < c->blocks ? c : NULL;
	}
	return NULL;
}

static struct fchunk *must_find(struct raid *r, uint64_t lba, uint32_t count)
{
	struct fchunk *c = find(r, lba);
	if (!c || !count || count > c->blocks - LBA_BLOCK(lba))
		MISUSE(r, "no such blocks: %#llx + %u", ULL(lba), count);
	return c;
}

static void set_state(struct raid *r, struct fchunk *c, uint32_t b, enum state s)
{
	r->counts[c->class][c->state[b]]--;
	c->state[b] = (uint8_t)s;
	r->counts[c->class][s]++;
	if (s == FREE) {
		content_set(&c->cur[b], NULL);
		c->low = MIN(c->low, b);
	}
}

static struct fchunk *chunk_add(struct raid *r, enum chunk_class class)
{
	struct fchunk *c = need(calloc(1, sizeof(*c)));
	c->number = r->chunk_next++;
	c->class = class;
	c->blocks = class == CHUNK_META ? r->params.meta_chunk_blocks : r->params.data_chunk_blocks;
	c->state = need(calloc(c->blocks, 1));
	c->committed_live = need(calloc(c->blocks, 1));
	c->cur = need(calloc(c->blocks, sizeof(*c->cur)));
	c->committed = need(calloc(c->blocks, sizeof(*c->committed)));
	r->chunks = need(realloc(r->chunks, (r->chunk_count + 1) * sizeof(*r->chunks)));
	r->chunks[r->chunk_count++] = c;
	r->counts[class][FREE] += c->blocks;
	return c;
}

static unsigned chunks_of(const struct raid *r, enum chunk_class class)
{
	unsigned n = 0;
	for (unsigned i = 0; i < r->chunk_count; i++)
		n += r->chunks[i]->class == class;
	return n;
}

static uint64_t potential(const struct raid *r, enum chunk_class class)
{
	unsigned max = class == CHUNK_META ? r->params.meta_chunks_max : r->params.data_chunks_max;
	uint32_t each =
	    class == CHUNK_META ? r->params.meta_chunk_blocks : r->params.data_chunk_blocks;
	unsigned have = chunks_of(r, class);
	return max > have ? (uint64_t)(max - have) * each : 0;
}

/* Dead blocks whose transaction is durable and that no reader may still look at become free. */
static void mature(struct raid *r)
{
	uint64_t oldest = UINT64_MAX;
	struct raid_reader *reader;
	list_for_each (reader, &r->readers, node)
		oldest = MIN(oldest, reader->seq);
	size_t kept = 0;
	for (size_t i = 0; i < r->dying_count; i++) {
		struct dying d = r->dying[i];
		if (d.txn > r->txn_durable || d.tick > oldest) {
			r->dying[kept++] = d;
			continue;
		}
		struct fchunk *c = must_find(r, d.lba, 1);
		if (c->state[LBA_BLOCK(d.lba)] != DYING)
			MISUSE(r, "fake is broken: %#llx not dying", ULL(d.lba));
		set_state(r, c, LBA_BLOCK(d.lba), FREE);
	}
	r->dying_count = kept;
}

/* ---- making and ending ---- */

static void apply(struct raid *r, struct op *ops, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct op *op = &ops[i];
		struct fchunk *c = must_find(r, op->lba, op->count);
		uint32_t b = LBA_BLOCK(op->lba);
		switch (op->kind) {
		case OP_LIVE:
			memset(c->committed_live + b, 1, op->count);
			break;
		case OP_DEAD:
			memset(c->committed_live + b, 0, op->count);
			break;
		case OP_CONTENT:
			content_set(&c->committed[b], op->content);
			break;
		}
		content_put(op->content);
	}
	free(ops);
}

struct raid *fake_raid_new(struct loop *loop, const struct fake_raid_params *params)
{
	struct raid *r = need(calloc(1, sizeof(*r)));
	r->loop = loop;
	if (params)
		r->params = *params;
	struct fake_raid_params *p = &r->params;
	p->meta_chunk_blocks = p->meta_chunk_blocks ? p->meta_chunk_blocks : 4096;
	p->meta_chunks_max = p->meta_chunks_max ? p->meta_chunks_max : 16;
	p->meta_reserve_blocks = p->meta_reserve_blocks ? p->meta_reserve_blocks : 64;
	p->data_chunk_blocks = p->data_chunk_blocks ? p->data_chunk_blocks : 16384;
	p->data_chunks_max = p->data_chunks_max ? p->data_chunks_max : 16;
	p->data_reserve_blocks = p->data_reserve_blocks ? p->data_reserve_blocks : 64;
	p->commit_ns_max = p->commit_ns_max ? p->commit_ns_max : 5 * NS_PER_S;
	p->dirty_blocks_max = p->dirty_blocks_max ? p->dirty_blocks_max : 2048;
	r->random = p->seed;
	for (unsigned i = 0; i < sizeof(r->fs.b); i++)
		r->fs.b[i] = (uint8_t)rnd(r);
	list_init(&r->readers);
	co_mutex_init(&r->commit_lock);
	co_cond_init(&r->timer_stop);
	co_cond_init(&r->held);
	r->chunk_next = 1;
	r->txn = 1;
	r->fail_lba = r->filling = LBA_NONE;
	r->strict = true;
	r->opened = true;
	struct fchunk *c = chunk_add(r, CHUNK_META);
	static const uint8_t zeros[BLOCK_BYTES];
	set_state(r, c, 0, LIVE);
	c->cur[0] = content_new(zeros);
	content_set(&c->committed[0], c->cur[0]);
	c->committed_live[0] = 1;
	return r;
}

static void drop_ops(struct raid *r)
{
	for (size_t i = 0; i < r->op_count; i++)
		content_put(r->ops[i].content);
	free(r->ops);
	r->ops = NULL;
	r->op_count = r->op_cap = 0;
}

void fake_raid_free(struct raid *r)
{
	if (!r)
		return;
	drop_ops(r);
	for (unsigned i = 0; i < r->chunk_count; i++) {
		struct fchunk *c = r->chunks[i];
		for (uint32_t b = 0; b < c->blocks; b++) {
			content_put(c->cur[b]);
			content_put(c->committed[b]);
		}
		free(c->state);
		free(c->committed_live);
		free(c->cur);
		free(c->committed);
		free(c);
	}
	free(r->chunks);
	free(r->dying);
	free(r);
}

static void reset(struct raid *r)
{
	r->hooks = NULL;
	r->hooks_ctx = NULL;
	r->error = 0;
	r->frozen = false;
	r->opened = true;
	r->fail_read = r->fail_write = 0;
	r->fail_lba = LBA_NONE;
	r->timer_ends = false;
	r->closed_count = 0;
	r->filling = LBA_NONE;
}

void fake_raid_crash(struct raid *r)
{
	if (r->busy || r->timer_running)
		MISUSE(r, "crash while the volume is in use");
	if (!list_empty(&r->readers))
		MISUSE(r, "crash with readers: end them first");
	drop_ops(r);
	r->dying_count = 0;
	for (unsigned i = 0; i < r->chunk_count; i++) {
		struct fchunk *c = r->chunks[i];
		c->low = 0;
		for (uint32_t b = 0; b < c->blocks; b++) {
			if (!c->committed_live[b])
				content_set(&c->committed[b], NULL);
			content_set(&c->cur[b], c->committed[b]);
			if (c->state[b] != (c->committed_live[b] ? LIVE : FREE))
				set_state(r, c, b, c->committed_live[b] ? LIVE : FREE);
			if (c->committed_live[b])
				content_set(&c->cur[b], c->committed[b]);
		}
	}
	r->txn_durable = r->txn++;
	reset(r);
}

void fake_raid_reopen(struct raid *r)
{
	if (r->opened)
		MISUSE(r, "reopen of an open volume");
	reset(r);
}

void fake_raid_set_error(struct raid *r, int error)
{
	r->error = error;
}
void fake_raid_fail_read(struct raid *r, uint64_t n, int error)
{
	r->fail_read = n;
	r->fail_read_error = error;
}
void fake_raid_fail_reads_of(struct raid *r, uint64_t lba, int error)
{
	r->fail_lba = lba;
	r->fail_lba_error = error;
}
void fake_raid_set_short(struct raid *r, unsigned data, unsigned meta)
{
	r->short_data = data;
	r->short_meta = meta;
}
unsigned fake_raid_short(const struct raid *r)
{
	return r->short_data + r->short_meta;
}
void fake_raid_fail_write(struct raid *r, uint64_t n, int error)
{
	r->fail_write = n;
	r->fail_write_error = error;
}
void fake_raid_set_strict(struct raid *r, bool strict)
{
	r->strict = strict;
}
void fake_raid_set_eagain(struct raid *r, unsigned one_in)
{
	r->params.eagain_one_in = one_in;
}
void fake_raid_set_yield(struct raid *r, unsigned one_in)
{
	r->params.yield_one_in = one_in;
}
void fake_raid_hold(struct raid *r, bool hold)
{
	r->hold = hold;
	if (!hold)
		co_cond_wake_all(&r->held);
}
void fake_raid_freeze(struct raid *r)
{
	r->frozen = true;
}

void *fake_raid_bytes(struct raid *r, uint64_t lba)
{
	struct fchunk *c = find(r, lba);
	if (!c || c->state[LBA_BLOCK(lba)] != LIVE)
		return NULL;
	uint32_t b = LBA_BLOCK(lba);
	/* Shared with an older transaction: a copy of its own. Otherwise earlier pointers stay
	 * good. */
	if (c->cur[b] == c->committed[b] && c->cur[b]->refs == 2)
		return c->cur[b]->bytes;
	struct content *own = content_new(c->cur[b]->bytes);
	content_set(&c->cur[b], own);
	content_set(&c->committed[b], own);
	content_put(own);
	return own->bytes;
}

void fake_raid_force_live(struct raid *r, uint64_t lba, bool live)
{
	struct fchunk *c = must_find(r, lba, 1);
	uint32_t b = LBA_BLOCK(lba);
	static const uint8_t zeros[BLOCK_BYTES];
	set_state(r, c, b, live ? LIVE : FREE);
	c->committed_live[b] = live;
	if (live && !c->cur[b])
		c->cur[b] = content_new(zeros);
	content_set(&c->committed[b], c->cur[b]);
}

uint64_t fake_raid_live_blocks(struct raid *r, enum chunk_class class)
{
	return r->counts[class][LIVE];
}
uint64_t fake_raid_allocated_blocks(struct raid *r, enum chunk_class class)
{
	return r->counts[class][ALLOC];
}
uint64_t fake_raid_commits(const struct raid *r)
{
	return r->commits;
}
uint64_t fake_raid_reads(const struct raid *r)
{
	return r->reads;
}
uint64_t fake_raid_writes(const struct raid *r)
{
	return r->writes;
}

void raid_set_hooks(struct raid *r, const struct raid_hooks *hooks, void *ctx)
{
	r->hooks = hooks;
	r->hooks_ctx = ctx;
}

void fake_raid_report_lost(struct raid *r, uint64_t lba, uint32_t count)
{
	if (r->hooks && r->hooks->lost_block)
		r->hooks->lost_block(r->hooks_ctx, lba, count);
}

static void timer_co(void *arg)
{
	struct raid *r = arg;
	while (!r->timer_ends) {
		uint64_t until = loop_now_ns(r->loop) + r->params.commit_ns_max;
		if (co_cond_wait_until(&r->timer_stop, until) == -ETIMEDOUT && !r->timer_ends)
			(void)raid_commit(r); /* its error stays in raid_error */
	}
	r->timer_running = false;
	co_cond_wake_all(&r->timer_stop);
}

int raid_start(struct raid *r)
{
	if (r->timer_running)
		MISUSE(r, "started twice");
	r->timer_ends = false;
	int e = co_spawn(r->loop, timer_co, r);
	if (e == 0)
		r->timer_running = true;
	return e;
}

static void timer_stop(struct raid *r)
{
	r->timer_ends = true;
	while (r->timer_running) {
		co_cond_wake_all(&r->timer_stop);
		co_yield ();
	}
}

int raid_close(struct raid *r)
{
	timer_stop(r);
	int e = raid_commit(r);
	r->opened = false;
	r->hooks = NULL;
	return e;
}

void raid_abandon(struct raid *r)
{
	r->frozen = true;
	r->error = r->error ? r->error : -ENODEV;
	timer_stop(r);
	r->opened = false;
	r->hooks = NULL;
}

/* ---- space ---- */

static uint32_t stripe_used(const struct raid *r, const struct fchunk *c, uint32_t first)
{
	uint32_t n = 0;
	for (uint32_t b = first; b < MIN(first + r->params.stripe_blocks, c->blocks); b++)
		n += c->state[b] != FREE;
	return n;
}

static bool is_closed(const struct raid *r, const struct fchunk *c, uint32_t b)
{
	for (unsigned i = 0; i < r->closed_count; i++)
		if (LBA_MAKE(c->number, b - b % r->params.stripe_blocks) == r->closed[i])
			return true;
	return false;
}

static bool may_give(const struct raid *r, const struct fchunk *c, uint32_t b, bool clean)
{
	if (c->state[b] != FREE || (r->closed_count && is_closed(r, c, b)))
		return false;
	uint32_t first = clean ? b - b % r->params.stripe_blocks : 0;
	return !clean || LBA_MAKE(c->number, first) == r->filling || !stripe_used(r, c, first);
}

/* Ascending. `clean`: only stripes of which nothing was used before, and the one that was begun last. */
static unsigned give(struct raid *r, uint32_t want, bool clean, struct raid_run *runs, unsigned runs_max)
{
	uint32_t max = r->params.run_blocks_max ? r->params.run_blocks_max : UINT32_MAX;
	uint32_t stripe = clean ? r->params.stripe_blocks : UINT32_MAX;
	unsigned n = 0;
	for (unsigned i = 0; i < r->chunk_count && want; i++) {
		struct fchunk *c = r->chunks[i];
		if (c->class != CHUNK_DATA)
			continue;
		uint32_t b = c->low;
		while (want && n < runs_max) {
			while (b < c->blocks && !may_give(r, c, b, clean))
				b++;
			if (b == c->blocks)
				break;
			if (clean)
				r->filling = LBA_MAKE(c->number, b - b % stripe);
			uint32_t len = 0, end = MIN(c->blocks, clean ? b - b % stripe + stripe : UINT32_MAX);
			while (b + len < end && len < want && len < max && c->state[b + len] == FREE &&
			       !(r->closed_count && is_closed(r, c, b + len)))
				set_state(r, c, b + len++, ALLOC);
			runs[n++] = (struct raid_run){LBA_MAKE(c->number, b), len};
			want -= len;
			b += len;
		}
		while (c->low < c->blocks && c->state[c->low] != FREE)
			c->low++;
	}
	return n;
}

int raid_alloc_data(struct raid *r, uint32_t want, unsigned flags, struct raid_run *runs,
		    unsigned runs_max, unsigned *ret_count)
{
	if (!want || !runs_max)
		MISUSE(r, "raid_alloc_data of nothing");
	maybe_yield(r);
	if (r->error)
		return r->error;
	mature(r);
	if (r->short_data) {
		r->short_data--;
		return -ENOSPC;
	}
	bool cleaner = flags & RAID_ALLOC_CLEANER;
	uint64_t keep = flags & RAID_ALLOC_RESERVE ? 0 : r->params.data_reserve_blocks;
	while (!cleaner && r->counts[CHUNK_DATA][FREE] < want && potential(r, CHUNK_DATA)) {
		chunk_add(r, CHUNK_DATA);
		maybe_yield(r);
	}
	uint64_t spare = r->counts[CHUNK_DATA][FREE] + potential(r, CHUNK_DATA);
	uint64_t can = MIN(r->counts[CHUNK_DATA][FREE], spare > keep ? spare - keep : 0);
	want = (uint32_t)MIN(want, can);
	if (!want)
		return -ENOSPC;
	unsigned n = give(r, want, cleaner, runs, runs_max);
	if (!n && cleaner)
		n = give(r, want, false, runs, runs_max);
	if (!n && cleaner)
		return -ENOSPC;
	if (!n) {
		r->closed_count = 0;
		n = give(r, want, false, runs, runs_max);
	}
	if (!n)
		MISUSE(r, "fake is broken: no run though there is space");
	*ret_count = n;
	return 0;
}

uint32_t raid_meta_ready(const struct raid *r, unsigned flags)
{
	uint64_t n = r->counts[CHUNK_META][FREE];
	uint64_t keep = flags & RAID_ALLOC_RESERVE ? 0 : r->params.meta_reserve_blocks;
	uint64_t spare = n + potential(r, CHUNK_META);
	return (uint32_t)MIN(n, spare > keep ? spare - keep : 0);
}

int raid_meta_ensure(struct raid *r, uint32_t want, unsigned flags)
{
	maybe_yield(r);
	if (r->error)
		return r->error;
	mature(r);
	if (r->short_meta) {
		r->short_meta--;
		return -ENOSPC;
	}
	for (int round = 0; round < 2; round++) {
		while (raid_meta_ready(r, flags) < want && potential(r, CHUNK_META)) {
			chunk_add(r, CHUNK_META);
			maybe_yield(r);
		}
		if (raid_meta_ready(r, flags) >= want)
			return 0;
		if (round == 0 && r->dying_count) {
			int e = raid_commit(r);
			if (e)
				return e;
		}
	}
	return -ENOSPC;
}

uint64_t raid_alloc_meta(struct raid *r, unsigned flags)
{
	if (!raid_meta_ready(r, flags))
		return LBA_NONE;
	for (unsigned i = 0; i < r->chunk_count; i++) {
		struct fchunk *c = r->chunks[i];
		if (c->class != CHUNK_META)
			continue;
		while (c->low < c->blocks && c->state[c->low] != FREE)
			c->low++;
		if (c->low == c->blocks)
			continue;
		uint32_t b = c->low;
		set_state(r, c, b, ALLOC);
		return LBA_MAKE(c->number, b);
	}
	MISUSE(r, "fake is broken: no metadata block though one is ready");
}

void raid_unalloc(struct raid *r, uint64_t lba, uint32_t count)
{
	struct fchunk *c = must_find(r, lba, count);
	for (uint32_t b = LBA_BLOCK(lba); count--; b++) {
		if (c->state[b] != ALLOC)
			MISUSE(r, "unalloc of %#llx, state %d", ULL(LBA_MAKE(c->number, b)),
			       c->state[b]);
		set_state(r, c, b, FREE);
	}
}

void raid_space(const struct raid *r, struct raid_space *ret)
{
	uint64_t keep = r->params.data_reserve_blocks;
	uint64_t spare = r->counts[CHUNK_DATA][FREE] + potential(r, CHUNK_DATA);
	*ret = (struct raid_space){
	    .data_total = (uint64_t)r->params.data_chunks_max * r->params.data_chunk_blocks,
	    .data_free = spare > keep ? spare - keep : 0,
	    .data_reserve = keep,
	    .data_clean = spare,
	    .meta_total = (uint64_t)chunks_of(r, CHUNK_META) * r->params.meta_chunk_blocks,
	    .meta_free = r->counts[CHUNK_META][FREE],
	    .meta_potential = potential(r, CHUNK_META),
	};
}

/* ---- cleaning ---- */

uint64_t fake_raid_clean_blocks(struct raid *r)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < r->chunk_count; i++) {
		const struct fchunk *c = r->chunks[i];
		for (uint32_t b = 0; c->class == CHUNK_DATA && b < c->blocks; b += r->params.stripe_blocks)
			n += stripe_used(r, c, b) ? 0 : r->params.stripe_blocks;
	}
	return n;
}

unsigned raid_clean_need(const struct raid *r)
{
	if (!r->params.stripe_blocks || r->error)
		return 0;
	return fake_raid_clean_blocks((struct raid *)r) + potential(r, CHUNK_DATA) < r->params.clean_mark ? 51 : 0;
}

uint64_t raid_clean_wait_ns(struct raid *r, unsigned need)
{
	if (!need)
		MISUSE(r, "waits for a turn without need");
	return rnd(r) % 4 ? 0 : rnd(r) % NS_PER_MS;
}

unsigned raid_clean_pick(struct raid *r, unsigned need, uint32_t blocks_max, struct raid_run *runs, unsigned max)
{
	uint32_t stripe = r->params.stripe_blocks, best = stripe * 3 / 4 + 1;
	if (r->closed_count == CLOSED_MAX || !max || !blocks_max)
		return 0;
	for (unsigned i = 0; i < r->chunk_count; i++) {
		const struct fchunk *c = r->chunks[i];
		for (uint32_t b = 0; c->class == CHUNK_DATA && b < c->blocks; b += stripe) {
			uint32_t used = stripe_used(r, c, b);
			if (!used || used >= best || is_closed(r, c, b) || LBA_MAKE(c->number, b) == r->filling)
				continue;
			best = used;
			runs[0] = (struct raid_run){LBA_MAKE(c->number, b), MIN(stripe, c->blocks - b)};
		}
	}
	if (best > stripe * 3 / 4)
		return 0;
	r->closed[r->closed_count++] = runs[0].lba;
	return 1;
}

bool raid_clean_full(const struct raid *r)
{
	return r->closed_count > CLOSED_MAX / 2;
}

int raid_clean_done(struct raid *r, bool failed)
{
	int e = r->closed_count ? raid_commit(r) : 0;
	mature(r);
	r->closed_count = 0;
	return e;
}

void raid_clean_rest(struct raid *r)
{
	if (r->closed_count)
		MISUSE(r, "rests with stripes that are closed");
}

int raid_copy(struct raid *r, struct raid_move *moves, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		void *data = buf_get_wait(BLOCK_BYTES);
		struct raid_block b = {moves[i].to, data};
		int e = raid_read(r, moves[i].from, 1, data);
		if (e == 0)
			e = raid_write(r, &b, 1, 0);
		buf_put(data);
		if (e)
			return e;
	}
	return 0;
}

/* ---- transactions ---- */

static void add_op(struct raid *r, struct op op)
{
	if (r->op_count == r->op_cap) {
		r->op_cap = r->op_cap ? r->op_cap * 2 : 64;
		r->ops = need(realloc(r->ops, r->op_cap * sizeof(*r->ops)));
	}
	r->ops[r->op_count++] = op;
}

int raid_stage_image(struct raid *r, uint64_t lba, const void *block)
{
	struct fchunk *c = must_find(r, lba, 1);
	uint32_t b = LBA_BLOCK(lba);
	if (c->class != CHUNK_META)
		MISUSE(r, "image of a data block %#llx", ULL(lba));
	if (c->state[b] != ALLOC && c->state[b] != LIVE)
		MISUSE(r, "image of %#llx, state %d", ULL(lba), c->state[b]);
	struct content *content = content_new(block);
	content_set(&c->cur[b], content);
	add_op(r, (struct op){OP_CONTENT, lba, 1, content});
	return 0;
}

void raid_stage_live(struct raid *r, uint64_t lba, uint32_t count)
{
	struct fchunk *c = must_find(r, lba, count);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t b = LBA_BLOCK(lba) + i;
		if (c->state[b] != ALLOC)
			MISUSE(r, "live %#llx, state %d", ULL(lba + i), c->state[b]);
		if (c->class == CHUNK_DATA && !c->cur[b])
			MISUSE(r, "live %#llx, which was never written", ULL(lba + i));
		set_state(r, c, b, LIVE);
	}
	add_op(r, (struct op){OP_LIVE, lba, count, NULL});
}

void raid_stage_dead(struct raid *r, uint64_t lba, uint32_t count)
{
	struct fchunk *c = must_find(r, lba, count);
	r->tick++;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t b = LBA_BLOCK(lba) + i;
		if (c->state[b] != LIVE)
			MISUSE(r, "dead %#llx, state %d", ULL(lba + i), c->state[b]);
		set_state(r, c, b, DYING);
		if (r->dying_count == r->dying_cap) {
			r->dying_cap = r->dying_cap ? r->dying_cap * 2 : 64;
			r->dying = need(realloc(r->dying, r->dying_cap * sizeof(*r->dying)));
		}
		r->dying[r->dying_count++] = (struct dying){lba + i, r->tick, r->txn};
	}
	add_op(r, (struct op){OP_DEAD, lba, count, NULL});
}

/* What the transaction makes live must have content by now. */
static void check_sealed(struct raid *r)
{
	for (size_t i = 0; i < r->op_count; i++) {
		struct op *op = &r->ops[i];
		if (op->kind != OP_LIVE)
			continue;
		struct fchunk *c = must_find(r, op->lba, op->count);
		for (uint32_t b = LBA_BLOCK(op->lba); b < LBA_BLOCK(op->lba) + op->count; b++)
			if (c->state[b] == LIVE && !c->cur[b])
				MISUSE(r, "commit of %#llx without content",
				       ULL(LBA_MAKE(c->number, b)));
	}
}

void raid_commit_by(struct raid *r, uint64_t ns)
{
	/* Its own timer is as early or late as a test wants it: this is only remembered. */
	r->commit_by_ns = MIN(r->commit_by_ns, ns);
}

uint64_t fake_raid_commit_by_ns(const struct raid *r)
{
	return r->commit_by_ns;
}

int raid_commit(struct raid *r)
{
	if (r->in_hook)
		MISUSE(r, "commit from within pre_commit");
	r->busy++;
	co_mutex_lock(&r->commit_lock);
	maybe_yield(r);
	int e = r->error;
	if (e)
		goto out;
	if (r->hooks && r->hooks->pre_commit) {
		r->in_hook = true;
		r->hooks->pre_commit(r->hooks_ctx);
		r->in_hook = false;
	}
	check_sealed(r);
	struct op *ops = r->ops;
	size_t count = r->op_count;
	r->ops = NULL;
	r->op_count = r->op_cap = 0;
	uint64_t txn = r->txn++;
	for (int i = 0; i < 3; i++)
		maybe_yield(r);
	if (r->frozen || r->error) {
		for (size_t i = 0; i < count; i++)
			content_put(ops[i].content);
		free(ops);
		r->error = r->error ? r->error : -EIO;
		e = r->error;
		goto out;
	}
	apply(r, ops, count);
	r->txn_durable = txn;
	r->commits++;
	r->commit_by_ns = UINT64_MAX;
	mature(r);
	maybe_yield(r);
out:
	co_mutex_unlock(&r->commit_lock);
	r->busy--;
	return e;
}

int raid_throttle(struct raid *r)
{
	maybe_yield(r);
	for (int i = 0; i < THROTTLE_ROUNDS_MAX && !r->error; i++) {
		if (!r->hooks || !r->hooks->dirty_blocks ||
		    r->hooks->dirty_blocks(r->hooks_ctx) < r->params.dirty_blocks_max)
			break;
		int e = raid_commit(r);
		if (e)
			return e;
	}
	return r->error;
}

int raid_error(const struct raid *r)
{
	return r->error;
}

/* ---- data ---- */

int raid_write(struct raid *r, const struct raid_block *blocks, unsigned count, unsigned flags)
{
	if (!count)
		MISUSE(r, "raid_write of nothing");
	struct content **stable = need(calloc(count, sizeof(*stable)));
	for (unsigned i = 0; i < count; i++) {
		struct fchunk *c = must_find(r, blocks[i].lba, 1);
		enum state s = c->state[LBA_BLOCK(blocks[i].lba)];
		if (c->class != CHUNK_DATA)
			MISUSE(r, "raid_write of metadata block %#llx", ULL(blocks[i].lba));
		if (s != ALLOC && s != LIVE)
			MISUSE(r, "raid_write of %#llx, state %d", ULL(blocks[i].lba), s);
		if ((uintptr_t)blocks[i].data % BLOCK_BYTES)
			MISUSE(r, "raid_write from unaligned memory");
		stable[i] = content_new(blocks[i].data);
	}
	maybe_yield(r);
	maybe_yield(r);
	int e = r->error;
	if (!e && r->fail_write && --r->fail_write == 0)
		e = r->fail_write_error;
	for (unsigned i = 0; i < count; i++) {
		struct fchunk *c = must_find(r, blocks[i].lba, 1);
		uint32_t b = LBA_BLOCK(blocks[i].lba);
		if (memcmp(stable[i]->bytes, blocks[i].data, BLOCK_BYTES) != 0)
			MISUSE(r, "data of %#llx changed during the write", ULL(blocks[i].lba));
		if (c->state[b] != ALLOC && c->state[b] != LIVE)
			MISUSE(r, "%#llx was freed during the write", ULL(blocks[i].lba));
		if (e) {
			content_put(stable[i]);
			continue;
		}
		content_set(&c->cur[b], stable[i]);
		add_op(r, (struct op){OP_CONTENT, blocks[i].lba, 1, stable[i]});
		r->writes++;
	}
	free(stable);
	return e;
}

struct pin {
	struct loop_timer timer;
	void *data;
};

static void unpin(struct loop_timer *timer)
{
	struct pin *p = container_of(timer, struct pin, timer);
	memset(p->data, 0xee, BLOCK_BYTES);
	buf_unpin(p->data);
	free(p);
}

static int read_run(struct raid *r, uint64_t lba, uint32_t count, void *data)
{
	if ((uintptr_t)data % BLOCK_BYTES)
		MISUSE(r, "raid_read into unaligned memory");
	r->reads++;
	for (int half = 0; half < 2; half++) {
		if (half)
			maybe_yield(r);
		struct fchunk *c = find(r, lba);
		if (!c || !count || count > c->blocks - LBA_BLOCK(lba)) {
			if (r->strict)
				MISUSE(r, "read of %#llx + %u, which do not exist", ULL(lba),
				       count);
			return -EBADMSG;
		}
		for (uint32_t i = 0; i < count; i++) {
			uint32_t b = LBA_BLOCK(lba) + i;
			if (c->state[b] == FREE || !c->cur[b]) {
				if (r->strict)
					MISUSE(r, "read of %#llx, which is %s", ULL(lba + i),
					       c->state[b] == FREE ? "free" : "not written");
				return -EBADMSG;
			}
			memcpy((char *)data + (size_t)i * BLOCK_BYTES, c->cur[b]->bytes,
			       BLOCK_BYTES);
		}
	}
	if (r->fail_read && --r->fail_read == 0)
		return r->fail_read_error;
	if (r->fail_lba - lba < count)
		return r->fail_lba_error;
	if (r->params.eagain_one_in && rnd(r) % r->params.eagain_one_in == 0) {
		struct pin *p = need(calloc(1, sizeof(*p)));
		p->data = data;
		buf_pin(data);
		loop_timer_init(&p->timer, unpin);
		if (loop_timer_arm(r->loop, &p->timer, loop_now_ns(r->loop) + PIN_NS) != 0)
			need(NULL);
		memset(data, 0xdd, (size_t)count * BLOCK_BYTES);
		return -EAGAIN;
	}
	return 0;
}

int raid_read(struct raid *r, uint64_t lba, uint32_t count, void *data)
{
	maybe_yield(r);
	return read_run(r, lba, count, data);
}

int raid_readv(struct raid *r, const struct raid_read_run *runs, unsigned count)
{
	int first = 0;
	maybe_yield(r);
	for (unsigned i = 0; i < count; i++) {
		int e = read_run(r, runs[i].lba, runs[i].count, runs[i].data);
		first = first ? first : e;
	}
	return first;
}

void raid_read_begin(struct raid *r, struct raid_reader *reader)
{
	reader->seq = r->tick;
	list_add_tail(&r->readers, &reader->node);
}

void raid_read_end(struct raid *r, struct raid_reader *reader)
{
	list_del(&reader->node);
	mature(r);
}

int raid_for_each_live(struct raid *r, enum chunk_class class,
		       int (*fn)(void *arg, uint64_t lba, uint32_t count), void *arg)
{
	for (unsigned i = 0; i < r->chunk_count; i++) {
		struct fchunk *c = r->chunks[i];
		if (c->class != class)
			continue;
		for (uint32_t b = 0; b < c->blocks;) {
			uint32_t len = 0;
			while (b + len < c->blocks && c->state[b + len] == LIVE)
				len++;
			if (!len) {
				b++;
				continue;
			}
			maybe_yield(r);
			int e = fn(arg, LBA_MAKE(c->number, b), len);
			if (e)
				return e;
			b += len;
		}
	}
	return 0;
}

/* ---- health ---- */

void raid_info(const struct raid *r, struct raid_info *ret)
{
	*ret = (struct raid_info){.fs = r->fs,
				  .error = r->error,
				  .commit_ns_max = 5 * NS_PER_S, /* whatever its own timer does */
				  .level = 1,
				  .tolerance = 1,
				  .chunk_count = r->chunk_count,
				  .member_count = 2};
}
