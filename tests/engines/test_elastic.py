"""Workers that leave and join: no policy waits for them, no job is lost, and runs replay to the bit."""

import math
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engines import UntilHarmed

from straggler.algorithms.methods import METHODS
from straggler.algorithms.work import gradient_program
from straggler.config.registry import InputError
from straggler.core import Arrival, Change, Diverged, Job, Message, Server
from straggler.core.buffers import BufferAverage
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.engines.processes import ProcessEngine
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.observer import weights_sha256
from straggler.running.replay import replay
from straggler.timing import Durations

DIGITS: dict[str, Any] = {"dataset": "digits", "model": "mlp(hidden=[16])", "lr": 0.01, "eval_every": 0}
WAITING = [("policy", text) for text in ("hybrid(5, 0)", "hybrid(3, 0)", "hybrid(2, 1)", "ssp(bound=0)")]
PARALLEL = [name for name, method in METHODS.items() if not method.single]


class Restless:
    """A simulator whose workers leave and join at random; at least one always stays."""

    def __init__(self, inside: Simulator, workers: int, seed: int, often: float) -> None:
        self.inside, self.random, self.often = inside, random.Random(seed), often
        self.present, self.gone = set(range(workers)), set[int]()

    @property
    def now(self) -> float:
        return self.inside.now

    def submit(self, job: Job) -> None:
        assert job.worker in self.present, "work for a worker that is not there"
        self.inside.submit(job)

    def next(self) -> Arrival | Change | None:
        if self.random.random() < self.often:
            if self.gone and self.random.random() < 0.5:
                return self._change(self.random.choice(sorted(self.gone)), joined=True)
            if len(self.present) > 1:
                return self._change(self.random.choice(sorted(self.present)), joined=False)
        return self.inside.next()

    def _change(self, worker: int, joined: bool) -> Change:
        to, away = (self.present, self.gone) if joined else (self.gone, self.present)
        to.add(worker)
        away.remove(worker)
        self.inside._arrivals.pop(worker, None)
        return Change(worker, self.now, joined)

    def close(self) -> None: ...


def restless(seed: int, workers: int = 5, often: float = 0.2, **settings: Any) -> tuple[Any, list[Any]]:
    experiment = Experiment(dataset="quadratic(noise=1)", workers=workers, lr=0.01, **settings)
    problem = experiment.problem()
    durations = Durations(experiment.compute, [], workers, seed)
    server, seen = experiment.server(problem), []  # type: ignore[var-annotated]
    engine = Restless(Simulator(GradientComputer(server.program), durations), workers, seed, often)
    budget = Budget(gradients=400 * max(server.program.batches or [1]))
    with use_one_thread():
        train(server, engine, budget, lambda *what: seen.append((*what, list(server.cancelled))))
    return server, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in (1, 2))])
@pytest.mark.parametrize("key, value", [*(("method", name) for name in PARALLEL), *WAITING])
def test_no_policy_waits_for_workers_that_left(key: str, value: str, seed: int) -> None:
    """Under every policy a run with random changes of workers ends; `train` raises if all are idle."""
    server, seen = restless(seed, compute="exponential(mean=1)", **{key: value})
    changes = [what for what, *_ in seen if isinstance(what, Change)]
    assert {change.joined for change in changes} == {True, False}
    assert sum(server.finished) >= 400
    assert server.k > 0
    ledger = server.ledger
    assert ledger.dispatched == ledger.applied + ledger.dropped + ledger.cancelled + server.in_flight


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["hybrid(2, 0)", "hybrid(2, 1)", "hybrid(3, 0)"])
def test_the_hybrid_server_starts_each_worker_once_and_leaves_none_idle(policy: str, seed: int) -> None:
    """A step may use only gradients of workers that left, or two of a worker that left and rejoined."""
    server, seen = restless(seed, workers=4, often=0.3, compute="exponential(mean=1)", policy=policy)
    assert server.gradients == 400
    assert not any(cancelled for what, *_, cancelled in seen if isinstance(what, Arrival))


def delivered(server: Server, worker: int, loss: float = 0.0) -> None:
    job = server.busy[worker]
    gradient = Message(torch.zeros_like(job.x), loss, job.buffers)
    server.receive(Arrival(job, 0.0, 1.0, 1, lambda job: gradient))


def test_an_infinite_loss_merged_when_a_worker_leaves_ends_the_run() -> None:
    """Worker 0's second gradient waits for worker 2's first, which never arrives."""
    experiment = Experiment(dataset="quadratic", policy="hybrid(1, 0)", workers=3)
    server, decisions = experiment.server(experiment.problem()), []  # type: ignore[var-annotated]
    server.begin()
    delivered(server, 0)
    delivered(server, 0, loss=math.nan)
    delivered(server, 1)

    class Leaves:
        now = 2.0

        def submit(self, job: Job) -> None: ...

        def next(self) -> Change:
            return Change(2, 2.0, joined=False)

        def close(self) -> None: ...

    end = train(server, Leaves(), Budget(updates=9), lambda *event: decisions.append(event[1]))
    assert isinstance(end, Diverged)
    assert decisions == ["left"]
    server.ledger.check(server.in_flight)


