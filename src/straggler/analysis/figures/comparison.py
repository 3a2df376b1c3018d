"""A comparison of runs on one page: accuracy over time, staleness, and a timeline of each run."""

from collections.abc import Mapping
from dataclasses import replace

from straggler.analysis.figures.curves import build_curve_figure
from straggler.analysis.figures.description import FigureSpec, HLine, hide_labels
from straggler.analysis.figures.staleness import build_staleness_figure
from straggler.analysis.figures.timeline import build_timelines
from straggler.analysis.labels import RunData


def build_comparison_figure(runs: Mapping[str, RunData], target: float | None = None) -> FigureSpec:
    """Describe accuracy over time (with a line at `target` percent), staleness, and the first jobs."""
    groups = {name: [run] for name, run in runs.items()}
    curves = build_curve_figure("accuracy", groups, ["seconds"], training=False)
    panels = []
    if curves is not None:
        accuracy = curves.choose_panels()[0]
        lines = [] if target is None else [HLine(target, f"{target:g} %")]
        panels.append(replace(accuracy, marks=[*accuracy.marks, *lines], title="Accuracy over time", span=2))
    staleness = build_staleness_figure(groups).panels[0]
    staleness = hide_labels(staleness) if panels else staleness
    panels.append(replace(staleness, title="Staleness", span=1 if panels else 3))
    panels += [replace(panel, span=3) for panel in build_timelines(runs).panels]
    rows = [3.2] + [1.9] * len(runs)  # inches
    size = (9, sum(rows))
    return FigureSpec(
        "comparison", "Comparison", panels, columns=3, size=size, height_ratios=rows, legend="below"
    )
