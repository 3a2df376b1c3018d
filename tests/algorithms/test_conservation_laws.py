"""Laws that hold for any delays: staleness is conserved, the ledger balances, times have closed forms."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from story import run_story
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.core import Arrival, Job, Server
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment

QUADRATIC: dict[str, Any] = {"dataset": "quadratic(dimension=3, noise=0.1)", "lr": 0.01, "batch_size": 1}
LAWS = [
    "constant(1)",
    "gaussian(1, 0.2)",
    "uniform(0.5, 2)",
    "exponential(1)",
    "gamma(1, 0.3)",
    "gamma-machines(1, 0.6, 0.1)",
    "lognormal(1, 0.8)",
    "pareto(0.3, 1.2)",
    "power(1, 0.5)",
]
DELAYS = ["spikes(0.1, 10)", "on-off(0.02, 0.2, 10)", "constant(4, workers=[0])"]


def staleness_in_flight(server: Server) -> int:
    return sum(server.staleness(job) for job in server.busy.values())


def conserved(server: Server) -> None:
    """Every update makes every other job in flight one step staler."""
    workers = len(server.finished)
    assert server.staleness_sum + staleness_in_flight(server) == (workers - 1) * server.k


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("delay", [[], *[[delay] for delay in DELAYS]])
def test_staleness_is_conserved_under_every_law_at_every_moment(law: str, delay: list[str]) -> None:
    story = run_story(conserved, **QUADRATIC, workers=7, updates=300, compute=law, delay=delay)
    assert story.server.k == 300


def test_staleness_is_conserved_under_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "worker,seconds\n" + "".join(f"{w},{1 + (3 * w + j) % 5}\n" for w in range(3) for j in range(7))
    )
    story = run_story(conserved, **QUADRATIC, workers=3, updates=200, compute=f"trace('{file}')")
    assert story.server.k == 200


@settings(max_examples=20)
@given(workers=st.integers(1, 12), updates=st.integers(1, 120), seed=st.integers(0, 99))
def test_equal_constant_durations_give_staleness_n_minus_1(workers: int, updates: int, seed: int) -> None:
    story = run_story(**QUADRATIC, workers=workers, updates=updates, seed=seed)
    expected = [min(position, workers - 1) for position in range(updates)]
    assert story.staleness == expected


def test_staleness_of_unequal_workers_follows_their_speeds() -> None:
    """Worker i's mean staleness is τᵢ Σⱼ 1/τⱼ − 1, its share of the updates (1/τᵢ) / Σⱼ 1/τⱼ."""
    story = run_story(**QUADRATIC, workers=4, updates=4000, compute="power(1, 1)")
    rate = sum(1 / tau for tau in (1, 2, 3, 4))
    for worker in range(4):
        mine = [tau for arrival, _, tau in story.arrivals[100:] if arrival.worker == worker]
        assert sum(mine) / len(mine) == pytest.approx((worker + 1) * rate - 1, rel=0.02)
        assert len(mine) / 3900 == pytest.approx(1 / (worker + 1) / rate, rel=0.02)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("compute", ["constant(1)", "pareto(0.3, 1.2)"])
def test_every_method_repeats_to_the_bit_and_its_ledger_balances(method: str, compute: str) -> None:
    workers = 1 if METHODS[method].single else 5
    choices = {**QUADRATIC, "method": method, "workers": workers, "gradients": 200, "compute": compute}
    first, second = run_story(**choices), run_story(**choices)
    assert torch.equal(first.server.x, second.server.x)
    assert first.times == second.times
    assert first.times == sorted(first.times)
    ledger = first.server.ledger
    accounted = ledger.applied + ledger.dropped + ledger.cancelled + first.server.in_flight
    assert ledger.dispatched == accounted
    per_job = max(first.server.program.batches or [1])
    assert 200 <= first.server.gradients < 200 + per_job


