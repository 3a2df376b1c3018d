"""What each worker did: staleness, timelines, losses and speeds."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from straggler.analysis.curves import Groups, thinned, time_label
from straggler.analysis.intervals import error_bars, mean_interval
from straggler.analysis.style import COLOURS, drawn, line, panels, place_legend, plain_log
from straggler.analysis.timeline import jobs
from straggler.record import Record

BARS = 30  # jobs per worker on a timeline: more could not be told apart
WIDEST = 40  # bins of a histogram
HATCHES = ("", "////")  # of bars, where colours are used again
LINES = 12  # workers with a line of their own
KINDS = {
    "applied": ("computing, used", COLOURS[0]),
    "delayed": ("delayed", COLOURS[4]),
    "dropped": ("computed for nothing: dropped", COLOURS[3]),
    "cancelled": ("cancelled", COLOURS[1]),
    "waiting": ("waiting", "0.85"),
}


def staleness_figure(groups: Groups, path: Path) -> Path:
    """The share of arrivals at each staleness, by setting."""
    with drawn(path, 6.5, 3.6) as figure:
        axes = panels(figure, 1, 1)[0]
        draw_staleness(axes, groups)
        place_legend(figure, axes)
    return path


def draw_staleness(axes: Axes, groups: Groups) -> None:
    """Shares side by side; of several seeds the mean, and its 95 % interval."""
    found = {name: [staleness_of(record) for record in group] for name, group in groups.items()}
    most = max((int(ages.max()) for seeds in found.values() for ages in seeds if len(ages)), default=0)
    width = -(-(most + 1) // WIDEST)
    edges = np.arange(0, most + width + 1, width)
    bar = 0.84 * width / len(found)
    for position, (name, seeds) in enumerate(found.items()):
        shares = [100 * np.histogram(ages, edges)[0] / max(1, len(ages)) for ages in seeds]
        spread = [mean_interval(at) for at in zip(*shares, strict=True)]
        every = np.concatenate(seeds)
        axes.bar(
            edges[:-1] + (position - (len(found) - 1) / 2) * bar + (width - 1) / 2,
            [one.mean for one in spread],
            bar,
            yerr=error_bars(spread, 100.0) if len(seeds) > 1 else None,
            error_kw={"elinewidth": 0.8, "ecolor": "0.4"},
            color=line(position)["color"],
            hatch=HATCHES[position // len(COLOURS) % len(HATCHES)],
            edgecolor="white",
            linewidth=0,
            label=f"{name} (mean {every.mean():.2f})" if len(every) else name,
        )
    axes.set(xlabel="staleness (updates)", ylabel="share of gradients (%)", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def staleness_of(record: Record) -> np.ndarray[Any, Any]:
    return record.arrivals.filter(pl.col("decision") != "cancelled")["staleness"].to_numpy()


def spans(arrivals: pl.DataFrame) -> pl.DataFrame:
    """Every job, its delay, and the wait before it, as (worker, begin, end, kind)."""
    every = jobs(arrivals)
    delayed = every.filter(pl.col("time") > pl.col("computed"))
    waited = every.filter(pl.col("idle_from").is_not_null())
    kind = pl.when(pl.col("decision") == "held").then(pl.lit("applied")).otherwise("decision")
    parts = (
        every.select("worker", begin="started", end="computed", kind=kind),
        delayed.select("worker", begin="computed", end="time", kind=pl.lit("delayed")),
        waited.select("worker", begin="idle_from", end="started", kind=pl.lit("waiting")),
    )
    return pl.concat(parts).sort("begin", "worker")


def timeline_figure(records: Mapping[str, Record], path: Path) -> Path:
    """Who computes, waits or is cancelled when: the beginning of each run."""
    every = {name: spans(record.jobs) for name, record in records.items()}
    ends = [window(table) for table in every.values() if len(table)]
    end = min(ends, default=1.0)
    counts = {name: int(record.settings["workers"]) for name, record in records.items()}
    most = max(counts.values(), default=1)
    with drawn(path, 9, 0.7 + len(every) * (0.9 + 0.16 * min(most, 40))) as figure:
        rows = panels(figure, len(every), 1, sharex=True)
        for axes, (name, table) in zip(rows, every.items(), strict=True):
            draw_spans(axes, table.filter(pl.col("begin") < end), end, counts[name])
            axes.set_title(f"{name}{beginning(table, end)}", fontsize=9, loc="left")
        rows[-1].set_xlabel(time_label(records.values()))
        figure.legend(handles=legend_of(every.values()), loc="outside lower center", ncols=len(KINDS))
    return path


def beginning(table: pl.DataFrame, end: float) -> str:
    """Which part of a run is seen, unless it is the whole."""
    whole = float(table["end"].max() or 0.0)  # type: ignore[arg-type]
    return f", the first {end:,.4g} of {whole:,.4g} s" if whole > end else ""


def legend_of(tables: Iterable[pl.DataFrame]) -> list[Patch]:
    """What the colours of these spans mean."""
    seen = {kind for table in tables for kind in table["kind"].unique()}
    return [Patch(label=KINDS[kind][0], **bar_style(kind)) for kind in KINDS if kind in seen]


def bar_style(kind: str) -> dict[str, Any]:
    hatched = {"hatch": "////"} if kind == "cancelled" else {}
    return {"facecolor": KINDS[kind][1], "edgecolor": "white", "linewidth": 0.4, **hatched}


def window(table: pl.DataFrame) -> float:
    """How far to look so that there are not too many bars."""
    busy = table.filter(pl.col("kind") != "waiting").sort("begin")
    most = BARS * busy["worker"].n_unique()
    return float(busy["end"].max() if len(busy) <= most else busy["begin"][most])  # type: ignore[arg-type]


def draw_spans(axes: Axes, table: pl.DataFrame, end: float, workers: int) -> None:
    """A row for each worker; it is empty if none of its jobs came to an end."""
    for (worker, kind), group in table.group_by(["worker", "kind"], maintain_order=True):
        bars = list(zip(group["begin"], group["end"] - group["begin"], strict=True))
        axes.broken_barh(bars, (int(worker) - 0.4, 0.8), **bar_style(str(kind)))
    axes.set(ylabel="worker", xlim=(0, end), ylim=(workers - 0.5, -0.5))
    axes.set_yticks(range(0, workers, 1 if workers <= 12 else -(-workers // 8)))
    axes.grid(visible=False)


def workers_figure(records: Mapping[str, Record], path: Path) -> Path:
    """Loss of every worker, norm of the weights, and batches done, over time (EPFL, figures 3 to 5)."""
    with drawn(path, 11, 3.2 * len(records) + 0.4) as figure:
        rows = panels(figure, len(records), 3)
        for row, (name, record) in enumerate(records.items()):
            loss, norm, batches = rows[3 * row : 3 * row + 3]
            draw_workers(loss, batches, record.arrivals, int(record.settings["workers"]))
            table = thinned(
                record.arrivals.filter(pl.col("decision") != "cancelled"), "time", ["weight_norm"]
            )
            norm.plot(table["time"], table["weight_norm"], color=COLOURS[6], linewidth=1.4)
            loss.set(ylabel="loss of a batch", title=f"{name}: loss")
            plain_log(loss)
            norm.set(ylabel="L2 norm", title="weights")
            batches.set(ylabel="batches", title="batches done")
            for axes in (loss, norm, batches):
                axes.set_xlabel(time_label(records.values()))
        figure.legend(*rows[2].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return path


def draw_workers(loss: Axes, batches: Axes, arrivals: pl.DataFrame, workers: int) -> None:
    """A line per worker; of many, those evenly spread by number. One that never delivers stays at 0."""
    last = arrivals["time"].max()
    for position, worker in enumerate(range(0, workers, -(-workers // LINES))):
        mine = arrivals.filter((pl.col("worker") == worker) & (pl.col("decision") != "cancelled"))
        seen = thinned(mine.filter(pl.col("loss").is_finite()), "time", ["loss"])
        loss.plot(seen["time"], seen["loss"], linewidth=1, **line(position))
        times, done = [0.0, *mine["time"], last], [*range(len(mine) + 1), len(mine)]
        each = -(-len(times) // (10 * LINES * LINES))
        label = f"worker {worker}"
        batches.plot(times[::each], done[::each], label=label, linewidth=1.4, **line(position))
