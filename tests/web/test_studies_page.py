"""Studies on the live page and on disk: how they go, that a killed one is known, what is unreadable."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from filelock import FileLock
from playwright.sync_api import Browser, Page, expect
from web_browser import PATIENCE, Visitor, drawn, headless, low_contrast, unnamed
from web_server import site

from straggler.cli.pages import report
from straggler.running import locks
from straggler.sweeps.grid import Cell, plan_runs
from straggler.sweeps.progress import SweepProgress
from straggler.sweeps.status_file import ProgressFile
from straggler.web.run_index import RunIndex

STRAGGLER = [sys.executable, "-m", "straggler"]
TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5}


def progress(index: RunIndex) -> dict[str, Any]:
    (row,) = index.list_progress()
    return row


def test_a_sweep_that_was_killed_does_not_run_for_ever(tmp_path: Path) -> None:
    found = plan_runs([Cell({"row": "a"}, TINY)], [0, 1])
    bulletin = ProgressFile(tmp_path / "x", SweepProgress(found))
    index = RunIndex(tmp_path, tmp_path)
    with bulletin:
        bulletin.tally.spent(found[0], 0.25)
        bulletin._write("running")
        os.utime(tmp_path / "x" / "progress.json", (1, 1))  # a long evaluation: nothing is said
        row = progress(index)
        assert row["status"] == "running" and row["active"][0]["part"] == 0.25
        assert "ids" not in row  # they are told with the studies, which change rarely
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
    (tmp_path / "x" / "progress.json").write_text(left_behind)  # as kill -9 leaves it
    assert progress(index)["status"] == "running"  # it was there a moment ago
    os.utime(tmp_path / "x" / "progress.json", (1, 1))
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
        '{"status": "running", "runs": "many", "left": NaN, "part": true, "at_hand": {"a": 1}, "ids": [1]}',
        '{"status": "running", "at_hand": [1, null, {"id": 3}], "failures": "x", "left": -1}',
    ],
)
def test_whatever_a_progress_says_is_a_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "progress.json").write_text(text)
    index = RunIndex(tmp_path, tmp_path)
    row = progress(index)
    assert row["status"] in ("damaged", "running") and isinstance(row["active"], list)
    assert row.get("left") is None and row.get("runs") is None
    json.dumps([row, index.list_studies()], allow_nan=False)


def test_the_runs_of_a_study_are_known_once_each(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    pl.DataFrame({"id": ["b", "a", "b"]}).write_parquet(tmp_path / "s" / "summaries.parquet")
    (tmp_path / "s" / "progress.json").write_text('{"status": "finished", "ids": ["a", "c"]}')
    (row,) = RunIndex(tmp_path, tmp_path).list_studies()
    assert row["ids"] == ["b", "a", "c"] and row["runs"] == 2 and row["report"] is True


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless() as found:
        yield found


SWEEP = """
dataset = "digits"
model = ["mlp(hidden=[64])", "asu-cifar"]  # of which the second takes other pictures
epochs = 40
eval_every = 1
seeds = 3
"""


def part(page: Page) -> int:
    return int(page.locator("[data-study] > .progress").get_attribute("aria-valuenow") or 0)


@pytest.mark.slow
def test_a_running_sweep_is_followed_and_a_killed_one_is_lost(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "QUIET_SECONDS", 2.0)
    (tmp_path / "wide.toml").write_text(SWEEP)
    runs, results = tmp_path / "runs", tmp_path / "results"
    with site(runs, results) as here, Visitor(browser) as page:
        page.goto(f"{here.url}/#/studies")
        expect(page.locator("#no-studies")).to_be_visible(timeout=PATIENCE)
        command = [*STRAGGLER, "sweep", "wide.toml", "--jobs", "1"]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            card = page.locator('[data-study="wide"]')
            expect(card.locator(".status-running")).to_be_visible(timeout=PATIENCE)
            expect(card.locator(".counts")).to_contain_text("of 6 runs done", timeout=PATIENCE)
            expect(card.locator(".counts")).to_contain_text("left", timeout=PATIENCE)
            assert low_contrast(page) == [] and unnamed(page) == []
            before = part(page)
            page.wait_for_function(
                f"() => document.querySelector('[data-study] > .progress').ariaValueNow > {before + 1}"
            )
            expect(card.get_by_role("link", name="Runs of wide")).to_be_visible(timeout=PATIENCE)
            page.get_by_role("link", name="Runs", exact=True).click()
            expect(page.locator("#active-studies")).to_contain_text("wide is running", timeout=PATIENCE)
            page.go_back()
            card.locator(".active a").first.click()
            drawn(page, "accuracy")
            page.go_back()
            process.kill()
            process.wait()
            expect(card.locator(".status-lost")).to_be_visible(timeout=PATIENCE)
            expect(card.locator(".active")).to_have_count(0)
            page.locator("#theme").click()
            assert low_contrast(page) == [] and unnamed(page) == []
            page.set_viewport_size({"width": 360, "height": 740})
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
            card.get_by_role("link", name="Runs of wide").click()
            expect(page.locator("#study")).to_have_value("wide")
            expect(page.locator("#table tbody tr").first).to_be_visible()
            page.locator("#study").focus()
            page.locator("#study").select_option("")
            expect(page.locator("#study")).to_be_focused()
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rehearsed_study_and_a_run_are_reported_from_disk_without_a_network(
    browser: Browser, tmp_path: Path
) -> None:
    command = [*STRAGGLER, "study", "epfl", "--quick", "--only", "one", "--jobs", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "this is a rehearsal" in done.stdout and "results/epfl-quick/README.md" in done.stdout
    results = tmp_path / "results" / "epfl-quick"
    first = pl.read_parquet(results / "summaries.parquet")["id"][0]
    report([str(results)], tmp_path / "study.html")
    report([str(tmp_path / "runs" / first)], tmp_path / "run.html")
    with Visitor(browser, offline=True) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "study.html").as_uri())
        expect(page.get_by_role("heading", name="Study epfl-quick")).to_be_visible()
        expect(page.locator("blockquote")).to_contain_text("This is a rehearsal, not a result.")
        expect(page.locator("td", has_text="rehearsed")).to_have_count(1)
        expect(page.locator("td", has_text="replicated")).to_have_count(0)
        assert low_contrast(page) == []
        wide = page.locator(".document img").evaluate_all("all => all.map((one) => one.naturalWidth)")
        assert wide and min(wide) > 100
        page.goto((tmp_path / "run.html").as_uri())
        for name in ("accuracy", "staleness", "timeline", "confusion", "partition"):
            drawn(page, name)
        assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
