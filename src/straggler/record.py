"""Record: the files that a run left on disk, readable during the run and after a crash."""

import html
import platform
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from straggler.running.parquet_files import estimate_table, read_parquet
from straggler.running.untrusted_files import (
    MAX_TABLE_BYTES,
    MAX_TOML_BYTES,
    UnsafeFileError,
    is_regular_file,
    list_regular_files,
    open_regular,
    parse_toml,
    read_json,
    read_regular_bytes,
)

if TYPE_CHECKING:
    from torch import Tensor

# Increase this number when a change of the code changes results: finished records are then run again.
RESULTS_VERSION = 1
MAX_WORKERS = 1_000_000
ARRIVALS: dict[str, Any] = {
    "time": pl.Float64,
    "started": pl.Float64,
    "worker": pl.Int32,
    "index": pl.Int64,
    "version": pl.Int64,
    "compute": pl.Float64,
    "delay": pl.Float64,
    "staleness": pl.Int64,
    "gap": pl.Float64,
    "loss": pl.Float64,
    "gradient_norm": pl.Float64,
    "weight_norm": pl.Float64,
    "decision": pl.Enum(["applied", "held", "dropped", "cancelled", "joined", "left"]),
}
PRUNED = "pruned"  # `stopped_by` of a run that a tuning stopped early, which is not the experiment's result
REQUIRED_COLUMNS = {"time", "worker", "decision"}
LOCK_FILE = ".lock"  # locked by the process that writes the folder
LONGEST_HOST_NAME = 1000  # bytes
QUIET_SECONDS = 30.0  # a folder without a writer counts as abandoned after this time


class StragglerVersionWarning(UserWarning):
    """A cached record was made by another version of Straggler."""


class RecordError(RuntimeError):
    """Raised if a folder cannot be read or written as a record."""

    exit_code = 2


