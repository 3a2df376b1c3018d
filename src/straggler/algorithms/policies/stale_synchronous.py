"""Nobody runs more than a bound ahead of the slowest."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field, PrivateAttr

from straggler.core import Arrival, Policy, Server


class StaleSynchronous(Policy):
    """Apply every gradient; who finished over `bound` more than the slowest waits. Ho et al. 2013."""

    name: ClassVar[str] = "ssp"
    bound: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 3.0

    _clock: list[int] = PrivateAttr()  # gradients of each worker; one that comes back starts at the slowest
    _at: dict[int, int] = PrivateAttr()  # how many active workers show so many

    def reset(self, server: Server) -> None:
        self._clock, self._at = [0] * len(server.finished), {0: len(server.active)}

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        worker, clocks, at = arrival.worker, self._clock, self._at
        clock = clocks[worker] = clocks[worker] + 1
        if worker in server.active:
            at[clock] = at.get(clock, 0) + 1
        if at[clock - 1] == 1:
            del at[clock - 1]  # clocks that nobody shows are forgotten, so there are few
        else:
            at[clock - 1] -= 1
        slowest = min(at) if at else clock
        if slowest < clock:  # the slowest are where they were, so nobody else may go on
            return (worker,) if clock <= slowest + self.bound else ()
        return self._free(server)

    def joined(self, server: Server, worker: int) -> Iterable[int]:
        clock = self._clock[worker] = max(self._clock[worker], min(self._at, default=0))
        self._at[clock] = self._at.get(clock, 0) + 1
        return self._free(server)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        clock = self._clock[worker]
        self._at[clock] -= 1
        if not self._at[clock]:
            del self._at[clock]
        return self._free(server)

    def _free(self, server: Server) -> list[int]:
        """Who is idle and within the bound of the slowest."""
        furthest = min(self._at, default=0) + self.bound
        idle = server.active.keys() - server.busy.keys()
        return sorted(worker for worker in idle if self._clock[worker] <= furthest)
