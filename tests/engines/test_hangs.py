"""A process that is stopped (SIGSTOP) is replaced after a while: no run waits for ever."""

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from straggler.algorithms.work import gradient_program
from straggler.core import Job
from straggler.engines.pool import fork_server
from straggler.engines.pool.compute_task import ComputeTask
from straggler.engines.pool.gradient_pool import GradientComputer, GradientPool
from straggler.engines.processes import ProcessEngine
from straggler.engines.real_time import WorkerError
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.callbacks import Callback, LiveRun
from straggler.running.replay import replay
from straggler.timing import Durations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIGITS: dict[str, Any] = {"dataset": "digits", "model": "mlp", "workers": 3, "lr": 0.01}
TIMEOUT = 1.0


def list_children(parent: int) -> list[int]:
    """Return the children of a process, oldest first."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return sorted(int(pid) for pid in text.split())


@contextmanager
def stopping(find: Callable[[], list[int]], after: float, children: int) -> Iterator[list[int]]:
    """Stop processes some seconds after the children have started; continue them at the end."""
    stopped: list[int] = []
    server, over = fork_server.get_fork_server(), threading.Event()

    def stop() -> None:
        while len(list_children(server.process.pid)) < children and not over.wait(0.1):
            pass
        time.sleep(after)
        for pid in find():
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()
        for pid in stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


@pytest.mark.parametrize("joins", [False, True])
def test_a_stopped_process_of_the_pool_is_replaced(joins: bool) -> None:
    problem = Experiment(**DIGITS).problem()
    x, buffers = problem.initial_model()
    lines: list[str] = []
    program = gradient_program(problem)
    with (
        use_one_thread(),
        closing(GradientPool(program, 1, joins, timeout=TIMEOUT, report=lines.append)) as pool,
    ):
        pool.wait_until_ready()
        first = pool._children[0].pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        tasks = [ComputeTask(("message", 0, index), x, buffers) for index in range(5)]
        remaining = iter(tasks)
        pool.start_tasks(lambda: next(remaining, None))
        here = GradientComputer(program)
        for task in tasks:
            expected = here.result(ComputeTask(task.call, x, buffers))
            assert torch.equal(pool.result(task).vector, expected.vector)
        assert pool._children[0].pid != first
        assert set(lines) == {f"A process that computes sent nothing for {TIMEOUT:g} s; restarting it."}


def test_a_pool_that_need_not_wait_replaces_a_process_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This process computes everything itself, so it does not wait for the one that is missing."""
    monkeypatch.setattr("straggler.engines.pool.child_process.START_SECONDS", 0.0)
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 2.0)
    program = gradient_program(Experiment(**DIGITS).problem())
    x, buffers = program.problem.initial_model()
    server = fork_server.get_fork_server()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with use_one_thread(), closing(GradientPool(program, 1, joins=True, timeout=TIMEOUT)) as pool:
            first, end = pool._children[0], time.monotonic() + 100
            while pool._children[0] is first and time.monotonic() < end:
                pool.start_tasks(lambda: None)
                assert pool.result(ComputeTask(("message", 0, 0), x, buffers)) is not None
            assert pool._children[0] is not first
    finally:
        server.process.kill()


class StopChildren(Callback):
    """Stop the children of the fork server at the 200th arrival."""

    arrival_every = 200
    stopped: ClassVar[list[int]] = []

    def on_arrival(self, run: LiveRun, arrival: dict[str, Any]) -> None:
        if not self.stopped:
            self.stopped.extend(list_children(fork_server.get_fork_server().process.pid))
            for pid in self.stopped:
                os.kill(pid, signal.SIGSTOP)


