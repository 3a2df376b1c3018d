"""Commands that run many experiments: study and sweep."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from straggler.catalogue import InputError, suggestion
from straggler.cli import options
from straggler.cli.app import complain, err, out
from straggler.studies import STUDIES
from straggler.sweeps.cells import read_sweep
from straggler.sweeps.conduct import Plan, conduct, plan
from straggler.sweeps.display import duration

__all__ = ["study", "sweep"]

Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at the same time, a core each; all cores by default.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many runs are missing and how long they take.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where the records of the runs are.")]
Results = Annotated[Path | None, typer.Option("--results", help="Where summaries, tables and figures go.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many, from 0 on; the same for every cell.")]


def study(
    name: Annotated[str, typer.Argument(help=", ".join(STUDIES))],
    quick: Annotated[bool, typer.Option("--quick", help="A few short cells: a rehearsal of two minutes.")] = False,
    scale: Annotated[Literal["default", "paper"], typer.Option(help="paper: the source's own networks; needs GPUs.")] = "default",
    seeds: Seeds = None,
    tables: Annotated[str | None, typer.Option(help="Only these, such as II,IV.")] = None,
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
    chosen = STUDIES[name]
    names = [table.strip() for table in tables.split(",")] if tables else []
    cells = chosen.chosen(scale, names, quick)
    count = seeds or (1 if quick else chosen.seeds)
    title = name + ("-quick" if quick else "") + ("-paper" if scale == "paper" else "")
    carry_out(plan(title, cells, range(count), runs, data, jobs), results or Path("results") / title, dry_run)


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file: experiment keys, of which any may be a list, and seeds.")],
    jobs: Jobs = None,
    dry_run: DryRun = False,
    results: Results = None,
    runs: Runs = Path("runs"),
    data: options.Data = None,
) -> None:
    """Run every combination of the values in a file, several seeds of each."""
    cells, seeds = read_sweep(file)
    folder = results or Path("results") / file.stem
    carry_out(plan(file.stem, cells, seeds, runs, data, jobs), folder, dry_run)


def carry_out(plan: Plan, results: Path, dry_run: bool) -> None:
    missing = len(plan.missing)
    out.print(
        f"{plan.name}: {len(plan.tasks)} runs ({len(plan.seeds)} seeds), {missing} of them missing: "
        f"about {duration(plan.seconds)} with {plan.jobs} processes",
        soft_wrap=True,
    )
    if dry_run:
        return
    try:
        failures = conduct(plan, results, err)
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on", code=130)
    if failures:
        complain(f"{len(failures)} of {len(plan.tasks)} runs failed; they are listed above", code=1)
