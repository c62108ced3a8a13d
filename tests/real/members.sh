#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Who belongs to a filesystem: members renamed, reordered, missing, stale, foreign, cloned, too few.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mkfs=$TRUSSFS_BIN/mkfs.trussfs
files=$((300 / TRUSSFS_SCALE + 20))
away=$work/away
mkdir "$away"

# state of a member by its index
member_state()
{
	status "members.$1.state"
}

good()
{
	check "$1" same "$mnt/t" 1 "$files" 100000
}

make_members 4 256M
d=$work/dev
check "mkfs" "$mkfs" -r 5 -L who "${members[@]}" || exit 1
mount_fs
fill "$mnt/t" 1 "$files" 100000
umount_fs
uuid=$(timeout 60 "$TRUSSFS_BIN/trussfs" info "$d/m0" --json | json uuid)
[ -n "$uuid" ] && pass "info tells the UUID" || fail "info" "no UUID"

# Names and order do not matter.
mkdir "$work/dev2"
for i in 0 1 2 3; do mv "$d/m$i" "$work/dev2/z$((9 - i * 2))"; done
members=("$work"/dev2/z*)
mount_fs "${members[1]}"
good "renamed members"
check_eq "renamed members: state" "$(status state)" optimal
umount_fs
mount_fs "$(joined "${members[2]}" "${members[0]}" "${members[3]}" "${members[1]}")"
good "a list in another order"
check_eq "a list in another order: state" "$(status state)" optimal
umount_fs
for i in 0 1 2 3; do mv "$work/dev2/z$((9 - i * 2))" "$d/m$i"; done
members=("$d/m0" "$d/m1" "$d/m2" "$d/m3")

# One is missing; what is written meanwhile is not on it when it comes back.
mv "$d/m2" "$away/m2"
mount_fs "$d/m0"
good "one missing"
check_eq "one missing: state" "$(status state)" degraded
fill "$mnt/u" 2 "$files" 100000
sync -f "$mnt"
umount_fs
members=("$d/m0" "$d/m1" "$d/m3")
check_rc "fsck with one missing" 0 "degraded: member 2 .*missing" timeout 300 "$TRUSSFS_BIN/fsck.trussfs" -n "${members[@]}"
mv "$away/m2" "$d/m2"
members=("$d/m0" "$d/m1" "$d/m2" "$d/m3")
mount_fs
good "the missing one is back"
check "the missing one is back: what it missed" same "$mnt/u" 2 "$files" 100000
check "it is brought up to date" wait_rebuild 300
umount_fs
fsck_clean "fsck after it came back"
# Only with it, and without another.
mv "$d/m0" "$away/m0"
mount_fs "$d/m2"
drop_caches
good "without another member"
check "what it had missed, without another member" same "$mnt/u" 2 "$files" 100000
umount_fs
mv "$away/m0" "$d/m0"
mount_fs
check "all together again" wait_rebuild 300
umount_fs

# One older than the rest: copied earlier and put back.
cp --sparse=always "$d/m1" "$away/old"
mount_fs
rm -rf "$mnt/u"
fill "$mnt/v" 3 "$files" 100000
mv "$mnt/t" "$mnt/s"
mv "$mnt/s" "$mnt/t"
umount_fs
cp --sparse=always "$away/old" "$d/m1"
mount_fs
check_rc "the stale member is named" 0 "m1.*(stale|missed|older)" cat "$mount_log"
good "an older member"
check "an older member: what it does not know" same "$mnt/v" 3 "$files" 100000
check_eq "an older member: what was deleted" "$(find "$mnt" -maxdepth 1 -name u)" ""
check "the older member is brought up to date" wait_rebuild 300
umount_fs
fsck_clean "fsck after an older member"
mv "$d/m3" "$away/m3"
mount_fs "$d/m1"
drop_caches
good "the older member serves, brought up to date"
check "the older member serves what it had missed" same "$mnt/v" 3 "$files" 100000
umount_fs
mv "$away/m3" "$d/m3"
mount_fs
check "all together once more" wait_rebuild 300
umount_fs

