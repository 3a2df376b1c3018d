"""Search spaces and objectives: their text, edges, and wider ranges."""

import math
from typing import Any

import pytest

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.sweeps.objective import Objective
from straggler.sweeps.search_space import (
    Choices,
    Range,
    count_combinations,
    list_combinations,
    parse_search,
    parse_values,
)
from straggler.sweeps.suggestions import PruningRule, TrialResult, suggest_trials

DIGITS = {"dataset": "digits", "model": "linear", "validation": 0.2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log(1e-4, 1)", "log(0.0001, 1)"),
        ("uniform(0, 0.9)", "uniform(0, 0.9)"),
        ("int(1, 8)", "int(1, 8)"),
        ("log(0.001, 1, points=4)", "[0.001, 0.01, 0.1, 1]"),
        ("log(0.001, 1, 4)", "[0.001, 0.01, 0.1, 1]"),
        ("uniform(0, 1, points=3)", "[0, 0.5, 1]"),
        ("int(1, 9, points=3)", "[1, 5, 9]"),
        ("[0.5, 0, 0.9]", "[0, 0.5, 0.9]"),
        ("[asgd, 'ssp(bound=3)']", "[asgd, 'ssp(bound=3)']"),
        ([2, 8, 4], "[2, 4, 8]"),
    ],
)
def test_values_are_parsed(text: Any, expected: str) -> None:
    values = parse_values("key", text)
    assert str(values) == expected
    assert str(parse_values("key", expected)) == expected
    assert all(values.contains(example) for example in values.examples)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lr", "KEY=VALUES"),
        ("lr=lgo(1, 2)", "Did you mean 'log'"),
        ("lr=0.1", "list such as"),
        ("lr=log(0, 1)", "above 0"),
        ("lr=log(1, 0.1)", "smaller than the second"),
        ("lr=log(1)", "write 'log"),
        ("lr=uniform(0, inf)", "smaller than the second"),
        ("lr=int(0.5, 2)", "whole numbers"),
        ("lr=log(0.1, 1, points=1)", "at least 2, got 1"),
        ("lr=log(0.1, 1, point=3)", "write 'log"),
        ("lr=[0.1, 0.1]", "appears twice"),
        ("lr=[]", "write 'log"),
        ("lr=[0.1", "write key=value"),
    ],
)
def test_bad_values_are_refused_with_the_key_and_the_rule(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as found:
        parse_search([text])
    assert "--search" in str(found.value) and "lr" in str(found.value)


def test_a_key_is_searched_once() -> None:
    with pytest.raises(InputError, match="lr appears twice"):
        parse_search(["lr=[1, 2]", "lr=[3, 4]"])
    assert list(parse_search(["weight-decay=[0, 1]"])) == ["weight_decay"]


@pytest.mark.parametrize(
    ("text", "value", "side", "wider"),
    [
        ("log(0.0001, 1)", 0.9, "upper", "log(0.0001, 10)"),
        ("log(0.0001, 1)", 0.0002, "lower", "log(1e-05, 1)"),
        ("log(0.0001, 1)", 0.01, None, ""),
        ("uniform(0, 0.8)", 0.79, "upper", "uniform(0, 0.9)"),
        ("int(1, 8)", 8, "upper", "int(1, 10)"),
        ("[0.01, 0.1, 1]", 1, "upper", "[0.01, 0.1, 1, 10]"),
        ("[0.01, 0.1, 1]", 0.01, "lower", "[0.001, 0.01, 0.1, 1]"),
        ("[0.01, 0.1, 1]", 0.1, None, ""),
        ("[0, 0.5, 0.9]", 0.9, "upper", "[0, 0.5, 0.9, 0.95]"),
        ("[2, 4, 8]", 8, "upper", "[2, 4, 8, 16]"),
        ("[8]", 8, None, ""),
        ("[asgd, ssgd]", "ssgd", None, ""),
    ],
)
def test_edges_and_wider_values(text: str, value: Any, side: Any, wider: str) -> None:
    values = parse_values("momentum", text)
    assert values.find_edge(value) == side
    if side is not None:
        found, part = values.widen(side, 1.0 if "0.8" in text or "0.9]" in text else None)
        assert str(found) == wider
        assert all(found.contains(each) for each in (*values.examples, *part.examples))
        assert not all(values.contains(each) for each in part.examples)


def test_combinations_of_lists_are_counted_and_ranges_are_not() -> None:
    space = {"lr": Choices((0.1, 0.2)), "momentum": Choices((0.0, 0.5, 0.9))}
    assert count_combinations(space) == 6 and len(list_combinations(space)) == 6
    assert count_combinations({**space, "lr": Range("log", 0.1, 1)}) is None


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_suggestions_depend_on_the_arguments_only(sampler: Any) -> None:
    space = {
        "lr": Range("log", 1e-4, 1),
        "workers": Range("int", 1, 8),
        "method": Choices(("asgd", "ssgd")),
        "momentum": Choices((0.0, 0.5, 0.9)),
    }
    first = suggest_trials(space, [], 4, sampler, True, 0, 4)
    assert first == suggest_trials(space, [], 4, sampler, True, 0, 4)
    assert all(space[key].contains(value) for values in first for key, value in values.items())
    assert all(values["lr"] == float(f"{values['lr']:.3g}") for values in first)
    results = [TrialResult(values, -abs(math.log10(values["lr"]) + 1)) for values in first]
    results.append(TrialResult({**first[0], "lr": 2.0}, 1.0))  # outside of the space: it is left out
    second = suggest_trials(space, results, 4, sampler, True, 4, 4)
    assert second == suggest_trials(space, results[:-1], 4, sampler, True, 4, 4)
    assert not any(values in first for values in second)


def test_tpe_moves_towards_the_better_half() -> None:
    space, results = {"x": Range("uniform", 0.0, 1.0)}, list[TrialResult]()
    for number in range(8):
        for values in suggest_trials(space, results, 4, "tpe", False, number, 4):
            results.append(TrialResult(values, abs(values["x"] - 0.2)))
    late = [abs(one.values["x"] - 0.2) for one in results[16:]]
    assert sum(late) / len(late) < 0.25  # 0.34 for uniform values


def test_a_small_list_is_not_suggested_twice() -> None:
    found = suggest_trials({"x": Choices((1, 2, 3))}, [TrialResult({"x": 2}, 1.0)], 4, "random", True, 0, 4)
    assert sorted(values["x"] for values in found) == [1, 3]


@pytest.mark.parametrize(("is_maximized", "stop"), [(True, 2), (False, None)])
def test_pruning_compares_the_best_value_so_far(is_maximized: bool, stop: int | None) -> None:
    curves = [{1: 10.0, 2: value, 3: 90.0} for value in (30.0, 50.0, 70.0)]
    rule = PruningRule(50, is_maximized, curves)
    assert rule.find_stop({1: 10.0, 2: 20.0, 3: 99.0}) == stop
    assert PruningRule(50, True, curves[:2]).find_stop({1: 0.0}) is None  # too few to compare with
    assert rule.find_stop({}) is None
    assert rule.find_stop({1: 10.0, 2: math.nan, 3: 1.0}) == stop


@pytest.mark.parametrize(
    ("text", "expected", "is_maximized", "label"),
    [
        ("validation_accuracy", "max validation_accuracy", True, "validation accuracy (%)"),
        ("validation_loss", "min validation_loss", False, "validation loss"),
        ("max validation_f1", "max validation_f1", True, "validation f1"),
        ("seconds", "min seconds", False, "time (s)"),
        (
            "time to validation_accuracy>=90",
            "time to validation_accuracy >= 90",
            False,
            "time to validation accuracy >= 90 % (s)",
        ),
    ],
)
def test_objectives_are_parsed(text: str, expected: str, is_maximized: bool, label: str) -> None:
    objective = Objective.parse(text)
    assert str(objective) == expected and objective.is_maximized == is_maximized
    assert objective.label == label and Objective.parse(str(objective)) == objective


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("test_accuracy", "Use validation_accuracy"),
        ("min test_loss", "Use validation_loss"),
        ("time to test_accuracy >= 80", "Use validation_accuracy"),
        ("time to 80", "must have the form"),
        ("acuracy", "write validation_accuracy"),
        ("least validation_loss", "write validation_accuracy"),
        ("validation_f1", "'max validation_f1' or 'min validation_f1'"),
    ],
)
def test_bad_objectives_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Objective.parse(text)


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        ("validation_accuracy", {"validation": 0.0}, "Set validation=0.1"),
        ("max validation_f2", {}, "no column 'validation_f2'"),
        ("time to validation_accuracy >= 90", {"eval_every": 0}, "eval_every above 0"),
    ],
)
def test_an_experiment_must_measure_the_objective(text: str, changes: dict[str, Any], reason: str) -> None:
    Objective.parse("validation_loss").check(Experiment(**DIGITS))
    Objective.parse("train_loss").check(Experiment(**DIGITS))
    Objective.parse("seconds").check(Experiment(dataset="quadratic", updates=3))
    with pytest.raises(InputError, match=reason):
        Objective.parse(text).check(Experiment(**DIGITS | changes))


def test_pruning_requires_evaluations() -> None:
    with pytest.raises(InputError, match="eval_every above 0"):
        Objective.parse("validation_loss").check(Experiment(**DIGITS, eval_every=0), is_pruned=True)
    with pytest.raises(InputError, match="every evaluation measures"):
        Objective.parse("seconds").check(Experiment(**DIGITS), is_pruned=True)
