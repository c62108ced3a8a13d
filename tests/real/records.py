#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writers whose every acknowledged step can be looked for after the daemon was killed.

records.py write DIR ACKS SEED   until the filesystem is gone
records.py verify DIR ACKS       everything acknowledged in ACKS is in DIR, and nothing is torn

ACKS lies outside: a file for each writer says what had been acknowledged, and count.N has a character for
each acknowledgement, so that a script can see them go on. What was written after the last acknowledgement may
be there or not, but whole.
"""
import ctypes
import errno
import os
import random
import struct
import sys
import zlib

# What a system call says when its filesystem has died.
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV, errno.ESHUTDOWN)
HEAD = struct.Struct("<QII")
SLOTS = 48
BLOCK = 4096


def die_with_parent():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def body(n, size):
    return random.Random(n).randbytes(size)


def record(n, size):
    """A record says its number, its length and its sum."""
    data = body(n, size)
    return HEAD.pack(n, size, zlib.crc32(data, n & 0xffffffff)) + data


def parse(data, at):
    """(number, next offset) of the record at `at`, or None where it is torn."""
    if at + HEAD.size > len(data):
        return None
    n, size, crc = HEAD.unpack_from(data, at)
    end = at + HEAD.size + size
    if end > len(data) or zlib.crc32(data[at + HEAD.size:end], n & 0xffffffff) != crc:
        return None
    return n, end


class Acks:
    """Kept by one writer: a dict as text, replaced as a whole (this filesystem does not crash)."""

    def __init__(self, top, name):
        self.path = os.path.join(top, name)
        self.count = os.path.join(top, "count." + name)
        self.values = {}
        if os.path.exists(self.path):
            with open(self.path) as f:
                self.values = dict((k, int(v)) for k, v in (line.split() for line in f))

    def set(self, key, value):
        self.values[key] = value
        with open(self.path + ".new", "w") as f:
            f.writelines("%s %d\n" % kv for kv in self.values.items())
        os.rename(self.path + ".new", self.path)
        with open(self.count, "a") as f:
            f.write("x")


def fsync_path(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---- appended records ----

def append_write(top, acks, rng, name):
    path = os.path.join(top, name)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    # What follows the last whole record was never acknowledged.
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    at, n = 0, 0
    while True:
        got = parse(data, at)
        if not got:
            break
        n, at = got
    os.ftruncate(fd, at)
    if at == 0:
        fsync_path(top)
    while True:
        if at > 6 << 20:
            # Starts over: first the promise is lowered, then the file is emptied.
            acks.set(name, 0)
            acks.set(name + ".reset", acks.values.get(name + ".reset", 0) + 1)
            os.ftruncate(fd, 0)
            os.fsync(fd)
            at = 0
        for _ in range(rng.choice((1, 1, 1, 5, 20))):
            n += 1
            r = record(n, int(30000 ** rng.random()))
            at += os.pwrite(fd, r, at)
        (os.fdatasync if rng.random() < 0.5 else os.fsync)(fd)
        acks.set(name, n)


def append_verify(top, acks, name):
    want = acks.values.get(name, 0)
    if want == 0:
        return
    with open(os.path.join(top, name), "rb") as f:
        data = f.read()
    at, n, first = 0, 0, None
    while True:
        got = parse(data, at)
        if not got:
            break
        if first is not None and got[0] != n + 1:
            yield "%s: record %d follows record %d" % (name, got[0], n)
        first = first or got[0]
        n, at = got
    if n < want:
        yield "%s: record %d was acknowledged, the last whole one is %d at byte %d of %d" % (
            name, want, n, at, len(data))


# ---- slots overwritten in place: each has an old or a new version, whole ----

def slot_write(top, acks, rng, name):
    path = os.path.join(top, name)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if os.fstat(fd).st_size < SLOTS * BLOCK:
        for s in range(SLOTS):
            os.pwrite(fd, record(0, BLOCK - HEAD.size), s * BLOCK)
        os.fsync(fd)
        fsync_path(top)
        acks.set(name, 1)
    version = max([0] + [v for k, v in acks.values.items() if k.startswith("slot")]) + 1000
    while True:
        some = rng.sample(range(SLOTS), rng.choice((1, 1, 2, 8)))
        version += 1
        for s in some:
            os.pwrite(fd, record(version, BLOCK - HEAD.size), s * BLOCK)
        os.fdatasync(fd)
        for s in some:
            acks.values["slot%d" % s] = version
        acks.set(name, 1)


def slot_verify(top, acks, name):
    if not acks.values.get(name):
        return
    with open(os.path.join(top, name), "rb") as f:
        data = f.read()
    if len(data) != SLOTS * BLOCK:
        yield "%s: %d bytes" % (name, len(data))
    for s in range(SLOTS):
        got = parse(data, s * BLOCK)
        want = acks.values.get("slot%d" % s, 0)
        if not got:
            yield "%s: slot %d is torn" % (name, s)
        elif got[0] < want:
            yield "%s: slot %d has version %d, %d was acknowledged" % (name, s, got[0], want)


# ---- files renamed into place ----

def rename_write(top, acks, rng, name):
    d = os.path.join(top, name)
    if not os.path.isdir(d):
        os.mkdir(d)
        fsync_path(top)
    careless = name.endswith("careless")
    version = max([0] + list(acks.values.values())) + 1000
    while True:
        version += 1
        target = "f%d" % rng.randrange(10)
        tmp = os.path.join(d, "tmp.%d" % rng.randrange(3))
        with open(tmp, "wb") as f:
            f.write(record(version, int(300000 ** rng.random())))
            if not careless:
                f.flush()
                os.fsync(f.fileno())
        os.rename(tmp, os.path.join(d, target))
        if not careless:
            fsync_path(d)
            acks.set(target, version)
        elif rng.random() < 0.05:
            fsync_path(d)
            acks.set(target, version)


def rename_verify(top, acks, name):
    d = os.path.join(top, name)
    for target, want in acks.values.items():
        path = os.path.join(d, target)
        if not os.path.exists(path):
            yield "%s/%s: gone, version %d was acknowledged" % (name, target, want)
            continue
    for target in os.listdir(d) if os.path.isdir(d) else []:
        if target.startswith("tmp."):
            continue
        with open(os.path.join(d, target), "rb") as f:
            data = f.read()
        got = parse(data, 0)
        # A name that never had a file before may have one whose data was not asked for to be durable.
        want = acks.values.get(target)
        if not got or got[1] != len(data):
            if want is not None or not name.endswith("careless"):
                yield "%s/%s: torn, %d bytes" % (name, target, len(data))
        elif want is not None and got[0] < want:
            yield "%s/%s: version %d, %d was acknowledged" % (name, target, got[0], want)


# ---- names that come and go ----

def names_write(top, acks, rng, name):
    d = os.path.join(top, name)
    if not os.path.isdir(d):
        os.mkdir(d)
        fsync_path(top)
    n = max([0] + [int(k[1:]) for k in acks.values]) + 1000
    for old in os.listdir(d):
        if "n" + old not in acks.values:
            path = os.path.join(d, old)
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
    live = [int(k[1:]) for k, v in acks.values.items() if v == 1]
    while True:
        n += 1
        path = os.path.join(d, str(n))
        what = rng.randrange(5)
        if what < 3 or not live:
            if what == 0:
                os.mkdir(path)
            elif what == 1:
                os.symlink("to-%d" % n, path)
            else:
                fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                os.write(fd, b"%d" % n)
                os.fsync(fd)
                os.close(fd)
            fsync_path(d)
            live.append(n)
            acks.set("n%d" % n, 1)
        else:
            old = live.pop(rng.randrange(len(live)))
            # From here on it may be there or not.
            acks.set("n%d" % old, 2)
            path = os.path.join(d, str(old))
            os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
            fsync_path(d)
            acks.set("n%d" % old, 0)
        if len(acks.values) > 500:
            for k in [k for k, v in acks.values.items() if v == 0]:
                del acks.values[k]


def names_verify(top, acks, name):
    d = os.path.join(top, name)
    there = set(os.listdir(d)) if os.path.isdir(d) else set()
    for key, state in acks.values.items():
        n = key[1:]
        if state == 1 and n not in there:
            yield "%s/%s: gone" % (name, n)
        if state == 0 and n in there:
            yield "%s/%s: was removed for good" % (name, n)
        if state == 1 and n in there:
            path = os.path.join(d, n)
            if os.path.islink(path):
                if os.readlink(path) != "to-" + n:
                    yield "%s/%s: points to %s" % (name, n, os.readlink(path))
            elif os.path.isfile(path):
                with open(path) as f:
                    got = f.read()
                if got != n:
                    yield "%s/%s: holds %r" % (name, n, got)


WRITERS = [
    ("append1", append_write, append_verify),
    ("append2", append_write, append_verify),
    ("append3", append_write, append_verify),
    ("slots", slot_write, slot_verify),
    ("renames", rename_write, rename_verify),
    ("renames-careless", rename_write, rename_verify),
    ("names", names_write, names_verify),
]


def write(top, where, seed):
    pids = []
    for i, (name, fn, _) in enumerate(WRITERS):
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            try:
                fn(top, Acks(where, name), random.Random(seed * 100 + i), name)
            except OSError as e:
                if e.errno in GONE:
                    os._exit(0)
                print("%s: %s" % (name, e), file=sys.stderr)
            except BaseException as e:
                print("%s: %s: %s" % (name, type(e).__name__, e), file=sys.stderr)
            os._exit(1)
        pids.append(pid)
    return all([os.waitpid(pid, 0)[1] == 0 for pid in pids])


def verify(top, where):
    wrong = 0
    for name, _, fn in WRITERS:
        try:
            for text in fn(top, Acks(where, name), name):
                wrong += 1
                print(text)
        except OSError as e:
            wrong += 1
            print("%s: %s" % (name, e))
    return wrong == 0


def main():
    if sys.argv[1] == "write":
        return 0 if write(sys.argv[2], sys.argv[3], int(sys.argv[4])) else 1
    return 0 if verify(sys.argv[2], sys.argv[3]) else 1


if __name__ == "__main__":
    sys.exit(main())
