"""Record: the files that a run left on disk, readable during the run and after a crash."""

import html
import json
import time
import tomllib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from torch import Tensor

# Increase this number when a change of the code changes results: finished records are then run again.
RESULTS_VERSION = 1

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
REQUIRED_COLUMNS = {"time", "worker", "decision"}
LOCK_FILE = ".lock"  # locked by the process that writes the folder
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
        if not (self.path / "experiment.toml").is_file():
            raise RecordError(f"{self.path} is not a run: experiment.toml is missing.")
        self._final_summary: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"

    def reload(self) -> None:
        """Clear the cache, so that the next access reads the files again."""
        path = self.path
        self.__dict__.clear()
        self.__init__(path)  # type: ignore[misc]

    @cached_property
    def text(self) -> str:
        """The experiment as TOML."""
        return _read_text(self.path / "experiment.toml")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The experiment's settings as a dictionary."""
        try:
            settings = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise _unreadable(self.path / "experiment.toml", error) from None
        if not {"policy", "workers"} <= settings.keys():
            raise _unreadable(self.path / "experiment.toml", "policy or workers is missing")
        return settings

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, machine, commit and command line of the run."""
        return _read_json(self.path / "environment.json")

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
            found = self.environment["versions"]["straggler"]
        except (RecordError, KeyError, TypeError):
            return None
        return str(found)

    @property
    def summary(self) -> dict[str, Any]:
        """The final results, or the progress of a run that continues (read again on every access)."""
        if self._final_summary is not None:
            return self._final_summary
        summary = _read_json(self.path / "summary.json")
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
        return read_table(file) if file.is_file() else pl.DataFrame()

    @cached_property
    def history(self) -> pl.DataFrame:
        """One row per arrival, cancelled job, and worker that joined or left, in order.

        Columns that an older version did not write are null.
        """
        file = self.path / "arrivals.parquet"
        parts = [file] if file.is_file() else sorted((self.path / "arrivals.parts").glob("*.parquet"))
        tables = [_read_arrivals(part) for part in parts]
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
        try:
            return json.loads(_read_text(file)) if file.is_file() else []
        except ValueError as error:
            raise _unreadable(file, error) from None

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
        """Show the summary and the curve in a notebook."""
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
    """Return the record of a run that has ended, unless its results are of another RESULTS_VERSION."""
    try:
        record = Record(folder)
        return record if record.ended and record.results_version == RESULTS_VERSION else None
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
    """Return whether a process has locked the folder, or wrote this file in it a moment ago."""
    try:
        if locked is not None and (folder / LOCK_FILE).stat().st_ino in locked:
            return True
    except OSError:
        pass
    try:
        return time.time() - (folder / file).stat().st_mtime < QUIET_SECONDS
    except OSError:
        return False


def read_table(path: Path) -> pl.DataFrame:
    """Read a Parquet file that another process may replace at any moment."""
    try:
        return pl.read_parquet(path.read_bytes())  # if it got the path, polars would open the file twice
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _unreadable(path, error) from None


def _read_arrivals(path: Path) -> pl.DataFrame:
    table = read_table(path)
    if missing := REQUIRED_COLUMNS - set(table.columns):
        raise _unreadable(path, f"the column {sorted(missing)[0]} is missing")
    absent = [pl.lit(None, kind).alias(name) for name, kind in ARRIVALS.items() if name not in table.columns]
    try:
        return table.with_columns(*absent, pl.col("decision").cast(ARRIVALS["decision"])).select(
            *ARRIVALS, pl.exclude(*ARRIVALS)
        )
    except pl.exceptions.PolarsError as error:
        raise _unreadable(path, error) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(_read_text(path))
    except ValueError as error:
        raise _unreadable(path, error) from None
    if not isinstance(facts, dict):
        raise _unreadable(path, "not a JSON object")
    return facts


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _read_tensors(path: Path) -> "dict[str, Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file  # imports torch, which most readers do not need

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from None
    return tensors


def _unreadable(path: Path, reason: object) -> RecordError:
    return RecordError(f"{path} cannot be read: {str(reason).splitlines()[0]}. Run it again with --force.")


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
