"""Shah and Hatgadkar (ASU 2020): a server between synchronous and asynchronous, on three data sets.

As coded: gradients of a step are summed, so that k of them make a step k times as long; MNIST is learnt by a
small convolutional network; and the BatchNorm statistics of the Fashion-MNIST network never reach the server,
which evaluates with the initial ones. As written: the mean, two dense layers for MNIST, and statistics that
are kept. In both all 10,000 test images are looked at in the end, where the report took 1,152 on the way.
Time is virtual: what a gradient takes is read from the report's asynchronous times for two batch sizes (of
Fashion-MNIST, which would cost less than nothing for no sample, for one), and every worker has a machine of
its own, where the report's shared one. The table `wall` is real time instead: five workers on the machine at
hand, as processes and as actors of Ray, nothing beside them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from straggler.reproduction.figures import asu_figures
from straggler.reproduction.more_tables import asu_tables
from straggler.reproduction.papers.asu.claims import CLAIMS
from straggler.reproduction.papers.asu.numbers import ABLATIONS, BASELINES, change_name
from straggler.reproduction.study import Scale, Study, quickened
from straggler.sweeps.grid import Cell

PROTOCOLS = ("as coded", "as written")
ENGINES = ("processes", "ray")  # the protocols of the table `wall`
BASELINE: dict[str, dict[str, Any]] = {
    "sync": {"k": 5, "tolerance": 0, "pull": 1, "workers": 5, "batch_size": 128, "lr": 0.03},
    "async": {"k": 1, "tolerance": 9999, "pull": 1, "workers": 5, "batch_size": 128, "lr": 0.03},
}
ITERATIONS = 500  # of each worker
# Seconds of a gradient, fixed and per sample, by the report's asynchronous times.
COMPUTE = {"mnist": (0.032, 0.00025), "cifar10": (0.039, 0.00073), "fashion-mnist": (0.0, 0.0044)}
JITTER = 0.1  # coefficient of variation; ours
NETWORKS = {
    ("mnist", "as coded"): ("mnist", "asu-mnist-conv"),
    ("mnist", "as written"): ("mnist", "asu-mnist"),
    ("cifar10", "as coded"): ("cifar10", "asu-cifar"),
    ("cifar10", "as written"): ("cifar10", "asu-cifar"),
    ("fashion-mnist", "as coded"): ("fashion-mnist(normalise=False)", "asu-fashion"),
    ("fashion-mnist", "as written"): ("fashion-mnist(normalise=False)", "asu-fashion"),
}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
TABLES = {
    "4": "Baselines on MNIST; test accuracy (%)",
    "5": "Baselines on CIFAR-10; test accuracy (%)",
    "7": "Changes to synchronous MNIST; test accuracy (%)",
    "8": "Changes to asynchronous MNIST; test accuracy (%)",
    "9": "Changes to synchronous CIFAR-10; test accuracy (%)",
    "10": "Changes to asynchronous CIFAR-10; test accuracy (%)",
    "6": "Baselines on Fashion-MNIST; test accuracy (%)",
    "11": "Changes to synchronous Fashion-MNIST; test accuracy (%)",
    "12": "Changes to asynchronous Fashion-MNIST; test accuracy (%)",
    "wall": "Baselines in real time on the machine at hand, five processes or Ray actors; test accuracy (%)",
}


def settings_of(dataset: str, protocol: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment from the report's six parameters."""
    data, model = NETWORKS[dataset, protocol]
    fixed, each = COMPUTE[dataset]
    seconds = round(fixed + each * parameters["batch_size"], 6)
    aggregate = ", aggregate=sum" if summed(protocol, parameters) else ""
    policy = (
        f"hybrid(num_workers_ps_update={parameters['k']}, staleness_tolerance={parameters['tolerance']}, "
        f"pull_weights_interval={parameters['pull']}{aggregate})"
    )
    return {
        "dataset": data,
        "model": model,
        "policy": policy,
        "partition": "shared",
        "workers": parameters["workers"],
        "batch_size": parameters["batch_size"],
        "lr": parameters["lr"],
        "gradients": ITERATIONS * parameters["workers"],
        "compute": f"gamma(mean={seconds}, cv={JITTER})",
        "eval_every": 0,
    }


def summed(protocol: str, parameters: Mapping[str, Any]) -> bool:
    """One gradient is its own sum and mean."""
    return protocol == "as coded" and parameters["k"] > 1


def cell(
    table: str,
    dataset: str,
    protocol: str,
    row: str,
    parameters: Mapping[str, Any],
    accuracy: float,
    seconds: float,
) -> Cell:
    untrained = dataset == "fashion-mnist" and protocol == "as coded"
    return Cell(
        {"table": table, "protocol": protocol, "row": row, "column": TITLES[dataset]},
        settings_of(dataset, protocol, parameters),
        accuracy,
        measurements=("initial-buffers",) if dataset == "fashion-mnist" else (),
        metric="accuracy_with_initial_buffers" if untrained else "test_accuracy",
        source_metrics={"seconds": seconds},
    )


def baselines(protocol: str) -> Iterator[Cell]:
    """Tables 4 to 6."""
    for table, (dataset, rows) in zip(("4", "5", "6"), BASELINES.items(), strict=True):
        for kind, (accuracy, seconds) in rows.items():
            yield cell(table, dataset, protocol, f"baseline {kind}", BASELINE[kind], accuracy, seconds)


def ablations(protocol: str) -> Iterator[Cell]:
    """Tables 7 to 12."""
    for table, (dataset, kind, rows) in ABLATIONS.items():
        for changes, accuracy, seconds in rows:
            row, parameters = change_name(changes), BASELINE[kind] | changes
            yield cell(table, dataset, protocol, row, parameters, accuracy, seconds)


def real(protocol: str) -> Iterator[Cell]:
    """The baselines with real workers instead of virtual time; the report's were on Ray."""
    for simulated in baselines(protocol):
        for engine in ENGINES:
            labels = {**simulated.labels, "table": "wall", "protocol": engine}
            settings = {**simulated.settings, "engine": engine}
            real_time = replace(simulated, labels=labels, settings=settings)
            yield real_time if engine == "ray" else replace(real_time, source=None, source_metrics={})


def cells(scale: Scale) -> list[Cell]:
    """Every table in both protocols; this source needs no smaller scale."""
    simulated = [cell for protocol in PROTOCOLS for kind in (baselines, ablations) for cell in kind(protocol)]
    return simulated + list(real("as coded"))


def quick(cells: list[Cell]) -> list[Cell]:
    """The first tables, twenty iterations of each worker."""
    few = [cell for cell in cells if cell.labels["table"] in ("4", "5", "8")] or cells[:12]
    coded = [cell for cell in few if cell.labels["protocol"] == "as coded"] or few
    return quickened(coded[:12], gradients=100)


ASU = Study(
    name="asu",
    title="Improving performance for distributed SGD using Ray",
    source="Shah and Hatgadkar, Arizona State University 2020",
    cells=cells,
    claims=lambda scale: CLAIMS,
    tables=TABLES,
    seeds=3,
    quick=quick,
    more=asu_tables,
    figures=asu_figures,
)
