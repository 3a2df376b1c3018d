"""An index of runs and studies for the live pages; files are read again only if they changed."""

import json
import os
import re
import threading
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from straggler.analysis.figures.plotly_renderer import render_plotly
from straggler.analysis.labels import expand_settings
from straggler.experiment import Experiment
from straggler.record import RecordError, find_locked_inodes, is_being_written, read_table
from straggler.running.untrusted_files import is_regular_file, list_regular_files, read_json
from straggler.web.comparison import compare_settings, describe_comparison
from straggler.web.gallery import build_gallery, build_live_gallery
from straggler.web.report import (
    SUMMARY_NOTE,
    build_summary,
    describe_reruns,
    dump_json,
    list_problems,
)
from straggler.web.run_facts import READ_ERRORS, RunFacts, describe_problem, limit_memory
from straggler.web.run_labels import LABEL_FILE, read_labels
from straggler.web.study_page import MAX_FILES, StudyPage, is_study_folder
from straggler.web.targets import DEFAULT_TARGET, find_milestone_time, read_milestones
from straggler.web.worker_panel import describe_workers

Stamp = tuple[Any, ...]  # changes when a file changes
Row = dict[str, Any]
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
RUN_FILES = ("experiment.toml", "summary.json", "curve.parquet", "arrivals.parquet", "arrivals.parts")
LISTED_FILES = ("experiment.toml", "summary.json", LABEL_FILE)
LISTED_SETTINGS = ("dataset", "model", "workers", "partition", "lr", "engine", "seed")
LISTED_RESULTS = ("spent", "test_accuracy", "mean_staleness", "updates", "gradients", "seconds")
MAX_COMPARED = 40
MAX_ROW_BYTES = 20_000  # of one run in the list of runs
MAX_SETTING_LETTERS = 300  # of one setting in the list of runs
PROGRESS_FILE = "progress.json"  # written by running studies and sweeps
MAX_PROGRESS_BYTES, MAX_LISTED_RUNS = 5_000_000, 64


class ProgressRun(BaseModel):
    """A running or failed run in a progress file."""

    id: str = ""
    what: str = ""
    reason: str = ""
    part: float | None = Field(None, ge=0)


class StudyProgress(BaseModel):
    """The progress file of a study or sweep."""

    model_config = ConfigDict(allow_inf_nan=False)

    status: Literal["running", "finished", "interrupted", "failed", "damaged"]
    started: str = ""
    runs: int | None = Field(None, ge=0)
    done: int | None = Field(None, ge=0)
    failed: int | None = Field(None, ge=0)
    missing: int | None = Field(None, ge=0)
    part: float | None = Field(None, ge=0)
    left: float | None = Field(None, ge=0)
    active: list[ProgressRun] = Field([], validation_alias=AliasChoices("active", "at_hand"))  # 0.1: at_hand
    failures: list[ProgressRun] = []
    ids: list[str] = []


