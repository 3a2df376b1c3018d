"""Prefetching: the same batches as without, whatever happens to the processes that load them."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.problems.loading import AHEAD, MAX_FAILURES, BatchLoader


def load_numbers(worker: int, index: int) -> tuple[int, int, int]:
    return worker, index, os.getpid()


@pytest.fixture
def loader() -> Iterator[BatchLoader]:
    made = BatchLoader(processes=2, timeout=5.0)
    yield made
    made.close()
    assert not multiprocessing.active_children()


def test_batches_are_those_that_were_asked_for(loader: BatchLoader) -> None:
    for key in ((0, 0), (0, 1), (0, 1), (0, 2), (0, 7), (0, 8), (3, 9), (0, 9), (0, 8)):
        worker, index, process = loader.load(load_numbers, *key)
        assert (worker, index) == key
        assert process != os.getpid()


def test_the_next_batches_are_loaded_ahead(loader: BatchLoader, tmp_path: Path) -> None:
    def write_name(worker: int, index: int) -> int:
        (tmp_path / f"{worker}-{index}").touch()
        return index

    loader.load(write_name, 1, 10)
    until = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 * AHEAD and time.monotonic() < until:
        time.sleep(0.01)
    assert {path.name for path in tmp_path.iterdir()} == {f"1-{10 + more}" for more in range(2 * AHEAD)}


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_is_replaced(kind: signal.Signals) -> None:
    loader = BatchLoader(processes=1, timeout=1.0)
    first = loader.load(load_numbers, 0, 0)[2]
    loader.load(load_numbers, 0, AHEAD - 1)  # a jump, so that nothing is loaded ahead
    victim = loader.load(load_numbers, 0, AHEAD)[2]
    os.kill(victim, kind)
    results = [loader.load(load_numbers, 0, AHEAD + 1 + more) for more in range(2 * AHEAD)]
    assert [index for _, index, _ in results] == [AHEAD + 1 + more for more in range(2 * AHEAD)]
    assert os.getpid() in {process for *_, process in results}
    assert results[-1][2] not in (first, victim, os.getpid())
    loader.close()
    assert not multiprocessing.active_children()


def test_the_error_of_a_data_set_is_raised(loader: BatchLoader) -> None:
    def fail(worker: int, index: int) -> None:
        raise ZeroDivisionError(f"item {index}")

    for index in range(MAX_FAILURES + 1):
        with pytest.raises(ZeroDivisionError, match=f"item {index}"):
            loader.load(fail, 0, index)
    assert not multiprocessing.active_children(), "it does not start more processes"


class NoisyPoints(Dataset[Any]):
    """Points with noise from torch's global generator, as random transforms use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 120

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        (self.folder / str(os.getpid())).touch()
        centre = torch.tensor([float(number % 3), float(number % 5)])
        return centre + 0.1 * torch.randn(2), number % 3


def settings_of(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return {
        "dataset": (NoisyPoints(folder), NoisyPoints(folder)),
        "model": lambda: nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 3)),
        "workers": 1,
        "batch_size": 8,
        "gradients": 25,
        "lr": 0.1,
        "eval_every": 0,
        "train_metrics": "never",
    }


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.chaos)])
def test_loading_ahead_changes_no_bit(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_here")
    folder = tmp_path / "processes"
    settings = settings_of(folder)
    plain = Experiment(**settings).run(tmp_path, jobs=1)
    assert {path.name for path in folder.iterdir()} == {str(os.getpid())}
    ahead = Experiment(**settings, engine=engine).run(tmp_path, loader_workers=2)
    assert len(list(folder.iterdir())) == 3, "the worker itself loads nothing"
    assert ahead.summary["weights_sha256"] == plain.summary["weights_sha256"]


def test_loader_workers_are_refused_in_virtual_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"loader_workers=2 .* requires engine='processes'"):
        Experiment(**settings_of(tmp_path / "data")).run(tmp_path / "runs", loader_workers=2)
    assert not (tmp_path / "runs").exists()
