"""From a real run to its simulation: what a job's seconds were spent on, and what that predicts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from straggler.config.registry import InputError
from straggler.core import Arrival, Server
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.record import Record
from straggler.timing import Durations, Gamma, Law

FEWEST = 20  # jobs of a worker that a fit needs
NOTICED = 0.02  # relative difference between workers that gets a term of its own
COMPUTED = ("dataset", "model", "loss", "partition")  # what a gradient is of; its time is measured
DIGITS = 6  # of a second: nobody measures nanoseconds here


@dataclass(frozen=True)
class Calibration:
    """A model of a cluster fitted to a run, and how well it predicts that run."""

    experiment: Experiment  # to simulate
    parts: pl.DataFrame  # mean seconds of each worker's jobs, by what they were spent on
    measured: dict[str, float]
    predicted: dict[str, float]
    staleness: pl.DataFrame  # share of the gradients by staleness, measured and predicted

    def to_json(self) -> str:
        """For those who show it: predicted beside measured."""
        tables = {"parts": self.parts.to_dicts(), "staleness": self.staleness.to_dicts()}
        laws = {"compute": str(self.experiment.compute), "delay": [str(law) for law in self.experiment.delay]}
        return json.dumps({"measured": self.measured, "predicted": self.predicted} | tables | laws, indent=1)


def calibrate(record: Record, experiment: Experiment | None = None) -> Calibration:
    """Fit compute, transport and server times to a run in real time; injected delays are known.

    What a run computes does not matter: where text cannot hold its data or model, and no experiment is given,
    others stand for them.
    """
    experiment = experiment or Experiment.from_record(record, defaults_for=COMPUTED)
    if experiment.engine == "simulator":
        raise InputError(f"{record.path} was simulated; give a run in real time: --engine processes")
    if not record.ended:
        raise InputError(f"{record.path} has not ended; straggler resume {record.path} goes on with it")
    jobs = finished_jobs(record, experiment.workers)
    same = {key: value for key, value in experiment if value is not None}
    fitted = Experiment(**same | {"engine": "simulator"} | laws(jobs, experiment))
    arrivals = record.arrivals.filter(pl.col("compute").is_not_null())
    updates, predicted = predict(fitted, len(arrivals))
    return Calibration(
        fitted,
        jobs.group_by("worker").mean().sort("worker"),
        facts(record.summary["updates"], arrivals),
        facts(updates, predicted),
        distributions(arrivals, predicted),
    )


def finished_jobs(record: Record, workers: int) -> pl.DataFrame:
    """What each finished job's seconds were spent on, without every worker's first, which warms up."""
    rows = record.arrivals.filter(pl.col("compute").is_not_null()).sort("time")
    answered = rows.select("time", heard="time")  # the last arrival before a job began: what it answers
    rows = rows.sort("started").join_asof(answered, left_on="started", right_on="time")
    spent = rows.select(
        "worker",
        "compute",
        "delay",
        transport=(pl.col("time") - pl.col("started") - pl.col("compute") - pl.col("delay")).clip(0),
        server=pl.col("started") - pl.col("heard"),
    )
    spent = spent.filter(pl.int_range(pl.len()).over("worker") > 0).drop_nulls()
    counts = dict(spent.group_by("worker").len().iter_rows())
    fewest = min(range(workers), key=lambda worker: counts.get(worker, 0))
    if counts.get(fewest, 0) < FEWEST:
        raise InputError(
            f"{record.path}: worker {fewest} finished {counts.get(fewest, 0)} jobs; "
            f"a fit needs {FEWEST} of every worker: run longer"
        )
    return spent


def laws(jobs: pl.DataFrame, experiment: Experiment) -> dict[str, Any]:
    """A gamma law for what everybody computes, one for what a worker takes more, one for the way there
    and back, and the injected delays as they are."""
    computing = jobs.group_by("worker").agg(mean=pl.col("compute").mean(), var=pl.col("compute").var())
    rows = computing.sort("mean").to_dicts()
    base, delays = rows[0], list[Law](experiment.delay)
    for row in rows[1:]:
        if row["mean"] > base["mean"] * (1 + NOTICED):
            more = gamma(row["mean"] - base["mean"], row["var"] - base["var"], (row["worker"],))
            delays.append(more)
    way = jobs["transport"] + jobs["server"]
    delays.append(gamma(mean_of(way), variance_of(way)))
    return {"compute": gamma(base["mean"], base["var"]), "delay": delays}


def gamma(mean: float, variance: float, workers: tuple[int, ...] | None = None) -> Gamma:
    cv = max(0.0, variance) ** 0.5 / mean if mean > 0 else 0.0
    return Gamma(mean=round(mean, DIGITS), cv=round(cv, 3), workers=workers)


def mean_of(values: pl.Series) -> float:
    return float(values.to_numpy().mean())


def variance_of(values: pl.Series) -> float:
    return float(values.to_numpy().var(ddof=1))


def predict(experiment: Experiment, gradients: int) -> tuple[int, pl.DataFrame]:
    """The updates and arrivals of a simulation without gradients: when, how stale, what became of them."""
    rows: list[tuple[float, int, str]] = []

    def note(arrival: Any, decision: str, staleness: int, before: Any) -> None:
        assert isinstance(arrival, Arrival)
        rows.append((arrival.time, staleness, decision))

    problem = NullProblem()
    x, buffers = problem.initial_model()
    pieces = (experiment.policy, experiment.correction, experiment.optimizer)
    server = Server(x, buffers, experiment.workers, *pieces, lambda epochs: experiment.lr, epoch=10**9)
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    train(server, Simulator(GradientComputer(problem), durations), Budget(gradients=gradients), note)
    return server.k, pl.DataFrame(rows, schema=["time", "staleness", "decision"], orient="row")


def facts(updates: int, arrivals: pl.DataFrame) -> dict[str, float]:
    """What a prediction is judged by."""
    used = arrivals.filter(pl.col("decision") != "dropped")
    return {
        "updates per second": updates / max(arrivals["time"]),
        "gradients per second": len(arrivals) / max(arrivals["time"]),
        "mean staleness": mean_of(used["staleness"]),
        "staleness, 95th percentile": float(used["staleness"].quantile(0.95) or 0.0),
    }


def distributions(measured: pl.DataFrame, predicted: pl.DataFrame) -> pl.DataFrame:
    """The share of every staleness."""
    shares: Mapping[str, pl.DataFrame] = {
        name: table.group_by("staleness").agg((pl.len() / len(table)).alias(name))
        for name, table in (("measured", measured), ("predicted", predicted))
    }
    joined = shares["measured"].join(shares["predicted"], on="staleness", how="full", coalesce=True)
    return joined.sort("staleness").with_columns(pl.col("measured", "predicted").fill_null(0.0))
