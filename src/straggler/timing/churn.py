"""Churn: when workers leave and join in virtual time."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Annotated, Any, ClassVar

import numpy as np
import polars as pl
from pydantic import Field

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.core.randomness import addressed_rng
from straggler.timing.tables import check_column, hash_file, read_table
from straggler.timing.terms import Workers, select_workers

Seconds = Annotated[float, Field(gt=0)]
MaybeForever = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class ChurnLaw(CatalogueEntry):
    """A law of when workers are present. Each worker switches between present and absent.

    Switch number 0, 1, 2, … of a worker has a time; the law must be able to compute it again at any time.
    """

    @property
    def grace(self) -> float:
        """Seconds that a worker has to finish its job when it must leave."""
        return math.inf if getattr(self, "finish", False) else 0.0

    def initial_memory(self, workers: int) -> dict[int, Any]:
        """Return the workers that this law makes leave or join, and what it remembers of each."""
        return dict.fromkeys(select_workers(self, getattr(self, "workers", None), workers))

    def is_present_first(self, term: "ChurnTerm", worker: int) -> bool:
        """Return whether a worker is present at the start."""
        return True

    @abstractmethod
    def switch_time(self, term: "ChurnTerm", worker: int, number: int, last: float) -> float:
        """Return when a worker's number-th switch happens, given the time of the one before; inf: never."""

    def leaves_for_good(self, term: "ChurnTerm", worker: int) -> bool:
        """Return whether a worker never comes back from some time on."""
        return False


class ExponentialChurn(ChurnLaw):
    """Exponential times of presence and absence with these means in seconds."""

    name: ClassVar[str] = "exponential-churn"
    up: Seconds
    down: MaybeForever
    workers: Workers | None = None
    finish: bool = False  # whether a worker finishes its job before it leaves

    def switch_time(self, term: "ChurnTerm", worker: int, number: int, last: float) -> float:
        mean = self.down if number % 2 else self.up
        return last + mean * term.rng(worker, number).standard_exponential()

    def leaves_for_good(self, term: "ChurnTerm", worker: int) -> bool:
        return self.down == math.inf


class Preemption(ChurnLaw):
    """A worker is taken away after an exponential time with mean `every`, and is back `down` seconds later.

    A job that finishes within `warning` seconds of the preemption is still delivered; others are lost.
    """

    name: ClassVar[str] = "preemption"
    every: Seconds
    down: MaybeForever
    warning: float = Field(0.0, ge=0)
    workers: Workers | None = None

    @property
    def grace(self) -> float:
        return self.warning

    def switch_time(self, term: "ChurnTerm", worker: int, number: int, last: float) -> float:
        if number % 2:
            return last + self.down
        return last + self.every * term.rng(worker, number).standard_exponential()

    def leaves_for_good(self, term: "ChurnTerm", worker: int) -> bool:
        return self.down == math.inf


class Diurnal(ChurnLaw):
    """Each worker is present for `share` of each period; the phase of each worker is random."""

    name: ClassVar[str] = "diurnal"
    period: Seconds
    share: Annotated[float, Field(ge=0, le=1)]
    workers: Workers | None = None
    finish: bool = False

    def phase(self, term: "ChurnTerm", worker: int) -> float:
        """Return how much of a worker's period has passed at the start, from 0 to 1."""
        return term.rng(worker, 0).random()

    def is_present_first(self, term: "ChurnTerm", worker: int) -> bool:
        return self.phase(term, worker) < self.share

    def switch_time(self, term: "ChurnTerm", worker: int, number: int, last: float) -> float:
        if self.share in (0.0, 1.0):
            return math.inf
        phase = self.phase(term, worker)
        place = number if phase < self.share else number + 1  # even: leaves; odd: joins
        passed = place // 2 + (1.0 if place % 2 else self.share)
        return (passed - phase) * self.period

    def leaves_for_good(self, term: "ChurnTerm", worker: int) -> bool:
        return self.share == 0.0


class Late(ChurnLaw):
    """These workers join after some seconds."""

    name: ClassVar[str] = "late"
    seconds: Seconds
    workers: Workers

    def is_present_first(self, term: "ChurnTerm", worker: int) -> bool:
        return False

    def switch_time(self, term: "ChurnTerm", worker: int, number: int, last: float) -> float:
        return self.seconds if number == 0 else math.inf


class Leave(ChurnLaw):
    """These workers leave for good after some seconds."""

    name: ClassVar[str] = "leave"
    seconds: float = Field(ge=0)
    workers: Workers
    finish: bool = False

    def switch_time(self, term: "ChurnTerm", worker: int, number: int, last: float) -> float:
        return self.seconds if number == 0 else math.inf

    def leaves_for_good(self, term: "ChurnTerm", worker: int) -> bool:
        return True


