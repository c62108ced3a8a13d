#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# meson install puts everything where Debian expects it, and mount(8), umount(8) and fstab then work.
# The programs are laid over /sbin in a mount namespace of this script's own: nothing stays.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

dest=${TRUSSFS_DEST:-}
if [ -z "$dest" ]; then
	build=${TRUSSFS_BUILD:-$src_dir/build}
	dest=$work/dest
	check "meson install" meson install -C "$build" --destdir "$dest" --no-rebuild || exit 1
fi

# On Debian /sbin is /usr/sbin.
for f in mkfs.trussfs fsck.trussfs mount.trussfs mount.fuse.trussfs umount.trussfs umount.fuse.trussfs; do
	if [ -x "$dest/usr/sbin/$f" ]; then pass "/usr/sbin/$f"; else fail "/usr/sbin/$f" "is not there"; fi
done
if [ -x "$dest/usr/sbin/trussfs" ] || [ -x "$dest/usr/bin/trussfs" ]; then pass trussfs; else fail trussfs "is not there"; fi
for f in man8/mkfs.trussfs.8 man8/mount.trussfs.8 man8/fsck.trussfs.8 man8/trussfs.8 man8/umount.trussfs.8 man5/trussfs.5; do
	if [ -f "$dest/usr/share/man/$f" ]; then pass "man $f"; else fail "man $f" "is not there"; fi
done
check_eq "nothing that is for tests is installed" \
	"$(find "$dest" -name '*sim*' -o -name 'test_*' -o -name '*.a' -o -name '*.h')" ""

if ! grep -qw overlay /proc/filesystems; then
	[ "$fails" -eq 0 ] || finish
	skip "no overlayfs to lay the programs over /sbin"
fi
members=()
mkdir -p "$work/dev" "$mnt"
for i in 0 1 2; do members+=("$work/dev/m$i"); done

# What mount(8) started is not among the mounts that lib.sh knows.
cleanup_more()
{
	local pid_file pid
	is_mounted "$mnt" && { timeout 60 umount "$mnt" 2>/dev/null || umount -l "$mnt"; }
	# Names here have no blanks.
	# shellcheck disable=SC2013
	for pid_file in $(grep -lsF " $mnt" "$TRUSSFS_RUNDIR"/*.pid); do
		pid=$(sed -n 's/^pid //p' "$pid_file")
		until_true 30 daemon_gone "$pid" || kill -KILL "$pid"
	done
}

inside()
{
	mount --make-rprivate / || return 1
	mount -t overlay overlay -o "lowerdir=$dest/usr/sbin:/usr/sbin" /usr/sbin || return 1
	if [ -x "$dest/usr/bin/trussfs" ]; then
		mount -t overlay overlay -o "lowerdir=$dest/usr/bin:/usr/bin" /usr/bin || return 1
	fi
	PATH=/usr/sbin:/usr/bin:/sbin:/bin
	hash -r
	ready_to_lock()
	{
		unlocked "${members[@]}"
	}
	check "mkfs -t trussfs" mkfs -t trussfs -r 5 -L installed --size 128M "${members[@]}"
	for type in trussfs fuse.trussfs; do
		if check "mount -t $type" timeout 120 mount -t "$type" "${members[0]}" "$mnt"; then
			check "write" bash -c 'echo hello >"$1/hello"' bash "$mnt"
			check_rc "df shows the source" 0 "m0|trussfs" df "$mnt"
			check "status" trussfs status "$mnt"
			check "umount" timeout 120 umount "$mnt"
			# umount returns only when everything is on the members.
			check "the members are free at once after umount" ready_to_lock
			check "fsck at once" fsck.trussfs -n "${members[@]}"
		fi
	done
	printf '%s %s trussfs defaults,nofail,x-systemd.device-timeout=9,noatime 0 0\n' "${members[0]}" "$mnt" >"$work/fstab"
	if check "mount by fstab" timeout 120 mount -T "$work/fstab" "$mnt"; then
		check_eq "what was written is there" "$(cat "$mnt/hello")" hello
		check_rc "noatime is kept" 0 "noatime" grep " $mnt " /proc/self/mounts
		check "umount again" timeout 120 umount "$mnt"
		check "mount at once after umount" timeout 120 mount -t trussfs "${members[1]}" "$mnt"
		check "and umount" timeout 120 umount "$mnt"
	fi
	printf '%s %s fuse.trussfs ro 0 0\n' "${members[0]}" "$mnt" >"$work/fstab"
	if check "mount by fstab as fuse.trussfs, read-only" timeout 120 mount -T "$work/fstab" "$mnt"; then
		check_rc "it is read-only" 1 "read-only" touch "$mnt/x"
		check "and umount" timeout 120 umount "$mnt"
	fi
	check_rc "mount(8) says what is wrong" 32 "nowhere" timeout 120 mount -t trussfs "$work/nowhere" "$mnt"
	check "fsck(8) finds it" fsck -t trussfs "${members[0]}" -- -n
	[ "$fails" -eq 0 ]
}

if [ "${1:-}" = inside ]; then
	inside
	exit
fi
relay env TRUSSFS_DEST="$dest" unshare --mount --propagation private "$0" inside
finish
