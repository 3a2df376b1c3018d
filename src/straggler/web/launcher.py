"""Runs that a page starts: each is `straggler run` in a separate process, which the page can stop or end."""

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import find_finished_record
from straggler.web.run_facts import build_command

MAX_RUNNING = 2
STOP_TIMEOUT = 20.0  # time to write a checkpoint before the process is killed, at the end of the server
SILENT_SECONDS = (
    30.0  # without news from a run, until the page says so; a run writes its summary twice a second
)
PATIENCE_SECONDS = 3.0  # after a run was asked to stop, until the next request ends it
STOPPED_CODES = (None, 0, 130, -signal.SIGINT)  # return codes without an error


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


class RunLauncher:
    """Starts and stops runs, at most MAX_RUNNING at a time; `close` lets each write a checkpoint."""

    def __init__(self, runs: Path, report: Callable[[str], None] = lambda line: None) -> None:
        self.runs, self.report = runs, report
        self._started: dict[str, StartedRun] = {}
        self._lock = threading.Lock()

    def start(self, experiment: Experiment, settings: Mapping[str, Any]) -> bool:
        """Start or resume a run; return False if it is finished or running already."""
        with self._lock:
            if self._is_running(experiment.id) or find_finished_record(self.runs / experiment.id) is not None:
                return False
            if sum(started.is_running for started in self._started.values()) >= MAX_RUNNING:
                raise InputError(
                    f"{MAX_RUNNING} runs are running already. Stop one, or wait until it is finished."
                )
            output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
            arguments = [*build_command(settings)[1:], "--out", str(self.runs), "--jobs", "1"]
            process = subprocess.Popen(
                [sys.executable, "-m", "straggler", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal reaches the server only
            )
            self._started[experiment.id] = StartedRun(process, output, self.runs / experiment.id)
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
            return {name: started.describe() for name, started in self._started.items()}

    def close(self) -> None:
        """Stop all runs, kill those that do not end in time, and say so."""
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