class Record:
    """A run's folder. Files are read once and cached; `reload` clears the cache of a run that continues."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not is_regular_file(file := self.path / "experiment.toml"):
            kind = "not a regular file" if file.is_symlink() or file.exists() else "missing"
            raise RecordError(f"{self.path} is not a run: experiment.toml is {kind}.")
        self._final_summary: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"

    def reload(self) -> Self:
        """Clear the cache, so that the next access reads the files again; return the record."""
        path = self.path
        self.__dict__.clear()
        self.__init__(path)  # type: ignore[misc]
        return self

    @cached_property
    def text(self) -> str:
        """The experiment as TOML."""
        return _read_text(self.path / "experiment.toml")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The experiment's settings as a dictionary."""
        file = self.path / "experiment.toml"
        try:
            settings = parse_toml(self.text)
        except ValueError as error:
            raise _unreadable(file, error) from None
        if not {"policy", "workers"} <= settings.keys():
            raise _unreadable(file, "policy or workers is missing")
        workers = settings["workers"]
        if type(workers) is not int or not 1 <= workers <= MAX_WORKERS:
            rule = f"must be a whole number from 1 to {MAX_WORKERS:,}"
            raise _unreadable(file, f"workers = {str(workers)[:60]} {rule}")
        return settings

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, machine, commit and command line of the run."""
        found: dict[str, Any] = _read_json(self.path / "environment.json")
        return found

    @property
    def results_version(self) -> int:
        """The RESULTS_VERSION of the code that made the record; 1 for records that do not state it."""
        try:
            return int(self.environment.get("results_version", 1))
        except RecordError:
            return 1

    @property
    def straggler_version(self) -> str | None:
        """The version of Straggler that made the record; None if unknown."""
        try:
            return str(self.environment["versions"]["straggler"])
        except (RecordError, KeyError, TypeError):
            return None

    @property
    def summary(self) -> dict[str, Any]:
        """The final results, or the progress of a run that continues (read again on every access)."""
        if self._final_summary is not None:
            return self._final_summary
        summary: dict[str, Any] = _read_json(self.path / "summary.json")
        if summary.get("status") in ("finished", "diverged"):
            self._final_summary = summary
        return summary

    @property
    def status(self) -> str:
        """running, finished, diverged, interrupted, failed, or lost (the process was killed)."""
        status = str(self.summary.get("status"))
        killed = status == "running" and not is_being_written(self.path, "summary.json", find_locked_inodes())
        return "lost" if killed else status

    @property
    def ended(self) -> bool:
        """Whether the run reached its end: the budget is used, or the run diverged."""
        return self.summary.get("status") in ("finished", "diverged")

    @cached_property
    def curve(self) -> pl.DataFrame:
        """One row per evaluation."""
        file = self.path / "curve.parquet"
        return read_table(file) if has_file(file) else pl.DataFrame()

    @cached_property
    def history(self) -> pl.DataFrame:
        """One row per arrival, cancelled job, and worker that joined or left, in order.

        Columns that an older version did not write are null.
        """
        file = self.path / "arrivals.parquet"
        is_merged = has_file(file)
        parts = [file] if is_merged else list_regular_files(self.path / "arrivals.parts", ".parquet")
        tables = [_read_arrivals(part, self.path) for part in parts]
        return pl.concat(tables, how="diagonal") if tables else pl.DataFrame(schema=ARRIVALS)

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """One row per arrival and per cancelled job."""
        return self.history.filter(~pl.col("decision").is_in(["joined", "left"]))

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """One row per arrival."""
        return self.jobs.filter(pl.col("decision") != "cancelled")

    @property
    def events(self) -> list[dict[str, Any]]:
        """Workers that crashed or hung: time, worker and reason (`what`)."""
        file = self.path / "events.json"
        events = _read_json(file, list) if has_file(file) else []
        return [event for event in events if isinstance(event, dict)]

    def estimate_memory(self) -> int:
        """Return an upper bound of the bytes that all tables and snapshots of the record take in memory."""
        files = [self.path / name for name in ("curve.parquet", "arrivals.parquet")]
        files += list_regular_files(self.path / "arrivals.parts", ".parquet")
        found = sum(estimate_table(file, self.path) for file in files if is_regular_file(file))
        snapshots = self.path / "snapshots.safetensors"
        return found + (3 * snapshots.lstat().st_size if is_regular_file(snapshots) else 0)

    def weights(self) -> "dict[str, Tensor]":
        """Read the final model, as `module.load_state_dict` takes it."""
        return _read_tensors(self.path / "weights.safetensors")

    def snapshots(self) -> "dict[str, Tensor]":
        """Read the flat weights along the run: `weights` (a row each), `buffers`, `updates`, `seconds`."""
        return _read_tensors(self.path / "snapshots.safetensors")

    def time_to(self, accuracy: float) -> float | None:
        """Return the seconds until an evaluation first reached this test accuracy (percent)."""
        if "test_accuracy" not in self.curve.columns:
            return None
        reached = self.curve.filter(pl.col("test_accuracy") >= accuracy)
        return float(reached["seconds"][0]) if len(reached) else None

    def _repr_html_(self) -> str:
        """Show the summary and the curve in a notebook, as they are now."""
        if not self.ended:
            self.reload()
        shown = ("status", "test_accuracy", "test_loss", "updates", "epochs", "seconds", "mean_staleness")
        values = {key: self.summary.get(key) for key in shown}
        cells = "".join(
            f"<tr><th>{key.replace('_', ' ')}</th><td>{html.escape(_format_cell(value))}</td></tr>"
            for key, value in values.items()
        )
        return f"<b>{html.escape(str(self.path))}</b><table>{cells}</table>{_draw_curve_svg(self.curve)}"


def load(path: Path | str) -> Record:
    """Return the record in the folder of a run, finished or not."""
    return Record(path)


def find_finished_record(folder: Path) -> Record | None:
    """Return the record of a run that has ended, unless it was pruned or is of another RESULTS_VERSION."""
    try:
        record = Record(folder)
        is_whole = record.ended and record.summary.get("stopped_by") != PRUNED
        return record if is_whole and record.results_version == RESULTS_VERSION else None
    except RecordError:
        return None


def has_other_results_version(folder: Path) -> bool:
    """Return whether a folder has a record, finished or not, of another RESULTS_VERSION."""
    try:
        return Record(folder).results_version != RESULTS_VERSION
    except RecordError:
        return False


def find_locked_inodes() -> set[int] | None:
    """Return the inodes of all files that a process of this machine has locked; None if unknown."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        return {int(line.split()[5].rsplit(":", 1)[1]) for line in lines if "->" not in line}
    except (OSError, ValueError, IndexError):
        return None


