"""Records and studies made by a stranger: one bad record is one bad row with its reason, and costs little."""

import contextlib
import http.client
import http.server
import io
import json
import os
import resource
import shutil
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from web_testing import QUADRATIC, serve_site

from straggler.analysis.figures.plot import plot
from straggler.analysis.record_description import describe_record
from straggler.experiment import Experiment
from straggler.record import ARRIVALS, Record, RecordError
from straggler.web import run_facts
from straggler.web.report import render_html_report, report
from straggler.web.run_index import RunIndex

DEEP = "[" * 100_000
SECRET = "hidden words"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of a run."""
    return Experiment(**QUADRATIC, snapshots=4).run(tmp_path_factory.mktemp("good"), jobs=1).path


def edit_settings(folder: Path, old: str, new: str) -> None:
    text = (folder / "experiment.toml").read_text()
    assert old in text
    (folder / "experiment.toml").write_text(text.replace(old, new))


def replace_by(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a damage: delete a file of a record and make something else of that name."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def link_to_secret(path: Path) -> None:
    secret = path.parents[2] / "secret"
    secret.write_text(f'policy = "{SECRET}"\nworkers = 3\n')
    path.symlink_to(secret)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "deep summary": (replace_by("summary.json", lambda p: p.write_text(DEEP)), "levels deep"),
    "deep settings": (replace_by("experiment.toml", lambda p: p.write_text(f"a = {DEEP}")), "levels deep"),
    "deep tables": (
        replace_by("experiment.toml", lambda p: p.write_text(".".join("a" * 400_000) + " = 1")),
        "16 parts",
    ),
    "FIFO for summary": (replace_by("summary.json", os.mkfifo), "not a regular file"),
    "FIFO for settings": (replace_by("experiment.toml", os.mkfifo), "not a regular file"),
    "FIFO for arrivals": (replace_by("arrivals.parquet", os.mkfifo), "not a regular file"),
    "endless summary": (replace_by("summary.json", lambda p: p.symlink_to("/dev/zero")), "link"),
    "endless settings": (replace_by("experiment.toml", lambda p: p.symlink_to("/dev/zero")), "regular"),
    "endless curve": (replace_by("curve.parquet", lambda p: p.symlink_to("/dev/zero")), "link"),
    "large summary": (replace_by("summary.json", lambda p: os.truncate(p.touch() or p, 10**12)), "limit"),
    "large settings": (replace_by("experiment.toml", lambda p: os.truncate(p.touch() or p, 10**12)), "limit"),
    "settings elsewhere": (replace_by("experiment.toml", link_to_secret), "regular"),
    "summary elsewhere": (replace_by("summary.json", link_to_secret), "link"),
    "a folder": (replace_by("summary.json", Path.mkdir), "Is a directory"),
    "a pair of workers": (
        lambda run: edit_settings(run, "workers = 4", "workers = [1, 1000000000]"),
        "workers",
    ),
    "a large number": (replace_by("summary.json", lambda p: p.write_text('{"a": 1e999}')), "too large"),
    "long text": (
        lambda run: edit_settings(run, '"asynchronous"', f'"{"x-" * 250_000}"'),
        "",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_bad_record_is_a_bad_row(what: str, good: Path, tmp_path: Path) -> None:
    """The pages go on, the reason is shown, and `show` and `report` say it in one line."""
    damage, reason = DAMAGES[what]
    bad = Path(shutil.copytree(good, tmp_path / "runs" / "bad"))
    shutil.copytree(good, tmp_path / "runs" / "good")
    damage(bad)
    index, started = RunIndex(tmp_path / "runs", tmp_path / "none"), time.thread_time()
    rows = {row["id"]: row for row in index.list_runs()}
    assert set(rows) == {"bad", "good"} and rows["good"]["status"] == "finished"
    assert len(json.dumps(rows, allow_nan=False)) < 25_000
    page = ""
    with contextlib.suppress(RecordError):  # experiment.toml is not a regular file
        page = index.render_runs(["bad"], complete=True)
    problems = [*rows["bad"]["problems"], *(json.loads(page)["problems"] if page else [])]
    assert any(reason in problem for problem in problems), problems
    assert SECRET not in page and SECRET not in json.dumps(rows)
    json.loads(index.render_runs(["good"], complete=True))
    assert time.thread_time() - started < 20


def test_commands_refuse_a_bad_record_in_one_line(good: Path, tmp_path: Path) -> None:
    for name in ("FIFO for settings", "deep summary", "endless summary", "settings elsewhere"):
        bad = Path(shutil.copytree(good, tmp_path / name.replace(" ", "-") / "bad"))
        DAMAGES[name][0](bad)
        for command in (lambda bad=bad: describe_record(Record(bad)), lambda bad=bad: plot(bad, "pareto")):
            with pytest.raises(RecordError) as caught:
                command()
            assert len(str(caught.value).splitlines()) == 1 and SECRET not in str(caught.value)


def test_the_feed_of_changes_recovers(good: Path, tmp_path: Path) -> None:
    """A record that no code expects must not end the feed; the next poll shows the folder again."""
    shutil.copytree(good, tmp_path / "runs" / "good")
    with serve_site(tmp_path / "runs", tmp_path / "none") as site:
        index = site.app.state.handlers.index
        works, fails = index.list_runs, [True]

        def list_runs() -> list[dict[str, Any]]:
            if fails[0]:
                raise RuntimeError("unexpected")
            return works()

        index.list_runs = list_runs
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=120)
        connection.request("GET", "/api/events")
        answer = connection.getresponse()
        time.sleep(0.6)
        fails[0] = False
        line = answer.readline().decode()
        connection.close()
    assert [row["id"] for row in json.loads(line.removeprefix("data: "))["runs"]] == ["good"]


def test_pages_survive_all_bad_records_at_once(good: Path, tmp_path: Path) -> None:
    """Through a real server: the list, the feed and each run's figures are answered."""
    for what, (damage, _) in DAMAGES.items():
        damage(Path(shutil.copytree(good, tmp_path / "runs" / what.replace(" ", "-"))))
    with serve_site(tmp_path / "runs", tmp_path / "none") as site:
        rows = site.ask("/api/runs")
        assert rows.status == 200 and len(rows.json()) == len(DAMAGES)
        for row in rows.json():
            assert site.ask(f"/api/figures?id={row['id']}").status in (200, 404)
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=120)
        connection.request("GET", "/api/events")
        assert connection.getresponse().readline().startswith(b'data: {"runs"')
        connection.close()


