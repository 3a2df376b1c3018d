"""The server: the model, the jobs in flight, and the components that decide."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from straggler.core.buffers import BufferAverage
from straggler.core.interfaces import Correction, Diverged, Optimizer, Policy
from straggler.core.messages import Arrival, Decision, Job


@dataclass(slots=True)
class Ledger:
    """Counts of dispatched jobs by their outcome."""

    dispatched: int = 0
    applied: int = 0
    dropped: int = 0
    cancelled: int = 0

    def check(self, in_flight: int) -> None:
        """Raise AssertionError unless every dispatched job is accounted for exactly once."""
        if self.applied + self.dropped + self.cancelled + in_flight != self.dispatched:
            raise AssertionError(f"{self} does not balance with {in_flight} jobs in flight")


@dataclass(slots=True, eq=False)
class ServerState:
    """Everything on the server that changes during a run, except the state of its components."""

    x: Tensor  # the model, flat
    buffers: Tensor  # mean of the workers' buffers, flat
    active: dict[int, None]  # ordered set of the workers that get jobs
    finished: list[int]  # gradients that each worker delivered
    launched: list[int]  # jobs that each worker started
    buffer_average: BufferAverage
    pending: Tensor  # sum of the gradients merged since the last step
    k: int = 0  # number of steps
    busy: dict[int, Job] = field(default_factory=dict)
    aside: list[Arrival] = field(default_factory=list)  # arrivals that a policy stores to merge later
    ledger: Ledger = field(default_factory=Ledger)
    gradients: int = 0
    samples: int = 0
    staleness_sum: int = 0  # of the applied gradients
    staleness_max: int = 0
    held: int = 0  # number of gradients in `pending`
    pending_staleness: int = 0
    pending_scale: float = 1.0
    last_worker: int = -1  # the worker whose gradient was merged last


class Server(ServerState):
    """The model, each worker's current job, and the policy, correction and optimizer that decide."""

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
        nothing = x.new_empty(0)  # not a slice of x, which would keep the first model alive
        active, finished, launched = dict.fromkeys(range(workers)), [0] * workers, [0] * workers
        super().__init__(x, buffers, active, finished, launched, BufferAverage(buffers), pending=nothing)
        self.policy, self.correction, self.optimizer = copy.deepcopy((policy, correction, optimizer))
        self.epoch = epoch  # samples in one epoch
        self.cancelled: list[Job] = []  # cancelled by the last arrival or change
        self._schedule, self._nothing = lr, nothing
        self._has_buffers = buffers.numel() > 0
        self._arrival: Arrival | None = None  # the arrival being processed, and the decision on it so far
        self._decision: Decision = "dropped"
        self.policy.check(workers)
        self._merges = self.policy.merges(workers)
        self._sends_model = type(self.optimizer).send is Optimizer.send
        self.policy.reset(self)
        self.correction.begin(x, workers)
        self.optimizer.begin(x, workers)

    @property
    def lr(self) -> float:
        """Return the learning rate at the current epoch."""
        return self._schedule(self.samples / self.epoch)

    @property
    def epochs(self) -> float:
        """Return the number of epochs processed so far."""
        return self.samples / self.epoch

    @property
    def in_flight(self) -> int:
        """Return the number of jobs that are neither applied, dropped nor cancelled yet."""
        return len(self.busy) + len(self.aside) + self.held

    def begin(self) -> list[Job]:
        """Return the first jobs of a run."""
        return self._start(self.policy.begin(self))

    def receive(self, arrival: Arrival) -> tuple[Decision, list[Job]]:
        """Let the policy decide on an arrival; return the decision and the jobs that start now."""
        worker = arrival.worker
        del self.busy[worker]
        if self.cancelled:
            self.cancelled = []
        self.finished[worker] += 1
        self.gradients += 1
        self._arrival, self._decision = arrival, "dropped"
        try:
            starting = self.policy.receive(self, arrival)
        finally:  # a step uses the learning rate before the arrival's samples are counted
            self.samples += arrival.samples
        if self._decision == "dropped":  # neither applied nor merged
            if any(stored is arrival for stored in self.aside):
                self._decision = "held"
            else:
                self.ledger.dropped += 1
                arrival.ignore()
        self._arrival = None  # otherwise its model and gradient would stay in memory
        return self._decision, self._start(starting)

    def change(self, worker: int, joined: bool) -> list[Job]:
        """Add or remove a worker; return the jobs that start now. A removed worker's job is cancelled."""
        self.cancelled = []
        if joined == (worker in self.active):
            return []
        if joined:
            self.active = dict.fromkeys(sorted({*self.active, worker}))
            self.buffer_average.joined(worker)
            return self._start(self.policy.joined(self, worker))
        self.retire(worker)
        if (job := self.busy.pop(worker, None)) is not None:
            self._cancel(job)
        self.buffers = self.buffer_average.left(worker)
        starting = self.policy.left(self, worker)
        self.optimizer.left(worker)
        return self._start(starting)

    def retire(self, worker: int) -> None:
        """Stop assigning jobs to this worker."""
        self.active.pop(worker, None)

    def staleness(self, job: Job) -> int:
        """Return the number of steps since the job was issued."""
        return self.k - job.version

    def merge(self, arrival: Arrival) -> None:
        """Correct an arrival's gradient and add it to the next step."""
        if self._merges or self.aside:  # other gradients are accessed before this one is used
            arrival.keep()
        gradient, worker = arrival.gradient, arrival.worker
        if not math.isfinite(gradient.loss):
            self.ledger.dropped += 1
            raise Diverged(f"Worker {worker} reported the loss {gradient.loss} after {self.k} updates.")
        direction, scale = self.correction.correct(gradient.vector, arrival, self)
        if self.held == 0:
            self.pending, self.pending_scale = direction, scale
        else:  # in a mean, each gradient has its own scale
            if self.pending_scale != 1.0:
                self.pending, self.pending_scale = self.pending * self.pending_scale, 1.0
            self.pending = self.pending.add(direction, alpha=scale)
        self.held += 1
        if arrival is self._arrival:
            self._decision = "held"
        self.last_worker = worker
        staleness = self.k - arrival.job.version
        self.pending_staleness += staleness
        if staleness > self.staleness_max:
            self.staleness_max = staleness
        if self._has_buffers:
            self.buffers = self.buffer_average.put(worker, gradient.buffers)

    def step(self, aggregate: Literal["mean", "sum"] = "mean") -> None:
        """Move the model by the mean or sum of the gradients merged since the last step."""
        direction = self.pending
        if self.held > 1 and aggregate == "mean":
            direction = direction / self.held
        before, worker = self.x, self.last_worker
        lr = self._schedule(self.samples / self.epoch) * self.pending_scale
        modifications = before._version
        self.x = self.optimizer.step(before, direction, lr, worker)
        if before._version != modifications:
            raise TypeError(
                f"{self.optimizer} modified the model in place. Optimizer.step must return a new tensor."
            )
        self.k += 1
        if self._decision == "held":
            self._decision = "applied"
        self.ledger.applied += self.held
        self.staleness_sum += self.pending_staleness
        self.held, self.pending_staleness, self.pending_scale = 0, 0, 1.0
        self.pending = self._nothing
        self.correction.stepped(self, before, lr)
        if worker not in self.active:  # this was the last gradient of the worker
            self.optimizer.left(worker)

    def state(self) -> dict[str, Any]:
        """Return everything that a checkpoint stores, including the jobs in flight."""
        values = {each.name: getattr(self, each.name) for each in fields(ServerState)}
        return {
            "server": ServerState(**values),
            "policy": self.policy.state(),
            "correction": self.correction.state(),
            "optimizer": self.optimizer.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a server that was constructed with the same settings."""
        for each in fields(ServerState):
            setattr(self, each.name, getattr(state["server"], each.name))
        self.policy.restore(state["policy"])
        self.correction.restore(state["correction"])
        self.optimizer.restore(state["optimizer"])

    def _start(self, workers: Iterable[int]) -> list[Job]:
        """Assign a job to each of these workers that is active."""
        jobs = []
        for worker in workers:
            if worker not in self.active:
                continue
            if worker in self.busy:
                self._cancel(self.busy[worker])
            version, x = self.policy.view(self, worker)
            if not self._sends_model:
                x = self.optimizer.send(x, self.lr, worker)
            launch = self.launched[worker]
            job = Job(worker, self.finished[worker], launch, version, x, self.buffers)
            self.launched[worker] = launch + 1
            self.busy[worker] = job
            self.ledger.dispatched += 1
            jobs.append(job)
        return jobs

    def _cancel(self, job: Job) -> None:
        """Count a cancelled job. The worker's next job uses the same batch, since `finished` is unchanged."""
        self.cancelled.append(job)
        self.ledger.cancelled += 1
