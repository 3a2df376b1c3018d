"""The catalogue of laws: distributions of the seconds that a job takes."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, model_validator

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.timing.samples import TrainingSamples
from straggler.timing.tables import check_column, hash_file, read_table
from straggler.timing.terms import Term, Workers

BLOCK = 64  # number of a worker's jobs that are drawn at once
Array = npt.NDArray[np.float64]
NotNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[float, Field(ge=1)]


class Law(CatalogueEntry):
    """A law of the seconds per job, for all workers or only for some."""

    workers: Workers | None = None
    multiplies: ClassVar[bool] = False  # whether it multiplies the compute time; then it can only be a delay
    needs_samples: ClassVar[bool] = False  # whether it depends on the samples of a batch (see SampleLaw)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        # Pydantic puts inherited fields first. With `workers` last, `constant(0.03)` means 0.03 seconds.
        cls.model_fields["workers"] = cls.model_fields.pop("workers")

    @abstractmethod
    def block(self, term: Term, worker: int, number: int, compute: Array) -> Array:
        """Return the seconds of the worker's number-th block of jobs; `compute` are their compute times."""

    def initial_memory(self, workers: Sequence[int]) -> dict[int, Any]:
        """Return the law's memory of each worker before its first job."""
        return {}


class Memoryless(Law):
    """A law whose jobs are independent of each other."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        """Return the seconds of `compute.size` jobs; `compute` are their compute times."""

    def block(self, term: Term, worker: int, number: int, compute: Array) -> Array:
        return self.draw(term.rng(worker, number), worker, compute)


class Constant(Memoryless):
    """The same seconds for every job."""

    name = "constant"
    seconds: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return np.full(compute.size, self.seconds)


class Gaussian(Memoryless):
    """Normal, with negative values replaced by 0 (the EPFL system's delay)."""

    name = "gaussian"
    mean: NotNegative
    std: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return np.maximum(0.0, rng.normal(self.mean, self.std, compute.size))


class Uniform(Memoryless):
    """Uniform from low to high (tiers of workers: FADAS, Wang et al. 2024)."""

    name = "uniform"
    low: NotNegative
    high: NotNegative

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}. Swap them.")
        return self

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return rng.uniform(self.low, self.high, compute.size)


class Exponential(Memoryless):
    """A fixed shift plus an exponential with this mean (Dutta et al. 2018)."""

    name = "exponential"
    mean: NotNegative
    shift: NotNegative = 0.0

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return self.shift + rng.exponential(self.mean, compute.size)


class Gamma(Memoryless):
    """Gamma with this mean and coefficient of variation: equal machines (Ali et al. 2000)."""

    name = "gamma"
    mean: NotNegative
    cv: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return draw_gamma(rng, self.mean, self.cv, compute.size)


class GammaMachines(Law):
    """Gamma around the machine's mean, which is drawn once per worker from a gamma (Ali et al. 2000)."""

    name = "gamma-machines"
    mean: NotNegative
    cv_machine: NotNegative
    cv_task: NotNegative

    def block(self, term: Term, worker: int, number: int, compute: Array) -> Array:
        machine = term.memory.get(worker)
        if machine is None:
            machine = draw_gamma(term.machine_rng(worker), self.mean, self.cv_machine, 1)[0]
            term.memory[worker] = machine
        return draw_gamma(term.rng(worker, number), machine, self.cv_task, compute.size)


class LogNormal(Memoryless):
    """Log-normal with this mean and coefficient of variation (not those of its logarithm)."""

    name = "lognormal"
    mean: NotNegative
    cv: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        variance = math.log1p(self.cv * self.cv)
        return self.mean * np.exp(rng.normal(-variance / 2, math.sqrt(variance), compute.size))


class Pareto(Memoryless):
    """Heavy tails: P(X > x) = (scale/x)^alpha for x ≥ scale (MindFlayer, Maranjyan et al. 2024)."""

    name = "pareto"
    scale: NotNegative
    alpha: Annotated[float, Field(gt=0)]

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return self.scale * (1.0 + rng.pareto(self.alpha, compute.size))


class Power(Memoryless):
    """Fixed for each worker: base·(worker+1)^exponent (Tyurin and Richtárik 2023)."""

    name = "power"
    base: NotNegative
    exponent: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return np.full(compute.size, self.base * np.float64(worker + 1) ** self.exponent)


class Spikes(Memoryless):
    """Multiply a random job's compute time by factor (MindFlayer, Maranjyan et al. 2024)."""

    name = "spikes"
    multiplies = True
    probability: Probability
    factor: AtLeastOne

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return (self.factor - 1.0) * compute * (rng.random(compute.size) < self.probability)