# Bombs: small files that are large in memory.


def write_bomb(path: Path, rows: int) -> None:
    columns = {
        name: pl.repeat(1, rows, dtype=pl.Int64, eager=True) for name in ARRIVALS if name != "decision"
    }
    decision = pl.repeat("applied", rows, eager=True)
    pl.DataFrame(columns | {"decision": decision}).write_parquet(
        path, compression="zstd", row_group_size=rows
    )


def measure_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_parquet_bombs_are_not_decoded(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Path(shutil.copytree(good, tmp_path / "bad"))
    write_bomb(bad / "arrivals.parquet", 1_000_000)
    assert (bad / "arrivals.parquet").stat().st_size < 200_000
    monkeypatch.setattr("straggler.running.parquet_files.MAX_TABLE_BYTES", 50_000_000)
    before = measure_peak()
    with pytest.raises(RecordError, match="GB of memory"):
        _ = Record(bad).history
    page = json.loads(RunIndex(tmp_path, tmp_path).render_runs(["bad"], complete=True))
    assert "GB of memory" in page["problems"][0] and measure_peak() - before < 50_000_000


def test_runs_shown_together_have_one_limit(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        write_bomb(shutil.copytree(good, tmp_path / name) / "arrivals.parquet", 10_000)
    needed = Record(tmp_path / "a").estimate_memory()
    assert needed > 13 * 10_000 * 8
    monkeypatch.setattr(run_facts, "MAX_FIGURE_BYTES", int(2.5 * needed))
    page = json.loads(RunIndex(tmp_path, tmp_path).render_runs(["a", "b", "c"], complete=False))
    assert len(page["runs"]) == 2 and "c needs" in page["notes"][0]
    problems = list[str]()
    report([tmp_path / name for name in "abc"], tmp_path / "x.md", on_problem=problems.append)
    assert "c needs" in problems[0]
    monkeypatch.setattr(run_facts, "MAX_FIGURE_BYTES", needed // 2)
    with pytest.raises(RecordError, match="a needs"):
        RunIndex(tmp_path, tmp_path).render_runs(["a"], complete=False)


# Nothing is read elsewhere.


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A web server, and the requests that it received."""
    requests = list[str]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/x.parquet", requests
        server.shutdown()


@pytest.mark.parametrize("key", ["compute", "delay", "churn"])
def test_showing_a_record_reads_no_trace_and_no_address(
    key: str, good: Path, tmp_path: Path, listener: tuple[str, list[str]]
) -> None:
    address, requests = listener
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)  # reading it would wait for ever
    for name, file in (("web", address), ("pipe", str(pipe))):
        bad = Path(shutil.copytree(good, tmp_path / "runs" / name))
        law = f"{'churn-' * (key == 'churn')}trace(file='{file}')"
        text = (bad / "experiment.toml").read_text()
        lines = [line for line in text.splitlines() if not line.startswith(f"{key} =")]
        value = f'"{law}"' if key == "compute" else f'["{law}"]'
        (bad / "experiment.toml").write_text("\n".join([f"{key} = {value}", *lines]))
        index = RunIndex(tmp_path / "runs", tmp_path)
        page = json.loads(index.render_runs([name], complete=True))
        assert f"--{key}" in page["runs"][0]["command"] and file in page["runs"][0]["command"]
        assert {row["status"] for row in index.list_runs()} == {"finished"}
        report([bad], tmp_path / "x.html", on_problem=lambda problem: None)
    assert requests == []


def test_showing_a_record_reads_no_text_file(good: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    bad = Path(shutil.copytree(good, tmp_path / "bad"))
    lines = (bad / "experiment.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("dataset", "model", "partition"))]
    text = f"text(path='{tmp_path / 'pipe.txt'}')"
    (bad / "experiment.toml").write_text("\n".join([f'dataset = "{text}"', 'model = "gpt"', *kept]))
    page = json.loads(RunIndex(tmp_path, tmp_path).render_runs(["bad"], complete=True))
    assert text in page["runs"][0]["toml"]


def test_settings_that_need_many_draws_are_not_drawn(good: Path, tmp_path: Path) -> None:
    bad = Path(shutil.copytree(good, tmp_path / "bad"))
    edit_settings(bad, 'work = "gradient"', 'work = "local(steps=1000000000)"')
    started = time.thread_time()
    RunIndex(tmp_path, tmp_path).render_runs(["bad"], complete=True)
    assert time.thread_time() - started < 20


def test_parts_behind_a_link_are_neither_read_nor_deleted(good: Path, tmp_path: Path) -> None:
    """`arrivals.parts` may lead to the user's own files, which a resumed run would delete."""
    bad, own = Path(shutil.copytree(good, tmp_path / "runs" / "bad")), tmp_path / "own"
    own.mkdir()
    shutil.move(bad / "arrivals.parquet", own / "000000.parquet")
    (bad / "arrivals.parts").symlink_to(own)
    (bad / "summary.json").write_text('{"status": "running"}')
    assert Record(bad).history.is_empty()
    assert RunIndex(tmp_path / "runs", tmp_path).open_run("bad")[1].jobs.is_empty()
    experiment = Experiment.from_record(Record(bad))
    bad.rename(bad.with_name(experiment.id))
    with pytest.raises(RecordError, match="is a link"):
        experiment.run(tmp_path / "runs", jobs=1)
    assert (own / "000000.parquet").exists()


def test_a_copied_run_with_a_time_in_the_future_is_lost(good: Path, tmp_path: Path) -> None:
    bad = Path(shutil.copytree(good, tmp_path / "bad"))
    (bad / "summary.json").write_text('{"status": "running"}')
    os.utime(bad / "summary.json", (time.time() + 3600,) * 2)
    assert Record(bad).status == "lost"
    assert RunIndex(tmp_path, tmp_path).list_runs()[0]["status"] == "lost"


# Studies.


def make_study(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# Words\n\n![a](plot.png) ![b](inner/plot.png)\n")
    return folder


def link_file(folder: Path) -> None:
    (folder.parents[1] / "secret").write_text(SECRET)
    for name in ("claims.json", "notes.md", "plot.png", "summaries.parquet"):
        (folder / name).symlink_to(folder.parents[1] / "secret")
    (folder / "inner").symlink_to(folder.parents[1])
    (folder.parents[1] / "plot.png").write_text(SECRET)


def write_study_bomb(folder: Path) -> None:
    pl.DataFrame({"id": pl.repeat("x" * 20_000, 5_000, eager=True)}).write_parquet(
        folder / "summaries.parquet"
    )


STUDIES: dict[str, Callable[[Path], object]] = {
    "deep": lambda study: (study / "claims.json").write_text(DEEP),
    "pipe": lambda study: [os.mkfifo(study / name) for name in ("claims.json", "x.md", "plot.png")],
    "zero": lambda study: (study / "claims.json").symlink_to("/dev/zero"),
    "links": link_file,
    "progress": lambda study: (study / "progress.json").write_text(DEEP),
    "progress-pipe": lambda study: os.mkfifo(study / "progress.json"),
    "bomb": write_study_bomb,
    "not-text": lambda study: (study / "other.md").write_bytes(b"\xff\xfe"),
    "list": lambda study: (study / "claims.json").write_text('[1, {"verdict": {"a": []}}]'),
}


@pytest.mark.parametrize("what", STUDIES)
def test_a_bad_study_is_a_row(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("straggler.running.parquet_files.MAX_TABLE_BYTES", 50_000_000)
    STUDIES[what](make_study(tmp_path / "results" / what))
    make_study(tmp_path / "results" / "good")
    index, started = RunIndex(tmp_path / "runs", tmp_path / "results"), time.thread_time()
    rows = {row["name"]: row for row in index.list_studies()}
    json.dumps([*rows.values(), *index.list_progress()], allow_nan=False)
    assert set(rows) == {what, "good"} and rows["good"]["problems"] == []
    for name in rows:
        page = render_html_report([], [index.open_study(name)], embedded=False)
        assert "Words" in page and SECRET not in page and "aGlkZGVu" not in page
    assert time.thread_time() - started < 20


def test_show_removes_control_characters(good: Path, tmp_path: Path) -> None:
    """A terminal obeys escape sequences: a record must not move the cursor, or write its clipboard."""
    bad = Path(shutil.copytree(good, tmp_path / "bad"))
    summary = json.loads((bad / "summary.json").read_text()) | {"error": "\x1b]52;c;aGk=\x07 \x9b2J"}
    (bad / "summary.json").write_text(json.dumps(summary | {"\x1b[2J": 1}))
    edit_settings(bad, '"asynchronous"', '"\\u001B[31masynchronous"')
    console = Console(file=io.StringIO(), width=100)
    console.print(describe_record(Record(bad)))
    assert not {"\x1b", "\x07", "\x9b"} & set(console.file.getvalue())  # type: ignore[attr-defined]
