#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Members that are block devices, with 512 and with 4096-byte sectors.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

losetup -f >/dev/null 2>&1 || skip "no loop devices"
files=$((400 / TRUSSFS_SCALE + 20))
members=()
for s in 512 4096 512 4096; do
	make_loop 300M "$s"
	members+=("$ret_loop")
	check_eq "sector size of $ret_loop" "$(blockdev --getss "$ret_loop")" "$s"
done
label=loop$$
check "mkfs" "$TRUSSFS_BIN/mkfs.trussfs" -r 6 -L "$label" "${members[@]}" || exit 1
check_rc "libblkid's neighbours see that they are taken" "1|2" "trussfs" \
	"$TRUSSFS_BIN/mkfs.trussfs" -r 6 "${members[@]}"
mount_fs
fill "$mnt/t" 1 "$files" 200000
check "files" same "$mnt/t" 1 "$files" 200000
check_rc "a mounted member is locked" "1|2" "use|busy" "$TRUSSFS_BIN/mkfs.trussfs" -f "${members[@]}"
umount_fs
fsck_clean fsck
# Found by label among all block devices.
mount_fs "LABEL=$label"
drop_caches
check "files through LABEL=" same "$mnt/t" 1 "$files" 200000
check_eq "state" "$(status state)" optimal
umount_fs
uuid=$(timeout 60 "$TRUSSFS_BIN/trussfs" info "${members[1]}" --json | json uuid)
# As other loop devices, in another order, with the other sector size.
backing=()
for m in "${members[@]}"; do
	backing+=("$(losetup --noheadings --output BACK-FILE "$m" | sed 's/^ *//')")
	losetup -d "$m"
done
loops=()
members=()
for i in 2 0 3 1; do
	dev=$(losetup --find --show --sector-size 4096 "${backing[i]}") || die "losetup"
	loops+=("$dev")
	members+=("$dev")
done
mount_fs "UUID=$uuid"
drop_caches
check "files on other device names" same "$mnt/t" 1 "$files" 200000
check_eq "state on other device names" "$(status state)" optimal
# How much a rebuild and a scrub may take: shown, set, refused, and kept.
priority()
{
	timeout 60 "$TRUSSFS_BIN/trussfs" "$1" priority "$mnt" ${2:+"$2"}
}
check_eq "priority until it is set" "$(priority rebuild) $(priority scrub)" "balanced balanced"
check_eq "priority by name" "$(priority rebuild rebuild) $(priority rebuild)" "rebuild rebuild"
check_eq "priority by number" "$(priority scrub 7) $(priority scrub 0) $(priority scrub)" "7 host host"
check_eq "priority in status" "$(status rebuild.priority) $(status scrub.priority)" "100 0"
check_rc "priority in the text of status" 0 "Priority: rebuild rebuild, scrub host" \
	"$TRUSSFS_BIN/trussfs" status "$mnt"
for bad in 101 -1 1x '' fast 99999999999999999999 1.5; do
	check_rc "a priority of '$bad' is refused" 1 "expected host, balanced, rebuild or a number from 0 to 100" \
		"$TRUSSFS_BIN/trussfs" rebuild priority -- "$mnt" "$bad"
done
check_rc "nothing but priority of rebuild" 1 "expected priority" "$TRUSSFS_BIN/trussfs" rebuild start "$mnt"
umount_fs
mount_fs "UUID=$uuid"
check_eq "priorities after a new mount" "$(priority rebuild) $(priority scrub)" "rebuild host"
# A device goes away for good and a new one takes over.
make_loop 300M 512
spare=$ret_loop
check "fail a device" timeout 60 "$TRUSSFS_BIN/trussfs" fail "$mnt" "${members[1]}"
fill "$mnt/u" 2 "$files" 200000
check "replace it" timeout 60 "$TRUSSFS_BIN/trussfs" replace "$mnt" "${members[1]}" "$spare"
check "rebuild" wait_rebuild 300
check "files after the rebuild" same "$mnt/t" 1 "$files" 200000
members[1]=$spare
umount_fs
fsck_clean "fsck after the rebuild"
mount_fs
drop_caches
check "files after a new mount" same "$mnt/t" 1 "$files" 200000
check "files written while degraded" same "$mnt/u" 2 "$files" 200000
umount_fs
# What mkfs must not overwrite: whole devices with something on them.
make_loop 300M 512
if command -v mkfs.ext4 >/dev/null; then
	mkfs.ext4 -q -F "$ret_loop"
	check_rc "mkfs refuses ext4" "1|2" "ext4" "$TRUSSFS_BIN/mkfs.trussfs" -r 1 "$ret_loop" "$spare"
	check_rc "and has not touched it" 0 "" e2fsck -fn "$ret_loop"
fi
if command -v sfdisk >/dev/null; then
	make_loop 300M 512
	echo ',,L' | sfdisk -q --label gpt "$ret_loop" 2>/dev/null
	check_rc "mkfs refuses a partition table" "1|2" "gpt|partition" \
		"$TRUSSFS_BIN/mkfs.trussfs" -r 0 "$ret_loop"
fi
if command -v mkswap >/dev/null; then
	make_loop 300M 4096
	mkswap -q "$ret_loop" 2>/dev/null || mkswap "$ret_loop" >/dev/null 2>&1
	check_rc "mkfs refuses swap" "1|2" "swap" "$TRUSSFS_BIN/mkfs.trussfs" -r 0 "$ret_loop"
fi
finish
