/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What goes wrong with members: damage, and faults armed on them, within the budget (rig.c) and beyond
 * it.
 */
#include "rig_private.h"
#include "raid/format.h"
#include <stdio.h>

#define MIB		 (1ull << 20)
#define FAULT_BLOCKS_MAX 4096

/*
 * A block that was ever written, by preference: damage to empty space is no damage. The labels at
 * the end are spared: without any a member is a stranger and not a damaged member.
 */
static uint64_t damage_place(struct rng *r, struct simdev *d)
{
	uint64_t size_bytes = simdev_size_bytes(d) - 2 * MIB, off_bytes = 0;

	for (unsigned i = 0; i < 64; i++) {
		off_bytes = rng_below(r, size_bytes / BLOCK_BYTES) * BLOCK_BYTES;
		if (rng_chance(r, 1, 16)) /* the front: one label area and the journal */
			off_bytes = rng_below(r, 6 * MIB / BLOCK_BYTES) * BLOCK_BYTES;
		if (simdev_written(d, off_bytes))
			break;
	}
	return off_bytes;
}

static void damage_slot(struct rig *g, struct rng *r, struct slot *s, unsigned blocks,
			enum rig_fault kind)
{
	s->suspect = s->damaged = true;
	world_tell(g->world, "%s: %u blocks %s", simdev_name(s->dev), blocks,
		   kind == FAULT_ZERO ? "zeroed" : "damaged");
	while (blocks--) {
		uint64_t off_bytes = damage_place(r, s->dev);

		if (kind == FAULT_ZERO)
			simdev_zero(s->dev, off_bytes, BLOCK_BYTES);
		else if (rng_chance(r, 1, 2))
			simdev_garble(s->dev, off_bytes, BLOCK_BYTES);
		else
			simdev_rot(s->dev, off_bytes, BLOCK_BYTES, 1);
		simdev_mark(s->dev, off_bytes, (uint8_t)(kind + 1));
	}
}

unsigned rig_damage(struct rig *g)
{
	struct rng r;
	bool skip = !rig_turn(g, SKIP_MEDDLE, &r);
	unsigned n = rig_budget(g) ? (unsigned)rng_range(&r, 1, rig_budget(g)) : 0;

	if (skip)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		struct slot *s = rig_sound_slot(g, &r);

		if (!s)
			return i;
		damage_slot(g, &r, s, (unsigned)rng_range(&r, 1, 200),
			    rng_chance(&r, 1, 3) ? FAULT_ZERO : FAULT_DAMAGE);
	}
	if (n)
		g->stats.damages++;
	return n;
}

/* ---- faults ---- */

const char *const rig_fault_names[FAULT_KINDS] = {
    "eio-read",	 "eio-write", "eio-flush", "short", "lost",   "day",	"misdirected", "duplicate",
    "torn",	 "lie",	      "reset",	   "rot-read", "hang",	 "delay",  "read-only",	  "vanish",
    "shrink",	 "damage",    "zero",	   "clone", "rename", "stale", "freeze",      "beyond",
};

static uint32_t fault_bit(const char *name, size_t len)
{
	for (unsigned k = 0; k < FAULT_KINDS; k++) {
		if (strlen(rig_fault_names[k]) == len && !strncmp(name, rig_fault_names[k], len))
			return 1u << k;
	}
	return 0;
}

bool rig_faults_parse(const char *list, uint32_t *ret)
{
	/* A list that begins by taking away takes away from all. */
	uint32_t faults = *list == '-' ? RIG_FAULTS_DEFAULT : 0;

	while (*list) {
		bool less = *list == '-';
		size_t len = strcspn(list += less, ",");
		uint32_t bit = len == 3 && !strncmp(list, "all", 3) ? RIG_FAULTS_DEFAULT
								    : fault_bit(list, len);

		if (!bit && !(len == 4 && !strncmp(list, "none", 4)))
			return false;
		faults = less ? faults & ~bit : faults | bit;
		list += len + (list[len] == ',');
	}
	*ret = faults;
	return true;
}

