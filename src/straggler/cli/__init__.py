"""The command line: a thin layer over Experiment and Record, a file per group of commands."""

import signal
import sys
import traceback
from collections.abc import Callable

import typer
from pydantic import ValidationError

from straggler.catalogue import InputError, explain
from straggler.cli import analyse, calibrate, landscapes, look, pages, plot, study, train
from straggler.cli.app import app, complain, misused
from straggler.data.datasets import DataError
from straggler.delays import DurationError
from straggler.experiment import Experiment
from straggler.record import RecordError

__all__ = ["app", "main"]

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {  # in the order of `straggler --help`
    "Train": (train.run, train.resume, train.replay_, calibrate.calibrate_),
    "Study": (study.study, study.sweep),
    "Analyse": (analyse.speedup, analyse.densities, landscapes.landscape, plot.plot),
    "Look": (look.list_, look.show, look.data, look.cite, pages.report, pages.serve),
}
PLACES = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)

for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(command.__name__.rstrip("_"), rich_help_panel=panel)(command)


def main() -> None:
    """Exit codes: 0; 2 wrong input; 1 a failed run; 130 Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also before and after training
    try:
        sys.exit(app(prog_name="straggler", standalone_mode=False) or 0)  # a number only if somebody ended it
    except typer.TyperException as error:
        complain(misused(error), code=2)
    except ValidationError as error:
        complain(explain(error, Experiment.model_fields), code=2)
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
