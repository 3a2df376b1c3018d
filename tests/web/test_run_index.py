"""The index of runs and studies: rows, caching, damaged records, lost processes."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from filelock import FileLock
from web_testing import (
    QUADRATIC,
)

from straggler.experiment import Experiment
from straggler.record import ARRIVALS, Record
from straggler.running.recorder import Recorder
from straggler.sweeps.grid import Cell, plan_runs
from straggler.sweeps.pool import RunEvent
from straggler.sweeps.progress import ProgressFile, SweepProgress
from straggler.web.report import render_html_report
from straggler.web.run_index import RunIndex


def test_damaged_records_are_rows_with_a_problem(tmp_path: Path) -> None:
    good = Experiment(**QUADRATIC).run(tmp_path, jobs=1).path
    for name, toml, summary in (
        ("not-toml", "= =", "{}"),
        ("not-json", "workers = 1", "\x00"),
        ("list", "workers = 1", "[]"),
        ("odd", "delay = 3\nworkers = {a = 1}", '{"status": ["x"], "test_accuracy": "high"}'),
        ("infinite", "lr = inf", '{"status": "finished"}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_text(toml)
        (tmp_path / name / "summary.json").write_text(summary)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    index = RunIndex(tmp_path, tmp_path / "none")
    rows = {row["id"]: row for row in index.list_runs()}
    assert set(rows) == {good.name, "not-toml", "not-json", "list", "odd", "infinite"}
    assert rows[good.name]["status"] == "finished"
    assert rows["not-json"]["status"] == "damaged" and rows["not-toml"]["problems"]
    json.dumps(list(rows.values()), allow_nan=False)
    for name in rows:
        json.loads(index.render_runs([name], complete=True))


@pytest.mark.parametrize(
    ("recorded", "instead"),
    [
        ("workers = 4", "workers = 1000000000"),
        ('dataset = "mixture"', 'dataset = "mixture(samples=1000000000)"'),
    ],
)
def test_records_that_claim_huge_sizes_are_shown_quickly(tmp_path: Path, recorded: str, instead: str) -> None:
    run = Experiment(dataset="mixture", model="linear", gradients=20).run(tmp_path, jobs=1).path
    text = (run / "experiment.toml").read_text()
    assert recorded in text
    (run / "experiment.toml").write_text(text.replace(recorded, instead))
    started = time.thread_time()
    page = json.loads(RunIndex(tmp_path, tmp_path).render_runs([run.name], complete=True))
    assert {"loss", "staleness", "timeline"} <= {figure["name"] for figure in page["figures"]}
    assert time.thread_time() - started < 20


def test_invalid_calibration_costs_only_its_figure(tmp_path: Path) -> None:
    """Figures that need other files are still shown."""
    run = Experiment(**QUADRATIC).run(tmp_path, jobs=1).path
    empty = {"measured": {"mean staleness": 1, "updates per second": 1}, "staleness": [], "parts": []}
    for calibration in (empty | {"predicted": empty["measured"]}, [], {}, None, 3):
        (run / "calibration.json").write_text(json.dumps(calibration))
        page = json.loads(RunIndex(tmp_path, tmp_path).render_runs([run.name], complete=True))
        assert "no figure of calibration" in page["problems"][0]
        assert {"loss", "staleness"} <= {figure["name"] for figure in page["figures"]}


def test_damaged_studies_are_rows_with_a_problem(tmp_path: Path) -> None:
    """Circular links, a folder named like a file, invalid addresses, links to files outside."""
    for name in ("circle", "folder", "null", "elsewhere"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "README.md").write_text("words ![a](%00.png) ![b](round.png)")
    (tmp_path / "results" / "circle" / "round.png").symlink_to("round.png")
    (tmp_path / "results" / "folder" / "page.md").mkdir()
    (tmp_path / "results" / "folder" / "summaries.parquet").write_text("no")
    (tmp_path / "secret.md").write_text("hidden words")
    (tmp_path / "secret.png").write_text("hidden words")
    for name in ("secret.md", "secret.png"):
        (tmp_path / "results" / "elsewhere" / name).symlink_to(tmp_path / name)
    index = RunIndex(tmp_path / "runs", tmp_path / "results")
    rows = {row["name"]: row for row in index.list_studies()}
    assert set(rows) == {"circle", "folder", "null", "elsewhere"}
    assert "summaries" in rows["folder"]["problems"][0] and rows["null"]["problems"] == []
    for name in rows:
        page = render_html_report([], [index.open_study(name)], embedded=False)
        assert "words" in page and "hidden" not in page and "aGlkZGVu" not in page


def copies(folder: Path, count: int) -> None:
    """Write copies of one run under different names."""
    record = Experiment(**QUADRATIC).run(folder / "first", jobs=1).path
    texts = {
        name: (record / name).read_text() for name in ("experiment.toml", "summary.json", "environment.json")
    }
    for number in range(count):
        place = folder / f"run-{number}"
        place.mkdir()
        for name, text in texts.items():
            (place / name).write_text(text)


def test_pages_say_when_runs_are_left_out(tmp_path: Path) -> None:
    copies(tmp_path, 45)
    page = json.loads(
        RunIndex(tmp_path, tmp_path).render_runs([f"run-{n}" for n in range(45)], complete=False)
    )
    assert len(page["runs"]) == 40 and "40 of 45" in page["notes"][0]


def test_hundreds_of_runs_are_listed_quickly(tmp_path: Path) -> None:
    copies(tmp_path, 400)
    index = RunIndex(tmp_path, tmp_path)
    started = time.thread_time()
    assert len(index.list_runs()) == 400
    first = time.thread_time() - started
    started = time.thread_time()
    index.list_runs()
    assert first < 10 and time.thread_time() - started < max(0.1, first / 2)


@pytest.mark.slow
def test_a_million_arrivals_give_a_small_page(tmp_path: Path) -> None:
    record = Experiment(**QUADRATIC, workers=5).run(tmp_path, jobs=1)
    count = 1_000_000
    number = np.arange(count)
    columns = {"time": number / 5 + 1.0, "started": number / 5, "worker": number % 5, "index": number // 5}
    columns |= {"compute": np.ones(count), "delay": np.zeros(count)}
    columns |= {"version": number, "staleness": number % 7, "gap": number / count, "loss": 1 / (1 + number)}
    columns |= {"gradient_norm": number / 3, "weight_norm": number / 2}
    table = pl.DataFrame(columns | {"decision": ["applied"] * count}, schema_overrides=ARRIVALS)
    table.select(*ARRIVALS).write_parquet(record.path / "arrivals.parquet")
    index = RunIndex(tmp_path, tmp_path)
    started = time.monotonic()
    page = index.render_runs([record.path.name], complete=True)
    first = time.monotonic() - started
    assert len(page) < 2_000_000
    started = time.thread_time()
    assert index.render_runs([record.path.name], complete=True) is page
    assert time.thread_time() - started < 0.1 and first < 100


def test_new_parts_of_a_running_run_are_read(tmp_path: Path) -> None:
    """Parts appear as they are written; a resume from an earlier checkpoint removes the later ones."""
    text = Experiment(**QUADRATIC).to_toml()
    row = dict.fromkeys(ARRIVALS, 0) | {"decision": "applied"}
    index = RunIndex(tmp_path, tmp_path)

    def seen() -> list[int]:
        return index.open_run("run")[1].jobs["index"].to_list()

    with Recorder(tmp_path / "run", text, ["straggler"]) as recorder:
        assert seen() == []
        for number in range(3):
            recorder.add_arrival(**row | {"index": number})
            recorder.flush()
            assert seen() == list(range(number + 1))
        (tmp_path / "run" / "arrivals.parts" / "000002.parquet").unlink()
        os.utime(tmp_path / "run" / "arrivals.parts")
        assert seen() == [0, 1]
        recorder.finish({"status": "finished"})
    assert seen() == Record(tmp_path / "run").arrivals["index"].to_list()


def test_killed_run_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, Experiment(**QUADRATIC).to_toml(), ["straggler"]):
        pass
    index = RunIndex(tmp_path, tmp_path)
    assert index.list_runs()[0]["status"] == "lost"
    with FileLock(folder / ".lock"):
        assert index.list_runs()[0]["status"] == "running"
    assert index.list_runs()[0]["status"] == "lost"


TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5}


def progress(index: RunIndex) -> dict[str, Any]:
    (row,) = index.list_progress()
    return row


def test_killed_sweep_is_lost(tmp_path: Path) -> None:
    found = plan_runs([Cell({"row": "a"}, TINY)], [0, 1])
    file = ProgressFile(tmp_path / "x", SweepProgress(found))
    index = RunIndex(tmp_path, tmp_path)
    with file:
        file.progress.update(RunEvent(found[0], "progress", 0.25))
        file._write("running")
        os.utime(tmp_path / "x" / "progress.json", (1, 1))  # a long evaluation: no news
        row = progress(index)
        assert row["status"] == "running" and row["active"][0]["part"] == 0.25
        assert "ids" not in row  # sent with the studies, which change rarely
        assert index.list_studies()[0] | {"problems": []} == {
            "name": "x",
            "runs": 0,
            "verdicts": {},
            "report": False,
            "ids": [task.id for task in found],
            "problems": [],
        }
        left_behind = (tmp_path / "x" / "progress.json").read_text()
    assert progress(index)["status"] == "finished"
    (tmp_path / "x" / "progress.json").write_text(left_behind)  # left behind by kill -9
    assert progress(index)["status"] == "lost"
    with FileLock(tmp_path / "x" / ".lock"):
        assert progress(index)["status"] == "running"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "[]",
        "null",
        '{"status": "<b>"}',
        '{"status": "running", "runs": "many", "left": NaN, "part": true, "active": {"a": 1}, "ids": [1]}',
        '{"status": "running", "active": [1, null, {"id": 3}], "failures": "x", "left": -1}',
    ],
)
def test_invalid_progress_is_a_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "progress.json").write_text(text)
    index = RunIndex(tmp_path, tmp_path)
    row = progress(index)
    assert row["status"] in ("damaged", "running") and isinstance(row["active"], list)
    assert row.get("left") is None and row.get("runs") is None
    json.dumps([row, index.list_studies()], allow_nan=False)


def test_ids_of_a_study_are_unique(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    pl.DataFrame({"id": ["b", "a", "b"]}).write_parquet(tmp_path / "s" / "summaries.parquet")
    (tmp_path / "s" / "progress.json").write_text('{"status": "finished", "ids": ["a", "c"]}')
    (row,) = RunIndex(tmp_path, tmp_path).list_studies()
    assert row["ids"] == ["b", "a", "c"] and row["runs"] == 2 and row["report"] is True