class ChurnTrace(ChurnLaw):
    """Events from a CSV or Parquet file with columns worker, time (seconds) and event (join or leave).

    A worker whose first event is join is absent at the start; workers without events are always present.
    """

    name: ClassVar[str] = "churn-trace"
    file: str
    finish: bool = False

    def identity(self) -> str:
        """Return the text form with a hash of the file, so that another trace has another id."""
        return f"{super().identity()}#{hash_file(self.file)}"

    def initial_memory(self, workers: int) -> dict[int, Any]:
        """Return for each worker whether it is present first, and the times of its switches."""
        table = read_table(self, self.file, {"time": pl.Float64, "event": pl.String})
        good = pl.col("time").is_finite() & (pl.col("time") >= 0)
        check_column(self, table, "time", good, "finite and at least 0")
        check_column(self, table, "event", pl.col("event").is_in(["join", "leave"]), "join or leave")
        is_known = (pl.col("worker") >= 0) & (pl.col("worker") < workers)
        check_column(self, table, "worker", is_known, f"a worker from 0 to {workers - 1}")
        read: dict[int, tuple[bool, list[float]]] = {}
        for worker, time, event in table.sort("time", maintain_order=True).iter_rows():
            is_first_present, times = read.setdefault(worker, (event == "leave", []))
            if (event == "leave") != (is_first_present == (len(times) % 2 == 0)):
                raise ValueError(
                    f"{self}: worker {worker} has the event {event} twice in a row, at {times[-1]} and "
                    f"{time} seconds. A worker joins and leaves by turns."
                )
            times.append(time)
        return read

    def is_present_first(self, term: "ChurnTerm", worker: int) -> bool:
        is_present: bool = term.memory[worker][0]
        return is_present

    def switch_time(self, term: "ChurnTerm", worker: int, number: int, last: float) -> float:
        times: list[float] = term.memory[worker][1]
        return times[number] if number < len(times) else math.inf

    def leaves_for_good(self, term: "ChurnTerm", worker: int) -> bool:
        is_present_first, times = term.memory[worker]
        return bool(is_present_first) == (len(times) % 2 == 1)


CHURN = Catalogue(
    "churn law",
    "churn",
    ChurnLaw,
    [ExponentialChurn, Preemption, Diurnal, Late, Leave, ChurnTrace],
)


class ChurnTerm:
    """A churn law with its workers and its random generators."""

    def __init__(self, law: ChurnLaw, position: int, workers: int, seed: int) -> None:
        self.law, self.seed, self.stream = law, seed, f"churn-{position}"
        self.memory = law.initial_memory(workers)  # of each worker that the law affects

    def rng(self, worker: int, number: int) -> np.random.Generator:
        """Return the generator of a worker's number-th switch."""
        return addressed_rng(self.seed, self.stream, worker, number)


class Churn:
    """When workers are present: a worker is present while all laws say so.

    For each law and worker there is one switch to come, in a heap of (time, worker, law, number).
    """

    def __init__(self, laws: Sequence[ChurnLaw], workers: int, seed: int) -> None:
        self.terms = [ChurnTerm(law, position, workers, seed) for position, law in enumerate(laws)]
        pairs = [(position, worker) for position, term in enumerate(self.terms) for worker in term.memory]
        gone = {worker for at, worker in pairs if laws[at].leaves_for_good(self.terms[at], worker)}
        if laws and len(gone) == workers:
            raise ValueError(
                f"churn={', '.join(map(str, laws))}: all workers leave for good. "
                f"Name the workers that leave with workers=[…], and leave out at least one."
            )
        # laws by which each worker is absent now; workers that all laws make present are not in it
        self._absences: dict[int, int] = {}
        self._is_present = [dict[int, bool]() for _ in laws]
        for position, worker in pairs:
            self._set(position, worker, laws[position].is_present_first(self.terms[position], worker))
        times = [(self._time(position, worker, 0, 0.0), worker, position, 0) for position, worker in pairs]
        self._switches = [each for each in times if each[0] < math.inf]
        heapify(self._switches)

    @property
    def next_time(self) -> float:
        """The time of the next switch; infinite if there is none."""
        return self._switches[0][0] if self._switches else math.inf

    def is_present(self, worker: int) -> bool:
        """Return whether all laws say that a worker is present now."""
        return worker not in self._absences

    def switch(self) -> tuple[float, int, float | None]:
        """Perform the next switch. Return its time and worker; if a law makes it leave, also its grace."""
        time, worker, position, number = self._switches[0]
        is_present = not self._is_present[position][worker]
        self._set(position, worker, is_present)
        following = self._time(position, worker, number + 1, time)
        # An infinite time stays at the end of the heap.
        heapreplace(self._switches, (following, worker, position, number + 1))
        return time, worker, None if is_present else self.terms[position].law.grace

    def state(self) -> dict[str, Any]:
        """Return the switches to come, for a checkpoint."""
        return {"switches": [list(switch) for switch in self._switches]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a churn with the same laws and seed."""
        self._switches = [tuple(switch) for switch in state["switches"]]
        for _, worker, position, number in self._switches:
            first = self.terms[position].law.is_present_first(self.terms[position], worker)
            self._set(position, worker, first == (number % 2 == 0))

    def _time(self, position: int, worker: int, number: int, last: float) -> float:
        term = self.terms[position]
        return term.law.switch_time(term, worker, number, last)

    def _set(self, position: int, worker: int, is_present: bool) -> None:
        """Record what a law says of a worker."""
        change = int(self._is_present[position].get(worker, True)) - int(is_present)
        self._is_present[position][worker] = is_present
        absences = self._absences.get(worker, 0) + change
        if absences:
            self._absences[worker] = absences
        else:
            self._absences.pop(worker, None)
