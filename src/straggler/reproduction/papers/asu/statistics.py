"""Statistics that the ASU claims share."""

from straggler.analysis.claims import Statistic
from straggler.analysis.statistics import at, both, difference, mean_of

CODED, WRITTEN = "as coded", "as written"
SYNC, ASYNC = "baseline sync", "baseline async"


def value(table: str, row: str, protocol: str = CODED, fact: str = "value") -> Statistic:
    return at(fact, table=table, protocol=protocol, row=row)


def gain(
    table: str, row: str, baseline: tuple[str, str], protocol: str = CODED, fact: str = "value"
) -> Statistic:
    """A changed run minus a baseline."""
    return difference(value(table, row, protocol, fact), value(*baseline, protocol, fact))


def average_gain(protocol: str) -> Statistic:
    """Synchronous minus asynchronous, mean of MNIST and CIFAR-10."""
    return mean_of(
        *(difference(value(table, SYNC, protocol), value(table, ASYNC, protocol)) for table in ("4", "5"))
    )


def seconds_saved(engine: str, *datasets: str) -> Statistic:
    """Percent of the time of baseline synchronous that asynchronous saves in real time, mean of data sets."""

    def of(dataset: str) -> Statistic:
        sync, free = (took(engine, row, dataset) for row in (SYNC, ASYNC))
        return both(sync, free, lambda a, b: 100 * (1 - b / a))

    return mean_of(*map(of, datasets))


def ray_overhead(*datasets: str) -> Statistic:
    """Percent that Ray takes longer than processes, mean of data sets and of both baselines."""

    def of(dataset: str, row: str) -> Statistic:
        ray, processes = (took(engine, row, dataset) for engine in ("ray", "processes"))
        return both(ray, processes, lambda a, b: 100 * (a / b - 1))

    return mean_of(*(of(dataset, row) for dataset in datasets for row in (SYNC, ASYNC)))


def took(engine: str, row: str, dataset: str) -> Statistic:
    """Real seconds of a baseline."""
    return at("seconds", table="wall", protocol=engine, row=row, column=dataset)
