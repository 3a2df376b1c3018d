"""Statistics that the EPFL claims share, by protocol."""

import math
from collections.abc import Callable

import polars as pl

from straggler.analysis.claims import Statistic
from straggler.analysis.intervals import Spread
from straggler.analysis.statistics import (
    across,
    at,
    both,
    difference,
    mean,
    mean_of,
    mean_of_converged,
    nc_share,
    ratio,
    shares_won,
)
from straggler.reproduction.papers.epfl.numbers import DELAYS, GAUSSIAN, NC, STRATEGIES, WORKERS

CODED, WRITTEN = "as coded", "as written"


def repeats(strategy: str, momentum: float, workers: int) -> list[tuple[float, float]]:
    """Two runs of one experiment, three times: as coded the report's λ = 0 and λ = 2 differ in nothing."""
    first = 2 * STRATEGIES.index(strategy)
    rows = [GAUSSIAN[workers][momentum, milliseconds] for milliseconds in DELAYS]
    return [(row[first], row[first + 1]) for row in rows]


def spread(*means: tuple[str, float], workers: tuple[int, ...] = WORKERS) -> Spread:
    """How a sum or difference of means varies, by the report's repeats (Welch and Satterthwaite).

    Each mean is (strategy, momentum), over the numbers of workers. Over how many delays does not matter: with
    one seed these runs share weights, batches and the deal of the labels, and may err together.
    """
    terms = []
    for strategy, momentum in means:
        for n in workers:
            pairs = repeats(strategy, momentum, n)
            assert min(map(min, pairs)) > NC, "of a run that may be lost there is no standard deviation"
            variance = sum((one - other) ** 2 / 2 for one, other in pairs) / len(pairs)
            terms.append(variance / len(workers) ** 2)
    whole = sum(terms)
    return Spread(math.sqrt(whole), whole**2 / sum(term**2 / len(DELAYS) for term in terms))


def at_rest(row: str, workers: int, strategy: str) -> Statistic:
    """A cell of Table II as coded, without delays."""
    return at(table="II", protocol=CODED, row=row, column=f"{workers} workers, {strategy}")


def sync_differs() -> Statistic:
    """Synchronous against asynchronous at 0 ms: the mean of six absolute differences."""
    differences = [
        both(at_rest("sync", n, each), at_rest("async 0 ms", n, each), lambda a, b: abs(a - b))
        for n in WORKERS
        for each in STRATEGIES
    ]
    return mean_of(*differences)