@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_one_worker_is_plain_sgd(method: str) -> None:
    """Without momentum and local steps every method is plain SGD; Adam, Muon and AMSGrad stay themselves."""
    choices: dict[str, Any] = {**QUADRATIC, "workers": 1, "updates": 100}
    keeps = {"async-adam": "adam", "muon": "muon", "ringmaster-muon": "muon", "fadas": "fadas"}.get(method)
    momentum = {} if keeps else {"momentum": 0.0}
    if keeps is None and not METHODS[method].optimizer.startswith(("predict", "ormo", "smega2", "delayed")):
        momentum["nesterov"] = False
    one = {"policy": re.sub(r"(k|batch)=\d+", r"\1=1", METHODS[method].policy), "work": "gradient"}
    expected = run_story(**choices, method="sgd", optimizer=keeps or "sgd")
    ours = run_story(**choices, **momentum, **one, method=method)
    assert torch.equal(ours.server.x, expected.server.x)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_method_mutates_a_model_that_was_sent(method: str) -> None:
    workers = 1 if METHODS[method].single else 4
    sent: dict[int, torch.Tensor] = {}

    def remember(server: Server) -> None:
        for job in server.busy.values():
            assert torch.equal(job.x, sent.setdefault(id(job.x), job.x.clone()))

    story = run_story(remember, **QUADRATIC, method=method, workers=workers, updates=50)
    assert story.server.k == 50


