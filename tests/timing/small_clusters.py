"""Small simulated clusters with links, churn and shared cores, for tests: every event becomes a row."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from straggler.algorithms.aggregations import Mean
from straggler.algorithms.channels import Exact
from straggler.algorithms.corrections import Uncorrected
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.work import WORK
from straggler.config.registry import parse_entry
from straggler.core import Arrival, Change, Decision, Server, WorkerProgram
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.simulator import Simulator
from straggler.problems.quadratic import QuadraticData, QuadraticProblem
from straggler.running.checkpoints import decode_value, encode_value
from straggler.timing import CHURN, DELAYS, LINKS, Churn, Durations, Network
from straggler.timing.cores import CORES, CoreSchedule

BYTES_UP, BYTES_DOWN = 100, 50


class Interrupted(Exception):
    """Raised between two events."""


@dataclass
class Cluster:
    """A server and a simulator. `rows` has (time, worker, what) of every event."""

    policy: str = "asynchronous"
    compute: str = "constant(1)"
    delays: Sequence[str] = ()
    links: Sequence[str] = ()
    server_link: str | None = None
    churn: Sequence[str] = ()
    cores: str | None = None
    workers: int = 2
    work: str = "gradient"
    batches: Sequence[int] | None = None
    scales: Sequence[float] | None = None
    seed: int = 0
    problem: Any = None
    is_plain: bool = False  # neither a network nor a churn object, not even empty ones
    make_computer: Callable[[WorkerProgram], GradientComputer] = GradientComputer
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem or QuadraticProblem(
            QuadraticData(dimension=3, noise=0.5, spread=1.0), self.workers, 4, self.seed
        )
        laws = [parse_entry(text, DELAYS) for text in (self.compute, *self.delays)]
        self.program = WorkerProgram(problem, parse_entry(self.work, WORK), Exact(), self.seed, self.batches)
        durations = Durations(laws[0], laws[1:], self.workers, self.seed, self.batches, self.scales)
        network = churn = None
        if not self.is_plain:
            links = [parse_entry(text, LINKS) for text in self.links]
            server_link = None if self.server_link is None else parse_entry(self.server_link, LINKS)
            network = Network(links, server_link, self.workers, BYTES_UP, BYTES_DOWN)
            churn = Churn([parse_entry(text, CHURN) for text in self.churn], self.workers, self.seed)
        shared = None
        if self.cores is not None:
            shared = CoreSchedule(parse_entry(self.cores, CORES), self.workers, self.seed)
        self.engine = Simulator(self.make_computer(self.program), durations, network, churn, shared)
        self.server = Server(
            *problem.initial_model(),
            self.workers,
            parse_entry(self.policy, POLICIES),
            Uncorrected(),
            Mean(),
            parse_entry("sgd", OPTIMIZERS),
            lambda epochs: 0.01,
            self.program,
        )

    def run(self, events: float = 10**9, **limits: float) -> "Cluster":
        """Run until a limit of the budget, or until there are this many events."""

        def observe(event: Arrival | Change, decision: Decision, staleness: int, before: Tensor) -> None:
            if isinstance(event, Change):
                self.rows.append((event.time, event.worker, "join" if event.joined else "leave"))
            else:
                self.arrivals.append(event)
                self.rows.append((event.time, event.worker, decision))

        def between() -> None:
            if len(self.rows) >= events:
                raise Interrupted

        with contextlib.suppress(Interrupted):
            assert train(self.server, self.engine, Budget(**limits), observe, between) is None
        return self

    def checkpoint(self) -> Any:
        """Return everything that a checkpoint stores, written and read as a checkpoint is."""
        tensors: dict[int, tuple[int, Tensor]] = {}
        state = (self.server.state(), self.engine.now, self.engine.started, self.engine.state())
        text = json.dumps(encode_value(state, tensors))
        return decode_value(json.loads(text), dict(tensors.values()))

    def restore(self, checkpoint: Any) -> "Cluster":
        """Continue from the checkpoint of a cluster with the same settings."""
        state, now, started, engine = checkpoint
        self.server.restore(state)
        begun = {worker: started.get(worker, now) for worker in self.server.busy}
        self.engine.resume(now, begun, list(self.server.active), engine)
        return self
