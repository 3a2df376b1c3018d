"""How runs went: accuracy, loss and gap over time, updates, epochs or gradients."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from straggler.analysis.intervals import error_bars, mean_interval
from straggler.analysis.style import drawn, line, panels, place_legend, plain_log, point
from straggler.record import Record

AGAINST = ("seconds", "updates", "epochs", "gradients")
Groups = Mapping[str, Sequence[Record]]  # seeds of one setting, by its name
Array = np.ndarray[Any, Any]
POINTS = 120  # of a curve made of arrivals; more are averaged


def time_label(records: Iterable[Record]) -> str:
    """Virtual time, wall time, or both."""
    engines = {record.settings.get("engine", "simulator") for record in records}
    if engines == {"simulator"}:
        return "virtual time (s)"
    return "time (s; virtual and wall)" if "simulator" in engines else "wall time (s)"


def axis_label(against: str, groups: Groups) -> str:
    return time_label(chain(*groups.values())) if against == "seconds" else against


def accuracy_figure(groups: Groups, path: Path, against: str = "seconds") -> Path:
    """Test accuracy; training accuracy too where it was measured."""
    return curve_figure(groups, path, against, "accuracy", "accuracy (%)")


def loss_figure(groups: Groups, path: Path, against: str = "seconds") -> Path:
    """Test loss and the loss of the batches since the evaluation before."""
    return curve_figure(groups, path, against, "loss", "loss (log scale)")


def curve_figure(groups: Groups, path: Path, against: str, what: str, label: str) -> Path:
    """A panel for the test set, and one for what was seen in training if there is something."""
    seen = {column for record in chain(*groups.values()) for column in record.curve.columns}
    wanted = [f"test_{what}", *(["train_accuracy"] if what == "accuracy" else ["train_loss", "batch_loss"])]
    chosen = [column for column in wanted if column in seen][:2]
    with drawn(path, 4.5 * max(1, len(chosen)), 3.8) as figure:
        every = panels(figure, 1, max(1, len(chosen)), sharey=True)
        ways = set()
        for axes, column in zip(every, chosen, strict=False):
            for position, (name, group) in enumerate(groups.items()):
                curves = [record.curve for record in group if column in record.curve.columns]
                seeds = [curve.select(against, column) for curve in curves]
                ways.add(draw_seeds(axes, name, position, seeds, is_steady(group)))
            axes.set(xlabel=axis_label(against, groups), title=column.replace("_", " "))
        if what == "loss":
            log_of_lines(every)
        every[0].set_ylabel(label)
        figure.suptitle("; ".join(sorted(ways - {""})), fontsize=8)
        place_legend(figure, every[0])
    return path


def draw_seeds(axes: Axes, name: str, position: int, seeds: Sequence[pl.DataFrame], steady: bool) -> str:
    """One setting in one colour: its seeds' mean and 95 % interval; answers with how they are shown.

    Seeds that were not seen at the same points, or of which only some converged, are thin lines.
    """
    against, column = seeds[0].columns if seeds else ("", "")
    known = [table.filter(pl.col(column).is_finite()) for table in seeds]
    places = [table[against].to_numpy() for table in known]
    values = [table[column].to_numpy() for table in known]
    alike = all(len(place) == len(places[0]) and np.allclose(place, places[0]) for place in places)
    if len(known) > 1 and alike and steady:
        draw_band(
            axes, name, position, places[0], np.array(values), 100.0 if "accuracy" in column else np.inf
        )
        return (
            "bands: 95 % interval of the mean over seeds"
            if len(known) > 2
            else "bands: between the two seeds"
        )
    for number, (place, value) in enumerate(zip(places, values, strict=True)):
        width = 1.6 if len(known) == 1 else 0.7
        look = point(position) if len(place) == 1 else line(position)
        axes.plot(place, value, label="" if number else name, linewidth=width, **look)
    return "thin lines: one seed each" if len(known) > 1 else ""


def is_steady(group: Sequence[Record]) -> bool:
    """Whether all seeds converged, or none: else their mean is of neither."""
    return len({bool(record.summary.get("converged")) for record in group}) == 1


def draw_band(axes: Axes, name: str, position: int, place: Array, values: Array, highest: float) -> None:
    """The mean of rows of values, and how sure it is."""
    found = [mean_interval(column) for column in values.T]
    means, (below, above) = np.array([one.mean for one in found]), error_bars(found, highest)
    if len(place) == 1:
        axes.errorbar(place, means, [below, above], label=name, capsize=3, **point(position))
        return
    axes.plot(place, means, label=name, linewidth=1.6, **line(position))
    colour = line(position)["color"]
    axes.fill_between(place, means - below, means + above, color=colour, alpha=0.2, linewidth=0)


def log_of_lines(every: Sequence[Axes]) -> None:
    """Logarithmic scales from the lowest line on; a band may go down to nothing."""
    drawn = [value for axes in every for one in axes.get_lines() for value in np.asarray(one.get_ydata())]
    for axes in every:
        plain_log(axes)
        if positive := [value for value in drawn if value > 0]:
            axes.set_ylim(bottom=0.8 * min(positive))


def gap_figure(groups: Groups, path: Path, against: str = "seconds") -> Path:
    """Gap (RMSE between the model a gradient was computed at and the model it met) and staleness."""
    with drawn(path, 9, 3.8) as figure:
        gap, staleness = panels(figure, 1, 2)
        ways = set()
        for position, (name, group) in enumerate(groups.items()):
            tables = [thinned(progressed(record), against, ["gap", "staleness"]) for record in group]
            for axes, column in ((gap, "gap"), (staleness, "staleness")):
                seeds = [table.select(against, column) for table in tables]
                ways.add(draw_seeds(axes, name, position, seeds, is_steady(group)))
        label = axis_label(against, groups)
        gap.set(
            xlabel=label, ylabel="gap (RMSE of the weights)", title=f"Gap (means over 1/{POINTS} of the run)"
        )
        staleness.set(xlabel=label, ylabel="staleness (updates)", title="Staleness")
        staleness.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
        figure.suptitle("; ".join(sorted(ways - {""})), fontsize=8)
        place_legend(figure, gap)
    return path


def progressed(record: Record) -> pl.DataFrame:
    """Arrivals with how far the run was, in every unit that `AGAINST` names."""
    arrivals = record.arrivals.filter(pl.col("decision") != "cancelled")
    epochs = float(record.summary.get("epochs") or 0.0)
    gradients = pl.int_range(1, pl.len() + 1)
    return arrivals.with_columns(
        seconds="time",
        updates=pl.col("version") + pl.col("staleness"),
        gradients=gradients,
        epochs=gradients * (epochs / max(1, len(arrivals))),
    )


def thinned(arrivals: pl.DataFrame, against: str, columns: list[str]) -> pl.DataFrame:
    """Means over equal numbers of neighbours, so that at most POINTS are drawn."""
    each = -(-max(1, len(arrivals)) // POINTS)
    place = (pl.int_range(pl.len()) // each).alias("place")
    means = [pl.col(column).mean() for column in (against, *columns)]
    return arrivals.group_by(place, maintain_order=True).agg(means)
