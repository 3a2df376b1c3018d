"""Do we need asynchronous SGD, or is it enough to wait for the first k workers? Sixteen workers, equal data.

notes.md has the question and the answer.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from straggler.reproduction.papers import questions
from straggler.reproduction.papers.questions import Settings, Variants, plain, varied
from straggler.reproduction.papers.rates import TUNING, read_rates
from straggler.reproduction.study import Labels, Scale, Study
from straggler.sweeps.grid import Cell

FOLDER = Path(__file__).parent
WORKERS, SECONDS = 16, 60.0
SPEEDS: dict[str, Settings] = {  # a job takes 1 s in the mean over workers and time, without bursts
    "equal": {"compute": "gamma(mean=1, cv=0.1)"},
    "exponential": {"compute": "exponential(mean=1)"},
    "heavy tails": {"compute": "pareto(scale=0.333, alpha=1.5)"},
    "unequal machines": {"compute": "gamma-machines(mean=1, cv_machine=0.6, cv_task=0.1)"},
    "bursts": {"compute": "gamma(mean=1, cv=0.1)", "delay": "on-off(fail=0.02, recover=0.2, factor=20)"},
}
FIXED: Settings = {
    "dataset": "fashion-mnist",
    "model": "mlp(hidden=[32])",
    "workers": WORKERS,
    "partition": "iid",
    "batch_size": 16,
    "validation": 0.1,
    "seconds": SECONDS,
    "train_metrics": "never",
}
METHODS: dict[str, Variants] = {
    "ssgd": plain(method="ssgd"),
    "k-sync": varied("policy", {f"k={k}": f"k-sync(k={k})" for k in (4, 8, 12)}),
    "rennala": varied("policy", {f"k={k}": f"k-batch-sync(k={k})" for k in (8, 16)}),
    "asgd": plain(method="asgd"),
    "delay-adaptive": plain(method="delay-adaptive"),
    "ringmaster": varied("policy", {f"R={most}": f"ringmaster(max_delay={most})" for most in (16, 32)}),
}
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
TUNING_SEEDS, DEFAULT_RATE = 1, 0.1
TARGET = 75.0  # percent, for the table of costs


def make_cells(scale: Scale) -> Iterator[Cell]:
    chosen = read_rates(FOLDER)
    for protocol, speed in SPEEDS.items():
        for method, variants in METHODS.items():
            fixed = FIXED | speed
            settings = questions.choose_settings(protocol, method, variants, chosen, DEFAULT_RATE)
            yield Cell(
                {"table": "1", "protocol": protocol, "method": method},
                fixed | settings | {"eval_every": 0.05},
                measurements=("curve",),
            )
            yield from questions.make_tuning_cells(protocol, method, variants, fixed, RATES, TUNING_SEEDS)


def make_tables(runs: pl.DataFrame) -> list[tuple[str, str]]:
    facts = ("updates", "gradients", "megabytes", "mean_staleness", "max_staleness")
    return questions.make_more_tables(runs, facts)


def draw_figures(runs: pl.DataFrame, results: Path) -> list[tuple[Path, str]]:
    return questions.draw_costs(runs, results, tuple(METHODS))


def is_rehearsed(labels: Labels) -> bool:
    return labels["table"] != TUNING and labels["protocol"] == "equal"


STUDY = Study(
    folder=FOLDER,
    title="Do we need asynchronous SGD, or is waiting for the first k workers enough?",
    source="A claim of “Do we need asynchronous SGD?” (2026), tested in our own setting",
    make_cells=make_cells,
    seeds=5,
    quick=is_rehearsed,
    quick_settings={"seconds": None, "gradients": 60, "eval_every": 0},
    compared={},
    more_tables=make_tables,
    figures=draw_figures,
)
