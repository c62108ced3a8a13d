#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What went wrong for users of other systems, as far as it takes a real mount and is not tested elsewhere: see
# tests/scenarios.txt.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

make_members 5 512M
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r 6 -L scenarios "${members[@]}" || exit 1
mount_fs

# Programs of 32 bits get EOVERFLOW for what does not fit.
mkdir "$mnt/many"
check "scenario 82: inode numbers are small and cookies positive" "$PY" -c '
import ctypes, os, sys
d = sys.argv[1]
for i in range(500):
    open(f"{d}/name{i}", "w").close()
assert all(os.stat(f"{d}/name{i}").st_ino < 2**31 for i in range(500)), "inode number"
c = ctypes.CDLL(None, use_errno=True)
c.opendir.restype = c.readdir64.restype = ctypes.c_void_p
c.telldir.restype = ctypes.c_long
for f in (c.readdir64, c.telldir):
    f.argtypes = [ctypes.c_void_p]
h = c.opendir(os.fsencode(d))
n = 0
while c.readdir64(h):
    assert c.telldir(h) >= 0, "cookie"
    n += 1
assert n == 502, n' "$mnt/many"

# What a mapping wrote is in the file, also after msync and a crash.
check "scenario 94: a shared mapping" "$PY" -c '
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 3 << 20)
m = mmap.mmap(fd, 3 << 20)
for at in range(0, 3 << 20, 4096):
    m[at:at + 8] = at.to_bytes(8, "little")
m.flush()
for at in range(0, 3 << 20, 65536):
    assert os.pread(fd, 8, at) == at.to_bytes(8, "little"), at' "$mnt/mapped"
crash_fs
fsck_clean "scenario 94: fsck after the crash"
mount_fs
check "scenario 94: what msync promised" "$PY" -c '
import sys
data = open(sys.argv[1], "rb").read()
assert len(data) == 3 << 20, len(data)
for at in range(0, 3 << 20, 4096):
    assert data[at:at + 8] == at.to_bytes(8, "little"), at' "$mnt/mapped"

# A writer is killed at any moment: each write is there or not, and the file can be used.
for i in 1 2 3 4 5 6 7 8; do
	"$PY" -c '
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
import mmap
m = mmap.mmap(-1, 1 << 20)
n = 0
print("begun", flush=True)
while True:
    n = n % 255 + 1
    m[:] = bytes([n]) * (1 << 20)
    os.pwrite(fd, m, 0)' "$mnt/killed" >"$work/killed.out" &
	killed=$!
	children+=("$killed")
	until_true 20 grep -q begun "$work/killed.out"
	"$PY" -c 'import random, time; time.sleep(random.random() / 5)'
	kill -KILL "$killed"
	wait "$killed" 2>/dev/null
	check "scenario 109: after a killed writer, $i" "$PY" -c '
import sys
data = open(sys.argv[1], "rb").read()
assert len(data) in (0, 1 << 20), len(data)
for at in range(0, len(data), 4096):
    assert len(set(data[at:at + 4096])) == 1, at' "$mnt/killed"
done

# The members are held until the last flush, whatever became of the mount point.
busy()
{
	"$TRUSSFS_BIN/fsck.trussfs" -n "${members[@]}" >"$work/fsck.out" 2>&1
	[ $? -eq 8 ]
}
check "scenario 110: a second daemon is refused" busy
other=$work/other
mkdir -p "$other"
check_rc "scenario 110: and so is a second mount" "32" "use|busy|mounted" \
	timeout 60 "$TRUSSFS_BIN/mount.trussfs" "${members[0]}" "$other"
head -c 50000000 /dev/urandom >"$mnt/last"
sum=$(sha256sum <"$mnt/last")
umount_fs
fsck_clean "scenario 85: fsck right after umount"
mount_fs
check_eq "scenario 85: what was written last" "$(sha256sum <"$mnt/last")" "$sum"
umount_fs
finish
