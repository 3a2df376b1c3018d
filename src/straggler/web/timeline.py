"""Who does what when: the workers' jobs as bars."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from straggler.analysis.timeline import jobs as jobs_of
from straggler.web.figure import BLUE, GREY, ORANGE, PURPLE, RED, Figure, numbers

MOST_BARS = 1500  # in one view
MOST_LIVE_BARS = 300  # in one that is drawn again and again
MOST_LABELS = 120  # jobs whose staleness is written beside them
NOTE = (
    "A bar is one job. Grey is waiting; the number at a bar's end is the staleness of its gradient: how many "
    "updates the server made since the worker read the model. Drag to zoom, double-click to see all again."
)


def timeline(
    arrivals: pl.DataFrame,
    clock: str,
    events: Sequence[dict[str, Any]] = (),
    live: bool = False,
) -> Figure:
    """The workers at the beginning, in the middle and at the end of a run; while it goes on, now."""
    jobs = jobs_of(arrivals)
    most, total = MOST_LIVE_BARS if live else MOST_BARS, len(jobs)
    starts = {"the beginning": 0, "the middle": (total - most) // 2, "the end": total - most}
    if live or total <= most:
        starts = {"now" if live else "all": max(0, total - most)}
    workers = int(jobs["worker"].max() or 0) + 1  # type: ignore[arg-type]
    views = {}
    for label, start in starts.items():
        window = jobs[start : start + most]
        views[label] = {"data": timeline_data(window, events), "layout": timeline_layout(workers, clock)}
    shown = "" if total <= most else f" A view has {most:,} jobs of the run."
    height = 150 + 22 * min(workers, 30)
    return Figure.switched("timeline", "Who does what when", NOTE + shown, views, height=height)


def timeline_layout(workers: int, clock: str) -> dict[str, Any]:
    ticks = {"dtick": 1} if workers <= 30 else {}
    return {
        "barmode": "overlay",
        "bargap": 0.2,
        "xaxis": {"title": {"text": clock}},
        "yaxis": {"title": {"text": "worker"}, "autorange": "reversed", "showgrid": False, **ticks},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
    }


def timeline_data(jobs: pl.DataFrame, events: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Bars by kind, in the order of the legend; kinds that do not occur are left out."""
    used = pl.col("decision").is_in(["applied", "held"])
    delayed = jobs.filter((pl.col("time") > pl.col("computed")) & used)
    kinds = [
        bars("computes", jobs.filter(used), "started", "computed", BLUE),
        bars("is delayed", delayed, "computed", "time", ORANGE),
        bars("waits", jobs.filter(pl.col("idle_from").is_not_null()), "idle_from", "started", GREY),
        bars("dropped: finished, not used", of(jobs, "dropped"), "started", "time", RED, "x"),
        bars("cancelled: stopped before it ended", of(jobs, "cancelled"), "started", "time", PURPLE, "/"),
    ]
    traces = [kind for kind in kinds if kind["x"]]
    if len(jobs) <= MOST_LABELS:
        length, span = pl.col("time") - pl.col("started"), pl.col("time").max() - pl.col("started").min()
        traces.append(staleness_labels(jobs.filter(pl.col("decision") != "cancelled", length > span / 40)))
    return traces + failures(jobs, events)


def of(jobs: pl.DataFrame, decision: str) -> pl.DataFrame:
    return jobs.filter(pl.col("decision") == decision)


def bars(
    name: str, jobs: pl.DataFrame, start: str, end: str, colour: str, pattern: str = ""
) -> dict[str, Any]:
    marker: dict[str, Any] = {"color": colour, "line": {"width": 1, "color": "paper"}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "size": 6, "fgcolor": "paper", "fillmode": "overlay"}
    said = [] if name == "waits" else numbers(jobs["staleness"])
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": numbers(jobs["worker"]),
        "base": numbers(jobs[start]),
        "x": numbers(jobs[end] - jobs[start]),
        "customdata": said,
        "marker": marker,
        "opacity": 0.45 if name == "waits" else 1.0,
        "hovertemplate": f"worker %{{y}} {name}<br>from %{{base:.4g}} for %{{x:.4g}} s"
        + ("<br>staleness %{customdata}" if said else "")
        + "<extra></extra>",
    }


def staleness_labels(jobs: pl.DataFrame) -> dict[str, Any]:
    delayed = jobs["time"] > jobs["computed"]  # they end in orange
    return {
        "type": "scatter",
        "mode": "text",
        "x": numbers(jobs["time"]),
        "y": numbers(jobs["worker"]),
        "text": [f"{tau} " for tau in jobs["staleness"]],
        "textposition": "middle left",
        "textfont": {"size": 10, "color": ["#111111" if late else "#ffffff" for late in delayed]},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def failures(jobs: pl.DataFrame, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Workers that died or hung while these jobs ran."""
    if jobs.is_empty():
        return []
    first, last = jobs["started"].min(), jobs["time"].max()
    seen = [event for event in events if first <= event["time"] <= last]
    if not seen:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "failure",
            "x": numbers(event["time"] for event in seen),
            "y": numbers(event["worker"] for event in seen),
            "text": [str(event["what"]) for event in seen],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"symbol": "x", "size": 12, "color": "#000000"},
        }
    ]
