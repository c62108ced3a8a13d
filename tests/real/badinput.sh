#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Every program with options, devices and images that are wrong: exit codes and messages, never a crash.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mkfs=$TRUSSFS_BIN/mkfs.trussfs
mountprog=$TRUSSFS_BIN/mount.trussfs
fsck=$TRUSSFS_BIN/fsck.trussfs
trussfs=$TRUSSFS_BIN/trussfs
make_members 6 64M
d=$work/dev

# -- asking
for p in mkfs.trussfs mount.trussfs fsck.trussfs trussfs; do
	check_rc "$p -h" 0 "usage" "$TRUSSFS_BIN/$p" -h
	check_rc "$p --help" 0 "usage" "$TRUSSFS_BIN/$p" --help
	check_rc "$p -V" 0 "[0-9]+\.[0-9]+" "$TRUSSFS_BIN/$p" -V
	check_rc "$p --no-such-option" "1|2|16" "no-such-option|usage|unrecogni" "$TRUSSFS_BIN/$p" --no-such-option
done

# -- mkfs
check_rc "mkfs: no members" "1|2" "member|usage" "$mkfs"
check_rc "mkfs: no such file" "1|2" "nowhere.*" "$mkfs" -r 5 "$d/nowhere" "$d/m0" "$d/m1"
check_rc "mkfs: unknown level" "1|2" "level|raid" "$mkfs" -r 7 "${members[@]}"
check_rc "mkfs: level with words" "1|2" "level|raid" "$mkfs" -r five "${members[@]}"
check_rc "mkfs: too few for RAID 5" "1|2" "member|3" "$mkfs" -r 5 "$d/m0" "$d/m1"
check_rc "mkfs: too few for RAID 6" "1|2" "member|4" "$mkfs" -r 6 "$d/m0" "$d/m1" "$d/m2"
check_rc "mkfs: one member for RAID 10" "1|2" "member" "$mkfs" -r 10 "$d/m0"
check_rc "mkfs: same member twice" "1|2" "m0" "$mkfs" -r 1 "$d/m0" "$d/m0"
ln -s m0 "$d/alias"
check_rc "mkfs: same member through a link" "1|2" "m0|alias" "$mkfs" -r 1 "$d/m0" "$d/alias"
ln "$d/m0" "$d/hard"
check_rc "mkfs: same member through a hard link" "1|2" "m0|hard" "$mkfs" -r 1 "$d/m0" "$d/hard"
rm "$d/alias" "$d/hard"
check_rc "mkfs: a directory" "1|2" "$d" "$mkfs" -r 1 "$d" "$d/m0"
mkfifo "$d/fifo"
check_rc "mkfs: a fifo" "1|2" "fifo" "$mkfs" -r 1 "$d/fifo" "$d/m0"
check_rc "mkfs: a character device" "1|2" "/dev/null" "$mkfs" -r 1 /dev/null "$d/m0"
truncate -s 1M "$d/tiny"
check_rc "mkfs: too small" "1|2" "small|tiny" "$mkfs" -r 1 "$d/tiny" "$d/m0"
truncate -s 0 "$d/empty"
check_rc "mkfs: an empty file" "1|2" "small|empty" "$mkfs" -r 1 "$d/empty" "$d/m0"
rm "$d/tiny" "$d/empty" "$d/fifo"
long=$(printf 'x%.0s' {1..64})
check_rc "mkfs: a label too long" "1|2" "label|name|long" "$mkfs" -r 1 -L "$long" "$d/m0" "$d/m1"
for s in 0 1 3000 5K 1T abc -1 99999999999999999999; do
	check_rc "mkfs: --strip $s" "1|2" "strip|size" "$mkfs" -r 5 --strip "$s" "$d/m0" "$d/m1" "$d/m2"
done
for s in 1 1M 1T abc -5M; do
	check_rc "mkfs: --journal $s" "1|2" "journal|size" "$mkfs" -r 5 --journal "$s" "$d/m0" "$d/m1" "$d/m2"
done
check_rc "mkfs: --size too small" "1|2" "size|small" "$mkfs" -r 1 --size 1M "$d/n0" "$d/n1"
check_rc "mkfs: --size with words" "1|2" "size" "$mkfs" -r 1 --size huge "$d/n0" "$d/n1"
[ ! -e "$d/n0" ] && [ ! -e "$d/n1" ] && pass "mkfs: nothing is left of what was refused" ||
	fail "mkfs: refused" "image files were created all the same"
for m in "${members[@]}"; do
	cmp -s "$m" <(head -c 67108864 /dev/zero) || fail "mkfs: refused" "$m was written to"
