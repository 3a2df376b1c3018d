"""Train small experiments without a record, and keep every arrival for a test to look at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from straggler.core import Arrival, Decision, Problem, Server
from straggler.core.loop import train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.timing import Durations


@dataclass
class Story:
    """What a test saw of a run."""

    server: Server
    problem: Problem
    arrivals: list[tuple[Arrival, Decision, int]] = field(default_factory=list)

    @property
    def staleness(self) -> list[int]:
        return [tau for _, _, tau in self.arrivals]

    @property
    def times(self) -> list[float]:
        return [arrival.time for arrival, _, _ in self.arrivals]


def run_story(watch: Callable[[Server], None] | None = None, **settings: Any) -> Story:
    """Train in this process, keeping every arrival; `watch` sees the server after each."""
    experiment = Experiment(**settings)
    problem = experiment.problem()
    server = experiment.server(problem)
    story = Story(server, problem)
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)

    def observe(arrival: Arrival, decision: Decision, staleness: int, before: Tensor) -> None:
        story.arrivals.append((arrival, decision, staleness))
        if watch is not None:
            watch(server)

    with use_one_thread():
        train(server, Simulator(GradientComputer(problem), durations), experiment.budget(problem), observe)
    return story
