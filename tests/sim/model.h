/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The oracle: what a filesystem may look like, known from what was asked of it and what it
 * promised. Shares no code with fs/ and knows nothing of how it works; it is spoken to in terms of
 * inode numbers, names and bytes.
 *
 * How operations are told to it, by a worker that owns the objects concerned:
 *
 *     op = model_begin(m, worker, ...);  model_X(op, ...);      what is going to happen
 *     err = fs_X(...);
 *     model_end(op, err == 0);                                   it has happened, or nothing has
 *
 * An operation that was begun and not ended when the crash came may or may not have happened.
 * Objects belong to one worker each, so that everything a worker asks has one right answer; the
 * order between workers is checked through the ticks of begin and end.
 */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H

#include "raid/base.h"

#define MODEL_WORKERS_MAX 4
#define MODEL_NAME_BYTES  256

enum mtype { M_REG, M_DIR, M_SYMLINK, M_FIFO, M_CHR };

struct mversion {
	uint64_t call, ret; /* ticks; ret 0: not returned */
	uint64_t ret_ns;
	uint8_t *data; /* BLOCK_BYTES; NULL: zeros */
};
/* One 4 KiB block of a file: the version at the floor and all that were asked for since. */
struct mblock {
	uint64_t index;
	struct mversion *v;
	unsigned count, cap;
	bool lost; /* found, and not readable */
};
struct msize {
	uint64_t call, ret, ret_ns, size;
};
struct mentry {
	char name[MODEL_NAME_BYTES];
	struct mobj *obj;
};
struct mxattr {
	char *name;
	uint8_t *value;
	size_t len;
};

struct mobj {
	unsigned worker;
	enum mtype type;
	uint64_t ino; /* 0: its creation has not returned */
	uint32_t mode, links, uid, gid, rdev;
	char *target;
	struct mxattr *xattrs;
	unsigned xattr_count;
	/* directories */
	struct mentry *entries;
	unsigned entry_count, entry_cap;
	struct mobj *parent;
	bool shared; /* of all workers: only names beginning with the worker's are its own */
	/* regular files */
	struct mblock *blocks; /* ascending */
	unsigned block_count, block_cap;
	struct msize *sizes; /* the last is the newest */
	unsigned size_count, size_cap;
	/* bookkeeping */
	uint64_t last_call;    /* of the last operation on names or attributes that touched it */
	unsigned refs;	       /* held by the worker */
	bool vague;	       /* found, and not all of it: names, attributes or data could not be read */
	bool unnamed;	       /* a tmpfile that never had a name: may be linked */
	int pick_index;	       /* in the worker's list of what exists; -1: not */
	struct mobj *born_dir; /* where to look for it if the creation never returned */
	char born_name[MODEL_NAME_BYTES];
};

enum mfact_kind { F_NAME, F_INODE, F_XATTR, F_TARGET };
struct mfact {
	int sign;
	enum mfact_kind kind;
	struct mobj *a, *b;
	char *text;
};
#define MODEL_OP_TOUCH_MAX 6
enum mact_kind { ACT_ENTER, ACT_LEAVE, ACT_MODE, ACT_XATTR };
/* What model_end does to the objects. */
struct mact {
	enum mact_kind kind;
	struct mobj *obj, *dir;
	char name[MODEL_NAME_BYTES];
	uint32_t mode;
	bool moved;	/* ENTER, LEAVE: the object keeps its links */
	uint8_t *value; /* NULL: removed */
	size_t len;
};
#define MODEL_OP_ACTS_MAX 5
struct mop {
	struct model *m;
	unsigned worker;
	uint64_t call, ret, ret_ns;
	char what[160];
	struct mfact *facts;
	unsigned fact_count, fact_cap;
	struct mact acts[MODEL_OP_ACTS_MAX];
	unsigned act_count;
	struct mobj *touched[MODEL_OP_TOUCH_MAX];
	unsigned touched_count;
	struct mobj *data_first; /* its data at `call` is there if the operation is */
	bool ended;
};

struct mworker {
	struct mobj *home;
	struct mop **ops; /* since the floor, in order */
	unsigned op_count, op_cap;
	uint64_t base_hash;  /* of all facts at the floor */
	struct mobj **exist; /* linked or held */
	unsigned exist_count, exist_cap;
};

struct model {
	uint64_t tick, floor;
	unsigned worker_count;
	struct mworker workers[MODEL_WORKERS_MAX];
	struct mobj *root, *shared;
	struct mobj **objs; /* all there ever were since the last adoption */
	size_t obj_count, obj_cap;
	uint64_t now_ns; /* set by the caller before model_end */
	/* Since model_keep: what was so then, and nothing done since is a promise. */
	bool kept;
	struct mfact *kept_facts;
	unsigned kept_count, kept_cap;
	/* Must not return. */
	void (*fail)(void *arg, const char *text);
	void *fail_arg;
};

void model_init(struct model *m, unsigned workers, void (*fail)(void *arg, const char *text),
		void *arg);