bool rig_fault_chance(struct rig *g, enum rig_fault kind, uint64_t part, uint64_t whole)
{
	/* Without any tolerance there is nothing that could be more than it. */
	if (kind == FAULT_FREEZE && !g->tolerance)
		return false;
	if (!(g->o->faults >> kind & 1) || g->faults_off)
		return false;
	return rng_chance(&g->fault_rng, part, whole) || (g->aim.kind == kind && rng_chance(&g->fault_rng, 3, 4));
}

static const struct slot *chain_root(const struct rig *g, const struct slot *s)
{
	while (s->replaces >= 0 && g->slots[s->replaces].in)
		s = &g->slots[s->replaces];
	return s;
}

/*
 * Whether a fault on it is within the budget: a sound member while there is room, or one that is suspect already. Of
 * those that take over from each other one alone: they count once, but either may hold a record of the journal.
 */
static bool may_be_faulty(struct rig *g, const struct slot *s)
{
	if (!s->in || s->away || s->renamed || simdev_is_gone(s->dev))
		return false;
	if (!s->suspect)
		return rig_budget(g) > 0;
	for (unsigned i = 0; i < g->slot_count; i++) {
		const struct slot *o = &g->slots[i];

		if (o != s && o->in && (o->faulty || o->damaged) &&
		    chain_root(g, o) == chain_root(g, s))
			return false;
	}
	return true;
}

static struct slot *fault_slot(struct rig *g, struct rng *r)
{
	struct slot *list[RIG_SPARES_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < g->slot_count; i++) {
		if (may_be_faulty(g, &g->slots[i]))
			list[count++] = &g->slots[i];
	}
	return count ? list[rng_below(r, count)] : NULL;
}

enum when {
	LATER,
	SOON, /* with one of the next I/Os */
	NEXT, /* wherever that goes */
};

/* Which I/O: of all of the member or of a piece of it, once, some times or for good. */
static void fault_scope(struct rng *r, struct slot *s, enum when when, struct simfault *f)
{
	static const uint64_t skips[][3] = {[LATER] = {1, 10, 200}, [SOON] = {1, 2, 10}, [NEXT] = {1, 1, 2}};

	if (rng_chance(r, 1, 2) && when != NEXT) {
		f->off_bytes = damage_place(r, s->dev);
		f->len_bytes = rng_range(r, 1, FAULT_BLOCKS_MAX) * BLOCK_BYTES;
	}
	f->skip = rng_below(r, skips[when][rng_below(r, 3)]);
	switch (rng_below(r, 4)) {
	case 0:
		f->count = 1;
		break;
	case 1:
		f->count = rng_range(r, 2, 40);
		break;
	case 2: /* now and then, for good */
		if (when == NEXT)
			break;
		f->part = 1;
		f->whole = (unsigned)rng_range(r, 2, 30);
		break;
	}
}

/* Which of them is always noticed by whoever submitted the I/O. What hangs may be let go in time. */
static bool fault_is_noticed(enum rig_fault kind)
{
	return kind == FAULT_EIO_READ || kind == FAULT_EIO_WRITE || kind == FAULT_EIO_FLUSH;
}

/* Which may befall anybody: they are within what a sound member does. */
static bool fault_is_harmless(enum rig_fault kind)
{
	return kind == FAULT_DELAY || kind == FAULT_SHORT;
}

