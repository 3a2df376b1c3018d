"""Engines in real time: workers compute on an accelerator, and the server gets the CPU's digits."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from python_accelerator import SMALL, SmallNet
from straggler import Experiment, InputError
from straggler.core.devices import CPU, Placement
from straggler.running.placement import place_run
from straggler.running.replay import replay

METHODS: dict[str, dict[str, Any]] = {
    "ssgd": {},
    "asgd": {"channel": "top-k(0.2, down=bf16)"},
    "dana-ga": {"channel": "qsgd"},
    "local-sgd": {"work": "local(steps=2, optimizer=adam, keep=True)"},
    "fedbuff": {"work": "local(steps=2)", "channel": "powersgd"},
}


def run_on_accelerator(folder: Path, method: str, device: str, **settings: Any) -> Counter[str]:
    """Run a method and replay it on the CPU; return how many batches were on which device."""
    file = folder / "devices"
    kept = {key: value for key, value in SMALL.items() if key != "compute"}
    experiment = Experiment(
        **kept | METHODS[method] | {"model": partial(SmallNet, file), "method": method} | settings
    )
    record = experiment.run(folder, device=device)
    counts = Counter(file.read_text().splitlines())
    assert record.summary["status"] == "finished"
    assert replay(record, experiment).matches
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_processes_compute_on_an_accelerator(method: str, tmp_path: Path) -> None:
    counts = run_on_accelerator(tmp_path, method, "npy", engine="processes")
    assert counts["train npy:0"] >= 6 and counts["test npy:0"] >= 1
    assert counts["train cpu"] <= 1  # the trial in this process


@pytest.mark.slow
def test_processes_take_the_devices_of_a_list_in_turn(tmp_path: Path) -> None:
    counts = run_on_accelerator(tmp_path, "ssgd", "npy,cpu", engine="processes", eval_every=0)
    assert counts["train npy:0"] >= 2 * 6 and counts["train cpu"] >= 1 + 6  # and the trial in this process


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(
    "method",
    [name if name == "asgd" else pytest.param(name, marks=pytest.mark.chaos) for name in METHODS],
)
def test_ray_actors_compute_on_an_accelerator(method: str, tmp_path: Path) -> None:
    counts = run_on_accelerator(tmp_path, method, "npy", engine="ray")
    assert counts["train npy:0"] >= 6 and counts["train cpu"] <= 1


def test_ray_gives_gpus_and_threads() -> None:
    def place(device: str, **resources: float) -> Placement:
        (worker,) = place_run("ray", 2, device, False, resources, print).workers
        return worker

    assert place("cpu") == Placement()
    assert place("cpu", GPU=1, CPU=2) == Placement("cuda", threads=2)
    assert place("cuda", GPU=0.5, CPU=0.5) == Placement("cuda")
    assert place("auto") == Placement("auto")
    for device in ("cuda", "npy,cpu", "gpu"):
        with pytest.raises(InputError):
            place(device)
    assert place_run("ray", 2, "cuda", False, {"GPU": 1}, print).evaluator == Placement()


def test_workers_and_evaluator_take_devices_in_turn() -> None:
    found = place_run("processes", 2, ["npy", "cpu"], False, {}, print)
    assert (found.server, found.evaluator) == (CPU, Placement("npy:0"))
    assert found.workers == [Placement("npy:0"), Placement("cpu")]


def test_deterministic_mode_lasts_for_the_run(tmp_path: Path) -> None:
    modes: list[bool] = []
    Experiment(**SMALL).run(
        tmp_path, deterministic=True, jobs=1, report=lambda line: None,
        progress=lambda progress: modes.append(torch.are_deterministic_algorithms_enabled()),
    )  # fmt: skip
    assert all(modes) and not torch.are_deterministic_algorithms_enabled()
