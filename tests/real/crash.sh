#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# kill -9 of the daemon at random moments, while writers fsync numbered records and rename files into
# place. After each: fsck of what is on the members is clean, and through a new mount every
# acknowledged record is there and no rename is half done (records.py).
#   TRUSSFS_ROUNDS   how often (default 50, divided by the scale)
#   TRUSSFS_SEED     of the writers and the moments (default: of the time, and printed)
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

rounds=${TRUSSFS_ROUNDS:-$((50 / TRUSSFS_SCALE))}
seed=${TRUSSFS_SEED:-$(date +%s)}
RANDOM=$((seed % 32768))
echo "seed $seed: TRUSSFS_SEED=$seed TRUSSFS_ROUNDS=$rounds tests/real/crash.sh"
level=${TRUSSFS_LEVEL:-6}
make_members 5 512M
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r "$level" "${members[@]}" || exit 1
mkdir "$work/acks"

progress()
{
	[ "$(cat "$work"/acks/count.* 2>/dev/null | awk '{ n += length($0) } END { print n + 0 }')" -ge "$1" ]
}

good=0
for ((round = 1; round <= rounds; round++)); do
	mount_fs
	bad=$fails
	"$PY" "$real_dir/records.py" verify "$mnt" "$work/acks" >"$work/verify.out" 2>&1 || {
		fail "round $round" "$(head -n 5 "$work/verify.out")"
		break
	}
	rm -f "$work"/acks/count.*
	"$PY" "$real_dir/records.py" write "$mnt" "$work/acks" $((seed + round)) 2>"$work/writers.err" &
	children=($!)
	# The moment: after a random number of acknowledgements, and a random while of nothing in particular.
	until_true 120 progress $((RANDOM % 150 + 5)) || fail "round $round" "the writers make no progress"
	sleep "0.$((RANDOM % 40 + 10))"
	crash_fs
	reap "${children[0]}" || fail "round $round" "a writer failed: $(tail -n 3 "$work/writers.err")"
	children=()
	if ! timeout 600 "$TRUSSFS_BIN/fsck.trussfs" -n "${members[@]}" >"$work/fsck.out" 2>&1; then
		fail "round $round" "fsck found: $(tail -n 5 "$work/fsck.out")"
	fi
	[ "$fails" -eq "$bad" ] || break
	good=$((good + 1))
done
check_eq "rounds of kill -9" "$good" "$rounds"
if [ "$fails" -eq 0 ]; then
	mount_fs
	check "every acknowledged record is there" "$PY" "$real_dir/records.py" verify "$mnt" "$work/acks"
	run_scrub || fail scrub "did not end"
	check_eq "a scrub finds nothing" "$scrub_found $scrub_lost" "0 0"
	umount_fs
	fsck_clean "fsck at the end"
fi
finish
