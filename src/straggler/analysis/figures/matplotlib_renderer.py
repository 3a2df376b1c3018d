"""Figures on paper: render a FigureSpec with matplotlib."""

import textwrap
from collections.abc import Sequence
from functools import singledispatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter

from straggler.analysis.figures import description as d
from straggler.analysis.figures.file_formats import save_figure
from straggler.analysis.figures.styles import apply_style, find_style

COLOUR_MAP = "cividis"  # made for colour-blind readers
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}
STEPS: dict[str, Any] = {"": "default", "after": "steps-post", "middle": "steps-mid"}
MARKERS = dict(zip(d.MARKERS, "osD^vP*X", strict=True))
HANDLE_LETTERS, LABEL_ROWS = 8, 3  # of a legend below the panels
ROW_INCHES, ENTRY_INCHES = 0.16, 0.07
NARROW = 4.5  # inches: below it only short labels fit inside a panel
LONG_SCALE, SHORT_SCALE = 1e4, 5.0  # ratio of a logarithmic axis above or below which ticks are labelled less


def draw_figure(
    spec: d.FigureSpec,
    view: str | None = None,
    size: tuple[float, float] | None = None,
    title: str | None = None,
    style: str = "screen",
) -> Figure:
    """Render a figure in one of STYLES; `size` is in inches and includes the legend."""
    look = find_style(style)
    spec = apply_style(spec, spec.choose_panels(view), look)
    places, rows, columns = spec.place_panels(spec.panels)
    with mpl.rc_context(look.rc):
        figure = Figure(figsize=size or spec.size, layout="constrained", dpi=look.dpi)
        every: list[Axes] = []
        grid = figure.add_gridspec(rows, columns, height_ratios=spec.height_ratios or None)
        for (row, column), panel in zip(places, spec.panels, strict=True):
            first = every[0] if every else None
            more: dict[str, Any] = {"sharey": first if spec.share_y else None}
            more = {"projection": "3d"} if panel.z else more
            axes = figure.add_subplot(grid[row, column : column + panel.span], **more)
            every.append(axes)
            draw_panel(axes, panel)
            if spec.share_y and column and not panel.z:
                axes.tick_params(axis="y", labelleft=False)
        words = [title or "", wrap_text(spec.caption, 16 * figure.get_figwidth())]
        if any(words):
            size_ = look.rc["font.size"] + (1 if title else -1)
            figure.suptitle("\n".join(filter(None, words)), fontsize=size_)
        add_legend(figure, every, spec.legend, look.letters_per_inch, grow=size is None)
        separate_tick_labels(figure, every)
    return figure


def separate_tick_labels(figure: Figure, every: Sequence[Axes]) -> None:
    """Turn names below an axis that overlap, and show fewer numbers where they do."""
    figure.draw_without_rendering()
    for axes in every:
        if axes.name == "3d" or not labels_overlap(axes):
            continue
        if isinstance(axes.xaxis.get_major_locator(), FixedLocator):
            axes.tick_params(axis="x", labelrotation=90)
        elif axes.get_xscale() == "log":
            axes.xaxis.set_minor_formatter(NullFormatter())
            locator: Any = axes.xaxis.get_major_locator()
            locator.set_params(numticks=4)
        else:
            axes.locator_params(axis="x", nbins=4)


def labels_overlap(axes: Axes) -> bool:
    """Return whether two labels of the x axis touch each other."""
    labels = [
        label for label in axes.get_xticklabels(which="both") if label.get_text() and label.get_visible()
    ]
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
    return any(after.x0 < before.x1 for before, after in pairwise(boxes))


def write_figure(spec: d.FigureSpec, path: Path, style: str = "screen") -> Path:
    """Render a figure and write it in the format of the path's suffix."""
    return save_figure(draw_figure(spec, style=style), path)


