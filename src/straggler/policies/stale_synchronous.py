"""Nobody runs more than a bound ahead of the slowest."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field, PrivateAttr

from straggler.core import Arrival, Policy, Server

__all__ = ["StaleSynchronous"]


class StaleSynchronous(Policy):
    """Apply every gradient; who finished over `bound` more than the slowest waits. Ho et al. 2013."""

    name: ClassVar[str] = "ssp"
    bound: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 3

    _at: dict[int, dict[int, None]] = PrivateAttr()  # the active workers that have finished so many

    def reset(self, server: Server) -> None:
        self._at = {0: dict(server.active)}

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        worker, at = arrival.worker, self._at
        clock = server.finished[worker]
        if worker in server.active:
            at.setdefault(clock, {})[worker] = None
        del at[clock - 1][worker]
        if at[clock - 1]:  # the slowest are where they were, so nobody else may go on
            return (worker,) if clock <= min(at) + self.bound else ()
        del at[clock - 1]  # clocks that nobody shows are forgotten, so there are few
        furthest = min(at, default=0) + self.bound
        free = (others for clock, others in at.items() if clock <= furthest)
        return sorted(worker for others in free for worker in others if worker not in server.busy)
