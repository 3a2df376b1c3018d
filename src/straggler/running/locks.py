"""Who holds which folder: a run says that it is running, and is not if it was killed."""

import time
from pathlib import Path

QUIET_SECONDS = 30.0  # after which what nobody holds is taken for dead


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
