"""The contract of every engine: the newest job wins, every job arrives once, time never goes back."""

import os
import random
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from straggler.algorithms.methods import METHODS
from straggler.algorithms.work import gradient_program
from straggler.core import Job, Problem, Server
from straggler.core.loop import Budget
from straggler.engines.pool.gradient_pool import GradientComputer, GradientPool
from straggler.engines.processes import ProcessEngine
from straggler.engines.ray import RayEngine
from straggler.engines.real_time import RealTimeEngine, WorkerError
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.record import Record
from straggler.running import recorder as record_module
from straggler.running.replay import replay
from straggler.timing import Durations
from straggler.timing.laws import Constant

pytestmark = pytest.mark.slow  # real processes, many runs
WORKERS = 2
DIGITS: dict[str, Any] = {"dataset": "digits", "model": "mlp(hidden=[16])", "lr": 0.05, "eval_every": 0}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Experiment(**DIGITS, workers=WORKERS).problem()


def durations(delay: float = 0.0) -> Durations:
    return Durations(Constant(seconds=0.01), [Constant(seconds=delay)], WORKERS, seed=0)


ENGINES: dict[str, type[RealTimeEngine]] = {"processes": ProcessEngine, "ray": RayEngine}
OFTEN = [("processes", "ssgd")]


@pytest.fixture(params=ENGINES)
def real(request: pytest.FixtureRequest) -> str:
    """The name of an engine in real time; Ray is skipped if it is not installed."""
    if request.param == "ray":
        request.getfixturevalue("ray_here")
    return str(request.param)


@pytest.fixture(params=["simulator", *ENGINES])
def engine(request: pytest.FixtureRequest, problem: Problem) -> Iterator[Any]:
    if request.param == "ray":
        request.getfixturevalue("ray_here")
    with use_one_thread():
        made: Any = (
            Simulator(GradientComputer(gradient_program(problem)), durations(0.2))
            if request.param == "simulator"
            else ENGINES[request.param](gradient_program(problem), durations(0.2), WORKERS)
        )
        yield made
        made.close()


def job(problem: Problem, worker: int, index: int, launch: int) -> Job:
    x, buffers = problem.initial_model()
    return Job(worker, index, launch, 0, x, buffers)


def test_every_job_arrives_once_with_its_gradient(engine: Any, problem: Problem) -> None:
    seen, times = [], [0.0]
    for index in range(3):
        for worker in range(WORKERS):
            engine.submit(job(problem, worker, index, index))
        for _ in range(WORKERS):
            arrival = engine.next()
            seen.append((arrival.job.index, arrival.worker))
            times.append(arrival.time)
            expected = problem.gradient(arrival.job.x, arrival.job.buffers, arrival.worker, index)
            assert torch.equal(arrival.message.vector, expected.vector)
            assert arrival.message.loss == expected.loss
            assert arrival.samples == 32
            assert arrival.started < arrival.time
    assert sorted(seen) == [(index, worker) for index in range(3) for worker in range(WORKERS)]
    assert times == sorted(times)
    assert engine.next() is None


def test_the_newest_job_wins(engine: Any, problem: Problem) -> None:
    engine.submit(job(problem, 0, index=0, launch=0))
    engine.submit(job(problem, 0, index=5, launch=1))
    engine.submit(job(problem, 0, index=7, launch=2))
    arrival = engine.next()
    assert arrival.job.index == 7
    expected = problem.gradient(arrival.job.x, arrival.job.buffers, 0, 7)
    assert torch.equal(arrival.message.vector, expected.vector)
    assert engine.next() is None


def test_models_of_cancelled_jobs_are_freed(problem: Problem) -> None:
    """The simulator's queue must not keep the models of cancelled jobs until their arrival times."""
    for pool in (GradientComputer(gradient_program(problem)), GradientPool(gradient_program(problem), 2)):
        with closing(pool):
            made, seen = Simulator(pool, durations(1e9)), []
            for launch in range(4):
                x = torch.zeros(problem.initial_model()[0].numel())
                seen.append(weakref.ref(x))
                made.submit(Job(0, 0, launch, 0, x, problem.initial_model()[1]))
                del x
            assert [model() is not None for model in seen] == [False, False, False, True]


