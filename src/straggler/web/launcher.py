"""Runs that a page starts: each is `straggler run` in a separate process, stopped by SIGINT."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
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

    def read_error(self) -> str:
        """Return the last line of its output if it failed, otherwise an empty string."""
        if self.process.poll() in STOPPED_CODES:
            return ""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else f"The run ended with exit code {self.process.returncode}."


class RunLauncher:
    """Starts and stops runs, at most MAX_RUNNING at a time; `close` lets each write a checkpoint."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
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
            self._started[experiment.id] = StartedRun(process, output)
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
            return {
                name: {"running": started.is_running, "error": started.read_error()}
                for name, started in self._started.items()
            }

    def close(self) -> None:
        """Stop all runs; kill those that do not end in time."""
        for name in list(self._started):
            self.stop(name)
        for started in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(STOP_TIMEOUT)
            if started.is_running:
                started.process.kill()
                started.process.wait()
            started.output.close()

    def _is_running(self, name: str) -> bool:
        return name in self._started and self._started[name].is_running
