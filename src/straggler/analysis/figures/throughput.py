"""Clusters without gradients: speed-ups over one worker, and the distribution of batch times."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from straggler.analysis.figures.colours import find_position
from straggler.analysis.figures.description import (
    COLOURS,
    Axis,
    FigureSpec,
    Line,
    Mark,
    Panel,
    Text,
    VLine,
    choose_marker,
)
from straggler.analysis.intervals import format_interval, mean_interval
from straggler.analysis.tables import format_number

LATE = 1.25  # times the mean: Gap-Aware's figure 3 calls such a batch a straggler
BINS = 150
SHOWN = 3.0  # means of batch time on the axis


def tabulate_speedups(cluster: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: the speed-up by workers and method, and the ratio of the first two methods."""
    methods = list(cluster["method"].unique(maintain_order=True))
    columns = ["N", *methods] + ([f"{methods[0]} ÷ {methods[1]}"] if len(methods) > 1 else [])
    rows = []
    for (size,), group in cluster.group_by(["workers"], maintain_order=True):
        found = [group.filter(method=method).sort("seed")["speedup"].to_numpy() for method in methods]
        ratio = [format_interval(found[0] / found[1])] if len(methods) > 1 else []
        rows.append([format_number(size), *map(format_interval, found), *ratio])
    return columns, rows


def build_speedup_figure(frame: pl.DataFrame) -> FigureSpec:
    """Describe the speed-up over the number of workers, a panel per cluster (Gap-Aware, figure 12)."""
    panels: list[Panel] = []
    for (name,), cluster in frame.group_by(["cluster"], maintain_order=True):
        sizes = sorted(cluster["workers"].unique())
        marks: list[Mark] = [Line(sizes, sizes, "N", "#999999", width=0.8)]
        for method in cluster["method"].unique(maintain_order=True):
            mine = cluster.filter(method=method)
            found = [mean_interval(mine.filter(workers=size)["speedup"].to_numpy()) for size in sizes]
            means, halves = [one.mean for one in found], [one.half if one.is_shown else 0.0 for one in found]
            colour = find_position(method)
            look = {"colour": colour, "marker": choose_marker(colour)}
            marks.append(Line(sizes, means, method, error=(halves, halves), **look))  # type: ignore[arg-type]
        label = "" if panels else "speed-up (batches per mean batch time)"
        panels.append(Panel(marks, Axis("workers", "log2"), Axis(label, "log2"), title=str(name)))
    return FigureSpec("speedup", "Speed-up", panels, size=(4.5 * len(panels) + 0.5, 3.8))


def tabulate_densities(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: mean, coefficient of variation and share of late batches by cluster."""
    rows = []
    for (cluster,), group in frame.group_by(["cluster"], maintain_order=True):
        seconds = group["seconds"].to_numpy()
        mean, deviation = float(seconds.mean()), float(seconds.std())
        late = format_number(100 * float((seconds > LATE * mean).mean()), 1, "%")
        rows.append([str(cluster), format_number(mean, 1), format_number(deviation / mean), late])
    return ["batch time", "mean (s)", "cv", "late"], rows


def build_density_figure(frame: pl.DataFrame) -> FigureSpec:
    """Describe the density of the batch time by cluster, with late batches marked (Gap-Aware, figure 3)."""
    panels: list[Panel] = []
    for (name,), group in frame.group_by(["cluster"], maintain_order=True):
        marks, x, highest = draw_density(group["seconds"].to_numpy())
        y = Axis("" if panels else "density (1/s)", low=0, high=1.18 * highest)
        panels.append(Panel(marks, x, y, title=str(name)))
    return FigureSpec("densities", "Batch times", panels, size=(4.5 * len(panels), 3.2), legend="none")


def draw_density(seconds: NDArray[np.float64]) -> tuple[list[Mark], Axis, float]:
    """Return the marks, the time axis and the highest density."""
    mean = float(seconds.mean())
    edges = np.linspace(0, SHOWN * mean, BINS + 1)
    heights = np.histogram(seconds, edges)[0] / (len(seconds) * np.diff(edges))
    middles = (edges[1:] + edges[:-1]) / 2
    late = middles > LATE * mean
    share = f"over {LATE:g} × mean:\n{100 * float((seconds > LATE * mean).mean()):.1f} %"
    marks: list[Mark] = [
        Line(middles, heights, colour=0, width=1.2, filled=True),
        Line(middles[late], heights[late], colour=1, dash="solid", width=0.1, filled=True),
        VLine(mean, f"mean {format_number(mean, 1)} s"),
        Text([0.97], [0.65], [share], [COLOURS[1]], "right", relative=True),
    ]
    return marks, Axis("seconds of a batch", low=0, high=SHOWN * mean), float(heights.max())
