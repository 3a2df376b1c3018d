"""The laws of seconds per job, and where their draws are addressed."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, NonNegativeInt, field_validator, model_validator

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.core.randomness import addressed_rng

BLOCK = 64
Array = npt.NDArray[np.float64]
NotNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1)]


class Law(CatalogueEntry):
    """A law of seconds per job, for all workers or only for `workers`."""

    workers: tuple[NonNegativeInt, ...] | None = None
    multiplies: ClassVar[bool] = False  # the compute time, so it cannot be the compute time

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        # An inherited field comes first; last, `constant(0.03)` means seconds and texts end with the workers.
        cls.model_fields["workers"] = cls.model_fields.pop("workers")

    @field_validator("workers")
    @classmethod
    def someone(cls, workers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if workers is not None and not workers:
            raise ValueError("[] affects nobody; name a worker, or leave workers out for everyone")
        return workers

    @abstractmethod
    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
        """Seconds of the worker's number-th BLOCK of jobs, whose gradients take `compute`."""

    def recall(self, workers: Sequence[int]) -> dict[int, Any]:
        """What is known of each worker before its first job."""
        return {}


class Memoryless(Law):
    """A law whose jobs have nothing to do with each other."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        """Seconds of as many jobs as `compute` has (what each one's gradient takes)."""

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
        return self.draw(term.rng(worker, number), worker, compute)


class Constant(Memoryless):
    """Always the same."""

    name = "constant"
    seconds: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return np.full(compute.size, self.seconds)


class Gaussian(Memoryless):
    """Normal, with 0 for what falls below 0 (the EPFL system's delay)."""

    name = "gaussian"
    mean: NotNegative
    std: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return np.maximum(0.0, rng.normal(self.mean, self.std, compute.size))


class Uniform(Memoryless):
    """Anything from low to high alike (tiers of workers: FADAS, Wang et al. 2024)."""

    name = "uniform"
    low: NotNegative
    high: NotNegative

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}; swap them")
        return self

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return rng.uniform(self.low, self.high, compute.size)


class Exponential(Memoryless):
    """A fixed shift plus an exponential of this mean (Dutta et al. 2018)."""

    name = "exponential"
    mean: NotNegative
    shift: NotNegative = 0.0

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return self.shift + rng.exponential(self.mean, compute.size)


class Gamma(Memoryless):
    """Gamma of this mean and coefficient of variation: machines alike (Ali et al. 2000)."""

    name = "gamma"
    mean: NotNegative
    cv: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return gamma(rng, self.mean, self.cv, compute.size)


class GammaMachines(Law):
    """Gamma around a mean of the machine's own, itself gamma, drawn once per worker (Ali et al. 2000)."""

    name = "gamma-machines"
    mean: NotNegative
    cv_machine: NotNegative
    cv_task: NotNegative

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
        machine = term.memory.get(worker)
        if machine is None:
            machine = gamma(term.machine_rng(worker), self.mean, self.cv_machine, 1)[0]
            term.memory[worker] = machine
        return gamma(term.rng(worker, number), machine, self.cv_task, compute.size)


class LogNormal(Memoryless):
    """Log-normal of this mean and coefficient of variation (its own, not its logarithm's)."""

    name = "lognormal"
    mean: NotNegative
    cv: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        variance = math.log1p(self.cv * self.cv)
        return self.mean * np.exp(rng.normal(-variance / 2, math.sqrt(variance), compute.size))


class Pareto(Memoryless):
    """At least scale, P(X > x) = (scale/x)^alpha: heavy tails (MindFlayer, Maranjyan et al. 2024)."""

    name = "pareto"
    scale: NotNegative
    alpha: Annotated[float, Field(gt=0)]

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return self.scale * (1.0 + rng.pareto(self.alpha, compute.size))


class Power(Memoryless):
    """Fixed, slower with the worker's number: base·(worker+1)^exponent (Tyurin and Richtárik 2023)."""

    name = "power"
    base: NotNegative
    exponent: NotNegative

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return np.full(compute.size, self.base * np.float64(worker + 1) ** self.exponent)


class Spikes(Memoryless):
    """Now and then a job's compute time is multiplied by factor (MindFlayer, Maranjyan et al. 2024)."""

    name = "spikes"
    multiplies = True
    probability: Probability
    factor: AtLeastOne

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return (self.factor - 1.0) * compute * (rng.random(compute.size) < self.probability)


