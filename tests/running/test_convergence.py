"""A run ends if its network collapsed (gives every input the same output), and only then."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume import SimulatedCrash, run_through_crashes
from torch import nn

from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem
from straggler.running.observer import Observer

SHUT = -1e4  # a bias that keeps every ReLU inactive


def network(hidden_bias: float) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))
    nn.init.constant_(net[1].bias, hidden_bias)  # type: ignore[arg-type]
    return net


def shut() -> nn.Module:
    return network(SHUT)


def zero_headed() -> nn.Module:
    """A module with the same output for every input, but only before the first step."""
    net = network(0.0)
    nn.init.zeros_(net[3].weight)  # type: ignore[index, arg-type]
    return net


def digits(model: Any, **settings: Any) -> Experiment:
    return Experiment(dataset="digits", model=model, workers=4, eval_every=0, **{"epochs": 3, **settings})


def test_a_run_with_a_collapsed_network_ends_after_an_epoch(tmp_path: Path) -> None:
    """Checks happen every quarter epoch; the fifth failed one in a row is an epoch after the first."""
    summary = digits(shut).run(tmp_path, jobs=1).summary
    assert summary["status"] == "diverged" and not summary["converged"]
    assert 1.25 <= summary["epochs"] < 1.3
    assert summary["error"].startswith("The network collapsed")
    assert summary["dispatched"] == summary["applied"] + summary["in_flight"]


@pytest.mark.slow
def test_a_collapsed_run_has_the_same_bits_on_two_cores_and_after_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.running.observer.PROGRESS_SECONDS", 0.0)
    experiment, same = digits(shut), ("weights_sha256", "gradients", "epochs", "status")
    one = experiment.run(tmp_path / "one", jobs=1).summary
    two = experiment.run(tmp_path / "two", jobs=2).summary
    cut = run_through_crashes(experiment, tmp_path / "cut", cuts=8, rng=random.Random(0)).summary
    assert [one[key] for key in same] == [two[key] for key in same] == [cut[key] for key in same]


@pytest.mark.slow
def test_a_collapsed_run_that_was_killed_ends_at_once_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = digits(shut)
    whole = experiment.run(tmp_path / "whole", jobs=1).summary

    def cut(self: Observer) -> Any:
        raise SimulatedCrash

    with monkeypatch.context() as patch, pytest.raises(SimulatedCrash):
        patch.setattr(Observer, "evaluate_final_model", cut)
        experiment.run(tmp_path / "cut", jobs=1, checkpoint_every="1")
    again = experiment.run(tmp_path / "cut", jobs=1).summary
    assert (again["gradients"], again["weights_sha256"]) == (whole["gradients"], whole["weights_sha256"])


@pytest.mark.parametrize("model", [zero_headed, "mlp(hidden=[8])"])
def test_a_network_that_learns_runs_to_the_end(model: Any, tmp_path: Path) -> None:
    summary = digits(model).run(tmp_path, jobs=1).summary
    assert (summary["status"], summary["epochs"]) == ("finished", pytest.approx(3, abs=0.05))


def test_a_network_that_recovers_in_time_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four failed checks in a row do not end the run."""
    evaluate, looks = SupervisedProblem.evaluate, iter([False] * 4 + [True] + [False] * 4 + [True] * 100)

    def asleep(self: SupervisedProblem, x: Any, buffers: Any, split: Any, chunk: int) -> Any:
        found = evaluate(self, x, buffers, split, chunk)
        return replace(found, varied=next(looks))

    monkeypatch.setattr(SupervisedProblem, "evaluate", asleep)
    assert digits("mlp(hidden=[8])").run(tmp_path, jobs=1).summary["status"] == "finished"


def test_one_example_alone_is_not_a_collapse(tmp_path: Path) -> None:
    one = torch.zeros(1, 1, 28, 28), torch.tensor([1])
    experiment = Experiment(dataset=(one, one), model=shut, workers=1, batch_size=1, epochs=8)
    assert experiment.run(tmp_path, jobs=1).summary["status"] == "finished"


@pytest.mark.slow
def test_real_time_runs_do_not_check_for_collapse(tmp_path: Path) -> None:
    summary = digits(shut, engine="processes", epochs=2).run(tmp_path).summary
    assert summary["status"] == "finished"
