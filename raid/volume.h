/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * struct raid and what the parts of raid/ ask of each other. Not for anybody outside raid/.
 *
 *   volume.c   open, close, info
 *   space.c    which blocks are used; allocation
 *   page.c     bitmap and checksum pages and their cache
 *   journal.c  transactions, commit, checkpoint, replay
 *   image.c    blocks whose newest content is in the journal and not yet in its place
 *   row.c      locks on cells, writing
 *   read.c     verified reading, recovery, healing
 *   health.c   member states
 *   walk.c     rebuild, scrub, check
 *   pace.c     how fast they may go
 *
 * A *cell* is one group of one row: the unit of parity, of locking and of the choice between the two ways
 * of writing. Locks are taken in ascending order of (chunk, row, group); a holder may wait for I/O and for pages, never for a
 * commit, a checkpoint or the table.
 */
#ifndef RAID_VOLUME_H
#define RAID_VOLUME_H

#include "buf.h"
#include "co.h"
#include "pace.h"
#include "page.h"
#include "parity.h"
#include "raid.h"

#define ROWS_MAX 64             /* rows worked on at once by recovery, scrub and rebuild */

/* ---- page.c ---- */

struct page {
	struct list hash, lru;
	struct list dirty;      /* on raid.pages_dirty while dirty */
	struct chunk *chunk;
	uint32_t number;
	unsigned pins;
	bool loading;
	int error;              /* of loading; the page is dropped when nobody waits any more */
	bool is_dirty;
	bool lost;              /* no copy is sure (format.h): stands for the worst, until it is written */
	uint64_t gen;           /* of the newest place on the members */
	struct page_disk *cur;
	bool half;              /* the running checkpoint has written the first places */
	/*
	 * A checkpoint takes every dirty page as it is when a transaction is sealed. Until it is written, a change
	 * to the page first puts that state aside; also that of a page that was clean then, since images that go
	 * home may have to add their checksums to it.
	 */
	bool captured;
	struct page_disk *aside; /* NULL: cur is still as it was */
	/* Of each copy: where the next generation goes, and when it is durable there, where it goes as well. */
	struct page_places {
		uint8_t first, second;
		bool empty; /* no place is known to be valid: to both at once */
	} places[];
};

int pages_init(struct raid *r);
void pages_exit(struct raid *r);
/*
 * Pins. Yields when it is not in memory. A page of which all copies are damaged is there all the same (page.c). -EIO: too few
 * members answer.
 */
int page_get(struct raid *r, struct chunk *c, uint32_t number, struct page **ret);
void page_put(struct raid *r, struct page *p);
/* Pins every checksum page of the rows; page_put_rows lets go. Yields. */
int page_get_rows(struct raid *r, struct chunk *c, uint64_t row, uint64_t count);
void page_put_rows(struct raid *r, struct chunk *c, uint64_t row, uint64_t count);
/* The checksum of a block whose checksum is lost. */
#define SUM_LOST UINT64_MAX
/* Whether a checksum page of the rows, in memory, is a lost one. */
bool page_rows_lost(struct raid *r, const struct chunk *c, uint64_t row, uint64_t count);
/* Of pinned pages; never yields. Setting belongs to the open transaction. */
uint64_t page_sum(struct raid *r, struct chunk *c, uint64_t row, unsigned sum);
/* The same for who holds the page of the row. */
static inline uint64_t page_sum_of(const struct page *p, uint64_t row, unsigned sum)
{
	const struct geom *g = &p->chunk->geom;

	return from_le64(((const le64 *)p->cur->body)[row % g->rows_per_sum_page * g->sums + sum]);
}
void page_sum_set(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, uint64_t value);
bool page_live(struct raid *r, struct chunk *c, uint64_t row, unsigned index);
void page_live_set(struct raid *r, struct chunk *c, uint64_t row, unsigned index, bool live);
/*
 * Checksum of an image that goes home: durable in the journal, so it enters the page as the running checkpoint writes
 * it. The page is pinned; never yields.
 */
