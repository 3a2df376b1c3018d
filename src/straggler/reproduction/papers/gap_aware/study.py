"""Barkai, Hakimi and Schuster (ICLR 2020): gap-aware asynchronous SGD, error against the number of workers.

The default scale fits two cores: LeNet-5 on Fashion-MNIST at two learning rates and on CIFAR-10, four epochs
and no warm-up. `--scale paper` is ResNet-20 and WideResNet 16-4 on augmented CIFAR-10 with warm-up and the
paper's schedules (CIFAR-100, ImageNet and WikiText are not in our catalogue). Batch times are gamma; a
heterogeneous worker has a mean of its own. Figure 12 computes no gradient and is the paper's in both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from straggler.config.registry import parse_entry
from straggler.reproduction.figures import gap_aware_figures
from straggler.reproduction.papers.gap_aware.claims import claims
from straggler.reproduction.papers.gap_aware.numbers import MAP, MAP_LRS, MAP_MOMENTA
from straggler.reproduction.study import Scale, Study, quickened
from straggler.sweeps.grid import Cell, ThroughputCell
from straggler.timing import DELAYS

METHODS = ("ssgd", "nag-asgd", "dc-asgd", "sa", "ga", "dana", "dana-sa", "dana-ga")
STALE = METHODS[1:]  # a synchronous step has no gap
HOMOGENEOUS = "gamma(mean=1, cv=0.1)"
HETEROGENEOUS = "gamma-machines(mean=1, cv_machine=0.6, cv_task=0.1)"
SPEED_METHODS = ("asgd", "ssgd", "k-sync(k=90%)")  # the k is ours
SPEED_WORKERS = tuple(2**power for power in range(11))
SPEED_GRADIENTS, SPEED_SEEDS = 100_000, 20  # as the paper's figure 12


@dataclass(frozen=True)
class Framework:
    """A network, its data, and how it is trained."""

    name: str
    settings: dict[str, Any]
    workers: tuple[int, ...] = (4, 8, 16, 32)
    more: dict[str, Any] = field(default_factory=dict)  # where there are several workers


def small(name: str, dataset: str, model: str, lr: float) -> Framework:
    return Framework(name, {"dataset": dataset, "model": model, "lr": lr, "batch_size": 128, "epochs": 4.0})


def large(model: str, epochs: int, milestones: str, gamma: float) -> Framework:
    schedule = f"multistep(milestones=[{milestones}], gamma={gamma})"
    settings = {
        "dataset": "cifar10(augment=true)",
        "model": model,
        "lr": 0.1,
        "batch_size": 128,
        "epochs": float(epochs),
        "weight_decay": 5e-4,
        "schedule": schedule,
    }
    return Framework(f"{model}, CIFAR-10", settings, tuple(range(4, 33, 4)), {"warmup": 5.0})


FRAMEWORKS: dict[Scale, tuple[Framework, ...]] = {
    "default": (
        small("lenet5, lr .05", "fashion-mnist", "lenet5", 0.05),
        small("lenet5, lr .01", "fashion-mnist", "lenet5", 0.01),
        small("CIFAR-10, lr .02", "cifar10", "asu-cifar", 0.02),
    ),
    "paper": (large("resnet20", 160, "80, 120", 0.1), large("wrn-16-4", 200, "60, 120, 160", 0.2)),
}
TABLES = {
    "2": "Test error (%) against the number of workers, homogeneous (figures 1, 2, 4 to 7)",
    "12": "Gradients per mean batch time without any training (figure 12)",
    "10": "Test accuracy (%) of ASGD with 32 workers over learning rate and momentum (figures 9 to 11; the "
    "source's is figure 10, WideResNet 16-4 on CIFAR-10)",
    "13": "Test error (%) against the number of workers, heterogeneous (figure 13)",
    "4": "By how much a gradient is divided: its length over that of what is used of it, mean of the second "
    "epoch (the caption of figure 4)",
    "2-cifar": "Test error (%) against the number of workers on CIFAR-10, homogeneous",
}


def trained(framework: Framework, method: str, workers: int, compute: str) -> dict[str, Any]:
    """A method with momentum .9, Nesterov's where the method leaves it open."""
    nag = {"nesterov": True} if method in ("sgd", "ssgd", "dc-asgd") else {}
    several = framework.more if workers > 1 else {}
    fixed = {"momentum": 0.9, "compute": compute, "partition": "iid", "method": method, "workers": workers}
    return framework.settings | fixed | nag | several


