"""A sweep's results on disk: one summary row per cell and seed, small enough to be committed."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from straggler.record import read_table
from straggler.running.atomic_files import write_parquet_atomically
from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.measurements import SummaryRow

SERIES = ("curve", "course")  # tables within a row: each has a file, with a column for the experiment's id


class SummaryStore:
    """The summaries in a folder. Rows stay until a new row has the same key."""

    def __init__(self, folder: Path, labels: Iterable[str] = (), key: Iterable[str] = ("id",)) -> None:
        """`key`: the columns that identify a row, ("id",) for a sweep, the labels and seed for a study."""
        self.folder, self.labels, self.key = folder, tuple(labels), list(key)
        self.facts: dict[str, Any] = {}  # columns of every new row
        self._new: list[dict[str, Any]] = []
        self._series: dict[str, list[dict[str, Any]]] = {name: [] for name in SERIES}

    def has(self, run: PlannedRun) -> bool:
        """Return whether the rows of all cells of a run are stored, with its curve or course if needed."""
        rows = {(run.id, *(cell.labels.get(label) for label in self.labels)) for cell in run.cells}
        series = {(run.id, name) for name in run.measurements if name in SERIES}
        return rows <= self._stored_rows and series <= self._stored_series

    @cached_property
    def _stored_rows(self) -> set[tuple[Any, ...]]:
        table, columns = read_summaries(self.folder), ["id", *self.labels]
        return set(table.select(columns).rows()) if set(columns) <= set(table.columns) else set()

    @cached_property
    def _stored_series(self) -> set[tuple[str, str]]:
        tables = {name: read_series(self.folder, f"{name}s") for name in SERIES}
        return {(id, name) for name, table in tables.items() if len(table) for id in table["id"].unique()}

    def add(self, run: PlannedRun, row: SummaryRow) -> None:
        """Add a row for every cell of the run."""
        values = {key: value for key, value in row.items() if key not in SERIES} | self.facts
        for cell in run.cells:
            labels = dict.fromkeys(self.labels) | dict(cell.labels)  # other cells may have more
            first = {**labels, "seed": run.seed, "value": row.get(cell.metric), "id": run.id}
            # A budget that the sweep varies has the same name as the part that was used.
            named = {f"measured_{key}" if key in cell.labels else key: value for key, value in values.items()}
            self._new.append(first | {key: value for key, value in named.items() if key not in first})
        for name in SERIES:
            self._series[name] += [{"id": run.id, **point} for point in row.get(name, ())]

    def write(self) -> None:
        """Write stored and new rows together."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._merge("summaries", self._new, self.key)
        for name, rows in self._series.items():
            self._merge(f"{name}s", rows, ["id"])

    def _merge(self, name: str, rows: list[dict[str, Any]], key: list[str]) -> None:
        if not rows:
            return
        file = self.folder / f"{name}.parquet"
        table = pl.DataFrame(rows, infer_schema_length=None)
        if file.is_file():
            parts = [read_table(file).with_columns(_new=False), table.with_columns(_new=True)]
            table = pl.concat(parts, how="diagonal_relaxed")
            table = table.filter(pl.col("_new") == pl.col("_new").max().over(key)).drop("_new")
        if name == "summaries":
            table = table.sort([*self.labels, "seed"], nulls_last=True)
        write_parquet_atomically(file, table)


def collect_labels(runs: Iterable[PlannedRun]) -> list[str]:
    """Return the names of all labels of the cells of these runs."""
    return list(dict.fromkeys(label for run in runs for cell in run.cells for label in cell.labels))


def read_summaries(folder: Path) -> pl.DataFrame:
    """Return the stored rows, or an empty table."""
    return read_series(folder, "summaries")


def read_series(folder: Path, name: str) -> pl.DataFrame:
    """Return the stored `curves` or `courses` with the ids of their experiments, or an empty table."""
    file = folder / f"{name}.parquet"
    return read_table(file) if file.is_file() else pl.DataFrame()
