/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Making a volume: its geometry from the devices given, and its first bytes.
 *
 * The plan touches nothing, so mkfs --dry-run shows exactly what would be made. Everything a person
 * may get wrong is refused here with what was got and what was expected.
 *
 * Sizes. A slice is a power of two, so that the smallest member has about 64: enough that free
 * space can be moved about in small steps and rebuilds proceed in many, few enough that the table
 * stays small; at most 1 GiB, unless that made more than SLICES_TOTAL_MAX of them, and at least 32
 * strips, so that rounding to whole strips costs little. The journal takes 1/64 of the smallest
 * member, within limits; on small members less than its usual least, so that it never takes more
 * than an eighth.
 *
 * Order of writes: labels wiped on all devices; first chunk; flush; table. Until the first table is
 * there the devices hold no filesystem, and none that they held before. The table is written twice,
 * so that all four places of each member are filled and two later generations can be told from
 * none.
 */
#include "buf.h"
#include "co.h"
#include "format.h"
#include "geom.h"
#include "io.h"
#include "label.h"
#include "page.h"
#include "raid.h"
#include "table.h"
#include <inttypes.h>

#define MIB			 (UINT64_C(1) << 20)
#define STRIP_BYTES_DEFAULT	 (64ull << 10)
#define GROUPS_DEFAULT		 2u
#define SLICES_WANTED		 64u /* of the smallest member */
#define SLICE_BYTES_WANTED_MAX	 (1ull << 30)
#define SLICE_BYTES_MAX		 (1ull << 40)
#define STRIPS_PER_SLICE_MIN	 32u
#define JOURNAL_SHARE		 64u
#define JOURNAL_SHARE_MAX	 8u /* at most an eighth of the member unless asked for */
#define JOURNAL_BYTES_WANTED_MIN (8 * MIB)
#define JOURNAL_BYTES_WANTED_MAX (128 * MIB)

static bool is_power_of_two(uint64_t x)
{
	return x && (x & (x - 1)) == 0;
}

/* ---- the plan ---- */

static int check_devices(struct dev **devs, unsigned count)
{
	if (count == 0 || count > MEMBERS_MAX) {
		log_error("members: got %u, expected 1 to %u", count, MEMBERS_MAX);
		return -EINVAL;
	}
	for (unsigned i = 0; i < count; i++) {
		const struct dev *dev = devs[i];

		if (dev->size_bytes < MEMBER_BYTES_MIN) {
			log_error("%s: too small: got %" PRIu64
				  " bytes, expected at least %llu MiB",
				  dev->name, dev->size_bytes, MEMBER_BYTES_MIN / MIB);
			return -ENOSPC;
		}
		if (dev->sector_bytes > BLOCK_BYTES || !is_power_of_two(dev->sector_bytes)) {
			log_error("%s: sector size: got %u, expected at most %u", dev->name,
				  dev->sector_bytes, BLOCK_BYTES);
			return -EINVAL;
		}
		for (unsigned k = 0; k < i; k++) {
			if (devs[k] == dev) {
				log_error("%s: given twice", dev->name);
				return -EINVAL;
			}
		}
	}
	return 0;
}

static int plan_level(struct table *t, unsigned count, const struct raid_format_params *params)
{
	unsigned level, groups, min;

	if (params->level >= 0) {
		level = (unsigned)params->level;
	} else if (count == 1) {
		log_error("one member has no redundancy: ask for RAID 0 if that is meant, or give "
			  "more members");
		return -EINVAL;
	} else {
		level = count == 2 ? 1 : count <= 4 ? 5 : 6;
	}
	min = geom_columns_min(level);
	if (min > MEMBERS_MAX) {
		log_error("RAID level: got %u, expected one of 0 1 5 6 10 50 60", level);
		return -EINVAL;
	}
	groups = 1;
	if (level >= 50) {
		groups = params->groups ? params->groups : GROUPS_DEFAULT;
		if (groups < 2 || groups > MEMBERS_MAX) {
			log_error("groups: got %u, expected at least 2", groups);
			return -EINVAL;
		}
		min = min / 2 * groups;
	} else if (params->groups > 1) {
		log_error("groups: got %u, but %s has none", params->groups,
			  geom_level_text(level));
		return -EINVAL;
	}
	if (count < min) {
		log_error("members: got %u, expected at least %u for %s", count, min,
			  geom_level_text(level));
		return -EINVAL;
	}
	t->level = level;
	t->groups = groups;
	t->tolerance = geom_tolerance(level, count);
	return 0;
}

static int plan_strip(struct table *t, const struct raid_format_params *params)
{
	uint64_t strip = params->strip_bytes ? params->strip_bytes : STRIP_BYTES_DEFAULT;

	if (!is_power_of_two(strip) || strip < STRIP_BYTES_MIN || strip > STRIP_BYTES_MAX) {
		log_error("strip size: got %" PRIu64 ", expected a power of two from %u to %u",
			  strip, STRIP_BYTES_MIN, STRIP_BYTES_MAX);
		return -EINVAL;
	}
	t->strip_blocks = (uint32_t)(strip >> BLOCK_SHIFT);
	return 0;
}

