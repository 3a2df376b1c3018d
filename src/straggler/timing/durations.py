"""Seconds of each worker's jobs: one law for the compute time plus any number of delays."""

import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from straggler.timing.laws import BLOCK, Array, Law, SampleLaw
from straggler.timing.samples import TrainingSamples
from straggler.timing.terms import Term

CHECKED_WORKERS = 16  # number of workers whose first job is drawn before anything runs
NO_DELAY = array("d", bytes(8 * BLOCK))


class DurationError(ValueError):
    """Raised for a job whose duration is not positive and finite."""

    exit_code = 1


class BatchSeconds(NamedTuple):
    """Seconds of the batches of one block of jobs: a row per job, a column per batch."""

    compute: Array
    extra: Array  # of the laws that multiply the compute time


class DrawnBlock(NamedTuple):
    """One worker's latest block, as `array.array`, which is faster to index than a numpy array."""

    number: int
    compute: Sequence[float]
    delay: Sequence[float]
    batches: BatchSeconds | None  # kept only if a law depends on the samples


class Durations:
    """Seconds of each worker's jobs, addressed by (worker, launch): the same for every method and engine.

    A job of several batches takes the sum of their compute times, and every delay in seconds once.
    """

    def __init__(
        self,
        compute: Law,
        delays: Sequence[Law],
        workers: int,
        seed: int,
        batches: Sequence[int] | None = None,  # of each worker's jobs; None: one
        scales: Sequence[float] | None = None,  # factor on each worker's compute time; None: 1
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if compute.multiplies:
            raise ValueError(
                f"compute={compute}: {compute.name} multiplies the compute time. Use it as a delay."
            )
        check_each("batches", batches, workers, 1)
        check_each("scales", scales, workers, math.ulp(0.0))
        self.compute, *self.delays = (Term(law, i, workers, seed) for i, law in enumerate((compute, *delays)))
        left_out = set(range(workers)) - self.compute.affected
        if left_out:
            raise ValueError(
                f"compute={compute}: worker {min(left_out)} has no compute time. "
                f"Omit workers=…, or use this law as a delay."
            )
        self.workers, self.batches, self.scales = workers, batches, scales
        self._latest: dict[int, DrawnBlock] = {}
        self._samples: TrainingSamples | None = None
        # whether a law depends on the samples, so that the simulator must call `job_parts`
        self.needs_samples = any(term.law.needs_samples for term in self.delays)

    def __call__(self, worker: int, launch: int) -> float:
        """Return the seconds of the worker's launch-th job (0, 1, 2, …)."""
        return sum(self.parts(worker, launch))

    def parts(self, worker: int, launch: int) -> tuple[float, float]:
        """Return the seconds of compute and of delay of the worker's launch-th job.

        Laws that depend on the samples are left out; `job_parts` includes them.
        """
        block = self._latest.get(worker)
        if block is None or block.number != launch // BLOCK:
            block = self._draw_latest(worker, launch // BLOCK)
        place = launch % BLOCK
        compute, delay = block.compute[place], block.delay[place]
        if not 0.0 < compute + delay < math.inf:
            raise self._error(worker, launch, compute + delay)
        return compute, delay

    def job_parts(self, worker: int, launch: int, index: int) -> tuple[float, float]:
        """Return the seconds of compute and of delay of a job, which depend on the samples of its batches.

        `index` is the number of the worker's job, which gives its batches.
        """
        compute, delay = self.parts(worker, launch)
        laws = [term.law for term in self.delays if term.law.needs_samples and worker in term.affected]
        if not laws:
            return compute, delay
        if self._samples is None:
            raise ValueError(f"delay={laws[0]} depends on the samples. Call use_problem first.")
        block = self._latest[worker].batches
        assert block is not None
        count = 1 if self.batches is None else self.batches[worker]
        compute, change = 0.0, 0.0
        for place, number in enumerate(range(index * count, (index + 1) * count)):
            chosen, factor = self._samples.batch(worker, number), 1.0
            for law in laws:
                assert isinstance(law, SampleLaw)
                factor *= law.batch_factor(self._samples, chosen)
            compute += factor * float(block.compute[launch % BLOCK, place])
            change += (factor - 1.0) * float(block.extra[launch % BLOCK, place])
        delay = max(0.0, delay + change)
        if not 0.0 < compute + delay < math.inf:
            raise self._error(worker, launch, compute + delay)
        return compute, delay

    def use_problem(self, problem: Any) -> None:
        """Let laws depend on the samples of a problem; raise ValueError if it lacks what they need."""
        if self._samples is not None and self._samples.problem is problem:
            return
        samples = None
        for law in [term.law for term in self.delays if isinstance(term.law, SampleLaw)]:
            try:
                samples = samples or TrainingSamples(problem)
                law.check_samples(samples)
            except ValueError as error:
                raise ValueError(f"delay={law} depends on the samples: {error}") from None
        self._samples = samples

    def check_first_jobs(self) -> None:
        """Draw the first job of some workers, so that laws that give only zeros fail before anything runs."""
        for worker in range(min(self.workers, CHECKED_WORKERS)):
            self.parts(worker, 0)

    def mean_seconds(self, worker: int) -> float:
        """Return the mean time of the worker's first jobs, without laws that depend on the samples."""
        return float(self._draw_checked(worker, 0).mean())

    def relative_speeds(self) -> list[float]:
        """Return each worker's jobs per second, divided by those of the fastest worker."""
        seconds = [self.mean_seconds(worker) for worker in range(self.workers)]
        fastest = min(seconds)
        return [fastest / each for each in seconds]

    def block(self, worker: int, number: int) -> Array:
        """Return the checked seconds of the jobs number·BLOCK to (number+1)·BLOCK − 1."""
        if self.needs_samples:
            law = next(term.law for term in self.delays if term.law.needs_samples)
            raise ValueError(f"delay={law} depends on the samples, which are unknown without a problem.")
        return self._draw_checked(worker, number)

    def _draw_checked(self, worker: int, number: int) -> Array:
        totals, _, _, _ = self._draw(worker, number)
        bad = np.flatnonzero(~((totals > 0.0) & (totals < math.inf)))
        if bad.size:
            raise self._error(worker, number * BLOCK + int(bad[0]), float(totals[bad[0]]))
        return totals

    def _draw_latest(self, worker: int, number: int) -> DrawnBlock:
        _, compute, delay, batches = self._draw(worker, number)
        delays = array("d", delay.tobytes()) if self.delays else NO_DELAY
        kept = batches if self.needs_samples else None
        block = DrawnBlock(number, array("d", compute.tobytes()), delays, kept)
        self._latest[worker] = block
        return block

    def _draw(self, worker: int, number: int) -> tuple[Array, Array, Array, BatchSeconds | None]:
        """Return the total, compute and delay seconds of a block of jobs, and those of their batches."""
        if not 0 <= worker < self.workers or number < 0:
            last = self.workers - 1
            raise ValueError(f"worker must be 0 to {last} and block at least 0, got {worker} and {number}")
        delay = np.zeros(BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):  # reported when the job is submitted
            if self.batches is not None or self.scales is not None or self.needs_samples:
                return self._draw_batches(worker, number, delay)
            compute = draw_block(self.compute, worker, number, delay)
            for term in self.delays:
                if worker in term.affected:
                    delay = delay + draw_block(term, worker, number, compute)
            return compute + delay, compute, delay, None

    def _draw_batches(
        self, worker: int, number: int, delay: Array
    ) -> tuple[Array, Array, Array, BatchSeconds | None]:
        """Return what `_draw` returns. Batch b of job j uses the draw j·H + b of the laws for batches."""
        count = 1 if self.batches is None else self.batches[worker]
        scale = 1.0 if self.scales is None else self.scales[worker]
        blocks, zeros = range(number * count, (number + 1) * count), delay
        drawn = [scale * draw_block(self.compute, worker, each, zeros) for each in blocks]
        compute = sum_batches(drawn)
        extra = np.zeros((BLOCK, count))
        for term in self.delays:
            if worker not in term.affected:
                continue
            if term.law.multiplies:
                pairs = zip(blocks, drawn, strict=True)
                more = [draw_block(term, worker, each, seconds) for each, seconds in pairs]
                extra, delay = extra + np.concatenate(more).reshape(BLOCK, count), delay + sum_batches(more)
            else:
                delay = delay + draw_block(term, worker, number, compute)
        batches = BatchSeconds(np.concatenate(drawn).reshape(BLOCK, count), extra)
        return compute + delay, compute, delay, batches

    def _error(self, worker: int, launch: int, seconds: float) -> DurationError:
        laws = [term.law for term in (self.compute, *self.delays) if worker in term.affected]
        remedy = (
            "Reduce the spread, add a constant delay, or use a law that stays above 0, such as uniform."
            if seconds <= 0.0
            else "Use a lighter tail: a smaller cv, factor or exponent, or a larger alpha."
        )
        job = f"worker {worker}, job {launch}: {' + '.join(map(str, laws))}"
        return DurationError(f"{job} gives {seconds} seconds, which must be positive and finite. {remedy}")


def check_each(name: str, values: Sequence[float] | None, workers: int, least: float) -> None:
    """Raise ValueError unless there is a finite value of at least `least` for each worker."""
    if values is None:
        return
    if len(values) != workers:
        raise ValueError(f"{name} must have one value per worker ({workers}), got {len(values)}")
    if bad := [value for value in values if not least <= value < math.inf]:
        rule = "at least 1" if least == 1 else "above 0"
        raise ValueError(f"{name} must be finite and {rule}, got {bad[0]}")


def sum_batches(blocks: list[Array]) -> Array:
    """Return the sums over consecutive draws: as many of them as there are blocks make a job."""
    if len(blocks) == 1:
        return blocks[0]
    total: Array = np.cumsum(np.concatenate(blocks).reshape(BLOCK, len(blocks)), axis=1)[:, -1]
    return total


def draw_block(term: Term, worker: int, number: int, compute: Array) -> Array:
    """Return a term's block, after checking its shape, since a law may be custom."""
    seconds = np.asarray(term.law.block(term, worker, number, compute))
    if seconds.shape != (BLOCK,):
        raise ValueError(f"{term.law} must return an array of shape ({BLOCK},), got {seconds.shape}")
    return seconds