void page_sum_home(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, uint64_t value);
/* Marks every dirty page as it is now for the checkpoint. Never yields. */
void pages_capture(struct raid *r);
/* The checkpoint has ended: forgets what it kept. */
void pages_release(struct raid *r);
/* Writes the captured pages: checkpoint only, when all they hold is durable in the journal. Flushes. Yields. */
int pages_write(struct raid *r);
/* Rewrites all copies of one page at the next checkpoint. */
void page_mark_dirty(struct raid *r, struct page *p);
/* Reads every copy of a page and compares with the newest; *ret_bad = copies that are missing or old. */
int page_verify_copies(struct raid *r, struct chunk *c, uint32_t number, unsigned *ret_bad);

/* The first pages of a new chunk. Not flushed. Members that fail are taken out, and their columns are stale. Yields. */
int pages_format(struct raid *r, struct chunk *c);

/* Checksum of a block where it stands; never 0. */
uint64_t block_sum(const struct uuid *fs, uint32_t chunk, uint64_t row, unsigned sum, const void *data);

/* ---- space.c ---- */

/* One bit for each data block, in order of (row, data index): rows and stripes are runs of bits. */
struct chunk_space {
	bool loaded, loading;
	int error;       /* of loading: the chunk is passed over */
	uint64_t *used;  /* nobody else may have it: allocated, live, or dead and not yet free */
	uint64_t *fresh; /* allocated and not written since: its content does not count */
	uint64_t free;   /* blocks; before loading by the hint */
	uint64_t stripe_cursor;          /* next stripe to look at */
	uint64_t row_next, row_end;      /* rows of a stripe opened for less than a stripe */
	uint64_t small_next, small_end;  /* bits of a stripe opened for small writes */
	uint64_t hole_cursor;            /* next bit to look at for single blocks */
	uint64_t row_cursor;             /* next stripe to look at for single rows */
	uint64_t clean;                  /* blocks of rows in which nothing is used; before loading as `free` */
	uint64_t stripes_clean;          /* stripes in which nothing is used */
	uint32_t *stripe_used;           /* blocks of each */
	bool no_holes;                   /* live blocks are lost: rows that are in use are not filled up any more */
	struct page **bitmap;            /* pinned while loaded */
};

/* Loads the metadata chunks; counts the rest by what the table says of them if the volume was closed cleanly. Yields. */
int space_init(struct raid *r, bool clean);
void space_exit(struct raid *r);
static inline uint64_t space_stripe_bits(const struct chunk *c)
{
	return (uint64_t)c->geom.strip_blocks * c->geom.width;
}
/* Blocks of data chunks that may be made although there are holes. */
uint64_t space_growable(const struct raid *r);
/* Yields. */
int space_load(struct raid *r, struct chunk *c);
bool space_loaded(const struct chunk *c);
/* Whether the block's content counts: used and written. Of a loaded chunk. */
bool space_occupied(const struct chunk *c, uint64_t row, unsigned index);
void space_written(struct chunk *c, uint64_t row, unsigned index);
/* The transaction that killed it is durable and no reader may still look: free for use. */
void space_release(struct raid *r, uint64_t lba, uint32_t count);
/* Whether any block of the row is used. Of a loaded chunk. */
bool space_row_in_use(const struct chunk *c, uint64_t row);
/* After members came or went: what free slices could still become. */
void space_recount(struct raid *r);
/* For the table at close. */
uint32_t space_fill_hint(const struct chunk *c);
/* Adds a chunk and writes the table. Takes the table lock. Yields. */
int space_grow(struct raid *r, enum chunk_class class);
/* ---- image.c ---- */

struct image {
	struct list hash; /* the newest of a block only */
	struct list txn;  /* on its transaction's list, later on the volume's of committed images */
	struct chunk *chunk;
	uint64_t row;
	unsigned sum;     /* which checksum of the row: identifies the block, whatever its copies */
	uint64_t seq;     /* of the transaction that carries it */
	uint64_t value;   /* checksum */
	struct image *older; /* the one of an earlier transaction that this supersedes when it is durable */
	struct image *newer;
	void *data;
	bool heap;        /* memory from the heap: the pool was empty */
	bool sealed;      /* its transaction is: content does not change any more */
	bool committed;   /* its transaction is durable */
	bool busy;        /* being written home */
	bool dropped;     /* superseded meanwhile: the writer frees it */
	bool cancelled;   /* its place belongs to newer content: still in its record, never written home */
};