static uint64_t smallest(struct dev **devs, unsigned count)
{
	uint64_t bytes = UINT64_MAX;

	for (unsigned i = 0; i < count; i++)
		bytes = MIN(bytes, devs[i]->size_bytes);
	return bytes;
}

static int plan_journal(struct table *t, uint64_t member_bytes,
			const struct raid_format_params *params)
{
	uint64_t journal = params->journal_bytes;

	if (journal == 0) {
		journal = member_bytes / JOURNAL_SHARE;
		journal = MIN(MAX(journal, JOURNAL_BYTES_WANTED_MIN), JOURNAL_BYTES_WANTED_MAX);
		journal = MIN(journal, member_bytes / JOURNAL_SHARE_MAX);
		journal = MAX(ROUND_DOWN(journal, MIB), JOURNAL_BYTES_MIN);
	} else if (journal < JOURNAL_BYTES_MIN || journal > JOURNAL_BYTES_MAX ||
		   journal % BLOCK_BYTES) {
		log_error("journal size: got %" PRIu64
			  ", expected a multiple of %u from %llu MiB to %llu MiB",
			  journal, BLOCK_BYTES, JOURNAL_BYTES_MIN / MIB, JOURNAL_BYTES_MAX / MIB);
		return -EINVAL;
	} else if (journal > member_bytes / 2) {
		log_error("journal size: got %" PRIu64
			  ", expected at most half of the smallest member, %" PRIu64,
			  journal, member_bytes / 2);
		return -EINVAL;
	}
	t->journal_off_bytes = LABEL_AREA_BYTES;
	t->journal_bytes = journal;
	t->slices_off_bytes = ROUND_UP(t->journal_off_bytes + journal, MIB);
	return 0;
}

static uint64_t total_slices(const struct table *t, struct dev **devs, unsigned count)
{
	uint64_t slices = 0;

	for (unsigned i = 0; i < count; i++)
		slices += table_slices_fit(t, devs[i]->size_bytes);
	return slices;
}

static int plan_slices(struct table *t, struct dev **devs, unsigned count,
		       const struct raid_format_params *params)
{
	uint64_t strip = (uint64_t)t->strip_blocks << BLOCK_SHIFT, member = smallest(devs, count),
		 wanted;

	if (params->slice_bytes) {
		t->slice_bytes = params->slice_bytes;
		if (!is_power_of_two(t->slice_bytes) || t->slice_bytes < SLICE_BYTES_MIN ||
		    t->slice_bytes > SLICE_BYTES_MAX || t->slice_bytes < 2 * strip) {
			log_error("slice size: got %" PRIu64
				  ", expected a power of two from %" PRIu64 " to %llu",
				  t->slice_bytes, (uint64_t)MAX(SLICE_BYTES_MIN, 2 * strip),
				  SLICE_BYTES_MAX);
			return -EINVAL;
		}
	} else {
		wanted = member > t->slices_off_bytes
			     ? (member - t->slices_off_bytes) / SLICES_WANTED
			     : 0;
		wanted = MIN(wanted, SLICE_BYTES_WANTED_MAX);
		t->slice_bytes = SLICE_BYTES_MIN;
		while (t->slice_bytes * 2 <= wanted ||
		       t->slice_bytes < STRIPS_PER_SLICE_MIN * strip)
			t->slice_bytes *= 2;
		while (total_slices(t, devs, count) > SLICES_TOTAL_MAX &&
		       t->slice_bytes < SLICE_BYTES_MAX)
			t->slice_bytes *= 2;
	}
	if (total_slices(t, devs, count) > SLICES_TOTAL_MAX) {
		log_error("slices of %" PRIu64 " bytes: got %" PRIu64
			  " of them, expected at most %u",
			  t->slice_bytes, total_slices(t, devs, count), SLICES_TOTAL_MAX);
		return -EINVAL;
	}
	return 0;
}

static int plan_members(struct table *t, struct dev **devs, unsigned count)
{
	static const struct uuid null; /* raid_format draws them */

	for (unsigned i = 0; i < count; i++) {
		unsigned index;
		int err = table_member_add(t, &null, devs[i]->size_bytes, 0, &index);

		if (err == -ENOSPC)
			log_error("%s: too small: got %" PRIu64 " bytes, expected at least %" PRIu64
				  " for one slice of %" PRIu64,
				  devs[i]->name, devs[i]->size_bytes,
				  table_member_bytes_min(t, 1) + MIB, t->slice_bytes);
		if (err)
			return err;
		label_member_here(&t->members[index], devs[i]);
	}
	return 0;
}

