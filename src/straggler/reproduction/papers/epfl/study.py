"""Lamour, Reategui and Junod (EPFL 2023): delays, partitions, momentum and delay compensation.

Each row of numbers.csv is one experiment of the report. notes.md says how the protocols differ.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from straggler.reproduction.papers.epfl.landscape import MOMENTA, compute_landscapes
from straggler.reproduction.papers.epfl.results import draw_figures, make_more_tables
from straggler.reproduction.study import Labels, Scale, Study, read_numbers
from straggler.sweeps.grid import Cell

FOLDER = Path(__file__).parent
LABELS = ("table", "mode", "delay_ms", "workers", "split", "momentum", "lam", "model", "optimizer")
PARTITIONS = {"dataset": "iid", "labels": "label", "no split": "shared"}
COMPUTE = {2: 0.0125, 3: 0.0125, 5: 0.43, 10: 1.05}  # seconds per gradient in the report's logs
JITTER = 0.2  # coefficient of variation of a gradient's time; our choice, the report gives none
GAUSSIAN_STD = {"as coded": 0.001, "as written": 0.005}  # the code of that week; the code at its end
ADAM = {"as coded": "adam(betas=[0.99, 0.999])", "as written": "adam(betas=[0.9, 0.999])"}
RATES = {("lenet5", "sgd"): 0.005, ("lenet5", "adam"): 0.001, ("cnn", "sgd"): 0.01, ("cnn", "adam"): 0.0005}
COURSES = (("sync", 0), ("async", 0), ("one", 90))  # runs of figures 3 to 5: ten workers, labels split


def describe_trainer(labels: Labels) -> dict[str, str]:
    """Return the network and its optimizer, for tables.toml."""
    optimizer = "adam" if labels.get("optimizer") == "adam" else f"momentum {labels.get('momentum', 0):g}"
    return {"trainer": f"{labels.get('model')}, {optimizer}"}


def make_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the report's experiments in both protocols, and variants of them that separate the causes."""
    rows = [{name: row[name] for name in LABELS if name in row} for row in read_numbers(FOLDER)]
    common = {"table": "landscape", "mode": "async", "delay_ms": 0, "workers": 3, "split": "no split"}
    rows += [{**common, "momentum": momentum} for momentum in MOMENTA]
    for protocol in ("as coded", "as written"):
        for labels in rows:
            if labels["table"] != "I":  # results by class, see results.py
                yield make_cell({**labels, "protocol": protocol}, make_settings(protocol, labels))
    for labels in rows:
        slow = labels["table"] == "II" and labels["split"] == "labels" and labels["mode"] != "sync"
        if slow or (
            labels["table"] == "log" and (labels["split"], labels["model"]) == ("no split", "lenet5")
        ):
            together = make_settings("as coded", labels) | {"stop": "all", "validation": 0.0}
            place = ("causes", "common stop") if slow else ("equal-work", "equal work")
            yield make_cell({**labels, "table": place[0], "protocol": place[1]}, together)
        if slow and labels["mode"] == "one":
            running = make_settings("as coded", labels) | {"correction": "dc(lam=2.0)"}
            yield make_cell({**labels, "table": "causes", "protocol": "compensation runs"}, running)


def make_cell(labels: Mapping[str, Any], settings: dict[str, Any]) -> Cell:
    logged = labels["table"] in ("log", "log-cnn")
    diverges = labels.get("momentum") == 0.9 and labels.get("model") == "cnn"  # at once
    expensive = logged and not diverges and (labels["split"] == "no split" or labels["model"] == "cnn")
    delay = (labels["mode"], labels["delay_ms"])
    course = (labels["workers"], labels["split"]) == (10, "labels") and delay in COURSES
    measurements = ("course",) if course and labels["table"] == "II" else ()
    return Cell(labels, settings, measurements=measurements, seeds=1 if expensive else None)


def make_settings(protocol: str, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return one experiment of the report."""
    coded, table, workers, mode = protocol == "as coded", labels["table"], labels["workers"], labels["mode"]
    momentum, optimizer = labels.get("momentum", 0.0), labels.get("optimizer", "sgd")
    shared = labels["split"] == "no split"  # six passes of each worker, a tenth of the data for validation
    # Without momentum and without a split, the protocols differ only in the unit of time: they share one run.
    is_shared_run = table.startswith("log") and shared and optimizer == "sgd" and not momentum
    seconds = COMPUTE[workers if coded or is_shared_run else 2]
    settings: dict[str, Any] = {
        "dataset": "fashion-mnist",
        "model": labels.get("model", "lenet5"),
        "workers": workers,
        "partition": PARTITIONS[labels["split"]],
        "lr": RATES[labels.get("model", "lenet5"), optimizer],
        "batch_size": 32,
        "epochs": 6,
        "eval_every": 0,
        "compute": f"gamma(mean={seconds}, cv={JITTER})",
        "stop": "each" if (coded and mode != "sync") or shared else "all",
        "delay": make_delays(protocol, mode, labels["delay_ms"] / 1000),
    }
    if optimizer == "adam":
        settings["optimizer"] = ADAM[protocol]
    else:
        settings |= {"momentum": momentum, "nesterov": True if momentum and not coded else None}
    settings |= {"validation": 0.1} if shared else {}
    settings |= {"snapshots": 18} if table == "landscape" else {}
    settings |= {"method": "ssgd"} if mode == "sync" else {}
    compensates = labels.get("lam") and not coded  # as coded, compensation never runs
    return settings | ({"correction": f"dc(lam={labels['lam']})"} if compensates else {})


def make_delays(protocol: str, mode: str, seconds: float) -> list[str]:
    """Return the delays: of all workers or of one; as coded, one worker's delay adds to everyone's."""
    everyone, one = f"constant(seconds={seconds})", f"constant(seconds={seconds}, workers=[0])"
    if mode == "one":
        return [everyone, one] if protocol == "as coded" else [one]
    gaussian = f"gaussian(mean={seconds}, std={GAUSSIAN_STD[protocol]})" if mode == "gaussian" else ""
    return {"all": [everyone], "gaussian": [gaussian]}.get(mode, [])


def is_rehearsed(labels: Labels) -> bool:
    """Return whether a cell is in the rehearsal: two workers, few delays, and delay compensation at work."""
    table, protocol, mode, split = (labels.get(name) for name in ("table", "protocol", "mode", "split"))
    if labels["workers"] != 2:
        return False
    if (table, protocol) == ("II", "as coded"):
        return mode in ("sync", "async") or (mode == "one" and split == "labels")
    return (table, protocol, labels["delay_ms"]) == ("IV", "as written", 30)


STUDY = Study(
    folder=FOLDER,
    title="Convergence and model performance analysis using asynchronous distributed SGD",
    source="Lamour, Reategui and Junod, EPFL 2023",
    make_cells=make_cells,
    describe=describe_trainer,
    quick=is_rehearsed,
    quick_settings={"epochs": 0.05},
    compared={
        "Table II": ("II",),
        "Table III": ("III",),
        "Table IV": ("IV",),
        "Tables VI, VII, V": ("VI", "VII", "V"),
    },
    compared_by=("workers", "split"),
    more_tables=make_more_tables,
    figures=draw_figures,
    after_runs=compute_landscapes,
)
