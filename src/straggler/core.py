"""The vocabulary. A server turns arrivals into jobs; an engine turns jobs into arrivals."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from straggler.buffers import MeanOfLatest
from straggler.catalogue import Entry
from straggler.ledger import Ledger
from straggler.messages import Arrival, Change, Decision, Gradient, Job

__all__ = [
    "Arrival",
    "Change",
    "Correction",
    "Decision",
    "Diverged",
    "Engine",
    "Gradient",
    "Job",
    "Optimizer",
    "Policy",
    "Server",
]


class Engine(Protocol):
    """Where and when jobs run: virtual time, processes, a cluster."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    def submit(self, job: Job) -> None:
        """Start a job; a worker that is busy abandons what it was doing."""

    def next(self) -> Arrival | Change | None:
        """Wait for, or jump to, the next finished job or change of workers; None if nobody works."""

    def close(self) -> None: ...


def remembered(name: str) -> property:
    """A private attribute, found at once: pydantic's own search takes longer than many a policy."""

    def recall(piece: "Piece") -> Any:
        return (piece.__pydantic_private__ or {})[name]

    return property(recall)


class Piece(Entry):
    """One of the three that decide; what it remembers of a run is in its private attributes."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name in cls.__private_attributes__:
            setattr(cls, name, remembered(name))

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: tensors, numbers, lists and dictionaries of them."""
        within = {name: value.state() for name, value in self if isinstance(value, Piece)}
        return dict(self.__pydantic_private__ or {}) | within

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            if name in type(self).model_fields:
                getattr(self, name).restore(value)
            else:
                setattr(self, name, value)


class Policy(Piece):
    """WHEN the server steps, and who starts again. Sees counts and times, never tensors."""

    def check(self, workers: int) -> None:
        """Refuse what cannot work with so many workers."""

    def merges(self, workers: int) -> bool:
        """Whether a step may be made of several gradients."""
        return False

    def reset(self, server: "Server") -> None:
        """Forget the last run."""

    def begin(self, server: "Server") -> Iterable[int]:
        """Who starts at the beginning."""
        return tuple(server.active)

    @abstractmethod
    def receive(self, server: "Server", arrival: Arrival) -> Iterable[int]:
        """Merge the arrival (or ignore it), perhaps step; answer who starts now."""

    def joined(self, server: "Server", worker: int) -> Iterable[int]:
        """A worker came: answer who starts now."""
        return (worker,)

    def left(self, server: "Server", worker: int) -> Iterable[int]:
        """A worker is gone, and nobody waits for it: answer who starts now."""
        return ()

    def view(self, server: "Server", worker: int) -> tuple[int, Tensor]:
        """The version and the model that a worker is given."""
        return server.k, server.optimizer.send(server.x, server.lr, worker)


class Correction(Piece):
    """WHAT is done to a stale gradient before it is used."""

    def check(self, policy: Policy, optimizer: "Optimizer") -> None:
        """Refuse what cannot work with these."""

    def begin(self, x: Tensor, workers: int) -> None:
        """Forget the last run."""

    @abstractmethod
    def correct(self, gradient: Tensor, arrival: Arrival, server: "Server") -> tuple[Tensor, float]:
        """The gradient to use, and a factor for the learning rate (not the same thing under momentum)."""

    def stepped(self, server: "Server", before: Tensor, lr: float) -> None:
        """Told after each server step: the model before it, and its learning rate."""


class Optimizer(Piece):
    """HOW the model moves, and what a worker is sent. The learning rate stays outside the velocity."""

    per_worker: ClassVar[bool] = False  # keeps something for each worker, so a step must be one worker's

    def begin(self, x: Tensor, workers: int) -> None:
        """Forget the last run."""

    @abstractmethod
    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        """The next model, in new memory: jobs in flight keep theirs."""

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        """What the worker computes at: the model, or a look-ahead."""
        return x

    def left(self, worker: int) -> None:
        """A worker is gone: forget what was kept for it."""

    def velocity(self) -> Tensor | None:
        """The momentum buffer of the last step, if there is one."""
        return None

    def decay(self) -> float:
        """Weight decay that the step adds to the gradient (not the decoupled kind)."""
        return 0.0


class Diverged(ArithmeticError):
    """The run is lost: a loss that is not a finite number, or a network that does not tell inputs apart."""


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
        self._buffers = MeanOfLatest(buffers)
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
