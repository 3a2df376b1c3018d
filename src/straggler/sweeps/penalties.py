"""By how much a correction divides a run's gradients: the same run once more, watched."""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from straggler.core import Arrival, Correction, Server
from straggler.core.loop import train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.timing import Durations


@dataclass
class Watched:
    """A correction that also notes what it divides by."""

    correction: Correction
    divisors: list[float] = field(default_factory=list)

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        before = float(torch.linalg.vector_norm(gradient))
        direction, scale = self.correction.correct(gradient, arrival, server)
        after = scale * float(torch.linalg.vector_norm(direction))
        self.divisors.append(before / after if after > 0 else math.nan)
        return direction, scale

    def __getattr__(self, name: str) -> object:
        return getattr(self.correction, name)


def measure_divisor(experiment: Experiment, data: Path | None) -> float:
    """The length of a gradient over that of what is used of it, mean over the second half of the run."""
    problem = experiment.problem(data)
    server, budget = experiment.server(problem), experiment.budget(problem)
    server.correction = watched = Watched(server.correction)  # type: ignore[assignment]
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    with use_one_thread():
        train(server, Simulator(GradientComputer(problem), durations), budget, lambda *seen: None)
    second_half = watched.divisors[len(watched.divisors) // 2 :]
    return statistics.mean(one for one in second_half if not math.isnan(one))
