"""The commands `speedup` and `densities`: study clusters without training."""

import json
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from straggler.analysis.figures.file_formats import FORMATS
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.figures.throughput import (
    LATE,
    build_density_figure,
    build_speedup_figure,
    tabulate_densities,
    tabulate_speedups,
)
from straggler.analysis.tables import build_table, format_number
from straggler.cli.app import check_suffix, err, out
from straggler.config.registry import InputError, parse_entry
from straggler.running.atomic_files import replace_atomically
from straggler.running.progress import ProgressBar
from straggler.timing import DELAYS, Durations, Law
from straggler.timing.clusters import MACHINES, measure_speedups, parse_policy, sample_batch_seconds

BATCH = 128.0  # Gap-Aware's mean batch time: one unit per sample
CLUSTERS = (f"gamma({BATCH:g}, 0.1)", f"gamma-machines({BATCH:g}, 0.6, 0.1)")
SIZES = "1,2,4,8,16,32,64,128,256,512,1024"
METHODS = ("asgd", "ssgd", "k-sync(k=90%)")
TABLES = (".csv", ".parquet")

Computes = Annotated[
    list[str] | None,
    typer.Option(
        "--compute",
        show_default="Gap-Aware's two: " + " and ".join(CLUSTERS),
        help="Law of the compute time of a batch; repeat it for several clusters. `straggler list delays`",
    ),
]
Delays = Annotated[
    list[str] | None,
    typer.Option("--delay", help="Law of a delay that is added in every cluster; may be repeated."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the durations.")]


def speedup(
    workers: Annotated[str, typer.Option(help="Numbers of workers, separated by commas.")] = SIZES,
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
    repetitions: Annotated[
        int, typer.Option(min=1, help="Repetitions, each with other machines and durations.")
    ] = 20,
    seed: Seed = 0,
    unit: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            show_default="the mean over all workers",
            help="Batch time in seconds of the single worker that clusters are compared with.",
        ),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", help="A figure (png, pdf, svg, pgf) or a table (csv, parquet); may be repeated."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every repetition as one line of JSON at the end.")
    ] = False,
) -> None:
    """Show how much faster than one worker a cluster is, without computing a gradient.

    Speed-up is the number of gradients used per mean batch time. The policies are those that train, and the
    durations are the same for every method. The defaults are figure 12 of Gap-Aware (Barkai et al. 2020) and
    take a minute or two; [bold]straggler study gap-aware --tables 12[/bold] uses all cores. Communication
    takes no time unless you add a --delay.
    """
    sizes, chosen = parse_sizes(workers), list(dict.fromkeys(methods or METHODS))
    laws, more = parse_clusters(computes), parse_option_laws(delays or [], "--delay")
    for file in files or []:
        check_suffix(file, (*FORMATS, *TABLES))
    for size in sizes:
        for method in chosen:
            parse_policy(method, size)
        check_durations(laws, more, size)
    unit = unit or (None if computes or delays else BATCH)
    seeds = range(seed * repetitions, (seed + 1) * repetitions)  # two seeds share no repetition
    with ProgressBar(err, "speed-up") as bar:
        frame = measure_speedups(chosen, laws, more, sizes, iterations, seeds, unit, bar.advance)
    print_speedups(frame, iterations, repetitions)
    for file in files or []:
        if file.suffix.lower() in FORMATS:
            write_figure(build_speedup_figure(frame), file)
        else:
            write_table(frame, file)
        out.print(f"wrote {file}", soft_wrap=True)
    if as_json:
        print(json.dumps(frame.to_dicts()))


def print_speedups(frame: pl.DataFrame, iterations: int, repetitions: int) -> None:
    """Print a table per cluster and how to read it."""
    for (cluster,), group in frame.group_by(["cluster"], maintain_order=True):
        out.print(f"batch time {cluster}", style="bold", soft_wrap=True)
        out.print(build_table("", *tabulate_speedups(group), justify="right"))
    spread = f"mean ± 95 % interval over {repetitions} repetitions" if repetitions > 1 else "one repetition"
    units = ", ".join(format_number(unit) for unit in frame["unit"].unique(maintain_order=True))
    out.print(f"{spread}, {iterations:,} gradients each; 1 = a batch in {units} s", soft_wrap=True)


def densities(
    computes: Computes = None,
    delays: Delays = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Machines in a cluster; a trace has only as many as it recorded.")
    ] = MACHINES,
    seed: Seed = 0,
    file: Annotated[Path | None, typer.Option("--out", help="A figure: png, pdf or svg.")] = None,
) -> None:
    """Show the distribution of batch times, and how many batches are late.

    The fewer machines, the more batches of each are drawn. The defaults are figure 3 of Gap-Aware (Barkai et
    al. 2020): equal machines, and machines of different speeds.
    """
    laws, more = parse_clusters(computes), parse_option_laws(delays or [], "--delay")
    if file is not None:
        check_suffix(file, FORMATS)
    check_durations(laws, more, workers)
    frame = sample_batch_seconds(laws, more, seed, workers)
    out.print(build_table(f"late: over {LATE:g} × the mean", *tabulate_densities(frame)))
    if file is not None:
        write_figure(build_density_figure(frame), file)
        out.print(f"wrote {file}", soft_wrap=True)


def parse_sizes(text: str) -> list[int]:
    """Parse numbers of workers such as `1,2,4`; each counts once."""
    try:
        found = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"--workers {text!r} must be positive whole numbers, such as 8,16,32")
    return found


def parse_clusters(texts: list[str] | None) -> list[Law]:
    """Parse the laws of compute times; a repeated law counts once."""
    return list({str(law): law for law in parse_option_laws(texts or CLUSTERS, "--compute")}.values())


def parse_option_laws(texts: list[str] | tuple[str, ...], option: str) -> list[Law]:
    try:
        return [parse_entry(text, DELAYS) for text in texts]
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def check_durations(computes: list[Law], delays: list[Law], workers: int) -> None:
    """Raise if a law does not fit this number of workers."""
    try:
        for compute in computes:
            Durations(compute, delays, workers, 0).check_first_jobs()
    except ValueError as error:
        raise InputError(f"with {workers:,} workers: {error}") from None


def write_table(frame: pl.DataFrame, file: Path) -> None:
    """Write a table as CSV or Parquet; if that fails, the file stays as it was."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(file) as temporary:
        frame.write_csv(temporary) if file.suffix.lower() == ".csv" else frame.write_parquet(temporary)
