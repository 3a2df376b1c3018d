"""Figures of studies, drawn from their summaries alone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from straggler.analysis.style import COLOURS, drawn, line, panels

# A method has one colour everywhere.
ORDER = ("dana", "dana-ga", "dc-asgd", "ga", "nag-asgd", "sa", "ssgd", "dana-sa")
MARKERS = ("o", "^", "s", "x")


def methods_in(summaries: pl.DataFrame) -> list[tuple[int, str]]:
    """The methods of several workers that there are, each with its place in the palette."""
    found = set(summaries["row"])
    return [(place, method) for place, method in enumerate(ORDER) if method in found]


def errors_over_workers(summaries: pl.DataFrame, title: str, path: Path) -> Path:
    """Test and training error against N, a column per framework: mean and range over seeds, NC included."""
    frameworks = summaries["protocol"].unique().sort().to_list()
    with drawn(path, 2.2 + 3.4 * len(frameworks), 6.4) as figure:
        every = panels(figure, 2, len(frameworks), sharex="col", sharey=True)
        cells = [(which, framework) for which in ("test", "train") for framework in frameworks]
        for axes, (which, framework) in zip(every, cells, strict=True):
            mine = summaries.filter(protocol=framework).with_columns(
                error=100 - pl.col(f"{which}_accuracy"), workers=numbers_of_workers()
            )
            draw_methods(axes, mine)
            axes.set_title(framework if which == "test" else "", fontsize=10)
        for axes, which in zip(every[:: len(frameworks)], ("test", "training"), strict=True):
            axes.set(ylabel=f"{which} error (%)", ylim=(0, 95))
        for axes in every[len(frameworks) :]:
            axes.set_xlabel("workers")
        figure.suptitle(f"{title}\nmean and range over seeds (90 %: nothing learnt)", fontsize=10)
        legend_of_all(figure, every)
    return path


def legend_of_all(figure: Figure, every: Sequence[Axes]) -> None:
    """What is in any of the panels, once, beside them."""
    shown: dict[str, Any] = {}
    for axes in every:
        handles, names = axes.get_legend_handles_labels()
        shown |= dict(zip(names, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside right center")


def numbers_of_workers() -> pl.Expr:
    """Of `N = 16`."""
    return pl.col("column").str.split(" ").list.last().cast(pl.Int64)


def draw_methods(axes: Axes, runs: pl.DataFrame) -> None:
    """A line per method over the number of workers, and where one worker is."""
    for place, method in methods_in(runs):
        points = spans(runs.filter(row=method), "workers", "error")
        bars = points.select(below=pl.col("mean") - pl.col("low"), above=pl.col("high") - pl.col("mean"))
        shift = 1 + 0.03 * (place - 3)  # so that bars do not hide each other
        axes.errorbar(
            points["workers"] * shift,
            points["mean"],
            yerr=bars.to_numpy().T,
            label=method,
            marker="o",
            markersize=4,
            capsize=2,
            **line(place),
        )
    alone = runs.filter(row="sgd")["error"]
    if len(alone):
        axes.axhline(float(alone.to_numpy().mean()), color="0.2", linewidth=0.7, label="one worker")
    sizes = sorted(set(runs["workers"]) - {1})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])


def spans(rows: pl.DataFrame, key: str, fact: str) -> pl.DataFrame:
    """Mean, least and most of a fact over the seeds, by key."""
    known = rows.filter(pl.col(fact).is_finite())
    found = known.group_by(key).agg(mean=pl.col(fact).mean(), low=pl.col(fact).min(), high=pl.col(fact).max())
    return found.sort(key)


def draw_span(axes: Axes, points: pl.DataFrame, label: str, place: int) -> None:
    axes.plot(points["epochs"], points["mean"], label=label, **line(place))
    axes.fill_between(
        points["epochs"], points["low"], points["high"], color=COLOURS[place % len(COLOURS)], alpha=0.15
    )


def with_curves(summaries: pl.DataFrame, curves: pl.DataFrame) -> pl.DataFrame:
    """The evaluations of these runs at the epochs that all of those have that went to the end.

    A run that diverged has its last one from there on: a mean over those that are left would flatter.
    """
    named = summaries.select("id", "protocol", "row", "column", "seed").join(curves, on="id")
    named = named.with_columns(pl.col("epochs").round(1))
    ends = named.group_by("id").agg(end=pl.col("epochs").max())
    named = named.join(ends, on="id")
    whole = named.filter(pl.col("end") == pl.col("end").max().over("protocol"))
    seen_by = whole.group_by("protocol", "epochs").agg(runs=pl.col("id").n_unique())
    epochs = seen_by.filter(pl.col("runs") == pl.col("runs").max().over("protocol")).drop("runs")
    last = named.filter(pl.col("epochs") == pl.col("end")).drop("epochs")
    later = last.join(epochs, on="protocol").filter(pl.col("epochs") > pl.col("end"))
    seen = named.join(epochs, on=["protocol", "epochs"], how="semi")
    return pl.concat([seen, later.select(seen.columns)])


def over_training(
    curves: pl.DataFrame, summaries: pl.DataFrame, fact: str, label: str, title: str, path: Path
) -> Path:
    """A fact of the curve over the epochs, a panel per framework, a line per method; mean and range."""
    named = with_curves(summaries, curves)
    frameworks = named["protocol"].unique().sort().to_list()
    with drawn(path, 2.2 + 3.4 * len(frameworks), 3.8) as figure:
        every = panels(figure, 1, len(frameworks), sharex=True, sharey=True)
        for axes, framework in zip(every, frameworks, strict=True):
            mine = named.filter(protocol=framework)
            for place, method in methods_in(mine):
                draw_span(axes, spans(mine.filter(row=method), "epochs", fact), method, place)
            axes.set_title(framework, fontsize=10)
            axes.set_xlabel("epochs")
        every[0].set_ylabel(label)
        if fact == "gap":
            every[0].set_yscale("log")
        figure.suptitle(f"{title}; mean and range over seeds", fontsize=10)
        legend_of_all(figure, every)
    return path


def delay_and_gap(
    curves: pl.DataFrame, summaries: pl.DataFrame, methods: Sequence[str], title: str, path: Path
) -> Path:
    """Staleness and gap over training, a row per method, a line per number of workers; equally scaled."""
    named = with_curves(summaries, curves).with_columns(workers=numbers_of_workers())
    facts = {"staleness": "staleness (updates)", "gap": "gap (RMSE)"}
    with drawn(path, 8.4, 2.9 * len(methods)) as figure:
        every = panels(figure, len(methods), len(facts), sharex=True, sharey="col")
        cells = [(method, fact) for method in methods for fact in facts]
        for axes, (method, fact) in zip(every, cells, strict=True):
            mine = named.filter(row=method)
            for place, size in enumerate(sorted(set(mine["workers"]))):
                draw_span(axes, spans(mine.filter(workers=size), "epochs", fact), f"N = {size}", place)
            axes.set(title=method, ylabel=facts[fact])
        for axes in every[-len(facts) :]:
            axes.set_xlabel("epochs")
        figure.suptitle(f"{title}; mean and range over seeds", fontsize=10)
        figure.legend(*every[0].get_legend_handles_labels(), loc="outside right center")
    return path


def rate_momentum_map(
    ours: Mapping[tuple[float, float], float],
    source: Mapping[tuple[float, float], float],
    titles: tuple[str, str],
    path: Path,
) -> Path:
    """Accuracy over learning rate (columns) and momentum (rows), ours and the source's; empty where lost."""
    rates = sorted({rate for _, rate in (*ours, *source)})
    momenta = sorted({momentum for momentum, _ in (*ours, *source)}, reverse=True)
    with drawn(path, 11, 4.8) as figure:
        every = panels(figure, 1, 2, sharey=True)
        for axes, cells, title in zip(every, (ours, source), titles, strict=True):
            grid = np.array([[cells.get((m, rate), math.nan) for rate in rates] for m in momenta])
            image = axes.imshow(grid, cmap="cividis", vmin=10, vmax=100, aspect="auto")
            write_numbers(axes, grid)
            axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
            axes.set_yticks(range(len(momenta)), [f"{momentum:g}" for momentum in momenta])
            axes.set(xlabel="learning rate", title=title)
            axes.grid(visible=False)
        every[0].set_ylabel("momentum")
        figure.colorbar(image, ax=every, label="test accuracy (%)")
    return path


