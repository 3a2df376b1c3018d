"""What happened: a folder of columns and facts, readable at any moment of the run and after a crash."""

import json
import math
import shutil
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import polars as pl
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from straggler.running.environment import environment
from straggler.running.locks import held_files, still_going

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
State = Mapping[str, Any]
FLUSH_SECONDS = 0.5  # what a killed run may lose, and how far who watches lags behind


class RecordError(RuntimeError):
    """A folder that cannot be read or written as a record."""


class Record:
    """A run's folder. Tables are polars, weights are tensors by name."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "experiment.toml").is_file():
            raise RecordError(f"{self.path} holds no run: there is no experiment.toml in it")

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"

    @property
    def text(self) -> str:
        """The experiment as it was run, as TOML."""
        return read_text(self.path / "experiment.toml")

    @property
    def settings(self) -> dict[str, Any]:
        """The same, read."""
        try:
            settings = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise unreadable(self.path / "experiment.toml", error) from None
        if not {"policy", "workers"} <= settings.keys():
            raise unreadable(self.path / "experiment.toml", "it does not name a policy and workers")
        return settings

    @property
    def environment(self) -> dict[str, Any]:
        return self._json("environment.json")

    @property
    def summary(self) -> dict[str, Any]:
        return self._json("summary.json")

    @property
    def status(self) -> str:
        """What it says itself; but a run that goes on, and that nobody holds, is lost: it was killed."""
        said = str(self.summary.get("status"))
        going = said != "running" or still_going(self.path, "summary.json", held_files())
        return said if going else "lost"

    @property
    def ended(self) -> bool:
        """Whether it came to its end, be it a bad one."""
        return self.summary.get("status") in ("finished", "diverged")

    @property
    def curve(self) -> pl.DataFrame:
        """One row per evaluation."""
        file = self.path / "curve.parquet"
        return read_table(file) if file.is_file() else pl.DataFrame()

    @property
    def arrivals(self) -> pl.DataFrame:
        """One row per arrival and per cancelled job."""
        return self.history.filter(~pl.col("decision").is_in(["joined", "left"]))

    @property
    def history(self) -> pl.DataFrame:
        """The same, and a row per worker that joined or left, all in order."""
        file = self.path / "arrivals.parquet"
        parts = [file] if file.is_file() else sorted((self.path / "arrivals.parts").glob("*.parquet"))
        return pl.concat([read_arrivals(part) for part in parts]) if parts else pl.DataFrame(schema=ARRIVALS)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Workers that died or hung, and when."""
        file = self.path / "events.json"
        try:
            return json.loads(read_text(file)) if file.is_file() else []
        except ValueError as error:
            raise unreadable(file, error) from None

    def weights(self) -> dict[str, Tensor]:
        """The final model: what `module.load_state_dict` takes."""
        return read_tensors(self.path / "weights.safetensors")

    def snapshots(self) -> dict[str, Tensor]:
        """Flat weights along the run: `weights` (a row each), `buffers`, `updates`, `seconds`."""
        return read_tensors(self.path / "snapshots.safetensors")

    def time_to(self, accuracy: float) -> float | None:
        """Seconds until the test accuracy (percent) was first seen this high."""
        if "test_accuracy" not in self.curve.columns:
            return None
        reached = self.curve.filter(pl.col("test_accuracy") >= accuracy)
        return float(reached["seconds"][0]) if len(reached) else None

    def _json(self, name: str) -> dict[str, Any]:
        try:
            facts = json.loads(read_text(self.path / name))
        except ValueError as error:
            raise unreadable(self.path / name, error) from None
        if not isinstance(facts, dict):
            raise unreadable(self.path / name, "it holds no JSON object")
        return facts


def existing(folder: Path) -> Record | None:
    """The record of a run that came to its end."""
    try:
        record = Record(folder)
        return record if record.ended else None
    except RecordError:
        return None


