"""Figures of studies, drawn from their summaries alone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from straggler.analysis.intervals import interval
from straggler.analysis.style import COLOURS, STYLE, STYLES

__all__ = [
    "beside_source",
    "courses",
    "densities",
    "errors_over_workers",
    "over_training",
    "rate_momentum_map",
]


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def line_style(position: int) -> dict[str, Any]:
    return {"color": COLOURS[position % len(COLOURS)], "linestyle": STYLES[position % len(STYLES)]}


def workers_of(column: str) -> int:
    """`N = 16`"""
    return int(column.split()[-1])


def errors_over_workers(summaries: pl.DataFrame, title: str, path: Path) -> Path:
    """A panel per framework: error against N, mean and 95 % interval, runs that did not converge included."""
    frameworks = summaries["protocol"].unique(maintain_order=True).sort().to_list()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.2 + 3.4 * len(frameworks), 3.8), layout="constrained")
        panels: Any = figure.subplots(1, len(frameworks), sharey=True, squeeze=False)[0]
        methods = [method for method in summaries["row"].unique().sort().to_list() if method != "sgd"]
        for axes, framework in zip(panels, frameworks, strict=True):
            mine = summaries.filter(pl.col("protocol") == framework)
            for position, method in enumerate(methods):
                shift = 1 + 0.03 * (position - 3)  # so that bars do not hide each other
                draw_errors(axes, mine.filter(pl.col("row") == method), method, position, shift)
            alone = mine.filter(pl.col("row") == "sgd")["value"]
            if len(alone):
                axes.axhline(interval(alone.to_list()).mean, color="0.4", linestyle=":", label="one worker")
            label_workers(axes, mine, framework)
        panels[0].set_ylabel("test error (%)")
        figure.suptitle(title)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
        return save(figure, path)


def draw_errors(axes: Axes, runs: pl.DataFrame, method: str, position: int, shift: float = 1.0) -> None:
    points = []
    for (column,), group in runs.group_by("column"):
        found = interval(group["value"].drop_nulls().to_list())
        points.append((workers_of(str(column)), found.mean, found.bar))
    if not points:
        return
    x, y, half = (np.array(values) for values in zip(*sorted(points), strict=True))
    axes.errorbar(
        x * shift, y, yerr=half, label=method, marker="o", markersize=4, capsize=2, **line_style(position)
    )


def label_workers(axes: Axes, runs: pl.DataFrame, title: str) -> None:
    workers = sorted({workers_of(column) for column in runs["column"]} - {1})
    axes.set_xscale("log", base=2)
    axes.set_xticks(workers, [str(n) for n in workers])
    axes.set(xlabel="workers", title=title, ylim=(0, 95))


def over_training(
    curves: pl.DataFrame, summaries: pl.DataFrame, fact: str, label: str, title: str, path: Path
) -> Path:
    """A fact of the curve over the epochs, a line per method, mean over seeds with the range shaded."""
    named = summaries.select("id", "row", "seed").join(curves, on="id")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes: Axes = figure.subplots()
        for position, method in enumerate(named["row"].unique().sort().to_list()):
            mine = named.filter((pl.col("row") == method) & pl.col(fact).is_finite())
            points = mine.group_by(pl.col("epochs").round(1)).agg(
                mean=pl.col(fact).mean(), low=pl.col(fact).min(), high=pl.col(fact).max()
            )
            points = points.sort("epochs")
            axes.plot(points["epochs"], points["mean"], label=method, **line_style(position))
            axes.fill_between(
                points["epochs"], points["low"], points["high"], color=COLOURS[position], alpha=0.15
            )
        axes.set(xlabel="epochs", ylabel=label, title=title)
        if fact == "gap":
            axes.set_yscale("log")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
        return save(figure, path)


def rate_momentum_map(
    ours: Mapping[tuple[float, float], float],
    source: Mapping[tuple[float, float], float],
    titles: tuple[str, str],
    path: Path,
) -> Path:
    """Accuracy over learning rate (columns) and momentum (rows), ours and the source's; empty where lost."""
    rates = sorted({rate for _, rate in (*ours, *source)})
    momenta = sorted({momentum for momentum, _ in (*ours, *source)}, reverse=True)
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(11, 4.8), layout="constrained")
        panels: Any = figure.subplots(1, 2, sharey=True)
        for axes, cells, title in zip(panels, (ours, source), titles, strict=True):
            grid = np.array([[cells.get((m, rate), math.nan) for rate in rates] for m in momenta])
            image = axes.imshow(grid, cmap="cividis", vmin=10, vmax=100, aspect="auto")
            write_numbers(axes, grid)
            axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
            axes.set_yticks(range(len(momenta)), [f"{momentum:g}" for momentum in momenta])
            axes.set(xlabel="learning rate", title=title)
        panels[0].set_ylabel("momentum")
        figure.colorbar(image, ax=panels, label="test accuracy (%)")
        return save(figure, path)