# One from another filesystem.
mkdir "$work/other"
truncate -s 256M "$work/other/x0" "$work/other/x1" "$work/other/x2"
check "mkfs of another" "$mkfs" -r 5 -L other "$work/other/x0" "$work/other/x1" "$work/other/x2"
cp --sparse=always "$work/other/x1" "$away/x1"
mv "$d/m3" "$away/m3"
if try_mount "$(joined "$d/m0" "$d/m1" "$d/m2" "$work/other/x1")" "$mnt"; then
	good "with one of another filesystem"
	umount_fs
else
	pass "with one of another filesystem: refused"
fi
check_rc "the foreign member is named" 0 "x1.*" grep -E "x1" "$mount_log"
check_rc "fsck with a foreign member" 8 "x1.*another filesystem" timeout 300 "$TRUSSFS_BIN/fsck.trussfs" -n \
	"$d/m0" "$d/m1" "$d/m2" "$work/other/x1"
cmp -s "$work/other/x1" "$away/x1" && pass "the foreign member is untouched" ||
	fail "the foreign member" "was written to"
mv "$away/m3" "$d/m3"
mount_fs
check "complete again" wait_rebuild 300
umount_fs

# One cloned with dd.
cp --sparse=always "$d/m2" "$d/clone"
if try_mount "$d/m0" "$mnt"; then
	good "with a clone"
	umount_fs
else
	pass "with a clone: refused"
fi
check_rc "the clone is named" 0 "(clone|m2).*" grep -Ei "clone|same" "$mount_log"
rm "$d/clone"
mount_fs
good "without the clone"
check "without the clone: complete" wait_rebuild 300
umount_fs
fsck_clean "fsck without the clone"

# Too few: refused, nothing written, and fine again when they are back.
mv "$d/m0" "$d/m3" "$away/"
cp --sparse=always "$d/m1" "$away/copy1"
if try_mount "$d/m1" "$mnt"; then
	fail "too few members" "mounted"
	umount_fs
else
	pass "too few members: refused"
	check_eq "too few members: exit code" "${mount_rc:-}" 32
	check_rc "too few members: says so" 0 "too few|missing|not enough" cat "$mount_log"
fi
check "too few members: nothing is written" cmp "$d/m1" "$away/copy1"
mv "$away/m0" "$away/m3" "$d/"
mount_fs
good "all are back"
check_eq "all are back: state" "$(status state)" optimal
check "by label" "$TRUSSFS_BIN/trussfs" status who
check "by UUID" "$TRUSSFS_BIN/trussfs" status "$uuid"
# Nobody else may have them meanwhile.
check_rc "mkfs of a mounted member" "1|2" "use|busy|lock" "$mkfs" -f "$d/m0" "$d/m1" "$d/m2"
check_rc "fsck of a mounted filesystem" "8" "use|busy|lock|mounted" "$TRUSSFS_BIN/fsck.trussfs" -n "$d/m0"
umount_fs

# Two halves that went on without each other.
make_members 2 256M
check "mkfs of a mirror" "$mkfs" -f -r 1 "${members[@]}"
mount_fs
fill "$mnt/t" 1 "$files" 100000
umount_fs
for i in 0 1; do
	mv "$d/m$((1 - i))" "$away/"
	mount_fs "$d/m$i"
	echo "half $i" >"$mnt/half"
	umount_fs
	mv "$away/m$((1 - i))" "$d/"
done
if try_mount "$d/m0" "$mnt"; then
	fail "diverged halves" "mounted together: $(cat "$mnt/half")"
	umount_fs
else
	pass "diverged halves: refused"
	check_rc "diverged halves: says so" 0 "without|diverge|fork|split" cat "$mount_log"
fi
finish
