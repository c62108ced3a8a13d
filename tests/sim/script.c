/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Scripts.
 *
 * The bench is rig.h's, with members of our own in its slots: small, of one size, with volatile caches, sectors of
 * 512 bytes and 4096 by turns, so that what a crash leaves is the same few sectors each time. Wherever the bench
 * would draw, it draws from the script's seed.
 */
#include "script.h"
#include "raid/buf.h"
#include <stdio.h>
#include <stdlib.h>

#define MIB	       (1ull << 20)
#define MEMBER_BYTES   (48 * MIB)
#define STRIP_BYTES    (16u << 10)
#define WRITE_BYTES_MAX (1u << 20)

static const struct fs_cred root_cred;

static void abandon_fs(void *arg)
{
	struct script *s = arg;

	if (s->work.fs)
		fs_abandon(s->work.fs);
	s->work.fs = NULL;
}

static unsigned level_members(unsigned level)
{
	return level == 1 || level == 5 ? 3 : 4;
}

void script_init(struct script *s, unsigned level, uint64_t seed, bool verbose)
{
	struct rig *g = &s->rig;

	memset(s, 0, sizeof(*s));
	s->options = (struct sim_options){
	    .seed = seed,
	    .level = (int)level,
	    .members = level_members(level),
	    .verbose = verbose,
	    .replay = s->replay,
	};
	rig_init(g, &s->options);
	g->faults_off = true;
	g->page_cache_bytes = 0;
	g->abandon = abandon_fs;
	g->abandon_arg = s;
	g->member_count = s->options.members;
	g->tolerance = geom_tolerance(level, g->member_count);
	g->format.strip_bytes = STRIP_BYTES;
	g->format.journal_bytes = 4 * MIB;
	g->format.slice_bytes = 4 * MIB;
	while (g->slot_count)
		simdev_free(g->slots[--g->slot_count].dev);
	for (unsigned i = 0; i < g->member_count; i++) {
		struct simdev_params p = {.size_bytes = MEMBER_BYTES,
					  .sector_bytes = i % 2 ? 4096 : 512,
					  .volatile_cache = true,
					  .crash_keep = 50,
					  .crash_garble = 10};
		char name[16];

		snprintf(name, sizeof(name), "m%u", i);
		g->slots[g->slot_count++] = (struct slot){.dev = simdev_new(g->world, name, &p),
							  .size_bytes = MEMBER_BYTES,
							  .in = true,
							  .replaces = -1};
		rig_must(g, g->slots[i].dev, "no memory");
	}
	g->spare_number = g->slot_count;
	work_init(&s->work, g, 2);
	s->fs_options.dirty_bytes_max = 4 * MIB;
	s->fs_options.node_cache_bytes = MIB;
}

void script_exit(struct script *s)
{
	work_exit(&s->work);
	rig_exit(&s->rig);
}

int script_must(struct script *s, int err, const char *what)
{
	if (err && !rig_excused(&s->rig))
		rig_fail(&s->rig, "%s: %s", what, strerror(-err));
	return err;
}

/* ---- the volume ---- */

int script_format(struct script *s)
{
	struct dev *devs[RIG_MEMBERS_MAX];
	struct rig *g = &s->rig;
	static const struct raid_options none;
	struct raid *raid;
	int err, e;

	rig_say(g, "formatting");
	for (unsigned i = 0; i < g->member_count; i++) {
		devs[i] = simdev_open(g->slots[i].dev);
		rig_must(g, devs[i], "no memory");
	}
	err = raid_format(g->loop, devs, g->member_count, &g->format);
	if (!err)
		err = raid_open(g->loop, devs, g->member_count, &g->fs, &none, &raid);
	if (err) {
		for (unsigned i = 0; i < g->member_count; i++)
			dev_close(devs[i]);
		return err;
	}
	err = fs_format(raid);
	if (world_crashed(g->world)) {
		g->raid = raid; /* for rig_bury */
		return -ENODEV;
	}
	e = raid_close(raid);
	return err ? err : e;
}

int script_mount(struct script *s)
{
	struct rig *g = &s->rig;
	int err = rig_open(g, 0);

	if (err)
		return err;
	rig_members_update(g);
	rig_say(g, "mounting");
	err = fs_mount(g->raid, &s->fs_options, &s->work.fs);
	if (err)
		s->work.fs = NULL;
	return script_must(s, err, "fs_mount");
}

int script_unmount(struct script *s)
{
	int err;

	rig_say(&s->rig, "unmounting");
	err = fs_unmount(s->work.fs);
	s->work.fs = NULL;
	if (script_must(s, err, "fs_unmount"))
		return err;
	err = rig_close(&s->rig);
	if (!err)
		model_synced(&s->work.model, model_tick(&s->work.model));
	return err;
}

