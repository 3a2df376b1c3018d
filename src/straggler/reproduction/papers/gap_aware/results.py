"""Tables and figures of the Gap-Aware study. Figure 8 (ImageNet) is not run."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

from straggler.analysis.figures.description import Axis, FigureSpec, Heatmap, HLine, Line, Mark, Panel
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.figures.throughput import build_speedup_figure
from straggler.analysis.study_figures import average_cells, join_curves, make_line
from straggler.analysis.tables import format_markdown_table
from straggler.sweeps.summaries import read_series

ORDER = ("dana", "dana-ga", "dc-asgd", "ga", "nag-asgd", "sa", "ssgd", "dana-sa", "multi-asgd")  # colours
RANGE = "mean and range over seeds"
FACTS = {"staleness": "staleness (updates)", "gap": "gap (RMSE)", "penalty": "penalty"}
HALVES = {"penalty": "all", "penalty_first_half": "before the first decay", "penalty_second_half": "after it"}
MIDDLE = 16  # workers of the figures over training
Drawn = tuple[FigureSpec, str]  # with its caption


def draw_figures(runs: pl.DataFrame, results: Path) -> list[tuple[Path, str]]:
    """Draw the figures for which there are runs, and return their files and captions."""
    specs = [*describe_errors(runs), *describe_training(runs, read_series(results, "curves"))]
    map_runs, speeds = runs.filter(table="10"), runs.filter(table="12")
    specs = [describe_densities(), *specs, *([describe_map(map_runs)] if len(map_runs) else [])]
    files = [(write_figure(spec, results / f"{spec.name}.png"), caption) for spec, caption in specs]
    if len(speeds):
        named = speeds.select(pl.col("protocol") + " machines", "method", "seed", "workers", speedup="value")
        named = named.rename({"protocol": "cluster"}).sort("cluster", descending=True, maintain_order=True)
        caption = "Figure 12: gradients per mean batch time, mean and 95 % confidence interval over 20 draws."
        files.append((write_figure(build_speedup_figure(named), results / "speeds.png"), caption))
    return files


def find_methods(runs: pl.DataFrame) -> list[tuple[int, str]]:
    """Return the methods of several workers, each with its place in the palette."""
    return [(place, method) for place, method in enumerate(ORDER) if method in set(runs["method"])]


def describe_errors(runs: pl.DataFrame) -> Iterator[Drawn]:
    """Yield test and training error against the number of workers, runs that did not converge included."""
    equal, unequal = runs.filter(table="2"), runs.filter(table="13")
    alone = equal.filter(pl.col("protocol").is_in(unequal["protocol"].unique().to_list()), method="sgd")
    for name, title, mine, figures in (
        ("errors", "Homogeneous machines", equal, "Figures 1, 2, 5 and 6"),
        ("heterogeneous", "Heterogeneous machines", pl.concat([unequal, alone]), "Figure 13"),
    ):
        networks = mine["protocol"].unique().sort().to_list()
        panels = [
            describe_error(mine.filter(protocol=net), kind) for kind in ("test", "train") for net in networks
        ]
        if not mine.is_empty():
            title = f"{title}; {RANGE} (90 %: nothing learnt)"
            size = (2.2 + 3.4 * len(networks), 6.4)
            spec = FigureSpec(
                name, title, panels, columns=len(networks), size=size, legend="right", share_y=True
            )
            yield spec, f"{figures}: test and training error against the number of workers; {RANGE}."


def describe_error(runs: pl.DataFrame, kind: str) -> Panel:
    runs = runs.with_columns(error=100 - pl.col(f"{kind}_accuracy"))
    several, alone = runs.filter(pl.col("workers") > 1), runs.filter(method="sgd")["error"]
    marks: list[Mark] = [
        make_line(several.filter(method=method), "workers", "error", method, place, bars=True)
        for place, method in find_methods(several)
    ]
    marks += [HLine(float(alone.to_numpy().mean()), label="one worker")] if len(alone) else []
    sizes = sorted(set(several["workers"]))
    x = Axis("workers", "log2", ticks=sizes, tick_labels=[str(size) for size in sizes])
    label = "test error (%)" if kind == "test" else "training error (%)"
    return Panel(marks, x, Axis(label, low=0, high=95), title=runs["protocol"][0])


def describe_training(runs: pl.DataFrame, curves: pl.DataFrame) -> Iterator[Drawn]:
    """Yield figures 4 and 7: staleness, gap, penalty and error over training."""
    if curves.is_empty() or runs.is_empty():
        return
    curves = curves.with_columns(test_error=100 - pl.col("test_accuracy"))
    middle = runs.filter(table="2", workers=MIDDLE)
    learnt = middle.filter(
        (pl.col("method") != "ssgd") & pl.col("converged")
    )  # a collapsed network has no gap
    if len(middle):
        title = f"{MIDDLE} workers; {RANGE}"
        figure = describe_curves("training", join_curves(middle, curves), "test_error", title)
        yield figure, "Figure 7: test error over training."
    if len(learnt):
        title = f"{MIDDLE} workers, runs that converged; {RANGE}"
        caption = "How far the model moves while a gradient is computed, all methods."
        yield describe_curves("gap", join_curves(learnt, curves), "gap", title), caption
    measured = runs.filter(pl.col("method").is_in(["ga", "dana-ga"]) & pl.col("converged"), table="4")
    if "penalty" in curves.columns and len(measured):
        yield describe_delay_and_gap(measured, curves)


def describe_delay_and_gap(runs: pl.DataFrame, curves: pl.DataFrame) -> Drawn:
    """Return figure 4, with the penalty: a row per method, a line per number of workers."""
    seen, panels = join_curves(runs, curves), list[Panel]()
    sizes = sorted(set(seen["workers"]))
    for method in (method for method in ("ga", "dana-ga") if method in set(seen["method"])):
        mine = seen.filter(method=method)
        for fact, label in FACTS.items():
            lines = [
                make_line(mine.filter(workers=n), "epochs", fact, f"N = {n}", place)
                for place, n in enumerate(sizes)
            ]
            highest = max(seen[fact].drop_nulls().drop_nans(), default=1.0)  # the same for both methods
            panels.append(Panel(lines, Axis("epochs"), Axis(label, low=0, high=1.05 * highest), title=method))
    title = f"{runs['protocol'][0]}, runs that converged; {RANGE}"
    size = (11.5, 0.4 + 2.8 * len(panels) / len(FACTS))
    spec = FigureSpec("delay_gap", title, panels, columns=len(FACTS), size=size, legend="right")
    return (
        spec,
        "Figure 4: staleness (the paper's delay), gap and penalty over training, by number of workers.",
    )


def make_more_tables(runs: pl.DataFrame) -> list[tuple[str, str]]:
    """Return the penalties before and after the first decay, as a caption and Markdown."""
    mine = runs.filter(table="4")
    if mine.is_empty() or not set(HALVES) <= set(mine.columns):
        return []
    rows = []
    for (method, workers), some in mine.group_by("method", "workers", maintain_order=True):
        means = [some[half].drop_nulls().mean() for half in HALVES]
        known = [f"{mean:.2f}" if isinstance(mean, float) else "–" for mean in means]
        rows.append([str(method), str(workers), str(len(some)), *known])
    heads = ["", "workers", "seeds", *HALVES.values()]
    return [("Penalty: mean over all of training, and over its halves", format_markdown_table(heads, rows))]


def describe_curves(name: str, seen: pl.DataFrame, fact: str, title: str) -> FigureSpec:
    """Return a fact over the epochs: a panel per network, a line per method."""
    y = Axis("mean gap (RMSE)", "log") if fact == "gap" else Axis("test error (%)")
    panels = []
    for network in seen["protocol"].unique().sort():
        mine = seen.filter(protocol=network)
        lines = [
            make_line(mine.filter(method=m), "epochs", fact, m, place) for place, m in find_methods(mine)
        ]
        panels.append(Panel(lines, Axis("epochs"), y, title=network))
    return FigureSpec(name, title, panels, size=(2.2 + 3.4 * len(panels), 3.8), legend="right", share_y=True)


def describe_map(runs: pl.DataFrame) -> Drawn:
    """Return accuracy over learning rate and momentum, ours and the source's."""
    means = average_cells(runs).join(
        runs.select("row", "column", "momentum", "lr").unique(), on=["row", "column"]
    )
    momenta, rates = means["momentum"].unique().sort(descending=True), means["lr"].unique().sort()
    titles = {
        "value": f"ours: {runs['protocol'][0]}, {max(runs['epochs']):.0f} epochs",
        "source": "source: WRN-16-4, CIFAR-10, 200 epochs",
    }
    panels = []
    for fact, title in titles.items():
        known = {(m, rate): value for m, rate, value in means.select("momentum", "lr", fact).iter_rows()}
        grid = [[known.get((m, rate)) for rate in rates] for m in momenta]
        values = np.array([[math.nan if value is None else value for value in row] for row in grid])
        text = [["" if value is None else f"{value:.1f}" for value in row] for row in grid]
        names = [f"{rate:g}" for rate in rates], [f"{momentum:g}" for momentum in momenta]
        heatmap = Heatmap(values, *names, "test accuracy (%)", text, 10, 100, colour_bar=fact == "source")
        panels.append(
            Panel([heatmap], Axis("learning rate", "category"), Axis("momentum", "category"), title=title)
        )
    caption = (
        "Figures 9 to 11: accuracy of ASGD over learning rate and momentum, 32 workers; mean over the seeds "
        "that converged, if any did; white: unknown in the source."
    )
    return FigureSpec("map", "", panels, size=(11, 4.8)), caption


def describe_densities() -> Drawn:
    """Return the gamma laws of batch times, with the batches over 1.25 times the mean shaded."""
    panels, x = [], np.linspace(1e-3, 3, 600)
    for name, cv in {"homogeneous": 0.1, "heterogeneous": 0.6}.items():
        law = stats.gamma(1 / cv**2, scale=cv**2)
        late = x[x > 1.25]
        marks = [Line(x, law.pdf(x)), Line(late, law.pdf(late), colour=1, filled=True)]
        title = f"{name}: P(> 1.25 × mean) = {100 * law.sf(1.25):.1f} %"
        panels.append(Panel(marks, Axis("batch time ÷ mean"), Axis("density"), title=title))
    spec = FigureSpec("densities", "", panels, size=(8.4, 3.2), legend="none")
    return spec, "Figure 3: how long a batch takes, with the late ones shaded."
