"""A pool of processes on this machine, each of which runs one experiment at a time."""

import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import cloudpickle

from straggler.core.devices import DeviceChoice, find_devices
from straggler.engines.pool.fork_server import fork_child
from straggler.experiment import Experiment
from straggler.running.callbacks import Callback
from straggler.running.observer import RunProgress
from straggler.running.watchdog import list_silences
from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.measurements import SummaryRow
from straggler.sweeps.results import summarise_run, summarise_throughput
from straggler.timing.clusters import Repetition

STOP_SECONDS = 20.0  # that a process has to save its run when the sweep is interrupted
START_SECONDS = 600.0  # that a process has to import its modules; with other programs, that takes minutes
BEAT_SECONDS = 1.0  # between two signs of life of a process
SILENCE_SECONDS = 60.0  # without a sign of life, after which a process counts as hung


@dataclass(frozen=True)
class RunEvent:
    """An event of a run: progress (0 to 1), the summary row, why it failed or is repeated, where it hangs."""

    run: PlannedRun
    kind: Literal["progress", "done", "failed", "repeated", "silent"]
    content: Any


class PoolProcess:
    """A process forked from the fork server, the connection to it, and the run that it computes."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._fork_server, self._number = fork_child(serve_runs, [theirs.fileno()], [theirs.fileno()])
        theirs.close()
        self.connection, self.run = Connection(ours.detach()), None  # type: Connection, PlannedRun | None
        if not self.connection.poll(START_SECONDS):
            self._fork_server.kill_child(self._number)
            raise RuntimeError(f"A process for runs did not start within {START_SECONDS:g} s. Try again.")
        self.pid: int = self.connection.recv()
        self.heard = time.monotonic()  # when it last sent a message, or received a run

    @property
    def is_hung(self) -> bool:
        """Whether the process should have sent a sign of life long ago."""
        return self.run is not None and time.monotonic() - self.heard > SILENCE_SECONDS

    def interrupt(self) -> None:
        """Ask the process to save its run and to exit."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def close(self) -> int:
        """Wait until an interrupted process has saved its run, end it, and return its exit code."""
        until = time.monotonic() + STOP_SECONDS
        with suppress(EOFError, OSError):
            while self.run and time.monotonic() < until and self.connection.poll(5 * BEAT_SECONDS):
                self.connection.recv()
        self.connection.close()
        return self._fork_server.kill_child(self._number)


