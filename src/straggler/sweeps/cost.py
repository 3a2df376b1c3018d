"""How long a run will take on one core, or in real time on all: its gradients times what one costs here."""

import math
import os
import time
from pathlib import Path
from typing import Any

from straggler.core import Problem
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.record import find_finished_record
from straggler.sweeps.grid import PlannedRun
from straggler.timing.clusters import Repetition

TRIALS = 3
FORWARD = 0.35  # of a gradient: what evaluating as many samples takes
COUNTED = 1e-6  # seconds: what a gradient takes that is only counted


class CostModel:
    """Measures a gradient of each kind of problem, once: CPU time, the least of a few, as on a free core."""

    def __init__(self, runs: Path, data: Path | None = None) -> None:
        self.runs, self.data = runs, data
        self._known: dict[tuple[str, str, int], tuple[float, int]] = {}

    def estimate(self, task: PlannedRun) -> float:
        """Seconds; none for a run that is there already or whose data or settings are at fault."""
        experiment = task.experiment
        if isinstance(experiment, Repetition):
            return COUNTED * experiment.gradients
        if find_finished_record(self.runs / experiment.id) is not None:
            return 0.0
        try:
            each, samples = self._measured(experiment)
        except (ValueError, RuntimeError, OSError):
            return 0.0  # it will fail, and say so
        # in training sets, of which a test set is about a sixth
        evaluations = 7 / 6 + self._evaluations(experiment) / 6
        batches = evaluations * samples / experiment.batch_size
        cores = min(experiment.workers, os.cpu_count() or 1) if task.in_real_time else 1
        return each * (gradients(experiment, samples) / cores + FORWARD * batches)

    def _measured(self, experiment: Experiment) -> tuple[float, int]:
        kind = (str(experiment.dataset), str(experiment.model), experiment.batch_size)
        if kind not in self._known:
            problem = experiment.problem(self.data)
            self._known[kind] = seconds_per_gradient(problem), problem.samples
        return self._known[kind]

    def _evaluations(self, experiment: Experiment) -> float:
        every = experiment.eval_every
        return (experiment.epochs or 1.0) / every if every else 0.0


def seconds_per_gradient(problem: Problem) -> float:
    x, buffers = problem.initial_model()
    best = math.inf
    with use_one_thread():
        for index in range(TRIALS + 1):  # the first one warms up
            started = time.process_time()
            problem.gradient(x, buffers, 0, index)
            best = min(best, time.process_time() - started)
    return best


def gradients(experiment: Experiment, samples: int) -> float:
    """How many gradients the budget allows, all workers together."""
    settings: dict[str, Any] = {key: getattr(experiment, key) for key in ("gradients", "updates", "epochs")}
    if settings["gradients"] is not None:
        return float(settings["gradients"])
    if settings["updates"] is not None:
        return float(settings["updates"]) * (experiment.workers if experiment.policy.merges(2) else 1)
    epochs = (settings["epochs"] or 1.0) * samples / experiment.batch_size
    shared = experiment.stop == "each" and str(experiment.partition) == "shared"
    return epochs * (experiment.workers if shared else 1)
