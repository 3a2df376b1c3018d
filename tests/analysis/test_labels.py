"""Labels of runs: the method and the settings in which runs differ."""

from pathlib import Path
from typing import Any

import pytest
from figure_testing import copy_with

from straggler.algorithms.methods import METHODS
from straggler.analysis.labels import (
    group_seeds,
    label_settings,
    list_method_components,
    name_method,
    name_runs,
)
from straggler.experiment import Experiment
from straggler.record import Record

pytest_plugins = ["figure_testing"]

PLAIN = {"policy": "asynchronous", "correction": "none", "optimizer": "sgd", "workers": 4, "seed": 0}


def label(*changes: dict[str, Any]) -> list[str]:
    return label_settings([PLAIN | change for change in changes])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_named_as_it_is_called(method: str) -> None:
    """Also if the record does not state the method, unless the same components have another name too."""
    settings = Experiment(method=method, workers=1 if METHODS[method].single else 8).to_dict()
    assert name_method(settings) == method
    unstated = name_method({key: value for key, value in settings.items() if key != "method"})
    known = list_method_components()
    assert METHODS[method].single or known[unstated] == known[method]
    other = Experiment(method="asgd", workers=8).to_dict()
    if method != "asgd":
        assert label_settings([settings | {"lr": 1.0}, other | {"lr": 1.0}])[0].split(",")[0] == method


def test_arguments_with_the_name_of_a_setting_are_called_after_their_component() -> None:
    works = [Experiment(method="local-sgd", workers=8, work=f"local(steps=4, lr={lr})") for lr in (0.1, 0.2)]
    assert label_settings([one.to_dict() for one in works]) == [
        "local-sgd, work lr 0.1",
        "local-sgd, work lr 0.2",
    ]


def test_the_method_names_a_run() -> None:
    assert label({}) == ["asgd"]
    dana_ga = {"correction": "gap-aware", "optimizer": "dana(momentum=0.9)", "momentum": 0.9}
    assert label({}, dana_ga) == ["asgd", "dana-ga"]
    assert label({"method": "asgd", "policy": "synchronous"}) == ["ssgd"]
    assert name_method(PLAIN | {"policy": "k-sync(k=5)"}) == "k-sync(k=5)"
    assert name_method(PLAIN | {"correction": "gap-aware"}) == "asynchronous × gap-aware"


@pytest.mark.parametrize("old", [True, False])
def test_momentum_is_mentioned_only_where_it_differs(old: bool) -> None:
    """Version 0.1 records momentum as a separate setting, later versions within the optimizer."""
    with_momentum: dict[str, Any] = {"optimizer": "sgd(momentum=0.9)"} | ({"momentum": 0.9} if old else {})
    plain = {"momentum": 0.0, "nesterov": False} if old else {}
    assert label(plain, with_momentum) == ["asgd", "asgd, momentum 0.9"]
    assert label(with_momentum) == ["asgd"]
    dana = {"optimizer": "dana(momentum=0.9)"}
    assert label(plain, with_momentum, dana) == ["asgd", "asgd, momentum 0.9", "dana"]


def test_other_settings_are_mentioned_where_they_differ() -> None:
    assert label({"lr": 0.1}, {"lr": 0.2}) == ["asgd, lr 0.1", "asgd, lr 0.2"]
    assert label({"delay": []}, {"delay": ["a(1)", "b"]}) == ["asgd, no delay", "asgd, a(1) + b"]
    assert label({"eval_every": 1, "seed": 1}, {"eval_every": 2, "seed": 2}) == ["asgd", "asgd"]
    chosen = {"method": "k-sync", "policy": "k-sync(k=2)"}
    assert label(chosen, chosen | {"policy": "k-sync(k=4)"}) == ["k-sync, k 2", "k-sync, k 4"]


def test_custom_components_are_shown_by_their_class() -> None:
    custom = {"policy": "./mine.py:Patient(width=64)"}
    assert label(custom) == ["Patient(width=64)"]
    assert label({"policy": "Patient [custom 1a2b]"}) == ["Patient"]
    different = label({"model": "Net [custom 1a]"}, {"model": "Net [custom 2b]"})
    assert len(set(different)) == 2


def test_seeds_share_a_label_and_copies_count_once(digits: Record, tmp_path: Path) -> None:
    seeds = [copy_with(digits, tmp_path, seed=seed) for seed in (10, 9)]
    copy = copy_with(seeds[0], tmp_path / "copy", seed=10)
    groups = group_seeds([*seeds, copy])
    assert {name: [run.settings["seed"] for run in group] for name, group in groups.items()} == {
        "asgd": [9, 10]
    }
    assert list(name_runs([*seeds, copy])) == ["asgd, seed 9", "asgd, seed 10"]
    repeated = copy_with(seeds[0], tmp_path / "again", {"weights_sha256": "other"}, seed=10)
    assert len(name_runs([seeds[0], repeated])) == 2


def test_optimizers_with_different_arguments_are_different_groups(digits: Record, tmp_path: Path) -> None:
    texts = {"sgd(momentum=0.5)": 0.5, "sgd(momentum=0.5, dampening=0.1)": 0.5, "sgd": 0.0}
    some = [copy_with(digits, tmp_path, optimizer=text, momentum=value) for text, value in texts.items()]
    assert len(group_seeds(some)) == 3 and len(group_seeds(some, ("momentum",))) > 1


def test_groups_are_sorted_by_method_and_numbers(digits: Record, tmp_path: Path) -> None:
    settings = [(10, "sgd"), (9, "sgd"), (9, "adam")]
    some = [copy_with(digits, tmp_path, workers=workers, optimizer=text) for workers, text in settings]
    assert list(group_seeds(some)) == ["asgd, workers 9", "asgd, workers 10", "async-adam, workers 9"]
