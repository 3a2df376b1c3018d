"""Paced: bound staleness by when jobs may start and in which order their messages are used."""

from bisect import bisect, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, PrivateAttr

from straggler.core import Arrival, Policy, Server


@dataclass
class Starts:
    """The numbers, in order of start, of the jobs whose messages are not used yet."""

    idle: list[tuple[int, int]]  # (jobs so far, worker) in order; some of these workers may have left
    count: int = 0  # number of jobs that started
    stepped: int = 0  # number of messages that were used when the server last stepped
    oldest: int = 0  # number of the oldest job whose message is not used
    running: dict[int, int] = field(default_factory=dict)  # worker → number of its job
    waiting: list[int] = field(default_factory=list)  # numbers of the arrivals in server.aside, in order
    ahead: dict[int, None] = field(default_factory=dict)  # jobs after the oldest whose messages are used

    @property
    def used(self) -> int:
        """The number of messages that were used."""
        return self.count - len(self.running) - len(self.waiting)

    def use(self, number: int) -> None:
        """Note that the message of a job is used."""
        self.ahead[number] = None
        self._advance()

    def remove(self, worker: int) -> None:
        """Forget a job that was cancelled, as if it had never started."""
        if (gone := self.running.pop(worker, None)) is not None:
            self.count -= 1
            self.running = {each: number - (number > gone) for each, number in self.running.items()}
            self.waiting = [number - (number > gone) for number in self.waiting]
            self.ahead = {number - (number > gone): None for number in self.ahead}
            self._advance()

    def _advance(self) -> None:
        for number in range(self.oldest, self.count):
            if number not in self.ahead:
                break
            del self.ahead[number]
            self.oldest = number + 1


class Paced(Policy):
    """Start jobs only while their staleness can be bounded, as libraries for RL do. Fu et al. 2025 (AReaL).

    A job may start while fewer than (staleness + k + 1)·batch have started, where k is the number of steps.
    A step uses `batch` messages. `window` counts jobs in order of start, from the oldest whose message is
    not used yet: 1 uses messages in order of start, W lets at most W − 1 jobs overtake an older one, and
    none uses them in order of completion. Staleness is at most `staleness` + ⌈(window − 1)/batch⌉.
    """

    name: ClassVar[str] = "paced"
    batch: int = Field(ge=1)
    staleness: int = Field(ge=0)
    window: int | None = Field(None, ge=1)
    _state: Starts = PrivateAttr()

    def merges(self, workers: int) -> bool:
        return self.batch > 1

    def gradients_per_step(self, workers: int) -> int:
        return self.batch

    def reset(self, server: Server) -> None:
        self._state = Starts([(server.launched[worker], worker) for worker in server.active])

    def begin(self, server: Server) -> Iterable[int]:
        return self._admit(server)

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        starts, worker = self._state, arrival.worker
        number = starts.running.pop(worker)
        insort(starts.idle, (server.launched[worker], worker))
        if self.window is None or number < starts.oldest + self.window:
            self._use(server, arrival, number)
            self._use_waiting(server)
        else:
            arrival.keep()  # the worker may start again before its message is used
            place = bisect(starts.waiting, number)
            starts.waiting.insert(place, number)
            server.aside.insert(place, arrival)
        return self._admit(server)

    def joined(self, server: Server, worker: int) -> Iterable[int]:
        insort(self._state.idle, (server.launched[worker], worker))
        return self._admit(server)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        starts = self._state
        starts.remove(worker)
        starts.idle = [each for each in starts.idle if each[1] != worker]
        self._use_waiting(server)
        return self._admit(server)

    def _use(self, server: Server, arrival: Arrival, number: int) -> None:
        """Merge a message, and step if it completes a batch."""
        starts = self._state
        if self.window is not None:
            starts.use(number)
        server.merge(arrival)
        if server.held >= self.batch:
            server.step()
            starts.stepped = starts.used

    def _use_waiting(self, server: Server) -> None:
        """Use the waiting messages that the window allows, in order of start."""
        starts = self._state
        for _ in range(len(starts.waiting)):
            if self.window is not None and starts.waiting[0] >= starts.oldest + self.window:
                return
            self._use(server, server.aside.pop(0), starts.waiting.pop(0))

    def _admit(self, server: Server) -> list[int]:
        """Return the idle workers that may start; those with the fewest jobs so far go first."""
        starts, starting = self._state, list[int]()
        free = starts.stepped + (self.staleness + 1) * self.batch - starts.count
        seen = 0
        for _, worker in starts.idle:
            if len(starting) >= free:
                break
            seen += 1
            if worker in server.active:  # else it stopped
                starting.append(worker)
        del starts.idle[:seen]
        starts.running |= {worker: starts.count + place for place, worker in enumerate(starting)}
        starts.count += len(starting)
        return starting
