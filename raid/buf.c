/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pool of I/O memory.
 *
 * A binary buddy allocator over one region, in units of blocks, with the largest run being
 * BUF_BYTES_MAX. The region is one piece so that it can be registered with the kernel as a whole,
 * and backed by huge pages. What is known of a run stands in an array beside it and not in the
 * memory itself: a device that writes late then cannot damage the allocator, and free memory can be
 * poisoned for the address sanitizer.
 *
 * Invariant: meta[i].kind is not NONE exactly where a free or used run begins. So the run that
 * contains a block is found by trying the at most ORDERS places where it can begin.
 *
 * Free lists are stacks of indices: the order of allocations depends on nothing but the calls.
 */
#include "buf.h"

#include "co.h"

#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, bytes)   __asan_poison_memory_region(p, bytes)
#define UNPOISON(p, bytes) __asan_unpoison_memory_region(p, bytes)
#else
#define POISON(p, bytes)   ((void)(p), (void)(bytes))
#define UNPOISON(p, bytes) ((void)(p), (void)(bytes))
#endif

#define ORDER_MAX 10
#define ORDERS	  (ORDER_MAX + 1)
static_assert((BLOCK_BYTES << ORDER_MAX) == BUF_BYTES_MAX, "largest run");
#define NIL UINT32_MAX

enum kind { KIND_NONE, KIND_FREE, KIND_USED };

struct meta {
	uint32_t next, prev; /* free list of its order */
	uint32_t pins;
	uint8_t kind;
	uint8_t order;
	bool put; /* by its owner, but pinned */
};

struct waiter {
	struct list node;
	struct co *co;
	unsigned order;
	void *p;
};

static struct {
	char *base;
	size_t bytes;
	size_t used_bytes;
	struct meta *meta;
	uint32_t free[ORDERS]; /* first of each order */
	struct list waiters, waiters_below;
} pool;

static unsigned order_of(size_t bytes)
{
	unsigned order = 0;

	assert(bytes <= BUF_BYTES_MAX);
	while (((size_t)BLOCK_BYTES << order) < bytes)
		order++;
	return order;
}

static void *address(uint32_t i)
{
	return pool.base + (size_t)i * BLOCK_BYTES;
}

static void free_push(uint32_t i, unsigned order)
{
	uint32_t first = pool.free[order];

	pool.meta[i] =
	    (struct meta){.next = first, .prev = NIL, .kind = KIND_FREE, .order = (uint8_t)order};
	if (first != NIL)
		pool.meta[first].prev = i;
	pool.free[order] = i;
}

static void free_unlink(uint32_t i)
{
	struct meta *m = &pool.meta[i];

	if (m->prev != NIL)
		pool.meta[m->prev].next = m->next;
	else
		pool.free[m->order] = m->next;
	if (m->next != NIL)
		pool.meta[m->next].prev = m->prev;
	m->kind = KIND_NONE;
}

static void *take(unsigned order)
{
	unsigned from = order;
	uint32_t i;

	while (from <= ORDER_MAX && pool.free[from] == NIL)
		from++;
	if (from > ORDER_MAX)
		return NULL;
	i = pool.free[from];
	free_unlink(i);
	while (from > order) {
		from--;
		free_push(i + (1u << from), from);
	}
	pool.meta[i] = (struct meta){.kind = KIND_USED, .order = (uint8_t)order};
	pool.used_bytes += (size_t)BLOCK_BYTES << order;
	UNPOISON(address(i), (size_t)BLOCK_BYTES << order);
	return address(i);
}

/* Leaves what is kept for those below; all of the pool may be had when nobody else has any. */
static void *take_above(unsigned order)
{
	size_t used = pool.used_bytes + ((size_t)BLOCK_BYTES << order);

	return used > pool.bytes - pool.bytes / BUF_BELOW_SHARE && pool.used_bytes ? NULL : take(order);
}

static void serve(struct list *waiters, void *(*from)(unsigned order))
{
	while (!list_empty(waiters)) {
		struct waiter *w = list_first(waiters, struct waiter, node);

		w->p = from(w->order);
		if (!w->p)
			break;
		list_del(&w->node);
		co_wake(w->co);
	}
}

static void serve_waiters(void)
{
	serve(&pool.waiters_below, take);
	if (list_empty(&pool.waiters_below))
		serve(&pool.waiters, take_above);
}

static void release(uint32_t i)
{
	unsigned order = pool.meta[i].order;

	POISON(address(i), (size_t)BLOCK_BYTES << order);
	pool.used_bytes -= (size_t)BLOCK_BYTES << order;
	pool.meta[i].kind = KIND_NONE;
	while (order < ORDER_MAX) {
		uint32_t buddy = i ^ (1u << order);
		const struct meta *m = &pool.meta[buddy];

		if (m->kind != KIND_FREE || m->order != order)
			break;
		free_unlink(buddy);
		i &= ~(1u << order);
		order++;
	}
	free_push(i, order);
	serve_waiters();
}

