"""How a cluster will behave, at once: the event simulation through the real objects, without gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from torch import Tensor

from straggler.analysis.timeline import COLUMNS, JUST
from straggler.core import Arrival, Change, Decision
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.timing import Durations
from straggler.web.classes import partition
from straggler.web.figure import Figure
from straggler.web.gallery import counted
from straggler.web.run_facts import build_command, format_command
from straggler.web.staleness import staleness
from straggler.web.timeline import NOTE, timeline_data, timeline_layout

JOBS_PER_WORKER, FEWEST_JOBS, MOST_JOBS = 25, 200, 1500
DRAWN_PER_WORKER = 12
SCHEMA: dict[str, Any] = dict.fromkeys(COLUMNS, pl.Float64) | {
    "worker": pl.Int64,
    "launch": pl.Int64,
    "staleness": pl.Int64,
    "decision": pl.String,
}


def simulate_jobs(experiment: Experiment, jobs: int) -> pl.DataFrame:
    """The first jobs of a run, as `analysis.jobs` gives them for a record."""
    problem = NullProblem()
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    engine, server = Simulator(GradientComputer(problem), durations), experiment.server(problem)
    free = [0.0] * experiment.workers  # since when each worker has been without a job
    rows: list[tuple[Any, ...]] = []

    def enter(worker: int, launch: int, started: float, end: float, tau: int, decision: str) -> None:
        delay = durations.parts(worker, launch)[1] if decision != "cancelled" else 0.0
        idle = free[worker] if started - free[worker] > JUST else None
        rows.append((worker, launch, started, max(started, end - delay), end, tau, decision, idle))
        free[worker] = end

    def observe(arrival: Arrival | Change, decision: Decision, tau: int, before: Tensor) -> None:
        assert isinstance(arrival, Arrival), "in virtual time nobody comes or goes"
        enter(arrival.worker, arrival.job.launch, arrival.started, arrival.time, tau, decision)
        for job in server.cancelled:
            began = engine.started[job.worker]
            enter(job.worker, job.launch, began, arrival.time, server.staleness(job), "cancelled")

    train(server, engine, Budget(gradients=jobs), observe)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def preview(experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Pictures, facts and sentences on a cluster that nobody has run yet."""
    workers = experiment.workers
    jobs = simulate_jobs(experiment, min(MOST_JOBS, max(FEWEST_JOBS, JOBS_PER_WORKER * workers)))
    facts = behaviour(jobs, workers)
    until = float(jobs["time"][min(len(jobs), DRAWN_PER_WORKER * workers) - 1])
    drawn = jobs.filter(pl.col("time") <= until)
    when = Figure(
        "timeline",
        "The first moments",
        NOTE,
        timeline_data(drawn),
        timeline_layout(workers, "virtual time (s)"),
        height=150 + 22 * min(workers, 32),
    )
    figures = [when, staleness({"expected": jobs})]
    keys = (experiment.dataset, experiment.partition, workers, experiment.seed, experiment.validation)
    if (dealt := counted(*map(str, keys))) is not None and (data := partition({"": dealt})) is not None:
        figures.append(data)
    return {
        "figures": [figure.spec() for figure in figures],
        "facts": facts,
        "sentences": sentences(facts, workers),
        "command": format_command(build_command(settings)),
        "id": experiment.id,
    }


def behaviour(jobs: pl.DataFrame, workers: int) -> dict[str, float]:
    """What the rehearsal shows in numbers."""
    done = jobs.filter(pl.col("decision") != "cancelled")
    end = float(done["time"][-1])
    used = done.filter(pl.col("decision") != "dropped")
    waiting = float((jobs["started"] - jobs["idle_from"]).sum())
    counts = np.bincount(done["worker"], minlength=workers)
    taus = used["staleness"] if len(used) else pl.Series([0])
    return {
        "rate": len(done) / end,
        "used": len(used) / len(done),
        "cancelled": (len(jobs) - len(done)) / len(jobs),
        "busy": 1.0 - waiting / (end * workers),
        "staleness": float(taus.mean()),  # type: ignore[arg-type]
        "oldest": float(taus.max()),  # type: ignore[arg-type]
        "fewest": float(counts.min() / counts.sum()),
        "most": float(counts.max() / counts.sum()),
    }


def sentences(facts: Mapping[str, float], workers: int) -> list[str]:
    """The same for people."""
    said = [f"Together the workers deliver {facts['rate']:.2f} gradients per second."]
    if facts["staleness"] < JUST:
        said.append("No gradient is stale: everybody computes at the newest model.")
    else:
        said.append(
            f"A gradient is {facts['staleness']:.1f} updates old on average when it is used, "
            f"the oldest {facts['oldest']:.0f}."
        )
    if facts["busy"] < 0.98:
        said.append(f"The workers wait {100 * (1 - facts['busy']):.0f} % of the time.")
    else:
        said.append("Nobody ever waits.")
    if facts["cancelled"] > 0 or facts["used"] < 1:
        lost = 1 - facts["used"] * (1 - facts["cancelled"])
        said.append(f"{100 * lost:.0f} % of the jobs are thrown away, stopped or unused.")
    if workers > 1 and facts["fewest"] < 0.5 * facts["most"]:
        said.append(
            f"The slowest worker delivers {100 * facts['fewest']:.0f} % of the gradients, "
            f"the fastest {100 * facts['most']:.0f} %: the model sees less of the slow one's data."
        )
    return said
