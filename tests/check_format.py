#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares the tables of structures in man/trussfs.5 with raid/format.h and fs/format.h.

Every structure whose name ends in _disk (and meta_head) has a table in the page: offset, bytes, field. A
field that is in one and not in the other, or elsewhere, fails; so do constants that the page names with
a value.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = {"le16": 2, "le32": 4, "le64": 8, "uint8_t": 1, "char": 1}


def read(name):
    with open(os.path.join(ROOT, name)) as f:
        return f.read()


def constants(text):
    found = {}
    for name, value in re.findall(r"^#define (\w+)\s+(\(?[^/\n]+?)\s*(?:/\*.*)?$", text, re.M):
        value = re.sub(r"\b(0x[0-9a-f]+|\d+)u?l*\b", r"\1", value)
        value = re.sub(r"\b[A-Z][A-Z0-9_]+\b", lambda m: str(found.get(m.group(0), m.group(0))), value)
        try:
            found[name] = eval(value.replace("/", "//"), {})
        except Exception:
            pass
    return found


def structs(text, known):
    """{name: ([(offset, bytes, field)], size)}"""
    out = {}
    sizes = dict(SIZES, **{"struct uuid": 16})
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.M | re.S):
        at, fields, align = 0, [], 1
        for decl in body.split(";"):
            decl = decl.strip()
            if not decl:
                continue
            m = re.match(r"(struct \w+|\w+)\s+(.*)", decl, re.S)
            unit = sizes[m.group(1)]
            a = min(unit, 8) if not m.group(1).startswith("struct") else (1 if m.group(1) == "struct uuid" else 8)
            for item in m.group(2).split(","):
                f = re.match(r"\s*(\w+)(?:\[(.*)\])?\s*$", item)
                count = 1
                if f.group(2) is not None:
                    expr = re.sub(r"\b[A-Z][A-Z0-9_]+\b", lambda c: str(known[c.group(0)]), f.group(2))
                    count = eval(expr, {})
                if at % a:
                    raise SystemExit("FAIL format: %s.%s: hidden padding" % (name, f.group(1)))
                fields.append((at, unit * count, f.group(1)))
                at += unit * count
                align = max(align, a)
        sizes["struct " + name] = at
        out[name] = (fields, at)
    return out


def page_tables(text):
    """Tables begin with the comment .\\" struct NAME and have rows .It OFFSET Ta BYTES Ta FIELD Ta TEXT."""
    out = {}
    for name, body in re.findall(r'^\.\\" struct (\w+)\n(.*?)^\.El', text, re.M | re.S):
        out[name] = [(int(o), int(n), f) for o, n, f in
                     re.findall(r"^\.It (\d+) Ta (\d+) Ta (\w+)", body, re.M)]
    return out


def main():
    headers = read("raid/base.h") + read("raid/format.h") + read("fs/format.h")
    known = constants(headers)
    wanted = {n: s for n, s in structs(read("raid/format.h") + read("fs/format.h"), known).items()}
    page = read("man/trussfs.5")
    tables = page_tables(page)
    bad = 0
    for name, (fields, size) in wanted.items():
        if name not in tables:
            print("FAIL format: man/trussfs.5 has no table of struct %s" % name)
            bad = 1
        elif tables[name] != fields:
            print("FAIL format: struct %s: only in the header %r, only in the page %r" % (
                name, sorted(set(fields) - set(tables[name])), sorted(set(tables[name]) - set(fields))))
            bad = 1
        else:
            print("PASS format: struct %s, %d bytes" % (name, size))
    for name in set(tables) - set(wanted):
        print("FAIL format: man/trussfs.5 describes struct %s, which is not there" % name)
        bad = 1
    for name, value in re.findall(r"^\.It Dv (\w+) Ta (\w+)", page, re.M):
        if known.get(name) != int(value, 0):
            print("FAIL format: %s is %r in the header, %s in the page" % (name, known.get(name), value))
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
