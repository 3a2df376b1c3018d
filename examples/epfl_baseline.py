"""EPFL's six-epoch baselines beside ours: LeNet-5, Fashion-MNIST, lr .005, heavy-ball .9, batch 32.

Run it with `make baseline` (about five minutes on two cores). Finished runs are not run again.
"""

import argparse
from pathlib import Path

from rich.console import Console

from straggler import Experiment
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
    "one worker": (89.2, LENET | {"method": "sgd", "workers": 1}),
    "synchronous, 2 workers, iid": (87.54, LENET | {"method": "ssgd", "workers": 2}),
    "synchronous, 5 workers, iid": (86.10, LENET | {"method": "ssgd", "workers": 5}),
    "synchronous, 10 workers, iid": (84.79, LENET | {"method": "ssgd", "workers": 10}),
    "asynchronous, 5 workers, iid": (88.48, LENET | {"method": "asgd", "workers": 5}),
    "asu-fashion (BatchNorm), asynchronous, 5 workers": (None, ASU | {"method": "asgd", "workers": 5}),
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("runs"))
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

console = Console()
rows = []
for name, (source, settings) in RUNS.items():
    with Bar(console, name) as bar:
        record = Experiment(**settings, seed=arguments.seed).run(
            arguments.out, progress=bar.update, report=bar.say
        )
    ours = record.summary["test_accuracy"]
    difference = "–" if source is None else f"{ours - source:+.2f}"
    rows.append(
        [name, number(source), number(ours), difference, number(record.summary["host_seconds"], 0, " s")]
    )
console.print(listing("test accuracy (%)", ["run", "EPFL", "ours", "difference", "host time"], rows))
