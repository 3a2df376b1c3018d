"""Commands that only look: list, cite, data, show."""

from pathlib import Path
from typing import Annotated

import typer

from straggler.algorithms.methods import METHODS
from straggler.analysis.tables import build_table, describe_record, format_number
from straggler.cli import options
from straggler.cli.app import err, find, out
from straggler.config.listing import CATALOGUES, catalogue_table
from straggler.config.registry import InputError, suggest_name
from straggler.problems.datasets import DATASETS, list_statuses
from straggler.running.progress import ProgressBar


def list_(what: Annotated[str | None, typer.Argument(help=", ".join(CATALOGUES))] = None) -> None:
    """Show what there is to choose from, with settings and defaults."""
    if what is not None and what not in CATALOGUES:
        raise InputError(f"nothing to list under {what!r}; {suggest_name(what, CATALOGUES)}")
    for name in [what] if what else CATALOGUES:
        out.print(catalogue_table(name))


def cite(method: Annotated[str, typer.Argument(help="`straggler list methods`")]) -> None:
    """Print the BibTeX of a method's paper."""
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; {suggest_name(method, METHODS)}")
    print(METHODS[method].bibtex)


def data(
    names: Annotated[list[str] | None, typer.Argument(help="Fetch these if they are not there.")] = None,
    folder: Annotated[Path | None, typer.Option("--data", help="A folder with the data files.")] = None,
) -> None:
    """Show which data sets are here and from where; fetch those that are named."""
    for name in names or []:
        if name not in DATASETS:
            raise InputError(f"unknown data set {name!r}; {suggest_name(name, DATASETS)}")
        with ProgressBar(err, name) as bar:
            DATASETS[name]().load(folder, bar.say)
    rows = [
        [
            row.name,
            ("yes" if row.checksum_ok else "damaged") if row.present else "no",
            f"{format_number(row.train)} + {format_number(row.test)}" if row.present else "–",
            f"{row.size / 1e6:.1f} MB" if row.present else "–",
            row.source or "–",
            str(row.path) if row.present and row.path else "–",
        ]
        for row in (list_statuses(names) if names else list_statuses())
    ]
    out.print(build_table("data sets", ["name", "here", "train + test", "size", "from", "in"], rows))


def show(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
) -> None:
    """Show one run: experiment, summary, curve, staleness, classes."""
    out.print(describe_record(find(run, out_folder)))
