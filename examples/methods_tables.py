"""Write the tables and figures of docs/methods.md from the results of examples/methods.toml."""

from pathlib import Path

import polars as pl
from rich.console import Console

from straggler.analysis.figures.description import GREY, Axis, FigureSpec, HLine, Line, Panel
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.tables import build_table, fill_section, format_markdown_table, format_number

RESULTS = Path("results/methods")
DOCUMENT = Path("docs/methods.md")


def select_best_rates(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs with the best learning rate of each method and number of workers."""
    means = runs.group_by("method", "workers", "lr").agg(pl.col("error").mean())
    best = means.sort("error", "lr").group_by("method", "workers", maintain_order=True).first()
    return runs.join(best.drop("error"), on=["method", "workers", "lr"])


def tabulate_errors(runs: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: mean ± standard deviation of the test error of the runs that converged.

    Where learning rates differ, each cell includes its rate.
    """
    workers = sorted(runs["workers"].unique())
    rates = "lr" in runs.columns and runs["lr"].n_unique() > 1
    rows = []
    for (method,), group in runs.group_by(["method"], maintain_order=True):
        parts = [group.filter(pl.col("workers") == count) for count in workers]
        at = [f" at {part['lr'][0]:g}" if rates and len(part) else "" for part in parts]
        rows.append([str(method), *(format_error(part) + rate for part, rate in zip(parts, at, strict=True))])
    return ["method", *(f"N = {count}" for count in workers)], rows


def format_error(runs: pl.DataFrame) -> str:
    if runs.is_empty():
        return ""
    if not runs["converged"].any():
        return "NC"
    learnt = runs.filter("converged")["error"]
    spread = f" ± {format_number(learnt.std())}" if len(learnt) > 1 else ""
    missed = len(runs) - len(learnt)
    return f"{format_number(learnt.mean())}{spread}" + (f" ({missed} of {len(runs)} NC)" if missed else "")


def build_figure(runs: pl.DataFrame) -> FigureSpec:
    """Return test error (mean and standard deviation) and gap (median) over the number of workers."""
    errors, gaps = list[HLine | Line](), list[Line]()
    methods = [method for method in runs["method"].unique(maintain_order=True) if method != "sgd"]
    for position, method in enumerate(methods):
        own = runs.filter(method=method).group_by("workers")
        found = own.agg(mean=pl.col("error").mean(), std=pl.col("error").std()).sort("workers")
        bars = found["std"], found["std"]
        errors.append(Line(found["workers"], found["mean"], method, position, marker="circle", error=bars))
        learnt = runs.filter(pl.col("converged") & (pl.col("gap") > 0), method=method).group_by("workers")
        gap = learnt.agg(pl.col("gap").median()).sort("workers")
        gaps.append(Line(gap["workers"], gap["gap"], "", position, marker="circle"))
    errors.append(HLine(float(runs.filter(method="sgd")["error"].mean()), label="one worker", colour=GREY))
    counts = sorted(set(runs["workers"]) - {1})
    workers = Axis("workers", "log2", ticks=counts, tick_labels=[str(count) for count in counts])
    left = Panel(errors, workers, Axis("test error (%)", low=0, high=95), title="Error after equal epochs")
    right = Panel(gaps, workers, Axis("gap (RMSE)", "log"), title="Median gap of the runs that converged")
    return FigureSpec("methods", "Error and gap", [left, right], size=(9, 3.8), legend="right")


def main() -> None:
    """Write and print the tables."""
    runs = pl.read_parquet(RESULTS / "summaries.parquet")
    runs = runs.rename({"test_error": "error", "mean_gap": "gap"}).sort("method", "workers", "seed")
    lenet5 = runs.filter(model="lenet5", epochs=4)
    tables = {
        "lr-0.05": lenet5.filter(lr=0.05),
        "lr-0.01": lenet5.filter(lr=0.01),
        "best-lr": select_best_rates(lenet5).sort("method", "workers", "seed"),
        "16-epochs": runs.filter(epochs=16),
        "batchnorm": runs.filter(model="asu-fashion"),
    }
    console = Console()
    for name, table in tables.items():
        columns, rows = tabulate_errors(table)
        console.print(build_table(f"{name}: test error (%)", columns, rows))
        fill_section(DOCUMENT, f"results:methods-{name}", format_markdown_table(columns, rows))
        if len(columns) > 3:
            write_figure(build_figure(table), RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
