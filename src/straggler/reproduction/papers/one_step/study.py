"""Does a delay of one step hurt AdamW, and not Muon? Equal asynchronous workers delay every gradient equally.

With N workers that take equally long, every gradient is exactly N − 1 steps old. notes.md has the answer.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from straggler.reproduction.papers import questions
from straggler.reproduction.papers.questions import Settings, Variants, plain
from straggler.reproduction.papers.rates import TUNING, read_rates
from straggler.reproduction.study import Labels, Scale, Study
from straggler.sweeps.grid import Cell

FOLDER = Path(__file__).parent
DELAYS = (0, 1, 3, 7)  # steps
FIXED: Settings = {
    "dataset": "fashion-mnist",
    "model": "mlp(hidden=[64])",
    "partition": "shared",
    "batch_size": 32,
    "validation": 0.1,
    "compute": "constant(1)",
    "updates": 800,
    "train_metrics": "never",
}
OPTIMIZERS: dict[str, tuple[Variants, tuple[float, ...]]] = {
    "adamw": (plain(optimizer="adamw"), (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)),
    "muon": (plain(optimizer="muon"), (0.001, 0.003, 0.01, 0.03, 0.1)),
    "sgd, momentum .9": (plain(optimizer="sgd(momentum=0.9)"), (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)),
}
TUNING_SEEDS, DEFAULT_RATE = 1, 0.003


def name_delay(steps: int) -> str:
    return "no delay" if steps == 0 else f"{steps} step{'' if steps == 1 else 's'}"


def make_cells(scale: Scale) -> Iterator[Cell]:
    chosen = read_rates(FOLDER)
    for steps in DELAYS:
        for method, (variants, rates) in OPTIMIZERS.items():
            protocol, fixed = name_delay(steps), FIXED | {"workers": steps + 1}
            settings = questions.choose_settings(protocol, method, variants, chosen, DEFAULT_RATE)
            labels = {"table": "1", "protocol": protocol, "method": method}
            yield Cell(labels, fixed | settings | {"eval_every": 0})
            yield from questions.make_tuning_cells(protocol, method, variants, fixed, rates, TUNING_SEEDS)


def make_tables(runs: pl.DataFrame) -> list[tuple[str, str]]:
    return questions.make_more_tables(runs, ("test_accuracy", "mean_staleness", "max_staleness"))


def is_rehearsed(labels: Labels) -> bool:
    return labels["table"] != TUNING and labels["protocol"] in ("no delay", "1 step")


STUDY = Study(
    folder=FOLDER,
    title="Does a delay of one step hurt AdamW, and not Muon?",
    source="A claim about language models (2026), tested on a small network",
    make_cells=make_cells,
    seeds=5,
    quick=is_rehearsed,
    quick_settings={"updates": None, "gradients": 60},
    compared={},
    more_tables=make_tables,
)
