"""Shared by all commands: output, finding runs, reporting errors."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer
from pydantic import ValidationError
from rich.text import Text

from straggler.analysis.tables import strip_controls
from straggler.config.registry import InputError
from straggler.record import Record, has_file
from straggler.running.console import WordConsole

# No markup: a path may contain brackets, which rich would interpret.
out, err = WordConsole(), WordConsole(stderr=True)


def find_run(run: str, folder: Path) -> Record:
    """Return the record in a folder, or the one in `folder` whose id starts with a text."""
    if Path(run).is_dir():
        return Record(run)
    matches = [path.parent for path in folder.glob("*/experiment.toml") if path.parent.name.startswith(run)]
    if len(matches) != 1:
        found = "No run starts" if not matches else f"{len(matches)} runs start"
        raise InputError(f"{found} with {run!r} in {folder}. Pass its folder, more of its id, or --runs DIR")
    return Record(matches[0])


def find_runs(runs: Sequence[str], folder: Path) -> list[Record]:
    """Return several records; folders without a run, such as runs/landscapes, are skipped with a message."""
    others = [run for run in runs if is_other_folder(Path(run))]
    if len(others) < len(runs):
        for run in others:
            err.print(f"Skipping {run}: it is not a run", markup=False, soft_wrap=True)
        runs = [run for run in runs if run not in others]
    return [find_run(run, folder) for run in runs]


def is_other_folder(path: Path) -> bool:
    """Return whether a path exists and is not a run."""
    exists = path.exists() or path.is_symlink()  # a broken link counts too
    return exists and not has_file(path / "experiment.toml")


def check_suffix(file: Path, allowed: tuple[str, ...]) -> None:
    """Raise if a file's name does not end with one of these suffixes."""
    if file.suffix.lower() not in allowed:
        raise InputError(f"--out {file}: the name must end with {', '.join(allowed)}")


def describe_usage_error(error: typer.TyperException) -> str:
    """Return one line that says what is wrong with a command line, and where its help is."""
    text = " ".join(str(getattr(error, "format_message", error.__str__)()).split()).removesuffix(".")
    if isinstance(error.__cause__, ValidationError):  # it has the rule, but not the value
        value = error.__cause__.errors()[0]["input"]
        text = text.replace("Input should be", f"got {value!r}, must be").replace("Value error, ", "")
    if not text:  # no command was given, so the help was shown
        sys.exit(2)
    context = getattr(error, "ctx", None)  # missing if the command is known and its options are wrong
    command = context.command_path if context else " ".join(["straggler", *sys.argv[1:2]])
    return f"{text[0].lower()}{text[1:]}; see {command} --help"


def exit_with_error(message: str, code: int) -> NoReturn:
    """Print an error in one line and exit."""
    err.print(Text.assemble(("error:", "red bold"), f" {strip_controls(message)}"), soft_wrap=True)
    sys.exit(code)
