#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A bank in SQLite: processes move money about, the sum stays.

bank.py run DATABASE JOURNAL-MODE TRANSACTIONS   three writers and a reader; prints the number of the last
                                                 transaction known to be durable, now and then
bank.py check DATABASE [ACKED]                   integrity_check, the sum, and that no acknowledged transaction is lost
"""
import ctypes
import os
import random
import sqlite3
import sys

ACCOUNTS = 200
START = 1000
WRITERS = 3


def die_with_parent():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def connect(path):
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    db.execute("PRAGMA synchronous=EXTRA")
    return db


def setup(path, mode):
    db = connect(path)
    got = db.execute("PRAGMA journal_mode=%s" % mode).fetchone()[0]
    if got != mode:
        print("journal_mode is %s, not %s" % (got, mode))
        return False
    db.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER)")
    db.execute("CREATE TABLE IF NOT EXISTS log (n INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT)")
    db.execute("CREATE INDEX IF NOT EXISTS log_text ON log (text)")
    db.execute("BEGIN")
    for i in range(ACCOUNTS):
        db.execute("INSERT OR IGNORE INTO account VALUES (?, ?)", (i, START))
    db.execute("COMMIT")
    db.close()
    return True


def writer(path, seed, count, out):
    rng = random.Random(seed)
    db = connect(path)
    for i in range(count):
        a, b = rng.sample(range(ACCOUNTS), 2)
        n = rng.randrange(50)
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (n, a))
        db.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (n, b))
        cur = db.execute("INSERT INTO log (text) VALUES (?)", ("x" * rng.randrange(3000),))
        last = cur.lastrowid
        if rng.random() < 0.05:
            db.execute("DELETE FROM log WHERE n % 7 = 0 AND n < ?", (last - 100,))
        db.execute("COMMIT")
        if out:
            out.write("%d\n" % last)
            out.flush()
    db.close()


def run(path, mode, count):
    if not setup(path, mode):
        return False
    pids = []
    for w in range(WRITERS):
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            try:
                # Only one of them tells, so that the last line is the newest it knows.
                writer(path, w, count, sys.stdout if w == 0 else None)
                os._exit(0)
            except BaseException as e:
                print("writer: %s: %s" % (type(e).__name__, e), file=sys.stderr)
                os._exit(1)
        pids.append(pid)
    ok = True
    alive = set(pids)
    db = connect(path)
    try:
        while alive:
            total = db.execute("SELECT sum(balance) FROM account").fetchone()[0]
            if total != ACCOUNTS * START:
                print("a reader sees a sum of %d" % total)
                ok = False
            for pid in list(alive):
                got, st = os.waitpid(pid, os.WNOHANG)
                if got:
                    alive.discard(pid)
                    ok = ok and st == 0
        db.close()
    except sqlite3.Error as e:
        print("reader: %s" % e, file=sys.stderr)
        for pid in alive:
            os.waitpid(pid, 0)
        return False
    return ok


def check(path, acked):
    db = connect(path)
    got = [r[0] for r in db.execute("PRAGMA integrity_check")]
    if got != ["ok"]:
        print("\n".join(got[:20]))
        return False
    total = db.execute("SELECT sum(balance) FROM account").fetchone()[0]
    if total != ACCOUNTS * START:
        print("the sum is %d" % total)
        return False
    newest = db.execute("SELECT max(n) FROM log").fetchone()[0] or 0
    if newest < acked:
        print("transaction %d was acknowledged, the newest there is %d" % (acked, newest))
        return False
    return True


def main():
    if sys.argv[1] == "run":
        return 0 if run(sys.argv[2], sys.argv[3], int(sys.argv[4])) else 1
    return 0 if check(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0) else 1


if __name__ == "__main__":
    sys.exit(main())