def sync_gains(strategy: str) -> Statistic:
    """Synchronous minus asynchronous at 0 ms, mean over the numbers of workers."""
    sync, asynchronous = (
        mean(3, table="II", protocol=CODED, row=row, column=f"*{strategy}") for row in ("sync", "async 0 ms")
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


def delay_costs_more_of_ten(strategy: str) -> Statistic:
    """What delays cost ten workers more than two."""
    return difference(all_slow_costs(10, strategy), all_slow_costs(2, strategy))


def stopped_together(rows: str, of: int, column: str = "*labels") -> Statistic:
    """As coded with labels split, but with a budget in common."""
    return mean(of, table="causes", protocol="common stop", row=rows, column=column)


def labels_lose(protocol: str) -> Statistic:
    return difference(one_slow(protocol, "dataset"), one_slow(protocol, "labels"))


def one_costs_more(protocol: str, strategy: str) -> Statistic:
    return difference(all_slow(protocol, strategy), one_slow(protocol, strategy))


def one_costs_more_of(workers: int) -> Statistic:
    """The same with labels split and so many workers, as written."""
    every, one = (
        mean(3, table="II", protocol=WRITTEN, row=row, column=f"{workers} workers, labels")
        for row in ("all*", "one*")
    )
    return difference(every, one)


def longer_delay_costs(workers: int) -> Statistic:
    """Accuracy with one worker 30 ms slow minus 90 ms, labels split, without momentum, as written."""
    short, long = (
        at(table="III", protocol=WRITTEN, row=f"{d} ms", column=f"{workers} workers, m = 0") for d in (30, 90)
    )
    return difference(short, long)


def one_costs_more_percent(protocol: str) -> Statistic:
    """How much less accurate in percent, mean of the pairs (delay, workers, split) of which none was lost."""
    pairs = [
        [at(table="II", protocol=protocol, row=f"{who} {d} ms", column=column) for who in ("one", "all")]
        for d in DELAYS
        for column in (f"{n} workers, {split}" for n in WORKERS for split in STRATEGIES)
    ]
    return mean_of_converged(*(percent_less(one, every) for one, every in pairs))


def labels_lose_most(protocol: str) -> Statistic:
    """The most that labels cost with one slow worker, in percent, over delays and numbers of workers."""

    def loss(milliseconds: int, workers: int) -> Statistic:
        where = {"table": "II", "protocol": protocol, "row": f"one {milliseconds} ms"}
        dataset, labels = (at(**where, column=f"{workers} workers, {split}") for split in STRATEGIES)
        return both(dataset, labels, percent_more)

    return across(max, *(loss(milliseconds, n) for milliseconds in DELAYS for n in WORKERS))


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
    return mean_of(
        *(nc_share(3, table="III", protocol=protocol, column=f"{n} workers, m = 0.99") for n in (5, 10))
    )


def gaussian_diverges(*tables: str) -> Statistic:
    """Percent that did not converge at .99 with Gaussian delays, mean of these tables."""
    return mean_of(*(nc_share(12, table=table, protocol=CODED, row="m = 0.99*") for table in tables))


def of_momenta(choose: Callable[[float, float], float], fact: str, *momenta: str) -> Statistic:
    """The largest or smallest of these runs of the landscape, as coded."""
    return across(choose, *(at(fact, table="landscape", protocol=CODED, row=f"m = {m}") for m in momenta))


def half_momentum(protocol: str) -> Statistic:
    return difference(
        mean(9, table="III", protocol=protocol, column="*m = 0.5"),
        mean(9, table="III", protocol=protocol, column="*m = 0"),
    )


def gained(protocol: str, lam: int) -> Statistic:
    compensated = mean(9, table="IV", protocol=protocol, column=f"*λ = {lam}")
    return difference(compensated, one_slow(protocol, "labels"))


def gained_as_coded() -> Statistic:
    """What λ = 2 would gain in the report's own runs, if it ran; of those that were not lost."""

    def gain(milliseconds: int, workers: int) -> Statistic:
        cell = {"row": f"one {milliseconds} ms", "column": f"{workers} workers, labels"}
        running = at(table="causes", protocol="compensation runs", **cell)
        return difference(running, at(table="II", protocol=CODED, **cell))

    return mean_of_converged(*(gain(milliseconds, n) for milliseconds in DELAYS for n in WORKERS))


def gained_with_gaussian_delays(table: str) -> Statistic:
    """What λ = 2 gains over 0, both splits, without momentum .99, as written."""

    def accuracy(lam: int) -> Statistic:
        rows = [f"m = {momentum},*" for momentum in ("0", "0.5", "0.9")]
        where = {"table": table, "protocol": WRITTEN, "column": f"*λ = {lam}"}
        return mean_of(*(mean(6, row=row, **where) for row in rows))

    return difference(accuracy(2), accuracy(0))


def gained_where_better(protocol: str) -> Statistic:
    """The mean gain of compensation in percent of the accuracy without, over those of 18 cells that gain."""
    gains = [
        both(
            at(table="IV", protocol=protocol, row=f"{milliseconds} ms", column=f"{n} workers, λ = {lam}"),
            at(table="II", protocol=protocol, row=f"one {milliseconds} ms", column=f"{n} workers, labels"),
            percent_more,
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


def percent_more(this: float, that: float) -> float:
    return 100 * (this - that) / that


def repeats_where_better() -> float:
    """The same choice among the report's repeats, in either order: labels, momentum .9, none lost."""
    pairs = [pair for n in WORKERS for pair in repeats("labels", 0.9, n) if min(pair) > NC]
    return mean_of_positive([percent_more(max(pair), min(pair)) for pair in pairs])


def mean_of_positive(gains: list[float]) -> float:
    """Of no gains the mean is none."""
    better = [gain for gain in gains if gain > 0]
    return sum(better) / len(better) if better else 0.0


def logged(fact: str, column: str, protocol: str = CODED, optimizer: str = "momentum 0.9") -> Statistic:
    return at(fact, table="log", protocol=protocol, row=f"lenet5, {optimizer}", column=column)


def percent_less(this: Statistic, that: Statistic) -> Statistic:
    part = ratio(this, that)
    return lambda summaries: {seed: 100 * (1 - value) for seed, value in part(summaries).items()}
