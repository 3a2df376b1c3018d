"""The commands that show records: report and serve."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from straggler.analysis.tables import strip_controls
from straggler.cli.app import err, find_run, is_other_folder, out
from straggler.cli.completion import complete_run
from straggler.cli.options import RunsFolder
from straggler.config.registry import InputError

MAX_TOKEN_LENGTH = 4096
Items = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|STUDY…",
        help="Folders of runs, beginnings of run ids, or folders of studies (results/NAME).",
        autocompletion=complete_run,
    ),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", help="The file to write.", show_default="report.FORMAT")
]
FormatOption = Annotated[
    Literal["html", "md", "pdf", "png"] | None,
    typer.Option("--format", help="File format.", show_default="the ending of --out, else html"),
]


def report(
    items: Items,
    out_file: OutFile = None,
    format_: FormatOption = None,
    title: Annotated[str | None, typer.Option(help="The heading.", show_default="names of the runs")] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Show the time until this test accuracy (%).",
            show_default="the highest multiple of 5 that half of the settings reached",
        ),
    ] = None,
    runs: RunsFolder = Path("runs"),
    results: Annotated[Path, typer.Option("--results", help="Folder of the sweeps and studies.")] = Path(
        "results"
    ),
) -> None:
    """Write one file that shows runs, sweeps or studies: settings, results, and how to run them again.

    The HTML file needs no network and no other file. A sweep or study may be named as in results/NAME.
    Several runs share their figures. Runs that differ only in the seed are averaged, with 95 % confidence
    intervals.
    """
    from straggler.web.report import report as write_report  # takes a second to import
    from straggler.web.study_page import is_study_folder

    def warn(line: str) -> None:
        err.print(f"left out: {strip_controls(line)}", markup=False, soft_wrap=True)

    def is_ignored(item: str) -> bool:
        return is_other_folder(Path(item)) and not is_study_folder(Path(item))

    def find_study(item: str) -> str:
        is_name = not Path(item).exists() and is_study_folder(results / item)
        return str(results / item) if is_name else item

    items = [find_study(item) for item in items]
    ignored = [item for item in items if is_ignored(item)]
    if len(ignored) == len(items):
        raise InputError(
            f"{', '.join(ignored)}: not a run or study. A run is a folder with an experiment.toml, "
            "a study is one with a README.md or summaries.parquet."
        )
    for item in ignored:
        warn(f"{item} is neither a run nor a study")
    paths = [
        Path(item) if is_study_folder(Path(item)) else find_run(item, runs).path
        for item in items
        if item not in ignored
    ]
    with err.status("writing the report"):
        path = write_report(paths, out_file, title, format_, on_problem=warn, runs_folder=runs, target=target)
    out.print(f"report in {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


def serve(
    runs: Annotated[
        Path,
        typer.Option("--runs", help="The folder of the runs; runs started from the page are written there."),
    ] = Path("runs"),
    results: Annotated[Path, typer.Option("--results", help="The folder of the studies.")] = Path("results"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines can reach requires --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            help="Access token that visitors must enter (at least 8 characters). Other users of this machine "
            "can see it in the list of processes: prefer STRAGGLER_TOKEN in the environment, or --token-file."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file whose first line is the access token.")
    ] = None,
) -> None:
    """Show runs live in a browser: watch and compare them, and try out clusters in the playground.

    Open the address that is printed. Runs of any engine that write to --runs appear by themselves.
    Ctrl-C ends the server; runs started from the page write a checkpoint first and can be resumed.
    """
    from straggler.web.server import run_server

    secret = read_token(token, token_file)
    shows_token = token is not None  # otherwise it is not printed either, because logs keep what is printed

    def show_address(url: str) -> None:
        out.print(f"open {url}", soft_wrap=True)

    def show_line(line: str) -> None:
        err.print(line, markup=False, soft_wrap=True)

    try:
        run_server(runs, results, host, port, secret, show_address, shows_token, show_line)
    except KeyboardInterrupt:  # the usual end of a server is no error
        sys.exit(130)


def read_token(token: str | None, file: Path | None) -> str | None:
    """Return the access token from the option, the file or the environment; None if there is none."""
    from_environment = os.environ.pop("STRAGGLER_TOKEN", None)  # runs that a page starts do not inherit it
    if token is not None and file is not None:
        raise InputError("--token and --token-file are both set. Remove one.")
    if file is None:
        return from_environment if token is None else token
    try:
        with file.open() as lines:
            return lines.readline(MAX_TOKEN_LENGTH).rstrip("\r\n")
    except UnicodeDecodeError:
        raise InputError(
            f"--token-file {file} is not a text file. Write the token into its first line."
        ) from None
