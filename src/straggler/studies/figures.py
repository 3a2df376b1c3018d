"""The figures of each study, from its summaries."""

from pathlib import Path

import polars as pl

from straggler.analysis import study_figures as draw
from straggler.analysis.clusters import speedup_figure
from straggler.studies.gap_aware_numbers import MAP, MAP_LRS
from straggler.sweeps.summaries import series

__all__ = ["asu_figures", "epfl_figures", "gap_aware_figures"]


def of(summaries: pl.DataFrame, *tables: str) -> pl.DataFrame:
    return summaries.filter(pl.col("table").is_in(tables))


def epfl_figures(summaries: pl.DataFrame, results: Path) -> list[Path]:
    """Ours beside the report's, and figures 3 to 5: the course of three runs."""
    tables = [(f"Table {name}", of(summaries, name)) for name in ("II", "III", "IV")]
    tables += [("Tables V to VII", of(summaries, "V", "VI", "VII"))]
    found = [draw.beside_source([(t, runs) for t, runs in tables if len(runs)], results / "beside.png")]
    named = {"one 90 ms": "90 ms on one worker", "async 0 ms": "no delay", "sync": "synchronous"}
    points = series(results, "courses")
    runs = {}
    for row, title in named.items():
        at = (pl.col("row") == row) & (pl.col("column") == "10 workers, labels") & (pl.col("seed") == 0)
        ids = of(summaries, "II").filter(at & (pl.col("protocol") == "as coded"))["id"]
        course = (
            points.filter(pl.col("id").is_in(ids.implode())) if len(points) and len(ids) else pl.DataFrame()
        )
        if len(course):
            runs[f"{title} (as coded)"] = course
    return found + ([draw.courses(runs, results / "courses.png")] if runs else [])


def asu_figures(summaries: pl.DataFrame, results: Path) -> list[Path]:
    """Ours beside the report's, by data set."""
    tables = {"MNIST": ("4", "7", "8"), "CIFAR-10": ("5", "9", "10"), "Fashion-MNIST": ("6", "11", "12")}
    panels = [(name, of(summaries, *which)) for name, which in tables.items()]
    return [draw.beside_source([(n, runs) for n, runs in panels if len(runs)], results / "beside.png")]


def gap_aware_figures(summaries: pl.DataFrame, results: Path) -> list[Path]:
    """Figures 1 to 7 and 9 to 13 at our scale."""
    found = [
        draw.densities({"homogeneous": 0.1, "heterogeneous": 0.6}, 1.25, results / "densities.png"),
        draw.errors_over_workers(
            of(summaries, "2", "2-cifar"), "Homogeneous machines", results / "errors.png"
        ),
    ]
    if len(of(summaries, "13")):
        title = "Heterogeneous machines"
        found.append(draw.errors_over_workers(of(summaries, "13"), title, results / "heterogeneous.png"))
    found += training_figures(summaries, series(results, "curves"), results)
    if len(of(summaries, "10")):
        found.append(map_figure(of(summaries, "10"), results / "map.png"))
    if len(of(summaries, "12")):
        found.append(speedup_figure(speedups(of(summaries, "12")), results / "speeds.png"))
    return found


def training_figures(summaries: pl.DataFrame, curves: pl.DataFrame, results: Path) -> list[Path]:
    """Figures 4 and 7: gap and error over training with 16 workers."""
    if curves.is_empty():
        return []
    slow = of(summaries, "2").filter(pl.col("protocol") == "lenet5, lr .01", pl.col("column") == "N = 16")
    curves = curves.with_columns(test_error=100 - pl.col("test_accuracy"))
    title = "16 workers, lenet5, lr .01"
    stale = slow.filter((pl.col("row") != "ssgd") & pl.col("converged"))  # a dead network has no gap
    return [
        draw.over_training(curves, slow, "test_error", "test error (%)", title, results / "training.png"),
        draw.over_training(
            curves, stale, "gap", "mean gap (RMSE)", f"{title}: runs that converged", results / "gap.png"
        ),
    ]


def speedups(runs: pl.DataFrame) -> pl.DataFrame:
    """Figure 12's rows under the names that `straggler speedup` gives them, equal machines first."""
    workers = pl.col("column").str.strip_prefix("N = ").cast(pl.Int64)
    named = runs.select(pl.col("protocol") + " machines", "row", "seed", workers=workers, speedup="value")
    names = {"protocol": "cluster", "row": "method"}
    return named.rename(names).sort("cluster", descending=True, maintain_order=True)


def map_figure(runs: pl.DataFrame, path: Path) -> Path:
    means = runs.group_by("row", "column").agg(pl.col("value").mean())
    ours = {(float(r.split()[-1]), float(c.split()[-1])): v for r, c, v in means.iter_rows() if v is not None}
    lost = {(m, rate): v for m, row in MAP.items() for rate, v in zip(MAP_LRS, row, strict=True)}
    source = {key: value for key, value in lost.items() if value is not None}
    titles = ("ours: LeNet-5, Fashion-MNIST, 2 epochs", "source: WRN-16-4, CIFAR-10, 200 epochs")
    return draw.rate_momentum_map(ours, source, titles, path)
