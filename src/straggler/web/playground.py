"""The playground: what a page offers, which settings it may send, and a preview without training."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from torch import Tensor

from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.analysis.timeline import COLUMNS, JUST
from straggler.config.imports import refuse_import_strings
from straggler.config.registry import InputError, parse_entry, suggest_name
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
from straggler.web.report import read_static
from straggler.web.run_facts import build_command, format_command
from straggler.web.staleness import staleness
from straggler.web.timeline import NOTE, timeline_data, timeline_layout

TEXT_SETTINGS = ("method", "dataset", "model", "partition", "compute", "delay")
INTEGER_SETTINGS = ("workers", "seed", "snapshots")
NUMBER_SETTINGS = (*INTEGER_SETTINGS, "lr", "momentum", "epochs", "eval_every")
MAX_VALUES = {"workers": 256, "epochs": 200, "snapshots": 100}
MAX_TEXT = 500
JOBS_PER_WORKER, MIN_JOBS, MAX_JOBS = 25, 200, 1500
DRAWN_JOBS_PER_WORKER = 12
JOB_SCHEMA: dict[str, Any] = dict.fromkeys(COLUMNS, pl.Float64) | {
    "worker": pl.Int64,
    "launch": pl.Int64,
    "staleness": pl.Int64,
    "decision": pl.String,
}


@cache
def list_choices() -> dict[str, Any]:
    """Return everything the playground offers: methods, data sets, models, partitions, stories."""
    methods = {}
    for name, method in METHODS.items():
        if not method.single:
            optimizer = parse_entry(method.optimizer, OPTIMIZERS)
            momentum = getattr(optimizer, "momentum", None)
            methods[name] = {"text": f"{name}: {method.summary}", "momentum": momentum}
    choices: dict[str, Any] = json.loads(read_static("playground.json"))
    return {"methods": methods, **choices}


def parse_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings that a page sent: known keys, plain values, nothing that reads a file."""
    # The settings that decide how much memory and time a run takes are limited to the offered values.
    offered = {key: list_choices()[f"{key}s"] for key in ("dataset", "model", "partition")}
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if key not in (*TEXT_SETTINGS, *NUMBER_SETTINGS):
            raise InputError(f"{key[:40]!r} cannot be set from the page. Use the command line.")
        items = value if key == "delay" and isinstance(value, list) else [value]
        if any(not isinstance(item, str | int | float) or isinstance(item, bool) for item in items):
            raise InputError(f"{key} must be text or a number.")
        if any("trace" in str(item) or len(str(item)) > MAX_TEXT for item in items):
            raise InputError(f"{key}: a page may not read trace files. Use the command line.")
        if key in offered and str(value) not in offered[key]:
            hint = suggest_name(str(value), offered[key])
            raise InputError(f"{key}={str(value)[:80]!r} is not offered here; {hint}")
        texts = [str(item) for item in items]
        settings[key] = (
            texts if key == "delay" else parse_number(key, value) if key in NUMBER_SETTINGS else texts[0]
        )
    return settings


def parse_number(key: str, value: Any) -> float:
    """Return a number that may have come as text; integers are exact."""
    is_integer = key in INTEGER_SETTINGS
    try:
        number = int(str(value)) if is_integer and not isinstance(value, float) else float(value)
        if is_integer and number != int(number):
            raise ValueError
    except (ValueError, OverflowError):
        kind = "an integer" if is_integer else "a number"
        raise InputError(f"{key} must be {kind}, got {str(value)[:80]!r}") from None
    if number > MAX_VALUES.get(key, float("inf")):
        raise InputError(
            f"{key} can be at most {MAX_VALUES[key]} on this page, got {value}. Use the command line."
        )
    return int(number) if is_integer else number


def build_experiment(settings: Mapping[str, Any]) -> Experiment:
    with refuse_import_strings("This page"):  # a request must never execute code
        return Experiment(**settings)