def test_buffers_of_workers_that_left_do_not_count() -> None:
    """Otherwise every mean would contain their last buffers forever."""
    mean = BufferAverage(torch.zeros(1))
    mean.put(0, torch.tensor([2.0]))
    assert mean.put(1, torch.tensor([4.0])) == 3
    assert mean.left(1) == 2
    assert mean.put(1, torch.tensor([9.0])) == 2  # a gradient of worker 1 that arrives after it left
    assert mean.left(0) == 2  # without active workers the mean stays
    mean.joined(1)
    assert mean.put(1, torch.tensor([5.0])) == 5
    mean.joined(0)
    assert mean.put(0, torch.tensor([7.0])) == 6


def test_a_server_removes_the_buffers_of_workers_that_left() -> None:
    experiment = Experiment(dataset="fashion-mnist", model="asu-fashion", workers=2, updates=1)
    problem = experiment.problem()
    server = experiment.server(problem)
    server.begin()
    for worker, statistic in ((0, 2.0), (1, 4.0)):
        job = server.busy[worker]
        gradient = Message(torch.zeros_like(job.x), 0.0, torch.full_like(job.buffers, statistic))
        server.receive(Arrival(job, 0.0, 1.0, 1, lambda job, gradient=gradient: gradient))
    assert float(server.buffers.mean()) == 3
    server.change(1, joined=False)
    assert float(server.buffers.mean()) == 2
    (job,) = server.change(1, joined=True)
    assert float(job.buffers.mean()) == 2


def test_a_worker_that_dies_while_a_resumed_run_starts_joins_once() -> None:
    """The worker had left when the checkpoint was written; the engine already announces that it joins."""
    engine = ProcessEngine.__new__(ProcessEngine)
    engine.workers, engine.min_workers, engine._waited = 4, 2, 0.0
    engine._absent, engine._changes = set(), deque([(2, False), (2, True)])
    engine.resume(0.0, {}, present=[0, 1], state={})
    assert list(engine._changes) == [(2, False), (2, True), (3, True)]


def test_a_synchronous_round_ends_when_the_last_missing_worker_leaves() -> None:
    experiment = Experiment(dataset="quadratic", method="ssgd", workers=3)
    problem = experiment.problem()
    server = experiment.server(problem)
    jobs = server.begin()
    for job in jobs[:2]:
        gradient = problem.gradient(job.x, job.buffers, job.worker, job.index)
        server.receive(Arrival(job, 0.0, 1.0, 1, lambda job, gradient=gradient: gradient))
    assert server.k == 0
    started = server.change(2, joined=False)
    assert (server.k, [job.worker for job in started]) == (1, [0, 1])
    assert (server.ledger.applied, server.ledger.cancelled) == (2, 1)
    assert [job.worker for job in server.change(2, joined=True)] == [2]
    assert server.busy[2].index == 0  # the worker starts with the same batch again
    assert server.busy[2].version == 1


def test_a_worker_that_rejoins_does_not_delay_the_others() -> None:
    """SSP: the clock of a worker that rejoins starts at the slowest, not where it left."""
    server = Experiment(dataset="quadratic", policy="ssp(bound=0)", workers=2).server(
        problem := Experiment(dataset="quadratic", workers=2).problem()
    )

    def deliver(worker: int) -> list[int]:
        job = server.busy[worker]
        gradient = problem.gradient(job.x, job.buffers, job.worker, job.index)
        return [j.worker for j in server.receive(Arrival(job, 0.0, 1.0, 1, lambda job: gradient))[1]]

    server.begin()
    server.change(1, joined=False)
    assert [deliver(0) for _ in range(5)] == [[0]] * 5
    server.change(1, joined=True)
    assert deliver(1) == []  # one ahead of worker 0, which still computes
    assert deliver(0) == [0, 1]


def test_leaving_and_joining_does_not_pass_the_bound_of_ssp() -> None:
    experiment = Experiment(dataset="quadratic", policy="ssp(bound=1)", workers=2)
    problem = experiment.problem()
    server = experiment.server(problem)
    server.begin()
    for expected in ([0], []):  # it may be one step ahead, not two
        job = server.busy[0]
        gradient = problem.gradient(job.x, job.buffers, job.worker, job.index)
        arrival = Arrival(job, 0.0, 1.0, 1, lambda job, gradient=gradient: gradient)
        assert [job.worker for job in server.receive(arrival)[1]] == expected
    server.change(0, joined=False)
    assert server.change(0, joined=True) == []


