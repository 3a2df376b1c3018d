"""Figures of a tuning: the objective against each searched setting, and results with the chosen values."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import polars as pl

from straggler.analysis.figures.description import (
    GREY,
    Axis,
    FigureSpec,
    Line,
    Mark,
    Panel,
    Scatter,
    hide_labels,
)

CAPTION = "Mean over seeds, with the 95 % confidence interval from three seeds on."
COLUMNS = 3  # panels side by side


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
    colours = {group: n for n, group in enumerate(dict.fromkeys(trials.select(per[1:]).rows()))}
    panels = list[Panel]()
    for head, (key, is_log) in product(heads, keys.items()):
        part = trials if head is None else trials.filter(pl.col(per[0]) == head)
        marks = list[Mark]()
        for group, colour in colours.items():
            chosen = [pl.col(name) == value for name, value in zip(per[1:], group, strict=True)]
            runs = part.filter(*chosen) if chosen else part
            label = ", ".join(f"{name} {value}" for name, value in zip(per[1:], group, strict=True))
            marks += mark_trials(runs, key, label or "trials", colour, joined=len(keys) == 1)
        scale = "linear" if part[key].dtype.is_numeric() else "category"
        axis = Axis(key.replace("_", " "), "log" if is_log else scale)  # type: ignore[arg-type]
        panel = Panel(marks, axis, Axis(objective), title="" if head is None else str(head))
        panels.append(hide_labels(panel) if panels else panel)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (2.6 + 2.2 * columns, 0.8 + 2.3 * rows)
    title = f"{objective} against {', '.join(keys)}"
    how = {"columns": columns, "size": size, "legend": "below", "share_y": True}
    note = "Ringed: the chosen trial. Crosses: trials that were stopped early, at their last value."
    return FigureSpec("search", title, panels, caption=f"{CAPTION} {note}", **how)  # type: ignore[arg-type]


def mark_trials(trials: pl.DataFrame, key: str, label: str, colour: int, joined: bool) -> list[Mark]:
    """Return the marks of the trials of one search: finished ones, the chosen one, and stopped ones."""
    finished = trials.filter(state="finished").sort(key)
    stopped, best = trials.filter(state="stopped early"), trials.filter("is_best")
    error = finished["objective"] - finished["low"], finished["high"] - finished["objective"]
    bars = None if finished["low"].is_null().any() else error
    points: Mark = Scatter(finished[key], finished["objective"], label, colour, error=bars)
    if joined and finished[key].dtype.is_numeric():
        line: Any = {"marker": "circle", "error": bars, "dash": "solid"}
        points = Line(finished[key], finished["objective"], label, colour, **line)
    ring: Any = {"marker": "circle", "size": 11.0, "fill": "none"}
    marks: list[Mark] = [points, Scatter(best[key], best["objective"], "", colour, **ring)]
    if len(stopped):
        marks.append(Scatter(stopped[key], stopped["objective"], "", GREY, marker="x"))
    return marks


def build_outcome_figure(table: pl.DataFrame, labels: Sequence[str], metric: str) -> FigureSpec | None:
    """Describe a metric of a sweep's table against its number of workers, or another numeric label.

    Return None if no label is numeric.
    """
    numeric = [name for name in labels if table[name].dtype.is_numeric() and table[name].n_unique() > 1]
    if not numeric:
        return None
    along = "workers" if "workers" in numeric else numeric[0]
    others = [name for name in labels if name != along]
    marks = list[Mark]()
    groups = table.group_by(others, maintain_order=True) if others else [((), table)]
    for colour, (key, rows) in enumerate(groups):
        rows = rows.sort(along).filter(pl.col(metric).is_not_null())
        error = rows[metric] - rows["low"], rows["high"] - rows[metric]
        bars = None if rows["low"].is_null().any() else error
        label = ", ".join(map(str, key)) if len(others) == 1 else describe(others, key)
        marks.append(Line(rows[along], rows[metric], label, colour, marker="circle", error=bars))
    places = sorted(table[along].unique())
    names = [f"{place:g}" for place in places]
    scale = "log2" if places[0] > 0 and len(places) > 2 else "linear"
    axis = Axis(along.replace("_", " "), scale, ticks=places, tick_labels=names)  # type: ignore[arg-type]
    unit = " (%)" if metric.endswith("accuracy") else ""
    label = f"{metric.replace('_', ' ')}{unit}"
    panel = Panel(marks, axis, Axis(label))
    title = f"{label} with the chosen values"
    return FigureSpec("sweep", title, [panel], caption=CAPTION, size=(6.5, 4.2), legend="right")


def describe(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return `method asgd, workers 8`."""
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
