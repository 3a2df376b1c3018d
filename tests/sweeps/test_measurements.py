"""Measurements of finished runs: penalties, slow classes, and the server's memory."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from straggler.experiment import Experiment
from straggler.record import Record
from straggler.sweeps.measurements import (
    find_slow_classes,
    measure_penalties,
    measure_server_memory,
    measure_slow_classes,
    repeat_and_record,
)

TINY: dict[str, Any] = {"dataset": "digits", "model": "linear", "epochs": 1, "eval_every": 0}
EQUAL = TINY | {"workers": 4, "compute": "constant(1)", "method": "asgd"}


def run(folder: Path, **settings: Any) -> tuple[Experiment, Record]:
    experiment = Experiment(**EQUAL | settings)
    return experiment, experiment.run(folder, jobs=1)


@pytest.mark.parametrize(("method", "divisor"), [("sa", 3.0), ("asgd", 1.0), ("ga", None)])
def test_penalty_of_a_correction(method: str, divisor: float | None, tmp_path: Path) -> None:
    """With four equally fast workers every gradient of the second half is three updates old."""
    experiment, record = run(tmp_path, method=method, eval_every=0.25)
    found = measure_penalties(experiment, record, None)
    second = found["penalty_second_half"]
    assert second == pytest.approx(divisor) if divisor else 1 < second < 100
    assert found["penalty"] == pytest.approx((found["penalty_first_half"] + second) / 2, rel=0.2), (
        "the halves differ by at most one gradient"
    )
    assert len(found["curve"]) == record.curve.height and found["curve"][-1]["penalty"] is not None
    (record.path / "penalties.json").write_text(json.dumps({"penalty": 7.0, "between": []}))
    assert measure_penalties(experiment, record, None)["penalty"] == 7, "it is measured once"


def test_penalty_of_staleness_follows_from_the_record(tmp_path: Path) -> None:
    """The short cut for SA gives what a repetition of the run would."""
    experiment, record = run(tmp_path, method="sa")
    found = measure_penalties(experiment, record, None)["penalty"]
    repeated = repeat_and_record(experiment, None)
    assert found == pytest.approx(math.fsum(repeated) / len(repeated))


@pytest.mark.parametrize(
    ("settings", "vectors"),
    [
        ({}, 0),
        ({"momentum": 0.9}, 1),
        ({"method": "ia2sgd"}, 5),  # each worker's latest gradient, and their sum
        ({"method": "multi-asgd"}, 4),
    ],
)
def test_server_memory_in_models(settings: dict[str, Any], vectors: int, tmp_path: Path) -> None:
    experiment, record = run(tmp_path, **settings)
    assert measure_server_memory(experiment, record, None) == {"server_vectors": vectors}


def test_slow_classes_are_those_of_the_slow_workers(tmp_path: Path) -> None:
    settings = {"dataset": "mixture(samples=200, classes=4)", "partition": "label", "epochs": 0.2}
    experiment, record = run(tmp_path, **settings, delay="constant(3, workers=[1, 2])")
    assert len(find_slow_classes(experiment, None)) == 2
    found, summary = measure_slow_classes(experiment, record, None), record.summary
    recalls = [100 * scores["recall"] for scores in summary["classes"].values()]
    assert found["worst_recall"] == min(recalls)
    assert (found["slow_recall"] + found["other_recall"]) / 2 == pytest.approx(sum(recalls) / 4)
    named = Experiment(**EQUAL | settings, delay="by-label(factor=3, labels=[0, 3])")
    assert find_slow_classes(named, None) == {0, 3}
    assert find_slow_classes(Experiment(**EQUAL | settings), None) == set()
