"""What came of many runs: good against fast, learning rate against momentum, error against workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from straggler.analysis.intervals import interval
from straggler.analysis.style import COLOURS, drawn, line, panels, place_legend
from straggler.record import Record

__all__ = ["error_figure", "heat_figure", "outcomes", "pareto", "pareto_figure"]

MARKERS = "osD^vP*X"


def outcomes(records: Mapping[str, Record]) -> pl.DataFrame:
    """A row per run: its name, settings that figures ask for, and what came out."""
    rows = []
    for name, record in records.items():
        keys, facts = record.settings, record.summary
        method = " × ".join(part_names(keys))
        told = {key: keys.get(key) for key in ("lr", "momentum", "workers", "seed")}
        results = {"accuracy": facts.get("test_accuracy"), "seconds": facts.get("seconds")}
        rows.append(
            {"name": name, "method": method, **told, **results, "converged": bool(facts.get("converged"))}
        )
    schema = {"lr": pl.Float64, "momentum": pl.Float64, "accuracy": pl.Float64, "seconds": pl.Float64}
    return pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)


def part_names(keys: Mapping[str, Any]) -> list[str]:
    """Policy, correction and optimizer, without what every run has."""
    parts = [str(keys["policy"]), str(keys["correction"]), str(keys["optimizer"])]
    return [part for part in parts if part not in ("none", "sgd")]


def pareto(runs: pl.DataFrame) -> pl.DataFrame:
    """Those that no other beats: none is as good in less time, or better in as little. Fastest first."""
    best, front = -np.inf, []
    for row in runs.sort(["seconds", "accuracy"], descending=[False, True]).iter_rows(named=True):
        if row["accuracy"] > best:
            best = row["accuracy"]
            front.append(row)
    return pl.DataFrame(front, schema=runs.schema)


def pareto_figure(runs: pl.DataFrame, path: Path) -> Path:
    """Final accuracy against training time; the front is drawn, and its runs are named. NC is left out."""
    runs = runs.filter(pl.col("accuracy").is_not_null())
    learnt = runs.filter("converged")
    front = pareto(learnt)
    with drawn(path, 6.5, 4.2) as figure:
        axes = panels(figure, 1, 1)[0]
        axes.step(front["seconds"], front["accuracy"], where="post", color="0.5", linewidth=1, zorder=1)
        for position, method in enumerate(learnt["method"].unique(maintain_order=True)):
            mine = learnt.filter(pl.col("method") == method)
            marker, colour = MARKERS[position % len(MARKERS)], COLOURS[position % len(COLOURS)]
            axes.scatter(
                mine["seconds"], mine["accuracy"], color=colour, marker=marker, label=method, zorder=2
            )
        axes.scatter(
            front["seconds"],
            front["accuracy"],
            s=110,
            facecolor="none",
            edgecolor="0.2",
            label="Pareto front",
        )
        left_out = len(runs) - len(learnt)
        title = f"{left_out} of {len(runs)} runs did not converge (NC)" if left_out else ""
        axes.set(xlabel="training time (s)", ylabel="test accuracy (%)", title=title)
        axes.margins(0.12)
        axes.legend(loc="best")
    return path


def heat_figure(runs: pl.DataFrame, path: Path) -> Path:
    """Final accuracy for every learning rate and momentum, mean over the runs; NC where none converged."""
    runs = runs.filter(pl.col("accuracy").is_not_null())
    rates, momenta = (sorted(runs[key].fill_null(0.0).unique()) for key in ("lr", "momentum"))
    table = np.full((len(momenta), len(rates)), np.nan)
    for (rate, momentum), group in runs.with_columns(pl.col("momentum").fill_null(0.0)).group_by(
        ["lr", "momentum"]
    ):
        learnt = group.filter("converged")["accuracy"]
        cell = momenta.index(momentum), rates.index(rate)
        table[cell] = learnt.mean() if len(learnt) else -1.0
    with drawn(path, 1.8 + 0.75 * len(rates), 1.5 + 0.45 * len(momenta)) as figure:
        axes = panels(figure, 1, 1)[0]
        shown = np.ma.masked_where(~(table >= 0), table)
        image = axes.imshow(shown, cmap="cividis", aspect="auto", origin="lower")
        write_cells(axes, table)
        axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.set_yticks(range(len(momenta)), [f"{momentum:g}" for momentum in momenta])
        axes.set(xlabel="learning rate", ylabel="momentum")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="test accuracy (%)")
    return path


def write_cells(axes: Axes, table: np.ndarray[Any, Any]) -> None:
    """The number in every cell, readable on its colour."""
    middle = (
        (np.nanmax(table) + np.nanmin(np.where(table >= 0, table, np.nan))) / 2 if (table >= 0).any() else 0
    )
    for (row, column), value in np.ndenumerate(table):
        if not np.isnan(value):
            text = f"{value:.1f}" if value >= 0 else "NC"
            colour = "black" if value < 0 or value > middle else "white"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)


def error_figure(runs: pl.DataFrame, path: Path) -> Path:
    """Test error against the number of workers: mean and 95 % interval over seeds, a line per method."""
    with drawn(path, 6, 4) as figure:
        axes = panels(figure, 1, 1)[0]
        sizes = sorted(runs["workers"].unique())
        runs = runs.filter(pl.col("accuracy").is_not_null())
        for position, method in enumerate(runs["method"].unique(maintain_order=True)):
            mine = runs.filter(pl.col("method") == method)
            draw_errors(axes, mine, str(method), position)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set(xlabel="workers", ylabel="test error (%)", ylim=(0, None))
        axes.set_title("mean and 95 % interval over seeds; NC: no convergence", fontsize=9)
        place_legend(figure, axes)
    return path


def draw_errors(axes: Axes, runs: pl.DataFrame, method: str, position: int) -> None:
    """One method's line; how many runs of a point did not converge stands beside it."""
    points = []
    for (size,), group in runs.sort("workers").group_by(["workers"], maintain_order=True):
        found = interval(100 - group["accuracy"].to_numpy())
        points.append((size, found.mean, found.bar))
        lost = int((~group["converged"]).sum())
        if lost:
            axes.annotate(f"{lost} NC", (size, found.mean), (4, 4), textcoords="offset points", fontsize=7)
    sizes, means, halves = zip(*points, strict=True)
    axes.errorbar(
        sizes, means, yerr=halves, label=method, marker="o", markersize=4, capsize=3, **line(position)
    )
