"""Hosts of a network on this machine: each has its own address, processes, home and /tmp/ray.

A host is a set of Linux namespaces, which die with its first process. Its cable is a TAP device. A switch in
this process carries the frames between the cables, with latency and loss, unless a cable is cut. The kernel's
bridge and netem would do the same, but many kernels are built without netem.
"""

import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BIN = Path(sys.executable).parent
SOURCE = Path(__file__).parents[2] / "src"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
PORT = 6379
SETUP = """
set -e
mkdir -p /tmp/ray "$0/ray" "$0/home"
mount --bind "$0/ray" /tmp/ray
mount -t tmpfs none /dev/shm
ip link set lo up
echo ready
sleep infinity &
wait
"""


@dataclass
class Cable:
    """The cable between a host and the switch."""

    tap: int  # file descriptor of the device
    latency: float = 0.0  # seconds, one way
    loss: float = 0.0  # share of the frames
    is_cut: bool = False


class Switch(threading.Thread):
    """Carries Ethernet frames between cables until it is stopped."""

    def __init__(self, cables: list[Cable]) -> None:
        super().__init__(daemon=True)
        self.cables, self.is_over = {cable.tap: cable for cable in cables}, False
        self._flying: list[tuple[float, int, Cable, bytes]] = []  # with their times of arrival
        self._numbers, self._draws = itertools.count(), random.Random(0)

    def run(self) -> None:
        """Receive frames, and deliver them when they are due."""
        poll, places = select.poll(), dict[bytes, Cable]()
        for tap in self.cables:
            poll.register(tap, select.POLLIN)
        while not self.is_over:
            due = self._flying[0][0] - time.monotonic() if self._flying else 0.1
            for tap, _ in poll.poll(min(100, max(0, due * 1000))):
                try:
                    frame = os.read(tap, 65536)
                except OSError:  # the host is gone
                    poll.unregister(tap)
                    continue
                places[frame[6:12]] = self.cables[tap]
                self._send(frame, self.cables[tap], places.get(frame[:6]))
            while self._flying and self._flying[0][0] <= time.monotonic():
                *_, cable, frame = heapq.heappop(self._flying)
                with suppress(OSError):  # the host is gone, or its queue is full
                    os.write(cable.tap, frame)

    def _send(self, frame: bytes, source: Cable, place: Cable | None) -> None:
        """Put a frame on the cable of its receiver, or on all cables if that is unknown."""
        for cable in [place] if place else [other for other in self.cables.values() if other is not source]:
            is_lost = self._draws.random() < source.loss or self._draws.random() < cable.loss
            if not (is_lost or source.is_cut or cable.is_cut):
                due = time.monotonic() + source.latency + cable.latency
                heapq.heappush(self._flying, (due, next(self._numbers), cable, frame))


