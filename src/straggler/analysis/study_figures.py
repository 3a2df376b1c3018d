"""Figures of studies: our numbers against the source's, and curves over training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from straggler.analysis.figures.description import Axis, FigureSpec, Line, Mark, Panel, Scatter, Spans
from straggler.analysis.figures.matplotlib_renderer import write_figure

# Verdicts differ in colour and in symbol. An open symbol stands for no decision.
VERDICTS = {
    "replicated": ("#0072B2", "circle", ""),
    "not replicated": ("#D55E00", "square", ""),
    "equivalent": ("#009E73", "diamond", ""),
    "inconclusive": ("#555555", "triangle-up", "#FFFFFF"),
    "by construction": ("#CC79A7", "star", "#FFFFFF"),
}
BAND, SOURCE = "#E69F00", "#000000"
UNITS = {
    "points": "difference of accuracy (points)",
    "of loss": "difference of loss",
    "×": "ratio",
    "s": "seconds",
}
ROW_INCHES, PANEL_INCHES = 0.24, 0.75


@dataclass(frozen=True)
class Effect:
    """One claim in a forest plot: what was measured, its interval, and the values that were claimed."""

    name: str
    unit: str
    verdict: str
    mean: float
    low: float
    high: float
    least: float
    most: float
    source: float | None


def describe_forest(effects: Sequence[Effect]) -> FigureSpec:
    """Describe a forest plot: a panel per unit, a row per claim."""
    units = list(dict.fromkeys(effect.unit for effect in effects))
    groups = [[effect for effect in effects if effect.unit == unit] for unit in units]
    panels = [describe_effects(group) for group in groups]
    heights = [len(group) * ROW_INCHES + PANEL_INCHES for group in groups]
    size = (8.5, sum(heights) + 0.3)
    return FigureSpec("forest", "", panels, columns=1, size=size, height_ratios=heights, legend="below")


def describe_effects(effects: Sequence[Effect]) -> Panel:
    """Return the panel of the claims with one unit. Long intervals and wide bands end at its edge."""
    shown = [value for one in effects for value in (one.mean, one.least, one.most, one.source)]
    known = [value for value in shown if value is not None and math.isfinite(value)]
    lowest, highest = min(known, default=0.0), max(known, default=1.0)
    pad = 0.12 * (highest - lowest) or 1.0
    low, high = lowest - pad, highest + pad
    rows = range(len(effects))
    marks: list[Mark] = [
        Spans(
            rows,
            [max(one.least, low) for one in effects],
            [min(one.most, high) for one in effects],
            "replicated if here",
            BAND,
            opacity=0.3,
        )
    ]
    for verdict, (colour, marker, fill) in VERDICTS.items():
        mine = [(row, one) for row, one in enumerate(effects) if one.verdict == verdict]
        below, above = [one.mean - one.low for _, one in mine], [one.high - one.mean for _, one in mine]
        look = {"colour": colour, "marker": marker, "size": 6.5, "fill": fill, "x_error": (below, above)}
        if mine:
            marks.append(Scatter([one.mean for _, one in mine], [row for row, _ in mine], verdict, **look))  # type: ignore[arg-type]
    said = [(row + 0.28, one.source) for row, one in enumerate(effects) if one.source is not None]
    if said:
        rows_said, sources = zip(*said, strict=True)
        marks.append(Scatter(sources, rows_said, "source", SOURCE, "x", 4))
    names = [one.name for one in effects]
    y = Axis(low=-0.6, high=len(effects) - 0.4, ticks=list(rows), tick_labels=names, reverse=True, grid=False)
    unit = effects[0].unit
    return Panel(marks, Axis(UNITS.get(unit, unit), low=low, high=high), y)


def average_cells(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a row per cell: the source's number and our mean over the seeds.

    As in the tables, runs that did not converge are left out if other runs of the cell did.
    """
    known = runs.filter(pl.col("value").is_not_null())
    cells = known.group_by("table", "protocol", "row", "column", maintain_order=True)
    counting = pl.col("converged") | ~pl.col("converged").any()
    return cells.agg(pl.col("source").first(), pl.col("value").filter(counting).mean())


def draw_comparison(panels: Mapping[str, pl.DataFrame], path: Path) -> Path:
    """Draw our means against the source's numbers: a panel per entry, a point per cell."""
    protocols = sorted({protocol for runs in panels.values() for protocol in runs["protocol"]})
    drawn = []
    for title, runs in panels.items():
        means = average_cells(runs.filter(pl.col("source").is_not_null()))
        low, high = (pl.concat([means["source"], means["value"]]).sort()[place] for place in (0, -1))
        ends = [low - 2, high + 2]
        marks: list[Scatter | Line] = [
            Scatter(mine["source"], mine["value"], protocol, place, size=5)
            for place, protocol in enumerate(protocols)
            if len(mine := means.filter(protocol=protocol))
        ]
        marks.append(Line(ends, ends, colour="#808080", width=0.8))
        x, y = (Axis(label, low=ends[0], high=ends[1]) for label in ("source", "ours"))
        drawn.append(Panel(marks, x, y, title=title))
    spec = FigureSpec("beside", "", drawn, size=(1.2 + 3.1 * len(drawn), 3.9), legend="below")
    return write_figure(spec, path)


def join_curves(runs: pl.DataFrame, curves: pl.DataFrame) -> pl.DataFrame:
    """Return the evaluations of these runs at the epochs at which all complete runs were evaluated.

    A run that diverged keeps its last evaluation: a mean over the remaining runs would flatter.
    """
    named = runs.select("id", "protocol", "method", "workers", "seed").join(curves, on="id")
    named = named.with_columns(pl.col("epochs").round(1))
    named = named.with_columns(end=pl.col("epochs").max().over("id"))
    whole = named.filter(pl.col("end") == pl.col("end").max().over("protocol"))
    seen_by = whole.group_by("protocol", "epochs").agg(runs=pl.col("id").n_unique())
    epochs = seen_by.filter(pl.col("runs") == pl.col("runs").max().over("protocol")).drop("runs")
    last = named.filter(pl.col("epochs") == pl.col("end")).drop("epochs")
    later = last.join(epochs, on="protocol").filter(pl.col("epochs") > pl.col("end"))
    seen = named.join(epochs, on=["protocol", "epochs"], how="semi")
    return pl.concat([seen, later.select(seen.columns)])


def make_line(rows: pl.DataFrame, x: str, fact: str, label: str, colour: int, bars: bool = False) -> Line:
    """Return the mean of a fact over the seeds, with its range as a band or as error bars."""
    known = rows.filter(pl.col(fact).is_finite())
    value = pl.col(fact)
    found = known.group_by(x).agg(mean=value.mean(), low=value.min(), high=value.max()).sort(x)
    if bars:
        error = (found["mean"] - found["low"], found["high"] - found["mean"])
        shift = 1 + 0.03 * (colour - 3)  # so that bars do not hide each other
        return Line(found[x] * shift, found["mean"], label, colour, marker="circle", error=error)
    return Line(found[x], found["mean"], label, colour, band=(found["low"], found["high"]))
