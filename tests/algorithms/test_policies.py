"""Ringmaster, Malenia, Ringleader, DSSP and paced: stories worked out by hand, and laws for any delays."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from torch import Tensor

from story import Story, run_story
from straggler.algorithms.aggregations import RoundTables
from straggler.algorithms.policies import Paced, Ringleader
from straggler.core import Arrival, Decision, Job, Message, Server
from straggler.core.loop import Budget
from straggler.experiment import Experiment
from straggler.running.checkpoints import read_checkpoint, write_checkpoint
from straggler.running.simulation import create_simulation

QUADRATIC: dict[str, Any] = {"dataset": "quadratic(dimension=3, noise=0.1)", "lr": 0.01, "batch_size": 1}
RANDOM_TIMES = ["exponential(1)", "gamma-machines(1, 0.6, 0.1)", "pareto(0.3, 1.2)"]
CHOICES: list[dict[str, Any]] = [
    {"policy": "ringmaster(max_delay=2)"},
    {"policy": "ringmaster(max_delay=2, restart=True)"},
    {"policy": "malenia", "aggregation": "worker-means"},
    {"policy": "malenia(batch=6)", "aggregation": "worker-means"},
    {"policy": "ringleader", "aggregation": "ringleader"},
    {"policy": "dssp(lower=1, upper=4)"},
    {"policy": "paced(batch=2, staleness=1)"},
    {"policy": "paced(batch=2, staleness=0, window=1)"},
    {"policy": "paced(batch=3, staleness=1, window=4)"},
    {"policy": "paced(batch=1, staleness=0, window=1)", "aggregation": "latest"},
]
NAMES = [choice["policy"] for choice in CHOICES]


class Stage:
    """A server whose arrivals a test chooses. A worker's next job overwrites the vector of its last one."""

    def __init__(self, **choices: Any) -> None:
        experiment = Experiment(**QUADRATIC | choices)
        self.problem = experiment.problem()
        self.server = experiment.server(self.problem)
        self.started = describe(self.server.begin())
        self.clock = 0.0
        self.lent: dict[int, Tensor] = {}

    def deliver(self, worker: int) -> tuple[Decision, list[tuple[int, int]]]:
        """Finish a worker's job; return the decision, and the worker and version of every job that starts."""
        self.clock += 1.0
        arrival = Arrival(self.server.busy[worker], self.clock - 1, self.clock, 1, self.compute, lent=True)
        decision, jobs = self.server.receive(arrival)
        self.check(jobs)
        return decision, describe(jobs)

    def change(self, worker: int, joined: bool) -> list[tuple[int, int]]:
        """Add or remove a worker; return the worker and version of every job that starts."""
        jobs = self.server.change(worker, joined)
        self.check(jobs)
        return describe(jobs)

    def compute(self, job: Job) -> Message:
        assert job.launch + 1 == self.server.launched[job.worker]  # else its vector is lost
        message = self.problem.gradient(job.x, job.buffers, job.worker, job.index)
        self.lent[job.worker] = message.vector
        return message

    def check(self, jobs: list[Job]) -> None:
        """The ledger balances, only active workers have jobs, and somebody is busy."""
        server = self.server
        for job in jobs:
            self.lent.pop(job.worker, torch.empty(0)).fill_(torch.nan)
        assert server.x.isfinite().all()
        server.ledger.check(server.in_flight)
        assert server.busy.keys() <= server.active.keys()
        assert bool(server.busy) == bool(server.active)


def describe(jobs: list[Job]) -> list[tuple[int, int]]:
    return [(job.worker, job.version) for job in jobs]


def list_updates(story: Story) -> list[float]:
    """Return the times of the updates, after time 0."""
    return [0.0, *(arrival.time for arrival, decision, _ in story.arrivals if decision == "applied")]


def staleness_in_flight(server: Server) -> int:
    return sum(server.staleness(job) for job in server.busy.values())


