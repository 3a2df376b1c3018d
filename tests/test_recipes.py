"""The recipes of CONTRIBUTING.md work as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from straggler.algorithms.corrections import CORRECTIONS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.core import Correction, Optimizer, Policy
from straggler.core.loop import Budget, train
from straggler.experiment import Experiment
from straggler.problems.datasets import DATASETS, DataSet
from straggler.problems.models import MODELS, Model
from straggler.timing import DELAYS, Law

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^## An? ([a-z ]+).*?^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))
CATALOGUES: list[tuple[type, dict[str, Any]]] = [
    (Policy, POLICIES),
    (Correction, CORRECTIONS),
    (Optimizer, OPTIMIZERS),
    (Law, DELAYS),
    (DataSet, DATASETS),
    (Model, MODELS),
]
USE: dict[str, dict[str, Any]] = {
    "policy": {"policy": "quorum(share=0.6)"},
    "correction": {"correction": "old-signs"},
    "optimizer": {"optimizer": "normalised(momentum=0.5)"},
    "delay": {"compute": "rounded(2)", "delay": ["rounded(mean=3, tick=0.5)"]},
    "data set": {"dataset": "xor(samples=400)", "model": "mlp"},
    "model": {"model": "tanh(width=8)"},
}


def made(recipe: str) -> type:
    """The class that a recipe defines."""
    names: dict[str, Any] = {"__name__": f"recipe_{recipe}"}
    exec(RECIPES[recipe], names)
    (own,) = [thing for thing in names.values() if getattr(thing, "__module__", "") == f"recipe_{recipe}"]
    assert isinstance(own, type)
    return own


def test_every_recipe_is_tried() -> None:
    assert RECIPES.keys() == USE.keys() | {"engine"}


@pytest.mark.parametrize("recipe", USE)
def test_a_new_entry_trains(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry: Any = made(recipe)
    (catalogue,) = [catalogue for kind, catalogue in CATALOGUES if issubclass(entry, kind)]
    monkeypatch.setitem(catalogue, entry.name, entry)
    settings = {"dataset": "mixture(samples=300)", "model": "linear", "workers": 3, "updates": 60, "lr": 0.05}
    record = Experiment(**settings | USE[recipe]).run(tmp_path, jobs=1)
    assert entry.name in record.text
    assert record.summary["status"] == "finished" and record.summary["converged"]
    if recipe == "policy":
        assert record.summary["cancelled"] == 60 and record.summary["applied"] == 120


def test_a_new_engine_trains() -> None:
    experiment = Experiment(dataset="mixture(samples=300)", model="linear", workers=3, lr=0.05)
    problem = experiment.problem()
    server = experiment.server(problem)
    first, seen = server.x, list[float]()
    end = train(server, made("engine")(problem), Budget(updates=50), lambda a, *rest: seen.append(a.time))
    assert end is None and server.k == 50 and seen == [float(second) for second in range(1, 51)]
    assert server.staleness_max == 2 and not torch.equal(server.x, first)
