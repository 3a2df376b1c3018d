"""The progress of a sweep: on the terminal, and in `progress.json` for the web pages."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from straggler.running.atomic_files import write_json_atomically
from straggler.running.recorder import lock_folder
from straggler.sweeps.cost import EstimateErrors, find_kind
from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.pool import RunEvent

MAX_REASONS = 50  # failures whose reasons are written
WRITE_SECONDS = 0.5  # between two versions of the file


@dataclass(frozen=True)
class LaterRuns:
    """Runs that are planned when others have ended, as far as their number is known."""

    count: int = 0
    seconds: float = 0.0  # estimated


class SweepProgress:
    """Counts runs that are done, running and failed; predicts the time left from the estimated work done."""

    def __init__(self, runs: Sequence[PlannedRun], cached: int = 0, later: LaterRuns | None = None) -> None:
        """`cached` runs are only in the results; they count as done."""
        self.runs, self.cached, self.later = {run.id: run for run in runs}, cached, later or LaterRuns()
        self.done, self._ended = 0, set[str]()
        self.failures: dict[str, str] = {}  # reasons by id
        self.running: dict[str, float] = {}  # progress by id, 0 to 1
        self._work_ended = 0.0
        self._errors, self._began = EstimateErrors(), dict[str, float]()
        self._side_by_side = 1  # the most runs at the same time so far
        self._started = time.monotonic()

    @property
    def work(self) -> float:
        """The estimated seconds of all runs."""
        return sum(run.seconds for run in self.runs.values()) + self.later.seconds

    @property
    def count(self) -> int:
        """The number of runs, including those that are not planned yet."""
        return len(self.runs) + self.later.count

    def add(self, runs: Sequence[PlannedRun], later: LaterRuns) -> None:
        """Count runs that are planned now, and those that remain to be planned."""
        self.runs |= {run.id: run for run in runs}
        self.later = later

    def update(self, event: RunEvent) -> None:
        """Count an event."""
        if event.kind == "silent":
            return
        if event.kind in ("progress", "repeated"):
            if event.run.id not in self.running and event.content == 0.0:
                self._began[event.run.id] = time.monotonic()
            if event.kind == "repeated":  # the lost part says nothing about the estimate
                self._began.pop(event.run.id, None)
            self.running[event.run.id] = event.content if event.kind == "progress" else 0.0
            self._side_by_side = max(self._side_by_side, len(self.running))
            return
        self.running.pop(event.run.id, None)
        self._work_ended += event.run.seconds
        if event.kind == "done" and (began := self._began.pop(event.run.id, None)) is not None:
            taken = time.monotonic() - began
            self._errors.add(find_kind(event.run.experiment), taken, event.run.seconds)
        self._ended.add(event.run.id)
        if event.kind == "failed":
            self.failures[event.run.id] = event.content
        else:
            self.done += 1

    @property
    def fraction(self) -> float:
        """The share of the estimated work that is done."""
        running = sum(part * self.runs[id].seconds for id, part in self.running.items())
        return (self._work_ended + running) / self.work if self.work else float(not self.running)

    @property
    def seconds_left(self) -> float | None:
        """The estimated time left; None in the beginning. Runs that ended correct the estimates."""
        elapsed = time.monotonic() - self._started
        if self.fraction <= 0.01 or elapsed < 2:
            return None
        if not self._errors:
            return elapsed * (1 / self.fraction - 1)
        left = [
            run.seconds * self._errors.factor(find_kind(run.experiment)) * (1 - self.running.get(id, 0.0))
            for id, run in self.runs.items()
            if id not in self._ended
        ]
        return max((sum(left) + self.later.seconds) / self._side_by_side, max(left, default=0.0))

    def __str__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        left = "" if self.seconds_left is None else f", {format_duration(self.seconds_left)} left"
        return f"{self.done} of {self.count} runs{failed}{left}"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `progress.json`."""
        runs, done, failed = self.count + self.cached, self.done + self.cached, len(self.failures)
        reasons = list(self.failures.items())[:MAX_REASONS]
        return {
            "runs": runs,
            "done": done,
            "failed": failed,
            "missing": runs - done - failed,
            "part": (done + failed + sum(self.running.values())) / max(1, runs),
            "left": self.seconds_left,
            "active": [self._describe(id) | {"part": part} for id, part in self.running.items()],
            "failures": [self._describe(id) | {"reason": reason} for id, reason in reasons],
            "ids": list(self.runs),
        }

    def _describe(self, id: str) -> dict[str, Any]:
        return {"id": id, "what": self.runs[id].name}


class ProgressFile:
    """Keeps `progress.json` in the results up to date, and locks the folder until the sweep ends."""

    def __init__(self, folder: Path, progress: SweepProgress) -> None:
        self.folder, self.progress = folder, progress
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._written = 0.0

    def __enter__(self) -> Self:
        self._lock = lock_folder(self.folder, "--results")
        self._write("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = "interrupted" if kind is KeyboardInterrupt else "failed"
        self._write(stopped if kind else "finished")
        self._lock.release()

    def update(self) -> None:
        """Write the file, unless that was done a moment ago."""
        if time.monotonic() - self._written > WRITE_SECONDS:
            self._write("running")

    def _write(self, status: str) -> None:
        self._written = time.monotonic()
        content = {"status": status, "started": self._started, **self.progress.to_dict()}
        write_json_atomically(self.folder / "progress.json", content)


def format_duration(seconds: float) -> str:
    """Return `40 s`, `12 min` or `3.1 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
