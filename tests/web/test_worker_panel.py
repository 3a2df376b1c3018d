"""The panel of the workers: utilisation, jobs, restarts, the last sign of life."""

import json
from pathlib import Path

import pytest
from web_testing import QUADRATIC

from straggler.experiment import Experiment
from straggler.web.run_facts import RunFacts
from straggler.web.worker_panel import describe_workers


@pytest.mark.parametrize("method", ["asgd", "ssgd", "k-sync", "k-batch-sync"])
def test_shares_and_counts_agree_with_the_record(tmp_path: Path, method: str) -> None:
    settings = QUADRATIC | {"delay": ["constant(2, workers=[0])"]}
    run = RunFacts(Experiment(**settings, method=method).run(tmp_path, jobs=1).path)
    rows = describe_workers(run)
    assert [row["worker"] for row in rows] == [0, 1, 2, 3]
    assert all(row["computing"] + row["delayed"] + row["waiting"] <= 100.1 for row in rows)
    assert sum(row["gradients"] for row in rows) == run.jobs["decision"].is_in(["applied", "held"]).sum()
    for kind in ("dropped", "cancelled"):
        assert sum(row[kind] for row in rows) == (run.jobs["decision"] == kind).sum()
    assert min(row["quiet"] for row in rows) == 0
    if method == "asgd":
        assert rows[0]["delayed"] > 30 and rows[1]["delayed"] == 0 and rows[1]["computing"] > 80


def test_restarts_silent_workers_and_hostile_events(tmp_path: Path) -> None:
    path = Experiment(**QUADRATIC).run(tmp_path, jobs=1).path
    events = [{"time": 1.0, "worker": 2, "what": "killed (signal 9)"}] * 2
    odd = [{"time": 1.0, "worker": [1], "what": "x"}, {"time": 2.0, "worker": "a", "what": {}}]
    (path / "events.json").write_text(json.dumps([*events, *odd]))
    text = (path / "experiment.toml").read_text()
    (path / "experiment.toml").write_text(text.replace("workers = 4", "workers = 5"))
    rows = describe_workers(RunFacts(path))
    assert [row["restarts"] for row in rows] == [0, 0, 2, 0, 0] and rows[2]["reason"] == "killed (signal 9)"
    assert rows[4]["last"] is None and rows[4]["gradients"] == 0
