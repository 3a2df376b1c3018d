"""Options of the command line. Those of an experiment are generated from its fields."""

import inspect
from collections.abc import Callable, Collection
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from straggler.cli.completion import CATALOGUE_OF, complete_entry, complete_run
from straggler.config.registry import format_value

machine_option = partial(typer.Option, rich_help_panel="Machine")
record_option = partial(typer.Option, rich_help_panel="Recording")

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The folder of a run, or the beginning of its id.", autocompletion=complete_run
    ),
]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN…", help="Folders of runs, or the beginnings of their ids.", autocompletion=complete_run
    ),
]
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that contains the runs.")]
Records = Annotated[Path, typer.Option("--runs", "--out", help="The folder that contains the runs.")]
Trust = Annotated[
    bool, record_option("--trust", help="Follow import strings in files: this runs the code they name.")
]
JOBS_HELP = "Processes that compute gradients in virtual time. Results do not depend on it."
Jobs = Annotated[int | None, machine_option(min=1, show_default="all cores", help=JOBS_HELP)]
Out = Annotated[Path, record_option("--out", help="The folder in which records are written.")]
Data = Annotated[
    Path | None, typer.Option(rich_help_panel="Data and model", help="A folder with the data files.")
]
Config = Annotated[
    Path | None, record_option(help="A TOML file with any of these settings; options replace them.")
]
Settings = Annotated[
    list[str] | None, record_option("--set", metavar="KEY=VALUE", help="Any setting by its name.")
]
CheckpointEvery = Annotated[
    str, record_option(help="Wall-clock seconds (60s) or updates (500) between checkpoints.")
]
WorkerTimeout = Annotated[
    float, machine_option(min=0.1, help="Seconds without a message until a process is restarted.")
]
MAX_FAILURES_HELP = "Failures of workers, and restarts by --supervise, after which the run ends."
MaxFailures = Annotated[int | None, machine_option(min=0, show_default=False, help=MAX_FAILURES_HELP)]
SUPERVISE_HELP = (
    "Watch the run from another process, and restart it from its checkpoint if it is killed or hangs."
)
Supervise = Annotated[bool, machine_option("--supervise", help=SUPERVISE_HELP)]
ADDRESS_HELP = "The Ray cluster to join, such as 10.0.0.1:6379 or auto. Default: start Ray on this machine."
Address = Annotated[str | None, machine_option(help=ADDRESS_HELP)]
RESOURCES_HELP = "Resources of each worker on a Ray cluster, such as [bold]CPU=0.5, memory=1e9[/bold]."
WorkerResources = Annotated[str | None, machine_option(show_default="CPU=1", help=RESOURCES_HELP)]
DEVICE_HELP = "Where gradients are computed: cpu, cuda, cuda:1, mps, auto, or a list such as cuda:0,cuda:1."
Device = Annotated[str, machine_option("--device", help=DEVICE_HELP)]
Deterministic = Annotated[
    bool, machine_option("--deterministic", help="Use only torch's deterministic operations.")
]
LOADERS_HELP = "Processes per worker that load the next batches while it computes (engine processes or ray)."
LoaderWorkers = Annotated[int, machine_option(min=0, help=LOADERS_HELP)]
LOGGER_HELP = "Also write evaluations for tensorboard, mlflow, wandb, trackio, or a custom Callback."
Loggers = Annotated[list[str] | None, record_option("--logger", metavar="NAME", help=LOGGER_HELP)]
Force = Annotated[bool, record_option("--force", help="Run again even if the run is cached.")]
Json = Annotated[bool, record_option("--json", help="Print the summary as one line of JSON.")]


TEXTS = ("workers", "batch_size")  # numbers, or texts such as `2-8` and `balanced(32)`


def with_experiment_options(
    command: Callable[..., None], without: Collection[str] = ()
) -> Callable[..., None]:
    """Give a command one option per field of Experiment; it receives them as keyword arguments."""
    from straggler.experiment import Experiment

    hidden = {"min_workers", *without}
    experiment = [
        make_parameter(key, field) for key, field in Experiment.model_fields.items() if key not in hidden
    ]
    declared = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters = [*experiment, *declared]

    @wraps(command)
    def wrapper(**options: Any) -> None:
        command(**options)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def make_parameter(key: str, field: FieldInfo) -> inspect.Parameter:
    """Return the command-line option of a field: its type, help and default come from the field."""
    assert isinstance(field.json_schema_extra, dict)
    default = field.get_default()
    name = f"--{key.replace('_', '-')}"
    if bool in get_args(field.annotation):
        name += f"/--no-{key.replace('_', '-')}"
    option = typer.Option(
        name,
        rich_help_panel=str(field.json_schema_extra["panel"]),
        help=field.description,
        autocompletion=complete_entry(CATALOGUE_OF[key]) if key in CATALOGUE_OF else None,
        show_default=False if default in (None, []) else format_value(default).strip("'"),
    )
    kind: Any = find_option_type(key, field) | None
    annotation = Annotated[kind, option]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def find_option_type(key: str, field: FieldInfo) -> Any:
    """Return the type that typer parses an option as; components and choices are text."""
    if key in ("delay", "link", "churn", "metrics"):
        return list[str]
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in (bool, int, float) if kind in kinds and key not in TEXTS), str)
