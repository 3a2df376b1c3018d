"""Commands that look at clusters without training: speedup, densities."""

import json
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from straggler.analysis.clusters import LATE, density_figure, density_rows, speedup_figure, speedup_rows
from straggler.analysis.style import FORMATS
from straggler.analysis.tables import build_table, format_number
from straggler.cli.app import check_suffix, err, out
from straggler.config.registry import InputError, parse_entry
from straggler.running.atomic_files import replace_atomically
from straggler.running.progress import ProgressBar
from straggler.timing import DELAYS, Durations, Law
from straggler.timing.clusters import MACHINES, policy_of, speedups
from straggler.timing.clusters import densities as sampled_densities

BATCH = 128.0  # Gap-Aware's mean batch time: a unit per sample
CLUSTERS = (f"gamma({BATCH:g}, 0.1)", f"gamma-machines({BATCH:g}, 0.6, 0.1)")
SIZES = "1,2,4,8,16,32,64,128,256,512,1024"
METHODS = ("asgd", "ssgd", "k-sync(k=90%)")
TABLES = (".csv", ".parquet")

Computes = Annotated[
    list[str] | None,
    typer.Option(
        "--compute",
        show_default="Gap-Aware's two: " + " and ".join(CLUSTERS),
        help="Seconds of a batch, a cluster each; may be repeated. `straggler list delays`",
    ),
]
Delays = Annotated[
    list[str] | None, typer.Option("--delay", help="Seconds on top, in every cluster; may be repeated.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the durations.")]


def speedup(
    workers: Annotated[str, typer.Option(help="Sizes of the cluster, with commas.")] = SIZES,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            show_default=" ".join(METHODS),
            help="A method or a policy, such as 'ssp(bound=3)'; 90% is that share of the workers. "
            "May be repeated. `straggler list policies`",
        ),
    ] = None,
    computes: Computes = None,
    delays: Delays = None,
    iterations: Annotated[
        int, typer.Option(min=1, help="Gradients used in each repetition, by all workers together.")
    ] = 100_000,
    repetitions: Annotated[int, typer.Option(min=1, help="Each with its own machines and durations.")] = 20,
    seed: Seed = 0,
    unit: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            show_default="the mean over all workers",
            help="Seconds of a batch that count as 1: the one worker that all are compared with.",
        ),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--out", help="A figure (png, pdf, svg) or a table (csv, parquet); may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every repetition as one line of JSON, last.")
    ] = False,
) -> None:
    """Show how much faster than one worker a cluster is, without computing a gradient.

    Speed-up is gradients used per mean time of a batch. The policies are those that train; durations are the
    same for every method. The defaults are figure 12 of Gap-Aware (Barkai et al. 2020) and take a minute
    or two; [bold]straggler study gap-aware --tables 12[/bold] uses all cores. Communication costs nothing
    unless a --delay says otherwise.
    """
    sizes, chosen = numbers("--workers", workers), list(dict.fromkeys(methods or METHODS))
    laws, more = clusters_of(computes), laws_of(delays or [], "--delay")
    for file in files or []:
        check_suffix(file, (*FORMATS, *TABLES))
    for size in sizes:
        for method in chosen:
            policy_of(method, size)
        check_durations(laws, more, size)
    unit = unit or (None if computes or delays else BATCH)
    seeds = range(seed * repetitions, (seed + 1) * repetitions)  # no repetition is of two seeds
    with ProgressBar(err, "speed-up") as bar:
        frame = speedups(chosen, laws, more, sizes, iterations, seeds, unit, bar.advance)
    show(frame, iterations, repetitions)
    for file in files or []:
        speedup_figure(frame, file) if file.suffix in FORMATS else write(frame, file)
        out.print(f"wrote {file}", soft_wrap=True)
    if as_json:
        print(json.dumps(frame.to_dicts()))


def show(frame: pl.DataFrame, iterations: int, repetitions: int) -> None:
    for (cluster,), group in frame.group_by(["cluster"], maintain_order=True):
        out.print(f"batch time {cluster}", style="bold", soft_wrap=True)
        table = build_table("", *speedup_rows(group))
        for column in table.columns:
            column.justify = "right"
        out.print(table)
    spread = f"mean ± 95 % interval over {repetitions} repetitions" if repetitions > 1 else "one repetition"
    units = ", ".join(format_number(unit) for unit in frame["unit"].unique(maintain_order=True))
    out.print(f"{spread}, {iterations:,} gradients each; 1 = a batch in {units} s", soft_wrap=True)


def densities(
    computes: Computes = None,
    delays: Delays = None,
    workers: Annotated[
        int,
        typer.Option(min=1, help="Machines in a cluster: fewer where a law is of these, as a trace is."),
    ] = MACHINES,
    seed: Seed = 0,
    file: Annotated[Path | None, typer.Option("--out", help="A figure: png, pdf or svg.")] = None,
) -> None:
    """Show how long batches take, and how many are late.

    Many machines do a few batches each, few do many. The defaults are figure 3 of Gap-Aware (Barkai et al.
    2020): machines alike, and machines of their own speed.
    """
    laws, more = clusters_of(computes), laws_of(delays or [], "--delay")
    if file is not None:
        check_suffix(file, FORMATS)
    check_durations(laws, more, workers)
    frame = sampled_densities(laws, more, seed, workers)
    out.print(build_table(f"late: over {LATE:g} × the mean", *density_rows(frame)))
    if file is not None:
        density_figure(frame, file)
        out.print(f"wrote {file}", soft_wrap=True)


def numbers(option: str, text: str) -> list[int]:
    """`1,2,4` as whole numbers from 1 on."""
    try:
        found = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"{option} {text!r}: write whole numbers from 1 on, such as 8,16,32")
    return found


def clusters_of(texts: list[str] | None) -> list[Law]:
    """Each once: two that are alike would be counted as one with more repetitions."""
    return list({str(law): law for law in laws_of(texts or CLUSTERS, "--compute")}.values())


def laws_of(texts: list[str] | tuple[str, ...], option: str) -> list[Law]:
    try:
        return [parse_entry(text, DELAYS) for text in texts]
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def check_durations(computes: list[Law], delays: list[Law], workers: int) -> None:
    try:
        for compute in computes:
            Durations(compute, delays, workers, 0).try_some()
    except ValueError as error:
        raise InputError(f"with {workers:,} workers: {error}") from None


def write(frame: pl.DataFrame, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(file) as temporary:
        frame.write_csv(temporary) if file.suffix == ".csv" else frame.write_parquet(temporary)
