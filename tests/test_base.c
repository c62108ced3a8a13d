/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Base vocabulary and the pool of I/O memory. */
#include "raid/base.h"
#include "raid/buf.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_integers(void **state)
{
	le32 x = to_le32(0x01020304);
	uint8_t b[4];

	memcpy(b, &x, 4);
	assert_int_equal(b[0], 4);
	assert_int_equal(b[3], 1);
	assert_int_equal(from_le32(x), 0x01020304);
	assert_true(from_le64(to_le64(0x0102030405060708ull)) == 0x0102030405060708ull);
	assert_int_equal(from_le16(to_le16(0x1234)), 0x1234);
	assert_int_equal(DIV_ROUND_UP(4097, 4096), 2);
	assert_int_equal(ROUND_UP(4096, 4096), 4096);
	assert_int_equal(ROUND_DOWN(8191, 4096), 4096);
}

static void test_uuid(void **state)
{
	struct uuid u = {{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67,
			  0x89, 0xab, 0xcd, 0xef}};
	struct uuid null = {{0}};
	char text[UUID_TEXT_BYTES];

	assert_string_equal(uuid_text(&u, text), "01234567-89ab-cdef-0123-456789abcdef");
	assert_false(uuid_is_null(&u));
	assert_true(uuid_is_null(&null));
	assert_false(uuid_equal(&u, &null));
}

struct item {
	int value;
	struct list node;
};

static void check_list(struct list *head, const int *want, unsigned count)
{
	struct item *it;
	unsigned i = 0;

	list_for_each (it, head, node) {
		assert_true(i < count);
		assert_int_equal(it->value, want[i]);
		i++;
	}
	assert_int_equal(i, count);
}

static void test_list(void **state)
{
	struct item a = {.value = 1}, b = {.value = 2}, c = {.value = 3};
	struct item *it, *tmp;
	struct list l, m;

	list_init(&l);
	list_init(&m);
	assert_true(list_empty(&l));
	list_add_tail(&l, &b.node);
	list_add_tail(&l, &c.node);
	list_add(&l, &a.node);
	check_list(&l, (int[]){1, 2, 3}, 3);
	list_del(&b.node);
	assert_true(list_empty(&b.node));
	list_del(&b.node); /* on no list: harmless */
	check_list(&l, (int[]){1, 3}, 2);
	list_add(&m, &b.node);
	list_splice_tail(&m, &l);
	check_list(&m, (int[]){2, 1, 3}, 3);
	assert_true(list_empty(&l));
	list_splice_tail(&m, &l);
	check_list(&m, (int[]){2, 1, 3}, 3);
	assert_ptr_equal(list_first(&m, struct item, node), &b);
	list_for_each_safe (it, tmp, &m, node)
		list_del(&it->node);
	assert_true(list_empty(&m));
}

static void test_mem_fail(void **state)
{
	void *p[4];

	mem_fail_after(2, false);
	for (int i = 0; i < 4; i++)
		p[i] = mem_alloc(10);
	assert_non_null(p[0]);
	assert_null(p[1]);
	assert_non_null(p[2]);
	assert_non_null(p[3]);
	for (int i = 0; i < 4; i++)
		mem_free(p[i]);
	mem_fail_after(1, true);
	assert_null(mem_alloc(1));
	assert_null(mem_zalloc(1));
	assert_null(mem_realloc(NULL, 1));
	assert_null(mem_strdup("x"));
	mem_fail_after(0, false);
	p[0] = mem_strdup("text");
	assert_string_equal(p[0], "text");
	p[0] = mem_realloc(p[0], 1000);
	assert_string_equal(p[0], "text");
	mem_free(p[0]);
}

static char last_text[64];

static void remember(enum log_level level, const char *text, void *arg)
{
	assert_ptr_equal(arg, last_text);
	snprintf(last_text, sizeof(last_text), "%d %s", (int)level, text);
}

static void test_log(void **state)
{
	log_set_hook(remember, last_text);
	log_warning("%s: got %d", "x", 5);
	assert_string_equal(last_text, "1 x: got 5");
	log_debug("d");
	assert_string_equal(last_text, "3 d");
	log_set_hook(NULL, NULL);
}

