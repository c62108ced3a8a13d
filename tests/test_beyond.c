/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The volume when more is lost than its level tolerates: what was hit gives errors, never wrong bytes, and all else goes
 * on working.
 */
#include "volume_world.h"

/* ---- pages of which every copy is lost ---- */

struct place {
	unsigned disk;
	uint64_t off_bytes;
};

static unsigned disk_of(unsigned member)
{
	for (unsigned i = 0; i < disk_count; i++)
		if (!strcmp(raid->t->members[member].hint, simdev_name(disks[i].dev)))
			return i;
	fail_msg("member %u has no disk", member);
	return 0;
}

/* Where all copies of the page stand. */
static unsigned page_places(struct chunk *c, uint32_t number, struct place *ret)
{
	for (unsigned copy = 0; copy < c->geom.page_copies; copy++) {
		unsigned column;
		uint64_t block;

		geom_page_place(&c->geom, number, copy, &column, &block);
		ret[copy].disk = disk_of(c->columns[column].member);
		ret[copy].off_bytes = table_column_off(raid->t, &c->columns[column], block);
	}
	return c->geom.page_copies;
}

static struct chunk *chunk_of(enum chunk_class class)
{
	for (unsigned i = 0; i < raid->t->chunk_count; i++)
		if (raid->t->chunks[i]->class == class)
			return raid->t->chunks[i];
	return NULL;
}

/* Each block is right or said to be lost; those leave the model. Returns how many. */
static unsigned compare_beyond(void)
{
	char *data = buf_get_wait(BLOCK_BYTES), want[BLOCK_BYTES];
	unsigned lost = 0;

	for (unsigned i = 0; i < model_count;) {
		int err = raid_read(raid, model[i].lba, 1, data);

		if (err) {
			assert_int_equal(err, -EBADMSG);
			/* And it may be freed like any other. */
			if (lost++ % 2)
				raid_stage_dead(raid, model[i].lba, 1);
			model[i] = model[--model_count];
			continue;
		}
		fill(want, model[i].lba, model[i].version);
		assert_memory_equal(data, want, BLOCK_BYTES);
		i++;
	}
	buf_put(data);
	return lost;
}

/* All places of the copies, or those alone that have the newest generation, which is returned. */
static uint64_t lose_places(const struct place *places, unsigned count, bool older_stays)
{
	static struct page_disk d[MEMBERS_MAX][PAGE_PLACES]; /* not on the stack of a coroutine */
	uint64_t newest = 0;

	for (unsigned i = 0; i < count; i++) {
		simdev_peek(disks[places[i].disk].dev, places[i].off_bytes, d[i], sizeof(d[i]));
		for (unsigned k = 0; k < PAGE_PLACES; k++)
			if (from_le64(d[i][k].magic) == PAGE_MAGIC)
				newest = MAX(newest, from_le64(d[i][k].gen));
	}
	for (unsigned i = 0; i < count; i++)
		for (unsigned k = 0; k < PAGE_PLACES; k++)
			if (!older_stays || from_le64(d[i][k].gen) == newest)
				simdev_garble(disks[places[i].disk].dev, places[i].off_bytes + k * BLOCK_BYTES,
					      BLOCK_BYTES);
	return newest;
}

