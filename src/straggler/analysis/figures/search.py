"""Figures of a tuning: the objective against each searched setting, and results with the chosen values."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil, floor, log10
from typing import Any

import polars as pl

from straggler.analysis.figures.description import (
    GREY,
    Axis,
    Errors,
    FigureSpec,
    Line,
    Mark,
    Panel,
    Scatter,
    hide_labels,
)

CAPTION = "Mean over seeds, with the 95 % confidence interval from three seeds on."
COLUMNS = 3  # panels side by side
SHIFT = 0.02  # between two lines, as a share of the value on the x axis


def build_search_figure(
    trials: pl.DataFrame, per: Sequence[str], keys: Mapping[str, bool], objective: str
) -> FigureSpec:
    """Describe the objective of every trial against each searched setting.

    `trials` has the columns of `Search.rank_trials` and a column for each name in `per`. There is a panel for
    each value of the first name and each searched setting; the other names are lines. `keys` says whether a
    setting has a logarithmic axis.
    """
    trials = trials.filter(pl.col("objective").is_finite())
    heads = trials[per[0]].unique(maintain_order=True).to_list() if per else [None]
    groups = dict.fromkeys(trials.select(per[1:]).rows()) if per[1:] else {(): None}
    colours = {group: colour for colour, group in enumerate(groups)}
    panels = list[Panel]()
    for head, (key, is_log) in product(heads, keys.items()):
        part = trials if head is None else trials.filter(pl.col(per[0]) == head)
        marks = list[Mark]()
        for group, colour in colours.items():
            chosen = [pl.col(name) == value for name, value in zip(per[1:], group, strict=True)]
            runs = part.filter(*chosen) if chosen else part
            label = ", ".join(f"{name} {value}" for name, value in zip(per[1:], group, strict=True))
            is_percent = objective.endswith("(%)")
            marks += mark_trials(runs, key, label or "trials", colour, len(keys) == 1, is_percent)
        axis = make_setting_axis(trials[key], key, is_log)
        panel = Panel(marks, axis, Axis(objective), title="" if head is None else str(head))
        panels.append(hide_labels(panel) if panels else panel)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (2.6 + 2.2 * columns, 0.8 + 2.3 * rows)
    title = f"{objective} against {', '.join(keys)}"
    how = {"columns": columns, "size": size, "legend": "below", "share_y": True}
    note = "Ringed: the chosen trial."
    if (trials["state"] == "stopped early").any():
        note += " Crosses: trials that were stopped early, at their last value."
    return FigureSpec("search", title, panels, caption=f"{CAPTION} {note}", **how)  # type: ignore[arg-type]


def make_setting_axis(values: pl.Series, key: str, is_log: bool) -> Axis:
    """Return the axis of a searched setting, the same in all panels, with powers of ten as ticks."""
    label = key.replace("_", " ")
    if not values.dtype.is_numeric():
        return Axis(label, "category")
    if values.is_empty():  # no trial has a finite objective
        return Axis(label)
    low, high = float(values.min()), float(values.max())  # type: ignore[arg-type]
    if not is_log or low <= 0:
        return Axis(label)
    powers = [10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]
    ticks = powers if len(powers) > 2 else [low, high]
    names = [f"{tick:g}" for tick in ticks]
    return Axis(label, "log", min(ticks[0], low / 1.2), max(ticks[-1], high * 1.2), ticks, names)


def mark_trials(
    trials: pl.DataFrame, key: str, label: str, colour: int, joined: bool, is_percent: bool
) -> list[Mark]:
    """Return the marks of the trials of one search: finished ones, the chosen one, and stopped ones."""
    finished = trials.filter(state="finished").sort(key)
    stopped, best = trials.filter(state="stopped early"), trials.filter("is_best")
    bars = measure_error_bars(finished, "objective", is_percent)
    points: Mark = Scatter(finished[key], finished["objective"], label, colour, error=bars)
    if joined and finished[key].dtype.is_numeric():
        line: Any = {"marker": "circle", "error": bars, "dash": "solid"}
        points = Line(finished[key], finished["objective"], label, colour, **line)
    ring: Any = {"marker": "circle", "size": 11.0, "fill": "none"}
    marks: list[Mark] = [points, Scatter(best[key], best["objective"], "", colour, **ring)]
    if len(stopped):
        marks.append(Scatter(stopped[key], stopped["objective"], "", GREY, marker="x"))
    return marks


def measure_error_bars(rows: pl.DataFrame, column: str, is_percent: bool) -> Errors | None:
    """Return how far the intervals reach below and above; None if a row has none."""
    if rows["low"].is_null().any() or rows.is_empty():
        return None
    low, high = (rows[name].cast(pl.Float64) for name in ("low", "high"))
    if is_percent:  # nothing below 0 or above 100
        low, high = low.clip(0, None), high.clip(None, 100)
    return rows[column] - low, high - rows[column]


def build_outcome_figure(table: pl.DataFrame, labels: Sequence[str], metric: str) -> FigureSpec | None:
    """Describe a metric of a sweep's table against its number of workers, or another numeric label.

    Return None if no label is numeric.
    """
    numeric = [name for name in labels if table[name].dtype.is_numeric() and table[name].n_unique() > 1]
    if not numeric:
        return None
    along = "workers" if "workers" in numeric else numeric[0]
    others = [name for name in labels if name != along]
    unit = " (%)" if metric.endswith("accuracy") else ""
    heading = f"{metric.replace('_', ' ')}{unit}"
    marks = list[Mark]()
    groups = list(table.group_by(others, maintain_order=True)) if others else [((), table)]
    count = len(groups)
    for colour, (key, rows) in enumerate(groups):
        rows = rows.sort(along).filter(pl.col(metric).is_not_null())
        bars = measure_error_bars(rows, metric, bool(unit))
        label = ", ".join(map(str, key)) if len(others) == 1 else describe(others, key)
        # Lines are moved sideways, so that error bars do not hide each other.
        shift = 1 + SHIFT * (colour - (count - 1) / 2)
        marks.append(Line(rows[along] * shift, rows[metric], label, colour, marker="circle", error=bars))
    places = sorted(table[along].unique())
    names = [f"{place:g}" for place in places]
    scale = "log2" if places[0] > 0 and len(places) > 2 else "linear"
    axis = Axis(along.replace("_", " "), scale, ticks=places, tick_labels=names)  # type: ignore[arg-type]
    panel = Panel(marks, axis, Axis(heading))
    title = f"{heading} with the chosen values"
    return FigureSpec("sweep", title, [panel], caption=CAPTION, size=(6.5, 4.2), legend="right")


def describe(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return `method asgd, workers 8`."""
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
