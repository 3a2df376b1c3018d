"""Unequal data on unequal machines: which method learns the classes of the slow workers, and how fast?

Ten workers; three of them take twenty times as long. notes.md has the question and the answer.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from straggler.reproduction.papers import questions
from straggler.reproduction.papers.questions import Settings, Variant, Variants, plain, varied
from straggler.reproduction.papers.rates import TUNING, read_rates
from straggler.reproduction.study import Labels, Scale, Study
from straggler.sweeps.grid import Cell

FOLDER = Path(__file__).parent
PARTITIONS = {"labels": "label", "Dirichlet .1": "dirichlet(alpha=0.1)"}
ALL_TIME, QUARTER = 1600.0, 400.0  # virtual seconds: about 80 rounds of the slowest worker, and 20
FIXED: Settings = {
    "dataset": "fashion-mnist",
    "model": "mlp(hidden=[32])",
    "workers": 10,
    "batch_size": 32,
    "validation": 0.1,
    "compute": "gamma(mean=1, cv=0.1)",
    "delay": "constant(seconds=19, workers=[0, 1, 2])",
    "train_metrics": "never",
}
LOCAL_STEPS = 5


def make_local(k: int) -> Variant:
    """Return CA²FL with steps on every k messages; the rate is that of the local steps."""

    def make(lr: float) -> Settings:
        policy, work = f"k-batch-async(k={k})", f"local(steps={LOCAL_STEPS}, lr={lr})"
        return {"method": "ca2fl", "policy": policy, "work": work, "lr": 1.0}

    return make


METHODS: dict[str, Variants] = {
    "ssgd, all the time": plain(method="ssgd"),
    "ssgd": plain(method="ssgd"),
    "asgd": plain(method="asgd"),
    "delay-adaptive": plain(method="delay-adaptive"),
    "inverse-frequency": plain(method="inverse-frequency"),
    "ringleader": plain(method="ringleader"),
    "malenia": plain(method="malenia"),
    "ia2sgd": plain(method="ia2sgd"),
    "aced": varied(
        "aggregation",
        {f"τ ≤ {most}": f"latest(max_staleness={most})" for most in (50, 200)},
        method="aced",
    ),
    "ca2fl": {f"k={k}": make_local(k) for k in (2, 5)},
}
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
TUNING_SEEDS, DEFAULT_RATE = 1, 0.03


def make_cells(scale: Scale) -> Iterator[Cell]:
    chosen = read_rates(FOLDER)
    for protocol, partition in PARTITIONS.items():
        for method, variants in METHODS.items():
            seconds = ALL_TIME if method == "ssgd, all the time" else QUARTER
            fixed = FIXED | {"partition": partition, "seconds": seconds}
            settings = questions.choose_settings(protocol, method, variants, chosen, DEFAULT_RATE)
            yield Cell(
                {"table": "1", "protocol": protocol, "method": method},
                fixed | settings | {"eval_every": 0.25},
                measurements=("curve", "slow-classes", "server-memory"),
            )
            yield from questions.make_tuning_cells(protocol, method, variants, fixed, RATES, TUNING_SEEDS)


def make_tables(runs: pl.DataFrame) -> list[tuple[str, str]]:
    facts = ("slow_recall", "other_recall", "worst_recall", "updates", "gradients", "megabytes")
    return questions.make_more_tables(runs, (*facts, "mean_staleness", "max_staleness", "server_vectors"))


def draw_figures(runs: pl.DataFrame, results: Path) -> list[tuple[Path, str]]:
    return questions.draw_costs(runs, results, tuple(METHODS))


def is_rehearsed(labels: Labels) -> bool:
    return labels["table"] != TUNING and labels["protocol"] == "labels"


STUDY = Study(
    folder=FOLDER,
    title="Unequal data on unequal machines: who learns the classes of the slow workers?",
    source="A question of 2026, not a reproduction",
    make_cells=make_cells,
    seeds=5,
    quick=is_rehearsed,
    quick_settings={"seconds": None, "gradients": 60, "eval_every": 0},
    compared={},
    more_tables=make_tables,
    figures=draw_figures,
)
