"""Runs that the page starts: each is `straggler run` in a process of its own, stopped as Ctrl-C would."""

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
from straggler.record import existing
from straggler.web.run_facts import build_command

MOST_AT_ONCE = 2
GRACE_SECONDS = 20.0  # to write a checkpoint
STOPPED = (None, 0, 130, -signal.SIGINT)  # return codes that are nobody's fault


@dataclass
class StartedRun:
    """A process, and what it says."""

    process: "subprocess.Popen[bytes]"
    words: IO[bytes]

    def problem(self) -> str:
        """Its last words, if it failed."""
        if self.process.poll() in STOPPED:
            return ""
        self.words.seek(0)
        lines = self.words.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else f"ended with code {self.process.returncode}"


class RunLauncher:
    """Starts and stops runs; few at a time, and none survives the server without a checkpoint."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._started: dict[str, StartedRun] = {}
        self._lock = threading.Lock()

    def start(self, experiment: Experiment, settings: Mapping[str, Any]) -> bool:
        """Begin, or go on with, a run; False if it is done or going on already."""
        with self._lock:
            if self._going(experiment.id) or existing(self.runs / experiment.id) is not None:
                return False
            if sum(map(self._going, self._started)) >= MOST_AT_ONCE:
                raise InputError(f"{MOST_AT_ONCE} runs go on already; stop one, or wait for it")
            words = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
            arguments = [*build_command(settings)[1:], "--out", str(self.runs), "--jobs", "1"]
            process = subprocess.Popen(
                [sys.executable, "-m", "straggler", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                start_new_session=True,  # Ctrl-C in the server's terminal is the server's
            )
            self._started[experiment.id] = StartedRun(process, words)
            return True

    def stop(self, name: str) -> bool:
        """Ask a run that was started here to save and end; False if there is none."""
        with self._lock:
            if not self._going(name):
                return False
            self._started[name].process.send_signal(signal.SIGINT)
            return True

    def states(self) -> dict[str, dict[str, Any]]:
        """By id, of every run that was started here: does it go on, and what went wrong."""
        with self._lock:
            return {
                name: {"going": self._going(name), "problem": started.problem()}
                for name, started in self._started.items()
            }

    def close(self) -> None:
        """Stop everything, giving each the time to save."""
        for name in list(self._started):
            self.stop(name)
        for started in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(GRACE_SECONDS)
            if started.process.poll() is None:
                started.process.kill()
                started.process.wait()
            started.words.close()

    def _going(self, name: str) -> bool:
        return name in self._started and self._started[name].process.poll() is None
