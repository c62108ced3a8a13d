# SPDX-License-Identifier: GPL-2.0-or-later
"""What a mount does, by fio and by plain system calls."""
import os
import time

from contestants import Bindfs, Btrfs, Ext4, Null, RawFsync, Thin, Trussfs, Zfs
from machine import MIB, run
from report import Ratio
from rows import Part, Row

BURST_MIB = 48 # within the write buffer
FILES = 2000
TREE_DIRS, TREE_FILES = 40, 1500


def with_cpu(c, fn):
    """What the daemon spent beside: for each operation and MiB."""
    before = c.cpu()
    got = fn()
    if before is not None and got.get("ops"):
        spent = (c.cpu() - before) * 1e6
        got["cpu_us"] = spent / got["ops"]
        got["cpu_us_mib"] = spent / max(got.get("bytes", 0) / MIB, 1e-9) if got.get("bytes") else None
    return got


def fio(**options):
    def measure(c):
        size = {"size": c.file_bytes} if "size" not in options else {}
        return with_cpu(c, lambda: c.m.fio(c.file, **size, **options))
    return measure


def settle(c):
    """What was written before does not count here."""
    fd = os.open(c.file, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)


def written_through(measure):
    """After the file was written from one end to the other: what stands before leaves it in pieces of 4 KiB."""
    def fn(c):
        c.m.fio(c.file, rw="write", bs="1m", ioengine="libaio", direct=1, iodepth=4, end_fsync=1, size=c.file_bytes)
        return measure(c)
    return fn


