"""Commands that run many experiments: study and sweep."""

from pathlib import Path
from typing import Annotated

import typer

from straggler.analysis.markdown import fill
from straggler.analysis.study_tables import as_terminal, sweep_rows
from straggler.analysis.tables import listing
from straggler.catalogue import InputError, suggestion
from straggler.cli import options
from straggler.cli.app import complain, err, out
from straggler.studies import STUDIES, Study
from straggler.studies.draw import account, claim_rows, draw, holds_results
from straggler.studies.study import Scale
from straggler.sweeps.cells import read_sweep
from straggler.sweeps.conduct import Plan, conduct, plan
from straggler.sweeps.display import duration
from straggler.sweeps.summaries import known, labels_of

__all__ = ["study", "sweep"]

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
Seeds = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=MANY, help="How many, from 0 on; the same for every cell."),
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
        typer.Option(help="Only cells with this text in a label, such as 'as coded'; may be repeated."),
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw", help="Run nothing: tables, claims and figures from the summaries.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="A document with <!-- claims:NAME --> marks for the claims.")
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
) -> None:
    """Run a source's experiments, put its numbers beside ours, and judge its claims.

    What has been run is not run again: stop it with Ctrl-C, or kill it, and call it again.
    """
    if name not in STUDIES:
        raise InputError(f"unknown study {name!r}; {suggestion(name, STUDIES)}")
    if quick and into is not None:
        raise InputError(f"--into {into}: a rehearsal judges no claims; leave out --quick or --into")
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
        failed = carry_out(plan(title, cells, range(count), runs, data, jobs, folder), folder, dry_run)
    if not dry_run and (draw_only or known(folder).height):
        show(chosen, folder, scale, names, into, quick)
    end_with(failed)


def show(
    study: Study, folder: Path, scale: Scale, names: list[str], into: Path | None, rehearsal: bool
) -> None:
    """Draw what the summaries say, and print the tables and verdicts."""
    drawn = draw(study, folder, scale, rehearsal)
    for found, layout in drawn.tables:
        if not names or layout.name in names:
            out.print(as_terminal(found, layout))
    columns, rows = claim_rows(drawn.verdicts)
    first, *others = [[verdict, claim, *more[:-1]] for claim, verdict, *more in (columns, *rows)]
    out.print(listing("claims", first, others))  # the verdict is never cut; what was measured is on the page
    if rehearsal:
        out.print("this is a rehearsal: no number above is a result, no claim is judged")
    out.print(f"tables, claims and figures: {folder / 'README.md'}", soft_wrap=True)
    if into is not None:
        try:
            fill(into, f"claims:{study.name}", account(drawn.verdicts))
        except (OSError, ValueError) as error:
            raise InputError(f"--into {into}: {error}") from None


def sweep(
    file: Annotated[
        Path, typer.Argument(help="A TOML file: experiment keys, of which any may be a list, and seeds.")
    ],
    jobs: Jobs = None,
    dry_run: DryRun = False,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
) -> None:
    """Run every combination of the values in a file, several seeds of each.

    In FILE any key of an experiment may be a list, which always means alternatives; `seeds = 3` runs each
    combination with seeds 0, 1 and 2. What has been run is not run again.
    """
    cells, seeds = read_sweep(file)
    folder = results or Path("results") / file.stem
    planned = plan(file.stem, cells, seeds, runs, data, jobs, folder)
    failed = carry_out(planned, folder, dry_run)
    if not dry_run and known(folder).height:
        out.print(listing(file.stem, *sweep_rows(known(folder), labels_of(planned.tasks))))
    end_with(failed)


def carry_out(plan: Plan, results: Path, dry_run: bool) -> int:
    """Run a plan, or only say what it is; how many runs failed."""
    seeds, runs = counted(len(plan.seeds), "seed"), counted(len(plan.tasks) + plan.known, "run")
    out.print(
        f"{plan.name}: {runs}, {seeds}, {len(plan.missing)} missing: "
        f"about {duration(plan.seconds)} with {counted(plan.jobs, 'process', 'es')}",
        soft_wrap=True,
    )
    if dry_run:
        return 0
    try:
        return len(conduct(plan, results, err))
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on", code=130)


def end_with(failed: int) -> None:
    if failed:
        complain(f"{counted(failed, 'run')} failed; the reasons are above", code=1)


def counted(number: int, what: str, ending: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else ending}"
