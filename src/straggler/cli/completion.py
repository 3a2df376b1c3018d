"""Completion of names in the shell: components, data sets, catalogues and runs."""

import os
from collections.abc import Callable
from pathlib import Path

import typer

from straggler.config.listing import read_listing
from straggler.running.untrusted_files import is_regular_file

# The catalogue of each option of an experiment.
CATALOGUE_OF = {
    **{key: key for key in ("work", "churn", "metrics")},
    "policy": "policies",
    "compute": "delays",
    "server_link": "links",
    **{key: f"{key}s" for key in ("method", "channel", "correction", "aggregation", "optimizer", "schedule")},
    **{key: f"{key}s" for key in ("delay", "link", "partition", "model", "dataset")},
}
Candidates = list[tuple[str, str]]  # a name and what it stands for


def find_requested_command() -> str:
    """Return the command in the line that a shell asks to complete, or an empty string."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return next((word for word in line.split()[1:] if not word.startswith("-")), "")


def complete_entry(catalogue: str) -> Callable[[str], Candidates]:
    """Return a function that completes the names of a catalogue; arguments in parentheses are left alone."""

    def complete(incomplete: str) -> Candidates:
        table = read_listing()[catalogue]
        named = [(row[0].split("(")[0].split()[0], row[-1]) for row in table["rows"] if row and row[0]]
        return [(name, summary) for name, summary in named if name.startswith(incomplete)]

    return complete


def complete_catalogue(incomplete: str) -> list[str]:
    """Complete the name of a catalogue."""
    return [name for name in read_listing() if name.startswith(incomplete)]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a run in the folder of the runs."""
    folder = context.params.get("out_folder") or context.params.get("runs") or "runs"
    found = sorted(Path(folder).glob(f"{incomplete.translate(PATTERN)}*/experiment.toml"))
    return [file.parent.name for file in found if is_regular_file(file)]


PATTERN = str.maketrans(dict.fromkeys("*?[]/", None))  # characters that a glob would interpret
