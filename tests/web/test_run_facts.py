"""Facts of runs: commands, labels, custom objects."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from straggler.algorithms.methods import METHODS
from straggler.cli import build_app
from straggler.experiment import Experiment
from straggler.web.report import describe_rerun, render_html_report
from straggler.web.run_facts import RunFacts, build_command, find_changed_settings


@pytest.mark.parametrize("method", METHODS)
def test_rerun_command_has_the_same_id(method: str) -> None:
    settings: dict[str, Any] = {"workers": 1 if METHODS[method].single else 6, "lr": 0.05, "seconds": 70.0}
    settings |= {"delay": ["constant(2, workers=[0])", "spikes(0.1, 5)"], "partition": "dirichlet(alpha=0.3)"}
    experiment = Experiment(method=method, **settings)
    words = build_command(find_changed_settings(experiment))
    command: Any = typer.main.get_command(build_app(load_all=True))
    parsed = command.commands["run"].make_context("run", words[2:]).params
    flags = {k: v for k, v in parsed.items() if k in Experiment.model_fields and v not in (None, ())}
    again = Experiment(**flags | ({"delay": list(flags["delay"])} if "delay" in flags else {}))
    assert again.id == experiment.id


def test_rerun_command_includes_other_settings() -> None:
    odd = Experiment(
        momentum=0.5, weight_decay=0.001, stop="each", gradients=40, train_metrics=True, engine="processes"
    )
    words = build_command(find_changed_settings(odd))
    command: Any = typer.main.get_command(build_app(load_all=True))
    parsed = command.commands["run"].make_context("run", words[2:]).params
    flags = {k: v for k, v in parsed.items() if k in Experiment.model_fields and v not in (None, ())}
    assert Experiment(**flags).id == odd.id


def test_rerun_command_with_elastic_workers() -> None:
    for workers in ("2-4", "2-8", "3-3"):
        elastic = Experiment(workers=workers, engine="processes", gradients=40)
        words = build_command(find_changed_settings(elastic))
        command: Any = typer.main.get_command(build_app(load_all=True))
        parsed = command.commands["run"].make_context("run", words[2:]).params
        flags = {k: v for k, v in parsed.items() if k in Experiment.model_fields and v not in (None, ())}
        assert Experiment(**flags).id == elastic.id


def test_experiment_is_read_back_from_the_record(runs: dict[str, Path]) -> None:
    facts = RunFacts(runs["k-sync"])
    assert facts.experiment is not None and facts.experiment.id == facts.id
    assert tomllib.loads(facts.record.text) == facts.settings


def test_records_with_import_strings_are_shown_but_never_imported(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(runs["asgd"], tmp_path / "custom"))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'hacked')!r}, 'w')\n")
    text = (folder / "experiment.toml").read_text()
    custom = f"{tmp_path / 'evil.py'}:MyPolicy(bound=3)"
    (folder / "experiment.toml").write_text(text.replace('"asynchronous"', f'"{custom}"'))
    facts = RunFacts(folder)
    assert facts.method == "MyPolicy(bound=3)" and facts.experiment is None and facts.problems == []
    assert "MyPolicy(bound=3)" in render_html_report([facts, RunFacts(runs["ssgd"])], embedded=False)
    assert "MyPolicy" in describe_rerun(facts, "")["toml"] and not (tmp_path / "hacked").exists()
