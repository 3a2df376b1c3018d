"""Ringleader: every step uses gradients of all workers, and no worker waits."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import PrivateAttr

from straggler.core import Arrival, Policy, Server


@dataclass
class Phase:
    """The number of the round, and the workers that matter in it.

    Collecting (no worker is owed a step): the round waits for a gradient from every worker. Stepping: each
    owed worker's next gradient makes a step; the gradients of the others belong to the next round.
    """

    round: int = 0
    owed: dict[int, None] = field(default_factory=dict)
    now: dict[int, None] = field(default_factory=dict)  # workers with a gradient in this round
    next: dict[int, None] = field(default_factory=dict)  # workers with a gradient in the next round
    is_early: bool = False  # whether the gradient that just arrived belongs to the next round


class Ringleader(Policy):
    """Rounds of one step per worker, each on the mean of all workers. Maranjyan and Richtárik 2025.

    A round first collects at least one gradient from every worker and steps. Then the next gradient of every
    other worker makes a step too. Gradients of workers that had their step count in the next round.
    """

    name: ClassVar[str] = "ringleader"
    aggregation_name: ClassVar[str] = "ringleader"  # the only aggregation that knows the rounds
    _state: Phase = PrivateAttr(default_factory=Phase)

    @property
    def round(self) -> int:
        """The number of the current round."""
        return self._state.round

    @property
    def is_early(self) -> bool:
        """Whether the gradient that is being merged belongs to the next round."""
        return self._state.is_early

    def merges(self, workers: int) -> bool:
        return workers > 1

    def gradients_per_step(self, workers: int) -> int:
        return min(workers, 2)  # if workers are equally fast; otherwise more

    def reset(self, server: Server) -> None:
        self._state = Phase()

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        phase, worker = self._state, arrival.worker
        is_collecting = not phase.owed
        phase.is_early = not is_collecting and worker not in phase.owed
        server.merge(arrival)
        if phase.is_early:
            phase.next[worker] = None
        elif is_collecting:
            phase.now[worker] = None
            if server.active.keys() <= phase.now.keys() and server.step():
                phase.owed = dict.fromkeys(other for other in server.active if other != worker)
                self._end_round_if_complete()
        else:
            server.step()
            del phase.owed[worker]
            self._end_round_if_complete()
        return (worker,)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        phase = self._state
        if worker in phase.owed:
            del phase.owed[worker]
            self._end_round_if_complete()
        return ()

    def _end_round_if_complete(self) -> None:
        """Begin the next round if every worker had its step."""
        phase = self._state
        if not phase.owed:
            phase.round, phase.now, phase.next = phase.round + 1, phase.next, {}
