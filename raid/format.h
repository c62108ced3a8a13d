/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Every byte that raid/ writes. trussfs(5) says the same in prose; the two change in one commit.
 *
 * A member:
 *
 *   0          1 MiB                                             size - tail
 *   | labels A | journal ring | slice 0 | slice 1 | ... | slack | labels B |
 *
 *   labels: two places of 512 KiB at each end; a generation of the volume table goes to the place that does not
 *           hold the newest at that end: first to labels A of all members, then to labels B (see label.c).
 *           A place is one label block and, behind it, the whole table, so any one valid place of any
 *           one member opens the volume. Labels B begin at label_b_off(size).
 *   journal: a ring of records, private to the member; see journal.c.
 *   slices: equal pieces, each the column of at most one chunk.
 *   slack:  at least SLACK_BYTES_MIN unused, so that a replacement may be a little smaller.
 *
 * A slice, as a column of a chunk:
 *
 *   | chunk pages (bitmap and checksum pages, three places each) | rows ... |
 *
 * All integers are little-endian. Reserved bytes are zero and checked.
 */
#ifndef RAID_FORMAT_H
#define RAID_FORMAT_H

#include "base.h"

#define LABEL_MAGIC 0x316c656273727274ull  /* "trrsbel1" */
#define PAGE_MAGIC 0x6567617073727274ull   /* "trrspage" */
#define RECORD_MAGIC 0x6472636573727274ull /* "trrsecrd" */

#define LABEL_AREA_BYTES (1u << 20)
#define LABEL_PLACE_BYTES (512u << 10)
#define LABEL_PLACES 2
#define TABLE_BYTES_MAX (LABEL_PLACE_BYTES - BLOCK_BYTES)
#define LABEL_NAME_BYTES 64 /* NUL included */

#define MEMBERS_MAX 64
#define MEMBER_BYTES_MIN (48ull << 20)
#define SLICE_BYTES_MIN (4ull << 20)
#define SLICES_TOTAL_MAX 20000 /* 24 bytes of table a slice at worst: fits TABLE_BYTES_MAX */
#define GONE_MAX 1024 /* members that are remembered by their UUID alone, 16 bytes each: fits as well */
#define JOURNAL_BYTES_MIN (4ull << 20)
#define JOURNAL_BYTES_MAX (4ull << 30)
#define STRIP_BYTES_MIN 4096u
#define STRIP_BYTES_MAX (4u << 20)

/* Labels B: the last whole MiB-aligned MiB, so that they are found on 512 and 4096-byte sectors alike. */
static inline uint64_t label_b_off(uint64_t member_bytes)
{
	return ROUND_DOWN(member_bytes, 1ull << 20) - LABEL_AREA_BYTES;
}

/* One bit each; an unknown incompat bit refuses the volume, an unknown ro_compat bit a writable open. */
#define FEATURES_COMPAT 0ull
#define FEATURES_RO_COMPAT 0ull
#define FEATURES_INCOMPAT 0ull

/* First block of a label place. */
struct label_disk {
	le64 magic;
	le64 sum; /* XXH3-64 of the block with this field 0 */
	le32 version;
	le32 place;         /* which of the two */
	le64 off_bytes;     /* own address on the member */
	struct uuid fs;
	struct uuid member;
	le64 member_bytes;  /* size of the device when it was labelled */
	le64 compat, ro_compat, incompat;
	le64 gen;           /* generation of the table behind */
	le32 table_bytes;
	le32 member_index;
	le64 table_sum;     /* XXH3-64 of table_bytes bytes */
	char name[LABEL_NAME_BYTES];
	uint8_t reserved[4096 - 184];
};
static_assert(sizeof(struct label_disk) == 4096, "one block");
static_assert(offsetof(struct label_disk, name) == 120, "pinned");

/* The volume table: head, members, chunks, each with its columns, and the UUIDs of members long gone. */
struct table_head_disk {
	le64 gen;
	le64 epoch;      /* journal records of another epoch are not ours */
	le64 salt;       /* seeds the record checksums: random for each epoch, so file data cannot pose as a record */
	le64 slice_bytes;
	le64 journal_off_bytes, journal_bytes; /* on every member */
	le64 slices_off_bytes;
	le64 chunk_next; /* chunk numbers are never used twice */
	le32 level;      /* of data chunks: 0 1 5 6 10 50 60 */
	le32 tolerance;  /* members that may be lost */
	le32 strip_blocks;
	le32 groups;     /* of data chunks */
	le32 member_count, chunk_count;
	le32 flags;
	/* 0 .. 100 plus 1; 0: it was never set */
	uint8_t rebuild_priority, scrub_priority;
	le16 reserved0;
	le64 created_s;  /* wall clock, for people */
	le64 scrub_cursor;    /* chunk << 32 | row: where an interrupted scrub goes on */
	le64 scrub_last_end_s; /* wall clock, for people */
	le32 gone_count;      /* of the list behind the chunks */
	le32 reserved1;
	le64 reserved[3];
};
static_assert(sizeof(struct table_head_disk) == 152, "pinned");
static_assert(offsetof(struct table_head_disk, rebuild_priority) == 92, "pinned");
#define TABLE_PRIORITY_MAX 100u
#define TABLE_CLEAN 1u    /* closed cleanly: the journal is empty */
#define TABLE_SCRUBBING 2u
#define TABLE_RECORDS 4u  /* the epoch has records: one at least must be found */

