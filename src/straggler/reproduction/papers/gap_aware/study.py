"""Barkai, Hakimi and Schuster (ICLR 2020): gap-aware asynchronous SGD, error against the number of workers.

notes.md says what the default scale leaves out. `--scale paper` has the paper's networks and schedules.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scipy.special import gammaincc

from straggler.config.registry import parse_entry
from straggler.reproduction.papers.gap_aware.results import draw_figures
from straggler.reproduction.study import Labels, Scale, Study
from straggler.sweeps.grid import Cell, ThroughputCell
from straggler.timing import DELAYS

METHODS = ("ssgd", "nag-asgd", "dc-asgd", "sa", "ga", "dana", "dana-sa", "dana-ga")
REHEARSED = ("sgd", "ssgd", "nag-asgd", "ga", "dana-ga")
HOMOGENEOUS = "gamma(mean=1, cv=0.1)"
HETEROGENEOUS = "gamma-machines(mean=1, cv_machine=0.6, cv_task=0.1)"
SPEED_METHODS = ("asgd", "ssgd", "k-sync(k=90%)")  # the k is our choice
SPEED_WORKERS = tuple(2**power for power in range(11))
SPEED_GRADIENTS, SPEED_SEEDS = 100_000, 20  # as in the paper's figure 12
MAP_MOMENTA = (0.95, 0.9, 0.8, 0.5, 0.25, 0.0, -0.25, -0.5, -0.8, -0.9)
MAP_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
WORKERS: dict[Scale, tuple[int, ...]] = {"default": (4, 8, 16, 32), "paper": tuple(range(4, 33, 4))}


def make_small(dataset: str, model: str, lr: float) -> dict[str, Any]:
    return {"dataset": dataset, "model": model, "lr": lr, "batch_size": 128, "epochs": 4.0}


def make_large(model: str, epochs: float, milestones: str, gamma: float) -> dict[str, Any]:
    schedule = f"multistep(milestones=[{milestones}], gamma={gamma})"
    settings = {"dataset": "cifar10(augment=true)", "model": model, "lr": 0.1, "batch_size": 128}
    return settings | {"epochs": epochs, "weight_decay": 5e-4, "schedule": schedule}


NETWORKS: dict[Scale, dict[str, dict[str, Any]]] = {
    "default": {
        "lenet5, lr .05": make_small("fashion-mnist", "lenet5", 0.05),
        "lenet5, lr .01": make_small("fashion-mnist", "lenet5", 0.01),
        "CIFAR-10, lr .02": make_small("cifar10", "asu-cifar", 0.02),
    },
    "paper": {
        "resnet20, CIFAR-10": make_large("resnet20", 160.0, "80, 120", 0.1),
        "wrn-16-4, CIFAR-10": make_large("wrn-16-4", 200.0, "60, 120, 160", 0.2),
    },
}
WARMUP: dict[Scale, dict[str, float]] = {"default": {}, "paper": {"warmup": 5.0}}  # with several workers


def make_cells(scale: Scale) -> Iterator[Cell]:
    first, second, *_ = NETWORKS[scale]
    for network in NETWORKS[scale]:
        table = "2-cifar" if network.startswith("CIFAR") else "2"
        for method, workers in [("sgd", 1), *((method, n) for n in WORKERS[scale] for method in METHODS)]:
            yield make_error_cell(scale, table, network, method, workers)
    yield from make_throughput_cells()
    yield from make_map_cells(scale, first if scale == "default" else second)
    for workers in WORKERS[scale]:
        for method in METHODS[1:]:  # a synchronous step has no gap
            yield make_error_cell(scale, "13", first, method, workers)
    for workers in (4, 8, 16, 32):
        for method in ("sa", "ga", "dana-sa", "dana-ga"):
            cell = make_error_cell(scale, "4", second, method, workers)
            settings = {**cell.settings, "epochs": 2.0, "eval_every": 0}
            yield Cell(cell.labels, settings, measurements=("divided-by",), metric="divided_by")


def make_labels(table: str, protocol: str, method: str, workers: int) -> Labels:
    return {"table": table, "protocol": protocol, "method": method, "workers": workers}


def make_error_cell(scale: Scale, table: str, network: str, method: str, workers: int) -> Cell:
    """Return a method with momentum 0.9, which is Nesterov's where the method leaves it open."""
    compute = HETEROGENEOUS if table == "13" else HOMOGENEOUS
    fixed = {"momentum": 0.9, "compute": compute, "partition": "iid", "method": method, "workers": workers}
    nesterov = {"nesterov": True} if method in ("sgd", "ssgd", "dc-asgd") else {}
    settings = NETWORKS[scale][network] | fixed | nesterov | (WARMUP[scale] if workers > 1 else {})
    labels = make_labels(table, network, method, workers)
    return Cell(labels, settings, measurements=("curve",), metric="test_error")


def make_map_cells(scale: Scale, network: str) -> Iterator[Cell]:
    """Yield figures 9 to 11: ASGD with 32 workers and heavy-ball momentum, also negative."""
    short = {"epochs": 2.0, "batch_size": 32} if scale == "default" else {}  # more steps for 32 workers
    fixed = NETWORKS[scale][network] | WARMUP[scale] | short
    fixed |= {"workers": 32, "compute": HOMOGENEOUS, "eval_every": 0}
    for momentum in MAP_MOMENTA:
        for lr in MAP_RATES:
            chosen = {"momentum": momentum, "lr": lr}
            yield Cell(
                {"table": "10", "protocol": network.split(",")[0], **chosen, "workers": 32}, fixed | chosen
            )


def make_throughput_cells() -> Iterator[Cell]:
    """Yield figure 12, which counts gradients and computes none."""
    for kind, text in (("homogeneous", HOMOGENEOUS), ("heterogeneous", HETEROGENEOUS)):
        law = parse_entry(text, DELAYS)
        for workers in SPEED_WORKERS:
            for method in SPEED_METHODS:
                labels = make_labels("12", kind, method, workers)
                settings = {
                    "method": method,
                    "gradients": SPEED_GRADIENTS,
                    "compute": law,
                    "workers": workers,
                }
                yield ThroughputCell(labels, settings, metric="speed", seeds=SPEED_SEEDS)


def is_rehearsed(labels: Labels) -> bool:
    """Return whether a cell is in the rehearsal: the first network, one or four workers, some methods."""
    first = labels["protocol"] in ("lenet5, lr .05", "resnet20, CIFAR-10") and labels["table"] == "2"
    return first and labels["workers"] in (1, 4) and labels["method"] in REHEARSED


def gamma_tail(factor: float, cv: float) -> float:
    """Return P(X > factor · mean) of a gamma law with this coefficient of variation."""
    shape = 1 / cv**2
    return float(gammaincc(shape, factor * shape))


STUDY = Study(
    folder=Path(__file__).parent,
    title="Gap-aware mitigation of gradient staleness",
    source="Barkai, Hakimi and Schuster, ICLR 2020",
    make_cells=make_cells,
    quick=is_rehearsed,
    quick_settings={"epochs": 0.05},
    compared={},
    words={
        "default": {"first": "lenet5, lr .05", "second": "lenet5, lr .01"},
        "paper": {"first": "resnet20, CIFAR-10", "second": "wrn-16-4, CIFAR-10"},
    },
    functions={"gamma_tail": gamma_tail},
    figures=draw_figures,
)
