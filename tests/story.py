"""Simulate small experiments without a record, and return every arrival for tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from straggler.core import Arrival, Decision, Problem, Server
from straggler.experiment import Experiment
from straggler.running.simulation import create_simulation


@dataclass
class Story:
    """The server, the problem and the arrivals of a simulation."""

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
    """Simulate an experiment and collect its arrivals; call `watch` with the server after each."""
    experiment = Experiment(**settings)
    problem = experiment.problem()
    simulation = create_simulation(experiment, problem)
    story = Story(simulation.server, problem)

    def observe(arrival: Arrival, decision: Decision, staleness: int) -> None:
        story.arrivals.append((arrival, decision, staleness))
        if watch is not None:
            watch(simulation.server)

    simulation.run(experiment.budget(problem), observe)
    return story
