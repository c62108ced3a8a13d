#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A big file written in random order, with pieces of random sizes, every 4 KiB stamped with its number.

randfile.py write|verify FILE SEED MIB
"""
import os
import random
import struct
import sys

BLOCK = 4096
PIECE = 1 << 20
STAMP = struct.Struct("<QQ")


def base(seed):
    return random.Random(seed).randbytes(PIECE + (64 << 10))


def fill(buf, source, seed, first):
    """Blocks first, first + 1 ... of the file."""
    n = len(buf)
    shift = first * 97 % (64 << 10)
    buf[:] = source[shift:shift + n]
    for i in range(n // BLOCK):
        STAMP.pack_into(buf, i * BLOCK, seed, first + i)


def write(path, seed, mib):
    rng = random.Random(seed + 1)
    source = base(seed)
    pieces = []
    for at in range(0, mib << 20, PIECE):
        # Most are whole pieces; some are cut into blocks that come at other times.
        step = rng.choice((PIECE, PIECE, PIECE, 256 << 10, 128 << 10, 20 << 10))
        pieces += [(p, min(step, at + PIECE - p)) for p in range(at, at + PIECE, step)]
    rng.shuffle(pieces)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    buf = bytearray(PIECE)
    for at, n in pieces:
        view = memoryview(buf)[:n]
        whole = bytearray(PIECE)
        fill(whole, source, seed, at // PIECE * (PIECE // BLOCK))
        view[:] = memoryview(whole)[at % PIECE:at % PIECE + n]
        if os.pwrite(fd, view, at) != n:
            print("short write at %d" % at)
            return False
    os.fsync(fd)
    os.close(fd)
    return True


def verify(path, seed, mib):
    source = base(seed)
    buf = bytearray(PIECE)
    fd = os.open(path, os.O_RDONLY)
    if os.fstat(fd).st_size != mib << 20:
        print("size is %d" % os.fstat(fd).st_size)
        return False
    wrong = 0
    for at in range(0, mib << 20, PIECE):
        got = os.pread(fd, PIECE, at)
        fill(buf, source, seed, at // BLOCK)
        if got != bytes(buf):
            for i in range(0, PIECE, BLOCK):
                if got[i:i + BLOCK] != buf[i:i + BLOCK]:
                    wrong += 1
                    if wrong <= 10:
                        stamp = STAMP.unpack_from(got.ljust(i + BLOCK, b"\0"), i)
                        print("block %d is wrong; its stamp says seed %d block %d" % ((at + i) // BLOCK, *stamp))
    os.close(fd)
    if wrong:
        print("%d blocks are wrong" % wrong)
    return wrong == 0


def main():
    what, path, seed, mib = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    ok = write(path, seed, mib) if what == "write" else verify(path, seed, mib)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