def draw_panel(axes: Axes, panel: d.Panel) -> None:
    """Draw the marks and the axes of a panel."""
    bars = [mark for mark in panel.marks if isinstance(mark, d.Bars)]
    for position, group in enumerate(bars):
        draw_bars(axes, group, position, len(bars))
    for mark in panel.marks:
        if not isinstance(mark, d.Bars):
            draw_mark(mark, axes)
    draw_axis(axes, "x", panel.x)
    draw_axis(axes, "y", panel.y)
    if panel.z:
        format_space(axes, panel)
    if panel.title:
        inches = axes.get_position().width * axes.get_figure().get_figwidth()  # type: ignore[union-attr]
        axes.set_title(wrap_text(panel.title, 19 * inches))
    if not panel.marks:
        axes.set_axis_off()


def draw_axis(axes: Axes, which: str, axis: d.Axis) -> None:
    ruler = axes.xaxis if which == "x" else axes.yaxis
    set_scale, set_limits = getattr(axes, f"set_{which}scale"), getattr(axes, f"set_{which}lim")
    ruler.set_label_text(axis.label)
    if axis.scale == "log":
        set_scale("log")
        label_powers(axes, which)
    elif axis.scale == "log2":
        set_scale("log", base=2)
        ruler.set_major_formatter(lambda value, _: f"{value:g}")
    if axis.low is not None or axis.high is not None:
        set_limits(axis.low, axis.high)
    if len(axis.ticks):
        ruler.set_ticks(list(axis.ticks), list(axis.tick_labels) or [f"{tick:g}" for tick in axis.ticks])
        ruler.set_minor_locator(mpl.ticker.NullLocator())
    elif axis.integers:
        ruler.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    if axis.reverse:
        ruler.set_inverted(True)
    if not axis.grid:
        ruler.grid(visible=False)


def label_powers(axes: Axes, which: str) -> None:
    """Write plain numbers on a logarithmic axis; between few powers of ten, on minor ticks too."""
    ruler = axes.xaxis if which == "x" else axes.yaxis

    def format_minor(value: float, _: float) -> str:
        low, high = sorted(ruler.get_view_interval())
        few = high < LONG_SCALE * low and f"{value:e}"[0] in "25"
        return f"{value:g}" if few or high < SHORT_SCALE * low else ""

    ruler.set_major_formatter(lambda value, _: f"{value:g}")
    ruler.set_minor_formatter(format_minor)


def format_space(axes: Any, panel: d.Panel) -> None:
    """Set the labels and the camera of a three-dimensional panel."""
    assert panel.z is not None
    axes.set_xlabel(panel.x.label, labelpad=6)
    axes.set_ylabel(panel.y.label, labelpad=8)
    axes.set_zlabel(panel.z.label, labelpad=9)
    if len(panel.z.ticks):
        axes.set_zticks(list(panel.z.ticks), list(panel.z.tick_labels))
    axes.tick_params(labelsize=7)
    axes.view_init(elev=38, azim=-60)
    axes.set_box_aspect(None, zoom=0.78)  # leaves room for the labels


@singledispatch
def draw_mark(mark: d.Mark, axes: Axes) -> None:
    """Draw one mark; each kind has its function below."""
    raise TypeError(f"unknown mark {type(mark).__name__}")


@draw_mark.register
def draw_line(mark: d.Line, axes: Axes) -> None:
    colour, x, y = d.choose_colour(mark.colour), np.asarray(mark.x), np.asarray(mark.y)
    label = mark.label or None
    if mark.filled:
        axes.fill_between(x, y, color=colour, alpha=0.25, linewidth=0, label=None if mark.width else label)
    if mark.band is not None:
        axes.fill_between(x, *map(np.asarray, mark.band), color=colour, alpha=0.2, linewidth=0)  # type: ignore[arg-type]
    look: dict[str, Any] = {"color": colour, "linestyle": DASHES[mark.dash or d.choose_dash(mark.colour)]}
    look |= {"linewidth": mark.width, "label": label}
    if mark.marker or len(x) == 1:
        look |= {"marker": MARKERS[mark.marker or "circle"], "markersize": 4}
    if mark.has_few_markers and isinstance(mark.colour, int):
        look |= {"markersize": 3.2, "markevery": (0.02 + 0.03 * (mark.colour % 5), 0.16)}
    if mark.error is not None:
        axes.errorbar(x, y, yerr=[*map(np.asarray, mark.error)], capsize=2, elinewidth=1, **look)
    else:
        axes.plot(x, y, drawstyle=STEPS[mark.step], **look)


