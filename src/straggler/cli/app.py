"""What all commands share: where they print to, how they find runs, how they complain."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from straggler.config.registry import InputError
from straggler.record import Record

# What is printed is what is meant: a path may have brackets, which rich would take for its own.
out, err = Console(highlight=False, markup=False), Console(stderr=True, highlight=False, markup=False)


def find(run: str, folder: Path) -> Record:
    if Path(run).is_dir():
        return Record(run)
    matches = [path.parent for path in folder.glob("*/experiment.toml") if path.parent.name.startswith(run)]
    if len(matches) != 1:
        raise InputError(
            f"{run!r} names {len(matches)} runs in {folder}; give a folder, or more of the id, or --runs"
        )
    return Record(matches[0])


def find_all(runs: Sequence[str], folder: Path) -> list[Record]:
    """Several; folders without a run, as runs/landscapes among runs/*, are left out unless all are such."""
    others = [run for run in runs if is_something_else(Path(run))]
    if len(others) < len(runs):
        for run in others:
            err.print(f"left out: {run} holds no run", markup=False, soft_wrap=True)
        runs = [run for run in runs if run not in others]
    return [find(run, folder) for run in runs]


def is_something_else(path: Path) -> bool:
    """Whether a path is there and holds no run."""
    there = path.exists() or path.is_symlink()  # one that leads nowhere, too
    return there and not (path / "experiment.toml").is_file()


def check_suffix(file: Path, allowed: tuple[str, ...]) -> None:
    """Refuse a name that does not say what is to be written."""
    if file.suffix not in allowed:
        raise InputError(f"--out {file}: the name must end with {', '.join(allowed)}")


def misused(error: typer.TyperException) -> str:
    """What is wrong with a command line, in one line with the remedy."""
    said = " ".join(str(getattr(error, "format_message", error.__str__)()).split()).removesuffix(".")
    if isinstance(error.__cause__, ValidationError):  # which says the rule, but not what was given
        given = error.__cause__.errors()[0]["input"]
        said = said.replace("Input should be", f"{given!r} is given, it must be").replace("Value error, ", "")
    if not said:  # nothing was asked for, and so the help was shown
        sys.exit(2)
    context = getattr(error, "ctx", None)  # without one, the command was found and its options are wrong
    asked = context.command_path if context else " ".join(["straggler", *sys.argv[1:2]])
    return f"{said[0].lower()}{said[1:]}; see {asked} --help"


def complain(message: str, code: int) -> NoReturn:
    err.print(Text.assemble(("error:", "red bold"), f" {message}"), soft_wrap=True)
    sys.exit(code)
