"""A picture for a page: plotly's traces and layout as plain values, with words beside it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from straggler.analysis.style import COLOURS

BLUE, RED, PURPLE, ORANGE = COLOURS[0], COLOURS[1], COLOURS[3], COLOURS[4]
GREY = "#999999"
SCALE = "Cividis"  # made for colour-blind readers
DASHES = ("solid", "dash", "dashdot", "dot")
DIGITS = 6  # that a picture can show
MOST_POINTS = 400  # of one line


@dataclass(frozen=True)
class Figure:
    """One picture; with several views of it there is a switch."""

    name: str
    title: str
    note: str  # what one sees, in a sentence or two
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)  # label: what replaces data and layout
    group: str = ""  # figures of a group switch together
    height: int = 360

    @classmethod
    def switched(cls, name: str, title: str, note: str, views: dict[str, Any], **more: Any) -> "Figure":
        """A figure of several views; the first is shown."""
        first = next(iter(views.values()))
        return cls(name, title, note, first["data"], first.get("layout", {}), views, **more)

    def spec(self) -> dict[str, Any]:
        """As the page wants it; what the views hold is not said twice."""
        spec = {key: getattr(self, key) for key in ("name", "title", "note", "group", "height")}
        if self.views:
            return spec | {"views": [{"label": label} | view for label, view in self.views.items()]}
        return spec | {"data": self.data, "layout": self.layout}


def colour(position: int) -> str:
    """The palette in order, again and again."""
    return COLOURS[position % len(COLOURS)]


def numbers(values: pl.Series | np.ndarray[Any, Any] | Iterable[Any]) -> list[Any]:
    """Values for JSON: no more digits than a picture shows; what is not a number is nothing."""
    return [short(value) for value in (values.to_list() if isinstance(values, pl.Series) else list(values))]


def short(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


def thin(table: pl.DataFrame, most: int = MOST_POINTS) -> pl.DataFrame:
    """At most about so many rows, evenly taken, the last among them."""
    if len(table) <= most:
        return table
    kept: Sequence[int] = np.unique(np.linspace(0, len(table) - 1, most).astype(int)).tolist()
    return table[kept]
