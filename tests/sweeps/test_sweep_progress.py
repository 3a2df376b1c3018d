"""The progress of a sweep, and its file for the web pages."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from straggler.experiment import Experiment
from straggler.record import Record, RecordError
from straggler.sweeps.cost import CostModel
from straggler.sweeps.grid import Cell, plan_runs
from straggler.sweeps.pool import LocalPool, RunEvent
from straggler.sweeps.progress import ProgressFile, SweepProgress, format_duration
from straggler.sweeps.runner import plan_sweep

TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}


def test_the_time_left_follows_from_the_work_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    runs = plan_runs([Cell({}, TINY), Cell({}, TINY | {"lr": 0.2})], [0])
    for run in runs:
        run.seconds = 10.0
    progress = SweepProgress(runs)
    assert progress.seconds_left is None
    now[0] = 10.0
    progress.update(RunEvent(runs[0], "progress", 0.5))
    assert progress.seconds_left == pytest.approx(30.0)  # 5 of 20 took 10
    progress.update(RunEvent(runs[0], "done", {}))
    assert progress.seconds_left == pytest.approx(10.0)
    assert str(progress) == "1 of 2 runs, 10 s left"
    assert [format_duration(s) for s in (40, 720, 11160)] == ["40 s", "12 min", "3.1 h"]


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("cores", [1, 2])
def test_runs_that_ended_correct_the_time_left(
    factor: float, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first run of each kind the time left is right, however wrong the estimates were."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    kinds = {"linear": factor, "mlp": 3 * factor}
    cells = [Cell({}, TINY | {"model": model, "lr": lr}) for lr in (0.1, 0.2, 0.3, 0.4) for model in kinds]
    runs = plan_runs(cells, [0])
    for run in runs:
        run.seconds = 10.0
    progress, queue, running = SweepProgress(runs), list(runs), dict[float, list[Any]]()
    seen, predictions = set[str](), list[tuple[float, float]]()
    while queue or running:
        while queue and sum(map(len, running.values())) < cores:
            run = queue.pop(0)
            ends = now[0] + 10.0 * kinds[str(run.experiment.model).split("(")[0]]  # type: ignore[union-attr]
            running.setdefault(ends, []).append(run)
            progress.update(RunEvent(run, "progress", 0.0))
        now[0] = min(running)
        for run in running.pop(now[0]):
            progress.update(RunEvent(run, "done", {}))
            seen.add(str(run.experiment.model))  # type: ignore[union-attr]
            if len(seen) == 2 and queue and progress.seconds_left is not None:
                predictions.append((now[0], progress.seconds_left))
    assert predictions
    for moment, left in predictions:
        slack = 0.0 if cores == 1 else 30.0 * factor  # a run that has not ended counts as a whole
        assert abs(left - (now[0] - moment)) <= 0.3 * (now[0] - moment) + slack


def test_finished_runs_correct_the_estimates_of_a_plan(tmp_path: Path) -> None:
    run = plan_runs([Cell({}, TINY)], [0])[0]
    assert isinstance(run.experiment, Experiment)
    record, costs = run.experiment.run(tmp_path, jobs=1), CostModel()
    costs.learn(run, record)
    (record.path / "summary.json").write_text(json.dumps(record.summary | {"host_seconds": 123.0}))
    other = CostModel()
    other.learn(run, Record(record.path))
    assert other.estimate(run) == pytest.approx(123.0, abs=20.0)  # and the last evaluation
    assert costs.estimate(run) >= record.summary["host_seconds"]
    pool = LocalPool(1, tmp_path)
    plan = plan_sweep("a", [Cell({}, TINY)], [0, 1, 2], pool, tmp_path / "results")
    assert plan.is_learned and plan.seconds == pytest.approx(246.0, abs=40.0)
    (record.path / "environment.json").write_text(json.dumps(record.environment | {"cores": 10_000}))
    elsewhere = plan_sweep("a", [Cell({}, TINY)], [0, 1, 2], pool, tmp_path / "results")
    assert not elsewhere.is_learned


def test_every_run_is_done_failed_or_missing() -> None:
    runs = plan_runs([Cell({"row": "a"}, TINY), Cell({"row": "b"}, TINY | {"lr": 0.2})], [0, 1])
    for run in runs:
        run.seconds = 10.0
    progress = SweepProgress(runs, cached=3)
    progress.update(RunEvent(runs[1], "progress", 0.5))
    progress.update(RunEvent(runs[0], "done", {}))
    progress.update(RunEvent(runs[2], "failed", "no memory"))
    content = progress.to_dict()
    assert [content[key] for key in ("runs", "done", "failed", "missing")] == [7, 4, 1, 2]
    assert content["part"] == pytest.approx(5.5 / 7)
    assert content["active"] == [{"id": runs[1].id, "what": "row=a, seed 1", "part": 0.5}]
    assert content["failures"] == [{"id": runs[2].id, "what": "row=b, seed 0", "reason": "no memory"}]


@pytest.mark.parametrize(
    ("error", "status"), [(None, "finished"), (KeyboardInterrupt, "interrupted"), (OSError, "failed")]
)
def test_the_file_says_how_the_sweep_ended(
    tmp_path: Path, error: type[BaseException] | None, status: str
) -> None:
    def read_status() -> str:
        return str(json.loads((tmp_path / "progress.json").read_text())["status"])

    def run_until_it_ends() -> None:
        with ProgressFile(tmp_path, SweepProgress([])):
            assert read_status() == "running"
            with pytest.raises(RecordError, match="--results"):  # the folder is locked
                ProgressFile(tmp_path, SweepProgress([])).__enter__()
            if error is not None:
                raise error

    with pytest.raises(error) if error else nullcontext():
        run_until_it_ends()
    assert read_status() == status
