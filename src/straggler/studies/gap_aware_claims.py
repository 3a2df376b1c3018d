"""What the Gap-Aware paper concludes; at the default scale networks and training are much smaller."""

import math
from dataclasses import dataclass

import polars as pl
from scipy import stats

from straggler.analysis.claims import Claim, Evidence, Statistic
from straggler.analysis.statistics import (
    at,
    both,
    difference,
    known,
    mean,
    nc_share,
    ratio,
    select,
    shares_won,
)
from straggler.studies.study import Scale

__all__ = ["beyond", "claims"]


@dataclass(frozen=True)
class Network:
    """What a claim is about: the protocol of its cells, what it is called, and how many sizes of cluster."""

    protocol: str
    called: str
    sizes: int


NETWORKS: dict[Scale, tuple[Network, Network]] = {
    "default": (Network("lenet5, lr .05", "lr .05", 4), Network("lenet5, lr .01", "lr .01", 4)),
    "paper": (Network("resnet20, CIFAR-10", "ResNet-20", 8), Network("wrn-16-4, CIFAR-10", "WRN-16-4", 8)),
}
CIFAR = Network("CIFAR-10, lr .02", "CIFAR-10", 4)  # at the default scale only
SHORT = "Four epochs without warm-up are few steps for 32 workers; the paper trains for 160 to 200."
OTHERS = ("nag-asgd", "dc-asgd", "sa", "ga", "dana")
WORKERS = (4, 8, 16, 32)


def error(network: Network, method: str, workers: int, fact: str = "value") -> Statistic:
    return at(fact, table="2", protocol=network.protocol, row=method, column=f"N = {workers}")


def accuracy(network: Network, method: str, workers: int) -> Statistic:
    return error(network, method, workers, "test_accuracy")


def above_baseline(network: Network, method: str, workers: int) -> Statistic:
    return difference(error(network, method, workers), error(network, "sgd", 1))


def ga_against_sa(networks: tuple[Network, ...]) -> Statistic:
    contests = [(accuracy(f, "ga", n), [accuracy(f, "sa", n)]) for f in networks for n in WORKERS]
    return shares_won(contests)


def wins(table: str, networks: tuple[Network, ...]) -> Statistic:
    """Percent of networks in which DANA-GA is the best of the asynchronous methods with 32 workers."""

    def of(network: Network, method: str) -> Statistic:
        return at("test_accuracy", table=table, protocol=network.protocol, row=method, column="N = 32")

    return shares_won([(of(each, "dana-ga"), [of(each, method) for method in OTHERS]) for each in networks])


def ga_minus_sa_in(table: str, network: Network) -> Statistic:
    """Accuracy of GA minus SA, mean over the numbers of workers."""
    where = {"table": table, "protocol": network.protocol}
    return difference(*(mean(network.sizes, "test_accuracy", **where, row=row) for row in ("ga", "sa")))


def ga_minus_sa(networks: tuple[Network, Network]) -> Statistic:
    first, second = (ga_minus_sa_in("2", network) for network in networks)
    return both(first, second, lambda a, b: (a + b) / 2)


def faster(kind: str, workers: int, than: str = "ssgd") -> Statistic:
    """Gradients used per second, asynchronous over another method."""
    speed = (at(table="12", protocol=kind, row=method, column=f"N = {workers}") for method in ("asgd", than))
    return ratio(*speed)


def other_sizes(kind: str) -> tuple[Evidence, ...]:
    return (
        Evidence("8 workers", faster(kind, 8)),
        Evidence("1,024 workers", faster(kind, 1024)),
        Evidence("1,024 workers, over K-sync with k = 90 % of them", faster(kind, 1024, "k-sync(k=90%)")),
    )


def map_best(negative: bool) -> Statistic:
    """The best accuracy over the learning rates and the momenta below zero, or the others."""

    def numbers(summaries: pl.DataFrame) -> dict[int, float]:
        cells = select(summaries, {"table": "10"})
        found: dict[int, list[tuple[bool, float]]] = {}
        for row in cells.iter_rows(named=True):
            value = -math.inf if row["value"] is None else row["value"]  # the best is one that is known
            found.setdefault(row["seed"], []).append(("-" in row["row"], value))
        whole = {seed: cells for seed, cells in found.items() if len(cells) == 70}
        return {seed: max(v for below, v in cells if below == negative) for seed, cells in whole.items()}

    return numbers


def beyond(factor: float, cv: float) -> float:
    """P(X > factor·mean) of a gamma with this coefficient of variation."""
    shape = 1 / cv**2
    return float(stats.gamma.sf(factor * shape, shape))


