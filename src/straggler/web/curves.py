"""Accuracy and loss over time, epochs, updates and gradients."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from straggler.web.figure import DASHES, Figure, colour, numbers, thin

WIDE = 100  # times the median

METRICS = {
    "accuracy": ("Accuracy", "accuracy (%)", ("test_accuracy", "validation_accuracy", "train_accuracy")),
    "loss": ("Loss", "loss", ("test_loss", "validation_loss", "train_loss", "batch_loss")),
}
NOTES = {
    "accuracy": "On data that no worker saw. Over time and over epochs the same runs can rank differently: "
    "waiting costs time, staleness costs progress per epoch.",
    "loss": "What is minimised, on the test set.",
}


def curves(
    tables: Mapping[str, pl.DataFrame], clock: str, groups: Sequence[str] | None = None
) -> list[Figure]:
    """A figure per metric; runs of one group (same settings, other seeds) share a colour."""
    groups = list(groups or tables)
    axes = {"time": ("seconds", clock), "epochs": ("epochs", "epochs"), "updates": ("updates", "updates")}
    axes["gradients"] = ("gradients", "gradients of all workers")
    figures = []
    for metric, (title, unit, columns) in METRICS.items():
        views: dict[str, Any] = {}
        for label, (column, axis) in axes.items():
            traces = lines(tables, groups, column, columns)
            layout: dict[str, Any] = {
                "xaxis": {"title": {"text": axis}},
                "yaxis": {"title": {"text": unit}},
            }
            if metric == "loss" and is_wide([y for trace in traces for y in trace["y"] if y is not None]):
                layout["yaxis"] |= {"type": "log", "title": {"text": f"{unit} (log scale)"}}
            views[label] = {"data": traces, "layout": layout}
        if any(view["data"] for view in views.values()):
            figures.append(Figure.switched(metric, title, NOTES[metric], views, group="curves"))
    return figures


def is_wide(values: Sequence[float]) -> bool:
    """Whether only a logarithmic scale shows more than the largest of these."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and max(finite) > WIDE * statistics.median(finite)


def lines(
    tables: Mapping[str, pl.DataFrame], groups: Sequence[str], axis: str, columns: Sequence[str]
) -> list[dict[str, Any]]:
    """The first column that a curve has; beside it the others if there is one run only."""
    order = list(dict.fromkeys(groups))
    seen: set[str] = set()
    traces = []
    for (name, table), group in zip(tables.items(), groups, strict=True):
        there = [column for column in columns if column in table.columns and axis in table.columns]
        shown = there if len(tables) == 1 else there[:1]
        for number, column in enumerate(shown):
            points = thin(table.select(axis, column).drop_nulls())
            position = number if len(tables) == 1 else order.index(group)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(points) <= 40 else "lines",
                    "name": column.replace("_", " ") if len(tables) == 1 else group,
                    "legendgroup": group if len(tables) > 1 else column,
                    "showlegend": len(tables) == 1 or group not in seen,
                    "x": numbers(points[axis]),
                    "y": numbers(points[column]),
                    "line": {"color": colour(position), "dash": DASHES[position % len(DASHES)]},
                    "marker": {"size": 5},
                    "hovertemplate": f"%{{x:.5g}}: %{{y:.4g}}<extra>{escaped(name)}</extra>",
                }
            )
            seen.add(group)
    return traces


def escaped(text: str) -> str:
    """Plotly reads a little HTML and %{…} in what it shows on hovering."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%", "&#37;")
