"""Reports on runs and studies in one file: HTML, Markdown, PDF or PNG."""

import json
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from jinja2 import Environment, PackageLoader, select_autoescape
from plotly.offline import get_plotlyjs

from straggler.analysis.figures.plotly_renderer import render_plotly
from straggler.analysis.intervals import format_interval, share_interval
from straggler.analysis.labels import group_seeds, label_runs
from straggler.analysis.sweep_tables import choose_target
from straggler.analysis.tables import format_number
from straggler.config.registry import InputError
from straggler.record import Record
from straggler.running.atomic_files import replace_atomically
from straggler.web.gallery import build_gallery
from straggler.web.printed_report import draw_pages, write_pdf, write_png
from straggler.web.report_sections import StudyReport, build_study_report, list_best_accuracies
from straggler.web.run_facts import CUSTOM_REMARK, RunFacts, find_changed_settings, limit_memory
from straggler.web.study_page import StudyPage, is_study_folder
from straggler.web.targets import find_milestone_time, find_milestones

STATIC = Path(__file__).parent / "static"
ReportFormat = Literal["html", "md", "pdf", "png"]
REPORT_FORMATS: tuple[ReportFormat, ...] = get_args(ReportFormat)
SUMMARY_COLUMNS = ["run", "seeds", "test accuracy (%)", "test loss", "updates", "gradients"]
SUMMARY_COLUMNS += ["mean staleness", "time (s)", "clock"]
SUMMARY_NOTE = (
    "Mean over seeds ± half-width of the 95 % confidence interval (Student's t, from three seeds on). "
    "A single run has the 95 % confidence interval [low, high] of its accuracy over the test samples "
    "(Wilson). NC: no convergence."
)
VERSIONS = ("straggler", "torch", "numpy")


def report(
    records: Record | Path | str | Sequence[Record | Path | str],
    out: Path | str | None = None,
    title: str | None = None,
    format: ReportFormat | None = None,
    on_problem: Callable[[str], object] = warnings.warn,
    runs_folder: Path | str = "runs",
    target: float | None = None,
) -> Path:
    """Write a report on runs, sweeps or studies to one file and return its path.

    Args:
        records: records, or folders of runs, sweeps or studies.
        out: the file to write; `report.FORMAT` by default.
        title: the heading; by default the names of the runs and studies.
        format: `html`, `md`, `pdf` or `png`; by default the suffix of `out`, else `html`.
        on_problem: called with a sentence for every file that cannot be read.
        runs_folder: the folder of the runs of a sweep or study, for its figures.
        target: a test accuracy in percent; the summary has the time until it was reached. By default the
            highest multiple of 5 that half of the settings reached.
    """
    if target is not None and not 0 < target <= 100:
        raise InputError(f"target must be a test accuracy above 0 and up to 100 %, got {target:g}.")
    kind = format or find_report_format(out)
    path = Path(out) if out else Path(f"report.{kind}")
    items = [records] if isinstance(records, Record | Path | str) else list(records)
    paths = list(dict.fromkeys(item.path if isinstance(item, Record) else Path(item) for item in items))
    pages = [StudyPage(folder) for folder in paths if is_study_folder(folder)]
    runs, left_out = limit_memory([RunFacts(folder) for folder in paths if not is_study_folder(folder)])
    if left_out and not (runs or pages):
        raise InputError(left_out[0])
    if not paths:
        raise InputError("There is nothing to report. Pass at least one run or study.")
    if not pages and not any(run.settings for run in runs):
        raise InputError(f"There is nothing to report: {runs[0].problems[0]}")
    studies = [build_study_report(page, Path(runs_folder)) for page in pages]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as temporary:
            if kind == "html":
                temporary.write_text(render_html_report(runs, studies, title=title, target=target))
            elif kind == "md":
                temporary.write_text(render_markdown_report(runs, studies, title, target))
            else:
                write = write_pdf if kind == "pdf" else write_png
                text = render_markdown_report(runs, studies, title, target)
                write(draw_pages(runs, studies, text), temporary)
    except OSError as error:
        raise InputError(f"Cannot write {path} ({error.strerror}). Choose another file.") from None
    for problem in [*left_out, *list_problems(runs, pages)]:
        on_problem(problem)
    return path


def find_report_format(path: Path | str | None) -> ReportFormat:
    """Return the format that a file name ends with."""
    suffix = Path(path).suffix.lstrip(".").lower() if path else ""
    suffix = {"": "html", "htm": "html"}.get(suffix, suffix)
    for kind in REPORT_FORMATS:
        if kind == suffix:
            return kind
    raise InputError(f"{path} must end with {', '.join(REPORT_FORMATS)}. Rename it, or pass the format.")


