"""The pool computes the same bits as one process, even if its processes die."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from straggler.algorithms.methods import METHODS
from straggler.algorithms.work import gradient_program
from straggler.engines.pool.compute_task import ComputeTask, PoolError
from straggler.engines.pool.gradient_pool import SLOTS, GradientComputer, GradientPool
from straggler.engines.pool.shared_memory import pack_shared
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.evaluation import Evaluation

pytestmark = pytest.mark.slow  # real processes, many runs
DIGITS: dict[str, Any] = {
    "dataset": "digits",
    "workers": 4,
    "compute": "gamma(1, 0.5)",
    "lr": 0.02,
    "eval_every": 0,
}


def outcome(folder: Path, jobs: int, save: str = "60s", **settings: Any) -> tuple[str, list[Any]]:
    """Return the weights and the recorded arrivals."""
    record = Experiment(**settings).run(folder, jobs=jobs, force=True, checkpoint_every=save)
    return str(record.summary["weights_sha256"]), record.arrivals.rows()


def ready(pool: GradientPool) -> GradientPool:
    """Wait until the processes of the pool are ready, so that they compute and not this process."""
    pool.wait_until_ready()
    return pool


class Awaited(GradientPool):
    """A pool that is ready before the run begins, and counts the gradients that its processes compute."""

    started = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.wait_until_ready()

    def _start(self, task: ComputeTask, slot: Any) -> None:
        Awaited.started += task.call[0] == "message"
        super()._start(task, slot)


def same_bits(settings: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, two processes, and two with frequent progress and checkpoints give the same results."""
    watched = settings | {"eval_every": 0.5, "train_metrics": True, "snapshots": 3}
    alone = outcome(folder, 1, **settings)
    monkeypatch.setattr("straggler.engines.pool.gradient_pool.GradientPool", Awaited)
    Awaited.started = 0
    assert outcome(folder, 2, **settings) == alone
    assert (
        Awaited.started > 0.05 * settings["gradients"]
    )  # the others are computed here, most on a busy machine
    assert outcome(folder, 2, save="3", **watched) == alone
    assert outcome(folder, 3, **settings) == alone


