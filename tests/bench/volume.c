/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume without FUSE, and its limit: the raw members driven by the same loop and io_uring device.
 *
 * `volume` keeps a map from a file's blocks to where they are, as a filesystem does, and writes as fs/
 * does: what is written is gathered into batches, each allocated, written, made live in company, and
 * what it replaces dies with it; a few batches are under way at a time, and the commit timer of the
 * volume makes them durable. A write operation is over when a batch has taken it, so it waits when
 * all batches are under way; the last commit counts. The data of a batch is not copied from
 * anywhere, since a caller of raid_write need not: each block only gets its number, which every read
 * checks after the volume has checked the checksum.
 *
 * The map is kept in no place: after an open it is made from what is live, in the order of address.
 */
#include "load.h"

#include "raid/buf.h"
#include "raid/co.h"
#include "raid/raid.h"
#include "raid/uring.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#define POOL_BYTES   (256u << 20)
#define BATCH_BLOCKS 512u
#define WORKERS	     4u
#define SPACE_TRIES  8
#define SPARE_MAX    4u
#define NO_INDEX     UINT64_MAX

enum work { WORK_FORMAT, WORK_FILL, WORK_RAW, WORK_VOLUME, WORK_REBUILD, WORK_SCRUB, WORK_FSYNC, WORK_FAIL, WORK_OPEN };

struct options {
	enum work work;
	struct load_params load;
	int level;
	bool has_load;        /* rebuild and scrub: with this beside them */
	bool read_only;
	unsigned missing;     /* the first so many members are left out */
	const char *member;   /* to fail, to replace: a device of the list */
	const char *spare;
	uint64_t fill_bytes;
	uint64_t page_cache_bytes;
	uint64_t span_bytes;  /* of each raw member; 0: all */
	uint64_t strip_bytes;
	int priority;         /* of the rebuild; -1: as it is */
};

struct batch {
	struct bench *bench;
	struct batch *next;
	unsigned count;
	uint64_t index[BATCH_BLOCKS];
	struct raid_block io[BATCH_BLOCKS];
	uint8_t *data;
};

struct bench {
	struct options o;
	struct uring *uring;
	struct loop *loop;
	struct dev *devs[MEMBERS_MAX];
	unsigned count;
	struct raid *raid;
	/* The file: where block i is, and whether a batch is about to replace it. */
	uint64_t *map;
	uint8_t *pending;
	uint64_t blocks, map_cap;
	struct batch batches[WORKERS + 1], *idle, *open;
	unsigned flushing;
	struct co_cond flushed;
	int error;
};

/* ---- raw members ---- */

/* Pieces go round all members, so that a sequential load is sequential on each. */
static struct dev *raw_place(struct bench *b, uint64_t block, uint64_t *ret_off)
{
	uint64_t piece = block / b->o.load.op_blocks;

	*ret_off = piece / b->count * b->o.load.op_blocks * BLOCK_BYTES;
	return b->devs[piece % b->count];
}

static int raw_read(void *ctx, uint64_t block, unsigned count, void *data)
{
	uint64_t off;
	struct dev *d = raw_place(ctx, block, &off);

	return io_read_sync(d, off, data, (uint64_t)count * BLOCK_BYTES);
}

static int raw_write(void *ctx, uint64_t block, unsigned count, void *data)
{
	uint64_t off;
	struct dev *d = raw_place(ctx, block, &off);

	return io_write_sync(d, off, data, (uint64_t)count * BLOCK_BYTES);
}

/* A write and the flush that makes it durable, on the first member. */
static int raw_write_flush(void *ctx, uint64_t block, unsigned count, void *data)
{
	struct bench *b = ctx;
	int e = io_write_sync(b->devs[0], block * BLOCK_BYTES, data, (uint64_t)count * BLOCK_BYTES);

	return e ? e : io_flush_sync(b->devs[0]);
}

static int raw_finish(void *ctx)
{
	struct bench *b = ctx;
	int e = 0;

	for (unsigned i = 0; i < b->count && !e && b->o.load.write_percent; i++)
		e = io_flush_sync(b->devs[i]);
	return e;
}

static uint64_t raw_blocks(const struct bench *b, unsigned members)
{
	uint64_t least = b->o.span_bytes ? b->o.span_bytes : UINT64_MAX;

	for (unsigned i = 0; i < b->count; i++)
		least = MIN(least, b->devs[i]->size_bytes);
	return least / BLOCK_BYTES / b->o.load.op_blocks * b->o.load.op_blocks * members;
}

/* ---- writing to the volume ---- */

