"""`plot`: draw runs by the name of a kind of figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from matplotlib.figure import Figure

from straggler.analysis.figures.curves import (
    AGAINST,
    Groups,
    build_curve_figure,
    build_gap_figure,
    find_largest,
    list_metrics,
)
from straggler.analysis.figures.description import FigureSpec, HLine, hide_labels
from straggler.analysis.figures.file_formats import FORMATS, save_figure
from straggler.analysis.figures.matplotlib_renderer import draw_figure
from straggler.analysis.figures.outcomes import (
    build_accuracy_heatmap,
    build_error_figure,
    build_pareto_figure,
)
from straggler.analysis.figures.sources import (
    Source,
    find_records,
    find_sources,
    group_records,
    select_records,
)
from straggler.analysis.figures.staleness import build_staleness_figure
from straggler.analysis.figures.styles import find_style
from straggler.analysis.figures.timeline import build_timelines, build_worker_curves
from straggler.analysis.labels import (
    RunData,
    expand_settings,
    find_differences,
    name_method,
    name_runs,
)
from straggler.config.registry import InputError, suggest_name
from straggler.record import Record


@dataclass(frozen=True)
class FigureKind:
    """A figure of runs that `plot` draws."""

    summary: str
    build: Callable[[Groups, Sequence[str]], FigureSpec | None]  # groups of seeds, and the x axis
    axes: tuple[str, ...] = ()  # settings along its axes, in which the runs of a group may differ
    most_groups: int = 12
    needs_result: bool = False  # shows results, which only a finished run has


def ignore_progress(build: Callable[[Groups], FigureSpec]) -> Callable[[Groups, Sequence[str]], FigureSpec]:
    """Adapt a builder whose x axis cannot be chosen."""
    return lambda groups, against: build(groups)


def show_each_run(
    build: Callable[[Mapping[str, RunData]], FigureSpec],
) -> Callable[[Groups, Sequence[str]], FigureSpec]:
    """Adapt a builder that takes runs by name."""

    def adapted(groups: Groups, against: Sequence[str]) -> FigureSpec:
        alone = {label: runs[0] for label, runs in groups.items() if len(runs) == 1}
        return build(alone if len(alone) == len(groups) else name_runs(list(chain(*groups.values()))))

    return adapted


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


KINDS: dict[str, FigureKind] = {
    "accuracy": FigureKind(
        "test and training accuracy over time or work", partial(build_curve_figure, "accuracy")
    ),
    "loss": FigureKind("test and training loss over time or work", partial(build_curve_figure, "loss")),
    "gap": FigureKind(
        "how far the model moved while a gradient was computed, and staleness, over time or work",
        build_gap_figure,
    ),
    "staleness": FigureKind(
        "histogram of the staleness of the gradients", ignore_progress(build_staleness_figure)
    ),
    "timeline": FigureKind(
        "when each worker computes, waits or is cancelled", show_each_run(build_timelines)
    ),
    "workers": FigureKind(
        "loss and batches of each worker, and the norm of the weights, over time",
        show_each_run(build_worker_curves),
    ),
    "comparison": FigureKind(
        "accuracy over time, staleness and a timeline of each run", show_each_run(build_comparison_figure)
    ),
    "pareto": FigureKind(
        "final accuracy against training time, with the Pareto front",
        ignore_progress(build_pareto_figure),
        most_groups=32,
        needs_result=True,
    ),
    "heatmap": FigureKind(
        "final accuracy by learning rate and momentum",
        ignore_progress(build_accuracy_heatmap),
        axes=("lr", "momentum"),
        most_groups=1,
        needs_result=True,
    ),
    "error": FigureKind(
        "test error against the number of workers",
        ignore_progress(build_error_figure),
        axes=("workers",),
        most_groups=32,
        needs_result=True,
    ),
}


def plot(
    records: Source,
    kind: str = "accuracy",
    *,
    against: str = "seconds",
    labels: Sequence[str] | None = None,
    size: tuple[float, float] | None = None,
    title: str | None = None,
    style: str = "screen",
    only: Sequence[str] = (),
    out: str | Path | None = None,
    runs: str | Path = "runs",
    results: str | Path = "results",
    report: Callable[[str], None] = lambda line: None,
) -> Figure:
    """Draw runs in one figure and return it; write it to `out` (png, pdf, svg or pgf) if given.

    `records` is a Record, the folder of a run, a sweep (its name in `results`, or the folder of its results),
    a list of these, or a dictionary whose keys become the labels. Runs that differ only in their seed are one
    line, with a 95 % confidence band from three seeds on.

    Args:
        records: what to draw.
        kind: a name in KINDS, or a metric that the runs have.
        against: the x axis of accuracy, loss, gap and metrics: a name in AGAINST.
        labels: an entry of the legend per run or per line.
        size: width and height in inches.
        title: a title above the figure.
        style: `screen`, `paper` (one column, 3.35 inches wide) or `paper-wide` (both columns).
        only: settings such as `lr=0.1`, that a run must have to be drawn.
        out: the file to write.
        runs: the folder of the runs of a sweep.
        results: the folder of the sweeps.
        report: called with a sentence for each run that is left out.
    """
    find_style(style)
    if out is not None and Path(out).suffix.lower() not in FORMATS:
        raise InputError(f"Cannot write {out}: the name must end with {', '.join(FORMATS)}")
    chosen = select_records(find_sources(records, Path(runs), Path(results)), only)
    spec = build_figure(chosen, kind, against, labels, Path(runs), report)
    figure = draw_figure(spec, size=size, title=title, style=style)
    if out is not None:
        save_figure(figure, Path(out))
    return figure


def build_figure(
    source: Source,
    kind: str,
    against: str,
    labels: Sequence[str] | None,
    folder: Path,
    report: Callable[[str], None],
) -> FigureSpec:
    """Check the request and describe the figure."""
    if against not in AGAINST:
        raise InputError(f"Unknown axis {against!r}. {suggest_name(against, AGAINST)}")
    chosen = find_kind_of_figure(kind, source, folder)
    groups = group_records(source, labels, chosen.axes, folder)
    records = list(chain(*groups.values()))
    check_groups(kind, chosen, groups)
    if empty := [record for record in records if record.arrivals.is_empty()]:
        raise InputError(f"{empty[0].path} has no arrivals yet. Wait for it, or run it with a larger budget.")
    if chosen.needs_result:
        for record in records:
            if not record.ended:
                report(f"left out: {record.path} has not ended")
        groups = {label: [record for record in group if record.ended] for label, group in groups.items()}
        if all(record.summary.get("test_accuracy") is None for group in groups.values() for record in group):
            raise InputError(f"{kind} shows test accuracies, but no finished run has one. Plot the loss.")
    if against == "bytes" and find_largest(against, groups) is None:
        raise InputError(
            "No run recorded its bytes: a version before 0.3 made them. Run them again with --force."
        )
    spec = chosen.build(groups, [against])
    if spec is None:
        raise InputError(f"No run has a test {kind} yet. Wait for one, or plot the loss.")
    return spec


def find_kind_of_figure(kind: str, source: Source, folder: Path) -> FigureKind:
    """Return a kind of figure by its name, or the curve of a metric that these runs have."""
    if kind in KINDS:
        return KINDS[kind]
    metrics = list_metrics(find_records(source, folder))
    if kind not in metrics:
        raise InputError(f"Unknown kind of figure {kind!r}. {suggest_name(kind, [*KINDS, *metrics])}")
    return FigureKind(f"{kind} over time or work", partial(build_curve_figure, kind))


def check_groups(kind: str, chosen: FigureKind, groups: Mapping[str, Sequence[Record]]) -> None:
    """Raise if the figure cannot show so many settings."""
    axes, most = chosen.axes, chosen.most_groups
    if len(groups) <= most:
        return
    if most == 1:
        settings = [record.settings for record in chain(*groups.values())]
        others = ", ".join(find_differences(settings, axes)) or "their method"
        raise InputError(
            f"A {kind} shows {' and '.join(axes)}, but these runs also differ in {others}. "
            "Choose runs that do not, or use another kind, such as error."
        )
    first = next(iter(groups.values()))[0].settings
    key = next(iter(find_differences([record.settings for record in chain(*groups.values())])), "method")
    example = f"{key}={({'method': name_method(first)} | expand_settings(first)).get(key)}"
    rule = f"{kind} shows at most {most} settings, got {len(groups)}."
    raise InputError(f"{rule} Choose some of them by a setting, for example --only '{example}'.")
