"""Checks of custom code: run small experiments with it and report which laws it breaks."""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.utils.data import Dataset

from straggler.config.imports import import_object
from straggler.config.registry import InputError, parse_call
from straggler.core import Aggregation, Arrival, Change, Channel, Correction, Optimizer, Policy, Work
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.models import Model
from straggler.problems.partitions import Partition
from straggler.record import Record
from straggler.running.replay import replay
from straggler.timing import Law

# The setting of Experiment that a class belongs to.
KINDS: dict[type, str] = {
    Policy: "policy",
    Correction: "correction",
    Optimizer: "optimizer",
    Work: "work",
    Channel: "channel",
    Aggregation: "aggregation",
    Law: "delay",
    Partition: "partition",
    Model: "model",
    nn.Module: "model",
    Dataset: "dataset",
}
STAGES = ("policy", "correction", "optimizer", "work", "channel", "aggregation")
UPDATES = 40  # budget of the small experiments
WORKERS = (2, 5)  # numbers of workers to train with


@dataclass(frozen=True)
class CheckResult:
    """One law and whether the custom code obeys it."""

    law: str
    failure: str | None  # reason of the failure; None if the code obeys the law


def find_kind(text: str) -> str:
    """Return the setting of Experiment that an import string is for, judging by the class it names."""
    target = import_object(parse_call(text)[0])
    if isinstance(target, type):
        for kind, key in KINDS.items():
            if issubclass(target, kind):
                return key
    raise InputError(
        f"{text} is neither a component nor a module. Pass --as loss, --as model or --as dataset."
    )


def check_custom_code(text: str, key: str | None = None, **settings: Any) -> Iterator[CheckResult]:
    """Check an import string law by law; `settings` replace those of the small test experiment."""
    try:
        key = key or find_kind(text)
    except ValueError as error:
        raise InputError(str(error)) from None

    def build(**changes: Any) -> Experiment:
        return Experiment(**default_settings(key) | {key: text} | settings | changes)

    def construct() -> None:
        for workers in (1, *WORKERS):
            build(workers=workers)

    with tempfile.TemporaryDirectory() as folder:
        laws = {"It can be constructed with 1, 2 and 5 workers": construct}
        laws |= list_laws(build, key, Path(folder))
        for position, (law, check) in enumerate(laws.items()):
            yield (result := run_check(law, check))
            if result.failure is not None and position < 2:
                return  # if it cannot be constructed or trained, all other laws fail for the same reason


def default_settings(key: str) -> dict[str, Any]:
    """Return the settings of a small experiment; components are tested on a quadratic, which is fast."""
    supervised = key in ("model", "dataset", "loss", "partition")
    settings: dict[str, Any] = {"workers": 5, "updates": UPDATES, "lr": 0.01, "eval_every": 0}
    settings["compute"] = "gamma(mean=1, cv=0.5)"
    if supervised:
        return settings | {"dataset": "digits", "model": "mlp(hidden=[8])"}
    return settings | {"dataset": "quadratic(noise=0.1)"}


def list_laws(build: Callable[..., Experiment], key: str, folder: Path) -> dict[str, Callable[[], None]]:
    """Return the checks by the law that each one tests."""
    whole = folder / "whole"

    def finish() -> None:
        for workers in WORKERS:
            summary = build(workers=workers).run(whole, jobs=1).summary
            require(summary["updates"] >= UPDATES, f"{workers} workers: {summary['updates']} updates")
            require(summary["status"] == "finished", f"{workers} workers: {summary['error']}")

    def repeat() -> None:
        first, second = (build().run(folder / name, jobs=1) for name in ("whole", "again"))
        require_same(first.summary, second.summary, "two identical runs")

    def use_processes() -> None:
        alone, pooled = build().run(whole, jobs=1), build().run(folder / "pooled", jobs=2)
        require_same(alone.summary, pooled.summary, "one and two processes")

    def resume() -> None:
        experiment = build(engine=f"{__name__}:{InterruptingSimulator.__name__}")
        InterruptingSimulator.arrivals_left = UPDATES // 2
        try:
            with suppress(KeyboardInterrupt):
                experiment.run(folder / "resumed", jobs=1, checkpoint_every="3")
        finally:
            InterruptingSimulator.arrivals_left = math.inf
        require(not Record(folder / "resumed" / experiment.id).ended, "the run was not interrupted")
        resumed = experiment.run(folder / "resumed", jobs=1)
        require_same(build().run(whole, jobs=1).summary, resumed.summary, "a whole and a resumed run")

    def replay_record() -> None:
        experiment = build()
        result = replay(experiment.run(whole, jobs=1), experiment)
        require(result.matches, "replaying the record gives other weights")

    def recreate() -> None:
        experiment = build()
        record = experiment.run(whole, jobs=1)
        again = Experiment.from_record(record, trust=True)
        require(again.id == experiment.id, "the experiment recreated from the record has another id")

    def train_with_churn() -> None:
        record = build(churn="exponential-churn(up=6, down=2)").run(folder / "churn", jobs=1)
        updates = record.summary["updates"]
        require(updates >= UPDATES, f"only {updates} of {UPDATES} updates were made")

    laws: dict[str, Callable[[], None]] = {
        "Training reaches its budget": finish,
        "The same experiment gives the same weights": repeat,
        "The weights do not depend on the number of processes": use_processes,
        "An interrupted run resumes to the same weights": resume,
        "Replaying the record gives the same weights": replay_record,
        "The record's text recreates the experiment": recreate,
    }
    if key in STAGES:
        laws["Training continues when workers leave and come back"] = train_with_churn
    return laws


def run_check(law: str, check: Callable[[], None]) -> CheckResult:
    """Run one check and return its result; any exception counts as a failure."""
    try:
        check()
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        return CheckResult(law, text if isinstance(error, InputError) else f"{type(error).__name__}: {text}")
    return CheckResult(law, None)


class LawError(AssertionError):
    """Raised if custom code breaks a law."""


def require(holds: bool, failure: str) -> None:
    """Raise LawError unless a condition holds."""
    if not holds:
        raise LawError(failure)


def require_same(one: dict[str, Any], other: dict[str, Any], runs: str) -> None:
    """Raise LawError unless two runs ended with the same weights."""
    require(one["weights_sha256"] == other["weights_sha256"], f"{runs} end with different weights")


class InterruptingSimulator(Simulator):
    """A simulator that raises KeyboardInterrupt after a number of arrivals."""

    arrivals_left: ClassVar[float] = math.inf

    def next(self) -> Arrival | Change | None:
        InterruptingSimulator.arrivals_left -= 1
        if self.arrivals_left < 0:
            raise KeyboardInterrupt
        return super().next()
