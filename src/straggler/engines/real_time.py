"""Base of the real-time engines: a clock, the current job of every worker, and recovery from failures."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from straggler.core import Arrival, Change, Job, Message, WorkerProgram
from straggler.engines import EngineSetup
from straggler.engines.pool.child_process import START_SECONDS
from straggler.running.watchdog import note_progress

if TYPE_CHECKING:
    from straggler.timing import Durations

FAILURES_PER_WORKER, FAILURE_WINDOW = 5, 60.0  # more failures than this within the window (s) end the run
WAKE_SECONDS = 0.25  # between two looks at the clock and at stop signals while no message comes
WAITING_SECONDS = 10.0  # without a message until the run says for which workers it waits


class WorkerError(RuntimeError):
    """Raised if workers or the cluster keep failing, or if the custom model or data raised an exception."""

    exit_code = 1


@dataclass
class RunningJob:
    """The current job of a worker."""

    job: Job
    started: float
    delay: float  # injected seconds
    since: float  # when the process could begin; the timeout counts from here


class RealTimeEngine(ABC):
    """Base class of real-time engines: restart crashed or hung workers and repeat their jobs.

    While at least `min_workers` others are present, the run does not wait for a restarted worker: it leaves,
    and joins again when its process is ready.
    """

    is_virtual: ClassVar[bool] = False

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        shared = (setup.compute.program, setup.durations, setup.workers, setup.min_workers)
        limits: dict[str, Any] = {"seconds": setup.seconds, "should_stop": setup.should_stop}
        return cls(*shared, setup.worker_timeout, setup.report_failure, report=setup.report, **limits)

    def __init__(
        self,
        program: WorkerProgram,
        durations: "Durations",
        workers: int,
        min_workers: int | None = None,
        timeout: float = math.inf,
        report_failure: Callable[[float, int, str], None] = lambda time, worker, reason: None,
        seconds: float = math.inf,
        should_stop: Callable[[], bool] = lambda: False,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.program, self.durations = program, durations
        self.timeout, self.report_failure = timeout, report_failure
        self.seconds, self._should_stop, self._report = seconds, should_stop, report
        self._waited = 0.0  # seconds of a start at whose end no worker was ready
        self._heard: float | None = 0.0  # time of the last arrival; None: the wait for workers was reported
        self.workers, self.restarts = workers, 0
        self.min_workers = workers if min_workers is None else min_workers
        self.started: dict[int, float] = {}
        self.launches: dict[int, int] = {}
        self._running: dict[int, RunningJob] = {}
        self._absent: set[int] = set()  # workers that left
        self._changes: deque[tuple[int, bool]] = deque()  # (worker, joined) not delivered to the server yet
        self._failures: deque[float] = deque()  # times
        self._began = time.monotonic()
        try:
            self._open()
            for worker in range(workers):
                self._start_worker(worker)
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def state(self) -> dict[str, Any]:
        return {}

    def resume(
        self, now: float, started: dict[int, float], present: list[int], state: dict[str, Any]
    ) -> None:
        """Set the clock. Jobs in flight are computed again, and workers that had left join again."""
        self._began = time.monotonic() - now - self._waited
        self._heard = self.now
        if self.min_workers < self.workers:
            joining = {worker for worker, joined in self._changes if joined}  # restarted during the start
            left = set(range(self.workers)) - set(present) - self._absent - joining
            self._changes.extend((worker, True) for worker in sorted(left))

    def submit(self, job: Job) -> bool:
        if job.worker in self._absent:
            return False  # the server is about to learn that the worker left
        _, delay = self.durations.parts(job.worker, job.launch)
        now, before = self.now, self._running.get(job.worker)
        # A worker that gets job after job and never delivers has been hanging since the first of them.
        self._running[job.worker] = RunningJob(job, now, delay, before.since if before else now)
        self.started[job.worker], self.launches[job.worker] = now, job.launch
        self._send(self._running[job.worker])
        return True

    def next(self) -> Arrival | Change | None:
        """Return the next arrival or change of workers.

        Return None if no worker is busy, at the end of the seconds, and when the run should stop.
        """
        while self._running or self._absent or self._changes:
            note_progress()
            if self._changes:
                worker, joined = self._changes.popleft()
                self._running.pop(worker, None)
                return Change(worker, self.now, joined)
            if (timeout := self._time_to_deadline()) == 0:
                self._restart_hung_workers()
            if (arrival := self._receive(min(timeout, WAKE_SECONDS))) is not None:
                self._heard = arrival.time
                return arrival
            if self.now >= self.seconds or self._should_stop():
                return None
            self._report_waiting()
        return None

    def _report_waiting(self) -> None:
        """Say once for which workers the run waits, if no message has come for a while."""
        if self._heard is None or self.now < self._heard + WAITING_SECONDS:
            return
        missing = [worker for worker in range(self.workers) if not self._is_ready(worker)]
        if missing:
            self._report(f"Waiting for {len(missing)} of {self.workers} workers to start.")
            self._heard = None

    # To be implemented by an engine.

    @abstractmethod
    def _open(self) -> None:
        """Prepare the resources that all workers share."""

    @abstractmethod
    def close(self) -> None:
        """End all workers, also if `_open` failed."""

    @abstractmethod
    def _start_worker(self, worker: int) -> None:
        """Start a process for a worker, without waiting until it is ready."""

    @abstractmethod
    def _kill_worker(self, worker: int) -> str:
        """End the process of a worker; return how it ended ("was killed (signal 9)")."""

    @abstractmethod
    def _is_ready(self, worker: int) -> bool:
        """Return whether the process of a worker is ready."""

    @abstractmethod
    def _has_unread_message(self, worker: int) -> bool:
        """Return whether a worker has sent a message that was not received yet."""

    @abstractmethod
    def _send(self, running: RunningJob) -> None:
        """Send a worker its job, which replaces an earlier one."""

    @abstractmethod
    def _receive(self, timeout: float) -> Arrival | None:
        """Wait up to `timeout` seconds for messages of workers; return an arrival, if one came."""

    # Shared by all engines.

    def _wait_until_ready(self) -> None:
        """Wait until enough workers are ready, restarting those that hang; then start the clock."""
        since, longest = self.now, self.timeout + START_SECONDS
        while sum(map(self._is_ready, range(self.workers))) < self.min_workers:
            if self.now >= self.seconds:
                self._waited = self.seconds
                ready = sum(map(self._is_ready, range(self.workers)))
                self._report(
                    f"Only {ready} of {self.min_workers} workers were ready after {self.seconds:g} s, the "
                    f"whole budget of the run."
                )
                break
            if self.now >= since + longest:
                for worker in range(self.workers):
                    if not self._is_ready(worker):
                        self._restart(worker, f"did not start within {longest:g} s")
                since = self.now
            self._receive(WAKE_SECONDS)
            self._report_waiting()
        for worker in range(self.workers):
            if not self._is_ready(worker) and worker not in self._absent and not self._waited:
                self._leave(worker)
        self._began = time.monotonic()

    def _mark_ready(self, worker: int) -> None:
        """Note that the process of a worker is ready."""
        if (running := self._running.get(worker)) is not None:
            running.since = self.now
        if worker in self._absent:
            self._absent.remove(worker)
            self._changes.append((worker, True))

    def _leave(self, worker: int) -> None:
        self._running.pop(worker, None)
        self._absent.add(worker)
        self._changes.append((worker, False))

    def _make_arrival(self, worker: int, message: Message, compute: float, lent: bool = False) -> Arrival:
        running, now = self._running.pop(worker), self.now
        job, started, delay = running.job, running.started, running.delay
        samples = self.program.count_samples(worker, job.index)
        return Arrival(
            job, started, now, samples, lambda job: message, compute=compute, delay=delay, lent=lent
        )

    def _time_to_deadline(self) -> float:
        """Return the seconds until the first worker counts as hung; inf if no worker can hang."""
        if math.isinf(self.timeout) or not self._running:
            return math.inf
        return max(0.0, min(map(self._deadline, self._running)) - self.now)

    def _deadline(self, worker: int) -> float:
        running = self._running[worker]
        starting = 0.0 if self._is_ready(worker) else START_SECONDS
        return running.since + running.delay + self.timeout + starting

    def _restart_hung_workers(self) -> None:
        for worker in [worker for worker in self._running if self._deadline(worker) <= self.now]:
            if not self._has_unread_message(worker):  # the server may just have been busy
                self._restart(worker, f"sent nothing for {self.timeout:g} s")

    def _restart(self, worker: int, reason: str = "") -> None:
        """Start a new process for a worker, and send it the worker's job again."""
        end = self._kill_worker(worker)
        reason = f"Worker {worker} {reason} (its process {end})" if reason else f"Worker {worker} {end}"
        self.restarts += 1
        self.report_failure(self.now, worker, reason)
        self._count_failure(reason)
        try:
            self._start_worker(worker)
        except OSError as error:  # no descriptors or no memory
            raise WorkerError(f"Worker {worker} could not be restarted: {error.strerror}") from error
        if worker not in self._absent and self.workers - len(self._absent) > self.min_workers:
            self._leave(worker)
        if (running := self._running.get(worker)) is not None:
            running.since = self.now
            self._send(running)

    def _count_failure(self, reason: str) -> None:
        self._failures.append(self.now)
        while self._failures[0] < self.now - FAILURE_WINDOW:
            self._failures.popleft()
        if len(self._failures) > FAILURES_PER_WORKER * self.workers:
            raise WorkerError(
                f"{len(self._failures)} failures within {FAILURE_WINDOW:g} s. The last one: {reason}. "
                f"Signal 9 often means that memory ran out: use fewer workers."
            )