int images_init(struct raid *r);
void images_exit(struct raid *r);
/* Newest content, or NULL when what is in place is newest. */
struct image *image_find(struct raid *r, const struct chunk *c, uint64_t row, unsigned sum);
/*
 * New content (copied) for the block in the open transaction. Its checksum reaches the page when it goes home. Never
 * yields. -ENOMEM.
 */
int image_stage(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, const void *data);
/* The same for replay: content of a record that is durable. */
int image_replay(struct raid *r, struct chunk *c, uint64_t row, unsigned sum, uint64_t value, const void *data);
/* The block was written directly, or is empty from now on: what the journal has is history. */
void image_cancel(struct raid *r, struct chunk *c, uint64_t row, unsigned sum);
/* The transaction that carries it is durable: it supersedes the older one. */
void image_committed(struct raid *r, struct image *i);
/* Writes committed images up to transaction `seq` to their places, under their cells' locks. Yields. */
int images_write_home(struct raid *r, uint64_t seq);

/* ---- row.c ---- */

#define GROUP_ALL UINT32_MAX
struct cell_lock {
	struct list node;
	uint32_t chunk;
	uint64_t row;   /* rows row .. row + count - 1 of one group, or of all */
	uint64_t count;
	unsigned group;
	struct co_cond wait;
};
/* Ascending order when more than one is held. Yields. */
void cell_lock(struct raid *r, struct cell_lock *l, const struct chunk *c, uint64_t row, uint64_t count,
	       unsigned group);
void cell_unlock(struct raid *r, struct cell_lock *l);

/*
 * A list of block-sized writes to members, merged into few I/Os. Every write goes to the column's slice and, while the column
 * is being moved, to the new slice as well.
 */
struct write_entry {
	unsigned member;
	uint64_t off_bytes;
	void *data;
};
struct write_list {
	struct write_entry *entries;
	unsigned count, cap;
	bool failed; /* out of memory: write_list_run reports it */
};
void write_list_init(struct write_list *l);
/* A block of a member, whatever it is part of. */
void write_list_add(struct write_list *l, unsigned member, uint64_t off_bytes, void *data);
/* Adds the block wherever it is stored: slot of a row (one copy). */
void write_list_slot(struct raid *r, struct write_list *l, struct chunk *c, uint64_t row, unsigned slot, void *data);
/* All copies of a checksummed block (one slot, or all copies when mirrored). */
void write_list_sum(struct raid *r, struct write_list *l, struct chunk *c, uint64_t row, unsigned sum, void *data);
/* A block at a block number within the column's slice. */
void write_list_column(struct raid *r, struct write_list *l, struct chunk *c, unsigned column, uint64_t slice_block,
		       void *data);
/* Writes, retries, takes members out that fail; frees the list. -EIO: beyond tolerance (the volume takes no more writes). */
int write_list_run(struct raid *r, struct write_list *l);

/* raid_write and raid_readv of what is no request of the foreground. */
int row_write(struct raid *r, const struct raid_block *blocks, unsigned count, unsigned flags);

/* ---- read.c ---- */

int read_runs(struct raid *r, const struct raid_read_run *runs, unsigned count);

