"""Runs that a page starts: each is `straggler run` in a separate process, which the page can stop or end.

The processes are started ahead where possible (`warm_run`), because they import torch first.
"""

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import find_finished_record
from straggler.web.run_facts import build_command

MAX_RUNNING = 2
STOP_TIMEOUT = 20.0  # time to write a checkpoint before the process is killed, at the end of the server
SILENT_SECONDS = 30.0  # without news, until the page says so; a run writes its summary twice a second
PATIENCE_SECONDS = 3.0  # after a run was asked to stop, until the next request ends it
STOPPED_CODES = (None, 0, 130, -signal.SIGINT)  # return codes without an error


@dataclass
class SpareProcess:
    """A process that waits for the arguments of a run, and its standard error."""

    process: "subprocess.Popen[bytes]"
    output: IO[bytes]

    def send(self, arguments: Sequence[str]) -> None:
        """Send the arguments of `straggler` to a process that waits for them."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, and its output says why
            self.process.stdin.write(json.dumps(arguments).encode() + b"\n")
            self.process.stdin.flush()
        self.process.stdin.close()

    def kill(self) -> None:
        """End the process, and close its output."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self.output.close()


@dataclass
class StartedRun:
    """A process, its standard error and its record."""

    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    folder: Path
    began: float = field(default_factory=time.time)
    asked: float | None = None  # when it was asked to stop
    was_killed: bool = False

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def read_error(self) -> str:
        """Return the last line of its output if it failed, otherwise an empty string."""
        if self.was_killed and not self.is_running:
            return (
                "The run was ended before it could save. Start it again to resume from its last checkpoint."
            )
        if self.process.poll() in STOPPED_CODES:
            return ""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else f"The run ended with exit code {self.process.returncode}."

    def count_silent_seconds(self) -> int:
        """Return the seconds without news from a running process, in tens; 0 if they are few."""
        written = self.began
        with contextlib.suppress(OSError):
            written = max(written, (self.folder / "summary.json").stat().st_mtime)
        silence = time.time() - written
        return int(silence // 10 * 10) if self.is_running and silence >= SILENT_SECONDS else 0

    @property
    def can_be_ended(self) -> bool:
        """Whether it was asked to stop some seconds ago, so that the next request ends it."""
        return self.asked is not None and time.monotonic() - self.asked >= PATIENCE_SECONDS

    def interrupt(self) -> None:
        """Ask the process to write a checkpoint and end, also if it was stopped (SIGSTOP)."""
        if self.asked is None:  # a second signal would end it at once
            self.asked = time.monotonic()
            self.process.send_signal(signal.SIGINT)
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once; the run can be resumed from its last checkpoint."""
        self.was_killed = True
        self.process.kill()
        self.process.wait()

    def describe(self) -> dict[str, Any]:
        """Return what the page shows of the process."""
        return {
            "running": self.is_running,
            "error": self.read_error(),
            "silent": self.count_silent_seconds(),
            "can_be_ended": self.is_running and self.can_be_ended,
        }


def start_process() -> SpareProcess:
    """Start a process that imports what a run needs and waits for its arguments."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
    process = subprocess.Popen(
        [sys.executable, "-m", "straggler.cli.warm_run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=output,
        start_new_session=True,  # Ctrl-C in the terminal reaches the server only
    )
    return SpareProcess(process, output)


class RunLauncher:
    """Starts and stops runs, at most MAX_RUNNING at a time; `close` lets each write a checkpoint."""

    def __init__(self, runs: Path, report: Callable[[str], None] = lambda line: None) -> None:
        self.runs, self.report = runs, report
        self._started: dict[str, StartedRun] = {}
        self._spares: list[SpareProcess] = []  # processes that wait for a run
        self._keeps_spares = False
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Start processes that wait for a run, now and whenever no run is active."""
        with self._lock:
            self._keeps_spares = True
            self._start_spares()

    def _start_spares(self) -> None:
        if not self._keeps_spares or any(started.is_running for started in self._started.values()):
            return
        if not all(spare.process.poll() is None for spare in self._spares):  # it would fail again and again
            self._discard_spares()
            return
        self._spares += [start_process() for _ in range(MAX_RUNNING - len(self._spares))]

    def _discard_spares(self) -> None:
        self._keeps_spares = False
        for spare in self._spares:
            spare.kill()
        self._spares = []

    def _take_process(self) -> SpareProcess:
        """Return a process that waits for a run: one that was started ahead, if there is one."""
        while self._spares:
            spare = self._spares.pop(0)
            if spare.process.poll() is None:
                return spare
            spare.kill()
        return start_process()

    def start(self, experiment: Experiment, settings: Mapping[str, Any]) -> bool:
        """Start or resume a run; return False if it is finished or running already."""
        with self._lock:
            if self._is_running(experiment.id) or find_finished_record(self.runs / experiment.id) is not None:
                return False
            if sum(started.is_running for started in self._started.values()) >= MAX_RUNNING:
                raise InputError(
                    f"{MAX_RUNNING} runs are running already. Stop one, or wait until it is finished."
                )
            arguments = [*build_command(settings)[1:], "--out", str(self.runs.resolve()), "--jobs", "1"]
            ready = self._take_process()
            ready.send(arguments)
            folder = self.runs / experiment.id
            self._started[experiment.id] = StartedRun(ready.process, ready.output, folder)
            return True

    def stop(self, name: str) -> bool:
        """Ask a run to write a checkpoint and end; end a run that was asked some seconds ago.

        Return False if it is not running.
        """
        with self._lock:
            if not self._is_running(name):
                return False
            started = self._started[name]
            started.kill() if started.can_be_ended else started.interrupt()
            return True

    def list_states(self) -> dict[str, dict[str, Any]]:
        """Return by id whether each started run is still running, its silence and its error."""
        with self._lock:
            self._start_spares()
            return {name: started.describe() for name, started in self._started.items()}

    def close(self) -> None:
        """Stop all runs, kill those that do not end in time, and say so."""
        with self._lock:
            self._discard_spares()
        running = [started for started in self._started.values() if started.is_running]
        for started in running:
            started.interrupt()
        until = time.monotonic() + STOP_TIMEOUT
        for started in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(max(0.0, until - time.monotonic()))
            how = "was stopped"
            if started.is_running:
                started.kill()
                how = f"did not end within {STOP_TIMEOUT:g} s and was killed"
            command = f"straggler resume {shlex.quote(str(started.folder))}"
            self.report(f"The run {started.folder.name} {how}. Resume it with: {command}")
        for started in self._started.values():
            started.output.close()

    def _is_running(self, name: str) -> bool:
        return name in self._started and self._started[name].is_running
