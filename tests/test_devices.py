"""Devices: an accelerator written in Python computes the CPU's digits, and runs move between devices."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import straggler
from python_accelerator import MODULE, SMALL, AcceleratorTensor
from straggler import Experiment, InputError
from straggler.algorithms.methods import METHODS
from straggler.core.devices import CPU, find_devices
from straggler.running.observer import RunProgress
from straggler.running.replay import replay
from straggler.running.simulation import create_simulation

NPY = torch.device("npy", 0)


def train_on(device: torch.device, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return the weights and buffers of a simulation that computes on a device."""
    experiment = Experiment(**SMALL | settings)
    problem = experiment.problem()
    problem.move_to(device)
    simulation = create_simulation(experiment, problem).run(experiment.budget(problem))
    server = simulation.server
    assert server.x.device == server.buffers.device == device
    assert isinstance(server.x, AcceleratorTensor) == (device == NPY)
    return server.x.cpu(), server.buffers.cpu()


def assert_same_digits(**settings: Any) -> None:
    """Assert that a simulation has the same weights and buffers on the accelerator and on the CPU."""
    there, here = train_on(NPY, **settings), train_on(CPU, **settings)
    assert all(torch.equal(one, other) for one, other in zip(there, here, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_computes_the_same_digits_on_an_accelerator(method: str) -> None:
    updates = 2 if "local" in str(METHODS[method].work) or METHODS[method].work == "elastic" else 6
    assert_same_digits(method=method, workers=1 if METHODS[method].single else 3, updates=updates)


CHANNELS_AND_MORE: dict[str, dict[str, Any]] = {
    "top-k": {"channel": "top-k(0.2, down=bf16)"},
    "random-k": {"channel": "random-k(0.2)"},
    "qsgd": {"channel": "qsgd(bits=2)"},
    "qsgd16": {"channel": "qsgd(bits=16)"},
    "sign": {"channel": "sign"},
    "powersgd": {"channel": "powersgd(rank=1)"},
    "fp16": {"channel": "fp16"},
    "muon": {"optimizer": "muon", "ema": 0.9},
    "adam inside": {"work": "local(steps=2, optimizer=adam, keep=True)", "lr": 1.0},
    "quadratic": {"dataset": "quadratic(noise=1)", "model": "lenet5"},
    "loss": {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))},
}


@pytest.mark.parametrize("kind", CHANNELS_AND_MORE)
def test_channels_and_other_stages_compute_the_same_digits_on_an_accelerator(kind: str) -> None:
    assert_same_digits(**CHANNELS_AND_MORE[kind], updates=4)


RECORDED: dict[str, dict[str, Any]] = {
    "gap": {"method": "dana-ga"},
    "adam": {"method": "async-adam", "ema": 0.9},
    "memory": {"work": "local(steps=2, optimizer=adam, keep=True)", "policy": "k-sync(k=2)", "lr": 1.0},
}


class Crash(BaseException):
    """A crash: no code catches it, and nothing is saved."""


def crash(progress: RunProgress) -> None:
    if progress.updates >= 5:
        raise Crash


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDED)
def test_a_run_resumes_on_another_device(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("straggler.running.observer.PROGRESS_SECONDS", 0.0)
    experiment = Experiment(
        **SMALL
        | RECORDED[kind]
        | {"updates": 8, "eval_every": 0.1, "snapshots": 3, "train_metrics": "always"}
    )
    whole = experiment.run(tmp_path / "whole")
    for first, second in (("npy", "cpu"), ("cpu", "npy:0")):
        folder = tmp_path / first
        with pytest.raises(Crash):
            experiment.run(folder, device=first, checkpoint_every="3", progress=crash)
        assert list((folder / experiment.id).glob("checkpoint-*"))
        resumed = experiment.run(folder, device=second)
        assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
        assert resumed.arrivals.equals(whole.arrivals, null_equal=True)
        assert resumed.curve.equals(whole.curve, null_equal=True)
        for name, tensor in whole.snapshots().items():
            assert torch.equal(tensor, resumed.snapshots()[name])
        for name, tensor in whole.weights().items():
            assert torch.equal(tensor, resumed.weights()[name])
        assert json.loads((resumed.path / "environment.json").read_text())["device"] == second
        assert replay(resumed, experiment, device="npy").matches


def test_an_accelerator_gets_the_seed_of_every_gradient() -> None:
    MODULE.seeds.clear()
    train_on(NPY, updates=3)
    assert len(set(MODULE.seeds)) >= 3


def test_one_process_computes_on_an_accelerator(tmp_path: Path) -> None:
    lines: list[str] = []
    Experiment(**SMALL).run(tmp_path, device="npy,cpu", jobs=2, report=lines.append)
    assert "engine='simulator' computes on one device, npy:0." in lines
    assert "jobs=2 has no effect: one process computes on npy:0." in lines


@pytest.mark.parametrize("choice", ["gpu", "cuda", "npy:1", "mps", "meta", "", "cpu,", [], ["cpu", 7]])
def test_an_unknown_or_missing_device_is_refused_before_anything_is_written(
    choice: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="evice"):
        Experiment(**SMALL).run(tmp_path / "runs", device=choice)
    assert not (tmp_path / "runs").exists()


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "device_count", lambda: 3)
    assert find_devices("npy") == find_devices(["npy"]) == [torch.device("npy", n) for n in range(3)]
    assert find_devices("npy:2, cpu") == [torch.device("npy", 2), CPU]
    assert find_devices("auto") == find_devices("npy")
    assert find_devices(torch.device("npy", 1)) == [torch.device("npy", 1)]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert find_devices("auto") == [CPU]


