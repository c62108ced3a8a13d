# SPDX-License-Identifier: GPL-2.0-or-later
"""Rows and parts: how measurements are taken.

A part is a group of rows over contestants that exist side by side. For each row, one pass goes over all
contestants before the next pass begins, in an order that turns, so that what else happens on the
machine hits all of them.
"""
import re

from machine import Failed, Missing


class Row:
    def __init__(self, name, metric, contestants, measure, ratios=(), unit=None, passes=None, done=None):
        self.name, self.metric, self.contestants = name, metric, contestants
        self.measure, self.ratios = measure, list(ratios)
        self.unit = unit or {"iops": "ops/s", "mibps": "MiB/s"}.get(metric, metric)
        self.passes = passes
        self.done = done # called with the results


class Part:
    def __init__(self, name, sets, rows, contestants, quick=True):
        self.name, self.sets, self.rows, self.contestants = name, sets, rows, contestants
        self.quick = quick # part of --quick even when no row of it is asked for by name

    def run(self, m, report):
        args = m.args
        rows = [r for r in self.rows if re.search(args.only, r.name)]
        if not rows or (args.quick and not self.quick and not args.only):
            return
        m.prepare_part(self)
        state = {}
        try:
            for row in rows:
                self.run_row(row, state, args, report)
        finally:
            for c in reversed(self.contestants):
                if state.get(id(c)):
                    try:
                        c.stop()
                    except Failed as e:
                        report.fail(self.name, c.name, e)
            m.drop_sets()

    def usable(self, c, row, state, args, report):
        if not re.search(args.contestants, c.name):
            return False
        # Like "raid-6 -1", which stands on another.
        base = getattr(c, "volume", None)
        if base is not None and not self.usable(base, row, state, args, report):
            return False
        if id(c) not in state:
            try:
                c.start()
                state[id(c)] = True
            except Missing as e:
                state[id(c)] = False
                report.skip(c.name, str(e))
                c.stop()
            except Failed as e:
                state[id(c)] = False
                report.fail(row.name, c.name, e)
                c.stop()
        return state[id(c)]

    def run_row(self, row, state, args, report):
        who = [c for c in row.contestants if self.usable(c, row, state, args, report)]
        samples = {c.name: [] for c in who}
        for i in range(row.passes or args.passes):
            turn = who[i % len(who):] + who[:i % len(who)] if who else []
            for c in list(turn):
                try:
                    got = row.measure(c)
                    samples[c.name].append((got[row.metric], got))
                except Missing as e:
                    report.skip(f"{row.name}: {c.name}", str(e))
                    who.remove(c)
                except (Failed, OSError, KeyError) as e:
                    report.fail(row.name, c.name, e)
                    who.remove(c)
        results = report.add(row.name, row.unit, samples, row.ratios)
        if row.done:
            row.done(results)
