"""The ASU server: three numbers choose between synchronous and asynchronous."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr
from torch import Tensor

from straggler.core import Arrival, Policy, Server


@dataclass
class Iteration:
    """The pushes so far, the gradients collected for the next step, and the weights that workers use."""

    pushes: list[int]  # by worker
    pulled: tuple[int, Tensor]  # version and weights last pulled
    least: int = 0  # fewest pushes of an active worker when the iteration began
    collected: list[int] = field(default_factory=list)  # workers whose gradients are merged
    given: dict[int, tuple[int, Tensor]] = field(default_factory=dict)  # version and weights of each worker

    def fewest_pushes(self, server: Server, counting: Iterable[int] = ()) -> int:
        """Return the fewest pushes of an active worker, counting these workers' pushes once more."""
        pushes = self.pushes.copy()
        for worker in dict.fromkeys(counting):
            pushes[worker] += 1
        return min(map(pushes.__getitem__, server.active)) if server.active else max(self.pushes)


class Hybrid(Policy):
    """Step on k usable gradients; workers continue with the weights last pulled. Shah and Hatgadkar 2020.

    A gradient is usable if its worker pushed at most `staleness_tolerance` more than the worker that pushed
    least when the iteration began; the others are set aside for the next iteration. When no worker is busy
    and fewer than k are collected, the collected gradients count as pushed (the original crashed there).
    Every `pull_weights_interval` iterations the workers' weights become the server's.
    """

    name: ClassVar[str] = "hybrid"
    num_workers_ps_update: int = Field(1, ge=1)
    staleness_tolerance: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 9999.0
    pull_weights_interval: int = Field(1, ge=1)
    aggregate: Literal["mean", "sum"] = "mean"
    _state: Iteration = PrivateAttr()

    def check(self, workers: int) -> None:
        if self.num_workers_ps_update > workers:
            raise ValueError(
                f"{self} waits for more workers than there are. Use num_workers_ps_update ≤ {workers}."
            )

    def merges(self, workers: int) -> bool:
        return self.num_workers_ps_update > 1

    def gradients_per_step(self, workers: int) -> int:
        return self.num_workers_ps_update

    def reset(self, server: Server) -> None:
        self._state = Iteration([0] * len(server.finished), (0, server.x))

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        iteration = self._state
        if server.aside or iteration.pushes[arrival.worker] > iteration.least + self.staleness_tolerance:
            server.aside.append(arrival)
            self._collect(server, iteration)
        else:  # same result, without searching the arrivals set aside
            server.merge(arrival)
            iteration.collected.append(arrival.worker)
        return self._advance(server, iteration)

    def joined(self, server: Server, worker: int) -> Iterable[int]:
        iteration = self._state
        iteration.pushes[worker] = max(iteration.pushes[worker], iteration.least)
        iteration.given.pop(worker, None)
        return (worker,)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        iteration = self._state
        if not iteration.collected:  # the iteration starts again without this worker
            iteration.least = iteration.fewest_pushes(server)
        self._collect(server, iteration)
        return self._advance(server, iteration)

    def view(self, server: Server, worker: int) -> tuple[int, Tensor]:
        return self._state.given.get(worker) or (server.k, server.x)

    def _advance(self, server: Server, iteration: Iteration) -> list[int]:
        """Step while k gradients are collected or no more can arrive; return the workers that start."""
        starting = self._step_while_complete(server, iteration)
        for _ in range(len(iteration.collected) + len(server.aside)):  # each round uses at least one of them
            if server.busy or starting:
                break
            iteration.least = iteration.fewest_pushes(server, counting=iteration.collected)
            self._collect(server, iteration)
            starting = self._step_while_complete(server, iteration)
            if not starting and iteration.collected:  # the other workers stopped or left
                starting = self._step(server, iteration)
        return list(dict.fromkeys(starting))  # a worker that left and rejoined may be in several steps

    def _collect(self, server: Server, iteration: Iteration) -> None:
        """Merge usable gradients that were set aside, in order of arrival, until k are collected."""
        most = iteration.least + self.staleness_tolerance
        wanted = self.num_workers_ps_update - len(iteration.collected)
        usable = [arrival for arrival in server.aside if iteration.pushes[arrival.worker] <= most]
        for arrival in usable[:wanted]:
            server.aside.remove(arrival)
            server.merge(arrival)
            iteration.collected.append(arrival.worker)

    def _step_while_complete(self, server: Server, iteration: Iteration) -> list[int]:
        """Step as long as k gradients are collected; return the workers that start."""
        starting: list[int] = []
        for _ in range(1 + len(server.aside)):  # each step after the first uses at least one of them
            if len(iteration.collected) < self.num_workers_ps_update:
                break
            starting += self._step(server, iteration)
            self._collect(server, iteration)
        return starting

    def _step(self, server: Server, iteration: Iteration) -> list[int]:
        server.step()
        if (server.k - 1) % self.pull_weights_interval == 0:
            iteration.pulled = (server.k, server.x)
        collected = iteration.collected
        for worker in collected:
            iteration.pushes[worker] += 1
            iteration.given[worker] = iteration.pulled
        starting = [worker for worker in collected if worker in server.active and worker not in server.busy]
        collected.clear()
        iteration.least = iteration.fewest_pushes(server)
        return starting