enum slot_state {
	SLOT_OK = 0,   /* verified, or zeros that need no verifying */
	SLOT_EMPTY,    /* never written: zeros */
	SLOT_IMAGE,    /* from the journal's memory: what is in place is older, and will be overwritten */
	SLOT_ABSENT,   /* column not to be read: member out or column stale */
	SLOT_BAD_IO,   /* the member said no */
	SLOT_BAD_SUM,  /* it gave something else */
	SLOT_RECOVERED,/* was one of the three above: now right, computed from the others */
	SLOT_LOST,     /* was one of them, and cannot be computed */
};
/* One group of some rows, all its slots, in memory. Cells are locked by the caller throughout. */
struct rows {
	struct chunk *chunk;
	unsigned group;
	uint64_t row;
	unsigned count;  /* <= ROWS_MAX */
	unsigned span;   /* slots of the group */
	void **slots;    /* count blocks each */
	uint8_t *state;  /* [slot * count + i]: enum slot_state */
	uint8_t *found;  /* what it was before recovery */
	bool any_bad;
};
/*
 * Memory for rows is promised before any cell is locked, all that is needed at once: who holds some of it waits for
 * nobody who wants more. What is asked for alone is always given. Yields.
 */
void rows_reserve(struct raid *r, uint64_t bytes);
void rows_unreserve(struct raid *r, uint64_t bytes);
/* Of one group of so many rows. */
static inline uint64_t rows_bytes(const struct chunk *c, unsigned count)
{
	return (uint64_t)c->geom.span * count * BLOCK_BYTES;
}
/* Reads all slots and verifies each against its checksum. Pages are loaded as needed. 0 even when blocks are bad. Yields. */
int rows_load(struct raid *r, struct rows *rows, struct chunk *c, unsigned group, uint64_t row, unsigned count);
/* Computes what is bad from what is good. Counts lost blocks in *ret_lost (NULL allowed). */
void rows_recover(struct raid *r, struct rows *rows, uint64_t *ret_lost);
/*
 * Writes recovered slots that were BAD_* to their columns, and (include_absent) those that were ABSENT to columns that are
 * writable; counts against members. Yields.
 */
int rows_heal(struct raid *r, struct rows *rows, bool include_absent, uint64_t *ret_healed);
void rows_free(struct rows *rows);

/* ---- journal.c ---- */

struct txn {
	uint64_t seq;
	uint8_t *items;
	size_t items_bytes, items_cap;
	uint32_t item_count, image_count;
	size_t last_sums; /* offset of the last item if it is ITEM_SUMS: may grow by a row; SIZE_MAX: it is not */
	struct list images;
	struct txn_dead {
		uint64_t lba;
		uint32_t count;
	} *dead;
	size_t dead_count, dead_cap;
	size_t dead_applied; /* live bits are cleared for the first that many */
	struct list node;    /* durable, waiting for readers to end */
};

struct ring { /* of one member */
	uint64_t head;  /* offset in the ring where the next record goes */
	struct ring_record {
		uint64_t seq, off, len;
	} *records;     /* oldest first: a circular array */
	unsigned first, count, cap;
	/* Member writes are counted: the flush that began after count n covers n. */
	uint64_t written, flushed;
};

struct journal {
	struct txn *open;
	uint64_t durable;      /* newest transaction that is on enough members */
	uint64_t tail;         /* record before which everything is home */
	uint64_t tail_durable; /* what the newest durable record says of it: ring space before it is free */
	uint64_t record_seq;   /* newest durable record; counted apart, since empty transactions write none */
	uint64_t record_flushed; /* the same, or one that is about to be called durable */
	bool committing, checkpointing;
	bool checkpointer_runs; /* else whoever commits does its work */
	bool finishing;        /* somebody does */
	uint64_t captured;     /* transaction at whose sealing the running checkpoint took the pages */
	uint64_t captured_record; /* newest record then durable */
	bool want_checkpoint;
	struct co_cond done;   /* a commit or a checkpoint has ended */
	struct co_cond timer_kick, checkpoint_kick;
	bool kicked;           /* the timer is to commit now (journal_kick) */
	uint64_t opened_ns;    /* when the open transaction began */
	uint64_t commit_by_ns; /* by when something in it must be durable; UINT64_MAX: nothing but the timer says */
	struct ring rings[MEMBERS_MAX];
	struct list settled;   /* struct txn: durable, whose dead blocks wait for readers */
	struct list readers;   /* struct raid_reader, oldest first */
	uint64_t image_count;  /* all images in memory */
	uint32_t images_reserved; /* that writers are about to stage */
	uint64_t replay_seq;   /* record that replay applies */
};