OF_ANY_NETWORK = (
    Claim(
        "negative-momentum",
        "With 32 asynchronous workers the best momentum of ASGD is negative.",
        "figures 10 and 11",
        "best accuracy over learning rates with momentum below 0 minus with momentum from 0 on, 32 workers",
        difference(map_best(negative=True), map_best(negative=False)),
        least=0,
        said=0.15,  # figure 10: 91.57 at -.8, and 91.42 at .8
    ),
    Claim(
        "async-faster-homogeneous",
        "With equal machines asynchronous training is about 1.2 times as fast as synchronous.",
        "figure 12",
        "gradients used per second, asynchronous over synchronous, 64 workers",
        faster("homogeneous", 64),
        least=1.1,
        most=1.35,
        unit="×",
        causes=other_sizes("homogeneous"),
        comment="The ratio is the mean of the longest of N batches over the mean of one, so it depends on N: "
        "it grows slowly, and without bound. K-sync abandons a tenth of the gradients and is no faster than "
        "waiting for all below 64 workers.",
    ),
    Claim(
        "async-faster-heterogeneous",
        "With unequal machines asynchronous training is several times as fast.",
        "figure 12",
        "gradients used per second, asynchronous over synchronous, 64 workers",
        faster("heterogeneous", 64),
        least=2.5,
        unit="×",
        causes=other_sizes("heterogeneous"),
        comment="Not all of it is waiting: machines that each go at their own speed do 1/(1 − .36) = 1.56 "
        "times what as many machines of the mean batch time would, so asynchronous training is above N.",
    ),
    Claim(
        "slow-batches",
        "A batch takes over 1.25 times the mean in 1 % of cases on equal, 27.9 % on unequal machines.",
        "figure 3",
        "the second probability, from the gamma law with coefficient of variation .6",
        known(100 * beyond(1.25, 0.6)),
        least=27.4,
        most=28.4,
        said=27.9,
        unit="%",
        exact=True,
        causes=(Evidence("the first, with coefficient of variation .1 (%)", known(100 * beyond(1.25, 0.1))),),
    ),
)


def claims(scale: Scale) -> tuple[Claim, ...]:
    """The same of either scale; the two networks of one are one network at two learning rates."""
    one, other = NETWORKS[scale]
    return (
        Claim(
            "ga-beats-sa",
            "Dividing by the gap beats dividing by the staleness everywhere.",
            "figures 1, 2, 5 to 8",
            f"accuracy of GA minus SA, mean over all numbers of workers, {one.called} and {other.called}",
            ga_minus_sa((one, other)),
            least=0,
            causes=(
                Evidence(
                    "share of the eight pairs with 4, 8, 16 and 32 workers in which GA is at least SA (%)",
                    ga_against_sa((one, other)),
                ),
                Evidence("the same on CIFAR-10", ga_minus_sa_in("2-cifar", CIFAR)),
                Evidence(
                    f"accuracy of GA minus SA, 32 workers, {one.called}",
                    difference(accuracy(one, "ga", 32), accuracy(one, "sa", 32)),
                ),
                Evidence(
                    f"accuracy of GA minus SA, 32 workers, {other.called}",
                    difference(accuracy(other, "ga", 32), accuracy(other, "sa", 32)),
                ),
            ),
        ),
        Claim(
            "dana-ga-near-baseline",
            "DANA-GA stays near the baseline of one worker up to 32 workers.",
            "figures 1, 2, 5",
            f"test error of DANA-GA with 32 workers minus one worker, {other.called}",
            above_baseline(other, "dana-ga", 32),
            most=2,
            causes=(
                Evidence(f"with 16 workers, {other.called}", above_baseline(other, "dana-ga", 16)),
                Evidence(f"with 32 workers, {one.called}", above_baseline(one, "dana-ga", 32)),
                Evidence(
                    f"synchronous SGD with 32 workers, {other.called}", above_baseline(other, "ssgd", 32)
                ),
            ),
            comment=SHORT if scale == "default" else "",
        ),
        Claim(
            "nag-asgd-collapses",
            "Asynchronous SGD with Nesterov momentum collapses as workers are added.",
            "figure 1; section C.13",
            f"share of runs that did not converge, 16 and 32 workers, {one.called}",
            both(
                nc_share(1, table="2", protocol=one.protocol, row="nag-asgd", column="N = 16"),
                nc_share(1, table="2", protocol=one.protocol, row="nag-asgd", column="N = 32"),
                lambda a, b: (a + b) / 2,
            ),
            least=100,
            unit="%",
            exact=True,
            causes=(
                Evidence(
                    f"test error with 32 workers minus one worker, {other.called}",
                    above_baseline(other, "nag-asgd", 32),
                ),
            ),
        ),
        Claim(
            "dana-ga-best",
            "DANA-GA is the best of the asynchronous methods with 32 workers.",
            "figures 1, 2, 5",
            "share of networks in which it is at least NAG-ASGD, DC-ASGD, SA, GA and DANA",
            wins("2", (one, other)),
            least=95,
            unit="%",
            causes=(Evidence("on CIFAR-10", wins("2-cifar", (CIFAR,))),),
        ),
        Claim(
            "dana-ga-best-heterogeneous",
            "With machines that differ DANA-GA is the best of the asynchronous methods too.",
            "figure 13",
            f"whether it is at least NAG-ASGD, DC-ASGD, SA, GA and DANA with 32 workers, {one.called}",
            wins("13", (one,)),
            least=95,
            unit="%",
            causes=(
                Evidence(
                    "accuracy of GA minus SA, mean over all numbers of workers", ga_minus_sa_in("13", one)
                ),
            ),
        ),
        Claim(
            "dana-narrows-the-gap",
            "DANA-GA's gap is smaller than GA's, so it penalises less.",
            "figure 4",
            f"mean gap of GA over that of DANA-GA, 32 workers, {other.called}",
            ratio(error(other, "ga", 32, "mean_gap"), error(other, "dana-ga", 32, "mean_gap")),
            least=1,
            unit="×",
            causes=(
                Evidence(
                    f"NAG-ASGD over DANA without a penalty, 8 workers, {other.called}",
                    ratio(error(other, "nag-asgd", 8, "mean_gap"), error(other, "dana", 8, "mean_gap")),
                ),
            ),
        ),
        *OF_ANY_NETWORK,
    )
