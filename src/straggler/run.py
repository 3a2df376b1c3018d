"""One run: a server, an engine and an observer, from the first job to the last word in the record."""

import time
from typing import Any

from straggler.core import Server
from straggler.delays import Durations
from straggler.engines.compute import Compute, Pool
from straggler.engines.simulator import Simulator
from straggler.keeper import Every, Keeper
from straggler.observe import Observer, Watch, weights_sha256
from straggler.problem import Problem, one_thread
from straggler.record import Recorder
from straggler.train import Budget, train

__all__ = ["run"]


def run(
    server: Server,
    problem: Problem,
    durations: Durations,
    budget: Budget,
    recorder: Recorder,
    watch: Watch,
    jobs: int,
    every: Every,
    facts: dict[str, Any],
    resumed: dict[str, Any] | None = None,
) -> None:
    """Train in virtual time on so many processes, record it, and save it now and then."""
    with one_thread():
        compute = Pool(problem, jobs) if jobs > 1 else Compute(problem)
        try:
            observer = Observer(server, compute, budget, recorder, watch)
            keeper = Keeper(every, server, Simulator(compute, durations), observer, recorder)
            keeper.restore(resumed) if resumed else observer.begin()
            with keeper.listening():
                end = train(server, keeper.engine, budget, keeper)
            facts |= {"train_seconds": keeper.elapsed() - observer.measuring}
            facts |= {"status": "diverged" if end else "finished", "error": str(end) if end else None}
            conclude(server, problem, observer, recorder, facts)
        finally:
            compute.close()


def conclude(
    server: Server, problem: Problem, observer: Observer, recorder: Recorder, facts: dict[str, Any]
) -> None:
    """Evaluate, keep the weights, and write the summary."""
    facts |= observer.final() | counts(server)
    facts |= {
        "seconds": observer.seconds,
        "host_seconds": time.monotonic() - facts.pop("started"),
        "converged": facts["status"] == "finished" and observer.converged(facts["test_accuracy"]),
        "weights_sha256": weights_sha256(server.x, server.buffers),
        "record": str(recorder.path),
    }
    recorder.tensors("weights.safetensors", problem.named(server.x, server.buffers))
    recorder.finish(facts)


def counts(server: Server) -> dict[str, Any]:
    """The ledger and what else the server counted."""
    ledger = server.ledger
    return {
        "updates": server.k,
        "gradients": server.gradients,
        "dispatched": ledger.dispatched,
        "applied": ledger.applied,
        "dropped": ledger.dropped,
        "cancelled": ledger.cancelled,
        "in_flight": server.in_flight,
        "epochs": server.epochs,
        "mean_staleness": server.staleness_sum / max(1, ledger.applied),
        "max_staleness": server.staleness_max,
    }
