#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# SQLite under load, in WAL and in rollback mode.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

"$PY" -c 'import sqlite3' 2>/dev/null || skip "python3 without sqlite3"
make_members 4 512M
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r 10 "${members[@]}" || exit 1
mount_fs
for mode in wal delete truncate; do
	check "busy run, journal_mode $mode" timeout 500 \
		"$PY" "$real_dir/bank.py" run "$mnt/$mode.db" "$mode" $((400 / TRUSSFS_SCALE))
	check "integrity_check, journal_mode $mode" "$PY" "$real_dir/bank.py" check "$mnt/$mode.db"
done
umount_fs
fsck_clean fsck
mount_fs
for mode in wal delete truncate; do
	check "integrity_check after a new mount, $mode" "$PY" "$real_dir/bank.py" check "$mnt/$mode.db"
done
# The daemon dies in the middle; SQLite recovers from what it had fsynced.
for mode in wal delete; do
	: >"$work/run.out"
	"$PY" "$real_dir/bank.py" run "$mnt/$mode.db" "$mode" 100000 >"$work/run.out" 2>&1 &
	children=($!)
	until_true 60 test -s "$work/run.out" || fail "busy run $mode" "no commit"
	crash_fs
	reap "${children[0]}" || true # it saw the filesystem go
	children=()
	acked=$(tail -n 1 "$work/run.out" | tr -cd 0-9)
	mount_fs
	check "integrity_check after kill -9, $mode" "$PY" "$real_dir/bank.py" check "$mnt/$mode.db" "${acked:-0}"
done
umount_fs
fsck_clean "fsck after the crashes"
finish
