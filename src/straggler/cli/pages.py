"""Commands that show records in pictures: report."""

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from straggler.catalogue import InputError
from straggler.cli.app import err, find, out
from straggler.web.facts import Facts
from straggler.web.printed import markdown, pages, write_pdf, write_png
from straggler.web.report import html
from straggler.web.study import Study, is_study

__all__ = ["report"]


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
    kind = format_ or by_name(out_file)
    path = out_file or Path(f"report.{kind}")
    studies = [Study(Path(thing)) for thing in things if is_study(Path(thing))]
    records = [Facts(find(thing, runs, "--runs").path) for thing in things if not is_study(Path(thing))]
    if kind in (Format.pdf, Format.png) and not records:
        raise InputError(
            f"--format {kind} draws runs, and {things[0]} is a study; use html or md, or name its runs"
        )
    with err.status(f"writing {path}"):
        whole_or_absent(path, lambda temporary: write(kind, records, studies, temporary))
    trouble = [thing.trouble for thing in studies] + [run.trouble for run in records]
    for line in dict.fromkeys(line for lines in trouble for line in lines):
        err.print(f"left out: {line}", markup=False, soft_wrap=True)
    out.print(f"report in {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


def by_name(path: Path | None) -> Format:
    ending = path.suffix.lstrip(".").lower() if path else "html"
    if ending in ("htm", ""):
        ending = "html"
    if ending not in set(Format):
        raise InputError(
            f"--out {path}: it ends with none of {', '.join(Format)}; rename it, or say --format"
        )
    return Format(ending)


def write(kind: Format, records: list[Facts], studies: list[Study], path: Path) -> None:
    if kind is Format.html:
        path.write_text(html(records, studies))
    elif kind is Format.md:
        path.write_text(markdown(records, studies))
    elif kind is Format.pdf:
        write_pdf(pages(records), path)
    else:
        write_png(pages(records), path)


def whole_or_absent(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); choose another file with --out"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