/* A chunk for metadata, one to spare, and at least one for data. */
static int check_room(const struct table *t)
{
	if (table_potential_blocks(t, CHUNK_DATA) > 0)
		return 0;
	log_error("members too small: got slices of %" PRIu64 " MiB after a journal of %" PRIu64
		  " MiB on each, expected room for metadata and one chunk of data",
		  t->slice_bytes / MIB, t->journal_bytes / MIB);
	return -ENOSPC;
}

static int plan(struct table *t, struct dev **devs, unsigned count,
		const struct raid_format_params *params)
{
	const char *name = params->name ? params->name : "";
	int err;

	if (strlen(name) >= LABEL_NAME_BYTES) {
		log_error("label: got %zu bytes, expected at most %u", strlen(name),
			  LABEL_NAME_BYTES - 1);
		return -EINVAL;
	}
	memcpy(t->name, name, strlen(name));
	if (params->fs)
		t->fs = *params->fs;
	err = plan_level(t, count, params);
	if (!err)
		err = plan_strip(t, params);
	if (!err)
		err = plan_journal(t, smallest(devs, count), params);
	if (!err)
		err = plan_slices(t, devs, count, params);
	if (!err)
		err = plan_members(t, devs, count);
	if (!err)
		err = check_room(t);
	return err;
}

int raid_plan(struct dev **devs, unsigned count, const struct raid_format_params *params,
	      struct table **ret)
{
	struct table *t;
	int err = check_devices(devs, count);

	if (err)
		return err;
	t = table_new();
	if (!t)
		return -ENOMEM;
	err = plan(t, devs, count, params);
	if (err) {
		table_free(t);
		return err;
	}
	*ret = t;
	return 0;
}

/* ---- the first bytes ---- */

/* Random, version 4. */
static void draw_uuid(struct loop *loop, struct uuid *ret)
{
	uint64_t x[2] = {loop_random(loop), loop_random(loop)};

	memcpy(ret->b, x, sizeof(ret->b));
	ret->b[6] = (uint8_t)((ret->b[6] & 0x0f) | 0x40);
	ret->b[8] = (uint8_t)((ret->b[8] & 0x3f) | 0x80);
}

/* Not in the plan: a dry run opens them for reading. */
static int check_writable(struct dev **devs, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (devs[i]->read_only) {
			log_error("%s: device is read-only", devs[i]->name);
			return -EROFS;
		}
	}
	return 0;
}

static int wipe_all(struct dev **devs, unsigned count)
{
	int ret = 0;

	for (unsigned i = 0; i < count; i++) {
		int err = label_wipe(devs[i]);

		if (err) {
			log_error("%s: cannot wipe labels: %s", devs[i]->name, strerror(-err));
			ret = err;
		}
	}
	return ret;
}

static int flush_all(struct dev **devs, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		/* W6. The crash: the table is there and the chunk that it promises is not. */
		int err = BREAK(flush_mkfs) ? 0 : io_flush_sync(devs[i]);

		if (err) {
			log_error("%s: cannot flush: %s", devs[i]->name, strerror(-err));
			return err;
		}
	}
	return 0;
}

static int write_table(struct table *t, struct loop *loop)
{
	for (unsigned n = 0; n < LABEL_PLACES; n++) {
		int err = label_write_table(t, loop, NULL);

		if (err) {
			log_error("cannot write the volume table: %s", strerror(-err));
			return err;
		}
	}
	/* A volume may lose a member later, not while it is made. */
	for (unsigned i = 0; i < t->member_count; i++) {
		if (t->members[i].state != MEMBER_ACTIVE)
			return -EIO;
	}
	return 0;
}

static int format(struct loop *loop, struct table *t, struct dev **devs, unsigned count)
{
	struct chunk *chunk;
	int err;

	err = table_chunk_add(t, CHUNK_META, &chunk);
	if (err)
		return err;
	assert(chunk->number == LBA_CHUNK(LBA_ROOT));
	err = page_format_chunk(loop, t, chunk);
	if (!err)
		err = page_format_root(loop, t, chunk);
	if (err) {
		log_error("cannot write the first chunk: %s", strerror(-err));
		return err;
	}
	err = flush_all(devs, count);
	if (!err)
		err = write_table(t, loop);
	return err;
}

int raid_format(struct loop *loop, struct dev **devs, unsigned count,
		const struct raid_format_params *params)
{
	struct table *t;
	int err = raid_plan(devs, count, params, &t);

	if (err)
		return err;
	err = check_writable(devs, count);
	if (err) {
		table_free(t);
		return err;
	}
	if (uuid_is_null(&t->fs))
		draw_uuid(loop, &t->fs);
	for (unsigned i = 0; i < t->member_count; i++)
		draw_uuid(loop, &t->members[i].uuid);
	t->epoch = 1;
	t->salt = loop_random(loop);
	t->flags = TABLE_CLEAN;
	err = wipe_all(devs, count);
	if (!err) {
		err = format(loop, t, devs, count);
		if (err)
			(void)wipe_all(devs, count); /* err says more; each failure is logged */
	}
	table_free(t);
	return err;
}
