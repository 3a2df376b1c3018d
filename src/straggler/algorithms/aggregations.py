"""WHICH: the catalogue of aggregations, which combine the messages of a step into one direction."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from straggler.algorithms.policies.ringleader import Ringleader
from straggler.algorithms.worker_tables import LatestTable, WorkerSums
from straggler.config.registry import Catalogue
from straggler.core import Aggregation, Arrival, Optimizer, Policy, Server, Shapes


@dataclass(slots=True)
class Total:
    """The messages merged since the last step."""

    vector: Tensor | None = None
    scale: float = 1.0  # of the learning rate, while there is one message
    weight: float = 0.0  # of all messages


class RunningSum(Aggregation):
    """Base of the aggregations that add up messages as they arrive, and need one vector of memory."""

    _total: Total = PrivateAttr(default_factory=Total)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._total = Total()

    def weight(self, arrival: Arrival, server: Server) -> float:
        """Return the weight of a message in the sum."""
        return 1.0

    @abstractmethod
    def divide(self, total: Total) -> Tensor:
        """Return the direction that the sum of several messages stands for."""

    def add(self, vector: Tensor, scale: float, arrival: Arrival, server: Server) -> None:
        total: Total = self.__pydantic_private__["_total"]  # type: ignore[index]  # faster than getattr
        weight = self.weight(arrival, server)
        if total.vector is None:
            total.vector, total.scale = vector, scale
            if weight != 1.0:
                total.vector = vector * weight
        else:  # in a sum, each message has its own scale
            if total.scale != 1.0:
                total.vector, total.scale = total.vector * total.scale, 1.0
            total.vector = total.vector.add(vector, alpha=scale * weight)
        total.weight += weight

    def combine(self, server: Server) -> tuple[Tensor, float] | None:
        total: Total = self.__pydantic_private__["_total"]  # type: ignore[index]
        if total.vector is None:
            return None
        direction, scale = self.divide(total), total.scale
        total.vector, total.scale, total.weight = None, 1.0, 0.0
        return direction, scale


class Mean(RunningSum):
    """The mean of the messages of a step."""

    name: ClassVar[str] = "mean"

    def divide(self, total: Total) -> Tensor:
        assert total.vector is not None
        return total.vector if total.weight == 1.0 else total.vector / total.weight


class Sum(RunningSum):
    """The sum of the messages of a step."""

    name: ClassVar[str] = "sum"

    def divide(self, total: Total) -> Tensor:
        assert total.vector is not None
        return total.vector


class BySamples(Mean):
    """The mean of the messages, weighted by their numbers of samples. McMahan et al. 2017 (FedAvg)."""

    name: ClassVar[str] = "by-samples"

    def weight(self, arrival: Arrival, server: Server) -> float:
        return float(arrival.samples)


@dataclass
class Deliveries:
    """How many messages each worker delivered, and how many there are of all workers and in the next step."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    in_step: int = 0


class InverseFrequency(RunningSum):
    """The mean of g/(N fᵢ), where fᵢ is the worker's share of the messages so far. Leconte et al. 2024.

    Every worker has the same weight in the long run, however fast it is.
    """

    name: ClassVar[str] = "inverse-frequency"
    _deliveries: Deliveries = PrivateAttr(default_factory=Deliveries)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        super().begin(x, workers, shapes)
        self._deliveries = Deliveries()

    def weight(self, arrival: Arrival, server: Server) -> float:
        deliveries, worker = self._deliveries, arrival.worker
        counts = deliveries.counts
        counts[worker] = counts.get(worker, 0) + 1
        deliveries.total += 1
        deliveries.in_step += 1
        return deliveries.total / (len(counts) * counts[worker])

    def divide(self, total: Total) -> Tensor:
        assert total.vector is not None
        messages, self._deliveries.in_step = self._deliveries.in_step, 0
        return total.vector if messages == 1 else total.vector / messages

    def left(self, worker: int) -> None:
        self._deliveries.total -= self._deliveries.counts.pop(worker, 0)


class WorkerMeans(Aggregation):
    """The mean over workers of the mean of each worker's messages. Tyurin and Richtárik 2023 (Malenia)."""

    name: ClassVar[str] = "worker-means"
    keeps_messages: ClassVar[bool] = True
    _state: WorkerSums = PrivateAttr(default_factory=WorkerSums)

    def check(self, policy: Policy, optimizer: Optimizer, workers: int) -> None:
        refuse_per_worker(self, optimizer)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = WorkerSums()

    def add(self, vector: Tensor, scale: float, arrival: Arrival, server: Server) -> None:
        self._state.add(arrival.worker, vector if scale == 1.0 else vector * scale)

    def combine(self, server: Server) -> tuple[Tensor, float] | None:
        state = self._state
        if not state.sums:
            return None
        self._state = WorkerSums()
        return state.mean(), 1.0


