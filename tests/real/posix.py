#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What programs expect of a filesystem, one function a subject.

posix.py run DIR          prints PASS and FAIL lines
posix.py leave DIR FILE   makes things that must survive a remount, and notes them in FILE
posix.py find DIR FILE    looks whether they did
"""
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import socket
import stat
import subprocess
import sys
import traceback

libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
NOBODY = 65534


def expect(got, want, what=""):
    if got != want:
        raise AssertionError("%s: got %r, expected %r" % (what, got, want))


def fails(number, fn, *args, **kw):
    try:
        fn(*args, **kw)
    except OSError as e:
        expect(errno.errorcode.get(e.errno), errno.errorcode[number], fn.__name__)
        return
    raise AssertionError("%s%r: should fail with %s" % (fn.__name__, args, errno.errorcode[number]))


def renameat2(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def fallocate(fd, mode, off, length):
    if libc.fallocate(fd, mode, ctypes.c_int64(off), ctypes.c_int64(length)) != 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def put(path, data=b""):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def as_nobody(fn):
    """Runs fn as a user without rights; its exception comes back as text."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(r)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            fn()
            os._exit(0)
        except BaseException:
            os.write(w, traceback.format_exc().encode()[-3000:])
            os._exit(1)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        why = f.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise AssertionError("as nobody: " + why.decode())


def t_create():
    fd = os.open("a", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)
    os.write(fd, b"hello")
    os.close(fd)
    expect(get("a"), b"hello")
    expect(stat.S_IMODE(os.stat("a").st_mode), 0o640, "mode")
    fails(errno.EEXIST, os.open, "a", os.O_CREAT | os.O_EXCL)
    fails(errno.ENOENT, os.open, "none", os.O_RDONLY)
    fails(errno.ENOTDIR, os.open, "a/b", os.O_RDONLY)
    fails(errno.EISDIR, os.open, ".", os.O_WRONLY)
    os.unlink("a")
    fails(errno.ENOENT, os.stat, "a")
    fails(errno.ENOENT, os.unlink, "a")


def t_names():
    long = "n" * 255
    put(long)
    expect(os.listdir("."), [long])
    for fn in (put, os.mkdir, os.stat, os.unlink, os.rmdir):
        fails(errno.ENAMETOOLONG, fn, "n" * 256)
    fails(errno.ENAMETOOLONG, os.rename, long, "n" * 256)
    fails(errno.ENAMETOOLONG, os.link, long, "n" * 256)
    fails(errno.ENAMETOOLONG, os.symlink, "x", "n" * 256)
    odd = [b"\xff\xfe", b" ", b"\n", b"a\\b", "ä€".encode(), b"-", b"..."]
    for n in odd:
        put(n, n)
    expect(sorted(os.listdir(b".")), sorted(odd + [long.encode()]))
    for n in odd:
        expect(get(n), n)


def t_mkdir_rmdir():
    os.mkdir("d", 0o750)
    expect(stat.S_IMODE(os.stat("d").st_mode), 0o750, "mode")
    expect(os.stat("d").st_nlink, 2, "links of an empty directory")
    os.mkdir("d/e")
    expect(os.stat("d").st_nlink, 3, "links with one subdirectory")
    fails(errno.ENOTEMPTY, os.rmdir, "d")
    fails(errno.EEXIST, os.mkdir, "d")
    expect(os.stat("d/e/..").st_ino, os.stat("d").st_ino, "..")
    os.rmdir("d/e")
    expect(os.stat("d").st_nlink, 2)
    put("f")
    fails(errno.ENOTDIR, os.rmdir, "f")
    fails(errno.EISDIR, os.unlink, "d")
    os.rmdir("d")
    fails(errno.ENOENT, os.rmdir, "d")


