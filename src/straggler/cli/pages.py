"""Commands that show records in pictures: report, serve."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from straggler.cli.app import err, find, is_something_else, out
from straggler.config.registry import InputError


class Format(StrEnum):
    """Of a report."""

    html = "html"
    md = "md"
    pdf = "pdf"
    png = "png"


Things = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|STUDY…",
        help="Folders of runs, beginnings of their ids, or folders of studies (results/NAME).",
    ),
]
File = Annotated[Path | None, typer.Option("--out", help="The file to write.", show_default="report.FORMAT")]
Kind = Annotated[
    Format | None,
    typer.Option("--format", help="What to write.", show_default="what --out ends with, else html"),
]
Runs = Annotated[Path, typer.Option("--runs", help="Where runs are looked for by their id.")]


def report(things: Things, out_file: File = None, format_: Kind = None, runs: Runs = Path("runs")) -> None:
    """Write one file that shows runs or studies: what was run, what came out, how to run it again.

    The HTML needs no network and nothing beside it. Several runs are laid over one another;
    runs that differ only in their seed are averaged, with 95 % intervals.
    """
    from straggler.web.report_files import write_report
    from straggler.web.study_page import is_study_folder

    kind = format_ or by_name(out_file)
    path = out_file or Path(f"report.{kind}")
    studies = [Path(thing) for thing in things if is_study_folder(Path(thing))]
    others = [thing for thing in things if Path(thing) not in studies]
    records = [find(thing, runs).path for thing in others if not is_something_else(Path(thing))]
    skip([thing for thing in others if is_something_else(Path(thing))], bool(records or studies))
    if kind in (Format.pdf, Format.png) and not records:
        raise InputError(
            f"--format {kind} draws runs, and {things[0]} is a study; use html or md, or name its runs"
        )
    with err.status(f"writing {path}"):
        trouble = write_report(kind, records, studies, path)
    for line in trouble:
        err.print(f"left out: {line}", markup=False, soft_wrap=True)
    out.print(f"report in {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


def skip(things: list[str], others: bool) -> None:
    """Say what is left out, unless nothing is left."""
    if things and not others:
        named = things[0] if len(things) == 1 else f"none of {', '.join(things)}"
        raise InputError(
            f"{named}: a run is a folder with an experiment.toml, a study one with a README.md or "
            "summaries.parquet; name one of these"
        )
    for thing in things:
        err.print(f"left out: {thing} is neither a run nor a study", markup=False, soft_wrap=True)


def by_name(path: Path | None) -> Format:
    ending = path.suffix.lstrip(".").lower() if path else "html"
    if ending in ("htm", ""):
        ending = "html"
    if ending not in set(Format):
        raise InputError(
            f"--out {path}: it ends with none of {', '.join(Format)}; rename it, or say --format"
        )
    return Format(ending)


Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")]
Host = Annotated[str, typer.Option(help="Another address than this machine's own needs --token.")]
Token = Annotated[
    str | None, typer.Option(help="What visitors must know; without it only this machine may look.")
]
Results = Annotated[Path, typer.Option("--results", help="Where studies are.")]


def serve(
    runs: Annotated[
        Path, typer.Option("--runs", help="Where records are, and where the page puts new ones.")
    ] = Path("runs"),
    results: Results = Path("results"),
    port: Port = 8765,
    host: Host = "127.0.0.1",
    token: Token = None,
) -> None:
    """Show runs live in a browser: watch, compare, and play with clusters before you train on them.

    Open the address it prints. Runs of any engine that write to --runs appear by themselves.
    Ctrl-C ends it; runs started from the page are saved first and can be resumed.
    """
    from straggler.web.server import run_server

    run_server(runs, results, host, port, token, lambda url: out.print(f"open {url}", soft_wrap=True))