/* What follows from the kind: how much of it, and how often. */
static void fault_params(struct rng *r, struct slot *s, enum rig_fault kind, struct simfault *f)
{
	uint64_t size_bytes = simdev_size_bytes(s->dev);

	switch (kind) {
	case FAULT_EIO_READ:
	case FAULT_EIO_WRITE:
		if (!rng_chance(r, 1, 4))
			break;
		/* By way of I/O that makes no progress. */
		f->kind = SIMFAULT_SHORT;
		f->on = kind == FAULT_EIO_READ ? SIMFAULT_ON_READ : SIMFAULT_ON_WRITE;
		f->param = 1;
		break;
	case FAULT_MISDIRECTED:
	case FAULT_DUPLICATE:
		f->param = rng_chance(r, 1, 2) ? rng_range(r, 1, 64) * BLOCK_BYTES
					       : rng_below(r, size_bytes / BLOCK_BYTES) * BLOCK_BYTES;
		break;
	case FAULT_DELAY:
		f->param = rng_range(r, 1, 4000) * NS_PER_MS;
		f->count = rng_range(r, 1, 5);
		break;
	case FAULT_HANG:
		if (rng_chance(r, 1, 3))
			f->param = rng_range(r, 1000, 30000) * NS_PER_MS;
		break;
	case FAULT_DAY:
		*f = (struct simfault){.kind = f->kind, .skip = f->skip};
		break;
	case FAULT_RESET:
	case FAULT_VANISH:
	case FAULT_READ_ONLY:
		*f = (struct simfault){.kind = f->kind, .skip = f->skip, .count = 1, .param = rng_below(r, 2)};
		break;
	case FAULT_SHRINK:
		*f = (struct simfault){.kind = f->kind, .skip = f->skip, .count = 1};
		/* Anything from the last block to a quarter. */
		f->param = size_bytes - (BLOCK_BYTES << rng_below(r, 13));
		break;
	default:
		break;
	}
}

static void fault_arm(struct rig *g, struct rng *r, struct slot *s, enum rig_fault kind, enum when when)
{
	static const enum simfault_kind kinds[] = {
	    [FAULT_EIO_READ] = SIMFAULT_EIO_READ,
	    [FAULT_EIO_WRITE] = SIMFAULT_EIO_WRITE,
	    [FAULT_EIO_FLUSH] = SIMFAULT_EIO_FLUSH,
	    [FAULT_SHORT] = SIMFAULT_SHORT,
	    [FAULT_LOST] = SIMFAULT_LOST,
	    [FAULT_DAY] = SIMFAULT_LOST,
	    [FAULT_MISDIRECTED] = SIMFAULT_MISDIRECTED,
	    [FAULT_DUPLICATE] = SIMFAULT_DUPLICATE,
	    [FAULT_TORN] = SIMFAULT_TORN,
	    [FAULT_LIE] = SIMFAULT_LYING_FLUSH,
	    [FAULT_RESET] = SIMFAULT_RESET,
	    [FAULT_ROT_READ] = SIMFAULT_ROT_READ,
	    [FAULT_HANG] = SIMFAULT_HANG,
	    [FAULT_DELAY] = SIMFAULT_DELAY,
	    [FAULT_READ_ONLY] = SIMFAULT_READ_ONLY,
	    [FAULT_VANISH] = SIMFAULT_VANISH,
	    [FAULT_SHRINK] = SIMFAULT_SHRINK,
	};
	struct simfault f = {.kind = kinds[kind]};

	fault_scope(r, s, when, &f);
	fault_params(r, s, kind, &f);
	f.tag = (uint8_t)(kind + 1);
	if (kind == FAULT_DELAY || kind == FAULT_HANG)
		g->slow = true;
	world_tell(g->world, "%s fault %s: %llu+%llu skip %llu count %llu part 1/%u param %llu (f%u)",
		   simdev_name(s->dev), rig_fault_names[kind], (unsigned long long)f.off_bytes,
		   (unsigned long long)f.len_bytes, (unsigned long long)f.skip,
		   (unsigned long long)f.count, f.whole, (unsigned long long)f.param,
		   g->turns[SKIP_FAULT] - 1);
	if (simdev_fault(s->dev, &f))
		return;
	g->stats.faults++;
	s->faulty = true;
	if (fault_is_harmless(kind))
		return;
	/* With the volume closed the next to meet it is who reads the labels, and there it only costs a vote. */
	if (g->raid && fault_is_noticed(kind) && !s->suspect) {
		s->must_count = true;
		s->hits = simdev_errors_given(s->dev);
		s->opening = g->openings;
	}
	s->suspect = s->damaged = true;
}

