"""The command line: a thin layer over Experiment and Record."""

import json
import sys
import tomllib
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from straggler import options
from straggler.analysis.tables import description, listing, number
from straggler.catalogue import InputError, explain, suggestion
from straggler.catalogues import CATALOGUES, catalogue_table
from straggler.data.datasets import DATASETS, DataError, status
from straggler.delays import DurationError
from straggler.experiment import Experiment
from straggler.methods import METHODS
from straggler.progress import Bar
from straggler.record import Record, RecordError
from straggler.replay import replay

__all__ = ["app", "main"]

app = typer.Typer(
    help="What happens to SGD when workers are not equally fast.\n\n"
    "Try: [bold]straggler run --dataset digits --workers 8 --delay 'constant(4, workers=[0])'[/bold]",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out, err = Console(highlight=False), Console(stderr=True, highlight=False)


@app.command(rich_help_panel="Train")
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
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Train and record one experiment."""
    flags = {key: value for key, value in locals().items() if key in Experiment.model_fields}
    settings = (read_config(config) if config else {}) | read_pairs(set_ or [])
    experiment = Experiment(**settings | {key: value for key, value in flags.items() if value is not None})
    carry_out(experiment, out_folder, jobs, force, data, checkpoint_every, worker_timeout, as_json)


def carry_out(
    experiment: Experiment,
    folder: Path,
    jobs: int | None,
    force: bool,
    data: Path | None,
    checkpoint_every: str,
    worker_timeout: float,
    as_json: bool,
) -> None:
    try:
        with Bar(err, f"{experiment.policy} × {experiment.workers}") as bar:
            record = experiment.run(
                folder, jobs, force, data, bar.update, bar.say, checkpoint_every, worker_timeout
            )
    except KeyboardInterrupt:
        kept = folder / experiment.id
        complain(f"interrupted; what happened so far is in {kept}; straggler resume {kept} goes on", code=130)
    if as_json:
        print(json.dumps(record.summary | {"record": str(record.path)}))  # it may have moved since
    else:
        show_result(record)


def show_result(record: Record) -> None:
    facts = record.summary
    keys = (
        "test_accuracy",
        "train_accuracy",
        "test_loss",
        "updates",
        "epochs",
        "mean_staleness",
        "seconds",
        "host_seconds",
    )
    rows = [[key.replace("_", " "), number(facts[key], 4)] for key in keys]
    out.print(listing(f"run {facts['id']}: {facts['status']}", ["", ""], rows))
    if not facts["converged"]:
        out.print(f"[red]NC: no convergence[/red] {escape(facts['error'] or '(accuracy near chance)')}")
    out.print(f"record in {record.path}; see it with: straggler show {record.path}", soft_wrap=True)


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


@app.command(rich_help_panel="Train")
def resume(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
    jobs: options.Jobs = None,
    data: options.Data = None,
    checkpoint_every: options.CheckpointEvery = "60s",
    worker_timeout: options.WorkerTimeout = 60.0,
    as_json: options.Json = False,
) -> None:
    """Go on with a run that was interrupted or killed; the result is the same to the bit."""
    record = find(run, out_folder)
    experiment = Experiment(**tomllib.loads(record.text))
    if experiment.id != record.path.name:
        raise InputError(f"{record.path} is not named by its id {experiment.id}; give the folder that name")
    carry_out(experiment, record.path.parent, jobs, False, data, checkpoint_every, worker_timeout, as_json)


@app.command("replay", rich_help_panel="Train")
def replay_(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
    data: options.Data = None,
) -> None:
    """Execute a run's order of arrivals again and compare the weights, bit for bit."""
    record = find(run, out_folder)
    here, there = replay(record, data=data), record.summary.get("weights_sha256")
    out.print(f"replayed {here}\nrecorded {there}", soft_wrap=True)
    if here != there:
        complain("the weights differ: other code, other versions of torch or another machine", code=1)
    out.print("the same to the bit")


@app.command("list", rich_help_panel="Look")
def list_(what: Annotated[str | None, typer.Argument(help=", ".join(CATALOGUES))] = None) -> None:
    """Show what there is to choose from, with settings and defaults."""
    if what is not None and what not in CATALOGUES:
        raise InputError(f"nothing to list under {what!r}; {suggestion(what, CATALOGUES)}")
    for name in [what] if what else CATALOGUES:
        out.print(catalogue_table(name))


@app.command(rich_help_panel="Look")
def cite(method: Annotated[str, typer.Argument(help="`straggler list methods`")]) -> None:
    """Print the BibTeX of a method's paper."""
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; {suggestion(method, METHODS)}")
    print(METHODS[method].bibtex)


@app.command(rich_help_panel="Look")
def data(
    names: Annotated[list[str] | None, typer.Argument(help="Fetch these if they are not there.")] = None,
    folder: Annotated[Path | None, typer.Option("--data", help="A folder with the data files.")] = None,
) -> None:
    """Show which data sets are here and from where; fetch those that are named."""
    for name in names or []:
        if name not in DATASETS:
            raise InputError(f"unknown data set {name!r}; {suggestion(name, DATASETS)}")
        with Bar(err, name) as bar:
            DATASETS[name]().load(folder, bar.say)
    rows = [
        [
            row.name,
            ("yes" if row.checksum_ok else "damaged") if row.present else "no",
            f"{number(row.train)} + {number(row.test)}" if row.present else "–",
            f"{row.size / 1e6:.1f} MB" if row.present else "–",
            row.source or "–",
            str(row.path) if row.present and row.path else "–",
        ]
        for row in (status(names) if names else status())
    ]
    out.print(listing("data sets", ["name", "here", "train + test", "size", "from", "in"], rows))


@app.command(rich_help_panel="Look")
def show(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
) -> None:
    """Show one run: experiment, summary, curve, staleness, classes."""
    out.print(description(find(run, out_folder)))


def find(run: str, folder: Path) -> Record:
    if Path(run).is_dir():
        return Record(run)
    matches = [path.parent for path in folder.glob("*/experiment.toml") if path.parent.name.startswith(run)]
    if len(matches) != 1:
        raise InputError(
            f"{run!r} names {len(matches)} runs in {folder}; give a folder, or more of the id, or --out"
        )
    return Record(matches[0])


def main() -> None:
    """Exit codes: 0; 2 wrong input; 1 a failed run; 130 Ctrl-C."""
    try:
        app()
    except ValidationError as error:
        complain(explain(error, Experiment.model_fields), code=2)
    except (InputError, DataError, RecordError) as error:
        complain(str(error), code=2)
    except DurationError as error:
        complain(f"the run failed: {error}", code=1)
    except Exception as error:
        traceback.print_exc()
        complain(f"the run failed: {error}", code=1)


def complain(message: str, code: int) -> NoReturn:
    err.print(f"[red bold]error:[/red bold] {escape(message)}", soft_wrap=True)
    sys.exit(code)
