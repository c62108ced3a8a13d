/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The bench that a simulated run stands on: the world, its members and what has become of each, the
 * volume on them, and how it is opened, crashed, buried, robbed of members, damaged and mended.
 * What is done with the volume is raidrun.c's and fsrun.c's.
 *
 * All functions run in a coroutine, the *driver*, unless they say otherwise.
 */
#ifndef SIM_RIG_H
#define SIM_RIG_H

#include "raid/co.h"
#include "raid/raid.h"
#include "simdev.h"
#include "skip.h"
#include "world.h"

/* What may go wrong with a member besides being lost, as --faults names it. */
enum rig_fault {
	FAULT_EIO_READ,	   /* a few, or for good; of some blocks or all */
	FAULT_EIO_WRITE,
	FAULT_EIO_FLUSH,
	FAULT_SHORT,	   /* comes in two pieces: nobody may come to harm */
	FAULT_LOST,	   /* some writes */
	FAULT_DAY,	   /* all writes until the faults end, with flushes that say all is well */
	FAULT_MISDIRECTED,
	FAULT_DUPLICATE,
	FAULT_TORN,
	FAULT_LIE,	   /* flushes do nothing: for the crash to show */
	FAULT_RESET,	   /* the cache is forgotten, though the flush after it says all is well */
	FAULT_ROT_READ,
	FAULT_HANG,	   /* for good, until the next opening, or for longer than the deadline */
	FAULT_DELAY,	   /* within the deadline: nobody may come to harm */
	FAULT_READ_ONLY,
	FAULT_VANISH,
	FAULT_SHRINK,	   /* ends early from now on, and at the next opening */
	FAULT_DAMAGE,	   /* blocks garbled and rotten while in use */
	FAULT_ZERO,	   /* blocks zeroed */
	FAULT_CLONE,	   /* a copy is offered with the original */
	FAULT_RENAME,	   /* comes back under another name */
	FAULT_STALE,	   /* an old copy is put back */
	FAULT_FREEZE,	   /* at the end: more are gone than may be, and come back */
	FAULT_BEYOND,	   /* at the end: more faults than the level tolerates */
	FAULT_KINDS,
};
extern const char *const rig_fault_names[FAULT_KINDS];
/* Of a list separated by commas; "all", "none", "-NAME" takes away. False: unknown. */
bool rig_faults_parse(const char *list, uint32_t *ret);
#define RIG_FAULTS_DEFAULT ((1u << FAULT_KINDS) - 1)

/* What the volume is doing when a fault hits; several of those between mounting and unmounting at once. */
enum rig_state {
	STATE_FORMATTING, /* mkfs of volume and filesystem */
	STATE_MOUNTING,	  /* opening what was closed, and the filesystem on it */
	STATE_REPLAYING,  /* opening what was cut off */
	STATE_HEALTHY,	  /* none of those that follow */
	STATE_DEGRADED_1, /* a member is out of service */
	STATE_DEGRADED_2, /* more than one */
	STATE_REBUILDING,
	STATE_SCRUBBING,
	STATE_NEARLY_FULL, /* less than a tenth is free */
	STATE_FULL,	   /* next to nothing is free, or somebody has just been told so */
	STATE_UNMOUNTING,
	RIG_STATES,
};
extern const char *const rig_state_names[RIG_STATES];
/* False: cannot happen, and why. */
bool rig_hit_possible(enum rig_fault kind, enum rig_state state, const char **ret_why);
/* A fault, and the state that it is to hit in. FAULT_KINDS: none. */
struct rig_aim {
	enum rig_fault kind;
	enum rig_state state;
};
/* "FAULT@STATE", by their names, or "none". */
bool rig_aim_parse(const char *text, struct rig_aim *ret);

struct sim_options {
	uint64_t seed;
	uint32_t faults; /* bits of enum rig_fault */
	char faults_text[128]; /* as given; empty: the default */
	int level;	  /* -1: drawn */
	unsigned members; /* 0: drawn */
	unsigned ops;	  /* of one round; 0: drawn */
	unsigned crashes; /* rounds; 0: drawn */
	bool raid_only, verbose, twice;
	bool alone;	  /* no other seed: a failure is the end of the report */
	bool script;	  /* says what is done, not what comes of it */
	unsigned salt;	  /* other latencies and crash points for the same seed */
	const struct rig_aim *aim; /* NULL: drawn */
	char aim_text[32];	   /* as given */
	const struct skip *skip; /* what is left out; NULL: nothing */
	struct sim_trail *trail; /* where to leave what happened; NULL: nowhere */
	const char *replay; /* the command that runs this seed again */
};

/* What a run leaves for whoever shrinks it, in memory that outlives the process. */
struct sim_trail {
	unsigned count[SKIP_CLASSES]; /* of what could have been left out */
	unsigned round;		      /* of the failure */
	char failure[256];	      /* its kind: the format of the message */
};