done
pass "mkfs: members that were refused are untouched"
check_rc "mkfs: dry run" 0 "" "$mkfs" -n -r 6 "${members[@]}"
cmp -s "$d/m0" <(head -c 67108864 /dev/zero) && pass "mkfs: a dry run writes nothing" || fail "mkfs -n" "wrote"
check_rc "mkfs: dry run with --size creates nothing" 0 "" "$mkfs" -n --size 64M "$d/n0" "$d/n1"
[ ! -e "$d/n0" ] && pass "mkfs: no file from a dry run" || fail "mkfs -n --size" "created a file"
# Who is locked elsewhere.
(
	flock -n 9 || exit 1
	check_rc "mkfs: a member in use" "1|2" "m1.*|use|busy|lock" "$mkfs" -r 5 "${members[@]}"
	exit $((fails > 0))
) 9<>"$d/m1" || fails=$((fails + 1))
"$mkfs" -n --json -r 6 "${members[@]}" 2>"$work/err" | "$PY" -c 'import json, sys; assert isinstance(json.load(sys.stdin), dict)' &&
	pass "mkfs --json" || fail "mkfs --json" "no JSON"
# Signatures of others.
if command -v mkfs.ext4 >/dev/null; then
	mkfs.ext4 -q -F "$d/m5" && cp --sparse=always "$d/m5" "$work/ext4"
	check_rc "mkfs: ext4 is refused by name" "1|2" "m5.*ext4|ext4.*m5" "$mkfs" -r 6 "${members[@]}"
	check "mkfs: ext4 is untouched" cmp "$d/m5" "$work/ext4"
	cmp -s "$d/m0" <(head -c 67108864 /dev/zero) && pass "mkfs: the others were not written first" ||
		fail "mkfs" "m0 was written before m5 was refused"
fi
if command -v mkfs.xfs >/dev/null; then
	truncate -s 320M "$d/xfs" && mkfs.xfs -q -f "$d/xfs" &&
		check_rc "mkfs: xfs is refused by name" "1|2" "xfs" "$mkfs" -r 0 "$d/xfs"
	rm -f "$d/xfs"
fi
check "mkfs: --force" "$mkfs" -f -r 6 -L bad "${members[@]}"
if command -v blkid >/dev/null; then
	check_eq "mkfs: --force leaves nothing of ext4" "$(blkid -p -s TYPE -o value "$d/m5")" ""
fi
check_rc "mkfs: a trussfs member is refused" "1|2" "trussfs" "$mkfs" -r 6 "${members[@]}"
check_rc "mkfs: one trussfs member among new ones" "1|2" "trussfs" "$mkfs" --size 64M -r 1 "$d/m0" "$d/new"
[ ! -e "$d/new" ] && pass "mkfs: no file beside a refused one" || fail "mkfs" "left $d/new"
rm -f "$d/new"

# -- mount
check_rc "mount: no arguments" "1|2" "usage|SOURCE" "$mountprog"
check_rc "mount: no directory given" "1|2" "usage|DIR" "$mountprog" "$d/m0"
check_rc "mount: no such directory" "1|32" "nodir" "$mountprog" "$d/m0" "$work/nodir"
mkdir "$mnt"
touch "$work/file"
check_rc "mount: on a file" "1|32" "file|directory" "$mountprog" "$d/m0" "$work/file"
check_rc "mount: no such member" "1|32" "nowhere" "$mountprog" "$d/nowhere" "$mnt"
check_rc "mount: LABEL of nobody" "1|32" "nobody-has-this" "$mountprog" "LABEL=nobody-has-this" "$mnt"
check_rc "mount: not a UUID" "1|32" "" "$mountprog" "UUID=xyz" "$mnt"
truncate -s 64M "$work/zeros"
check_rc "mount: zeros" 32 "zeros" "$mountprog" "$work/zeros" "$mnt"
head -c 67108864 /dev/urandom >"$work/noise"
check_rc "mount: noise" 32 "noise" "$mountprog" "$work/noise" "$mnt"
check_rc "mount: an unknown option" "1|32" "nosuchoption" "$mountprog" "$d/m0" "$mnt" -o nosuchoption
is_mounted "$mnt" && fail "mount" "something is mounted" || pass "mount: nothing is mounted after refusals"
mount_fs "$d/m0" "$mnt" "nofail,_netdev,x-systemd.device-timeout=5,noatime,nodev,nosuid,rw,defaults"
check "mount: generic options" touch "$mnt/x"
check_rc "mount: twice" "32" "use|busy|mounted" "$mountprog" "$d/m0" "$work/dev"

# -- trussfs
check_rc "trussfs: no command" "1|2" "usage|command" "$trussfs"
check_rc "trussfs: unknown command" "1|2" "frobnicate" "$trussfs" frobnicate
check_rc "trussfs: status of nothing" "1|2" "" "$trussfs" status "$work/nodir"
check_rc "trussfs: status of an unknown label" "1|2" "nobody-has-this" "$trussfs" status nobody-has-this
check_rc "trussfs: status of a directory that is no mount" "1|2" "" "$trussfs" status /
check_rc "trussfs: fail without a member" "1|2" "usage|member|argument" "$trussfs" fail "$mnt"
check_rc "trussfs: fail of no member" "1|2" "nowhere" "$trussfs" fail "$mnt" "$d/nowhere"
check_rc "trussfs: replace with nothing" "1|2" "" "$trussfs" replace "$mnt" "$d/m0"
check_rc "trussfs: replace by itself" "1|2" "" "$trussfs" replace "$mnt" "$d/m0" "$d/m0"
check_rc "trussfs: replace by a member" "1|2" "m1" "$trussfs" replace "$mnt" "$d/m0" "$d/m1"
truncate -s 20M "$work/small"
check_rc "trussfs: replace by a smaller one" "1|2" "small" "$trussfs" replace "$mnt" "$d/m0" "$work/small"
check_rc "trussfs: replace by what is not there" "1|2" "nowhere" "$trussfs" replace "$mnt" "$d/m0" "$work/nowhere"
if [ -e "$work/ext4" ]; then
	check_rc "trussfs: replace by an ext4" "1|2" "ext4" "$trussfs" replace "$mnt" "$d/m0" "$work/ext4"
