/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume without a filesystem: random transactions straight on raid.h, and a model of what must
 * be there after each crash.
 *
 * The model is exact because transactions are. Everything that changes gets a *tick*, in the order
 * it was staged. The block at LBA_ROOT belongs to the model: right before a transaction is sealed
 * (pre_commit) the current tick is staged into it. So after a crash the root says which tick K the
 * volume came back to, and then
 *
 *   - K is not before the last tick that a raid_commit promised (the floor);
 *   - exactly the blocks that were live at K are live;
 *   - a live block has the content of the last write that had returned by K; if a write in place
 * was called by K and returned later, it may have that one too. Nothing called after K may show:
 * W1.
 *
 * A block's content says what it is: address and version in front, the rest follows from both.
 * Versions are numbered over the whole run, so an old one that comes back is seen for what it is.
 *
 * Workers own disjoint blocks, so what a worker knows of its blocks is so. They read each other's,
 * between raid_read_begin and raid_read_end, and then accept any version from the one that stood at
 * the beginning on.
 */
#include "raidrun.h"
#include "raid/buf.h"
#include "round.h"
#include <stdio.h>
#include <stdlib.h>

#define WORKERS_MAX    4
#define RUNS_MAX       8
#define PUT_BLOCKS_MAX 96
#define ROOT_MAGIC     0x746f6f726d697374ull
#define BUCKETS	       4096
#define PREFILL_BLOCKS_MAX 40000

enum event_kind { EVENT_LIVE, EVENT_DEAD, EVENT_WRITE };
struct event {
	enum event_kind kind;
	uint64_t tick, ret; /* ret of a write: 0 while it has not returned */
	uint64_t version;
};

struct block {
	struct block *hash_next;
	uint64_t lba;
	bool meta;
	unsigned owner;
	size_t owned_index;	 /* in its owner's list; live blocks only */
	bool live;		 /* now */
	bool busy;		 /* being written by its owner */
	uint64_t version;	 /* that was written last and returned */
	uint64_t version_issued; /* newest given to raid_write */
	bool base_live;		 /* at the floor */
	uint64_t base_version;
	struct event *events; /* since the floor, in order */
	unsigned event_count, event_cap;
	bool touched;
};

struct worker {
	struct run *run;
	struct rng rng;
	unsigned number;
	struct block **owned; /* live */
	size_t owned_count, owned_cap;
	unsigned ops_left;
};

struct run {
	struct rig rig;
	struct block *buckets[BUCKETS];
	struct block **all; /* in order of their first use: what is iterated */
	size_t all_count, all_cap;
	struct block **touched; /* those with events */
	size_t touched_count, touched_cap;
	uint64_t tick, floor, tick_staged, version;
	struct worker workers[WORKERS_MAX];
	unsigned worker_count, ops;
	unsigned fill_percent; /* how full the volume is kept */
	bool stop;
	bool kept; /* nothing is a promise any more: all versions since are legal */
	bool open; /* hooks may be called */
};

/* ---- content ---- */

static uint64_t scramble(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	return x;
}

static void content_fill(void *data, uint64_t lba, uint64_t version)
{
	uint64_t *w = data, x = scramble(lba + 1) ^ scramble(version * 3 + 1);

	w[0] = lba;
	w[1] = version;
	for (unsigned i = 2; i < BLOCK_BYTES / 8; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		w[i] = x;
	}
}

/* The version that the block holds; the seed fails if it is not whole or another's. */
static uint64_t content_version(struct run *run, const void *data, uint64_t lba)
{
	static uint64_t want[BLOCK_BYTES / 8];
	const uint64_t *w = data;

	content_fill(want, lba, w[1]);
	if (memcmp(want, data, BLOCK_BYTES)) {
		unsigned at = 0;

		while (((const uint8_t *)want)[at] == ((const uint8_t *)data)[at])
			at++;
		rig_fail(&run->rig,
			 "block %llx: wrong bytes from %u on (says it is %llx version %llu)",
			 (unsigned long long)lba, at, (unsigned long long)w[0],
			 (unsigned long long)w[1]);
	}
	return w[1];
}

/* ---- the model ---- */

static void *grow(void *p, size_t *cap, size_t count, size_t item)
{
	if (count < *cap)
		return p;
	*cap = MAX(16, 2 * *cap);
	p = realloc(p, *cap * item);
	if (!p)
		abort();
	return p;
}

static struct block *block_find(struct run *run, uint64_t lba)
{
	struct block *b = run->buckets[scramble(lba) % BUCKETS];

	while (b && b->lba != lba)
		b = b->hash_next;
	return b;
}

static struct block *block_get(struct run *run, uint64_t lba, bool meta, unsigned owner)
{
	struct block *b = block_find(run, lba), **bucket = &run->buckets[scramble(lba) % BUCKETS];

