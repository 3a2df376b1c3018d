"""Seconds of each worker's jobs: one law for the compute time plus any number of delays."""

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from straggler.timing.laws import BLOCK, Array, Law, Term

CHECKED_WORKERS = 16  # number of workers whose first job is drawn before anything runs
NO_DELAY = array("d", bytes(8 * BLOCK))


class DurationError(ValueError):
    """Raised for a job whose duration is not positive and finite."""

    exit_code = 1


class DrawnBlock(NamedTuple):
    """One worker's latest block, as `array.array`, which is faster to index than a numpy array."""

    number: int
    compute: Sequence[float]
    delay: Sequence[float]


class Durations:
    """Seconds of each worker's jobs, addressed by (worker, launch): the same for every method and engine."""

    def __init__(self, compute: Law, delays: Sequence[Law], workers: int, seed: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if compute.multiplies:
            raise ValueError(
                f"compute={compute}: {compute.name} multiplies the compute time. Use it as a delay."
            )
        self.compute, *self.delays = (Term(law, i, workers, seed) for i, law in enumerate((compute, *delays)))
        left_out = set(range(workers)) - self.compute.affected
        if left_out:
            raise ValueError(
                f"compute={compute}: worker {min(left_out)} has no compute time. "
                f"Omit workers=…, or use this law as a delay."
            )
        self.workers = workers
        self._latest: dict[int, DrawnBlock] = {}

    def __call__(self, worker: int, launch: int) -> float:
        """Return the seconds of the worker's launch-th job (0, 1, 2, …)."""
        return sum(self.parts(worker, launch))

    def parts(self, worker: int, launch: int) -> tuple[float, float]:
        """Return the seconds of compute and of delay of the worker's launch-th job."""
        block = self._latest.get(worker)
        if block is None or block.number != launch // BLOCK:
            block = self._draw_latest(worker, launch // BLOCK)
        place = launch % BLOCK
        compute, delay = block.compute[place], block.delay[place]
        if not 0.0 < compute + delay < math.inf:
            raise self._error(worker, launch, compute + delay)
        return compute, delay

    def check_first_jobs(self) -> None:
        """Draw the first job of some workers, so that laws that give only zeros fail before anything runs."""
        for worker in range(min(self.workers, CHECKED_WORKERS)):
            self.parts(worker, 0)

    def block(self, worker: int, number: int) -> Array:
        """Return the checked seconds of the jobs number·BLOCK to (number+1)·BLOCK − 1."""
        totals, _, _ = self._draw(worker, number)
        bad = np.flatnonzero(~((totals > 0.0) & (totals < math.inf)))
        if bad.size:
            raise self._error(worker, number * BLOCK + int(bad[0]), float(totals[bad[0]]))
        return totals

    def _draw_latest(self, worker: int, number: int) -> DrawnBlock:
        _, compute, delay = self._draw(worker, number)
        delays = array("d", delay.tobytes()) if self.delays else NO_DELAY
        block = DrawnBlock(number, array("d", compute.tobytes()), delays)
        self._latest[worker] = block
        return block

    def _draw(self, worker: int, number: int) -> tuple[Array, Array, Array]:
        if not 0 <= worker < self.workers or number < 0:
            last = self.workers - 1
            raise ValueError(f"worker must be 0 to {last} and block at least 0, got {worker} and {number}")
        delay = np.zeros(BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):  # reported when the job is submitted
            compute = draw_block(self.compute, worker, number, delay)
            for term in self.delays:
                if worker in term.affected:
                    delay = delay + draw_block(term, worker, number, compute)
            return compute + delay, compute, delay

    def _error(self, worker: int, launch: int, seconds: float) -> DurationError:
        laws = [term.law for term in (self.compute, *self.delays) if worker in term.affected]
        remedy = (
            "Reduce the spread, add a constant delay, or use a law that stays above 0, such as uniform."
            if seconds <= 0.0
            else "Use a lighter tail: a smaller cv, factor or exponent, or a larger alpha."
        )
        job = f"worker {worker}, job {launch}: {' + '.join(map(str, laws))}"
        return DurationError(f"{job} gives {seconds} seconds, which must be positive and finite. {remedy}")


def draw_block(term: Term, worker: int, number: int, compute: Array) -> Array:
    """Return a term's block, after checking its shape, since a law may be custom."""
    seconds = np.asarray(term.law.block(term, worker, number, compute))
    if seconds.shape != (BLOCK,):
        raise ValueError(f"{term.law} must return an array of shape ({BLOCK},), got {seconds.shape}")
    return seconds