def t_big_directory():
    n = 5000
    for i in range(n):
        put("file-%d" % i)
    expect(len(set(os.listdir("."))), n, "names")
    seen = {e.name: e.inode() for e in os.scandir(".")}
    for i in range(0, n, 97):
        expect(os.stat("file-%d" % i).st_ino, seen["file-%d" % i], "inode number of readdir")
    # Deleting while reading: what stays is seen exactly once.
    got = []
    with os.scandir(".") as it:
        for e in it:
            got.append(e.name)
            if int(e.name[5:]) % 2:
                os.unlink(e.name)
    expect(len(got), len(set(got)), "no name twice")
    expect(set(os.listdir(".")), {"file-%d" % i for i in range(0, n, 2)})


def t_rename():
    put("a", b"a")
    put("b", b"b")
    os.rename("a", "b")
    expect(get("b"), b"a")
    fails(errno.ENOENT, os.stat, "a")
    os.mkdir("d")
    os.mkdir("e")
    put("e/x")
    fails(errno.ENOTEMPTY, os.rename, "d", "e")
    fails(errno.EISDIR, os.rename, "b", "d")
    fails(errno.ENOTDIR, os.rename, "d", "b")
    fails(errno.EINVAL, os.rename, "e", "e/f")
    os.rename("e", "d")
    expect(os.listdir("d"), ["x"])
    os.mkdir("other")
    before = os.stat("other").st_nlink
    os.rename("d", "other/d")
    expect(os.stat("other").st_nlink, before + 1, "links after a directory came")
    expect(os.stat("other/d/..").st_ino, os.stat("other").st_ino, ".. of a moved directory")
    os.link("b", "c")
    os.rename("b", "c")
    expect(sorted(os.listdir(".")), ["b", "c", "other"], "rename between links of one file does nothing")


def t_rename_flags():
    put("a", b"a")
    put("b", b"b")
    fails(errno.EEXIST, renameat2, "a", "b", NOREPLACE)
    renameat2("a", "c", NOREPLACE)
    expect(get("c"), b"a")
    renameat2("b", "c", EXCHANGE)
    expect((get("b"), get("c")), (b"a", b"b"))
    fails(errno.ENOENT, renameat2, "b", "none", EXCHANGE)
    os.mkdir("d")
    os.mkdir("d/inner")
    os.mkdir("p")
    put("p/f", b"f")
    renameat2("d/inner", "p/f", EXCHANGE)
    expect(get("d/inner"), b"f")
    expect((os.stat("d").st_nlink, os.stat("p").st_nlink), (2, 3), "links after an exchange")
    fails(errno.EINVAL, renameat2, "a", "b", NOREPLACE | EXCHANGE)
    renameat2("b", "w", WHITEOUT)
    st = os.stat("b")
    expect((stat.S_ISCHR(st.st_mode), st.st_rdev), (True, 0), "whiteout")
    expect(get("w"), b"a")


def t_hard_links():
    put("a", b"x")
    for i in range(300):
        os.link("a", "l%d" % i)
    expect(os.stat("a").st_nlink, 301)
    expect(os.stat("l7").st_ino, os.stat("a").st_ino)
    os.unlink("a")
    expect(os.stat("l7").st_nlink, 300)
    expect(get("l299"), b"x")
    os.mkdir("d")
    fails(errno.EPERM, os.link, "d", "e")
    fails(errno.EEXIST, os.link, "l1", "l2")


def t_symlinks():
    os.symlink("target", "s")
    expect(os.readlink("s"), "target")
    expect(os.lstat("s").st_size, 6)
    expect(stat.S_ISLNK(os.lstat("s").st_mode), True)
    fails(errno.ENOENT, os.stat, "s")
    put("target", b"t")
    expect(get("s"), b"t")
    long = "/".join(["x" * 200] * 20)[:4000]
    os.symlink(long, "long")
    expect(os.readlink("long"), long)
    os.symlink("loop", "loop")
    fails(errno.ELOOP, os.stat, "loop")


