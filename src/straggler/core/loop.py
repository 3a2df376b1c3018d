"""The one loop: a server and an engine, until the budget is spent."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from straggler.core import Arrival, Change, Decision, Diverged, Engine, Server

# Told the arrival or change of workers, what became of it, its staleness, and the model before it; may answer
# that the run is lost.
Observe = Callable[[Arrival | Change, Decision, int, Tensor], Diverged | None]


@dataclass(frozen=True)
class Budget:
    """When a run ends: whichever limit is reached first, checked on the arrival."""

    epochs: float = math.inf  # samples of all workers ÷ size of the training set
    updates: float = math.inf
    gradients: float = math.inf
    seconds: float = math.inf
    shares: Sequence[int] | None = None  # stop="each": a worker stops after so many gradients of its own

    def spent(self, server: Server, now: float) -> float:
        """How much of it is used, from 0 to 1."""
        if self.shares is not None:
            return sum(server.finished) / sum(self.shares)
        used = (server.epochs / self.epochs, server.k / self.updates, server.gradients / self.gradients)
        return min(1.0, max(*used, now / self.seconds))

    def reached(self, server: Server) -> bool:
        return server.epochs >= self.epochs or server.k >= self.updates or server.gradients >= self.gradients


def train(server: Server, engine: Engine, budget: Budget, observe: Observe) -> Diverged | None:
    """Run to the end of the budget; a run that diverges ends there, and says so."""
    jobs = list(server.busy.values()) or server.begin()  # a restored server has its jobs
    while not budget.reached(server):
        for job in jobs:
            engine.submit(job)
        arrival = engine.next()
        if arrival is None:
            if server.active:
                raise RuntimeError(f"{server.policy} left all workers idle after {server.k} updates")
            return None
        if arrival.time > budget.seconds:
            return None
        if isinstance(arrival, Change):
            before = server.x
            what: Decision = "joined" if arrival.joined else "left"
            try:
                jobs = server.change(arrival.worker, arrival.joined)
            except Diverged as end:  # by a gradient that waited for this
                observe(arrival, what, 0, before)
                return end
            observe(arrival, what, 0, before)
            server.ledger.check(server.in_flight)
            continue
        if budget.shares is not None and server.finished[arrival.worker] + 1 >= budget.shares[arrival.worker]:
            server.retire(arrival.worker)
        staleness, before = server.staleness(arrival.job), server.x
        try:
            decision, jobs = server.receive(arrival)
        except Diverged as end:
            observe(arrival, "dropped", staleness, before)
            return end
        lost = observe(arrival, decision, staleness, before)
        server.ledger.check(server.in_flight)
        if lost is not None:
            return lost
    return None
