"""The command line: a thin layer over Experiment and Record, with one file per group of commands."""

import inspect
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Annotated

import typer
from pydantic import ValidationError

from straggler.cli.app import describe_usage_error, exit_with_error, out
from straggler.cli.completion import find_requested_command
from straggler.cli.resources import explain_resource_error
from straggler.config.registry import explain_validation_error
from straggler.record import StragglerVersionWarning

__all__ = ["build_app", "main"]

# By panel, in the order of `straggler --help`: command, where it is, and what it does in one line. Commands
# are imported only when they are used, because torch and plotting take seconds to import.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "run": ("train:run", "Train one experiment and record it."),
        "resume": ("train:resume", "Resume an interrupted or killed run; the result is identical."),
        "replay": ("train:replay", "Execute a recorded order of arrivals again and compare the weights."),
        "calibrate": ("calibrate:calibrate_", "Fit a simulation to a run in real time."),
        "check": ("check:check", "Test a custom component, model, data set or loss."),
    },
    "Study": {
        "study": ("study:study", "Run a paper's experiments and judge its claims."),
        "verify": ("verify:verify", "Run random rows of a study again and compare them."),
        "sweep": ("sweep:sweep", "Run a grid of experiments, several seeds each."),
        "tune": ("tune:tune", "Find the best values of some settings, such as the learning rate."),
    },
    "Analyse": {
        "speedup": ("analyse:speedup", "Show how much faster N workers are, without computing gradients."),
        "densities": ("analyse:densities", "Plot how long batches take."),
        "landscape": ("landscapes:landscape", "Compute and plot the loss around the path of a run."),
        "plot": ("plot:plot", "Plot runs: accuracy, staleness, worker timeline and more."),
    },
    "Show": {
        "list": ("catalogue:list_", "List methods, policies, models, data sets and other choices."),
        "show": ("catalogue:show", "Show the settings and results of a run."),
        "doctor": ("doctor:doctor", "Check versions, cores, memory, devices, data cache, Ray and limits."),
        "data": ("catalogue:data", "Show which data sets are cached, and download data sets."),
        "cite": ("catalogue:cite", "Print the BibTeX entry of a method's paper."),
        "schema": ("catalogue:schema", "Print the settings of an experiment as JSON schema or Markdown."),
        "report": ("pages:report", "Write one file that shows runs or studies."),
        "serve": ("pages:serve", "Show runs live in the browser, with a playground."),
    },
}
FILE_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def build_app(requested: str = "", load_all: bool = False) -> typer.Typer:
    """Return the app with the requested command, or with the names and summaries of all commands."""
    app = typer.Typer(
        help="What happens to SGD when workers are not equally fast.\n\n"
        "Try: [bold]straggler run --dataset digits --model mlp --workers 8 --lr 0.02 --epochs 10 "
        "--delay 'constant(4, workers=[0])'[/bold]",
        rich_markup_mode="rich",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(handle_global_options)
    commands = [(name, panel, *entry) for panel, group in COMMANDS.items() for name, entry in group.items()]
    if requested in {name for name, *_ in commands}:
        commands = [command for command in commands if command[0] == requested]
    for name, panel, place, summary in commands:
        if name != requested and not load_all:
            app.command(name, rich_help_panel=panel, help=summary)(lambda: None)
            continue
        module, function = place.split(":")
        command = getattr(import_module(f"straggler.cli.{module}"), function)
        app.command(name, rich_help_panel=panel, help=unwrap_docstring(command))(command)
    return app


def unwrap_docstring(command: Callable[..., None]) -> str:
    """Return a command's docstring with one line per paragraph, which the terminal wraps."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def print_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        out.print(f"straggler {metadata.version('straggler')}")
        raise typer.Exit


def handle_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 a run failed, 2 invalid input, 75 a Ray cluster is gone, 130 Ctrl-C.
    """
    warnings.filterwarnings("ignore", category=StragglerVersionWarning)  # the progress line says it too
    for name in ("SIGTERM", "SIGHUP"):  # like Ctrl-C, before and after training too
        number = getattr(signal, name, None)  # Windows has no SIGHUP, and `nohup` ignores it
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        app = build_app(sys.argv[1] if len(sys.argv) > 1 else find_requested_command())
        code = app(prog_name="straggler", standalone_mode=False) or 0  # typer.Exit(code) returns the code
        if code == 130:  # typer catches Ctrl-C that no command did
            exit_with_error("interrupted", code=code)
        sys.exit(code)
    except typer.TyperException as error:
        exit_with_error(describe_usage_error(error), code=2)
    except ValidationError as error:
        exit_with_error(explain_validation_error(error, {}), code=2)
    except Exception as error:
        if (lacking := explain_resource_error(error)) is not None:
            remedy = "The same command resumes the run from its last checkpoint"
            exit_with_error(f"the run failed: {lacking}. {remedy}.", code=1)
        code = getattr(error, "exit_code", None)  # set on the errors that this project raises on purpose
        if code is not None:
            exit_with_error(str(error) if code == 2 else f"the run failed: {error}", code=code)
        if isinstance(error, FILE_ERRORS) or (isinstance(error, OSError) and error.filename):
            place = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            exit_with_error(f"{place}. Choose a file or folder that can be read and written", code=2)
        traceback.print_exc()
        exit_with_error(f"the run failed: {error}", code=1)
