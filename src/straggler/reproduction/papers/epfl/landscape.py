"""The report's figures 1, 2 and 7: the loss around the paths of five momenta, kept as a small table."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from straggler.analysis.figures.landscape import build_landscape_figure
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.config.registry import InputError
from straggler.record import Record, find_finished_record, read_table
from straggler.reproduction.papers.epfl.numbers import MOMENTA
from straggler.running.atomic_files import write_parquet_atomically
from straggler.running.landscape import compute_landscape
from straggler.sweeps.grid import Cell

FILE = "landscapes.parquet"
GRID, SAMPLES = 33, 1_000  # the report: 100 points along each axis, the whole test set
# The path of momentum .99 is so long that the others are a point beside it.
VIEWS = {"five momenta": (), "without m = 0.99": ("m = 0.99",)}
Report = Callable[[str], None]
Bar = Callable[[float, str], None]


def survey(
    cells: Sequence[Cell],
    runs: Path,
    results: Path,
    jobs: int | None,
    data: Path | None,
    report: Report,
    progress: Bar,
) -> None:
    """Compute the surfaces whose five runs are there, unless the results have them of these very runs."""
    mine = [cell for cell in cells if cell.labels["table"] == "landscape"]
    for protocol in dict.fromkeys(str(cell.labels["protocol"]) for cell in mine):
        five = [cell for cell in mine if cell.labels["protocol"] == protocol]
        records = {
            str(cell.labels["row"]): find_finished_record(runs / cell.experiment(0).id) for cell in five
        }
        found = {row: record for row, record in records.items() if record is not None}
        if len(found) < len(MOMENTA):
            continue
        for view, left_out in VIEWS.items():
            shown = {row: record for row, record in found.items() if row not in left_out}
            if not held(results, protocol, view, ids(shown)):
                keep_surface(results, protocol, view, shown, (jobs, data, report, progress))


def ids(records: Mapping[str, Record]) -> str:
    return " ".join(record.path.name for record in records.values())


def kept(results: Path) -> pl.DataFrame:
    file = results / FILE
    return read_table(file) if file.is_file() else pl.DataFrame()


def held(results: Path, protocol: str, view: str, ids: str) -> bool:
    table = kept(results)
    return len(table) > 0 and not table.filter(protocol=protocol, view=view, ids=ids).is_empty()


def keep_surface(
    results: Path,
    protocol: str,
    view: str,
    records: Mapping[str, Record],
    how: tuple[int | None, Path | None, Report, Bar],
) -> None:
    """Its points beside those of the other surfaces; a run that left no path to draw is said."""
    jobs, data, report, progress = how
    try:
        seen = compute_landscape(
            records, GRID, SAMPLES, jobs=jobs, data=data, report=report, progress=progress
        )
    except InputError as error:
        report(f"{protocol}, {view}: {error}")
        return
    first, second = seen.plane.explained  # shares of the variance
    points = seen.points.with_columns(
        protocol=pl.lit(protocol),
        view=pl.lit(view),
        ids=pl.lit(ids(records)),
        samples=pl.lit(seen.samples),
        first=first,
        second=second,
    )
    table = kept(results)
    if len(table):
        table = table.filter((pl.col("protocol") != protocol) | (pl.col("view") != view))
    results.mkdir(parents=True, exist_ok=True)
    write_parquet_atomically(results / FILE, pl.concat([table, points], how="diagonal_relaxed"))


def landscape_figures(results: Path) -> list[Path]:
    """A figure for each surface in the results: from above and in three dimensions."""
    table, found = kept(results), []
    for (protocol, view), points in (
        table.group_by("protocol", "view", maintain_order=True) if len(table) else ()
    ):
        close = "-close" if VIEWS.get(str(view)) else ""
        path = results / f"landscape-{str(protocol).replace(' ', '-')}{close}.png"
        explained = points["first"][0], points["second"][0]
        spec = build_landscape_figure(points, explained, points["samples"][0])
        found.append(write_figure(spec, path))
    return found
