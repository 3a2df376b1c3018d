"""Compare with EPFL's six-epoch baselines: LeNet-5, Fashion-MNIST, lr 0.005, momentum 0.9, batch size 32.

`make baseline` runs this script (five seeds, a few minutes each). Finished runs are cached.

EPFL's logs have several runs of some of these commands; none sets a seed in its workers. A synchronous step
takes the same number of samples from every worker, so EPFL's runs with split labels are nearly repetitions.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from straggler import Experiment
from straggler.analysis.intervals import format_interval
from straggler.analysis.tables import build_table, fill_section, format_markdown_table, format_number
from straggler.running.progress import ProgressBar

LENET = {
    "dataset": "fashion-mnist",
    "model": "lenet5",
    "lr": 0.005,
    "momentum": 0.9,
    "epochs": 6,
    "eval_every": 0,
}
ASU = {
    "dataset": "fashion-mnist(normalise=False)",
    "model": "asu-fashion",
    "lr": 0.03,
    "batch_size": 128,
    "epochs": 5,
    "eval_every": 0,
}
ASYNCHRONOUS = {"method": "asgd", "workers": 5}
RUNS: dict[str, tuple[list[float], list[float], dict[str, Any]]] = {  # EPFL's, with split labels, ours
    "one worker": ([89.20], [], LENET | {"method": "sgd", "workers": 1}),
    "synchronous, 2 workers": ([87.54, 88.21], [88.77, 87.94], LENET | {"method": "ssgd", "workers": 2}),
    "synchronous, 5 workers": ([86.10], [87.46], LENET | {"method": "ssgd", "workers": 5}),
    "synchronous, 10 workers": ([84.79, 85.23], [85.03, 85.59], LENET | {"method": "ssgd", "workers": 10}),
    "asynchronous, 5 workers": ([88.48, 88.16, 88.37], [], LENET | ASYNCHRONOUS),
    "BatchNorm, asynchronous, 5 workers": ([], [], ASU | ASYNCHRONOUS),
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the records")
parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
parser.add_argument("--into", type=Path, help="a document with a section for the table")
arguments = parser.parse_args()

console = Console()
rows = []
for name, (theirs, with_labels, settings) in RUNS.items():
    facts = []
    for seed in range(arguments.seeds):
        with ProgressBar(console, f"{name}, seed {seed}") as bar:
            experiment = Experiment(**settings, seed=seed)
            facts.append(experiment.run(arguments.out, progress=bar.update, report=bar.say).summary)
    ours = [fact["test_accuracy"] for fact in facts]
    host = statistics.mean(fact["host_seconds"] for fact in facts)
    all_theirs = [*theirs, *with_labels]
    difference = f"{statistics.mean(ours) - statistics.mean(all_theirs):+.2f}" if all_theirs else "–"
    each = [", ".join(map(format_number, runs)) or "–" for runs in (theirs, with_labels)]
    rows.append([name, *each, format_interval(ours), difference, f"{host:.0f} s"])
columns = ["run", "EPFL", "EPFL, labels split", "ours", "difference of the means", "host time"]
console.print(build_table("test accuracy (%)", columns, rows))
if arguments.into:
    fill_section(arguments.into, "results:baseline", format_markdown_table(columns, rows))