def errors(scale: Scale) -> Iterator[Cell]:
    """Figures 1, 2, 4 to 7: every method and number of workers, and the baseline with one."""
    for framework in FRAMEWORKS[scale]:
        table = "2-cifar" if framework.name.startswith("CIFAR") else "2"
        for method, workers in [("sgd", 1), *((m, n) for n in framework.workers for m in METHODS)]:
            settings = trained(framework, method, workers, HOMOGENEOUS)
            yield cell(table, framework.name, method, workers, settings)


def heterogeneous(scale: Scale) -> Iterator[Cell]:
    """Figure 13: machines that differ."""
    framework = FRAMEWORKS[scale][0]
    for workers in framework.workers:
        for method in STALE:
            settings = trained(framework, method, workers, HETEROGENEOUS)
            yield cell("13", framework.name, method, workers, settings)


def cell(table: str, framework: str, method: str, workers: int, settings: dict[str, Any]) -> Cell:
    labels = {"table": table, "protocol": framework, "row": method, "column": f"N = {workers}"}
    return Cell(labels, settings, measurements=("curve",), metric="test_error")


def penalties(scale: Scale) -> Iterator[Cell]:
    """What the caption of figure 4 says: by how much a gradient is divided."""
    framework = FRAMEWORKS[scale][1]
    for workers in (4, 8, 16, 32):
        for method in ("sa", "ga", "dana-sa", "dana-ga"):
            settings = trained(framework, method, workers, HOMOGENEOUS) | {"epochs": 2.0, "eval_every": 0}
            labels = {"table": "4", "protocol": framework.name, "row": method, "column": f"N = {workers}"}
            yield Cell(labels, settings, measurements=("divided-by",), metric="divided_by")


def maps(scale: Scale) -> Iterator[Cell]:
    """Figures 9 to 11: ASGD with 32 workers and heavy ball, negative momenta too."""
    framework = FRAMEWORKS[scale][0 if scale == "default" else 1]
    short = {"epochs": 2.0, "batch_size": 32} if scale == "default" else {}  # more steps for 32 workers
    for momentum in MAP_MOMENTA:
        for lr, source in zip(MAP_LRS, MAP[momentum], strict=True):
            settings = framework.settings | framework.more | short
            settings |= {
                "workers": 32,
                "momentum": momentum,
                "lr": lr,
                "compute": HOMOGENEOUS,
                "eval_every": 0,
            }
            labels = {"table": "10", "protocol": framework.name.split(",")[0]}
            yield Cell(labels | {"row": f"γ = {momentum:g}", "column": f"lr {lr:g}"}, settings, source)


def speeds(scale: Scale) -> Iterator[Cell]:
    """Figure 12: who waits for whom; gradients are counted, not computed."""
    for kind, text in (("homogeneous", HOMOGENEOUS), ("heterogeneous", HETEROGENEOUS)):
        law = parse_entry(text, DELAYS)
        for workers in SPEED_WORKERS:
            for method in SPEED_METHODS:
                labels = {"table": "12", "protocol": kind, "row": method, "column": f"N = {workers}"}
                cluster = {"compute": law, "workers": workers}
                settings = {"method": method, "gradients": SPEED_GRADIENTS, **cluster}
                yield ThroughputCell(labels, settings, metric="speed", seeds=SPEED_SEEDS)


def cells(scale: Scale) -> list[Cell]:
    kinds = (errors, speeds, maps, heterogeneous, penalties)
    return [cell for kind in kinds for cell in kind(scale)]


def quick(cells: list[Cell]) -> list[Cell]:
    """The baseline and four workers with some of the methods, a twentieth of an epoch."""
    first = [cell for cell in cells if cell.labels["column"] in ("N = 1", "N = 4")] or cells
    few = [cell for cell in first[:8] if cell.labels["row"] in ("sgd", "ssgd", "nag-asgd", "ga", "dana-ga")]
    return quickened(few or first[:5], epochs=0.05)


GAP_AWARE = Study(
    name="gap-aware",
    title="Gap-aware mitigation of gradient staleness",
    source="Barkai, Hakimi and Schuster, ICLR 2020",
    cells=cells,
    claims=claims,
    tables=TABLES,
    seeds=3,
    quick=quick,
    figures=gap_aware_figures,
)