# Any policy


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
@settings(max_examples=30)
@given(
    events=st.lists(st.tuples(st.sampled_from("ddddlj"), st.integers(0, 4)), max_size=60),
    workers=st.integers(1, 5),
)
def test_workers_that_come_and_go_never_stop_a_run(
    choice: dict[str, Any], events: list[tuple[str, int]], workers: int
) -> None:
    stage = Stage(**choice, workers=workers)
    for kind, number in events:
        busy = sorted(stage.server.busy)
        if kind == "d" and busy:
            stage.deliver(busy[number % len(busy)])
        elif kind != "d":
            stage.change(number % workers, joined=kind == "j")
    stage.change(0, joined=True)
    before = stage.server.k
    for turn in range(60):  # from here on every worker delivers in turn
        busy = sorted(stage.server.busy)
        stage.deliver(busy[turn % len(busy)])
    assert stage.server.k > before


@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
@pytest.mark.parametrize("moment", [1, 7, 8, 20])
def test_a_server_continues_from_a_checkpoint(choice: dict[str, Any], moment: int, tmp_path: Path) -> None:
    def play(stage: Stage, turns: range) -> list[Any]:
        return [stage.deliver(sorted(stage.server.busy)[turn % len(stage.server.busy)]) for turn in turns]

    one = Stage(**choice, workers=4)
    play(one, range(0, 3 * moment, 3))
    path = write_checkpoint(tmp_path, 0, one.server.state())
    other = Stage(**choice, workers=4)
    other.server.restore(read_checkpoint(path))
    other.clock = one.clock
    assert play(one, range(1, 90, 2)) == play(other, range(1, 90, 2))
    assert torch.equal(one.server.x, other.server.x)


def test_a_message_set_aside_survives_a_checkpoint(tmp_path: Path) -> None:
    choices = {"policy": "paced(batch=1, staleness=1, window=1)", "workers": 2}
    one, other = Stage(**choices), Stage(**choices)
    one.deliver(1)
    assert len(one.server.aside) == 1
    other.server.restore(read_checkpoint(write_checkpoint(tmp_path, 0, one.server.state())))
    assert one.deliver(0) == other.deliver(0) == ("applied", [(0, 2), (1, 2)])
    assert torch.equal(one.server.x, other.server.x)


@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
def test_workers_stop_after_their_shares(choice: dict[str, Any]) -> None:
    story = run_story(**QUADRATIC, **choice, workers=3, gradients=30, stop="each", compute="power(1, 1)")
    assert not story.server.active
    assert story.server.k > 0


# Ringmaster


def test_ringmaster_drops_a_gradient_of_staleness_max_delay() -> None:
    stage = Stage(policy="ringmaster(max_delay=2)", workers=3)
    assert stage.started == [(0, 0), (1, 0), (2, 0)]
    assert stage.deliver(0) == ("applied", [(0, 1)])
    assert stage.deliver(1) == ("applied", [(1, 2)])  # staleness 1
    assert stage.deliver(2) == ("dropped", [(2, 2)])  # staleness 2
    assert stage.deliver(0) == ("applied", [(0, 3)])  # staleness 1
    assert stage.deliver(2) == ("applied", [(2, 4)])
    assert stage.server.ledger.dropped == 1


def test_ringmaster_restarts_a_job_whose_staleness_reaches_max_delay() -> None:
    stage = Stage(policy="ringmaster(max_delay=2, restart=True)", workers=3)
    assert stage.deliver(0) == ("applied", [(0, 1)])
    assert stage.deliver(1) == ("applied", [(1, 2), (2, 2)])  # the job of worker 2 was of version 0
    assert [job.worker for job in stage.server.cancelled] == [2]
    assert stage.deliver(2) == ("applied", [(2, 3), (0, 3)])
    assert stage.server.ledger.cancelled == 2


@pytest.mark.parametrize("compute", RANDOM_TIMES)
@pytest.mark.parametrize("gradients", [1, 50, 333])
def test_ringmaster_conserves_staleness(compute: str, gradients: int) -> None:
    """applied + dropped + in flight = (N − 1)k, applied < max_delay."""
    choices = {**QUADRATIC, "policy": "ringmaster(max_delay=4)", "workers": 7, "compute": compute}
    story = run_story(**choices, gradients=gradients)
    server = story.server
    dropped = sum(tau for _, decision, tau in story.arrivals if decision == "dropped")
    assert server.staleness_sum + dropped + staleness_in_flight(server) == 6 * server.k
    assert server.staleness_max < 4
    assert gradients == 1 or dropped > 0