static int batch_alloc(struct bench *b, struct batch *t, struct raid_run *runs, unsigned *ret_runs)
{
	unsigned have = 0, n = 0, count;
	int tries = 0;

	while (have < t->count) {
		int e = raid_alloc_data(b->raid, t->count - have, 0, runs + n, BATCH_BLOCKS - n, &count);
		if (e == -ENOSPC && tries++ < SPACE_TRIES) {
			e = raid_commit(b->raid); /* what has died may be used then */
			if (e)
				return e;
			continue;
		}
		if (e) {
			for (unsigned i = 0; i < n; i++)
				raid_unalloc(b->raid, runs[i].lba, runs[i].count);
			return e;
		}
		for (unsigned i = n; i < n + count; i++)
			have += runs[i].count;
		n += count;
	}
	*ret_runs = n;
	return 0;
}

/* Nothing yields here: one step for readers and for the transaction. */
static void batch_map(struct bench *b, struct batch *t, const struct raid_run *runs, unsigned run_count)
{
	struct raid_run dead = {0};

	for (unsigned i = 0; i < run_count; i++)
		raid_stage_live(b->raid, runs[i].lba, runs[i].count);
	for (unsigned i = 0; i < t->count; i++) {
		uint64_t *place = &b->map[t->index[i]], old = *place;

		*place = t->io[i].lba;
		b->pending[t->index[i]] = 0;
		if (old == LBA_NONE)
			continue;
		if (dead.count && old == dead.lba + dead.count) {
			dead.count++;
			continue;
		}
		if (dead.count)
			raid_stage_dead(b->raid, dead.lba, dead.count);
		dead = (struct raid_run){old, 1};
	}
	if (dead.count)
		raid_stage_dead(b->raid, dead.lba, dead.count);
}

static int batch_write(struct bench *b, struct batch *t)
{
	struct raid_run runs[BATCH_BLOCKS]; /* at worst each block by itself */
	unsigned run_count, n = 0;
	int e = raid_throttle(b->raid);

	if (e == 0)
		e = batch_alloc(b, t, runs, &run_count);
	if (e)
		return e;
	for (unsigned i = 0; i < run_count; i++)
		for (uint32_t k = 0; k < runs[i].count; k++, n++)
			t->io[n] = (struct raid_block){runs[i].lba + k, t->data + (size_t)n * BLOCK_BYTES};
	e = raid_write(b->raid, t->io, t->count, 0);
	if (e == 0)
		batch_map(b, t, runs, run_count);
	return e;
}

static void batch_flush(void *arg)
{
	struct batch *t = arg;
	struct bench *b = t->bench;
	int e = batch_write(b, t);

	if (e)
		b->error = b->error ? b->error : e;
	t->count = 0;
	t->next = b->idle;
	b->idle = t;
	b->flushing--;
	co_cond_wake_all(&b->flushed);
}

static int batch_start(struct bench *b)
{
	struct batch *t = b->open;

	b->open = NULL;
	b->flushing++;
	return co_spawn(b->loop, batch_flush, t);
}

static int volume_write_one(struct bench *b, uint64_t index)
{
	while (!b->error) {
		if (b->pending[index]) {
			if (b->open)
				return 0; /* in this batch already, or close to: as in a write buffer */
			co_cond_wait(&b->flushed);
			continue;
		}
		if (!b->open && !b->idle) {
			co_cond_wait(&b->flushed);
			continue;
		}
		if (!b->open) {
			b->open = b->idle;
			b->idle = b->open->next;
		}
		struct batch *t = b->open;
		memcpy(t->data + (size_t)t->count * BLOCK_BYTES, &index, sizeof(index));
		t->index[t->count++] = index;
		b->pending[index] = 1;
		return t->count == BATCH_BLOCKS ? batch_start(b) : 0;
	}
	return b->error;
}

static int volume_write(void *ctx, uint64_t block, unsigned count, void *data)
{
	int e = 0;

	for (unsigned i = 0; i < count && !e; i++)
		e = volume_write_one(ctx, block + i);
	return e;
}

static int volume_finish(void *ctx)
{
	struct bench *b = ctx;
	int e = b->open && b->open->count ? batch_start(b) : 0;

	while (b->flushing)
		co_cond_wait(&b->flushed);
	e = b->error ? b->error : e;
	return e || !b->o.load.write_percent ? e : raid_commit(b->raid);
}

/* ---- reading ---- */

