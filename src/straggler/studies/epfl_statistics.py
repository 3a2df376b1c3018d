"""Statistics that the EPFL claims share, by protocol."""

from straggler.analysis.claims import Statistic
from straggler.analysis.statistics import at, both, difference, mean, nc_share, ratio, shares_won
from straggler.studies.epfl_numbers import DELAYS, WORKERS

__all__ = [
    "CODED",
    "DATASET_SPREAD",
    "LABEL_SPREAD",
    "WRITTEN",
    "all_slow",
    "best_other",
    "both_clusters",
    "gained",
    "half_momentum",
    "labels_lose",
    "logged",
    "momentum_contest",
    "one_costs_more",
    "one_slow",
    "percent_less",
]

CODED, WRITTEN = "as coded", "as written"
LABEL_SPREAD, DATASET_SPREAD = 5.0, 0.6  # of one run, from the report's repeats


def one_slow(protocol: str, strategy: str) -> Statistic:
    return mean(9, table="II", protocol=protocol, row="one*", column=f"*{strategy}")


def all_slow(protocol: str, strategy: str) -> Statistic:
    return mean(9, table="II", protocol=protocol, row="all*", column=f"*{strategy}")


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


def logged(fact: str, column: str, protocol: str = CODED, optimizer: str = "momentum 0.9") -> Statistic:
    return at(fact, table="log", protocol=protocol, row=f"lenet5, {optimizer}", column=column)


def percent_less(this: Statistic, that: Statistic) -> Statistic:
    part = ratio(this, that)
    return lambda summaries: {seed: 100 * (1 - value) for seed, value in part(summaries).items()}
