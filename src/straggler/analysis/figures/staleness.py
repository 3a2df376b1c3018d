"""Distributions of staleness and gap, the gradients of each worker, and a calibration's prediction."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from straggler.analysis.figures.colours import assign_colours
from straggler.analysis.figures.curves import Groups
from straggler.analysis.figures.description import Axis, Bars, FigureSpec, Line, Panel
from straggler.analysis.intervals import FEWEST_SEEDS, error_bars, mean_interval
from straggler.analysis.labels import RunData
from straggler.analysis.tables import format_number
from straggler.running.untrusted_files import is_regular_file, read_json

MOST_BINS = 60
WIDE_GAPS = 20.0  # times the smallest: beyond it, a linear axis would show one setting only
SHARE = Axis("share of gradients (%)", low=0)
NOTE = "The number of updates between reading the model and using the gradient; 0 is fresh."


def select_arrivals(run: RunData, column: str) -> pl.Series:
    """Return the finite values of a column, without cancelled jobs."""
    values = run.jobs.filter(pl.col("decision") != "cancelled")[column]
    return values.filter(values.is_finite())


def build_staleness_figure(groups: Groups, colours: Mapping[str, int] | None = None) -> FigureSpec:
    """Describe the share of gradients at each staleness, by setting."""
    seeds = {name: [select_arrivals(run, "staleness") for run in runs] for name, runs in groups.items()}
    return describe_staleness(seeds, colours or assign_colours(groups))


def describe_staleness(
    seeds: Mapping[str, Sequence[pl.Series]], colours: Mapping[str, int] | None = None
) -> FigureSpec:
    """Describe the share of gradients at each staleness: a mean, with its interval from three seeds on."""
    largest = max((max(one, default=0) for every in seeds.values() for one in every), default=0)
    width = -(-(largest + 1) // MOST_BINS)
    edges = np.arange(0, largest + width + 1, width)
    marks, intervals = [], False
    for number, (name, every) in enumerate(seeds.items()):
        colour = colours[name] if colours else number
        shares = [100 * np.histogram(one.to_numpy(), edges)[0] / max(1, len(one)) for one in every]
        found = [mean_interval(column) for column in np.transpose(shares)]
        pooled = pl.concat(every)
        label = f"{name} (mean {format_number(pooled.mean())})" if len(pooled) else name
        error = error_bars(found, 100.0) if len(every) >= FEWEST_SEEDS else None
        intervals = intervals or error is not None
        heights = [one.mean for one in found]
        marks.append(Bars(edges[:-1] + (width - 1) / 2, heights, label, colour, error, width=width))
    unit = "staleness (updates)" if width == 1 else f"staleness (updates, in bins of {width})"
    x = Axis(unit, low=-0.6 * width, high=max(largest, 3) + 0.6 * width, integers=True)
    caption = "Error bars: 95 % confidence interval of the mean over seeds." if intervals else ""
    return FigureSpec("staleness", "Staleness", [Panel(marks, x, SHARE)], NOTE, caption, size=(6.5, 3.6))


def build_gap_distribution(groups: Groups, colours: Mapping[str, int] | None = None) -> FigureSpec:
    """Describe the distribution of the distance that the model moved while a gradient was computed."""
    colours = colours or assign_colours(groups)
    gaps = {name: pl.concat([select_arrivals(run, "gap") for run in runs]) for name, runs in groups.items()}
    edges, axis = choose_gap_bins(list(gaps.values()))
    centres = (edges[1:] + edges[:-1]) / 2 if axis.scale == "linear" else np.sqrt(edges[1:] * edges[:-1])
    marks = [
        Line(
            centres,
            100 * np.histogram(gap.to_numpy(), edges)[0] / max(1, len(gap)),
            name,
            colours[name],
            step="middle",
        )
        for name, gap in gaps.items()
    ]
    note = "How far (root mean square) the model moved while a gradient was computed."
    note += " Gaps of 0 have no place on the logarithmic axis." if axis.scale == "log" else ""
    return FigureSpec("gaps", "Gap", [Panel(marks, axis, SHARE)], note)


def choose_gap_bins(gaps: Sequence[pl.Series]) -> tuple[np.ndarray[Any, Any], Axis]:
    """Return the edges of the bins and the axis, logarithmic if the settings have very different gaps."""
    tops = [float(gap.quantile(0.995) or 0.0) for gap in gaps] or [0.0]
    top, positive = max(tops) or 1.0, [gap.filter(gap > 0) for gap in gaps if (gap > 0).any()]
    if max(tops) <= WIDE_GAPS * min(tops) or not positive:
        return np.linspace(0.0, top, MOST_BINS + 1), Axis("gap (RMSE of the weights)")
    low = max(min(float(gap.quantile(0.01) or top) for gap in positive), top / 1e9)
    low = min(low, top / 10)
    return np.geomspace(low, top, MOST_BINS + 1), Axis("gap (RMSE of the weights, log scale)", "log")


def build_worker_figure(run: RunData) -> FigureSpec:
    """Describe the number of gradients of each worker, and their mean staleness."""
    arrived = run.jobs.filter(pl.col("decision") != "cancelled").group_by("worker")
    table = arrived.agg(gradients=pl.len(), staleness=pl.col("staleness").mean()).sort("worker")
    hover = [f"mean staleness {format_number(mean)}" for mean in table["staleness"]]
    ticks = table["worker"].to_list() if len(table) <= 30 else ()
    note = (
        "Without waiting, slow workers deliver fewer and staler gradients; if the server waits, equally many."
    )
    marks = [Bars(table["worker"], table["gradients"], hover=hover)]
    panel = Panel(marks, Axis("worker", ticks=ticks), Axis("gradients", low=0))
    return FigureSpec("workers", "Gradients of each worker", [panel], note)


def build_calibration_figure(folders: Sequence[Path]) -> FigureSpec | None:
    """Describe the measured and the predicted staleness of the first run that was calibrated."""
    files = (folder / "calibration.json" for folder in folders)
    file = next(filter(is_regular_file, files), None)
    if file is None:
        return None
    found = read_json(file)
    staleness = [row["staleness"] for row in found["staleness"]]
    marks = [
        Bars(
            staleness,
            [100 * row[kind] for row in found["staleness"]],
            f"{kind} (mean {format_number(found[kind]['mean staleness'])})",
            colour,
        )
        for colour, kind in enumerate(("measured", "predicted"))
    ]
    panel = Panel(marks, Axis("staleness (updates)"), SHARE)
    return FigureSpec("calibration", "Predicted and measured staleness", [panel], describe_rates(found))


def describe_rates(found: Mapping[str, Any]) -> str:
    """Return sentences on the predicted and measured rate, and on the parts of a job's time."""
    measured, predicted = (
        format_number(found[kind]["updates per second"]) for kind in ("measured", "predicted")
    )
    parts = found["parts"]
    means = ", ".join(
        f"{1000 * sum(row[name] for row in parts) / len(parts):.1f} ms {name}"
        for name in ("compute", "delay", "transport", "server")
    )
    return (
        f"A simulation with this run's durations predicts {predicted} updates per second; {measured} were "
        f"measured. A job takes on average {means}."
    )
