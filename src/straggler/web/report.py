"""One file that shows runs and studies: what was run, what came out, how to run it again."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from plotly.offline import get_plotlyjs

from straggler.analysis.intervals import format_interval, share_interval
from straggler.analysis.tables import format_number
from straggler.web.gallery import gallery
from straggler.web.run_facts import RunFacts, format_command, label_runs
from straggler.web.study_page import StudyPage

STATIC = Path(__file__).parent / "static"
SUMMARY_COLUMNS = ["run", "seeds", "test accuracy (%)", "test loss"]
SUMMARY_COLUMNS += ["updates", "gradients", "staleness", "time (s)"]
VERSIONS = ("straggler", "torch", "numpy")


@lru_cache(maxsize=1)
def templates() -> Environment:
    found = Environment(
        loader=PackageLoader("straggler.web"), autoescape=select_autoescape(default=True), trim_blocks=True
    )
    found.filters["number"] = format_number
    return found


def render(template: str, **values: Any) -> str:
    return templates().get_template(template).render(**values)


def render_html_report(
    runs: Sequence[RunFacts], studies: Sequence[StudyPage] = (), embedded: bool = True
) -> str:
    """The report; embedded, it needs nothing but itself."""
    figures = [figure.spec() for figure in gallery(runs)] if runs else []
    scripts = [get_plotlyjs()] if figures else []
    scripts += [read("draw.js"), read("report.js")]
    return render(
        "report.html",
        title=format_title(runs, studies),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=read("style.css") if embedded else None,
        scripts=scripts if embedded else [],
        runs=[describe_rerun(run, label) for run, label in zip(runs, label_runs(runs), strict=True)],
        columns=SUMMARY_COLUMNS,
        rows=build_summary_rows(runs),
        studies=[study.read() for study in studies],
        figures=figures,
        data=dump_json(figures),
        trouble=[f"{thing.path.name}: {line}" for thing in studies for line in thing.trouble]
        + [f"{run.id}: {line}" for run in runs for line in run.trouble],
    )


def read(name: str) -> str:
    return (STATIC / name).read_text()


def format_title(runs: Sequence[RunFacts], studies: Sequence[StudyPage]) -> str:
    names = [study.name for study in studies]
    if len(runs) == 1:
        names.append(
            f"{runs[0].method} × {runs[0].settings.get('workers')}, {runs[0].settings.get('dataset')}"
        )
    elif runs:
        names.append(f"{len(runs)} runs")
    return "Straggler: " + ", ".join(names)


def dump_json(value: Any) -> str:
    """JSON that may stand within a page's script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "")


def describe_rerun(run: RunFacts, label: str) -> dict[str, Any]:
    """What one needs to run it again."""
    environment = run.environment
    command = environment.get("command")
    given = [str(word) for word in command] if isinstance(command, list) else []
    versions = environment.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    return {
        "label": label,
        "id": run.id,
        "status": run.status,
        "error": run.summary.get("error"),
        "command": format_command(run.rerun_command()),
        "given": format_command(["straggler", *given[1:]]) if len(given) > 1 and not run.remark else "",
        "remark": run.remark,
        "toml": run.text,
        "facts": {
            "started": environment.get("started"),
            "git": environment.get("git"),
            "python": environment.get("python"),
            **{name: versions.get(name) for name in VERSIONS},
            "machine": environment.get("platform"),
            "cores": environment.get("cores"),
            "weights (SHA-256)": run.summary.get("weights_sha256"),
        },
    }


def build_summary_rows(runs: Sequence[RunFacts]) -> list[list[str]]:
    """A row per group of runs that differ in nothing but the seed."""
    groups: dict[str, list[RunFacts]] = {}
    for run, label in zip(runs, label_runs(runs), strict=True):
        groups.setdefault(label, []).append(run)
    return [summary_row(label, group) for label, group in groups.items()]


def summary_row(label: str, group: Sequence[RunFacts]) -> list[str]:
    """Of those that have ended, if any has."""
    over = [run for run in group if "converged" in run.summary]
    runs, more = over or group, len(group) - len(over)

    def cell(key: str, digits: int) -> str:
        values = [run.summary[key] for run in runs if isinstance(run.summary.get(key), int | float)]
        few = digits if max(values, default=0) < 100 else min(digits, 1)  # large ones need no decimals
        return format_interval(values, few) if values else "–"

    whole = [cell(key, 0) for key in ("updates", "gradients")]
    return [
        label,
        f"{len(runs)} (and {more} unfinished)" if over and more else str(len(runs)),
        accuracy_cell(runs, bool(over)),
        cell("test_loss", 4),
        *whole,
        cell("mean_staleness", 2),
        cell("seconds", 1),
    ]


def accuracy_cell(runs: Sequence[RunFacts], over: bool) -> str:
    """Mean ± interval over the seeds that learnt; one run has the interval of its test set; NC is said."""
    learnt = [
        run
        for run in runs
        if run.summary.get("converged") and isinstance(run.summary.get("test_accuracy"), int | float)
    ]
    if not over:  # they go on: what was seen last
        return format_number(runs[-1].summary.get("test_accuracy"))
    if not learnt:
        return "NC" if any(run.summary["converged"] is False for run in runs) else "–"
    accuracies = [float(run.summary["test_accuracy"]) for run in learnt]
    missed = len(runs) - len(learnt)
    remark = f" ({missed} of {len(runs)} NC)" if missed else ""
    samples = counted_on(learnt[0])
    if len(accuracies) > 1 or not samples or not 0 <= accuracies[0] <= 100:
        return format_interval(accuracies) + remark
    low, high = share_interval(accuracies[0], samples)
    return f"{format_number(accuracies[0])} [{format_number(low, 1)}, {format_number(high, 1)}]{remark}"


def counted_on(run: RunFacts) -> int:
    """How many the accuracy was counted on."""
    try:
        return int(sum(map(sum, run.summary.get("confusion") or [])))
    except (TypeError, ValueError):
        return 0
