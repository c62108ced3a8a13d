#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""coverage_list.py SOURCE COVERAGE.json MINIMUM: lines covered of each file, and what was not covered,
function by function, with its reason from tests/coverage.reasons. 1 below the minimum, or when a line has no reason."""
import json
import os
import re
import sys

source, report, minimum = sys.argv[1], sys.argv[2], float(sys.argv[3])


def reasons():
    """{(file, function): reason}; '*' stands for every function of a file."""
    found = {}
    with open(os.path.join(source, "tests/coverage.reasons"), encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                file, function, reason = line.strip().split(":", 2)
                found[file.strip(), function.strip()] = reason.strip()
    return found


def functions(path):
    """The name of the function that each line belongs to: definitions begin in the first column."""
    names, name = [""], "(file)"
    with open(os.path.join(source, path), encoding="utf-8") as f:
        for line in f:
            m = re.match(r"(?:__attribute__\(\(.*\)\) )?[a-z_][\w\s*]*?\b(\w+)\(", line)
            if m and not line.rstrip().endswith(";"):
                name = m.group(1)
            names.append(name)
    return names


# A block of lines that does nothing but tell of an error and hand it upwards, behind a test for one: reached when memory
# or a device fails at that one place. trussfs-nth, which fails the n-th allocation and the n-th I/O, samples them.
ERROR = r"(?:r|e|err|error|rc|\w+->error)"
PASSES_ON = re.compile(rf"""\s*(return\s+(-E\w+|-errno|{ERROR}|NULL|false|-1);|goto\s+\w+;|
                       ({ERROR}|\*ret)\s*=\s*(-E\w+|-errno|NULL|err|e|r);|log_(error|warning)\(.*|
                       (mem_free|buf_put|co_mutex_unlock|rows_free|page_put\w*)\(.*\);)\s*(/\*.*)?$""", re.X)
LEAVES = re.compile(rf"\s*(return\b|goto\b|{ERROR} = )")
ERROR_TEST = re.compile(rf"if \(({ERROR}|result|\w+ && {ERROR}|!?\w+->error)( == -E\w+| < 0)?\)|\bif \(\w+\(.*\) < 0\)( {{)?$")
CALL = re.compile(r"if \(\w+\(.*\)\)( {)?$")
NO_MEMORY = re.compile(r"if \(!")
ALLOCATES = re.compile(r"= .*(alloc|buf_get|_new|stack_get|strdup)\w*\(")
ASSERTS = re.compile(r"\s*assert\((false|!\")")


def automatic(text, block):
    """The reason that a block of lines behind each other carries in itself, or None."""
    lines = [text[n - 1] for n in block]
    guard = text[block[0] - 2].strip()
    before = "\n".join(text[max(block[0] - 7, 0):block[0] - 2])
    if ASSERTS.match(lines[0]) and len(lines) <= 2:
        return "cannot be, unless by a mistake of ours: asserted"
    if [x.strip() for x in lines] == ["return -EBADMSG;"]:
        return "refuses bytes that only damage below the checksums, or a mistake of ours, can write"
    if [x.strip() for x in lines] == ["return -EROFS;"] and "read_only" in guard:
        return "refuses a change of what is open read only: the kernel, and the tools, do before us"
    if [x.strip() for x in lines] == ["break;"] and guard in ("if (err)", "if (e)", "if (r)"):
        return "passes an error on"
    if not all(PASSES_ON.match(x) for x in lines) or not LEAVES.match(lines[-1]):
        return None
    if CALL.match(guard) and re.search(r"(-errno|-ENOMEM|failed);", lines[-1]):
        return "passes an error on"
    if ERROR_TEST.search(guard) or NO_MEMORY.search(guard) and ALLOCATES.search(before):
        return "passes an error on"
    return None


def split(path, numbers):
    """{reason or None: lines} of the uncovered lines of a function."""
    with open(os.path.join(source, path), encoding="utf-8") as f:
        text = f.read().split("\n")
    found, block = {}, []
    for n in numbers + [0]:
        if block and n != block[-1] + 1:
            found.setdefault(automatic(text, block), []).extend(block)
            block = []
        block.append(n)
    return found


def main():
    why = reasons()
    used, silent = set(), 0
    total = covered = 0
    rows, listing = [], []
    with open(report, encoding="utf-8") as f:
        files = json.load(f)["files"]
    for file in sorted(files, key=lambda x: x["file"]):
        path = file["file"]
        lines = [x for x in file["lines"] if not x.get("gcovr/noncode")]
        missed = [x["line_number"] for x in lines if not x["count"]]
        total += len(lines)
        covered += len(lines) - len(missed)
        if lines:
            rows.append(f"{path:24} {len(lines):6} {100 * (1 - len(missed) / len(lines)):6.1f} %")
        names = functions(path)
        by_name = {}
        for n in missed:
            by_name.setdefault(names[n], []).append(n)
        for name, numbers in by_name.items():
            for auto, some in split(path, numbers).items():
                key = (path, name) if (path, name) in why else (path, "*")
                reason = auto or why.get(key)
                if not auto:
                    used.add(key)
                if not reason:
                    silent += len(some)
                text = ",".join(map(str, some))
                listing.append(f"{path}:{name}: {text}: {reason or 'NO REASON'}")
    print("\n".join(rows))
    print("\nNot covered (file:function: lines: reason):")
    print("\n".join(listing))
    for file, function in sorted(set(why) - used):
        print(f"{file}:{function}: has a reason, and is covered")
    percent = 100 * covered / max(total, 1)
    print(f"\n{covered} of {total} lines of raid/ and fs/: {percent:.1f} %, at least {minimum:g} %"
          f" expected; {silent} lines without a reason")
    return 0 if percent >= minimum and not silent else 1


sys.exit(main())
