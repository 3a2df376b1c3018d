"""Policies that step on the first k gradients; two switches distinguish them. Dutta et al. 2018."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field

from straggler.core import Arrival, Policy, Server


class FirstK(Policy):
    """Step as soon as k gradients have arrived."""

    waits: ClassVar[bool]  # whether a worker that delivered waits for the step
    cancels: ClassVar[bool]  # whether the step cancels the jobs in flight
    k: int = Field(ge=1)
    aggregate: Literal["mean", "sum"] = "mean"

    def check(self, workers: int) -> None:
        if self.waits and self.k > workers:
            raise ValueError(
                f"{self}: at most {workers} workers can deliver before the step. Use k ≤ {workers}."
            )

    def merges(self, workers: int) -> bool:
        return self.k > 1

    def gradients_per_step(self, workers: int) -> int:
        return self.k

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        return self._step(server) or (() if self.waits else (arrival.worker,))

    def left(self, server: Server, worker: int) -> Iterable[int]:
        return self._step(server)

    def _step(self, server: Server) -> Iterable[int]:
        """Step if k gradients are merged or no more can arrive; return the workers that start."""
        if server.held < self.k and not (self.waits and not server.busy and server.held):
            return ()
        if server.step() and self.cancels:  # without a step, the slow workers must be able to finish
            return tuple(server.active)
        if not self.waits:  # the others are busy
            return ()
        return tuple(worker for worker in server.active if worker not in server.busy)


class KSync(FirstK):
    """The first k workers of each round; the other jobs are cancelled. Chen et al. 2016."""

    name: ClassVar[str] = "k-sync"
    waits, cancels = True, True


class KBatchSync(FirstK):
    """The first k gradients of the current model from any worker; others are dropped. Tyurin et al. 2023."""

    name: ClassVar[str] = "k-batch-sync"
    waits, cancels = False, True


class KAsync(FirstK):
    """The first k workers wait for each other and step; the others continue at their old models."""

    name: ClassVar[str] = "k-async"
    waits, cancels = True, False


class KBatchAsync(FirstK):
    """Step on every k gradients from any worker, without waiting. Nguyen et al. 2022 (FedBuff)."""

    name: ClassVar[str] = "k-batch-async"
    waits, cancels = False, False
