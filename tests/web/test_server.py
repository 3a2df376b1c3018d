"""The server of the live page: who may ask what, and what is answered, quickly, whatever the records hold."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from filelock import FileLock
from web_server import Site, site

from straggler.algorithms.methods import METHODS
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import ARRIVALS, Record, Recorder
from straggler.web.gallery import partition_counts
from straggler.web.playground import (
    build_experiment,
    list_choices,
    parse_settings,
    preview_run,
    simulate_jobs,
)
from straggler.web.report import render_html_report
from straggler.web.run_facts import RunFacts
from straggler.web.run_index import RunIndex
from straggler.web.server import find_changes, run_server

QUADRATIC: dict[str, Any] = {"dataset": "quadratic(noise=0.1)", "gradients": 40, "compute": "gamma(1, 0.3)"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    runs = tmp_path_factory.mktemp("site") / "runs"
    for method in ("asgd", "ssgd"):
        Experiment(**QUADRATIC, method=method).run(runs, jobs=1)
    with site(runs, runs.parent / "results") as found:
        yield found


def ids(here: Site) -> list[str]:
    return sorted(folder.name for folder in here.runs.iterdir())


# What is answered.


def test_the_page_its_scripts_and_its_pictures(here: Site) -> None:
    page = here.ask("/")
    assert page.status == 200 and here.token in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for script in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
        assert here.ask(script).status == 200
    plotly = here.ask("/static/plotly.js")
    assert "immutable" in plotly.headers["cache-control"] and b"plotly.js v" in plotly.body[:200]
    rows = [row for row in here.ask("/api/runs").json() if row["dataset"].startswith("quadratic")]
    assert {row["method"] for row in rows} == {"asgd", "ssgd"}
    assert {row["status"] for row in rows} == {"finished"}
    names = [row["id"] for row in rows]  # other tests start runs here too
    both = here.ask("/api/figures?complete=1&" + "&".join(f"id={name}" for name in names)).json()
    assert len(both["runs"]) == len(both["rows"]) == 2
    assert {"loss", "staleness"} <= {figure["name"] for figure in both["figures"]}
    assert "<h1>Straggler: 2 runs</h1>" in here.ask(f"/reports/runs/{','.join(names)}").text
    file = here.ask(f"/reports/runs/{names[0]}?download=1")
    assert "attachment" in file.headers["content-disposition"] and len(file.body) > 4_000_000


def test_events_tell_everything_first(here: Site) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    line = answer.readline().decode()
    connection.close()
    told = json.loads(line.removeprefix("data: "))
    assert sorted(row["id"] for row in told["runs"]) == ids(here)


def test_only_what_changed_is_told() -> None:
    before = {"runs": {"a": {"id": "a", "k": 1}, "b": {"id": "b"}}, "studies": [], "started": {}}
    now = {"runs": {"a": {"id": "a", "k": 2}, "c": {"id": "c"}}, "studies": [], "started": {"c": 1}}
    assert find_changes(before, before) == {}
    assert find_changes(before, now) == {
        "runs": [{"id": "a", "k": 2}, {"id": "c"}],
        "gone": ["b"],
        "started": {"c": 1},
    }


# Who may ask.


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "localhost.evil.example", "", "a@b:c"])
def test_a_name_that_was_made_to_point_here_is_refused(here: Site, host: str) -> None:
    for path in ("/", "/api/runs", "/static/app.js"):
        assert here.ask(path, Host=host).status in (400, 421)
    assert here.ask("/", Host="localhost:1").status == here.ask("/", Host="[::1]:9").status == 200


MALICE: dict[str, tuple[dict[str, str], int]] = {
    "another origin": ({"Origin": "http://evil.example"}, 403),
    "another port of this machine": ({"Origin": "http://127.0.0.1:1"}, 403),
    "an origin that hides": ({"Origin": "null"}, 403),
    "an origin that is none": ({"Origin": "http://["}, 403),
    "no origin": ({"Origin": ""}, 403),
    "another site": ({"Sec_Fetch_Site": "cross-site"}, 403),
    "no token": ({"X_Straggler_Token": ""}, 403),
    "a wrong token": ({"X_Straggler_Token": "x"}, 403),
    "a form": ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    "a rebound name": ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
}


@pytest.mark.parametrize("what", MALICE)
def test_starting_and_stopping_is_refused_to(here: Site, what: str) -> None:
    headers, status = MALICE[what]
    before = ids(here)
    assert here.post("/api/runs", {"dataset": "digits"}, **headers).status == status
    assert here.post(f"/api/runs/{before[0]}/stop", **headers).status == status
    assert ids(here) == before and here.app.state.handlers.launcher.list_states() == {}


def test_another_page_may_link_to_us_but_not_ask(here: Site) -> None:
    for origin in ("cross-site", "same-site"):
        assert here.ask("/", Sec_Fetch_Site=origin).status == 200
        assert here.ask("/api/preview?workers=4", Sec_Fetch_Site=origin).status == 403
    assert here.ask("/api/runs", Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_verbs_do_nothing(here: Site, method: str) -> None:
    assert here.ask("/api/runs", method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/api/figures?id=../secret",
        "/api/figures?id=..%2fsecret",
        "/api/figures?id=/etc",
        "/api/figures?id=.",
        "/api/figures?id=",
        "/api/figures?id=link",
        "/api/figures?id=%00",
        "/api/figures",
        "/reports/runs/..%2fsecret",
        "/reports/runs/link",
        "/reports/studies/..%2fruns",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
    ],
)
def test_paths_do_not_leave_their_folder(here: Site, path: str) -> None:
    secret = here.runs.parent / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "experiment.toml").write_text("workers = 3")
    link = here.runs / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    try:
        answer = here.ask(path)
        assert answer.status in (400, 404)
        assert "link" not in {row["id"] for row in here.ask("/api/runs").json()}
        assert b"workers" not in answer.body and b"build_app" not in answer.body
    finally:
        link.unlink()


def test_with_a_token_even_looking_needs_it(tmp_path: Path) -> None:
    with site(tmp_path, tmp_path, token="open sesame") as closed:
        assert closed.ask("/api/runs").status == closed.ask("/").status == 401
        assert closed.ask("/?token=wrong").status == 401
        entry = closed.ask("/?token=open%20sesame")
        assert entry.status == 303
        cookie = entry.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert closed.ask("/", Cookie=cookie.split(";")[0]).status == 200
        assert closed.ask("/api/runs", X_Straggler_Token="open sesame").status == 200


def test_a_port_that_is_taken_is_said(here: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--port \d+: .* --port 0"):
        run_server(tmp_path, tmp_path, "127.0.0.1", here.port, None, lambda url: None)


@pytest.mark.parametrize("token", ["", "short", "ключ от двери", "a\nb\nc\nd\ne\nf"])
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(InputError, match="at least 8"):
        run_server(tmp_path, tmp_path, "127.0.0.1", 0, token, lambda url: None)


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--token"):
        run_server(tmp_path, tmp_path, "0.0.0.0", 0, None, lambda url: None)


# What may be started.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "asdg"}, "Did you mean"),
        ({"workers": 0}, "workers"),
        ({"workers": 1e9}, "at most 256"),
        ({"lr": "much"}, "must be a number"),
        ({"lr": -1}, "lr"),
        ({"delay": ["trace(file='/etc/passwd')"]}, "trace files"),
        ({"compute": "trace(/etc/passwd)"}, "trace files"),
        ({"engine": "processes"}, "cannot be set from the page"),
        ({"out": "/tmp/x"}, "cannot be set from the page"),
        ({"--out": "/tmp/x"}, "cannot be set from the page"),
        ({"dataset": ["digits"]}, "text or a number"),
        ({"model": {"name": "mlp"}}, "text or a number"),
        ({"dataset": "--force"}, "not offered"),
        ({"dataset": "mixture(samples=1000000000)"}, "not offered"),
        ({"model": "mlp(hidden=[1000000])"}, "not offered"),
        ([1, 2], "JSON object"),
    ],
)
def test_bad_settings_start_nothing_and_say_why(here: Site, settings: Any, said: str) -> None:
    before = ids(here)
    answer = here.post("/api/runs", settings)
    assert answer.status == 400 and said in answer.text and "\n" not in answer.text
    assert ids(here) == before and here.app.state.handlers.launcher.list_states() == {}


def test_nonsense_is_answered_not_raised(here: Site) -> None:
    long = here.post("/api/runs", {"dataset": "x" * 30_000})
    assert long.status == 400
    for path in ("/api/preview?workers=a", "/api/preview?nothing=1", "/api/preview?delay=x("):
        assert here.ask(path).status == 400
    assert here.ask("/api/nothing").status == 404
    assert here.post("/api/runs/unknown/stop").status == 400


def test_a_finished_run_is_not_started_again(here: Site, tmp_path: Path) -> None:
    settings = {"dataset": "mixture", "model": "linear", "epochs": 1}
    experiment = Experiment(**settings)
    experiment.run(here.runs, jobs=1)
    answer = here.post("/api/runs", settings).json()
    assert answer == {"id": experiment.id, "started": False}


@pytest.mark.slow
def test_few_at_once_and_stopping_saves(tmp_path: Path) -> None:
    """Three are asked for, two start; one is stopped by the page, one by the end of the server."""
    settings = {"dataset": "digits", "model": "mlp", "epochs": 200}
    with site(tmp_path / "runs", tmp_path) as here:
        names = [here.post("/api/runs", settings | {"seed": seed}).json()["id"] for seed in (1, 2)]
        third = here.post("/api/runs", settings | {"seed": 3})
        assert third.status == 400 and "2 runs" in third.text
        assert here.post("/api/runs", settings | {"seed": 1}).json()["started"] is False

        def statuses() -> dict[str, str]:
            return {row["id"]: row["status"] for row in here.ask("/api/runs").json() if row["spent"]}

        end = time.monotonic() + 120
        while statuses() != dict.fromkeys(names, "running"):
            assert time.monotonic() < end, statuses()
            time.sleep(0.1)
        assert here.post(f"/api/runs/{names[0]}/stop").json()["stopping"]
        while statuses()[names[0]] != "interrupted":
            assert time.monotonic() < end, statuses()
            time.sleep(0.1)
    for name in names:
        folder = tmp_path / "runs" / name
        assert Record(folder).summary["status"] == "interrupted"
        assert list(folder.glob("checkpoint-*"))


# The playground.


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("delay", [[], ["constant(4, workers=[0])", "spikes(0.2, 10)"]])
def test_the_rehearsal_is_the_run_without_its_gradients(
    tmp_path: Path, method: str, delay: list[str]
) -> None:
    workers = 1 if METHODS[method].single else 5
    experiment = Experiment(**QUADRATIC | {"lr": 1e-4}, method=method, workers=workers, delay=delay)
    real = experiment.run(tmp_path, jobs=1).arrivals
    played = simulate_jobs(experiment, 40)
    for column in ("worker", "time", "staleness"):
        assert played[column].to_list() == real[column].to_list()
    assert played["decision"].to_list() == real["decision"].cast(pl.String).to_list()
    known = real["started"].is_not_null()
    assert played["started"].filter(known).to_list() == real["started"].drop_nulls().to_list()


def test_whole_numbers_of_a_page_are_whole_and_exact() -> None:
    assert parse_settings({"seed": str(2**53 + 1)}) == {"seed": 2**53 + 1}
    for value in (2.5, "2.5", "many", 10**600):
        with pytest.raises(InputError, match=r"workers"):
            parse_settings({"workers": value})


def test_a_preview_is_there_at_once() -> None:
    settings = parse_settings({"workers": "8", "dataset": "digits", "delay": ["constant(4, workers=[0])"]})
    experiment = build_experiment(settings)
    preview_run(experiment, settings)  # what is kept between two is there
    seconds = []
    for _ in range(5):
        started = time.thread_time()
        preview_run(build_experiment(settings), settings)
        seconds.append(time.thread_time() - started)
    assert min(seconds) < 0.05


@pytest.mark.parametrize("story", list_choices()["stories"], ids=lambda story: story["title"])
def test_stories_set_what_there_is(story: dict[str, Any]) -> None:
    start = list_choices()["start"]
    assert set(story["set"]) <= set(start) and len(story["text"]) > 80
    assert story["set"].get("method", "asgd") in list_choices()["methods"]


def test_every_choice_is_an_experiment() -> None:
    offered = list_choices()
    for key, table in (("method", "methods"), ("dataset", "datasets"), ("partition", "partitions")):
        for value in offered[table]:
            build_experiment({key: value})
    for model in offered["models"]:
        build_experiment({"model": model})


# Records of all kinds.


def test_one_bad_record_is_a_row_that_says_so(tmp_path: Path) -> None:
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
    ("said", "instead"),
    [
        ("workers = 4", "workers = 1000000000"),
        ('dataset = "mixture"', 'dataset = "mixture(samples=1000000000)"'),
    ],
)
def test_a_record_that_claims_to_be_huge_is_not_dealt_again(tmp_path: Path, said: str, instead: str) -> None:
    run = Experiment(dataset="mixture", model="linear", gradients=20).run(tmp_path, jobs=1).path
    text = (run / "experiment.toml").read_text()
    assert said in text
    (run / "experiment.toml").write_text(text.replace(said, instead))
    started = time.thread_time()
    page = json.loads(RunIndex(tmp_path, tmp_path).render_runs([run.name], complete=True))
    assert {"loss", "staleness", "timeline"} <= {figure["name"] for figure in page["figures"]}
    assert time.thread_time() - started < 5


def test_odd_files_beside_a_record_cost_their_picture_only(tmp_path: Path) -> None:
    """A calibration of nobody, events of no time, a landscape that is none."""
    run = Experiment(**QUADRATIC).run(tmp_path, jobs=1).path
    empty = {"measured": {"mean staleness": 1, "updates per second": 1}, "staleness": [], "parts": []}
    for calibration in (empty | {"predicted": empty["measured"]}, [], {}, None, 3):
        (run / "calibration.json").write_text(json.dumps(calibration))
        page = json.loads(RunIndex(tmp_path, tmp_path).render_runs([run.name], complete=True))
        assert "no picture of the calibration" in page["problems"][0]
        assert {"loss", "staleness"} <= {figure["name"] for figure in page["figures"]}


def test_one_bad_study_is_a_row_that_says_so(tmp_path: Path) -> None:
    """Links in a circle, a folder called like a page, an address that cannot be, a page from elsewhere."""
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
    """As many runs as that, all alike but for their names."""
    record = Experiment(**QUADRATIC).run(folder / "first", jobs=1).path
    texts = {
        name: (record / name).read_text() for name in ("experiment.toml", "summary.json", "environment.json")
    }
    for number in range(count):
        place = folder / f"run-{number}"
        place.mkdir()
        for name, text in texts.items():
            (place / name).write_text(text)


def test_hundreds_of_runs_are_listed_at_once(tmp_path: Path) -> None:
    copies(tmp_path, 400)
    index = RunIndex(tmp_path, tmp_path)
    started = time.thread_time()
    assert len(index.list_runs()) == 400
    first = time.thread_time() - started
    started = time.thread_time()
    index.list_runs()
    assert first < 1.0 and time.thread_time() - started < 0.1


@pytest.mark.slow
def test_a_million_arrivals_make_a_small_page(tmp_path: Path) -> None:
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
    assert time.thread_time() - started < 0.02 and first < 20


def test_a_run_is_followed_part_by_part(tmp_path: Path) -> None:
    """Rows appear as they are written; after a resume that went back they are those of the new parts."""
    text = Experiment(**QUADRATIC).to_toml()
    row = dict.fromkeys(ARRIVALS, 0) | {"decision": "applied"}
    index = RunIndex(tmp_path, tmp_path)

    def seen() -> list[int]:
        return index.open_run("run")[1].arrivals["index"].to_list()

    with Recorder(tmp_path / "run", text, ["straggler"]) as recorder:
        assert seen() == []
        for number in range(3):
            recorder.arrival(**row | {"index": number})
            recorder.flush()
            assert seen() == list(range(number + 1))
        (tmp_path / "run" / "arrivals.parts" / "000002.parquet").unlink()
        os.utime(tmp_path / "run" / "arrivals.parts")
        assert seen() == [0, 1]
        recorder.finish({"status": "finished"})
    assert seen() == Record(tmp_path / "run").arrivals["index"].to_list()


def test_a_killed_run_is_told_from_one_that_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, Experiment(**QUADRATIC).to_toml(), ["straggler"]):
        pass
    index = RunIndex(tmp_path, tmp_path)
    assert index.list_runs()[0]["status"] == "running"  # it was there a moment ago
    os.utime(folder / "summary.json", (1, 1))
    assert index.list_runs()[0]["status"] == "lost"
    with FileLock(folder / ".lock"):
        assert index.list_runs()[0]["status"] == "running"
    assert index.list_runs()[0]["status"] == "lost"


# What the stories say.


def told(tmp_path: Path, **settings: Any) -> Record:
    """A story's run, as the page would start it."""
    base = {"dataset": "digits", "model": "mlp", "compute": "gamma(mean=1, cv=0.2)", "epochs": 10}
    return Experiment(**base | {"workers": 8, "lr": 0.02} | settings).run(tmp_path, jobs=1)


