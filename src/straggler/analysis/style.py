"""How all figures look: one palette, one style, one way onto the disk."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from straggler.running.atomic_files import replace_atomically

# Okabe and Ito's palette, told apart by colour-blind readers; grey for their yellow, which is lost on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
STYLES = ("-", "--", "-.", ":")
SHAPES = "osD^vP*X"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
}
LETTERS = 13  # of a legend on an inch
HANDLE = 8  # letters that the line beside a label takes
MOST_ROWS = 3  # of one label; longer ones are cut
ROW, BETWEEN = 0.16, 0.07  # inches of a legend's row, and between two entries
FEW_POWERS, NARROW = 1e4, 5.0  # from the bottom to the top of a scale
FORMATS = (".png", ".pdf", ".svg")


def line(position: int) -> dict[str, Any]:
    """Colour and dashes of the position-th line: no two of the first 32 are alike."""
    return {
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": STYLES[(position + position // len(COLOURS)) % len(STYLES)],
    }


def point(position: int) -> dict[str, Any]:
    """Colour and shape of the position-th point: no two of the first 64 are alike."""
    return {
        "color": COLOURS[(position + position // len(SHAPES)) % len(COLOURS)],
        "marker": SHAPES[position % len(SHAPES)],
    }


@contextmanager
def drawn(path: Path, width: float, height: float, dpi: int = 150) -> Iterator[Figure]:
    """A figure to draw on; afterwards it is in the file, whole or not at all."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as temporary:
            figure.savefig(temporary, dpi=dpi, format=path.suffix.removeprefix("."))


def panels(figure: Figure, rows: int, columns: int, **more: Any) -> list[Axes]:
    """Axes in a grid, row by row."""
    return list(figure.subplots(rows, columns, squeeze=False, **more).flat)


def place_legend(figure: Figure, axes: Axes, inside: bool = True) -> None:
    """Inside where a few lines leave room, else below the panels, which keep their size: the figure grows."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    if inside and len(labels) <= 4 and max(map(len, labels)) <= 24:
        axes.legend(handles, labels, loc="best")
        return
    letters = int(figure.get_figwidth() * LETTERS)
    labels = [wrapped(label, letters - HANDLE) for label in labels]
    widest = max(len(row) for label in labels for row in label.splitlines())
    columns = max(1, min(letters // (widest + HANDLE), 4, len(labels)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    entries = -(-len(labels) // columns)
    rows = max(len("\n".join(labels[n : n + entries]).splitlines()) for n in range(0, len(labels), entries))
    figure.set_figheight(figure.get_figheight() + ROW * rows + BETWEEN * entries)


def wrapped(label: str, letters: int) -> str:
    """In rows of at most so many letters, cut if there are too many."""
    return textwrap.fill(label, max(12, letters), max_lines=MOST_ROWS, placeholder=" …")


def plain_log(axes: Axes) -> None:
    """A logarithmic scale upwards whose numbers are written out, between few powers of ten too."""

    def between(value: float, _: float) -> str:
        low, high = axes.get_ylim()
        few = high < FEW_POWERS * low and f"{value:e}"[0] in "25"
        return f"{value:g}" if few or high < NARROW * low else ""

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(between)
