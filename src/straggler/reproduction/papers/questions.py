"""What the studies of questions share: cells for tuning and for the answer, tables of costs, and a figure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from straggler.analysis.figures.description import Axis, FigureSpec, Line, Panel, Scatter
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.intervals import mean_interval
from straggler.analysis.tables import format_markdown_table
from straggler.reproduction.papers.rates import SCORE, TUNING, Rates
from straggler.reproduction.study import Labels
from straggler.sweeps.grid import Cell
from straggler.sweeps.summaries import read_series

Settings = dict[str, Any]
Variant = Callable[[float], Settings]  # the settings of a method at a learning rate
Variants = Mapping[str, Variant]  # by name; tuning chooses one of them, and the rate
COSTS = {"seconds": "virtual time (s)", "gradients": "gradients", "megabytes": "MB that workers sent"}
FACTS = {  # columns of the table of costs, with the digits that are shown
    "test_accuracy": ("test accuracy (%)", 2),
    "slow_recall": ("recall of the slow classes (%)", 1),
    "other_recall": ("recall of the others (%)", 1),
    "worst_recall": ("of the worst class (%)", 1),
    "seconds": ("time (s)", 0),
    "updates": ("updates", 0),
    "gradients": ("gradients", 0),
    "megabytes": ("MB sent", 1),
    "mean_staleness": ("mean staleness", 1),
    "max_staleness": ("max", 0),
    "server_vectors": ("server memory (models)", 1),
}
POINTS = 80  # of a mean curve
PANEL_INCHES = (3.5, 3.0)


def plain(**settings: Any) -> Variants:
    """Return the only variant of a method whose rate is the server's."""
    return {"": lambda lr: {**settings, "lr": lr}}


def varied(key: str, values: Mapping[str, Any], **settings: Any) -> Variants:
    """Return variants that differ in one setting besides the rate."""

    def make(value: Any) -> Variant:
        return lambda lr: {**settings, key: value, "lr": lr}

    return {name: make(value) for name, value in values.items()}


def make_tuning_cells(
    protocol: str, method: str, variants: Variants, fixed: Settings, rates: Sequence[float], seeds: int
) -> Iterator[Cell]:
    """Yield a cell for every variant and learning rate; tables show the validation accuracy."""
    for variant, make in variants.items():
        for lr in rates:
            labels: Labels = {
                "table": TUNING,
                "protocol": protocol,
                "method": method,
                "variant": variant,
                "lr": lr,
            }
            yield Cell(labels, {**fixed, **make(lr), "eval_every": 0}, metric=SCORE, seeds=seeds)


def choose_settings(
    protocol: str, method: str, variants: Variants, chosen: Rates, default: float
) -> Settings:
    """Return the settings of the chosen variant and rate; before tuning, the first variant and a default."""
    row = chosen.get((protocol, method), {})
    variant = row.get("variant", "")
    make = variants[variant] if variant in variants else next(iter(variants.values()))
    return make(row.get("lr", default))


def make_more_tables(runs: pl.DataFrame, facts: Sequence[str]) -> list[tuple[str, str]]:
    """Return a table of costs and scores per protocol: a row per method, means over the seeds."""
    mine = add_megabytes(runs.filter(pl.col("table") != TUNING))
    known = [fact for fact in facts if fact in mine.columns and mine[fact].is_not_null().any()]
    tables = []
    for (protocol,), some in mine.group_by("protocol", maintain_order=True):
        rows = []
        for (method,), ours in some.group_by("row", maintain_order=True):
            cells = [format_fact(ours[fact].drop_nulls().to_list(), FACTS[fact][1]) for fact in known]
            rows.append([str(method), str(len(ours)), *cells])
        heads = ["", "seeds", *(FACTS[fact][0] for fact in known)]
        caption = f"Costs, {protocol}: mean ± half-width of the 95 % confidence interval over the seeds"
        tables.append((caption, format_markdown_table(heads, rows)))
    return tables


