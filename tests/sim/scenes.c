/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The scenes that are crashed at every point: each is about one way in which the volume changes what is on its
 * members. They are as short as shows it, since every I/O more is a point more, with all its outcomes.
 */
#include "scenes.h"
#include "raid/volume.h"

#define MIB (1ull << 20)

#define DO(call)                                                                                   \
	do {                                                                                       \
		int err_ = script_must(s, call, #call);                                            \
		if (err_)                                                                          \
			return err_;                                                               \
	} while (0)

static uint64_t stripe_bytes(struct script *s)
{
	struct rig *g = &s->rig;
	unsigned data = g->level == 1 ? 1 : g->level == 10 ? 2 : g->member_count - g->tolerance;

	return data * g->format.strip_bytes;
}

/* A member is away from the beginning. */
static int lose_first(struct script *s)
{
	DO(script_unmount(s));
	s->rig.slots[0].away = s->rig.slots[0].suspect = true;
	DO(script_mount(s));
	return 0;
}

static int format_step(struct script *s)
{
	return script_must(s, script_format(s), "formatting");
}

static int small_prepare(struct script *s)
{
	DO(script_create(s, "a"));
	DO(script_write(s, "a", 0, 20000, 1));
	DO(script_sync(s));
	return 0;
}

static int small_degraded_prepare(struct script *s)
{
	DO(small_prepare(s));
	return lose_first(s);
}

static int small_step(struct script *s)
{
	DO(script_write(s, "a", 100, 100, 2));
	DO(script_fsync(s, "a"));
	DO(script_write(s, "a", 7000, 6000, 3));
	DO(script_fsync(s, "a"));
	return 0;
}

static int stripe_prepare(struct script *s)
{
	DO(script_create(s, "a"));
	DO(script_sync(s));
	return 0;
}

static int stripe_step(struct script *s)
{
	DO(script_write(s, "a", 0, 2 * stripe_bytes(s), 1));
	DO(script_sync(s));
	DO(script_write(s, "a", stripe_bytes(s), stripe_bytes(s), 2)); /* redirected */
	DO(script_sync(s));
	return 0;
}

/*
 * Rows in which every other block is live, and no others left: what is written now shares its row. The two files take
 * turns with single blocks.
 */
static int shared_prepare(struct script *s)
{
	DO(script_create(s, "keep"));
	DO(script_create(s, "holes"));
	for (unsigned i = 0; i < 24; i++) {
		DO(script_write(s, i % 2 ? "keep" : "holes", i / 2 * BLOCK_BYTES, BLOCK_BYTES, (uint8_t)i));
		DO(script_fsync(s, i % 2 ? "keep" : "holes"));
	}
	DO(script_sync(s));
	DO(script_ballast(s, 0));
	DO(script_unlink(s, "holes"));
	DO(script_create(s, "a"));
	DO(script_sync(s));
	return 0;
}

static int shared_degraded_prepare(struct script *s)
{
	DO(shared_prepare(s));
	return lose_first(s);
}

static int shared_step(struct script *s)
{
	DO(script_write(s, "a", 0, 3 * BLOCK_BYTES, 7));
	DO(script_sync(s));
	DO(script_write(s, "a", BLOCK_BYTES, BLOCK_BYTES, 9));
	DO(script_sync(s));
	return 0;
}

static int rename_step(struct script *s)
{
	DO(script_create(s, "b"));
	DO(script_write(s, "b", 0, 9000, 5));
	DO(script_rename(s, "b", "a"));
	DO(script_fsync(s, "a"));
	return 0;
}

static int checkpoint_prepare(struct script *s)
{
	DO(small_prepare(s));
	DO(script_write(s, "a", 0, 4 * stripe_bytes(s), 3));
	for (unsigned i = 0; i < 4; i++) {
		char name[8] = {'f', (char)('0' + i), 0};

		DO(script_create(s, name));
		DO(script_write(s, name, 0, 5000, (uint8_t)i));
		DO(script_fsync(s, name));
	}
	return 0;
}

static int checkpoint_step(struct script *s)
{
	DO(journal_checkpoint(s->rig.raid));
	return 0;
}

/* The table says that a member is out, while it is written to. */
static int fail_step(struct script *s)
{
	struct rig *g = &s->rig;

	DO(script_write(s, "a", 0, 5000, 4));
	g->slots[1].suspect = true;
	DO(raid_fail(g->raid, 1));
	DO(script_write(s, "a", 4096, 9000, 5));
	DO(script_sync(s));
	return 0;
}

static int pull_step(struct script *s)
{
	struct slot *m = &s->rig.slots[1];

	DO(script_write(s, "a", 0, 5000, 4));
	m->suspect = m->away = true;
	simdev_vanish(m->dev, true);
	DO(script_write(s, "a", 4096, 9000, 5));
	DO(script_sync(s));
	return 0;
}

static int replace_step(struct script *s)
{
	DO(rig_replace_any(&s->rig, &s->rig.rng, false));
	DO(raid_rebuild_wait(s->rig.raid));
	return 0;
}

static int rebuild_step(struct script *s)
{
	DO(rig_replace_any(&s->rig, &s->rig.rng, true));
	DO(script_write(s, "a", 4096, 9000, 5));
	DO(script_fsync(s, "a"));
	DO(raid_rebuild_wait(s->rig.raid));
	return 0;
}

/* A member that was away for a while is brought up to date. */
static int rejoin_prepare(struct script *s)
{
	DO(small_degraded_prepare(s));
	DO(script_write(s, "a", 0, 2 * stripe_bytes(s), 3));
	DO(script_unmount(s));
	s->rig.slots[0].away = false;
	return 0;
}

static int rejoin_step(struct script *s)
{
	DO(script_mount(s));
	DO(raid_rebuild_wait(s->rig.raid));
	return 0;
}

/* All that was ever written to a member behind its journal, but for its labels. */
static int scrub_prepare(struct script *s)
{
	struct slot *m = &s->rig.slots[1];
	uint64_t at = MIB + s->rig.format.journal_bytes;

	DO(small_prepare(s));
	DO(script_write(s, "a", 0, 2 * stripe_bytes(s), 3));
	DO(script_sync(s));
	DO(script_unmount(s));
	for (unsigned n = 0; at < simdev_size_bytes(m->dev) - MIB && n < 12; at += BLOCK_BYTES) {
		if (simdev_written(m->dev, at)) {
			simdev_garble(m->dev, at, BLOCK_BYTES);
			n++;
		}
	}
	m->suspect = m->damaged = true;
	DO(script_mount(s));
	return 0;
}

static int scrub_step(struct script *s)
{
	DO(raid_scrub_start(s->rig.raid));
	DO(raid_scrub_wait(s->rig.raid));
	return 0;
}

/* Crashed with work in all stages; the step is the replay. */
static int replay_prepare(struct script *s)
{
	DO(checkpoint_prepare(s));
	DO(script_write(s, "a", 0, 3 * stripe_bytes(s), 6));
	DO(script_fsync(s, "a"));
	DO(script_write(s, "f1", 0, 50000, 7));
	world_crash_at(s->rig.world, POINT_DONE_WRITE, 3);
	(void)script_sync(s); /* cut off */
	world_crash(s->rig.world);
	rig_bury(&s->rig);
	return 0;
}

static int replay_degraded_prepare(struct script *s)
{
	DO(replay_prepare(s));
	s->rig.slots[1].away = s->rig.slots[1].suspect = true;
	return 0;
}

static int mount_step(struct script *s)
{
	DO(script_mount(s));
	return 0;
}

static int labels_prepare(struct script *s)
{
	DO(small_prepare(s));
	DO(script_unmount(s));
	return 0;
}

static int labels_step(struct script *s)
{
	DO(script_mount(s));
	DO(script_write(s, "a", 0, 100, 8));
	DO(script_unmount(s));
	return 0;
}

static int reuse_prepare(struct script *s)
{
	DO(script_create(s, "a"));
	DO(script_create(s, "b"));
	DO(script_write(s, "a", 0, 2 * stripe_bytes(s), 1));
	DO(script_sync(s));
	DO(script_ballast(s, 8));
	DO(script_sync(s));
	return 0;
}

/* Of a full filesystem: there is nowhere else to write than where something was freed. */
static int reuse_step(struct script *s)
{
	DO(script_truncate(s, "a", stripe_bytes(s) + 100));
	DO(script_sync(s));
	DO(script_write(s, "b", 0, stripe_bytes(s) / 2, 2));
	DO(script_sync(s));
	DO(script_unlink(s, "a"));
	DO(script_sync(s));
	DO(script_write(s, "b", stripe_bytes(s) / 2, stripe_bytes(s) / 2, 3));
	DO(script_sync(s));
	return 0;
}

static int unmount_step(struct script *s)
{
	DO(script_write(s, "a", 0, 2 * stripe_bytes(s), 4));
	DO(script_create(s, "c"));
	DO(script_unmount(s));
	return 0;
}

/* A little of everything, drawn from the seed. */
static int work_step(struct script *s)
{
	s->work.sync_percent = 15;
	work_start(&s->work, 60);
	rig_join(&s->rig);
	return world_crashed(s->rig.world) ? -ENODEV : 0;
}

const struct scene scenes[] = {
    {.name = "mkfs", .prepare = NULL, .step = format_step, .unformatted = true, .unmounted = true},
    {.name = "fsync", .prepare = small_prepare, .step = small_step},
    {.name = "fsync-degraded", .prepare = small_degraded_prepare, .step = small_step, .degraded = 1},
    {.name = "stripe", .prepare = stripe_prepare, .step = stripe_step},
    {.name = "shared", .prepare = shared_prepare, .step = shared_step, .parity = true},
    {.name = "shared-degraded", .prepare = shared_degraded_prepare, .step = shared_step, .parity = true, .degraded = 1},
    {.name = "rename", .prepare = small_prepare, .step = rename_step},
    {.name = "checkpoint", .prepare = checkpoint_prepare, .step = checkpoint_step},
    {.name = "fail", .prepare = small_prepare, .step = fail_step, .degraded = 1},
    {.name = "pull", .prepare = small_prepare, .step = pull_step, .degraded = 1},
    {.name = "replace", .prepare = small_prepare, .step = replace_step, .degraded = 1},
    {.name = "rebuild", .prepare = small_prepare, .step = rebuild_step, .degraded = 1},
    {.name = "rejoin", .prepare = rejoin_prepare, .step = rejoin_step, .unmounted = true, .degraded = 1},
    {.name = "scrub", .prepare = scrub_prepare, .step = scrub_step, .degraded = 1},
    {.name = "replay", .prepare = replay_prepare, .step = mount_step, .unmounted = true},
    {.name = "replay-degraded", .prepare = replay_degraded_prepare, .step = mount_step, .unmounted = true, .degraded = 1},
    {.name = "labels", .prepare = labels_prepare, .step = labels_step, .unmounted = true},
    {.name = "reuse", .prepare = reuse_prepare, .step = reuse_step},
    {.name = "unmount", .prepare = small_prepare, .step = unmount_step},
    {.name = "work", .prepare = small_prepare, .step = work_step},
};
const unsigned scene_count = ARRAY_SIZE(scenes);
