"""Callbacks see every evaluation once, may stop a run, and leave a whole record when they fail."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from straggler import Callback, Experiment, LiveRun, Record, replay
from straggler.config.registry import InputError
from straggler.running.callbacks import CallbackError

SMALL: dict[str, Any] = {
    "dataset": "mixture(samples=400)",
    "model": "linear",
    "workers": 3,
    "compute": "gamma(1, 0.5)",
    "epochs": 4,
    "eval_every": 0.25,
}


class SimulatedCrash(BaseException):
    """A crash: no code catches it, and nothing is saved."""


class Witness(Callback):
    """Remembers every call; crashes, fails or stops when it is told to."""

    arrival_every = 7

    def __init__(self, at: int = -1, action: Any = None) -> None:
        self.at, self.action = at, action
        self.calls, self.rows, self.arrivals = list[str](), list[Any](), list[Any]()

    def on_start(self, run: LiveRun) -> None:
        self.calls.append("resumed" if run.is_resumed else "start")

    def on_arrival(self, run: LiveRun, arrival: Any) -> None:
        self.arrivals.append(arrival)

    def on_evaluation(self, run: LiveRun, row: Any) -> None:
        assert run.curve[-1] == row
        self.rows.append(row)
        if len(self.rows) == self.at:
            self.action(run)

    def on_checkpoint(self, run: LiveRun, path: Path) -> None:
        assert path.is_file()
        self.calls.append("checkpoint")

    def on_end(self, run: LiveRun, summary: Any) -> None:
        self.calls.append(summary["status"])


def crash(run: LiveRun) -> None:
    raise SimulatedCrash


def fail(run: LiveRun) -> None:
    raise LookupError("no such key")


def stop(run: LiveRun) -> None:
    run.stop("far enough")


def test_callbacks_see_the_whole_run_and_change_nothing(tmp_path: Path) -> None:
    witness = Witness()
    plain = Experiment(**SMALL).run(tmp_path / "plain", jobs=1)
    record = Experiment(**SMALL).run(tmp_path, jobs=1, callbacks=[witness], checkpoint_every="20")
    assert record.summary["weights_sha256"] == plain.summary["weights_sha256"]
    assert witness.calls[0] == "start" and witness.calls[-1] == "finished" and "checkpoint" in witness.calls
    assert witness.rows == record.curve.to_dicts()
    assert witness.arrivals == record.arrivals[6::7].to_dicts()
    assert record.summary["stopped_by"] == "epochs"


def test_a_record_displays_the_current_state_of_its_run(tmp_path: Path) -> None:
    shown = list[str]()

    class Display(Callback):
        def on_start(self, run: LiveRun) -> None:
            self.record = run.record

        def on_evaluation(self, run: LiveRun, row: Any) -> None:
            shown.append(self.record._repr_html_())

    Experiment(**SMALL).run(tmp_path, jobs=1, callbacks=[Display()])
    assert len(shown) == 17 and len(set(shown)) > 12 and "<svg" in shown[-1] and "<svg" not in shown[0]


@pytest.mark.parametrize("crashes_at", [2, 9])
def test_every_evaluation_is_seen_once_across_crashes(crashes_at: int, tmp_path: Path) -> None:
    """The second process repeats evaluations that the first one has reported already."""
    experiment, first, second = Experiment(**SMALL), Witness(crashes_at, crash), Witness()
    with pytest.raises(SimulatedCrash):
        experiment.run(tmp_path, jobs=1, callbacks=[first], checkpoint_every="20")
    record = experiment.run(tmp_path, jobs=1, callbacks=[second])
    assert first.calls[-1] == "failed" and second.calls[0] == ("resumed" if crashes_at == 9 else "start")
    if crashes_at == 9:  # the ninth evaluation was not recorded, so it is reported again
        assert first.rows[:-1] + second.rows == record.curve.to_dicts()


@pytest.mark.parametrize("engine", ["simulator", "processes"])
def test_a_callback_stops_a_run_which_is_then_whole(engine: str, tmp_path: Path) -> None:
    record = Experiment(**SMALL, engine=engine).run(tmp_path, jobs=1, callbacks=[Witness(5, stop)])
    summary, last = record.summary, record.curve.to_dicts()[-1]
    assert (summary["status"], summary["stopped_by"]) == ("finished", "far enough")
    assert summary["epochs"] < 4 and record.ended
    for key in ("updates", "gradients", "epochs", "test_loss", "test_accuracy", "bytes_up"):
        assert summary[key] == last[key], key
    assert record.weights() and replay(record).matches
    assert not list(record.path.glob("checkpoint-*"))
    if engine == "simulator":
        assert len(record.curve) == 5


def test_a_stop_before_the_first_update(tmp_path: Path) -> None:
    record = Experiment(**SMALL).run(tmp_path, jobs=1, callbacks=[Witness(1, stop)])
    assert record.summary["updates"] == 0 and record.ended and len(record.curve) == 1


def test_a_stop_survives_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed during the final evaluation: the resumed run ends at the same update."""
    from straggler.running.observer import Observer

    whole = Experiment(**SMALL).run(tmp_path / "whole", jobs=1, callbacks=[Witness(5, stop)])
    with monkeypatch.context() as patch, pytest.raises(SimulatedCrash):
        patch.setattr(Observer, "evaluate_final_model", crash)
        Experiment(**SMALL).run(tmp_path, jobs=1, callbacks=[Witness(5, stop)])
    record = Experiment(**SMALL).run(tmp_path, jobs=1)
    assert record.summary["stopped_by"] == "far enough"
    assert record.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize("at", [1, 6])
