"""The progress of a sweep, and its file for the web pages."""

import json
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from straggler.record import RecordError
from straggler.sweeps.grid import Cell, plan_runs
from straggler.sweeps.pool import RunEvent
from straggler.sweeps.progress import ProgressFile, SweepProgress, format_duration

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
