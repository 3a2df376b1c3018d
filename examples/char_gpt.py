"""Train a small GPT on the characters of Moby-Dick with three methods on three engines.

Four workers train on the novel, with whole chapters to each worker. One worker is delayed by 0.2 s per job.
The script prints the perplexity of every run on the ends of the chapters. It takes about three minutes on
two free cores. Finished runs are cached, so an interrupted script resumes.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from straggler import Experiment, Record
from straggler.analysis.tables import build_table, fill_section, format_markdown_table

SETTINGS: dict[str, Any] = {
    "dataset": "moby-dick(context=64, test=0.02)",
    "model": "gpt(layers=2, heads=2, width=64)",
    "partition": "by-document",
    "metrics": ["perplexity"],
    "workers": 4,
    "batch_size": 32,
    "delay": "constant(seconds=0.2, workers=[0])",
    "epochs": 0.5,
    "eval_every": 0.125,
    "train_metrics": "never",
}
SIMULATED = {"compute": "constant(seconds=0.05)"}  # real engines measure the compute time
METHODS: dict[str, dict[str, Any]] = {
    "ssgd": {"method": "ssgd", "optimizer": "adamw", "lr": 0.003},
    "asgd": {"method": "asgd", "optimizer": "adamw", "lr": 0.0003},
    "diloco": {"method": "diloco", "work": "local(steps=5, lr=0.003, optimizer=adamw, keep=True)"},
}
ENGINES = "simulator", "processes", "ray"


def describe_run(engine: str, method: str, record: Record) -> list[str]:
    """Return the row of a run: perplexity at the start, in the middle and at the end, and accuracy."""
    curve, summary = record.curve["test_perplexity"], record.summary
    perplexity = [f"{curve[place]:.1f}" for place in (0, len(curve) // 2, -1)]
    accuracy, staleness = f"{summary['test_accuracy']:.1f}", f"{summary['mean_staleness']:.2f}"
    return [engine, method, f"{summary['updates']:,}", staleness, *perplexity, accuracy]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the records")
parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="engines to run on")
parser.add_argument("--into", type=Path, help="a document whose table is replaced")
arguments = parser.parse_args()
console = Console()

rows, records = [], []
for engine in arguments.engines:
    for method, choices in METHODS.items():
        settings = SETTINGS | choices | (SIMULATED if engine == "simulator" else {})
        with console.status(f"{method} on {engine}"):
            record = Experiment(engine=engine, **settings).run(arguments.out)
        records.append(record)
        rows.append(describe_run(engine, method, record))
heads = ["engine", "method", "updates", "mean staleness", "perplexity at 0", "after ¼ epoch", "after ½ epoch"]
heads += ["token accuracy (%)"]
console.print(build_table("\nMoby-Dick, half an epoch", heads, rows, justify="right"))
if arguments.into:
    fill_section(arguments.into, "results", format_markdown_table(heads, rows))
console.print(f"Report: straggler report {' '.join(record.path.name for record in records)}", soft_wrap=True)