def test_mixed_devices_raise_as_on_a_gpu() -> None:
    there, here = torch.ones(2, device=NPY), torch.ones(2)
    mixes: list[Callable[[], Any]] = [
        lambda: there + here,
        lambda: torch.cat([here, there]),
        lambda: here.add_(there),
        lambda: torch.nn.functional.linear(there[None], here[None]),
        lambda: there[:1].index_copy_(0, torch.tensor([0]), there[:1]),
        lambda: np.asarray(there),
    ]
    for mix in mixes:
        with pytest.raises((RuntimeError, TypeError)):
            mix()
    assert torch.equal((there * torch.tensor(3.0)).cpu(), here * 3)  # single numbers may be anywhere


def compute_one_gradient(**settings: Any) -> Tensor:
    """Return the first gradient of worker 0 at the first model."""
    problem = Experiment(**SMALL | settings).problem()
    first, again = (problem.gradient(*problem.initial_model(), 0, 0).vector for _ in range(2))
    assert torch.equal(first, again)
    return first


def make_deep_net() -> nn.Module:
    """Return two convolutions without dropout, whose places depend on the layout."""
    first, second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.Flatten(), nn.Linear(64, 3))


@pytest.mark.parametrize(
    ("settings", "distance"),
    [
        ({"precision": "bf16"}, 0.2),
        ({"precision": "fp16"}, 0.03),
        ({"channels_last": True}, 1e-4),
        ({"precision": "bf16", "channels_last": True}, 0.2),
    ],
)
def test_precision_and_layout_change_a_gradient_little(settings: dict[str, Any], distance: float) -> None:
    plain, other = (compute_one_gradient(model=make_deep_net, **each) for each in ({}, settings))
    assert other.dtype == torch.float32
    assert torch.linalg.vector_norm(other - plain) <= distance * torch.linalg.vector_norm(plain)
    assert settings == {"channels_last": True} or not torch.equal(plain, other)


def small_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets) * 1e-7


def large_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets) * 1e3


@pytest.mark.parametrize("loss", [small_loss, large_loss])
def test_fp16_scales_the_loss_so_that_no_gradient_vanishes_or_overflows(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    plain = compute_one_gradient(loss=loss)
    half = compute_one_gradient(loss=loss, precision="fp16")
    assert torch.linalg.vector_norm(half - plain) < 0.05 * torch.linalg.vector_norm(plain)


def test_new_keys_at_their_defaults_do_not_change_an_id() -> None:
    plain = Experiment(**SMALL)
    assert Experiment(**SMALL, precision="float32", channels_last=False, compile=False).id == plain.id
    others = {"precision": "bf16"}, {"precision": "fp16"}, {"channels_last": True}, {"compile": True}
    assert len({plain.id, *(Experiment(**SMALL, **each).id for each in others)}) == 5


def test_compiling_requires_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="requires a C\\+\\+ compiler"):
        Experiment(**SMALL, compile=True).run(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.chaos
def test_compiled_gradients_are_pure_functions(tmp_path: Path) -> None:
    plain, compiled = compute_one_gradient(), compute_one_gradient(compile=True)
    assert plain.shape == compiled.shape and compiled.isfinite().all()
    experiment = Experiment(**SMALL | {"batch_size": [3, 4, 5]}, compile=True)
    one = experiment.run(tmp_path / "one", jobs=1)
    two = experiment.run(tmp_path / "two", jobs=2)
    assert one.summary["weights_sha256"] == two.summary["weights_sha256"]


@pytest.mark.slow
def test_the_runs_of_a_sweep_take_devices_in_turn(tmp_path: Path) -> None:
    grid = SMALL | {"dataset": [SMALL["dataset"]], "lr": [0.01, 0.02], "updates": 2}
    folders = {"out": tmp_path / "runs", "results": tmp_path / "results"}
    result = straggler.sweep(grid, seeds=1, **folders, cores=2, device="npy,cpu", progress=False)
    found = {json.loads((each.path / "environment.json").read_text())["device"] for each in result.records}
    assert found == {"npy:0", "cpu"}
    with pytest.raises(InputError, match="requires --on local"):
        straggler.sweep(grid, **folders, on="ray", device="npy", progress=False)