class OnOff(Law):
    """A worker switches between on and off (a Markov chain); off, compute takes factor times longer."""

    name = "on-off"
    multiplies = True
    fail: Probability
    recover: Probability
    factor: AtLeastOne

    def block(self, term: Term, worker: int, number: int, compute: Array) -> Array:
        starts: list[bool] = term.memory.setdefault(
            worker, [False]
        )  # whether the worker is off when a block begins
        for block in range(min(number, len(starts) - 1), number + 1):
            off = self.walk(starts[block], term.rng(worker, block), compute.size)
            if block + 1 == len(starts):
                starts.append(off[-1])
        return (self.factor - 1.0) * compute * np.array(off[:-1], dtype=np.bool_)

    def walk(self, off: bool, rng: np.random.Generator, jobs: int) -> list[bool]:
        """Return whether the worker is off at each job and after the last."""
        states = [off]
        for chance in rng.random(jobs).tolist():
            off = chance >= self.recover if off else chance < self.fail
            states.append(off)
        return states


class SampleLaw(Law):
    """A law that multiplies the compute time of a batch by a factor that depends on its samples."""

    multiplies = True
    needs_samples = True

    def block(self, term: Term, worker: int, number: int, compute: Array) -> Array:
        return np.zeros(compute.size)  # `Durations` applies the factor to each batch

    @abstractmethod
    def check_samples(self, samples: TrainingSamples) -> None:
        """Raise ValueError if the training set does not have what the law needs."""

    @abstractmethod
    def batch_factor(self, samples: TrainingSamples, chosen: npt.NDArray[np.int64]) -> float:
        """Return the factor of a batch of these samples."""


class ByLabel(SampleLaw):
    """Samples with one of these labels take factor times longer; a batch takes the mean of its samples."""

    name = "by-label"
    factor: Positive
    labels: Annotated[tuple[int, ...], Field(min_length=1)]

    def check_samples(self, samples: TrainingSamples) -> None:
        last, classes = max(self.labels), int(samples.labels.max()) + 1
        if last >= classes or min(self.labels) < 0:
            raise ValueError(f"labels={[*self.labels]} must be 0 to {classes - 1}, as in the training set.")

    def batch_factor(self, samples: TrainingSamples, chosen: npt.NDArray[np.int64]) -> float:
        slow = np.isin(samples.labels[chosen], self.labels)
        return float(np.where(slow, self.factor, 1.0).mean())


class ByLength(SampleLaw):
    """Compute time in proportion to the samples' mean number of non-zero elements (padding is zero)."""

    name = "by-length"

    def check_samples(self, samples: TrainingSamples) -> None:
        samples.mean_length  # noqa: B018  (raises if it is not defined)

    def batch_factor(self, samples: TrainingSamples, chosen: npt.NDArray[np.int64]) -> float:
        return float(samples.lengths(chosen).mean()) / samples.mean_length


class Trace(Law):
    """Measured seconds from a CSV or Parquet file with columns worker, seconds; repeats at the end."""

    name = "trace"
    file: str

    def identity(self) -> str:
        """Return the text form with a hash of the file, so that another trace has another id."""
        return f"{super().identity()}#{hash_file(self.file)}"

    def block(self, term: Term, worker: int, number: int, compute: Array) -> Array:
        measured: Array = term.memory[worker]
        launches = np.arange(number * BLOCK, number * BLOCK + compute.size)
        return measured[launches % measured.size]

    def initial_memory(self, workers: Sequence[int]) -> dict[int, Any]:
        table = read_table(self, self.file, {"seconds": pl.Float64})
        good = pl.col("seconds").is_finite() & (pl.col("seconds") >= 0)
        check_column(self, table, "seconds", good, "finite and at least 0")
        groups = table.group_by("worker")  # keeps the order within a worker
        measured = {int(worker): jobs["seconds"].to_numpy() for (worker,), jobs in groups}
        missing = [worker for worker in workers if worker not in measured]
        if missing:
            raise ValueError(
                f"{self} has no jobs of worker {missing[0]}. Add them, or list the others in workers=[…]."
            )
        return {worker: measured[worker] for worker in workers}


def draw_gamma(rng: np.random.Generator, mean: float, cv: float, size: int) -> Array:
    """Draw from a gamma with this mean and coefficient of variation: shape 1/cv², scale mean·cv²."""
    if cv < 1e-9:  # the shape would overflow
        return np.full(size, mean)
    return rng.gamma(1.0 / (cv * cv), mean * (cv * cv), size)


DELAYS = Catalogue(
    "delay law",
    "delays",
    Law,
    [
        *(Constant, Gaussian, Uniform, Exponential, Gamma, GammaMachines),
        *(LogNormal, Pareto, Power, Spikes, OnOff, ByLabel, ByLength, Trace),
    ],
)