def test_the_engine_waits_for_a_delay_unless_its_job_is_abandoned(problem: Problem, real: str) -> None:
    slow = Durations(Constant(seconds=0.01), [Constant(seconds=100, workers=(0,))], WORKERS, seed=0)
    with use_one_thread():
        engine: Any = ENGINES[real](gradient_program(problem), slow, WORKERS)
        try:
            engine.submit(job(problem, 0, 0, 0))
            engine.submit(job(problem, 1, 0, 0))
            assert engine.next().worker == 1
            engine.durations = durations(0.3)
            before = time.monotonic()
            engine.submit(job(problem, 0, 1, 1))  # the worker waits for a delay, and must abandon it at once
            assert engine.next().job.index == 1
            assert 0.25 < time.monotonic() - before < 90
        finally:
            engine.close()


class Clumsy(nn.Module):
    """A module that fails in every process except the one that created it."""

    def __init__(self, home: int) -> None:
        super().__init__()
        self.layer, self.home = nn.Linear(784, 10), home

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.home:
            self.fail()
        return self.layer(inputs.flatten(1))

    def fail(self) -> None:
        raise LookupError("I lost my weights")


def test_an_exception_in_the_model_ends_the_run_with_its_traceback(tmp_path: Path, real: str) -> None:
    experiment = Experiment(**DIGITS | {"model": partial(Clumsy, os.getpid())}, workers=2, engine=real)
    with pytest.raises(WorkerError, match=r"(?s)in forward.*I lost my weights"):
        experiment.run(tmp_path)


REAL: dict[str, Any] = {**DIGITS, "engine": "processes", "workers": 3, "delay": "uniform(0, 0.01)"}


@pytest.mark.parametrize("method", METHODS)
def test_a_real_run_replays_to_the_bit(method: str, tmp_path: Path) -> None:
    workers = 1 if METHODS[method].single else 3
    record = Experiment(**REAL | {"workers": workers, "method": method, "gradients": 40, "lr": 0.01}).run(
        tmp_path
    )
    assert replay(record).matches


def rarely(*values: str) -> Any:
    """Mark a case of `make chaos`: it is slow, and similar cases run in every test run."""
    return pytest.param(*values, marks=pytest.mark.chaos)


OFTEN_ON_RAY = ("async-diloco",)


@pytest.mark.parametrize("method", [name if name in OFTEN_ON_RAY else rarely(name) for name in METHODS])
def test_a_run_on_ray_replays_to_the_bit(method: str, tmp_path: Path, ray_here: None) -> None:
    workers = 1 if METHODS[method].single else 3
    settings = REAL | {"engine": "ray", "method": method, "workers": workers, "gradients": 60, "lr": 0.01}
    record = Experiment(**settings).run(tmp_path)
    assert replay(record).matches


CANCELLING = [("processes", policy) for policy in ("k-sync(k=1)", "k-batch-sync(k=2)", "hybrid(2, 0)")]
CANCELLING += [rarely("ray", "k-sync(k=1)"), ("ray", "k-batch-sync(k=2)"), rarely("ray", "hybrid(2, 0)")]


@pytest.mark.parametrize(("real", "policy"), CANCELLING, indirect=["real"])
def test_buffers_survive_cancelled_jobs(real: str, policy: str, tmp_path: Path) -> None:
    settings = REAL | {"model": "asu-fashion", "policy": policy, "gradients": 60, "delay": [], "engine": real}
    record = Experiment(**settings).run(tmp_path)
    assert replay(record).matches


def test_a_simulated_run_replays_to_the_bit(tmp_path: Path) -> None:
    settings = {
        **DIGITS,
        "workers": 3,
        "policy": "k-sync(k=2)",
        "gradients": 60,
        "compute": "pareto(0.3, 1.2)",
    }
    record = Experiment(**settings).run(tmp_path, jobs=1)
    assert record.summary["cancelled"] > 0
    assert replay(record).matches


class UntilHarmed(Budget):
    """A budget that lasts until the attacks are over."""

    over: ClassVar[threading.Event]
    least: ClassVar[int]  # gradients

    def reached(self, server: Server) -> bool:
        return self.over.is_set() and server.gradients >= self.least


