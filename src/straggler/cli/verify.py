"""The verify command."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from straggler.analysis.tables import build_table
from straggler.cli import options
from straggler.cli.app import err, exit_with_error, out
from straggler.cli.sweep import Cores, Results, Runs, exit_if_failed, run_or_describe_plan
from straggler.config.registry import InputError
from straggler.reproduction.study import Scale, load_study
from straggler.reproduction.verification import choose_rows, compare_rows, plan_verification
from straggler.running.recorder import describe_processor
from straggler.sweeps.runner import format_count, open_pool
from straggler.sweeps.summaries import read_summaries

EXPLANATION = (
    "On the same kind of CPU with the same version of torch, every number is equal to the last digit. On "
    "another kind kernels round otherwise, so losses and accuracies differ. Counts, staleness and virtual "
    "times do not, unless a run stops converging."
)


def verify(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A study, as for straggler study.")],
    rows: Annotated[int, typer.Option(min=1, help="How many rows to run again.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the rows; the same seed chooses the same.")] = 0,
    tables: Annotated[str | None, typer.Option(help="Only rows of these tables, for example II,IV.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="Choose among runs that trained at most so many seconds.")
    ] = None,
    allow_rounding: Annotated[
        bool,
        typer.Option(
            "--allow-rounding",
            help="Accept other losses and accuracies in rows made on another or an unknown kind of CPU.",
        ),
    ] = False,
    scale: Annotated[Scale, typer.Option(help="The scale of the study.")] = "default",
    cores: Cores = None,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
) -> None:
    """Run random rows of a study's results again and compare every number and the weights.

    If the command is interrupted, run it again to continue. The exit code is 1 if a row differs.
    """
    study = load_study(name)
    title = study.name + ("-paper" if scale == "paper" else "")
    folder = results or Path("results") / title
    summaries = read_summaries(folder)
    if summaries.is_empty():
        raise InputError(f"{folder} has no summaries.parquet. Run straggler study {name} first.")
    names = [table.strip() for table in tables.split(",")] if tables else []
    chosen = choose_rows(study.select_cells(scale, names), summaries, rows, seed, max_seconds)
    work = runs / f"verify-{title}-{seed}"
    with open_pool("local", None, cores, work / "runs", data) as pool:
        failed = run_or_describe_plan(plan_verification(f"verify {title}", chosen, pool, work), dry_run=False)
    exit_if_failed(failed)
    found = compare_rows(chosen, summaries, work, allow_rounding)
    table = [[one.name, one.made_on or "not recorded", one.weights, one.verdict] for one in found]
    out.print(
        build_table(f"{title}: {format_count(len(found), 'row')}", ["row", "made on", "weights", ""], table)
    )
    out.print(f"This machine: {describe_processor()}. {EXPLANATION}", soft_wrap=True)
    if different := sum(not one.accepted for one in found):
        err.print(f"The records are in {work}. Remove the folder to run the rows again.", soft_wrap=True)
        exit_with_error(f"{different} of {format_count(len(found), 'row')} differ", code=1)
    shutil.rmtree(work)
    out.print(
        f"All {format_count(len(found), 'row')} agree." if allow_rounding else "All rows are identical."
    )