@pytest.mark.parametrize("method", ["multi-asgd", "dana", "dana-slim"])
def test_the_momentum_of_workers_that_left_is_removed(method: str) -> None:
    """The remaining workers reach their optimum, whether a worker leaves or finishes its share."""
    settings: dict[str, Any] = {"dataset": "quadratic(dimension=3, condition=2, spread=1)", "method": method}
    settings |= {"workers": 2, "lr": 0.05, "momentum": 0.9, "batch_size": 1, "eval_every": 0}
    for leaving in (True, False):
        experiment = Experiment(**settings, delay="constant(seconds=3, workers=[1])")
        problem = experiment.problem()
        server = experiment.server(problem)
        durations = Durations(experiment.compute, experiment.delay, 2, 0)
        engine = (
            Leaving(Simulator(GradientComputer(gradient_program(problem)), durations), after=60)
            if leaving
            else None
        )
        budget = Budget(gradients=2000) if leaving else Budget(shares=[60, 1000])
        with use_one_thread():
            train(
                server,
                engine or Simulator(GradientComputer(gradient_program(problem)), durations),
                budget,
                lambda *what: None,
            )
        left, stays = (1, 0) if leaving else (0, 1)
        assert left not in server.active
        gradient = problem.gradient(server.x, server.buffers, stays, 0).vector
        assert float(gradient.norm()) < 1e-6


class Leaving:
    """A simulator whose worker 1 leaves after a number of arrivals."""

    def __init__(self, inside: Simulator, after: int) -> None:
        self.inside, self.after, self.submit, self.close = inside, after, inside.submit, inside.close

    @property
    def now(self) -> float:
        return self.inside.now

    def next(self) -> Arrival | Change | None:
        self.after -= 1
        if self.after == 0:
            self.inside._arrivals.pop(1, None)
            return Change(1, self.now, joined=False)
        return self.inside.next()


@pytest.mark.parametrize("workers", [(4, 2), "4-2", (0, 2), [1, 2, 3]])
def test_an_impossible_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises((InputError, ValueError), match="workers"):
        Experiment(**DIGITS, workers=workers)


@pytest.mark.parametrize("workers", [(2, 4), "2-4", [2, 4]])
def test_a_range_of_workers_is_parsed(workers: Any) -> None:
    experiment = Experiment(**DIGITS, workers=workers)
    assert (experiment.min_workers, experiment.workers) == (2, 4)
    assert experiment.id != Experiment(**DIGITS, workers=4).id


@pytest.mark.parametrize(("workers", "said"), [((2, 4), True), ((4, 4), False), (4, False)])
def test_min_workers_has_no_effect_in_virtual_time_and_a_remark_says_so(
    workers: Any, said: bool, tmp_path: Path
) -> None:
    lines: list[str] = []
    Experiment(**DIGITS, workers=workers, updates=4).run(tmp_path, jobs=1, report=lines.append)
    assert any("all 4 workers are present" in line for line in lines) == said


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["ssp", *(pytest.param(method, marks=pytest.mark.chaos) for method in ("ssgd", "dana-ga", "hybrid"))],
)
def test_killed_workers_leave_and_join_again(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With (2, 4) workers the round continues without a killed worker."""
    experiment = Experiment(**DIGITS, engine="processes", workers=(2, 4), method=method, updates=10**9)
    made, over = list[ProcessEngine](), threading.Event()
    UntilHarmed.over, UntilHarmed.least = over, 100

    def wait_for(is_true: Callable[[], bool]) -> None:
        while not is_true() and not over.wait(0.02):
            pass

    def get_jobs(worker: int) -> None:
        """Wait until a worker that is ready gets 10 more jobs."""
        wait_for(lambda: made[0]._is_ready(worker) and worker not in made[0]._absent)
        before = made[0].launches.get(worker, 0)
        wait_for(lambda: made[0].launches.get(worker, 0) > before + 10)

    def attack() -> None:
        wait_for(lambda: bool(made))
        for victim in (3, 1, 2, 0):
            for worker in range(4):
                get_jobs(worker)
            if not over.is_set():
                os.kill(made[0]._children[victim].pid or 0, signal.SIGKILL)
                wait_for(lambda victim=victim: victim in made[0]._absent)  # type: ignore[misc]
        for worker in range(4):
            get_jobs(worker)
        over.set()

    original = ProcessEngine.__init__

    def remember(self: ProcessEngine, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(ProcessEngine, "__init__", remember)
    monkeypatch.setattr(Experiment, "budget", lambda self, problem: UntilHarmed())
    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    try:
        record = experiment.run(tmp_path)
    finally:
        over.set()
        thread.join(60)
        monkeypatch.undo()
    decisions = record.history["decision"].to_list()
    assert decisions.count("left") >= 4
    assert decisions.count("joined") >= 4
    facts = record.summary
    assert (
        facts["dispatched"] == facts["applied"] + facts["dropped"] + facts["cancelled"] + facts["in_flight"]
    )
    assert replay(record).matches


@pytest.mark.slow
@pytest.mark.parametrize("method", PARALLEL)
def test_the_same_changes_of_workers_give_the_same_bits(method: str) -> None:
    one, _ = restless(0, method=method, compute="gamma(1, 0.5)")
    two, _ = restless(0, method=method, compute="gamma(1, 0.5)")
    other, _ = restless(1, method=method, compute="gamma(1, 0.5)")
    bits = [weights_sha256(server.x, server.buffers) for server in (one, two, other)]
    assert bits[0] == bits[1] != bits[2]
