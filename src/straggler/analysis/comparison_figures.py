"""Records as matplotlib figures: PDF, SVG or PNG, by the name of the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from straggler.analysis.style import STYLE, line
from straggler.analysis.workers import beginning, draw_spans, draw_staleness, legend_of, spans
from straggler.record import Record


def comparison_figure(records: Mapping[str, Record], target: float, path: Path) -> Path:
    """Accuracy over time, staleness, and the first seconds of every worker."""
    with mpl.rc_context(STYLE):
        height = 3.2 + 1.7 * len(records)
        figure = Figure(figsize=(9, height), layout="constrained")
        rows: Any = figure.subfigures(1 + len(records), 1, height_ratios=[3.2] + [1.7] * len(records))
        accuracy, staleness = rows[0].subplots(1, 2, width_ratios=[2, 1])
        draw_accuracy(accuracy, records, target)
        draw_staleness(staleness, {name: [record] for name, record in records.items()})
        staleness.set_title("Staleness")
        for row, (name, record) in zip(rows[1:], records.items(), strict=True):
            meaning = draw_timeline(row.subplots(), name, record, "virtual time (s)")
            row.legend(handles=meaning, loc="outside right center", fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return path


def error_against_workers(runs: pl.DataFrame, path: Path) -> Path:
    """Test error and mean gap over the number of workers, mean and standard deviation over seeds."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        methods = [method for method in runs["method"].unique(maintain_order=True) if method != "sgd"]
        for position, method in enumerate(methods):
            mine = runs.filter(pl.col("method") == method).group_by("workers", maintain_order=True)
            table = mine.agg(mean=pl.col("error").mean(), std=pl.col("error").std()).sort("workers")
            draw_band(left, table, method, position)
            learnt = runs.filter((pl.col("method") == method) & pl.col("converged") & (pl.col("gap") > 0))
            table = (
                learnt.group_by("workers").agg(mean=pl.col("gap").median(), std=pl.lit(0.0)).sort("workers")
            )
            draw_band(right, table, method, position)
        baseline = runs.filter(pl.col("method") == "sgd")["error"].mean()
        left.axhline(float(baseline), color="0.4", linestyle=":", label="one worker")  # type: ignore[arg-type]
        left.set(xlabel="workers", ylabel="test error (%)", title="Error after equal epochs", ylim=(0, 95))
        right.set(
            xlabel="workers", ylabel="mean gap (RMSE)", title="Gap of the runs that learnt", yscale="log"
        )
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted(set(runs["workers"]) - {1}), sorted(set(runs["workers"]) - {1}))
        figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    return path


def draw_band(axes: Axes, table: pl.DataFrame, label: str, position: int) -> None:
    axes.errorbar(
        table["workers"],
        table["mean"],
        yerr=table["std"],
        label=label,
        marker="o",
        markersize=4,
        capsize=2,
        **line(position),
    )


def draw_accuracy(axes: Axes, records: Mapping[str, Record], target: float) -> None:
    for position, (name, record) in enumerate(records.items()):
        curve = record.curve
        axes.plot(curve["seconds"], curve["test_accuracy"], label=name, linewidth=1.8, **line(position))
    axes.axhline(target, color="0.4", linewidth=0.8, linestyle=":")
    axes.text(
        0.99,
        target,
        f"{target:g} %",
        va="top",
        ha="right",
        color="0.3",
        transform=axes.get_yaxis_transform(),
    )
    axes.set(xlabel="virtual time (s)", ylabel="test accuracy (%)", title="Accuracy over time")
    axes.legend(loc="lower right", frameon=False)


def draw_timeline(axes: Axes, name: str, record: Record, clock: str) -> list[Patch]:
    """What each worker does first, as long as the longest job takes three times; what the colours mean."""
    every = spans(record.jobs)
    slowest = record.arrivals.select((pl.col("time") - pl.col("started")).max()).item()
    end = 3 * slowest
    seen = every.filter(pl.col("begin") < end)
    draw_spans(axes, seen, end, int(record.settings["workers"]))
    axes.set(xlabel=clock, title=f"Who does what when: {name}{beginning(every, end)}")
    return legend_of([seen])
