"""By how much a stale gradient is divided: Gap-Aware beside dividing by the staleness.

LeNet-5 on Fashion-MNIST, batch 128, lr .01, momentum .9, gamma batch times. What is printed is the length of
a gradient over the length of what is used of it: the mean over the arrivals of the second epoch, and the
standard deviation of that over seeds.
"""

import argparse
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import polars as pl
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from straggler import Arrival, Correction, Experiment, Server
from straggler.analysis.markdown import fill, markdown_table
from straggler.analysis.tables import listing
from straggler.delays import Durations
from straggler.engines.compute import Compute
from straggler.engines.simulator import Simulator
from straggler.problem import one_thread
from straggler.train import Budget, train

METHODS = ("sa", "ga", "dana-sa", "dana-ga")
WORKERS = (4, 8, 16, 32)
SEEDS = range(3)
EPOCHS = 2.0


@dataclass
class Watched:
    """A correction that also notes what it divides by."""

    correction: Correction
    divisors: list[float] = field(default_factory=list)

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        before = float(torch.linalg.vector_norm(gradient))
        direction, scale = self.correction.correct(gradient, arrival, server)
        after = scale * float(torch.linalg.vector_norm(direction))
        if server.epochs >= EPOCHS / 2 and after > 0:
            self.divisors.append(before / after)
        return direction, scale

    def __getattr__(self, name: str) -> object:
        return getattr(self.correction, name)


def divisor(method: str, workers: int, seed: int) -> dict[str, object]:
    """One run without a record, watched."""
    experiment = Experiment(
        dataset="fashion-mnist",
        model="lenet5",
        method=method,
        workers=workers,
        seed=seed,
        batch_size=128,
        lr=0.01,
        momentum=0.9,
        compute="gamma(mean=1, cv=0.1)",
        partition="iid",
        epochs=EPOCHS,
    )
    problem = experiment.problem()
    server = experiment.server(problem)
    server.correction = watched = Watched(server.correction)  # type: ignore[assignment]
    durations = Durations(experiment.compute, experiment.delay, workers, seed)
    with one_thread():
        train(server, Simulator(Compute(problem), durations), Budget(epochs=EPOCHS), lambda *seen: None)
    divided = statistics.mean(watched.divisors)
    return {"method": method, "workers": workers, "seed": seed, "divisor": divided}


def run() -> pl.DataFrame:
    cells = [(method, workers, seed) for method in METHODS for workers in WORKERS for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        futures = [pool.submit(divisor, *cell) for cell in cells]
        return pl.DataFrame([future.result() for future in track(futures, "runs")])


def rows_of(table: pl.DataFrame) -> list[list[str]]:
    rows = []
    for method in METHODS:
        cells = [table.filter(method=method, workers=workers)["divisor"] for workers in WORKERS]
        rows.append([method, *(f"{cell.mean():.2f} ± {cell.std():.2f}" for cell in cells)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/penalties"))
    parser.add_argument("--draw", action="store_true", help="only show what is in the results")
    parser.add_argument("--into", type=Path, help="a document with a place for the table")
    arguments = parser.parse_args()
    summary = arguments.results / "summary.parquet"
    if not arguments.draw:
        arguments.results.mkdir(parents=True, exist_ok=True)
        run().write_parquet(summary)
    columns, rows = ["method", *(f"N = {count}" for count in WORKERS)], rows_of(pl.read_parquet(summary))
    Console().print(listing("a gradient is divided by", columns, rows))
    if arguments.into:
        fill(arguments.into, "results:penalties", markdown_table(columns, rows))


if __name__ == "__main__":
    main()
