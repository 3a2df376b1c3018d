"""The study command."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from straggler.analysis.study_agreement import HEADS
from straggler.analysis.tables import build_table, fill_section
from straggler.cli import options
from straggler.cli.app import err, out
from straggler.cli.sweep import (
    Address,
    Cores,
    DryRun,
    On,
    Results,
    Runs,
    Seeds,
    exit_if_failed,
    run_or_describe_plan,
)
from straggler.config.registry import InputError
from straggler.reproduction.account import build_claim_rows, count_verdicts, list_undecided
from straggler.reproduction.page import draw_study, format_account, holds_results
from straggler.reproduction.provenance import format_outdated
from straggler.reproduction.study import Scale, Study, list_builtin_studies, load_study
from straggler.running.progress import ProgressBar
from straggler.sweeps.grid import Cell
from straggler.sweeps.runner import open_pool, plan_sweep
from straggler.sweeps.summaries import read_summaries

BROAD = 10_000  # columns, more than any table has
SLACK = 3  # columns that rich may lose while it makes a table narrower


def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"{', '.join(list_builtin_studies())}, a study of an installed package, or a folder with a "
            "study.py, which is executed.",
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Rehearse: run a few short cells in about two minutes.")
    ] = False,
    scale: Annotated[
        Scale, typer.Option(help="paper: the source's networks and schedules (weeks of computing).")
    ] = "default",
    tables: Annotated[str | None, typer.Option(help="Only these tables, for example II,IV.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only cells with this label, for example workers=2 or 'as coded'. Repeat it to narrow down."
        ),
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw", help="Run nothing; draw tables, claims and figures from the summaries.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(help="Also write notes and claims into a document with <!-- claims:NAME --> marks."),
    ] = None,
    seeds: Seeds = None,
    cores: Cores = None,
    on: On = "local",
    address: Address = None,
    dry_run: DryRun = False,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
    device: options.Device = "cpu",
) -> None:
    """Run a source's experiments, compare its numbers with ours, and judge its claims.

    Finished runs are cached. If the command is interrupted, run it again to continue.
    """
    if quick and into is not None:
        raise InputError(
            f"--into {into} needs verdicts, and --quick judges no claims. Leave out one of them."
        )
    if draw_only and (dry_run or only):
        option = "--dry-run" if dry_run else "--only"
        raise InputError(f"{option} cannot be combined with --draw, which runs nothing and draws everything.")
    chosen = load_study(name)
    names = [table.strip() for table in tables.split(",")] if tables else []
    cells = chosen.select_cells(scale, names, quick, only or [])
    title = chosen.name + ("-quick" if quick else "") + ("-paper" if scale == "paper" else "")
    folder = results or Path("results") / title
    check_results(folder, cells, quick)
    if quick:
        out.print("This is a rehearsal: its numbers are not results, and no claim is judged.")
    failed = 0
    if not draw_only:
        count = seeds or (1 if quick else chosen.seeds)
        with open_pool(on, address, cores, runs, data, device) as pool:
            plan = plan_sweep(title, cells, range(count), pool, folder)
            plan.store.facts["protocol_sha256"] = chosen.read_claims(scale).protocol.sha256 or None
            failed = run_or_describe_plan(plan, dry_run)
    if chosen.after_runs and not (draw_only or dry_run or quick):
        with ProgressBar(err, chosen.name) as bar:
            chosen.after_runs(cells, runs, folder, cores, data, bar.say, bar.advance)
    if not dry_run and (draw_only or read_summaries(folder).height):
        show_study(chosen, folder, scale, names, into, quick)
    exit_if_failed(failed)


def check_results(folder: Path, cells: Sequence[Cell], quick: bool) -> None:
    """Refuse a folder with the results of a whole study for a rehearsal, or with results of version 0.1."""
    if quick and holds_results(folder):
        raise InputError(
            f"--results {folder} has the results of a whole study. Choose another folder for --quick."
        )
    known, labels = read_summaries(folder), {label for cell in cells for label in cell.labels}
    if len(known) and not labels <= set(known.columns):
        raise InputError(
            f"{folder}/summaries.parquet lacks the labels of this study (it may be from version 0.1). "
            "Choose another folder with --results; finished runs are cached."
        )


def show_study(
    study: Study, folder: Path, scale: Scale, names: list[str], into: Path | None, rehearsal: bool
) -> None:
    """Draw the results, and print the tables and verdicts."""
    drawn = draw_study(study, folder, scale, rehearsal)
    for table in drawn.tables:
        if not names or table.name in names:
            out.print(*table.terminal(fits_terminal))
    for title, _, columns, rows in drawn.times:
        if chosen := [row for row in rows if not names or row[0] in names]:
            out.print(build_table(title, columns, chosen))
    if drawn.judgements:
        heads, verdicts = build_claim_rows(drawn.judgements)
        heads, *rows = [[*row[1:7], row[0]] for row in (heads, *verdicts)]  # the page has all columns
        out.print(build_table(count_verdicts(drawn.judgements), heads, rows))
        heads, rows = list_undecided(drawn.judgements)
        if rows:
            out.print(build_table("Why claims are inconclusive", heads, rows))
    if drawn.agreement:
        rows = [one.row() for one in (*drawn.agreement, *drawn.details)]
        out.print(build_table("Agreement with the source", list(HEADS), rows))
    if rehearsal:
        out.print("This was a rehearsal: no number above is a result, and no claim is judged.")
    elif drawn.outdated:
        err.print(f"{format_outdated(drawn.outdated)} Run the study to renew them.", style="yellow")
    out.print(f"Tables, claims and figures: {folder / 'README.md'}", soft_wrap=True)
    if into is not None:
        try:
            place = Path(os.path.relpath(folder, into.parent)).as_posix()
            fill_section(into, f"claims:{study.name}", format_account(study, drawn, place))
        except (OSError, ValueError) as error:
            raise InputError(f"--into {into}: {error}") from None


def fits_terminal(table: Table) -> bool:
    """Return whether the terminal is wide enough for a table."""
    return out.measure(table, options=out.options.update(max_width=BROAD)).minimum + SLACK <= out.width
