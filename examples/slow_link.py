"""Compare five methods over a slow link: test accuracy against time, bytes and gradients.

Eight workers train a small network on scikit-learn's digits. Two of them compute five times slower, and every
worker has a slow link to the server. The script tunes each method on validation data, trains it with five
seeds, repeats the training over slower and faster links, prints three tables and draws a figure. It takes
less than three minutes on one core. Finished runs are cached, so an interrupted script resumes.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.progress import track

from straggler import Experiment, Record
from straggler.analysis.figures.curves import draw_groups
from straggler.analysis.figures.description import (
    Axis,
    FigureSpec,
    HLine,
    Line,
    Mark,
    Panel,
    VLine,
    hide_labels,
)
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.intervals import error_bars, format_interval, mean_interval
from straggler.analysis.tables import build_table, fill_section, format_markdown_table

TARGET = 90.0  # per cent
SEEDS = range(5)
TUNING_SEED = 100
MEGABIT = 1e6 / 8  # bytes
UPLINK = 1.0  # Mbit/s; the downlink is four times as fast
SECONDS = {0.2: 300.0, 1.0: 100.0, 5.0: 30.0, 100.0: 25.0}  # virtual time of each run, by uplink in Mbit/s
CLUSTER: dict[str, Any] = {
    "dataset": "digits",
    "model": "mlp",
    "validation": 0.2,
    "workers": 8,
    "batch_size": 32,
    "compute": "gamma(mean=0.1, cv=0.2)",
    "delay": "spikes(probability=1, factor=5, workers=[0, 1])",
    "train_metrics": "never",
}
# Epochs between evaluations. Synchronous methods need several per round, or a step would appear late.
EVAL_EVERY = {"ssgd": 0.1, "asgd": 0.25, "local-sgd": 0.5, "diloco": 0.5, "async-diloco": 1.0}
ADAMW = "local(steps=20, lr={inner:g}, optimizer=adamw, keep=True{balance})"

# Eight settings of each method: four rates of the gradient steps, and two values of a second setting.
RATES: dict[str, tuple[str, Sequence[float], str, Sequence[float]]] = {
    "ssgd": ("lr", (0.02, 0.05, 0.1, 0.2), "momentum", (0.0, 0.9)),
    "asgd": ("lr", (0.003, 0.01, 0.02, 0.05), "momentum", (0.0, 0.9)),
    "local-sgd": ("inner lr", (0.02, 0.05, 0.1, 0.2), "outer lr", (0.7, 1.0)),
    "diloco": ("inner lr", (0.0003, 0.001, 0.003, 0.01), "outer lr", (0.2, 0.7)),
    "async-diloco": ("inner lr", (0.0003, 0.001, 0.003, 0.01), "outer lr", (0.2, 0.7)),
}


def build_experiment(method: str, rate: float, second: float, uplink: float, seed: int) -> Experiment:
    """Return the experiment of a method with these two settings over a link of `uplink` Mbit/s."""
    settings: dict[str, Any] = {"lr": rate, "momentum": second}
    if method == "local-sgd":
        settings = {"lr": second, "work": f"local(steps=20, lr={rate:g})"}
    elif method.endswith("diloco"):
        balance = ", balance=True" if method == "async-diloco" else ""
        settings = {"lr": second, "work": ADAMW.format(inner=rate, balance=balance)}
    settings["eval_every"] = EVAL_EVERY[method]
    up = uplink * MEGABIT
    link = f"link(latency=0.05, up={up:g}, down={4 * up:g})"
    settings |= {"method": method, "link": link, "seconds": SECONDS[uplink], "seed": seed}
    return Experiment(**CLUSTER, **settings)


def mean_validation_accuracy(record: Record) -> float:
    """Return the validation accuracy averaged over the run's virtual time, which rewards early progress."""
    curve = record.curve.drop_nulls("validation_accuracy")
    times = [*curve["seconds"], record.settings["seconds"]]
    return float(np.average(curve["validation_accuracy"], weights=np.diff(times)))


def run_all(experiments: Mapping[Any, Experiment], out: Path, title: str) -> dict[Any, Record]:
    """Run experiments one after the other, with a progress bar; cached runs take no time."""
    shown = track(experiments.items(), title, console=console)
    return {key: experiment.run(out, jobs=1) for key, experiment in shown}


def tune(out: Path) -> dict[str, tuple[float, float]]:
    """Return each method's two settings with the highest mean validation accuracy."""
    grid = [(method, *pair) for method, (_, a, _, b) in RATES.items() for pair in product(a, b)]
    records = run_all({key: build_experiment(*key, UPLINK, TUNING_SEED) for key in grid}, out, "tuning")
    scores = {key: mean_validation_accuracy(record) for key, record in records.items()}
    best = [max((key for key in grid if key[0] == method), key=lambda key: scores[key]) for method in RATES]
    return {method: (rate, second) for method, rate, second in best}


def find_target_times(records: Sequence[Record]) -> list[float]:
    """Return when each run reached the target, or nothing if one of them did not."""
    times = [record.time_to(TARGET) for record in records]
    return [time for time in times if time is not None] if None not in times else []


