"""The results of a sweep or study as a heatmap, parallel coordinates, accuracy against time, and a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from straggler.analysis.figures.colours import assign_colours
from straggler.analysis.figures.description import (
    Axis,
    FigureSpec,
    Heatmap,
    Panel,
    Scatter,
    choose_colour,
    round_for_json,
)
from straggler.analysis.figures.plotly_renderer import escape_text, render_plotly
from straggler.analysis.intervals import format_interval
from straggler.analysis.labels import rank_value
from straggler.record import RecordError, has_file, read_table
from straggler.web.comparison import follows_method
from straggler.web.report import format_times

MAX_SETTINGS = 2000  # rows of the table
MAX_KEYS = 6  # settings in the figures
MAX_CELLS = 10_000  # of a heatmap
MAX_LINES, MAX_TICKS = 300, 10  # of parallel coordinates
METRICS = {"test_accuracy": "test accuracy (%)", "test_loss": "test loss", "value": "value"}
NOT_SWEPT = {"id", "name", "tags", "notes", "archived", "status", "started", "problems", "spent", "error"}
NOT_SWEPT |= {"seed", "converged", "settings", "test_accuracy", "mean_staleness", "updates", "gradients"}
NOT_SWEPT |= {"seconds", "epochs"}
Row = Mapping[str, Any]


@dataclass
class SettingResults:
    """The runs of one setting of a sweep, which differ in their seed."""

    labels: dict[str, str]
    runs: list[Row] = field(default_factory=list)

    def collect(self, key: str) -> list[float]:
        """Return the finite values of the runs that converged."""
        values = [run.get(key) for run in self.runs if run.get("converged") is not False]
        return [float(v) for v in values if isinstance(v, int | float) and np.isfinite(v)]

    def average(self, key: str) -> float:
        return float(np.mean(self.collect(key))) if self.collect(key) else float("nan")

    def count_lost(self) -> int:
        return sum(run.get("converged") is False for run in self.runs)

    def format(self, key: str) -> str:
        values, lost = self.collect(key), self.count_lost()
        if not values:
            return "NC" if lost else "–"
        return format_interval(values) + (f" ({lost} of {len(self.runs)} NC)" if lost else "")


def describe_sweep(
    folder: Path, listed: Iterable[Row], times: Mapping[str, float | None], target: float
) -> dict[str, Any]:
    """Return figures and a table of a sweep: of its summaries, or of the runs in the list while it runs.

    `times` has the time to target of each run whose record is there.
    """
    rows, keys = read_sweep_rows(folder)
    if not rows:
        rows, keys = flatten_rows(listed)
    if not rows:
        raise RecordError(f"{folder.name} has no results yet.")
    settings = group_settings(rows, keys)
    metric = next((key for key in METRICS if any(each.collect(key) for each in settings)), "test_accuracy")
    figures = [build_heatmap(settings, keys, metric), build_time_figure(settings, keys, metric)]
    drawn = [render_plotly(figure) for figure in figures if figure is not None]
    if len(keys) > 1 and len(settings) > 2:
        drawn.insert(1, build_parallel_coordinates(settings, keys, metric))
    note = f"{len(rows):,} runs of {len(settings):,} settings."
    note += f" The first {MAX_SETTINGS:,} settings are shown." if len(settings) > MAX_SETTINGS else ""
    return {
        "name": folder.name,
        "keys": keys,
        "columns": [
            *keys,
            "seeds",
            METRICS[metric],
            f"time to {target:g} % (s)",
            *("mean staleness", "time (s)"),
        ],
        "rows": [describe_setting(each, keys, metric, times) for each in settings[:MAX_SETTINGS]],
        "figures": drawn,
        "note": note,
    }


def describe_setting(
    setting: SettingResults, keys: Sequence[str], metric: str, times: Mapping[str, float | None]
) -> dict[str, Any]:
    ids = [str(run["id"])[:100] for run in setting.runs if run.get("id")]
    known = [times[name] for name in ids if name in times]
    cells = [setting.labels[key] for key in keys] + [str(len(setting.runs)), setting.format(metric)]
    cells += [format_times(known) if known else "–"]
    return {"cells": [*cells, setting.format("mean_staleness"), setting.format("seconds")], "ids": ids}


def read_sweep_rows(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the stored rows, and the labels that vary: the columns before the seed."""
    file = folder / "summaries.parquet"
    if not has_file(file):
        return [], []
    table = read_table(file)
    labels = table.columns[: table.columns.index("seed")] if "seed" in table.columns else []
    wanted = [*labels, *("id", "seed", "mean_staleness", "seconds", "converged", *METRICS)]
    found = table.select([name for name in wanted if name in table.columns])
    varying = [name for name in labels if found[name].cast(pl.String, strict=False).n_unique() > 1]
    return found.to_dicts(), varying


