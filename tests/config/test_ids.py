"""Ids: equal experiments have equal ids, different experiments have different ids."""

import random
import subprocess
import sys
import textwrap
from functools import partial
from importlib import import_module, reload
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from straggler.config.fingerprints import fingerprint
from straggler.config.registry import InputError
from straggler.experiment import Experiment

DATA = (torch.zeros(20, 3), torch.arange(20) % 2, torch.zeros(4, 3), torch.arange(4) % 2)


def identity(**settings: Any) -> str:
    return Experiment(**settings).id


def test_different_losses_of_the_same_name_have_different_ids() -> None:
    losses = [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.5),
        partial(F.cross_entropy, label_smoothing=0.1),
        partial(F.cross_entropy, label_smoothing=0.2),
        lambda output, target: F.cross_entropy(output, target),
        lambda output, target: 2 * F.cross_entropy(output, target),
    ]
    assert len({identity(dataset=DATA, model="linear", loss=loss) for loss in losses}) == len(losses)
    assert identity(loss=nn.CrossEntropyLoss()) == identity(loss=nn.CrossEntropyLoss())


def test_modules_that_compute_differently_have_different_ids() -> None:
    def made(body: str) -> type[nn.Module]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 2)

            if body == "relu":

                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    return self.layer(x).relu()

        return Net

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).tanh()

    assert identity(dataset=DATA, model=made("relu")) == identity(dataset=DATA, model=made("relu"))
    assert identity(dataset=DATA, model=made("relu")) != identity(dataset=DATA, model=Other)


STEP = 1.0


def scaled(values: torch.Tensor) -> torch.Tensor:
    return sum((values * STEP for _ in range(1)), torch.zeros(()))  # a name used in a function within


class Scaled(nn.Module):
    """A network whose structure and weights do not depend on its factor."""

    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.layer, self.by = nn.Linear(784, 10), by

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return scaled(self.layer(images.flatten(1))) * self.by


def made_around(by: float) -> type[nn.Module]:
    class Around(Scaled):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) * by

    return Around


def test_the_id_of_a_module_depends_on_attributes_closures_and_globals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def id_of(model: Any) -> str:
        return Experiment(dataset="digits", model=model).id

    first, other = id_of(Scaled), id_of(lambda: Scaled(2.0))
    assert id_of(made_around(1.0)) == id_of(made_around(1.0)) != id_of(made_around(2.0))
    assert id_of(lambda: Scaled(2.0)) == other
    assert id_of(Scaled(3.0)) != id_of(Scaled(4.0))
    monkeypatch.setitem(globals(), "STEP", 0.1)
    assert id_of(Scaled) != first
    assert id_of(lambda: Scaled(2.0)) != other


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


def by_property(by: float) -> type:
    class Net(Scaled):
        @property
        def factor(self) -> float:
            return by

    return Net


def by_static_method(by: float) -> type:
    class Net(Scaled):
        @staticmethod
        def factor() -> float:
            return by

    return Net


def tied(to: int) -> nn.Module:
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    layers[0].load_state_dict(layers[1].state_dict())
    layers[2].weight = layers[to].weight
    return layers


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (by_property(1.0), by_property(2.0)),
        (by_static_method(1.0), by_static_method(2.0)),
        (Slotted(1.0), Slotted(2.0)),
        (partial(scaled, 1.0), partial(scaled, 2.0)),
        (Scaled(1.0).forward, Scaled(2.0).forward),
        (slice(1), slice(2)),
        ({"a": {1, 2}}, {"a": {1, 3}}),
        (torch.float32, torch.float64),
        (np.array([1, None]), np.array([2, None])),
        (np.zeros(2, np.int64), np.zeros(2)),
        (lambda: STEP, lambda: Scaled),
    ],
)
def test_different_objects_have_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)


def test_freezing_a_layer_changes_the_fingerprint() -> None:
    whole, frozen = nn.Linear(3, 2), nn.Linear(3, 2)
    frozen.load_state_dict(whole.state_dict())
    assert fingerprint(whole) == fingerprint(frozen)
    frozen.bias.requires_grad_(False)
    assert fingerprint(whole) != fingerprint(frozen)


def test_functions_of_custom_modules_are_part_of_a_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions that are used through a module, or through a module inside it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("from mine import deep\n\ndef near(x): return x\n")
    deep = "import mine\n\ndef far(x): return x\n\ndef idle(x): return x\n"
    (tmp_path / "mine" / "deep.py").write_text(deep)
    monkeypatch.syspath_prepend(tmp_path)
    mine = import_module("mine")

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(mine.near(mine.deep.far(output)), target)

    seen = [fingerprint(loss)]
    for module, name in ((mine, "near"), (mine.deep, "far")):
        monkeypatch.setattr(module, name, lambda x: 2 * x)
        seen.append(fingerprint(loss))
    assert len(set(seen)) == 3
    monkeypatch.setattr(mine.deep, "idle", lambda x: 2 * x)
    assert fingerprint(loss) == seen[-1], "the loss does not use it"


def test_a_model_function_may_use_global_generators() -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.mask = torch.from_numpy(np.random.random(3)) + random.random()  # noqa: NPY002

    assert identity(dataset=DATA, model=Masked) == identity(dataset=DATA, model=Masked)
    problems = [Experiment(dataset=DATA, model=Masked, workers=1).problem() for _ in range(2)]
    assert torch.equal(*(problem.module.mask for problem in problems))