@pytest.mark.parametrize("compute", RANDOM_TIMES)
def test_ringmaster_with_restarts_conserves_staleness(compute: str) -> None:
    cancelled = [0]

    def conserved(server: Server) -> None:
        cancelled[0] += sum(map(server.staleness, server.cancelled))
        assert server.staleness_sum + cancelled[0] + staleness_in_flight(server) == 6 * server.k

    policy = "ringmaster(max_delay=4, restart=True)"
    story = run_story(conserved, **QUADRATIC, policy=policy, workers=7, updates=300, compute=compute)
    assert story.server.ledger.dropped == 0
    assert max(story.staleness) == 3


def harmonic_bound(times: list[float], gradients: int) -> float:
    """Return 2 min_m H_m (1 + R/m), where H_m is the harmonic mean of the m shortest times."""
    inverses = [sum(1 / time for time in sorted(times)[:m]) for m in range(1, len(times) + 1)]
    return 2 * min((m + gradients) / inverse for m, inverse in enumerate(inverses, start=1))


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.5, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 4, 9, 40])
def test_updates_of_ringmaster_and_rennala_take_no_longer_than_their_bound(power: float, count: int) -> None:
    """Any R consecutive updates of Ringmaster, and one of Rennala with R gradients. Lemma 4.1."""
    choices = {**QUADRATIC, "workers": 8, "compute": f"power(1, {power})", "updates": 200}
    bound = harmonic_bound([(worker + 1) ** power for worker in range(8)], count)
    for restart in (False, True):
        policy = f"ringmaster(max_delay={count}, restart={restart})"
        times = list_updates(run_story(**choices, policy=policy))
        longest = max(times[i + count] - times[i] for i in range(len(times) - count))
        assert longest <= bound
    times = list_updates(run_story(**choices | {"updates": 30}, policy=f"k-batch-sync(k={count})"))
    assert max(later - earlier for earlier, later in pairwise(times)) <= bound


# Malenia


def test_malenia_steps_when_the_harmonic_mean_exceeds_its_bound() -> None:
    data = "quadratic(dimension=1, condition=1, spread=1)"
    choices = {"dataset": data, "policy": "malenia(batch=2)", "aggregation": "worker-means", "lr": 0.5}
    stage = Stage(**choices, workers=2)
    assert stage.deliver(0) == ("held", [(0, 0)])
    assert stage.deliver(1) == ("held", [(1, 0)])  # counts (1, 1): mean 1 is not above 2/2
    assert stage.deliver(0) == ("applied", [(0, 1), (1, 1)])  # counts (2, 1): mean 4/3
    assert stage.server.ledger.cancelled == 1
    assert stage.server.x.item() == pytest.approx(1 - 0.5 * (1 - stage.problem.optimum.item()))  # type: ignore[attr-defined]
    assert stage.deliver(1) == ("held", [(1, 1)])
    assert stage.deliver(1) == ("held", [(1, 1)])  # counts (0, 2): worker 0 is missing
    assert stage.deliver(0) == ("applied", [(0, 2), (1, 2)])


def test_malenia_compares_harmonic_means_exactly() -> None:
    """With 49 gradients from each of 49 workers, rounded inverses would exceed the bound of 49."""
    stage = Stage(policy="malenia(batch=2401)", aggregation="worker-means", workers=49)
    for turn in range(2401):
        stage.deliver(turn % 49)
    assert stage.server.k == 0
    assert stage.deliver(0)[0] == "applied"


def test_malenia_does_not_wait_for_a_worker_that_left() -> None:
    stage = Stage(policy="malenia", aggregation="worker-means", workers=3)
    assert stage.deliver(0) == ("held", [(0, 0)])
    assert stage.deliver(1) == ("held", [(1, 0)])
    assert stage.change(2, joined=False) == [(0, 1), (1, 1)]
    assert stage.change(2, joined=True) == [(2, 1)]
    assert stage.deliver(0) == ("held", [(0, 1)])
    assert stage.deliver(1) == ("held", [(1, 1)])
    assert stage.deliver(2) == ("applied", [(0, 2), (1, 2), (2, 2)])