/* `anybody`: whoever it hits, budget or not. NEXT: the one that is aimed. */
static void fault_one(struct rig *g, bool anybody, enum when when)
{
	struct slot *s;
	struct rng r;
	bool skip = !rig_turn(g, SKIP_FAULT, &r);
	enum rig_fault kind = (enum rig_fault)rng_below(&r, FAULT_CLONE);

	if (when == NEXT)
		kind = g->aim.kind;
	if (skip || !(g->o->faults >> kind & 1))
		return;
	s = anybody || fault_is_harmless(kind) ? &g->slots[rng_below(&r, g->slot_count)]
					       : fault_slot(g, &r);
	if (!s)
		return;
	if (kind == FAULT_DAMAGE || kind == FAULT_ZERO) {
		damage_slot(g, &r, s, (unsigned)rng_range(&r, 1, when == NEXT ? 2000 : 60), kind);
		g->stats.faults++;
	} else {
		fault_arm(g, &r, s, kind, when);
	}
}

static bool faults_may(const struct rig *g)
{
	return !g->faults_off && g->o->faults && !world_crashed(g->world);
}

void rig_faults(struct rig *g)
{
	unsigned n = rng_chance(&g->fault_rng, 1, 2) ? 0 : (unsigned)rng_range(&g->fault_rng, 1, 3);

	while (n-- && faults_may(g))
		fault_one(g, false, LATER);
}

void rig_faults_soon(struct rig *g)
{
	unsigned n = rng_chance(&g->fault_rng, 1, 2) ? 0 : (unsigned)rng_range(&g->fault_rng, 2, 5);

	while (n-- && faults_may(g))
		fault_one(g, false, SOON);
}

void rig_aim_fire(struct rig *g, enum rig_state state)
{
	/* The others are not of single members: what puts a copy beside it, and so on, looks at the aim by itself. */
	if (rig_aims_at(g, state) && g->aim.kind < FAULT_CLONE && faults_may(g))
		fault_one(g, g->phase == PHASE_FORMAT && g->beyond, NEXT);
}

void rig_faults_format(struct rig *g)
{
	unsigned n = (unsigned)rng_range(&g->fault_rng, 1, 3);

	rig_aim_fire(g, STATE_FORMATTING);
	while (n--)
		fault_one(g, true, SOON);
}

/* What befell members of a volume that is not yet one is over; for one that shrank another is taken. */
void rig_faults_format_end(struct rig *g)
{
	unsigned n = g->slot_count;

	rig_faults_end(g);
	for (unsigned i = 0; i < n; i++) {
		struct slot *s = &g->slots[i];

		if (simdev_is_gone(s->dev))
			simdev_return(s->dev);
		if (s->shrunk) {
			rig_slot_add(g, s->size_bytes)->in = true;
			s->in = false;
		}
		s->away = !s->in;
		s->suspect = s->damaged = s->shrunk = s->must_count = false;
	}
	g->beyond = g->slow = false;
}

void rig_faults_end(struct rig *g)
{
	bool any = false;

	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (!s->faulty)
			continue;
		any = true;
		s->faulty = false;
		simdev_faults_clear(s->dev);
		simdev_set_read_only(s->dev, false);
		simdev_unhang(s->dev);
	}
	if (any) {
		world_tell(g->world, "faults end");
		co_sleep_ns(10 * NS_PER_MS);
	}
}

/* The volume is closed: what comes back otherwise than it went. Returns a copy to be offered as well, or NULL. */
struct simdev *rig_faults_closed(struct rig *g)
{
	struct rng *r = &g->fault_rng;
	struct slot *s = &g->slots[rng_below(r, g->slot_count)];
	struct simdev *clone = NULL;
	char name[16];

