"""Custom components written in a script run, resume and replay like built-in ones."""

import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import ConfigDict, Field, PrivateAttr
from torch import Tensor

from straggler.algorithms.corrections import StalenessAware
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.config.registry import InputError
from straggler.core import Arrival, Correction, Optimizer, Policy, Server, Shapes
from straggler.experiment import Experiment
from straggler.problems.examples import Labels
from straggler.problems.partitions import Indices, Partition
from straggler.running.landscape import compute_landscape
from straggler.running.observer import RunProgress
from straggler.running.replay import replay
from straggler.timing.calibration import calibrate
from straggler.timing.laws import Array, Memoryless


class Quorum(Policy):
    """Step on the mean as soon as this share of the workers has delivered; cancel the other jobs."""

    name: ClassVar[str] = "quorum"
    share: float = Field(0.5, gt=0, le=1)

    def merges(self, workers: int) -> bool:
        return workers > 1

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        if server.held < self.share * len(server.active) and server.busy:
            return ()
        server.step()
        return tuple(server.active)


class Fading(Correction):
    """Divide every gradient by the number of gradients so far (a correction with state)."""

    name: ClassVar[str] = "fading"
    _seen: int = PrivateAttr(default=0)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._seen = 0

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        self._seen += 1
        return gradient / self._seen**0.5, 1.0


class Signs(Optimizer):
    """Sign descent with momentum: x − η sign(v), v ← μv + g."""

    name: ClassVar[str] = "signs"
    momentum: float = 0.5
    _velocity: Tensor = PrivateAttr()

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._velocity = torch.zeros_like(x)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        return x.add(self._velocity.mul_(self.momentum).add_(direction).sign(), alpha=-lr)


class Coin(Memoryless):
    """A law with two durations, short and long."""

    name: ClassVar[str] = "coin"
    long: float = Field(3.0, gt=0)

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return np.where(rng.random(compute.size) < 0.5, 1.0, self.long)


class Stripes(Partition):
    """Worker i has samples i, i + N, i + 2N, …"""

    name: ClassVar[str] = "stripes"
    needs_labels: ClassVar[bool] = False

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        return [np.arange(worker, len(labels), workers) for worker in range(workers)]


class Holding(Correction):
    """A policy with a setting of any type, and private state."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: ClassVar[str] = "holding"
    held: Any = None
    _set: Any = PrivateAttr(default=None)

    def __init__(self, held: Any = None, hidden: Any = None) -> None:
        super().__init__(held=held)
        self._set = hidden

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        return self.held.correct(gradient, arrival, server) if self.held else (gradient, 1.0)


class Counting(OPTIMIZERS["sgd"]):  # type: ignore[misc]
    """SGD with a falling learning rate, which has the state of torch and a number."""

    name: ClassVar[str] = "counting"
    _steps: int = PrivateAttr(default=0)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        self._steps += 1
        return super().step(x, direction, lr / self._steps**0.5, worker, version)  # type: ignore[no-any-return]


OWN: dict[str, dict[str, Any]] = {
    "a correction in another": {"correction": Holding(Fading())},
    "an optimizer from torch's": {"optimizer": Counting(momentum=0.9)},
    "policy": {"policy": Quorum(share=0.75)},
    "correction": {"correction": Fading()},
    "chain": {"correction": ["clip(norm=1)", Fading()]},
    "optimizer": {"optimizer": Signs(), "lr": 0.001},
    "compute": {"compute": Coin(long=5)},
    "delay": {"delay": ["constant(0.1)", Coin()]},
    "partition": {"partition": Stripes()},
    "all": {
        "policy": Quorum(),
        "correction": Fading(),
        "optimizer": Signs(momentum=0.9),
        "compute": Coin(),
        "partition": Stripes(),
    },
}


def experiment(**settings: Any) -> Experiment:
    common = {"dataset": "digits", "model": "mlp(hidden=[16])", "workers": 4, "epochs": 2, "seed": 3}
    return Experiment(**common | settings)


@pytest.mark.slow
@pytest.mark.parametrize("settings", OWN.values(), ids=OWN)
def test_custom_components_run_replay_and_are_cached(settings: dict[str, Any], tmp_path: Path) -> None:
    mine = experiment(**settings)
    record = mine.run(tmp_path, jobs=1)
    assert record.summary["weights_sha256"] != experiment().run(tmp_path, jobs=1).summary["weights_sha256"]
    assert replay(record, mine).matches
    said = list[str]()
    assert mine.run(tmp_path, jobs=1, report=said.append).summary == record.summary
    assert "cached" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("settings", OWN.values(), ids=OWN)
def test_custom_components_resume(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.running.observer.PROGRESS_SECONDS", 0.0)
    mine = experiment(**settings)
    whole = mine.run(tmp_path / "whole", jobs=1).summary["weights_sha256"]

    def stop(progress: RunProgress) -> None:
        if progress.updates > 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine.run(tmp_path, jobs=1, progress=stop, checkpoint_every="5")
    said = list[str]()
    assert mine.run(tmp_path, jobs=1, report=said.append).summary["weights_sha256"] == whole
    assert "Resuming from the checkpoint" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("settings", OWN.values(), ids=OWN)
def test_the_text_of_a_python_object_cannot_recreate_it(settings: dict[str, Any], tmp_path: Path) -> None:
    record = experiment(**settings, epochs=0.1).run(tmp_path, jobs=1)
    assert "[custom " in record.text
    with pytest.raises(InputError, match="was a Python object"):
        Experiment.from_record(record)
    with pytest.raises(InputError, match="was a Python object, which text cannot recreate"):
        Experiment.from_toml(record.path / "experiment.toml")


SCRIPT = """
from typing import ClassVar
from pydantic import PrivateAttr
from straggler import Correction, Experiment