@pytest.mark.parametrize(
    "model", ["lenet5", *(pytest.param(name, marks=pytest.mark.chaos) for name in ("cnn", "asu-fashion"))]
)
def test_one_and_two_jobs_give_the_same_bits(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = {"lenet5": 150, "asu-fashion": 80, "cnn": 40}[model]
    same_bits({**DIGITS, "model": model, "gradients": gradients}, tmp_path, monkeypatch)


HYBRIDS = [f"hybrid({k}, staleness_tolerance={t})" for k, t in ((1, 0), (1, 1), (2, 0), (3, 1))]


@pytest.mark.parametrize("policy", [*dict.fromkeys(m.policy for m in METHODS.values()), *HYBRIDS])
def test_every_policy_gives_the_same_bits_on_two_jobs(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients set aside, dropped or abandoned are neither overwritten nor waited for (with BatchNorm)."""
    settings = {**DIGITS, "model": "asu-fashion", "policy": policy, "workers": 5, "batch_size": 4}
    if policy == "ringleader":
        settings["aggregation"] = "ringleader"
    settings |= {"gradients": 60, "compute": "pareto(0.3, 1.2)"}
    alone = outcome(tmp_path, 1, **settings)
    monkeypatch.setattr("straggler.engines.pool.gradient_pool.GradientPool", Awaited)
    assert outcome(tmp_path, 2, **settings) == alone


OFTEN_ON_A_POOL = ("ia2sgd", "ca2fl", "ringleader", "easgd", "async-diloco")


@pytest.mark.parametrize(
    "method",
    [m if m in OFTEN_ON_A_POOL else pytest.param(m, marks=pytest.mark.chaos) for m in METHODS],
)
def test_every_method_gives_the_same_bits_on_two_jobs(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with local work, memory at the workers, and aggregations that keep messages."""
    workers = 1 if METHODS[method].single else 4
    settings = DIGITS | {"model": "mlp(hidden=[16])", "method": method, "workers": workers, "batch_size": 8}
    settings |= {"gradients": 400, "compute": "gamma(1, 0.5)"}
    alone = outcome(tmp_path, 1, **settings)
    monkeypatch.setattr("straggler.engines.pool.gradient_pool.GradientPool", Awaited)
    assert outcome(tmp_path, 2, **settings) == alone


def test_gradients_and_evaluations_of_the_pool_are_those_of_this_process() -> None:
    problem = Experiment(dataset="digits", model="cnn", workers=3).problem()
    x, buffers = problem.initial_model()
    with use_one_thread():
        pool, here = (
            ready(GradientPool(gradient_program(problem), 2)),
            GradientComputer(gradient_program(problem)),
        )
        try:
            tasks = [ComputeTask(("message", w, i), x, buffers) for w in range(3) for i in range(4)]
            pool.start_tasks(iter_of(tasks))
            for task in reversed(tasks):  # not the order they were started in
                ours, theirs = here.result(ComputeTask(task.call, x, buffers)), pool.result(task)
                assert torch.equal(ours.vector, theirs.vector)
                assert ours.loss == theirs.loss
            one, two = (Evaluation(compute, x, buffers, ("test", "train")) for compute in (here, pool))
            assert one.scores() == two.scores()
            for split in ("test", "train"):
                assert np.array_equal(one.predictions[split], two.predictions[split])
        finally:
            pool.close()


def iter_of(tasks: list[ComputeTask]) -> Any:
    remaining = iter(tasks)
    return lambda: next(remaining, None)


@contextmanager
def digits_pool(
    jobs: int,
) -> Iterator[tuple[GradientPool, GradientComputer, tuple[torch.Tensor, torch.Tensor]]]:
    """Return a pool that is ready, a computer in this process to compare with, and a model."""
    problem = Experiment(dataset="digits", workers=2).problem()
    with use_one_thread(), closing(GradientPool(gradient_program(problem), jobs)) as pool:
        yield ready(pool), GradientComputer(gradient_program(problem)), problem.initial_model()


def test_a_killed_process_is_restarted_and_its_tasks_are_repeated() -> None:
    with digits_pool(2) as (pool, here, model):
        tasks = [ComputeTask(("message", 0, i), *model) for i in range(30)]
        upcoming = iter_of(tasks)
        for number, task in enumerate(tasks):
            pool.start_tasks(upcoming)
            if number in (3, 11, 20):
                os.kill(pool._children[number % 2].pid, signal.SIGKILL)
            assert torch.equal(pool.result(task).vector, here.result(task).vector)


def test_a_joining_process_computes_while_it_waits_and_errors_are_raised_at_the_result() -> None:
    problem = Experiment(dataset="digits", workers=2).problem()
    Awaited.started = 0
    with use_one_thread(), closing(Awaited(gradient_program(problem), 1, joins=True)) as pool:
        here, model = GradientComputer(gradient_program(problem)), problem.initial_model()
        tasks = [ComputeTask(("message", 0, i), *model) for i in range(20)]
        tasks[SLOTS] = ComputeTask(("message", 99, 0), *model)  # no such worker; computed here
        upcoming = iter_of(tasks)
        for number, task in enumerate(tasks):
            pool.start_tasks(upcoming)
            if number == SLOTS:
                with pytest.raises(RuntimeError, match=r"Computing .*99.* failed"):
                    pool.result(task)
            else:
                assert torch.equal(pool.result(task).vector, here.result(task).vector)
    assert 0 < Awaited.started < len(tasks)


def test_all_processes_killed_at_once_are_restarted() -> None:
    with digits_pool(4) as (pool, here, model):
        for child in pool._children:
            os.kill(child.pid, signal.SIGKILL)
        task = ComputeTask(("message", 0, 0), *model)
        assert torch.equal(pool.result(task).vector, here.result(task).vector)


def test_a_process_that_is_often_killed_while_it_is_idle_is_restarted_each_time() -> None:
    with digits_pool(1) as (pool, here, model):
        for _ in range(8):
            os.kill(pool._children[0].pid, signal.SIGKILL)
            ready_again = pool._children[0]
            while pool._children[0] is ready_again:
                pool._receive(1.0)
            pool.wait_until_ready()
        task = ComputeTask(("message", 0, 0), *model)
        assert torch.equal(pool.result(task).vector, here.result(task).vector)


def test_failed_tasks_free_their_slots() -> None:
    """If all tasks fail, the next result raises an error instead of waiting forever for a slot."""
    with digits_pool(2) as (pool, _, model):
        missing_worker = 99
        pool.start_tasks(iter_of([ComputeTask(("message", missing_worker, i), *model) for i in range(4)]))
        assert pool.result(pool.evaluation_tasks(*model, "test")[0]) is not None


def test_processes_that_keep_dying_end_the_run_with_a_remedy() -> None:
    pool = GradientPool(
        gradient_program(Experiment(dataset="digits", model=Suicidal, workers=2).problem()), 2
    )
    x, buffers = pool.problem.initial_model()
    try:
        ready(pool)
        with pytest.raises(PoolError, match=r"keep dying.*--jobs"):
            pool.result(ComputeTask(("message", 0, 0), x, buffers))
    finally:
        pool.close()


class Suicidal(nn.Module):
    """A module that kills its process when it is used, as the kernel does when memory runs out."""

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
    pool = GradientPool(gradient_program(Experiment(dataset="digits", model=Clumsy, workers=2).problem()), 1)
    x, buffers = pool.problem.initial_model()
    try:
        ready(pool)
        with pytest.raises(RuntimeError, match=r"(?s)in forward.*I lost my weights"):
            pool.result(ComputeTask(("message", 0, 0), x, buffers))
    finally:
        pool.close()


def test_closing_leaves_no_process_and_no_open_file() -> None:
    """In a process of its own, because in this one Ray or a browser may open a file at any time."""
    script = textwrap.dedent("""
        import gc
        from pathlib import Path

        from straggler.algorithms.work import gradient_program
        from straggler.engines.pool.fork_server import get_fork_server
        from straggler.engines.pool.gradient_pool import GradientPool
        from straggler.experiment import Experiment

        def open_files():
            links = [file for file in Path("/dev/fd").iterdir() if file.is_symlink()]
            return {file.name: str(file.readlink()) for file in links}

        problem = Experiment(dataset="digits", workers=2).problem()
        get_fork_server()  # starts before the count, because it stays for the next pool
        gc.collect()
        before = open_files()
        pool = GradientPool(gradient_program(problem), 2)
        pool.wait_until_ready()
        pids = [child.pid for child in pool._children]
        assert len(open_files()) > len(before)
        pool.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        del pool
        gc.collect()  # shared memory is unmapped when the last tensor in it is freed
        left = set(open_files()) - set(before)
        assert not left, {number: open_files()[number] for number in left}
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_memory_mapped_array_is_sent_by_name_and_a_view_of_it_by_value(tmp_path: Path) -> None:
    import pickle

    np.save(tmp_path / "big.npy", np.arange(1_000_000, dtype=np.int64))
    mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
    for array in (mapped, mapped[1000:], mapped[::2]):
        packed = pack_shared({"array": array})
        assert len(packed[0].bytes) < 10_000
        assert np.array_equal(pickle.loads(packed[0].bytes)["array"], array)
        for memory in packed:
            memory.close()
