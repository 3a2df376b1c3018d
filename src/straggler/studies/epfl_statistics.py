"""Statistics that the EPFL claims share, by protocol."""

import math

import polars as pl

from straggler.analysis.claims import Statistic
from straggler.analysis.statistics import at, both, difference, mean, nc_share, ratio, shares_won
from straggler.studies.epfl_numbers import DELAYS, GAUSSIAN, STRATEGIES, WORKERS

__all__ = [
    "CODED",
    "WRITTEN",
    "all_slow_costs",
    "best_other",
    "both_clusters",
    "gained",
    "gained_where_better",
    "gaussian_diverges",
    "half_momentum",
    "labels_cost",
    "labels_lose",
    "logged",
    "momentum_contest",
    "one_costs_more",
    "one_slow",
    "percent_less",
    "repeats_where_better",
    "spread",
    "sync_gains",
]

CODED, WRITTEN = "as coded", "as written"


def repeats(strategy: str, momentum: float, workers: int) -> list[tuple[float, float]]:
    """Two runs of one experiment, three times: as coded the report's λ = 0 and λ = 2 differ in nothing."""
    first = 2 * STRATEGIES.index(strategy)
    rows = [GAUSSIAN[workers][momentum, milliseconds] for milliseconds in DELAYS]
    return [(row[first], row[first + 1]) for row in rows]


def variance(strategy: str, momentum: float, workers: int) -> float:
    """Of one run's accuracy."""
    pairs = repeats(strategy, momentum, workers)
    return sum((one - other) ** 2 / 2 for one, other in pairs) / len(pairs)


def spread(*means: tuple[str, float, int], workers: tuple[int, ...] = WORKERS) -> float:
    """The standard deviation of a sum or difference of means, by the report's repeats.

    Each mean is (strategy, momentum, delays): over so many delays, and over the numbers of workers.
    """
    return math.sqrt(
        sum(
            variance(strategy, momentum, n) / (delays * len(workers) ** 2)
            for strategy, momentum, delays in means
            for n in workers
        )
    )


def sync_gains(*strategies: str) -> Statistic:
    """Synchronous minus asynchronous at 0 ms, mean over the numbers of workers and these strategies."""
    ending, of = (f"*{strategies[0]}", 3) if len(strategies) == 1 else ("*", 6)
    sync, asynchronous = (
        mean(of, table="II", protocol=CODED, row=row, column=ending) for row in ("sync", "async 0 ms")
    )
    return difference(sync, asynchronous)


def labels_cost(row: str, protocol: str) -> Statistic:
    """Accuracy with the data split minus with labels split, mean over the numbers of workers."""
    dataset, labels = (
        mean(3, table="II", protocol=protocol, row=row, column=f"*{strategy}") for strategy in STRATEGIES
    )
    return difference(dataset, labels)


def one_slow(protocol: str, strategy: str) -> Statistic:
    return mean(9, table="II", protocol=protocol, row="one*", column=f"*{strategy}")


def all_slow(protocol: str, strategy: str) -> Statistic:
    return mean(9, table="II", protocol=protocol, row="all*", column=f"*{strategy}")


def all_slow_costs(workers: int, strategy: str) -> Statistic:
    """Accuracy at 0 ms minus with all workers delayed, mean of three delays."""
    column = f"{workers} workers, {strategy}"
    return difference(
        at(table="II", protocol=CODED, row="async 0 ms", column=column),
        mean(3, table="II", protocol=CODED, row="all*", column=column),
    )


def labels_lose(protocol: str) -> Statistic:
    return difference(one_slow(protocol, "dataset"), one_slow(protocol, "labels"))


def one_costs_more(protocol: str, strategy: str) -> Statistic:
    return difference(all_slow(protocol, strategy), one_slow(protocol, strategy))


def momentum_contest(protocol: str) -> Statistic:
    """Momentum .9 of Table II against 0, .5 and .99 of Table III, nine times."""
    contests = []
    for milliseconds in DELAYS:
        for n in WORKERS:
            champion = at(
                table="II", protocol=protocol, row=f"one {milliseconds} ms", column=f"{n} workers, labels"
            )
            others = [
                at(table="III", protocol=protocol, row=f"{milliseconds} ms", column=f"{n} workers, m = {m}")
                for m in ("0", "0.5", "0.99")
            ]
            contests.append((champion, others))
    return shares_won(contests)


def both_clusters(protocol: str) -> Statistic:
    """Percent that did not converge at .99 with 5 and with 10 workers."""
    of_five, of_ten = (
        nc_share(3, table="III", protocol=protocol, column=f"{n} workers, m = 0.99") for n in (5, 10)
    )
    return both(of_five, of_ten, lambda a, b: (a + b) / 2)


def gaussian_diverges(*tables: str) -> Statistic:
    """Percent that did not converge at .99 with Gaussian delays, mean of these tables."""
    shares = [nc_share(12, table=table, protocol=CODED, row="m = 0.99*") for table in tables]
    return shares[0] if len(shares) == 1 else both(shares[0], shares[1], lambda a, b: (a + b) / 2)


def best_other(protocol: str) -> Statistic:
    """The best accuracy of the momenta that are not .9."""
    best = at(table="landscape", protocol=protocol, row="m = 0")
    for momentum in ("0.5", "0.95", "0.99"):
        best = both(best, at(table="landscape", protocol=protocol, row=f"m = {momentum}"), max)
    return best


def half_momentum(protocol: str) -> Statistic:
    return difference(
        mean(9, table="III", protocol=protocol, column="*m = 0.5"),
        mean(9, table="III", protocol=protocol, column="*m = 0"),
    )


def gained(protocol: str, lam: int) -> Statistic:
    compensated = mean(9, table="IV", protocol=protocol, column=f"*λ = {lam}")
    return difference(compensated, one_slow(protocol, "labels"))


def gained_where_better(protocol: str) -> Statistic:
    """The mean gain of compensation over those of the 18 cells in which it is one; none is a gain of 0."""
    gains = [
        difference(
            at(
                table="IV",
                protocol=protocol,
                row=f"{milliseconds} ms",
                column=f"{n} workers, λ = {lam}",
            ),
            at(table="II", protocol=protocol, row=f"one {milliseconds} ms", column=f"{n} workers, labels"),
        )
        for lam in (2, 5)
        for milliseconds in DELAYS
        for n in WORKERS
    ]

    def numbers(summaries: pl.DataFrame) -> dict[int, float]:
        found = [gain(summaries) for gain in gains]
        seeds = set(found[0]).intersection(*found)
        return {seed: mean_of_positive([gain[seed] for gain in found]) for seed in seeds}

    return numbers


def repeats_where_better() -> float:
    """The same choice among the report's repeats of one experiment: labels, momentum .9."""
    pairs = [pair for n in WORKERS for pair in repeats("labels", 0.9, n)]
    return mean_of_positive([second - first for first, second in pairs])


def mean_of_positive(gains: list[float]) -> float:
    better = [gain for gain in gains if gain > 0]
    return sum(better) / len(better) if better else 0.0


def logged(fact: str, column: str, protocol: str = CODED, optimizer: str = "momentum 0.9") -> Statistic:
    return at(fact, table="log", protocol=protocol, row=f"lenet5, {optimizer}", column=column)


def percent_less(this: Statistic, that: Statistic) -> Statistic:
    part = ratio(this, that)
    return lambda summaries: {seed: 100 * (1 - value) for seed, value in part(summaries).items()}
