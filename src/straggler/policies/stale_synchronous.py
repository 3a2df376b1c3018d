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

    _clock: list[int] = PrivateAttr()  # gradients of each worker; one that comes back starts at the slowest
    _at: dict[int, int] = PrivateAttr()  # how many active workers show so many
    _waiting: dict[int, list[int]] = PrivateAttr()  # who is idle, by its clock

    def reset(self, server: Server) -> None:
        self._clock = [0] * len(server.finished)
        self._at, self._waiting = {0: len(server.active)}, {}

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        self._leave(arrival.worker)
        self._clock[arrival.worker] += 1
        if arrival.worker in server.active:
            self._show(arrival.worker)
            self._waiting.setdefault(self._clock[arrival.worker], []).append(arrival.worker)
        return self._freed()

    def joined(self, server: Server, worker: int) -> Iterable[int]:
        self._clock[worker] = max(self._clock[worker], min(self._at, default=0))
        self._show(worker)
        return (worker,)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        self._leave(worker)
        idle = self._waiting.get(self._clock[worker], [])
        if worker in idle:
            idle.remove(worker)
        return self._freed()

    def _show(self, worker: int) -> None:
        clock = self._clock[worker]
        self._at[clock] = self._at.get(clock, 0) + 1

    def _leave(self, worker: int) -> None:
        """This worker's clock no longer counts; those that nobody shows are forgotten, so there are few."""
        clock = self._clock[worker]
        self._at[clock] -= 1
        if self._at[clock] == 0:
            del self._at[clock]

    def _freed(self) -> list[int]:
        """Who is idle and within the bound of the slowest."""
        furthest = min(self._at, default=0) + self.bound
        free = [clock for clock in self._waiting if clock <= furthest]
        return sorted(worker for clock in free for worker in self._waiting.pop(clock))
