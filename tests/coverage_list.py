#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""coverage_list.py SOURCE COVERAGE.json MINIMUM: lines covered of each file, and what was not covered,
function by function, with its reason from tests/coverage.reasons. 1 below the minimum."""
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
            m = re.match(r"[a-z_][\w\s*]*?\b(\w+)\(", line)
            if m and not line.rstrip().endswith(";"):
                name = m.group(1)
            names.append(name)
    return names


# Lines that do nothing but hand an error upwards or leave: reached when memory or a device fails at
# that one place. The tests that fail the n-th allocation and the n-th I/O sample them.
PASSES_ON = re.compile(r"""\s*(return\s+(-E\w+|r|e|err|error|NULL|false|-errno|-1|0)?;|return;|goto\s+\w+;|break;|continue;|\}|
                       r = -E\w+;|err = -E\w+;|errno\b.*;|mem_free\(.*\);|buf_put\(.*\);)\s*(/\*.*)?$""", re.X)


def only_passes_on(path, numbers):
    with open(os.path.join(source, path), encoding="utf-8") as f:
        text = f.read().split("\n")
    return all(PASSES_ON.match(text[n - 1]) for n in numbers)


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
            key = (path, name) if (path, name) in why else (path, "*")
            used.add(key)
            reason = why.get(key) or (
                "passes an error on" if only_passes_on(path, numbers) else None)
            if not reason:
                silent += len(numbers)
            text = ",".join(map(str, numbers))
            listing.append(f"{path}:{name}: {text}: {reason or 'NO REASON'}")
    print("\n".join(rows))
    print("\nNot covered (file:function: lines: reason):")
    print("\n".join(listing))
    for file, function in sorted(set(why) - used):
        print(f"{file}:{function}: has a reason, and is covered")
    percent = 100 * covered / max(total, 1)
    print(f"\n{covered} of {total} lines of raid/ and fs/: {percent:.1f} %, at least {minimum:g} %"
          f" expected; {silent} lines without a reason")
    return 0 if percent >= minimum else 1


sys.exit(main())
