"""Real time on this machine: a process per worker, models and gradients in shared memory, the server here."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector

from straggler.core import Arrival, Change, Gradient, Job
from straggler.delays import Durations
from straggler.engines.child import Child, Inside, Layout
from straggler.engines.shared_memory import SharedMemory, pack
from straggler.problem import Problem

__all__ = ["Processes", "WorkerError", "work"]

SEATS = 2  # a newer job does not overwrite what an older one is still computed from
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


class Processes:
    """A worker that dies is replaced and its job done again; one that hangs is killed first.

    While at least `least` others are there, nobody waits for the replacement: the worker has left, and joins
    when it is ready.
    """

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
        self.least = workers if least is None else least
        self.restarts = 0
        self.started: dict[int, float] = {}
        self.launches: dict[int, int] = {}
        x, buffers = problem.initial()
        self._layout = Layout(x.numel(), buffers.numel(), x.dtype)
        payload, self._shared = pack(problem)
        self._packed = SharedMemory(len(payload))
        self._packed.bytes[: len(payload)] = payload
        self._selector = DefaultSelector()
        self._children = [self._spawn(worker) for worker in range(workers)]
        self._running: dict[int, Running] = {}
        self._absent: set[int] = set()  # workers that the server does not count on
        self._changes: deque[tuple[int, bool]] = deque()  # of which the server does not know yet
        self._failures: deque[float] = deque()
        self._began = time.monotonic()
        self._wait_until_ready()
        for worker, child in enumerate(self._children):
            if not child.ready and worker not in self._absent:
                self._leave(worker)
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def resume(self, now: float, started: dict[int, float], present: list[int]) -> None:
        """Go on at a time; jobs in flight are simply done again, and workers that were gone come back."""
        self._began = time.monotonic() - now
        if self.least < len(self._children):
            gone = set(range(len(self._children))) - set(present) - self._absent
            self._changes.extend((worker, True) for worker in sorted(gone))

    def submit(self, job: Job) -> None:
        if job.worker in self._absent:
            return  # the server is about to hear of it
        _, delay = self.durations.parts(job.worker, job.launch)
        now = self.now
        self._running[job.worker] = Running(job, now, delay, now)
        self.started[job.worker], self.launches[job.worker] = now, job.launch
        self._send(job, delay)

    def next(self) -> Arrival | Change | None:
        while self._running or self._absent or self._changes:
            if self._changes:
                worker, joined = self._changes.popleft()
                self._running.pop(worker, None)
                return Change(worker, self.now, joined)
            for key, _ in self._selector.select(self._patience()):
                arrival = self._hear(key.data)
                if arrival is not None:
                    return arrival
            self._replace_hung()
        return None

    def close(self) -> None:
        for child in self._children:
            child.close()
        for memory in (self._packed, *self._shared):
            memory.close()
        self._selector.close()

    def _spawn(self, worker: int) -> Child:
        inherited = [memory.fd for memory in self._shared]
        child = Child("processes:work", self._packed, inherited, self._layout, SEATS)
        self._selector.register(child.connection, EVENT_READ, worker)
        return child

    def _wait_until_ready(self) -> None:
        while sum(child.ready for child in self._children) < self.least:
            for key, _ in self._selector.select():
                self._hear(key.data)

    def _send(self, job: Job, delay: float) -> None:
        child = self._children[job.worker]
        seat = child.seats[job.launch % SEATS]
        seat.x.copy_(job.x)
        seat.buffers.copy_(job.buffers)
        with suppress(OSError):  # it died: `_hear` finds out
            child.connection.send((job.launch, job.worker, job.index, delay))

    def _hear(self, worker: int) -> Arrival | None:
        """One message of a worker: ready, a result, or its end."""
        child, running = self._children[worker], self._running.get(worker)
        try:
            message = child.connection.recv()
        except (EOFError, OSError):
            self._replace(worker, "died")
            return None
        if message is None:
            child.ready = True
            if running is not None:
                running.since = self.now
            if worker in self._absent:
                self._absent.remove(worker)
                self._changes.append((worker, True))
            return None
        launch, outcome, compute = message
        if isinstance(outcome, str):
            raise WorkerError(f"worker {worker} failed in the user's model or data:\n{outcome}")
        if running is None or running.job.launch != launch:
            return None  # of a job that was abandoned
        del self._running[worker]
        seat = child.seats[launch % SEATS]
        gradient = Gradient(seat.gradient.clone(), outcome, seat.buffers_after.clone())
        samples = self.problem.batch_samples(worker, running.job.index)
        return Arrival(
            running.job,
            running.started,
            self.now,
            samples,
            lambda: gradient,
            compute=compute,
            delay=running.delay,
        )

    def _patience(self) -> float | None:
        """Seconds until the first worker counts as hanging."""
        if self._changes:
            return 0.0
        if math.isinf(self.timeout) or not self._running:
            return None
        return max(0.0, min(map(self._deadline, self._running)) - self.now)

    def _deadline(self, worker: int) -> float:
        running = self._running[worker]
        starting = 0.0 if self._children[worker].ready else WINDOW
        return running.since + running.delay + self.timeout + starting

    def _replace_hung(self) -> None:
        for worker in [w for w in self._running if self._deadline(w) <= self.now]:
            self._replace(worker, f"gave no sign for {self.timeout:g} s")

    def _replace(self, worker: int, what: str) -> None:
        """A new process for a worker; its job, if it had one, is done again."""
        old = self._children[worker]
        self._selector.unregister(old.connection)
        old.close()
        reason = f"worker {worker} {what} (exit code {old.process.returncode})"
        self.restarts += 1
        self.failed(self.now, worker, reason)
        self._count_failure(reason)
        self._children[worker] = self._spawn(worker)
        if worker not in self._absent and len(self._children) - len(self._absent) > self.least:
            self._leave(worker)
        if (running := self._running.get(worker)) is not None:
            running.since = self.now
            self._send(running.job, running.delay)

    def _leave(self, worker: int) -> None:
        self._running.pop(worker, None)
        self._absent.add(worker)
        self._changes.append((worker, False))

    def _count_failure(self, reason: str) -> None:
        self._failures.append(self.now)
        while self._failures[0] < self.now - WINDOW:
            self._failures.popleft()
        if len(self._failures) > FAILURES_PER_WORKER * len(self._children):
            raise WorkerError(
                f"{len(self._failures)} failures within {WINDOW:g} s, the last: {reason}; "
                f"-9 is often a lack of memory: use fewer workers"
            )


def work(connection_fd: int, memory_fd: int) -> None:
    """A worker: compute the newest job, wait its delay unless a newer one comes, deliver."""
    with suppress(EOFError, OSError), Inside(connection_fd, memory_fd) as inside:
        while True:
            launch, worker, index, delay = inside.connection.recv()
            if inside.connection.poll():
                continue
            began = time.perf_counter()
            outcome = inside.answer(launch % SEATS, ("gradient", worker, index))
            compute = time.perf_counter() - began
            if not inside.connection.poll(delay):
                inside.connection.send((launch, outcome, compute))
