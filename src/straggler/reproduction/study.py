"""What a study is: a grid of experiments, the source's own numbers, and what the source concluded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from straggler.analysis.claims import Claim
from straggler.config.registry import InputError
from straggler.sweeps.grid import Cell, ThroughputCell

SHOWN = 12  # labels in a message
Scale = Literal["default", "paper"]


@dataclass(frozen=True)
class Study:
    """A source, as data."""

    name: str
    title: str
    source: str  # who, when, what
    cells: Callable[[Scale], list[Cell]]
    claims: Callable[[Scale], Sequence[Claim]]
    tables: dict[str, str]  # by name in order of importance, with their captions
    seeds: int  # as many as the committed results have
    quick: Callable[[list[Cell]], list[Cell]]  # a few cells, so short that all take two minutes
    more: Callable[[pl.DataFrame], list[tuple[str, str]]] | None = None  # other tables: caption, Markdown
    figures: Callable[[pl.DataFrame, Path], list[Path]] | None = None  # drawn from the results alone
    afterwards: Callable[..., None] | None = (
        None  # what several runs together give; see epfl_landscape.survey
    )

    def chosen(
        self, scale: Scale, tables: Sequence[str] = (), quick: bool = False, only: Sequence[str] = ()
    ) -> list[Cell]:
        """The cells of these tables (or all) with these texts in their labels, in order of importance."""
        for table in tables:
            if table not in self.tables:
                raise InputError(f"{self.name} has no table {table!r}; it has {', '.join(self.tables)}")
        rank = {name: position for position, name in enumerate(self.tables)}
        cells = sorted(self.cells(scale), key=lambda cell: rank[str(cell.labels["table"])])
        cells = [cell for cell in cells if not tables or cell.labels["table"] in tables]
        for text in only:
            names = list(dict.fromkeys(str(label) for cell in cells for label in cell.labels.values()))
            cells = [cell for cell in cells if any(text in str(label) for label in cell.labels.values())]
            if not cells:
                some = ", ".join(map(repr, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")
                raise InputError(f"--only {text!r}: none of the {len(names)} labels has it; they are {some}")
        return self.quick(cells) if quick else cells


def quickened(cells: Sequence[Cell], **settings: Any) -> list[Cell]:
    """The same cells with other settings, as a rehearsal; one that only counts is short as it is."""

    def shortened(cell: Cell) -> Cell:
        return replace(cell, settings={**cell.settings, **settings})

    return [cell if isinstance(cell, ThroughputCell) else shortened(cell) for cell in cells]
