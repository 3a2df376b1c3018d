"""EPFL's six-epoch baselines beside ours: LeNet-5, Fashion-MNIST, lr .005, heavy-ball .9, batch 32.

Run it with `make baseline` (about four minutes a seed on two cores). Finished runs are not run again.
"""

import argparse
import statistics
from pathlib import Path

from rich.console import Console

from straggler import Experiment
from straggler.analysis.markdown import fill, markdown_table
from straggler.analysis.tables import listing, number
from straggler.progress import Bar

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
}
RUNS = {
    "one worker": (89.20, LENET | {"method": "sgd", "workers": 1}),
    "synchronous, 2 workers": (87.54, LENET | {"method": "ssgd", "workers": 2}),
    "synchronous, 5 workers": (86.10, LENET | {"method": "ssgd", "workers": 5}),
    "synchronous, 10 workers": (84.79, LENET | {"method": "ssgd", "workers": 10}),
    "asynchronous, 5 workers": (88.48, LENET | {"method": "asgd", "workers": 5}),
    "BatchNorm, asynchronous, 5 workers": (None, ASU | {"method": "asgd", "workers": 5, "eval_every": 0}),
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("runs"))
parser.add_argument("--seeds", type=int, default=1)
parser.add_argument("--into", type=Path, help="a document with a place for the table")
arguments = parser.parse_args()

console = Console()
rows = []
for name, (source, settings) in RUNS.items():
    facts = []
    for seed in range(arguments.seeds):
        with Bar(console, f"{name}, seed {seed}") as bar:
            experiment = Experiment(**settings, seed=seed)
            facts.append(experiment.run(arguments.out, progress=bar.update, report=bar.say).summary)
    ours = [fact["test_accuracy"] for fact in facts]
    mean, host = statistics.mean(ours), statistics.mean(fact["host_seconds"] for fact in facts)
    spread = f" ± {statistics.stdev(ours):.2f}" if len(ours) > 1 else ""
    difference = "–" if source is None else f"{mean - source:+.2f}"
    rows.append([name, number(source), f"{mean:.2f}{spread}", difference, f"{host:.0f} s"])
columns = ["run", "EPFL", "ours", "difference", "host time"]
console.print(listing("test accuracy (%)", columns, rows))
if arguments.into:
    fill(arguments.into, "results:baseline", markdown_table(columns, rows))
