"""A run of the command line whose processes are attacked: its faults are drawn, and its end is checked."""

import getpass
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from straggler.record import Record

# How each kind of process is recognised: its name, or a text in its command line.
KINDS = {
    "fork server": "serve_forks",
    "evaluator": "serve_tasks",
    "pool process": "serve_tasks",
    "worker": "run_worker",
    "actor": "ray::RayWorker",
}
VICTIMS = {
    "simulator": ("driver", "fork server", "pool process"),
    "processes": ("driver", "fork server", "evaluator", "worker"),
    "ray": ("driver", "fork server", "evaluator", "actor"),
}
SIGNALS = (Signals.SIGKILL, Signals.SIGSTOP, Signals.SIGTERM)
WORKER_TIMEOUT, ANSWER_SECONDS = 2, 10
MAIN = (  # the command line, with another deadline for the fork server
    "from straggler.engines.pool import fork_server; from straggler.__main__ import main; "
    f"fork_server.ANSWER_SECONDS = {ANSWER_SECONDS}; main()"
)
# The longest deadlines of a run add up to WORKER_TIMEOUT + 60 s for the start of a process, and
# ANSWER_SECONDS for a fork server. On a busy machine everything takes longer.
PATIENCE = 250.0
LOOK_SECONDS = 0.05
# A run ends if processes fail too often in a row, which happens when they start slowly. It can be resumed.
GIVEN_UP = ("keep dying", "failures within")
# Delays bound the speed of the real engines. A simulation waits in its model, if the environment says so.
SLOW_MODEL = """
import os, time
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        time.sleep(float(os.environ.get("SECONDS_PER_GRADIENT", "0")) * self.training)
        return self.layers(x)
"""


@dataclass(frozen=True)
class Fault:
    """A signal that a process gets at a point of a run's progress; a stopped driver continues later."""

    victim: str
    signal: Signals
    gradients: int
    seconds: float


