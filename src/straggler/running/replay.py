"""Replay: execute the recorded order of arrivals again and compare the weights."""

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from straggler.config.registry import InputError
from straggler.core.devices import DeviceChoice, find_devices
from straggler.core.loop import train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.replay import ReplayEngine
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.record import Record
from straggler.running.observer import weights_sha256


@dataclass(frozen=True)
class ReplayResult:
    """The SHA-256 of the weights that a run recorded and of those that its replay computed."""

    recorded: str
    replayed: str

    @property
    def matches(self) -> bool:
        """Whether the replay computed the same weights, bit for bit."""
        return self.recorded == self.replayed


def replay(
    record: Record | Path | str,
    experiment: Experiment | None = None,
    data: Path | None = None,
    trust: bool = False,
    device: DeviceChoice = "cpu",
) -> ReplayResult:
    """Execute a run's arrivals again, in the recorded order, and compare the weights.

    Pass the experiment if the record cannot recreate it because it has custom Python objects. Import strings
    in the record are followed only with `trust=True`. Bits are the same on the device that the run used.
    """
    place, *_ = find_devices(device)
    record = record if isinstance(record, Record) else Record(Path(record))
    recorded = record.summary.get("weights_sha256")
    if recorded is None:
        raise InputError(
            f"{record.path} has no weights to compare ({record.status}). Finish it with straggler resume."
        )
    record.weights()  # raises if the file is damaged
    experiment = experiment or Experiment.from_record(record, trust=trust)
    problem = experiment.problem(data)
    problem.move_to(place)
    arrivals = record.history.filter(pl.col("decision") != "cancelled")
    if arrivals.is_empty():
        raise InputError(f"{record.path} has no arrivals to replay. Run it again with --force.")
    order = arrivals.select("time", "worker", "index", "decision").iter_rows()
    server = experiment.server(problem)
    engine = ReplayEngine(GradientComputer(server.program), order)
    budget = replace(experiment.budget(problem), seconds=max(arrivals["time"], default=0.0))
    with use_one_thread():
        train(server, engine, budget, lambda *observed: None)
    return ReplayResult(recorded, weights_sha256(server.readout, server.buffers))