class LocalPool:
    """Runs experiments side by side on this machine. If a process dies, only its run fails."""

    def __init__(
        self,
        cores: int,
        runs: Path,
        data: Path | None = None,
        address: str | None = None,
        device: DeviceChoice = "cpu",
    ) -> None:
        """`address` is the Ray cluster that runs of the ray engine join; processes take devices in turn."""
        self.device, self._devices = device, [str(each) for each in find_devices(device)]
        self.cores, self.runs, self.data, self.address = cores, runs, data, address
        self.processes: list[PoolProcess] = []

    def run(self, planned: Iterable[PlannedRun]) -> Generator[RunEvent]:
        """Yield events until all runs have ended. If it is closed early, running experiments are saved.

        The processes stay for the next call, until `close`.
        """
        waiting = deque(planned)
        try:
            while len(self.processes) < min(self.cores, len(waiting)):
                self.processes.append(PoolProcess())
            while waiting or any(process.run for process in self.processes):
                for number, process in enumerate(self.processes):
                    if process.run is None and waiting:
                        self._start(number, run := waiting.popleft())
                        yield RunEvent(run, "progress", 0.0)
                busy = {process.connection: n for n, process in enumerate(self.processes) if process.run}
                for connection in wait(list(busy), timeout=BEAT_SECONDS):
                    if (event := self._receive(busy[connection])) is not None:  # type: ignore[index]
                        yield event
                for number, process in enumerate(self.processes):
                    if process.is_hung:
                        yield self._end_hung_process(number)
        finally:
            if any(process.run for process in self.processes):
                self.close()

    def close(self) -> None:
        """End the processes; running experiments are saved."""
        for process in self.processes:
            process.interrupt()
        for process in self.processes:
            process.close()
        self.processes = []

    def _start(self, number: int, run: PlannedRun) -> None:
        devices = self._devices if run.is_real_time else [self._devices[number % len(self._devices)]]
        places = self.runs.absolute(), self.data, self.address, ",".join(devices)
        what = run.id, run.order, run.measurements
        order = cloudpickle.dumps((*what, *places, run.callbacks, Path.cwd(), sys.argv))
        try:
            self.processes[number].connection.send_bytes(order)
        except OSError:  # the process died while it was idle
            self._replace(number)
            self.processes[number].connection.send_bytes(order)
        self.processes[number].run, self.processes[number].heard = run, time.monotonic()

    def _end_hung_process(self, number: int) -> RunEvent:
        run = self.processes[number].run
        assert run is not None
        self._replace(number)
        return RunEvent(run, "failed", f"its process sent nothing for {SILENCE_SECONDS:g} s")

    def _replace(self, number: int) -> int:
        self.processes[number].run = None
        exit_code = self.processes[number].close()
        self.processes[number] = PoolProcess()
        return exit_code

    def _receive(self, number: int) -> RunEvent | None:
        """Return the event that a process reports; None for a sign of life."""
        process = self.processes[number]
        run = process.run
        assert run is not None
        try:
            kind, content = process.connection.recv()
        except (EOFError, OSError):
            return RunEvent(run, "failed", f"its process died (exit code {self._replace(number)})")
        process.heard = time.monotonic()
        if kind == "alive":
            return None
        if kind not in ("progress", "silent"):
            process.run = None
        return RunEvent(run, kind, content)


def serve_runs(fd: int) -> None:
    """Run experiments in a process of the pool until the connection closes."""
    os.setpgrp()  # Ctrl-C goes to the sweep, which interrupts each process once
    connection, lock = Connection(fd), threading.Lock()

    def send(message: Any) -> None:
        with lock:
            connection.send(message)

    def beat() -> None:
        reported: list[str] = []
        with suppress(OSError):
            while True:
                time.sleep(BEAT_SECONDS)
                silences = list_silences()
                send(("silent", silences[0]) if silences and not reported else ("alive", None))
                reported = silences

    send(os.getpid())
    threading.Thread(target=beat, daemon=True).start()
    while True:
        try:
            *order, folder, sys.argv = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        os.chdir(folder)
        try:
            result = run_and_summarise(lambda seen: send(("progress", seen.spent)), *order)
        except KeyboardInterrupt:  # the sweep was interrupted, and the run is saved
            return
        send(result)


def run_and_summarise(
    progress: Callable[[RunProgress], None],
    id: str | None,
    order: dict[str, Any] | Repetition,
    measurements: tuple[str, ...],
    runs: Path,
    data: Path | None,
    address: str | None = None,
    device: str = "cpu",
    callbacks: Sequence[Callback] = (),
) -> tuple[str, SummaryRow | str]:
    """Run an experiment on one core, or use its record. Return ("done", row) or ("failed", reason)."""
    try:
        if isinstance(order, Repetition):
            return "done", summarise_throughput(order)
        experiment = Experiment(**order)
        if id is not None and experiment.id != id:
            problem = f"the process that runs it computes the id {experiment.id} instead of {id}"
            reason = "the versions of straggler differ, or a custom object has no stable fingerprint"
            return "failed", f"{problem}: {reason}"
        cluster = address if experiment.engine == "ray" else None
        how = {"progress": progress, "address": cluster, "device": device, "callbacks": callbacks}
        record = experiment.run(runs, jobs=1, data=data, **how)  # type: ignore[arg-type]
        return "done", summarise_run(experiment, record, measurements, data)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
