"""Write the tables and figures of docs/methods.md from the results of examples/methods.toml."""

from pathlib import Path

import polars as pl
from rich.console import Console
from straggler.analysis.comparison_figures import error_against_workers

from straggler.analysis.tables import build_table, fill_section, format_markdown_table, tabulate_errors

RESULTS = Path("results/methods")
DOCUMENT = Path("docs/methods.md")


def select_best_rates(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs with the best learning rate of each method and number of workers."""
    means = runs.group_by("method", "workers", "lr").agg(pl.col("error").mean())
    best = means.sort("error", "lr").group_by("method", "workers", maintain_order=True).first()
    return runs.join(best.drop("error"), on=["method", "workers", "lr"])


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
            error_against_workers(table, RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