	if (!b) {
		b = calloc(1, sizeof(*b));
		if (!b)
			abort();
		b->lba = lba;
		b->hash_next = *bucket;
		*bucket = b;
		run->all = grow(run->all, &run->all_cap, run->all_count, sizeof(*run->all));
		run->all[run->all_count++] = b;
	}
	b->meta = meta;
	b->owner = owner;
	return b;
}

/* Events are addressed by index: the array moves. */
static unsigned block_event(struct run *run, struct block *b, enum event_kind kind, uint64_t tick,
			    uint64_t version, uint64_t ret)
{
	size_t cap = b->event_cap;

	if (!b->touched) {
		b->touched = true;
		run->touched = grow(run->touched, &run->touched_cap, run->touched_count,
				    sizeof(*run->touched));
		run->touched[run->touched_count++] = b;
	}
	b->events = grow(b->events, &cap, b->event_count, sizeof(*b->events));
	b->event_cap = (unsigned)cap;
	b->events[b->event_count] =
	    (struct event){.kind = kind, .tick = tick, .version = version, .ret = ret};
	return b->event_count++;
}

static void owned_add(struct worker *w, struct block *b)
{
	w->owned = grow(w->owned, &w->owned_cap, w->owned_count, sizeof(*w->owned));
	b->owned_index = w->owned_count;
	w->owned[w->owned_count++] = b;
}

static void owned_remove(struct worker *w, struct block *b)
{
	struct block *last = w->owned[--w->owned_count];

	w->owned[b->owned_index] = last;
	last->owned_index = b->owned_index;
}

static void block_set_live(struct worker *w, struct block *b, uint64_t tick)
{
	rig_must(&w->run->rig, !b->live, "block %llx was given out while live",
		 (unsigned long long)b->lba);
	block_event(w->run, b, EVENT_LIVE, tick, 0, 0);
	b->live = true;
	owned_add(w, b);
}

static void block_set_dead(struct worker *w, struct block *b, uint64_t tick)
{
	assert(b->live && b->owner == w->number);
	block_event(w->run, b, EVENT_DEAD, tick, 0, 0);
	b->live = false;
	owned_remove(w, b);
}

/* A commit has promised everything up to `tick`: what is that old is no longer in question. */
static void floor_raise(struct run *run, uint64_t tick)
{
	size_t kept = 0;

	if (tick <= run->floor || run->kept)
		return;
	run->floor = tick;
	for (size_t i = 0; i < run->touched_count; i++) {
		struct block *b = run->touched[i];
		unsigned n = 0;

		while (n < b->event_count) {
			struct event *e = &b->events[n];

			if (e->kind == EVENT_WRITE) {
				if (!e->ret || e->ret > tick)
					break;
				b->base_version = e->version;
			} else {
				if (e->tick > tick)
					break;
				b->base_live = e->kind == EVENT_LIVE;
			}
			n++;
		}
		memmove(b->events, b->events + n, (b->event_count - n) * sizeof(*b->events));
		b->event_count -= n;
		if (b->event_count)
			run->touched[kept++] = b;
		else
			b->touched = false;
	}
	run->touched_count = kept;
}

static bool block_live_at(const struct block *b, uint64_t k)
{
	bool live = b->base_live;

	for (unsigned i = 0; i < b->event_count; i++) {
		const struct event *e = &b->events[i];

		if (e->kind != EVENT_WRITE && e->tick <= k)
			live = e->kind == EVENT_LIVE;
	}
	return live;
}

static bool block_version_legal(const struct block *b, uint64_t k, uint64_t version)
{
	bool legal = version == b->base_version;

	for (unsigned i = 0; i < b->event_count; i++) {
		const struct event *e = &b->events[i];

		if (e->kind != EVENT_WRITE || e->tick > k)
			continue;
		if (e->ret && e->ret <= k)
			legal = version == e->version;
		else
			legal |= version == e->version;
	}
	return legal;
}

/* ---- operations of a worker; each returns 0, or an error that the crash explains ---- */

static int op_error(struct worker *w, int err, const char *what)
{
	struct run *run = w->run;

	if (err && !rig_excused(&run->rig))
		rig_fail(&run->rig, "%s: %s", what, strerror(-err));
	rig_must(&run->rig, !err || world_crashed(run->rig.world) || !run->rig.honest || rig_beyond_error(&run->rig, err),
		 "beyond what is tolerated %s says %s", what, strerror(-err));
	return err;
}

static uint32_t size_draw(struct rng *r, uint32_t max)
{
	uint32_t top = 1u << rng_below(r, 8);

	return (uint32_t)rng_range(r, 1, MIN(top, max));
}