@pytest.mark.slow
@pytest.mark.parametrize("compute", RANDOM_TIMES)
@pytest.mark.parametrize("batch", [0, 10, 25])
def test_malenia_uses_only_gradients_of_the_current_model(compute: str, batch: int) -> None:
    choices = {"policy": f"malenia(batch={batch})", "aggregation": "worker-means", "compute": compute}
    story = run_story(**QUADRATIC, **choices, workers=5, updates=100)
    assert set(story.staleness) == {0}
    assert story.server.ledger.applied >= 100 * max(5, batch + 1)


# Ringleader


def test_ringleader_collects_and_then_steps_once_per_worker() -> None:
    stage = Stage(policy="ringleader", aggregation="ringleader", workers=3)
    assert stage.deliver(0) == ("held", [(0, 0)])
    assert stage.deliver(2) == ("held", [(2, 0)])
    assert stage.deliver(1) == ("applied", [(1, 1)])  # all have delivered: steps are owed to 0 and 2
    assert stage.deliver(1) == ("held", [(1, 1)])  # for the next round
    assert stage.deliver(0) == ("applied", [(0, 2)])
    assert stage.deliver(0) == ("held", [(0, 2)])  # for the next round
    assert stage.deliver(2) == ("applied", [(2, 3)])  # the round ends; 0 and 1 have gradients in the next
    assert stage.deliver(2) == ("applied", [(2, 4)])
    assert stage.deliver(1) == ("applied", [(1, 5)])  # a step was owed to it


def test_ringleader_on_two_workers_with_known_times() -> None:
    choices = {"policy": "ringleader", "aggregation": "ringleader", "delay": "constant(2, workers=[1])"}
    story = run_story(**QUADRATIC, **choices, workers=2, gradients=9)
    found = [(arrival.time, arrival.worker, decision, tau) for arrival, decision, tau in story.arrivals]
    assert found == [
        (1, 0, "held", 0),
        (2, 0, "held", 0),
        (3, 0, "held", 0),
        (3, 1, "applied", 0),
        (4, 0, "applied", 1),
        (5, 0, "held", 0),
        (6, 0, "held", 0),
        (6, 1, "applied", 1),
        (7, 0, "applied", 1),
    ]


class CheckedTables(RoundTables):
    """Tables that compute every direction a second time, from a list of all messages, and note their age."""

    name: ClassVar[str] = "ringleader"
    _messages: list[tuple[int, int, int, Tensor]] = PrivateAttr(default_factory=list)
    _ages: list[int] = PrivateAttr(default_factory=list)

    def add(self, vector: Tensor, scale: float, arrival: Arrival, server: Server) -> None:
        super().add(vector, scale, arrival, server)
        policy = server.policy
        assert isinstance(policy, Ringleader)
        number = policy.round + policy.is_early
        self._messages.append((number, arrival.worker, arrival.job.version, vector))

    def combine(self, server: Server) -> tuple[Tensor, float] | None:
        found = super().combine(server)
        assert isinstance(server.policy, Ringleader)
        mine = [message[1:] for message in self._messages if message[0] == server.policy.round]
        means = []
        for worker in {each for each, _, _ in mine}:
            means.append(torch.stack([vector for each, _, vector in mine if each == worker]).mean(dim=0))
        assert found is not None
        assert len(means) == len(server.active)
        assert torch.allclose(found[0], torch.stack(means).mean(dim=0), rtol=1e-12)
        self._ages.append(server.k - min(version for _, version, _ in mine))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("compute", [*RANDOM_TIMES, "power(1, 2)", "constant(1)"])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_ringleader_steps_on_the_mean_of_all_workers_at_bounded_delays(compute: str, workers: int) -> None:
    choices = {"policy": "ringleader", "aggregation": CheckedTables(), "compute": compute}
    story = run_story(**QUADRATIC, **choices, workers=workers, updates=100)
    tables = story.server.aggregation
    assert isinstance(tables, CheckedTables)
    assert len(tables._ages) == 100
    assert max(tables._ages) <= 2 * workers - 2
    assert compute != "pareto(0.3, 1.2)" or max(tables._ages) == 2 * workers - 2


