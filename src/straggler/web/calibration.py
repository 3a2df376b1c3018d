"""What a simulation fitted to a real run predicts, beside what was measured."""

import json
from collections.abc import Mapping
from typing import Any

from straggler.analysis.tables import format_number
from straggler.web.figure import Figure, colour, numbers
from straggler.web.run_facts import RunFacts
from straggler.web.staleness import axes


def calibration(runs: Mapping[str, RunFacts]) -> Figure | None:
    """Of the first run that was calibrated: the staleness, and in words the rest."""
    for run in runs.values():
        file = run.record.path / "calibration.json"
        if file.is_file():
            return picture(json.loads(file.read_text()))
    return None


def picture(found: Mapping[str, Any]) -> Figure:
    traces = []
    for position, kind in enumerate(("measured", "predicted")):
        mean = format_number(found[kind]["mean staleness"])
        traces.append(
            {
                "type": "bar",
                "name": f"{kind} (mean {mean})",
                "x": numbers(row["staleness"] for row in found["staleness"]),
                "y": numbers(100 * row[kind] for row in found["staleness"]),
                "marker": {"color": colour(position)},
                "hovertemplate": "staleness %{x}: %{y:.1f} %<extra></extra>",
            }
        )
    layout = axes("staleness (updates)", "share of gradients (%)")
    return Figure("calibration", "Predicted beside measured", words(found), traces, layout)


def words(found: Mapping[str, Any]) -> str:
    """The rates, and where a job's time goes."""
    measured, predicted = (found[kind]["updates per second"] for kind in ("measured", "predicted"))
    parts = found["parts"]
    shares = ", ".join(
        f"{1000 * sum(row[name] for row in parts) / len(parts):.1f} ms {name}"
        for name in ("compute", "delay", "transport", "server")
    )
    return (
        f"A simulation with the run's durations predicts {format_number(predicted)} updates per second, "
        f"{format_number(measured)} measured. A job is, on average over the workers, {shares}."
    )
