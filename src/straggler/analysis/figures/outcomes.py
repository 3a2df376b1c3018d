"""Results of many runs: accuracy against time, learning rate and momentum, or the number of workers."""

from itertools import chain

import numpy as np
import polars as pl

from straggler.analysis.figures.colours import assign_colours
from straggler.analysis.figures.curves import Groups, format_time
from straggler.analysis.figures.description import (
    Axis,
    FigureSpec,
    Heatmap,
    Line,
    Mark,
    Panel,
    Scatter,
    choose_marker,
)
from straggler.analysis.intervals import error_bars, mean_interval
from straggler.analysis.labels import expand_settings

CAPTION = "Mean and 95 % confidence interval over seeds (from three on) that converged; NC: not converged."


def collect_outcomes(groups: Groups) -> pl.DataFrame:
    """Return a row per run with a result: its setting, the settings on the axes, and the result."""
    rows = []
    for setting, runs in groups.items():
        for run in runs:
            settings, summary = expand_settings(run.settings), run.summary
            keys = {key: settings.get(key) for key in ("lr", "momentum", "workers")}
            result = {"accuracy": summary.get("test_accuracy"), "seconds": summary.get("seconds")}
            result["converged"] = bool(summary.get("converged"))
            rows.append({"setting": setting, **keys, **result})
    schema = {"lr": pl.Float64, "momentum": pl.Float64, "accuracy": pl.Float64, "seconds": pl.Float64}
    table = pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)
    return table.filter(pl.col("accuracy").is_not_null() | ~pl.col("converged"))


def count_failures(runs: pl.DataFrame) -> str:
    """Return `1 of 3 NC` or `NC`; nothing if all runs converged."""
    failed = len(runs) - int(runs["converged"].sum())
    return "NC" if failed == len(runs) else f"{failed} of {len(runs)} NC" if failed else ""


def find_pareto_front(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs for which no other is better or equal in both time and accuracy, fastest first."""
    ordered = runs.sort(["seconds", "accuracy"], descending=[False, True])
    best_before = pl.col("accuracy").cum_max().shift(1).fill_null(-np.inf)
    return ordered.filter(pl.col("accuracy") > best_before)


def build_pareto_figure(groups: Groups) -> FigureSpec:
    """Describe final accuracy against training time, a point per setting; the Pareto front is marked."""
    runs, colours = collect_outcomes(groups), assign_colours(groups)
    by_setting = runs.group_by("setting", maintain_order=True)
    means = by_setting.agg(pl.col("seconds", "accuracy").filter(pl.col("converged")).mean())
    front = find_pareto_front(means.drop_nulls())
    marks: list[Mark] = [Line(front["seconds"], front["accuracy"], colour="#808080", width=1.0, step="after")]
    for (setting,), group in by_setting:
        learnt, failed = group.filter("converged"), count_failures(group)
        time, accuracy = (mean_interval(learnt[key].to_numpy()) for key in ("seconds", "accuracy"))
        label = f"{setting} ({failed})" if failed else str(setting)
        errors = {"x_error": error_bars([time]), "error": error_bars([accuracy], 100.0)}
        marks.append(Scatter([time.mean], [accuracy.mean], label, colours[str(setting)], **errors))  # type: ignore[arg-type]
    look = {"colour": "#333333", "marker": "circle", "size": 10.5, "fill": "none"}
    marks.append(Scatter(front["seconds"], front["accuracy"], "Pareto front", **look))  # type: ignore[arg-type]
    panel = Panel(marks, Axis(format_time(chain(*groups.values()))), Axis("test accuracy (%)"))
    return FigureSpec("pareto", "Accuracy against training time", [panel], caption=CAPTION, size=(6.5, 4.2))


def build_accuracy_heatmap(groups: Groups) -> FigureSpec:
    """Describe the mean accuracy of the seeds that converged, for every learning rate and momentum."""
    runs = collect_outcomes(groups).with_columns(pl.col("momentum").fill_null(0.0))
    rates, momenta = (sorted(runs[key].unique()) for key in ("lr", "momentum"))
    table = np.full((len(momenta), len(rates)), np.nan)
    words = [["" for _ in rates] for _ in momenta]
    for (rate, momentum), group in runs.group_by(["lr", "momentum"]):
        row, column = momenta.index(momentum), rates.index(rate)
        learnt, failed = group.filter("converged")["accuracy"], count_failures(group)
        table[row, column] = learnt.mean() if len(learnt) else np.nan
        words[row][column] = f"{table[row, column]:.1f}\n{failed}".strip() if len(learnt) else failed
    names = [[f"{value:g}" for value in values] for values in (rates, momenta)]
    mark = Heatmap(table, names[0], names[1], "test accuracy (%)", words, rows_down=False)
    panel = Panel([mark], Axis("learning rate", grid=False), Axis("momentum", grid=False))
    size = (1.8 + 0.75 * len(rates), 1.5 + 0.45 * len(momenta))
    return FigureSpec("heatmap", "Accuracy by learning rate and momentum", [panel], size=size)


def build_error_figure(groups: Groups) -> FigureSpec:
    """Describe test error against the number of workers, a line per setting."""
    runs, colours = collect_outcomes(groups), assign_colours(groups)
    step = min(0.02, 0.2 / len(groups))  # moves lines sideways, so that error bars do not hide each other
    marks, sizes = [], sorted(runs["workers"].unique())
    for number, ((setting,), group) in enumerate(runs.group_by("setting", maintain_order=True)):
        places, found, failures = [], [], []
        for (size,), part in group.sort("workers").group_by(["workers"], maintain_order=True):
            learnt = part.filter("converged")["accuracy"].to_numpy()
            failures += [f"{failed} at {size}"] if (failed := count_failures(part)) else []
            if len(learnt):
                places.append(float(str(size)) * (1 + step * (number - (len(groups) - 1) / 2)))
                found.append(mean_interval(100 - learnt))
        label = f"{setting} ({', '.join(failures)})" if failures else str(setting)
        means, error = [one.mean for one in found], error_bars(found, 100.0)
        marker = choose_marker(colours[str(setting)])
        marks.append(Line(places, means, label, colours[str(setting)], marker=marker, error=error))
    highest = max((value for mark in marks for value in mark.y), default=1.0)
    x = Axis("workers", "log2", ticks=sizes, tick_labels=[f"{size:,}" for size in sizes])
    panel = Panel(marks, x, Axis("test error (%)", low=-0.03 * highest))  # the points at 0 are whole
    return FigureSpec("error", "Error against the number of workers", [panel], caption=CAPTION, size=(6, 4))