int journal_init(struct raid *r);
void journal_exit(struct raid *r);
/* Empty rings, next transaction is 1: a new epoch begins. */
void journal_reset(struct raid *r);
/* raid_commit, by ourselves. Yields. */
int journal_commit(struct raid *r);
/* Commits and writes everything home. Yields. */
int journal_checkpoint(struct raid *r);
/* Checksums first_sum .. of a row were written directly. Never yields; runs out of memory by r->error. */
void journal_stage_sums(struct raid *r, struct chunk *c, uint64_t row, unsigned first_sum, unsigned sums);
void journal_stage_image(struct raid *r, struct image *i);
/*
 * Images that will be staged after a wait are reserved first, so that the transaction stays within its bound however many writers
 * there are. At most journal_images_max at once. Yields.
 */
int journal_reserve_images(struct raid *r, uint32_t count);
void journal_unreserve_images(struct raid *r, uint32_t count);
static inline uint32_t journal_images_max(const struct table *t)
{
	return (uint32_t)(t->journal_bytes / 64 / BLOCK_BYTES);
}
/* The longest that a change may stay open. */
uint64_t journal_commit_ns(const struct raid *r);
/* A commit is wanted, now, and not waited for. Never yields. */
void journal_kick(struct raid *r);
/* Background work: the commit timer and the checkpointer. */
int journal_start(struct raid *r);
/* A write to a member has completed: it needs a flush before anything may rely on it. */
void journal_member_written(struct raid *r, unsigned member);
/* Whether a write to it is not covered by a flush. */
bool journal_member_unflushed(const struct raid *r, unsigned member);
/* Flushes every member that was written since its last flush. Yields. */
int journal_flush_members(struct raid *r);
/*
 * The same of what a killed daemon left in caches. A member that refuses is counted and stays in service: nobody knows yet which records
 * are on it alone. What it has lost the checksums tell, and the flush behind what replay writes home asks it again.
 */
int journal_flush_before_replay(struct raid *r);
/*
 * Whether every record that a crash now would replay has a copy on somebody in service beside this member. If not, and
 * the member were taken out, what it alone has would be lost although the chunks can do without it. Never yields.
 */
bool journal_can_spare(const struct raid *r, unsigned member);
/* Writes home what is committed up to transaction `seq`, and the captured pages; then flushes. Yields. */
int journal_write_home(struct raid *r, uint64_t seq);

/* A new member has this index: nothing is in its ring. */
void journal_ring_new(struct raid *r, unsigned member);
/* For replay: a member's ring holds this record (in order of sequence number). -ENOMEM. */
int journal_ring_restore(struct raid *r, unsigned member, uint64_t seq, uint64_t off, uint64_t len);
/*
 * Copies a record that is on the members of the mask to as many others as it lacks, flushed. -ENOSPC: a ring has no room.
 * Yields.
 */
int journal_spread_record(struct raid *r, uint64_t seq, const void *record, uint64_t len, uint64_t have);

/* ---- replay.c ---- */

/*
 * Reads the rings and applies what they hold, in memory: pages dirty, images committed. Yields. -EUCLEAN: an acknowledged
 * record is lost.
 */
int journal_replay(struct raid *r);

/* ---- health.c ---- */

/*
 * The member failed an I/O with `result`, after retries. Never yields. Takes it out of service (state MISSING, in memory; the
 * table is written before anything is acknowledged) unless that would lose data: then the volume stops taking writes.
 */
