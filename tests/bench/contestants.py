# SPDX-License-Identifier: GPL-2.0-or-later
"""Who is measured through a mount: trussfs, the limits (null, thin), and the peers.

Each has .dir, a directory to work in, .file, a file of .file_bytes, and .pid of its daemon or None. It is
started when a row first needs it. What cannot be had raises Missing with the reason, once.
"""
import os
import subprocess

from machine import MIB, Missing, cpu_seconds, have, mounted, need, run, stop_process, wait_for


class Contestant:
    kind = "peer"

    def __init__(self, machine, name):
        self.m = machine
        self.name = name
        self.mnt = os.path.join(machine.work, "mnt." + name)
        self.dir = self.mnt
        self.pid = None
        self.process = None
        self.items = []
        self.file_bytes = machine.args.file_mib * MIB

    @property
    def file(self):
        return os.path.join(self.dir, "file")

    def push(self, fn, *args):
        self.items.append(self.m.cleanup.push(fn, *args))

    def start(self):
        os.makedirs(self.mnt, exist_ok=True)
        self.open()
        if not os.path.exists(self.file):
            self.m.fio(self.file, rw="write", bs="1m", ioengine="psync", size=self.file_bytes, end_fsync=1)

    def stop(self):
        while self.items:
            self.m.cleanup.now(self.items.pop())

    def open(self):
        raise NotImplementedError

    def cpu(self):
        return cpu_seconds(self.pid) if self.pid else None

    def serve(self, *args):
        """A server in the foreground, and its mount."""
        log = open(os.path.join(self.m.work, self.name + ".log"), "wb")
        self.process = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        self.push(self.end_server)
        wait_for(lambda: mounted(self.mnt) or self.process.poll() is not None, f"{self.name}: mount")
        if not mounted(self.mnt):
            with open(log.name) as f:
                raise Missing(f"{self.name} did not mount: {f.read()[-300:].strip()}")
        os.stat(self.mnt)
        self.pid = self.process.pid

    def end_server(self):
        self.pid = None
        if mounted(self.mnt):
            run("umount", self.mnt)
        elif self.process.poll() is None:
            self.process.terminate()
        stop_process(self.process)


class Null(Contestant):
    kind = "limit"

    def open(self):
        self.serve(self.m.driver("bench-fuse"), "-z", self.m.args.file_mib, self.mnt)


class Thin(Contestant):
    kind = "limit"

    def open(self):
        self.serve(self.m.driver("bench-fuse"), "-z", self.m.args.file_mib, self.mnt, *self.m.set("thin"))


class Trussfs(Contestant):
    kind = "trussfs"

    def __init__(self, machine, level):
        super().__init__(machine, f"trussfs-{level}")
        self.level = level
        self.devices = []

    def open(self):
        self.devices = self.m.set(self.name)
        self.push(self.m.drop_set, self.name)
        run(self.m.tool("mkfs.trussfs"), "-f", "-r", self.level, *self.devices)
        self.mount()

    def mount(self):
        more = self.m.args.options
        self.serve(self.m.tool("mount.trussfs"), self.devices[0], self.mnt, "-f", *(["-o", more] if more else []))


class Kernel(Contestant):
    """A filesystem of the kernel's, on a whole set or the first of it."""

    fs = None

    def open(self):
        need("mkfs." + self.fs, {"ext4": "e2fsprogs", "btrfs": "btrfs-progs"}[self.fs])
        with open("/proc/filesystems") as f:
            if self.fs not in f.read().split():
                raise Missing(f"this kernel has no {self.fs}")
        devices = self.m.set(self.name, **self.wants())
        self.push(self.m.drop_set, self.name)
        self.make(devices)
        run("mount", "-t", self.fs, devices[0], self.mnt)
        self.push(run, "umount", self.mnt)


class Ext4(Kernel):
    fs = "ext4"

    def wants(self):
        return {"count": 1, "size": 3 * self.file_bytes}

    def make(self, devices):
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", devices[0])


class Btrfs(Kernel):
    fs = "btrfs"

    def __init__(self, machine, level):
        super().__init__(machine, f"btrfs-{level}")
        self.level = level

    def wants(self):
        return {}

    def make(self, devices):
        run("mkfs.btrfs", "-q", "-f", "-d", f"raid{self.level}", "-m", "raid1c3", *devices)
        run("btrfs", "device", "scan", *devices)


class Zfs(Contestant):
    pool = f"trussfsbench{os.getpid()}"

    def open(self):
        need("zfs-fuse", "zfs-fuse")
        need("zpool", "zfs-fuse")
        devices = self.m.set(self.name)
        self.push(self.m.drop_set, self.name)
        log = open(os.path.join(self.m.work, self.name + ".log"), "wb")
        self.process = subprocess.Popen([have("zfs-fuse"), "--no-daemon"], stdin=subprocess.DEVNULL, stdout=log,
                                        stderr=log)
        log.close()
        self.push(self.end_daemon)
        wait_for(lambda: subprocess.run([have("zpool"), "list"], capture_output=True).returncode == 0 or
                 self.process.poll() is not None, "zfs-fuse")
        if self.process.poll() is not None:
            raise Missing("zfs-fuse ended at once (does another one run?)")
        # It takes no partitions it has not labelled, so links to the devices will not do: the devices as they are.
        run(have("zpool"), "create", "-f", "-o", "cachefile=none", "-m", self.mnt, self.pool, "raidz2", *devices)
        self.push(self.destroy)
        self.pid = self.process.pid

    def destroy(self):
        # Busy for a while after its last user.
        wait_for(lambda: subprocess.run([have("zpool"), "destroy", "-f", self.pool],
                                        capture_output=True).returncode == 0, "zpool destroy", 30)

    def end_daemon(self):
        self.pid = None
        self.process.terminate()
        stop_process(self.process, 20)


class RawFsync:
    """8 KiB written to one member and flushed: what a small durable write costs without any filesystem."""
    kind = "limit"
    name = "raw write+flush"

    def __init__(self, machine):
        self.m = machine

    def start(self):
        self.devices = self.m.set("fsync", 1)

    def stop(self):
        self.m.drop_set("fsync")


class Bindfs(Contestant):
    """A FUSE server that only passes through, to a directory on ext4: nothing of ours, no RAID."""

    def __init__(self, machine, below):
        super().__init__(machine, "bindfs")
        self.below = below

    def open(self):
        need("bindfs", "bindfs")
        if not mounted(self.below.mnt):
            raise Missing("needs ext4 below it")
        os.makedirs(os.path.join(self.below.mnt, "bound"), exist_ok=True)
        self.serve(have("bindfs"), "-f", os.path.join(self.below.mnt, "bound"), self.mnt)
