"""The commands that show runs, catalogues and settings: list, show, data, cite, schema."""

import json
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from straggler.algorithms.methods import METHODS
from straggler.analysis.record_description import describe_record
from straggler.analysis.tables import build_table, format_number
from straggler.cli import options
from straggler.cli.app import err, find_run, out
from straggler.cli.completion import complete_catalogue, complete_entry
from straggler.config.listing import read_listing
from straggler.config.registry import InputError, parse_entry, suggest_name

CATALOGUES = (
    "methods, work, channels, policies, corrections, aggregations, optimizers, schedules, delays, links, "
    "churn, cores, partitions, models, datasets, metrics"
)


def list_(
    what: Annotated[
        str | None,
        typer.Argument(metavar="CATALOGUE", help=CATALOGUES, autocompletion=complete_catalogue),
    ] = None,
) -> None:
    """List the available components, models and data sets, with their settings and defaults.

    Custom classes need no registration: pass an import string such as ./file.py:Name(key=value).
    """
    listing = read_listing()
    if what is not None and what not in listing:
        raise InputError(f"Unknown catalogue {what!r}. {suggest_name(what, listing)}")
    for name in [what] if what else CATALOGUES.split(", "):
        table = listing[name]
        rows = [row + [""] * (len(table["columns"]) - len(row)) for row in table["rows"]]
        out.print(build_table(name, table["columns"], rows))


def cite(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="A name from `straggler list methods`.",
            autocompletion=complete_entry("methods"),
        ),
    ],
) -> None:
    """Print the BibTeX entry of a method's paper."""
    if method not in METHODS:
        raise InputError(f"Unknown method {method!r}. {suggest_name(method, METHODS)}")
    print(METHODS[method].bibtex)


def data(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME…",
            help="Data sets to download if they are not cached.",
            autocompletion=complete_entry("datasets"),
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--data", help="A folder with the data files.")] = None,
) -> None:
    """Show which data sets are cached and where they come from; download those that are named."""
    from straggler.problems.datasets import DATASETS, list_statuses  # imports torch
    from straggler.running.progress import ProgressBar

    for name in names or []:
        try:
            dataset = parse_entry(name, DATASETS)
        except ValueError as error:
            raise InputError(str(error)) from None
        with ProgressBar(err, name) as bar:
            dataset.load(folder, bar.say)
    rows = [
        [
            row.name,
            ("yes" if row.checksum_ok else "damaged") if row.present else "no",
            f"{format_number(row.train)} + {format_number(row.test)}" if row.present else "–",
            f"{row.size / 1e6:.1f} MB" if row.present else "–",
            row.source or "–",
            row.license or "–",
            str(row.path) if row.present and row.path else "–",
        ]
        for row in (list_statuses(names) if names else list_statuses())
    ]
    columns = ["name", "cached", "train + test", "size", "source", "license", "folder"]
    out.print(build_table("data sets", columns, rows))


def show(run: options.Run, out_folder: options.Records = Path("runs")) -> None:
    """Show a run: results, curve, staleness, classes and settings."""
    record = find_run(run, out_folder)
    try:
        description = describe_record(record)
    except (TypeError, KeyError, AttributeError, ArithmeticError, pl.exceptions.PolarsError) as error:
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise InputError(f"{record.path} has values that no run writes ({reason}). Run it again") from None
    out.print(description)


def schema(
    format_: Annotated[str, typer.Option("--format", help="json or markdown")] = "json",
) -> None:
    """Print the settings of an experiment: as JSON schema for editors, or as a Markdown table."""
    from straggler.experiment import Experiment

    if format_ not in ("json", "markdown"):
        raise InputError(f"--format {format_!r} must be json or markdown")
    if format_ == "json":
        print(json.dumps(Experiment.model_json_schema(), indent=1))
        return
    panel = ""
    for key, field in Experiment.model_fields.items():
        assert isinstance(field.json_schema_extra, dict)
        if (heading := str(field.json_schema_extra["panel"])) != panel:
            panel = heading
            print(f"\n## {panel}\n\n| key | default | description |\n|---|---|---|")
        default = field.get_default()
        print(f"| `{key}` | {'' if default in (None, []) else f'`{default}`'} | {field.description} |")
