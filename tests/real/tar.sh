#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A real tree through tar and rsync, compared file by file.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

command -v rsync >/dev/null || skip "no rsync"
count_max=$((12000 / TRUSSFS_SCALE))
bytes_max=$((300000000 / TRUSSFS_SCALE))
tree=${TRUSSFS_TREE:-/usr/share}
mkdir "$work/ref"
find "$tree" -xdev \( -type f -o -type l -o -type d \) -readable -printf '%s %P\n' 2>/dev/null |
	awk -v n="$count_max" -v b="$bytes_max" '
		NR > n { exit }
		{ b -= $1; if (b < 0) exit; sub(/^[0-9]+ /, ""); if ($0 != "") print }' >"$work/list"
tar --format=posix -C "$tree" --no-recursion -T "$work/list" -cf "$work/tree.tar" || die "cannot pack $tree"
tar -C "$work/ref" -xpf "$work/tree.tar" || die "cannot unpack the reference"
# What a tree of documentation does not have.
ln "$(find "$work/ref" -type f -size +0 | head -n 1)" "$work/ref/hardlink"
truncate -s 5M "$work/ref/hole"
printf x | dd of="$work/ref/hole" bs=1 seek=3000000 conv=notrunc status=none
mkfifo "$work/ref/fifo"
chmod 4711 "$work/ref/fifo"
touch -d '1999-12-31 23:59:59.987654321' "$work/ref/hole"
chown -h 12345:54321 "$work/ref/hole"
tar --format=posix -C "$work/ref" -cSf "$work/tree.tar" .
files=$(find "$work/ref" | wc -l)

make_members 5 1G
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r 5 "${members[@]}" || exit 1
mount_fs
mkdir "$mnt/tar" "$mnt/rsync"
check "unpack $files names" timeout 500 tar -C "$mnt/tar" -xpSf "$work/tree.tar"
check "tar --compare" timeout 300 tar -C "$mnt/tar" -df "$work/tree.tar"
check "contents are the same" diff -r --no-dereference "$work/ref" "$mnt/tar" --exclude=fifo
listing "$work/ref" >"$work/ref.list"
check "what stat says is the same" diff "$work/ref.list" <(listing "$mnt/tar")
check "rsync" timeout 500 rsync -aHXS "$work/ref/" "$mnt/rsync/"
again=$(rsync -aHXS --itemize-changes "$work/ref/" "$mnt/rsync/" 2>&1)
check_eq "rsync run twice sends nothing" "$again" ""
again=$(rsync -aHXS --checksum --itemize-changes "$work/ref/" "$mnt/rsync/" 2>&1)
check_eq "nor by checksum" "$again" ""
umount_fs
fsck_clean fsck
mount_fs
check "contents after a new mount" diff -r --no-dereference "$work/ref" "$mnt/tar" --exclude=fifo
check "stat after a new mount" diff "$work/ref.list" <(listing "$mnt/tar")
again=$(rsync -aHXS --checksum --itemize-changes "$work/ref/" "$mnt/rsync/" 2>&1)
check_eq "rsync after a new mount sends nothing" "$again" ""
check "pack it again" bash -c 'tar --format=posix -C "$1" -cf - . | tar -C "$2" -df -' bash "$mnt/rsync" "$work/ref"
check "delete it" rm -rf "$mnt/tar"
umount_fs
fsck_clean "fsck after deleting"
finish
