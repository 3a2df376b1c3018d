"""The server: the model, the jobs in flight, and the components that decide."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from straggler.core.buffers import BufferAverage
from straggler.core.interfaces import Aggregation, Correction, Diverged, Optimizer, Policy
from straggler.core.messages import Arrival, Decision, Job, Memory
from straggler.core.program import WorkerProgram, fetch_memory, with_memory_here


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
    finished: list[int]  # messages that each worker delivered
    launched: list[int]  # jobs that each worker started
    buffer_average: BufferAverage
    k: int = 0  # number of steps
    busy: dict[int, Job] = field(default_factory=dict)
    aside: list[Arrival] = field(default_factory=list)  # arrivals that a policy stores to merge later
    ledger: Ledger = field(default_factory=Ledger)
    gradients: int = 0  # of single batches; a message of local steps counts several
    samples: int = 0
    staleness_sum: int = 0  # of the applied messages
    staleness_max: int = 0
    held: int = 0  # number of messages merged since the last step
    pending_staleness: int = 0  # their sum of staleness
    pending_version: int = 0  # their oldest version
    last_worker: int = -1  # the worker whose message was merged last
    departed: dict[int, None] = field(default_factory=dict)  # left, but messages are in the next step
    memories: dict[int, Memory] = field(default_factory=dict)  # what each worker remembers
    bytes_up: int = 0  # of the messages that arrived
    bytes_down: int = 0  # of the models that were sent
    unsent: int = 0  # jobs that started but were not passed to the engine yet
    average: Tensor | None = None  # exponential moving average of the model, if there is one


class Server(ServerState):
    """The model, each worker's current job, and the components that decide."""

    def __init__(
        self,
        x: Tensor,
        buffers: Tensor,
        workers: int,
        policy: Policy,
        correction: Correction,
        aggregation: Aggregation,
        optimizer: Optimizer,
        lr: Callable[[float], float],
        program: WorkerProgram,
        average: float = 0.0,  # decay of the moving average; 0: no average
    ) -> None:
        active, finished, launched = dict.fromkeys(range(workers)), [0] * workers, [0] * workers
        super().__init__(x, buffers, active, finished, launched, BufferAverage(buffers))
        stages = copy.deepcopy((policy, correction, aggregation, optimizer))
        self.policy, self.correction, self.aggregation, self.optimizer = stages
        self.program, self.epoch = program, program.problem.samples  # samples in one epoch
        self._average_decay = average
        if average:
            self.average = x.clone()
        self.cancelled: list[Job] = []  # cancelled by the last arrival or change
        self._schedule = lr
        self._batches = None if program.batches is None else list(program.batches)
        self._remembers, self._rounds_models = program.memory > 0, program.model_dtype != x.dtype
        self._rounded: tuple[Tensor, Tensor] | None = None  # a model, and what workers receive of it
        self._bytes_up, self._bytes_down = program.bytes_up, program.bytes_down
        self._has_buffers = buffers.numel() > 0
        self._arrival: Arrival | None = None  # the arrival being processed, and the decision on it so far
        self._decision: Decision = "dropped"
        self.policy.check(workers)
        self._keeps = self.policy.merges(workers) or self.aggregation.keeps_messages
        self._sends_model = type(self.optimizer).send is Optimizer.send
        self.policy.reset(self)
        for stage in (self.correction, self.aggregation, self.optimizer):
            stage.begin(x, workers, program.problem.shapes)

    @property
    def lr(self) -> float:
        """Return the learning rate at the current epoch."""
        return self._schedule(self.samples / self.epoch)

    @property
    def epochs(self) -> float:
        """Return the number of epochs processed so far."""
        return self.samples / self.epoch

    @property
    def readout(self) -> Tensor:
        """Return the model to evaluate: the moving average if there is one, otherwise the model."""
        return self.x if self.average is None else self.average

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
        self.gradients += 1 if self._batches is None else self._batches[worker]
        self.bytes_up += self._bytes_up * (1 + arrival.outdated)
        self.bytes_down -= self._bytes_down * arrival.unsent
        if self._remembers:  # computed and sent, so it counts even if the policy drops the message
            memory = arrival.message.memory
            if memory is not None:
                self.memories[worker] = memory
        self._arrival, self._decision = arrival, "dropped"
        try:
            starting = self.policy.receive(self, arrival)
        finally:  # a step uses the learning rate before the arrival's samples are counted
            self.samples += arrival.samples
        if self._decision == "dropped":  # neither applied nor merged
            if any(stored is arrival for stored in reversed(self.aside)):
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
        self.memories.pop(worker, None)  # a worker that comes back starts without a memory
        if (job := self.busy.pop(worker, None)) is not None:
            self._cancel(job)
        self.buffers = self.buffer_average.left(worker)
        starting = self.policy.left(self, worker)
        self._forget(worker)
        if self.held:  # perhaps by a message of this worker
            self.departed[worker] = None
        return self._start(starting)

    def retire(self, worker: int) -> None:
        """Stop assigning jobs to this worker."""
        self.active.pop(worker, None)

    def staleness(self, job: Job) -> int:
        """Return the number of steps since the job was issued."""
        return self.k - job.version

    def merge(self, arrival: Arrival) -> None:
        """Correct an arrival's message and add it to the next step."""
        if self._keeps or self.aside:  # other messages are accessed before this one is used
            arrival.keep()
        message, worker, version = arrival.message, arrival.worker, arrival.job.version
        if not math.isfinite(message.loss):
            self.ledger.dropped += 1
            raise Diverged(f"Worker {worker} reported the loss {message.loss} after {self.k} updates.")
        vector, scale = self.correction.correct(message.vector, arrival, self)
        self.aggregation.add(vector, scale, arrival, self)
        if self.held == 0 or version < self.pending_version:
            self.pending_version = version
        self.held += 1
        if arrival is self._arrival:
            self._decision = "held"
        self.last_worker = worker
        if worker not in self.active:
            self.departed[worker] = None
        staleness = self.k - version
        self.pending_staleness += staleness
        if staleness > self.staleness_max:
            self.staleness_max = staleness
        if self._has_buffers:
            self.buffers = self.buffer_average.put(worker, message.buffers)

    def step(self) -> bool:
        """Move the model by the messages merged since the last step.

        Return False if the aggregation still waits for others.
        """
        combined = self.aggregation.combine(self)
        if combined is None:
            return False
        direction, scale = combined
        before, worker = self.x, self.last_worker
        lr = self._schedule(self.samples / self.epoch) * scale
        modifications = before._version
        self.x = self.optimizer.step(before, direction, lr, worker, self.pending_version)
        if before._version != modifications:
            raise TypeError(
                f"{self.optimizer} modified the model in place. Optimizer.step must return a new tensor."
            )
        self.k += 1
        if self._decision == "held":
            self._decision = "applied"
        self.ledger.applied += self.held
        self.staleness_sum += self.pending_staleness
        self.held, self.pending_staleness = 0, 0
        self.correction.stepped(self, before, lr)
        if self.average is not None:  # a new tensor, because an evaluation may still use the old one
            self.average = torch.lerp(self.x, self.average, self._average_decay)
        if self.departed:
            self._forget_departed()
        return True

    def _forget_departed(self) -> None:
        """Tell the stages again that workers left, because a step used their last messages."""
        for worker in self.departed:
            if worker not in self.active:
                self._forget(worker)
        self.departed = {}

    def _forget(self, worker: int) -> None:
        """Tell the stages that a worker left."""
        for stage in (self.correction, self.aggregation, self.optimizer):
            stage.left(worker)

    def state(self) -> dict[str, Any]:
        """Return everything that a checkpoint stores, including the jobs in flight."""
        values = {each.name: getattr(self, each.name) for each in fields(ServerState)}
        values["busy"] = {worker: with_memory_here(job) for worker, job in self.busy.items()}
        values["memories"] = {worker: fetch_memory(memory) for worker, memory in self.memories.items()}
        return {
            "server": ServerState(**values),
            "policy": self.policy.state(),
            "correction": self.correction.state(),
            "aggregation": self.aggregation.state(),
            "optimizer": self.optimizer.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a server that was constructed with the same settings."""
        for each in fields(ServerState):
            setattr(self, each.name, getattr(state["server"], each.name))
        self.policy.restore(state["policy"])
        self.correction.restore(state["correction"])
        self.aggregation.restore(state["aggregation"])
        self.optimizer.restore(state["optimizer"])

    def _start(self, workers: Iterable[int]) -> list[Job]:
        """Assign a job to each of these workers that is active."""
        jobs = []
        for worker in workers:
            if worker not in self.active:
                continue
            if worker in self.busy:
                self._cancel(self.busy.pop(worker))  # pop: its next job goes to the end of `busy`
            version, x = self.policy.view(self, worker)
            if not self._sends_model:
                x = self.optimizer.send(x, self.lr, worker)
            if self._rounds_models:
                x = self._round_model(x)
            launch = self.launched[worker]
            memory = self.memories.get(worker) if self._remembers else None
            job = Job(worker, self.finished[worker], launch, version, x, self.buffers, memory)
            self.launched[worker] = launch + 1
            self.busy[worker] = job
            self.ledger.dispatched += 1
            jobs.append(job)
        self.unsent += len(jobs)
        return jobs

    def count_sent(self) -> None:
        """Count the bytes of the models in all jobs that started; the engine has received them."""
        self.bytes_down += self.unsent * self._bytes_down
        self.unsent = 0

    def _round_model(self, x: Tensor) -> Tensor:
        """Return a model as it arrives at the workers, computed once for every model."""
        if self._rounded is None or self._rounded[0] is not x:
            self._rounded = x, x.to(self.program.model_dtype).to(x.dtype)
        return self._rounded[1]

    def _cancel(self, job: Job) -> None:
        """Count a cancelled job. The worker's next job uses the same batch, since `finished` is unchanged."""
        self.cancelled.append(job)
        self.ledger.cancelled += 1
