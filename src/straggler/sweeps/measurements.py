"""MEASUREMENTS: what studies measure of a finished run in addition to its summary, by name."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from pydantic import BaseModel, PrivateAttr
from torch import Tensor

from straggler.algorithms.corrections import StalenessAware, Uncorrected
from straggler.config.registry import InputError
from straggler.core import Arrival, Correction, Server
from straggler.core.loop import Budget
from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.record import Record
from straggler.running.atomic_files import write_text_atomically
from straggler.running.simulation import create_simulation
from straggler.timing.laws import ByLabel
from straggler.timing.samples import TrainingSamples

SummaryRow = dict[str, Any]
POINTS_PER_WORKER = 200  # of a `course`
ROUNDS_FOR_MEMORY = 30  # gradients per worker, after which the server's tables are full


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


def measure_once(file: Path, measure: Callable[[], SummaryRow]) -> SummaryRow:
    """Return a measurement that takes long; it is cached in a file of the record."""
    if not file.is_file():
        write_text_atomically(file, json.dumps(measure()))
    return dict(json.loads(file.read_text()))


def measure_initial_buffers(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return the test accuracy of the final weights with the buffers of the untrained model."""

    def measure() -> SummaryRow:
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
        return {"accuracy_with_initial_buffers": 100 * float(np.mean(np.concatenate(correct)))}

    return measure_once(record.path / "initial_buffers.json", measure)


class RecordingCorrection(Correction):
    """Applies another correction and records the factor by which it divides the gradients."""

    name: ClassVar[str] = "recording"
    correction: Correction
    _divisors: list[float] = PrivateAttr(default_factory=list)

    @property
    def divisors(self) -> list[float]:
        """The factors so far, in order of arrival; NaN for a gradient of which nothing is used."""
        return self._divisors

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


def repeat_and_record(experiment: Experiment, data: Path | None) -> list[float]:
    """Repeat a run, and return by what its correction divides each gradient."""
    simulation = create_simulation(experiment, experiment.problem(data))
    recording = RecordingCorrection(correction=simulation.server.correction)
    simulation.server.correction = recording
    simulation.run(experiment.budget(simulation.problem))
    return recording.divisors


def measure_penalties(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return by what the correction divides the gradients: mean, mean of each half, and between evaluations.

    Without a correction it is 1, and division by the staleness follows from the record. For other corrections
    the run is repeated.
    """

    def measure() -> SummaryRow:
        if isinstance(experiment.correction, StalenessAware):
            divisors = record.arrivals["staleness"].clip(1).cast(pl.Float64).to_list()
        elif isinstance(experiment.correction, Uncorrected):
            divisors = [1.0] * len(record.arrivals)
        else:
            divisors = repeat_and_record(experiment, data)
        middle = len(divisors) // 2
        parts = {"": divisors, "_first_half": divisors[:middle], "_second_half": divisors[middle:]}
        ends = record.curve["gradients"].to_list() if record.curve.height else []
        between = [average_known(divisors[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        means = {f"penalty{name}": average_known(part) for name, part in parts.items()}
        return means | {"between": between}

    found = measure_once(record.path / "penalties.json", measure)
    between = found.pop("between")
    curve = measure_curve(experiment, record, data)["curve"] if between else []
    points = [{**row, "penalty": value} for row, value in zip(curve, between, strict=True)]
    return found | {"curve": points}


def average_known(values: Sequence[float]) -> float | None:
    """Return the mean without NaN, or None if nothing is left."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None


def measure_slow_classes(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return the mean recall (%) of the slow classes and of the others, and the lowest recall.

    Slow are the labels of a `by-label` delay, else the classes most of whose samples belong to workers with
    a delay of their own.
    """
    recalls = [100 * scores["recall"] for scores in record.summary.get("classes", {}).values()]
    slow = find_slow_classes(experiment, data)
    others = [recall for label, recall in enumerate(recalls) if label not in slow]
    return {
        "slow_recall": average_known([recalls[label] for label in sorted(slow)]) if recalls else None,
        "other_recall": average_known(others),
        "worst_recall": min(recalls, default=None),
    }


def find_slow_classes(experiment: Experiment, data: Path | None) -> set[int]:
    """Return the classes that `measure_slow_classes` calls slow."""
    if named := {label for law in experiment.delay if isinstance(law, ByLabel) for label in law.labels}:
        return named
    workers = {worker for law in experiment.delay for worker in law.workers or ()}
    problem = experiment.problem(data)
    if not workers or not isinstance(problem, SupervisedProblem):
        return set()
    labels = TrainingSamples(problem).labels
    whole = np.bincount(labels)
    theirs = np.bincount(
        np.concatenate([labels[problem.parts[worker]] for worker in sorted(workers)]), minlength=len(whole)
    )
    return set(np.flatnonzero(2 * theirs > whole).tolist())


def measure_server_memory(experiment: Experiment, record: Record, data: Path | None) -> SummaryRow:
    """Return how many vectors of the model's size the server's components keep, besides the model."""

    def measure() -> SummaryRow:
        simulation = create_simulation(experiment, experiment.problem(data))
        batches = sum(experiment.count_batches() or [1]) / len(experiment.count_batches() or [1])
        simulation.run(Budget(gradients=round(ROUNDS_FOR_MEMORY * experiment.workers * batches)))
        server, seen = simulation.server, dict[int, int]()
        for component in (server.policy, server.correction, server.aggregation, server.optimizer):
            collect_tensors(component, seen)
        collect_tensors([arrival.message for arrival in server.aside], seen)
        seen.pop(server.x.untyped_storage().data_ptr(), None)
        return {"server_vectors": sum(seen.values()) / server.x.numel()}

    return measure_once(record.path / "server_memory.json", measure)


def collect_tensors(value: Any, seen: dict[int, int]) -> None:
    """Add the number of elements of every tensor within a component's state, by the address of its memory."""
    if isinstance(value, Tensor):
        if value.dim() > 0 and not isinstance(value, torch.nn.Parameter):  # the parameter is the model
            seen[value.untyped_storage().data_ptr()] = value.numel()
    elif isinstance(value, torch.optim.Optimizer):
        collect_tensors(dict(value.state), seen)
    elif isinstance(value, BaseModel):
        collect_tensors({**value.__dict__, **(value.__pydantic_private__ or {})}, seen)
    elif isinstance(value, Mapping):
        for each in value.values():
            collect_tensors(each, seen)
    elif isinstance(value, list | tuple):
        for each in value:
            collect_tensors(each, seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        collect_tensors([getattr(value, part.name) for part in dataclasses.fields(value)], seen)


MEASUREMENTS: dict[str, Callable[[Experiment, Record, Path | None], SummaryRow]] = {
    "curve": measure_curve,
    "course": measure_course,
    "initial-buffers": measure_initial_buffers,
    "penalties": measure_penalties,
    "slow-classes": measure_slow_classes,
    "server-memory": measure_server_memory,
}
