"""Recorder: writes a record while the run happens, so that every file on disk is complete."""

import hashlib
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
from straggler.running.untrusted_files import is_regular_file

if TYPE_CHECKING:
    from torch import Tensor

FLUSH_SECONDS = 0.5  # between writes of arrivals; a killed run may lose this much
RECORD_SUFFIXES = {".toml", ".json", ".parquet", ".safetensors", ".tmp"}


@dataclass
class RecorderState:
    """The state of a recorder in a checkpoint, to delete rows recorded after it."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)  # the SHA-256 of each part file of arrivals
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
        device: str = "cpu",
    ) -> None:
        self.path, self._device = folder, device
        self._text, self._command, self._resumed, self._force = text, command, resumed, force
        self._state = RecorderState()
        self._reported: set[str] = set()  # evaluations that callbacks got before the process was killed
        self._rows: dict[str, list[Any]] = {column: [] for column in ARRIVALS}
        self._flushed = time.monotonic()
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        if (parts := self.path / "arrivals.parts").is_symlink():  # files in it are deleted
            raise RecordError(f"{parts} is a link. Replace it by the folder that it stands for.")
        self._lock = lock_folder(self.path, "--out")
        if not self._force and find_finished_record(self.path) is not None:
            self._lock.release()
            raise RecordError(f"Another process has finished the run {self.path} in the meantime.")
        try:
            self._reported = self._read_reported()
            self._delete_temporary_files()
            self._clear_folder() if self._resumed is None else self._return_to(self._resumed)
        except BaseException:
            self._lock.release()
            raise
        self._write_events()
        write_json_atomically(
            self.path / "environment.json", describe_environment(self._command) | {"device": self._device}
        )
        self.write_summary({"status": "running"})
        write_text_atomically(self.path / "experiment.toml", self._text)  # last: now the folder is a record
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        assert self._lock is not None
        try:
            self.flush()
            if kind is not None:
                status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
                summary = Record(self.path).summary
                self.write_summary(summary | {"status": status, "error": f"{kind.__name__}: {error}"})
        except Exception:
            if kind is None:
                raise  # otherwise the error of the block says more, such as a full disk
        finally:
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

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The evaluations so far."""
        return self._state.curve

    def add_evaluation(self, row: Mapping[str, Any], write: bool = True) -> bool:
        """Add a row to the curve; return whether it is new, not repeated after the process was killed."""
        self._state.curve.append(dict(row))
        if write:
            self.write_curve()
        return describe_row(row) not in self._reported

    def write_curve(self) -> None:
        """Write all evaluations."""
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
        part = folder / f"{len(self._state.parts):06d}.parquet"
        write_parquet_atomically(part, table, sync=True)  # a checkpoint relies on it
        self._state.parts.append(hash_part(part) or "")
        self._rows = {column: [] for column in ARRIVALS}

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the curve, the merged arrivals and the final summary, and delete the checkpoints."""
        self.flush()
        if self.curve:
            self.write_curve()
        write_parquet_atomically(self.path / "arrivals.parquet", Record(self.path).history)
        self.write_summary(summary)  # from here on the run is finished; before, a killed run resumes
        for checkpoint in self.path.glob("checkpoint-*.safetensors"):
            checkpoint.unlink()
        shutil.rmtree(self.path / "arrivals.parts", ignore_errors=True)

    def state(self) -> RecorderState:
        """Write the latest arrivals and return the state for a checkpoint."""
        self.flush()
        return self._state

    def _read_reported(self) -> set[str]:
        """Return the evaluations in the folder, if they can be read."""
        if self._resumed is None:
            return set()
        try:
            return {describe_row(row) for row in Record(self.path).curve.to_dicts()}
        except RecordError:
            return set()

    def _delete_temporary_files(self) -> None:
        """Delete what processes that were killed had not finished to write."""
        for file in [*self.path.glob(".*.tmp"), *self.path.glob("arrivals.parts/.*.tmp")]:
            file.unlink(missing_ok=True)

    def _return_to(self, state: RecorderState) -> None:
        """Delete everything that was recorded after a checkpoint."""
        for number, expected in enumerate(state.parts):
            part = self.path / "arrivals.parts" / f"{number:06d}.parquet"
            if hash_part(part) != expected:
                raise RecordError(
                    f"{part} is missing or damaged, so the record of the run cannot be completed. "
                    f"Restore the file, or pass --force to start over."
                )
        found = self._read_events()  # it may have more than the checkpoint: failures did happen
        events = found if found[: len(state.events)] == state.events else state.events
        self._state = RecorderState(state.curve, state.parts, events + self.events)
        (self.path / "curve.parquet").unlink(missing_ok=True)
        if state.curve:
            self.write_curve()
        (self.path / "arrivals.parquet").unlink(missing_ok=True)  # the process was killed while it finished
        for part in (self.path / "arrivals.parts").glob("*.parquet"):
            if not part.stem.isdecimal() or int(part.stem) >= len(state.parts):
                part.unlink()

    def _read_events(self) -> list[dict[str, Any]]:
        """Return the failures in the folder; none if the file is damaged."""
        try:
            events = Record(self.path).events
            return events if all(set(event) == {"time", "worker", "what"} for event in events) else []
        except (RecordError, TypeError):
            return []

    def _write_events(self) -> None:
        if self._lock is not None and self.events:
            write_json_atomically(self.path / "events.json", self.events)

    def _clear_folder(self) -> None:
        """Delete the files of an earlier run and its analyses, but not the user's notes and figures."""
        for file in self.path.iterdir():
            if file.suffix in RECORD_SUFFIXES and file.is_file():
                file.unlink()
        shutil.rmtree(self.path / "arrivals.parts", ignore_errors=True)


def describe_row(row: Mapping[str, Any]) -> str:
    """Return the values of an evaluation as text: also NaN is equal to itself."""
    return repr({name: value for name, value in row.items() if value is not None})


def hash_part(part: Path) -> str | None:
    """Return the SHA-256 of a file of arrivals; None if it is not a regular file."""
    return hashlib.sha256(part.read_bytes()).hexdigest() if is_regular_file(part) else None


def lock_folder(folder: Path, option: str) -> FileLock:
    """Create the folder if needed and lock it for this process; `option` names it in errors."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        (folder / LOCK_FILE).write_text(platform.node())  # readers on this machine trust the lock
    except Timeout:
        raise RecordError(
            f"Another process is writing {folder}. Wait until it ends, or use another {option}."
        ) from None
    except OSError as error:
        lock.release()
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
        "processor": describe_processor(),
        "cores": os.cpu_count(),
        "git": find_git_commit(),
    }


def describe_processor() -> str:
    """Return the name of the processor and the instructions that torch uses, by which kernels round."""
    from torch.backends import cpu

    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({cpu.get_cpu_capability()})"


def find_git_commit() -> str | None:
    """Return the commit of the current folder, with a + if there are uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