	/* Whoever hung has been reset. A drive that fails goes on failing, perhaps. */
	for (unsigned i = 0; i < g->slot_count; i++) {
		simdev_set_read_only(g->slots[i].dev, false);
		simdev_unhang(g->slots[i].dev);
	}
	if (rng_chance(r, 1, 2))
		rig_faults_end(g);
	co_sleep_ns(NS_PER_MS);
	if (world_crashed(g->world) || s->away || simdev_is_gone(s->dev))
		return NULL;
	if (rig_fault_chance(g, FAULT_STALE, 1, 4)) {
		if (!s->old && s->in) {
			world_tell(g->world, "%s is copied", simdev_name(s->dev));
			snprintf(name, sizeof(name), "o%u", g->spare_number++);
			s->old = simdev_clone(s->dev, name);
			s->old_is_stale = false;
		} else if (s->old && s->old_is_stale && may_be_faulty(g, s) && !(g->beyond && g->honest)) {
			world_tell(g->world, "%s is put back as it was", simdev_name(s->dev));
			simdev_revert(s->dev, s->old);
			simdev_free(s->old);
			s->old = NULL;
			s->old_is_stale = false;
			s->suspect = s->damaged = true;
			g->stats.faults++;
			rig_hit(g, FAULT_STALE);
		}
	}
	if (s->faulty || s->suspect || s->renamed || s->shrunk)
		return NULL;
	snprintf(name, sizeof(name), "c%u", g->spare_number);
	if (s->in && rig_fault_chance(g, FAULT_RENAME, 1, 12)) {
		clone = simdev_clone(s->dev, name);
		world_tell(g->world, "%s is %s from now on", simdev_name(s->dev), name);
		simdev_free(s->dev);
		s->dev = clone;
		s->renamed = true;
		rig_watch(g, clone);
		rig_hit(g, FAULT_RENAME);
		g->spare_number++;
		g->stats.faults++;
		return NULL;
	}
	if (!rig_fault_chance(g, FAULT_CLONE, 1, 8))
		return NULL;
	g->spare_number++;
	g->stats.faults++;
	rig_hit(g, FAULT_CLONE);
	world_tell(g->world, "%s is a copy of %s", name, simdev_name(s->dev));
	return simdev_clone(s->dev, name);
}

/* What the member says of itself, or a checksum: not what it claims to have done. */
static bool fault_is_honest(enum rig_fault kind)
{
	switch (kind) {
	case FAULT_LOST:
	case FAULT_DAY:
	case FAULT_MISDIRECTED:
	case FAULT_DUPLICATE:
	case FAULT_TORN:
	case FAULT_LIE:
	case FAULT_RESET:
		return false;
	default:
		return true;
	}
}

void rig_faults_beyond(struct rig *g, bool honest)
{
	struct rng *r = &g->fault_rng;

	rig_say(g, "beyond what is tolerated");
	rig_hit(g, FAULT_BEYOND);
	g->beyond = g->slow = true;
	g->honest = honest;
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];
		unsigned n = (unsigned)rng_range(r, 1, 3);

		if (!s->in || s->away || simdev_is_gone(s->dev) || rng_chance(r, 1, 4))
			continue;
		if (rng_chance(r, 1, 6)) {
			simdev_vanish(s->dev, rng_chance(r, 1, 2));
			continue;
		}
		while (n--) {
			struct rng f;
			bool skip = !rig_turn(g, SKIP_FAULT, &f);
			enum rig_fault kind = (enum rig_fault)rng_below(&f, FAULT_CLONE);

			if (skip || !(g->o->faults >> kind & 1) || (honest && !fault_is_honest(kind)))
				continue;
			if (kind == FAULT_DAMAGE || kind == FAULT_ZERO)
				damage_slot(g, &f, s, (unsigned)rng_range(&f, 1, 2000), kind);
			else
				fault_arm(g, &f, s, kind, LATER);
			s->faulty = true;
		}
	}
}

