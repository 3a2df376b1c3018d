"""Calibration: fit a simulation to a run in real time, and compare its predictions with the run."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from straggler.config.registry import InputError
from straggler.core.loop import Budget
from straggler.experiment import Experiment
from straggler.record import Record, RecordError
from straggler.running.simulation import simulate
from straggler.timing.laws import Constant, Gamma, Law

MIN_JOBS = 20  # jobs of each worker that a fit needs
MIN_DIFFERENCE = 0.02  # a worker slower than the fastest by more than this share gets an extra delay
MIN_SHARED_DIFFERENCE = 0.5  # the same when workers share cores, which makes their times uneven
IRRELEVANT_KEYS = ("dataset", "model", "loss", "partition", "metrics")  # the compute time is measured
DIGITS = 6  # decimals of seconds: microseconds
FITTED_ARRIVALS, PREDICTED_ARRIVALS = 2000, 4000  # simulated per step of the search, and for the prediction
WARM_UP = 0.05  # share of the simulated arrivals that is left out
SEARCH_FACTORS = (1.6, 1.25, 1.1, 1.1)  # by which the search changes a setting
FRESH_POINTS, RATE_SHARE, QUANTILE_SHARE = 0.05, 0.10, 0.10  # errors of a good fit; a quantile may be 1 off

RATE, FRESH = "updates per second", "fresh (staleness 0)"
MEDIAN, HIGH = "staleness, median", "staleness, 95 %"


@dataclass(frozen=True)
class Calibration:
    """A model of a cluster fitted to the first half of a run, and how well it predicts the second half."""

    experiment: Experiment  # the fitted simulation
    parts: pl.DataFrame  # mean seconds of each worker's jobs, by activity
    measured: dict[str, float]  # in the second half
    predicted: dict[str, float]
    staleness: pl.DataFrame  # share of the gradients by staleness, measured and predicted
    workers: pl.DataFrame  # share of the gradients, and of the time with a job, by worker
    warnings: list[str]  # what the simulation does not predict, with the reason

    def to_json(self) -> str:
        """Return the measured and predicted values, the tables and the fitted laws as JSON."""
        names = ("parts", "staleness", "workers")
        tables = {name: getattr(self, name).to_dicts() for name in names}
        laws = {"compute": str(self.experiment.compute), "delay": [str(law) for law in self.experiment.delay]}
        cores = None if self.experiment.cores is None else str(self.experiment.cores)
        values = {"measured": self.measured, "predicted": self.predicted, "warnings": self.warnings}
        return json.dumps(values | tables | laws | {"cores": cores}, indent=1)


def calibrate(record: Record, experiment: Experiment | None = None, trust: bool = False) -> Calibration:
    """Fit compute, transport and server times to the first half of a run in real time.

    Injected delays are those of the experiment. If workers and server outnumber the cores of the machine, a
    simulation in which they share the cores is fitted too, and the better one is returned. Only times are
    simulated, so a custom data set, model or loss that the record cannot recreate is not needed. Import
    strings of other components are followed only with `trust=True`.
    """
    experiment = experiment or Experiment.from_record(record, trust=trust, defaults_for=IRRELEVANT_KEYS)
    if experiment.engine == "simulator":
        raise InputError(f"{record.path} was simulated. Calibrate a run in real time: --engine processes.")
    if not record.ended:
        raise InputError(f"{record.path} has not ended. Finish it with straggler resume {record.path}.")
    jobs = measure_jobs(record, experiment.workers)
    arrivals = record.arrivals.filter(pl.col("compute").is_not_null()).sort("time")
    halves = [arrivals.head(len(arrivals) // 2), arrivals.tail(-(len(arrivals) // 2))]
    updates_per_gradient = record.summary["updates"] / len(arrivals)
    known, measured = (summarise_arrivals(half, updates_per_gradient) for half in halves)
    settings = {key: value for key, value in experiment if value is not None} | {"engine": "simulator"}
    early = jobs.filter(pl.col("started") <= halves[0]["time"].max())
    fitted = Experiment(**settings | fit_laws(early, experiment))
    if experiment.workers + 1 > (cores := count_cores(record)):
        shared = fit_shared_cores(settings, early, known, experiment, cores)
        fitted = min(fitted, shared, key=lambda each: compare_predictions(known, predict_behaviour(each)))
    predicted = predict_behaviour(fitted, PREDICTED_ARRIVALS)
    return Calibration(
        fitted,
        jobs.drop("started").group_by("worker").mean().sort("worker"),
        measured.values,
        predicted.values,
        join_shares(measured.staleness, predicted.staleness),
        join_workers(measured, predicted),
        list_warnings(record, known, measured, predicted),
    )


def count_cores(record: Record) -> float:
    """Return the number of cores of the machine that made a record; inf if unknown."""
    try:
        return float(record.environment.get("cores") or math.inf)
    except RecordError:
        return math.inf


def measure_jobs(record: Record, workers: int) -> pl.DataFrame:
    """Return the start of each job and its seconds of compute, delay, transport and server.

    Each worker's first job is left out, because it includes the warm-up of the process.
    """
    rows = record.arrivals.filter(pl.col("compute").is_not_null()).sort("time")
    answered = rows.select("time", heard="time")  # the server starts a job in response to the last arrival
    rows = rows.sort("started").join_asof(answered, left_on="started", right_on="time")
    jobs = rows.select(
        "worker",
        "started",
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
    """Return the compute law and delays of workers that do not disturb each other.

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
    batches = count_batches(experiment)
    return {"compute": fit_gamma(base["mean"] / batches, base["var"] / batches), "delay": delays}


