"""Reports on paper: Markdown tables, and matplotlib pages as PDF or PNG. No browser is needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from straggler.analysis.comparison_figures import draw_timeline
from straggler.analysis.style import STYLE, line, place_legend, plain_log, wrapped
from straggler.analysis.tables import format_markdown_table
from straggler.analysis.workers import draw_staleness
from straggler.record import ARRIVALS, Record
from straggler.web.curves import is_wide
from straggler.web.gallery import named, only_first
from straggler.web.report import SUMMARY_COLUMNS, build_summary_rows, describe_rerun, format_title
from straggler.web.run_facts import RunFacts, label_runs
from straggler.web.study_page import StudyPage

MOST_TIMELINES = 4
WIDTH = 9  # inches


def markdown(runs: Sequence[RunFacts], studies: Sequence[StudyPage]) -> str:
    """The words and tables of a report."""
    parts = [f"# {format_title(runs, studies)}"]
    for study in studies:
        parts.append(f"## Study {study.name}")
        if study.untold:
            parts.append(claims_table(study))
        parts += study.texts().values()
    if runs:
        parts += [
            "## Summary",
            format_markdown_table(
                SUMMARY_COLUMNS, [list(map(plain, row)) for row in build_summary_rows(runs)]
            ),
        ]
        parts.append(
            "Intervals are 95 %: over seeds (of two both are given), or over the test samples of one run. "
            "NC: no convergence."
        )
        parts.append("## How to run it again")
        for run, label in zip(runs, label_runs(runs), strict=True):
            how = describe_rerun(run, label)
            words = how["remark"] or f"```\n{how['command'] or how['given']}\n```"
            parts.append(f"{label} ({how['id']}, {how['status']}):\n\n{words}")
    return "\n\n".join(parts) + "\n"


def claims_table(study: StudyPage) -> str:
    rows = []
    for claim in study.untold:
        low, high = claim["low"], claim["high"]
        span = f" [{low}, {high}]" if low is not None and high is not None else ""
        effect = "" if claim["effect"] is None else f"{claim['effect']}{span}"
        rows.append([claim["statement"], claim["source"], claim["verdict"], effect, claim["cause"]])
    cells = [[plain(cell) for cell in row] for row in rows]
    return format_markdown_table(["claim", "source", "verdict", "effect [95 %]", "cause"], cells)


def plain(cell: Any) -> str:
    """Text that does not break a table."""
    return "" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ")


def pages(runs: Sequence[RunFacts]) -> list[Figure]:
    """Curves and staleness, timelines, classes: a figure each, if there is something to draw."""
    everyone, groups = named(runs)
    figures = [curve_page(runs, groups)]
    with_jobs = {name: run for name, run in everyone.items() if len(run.arrivals)}
    if with_jobs:
        figures.append(timeline_page(dict(list(with_jobs.items())[:MOST_TIMELINES])))
    with_classes = {name: run for name, run in everyone.items() if run.summary.get("confusion")}
    if with_classes:
        figures.append(class_page(dict(list(with_classes.items())[:MOST_TIMELINES])))
    for figure in figures[1:]:
        if len(everyone) > MOST_TIMELINES:
            figure.suptitle(only_first(MOST_TIMELINES, len(everyone)), fontsize=8)
    return figures


def curve_page(runs: Sequence[RunFacts], groups: Sequence[str]) -> Figure:
    """Runs of one group, which differ in nothing but their seed, share a colour and a name."""
    with mpl.rc_context(STYLE):
        page = Figure(figsize=(WIDTH, 6.5), layout="constrained")
        (accuracy, loss), (staleness, norms) = page.subplots(2, 2)
        draw_metric(accuracy, runs, groups, "test_accuracy", "test accuracy (%)")
        draw_metric(loss, runs, groups, "test_loss", "test loss")
        if is_wide([float(value) for shown in loss.get_lines() for value in np.asarray(shown.get_ydata())]):
            plain_log(loss)
            loss.set_ylabel("test loss (log scale)")
        drawn: dict[str, list[Record]] = {}
        for run, group in zip(runs, groups, strict=True):
            if len(run.arrivals):
                drawn.setdefault(group, []).append(run.record)
        if drawn:
            draw_staleness(staleness, drawn)
        draw_metric(norms, runs, groups, "weight_norm", "norm of the weights")
        place_legend(page, accuracy if accuracy.get_legend_handles_labels()[0] else loss)
    return page


def draw_metric(axes: Axes, runs: Sequence[RunFacts], groups: Sequence[str], column: str, unit: str) -> None:
    """A line per run, of evaluations or else of arrivals."""
    order = list(dict.fromkeys(groups))
    for place, (run, group) in enumerate(zip(runs, groups, strict=True)):
        table = run.arrivals.rename({"time": "seconds"}) if column in ARRIVALS else run.curve
        if column in table.columns:
            points = table.select("seconds", column).drop_nulls()
            label = "" if group in groups[:place] else group
            marker = "" if column in ARRIVALS else "."
            axes.plot(
                points["seconds"], points[column], label=label, marker=marker, **line(order.index(group))
            )
    axes.set(xlabel=runs[0].clock, ylabel=unit)
    if not axes.get_lines():  # a regression has no accuracy
        axes.set_axis_off()


def timeline_page(runs: Mapping[str, RunFacts]) -> Figure:
    """What each worker did first, and below what the colours mean."""
    with mpl.rc_context(STYLE):
        page = Figure(figsize=(WIDTH, 2.4 * len(runs) + 0.3), layout="constrained")
        meaning: dict[str, Patch] = {}
        for axes, (name, run) in zip(np.ravel(page.subplots(len(runs), 1)), runs.items(), strict=True):
            patches = draw_timeline(axes, name, run.record, run.clock)
            meaning |= {str(patch.get_label()): patch for patch in patches}
        page.legend(handles=list(meaning.values()), loc="outside lower center", ncols=len(meaning))
    return page


def class_page(runs: Mapping[str, RunFacts]) -> Figure:
    """Confusion matrices side by side, percent of each row."""
    with mpl.rc_context(STYLE):
        columns = min(2, len(runs))
        page = Figure(figsize=(WIDTH, 4.2 * -(-len(runs) // columns)), layout="constrained")
        spots = np.ravel(page.subplots(-(-len(runs) // columns), columns))
        for axes, (name, run) in zip(spots, runs.items(), strict=False):
            counts = np.array(run.summary["confusion"])
            shares = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            picture = axes.imshow(shares, cmap="cividis", vmin=0, vmax=100)
            classes = list(run.summary.get("classes") or range(len(counts)))
            axes.set_xticks(range(len(classes)), classes, rotation=90)
            axes.set_yticks(range(len(classes)), classes)
            axes.set(xlabel="recognised as", ylabel="is")
            axes.set_title(wrapped(name, 50), fontsize=8)
            axes.grid(visible=False)
            page.colorbar(picture, ax=axes, label="% of the class")
        for axes in spots[len(runs) :]:
            axes.remove()
    return page


def write_pdf(figures: Sequence[Figure], path: Path) -> None:
    with PdfPages(path) as pdf:
        for figure in figures:
            pdf.savefig(figure)


def write_png(figures: Sequence[Figure], path: Path) -> None:
    """All pages in one picture, one below the other."""
    from PIL import Image

    pictures = []
    for figure in figures:
        figure.savefig(buffer := path.with_name(f".{path.name}.page"), dpi=110, format="png")
        with Image.open(buffer) as page:
            pictures.append(page.convert("RGB"))
        buffer.unlink()
    whole = Image.new("RGB", (max(p.width for p in pictures), sum(p.height for p in pictures)), "white")
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    whole.save(path, format="PNG", optimize=True)
