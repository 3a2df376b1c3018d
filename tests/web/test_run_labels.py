"""Names, tags, notes, the archive and deletion: what is stored, refused, and left on the disk."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from web_testing import QUADRATIC, Site, serve_site

from straggler.experiment import Experiment
from straggler.record import LOCK_FILE
from straggler.web.run_index import RunIndex
from straggler.web.run_labels import LABEL_FILE, RunLabels, read_labels


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Experiment(**QUADRATIC).run(tmp_path_factory.mktemp("record"), jobs=1).path


@pytest.fixture
def site(record: Path, tmp_path: Path) -> Iterator[Site]:
    """A site with three copies of a run, and a folder outside of the runs."""
    for name in ("runs/a", "runs/b", "runs/c", "outside"):
        shutil.copytree(record, tmp_path / name)
    with serve_site(tmp_path / "runs", tmp_path / "results") as found:
        yield found


def label(site: Site, *ids: str, **changes: Any) -> int:
    return site.post("/api/runs/label", {"ids": list(ids), **changes}).status


def delete(site: Site, *ids: str) -> int:
    return site.post("/api/runs/delete", {"ids": list(ids), "count": len(ids)}).status


def list_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_labels_are_stored_beside_the_record_and_listed(site: Site) -> None:
    before = list_files(site.runs / "a")
    assert label(site, "a", name=" Best  ", notes="One\ntwo", add_tags=["paper", "paper"]) == 200
    assert label(site, "a", "b", add_tags=["old"], archived=True) == 200
    assert label(site, "a", remove_tags=["paper", "unknown"]) == 200
    assert read_labels(site.runs / "a") == RunLabels(
        name="Best", tags=["old"], notes="One\ntwo", archived=True
    )
    rows = {row["id"]: row for row in site.ask("/api/runs").json()}
    assert rows["a"]["name"] == "Best" and rows["b"]["tags"] == ["old"] and not rows["c"]["archived"]
    after = list_files(site.runs / "a")
    assert json.loads(after.pop(LABEL_FILE))["name"] == "Best" and after == before
    assert label(site, "a", name="", notes="", remove_tags=["old"], archived=False) == 200
    assert list_files(site.runs / "a") == before  # no labels, no file


def test_running_again_keeps_the_labels(tmp_path: Path) -> None:
    experiment = Experiment(**QUADRATIC)
    folder = experiment.run(tmp_path, jobs=1).path
    (folder / LABEL_FILE).write_text('{"name": "mine"}')
    experiment.run(tmp_path, jobs=1, force=True)
    assert read_labels(folder).name == "mine"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "x" * 121}, "name"),
        ({"name": "bell\x07"}, "control characters"),
        ({"notes": "right\u202eto left"}, "control characters"),
        ({"add_tags": ["two words"]}, "dash"),
        ({"add_tags": [f"tag{number}" for number in range(21)]}, "add_tags"),
        ({"archived": "yes"}, "archived"),
        ({"experiment": "x"}, "unknown key"),
        ({"ids": []}, "ids"),
    ],
)
def test_invalid_labels_change_nothing(site: Site, changes: dict[str, Any], expected: str) -> None:
    answer = site.post("/api/runs/label", {"ids": ["a"], **changes})
    assert answer.status == 400 and expected in answer.text and "\n" not in answer.text
    assert not (site.runs / "a" / LABEL_FILE).exists()


def test_too_many_tags_in_one_of_several_runs_change_none(site: Site) -> None:
    assert label(site, "b", add_tags=[f"tag{number}" for number in range(20)]) == 200
    assert label(site, "a", "b", add_tags=["more"]) == 400
    assert read_labels(site.runs / "a").tags == [] and len(read_labels(site.runs / "b").tags) == 20


@pytest.mark.parametrize("content", ["{", '{"name": 3}', '{"tags": [["x"]]}', '"x"', "[" * 5000, "\x00"])
def test_damaged_labels_do_not_hide_a_run(site: Site, content: str) -> None:
    (site.runs / "a" / LABEL_FILE).write_text(content)
    row = next(row for row in RunIndex(site.runs, site.runs).list_runs() if row["id"] == "a")
    assert row["status"] == "finished" and row["name"] == "" and row["tags"] == []


def test_labels_that_link_elsewhere_are_neither_read_nor_written(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"name": "secret"}')
    (site.runs / "a" / LABEL_FILE).symlink_to(secret)
    assert read_labels(site.runs / "a").name == ""
    assert label(site, "a", name="mine") == 200
    assert secret.read_text() == '{"name": "secret"}' and read_labels(site.runs / "a").name == "mine"


def test_deleting_leaves_everything_else(site: Site, tmp_path: Path) -> None:
    (site.runs / "a" / "link").symlink_to(tmp_path / "outside")
    outside = list_files(tmp_path / "outside")
    assert delete(site, "a", "b") == 200
    assert sorted(path.name for path in site.runs.iterdir()) == ["c"]
    assert list_files(tmp_path / "outside") == outside


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "..",
        ".",
        "",
        "/",
        "a/../../outside",
        "%2e%2e/outside",
        "linked",
        "alias",
        "notes",
        "missing",
        "a\x00",
    ],
)
@pytest.mark.parametrize("change", [label, delete])
def test_only_runs_of_the_folder_can_be_changed(site: Site, tmp_path: Path, name: str, change: Any) -> None:
    """A name that leads elsewhere, a link, a folder without a record: nothing at all changes."""
    (site.runs / "linked").symlink_to(tmp_path / "outside")
    (site.runs / "alias").symlink_to(site.runs / "b")
    (site.runs / "notes").mkdir()
    (site.runs / "notes" / "words.txt").write_text("words")
    options = {"name": "x"} if change is label else {}
    assert change(site, "a", name, **options) == 404
    assert (site.runs / "notes" / "words.txt").exists() and (site.runs / "linked").is_symlink()
    assert (site.runs / "a" / "summary.json").exists() and (tmp_path / "outside" / "summary.json").exists()
    assert not list(tmp_path.rglob(LABEL_FILE))


def test_running_runs_are_not_deleted(site: Site) -> None:
    with FileLock(site.runs / "b" / LOCK_FILE):
        answer = site.post("/api/runs/delete", {"ids": ["a", "b"], "count": 2})
        assert answer.status == 400 and "b is running" in answer.text
    assert (site.runs / "a").exists() and (site.runs / "b").exists()
    assert delete(site, "a", "b") == 200


@pytest.mark.parametrize(
    "body", [{"ids": ["a"]}, {"ids": ["a"], "count": 2}, {"ids": "a", "count": 1}, ["a"], {}]
)
def test_deletion_repeats_the_number_of_runs(site: Site, body: Any) -> None:
    assert site.post("/api/runs/delete", body).status == 400
    assert (site.runs / "a").exists()


@pytest.mark.parametrize("path", ["/api/runs/label", "/api/runs/delete"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Straggler_Token": ""}, 403),
        ({"X_Straggler_Token": "wrong"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
    ],
)
def test_changes_require_our_page(site: Site, path: str, headers: dict[str, str], status: int) -> None:
    body = {"ids": ["a"], "name": "x"} if path.endswith("label") else {"ids": ["a"], "count": 1}
    assert site.post(path, body, **headers).status == status
    assert (site.runs / "a").exists() and not (site.runs / "a" / LABEL_FILE).exists()
    assert site.ask(path).status == 405
