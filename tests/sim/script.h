/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A filesystem on a small volume whose geometry is fixed, used by scripts instead of at random, and the
 * oracle that is told of it. For tests that run one short thing again and again, each time cut off or failed at another
 * place.
 *
 * All functions run in the driver coroutine unless they say otherwise. Errors: 0 or -errno; script_must lets
 * pass what a crash excuses and fails the test on all else.
 */
#ifndef SIM_SCRIPT_H
#define SIM_SCRIPT_H

#include "fs/fs.h"
#include "rig.h"
#include "workload.h"

struct script {
	struct rig rig;
	struct sim_options options;
	char replay[256]; /* the command that runs this case again: the caller's to fill in */
	struct work work;
	struct fs_options fs_options;
};

/* Not in a coroutine. `volatile_cache` of all members. */
void script_init(struct script *s, unsigned level, uint64_t seed, bool verbose);
void script_exit(struct script *s);

/* err, if the world has crashed; fails the test if it has not. */
int script_must(struct script *s, int err, const char *what);

/* raid_format, fs_format, and closed again. Any error is the caller's. */
int script_format(struct script *s);
/* Volume and filesystem; the mended world of a fresh script has the directories that workers live in. */
int script_mount(struct script *s);
int script_unmount(struct script *s);
/* Reads everything and asks the oracle, which goes on from what was found. */
int script_judge(struct script *s);
/* Formatted, mounted, homes made: the beginning of most scripts. */
int script_begin(struct script *s);

/* ---- told to the oracle; names are in the home of worker 0 ---- */

struct mobj *script_find(struct script *s, const char *name);
int script_create(struct script *s, const char *name);
int script_unlink(struct script *s, const char *name);
int script_rename(struct script *s, const char *name, const char *new_name);
/* Bytes that depend on place and fill. */
int script_write(struct script *s, const char *name, uint64_t off, size_t len, uint8_t fill);
int script_truncate(struct script *s, const char *name, uint64_t size);
int script_fsync(struct script *s, const char *name);
int script_sync(struct script *s);
/* A file that takes all but `spare` blocks. */
int script_ballast(struct script *s, uint64_t spare);

#endif
