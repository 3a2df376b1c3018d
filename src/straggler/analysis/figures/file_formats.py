"""Files of printed figures: PNG, PDF, SVG, and PGF for LaTeX."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_pgf import RendererPgf
from matplotlib.figure import Figure

from straggler.analysis.figures.styles import BASE
from straggler.running.atomic_files import replace_atomically

FORMATS = (".png", ".pdf", ".svg", ".pgf")
PGF_BEGIN = r"""%% A figure of Straggler for LaTeX.
%% In the preamble: \usepackage{{pgf}}. In the text: \input{{{name}}}
\begingroup
\makeatletter
\def\mathdefault#1{{#1}}
\begin{{pgfpicture}}
\pgfpathrectangle{{\pgfpointorigin}}{{\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}
\pgfusepath{{use as bounding box, clip}}
"""
PGF_END = "\\end{pgfpicture}\n\\makeatother\n\\endgroup\n"


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the path's suffix; if that fails, the file stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as temporary, mpl.rc_context(BASE):
        if path.suffix.lower() == ".pgf":
            write_pgf(figure, temporary, path.name)
        else:
            figure.savefig(temporary, dpi="figure", format=path.suffix.lower().removeprefix("."))
    return path


class LatexFreeRenderer(RendererPgf):
    """Writes PGF, and measures text with matplotlib's fonts, so that LaTeX need not be installed."""

    def __init__(self, figure: Figure, file: Any) -> None:
        super().__init__(figure, file)  # type: ignore[no-untyped-call]
        self._ruler: Any = RendererAgg(1, 1, figure.dpi)  # type: ignore[no-untyped-call]

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        """Return the size of a text in pixels."""
        width, height, descent = self._ruler.get_text_width_height_descent(s, prop, ismath)
        return width, height, descent


def write_pgf(figure: Figure, path: Path, name: str) -> None:
    """Write a figure as a PGF picture; LaTeX sets its text in the fonts of the document."""
    figure.draw_without_rendering()  # the layout
    figure.set_layout_engine("none")
    width, height = figure.get_size_inches()
    with path.open("w", encoding="utf-8") as file:
        file.write(PGF_BEGIN.format(name=name, width=width, height=height))
        pen: Any = LatexFreeRenderer(figure, file)
        figure.draw(pen)
        file.write(PGF_END)
