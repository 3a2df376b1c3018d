"""The figures of each study, from its summaries."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from straggler.analysis import study_figures as draw
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.figures.throughput import build_speedup_figure
from straggler.reproduction.papers.epfl.landscape import landscape_figures
from straggler.reproduction.papers.gap_aware.numbers import MAP, MAP_LRS
from straggler.sweeps.summaries import read_series

CAPTIONS = {
    "beside": "Each cell: ours (mean over seeds) against the source's; equal on the line, NC is 10 %",
    "courses": "Figures 3 to 5: loss, weights, batches of each worker; ten workers, labels split, one seed",
    "landscape": "Figures 1, 2 and 7: test loss around the paths of the momenta; three workers, one seed",
    "densities": "Figure 3: how long a batch takes, with the late ones marked",
    "errors": "Figures 1, 2, 5 and 6: test and training error against the number of workers",
    "heterogeneous": "Figure 13: the same where machines differ",
    "training": "Figure 7: test error over training",
    "gap": "How far the model moves while a gradient is computed, all methods",
    "delay_gap": "Figure 4: staleness (the paper's delay) and gap over training, by number of workers",
    "map": "Figures 9 to 11: accuracy of ASGD over learning rate and momentum, 32 workers; mean over "
    "the seeds that converged, if any did; white: not known of the source",
    "speeds": "Figure 12: gradients per mean batch time, mean and 95 % interval over 20 draws",
}


def caption_of(figure: Path) -> str:
    """What is seen; landscapes have their protocol in their name."""
    kind, *more = figure.stem.split("-")
    caption = CAPTIONS[kind]
    told = f" ({' '.join(more[:2])}{', without momentum .99' if 'close' in more else ''})" if more else ""
    return caption + told + "."


def of(summaries: pl.DataFrame, *tables: str) -> pl.DataFrame:
    return summaries.filter(pl.col("table").is_in(tables))


def beside(tables: Sequence[tuple[str, pl.DataFrame]], results: Path) -> list[Path]:
    """Ours beside the source's, of those tables of which something has been run."""
    known = [(title, runs) for title, runs in tables if len(runs)]
    return [draw.beside_source(known, results / "beside.png")] if known else []


def epfl_figures(summaries: pl.DataFrame, results: Path) -> list[Path]:
    """Ours beside the report's, figures 3 to 5 (the course of three runs), and 1, 2 and 7 (landscapes)."""
    tables = [(f"Table {name}", of(summaries, name)) for name in ("II", "III", "IV")]
    gaussian = [name for name in ("V", "VI", "VII") if len(of(summaries, name))]
    tables += [(f"Tables {', '.join(gaussian)}", of(summaries, *gaussian))]
    found = beside(tables, results)
    named = {"one 90 ms": "90 ms on all, 180 on one", "async 0 ms": "no delay", "sync": "synchronous"}
    points = read_series(results, "courses")
    runs = {}
    for row, title in named.items():
        at = (pl.col("row") == row) & (pl.col("column") == "10 workers, labels") & (pl.col("seed") == 0)
        ids = of(summaries, "II").filter(at & (pl.col("protocol") == "as coded"))["id"]
        course = (
            points.filter(pl.col("id").is_in(ids.implode())) if len(points) and len(ids) else pl.DataFrame()
        )
        if len(course):
            runs[f"{title} (as coded)"] = course
    found += [draw.courses(runs, results / "courses.png")] if runs else []
    return found + landscape_figures(results)


def asu_figures(summaries: pl.DataFrame, results: Path) -> list[Path]:
    """Ours beside the report's, by data set."""
    tables = {"MNIST": ("4", "7", "8"), "CIFAR-10": ("5", "9", "10"), "Fashion-MNIST": ("6", "11", "12")}
    panels = [(name, of(summaries, *which)) for name, which in tables.items()]
    return beside(panels, results)


def gap_aware_figures(summaries: pl.DataFrame, results: Path) -> list[Path]:
    """Figures 1 to 7 and 9 to 13 at our scale; 8 is ImageNet."""
    found = [draw.densities({"homogeneous": 0.1, "heterogeneous": 0.6}, 1.25, results / "densities.png")]
    alike = of(summaries, "2", "2-cifar")
    if len(alike):
        found.append(draw.errors_over_workers(alike, "Homogeneous machines", results / "errors.png"))
    if len(unlike := of(summaries, "13")):
        alone = alike.filter(pl.col("row") == "sgd", pl.col("protocol").is_in(unlike["protocol"].implode()))
        both = pl.concat([unlike, alone])  # one worker is as good on any machine
        found.append(draw.errors_over_workers(both, "Heterogeneous machines", results / "heterogeneous.png"))
    found += training_figures(alike, read_series(results, "curves"), results)
    if len(of(summaries, "10")):
        found.append(map_figure(of(summaries, "10"), results / "map.png"))
    if len(of(summaries, "12")):
        spec = build_speedup_figure(speedups(of(summaries, "12")))
        found.append(write_figure(spec, results / "speeds.png"))
    return found


def training_figures(summaries: pl.DataFrame, curves: pl.DataFrame, results: Path) -> list[Path]:
    """Figures 4 and 7: delay, gap and error over training."""
    if curves.is_empty() or summaries.is_empty():
        return []
    found, sixteen = [], summaries.filter(pl.col("column") == "N = 16")
    curves = curves.with_columns(test_error=100 - pl.col("test_accuracy"))
    learnt = summaries.filter((pl.col("row") != "ssgd") & pl.col("converged"))  # a dead network has no gap
    stale, small = learnt.filter(column="N = 16"), learnt.filter(table="2")
    slow = small.filter(protocol=small["protocol"].min())  # the smaller rate, as the claims
    error, gap, title = "test error (%)", "mean gap (RMSE)", "16 workers"
    if len(sixteen):
        found.append(
            draw.over_training(curves, sixteen, "test_error", error, title, results / "training.png")
        )
    if len(stale):
        title += ", runs that converged"
        found.append(draw.over_training(curves, stale, "gap", gap, title, results / "gap.png"))
    if len(slow.filter(pl.col("row").is_in(["ga", "dana-ga"]))):
        title = f"{slow['protocol'][0]}, runs that converged"
        found.append(draw.delay_and_gap(curves, slow, ("ga", "dana-ga"), title, results / "delay_gap.png"))
    return found


def speedups(runs: pl.DataFrame) -> pl.DataFrame:
    """Figure 12's rows under the names that `straggler speedup` gives them, equal machines first."""
    workers = pl.col("column").str.strip_prefix("N = ").cast(pl.Int64)
    named = runs.select(pl.col("protocol") + " machines", "row", "seed", workers=workers, speedup="value")
    names = {"protocol": "cluster", "row": "method"}
    return named.rename(names).sort("cluster", descending=True, maintain_order=True)


def map_figure(runs: pl.DataFrame, path: Path) -> Path:
    means = draw.cell_means(runs).select("row", "column", "value")
    ours = {(float(r.split()[-1]), float(c.split()[-1])): v for r, c, v in means.iter_rows()}
    lost = {(m, rate): v for m, row in MAP.items() for rate, v in zip(MAP_LRS, row, strict=True)}
    source = {key: value for key, value in lost.items() if value is not None}
    epochs = runs.select(pl.col("epochs").max()).item()
    titles = (f"ours: {runs['protocol'][0]}, {epochs:.0f} epochs", "source: WRN-16-4, CIFAR-10, 200 epochs")
    return draw.rate_momentum_map(ours, source, titles, path)