static int op_commit(struct worker *w)
{
	uint64_t tick = w->run->tick;
	int err = op_error(w, raid_commit(w->run->rig.raid), "raid_commit");

	world_tell(w->run->rig.world, "w%u.%u committed tick %llu: %d", w->number,
		   w->run->rig.turns[SKIP_WORKER + w->number] - 1, (unsigned long long)tick, err);

	if (!err)
		floor_raise(w->run, tick);
	return err;
}

static void pick_order(struct rng *r, struct block **list, unsigned count)
{
	for (unsigned i = count; i > 1; i--) {
		unsigned j = (unsigned)rng_below(r, i);
		struct block *b = list[i - 1];

		list[i - 1] = list[j];
		list[j] = b;
	}
}

/* Up to max different live blocks of this worker, of one kind. */
static unsigned pick_own(struct worker *w, bool meta, struct block **ret, unsigned max)
{
	unsigned count = 0;
	size_t at;

	if (!w->owned_count)
		return 0;
	at = rng_below(&w->rng, w->owned_count);
	/* Neighbours in the list were mostly written together, which is how files die. */
	for (size_t i = 0; i < w->owned_count && count < max && i < 4 * (size_t)max; i++) {
		struct block *b = w->owned[(at + i) % w->owned_count];

		if (b->meta == meta)
			ret[count++] = b;
	}
	if (rng_chance(&w->rng, 1, 2))
		pick_order(&w->rng, ret, count);
	return count;
}

static void say_blocks(struct worker *w, const char *what, struct block **list, unsigned count)
{
	char text[200];
	int n = 0;

	if (!world_tells(w->run->rig.world))
		return;
	text[0] = 0;
	for (unsigned i = 0; i < count && n < (int)sizeof(text) - 40; i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %llx(%llu)",
			      (unsigned long long)list[i]->lba,
			      (unsigned long long)list[i]->version_issued);
	world_tell(w->run->rig.world, "w%u.%u %s, tick %llu, %u blocks:%s", w->number,
		   w->run->rig.turns[SKIP_WORKER + w->number] - 1, what, (unsigned long long)w->run->tick, count, text);
}

/* Stages the death of some blocks; part of a group that must not yield. */
static void kill_blocks(struct worker *w, struct block **list, unsigned count, uint64_t tick)
{
	say_blocks(w, "kill", list, count);
	for (unsigned i = 0; i < count; i++) {
		raid_stage_dead(w->run->rig.raid, list[i]->lba, 1);
		block_set_dead(w, list[i], tick);
	}
}

static int op_kill(struct worker *w, unsigned max)
{
	struct block *list[PUT_BLOCKS_MAX];
	bool meta = rng_chance(&w->rng, 1, 8);
	int err = op_error(w, raid_throttle(w->run->rig.raid), "raid_throttle");
	unsigned count;

	if (err)
		return err;
	count = pick_own(w, meta, list, MIN(max, PUT_BLOCKS_MAX));
	if (count)
		kill_blocks(w, list, count, ++w->run->tick);
	return 0;
}

/* Some pieces of one list of blocks, as a filesystem's writeback might cut it. */
static int write_pieces(struct worker *w, struct block **list, struct raid_block *blocks,
			unsigned count, unsigned flags)
{
	struct run *run = w->run;
	unsigned pieces = rng_chance(&w->rng, 1, 4) ? 3 : 1, per = DIV_ROUND_UP(count, pieces);
	int err = 0;

	for (unsigned at = 0; at < count && !err; at += per) {
		unsigned n = MIN(per, count - at), index[PUT_BLOCKS_MAX];
		uint64_t tick = ++run->tick;

		for (unsigned i = 0; i < n; i++) {
			struct block *b = list[at + i];

			b->version_issued = ++run->version;
			content_fill(blocks[at + i].data, b->lba, b->version_issued);
			index[i] = block_event(run, b, EVENT_WRITE, tick, b->version_issued, 0);
			b->busy = true;
		}
		say_blocks(w, flags ? "write to journal" : "write", list + at, n);
		err = op_error(w, raid_write(run->rig.raid, blocks + at, n, flags), "raid_write");
		tick = ++run->tick;
		world_say(run->rig.world, "w%u wrote: %d", w->number, err);
		for (unsigned i = 0; i < n; i++) {
			struct block *b = list[at + i];

			b->busy = false;
			if (err)
				continue;
			b->version = b->version_issued;
			/* A floor raised meanwhile has dropped what came before it. */
			for (unsigned j = MIN(index[i] + 1, b->event_count); j-- > 0;) {
				if (b->events[j].version != b->version)
					continue;
				b->events[j].ret = tick;
				break;
			}
		}
	}
	return err;
}

static void give_back(struct run *run, const struct raid_run *runs, unsigned run_count)
{
	for (unsigned i = 0; i < run_count; i++)
		raid_unalloc(run->rig.raid, runs[i].lba, runs[i].count);
}

