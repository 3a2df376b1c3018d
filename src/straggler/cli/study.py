"""The study command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from straggler.analysis.study_tables import as_terminal
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
from straggler.config.registry import InputError, suggest_name
from straggler.reproduction import STUDIES, Study
from straggler.reproduction.page import account, claim_rows, draw, holds_results, tally
from straggler.reproduction.study import Scale
from straggler.running.progress import ProgressBar
from straggler.sweeps.runner import count_of, open_pool, plan_sweep
from straggler.sweeps.summaries import read_summaries

BROAD = 10_000  # columns, more than any table has
SLACK = 3  # columns that rich may lose while it makes a table narrower


def study(
    name: Annotated[str, typer.Argument(help=", ".join(STUDIES))],
    quick: Annotated[
        bool, typer.Option("--quick", help="A few short cells: a rehearsal of two minutes.")
    ] = False,
    scale: Annotated[Scale, typer.Option(help="paper: the source's own networks; needs GPUs.")] = "default",
    tables: Annotated[str | None, typer.Option(help="Only these, such as II,IV.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only cells with this text in a label, such as 'as coded'; with several, all of them."
        ),
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw", help="Run nothing: tables, claims and figures from the summaries.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="A document with <!-- claims:NAME --> marks for the claims.")
    ] = None,
    seeds: Seeds = None,
    cores: Cores = None,
    on: On = "local",
    address: Address = None,
    dry_run: DryRun = False,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
) -> None:
    """Run a source's experiments, put its numbers beside ours, and judge its claims.

    What has been run is not run again: stop it with Ctrl-C, or kill it, and call it again.
    """
    if name not in STUDIES:
        raise InputError(f"unknown study {name!r}; {suggest_name(name, STUDIES)}")
    if quick and into is not None:
        raise InputError(f"--into {into}: a rehearsal judges no claims; leave out --quick or --into")
    if draw_only and (dry_run or only):
        given = "--dry-run" if dry_run else "--only"
        raise InputError(f"{given}: with --draw nothing is run and all that was is drawn; leave one out")
    chosen = STUDIES[name]
    names = [table.strip() for table in tables.split(",")] if tables else []
    cells = chosen.chosen(scale, names, quick, only or [])
    title = name + ("-quick" if quick else "") + ("-paper" if scale == "paper" else "")
    folder = results or Path("results") / title
    if quick and holds_results(folder):
        raise InputError(f"--results {folder}: a rehearsal would replace the results there; choose another")
    failed = 0
    if not draw_only:
        count = seeds or (1 if quick else chosen.seeds)
        with open_pool(on, address, cores, runs, data) as pool:
            plan = plan_sweep(title, cells, range(count), pool, folder)
            failed = run_or_describe_plan(plan, dry_run)
    if chosen.afterwards and not (draw_only or dry_run or quick):
        with ProgressBar(err, name) as bar:
            chosen.afterwards(cells, runs, folder, cores, data, bar.say, bar.advance)
    if not dry_run and (draw_only or read_summaries(folder).height):
        show(chosen, folder, scale, names, into, quick)
    exit_if_failed(failed)


def show(
    study: Study, folder: Path, scale: Scale, names: list[str], into: Path | None, rehearsal: bool
) -> None:
    """Draw what the summaries say, and print the tables and verdicts."""
    drawn = draw(study, folder, scale, rehearsal)
    for found, layout in drawn.tables:
        if not names or layout.name in names:
            for part in as_terminal(found, layout, fits):
                out.print(part)
    for title, columns, rows in drawn.times:
        if chosen := [row for row in rows if not names or row[0] in names]:
            out.print(build_table(title, columns, chosen))
    heads, verdicts = claim_rows(drawn.verdicts)
    heads, *rows = [[*row[1:-1], row[0]] for row in (heads, *verdicts)]  # what was measured is on the page
    out.print(build_table(tally(drawn.verdicts), heads, rows))
    if rehearsal:
        out.print("this is a rehearsal: no number above is a result, no claim is judged")
    elif drawn.outdated:
        many = f"{count_of(drawn.outdated, 'row')} {'is' if drawn.outdated == 1 else 'are'}"
        err.print(f"{many} of other settings; run the study to renew them", style="yellow")
    out.print(f"tables, claims and figures: {folder / 'README.md'}", soft_wrap=True)
    if into is not None:
        try:
            fill_section(into, f"claims:{study.name}", account(drawn.verdicts, drawn.coverage))
        except (OSError, ValueError) as error:
            raise InputError(f"--into {into}: {error}") from None


def fits(table: Table) -> bool:
    """Whether the terminal is broad enough for it; in a terminal's own options it would always be."""
    return out.measure(table, options=out.options.update(max_width=BROAD)).minimum + SLACK <= out.width
