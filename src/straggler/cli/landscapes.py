"""The command that shows the loss around the paths of runs."""

from pathlib import Path
from typing import Annotated

import typer

from straggler.analysis.labels import name_runs
from straggler.analysis.landscapes import VIEWS, landscape_figure, landscape_page
from straggler.analysis.style import FORMATS
from straggler.analysis.tables import build_table, format_number
from straggler.cli import options
from straggler.cli.app import check_suffix, err, find_all, out
from straggler.config.registry import InputError, suggest_name
from straggler.running.landscape import Landscape, compute_landscape
from straggler.running.progress import ProgressBar


def landscape(
    runs: options.Runs,
    grid: Annotated[int, typer.Option(min=2, help="Points along each axis.")] = 25,
    samples: Annotated[
        int, typer.Option(min=0, help="Of the test set, drawn once; 0 = all of it (slower).")
    ] = 1_000,
    margin: Annotated[
        float, typer.Option(min=0.0, help="How far the grid goes beyond the paths, in widths of them.")
    ] = 0.2,
    view: Annotated[str, typer.Option(help=f"{', '.join(VIEWS)} (of png, pdf and svg).")] = "both",
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            show_default="landscape.png",
            help="png, pdf, svg, or html to turn and zoom; may be repeated.",
        ),
    ] = None,
    jobs: options.Jobs = None,
    folder: options.RunsFolder = Path("runs"),
    data: options.Data = None,
) -> None:
    """Show the loss around the paths of runs that kept --snapshots.

    The plane is that of the two principal components of all their weights; each point of a grid on it is a
    model whose test loss is computed. BatchNorm statistics on the plane are the mean of the runs' last ones.
    What was computed stays beside the runs, in landscapes/, and is not computed again.
    """
    targets = files or [Path("landscape.png")]
    for file in targets:
        check_suffix(file, (*FORMATS, ".html"))
    if view not in VIEWS:
        raise InputError(f"--view {view!r}: {suggest_name(view, VIEWS)}")
    records = name_runs(find_all(runs, folder))
    with ProgressBar(err, "landscape") as bar:
        seen = compute_landscape(records, grid, samples or None, margin, jobs, data, bar.say, bar.advance)
    show(seen)
    for file in targets:
        draw(seen, file, view)
        out.print(f"wrote {file}", soft_wrap=True)


def show(seen: Landscape) -> None:
    rows = []
    for (run,), path in seen.points.filter(kind="path").group_by(["run"], maintain_order=True):
        first, last = path["loss"][0], path["loss"][-1]
        rows.append([str(run), format_number(len(path)), format_number(first, 4), format_number(last, 4)])
    out.print(build_table("", ["run", "snapshots", "first loss", "last loss"], rows))
    first, second = (f"{100 * share:.1f} %" for share in seen.plane.explained)
    out.print(f"the plane explains {first} + {second} of the variance of the weights")


def draw(seen: Landscape, file: Path, view: str) -> None:
    if file.suffix == ".html":
        landscape_page(seen.points, seen.plane.explained, seen.samples, file)
    else:
        landscape_figure(seen.points, seen.plane.explained, seen.samples, file, view)
