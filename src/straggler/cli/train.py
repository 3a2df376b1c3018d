"""Commands that train: run, resume, replay."""

import json
import math
import tomllib
from pathlib import Path
from shlex import quote
from typing import Any

from rich.text import Text

from straggler.analysis.tables import build_table, format_number
from straggler.cli import options
from straggler.cli.app import complain, err, find, out
from straggler.config.registry import InputError
from straggler.config.settings import overridden
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.running.progress import ProgressBar
from straggler.running.replay import replay


def run(
    dataset: options.Dataset = None,
    model: options.Model = None,
    validation: options.Validation = None,
    method: options.Method = None,
    policy: options.Policy = None,
    correction: options.Correction = None,
    optimizer: options.Optimizer = None,
    lr: options.Lr = None,
    momentum: options.Momentum = None,
    nesterov: options.Nesterov = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = None,
    workers: options.Workers = None,
    batch_size: options.BatchSize = None,
    partition: options.Partition = None,
    compute: options.Compute = None,
    delay: options.Delay = None,
    epochs: options.Epochs = None,
    updates: options.Updates = None,
    gradients: options.Gradients = None,
    seconds: options.Seconds = None,
    stop: options.Stop = None,
    seed: options.Seed = None,
    jobs: options.Jobs = None,
    eval_every: options.EvalEvery = None,
    train_metrics: options.TrainMetrics = None,
    snapshots: options.Snapshots = None,
    out_folder: options.Out = Path("runs"),
    data: options.Data = None,
    config: options.Config = None,
    set_: options.Settings = None,
    checkpoint_every: options.CheckpointEvery = "60s",
    engine: options.Engine = None,
    worker_timeout: options.WorkerTimeout = 60.0,
    address: options.Address = None,
    worker_resources: options.WorkerResources = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Train and record one experiment."""
    flags = {key: value for key, value in locals().items() if key in Experiment.model_fields}
    changes = read_pairs(set_ or []) | {key: value for key, value in flags.items() if value is not None}
    experiment = Experiment(**overridden(read_config(config) if config else {}, changes))
    where = {"address": address, "worker_resources": read_resources(worker_resources)}
    how = {"jobs": jobs, "data": data, "checkpoint_every": checkpoint_every, "worker_timeout": worker_timeout}
    carry_out(experiment, out_folder, as_json, force=force, **how, **where)


def carry_out(experiment: Experiment, folder: Path, as_json: bool, **how: Any) -> None:
    try:
        with ProgressBar(err, f"{experiment.policy} × {experiment.workers}") as bar:
            record = experiment.run(folder, progress=bar.update, report=bar.say, **how)
    except KeyboardInterrupt:
        kept = folder / experiment.id
        if not kept.exists():
            complain("interrupted before anything happened", code=130)
        again = f"straggler resume {quote(str(kept))}"
        complain(f"interrupted; what happened so far is in {kept}; {again} goes on", code=130)
    if as_json:
        print(json.dumps(record.summary | {"record": str(record.path)}))  # it may have moved since
    else:
        show_result(record)


def show_result(record: Record) -> None:
    facts = record.summary
    clock = "virtual time" if record.settings["engine"] == "simulator" else "time"
    rows = [
        ["test accuracy", format_number(facts["test_accuracy"], unit=" %")],
        ["train accuracy", format_number(facts["train_accuracy"], unit=" %")],
        ["test loss", format_number(facts["test_loss"], 4)],
        ["updates", format_number(facts["updates"])],
        ["epochs", format_number(facts["epochs"])],
        ["mean staleness", format_number(facts["mean_staleness"])],
        [clock, format_number(facts["seconds"], 1, " s")],
        ["on this machine", format_number(facts["host_seconds"], 1, " s")],
    ]
    out.print(build_table(f"run {facts['id']}: {facts['status']}", ["", ""], rows))
    if not facts["converged"]:
        reason = facts["error"] or "(accuracy near chance)"
        out.print(Text.assemble(("NC: no convergence", "red"), f" {reason}"))
    look = f"straggler show {quote(str(record.path))}"
    out.print(f"record in {record.path}; see it with: {look}", soft_wrap=True)


def read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: {error}; give a TOML file that can be read") from None


def read_pairs(pairs: list[str]) -> dict[str, Any]:
    """`key=value` as TOML would read it, or as text."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--set {pair!r}: write key=value")
        try:
            settings[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key.strip()] = value
    return settings


def read_resources(text: str | None) -> dict[str, float]:
    """`CPU=0.5, GPU=1` as amounts by name."""
    amounts = {}
    for pair in filter(str.strip, (text or "").split(",")):
        name, _, amount = pair.partition("=")
        try:
            amounts[name.strip()] = float(amount)
            if not 0 <= amounts[name.strip()] < math.inf:
                raise ValueError
        except ValueError:
            raise InputError(
                f"--worker-resources {text!r}: write names and amounts, CPU=0.5, GPU=1"
            ) from None
    return amounts


def resume(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
    jobs: options.Jobs = None,
    data: options.Data = None,
    checkpoint_every: options.CheckpointEvery = "60s",
    worker_timeout: options.WorkerTimeout = 60.0,
    address: options.Address = None,
    worker_resources: options.WorkerResources = None,
    as_json: options.Json = False,
) -> None:
    """Go on with a run that was interrupted or killed; the result is the same to the bit."""
    record = find(run, out_folder)
    experiment = Experiment.recorded(record)
    if experiment.id != record.path.name:
        raise InputError(
            f"{record.path}: its settings have the id {experiment.id} now; give the folder that name if it "
            f"had it, but if a file that they name (a trace) has changed, run it anew"
        )
    where = {"address": address, "worker_resources": read_resources(worker_resources)}
    how = {"jobs": jobs, "data": data, "checkpoint_every": checkpoint_every, "worker_timeout": worker_timeout}
    carry_out(experiment, record.path.parent, as_json, **how, **where)


def replay_(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
    data: options.Data = None,
) -> None:
    """Execute a run's order of arrivals again and compare the weights, bit for bit."""
    record = find(run, out_folder)
    if (there := record.summary.get("weights_sha256")) is None:
        raise InputError(
            f"{record.path} has no weights to compare with ({record.status}); `straggler resume` it first"
        )
    record.weights()  # a file that is damaged is not the same to the bit
    here = replay(record, data=data)
    out.print(f"replayed {here}\nrecorded {there}", soft_wrap=True)
    if here != there:
        complain("the weights differ: other code, other versions of torch or another machine", code=1)
    out.print("the same to the bit")
