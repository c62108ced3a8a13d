/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Random use of a filesystem by several coroutines, each told to the oracle; and reading all of it
 * back.
 */
#ifndef SIM_WORKLOAD_H
#define SIM_WORKLOAD_H

#include "fs/fs.h"
#include "model.h"
#include "rig.h"

struct worker {
	struct work *work;
	struct rng rng;
	unsigned number, ops_left;
	uint8_t *bytes; /* room for one operation's data, twice */
};
struct work {
	struct rig *rig;
	struct fs *fs; /* NULL while unmounted */
	struct model model;
	struct worker workers[MODEL_WORKERS_MAX];
	unsigned worker_count;
	bool stop;
	bool idle; /* long pauses occur: for the commit timer to show */
	unsigned sync_percent;
	bool big; /* large files */
};

void work_init(struct work *w, struct rig *g, unsigned workers);
void work_exit(struct work *w);
/* Makes the directories that workers live in, synced, and tells the oracle. 0, or an error after a
 * crash. */
int work_make_homes(struct work *w);
/* Spawns all workers with so many operations each. */
void work_start(struct work *w, unsigned ops_each);
/* Reads the whole tree with all data. 0, or an error after a crash (then found is empty). */
int work_read_all(struct work *w, struct model *found);
/* fsck, as fsck.trussfs does it, of a closed volume: clean, and nothing is written. 0, or an error after a crash. */
int work_check(struct rig *g);
/* For fs_check: says what it found. */
void work_check_line(void *arg, const char *id, const char *text);

#endif
