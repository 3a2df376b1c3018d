"""The summary row of a run, and the additional measurements that studies ask for."""

import functools
import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from pydantic import PrivateAttr
from torch import Tensor

from straggler.config.registry import InputError
from straggler.core import Arrival, Correction, Server
from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.record import Record
from straggler.running.atomic_files import write_text_atomically
from straggler.running.recorder import describe_environment
from straggler.running.simulation import create_simulation
from straggler.timing.clusters import Repetition

SummaryRow = dict[str, Any]
NOT_IN_ROWS = ("record", "id")  # paths differ between machines; the id is another column
POINTS_PER_WORKER = 200  # of a `course`


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


def measure_curve(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return every evaluation, with the mean staleness and gap since the previous one."""
    curve = record.curve
    arrivals = record.arrivals.filter(pl.col("decision") != "cancelled").with_row_index("arrival", 1)
    ends = curve.select(pl.col("gradients").cast(pl.UInt32).alias("arrival"))
    parts = arrivals.join_asof(ends.with_columns(until="arrival"), on="arrival", strategy="forward")
    means = parts.group_by(pl.col("until").alias("gradients")).agg(pl.col("staleness", "gap").mean())
    merged = curve.join(means.with_columns(pl.col("gradients").cast(pl.Int64)), on="gradients", how="left")
    return {"curve": merged.to_dicts()}


def measure_course(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return loss, weight norm and number of batches over time for each worker, at a few hundred points."""
    rows = []
    arrivals = record.arrivals.filter(pl.col("decision") != "cancelled")
    for (worker,), jobs in arrivals.group_by("worker", maintain_order=True):
        every = max(1, len(jobs) // POINTS_PER_WORKER)
        smooth = jobs.select(
            "time",
            "weight_norm",
            loss=pl.col("loss").rolling_mean(every),
            batches=pl.int_range(1, pl.len() + 1),
        )
        rows += [{"worker": worker, **row} for row in smooth.gather_every(every, every - 1).to_dicts()]
    return {"course": rows}


def measure_once(file: Path, column: str, measure: Callable[[], float]) -> SummaryRow:
    """Return a measurement that takes long; it is cached in a file of the record."""
    if not file.is_file():
        write_text_atomically(file, json.dumps({column: measure()}))
    return dict(json.loads(file.read_text()))


def measure_initial_buffers(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return the test accuracy of the final weights with the buffers of the untrained model."""

    def measure() -> float:
        problem = experiment.problem(data)
        if not isinstance(problem, SupervisedProblem):
            raise InputError(f"{experiment.dataset} has no network, so initial-buffers cannot be measured")
        weights, (_, buffers) = record.weights(), problem.initial_model()
        trained = torch.cat([weights[name].reshape(-1) for name, _ in problem.module.named_parameters()])
        with use_one_thread():
            chunks = [
                problem.evaluate(trained, buffers, "test", i) for i in range(problem.count_chunks("test"))
            ]
        correct = [chunk.predictions == chunk.targets for chunk in chunks if chunk.predictions is not None]
        return 100 * float(np.mean(np.concatenate(correct)))

    return measure_once(record.path / "initial_buffers.json", "accuracy_with_initial_buffers", measure)


class RecordingCorrection(Correction):
    """Applies another correction and records the factor by which it divides the gradients."""

    name: ClassVar[str] = "recording"
    correction: Correction
    _divisors: list[float] = PrivateAttr(default_factory=list)

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        """Return what the other correction returns."""
        direction, scale = self.correction.correct(gradient, arrival, server)
        used = scale * float(torch.linalg.vector_norm(direction))
        norm = float(torch.linalg.vector_norm(gradient))
        self._divisors.append(norm / used if used > 0 else math.nan)
        return direction, scale

    def stepped(self, server: Server, before: Tensor, lr: float) -> None:
        """Tell the other correction about the step."""
        self.correction.stepped(server, before, lr)

    def mean_divisor(self) -> float:
        """Return the mean over the second half of the run."""
        second_half = self._divisors[len(self._divisors) // 2 :]
        return statistics.mean(divisor for divisor in second_half if not math.isnan(divisor))


def measure_divisor(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return what the correction divided the gradients by, from a repetition of the run."""

    def measure() -> float:
        simulation = create_simulation(experiment, experiment.problem(data))
        recording = RecordingCorrection(correction=simulation.server.correction)
        simulation.server.correction = recording
        simulation.run(experiment.budget(simulation.problem))
        return recording.mean_divisor()

    return measure_once(record.path / "divided_by.json", "divided_by", measure)


MEASUREMENTS: dict[str, Callable[[Experiment, Record, Path | None], SummaryRow]] = {
    "curve": measure_curve,
    "course": measure_course,
    "initial-buffers": measure_initial_buffers,
    "divided-by": measure_divisor,
}