def simulate_jobs(experiment: Experiment, count: int) -> pl.DataFrame:
    """Simulate the first jobs of a run without gradients; return the columns of `analysis.timeline.jobs`."""
    problem = NullProblem()
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    engine, server = Simulator(GradientComputer(problem), durations), experiment.server(problem)
    free_since = [0.0] * experiment.workers
    rows: list[tuple[Any, ...]] = []

    def add_job(worker: int, launch: int, started: float, end: float, tau: int, decision: str) -> None:
        delay = durations.parts(worker, launch)[1] if decision != "cancelled" else 0.0
        idle = free_since[worker] if started - free_since[worker] > JUST else None
        rows.append((worker, launch, started, max(started, end - delay), end, tau, decision, idle))
        free_since[worker] = end

    def observe(arrival: Arrival | Change, decision: Decision, tau: int, before: Tensor) -> None:
        assert isinstance(arrival, Arrival), "in virtual time no worker joins or leaves"
        add_job(arrival.worker, arrival.job.launch, arrival.started, arrival.time, tau, decision)
        for job in server.cancelled:
            began = engine.started[job.worker]
            add_job(job.worker, job.launch, began, arrival.time, server.staleness(job), "cancelled")

    train(server, engine, Budget(gradients=count), observe)
    return pl.DataFrame(rows, schema=JOB_SCHEMA, orient="row")


def preview_run(experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures and sentences on the timing of an experiment, and its command."""
    workers = experiment.workers
    jobs = simulate_jobs(experiment, min(MAX_JOBS, max(MIN_JOBS, JOBS_PER_WORKER * workers)))
    until = float(jobs["time"][min(len(jobs), DRAWN_JOBS_PER_WORKER * workers) - 1])
    timeline = Figure(
        "timeline",
        "Worker timeline: the first jobs",
        NOTE,
        timeline_data(jobs.filter(pl.col("time") <= until)),
        timeline_layout(workers, "virtual time (s)"),
        height=150 + 22 * min(workers, 32),
    )
    figures = [timeline, staleness({"expected": jobs})]
    keys = (experiment.dataset, experiment.partition, workers, experiment.seed, experiment.validation)
    if (counts := counted(*map(str, keys))) is not None and (data := partition({"": counts})) is not None:
        figures.append(data)
    return {
        "figures": [figure.spec() for figure in figures],
        "sentences": describe_timing(measure_timing(jobs, workers), workers),
        "command": format_command(build_command(settings)),
        "id": experiment.id,
    }


def measure_timing(jobs: pl.DataFrame, workers: int) -> dict[str, float]:
    """Return throughput, staleness, utilisation and shares of the simulated jobs."""
    done = jobs.filter(pl.col("decision") != "cancelled")
    used = done.filter(pl.col("decision") != "dropped")
    end = float(done["time"][-1])
    counts = np.bincount(done["worker"], minlength=workers)
    taus = used["staleness"].to_numpy() if len(used) else np.zeros(1)
    return {
        "rate": len(done) / end,
        "used": len(used) / len(jobs),
        "waiting": float((jobs["started"] - jobs["idle_from"]).sum()) / (end * workers),
        "staleness": float(taus.mean()),
        "oldest": float(taus.max()),
        "fewest": float(counts.min() / counts.sum()),
        "most": float(counts.max() / counts.sum()),
    }


def describe_timing(facts: Mapping[str, float], workers: int) -> list[str]:
    """Return the measurements as sentences."""
    sentences = [f"Together the workers deliver {facts['rate']:.2f} gradients per second."]
    if facts["staleness"] < JUST:
        sentences.append("No gradient is stale: every worker computes at the newest model.")
    else:
        sentences.append(
            f"When it is used, a gradient is {facts['staleness']:.1f} updates old on average "
            f"and {facts['oldest']:.0f} at most."
        )
    if facts["waiting"] > JUST:
        share = 100 * facts["waiting"]
        sentences.append(f"The workers wait {'less than 1' if share < 1 else f'{share:.0f}'} % of the time.")
    else:
        sentences.append("The workers never wait.")
    if facts["used"] < 1:
        sentences.append(f"{100 * (1 - facts['used']):.0f} % of the jobs are cancelled or dropped.")
    if workers > 1 and facts["fewest"] < 0.5 * facts["most"]:
        sentences.append(
            f"The slowest worker delivers {100 * facts['fewest']:.0f} % of the gradients and the fastest "
            f"{100 * facts['most']:.0f} %: the model sees less of the slow worker's data."
        )
    return sentences
