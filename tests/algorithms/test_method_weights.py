"""One simulation of every method gives the committed id and weights, to the bit."""

import json
from pathlib import Path

import pytest

from straggler.algorithms.methods import METHODS
from straggler.experiment import Experiment

COMMITTED: dict[str, list[str]] = json.loads((Path(__file__).parent / "method_weights.json").read_text())


@pytest.mark.parametrize("case", COMMITTED)
def test_weights_are_those_of_the_committed_table(case: str, tmp_path: Path) -> None:
    method, model = case.split()
    experiment = Experiment(
        dataset="digits",
        model=model,
        method=method,
        workers=1 if METHODS[method].single else 4,
        lr=0.02,
        updates=60,
        eval_every=0,
        weight_decay=None if "adam" in method else 0.0005,
        compute="gamma(mean=1, cv=0.3)",
        delay="constant(4, workers=[0])",
    )
    record = experiment.run(tmp_path, jobs=1)
    assert [experiment.id, record.summary["weights_sha256"]] == COMMITTED[case]


def test_every_method_has_a_row() -> None:
    assert {case.split()[0] for case in COMMITTED} == set(METHODS)
