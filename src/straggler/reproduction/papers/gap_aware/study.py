"""Barkai, Hakimi and Schuster (ICLR 2020): gap-aware asynchronous SGD, error against the number of workers.

The default scale has the paper's protocol on a small network for half the epochs; notes.md says what else
differs. `--scale paper` has the paper's networks and schedules.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scipy.special import gammaincc

from straggler.config.registry import parse_entry
from straggler.reproduction.papers.gap_aware.cells import (
    FAITHFUL,
    HETEROGENEOUS,
    HOMOGENEOUS,
    METHODS,
    ONE_RATE,
    PENALISED,
    SHORT,
    TUNED,
    WORKERS,
    make_cell,
    make_map_cells,
    make_paper_cells,
    make_penalty_cell,
    train,
)
from straggler.reproduction.papers.gap_aware.results import draw_figures, make_more_tables
from straggler.reproduction.papers.rates import SCORE, TUNING, read_rates
from straggler.reproduction.study import Labels, Scale, Study
from straggler.sweeps.grid import Cell, ThroughputCell
from straggler.timing import DELAYS

FOLDER = Path(__file__).parent
SPOT_CHECKED = ("nag-asgd", "sa", "ga", "dana-ga")
SPEED_METHODS = ("asgd", "ssgd", "k-sync(k=90%)")  # the k is our choice
SPEED_WORKERS = tuple(2**power for power in range(11))
SPEED_GRADIENTS, SPEED_SEEDS = 100_000, 20  # as in the paper's figure 12
TUNED_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
DEFAULT_RATE = 0.03  # before tuning


def make_cells(scale: Scale) -> Iterator[Cell]:
    yield from make_throughput_cells()
    if scale == "paper":
        yield from make_paper_cells()
        return
    rates = read_rates(FOLDER)

    def rate(method: str, workers: int) -> float:
        return float(rates.get((TUNED, method, workers), {}).get("lr", DEFAULT_RATE))

    alone = rate("sgd", 1)
    for workers in (8, 4, 16, 24, 32):  # the order of the runs
        for method in PENALISED:
            yield make_penalty_cell(
                "4", ONE_RATE, FAITHFUL | {"lr": alone, "eval_every": 2.0}, method, workers
            )
    several = [(method, n) for n in WORKERS[scale] for method in METHODS]
    for method, workers in [("sgd", 1), *several, ("multi-asgd", 8), ("multi-asgd", 32)]:
        yield make_cell("2", TUNED, FAITHFUL | {"lr": rate(method, workers)}, method, workers)
        for lr in TUNED_RATES:
            settings = SHORT | {"lr": lr, "eval_every": 0, "train_metrics": "never", "validation": 0.1}
            yield make_cell(TUNING, TUNED, settings, method, workers, SCORE, seeds=1, lr=lr)
    for method, workers in [(method, n) for n in (8, 32) for method in METHODS[1:]]:  # of ssgd see figure 12
        settings = FAITHFUL | {"lr": rate(method, workers), "compute": HETEROGENEOUS}
        yield make_cell("13", TUNED, settings, method, workers)
    spot = train("resnet20", 30.0, "15, 22", warmup=1.0)
    for method, workers in [("sgd", 1), *((method, n) for n in (8, 32) for method in SPOT_CHECKED)]:
        yield make_cell("resnet", "resnet20, 30 epochs", spot, method, workers, seeds=1)
    yield from make_map_cells("asu-cifar", SHORT)
    for workers in (4, 8, 16, 32):
        short: dict[str, Any] = {"dataset": "fashion-mnist", "model": "lenet5", "lr": 0.01, "batch_size": 128}
        short |= {"epochs": 2.0, "momentum": 0.9, "partition": "iid", "compute": HOMOGENEOUS, "eval_every": 0}
        for method in PENALISED[:4]:
            place = "no-decay", "lenet5, no decay", short, method, workers
            yield make_penalty_cell(*place, metric="penalty_second_half")


def make_throughput_cells() -> Iterator[Cell]:
    """Yield figure 12, which counts gradients and computes none."""
    for kind, text in (("homogeneous", HOMOGENEOUS), ("heterogeneous", HETEROGENEOUS)):
        law = parse_entry(text, DELAYS)
        for workers in SPEED_WORKERS:
            for method in SPEED_METHODS:
                labels = {"table": "12", "protocol": kind, "method": method, "workers": workers}
                settings = {
                    "method": method,
                    "gradients": SPEED_GRADIENTS,
                    "compute": law,
                    "workers": workers,
                }
                yield ThroughputCell(labels, settings, metric="speed", seeds=SPEED_SEEDS)


def is_rehearsed(labels: Labels) -> bool:
    """Return whether a cell is in the rehearsal: one or four workers of table 2 or of the paper's figure."""
    first = labels["protocol"] in (TUNED, "resnet20, CIFAR-10") and labels["table"] == "2"
    return first and labels["workers"] in (1, 4)


def gamma_tail(factor: float, cv: float) -> float:
    """Return P(X > factor · mean) of a gamma law with this coefficient of variation."""
    shape = 1 / cv**2
    return float(gammaincc(shape, factor * shape))


STUDY = Study(
    folder=FOLDER,
    title="Gap-aware mitigation of gradient staleness",
    source="Barkai, Hakimi and Schuster, ICLR 2020",
    make_cells=make_cells,
    quick=is_rehearsed,
    quick_settings={"epochs": 0.05, "eval_every": 0},
    compared={},
    words={
        "default": {"first": TUNED, "second": ONE_RATE},
        "paper": {"first": "resnet20, CIFAR-10", "second": "wrn-16-4, CIFAR-10"},
    },
    functions={"gamma_tail": gamma_tail},
    more_tables=make_more_tables,
    figures=draw_figures,
)
