"""Every figure that can be drawn of runs, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import polars as pl

from straggler.analysis.curves import Groups, accuracy_figure, gap_figure, loss_figure
from straggler.analysis.labels import name_runs
from straggler.analysis.outcome_figures import error_figure, heat_figure, outcomes, pareto_figure
from straggler.analysis.workers import staleness_figure, timeline_figure, workers_figure
from straggler.record import Record


@dataclass(frozen=True)
class Kind:
    """A figure of runs."""

    summary: str
    draw: Callable[[Groups, Path, str], Path]  # runs by setting, where to, against what
    axes: tuple[str, ...] = ()  # settings that it shows along its axes
    most: int = 12  # other settings at once
    of_ended: bool = False  # shows what came out, which only a run that has ended can say


def of_runs(draw: Callable[[Mapping[str, Record], Path], Path]) -> Callable[[Groups, Path, str], Path]:
    """A figure with a row for every run, and its own axes."""
    return lambda groups, path, against: draw(name_runs(list(chain(*groups.values()))), path)


def of_groups(draw: Callable[[Groups, Path], Path]) -> Callable[[Groups, Path, str], Path]:
    """A figure that has its own axes."""
    return lambda groups, path, against: draw(groups, path)


def of_outcomes(draw: Callable[[pl.DataFrame, Path], Path]) -> Callable[[Groups, Path, str], Path]:
    """A figure of what came out only."""
    return lambda groups, path, against: draw(outcomes(groups), path)


KINDS: dict[str, Kind] = {
    "accuracy": Kind(
        "test accuracy, and training accuracy if measured, --against time or work", accuracy_figure
    ),
    "loss": Kind("test loss, and the loss in training, --against time or work", loss_figure),
    "gap": Kind("how far the model moved while a gradient was computed, and staleness", gap_figure),
    "staleness": Kind("histogram: the share of gradients at each staleness", of_groups(staleness_figure)),
    "timeline": Kind("who computes, waits or is cancelled when, a row per worker", of_runs(timeline_figure)),
    "workers": Kind(
        "each worker's loss and batches, and the weights' norm, over time", of_runs(workers_figure)
    ),
    "pareto": Kind(
        "final accuracy against training time, and the settings that none beats",
        of_outcomes(pareto_figure),
        most=32,
        of_ended=True,
    ),
    "heatmap": Kind(
        "final accuracy by learning rate and momentum",
        of_outcomes(heat_figure),
        axes=("lr", "momentum"),
        most=1,
        of_ended=True,
    ),
    "error": Kind(
        "test error against the number of workers, with intervals over seeds",
        of_outcomes(error_figure),
        axes=("workers",),
        most=32,
        of_ended=True,
    ),
}
