"""An index of runs and studies for the live pages; files are read again only if they changed."""

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from straggler.record import RecordError, read_table
from straggler.running.locks import held_files, still_going
from straggler.web.gallery import gallery, live_gallery
from straggler.web.report import SUMMARY_COLUMNS, build_summary_rows, describe_rerun, dump_json, list_problems
from straggler.web.run_facts import RunFacts, label_runs
from straggler.web.study_page import StudyPage, is_study_folder

Stamp = tuple[Any, ...]  # changes when a file changes
Row = dict[str, Any]
RowCache = dict[str, tuple[Stamp, Row]]
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
RUN_FILES = ("experiment.toml", "summary.json", "curve.parquet", "arrivals.parquet", "arrivals.parts")
LISTED_SETTINGS = ("dataset", "model", "workers", "partition", "lr", "engine", "seed")
LISTED_RESULTS = (
    "spent",
    "test_accuracy",
    "mean_staleness",
    "updates",
    "gradients",
    "seconds",
    "converged",
    "error",
)
MAX_CACHED_RUNS, MAX_CACHED_PAGES = 8, 24
MAX_COMPARED = 40
PROGRESS_FILE = "progress.json"  # written by running studies and sweeps
PROGRESS_STATES = ("running", "finished", "interrupted", "failed")
PROGRESS_COUNTS = ("runs", "done", "failed", "missing", "part", "left")
MAX_PROGRESS_BYTES, MAX_LISTED_RUNS = 5_000_000, 64
DAMAGE = (RecordError, OSError, ValueError, TypeError, AttributeError, KeyError, RuntimeError)


class RunIndex:
    """All runs below one folder and all studies below another."""

    def __init__(self, runs: Path, results: Path) -> None:
        self.runs, self.results = runs, results
        self._rows: RowCache = {}
        self._studies: RowCache = {}
        self._progress: RowCache = {}
        self._facts: OrderedDict[str, tuple[Stamp, RunFacts]] = OrderedDict()
        self._pages: OrderedDict[Stamp, str] = OrderedDict()
        self._parts: dict[str, tuple[list[str], pl.DataFrame]] = {}  # arrivals of unfinished runs
        self._lock = threading.RLock()

    def list_runs(self) -> list[Row]:
        """Return a row per run; the row of an unreadable run has its problem."""
        with self._lock:
            stamps = ((folder, stamp_files(folder, RUN_FILES[:2])) for folder in list_folders(self.runs))
            refresh_rows(self._rows, (pair for pair in stamps if pair[1][0]), describe_run)
            locked = held_files()
            return [
                mark_lost(self.runs / name, row, locked, "summary.json")
                for name, (_, row) in self._rows.items()
            ]

    def list_progress(self) -> list[Row]:
        """Return the progress of every study and sweep that wrote a progress file."""
        with self._lock:
            stamps = (
                (folder, stamp_files(folder, (PROGRESS_FILE,))) for folder in list_folders(self.results)
            )
            refresh_rows(self._progress, (pair for pair in stamps if pair[1][0]), read_progress)
            locked = held_files()
            rows = [
                mark_lost(self.results / name, row, locked, PROGRESS_FILE)
                for name, (_, row) in self._progress.items()
            ]
            return [{key: value for key, value in row.items() if key != "ids"} for row in rows]

    def list_studies(self) -> list[Row]:
        """Return a row per study or sweep, including those without results yet."""
        with self._lock:
            stamps = ((folder, stamp_study(folder)) for folder in list_folders(self.results))
            refresh_rows(self._studies, (pair for pair in stamps if pair[1]), describe_study)
            return [row for _, row in self._studies.values()]

    def find_folder(self, name: str, below: Path | None = None) -> Path:
        """Return the folder of a run or study; a name or link that leads elsewhere does not exist."""
        parent = below or self.runs
        folder = parent / name
        if not NAME.fullmatch(name) or not folder.resolve().is_relative_to(parent.resolve()):
            raise RecordError(f"No run or study is called {name[:40]!r}.")
        return folder

    def open_study(self, name: str) -> StudyPage:
        folder = self.find_folder(name, self.results)
        if not is_study_folder(folder):
            raise RecordError(f"No study is called {name!r}.")
        return StudyPage(folder)

    def open_run(self, name: str) -> tuple[Stamp, RunFacts]:
        """Return a run as it is now, and the stamp of its files."""
        folder = self.find_folder(name)
        with self._lock:
            stamp = stamp_files(folder, RUN_FILES)
            cached = self._facts.get(name)
            if cached is None or cached[0] != stamp:
                facts = RunFacts(folder)
                if stamp[3] is None:
                    self._read_new_parts(facts)
                else:
                    self._parts.pop(name, None)
                self._facts[name] = cached = (stamp, facts)
            self._facts.move_to_end(name)
            while len(self._facts) > MAX_CACHED_RUNS:
                dropped, _ = self._facts.popitem(last=False)
                self._parts.pop(dropped, None)
            return cached

    def open_runs(self, names: Sequence[str]) -> tuple[Stamp, list[RunFacts], list[str]]:
        """Return the stamps and facts of several runs, each once, and a note if some are left out."""
        unique = list(dict.fromkeys(names))
        if not unique:
            raise RecordError("No run is selected. Pass its id as ?id=…")
        shown = [self.open_run(name) for name in unique[:MAX_COMPARED]]
        note = f"Only the first {MAX_COMPARED} of {len(unique)} runs are shown."
        notes = [note] if len(unique) > MAX_COMPARED else []
        return tuple(stamp for stamp, _ in shown), [facts for _, facts in shown], notes

    def render_runs(self, names: Sequence[str], complete: bool) -> str:
        """Return figures, summary and commands of runs as JSON; `complete` adds the slow figures."""
        stamps, runs, notes = self.open_runs(names)
        key = (complete, stamps, *names)
        page = self._pages.get(key)
        if page is None:
            figures = gallery(runs) if complete else live_gallery(runs)  # slow, so outside of the lock
            page = dump_json(
                {
                    "runs": [describe_rerun(*pair) for pair in zip(runs, label_runs(runs), strict=True)],
                    "columns": SUMMARY_COLUMNS,
                    "rows": build_summary_rows(runs),
                    "figures": [figure.spec() for figure in figures],
                    "notes": notes,
                    "problems": list_problems(runs, ()),
                }
            )
            with self._lock:
                self._pages[key] = page
                while len(self._pages) > MAX_CACHED_PAGES:
                    self._pages.popitem(last=False)
        return page

    def _read_new_parts(self, facts: RunFacts) -> None:
        """Set the arrivals of an unfinished run, reading only the parts that are new."""
        folder = facts.record.path / "arrivals.parts"
        files = sorted(file.name for file in folder.glob("*.parquet"))
        known, table = self._parts.get(facts.id, ([], pl.DataFrame()))
        if files[: len(known)] != known:  # the run was resumed from an earlier checkpoint
            known, table = [], pl.DataFrame()
        try:
            parts = [read_table(folder / name) for name in files[len(known) :]]
        except RecordError:  # the run ended just now and merged its parts
            return
        if parts:
            table = pl.concat([table, *parts] if len(table) else parts)
        if len(table):
            self._parts[facts.id] = (files, table)
            facts.arrivals = table


