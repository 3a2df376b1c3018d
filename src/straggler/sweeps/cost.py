"""Estimates of how long runs take, from a few gradients and evaluations on this machine."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from straggler.core.interfaces import Problem, Split
from straggler.core.loop import Budget
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.record import Record
from straggler.running.simulation import simulate
from straggler.sweeps.grid import PlannedRun
from straggler.timing import Law
from straggler.timing.clusters import Repetition, mean_batch_seconds

MEASURE_SECONDS = 0.2  # of training per kind of experiment
MAX_GRADIENTS = 50
MAX_WORKERS = 32  # whose job times are averaged
RECORDING = 1.25  # recording a run makes an arrival this much slower
COUNTED_SECONDS = 1e-6  # of an arrival without a gradient
LOW, HIGH = 0.8, 1.8  # actual over estimated time, because other programs use the machine too
LEARNED_LOW, LEARNED_HIGH = 0.77, 1.3  # the same after runs of every kind have ended on this machine
KIND = ("dataset", "model", "loss", "batch_size", "work", "channel", "correction", "optimizer", "engine")
Kind = tuple[str, ...]


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds on one core for one kind of experiment."""

    start: float  # load the data and build the model
    gradient: float  # compute it, with its share of the message and the step
    evaluation: float  # of the test and validation sets
    train_evaluation: float  # of the training set
    samples: int  # of the training set


def find_kind(experiment: Experiment | Repetition) -> Kind:
    """Return the settings on which the cost of a gradient depends."""
    if isinstance(experiment, Repetition):
        return ("without gradients",)
    return tuple(str(getattr(experiment, key)) for key in KIND)


class EstimateErrors:
    """How long runs took compared with their estimates, by kind of experiment."""

    def __init__(self) -> None:
        self._sums: dict[Kind, tuple[float, float]] = {}  # of seconds: taken and estimated

    def __contains__(self, kind: Kind) -> bool:
        return kind in self._sums

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, kind: Kind, taken: float, estimated: float) -> None:
        """Learn from a run that has ended."""
        if taken > 0 and estimated > 0:
            before = self._sums.get(kind, (0.0, 0.0))
            self._sums[kind] = before[0] + taken, before[1] + estimated

    def factor(self, kind: Kind) -> float:
        """Return what to multiply an estimate of this kind by; for a new kind, the mean of the others."""
        sums = [self._sums[kind]] if kind in self._sums else list(self._sums.values())
        taken, estimated = (sum(column) for column in zip(*sums, strict=True)) if sums else (1.0, 1.0)
        return taken / estimated


class CostModel:
    """Estimates the seconds of runs: each kind is measured once, and finished runs correct it."""

    def __init__(self, data: Path | None = None) -> None:
        self.data, self.errors = data, EstimateErrors()
        self._costs: dict[Kind, MeasuredCosts] = {}

    def learn(self, run: PlannedRun, record: Record) -> None:
        """Compare the estimate of a finished run with the time that it took, if it ran on such a machine."""
        taken, environment = record.summary.get("host_seconds"), record.environment
        here = platform.platform(), os.cpu_count()
        if isinstance(taken, float) and (environment.get("platform"), environment.get("cores")) == here:
            kind, estimated = find_kind(run.experiment), self._estimate(run)
            if (costs := self._costs.get(kind)) is not None:  # without the last evaluation
                taken += costs.evaluation + costs.train_evaluation
            self.errors.add(kind, taken, estimated)

    def estimate(self, run: PlannedRun) -> float:
        """Return the seconds of a run; 0 if it cannot start."""
        return self.errors.factor(find_kind(run.experiment)) * self._estimate(run)

    def _estimate(self, run: PlannedRun) -> float:
        experiment = run.experiment
        if isinstance(experiment, Repetition):
            return COUNTED_SECONDS * experiment.gradients
        kind = find_kind(experiment)
        try:
            if kind not in self._costs:
                self._costs[kind] = measure_costs(experiment, self.data)
        except (ValueError, RuntimeError, OSError):
            return 0.0  # the run will fail with this error
        return estimate_seconds(experiment, self._costs[kind])


def measure_costs(experiment: Experiment, data: Path | None) -> MeasuredCosts:
    """Train for a moment and evaluate a few samples."""
    started = time.perf_counter()
    problem = experiment.problem(data)
    x, buffers = problem.initial_model()
    start = time.perf_counter() - started

    gradient = measure_gradient(experiment, problem, 1)
    count = min(MAX_GRADIENTS, int(MEASURE_SECONDS / max(gradient, 1e-4)))
    if count > 1:  # the first gradient is slow
        gradient = min(gradient, measure_gradient(experiment, problem, count))
    with use_one_thread():
        chunk = min(measure_seconds(problem.evaluate, x, buffers, "test", 0) for _ in range(2))
    tested: list[Split] = ["test", "validation"] if experiment.validation else ["test"]
    evaluation = chunk * sum(map(problem.count_chunks, tested))
    return MeasuredCosts(start, gradient, evaluation, chunk * problem.count_chunks("train"), problem.samples)


def measure_gradient(experiment: Experiment, problem: Problem, count: int) -> float:
    """Return the seconds per gradient of a run of about so many gradients."""
    started = time.perf_counter()
    server = simulate(experiment, problem, Budget(gradients=count)).server
    return (time.perf_counter() - started) / max(1, server.gradients)


def measure_seconds(function: Callable[..., object], *arguments: object) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def estimate_seconds(experiment: Experiment, costs: MeasuredCosts) -> float:
    """Return the seconds of a run on one core, or of a real-time run on this machine."""
    gradients = count_gradients(experiment, costs.samples)
    training = RECORDING * costs.gradient * gradients
    if experiment.engine != "simulator":
        cores = min(experiment.workers, os.cpu_count() or 1)
        job = costs.gradient + mean_job_seconds(experiment, experiment.delay)
        training = experiment.seconds or max(training / cores, gradients * job / experiment.workers)
    epochs = gradients * experiment.mean_batch_size / costs.samples
    evaluations = 1 + (epochs / experiment.eval_every if experiment.eval_every else 0.0)
    of_train = {"never": 0.0, "end": 1.0, "always": evaluations}[experiment.train_metrics or "end"]
    return costs.start + training + evaluations * costs.evaluation + of_train * costs.train_evaluation


def count_gradients(experiment: Experiment, samples: int) -> float:
    """Return how many gradients the budget allows, all workers together."""
    if experiment.gradients is not None:
        return float(experiment.gradients)
    batches = experiment.count_batches() or [1]
    per_message = sum(batches) / len(batches)
    if experiment.updates is not None:
        try:
            messages = experiment.updates * experiment.policy.gradients_per_step(experiment.workers)
        except ValueError:  # a custom policy that does not say; a step uses at most one message per worker
            messages = experiment.updates * experiment.workers
        return messages * per_message
    if experiment.seconds is not None:  # links are ignored, so this is the largest number
        job = mean_job_seconds(experiment, [experiment.compute, *experiment.delay])
        return experiment.workers * experiment.seconds / max(job, 1e-9)
    epochs = (experiment.epochs or 1.0) * samples / experiment.mean_batch_size
    is_shared = experiment.stop == "each" and str(experiment.partition) == "shared"
    return epochs * (experiment.workers if is_shared else 1)


def mean_job_seconds(experiment: Experiment, laws: Sequence[Law]) -> float:
    """Return the mean seconds of a job by the sum of these laws."""
    workers = min(experiment.workers, MAX_WORKERS)
    return mean_batch_seconds(laws[0], laws[1:], workers, [experiment.seed]) if laws else 0.0
