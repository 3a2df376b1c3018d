"""The commands that train: run, resume, replay."""

import json
import math
import tomllib
from pathlib import Path
from shlex import quote
from typing import Any

from rich.text import Text

from straggler.analysis.figures.curves import list_metrics
from straggler.analysis.tables import build_table, format_number
from straggler.cli import options
from straggler.cli.app import err, exit_with_error, find_run, out
from straggler.config.imports import has_import_strings
from straggler.config.registry import InputError
from straggler.config.settings import override_settings
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.running.loggers import parse_logger
from straggler.running.progress import ProgressBar
from straggler.running.replay import replay as replay_record


@options.with_experiment_options
def run(
    *,
    config: options.Config = None,
    set_: options.Settings = None,
    trust: options.Trust = False,
    out_folder: options.Out = Path("runs"),
    force: options.Force = False,
    as_json: options.Json = False,
    checkpoint_every: options.CheckpointEvery = "60s",
    jobs: options.Jobs = None,
    data: options.Data = None,
    worker_timeout: options.WorkerTimeout = 60.0,
    max_failures: options.MaxFailures = None,
    supervise: options.Supervise = False,
    address: options.Address = None,
    worker_resources: options.WorkerResources = None,
    logger: options.Loggers = None,
    device: options.Device = "cpu",
    deterministic: options.Deterministic = False,
    loader_workers: options.LoaderWorkers = 0,
    **settings: Any,
) -> None:
    """Train one experiment and record it.

    Components are written `name(key=value)`; custom classes are named by import strings such as
    ./file.py:Name(key=value). Identical runs are cached, and interrupted runs are resumed.
    """
    changes = parse_assignments(set_ or []) | {key: v for key, v in settings.items() if v is not None}
    if config is None:
        experiment = Experiment(**override_settings({}, changes))
    else:
        experiment = Experiment.from_toml(config, trust=trust, **changes)
    run_and_show(
        experiment,
        out_folder,
        as_json,
        force=force,
        jobs=jobs,
        data=data,
        checkpoint_every=checkpoint_every,
        worker_timeout=worker_timeout,
        max_failures=max_failures,
        address=address,
        worker_resources=parse_resources(worker_resources),
        callbacks=[parse_logger(text) for text in logger or []],
        device=device,
        deterministic=deterministic,
        loader_workers=loader_workers,
    )


def run_and_show(experiment: Experiment, folder: Path, as_json: bool, **run_options: Any) -> None:
    """Run an experiment with a progress bar and print its result."""
    title = f"{experiment.method or experiment.policy.label} × {experiment.workers}"
    try:
        with ProgressBar(err, title) as bar:
            record = experiment.run(folder, progress=bar.update, report=bar.say, **run_options)
    except KeyboardInterrupt:
        path = folder / experiment.id
        if not path.exists():
            exit_with_error("interrupted before training started", code=130)
        option = " --trust" if has_import_strings(experiment.to_dict()) else ""
        command = f"straggler resume {quote(str(path))}{option}"
        exit_with_error(f"interrupted. The run so far is in {path}; resume it with: {command}", code=130)
    if as_json:
        print(json.dumps(record.summary | {"record": str(record.path)}))  # the folder may have been moved
    else:
        show_result(record)


def show_result(record: Record) -> None:
    """Print the result of a run as a table."""
    summary = record.summary
    clock = "virtual time" if record.settings["engine"] == "simulator" else "wall-clock time"
    rows = [
        ["test accuracy", format_number(summary["test_accuracy"], unit=" %")],
        ["train accuracy", format_number(summary["train_accuracy"], unit=" %")],
        ["test loss", format_number(summary["test_loss"], 4)],
        *([m, format_number(summary.get(f"test_{m}"), 4)] for m in list_metrics([record])),
        ["updates", format_number(summary["updates"])],
        *([["ended by", summary["stopped_by"]]] if record.settings.get("until") else []),
        ["epochs", format_number(summary["epochs"])],
        ["mean staleness", format_number(summary["mean_staleness"])],
        ["traffic", f"{summary['bytes_up'] / 1e6:,.1f} MB up, {summary['bytes_down'] / 1e6:,.1f} MB down"],
        [clock, format_number(summary["seconds"], 1, " s")],
        ["time on this machine", format_number(summary["host_seconds"], 1, " s")],
    ]
    out.print(build_table(f"run {summary['id']}: {summary['status']}", ["", ""], rows))
    if not summary["converged"]:
        reason = summary["error"] or "accuracy near chance"
        out.print(Text.assemble(("did not converge:", "red"), f" {reason}"))
    command = f"straggler show {quote(str(record.path))}"
    out.print(f"The record is in {record.path}. Show it with: {command}", soft_wrap=True)


def parse_assignments(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """Parse `key=value` texts; values are read as TOML, or else as plain text."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{option} {pair!r} must have the form key=value")
        try:
            settings[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key.strip()] = value
    return settings


def parse_resources(text: str | None) -> dict[str, float]:
    """Parse `CPU=0.5, memory=1e9` into amounts by name."""
    amounts = {}
    for pair in filter(str.strip, (text or "").split(",")):
        name, _, amount = pair.partition("=")
        try:
            amounts[name.strip()] = float(amount)
            if not 0 <= amounts[name.strip()] < math.inf:
                raise ValueError
        except ValueError:
            raise InputError(f"--worker-resources {text!r} must have the form CPU=0.5, memory=1e9") from None
    return amounts


def resume(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
    trust: options.Trust = False,
    as_json: options.Json = False,
    checkpoint_every: options.CheckpointEvery = "60s",
    jobs: options.Jobs = None,
    data: options.Data = None,
    worker_timeout: options.WorkerTimeout = 60.0,
    max_failures: options.MaxFailures = None,
    supervise: options.Supervise = False,
    address: options.Address = None,
    worker_resources: options.WorkerResources = None,
    logger: options.Loggers = None,
    device: options.Device = "cpu",
    deterministic: options.Deterministic = False,
    loader_workers: options.LoaderWorkers = 0,
) -> None:
    """Resume an interrupted or killed run from its checkpoint; in virtual time the result is identical."""
    record = find_run(run, out_folder)
    experiment = Experiment.from_record(record, trust=trust)
    if experiment.id != record.path.name:
        raise InputError(
            f"{record.path} has the id {experiment.id} now. Either the folder was renamed, or a file that "
            "the experiment names (custom code, a trace) has changed. Rename the folder, or run it again"
        )
    run_and_show(
        experiment,
        record.path.parent,
        as_json,
        jobs=jobs,
        data=data,
        checkpoint_every=checkpoint_every,
        worker_timeout=worker_timeout,
        max_failures=max_failures,
        address=address,
        worker_resources=parse_resources(worker_resources),
        callbacks=[parse_logger(text) for text in logger or []],
        device=device,
        deterministic=deterministic,
        loader_workers=loader_workers,
    )


def replay(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
    trust: options.Trust = False,
    data: options.Data = None,
    device: options.Device = "cpu",
) -> None:
    """Execute a run's order of arrivals again, real or simulated, and compare the weights bit by bit."""
    record = find_run(run, out_folder)
    result = replay_record(record, data=data, trust=trust, device=device)
    out.print(f"replayed {result.replayed}\nrecorded {result.recorded}", soft_wrap=True)
    if not result.matches:
        exit_with_error("the weights differ: other code, another torch version or another machine", code=1)
    out.print("The weights are identical.")