class Fading(Correction):
    name: ClassVar[str] = "fading"
    power: float = 0.5
    _seen: int = PrivateAttr(default={first})

    def correct(self, gradient, arrival, server):
        self._seen += 1
        return gradient / self._seen**{power}, 1.0

mine = Experiment(dataset="digits", model="mlp", correction=Fading({settings}))
print(mine.id)
mine.run("RUNS", jobs=1)
print(mine.id)
"""


def ids(folder: Path, **said: Any) -> set[str]:
    """The id is the same before and after a run, and in another process."""
    text = SCRIPT.format(**{"first": 0, "power": "self.power", "settings": ""} | said)
    script = folder / "script.py"
    script.write_text(text.replace("RUNS", str(folder)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_an_id_depends_on_code_and_settings_and_not_on_the_process(tmp_path: Path) -> None:
    found = [
        ids(tmp_path),
        ids(tmp_path, first=1),
        ids(tmp_path, power=0.5),
        ids(tmp_path, settings="power=0.7"),
    ]
    assert ids(tmp_path) == found[0]
    assert all(len(each) == 1 for each in found)
    assert len(set.union(*found)) == len(found)


DECORATED = """
import functools
from typing import ClassVar
import torch
from pydantic import PrivateAttr
from straggler import Correction, Experiment

class Kept(Correction):
    name: ClassVar[str] = "kept"
    @torch.no_grad()
    def correct(self, gradient, arrival, server):
        return gradient * FACTOR, 1.0

@functools.lru_cache
def weight(staleness):
    return FACTOR

class Cached(Kept):
    name: ClassVar[str] = "cached"
    def correct(self, gradient, arrival, server):
        return gradient, weight(0)

class Begun(Kept):
    name: ClassVar[str] = "begun"
    _factor: float = PrivateAttr(default=1.0)
    def model_post_init(self, context):
        self._factor = FACTOR
    def correct(self, gradient, arrival, server):
        return gradient, self._factor
