"""The ASU server: between synchronous and asynchronous by three numbers."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr
from torch import Tensor

from straggler.core import Arrival, Policy, Server


class Hybrid(Policy):
    """Step on k usable gradients; workers go on with the weights last pulled. Shah and Hatgadkar 2020.

    A gradient is usable if its worker pushed at most `staleness_tolerance` more than the one that pushed
    least when the iteration began; others are set aside for the next iteration. When nobody computes and k
    are not reached, those collected count as pushed (the original crashed there). Every
    `pull_weights_interval` iterations the weights that workers are given become the server's.
    """

    name: ClassVar[str] = "hybrid"
    num_workers_ps_update: int = Field(1, ge=1)
    staleness_tolerance: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 9999.0
    pull_weights_interval: int = Field(1, ge=1)
    aggregate: Literal["mean", "sum"] = "mean"
    _pushes: list[int] = PrivateAttr()
    _least: int = PrivateAttr()  # pushes when the iteration began
    _collected: list[int] = PrivateAttr()
    _pulled: tuple[int, Tensor] = PrivateAttr()
    _given: dict[int, tuple[int, Tensor]] = PrivateAttr()  # what each worker goes on with

    def check(self, workers: int) -> None:
        if self.num_workers_ps_update > workers:
            raise ValueError(
                f"{self}: there are only {workers} workers; use num_workers_ps_update ≤ {workers}"
            )

    def merges(self, workers: int) -> bool:
        return self.num_workers_ps_update > 1

    def reset(self, server: Server) -> None:
        self._pushes = [0] * len(server.finished)
        self._least, self._collected, self._pulled, self._given = 0, [], (0, server.x), {}

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        if server.aside or self._pushes[arrival.worker] > self._least + self.staleness_tolerance:
            server.aside.append(arrival)
            self._collect(server)
        else:  # the same without looking through them
            server.merge(arrival)
            self._collected.append(arrival.worker)
        return self._advance(server)

    def joined(self, server: Server, worker: int) -> Iterable[int]:
        self._pushes[worker] = max(self._pushes[worker], self._least)
        self._given.pop(worker, None)
        return (worker,)

    def left(self, server: Server, worker: int) -> Iterable[int]:
        if not self._collected:  # the iteration begins anew without it
            self._least = self._fewest(server)
        self._collect(server)
        return self._advance(server)

    def _advance(self, server: Server) -> list[int]:
        """Step if k are collected, or nobody else will come; who starts then."""
        starting = self._iterate(server)
        for _ in range(len(self._collected) + len(server.aside)):  # every round uses one of them, or more
            if server.busy or starting:
                break
            self._least = self._fewest(server, counting=self._collected)
            self._collect(server)
            starting = self._iterate(server)
            if not starting and self._collected:  # the others have finished their share, or are gone
                starting = self._step(server)
        return list(dict.fromkeys(starting))  # one that was gone and came back may be in several steps

    def _fewest(self, server: Server, counting: Iterable[int] = ()) -> int:
        """The least that an active worker pushed, with those named counted once more."""
        pushes = self._pushes.copy()
        for worker in dict.fromkeys(counting):
            pushes[worker] += 1
        return min(map(pushes.__getitem__, server.active)) if server.active else max(self._pushes)

    def _collect(self, server: Server) -> None:
        """Merge what was set aside and is usable, in order of arrival, up to k."""
        aside, pushes, collected = server.aside, self._pushes, self._collected
        most, wanted = self._least + self.staleness_tolerance, self.num_workers_ps_update - len(collected)
        for usable in [arrival for arrival in aside if pushes[arrival.worker] <= most][:wanted]:
            aside.remove(usable)
            server.merge(usable)
            collected.append(usable.worker)

    def _iterate(self, server: Server) -> list[int]:
        """With k collected step, and go on with what was set aside."""
        starting: list[int] = []
        for _ in range(1 + len(server.aside)):  # every step but the first uses one of them, or more
            if len(self._collected) < self.num_workers_ps_update:
                break
            starting += self._step(server)
            self._collect(server)
        return starting

    def _step(self, server: Server) -> list[int]:
        server.step(self.aggregate)
        if (server.k - 1) % self.pull_weights_interval == 0:
            self._pulled = (server.k, server.x)
        pushes, given, collected = self._pushes, self._given, self._collected
        for worker in collected:
            pushes[worker] += 1
            given[worker] = self._pulled
        starting = [worker for worker in collected if worker in server.active and worker not in server.busy]
        collected.clear()
        self._least = self._fewest(server)
        return starting

    def view(self, server: Server, worker: int) -> tuple[int, Tensor]:
        version, x = self._given.get(worker) or (server.k, server.x)
        return version, server.optimizer.send(x, server.lr, worker)
