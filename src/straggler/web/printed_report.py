"""Printed reports: matplotlib pages as one PDF or one PNG. No browser is needed."""

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
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
from straggler.web.report_sections import StudyReport
from straggler.web.run_facts import RunFacts
from straggler.web.study_page import StudyPage

MAX_DETAILED_RUNS = 4
WIDTH = 9  # inches
LETTERS_PER_LINE, LINES_PER_PAGE, LINE_INCHES = 132, 66, 0.155
SHORTEST_COLUMN = 8  # letters
MOST_INCHES = 12.0  # height of an image
PNG_DPI = 110


def draw_pages(runs: Sequence[RunFacts], studies: Sequence[StudyReport], text: str) -> list[Figure]:
    """Draw the text, then the figures of studies and of runs."""
    pages = draw_text_pages(text)
    for one in studies:
        pages += [*draw_images(one.study), *map(draw_figure, one.figures)]
    return [*pages, *map(draw_figure, describe_runs(runs) if runs else [])]


def describe_runs(runs: Sequence[RunFacts]) -> list[FigureSpec]:
    """Describe the curves and, where recorded, worker timelines and confusion matrices."""
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
    return specs


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
    """Draw Markdown in pages of LINES_PER_PAGE lines: headings in bold, tables with aligned columns."""
    lines = lay_out_markdown(text, LETTERS_PER_LINE)
    pages = [lines[start : start + LINES_PER_PAGE] for start in range(0, len(lines), LINES_PER_PAGE)]
    figures = []
    for number, shown in enumerate(pages, 1):
        figure = Figure(figsize=(WIDTH, 0.5 + LINE_INCHES * len(shown)))
        height = figure.get_figheight()
        style: dict[str, Any] = {"family": "monospace", "fontsize": 7.5, "parse_math": False, "va": "top"}
        for row, (line, is_heading) in enumerate(shown):
            place = 1 - (0.2 + LINE_INCHES * row) / height
            figure.text(0.03, place, line, weight="bold" if is_heading else "normal", **style)
        figure.text(0.97, 0.1 / height, f"{number} / {len(pages)}", ha="right", fontsize=7, color="0.4")
        figures.append(figure)
    return figures


def lay_out_markdown(text: str, width: int) -> list[tuple[str, bool]]:
    """Return the lines of Markdown as plain text, and whether each is a heading; images are left out."""
    lines, table, is_code = list[tuple[str, bool]](), list[str](), False
    for line in [*text.splitlines(), ""]:
        is_code ^= line.startswith("```")
        if line.startswith("|") and not is_code:
            table.append(line)
            continue
        if table:
            lines += [(row, False) for row in align_table(table, width)]
            table = []
        if line.startswith(("```", "![")):
            continue
        is_heading = line.startswith("#") and not is_code
        indent = "    " if is_code else ""
        words = line.lstrip("# ") if is_heading else line
        wrapped = textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent) or [""]
        lines += [(one, is_heading) for one in wrapped]
    return [one for one, before in pairwise([*lines, ("", False)]) if one[0] or before[0]]


def align_table(rows: Sequence[str], width: int) -> list[str]:
    """Return a Markdown table with aligned columns, in which long cells are broken between words."""
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    count = max(map(len, cells))
    cells = [
        row + [""] * (count - len(row))
        for row in cells
        if not all(set(cell) <= {"-"} and cell for cell in row)
    ]
    widths = [max(len(row[n]) for row in cells) for n in range(count)]
    while sum(widths) + 2 * count > width and max(widths) > SHORTEST_COLUMN:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for number, row in enumerate(cells):
        broken = [textwrap.wrap(cell, max(1, size)) or [""] for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*broken, fillvalue=""):
            lines.append(
                "  ".join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip()
            )
        if number == 0:
            lines.append("  ".join("-" * size for size in widths))
    return lines


def draw_images(study: StudyPage) -> list[Figure]:
    """Draw the images of a study, one per page."""
    figures = []
    for name, content in study.read_images().items():
        try:
            image = imread(io.BytesIO(content), format="png")
        except (OSError, ValueError, SyntaxError):
            continue
        height = min(MOST_INCHES, WIDTH * image.shape[0] / image.shape[1])
        figure = Figure(figsize=(WIDTH, height + 0.3), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow(image)
        axes.set_axis_off()
        axes.set_title(f"{study.name}: {name}", fontsize=8)
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
        figure.set_dpi(PNG_DPI)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        pages.append(np.asarray(canvas.buffer_rgba()).copy())
    width = max(page.shape[1] for page in pages)
    padded = [
        np.pad(page, ((0, 0), (0, width - page.shape[1]), (0, 0)), constant_values=255) for page in pages
    ]
    imsave(path, np.concatenate(padded), format="png")
