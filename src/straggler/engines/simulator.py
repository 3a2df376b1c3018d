"""Virtual time: the clock jumps to the next finished job; gradients are computed ahead on all cores."""

from functools import partial
from heapq import heappop, heappush
from typing import ClassVar, Self

from straggler.core import Arrival, Gradient, Job
from straggler.engines import EngineSetup
from straggler.engines.pool.gradient_pool import ComputeTask, GradientComputer
from straggler.timing import Durations

Flight = tuple[Job, ComputeTask, float, float, float]  # when it started, then what its time is spent on


class Simulator:
    """Durations are drawn when a job is submitted, so the order of arrivals is known ahead of time."""

    is_virtual: ClassVar[bool] = True

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        return cls(setup.compute, setup.durations)

    def __init__(self, compute: GradientComputer, durations: Durations) -> None:
        self.now = 0.0
        self.compute, self.durations = compute, durations
        # by time, worker and launch, without the jobs: cancelled ones stay there until their time comes
        self._queue: list[tuple[float, int, int]] = []
        self._unstarted: list[tuple[float, int, int, ComputeTask]] = []  # whose gradient nobody computes yet
        self._current: dict[int, Flight] = {}  # what each worker is on
        self.started: dict[int, float] = {}  # when each worker's job began
        self.launches: dict[int, int] = {}  # and which of its jobs that is
        self._resumed: dict[int, float] = {}

    def resume(self, now: float, started: dict[int, float], present: list[int]) -> None:
        """Go on at a time; jobs submitted next by these workers began when they did."""
        self.now, self._resumed = now, dict(started)

    def submit(self, job: Job) -> None:
        task = self.compute.gradient_task(job.x, job.buffers, job.worker, job.index)
        if (abandoned := self._current.get(job.worker)) is not None:
            self.compute.abandon(abandoned[1])
        started = self.started[job.worker] = self._resumed.pop(job.worker, self.now)
        self.launches[job.worker] = job.launch
        compute, delay = self.durations.parts(job.worker, job.launch)
        time = started + (compute + delay)
        self._current[job.worker] = (job, task, started, compute, delay)
        heappush(self._queue, (time, job.worker, job.launch))
        if self.compute.looks_ahead:
            heappush(self._unstarted, (time, job.worker, job.launch, task))

    def next(self) -> Arrival | None:
        while self._queue:
            time, worker, launch = heappop(self._queue)
            if worker in self._current and self.launches[worker] == launch:
                job, task, started, compute, delay = self._current.pop(worker)
                self.now = time
                samples = self.compute.problem.batch_samples(worker, job.index)
                fetch, ignore = partial(self._result, task), partial(self.compute.abandon, task)
                lent = self.compute.looks_ahead
                return Arrival(job, started, time, samples, fetch, ignore, compute, delay, lent)
        return None

    def close(self) -> None:
        """The processes that compute are not its own."""

    def _result(self, task: ComputeTask) -> Gradient:
        self.compute.ahead(self._soonest)
        return self.compute.borrow(task)

    def _soonest(self) -> ComputeTask | None:
        """The next to arrive of those that nobody computes yet."""
        while self._unstarted:
            task = heappop(self._unstarted)[-1]
            if not task.abandoned:
                return task
        return None
