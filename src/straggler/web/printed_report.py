"""Printed reports: matplotlib pages as one PDF or one PNG. No browser is needed."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave
from matplotlib.patches import Patch

from straggler.analysis.comparison_figures import draw_timeline
from straggler.analysis.style import STYLE, line, place_legend, plain_log, wrapped
from straggler.analysis.workers import draw_staleness
from straggler.record import ARRIVALS, Record
from straggler.web.curves import is_wide
from straggler.web.gallery import named, only_first
from straggler.web.run_facts import RunFacts

MAX_DETAILED_RUNS = 4
WIDTH = 9  # inches
LETTERS_PER_LINE, LINES_PER_PAGE = 108, 60


def draw_pages(runs: Sequence[RunFacts], text: str) -> list[Figure]:
    """Draw the text, the curves and, where recorded, worker timelines and confusion matrices."""
    everyone, groups = named(runs)
    detailed = []
    with_jobs = {name: run for name, run in everyone.items() if len(run.arrivals)}
    if with_jobs:
        detailed.append(draw_timelines(dict(list(with_jobs.items())[:MAX_DETAILED_RUNS])))
    with_classes = {name: run for name, run in everyone.items() if run.summary.get("confusion")}
    if with_classes:
        detailed.append(draw_confusions(dict(list(with_classes.items())[:MAX_DETAILED_RUNS])))
    if len(everyone) > MAX_DETAILED_RUNS:
        for figure in detailed:
            figure.suptitle(only_first(MAX_DETAILED_RUNS, len(everyone)), fontsize=8)
    return [*draw_text(text), draw_curves(runs, groups), *detailed]


def draw_text(text: str) -> list[Figure]:
    """Set Markdown as it is, in pages of LINES_PER_PAGE lines."""
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


def draw_curves(runs: Sequence[RunFacts], groups: Sequence[str]) -> Figure:
    """Draw accuracy, loss, staleness and weight norm; runs that differ only in the seed share a colour."""
    with mpl.rc_context(STYLE):
        page = Figure(figsize=(WIDTH, 6.5), layout="constrained")
        (accuracy, loss), (staleness, norms) = page.subplots(2, 2)
        draw_metric(accuracy, runs, groups, "test_accuracy", "test accuracy (%)")
        draw_metric(loss, runs, groups, "test_loss", "test loss")
        if is_wide([float(value) for shown in loss.get_lines() for value in np.asarray(shown.get_ydata())]):
            plain_log(loss)
            loss.set_ylabel("test loss (log scale)")
        records: dict[str, list[Record]] = {}
        for run, group in zip(runs, groups, strict=True):
            if len(run.arrivals):
                records.setdefault(group, []).append(run.record)
        if records:
            draw_staleness(staleness, records)
        draw_metric(norms, runs, groups, "weight_norm", "norm of the weights")
        place_legend(page, accuracy if accuracy.get_legend_handles_labels()[0] else loss)
    return page


def draw_metric(axes: Axes, runs: Sequence[RunFacts], groups: Sequence[str], column: str, unit: str) -> None:
    """Draw a line per run through its evaluations, or through its arrivals if they have the column."""
    order = list(dict.fromkeys(groups))
    for position, (run, group) in enumerate(zip(runs, groups, strict=True)):
        table = run.arrivals.rename({"time": "seconds"}) if column in ARRIVALS else run.curve
        if column in table.columns:
            points = table.select("seconds", column).drop_nulls()
            label = "" if group in groups[:position] else group
            marker = "" if column in ARRIVALS else "."
            style = line(order.index(group))
            axes.plot(points["seconds"], points[column], label=label, marker=marker, **style)
    clocks = {run.clock for run in runs}
    axes.set(xlabel=clocks.pop() if len(clocks) == 1 else "time (s), virtual or wall-clock", ylabel=unit)
    if not axes.get_lines():  # a regression has no accuracy
        axes.set_axis_off()


def draw_timelines(runs: Mapping[str, RunFacts]) -> Figure:
    """Draw the first jobs of every worker, with one legend below."""
    with mpl.rc_context(STYLE):
        page = Figure(figsize=(WIDTH, 2.4 * len(runs) + 0.3), layout="constrained")
        legend: dict[str, Patch] = {}
        for axes, (name, run) in zip(np.ravel(page.subplots(len(runs), 1)), runs.items(), strict=True):
            patches = draw_timeline(axes, name, run.record, run.clock)
            legend |= {str(patch.get_label()): patch for patch in patches}
        page.legend(handles=list(legend.values()), loc="outside lower center", ncols=len(legend))
    return page


def draw_confusions(runs: Mapping[str, RunFacts]) -> Figure:
    """Draw confusion matrices side by side, in percent of each row."""
    with mpl.rc_context(STYLE):
        columns = min(2, len(runs))
        rows = -(-len(runs) // columns)
        page = Figure(figsize=(WIDTH, 4.2 * rows), layout="constrained")
        spots = np.ravel(page.subplots(rows, columns))
        for axes, (name, run) in zip(spots, runs.items(), strict=False):
            counts = np.array(run.summary["confusion"])
            shares = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=100)
            classes = list(run.summary.get("classes") or range(len(counts)))
            axes.set_xticks(range(len(classes)), classes, rotation=90)
            axes.set_yticks(range(len(classes)), classes)
            axes.set(xlabel="predicted class", ylabel="true class")
            axes.set_title(wrapped(name, 50), fontsize=8)
            axes.grid(visible=False)
            page.colorbar(image, ax=axes, label="% of the class")
        for axes in spots[len(runs) :]:
            axes.remove()
    return page


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
