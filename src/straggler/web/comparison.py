"""What differs between runs that are shown together: their settings, their clocks, and copies."""

from collections.abc import Sequence
from typing import Any

from straggler.analysis.labels import COMPONENTS, expand_settings, group_seeds
from straggler.web.gallery import has_staleness
from straggler.web.run_facts import RunFacts

MAX_TEXT = 200  # letters of one value


def compare_settings(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """Return a table of the settings in which runs differ, and the settings that all of them share."""
    groups = group_seeds(runs)
    firsts = [group[0] for group in groups.values()]
    expanded = [{"method": run.method, **expand_settings(run.settings)} for run in firsts]
    keys = dict.fromkeys(key for settings in expanded for key in settings if key != "seed")
    texts = {key: [format_value(settings.get(key)) for settings in expanded] for key in keys}
    methods = texts["method"]
    differing = [key for key, values in texts.items() if len(set(values)) > 1]
    follow = {key for key in differing if key != "method" and follows_method(methods, texts[key])}
    of_method = {key for key in follow if key in COMPONENTS or not any(key in run.settings for run in firsts)}
    shown = [key for key in differing if key not in of_method]
    return {
        "labels": list(groups),
        "ids": [[run.id for run in group] for group in groups.values()],
        "keys": [key.replace("_", " ") for key in shown],
        "values": [texts[key] for key in shown],
        "same": [[key.replace("_", " "), values[0]] for key, values in texts.items() if key not in differing],
    }


def follows_method(methods: Sequence[str], values: Sequence[str]) -> bool:
    """Return whether the method decides a value, so that naming the method is enough."""
    return len(set(zip(methods, values, strict=True))) == len(set(methods))


def format_value(value: Any) -> str:
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {"": "none", "None": "–"}.get(text, text)[:MAX_TEXT]


def describe_comparison(runs: Sequence[RunFacts]) -> list[str]:
    """Return sentences on what a reader could misread: different clocks, and copies of a run."""
    notes = []
    if len({run.is_virtual for run in runs}) > 1:
        notes.append(
            "Some of these runs are simulated and some ran in real time. Virtual and wall-clock seconds "
            "cannot be compared: compare over epochs, updates or gradients."
        )
    groups = group_seeds(runs)
    if any(len(run.jobs) for run in runs) and not has_staleness(groups):
        notes.append("No gradient is stale, so there are no figures of staleness and gap.")
    counted = sum(map(len, groups.values()))
    if copies := len(runs) - counted:
        what = "1 run is a copy of another one" if copies == 1 else f"{copies} runs are copies of others"
        notes.append(f"{what} and counts once.")
    return notes
