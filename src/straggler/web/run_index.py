"""The folder of runs as a live page needs it: rows that are cheap to look at again, and whole records."""

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from straggler.record import RecordError, read_table
from straggler.running.locks import held_files, still_going
from straggler.web.gallery import gallery, live_gallery
from straggler.web.report import SUMMARY_COLUMNS, build_summary_rows, describe_rerun, dump_json
from straggler.web.run_facts import RunFacts
from straggler.web.running_processes import PROGRESS, progress_of
from straggler.web.study_page import StudyPage, is_study_folder

Stamp = tuple[Any, ...]  # changes when what was read changed
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
SHOWN = ("dataset", "model", "workers", "delay", "partition", "lr", "momentum", "engine", "seed")
NUMBERS = (
    "spent",
    "test_accuracy",
    "mean_staleness",
    "updates",
    "gradients",
    "seconds",
    "converged",
    "error",
)
KEPT_RECORDS, KEPT_PAGES = 8, 24
MOST_COMPARED = 40


class RunIndex:
    """All runs and studies below two folders; everything is read again only if it changed."""

    def __init__(self, runs: Path, results: Path) -> None:
        self.runs, self.results = runs, results
        self._rows: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._studies: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._progress: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._facts: OrderedDict[str, tuple[Stamp, RunFacts]] = OrderedDict()
        self._pages: OrderedDict[Stamp, str] = OrderedDict()
        self._parts: dict[str, tuple[list[str], pl.DataFrame]] = {}  # arrivals of runs that go on
        self._lock = threading.RLock()

    def rows(self) -> list[dict[str, Any]]:
        """A row per run; one that cannot be read is a row that says so."""
        with self._lock:
            held = held_files()
            found: dict[str, tuple[Stamp, dict[str, Any]]] = {}
            for folder in folders(self.runs):
                stamp = stamp_of(folder, ("experiment.toml", "summary.json"))
                if stamp[0] is None:
                    continue
                before = self._rows.get(folder.name)
                row = before[1] if before and before[0] == stamp else row_of(folder)
                found[folder.name] = (stamp, alive(folder, row, held))
            self._rows = found
            return [row for _, row in found.values()]

    def progress(self) -> list[dict[str, Any]]:
        """How studies and sweeps go, or went: a row for each that says so, cheap to look at again."""
        with self._lock:
            held = held_files()
            found: dict[str, tuple[Stamp, dict[str, Any]]] = {}
            for folder in folders(self.results):
                stamp = stamp_of(folder, (PROGRESS,))
                if stamp[0] is not None:
                    before = self._progress.get(folder.name)
                    row = before[1] if before and before[0] == stamp else progress_of(folder)
                    found[folder.name] = (stamp, row)
            self._progress = found
            rows = [alive(self.results / name, row, held, PROGRESS) for name, (_, row) in found.items()]
            return [{key: value for key, value in row.items() if key != "ids"} for row in rows]

    def studies(self) -> list[dict[str, Any]]:
        """A row per study, those that only just began among them."""
        with self._lock:
            found: dict[str, tuple[Stamp, dict[str, Any]]] = {}
            for folder in folders(self.results):
                if (stamp := study_stamp(folder)) is not None:
                    before = self._studies.get(folder.name)
                    row = before[1] if before and before[0] == stamp else study_row(folder)
                    found[folder.name] = (stamp, row)
            self._studies = found
            return [row for _, row in found.values()]

    def folder(self, name: str, below: Path | None = None) -> Path:
        """The folder of a run or study of this name; whatever leads elsewhere does not exist."""
        place = below or self.runs
        folder = place / name
        if not NAME.fullmatch(name) or not folder.resolve().is_relative_to(place.resolve()):
            raise RecordError(f"there is no run {name[:40]!r}")
        return folder

    def study(self, name: str) -> StudyPage:
        folder = self.folder(name, self.results)
        if not is_study_folder(folder):
            raise RecordError(f"there is no study {name!r}")
        return StudyPage(folder)

    def facts(self, name: str) -> tuple[Stamp, RunFacts]:
        """A run's record as it is now."""
        folder = self.folder(name)
        with self._lock:
            names = ("experiment.toml", "summary.json", "curve.parquet", "arrivals.parquet", "arrivals.parts")
            stamp = stamp_of(folder, names)
            before = self._facts.get(name)
            if before is None or before[0] != stamp:
                facts = RunFacts(folder)
                if stamp[3] is None:
                    self._follow(facts)
                else:
                    self._parts.pop(name, None)
                self._facts[name] = before = (stamp, facts)
            self._facts.move_to_end(name)
            while len(self._facts) > KEPT_RECORDS:
                forgotten, _ = self._facts.popitem(last=False)
                self._parts.pop(forgotten, None)
            return before

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Each once, and no more than a page can show."""
        if not names:
            raise RecordError("no run is named; say which: ?id=…")
        return list(dict.fromkeys(names))[:MOST_COMPARED]

    def page(self, names: Sequence[str], whole: bool) -> str:
        """Pictures and words of some runs as JSON."""
        found = [self.facts(name) for name in self.chosen(names)]
        key = (whole, *(stamp for stamp, _ in found), *names)
        page = self._pages.get(key)
        if page is None:
            page = dump_json(described([facts for _, facts in found], whole))  # slow, so unlocked
            with self._lock:
                self._pages[key] = page
                while len(self._pages) > KEPT_PAGES:
                    self._pages.popitem(last=False)
        return page

    def _follow(self, facts: RunFacts) -> None:
        """Arrivals of a run that goes on: only the parts that are new are read."""
        files = sorted(file.name for file in (facts.record.path / "arrivals.parts").glob("*.parquet"))
        known, table = self._parts.get(facts.id, ([], pl.DataFrame()))
        if files[: len(known)] != known:  # it went back to a checkpoint
            known, table = [], pl.DataFrame()
        fresh = []
        try:
            for name in files[len(known) :]:
                fresh.append(read_table(facts.record.path / "arrivals.parts" / name))
        except RecordError:  # the run ended meanwhile, and they became one file
            return
        if fresh:
            table = pl.concat([table, *fresh] if len(table) else fresh)
        if len(table):
            self._parts[facts.id] = (files, table)
            facts.arrivals = table


def described(runs: Sequence[RunFacts], whole: bool) -> dict[str, Any]:
    figures = gallery(runs) if whole and runs else live_gallery(runs) if runs else []
    return {
        "runs": [describe_rerun(run, run.method) | {"report": f"/reports/runs/{run.id}"} for run in runs],
        "columns": SUMMARY_COLUMNS,
        "rows": build_summary_rows(runs),
        "figures": [figure.spec() for figure in figures],
        "trouble": [f"{run.id}: {line}" for run in runs for line in run.trouble],
    }


def folders(place: Path) -> list[Path]:
    try:
        return sorted(
            Path(entry.path)
            for entry in os.scandir(place)
            if entry.is_dir(follow_symlinks=False) and NAME.fullmatch(entry.name)
        )
    except OSError:
        return []


def stamp_of(folder: Path, names: Sequence[str]) -> Stamp:
    """When each of these files was written, None for those that are not there."""
    stamps: list[tuple[int, int, int] | None] = []
    for name in names:
        try:
            status = (folder / name).stat()
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def row_of(folder: Path) -> dict[str, Any]:
    """What the list of runs shows of one."""
    row: dict[str, Any] = {"id": folder.name}
    try:
        facts = RunFacts(folder)
        settings, summary = facts.settings, facts.summary
        row |= {key: settings.get(key) for key in SHOWN} | {key: summary.get(key) for key in NUMBERS}
        row |= {"status": facts.status, "method": facts.method, "trouble": facts.trouble[:1]}
        row["started"] = facts.environment.get("started")
        row["delay"] = " + ".join(map(str, settings.get("delay") or []))
        row["spent"] = 1.0 if facts.status in ("finished", "diverged") else row["spent"]
        json.dumps(row, allow_nan=False)
    except (RecordError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        return {"id": folder.name, "status": "damaged", "trouble": [str(error).splitlines()[0][:300]]}
    return row


def study_stamp(folder: Path) -> Stamp | None:
    """Changes with any file but the progress, which is looked at by itself; None if there is no study."""
    try:
        if not is_study_folder(folder) and not (folder / PROGRESS).is_file():
            return None
        names = sorted({entry.name for entry in folder.iterdir()} - {PROGRESS, ".lock"})
    except OSError:
        return None
    return (tuple(names), *stamp_of(folder, names))


def study_row(folder: Path) -> dict[str, Any]:
    """What the list of studies shows of one; the ids of its runs are those that are known or planned."""
    study = StudyPage(folder)
    row: dict[str, Any] = {"name": study.name, "runs": 0, "verdicts": {}, "report": is_study_folder(folder)}
    planned = progress_of(folder).get("ids", [])
    try:
        study.read()
        row |= {"runs": study.runs, "verdicts": study.verdicts()}
        return row | {"ids": list(dict.fromkeys([*study.ids, *planned])), "trouble": study.trouble[:1]}
    except (OSError, ValueError, TypeError, RuntimeError, pl.exceptions.PolarsError) as error:
        return row | {"ids": planned, "trouble": [str(error).splitlines()[0][:300]]}


def alive(
    folder: Path, row: dict[str, Any], held: set[int] | None, file: str = "summary.json"
) -> dict[str, Any]:
    """What says that it is running, but that nobody holds and that has been quiet, was killed."""
    if row.get("status") not in ("running", "lost"):
        return row
    return row | {"status": "running" if still_going(folder, file, held) else "lost"}