class RunIndex:
    """All runs below one folder and all studies below another."""

    def __init__(self, runs: Path, results: Path) -> None:
        self.runs, self.results = runs, results
        self._parts: dict[str, tuple[list[str], pl.DataFrame]] = {}  # arrivals of unfinished runs
        self._lock = threading.Lock()
        self._open = lru_cache(8)(self._read_run)
        self._render = lru_cache(24)(self._render_runs)

    def list_runs(self, newest: int | None = None) -> list[Row]:
        """Return a row per run, or the rows of the newest; the row of an unreadable run has its problem."""
        locked = find_locked_inodes()
        stamps = {folder: stamp_files(folder, LISTED_FILES) for folder in list_folders(self.runs)}
        stamps = {folder: stamp for folder, stamp in stamps.items() if stamp[0]}
        if newest is not None:
            order = sorted(stamps, key=lambda folder: stamps[folder][1] or (0,), reverse=True)
            stamps = {folder: stamps[folder] for folder in order[:newest]}
        rows = {folder: describe_run(folder, stamp) for folder, stamp in stamps.items()}
        return [mark_lost(folder, row, locked, "summary.json") for folder, row in rows.items()]

    def count_runs(self) -> int:
        return sum(is_regular_file(folder / "experiment.toml") for folder in list_folders(self.runs))

    def list_progress(self) -> list[Row]:
        """Return the progress of every study and sweep that wrote a progress file."""
        locked, rows = find_locked_inodes(), []
        for folder in list_folders(self.results):
            if (stamp := stamp_files(folder, (PROGRESS_FILE,)))[0]:
                row = {"name": folder.name, **read_progress(folder, stamp).model_dump(exclude={"ids"})}
                rows.append(mark_lost(folder, row, locked, PROGRESS_FILE))
        return rows

    def list_studies(self) -> list[Row]:
        """Return a row per study or sweep, including those without results yet."""
        stamps = {folder: stamp_study(folder) for folder in list_folders(self.results)}
        return [describe_study(folder, stamp) for folder, stamp in stamps.items() if stamp]

    def find_folder(self, name: str, parent: Path) -> Path:
        """Return the folder of a run or study; a name or link that leads elsewhere does not exist."""
        folder = parent / name
        if not NAME.fullmatch(name) or not folder.resolve().is_relative_to(parent.resolve()):
            raise RecordError(f"No run or study is called {name[:40]!r}.")
        return folder

    def open_study(self, name: str) -> StudyPage:
        folder = self.find_folder(name, self.results)
        if not is_study_folder(folder):
            raise RecordError(f"No study is called {name!r}.")
        return StudyPage(folder)

    def find_runs(self, names: Sequence[str]) -> list[Path]:
        """Return the folders of some runs, each once; raise if one of them is not a run of this folder."""
        folders = [self.find_folder(name, self.runs) for name in dict.fromkeys(names)]
        for folder in folders:
            if folder.is_symlink() or not is_regular_file(folder / "experiment.toml"):
                raise RecordError(f"No run is called {folder.name!r}.")
        return folders

    def find_times_to(self, target: float, ids: Collection[str] | None = None) -> dict[str, float | None]:
        """Return by id the seconds after which each run that has a curve first reached a test accuracy."""
        folders = [folder for folder in list_folders(self.runs) if ids is None or folder.name in ids]
        stamps = {folder: stamp_files(folder, ("curve.parquet",)) for folder in folders}
        return {
            folder.name: find_milestone_time(read_milestones(folder, stamp), target)
            for folder, stamp in stamps.items()
            if stamp[0]
        }

    def find_sweep(self, name: str) -> tuple[Path, set[str]]:
        """Return the folder of a sweep or study, and the ids of its runs."""
        folder = self.find_folder(name, self.results)
        if not (stamp := stamp_study(folder)):
            raise RecordError(f"No study is called {name!r}.")
        return folder, set(describe_study(folder, stamp)["ids"])

    def open_run(self, name: str) -> tuple[Stamp, RunFacts]:
        """Return the stamp of a run's files and its facts as they are now."""
        folder = self.find_folder(name, self.runs)
        stamp = stamp_files(folder, RUN_FILES)
        with self._lock:
            return stamp, self._open(folder, stamp)

    def open_runs(self, names: Sequence[str]) -> tuple[list[RunFacts], list[str]]:
        """Return the facts of several runs, each once, and a note if some are left out."""
        unique = list(dict.fromkeys(names))
        if not unique:
            raise RecordError("No run is selected. Pass its id as ?id=…")
        limit = f"Only the first {MAX_COMPARED} of {len(unique)} runs are shown."
        notes = [limit] if len(unique) > MAX_COMPARED else []
        runs, left_out = limit_memory([self.open_run(name)[1] for name in unique[:MAX_COMPARED]])
        if not runs:
            raise RecordError(left_out[0])
        if left_out:  # keep no large tables in memory
            self._open.cache_clear()
        return runs, notes + left_out

    def render_runs(self, names: Sequence[str], complete: bool, target: float = DEFAULT_TARGET) -> str:
        """Return figures, summary and commands of runs as JSON; `complete` adds the slow figures."""
        stamps = tuple(self.open_run(name)[0] for name in names[:MAX_COMPARED])
        return self._render(tuple(names), stamps, complete, target)

    def _render_runs(self, names: tuple[str, ...], stamps: Stamp, complete: bool, target: float) -> str:
        runs, notes = self.open_runs(names)
        figures = build_gallery(runs) if complete else build_live_gallery(runs)
        columns, rows = build_summary(runs, target)
        return dump_json(
            {
                "runs": describe_reruns(runs),
                "selected": len(dict.fromkeys(names)),
                "columns": columns,
                "rows": rows,
                "summary_note": SUMMARY_NOTE,
                "differences": compare_settings(runs),
                "workers": describe_workers(runs[0]) if len(runs) == 1 else [],
                "figures": [render_plotly(figure) for figure in figures],
                "notes": [*notes, *describe_comparison(runs)],
                "problems": list_problems(runs, ()),
            }
        )

    def _read_run(self, folder: Path, stamp: Stamp) -> RunFacts:
        """Read a run; of an unfinished run, read only the parts of the arrivals that are new."""
        facts, parts = RunFacts(folder), folder / "arrivals.parts"
        known, table = self._parts.pop(folder.name, ([], pl.DataFrame()))
        if stamp[3]:  # the run has ended and merged its parts
            return facts
        files = [file.name for file in list_regular_files(parts, ".parquet")]
        if files[: len(known)] != known:  # it was resumed from an earlier checkpoint
            known, table = [], pl.DataFrame()
        try:
            tables = [table, *(read_table(parts / name, folder) for name in files[len(known) :])]
        except RecordError:  # it ended just now
            return facts
        if filled := [table for table in tables if len(table)]:
            facts.jobs = pl.concat(filled)
            self._parts[folder.name] = (files, facts.jobs)
        return facts


