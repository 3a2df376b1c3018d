"""The playground: settings, previews, and the claims of its stories."""

import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from web_testing import QUADRATIC

from straggler.algorithms.methods import METHODS
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.web.gallery import count_partition
from straggler.web.playground import (
    build_experiment,
    list_choices,
    parse_settings,
    preview_run,
    simulate_jobs,
)
from straggler.web.run_facts import RunFacts


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "delay",
    [["constant(4, workers=[0])", "spikes(0.2, 10)"], pytest.param([], marks=pytest.mark.chaos)],
)
def test_preview_equals_the_run(tmp_path: Path, method: str, delay: list[str]) -> None:
    workers = 1 if METHODS[method].single else 5
    experiment = Experiment(**QUADRATIC | {"lr": 1e-4}, method=method, workers=workers, delay=delay)
    real = experiment.run(tmp_path, jobs=1).jobs
    played = simulate_jobs(experiment, 40)
    for column in ("worker", "time", "staleness"):
        assert played[column].to_list() == real[column].to_list()
    assert played["decision"].to_list() == real["decision"].cast(pl.String).to_list()
    known = real["started"].is_not_null()
    assert played["started"].filter(known).to_list() == real["started"].drop_nulls().to_list()


def test_integers_are_exact() -> None:
    assert parse_settings({"seed": str(2**53 + 1)}) == {"seed": 2**53 + 1}
    for value in (2.5, "2.5", "many", 10**600):
        with pytest.raises(InputError, match=r"workers"):
            parse_settings({"workers": value})


def test_preview_is_fast() -> None:
    settings = parse_settings({"workers": "8", "dataset": "digits", "delay": ["constant(4, workers=[0])"]})
    experiment = build_experiment(settings)
    preview_run(experiment, settings)  # fill the caches
    seconds = []
    for _ in range(5):
        started = time.thread_time()
        preview_run(build_experiment(settings), settings)
        seconds.append(time.thread_time() - started)
    assert min(seconds) < 0.05


@pytest.mark.parametrize("story", list_choices()["stories"], ids=lambda story: story["title"])
def test_stories_use_known_settings(story: dict[str, Any]) -> None:
    start = list_choices()["start"]
    assert set(story["set"]) <= set(start) and len(story["text"]) > 80
    assert story["set"].get("method", "asgd") in list_choices()["methods"]


def test_every_choice_is_a_valid_experiment() -> None:
    offered = list_choices()
    for key, table in (("method", "methods"), ("dataset", "datasets"), ("partition", "partitions")):
        for value in offered[table]:
            build_experiment({key: value})
    for model in offered["models"]:
        build_experiment({"model": model})


def run_story_settings(tmp_path: Path, **settings: Any) -> Record:
    """Run a story as the page would start it."""
    base = {"dataset": "digits", "model": "mlp", "compute": "gamma(mean=1, cv=0.2)", "epochs": 10}
    return Experiment(**base | {"workers": 8, "lr": 0.02} | settings).run(tmp_path, jobs=1)


@pytest.mark.slow
def test_story_momentum_and_staleness(tmp_path: Path) -> None:
    many = {"workers": 16, "lr": 0.01}
    broken, repaired = (
        run_story_settings(tmp_path, method=method, **many) for method in ("nag-asgd", "dana-ga")
    )
    assert not broken.summary["converged"] and repaired.summary["test_accuracy"] > 85
    assert broken.arrivals["staleness"].to_list() == repaired.arrivals["staleness"].to_list()
    assert repaired.arrivals["gap"].mean() < broken.arrivals["gap"].mean() / 10  # type: ignore[operator]


@pytest.mark.slow
def test_story_synchronous_waits(tmp_path: Path) -> None:
    slow = {"delay": ["constant(4, workers=[0])"]}
    ours, theirs = (
        run_story_settings(tmp_path, **slow),
        run_story_settings(tmp_path, method="ssgd", **slow | {"lr": 0.1}),
    )
    assert theirs.summary["seconds"] > 3 * ours.summary["seconds"]
    assert theirs.summary["max_staleness"] == 0 and ours.summary["max_staleness"] > 25


@pytest.mark.slow
def test_story_data_split_by_label(tmp_path: Path) -> None:
    record = run_story_settings(tmp_path, partition="label", delay=["constant(9, workers=[0])"])
    counted = count_partition(RunFacts(record.path))
    assert counted is not None
    classes, counts = counted
    recalls = {name: scores["recall"] for name, scores in record.summary["classes"].items()}
    of_slow_worker = {name for name, count in zip(classes, counts[0], strict=True) if count}
    assert max(recalls[name] for name in of_slow_worker) < 0.2
    assert min(recalls[name] for name in set(classes) - of_slow_worker) > 0.7


@pytest.mark.parametrize("text", ["os:system('touch hacked')", "./evil.py:Law()", "os:getcwd"])
def test_pages_cannot_name_custom_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('hacked', 'w')\n")
    for settings in ({"compute": text}, {"delay": [text]}, {"method": text}):
        with pytest.raises(ValueError, match=r"--trust|[Uu]nknown|write it as"):
            build_experiment(parse_settings(settings))
    assert not (tmp_path / "hacked").exists()
