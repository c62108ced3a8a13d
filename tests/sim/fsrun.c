/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The filesystem on its volume: workload, crash, fsck, mount, the oracle.
 *
 * A round works until the crash comes or the work is done, and then either closes cleanly or is cut
 * off. What comes back is looked at twice: by fs_check on the volume opened without writing, and,
 * mounted, by reading everything and asking the oracle. Either may be crashed again.
 */
#include "fsrun.h"
#include "workload.h"
#include <stdio.h>
#include <stdlib.h>

#define POINTS_START	   600
#define REPLAY_CRASHES_MAX 4
/*
 * What returned so long before the crash must be there: the commit timer takes 5 s at most, and the
 * writing itself some more.
 */
#define AGE_NS (12 * NS_PER_S)
/* The same where members hang: each step may cost a deadline, and each member one. */
#define AGE_SLOW_NS (90 * NS_PER_S)

struct run {
	struct rig rig;
	struct work work;
	struct fs_options options;
	uint64_t points;
	unsigned ops;
};

static void abandon_fs(void *arg)
{
	struct run *run = arg;

	if (run->work.fs)
		fs_abandon(run->work.fs);
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
	err = done(run, fs_mount(g->raid, &run->options, &run->work.fs), "fs_mount");
	if (err)
		run->work.fs = NULL;
	return err;
}

static int unmount_all(struct run *run)
{
	int err;

	rig_say(&run->rig, "unmounting");
	err = fs_unmount(run->work.fs);
	run->work.fs = NULL;
	if (done(run, err, "fs_unmount"))
		return err;
	return rig_close(&run->rig);
}

static void check_line(void *arg, const char *id, const char *text)
{
	(void)arg;
	log_error("check: %s: %s", id, text);
}

