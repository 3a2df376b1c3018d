"""The pool computes the same bits as this process, whatever happens to its processes."""

import gc
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from straggler.engines.compute import Compute, Pool, Task
from straggler.engines.shared_memory import pack
from straggler.experiment import Experiment
from straggler.problem import one_thread

DIGITS: dict[str, Any] = {
    "dataset": "digits",
    "workers": 4,
    "compute": "gamma(1, 0.5)",
    "lr": 0.02,
    "eval_every": 0,
}


def sha(folder: Path, jobs: int, **settings: Any) -> str:
    return str(Experiment(**settings).run(folder, jobs=jobs, force=True).summary["weights_sha256"])


def ready(pool: Pool) -> Pool:
    """Wait until its processes are up, so that they and not this one compute."""
    pool.wait_until_ready()
    return pool


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet5", "cnn", "asu-fashion"])
@pytest.mark.parametrize("method", ["asgd", "ssgd"])
def test_one_and_two_jobs_give_the_same_bits(model: str, method: str, tmp_path: Path) -> None:
    settings = {
        **DIGITS,
        "model": model,
        "method": method,
        "gradients": {"lenet5": 150, "asu-fashion": 80, "cnn": 40}[model],
    }
    shas = {sha(tmp_path, jobs, **settings) for jobs in (1, 2)}
    shas.add(sha(tmp_path, 2, **{**settings, "eval_every": 0.5, "train_metrics": True, "snapshots": 3}))
    assert len(shas) == 1


def test_gradients_and_evaluations_of_the_pool_are_those_of_this_process() -> None:
    problem = Experiment(dataset="digits", model="cnn", workers=3).problem()
    x, buffers = problem.initial()
    with one_thread():
        pool, here = ready(Pool(problem, 2)), Compute(problem)
        try:
            tasks = [Task(("gradient", w, i), x, buffers) for w in range(3) for i in range(4)]
            pool.ahead(iter_of(tasks))
            for task in reversed(tasks):  # not the order they were started in
                ours, theirs = here.result(Task(task.call, x, buffers)), pool.result(task)
                assert torch.equal(ours.vector, theirs.vector)
                assert ours.loss == theirs.loss
            for ours, theirs in zip(
                here.evaluate(x, buffers, "test"), pool.evaluate(x, buffers, "test"), strict=True
            ):
                assert ours.loss == theirs.loss
                assert np.array_equal(ours.predictions, theirs.predictions)
        finally:
            pool.close()


def iter_of(tasks: list[Task]) -> Any:
    remaining = iter(tasks)
    return lambda: next(remaining, None)


def test_a_killed_process_is_replaced_and_its_tasks_are_done_again() -> None:
    problem = Experiment(dataset="digits", workers=2).problem()
    x, buffers = problem.initial()
    with one_thread():
        pool, here = ready(Pool(problem, 2)), Compute(problem)
        try:
            tasks = [Task(("gradient", 0, i), x, buffers) for i in range(30)]
            upcoming = iter_of(tasks)
            for number, task in enumerate(tasks):
                pool.ahead(upcoming)
                if number in (3, 11, 20):
                    os.kill(pool._children[number % 2].process.pid, signal.SIGKILL)
                assert torch.equal(pool.result(task).vector, here.result(task).vector)
        finally:
            pool.close()


def test_processes_that_keep_dying_end_the_run_with_advice() -> None:
    pool = Pool(Experiment(dataset="digits", model=Suicidal, workers=2).problem(), 2)
    x, buffers = pool.problem.initial()
    try:
        ready(pool)
        with pytest.raises(RuntimeError, match=r"keep dying.*--jobs"):
            pool.result(Task(("gradient", 0, 0), x, buffers))
    finally:
        pool.close()


class Suicidal(nn.Module):
    """Kills its process when it is used, as the kernel does when memory runs out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(inputs.flatten(1))


class Clumsy(Suicidal):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise LookupError("I lost my weights")


def test_an_exception_in_the_users_model_comes_back_with_its_traceback() -> None:
    pool = Pool(Experiment(dataset="digits", model=Clumsy, workers=2).problem(), 1)
    x, buffers = pool.problem.initial()
    try:
        ready(pool)
        with pytest.raises(RuntimeError, match=r"(?s)in forward.*I lost my weights"):
            pool.result(Task(("gradient", 0, 0), x, buffers))
    finally:
        pool.close()


def test_closing_leaves_no_process_and_no_open_file() -> None:
    problem = Experiment(dataset="digits", workers=2).problem()
    gc.collect()
    before = open_files()
    pool = ready(Pool(problem, 2))
    processes = [child.process for child in pool._children]
    pool.close()
    assert all(process.poll() is not None for process in processes)
    del pool, processes
    gc.collect()  # memory that a tensor lies on is unmapped with the tensor
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_memory_mapped_array_is_sent_by_name_and_a_view_of_it_by_value(tmp_path: Path) -> None:
    import pickle

    np.save(tmp_path / "big.npy", np.arange(1_000_000, dtype=np.int64))
    mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
    for array in (mapped, mapped[1000:], mapped[::2]):
        payload, shared = pack({"array": array})
        assert len(payload) < 10_000
        assert np.array_equal(pickle.loads(payload)["array"], array)
        for memory in shared:
            memory.close()
