"""Recorder: writes a record while the run happens, so that every file on disk is complete."""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl
from filelock import FileLock, Timeout

from straggler.record import (
    ARRIVALS,
    LOCK_FILE,
    RESULTS_VERSION,
    Record,
    RecordError,
    find_finished_record,
)
from straggler.running.atomic_files import (
    write_json_atomically,
    write_parquet_atomically,
    write_tensors_atomically,
    write_text_atomically,
)

if TYPE_CHECKING:
    from torch import Tensor

FLUSH_SECONDS = 0.5  # between writes of arrivals; a killed run may lose this much
RECORD_SUFFIXES = {".toml", ".json", ".parquet", ".safetensors", ".tmp"}


@dataclass
class RecorderState:
    """The state of a recorder in a checkpoint, to delete rows recorded after it."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    parts: int = 0  # number of part files of arrivals
    events: list[dict[str, Any]] = field(default_factory=list)  # failures of workers


class Recorder:
    """Writes the files of one record. The context manager locks the folder and records how the run ended."""

    def __init__(
        self,
        folder: Path,
        text: str,
        command: list[str],
        resumed: RecorderState | None = None,
        force: bool = False,
    ) -> None:
        self.path = folder
        self._text, self._command, self._resumed, self._force = text, command, resumed, force
        self._state = RecorderState()
        self._rows: dict[str, list[Any]] = {column: [] for column in ARRIVALS}
        self._flushed = time.monotonic()
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        self._lock = lock_folder(self.path, "--out")
        if not self._force and find_finished_record(self.path) is not None:
            self._lock.release()
            raise RecordError(f"Another process has finished the run {self.path} in the meantime.")
        if self._resumed is None:
            self._clear_folder()
        else:
            self._return_to(self._resumed)
        self._write_events()
        write_json_atomically(self.path / "environment.json", describe_environment(self._command))
        self.write_summary({"status": "running"})
        write_text_atomically(self.path / "experiment.toml", self._text)  # last: now the folder is a record
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.flush()
        if kind is not None:
            status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            summary = Record(self.path).summary
            self.write_summary(summary | {"status": status, "error": f"{kind.__name__}: {error}"})
        assert self._lock is not None
        self._lock.release()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Failures of workers so far."""
        return self._state.events

    def add_arrival(self, **row: Any) -> None:
        """Add a row to the history; columns without a value are null."""
        for column, values in self._rows.items():
            values.append(row.get(column))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def add_event(self, time: float, worker: int, reason: str) -> None:
        """Record a failure of a worker. The engine may report one before the folder exists."""
        self._state.events.append({"time": time, "worker": worker, "what": reason})
        self._write_events()

    def add_evaluation(self, row: Mapping[str, Any]) -> None:
        """Add a row to the curve."""
        self._state.curve.append(dict(row))
        table = pl.DataFrame(self._state.curve, infer_schema_length=None)
        write_parquet_atomically(self.path / "curve.parquet", table)

    def write_summary(self, facts: Mapping[str, Any]) -> None:
        write_json_atomically(self.path / "summary.json", facts)

    def write_tensors(self, name: str, tensors: "dict[str, Tensor]") -> None:
        write_tensors_atomically(self.path / name, tensors)

    def flush(self) -> None:
        """Write the latest arrivals as another part file."""
        self._flushed = time.monotonic()
        if not self._rows["time"]:
            return
        folder = self.path / "arrivals.parts"
        folder.mkdir(exist_ok=True)
        table = pl.DataFrame(self._rows, schema=ARRIVALS)
        write_parquet_atomically(folder / f"{self._state.parts:06d}.parquet", table)
        self._state.parts += 1
        self._rows = {column: [] for column in ARRIVALS}

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Merge the parts into arrivals.parquet, write the final summary, and delete the checkpoints."""
        self.flush()
        write_parquet_atomically(self.path / "arrivals.parquet", Record(self.path).history)
        self.write_summary(summary)  # from here on the run is finished; before, a killed run resumes
        for checkpoint in self.path.glob("checkpoint-*.safetensors"):
            checkpoint.unlink()
        shutil.rmtree(self.path / "arrivals.parts", ignore_errors=True)

    def state(self) -> RecorderState:
        """Write the latest arrivals and return the state for a checkpoint."""
        self.flush()
        return self._state

    def _return_to(self, state: RecorderState) -> None:
        """Delete everything that was recorded after a checkpoint."""
        self._state = RecorderState(state.curve, state.parts, state.events + self._state.events)
        (self.path / "arrivals.parquet").unlink(missing_ok=True)  # the process was killed while it finished
        for part in (self.path / "arrivals.parts").glob("*.parquet"):
            if int(part.stem) >= state.parts:
                part.unlink()

    def _write_events(self) -> None:
        if self._lock is not None and self.events:
            write_json_atomically(self.path / "events.json", self.events)

    def _clear_folder(self) -> None:
        """Delete the files of an earlier run and its analyses, but not the user's notes and figures."""
        for file in self.path.iterdir():
            if file.suffix in RECORD_SUFFIXES and file.is_file():
                file.unlink()
        shutil.rmtree(self.path / "arrivals.parts", ignore_errors=True)


def lock_folder(folder: Path, option: str) -> FileLock:
    """Create the folder if needed and lock it for this process; `option` names it in errors."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(
            f"Another process is writing {folder}. Wait until it ends, or use another {option}."
        ) from None
    except OSError as error:
        raise RecordError(
            f"{folder} cannot be written ({error.strerror}). Choose another folder with {option}."
        ) from None
    return lock


def describe_environment(command: list[str]) -> dict[str, Any]:
    """Return versions, machine, commit and command line, which help to repeat a run elsewhere."""
    packages = ("straggler", "torch", "numpy", "polars", "scikit-learn")
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "results_version": RESULTS_VERSION,
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "git": find_git_commit(),
    }


def find_git_commit() -> str | None:
    """Return the commit of the current folder, with a + if there are uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
