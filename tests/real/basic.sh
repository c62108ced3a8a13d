#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The system calls one by one (posix.py), then the same things again through a new mount.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

make_members 5 512M
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r 6 -L basic "${members[@]}" || exit 1
mount_fs
mkdir "$mnt/t"
relay "$PY" "$real_dir/posix.py" run "$mnt/t"
sync -f "$mnt"
check sync timeout 60 "$TRUSSFS_BIN/trussfs" sync "$mnt"
check "note what stat says" "$PY" "$real_dir/posix.py" leave "$mnt/t" "$work/facts"
umount_fs && pass umount
fsck_clean "fsck"
mount_fs
check "inode numbers, times, attributes after a new mount" \
	"$PY" "$real_dir/posix.py" find "$mnt/t" "$work/facts"
check "delete everything" rm -rf "$mnt/t"
umount_fs && pass "umount again"
fsck_clean "fsck of the emptied filesystem"
# An unlinked file that is open when the daemon dies is freed by the next mount.
mount_fs
exec 7<>"$mnt/orphan"
head -c 4194304 /dev/urandom >&7
rm "$mnt/orphan"
check "sync with an orphan" timeout 60 "$TRUSSFS_BIN/trussfs" sync "$mnt"
crash_fs
exec 7>&-
fsck_clean "fsck of a crashed filesystem with an orphan"
mount_fs
check_eq "nothing is left of the orphan" "$(find "$mnt" -mindepth 1 | wc -l)" 0
umount_fs
fsck_clean "fsck after the orphan was freed"
# Read-only.
mount_fs "${members[0]}" "$mnt" ro
check_rc "writing to a read-only mount" 1 "read-only" touch "$mnt/x"
umount_fs
finish
