"""Records and helpers for the tests of figures and labels; a module loads it with `pytest_plugins`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from straggler.cli import build_app
from straggler.experiment import Experiment
from straggler.record import Record

POLICIES = ("asynchronous", "synchronous", "k-sync(k=2)", "ssp(bound=1.0)", "k-batch-sync(k=3)")


def train(folder: Path, **settings: Any) -> Record:
    """Run a small experiment with one slow worker."""
    defaults = {"dataset": "quadratic(noise=0.1)", "workers": 4, "lr": 0.05, "gradients": 200}
    slow = {"compute": "gamma(mean=1, cv=0.3)", "delay": "constant(2, workers=[0])", "eval_every": 0.02}
    return Experiment(**defaults | slow | settings).run(folder, jobs=1)


def copy_with(record: Record, folder: Path, summary: dict[str, Any] | None = None, **settings: Any) -> Record:
    """Copy a record and change its settings and its summary."""
    copy = folder / "-".join(f"{key}{value}" for key, value in settings.items()).replace("/", "_")
    shutil.copytree(record.path, copy)
    lines = [f"{key} = {json.dumps(value)}" for key, value in (record.settings | settings).items()]
    (copy / "experiment.toml").write_text("\n".join(lines))
    (copy / "summary.json").write_text(json.dumps(record.summary | {"converged": True} | (summary or {})))
    return Record(copy)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(load_all=True), arguments)


def legend_of(figure: Figure) -> list[str]:
    """Return the labels of the legend, wherever it is."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """A run per policy, by the policy's text."""
    folder = tmp_path_factory.mktemp("runs")
    return {policy: train(folder, policy=policy) for policy in POLICIES}


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run with classes, which the figures of accuracy need."""
    folder = tmp_path_factory.mktemp("digits")
    return train(folder, dataset="digits", model="asu-mnist", gradients=60, eval_every=0.5, delay=[])


@pytest.fixture
def mixed(digits: Record, tmp_path: Path) -> list[str]:
    """Folders of two partitions and two sizes with three seeds each; some runs did not converge."""
    folders = []
    for partition in ("iid", "label"):
        for workers in (2, 10):
            for seed in range(3):
                failed = partition == "label" and (workers == 10 or seed == 0)
                accuracy = 10.0 if failed else 80.0 + seed
                summary = {"test_accuracy": accuracy, "converged": not failed}
                settings = {"partition": partition, "workers": workers, "seed": seed}
                folders.append(str(copy_with(digits, tmp_path / "mixed", summary, **settings).path))
    return folders
