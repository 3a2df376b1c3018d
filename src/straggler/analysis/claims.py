"""Claims: what a source concluded, as data, and a verdict computed from what was measured here."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

from straggler.analysis.intervals import Interval, interval

__all__ = ["Claim", "Evidence", "Judged", "Statistic", "Verdict", "judge"]

Verdict = Literal["replicated", "not replicated", "inconclusive", "not measured", "rehearsed"]
Statistic = Callable[[pl.DataFrame], Mapping[int, float]]  # of the summaries: a number per seed


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
class Judged:
    """A claim, its verdict, and what it rests on."""

    claim: Claim
    verdict: Verdict
    effect: Interval | None
    said: float | None
    causes: tuple[tuple[str, Interval], ...]


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