class Recorder:
    """Writes a record while it happens; every file is whole or absent."""

    def __init__(
        self, folder: Path, text: str, command: list[str], resumed: State | None = None, force: bool = False
    ) -> None:
        self.path, self._resumed, self._force = folder, resumed, force
        self._rows: dict[str, list[Any]] = {column: [] for column in ARRIVALS}
        self._curve: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []  # workers that failed
        self._parts, self._flushed = 0, time.monotonic()
        self._text, self._command = text, command
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        self._lock = hold(self.path, "--out")
        if not self._force and existing(self.path) is not None:
            self._release()
            raise RecordError(f"{self.path} was finished by another process meanwhile: look at that")
        if self._resumed is None:
            self._clear()
        else:
            self._go_back(self._resumed)
        self._write_events()
        write_text(self.path / "environment.json", json.dumps(environment(self._command), indent=1))
        self.summary({"status": "running"})
        write_text(self.path / "experiment.toml", self._text)  # last: from now on the folder is a record
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.flush()
        if kind is not None:
            status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            facts = Record(self.path).summary
            self.summary(facts | {"status": status, "error": f"{kind.__name__}: {error}"})
        self._release()

    def arrival(self, **row: Any) -> None:
        """A row of what happened; columns that are not given have no value."""
        for column, values in self._rows.items():
            values.append(row.get(column))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def event(self, time: float, worker: int, what: str) -> None:
        """Something that happened to a worker, perhaps before there is a folder to write it to."""
        self.events.append({"time": time, "worker": worker, "what": what})
        self._write_events()

    def _write_events(self) -> None:
        if self._lock is not None and self.events:
            write_text(self.path / "events.json", json.dumps(self.events, indent=1))

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self._curve.append(dict(row))
        write_parquet(pl.DataFrame(self._curve, infer_schema_length=None), self.path / "curve.parquet")

    def summary(self, facts: Mapping[str, Any]) -> None:
        write_text(self.path / "summary.json", json.dumps(jsonable(facts), indent=1, allow_nan=False))

    def tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        temporary = self.path / f"{name}.tmp"
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, temporary)
        shutil.copymode(self.path / "summary.json", temporary)  # safetensors shuts everybody else out
        temporary.replace(self.path / name)

    def flush(self) -> None:
        """Put the arrivals so far on disk, as a part that later ones do not touch."""
        self._flushed = time.monotonic()
        if not self._rows["time"]:
            return
        folder = self.path / "arrivals.parts"
        folder.mkdir(exist_ok=True)
        write_parquet(pl.DataFrame(self._rows, schema=ARRIVALS), folder / f"{self._parts:06d}.parquet")
        self._parts += 1
        self._rows = {column: [] for column in ARRIVALS}

    def finish(self, facts: Mapping[str, Any]) -> None:
        """The arrivals as one file, and the last word."""
        self.flush()
        write_parquet(Record(self.path).history, self.path / "arrivals.parquet")
        self.summary(facts)
        self._drop_unfinished()

    def _drop_unfinished(self) -> None:  # until then a killed run goes on from these
        for checkpoint in (*self.path.glob("checkpoint-*.safetensors"), self.path / "checkpoint.tmp"):
            checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.path / "arrivals.parts", ignore_errors=True)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must know to forget what was written after it."""
        self.flush()
        return {"curve": self._curve, "parts": self._parts, "events": self.events}

    def _go_back(self, state: State) -> None:
        self._curve, self._parts = state["curve"], state["parts"]
        self.events = state["events"] + self.events
        (self.path / "arrivals.parquet").unlink(missing_ok=True)  # it was killed while it wrote its last word
        for part in (self.path / "arrivals.parts").glob("*.parquet"):
            if int(part.stem) >= self._parts:
                part.unlink()

    def _release(self) -> None:
        assert self._lock is not None
        self._lock.release()

    def _clear(self) -> None:
        """What an earlier try left here goes, and what was measured of it; nothing else does."""
        names = ("experiment.toml", "environment.json", "summary.json", "curve.parquet", "arrivals.parquet")
        more = ("events.json", "weights.safetensors", "snapshots.safetensors", "calibration.json")
        for name in (*names, *more, "initial_buffers.json", "divided_by.json"):
            (self.path / name).unlink(missing_ok=True)
        self._drop_unfinished()


def hold(folder: Path, option: str) -> FileLock:
    """Make a folder, if need be, this process's own until the lock is released."""
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(
            f"{folder} is being written by another process: wait for it, or use another {option}"
        ) from None
    except OSError as error:
        raise RecordError(
            f"{folder} cannot be written ({error.strerror}): choose another folder with {option}"
        ) from None
    return lock


def read_table(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path.read_bytes())  # by its name polars opens it twice, and a run replaces it
    except (OSError, pl.exceptions.PolarsError) as error:
        raise unreadable(path, error) from None


def read_arrivals(path: Path) -> pl.DataFrame:
    table = read_table(path)
    if missing := ARRIVALS.keys() - table.columns:
        raise unreadable(path, f"it has no column {', '.join(sorted(missing))}")
    return table


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from None
    return tensors


def unreadable(path: Path, reason: object) -> RecordError:
    return RecordError(f"{path} cannot be read: {str(reason).splitlines()[0]}; run it again with --force")


def write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_parquet(table: pl.DataFrame, path: Path) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    table.write_parquet(temporary)
    temporary.replace(path)


def jsonable(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value
