"""Nobody runs more than a bound ahead of the slowest."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field, PrivateAttr

from straggler.core import Arrival, Policy, Server

__all__ = ["StaleSynchronous"]


class StaleSynchronous(Policy):
    """Apply every gradient; who finished over `bound` more than the slowest waits. Ho et al. 2013."""

    name: ClassVar[str] = "ssp"
    bound: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 3.0

    _at: dict[int, int] = PrivateAttr()  # how many active workers have finished so many
    _waiting: dict[int, list[int]] = PrivateAttr()  # who is idle, by how many it has finished

    def reset(self, server: Server) -> None:
        self._at, self._waiting = {0: len(server.active)}, {}

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        self._advance(server, arrival.worker)
        furthest = min(self._at, default=0) + self.bound
        free = [clock for clock in self._waiting if clock <= furthest]
        return sorted(worker for clock in free for worker in self._waiting.pop(clock))

    def _advance(self, server: Server, worker: int) -> None:
        """One more finished by this worker; clocks that nobody shows are forgotten, so there are few."""
        clock = server.finished[worker]
        self._at[clock - 1] -= 1
        if self._at[clock - 1] == 0:
            del self._at[clock - 1]
        if worker in server.active:
            self._at[clock] = self._at.get(clock, 0) + 1
            self._waiting.setdefault(clock, []).append(worker)