@cache
def load_templates() -> Environment:
    autoescape = select_autoescape(disabled_extensions=("md",), default=True)
    templates = Environment(loader=PackageLoader("straggler.web"), autoescape=autoescape, trim_blocks=True)
    templates.filters |= {"number": format_number, "cell": escape_cell}
    return templates


def render_template(name: str, **values: Any) -> str:
    return load_templates().get_template(name).render(**values)


def collect_report(
    runs: Sequence[RunFacts],
    studies: Sequence[StudyReport],
    title: str | None,
    target: float | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the values that the templates of a report show."""
    columns, rows = build_summary(runs, target)
    return {
        "title": title or format_title(runs, [one.study for one in studies]),
        "runs": describe_reruns(runs),
        "columns": columns,
        "rows": rows,
        "settings": list_shared_settings(runs),
        "summary_note": SUMMARY_NOTE,
        "studies": [(one, *build_summary(one.runs, target)) for one in studies],
        "problems": [*notes, *list_problems(runs, [one.study for one in studies])],
    }


def render_html_report(
    runs: Sequence[RunFacts],
    studies: Sequence[StudyReport | StudyPage] = (),
    embedded: bool = True,
    title: str | None = None,
    notes: Sequence[str] = (),
    target: float | None = None,
) -> str:
    """Return the report as HTML; embedded, it needs no other file and no network."""
    built = [build_study_report(one, None) if isinstance(one, StudyPage) else one for one in studies]
    own = [render_plotly(figure) for figure in build_gallery(runs)] if runs else []
    by_study = [
        [render_plotly(replace(spec, name=f"{one.anchor}-{spec.name}")) for spec in one.figures]
        for one in built
    ]
    figures = [*own, *chain(*by_study)]
    scripts = ([get_plotlyjs()] if figures else []) + [read_static("draw.js"), read_static("report.js")]
    return render_template(
        "report.html",
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=read_static("style.css") if embedded else None,
        scripts=scripts if embedded else [],
        figures=own,
        study_figures=by_study,
        data=dump_json(figures),
        **collect_report(runs, built, title, target, notes),
    )


def render_markdown_report(
    runs: Sequence[RunFacts],
    studies: Sequence[StudyReport],
    title: str | None = None,
    target: float | None = None,
) -> str:
    """Return the texts and tables of a report as Markdown."""
    return render_template("report.md", **collect_report(runs, studies, title, target)).strip() + "\n"


def escape_cell(cell: Any) -> str:
    """Return text that does not break a Markdown table."""
    return "" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ")


def list_problems(runs: Sequence[RunFacts], studies: Sequence[StudyPage]) -> list[str]:
    """Return a line for every file that could not be read, each once."""
    lines = [f"{study.name}: {line}" for study in studies for line in study.problems]
    return list(dict.fromkeys([*lines, *(f"{run.id}: {line}" for run in runs for line in run.problems)]))


def read_static(name: str) -> str:
    return (STATIC / name).read_text()


def format_title(runs: Sequence[RunFacts], studies: Sequence[StudyPage]) -> str:
    names = [study.name for study in studies]
    if len(runs) == 1:
        settings = {"workers": "?", "dataset": "?"} | runs[0].settings
        names.append(f"{runs[0].method} × {settings['workers']}, {settings['dataset']}")
    elif runs:
        names.append(f"{len(runs)} runs")
    return "Straggler: " + ", ".join(names)


def dump_json(value: Any) -> str:
    """Return JSON that is safe within a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "")


def describe_reruns(runs: Sequence[RunFacts]) -> list[dict[str, Any]]:
    return [describe_rerun(run, label) for run, label in zip(runs, label_runs(runs), strict=True)]


def describe_rerun(run: RunFacts, label: str) -> dict[str, Any]:
    """Return how to run it again: the command, the settings, versions and machine."""
    environment, versions = run.environment, run.environment.get("versions")
    command = environment.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    versions = versions if isinstance(versions, dict) else {}
    return {
        "label": label,
        "id": run.id,
        "status": run.status,
        "error": run.summary.get("error"),
        "command": shlex.join(run.rerun_command()),
        "original": shlex.join(["straggler", *words[1:]]) if len(words) > 1 and not run.is_custom else "",
        "remark": CUSTOM_REMARK if run.is_custom else "",
        "toml": run.text,
        "facts": {
            **{key: environment.get(key) for key in ("started", "git", "python")},
            **{name: versions.get(name) for name in VERSIONS},
            "machine": environment.get("platform"),
            "cores": environment.get("cores"),
            "weights (SHA-256)": run.summary.get("weights_sha256"),
        },
    }