def write_numbers(axes: Axes, grid: np.ndarray[Any, Any]) -> None:
    for (row, column), value in np.ndenumerate(grid):
        if math.isfinite(value):
            colour = "black" if value > 60 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)


def densities(cvs: Mapping[str, float], factor: float, path: Path) -> Path:
    """The gamma law of batch times, with what takes over `factor` times the mean shaded."""
    from scipy import stats  # which takes long to import

    with drawn(path, 8.4, 3.2) as figure:
        every = panels(figure, 1, len(cvs))
        x = np.linspace(1e-3, 3, 600)
        for axes, (name, cv) in zip(every, cvs.items(), strict=True):
            law = stats.gamma(1 / cv**2, scale=cv**2)
            axes.plot(x, law.pdf(x), color=COLOURS[0])
            axes.fill_between(x, law.pdf(x), where=x > factor, color=COLOURS[1], alpha=0.7)
            share = f"P(> {factor:g} × mean) = {100 * law.sf(factor):.1f} %"
            axes.set(xlabel="batch time ÷ mean", title=f"{name}: {share}")
        every[0].set_ylabel("density")
    return path


def courses(named: Mapping[str, pl.DataFrame], path: Path) -> Path:
    """A row per run: loss and batches so far by worker, and the weight norm, over time."""
    with drawn(path, 10, 2.6 * len(named)) as figure:
        every = panels(figure, len(named), 3)
        rows = [every[start : start + 3] for start in range(0, len(every), 3)]
        for (loss, norm, batches), (title, course) in zip(rows, named.items(), strict=True):
            for (worker,), mine in course.sort("time").group_by("worker", maintain_order=True):
                first = worker == 0
                style: dict[str, Any] = {"color": COLOURS[1 if first else 0]}
                style |= {"linewidth": 1.4 if first else 0.5, "zorder": 3 if first else 2}
                style["label"] = {0: "worker 0", 1: "the others"}.get(int(str(worker)))
                loss.plot(mine["time"], mine["loss"], **style)
                batches.plot(mine["time"], mine["batches"], **style)
            norm.plot(course.sort("time")["time"], course.sort("time")["weight_norm"], color=COLOURS[2])
            loss.set(ylabel="batch loss", xlabel="virtual time (s)")
            loss.set_title(title, loc="left")
            norm.set(ylabel="norm of the weights", xlabel="virtual time (s)")
            batches.set(ylabel="batches so far", xlabel="virtual time (s)")
            loss.legend(loc="upper right")
    return path