/* Of the pages that the members have, the block that r draws. */
static bool draw_page(struct rig *g, struct rng *r, struct page_disk *ret)
{
	uint64_t seen = 0;

	for (unsigned i = 0; i < g->slot_count; i++) {
		const struct slot *s = &g->slots[i];

		for (uint64_t off = 0; s->in && !s->away && off < simdev_size_bytes(s->dev); off += BLOCK_BYTES) {
			struct page_disk d;

			if (!simdev_written(s->dev, off))
				continue;
			simdev_peek(s->dev, off, &d, offsetof(struct page_disk, body));
			if (from_le64(d.magic) == PAGE_MAGIC && !rng_below(r, ++seen))
				*ret = d;
		}
	}
	return seen;
}

/* Every block that has the newest generation of the page, on all members. */
static void lose_page(struct rig *g, struct rng *r, const struct page_disk *page)
{
	uint64_t newest = 0;

	for (unsigned pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < g->slot_count; i++) {
			struct slot *s = &g->slots[i];

			for (uint64_t off = 0; s->in && !s->away && off < simdev_size_bytes(s->dev); off += BLOCK_BYTES) {
				struct page_disk d;

				if (!simdev_written(s->dev, off))
					continue;
				simdev_peek(s->dev, off, &d, offsetof(struct page_disk, body));
				if (from_le64(d.magic) != PAGE_MAGIC || d.chunk.raw != page->chunk.raw ||
				    d.page.raw != page->page.raw)
					continue;
				if (!pass)
					newest = MAX(newest, from_le64(d.gen));
				else if (from_le64(d.gen) == newest && rng_chance(r, 1, 2))
					simdev_garble(s->dev, off, BLOCK_BYTES);
				else if (from_le64(d.gen) == newest)
					simdev_zero(s->dev, off, BLOCK_BYTES);
			}
		}
	}
	world_tell(g->world, "chunk %u page %u generation %llu is lost", from_le32(page->chunk), from_le32(page->page),
		   (unsigned long long)newest);
}

void rig_lose_pages(struct rig *g)
{
	struct rng *r = &g->fault_rng;
	unsigned n = (unsigned)rng_range(r, 1, 6);
	struct page_disk page;

	rig_say(g, "losing pages");
	g->beyond = g->slow = g->honest = true;
	while (n-- && draw_page(g, r, &page))
		lose_page(g, r, &page);
}

void rig_beyond_closed(struct rig *g)
{
	struct rng *r = &g->fault_rng;

	if (rng_chance(r, 1, 2))
		rig_faults_end(g);
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (!s->in || !rng_chance(r, 3, 4))
			continue;
		s->away = false;
		if (simdev_is_gone(s->dev))
			simdev_return(s->dev);
	}
}

bool rig_beyond_error(const struct rig *g, int err)
{
	return g->beyond && (err == -EIO || err == -EBADMSG || err == -EROFS);
}

void rig_freeze(struct rig *g)
{
	struct rng *r = &g->fault_rng;

	rig_say(g, "freezing");
	rig_faults_end(g);
	rig_hit(g, FAULT_FREEZE);
	for (unsigned i = 0; i < g->slot_count; i++) {
		struct slot *s = &g->slots[i];

		if (!s->in || s->away || simdev_is_gone(s->dev) || rng_chance(r, 1, 3))
			continue;
		s->frozen = s->suspect = true;
		simdev_vanish(s->dev, rng_chance(r, 1, 2));
	}
}

void rig_thaw(struct rig *g)
{
	for (unsigned i = 0; i < g->slot_count; i++) {
		if (!g->slots[i].frozen)
			continue;
		g->slots[i].frozen = false;
		simdev_return(g->slots[i].dev);
	}
	g->beyond = false;
	/* Each of them may lack what was in its cache: nothing more may happen to any until all are mended. */
	g->faults_off = true;
}
