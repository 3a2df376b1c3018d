"""The command `landscape`: show the loss around the paths of runs."""

from pathlib import Path
from typing import Annotated

import typer

from straggler.analysis.figures.colours import assign_colours
from straggler.analysis.figures.file_formats import FORMATS
from straggler.analysis.figures.landscape import VIEWS, build_landscape_figure, split_runs
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.figures.plotly_renderer import write_page
from straggler.analysis.labels import name_runs
from straggler.analysis.tables import build_table, format_number
from straggler.cli import options
from straggler.cli.app import check_suffix, err, find_runs, out
from straggler.config.registry import InputError, suggest_name
from straggler.record import Record
from straggler.running.landscape import Landscape, compute_landscape
from straggler.running.progress import ProgressBar


def landscape(
    runs: options.Runs,
    grid: Annotated[int, typer.Option(min=2, help="Points along each axis.")] = 25,
    samples: Annotated[
        int, typer.Option(min=0, help="Number of test samples to use; 0 = all (slower).")
    ] = 1_000,
    margin: Annotated[
        float, typer.Option(min=0.0, help="Margin of the grid around the paths, as a share of their width.")
    ] = 0.2,
    view: Annotated[str, typer.Option(help=f"{', '.join(VIEWS)} (for png, pdf, svg and pgf).")] = "both",
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            show_default="landscape.png",
            help="png, pdf, svg, pgf or interactive html; may be repeated.",
        ),
    ] = None,
    jobs: options.Jobs = None,
    folder: options.RunsFolder = Path("runs"),
    data: options.Data = None,
) -> None:
    """Show the loss around the paths of runs that were recorded with --snapshots.

    The plane is spanned by the first two principal components of all their weights. Each point of a grid on
    it is a model whose test loss is computed. BatchNorm statistics on the plane are the mean of the runs'
    last ones. The losses are cached in the folder landscapes next to the runs.
    """
    targets = files or [Path("landscape.png")]
    for file in targets:
        check_suffix(file, (*FORMATS, ".html"))
    if view not in VIEWS:
        raise InputError(f"Unknown --view {view!r}. {suggest_name(view, VIEWS)}")
    records = leave_out_diverged(name_runs(find_runs(runs, folder)))
    with ProgressBar(err, "landscape") as bar:
        found = compute_landscape(records, grid, samples or None, margin, jobs, data, bar.say, bar.advance)
    print_losses(found)
    colours = assign_colours({name: [record] for name, record in records.items()})
    for file in targets:
        page = file.suffix.lower() == ".html"
        spec = build_landscape_figure(
            found.points, found.plane.explained, found.samples, "both" if page else view, colours
        )
        write_page(spec, file) if page else write_figure(spec, file)
        out.print(f"wrote {file}", soft_wrap=True)


def leave_out_diverged(records: dict[str, Record]) -> dict[str, Record]:
    """Return the runs that converged, if there are any: a path that goes far shrinks the others to dots."""
    kept = {name: record for name, record in records.items() if record.summary.get("converged") is not False}
    for name in records.keys() - kept.keys() if kept else ():
        err.print(f"left out: {name} did not converge. Pass it alone to see its path.", soft_wrap=True)
    return kept or records


def print_losses(found: Landscape) -> None:
    """Print the first and last loss of every run, and how much the plane explains."""
    rows = [
        [run, format_number(len(path)), format_number(path["loss"][0], 4), format_number(path["loss"][-1], 4)]
        for run, path in split_runs(found.points, "path")
    ]
    out.print(build_table("", ["run", "snapshots", "first loss", "last loss"], rows))
    first, second = (f"{100 * share:.1f} %" for share in found.plane.explained)
    out.print(f"The plane explains {first} + {second} of the variance of the weights.")
