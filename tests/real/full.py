#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Fills a filesystem and asks of it what must still work.

full.py DIR PREFIX [short|verify|-] [cached]    prints PASS and FAIL lines
"""
import ctypes
import errno
import mmap
import os
import random
import sys

KEPT = 64  # blocks of the file that is overwritten
BLOCK = 4096
SYNC_BYTES = 4 << 20  # with the write-back cache, what may be lost with an error from fsync
KEEP_SIZE, PUNCH_HOLE = 1, 2


class Run:
    def __init__(self, top, prefix, cached):
        self.top, self.prefix, self.cached, self.bad = top, prefix, cached, 0

    def path(self, name):
        return os.path.join(self.top, name)

    def say(self, name, why=None):
        if why is None:
            print("PASS %s%s" % (self.prefix, name))
        else:
            self.bad += 1
            print("FAIL %s%s: %s" % (self.prefix, name, why))
        sys.stdout.flush()

    def fill(self, name, size, direct=False):
        """Writes until ENOSPC; what was accepted then, which must be there.

        ENOSPC comes from write(2); with the kernel's write-back cache from fsync(2) at the latest."""
        late = self.cached and not direct
        total = os.statvfs(self.top)
        limit = total.f_blocks * total.f_frsize * 2
        data = mmap.mmap(-1, size)  # aligned for O_DIRECT
        data.write(random.Random(5).randbytes(size))
        view = memoryview(data)
        written = synced = 0
        lost = False  # the error that is told once
        fd = os.open(self.path(name), os.O_CREAT | os.O_WRONLY | (os.O_DIRECT if direct else 0), 0o644)
        try:
            while written < limit:
                written += os.pwrite(fd, view[written % size:], written)
                if late and written - synced >= SYNC_BYTES:
                    os.fsync(fd)
                    synced = written
            self.say("%s: ENOSPC" % name, "%d bytes went into a filesystem of %d" % (written, limit // 2))
        except OSError as e:
            lost = late
            if e.errno != errno.ENOSPC:
                self.say("%s: ENOSPC" % name, str(e))
        try:
            os.fsync(fd)
            if not lost:
                synced = written
        except OSError as e:
            if not late or e.errno != errno.ENOSPC:
                # In time means: not when it is too late to tell the writer.
                self.say("%s: fsync of what was accepted" % name, str(e))
        finally:
            try:
                os.close(fd)
            except OSError as e:
                if not late or e.errno != errno.ENOSPC:
                    self.say("%s: close" % name, str(e))
        fd = os.open(self.path(name), os.O_RDWR)
        try:
            if lost:
                os.ftruncate(fd, synced)
                os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for at in range(0, synced, size):
                n = min(size, synced - at)
                if os.pread(fd, n, at) != view[:n]:
                    self.say("%s: what was accepted is there" % name, "differs at %d" % at)
                    break
        finally:
            os.close(fd)
        return synced

    def small_files(self, d):
        os.makedirs(self.path(d), exist_ok=True)
        n = 0
        try:
            for n in range(1000000):
                fd = os.open(self.path("%s/%d" % (d, n)), os.O_CREAT | os.O_WRONLY, 0o644)
                try:
                    os.write(fd, b"%300d" % n)
                finally:
                    os.close(fd)
        except OSError as e:
            if e.errno != errno.ENOSPC:
                self.say("small files", str(e))
        for k in range(n):
            with open(self.path("%s/%d" % (d, k)), "rb") as f:
                if f.read() != b"%300d" % k:
                    self.say("small files", "file %d differs" % k)
                    break
        return n

    def holes(self, name):
        """Takes away every other 16 KiB of a file, so that what is free lies between what is used."""
        fd = os.open(self.path(name), os.O_RDWR)
        for at in range(0, os.fstat(fd).st_size, 32768):
            fallocate(fd, PUNCH_HOLE | KEEP_SIZE, at, 16384)
        os.close(fd)


def fallocate(fd, mode, off, length):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_int64(off), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def overwrite(path, seed, rounds):
    """Random blocks of what exists, with fsync: must not fail for space."""
    rng = random.Random(seed)
    fd = os.open(path, os.O_RDWR)
    for i in range(rounds):
        b = rng.randrange(KEPT)
        os.pwrite(fd, random.Random(seed * 100000 + i * 100 + b).randbytes(BLOCK), b * BLOCK)
        if i % 7 == 0:
            os.fsync(fd)
    os.fsync(fd)
    os.close(fd)


def expected(rounds_of):
    blocks = [random.Random(b).randbytes(BLOCK) for b in range(KEPT)]
    for seed, rounds in rounds_of:
        rng = random.Random(seed)
        for i in range(rounds):
            b = rng.randrange(KEPT)
            blocks[b] = random.Random(seed * 100000 + i * 100 + b).randbytes(BLOCK)
    return b"".join(blocks)


def rewrite(path):
    """All of a file that fills what there was, in pieces that fit no row."""
    data = random.Random(6).randbytes(3 * BLOCK)
    fd = os.open(path, os.O_RDWR)
    size = os.fstat(fd).st_size // len(data) * len(data)
    for at in range(0, size, len(data)):
        os.pwrite(fd, data, at)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for at in range(0, size, len(data)):
        if os.pread(fd, len(data), at) != data:
            raise OSError(errno.EIO, "differs at %d" % at)
    os.close(fd)


OVERWRITES = [(11, 300), (12, 300)]


def attempt(run, name, fn, *args):
    try:
        fn(*args)
        run.say(name)
    except OSError as e:
        run.say(name, str(e))


def main():
    top, prefix = sys.argv[1], sys.argv[2]
    mode = sys.argv[3] if len(sys.argv) > 3 else ""
    run = Run(top, prefix, "cached" in sys.argv[4:])
    kept = run.path("kept")

    def sync():
        fd = os.open(top, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    if mode == "verify":
        with open(kept, "rb") as f:
            return 0 if f.read() == expected(OVERWRITES) else 1
    with open(kept, "wb") as f:
        for b in range(KEPT):
            f.write(random.Random(b).randbytes(BLOCK))
        f.flush()
        os.fsync(f.fileno())
    before = os.statvfs(top)
    avail = before.f_bavail * before.f_frsize
    written = run.fill("big", 1 << 20)
    # df does not show space that cannot be written, and not much less than can.
    run.say("df told the truth", None if written >= avail * 0.8 else
            "%d bytes were said to be available, %d went in" % (avail, written))
    if mode == "short":
        return 1 if run.bad else 0
    run.fill("direct", 65536, direct=True)
    run.fill("medium", 50000)
    run.fill("little", 4096)
    run.small_files("small")
    attempt(run, "overwriting what exists, full", overwrite, kept, *OVERWRITES[0])
    attempt(run, "punching holes", run.holes, "big")
    attempt(run, "fsync of the directory", sync)
    run.fill("scattered", 1 << 20)
    attempt(run, "overwriting what is scattered", rewrite, run.path("scattered"))
    attempt(run, "truncate down", os.truncate, run.path("medium"), 100)
    attempt(run, "unlink a big file", os.unlink, run.path("big"))
    attempt(run, "unlink what is scattered", os.unlink, run.path("scattered"))
    attempt(run, "fsync of the directory", sync)
    again = run.fill("big2", 1 << 20)
    run.say("space is given back", None if again >= written * 0.8 else "%d of %d" % (again, written))
    attempt(run, "overwriting, full again", overwrite, kept, *OVERWRITES[1])

    def remove_small():
        for n in os.listdir(run.path("small")):
            os.unlink(run.path("small/" + n))
        os.rmdir(run.path("small"))
    attempt(run, "removing many small files", remove_small)
    with open(kept, "rb") as f:
        run.say("what was overwritten reads right", None if f.read() == expected(OVERWRITES) else "differs")
    return 1 if run.bad else 0


if __name__ == "__main__":
    sys.exit(main())
