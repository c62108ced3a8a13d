#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A big file written in random order reads back right through a new mount.
#   TRUSSFS_MIB   its size (default 3072, divided by the scale)
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mib=${TRUSSFS_MIB:-$((3072 / TRUSSFS_SCALE))}
make_members 6 2G
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r 6 "${members[@]}" || exit 1
mount_fs
check "write $mib MiB in random order" timeout 900 "$PY" "$real_dir/randfile.py" write "$mnt/big" 77 "$mib"
umount_fs
mount_fs
check "read through a new mount" timeout 900 "$PY" "$real_dir/randfile.py" verify "$mnt/big" 77 "$mib"
# Over what exists: every block moves to a new place.
check "write over it in another order" timeout 900 "$PY" "$real_dir/randfile.py" write "$mnt/big" 78 $((mib / 4))
umount_fs
fsck_clean fsck
mount_fs
check "read again through a new mount" timeout 900 "$PY" "$real_dir/randfile.py" verify "$mnt/big" 78 $((mib / 4))
umount_fs
finish
