"""How well `calibrate` predicts real runs, on a quiet machine: four workers, and four with one delayed.

Each run is fitted on its first half, and the prediction is compared with its second half. `--into FILE`
writes the table into a document.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from straggler.analysis.tables import build_table, fill_section, format_markdown_table, format_number
from straggler.experiment import Experiment
from straggler.timing.calibration import FRESH, HIGH, MEDIAN, RATE, Calibration, calibrate

console = Console(width=140)
HEADS = ["engine", "one delayed", "fresh (%)", "median", "95 %", "updates/s", "within the goal"]
SETTINGS: dict[str, Any] = {
    "dataset": "digits",
    "model": "mlp",
    "workers": 4,
    "eval_every": 0,
    "train_metrics": "never",
}


def list_cells(engine: str, delayed: bool, found: Calibration) -> list[str]:
    """Return a row of the table: measured → predicted."""
    pairs = {name: (found.measured[name], found.predicted[name]) for name in (FRESH, MEDIAN, HIGH, RATE)}
    pairs[FRESH] = (100 * pairs[FRESH][0], 100 * pairs[FRESH][1])
    cells = [f"{format_number(true)} → {format_number(value)}" for true, value in pairs.values()]
    verdict = "no: " + " ".join(found.warnings) if found.warnings else "yes"
    return [engine, "yes" if delayed else "no", *cells, verdict]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="processes,ray")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--into", type=Path, help="a document whose table is replaced")
    arguments = parser.parse_args()
    rows = []
    for engine in arguments.engines.split(","):
        for delayed in (False, True):
            delay = ["constant(0.03, workers=[0])"] if delayed else []
            experiment = Experiment(**SETTINGS, engine=engine, delay=delay, seconds=arguments.seconds)
            with tempfile.TemporaryDirectory() as folder:
                record = experiment.run(folder)
                started = time.perf_counter()
                found = calibrate(record)
            seconds = time.perf_counter() - started
            console.print(f"{engine}: fitted in {seconds:.0f} s: compute={found.experiment.compute}", end=" ")
            console.print(f"delay={list(map(str, found.experiment.delay))} cores={found.experiment.cores}")
            rows.append(list_cells(engine, delayed, found))
    console.print(build_table("The second half of each run: measured → predicted", HEADS, rows))
    if arguments.into:
        fill_section(arguments.into, "results", format_markdown_table(HEADS, rows))
