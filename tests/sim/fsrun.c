/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The filesystem on its volume: workload, crash, fsck, mount, the oracle.
 *
 * What comes back is looked at twice: by fs_check on the volume opened without writing, and, mounted, by
 * reading everything and asking the oracle. Either may be crashed again.
 */
#include "fsrun.h"
#include "round.h"
#include "workload.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>

#define BALLAST_WRITE_BYTES (256u << 10)
#define BALLAST_HOLES_MAX   4000u
#define BALLAST_BYTES_MAX   (160ull << 20) /* that are written; more is only reserved */
/*
 * What returned so long before the crash must be there: that is what fs.h promises, the time that the commit
 * itself takes included.
 */
#define AGE_NS (5 * NS_PER_S)
/* The same where members hang: each step may cost a deadline, and each member one. */
#define AGE_SLOW_NS (90 * NS_PER_S)

struct run {
	struct rig rig;
	struct work work;
	struct fs_options options;
	unsigned ops;
};

static void count_cleaned(struct run *run)
{
	struct fs_cleaned c;

	fs_cleaned(run->work.fs, &c);
	run->rig.stats.cleaned += c.moved_blocks;
}

static void abandon_fs(void *arg)
{
	struct run *run = arg;

	if (run->work.fs) {
		count_cleaned(run);
		fs_abandon(run->work.fs);
	}
	run->work.fs = NULL;
}

static int done(struct run *run, int err, const char *what)
{
	if (err && !rig_excused(&run->rig))
		rig_fail(&run->rig, "%s: %s", what, strerror(-err));
	return err;
}

/* Volume and filesystem. 0, or an error after a crash. */
static int mount_all(struct run *run)
{
	struct rig *g = &run->rig;
	int err = rig_open(g, 0);

	if (err)
		return err;
	rig_members_update(g);
	rig_say(g, "mounting");
	g->phase = PHASE_MOUNT;
	err = done(run, fs_mount(g->raid, &run->options, &run->work.fs), "fs_mount");
	if (err)
		run->work.fs = NULL;
	else
		g->phase = PHASE_WORK;
	return err;
}

static int unmount_all(void *arg)
{
	struct run *run = arg;
	int err;

	rig_say(&run->rig, "unmounting");
	run->rig.phase = PHASE_CLOSE;
	count_cleaned(run);
	err = fs_unmount(run->work.fs);
	run->work.fs = NULL;
	if (done(run, err, "fs_unmount") && !run->rig.beyond)
		return err;
	return rig_close(&run->rig);
}

static int judge(struct run *run)
{
	struct model found;
	int err;

	rig_say(&run->rig, "comparing");
	err = work_read_all(&run->work, &found);
	if (!err)
		model_judge(&run->work.model, &found);
	return err;
}

static int come_back(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;
	int err = 0;

	if (rng_chance(&g->rng, 1, 2))
		err = work_check(&run->rig);
	if (!err)
		err = mount_all(run);
	if (!err)
		err = judge(run);
	if (!err && rng_chance(&g->rng, 1, 4))
		err = rig_check(g);
	return err;
}

static void work(void *arg)
{
	struct run *run = arg;
	struct rng *r = &run->rig.rng;
	struct work *w = &run->work;

	w->idle = rng_chance(r, 1, 4);
	w->big = rng_chance(r, 1, 5);
	w->sync_percent = (unsigned)rng_range(r, 1, 20);
	work_start(w, run->ops / w->worker_count + 1);
}

static void closed(void *arg)
{
	struct run *run = arg;

	model_synced(&run->work.model, model_tick(&run->work.model));
}

static void cut(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;
	uint64_t age_ns = g->slow ? AGE_SLOW_NS : AGE_NS;

	if (world_crash_ns(g->world) > age_ns)
		model_aged(&run->work.model, world_crash_ns(g->world) - age_ns);
}

static void keep(void *arg)
{
	struct run *run = arg;

	model_keep(&run->work.model);
}

static void judge_beyond(void *arg)
{
	struct run *run = arg;
	struct model found;

	rig_say(&run->rig, "comparing what is left");
	if (run->rig.honest && !work_read_all(&run->work, &found))
		model_judge_beyond(&run->work.model, &found);
}

static int open_beyond(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;
	struct fs_check_stats stats;
	int err;

	/* It may find what it wants: it must come to an end. */
	if (rng_chance(&g->fault_rng, 1, 2) && !rig_open(g, RAID_OPEN_CHECK)) {
		(void)fs_check(g->raid, work_check_line, NULL, &stats);
		(void)rig_close(g);
	}
	err = mount_all(run);
	if (!err || !g->raid)
		return err; /* rig_open has judged its error */
	rig_must(g, rig_beyond_error(g, err), "mounting what is left: %s", strerror(-err));
	(void)rig_close(g);
	return err;
}

static int last(void *arg)
{
	struct run *run = arg;

	if (judge(run) || unmount_all(run) || work_check(&run->rig) || mount_all(run) || judge(run) ||
	    rig_check(&run->rig) || unmount_all(run))
		return -ENODEV;
	return 0;
}

static void space(void *arg, uint64_t *ret_free, uint64_t *ret_all)
{
	struct run *run = arg;
	struct fs_stat st;

	if (!run->work.fs)
		return;
	fs_statfs(run->work.fs, &st);
	*ret_free = st.blocks_avail;
	*ret_all = st.blocks;
}