class Latest(Aggregation):
    """The mean of every worker's latest message. Wang et al. 2024 (DuDe), Maranjyan et al. 2025 (IA²SGD).

    The first step waits until every active worker has delivered. With `max_staleness`, a step uses only the
    messages whose model is at most so many versions old (ACED, Chang et al. 2025).
    """

    name: ClassVar[str] = "latest"
    keeps_messages: ClassVar[bool] = True
    max_staleness: Annotated[float, Field(ge=0, allow_inf_nan=True)] = float("inf")
    _table: LatestTable = PrivateAttr(default_factory=LatestTable)

    def check(self, policy: Policy, optimizer: Optimizer, workers: int) -> None:
        refuse_per_worker(self, optimizer)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._table = LatestTable()

    def add(self, vector: Tensor, scale: float, arrival: Arrival, server: Server) -> None:
        table, worker, version = self._table, arrival.worker, arrival.job.version
        if version < server.k - self.max_staleness:
            table.remove(worker)
            return
        if self.max_staleness < float("inf"):
            table.set_version(worker, version)
        table.put(worker, vector if scale == 1.0 else vector * scale)

    def combine(self, server: Server) -> tuple[Tensor, float] | None:
        table = self._table
        if server.k == 0 and self._lacks_worker(server):
            return None
        if self.max_staleness < float("inf"):
            table.expire(math.ceil(server.k - self.max_staleness))
        return None if table.total is None else (table.total / len(table.latest), 1.0)

    def _lacks_worker(self, server: Server) -> bool:
        """Return whether an active worker has no message in the table."""
        latest, active = self._table.latest, server.active
        return len(latest) < len(active) or any(worker not in latest for worker in active)

    def left(self, worker: int) -> None:
        self._table.remove(worker)


@dataclass
class Cache:
    """The messages of the next step, and each worker's latest message before it."""

    step: list[tuple[int, Tensor]] = field(default_factory=list)  # (worker, message)
    latest: dict[int, Tensor] = field(default_factory=dict)
    total: Tensor | None = None  # sum of the latest


class Cached(Aggregation):
    """mean(Δᵢ − hᵢ) over the step's messages + mean(h) over all workers; then hᵢ = Δᵢ. Wang et al. 2024.

    The cached messages hᵢ calibrate a step that only some workers contribute to (CA²FL).
    """

    name: ClassVar[str] = "cached"
    keeps_messages: ClassVar[bool] = True
    _cache: Cache = PrivateAttr(default_factory=Cache)

    def check(self, policy: Policy, optimizer: Optimizer, workers: int) -> None:
        refuse_per_worker(self, optimizer)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._cache = Cache(total=torch.zeros_like(x))

    def add(self, vector: Tensor, scale: float, arrival: Arrival, server: Server) -> None:
        self._cache.step.append((arrival.worker, vector if scale == 1.0 else vector * scale))

    def combine(self, server: Server) -> tuple[Tensor, float] | None:
        cache = self._cache
        if not cache.step:
            return None
        assert cache.total is not None
        workers = max(len(server.active), len(cache.latest), 1)
        direction, share = cache.total / workers, 1 / len(cache.step)
        for worker, vector in cache.step:
            before = cache.latest.get(worker)
            direction.add_(vector if before is None else vector - before, alpha=share)
        for worker, vector in cache.step:
            before = cache.latest.get(worker)
            cache.total = cache.total + (vector if before is None else vector - before)
            cache.latest[worker] = vector
        cache.step = []
        return direction, 1.0

    def left(self, worker: int) -> None:
        if (vector := self._cache.latest.pop(worker, None)) is not None:
            assert self._cache.total is not None
            self._cache.total = self._cache.total - vector


def refuse_per_worker(aggregation: Aggregation, optimizer: Optimizer) -> None:
    """Raise ValueError if the optimizer needs steps that use one worker's message only."""
    if optimizer.per_worker:
        raise ValueError(
            f"{optimizer} requires steps with one worker's message, but aggregation={aggregation} combines "
            f"several. Use aggregation='mean', or optimizer='sgd(momentum=…)'."
        )


class RoundTables(Aggregation):
    """The mean over workers of the means of their messages in this round. Maranjyan and Richtárik 2025.

    A message counts in all steps of the round. A worker that left counts until its round ends.
    """

    name: ClassVar[str] = "ringleader"
    keeps_messages: ClassVar[bool] = True
    _now: WorkerSums = PrivateAttr(default_factory=WorkerSums)
    _next: WorkerSums = PrivateAttr(default_factory=WorkerSums)
    _round: int = PrivateAttr(default=0)  # to which the messages in _now belong

    def check(self, policy: Policy, optimizer: Optimizer, workers: int) -> None:
        if not isinstance(policy, Ringleader):
            raise ValueError(
                f"aggregation={self} follows the rounds of policy='ringleader', got policy={policy}. "
                f"Use policy='ringleader', or aggregation='worker-means'."
            )
        refuse_per_worker(self, optimizer)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._now, self._next, self._round = WorkerSums(), WorkerSums(), 0

    def add(self, vector: Tensor, scale: float, arrival: Arrival, server: Server) -> None:
        policy = server.policy
        assert isinstance(policy, Ringleader)
        if policy.round != self._round:
            self._now, self._next, self._round = self._next, WorkerSums(), policy.round
        table, worker = self._now, arrival.worker
        if policy.is_early:
            table.release(worker)
            table = self._next
        table.add(worker, vector if scale == 1.0 else vector * scale)

    def combine(self, server: Server) -> tuple[Tensor, float] | None:
        return (self._now.mean(), 1.0) if self._now.sums else None


AGGREGATIONS = Catalogue(
    "aggregation",
    "aggregations",
    Aggregation,
    [Mean, Sum, BySamples, WorkerMeans, Latest, Cached, InverseFrequency, RoundTables],
)