static void test_buf_sizes(void **state)
{
	void *p[4];

	assert_int_equal(buf_pool_init(5u << 20), 0);
	assert_int_equal(buf_pool_bytes(), 8u << 20);
	p[0] = buf_get(BUF_BYTES_MAX);
	p[1] = buf_get(BUF_BYTES_MAX - 1);
	assert_non_null(p[0]);
	assert_non_null(p[1]);
	assert_null(buf_get(1));
	assert_int_equal(buf_pool_free_bytes(), 0);
	buf_put(p[0]);
	p[2] = buf_get(1);
	p[3] = buf_get(4097);
	assert_int_equal((uintptr_t)p[2] % BLOCK_BYTES, 0);
	assert_int_equal(buf_pool_used_bytes(), BUF_BYTES_MAX + 4096 + 8192);
	assert_null(buf_get(BUF_BYTES_MAX));
	buf_put(p[2]);
	buf_put(p[3]);
	buf_put(NULL);
	p[0] = buf_get(BUF_BYTES_MAX); /* all pieces have been joined again */
	assert_non_null(p[0]);
	memset(p[0], 1, BUF_BYTES_MAX);
	buf_put(p[0]);
	buf_put(p[1]);
	assert_int_equal(buf_pool_used_bytes(), 0);
	buf_pool_exit();
}

static void test_buf_pins(void **state)
{
	char *p, *q;

	assert_int_equal(buf_pool_init(BUF_BYTES_MAX), 0);
	p = buf_get(3 * BLOCK_BYTES);
	assert_true(buf_in_pool(p));
	assert_false(buf_in_pool(&p));
	buf_pin(p + 5000);
	buf_pin(p + 16383);
	buf_put(p);
	assert_int_equal(buf_pool_used_bytes(), 4 * BLOCK_BYTES);
	memset(p, 7, 4 * BLOCK_BYTES); /* the late device: not poisoned yet */
	buf_unpin(p + 1);
	assert_int_equal(buf_pool_used_bytes(), 4 * BLOCK_BYTES);
	buf_unpin(p);
	assert_int_equal(buf_pool_used_bytes(), 0);
	/* Unpinned first, then put. */
	p = buf_get(1);
	buf_pin(p);
	buf_unpin(p);
	q = buf_get(1);
	assert_ptr_not_equal(p, q);
	buf_put(p);
	buf_put(q);
	assert_int_equal(buf_pool_used_bytes(), 0);
	buf_pool_exit();
}

/* Random gets and puts; each allocation holds its own pattern, so that an overlap shows. */
static void test_buf_random(void **state)
{
	enum { SLOTS = 200, ROUNDS = 50000 };
	struct {
		uint32_t *p;
		size_t bytes;
		uint32_t mark;
	} slot[SLOTS] = {{0}};
	uint64_t x = 88172645463325252ull;

	assert_int_equal(buf_pool_init(16u << 20), 0);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		unsigned i;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		i = (unsigned)(x >> 8) % SLOTS;
		if (slot[i].p) {
			assert_int_equal(slot[i].p[0], slot[i].mark);
			assert_int_equal(slot[i].p[slot[i].bytes / 4 - 1], slot[i].mark);
			buf_put(slot[i].p);
			slot[i].p = NULL;
			continue;
		}
		slot[i].bytes = (size_t)BLOCK_BYTES << ((x >> 40) % 8);
		slot[i].p = buf_get(slot[i].bytes);
		if (!slot[i].p)
			continue;
		slot[i].mark = round;
		slot[i].p[0] = slot[i].p[slot[i].bytes / 4 - 1] = round;
	}
	for (unsigned i = 0; i < SLOTS; i++)
		buf_put(slot[i].p);
	assert_int_equal(buf_pool_used_bytes(), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_non_null(slot[i].p = buf_get(BUF_BYTES_MAX));
	for (unsigned i = 0; i < 4; i++)
		buf_put(slot[i].p);
	buf_pool_exit();
}

static void test_buf_no_memory(void **state)
{
	mem_fail_after(1, false);
	assert_int_equal(buf_pool_init(1), -ENOMEM);
	assert_int_equal(buf_pool_init(1), 0);
	buf_pool_exit();
	buf_pool_exit();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_integers),	  cmocka_unit_test(test_uuid),
	    cmocka_unit_test(test_list),	  cmocka_unit_test(test_mem_fail),
	    cmocka_unit_test(test_log),		  cmocka_unit_test(test_buf_sizes),
	    cmocka_unit_test(test_buf_pins),	  cmocka_unit_test(test_buf_random),
	    cmocka_unit_test(test_buf_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