/* Written, not only promised: then clean rows are rare, and shared ones are the rule. */
static int ballast_write(struct run *run, uint64_t ino, uint64_t bytes)
{
	uint8_t *data = malloc(BALLAST_WRITE_BYTES);
	int err = 0;

	if (!data)
		abort();
	rng_fill(&run->rig.rng, data, BALLAST_WRITE_BYTES);
	for (uint64_t off = 0; off < bytes && !err; off += BALLAST_WRITE_BYTES) {
		size_t n = MIN(bytes - off, (uint64_t)BALLAST_WRITE_BYTES);

		err = fs_write(run->work.fs, ino, off, data, n, false);
	}
	free(data);
	return err == -ENOSPC ? 0 : err;
}

/* Takes out of each few blocks some, so that there are holes everywhere for the cleaner to gather. */
static int ballast_riddle(struct run *run, uint64_t ino, uint64_t bytes)
{
	struct rng *rng = &run->rig.rng;
	uint64_t hole = (1 + rng_below(rng, 8)) * BLOCK_BYTES, step = hole * (2 + rng_below(rng, 2));
	int err = fs_sync(run->work.fs);

	step = MAX(step, ROUND_UP(bytes / BALLAST_HOLES_MAX, BLOCK_BYTES) + hole);
	for (uint64_t off = 0; off + hole <= bytes && !err; off += step)
		err = fs_fallocate(run->work.fs, ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, hole);
	return err;
}

/* A file that only takes up space, so that the rest is a nearly full filesystem. */
static int make_ballast(struct run *run)
{
	static const uint64_t most[] = {64, 512, 3000};
	static const struct fs_cred cred;
	struct fs *fs = run->work.fs;
	struct rig *g = &run->rig;
	struct fs_attr dir, attr;
	struct fs_stat st;
	uint64_t spare = rng_below(&g->rng, rig_aims_full(g) ? most[0] : most[rng_below(&g->rng, ARRAY_SIZE(most))]), bytes;
	bool written = rng_chance(&g->rng, 1, 2);
	char name[24];
	int err;

	fs_statfs(fs, &st);
	if (st.blocks_avail <= spare)
		return 0;
	err = fs_lookup(fs, FS_ROOT_INO, "w0", &dir);
	if (err)
		return err;
	snprintf(name, sizeof(name), "ballast%u", g->round);
	err = fs_mknod(fs, dir.ino, name, S_IFREG | 0600, 0, 0, &cred, &attr);
	fs_unref(fs, dir.ino, 1);
	if (err)
		return err;
	bytes = (st.blocks_avail - spare) * BLOCK_BYTES;
	if (written && bytes <= BALLAST_BYTES_MAX) {
		err = ballast_write(run, attr.ino, bytes);
		if (!err && rng_chance(&g->rng, 3, 4))
			err = ballast_riddle(run, attr.ino, bytes);
	} else {
		err = fs_fallocate(fs, attr.ino, 0, 0, bytes);
	}
	world_tell(g->world, "ballast of %llu blocks: %d",
		   (unsigned long long)(st.blocks_avail - spare), err);
	fs_unref(fs, attr.ino, 1);
	return err;
}

/* The ballast is part of what is expected from then on. */
static int fill(void *arg)
{
	struct run *run = arg;
	struct model found;
	int err = done(run, make_ballast(run), "making the ballast");

	if (!err)
		err = done(run, fs_sync(run->work.fs), "fs_sync");
	if (!err)
		err = work_read_all(&run->work, &found);
	if (!err)
		model_adopt(&run->work.model, &found);
	return err;
}

static int make(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;
	int err;

	rig_format(g);
	err = rig_open(g, 0);
	rig_say(g, "making the filesystem");
	g->phase = PHASE_FORMAT;
	if (!err) {
		rig_members_update(g);
		rig_faults_soon(g);
		rig_aim_fire(g, STATE_FORMATTING);
	}
	if (!err)
		err = done(run, fs_format(g->raid), "fs_format");
	if (!err)
		err = rig_close(g);
	if (!err)
		err = mount_all(run);
	if (!err)
		err = work_make_homes(&run->work);
	if (!err && (rng_chance(&g->rng, 1, g->small ? 2 : 8) || rig_aims_full(g)))
		err = fill(run);
	return err;
}

static const struct round_ops fs_round = {
    .make = make,
    .come_back = come_back,
    .fill = fill,
    .work = work,
    .close = unmount_all,
    .closed = closed,
    .cut = cut,
    .keep = keep,
    .judge_beyond = judge_beyond,
    .open_beyond = open_beyond,
    .last = last,
    .meddle_ns = 200 * NS_PER_MS,
    .replay_points = 150,
};

static int run_main(void *arg)
{
	struct run *run = arg;
	struct round r = {.rig = &run->rig, .ops = &fs_round, .arg = run};

	round_run_all(&r);
	return 0;
}

void fsrun_seed(const struct sim_options *o, struct sim_stats *stats)
{
	struct run *run = calloc(1, sizeof(*run));

	if (!run)
		abort();
	rig_init(&run->rig, o);
	run->rig.abandon = abandon_fs;
	run->rig.abandon_arg = run;
	run->rig.space = space;
	run->ops = (unsigned)rng_range(&run->rig.rng, 20, 500);
	if (o->ops)
		run->ops = o->ops;
	run->options.dirty_bytes_max =
	    rng_chance(&run->rig.rng, 1, 2) ? 0 : (1ull << 20) << rng_below(&run->rig.rng, 5);
	run->options.node_cache_bytes = run->rig.node_cache_bytes;
	work_init(&run->work, &run->rig, 1 + (unsigned)rng_below(&run->rig.rng, MODEL_WORKERS_MAX));
	if (loop_run_co(run->rig.loop, run_main, run))
		rig_fail(&run->rig, "no memory");
	work_exit(&run->work);
	rig_exit(&run->rig);
	*stats = run->rig.stats;
	free(run);
}