/* The used run that p lies in. */
static uint32_t head_of(const void *p)
{
	uint32_t i;

	assert(buf_in_pool(p));
	i = (uint32_t)((size_t)((const char *)p - pool.base) / BLOCK_BYTES);
	for (unsigned order = 0; order <= ORDER_MAX; order++) {
		uint32_t head = i & ~((1u << order) - 1);
		const struct meta *m = &pool.meta[head];

		if (m->kind == KIND_NONE)
			continue;
		assert(m->kind == KIND_USED && i - head < (1u << m->order));
		return head;
	}
	assert(!"address outside of any allocation");
	return 0;
}

int buf_pool_init(size_t bytes)
{
	size_t map_bytes;
	char *map, *base;

	assert(!pool.base && bytes > 0);
	bytes = ROUND_UP(bytes, BUF_BYTES_MAX);
	assert(bytes / BLOCK_BYTES < NIL);
	pool.meta = mem_zalloc(bytes / BLOCK_BYTES * sizeof(*pool.meta));
	if (!pool.meta)
		return -ENOMEM;
	/* Aligned to the largest run, so that huge pages fit: the ends are given back. */
	map_bytes = bytes + BUF_BYTES_MAX;
	map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED) {
		mem_free(pool.meta);
		pool.meta = NULL;
		return -ENOMEM;
	}
	base = (char *)ROUND_UP((uintptr_t)map, (uintptr_t)BUF_BYTES_MAX);
	if (base > map)
		(void)munmap(map, (size_t)(base - map)); /* a failure costs address space only */
	(void)munmap(base + bytes, (size_t)(map + map_bytes - (base + bytes)));
	(void)madvise(base, bytes, MADV_HUGEPAGE); /* a wish */
	pool.base = base;
	pool.bytes = bytes;
	pool.used_bytes = 0;
	list_init(&pool.waiters);
	list_init(&pool.waiters_below);
	for (unsigned order = 0; order < ORDERS; order++)
		pool.free[order] = NIL;
	/* Backwards, so that the first allocations come from the beginning. */
	for (size_t i = bytes / BLOCK_BYTES; i > 0; i -= 1u << ORDER_MAX)
		free_push((uint32_t)(i - (1u << ORDER_MAX)), ORDER_MAX);
	POISON(base, bytes);
	return 0;
}

void buf_pool_exit(void)
{
	if (!pool.base)
		return;
	assert(list_empty(&pool.waiters) && list_empty(&pool.waiters_below));
	UNPOISON(pool.base, pool.bytes);
	(void)munmap(pool.base, pool.bytes); /* ours, whole */
	mem_free(pool.meta);
	pool.base = NULL;
	pool.meta = NULL;
	pool.bytes = pool.used_bytes = 0;
}

void *buf_get(size_t bytes)
{
	assert(pool.base);
	return take(order_of(bytes));
}

static void *get_wait(size_t bytes, struct list *waiters, void *(*from)(unsigned order))
{
	struct waiter w = {.co = co_self(), .order = order_of(bytes)};

	assert(pool.base && w.co);
	if (list_empty(waiters)) {
		void *p = from(w.order);

		if (p)
			return p;
	}
	assert(((size_t)BLOCK_BYTES << w.order) <= pool.bytes);
	list_add_tail(waiters, &w.node);
	co_wait();
	return w.p;
}

void *buf_get_wait(size_t bytes)
{
	return get_wait(bytes, &pool.waiters, take_above);
}

void *buf_get_wait_below(size_t bytes)
{
	return get_wait(bytes, &pool.waiters_below, take);
}

void buf_put(void *p)
{
	struct meta *m;
	uint32_t i;

	if (!p)
		return;
	i = head_of(p);
	m = &pool.meta[i];
	assert(address(i) == p && !m->put);
	if (m->pins)
		m->put = true;
	else
		release(i);
}

bool buf_in_pool(const void *p)
{
	const char *c = p;

	return pool.base && c >= pool.base && c < pool.base + pool.bytes;
}

void buf_pin(const void *p)
{
	struct meta *m = &pool.meta[head_of(p)];

	assert(m->pins < UINT32_MAX);
	m->pins++;
}

void buf_unpin(const void *p)
{
	uint32_t i = head_of(p);
	struct meta *m = &pool.meta[i];

	assert(m->pins > 0);
	if (--m->pins == 0 && m->put)
		release(i);
}

size_t buf_pool_free_bytes(void)
{
	return pool.bytes - pool.used_bytes;
}

size_t buf_pool_bytes(void)
{
	return pool.bytes;
}

size_t buf_pool_used_bytes(void)
{
	return pool.used_bytes;
}