@draw_mark.register
def draw_scatter(mark: d.Scatter, axes: Axes) -> None:
    colour, place = d.choose_colour(mark.colour), (np.asarray(mark.x), np.asarray(mark.y))
    if mark.error is not None or mark.x_error is not None:
        spread = {
            name: None if error is None else [*map(np.asarray, error)]
            for name, error in (("xerr", mark.x_error), ("yerr", mark.error))
        }
        axes.errorbar(*place, fmt="none", ecolor=colour, elinewidth=1, capsize=2, **spread)  # type: ignore[arg-type]
    face = {"facecolor": mark.fill, "edgecolor": colour} if mark.fill else {"color": colour}
    shape = MARKERS[mark.marker or d.choose_marker(mark.colour)]
    axes.scatter(*place, s=mark.size**2, marker=shape, label=mark.label or None, zorder=6, **face)  # type: ignore[arg-type]


def draw_bars(axes: Axes, mark: d.Bars, position: int, count: int) -> None:
    """Draw bars next to those of the other groups."""
    named = any(isinstance(value, str) for value in mark.x)
    places = np.arange(len(mark.x)) if named else np.asarray(mark.x, dtype=float)
    width = 0.84 * mark.width / count
    axes.bar(
        places + (position - (count - 1) / 2) * width,
        np.asarray(mark.y),
        width,
        yerr=None if mark.error is None else [*map(np.asarray, mark.error)],
        error_kw={"elinewidth": 0.8, "ecolor": "0.4"},
        color=d.choose_colour(mark.colour),
        hatch=mark.hatch or 4 * d.choose_hatch(mark.colour),
        edgecolor="white",
        linewidth=0,
        label=mark.label or None,
    )
    if named:
        axes.set_xticks(places, [str(name) for name in mark.x])


@draw_mark.register
def draw_spans(mark: d.Spans, axes: Axes) -> None:
    rows, starts = np.asarray(mark.rows), np.asarray(mark.starts, dtype=float)
    colour = d.choose_colour(mark.colour)
    look: dict[str, Any] = {"color": colour, "edgecolor": "white", "linewidth": 0.4, "alpha": mark.opacity}
    look["hatch"] = {"": "", "/": "////", "x": "xxxx"}[mark.hatch]
    lengths = np.asarray(mark.ends, dtype=float) - starts
    axes.barh(rows, lengths, 0.8, left=starts, label=mark.label or None, **look)


@draw_mark.register
def draw_heatmap(mark: d.Heatmap, axes: Axes) -> None:
    values = np.ma.masked_invalid(np.asarray(mark.values, dtype=float))
    edges = [np.arange(count + 1) - 0.5 for count in values.shape[::-1]]
    image = axes.pcolormesh(*edges, values, cmap=COLOUR_MAP, vmin=mark.low, vmax=mark.high)
    axes.yaxis.set_inverted(mark.rows_down)
    middle = sum(image.get_clim()) / 2
    for row, words in enumerate(mark.text):
        for column, word in enumerate(words):
            dark = values[row, column] is not np.ma.masked and values[row, column] <= middle
            colour = "white" if dark else "black"
            axes.text(column, row, word, ha="center", va="center", size="small", color=colour)
    long = max((len(str(name)) for name in mark.columns), default=0) > 4 and len(mark.columns) > 6
    axes.set_xticks(range(len(mark.columns)), list(map(str, mark.columns)), rotation=90 if long else 0)
    axes.set_yticks(range(len(mark.rows)), list(map(str, mark.rows)))
    axes.grid(visible=False)
    if mark.colour_bar:
        bar = axes.get_figure().colorbar(image, ax=axes, label=mark.unit)  # type: ignore[union-attr]
        bar.solids.set_rasterized(False)  # type: ignore[union-attr]