def refresh_rows(
    cache: RowCache, stamps: Iterable[tuple[Path, Stamp]], describe: Callable[[Path], Row]
) -> None:
    """Describe the folders whose stamp changed, and forget those that are gone."""
    rows: RowCache = {}
    for folder, stamp in stamps:
        cached = cache.get(folder.name)
        rows[folder.name] = cached if cached and cached[0] == stamp else (stamp, describe(folder))
    cache.clear()
    cache.update(rows)


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
            status = (folder / name).stat()
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def stamp_study(folder: Path) -> Stamp:
    """Return a stamp of all files but the progress file; an empty one if it is not a study."""
    try:
        if not is_study_folder(folder) and not (folder / PROGRESS_FILE).is_file():
            return ()
        names = sorted({entry.name for entry in folder.iterdir()} - {PROGRESS_FILE, ".lock"})
    except OSError:
        return ()
    return (tuple(names), *stamp_files(folder, names))


def describe_run(folder: Path) -> Row:
    """Return the row of one run in the list of runs."""
    try:
        facts = RunFacts(folder)
        settings, summary, status = facts.settings, facts.summary, facts.status
        row: Row = {
            "id": folder.name,
            "status": status,
            "method": facts.method,
            "problems": facts.problems[:1],
        }
        row |= {key: settings.get(key) for key in LISTED_SETTINGS}
        row |= {key: summary.get(key) for key in LISTED_RESULTS}
        row |= {"started": facts.environment.get("started")}
        row["delay"] = " + ".join(map(str, settings.get("delay") or []))
        row["spent"] = 1.0 if status in ("finished", "diverged") else row["spent"]
        json.dumps(row, allow_nan=False)
    except DAMAGE as error:
        return {"id": folder.name, "status": "damaged", "problems": [shorten_error(error)]}
    return row


def describe_study(folder: Path) -> Row:
    """Return the row of one study; its ids are those of finished and of planned runs."""
    study, planned = StudyPage(folder), read_progress(folder).get("ids", [])
    row: Row = {
        "name": study.name,
        "runs": 0,
        "verdicts": {},
        "report": is_study_folder(folder),
        "ids": planned,
    }
    try:
        study.load()
        row |= {"runs": study.run_count, "verdicts": study.verdicts, "problems": study.problems[:1]}
        return row | {"ids": list(dict.fromkeys([*study.run_ids, *planned]))}
    except (*DAMAGE, pl.exceptions.PolarsError) as error:
        return row | {"problems": [shorten_error(error)]}


def shorten_error(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def mark_lost(folder: Path, row: Row, locked: set[int] | None, file: str) -> Row:
    """Set the status of a run or study that says it is running but whose process has exited to `lost`."""
    if row.get("status") not in ("running", "lost"):
        return row
    return row | {"status": "running" if still_going(folder, file, locked) else "lost"}


def read_progress(folder: Path) -> Row:
    """Return the progress that a study or sweep wrote, with every value checked."""
    row: Row = {"name": folder.name, "status": "damaged", "active": [], "failures": []}
    try:
        file = folder / PROGRESS_FILE
        progress = json.loads(file.read_text()) if file.stat().st_size <= MAX_PROGRESS_BYTES else None
    except (OSError, ValueError):
        return row
    if not isinstance(progress, dict) or progress.get("status") not in PROGRESS_STATES:
        return row
    row |= {key: count_or_none(progress.get(key)) for key in PROGRESS_COUNTS}
    row |= {"status": progress["status"], "started": text_or_empty(progress.get("started"))}
    row |= {"ids": [name for name in list_or_empty(progress.get("ids")) if isinstance(name, str)]}
    for key, source in (("active", "at_hand"), ("failures", "failures")):
        runs = [run for run in list_or_empty(progress.get(source)) if isinstance(run, dict)]
        row[key] = [
            {name: text_or_empty(run.get(name)) for name in ("id", "what", "reason")}
            | {"part": count_or_none(run.get("part"))}
            for run in runs[:MAX_LISTED_RUNS]
        ]
    return row


def text_or_empty(value: Any) -> str:
    return value[:500] if isinstance(value, str) else ""


def count_or_none(value: Any) -> float | None:
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return value if is_count else None


def list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
