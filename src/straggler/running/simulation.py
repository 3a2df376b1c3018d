"""Simulations in this process that leave no record: for previews, calibration, speed-ups and tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from straggler.algorithms.aggregations import Mean
from straggler.algorithms.corrections import Uncorrected
from straggler.algorithms.work import gradient_program
from straggler.core import Arrival, Change, Decision, Diverged, Message, Optimizer, Policy, Problem, Server
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.problems.supervised import use_one_thread
from straggler.timing.churn import Churn
from straggler.timing.cores import CoreSchedule
from straggler.timing.durations import Durations
from straggler.timing.links import Network

# Called after each arrival with the arrival, the server's decision and the staleness.
SimulationObserver = Callable[[Arrival, Decision, int], None]


@dataclass
class Simulation:
    """A server, the problem it minimises, and the durations of its workers' jobs."""

    server: Server
    problem: Problem
    durations: Durations
    network: Network | None = None
    churn: Churn | None = None
    cores: CoreSchedule | None = None
    diverged: Diverged | None = None
    engine: Simulator = field(init=False)

    def __post_init__(self) -> None:
        compute = GradientComputer(self.server.program)
        self.engine = Simulator(compute, self.durations, self.network, self.churn, self.cores)

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

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        return x


class TimingProblem:
    """A problem with the sizes and samples of another one, whose gradients are zero and cost nothing."""

    def __init__(self, problem: Problem) -> None:
        x, buffers = problem.initial_model()
        self._problem, self._result = problem, Message(torch.zeros_like(x), 0.0, buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Message:
        return self._result


def create_timing_problem(experiment: Experiment) -> Problem:
    """Return a problem whose gradients cost nothing, with all that the experiment's timing depends on."""
    has_links = experiment.link or experiment.server_link is not None
    if has_links or any(law.needs_samples for law in experiment.delay):
        return cast(Problem, TimingProblem(experiment.problem()))
    return NullProblem()


def create_simulation(experiment: Experiment, problem: Problem | None = None) -> Simulation:
    """Return the simulation of an experiment; without a problem, gradients cost nothing."""
    problem = create_timing_problem(experiment) if problem is None else problem
    server = experiment.server(problem)
    return Simulation(server, problem, *experiment.timing(server.program))


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
        Mean(),
        FixedModel(),
        lr=lambda epochs: 0.0,
        program=gradient_program(problem),
    )
    return Simulation(server, problem, durations).run(budget)
