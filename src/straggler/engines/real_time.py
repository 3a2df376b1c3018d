"""What engines in real time share: a clock, what every worker is on, and what is done when one fails."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

from straggler.core import Arrival, Change, Gradient, Job, Problem
from straggler.engines import EngineSetup
from straggler.timing import Durations

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


class RealTimeEngine(ABC):
    """A worker that dies is replaced and its job done again; one that hangs is ended first.

    While at least `least` others are there, nobody waits for the replacement: the worker has left, and joins
    when it is up.
    """

    is_virtual: ClassVar[bool] = False

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        return cls(
            setup.compute.problem,
            setup.durations,
            setup.workers,
            setup.min_workers,
            setup.worker_timeout,
            setup.report_failure,
        )

    def __init__(
        self,
        problem: Problem,
        durations: Durations,
        workers: int,
        least: int | None = None,
        timeout: float = math.inf,
        failed: Callable[[float, int, str], None] = lambda time, worker, what: None,
    ) -> None:
        self.problem, self.durations, self.timeout, self.failed = problem, durations, timeout, failed
        self.workers, self.restarts = workers, 0
        self.least = workers if least is None else least
        self.started: dict[int, float] = {}
        self.launches: dict[int, int] = {}
        self._running: dict[int, Running] = {}
        self._absent: set[int] = set()  # workers that the server does not count on
        self._changes: deque[tuple[int, bool]] = deque()  # of which the server does not know yet
        self._failures: deque[float] = deque()
        self._began = time.monotonic()
        try:
            self._open()
            for worker in range(workers):
                self._begin(worker)
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def resume(self, now: float, started: dict[int, float], present: list[int]) -> None:
        """Go on at a time; jobs in flight are simply done again, and workers that were gone come back."""
        self._began = time.monotonic() - now
        if self.least < self.workers:
            coming = {worker for worker, joined in self._changes if joined}  # its process died as it started
            gone = set(range(self.workers)) - set(present) - self._absent - coming
            self._changes.extend((worker, True) for worker in sorted(gone))

    def submit(self, job: Job) -> None:
        if job.worker in self._absent:
            return  # the server is about to hear of it
        _, delay = self.durations.parts(job.worker, job.launch)
        now, before = self.now, self._running.get(job.worker)
        # A worker that is given job after job, and never speaks, hangs since the first of them.
        self._running[job.worker] = Running(job, now, delay, before.since if before else now)
        self.started[job.worker], self.launches[job.worker] = now, job.launch
        self._send(self._running[job.worker])

    def next(self) -> Arrival | Change | None:
        while self._running or self._absent or self._changes:
            if self._changes:
                worker, joined = self._changes.popleft()
                self._running.pop(worker, None)
                return Change(worker, self.now, joined)
            if (patience := self._patience()) == 0:
                self._replace_hung()
            if (arrival := self._hear(patience)) is not None:
                return arrival
        return None

    # What an engine adds.

    @abstractmethod
    def _open(self) -> None:
        """Prepare what all workers need."""

    @abstractmethod
    def close(self) -> None:
        """End everything, also if `_open` did not come to its end."""

    @abstractmethod
    def _ready(self, worker: int) -> bool:
        """Whether the process of a worker is up."""

    @abstractmethod
    def _send(self, running: Running) -> None:
        """Give a worker its job; what it was on does not matter any more."""

    @abstractmethod
    def _hear(self, patience: float | None) -> Arrival | None:
        """Wait at most so many seconds for something to happen; an arrival, if that is what it was."""

    @abstractmethod
    def _spoke(self, worker: int) -> bool:
        """Whether something a worker said is still to be heard: the server may have been busy."""

    @abstractmethod
    def _end(self, worker: int) -> str:
        """End what is left of a worker's process; say what it was."""

    @abstractmethod
    def _begin(self, worker: int) -> None:
        """Start a process for a worker, without waiting until it is up."""

    # What they share.

    def _wait_until_ready(self) -> None:
        """The clock begins when enough are up; the others will join. Who hangs as it starts is replaced."""
        since, longest = self.now, self.timeout + WINDOW
        while sum(map(self._ready, range(self.workers))) < self.least:
            if self.now >= since + longest:
                for worker in range(self.workers):
                    if not self._ready(worker):
                        self._replace(worker, f"did not start within {longest:g} s")
                since = self.now
            self._hear(None if math.isinf(longest) else max(0.0, since + longest - self.now))
        for worker in range(self.workers):
            if not self._ready(worker) and worker not in self._absent:
                self._leave(worker)
        self._began = time.monotonic()

    def _is_up(self, worker: int) -> None:
        if (running := self._running.get(worker)) is not None:
            running.since = self.now
        if worker in self._absent:
            self._absent.remove(worker)
            self._changes.append((worker, True))

    def _leave(self, worker: int) -> None:
        self._running.pop(worker, None)
        self._absent.add(worker)
        self._changes.append((worker, False))

    def _arrive(self, worker: int, gradient: Gradient, compute: float, lent: bool = False) -> Arrival:
        running, now = self._running.pop(worker), self.now
        job, started, delay = running.job, running.started, running.delay
        samples = self.problem.batch_samples(worker, job.index)
        return Arrival(
            job, started, now, samples, lambda job: gradient, compute=compute, delay=delay, lent=lent
        )

    def _patience(self) -> float | None:
        """Seconds until the first worker counts as hanging."""
        if math.isinf(self.timeout) or not self._running:
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
        if worker not in self._absent and self.workers - len(self._absent) > self.least:
            self._leave(worker)
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
