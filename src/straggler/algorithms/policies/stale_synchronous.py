"""Stale-synchronous parallel: no worker runs further than a bound ahead of the slowest."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field, PrivateAttr

from straggler.core import Arrival, Policy, Server


@dataclass
class Clocks:
    """How many gradients each worker has delivered; a worker that rejoins continues at the slowest clock."""

    by_worker: list[int]
    active: dict[int, int]  # clock → number of active workers at it; there are few different clocks

    def advance(self, worker: int, is_active: bool) -> int:
        """Advance a worker's clock and return it."""
        clock = self.by_worker[worker] = self.by_worker[worker] + 1
        if is_active:
            self.active[clock] = self.active.get(clock, 0) + 1
        self.remove(clock - 1)
        return clock

    def remove(self, clock: int) -> None:
        """Remove one active worker from the count at a clock."""
        if self.active[clock] == 1:
            del self.active[clock]
        else:
            self.active[clock] -= 1

    def slowest(self, default: int = 0) -> int:
        """Return the lowest clock of an active worker."""
        return min(self.active, default=default)


class ClockBound(Policy):
    """Base of the policies under which workers that are too far ahead of the slowest wait."""

    _state: Clocks = PrivateAttr()

    @property
    @abstractmethod
    def free_steps(self) -> float:
        """How many gradients ahead of the slowest a worker may always be."""

    def joined(self, server: Server, worker: int) -> Iterable[int]:
        clocks = self._state
        clock = clocks.by_worker[worker] = max(clocks.by_worker[worker], clocks.slowest())
        clocks.active[clock] = clocks.active.get(clock, 0) + 1
        return self.idle_within_bound(server)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        self._state.remove(self._state.by_worker[worker])
        return self.idle_within_bound(server)

    def idle_within_bound(self, server: Server) -> list[int]:
        """Return the idle workers that are at most `free_steps` ahead of the slowest."""
        clocks = self._state
        furthest = clocks.slowest() + self.free_steps
        idle = server.active.keys() - server.busy.keys()
        return sorted(worker for worker in idle if clocks.by_worker[worker] <= furthest)


class StaleSynchronous(ClockBound):
    """Apply every gradient; a worker over `bound` gradients ahead of the slowest waits. Ho et al. 2013."""

    name: ClassVar[str] = "ssp"
    bound: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 3.0

    @property
    def free_steps(self) -> float:
        return self.bound

    def reset(self, server: Server) -> None:
        self._state = Clocks([0] * len(server.finished), {0: len(server.active)})

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        clocks, worker = self._state, arrival.worker
        clock = clocks.advance(worker, worker in server.active)
        slowest = clocks.slowest(default=clock)
        if slowest < clock:  # the slowest clock did not move, so no waiting worker may continue
            return (worker,) if clock <= slowest + self.bound else ()
        return self.idle_within_bound(server)