static bool too_full(struct worker *w)
{
	struct raid_space space;

	raid_space(w->run->rig.raid, &space);
	return space.data_free * 100 < space.data_total * (100 - w->run->fill_percent);
}

/* New blocks, some old ones die with it: what redirect-on-write does. */
static int op_put(struct worker *w)
{
	struct run *run = w->run;
	struct raid *r = run->rig.raid;
	struct raid_run runs[RUNS_MAX];
	struct raid_block blocks[PUT_BLOCKS_MAX];
	struct block *list[PUT_BLOCKS_MAX], *victims[PUT_BLOCKS_MAX];
	unsigned run_count = 0, count = 0, victim_count = 0;
	uint32_t want = size_draw(&w->rng, PUT_BLOCKS_MAX);
	unsigned flags = rng_chance(&w->rng, 1, 4) ? RAID_ALLOC_SMALL : 0;
	uint64_t tick;
	uint8_t *data;
	int err;

	err = op_error(w, raid_throttle(r), "raid_throttle");
	if (err)
		return err;
	err = raid_alloc_data(r, want, flags, runs, RUNS_MAX, &run_count);
	if (err == -ENOSPC) {
		run->rig.was_full = true;
		/* P6: a full volume can always free and commit. */
		err = op_kill(w, PUT_BLOCKS_MAX);
		return err ? err : op_commit(w);
	}
	if (op_error(w, err, "raid_alloc_data"))
		return err;
	data = buf_get_wait((size_t)want * BLOCK_BYTES);
	for (unsigned i = 0; i < run_count; i++) {
		for (uint32_t j = 0; j < runs[i].count; j++, count++) {
			rig_must(&run->rig, count < want, "raid_alloc_data gave more than %u",
				 want);
			list[count] = block_get(run, runs[i].lba + j, false, w->number);
			rig_must(&run->rig, !list[count]->live,
				 "block %llx is live and was allocated",
				 (unsigned long long)list[count]->lba);
			blocks[count] = (struct raid_block){
			    .lba = runs[i].lba + j, .data = data + (size_t)count * BLOCK_BYTES};
		}
	}
	rig_must(&run->rig, count > 0, "raid_alloc_data gave nothing");
	if (rng_chance(&w->rng, 1, 32)) {
		give_back(run, runs, run_count);
		goto out;
	}
	err = write_pieces(w, list, blocks, count,
			   rng_chance(&w->rng, 1, 6) ? RAID_WRITE_JOURNAL : 0);
	if (err)
		goto out;
	/* Written again before it is live: still only the last one counts. */
	if (rng_chance(&w->rng, 1, 16)) {
		err = write_pieces(w, list, blocks, count, 0);
		if (err)
			goto out;
	}
	/* One group: nothing yields from here on. */
	tick = ++run->tick;
	if (rng_chance(&w->rng, 1, 2) || too_full(w))
		victim_count = pick_own(w, false, victims, count);
	say_blocks(w, "live", list, count);
	for (unsigned i = 0; i < run_count; i++)
		raid_stage_live(r, runs[i].lba, runs[i].count);
	for (unsigned i = 0; i < count; i++)
		block_set_live(w, list[i], tick);
	kill_blocks(w, victims, victim_count, tick);
out:
	buf_put(data);
	return err;
}

static int op_overwrite(struct worker *w)
{
	struct block *list[PUT_BLOCKS_MAX];
	struct raid_block blocks[PUT_BLOCKS_MAX];
	unsigned count, max = size_draw(&w->rng, 32);
	uint8_t *data;
	int err = op_error(w, raid_throttle(w->run->rig.raid), "raid_throttle");

	if (err)
		return err;
	count = pick_own(w, false, list, max);
	if (!count)
		return 0;
	data = buf_get_wait((size_t)count * BLOCK_BYTES);
	for (unsigned i = 0; i < count; i++)
		blocks[i] = (struct raid_block){.lba = list[i]->lba,
						.data = data + (size_t)i * BLOCK_BYTES};
	err = write_pieces(w, list, blocks, count,
			   rng_chance(&w->rng, 1, 3) ? RAID_WRITE_JOURNAL : 0);
	buf_put(data);
	return err;
}

static void stage_image(struct worker *w, struct block *b, uint64_t tick)
{
	static uint64_t data[BLOCK_BYTES / 8];
	struct run *run = w->run;
	int err;

	b->version = b->version_issued = ++run->version;
	content_fill(data, b->lba, b->version);
	block_event(run, b, EVENT_WRITE, tick, b->version, tick);
	err = raid_stage_image(run->rig.raid, b->lba, data);
	rig_must(&run->rig, !err || rig_excused(&run->rig), "raid_stage_image: %s", strerror(-err));
}

