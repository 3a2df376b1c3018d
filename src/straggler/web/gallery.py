"""The figures of runs on pages and in reports, in the order in which they appear."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from straggler.analysis.figures.classes import (
    build_class_figure,
    build_confusion_figure,
    build_partition_figure,
)
from straggler.analysis.figures.colours import assign_colours, find_position
from straggler.analysis.figures.curves import (
    build_curve_figure,
    build_norm_figure,
    build_staleness_curve,
    list_metrics,
)
from straggler.analysis.figures.description import Bars, FigureSpec
from straggler.analysis.figures.landscape import build_landscape_figure
from straggler.analysis.figures.staleness import (
    build_calibration_figure,
    build_gap_distribution,
    build_staleness_figure,
    build_worker_figure,
)
from straggler.analysis.figures.timeline import build_timeline_figure, choose_common_window
from straggler.analysis.labels import group_seeds, name_runs
from straggler.experiment import Experiment
from straggler.problems.datasets import DataSet, Digits, ImageDataSet, Mixture
from straggler.problems.downloads.sources import DataError
from straggler.problems.partitions import count_classes
from straggler.problems.supervised import SupervisedProblem
from straggler.running.untrusted_files import is_regular_file
from straggler.web.run_facts import READ_ERRORS, RunFacts

T = TypeVar("T")
MAX_DETAILED = 8  # runs with separate figures, and settings in figures of arrivals
MAX_TIMELINES = 4  # of settings that are compared
MAX_METRICS = 8  # besides accuracy and loss
MAX_GENERATED_NUMBERS = 20_000_000  # of a data set that is generated to count its classes
MAX_PARTITION_WORKERS = 200
Groups = Mapping[str, Sequence[RunFacts]]
PATH_NOTE = (
    "The weights at the snapshots, projected on the two directions in which they vary most (PCA). Heights "
    "are losses on a logarithmic scale. Turn the figure with the mouse."
)


def build_gallery(runs: Sequence[RunFacts]) -> list[FigureSpec]:
    """Build all figures of a report."""
    groups, named = group_seeds(runs), name_runs(runs)
    settings, few, colours = take_first(groups), take_first(named), assign_colours(groups)
    parts = {name: counts for name, run in few.items() if (counts := count_partition(run)) is not None}
    folders = [run.path for run in few.values()]
    figures = [
        add_limit_note(
            try_building(runs, "classes", lambda: build_class_figure(settings, colours)), groups, "settings"
        ),
        add_limit_note(try_building(runs, "confusion", lambda: build_confusion_figure(few)), named),
        add_limit_note(try_building(runs, "partition", lambda: build_partition_figure(parts)), named),
        try_building(runs, "calibration", lambda: build_calibration_figure(folders)),
        add_limit_note(
            try_building(runs, "path of the weights", lambda: build_path_figure(few, groups)), named
        ),
    ]
    return build_live_gallery(runs) + [figure for figure in figures if figure is not None]


def build_live_gallery(runs: Sequence[RunFacts]) -> list[FigureSpec]:
    """Build the figures that change during a run; this is fast enough to repeat every second."""
    groups = group_seeds(runs)
    colours = assign_colours(groups)
    figures = [
        try_building(
            runs, metric, partial(build_curve_figure, metric, groups, training=False, colours=colours)
        )
        for metric in ("accuracy", "loss", *list_metrics(runs)[:MAX_METRICS])
    ]
    first = len(figures)
    settings = {
        label: group for label, group in take_first(groups).items() if any(len(r.jobs) for r in group)
    }
    if settings:
        kinds = {"norms": build_norm_figure}
        if has_staleness(settings):
            kinds = {
                "staleness": build_staleness_figure,
                "staleness over time": build_staleness_curve,
                "gap": build_gap_distribution,
            } | kinds
        for what, build in kinds.items():
            figure = try_building(runs, what, partial(build, settings, colours))
            figures.append(add_limit_note(figure, groups, "settings"))
        workers = try_building(runs, "timeline", lambda: build_worker_figures(settings, len(runs))) or []
        figures[first + 2 : first + 2] = workers
    return [figure for figure in figures if figure is not None]


def has_staleness(groups: Groups) -> bool:
    """Return whether any gradient is stale; otherwise figures of staleness and gap would be empty."""
    return any(bool((run.jobs["staleness"] > 0).any()) for group in groups.values() for run in group)


def build_worker_figures(groups: Groups, count: int) -> list[FigureSpec]:
    """Build the timeline and gradients of a single run; of several, a timeline per setting on one axis.

    Seeds of one setting have almost the same timeline, so the first one stands for all.
    """
    firsts = {label: next(run for run in group if len(run.jobs)) for label, group in groups.items()}
    if count == 1:
        (run,) = firsts.values()
        timeline = build_timeline_figure(run, run.events, run.status == "running")
        return [timeline, recolour_bars(build_worker_figure(run), find_position(run.method))]
    shown = dict(list(firsts.items())[:MAX_TIMELINES])
    same_clock = len({run.is_virtual for run in shown.values()}) == 1
    end = choose_common_window(list(shown.values())) if same_clock else None
    figures = []
    for label, run in shown.items():
        figure = build_timeline_figure(run, run.events, end=end)
        seed = f", seed {run.settings.get('seed')}" if len(groups[label]) > 1 else ""
        figures.append(replace(figure, name=f"timeline-{run.id}", title=f"{figure.title}: {label}{seed}"))
    if len(firsts) > MAX_TIMELINES:
        figures[-1] = figures[-1].with_note(f"The first {MAX_TIMELINES} of {len(firsts)} settings have one.")
    return figures


def recolour_bars(figure: FigureSpec, colour: int) -> FigureSpec:
    """Return a figure whose bars have the colour of their run."""
    panels = [
        replace(panel, marks=[replace(m, colour=colour) if isinstance(m, Bars) else m for m in panel.marks])
        for panel in figure.panels
    ]
    return replace(figure, panels=panels)


def build_path_figure(runs: Mapping[str, RunFacts], groups: Groups) -> FigureSpec | None:
    """Build the paths of the weights in three dimensions, on the surface of a cached landscape."""
    if not any(is_regular_file(run.path / "snapshots.safetensors") for run in runs.values()):
        return None
    from straggler.running.landscape import find_trajectories  # takes a second to import

    first = next(iter(runs.values()))
    found = find_trajectories({name: run.record for name, run in runs.items()}, first.problems.append)
    if found is None:
        return None
    shown = assign_colours(groups)
    positions = {run.id: shown[label] for label, group in groups.items() for run in group}
    colours = {name: positions.get(run.id, 0) for name, run in runs.items()}
    figure = build_landscape_figure(found.points, found.plane.explained, found.samples, "3d", colours)
    note = f"{figure.caption}. {PATH_NOTE}"
    problems = {(run.settings.get("dataset"), run.settings.get("model")) for run in runs.values()}
    if found.points.filter(kind="grid").is_empty() and len(problems) == 1:
        command = shlex.join(["straggler", "landscape", *(run.id for run in runs.values())])
        note += f" For the surface of the loss around the paths, run {command} and reload."
    return replace(figure, name="trajectory", title="Path of the weights", note=note, caption="")


def take_first(named: Mapping[str, T]) -> dict[str, T]:
    return dict(list(named.items())[:MAX_DETAILED])


def add_limit_note(
    figure: FigureSpec | None, every: Mapping[str, object], what: str = "runs"
) -> FigureSpec | None:
    """Add a sentence to the note if the figure does not show all runs or settings."""
    if figure is None or len(every) <= MAX_DETAILED:
        return figure
    return figure.with_note(f"Only the first {MAX_DETAILED} of {len(every)} {what} are shown.")


def try_building(runs: Sequence[RunFacts], what: str, build: Callable[[], T]) -> T | None:
    """Build a figure; if the record has unexpected content, add a problem instead."""
    try:
        return build()
    except READ_ERRORS as error:
        runs[0].problems.append(f"no figure of {what}: {type(error).__name__} {str(error)[:200]}")
        return None


def count_partition(run: RunFacts) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
    """Return the samples by worker and class as the run had them, without downloading anything."""
    if run.experiment is None:
        return None
    data = run.experiment.dataset
    if isinstance(data, Mixture) and data.samples * data.features > MAX_GENERATED_NUMBERS:
        return None
    if not isinstance(data, ImageDataSet | Digits | Mixture):  # a page reads no file that a record names
        return None
    keys = ("dataset", "partition", "workers", "seed", "validation")
    return count_samples_by_class(*(str(getattr(run.experiment, key)) for key in keys))


@lru_cache(maxsize=64)
def count_samples_by_class(
    dataset: str, partition: str, workers: str, seed: str, validation: str
) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
    """Partition a data set that is in the cache, and count the classes of each worker."""
    try:
        experiment = Experiment(
            dataset=dataset,
            model="linear",
            partition=partition,
            workers=int(workers),
            seed=int(seed),
            validation=float(validation),
        )
        status = experiment.dataset.status() if isinstance(experiment.dataset, DataSet) else None
        if status is None or not (status.present and status.checksum_ok):
            return None
        problem = experiment.problem()
    except (DataError, ValueError):
        return None
    assert isinstance(problem, SupervisedProblem)
    labels = np.asarray(problem.splits["train"].known_labels)
    return problem.classes, count_classes(labels, problem.parts[:MAX_PARTITION_WORKERS], len(problem.classes))
