"""The calibrate command: fit a simulation to a real-time run."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import polars as pl
import typer

from straggler.analysis.tables import build_table, format_number
from straggler.cli import options
from straggler.cli.app import err, find_run, out
from straggler.config.custom import list_custom_objects
from straggler.config.imports import has_import_strings
from straggler.running.atomic_files import write_text_atomically
from straggler.timing.calibration import FRESH, Calibration, calibrate

BAR_WIDTH = 30  # characters
Into = Annotated[
    Path | None, typer.Option("--into", help="File of the fitted experiment (RUN/calibrated.toml).")
]


def calibrate_(
    run: options.Run,
    out_folder: options.Records = Path("runs"),
    into: Into = None,
    trust: options.Trust = False,
) -> None:
    """Fit a simulation to a real-time run and compare its predictions with the measurements."""
    record = find_run(run, out_folder)
    found = calibrate(record, trust=trust)
    write_text_atomically(record.path / "calibration.json", found.to_json())
    print_job_parts(found.parts)
    print_prediction(found)
    print_staleness(found.staleness)
    print_workers(found.workers)
    for warning in found.warnings:
        err.print(f"Warning: {warning}", soft_wrap=True)
    out.print(f"compute = {found.experiment.compute}", soft_wrap=True)
    if found.experiment.cores is not None:
        out.print(f"  cores = {found.experiment.cores}", soft_wrap=True)
    for law in found.experiment.delay:
        out.print(f"  delay = {law}", soft_wrap=True)
    if custom := list_custom_objects(record.settings):
        parts = " and ".join(custom)
        out.print(f"The run has a custom {parts}. Simulate it in Python with these laws.", soft_wrap=True)
        return
    into = into or record.path / "calibrated.toml"
    write_text_atomically(into, found.experiment.to_toml())
    option = " --trust" if has_import_strings(found.experiment.to_dict()) else ""
    out.print(f"Simulate it with: straggler run --config {quote(str(into))}{option}", soft_wrap=True)


def print_job_parts(parts: pl.DataFrame) -> None:
    """Print what the time of a job is spent on, for each worker."""
    names = [column for column in parts.columns if column != "worker"]
    rows = [
        [str(row["worker"]), *(format_number(1000 * row[name]) for name in names)]
        for row in parts.iter_rows(named=True)
    ]
    out.print(build_table("Mean time of a job (ms)", ["worker", *names], rows))


def print_prediction(found: Calibration) -> None:
    """Print measured and predicted numbers side by side."""
    rows = []
    for name, measured in found.measured.items():
        predicted = found.predicted[name]
        if name == FRESH:
            difference = f"{100 * (predicted - measured):+.1f} points"
            rows.append([name, f"{100 * measured:.1f} %", f"{100 * predicted:.1f} %", difference])
            continue
        difference = f"{100 * (predicted / measured - 1):+.1f} %" if measured else "–"
        rows.append([name, format_number(measured), format_number(predicted), difference])
    title = "The second half of the run, predicted from the first"
    out.print(build_table(title, ["", "measured", "predicted", "difference"], rows))


def print_workers(workers: pl.DataFrame) -> None:
    """Print each worker's share of the gradients, and the share of time in which it has a job."""
    columns = ["gradients", "gradients predicted", "utilisation", "utilisation predicted"]
    rows = [
        [str(row["worker"]), *(f"{100 * row[name]:.1f} %" for name in columns)]
        for row in workers.iter_rows(named=True)
    ]
    out.print(build_table("Workers", ["worker", *columns], rows))


def print_staleness(staleness: pl.DataFrame) -> None:
    """Print the share of gradients with each staleness."""
    shares = staleness.select("staleness", "measured", "predicted")
    largest = max(max(measured, predicted) for _, measured, predicted in shares.iter_rows())
    rows = [
        [
            str(tau),
            f"{100 * measured:.1f} %",
            f"{100 * predicted:.1f} %",
            "█" * round(BAR_WIDTH * measured / largest),
        ]
        for tau, measured, predicted in shares.iter_rows()
        if max(measured, predicted) >= 0.005
    ]
    out.print(build_table("Staleness", ["τ", "measured", "predicted", ""], rows))
