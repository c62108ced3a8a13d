/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The write buffer: dirty blocks in memory, and how they get to the volume.
 */
#ifndef FS_WRITEBACK_H
#define FS_WRITEBACK_H

#include "inode.h"

/* One dirty block of a file. */
struct wb_block {
	struct inode *inode; /* NULL: cut off while it was being written out; the batch frees it */
	uint64_t block;	     /* in the file */
	uint64_t
	    seq; /* counts dirtyings: when the oldest byte of `data` that is not on disk came */
	uint64_t dirtied_ns; /* the same on the loop's clock */
	void *data;	     /* the newest content, BLOCK_BYTES of pool memory */
	void *io_data; /* what is being written out: stays as it is (W4); NULL: not being written */
	uint64_t io_seq;
	bool fresh; /* holds a reservation: has no place on the volume that it could take */
	bool meta;  /* may need metadata: the map says nothing of it, or only that it is promised */
	bool took;  /* the reservation has become an allocation that is not yet in the map */
	/*
	 * Up to which byte of the file the content that is being written out, and the one that was written out since
	 * the block became dirty, is the file's: bytes behind the end at that time are not.
	 */
	uint64_t io_end, stands_end;
	uint8_t tries;
	struct list link; /* inode's dirty or writing */
};

/* ---- writing into the buffer (file.c) ---- */

/*
 * Waits until `blocks` more may be dirty and takes them into account; -errno when the volume takes
 * no more writes. Yields; not with an inode's lock held. Give back with room_done.
 */
int writeback_room(struct fs *fs, uint64_t blocks);
void writeback_room_done(struct fs *fs, uint64_t blocks);
/* A block with memory, not yet anyone's. Yields. NULL without memory. */
struct wb_block *writeback_spare(struct fs *fs);
void writeback_spare_free(struct wb_block *b);

/* The rest never yields. */

/* The newest content of a dirty block, NULL when it is not dirty. */
const void *writeback_peek(struct inode *i, uint64_t block);
struct wb_block *writeback_find(struct inode *i, uint64_t block);
/* First dirty block >= from. */
bool writeback_next_dirty(struct inode *i, uint64_t from, uint64_t *ret);
/* How far, from `size` on, a crash would leave bytes of the file and not zeros or what was there before. */
uint64_t writeback_standing(struct inode *i, uint64_t size);
/* The file ends at `size` now: what is written out of its last block is the file's only so far. */
void writeback_cut(struct inode *i, uint64_t size);
/* Makes sure that writeback_add of this block cannot fail. -ENOMEM. */
int writeback_prepare(struct inode *i, uint64_t block);
/* A spare with content becomes the (not yet dirty) block of the file. */
void writeback_add(struct fs *fs, struct inode *i, uint64_t block, struct wb_block *spare,
		   bool fresh);
/*
 * Memory to change a dirty block in. If it is just being written out its content goes on in the
 * spare's memory (and *spare becomes NULL).
 */
void *writeback_modify(struct fs *fs, struct wb_block *b, struct wb_block **spare);
/* Whether *spare would be needed by writeback_modify. */
static inline bool writeback_is_shared(const struct wb_block *b)
{
	return b->io_data && b->io_data == b->data && !BREAK(w4_frozen);
}
/* Forgets dirty blocks [from, to): they are not written any more. */
void writeback_drop(struct fs *fs, struct inode *i, uint64_t from, uint64_t to);
/* Dirty blocks in [from, to) have got a place to go to (fallocate): their reservations end. */
void writeback_unreserve(struct fs *fs, struct inode *i, uint64_t from, uint64_t to);
/* A dirty block that had a place of another kind will need space. */
void writeback_reserve(struct fs *fs, struct wb_block *b);
/* Frees what an inode that goes has in the buffer. */
void writeback_forget(struct fs *fs, struct inode *i);
/* What hangs in the buffer is enough for a batch: the flusher should not wait for its time. */
void writeback_kick(struct fs *fs);

/*
 * For who moves blocks (clean.c). Overwriting in place leaves the extent as it is: whether that has been done since
 * writeback_overwrites gave that number, or is under way.
 */
uint64_t writeback_overwrites(const struct fs *fs);
bool writeback_overwritten(const struct fs *fs, uint64_t since);
/* Nobody lacks space, and more than `blocks` are promised to nobody, nor is the metadata for their map. */
bool writeback_plenty(struct fs *fs, uint64_t blocks);
/* raid_alloc_data for the cleaner, of what nobody is promised. -ENOSPC. Yields. */
int writeback_alloc_spare(struct fs *fs, uint32_t want, struct raid_run *runs, unsigned runs_max, unsigned *ret_count);

/* Data blocks that can still be promised to somebody. */
uint64_t writeback_avail(struct fs *fs);
/* Whether metadata for what is dirty, and `blocks` more, can be had. */
bool writeback_meta_avail(struct fs *fs, uint64_t blocks);
/* Whether an atom of that kind may take `want` metadata blocks: what is kept from it is in writeback.c. */
bool writeback_meta_may(const struct fs *fs, unsigned kind, uint32_t want);
/* Whether making a metadata chunk leaves enough for the data that was accepted. */
bool writeback_meta_may_grow(struct fs *fs);
/* Metadata blocks that no new file gets, for statfs. */
uint64_t writeback_meta_kept(const struct fs *fs);
/* Space was freed: worth a commit before saying ENOSPC. */
void writeback_note_freed(struct fs *fs);
/* Before ENOSPC: does what may give space. False: it has not given any. Yields; no inode's lock
 * held. */
bool writeback_make_space(struct fs *fs);
/*
 * Who lacks space tries to make some and to take it, one after the other: else what one has made others take, and the
 * first is told ENOSPC while there is space. `always`: the caller has been told -ENOSPC; else only if others have. Locks
 * if it returns true: unlock with space_leave. Yields; no inode's lock held. Between the two nobody calls
 * writeback_room, since those who wait here have their room already.
 */
bool writeback_space_enter(struct fs *fs, bool always);
void writeback_space_leave(struct fs *fs);
/* Blocks that dirty data will need beyond what it has. For statfs (writeback_dirty_bytes:
 * private.h). */
uint64_t writeback_reserved_blocks(const struct fs *fs);

/*
 * Writes out what was dirty at the call, of one inode (pinned) or of all (NULL). On return it
 * stands in the tree and is durable with the next commit. `sync`: somebody waits; little goes
 * through the journal. Yields. The first error; what failed stays dirty and is tried again by the
 * flusher, WB_TRIES_MAX times in all.
 */
int writeback_write(struct fs *fs, struct inode *i, bool sync);

#endif