def harm(
    signals: list[int], experiment: Experiment, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Record, list[int]]:
    """Run while a thread sends signals to the workers; return the record and the delivered signals."""
    made: list[RealTimeEngine] = []
    delivered: list[int] = []
    engine_class, over = ENGINES[experiment.engine], threading.Event()
    original, UntilHarmed.over, UntilHarmed.least = engine_class.__init__, over, 2000

    def remember(self: RealTimeEngine, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    def strike(worker: int, kind: int) -> bool:
        pid = process_of(made[0], worker) if made else None
        if pid is None:
            return False
        os.kill(pid, kind)
        delivered.append(kind)
        return True

    def attack() -> None:
        moments = random.Random(0)
        for number, kind in enumerate(signals):
            while not over.wait(moments.uniform(0.05, 0.4)):
                with suppress(ProcessLookupError):
                    if strike(number % experiment.workers, kind):
                        break
        over.wait(2 * options["worker_timeout"])  # until the last hung workers are detected
        over.set()

    monkeypatch.setattr(engine_class, "__init__", remember)
    monkeypatch.setattr(Experiment, "budget", lambda self, problem: UntilHarmed())
    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    try:
        return experiment.run(out, **options), delivered
    finally:
        over.set()
        thread.join(timeout=60)
        monkeypatch.undo()


def process_of(engine: Any, worker: int) -> int | None:
    """Return the process id of a worker; None while it is not ready."""
    at = engine._slots[worker] if isinstance(engine, RayEngine) else engine._children[worker]
    return at.pid if at.is_ready else None


# One case on processes in every test run; the others take a minute each.
ATTACKED = [
    (engine, method) if (engine, method) in OFTEN else rarely(engine, method)
    for engine in ENGINES
    for method in ("asgd", "ssgd", "ssp", "dana-ga")
]


@pytest.mark.timeout(600)  # a busy machine starts sixty processes slowly
@pytest.mark.parametrize(("real", "method"), ATTACKED, indirect=["real"])
def test_killed_and_stopped_workers_lose_nothing(
    real: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty SIGKILLs and six SIGSTOPs at the workers of one run."""
    monkeypatch.setattr("straggler.engines.real_time.FAILURES_PER_WORKER", 20)
    attacks = [signal.SIGSTOP if number % 5 == 4 else signal.SIGKILL for number in range(26)]
    settings = {"method": method, "engine": real, "lr": 0.02, "workers": 4, "updates": 10**9}
    experiment = Experiment(**REAL | settings)
    record, delivered = harm(attacks, experiment, tmp_path, monkeypatch, worker_timeout=1.0)
    facts = record.summary
    assert delivered.count(signal.SIGKILL) >= 20
    assert delivered.count(signal.SIGSTOP) >= 5
    assert facts["restarts"] == len(record.events) >= 20
    assert (
        facts["dispatched"] == facts["applied"] + facts["dropped"] + facts["cancelled"] + facts["in_flight"]
    )
    assert facts["test_accuracy"] > 85  # undisturbed: 90 and more
    assert replay(record).matches
    no_orphans()


@pytest.mark.timeout(600)
def test_a_hung_worker_whose_jobs_are_always_cancelled_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job each round is no sign of life, and unread jobs must not fill the connection."""
    experiment = Experiment(**REAL | {"policy": "k-sync(k=1)", "workers": 2, "updates": 10**9})
    record, delivered = harm([signal.SIGSTOP], experiment, tmp_path, monkeypatch, worker_timeout=1.0)
    facts = record.summary
    assert delivered == [signal.SIGSTOP] and facts["restarts"] >= 1 and facts["cancelled"] > 300
    assert replay(record).matches


def test_the_clock_starts_with_the_first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time before the first job does not count."""
    slow, quick = time.sleep, record_module.describe_environment
    monkeypatch.setattr(record_module, "describe_environment", lambda command: slow(3.0) or quick(command))
    record = Experiment(**REAL | {"gradients": 20, "workers": 2}).run(tmp_path)
    assert record.arrivals["started"].min() < 3


def test_closing_an_engine_ends_its_workers(problem: Problem) -> None:
    engine = ProcessEngine(gradient_program(problem), durations(0.2), WORKERS)
    seen = orphans()
    engine.close()
    assert (len(seen), orphans()) == (WORKERS, [])


def no_orphans(seconds: float = 120) -> None:
    """Ray takes a few seconds to end a process that is stopped."""
    until = time.monotonic() + seconds
    while orphans() and time.monotonic() < until:
        time.sleep(0.2)
    assert orphans() == []


def orphans() -> list[list[str]]:
    """Return the processes of workers that the fork server or the raylet of this process still has.

    Another process that tests at the same time has its own, and for seconds those of runs it has killed.
    """
    command = ["ps", "-ww", "-eo", "pid,ppid,args"]  # two w, because ps truncates lines without a terminal
    rows = [line.split(None, 2) for line in subprocess.check_output(command, text=True).splitlines()]
    children = {pid for pid, parent, _ in rows if parent == str(os.getpid())}
    return [
        [pid, parent, what]
        for pid, parent, what in rows
        if parent in children
        and ("straggler.engines" in what or "ray::Worker" in what)
        and "<defunct>" not in what  # dead, and reaped later by Ray
    ]


class Suicidal(Clumsy):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_endless_failures_end_the_run_with_the_last_error(
    real: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.engines.real_time.FAILURES_PER_WORKER", 1)
    model = partial(Suicidal, os.getpid())
    experiment = Experiment(**REAL | {"model": model, "workers": 2, "engine": real})
    with pytest.raises(WorkerError, match=r"failures within 60 s.*(signal 9|process \d+ on 127)"):
        experiment.run(tmp_path)
    assert list(tmp_path.glob("*/checkpoint-*.safetensors"))  # the progress until then is not lost
    no_orphans()


def test_a_real_run_resumes_with_a_balanced_ledger(tmp_path: Path) -> None:
    experiment = Experiment(**REAL | {"gradients": 300, "workers": 2})

    class SimulatedCrash(BaseException):
        pass

    def cut(progress: Any) -> None:
        if progress.updates > 100:
            raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        experiment.run(tmp_path, progress=cut, checkpoint_every="20")
    facts = experiment.run(tmp_path).summary
    assert facts["gradients"] == 300
    assert facts["dispatched"] == facts["applied"] + facts["in_flight"]


def sleepy(flag: Path, home: int) -> nn.Module:
    """A module that hangs in another process while a file exists."""
    while os.getpid() != home and flag.exists():
        time.sleep(0.1)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def test_workers_that_hang_while_starting_are_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.engines.real_time.START_SECONDS", 4.0)
    flag, said = tmp_path / "flag", list[str]()
    flag.touch()

    def failed(now: float, worker: int, what: str) -> None:
        said.append(what)
        flag.unlink(missing_ok=True)  # a test that failed must not leave it

    home = os.getpid()
    problem = Experiment(**DIGITS | {"model": lambda: sleepy(flag, home)}, workers=WORKERS).problem()
    engine = ProcessEngine(
        gradient_program(problem), durations(), WORKERS, timeout=1.0, report_failure=failed
    )
    with closing(engine):
        assert engine.restarts >= 1 and "did not start within 5 s" in said[0]
        engine.submit(job(problem, 0, index=0, launch=0))
        assert engine.next() is not None
    no_orphans()


EVALUATION_SECONDS = 2.0


class Ponderous(nn.Module):
    """Quick to train, slow to evaluate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            time.sleep(EVALUATION_SECONDS)
        return self.layer(inputs.flatten(1))


def test_evaluation_does_not_delay_a_run_in_real_time(tmp_path: Path) -> None:
    """The curve is computed while training continues, for the models and times in its rows."""
    settings = REAL | {"model": Ponderous, "gradients": 400, "delay": "constant(0.02)", "workers": 2}
    experiment = Experiment(**settings | {"eval_every": 5})
    record = experiment.run(tmp_path)
    curve, facts = record.curve, record.summary
    assert curve["gradients"][0] == 0 and len(curve) == 3  # before, at the fifth epoch, at the end
    assert curve["test_accuracy"][-1] == facts["test_accuracy"]
    waited = record.arrivals["time"] - curve["seconds"][1]
    assert any(waited.is_between(0.0, 0.9 * EVALUATION_SECONDS, closed="right"))  # while it is evaluated
    assert replay(record, experiment).matches