def t_special_files():
    os.mkfifo("fifo", 0o600)
    expect(stat.S_ISFIFO(os.stat("fifo").st_mode), True)
    pid = os.fork()
    if pid == 0:
        put("fifo", b"through")
        os._exit(0)
    expect(get("fifo"), b"through")
    os.waitpid(pid, 0)
    s = socket.socket(socket.AF_UNIX)
    s.bind("sock")
    s.listen(1)
    c = socket.socket(socket.AF_UNIX)
    c.connect("sock")
    c.close()
    s.close()
    os.mknod("chr", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    st = os.stat("chr")
    expect((os.major(st.st_rdev), os.minor(st.st_rdev)), (1, 3))
    os.mknod("blk", 0o600 | stat.S_IFBLK, os.makedev(259, 300000))
    st = os.stat("blk")
    expect((stat.S_ISBLK(st.st_mode), os.major(st.st_rdev), os.minor(st.st_rdev)), (True, 259, 300000))


def t_xattrs():
    put("f")
    os.setxattr("f", "user.a", b"1")
    os.setxattr("f", "user.b", b"\0\xff" * 500)
    os.setxattr("f", "trusted.t", b"t")
    expect(sorted(os.listxattr("f")), ["trusted.t", "user.a", "user.b"])
    expect(os.getxattr("f", "user.b"), b"\0\xff" * 500)
    fails(errno.EEXIST, os.setxattr, "f", "user.a", b"2", os.XATTR_CREATE)
    fails(errno.ENODATA, os.setxattr, "f", "user.c", b"2", os.XATTR_REPLACE)
    os.setxattr("f", "user.a", b"2", os.XATTR_REPLACE)
    expect(os.getxattr("f", "user.a"), b"2")
    fails(errno.ENODATA, os.getxattr, "f", "user.none")
    os.removexattr("f", "user.a")
    fails(errno.ENODATA, os.removexattr, "f", "user.a")
    big = random.Random(1).randbytes(60000)
    os.setxattr("f", "user.big", big)
    expect(os.getxattr("f", "user.big"), big)
    os.setxattr("f", "user.empty", b"")
    expect(os.getxattr("f", "user.empty"), b"")
    for i in range(200):
        os.setxattr("f", "user.many%03d" % i, b"%d" % i)
    expect(len(os.listxattr("f")), 204)
    for i in range(200):
        expect(os.getxattr("f", "user.many%03d" % i), b"%d" % i)
    os.mkdir("d")
    os.setxattr("d", "user.dir", b"d")
    expect(os.getxattr("d", "user.dir"), b"d")


def t_permissions():
    os.chmod(".", 0o777)
    put("secret", b"s")
    os.chmod("secret", 0o600)
    put("open", b"o")
    os.chmod("open", 0o644)
    os.mkdir("closed", 0o700)
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    put("sticky/roots")

    def user():
        fails(errno.EACCES, os.open, "secret", os.O_RDONLY)
        expect(get("open"), b"o")
        fails(errno.EACCES, os.open, "open", os.O_WRONLY)
        fails(errno.EACCES, os.listdir, "closed")
        fails(errno.EPERM, os.chmod, "open", 0o777)
        fails(errno.EPERM, os.chown, "open", NOBODY, NOBODY)
        put("mine", b"m")
        expect((os.stat("mine").st_uid, os.stat("mine").st_gid), (NOBODY, NOBODY))
        os.chmod("mine", 0o600)
        expect(os.access("closed", os.W_OK), False)
        if os.stat("sticky").st_uid != NOBODY:
            try:
                os.unlink("sticky/roots")
            except PermissionError:
                pass
            else:
                raise AssertionError("sticky directory")
            try:
                put("sticky/mine")
                os.rename("sticky/mine", "sticky/roots")
            except PermissionError:
                pass
            else:
                raise AssertionError("rename over another's file in a sticky directory")
    as_nobody(user)


def t_suid():
    os.chmod(".", 0o777)
    put("prog", b"#!")
    os.chmod("prog", 0o6777)
    expect(stat.S_IMODE(os.stat("prog").st_mode), 0o6777)

    def user():
        fd = os.open("prog", os.O_WRONLY)
        os.write(fd, b"xx")
        os.close(fd)
    as_nobody(user)
    expect(stat.S_IMODE(os.stat("prog").st_mode), 0o777, "suid and sgid go with another's write")
    os.chmod("prog", 0o4755)
    os.chown("prog", NOBODY, -1)
    expect(stat.S_IMODE(os.stat("prog").st_mode) & 0o6000, 0, "suid goes with a chown")
    os.mkdir("g")
    os.chown("g", 0, NOBODY)
    os.chmod("g", 0o2777)
    put("g/f")
    expect(os.stat("g/f").st_gid, NOBODY, "group from a sgid directory")
    os.mkdir("g/d")
    expect(stat.S_IMODE(os.stat("g/d").st_mode) & 0o2000, 0o2000, "sgid inherited")


def t_times():
    put("f")
    os.utime("f", ns=(1234567890123456789, 987654321987654321))
    st = os.stat("f")
    expect((st.st_atime_ns, st.st_mtime_ns), (1234567890123456789, 987654321987654321))
    os.utime("f", ns=(-1500000001, -2))
    st = os.stat("f")
    expect((st.st_atime_ns, st.st_mtime_ns), (-1500000001, -2), "before 1970")
    os.utime("f", ns=(2 ** 33 * 10 ** 9 + 7, 2 ** 33 * 10 ** 9 + 8))
    st = os.stat("f")
    expect((st.st_atime_ns, st.st_mtime_ns), (2 ** 33 * 10 ** 9 + 7, 2 ** 33 * 10 ** 9 + 8), "after 2106")
    before = os.stat("f").st_ctime_ns
    os.chmod("f", 0o600)
    after = os.stat("f").st_ctime_ns
    if after < before:
        raise AssertionError("ctime goes back")
    d = os.stat(".").st_mtime_ns
    put("g")
    if os.stat(".").st_mtime_ns < d:
        raise AssertionError("mtime of the directory")
    os.utime("f", ns=(5, 6))
    fd = os.open("f", os.O_WRONLY)
    os.write(fd, b"1")
    os.close(fd)
    if os.stat("f").st_mtime_ns == 6:
        raise AssertionError("mtime does not change with a write")
    os.symlink("f", "s")
    os.utime("s", ns=(7, 8), follow_symlinks=False)
    expect(os.lstat("s").st_mtime_ns, 8)


def t_unlink_open():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"kept" * 5000)
    os.unlink("f")
    expect(os.listdir("."), [])
    expect(os.fstat(fd).st_nlink, 0)
    expect(os.pread(fd, 8, 16000), b"keptkept")
    os.pwrite(fd, b"more", 100000)
    expect(os.pread(fd, 4, 100000), b"more")
    os.close(fd)
    os.mkdir("d")
    dfd = os.open("d", os.O_RDONLY)
    os.rmdir("d")
    expect(os.listdir(dfd), [], "removed directory")
    os.close(dfd)


