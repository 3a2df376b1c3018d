"""A figure as plain values: panels with axes and marks, which matplotlib and plotly both render."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

Values: TypeAlias = Sequence[Any] | pl.Series | NDArray[Any]
Colour: TypeAlias = int | str  # a position in the palette, or a hex code
Errors: TypeAlias = tuple[Values, Values]  # how far the error bars reach below and above

# Okabe and Ito's palette for colour-blind readers; grey replaces their yellow, which is invisible on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
DASHES = ("solid", "dash", "dashdot", "dot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "x")
HATCHES = ("", "/", ".", "x", "\\", "-")
GREY = "#999999"


def choose_colour(colour: Colour) -> str:
    """Return a hex code. Positions beyond the palette start again."""
    return colour if isinstance(colour, str) else COLOURS[colour % len(COLOURS)]


def choose_dash(colour: Colour) -> str:
    """Return the dash of a line, so that the first 32 lines of a figure all look different."""
    if isinstance(colour, str):
        return DASHES[0]
    return DASHES[(colour + colour // len(COLOURS)) % len(DASHES)]


def choose_marker(colour: Colour) -> str:
    """Return the shape of a point; with its colour it is unique among the first 64."""
    if isinstance(colour, str):
        return MARKERS[0]
    return MARKERS[(colour + colour // len(COLOURS)) % len(MARKERS)]


def choose_hatch(colour: Colour) -> str:
    """Return the pattern of a bar, so that bars of one colour differ."""
    return "" if isinstance(colour, str) else HATCHES[colour // len(COLOURS) % len(HATCHES)]


@dataclass(frozen=True)
class Axis:
    """One axis of a panel. The label includes the unit."""

    label: str = ""
    scale: Literal["linear", "log", "log2", "category"] = "linear"
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] = ()
    tick_labels: Sequence[str] = ()
    integers: bool = False  # only whole numbers as ticks
    reverse: bool = False
    grid: bool = True


@dataclass(frozen=True)
class Line:
    """A line through points, with an optional confidence band or error bars."""

    x: Values
    y: Values
    label: str = ""
    colour: Colour = 0
    dash: str = ""  # one of DASHES; by default chosen by the colour's position
    width: float = 1.6
    marker: str = ""  # one of MARKERS; without it only a single point has a marker
    has_few_markers: bool = False  # on paper, at a few places instead of at every point
    band: tuple[Values, Values] | None = None  # lowest and highest value at each point
    error: Errors | None = None
    step: Literal["", "after", "middle"] = ""
    filled: bool = False  # shade the area between the line and zero
    group: str = ""  # lines of a group have one entry in the legend


@dataclass(frozen=True)
class Scatter:
    """Points without a line."""

    x: Values
    y: Values
    label: str = ""
    colour: Colour = 0
    marker: str = ""
    size: float = 6.0  # diameter in points
    fill: str = ""  # a hex code, or "none"; by default the colour
    error: Errors | None = None
    x_error: Errors | None = None
    hover: Sequence[str] = ()


@dataclass(frozen=True)
class Bars:
    """Vertical bars; several of these in a panel stand side by side."""

    x: Values  # numbers, or names on an axis with scale="category"
    y: Values
    label: str = ""
    colour: Colour = 0
    error: Errors | None = None
    hover: Sequence[str] = ()
    width: float = 1.0  # of the group of bars at one place, in units of the axis
    hatch: str = ""  # on paper


@dataclass(frozen=True)
class Spans:
    """Horizontal bars between two values, in numbered rows."""

    rows: Values
    starts: Values
    ends: Values
    label: str = ""
    colour: Colour = 0
    hatch: Literal["", "/", "x"] = ""
    opacity: float = 1.0
    hover: Sequence[str] = ()


@dataclass(frozen=True)
class Heatmap:
    """A table as colours, with the names of its columns and rows. NaN stays empty."""

    values: NDArray[Any]
    columns: Sequence[str]
    rows: Sequence[str]
    unit: str = ""
    text: Sequence[Sequence[str]] = ()  # written into the cells
    low: float | None = None
    high: float | None = None
    rows_down: bool = True  # the first row is at the top
    colour_bar: bool = True


@dataclass(frozen=True)
class Surface:
    """A surface: contours in a flat panel, a relief in a three-dimensional one."""

    x: Values
    y: Values
    heights: NDArray[np.float64]
    levels: Values
    tick_labels: Sequence[str] = ()  # of the colour bar
    ticks: Sequence[float] = ()
    unit: str = ""


@dataclass(frozen=True)
class Trajectory:
    """A path over a surface, with a square at its end; without heights it is seen from above."""

    x: Values
    y: Values
    heights: Values | None = None
    label: str = ""
    colour: Colour = 0
    hover: Sequence[str] = ()


@dataclass(frozen=True)
class HLine:
    """A horizontal line across the panel, with a text at its end."""

    y: float
    text: str = ""
    label: str = ""
    colour: Colour = "#666666"
    dash: str = "dot"


@dataclass(frozen=True)
class VLine:
    """A vertical line across the panel, with a text at its top."""

    x: float
    text: str = ""
    label: str = ""
    colour: Colour = "#4d4d4d"
    dash: str = "dash"


@dataclass(frozen=True)
class Text:
    """Words at points of the panel, or, if `relative`, at fractions of its width and height."""

    x: Values
    y: Values
    text: Sequence[str]
    colours: Sequence[str] = ()
    align: Literal["left", "center", "right"] = "left"
    size: float = 9.0
    relative: bool = False


Mark: TypeAlias = Line | Scatter | Bars | Spans | Heatmap | Surface | Trajectory | HLine | VLine | Text


@dataclass(frozen=True)
class Panel:
    """Marks on common axes. A panel with a z axis is three-dimensional."""

    marks: Sequence[Mark] = ()
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    z: Axis | None = None
    title: str = ""
    span: int = 1  # columns of the grid


LABELLED = (Line, Scatter, Bars, Spans, Trajectory, HLine, VLine)


def hide_labels(panel: Panel) -> Panel:
    """Return the panel without entries in the legend, for a panel whose colours another one explains."""
    marks = [replace(mark, label="") if isinstance(mark, LABELLED) else mark for mark in panel.marks]
    return replace(panel, marks=marks)


@dataclass(frozen=True)
class FigureSpec:
    """A figure of one or more panels. If it has views, a page switches between them."""

    name: str
    title: str
    panels: Sequence[Panel] = ()
    note: str = ""  # explains the figure on a page, in a sentence or two
    caption: str = ""  # says how to read bands and bars, on a page and on paper
    views: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    group: str = ""  # figures of a group switch their views together
    columns: int = 0  # panels side by side; 0 = all
    size: tuple[float, float] = (6.5, 4.0)  # inches on paper
    height: int = 360  # pixels on a page
    legend: Literal["auto", "below", "right", "none"] = "auto"
    share_y: bool = False
    height_ratios: Sequence[float] = ()  # of the rows of panels

    def choose_panels(self, view: str | None = None) -> Sequence[Panel]:
        """Return the panels of a view; by default the first."""
        if not self.views:
            return self.panels
        return self.views[view] if view else next(iter(self.views.values()))

    def place_panels(self, panels: Sequence[Panel]) -> tuple[list[tuple[int, int]], int, int]:
        """Return row and column of each panel, and the numbers of rows and columns."""
        columns = self.columns or max(1, len(panels))
        places, row, column = list[tuple[int, int]](), 0, 0
        for panel in panels:
            if column + panel.span > columns:
                row, column = row + 1, 0
            places.append((row, column))
            column += panel.span
        return places, row + 1, columns

    def with_note(self, sentence: str) -> "FigureSpec":
        """Return the figure with a sentence added to its note."""
        return replace(self, note=f"{self.note} {sentence}".strip())


def round_for_json(values: Values) -> list[Any]:
    """Round numbers to the digits a picture can show; NaN and infinity become None."""
    return [round_number(value) for value in (values.to_list() if isinstance(values, pl.Series) else values)]


def round_number(value: Any) -> Any:
    """Round to six significant digits; whole numbers become integers."""
    if value is None or isinstance(value, str | bool):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")
