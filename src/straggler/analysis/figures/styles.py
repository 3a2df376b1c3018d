"""Styles of printed figures: for a screen, and for one or two columns of a paper."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from straggler.analysis.figures.description import (
    Bars,
    FigureSpec,
    Line,
    Mark,
    Panel,
    Scatter,
    Text,
    choose_marker,
)
from straggler.config.registry import InputError, suggest_name

HATCHES = ("", "////", "....", "xxxx")  # of neighbouring bars, so that they differ when printed in grey
LOWEST, TALLEST, SHARE = 1.25, 2.7, 0.72  # inches of a row of panels, and its height in widths of a panel
BASE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text
    "pdf.fonttype": 42,
}
PAPER: dict[Any, Any] = BASE | {
    "font.family": "STIXGeneral",  # looks like Times, and comes with matplotlib
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.handlelength": 2.4,
    "legend.borderaxespad": 0.3,
}


@dataclass(frozen=True)
class FigureStyle:
    """The look of a figure: fonts, width, and how lines and bars differ without colour."""

    summary: str
    rc: dict[Any, Any] = field(default_factory=lambda: BASE)
    width: float | None = None  # inches; by default the figure's own
    columns: int = 0  # most panels side by side; 0 = as the figure describes
    text_scale: float = 1.0
    letters_per_inch: float = 13.0  # of a legend
    is_grey_safe: bool = False  # markers on lines and hatches on bars
    has_caption: bool = True  # otherwise it belongs into the paper's caption
    dpi: int = 150


STYLES = {
    "screen": FigureStyle("for a screen or a slide"),
    "paper": FigureStyle(
        "one column of a paper, 3.35 inches wide", PAPER, 3.35, 1, 0.7, 17.0, True, False, 300
    ),
    "paper-wide": FigureStyle(
        "both columns of a paper, 6.9 inches wide", PAPER, 6.9, 3, 0.75, 17.0, True, False, 300
    ),
}


def find_style(name: str) -> FigureStyle:
    """Return a style by its name."""
    if name not in STYLES:
        raise InputError(f"Unknown style {name!r}. {suggest_name(name, STYLES)}")
    return STYLES[name]


def apply_style(spec: FigureSpec, panels: Sequence[Panel], style: FigureStyle) -> FigureSpec:
    """Return the figure with these panels, in the style's width and with its marks."""
    if style.width is None:
        return replace(spec, panels=panels, views={})
    before = spec.columns or max(1, len(panels))
    columns = min(before, style.columns)
    spans = [min(columns, max(1, round(panel.span * columns / before))) for panel in panels]
    fitted = replace(
        spec,
        views={},
        columns=columns,
        caption=spec.caption if style.has_caption else "",
        panels=[
            replace(
                panel, span=span, marks=[adapt_mark(mark, n, style) for n, mark in enumerate(panel.marks)]
            )
            for panel, span in zip(panels, spans, strict=True)
        ],
    )
    heights = fit_rows(spec, panels, fitted, style.width)
    return replace(fitted, size=(style.width, sum(heights)), height_ratios=heights)


def fit_rows(spec: FigureSpec, panels: Sequence[Panel], fitted: FigureSpec, width: float) -> list[float]:
    """Return the heights of the rows of panels in inches: panels keep their shape within limits."""
    places, rows, columns = spec.place_panels(panels)
    shares = list(spec.height_ratios) or [1.0] * rows
    new_places, new_rows, new_columns = fitted.place_panels(fitted.panels)
    heights = [LOWEST] * new_rows
    for old, new, (row, _), (new_row, _) in zip(panels, fitted.panels, places, new_places, strict=True):
        before = spec.size[0] * old.span / columns, spec.size[1] * shares[row] / sum(shares)
        now = width * new.span / new_columns
        scale = min(1.0, now / before[0])
        tallest = min(TALLEST, SHARE * width / new_columns)
        heights[new_row] = max(heights[new_row], min(before[1] * scale, tallest))
    return heights


def adapt_mark(mark: Mark, number: int, style: FigureStyle) -> Mark:
    """Return a mark that differs from the others without colour, with text and points in the style's size."""
    if isinstance(mark, Text | Scatter):
        return replace(mark, size=mark.size * style.text_scale)
    if isinstance(mark, Bars) and style.is_grey_safe:
        return replace(mark, hatch=HATCHES[number % len(HATCHES)])
    if isinstance(mark, Line) and style.is_grey_safe:
        is_method = isinstance(mark.colour, int) and not mark.step and not mark.filled and len(mark.x) > 1
        thin = replace(mark, width=0.75 * mark.width)
        if is_method and not mark.marker:
            return replace(thin, marker=choose_marker(mark.colour), has_few_markers=True)
        return thin
    return mark