def t_tmpfile():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"unnamed")
    expect(os.listdir("."), [])
    if libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400) != 0:
        raise OSError(ctypes.get_errno(), "linkat")
    os.close(fd)
    expect(get("named"), b"unnamed")
    expect(os.stat("named").st_nlink, 1)


def t_append_truncate():
    fd = os.open("f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for i in range(1000):
        os.write(fd, b"%07d\n" % i)
    expect(os.fstat(fd).st_size, 8000)
    os.truncate("f", 4004)
    os.write(fd, b"tail")
    os.close(fd)
    want = b"".join(b"%07d\n" % i for i in range(1000))[:4004] + b"tail"
    expect(get("f"), want)
    os.truncate("f", 3)
    os.truncate("f", 10000)
    expect(get("f"), want[:3] + b"\0" * 9997, "zeros after a truncate up")
    a = os.open("f", os.O_WRONLY | os.O_APPEND)
    b = os.open("f", os.O_WRONLY | os.O_APPEND)
    for i in range(100):
        os.write(a if i % 2 else b, b"%d" % (i % 10))
    os.close(a)
    os.close(b)
    expect(get("f")[10000:], b"0123456789" * 10, "two appenders")
    fails(errno.EINVAL, os.truncate, "f", -1)


def t_sparse():
    with open("f", "wb") as f:
        f.truncate(100 << 20)
        f.seek(10 << 20)
        f.write(b"x" * 4096)
        f.seek((50 << 20) + 100)
        f.write(b"y")
    fd = os.open("f", os.O_RDWR)
    os.fsync(fd)
    expect(os.fstat(fd).st_size, 100 << 20)
    if os.fstat(fd).st_blocks * 512 > 1 << 20:
        raise AssertionError("a sparse file takes %d blocks" % os.fstat(fd).st_blocks)
    expect(os.lseek(fd, 0, os.SEEK_DATA), 10 << 20)
    expect(os.lseek(fd, 10 << 20, os.SEEK_HOLE), (10 << 20) + 4096)
    expect(os.lseek(fd, (10 << 20) + 4096, os.SEEK_DATA), 50 << 20)
    expect(os.lseek(fd, 0, os.SEEK_HOLE), 0)
    fails(errno.ENXIO, os.lseek, fd, 60 << 20, os.SEEK_DATA)
    expect(os.lseek(fd, 60 << 20, os.SEEK_HOLE), 60 << 20)
    fails(errno.ENXIO, os.lseek, fd, 200 << 20, os.SEEK_HOLE)
    expect(os.pread(fd, 4096, 20 << 20), b"\0" * 4096)
    os.close(fd)
    # What was just written is data, also before it is on the members.
    fd = os.open("g", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"d" * 8192, 1 << 20)
    expect(os.lseek(fd, 0, os.SEEK_DATA), 1 << 20, "SEEK_DATA before fsync")
    os.close(fd)
    big = 1 << 45
    with open("big", "wb") as f:
        f.seek(big)
        f.write(b"end")
    expect(os.stat("big").st_size, big + 3)
    with open("big", "rb") as f:
        f.seek(big - 1)
        expect(f.read(), b"\0end")
    os.unlink("big")


def t_fallocate():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    fallocate(fd, 0, 0, 1 << 20)
    expect(os.fstat(fd).st_size, 1 << 20)
    expect(os.pread(fd, 1 << 20, 0), b"\0" * (1 << 20), "promised space reads as zeros")
    if os.fstat(fd).st_blocks * 512 < 1 << 20:
        raise AssertionError("fallocate promised %d blocks" % os.fstat(fd).st_blocks)
    fallocate(fd, KEEP_SIZE, 1 << 20, 1 << 20)
    expect(os.fstat(fd).st_size, 1 << 20, "keep size")
    os.pwrite(fd, b"z" * 65536, 0)
    os.fsync(fd)
    fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 5000, 20000)
    want = bytearray(b"z" * 65536)
    want[5000:25000] = b"\0" * 20000
    expect(os.pread(fd, 65536, 0), bytes(want), "punched")
    fails(errno.EOPNOTSUPP, fallocate, fd, PUNCH_HOLE, 0, 4096)
    try:
        fallocate(fd, ZERO_RANGE, 0, 4096)
        want[0:4096] = b"\0" * 4096
    except OSError as e:
        expect(e.errno, errno.EOPNOTSUPP, "ZERO_RANGE")
    expect(os.pread(fd, 65536, 0), bytes(want), "zeroed")
    fails(errno.EINVAL, fallocate, fd, 0, 0, 0)
    os.close(fd)


