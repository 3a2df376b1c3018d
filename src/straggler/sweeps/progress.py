"""How far a sweep is: what is done, what failed, what is at hand, and how long the rest will take."""

import time
from collections.abc import Sequence
from typing import Any

from straggler.sweeps.grid import PlannedRun

MOST_TOLD = 50  # failures whose reasons are passed on


class SweepProgress:
    """Counts estimated seconds of work; the time left follows from how fast they are worked off."""

    def __init__(self, tasks: Sequence[PlannedRun], known: int = 0) -> None:
        self.tasks, self.known = {task.id: task for task in tasks}, known
        self.done = 0  # in this sitting; those that were known before come on top
        self.failures: dict[str, str] = {}  # reasons by id
        self.at_hand: dict[str, float] = {}  # how far each is, 0 to 1
        self.work = sum(task.seconds for task in tasks)
        self._over = 0.0  # estimated seconds of runs that came to an end
        self._began = time.monotonic()

    def spent(self, task: PlannedRun, part: float) -> None:
        self.at_hand[task.id] = part

    def succeed(self, task: PlannedRun) -> None:
        self.done += 1
        self._end(task)

    def fail(self, task: PlannedRun, reason: str) -> None:
        self.failures[task.id] = reason
        self._end(task)

    def _end(self, task: PlannedRun) -> None:
        self.at_hand.pop(task.id, None)
        self._over += task.seconds

    @property
    def worked(self) -> float:
        """Estimated seconds of work that are over, those of the runs at hand among them."""
        return self._over + sum(part * self.tasks[name].seconds for name, part in self.at_hand.items())

    def left(self) -> float | None:
        """Seconds; unknown at first."""
        worked, elapsed = self.worked, time.monotonic() - self._began
        if worked <= 0.01 * self.work or elapsed < 2:
            return None
        return (self.work - worked) * elapsed / worked

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, for who watches from outside."""
        runs, done, failed = len(self.tasks) + self.known, self.done + self.known, len(self.failures)
        reasons = list(self.failures.items())[:MOST_TOLD]
        return {
            "runs": runs,
            "done": done,
            "failed": failed,
            "missing": runs - done - failed,
            "part": (done + failed + sum(self.at_hand.values())) / max(1, runs),  # as the counts beside it
            "left": self.left(),
            "at_hand": [self._named(name) | {"part": part} for name, part in self.at_hand.items()],
            "failures": [self._named(name) | {"reason": reason} for name, reason in reasons],
            "ids": list(self.tasks),
        }

    def _named(self, name: str) -> dict[str, Any]:
        return {"id": name, "what": self.tasks[name].name}