@pytest.mark.slow
@pytest.mark.parametrize("power", [0, 0.5, 1, 3])
@pytest.mark.parametrize("workers", [2, 5, 9])
def test_n_updates_of_ringleader_take_at_most_twice_the_slowest_time(power: float, workers: int) -> None:
    choices = {"policy": "ringleader", "aggregation": "ringleader", "compute": f"power(1, {power})"}
    times = list_updates(run_story(**QUADRATIC, **choices, workers=workers, updates=100))
    longest = max(times[i + workers] - times[i] for i in range(len(times) - workers))
    assert longest <= 2 * workers**power + 1e-9


def test_ringleader_and_its_aggregation_need_each_other() -> None:
    with pytest.raises(ValueError, match=r"Use policy='ringleader', or aggregation='worker-means'"):
        Experiment(**QUADRATIC, aggregation="ringleader")
    with pytest.raises(ValueError, match="requires aggregation='ringleader'"):
        Experiment(**QUADRATIC, policy="ringleader", aggregation="mean")


def test_ringleader_ends_a_round_without_a_worker_that_left() -> None:
    stage = Stage(policy="ringleader", aggregation="ringleader", workers=3)
    for worker in (0, 1, 2):
        stage.deliver(worker)
    assert stage.deliver(0)[0] == "applied"  # now only worker 1 is owed a step
    assert stage.deliver(2)[0] == "held"  # for the next round
    assert stage.change(1, joined=False) == []
    assert stage.deliver(0)[0] == "applied"  # the new round is complete: worker 2 delivered before
    assert stage.change(1, joined=True) == [(1, 3)]
    assert stage.deliver(2)[0] == "applied"  # the step that it is owed; the next round waits for worker 1
    assert stage.deliver(0)[0] == "held"
    assert stage.deliver(2)[0] == "held"
    assert stage.deliver(1)[0] == "applied"


# DSSP


def test_dssp_takes_the_extra_steps_that_end_next_to_a_push_of_the_slowest() -> None:
    choices = {"policy": "dssp(lower=1, upper=5)", "delay": "constant(3, workers=[1])"}
    story = run_story(**QUADRATIC, **choices, workers=2, seconds=21)
    found = [(arrival.time, arrival.worker) for arrival, _, _ in story.arrivals]
    assert found == [
        *[(1, 0), (2, 0)],  # worker 0 waits: nothing is known about worker 1, which takes 4 seconds
        (4, 1),
        (5, 0),  # its pushes at 2 and 5 predict 8; worker 1 is expected at 8: one extra step
        (6, 0),  # its pushes at 5 and 6 predict 7 and 8: two more
        (7, 0),
        (8, 0),  # as expected; it waits until it is one ahead
        *[(8, 1), (12, 1), (16, 1), (20, 1)],
        (21, 0),
    ]


@pytest.mark.parametrize("compute", ["power(1, 1)", *RANDOM_TIMES])
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_dssp_with_equal_bounds_is_ssp(compute: str, bound: int) -> None:
    choices = {**QUADRATIC, "workers": 5, "updates": 300, "compute": compute}
    dynamic = run_story(**choices, policy=f"dssp(lower={bound}, upper={bound})")
    fixed = run_story(**choices, policy=f"ssp(bound={bound})")
    assert dynamic.times == fixed.times
    assert torch.equal(dynamic.server.x, fixed.server.x)


@pytest.mark.parametrize("compute", ["power(1, 1)", *RANDOM_TIMES])
def test_clocks_under_dssp_differ_by_at_most_upper_plus_one(compute: str) -> None:
    spreads = []

    def watch(server: Server) -> None:
        spreads.append(max(server.finished) - min(server.finished))

    choices = {"policy": "dssp(lower=2, upper=6)", "compute": compute}
    run_story(watch, **QUADRATIC, **choices, workers=5, updates=500)
    assert 3 < max(spreads) <= 7


