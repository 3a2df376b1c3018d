"""A sweep's word on its progress: a small file beside its results, for those who watch from outside."""

import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from straggler.running.atomic_files import write_json_atomically
from straggler.running.recorder import lock_folder
from straggler.sweeps.progress import SweepProgress

WRITE_SECONDS = 0.5  # how far who watches lags behind


class ProgressFile:
    """Keeps `progress.json` up to date; a sweep that is killed is known by the lock that nobody holds."""

    def __init__(self, folder: Path, tally: SweepProgress) -> None:
        self.folder, self.tally = folder, tally
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._written = 0.0

    def __enter__(self) -> Self:
        self._lock = lock_folder(self.folder, "--results")
        self._write("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = "interrupted" if kind is KeyboardInterrupt else "failed"
        self._write(stopped if kind else "finished")
        self._lock.release()

    def renew(self) -> None:
        """Say how it stands, unless that was said a moment ago."""
        if time.monotonic() - self._written > WRITE_SECONDS:
            self._write("running")

    def _write(self, status: str) -> None:
        self._written = time.monotonic()
        facts = {"status": status, "started": self._started, **self.tally.facts()}
        write_json_atomically(self.folder / "progress.json", facts)
