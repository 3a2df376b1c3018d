"""The description of a record for the terminal: its results first, its settings last."""

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
from rich.console import Group
from rich.table import Table
from rich.text import Text

from straggler.analysis.tables import build_table, format_number, strip_controls
from straggler.record import Record

BARS = " ▁▂▃▄▅▆▇█"
TARGETS = (10, 20, 50, 80, 90, 95, 98, 99)  # test accuracies in percent
MOST_TARGETS = 3  # the highest that were reached
SCORES = [f"{split}_{score}" for score in ("accuracy", "loss") for split in ("test", "validation", "train")]
JOBS = ("dispatched", "applied", "dropped", "cancelled", "in_flight")
SUMMARISED = {*SCORES, *JOBS, "mean_staleness", "max_staleness", "seconds", "host_seconds", "epochs"}
SUMMARISED |= {"bytes_up", "bytes_down", "updates", "gradients", "status", "id", "error"}
SUMMARISED |= {"weights_sha256", "record"}
HIDDEN_COLUMNS = ("lr", "gradients", "bytes_up", "bytes_down")  # of the curve; the file has them
MOST_ROWS = 20  # of a curve; enough to see its shape


def describe_record(record: Record) -> Group:
    """Return results, curve, staleness, class scores, details and settings of a record for the terminal."""
    facts, settings = record.summary, record.settings
    parts: list[Table | Text] = [Text(f"run {record.path.name}: {record.status}", style="bold")]
    if record.status == "lost":
        parts.append(Text("The process has exited. `straggler resume` continues the run.", style="red"))
    if facts.get("error"):
        parts.append(Text(strip_controls(str(facts["error"])), style="red"))
    names = [f"{settings.get('method') or settings['policy']} × {settings['workers']} workers"]
    names += [str(settings.get(key)) for key in ("dataset", "model", "engine")]
    parts.append(Text(strip_controls(", ".join(names))))
    parts.append(build_table("\nresults", ["", ""], list_results(record)))
    if len(record.curve):
        parts += build_curve_tables(record.curve)
    if len(record.arrivals):
        parts.append(Text("\nstaleness (share of arrivals)", style="bold"))
        parts.append(format_staleness_bars(record.arrivals))
    if isinstance(facts.get("classes"), dict):
        parts.append(build_class_table(facts["classes"]))
    rows = [[key.replace("_", " "), format_number(value, 4)] for key, value in list_details(facts)]
    parts.append(build_table("\ndetails", ["", ""], rows))
    files = {"weights": facts.get("weights_sha256"), "record": facts.get("record")}
    parts += [Text(strip_controls(f"{name} {value}")) for name, value in files.items() if value]
    parts += [Text("\nsettings", style="bold"), Text(strip_controls(record.text.rstrip()))]
    return Group(*parts)


def list_results(record: Record) -> list[list[str]]:
    """Return the results of a run as rows of a name and a value with its unit."""
    facts, rows = record.summary, list[list[str]]()
    metrics = [key for key in facts if key.startswith("test_") and key not in SCORES]
    for key in [*SCORES, *metrics]:
        if facts.get(key) is not None:
            is_percent = key.endswith("_accuracy")
            value = format_number(facts[key], 2 if is_percent else 4, " %" if is_percent else "")
            rows.append([key.replace("_", " "), value])
    if facts.get("converged") is False:
        rows.append(["converged", "no"])
    rows += [[f"time to {target:g} %", f"{time:,.1f} s"] for target, time in list_times(record)]
    rows += [[key, format_number(facts[key])] for key in ("updates", "gradients", "epochs") if facts.get(key)]
    if facts.get("mean_staleness") is not None:
        most = format_number(facts.get("max_staleness"))
        rows.append(["staleness", f"mean {format_number(facts['mean_staleness'])}, largest {most}"])
    if facts.get("seconds") is not None:
        clock = "virtual" if record.settings.get("engine") == "simulator" else "wall-clock"
        rows.append([f"{clock} time", format_number(facts["seconds"], 1, " s")])
    if facts.get("host_seconds") is not None:
        rows.append(["time on this machine", format_number(facts["host_seconds"], 1, " s")])
    if facts.get("bytes_up") is not None:
        up, down = (f"{facts.get(f'bytes_{way}', 0) / 1e6:,.1f} MB {way}" for way in ("up", "down"))
        rows.append(["traffic", f"{up}, {down}"])
    jobs = [f"{format_number(facts[key])} {key.replace('_', ' ')}" for key in JOBS if facts.get(key)]
    return [*rows, ["jobs", ", ".join(jobs)]] if jobs else rows


def list_times(record: Record) -> list[tuple[int, float]]:
    """Return the highest round test accuracies that were reached, with the seconds until then."""
    times = ((target, record.time_to(target)) for target in TARGETS)
    return [(target, time) for target, time in times if time is not None][-MOST_TARGETS:]


def list_details(facts: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return the single values of a summary that are not among the results."""
    for key, value in facts.items():
        is_known = key in SUMMARISED or key.startswith("test_")
        if not is_known and not isinstance(value, dict | list | None):
            yield key, value


def build_curve_tables(curve: pl.DataFrame) -> list[Table]:
    """Return a table of the run and the test set, and one of the other splits."""
    others = [name for name in curve.columns if name.startswith(("train_", "validation_"))]
    tables = [build_curve_table("\ncurve", curve.select(pl.exclude(*HIDDEN_COLUMNS, *others)))]
    return tables + ([build_curve_table("\nother splits", curve.select("epochs", *others))] if others else [])


def build_curve_table(title: str, shown: pl.DataFrame) -> Table:
    rows = [[format_number(value, 3) for value in row] for row in shown.iter_rows()]
    if len(rows) > MOST_ROWS:
        every = len(rows) // 15
        rows = [row for position, row in enumerate(rows) if position % every == 0 or row is rows[-1]]
    return build_table(title, [name.replace("_", " ") for name in shown.columns], rows)


def format_staleness_bars(arrivals: pl.DataFrame) -> Text:
    """Return a histogram on one line, from 0 to the largest staleness."""
    staleness = arrivals.filter(pl.col("decision") != "cancelled")["staleness"]
    most = int(staleness.max() or 0)  # type: ignore[arg-type]
    width = max(1, -(-(most + 1) // 60))
    counts = (staleness // width).value_counts().sort("staleness")
    shares = dict(counts.iter_rows())
    peak = max(shares.values())
    bars = "".join(BARS[-(-8 * shares.get(bin_, 0) // peak)] for bin_ in range(most // width + 1))
    return Text(f"0 {bars} {most}   mean {format_number(staleness.mean())}")


def build_class_table(classes: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [
        [name, *(format_number(100 * scores[key], 1) for key in ("precision", "recall", "f1"))]
        for name, scores in classes.items()
    ]
    return build_table("\nby class (%)", ["class", "precision", "recall", "F1"], rows)
