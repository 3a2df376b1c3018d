"""Executing a record again: the order of arrivals of a run, real or simulated, gives its weights."""

from dataclasses import replace
from pathlib import Path

import polars as pl

from straggler.config.registry import InputError
from straggler.core.loop import train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.replay import ReplayEngine
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.record import Record
from straggler.running.observer import weights_sha256


def replay(record: Record, experiment: Experiment | None = None, data: Path | None = None) -> str:
    """The fingerprint of the weights that a record leads to; give the experiment if text cannot hold it."""
    experiment = experiment or Experiment.from_record(record)
    problem = experiment.problem(data)
    arrivals = record.history.filter(pl.col("decision") != "cancelled")
    if arrivals.is_empty():
        raise InputError(f"{record.path} has no arrivals to execute again; run it again with --force")
    engine = ReplayEngine(
        GradientComputer(problem), arrivals.select("time", "worker", "index", "decision").iter_rows()
    )
    budget = replace(experiment.budget(problem), seconds=max(arrivals["time"], default=0.0))
    server = experiment.server(problem)
    with use_one_thread():
        train(server, engine, budget, lambda *seen: None)
    return weights_sha256(server.x, server.buffers)