def list_folders(parent: Path) -> list[Path]:
    try:
        entries = [entry for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(Path(entry.path) for entry in entries if NAME.fullmatch(entry.name))


def stamp_files(folder: Path, names: Sequence[str]) -> Stamp:
    """Return time, size and inode of each file, None for those that do not exist."""
    stamps: list[tuple[int, int, int] | None] = []
    for name in names:
        try:
            status = (folder / name).lstat()
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def stamp_study(folder: Path) -> Stamp:
    """Return a stamp of all files but the progress; an empty one if the folder is not a study."""
    try:
        names = sorted({entry.name for entry in folder.iterdir()} - {PROGRESS_FILE, ".lock"})[:MAX_FILES]
        is_study = is_regular_file(folder / PROGRESS_FILE) or is_study_folder(folder)
        return (tuple(names), *stamp_files(folder, names)) if is_study else ()
    except OSError:
        return ()


@lru_cache(100_000)
def describe_run(folder: Path, stamp: Stamp) -> Row:
    """Return the row of one run in the list of runs."""
    try:
        facts = RunFacts(folder)
        settings, summary, status = facts.settings, facts.summary, facts.status
        row: Row = {"id": folder.name, "status": status, "method": facts.method}
        row |= {key: settings.get(key) for key in LISTED_SETTINGS}
        row |= {key: summary.get(key) for key in (*LISTED_RESULTS, "converged", "error")}
        row |= {"started": facts.environment.get("started"), "problems": facts.problems[:1]}
        row |= {"settings": find_listed_settings(settings), **read_labels(folder).model_dump()}
        row["delay"] = " + ".join(map(str, settings.get("delay") or []))
        row["spent"] = 1.0 if status in ("finished", "diverged") else row["spent"]
        if not settings or len(json.dumps(row, allow_nan=False)) > MAX_ROW_BYTES:
            raise RecordError((facts.problems or ["The settings are too long for a page."])[0])
    except READ_ERRORS as error:
        return {"id": folder.name, "status": "damaged", "problems": [describe_problem(error)]}
    return row


@lru_cache(1)
def list_default_settings() -> Row:
    """Return the default of every setting, with the arguments of the components."""
    return expand_settings(Experiment().to_dict())


def find_listed_settings(settings: Row) -> Row:
    """Return the settings that differ from the defaults, for filters and columns; long texts are cut."""
    defaults, found = list_default_settings(), expand_settings(settings)
    changed = {key: value for key, value in found.items() if value != defaults.get(key)}
    changed = {key: value for key, value in changed.items() if key not in (*LISTED_SETTINGS, "delay")}
    simple = (int, float, type(None))
    return {
        key[:60]: value if isinstance(value, simple) else format_setting_value(value)
        for key, value in changed.items()
    }


def format_setting_value(value: Any) -> str:
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:MAX_SETTING_LETTERS]


@lru_cache(1000)
def describe_study(folder: Path, stamp: Stamp) -> Row:
    """Return the row of one study; its ids are those of finished and of planned runs."""
    planned = read_progress(folder, stamp).ids
    row: Row = {"name": folder.name, "report": is_study_folder(folder)}
    try:
        study = StudyPage(folder)
    except READ_ERRORS as error:
        return row | {"runs": 0, "verdicts": {}, "ids": planned, "problems": [describe_problem(error)]}
    row |= {"runs": study.run_count, "verdicts": study.verdicts, "problems": study.problems[:1]}
    return row | {"ids": list(dict.fromkeys([*study.run_ids, *planned]))}


@lru_cache(1000)
def read_progress(folder: Path, stamp: Stamp) -> StudyProgress:
    """Read a progress file; an invalid one has the status `damaged`."""
    try:
        progress = StudyProgress.model_validate(read_json(folder / PROGRESS_FILE, MAX_PROGRESS_BYTES))
    except (OSError, ValueError):
        return StudyProgress(status="damaged")
    shown = {key: getattr(progress, key)[:MAX_LISTED_RUNS] for key in ("active", "failures")}
    return progress.model_copy(update=shown)


def mark_lost(folder: Path, row: Row, locked: set[int] | None, file: str) -> Row:
    """Set the status to `lost` if a run or study is marked as running, but its process has exited."""
    if row.get("status") not in ("running", "lost"):
        return row
    return row | {"status": "running" if is_being_written(folder, file, locked) else "lost"}
