"""Shah and Hatgadkar (ASU 2020): a server between synchronous and asynchronous SGD, on three data sets.

Each row of numbers.csv is one experiment of the report. notes.md says how the protocols differ.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from straggler.analysis.tables import format_markdown_table
from straggler.reproduction.study import Labels, Scale, Study, read_numbers
from straggler.sweeps.grid import Cell

FOLDER = Path(__file__).parent
BASELINE: dict[str, dict[str, Any]] = {
    "sync": {"workers": 5, "k": 5, "tolerance": 0, "pull": 1, "batch_size": 128, "lr": 0.03},
    "async": {"workers": 5, "k": 1, "tolerance": 9999, "pull": 1, "batch_size": 128, "lr": 0.03},
}
ITERATIONS = 500  # of each worker
# Seconds of a gradient, fixed and per sample, fitted to the report's asynchronous times.
COMPUTE = {"MNIST": (0.032, 0.00025), "CIFAR-10": (0.039, 0.00073), "Fashion-MNIST": (0.0, 0.0044)}
JITTER = 0.1  # coefficient of variation of a gradient's time; our choice
DATASETS = {"MNIST": "mnist", "CIFAR-10": "cifar10", "Fashion-MNIST": "fashion-mnist(normalise=False)"}
MODELS = {"MNIST": "asu-mnist", "CIFAR-10": "asu-cifar", "Fashion-MNIST": "asu-fashion"}
BEST = {"7": "synchronous", "8": "hybrid: tolerance", "9": "synchronous", "10": "hybrid: k"}
BEST |= {"11": "hybrid: pull", "12": "hybrid: k"}  # Table 13: the last row of each table, and what it is


def describe_change(labels: Labels) -> str:
    """Return the parameters that differ from the baseline, such as `k = 2, lr = 0.05`."""
    baseline = BASELINE[str(labels["baseline"])]
    changes = [f"{name} = {labels[name]}" for name, value in baseline.items() if labels[name] != value]
    return ", ".join(changes) or f"baseline {labels['baseline']}"


def make_cells(scale: Scale) -> Iterator[Cell]:
    """Yield every experiment in both protocols, and the baselines on two engines in real time."""
    for row in read_numbers(FOLDER):
        labels = {name: row[name] for name in ("table", "dataset", "baseline", *BASELINE["sync"])}
        real_time = row["table"] == "wall"
        for protocol in ("processes", "ray") if real_time else ("as coded", "as written"):
            settings = make_settings("as coded" if real_time else protocol, labels)
            settings |= {"engine": protocol} if real_time else {}
            fashion = row["dataset"] == "Fashion-MNIST"
            untrained = fashion and protocol != "as written"
            yield Cell(
                {**labels, "protocol": protocol},
                settings,
                measurements=("initial-buffers",) if fashion else (),
                metric="accuracy_with_initial_buffers" if untrained else "test_accuracy",
            )


def make_settings(protocol: str, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment with the report's six parameters."""
    dataset, k, coded = labels["dataset"], labels["k"], protocol == "as coded"
    fixed, each = COMPUTE[dataset]
    seconds = round(fixed + each * labels["batch_size"], 6)
    aggregate = ", aggregate=sum" if coded and k > 1 else ""  # one gradient is its own sum and mean
    return {
        "dataset": DATASETS[dataset],
        "model": "asu-mnist-conv" if coded and dataset == "MNIST" else MODELS[dataset],
        "policy": f"hybrid(num_workers_ps_update={k}, staleness_tolerance={labels['tolerance']}, "
        f"pull_weights_interval={labels['pull']}{aggregate})",
        "partition": "shared",
        "workers": labels["workers"],
        "batch_size": labels["batch_size"],
        "lr": labels["lr"],
        "gradients": ITERATIONS * labels["workers"],
        "compute": f"gamma(mean={seconds}, cv={JITTER})",
        "eval_every": 0,
    }


def make_table_13(runs: pl.DataFrame) -> list[tuple[str, str]]:
    """Return Table 13: the best change to each baseline according to the report, and ours, as coded."""
    columns = [
        "data",
        "baseline",
        "is",
        "changes",
        "source: before → after",
        "ours",
        "ours: most accurate change",
    ]
    means = runs.filter(pl.col("value").is_not_null(), protocol="as coded")
    means = means.group_by("table", "dataset", "baseline", "row", maintain_order=True).agg(
        pl.col("source").first(), pl.col("value").mean()
    )
    rows = []
    for table, kind in BEST.items():
        experiments = [row for row in read_numbers(FOLDER) if row["table"] == table]
        changed, last = means.filter(table=table), experiments[-1]
        dataset, baseline = last["dataset"], last["baseline"]
        before = means.filter(row=f"baseline {baseline}", dataset=dataset)
        if len(changed) < len(experiments) or before.is_empty():
            continue  # not all of it has been run
        chosen = changed.row(by_predicate=pl.col("row") == describe_change(last), named=True)
        best = changed.sort("value", descending=True, maintain_order=True).row(0, named=True)
        source = f"{before['source'][0]:.2f} → {last['value']:.2f}"
        ours = f"{before['value'][0]:.2f} → {chosen['value']:.2f}"
        most = f"{best['row']}: {best['value']:.2f}"
        rows.append([dataset, baseline, kind, chosen["row"], source, ours, most])
    caption = "Table 13: the report's best change to each baseline; test accuracy (%), as coded"
    return [(caption, format_markdown_table(columns, rows))] if rows else []


STUDY = Study(
    folder=FOLDER,
    title="Improving performance for distributed SGD using Ray",
    source="Shah and Hatgadkar, Arizona State University 2020",
    make_cells=make_cells,
    describe=lambda labels: {"change": describe_change(labels)},
    quick=lambda labels: labels["table"] in ("4", "5", "8") and labels["protocol"] == "as coded",
    quick_settings={"gradients": 100},
    compared={"MNIST": ("4", "7", "8"), "CIFAR-10": ("5", "9", "10"), "Fashion-MNIST": ("6", "11", "12")},
    more_tables=make_table_13,
)
