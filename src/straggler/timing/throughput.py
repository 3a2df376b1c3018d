"""What a policy does with a cluster's time: how many gradients arrive and are used, and when.

Three ways to the same numbers, all on the addressed draws of `Durations`: where nobody waits and where all
start together, whole blocks of durations at once; else the policy itself, arrival by arrival.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from straggler.algorithms.corrections import Uncorrected
from straggler.algorithms.policies import Asynchronous, KBatchAsync, KSync, Synchronous
from straggler.core import Arrival, Gradient, Job, Optimizer, Policy, Server
from straggler.timing import BLOCK, Durations

Entry = tuple[float, int, int]  # time, worker, which of its launches
CAUTION = 1.01  # how much further than estimated one looks for the last arrival
SLICE = 2**21  # arrivals looked at together: bounds the memory


@dataclass(frozen=True)
class Throughput:
    """Where the jobs of a cluster were when the last update was made."""

    seconds: float
    updates: int
    gradients: int  # that arrived
    applied: int
    dropped: int
    cancelled: int
    dispatched: int


def measure_throughput(policy: Policy, durations: Durations, updates: int) -> Throughput:
    """Run a policy for so many updates, the fastest way that is exact."""
    policy.check(durations.workers)
    match policy:
        case Asynchronous():
            return nobody_waits(durations, updates, 1)
        case KBatchAsync(k=k):
            return nobody_waits(durations, updates, k)
        case Synchronous():
            return rounds(durations, updates, durations.workers)
        case KSync(k=k):
            return rounds(durations, updates, k)
    return through_policy(policy, durations, updates)


def nobody_waits(durations: Durations, updates: int, k: int) -> Throughput:
    """Every worker goes on at once; each k arrivals are an update."""
    paths, wanted = [Path(durations, worker) for worker in range(durations.workers)], updates * k
    horizon, passed = 0.0, 0
    while True:  # in slices: what is surely before the last arrival is only counted
        rate = sum(path.rate for path in paths)
        horizon += CAUTION * max(durations.workers, min(SLICE, wanted - passed)) / rate
        arrived = sum(path.arrived(horizon) for path in paths)
        if arrived >= wanted:
            break
        for path in paths:
            path.forget(horizon)
        passed = arrived
    times = np.concatenate([path.times for path in paths])
    last = float(np.partition(times, wanted - passed - 1)[wanted - passed - 1])
    return Throughput(last, updates, wanted, wanted, 0, 0, wanted + durations.workers)


class Path:
    """When the jobs of a worker that never waits end."""

    def __init__(self, durations: Durations, worker: int) -> None:
        self.durations, self.worker = durations, worker
        self.times = np.cumsum(durations.block(worker, 0))  # those that are not forgotten
        self.blocks, self.forgotten, self.end = 1, 0, float(self.times[-1])

    @property
    def rate(self) -> float:
        """Jobs per second so far."""
        return self.blocks * BLOCK / self.end

    def arrived(self, horizon: float) -> int:
        """How many end by then."""
        while self.end < horizon:
            self._extend(max(1, int((horizon - self.end) * self.rate / BLOCK)))
        return self.forgotten + int(np.searchsorted(self.times, horizon, side="right"))

    def forget(self, horizon: float) -> None:
        """Keep those that end later."""
        arrived = self.arrived(horizon)
        self.times = self.times[arrived - self.forgotten :]
        self.forgotten = arrived

    def _extend(self, blocks: int) -> None:
        """So many blocks more, summed in the order in which the simulator's clock adds them."""
        seconds = [self.durations.block(self.worker, self.blocks + i) for i in range(blocks)]
        more = np.cumsum(np.concatenate([[self.end], *seconds]))[1:]
        self.times = np.concatenate([self.times, more])
        self.blocks, self.end = self.blocks + blocks, float(more[-1])