def test_a_failing_callback_ends_the_run_with_a_checkpoint(at: int, tmp_path: Path) -> None:
    experiment, failing, second = Experiment(**SMALL), Witness(at, fail), Witness()
    with pytest.raises(CallbackError, match="on_evaluation failed: LookupError: no such key"):
        experiment.run(tmp_path, jobs=1, callbacks=[failing])
    record = Record(tmp_path / experiment.id)
    assert record.status == "failed" and "no such key" in record.summary["error"]
    assert failing.calls[-1] == "failed" and list(record.path.glob("checkpoint-*"))
    whole = Experiment(**SMALL).run(tmp_path / "whole", jobs=1)
    again = experiment.run(tmp_path, jobs=1, callbacks=[second])
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert failing.rows + second.rows == again.curve.to_dicts() == whole.curve.to_dicts()


def test_a_function_is_not_a_callback(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"subclasses of straggler\.Callback"):
        Experiment(**SMALL).run(tmp_path / "runs", callbacks=[print])  # type: ignore[list-item]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("engine", ["simulator", "processes"])
def test_a_target_ends_the_run(engine: str, tmp_path: Path) -> None:
    settings = SMALL | {"epochs": 50, "until": "test_perplexity<=1.9", "metrics": "perplexity", "lr": 0.05}
    record = Experiment(**settings, engine=engine).run(tmp_path, jobs=1)
    summary, curve = record.summary, record.curve
    assert summary["stopped_by"] == "until" and summary["epochs"] < 50
    assert record.settings["until"] == "test_perplexity <= 1.9"
    assert summary["test_loss"] == curve["test_loss"][-1]
    reached = (curve["test_perplexity"] <= 1.9).to_list()
    assert any(reached)
    if engine == "simulator":
        assert reached == [False] * (len(curve) - 1) + [True]
    assert replay(record).matches
    assert (
        Experiment(**settings | {"until": "test_loss <= -1", "epochs": 0.5})
        .run(tmp_path)
        .summary["stopped_by"]
        == "epochs"
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"epochs": None}, "requires a limit"),
        ({"eval_every": 0}, "requires eval_every"),
        ({"until": "test_accuracy = 80"}, "must have the form"),
        ({"until": "test_acuracy >= 80"}, "Did you mean 'test_accuracy'"),
        ({"until": "train_loss <= 1"}, "no column 'train_loss'"),
        ({"updates": 3}, "one budget"),
    ],
)
def test_an_impossible_target_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Experiment(**SMALL | {"until": "test_accuracy >= 80"} | settings)


def test_a_target_without_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no classes"):
        Experiment(dataset="quadratic", updates=5, until="test_accuracy >= 1").run(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_interrupted_run_reports_the_rest_after_it_is_resumed(tmp_path: Path) -> None:
    """A real process, ended by SIGINT; callbacks of both processes append to a file."""
    code = f"""
import os, signal
from straggler import Callback, Experiment
class Log(Callback):
    def on_evaluation(self, run, row):
        with open("log", "a") as file:
            print(row["updates"], file=file)
        if row["epochs"] > 1 and not run.is_resumed:
            os.kill(os.getpid(), signal.SIGINT)
Experiment(**{SMALL}).run("runs", jobs=1, callbacks=[Log()])
"""
    for expected in (1, 0):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, env=os.environ, check=False
        )
        assert (done.returncode != 0) == expected or done.returncode == -signal.SIGINT, done.stderr
    record = Record(tmp_path / "runs" / Experiment(**SMALL).id)
    seen = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert record.ended and seen == record.curve["updates"].to_list()
