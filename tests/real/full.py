#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Fills a filesystem and asks of it what must still work.

full.py DIR PREFIX [short|verify]    prints PASS and FAIL lines
"""
import errno
import os
import random
import sys

KEPT = 64  # blocks of the file that is overwritten
BLOCK = 4096


class Run:
    def __init__(self, top, prefix):
        self.top, self.prefix, self.bad = top, prefix, 0

    def path(self, name):
        return os.path.join(self.top, name)

    def say(self, name, why=None):
        if why is None:
            print("PASS %s%s" % (self.prefix, name))
        else:
            self.bad += 1
            print("FAIL %s%s: %s" % (self.prefix, name, why))
        sys.stdout.flush()

    def fill(self, name, size):
        """Writes until ENOSPC; what was written then."""
        total = os.statvfs(self.top)
        limit = total.f_blocks * total.f_frsize * 2
        data = random.Random(5).randbytes(size)
        written = 0
        fd = os.open(self.path(name), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        try:
            while written < limit:
                written += os.write(fd, data)
            self.say("%s: ENOSPC" % name, "%d bytes went into a filesystem of %d" % (written, limit // 2))
        except OSError as e:
            if e.errno != errno.ENOSPC:
                self.say("%s: ENOSPC" % name, str(e))
        try:
            os.fsync(fd)
        except OSError as e:
            # In time means: not when it is too late to tell the writer.
            self.say("%s: fsync of what was accepted" % name, str(e))
        finally:
            try:
                os.close(fd)
            except OSError as e:
                self.say("%s: close" % name, str(e))
        return written

    def small_files(self, d):
        os.makedirs(self.path(d), exist_ok=True)
        n = 0
        try:
            for n in range(1000000):
                fd = os.open(self.path("%s/%d" % (d, n)), os.O_CREAT | os.O_WRONLY, 0o644)
                try:
                    os.write(fd, b"x" * 300)
                finally:
                    os.close(fd)
        except OSError as e:
            if e.errno != errno.ENOSPC:
                self.say("small files", str(e))
        return n


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
    run = Run(top, prefix)
    kept = run.path("kept")
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
    run.fill("medium", 50000)
    run.fill("little", 4096)
    run.small_files("small")
    attempt(run, "overwriting what exists, full", overwrite, kept, *OVERWRITES[0])
    attempt(run, "truncate down", os.truncate, run.path("medium"), 100)
    attempt(run, "unlink a big file", os.unlink, run.path("big"))

    def sync():
        fd = os.open(top, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
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
