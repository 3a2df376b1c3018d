"""Printed reports: matplotlib pages as one PDF or one PNG. No browser is needed."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave

from straggler.analysis.figures.classes import build_confusion_figure
from straggler.analysis.figures.curves import build_curve_figure, build_norm_figure, join_captions
from straggler.analysis.figures.description import FigureSpec, hide_labels
from straggler.analysis.figures.matplotlib_renderer import draw_figure
from straggler.analysis.figures.staleness import build_staleness_figure
from straggler.analysis.figures.timeline import build_timelines
from straggler.analysis.labels import group_seeds, name_runs
from straggler.web.run_facts import RunFacts

MAX_DETAILED_RUNS = 4
WIDTH = 9  # inches
LETTERS_PER_LINE, LINES_PER_PAGE = 108, 60


def draw_pages(runs: Sequence[RunFacts], text: str) -> list[Figure]:
    """Draw the text, the curves and, where recorded, worker timelines and confusion matrices."""
    named = name_runs(runs)
    with_jobs = [name for name, run in named.items() if len(run.jobs)][:MAX_DETAILED_RUNS]
    specs = [combine_curves(group_seeds(runs))]
    if with_jobs:
        specs.append(build_timelines({name: named[name] for name in with_jobs}))
    confusions = build_confusion_figure(named)
    if confusions is not None:
        views = list(confusions.views.items())[:MAX_DETAILED_RUNS]
        panels = [replace(panel, title=name) for name, (panel,) in views]
        columns = min(2, len(panels))
        size = (WIDTH, 4.2 * -(-len(panels) // columns))
        specs.append(replace(confusions, panels=panels, views={}, columns=columns, size=size))
    if len(named) > MAX_DETAILED_RUNS:
        note = f"Only the first {MAX_DETAILED_RUNS} of {len(named)} runs are shown."
        specs[1:] = [replace(spec, caption=note) for spec in specs[1:]]
    return [*draw_text_pages(text), *map(draw_figure, specs)]


def combine_curves(groups: Mapping[str, Sequence[RunFacts]]) -> FigureSpec:
    """Return accuracy, loss, staleness and weight norm as one page."""
    curves = [build_curve_figure(metric, groups, ["seconds"], False) for metric in ("accuracy", "loss")]
    panels = [spec.choose_panels()[0] for spec in curves if spec is not None]
    if any(len(run.jobs) for runs in groups.values() for run in runs):
        panels += map(hide_labels, build_staleness_figure(groups).panels)
        panels += build_norm_figure(groups).choose_panels("weights")
    captions = join_captions({spec.caption for spec in curves if spec is not None and spec.caption})
    return FigureSpec("curves", "Curves", panels, caption=captions, columns=2, size=(WIDTH, 6.5))


def draw_text_pages(text: str) -> list[Figure]:
    """Draw Markdown as plain text, in pages of LINES_PER_PAGE lines."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, LETTERS_PER_LINE) or [""]]
    figures = []
    for start in range(0, len(lines), LINES_PER_PAGE):
        shown = lines[start : start + LINES_PER_PAGE]
        figure = Figure(figsize=(WIDTH, 0.4 + 0.16 * len(shown)))
        style: dict[str, Any] = {
            "family": "monospace",
            "fontsize": 8,
            "parse_math": False,
            "linespacing": 1.4,
        }
        figure.text(0.03, 1 - 0.2 / figure.get_figheight(), "\n".join(shown), va="top", **style)
        figures.append(figure)
    return figures


def write_pdf(figures: Sequence[Figure], path: Path) -> None:
    with PdfPages(path) as pdf:
        for figure in figures:
            pdf.savefig(figure)


def write_png(figures: Sequence[Figure], path: Path) -> None:
    """Write all pages into one image, one below the other."""
    pages = []
    for figure in figures:
        figure.savefig(buffer := io.BytesIO(), dpi=110, format="png")
        buffer.seek(0)
        pages.append(imread(buffer))
    width = max(page.shape[1] for page in pages)
    padded = [np.pad(page, ((0, 0), (0, width - page.shape[1]), (0, 0)), constant_values=1) for page in pages]
    imsave(path, np.concatenate(padded), format="png")