void health_failed(struct raid *r, unsigned member, enum io_op op, int result);
/* A write has ended: notes it for the next flush, counts errors, those that another attempt cured too. Never yields. */
void health_written(struct raid *r, unsigned member, const struct io *io);
/* Counts, and takes out members that vanished or hang. */
void health_read_error(struct raid *r, unsigned member, int result);
void health_sum_error(struct raid *r, unsigned member);
/* Writes the table if it has changed. Yields. Not while holding a cell. */
int health_table_sync(struct raid *r);
/* The same while the caller holds raid.table_lock. */
int health_table_write_locked(struct raid *r);
/* Looks at the states and starts what they call for (rebuild). Never yields. */
void health_reconcile(struct raid *r);
/*
 * At open: members that are absent become MISSING, those that came back (by index, NULL: it did not) ACTIVE with stale
 * columns. In memory: the table is written next.
 */
void health_open(struct raid *r, struct dev **stale);

/* ---- walk.c ---- */

struct job {
	struct raid_job_info info;
	bool cancel;
	bool again; /* states have changed while it ran */
	struct co_cond ended;
};
int walk_rebuild_start(struct raid *r);
/* Between these two a request of the foreground is under way: what it waits is what a job costs it. Never yield. */
void walk_foreground_begin(struct raid *r, struct pace_request *q);
void walk_foreground_end(struct raid *r, struct pace_request *q, enum pace_class class);
void walk_stop(struct raid *r); /* asks all jobs to end; raid_close waits for raid.background */

/* ---- clean.c ---- */

#define CLEAN_CLOSED_MAX 32u
#define CLEAN_SHUNNED_MAX 16u
struct clean_stripe {
	uint32_t chunk;
	uint64_t stripe;
};
struct clean {
	struct clean_stripe closed[CLEAN_CLOSED_MAX]; /* being cleaned: nothing is put into them */
	unsigned closed_count;
	struct clean_stripe shunned[CLEAN_SHUNNED_MAX]; /* could not be cleaned; the oldest is forgotten first */
	unsigned shunned_next, shunned_count;
	bool working; /* counts as a job of the pace */
};
bool clean_is_closed(const struct raid *r, const struct chunk *c, uint64_t stripe);
/* Clean blocks of existing chunks that are kept for the cleaner as long as there is something else. */
uint64_t clean_keep(const struct raid *r);
/* There is nothing else. */
void clean_open(struct raid *r);

/* ---- the volume ---- */

struct raid {
	struct loop *loop;
	struct table *t;
	struct raid_options options;
	struct raid_hooks hooks;
	void *hooks_ctx;
	int error;         /* no more writes: why */
	bool read_only;    /* nothing is written; replay and its results stay in memory */
	bool started, stopping, abandoned;
	unsigned background; /* coroutines of ours that run */
	struct co_cond background_done;

	/* page.c */
	struct list *page_hash;
	size_t page_hash_size;
	struct list page_lru, pages_dirty;
	uint64_t page_count, page_count_max, pages_dirty_count;
	struct co_cond page_loaded;
	bool replaying;

	/* image.c */
	struct list *image_hash;
	size_t image_hash_size;
	struct list images_committed; /* in order of commit */

	/* row.c */
	struct list *cell_hash;
	size_t cell_hash_size;

	/* space.c */
	unsigned data_cursor;  /* index of the chunk that is being filled */
	uint64_t meta_free, data_free;           /* blocks in existing chunks */
	uint64_t meta_potential, data_potential; /* in chunks that could be made */
	uint64_t meta_chunk_blocks, data_chunk_blocks; /* of the next chunk; 0: there cannot be one */
	uint64_t meta_total, data_total;         /* of existing chunks */
	uint64_t data_clean;                     /* of data_free: in rows in which nothing is used */
	struct clean clean;
	struct co_cond space_loaded;

	struct journal journal;

	struct co_mutex table_lock; /* guards changes of the table's chunks and its writing */
	bool table_dirty, table_writing;

	struct job rebuild, scrub;
	struct pace pace;
	struct co_cond pace_changed; /* who waits for their turn look again */
	uint64_t read_rotor; /* spreads reads over copies */
	uint64_t rows_bytes; /* promised */
	struct co_mutex rows_turn; /* first come, first served, large ones too */
	struct co_cond rows_room;
};

/* Spawns fn(r) as a coroutine that raid_close waits for. */
int raid_background(struct raid *r, void (*fn)(struct raid *r));

#endif
