"""What is kept of a run: one row of facts, and on request its curve, its course, or more measurements."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.record import Record
from straggler.running.atomic_files import write_text_atomically
from straggler.sweeps.penalties import measure_divisor
from straggler.timing.clusters import Repetition

SummaryRow = dict[str, Any]
LEFT_OUT = ("record", "weights_sha256", "id")  # paths are of a machine, the id is there already
POINTS = 200  # of a run's course, per worker


def summarise_run(
    experiment: Experiment, record: Record, keep: tuple[str, ...], data: Path | None
) -> SummaryRow:
    """Everything in the summary that is a single value, the scores by class, the mean gap, and `keep`."""
    summary = record.summary
    scalars = {key: value for key, value in summary.items() if not isinstance(value, dict | list)}
    facts = {key: value for key, value in scalars.items() if key not in LEFT_OUT}
    for score in ("precision", "recall", "f1") if "classes" in summary else ():
        facts[score] = [scores[score] for scores in summary["classes"].values()]
    gaps = record.arrivals["gap"]
    facts["test_error"] = None if facts["test_accuracy"] is None else 100 - facts["test_accuracy"]
    facts["mean_gap"] = gaps.filter(gaps.is_finite()).mean()
    for what in keep:
        facts |= MEASUREMENTS[what](experiment, record, data)
    return facts


def counted(repetition: Repetition) -> SummaryRow:
    """Where the jobs went, and gradients used per second."""
    tally = repetition.measure()
    return {**vars(tally), "speed": tally.applied / tally.seconds, "converged": True}


def curve(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Every evaluation, with the mean staleness and gap since the one before."""
    rows = record.curve
    arrivals = record.arrivals.filter(pl.col("decision") != "cancelled").with_row_index("arrival", 1)
    marks = rows.select(pl.col("gradients").cast(pl.UInt32).alias("arrival"))
    part = arrivals.join_asof(marks.with_columns(until="arrival"), on="arrival", strategy="forward")
    means = part.group_by(pl.col("until").alias("gradients")).agg(pl.col("staleness", "gap").mean())
    merged = rows.join(means.with_columns(pl.col("gradients").cast(pl.Int64)), on="gradients", how="left")
    return {"curve": merged.to_dicts()}


def course(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Loss, weight norm and batches so far over time, worker by worker, thinned out."""
    rows = []
    arrivals = record.arrivals.filter(pl.col("decision") != "cancelled")
    for (worker,), mine in arrivals.group_by("worker", maintain_order=True):
        every = max(1, len(mine) // POINTS)
        smooth = mine.select(
            "time",
            "weight_norm",
            loss=pl.col("loss").rolling_mean(every),
            batches=pl.int_range(1, pl.len() + 1),
        )
        rows += [{"worker": worker, **row} for row in smooth.gather_every(every, every - 1).to_dicts()]
    return {"course": rows}


def beside(record: Record, name: str, measure: Callable[[], SummaryRow]) -> SummaryRow:
    """What takes long to measure is kept beside the record."""
    kept = record.path / name
    if not kept.is_file():
        write_text_atomically(kept, json.dumps(measure()))
    return dict(json.loads(kept.read_text()))


def initial_buffers(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Test accuracy of the final weights with the buffers that the run began with."""

    def measure() -> SummaryRow:
        return {"accuracy_with_initial_buffers": accuracy_with_initial_buffers(experiment, record, data)}

    return beside(record, "initial_buffers.json", measure)


def divided_by(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """By how much the correction divided the gradients in the second half of the run."""
    return beside(record, "divided_by.json", lambda: {"divided_by": measure_divisor(experiment, data)})


def accuracy_with_initial_buffers(experiment: Experiment, record: Record, data: Path | None) -> float:
    problem = experiment.problem(data)
    if not isinstance(problem, SupervisedProblem):
        raise InputError(f"{experiment.dataset} has no network, so no buffers; leave initial-buffers out")
    weights, (_, buffers) = record.weights(), problem.initial_model()
    trained = torch.cat([weights[name].reshape(-1) for name, _ in problem.module.named_parameters()])
    with use_one_thread():
        chunks = [problem.evaluate(trained, buffers, "test", i) for i in range(problem.count_chunks("test"))]
    correct = [chunk.predictions == chunk.targets for chunk in chunks if chunk.predictions is not None]
    return 100 * float(np.mean(np.concatenate(correct)))


MEASUREMENTS: dict[str, Callable[[Experiment, Record, Path | None], SummaryRow]] = {
    "curve": curve,
    "course": course,
    "initial-buffers": initial_buffers,
    "divided-by": divided_by,
}