fi
check_rc "trussfs: scrub what" "1|2" "" "$trussfs" scrub frobnicate "$mnt"
check_rc "trussfs: scrub cancel when none runs" "0|2" "" "$trussfs" scrub cancel "$mnt"
check "trussfs: fail one" "$trussfs" fail "$mnt" "$d/m0"
check "trussfs: fail another" "$trussfs" fail "$mnt" "$d/m1"
check_rc "trussfs: failing one too many is refused" "1|2" "data|redundan|tolera|lose" "$trussfs" fail "$mnt" "$d/m2"
check "the mount still works" bash -c 'echo x >"$1/y" && sync "$1/y" && cat "$1/y"' bash "$mnt"
for c in list "status $mnt" "info $d/m3" "scrub status $mnt"; do
	# shellcheck disable=SC2086
	"$trussfs" $c --json 2>"$work/err" | "$PY" -c '
import json, sys
v = json.load(sys.stdin)
assert "version" in v, "no version"' && pass "trussfs ${c%% *} --json has a version" ||
		fail "trussfs ${c%% *} --json" "no JSON with a version"
done
umount_fs
check_rc "trussfs: status of an unmounted one" "1|2" "mounted" "$trussfs" status bad

# -- fsck
check_rc "fsck: no arguments" "8|16" "usage|member" "$fsck"
check_rc "fsck: an unknown option" 16 "usage|option" "$fsck" --frobnicate "$d/m0"
check_rc "fsck: no such member" 8 "nowhere" "$fsck" -n "$d/nowhere"
check_rc "fsck: zeros" 8 "zeros" "$fsck" -n "$work/zeros"
check_rc "fsck: noise" 8 "noise" "$fsck" -n "$work/noise"
check_rc "fsck: -j with words" 16 "" "$fsck" -n -j many "$d/m0"

# -- images that are cut off, or whose labels are gone
"$mkfs" -f -r 5 "$d/m0" "$d/m1" "$d/m2" >/dev/null || fail mkfs "again"
members=("$d/m0" "$d/m1" "$d/m2")
truncate -s 30M "$d/m2"
if try_mount "$d/m0" "$mnt"; then
	pass "mount: a member that was cut off is left out"
	check "mount: works without it" touch "$mnt/x"
	umount_fs
else
	pass "mount: a member that was cut off: refused"
	check_eq "mount: exit code" "${mount_rc:-}" 32
fi
truncate -s 0 "$d/m2"
mount_fs "$d/m0"
check "mount: works without an emptied member" touch "$mnt/y"
umount_fs
# Both label areas of one member overwritten: it is not ours any more, the others still are.
"$mkfs" -f -r 5 --size 64M "$d/m0" "$d/m1" "$d/m2" >/dev/null || {
	truncate -s 64M "$d/m2"
	"$mkfs" -f -r 5 "$d/m0" "$d/m1" "$d/m2" >/dev/null || fail mkfs "once more"
}
dd if=/dev/urandom of="$d/m1" bs=1M count=1 conv=notrunc status=none
dd if=/dev/urandom of="$d/m1" bs=1M count=1 seek=63 conv=notrunc status=none
check_rc "fsck: a member without labels" "8" "m1.*no trussfs label" "$fsck" -n "$d/m0" "$d/m1" "$d/m2"
mount_fs "$d/m0"
check "mount: works without a member that lost its labels" touch "$mnt/z"
umount_fs
# Labels full of noise with a right magic number: refused, not believed.
"$mkfs" -f -r 1 "$d/m3" "$d/m4" >/dev/null
"$PY" - "$d/m3" "$d/m4" <<-'PYTHON'
	import os, random, sys
	rng = random.Random(1)
	for path in sys.argv[1:]:
	    with open(path, "r+b") as f:
	        size = os.fstat(f.fileno()).st_size
	        for at in (0, 512 << 10, size - (1 << 20), size - (512 << 10)):
	            f.seek(at + 16)
	            f.write(rng.randbytes(100000))
PYTHON
check_rc "mount: labels that lie" 32 "" "$mountprog" "$d/m3" "$mnt"
check_rc "fsck: labels that lie" 8 "" "$fsck" -n "$d/m3" "$d/m4"
finish