/* Metadata: new blocks, changed ones and dead ones in one group. */
static int op_meta(struct worker *w)
{
	struct run *run = w->run;
	struct raid *r = run->rig.raid;
	struct block *list[32];
	unsigned want = size_draw(&w->rng, 16), changed, dead;
	uint64_t tick;
	int err = op_error(w, raid_throttle(r), "raid_throttle");

	if (err)
		return err;
	err = raid_meta_ensure(r, want, 0);
	if (err == -ENOSPC)
		want = 0;
	else if (op_error(w, err, "raid_meta_ensure"))
		return err;
	tick = ++run->tick;
	rig_must(&run->rig, raid_meta_ready(r, 0) >= want, "raid_meta_ensure did not");
	changed = pick_own(w, true, list, size_draw(&w->rng, 16));
	for (unsigned i = 0; i < changed; i++)
		stage_image(w, list[i], tick);
	dead = rng_chance(&w->rng, 1, 2) ? pick_own(w, true, list, 8) : 0;
	kill_blocks(w, list, dead, tick);
	for (unsigned i = 0; i < want; i++) {
		uint64_t lba = raid_alloc_meta(r, 0);
		struct block *b;

		rig_must(&run->rig, lba != LBA_NONE, "no metadata block though ensured");
		rig_must(&run->rig, lba != LBA_ROOT, "the root was given out");
		b = block_get(run, lba, true, w->number);
		stage_image(w, b, tick);
		raid_stage_live(r, lba, 1);
		block_set_live(w, b, tick);
	}
	return 0;
}

static void check_version(struct run *run, const struct block *b, const void *data, uint64_t lo,
			  uint64_t hi)
{
	uint64_t version = content_version(run, data, b->lba);

	rig_must(&run->rig, version >= lo && version <= hi,
		 "block %llx: read version %llu, must be %llu .. %llu", (unsigned long long)b->lba,
		 (unsigned long long)version, (unsigned long long)lo, (unsigned long long)hi);
}

/* Until the memory is not one that a hung device still holds: another is taken then, and *data replaced. */
static int read_again(struct run *run, struct raid_read_run *runs, unsigned count, uint8_t **data,
		      size_t bytes)
{
	int err = -EAGAIN;

	for (unsigned tries = 0; err == -EAGAIN && tries < RIG_MEMBERS_MAX; tries++) {
		uint8_t *fresh;

		err = raid_readv(run->rig.raid, runs, count);
		if (err != -EAGAIN)
			break;
		fresh = buf_get_wait(bytes);
		for (unsigned i = 0; i < count; i++)
			runs[i].data = fresh + ((uint8_t *)runs[i].data - *data);
		buf_put(*data);
		*data = fresh;
	}
	return err == -EAGAIN && run->rig.beyond ? -EIO : err;
}

/* Blocks of our own, each by itself or as one batch. */
static int op_read(struct worker *w)
{
	struct run *run = w->run;
	struct block *list[PUT_BLOCKS_MAX];
	struct raid_read_run runs[PUT_BLOCKS_MAX];
	unsigned count = pick_own(w, rng_chance(&w->rng, 1, 5), list, size_draw(&w->rng, 32));
	uint8_t *data;
	int err;

	if (!count)
		return 0;
	data = buf_get_wait((size_t)count * BLOCK_BYTES);
	for (unsigned i = 0; i < count; i++)
		runs[i] = (struct raid_read_run){
		    .lba = list[i]->lba, .count = 1, .data = data + (size_t)i * BLOCK_BYTES};
	err = op_error(w, read_again(run, runs, count, &data, (size_t)count * BLOCK_BYTES), "raid_readv");
	for (unsigned i = 0; i < count && !err; i++)
		check_version(run, list[i], data + (size_t)i * BLOCK_BYTES, list[i]->version,
			      list[i]->version);
	buf_put(data);
	return err;
}

/* Somebody else's, or a long piece of ours: looked up, some time passes, then read. */
static int op_read_any(struct worker *w)
{
	struct run *run = w->run;
	struct worker *other = &run->workers[rng_below(&w->rng, run->worker_count)];
	struct block *list[32];
	uint64_t lo[32], hi[32];
	struct raid_read_run one;
	struct raid_reader reader;
	unsigned count = 0;
	uint8_t *data;
	int err;

	if (!other->owned_count)
		return 0;
	data = buf_get_wait(ARRAY_SIZE(list) * BLOCK_BYTES);
	if (!other->owned_count) {
		buf_put(data);
		return 0;
	}
	raid_read_begin(run->rig.raid, &reader);
	list[0] = other->owned[rng_below(&w->rng, other->owned_count)];
	do {
		lo[count] = list[count]->version;
		count++;
		if (count < ARRAY_SIZE(list))
			list[count] = block_find(run, list[count - 1]->lba + 1);
	} while (count < ARRAY_SIZE(list) && list[count] && list[count]->live);
	if (rng_chance(&w->rng, 1, 2))
		co_sleep_ns(rng_below(&w->rng, 5 * NS_PER_MS));
	one = (struct raid_read_run){.lba = list[0]->lba, .count = count, .data = data};
	err = op_error(w, read_again(run, &one, 1, &data, ARRAY_SIZE(list) * BLOCK_BYTES), "raid_read");
	for (unsigned i = 0; i < count; i++)
		hi[i] = list[i]->version_issued;
	raid_read_end(run->rig.raid, &reader);
	for (unsigned i = 0; i < count && !err; i++)
		check_version(run, list[i], data + (size_t)i * BLOCK_BYTES, lo[i], hi[i]);
	buf_put(data);
	return err;
}

