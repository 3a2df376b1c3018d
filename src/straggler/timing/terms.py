"""Which workers a law affects, and a law as one term of a duration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import AfterValidator, NonNegativeInt

from straggler.config.registry import CatalogueEntry
from straggler.core.randomness import addressed_rng

if TYPE_CHECKING:
    from straggler.timing.laws import Law


def check_not_empty(workers: tuple[int, ...]) -> tuple[int, ...]:
    """Raise ValueError if a list of workers is empty."""
    if not workers:
        raise ValueError("[] affects no worker. Name a worker, or omit it for all workers.")
    return workers


Workers = Annotated[tuple[NonNegativeInt, ...], AfterValidator(check_not_empty)]


def select_workers(entry: CatalogueEntry, chosen: Sequence[int] | None, workers: int) -> Sequence[int]:
    """Return the workers that an entry affects, or raise ValueError if one of them does not exist."""
    if chosen is None:
        return range(workers)
    if (last := max(chosen)) >= workers:
        raise ValueError(f"{entry}: worker {last} does not exist. The workers are 0 to {workers - 1}.")
    return sorted(set(chosen))


class Term:
    """A law as one term of the sum that is a duration, with its workers, random generators and memory."""

    def __init__(self, law: "Law", index: int, workers: int, seed: int) -> None:
        self.law, self.index, self.seed = law, index, seed
        affected = select_workers(law, law.workers, workers)
        self.affected, self.memory = frozenset(affected), law.initial_memory(affected)

    def rng(self, worker: int, number: int) -> np.random.Generator:
        """Return the generator of a worker's number-th block."""
        return addressed_rng(self.seed, f"duration-{self.index}", worker, number)

    def machine_rng(self, worker: int) -> np.random.Generator:
        """Return the generator of the draws made once per worker, such as the mean of its machine."""
        return addressed_rng(self.seed, f"machine-{self.index}", worker)
