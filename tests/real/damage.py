#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Overwrites 4 KiB blocks of a member with random bytes, where something is stored.

damage.py FILE SEED COUNT [--from BYTE] [--to BYTE] [--at BYTE]...

Without --at the places are drawn from the parts of the file that were ever written (SEEK_DATA), within
--from and --to; of a block device, from all of it. Prints how many blocks were overwritten.
"""
import argparse
import os
import random
import stat
import sys

BLOCK = 4096


def extents(fd, size):
    """Written parts of the file."""
    if stat.S_ISBLK(os.fstat(fd).st_mode):
        return [(0, size)]
    found = []
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, end))
        at = end
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("file")
    p.add_argument("seed", type=int)
    p.add_argument("count", type=int)
    p.add_argument("--from", dest="start", type=int, default=0)
    p.add_argument("--to", type=int, default=None)
    p.add_argument("--at", type=int, action="append", default=[])
    a = p.parse_args()
    rng = random.Random(a.seed)
    fd = os.open(a.file, os.O_RDWR)
    size = os.lseek(fd, 0, os.SEEK_END)
    to = size if a.to is None else min(a.to, size)
    blocks = set(at // BLOCK for at in a.at)
    if not blocks:
        # Runs of whole blocks, and draw from their concatenation.
        runs = []
        for s, e in extents(fd, size):
            s = max(s, a.start) // BLOCK
            e = min(e, to) // BLOCK
            if e > s:
                runs.append((s, e - s))
        total = sum(n for _, n in runs)
        for i in sorted(rng.sample(range(total), min(a.count, total))):
            for s, n in runs:
                if i < n:
                    blocks.add(s + i)
                    break
                i -= n
    for b in sorted(blocks):
        os.pwrite(fd, rng.randbytes(BLOCK), b * BLOCK)
    os.fsync(fd)
    # What the daemon reads past the page cache must be what was written here.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    print(len(blocks))
    return 0 if blocks else 1


if __name__ == "__main__":
    sys.exit(main())