def count_batches(experiment: Experiment) -> int:
    """Return the number of batches per job; a compute law is for one batch."""
    return max(experiment.count_batches() or [1])


def fit_gamma(mean: float, variance: float, workers: tuple[int, ...] | None = None) -> Gamma:
    """Return the gamma law with this mean and variance."""
    cv = max(0.0, variance) ** 0.5 / mean if mean > 0 else 0.0
    return Gamma(mean=round(mean, DIGITS), cv=round(cv, 3), workers=workers)


@dataclass(frozen=True)
class Behaviour:
    """What a run did, or what a simulation predicts."""

    values: dict[str, float]
    staleness: pl.DataFrame  # share of the gradients by staleness
    workers: pl.DataFrame  # share of the gradients, and of the time with a job, by worker


def fit_shared_cores(
    settings: dict[str, Any], jobs: pl.DataFrame, known: Behaviour, experiment: Experiment, cores: float
) -> Experiment:
    """Return a simulation whose workers and server share the cores, fitted by simulating it repeatedly.

    The measured seconds include time in which a process waited for a core, so the search starts from low
    quantiles. It minimises the difference of the rates and of the distributions of staleness.
    """
    compute = jobs["compute"].to_numpy()
    gaps = np.diff(np.sort((jobs["started"] - jobs["server"]).to_numpy()))
    server = float(np.quantile(gaps[gaps > 0], 0.25))
    busy = cores / known.values["gradients per second"] - server  # per gradient, if no core is ever idle
    start = [max(float(np.quantile(compute, 0.25)), 0.5 * busy), 0.3, server, 0.001]
    lows = dict(jobs.group_by("worker").agg(pl.col("compute").quantile(0.1)).iter_rows())
    base = min(lows.values())
    slower = [
        Constant(seconds=round(low - base, DIGITS), workers=(worker,))
        for worker, low in sorted(lows.items())
        if low > base * (1 + MIN_SHARED_DIFFERENCE)
    ]
    delays = [*experiment.delay, *slower]
    batches = count_batches(experiment)

    def build(point: list[float]) -> Experiment:
        mean, cv, handling, piece = point
        shared = f"cores({cores:g}, slice={piece:.6f}, server={handling:.6f}, cv={cv:.3f})"
        law = Gamma(mean=round(mean / batches, DIGITS), cv=round(cv * batches**0.5, 3))
        return Experiment(**settings | {"compute": law, "delay": delays, "cores": shared})

    return build(
        search_pattern(start, lambda point: compare_predictions(known, predict_behaviour(build(point))))
    )


def search_pattern(start: list[float], loss: Callable[[list[float]], float]) -> list[float]:
    """Return the point with the least loss that a pattern search finds; it changes one setting at a time."""
    best, least = start, loss(start)
    for factor in SEARCH_FACTORS:
        for place in range(len(start)):
            for change in (factor, 1 / factor):
                while True:
                    point = [value * change if i == place else value for i, value in enumerate(best)]
                    if (found := loss(point)) >= least:
                        break
                    best, least = point, found
    return best


