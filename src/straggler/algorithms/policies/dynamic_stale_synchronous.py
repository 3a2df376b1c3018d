"""Dynamic stale-synchronous parallel: a bound between two numbers that keeps waiting times short."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, PrivateAttr

from straggler.algorithms.policies.stale_synchronous import ClockBound, Clocks
from straggler.core import Arrival, Server


@dataclass
class TimedClocks(Clocks):
    """Clocks, each worker's last two push times, and the clock below which it need not wait."""

    pushes: dict[int, tuple[float, float]] = field(default_factory=dict)  # the one before the last, the last
    allowed: dict[int, int] = field(default_factory=dict)


class DynamicStaleSynchronous(ClockBound):
    """SSP with a bound from `lower` to `upper` that minimises predicted waiting times. Zhao et al. 2019.

    When a worker is more than `lower` gradients ahead of the slowest, it may take up to `upper` − `lower`
    extra steps: as many as let it finish shortest before a push of the slowest worker.
    """

    name: ClassVar[str] = "dssp"
    lower: int = Field(3, ge=0)
    upper: int = Field(15, ge=0)
    _state: TimedClocks = PrivateAttr()

    @property
    def free_steps(self) -> float:
        return self.lower

    def check(self, workers: int) -> None:
        if self.lower > self.upper:
            raise ValueError(f"{self}: lower={self.lower} must be at most upper={self.upper}. Swap them.")

    def reset(self, server: Server) -> None:
        self._state = TimedClocks([0] * len(server.finished), {0: len(server.active)})

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        clocks, worker = self._state, arrival.worker
        before = clocks.pushes.get(worker, (0.0, arrival.started))[1]
        clocks.pushes[worker] = (before, arrival.time)
        clock = clocks.advance(worker, worker in server.active)
        slowest = clocks.slowest(default=clock)
        if slowest >= clock:  # the slowest clock moved, so waiting workers may continue
            return self.idle_within_bound(server)
        if clock <= slowest + self.lower or clock < clocks.allowed.get(worker, 0):
            return (worker,)
        most = min(self.upper - self.lower, slowest + self.upper + 1 - clock)
        clocks.allowed[worker] = clock + self._predict_extra_steps(server, worker, most)
        return (worker,) if clock < clocks.allowed[worker] else ()

    def left(self, server: Server, worker: int) -> Iterable[int]:
        self._state.pushes.pop(worker, None)
        self._state.allowed.pop(worker, None)
        return super().left(server, worker)

    def _predict_extra_steps(self, server: Server, worker: int, most: int) -> int:
        """Return the number of steps, from 0 to `most`, after which the worker waits shortest."""
        clocks = self._state
        slowest = min(server.active, key=clocks.by_worker.__getitem__)
        own_before, own_last = clocks.pushes[worker]
        before, last = clocks.pushes.get(slowest, (0.0, 0.0))
        interval = last - before
        if interval <= 0:  # the slowest worker has not pushed yet
            return 0

        def wait(steps: int) -> float:
            finish = own_last + steps * (own_last - own_before)
            return last + interval * max(1, math.ceil((finish - last) / interval)) - finish

        return min(range(most + 1), key=wait)
