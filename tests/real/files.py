#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A tree of files whose names and bytes follow from a seed: written, and compared byte for byte.

files.py write|verify DIR SEED COUNT BYTES-MAX
"""
import os
import random
import sys

SHOWN_MAX = 10


def plan(seed, count, bytes_max):
    """Yields (path, size, seed of the content)."""
    rng = random.Random(seed)
    for i in range(count):
        path = "d%d/e%d/f%d" % (i % 7, i % 31, i)
        # Sizes over all orders of magnitude, and some at the edges of blocks.
        size = int(bytes_max ** rng.random())
        if rng.random() < 0.2:
            size = size // 4096 * 4096 + rng.choice((0, 1, 4095))
        yield path, min(size, bytes_max), rng.getrandbits(48)


def content(seed, size):
    return random.Random(seed).randbytes(size)


def write(top, seed, count, bytes_max):
    for path, size, s in plan(seed, count, bytes_max):
        path = os.path.join(top, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(content(s, size))


def verify(top, seed, count, bytes_max):
    wrong = 0
    want = set()
    for path, size, s in plan(seed, count, bytes_max):
        want.add(path)
        try:
            with open(os.path.join(top, path), "rb") as f:
                got = f.read()
        except OSError as e:
            got = None
            why = str(e)
        if got is not None and got != content(s, size):
            expected = content(s, size)
            at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), size))
            why = "%s: %d bytes of %d, first difference at %d" % (path, len(got), size, at)
            got = None
        if got is None:
            wrong += 1
            if wrong <= SHOWN_MAX:
                print(why)
    for base, _, names in os.walk(top):
        for name in names:
            path = os.path.relpath(os.path.join(base, name), top)
            if path not in want:
                wrong += 1
                if wrong <= SHOWN_MAX:
                    print("%s: should not exist" % path)
    if wrong:
        print("%d of %d files are wrong" % (wrong, count))
    return wrong == 0


def main():
    what, top, seed, count, bytes_max = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    if what == "write":
        write(top, seed, count, bytes_max)
        return 0
    return 0 if verify(top, seed, count, bytes_max) else 1


if __name__ == "__main__":
    sys.exit(main())
