"""Cells of the Gap-Aware study: a method on a network, penalties, the map, and the paper's scale."""

from collections.abc import Iterator
from typing import Any

from straggler.reproduction.papers.rates import TUNING
from straggler.reproduction.study import Labels, Scale
from straggler.sweeps.grid import Cell

MAP_MOMENTA = (0.95, 0.9, 0.8, 0.5, 0.25, 0.0, -0.25, -0.5, -0.8, -0.9)
MAP_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
HOMOGENEOUS = "gamma(mean=1, cv=0.1)"
HETEROGENEOUS = "gamma-machines(mean=1, cv_machine=0.6, cv_task=0.1)"
METHODS = ("ssgd", "nag-asgd", "dc-asgd", "sa", "ga", "dana", "dana-sa", "dana-ga")
PENALISED = ("ga", "sa", "dana-ga", "dana-sa", "nag-asgd", "dana")  # of figure 4; the last two are references
TUNED, ONE_RATE = "asu-cifar, tuned rates", "asu-cifar, one rate"
SEEDS_AT_32 = 5
WORKERS: dict[Scale, tuple[int, ...]] = {"default": (4, 8, 16, 32), "paper": tuple(range(4, 33, 4))}


def train(
    model: str, epochs: float, milestones: str, gamma: float = 0.1, warmup: float = 5.0
) -> dict[str, Any]:
    """Return the paper's protocol; the warm-up matters with several workers only."""
    schedule = f"multistep(milestones=[{milestones}], gamma={gamma})"
    settings = {"dataset": "cifar10(augment=true)", "model": model, "lr": 0.1, "batch_size": 128}
    settings |= {"epochs": epochs, "weight_decay": 5e-4, "schedule": schedule, "warmup": warmup}
    return settings | {"momentum": 0.9, "partition": "iid", "compute": HOMOGENEOUS}


FAITHFUL = train("asu-cifar", 80.0, "40, 60")  # half the paper's epochs, with its fractions
SHORT = train("asu-cifar", 16.0, "8, 12", warmup=1.0)  # for tuning and the map
PAPER = {
    "resnet20, CIFAR-10": train("resnet20", 160.0, "80, 120"),
    "wrn-16-4, CIFAR-10": train("wrn-16-4", 200.0, "60, 120, 160", 0.2),
}


def make_paper_cells() -> Iterator[Cell]:
    first, second = PAPER
    for network, settings in PAPER.items():
        for method, n in [("sgd", 1), *((method, n) for n in WORKERS["paper"] for method in METHODS)]:
            yield make_cell("2", network, settings, method, n)
    yield from make_map_cells("wrn-16-4", PAPER[second])
    for workers in WORKERS["paper"]:
        for method in METHODS[1:]:
            yield make_cell("13", first, PAPER[first] | {"compute": HETEROGENEOUS}, method, workers)
    for workers in (4, 8, 16, 24, 32):
        for method in PENALISED:
            yield make_penalty_cell("4", second, PAPER[second], method, workers)


def make_cell(
    table: str,
    protocol: str,
    settings: dict[str, Any],
    method: str,
    workers: int,
    metric: str = "test_error",
    seeds: int | None = None,
    **labels: float,
) -> Cell:
    """Return a method with momentum, which is Nesterov's where the method leaves it open."""
    nesterov = {"nesterov": True} if method in ("sgd", "ssgd", "dc-asgd") else {}
    settings = settings | {"method": method, "workers": workers} | nesterov
    seeds = SEEDS_AT_32 if seeds is None and workers == 32 and protocol == TUNED else seeds
    named: Labels = {"table": table, "protocol": protocol, "method": method, "workers": workers, **labels}
    measurements = () if table == TUNING else ("curve",)
    return Cell(named, settings if workers > 1 else settings | {"warmup": 0.0}, measurements, seeds, metric)


def make_penalty_cell(
    table: str, protocol: str, settings: dict[str, Any], method: str, workers: int, metric: str = "penalty"
) -> Cell:
    cell = make_cell(table, protocol, settings, method, workers)
    return Cell(cell.labels, cell.settings, measurements=("penalties",), metric=metric)


def make_map_cells(network: str, settings: dict[str, Any]) -> Iterator[Cell]:
    """Yield figures 9 to 11: ASGD with 32 workers and heavy-ball momentum, also negative."""
    for momentum in MAP_MOMENTA:
        for lr in MAP_RATES:
            chosen = {"momentum": momentum, "lr": lr}
            labels: Labels = {"table": "10", "protocol": network, **chosen, "workers": 32}
            yield Cell(labels, settings | {"workers": 32, "eval_every": 0} | chosen, seeds=1)