def list_shared_settings(runs: Sequence[RunFacts]) -> list[tuple[str, str]]:
    """Return the settings that all runs share and that are not the defaults; the seed is left out."""
    known = [find_changed_settings(run.experiment) for run in runs if run.experiment is not None]
    if not known or len(known) < len(runs):
        return []
    shared = [(key, value) for key, value in known[0].items() if key != "seed"]
    shared = [(key, value) for key, value in shared if all(one.get(key) == value for one in known)]
    return [(key.replace("_", " "), format_value(value)) for key, value in shared]


def format_value(value: Any) -> str:
    """Format a setting; a list has its parts joined by plus signs."""
    return " + ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def build_summary(runs: Sequence[RunFacts], target: float | None) -> tuple[list[str], list[list[str]]]:
    """Return the summary table with the time to a target accuracy, if a run has an accuracy."""
    groups, rows = group_seeds(runs), build_summary_rows(runs)
    goal = choose_target(list_best_accuracies(groups)) if target is None else target
    if goal is None:
        return SUMMARY_COLUMNS, rows
    place = SUMMARY_COLUMNS.index("time (s)")
    for row, group in zip(rows, groups.values(), strict=True):
        times = [find_milestone_time(find_milestones(run.curve), goal) for run in group]
        row.insert(place, format_times(times))
    columns = [*SUMMARY_COLUMNS[:place], f"time to {goal:g} % (s)", *SUMMARY_COLUMNS[place:]]
    return columns, rows


def format_times(times: Sequence[float | None]) -> str:
    """Return the mean over the seeds that reached a target, and how many did."""
    reached = [time for time in times if time is not None]
    if not reached:
        return "not reached"
    return format_mean(reached, 1) + (
        f" ({len(reached)} of {len(times)})" if len(reached) < len(times) else ""
    )


def build_summary_rows(runs: Sequence[RunFacts]) -> list[list[str]]:
    """Return a row per group of runs that differ only in the seed; copies of a run count once."""
    return [build_summary_row(label, group) for label, group in group_seeds(runs).items()]


def build_summary_row(label: str, group: Sequence[RunFacts]) -> list[str]:
    """Summarise the runs that have ended, or all of them if none has."""
    ended = [run for run in group if "converged" in run.summary]
    runs, unfinished = ended or group, len(group) - len(ended)

    def average(key: str, digits: int) -> str:
        values = [run.summary[key] for run in runs if is_number(run.summary.get(key))]
        return format_mean(values, digits if max(values, default=0) < 100 else min(digits, 1))

    return [
        label,
        f"{len(runs)} (and {unfinished} unfinished)" if ended and unfinished else str(len(runs)),
        format_accuracy(runs) if ended else format_number(runs[-1].summary.get("test_accuracy")),
        average("test_loss", 4),
        average("updates", 0),
        average("gradients", 0),
        average("mean_staleness", 2),
        average("seconds", 1),
        "virtual" if runs[0].is_virtual else "wall-clock",
    ]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_mean(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean, with a confidence interval from three values on."""
    return format_interval(values, digits) if values else "–"


def format_accuracy(runs: Sequence[RunFacts]) -> str:
    """Return the mean accuracy of the runs that converged, and how many did not."""
    converged = [
        run for run in runs if run.summary.get("converged") and is_number(run.summary.get("test_accuracy"))
    ]
    if not converged:
        return "NC" if any(run.summary["converged"] is False for run in runs) else "–"
    accuracies = [float(run.summary["test_accuracy"]) for run in converged]
    lost = len(runs) - len(converged)
    remark = f" ({lost} of {len(runs)} NC)" if lost else ""
    samples = count_test_samples(converged[0])
    if len(accuracies) > 1 or not samples or not 0 <= accuracies[0] <= 100:
        return format_mean(accuracies) + remark
    low, high = share_interval(accuracies[0], samples)
    return f"{format_number(accuracies[0])} [{format_number(low, 1)}, {format_number(high, 1)}]{remark}"


def count_test_samples(run: RunFacts) -> int:
    try:
        return int(sum(map(sum, run.summary.get("confusion") or [])))
    except (TypeError, ValueError):
        return 0
