"""The recipes of CONTRIBUTING.md work as written, by import string and after registration."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from straggler.algorithms.aggregations import AGGREGATIONS
from straggler.algorithms.channels import CHANNELS
from straggler.algorithms.corrections import CORRECTIONS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.work import WORK
from straggler.analysis.figures.plot import KINDS, FigureKind, plot
from straggler.cli import build_app
from straggler.config.imports import import_object
from straggler.config.registry import Catalogue
from straggler.config.settings import PROBLEM_DATA
from straggler.engines import ENGINES
from straggler.experiment import Experiment
from straggler.problems.metrics import METRICS
from straggler.problems.models import MODELS
from straggler.problems.partitions import PARTITIONS
from straggler.record import Record
from straggler.timing import DELAYS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES: dict[str, str] = dict(
    re.findall(r"^## An? ([a-z ]+)$.*?^```python[^\n]*\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
)
STUDY_FILES: dict[str, str] = dict(
    re.findall(r"^```\w+ (\w+\.\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
)
CATALOGUES: dict[str, Catalogue[Any]] = {
    "policy": POLICIES,
    "correction": CORRECTIONS,
    "optimizer": OPTIMIZERS,
    "work": WORK,
    "channel": CHANNELS,
    "aggregation": AGGREGATIONS,
    "law": DELAYS,
    "partition": PARTITIONS,
    "model": MODELS,
    "data set": PROBLEM_DATA,
    "metric": METRICS,
}
# How an experiment uses the component of each recipe; NAME stands for its import string or registered name.
USES: dict[str, dict[str, Any]] = {
    "policy": {"policy": "NAME(share=0.6)"},
    "correction": {"correction": "NAME"},
    "optimizer": {"optimizer": "NAME(momentum=0.5)"},
    "work": {"work": "NAME(limit=0.5)"},
    "channel": {"channel": "NAME(down=bf16)"},
    "aggregation": {"aggregation": "NAME", "policy": "synchronous"},
    "law": {"compute": "NAME(mean=2)", "delay": ["NAME(mean=3, tick=0.5)"]},
    "partition": {"partition": "NAME"},
    "model": {"model": "NAME(width=8)"},
    "data set": {"dataset": "NAME(samples=400)", "model": "mlp"},
    "engine": {"engine": "NAME"},
    "metric": {"metrics": ["perplexity", "NAME(scale=2)"]},
}
SETTINGS: dict[str, Any] = {
    "dataset": "mixture(samples=300)",
    "model": "linear",
    "workers": 3,
    "updates": 60,
    "lr": 0.05,
}


def run_with(recipe: str, name: str, folder: Path) -> Record:
    """Run an experiment that uses a recipe's component under this name."""

    def fill(value: Any) -> Any:
        return [fill(item) for item in value] if isinstance(value, list) else value.replace("NAME", name)

    uses = {key: fill(value) for key, value in USES[recipe].items()}
    return Experiment(**SETTINGS | uses).run(folder, jobs=1)


def check_record(recipe: str, record: Record) -> None:
    """Check that the run finished and that the component did its work."""
    assert record.summary["status"] == "finished" and record.summary["converged"]
    if recipe == "policy":
        assert record.summary["cancelled"] == 60 and record.summary["applied"] == 120
    if recipe == "channel":
        assert 3.5 < record.summary["bytes_down"] * 2 / record.summary["bytes_up"] < 4.5
    if recipe == "engine":
        assert record.arrivals["time"].to_list() == [float(second) for second in range(1, 61)]


@pytest.fixture
def import_string(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the recipe to a file in the current folder; return the import string of its class."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(RECIPES[recipe])
    (name,) = re.findall(r"^class (\w+)", RECIPES[recipe], re.MULTILINE)
    return f"./recipe.py:{name}"


def test_every_recipe_is_tested() -> None:
    assert RECIPES.keys() == USES.keys() | {"figure", "study"}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", USES)
def test_a_recipe_works_by_import_string(recipe: str, import_string: str, tmp_path: Path) -> None:
    record = run_with(recipe, import_string, tmp_path / "runs")
    check_record(recipe, record)
    assert import_string in record.text


@pytest.mark.parametrize("recipe", CATALOGUES)
def test_a_recipe_works_after_registration(
    recipe: str, import_string: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = import_object(import_string)
    monkeypatch.setitem(CATALOGUES[recipe].built_in, entry.name, entry)
    check_record(recipe, run_with(recipe, entry.name, tmp_path / "runs"))


def test_an_engine_works_after_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in_turn_recipe.py").write_text(RECIPES["engine"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ENGINES, "in-turn", "in_turn_recipe:InTurn")
    check_record("engine", run_with("engine", "in-turn", tmp_path / "runs"))


def test_a_figure_works_after_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(RECIPES["figure"], names)
    monkeypatch.setitem(KINDS, "shares", FigureKind("gradients per worker", names["build_share_figure"]))
    policies = ("asynchronous", "synchronous")
    records = [Experiment(**SETTINGS, policy=policy).run(tmp_path, jobs=1) for policy in policies]
    plot(records, "shares", out=tmp_path / "shares.png")
    assert (tmp_path / "shares.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_study_runs_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_paper").mkdir()
    for name, content in STUDY_FILES.items():
        (tmp_path / "my_paper" / name).write_text(content)
    result = CliRunner().invoke(build_app("study"), ["study", "./my_paper/", "--quick", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "asgd" in (tmp_path / "results" / "my-paper-quick" / "README.md").read_text()
