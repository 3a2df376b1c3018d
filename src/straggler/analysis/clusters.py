"""Clusters without gradients as tables and figures: speed-ups, and how long batches take."""

from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from numpy.typing import NDArray

from straggler.analysis.intervals import format_interval, mean_interval
from straggler.analysis.style import COLOURS, drawn, line, panels, place_legend
from straggler.analysis.tables import format_number

LATE = 1.25  # times the mean: what Gap-Aware's figure 3 calls a straggler
BINS = 150
SHOWN = 3.0  # means of batch time on the axis


def speedup_rows(cluster: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Mean ± 95 % interval (of two repetitions both) by workers and method, and the first over the second."""
    methods = list(cluster["method"].unique(maintain_order=True))
    columns = ["N", *methods] + ([f"{methods[0]} ÷ {methods[1]}"] if len(methods) > 1 else [])
    rows = []
    for (size,), group in cluster.group_by(["workers"], maintain_order=True):
        of = {
            method: group.filter(pl.col("method") == method).sort("seed")["speedup"].to_numpy()
            for method in methods
        }
        cells = [format_interval(of[method]) for method in methods]
        ratio = [format_interval(of[methods[0]] / of[methods[1]])] if len(methods) > 1 else []
        rows.append([format_number(size), *cells, *ratio])
    return columns, rows


def speedup_figure(frame: pl.DataFrame, path: Path) -> Path:
    """Speed-up over the number of workers, a panel per cluster (Gap-Aware, figure 12)."""
    clusters = list(frame["cluster"].unique(maintain_order=True))
    with drawn(path, 4.5 * len(clusters) + 0.5, 3.8) as figure:
        every = panels(figure, 1, len(clusters))
        for axes, cluster in zip(every, clusters, strict=True):
            draw_speedups(axes, frame.filter(pl.col("cluster") == cluster))
            axes.set_title(cluster, fontsize=8)
        every[0].set_ylabel("speed-up (batches per mean batch time)")
        place_legend(figure, every[0])
    return path


def draw_speedups(axes: Axes, cluster: pl.DataFrame) -> None:
    sizes = sorted(cluster["workers"].unique())
    axes.plot(sizes, sizes, color="0.6", linewidth=0.8, label="N")
    for position, method in enumerate(cluster["method"].unique(maintain_order=True)):
        mine = cluster.filter(pl.col("method") == method)
        found = [mean_interval(mine.filter(workers=size)["speedup"].to_numpy()) for size in sizes]
        means, halves = [one.mean for one in found], [one.bar for one in found]
        axes.errorbar(
            sizes, means, yerr=halves, label=method, marker="o", markersize=3, capsize=2,
            linewidth=1.5, **line(position),
        )  # fmt: skip
    axes.set(xlabel="workers", xscale="log", yscale="log")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")


def density_rows(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Mean, coefficient of variation and share of late batches of every cluster."""
    rows = []
    for (cluster,), group in frame.group_by(["cluster"], maintain_order=True):
        seconds = group["seconds"].to_numpy()
        mean = seconds.mean()
        late = format_number(100 * float((seconds > LATE * mean).mean()), 1, "%")
        variation = format_number(float(seconds.std() / mean))
        rows.append([str(cluster), format_number(float(mean), 1), variation, late])
    return ["batch time", "mean s", "cv", "late"], rows


def density_figure(frame: pl.DataFrame, path: Path) -> Path:
    """How long a batch takes, with the late ones marked (Gap-Aware, figure 3)."""
    clusters = list(frame["cluster"].unique(maintain_order=True))
    with drawn(path, 4.5 * len(clusters), 3.2) as figure:
        every = panels(figure, 1, len(clusters))
        for axes, cluster in zip(every, clusters, strict=True):
            draw_density(axes, frame.filter(pl.col("cluster") == cluster)["seconds"].to_numpy())
            axes.set_title(cluster, fontsize=8)
        every[0].set_ylabel("density (1/s)")
    return path


def draw_density(axes: Axes, seconds: NDArray[np.float64]) -> None:
    mean = float(seconds.mean())
    edges = np.linspace(0, SHOWN * mean, BINS + 1)
    heights = np.histogram(seconds, edges)[0] / (len(seconds) * np.diff(edges))
    middles = (edges[1:] + edges[:-1]) / 2
    late = middles > LATE * mean
    axes.fill_between(middles, heights, color=COLOURS[0], alpha=0.25, linewidth=0)
    axes.fill_between(middles[late], heights[late], color=COLOURS[1], alpha=0.7, linewidth=0)
    axes.plot(middles, heights, color=COLOURS[0], linewidth=1.2)
    axes.axvline(mean, color="0.3", linewidth=0.8, linestyle="--")
    axes.text(1.03 * mean, heights.max() * 1.08, f"mean {format_number(mean, 1)} s", color="0.2")
    share = 100 * float((seconds > LATE * mean).mean())
    axes.text(
        0.97,
        0.6,
        f"over {LATE:g} × mean:\n{share:.1f} %",
        ha="right",
        color=COLOURS[1],
        transform=axes.transAxes,
    )
    axes.set(xlabel="seconds of a batch", xlim=(0, SHOWN * mean), ylim=(0, heights.max() * 1.18))