void model_exit(struct model *m);

/* ---- what is ---- */

struct mobj *model_lookup(const struct mobj *dir, const char *name);
struct mobj *model_by_ino(const struct model *m, uint64_t ino);
uint64_t model_size(const struct mobj *file);
/* Newest content of [off, off + len), zeros behind the end. */
void model_read(const struct mobj *file, uint64_t off, uint8_t *out, size_t len);
/* Whether every block of the range has been written and not cut away: overwriting it needs no
 * space. */
bool model_written(const struct mobj *file, uint64_t off, uint64_t len);
/* Whether dir is obj or lies below it. */
bool model_below(const struct mobj *dir, const struct mobj *obj);
const struct mxattr *model_xattr(const struct mobj *obj, const char *name);

/* The worker holds a reference more (1) or less (-1). */
void model_ref(struct model *m, struct mobj *obj, int by);

/* ---- what is asked ---- */

struct mop *model_begin(struct model *m, unsigned worker, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * done: it has happened. Otherwise nothing has, and the operation is forgotten. `op` is the model's
 * from here on.
 */
void model_end(struct mop *op, bool done);

/* A new object; the caller sets its ino before model_end. dir NULL: without a name (held). */
struct mobj *model_create(struct mop *op, struct mobj *dir, const char *name, enum mtype type,
			  uint32_t mode, uint32_t rdev, const char *target);
void model_link(struct mop *op, struct mobj *obj, struct mobj *dir, const char *name);
/* rmdir too. */
void model_unlink(struct mop *op, struct mobj *dir, const char *name);
void model_rename(struct mop *op, struct mobj *dir, const char *name, struct mobj *new_dir,
		  const char *new_name);
void model_exchange(struct mop *op, struct mobj *dir, const char *name, struct mobj *new_dir,
		    const char *new_name);
void model_chmod(struct mop *op, struct mobj *obj, uint32_t mode);
/* value NULL: removed. */
void model_setxattr(struct mop *op, struct mobj *obj, const char *name, const void *value,
		    size_t len);

/*
 * Data is not in the order of the rest: each block and the size may be at any version since the
 * file's floor. These begin; model_data_end ends (done false: each version may or may not be
 * there).
 */
void model_write(struct model *m, struct mobj *file, uint64_t off, const uint8_t *data, size_t len);
void model_truncate(struct model *m, struct mobj *file, uint64_t size);
void model_zero(struct model *m, struct mobj *file, uint64_t off,
		uint64_t len);					      /* up to the end of the last block */
void model_extend(struct model *m, struct mobj *file, uint64_t size); /* fallocate */
void model_data_end(struct model *m, struct mobj *file);
/* After a write that failed: what is there now is the newest, provided that it is legal. */
void model_data_settle(struct model *m, struct mobj *file, uint64_t off, const uint8_t *data,
		       size_t len, uint64_t size);

/* ---- what was promised; `call` is the tick (model_tick) at the call ---- */

uint64_t model_tick(struct model *m);
void model_synced(struct model *m, uint64_t call);
void model_fsynced(struct model *m, struct mobj *obj, uint64_t call);
/* Everything that returned before this time is durable by now. */
void model_aged(struct model *m, uint64_t before_ns);

/*
 * From now on promises are not held against anybody: more is going to be lost than is tolerated. To be called right after
 * a judgement, and for good.
 */
void model_keep(struct model *m);

/* ---- after a crash ---- */

/*
 * `found` was built by the caller from what the filesystem came back with (model_found_*), as a
 * model without operations. Fails, or makes m what was found; found is empty afterwards.
 */
void model_judge(struct model *m, struct model *found);
/*
 * Since model_keep: each fact found, each size and each block that could be read was so at some time since. What nobody
 * touched since is there, but where something could not be read. m stays as it is; found is empty afterwards.
 */
void model_judge_beyond(struct model *m, struct model *found);
/* Without judging: the beginning. */
void model_adopt(struct model *m, struct model *found);
/* Finds root, homes ("w0" ...) and the shared directory; call when all was found. */
void model_found_end(struct model *found);
/* A name in a directory, with the object behind it; the same ino again is the same object (a hard
 * link). */
struct mobj *model_found(struct model *found, unsigned worker, struct mobj *dir, const char *name,
			 uint64_t ino, enum mtype type, uint32_t mode, uint32_t rdev,
			 uint32_t links, const char *target, bool *ret_new);
void model_found_xattr(struct model *found, struct mobj *obj, const char *name, const void *value,
		       size_t len);
void model_found_size(struct mobj *file, uint64_t size);
/* A whole block. Blocks not given are zeros. */
void model_found_block(struct mobj *file, uint64_t index, const uint8_t *data);
/* One that could not be read. */
void model_found_lost(struct mobj *file, uint64_t index);
/* Whether data, n bytes of the block's first, is any of its versions. */
bool model_block_legal(const struct mobj *file, uint64_t index, const uint8_t *data, size_t n);

#endif
