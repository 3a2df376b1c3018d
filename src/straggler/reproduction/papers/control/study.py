"""Dropping, waiting and pacing when jobs are slow because of their data: staleness, speed, and slow classes.

A job is one sample; those of two classes take twenty times as long. notes.md has the question and the answer.
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
WORKERS, BATCH, SAMPLES, BOUND = 32, 16, 3200, 4
PROTOCOL = "two slow classes"
FIXED: Settings = {
    "dataset": "fashion-mnist",
    "model": "linear",
    "workers": WORKERS,
    "partition": "iid",
    "batch_size": 1,
    "validation": 0.1,
    "compute": "gamma(mean=1, cv=0.1)",
    "delay": "by-label(factor=20, labels=[6, 8])",  # shirts, which are hard, and bags, which are easy
    "gradients": SAMPLES,
    "train_metrics": "never",
}


def pace(window: int | None) -> Variants:
    """Return pacing whose messages are used in a window of the order of start; None: as they complete."""
    limit = "" if window is None else f", window={window}"
    return plain(policy=f"paced(batch={BATCH}, staleness={BOUND}{limit})")


METHODS: dict[str, Variants] = {
    "wait for all": plain(method="ssgd"),
    "first 16, cancel the rest": plain(policy=f"k-batch-sync(k={BATCH})"),
    "every 16, no control": plain(policy=f"k-batch-async(k={BATCH})"),
    "paced, as they complete": pace(None),
    "paced, window 64": pace(64),
    "paced, window 16": pace(16),
    "paced, oldest first": pace(1),
    "every 1, no control": plain(method="asgd"),
    "every 1, drop τ ≥ 64": plain(policy="ringmaster(max_delay=64)"),
    "every 1, discount τ > 32": plain(method="delay-adaptive"),
}
RATES = {
    True: (0.0003, 0.001, 0.003, 0.01),
    False: (0.003, 0.01, 0.03, 0.1),
}  # of steps on one sample, and on several
TUNING_SEEDS, DEFAULT_RATE = 1, 0.01


def make_cells(scale: Scale) -> Iterator[Cell]:
    chosen = read_rates(FOLDER)
    for method, variants in METHODS.items():
        settings = questions.choose_settings(PROTOCOL, method, variants, chosen, DEFAULT_RATE)
        yield Cell(
            {"table": "1", "protocol": PROTOCOL, "method": method},
            FIXED | settings | {"eval_every": 0.03},
            measurements=("curve", "slow-classes"),
        )
        rates = RATES[method.startswith("every 1,")]
        yield from questions.make_tuning_cells(PROTOCOL, method, variants, FIXED, rates, TUNING_SEEDS)


def make_tables(runs: pl.DataFrame) -> list[tuple[str, str]]:
    facts = ("test_accuracy", "slow_recall", "other_recall", "worst_recall", "seconds", "updates")
    return questions.make_more_tables(runs, (*facts, "mean_staleness", "max_staleness"))


def draw_figures(runs: pl.DataFrame, results: Path) -> list[tuple[Path, str]]:
    return questions.draw_slow_classes(runs, results, tuple(METHODS))


def is_rehearsed(labels: Labels) -> bool:
    return labels["table"] != TUNING


STUDY = Study(
    folder=FOLDER,
    title="Control of staleness when jobs are slow because of their data",
    source="A question of 2026, not a reproduction",
    make_cells=make_cells,
    seeds=5,
    quick=is_rehearsed,
    quick_settings={"gradients": 60, "eval_every": 0},
    compared={},
    more_tables=make_tables,
    figures=draw_figures,
)