"""


def made_by_exec(factor: float) -> dict[str, Any]:
    """Classes created without a file, as in a notebook or a plugin, with a number."""
    space: dict[str, Any] = {"__name__": "a_notebook"}
    exec(DECORATED.replace("FACTOR", str(factor)), space)
    return space


@pytest.mark.parametrize("name", ["Kept", "Cached", "Begun"])
def test_code_behind_a_decorator_and_without_a_file_is_in_the_id(name: str) -> None:
    once, again, other = (
        experiment(correction=made_by_exec(factor)[name]()).id for factor in (1.0, 1.0, 0.5)
    )
    assert once == again != other


def test_the_id_covers_all_values_of_a_component() -> None:
    long = torch.arange(5000.0)
    changed = long.clone()
    changed[2500] = 0.0
    corrections = [
        *(Holding(held) for held in (None, Fading(), StalenessAware(), long, changed, np.ones(3), {3, 4})),
        *(Holding(held) for held in (lambda t: 1.0, lambda t: 0.5)),
        Holding(hidden=0.1),
        Holding(hidden=0.2),
    ]
    ids = [experiment(correction=correction).id for correction in corrections]
    assert len(set(ids)) == len(ids)
    assert ids == [experiment(correction=correction).id for correction in corrections]


def test_state_that_a_checkpoint_cannot_store_is_refused_before_the_run(tmp_path: Path) -> None:
    for memory in (deque([1]), {1}, np.ones(2), Counter("a")):
        with pytest.raises(InputError, match=r"holding: a checkpoint cannot store .* Use numbers"):
            experiment(correction=Holding(hidden=memory)).run(tmp_path, jobs=1)
    assert not list(tmp_path.iterdir())


class InPlace(Optimizer):
    """Modify the model in place, which would also move the models of jobs in flight."""

    name: ClassVar[str] = "in-place"

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        return x.sub_(direction, alpha=lr)


def test_an_optimizer_that_modifies_the_model_in_place_is_detected(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="in-place modified the model in place"):
        experiment(optimizer=InPlace()).run(tmp_path, jobs=1)


class Dealt(Partition):
    """Return any parts that a test wants."""

    name: ClassVar[str] = "dealt"
    needs_labels: ClassVar[bool] = False
    parts: Any = None

    def deal(self, labels: Labels, workers: int, rng: np.random.Generator) -> list[Indices]:
        return self.parts  # type: ignore[no-any-return]


class Odd(Memoryless):
    """Return seconds of any shape."""

    name: ClassVar[str] = "odd"
    seconds: Any = 1.0

    def draw(self, rng: np.random.Generator, worker: int, compute: Array) -> Array:
        return self.seconds  # type: ignore[no-any-return]


def test_the_results_of_partitions_and_laws_are_checked(tmp_path: Path) -> None:
    one = np.arange(3)
    for parts in (None, [one], [one] * 3 + [one[:0]], [one] * 3 + [one + 1435], [one] * 3 + [one > 1]):
        with pytest.raises(InputError, match=r"(?s)partition=dealt.* must return .*(for each|per) worker"):
            experiment(partition=Dealt(parts=parts)).run(tmp_path, jobs=1)
    for seconds in (1.0, [1.0, 2.0]):
        with pytest.raises(InputError, match=r"must return an array of shape \(64,\), got"):
            experiment(compute=Odd(seconds=seconds))
    assert not list(tmp_path.iterdir())


class Nameless(Policy):
    """A class without a name."""

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        return ()


def test_classes_of_another_kind_are_refused() -> None:
    assert experiment(policy=Quorum) == experiment(policy=Quorum())
    assert str(experiment(policy=Nameless()).policy) == "Nameless"
    for key in ("policy", "optimizer", "partition", "compute"):
        with pytest.raises(InputError, match="is not a "):
            experiment(**{key: Fading()})
    with pytest.raises(InputError, match="is not a policy"):
        experiment(policy=StalenessAware())
    with pytest.raises(InputError, match="nesterov=True: signs has no nesterov"):
        experiment(optimizer=Signs(), nesterov=True)


def test_optimizer_shortcuts_set_a_custom_optimizer() -> None:
    mine = experiment(optimizer=Signs(), momentum=0.25)
    assert isinstance(mine.optimizer, Signs)
    assert mine.optimizer.momentum == mine.momentum == 0.25
    with pytest.raises(InputError, match="momentum is set twice"):
        experiment(optimizer=Signs(momentum=0.5), momentum=0.25)


def test_a_landscape_does_not_need_the_components_of_its_runs(tmp_path: Path) -> None:
    record = experiment(**OWN["all"], snapshots=4).run(tmp_path, jobs=1)
    found = compute_landscape({"mine": record}, grid=2, jobs=1)
    assert found.points["loss"].is_finite().all()


@pytest.mark.slow
def test_a_real_run_is_replayed_and_calibrated_with_the_experiment(tmp_path: Path) -> None:
    settings = OWN["all"] | {"workers": 2, "gradients": 200, "epochs": None, "engine": "processes"}
    settings.pop("compute")
    mine = experiment(**settings)
    record = mine.run(tmp_path, checkpoint_every="1000s")
    assert replay(record, mine).matches
    fitted = calibrate(record, mine).experiment
    assert isinstance(fitted.policy, Quorum)
    with pytest.raises(InputError, match="policy was a Python object"):
        calibrate(record)
