"""Where a run took place: versions, machine, commit."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any


def environment(command: list[str]) -> dict[str, Any]:
    """What one needs to know to run it again elsewhere."""
    packages = ("straggler", "torch", "numpy", "polars", "scikit-learn")
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "git": git_commit(),
    }


def git_commit() -> str | None:
    """The commit of the folder one stands in, with a + if there are changes."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip() or None
