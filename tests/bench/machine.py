# SPDX-License-Identifier: GPL-2.0-or-later
"""Members, mounts and processes of a benchmark run, and taking all of them away again.

A set is the members of one contestant. Contestants stand side by side, each on its own set, so that they
can be measured in turn. Sets are loop devices over files on a tmpfs of our own, or on a disk; of
real devices each set gets a partition that only the kernel knows of (addpart), nothing is
written for it.
"""
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))
SRC = os.path.dirname(os.path.dirname(HERE))


class Failed(Exception):
    """Something did not run."""


class Missing(Exception):
    """A contestant is not there: the reason."""


def run(*args, timeout=600, **kw):
    try:
        p = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           stdin=subprocess.DEVNULL, timeout=timeout, text=True, **kw)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"{args[0]}: no end within {timeout} s") from e
    except FileNotFoundError as e:
        raise Failed(f"{args[0]}: not found") from e
    if p.returncode:
        raise Failed(f"{' '.join(map(str, args))}: exit {p.returncode}: {(p.stderr + p.stdout).strip()[-600:]}")
    return p.stdout


def have(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def need(program, package):
    if not have(program):
        raise Missing(f"no {program} (package {package})")


def mounted(path):
    with open("/proc/self/mountinfo") as f:
        return any(line.split()[4] == path for line in f)


def memory_available():
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise Failed("no MemAvailable in /proc/meminfo")


class Cleanup:
    """Last in, first out, on every way out."""

    def __init__(self):
        self.stack = []
        atexit.register(self.all)
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, lambda n, frame: sys.exit(128 + n))

    def push(self, fn, *args):
        item = (fn, args)
        self.stack.append(item)
        return item

    def now(self, item):
        if item in self.stack:
            self.stack.remove(item)
            item[0](*item[1])

    def all(self):
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, signal.SIG_IGN)
        while self.stack:
            fn, args = self.stack.pop()
            try:
                fn(*args)
            except (Failed, OSError) as e:
                print(f"cleaning up: {e}", file=sys.stderr)


def stop_process(p, seconds=120):
    """Ends a child that should end by itself by now."""
    try:
        p.wait(seconds)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()


