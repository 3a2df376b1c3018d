"""The catalogue of partitions: rules that assign training samples to workers."""

from abc import abstractmethod
from collections.abc import Sequence
from heapq import heapreplace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.problems.examples import Labels

Indices = NDArray[np.int64]


class Partition(CatalogueEntry):
    """A rule that assigns each training sample to one worker (with `shared`, to all workers)."""

    needs_labels: ClassVar[bool] = True  # if False, the labels passed to `deal` may be zeros

    def split(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Return each worker's samples, at least one per worker; raise if that is impossible."""
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        samples, least = len(labels), self.min_samples()
        if samples < workers * least:
            raise ValueError(
                f"partition={self} needs at least {least} samples per worker, got {samples} samples for "
                f"{workers} workers. Use at most {samples // least} workers, or partition=shared."
            )
        if self.needs_labels and np.ndim(labels) != 1:
            raise ValueError(
                f"partition={self} needs one label per sample, but the targets have {np.ndim(labels)} "
                f"dimensions. Use partition=iid, by-stream or shared. A Dataset of sequences may have an "
                f"attribute `documents`, with a number per sample."
            )
        dealt = self.deal(np.asarray(labels), workers, rng)
        parts = [] if dealt is None else [np.asarray(part) for part in dealt]
        for part in {id(part): part for part in parts}.values():  # `shared` repeats one array
            integers = part.ndim == 1 and np.issubdtype(part.dtype, np.integer)
            if not integers or not part.size or part.min() < 0 or part.max() >= samples:
                rule = f"a non-empty array of sample numbers from 0 to {samples - 1} for each worker"
                raise ValueError(f"partition={self} must return {rule}, got {part!r}")
        if len(parts) != workers:
            raise ValueError(
                f"partition={self} must return {workers} parts (one per worker), not {len(parts)}"
            )
        return parts

    def min_samples(self) -> int:
        """Return how many samples per worker the partition needs."""
        return 1

    @abstractmethod
    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Return each worker's samples; `split` has checked the arguments."""


class Shared(Partition):
    """Every worker has all samples."""

    name = "shared"
    needs_labels = False

    def min_samples(self) -> int:
        return 0

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        if len(labels) == 0:
            raise ValueError("partition=shared needs at least one sample, got 0")
        return [np.arange(len(labels), dtype=np.int64)] * workers  # one array, however many workers


class Iid(Partition):
    """Random disjoint parts whose sizes differ by at most one."""

    name = "iid"
    needs_labels = False

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(labels)), workers)


class Label(Partition):
    """Whole classes to workers while there are enough, then several workers to a class; none is lost."""

    name = "label"

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        groups = shuffle_classes(labels, rng)
        if workers <= len(groups):
            return deal_round_robin(groups, workers)
        owners = assign_classes([len(group) for group in groups], workers)
        shares = np.bincount(owners, minlength=len(groups))
        # the order inside a class may carry information, so its workers get random parts of it
        parts = [
            iter(np.array_split(rng.permutation(group), n)) for group, n in zip(groups, shares, strict=True)
        ]
        return [next(parts[owner]) for owner in owners]


class LabelTruncated(Partition):
    """`label` as in the EPFL experiments: all parts cut to the shortest, so that classes may vanish."""

    name = "label-truncated"

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        groups = shuffle_classes(labels, rng)
        if workers > len(groups):
            raise ValueError(
                f"partition={self} cannot have more workers ({workers}) than classes ({len(groups)}): some "
                f"would have no samples. Use at most {len(groups)} workers, or partition=label."
            )
        parts = deal_round_robin(groups, workers)
        shortest = min(len(part) for part in parts)
        return [part[:shortest] for part in parts]


class Dirichlet(Partition):
    """Each class divided in proportions drawn from a Dirichlet(α): a small α makes workers differ."""

    name = "dirichlet"
    alpha: float = Field(gt=0, le=1e6)

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        piles: list[list[Indices]] = [[] for _ in range(workers)]
        for group in (np.flatnonzero(labels == label) for label in np.unique(labels)):
            ends = np.cumsum(rng.dirichlet(np.full(workers, self.alpha)))[:-1] * len(group)
            cuts = np.clip(np.round(ends), 0, len(group)).astype(np.int64)
            for pile, part in zip(piles, np.split(rng.permutation(group), cuts), strict=True):
                pile.append(part)
        return fill_empty_parts([np.concatenate(pile) for pile in piles])


