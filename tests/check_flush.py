#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""W6: every flush of a member names, in a comment that says W6, the crash it is there for.

The comment stands within LINES lines before the call, in the same function. What carries flushes out
(raid/io.c, and the two functions that the others call) has none of its own.
"""
import glob
import os
import re
import sys

LINES = 14
CALL = re.compile(r"\b(io_flush|io_flush_sync|journal_flush_members|flush_members|journal_flush_before_replay)\(")
CARRIERS = {"raid/journal.c": ("flush_members", "journal_flush_members", "journal_flush_before_replay"), "raid/io.c": None}


def wrong(path):
    carriers = CARRIERS.get(path, ())
    if carriers is None:
        return []
    found, function, start = [], "", 0
    with open(path) as f:
        lines = f.read().splitlines()
    for n, line in enumerate(lines):
        m = re.match(r"[a-z].*?\b([a-z_0-9]+)\([^;]*$", line)
        if m:
            function, start = m.group(1), n
            continue
        if not CALL.search(line) or line.lstrip().startswith(("*", "/*")) or function in carriers:
            continue
        if "W6" not in "\n".join(lines[max(start, n - LINES):n]):
            found.append("%s:%d: %s" % (path, n + 1, line.strip()))
    return found


os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
bad = [w for path in sorted(glob.glob("raid/*.c")) for w in wrong(path)]
if bad:
    print("FAIL flush: no comment names the crash (W6):")
    print("\n".join("    " + w for w in bad))
else:
    print("PASS flush: every flush names the crash it is there for")
sys.exit(1 if bad else 0)
