"""Who sees which samples: the catalogue of partitions, each deterministic for a given generator."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from straggler.config.registry import Catalogue, CatalogueEntry

Indices = NDArray[np.int64]
Labels = NDArray[Any]


class Partition(CatalogueEntry):
    """A way to deal the samples of a training set to workers; all but `shared` are disjoint."""

    needs_labels: ClassVar[bool] = True

    def split(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Each worker's samples, never none."""
        if workers < 1:
            raise ValueError(f"workers={workers}: there must be at least one")
        if len(labels) < workers * self.least():
            rule = f"the partition {self} needs at least {self.least()} per worker"
            remedy = f"use at most {len(labels) // self.least()} workers, more samples, or shared"
            raise ValueError(f"{workers} workers for {len(labels)} samples: {rule}; {remedy}")
        if self.needs_labels and np.ndim(labels) != 1:
            rule = f"the partition {self} deals by one label per sample"
            raise ValueError(f"the targets have {np.ndim(labels)} dimensions: {rule}; use iid or shared")
        dealt = self.deal(np.asarray(labels), workers, rng)
        parts = [] if dealt is None else [np.asarray(part) for part in dealt]
        for part in {id(part): part for part in parts}.values():  # all may share one
            whole = part.ndim == 1 and np.issubdtype(part.dtype, np.integer)
            if not whole or not part.size or part.min() < 0 or part.max() >= len(labels):
                rule = f"it must give each worker an array of places from 0 to {len(labels) - 1}, never none"
                raise ValueError(f"the partition {self} deals {part!r}; {rule}")
        if len(parts) != workers:
            raise ValueError(
                f"the partition {self} deals {len(parts)} parts for {workers} workers; give as many"
            )
        return parts

    def least(self) -> int:
        """How many samples there must be for each worker."""
        return 1

    @abstractmethod
    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """The rule itself, for a possible number of workers."""


class Shared(Partition):
    """Every worker sees everything."""

    name = "shared"
    needs_labels = False

    def least(self) -> int:
        """Nothing is dealt out, so any number of workers will do."""
        return 0

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """The same array for all, so that ten thousand workers cost no memory."""
        if len(labels) == 0:
            raise ValueError("0 samples: there is nothing to share; give at least one")
        return [np.arange(len(labels), dtype=np.int64)] * workers


class Iid(Partition):
    """Random disjoint parts whose sizes differ by at most one."""

    name = "iid"
    needs_labels = False

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """A permutation in equal pieces."""
        return np.array_split(rng.permutation(len(labels)), workers)


class Label(Partition):
    """Whole classes to workers while there are enough, then several workers to a class; none is lost."""

    name = "label"

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Position i of the shuffled classes goes to worker i mod N; beyond, the fullest class is shared."""
        groups = shuffled_classes(labels, rng)
        if workers <= len(groups):
            return round_robin(groups, workers)
        owners = class_of_each_worker([len(group) for group in groups], workers)
        shares = np.bincount(owners, minlength=len(groups))
        # the order inside a class may mean something, so its workers get random parts of it
        parts = [
            iter(np.array_split(rng.permutation(group), n)) for group, n in zip(groups, shares, strict=True)
        ]
        return [next(parts[owner]) for owner in owners]


class LabelTruncated(Partition):
    """`label` as in the EPFL experiments: all cut to the shortest, so that classes may vanish."""

    name = "label-truncated"

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Class after class, then as many as the poorest worker has."""
        groups = shuffled_classes(labels, rng)
        if workers > len(groups):
            rule = (
                f"label-truncated would leave {workers - len(groups)} of them, and then all, without samples"
            )
            remedy = f"use at most {len(groups)} workers, or the partition label"
            raise ValueError(f"{workers} workers for {len(groups)} classes: {rule}; {remedy}")
        parts = round_robin(groups, workers)
        shortest = min(len(part) for part in parts)
        return [part[:shortest] for part in parts]


class Dirichlet(Partition):
    """Each class divided in proportions drawn from a Dirichlet(α): small α, unlike workers."""

    name = "dirichlet"
    alpha: float = Field(gt=0, le=1e6)

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Divide class by class, then let the richest give one sample to each who has none."""
        piles: list[list[Indices]] = [[] for _ in range(workers)]
        for group in (np.flatnonzero(labels == label) for label in np.unique(labels)):
            ends = np.cumsum(rng.dirichlet(np.full(workers, self.alpha)))[:-1] * len(group)
            cuts = np.clip(np.round(ends), 0, len(group)).astype(np.int64)
            for pile, part in zip(piles, np.split(rng.permutation(group), cuts), strict=True):
                pile.append(part)
        return without_empty([np.concatenate(pile) for pile in piles])


class Shards(Partition):
    """Sorted by class, cut into equal shards, dealt at random (as in the federated averaging paper)."""

    name = "shards"
    per_worker: int = Field(2, ge=1)

    def least(self) -> int:
        """No shard may be empty."""
        return self.per_worker

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """`per_worker` random shards each."""
        shards = np.array_split(np.argsort(labels, kind="stable"), workers * self.per_worker)
        dealt = rng.permutation(len(shards)).reshape(workers, self.per_worker)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]


def shuffled_classes(labels: Labels, rng: np.random.Generator) -> list[Indices]:
    """The samples of each class that occurs, the classes in random order."""
    return [np.flatnonzero(labels == label) for label in rng.permutation(np.unique(labels))]


def round_robin(groups: Sequence[Indices], workers: int) -> list[Indices]:
    """Group i to worker i mod N."""
    return [np.concatenate(groups[worker::workers]) for worker in range(workers)]


def class_of_each_worker(sizes: Sequence[int], workers: int) -> list[int]:
    """One worker for each class, each further one for the class with most samples per worker."""
    owners = list(range(len(sizes)))
    shares = np.ones(len(sizes))
    while len(owners) < workers:
        # never more workers than samples: while workers < samples, some class has over one each
        fullest = int(np.argmax(np.asarray(sizes) / shares))
        shares[fullest] += 1
        owners.append(fullest)
    return owners


def without_empty(parts: list[Indices]) -> list[Indices]:
    """Parts of which none is empty: in order, each empty one takes the last sample of the largest."""
    sizes = np.array([len(part) for part in parts])
    for empty in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        parts[empty], parts[richest] = parts[richest][-1:], parts[richest][:-1]
        sizes[empty], sizes[richest] = 1, sizes[richest] - 1
    return parts


def class_counts(labels: Labels, parts: Sequence[Indices], classes: int) -> NDArray[np.int64]:
    """How many samples of each class (column) each worker (row) has."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


PARTITIONS = Catalogue(
    "partition", "partitions", Partition, [Shared, Iid, Label, LabelTruncated, Dirichlet, Shards]
)
