"""The playground: the choices on the page, the settings that it may send, and a preview without training."""

import json
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import numpy as np
import polars as pl
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.analysis.figures.classes import build_partition_figure
from straggler.analysis.figures.description import FigureSpec
from straggler.analysis.figures.plotly_renderer import render_plotly
from straggler.analysis.figures.staleness import describe_staleness
from straggler.analysis.figures.timeline import (
    LABEL_NOTE,
    MOST_LABELS,
    NOTE,
    SHORTEST_WAIT,
    build_timeline_panel,
    split_jobs,
)
from straggler.config.imports import refuse_import_strings
from straggler.config.registry import InputError, explain_validation_error, parse_entry, suggest_name
from straggler.core import Arrival, Decision
from straggler.core.loop import Budget
from straggler.experiment import Experiment
from straggler.record import ARRIVALS
from straggler.running.simulation import create_simulation
from straggler.web.gallery import count_samples_by_class
from straggler.web.report import read_static
from straggler.web.run_facts import build_command

JOBS_PER_WORKER, MIN_JOBS, MAX_JOBS = 25, 200, 1500
DRAWN_JOBS_PER_WORKER = 12
SIMULATED_COLUMNS = ("worker", "time", "started", "version", "staleness", "delay", "decision")


@cache
def list_choices() -> dict[str, Any]:
    """Return everything the playground offers: methods, data sets, models, partitions, stories."""
    methods = {}
    for name, method in METHODS.items():
        if not method.single:
            optimizer = parse_entry(method.optimizer, OPTIMIZERS)
            momentum = getattr(optimizer, "momentum", None)
            methods[name] = {"text": f"{name} – {method.summary}", "momentum": momentum}
    choices: dict[str, Any] = json.loads(read_static("playground.json"))
    return {"methods": methods, **choices}


def check_offered(value: str, info: ValidationInfo) -> str:
    """Check a setting that decides how much memory and time a run takes against the offered values."""
    offered = list_choices()[f"{info.field_name}s"]
    if value not in offered:
        raise ValueError(f"{value[:80]!r} is not offered on this page. {suggest_name(value, offered)}")
    return value


def refuse_traces(value: str) -> str:
    if "trace" in value:
        raise ValueError("a page may not read trace files. Use the command line.")
    return value


Offered = Annotated[str, AfterValidator(check_offered)]
PageText = Annotated[str, Field(max_length=500), AfterValidator(refuse_traces)]


class PlaygroundSettings(BaseModel):
    """The settings that a page may send."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    method: PageText = "asgd"
    dataset: Offered = "digits"
    model: Offered = "mlp"
    partition: Offered = "iid"
    workers: int = Field(8, le=256)
    compute: PageText = "constant(1)"
    delay: list[PageText] = []
    lr: float = 0.02
    momentum: float = 0.9
    epochs: float = Field(10, le=200)
    eval_every: float = 1
    seed: int = 0
    snapshots: int = Field(0, le=100)


def parse_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings that a page sent."""
    try:
        return PlaygroundSettings(**values).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, PlaygroundSettings.model_fields)) from None


def build_experiment(settings: Mapping[str, Any]) -> Experiment:
    with refuse_import_strings("This page"):  # a request must never execute code
        return Experiment(**settings)


def simulate_jobs(experiment: Experiment, count: int) -> pl.DataFrame:
    """Simulate the first jobs of a run without gradients; return them as `split_jobs` does."""
    simulation = create_simulation(experiment)
    server, rows = simulation.server, list[tuple[Any, ...]]()

    def observe(arrival: Arrival, decision: Decision, staleness: int) -> None:
        job, time = arrival.job, arrival.time
        delay = simulation.durations.parts(job.worker, job.launch)[1]
        rows.append((job.worker, time, arrival.started, job.version, staleness, delay, decision))
        for job in server.cancelled:
            started = simulation.engine.started[job.worker]
            rows.append((job.worker, time, started, job.version, server.staleness(job), 0.0, "cancelled"))

    simulation.run(Budget(gradients=count), observe)
    schema = {key: ARRIVALS[key] for key in SIMULATED_COLUMNS}
    return split_jobs(pl.DataFrame(rows, schema=schema, orient="row"))


def preview_run(experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures and sentences on the timing of an experiment, and its command."""
    workers = experiment.workers
    jobs = simulate_jobs(experiment, min(MAX_JOBS, max(MIN_JOBS, JOBS_PER_WORKER * workers)))
    until = float(jobs["time"][min(len(jobs), DRAWN_JOBS_PER_WORKER * workers) - 1])
    shown = jobs.filter(pl.col("time") <= until)
    timeline = FigureSpec(
        "timeline",
        "Worker timeline: the first jobs",
        [build_timeline_panel(shown, workers, "virtual time (s)")],
        f"{NOTE} {LABEL_NOTE}" if len(shown) <= MOST_LABELS else NOTE,
        height=150 + 22 * min(workers, 32),
    )
    done = jobs.filter(pl.col("decision") != "cancelled")
    figures = [timeline, describe_staleness({"expected": [done["staleness"]]})]
    keys = (experiment.dataset, experiment.partition, workers, experiment.seed, experiment.validation)
    counts = count_samples_by_class(*map(str, keys))
    if counts is not None and (data := build_partition_figure({"": counts})) is not None:
        figures.append(data)
    return {
        "figures": [render_plotly(figure) for figure in figures],
        "sentences": describe_timing(jobs, workers),
        "command": shlex.join(build_command(settings)),
        "id": experiment.id,
    }


def describe_timing(jobs: pl.DataFrame, workers: int) -> list[str]:
    """Return sentences on throughput, staleness, waiting and discarded jobs."""
    done = jobs.filter(pl.col("decision") != "cancelled")
    used = done.filter(pl.col("decision") != "dropped")
    end, staleness = float(done["time"][-1]), used["staleness"].to_numpy()
    sentences = [f"Together the workers deliver {len(done) / end:.2f} gradients per second."]
    if not staleness.any():
        sentences.append("No gradient is stale: every worker computes at the newest model.")
    else:
        average, oldest = f"{staleness.mean():.1f} updates old on average", f"{staleness.max()} at most"
        sentences.append(f"When it is used, a gradient is {average} and {oldest}.")
    waiting = 100 * float((jobs["started"] - jobs["idle_from"]).sum()) / (end * workers)
    share = "less than 1" if waiting < 1 else f"{waiting:.0f}"
    sentences.append(
        f"The workers wait {share} % of the time." if waiting > SHORTEST_WAIT else "The workers never wait."
    )
    if len(used) < len(jobs):
        sentences.append(f"{100 * (1 - len(used) / len(jobs)):.0f} % of the jobs are cancelled or dropped.")
    counts = np.bincount(done["worker"], minlength=workers)
    if counts.min() < 0.5 * counts.max():
        fewest, most = (100 * count / len(done) for count in (counts.min(), counts.max()))
        sentences.append(
            f"The slowest worker delivers {fewest:.0f} % of the gradients and the fastest {most:.0f} %: "
            "the model sees less of the slow worker's data."
        )
    return sentences
