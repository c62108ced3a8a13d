# SPDX-License-Identifier: GPL-2.0-or-later
"""What was measured: medians, spreads, ratios; as a table, as JSON, and against what is stored."""
import json
import os
import platform
import statistics

MOVED_MIN = 0.10 # less is noise, whatever the spread says


def median(values):
    return statistics.median(values) if values else None


def spread(values):
    """Between the quartiles, as a part of the median: of three, between the outer ones."""
    if len(values) < 2 or not median(values):
        return 0.0
    v = sorted(values)
    cut = len(v) // 4
    return (v[-1 - cut] - v[cut]) / median(values)


class Ratio:
    """of / (to * factor), which should be at least (or with most: at most) the target. Names of contestants."""

    def __init__(self, of, to, target=None, factor=1.0, most=False, text=None, plus=None):
        self.of, self.to, self.target, self.factor, self.most, self.text = of, to, target, factor, most, text
        self.plus = plus # another contestant, added to `to`

    def name(self):
        return f"{self.of} / {self.text or self.to}"

    def judge(self, results):
        a, b = results.get(self.of), results.get(self.to)
        plus = results.get(self.plus) if self.plus else {"values": [0] * 1000}
        if not a or not b or not plus:
            return None
        # Passes are interleaved, so what disturbs the machine mostly hits both: the ratio of each pass.
        each = [x / ((y + z) * self.factor) for x, y, z in zip(a["values"], b["values"], plus["values"]) if y + z]
        if not each:
            return None
        r = median(each)
        met = None if self.target is None else (r <= self.target if self.most else r >= self.target)
        return {"name": self.name(), "ratio": r, "spread": spread(each), "target": self.target, "most": self.most,
                "met": met}


class Report:
    def __init__(self, quick):
        self.quick = quick
        self.rows = []
        self.skipped = {}
        self.failed = []

    def skip(self, name, why):
        if self.skipped.get(name) != why:
            self.skipped[name] = why
            print(f"skipped {name}: {why}", flush=True)

    def fail(self, row, name, why):
        self.failed.append((row, name, str(why)))
        print(f"FAILED {row}: {name}: {why}", flush=True)

    def add(self, name, unit, samples, ratios):
        """samples: {contestant: [(value, all that was measured)]}"""
        results = {}
        for who, got in samples.items():
            values = [v for v, _ in got]
            if values:
                results[who] = {"median": median(values), "spread": spread(values), "values": values,
                                "detail": [d for _, d in got]}
        judged = [j for j in (r.judge(results) for r in ratios) if j]
        self.rows.append({"row": name, "unit": unit, "results": results, "ratios": judged})
        print(f"\n{name} [{unit}]")
        for who, r in results.items():
            print(f"  {who:<24}{number(r['median']):>12}  +-{r['spread'] * 50:3.0f} %{detail(r['detail'])}")
        for j in judged:
            sign = "<=" if j["most"] else ">="
            want = "" if j["target"] is None else f"  {sign} {j['target']:.2f} {'met' if j['met'] else 'NOT MET'}"
            print(f"    {j['name']:<44}{j['ratio']:8.3f}  +-{j['spread'] * 50:3.0f} %{want}", flush=True)
        return results

    def ratios(self):
        return {r["row"]: {j["name"]: round(j["ratio"], 3) for j in r["ratios"]} for r in self.rows if r["ratios"]}

    def save(self, path):
        uname = platform.uname()
        with open(path, "w") as f:
            json.dump({"version": 1, "quick": self.quick, "kernel": uname.release, "cpus": os.cpu_count(),
                       "load": os.getloadavg(), "rows": self.rows, "skipped": self.skipped,
                       "failed": self.failed}, f, indent=1)

    def store(self, path):
        """Rows that were not measured this time keep what is stored."""
        old = load(path)
        old.update(self.ratios())
        with open(path, "w") as f:
            json.dump(old, f, indent=1, sort_keys=True)
            f.write("\n")

    def compare(self, path):
        old = load(path)
        if not old:
            return
        print(f"\nagainst {path}:")
        moved = False
        for row in self.rows:
            for j in row["ratios"]:
                was = old.get(row["row"], {}).get(j["name"])
                if not was:
                    continue
                change = j["ratio"] / was - 1
                if abs(change) <= max(MOVED_MIN, j["spread"]):
                    continue
                moved = True
                better = (change > 0) != j["most"]
                print(f"  {'better' if better else 'WORSE '} {row['row']}: {j['name']}: {was:.3f} -> {j['ratio']:.3f} "
                      f"({change * 100:+.0f} %)")
        if not moved:
            print("  nothing has moved by more than its spread")

    def summary(self):
        targets = [(r["row"], j) for r in self.rows for j in r["ratios"] if j["target"] is not None]
        missed = [t for t in targets if not t[1]["met"]]
        print(f"\n{len(targets) - len(missed)} of {len(targets)} targets met; {len(self.rows)} rows; "
              f"{len(self.skipped)} contestants skipped; {len(self.failed)} failed to run")
        for name, j in missed:
            print(f"  not met: {name}: {j['name']} = {j['ratio']:.3f} ({'<=' if j['most'] else '>='} {j['target']})")
        for name, why in self.skipped.items():
            print(f"  skipped: {name}: {why}")


def load(path):
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        data = json.load(f)
    if "rows" not in data:
        return data
    return {r["row"]: {j["name"]: j["ratio"] for j in r["ratios"]} for r in data["rows"]}


def number(x):
    if x >= 10000:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 100 else f"{x:.3f}"


def detail(details):
    """Of the latencies and costs, what most ask for: medians."""
    out = []
    for d in ("read", "write"):
        got = [x[d] for x in details if isinstance(x.get(d), dict)]
        if got and any(g["p99_us"] for g in got):
            out.append(f"{d} p50/p99/p99.9 " + "/".join(
                f"{median([g[k] for g in got]):.0f}" for k in ("p50_us", "p99_us", "p999_us")) + " us")
    cpu = [x["cpu_us"] for x in details if x.get("cpu_us")]
    if cpu:
        out.append(f"cpu {median(cpu):.1f} us/op")
    cpu = [x["cpu_us_mib"] for x in details if x.get("cpu_us_mib")]
    if cpu:
        out.append(f"cpu {median(cpu):.0f} us/MiB")
    return "  " + ", ".join(out) if out else ""
