"""The sweep command, and the options that it shares with study."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from straggler.analysis.sweep_tables import CAPTION
from straggler.analysis.tables import build_table
from straggler.cli import options
from straggler.cli.app import err, exit_with_error, out
from straggler.sweeps.runner import Place, SweepPlan, format_count, run_plan
from straggler.sweeps.sweep import SweepResult
from straggler.sweeps.sweep import sweep as run_sweep

option = partial(typer.Option, rich_help_panel="How many runs, and where")

Cores = Annotated[
    int | None, option("--cores", "--jobs", min=1, help="Runs at the same time; by default one per core.")
]
DryRun = Annotated[
    bool, option("--dry-run", help="Only print how many runs are missing and how long they take.")
]
Runs = Annotated[Path, option("--runs", help="Folder of the records.")]
Results = Annotated[
    Path | None,
    option("--results", show_default="results/NAME", help="Folder of the summaries, tables and figures."),
]
Seeds = Annotated[int | None, option(min=1, help="Number of seeds, from 0; the same for every cell.")]
On = Annotated[Place, option(help="Run on this machine, or on a Ray cluster that sends the records here.")]
Address = Annotated[
    str | None, option(help="With --on ray: the cluster, such as 10.0.0.1:6379; by default Ray starts here.")
]
Target = Annotated[
    float | None,
    option(
        help="Show the time until this test accuracy (%).",
        show_default="the highest multiple of 5 that half of the runs ended above",
    ),
]
Format = Annotated[Literal["text", "csv", "markdown", "latex"], option(help="Format of the printed table.")]


def sweep(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A TOML file of experiment settings. A list means alternatives."),
    ],
    seeds: Seeds = None,
    target: Target = None,
    format: Format = "text",
    cores: Cores = None,
    on: On = "local",
    address: Address = None,
    dry_run: DryRun = False,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
    device: options.Device = "cpu",
    trust: options.Trust = False,
) -> None:
    """Run every combination of the values in a file, with several seeds. Identical runs are cached.

    In FILE any setting of an experiment may be a list, which means alternatives; `seeds = 3` runs each
    combination with the seeds 0, 1 and 2. Several `grid` tables are several grids.
    """
    try:
        result = run_sweep(
            file,
            seeds=seeds,
            out=runs,
            results=results,
            cores=cores,
            on=on,
            address=address,
            data=data,
            device=device,
            target=target,
            trust=trust,
            dry_run=dry_run,
        )
    except KeyboardInterrupt:
        exit_with_error("interrupted; the same command continues the sweep", code=130)
    for name, reason in result.impossible.items():
        err.print(f"{name} is impossible: {reason}", style="red", markup=False, soft_wrap=True)
    if not dry_run:
        print_table(result, format)
    exit_if_failed(len(result.failures) + len(result.impossible))


def print_table(result: SweepResult, format: str) -> None:
    """Print the table of a sweep."""
    if (table := result.formatter) is None:
        return
    if format == "text":
        folder = result.plan.store.folder
        out.print(build_table(result.plan.name, *table.rows()))
        files = f"Table: {folder}/sweep.md, .csv and .tex. Every run: {folder}/summaries.parquet."
        out.print(f"{CAPTION} {files}", soft_wrap=True)
    else:
        text = {"csv": table.csv, "markdown": table.markdown, "latex": table.latex}[format]()
        out.print(text.rstrip(), soft_wrap=True)


def run_or_describe_plan(plan: SweepPlan, dry_run: bool) -> int:
    """Print a plan and run it, unless it is a dry run. Return how many runs failed."""
    out.print(str(plan), soft_wrap=True)
    if dry_run:
        return 0
    try:
        return len(run_plan(plan, err))
    except KeyboardInterrupt:
        exit_with_error("interrupted; the same command continues", code=130)


def exit_if_failed(failed: int) -> None:
    """End the command with exit code 1 if a run failed."""
    if failed:
        exit_with_error(f"{format_count(failed, 'run')} failed; the reasons are above", code=1)
