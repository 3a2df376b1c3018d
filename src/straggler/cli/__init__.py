"""The command line: a thin layer over Experiment and Record, a file per group of commands."""

import inspect
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Annotated

import typer
from pydantic import ValidationError

from straggler.cli.app import complain, misused, out
from straggler.config.registry import InputError, explain_validation_error
from straggler.experiment import Experiment
from straggler.problems.downloads.sources import DataError
from straggler.record import RecordError
from straggler.timing import DurationError

__all__ = ["main", "offered"]

COMMANDS = {  # by panel, in the order of `straggler --help`: the file, and the function in it
    "Train": ("train.run", "train.resume", "train.replay_", "calibrate.calibrate_"),
    "Study": ("study.study", "sweep.sweep"),
    "Analyse": ("analyse.speedup", "analyse.densities", "landscapes.landscape", "plot.plot"),
    "Look": (
        *("catalogue.list_", "catalogue.show", "catalogue.data", "catalogue.cite"),
        *("pages.report", "pages.serve"),
    ),
}
PLACES = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def offered(asked: str = "") -> typer.Typer:
    """The command that is asked for, alone, for the others take seconds to import; all if it is none."""
    app = typer.Typer(
        help="What happens to SGD when workers are not equally fast.\n\n"
        "Try: [bold]straggler run --dataset digits --model mlp --workers 8 --lr 0.02 --epochs 10 "
        "--delay 'constant(4, workers=[0])'[/bold]",
        rich_markup_mode="rich",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(any_command)
    places = [(panel, *place.split(".")) for panel, places in COMMANDS.items() for place in places]
    named = {function.rstrip("_"): (panel, file, function) for panel, file, function in places}
    for name in [asked] if asked in named else named:
        panel, file, function = named[name]
        command = getattr(import_module(f"straggler.cli.{file}"), function)
        app.command(name, rich_help_panel=panel, help=flowing(command))(command)
    return app


def flowing(command: Callable[..., None]) -> str:
    """What a command does, its paragraphs as broad as the terminal."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def show_version(asked: bool) -> None:
    if asked:
        out.print(f"straggler {metadata.version('straggler')}")
        raise typer.Exit


def any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """Exit codes: 0; 2 wrong input; 1 a failed run; 130 Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also before and after training
    try:
        app = offered(*sys.argv[1:2])
        sys.exit(app(prog_name="straggler", standalone_mode=False) or 0)  # a number only if somebody ended it
    except typer.TyperException as error:
        complain(misused(error), code=2)
    except ValidationError as error:
        complain(explain_validation_error(error, Experiment.model_fields), code=2)
    except (InputError, DataError, RecordError) as error:
        complain(str(error), code=2)
    except DurationError as error:
        complain(f"the run failed: {error}", code=1)
    except Exception as error:
        if isinstance(error, PLACES) or (isinstance(error, OSError) and error.filename):
            place = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            complain(f"{place}; choose a file or folder that can be read and written", code=2)
        traceback.print_exc()
        complain(f"the run failed: {error}", code=1)
