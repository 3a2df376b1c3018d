"""Nobody runs more than a bound ahead of the slowest."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from straggler.core import Arrival, Policy, Server

__all__ = ["StaleSynchronous"]


class StaleSynchronous(Policy):
    """Apply every gradient; who finished over `bound` more than the slowest waits. Ho et al. 2013."""

    name: ClassVar[str] = "ssp"
    bound: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 3

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        if not server.active:
            return ()
        furthest = min(server.finished[worker] for worker in server.active) + self.bound
        idle = (worker for worker in server.active if worker not in server.busy)
        return tuple(worker for worker in idle if server.finished[worker] <= furthest)
