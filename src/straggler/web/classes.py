"""Class by class: accuracy, confusion, and who has which data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from straggler.web.figure import SCALE, Figure, colour, numbers, short

MOST_CELLS = 400  # that carry their number


def by_class(summaries: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Recall of every class: of its test samples, how many were recognised."""
    traces = []
    for position, (name, summary) in enumerate(summaries.items()):
        classes = summary.get("classes") or {}
        if not classes:
            continue
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": list(classes),
                "y": numbers(100 * scores["recall"] for scores in classes.values()),
                "customdata": [numbers((100 * s["precision"], 100 * s["f1"])) for s in classes.values()],
                "marker": {"color": colour(position)},
                "hovertemplate": "%{x}: %{y:.1f} %<br>precision %{customdata[0]:.1f} %, "
                "F1 %{customdata[1]:.1f} %<extra></extra>",
            }
        )
    if not traces:
        return None
    layout = {
        "xaxis": {"title": {"text": "class"}, "type": "category"},
        "yaxis": {"title": {"text": "accuracy (%)"}, "range": [0, 100]},
    }
    note = "Of the test samples of a class, how many were recognised (recall)."
    return Figure("classes", "Accuracy of each class", note, traces, layout)


def confusion(summaries: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """What was taken for what."""
    views = {}
    for name, summary in summaries.items():
        counts = np.array(summary.get("confusion") or [])
        if counts.ndim == 2 and counts.size:
            names = list(summary.get("classes") or range(len(counts)))
            shares = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            layout = heat_axes("recognised as", "is")
            views[name] = {"data": [heat(shares, names, names, "% of the class", ".0f")], "layout": layout}
    if not views:
        return None
    note = "Rows are what a sample is, columns what the model says, in percent of the row."
    return Figure.switched("confusion", "Confusion", note, views, height=440)


def partition(counts: Mapping[str, tuple[Sequence[str], np.ndarray[Any, Any]]]) -> Figure | None:
    """Which worker has how many samples of which class."""
    views = {}
    for name, (classes, table) in counts.items():
        workers = list(range(len(table)))
        layout = heat_axes("worker", "class")
        views[name] = {"data": [heat(table.T, workers, list(classes), "samples", "d")], "layout": layout}
    if not views:
        return None
    note = "Workers that see only some classes pull the model their own way, the further the staler."
    return Figure.switched("partition", "Who has which data", note, views, height=400)


def heat(
    table: np.ndarray[Any, Any], columns: Sequence[Any], rows: Sequence[Any], unit: str, form: str
) -> dict[str, Any]:
    cells = {"texttemplate": f"%{{z:{form}}}"} if table.size <= MOST_CELLS else {}
    return {
        "type": "heatmap",
        "z": [numbers(row) for row in table],
        "x": [str(column) for column in columns],
        "y": [str(row) for row in rows],
        "colorscale": SCALE,
        "zmin": 0,
        "zmax": short(max(1, table.max())),
        "colorbar": {"title": {"text": unit}},
        "hovertemplate": f"%{{y}}, %{{x}}: %{{z:.4g}} {unit}<extra></extra>",
        **cells,
    }


def heat_axes(x: str, y: str) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": x}, "type": "category", "showgrid": False},
        "yaxis": {"title": {"text": y}, "type": "category", "autorange": "reversed", "showgrid": False},
    }
