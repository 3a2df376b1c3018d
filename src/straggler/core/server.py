"""The server: the model, the jobs in flight, and the pieces that decide."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from torch import Tensor

from straggler.core.buffers import BufferAverage
from straggler.core.interfaces import Correction, Diverged, Optimizer, Policy
from straggler.core.messages import Arrival, Decision, Job


@dataclass
class Ledger:
    """Where every dispatched job went."""

    dispatched: int = 0
    applied: int = 0
    dropped: int = 0
    cancelled: int = 0

    def check(self, in_flight: int) -> None:
        accounted = self.applied + self.dropped + self.cancelled + in_flight
        if accounted != self.dispatched:
            raise AssertionError(f"{self} with {in_flight} in flight accounts for {accounted} jobs")


class Server:
    """The model, what every worker is on, and the three pieces that decide."""

    _KEPT = (
        "x", "buffers", "k", "active", "busy", "aside", "finished", "launched", "ledger", "gradients",
        "samples", "staleness_sum", "staleness_max", "held", "_pending", "_pending_staleness", "_scale",
        "_last_worker", "_buffers",
    )  # fmt: skip

    def __init__(
        self,
        x: Tensor,
        buffers: Tensor,
        workers: int,
        policy: Policy,
        correction: Correction,
        optimizer: Optimizer,
        lr: Callable[[float], float],
        epoch: int,
    ) -> None:
        self.x, self.buffers, self.k = x, buffers, 0
        self.policy, self.correction, self.optimizer = copy.deepcopy((policy, correction, optimizer))
        self.active = dict.fromkeys(range(workers))  # an ordered set
        self.busy: dict[int, Job] = {}
        self.aside: list[Arrival] = []  # finished, but not to be used yet
        self.finished, self.launched = [0] * workers, [0] * workers
        self.ledger = Ledger()
        self.gradients, self.samples, self.epoch = 0, 0, epoch
        self.staleness_sum, self.staleness_max = 0, 0
        self.cancelled: list[Job] = []  # by the last arrival
        self.lost = False  # a gradient was not finite
        self._schedule = lr
        self._merged_now: list[Arrival] = []  # since the last arrival came, for a step to come
        self._used_now: list[Arrival] = []  # since then, by a step
        self._buffers = BufferAverage(buffers)
        self._nothing = x.new_empty(0)  # a slice would keep the first model alive
        self._clear_pending()
        self.policy.check(workers)
        self._merges = self.policy.merges(workers)
        self.policy.reset(self)
        self.correction.begin(x, workers)
        self.optimizer.begin(x, workers)

    @property
    def lr(self) -> float:
        return self._schedule(self.epochs)

    @property
    def epochs(self) -> float:
        return self.samples / self.epoch

    @property
    def in_flight(self) -> int:
        """Jobs whose fate is open: still computing, set aside, or held for a step to come."""
        return len(self.busy) + len(self.aside) + self.held

    def begin(self) -> list[Job]:
        return self._start(self.policy.begin(self))

    def receive(self, arrival: Arrival) -> tuple[Decision, list[Job]]:
        """Let the policy decide on an arrival; say what became of it, and the jobs that start now."""
        del self.busy[arrival.worker]
        self.cancelled = []
        self.finished[arrival.worker] += 1
        self.gradients += 1
        try:
            starting = self.policy.receive(self, arrival)
        finally:  # a step is made at the rate of the samples before it
            self.samples += arrival.samples
        decision = self._decision(arrival)
        self._merged_now, self._used_now = [], []
        return decision, self._start(starting)

    def change(self, worker: int, joined: bool) -> list[Job]:
        """A worker came, or is gone and gives back its batch; the jobs that start now."""
        self.cancelled = []
        if joined == (worker in self.active):
            return []
        if joined:
            self.active = dict.fromkeys(sorted({*self.active, worker}))
            self._buffers.joined(worker)
            return self._start(self.policy.joined(self, worker))
        self.retire(worker)
        if (job := self.busy.pop(worker, None)) is not None:
            self.cancelled.append(job)
            self.ledger.cancelled += 1
        self.buffers = self._buffers.left(worker)
        starting = self.policy.left(self, worker)
        self.optimizer.left(worker)
        self._merged_now, self._used_now = [], []
        return self._start(starting)

    def _start(self, workers: Iterable[int]) -> list[Job]:
        return [self._assign(worker) for worker in workers if worker in self.active]

    def _decision(self, arrival: Arrival) -> Decision:
        """What the policy did with an arrival: one that it neither merged nor set aside is dropped."""
        if any(used is arrival for used in self._used_now):
            return "applied"
        if any(kept is arrival for kept in chain(self._merged_now, self.aside)):
            return "held"
        self.ledger.dropped += 1
        arrival.ignore()
        return "dropped"

    def retire(self, worker: int) -> None:
        """This worker gets no more work."""
        self.active.pop(worker, None)

    def staleness(self, job: Job) -> int:
        return self.k - job.version

    def merge(self, arrival: Arrival) -> None:
        """Correct an arrival's gradient and add it to the next step."""
        if self._merges or self.aside:  # others are looked at before this one is done with
            arrival.keep()
        gradient = arrival.gradient
        if not math.isfinite(gradient.loss):
            self.ledger.dropped += 1
            self.lost = True
            raise Diverged(
                f"worker {arrival.worker} reported the loss {gradient.loss} after {self.k} updates"
            )
        direction, scale = self.correction.correct(gradient.vector, arrival, self)
        if self.held == 0:
            self._pending, self._scale = direction, scale
        else:  # in a mean every message carries its own scale
            if self._scale != 1.0:
                self._pending, self._scale = self._pending * self._scale, 1.0
            self._pending = self._pending.add(direction, alpha=scale)
        self.held += 1
        self._merged_now.append(arrival)
        self._last_worker = arrival.worker
        self._pending_staleness += self.staleness(arrival.job)
        self.staleness_max = max(self.staleness_max, self.staleness(arrival.job))
        self.buffers = self._buffers.put(arrival.worker, gradient.buffers)

    def step(self, aggregate: Literal["mean", "sum"] = "mean") -> None:
        """Move the model by what was merged since the last step."""
        direction = self._pending
        if aggregate == "mean" and self.held > 1:
            direction = direction / self.held
        before, lr, worker = self.x, self.lr * self._scale, self._last_worker
        changes = before._version
        self.x = self.optimizer.step(before, direction, lr, worker)
        if before._version != changes:
            raise TypeError(
                f"{self.optimizer} changed the model, which jobs in flight hold; return a new one"
            )
        self.k += 1
        self._used_now += self._merged_now
        self._merged_now = []
        self.ledger.applied += self.held
        self.staleness_sum += self._pending_staleness
        self._clear_pending()
        self.correction.stepped(self, before, lr)
        if worker not in self.active:  # its last gradient
            self.optimizer.left(worker)

    def state(self) -> dict[str, Any]:
        """All that a checkpoint must keep, jobs in flight included."""
        pieces = {name: getattr(self, name).state() for name in ("policy", "correction", "optimizer")}
        return {name: getattr(self, name) for name in self._KEPT} | pieces

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of a server that was made with the same settings."""
        for name in self._KEPT:
            setattr(self, name, state[name])
        for name in ("policy", "correction", "optimizer"):
            getattr(self, name).restore(state[name])

    def _clear_pending(self) -> None:
        self.held, self._pending_staleness, self._scale, self._last_worker = 0, 0, 1.0, -1
        self._pending = self._nothing

    def _assign(self, worker: int) -> Job:
        if worker in self.busy:  # its batch goes back: `finished` did not move
            self.cancelled.append(self.busy[worker])
            self.ledger.cancelled += 1
        version, x = self.policy.view(self, worker)
        job = Job(worker, self.finished[worker], self.launched[worker], version, x, self.buffers)
        self.busy[worker] = job
        self.launched[worker] += 1
        self.ledger.dispatched += 1
        return job