def flatten_rows(listed: Iterable[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows of the list of runs with their settings, and the settings that vary."""
    rows = [{**(row.get("settings") or {}), **row} for row in listed if row.get("status") != "damaged"]
    keys = dict.fromkeys(key for row in rows for key in row if key not in NOT_SWEPT)
    texts = {key: [repr(row.get(key)) for row in rows] for key in keys}
    varying = [key for key, values in texts.items() if len(set(values)) > 1]
    if "method" not in varying:
        return rows, varying
    decided = {key for key in varying if key != "method" and follows_method(texts["method"], texts[key])}
    return rows, ["method", *(key for key in varying if key not in (decided | {"method"}))]


def group_settings(rows: Sequence[Row], keys: Sequence[str]) -> list[SettingResults]:
    """Group the rows that differ only in their seed, sorted by the values of the settings."""
    groups: dict[tuple[str, ...], SettingResults] = {}
    for row in sorted(rows, key=lambda row: [rank_value(row.get(key)) for key in keys]):
        labels = {key: format_value(row.get(key)) for key in keys}
        groups.setdefault(tuple(labels.values()), SettingResults(labels)).runs.append(row)
    return list(groups.values())


def format_value(value: Any) -> str:
    if isinstance(value, list):
        return " + ".join(map(str, value))[:80] or "none"
    return "default" if value is None else str(value)[:80]


def list_values(settings: Sequence[SettingResults], key: str) -> list[str]:
    return list(dict.fromkeys(each.labels[key] for each in settings))


def build_heatmap(settings: Sequence[SettingResults], keys: Sequence[str], metric: str) -> FigureSpec | None:
    """Describe the metric over each pair of settings: a mean over all other settings and seeds."""
    views = {}
    for down, across in combinations(keys[:MAX_KEYS], 2):
        rows, columns = (sorted(list_values(settings, key), key=rank_label) for key in (down, across))
        if len(rows) * len(columns) > MAX_CELLS:
            continue
        cells: dict[tuple[str, str], SettingResults] = {}
        for each in settings:
            place = each.labels[down], each.labels[across]
            cells.setdefault(place, SettingResults({})).runs.extend(each.runs)
        values, text = np.full((len(rows), len(columns)), np.nan), [[""] * len(columns) for _ in rows]
        for (row, column), cell in cells.items():
            y, x = rows.index(row), columns.index(column)
            values[y, x], text[y][x] = cell.average(metric), cell.format(metric)
        mark = Heatmap(values, columns, rows, METRICS[metric], text)
        x_axis, y_axis = (
            Axis(across, "category", grid=False),
            Axis(down, "category", reverse=True, grid=False),
        )
        views[f"{down} × {across}"] = [Panel([mark], x_axis, y_axis)]
    if not views:
        return None
    note = "Mean ± half-width of the 95 % confidence interval over the runs in a cell, from three runs on."
    note += " NC: no run of the cell converged." if any(each.count_lost() for each in settings) else ""
    height = 170 + 34 * max(len(panel.marks[0].rows) for (panel,) in views.values())  # type: ignore[union-attr]
    return FigureSpec(
        "heatmap", f"Heatmap: {METRICS[metric]}", note=note, views=views, height=min(height, 900)
    )


def rank_label(label: str) -> list[tuple[float, str]]:
    try:
        return rank_value(float(label))
    except ValueError:
        return rank_value(label)


def build_time_figure(
    settings: Sequence[SettingResults], keys: Sequence[str], metric: str
) -> FigureSpec | None:
    """Describe the metric against the time of each setting, in the colour of its method or first setting."""
    key = "method" if "method" in keys else (keys[0] if keys else "")
    groups: dict[str, list[SettingResults]] = {}
    for each in settings[:MAX_SETTINGS]:
        if each.collect(metric) and each.collect("seconds"):
            groups.setdefault(each.labels.get(key, ""), []).append(each)
    if not groups:
        return None
    colours = assign_colours(dict.fromkeys(groups, ()))
    marks = []
    for label, members in groups.items():
        x, y = [each.average("seconds") for each in members], [each.average(metric) for each in members]
        hover = [describe_point(each, metric) for each in members]
        marks.append(Scatter(x, y, label, colours[label], size=7, hover=hover))
    note = "A point is the mean of the runs of one setting. The time is in the clock of the runs' engine."
    panel = Panel(marks, Axis("time (s)"), Axis(METRICS[metric]))
    return FigureSpec("time", f"{METRICS[metric].split(' (')[0].capitalize()} against time", [panel], note)


def describe_point(setting: SettingResults, metric: str) -> str:
    """Return the tooltip of a setting."""
    labels = ", ".join(f"{key} {value}" for key, value in setting.labels.items())
    return escape_text(f"{labels}: {setting.format(metric)} in {setting.format('seconds')} s")


def build_parallel_coordinates(
    settings: Sequence[SettingResults], keys: Sequence[str], metric: str
) -> dict[str, Any]:
    """Return plotly's JSON of parallel coordinates: a line per setting, in the colour of its method.

    Plotly's own kind needs WebGL, which not every browser has; these are plain lines.
    """
    shown = [each for each in settings if np.isfinite(each.average(metric))][:MAX_LINES]
    axes = [place_labels(shown, key) for key in keys[:MAX_KEYS]]
    results = {"mean_staleness": "mean staleness", "seconds": "time (s)", metric: METRICS[metric]}
    axes += [axis for key, label in results.items() if (axis := place_results(shown, key, label)) is not None]
    first = "method" if "method" in keys else keys[0]
    colours = assign_colours(dict.fromkeys((each.labels[first] for each in shown), ()))
    traces: list[dict[str, Any]] = []
    seen: set[str] = set()
    for row, setting in enumerate(shown):
        label, heights = setting.labels[first], [axis.heights[row] for axis in axes]
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": label,
            "legendgroup": label,
        }
        trace |= {"x": list(range(len(axes))), "y": round_for_json(heights), "showlegend": label not in seen}
        trace |= {"line": {"color": choose_colour(colours[label]), "width": 1.5}, "marker": {"size": 5}}
        seen.add(label)
        traces.append(trace | {"hovertemplate": describe_point(setting, metric) + "<extra></extra>"})
    plain = {"showgrid": False, "zeroline": False, "fixedrange": True}
    names: dict[str, Any] = {
        "tickvals": list(range(len(axes))),
        "ticktext": [axis.label for axis in axes],
        "side": "top",
    }
    x_axis = plain | names | {"range": [-0.15, len(axes) - 0.5], "showgrid": True}
    layout: dict[str, Any] = {"xaxis": x_axis, "yaxis": plain | {"visible": False, "range": [-0.06, 1.06]}}
    layout |= {"annotations": [tick for place, each in enumerate(axes) for tick in each.list_ticks(place)]}
    note = (
        "A line is one setting; each axis has its own scale. Click an entry of the legend to hide its lines."
    )
    words = {"name": "parallel", "title": "Parallel coordinates", "note": note, "group": "", "height": 420}
    legend = {"legend": {"orientation": "h", "y": -0.05, "yanchor": "top", "x": 0}}
    margin = {"margin": {"l": 15, "r": 15, "t": 40, "b": 45}}
    return words | {"data": traces, "layout": layout | legend | margin}


@dataclass
class ParallelAxis:
    """One vertical axis: the height of every setting from 0 to 1, and the values at some heights."""

    label: str
    heights: list[float]
    ticks: dict[str, float]

    def list_ticks(self, place: int) -> list[dict[str, Any]]:
        look = {"showarrow": False, "xanchor": "left", "xshift": 6, "font": {"size": 11}}
        return [{"x": place, "y": y, "text": text, **look} for text, y in self.ticks.items()]


def place_labels(settings: Sequence[SettingResults], key: str) -> ParallelAxis:
    """Return an axis on which the values of a setting have equal distances."""
    values = sorted(list_values(settings, key), key=rank_label)
    places = {value: number / max(1, len(values) - 1) for number, value in enumerate(values)}
    step = -(-len(values) // MAX_TICKS)
    ticks = {escape_text(value[:24]): places[value] for value in values[::step]}
    return ParallelAxis(key, [places[each.labels[key]] for each in settings], ticks)


def place_results(settings: Sequence[SettingResults], key: str, label: str) -> ParallelAxis | None:
    """Return a linear axis of a result, or None if all settings have the same one."""
    values = np.array([each.average(key) for each in settings])
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return None
    low, high = float(values.min()), float(values.max())
    ticks = {f"{low + share * (high - low):.4g}": share for share in (0.0, 0.5, 1.0)}
    return ParallelAxis(label, [float(value - low) / (high - low) for value in values], ticks)
