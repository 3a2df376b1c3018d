"""The live server: pages, the feed of changes, starting and stopping runs."""

import http.client
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from web_testing import (
    Site,
    serve_site,
)

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.web.server import find_changes, run_server


def test_page_scripts_figures_and_reports(here: Site) -> None:
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
    names = [row["id"] for row in rows]  # other tests start runs too
    both = here.ask("/api/figures?complete=1&" + "&".join(f"id={name}" for name in names)).json()
    assert len(both["runs"]) == len(both["rows"]) == 2
    assert {"loss", "staleness"} <= {figure["name"] for figure in both["figures"]}
    assert "<h1>Straggler: 2 runs</h1>" in here.ask(f"/reports/runs/{','.join(names)}").text
    file = here.ask(f"/reports/runs/{names[0]}?download=1")
    assert "attachment" in file.headers["content-disposition"] and len(file.body) > 4_000_000


def test_event_stream_starts_with_the_whole_state(here: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=120)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    line = answer.readline().decode()
    connection.close()
    event = json.loads(line.removeprefix("data: "))
    assert sorted(row["id"] for row in event["runs"]) == here.list_ids()


def test_find_changes() -> None:
    before = {"runs": {"a": {"id": "a", "k": 1}, "b": {"id": "b"}}, "studies": [], "started": {}}
    now = {"runs": {"a": {"id": "a", "k": 2}, "c": {"id": "c"}}, "studies": [], "started": {"c": 1}}
    assert find_changes(before, before) == {}
    assert find_changes(before, now) == {
        "runs": [{"id": "a", "k": 2}, {"id": "c"}],
        "gone": ["b"],
        "started": {"c": 1},
    }


def test_used_port_is_an_input_error(here: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--port \d+: .* --port 0"):
        run_server(tmp_path, tmp_path, "127.0.0.1", here.port, None, lambda url: None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "asdg"}, "asgd"),
        ({"workers": 0}, "workers"),
        ({"workers": 1e9}, "256"),
        ({"lr": "much"}, "lr"),
        ({"lr": -1}, "lr"),
        ({"delay": ["trace(file='/etc/passwd')"]}, "delay"),
        ({"compute": "trace(/etc/passwd)"}, "compute"),
        ({"engine": "processes"}, "engine"),
        ({"out": "/tmp/x"}, "out"),
        ({"--out": "/tmp/x"}, "--out"),
        ({"dataset": ["digits"]}, "dataset"),
        ({"model": {"name": "mlp"}}, "model"),
        ({"dataset": "--force"}, "not offered"),
        ({"dataset": "mixture(samples=1000000000)"}, "not offered"),
        ({"model": "mlp(hidden=[1000000])"}, "not offered"),
        ([1, 2], "JSON object"),
    ],
)
def test_invalid_settings_start_nothing(here: Site, settings: Any, expected: str) -> None:
    before = here.list_ids()
    answer = here.post("/api/runs", settings)
    assert answer.status == 400 and expected in answer.text and "\n" not in answer.text
    assert here.list_ids() == before and here.app.state.handlers.launcher.list_states() == {}


def test_invalid_requests_are_answered(here: Site) -> None:
    long = here.post("/api/runs", {"dataset": "x" * 30_000})
    assert long.status == 413
    for path in ("/api/preview?workers=a", "/api/preview?nothing=1", "/api/preview?delay=x("):
        assert here.ask(path).status == 400
    assert here.ask("/api/nothing").status == 404
    assert here.post("/api/runs/unknown/stop").status == 400


def test_finished_run_is_not_started_again(here: Site, tmp_path: Path) -> None:
    settings = {"dataset": "mixture", "model": "linear", "epochs": 1}
    experiment = Experiment(**settings)
    experiment.run(here.runs, jobs=1)
    answer = here.post("/api/runs", settings).json()
    assert answer == {"id": experiment.id, "started": False}


@pytest.mark.slow
def test_two_runs_at_once_and_stopping_writes_checkpoints(tmp_path: Path) -> None:
    """Of three requests two start; one run is stopped by the page, the other by the end of the server."""
    settings = {"dataset": "digits", "model": "lenet5", "epochs": 200}
    with serve_site(tmp_path / "runs", tmp_path) as here:
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
