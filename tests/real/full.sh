#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A full filesystem says so in time, and can still delete, overwrite and unmount. With the kernel's
# write-back cache "in time" is fsync(2) or close(2), without it write(2).
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

avail()
{
	stat -f -c %a "$mnt"
}

# close_to NAME GOT EXPECTED: within 1/20.
close_to()
{
	if [ $(($2 * 20)) -ge $(($3 * 19)) ] && [ $(($2 * 19)) -le $(($3 * 20)) ]; then
		pass "$1"
	else
		fail "$1" "$2 blocks, expected about $3"
	fi
}

given_back()
{
	[ $(($(avail) * 20)) -ge $(($1 * 19)) ]
}

# one LEVEL MEMBERS NAME [cached]
one()
{
	local opts=nowriteback_cache name="raid $1, $3" before left
	[ "${4:-}" = cached ] && opts=
	make_members "$2" 96M
	check "$name: mkfs" "$TRUSSFS_BIN/mkfs.trussfs" -f -r "$1" "${members[@]}" || return
	mount_fs "${members[0]}" "$mnt" "$opts"
	before=$(avail)
	mkdir "$mnt/t"
	relay timeout 500 "$PY" "$real_dir/full.py" "$mnt/t" "$name: " - "${4:-}"
	sync -f "$mnt" || true # with the error of what did not fit
	left=$(avail)
	umount_fs && pass "$name: unmount"
	fsck_clean "$name: fsck"
	mount_fs "${members[0]}" "$mnt" "$opts"
	close_to "$name: df after a new mount" "$(avail)" "$left"
	check "$name: content after a new mount" "$PY" "$real_dir/full.py" "$mnt/t" "" verify
	check "$name: delete everything" rm -rf "$mnt/t"
	umount_fs
	fsck_clean "$name: fsck of the emptied one"
	# And it takes as much again.
	mount_fs "${members[0]}" "$mnt" "$opts"
	close_to "$name: df after deleting everything" "$(avail)" "$before"
	mkdir "$mnt/t"
	relay timeout 500 "$PY" "$real_dir/full.py" "$mnt/t" "$name, again: " short "${4:-}"
	# Dead in the middle of being full.
	crash_fs
	fsck_clean "$name: fsck after kill -9 on a full one"
	mount_fs "${members[0]}" "$mnt" "$opts"
	check "$name: delete after kill -9" rm -rf "$mnt/t"
	# Freed in the background, and free with the next commit.
	until_true 30 given_back "$before" ||
		fail "$name: df after kill -9 and deleting" "$(avail) blocks, expected about $before"
	umount_fs
	fsck_clean "$name: fsck at the end"
}

one 5 4 "written through"
one 5 4 "written back" cached
one 6 5 "written through"
one 10 4 "written back" cached
finish