static void worker_main(void *arg)
{
	struct worker *w = arg;
	struct run *run = w->run;
	int err = 0;

	while (!err && w->ops_left && !run->stop && !world_crashed(run->rig.world)) {
		unsigned x;

		w->ops_left--;
		if (!rig_turn(&run->rig, SKIP_WORKER + w->number, &w->rng))
			continue;
		x = (unsigned)rng_below(&w->rng, 100);
		run->rig.stats.ops++;
		if (x < 30)
			err = op_put(w);
		else if (x < 48)
			err = op_overwrite(w);
		else if (x < 62)
			err = op_meta(w);
		else if (x < 70)
			err = op_kill(w, size_draw(&w->rng, PUT_BLOCKS_MAX));
		else if (x < 80)
			err = op_commit(w);
		else if (x < 96)
			err = x < 90 ? op_read(w) : op_read_any(w);
		else
			co_sleep_ns(rng_below(&w->rng, 20 * NS_PER_MS));
		/* What cannot be read hurts who reads it. After another error nobody knows what follows from it. */
		if (x >= 80 && rig_beyond_error(&run->rig, err))
			err = 0;
	}
	rig_worker_done(&run->rig);
}

/* ---- hooks ---- */

static void root_pre_commit(void *ctx)
{
	static uint64_t data[BLOCK_BYTES / 8];
	struct run *run = ctx;
	int err;

	if (run->tick_staged == run->tick)
		return;
	data[0] = ROOT_MAGIC;
	data[1] = run->tick;
	err = raid_stage_image(run->rig.raid, LBA_ROOT, data);
	rig_must(&run->rig, !err || rig_excused(&run->rig), "raid_stage_image of the root: %s", strerror(-err));
	run->tick_staged = run->tick;
}

static uint64_t root_dirty_blocks(void *ctx)
{
	const struct run *run = ctx;

	return run->tick_staged != run->tick;
}

static void root_lost(void *ctx, uint64_t lba, uint32_t count)
{
	struct run *run = ctx;

	/* With all members gone everything is lost. */
	if (!rig_excused(&run->rig))
		rig_fail(&run->rig, "reported lost: %u blocks at %llx", count,
			 (unsigned long long)lba);
}

static const struct raid_hooks root_hooks = {
    .pre_commit = root_pre_commit,
    .dirty_blocks = root_dirty_blocks,
    .lost_block = root_lost,
};

/* ---- comparing ---- */

struct compare {
	struct run *run;
	uint64_t k;
	uint64_t seen; /* live blocks met */
	uint8_t *data;
};

static int compare_run(void *arg, uint64_t lba, uint32_t count)
{
	struct compare *c = arg;
	struct run *run = c->run;
	int err;

	while (count) {
		uint32_t n = MIN(count, 64u);
		struct raid_read_run one = {.lba = lba, .count = n, .data = c->data};

		err = read_again(run, &one, 1, &c->data, 64 * BLOCK_BYTES);
		if (err) {
			if (!world_crashed(run->rig.world))
				rig_fail(&run->rig, "reading live blocks %llx+%u: %s",
					 (unsigned long long)lba, n, strerror(-err));
			return err;
		}
		for (uint32_t i = 0; i < n; i++) {
			struct block *b = block_find(run, lba + i);
			uint64_t version;

			if (lba + i == LBA_ROOT)
				continue;
			rig_must(&run->rig, b && block_live_at(b, c->k),
				 "block %llx is live and must not be at tick %llu",
				 (unsigned long long)(lba + i), (unsigned long long)c->k);
			version = content_version(run, c->data + (size_t)i * BLOCK_BYTES, lba + i);
			rig_must(&run->rig, block_version_legal(b, c->k, version),
				 "block %llx came back as version %llu at tick %llu (base %llu, "
				 "newest %llu)",
				 (unsigned long long)(lba + i), (unsigned long long)version,
				 (unsigned long long)c->k, (unsigned long long)b->base_version,
				 (unsigned long long)b->version_issued);
			b->version = b->version_issued = version; /* adopted below */
			c->seen++;
		}
		lba += n;
		count -= n;
	}
	return 0;
}

