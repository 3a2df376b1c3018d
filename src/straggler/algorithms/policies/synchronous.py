"""Wait for everybody, step on the mean, start together."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from straggler.core import Arrival, Policy, Server


class Synchronous(Policy):
    """One step per round, on the mean of one gradient from every worker. Valiant 1990 (BSP)."""

    name: ClassVar[str] = "synchronous"
    aggregate: Literal["mean", "sum"] = "mean"

    def merges(self, workers: int) -> bool:
        return workers > 1

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        return self._step(server)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        return self._step(server)

    def _step(self, server: Server) -> Iterable[int]:
        """Step if the round is complete; who starts the next."""
        if server.busy or not server.held:  # somebody is still computing, or nobody has
            return ()
        server.step(self.aggregate)
        return tuple(server.active)
