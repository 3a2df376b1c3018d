"""Worker timelines: when each worker computes, is delayed, waits, or has a job dropped or cancelled."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from straggler.analysis.figures.curves import average_arrivals, format_time
from straggler.analysis.figures.description import (
    GREY,
    Axis,
    Colour,
    FigureSpec,
    Line,
    Mark,
    Panel,
    Scatter,
    Spans,
    Text,
)
from straggler.analysis.labels import RunData

JOB_COLUMNS = ("worker", "launch", "started", "computed", "time", "staleness", "decision", "idle_from")
SHORTEST_WAIT = 1e-9  # seconds
MOST_BARS, MOST_LIVE_BARS = 1500, 300  # in one view of a page
MOST_LABELS = 120  # jobs whose staleness is written at their end
SHORTEST_LABELLED = 40  # a bar that is shorter than 1/40 of the figure has no room for a number
JOBS_PER_WORKER = 30  # on paper: more bars cannot be distinguished
MOST_WORKER_LINES = 12
# States have colours of their own, which no run and no method has.
COMPUTING, DELAYED, DROPPED, CANCELLED = "#5b6b82", "#d9b44a", "#8e5ea2", "#b0563c"
NOTE = (
    "A bar is one job. Dropped: computed but not used. Cancelled: stopped before it ended. "
    "Drag to zoom, double-click to reset."
)
TITLE = "Timeline of the workers"
LABEL_NOTE = "The number at a bar's end is the staleness of its gradient, where there is room for it."


def split_jobs(arrivals: pl.DataFrame) -> pl.DataFrame:
    """Return a row per job: when it started, when its delay began, when it ended, and the wait before it.

    A record does not hold the start of a cancelled job: it is the time when its worker was free and its model
    existed. The compute time and delay of cancelled and dropped jobs are not separated.
    """
    model_exists = pl.col("started").min().over("version").fill_null(0.0)
    before = pl.col("time").shift(1).over("worker").fill_null(0.0)
    started = pl.min_horizontal(pl.coalesce("started", pl.max_horizontal(before, model_exists)), "time")
    timed = arrivals.select(
        "worker",
        "time",
        "staleness",
        "delay",
        decision=pl.col("decision").cast(pl.String),
        launch=pl.int_range(pl.len()).over("worker"),
        started=started,
        before=before,
    )
    delayed = pl.max_horizontal("started", pl.col("time") - pl.col("delay").fill_null(0.0))
    waited = pl.col("started") - pl.col("before") > SHORTEST_WAIT
    return timed.with_columns(
        computed=pl.when(is_used()).then(delayed).otherwise("time"),
        idle_from=pl.when(waited).then("before").otherwise(None),
    ).select(JOB_COLUMNS)


def is_used() -> pl.Expr:
    return pl.col("decision").is_in(["applied", "held"])


def build_timeline_panel(
    jobs: pl.DataFrame, workers: int, clock: str, title: str = "", end: float | None = None
) -> Panel:
    """Return a panel with a row per worker and a colour for each kind of time."""
    delayed = jobs.filter((pl.col("time") > pl.col("computed")) & is_used())
    kinds = [
        make_spans("computing", jobs.filter(is_used()), "started", "computed", COMPUTING),
        make_spans("delayed", delayed, "computed", "time", DELAYED),
        make_spans("waiting", jobs.filter(pl.col("idle_from").is_not_null()), "idle_from", "started", GREY),
        make_spans("dropped", jobs.filter(decision="dropped"), "started", "time", DROPPED, "x"),
        make_spans("cancelled", jobs.filter(decision="cancelled"), "started", "time", CANCELLED, "/"),
    ]
    marks: list[Mark] = [spans for spans in kinds if len(spans.rows)]
    if len(labelled := select_labelled(jobs)):
        marks.append(label_staleness(labelled))
    ticks = range(0, workers, 1 if workers <= 30 else -(-workers // 8))
    y = Axis("worker", low=-0.5, high=workers - 0.5, ticks=ticks, reverse=True, grid=False)
    return Panel(marks, Axis(clock, low=None if end is None else 0.0, high=end, grid=False), y, title=title)


def select_labelled(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs whose bars have room for their staleness; none if there are too many jobs."""
    length, whole = pl.col("time") - pl.col("started"), pl.col("time").max() - pl.col("started").min()
    few = jobs if len(jobs) <= MOST_LABELS else jobs.clear()
    return few.filter(pl.col("decision") != "cancelled", length > whole / SHORTEST_LABELLED)


def make_spans(
    label: str, jobs: pl.DataFrame, start: str, end: str, colour: Colour, hatch: Any = ""
) -> Spans:
    hover = [f"<br>staleness {staleness}" for staleness in jobs["staleness"]] if label != "waiting" else ()
    opacity = 0.45 if label == "waiting" else 1.0
    return Spans(jobs["worker"], jobs[start], jobs[end], label, colour, hatch, opacity, hover)


def label_staleness(jobs: pl.DataFrame) -> Text:
    """Return the staleness of each job, dark on the bright colour of a delay."""
    colours = ["#111111" if late else "#ffffff" for late in jobs["time"] > jobs["computed"]]
    text = [f"{staleness} " for staleness in jobs["staleness"]]
    return Text(jobs["time"], jobs["worker"], text, colours, "right")


