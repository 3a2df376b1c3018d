"""What came of many runs: good against fast, learning rate against momentum, error against workers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from straggler.analysis.intervals import error_bars, mean_interval
from straggler.analysis.style import drawn, line, panels, place_legend, point
from straggler.record import Record

OVER_SEEDS = "mean and 95 % interval over seeds (of two: both), without NC: no convergence"


def outcomes(groups: Mapping[str, Sequence[Record]]) -> pl.DataFrame:
    """A row per run of which something came out: its setting, what figures ask for, and what it was."""
    rows = []
    for setting, group in groups.items():
        for record in group:
            keys, facts = record.settings, record.summary
            told = {key: keys.get(key) for key in ("lr", "momentum", "workers")}
            results = {"accuracy": facts.get("test_accuracy"), "seconds": facts.get("seconds")}
            rows.append({"setting": setting, **told, **results, "converged": bool(facts.get("converged"))})
    schema = {"lr": pl.Float64, "momentum": pl.Float64, "accuracy": pl.Float64, "seconds": pl.Float64}
    table = pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)
    return table.filter(pl.col("accuracy").is_not_null() | ~pl.col("converged"))


def lost(runs: pl.DataFrame) -> str:
    """`1 of 3 NC` or `NC`, as in the tables; nothing if all converged."""
    failed = len(runs) - int(runs["converged"].sum())
    return "NC" if failed == len(runs) else f"{failed} of {len(runs)} NC" if failed else ""


def pareto(runs: pl.DataFrame) -> pl.DataFrame:
    """Those that no other beats: none is as good in less time, or better in as little. Fastest first."""
    best, front = -np.inf, []
    for row in runs.sort(["seconds", "accuracy"], descending=[False, True]).iter_rows(named=True):
        if row["accuracy"] > best:
            best = row["accuracy"]
            front.append(row)
    return pl.DataFrame(front, schema=runs.schema)


def pareto_figure(runs: pl.DataFrame, path: Path) -> Path:
    """Final accuracy against training time, a point per setting; those that none beats are marked.

    Means over the seeds that converged; how many did not stands beside the name.
    """
    groups = runs.group_by("setting", maintain_order=True)
    means = groups.agg(pl.col("seconds", "accuracy").filter(pl.col("converged")).mean())
    front = pareto(means.drop_nulls())
    with drawn(path, 6.5, 4.2) as figure:
        axes = panels(figure, 1, 1)[0]
        axes.step(front["seconds"], front["accuracy"], where="post", color="0.5", linewidth=1, zorder=1)
        for position, ((setting,), group) in enumerate(groups):
            draw_point(axes, group, str(setting), position)
        look: dict[str, Any] = {"s": 110, "facecolor": "none", "edgecolor": "0.2", "zorder": 3}
        axes.scatter(front["seconds"], front["accuracy"], label="Pareto front", **look)
        axes.set(xlabel="training time (s)", ylabel="test accuracy (%)")
        axes.set_title(OVER_SEEDS, fontsize=9)
        axes.margins(0.12)
        place_legend(figure, axes)
    return path


def draw_point(axes: Axes, runs: pl.DataFrame, setting: str, position: int) -> None:
    """One setting's mean, and how sure both its numbers are."""
    learnt = runs.filter("converged")
    time, accuracy = (mean_interval(learnt[key].to_numpy()) for key in ("seconds", "accuracy"))
    look = point(position)
    place: tuple[list[float], list[float]] = ([time.mean], [accuracy.mean])
    spread: dict[str, Any] = {"xerr": error_bars([time]), "yerr": error_bars([accuracy], 100.0)}
    axes.errorbar(*place, fmt="none", ecolor=look["color"], elinewidth=1, capsize=2, **spread)
    name = f"{setting} ({lost(runs)})" if lost(runs) else setting
    axes.scatter(*place, label=name, zorder=2, **look)


def heat_figure(runs: pl.DataFrame, path: Path) -> Path:
    """Final accuracy for every learning rate and momentum: mean over the seeds that converged; NC is said."""
    runs = runs.with_columns(pl.col("momentum").fill_null(0.0))
    rates, momenta = (sorted(runs[key].unique()) for key in ("lr", "momentum"))
    table = np.full((len(momenta), len(rates)), np.nan)
    words = np.full(table.shape, "", dtype=object)
    for (rate, momentum), group in runs.group_by(["lr", "momentum"]):
        learnt = group.filter("converged")["accuracy"]
        cell = momenta.index(momentum), rates.index(rate)
        table[cell] = learnt.mean() if len(learnt) else np.nan
        words[cell] = f"{table[cell]:.1f}\n{lost(group)}".strip() if len(learnt) else lost(group)
    with drawn(path, 1.8 + 0.75 * len(rates), 1.5 + 0.45 * len(momenta)) as figure:
        axes = panels(figure, 1, 1)[0]
        image = axes.imshow(np.ma.masked_invalid(table), cmap="cividis", aspect="auto", origin="lower")
        write_cells(axes, table, words)
        axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.set_yticks(range(len(momenta)), [f"{momentum:g}" for momentum in momenta])
        axes.set(xlabel="learning rate", ylabel="momentum")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="test accuracy (%)")
    return path


def write_cells(axes: Axes, table: np.ndarray[Any, Any], words: np.ndarray[Any, Any]) -> None:
    """The words in every cell, readable on its colour."""
    known = table[np.isfinite(table)]
    middle = (known.max() + known.min()) / 2 if known.size else 0.0
    for (row, column), text in np.ndenumerate(words):
        colour = "white" if table[row, column] <= middle else "black"
        if text:
            axes.text(column, row, str(text), ha="center", va="center", fontsize=7, color=colour)


def error_figure(runs: pl.DataFrame, path: Path) -> Path:
    """Test error against the number of workers: mean and 95 % interval over seeds, a line per setting."""
    with drawn(path, 6, 4) as figure:
        axes = panels(figure, 1, 1)[0]
        groups = list(runs.group_by("setting", maintain_order=True))
        step = min(0.02, 0.2 / len(groups))  # beside each other, so that bars do not hide each other
        for position, ((setting,), group) in enumerate(groups):
            draw_errors(axes, group, str(setting), position, 1 + step * (position - (len(groups) - 1) / 2))
        sizes = sorted(runs["workers"].unique())
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set(xlabel="workers", ylabel="test error (%)", ylim=(0, None))
        axes.set_ylim(-0.03 * axes.get_ylim()[1], None)  # no point is cut in half
        axes.set_title(OVER_SEEDS, fontsize=9)
        place_legend(figure, axes)
    return path


def draw_errors(axes: Axes, runs: pl.DataFrame, setting: str, position: int, shift: float) -> None:
    """One setting's line over the seeds that converged; where some did not stands beside its name."""
    sizes, found, missed = [], [], []
    for (size,), group in runs.sort("workers").group_by(["workers"], maintain_order=True):
        learnt = group.filter("converged")["accuracy"].to_numpy()
        if lost(group):
            missed.append(f"{lost(group)} at {size}")
        if len(learnt):
            sizes.append(size * shift)
            found.append(mean_interval(100 - learnt))
    axes.errorbar(
        sizes,
        [one.mean for one in found],
        yerr=error_bars(found, 100.0),
        label=f"{setting} ({', '.join(missed)})" if missed else setting,
        marker="o",
        markersize=4,
        capsize=3,
        **line(position),
    )
