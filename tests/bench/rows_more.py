# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes longer than a look: reviewers' tables, latency against load, jobs under load, ageing, scale.

With --quick these run only when --only names them.
"""
import os
import subprocess
import time

from contestants import Btrfs, Thin, Trussfs, Zfs
from machine import MIB, Failed, Missing, have, run
from report import Ratio
from rows import Part, Row
from rows_mount import fio
from rows_volume import Raw, Volume

TIB = 1 << 40
# name, options of bench-volume: what reviewers of RAID cards print.
TABLE = [
    ("128k seq read", ("-b", 131072, "-q", 16)),
    ("128k seq write", ("-b", 131072, "-q", 16, "-w", 100)),
    ("128k seq 50:50", ("-b", 131072, "-q", 16, "-w", 50)),
    ("4k random read", ("-r", "-q", 64)),
    ("4k random write", ("-r", "-q", 64, "-w", 100)),
    ("4k random 70:30", ("-r", "-q", 64, "-w", 30)),
    ("4k random 90:10", ("-r", "-q", 64, "-w", 10)),
    ("16k random read", ("-r", "-q", 64, "-b", 16384)),
    ("16k random write", ("-r", "-q", 64, "-b", 16384, "-w", 100)),
    ("64k random read", ("-r", "-q", 32, "-b", 65536)),
    ("64k random write", ("-r", "-q", 32, "-b", 65536, "-w", 100)),
]
PRIORITIES = (("host", 0), ("balanced", 50), ("rebuild", 100))


def table_part(m):
    """JBOD (the raw members), RAID 10, 5 and 6: optimal, degraded, rebuilding."""
    raw, volumes = Raw(m), [Volume(m, level) for level in (10, 5, 6)]
    s = m.args.seconds
    rows = []

    def load(options):
        return lambda c: c.load("-s", s, *options)

    def degraded(options):
        def measure(c):
            if c is not raw and not c.degraded:
                m.volume("fail", c.devices)
                c.degraded = 1
            return c.load("-s", s, *options)
        return measure

    def rebuilding(options):
        # As long as the rebuild takes; what it rebuilds onto differs from time to time.
        return lambda c: c.load("-s", s, *options) if c is raw else c.rebuild("-L", *options)

    for state, make in (("optimal", load), ("degraded", degraded), ("rebuilding", rebuilding)):
        if state == "rebuilding" and m.args.members:
            continue # no spare
        for name, options in TABLE:
            metric = "mibps" if "seq" in name or "64k" in name else "iops"
            rows.append(Row(f"table {state} {name}", metric, [raw, *volumes], make(options),
                            [Ratio(v.name, "raw", text="JBOD") for v in volumes]))
    return Part("table", 4, rows, [raw, *volumes], quick=False)


class AtPriority:
    """A volume whose rebuild runs at a priority, under a load or alone."""
    kind = "trussfs"

    def __init__(self, volume, name, priority):
        self.volume, self.name, self.priority = volume, f"{volume.name} {name}", priority

    def start(self):
        pass

    def stop(self):
        pass


def jobs_part(m):
    volume = Volume(m, 6)
    who = [AtPriority(volume, *p) for p in PRIORITIES]
    s = m.args.seconds
    state = {}

    def capacity():
        """What the volume does alone: light and heavy are parts of it."""
        if "iops" not in state:
            state["iops"] = volume.load("-s", s, "-r", "-q", 32)["iops"]
        return state["iops"]

    def rebuild(part, write_percent):
        def measure(c):
            load = ["-L", "-r", "-q", 64, "-w", write_percent, "-R", int(capacity() * part)] if part else []
            got = volume.rebuild("-p", c.priority, *load)
            return {**got, "min/TiB": MIB / got["job_mibps"] / 60}
        return measure

    def p99(c):
        if c is volume:
            got = volume.load("-s", s, "-r", "-q", 64, "-R", int(capacity() * 0.5))
        else:
            got = rebuild(0.5, 0)(c)
        return {**got, "p99_us": got["read"]["p99_us"]}

    rows = [Row(f"rebuild {name}", "min/TiB", who, rebuild(part, w), [
        Ratio(who[2].name, who[0].name, most=True)]) for name, part, w in (
            ("idle", 0, 0), ("under light reads", 0.1, 0), ("under heavy reads", 0.7, 0),
            ("under light 70:30", 0.05, 30), ("under heavy 70:30", 0.3, 30))]
    rows.append(Row("rebuild p99 of 4k reads", "p99_us", [volume, *who], p99,
                    [Ratio(c.name, volume.name, 1.5 if c.priority == 0 else None, most=True) for c in who], unit="us"))
    if m.args.members:
        rows = [] # no spare
    return Part("jobs", 1, rows, [volume, *who], quick=False)


# ---- latency against load ----

def curve_part(m):
    raw, volume = Raw(m), Volume(m, 6)
    thin, truss = Thin(m, "thin"), Trussfs(m, 6)
    s = m.args.seconds
    aio = {"ioengine": "libaio", "direct": 1}
    top = {}

    def at_rate(c, rate):
        if c in (raw, volume):
            return c.load("-r", "-q", 256, "-s", s, *(("-R", rate) if rate else ()))
        more = {"rate_iops": rate, "rate_process": "poisson"} if rate else {}
        return fio(rw="randread", bs="4k", iodepth=128, seconds=s, **aio, **more)(c)

    def measure(pair):
        def one(c):
            if pair[0].name not in top:
                top[pair[0].name] = max(at_rate(x, 0)["iops"] for x in pair)
            points = []
            for percent in (10, 20, 30, 40, 50, 60, 70, 80, 90, 95):
                got = at_rate(c, int(top[pair[0].name] * percent / 100))
                points.append((percent, got["iops"], *(got["read"][k] for k in ("p50_us", "p99_us", "p999_us"))))
            return {"p99_us": points[6][3], "points": points}
        return one

    def draw(name):
        def done(results):
            out = m.args.out or m.work
            os.makedirs(out, exist_ok=True)
            plots = []
            for who, r in results.items():
                path = os.path.join(out, f"{name}.{who}.dat")
                with open(path, "w") as f:
                    f.write("# percent of the most that any can  iops  p50 p99 p99.9 us\n")
                    for p in r["detail"][0]["points"]:
                        f.write(" ".join(f"{x:.1f}" for x in p) + "\n")
                print(f"  {who}: " + "  ".join(f"{p[0]} %: {p[1]:.0f}/s p99 {p[3]:.0f} us" for p in r["detail"][0]["points"]))
                plots += [f"'{path}' using 2:3 with linespoints title '{who} p50'",
                          f"'{path}' using 2:4 with linespoints title '{who} p99'"]
            if not m.args.out:
                return
            if not have("gnuplot"):
                print(f"  no picture: no gnuplot (package gnuplot-nox); the points are in {out}")
                return
            script = (f"set terminal png size 1000,600\nset output '{out}/{name}.png'\nset logscale y\nset grid\n"
                      "set xlabel '4 KiB random reads a second'\nset ylabel 'us'\nset key top left\nplot " +
                      ", ".join(plots) + "\n")
            subprocess.run(["gnuplot"], input=script, text=True, check=False)
            print(f"  picture: {out}/{name}.png")
        return done

    rows = [
        Row("curve volume 4k randread", "p99_us", [raw, volume], measure([raw, volume]),
            [Ratio("raid-6", "raw", most=True)], unit="us at 70 %", passes=1, done=draw("volume")),
        Row("curve mount 4k randread", "p99_us", [thin, truss], measure([thin, truss]),
            [Ratio(truss.name, "thin", most=True)], unit="us at 70 %", passes=1, done=draw("mount")),
    ]
    return Part("curve", 4, rows, [raw, volume, thin, truss], quick=False)


# ---- much data ----

def cold_part(m):
    """More data than the cache of checksum pages covers: each read costs a second one."""
    raw, volume = Raw(m), Volume(m, 6)
    s = m.args.seconds
    # A page covers about 500 blocks: the cache is to hold a sixteenth of what the file needs.
    cache = max(m.args.file_mib / 512 / 16, 0.0625)
    rows = [Row("cold 4k randread qd32", "iops", [raw, volume],
                lambda c: c.load("-s", s, "-r", "-q", 32, *(("-P", cache) if c is volume else ())),
                [Ratio("raid-6", "raw")])]
    return Part("cold", 2, rows, [raw, volume])


def ageing_part(m):
    """Filled to 80 %, overwritten at random three times its size; each rate before and after."""
    truss, btrfs, zfs = Trussfs(m, 6), Btrfs(m, 6), Zfs(m, "zfs-raidz2")
    aio = {"ioengine": "libaio", "direct": 1}
    s = m.args.seconds
    names = ("4k randwrite qd32", "1m write direct qd4", "4k randread qd32", "1m read direct qd4")
    works = {
        names[0]: dict(rw="randwrite", bs="4k", iodepth=32, seconds=s, **aio),
        names[1]: dict(rw="write", bs="1m", iodepth=4, seconds=s, end_fsync=1, **aio),
        names[2]: dict(rw="randread", bs="4k", iodepth=32, seconds=s, **aio),
        names[3]: dict(rw="read", bs="1m", iodepth=4, seconds=s, **aio),
    }
    limit_s = 60 if m.args.quick else 900

    def age(c):
        """Once for each."""
        if hasattr(c, "aged"):
            return c.aged
        path = os.path.join(c.dir, "aged")
        st = os.statvfs(c.dir)
        os.unlink(c.file)
        size = int(st.f_blocks * st.f_frsize * 0.8) // MIB * MIB
        room = os.statvfs(c.dir)
        size = min(size, int(room.f_bavail * room.f_frsize * 0.9) // MIB * MIB)
        c.m.fio(path, rw="write", bs="1m", ioengine="psync", size=size, end_fsync=1)
        c.aged = {"fresh": {k: c.m.fio(path, size=size, **o) for k, o in works.items()}, "aged": {}}
        start = time.monotonic()
        got = c.m.fio(path, rw="randwrite", bs="4k", iodepth=32, size=size, io_size=3 * size, runtime=limit_s, **aio)
        took = time.monotonic() - start
        c.aged["times"] = got["ops"] * 4096 / size
        print(f"  {c.name}: {size // MIB} MiB overwritten {c.aged['times']:.2f} times in {took:.0f} s", flush=True)
        c.aged["aged"] = {k: c.m.fio(path, size=size, **o) for k, o in works.items()}
        return c.aged

    class Fresh:
        kind = "peer"

        def __init__(self, c):
            self.volume, self.name = c, c.name + " fresh"

        def start(self):
            pass

        stop = start

    fresh = [Fresh(c) for c in (truss, btrfs, zfs)]

    def measure(work):
        def one(c):
            which = "fresh" if isinstance(c, Fresh) else "aged"
            return age(c.volume if isinstance(c, Fresh) else c)[which][work]
        return one

    rows = [Row(f"ageing {n}", "mibps" if "1m" in n else "iops", [truss, fresh[0], btrfs, fresh[1], zfs, fresh[2]],
                measure(n), [Ratio(truss.name, fresh[0].name, 0.5), Ratio(truss.name, btrfs.name, 1.0),
                             Ratio(truss.name, zfs.name, 1.0), Ratio(btrfs.name, fresh[1].name),
                             Ratio(zfs.name, fresh[2].name)], passes=1) for n in names]
    return Part("ageing", 3, rows, [truss, btrfs, zfs, *fresh], quick=False)


class Itself:
    kind = "trussfs"
    name = "trussfs"

    def start(self):
        pass

    stop = start


def run_measured(*args):
    """Seconds, and the most memory in MiB."""
    start = time.monotonic()
    p = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    out, err = p.stdout.read(), p.stderr.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise Failed(f"{args[0]}: exit {p.returncode}: {err[-300:]}{out[-300:]}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def scale_part(m):
    me, truss = Itself(), Trussfs(m, 6)
    counts = (10000,) if m.args.quick else (10000, 100000, 1000000)
    blocks = () if m.args.quick else (1, 10, 100)

    def sparse():
        where = os.path.join(m.where or m.work, "sparse")
        os.makedirs(where, exist_ok=True)
        paths = [os.path.join(where, f"m{i}") for i in range(16)]
        for p in paths:
            with open(p, "ab") as f:
                f.truncate(16 * TIB)
        return paths

    def mkfs(c):
        s, mib = run_measured(m.tool("mkfs.trussfs"), "-f", "-r", 6, *sparse())
        return {"s": s, "MiB": mib}

    def opened(c):
        paths = sparse()
        if not getattr(me, "made", False):
            mkfs(c)
            me.made = True
        s, mib = run_measured(m.driver("bench-volume"), "open", *paths)
        return {"s": s, "MiB": mib}

    def limit(row, metric, most):
        class Most:
            name = "target"
            kind = "limit"

            def start(self):
                pass
            stop = start
        target = Most()
        measure = row
        return [me, target], lambda c: {metric: most} if c is target else measure(c), \
            [Ratio("trussfs", "target", 1.0, most=True)], [target]

    rows, extra = [], []
    for name, fn, metric, most in (("scale mkfs of 16 x 16 TiB", mkfs, "s", 5), ("scale open of 16 x 16 TiB", opened, "s", 2),
                                   ("scale open of 16 x 16 TiB, memory", opened, "MiB", 512)):
        who, measure, ratios, more = limit(fn, metric, most)
        rows.append(Row(name, metric, who, measure, ratios))
        extra += more

    def files(count, what):
        def measure(c):
            if not hasattr(c, "scaled"):
                c.scaled = {}
            if count not in c.scaled:
                c.scaled[count] = scale_files(c, count)
            return {"us": c.scaled[count][what], **c.scaled[count]}
        return measure

    for count in counts:
        for what in ("create", "stat", "unlink"):
            rows.append(Row(f"scale {what} of {count} files", "us", [truss], files(count, what), unit="us each", passes=1))

    def volume_blocks(millions):
        def measure(c):
            need = int(millions * 1e6 * 4096 * m.count / (m.count - 2) * 1.25)
            if m.args.members or need // m.count > m.member_bytes:
                raise Missing(f"members of {need // m.count // MIB} MiB are needed: --member-mib, --disk")
            v = Volume(m, 6)
            v.name = f"scale-{millions}"
            devices = m.set(v.name)
            try:
                m.volume("format", devices, "-l", 6)
                m.volume("fill", devices, "-f", millions * 1e6 * 4096 / MIB, timeout=7200)
                s, mib = run_measured(m.driver("bench-volume"), "open", *devices)
                got = m.volume("volume", devices, "-r", "-q", 32, "-s", m.args.seconds)
                return {**got, "us": 1e6 / got["iops"], "open_s": s, "MiB": mib}
            finally:
                m.drop_set(v.name)
        return measure

    for millions in blocks:
        rows.append(Row(f"scale 4k randread of {millions} million blocks", "us", [me], volume_blocks(millions),
                        unit="us each", passes=1))
    return Part("scale", 2, rows, [me, truss, *extra])


def scale_files(c, count):
    """Empty files, 1000 a directory: microseconds for each, and the memory of the daemon."""
    root = os.path.join(c.dir, f"scale.{count}")
    os.mkdir(root)
    names = [f"{root}/{i // 1000}/{i}" for i in range(count)]

    def create():
        for i, n in enumerate(names):
            if i % 1000 == 0:
                os.mkdir(f"{root}/{i // 1000}")
            os.close(os.open(n, os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    took = {}
    for what, fn in (("create", create), ("stat", lambda: [os.stat(n) for n in names]),
                     ("unlink", lambda: [os.unlink(n) for n in names])):
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("2\n")
        start = time.monotonic()
        fn()
        took[what] = (time.monotonic() - start) * 1e6 / count
    with open(f"/proc/{c.pid}/status") as f:
        took["MiB"] = next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM"))
    print(f"  {count} files: the daemon had at most {took['MiB']:.0f} MiB", flush=True)
    run("rm", "-rf", root)
    return took
