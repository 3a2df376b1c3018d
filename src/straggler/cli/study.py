"""Commands that run many experiments: study and sweep."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
import typer
from rich.table import Table

from straggler.analysis.study_tables import as_terminal
from straggler.analysis.sweep_tables import SweepTable
from straggler.analysis.tables import build_table, fill_section, format_markdown_table
from straggler.cli import options
from straggler.cli.app import complain, err, out
from straggler.config.registry import InputError, suggest_name
from straggler.reproduction import STUDIES, Study
from straggler.reproduction.page import account, claim_rows, draw, holds_results, tally
from straggler.reproduction.study import Scale
from straggler.running.atomic_files import write_text_atomically
from straggler.running.progress import ProgressBar
from straggler.sweeps.display import format_duration
from straggler.sweeps.grid import possible, read_grid_file
from straggler.sweeps.pool import LocalPool
from straggler.sweeps.ray_pool import RayPool
from straggler.sweeps.runner import SweepPlan, plan_sweep, run_plan
from straggler.sweeps.summaries import collect_labels, read_summaries

Where = Literal["here", "ray"]
BROAD = 10_000  # columns, more than any table has
SLACK = 3  # columns that rich may lose while it makes a table narrower
MANY = "How many runs, and where"
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, rich_help_panel=MANY, help="Runs at the same time, a core each; all cores by default."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", rich_help_panel=MANY, help="Only say how many runs are missing and how long they take."
    ),
]
Runs = Annotated[
    Path, typer.Option("--runs", rich_help_panel=MANY, help="Where the records of the runs are.")
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        rich_help_panel=MANY,
        show_default="results/NAME",
        help="Where summaries, tables and figures go.",
    ),
]
SWEPT = "Means over seeds ± half of the 95 % interval; of two seeds both in brackets; NC: no convergence."
Seeds = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=MANY, help="How many, from 0 on; the same for every cell."),
]
On = Annotated[
    Where,
    typer.Option(
        "--on",
        rich_help_panel=MANY,
        help="Where runs are computed: on this machine, or on a Ray cluster, which sends the records here.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MANY,
        help="With --on ray: the cluster, such as 10.0.0.1:6379 or auto; without it, Ray is started here.",
    ),
]


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
    jobs: Jobs = None,
    on: On = "here",
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
        with fleet_on(on, address, jobs, runs, data) as fleet:
            planned = plan_sweep(title, cells, range(count), runs, data, fleet.jobs, folder)
            failed = carry_out(planned, folder, fleet, dry_run)
    if chosen.afterwards and not (draw_only or dry_run or quick):
        with ProgressBar(err, name) as bar:
            chosen.afterwards(cells, runs, folder, jobs, data, bar.say, bar.advance)
    if not dry_run and (draw_only or read_summaries(folder).height):
        show(chosen, folder, scale, names, into, quick)
    end_with(failed)


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
        many = f"{counted(drawn.outdated, 'row')} {'is' if drawn.outdated == 1 else 'are'}"
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


def sweep(
    file: Annotated[
        Path, typer.Argument(help="A TOML file: experiment keys, of which any may be a list, and seeds.")
    ],
    jobs: Jobs = None,
    on: On = "here",
    address: Address = None,
    dry_run: DryRun = False,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
) -> None:
    """Run every combination of the values in a file, several seeds of each.

    In FILE any key of an experiment may be a list, which always means alternatives; `seeds = 3` runs each
    combination with seeds 0, 1 and 2. What has been run is not run again.
    """
    cells, seeds = read_grid_file(file)
    cells, refused = possible(cells, seeds)
    for name, reason in refused.items():
        err.print(f"{file.stem}: {name} cannot be run: {reason}", style="red", markup=False, soft_wrap=True)
    folder = results or Path("results") / file.stem
    with fleet_on(on, address, jobs, runs, data) as fleet:
        planned = plan_sweep(file.stem, cells, seeds, runs, data, fleet.jobs, folder)
        failed = carry_out(planned, folder, fleet, dry_run)
    if not dry_run and read_summaries(folder).height:
        order = pl.DataFrame({"id": [task.id for task in planned.every]})  # others stay in the file
        mine = order.join(read_summaries(folder), on="id", maintain_order="left")
        table = SweepTable(mine, collect_labels(planned.every))
        out.print(build_table(file.stem, *table.rows()))
        page = f"# {file.stem}\n\n{SWEPT}\n\n{format_markdown_table(*table.rows())}\n"
        for ending, text in {"md": page, "csv": table.csv(), "tex": table.latex(SWEPT)}.items():
            write_text_atomically(folder / f"sweep.{ending}", text)
        out.print(
            f"{SWEPT} The table: {folder}/sweep.md, .csv and .tex; every run: {folder}/summaries.parquet.",
            soft_wrap=True,
        )
    end_with(failed + len(refused))


@contextmanager
def fleet_on(
    on: Where, address: str | None, jobs: int | None, runs: Path, data: Path | None
) -> Iterator[LocalPool | RayPool]:
    """Who runs the experiments; a cluster that is not there is found out before anything else is done."""
    if runs.exists() and not runs.is_dir():
        raise InputError(f"--runs {runs}: it is a file; choose a folder for the records")
    if on == "here":
        if address is not None:
            raise InputError(f"--address {address}: only a cluster has one; add --on ray, or leave it out")
        yield LocalPool(jobs or os.cpu_count() or 1, runs, data)
        return
    with closing(RayPool(address, jobs, runs, data)) as fleet:
        yield fleet


def carry_out(plan: SweepPlan, results: Path, fleet: LocalPool | RayPool, dry_run: bool) -> int:
    """Run a plan, or only say what it is; how many runs failed."""
    seeds, runs = counted(len(plan.seeds), "seed"), counted(len(plan.tasks) + plan.known, "run")
    out.print(
        f"{plan.name}: {runs}, {seeds}, {len(plan.missing)} missing: "
        f"about {format_duration(plan.seconds)} with {counted(plan.jobs, 'process', 'es')}"
        f"{' on Ray' if isinstance(fleet, RayPool) else ''}",
        soft_wrap=True,
    )
    if dry_run:
        return 0
    try:
        return len(run_plan(plan, results, err, fleet))
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on", code=130)


def end_with(failed: int) -> None:
    if failed:
        complain(f"{counted(failed, 'run')} failed; the reasons are above", code=1)


def counted(number: int, what: str, ending: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else ending}"
