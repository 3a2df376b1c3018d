"""From a real run to its simulation: calibrate."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import polars as pl
import typer

from straggler.analysis.tables import build_table, format_number
from straggler.cli import options
from straggler.cli.app import find_run, out
from straggler.config.custom import list_custom_objects
from straggler.running.atomic_files import write_text_atomically
from straggler.timing.calibration import Calibration, calibrate

WIDTH = 30  # characters of a bar
Into = Annotated[
    Path | None,
    typer.Option("--into", help="Where the fitted experiment goes (RUN/calibrated.toml)."),
]


def calibrate_(run: options.Run, out_folder: options.Records = Path("runs"), into: Into = None) -> None:
    """Fit a simulation to a run in real time, and show what it predicts beside what was measured."""
    record = find_run(run, out_folder)
    found = calibrate(record)
    write_text_atomically(record.path / "calibration.json", found.to_json())
    show_parts(found.parts)
    show_prediction(found)
    show_staleness(found.staleness)
    out.print(f"compute = {found.experiment.compute}", soft_wrap=True)
    for law in found.experiment.delay:
        out.print(f"  delay = {law}", soft_wrap=True)
    if given := list_custom_objects(record.settings):
        out.print(
            f"its {' and '.join(given)} were given in Python: simulate it there, with this compute and delay"
        )
        return
    into = into or record.path / "calibrated.toml"
    write_text_atomically(into, found.experiment.to_toml())
    out.print(f"simulate it with: straggler run --config {quote(str(into))}", soft_wrap=True)


def show_parts(parts: pl.DataFrame) -> None:
    """Where a job's time goes, worker by worker."""
    names = [column for column in parts.columns if column != "worker"]
    rows = [
        [str(row["worker"]), *(format_number(1000 * row[name]) for name in names)]
        for row in parts.iter_rows(named=True)
    ]
    out.print(build_table("milliseconds of a job", ["worker", *names], rows))


def show_prediction(found: Calibration) -> None:
    rows = []
    for name, measured in found.measured.items():
        predicted = found.predicted[name]
        difference = f"{100 * (predicted / measured - 1):+.1f} %" if measured else "–"
        rows.append([name, format_number(measured), format_number(predicted), difference])
    out.print(build_table("predicted by the fit", ["", "measured", "predicted", "difference"], rows))


def show_staleness(staleness: pl.DataFrame) -> None:
    """How often each staleness was seen, and how often it was to be expected."""
    most = max(staleness["measured"].max(), staleness["predicted"].max())  # type: ignore[type-var]
    rows = [
        [str(tau), f"{100 * seen:.1f} %", f"{100 * expected:.1f} %", "█" * round(WIDTH * seen / most)]
        for tau, seen, expected in staleness.select("staleness", "measured", "predicted").iter_rows()
        if max(seen, expected) >= 0.005
    ]
    out.print(build_table("staleness", ["τ", "measured", "predicted", ""], rows))