@pytest.mark.slow
def test_momentum_breaks_with_staleness_and_is_repaired(tmp_path: Path) -> None:
    many = {"workers": 16, "lr": 0.01}
    broken, repaired = (told(tmp_path, method=method, **many) for method in ("nag-asgd", "dana-ga"))
    assert not broken.summary["converged"] and repaired.summary["test_accuracy"] > 85
    assert broken.arrivals["staleness"].to_list() == repaired.arrivals["staleness"].to_list()
    assert repaired.arrivals["gap"].mean() < broken.arrivals["gap"].mean() / 10  # type: ignore[operator]


@pytest.mark.slow
def test_synchronous_loses_by_the_clock_and_wins_nothing_by_waiting(tmp_path: Path) -> None:
    slow = {"delay": ["constant(4, workers=[0])"]}
    ours, theirs = told(tmp_path, **slow), told(tmp_path, method="ssgd", **slow | {"lr": 0.1})
    assert theirs.summary["seconds"] > 3 * ours.summary["seconds"]
    assert theirs.summary["max_staleness"] == 0 and ours.summary["max_staleness"] > 25


@pytest.mark.slow
def test_what_only_the_slow_one_knows_is_not_learnt(tmp_path: Path) -> None:
    record = told(tmp_path, partition="label", delay=["constant(9, workers=[0])"])
    counted = partition_counts(RunFacts(record.path))
    assert counted is not None
    classes, counts = counted
    recalls = {name: scores["recall"] for name, scores in record.summary["classes"].items()}
    its_own = {name for name, count in zip(classes, counts[0], strict=True) if count}
    assert max(recalls[name] for name in its_own) < 0.2
    assert min(recalls[name] for name in set(classes) - its_own) > 0.7