@dataclass
class Host:
    """A machine of the network."""

    address: str
    folder: Path  # its home and its /tmp/ray
    cable: Cable
    first: Any = field(init=False)  # the process that keeps the namespaces
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        namespaces = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"]
        command = [*dies_with_us, "unshare", *namespaces, "bash", "-c", SETUP, str(self.folder)]
        self.first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.first.stdout.readline() != "ready\n":
            raise OSError(self.first.stderr.read())
        self.environment = {
            "HOME": f"{self.folder}/home",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_rpc_server_connect_timeout_s": "60",  # a busy machine starts Ray slowly,
            "RAY_worker_niceness": "0",  # and workers of low priority hardly at all
        }

    def plug_in(self, name: str) -> None:
        """Move the network device into this host and give it the host's address."""
        call("ip", "link", "set", name, "netns", self.first.pid)
        self.call("ip", "link", "set", name, "name", "eth0")
        self.call("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.call("ip", "link", "set", "eth0", "up")
        self.call("ip", "route", "add", "default", "dev", "eth0")  # Ray finds its address by it

    def start(self, *command: object, **options: Any) -> "subprocess.Popen[str]":
        """Start a command on this host, in its folder."""
        space = f"/proc/{self.first.pid}/ns/pid_for_children"
        enter = ["nsenter", "--target", self.first.pid, "--net", "--mount", f"--pid={space}"]
        words = [*enter, "env", "--chdir", self.folder, *command]
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": self.environment}
        return subprocess.Popen(list(map(str, words)), text=True, **given | options)

    def call(self, *command: object, timeout: float = 300) -> str:
        """Run a command on this host and return its output; raise with the output if it fails."""
        started = self.start(*command)
        output, _ = started.communicate(timeout=timeout)
        assert started.returncode == 0, f"{self.address}: {command}\n{output}"
        return output

    def straggler(self, *words: object, **options: Any) -> "subprocess.Popen[str]":
        """Start the command line of Straggler on this host."""
        return self.start(sys.executable, "-m", "straggler", *words, **options)

    def find_processes(self, text: str) -> list[int]:
        """Return the processes of this host whose command line contains a text."""
        space, found = Path(f"/proc/{self.first.pid}/ns/pid_for_children").readlink(), list[int]()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "ns" / "pid").readlink() == space:
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found += [int(process.name)] if text in words else []
        return found

    def signal(self, text: str, number: int) -> None:
        """Send a signal to the processes of this host whose command line contains a text."""
        found = self.find_processes(text)
        assert found, f"{self.address} has no process {text}"
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def switch_off(self) -> None:
        """End all processes of this host at once, as a power cut does: nobody on the network is told."""
        self.cable.is_cut = True
        self.first.kill()
        self.first.communicate()


def call(*command: object) -> None:
    """Run a command on this machine; raise with its output if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def open_tap(name: str) -> int:
    """Create a TAP device and return its file descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


@contextmanager
def open_network(count: int, folder: Path) -> Iterator[list[Host]]:
    """Yield hosts 10.0.0.1, 10.0.0.2, … that reach only each other, or skip the test."""
    names, taps = [f"sg{os.getpid()}{letter}" for letter in "abcdef"[:count]], list[int]()
    hosts, switch = list[Host](), None
    try:
        try:
            taps = [open_tap(name) for name in names]
            for number, tap in enumerate(taps, start=1):
                home = folder / f"host{number}"
                home.mkdir()
                hosts.append(Host(f"10.0.0.{number}", home, Cable(tap)))
        except OSError as error:
            pytest.skip(f"The hosts are network namespaces, which requires root, iproute2 and TAP: {error}")
        for host, name in zip(hosts, names, strict=True):
            host.plug_in(name)
        switch = Switch([host.cable for host in hosts])
        switch.start()
        yield hosts
    finally:
        for host in hosts:
            host.switch_off()
        if switch is not None:
            switch.is_over = True
            switch.join()
        for tap in taps:
            os.close(tap)
        for host in hosts:
            shutil.rmtree(host.folder / "ray", ignore_errors=True)  # Ray's logs are large


def start_ray(hosts: list[Host], options: str = "--num-cpus=1") -> str:
    """Start Ray with a token; return the address of the head, which is the first host and has one CPU."""
    address = f"{hosts[0].address}:{PORT}"
    token = hosts[0].environment.get("RAY_AUTH_TOKEN", os.urandom(32).hex())
    for host in hosts:
        host.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    head = f"--head --port={PORT} --num-cpus=1 --include-dashboard=false --object-store-memory=300000000"
    hosts[0].call("ray", "start", *head.split())
    for host in hosts[1:]:
        join_ray(host, address, options)
    return address


def join_ray(host: Host, address: str, options: str = "--num-cpus=1") -> None:
    """Start Ray on a host that joins a cluster."""
    host.call("ray", "start", f"--address={address}", *options.split(), "--object-store-memory=300000000")


def wait_until(is_true: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something is true; fail with a message if it takes longer than some seconds."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def kill_hard(host: Host, text: str) -> None:
    """Kill processes of a host with SIGKILL."""
    host.signal(text, signal.SIGKILL)
