"""A recorded order of arrivals, executed again: a real run, bit for bit, offline."""

import math
from collections.abc import Iterable
from functools import partial

from straggler.core import Arrival, Change, Gradient, Job
from straggler.engines.pool.gradient_pool import ComputeTask, GradientComputer


class ReplayEngine:
    """Jobs arrive, and workers come and go, as a record says, whatever they would take here."""

    def __init__(self, compute: GradientComputer, order: Iterable[tuple[float, int, int, str]]) -> None:
        self.now = 0.0
        self.compute = compute
        self._order = iter(order)  # (time, worker, index of its batch, decision)
        self._current: dict[int, tuple[Job, float, ComputeTask]] = {}

    def submit(self, job: Job) -> None:
        task = self.compute.gradient_task(job.x, job.buffers, job.worker, job.index)
        self._current[job.worker] = (job, self.now, task)

    def next(self) -> Arrival | Change | None:
        arrival = next(self._order, None)
        if arrival is None:
            return Change(-1, math.inf, joined=False)  # past every budget of seconds
        self.now, worker, index, decision = arrival
        if decision in ("joined", "left"):
            self._current.pop(worker, None)
            return Change(worker, self.now, joined=decision == "joined")
        if worker not in self._current or self._current[worker][0].index != index:
            raise RuntimeError(
                f"the record says that worker {worker} delivered its batch {index} at {self.now:g} s, "
                f"but here it was not asked to: the record is of another experiment or code"
            )
        job, started, task = self._current.pop(worker)
        samples = self.compute.problem.batch_samples(worker, index)
        return Arrival(job, started, self.now, samples, partial(self._result, task))

    def close(self) -> None:
        """The processes that compute are not its own."""

    def _result(self, task: ComputeTask, job: Job) -> Gradient:
        gradient: Gradient = self.compute.result(task)
        return gradient
