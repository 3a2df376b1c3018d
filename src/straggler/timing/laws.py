"""The catalogue of laws: distributions of the seconds that a job takes."""

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

BLOCK = 64  # number of a worker's jobs that are drawn at once
Array = npt.NDArray[np.float64]
NotNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1)]


class Law(CatalogueEntry):
    """A law of the seconds per job, for all workers or only for some."""

    workers: tuple[NonNegativeInt, ...] | None = None
    multiplies: ClassVar[bool] = False  # whether it multiplies the compute time; then it can only be a delay

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        # Pydantic puts inherited fields first. With `workers` last, `constant(0.03)` means 0.03 seconds.
        cls.model_fields["workers"] = cls.model_fields.pop("workers")

    @field_validator("workers")
    @classmethod
    def _check_workers(cls, workers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if workers is not None and not workers:
            raise ValueError("[] affects no worker. Name a worker, or omit it for all workers.")
        return workers

    @abstractmethod
    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
        """Return the seconds of the worker's number-th block of jobs; `compute` are their compute times."""

    def initial_memory(self, workers: Sequence[int]) -> dict[int, Any]:
        """Return the law's memory of each worker before its first job."""
        return {}


class Memoryless(Law):
    """A law whose jobs are independent of each other."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        """Return the seconds of `compute.size` jobs; `compute` are their compute times."""

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
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

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
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

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
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


class Trace(Law):
    """Measured seconds from a CSV or Parquet file with columns worker, seconds; repeats at the end."""

    name = "trace"
    file: str

    def identity(self) -> str:
        """Return the text form with a hash of the file, so that another trace has another id."""
        return f"{super().identity()}#{hashlib.sha256(Path(self.file).read_bytes()).hexdigest()}"

    def block(self, term: "Term", worker: int, number: int, compute: Array) -> Array:
        measured: Array = term.memory[worker]
        launches = np.arange(number * BLOCK, number * BLOCK + compute.size)
        return measured[launches % measured.size]

    def initial_memory(self, workers: Sequence[int]) -> dict[int, Any]:
        groups = self.read().group_by("worker")  # keeps the order within a worker
        measured = {int(worker): jobs["seconds"].to_numpy() for (worker,), jobs in groups}
        missing = [worker for worker in workers if worker not in measured]
        if missing:
            raise ValueError(
                f"{self} has no jobs of worker {missing[0]}. Add them, or list the others in workers=[…]."
            )
        return {worker: measured[worker] for worker in workers}

    def read(self) -> pl.DataFrame:
        """Return the file's two columns after checking them."""
        suffix = Path(self.file).suffix.lower()
        if suffix not in (".csv", ".parquet"):
            raise ValueError(f"{self}: the file is neither .csv nor .parquet. Convert it to one of them.")
        try:
            read = pl.read_csv if suffix == ".csv" else pl.read_parquet
            table = read(self.file, glob=False)
            table = table.select("worker", pl.col("seconds").cast(pl.Float64))
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self}: {reason}. It needs the numeric columns worker and seconds.") from None
        return self.check_table(table)

    def check_table(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the table, or raise ValueError with its first bad row."""
        if not table["worker"].dtype.is_integer() or table["worker"].null_count():
            raise ValueError(f"{self}: the column worker must contain whole numbers from 0 in every row.")
        good = (pl.col("seconds").is_finite() & (pl.col("seconds") >= 0)).fill_null(False)
        bad = table.with_row_index("row").filter(~good)
        if bad.height:
            row, _, seconds = bad.row(0)
            raise ValueError(
                f"{self}: row {row + 1} has seconds={seconds}, which must be finite and at least 0."
            )
        return table


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
        *(LogNormal, Pareto, Power, Spikes, OnOff, Trace),
    ],
)


class Term:
    """A law as one term of the sum that is a duration, with its workers, random generators and memory."""

    def __init__(self, law: Law, index: int, workers: int, seed: int) -> None:
        self.law, self.index, self.seed = law, index, seed
        self.affected = frozenset(range(workers) if law.workers is None else law.workers)
        if (last := max(self.affected)) >= workers:
            raise ValueError(f"{law}: worker {last} does not exist. The workers are 0 to {workers - 1}.")
        self.memory = law.initial_memory(sorted(self.affected))

    def rng(self, worker: int, number: int) -> np.random.Generator:
        """Return the generator of a worker's number-th block."""
        return addressed_rng(self.seed, f"duration-{self.index}", worker, number)

    def machine_rng(self, worker: int) -> np.random.Generator:
        """Return the generator of the draws made once per worker, such as the mean of its machine."""
        return addressed_rng(self.seed, f"machine-{self.index}", worker)