/* fsck, as fsck.trussfs does it: nothing is written. 0, or an error after a crash. */
static int check_all(struct run *run)
{
	struct rig *g = &run->rig;
	struct fs_check_stats stats;
	int64_t problems;
	int err = rig_open(g, RAID_OPEN_CHECK);

	if (err)
		return err;
	rig_say(g, "checking");
	problems = fs_check(g->raid, check_line, NULL, &stats);
	if (world_crashed(g->world))
		return -ENODEV;
	rig_must(g, problems >= 0, "fs_check: %s", strerror((int)-problems));
	rig_must(g, problems == 0, "fs_check: %lld problems", (long long)problems);
	world_trace(g->world, 'f', stats.inodes, stats.data_blocks, stats.meta_blocks);
	return rig_close(g);
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

/* From whatever state the members are in to a mounted filesystem that the oracle accepts. */
static void come_back(struct run *run)
{
	struct rig *g = &run->rig;

	for (unsigned tries = 0;; tries++) {
		int err = 0;

		if (tries < REPLAY_CRASHES_MAX && rng_chance(&g->rng, 1, 4))
			rig_crash_soon(g, 150);
		rig_faults(g);
		if (rng_chance(&g->rng, 1, 2))
			err = check_all(run);
		if (!err)
			err = mount_all(run);
		if (!err)
			err = judge(run);
		if (!err && rng_chance(&g->rng, 1, 4))
			err = rig_check(g);
		if (!err && !world_crashed(g->world)) {
			rig_crash_off(g);
			return;
		}
		g->stats.replay_crashes++;
		rig_bury(g);
		rig_lose(g, 1);
	}
}

/* What happens besides the work; an error is a crash. */
static int meddle(struct run *run)
{
	struct rig *g = &run->rig;
	int err = 0;

	rig_faults(g);
	co_sleep_ns(rng_below(&g->rng, 200 * NS_PER_MS));
	if (world_crashed(g->world))
		return -ENODEV;
	switch (rng_below(&g->rng, 9)) {
	case 0:
		err = rig_scrub_begin(g);
		break;
	case 1:
		err = rig_replace_any(g, false);
		break;
	case 2:
		err = rig_replace_any(g, true);
		break;
	case 3:
		(void)rig_pull(g); /* or there was none to spare */
		break;
	case 4:
		err = rig_mend(g);
		break;
	}
	if (!err)
		rig_faults(g); /* while rebuilding and scrubbing */
	return err;
}

static void one_round(struct run *run)
{
	struct rig *g = &run->rig;
	struct work *w = &run->work;
	uint64_t before = world_points(g->world, POINT_CHANGES), age_ns;

	g->stats.rounds++;
	rig_crash_soon(g, run->points * 5 / 4);
	rig_say(g, "working");
	w->idle = rng_chance(&g->rng, 1, 4);
	w->big = rng_chance(&g->rng, 1, 5);
	w->sync_percent = (unsigned)rng_range(&g->rng, 1, 20);
	work_start(w, run->ops / w->worker_count + 1);
	(void)meddle(run);
	rig_join(g);
	run->points = world_points(g->world, POINT_CHANGES) - before;
	if (!world_crashed(g->world) && rng_chance(&g->rng, 1, 3)) {
		if (!unmount_all(run)) {
			rig_crash_off(g);
			g->stats.remounts++;
			model_synced(&w->model, model_tick(&w->model));
			if (rng_chance(&g->rng, 1, 3))
				rig_damage(g);
			rig_return(g);
			come_back(run);
			return;
		}
	}
	world_crash(g->world);
	age_ns = g->slow ? AGE_SLOW_NS : AGE_NS;
	if (world_crash_ns(g->world) > age_ns)
		model_aged(&w->model, world_crash_ns(g->world) - age_ns);
	rig_bury(g);
	rig_return(g);
	rig_lose(g, RIG_MEMBERS_MAX);
	if (rng_chance(&g->rng, 1, 6))
		rig_damage(g);
	come_back(run);
}

/* The last round of some runs: more goes wrong than the level tolerates. */
static bool bad_round(struct run *run)
{
	struct rig *g = &run->rig;
	struct work *w = &run->work;
	bool freeze = rig_fault_chance(g, FAULT_FREEZE, 1, 8);

	if (!freeze && !rig_fault_chance(g, FAULT_BEYOND, 1, 12))
		return false;
	rig_say(g, "failing");
	rig_crash_off(g);
	if (freeze && rig_mend(g))
		rig_fail(g, "crashed without being asked to");
	g->beyond = true;
	work_start(w, run->ops / w->worker_count + 1);
	co_sleep_ns(rng_below(&g->fault_rng, 100 * NS_PER_MS));
	if (freeze)
		rig_freeze(g);
	else
		rig_faults_beyond(g);
	rig_join(g);
	world_crash(g->world);
	rig_bury(g);
	if (!freeze)
		return true;
	rig_thaw(g);
	come_back(run);
	return false;
}

static void last_round(struct run *run)
{
	struct rig *g = &run->rig;
	struct raid_job_info job;

	g->faults_off = true;
	rig_crash_off(g);
	if (rig_mend(g) || rig_scrub(g, &job))
		rig_fail(g, "crashed without being asked to");
	rig_must(g, !job.found, "the second scrub found %llu", (unsigned long long)job.found);
	if (judge(run) || unmount_all(run) || check_all(run) || mount_all(run) || judge(run) ||
	    rig_check(g) || unmount_all(run))
		rig_fail(g, "crashed without being asked to");
}

/* A file that only takes up space, so that the rest is a nearly full filesystem. */
static int make_ballast(struct run *run)
{
	static const struct fs_cred cred;
	struct fs *fs = run->work.fs;
	struct rig *g = &run->rig;
	struct fs_attr dir, attr;
	struct fs_stat st;
	uint64_t spare = rng_range(&g->rng, 256, 3000);
	int err;

	fs_statfs(fs, &st);
	if (st.blocks_avail <= spare)
		return 0;
	err = fs_lookup(fs, FS_ROOT_INO, "w0", &dir);
	if (err)
		return err;
	err = fs_mknod(fs, dir.ino, "ballast", S_IFREG | 0600, 0, 0, &cred, &attr);
	fs_unref(fs, dir.ino, 1);
	if (err)
		return err;
	err = fs_fallocate(fs, attr.ino, 0, 0, (st.blocks_avail - spare) * BLOCK_BYTES);
	world_say(g->world, "ballast of %llu blocks: %d",
		  (unsigned long long)(st.blocks_avail - spare), err);
	fs_unref(fs, attr.ino, 1);
	return err;
}

static int start(struct run *run)
{
	struct rig *g = &run->rig;
	int err;

	rig_format(g);
	err = rig_open(g, 0);
	rig_say(g, "making the filesystem");
	if (!err)
		err = done(run, fs_format(g->raid), "fs_format");
	if (!err)
		err = rig_close(g);
	if (!err)
		err = mount_all(run);
	if (!err)
		err = work_make_homes(&run->work);
	if (!err && rng_chance(&g->rng, 1, 4)) {
		struct model found;

		err = done(run, make_ballast(run), "making the ballast");
		if (!err)
			err = done(run, fs_sync(run->work.fs), "fs_sync");
		if (!err)
			err = work_read_all(&run->work, &found);
		if (!err)
			model_adopt(&run->work.model, &found);
	}
	return err;
}

static int run_main(void *arg)
{
	struct run *run = arg;
	struct rig *g = &run->rig;
	unsigned rounds = g->o->crashes ? g->o->crashes : (unsigned)rng_range(&g->rng, 1, 6);

	if (start(run))
		rig_fail(g, "crashed without being asked to");
	for (g->round = 1; g->round <= rounds; g->round++) {
		one_round(run);
		if (!rng_chance(&g->rng, 1, 4))
			continue;
		if (rng_chance(&g->rng, 1, 2))
			rig_crash_soon(g, 400);
		if (rig_mend(g)) {
			rig_bury(g);
			come_back(run);
		}
		rig_crash_off(g);
	}
	if (bad_round(run))
		return 0;
	last_round(run);
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
	run->points = POINTS_START;
	run->ops = o->ops ? o->ops : (unsigned)rng_range(&run->rig.rng, 20, 500);
	run->options.dirty_bytes_max =
	    rng_chance(&run->rig.rng, 1, 2) ? 0 : (1ull << 20) << rng_below(&run->rig.rng, 5);
	run->options.node_cache_bytes =
	    rng_chance(&run->rig.rng, 1, 2) ? 0 : (256ull << 10) << rng_below(&run->rig.rng, 5);
	work_init(&run->work, &run->rig, 1 + (unsigned)rng_below(&run->rig.rng, MODEL_WORKERS_MAX));
	if (loop_run_co(run->rig.loop, run_main, run))
		rig_fail(&run->rig, "no memory");
	work_exit(&run->work);
	rig_exit(&run->rig);
	*stats = run->rig.stats;
	free(run);
}