int script_judge(struct script *s)
{
	struct model found;
	int err;

	rig_say(&s->rig, "comparing");
	err = work_read_all(&s->work, &found);
	if (!err)
		model_judge(&s->work.model, &found);
	return err;
}

int script_begin(struct script *s)
{
	int err = script_must(s, script_format(s), "formatting");

	if (!err)
		err = script_mount(s);
	if (!err)
		err = work_make_homes(&s->work);
	return err;
}

/* ---- operations ---- */

static struct mobj *home(struct script *s)
{
	return s->work.model.workers[0].home;
}

struct mobj *script_find(struct script *s, const char *name)
{
	struct mobj *o = model_lookup(home(s), name);

	rig_must(&s->rig, o, "the script knows no %s", name);
	return o;
}

/* An error leaves nothing done, but for a crash: then it may have been. */
static int ended(struct script *s, struct mop *op, int err)
{
	if (world_crashed(s->rig.world))
		return -ENODEV;
	s->work.model.now_ns = world_now_ns(s->rig.world);
	model_end(op, !err);
	return err;
}

int script_create(struct script *s, const char *name)
{
	struct mop *op = model_begin(&s->work.model, 0, "create %s", name);
	struct mobj *o = model_create(op, home(s), name, M_REG, 0644, 0, NULL);
	struct fs_attr attr;
	int err = fs_mknod(s->work.fs, home(s)->ino, name, S_IFREG | 0644, 0, 0, &root_cred, &attr);

	if (!err) {
		o->ino = attr.ino;
		fs_unref(s->work.fs, attr.ino, 1);
	}
	return ended(s, op, err);
}

int script_unlink(struct script *s, const char *name)
{
	struct mop *op = model_begin(&s->work.model, 0, "unlink %s", name);

	model_unlink(op, home(s), name);
	return ended(s, op, fs_unlink(s->work.fs, home(s)->ino, name));
}

int script_rename(struct script *s, const char *name, const char *new_name)
{
	struct mop *op = model_begin(&s->work.model, 0, "rename %s %s", name, new_name);

	model_rename(op, home(s), name, home(s), new_name);
	return ended(s, op, fs_rename(s->work.fs, home(s)->ino, name, home(s)->ino, new_name, 0));
}

/* The same for data, of which any part may have been done. */
static int data_ended(struct script *s, struct mobj *o, int err)
{
	if (world_crashed(s->rig.world))
		return -ENODEV;
	s->work.model.now_ns = world_now_ns(s->rig.world);
	model_data_end(&s->work.model, o);
	return err;
}

int script_write(struct script *s, const char *name, uint64_t off, size_t len, uint8_t fill)
{
	struct mobj *o = script_find(s, name);
	uint8_t *bytes = s->work.workers[0].bytes;
	int err = 0;

	while (len && !err) {
		size_t n = MIN(len, (size_t)WRITE_BYTES_MAX);

		for (size_t i = 0; i < n; i++)
			bytes[i] = (uint8_t)(fill + 17 * ((off + i) / 512) + i % 251);
		model_write(&s->work.model, o, off, bytes, n);
		err = data_ended(s, o, fs_write(s->work.fs, o->ino, off, bytes, n, 0));
		off += n;
		len -= n;
	}
	return err;
}

int script_truncate(struct script *s, const char *name, uint64_t size)
{
	struct mobj *o = script_find(s, name);
	struct fs_attr attr = {.size = size}, now;

	model_truncate(&s->work.model, o, size);
	return data_ended(s, o, fs_setattr(s->work.fs, o->ino, &attr, FS_SET_SIZE, &now));
}

int script_fsync(struct script *s, const char *name)
{
	struct mobj *o = script_find(s, name);
	uint64_t call = model_tick(&s->work.model);
	struct fs_errseq seq;
	int err;

	fs_errseq_sample(s->work.fs, o->ino, &seq);
	err = fs_fsync(s->work.fs, o->ino, false, &seq);
	if (!err)
		model_fsynced(&s->work.model, o, call);
	return err;
}

int script_sync(struct script *s)
{
	uint64_t call = model_tick(&s->work.model);
	int err = fs_sync(s->work.fs);

	if (!err)
		model_synced(&s->work.model, call);
	return err;
}

int script_ballast(struct script *s, uint64_t spare)
{
	struct fs_stat st;
	struct mobj *o;
	uint64_t size;
	int err = script_create(s, "ballast");

	if (err)
		return err;
	fs_statfs(s->work.fs, &st);
	if (st.blocks_avail <= spare)
		return 0;
	o = script_find(s, "ballast");
	size = (st.blocks_avail - spare) * BLOCK_BYTES;
	model_extend(&s->work.model, o, size);
	return data_ended(s, o, fs_fallocate(s->work.fs, o->ino, 0, 0, size));
}