struct sim_stats {
	uint64_t rounds, crashes, replay_crashes, ops, lost, rebuilds, scrubs, damages, remounts;
	uint64_t faults, faults_hit;
	uint64_t cleaned; /* blocks that the cleaner moved */
	uint64_t simulated_ns, hash;
	uint64_t hit[FAULT_KINDS][RIG_STATES];
};
/* All but the hash. */
void sim_stats_add(struct sim_stats *to, const struct sim_stats *s);

#define RIG_MEMBERS_MAX 16
#define RIG_SPARES_MAX	64

/* One drive. `name` is what the volume knows it by in its messages. */
struct slot {
	struct simdev *dev;
	bool in; /* a member of the volume; else blank, or taken out: offered sometimes, must not be
		    used */
	bool away;    /* not offered at the next open */
	bool suspect; /* counts against the budget: away, stale, damaged, or not yet rebuilt */
	bool damaged; /* and not scrubbed since */
	int replaces; /* slot it is taking over from, which counts for both; -1: none */
	bool faulty;  /* has faults armed */
	bool renamed; /* and not opened since: the volume knows it by its old name */
	bool frozen;  /* vanished, to be put back */
	bool shrunk;  /* it is to be replaced: what was at its end is gone for good */
	uint64_t size_bytes; /* when it was new */
	struct simdev *old; /* a copy of long ago, or NULL */
	bool old_is_stale;  /* the volume has been in use since */
	uint64_t errors; /* what the volume had counted against it when all was well */
	uint64_t errors_seen; /* when mending began: those of a member that it replaced cannot be asked any more */
	/* A fault that must be counted against it: hits when it was armed, in which opening. */
	bool must_count;
	uint64_t hits, opening;
};

enum rig_phase { PHASE_FORMAT, PHASE_OPEN, PHASE_MOUNT, PHASE_WORK, PHASE_CLOSE };

struct rig {
	const struct sim_options *o;
	struct sim_stats stats;
	struct world *world;
	struct loop *loop;
	struct rng rng, fault_rng; /* faults have their own: without them a seed is as it was */
	struct rng priority_rng;
	struct {
		unsigned acked, tried;
	} priority[2]; /* by enum raid_job */
	struct slot slots[RIG_SPARES_MAX];
	unsigned slot_count, spare_number;
	struct raid_format_params format;
	unsigned level, tolerance, member_count;
	struct uuid fs;
	struct raid *raid; /* NULL while closed */
	/* Frees what stands on the volume, before it is abandoned. */
	void (*abandon)(void *arg);
	void *abandon_arg;
	/* Blocks that may still be written, as users see it; NULL: what the volume says. Same arg. */
	void (*space)(void *arg, uint64_t *ret_free, uint64_t *ret_all);
	struct rig_aim aim; /* this seed goes for one of the rare cells of the matrix, or not */
	uint64_t page_cache_bytes, node_cache_bytes; /* 0: the default, which holds all that simulated members have */
	bool small;	    /* members of about the least size, so that filling them is soon done */
	bool scrub_partial; /* the next scrub may go on from a cursor */
	bool slow;	    /* something took long, as it may */
	bool faults_off;    /* the run is about to end well */
	bool beyond;	    /* more went wrong than is tolerated: errors are right, wrong bytes not */
	bool honest;	    /* and none of it was a lie: what can be read is judged (rig_faults_beyond) */
	uint64_t openings;
	enum rig_phase phase; /* callers set MOUNT and WORK */
	bool after_crash;     /* the next opening replays */
	bool checking;	      /* opened without writing: it stays so */
	bool was_full;	      /* somebody was told so in this round */
	unsigned turns[SKIP_CLASSES];
	/* coroutines of the workload */
	unsigned workers;
	struct co_cond workers_done;
	/* what round it is, for messages */
	const char *doing;
	unsigned round;
};

/* Prints what, the seed and the command that replays it, and ends the process with 1. Callable
 * anywhere. */
