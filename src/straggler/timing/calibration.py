"""Calibration: fit a simulation to a run in real time, and compare its predictions with the run."""

import json
from dataclasses import dataclass
from typing import Any

import polars as pl

from straggler.config.registry import InputError
from straggler.core.loop import Budget
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.running.simulation import simulate
from straggler.timing.laws import Gamma, Law

MIN_JOBS = 20  # jobs of each worker that a fit needs
MIN_DIFFERENCE = 0.02  # a worker slower than the fastest by more than this share gets an extra delay
IRRELEVANT_KEYS = ("dataset", "model", "loss", "partition")  # the compute time is measured
DIGITS = 6  # decimals of seconds: microseconds


@dataclass(frozen=True)
class Calibration:
    """A model of a cluster fitted to a run, and how well it predicts that run."""

    experiment: Experiment  # the fitted simulation
    parts: pl.DataFrame  # mean seconds of each worker's jobs, by activity
    measured: dict[str, float]
    predicted: dict[str, float]
    staleness: pl.DataFrame  # share of the gradients by staleness, measured and predicted

    def to_json(self) -> str:
        """Return the measured and predicted values, the tables and the fitted laws as JSON."""
        tables = {"parts": self.parts.to_dicts(), "staleness": self.staleness.to_dicts()}
        laws = {"compute": str(self.experiment.compute), "delay": [str(law) for law in self.experiment.delay]}
        return json.dumps({"measured": self.measured, "predicted": self.predicted} | tables | laws, indent=1)


def calibrate(record: Record, experiment: Experiment | None = None, trust: bool = False) -> Calibration:
    """Fit compute, transport and server times to a run in real time.

    Injected delays are those of the experiment. Only times are simulated, so a custom data set, model or loss
    that the record cannot recreate is not needed. Import strings of other components are followed only with
    `trust=True`.
    """
    experiment = experiment or Experiment.from_record(record, trust=trust, defaults_for=IRRELEVANT_KEYS)
    if experiment.engine == "simulator":
        raise InputError(f"{record.path} was simulated. Calibrate a run in real time: --engine processes.")
    if not record.ended:
        raise InputError(f"{record.path} has not ended. Finish it with straggler resume {record.path}.")
    jobs = measure_jobs(record, experiment.workers)
    settings = {key: value for key, value in experiment if value is not None}
    fitted = Experiment(**settings | {"engine": "simulator"} | fit_laws(jobs, experiment))
    arrivals = record.arrivals.filter(pl.col("compute").is_not_null())
    updates, predicted = predict_arrivals(fitted, len(arrivals))
    return Calibration(
        fitted,
        jobs.group_by("worker").mean().sort("worker"),
        summarise_arrivals(record.summary["updates"], arrivals),
        summarise_arrivals(updates, predicted),
        compare_staleness(arrivals, predicted),
    )


def measure_jobs(record: Record, workers: int) -> pl.DataFrame:
    """Return the seconds of compute, delay, transport and server of each job.

    Each worker's first job is left out, because it includes the warm-up of the process.
    """
    rows = record.arrivals.filter(pl.col("compute").is_not_null()).sort("time")
    answered = rows.select("time", heard="time")  # the server starts a job in response to the last arrival
    rows = rows.sort("started").join_asof(answered, left_on="started", right_on="time")
    jobs = rows.select(
        "worker",
        "compute",
        "delay",
        transport=(pl.col("time") - pl.col("started") - pl.col("compute") - pl.col("delay")).clip(0),
        server=pl.col("started") - pl.col("heard"),
    )
    jobs = jobs.filter(pl.int_range(pl.len()).over("worker") > 0).drop_nulls()
    counts = dict(jobs.group_by("worker").len().iter_rows())
    fewest = min(range(workers), key=lambda worker: counts.get(worker, 0))
    if counts.get(fewest, 0) < MIN_JOBS:
        raise InputError(
            f"{record.path}: worker {fewest} finished {counts.get(fewest, 0)} jobs, but a fit needs "
            f"{MIN_JOBS} of each worker. Run longer."
        )
    return jobs


def fit_laws(jobs: pl.DataFrame, experiment: Experiment) -> dict[str, Any]:
    """Return the fitted compute law and delays.

    The compute law is that of the fastest worker. The delays are the injected ones, the extra time of each
    slower worker, and the time of transport and server.
    """
    computing = jobs.group_by("worker").agg(mean=pl.col("compute").mean(), var=pl.col("compute").var())
    rows = computing.sort("mean").to_dicts()
    base, delays = rows[0], list[Law](experiment.delay)
    for row in rows[1:]:
        if row["mean"] > base["mean"] * (1 + MIN_DIFFERENCE):
            extra = fit_gamma(row["mean"] - base["mean"], row["var"] - base["var"], (row["worker"],))
            delays.append(extra)
    overhead = (jobs["transport"] + jobs["server"]).to_numpy()
    delays.append(fit_gamma(float(overhead.mean()), float(overhead.var(ddof=1))))
    return {"compute": fit_gamma(base["mean"], base["var"]), "delay": delays}


def fit_gamma(mean: float, variance: float, workers: tuple[int, ...] | None = None) -> Gamma:
    """Return the gamma law with this mean and variance."""
    cv = max(0.0, variance) ** 0.5 / mean if mean > 0 else 0.0
    return Gamma(mean=round(mean, DIGITS), cv=round(cv, 3), workers=workers)


def predict_arrivals(experiment: Experiment, gradients: int) -> tuple[int, pl.DataFrame]:
    """Simulate the timing only; return the number of updates and a table with a row per arrival."""
    rows: list[tuple[float, int, str]] = []
    server = simulate(
        experiment,
        budget=Budget(gradients=gradients),
        observe=lambda arrival, decision, staleness: rows.append((arrival.time, staleness, decision)),
    ).server
    return server.k, pl.DataFrame(rows, schema=["time", "staleness", "decision"], orient="row")


def summarise_arrivals(updates: int, arrivals: pl.DataFrame) -> dict[str, float]:
    """Return the rates and the staleness, by which measurement and prediction are compared."""
    used = arrivals.filter(pl.col("decision") != "dropped")
    return {
        "updates per second": updates / max(arrivals["time"]),
        "gradients per second": len(arrivals) / max(arrivals["time"]),
        "mean staleness": float(used["staleness"].to_numpy().mean()),
        "staleness, 95th percentile": float(used["staleness"].quantile(0.95) or 0.0),
    }


def compare_staleness(measured: pl.DataFrame, predicted: pl.DataFrame) -> pl.DataFrame:
    """Return the share of each staleness, measured and predicted."""
    shares = [
        table.group_by("staleness").agg((pl.len() / len(table)).alias(name))
        for name, table in (("measured", measured), ("predicted", predicted))
    ]
    joined = shares[0].join(shares[1], on="staleness", how="full", coalesce=True)
    return joined.sort("staleness").with_columns(pl.col("measured", "predicted").fill_null(0.0))
