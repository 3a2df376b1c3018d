"""The playground command: write the static playground, or the animated picture of its first race."""

from pathlib import Path
from typing import Annotated

import typer

from straggler.cli.app import check_suffix, out
from straggler.config.registry import InputError


def playground(
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for the page; its index.html needs nothing else."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Also, or instead, write an animated picture of the race to this SVG file."),
    ] = None,
) -> None:
    """Write the playground as a page that works without a server: from a file or any web host.

    The page simulates the timing of any method and cluster, event by event like Straggler. It cannot train;
    its races show recorded runs. `straggler serve` has the same page with training.
    """
    if folder is None and picture is None:
        raise InputError("There is nothing to write. Pass --out DIR for the page, or --picture FILE.svg.")
    if picture is not None:
        check_suffix(picture, (".svg",))
        from straggler.web.race_picture import write_race_picture

        out.print(f"The picture is in {write_race_picture(picture)}", soft_wrap=True)
    if folder is not None:
        from straggler.web.playground_build import build_static_playground

        out.print(f"Open {build_static_playground(folder)} in a browser.", soft_wrap=True)
