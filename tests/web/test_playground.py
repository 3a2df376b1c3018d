"""The playground: its choices and settings, its stories and recorded races, the static build, the picture."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from straggler.algorithms.methods import METHODS
from straggler.cli import build_app
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.web.gallery import count_partition
from straggler.web.launcher import MAX_RUNNING, RunLauncher
from straggler.web.playground import (
    build_experiment,
    build_race_settings,
    list_choices,
    parse_settings,
)
from straggler.web.playground_build import build_static_playground
from straggler.web.race_picture import draw_race
from straggler.web.races import list_race_settings, record_race
from straggler.web.run_facts import RunFacts

STORIES = list_choices()["stories"]
RACES = list_choices()["races"]["runs"]


def test_integers_are_exact() -> None:
    assert parse_settings({"seed": str(2**53 + 1)}) == {"seed": 2**53 + 1}
    for value in (2.5, "2.5", "many", 10**600):
        with pytest.raises(InputError, match=r"workers"):
            parse_settings({"workers": value})


def test_every_setting_of_a_method_is_offered() -> None:
    """The page shows the fields of the classes themselves, so that no field can be missing."""
    for name, method in list_choices()["methods"].items():
        experiment = Experiment(method=name, workers=8, dataset="digits", model="linear")
        for key in ("policy", "work", "aggregation", "optimizer"):
            (part,) = method["stages"][key]
            component = getattr(experiment, key)
            assert part["name"] == component.name
            assert set(part["fields"]) == set(part["values"]) == set(type(component).model_fields)
    stages = list_choices()["methods"]["fedasync"]["stages"]
    assert [part["name"] for part in stages["correction"]] == ["mixing", "polynomial"]
    k = list_choices()["methods"]["k-sync"]["stages"]["policy"][0]
    assert k["values"]["k"] == 2 and k["fields"]["k"] == {"type": "integer", "min": 1}
    assert set(list_choices()["methods"]) == {name for name, one in METHODS.items() if not one.single}


@pytest.mark.parametrize("dataset", ["digits", "mixture"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_bytes_of_messages_are_those_of_the_run(dataset: str, model: str) -> None:
    experiment = Experiment(dataset=dataset, model=model)
    program = experiment.program(experiment.problem())
    assert list_choices()["bytes"][dataset][model] == program.bytes_up == program.bytes_down


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story["title"])
def test_stories_use_known_settings(story: dict[str, Any]) -> None:
    known = {*list_choices()["start"], *(f"{lane}.{key}" for lane in "ab" for key in ("policy", "work"))}
    assert set(story["set"]) <= known and len(story["text"]) > 80


def test_every_choice_is_a_valid_experiment() -> None:
    offered = list_choices()
    for key, table in (("method", "methods"), ("dataset", "datasets"), ("partition", "partitions")):
        for value in offered[table]:
            build_experiment({key: value})
    for model in offered["models"]:
        build_experiment({"model": model})


def test_every_story_has_recorded_races() -> None:
    """A change of a story or of an experiment's id needs `make races`."""
    assert [race["settings"] for race in RACES] == list_race_settings()
    for race in RACES:
        assert build_experiment(parse_settings(race["settings"])).id == race["id"]
        assert len(race["curve"]) > 20


@pytest.mark.slow
def test_a_recorded_race_is_reproduced(tmp_path: Path) -> None:
    """Rounding differs between kinds of processors, so the accuracy may differ a little."""
    recorded = RACES[0]
    again = record_race(recorded["settings"], tmp_path)
    assert again["id"] == recorded["id"] and len(again["curve"]) == len(recorded["curve"])
    assert again["curve"][0][0] == 0 and again["curve"][-1][0] == pytest.approx(recorded["curve"][-1][0])
    assert again["curve"][-1][1] == pytest.approx(recorded["curve"][-1][1], abs=8)


def find_race(title: str, lane: str) -> list[list[float]]:
    """Return the recorded curve of one method of a story."""
    story = next(story for story in STORIES if story["title"] == title)
    settings = build_race_settings(list_choices()["start"] | story["set"], lane)
    found: list[list[float]] = next(race["curve"] for race in RACES if race["settings"] == settings)
    return found


def first_time(curve: list[list[float]], accuracy: float) -> float:
    return next((seconds for seconds, reached in curve if reached >= accuracy), float("inf"))


def test_stories_claim_what_the_races_show() -> None:
    slow = [first_time(find_race("One slow worker", lane), 90) for lane in "ab"]
    assert slow[1] > 3 * slow[0]
    equal = [first_time(find_race("Equal workers", lane), 90) for lane in "ab"]
    assert equal[1] < equal[0]  # synchronous SGD wins
    momentum = [find_race("Momentum", lane)[-1][1] for lane in "ab"]
    assert momentum[0] > 85 and momentum[1] < 20
    dropping = [find_race("Drop stale gradients", lane) for lane in "ab"]
    assert (
        first_time(dropping[1], 90) < first_time(dropping[0], 90) and dropping[1][-1][1] < dropping[0][-1][1]
    )
    label = [find_race("Split by label", lane) for lane in "ab"]
    assert first_time(label[0], 90) < 60 and max(accuracy for _, accuracy in label[1]) < 80


