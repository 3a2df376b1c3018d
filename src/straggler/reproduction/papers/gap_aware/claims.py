"""What the Gap-Aware paper concludes; at the default scale networks and training are much smaller.

The captions, figure 10 and section C.13 were at hand; what is marked as recalled was not read again.
"""

import math
from dataclasses import dataclass

import polars as pl
from scipy.special import gammaincc

from straggler.analysis.claims import PERCENT, RATIO, Claim, Evidence, Statistic
from straggler.analysis.statistics import (
    across,
    at,
    difference,
    known,
    mean,
    mean_of,
    nc_share,
    ratio,
    select,
    shares_won,
)
from straggler.reproduction.study import Scale


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
OTHERS = ("nag-asgd", "dc-asgd", "sa", "ga", "dana", "dana-sa")
OF_OTHERS = "NAG-ASGD, DC-ASGD, SA, GA, DANA and DANA-SA"
RECALLED = "recalled"
WORKERS = (4, 8, 16, 32)


def error(network: Network, method: str, workers: int, fact: str = "value") -> Statistic:
    return at(fact, table="2", protocol=network.protocol, row=method, column=f"N = {workers}")


def accuracy(network: Network, method: str, workers: int) -> Statistic:
    return error(network, method, workers, "test_accuracy")


def above_baseline(network: Network, method: str, workers: int) -> Statistic:
    return difference(error(network, method, workers), error(network, "sgd", 1))


def worst_of_ga(networks: tuple[Network, ...]) -> Statistic:
    """Accuracy of GA minus SA where GA does worst."""
    pairs = [difference(accuracy(f, "ga", n), accuracy(f, "sa", n)) for f in networks for n in WORKERS]
    return across(min, *pairs)


def ga_against_sa(networks: tuple[Network, ...]) -> Statistic:
    contests = [(accuracy(f, "ga", n), [accuracy(f, "sa", n)]) for f in networks for n in WORKERS]
    return shares_won(contests)


def times_as_much(this: str, that: str, network: Network) -> Statistic:
    """By how much one divides a gradient over by how much another does, mean over the numbers of workers."""

    def divided(method: str, workers: int) -> Statistic:
        return at(table="4", protocol=network.protocol, row=method, column=f"N = {workers}")

    return mean_of(*(ratio(divided(this, workers), divided(that, workers)) for workers in WORKERS))


def lead(table: str, network: Network) -> Statistic:
    """Accuracy of DANA-GA minus the best of the other asynchronous methods, 32 workers."""

    def of(method: str) -> Statistic:
        return at("test_accuracy", table=table, protocol=network.protocol, row=method, column="N = 32")

    return difference(of("dana-ga"), across(max, *map(of, OTHERS)))


def ga_minus_sa_in(table: str, network: Network) -> Statistic:
    """Accuracy of GA minus SA, mean over the numbers of workers."""
    where = {"table": table, "protocol": network.protocol}
    return difference(*(mean(network.sizes, "test_accuracy", **where, row=row) for row in ("ga", "sa")))


def unequal(method: str, network: Network) -> Statistic:
    """Accuracy with 32 machines that differ minus with equal ones."""
    there = at("test_accuracy", table="13", protocol=network.protocol, row=method, column="N = 32")
    return difference(there, accuracy(network, method, 32))


def ga_minus(method: str, network: Network) -> Statistic:
    """Accuracy of GA minus another method's, 32 workers."""
    return difference(accuracy(network, "ga", 32), accuracy(network, method, 32))


def ga_minus_sa(networks: tuple[Network, Network]) -> Statistic:
    return mean_of(*(ga_minus_sa_in("2", network) for network in networks))


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
    return float(gammaincc(shape, factor * shape))


