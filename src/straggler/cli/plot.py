"""The command `plot`: draw runs."""

from pathlib import Path
from typing import Annotated

import typer

from straggler.analysis.figures.curves import AGAINST
from straggler.analysis.figures.file_formats import FORMATS
from straggler.analysis.figures.plot import KINDS
from straggler.analysis.figures.plot import plot as plot_runs
from straggler.analysis.figures.sources import find_records, find_sweep
from straggler.analysis.figures.styles import STYLES
from straggler.cli import options
from straggler.cli.app import check_suffix, err, find_runs, out


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="\n\n".join(f"[bold]{name}[/bold]: {kind.summary}." for name, kind in KINDS.items())
            + "\n\nOr the name of a metric that the runs have, such as [bold]perplexity[/bold].",
        ),
    ],
    runs: options.Runs,
    against: Annotated[
        str, typer.Option(help=f"The x axis of accuracy, loss and gap: {', '.join(AGAINST)}.")
    ] = "seconds",
    file: Annotated[
        Path | None, typer.Option("--out", show_default="KIND.png", help="The figure: png, pdf, svg or pgf.")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", help="Name in the legend; repeat it once per run or once per line."),
    ] = None,
    size: Annotated[
        tuple[float, float] | None, typer.Option(metavar="WIDTH HEIGHT", help="Size in inches.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title above the figure.")] = None,
    style: Annotated[
        str, typer.Option(help="; ".join(f"{name}: {style.summary}" for name, style in STYLES.items()) + ".")
    ] = "screen",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Only runs with this setting, for example lr=0.1. Repeat it to narrow down.",
        ),
    ] = None,
    folder: options.RunsFolder = Path("runs"),
    results: Annotated[Path, typer.Option("--results", help="Folder of the sweeps.")] = Path("results"),
) -> None:
    """Draw runs in one figure, labelled by their method and the settings in which they differ.

    Runs that differ only in their seed are one line, with a 95 % confidence band from three seeds on.
    The name of a sweep, or the folder of its results, stands for all its runs.
    Curves of thousands of arrivals show means, and timelines show the beginning of a run.
    """
    target = file or Path(f"{kind}.png")
    check_suffix(target, FORMATS)
    sweeps = {run: place for run in runs if (place := find_sweep(run, results)) is not None}
    others = [run for run in runs if run not in sweeps]
    records = find_records(list(sweeps.values()), folder) + (find_runs(others, folder) if others else [])
    plot_runs(
        records,
        kind,
        against=against,
        labels=labels or None,
        size=size,
        title=title,
        style=style,
        only=only or (),
        out=target,
        report=lambda line: err.print(line, soft_wrap=True),
    )
    out.print(f"wrote {target}", soft_wrap=True)
