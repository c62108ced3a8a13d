#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What the manual says, one by one: dirsync; old or new content after renaming over a name; ACLs, which nobody would
# enforce, are refused; nothing of the caller's stays open in the daemon; status and df answer while every member hangs.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

make_members 3 256M
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r 5 -L promises "${members[@]}" || exit 1

# Each change of a name is there after a crash that follows at once.
mount_fs "${members[0]}" "$mnt" dirsync
mkdir "$mnt/a" "$mnt/b" "$mnt/gone"
: >"$mnt/a/file"
ln "$mnt/a/file" "$mnt/a/link"
mv "$mnt/a/file" "$mnt/b/moved"
rmdir "$mnt/gone"
ln -s target "$mnt/symlink"
crash_fs
mount_fs
check_eq "dirsync: names after a crash" "$(cd "$mnt" && find . -mindepth 1 | sort | tr '\n' ' ')" \
	"./a ./a/link ./b ./b/moved ./symlink "
# user::rw- user:65534:--- group::r-- mask::rw- other::r--
check_eq "an ACL is refused, since nobody would enforce it" "$("$PY" -c '
import errno, os, struct, sys
acl = struct.pack("<I", 2)
for tag, perm, who in (1, 6, -1), (2, 0, 65534), (4, 4, -1), (16, 6, -1), (32, 4, -1):
    acl += struct.pack("<HHi", tag, perm, who)
try:
    os.setxattr(sys.argv[1], "system.posix_acl_access", acl)
except OSError as e:
    print(e.errno == errno.EOPNOTSUPP)' "$mnt/b/moved")" True
umount_fs

# Replaced by a file that is still open and whose data the kernel still has.
mount_fs
head -c 5000 /dev/zero | tr '\0' o >"$mnt/name"
sync "$mnt/name"
mkfifo "$work/never"
"$PY" -c '
import os, sys
os.chdir(sys.argv[1])
f = os.open("new", os.O_WRONLY | os.O_CREAT)
os.write(f, b"n" * 300000)
os.rename("new", "name")
print("renamed", flush=True)
os.open(sys.argv[2], os.O_RDONLY)' "$mnt" "$work/never" >"$work/renamer" 2>&1 &
renamer=$!
children+=("$renamer")
check "a file that is open replaces another" until_true 20 grep renamed "$work/renamer"
# Past the kernel, which trussfs sync would have write back as well.
check "names are committed" timeout 60 "$PY" -c '
import glob, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(glob.glob(sys.argv[1] + "/*.sock")[0])
s.sendall(b"{\"op\":\"sync\"}\n")
sys.exit(b"error" in s.recv(4096))' "$TRUSSFS_RUNDIR"
crash_fs
kill "$renamer"
wait "$renamer" 2>/dev/null
mount_fs
check_eq "a replaced file after a crash: new content" "$(head -c 1 "$mnt/name"; wc -c <"$mnt/name")" n300000
umount_fs

# In the background: as mount(8) does it.
exec 8>"$work/lock"
flock 8
timeout 120 "$TRUSSFS_BIN/mount.trussfs" "${members[0]}" "$mnt"
exec 8>&-
check "the daemon does not keep the caller's files" flock -n "$work/lock" true
check "umount" timeout 120 "$TRUSSFS_BIN/umount.trussfs" "$mnt"

# Members that hang: they lie on another filesystem of ours, whose daemon is stopped.
mount_fs
below_pid=$daemon_pid
cleanup_more()
{
	kill -CONT "$below_pid" 2>/dev/null
}
truncate -s 64M "$mnt/m0" "$mnt/m1" "$mnt/m2"
check "mkfs above" "$TRUSSFS_BIN/mkfs.trussfs" -r 5 "$mnt/m0" "$mnt/m1" "$mnt/m2" || exit 1
mount_fs "$mnt/m0" "$work/above" cache=32m
mkfifo "$work/go"
"$PY" -c '
import os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
open(sys.argv[2]).read()
# Block by block apart, so that each is a request of its own: more than the kernel has at a time.
for i in range(4000):
    os.pwrite(f, b"x" * 4096, i * 8192)
os.fsync(f)' "$work/above/f" "$work/go" >"$work/writer" 2>&1 &
writer=$!
children+=("$writer")
kill -STOP "$below_pid"
echo >"$work/go"
# Each in time, whatever it says; until the kernel has asked all that it will ask at a time, and longer.
answers()
{
	local rc=0
	timeout 3 "$@" >/dev/null 2>&1 || rc=$?
	[ "$rc" -ne 124 ] && [ "$rc" -ne 137 ]
}
hung=0 late=
for i in {1..25}; do
	answers stat -f "$work/above" || late="$late df-$i"
	answers "$TRUSSFS_BIN/trussfs" status "$work/above" || late="$late status-$i"
	kill -0 "$writer" 2>/dev/null && hung=$((hung + 1))
	read -r -t 0.1 <>"$work/never"
done
[ "$hung" -gt 0 ] && pass "the members hang" || fail "the members hang" "the writer ended"
check_eq "df and status meanwhile: late" "$late" ""
kill -CONT "$below_pid"
reap "$writer" || true
timeout 60 umount "$work/above" || fail umount "above"
until_true 60 daemon_gone "$daemon_pid" || fail umount "the daemon above has not ended"
mounts=("$mnt:$below_pid")
umount_fs
fsck_clean "fsck of what lies below"
finish