@draw_mark.register
def draw_surface(mark: d.Surface, axes: Any) -> None:
    place = np.asarray(mark.x), np.asarray(mark.y), mark.heights
    if axes.name == "3d":
        axes.computed_zorder = False  # draw the paths above the surface
        look = {"cmap": COLOUR_MAP, "alpha": 0.75, "linewidth": 0, "rcount": 60, "ccount": 60}
        axes.plot_surface(*np.meshgrid(*place[:2]), mark.heights, **look)
        return
    filled = axes.contourf(*place, levels=np.asarray(mark.levels), cmap=COLOUR_MAP)
    axes.contour(*place, levels=np.asarray(mark.levels), colors="white", linewidths=0.3, alpha=0.6)
    bar = axes.get_figure().colorbar(filled, ax=axes, label=mark.unit)
    bar.ax.set_yticks(list(mark.ticks), list(mark.tick_labels))


@draw_mark.register
def draw_trajectory(mark: d.Trajectory, axes: Any) -> None:
    place = [np.asarray(mark.x), np.asarray(mark.y)]
    look: dict[str, Any] = {"color": d.choose_colour(mark.colour), "zorder": 5}
    if mark.heights is None:
        look |= {"path_effects": [patheffects.withStroke(linewidth=3, foreground="white")]}
    else:
        place.append(np.asarray(mark.heights))
    axes.plot(*place, linewidth=1.5, marker=".", markersize=4, label=mark.label or None, **look)
    axes.plot(*(axis[-1:] for axis in place), marker="s", markersize=5, **look)


@draw_mark.register
def draw_hline(mark: d.HLine, axes: Axes) -> None:
    look: dict[str, Any] = {"color": d.choose_colour(mark.colour), "linestyle": DASHES[mark.dash]}
    axes.axhline(mark.y, linewidth=0.8, label=mark.label or None, **look)
    where = axes.get_yaxis_transform()
    axes.text(0.99, mark.y, mark.text, va="top", ha="right", color=look["color"], transform=where)


@draw_mark.register
def draw_vline(mark: d.VLine, axes: Axes) -> None:
    look: dict[str, Any] = {"color": d.choose_colour(mark.colour), "linestyle": DASHES[mark.dash]}
    axes.axvline(mark.x, linewidth=0.8, label=mark.label or None, **look)
    axes.text(
        mark.x, 0.99, f" {mark.text}", va="top", color=look["color"], transform=axes.get_xaxis_transform()
    )


@draw_mark.register
def draw_text(mark: d.Text, axes: Axes) -> None:
    colours = mark.colours or ["0.2"] * len(mark.text)
    where = axes.transAxes if mark.relative else axes.transData
    look: dict[str, Any] = {"transform": where, "clip_on": not mark.relative}
    for x, y, text, colour in zip(mark.x, mark.y, mark.text, colours, strict=True):
        axes.text(x, y, text, ha=mark.align, va="center", fontsize=mark.size, color=colour, **look)


def add_legend(
    figure: Figure, every: Sequence[Axes], place: str, letters_per_inch: float, grow: bool
) -> None:
    """Add one legend for all panels: inside if it is small, else below them, with a taller figure."""
    found: dict[str, Any] = {}
    for axes in every:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if place == "none" or not found or (place == "auto" and len(found) < 2):
        return
    if place == "right":
        figure.legend(found.values(), found.keys(), loc="outside right center")
        return
    longest = 24 if figure.get_figwidth() > NARROW else 16
    if place == "auto" and len(found) <= 4 and max(map(len, found)) <= longest:
        every[0].legend(found.values(), found.keys(), loc="best")
        return
    letters = int(figure.get_figwidth() * letters_per_inch)
    labels = [wrap_text(label, letters - HANDLE_LETTERS) for label in found]
    widest = max(len(row) for label in labels for row in label.splitlines())
    columns = max(1, min(letters // (widest + HANDLE_LETTERS), 6, len(labels)))
    figure.legend(found.values(), labels, loc="outside lower center", ncols=columns)
    entries = -(-len(labels) // columns)
    rows = max(len("\n".join(labels[n : n + entries]).splitlines()) for n in range(0, len(labels), entries))
    if grow:
        figure.set_figheight(figure.get_figheight() + ROW_INCHES * rows + ENTRY_INCHES * entries)


def wrap_text(text: str, letters: float) -> str:
    """Break a text into at most three rows of so many letters."""
    return textwrap.fill(text, max(12, int(letters)), max_lines=LABEL_ROWS, placeholder=" …")