def draw_faults(engine: str, seed: int, count: int, gradients: int) -> list[Fault]:
    """Draw faults that are spread over a run. Twelve in a row have every victim and signal once."""
    draw = random.Random(seed)
    pairs = list(itertools.product(VICTIMS[engine], SIGNALS))
    shuffled = [pair for _ in range(-(-count // len(pairs))) for pair in draw.sample(pairs, len(pairs))]
    times = sorted(draw.randint(1, gradients * 7 // 10) for _ in range(count))
    return [Fault(*pair, at, draw.uniform(0.5, 3)) for pair, at in zip(shuffled[:count], times, strict=True)]


@dataclass(frozen=True)
class Process:
    """A process of this machine. The time of its start tells it from a later one with the same number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "Process":
        return cls(pid, read_stat(pid)[19])

    def is_alive(self) -> bool:
        """Return whether the process still runs or is stopped."""
        with suppress(OSError):
            state, *rest = read_stat(self.pid)
            return rest[18] == self.started and state not in "ZX"
        return False

    def send(self, number: Signals) -> None:
        """Send a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …; the start is number 19."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def list_descendants(root: int) -> list[int]:
    """Return the processes below a process, parents first."""
    found = [root]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found[1:]


def is_kind(pid: int, kind: str) -> bool:
    """Return whether a process is, for example, a worker."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        # The children of the fork server have its command line.
        return name == KINDS[kind] or (KINDS[kind] in words and name not in ("serve_tasks", "run_worker"))
    return False


class AttackedRun:
    """A run in a process of its own, and everything that was seen of it."""

    def __init__(self, folder: Path, engine: str, settings: str, options: str, raylet: int | None) -> None:
        self.folder, self.out, self.temporary = folder, folder / "runs", folder / "tmp"
        self.engine, self.raylet = engine, raylet
        self.temporary.mkdir()
        self.errors = folder / "errors.txt"
        self.seen = set[Process]()
        self.done: list[Fault] = []
        self.resumed = self.given_up = 0
        self.longest = 0.0  # seconds without progress
        self._last, self._changed = "", time.monotonic()
        self.options = f"{options} --worker-timeout {WORKER_TIMEOUT} --checkpoint-every 0.7s --json".split()
        self.start("run", "--engine", engine, *settings.split(), "--out", self.out)

    def start(self, *words: object) -> None:
        """Start a command that trains."""
        command = [sys.executable, "-c", MAIN, *words, *self.options]
        environment = os.environ | {"TMPDIR": str(self.temporary), "SECONDS_PER_GRADIENT": "0.03"}
        with self.errors.open("a") as file:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            )
        self.driver = Process.of(self.process.pid)
        self.seen.add(self.driver)

    @property
    def record(self) -> Path | None:
        """The folder of the record, if it has begun."""
        return next((file.parent for file in self.out.glob("*/experiment.toml")), None)

    def read_gradients(self) -> int:
        """Return the number of gradients so far, and fail if nothing has happened for too long."""
        text = ""
        if self.record is not None:
            text = (self.record / "summary.json").read_text()
        now = time.monotonic()
        if text != self._last:
            self._last, self._changed = text, now
        self.longest = max(self.longest, now - self._changed)
        assert now - self._changed < PATIENCE, f"The run hangs.\n{self.describe()}"
        return int(json.loads(text or "{}").get("gradients") or 0)

    def describe(self) -> str:
        """Return what was done to the run and what it said."""
        faults = "\n".join(map(str, self.done))
        return f"{faults}\n{self.errors.read_text()}"

    def list_processes(self, kind: str) -> list[Process]:
        """Return the processes of a kind, and note them."""
        below = list_descendants(self.process.pid)
        if self.raylet is not None:
            below += list_descendants(self.raylet)
        found = list[Process]()
        for each in KINDS:
            for pid in below:
                if is_kind(pid, each):
                    with suppress(OSError):
                        self.seen.add(process := Process.of(pid))
                        found += [process] if each == kind else []
        return found

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until something is true or the run has ended; fail if nothing happens for too long."""
        while not is_true() and not self.is_over():
            self.read_gradients()
            time.sleep(LOOK_SECONDS)
        lines = self.errors.read_text().splitlines() or [""]
        if self.process.poll() == 1 and any(reason in lines[-1] for reason in GIVEN_UP):
            self.given_up += 1
            self.resume()
            self.wait_until(is_true)

    def attack(self, fault: Fault, draw: random.Random) -> None:
        """Wait for the time of a fault, and send its signal; resume the run if its driver ends."""
        self.wait_until(lambda: self.read_gradients() >= fault.gradients)
        if fault.victim == "driver":
            self._attack_driver(fault)
            return
        self.wait_until(lambda: bool(self.list_processes(fault.victim)))
        if victims := self.list_processes(fault.victim):
            self.done.append(fault)
            draw.choice(victims).send(fault.signal)

    def _attack_driver(self, fault: Fault) -> None:
        """Kill, terminate or stop the driver. A stopped one continues after some seconds."""
        self.list_processes("worker")
        if self.is_over():
            return
        self.done.append(fault)
        self.driver.send(fault.signal)
        if fault.signal == Signals.SIGSTOP:
            time.sleep(fault.seconds)
            self.driver.send(Signals.SIGCONT)
            return
        code = self.wait_for_end()
        if code != 0:
            # A driver that still imports has no handler of signals and no checkpoint to write.
            expected = {Signals.SIGKILL: {-9}, Signals.SIGTERM: {130, -15}}[fault.signal]
            assert code in expected, f"exit code {code}\n{self.describe()}"
            self.resume()

    def resume(self) -> None:
        """Check that nothing of the ended driver is left, and start another one."""
        self.check_nothing_is_left()
        assert self.record is not None
        self.resumed += 1
        self._changed = time.monotonic()
        self.start("resume", self.record, "--trust")

    def wait_for_end(self) -> int:
        """Wait until the driver has ended, and return its exit code."""
        self.wait_until(lambda: False)
        return self.process.wait()

    def check_nothing_is_left(self) -> None:
        """Check that all processes of the run have ended, and that no file remains in temporary folders."""
        end = time.monotonic() + PATIENCE
        while left := [process for process in self.seen if process.is_alive()]:
            assert time.monotonic() < end, f"{left} are left\n{self.describe()}"
            time.sleep(LOOK_SECONDS)
        files = {file.name for file in self.temporary.iterdir()} - {f"torchinductor_{getpass.getuser()}"}
        assert not files, f"{files} are left\n{self.describe()}"
        numbers = {str(process.pid) for process in self.seen}
        shared = [file.name for file in Path("/dev/shm").glob("*")]
        assert not [name for name in shared if numbers & set(name.replace("-", "_").split("_"))]

    def check_end(self) -> Record:
        """Wait for the end of the run; check its ledger and that nothing is left behind."""
        code = self.wait_for_end()
        assert code == 0, f"exit code {code}\n{self.describe()}"
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        record = Record(json.loads(output.splitlines()[-1])["record"])
        facts: Any = record.summary
        assert facts["status"] == "finished"
        ended = facts["applied"] + facts["dropped"] + facts["cancelled"] + facts["in_flight"]
        assert facts["dispatched"] == ended
        assert facts["restarts"] == len(record.events)
        jobs = record.history.select("worker", "index").drop_nulls()
        assert jobs.n_unique() == len(jobs), "a job arrived twice"
        self.check_nothing_is_left()
        assert "Traceback" not in self.errors.read_text(), self.describe()
        return record

    def close(self) -> None:
        """End the processes that a failed test leaves."""
        self.list_processes("worker")
        for process in self.seen:
            process.send(Signals.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def attacked_run(
    folder: Path, engine: str, settings: str, options: str = "", raylet: int | None = None
) -> Iterator[AttackedRun]:
    """Start a run to attack, and end its processes afterwards. A resumed run gets the options again."""
    run = AttackedRun(folder, engine, settings, options, raylet)
    try:
        yield run
    finally:
        run.close()
