"""Runs that a page starts: each is `straggler run` in a separate process, stopped by SIGINT.

The processes are started ahead where possible (`warm_run`), because they import torch first.
"""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import find_finished_record
from straggler.web.run_facts import build_command

MAX_RUNNING = 2
STOP_TIMEOUT = 20.0  # time to write a checkpoint before the process is killed
STOPPED_CODES = (None, 0, 130, -signal.SIGINT)  # return codes without an error


@dataclass
class StartedRun:
    """A process and its standard error."""

    process: "subprocess.Popen[bytes]"
    output: IO[bytes]

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send(self, arguments: Sequence[str]) -> None:
        """Send the arguments of `straggler` to a process that waits for them."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, and its output says why
            self.process.stdin.write(json.dumps(arguments).encode() + b"\n")
            self.process.stdin.flush()
        self.process.stdin.close()

    def kill(self) -> None:
        """Kill the process if it is still running, and close its output."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self.output.close()

    def read_error(self) -> str:
        """Return the last line of its output if it failed, otherwise an empty string."""
        if self.process.poll() in STOPPED_CODES:
            return ""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else f"The run ended with exit code {self.process.returncode}."


def start_process() -> StartedRun:
    """Start a process that imports what a run needs and waits for its arguments."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
    process = subprocess.Popen(
        [sys.executable, "-m", "straggler.cli.warm_run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=output,
        start_new_session=True,  # Ctrl-C in the terminal reaches the server only
    )
    return StartedRun(process, output)


class RunLauncher:
    """Starts and stops runs, at most MAX_RUNNING at a time; `close` lets each write a checkpoint."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._started: dict[str, StartedRun] = {}
        self._spares: list[StartedRun] = []  # processes that wait for a run
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
        if not all(spare.is_running for spare in self._spares):  # it would fail again and again
            self._discard_spares()
            return
        self._spares += [start_process() for _ in range(MAX_RUNNING - len(self._spares))]

    def _discard_spares(self) -> None:
        self._keeps_spares = False
        for spare in self._spares:
            spare.kill()
        self._spares = []

    def _take_process(self) -> StartedRun:
        """Return a process that waits for a run: one that was started ahead, if there is one."""
        while self._spares:
            spare = self._spares.pop(0)
            if spare.is_running:
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
            started = self._take_process()
            started.send(arguments)
            self._started[experiment.id] = started
            return True

    def stop(self, name: str) -> bool:
        """Ask a run to write a checkpoint and end; return False if it is not running."""
        with self._lock:
            if not self._is_running(name):
                return False
            self._started[name].process.send_signal(signal.SIGINT)
            return True

    def list_states(self) -> dict[str, dict[str, Any]]:
        """Return by id whether each started run is still running, and its error."""
        with self._lock:
            self._start_spares()
            return {
                name: {"running": started.is_running, "error": started.read_error()}
                for name, started in self._started.items()
            }

    def close(self) -> None:
        """Stop all runs; kill those that do not end in time."""
        with self._lock:
            self._discard_spares()
        for name in list(self._started):
            self.stop(name)
        for started in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(STOP_TIMEOUT)
            started.kill()

    def _is_running(self, name: str) -> bool:
        return name in self._started and self._started[name].is_running