/* The model becomes what the volume came back as. */
static void adopt(struct run *run, uint64_t k)
{
	for (unsigned i = 0; i < run->worker_count; i++)
		run->workers[i].owned_count = 0;
	for (size_t i = 0; i < run->all_count; i++) {
		struct block *b = run->all[i];

		b->live = b->base_live = block_live_at(b, k);
		b->event_count = 0;
		b->touched = b->busy = false;
		b->base_version = b->version;
		if (b->live) {
			b->owner %= run->worker_count;
			owned_add(&run->workers[b->owner], b);
		}
	}
	run->touched_count = 0;
	run->tick = run->floor = run->tick_staged = k;
}

/* Everything that must be there is there, and nothing else. 0, or an error after a crash. */
static int compare(struct run *run)
{
	struct compare c = {.run = run};
	struct raid_read_run one = {.lba = LBA_ROOT, .count = 1};
	const uint64_t *root;
	uint64_t want = 0;
	int err;

	rig_say(&run->rig, "comparing");
	c.data = buf_get_wait(64 * BLOCK_BYTES);
	one.data = c.data;
	err = read_again(run, &one, 1, &c.data, 64 * BLOCK_BYTES);
	if (err)
		goto out;
	root = (const uint64_t *)(void *)c.data;
	rig_must(&run->rig, root[0] == ROOT_MAGIC || (!root[0] && !run->floor), "the root is gone");
	c.k = root[1];
	world_say(run->rig.world, "came back to tick %llu of %llu, floor %llu",
		  (unsigned long long)c.k, (unsigned long long)run->tick,
		  (unsigned long long)run->floor);
	rig_must(&run->rig, c.k >= run->floor && c.k <= run->tick,
		 "came back to tick %llu; %llu was promised, %llu the last",
		 (unsigned long long)c.k, (unsigned long long)run->floor,
		 (unsigned long long)run->tick);
	err = raid_for_each_live(run->rig.raid, CHUNK_META, compare_run, &c);
	if (!err)
		err = raid_for_each_live(run->rig.raid, CHUNK_DATA, compare_run, &c);
	if (err)
		goto out;
	for (size_t i = 0; i < run->all_count; i++)
		want += block_live_at(run->all[i], c.k);
	rig_must(&run->rig, c.seen == want, "%llu blocks are live, must be %llu at tick %llu",
		 (unsigned long long)c.seen, (unsigned long long)want, (unsigned long long)c.k);
	adopt(run, c.k);
	world_trace(run->rig.world, 'k', c.k, c.seen, 0);
out:
	buf_put(c.data);
	if (err && !world_crashed(run->rig.world))
		rig_fail(&run->rig, "comparing: %s", strerror(-err));
	return err;
}

/* ---- what is left beyond tolerance ---- */

static void keep(void *arg)
{
	struct run *run = arg;
	uint64_t floor = run->floor;

	/* What closing promised, too. */
	run->floor = 0;
	floor_raise(run, floor);
	run->floor = floor;
	run->kept = true;
	run->tick_staged = run->tick;
}

/* It cannot be read, or has a version that it had at some time since. */
static void judge_block(struct run *run, const struct block *b, uint8_t **data)
{
	struct raid_read_run one = {.lba = b->lba, .count = 1, .data = *data};
	int err = read_again(run, &one, 1, data, BLOCK_BYTES);
	uint64_t version;
	bool legal;

	rig_alive(&run->rig); /* each may wait for deadlines */
	if (err) {
		rig_must(&run->rig, rig_beyond_error(&run->rig, err), "reading block %llx: %s",
			 (unsigned long long)b->lba, strerror(-err));
		return;
	}
	version = content_version(run, *data, b->lba);
	legal = version == b->base_version;
	for (unsigned i = 0; i < b->event_count; i++)
		legal |= b->events[i].kind == EVENT_WRITE && b->events[i].version == version;
	rig_must(&run->rig, legal, "block %llx has version %llu, which it did not have since (base %llu, newest %llu)",
		 (unsigned long long)b->lba, (unsigned long long)version,
		 (unsigned long long)b->base_version, (unsigned long long)b->version_issued);
}

/* Of what was live all the time: the rest may be either, and then holds what it likes. */
static void judge_beyond(void *arg)
{
	struct run *run = arg;
	uint8_t *data;

	rig_say(&run->rig, "comparing what is left");
	if (!run->rig.honest)
		return;
	data = buf_get_wait(BLOCK_BYTES);
	for (size_t i = 0; i < run->all_count; i++) {
		const struct block *b = run->all[i];
		bool live = b->base_live;

		for (unsigned j = 0; j < b->event_count; j++)
			live &= b->events[j].kind != EVENT_DEAD;
		if (live)
			judge_block(run, b, &data);
	}
	buf_put(data);
}