static int volume_read(void *ctx, uint64_t block, unsigned count, void *data)
{
	struct bench *b = ctx;
	struct raid_read_run runs[BUF_BYTES_MAX / BLOCK_BYTES];
	struct raid_reader reader;
	uint8_t *at = data;
	unsigned n = 0;
	int e;

	raid_read_begin(b->raid, &reader);
	for (unsigned i = 0; i < count; i++) {
		uint64_t lba = b->map[block + i];
		if (n && lba == runs[n - 1].lba + runs[n - 1].count)
			runs[n - 1].count++;
		else
			runs[n++] = (struct raid_read_run){lba, 1, at + (size_t)i * BLOCK_BYTES};
	}
	e = n == 1 ? raid_read(b->raid, runs[0].lba, runs[0].count, data) : raid_readv(b->raid, runs, n);
	raid_read_end(b->raid, &reader);
	/* Numbers are given when blocks are written; the map of a later open has another order. */
	for (unsigned i = 0; i < count && !e; i++) {
		uint64_t got;
		memcpy(&got, at + (size_t)i * BLOCK_BYTES, sizeof(got));
		if (got >= b->map_cap)
			e = -EBADMSG;
	}
	return e;
}

/* ---- opening ---- */

static int map_add(void *arg, uint64_t lba, uint32_t count)
{
	struct bench *b = arg;

	for (uint32_t i = 0; i < count && b->blocks < b->map_cap; i++)
		b->map[b->blocks++] = lba + i;
	return 0;
}

static int volume_open(struct bench *b)
{
	static const struct raid_hooks hooks = {0};
	struct raid_options options = {
	    .flags = b->o.read_only ? RAID_OPEN_READ_ONLY : 0,
	    .page_cache_bytes = b->o.page_cache_bytes,
	};
	struct raid_space space;
	int e = raid_open(b->loop, b->devs, b->count, NULL, &options, &b->raid);

	if (e)
		return e;
	b->count = 0; /* the volume's now */
	raid_set_hooks(b->raid, &hooks, NULL);
	e = raid_start(b->raid);
	if (e)
		return e;
	if (b->o.work == WORK_OPEN)
		return 0; /* no file */
	raid_space(b->raid, &space);
	b->map_cap = space.data_total;
	b->map = mem_alloc(b->map_cap * sizeof(*b->map));
	b->pending = mem_zalloc(b->map_cap);
	if (!b->map || !b->pending)
		return -ENOMEM;
	for (unsigned i = 0; i < ARRAY_SIZE(b->batches); i++) {
		struct batch *t = &b->batches[i];
		t->bench = b;
		t->data = buf_get_wait(BATCH_BLOCKS * BLOCK_BYTES);
		for (size_t k = 0; k < BATCH_BLOCKS * BLOCK_BYTES; k += sizeof(uint64_t))
			memcpy(t->data + k, &(uint64_t){k * 0x9e3779b97f4a7c15ull}, sizeof(uint64_t));
		t->next = b->idle;
		b->idle = t;
	}
	return raid_for_each_live(b->raid, CHUNK_DATA, map_add, b);
}

static void volume_gone(struct bench *b)
{
	for (unsigned i = 0; i < ARRAY_SIZE(b->batches); i++)
		buf_put(b->batches[i].data);
	mem_free(b->map);
	mem_free(b->pending);
}

static int run_load(struct bench *b, struct load_target *t, struct load_result *res)
{
	if (t->blocks < b->o.load.op_blocks) {
		log_error("nothing to load: %llu blocks", (unsigned long long)t->blocks);
		return -EINVAL;
	}
	return load_run(t, &b->o.load, res);
}

/* ---- works ---- */

static int do_format(struct bench *b)
{
	struct raid_format_params p = {.level = b->o.level, .strip_bytes = b->o.strip_bytes};
	return raid_format(b->loop, b->devs, b->count, &p);
}

static int do_raw(struct bench *b, struct load_result *res)
{
	struct load_target t = {raw_read, raw_write, raw_finish, NULL, raw_blocks(b, b->count), b};

	if (b->o.work == WORK_FSYNC)
		t = (struct load_target){raw_read, raw_write_flush, NULL, NULL, raw_blocks(b, 1), b};
	int e = run_load(b, &t, res);
	if (e == 0)
		load_print(&b->o.load, res, "");
	return e;
}

static int do_fill(struct bench *b)
{
	uint64_t want = b->o.fill_bytes / BLOCK_BYTES, start = loop_now_ns(b->loop);

	while (b->blocks < want && b->blocks < b->map_cap) {
		b->map[b->blocks] = LBA_NONE;
		int e = volume_write_one(b, b->blocks++);
		if (e)
			return e;
	}
	b->o.load.write_percent = 100;
	int e = volume_finish(b);
	double s = (double)(loop_now_ns(b->loop) - start) / 1e9;
	if (e == 0)
		printf("{\"seconds\": %.4f, \"mibps\": %.2f}\n", s, (double)(want >> 8) / s);
	return e;
}

