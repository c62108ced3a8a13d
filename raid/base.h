/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Shared vocabulary: integers as they stand on disk, small arithmetic, lists, memory, messages.
 * Everything above may include this; it includes nothing else of ours.
 *
 * Errors everywhere are 0 or a negative errno:
 *   -EIO       the member would not do it
 *   -EBADMSG   it did, and the bytes are wrong
 *   -ENODEV    too few members
 *   -ETIMEDOUT the deadline passed; the buffer may still be written to (see io.h)
 */
#ifndef RAID_BASE_H
#define RAID_BASE_H

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "broken.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#define TO_LE(bits, x) __builtin_bswap##bits(x)
#else
#define TO_LE(bits, x) (x)
#endif

/* Wrapped so that a plain assignment between disk and memory does not compile. */
typedef struct {
	uint16_t raw;
} le16;
typedef struct {
	uint32_t raw;
} le32;
typedef struct {
	uint64_t raw;
} le64;

static inline le16 to_le16(uint16_t x)
{
	return (le16){TO_LE(16, x)};
}
static inline le32 to_le32(uint32_t x)
{
	return (le32){TO_LE(32, x)};
}
static inline le64 to_le64(uint64_t x)
{
	return (le64){TO_LE(64, x)};
}
static inline uint16_t from_le16(le16 x)
{
	return TO_LE(16, x.raw);
}
static inline uint32_t from_le32(le32 x)
{
	return TO_LE(32, x.raw);
}
static inline uint64_t from_le64(le64 x)
{
	return TO_LE(64, x.raw);
}

/* The unit of address, checksum and I/O, whatever the sector size of a member. */
#define BLOCK_SHIFT 12
#define BLOCK_BYTES 4096u

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define DIV_ROUND_UP(n, d) (((n) + (d) - 1) / (d))
#define ROUND_UP(n, d) (DIV_ROUND_UP(n, d) * (d))
#define ROUND_DOWN(n, d) ((n) / (d) * (d))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

struct uuid {
	uint8_t b[16];
};
static_assert(sizeof(struct uuid) == 16, "on disk");

static inline bool uuid_equal(const struct uuid *a, const struct uuid *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}
static inline bool uuid_is_null(const struct uuid *a)
{
	static const struct uuid null;
	return uuid_equal(a, &null);
}
#define UUID_TEXT_BYTES 37
/* Lower case, 36 characters and a NUL. */
const char *uuid_text(const struct uuid *u, char out[UUID_TEXT_BYTES]);

/* Circular, intrusive, double-linked. A node that is on no list points to itself. */
struct list {
	struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}
static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}
static inline void list_add_tail(struct list *head, struct list *n)
{
	n->prev = head->prev;
	n->next = head;
	head->prev->next = n;
	head->prev = n;
}
static inline void list_add(struct list *head, struct list *n)
{
	list_add_tail(head->next, n);
}
static inline void list_del(struct list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}
/* Everything on `from` goes to the end of `to`; `from` is empty afterwards. */
static inline void list_splice_tail(struct list *to, struct list *from)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}
#define list_entry(ptr, type, member) container_of(ptr, type, member)
#define list_first(head, type, member) list_entry((head)->next, type, member)
#define list_for_each(pos, head, member)                                                           \
	for (pos = list_entry((head)->next, __typeof__(*pos), member); &pos->member != (head);     \
	     pos = list_entry(pos->member.next, __typeof__(*pos), member))
#define list_for_each_safe(pos, tmp, head, member)                                                 \
	for (pos = list_entry((head)->next, __typeof__(*pos), member),                             \
	    tmp = list_entry(pos->member.next, __typeof__(*pos), member);                          \
	     &pos->member != (head);                                                               \
	     pos = tmp, tmp = list_entry(tmp->member.next, __typeof__(*pos), member))

/*
 * Memory for control structures (never the I/O path: see buf.h). NULL when there is none; tests
 * make the n-th call fail through mem_fail_after. Freeing NULL is allowed.
 */
void *mem_alloc(size_t bytes);
void *mem_zalloc(size_t bytes);
void *mem_realloc(void *p, size_t bytes);
char *mem_strdup(const char *s);
void mem_free(void *p);
/* The n-th allocation from now fails, once or (for_good) for ever; 0 turns it off. */
void mem_fail_after(uint64_t n, bool for_good);
/* Whether that failure is still to come. */
bool mem_fail_waits(void);

/* Messages: libraries call these, the program that links them decides where they go. */
enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
typedef void log_hook(enum log_level level, const char *text, void *arg);
/* Default: errors and warnings to stderr. */
void log_set_hook(log_hook *hook, void *arg);
void log_print(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
#define log_error(...) log_print(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_print(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_print(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_print(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
