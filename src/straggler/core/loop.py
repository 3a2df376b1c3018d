"""The event loop: connect a server and an engine until the budget is spent."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from straggler.core import Arrival, Change, Decision, Diverged, Engine, Server

# Called with the arrival or change, the server's decision, the staleness, and the model before it. Raising
# Diverged ends the run.
Observe = Callable[[Arrival | Change, Decision, int, Tensor], None]


@dataclass(frozen=True)
class Budget:
    """When a run ends: at the limit that is reached first, checked at each arrival."""

    epochs: float = math.inf  # samples of all workers ÷ size of the training set
    updates: float = math.inf
    gradients: float = math.inf
    seconds: float = math.inf
    shares: Sequence[int] | None = None  # stop="each": how many gradients each worker computes

    def spent(self, server: Server, now: float) -> float:
        """Return the spent fraction of the budget, from 0 to 1."""
        if self.shares is not None:
            return sum(server.finished) / sum(self.shares)
        used = (server.epochs / self.epochs, server.k / self.updates, server.gradients / self.gradients)
        return min(1.0, max(*used, now / self.seconds))

    def reached(self, server: Server) -> bool:
        """Return whether a limit other than seconds is reached."""
        return (
            server.gradients >= self.gradients
            or server.k >= self.updates
            or server.samples / server.epoch >= self.epochs
        )


def train(
    server: Server,
    engine: Engine,
    budget: Budget,
    observe: Observe,
    between: Callable[[], bool] = lambda: False,  # called between two arrivals; True ends the run
) -> Diverged | None:
    """Run until the budget is spent. If the server or `observe` raises Diverged, stop and return it."""
    try:
        process_arrivals(server, engine, budget, observe, between)
    except Diverged as reason:
        return reason
    return None


def process_arrivals(
    server: Server, engine: Engine, budget: Budget, observe: Observe, between: Callable[[], bool]
) -> None:
    """Pass jobs to the engine and arrivals to the server until the budget is spent."""
    jobs = list(server.busy.values()) or server.begin()  # a restored server has jobs in flight
    seconds, shares = budget.seconds, budget.shares
    while not budget.reached(server):
        for job in jobs:
            if engine.submit(job) is False:
                server.unsent -= 1
        server.count_sent()
        arrival = engine.next()
        if arrival is None:
            between()  # ends the run if the user stopped it while the engine waited
            if server.active and engine.now < seconds:
                raise RuntimeError(f"{server.policy} left all workers idle after {server.k} updates.")
            return
        if arrival.time > seconds:
            return
        before = server.x
        if isinstance(arrival, Change):
            change: Decision = "joined" if arrival.joined else "left"
            try:
                jobs = server.change(arrival.worker, arrival.joined)
            except Diverged:  # because of a gradient that was merged at this change
                observe(arrival, change, 0, before)
                raise
            observe(arrival, change, 0, before)
            server.ledger.check(server.in_flight)
            if between():
                return
            continue
        if shares is not None and server.finished[arrival.worker] + 1 >= shares[arrival.worker]:
            server.retire(arrival.worker)
        staleness = server.k - arrival.job.version
        try:
            decision, jobs = server.receive(arrival)
        except Diverged:
            observe(arrival, "dropped", staleness, before)
            raise
        observe(arrival, decision, staleness, before)
        server.ledger.check(len(server.busy) + len(server.aside) + server.held)
        if between():
            return