def rounds(durations: Durations, updates: int, k: int) -> Throughput:
    """All start together; the k-th to arrive ends the round, and the others are cancelled."""
    clock, workers = np.zeros(1), durations.workers
    for number in range(-(-updates // BLOCK)):
        table = np.stack([durations.block(worker, number) for worker in range(workers)])
        lengths = table.max(axis=0) if k == workers else np.partition(table, k - 1, axis=0)[k - 1]
        clock = np.cumsum(np.concatenate([clock[-1:], lengths[: updates - number * BLOCK]]))
    arrived = updates * k
    return Throughput(
        float(clock[-1]), updates, arrived, arrived, 0, updates * workers - arrived, (updates + 1) * workers
    )


class Still(Optimizer):
    """There is no model to move."""

    name: ClassVar[str] = "still"

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        return x


class Counter(Server):
    """A server that counts: there is nothing to merge and nothing to move."""

    def __init__(self, policy: Policy, workers: int) -> None:
        nothing = torch.zeros(0)
        super().__init__(
            nothing, nothing, workers, policy, Uncorrected(), Still(), lambda epochs: 0.0, epoch=1
        )

    def merge(self, arrival: Arrival) -> None:
        self.held += 1

    def step(self, aggregate: Literal["mean", "sum"] = "mean") -> None:
        self.k += 1
        self.ledger.applied += self.held
        self.held = 0


def through_policy(policy: Policy, durations: Durations, updates: int) -> Throughput:
    """The policy decides on every arrival, in the simulator's order: (time, worker, launch)."""
    server = Counter(policy, durations.workers)
    receive, busy, finished, launched = server.policy.receive, server.busy, server.finished, server.launched
    draws = [seconds_of(durations, worker).__next__ for worker in range(durations.workers)]
    arrivals = [blank_arrival(worker, server) for worker in range(durations.workers)]
    jobs = [arrival.job for arrival in arrivals]
    now, queue, starting = 0.0, list[Entry](), server.policy.begin(server)
    while True:
        begun = []
        for worker in starting:
            launch = launched[worker] = launched[worker] + 1
            busy[worker] = jobs[worker]
            begun.append((now + draws[worker](), worker, launch))
        if 2 * len(begun) > len(queue):
            queue = anew(queue, begun, launched)
        else:
            for entry in begun:
                heappush(queue, entry)
        if server.k >= updates:
            return outcome(server, now)
        if not queue:
            raise RuntimeError(f"{server.policy} left all workers idle after {server.k} updates")
        time, worker, launch = heappop(queue)
        starting = ()
        if launched[worker] == launch:  # else it was cancelled
            now = arrivals[worker].time = time
            del busy[worker]
            finished[worker] += 1
            starting = receive(server, arrivals[worker])


def anew(queue: list[Entry], begun: list[Entry], launched: list[int]) -> list[Entry]:
    """The queue with what was begun and without what was cancelled: faster where that is most of it."""
    queue = [entry for entry in queue if launched[entry[1]] == entry[2]] + begun
    heapify(queue)
    return queue


def seconds_of(durations: Durations, worker: int) -> Iterator[float]:
    """A worker's durations, launch after launch."""
    for number in count():
        yield from array("d", durations.block(worker, number).tobytes())


def blank_arrival(worker: int, server: Server) -> Arrival:
    """What a worker hands in, each time the same: it has one job at a time."""
    job = Job(worker, 0, 0, 0, server.x, server.buffers)
    nothing = Gradient(server.x, 0.0, server.buffers)
    return Arrival(job, 0.0, 0.0, 1, lambda job: nothing)


def outcome(server: Server, now: float) -> Throughput:
    """From what the server counted; the rest follows from the ledger's law."""
    arrived, applied, dispatched = sum(server.finished), server.ledger.applied, sum(server.launched)
    dropped = arrived - applied - server.held - len(server.aside)
    cancelled = dispatched - arrived - len(server.busy)
    return Throughput(now, server.k, arrived, applied, dropped, cancelled, dispatched)