def cpu_seconds(pid):
    """User and system time of a process and what it is made of."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Machine:
    def __init__(self, args):
        self.args = args
        self.cleanup = Cleanup()
        self.work = tempfile.mkdtemp(prefix="trussfs-bench.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.cleanup.push(lambda: shutil.rmtree(self.work, ignore_errors=True))
        self.sets = {}
        self.slots = {}
        self.count = len(args.members) or args.count
        self.where = self.room_item = None
        self.member_bytes = args.member_mib * MIB
        self.bin = self.find_build()
        os.environ["TRUSSFS_RUNDIR"] = os.path.join(self.work, "run")

    def find_build(self):
        """The directory of a build: $TRUSSFS_BUILD, or build/."""
        build = os.environ.get("TRUSSFS_BUILD", os.path.join(SRC, "build"))
        if not os.path.exists(os.path.join(build, "tests/bench/bench-volume")):
            raise Failed(f"{build}: nothing built there: meson setup build && ninja -C build, or set TRUSSFS_BUILD")
        return build

    def tool(self, name):
        return os.path.join(self.bin, "tools", name)

    def driver(self, name):
        return os.path.join(self.bin, "tests/bench", name)

    # ---- members ----

    def prepare_part(self, part):
        """Room for the sets of a part; member_bytes is what fits."""
        a, sets = self.args, part.sets
        if self.room_item:
            self.cleanup.now(self.room_item)
        if a.members:
            sizes = [int(run("blockdev", "--getsize64", d)) for d in a.members]
            self.member_bytes = (min(sizes) - 2 * MIB) // sets // MIB * MIB
            self.slots = {i: None for i in range(sets)}
            return
        if a.disk:
            free = shutil.disk_usage(a.disk).free
            self.where = tempfile.mkdtemp(prefix="trussfs-bench.", dir=a.disk)
            self.room_item = self.cleanup.push(shutil.rmtree, self.where, True)
            room = free // 2
        else:
            self.where = os.path.join(self.work, "members")
            os.makedirs(self.where, exist_ok=True)
            room = int(memory_available() * 0.65)
        fits = room // sets // (self.count + 1) // MIB * MIB
        self.member_bytes = min(a.member_mib * MIB, fits)
        if self.member_bytes < 256 * MIB:
            raise Failed(f"no room: {sets} sets of {self.count} members of 256 MiB do not fit into {room // MIB} MiB")
        if not a.disk:
            size = sets * (self.count + 1) * self.member_bytes + 64 * MIB
            run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "trussfs-bench", self.where)
            self.room_item = self.cleanup.push(run, "umount", self.where)

    def loop(self, path, size):
        with open(path, "wb") as f:
            f.truncate(size)
        dev = run("losetup", "--find", "--show", "--direct-io=on", path).strip()
        return dev, self.cleanup.push(self.loop_gone, dev, path)

    def loop_gone(self, dev, path):
        try:
            run("losetup", "-d", dev)
        finally:
            os.unlink(path)

    def partition(self, device, slot):
        start = 2048 + slot * self.member_bytes // 512
        run("addpart", device, slot + 1, start, self.member_bytes // 512)
        node = f"{device}p{slot + 1}" if device[-1].isdigit() else f"{device}{slot + 1}"
        item = self.cleanup.push(run, "delpart", device, slot + 1)
        run("wipefs", "-a", node)
        return node, item

    def set(self, name, count=None, size=0):
        """The devices of the set of this name, of at least the size if they are ours; made when first asked for."""
        if name not in self.sets:
            count = count or self.count
            if self.args.members:
                free = [s for s, n in self.slots.items() if n is None]
                if not free:
                    raise Failed("more sets than prepared for")
                self.slots[free[0]] = name
                got = [self.partition(d, free[0]) for d in self.args.members[:count]]
            else:
                got = [self.loop(os.path.join(self.where, f"{name}.{i}"), max(size, self.member_bytes)) for i in range(count)]
            self.sets[name] = got
        return [dev for dev, _ in self.sets[name]]

    def drop_set(self, name):
        for _, item in reversed(self.sets.pop(name, [])):
            self.cleanup.now(item)
        for s, n in self.slots.items():
            if n == name:
                self.slots[s] = None

    def drop_sets(self):
        for name in list(self.sets):
            self.drop_set(name)

    # ---- drivers ----

    def volume(self, work, devices, *options, timeout=600):
        """One run of bench-volume: its answer, or None if it has none."""
        out = run(self.driver("bench-volume"), work, *options, *devices, timeout=timeout).strip()
        return json.loads(out.splitlines()[-1]) if out else None

    def fio(self, path, seconds=None, timeout=900, **options):
        """One run of fio: the sums of reads and writes."""
        args = {"name": "bench", "filename": path, "randrepeat": 0, "norandommap": 1, "group_reporting": 1,
                "thread": 1, "output-format": "json", "percentile_list": "50:99:99.9", **options}
        if seconds:
            args.update(runtime=seconds, time_based=1)
        out = run("fio", *[f"--{k.replace('__', '-')}={v}" for k, v in args.items()], timeout=timeout, cwd=self.work)
        job = json.loads(out[out.index("{"):])["jobs"][0]
        if job["error"]:
            raise Failed(f"fio {path}: {os.strerror(job['error'])}")
        ret = {"iops": 0.0, "mibps": 0.0}
        for d in ("read", "write"):
            if not job[d]["total_ios"]:
                continue
            # What end_fsync takes counts: fio's own rate leaves it out.
            ms = max(job["job_runtime"] / max(int(args.get("numjobs", 1)), 1), job[d]["runtime"])
            p = job[d]["clat_ns"].get("percentile", {})
            one = {"iops": job[d]["total_ios"] * 1000 / ms, "p50_us": p.get("50.000000", 0) / 1000,
                   "p99_us": p.get("99.000000", 0) / 1000, "p999_us": p.get("99.900000", 0) / 1000}
            ret[d] = one
            ret["ops"] = ret.get("ops", 0) + job[d]["total_ios"]
            ret["iops"] += one["iops"]
            ret["mibps"] += job[d]["io_bytes"] / MIB * 1000 / ms
        return ret


def wait_for(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.02)