class OnOff(Law):
    """A two-state Markov chain over the worker's jobs, on at first; off, compute is factor times longer."""

    name = "on-off"
    multiplies = True
    fail: Probability
    recover: Probability
    factor: AtLeastOne

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
        starts: list[bool] = term.memory.setdefault(worker, [False])  # is it off as a block begins?
        for block in range(min(number, len(starts) - 1), number + 1):
            off = self.walk(starts[block], term.rng(worker, block), compute.size)
            if block + 1 == len(starts):
                starts.append(off[-1])
        return (self.factor - 1.0) * compute * np.array(off[:-1], dtype=np.bool_)

    def walk(self, off: bool, rng: np.random.Generator, jobs: int) -> list[bool]:
        """Is the worker off at each job, and after the last?"""
        states = [off]
        for chance in rng.random(jobs).tolist():
            off = chance >= self.recover if off else chance < self.fail
            states.append(off)
        return states


class Trace(Law):
    """Measured seconds from a CSV or Parquet file with columns worker, seconds; starts over at its end."""

    name = "trace"
    file: str

    def identity(self) -> str:
        """With the content of the file: another trace is another run."""
        return f"{super().identity()}#{hashlib.sha256(Path(self.file).read_bytes()).hexdigest()}"

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
        measured: Array = term.memory[worker]
        launches = np.arange(number * BLOCK, number * BLOCK + compute.size)
        return measured[launches % measured.size]

    def recall(self, workers: Sequence[int]) -> dict[int, Any]:
        groups = self.read().group_by("worker")  # keeps the order within a worker
        measured = {int(worker): jobs["seconds"].to_numpy() for (worker,), jobs in groups}
        missing = [worker for worker in workers if worker not in measured]
        if missing:
            raise ValueError(
                f"{self}: no jobs of worker {missing[0]}; add them, or list those it has in workers"
            )
        return {worker: measured[worker] for worker in workers}

    def read(self) -> pl.DataFrame:
        """The file's two columns, checked."""
        suffix = Path(self.file).suffix.lower()
        if suffix not in (".csv", ".parquet"):
            raise ValueError(f"{self}: the file is neither .csv nor .parquet; convert it to one of them")
        try:
            read = pl.read_csv if suffix == ".csv" else pl.read_parquet
            table = read(self.file, glob=False)
            table = table.select("worker", pl.col("seconds").cast(pl.Float64))
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self}: {reason}; it needs the columns worker and seconds, numbers") from None
        return self.checked(table)

    def checked(self, table: pl.DataFrame) -> pl.DataFrame:
        if not table["worker"].dtype.is_integer() or table["worker"].null_count():
            raise ValueError(f"{self}: the column worker must hold whole numbers in every row, from 0 on")
        good = (pl.col("seconds").is_finite() & (pl.col("seconds") >= 0)).fill_null(False)
        bad = table.with_row_index("row").filter(~good)
        if bad.height:
            row, _, seconds = bad.row(0)
            raise ValueError(f"{self}: row {row + 1} has seconds={seconds}; write a number of at least 0")
        return table


def gamma(rng: np.random.Generator, mean: float, cv: float, size: int) -> Array:
    """Gamma draws of this mean and coefficient of variation: shape 1/cv², scale mean·cv²."""
    if cv < 1e-9:  # nothing a clock would notice, and the shape would overflow on the way to zero
        return np.full(size, mean)
    return rng.gamma(1.0 / (cv * cv), mean * (cv * cv), size)


DELAYS = Catalogue(
    "delay law",
    "delays",
    Law,
    [
        *(Constant, Gaussian, Uniform, Exponential, Gamma, GammaMachines),
        *(LogNormal, Pareto, Power, Spikes, OnOff, Trace),
    ],
)


class Term:
    """A law at its place in the sum: whom it affects, where its draws are addressed, what it remembers."""

    def __init__(self, law: Law, index: int, workers: int, seed: int) -> None:
        self.law, self.index, self.seed = law, index, seed
        self.affected = frozenset(range(workers) if law.workers is None else law.workers)
        if max(self.affected) >= workers:
            raise ValueError(f"{law}: no worker {max(self.affected)}; they are 0 to {workers - 1}")
        self.memory = law.recall(sorted(self.affected))

    def rng(self, worker: int, number: int) -> np.random.Generator:
        return addressed_rng(self.seed, f"duration-{self.index}", worker, number)

    def machine_rng(self, worker: int) -> np.random.Generator:
        return addressed_rng(self.seed, f"machine-{self.index}", worker)
