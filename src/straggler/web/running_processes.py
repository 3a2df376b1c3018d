"""What a study or sweep says of its own progress."""

import json
from pathlib import Path
from typing import Any

PROGRESS = "progress.json"  # that a study or sweep keeps in its results
MOST_BYTES = 5_000_000  # of a progress that is read
MOST_SHOWN = 64  # runs at hand, and failures
COUNTS = ("runs", "done", "failed", "missing", "part", "left")
STATES = ("running", "finished", "interrupted", "failed")


def progress_of(folder: Path) -> dict[str, Any]:
    """A study's own word on how far it is, checked, for the file may hold anything."""
    row: dict[str, Any] = {"name": folder.name, "status": "damaged", "at_hand": [], "failures": []}
    try:
        file = folder / PROGRESS
        said = json.loads(file.read_text()) if file.stat().st_size <= MOST_BYTES else None
    except (OSError, ValueError):
        return row
    if not isinstance(said, dict) or said.get("status") not in STATES:
        return row
    row |= {"status": said["status"], "started": text(said.get("started"))}
    row |= {key: counted(said.get(key)) for key in COUNTS}
    row |= {
        key: [run_row(run) for run in listed(said.get(key))[:MOST_SHOWN]] for key in ("at_hand", "failures")
    }
    return row | {"ids": [name for name in listed(said.get("ids")) if isinstance(name, str)]}


def run_row(run: Any) -> dict[str, Any]:
    """A run at hand, or one that failed."""
    said = run if isinstance(run, dict) else {}
    return {key: text(said.get(key)) for key in ("id", "what", "reason")} | {
        "part": counted(said.get("part"))
    }


def text(value: Any) -> str:
    return value[:500] if isinstance(value, str) else ""


def counted(value: Any) -> float | None:
    """A number from 0 on."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return value if good else None


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
