"""The summary row of a run: all single values, and what a study measures in addition."""

from pathlib import Path

from straggler.experiment import Experiment
from straggler.record import Record
from straggler.sweeps.measurements import MEASUREMENTS, SummaryRow
from straggler.timing.clusters import Repetition

NOT_IN_ROWS = ("record", "weights_sha256", "id")  # paths differ between machines; the id is another column


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
    for name in measurements:
        row |= MEASUREMENTS[name](experiment, record, data)
    return row


def summarise_throughput(repetition: Repetition) -> SummaryRow:
    """Return the counts of a simulation without gradients, and the gradients used per second."""
    throughput = repetition.measure()
    return {**vars(throughput), "speed": throughput.applied / throughput.seconds, "converged": True}
