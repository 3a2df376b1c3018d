"""Throughput of a policy on a cluster: updates and gradients per second, from simulated timing alone.

All functions use the addressed draws of `Durations`. If no worker waits, or if all start together, whole
blocks of durations are added at once; for other policies the event loop is simulated.
"""

from dataclasses import dataclass

import numpy as np

from straggler.algorithms.policies import Asynchronous, KBatchAsync, KSync, Synchronous
from straggler.core import Policy
from straggler.core.loop import Budget
from straggler.running.simulation import simulate_policy
from straggler.timing.durations import Durations
from straggler.timing.laws import BLOCK

MARGIN = 1.01  # factor by which the estimated time of the last arrival is exceeded
SLICE = 2**21  # number of arrivals that are sorted at once; bounds the memory


@dataclass(frozen=True)
class Throughput:
    """The time of the last update, and the counts of the cluster's jobs by outcome at that time."""

    seconds: float
    updates: int
    gradients: int  # number that arrived
    applied: int
    dropped: int
    cancelled: int
    dispatched: int


def measure_throughput(policy: Policy, durations: Durations, updates: int) -> Throughput:
    """Return the throughput over this many updates, computed in the fastest exact way."""
    policy.check(durations.workers)
    kind, k = type(policy), policy.gradients_per_step(durations.workers)
    if kind in (Asynchronous, KBatchAsync):  # not their subclasses, which may override anything
        return measure_without_waiting(durations, updates, k)
    if kind in (Synchronous, KSync):
        return measure_rounds(durations, updates, k)
    return measure_by_simulation(policy, durations, updates)


def measure_by_simulation(policy: Policy, durations: Durations, updates: int) -> Throughput:
    """Measure the throughput of any policy with the event loop."""
    simulation = simulate_policy(policy, durations, Budget(updates=updates))
    server, ledger = simulation.server, simulation.server.ledger
    jobs = (ledger.applied, ledger.dropped, ledger.cancelled, ledger.dispatched)
    return Throughput(simulation.engine.now, server.k, server.gradients, *jobs)


def measure_without_waiting(durations: Durations, updates: int, k: int) -> Throughput:
    """Measure the throughput if each worker restarts at once and every k-th arrival is an update."""
    paths, wanted = [ArrivalTimes(durations, worker) for worker in range(durations.workers)], updates * k
    horizon, passed = 0.0, 0
    while True:  # in slices: arrivals that are surely before the last one are only counted
        rate = sum(path.rate for path in paths)
        horizon += MARGIN * max(durations.workers, min(SLICE, wanted - passed)) / rate
        arrived = sum(path.count_until(horizon) for path in paths)
        if arrived >= wanted:
            break
        for path in paths:
            path.discard_until(horizon)
        passed = arrived
    times = np.concatenate([path.times for path in paths])
    last = float(np.partition(times, wanted - passed - 1)[wanted - passed - 1])
    return Throughput(last, updates, wanted, wanted, 0, 0, wanted + durations.workers)


class ArrivalTimes:
    """The times at which the jobs of one worker end if it never waits."""

    def __init__(self, durations: Durations, worker: int) -> None:
        self.durations, self.worker = durations, worker
        self.times = np.cumsum(durations.block(worker, 0))  # the times that are not discarded
        self.blocks, self.discarded, self.end = 1, 0, float(self.times[-1])

    @property
    def rate(self) -> float:
        """Return the number of jobs per second so far."""
        return self.blocks * BLOCK / self.end

    def count_until(self, horizon: float) -> int:
        """Return the number of jobs that end by this time."""
        while self.end < horizon:
            self._extend(max(1, int((horizon - self.end) * self.rate / BLOCK)))
        return self.discarded + int(np.searchsorted(self.times, horizon, side="right"))

    def discard_until(self, horizon: float) -> None:
        """Discard the times up to this one, but keep their count."""
        arrived = self.count_until(horizon)
        self.times = self.times[arrived - self.discarded :]
        self.discarded = arrived

    def _extend(self, blocks: int) -> None:
        """Add blocks of jobs, in the order in which the simulator's clock adds them."""
        seconds = [self.durations.block(self.worker, self.blocks + i) for i in range(blocks)]
        more = np.cumsum(np.concatenate([[self.end], *seconds]))[1:]
        self.times = np.concatenate([self.times, more])
        self.blocks, self.end = self.blocks + blocks, float(more[-1])


def measure_rounds(durations: Durations, updates: int, k: int) -> Throughput:
    """Measure the throughput if all start together and the k-th arrival ends a round, cancelling the rest."""
    clock, workers = np.zeros(1), durations.workers
    for number in range(-(-updates // BLOCK)):
        table = np.stack([durations.block(worker, number) for worker in range(workers)])
        lengths = table.max(axis=0) if k == workers else np.partition(table, k - 1, axis=0)[k - 1]
        clock = np.cumsum(np.concatenate([clock[-1:], lengths[: updates - number * BLOCK]]))
    arrived = updates * k
    return Throughput(
        float(clock[-1]), updates, arrived, arrived, 0, updates * workers - arrived, (updates + 1) * workers
    )
