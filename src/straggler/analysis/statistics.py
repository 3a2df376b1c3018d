"""Small statistics for claims: each takes summaries and gives a number per seed, paired within the seed.

Cells are named by their labels, `*x` for one that ends with x and `x*` for one that begins with it. A seed
counts only if all `of` cells are there: a mean over fewer would be of something else.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import polars as pl

from straggler.analysis.claims import COMPUTED, Statistic, without_lost

Numbers = Mapping[int, float]


def select(summaries: pl.DataFrame, where: Mapping[str, str]) -> pl.DataFrame:
    """Rows whose labels are as asked."""
    for label, wanted in where.items():
        if label not in summaries.columns:
            return summaries.clear()
        column = pl.col(label)
        if wanted.startswith("*"):
            summaries = summaries.filter(column.str.ends_with(wanted[1:]))
        elif wanted.endswith("*"):
            summaries = summaries.filter(column.str.starts_with(wanted[:-1]))
        else:
            summaries = summaries.filter(column == wanted)
    return summaries


def over(combine: Callable[[list[float]], float], of: int, fact: str, where: Mapping[str, str]) -> Statistic:
    """What `combine` makes of a fact of the cells, for each seed that has them all."""

    def numbers(summaries: pl.DataFrame) -> Numbers:
        if fact not in summaries.columns:
            return {}
        found: dict[int, list[float]] = {}
        for row in select(summaries, where).iter_rows(named=True):
            found.setdefault(row["seed"], []).append(math.nan if row[fact] is None else float(row[fact]))
        return {seed: combine(values) for seed, values in found.items() if len(values) == of}

    return numbers


def average(values: list[float]) -> float:
    return sum(values) / len(values)


def mean(of: int, fact: str = "value", **where: str) -> Statistic:
    return over(average, of, fact, where)


def at(fact: str = "value", **where: str) -> Statistic:
    """One cell's."""
    return mean(1, fact, **where)


def nc_share(of: int, **where: str) -> Statistic:
    """Percent of the cells that did not converge."""
    return over(lambda values: 100 * (1 - average(values)), of, "converged", where)


def both(this: Statistic, that: Statistic, combine: Callable[[float, float], float]) -> Statistic:
    """Two statistics combined within each seed that has both; of what is no number nothing follows."""

    def numbers(summaries: pl.DataFrame) -> Numbers:
        left, right = this(summaries), that(summaries)
        pairs = {seed: (left[seed], right[seed]) for seed in left if seed in right}
        return {
            seed: math.nan if any(map(math.isnan, pair)) else combine(*pair) for seed, pair in pairs.items()
        }

    return numbers


def across(combine: Callable[[float, float], float], *statistics: Statistic) -> Statistic:
    """Several combined, two at a time (max, min, add), within each seed that has them all."""
    return reduce(lambda this, that: both(this, that, combine), statistics)


def mean_of(*statistics: Statistic) -> Statistic:
    """The mean of several within each seed that has them all."""
    total = across(operator.add, *statistics)
    return lambda summaries: {seed: value / len(statistics) for seed, value in total(summaries).items()}


def mean_of_converged(*statistics: Statistic) -> Statistic:
    """The same, but of those that rest on no run that did not converge."""

    def numbers(summaries: pl.DataFrame) -> Numbers:
        found = [statistic(without_lost(summaries)) for statistic in statistics]
        seeds = set(found[0]).intersection(*found)
        known = {seed: [each[seed] for each in found if math.isfinite(each[seed])] for seed in seeds}
        return {seed: average(values) for seed, values in known.items() if values}

    return numbers


def difference(this: Statistic, that: Statistic) -> Statistic:
    return both(this, that, lambda a, b: a - b)


def ratio(this: Statistic, that: Statistic) -> Statistic:
    return both(this, that, lambda a, b: a / b if b else math.nan)


def shares_won(contests: Sequence[tuple[Statistic, Sequence[Statistic]]]) -> Statistic:
    """Percent of the contests in which the first is at least all the others, within each seed."""

    def numbers(summaries: pl.DataFrame) -> Numbers:
        won: dict[int, list[float]] = {}
        for champion, others in contests:
            mine, theirs = champion(summaries), [other(summaries) for other in others]
            for seed in mine:
                if all(seed in other for other in theirs):
                    rivals = [other[seed] for other in theirs]
                    best = 100.0 * all(mine[seed] >= rival for rival in rivals)
                    unknown = any(map(math.isnan, (mine[seed], *rivals)))
                    won.setdefault(seed, []).append(math.nan if unknown else best)
        return {seed: average(wins) for seed, wins in won.items() if len(wins) == len(contests)}

    return numbers


def known(value: float) -> Statistic:
    """A number that needs no run."""
    return lambda summaries: {COMPUTED: value}
