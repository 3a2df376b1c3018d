"""Synchronous: wait for all workers, step on the mean, start together."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from straggler.core import Arrival, Policy, Server


class Synchronous(Policy):
    """One step per round, on the mean of one gradient from each worker. Valiant 1990 (BSP)."""

    name: ClassVar[str] = "synchronous"
    aggregate: Literal["mean", "sum"] = "mean"

    def merges(self, workers: int) -> bool:
        return workers > 1

    def gradients_per_step(self, workers: int) -> int:
        return workers

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        return self._step(server)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        return self._step(server)

    def _step(self, server: Server) -> Iterable[int]:
        """Step if the round is complete; return the workers that start the next round."""
        if server.busy or not server.held:  # a worker is still computing, or none has delivered
            return ()
        server.step()
        return tuple(server.active)