def test_a_simulation_continues_when_a_process_is_stopped(tmp_path: Path) -> None:
    experiment = Experiment(**DIGITS | {"model": "lenet5"}, gradients=600, eval_every=0)
    whole = experiment.run(tmp_path / "whole", jobs=1)
    callbacks = [StopChildren()]
    record = experiment.run(tmp_path / "stopped", jobs=2, worker_timeout=TIMEOUT, callbacks=callbacks)
    assert StopChildren.stopped
    assert record.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize(
    "which",
    [
        "evaluator",
        *(pytest.param(which, marks=pytest.mark.chaos) for which in ("all", "fork server and a worker")),
    ],
)
def test_a_real_run_survives_stopped_processes(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if which == "fork server and a worker":
        monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 2.0)
    server = fork_server.get_fork_server()

    def find() -> list[int]:
        children = list_children(server.process.pid)
        if which == "evaluator":
            return children[:1]
        if which == "all":
            return children
        os.kill(children[-1], signal.SIGKILL)
        return [server.process.pid]

    delay = "constant(seconds=0.005)"  # so that the run takes at least 7 s
    experiment = Experiment(**DIGITS, engine="processes", gradients=4000, delay=delay, eval_every=0.5)
    with stopping(find, after=3, children=4) as stopped:
        record = experiment.run(tmp_path, worker_timeout=TIMEOUT)
    assert stopped
    assert record.summary["status"] == "finished"
    assert replay(record).matches


def test_memory_of_a_dead_process_is_freed_at_once() -> None:
    program = gradient_program(Experiment(**DIGITS | {"model": "mlp(hidden=[512])"}).problem())
    with use_one_thread(), closing(GradientPool(program, 1)) as pool:
        pool.wait_until_ready()
        gc.collect()
        gc.disable()
        try:
            before = count_mappings()
            for _ in range(4):
                pool._replace(pool._children[0])
                pool._deaths = 0
            assert count_mappings() <= before
        finally:
            gc.enable()


def count_mappings() -> int:
    """Return the number of shared memory files that this process has mapped."""
    return sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines())


def make_engine(**limits: Any) -> ProcessEngine:
    """Return an engine whose only worker is about to be stopped."""
    program = gradient_program(Experiment(**DIGITS | {"workers": 1}).problem())
    return ProcessEngine(program, Durations(Experiment(**DIGITS).compute, [], 1, 0), 1, **limits)


@pytest.mark.parametrize("limit", ["seconds", "stop"])
def test_a_run_that_waits_for_a_worker_ends_at_its_limit(limit: str) -> None:
    """No arrival comes, because the only worker is stopped."""
    stops: list[float] = []
    with use_one_thread(), closing(make_engine(should_stop=lambda: bool(stops))) as engine:
        engine.seconds = 1.0 if limit == "seconds" else math.inf
        pid = engine._children[0].pid
        assert pid is not None
        engine.resume(0.0, {}, [0], {})
        os.kill(pid, signal.SIGSTOP)
        x, buffers = engine.program.problem.initial_model()
        engine.submit(Job(0, 0, 0, 0, x, buffers))
        if limit == "stop":
            threading.Timer(1.0, lambda: stops.append(1.0)).start()
        assert engine.next() is None and engine.now > 0.9


def test_a_run_whose_workers_never_start_ends_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessEngine, "_is_ready", lambda self, worker: False)
    lines: list[str] = []
    experiment = Experiment(**DIGITS, engine="processes", seconds=2)
    record = experiment.run(tmp_path, report=lines.append)
    assert record.summary["status"] == "finished" and record.summary["gradients"] == 0
    assert any("Only 0 of 3 workers were ready after 2 s" in line for line in lines)


def test_a_run_ends_after_max_failures(tmp_path: Path) -> None:
    experiment = Experiment(**DIGITS, engine="processes", gradients=10**7, eval_every=0)
    server = fork_server.get_fork_server()

    over = threading.Event()

    def attack() -> None:
        while not over.wait(0.5):
            if children := list_children(server.process.pid):
                os.kill(children[-1], signal.SIGKILL)

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        with pytest.raises(WorkerError, match=r"^2 failures of workers, and max_failures=1"):
            experiment.run(tmp_path, max_failures=1)
    finally:
        over.set()
        attacker.join()
