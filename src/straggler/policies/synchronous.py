"""Wait for everybody, step on the mean, start together."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from straggler.core import Arrival, Policy, Server

__all__ = ["Synchronous"]


class Synchronous(Policy):
    """One step per round, on the mean of one gradient from every worker. Valiant 1990 (BSP)."""

    name: ClassVar[str] = "synchronous"
    aggregate: Literal["mean", "sum"] = "mean"

    def merges(self, workers: int) -> bool:
        return workers > 1

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        if server.busy:  # somebody is still computing
            return ()
        server.step(self.aggregate)
        return tuple(server.active)