/* What became of a member. Stored; never renumber. */
enum member_state {
	MEMBER_ACTIVE = 1,  /* in service; single columns may still be stale (being rebuilt) */
	MEMBER_MISSING = 2, /* was not there, or left: everything on it is stale */
	MEMBER_FAILED = 3,  /* taken out for good, by its errors or the administrator */
	MEMBER_REMOVED = 4, /* replaced: nothing refers to it, and when all indices are taken this one is used again */
};

struct table_member_disk {
	struct uuid uuid;
	le64 size_bytes;
	le64 last_gen;     /* newest table generation it was in service for */
	le32 state;        /* enum member_state */
	le32 slice_count;
	le32 replaces;     /* index + 1 of the member it takes over from, 0: none */
	le32 reserved0;
	le64 errors_read, errors_write, errors_sum, errors_lost, errors_hung; /* counted for people */
	char hint[64];     /* path when last seen: for messages only */
	char serial[64];
};
static_assert(sizeof(struct table_member_disk) == 216, "pinned");

enum chunk_class { CHUNK_META = 1, CHUNK_DATA = 2 };

struct table_chunk_disk {
	le32 number;
	uint8_t class;
	uint8_t level;   /* as a number: 0 1 5 6 10 ...; metadata chunks are 1 (or 0) */
	le16 columns;
	le16 groups;
	le16 reserved0;
	le32 fill_hint;  /* data blocks in use at the last clean close; 0xffffffff unknown */
};
static_assert(sizeof(struct table_chunk_disk) == 16, "pinned");

struct table_column_disk {
	le16 member; /* COLUMN_STALE: its content is not to be trusted yet */
	le16 slice;
};
/*
 * Last, gone_count UUIDs, oldest first: members that were replaced and whose index is another's now. Should one come back it is to be
 * known for what it is, whatever was done with it meanwhile.
 */
#define COLUMN_STALE 0x8000u
static_assert(sizeof(struct table_column_disk) == 4, "pinned");

/*
 * A chunk page. Bitmap page: one live bit per data block, in order of (row, data index); and one bit
 * for each checksum page it covers that has ever been written. Checksum page: sums of a run of rows,
 * 0 = the block was never written and counts as zeros in parity.
 * Copy j of page p is the j-th of tolerance + 1 copies, on column (p * copies + j) % columns, at the places from
 * block PAGE_PLACES * ((p * copies + j) / columns) of the page area on.
 *
 * Places. A generation is written to one place of each copy, flushed, and then to a second one; the third keeps the
 * generation before, and is the first place of the next. So whatever a crash cuts short, each copy has two valid places, and
 * of any two valid places of one copy one holds the newest generation that ever was durable. A copy with fewer knows
 * nothing: what is left of it may be the generation before, and blocks written since would be read as they were then,
 * or as zeros. If no copy has two valid places the page is lost, whatever else is there. (Two places that are written in turn
 * cannot tell: a newest generation that is damaged looks like one that a crash cut short.) Which place is next is not stored:
 * one that is not valid, else the oldest. Of equal generations, which attempts that were cut short can leave behind,
 * the newer by epoch and seq counts.
 */
struct page_disk {
	le64 magic;
	le64 sum;        /* XXH3-64 of the block with this field 0, seeded with the address */
	struct uuid fs;
	le32 chunk;
	le32 page;       /* bitmap pages first, then checksum pages */
	le64 gen;        /* counts from 1 */
	le64 seq;        /* newest journal record whose changes it holds */
	le64 epoch;      /* of that record */
	uint8_t body[4096 - 64];
};
static_assert(sizeof(struct page_disk) == 4096, "one block");
#define PAGE_PLACES 3u
#define PAGE_BODY_BYTES (4096u - 64)
#define PAGE_INIT_BYTES 32u /* bitmap page: bits of initialised checksum pages; live bits follow */
#define PAGE_SUMS (PAGE_BODY_BYTES / 8)
#define PAGE_LIVE_BITS ((PAGE_BODY_BYTES - PAGE_INIT_BYTES) * 8)

/*
 * A journal record: one header block, then items (each padded to 8 bytes) up to items_bytes, padded to
 * a block, then image_count block images. Written as one piece; wraps at the end of the ring by skipping.
 */
struct record_disk {
	le64 magic;
	le64 sum;         /* XXH3-64 of the whole record with this field 0, seeded with the epoch's salt */
	struct uuid fs;
	le64 epoch;
	le64 seq;         /* counts from 1 in each epoch */
	le64 tail;        /* records before this one are no longer needed */
	le64 durable;     /* every record up to this one was durable when this was written */
	le64 members;     /* bit mask: who got a copy */
	le32 total_bytes; /* of the record, a multiple of a block */
	le32 items_bytes;
	le32 item_count, image_count;
	uint8_t reserved[4096 - 88];
};
static_assert(sizeof(struct record_disk) == 4096, "one block");

enum item_kind {
	ITEM_LIVE = 1,  /* lba, count: become live */
	ITEM_DEAD = 2,  /* lba, count: die */
	ITEM_SUMS = 3,  /* chunk, row, count: then count * sums-per-row le64: written directly */
	ITEM_IMAGE = 4, /* chunk, row, sum slot, new sum: content is the next image of the record */
};
struct item_disk {
	le32 kind;
	le32 count;
	le32 chunk;
	le32 slot;
	le64 row; /* or block within the chunk */
	le64 sum;
};
static_assert(sizeof(struct item_disk) == 32, "pinned");

#endif
