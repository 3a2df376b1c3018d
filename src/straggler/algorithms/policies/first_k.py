"""Step on the first k gradients: one family, two switches. Dutta et al. 2018."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field

from straggler.core import Arrival, Policy, Server


class FirstK(Policy):
    """Step as soon as k gradients are there."""

    waits: ClassVar[bool]  # who delivered waits for the step
    cancels: ClassVar[bool]  # the step abandons what is still being computed
    k: int = Field(ge=1)
    aggregate: Literal["mean", "sum"] = "mean"

    def check(self, workers: int) -> None:
        if self.waits and self.k > workers:
            raise ValueError(f"{self}: only {workers} workers can deliver before the step; use k ≤ {workers}")

    def merges(self, workers: int) -> bool:
        return self.k > 1

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        return self._step(server) or (() if self.waits else (arrival.worker,))

    def left(self, server: Server, worker: int) -> Iterable[int]:
        return self._step(server)

    def _step(self, server: Server) -> Iterable[int]:
        """Step if k are there, or nobody else will come; who starts then."""
        nobody_else = self.waits and not server.busy and server.held
        if server.held < self.k and not nobody_else:
            return ()
        server.step(self.aggregate)
        if self.cancels:
            return tuple(server.active)
        return tuple(worker for worker in server.active if worker not in server.busy)


class KSync(FirstK):
    """The first k workers of each round; the others are abandoned and start anew. Chen et al. 2016."""

    name: ClassVar[str] = "k-sync"
    waits, cancels = True, True


class KBatchSync(FirstK):
    """The first k gradients of the current model, from anyone; the rest is abandoned. Tyurin et al. 2023."""

    name: ClassVar[str] = "k-batch-sync"
    waits, cancels = False, True


class KAsync(FirstK):
    """The first k workers wait for each other and step; the others go on at their old models."""

    name: ClassVar[str] = "k-async"
    waits, cancels = True, False


class KBatchAsync(FirstK):
    """Every k gradients from anyone; nobody waits, nothing is abandoned. Nguyen et al. 2022 (FedBuff)."""

    name: ClassVar[str] = "k-batch-async"
    waits, cancels = False, False
