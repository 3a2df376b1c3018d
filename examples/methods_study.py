"""Error against the number of workers: what momentum does to stale gradients, and what the corrections save.

LeNet-5 on Fashion-MNIST, batch 128, lr .05, momentum .9, gamma batch times, iid data, equal epochs, three
seeds. Run it with `make methods`; finished cells are not run again.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.progress import track

from straggler import Experiment
from straggler.analysis.comparison_figures import error_against_workers
from straggler.analysis.tables import build_table, error_rows, fill_section, format_markdown_table

METHODS = ("ssgd", "nag-asgd", "dc-asgd", "sa", "ga", "dana", "dana-ga")
WORKERS = (4, 8, 16, 32)


def experiment(model: str, method: str, workers: int, seed: int, lr: float, epochs: float) -> Experiment:
    nag = {"nesterov": True} if method in ("sgd", "ssgd", "dc-asgd") else {}
    return Experiment(
        dataset="fashion-mnist",
        model=model,
        method=method,
        workers=workers,
        seed=seed,
        batch_size=128,
        lr=lr,
        momentum=0.9,
        compute="gamma(mean=1, cv=0.1)",
        partition="iid",
        epochs=epochs,
        **nag,
    )


def cell(settings: dict[str, object], method: str, out: Path) -> dict[str, object]:
    """One run on one core; what the table and the figure need of it."""
    experiment = Experiment(**settings)
    record = experiment.run(out, jobs=1)
    facts = record.summary
    return {
        "method": method,
        "workers": experiment.workers,
        "seed": experiment.seed,
        "lr": experiment.lr,
        "error": 100 - facts["test_accuracy"],
        "converged": facts["converged"],
        "gap": record.arrivals["gap"].mean(),
        "staleness": facts["mean_staleness"],
    }


def run(arguments: argparse.Namespace) -> list[dict[str, object]]:
    cells = [("sgd", 1, seed) for seed in range(arguments.seeds)]
    cells += [(m, n, s) for n in arguments.workers for m in arguments.methods for s in range(arguments.seeds)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        futures = []
        for method, workers, seed in cells:
            made = experiment(arguments.model, method, workers, seed, arguments.lr, arguments.epochs)
            futures.append(pool.submit(cell, made.to_dict(), method, arguments.out))
        return [future.result() for future in track(as_completed(futures), "runs", total=len(cells))]


def tuned(summaries: list[Path]) -> pl.DataFrame:
    """Of every method and number of workers the rate with the least mean error, NC counted as it stands."""
    table = pl.concat([pl.read_parquet(path) for path in summaries])
    means = table.group_by("method", "workers", "lr").agg(pl.col("error").mean())
    best = means.sort("error", "lr").group_by("method", "workers", maintain_order=True).first()
    return table.join(best.drop("error"), on=["method", "workers", "lr"]).sort("method", "workers", "seed")


def show(table: pl.DataFrame, results: Path, into: Path | None) -> None:
    """The table on the screen and in a document, and the figure."""
    console = Console()
    columns, rows = error_rows(table)
    console.print(build_table("test error (%)", columns, rows))
    if into:
        fill_section(into, f"results:{results.name}", format_markdown_table(columns, rows))
    console.print(f"figure: {error_against_workers(table, results / 'error.png')}", soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--workers", nargs="+", type=int, default=WORKERS)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("results/methods"))
    parser.add_argument("--draw", action="store_true", help="only draw what is in the results")
    parser.add_argument("--tune", nargs="+", type=Path, help="results to choose each method's best rate from")
    parser.add_argument("--into", type=Path, help="a document with a place for the table")
    arguments = parser.parse_args()
    summary = arguments.results / "summary.parquet"
    arguments.results.mkdir(parents=True, exist_ok=True)
    if arguments.tune:
        tuned([folder / "summary.parquet" for folder in arguments.tune]).write_parquet(summary)
    elif not arguments.draw:
        pl.DataFrame(run(arguments)).sort("method", "workers", "seed").write_parquet(summary)
    show(pl.read_parquet(summary), arguments.results, arguments.into)


if __name__ == "__main__":
    main()