static void lose_page(enum chunk_class class, bool bitmap, bool in_use, bool older_stays)
{
	struct place places[MEMBERS_MAX];
	char *data = buf_get_wait(BLOCK_BYTES);
	unsigned count, lost;
	struct chunk *c;
	int64_t found;

	disk_count = model_count = 0;
	format();
	open_volume();
	memset(data, 5, BLOCK_BYTES);
	for (unsigned i = 0; i < 2; i++) { /* the generation before does not know of what comes last */
		work(i ? 600 : 100);
		assert_int_equal(raid_stage_image(raid, LBA_ROOT, data), 0);
		commit();
		assert_int_equal(journal_checkpoint(raid), 0);
	}
	if (!in_use)
		close_volume();
	else
		assert_int_equal(journal_checkpoint(raid), 0);
	if (in_use)
		work(60);
	else
		assert_int_equal(open_flags(0), 0);
	c = chunk_of(class);
	count = page_places(c, bitmap ? 0 : c->geom.bitmap_pages, places);
	if (in_use)
		crash(); /* with records that go to the page */
	else
		close_volume();
	/* Nothing comes to life where the root is. */
	assert_true(lose_places(places, 1, older_stays) > 1 || (bitmap && class == CHUNK_META));
	/* One copy is found, unless a crash may have left it so; all of them are found, and what they covered is not looked at. */
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	assert_int_equal(raid_check(raid, quiet_problem, NULL), !in_use);
	close_volume();
	(void)lose_places(places, count, older_stays);
	assert_int_equal(open_flags(RAID_OPEN_CHECK), 0);
	found = raid_check(raid, quiet_problem, NULL);
	assert_true(found > 1 || older_stays);
	close_volume();
	open_volume();
	lost = compare_beyond();
	assert_true(class == CHUNK_DATA && !bitmap ? lost : !lost);
	assert_true(raid_read(raid, LBA_ROOT, 1, data) ==
		    (class == CHUNK_META && !bitmap ? -EBADMSG : 0));
	if (!in_use || !bitmap)
		assert_true(info().chunks_damaged == 1 || in_use);
	/* All else goes on. */
	for (unsigned i = 0; i < 4; i++) {
		write_blocks(150);
		kill_blocks(40);
		commit();
		assert_int_equal(journal_checkpoint(raid), 0);
	}
	memset(data, 7, BLOCK_BYTES);
	assert_int_equal(raid_stage_image(raid, LBA_ROOT, data), 0);
	commit();
	(void)scrub();
	assert_int_equal(info().error, 0);
	close_volume();
	open_volume();
	assert_int_equal(compare_beyond(), 0);
	assert_int_equal(raid_read(raid, LBA_ROOT, 1, data), 0);
	assert_int_equal(data[5], 7);
	close_volume();
	buf_put(data);
	for (unsigned i = 0; i < disk_count; i++)
		simdev_free(disks[i].dev);
	disk_count = 0;
}

static void do_lost_pages(void)
{
	for (unsigned i = 0; i < 8; i++)
		lose_page(i & 1 ? CHUNK_META : CHUNK_DATA, i & 2, i & 4, false);
}

static void test_lost_pages(void **state)
{
	run_levels(do_lost_pages);
}

static void do_older_pages(void)
{
	for (unsigned i = 0; i < 8; i++)
		lose_page(i & 1 ? CHUNK_META : CHUNK_DATA, i & 2, i & 4, true);
}

/* The generation before is whole in every copy: it must not be believed. */
static void test_older_pages(void **state)
{
	run_levels(do_older_pages);
}

/* One member is away, and of each page on another one place cannot be read: the two others will do. */
static void do_place_unreadable(void)
{
	format();
	open_volume();
	work(100);
	assert_int_equal(journal_checkpoint(raid), 0);
	work(300);
	close_volume();
	disks[0].offered = false;
	for (unsigned place = 0; place < PAGE_PLACES; place++) {
		assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
		for (unsigned i = 0; i < raid->t->chunk_count; i++) {
			struct chunk *c = raid->t->chunks[i];

			for (uint32_t n = 0; n < c->geom.bitmap_pages + c->geom.sum_pages; n++) {
				struct place places[MEMBERS_MAX];
				unsigned count = page_places(c, n, places);

				for (unsigned k = 0; k < count; k++) {
					struct simfault f = {.kind = SIMFAULT_EIO_READ, .len_bytes = BLOCK_BYTES};

					f.off_bytes = places[k].off_bytes + place * BLOCK_BYTES;
					if (places[k].disk == 1)
						assert_int_equal(simdev_fault(disks[1].dev, &f), 0);
				}
			}
		}
		close_volume();
		assert_int_equal(open_flags(RAID_OPEN_READ_ONLY), 0);
		compare();
		close_volume();
		simdev_faults_clear(disks[1].dev);
	}
}

static void test_place_unreadable(void **state)
{
	run(do_place_unreadable, 1, 2, 1);
	run(do_place_unreadable, 5, 3, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_lost_pages),
	    cmocka_unit_test(test_older_pages),
	    cmocka_unit_test(test_place_unreadable),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
