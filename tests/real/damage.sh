#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Blocks of up to as many members as the level tolerates are overwritten with random bytes, in slices,
# journal, checksum pages and one label copy, while mounted and while not: every file reads right, a
# scrub repairs, a second one finds nothing, the guilty members are counted.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

MIB=1048576
labels_b=$((399 * MIB)) # of members of 400 MiB
files=$((1500 / TRUSSFS_SCALE + 50))
# Over how much each member gets damaged.
blocks=$((1500 / TRUSSFS_SCALE + 50))

# hurt SEED MEMBER...: blocks anywhere (journal, pages, rows), more in the journal, and one label place. (A
# member that lost the newest label at both ends is taken for one that was away, and rebuilt.)
hurt()
{
	local seed=$1 m
	shift
	for m in "$@"; do
		"$PY" "$real_dir/damage.py" "$m" "$seed" "$blocks" --from $MIB --to $labels_b >>"$work/hurt.out" || return 1
		"$PY" "$real_dir/damage.py" "$m" $((seed + 1)) 60 --from $MIB --to $((MIB + journal_bytes)) >>"$work/hurt.out"
		seed=$((seed + 2))
	done
	# The newer or the older label copy of one member: one place at one end.
	"$PY" "$real_dir/damage.py" "$1" "$seed" 1 --at $((seed % 2 * 524288)) >>"$work/hurt.out"
}

# errors INDEX: what is counted against a member.
errors()
{
	status members | "$PY" -c '
import ast, sys
m = ast.literal_eval(sys.stdin.read())[int(sys.argv[1])]
print(sum(v for k, v in m.get("errors", {}).items()))' "$1"
}

two_scrubs()
{
	if ! run_scrub; then
		fail "$1: first scrub" "did not end"
		return 1
	fi
	check_eq "$1: first scrub loses nothing" "$scrub_lost" 0
	echo "    found $scrub_found, repaired $scrub_repaired"
	if ! run_scrub; then
		fail "$1: second scrub" "did not end"
		return 1
	fi
	check_eq "$1: second scrub finds nothing" "$scrub_found $scrub_repaired $scrub_lost" "0 0 0"
}

# one LEVEL MEMBERS VICTIMS...
one()
{
	local level=$1 count=$2 v hurt_list=()
	shift 2
	make_members "$count" 400M
	for v in "$@"; do hurt_list+=("${members[$v]}"); done
	check "raid $level: mkfs" "$TRUSSFS_BIN/mkfs.trussfs" -f -r "$level" "${members[@]}" || return
	mount_fs
	journal_bytes=$(info journal_bytes)
	journal_bytes=${journal_bytes:-8388608}
	fill "$mnt/a" "$level" "$files" 300000
	check "raid $level: sync" timeout 120 "$TRUSSFS_BIN/trussfs" sync "$mnt"

	# While mounted, with more being written.
	hurt $((level * 100)) "${hurt_list[@]}" || fail "raid $level: damage" "nothing to damage"
	drop_caches
	fill "$mnt/b" $((level + 1)) $((files / 3)) 300000
	check "raid $level: files read right after damage while mounted" same "$mnt/a" "$level" "$files" 300000
	check "raid $level: files written after the damage" same "$mnt/b" $((level + 1)) $((files / 3)) 300000
	two_scrubs "raid $level, mounted"
	for v in "$@"; do
		if [ "$(errors "$v")" -gt 0 ]; then
			pass "raid $level: member $v is counted guilty"
		else
			fail "raid $level: member $v" "nothing is counted against it"
		fi
	done
	umount_fs
	fsck_clean "raid $level: fsck after the scrubs"

	# While not mounted.
	hurt $((level * 100 + 50)) "${hurt_list[@]}"
	check_rc "raid $level: fsck sees the damage" "4" "" timeout 600 "$TRUSSFS_BIN/fsck.trussfs" -n "${members[@]}"
	mount_fs
	check "raid $level: files read right after damage while not mounted" same "$mnt/a" "$level" "$files" 300000
	check "raid $level: the second tree too" same "$mnt/b" $((level + 1)) $((files / 3)) 300000
	two_scrubs "raid $level, after a new mount"

	# A journal that is needed, and damaged.
	fill "$mnt/c" $((level + 2)) 40 60000
	check "raid $level: fsync" sync "$mnt"/c/*/*/*
	crash_fs
	for v in "${hurt_list[@]}"; do
		"$PY" "$real_dir/damage.py" "$v" "$level" 400 --from $MIB --to $((MIB + journal_bytes)) >/dev/null
	done
	mount_fs
	check "raid $level: what was fsynced is there, though the journal was damaged" \
		same "$mnt/c" $((level + 2)) 40 60000
	check "raid $level: and the rest" same "$mnt/a" "$level" "$files" 300000
	two_scrubs "raid $level, after a damaged journal"
	umount_fs
	fsck_clean "raid $level: fsck at the end"
}

one 6 6 1 4
one 5 4 2
one 10 4 3
finish