OF_ANY_NETWORK = (
    Claim(
        "negative-momentum",
        "With 32 asynchronous workers of a wide network the best momentum of ASGD is negative.",
        "figures 10 and 11",
        "best accuracy over learning rates with momentum below 0 minus with momentum from 0 on, 32 workers",
        difference(map_best(negative=True), map_best(negative=False)),
        least=0,
        said=0.15,  # figure 10: 91.57 at -.8, and 91.42 at .8
        comment="In the paper's third map, figure 9, of a ResNet-20, the best momentum is +.5. Ours is of "
        "LeNet-5 on Fashion-MNIST after two epochs. Each side is its best cell on the test set, of 28 below "
        "0 and of 42 from 0 on, which favours the latter a little.",
    ),
    Claim(
        "async-faster-homogeneous",
        "With equal machines asynchronous training is about 1.2 times as fast as synchronous.",
        f"figure 12; {RECALLED}",
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
        f"figure 12; {RECALLED}",
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
        f"figure 3; {RECALLED}",
        "the second probability, from the gamma law with coefficient of variation .6",
        known(100 * beyond(1.25, 0.6)),
        least=27.4,
        most=28.4,
        said=27.9,
        unit="%",
        constructed=True,
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
            f"figures 1, 2, 5 to 8; {RECALLED}",
            "accuracy of GA minus SA where GA does worst, 4, 8, 16 and 32 workers, "
            f"{one.called} and {other.called}",
            worst_of_ga((one, other)),
            least=-1,
            causes=(
                Evidence(
                    "share of these eight pairs in which GA is at least SA (%)",
                    ga_against_sa((one, other)),
                    possible=PERCENT,
                ),
                Evidence(
                    "accuracy of GA minus SA, mean over all numbers of workers", ga_minus_sa((one, other))
                ),
                Evidence("the same on CIFAR-10", ga_minus_sa_in("2-cifar", CIFAR)),
                Evidence(f"accuracy of GA minus SA, 32 workers, {one.called}", ga_minus("sa", one)),
                Evidence(f"accuracy of GA minus SA, 32 workers, {other.called}", ga_minus("sa", other)),
            ),
        ),
        Claim(
            "ga-beats-dana-sa",
            "Gap-Aware without a look-ahead beats DANA-SA, which has one.",
            "figure 8 (ImageNet, 64 workers)",
            f"accuracy of GA minus DANA-SA, 32 workers, mean of {one.called} and {other.called}",
            mean_of(ga_minus("dana-sa", one), ga_minus("dana-sa", other)),
            least=0,
            causes=(
                Evidence(one.called, ga_minus("dana-sa", one)),
                Evidence(other.called, ga_minus("dana-sa", other)),
            ),
        ),
        Claim(
            "dana-ga-near-baseline",
            "DANA-GA stays near the baseline of one worker up to 32 workers.",
            f"figures 1, 2, 5; {RECALLED}",
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
            "section C.13",
            f"share of runs that did not converge, 16 and 32 workers, {one.called}",
            mean_of(
                nc_share(1, table="2", protocol=one.protocol, row="nag-asgd", column="N = 16"),
                nc_share(1, table="2", protocol=one.protocol, row="nag-asgd", column="N = 32"),
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
            f"figures 1, 2, 5; {RECALLED}",
            f"its accuracy minus the best of {OF_OTHERS}, mean of {one.called} and {other.called}",
            mean_of(lead("2", one), lead("2", other)),
            least=0,
            causes=(
                Evidence(one.called, lead("2", one)),
                Evidence(other.called, lead("2", other)),
                Evidence("on CIFAR-10", lead("2-cifar", CIFAR)),
            ),
        ),
        Claim(
            "dana-ga-best-heterogeneous",
            "With machines that differ DANA-GA is the best of the asynchronous methods too.",
            f"figure 13; {RECALLED}",
            f"its accuracy minus the best of {OF_OTHERS}, 32 workers, {one.called}",
            lead("13", one),
            least=0,
            causes=(
                Evidence(
                    "accuracy of GA minus SA, mean over all numbers of workers", ga_minus_sa_in("13", one)
                ),
                *(
                    Evidence(
                        f"accuracy of {method.upper()}, unequal machines minus equal", unequal(method, one)
                    )
                    for method in ("ga", "sa", "dana-ga")
                ),
            ),
            comment="Staleness is N − 1 on average on any machines. But of unequal ones the fast send most "
            "of the gradients, and theirs are fresh: probably what divides by the gap or the staleness then "
            "divides little away where it counts (staleness by worker was not looked at).",
        ),
        Claim(
            "ga-penalises-less",
            "Gap-Aware penalises stale gradients much less than dividing by the staleness.",
            "figure 4",
            "by how much SA divides a gradient over by how much GA does, mean of 4, 8, 16 and 32 "
            f"workers, {other.called}",
            times_as_much("sa", "ga", other),
            least=1.5,
            unit="×",
            possible=RATIO,
            comment="The gap is as if each of the steps since were a typical one, and all in one direction; "
            "with momentum they nearly are.",
        ),
        Claim(
            "dana-ga-penalises-less",
            "DANA-GA penalises stale gradients even less than Gap-Aware alone.",
            "figure 4",
            "by how much GA divides a gradient over by how much DANA-GA does, mean of 4, 8, 16 and 32 "
            f"workers, {other.called}",
            times_as_much("ga", "dana-ga", other),
            least=1,
            unit="×",
            possible=RATIO,
            causes=(
                Evidence(
                    f"mean gap of GA over that of DANA-GA, 32 workers, {other.called}",
                    ratio(error(other, "ga", 32, "mean_gap"), error(other, "dana-ga", 32, "mean_gap")),
                    possible=RATIO,
                ),
                Evidence(
                    f"NAG-ASGD over DANA without a penalty, 4 workers, {other.called}",
                    ratio(error(other, "nag-asgd", 4, "mean_gap"), error(other, "dana", 4, "mean_gap")),
                    possible=RATIO,
                ),
            ),
        ),
        *OF_ANY_NETWORK,
    )
