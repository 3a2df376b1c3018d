"""The report's figures 1, 2 and 7: the loss around the paths of five momenta, stored as a small table."""

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from straggler.analysis.figures.landscape import build_landscape_figure
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.config.registry import InputError
from straggler.record import find_finished_record, read_table
from straggler.running.atomic_files import write_parquet_atomically
from straggler.running.landscape import compute_landscape
from straggler.sweeps.grid import Cell

FILE = "landscapes.parquet"
MOMENTA = (0.0, 0.5, 0.9, 0.95, 0.99)
GRID, SAMPLES = 33, 1_000  # the report: 100 points along each axis, the whole test set
# The path of momentum 0.99 is so long that the others shrink to a point.
VIEWS = {"five momenta": (), "without m = 0.99": ("m = 0.99",)}
CAPTION = "Figures 1, 2 and 7: test loss around the paths of the momenta; three workers, one seed"


def compute_landscapes(
    cells: Sequence[Cell],
    runs: Path,
    results: Path,
    jobs: int | None,
    data: Path | None,
    report: Callable[[str], None],
    progress: Callable[[float, str], None],
) -> None:
    """Compute each surface whose five runs all exist, unless the results have it already."""
    mine = [cell for cell in cells if cell.labels["table"] == "landscape"]
    for protocol in dict.fromkeys(str(cell.labels["protocol"]) for cell in mine):
        five = [cell for cell in mine if cell.labels["protocol"] == protocol]
        records = {
            f"m = {cell.labels['momentum']:g}": find_finished_record(runs / cell.experiment(0).id)
            for cell in five
        }
        found = {name: record for name, record in records.items() if record is not None}
        for view, left_out in VIEWS.items() if len(found) == len(MOMENTA) else ():
            shown = {name: record for name, record in found.items() if name not in left_out}
            stored = read_landscapes(results)
            ids = " ".join(record.path.name for record in shown.values())
            key = {"protocol": protocol, "view": view, "ids": ids}
            if len(stored) and len(stored.filter(**key)):
                continue
            try:
                seen = compute_landscape(
                    shown, GRID, SAMPLES, jobs=jobs, data=data, report=report, progress=progress
                )
            except InputError as error:
                report(f"{protocol}, {view}: {error}")  # for example a run without snapshots
                continue
            first, second = seen.plane.explained  # shares of the variance
            shared = {**key, "samples": seen.samples, "first": first, "second": second}
            points = seen.points.with_columns(pl.lit(value).alias(name) for name, value in shared.items())
            others = (
                stored.filter((pl.col("protocol") != protocol) | (pl.col("view") != view))
                if len(stored)
                else stored
            )
            results.mkdir(parents=True, exist_ok=True)
            write_parquet_atomically(results / FILE, pl.concat([others, points], how="diagonal_relaxed"))


def read_landscapes(results: Path) -> pl.DataFrame:
    file = results / FILE
    return read_table(file) if file.is_file() else pl.DataFrame()


def draw_landscapes(results: Path) -> list[tuple[Path, str]]:
    """Draw each surface of the results from above and in three dimensions."""
    table, found = read_landscapes(results), []
    for (protocol, view), points in (
        table.group_by("protocol", "view", maintain_order=True) if len(table) else ()
    ):
        close = bool(VIEWS.get(str(view)))
        path = results / f"landscape-{str(protocol).replace(' ', '-')}{'-close' if close else ''}.png"
        explained = points["first"][0], points["second"][0]
        caption = f"{CAPTION} ({protocol}{', without momentum 0.99' if close else ''})."
        spec = build_landscape_figure(points, explained, points["samples"][0])
        found.append((write_figure(spec, path), caption))
    return found
