"""Figures by class: accuracy, confusion, and the data of each worker."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from straggler.analysis.figures.colours import assign_colours
from straggler.analysis.figures.curves import Groups
from straggler.analysis.figures.description import Axis, Bars, FigureSpec, Heatmap, Panel
from straggler.analysis.labels import RunData

Array = np.ndarray[Any, Any]


def build_class_figure(groups: Groups, colours: Mapping[str, int] | None = None) -> FigureSpec | None:
    """Describe the recall of every class: the mean over the seeds."""
    marks, colours = [], colours or assign_colours(groups)
    for name, runs in groups.items():
        seeds = [run.summary["classes"] for run in runs if run.summary.get("classes")]
        if not seeds:
            continue
        means = {
            score: [100 * float(np.mean([seed[one][score] for seed in seeds])) for one in seeds[0]]
            for score in ("recall", "precision", "f1")
        }
        pairs = zip(means["precision"], means["f1"], strict=True)
        hover = [f"precision {precision:.1f} %, F1 {f1:.1f} %" for precision, f1 in pairs]
        marks.append(Bars(list(seeds[0]), means["recall"], name, colours[name], hover=hover))
    if not marks:
        return None
    panel = Panel(marks, Axis("class", "category"), Axis("accuracy (%)", low=0, high=100))
    note = "The share of a class's test samples that are recognised (recall)."
    return FigureSpec("classes", "Accuracy of each class", [panel], note)


def build_confusion_figure(runs: Mapping[str, RunData]) -> FigureSpec | None:
    """Describe the confusion matrices: a view per run on a page, a panel per run on paper."""
    views = {}
    for name, run in runs.items():
        counts = np.array(run.summary.get("confusion") or [])
        if counts.ndim == 2 and counts.size:
            names = list(map(str, run.summary.get("classes") or range(len(counts))))
            shares = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            labels = ("predicted class", "true class")
            views[name] = [draw_table(shares, names, names, "% of the class", labels)]
    if not views:
        return None
    note = "Rows are true classes, columns are predictions, in percent of the row."
    return FigureSpec("confusion", "Confusion", note=note, views=views, height=440)


def build_partition_figure(counts: Mapping[str, tuple[Sequence[str], Array]]) -> FigureSpec | None:
    """Describe the number of samples of each class at each worker."""
    views = {}
    for name, (classes, table) in counts.items():
        workers = [str(worker) for worker in range(len(table))]
        views[name] = [draw_table(table.T, workers, list(classes), "samples", ("worker", "class"))]
    note = "Workers that see only some classes pull the model towards these, more so the staler they are."
    if not views:
        return None
    return FigureSpec("partition", "Data of each worker", note=note, views=views, height=400)


def draw_table(
    table: Array, columns: Sequence[str], rows: Sequence[str], unit: str, labels: tuple[str, str]
) -> Panel:
    text = [[f"{value:.0f}" for value in row] for row in table] if table.size <= 400 else ()
    mark = Heatmap(table, columns, rows, unit, text, low=0, high=float(max(1, table.max())))
    x, y = (Axis(label, "category", grid=False) for label in labels)
    return Panel([mark], x, Axis(y.label, "category", reverse=True, grid=False))
