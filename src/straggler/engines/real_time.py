"""What engines in real time share: a clock, what every worker is on, and what is done when one fails."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from straggler.core import Arrival, Gradient, Job
from straggler.delays import Durations
from straggler.problem import Problem

__all__ = ["RealTime", "Running", "WorkerError"]

FAILURES_PER_WORKER, WINDOW = 5, 60.0  # more in so many seconds end the run


class WorkerError(RuntimeError):
    """Workers that keep failing, or an exception in the user's model or data."""


@dataclass
class Running:
    """What a worker is on."""

    job: Job
    started: float
    delay: float  # injected seconds
    since: float  # when the process that now has it could begin


class RealTime:
    """A worker that dies is replaced and its job done again; one that hangs is ended first."""

    def __init__(
        self,
        problem: Problem,
        durations: Durations,
        workers: int,
        timeout: float = math.inf,
        failed: Callable[[float, int, str], None] = lambda time, worker, what: None,
    ) -> None:
        self.problem, self.durations, self.timeout, self.failed = problem, durations, timeout, failed
        self.workers, self.restarts = workers, 0
        self.started: dict[int, float] = {}
        self.launches: dict[int, int] = {}
        self._running: dict[int, Running] = {}
        self._failures: deque[float] = deque()
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def resume(self, now: float, started: dict[int, float]) -> None:
        """Go on at a time; jobs in flight are simply done again."""
        self._began = time.monotonic() - now

    def submit(self, job: Job) -> None:
        _, delay = self.durations.parts(job.worker, job.launch)
        now = self.now
        self._running[job.worker] = Running(job, now, delay, now)
        self.started[job.worker], self.launches[job.worker] = now, job.launch
        self._send(self._running[job.worker])

    def next(self) -> Arrival | None:
        while self._running:
            if (patience := self._patience()) == 0:
                self._replace_hung()
            if (arrival := self._hear(patience)) is not None:
                return arrival
        return None

    # What an engine adds.

    def _ready(self, worker: int) -> bool:
        """Whether the process of a worker is up."""
        raise NotImplementedError

    def _send(self, running: Running) -> None:
        """Give a worker its job; what it was on does not matter any more."""
        raise NotImplementedError

    def _hear(self, patience: float | None) -> Arrival | None:
        """Wait at most so many seconds for something to happen; an arrival, if that is what it was."""
        raise NotImplementedError

    def _spoke(self, worker: int) -> bool:
        """Whether something a worker said is still to be heard: the server may have been busy."""
        raise NotImplementedError

    def _end(self, worker: int) -> str:
        """End what is left of a worker's process; say what it was."""
        raise NotImplementedError

    def _begin(self, worker: int) -> None:
        """Start a process for a worker, without waiting until it is up."""
        raise NotImplementedError

    # What they share.

    def _wait_until_ready(self) -> None:
        """The clock begins when everybody is up."""
        while not all(self._ready(worker) for worker in range(self.workers)):
            self._hear(None)
        self._began = time.monotonic()

    def _is_up(self, worker: int) -> None:
        if (running := self._running.get(worker)) is not None:
            running.since = self.now

    def _arrive(self, worker: int, gradient: Gradient) -> Arrival:
        running = self._running.pop(worker)
        samples = self.problem.batch_samples(worker, running.job.index)
        return Arrival(running.job, running.started, self.now, samples, lambda: gradient)

    def _patience(self) -> float | None:
        """Seconds until the first worker counts as hanging."""
        if math.isinf(self.timeout):
            return None
        return max(0.0, min(map(self._deadline, self._running)) - self.now)

    def _deadline(self, worker: int) -> float:
        running = self._running[worker]
        starting = 0.0 if self._ready(worker) else WINDOW
        return running.since + running.delay + self.timeout + starting

    def _replace_hung(self) -> None:
        late = [worker for worker in self._running if self._deadline(worker) <= self.now]
        for worker in late:
            if not self._spoke(worker):
                self._replace(worker, f"gave no sign for {self.timeout:g} s")

    def _replace(self, worker: int, what: str) -> None:
        """A new process for a worker; its job, if it had one, is done again."""
        reason = f"worker {worker} {what} ({self._end(worker)})"
        self.restarts += 1
        self.failed(self.now, worker, reason)
        self._count_failure(reason)
        self._begin(worker)
        if (running := self._running.get(worker)) is not None:
            running.since = self.now
            self._send(running)

    def _count_failure(self, reason: str) -> None:
        self._failures.append(self.now)
        while self._failures[0] < self.now - WINDOW:
            self._failures.popleft()
        if len(self._failures) > FAILURES_PER_WORKER * self.workers:
            raise WorkerError(
                f"{len(self._failures)} failures within {WINDOW:g} s, the last: {reason}; "
                f"-9 is often a lack of memory: use fewer workers"
            )
