"""What goes on: who holds which folder, and what a study or sweep says of its own progress."""

import json
import time
from pathlib import Path
from typing import Any

__all__ = ["PROGRESS", "held_files", "progress_of", "still_going"]

PROGRESS = "progress.json"  # that a study or sweep keeps in its results
QUIET_SECONDS = 30.0  # after which what nobody holds is taken for dead
MOST_BYTES = 5_000_000  # of a progress that is read
MOST_SHOWN = 64  # runs at hand, and failures
COUNTS = ("runs", "done", "failed", "missing", "part", "left")
STATES = ("running", "finished", "interrupted", "failed")


def held_files() -> set[int] | None:
    """Inodes of the files that a process of this machine holds locked; None where nobody can tell."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        return {int(line.split()[5].rsplit(":", 1)[1]) for line in lines if "->" not in line}
    except (OSError, ValueError, IndexError):
        return None


def still_going(folder: Path, file: str, held: set[int] | None) -> bool:
    """Whether somebody holds a folder, or at least wrote this file in it a moment ago."""
    try:
        if held is not None and (folder / ".lock").stat().st_ino in held:
            return True
    except OSError:
        pass
    try:
        return time.time() - (folder / file).stat().st_mtime < QUIET_SECONDS
    except OSError:
        return False


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