def predict_behaviour(experiment: Experiment, gradients: int = FITTED_ARRIVALS) -> Behaviour:
    """Simulate the timing only, and return what happens after the warm-up."""
    rows: list[tuple[Any, ...]] = []
    server = simulate(
        experiment,
        budget=Budget(gradients=gradients * count_batches(experiment)),
        observe=lambda arrival, decision, staleness: rows.append(
            (arrival.time, arrival.started, arrival.worker, staleness, decision)
        ),
    ).server
    names = ["time", "started", "worker", "staleness", "decision"]
    table = pl.DataFrame(rows, schema=names, orient="row")
    return summarise_arrivals(table.tail(-int(WARM_UP * len(table))), server.k / len(table))


def summarise_arrivals(arrivals: pl.DataFrame, updates_per_gradient: float) -> Behaviour:
    """Return the rates and the staleness, by which measurement and prediction are compared."""
    used = arrivals.filter(pl.col("decision") != "dropped")["staleness"]
    start, end = arrivals["time"][0], arrivals["time"][-1]
    rate = (len(arrivals) - 1) / (end - start)
    workers = arrivals.group_by("worker").agg(
        gradients=pl.len() / len(arrivals),
        utilisation=(pl.col("time") - pl.col("started")).sum() / (end - start),
    )
    values = {
        RATE: rate * updates_per_gradient,
        "gradients per second": rate,
        FRESH: float((used == 0).to_numpy().mean()),
        "mean staleness": float(used.to_numpy().mean()),
        MEDIAN: float(used.quantile(0.5) or 0.0),
        HIGH: float(used.quantile(0.95) or 0.0),
    }
    counts = used.value_counts(normalize=True, name="share").sort("staleness")
    return Behaviour(values, counts, workers.sort("worker"))


def join_shares(measured: pl.DataFrame, predicted: pl.DataFrame) -> pl.DataFrame:
    """Return the share of each staleness, measured and predicted."""
    joined = measured.rename({"share": "measured"}).join(
        predicted.rename({"share": "predicted"}), on="staleness", how="full", coalesce=True
    )
    return joined.sort("staleness").with_columns(pl.col("measured", "predicted").fill_null(0.0))


def join_workers(measured: Behaviour, predicted: Behaviour) -> pl.DataFrame:
    """Return the shares of each worker, measured and predicted."""
    both = measured.workers.join(
        predicted.workers, on="worker", how="full", coalesce=True, suffix=" predicted"
    )
    return both.fill_null(0.0).sort("worker")


def compare_predictions(measured: Behaviour, predicted: Behaviour) -> float:
    """Return how far a prediction is from the measurement: in rates, staleness and shares of the workers."""
    shares = join_shares(measured.staleness, predicted.staleness)
    distance = np.abs((shares["measured"] - shares["predicted"]).to_numpy()).sum() / 2  # total variation
    rate = abs(math.log(predicted.values[RATE] / measured.values[RATE]))
    fresh = abs(predicted.values[FRESH] - measured.values[FRESH])
    both = join_workers(measured, predicted)
    uneven = np.abs((both["gradients"] - both["gradients predicted"]).to_numpy()).sum() / 2
    return float(distance + 2 * rate + 2 * fresh + uneven / 2)


def list_warnings(record: Record, known: Behaviour, measured: Behaviour, predicted: Behaviour) -> list[str]:
    """Return a sentence for each value that is not predicted well, then the likely reason."""
    wrong = list_differences(measured, predicted)
    if not wrong:
        return []
    if list_differences(measured, known):
        reason = (
            "The second half of the run differs from the first too, so something outside the run changed, "
            "such as other programs on the cores. Run again, longer, on a quiet machine."
        )
    elif record.events:
        reason = f"{len(record.events)} workers were restarted during the run."
    else:
        reason = "The fitted laws do not describe this run; use the prediction with care."
    return [f"{', '.join(wrong)}. {reason}"]


def list_differences(measured: Behaviour, predicted: Behaviour) -> list[str]:
    """Return the values in which two behaviours differ by more than a good fit."""
    found = []
    for name in (RATE, FRESH, HIGH):
        true, value = measured.values[name], predicted.values[name]
        allowed = {
            RATE: RATE_SHARE * true,
            FRESH: FRESH_POINTS,
            HIGH: max(1.0, QUANTILE_SHARE * true),
        }[name]
        if abs(value - true) > allowed:
            found.append(f"{name} is {true:.3g}, but {value:.3g} is predicted")
    return found
