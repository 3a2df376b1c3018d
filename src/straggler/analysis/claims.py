"""Claims: what a source concluded, as data, and a verdict computed from what was measured here."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from straggler.analysis.intervals import Interval, Spread, mean_interval

Verdict = Literal[
    "replicated", "not replicated", "inconclusive", "by construction", "not measured", "rehearsed"
]
Statistic = Callable[[pl.DataFrame], Mapping[int, float]]  # of the summaries: a number per seed
COMPUTED = -1  # in place of a seed: the number needs no run
# What a number can be: a difference of accuracies, an accuracy, a ratio, anything.
POINTS, PERCENT, RATIO, ANY = (-100.0, 100.0), (0.0, 100.0), (0.0, math.inf), (-math.inf, math.inf)


@dataclass(frozen=True)
class Evidence:
    """A number that explains: what it is, and how it is computed."""

    text: str
    statistic: Statistic
    possible: tuple[float, float] = POINTS  # as in Claim


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
    spread: Spread | None = None  # of one seed's statistic, from the source's own repeats
    exact: bool = False  # about these very runs, or computed: no interval is needed
    possible: tuple[float, float] = POINTS  # an interval ends where nothing can be
    constructed: bool = False  # decided by how the study is made, not by what it finds: not judged
    causes: tuple[Evidence, ...] = ()
    comment: str = ""  # what to make of it

    @property
    def bounds(self) -> str:
        """Where the statistic must lie, in words."""
        if math.isinf(self.most):
            return f"at least {self.least:g}"
        if math.isinf(self.least):
            return f"at most {self.most:g}"
        return f"from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Measured:
    """A number with its interval, and whether runs that did not converge are in it."""

    interval: Interval
    with_lost: bool

    def text(self, unit: str = "") -> str:
        return f"{self.interval}{unit}{', NC among its runs' if self.with_lost else ''}"


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, and what it rests on."""

    claim: Claim
    verdict: Verdict
    measured: Measured | None
    said: float | None
    causes: tuple[tuple[str, Measured], ...]

    @property
    def effect(self) -> Interval | None:
        return self.measured.interval if self.measured else None

    @property
    def comment(self) -> str:
        """What to make of it: nothing, as long as nothing is measured."""
        return self.claim.comment if self.effect else ""


def judge(claim: Claim, summaries: pl.DataFrame, source: pl.DataFrame) -> Judged:
    """Replicated if the whole interval is where the source says, not replicated if none of it is."""
    ours = measure(claim.statistic, summaries, claim.spread, claim.exact, claim.possible)
    theirs = measure(claim.statistic, source)
    said = theirs.interval.mean if claim.said is None and theirs is not None else claim.said
    found = [(c.text, measure(c.statistic, summaries, possible=c.possible)) for c in claim.causes]
    causes = tuple((text, number) for text, number in found if number is not None)
    return Judged(claim, verdict_on(claim, ours.interval if ours else None), ours, said, causes)


def verdict_on(claim: Claim, effect: Interval | None) -> Verdict:
    if effect is None:
        return "not measured"
    if claim.constructed:
        return "by construction"
    if claim.least <= effect.low and effect.high <= claim.most:
        return "replicated"
    return "not replicated" if effect.high < claim.least or effect.low > claim.most else "inconclusive"


def measure(
    statistic: Statistic,
    summaries: pl.DataFrame,
    spread: Spread | None = None,
    exact: bool = False,
    possible: tuple[float, float] = ANY,
) -> Measured | None:
    """The statistic over the seeds that have all it needs; none if no seed has."""
    found = finite(statistic(summaries))
    if not found:
        return None
    effect = mean_interval(list(found.values()), spread, exact).within(*possible)
    effect = replace(effect, seeds=0) if COMPUTED in found else effect
    return Measured(effect, with_lost=finite(statistic(without_lost(summaries))).keys() < found.keys())


def finite(numbers: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in numbers.items() if math.isfinite(value)}


def without_lost(summaries: pl.DataFrame) -> pl.DataFrame:
    """The same rows, without the numbers of runs that did not converge."""
    if "converged" not in summaries.columns:
        return summaries
    numbers = [name for name, kind in summaries.schema.items() if kind.is_float()]
    return summaries.with_columns(pl.when("converged").then(pl.col(numbers)).name.keep())