def t_mmap():
    n = 1 << 20
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, n)
    m = mmap.mmap(fd, n)
    m[1000:1005] = b"hello"
    m[n - 1:n] = b"!"
    m.flush()
    expect(os.pread(fd, 5, 1000), b"hello", "read after a mapped write")
    os.pwrite(fd, b"WORLD", 500000)
    expect(m[500000:500005], b"WORLD", "mapped read after a write")
    # Growing and cutting under a mapping.
    os.ftruncate(fd, n // 2)
    os.ftruncate(fd, n)
    expect(m[n - 1:n], b"\0", "what was cut off does not come back")
    expect(os.pread(fd, n // 2, n // 2), b"\0" * (n // 2))
    m[600000:600003] = b"new"
    m.close()
    os.fsync(fd)
    os.close(fd)
    data = get("f")
    expect((data[1000:1005], data[600000:600003]), (b"hello", b"new"))
    # A private mapping changes nothing.
    fd = os.open("f", os.O_RDWR)
    m = mmap.mmap(fd, n, access=mmap.ACCESS_COPY)
    m[0:3] = b"xxx"
    m.close()
    os.close(fd)
    expect(get("f")[:3], b"\0\0\0")
    # Executables are mapped too.
    put("true", get("/bin/true"))
    os.chmod("true", 0o755)
    expect(subprocess.call(["./true"]), 0, "a program on the mount")


def t_mixed_access():
    """Random writes, mapped writes, appends, truncates, punches and reopening against a copy in memory."""
    rng = random.Random(42)
    model = bytearray()
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    for step in range(1500):
        what = rng.randrange(9)
        off = rng.randrange(300000)
        n = int(70000 ** rng.random())
        if what <= 2:
            data = rng.randbytes(n)
            os.pwrite(fd, data, off)
            if len(model) < off + n:
                model.extend(b"\0" * (off + n - len(model)))
            model[off:off + n] = data
        elif what == 3:
            os.ftruncate(fd, off)
            if off < len(model):
                del model[off:]
            else:
                model.extend(b"\0" * (off - len(model)))
        elif what == 4 and len(model) > off:
            m = mmap.mmap(fd, len(model))
            n = min(n, len(model) - off)
            data = rng.randbytes(n)
            m[off:off + n] = data
            model[off:off + n] = data
            if rng.random() < 0.5:
                m.flush()
            m.close()
        elif what == 5:
            a = os.open("f", os.O_WRONLY | os.O_APPEND)
            data = rng.randbytes(n)
            os.write(a, data)
            os.close(a)
            model.extend(data)
        elif what == 6:
            fallocate(fd, PUNCH_HOLE | KEEP_SIZE, off, n)
            end = min(off + n, len(model))
            if end > off:
                model[off:end] = b"\0" * (end - off)
        elif what == 7 and rng.random() < 0.3:
            os.fsync(fd)
            if rng.random() < 0.3:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        elif what == 8:
            got = os.pread(fd, n, off)
            if got != bytes(model[off:off + n]):
                raise AssertionError("step %d: pread(%d, %d) differs" % (step, off, n))
        if len(model) > 500000:
            os.ftruncate(fd, 100000)
            del model[100000:]
        if os.fstat(fd).st_size != len(model):
            raise AssertionError("step %d: size %d, expected %d" % (step, os.fstat(fd).st_size, len(model)))
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    expect(os.pread(fd, 1 << 20, 0) == bytes(model), True, "content at the end")
    os.close(fd)


def t_direct_io():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"b" * (1 << 20))
    os.close(fd)
    fd = os.open("f", os.O_RDWR | os.O_DIRECT)
    m = mmap.mmap(-1, 65536)
    expect(os.preadv(fd, [m], 65536), 65536)
    expect(m[:], b"b" * 65536, "O_DIRECT read")
    m[:] = b"D" * 65536
    expect(os.pwritev(fd, [m], 131072), 65536)
    os.close(fd)
    expect(get("f"), b"b" * 131072 + b"D" * 65536 + b"b" * ((1 << 20) - 196608), "O_DIRECT write")


def t_locks():
    put("f")
    a = open("f", "r+b")
    b = open("f", "r+b")
    fcntl.flock(a, fcntl.LOCK_EX)
    fails(errno.EAGAIN, fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(a, fcntl.LOCK_UN)
    fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
    pid = os.fork()
    if pid == 0:
        try:
            fcntl.lockf(open("f", "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os._exit(0)
        os._exit(1)
    expect(os.waitpid(pid, 0)[1], 0, "a record lock keeps others out")


def t_fsync():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    for i in range(50):
        os.pwrite(fd, b"%d" % i, i * 1000)
        (os.fsync if i % 2 else os.fdatasync)(fd)
    os.close(fd)
    d = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(d)
    os.close(d)
    expect(libc.syncfs(os.open(".", os.O_RDONLY)), 0)


def t_statfs():
    st = os.statvfs(".")
    expect(st.f_namemax, 255)
    if not 0 < st.f_bavail <= st.f_bfree <= st.f_blocks:
        raise AssertionError("blocks: %r" % (st,))
    free = st.f_bfree * st.f_frsize
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.write(fd, random.Random(3).randbytes(8 << 20))
    os.fsync(fd)
    st = os.statvfs(".")
    used = free - st.f_bfree * st.f_frsize
    if not 8 << 20 <= used <= 40 << 20:
        raise AssertionError("8 MiB written, %d bytes fewer free" % used)
    os.close(fd)


def t_many_open():
    fds = [os.open("f%d" % i, os.O_CREAT | os.O_RDWR) for i in range(500)]
    for i, fd in enumerate(fds):
        os.write(fd, b"%d" % i)
    for i, fd in enumerate(fds):
        expect(os.pread(fd, 10, 0), b"%d" % i)
        os.close(fd)


def t_deep():
    here = os.getcwd()
    for _ in range(200):
        os.mkdir("deeper")
        os.chdir("deeper")
    put("bottom", b"b")
    expect(get("bottom"), b"b")
    os.chdir(here)
    expect(len(list(os.walk("."))), 201)


def t_readonly_write():
    put("f", b"x")
    fd = os.open("f", os.O_RDONLY)
    fails(errno.EBADF, os.write, fd, b"y")
    os.close(fd)
    # Written through a descriptor that cannot read, in the middle of a block.
    put("g", b"0123456789" * 1000)
    fd = os.open("g", os.O_WRONLY)
    os.pwrite(fd, b"xx", 5001)
    os.close(fd)
    expect(get("g")[4999:5005], b"90xx34")


def run(top):
    bad = 0
    for name, fn in [(n, f) for n, f in globals().items() if n.startswith("t_")]:
        d = os.path.join(top, name[2:])
        os.mkdir(d)
        os.chdir(d)
        try:
            fn()
            print("PASS %s" % name[2:])
        except Exception as e:
            bad += 1
            line = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.name == name]
            print("FAIL %s: line %s: %s: %s" % (name[2:], line[-1] if line else "?", type(e).__name__, str(e)[:300]))
        sys.stdout.flush()
        os.chdir("/")
    return bad


def facts(top):
    out = {}
    for base, dirs, names in os.walk(top):
        for n in dirs + names:
            path = os.path.join(base, n)
            st = os.lstat(path)
            x = {k: os.getxattr(path, k, follow_symlinks=False).hex()
                 for k in os.listxattr(path, follow_symlinks=False)}
            out[os.path.relpath(path, top)] = [
                st.st_ino, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, st.st_size, st.st_rdev,
                st.st_atime_ns if not stat.S_ISDIR(st.st_mode) and not stat.S_ISLNK(st.st_mode) else 0,
                st.st_mtime_ns, st.st_ctime_ns, st.st_blocks, x,
                os.readlink(path) if stat.S_ISLNK(st.st_mode) else ""]
    return out


def main():
    what, top = sys.argv[1], sys.argv[2]
    os.umask(0o022)
    if what == "run":
        return 1 if run(top) else 0
    # Of what `run` left behind.
    found = facts(top)
    if what == "leave":
        with open(sys.argv[3], "w") as f:
            json.dump(found, f)
        return 0
    with open(sys.argv[3]) as f:
        before = json.load(f)
    now = json.loads(json.dumps(found))
    bad = [p for p in sorted(set(before) | set(now)) if before.get(p) != now.get(p)]
    for p in bad[:10]:
        print("%s:\n  before %r\n  after  %r" % (p, before.get(p), now.get(p)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