_Noreturn void rig_fail(struct rig *g, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define rig_must(g, cond, ...)                                                                     \
	do {                                                                                       \
		if (!(cond))                                                                       \
			rig_fail(g, __VA_ARGS__);                                                  \
	} while (0)

/* Not in a coroutine. Draws the configuration. */
void rig_init(struct rig *g, const struct sim_options *o);
void rig_exit(struct rig *g);

/* What is being done, for failure messages and the verbose log. */
void rig_say(struct rig *g, const char *doing);
/* One of many calls of what is being done has ended: the next has as much time as all else that is done. */
void rig_alive(struct rig *g);

/*
 * A generator for the next of its class, which has drawn nothing yet: what one draws does not change what others
 * get. False: it is to be left out.
 */
bool rig_turn(struct rig *g, unsigned class, struct rng *ret);
/* A fault has hit, now. */
void rig_hit(struct rig *g, enum rig_fault kind);

/* Blank members, formatted. A crash in it is survived by formatting again. */
void rig_format(struct rig *g);
/*
 * Opens what is there, in any order, with strangers among them. 0, or an error after a crash (then
 * rig_bury); any other error fails the seed.
 */
int rig_open(struct rig *g, unsigned flags);
/* Closes cleanly. 0, or an error after a crash. */
int rig_close(struct rig *g);
/* After a crash, when all workers have ended: the volume is abandoned, the world restarts. */
void rig_bury(struct rig *g);
/* Waits for all workers. */
void rig_join(struct rig *g);
int rig_spawn(struct rig *g, void (*fn)(void *arg), void *arg);
void rig_worker_done(struct rig *g);

/* Arms a crash that comes with even odds before `expected` points of a drawn kind have passed. */
void rig_crash_soon(struct rig *g, uint64_t expected);
void rig_crash_off(struct rig *g);

/* After rig_open: who is a member, as the volume says. */
void rig_members_update(struct rig *g);
/* How many members may still be lost, damaged or put back stale without losing anything. */
unsigned rig_budget(const struct rig *g);
/* The volume is closed: takes away up to `max` members that are sound. */
unsigned rig_lose(struct rig *g, unsigned max);
/* A member is pulled while the volume runs, if the budget allows. */
bool rig_pull(struct rig *g, struct rng *r);
/*
 * Perhaps arms a few faults on members within the budget. Any time but within rig_mend.
 */
void rig_faults(struct rig *g);
/* The same, to hit with one of the next I/Os: where the state will not last. */
void rig_faults_soon(struct rig *g);
/*
 * The aim. Brings a volume that is at work into its state, if it is one of those; waits a while until it is there.
 * False: it is not, or is not the aim.
 */
bool rig_aim_reach(struct rig *g);
/* Arms the fault that is aimed, to hit with one of the next I/Os, if `state` is where: now, or next. */
void rig_aim_fire(struct rig *g, enum rig_state state);
bool rig_aims_at(const struct rig *g, enum rig_state state);
/* Whether a volume that is nearly full is wanted. */
bool rig_aims_full(const struct rig *g);
/* All faults end; what hung is let go. */
void rig_faults_end(struct rig *g);
/*
 * More go wrong than the level tolerates: sets g->beyond. The volume is open. Honest: each fault is of those that a reader
 * can know, by an error or a checksum. Of more liars than are tolerated nobody can: when all members that have a block say that
 * it was written and it was not, what stands there is whole and old, and so may be the tree that leads to it. Then no more
 * is asked than that every call ends.
 */
void rig_faults_beyond(struct rig *g, bool honest);
/*
 * Likewise, honest, and with the volume closed: of some chunk pages the newest generation is lost in all copies, and what was before
 * that is there.
 */
void rig_lose_pages(struct rig *g);
/* The volume is closed: of those that are gone most come back, and faults end or do not. */
void rig_beyond_closed(struct rig *g);
/* Whether a call may fail so, now that more went wrong than is tolerated. */
bool rig_beyond_error(const struct rig *g, int err);
/*
 * More members vanish at once than the level tolerates, with what was in their caches. After the crash that must follow,
 * all are put back by rig_thaw, and nothing may be lost.
 */
void rig_freeze(struct rig *g);
void rig_thaw(struct rig *g);
/* Drawn from the faults' own numbers, for the fault if it is chosen. */
bool rig_fault_chance(struct rig *g, enum rig_fault kind, uint64_t part, uint64_t whole);
/* Whether a call may fail now: the world has crashed, or more went wrong than is tolerated. */
bool rig_excused(const struct rig *g);
/* Those that are away are back for the next open, as they were: stale. */
void rig_return(struct rig *g);
/* The volume is closed: overwrites random blocks of up to the budget of members, labels, journal
 * and pages included. */
unsigned rig_damage(struct rig *g);
/*
 * The volume is open: rebuilds until nothing is below target, replacing members that are gone by
 * blank ones. 0, or an error after a crash. Afterwards the budget is whole again.
 */
int rig_mend(struct rig *g);
/* Replaces a member that is in service by a blank one, not waiting for the rebuild. */
int rig_replace_any(struct rig *g, struct rng *r, bool fail_first);
/* Another priority for rebuild or scrub, or not. 0, or an error after a crash. */
int rig_set_priority(struct rig *g);
/* A scrub that runs on by itself. 0, or an error after a crash. */
int rig_scrub_begin(struct rig *g);
/* Scrubs to the end. 0, or an error after a crash. What it found and repaired and lost. */
int rig_scrub(struct rig *g, struct raid_job_info *ret);
/* raid_check reports nothing. */
int rig_check(struct rig *g);

#endif
