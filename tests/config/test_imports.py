"""Import strings name custom code in text: what they load, what they refuse, and how errors read."""

import ast
import inspect
from pathlib import Path

import pytest

from straggler import experiment as experiment_module
from straggler.algorithms.policies import POLICIES
from straggler.config.imports import is_import_string
from straggler.config.listing import read_listing
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.problems.models import MODELS

CUSTOM = '''
import torch
from torch import nn
from straggler import Correction, Memoryless, Optimizer, Partition, Policy
import numpy as np


class Quorum(Policy):
    """Step when a share of the workers has delivered."""

    share: float = 0.5

    def merges(self, workers):
        return True

    def receive(self, server, arrival):
        server.merge(arrival)
        if server.held < self.share * len(server.active) and server.busy:
            return ()
        server.step()
        return tuple(server.active)


class Halved(Correction):
    def correct(self, gradient, arrival, server):
        return gradient * 0.5, 1.0


class Coin(Memoryless):
    long: float = 3.0

    def draw(self, rng, worker, compute):
        return np.where(rng.random(compute.size) < 0.5, 1.0, self.long)


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)


class Noise(torch.utils.data.Dataset):
    def __init__(self, size, seed=0):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __getitem__(self, item):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + item)
        x = torch.randn(1, 8, 8, generator=generator)
        return x, int(x.mean() > 0)


def noise(size=200):
    return Noise(size), Noise(50, seed=1)


def squared(output, target):
    return (output - nn.functional.one_hot(target, output.shape[1])).square().mean()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with the file custom.py."""
    (tmp_path / "custom.py").write_text(CUSTOM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def custom_experiment(**settings: object) -> Experiment:
    return Experiment(**{  # type: ignore[arg-type]
        "dataset": "./custom.py:noise(size=120)",
        "model": "./custom.py:Net(width=4)",
        "loss": "./custom.py:squared",
        "policy": "./custom.py:Quorum(share=0.75)",
        "correction": "clip(norm=1) + ./custom.py:Halved",
        "compute": "./custom.py:Coin",
        "workers": 3,
        "updates": 5,
    } | settings)  # fmt: skip


def test_import_strings_are_recognised() -> None:
    for text in ("pkg.mod:Name", "./f.py:Name", "./f.py:Name(width=64)", "/a b/f.py:A.B", "m:f('x:y')"):
        assert is_import_string(text)
    for text in ("asgd", "constant(1)", "constant(seconds='a:b')", ":Name", "a:1b", "", 3, None):
        assert not is_import_string(text)


def test_a_custom_experiment_runs_and_is_recreated_from_its_record(folder: Path) -> None:
    experiment = custom_experiment()
    record = experiment.run("runs", jobs=1)
    assert record.settings["policy"] == "./custom.py:Quorum(share=0.75)"
    assert record.settings["model"] == "./custom.py:Net(width=4)"
    assert record.settings["loss"] == "./custom.py:squared"
    assert record.settings["correction"] == "clip(norm=1.0) + ./custom.py:Halved"
    assert Experiment.from_record(record, trust=True).id == experiment.id == record.path.name
    with pytest.raises(InputError, match="--trust"):
        Experiment.from_record(record)
    with pytest.raises(InputError, match="--trust"):
        Experiment.from_toml(record.path / "experiment.toml")
    assert Experiment.from_toml(record.path / "experiment.toml", trust=True).id == experiment.id


def test_a_dotted_module_of_the_current_folder_is_found(folder: Path) -> None:
    by_file, by_name = "./custom.py:Quorum(share=0.75)", "custom:Quorum(share=0.75)"
    assert custom_experiment(policy=by_name).id == custom_experiment(policy=by_file).id


def test_changed_code_changes_the_id(folder: Path) -> None:
    before = custom_experiment().id
    assert custom_experiment().id == before
    (folder / "custom.py").write_text(CUSTOM.replace("* 0.5, 1.0", "* 0.25, 1.0"))
    assert custom_experiment().id != before


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("policy", "no_such_package.module:Name", "No module named 'no_such_package'"),
        ("policy", "./missing.py:Name", "File missing.py does not exist"),
        ("policy", "./custom.py:Quorun", "Did you mean 'Quorum'"),
        ("policy", "./custom.py:Halved", "is not a policy: it must be a subclass of"),
        ("correction", "./custom.py:Quorum", "is not a correction"),
        ("compute", "./custom.py:squared", "is not a delay law"),
        ("policy", "./broken.py:Name", "syntax error in line 2 of broken.py"),
        ("policy", "./failing.py:Name", "failed in line 3 of failing.py: ZeroDivisionError"),
        ("policy", "./custom.py:Quorum(sharp=1)", "unknown key 'sharp'. Did you mean 'share'"),
        ("policy", "./custom.py:Quorum(share=no)", "share must be a valid number"),
        ("model", "./custom.py:Net(depth=3)", "unexpected keyword argument 'depth'"),
        ("model", "./custom.py:squared", "Building the model failed"),
        ("dataset", "./custom.py:Noise(5)", r"must return \(train_set, test_set\)"),
        ("dataset", "./custom.py:noise(number=5)", "unexpected keyword argument 'number'"),
        ("loss", "./custom.py:nothing", "has no 'nothing'"),
        ("loss", "nothing", "torch.nn.functional has no loss 'nothing'"),
    ],
)
def test_bad_import_strings_are_explained_in_one_line(
    key: str, text: str, message: str, folder: Path
) -> None:
    (folder / "broken.py").write_text("\ndef f(:\n")
    (folder / "failing.py").write_text("\n\n1 / 0\n")
    with pytest.raises(InputError, match=message) as caught:
        custom_experiment(**{key: text})
    assert "\n" not in str(caught.value)
    assert not (folder / "runs").exists()


def test_experiments_cannot_be_subclassed() -> None:
    with pytest.raises(TypeError, match="cannot be subclassed"):

        class Other(Experiment):
            pass


def test_installed_packages_register_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quorum_package.py").write_text(CUSTOM)
    info = tmp_path / "quorum_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quorum-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[straggler.policies]\nquorum = quorum_package:Quorum\n"
        "[straggler.models]\nwrong = quorum_package:Quorum\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for catalogue in (POLICIES, MODELS):
        catalogue.__dict__.pop("installed", None)  # it was looked up before the package was installed
    try:
        experiment = Experiment(policy="quorum(share=0.75)", workers=3)
        assert str(experiment.policy) == "quorum(share=0.75)"
        assert Experiment.from_settings(experiment.to_dict(), "a record").id == experiment.id
        assert ["quorum", "", "Registered by an installed package: quorum_package:Quorum"] in (
            read_listing()["policies"]["rows"]
        )
        with pytest.raises(InputError, match=r"'wrong' .* is not a model"):
            Experiment(model="wrong")
    finally:
        for catalogue in (POLICIES, MODELS):
            catalogue.__dict__.pop("installed", None)


def test_the_typed_signature_has_every_field() -> None:
    source = ast.parse(inspect.getsource(experiment_module))
    (signature,) = [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and node.args.kwonlyargs
    ]
    assert [argument.arg for argument in signature.args.kwonlyargs] == list(Experiment.model_fields)
    assert list(inspect.signature(Experiment).parameters) == list(Experiment.model_fields)
    assert all(field.description for field in Experiment.model_fields.values())
