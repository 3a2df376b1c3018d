"""Compare synchronous and asynchronous SGD with eight workers, one of them five times slower.

`make run` runs this script. It downloads Fashion-MNIST, trains LeNet-5 with both methods for the same virtual
time, prints a table and draws a figure.
"""

import argparse
from pathlib import Path

from rich.console import Console

from straggler import Experiment, Record
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.figures.plot import build_comparison_figure
from straggler.analysis.tables import build_table, format_number
from straggler.running.progress import ProgressBar

TARGET = 80.0  # per cent

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seconds", type=float, default=1500, help="virtual time of each run")
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the records")
arguments = parser.parse_args()

console = Console()
cluster = {"workers": 8, "compute": "gamma(mean=1, cv=0.1)", "delay": "gamma(mean=4, cv=0.1, workers=[0])"}
# Each learning rate reaches the target fastest among 0.002, 0.005, 0.01, 0.02, 0.05, 0.1 and 0.2.
rates = {"synchronous": ("ssgd", 0.05), "asynchronous": ("asgd", 0.005)}

records: dict[str, Record] = {}
for name, (method, lr) in rates.items():
    experiment = Experiment(
        dataset="fashion-mnist",
        model="lenet5",
        method=method,
        lr=lr,
        momentum=0.9,
        seconds=arguments.seconds,
        eval_every=0.1 if method == "ssgd" else 0.25,
        **cluster,
    )
    with ProgressBar(console, name) as bar:
        records[name] = experiment.run(arguments.out, progress=bar.update, report=bar.say)

figure = write_figure(build_comparison_figure(records, TARGET), arguments.out / "one_slow_worker.png")
console.print(
    "\nLeNet-5 on Fashion-MNIST, 8 workers, worker 0 five times slower, the same virtual time for both:"
)
rows = [
    [
        name,
        format_number(facts["test_accuracy"], unit=" %") if facts["converged"] else "NC",
        format_number(record.time_to(TARGET), 0, " s"),
        *(format_number(facts[key]) for key in ("updates", "gradients", "mean_staleness")),
        format_number(facts["seconds"], 0, " s"),
    ]
    for name, record in records.items()
    for facts in [record.summary]
]
heads = ["", "test accuracy", f"time to {TARGET:g} %", "updates", "gradients", "staleness", "time"]
console.print(build_table("", heads, rows, justify="right"))
for name, record in records.items():
    console.print(f"{name}: record in {record.path}", soft_wrap=True)
console.print(f"figure: {figure}", soft_wrap=True)