def write_numbers(axes: Axes, grid: np.ndarray[Any, Any]) -> None:
    for (row, column), value in np.ndenumerate(grid):
        if math.isfinite(value):
            colour = "black" if value > 60 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)


def densities(cvs: Mapping[str, float], factor: float, path: Path) -> Path:
    """The gamma law of batch times, with what takes over `factor` times the mean shaded."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.2), layout="constrained")
        panels: Any = figure.subplots(1, len(cvs))
        x = np.linspace(1e-3, 3, 600)
        for axes, (name, cv) in zip(panels, cvs.items(), strict=True):
            law = stats.gamma(1 / cv**2, scale=cv**2)
            axes.plot(x, law.pdf(x), color=COLOURS[0])
            axes.fill_between(x, law.pdf(x), where=x > factor, color=COLOURS[1], alpha=0.7)
            axes.set(
                xlabel="batch time ÷ mean", title=f"{name}: P(> {factor:g} × mean) = {law.sf(factor):.1%}"
            )
        panels[0].set_ylabel("density")
        return save(figure, path)


def courses(named: Mapping[str, pl.DataFrame], path: Path) -> Path:
    """A row per run: loss and batches so far by worker, and the weight norm, over time."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 2.6 * len(named)), layout="constrained")
        rows: Any = figure.subplots(len(named), 3, squeeze=False)
        for (loss, norm, batches), (title, course) in zip(rows, named.items(), strict=True):
            for (worker,), mine in course.sort("time").group_by("worker", maintain_order=True):
                first = worker == 0
                style = {"color": COLOURS[1] if first else COLOURS[0], "linewidth": 1.4 if first else 0.5}
                style |= {"zorder": 3 if first else 2, "label": {0: "worker 0", 1: "the others"}.get(worker)}
                loss.plot(mine["time"], mine["loss"], **style)
                batches.plot(mine["time"], mine["batches"], **style)
            norm.plot(course.sort("time")["time"], course.sort("time")["weight_norm"], color=COLOURS[2])
            loss.set(ylabel="batch loss", title=title, xlabel="virtual time (s)")
            norm.set(ylabel="norm of the weights", xlabel="virtual time (s)")
            batches.set(ylabel="batches so far", xlabel="virtual time (s)")
            loss.legend(loc="upper right", frameon=False)
        return save(figure, path)


def beside_source(panels: Sequence[tuple[str, pl.DataFrame]], path: Path) -> Path:
    """Ours against the source's, a point per cell (mean over seeds), a panel per table; equal on the line."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.1 * len(panels), 3.5), layout="constrained")
        rows: Any = figure.subplots(1, len(panels), squeeze=False)[0]
        markers = ("o", "^", "s", "x")
        for axes, (title, runs) in zip(rows, panels, strict=True):
            known = runs.filter(pl.col("source").is_not_null() & pl.col("value").is_not_null())
            means = known.group_by("protocol", "row", "column").agg(
                pl.col("source").first(), pl.col("value").mean()
            )
            for position, (protocol, mine) in enumerate(
                sorted(means.group_by("protocol"), key=lambda g: str(g[0]))
            ):
                style = {
                    "color": COLOURS[position],
                    "marker": markers[position % len(markers)],
                    "alpha": 0.75,
                }
                axes.scatter(mine["source"], mine["value"], label=protocol[0], s=18, **style)
            ends = [*means["source"], *means["value"]] or [0.0, 100.0]
            low, high = min(ends) - 2, max(ends) + 2
            axes.plot([low, high], [low, high], color="0.5", linewidth=0.8)
            axes.set(xlabel="source: test accuracy (%)", title=title, xlim=(low, high), ylim=(low, high))
        rows[0].set_ylabel("ours: test accuracy (%)")
        rows[0].legend(loc="upper left", frameon=False)
        return save(figure, path)