static int open_beyond(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;
	int err = rig_open(g, 0);

	if (err)
		return err;
	run->tick_staged = run->tick;
	raid_set_hooks(g->raid, &root_hooks, run);
	err = raid_start(g->raid);
	rig_must(g, !err || rig_beyond_error(g, err), "raid_start of what is left: %s", strerror(-err));
	if (err)
		(void)rig_close(g);
	return err;
}

/* ---- rounds ---- */

static int come_back(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;
	int err = rig_open(g, 0);

	if (err)
		return err;
	rig_members_update(g);
	run->tick_staged = run->tick; /* nothing of ours to stage until it is known what came back */
	raid_set_hooks(g->raid, &root_hooks, run);
	err = raid_start(g->raid);
	if (err && !rig_excused(g))
		rig_fail(g, "raid_start: %s", strerror(-err));
	g->phase = PHASE_WORK;
	if (!err)
		err = compare(run);
	if (!err && rng_chance(&g->rng, 1, 3))
		err = rig_check(g);
	return err;
}

/* A volume that is full from the first round on. */
static int prefill(struct run *run)
{
	struct worker *w = &run->workers[0];
	struct raid_space space;
	int err = 0;

	raid_space(run->rig.raid, &space);
	if (!run->rig.small || space.data_total + space.data_potential > PREFILL_BLOCKS_MAX ||
	    rng_chance(&run->rig.rng, 1, 2))
		return 0;
	run->fill_percent = (unsigned)rng_range(&run->rig.rng, 92, 100);
	for (unsigned i = 0; i < PREFILL_BLOCKS_MAX && !err && !too_full(w) && !run->rig.was_full; i++)
		err = op_put(w);
	return err ? err : op_commit(w);
}

static int make(void *arg)
{
	struct run *run = arg;
	int err;

	rig_format(&run->rig);
	err = come_back(run);
	return err ? err : prefill(run);
}

static void work(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;

	run->stop = false;
	run->fill_percent = (unsigned)rng_range(&g->rng, rig_aims_full(g) || rng_chance(&g->rng, 1, 3) ? 95 : 10, 100);
	for (unsigned i = 0; i < run->worker_count; i++) {
		run->workers[i].ops_left = run->ops / run->worker_count + 1;
		rig_must(g, !rig_spawn(g, worker_main, &run->workers[i]), "no memory");
	}
}

static int close_all(void *arg)
{
	struct run *run = arg;

	return rig_close(&run->rig);
}

static void closed(void *arg)
{
	struct run *run = arg;

	run->floor = MAX(run->floor, run->tick);
}

static int last(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;

	if (compare(run) || rig_check(g) || rig_close(g))
		return -ENODEV;
	closed(run);
	if (rig_open(g, RAID_OPEN_CHECK) || rig_check(g) || compare(run) || rig_close(g))
		return -ENODEV;
	return 0;
}

static const struct round_ops raid_round = {
    .make = make,
    .come_back = come_back,
    .work = work,
    .close = close_all,
    .closed = closed,
    .keep = keep,
    .judge_beyond = judge_beyond,
    .open_beyond = open_beyond,
    .last = last,
    .meddle_ns = 100 * NS_PER_MS,
    .replay_points = 100,
};

static int run_main(void *arg)
{
	struct run *run = arg;
	struct round r = {.rig = &run->rig, .ops = &raid_round, .arg = run};

	round_run_all(&r);
	return 0;
}

void raidrun_seed(const struct sim_options *o, struct sim_stats *stats)
{
	struct run *run = calloc(1, sizeof(*run));

	if (!run)
		abort();
	rig_init(&run->rig, o);
	run->worker_count = 1 + (unsigned)rng_below(&run->rig.rng, WORKERS_MAX);
	run->ops = (unsigned)rng_range(&run->rig.rng, 20, 400);
	if (o->ops)
		run->ops = o->ops;
	for (unsigned i = 0; i < WORKERS_MAX; i++) {
		char name[] = {'w', (char)('0' + i), 0};

		run->workers[i].run = run;
		run->workers[i].number = i;
		rng_fork(&run->workers[i].rng, name, o->seed);
	}
	if (loop_run_co(run->rig.loop, run_main, run))
		rig_fail(&run->rig, "no memory");
	rig_exit(&run->rig);
	*stats = run->rig.stats;
	for (unsigned i = 0; i < WORKERS_MAX; i++)
		free(run->workers[i].owned);
	for (size_t i = 0; i < run->all_count; i++) {
		free(run->all[i]->events);
		free(run->all[i]);
	}
	free(run->all);
	free(run->touched);
	free(run);
}
