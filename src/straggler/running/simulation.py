"""Simulations in this process that leave no record: for previews, calibration, speed-ups and tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Self

from torch import Tensor

from straggler.algorithms.corrections import Uncorrected
from straggler.core import Arrival, Change, Decision, Diverged, Optimizer, Policy, Problem, Server
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.problems.supervised import use_one_thread
from straggler.timing.durations import Durations

# Called after each arrival with the arrival, the server's decision and the staleness.
SimulationObserver = Callable[[Arrival, Decision, int], None]


@dataclass
class Simulation:
    """A server, the problem it minimises, and the durations of its workers' jobs."""

    server: Server
    problem: Problem
    durations: Durations
    diverged: Diverged | None = None
    engine: Simulator = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Simulator(GradientComputer(self.problem), self.durations)

    def run(self, budget: Budget, observe: SimulationObserver | None = None) -> Self:
        """Run until the budget is spent or the run diverges."""

        def forward(arrival: Arrival | Change, decision: Decision, staleness: int, before: Tensor) -> None:
            if observe is not None and isinstance(arrival, Arrival):
                observe(arrival, decision, staleness)

        with use_one_thread():
            self.diverged = train(self.server, self.engine, budget, forward)
        return self


class FixedModel(Optimizer):
    """An optimizer that does not move the model."""

    name: ClassVar[str] = "fixed"

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        return x


def create_simulation(experiment: Experiment, problem: Problem | None = None) -> Simulation:
    """Return the simulation of an experiment; without a problem, gradients cost nothing."""
    problem = NullProblem() if problem is None else problem
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    return Simulation(experiment.server(problem), problem, durations)


def simulate(
    experiment: Experiment,
    problem: Problem | None = None,
    budget: Budget | None = None,
    observe: SimulationObserver | None = None,
) -> Simulation:
    """Simulate an experiment and return the finished simulation.

    Without a problem, gradients cost nothing. Without a budget, the experiment's budget is used.
    """
    simulation = create_simulation(experiment, problem)
    return simulation.run(budget or experiment.budget(simulation.problem), observe)


def simulate_policy(policy: Policy, durations: Durations, budget: Budget) -> Simulation:
    """Simulate only the timing of a policy: gradients cost nothing and the model does not move."""
    problem = NullProblem()
    server = Server(
        *problem.initial_model(),
        durations.workers,
        policy,
        Uncorrected(),
        FixedModel(),
        lr=lambda epochs: 0.0,
        epoch=problem.samples,
    )
    return Simulation(server, problem, durations).run(budget)
