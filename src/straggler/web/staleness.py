"""How old gradients are, how far the model had moved, and how large weights and gradients get."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from straggler.analysis.tables import format_number
from straggler.web.figure import DASHES, Figure, colour, numbers

BINS = 60
POINTS = 300


def staleness(arrivals: Mapping[str, pl.DataFrame]) -> Figure:
    """The share of gradients at each staleness."""
    used = {name: arrived(table)["staleness"] for name, table in arrivals.items()}
    largest = max((int(taus.max() or 0) for taus in used.values()), default=0)  # type: ignore[arg-type]
    width = -(-(largest + 1) // BINS)
    traces = []
    for position, (name, taus) in enumerate(used.items()):
        shares = (taus // width * width).value_counts(normalize=True).sort("staleness")
        traces.append(
            {
                "type": "bar",
                "name": f"{name} (mean {format_number(taus.mean())})",
                "x": numbers(shares["staleness"]),
                "y": numbers(100 * shares["proportion"]),
                "marker": {"color": colour(position)},
                "hovertemplate": "staleness %{x}: %{y:.1f} %<extra></extra>",
            }
        )
    unit = "staleness (updates)" if width == 1 else f"staleness (updates, in bins of {width})"
    note = "The server's updates between reading the model and applying the gradient; 0 is fresh."
    layout = axes(unit, "share of gradients (%)")
    layout["xaxis"]["range"] = [-0.6 * width, max(largest, 3) + 0.6 * width]
    return Figure("staleness", "Staleness", note, traces, layout)


def gaps(arrivals: Mapping[str, pl.DataFrame]) -> Figure:
    """The distribution of the distance the model moved while a gradient was computed."""
    known = {name: arrived(table)["gap"] for name, table in arrivals.items()}
    found = {name: gap.filter(gap.is_finite()) for name, gap in known.items()}
    top = max((float(gap.quantile(0.995) or 0.0) for gap in found.values()), default=0.0) or 1.0
    edges = np.linspace(0.0, top, BINS + 1)
    traces = []
    for position, (name, gap) in enumerate(found.items()):
        counts, _ = np.histogram(gap.to_numpy(), edges)
        style = {"color": colour(position), "dash": DASHES[position % len(DASHES)], "shape": "hvh"}
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": numbers((edges[1:] + edges[:-1]) / 2),
                "y": numbers(100 * counts / max(1, len(gap))),
                "line": style,
                "hovertemplate": "gap %{x:.3g}: %{y:.1f} %<extra></extra>",
            }
        )
    note = "How far (root mean square) the model moved while the gradient was computed."
    return Figure("gaps", "Gap", note, traces, axes("gap (RMSE of the weights)", "share of gradients (%)"))


def over_time(arrivals: Mapping[str, pl.DataFrame], clock: str) -> Figure:
    """Mean staleness as the run went on."""
    traces = [
        line(name, position, binned(arrived(table), "staleness"))
        for position, (name, table) in enumerate(arrivals.items())
    ]
    note = "The mean over the arrivals of each moment."
    return Figure("staleness-time", "Staleness over time", note, traces, axes(clock, "staleness (updates)"))


def norms(arrivals: Mapping[str, pl.DataFrame], clock: str) -> Figure:
    """The length of the weights and of the gradients."""
    views: dict[str, Any] = {}
    for label, column in (("gradients", "gradient_norm"), ("weights", "weight_norm")):
        traces = [
            line(name, position, binned(arrived(table), column))
            for position, (name, table) in enumerate(arrivals.items())
        ]
        views[label] = {"data": traces, "layout": axes(clock, f"norm of the {label}")}
    note = "Euclidean norms. Those that grow without end are the first sign of divergence."
    return Figure.switched("norms", "Norms of gradients and weights", note, views)


def workers(arrivals: pl.DataFrame) -> Figure:
    """How many gradients each worker delivered, and how stale they were."""
    table = (
        arrived(arrivals).group_by("worker").agg(jobs=pl.len(), tau=pl.col("staleness").mean()).sort("worker")
    )
    trace = {
        "type": "bar",
        "name": "gradients",
        "x": numbers(table["worker"]),
        "y": numbers(table["jobs"]),
        "marker": {"color": colour(0)},
        "customdata": numbers(table["tau"]),
        "hovertemplate": "worker %{x}: %{y} gradients, mean staleness %{customdata:.2f}<extra></extra>",
    }
    note = "A slow worker delivers fewer gradients, and staler ones: the others moved the model meanwhile."
    layout = axes("worker", "gradients")
    layout["xaxis"] |= {"dtick": 1} if len(table) <= 30 else {}
    return Figure("workers", "Gradients of each worker", note, [trace], layout)


def arrived(arrivals: pl.DataFrame) -> pl.DataFrame:
    return arrivals.filter(pl.col("decision") != "cancelled")


def binned(arrivals: pl.DataFrame, column: str) -> pl.DataFrame:
    """The mean of a column over at most POINTS equal numbers of arrivals."""
    table = arrivals.select("time", value=column).drop_nulls().with_row_index()
    width = max(1, -(-len(table) // POINTS))
    return (
        table.group_by(pl.col("index") // width, maintain_order=True)
        .agg(pl.col("time").mean(), pl.col("value").mean())
        .select("time", "value")
    )


def line(name: str, position: int, points: pl.DataFrame) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": numbers(points["time"]),
        "y": numbers(points["value"]),
        "line": {"color": colour(position), "dash": DASHES[position % len(DASHES)]},
    }


def axes(x: str, y: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
