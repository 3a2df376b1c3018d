"""One simulation of every method gives the committed id and weights, to the bit.

Kernels of torch add in another order on another kind of processor, so the file has a table for each kind that
it was made on. A plain torch loop, which uses no code of the server or the engines, tells which kind this is.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from test_plain_sgd import plain_loop

from straggler.algorithms.methods import METHODS
from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.running.observer import weights_sha256

Table = dict[str, list[str]]  # [id, SHA-256 of the weights] of each case
KINDS: list[Table] = json.loads((Path(__file__).parent / "method_weights.json").read_text())
CASES = list(dict.fromkeys(case for table in KINDS for case in table))


def make_experiment(case: str) -> Experiment:
    method, model = case.split()
    settings: dict[str, Any] = {"method": method, "workers": 1 if METHODS[method].single else 4}
    optimizer = Experiment(**settings).optimizer
    decay = 0.0005 if hasattr(optimizer, "weight_decay") and "adam" not in method else None
    settings |= {"dataset": "digits", "model": model, "lr": 0.02, "updates": 60, "eval_every": 0}
    cluster = {"compute": "gamma(mean=1, cv=0.3)", "delay": "constant(4, workers=[0])"}
    return Experiment(**settings, weight_decay=decay, **cluster)


@cache
def find_table(model: str) -> Table | None:
    """Return the table of this kind of processor, on which a plain torch loop makes the weights of sgd."""
    problem = make_experiment(f"sgd {model}").problem()
    assert isinstance(problem, SupervisedProblem)

    def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.02, weight_decay=0.0005)

    with use_one_thread():
        x = plain_loop(problem, make_optimizer, [problem.batch(0, index) for index in range(60)])
    found = weights_sha256(x, x[:0])
    return next((table for table in KINDS if table[f"sgd {model}"][1] == found), None)


# Of the convolutional network in every test run; `make chaos` runs the other methods.
CONVOLUTIONAL = ("sgd", "asgd", "dana-ga", "k-batch-sync", "hybrid")


def is_seldom(case: str) -> bool:
    method, model = case.split()
    return model == "lenet5" and method not in CONVOLUTIONAL


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.chaos) if is_seldom(case) else case for case in CASES]
)
def test_weights_are_those_of_the_committed_table(case: str, tmp_path: Path) -> None:
    experiment = make_experiment(case)
    assert experiment.id in {table[case][0] for table in KINDS if case in table}
    table = find_table(case.split()[1])
    if table is None or case not in table:
        pytest.skip("The file has no weights of this method on this kind of processor.")
    assert experiment.run(tmp_path, jobs=1).summary["weights_sha256"] == table[case][1]


def test_every_method_has_a_row() -> None:
    assert {case.split()[0] for case in CASES} == set(METHODS)
