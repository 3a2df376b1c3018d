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
from straggler.analysis.figures import error_against_workers
from straggler.analysis.markdown import fill, markdown_table
from straggler.analysis.tables import error_rows, listing

METHODS = ("ssgd", "nag-asgd", "dc-asgd", "sa", "ga", "dana", "dana-ga")
WORKERS = (4, 8, 16, 32)


def experiment(method: str, workers: int, seed: int, lr: float, epochs: float) -> Experiment:
    nag = {"nesterov": True} if method in ("sgd", "ssgd", "dc-asgd") else {}
    return Experiment(
        dataset="fashion-mnist",
        model="lenet5",
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


def cell(method: str, workers: int, seed: int, lr: float, epochs: float, out: Path) -> dict[str, object]:
    """One run on one core; what the table and the figure need of it."""
    record = experiment(method, workers, seed, lr, epochs).run(out, jobs=1)
    facts = record.summary
    return {
        "method": method,
        "workers": workers,
        "seed": seed,
        "error": 100 - facts["test_accuracy"],
        "converged": facts["converged"],
        "gap": record.arrivals["gap"].mean(),
        "staleness": facts["mean_staleness"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("results/methods"))
    parser.add_argument(
        "--draw", action="store_true", help="only the table and the figure, from what is in results"
    )
    parser.add_argument("--into", type=Path, help="a document with a place for the table")
    arguments = parser.parse_args()
    console, summary = Console(), arguments.results / "summary.parquet"
    if not arguments.draw:
        cells = [("sgd", 1, seed) for seed in range(arguments.seeds)]
        cells += [(m, n, s) for n in WORKERS for m in METHODS for s in range(arguments.seeds)]
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
            futures = [pool.submit(cell, *c, arguments.lr, arguments.epochs, arguments.out) for c in cells]
            done = track(as_completed(futures), "runs", total=len(cells), console=console)
            rows = [future.result() for future in done]
        arguments.results.mkdir(parents=True, exist_ok=True)
        pl.DataFrame(rows).sort("method", "workers", "seed").write_parquet(summary)
    table = pl.read_parquet(summary)
    columns, rows = error_rows(table)
    console.print(listing("test error (%)", columns, rows))
    if arguments.into:
        fill(arguments.into, f"results:{arguments.results.name}", markdown_table(columns, rows))
    console.print(f"figure: {error_against_workers(table, arguments.results / 'error.png')}", soft_wrap=True)


if __name__ == "__main__":
    main()