def test_dssp_refuses_a_lower_bound_above_the_upper_one() -> None:
    with pytest.raises(ValueError, match="lower=4 must be at most upper=2"):
        Experiment(**QUADRATIC, policy="dssp(lower=4, upper=2)")


# Paced


def test_paced_starts_no_more_jobs_than_it_can_use_in_time() -> None:
    stage = Stage(policy="paced(batch=2, staleness=0)", workers=3)
    assert stage.started == [(0, 0), (1, 0)]  # worker 2 waits for the first step
    assert stage.deliver(1) == ("held", [])
    assert stage.deliver(0) == ("applied", [(2, 1), (0, 1)])  # worker 2 has had the fewest jobs
    assert stage.deliver(0) == ("held", [])
    assert stage.deliver(2) == ("applied", [(1, 2), (2, 2)])


def test_paced_with_a_window_of_one_uses_messages_in_order_of_start() -> None:
    stage = Stage(policy="paced(batch=1, staleness=1, window=1)", workers=3)
    assert stage.started == [(0, 0), (1, 0)]
    assert stage.deliver(1) == ("held", [])  # the message of worker 0 is older
    assert len(stage.server.aside) == 1
    assert stage.deliver(0) == ("applied", [(2, 2), (0, 2)])  # both are used, each in a step
    assert stage.server.staleness_max == 1
    assert stage.server.aside == []


def test_paced_lets_fewer_jobs_than_its_window_overtake() -> None:
    stage = Stage(policy="paced(batch=1, staleness=3, window=3)", workers=4)
    assert stage.started == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert stage.deliver(1) == ("applied", [(1, 1)])
    assert stage.deliver(2) == ("applied", [(2, 2)])
    assert stage.deliver(3) == ("held", [])  # two jobs have overtaken worker 0 already
    assert stage.deliver(1) == ("held", [])
    assert stage.deliver(0)[0] == "applied"
    assert stage.server.k == 5  # and so are both that waited


def test_paced_forgets_the_job_of_a_worker_that_left() -> None:
    stage = Stage(policy="paced(batch=1, staleness=1, window=1)", workers=4)
    assert stage.started == [(0, 0), (1, 0)]
    assert stage.deliver(1) == ("held", [])
    assert stage.change(0, joined=False) == [(2, 1), (3, 1)]  # the message of worker 1 is the oldest now
    assert stage.server.k == 1
    assert stage.deliver(3) == ("held", [])
    assert stage.change(2, joined=False) == [(1, 2), (3, 2)]
    assert stage.server.k == 2


def test_paced_moves_its_window_when_a_worker_leaves() -> None:
    stage = Stage(policy="paced(batch=1, staleness=2, window=2)", workers=3)
    assert stage.deliver(2) == ("held", [])  # the third job, and the window is the first two
    stage.change(0, joined=False)
    assert stage.server.k == 1


def max_staleness(window: int | None, updates: int) -> int:
    """Return the largest staleness with batch 8, bound 4 and 64 workers; 2 % of jobs are 1000× slower."""
    policy = Paced(batch=8, staleness=4, window=window)
    experiment = Experiment(**QUADRATIC, policy=policy, workers=64, delay="spikes(0.02, 1000)")
    return create_simulation(experiment).run(Budget(updates=updates)).server.staleness_max


@pytest.mark.parametrize(("window", "bound"), [(1, 4), (2, 5), (9, 5), (10, 6), (20, 7), (40, 9)])
def test_a_window_bounds_staleness_whatever_the_delays(window: int, bound: int) -> None:
    assert bound == 4 + math.ceil((window - 1) / 8)
    assert max_staleness(window, updates=500) == bound


@pytest.mark.slow
def test_the_staleness_table_of_3000_updates() -> None:
    """Without a window nothing bounds staleness; windows of 10 and 20 bound it by 6 and 7."""
    assert max_staleness(None, updates=3000) > 200
    assert [max_staleness(window, updates=3000) for window in (10, 20)] == [6, 7]


