/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Safeguards that can be built out, to see that the tests notice: a safeguard whose removal nothing
 * notices is a missing test. tests/broken.list says of each what it takes away and which test
 * notices; tests/broken runs them.
 *
 *   meson setup -Dbreak=NAME   builds this one out: BREAK(NAME) is 1
 *   meson setup -Dbreak=all    the one that TRUSSFS_BREAK names in the environment
 *
 * In every other build BREAK() is the constant 0, and nothing of it is left in the program.
 */
#ifndef TRUSSFS_BROKEN_H
#define TRUSSFS_BROKEN_H

/* clang-format off */
#define BREAKS(X) \
	/* DESIGN.md 4.4 */ \
	X(w1) X(w2) X(w3) X(w4) X(w4_frozen) X(w5) X(w5_before) X(w5_after) \
	/* W6: one of each */ \
	X(flush_record) X(fua) X(flush_spread) X(flush_home) X(flush_sums) X(flush_bitmaps) X(flush_recover) X(flush_grow) \
	X(flush_label_a) X(flush_label_b) X(flush_wipe) X(flush_mkfs) \
	/* the journal */ \
	X(gap) X(records) X(rings) X(epoch) X(salt) X(record_sum) X(record_again) X(record_copies) X(record_lost) X(tail_early) \
	X(tail_durable) X(throttle) X(make_room) X(readers) X(cancel) X(revoke) X(dead_image) X(spread) X(keep) \
	X(replay_tail) X(replay_order) X(replay_home) X(clean) X(after_error) X(timer) \
	/* checksums and what they are kept in */ \
	X(checksum) X(checksum_read) X(checksum_row) X(seed) X(erasures) X(verify) X(heal) X(count) X(read_image) \
	X(page_sum) X(page_seed) X(page_gen) X(page_lost) X(page_place) X(page_both) X(page_older) X(page_early) X(capture) \
	/* labels and members */ \
	X(label_sum) X(label_place) X(vote_stale) X(vote_clone) X(vote_fork) X(vote_left) \
	X(vote_removed) X(vote_witness) X(vote_foreign) X(vote_prepared) X(vote_spent) X(vote_unused) \
	X(stale) X(limit) X(spare) X(eject) X(move_both) X(move_wait) X(rebuild_pages) X(retire) \
	X(scrub_verify) X(scrub_parity) X(scrub_labels) X(cell_lock) X(reserve) \
	/* files */ \
	X(fs_data_first) X(fs_rename) X(fs_orphan) X(fs_reap) X(fs_prefix) X(fs_tail) X(fs_guard) X(fs_node_sum) \
	X(fs_node_addr) X(fs_hash) X(fs_cycle) X(fs_reserve) X(fs_avail) X(fs_promise) X(fs_errseq) X(fs_wait) X(fs_fsync) \
	X(fs_clean_place) X(fs_clean_over)
/* clang-format on */

#define BREAK_ENUM(name) BREAK_##name,
enum broken { BREAK_none, BREAKS(BREAK_ENUM) BREAK_COUNT };
#undef BREAK_ENUM

/* Of a build with -Dbreak=all alone: broken.c. */
extern enum broken broken_now;

#ifndef BROKEN
#define BROKEN BREAK_none
#endif
#define BREAK(name) (BROKEN == BREAK_##name)

#endif