class Shards(Partition):
    """Sorted by class, cut into equal shards, dealt at random (as in the federated averaging paper)."""

    name = "shards"
    per_worker: int = Field(2, ge=1)

    def min_samples(self) -> int:
        return self.per_worker  # no shard may be empty

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        shards = np.array_split(np.argsort(labels, kind="stable"), workers * self.per_worker)
        hands = rng.permutation(len(shards)).reshape(workers, self.per_worker)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]


class ByStream(Partition):
    """Consecutive stretches of the data, in their order; sizes differ by at most one."""

    name = "by-stream"
    needs_labels = False

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        stretches = np.array_split(np.arange(len(labels), dtype=np.int64), workers)
        return [stretches[number] for number in rng.permutation(workers)]


class ByDocument(Partition):
    """Whole documents to workers, about equally much text to each; more workers than documents share some.

    Workers that share a document get consecutive stretches of it. The labels are the numbers of documents.
    """

    name = "by-document"

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        _, document, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        order = np.argsort(document, kind="stable")  # the samples of one document after the other
        names = rng.permutation(workers)
        if workers <= len(sizes):
            owner = names[balance_sizes(rng.permutation(len(sizes)), sizes, workers)]
            order = order[np.argsort(owner[document[order]], kind="stable")]
            return np.split(order, np.cumsum(np.bincount(owner, weights=sizes)).astype(np.int64)[:-1])
        shares = np.bincount(assign_classes(sizes.tolist(), workers), minlength=len(sizes))
        documents = np.split(order, np.cumsum(sizes)[:-1])
        pairs = zip(documents, shares, strict=True)
        stretches = [part for samples, share in pairs for part in np.array_split(samples, share)]
        return [stretches[number] for number in names]


def balance_sizes(order: Indices, sizes: NDArray[np.int64], workers: int) -> Indices:
    """Return the worker of each document: the longest first, each to the worker that has least so far.

    `order` decides between documents of equal length.
    """
    owners, loads = np.empty(len(sizes), np.int64), [(0, worker) for worker in range(workers)]
    for document in order[np.argsort(-sizes[order], kind="stable")]:
        load, worker = loads[0]
        owners[document] = worker
        heapreplace(loads, (load + int(sizes[document]), worker))
    return owners


def shuffle_classes(labels: Labels, rng: np.random.Generator) -> list[Indices]:
    """Return the samples of each class that occurs, with the classes in random order."""
    return [np.flatnonzero(labels == label) for label in rng.permutation(np.unique(labels))]


def deal_round_robin(groups: Sequence[Indices], workers: int) -> list[Indices]:
    """Give group i to worker i mod N."""
    return [np.concatenate(groups[worker::workers]) for worker in range(workers)]


def assign_classes(sizes: Sequence[int], workers: int) -> list[int]:
    """Return the class of each worker: first one worker per class, then more where shares are largest."""
    owners = list(range(len(sizes)))
    shares = np.ones(len(sizes))
    while len(owners) < workers:
        # there are at least as many samples as workers, so some class has more than one sample per worker
        largest = int(np.argmax(np.asarray(sizes) / shares))
        shares[largest] += 1
        owners.append(largest)
    return owners


def fill_empty_parts(parts: list[Indices]) -> list[Indices]:
    """Give each empty part, in order, the last sample of the part that is largest at that time."""
    sizes = np.array([len(part) for part in parts])
    for empty in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        parts[empty], parts[largest] = parts[largest][-1:], parts[largest][:-1]
        sizes[empty], sizes[largest] = 1, sizes[largest] - 1
    return parts


def count_classes(labels: Labels, parts: Sequence[Indices], classes: int) -> NDArray[np.int64]:
    """Return how many samples of each class (column) each worker (row) has."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


PARTITIONS = Catalogue(
    "partition",
    "partitions",
    Partition,
    [Shared, Iid, Label, LabelTruncated, Dirichlet, Shards, ByStream, ByDocument],
)
