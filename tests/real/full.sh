#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A full filesystem says so in time, and can still delete, overwrite and unmount.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

# one LEVEL MEMBERS
one()
{
	make_members "$2" 96M
	check "raid $1: mkfs" "$TRUSSFS_BIN/mkfs.trussfs" -f -r "$1" "${members[@]}" || return
	mount_fs
	mkdir "$mnt/t"
	relay timeout 500 "$PY" "$real_dir/full.py" "$mnt/t" "raid $1: "
	umount_fs && pass "raid $1: unmount"
	fsck_clean "raid $1: fsck"
	mount_fs
	check "raid $1: content after a new mount" "$PY" "$real_dir/full.py" "$mnt/t" "" verify
	check "raid $1: delete everything" rm -rf "$mnt/t"
	umount_fs
	fsck_clean "raid $1: fsck of the emptied one"
	# And it takes as much again.
	mount_fs
	mkdir "$mnt/t"
	relay timeout 500 "$PY" "$real_dir/full.py" "$mnt/t" "raid $1, again: " short
	# Dead in the middle of being full.
	crash_fs
	fsck_clean "raid $1: fsck after kill -9 on a full one"
	mount_fs
	check "raid $1: delete after kill -9" rm -rf "$mnt/t"
	umount_fs
	fsck_clean "raid $1: fsck at the end"
}

one 5 4
one 6 5
one 10 4
finish
