"""The summary row of a run: all single values, and what a study measures in addition."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from straggler.experiment import Experiment
from straggler.record import Record
from straggler.running.recorder import describe_environment
from straggler.sweeps.measurements import MEASUREMENTS, SummaryRow
from straggler.timing.clusters import Repetition

NOT_IN_ROWS = ("record", "id")  # paths differ between machines; the id is another column


def summarise_run(
    experiment: Experiment, record: Record, measurements: tuple[str, ...], data: Path | None
) -> SummaryRow:
    """Return all single values of the summary, the scores per class, the mean gap and the measurements."""
    summary = record.summary
    row = {
        key: value
        for key, value in summary.items()
        if key not in NOT_IN_ROWS and not isinstance(value, dict | list)
    }
    for score in ("precision", "recall", "f1") if "classes" in summary else ():
        row[score] = [scores[score] for scores in summary["classes"].values()]
    gaps = record.arrivals["gap"]
    row["test_error"] = None if row["test_accuracy"] is None else 100 - row["test_accuracy"]
    row["mean_gap"] = gaps.filter(gaps.is_finite()).mean()
    row |= describe_origin(record.environment if (record.path / "environment.json").is_file() else {})
    for name in measurements:
        row |= MEASUREMENTS[name](experiment, record, data)
    return row


def summarise_throughput(repetition: Repetition) -> SummaryRow:
    """Return the counts of a simulation without gradients, and the gradients used per second."""
    throughput = repetition.measure()
    counts = {**vars(throughput), "speed": throughput.applied / throughput.seconds, "converged": True}
    return counts | describe_origin(describe_this_process())


@functools.cache
def describe_this_process() -> dict[str, Any]:
    return describe_environment([])


def describe_origin(environment: Mapping[str, Any]) -> SummaryRow:
    """Return when a run started, the versions that made it, and the kind of processor."""
    versions = environment.get("versions", {})
    return {
        "started": environment.get("started"),
        "torch_version": versions.get("torch"),
        "straggler_version": versions.get("straggler"),
        "python_version": environment.get("python"),
        "processor": environment.get("processor"),
    }
