"""Foundations of the aggregations that keep messages of each worker: tables with running sums."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

FEW_CHANGES = 100  # of a running sum, after which rounding errors are still small


@dataclass
class WorkerSums:
    """The sum of each worker's messages, how many there are, and the sum of the workers' means."""

    sums: dict[int, Tensor] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    total: Tensor | None = None  # of the means, from the first time that it was needed
    released: int = 0  # number of workers in the total whose sums are not stored any more

    def add(self, worker: int, vector: Tensor) -> None:
        """Add a worker's message."""
        before = self.sums.get(worker)
        count = self.counts[worker] = self.counts.get(worker, 0) + 1
        after = self.sums[worker] = vector if before is None else before + vector
        if self.total is not None:
            change = after / count if before is None else after / count - before / (count - 1)
            self.total = self.total + change

    def release(self, worker: int) -> None:
        """Discard the sum of a worker that adds no more messages; its mean stays in the total."""
        if self.total is not None and self.sums.pop(worker, None) is not None:
            self.released += 1

    def mean(self) -> Tensor:
        """Return the mean over workers of the mean of each worker's messages."""
        if self.total is None:
            means = (self.sums[worker] / self.counts[worker] for worker in sorted(self.sums))
            self.total = add_up(means)
        return self.total / (len(self.sums) + self.released)


def add_up(vectors: Iterator[Tensor]) -> Tensor:
    """Return the sum of vectors in new memory; at most two of them need to exist at a time."""
    total = next(vectors).clone()
    for vector in vectors:
        total += vector
    return total


@dataclass
class LatestTable:
    """The latest message of each worker and their sum; if messages expire, the versions of their models."""

    latest: dict[int, Tensor] = field(default_factory=dict)
    total: Tensor | None = None
    changes: int = 0  # of the sum since it was last computed from the messages
    versions: dict[int, int] = field(default_factory=dict)
    workers: dict[int, dict[int, None]] = field(default_factory=dict)  # by version
    oldest: int = 0  # older messages have expired

    def put(self, worker: int, vector: Tensor) -> None:
        """Replace a worker's message."""
        before = self.latest.get(worker)
        change = vector if before is None else vector - before
        self.latest[worker] = vector
        self._change_total(change if self.total is None else self.total + change)

    def set_version(self, worker: int, version: int) -> None:
        """Note the version of the model of a worker's message."""
        self._clear_version(worker)
        self.versions[worker] = version
        self.workers.setdefault(version, {})[worker] = None

    def remove(self, worker: int) -> None:
        """Remove a worker's message, if there is one."""
        self._clear_version(worker)
        if (vector := self.latest.pop(worker, None)) is not None:
            assert self.total is not None
            self._change_total(self.total - vector)

    def expire(self, oldest: int) -> None:
        """Remove the messages of models older than this version."""
        for version in range(self.oldest, oldest):
            for worker in tuple(self.workers.get(version, ())):
                self.remove(worker)
        self.oldest = max(self.oldest, oldest)

    def _clear_version(self, worker: int) -> None:
        if (version := self.versions.pop(worker, None)) is not None:
            del self.workers[version][worker]
            if not self.workers[version]:
                del self.workers[version]

    def _change_total(self, total: Tensor) -> None:
        """Store the sum. Now and then add the messages up again, before rounding errors accumulate."""
        self.changes += 1
        if not self.latest:
            self.total = None
        elif self.changes > max(FEW_CHANGES, len(self.latest)):
            self.total, self.changes = add_up(self.latest[worker] for worker in sorted(self.latest)), 0
        else:
            self.total = total