@settings(max_examples=40)
@given(
    batch=st.integers(1, 4),
    staleness=st.integers(0, 3),
    window=st.integers(1, 9),
    workers=st.integers(1, 6),
    seed=st.integers(0, 99),
    compute=st.sampled_from(RANDOM_TIMES),
)
def test_paced_staleness_is_bounded(
    batch: int, staleness: int, window: int, workers: int, seed: int, compute: str
) -> None:
    policy = Paced(batch=batch, staleness=staleness, window=window)
    story = run_story(**QUADRATIC, policy=policy, workers=workers, seed=seed, compute=compute, updates=60)
    assert story.server.staleness_max <= staleness + math.ceil((window - 1) / batch)
    assert story.server.ledger.applied == batch * story.server.k  # the last arrival may make several steps


@settings(max_examples=40)
@given(
    events=st.lists(st.tuples(st.sampled_from("ddddlj"), st.integers(0, 4)), min_size=20, max_size=80),
    batch=st.integers(1, 3),
    staleness=st.integers(0, 2),
    window=st.integers(1, 5),
)
def test_paced_staleness_is_bounded_while_workers_come_and_go(
    events: list[tuple[str, int]], batch: int, staleness: int, window: int
) -> None:
    stage = Stage(policy=Paced(batch=batch, staleness=staleness, window=window), workers=5)
    for kind, number in events:
        busy = sorted(stage.server.busy)
        if kind == "d" and busy:
            stage.deliver(busy[number % len(busy)])
        elif kind != "d":
            stage.change(number, joined=kind == "j")
    assert stage.server.staleness_max <= staleness + math.ceil((window - 1) / batch)


# Reductions


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["power(1, 1)", *RANDOM_TIMES])
@pytest.mark.parametrize(
    ("policy", "same"),
    [
        ("ringmaster(max_delay=inf)", "asynchronous"),
        ("ringmaster(max_delay=inf, restart=True)", "asynchronous"),
        ("dssp(lower=1000, upper=1000)", "asynchronous"),
        ("paced(batch=1, staleness=1000)", "asynchronous"),
        ("paced(batch=3, staleness=1000)", "k-batch-async(k=3)"),
        ("paced(batch=5, staleness=0)", "synchronous"),
    ],
)
def test_policies_reduce_to_others_to_the_bit(policy: str, same: str, compute: str) -> None:
    choices = {**QUADRATIC, "workers": 5, "updates": 150, "compute": compute}
    one, other = run_story(**choices, policy=policy), run_story(**choices, policy=same)
    assert torch.equal(one.server.x, other.server.x)
    assert one.times == other.times
    assert one.staleness == other.staleness


SINGLE = [choice for choice in CHOICES if not any(f"batch={b}" in choice["policy"] for b in (2, 3, 6))]


@pytest.mark.parametrize("choice", SINGLE, ids=[choice["policy"] for choice in SINGLE])
def test_one_worker_is_plain_sgd(choice: dict[str, Any]) -> None:
    story = run_story(**QUADRATIC, **choice, workers=1, updates=100)
    assert torch.equal(story.server.x, run_story(**QUADRATIC, method="sgd", workers=1, updates=100).server.x)


def test_ringmaster_with_max_delay_one_is_sgd_on_the_first_worker() -> None:
    choices = {**QUADRATIC, "updates": 50, "compute": "power(2, 1)"}
    story = run_story(**choices, workers=4, policy="ringmaster(max_delay=1, restart=True)")
    assert story.times == [2.0 * (update + 1) for update in range(50)]
    assert torch.equal(story.server.x, run_story(**choices, method="sgd", workers=1).server.x)


def test_malenia_on_equal_workers_is_synchronous_sgd() -> None:
    choices = {**QUADRATIC, "workers": 5, "updates": 100}
    story = run_story(**choices, policy="malenia", aggregation="worker-means")
    expected = run_story(**choices, policy="synchronous")
    assert torch.allclose(story.server.x, expected.server.x, rtol=1e-12)
    assert story.times == expected.times
