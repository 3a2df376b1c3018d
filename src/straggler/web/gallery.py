"""All pictures of some runs, in the order in which one wants to see them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from straggler.experiment import Experiment
from straggler.problems.datasets import DataSet, Mixture
from straggler.problems.downloads.sources import DataError
from straggler.problems.partitions import count_classes
from straggler.problems.supervised import SupervisedProblem
from straggler.record import RecordError
from straggler.web import staleness
from straggler.web.calibration import calibration
from straggler.web.classes import by_class, confusion, partition
from straggler.web.curves import curves
from straggler.web.figure import Figure
from straggler.web.run_facts import RunFacts, label_runs
from straggler.web.timeline import timeline
from straggler.web.trajectory import trajectory

T = TypeVar("T")
READING = (OSError, RecordError, pl.exceptions.PolarsError)
MOST_IN_DETAIL = 8  # runs of which each has pictures of its own
MOST_NUMBERS = 20_000_000  # of data that are made on the spot
MOST_COLUMNS = 200  # workers in the picture of the data


def named(runs: Sequence[RunFacts]) -> tuple[dict[str, RunFacts], list[str]]:
    """Runs by a name that is theirs alone, and the group (all but the seed alike) that each belongs to."""
    groups = label_runs(runs)
    several = {group for group in groups if groups.count(group) > 1}
    names = [
        f"{group}, seed {run.settings.get('seed')}" if group in several else group
        for run, group in zip(runs, groups, strict=True)
    ]
    pairs = enumerate(zip(names, runs, strict=True), 1)
    unique = [name if names.count(name) == 1 else f"{name} ({run.id}, {n})" for n, (name, run) in pairs]
    return dict(zip(unique, runs, strict=True)), groups


def gallery(runs: Sequence[RunFacts]) -> list[Figure]:
    """Everything a report shows."""
    everyone, _ = named(runs)
    few = dict(list(everyone.items())[:MOST_IN_DETAIL])
    summaries = {name: run.summary for name, run in few.items()}
    parts = {name: found for name, run in few.items() if (found := partition_counts(run)) is not None}
    attempts: dict[str, Callable[[], Figure | None]] = {
        "the classes": lambda: by_class(summaries),
        "the confusion": lambda: confusion(summaries),
        "the data": lambda: partition(parts),
        "the calibration": lambda: calibration(few),
        "the way of the weights": lambda: trajectory(few),
    }
    pictures = [attempted(runs, what, build) for what, build in attempts.items()]
    there = [picture for picture in pictures if picture is not None]
    return live_gallery(runs) + of_the_first(there, len(runs))


def of_the_first(figures: Sequence[Figure], runs: int) -> list[Figure]:
    """Pictures that say so if they leave runs out."""
    if runs <= MOST_IN_DETAIL:
        return list(figures)
    said = only_first(MOST_IN_DETAIL, runs)
    return [replace(figure, note=f"{figure.note} {said}") for figure in figures]


def only_first(shown: int, runs: int) -> str:
    return f"Only the first {shown} of {runs} runs are shown."


def attempted(runs: Sequence[RunFacts], what: str, build: Callable[[], T]) -> T | None:
    """What is built, or None and a remark: a record may hold anything, and the rest is still shown."""
    try:
        return build()
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, *READING) as error:
        runs[0].problems.append(f"no picture of {what}: {type(error).__name__} {str(error)[:200]}")
        return None


def live_gallery(runs: Sequence[RunFacts]) -> list[Figure]:
    """What changes while a run goes on: cheap enough to be drawn again every second."""
    everyone, groups = named(runs)
    tables = {name: run.curve for name, run in everyone.items()}
    clock = runs[0].clock if len({run.clock for run in runs}) == 1 else "time (s)"
    figures = attempted(runs, "the curves", lambda: curves(tables, clock, groups)) or []
    few = {name: run for name, run in list(everyone.items())[:MOST_IN_DETAIL] if len(run.arrivals)}
    arrivals = {name: run.arrivals for name, run in few.items()}
    if not arrivals:
        return figures
    more = attempted(runs, "the arrivals", lambda: of_arrivals(few, arrivals, clock))
    return figures + of_the_first(more or [], len(runs))


def of_arrivals(
    runs: Mapping[str, RunFacts], arrivals: Mapping[str, pl.DataFrame], clock: str
) -> list[Figure]:
    first = [staleness.staleness(arrivals), staleness.over_time(arrivals, clock)]
    bars = [bar for name, run in runs.items() for bar in per_run(name, run, len(runs) == 1)]
    return [*first, *bars, staleness.gaps(arrivals), staleness.norms(arrivals, clock)]


def per_run(name: str, run: RunFacts, alone: bool) -> list[Figure]:
    """Pictures of one run's workers."""
    live = run.status == "running"
    when = timeline(run.arrivals, run.clock, run.events, live)
    if alone:
        return [when, staleness.workers(run.arrivals)]
    return [Figure(**vars(when) | {"name": f"timeline-{run.id}", "title": f"{when.title}: {name}"})]


def partition_counts(run: RunFacts) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
    """Samples by worker and class, dealt again as the run did; nothing is fetched for it."""
    if run.experiment is None or is_huge(run.experiment):
        return None
    keys = ("dataset", "partition", "workers", "seed", "validation")
    return counted(*(str(getattr(run.experiment, key)) for key in keys))


def is_huge(experiment: Experiment) -> bool:
    """Whether dealing the data again would take more memory than a picture is worth."""
    data = experiment.dataset
    return isinstance(data, Mixture) and data.samples * data.features > MOST_NUMBERS


@lru_cache(maxsize=64)
def counted(
    dataset: str, partition: str, workers: str, seed: str, validation: str
) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
    try:
        experiment = Experiment(
            dataset=dataset,
            model="linear",
            partition=partition,
            workers=int(workers),
            seed=int(seed),
            validation=float(validation),
        )
        here = experiment.dataset.status() if isinstance(experiment.dataset, DataSet) else None
        if here is None or not (here.present and here.checksum_ok):
            return None
        problem = experiment.problem()
    except (DataError, ValueError):
        return None
    assert isinstance(problem, SupervisedProblem)
    labels = np.asarray(problem.splits["train"].known_labels)
    return problem.classes, count_classes(labels, problem.parts[:MOST_COLUMNS], len(problem.classes))