def build_figure(groups: Mapping[tuple[str, float], Sequence[Record]]) -> FigureSpec:
    """Return accuracy against time, bytes and gradients, and the time to the target against the uplink."""
    captions = set[str]()
    accuracy = Axis("test accuracy (%)", low=40, high=100)
    panels = []
    axes = {
        "seconds": (Axis("virtual time (s)", low=0), "Accuracy over time"),
        "traffic": (Axis("traffic, up and down (MB)", low=0), "Accuracy by traffic"),
        "gradients": (Axis("gradients of all workers (log scale)", "log", low=20), "Accuracy by work"),
    }
    traffic = ((pl.col("bytes_up") + pl.col("bytes_down")) / 1e6).alias("traffic")
    for column, (axis, title) in axes.items():
        tables = {
            method: [
                record.curve.with_columns(traffic).select(x=column, y="test_accuracy")
                for record in groups[method, UPLINK]
            ]
            for method in RATES
        }
        marks = [*draw_groups(tables, (), captions, 100.0), HLine(TARGET, f"{TARGET:g} %")]
        panels.append(Panel(marks, axis, accuracy, title=title))
    times: list[Mark] = []
    for colour, method in enumerate(RATES):
        reached = {uplink: find_target_times(groups[method, uplink]) for uplink in SECONDS}
        found = [mean_interval(reached[uplink]) for uplink in SECONDS]
        means, bars = [one.mean for one in found], error_bars(found)
        times.append(Line(list(SECONDS), means, method, colour, marker="circle", error=bars))
    uplinks = Axis("uplink (Mbit/s, log scale)", "log", ticks=list(SECONDS))
    times.append(VLine(UPLINK, "other panels"))
    panels.append(
        Panel(times, uplinks, Axis("virtual time (s, log scale)", "log"), title=f"Time to {TARGET:g} %")
    )
    panels = [panels[0], *map(hide_labels, panels[1:])]
    caption = f"Mean over {len(SEEDS)} seeds; bands and bars: 95 % confidence interval."
    return FigureSpec("slow-link", "", panels, caption=caption, columns=2, size=(9, 6.4), legend="below")


def describe_settings(chosen: Mapping[str, tuple[float, float]]) -> tuple[list[str], list[list[str]]]:
    """Return a table with each method's grid and choice."""
    rows = []
    for method, (first, rates, second, others) in RATES.items():
        grid = f"{first} {', '.join(f'{rate:g}' for rate in rates)}; {second} {', '.join(map(str, others))}"
        rate, other = chosen[method]
        rows.append([method, grid, f"{first} {rate:g}, {second} {other:g}"])
    return ["method", "grid", "chosen"], rows


def describe_results(
    groups: Mapping[tuple[str, float], Sequence[Record]],
) -> tuple[list[str], list[list[str]]]:
    """Return a table of the runs over the link of UPLINK."""
    rows = []
    for method in RATES:
        records = groups[method, UPLINK]
        ends = [record.curve.row(-1, named=True) for record in records]
        passed = [record.curve.filter(pl.col("test_accuracy") >= TARGET) for record in records]
        reached = [curve.row(0, named=True) for curve in passed if len(curve)]
        costs = ["–"] * 3
        if len(reached) == len(records):
            costs = [
                format_interval([row["seconds"] for row in reached], 1),
                format_interval([count_megabytes(row) for row in reached], 1),
                format_interval([row["gradients"] for row in reached], 0),
            ]
        accuracy = format_interval([row["test_accuracy"] for row in ends], 1)
        gradients = np.mean([row["gradients"] for row in ends])
        traffic = np.mean([count_megabytes(row) for row in ends])
        rows.append([method, accuracy, *costs, f"{gradients:,.0f}", f"{traffic:,.0f}"])
    goal = f"to {TARGET:g} %"
    heads = ["method", "test accuracy (%)", f"time {goal} (s)", f"traffic {goal} (MB)", f"gradients {goal}"]
    return [*heads, "all gradients", "all traffic (MB)"], rows


def count_megabytes(row: Mapping[str, Any]) -> float:
    """Return the bytes up and down until an evaluation, in MB."""
    return float(row["bytes_up"] + row["bytes_down"]) / 1e6


def describe_links(groups: Mapping[tuple[str, float], Sequence[Record]]) -> tuple[list[str], list[list[str]]]:
    """Return a table of the time to the target over each link."""
    rows = []
    for method in RATES:
        reached = [find_target_times(groups[method, uplink]) for uplink in SECONDS]
        rows.append([method, *(format_interval(times, 1) if times else "–" for times in reached)])
    return ["method", *(f"{uplink:g} Mbit/s" for uplink in SECONDS)], rows


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the records")
parser.add_argument("--figure", type=Path, help="file of the figure; default: slow_link.png in --out")
parser.add_argument("--into", type=Path, help="a document whose tables are replaced")
arguments = parser.parse_args()
console = Console()

chosen = tune(arguments.out)
experiments = {
    (method, uplink, seed): build_experiment(method, *chosen[method], uplink, seed)
    for method, uplink, seed in product(RATES, SECONDS, SEEDS)
}
records = run_all(experiments, arguments.out, "training")
groups = {
    (method, uplink): [records[method, uplink, seed] for seed in SEEDS]
    for method, uplink in product(RATES, SECONDS)
}
tables = {
    "settings": (describe_settings(chosen), "Rates, tuned on validation data (one seed that is not shown)"),
    "results": (describe_results(groups), f"Link of {UPLINK:g} Mbit/s up, {4 * UPLINK:g} Mbit/s down"),
    "times": (describe_links(groups), f"Virtual seconds to {TARGET:g} % test accuracy, by uplink"),
}
for section, ((heads, rows), title) in tables.items():
    console.print(build_table(f"\n{title}", heads, rows, justify="right"))
    if arguments.into:
        fill_section(arguments.into, section, format_markdown_table(heads, rows))
figure = write_figure(build_figure(groups), arguments.figure or arguments.out / "slow_link.png")
console.print(f"figure: {figure}", soft_wrap=True)
