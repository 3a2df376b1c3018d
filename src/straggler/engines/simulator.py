"""Virtual time: the clock jumps to the next finished job; gradients are computed ahead on all cores."""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import ClassVar, Self

from straggler.core import Arrival, Gradient, Job
from straggler.engines import EngineSetup
from straggler.engines.pool.gradient_pool import ComputeTask, GradientComputer
from straggler.timing.durations import Durations


class Simulator:
    """An engine in virtual time. Durations are known at submission, and with them the order of arrivals."""

    is_virtual: ClassVar[bool] = True

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        return cls(setup.compute, setup.durations)

    def __init__(self, compute: GradientComputer, durations: Durations) -> None:
        self.now = 0.0
        self.compute, self.durations = compute, durations
        self._compute_gradient = compute.gradient  # one bound method for all arrivals
        # (time, worker, launch); cancelled jobs stay in the queue, so it must not hold their models
        self._queue: list[tuple[float, int, int]] = []
        self._arrivals: dict[int, Arrival] = {}  # each busy worker's arrival to come
        self._uncomputed: list[tuple[float, int, int, ComputeTask]] = []  # tasks that are not started yet
        self._resumed: dict[int, float] = {}

    @property
    def started(self) -> dict[int, float]:
        """When each busy worker's job started."""
        return {worker: arrival.started for worker, arrival in self._arrivals.items()}

    @property
    def launches(self) -> dict[int, int]:
        """The launch number of each busy worker's job."""
        return {worker: arrival.job.launch for worker, arrival in self._arrivals.items()}

    def resume(self, now: float, started: dict[int, float], present: list[int]) -> None:
        """Set the clock to `now`. The next jobs of these workers began at `started`."""
        self.now, self._resumed = now, dict(started)

    def submit(self, job: Job) -> None:
        """Start a job; a busy worker abandons its current job."""
        worker, launch = job.worker, job.launch
        started = self._resumed.pop(worker, self.now) if self._resumed else self.now
        compute, delay = self.durations.parts(worker, launch)
        time = started + (compute + delay)
        samples = self.compute.problem.batch_samples(worker, job.index)
        if self.compute.looks_ahead:
            fetch, ignore = self._create_task(job, time)
            arrival = Arrival(job, started, time, samples, fetch, ignore, compute, delay, lent=True)
        else:  # the gradient is computed when it is accessed
            arrival = Arrival(job, started, time, samples, self._compute_gradient, None, compute, delay)
        self._arrivals[worker] = arrival
        heappush(self._queue, (time, worker, launch))

    def next(self) -> Arrival | None:
        """Advance the clock to the next arrival and return it; None if no worker is busy."""
        arrivals = self._arrivals
        while self._queue:
            time, worker, launch = heappop(self._queue)
            if worker in arrivals and arrivals[worker].job.launch == launch:  # else it was cancelled
                self.now = time
                return arrivals.pop(worker)
        return None

    def close(self) -> None:
        """Do nothing: the caller that created the gradient computer closes it."""

    def _create_task(self, job: Job, time: float) -> tuple[Callable[[Job], Gradient], Callable[[], None]]:
        """Create the task that computes a gradient ahead; return functions that fetch and abandon it."""
        if (abandoned := self._arrivals.get(job.worker)) is not None:
            abandoned.ignore()
        task = self.compute.gradient_task(job.x, job.buffers, job.worker, job.index)
        heappush(self._uncomputed, (time, job.worker, job.launch, task))
        return partial(self._fetch, task), partial(self.compute.abandon, task)

    def _fetch(self, task: ComputeTask, job: Job) -> Gradient:
        self.compute.start_tasks(self._next_uncomputed)
        return self.compute.borrow(task)

    def _next_uncomputed(self) -> ComputeTask | None:
        """Return the task with the earliest arrival that is not started yet."""
        while self._uncomputed:
            task = heappop(self._uncomputed)[-1]
            if not task.abandoned:
                return task
        return None
