"""The command that draws runs."""

from pathlib import Path
from typing import Annotated

import typer

from straggler.analysis.curves import AGAINST
from straggler.analysis.kinds import KINDS
from straggler.analysis.labels import named
from straggler.analysis.style import FORMATS
from straggler.catalogue import InputError, suggestion
from straggler.cli import options
from straggler.cli.frame import check_suffix, err, find_all, out

__all__ = ["plot"]


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="\n\n".join(f"[bold]{name}[/bold]: {kind.summary}." for name, kind in KINDS.items()),
        ),
    ],
    runs: options.Runs,
    against: Annotated[
        str, typer.Option(help=f"Of accuracy, loss and gap: {', '.join(AGAINST)}.")
    ] = "seconds",
    file: Annotated[
        Path | None, typer.Option("--out", show_default="KIND.png", help="A figure: png, pdf or svg.")
    ] = None,
    folder: options.RunsFolder = Path("runs"),
) -> None:
    """Draw runs, several in one figure; they are named by the settings in which they differ.

    Curves of thousands of arrivals show means over neighbours, timelines the beginning (the title says how
    much).
    """
    if kind not in KINDS:
        raise InputError(f"unknown kind of figure {kind!r}; {suggestion(kind, KINDS)}")
    if against not in AGAINST:
        raise InputError(f"--against {against!r}: {suggestion(against, AGAINST)}")
    target = file or Path(f"{kind}.png")
    check_suffix(target, FORMATS)
    records = named(find_all(runs, folder))
    empty = [record.path for record in records.values() if record.arrivals.is_empty()]
    if empty:
        raise InputError(f"{empty[0]} has no arrivals (yet); wait for it, or run it with a larger budget")
    if kind == "accuracy" and not any("test_accuracy" in record.curve.columns for record in records.values()):
        raise InputError("no run has a test accuracy (yet); wait for one, or use plot loss")
    if KINDS[kind].of_ended:
        for record in [record for record in records.values() if not record.ended]:
            err.print(f"left out: {record.path} has not ended", markup=False, soft_wrap=True)
        records = {name: record for name, record in records.items() if record.ended}
        if not any(record.summary.get("test_accuracy") is not None for record in records.values()):
            raise InputError(f"no run that has ended has a test accuracy, of which {kind} is; use plot loss")
    KINDS[kind].draw(records, target, against)
    out.print(f"wrote {target}", soft_wrap=True)