def format_fact(values: Sequence[float], digits: int) -> str:
    """Format a mean with its interval, without it if all values are equal or few."""
    if not values:
        return "–"
    interval = mean_interval([float(value) for value in values])
    text = f"{interval.mean:,.{digits}f}"
    return text if len(values) < 3 or len(set(values)) == 1 else f"{text} ± {interval.half:,.{digits}f}"


def add_megabytes(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs with the megabytes that workers sent, if their bytes are known."""
    if "bytes_up" not in runs.columns:
        return runs
    return runs.with_columns(megabytes=pl.col("bytes_up") / 1e6)


def draw_costs(
    runs: pl.DataFrame, results: Path, methods: Sequence[str], costs: Sequence[str] = tuple(COSTS)
) -> list[tuple[Path, str]]:
    """Draw accuracy against costs: a row of panels per protocol, a line per method."""
    curves = read_series(results, "curves")
    mine = runs.filter(pl.col("table") != TUNING)
    if curves.is_empty() or mine.is_empty():
        return []
    points = add_megabytes(mine.select("id", "protocol", "method").unique().join(curves, on="id"))
    protocols = mine["protocol"].unique(maintain_order=True).to_list()
    lines = {
        (protocol, cost): [
            Line(x, y, method, colour)
            for colour, method in enumerate(methods)
            for x, y in average_curves(points.filter(protocol=protocol, method=method), cost)
        ]
        for protocol in protocols
        for cost in costs
    }
    panels = []
    for (protocol, cost), drawn in lines.items():
        ends = [line.x[-1] for each in protocols for line in lines[each, cost]]
        x = Axis(COSTS[cost], low=0, high=1.03 * max(ends, default=1.0))  # the same in a column
        panels.append(Panel(drawn, x, Axis("test accuracy (%)"), title=protocol))
    width, height = PANEL_INCHES
    size = (2.0 + width * len(costs), height * len(protocols))
    spec = FigureSpec("costs", "", panels, columns=len(costs), size=size, legend="right", share_y=True)
    caption = (
        "Test accuracy against what it costs, mean over the seeds; a line ends where its first run ends."
    )
    return [(write_figure(spec, results / "costs.png"), caption)]


def draw_slow_classes(runs: pl.DataFrame, results: Path, methods: Sequence[str]) -> list[tuple[Path, str]]:
    """Draw the recall of the slow and of the other classes against time: a point per method."""
    mine = runs.filter(pl.col("table") != TUNING)
    if mine.is_empty():
        return []
    panels = []
    for fact in ("slow_recall", "other_recall"):
        marks = []
        for place, method in enumerate(methods):
            ours = mine.filter(method=method).drop_nulls(fact)
            if len(ours):
                mean, low, high = (getattr(ours[fact], name)() for name in ("mean", "min", "max"))
                error = [mean - low], [high - mean]
                marks.append(Scatter([ours["seconds"].mean()], [mean], method, place, size=7, error=error))
        panels.append(Panel(marks, Axis("virtual time (s)", low=0), Axis(FACTS[fact][0], low=0, high=100)))
    titles = "slow classes", "other classes"
    panels = [replace(panel, title=title) for panel, title in zip(panels, titles, strict=True)]
    spec = FigureSpec("slow_classes", "", panels, size=(9.5, 3.8), legend="right")
    caption = "Recall of the slow and of the other classes against time, mean and range over the seeds."
    return [(write_figure(spec, results / "slow_classes.png"), caption)]


def average_curves(
    points: pl.DataFrame, cost: str
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the mean curve over the runs, interpolated at equal costs; nothing if there are no runs."""
    known = points.filter(pl.col("test_accuracy").is_finite() & pl.col(cost).is_not_null())
    runs = [part.sort(cost) for _, part in known.group_by("id")]
    if not runs:
        return
    x = np.linspace(0, min(float(part[cost].to_numpy()[-1]) for part in runs), POINTS)
    found = [np.interp(x, part[cost].to_numpy(), part["test_accuracy"].to_numpy()) for part in runs]
    yield x, np.mean(found, axis=0)