def cell_means(runs: pl.DataFrame) -> pl.DataFrame:
    """A row for each cell of each table: the source's number and the mean of ours over the seeds.

    As in the tables, runs that were lost do not count where others of the cell were not.
    """
    known = runs.filter(pl.col("value").is_not_null())
    cells = known.group_by("table", "protocol", "row", "column", maintain_order=True)
    counting = pl.col("converged") | ~pl.col("converged").any()
    return cells.agg(pl.col("source").first(), pl.col("value").filter(counting).mean())


def beside_source(tables: Sequence[tuple[str, pl.DataFrame]], path: Path) -> Path:
    """Ours against the source's, a point per cell (mean over seeds), a panel per table; equal on the line."""
    protocols = sorted({protocol for _, runs in tables for protocol in runs["protocol"]})
    with drawn(path, 1.2 + 3.1 * len(tables), 3.7) as figure:
        every = panels(figure, 1, len(tables))
        for axes, (title, runs) in zip(every, tables, strict=True):
            means = cell_means(runs.filter(pl.col("source").is_not_null()))
            for place, protocol in enumerate(protocols):
                mine = means.filter(protocol=protocol)
                style: dict[str, Any] = {
                    "color": COLOURS[place % len(COLOURS)],
                    "marker": MARKERS[place % len(MARKERS)],
                    "alpha": 0.75,
                }
                axes.scatter(mine["source"], mine["value"], label=protocol, s=18, **style)
            ends = [*means["source"], *means["value"]] or [0.0, 100.0]
            low, high = min(ends) - 2, max(ends) + 2
            axes.plot([low, high], [low, high], color="0.5", linewidth=0.8)
            axes.set(xlabel="source: test accuracy (%)", title=title, xlim=(low, high), ylim=(low, high))
        every[0].set_ylabel("ours: test accuracy (%)")
        figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(protocols))
    return path
