# SPDX-License-Identifier: GPL-2.0-or-later
"""The volume without FUSE, against the raw members."""
from machine import MIB
from report import Ratio
from rows import Part, Row

LEVELS = (10, 5, 6)
PARITY = {5: 1, 6: 2}


class Raw:
    kind = "limit"

    def __init__(self, machine):
        self.m, self.name = machine, "raw"

    def start(self):
        self.devices = self.m.set("raw")
        # Sparse files are filled first: reading holes is no I/O.
        self.m.volume("raw", self.devices, *self.span(), "-b", MIB, "-q", 8, "-w", 100, "-s", 2)

    def span(self):
        return "-z", min(256, self.m.member_bytes // MIB // 2)

    def stop(self):
        self.m.drop_set("raw")

    def load(self, *options):
        return self.m.volume("raw", self.devices, *self.span(), *options)


class Volume:
    kind = "trussfs"

    def __init__(self, machine, level):
        self.m, self.level, self.name = machine, level, f"raid-{level}"
        self.degraded = 0
        self.spare = None

    def start(self):
        self.devices = list(self.m.set(self.name, self.m.count + 1 if not self.m.args.members else None))
        if not self.m.args.members:
            self.spare = self.devices.pop()
        self.m.volume("format", self.devices, "-l", self.level)
        self.m.volume("fill", self.devices, "-f", self.m.args.file_mib)

    def stop(self):
        self.m.drop_set(self.name)

    def load(self, *options):
        return self.m.volume("volume", self.devices, *options)

    def rebuild(self, *options):
        """Onto the spare; what it replaces is the next spare."""
        got = self.m.volume("rebuild", self.devices, "-S", self.spare, *options)
        self.devices[0], self.spare = self.spare, self.devices[0]
        return got


class Missing1:
    """The same volume with its first members left out, read only: it stays what it is."""
    kind = "trussfs"

    def __init__(self, volume, count):
        self.volume, self.count, self.name = volume, count, f"{volume.name} -{count}"

    def start(self):
        pass

    def stop(self):
        pass

    def load(self, *options):
        return self.volume.m.volume("volume", self.volume.devices, "-o", "-m", self.count, *options)


def volume_part(m):
    n = m.count
    raw, volumes = Raw(m), [Volume(m, level) for level in LEVELS]
    s = m.args.seconds
    missing = [Missing1(v, k) for v in volumes for k in range(1, 3 if v.level == 6 else 2)]
    everybody = [raw, *volumes]

    def load(*options):
        return lambda c: c.load("-s", s, *options)

    def data_part(level):
        return 0.5 if level == 10 else (n - PARITY[level]) / n

    def job(work):
        def measure(c):
            if c is raw and work == "rebuild":
                return m.volume("raw", raw.devices[:1], *raw.span(), "-b", MIB, "-q", 4, "-w", 100, "-s", s)
            if c is raw:
                return raw.load("-b", MIB, "-q", 2 * n, "-s", s)
            got = c.rebuild() if work == "rebuild" else m.volume("scrub", c.devices)
            return {**got, "mibps": got["job_mibps"], "minutes_per_tib": MIB / got["job_mibps"] / 60}
        return measure

    reads = [Ratio(v.name, "raw", 0.90) for v in volumes]
    seq_reads = [Ratio(v.name, "raw", 0.95) for v in volumes]
    seq_writes = [Ratio(v.name, "raw", 0.85 if v.level != 10 else None, data_part(v.level), text="raw x D/N")
                  for v in volumes]
    writes = [Ratio("raid-6", "raid-10", 0.9),
              *[Ratio(v.name, "raw", 0.5 if v.level == 6 else None, data_part(v.level), text="raw x D/N")
                for v in volumes]]
    lost = [Ratio(c.name, c.volume.name, 0.5 if n == 5 + PARITY.get(c.volume.level, 9) - 1 and c.count == 1 else None)
            for c in missing]
    rows = [
        Row("volume 4k randread qd32", "iops", everybody, load("-r", "-q", 32), reads),
        Row("volume 4k randread qd1", "iops", everybody, load("-r", "-q", 1), [Ratio(r.of, "raw") for r in reads]),
        Row("volume 128k seqread qd8", "mibps", everybody, load("-b", 131072, "-q", 8), seq_reads),
        Row("volume 128k seqwrite qd8", "mibps", everybody, load("-b", 131072, "-q", 8, "-w", 100), seq_writes),
        Row("volume 4k randwrite qd32", "iops", everybody, load("-r", "-q", 32, "-w", 100), writes),
        Row("volume 4k randread degraded", "iops", [raw, *volumes, *missing], load("-r", "-q", 32), lost),
        Row("volume scrub idle", "mibps", everybody, job("scrub"), [Ratio(v.name, "raw", 0.8) for v in volumes]),
    ]
    if not m.args.members:
        rows.append(Row("volume rebuild idle", "mibps", everybody, job("rebuild"),
                        [Ratio(v.name, "raw", 0.8, text="one member") for v in volumes]))
    return Part("volume", len(everybody), rows, everybody)
