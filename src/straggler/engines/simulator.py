"""Virtual time: the clock jumps to the next finished job; gradients are computed ahead on all cores."""

from functools import partial
from heapq import heappop, heappush
from typing import ClassVar, Self

from straggler.core import Arrival, Gradient, Job
from straggler.engines import EngineSetup
from straggler.engines.pool.gradient_pool import ComputeTask, GradientComputer
from straggler.timing.durations import Durations

Flight = tuple[
    Job, ComputeTask | None, float, float, float
]  # job, task, start, seconds of compute and of delay


class Simulator:
    """An engine in virtual time. Durations are known at submission, and with them the order of arrivals."""

    is_virtual: ClassVar[bool] = True

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        return cls(setup.compute, setup.durations)

    def __init__(self, compute: GradientComputer, durations: Durations) -> None:
        self.now = 0.0
        self.compute, self.durations = compute, durations
        self.started: dict[int, float] = {}  # when each worker's latest job started
        self.launches: dict[int, int] = {}  # and its launch number
        # (time, worker, launch); cancelled jobs stay in the queue, so it must not hold their models
        self._queue: list[tuple[float, int, int]] = []
        self._flights: dict[int, Flight] = {}  # each busy worker's job
        self._uncomputed: list[tuple[float, int, int, ComputeTask]] = []  # tasks that no process computes yet
        self._resumed: dict[int, float] = {}

    def resume(self, now: float, started: dict[int, float], present: list[int]) -> None:
        """Continue at a time; the next jobs of these workers started when the checkpoint says."""
        self.now, self._resumed = now, dict(started)

    def submit(self, job: Job) -> None:
        """Start a job; a busy worker abandons its current job."""
        worker, launch = job.worker, job.launch
        started = self._resumed.pop(worker, self.now) if self._resumed else self.now
        self.started[worker], self.launches[worker] = started, launch
        compute, delay = self.durations.parts(worker, launch)
        time = started + (compute + delay)
        # Without a pool nothing is computed ahead, so no task is needed.
        task = self._create_task(job, time) if self.compute.looks_ahead else None
        self._flights[worker] = (job, task, started, compute, delay)
        heappush(self._queue, (time, worker, launch))

    def next(self) -> Arrival | None:
        """Advance the clock to the next arrival and return it; None if no worker is busy."""
        flights = self._flights
        while self._queue:
            time, worker, launch = heappop(self._queue)
            if worker not in flights or flights[worker][0].launch != launch:
                continue  # the job was cancelled
            job, task, started, compute, delay = flights.pop(worker)
            self.now = time
            samples = self.compute.problem.batch_samples(worker, job.index)
            if task is None:
                return Arrival(job, started, time, samples, self.compute.gradient, None, compute, delay)
            fetch, ignore = partial(self._fetch, task), partial(self.compute.abandon, task)
            return Arrival(job, started, time, samples, fetch, ignore, compute, delay, lent=True)
        return None

    def close(self) -> None:
        """Do nothing: whoever created the gradient computer closes it."""

    def _create_task(self, job: Job, time: float) -> ComputeTask:
        """Create the task that computes a gradient ahead of its arrival; abandon the previous one."""
        task = self.compute.gradient_task(job.x, job.buffers, job.worker, job.index)
        if (abandoned := self._flights.get(job.worker)) is not None and abandoned[1] is not None:
            self.compute.abandon(abandoned[1])
        heappush(self._uncomputed, (time, job.worker, job.launch, task))
        return task

    def _fetch(self, task: ComputeTask, job: Job) -> Gradient:
        self.compute.ahead(self._next_uncomputed)
        return self.compute.borrow(task)

    def _next_uncomputed(self) -> ComputeTask | None:
        """Return the task with the earliest arrival that no process computes yet."""
        while self._uncomputed:
            task = heappop(self._uncomputed)[-1]
            if not task.abandoned:
                return task
        return None
