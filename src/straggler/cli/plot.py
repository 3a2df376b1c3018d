"""The command that draws runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from straggler.analysis.curves import AGAINST
from straggler.analysis.labels import group_seeds, told_apart_by
from straggler.analysis.run_figures import KINDS
from straggler.analysis.style import FORMATS
from straggler.cli import options
from straggler.cli.app import check_suffix, err, find_all, out
from straggler.config.registry import InputError, suggest_name
from straggler.record import Record


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

    Runs that differ in nothing but their seed are one line: their mean, and its 95 % interval.
    Curves of thousands of arrivals show means over neighbours, timelines the beginning (the title says how
    much).
    """
    if kind not in KINDS:
        raise InputError(f"unknown kind of figure {kind!r}; {suggest_name(kind, KINDS)}")
    if against not in AGAINST:
        raise InputError(f"--against {against!r}: {suggest_name(against, AGAINST)}")
    target = file or Path(f"{kind}.png")
    check_suffix(target, FORMATS)
    records = find_all(runs, folder)
    groups = group_seeds(records, KINDS[kind].axes)
    check_settings(kind, records, len(groups))
    empty = [record.path for record in records if record.arrivals.is_empty()]
    if empty:
        raise InputError(f"{empty[0]} has no arrivals (yet); wait for it, or run it with a larger budget")
    if kind == "accuracy" and not any("test_accuracy" in record.curve.columns for record in records):
        raise InputError("no run has a test accuracy (yet); wait for one, or use plot loss")
    if KINDS[kind].of_ended:
        groups = {name: ended(group) for name, group in groups.items()}
        seen = [record.summary.get("test_accuracy") for group in groups.values() for record in group]
        if all(accuracy is None for accuracy in seen):
            raise InputError(f"no run that has ended has a test accuracy, of which {kind} is; use plot loss")
    KINDS[kind].draw(groups, target, against)
    out.print(f"wrote {target}", soft_wrap=True)


def check_settings(kind: str, records: Sequence[Record], settings: int) -> None:
    """Refuse what no figure can show at once."""
    axes, most = KINDS[kind].axes, KINDS[kind].most
    if settings > most == 1:
        others = ", ".join(told_apart_by(records, axes))
        raise InputError(
            f"{kind} is of {' and '.join(axes)}, and these runs differ in {others} too; "
            "name runs that are alike in that, or use plot error"
        )
    if settings > most:
        raise InputError(
            f"{settings} settings; name fewer runs" + (", or use plot error" if kind != "error" else "")
        )


def ended(records: Sequence[Record]) -> list[Record]:
    """Those that have; of the others it is said that they are left out."""
    for record in [record for record in records if not record.ended]:
        err.print(f"left out: {record.path} has not ended", markup=False, soft_wrap=True)
    return [record for record in records if record.ended]