static bool rebuild_over(void *ctx)
{
	struct raid_info info;
	raid_info(((struct bench *)ctx)->raid, &info);
	return !info.rebuild.running;
}

static bool scrub_over(void *ctx)
{
	struct raid_info info;
	raid_info(((struct bench *)ctx)->raid, &info);
	return !info.scrub.running;
}

/* Which member the device of the options is; they need not stand in the same order. */
static int member_of(struct bench *b, unsigned *ret)
{
	struct raid_member_info m;

	for (unsigned i = 0; raid_member_info(b->raid, i, &m) == 0; i++) {
		if (m.present && !strcmp(m.path, b->o.member)) {
			*ret = i;
			return 0;
		}
	}
	/* Taken out of service before: it is not opened any more. */
	for (unsigned i = 0; raid_member_info(b->raid, i, &m) == 0; i++) {
		if (m.state == MEMBER_FAILED) {
			*ret = i;
			return 0;
		}
	}
	log_error("%s: not a member", b->o.member);
	return -ENODEV;
}

/* Rebuild onto a spare, or scrub; alone or with a load beside it, which lasts as long. */
static int do_job(struct bench *b, struct load_result *res)
{
	bool rebuild = b->o.work == WORK_REBUILD;
	struct load_target t = {volume_read, volume_write, volume_finish, rebuild ? rebuild_over : scrub_over,
				b->blocks, b};
	struct raid_info info;
	struct dev *spare = NULL;
	unsigned index = 0;
	char more[200];
	int e = 0;

	if (rebuild) {
		e = member_of(b, &index);
		if (e == 0 && b->o.priority >= 0)
			e = raid_set_priority(b->raid, RAID_JOB_REBUILD, (unsigned)b->o.priority);
		if (e == 0)
			e = raid_fail(b->raid, index);
		if (e == 0)
			e = uring_dev_open(b->uring, b->loop, b->o.spare, 0, &spare);
	}
	uint64_t start = loop_now_ns(b->loop);
	if (e == 0)
		e = rebuild ? raid_replace(b->raid, index, spare) : raid_scrub_start(b->raid);
	if (e == 0 && b->o.has_load) {
		b->o.load.duration_ns = LOOP_NEVER / 2;
		e = run_load(b, &t, res);
	}
	int r = rebuild ? raid_rebuild_wait(b->raid) : raid_scrub_wait(b->raid);
	e = e ? e : r;
	if (e)
		return e;
	double s = (double)(loop_now_ns(b->loop) - start) / 1e9;
	raid_info(b->raid, &info);
	const struct raid_job_info *j = rebuild ? &info.rebuild : &info.scrub;
	double mib = (double)j->done_blocks * BLOCK_BYTES / (1 << 20);
	snprintf(more, sizeof(more), ", \"job_seconds\": %.4f, \"job_mib\": %.1f, \"job_mibps\": %.2f, \"lost\": %llu", s,
		 mib, mib / s, (unsigned long long)j->lost);
	load_print(&b->o.load, res, more);
	return 0;
}

static int do_volume(struct bench *b, struct load_result *res)
{
	struct load_target t = {volume_read, volume_write, volume_finish, NULL, b->blocks, b};
	uint64_t start = loop_now_ns(b->loop);
	unsigned index = 0;
	int e = volume_open(b);

	t.blocks = b->blocks;
	if (e)
		return e;
	switch (b->o.work) {
	case WORK_FILL:
		return do_fill(b);
	case WORK_REBUILD:
	case WORK_SCRUB:
		return do_job(b, res);
	case WORK_FAIL:
		e = member_of(b, &index);
		return e ? e : raid_fail(b->raid, index);
	case WORK_OPEN:
		printf("{\"seconds\": %.4f}\n", (double)(loop_now_ns(b->loop) - start) / 1e9);
		return 0;
	default:
		e = run_load(b, &t, res);
		if (e == 0)
			load_print(&b->o.load, res, "");
		return e;
	}
}

static int bench_main(void *arg)
{
	struct bench *b = arg;
	struct load_result *res = mem_zalloc(sizeof(*res));
	int e;

	if (!res)
		return -ENOMEM;
	if (b->o.work == WORK_FORMAT)
		e = do_format(b);
	else if (b->o.work == WORK_RAW || b->o.work == WORK_FSYNC)
		e = do_raw(b, res);
	else
		e = do_volume(b, res);
	if (b->raid) {
		int r = raid_close(b->raid);
		volume_gone(b);
		e = e ? e : r;
	}
	while (b->count)
		dev_close(b->devs[--b->count]);
	mem_free(res);
	return e;
}

