"""Replay engine: deliver jobs in a recorded order, so that a real run is repeated bit for bit."""

import math
from collections.abc import Iterable

from straggler.core import Arrival, Change, Job
from straggler.engines.pool.gradient_pool import GradientComputer


class ReplayEngine:
    """An engine whose arrivals and changes of workers follow a record."""

    def __init__(self, compute: GradientComputer, order: Iterable[tuple[float, int, int, str]]) -> None:
        self.now = 0.0
        self.compute = compute
        self._order = iter(order)  # (time, worker, batch index, decision)
        self._flights: dict[int, tuple[Job, float]] = {}  # each busy worker's job and when it started

    def submit(self, job: Job) -> None:
        """Start a job; a busy worker abandons its current job."""
        self._flights[job.worker] = (job, self.now)

    def next(self) -> Arrival | Change | None:
        """Return the next recorded arrival or change; after the last, a change at infinite time."""
        recorded = next(self._order, None)
        if recorded is None:
            return Change(-1, math.inf, joined=False)  # exceeds every budget of seconds
        self.now, worker, index, decision = recorded
        if decision in ("joined", "left"):
            self._flights.pop(worker, None)
            return Change(worker, self.now, joined=decision == "joined")
        job, started = self._flights.pop(worker, (None, 0.0))
        if job is None or job.index != index:
            raise RuntimeError(
                f"The record says that worker {worker} delivered batch {index} at {self.now:g} s, but the "
                f"replay did not ask for it. The record was made by another experiment or another version."
            )
        samples = self.compute.program.count_samples(worker, index)
        return Arrival(job, started, self.now, samples, self.compute.message)

    def close(self) -> None:
        """Do nothing: the caller that created the gradient computer closes it."""
