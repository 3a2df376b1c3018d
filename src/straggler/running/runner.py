"""One run: a server, an engine and an observer, from the first job to the last word in the record."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from straggler.core import Problem, Server
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer, GradientPool, on_cores
from straggler.engines.processes import ProcessEngine
from straggler.engines.ray_errors import needing_ray
from straggler.engines.real_time import WorkerError
from straggler.engines.simulator import Simulator
from straggler.problems.supervised import use_one_thread
from straggler.record import Recorder
from straggler.running.checkpointing import Checkpointer, CheckpointInterval, ResumableEngine
from straggler.running.observer import Observer, ObserverSettings, weights_sha256
from straggler.timing import Durations


@dataclass(frozen=True)
class RunOptions:
    """Where a run takes place; changes no result in virtual time, and no rule in real time."""

    jobs: int = 1  # processes that compute (simulator)
    every: CheckpointInterval = field(default_factory=CheckpointInterval)  # checkpoints
    worker_timeout: float = math.inf  # seconds without a sign until a worker is replaced (real time)
    report: Callable[[str], None] = lambda line: None
    address: str | None = None  # of a Ray cluster; without one, Ray is started here
    resources: Mapping[str, float] = field(default_factory=dict)  # that a worker needs of a cluster


def run(
    server: Server,
    problem: Problem,
    make_engine: Callable[[GradientComputer, RunOptions, Recorder], ResumableEngine],
    budget: Budget,
    recorder: Recorder,
    watch: ObserverSettings,
    machine: RunOptions,
    facts: dict[str, Any],
    resumed: dict[str, Any] | None = None,
) -> None:
    """Train, record it, and save it now and then."""
    with use_one_thread():
        compute = GradientPool(problem, 1) if watch.beside else on_cores(problem, machine.jobs)
        # recorded once there is an engine: a cluster that is not there leaves what it finds as it is
        with closing(compute), closing(make_engine(compute, machine, recorder)) as engine, recorder:
            if watch.beside:  # or the first evaluations would be computed here after all
                compute.wait_until_ready()
            observer = Observer(server, compute, budget, recorder, watch)
            keeper = Checkpointer(machine.every, server, engine, observer, recorder)
            keeper.restore(resumed) if resumed else keeper.begin()
            with keeper.listening(), keeper.saving_before(WorkerError):
                end = train(server, engine, budget, keeper)
            facts |= {"train_seconds": keeper.elapsed() - observer.measuring}
            facts |= {"status": "diverged" if end else "finished", "error": str(end) if end else None}
            facts |= {"restarts": len(recorder.events)}
            conclude(server, problem, observer, recorder, facts)


def simulator(durations: Durations) -> Callable[[GradientComputer, RunOptions, Recorder], ResumableEngine]:
    """Virtual time."""
    return lambda compute, machine, recorder: Simulator(compute, durations)


def processes(
    durations: Durations, workers: int, least: int | None = None
) -> Callable[[GradientComputer, RunOptions, Recorder], ResumableEngine]:
    """Real time, a process per worker."""

    def make(compute: GradientComputer, machine: RunOptions, recorder: Recorder) -> ProcessEngine:
        failed = failure_report(machine, recorder)
        return ProcessEngine(compute.problem, durations, workers, least, machine.worker_timeout, failed)

    return make


def ray_cluster(
    durations: Durations, workers: int, least: int | None = None
) -> Callable[[GradientComputer, RunOptions, Recorder], ResumableEngine]:
    """Real time, an actor per worker."""
    with needing_ray("the ray engine"):
        from straggler.engines.ray import RayEngine

    def make(compute: GradientComputer, machine: RunOptions, recorder: Recorder) -> RayEngine:
        machine.report(f"joins Ray at {machine.address}" if machine.address else "starts Ray on this machine")
        failed = failure_report(machine, recorder)
        timeout, where = machine.worker_timeout, {"address": machine.address, "resources": machine.resources}
        return RayEngine(compute.problem, durations, workers, least, timeout, failed, **where)

    return make


def failure_report(machine: RunOptions, recorder: Recorder) -> Callable[[float, int, str], None]:
    """Who is told when a worker fails: the screen and the record."""

    def failed(time: float, worker: int, what: str) -> None:
        machine.report(f"{what}; it is replaced")
        recorder.event(time, worker, what)

    return failed


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
    recorder.tensors("weights.safetensors", problem.state_dict(server.x, server.buffers))
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