/* ---- options ---- */

static const char usage[] =
    "usage: bench-volume WORK [OPTIONS] DEVICE...\n"
    "  WORK: format, fill, raw, volume, rebuild, scrub, fsync (raw: write + flush of one device), fail, open\n"
    "  -l LEVEL  -t STRIP-BYTES  -f FILL-MIB  -b BLOCK-BYTES  -q DEPTH  -w WRITE-PERCENT  -r (random)\n"
    "  -s SECONDS  -R RATE  -m MEMBERS-MISSING  -o (read only)  -S SPARE  -P PAGE-CACHE-MIB\n"
    "  -z SPAN-MIB (of each raw device)  -x SEED  -L (rebuild, scrub: with that load beside it)\n"
    "  -p PRIORITY (of the rebuild)\n"
    "  fail and rebuild mean the first device.\n";

static const char *const works[] = {"format", "fill", "raw", "volume", "rebuild", "scrub", "fsync", "fail", "open"};

static bool options_parse(struct options *o, int argc, char **argv)
{
	unsigned work = 0;
	int c;

	*o = (struct options){.level = -1, .priority = -1, .fill_bytes = 64u << 20};
	o->load = (struct load_params){.op_blocks = 1, .depth = 32, .duration_ns = NS_PER_S, .seed = 1};
	while (argc > 1 && work < ARRAY_SIZE(works) && strcmp(argv[1], works[work]))
		work++;
	if (argc < 2 || work == ARRAY_SIZE(works))
		return false;
	o->work = (enum work)work;
	optind = 2;
	while ((c = getopt(argc, argv, "l:t:f:b:q:w:rs:R:m:oS:P:z:x:Lp:")) != -1) {
		double v = optarg ? atof(optarg) : 0;
		switch (c) {
		case 'l': o->level = (int)v; break;
		case 't': o->strip_bytes = (uint64_t)v; break;
		case 'f': o->fill_bytes = (uint64_t)(v * (1 << 20)); break;
		case 'b': o->load.op_blocks = (unsigned)v / BLOCK_BYTES; break;
		case 'q': o->load.depth = (unsigned)v; break;
		case 'w': o->load.write_percent = (unsigned)v; break;
		case 'r': o->load.random = true; break;
		case 's': o->load.duration_ns = (uint64_t)(v * 1e9); break;
		case 'R': o->load.rate = (uint64_t)v; break;
		case 'm': o->missing = (unsigned)v; break;
		case 'o': o->read_only = true; break;
		case 'S': o->spare = optarg; break;
		case 'P': o->page_cache_bytes = (uint64_t)(v * (1 << 20)); break;
		case 'z': o->span_bytes = (uint64_t)(v * (1 << 20)); break;
		case 'x': o->load.seed = (uint64_t)v; break;
		case 'L': o->has_load = true; break;
		case 'p': o->priority = (int)v; break;
		default: return false;
		}
	}
	o->member = argv[optind];
	return o->load.op_blocks >= 1 && o->load.op_blocks <= BATCH_BLOCKS && o->load.depth >= 1 &&
	       o->load.depth <= LOAD_DEPTH_MAX && argc - optind > (int)o->missing && argc - optind <= MEMBERS_MAX &&
	       (o->work != WORK_REBUILD || o->spare);
}

int main(int argc, char **argv)
{
	static struct bench b;
	int e;

	if (!options_parse(&b.o, argc, argv)) {
		fputs(usage, stderr);
		return 2;
	}
	co_cond_init(&b.flushed);
	e = uring_new(&b.uring);
	if (e)
		return 1;
	b.loop = loop_new(&uring_backend, b.uring);
	e = b.loop ? buf_pool_init(POOL_BYTES) : -ENOMEM;
	for (int i = optind + (int)b.o.missing; i < argc && !e; i++) {
		e = uring_dev_open(b.uring, b.loop, argv[i], 0, &b.devs[b.count]);
		b.count += e == 0;
	}
	if (e == 0)
		e = loop_run_co(b.loop, bench_main, &b);
	if (e)
		fprintf(stderr, "bench-volume: %s: %s\n", argv[1], strerror(-e));
	loop_free(b.loop);
	uring_free(b.uring);
	buf_pool_exit();
	return e ? 1 : 0;
}