def is_being_written(folder: Path, file: str, locked: set[int] | None) -> bool:
    """Return whether a process of this machine has locked the folder.

    A folder that another machine writes, or whose locks are unknown, counts if this file is new.
    """
    try:
        lock = folder / LOCK_FILE
        if locked is not None and lock.lstat().st_ino in locked:
            return True
        if locked is not None and read_regular_bytes(lock, LONGEST_HOST_NAME) == platform.node().encode():
            return False
    except (OSError, UnsafeFileError):
        pass
    try:  # a time in the future, as after a copy from a machine with another clock, says nothing
        return abs(time.time() - (folder / file).lstat().st_mtime) < QUIET_SECONDS
    except OSError:
        return False


def has_file(path: Path) -> bool:
    """Return whether something has this name, be it a file that can be read or not."""
    return path.is_symlink() or path.exists()


def read_table(path: Path, within: Path | None = None) -> pl.DataFrame:
    """Read a Parquet file that another process may replace at any moment, or that a stranger made."""
    try:
        return read_parquet(path, within)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _read_arrivals(path: Path, folder: Path) -> pl.DataFrame:
    table = read_table(path, folder)
    if missing := REQUIRED_COLUMNS - set(table.columns):
        raise _unreadable(path, f"the column {sorted(missing)[0]} is missing")
    absent = [pl.lit(None, kind).alias(name) for name, kind in ARRIVALS.items() if name not in table.columns]
    try:
        return table.with_columns(*absent, pl.col("decision").cast(ARRIVALS["decision"])).select(
            *ARRIVALS, pl.exclude(*ARRIVALS)
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _unreadable(path, error) from None


def _read_json(path: Path, kind: type = dict) -> Any:
    try:
        facts = read_json(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(facts, kind):
        raise _unreadable(path, "not a JSON object" if kind is dict else "not a JSON array")
    return facts


def _read_text(path: Path) -> str:
    try:
        return read_regular_bytes(path, MAX_TOML_BYTES).decode()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _read_tensors(path: Path) -> "dict[str, Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file  # imports torch, which most readers do not need

    try:
        with open_regular(path, MAX_TABLE_BYTES) as (descriptor, _):
            tensors: dict[str, Tensor] = load_file(f"/dev/fd/{descriptor}")
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(path, error) from None
    return tensors


def _unreadable(path: Path, reason: object) -> RecordError:
    text = (str(reason).splitlines() or [type(reason).__name__])[0]
    return RecordError(f"{path} cannot be read: {text[:300]}. Run it again with --force.")


def _format_cell(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def _draw_curve_svg(curve: pl.DataFrame) -> str:
    """Return a small line chart of test accuracy (or test loss) over time; nothing without two points."""
    column = next((name for name in ("test_accuracy", "test_loss") if name in curve.columns), None)
    if column is None or len(points := curve.select("seconds", column).drop_nulls()) < 2:
        return ""
    low, high = points.min().row(0), points.max().row(0)
    spans = [(top - bottom) or 1.0 for bottom, top in zip(low, high, strict=True)]
    line = " ".join(
        f"{10 + 280 * (x - low[0]) / spans[0]:.1f},{90 - 80 * (y - low[1]) / spans[1]:.1f}"
        for x, y in points.iter_rows()
    )
    caption = f"{column.replace('_', ' ')}: {low[1]:.4g} to {high[1]:.4g} in {high[0]:,.4g} s"
    return (
        f'<svg width="300" height="115" role="img"><title>{caption}</title>'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f'<text x="10" y="110" font-size="11" fill="currentColor">{caption}</text></svg>'
    )
