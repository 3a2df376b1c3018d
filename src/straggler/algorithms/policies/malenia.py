"""Malenia: every step uses gradients of the current model from all workers, more of them from fast ones."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from pydantic import Field, PrivateAttr

from straggler.core import Arrival, Policy, Server


@dataclass
class Round:
    """The number of gradients that each worker delivered since the last step."""

    missing: int  # number of active workers that delivered none
    counts: dict[int, int] = field(default_factory=dict)
    inverses: float = 0.0  # sum of 1/count over the active workers that delivered, up to rounding

    def count(self, worker: int) -> None:
        """Count a gradient of an active worker."""
        count = self.counts[worker] = self.counts.get(worker, 0) + 1
        if count == 1:
            self.missing -= 1
            self.inverses += 1.0
        else:
            self.inverses -= 1 / (count * (count - 1))

    def choose_workers(self, active: Iterable[int]) -> None:
        """Count again, because the active workers changed."""
        found = [self.counts.get(worker, 0) for worker in active]
        self.missing = found.count(0)
        self.inverses = sum(1 / count for count in found if count)


class Malenia(Policy):
    """Step when the harmonic mean of the workers' gradients exceeds batch/n. Tyurin and Richtárik 2023.

    All workers compute gradients of the current model again and again. The step, at the earliest when every
    worker has delivered, cancels the jobs in flight. With aggregation='worker-means' it is unbiased although
    fast workers deliver more gradients.
    """

    name: ClassVar[str] = "malenia"
    batch: int = Field(0, ge=0)
    _state: Round = PrivateAttr()

    def merges(self, workers: int) -> bool:
        return workers > 1 or self.batch > 0

    def gradients_per_step(self, workers: int) -> int:
        return max(workers, self.batch + 1)  # the fewest; unequal workers deliver more

    def reset(self, server: Server) -> None:
        self._state = Round(missing=len(server.active))

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        state, worker = self._state, arrival.worker
        server.merge(arrival)
        if worker in server.active:
            state.count(worker)
        else:  # it stops with this gradient
            state.counts[worker] = state.counts.get(worker, 0) + 1
            state.choose_workers(server.active)
        return self._step(server) or (worker,)

    def joined(self, server: Server, worker: int) -> Iterable[int]:
        self._state.choose_workers(server.active)
        return (worker,)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        self._state.choose_workers(server.active)
        return self._step(server)

    def _step(self, server: Server) -> Iterable[int]:
        """Step if the round is complete; return the workers that start the next round."""
        if not (server.held and self._is_complete(server) and server.step()):
            return ()
        self._state = Round(missing=len(server.active))
        return tuple(server.active)

    def _is_complete(self, server: Server) -> bool:
        """Return whether every active worker has delivered and the harmonic mean is large enough."""
        state, active = self._state, server.active
        if state.missing:
            return False
        wanted, found = self.batch * state.inverses, len(active) ** 2
        if abs(found - wanted) > 1e-6 * found:
            return found > wanted
        sizes = Counter(state.counts[worker] for worker in active)  # exactly, because ties matter
        return not active or found > self.batch * sum(Fraction(n, count) for count, n in sizes.items())
