"""Options of the command line. Those of an experiment are generated from its fields."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from straggler.config.registry import format_value

MACHINE, RECORDING = "Machine", "Recording"

Run = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run, or the beginning of its id.")]
Runs = Annotated[
    list[str], typer.Argument(metavar="RUN…", help="Folders of runs, or the beginnings of their ids.")
]
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that contains the runs.")]
Records = Annotated[Path, typer.Option("--runs", "--out", help="The folder that contains the runs.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        rich_help_panel=RECORDING,
        help="Follow import strings in files: this runs the code they name.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        rich_help_panel=MACHINE,
        show_default="all cores",
        help="Processes that compute gradients in virtual time. Results do not depend on it.",
    ),
]
Out = Annotated[
    Path, typer.Option("--out", rich_help_panel=RECORDING, help="The folder in which records are written.")
]
Data = Annotated[
    Path | None, typer.Option(rich_help_panel="Data and model", help="A folder with the data files.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=RECORDING, help="A TOML file with any of these settings; options replace them."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", rich_help_panel=RECORDING, help="Any setting by its name."),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(
        rich_help_panel=RECORDING, help="Wall-clock seconds (60s) or updates (500) between checkpoints."
    ),
]
WorkerTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        rich_help_panel=MACHINE,
        help="Seconds without a message until a worker process is restarted.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MACHINE,
        help="The Ray cluster to join, such as 10.0.0.1:6379 or auto. Default: start Ray on this machine.",
    ),
]
WorkerResources = Annotated[
    str | None,
    typer.Option(
        show_default="CPU=1",
        rich_help_panel=MACHINE,
        help="Resources of each worker on a Ray cluster, such as [bold]CPU=0.5, memory=1e9[/bold].",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", rich_help_panel=RECORDING, help="Run again even if the run is cached.")
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=RECORDING, help="Print the summary as one line of JSON.")
]


def with_experiment_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of Experiment; it receives them as keyword arguments."""
    from straggler.experiment import Experiment

    experiment = [
        make_parameter(key, field) for key, field in Experiment.model_fields.items() if key != "min_workers"
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
        show_default=False if default in (None, []) else format_value(default).strip("'"),
    )
    kind: Any = find_option_type(key, field) | None
    annotation = Annotated[kind, option]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def find_option_type(key: str, field: FieldInfo) -> Any:
    """Return the type that typer parses an option as; components and choices are text."""
    if key == "delay":
        return list[str]
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in (bool, int, float) if kind in kinds and key != "workers"), str)
