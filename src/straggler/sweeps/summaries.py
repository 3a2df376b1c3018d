"""A sweep's results on disk: one row per cell and seed, small enough to be kept with the code."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from straggler.experiment import Experiment
from straggler.record import read_table
from straggler.running.atomic_files import write_parquet_atomically
from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.results import SummaryRow

SERIES = ("curve", "course")  # tables within a row: each has a file of its own, by experiment id


class SummaryStore:
    """What is known of a sweep: rows of earlier times stay until the same cell and seed is run again."""

    def __init__(self, folder: Path, labels: Iterable[str] = ()) -> None:
        self.folder, self.labels = folder, tuple(labels)
        self._new: list[dict[str, Any]] = []
        self._series: dict[str, list[dict[str, Any]]] = {name: [] for name in SERIES}

    def hold(self, task: PlannedRun) -> bool:
        """Whether every cell of a task has its row of this very experiment, and what is kept beside it."""
        cells = {(task.id, *(cell.labels.get(label) for label in self.labels)) for cell in task.cells}
        beside = {(task.id, name) for name in task.measurements if name in SERIES}
        return cells <= self._rows and beside <= self._beside

    @cached_property
    def _rows(self) -> set[tuple[Any, ...]]:
        table, columns = read_summaries(self.folder), ["id", *self.labels]
        return set(table.select(columns).rows()) if set(columns) <= set(table.columns) else set()

    @cached_property
    def _beside(self) -> set[tuple[str, str]]:
        tables = {name: read_series(self.folder, f"{name}s") for name in SERIES}
        return {(id, name) for name, table in tables.items() if len(table) for id in table["id"].unique()}

    def add(self, task: PlannedRun, facts: SummaryRow) -> None:
        row = {key: value for key, value in facts.items() if key not in SERIES}
        for cell in task.cells:
            said = {"source": cell.source} | {
                f"source_{key}": value for key, value in cell.source_metrics.items()
            }
            first = {**cell.labels, "seed": task.seed, "value": facts.get(cell.metric), **said, "id": task.id}
            # a budget that the sweep varies has the name of what was used of it
            named = {f"measured_{key}" if key in cell.labels else key: value for key, value in row.items()}
            self._new.append(first | {key: value for key, value in named.items() if key not in first})
        for name in SERIES:
            self._series[name] += [{"id": task.id, **point} for point in facts.get(name, ())]

    def write(self) -> None:
        """Old and new rows together, each file whole or as it was."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Labels that are settings are those of a sweep's file today; others are places in a study's table.
        settings = all(label in Experiment.model_fields for label in self.labels)
        self._merge("summaries", self._new, ["id"] if settings else [*self.labels, "seed"])
        for name, rows in self._series.items():
            self._merge(f"{name}s", rows, ["id"])

    def _merge(self, name: str, rows: list[dict[str, Any]], key: list[str]) -> None:
        if not rows:
            return
        file = self.folder / f"{name}.parquet"
        table = pl.DataFrame(rows, infer_schema_length=None)
        if file.is_file():
            kept = read_table(file).join(table.select(key).unique(), on=key, how="anti", nulls_equal=True)
            table = pl.concat([kept, table], how="diagonal_relaxed")
        if name == "summaries":
            table = table.sort([*self.labels, "seed"], nulls_last=True)
        write_parquet_atomically(file, table)


def collect_labels(tasks: Iterable[PlannedRun]) -> list[str]:
    """Every label that a cell of these tasks has."""
    found: dict[str, None] = {}
    for task in tasks:
        for cell in task.cells:
            found |= dict.fromkeys(cell.labels)
    return list(found)


def read_summaries(folder: Path) -> pl.DataFrame:
    """The rows so far, or an empty table."""
    file = folder / "summaries.parquet"
    return read_table(file) if file.is_file() else pl.DataFrame()


def read_series(folder: Path, name: str) -> pl.DataFrame:
    """Curves or courses by experiment id, or an empty table."""
    file = folder / f"{name}.parquet"
    return read_table(file) if file.is_file() else pl.DataFrame()