def run_story_settings(tmp_path: Path, **settings: Any) -> Record:
    base = {"dataset": "digits", "model": "mlp", "compute": "gamma(mean=1, cv=0.2)", "epochs": 10}
    return Experiment(**base | {"workers": 8, "lr": 0.02} | settings).run(tmp_path, jobs=1)


@pytest.mark.slow
def test_story_split_by_label(tmp_path: Path) -> None:
    """Asynchronous SGD does not learn the digits of the slow worker."""
    record = run_story_settings(tmp_path, partition="label", delay=["constant(9, workers=[0])"])
    counted = count_partition(RunFacts(record.path))
    assert counted is not None
    classes, counts = counted
    recalls = {name: scores["recall"] for name, scores in record.summary["classes"].items()}
    of_slow_worker = {name for name, count in zip(classes, counts[0], strict=True) if count}
    assert max(recalls[name] for name in of_slow_worker) < 0.2
    assert min(recalls[name] for name in set(classes) - of_slow_worker) > 0.7


@pytest.mark.parametrize("text", ["os:system('touch hacked')", "./evil.py:Law()", "os:getcwd"])
@pytest.mark.parametrize(
    "key", ["compute", "delay", "link", "churn", "method", "policy", "work", "optimizer"]
)
def test_pages_cannot_name_custom_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('hacked', 'w')\n")
    with pytest.raises(ValueError, match=r"--trust|[Uu]nknown|write it as"):
        build_experiment(parse_settings({key: [text] if key in ("delay", "link", "churn") else text}))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"work": "local(steps=1000000000)"}, "at most 1000 batches"),
        ({"work": "accumulate(batches=5000)"}, "at most 1000 batches"),
        ({"churn": ["churn-trace(file='/etc/passwd')"]}, "may not read trace files"),
        ({"link": ["link"] * 11}, "at most 10"),
    ],
)
def test_pages_cannot_take_the_server_down(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        parse_settings(settings)


def test_static_page_needs_nothing_else(tmp_path: Path) -> None:
    page = build_static_playground(tmp_path / "site").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)[^"#]*"', page)
    assert not re.findall(r"url\((?!#)|@import|\bfetch\(|XMLHttpRequest|EventSource", page)
    assert len(page) < 1_000_000


def test_picture_is_small_and_self_contained() -> None:
    text = draw_race()
    root = ElementTree.fromstring(text)
    assert len(text) < 1_000_000 and "script" not in {each.tag.split("}")[1] for each in root.iter()}
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "prefers-color-scheme" in text and "prefers-reduced-motion" in text
    crossings = [first_time(find_race("One slow worker", lane), 90) for lane in "ab"]
    for seconds in crossings:
        assert f": {seconds:.1f} s" in text


def test_committed_picture_is_current() -> None:
    """`make picture` writes it."""
    committed = Path(__file__).parents[2] / "docs" / "race.svg"
    assert re.findall(r">[^<>]*%[^<>]*<", committed.read_text()) == re.findall(
        r">[^<>]*%[^<>]*<", draw_race()
    )


def test_playground_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["straggler", "playground"])
    app = build_app("playground")
    done = CliRunner().invoke(
        app, ["playground", "--out", str(tmp_path / "a"), "--picture", str(tmp_path / "b.svg")]
    )
    assert done.exit_code == 0 and (tmp_path / "a" / "index.html").exists() and (tmp_path / "b.svg").exists()
    for arguments, expected in (
        ([], "Pass --out DIR"),
        (["--picture", str(tmp_path / "b.png")], "must end with .svg"),
        (["--out", str(tmp_path / "b.svg")], "Choose another folder"),
    ):
        refused = CliRunner().invoke(app, ["playground", *arguments])
        assert isinstance(refused.exception, InputError) and expected in str(refused.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b.svg"]


@pytest.mark.slow
def test_prepared_processes_run_and_end_with_the_launcher(tmp_path: Path) -> None:
    launcher = RunLauncher(tmp_path)
    launcher.prepare()
    launcher.prepare()
    spares = [spare.process for spare in launcher._spares]
    assert len(spares) == MAX_RUNNING
    settings = {"dataset": "mixture", "model": "linear", "epochs": 1}
    experiment = Experiment(**settings)
    assert launcher.start(experiment, settings)
    assert launcher._started[experiment.id].process is spares[0]
    assert spares[0].wait(120) == 0
    state = launcher.list_states()[experiment.id]
    assert not state["running"] and not state["error"]
    assert Record(tmp_path / experiment.id).summary["status"] == "finished"
    assert len(launcher._spares) == MAX_RUNNING  # the one that was used is replaced
    left = [spare.process for spare in launcher._spares]
    launcher.close()
    assert all(process.poll() is not None for process in left)


def test_prepared_processes_that_fail_are_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    launcher = RunLauncher(tmp_path)
    launcher.prepare()
    for spare in launcher._spares:
        spare.process.wait(60)
    launcher.list_states()
    assert launcher._spares == [] and not launcher._keeps_spares
    launcher.close()


def test_json_of_the_page_is_finite() -> None:
    json.dumps(list_choices(), allow_nan=False)