class Lender(Simulator):
    """A simulator that lends gradients as real processes do: a new job overwrites the last gradient."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # and a copy of its content

    def submit(self, job: Job) -> None:
        if job.worker in self.lent:
            vector, original = self.lent.pop(job.worker)
            assert torch.equal(vector, original)  # it may be memory that cannot be written to
            vector.fill_(torch.nan)
        super().submit(job)

    def next(self) -> Arrival | None:
        if (found := super().next()) is None:
            return None
        original = found.message.vector
        lent = replace(found.message, vector=original.clone())
        self.lent[found.worker] = (lent.vector, original)
        return Arrival(found.job, found.started, found.time, found.samples, lambda job: lent, lent=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        *({"method": name, "workers": 1 if METHODS[name].single else 4} for name in METHODS),
        *({"optimizer": name, "workers": 4} for name in OPTIMIZERS),
        *({"policy": f"hybrid({k}, staleness_tolerance=0)", "workers": 4} for k in (1, 2, 3)),
        *({"correction": written, "workers": 4} for written in ("clip(1)", "polynomial", "hinge")),
        {"optimizer": "sgd(momentum=0.9, nesterov=True, weight_decay=0.1)", "workers": 4},
    ],
    ids=lambda choice: next(iter(choice.values())),
)
def test_lent_gradients_are_neither_modified_nor_used_after_the_next_job(
    choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = {**QUADRATIC, **choice, "gradients": 100, "compute": "power(1, 1)"}
    expected = run_story(**choices).server
    monkeypatch.setattr("straggler.running.simulation.Simulator", Lender)
    server = run_story(**choices).server
    assert torch.equal(server.x, expected.x)
    assert server.x.isfinite().all()


def test_arrivals_until_a_time_are_counted_exactly() -> None:
    """Σᵢ ⌊T/τᵢ⌋, ties at the boundary included."""
    story = run_story(**QUADRATIC, workers=4, seconds=12, compute="power(1, 1)")
    assert len(story.arrivals) == 12 + 6 + 4 + 3
    assert story.times[-1] == 12


def test_a_synchronous_round_takes_as_long_as_the_slowest() -> None:
    story = run_story(**QUADRATIC, method="ssgd", workers=4, updates=10, compute="power(1, 1)")
    assert story.times[-1] == 40
    assert set(story.staleness) == {0}


@pytest.mark.slow
def test_a_synchronous_round_of_exponential_times_takes_the_harmonic_number() -> None:
    story = run_story(**QUADRATIC, method="ssgd", workers=8, updates=4000, compute="exponential(1)")
    harmonic = sum(1 / i for i in range(1, 9))
    assert story.times[-1] / 4000 == pytest.approx(harmonic, rel=0.03)


def test_ties_are_broken_by_worker_number() -> None:
    story = run_story(**QUADRATIC, workers=3, gradients=9)
    assert [arrival.worker for arrival, _, _ in story.arrivals] == [0, 1, 2] * 3


def test_doubling_all_times_changes_only_the_clock() -> None:
    fast = run_story(**QUADRATIC, workers=5, updates=200, compute="lognormal(1, 1)")
    slow = run_story(**QUADRATIC, workers=5, updates=200, compute="lognormal(2, 1)")
    assert torch.equal(fast.server.x, slow.server.x)
    assert [2 * time for time in fast.times] == pytest.approx(slow.times)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "bound"), [(1, 2.0), (2, 1.0), (3, 0.6180), (5, 0.3473), (10, 0.1652)])
def test_delayed_gradient_descent_is_stable_up_to_its_bound(workers: int, bound: float) -> None:
    """ηλ < 2 sin(π / (2(2τ+1))), τ = N−1."""
    base = {"dataset": "quadratic(dimension=1, condition=1)", "workers": workers, "updates": 3000}
    below = run_story(**base, lr=0.98 * bound).server.x.abs().item()
    above = run_story(**base, lr=1.02 * bound).server.x.abs().item()
    assert below < 1 < above


@pytest.mark.parametrize(
    ("budget", "gradients"),
    [({"epochs": 0.05}, 50), ({"updates": 33}, 33), ({"gradients": 41}, 41), ({"seconds": 7.5}, 28)],
)
def test_budgets_end_on_the_arrival(budget: dict[str, float], gradients: int) -> None:
    assert len(run_story(**QUADRATIC, workers=4, **budget).arrivals) == gradients


def test_stop_each_lets_the_slow_worker_finish_alone() -> None:
    story = run_story(**QUADRATIC, workers=3, gradients=30, stop="each", delay="constant(1, workers=[2])")
    assert story.server.finished == [10, 10, 10]
    tail = [arrival.worker for arrival, _, _ in story.arrivals if arrival.time > 10]
    assert tail == [2] * 5
    assert story.staleness[-4:] == [0, 0, 0, 0]  # no other worker makes it stale


def test_stop_each_with_epochs_counts_passes_over_each_workers_data() -> None:
    choices = {"dataset": "mixture(samples=100)", "model": "linear", "batch_size": 10, "stop": "each"}
    shared = run_story(**choices, workers=2, epochs=3, partition="shared")
    split = run_story(**choices, workers=2, epochs=3, partition="iid")
    assert shared.server.finished == [30, 30]
    assert split.server.finished == [15, 15]
    part = run_story(**choices | {"batch_size": 1}, workers=1, epochs=0.07, partition="shared")
    assert part.server.finished == [7]  # though .07 × 100 is a little more in floating point


def test_synchronous_workers_do_not_wait_for_stopped_workers() -> None:
    choices = {
        "dataset": "mixture(samples=200, classes=5)",
        "model": "linear",
        "batch_size": 10,
        "method": "ssgd",
    }
    story = run_story(**choices, workers=3, epochs=2, stop="each", partition="label")
    shares = [2 * story.problem.count_batches(worker) for worker in range(3)]
    assert len(set(shares)) > 1  # unequal, so that one worker stops first
    assert story.server.finished == shares
    assert story.server.k == max(shares)


def test_a_run_stops_at_the_first_loss_that_is_not_finite() -> None:
    story = run_story(dataset="quadratic(condition=1)", workers=1, lr=1e10, updates=1000)
    assert 10 < story.server.k < 40
    assert torch.isfinite(story.server.x).all()
    assert story.server.ledger.dropped == 1
    assert not torch.isfinite(torch.tensor(story.arrivals[-1][0].message.loss))


def test_the_optimum_of_quadratics_is_where_synchronous_sgd_goes() -> None:
    settings = {"dataset": "quadratic(dimension=4, condition=3, spread=2)", "lr": 0.5, "workers": 4}
    story = run_story(**settings, method="ssgd", updates=300, delay="constant(9, workers=[1])")
    assert torch.allclose(story.server.x, story.problem.optimum, atol=1e-10)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_asynchronous_sgd_goes_where_the_fast_workers_pull() -> None:
    """The speed-weighted optimum Σ fᵢbᵢ, not the common one."""
    settings = {"dataset": "quadratic(dimension=2, condition=1, spread=2)", "workers": 3, "lr": 0.001}
    story = run_story(**settings, updates=20_000, compute="power(1, 1)")
    shares = torch.tensor([1, 1 / 2, 1 / 3], dtype=torch.float64)
    pulled = (shares / shares.sum()) @ story.problem.minima  # type: ignore[attr-defined]
    assert (story.server.x - pulled).abs().max() < 0.01
    assert (story.server.x - story.problem.optimum).abs().max() > 0.1  # type: ignore[attr-defined]


def test_negative_momentum_is_allowed_and_is_not_positive_momentum() -> None:
    base = {**QUADRATIC, "workers": 2, "updates": 50}
    ends = {m: run_story(**base, momentum=m).server.x for m in (-0.5, 0.0, 0.5)}
    assert not torch.equal(ends[-0.5], ends[0.0])
    assert not torch.equal(ends[-0.5], ends[0.5])
    assert Experiment(**base, momentum=-0.5).momentum == -0.5
