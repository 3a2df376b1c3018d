"""The command that tests custom code: check."""

from typing import Annotated

import typer
from rich.text import Text

from straggler.cli.app import exit_with_error, out
from straggler.cli.train import parse_assignments
from straggler.config.registry import InputError, suggest_name
from straggler.running.component_checks import KINDS, check_custom_code

Kind = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="Its kind: policy, correction, optimizer, work, channel, aggregation, delay, compute, "
        "partition, model, dataset or loss.",
        show_default="found from its class",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Settings of the small experiment that tests it."),
]


def check(
    target: Annotated[
        str, typer.Argument(metavar="IMPORT_STRING", help="./file.py:Name or package.module:Name")
    ],
    kind: Kind = None,
    set_: Settings = None,
) -> None:
    """Test a custom component, model, data set or loss against the laws that every built-in one obeys.

    It runs small experiments and verifies that a second run, a run on several processes, a resumed run and a
    replay have the same weights, that no run deadlocks, and that records can be read back.
    """
    kinds = {*KINDS.values(), "compute", "loss"}
    if kind is not None and kind not in kinds:
        raise InputError(f"--as {kind!r} is unknown. {suggest_name(kind, sorted(kinds))}")
    failures = 0
    for result in check_custom_code(target, kind, **parse_assignments(set_ or [])):
        failures += result.failure is not None
        mark = ("failed", "red bold") if result.failure else ("ok    ", "green")
        reason = f": {result.failure}" if result.failure else ""
        out.print(Text.assemble(mark, f"  {result.law}{reason}"), soft_wrap=True)
    if failures:
        exit_with_error(f"{target} breaks {failures} of the laws above", code=1)
    out.print(f"{target} obeys all laws.")