PLAIN = "def compute(x):\n    return f'{x!r:>{8}}' + str([i for i in range(3)])\n"
COMMENTED = '''

def compute( x ):
    """Explained."""
    # commented
    return f"{x!r:>{8}}" + str([i
        for i in range(3)])
'''


def test_a_fingerprint_depends_on_the_syntax_and_not_on_layout_comments_or_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    sources = {"plain": PLAIN, "commented": COMMENTED, "edited": PLAIN.replace("range(3)", "range(4)")}
    for name, source in sources.items():
        (tmp_path / f"{name}_source.py").write_text(source)
    plain, commented, edited = (fingerprint(import_module(f"{name}_source").compute) for name in sources)
    assert plain == commented != edited
    assert plain == "2209779855bb", "the same in every version of Python"


def test_a_module_that_is_edited_and_imported_again_has_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "edited_twice.py").write_text("def compute(x):\n    return x + 1\n")
    module = import_module("edited_twice")
    first = fingerprint(module.compute)
    (tmp_path / "edited_twice.py").write_text("def compute(x):\n    return x + 1000\n")
    assert fingerprint(reload(module).compute) != first


def test_tied_weights_and_equal_weights_have_different_fingerprints() -> None:
    torch.manual_seed(0)
    first = fingerprint(tied(to=0))
    torch.manual_seed(0)
    assert fingerprint(tied(to=1)) != first


def test_a_model_function_is_called_once_for_the_id() -> None:
    calls = []

    def make() -> nn.Module:
        calls.append(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

    experiment = Experiment(dataset="digits", model=make)
    assert experiment.id == experiment.id and str(experiment.model) in experiment.to_toml()
    assert calls == [1]


@pytest.mark.slow
def test_a_module_from_standard_input_has_the_same_id_in_every_process() -> None:
    script = """
        import torch
        from torch import nn
        from straggler import Experiment
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(784, 10)
            def forward(self, images):
                return self.layer(images.flatten(1)) * SCALE
        print(Experiment(dataset="digits", model=Net).id)
    """

    def id_of(scale: str) -> str:
        text = textwrap.dedent(script).replace("SCALE", scale)
        finished = subprocess.run(
            [sys.executable, "-"], input=text, text=True, capture_output=True, check=True
        )
        return finished.stdout

    assert id_of("1.0") == id_of("1.0") != id_of("0.1")


def test_the_id_depends_on_the_shape_of_the_labels() -> None:
    inputs, labels = np.zeros((6, 1, 28, 28), np.float32), np.arange(6)
    datasets = [(inputs, each, inputs, each) for each in (labels, labels[:, None])]
    assert len({Experiment(dataset=data, model="linear").id for data in datasets}) == 2


def test_a_model_function_that_fails_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="Building the model failed: ZeroDivisionError"):
        Experiment(model=lambda: 1 / 0)


def test_the_id_depends_on_the_content_of_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("worker,seconds\n0,1\n1,2\n")
    first = identity(dataset="digits", workers=2, compute=f"trace('{file}')")
    file.write_text("worker,seconds\n0,1\n1,3\n")
    assert identity(dataset="digits", workers=2, compute=f"trace('{file}')") != first


def test_different_texts_of_the_same_experiment_have_one_id() -> None:
    assert identity(method="asgd") == identity(policy="asynchronous", correction="none", optimizer="sgd")
    assert identity(optimizer="adam") == identity(optimizer="adam", momentum=0)
    assert identity(optimizer="sgd(momentum=0.9)") == identity(momentum=0.9)
    assert identity(compute="gamma(1, 0.5)") == identity(compute={"name": "gamma", "mean": 1, "cv": 0.5})
    for off in ("no", "off", "False", "false"):  # a text is not true because it is not empty
        assert identity(momentum=0.9, nesterov=off) == identity(momentum=0.9)
        assert identity(optimizer=f"sgd(momentum=0.9, nesterov={off})") == identity(momentum=0.9)


def test_the_id_depends_on_the_values_of_the_data() -> None:
    other = (DATA[0] + 1, *DATA[1:])
    assert identity(dataset=DATA, model="linear") != identity(dataset=other, model="linear")


def test_labels_may_have_any_integer_type(tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    data = (inputs, np.arange(40, dtype=np.int32) % 2)
    record = Experiment(dataset=(*data, *data), model="linear", workers=2, epochs=1).run(tmp_path, jobs=1)
    assert record.summary["test_accuracy"] is not None


def test_a_buffer_may_contain_infinities(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("mask", torch.tensor([0.0, -float("inf"), float("inf")]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    record = Experiment(dataset=DATA, model=Masked, workers=3, updates=9).run(tmp_path, jobs=1)
    assert record.weights()["mask"].tolist() == [0.0, -float("inf"), float("inf")]


def test_gap_aware_works_with_a_learning_rate_of_zero(tmp_path: Path) -> None:
    ending = {"epochs": 5, "schedule": "cosineannealing(T_max=2)", "correction": "gap-aware", "workers": 4}
    for optimizer in ("sgd", "adam"):
        experiment = Experiment(dataset="mixture(samples=200)", model="linear", optimizer=optimizer, **ending)
        assert experiment.run(tmp_path, jobs=1).summary["status"] == "finished"
