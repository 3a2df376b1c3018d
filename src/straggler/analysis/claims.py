"""Claims: what a source concluded, as data, and a verdict computed from what was measured here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from scipy import stats

__all__ = ["Claim", "Evidence", "Interval", "Judged", "Statistic", "Verdict", "interval", "judge"]

Verdict = Literal["replicated", "not replicated", "inconclusive", "not measured"]
Statistic = Callable[[pl.DataFrame], Mapping[int, float]]  # of the summaries: a number per seed
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Evidence:
    """A number that explains: what it is, and how it is computed."""

    text: str
    statistic: Statistic


@dataclass(frozen=True)
class Claim:
    """Replicated if the statistic lies between `least` and `most`."""

    key: str
    statement: str
    where: str  # in the source
    measured: str  # what the statistic is, in words
    statistic: Statistic
    least: float = -math.inf
    most: float = math.inf
    said: float | None = None  # by the source; if not, the statistic of the source's own numbers
    unit: str = "points"
    spread: float | None = None  # standard deviation of one seed's statistic, from the source's own repeats
    exact: bool = False  # computed, not drawn: no interval is needed
    causes: tuple[Evidence, ...] = ()
    comment: str = ""  # what to make of it


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and where it may lie, at 95 %; open where one seed cannot tell."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{self.mean:.2f}"
        if self.low == self.high:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, and what it rests on."""

    claim: Claim
    verdict: Verdict
    effect: Interval | None
    said: float | None
    causes: tuple[tuple[str, Interval], ...]


def interval(values: Sequence[float], spread: float | None = None, exact: bool = False) -> Interval:
    """Student's t over seeds; with one seed, the spread that is known from elsewhere, or nothing is known."""
    numbers = np.asarray(values, dtype=float)
    mean, count = float(numbers.mean()), len(numbers)
    if exact:
        return Interval(mean, mean, mean, count)
    if count > 1:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * numbers.std(ddof=1) / math.sqrt(count))
    else:
        half = math.inf if spread is None else float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * spread
    return Interval(mean, mean - half, mean + half, count)


def judge(claim: Claim, summaries: pl.DataFrame, source: pl.DataFrame) -> Judged:
    """Replicated if the whole interval is where the source says, not replicated if none of it is."""
    effect = measure(claim.statistic, summaries, claim.spread, claim.exact)
    theirs = measure(claim.statistic, source)
    said = theirs.mean if claim.said is None and theirs is not None else claim.said
    found = [(cause.text, measure(cause.statistic, summaries)) for cause in claim.causes]
    causes = tuple((text, value) for text, value in found if value is not None)
    return Judged(claim, verdict_on(claim, effect), effect, said, causes)


def verdict_on(claim: Claim, effect: Interval | None) -> Verdict:
    if effect is None:
        return "not measured"
    if claim.least <= effect.low and effect.high <= claim.most:
        return "replicated"
    return "not replicated" if effect.high < claim.least or effect.low > claim.most else "inconclusive"


def measure(
    statistic: Statistic, summaries: pl.DataFrame, spread: float | None = None, exact: bool = False
) -> Interval | None:
    """The statistic over the seeds that have all it needs; none if no seed has."""
    values = [value for value in statistic(summaries).values() if math.isfinite(value)]
    return interval(values, spread, exact) if values else None