def draw_failures(jobs: pl.DataFrame, events: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """Mark the workers that failed while these jobs ran."""
    if jobs.is_empty():
        return []
    first, last = jobs["started"].min(), jobs["time"].max()
    seen = [event for event in events if first <= event["time"] <= last]
    times, workers = [event["time"] for event in seen], [event["worker"] for event in seen]
    hover = [str(event["what"]) for event in seen]
    return [Scatter(times, workers, "failure", "#000000", "x", 8.0, hover=hover)] if seen else []


def build_timeline_figure(
    run: RunData, events: Sequence[Mapping[str, Any]] = (), live: bool = False, end: float | None = None
) -> FigureSpec:
    """Describe the beginning, the middle and the end of a run, or the latest jobs of a live run.

    With `end`, the figure shows the time from 0 to `end` only, so that several runs can be compared.
    """
    jobs, clock = split_jobs(run.jobs), format_time([run])
    workers = int(jobs["worker"].max() or 0) + 1  # type: ignore[arg-type]
    if end is not None:
        return build_first_timeline(jobs, workers, clock, events, end)
    most, total = MOST_LIVE_BARS if live else MOST_BARS, len(jobs)
    starts = {"beginning": 0, "middle": (total - most) // 2, "end": total - most}
    if live or total <= most:
        starts = {"now" if live else "all": max(0, total - most)}
    views = {}
    for label, start in starts.items():
        window = jobs[start : start + most]
        panel = build_timeline_panel(window, workers, clock)
        views[label] = [Panel([*panel.marks, *draw_failures(window, events)], panel.x, panel.y)]
    figure = FigureSpec("timeline", TITLE, note=NOTE, views=views, height=choose_height(workers))
    if any(isinstance(mark, Text) for panels in views.values() for panel in panels for mark in panel.marks):
        figure = figure.with_note(LABEL_NOTE)
    return figure if total <= most else figure.with_note(f"A view has {most:,} jobs of the run.")


def build_first_timeline(
    jobs: pl.DataFrame, workers: int, clock: str, events: Sequence[Mapping[str, Any]], end: float
) -> FigureSpec:
    """Describe the jobs that begin before `end`."""
    seen = jobs.filter(pl.coalesce("idle_from", "started") < end)
    panel = build_timeline_panel(seen, workers, clock, end=end)
    panel = Panel([*panel.marks, *draw_failures(seen, events)], panel.x, panel.y)
    figure = FigureSpec("timeline", TITLE, [panel], NOTE, height=choose_height(workers))
    return figure.with_note(LABEL_NOTE) if any(isinstance(mark, Text) for mark in panel.marks) else figure


def choose_height(workers: int) -> int:
    return 150 + 22 * min(workers, 30)


def choose_common_window(runs: Sequence[RunData]) -> float:
    """Return how many seconds of several runs to show, so that their bars can be compared."""
    every = [split_jobs(run.jobs) for run in runs]
    return min((choose_window(jobs) for jobs in every if len(jobs)), default=1.0)


def build_timelines(runs: Mapping[str, RunData]) -> FigureSpec:
    """Describe the beginning of each run, a row of panels per run on a common time axis."""
    every = {name: split_jobs(run.jobs) for name, run in runs.items()}
    end = choose_common_window(list(runs.values()))
    panels, clock = [], format_time(runs.values())
    counts = [int(run.settings.get("workers", 1)) for run in runs.values()]
    for (name, jobs), workers in zip(every.items(), counts, strict=True):
        last = float(jobs["time"].max() or 0.0)  # type: ignore[arg-type]
        title = f"{name}, the first {end:,.4g} of {last:,.4g} s" if last > end else name
        seen = jobs.filter(pl.coalesce("idle_from", "started") < end)
        panels.append(build_timeline_panel(seen, workers, clock, title, end))
    height = 0.7 + len(every) * (0.9 + 0.16 * min(max(counts, default=1), 40))
    return FigureSpec(
        "timeline", "Timelines of the workers", panels, NOTE, columns=1, size=(9, height), legend="below"
    )


def choose_window(jobs: pl.DataFrame) -> float:
    """Return how many seconds to show on paper: some jobs of every worker, but not too many in all."""
    busy, lengths = jobs.sort("started"), (jobs["time"] - jobs["started"]).to_numpy()
    most = JOBS_PER_WORKER * busy["worker"].n_unique()
    last = max(busy["time"]) if len(busy) <= most else busy["started"][most]
    return float(min(last, max(3 * lengths.max(), 10 * lengths.mean())))


def build_worker_curves(runs: Mapping[str, RunData]) -> FigureSpec:
    """Describe loss and batches of each worker, and the norm of the weights, over time; a row per run."""
    panels, clock = [], Axis(format_time(runs.values()))
    for name, run in runs.items():
        arrived = run.jobs.filter(pl.col("decision") != "cancelled")
        workers, last = int(run.settings.get("workers", 1)), run.jobs["time"].max()
        losses, batches = [], []
        for colour, worker in enumerate(range(0, workers, -(-workers // MOST_WORKER_LINES))):
            mine = arrived.filter(worker=worker)
            loss = average_arrivals(mine, "time", "loss")
            losses.append(Line(loss["x"], loss["y"], "", colour, width=1.0, group=f"worker {worker}"))
            times, counts = [0.0, *mine["time"], last], [*range(len(mine) + 1), len(mine)]
            each = -(-len(times) // 1_000)
            batches.append(Line(times[::each], counts[::each], f"worker {worker}", colour, width=1.4))
        norm = average_arrivals(arrived, "time", "weight_norm")
        panels += [
            Panel(losses, clock, Axis("loss of a batch", "log"), title=f"{name}: loss"),
            Panel(
                [Line(norm["x"], norm["y"], colour=6, dash="solid")], clock, Axis("L2 norm"), title="weights"
            ),
            Panel(batches, clock, Axis("batches"), title="completed batches"),
        ]
    size = (11, 3.2 * len(runs) + 0.4)
    return FigureSpec("workers", "Workers", panels, columns=3, size=size, legend="below")