def files_create(c, root):
    data = b"x" * 4096
    for i in range(FILES):
        if i % 100 == 0:
            os.mkdir(f"{root}/{i // 100}")
        fd = os.open(f"{root}/{i // 100}/{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, data)
        os.close(fd)


def timed(fn):
    start = time.monotonic()
    fn()
    return time.monotonic() - start


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def small_files(what):
    """Creates, looks at, reads and unlinks; each caller counts one of them."""
    def measure(c):
        root = os.path.join(c.dir, f"small.{time.monotonic_ns()}")
        took = {}
        names = [f"{root}/{i // 100}/{i}" for i in range(FILES)]
        os.mkdir(root)

        def unlink():
            for n in names:
                os.unlink(n)

        def create():
            files_create(c, root)
            sync_dir(root)
        took["create"] = timed(create)
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("2\n") # names and inodes: stat is to ask the server
        took["stat"] = timed(lambda: [os.stat(n) for n in names])
        took["unlink"] = timed(unlink)
        for i in range(FILES // 100):
            os.rmdir(f"{root}/{i}")
        os.rmdir(root)
        return {"files/s": FILES / took[what], **took}
    return measure


def make_tree(m):
    """A source tree as a tar file, the same in each run."""
    path = os.path.join(m.work, "tree.tar")
    if os.path.exists(path):
        return path
    root = os.path.join(m.work, "tree")
    line = b"static int the_quick_brown_fox(struct dog *lazy) { return lazy->jumps; }\n"
    for i in range(TREE_FILES):
        d = f"{root}/d{i % TREE_DIRS}/s{i % 7}"
        os.makedirs(d, exist_ok=True)
        with open(f"{d}/f{i}.c", "wb") as f:
            f.write(line * (1 + (i * 7919) % 400))
    run("tar", "cf", path, "-C", m.work, "tree")
    return path


def untar(c):
    tar = make_tree(c.m)
    root = os.path.join(c.dir, f"untar.{time.monotonic_ns()}")
    os.mkdir(root)

    def unpack():
        run("tar", "xf", tar, "-C", root)
        sync_dir(root)
    s = timed(unpack)
    run("rm", "-rf", root)
    return {"files/s": TREE_FILES / s}


def mount_part(m, level):
    s = m.args.seconds
    null, thin, truss = Null(m, "null"), Thin(m, "thin"), Trussfs(m, level)
    ext4, btrfs = Ext4(m, "ext4"), Btrfs(m, level)
    bindfs = Bindfs(m, ext4)
    peers = [btrfs, ext4, bindfs] + ([Zfs(m, "zfs-raidz2")] if level == 6 else [])
    raw = RawFsync(m)
    everybody = [truss, thin, null, *peers]
    t, b = truss.name, btrfs.name

    def ratios(limit="thin", target=0.85):
        got = [Ratio(t, limit, target)]
        got += [Ratio(t, "thin" if limit == "null" else "null")] if limit != "raw" else []
        return got + [Ratio(t, b), Ratio(t, "zfs-raidz2", 1.0), Ratio(t, "ext4"), Ratio(t, "bindfs")]

    def row(name, metric, measure, limit="thin", target=0.85, **kw):
        return Row(f"{t} {name}", metric, everybody, measure, ratios(limit, target), **kw)

    aio = {"ioengine": "libaio", "direct": 1}
    threads8 = {"ioengine": "psync", "direct": 1, "numjobs": 8}
    read_1m = fio(rw="read", bs="1m", iodepth=4, seconds=s, **aio)
    sustained = s if m.args.quick else max(60, s)

    def burst(c):
        settle(c)
        return with_cpu(c, lambda: c.m.fio(c.file, rw="randwrite", bs="4k", iodepth=32, size=c.file_bytes,
                                           io_size=BURST_MIB * MIB, **aio))

    def at_load(c):
        """70 % of what the slower of the two can: the same rate for all."""
        if not hasattr(truss, "rate"):
            truss.rate = int(0.7 * min(fio(rw="randread", bs="4k", iodepth=32, seconds=s, **aio)(x)["iops"]
                                       for x in (truss, thin)))
        got = fio(rw="randread", bs="4k", iodepth=64, seconds=s, rate_iops=truss.rate, rate_process="poisson", **aio)(c)
        return {**got, "p99_us": got["read"]["p99_us"], "p999_us": got["read"]["p999_us"]}

    def latency(metric):
        return Row(f"{t} 4k randread at 70 % load {metric[:-3]}", metric, [truss, thin, null], at_load,
                   [Ratio(t, "thin", 1.5, most=True)], unit="us")

    def fsync(c):
        if c is raw:
            got = m.volume("fsync", raw.devices, "-b", 8192, "-q", 1, "-w", 100, "-r", "-s", s)
            return {**got, "us": 1e6 / got["iops"]}
        got = fio(rw="randwrite", bs="4k", ioengine="psync", fsync=1, seconds=s)(c)
        return {**got, "us": 1e6 / got["iops"]}

    rows = [
        row("4k randread qd32", "iops", fio(rw="randread", bs="4k", iodepth=32, seconds=s, **aio)),
        row("4k randread 8 threads", "iops", fio(rw="randread", bs="4k", seconds=s, **threads8)),
        row("4k randread qd1", "iops", fio(rw="randread", bs="4k", iodepth=1, seconds=s, **aio), target=None),
        row("4k randwrite qd32", "iops", fio(rw="randwrite", bs="4k", iodepth=32, seconds=sustained, **aio)),
        row("4k randwrite 8 threads", "iops", fio(rw="randwrite", bs="4k", seconds=sustained, **threads8)),
        row("4k randwrite burst", "iops", burst, "null"),
        Row(f"{t} 4k write+fsync qd1", "us", [*everybody, raw], fsync, [
            Ratio(t, "null", 1.5, most=True, plus=raw.name, text="(null + raw write+flush)"),
            Ratio(t, "thin", most=True), Ratio(t, b, most=True), Ratio(t, "zfs-raidz2", 1.0, most=True),
            Ratio(t, "ext4", most=True)]),
        row("1m read of 4k pieces qd4", "mibps", read_1m, target=None),
        row("1m read direct qd4", "mibps", written_through(read_1m)),
        row("1m write direct qd4", "mibps", fio(rw="write", bs="1m", iodepth=4, end_fsync=1, seconds=s, **aio)),
        row("1m read buffered", "mibps", fio(rw="read", bs="1m", ioengine="psync", io_size=m.args.file_mib * MIB)),
        row("1m write buffered", "mibps",
            fio(rw="write", bs="1m", ioengine="psync", end_fsync=1, io_size=m.args.file_mib * MIB)),
        latency("p99_us"), latency("p999_us"),
        row("create 4k files", "files/s", small_files("create"), "null", 0.5),
        row("stat", "files/s", small_files("stat"), "null", 0.5),
        row("unlink", "files/s", small_files("unlink"), "null", 0.5),
        row("untar", "files/s", untar, "null", 0.5),
    ]
    return Part(f"mount-{level}", 5 if level == 6 else 4, rows, [*everybody, raw])
