"""Methods reduce to simpler ones at the limits of their settings, and agree with calculations by hand."""

import copy
import gc
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from story import run_story
from straggler.algorithms.methods import METHODS
from straggler.core import Arrival, Message, Problem, Server
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem

QUADRATIC: dict[str, Any] = {
    "dataset": "quadratic(dimension=6, noise=0.1, spread=1)",
    "lr": 0.02,
    "workers": 5,
}
LENET: dict[str, Any] = {"dataset": "digits", "model": "lenet5", "lr": 0.01, "workers": 4, "batch_size": 16}
GAMMA = "gamma(mean=1, cv=0.4)"


def end(**settings: Any) -> Tensor:
    return run_story(**{"updates": 60, "compute": GAMMA} | settings).server.x


PROBLEMS = [pytest.param(QUADRATIC, id="quadratic"), pytest.param(LENET, id="lenet5", marks=pytest.mark.slow)]

SYNC = {"policy": "synchronous"}
NAG = {"momentum": 0.9, "nesterov": True}
TWO_EQUAL = {"workers": 2, "compute": "constant(1)"}

BITWISE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dc(0) is asgd": ({"correction": "dc(lam=0)"}, {}),
    "clip(inf) is asgd": ({"correction": "clip(norm=1e30)"}, {}),
    "polynomial(0) is asgd": ({"correction": "polynomial(a=0)"}, {}),
    "hinge never reached is asgd": ({"correction": "hinge(a=10, b=999)"}, {}),
    "k-async(1) is asgd": ({"policy": "k-async(k=1)"}, {}),
    "k-batch-async(1) is asgd": ({"policy": "k-batch-async(k=1)"}, {}),
    "ssp(inf) is asgd": ({"policy": "ssp(bound=inf)"}, {}),
    "hybrid(1) is asgd": ({"policy": "hybrid(num_workers_ps_update=1)"}, {}),
    "dana(0) is asgd": ({"optimizer": "dana(momentum=0)"}, {}),
    "multi(0) is asgd": ({"optimizer": "multi(momentum=0)"}, {}),
    "dana-slim(0) is asgd": ({"optimizer": "dana-slim(momentum=0)"}, {}),
    "sa with τ ≤ 1 is asgd": ({"correction": "staleness-aware(scale=gradient)"} | TWO_EQUAL, TWO_EQUAL),
    "a chain of nothings is asgd": ({"correction": "dc(lam=0) + none + clip(norm=1e30)"}, {}),
    "ga with zero gap is nesterov": ({"correction": "gap-aware"} | SYNC | NAG, SYNC | NAG),
    "ga per model with zero gap is ssgd": ({"correction": "gap-aware(per=model)"} | SYNC, SYNC),
    "dc behind a barrier is ssgd": ({"correction": "dc(lam=2)"} | SYNC, SYNC),
    "k-async(N) is ssgd": ({"policy": "k-async(k=ALL)"}, SYNC),
    "k-sync(N) is ssgd": ({"policy": "k-sync(k=ALL)"}, SYNC),
    "hybrid(N) is ssgd": ({"policy": "hybrid(num_workers_ps_update=ALL)"}, SYNC),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("law", BITWISE)
def test_reductions_hold_to_the_bit(problem: dict[str, Any], law: str) -> None:
    one, other = BITWISE[law]
    if "policy" in one:
        one = one | {"policy": one["policy"].replace("ALL", str(problem["workers"]))}
    assert torch.equal(end(**problem | one), end(**problem | other))


@pytest.mark.parametrize("compute", [GAMMA, "power(1, 1)"])
def test_fedbuff_with_one_step_and_one_message_is_asgd(compute: str) -> None:
    fedbuff = {
        "policy": "k-batch-async(k=1)",
        "correction": "none",
        "work": "local(steps=1, lr=0.02)",
        "lr": 1,
    }
    ours = end(**QUADRATIC | fedbuff, method="fedbuff", compute=compute)
    assert torch.allclose(ours, end(**QUADRATIC, method="asgd", compute=compute), atol=1e-12, rtol=0)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_dana_slim_and_dana_send_the_same_models(problem: dict[str, Any]) -> None:
    """Θ = θ − ημ Σvⱼ at constant lr: the slim server holds what the other sends."""
    full, slim = (run_story(**problem, updates=60, compute=GAMMA, method=m) for m in ("dana", "dana-slim"))
    sent = full.server.optimizer.send(full.server.x, full.server.lr, 0)
    tolerance = 1e-12 if sent.dtype == torch.float64 else 1e-5
    assert (sent - slim.server.x).abs().max() < tolerance
    assert not torch.equal(sent, full.server.x)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", ["dana", "multi-asgd", "dana-slim"])
def test_momentum_per_worker_with_one_worker_is_torchs_nesterov(problem: dict[str, Any], method: str) -> None:
    one = problem | {
        "workers": 1,
        "updates": 60,
        "momentum": 0.9,
        "weight_decay": 1e-2 if method == "dana-slim" else 0.0,
    }
    ours = run_story(**one, method=method).server
    nesterov = run_story(**one, method="sgd", nesterov=True).server.x
    tolerance = 1e-12 if nesterov.dtype == torch.float64 else 1e-5
    assert (ours.optimizer.send(ours.x, ours.lr, 0) - nesterov).abs().max() < tolerance


def test_multi_with_one_worker_is_heavy_ball() -> None:
    one = QUADRATIC | {"workers": 1, "momentum": 0.9}
    assert torch.allclose(end(**one, optimizer="multi"), end(**one, optimizer="sgd"), atol=1e-14, rtol=0)


def test_ssp_zero_is_a_barrier_and_with_lr_over_n_plain_sgd_on_the_mean() -> None:
    """All N gradients of a round are of one model; N steps of η/N are one of η on their mean."""
    ssp = end(**QUADRATIC | {"policy": "ssp(bound=0)", "updates": 100, "lr": 0.02 / 5})
    mean = end(**QUADRATIC | {"policy": "synchronous", "updates": 20, "lr": 0.02})
    assert torch.allclose(ssp, mean, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("compute", ["power(1, 1)", "pareto(0.3, 1.2)", GAMMA])
def test_ssp_keeps_the_clocks_together(bound: int, compute: str) -> None:
    spreads = []
    run_story(
        lambda server: spreads.append(max(server.finished) - min(server.finished)),
        **QUADRATIC, policy=f"ssp(bound={bound})", updates=400, compute=compute,
    )  # fmt: skip
    assert max(spreads) == bound + 1


@pytest.mark.parametrize(
    ("policy", "per_update"),
    [("k-batch-async(k=3)", 4), ("k-async(k=3)", 2), ("k-sync(k=3)", 0), ("k-batch-sync(k=3)", 0)],
)
@pytest.mark.parametrize("compute", ["exponential(1)", "pareto(0.3, 1.2)", "power(1, 1)"])
def test_the_staleness_laws_of_the_first_k(policy: str, per_update: int, compute: str) -> None:
    """Per update: N−1 if no worker waits, N−k if the k wait, 0 if the rest is abandoned. N = 5."""

    def conserved(server: Server) -> None:
        if server.held == 0:
            flying = sum(server.staleness(job) for job in server.busy.values())
            assert server.staleness_sum + flying == per_update * server.k

    story = run_story(conserved, **QUADRATIC, policy=policy, updates=300, compute=compute)
    assert story.server.k == 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("k-sync(k=3)", sum(1 / i for i in range(6, 9))),
        ("k-async(k=3)", sum(1 / i for i in range(6, 9))),
        ("k-batch-sync(k=3)", 3 / 8),
        ("k-batch-async(k=3)", 3 / 8),
        ("synchronous", sum(1 / i for i in range(1, 9))),
        ("asynchronous", 1 / 8),
    ],
)
def test_the_time_of_a_step_under_exponential_times(policy: str, expected: float) -> None:
    """H_N − H_{N−K} where the k wait, K/N where no worker waits. N = 8."""
    base = {"dataset": "quadratic(dimension=1)", "lr": 0.01, "workers": 8, "compute": "exponential(1)"}
    story = run_story(**base, policy=policy, updates=4000)
    assert story.times[-1] / 4000 == pytest.approx(expected, rel=0.04)


@pytest.mark.slow
def test_asynchrony_begets_momentum() -> None:
    """E[x_{t+1} − x_t] = (1 − 1/N)(x_t − x_{t−1}) − (η/N) f'(x_t) for exponential times. Mitliagkas 2016."""
    workers, lr, steps, seeds = 4, 0.2, 12, 1500
    total = torch.zeros(steps + 1, dtype=torch.float64)
    for seed in range(seeds):
        path = [1.0]
        run_story(
            lambda server, path=path: path.append(float(server.x)),
            dataset="quadratic(dimension=1, condition=1)", lr=lr, workers=workers, updates=steps,
            compute="exponential(1)", seed=seed,
        )  # fmt: skip
        total += torch.tensor(path, dtype=torch.float64)
    mean = total / seeds
    expected = [1.0, 1.0 - lr]  # the first step is fresh
    predicted = [
        float(mean[t]) + (1 - 1 / workers) * float(mean[t] - mean[t - 1]) - lr / workers * float(mean[t])
        for t in range(1, steps)
    ]
    assert float(mean[1]) == pytest.approx(expected[1])
    assert [float(m) for m in mean[2:]] == pytest.approx(predicted, abs=0.03)


# Calculations by hand: arrivals on a server with known gradients.


def server_of(workers: int = 2, x: float = 1.0, dimension: int = 1, **settings: Any) -> Server:
    experiment = Experiment(
        dataset=f"quadratic(dimension={dimension})", workers=workers, **{"lr": 0.1} | settings
    )
    server = experiment.server(experiment.problem())
    server.x = torch.full((dimension,), x, dtype=torch.float64)
    return server


def deliver(
    server: Server, worker: int, gradient: float | list[float], time: float = 0.0
) -> tuple[str, list[int]]:
    """Deliver a worker's job with this gradient; return the decision and the workers that start."""
    job = server.busy[worker]
    vector = torch.atleast_1d(torch.tensor(gradient, dtype=torch.float64))
    arrival = Arrival(job, 0.0, 0.0, 1, lambda job: Message(vector, 0.0, job.buffers))
    decision, jobs = server.receive(arrival)
    server.ledger.check(server.in_flight)
    return decision, [job.worker for job in jobs]


def close(value: Tensor, expected: float) -> bool:
    return bool(torch.allclose(value, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0))


def test_delay_compensation_by_hand() -> None:
    """x = 1, η = .1, λ = 2. Worker 0 delivers 1: x = .9. Worker 1 delivers 2: 2 + 2·4·(.9 − 1) = 1.2."""
    server = server_of(correction="dc(lam=2)")
    server.begin()
    deliver(server, 0, 1.0)
    assert close(server.x, 0.9)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.9 - 0.1 * 1.2)
    plain = server_of()
    plain.begin()
    deliver(plain, 0, 1.0)
    deliver(plain, 1, 2.0)
    assert close(plain.x, 0.7)


def test_adaptive_delay_compensation_by_hand() -> None:
    """ms = .05·g² = .2 for g = 2; λ = 2/√(.2 + 1e-7); g' = 2 + λ·4·(.9 − 1)."""
    server = server_of(correction="dc-adaptive(lam0=2, m=0.95)")
    server.begin()
    deliver(server, 0, 1.0)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.9 - 0.1 * (2 + 2 / math.sqrt(0.2 + 1e-7) * 4 * -0.1))


def test_adaptive_delay_compensation_keeps_a_mean_square_per_worker_or_one() -> None:
    for shared, expected in ((False, 2), (True, 1)):
        server = server_of(workers=2, correction=f"dc-adaptive(shared={shared})")
        server.begin()
        for worker in (0, 1, 0, 1):
            deliver(server, worker, 1.0)
        assert len(server.correction.state()["_mean_square"]) == expected


def test_staleness_awareness_by_hand() -> None:
    """Worker 2 delivers 3 at τ = 2. Scaling the gradient: v = .5v + 3/2; scaling lr: η/2 on the velocity."""
    for scale, expected in (("gradient", 0.75 + 1.5), ("lr", (0.75 + 3) / 2)):
        server = server_of(workers=3, correction=f"staleness-aware(scale={scale})", momentum=0.5)
        server.begin()
        deliver(server, 0, 1.0)  # τ = 0: v = 1, x = .9
        deliver(server, 1, 1.0)  # τ = 1: v = 1.5, x = .75
        assert close(server.x, 0.75)
        deliver(server, 2, 3.0)
        assert close(server.x, 0.75 - 0.1 * expected)


def test_gap_awareness_by_hand() -> None:
    """η = .1, no momentum. After g = 1: C = .1·√(v²) = .1, gap .1: the next is divided by 1 + .1/.1 = 2."""
    server = server_of(correction="gap-aware(eps=1e-15)")
    server.begin()
    deliver(server, 0, 1.0)
    deliver(server, 1, 4.0)
    assert close(server.x, 0.9 - 0.1 * 2.0)
    root = math.sqrt((0.999 * 0.001 + 0.001 * 4) / (1 - 0.999**2))  # v = 1, then 2
    gap = 0.2  # worker 0 read .9
    deliver(server, 0, 1.0)
    assert close(server.x, 0.7 - 0.1 / (1 + gap / (0.1 * root)))


@pytest.mark.parametrize("method", ["ga", "dana-ga"])
def test_gap_awareness_waits_for_a_learning_rate(method: str) -> None:
    """A schedule may begin at 0; while the model does not move there is no gap to divide by."""
    slowly = {"schedule": "cyclic(base_lr=0, max_lr=0.1, step_size_up=2)", "gradients": 1200}
    story = run_story(dataset="quadratic", method=method, **slowly)
    assert torch.isfinite(story.server.x).all() and story.server.k == 1200
    assert not torch.equal(story.server.x, story.problem.initial_model()[0])


def test_gap_awareness_divides_the_weight_decay_too() -> None:
    """(g + λx)/2 with g = 4, λ = .5, x = .85 after a first step of 1 + .5·1."""
    server = server_of(correction="gap-aware(eps=1e-15)", weight_decay=0.5)
    server.begin()
    deliver(server, 0, 1.0)
    assert close(server.x, 0.85)
    deliver(server, 1, 4.0)  # the velocity was 1.5, so C = .15, and the gap is .15
    assert close(server.x, 0.85 - 0.1 * (4 + 0.5 * 0.85) / (1 + 0.15 / 0.15))


def test_gap_awareness_is_per_parameter_or_per_model() -> None:
    """Only the first coordinate moved, so only its gradient is divided; the scalar form divides both."""
    ends = {}
    for per in ("parameter", "model"):
        server = server_of(dimension=2, correction=f"gap-aware(per={per}, eps=1e-15)")
        server.begin()
        deliver(server, 0, [1.0, 0.0])
        deliver(server, 1, [4.0, 4.0])
        ends[per] = server.x
    assert torch.allclose(ends["parameter"], torch.tensor([0.7, 0.6], dtype=torch.float64))
    assert torch.allclose(ends["model"], torch.tensor([0.7, 0.8], dtype=torch.float64))


def test_dana_by_hand() -> None:
    """μ = .5, η = .1: v₀ = 1, x = .9, sent .9 − .05·1; v₁ = 2, x = .7, sent .7 − .05·3; v₀ = .5 + 1."""
    server = server_of(optimizer="dana(momentum=0.5)")
    server.begin()
    deliver(server, 0, 1.0)
    assert close(server.busy[0].x, 0.85)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.7)
    assert close(server.busy[1].x, 0.55)
    deliver(server, 0, 1.0)
    assert close(server.x, 0.7 - 0.1 * 1.5)
    assert close(server.busy[0].x, 0.55 - 0.05 * (1.5 + 2))


def test_multi_asgd_by_hand() -> None:
    """Worker 0's velocity does not include worker 1's; worker 0 receives its own look-ahead."""
    server = server_of(optimizer="multi(momentum=0.5, nesterov=True)")
    server.begin()
    deliver(server, 0, 1.0)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.7)
    assert close(server.busy[1].x, 0.7 - 0.05 * 2)
    deliver(server, 0, 1.0)
    assert close(server.x, 0.7 - 0.15)


def test_dana_slim_by_hand() -> None:
    """u = μv + g with the new v: 1.5, then 2 + .5·2 = 3."""
    server = server_of(optimizer="dana-slim(momentum=0.5)")
    server.begin()
    deliver(server, 0, 1.0)
    assert close(server.x, 0.85)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.85 - 0.3)


def test_dana_ga_measures_the_gap_to_the_model_that_was_sent() -> None:
    """Worker 0 was sent .85 and the model is .7: gap .15; C = .1·√(mean of v²: 1, then 2)."""
    server = server_of(optimizer="dana(momentum=0.5)", correction="gap-aware(eps=1e-15)")
    server.begin()
    deliver(server, 0, 1.0)
    deliver(server, 1, 4.0)  # gap .1, C = .1: halved to 2
    assert close(server.x, 0.7)
    root = math.sqrt((0.999 * 0.001 + 0.001 * 4) / (1 - 0.999**2))
    deliver(server, 0, 1.0)
    assert close(server.x, 0.7 - 0.1 * (0.5 + 1 / (1 + 0.15 / (0.1 * root))))


def test_clipping_by_hand() -> None:
    server = server_of(dimension=2, correction="clip(norm=1)")
    server.begin()
    deliver(server, 0, [3.0, 4.0])
    assert torch.allclose(server.x, torch.tensor([0.94, 0.92], dtype=torch.float64))
    deliver(server, 1, [0.3, 0.4])
    assert torch.allclose(server.x, torch.tensor([0.91, 0.88], dtype=torch.float64))


def test_corrections_chain_in_order() -> None:
    """Clip 10 to 5, then τ = 1: hinge(1, 0) halves the rate."""
    server = server_of(correction="clip(norm=5) + hinge(a=1, b=0)")
    server.begin()
    deliver(server, 0, 1.0)
    deliver(server, 1, 10.0)
    assert close(server.x, 0.9 - 0.1 * 5 / 2)


def test_each_gradient_in_a_mean_has_its_own_scale() -> None:
    """Two messages at τ = 0 and τ = 1: weights 1 and ½ (1/(1 + τ)); their mean is stepped."""
    server = server_of(workers=3, policy="k-batch-async(k=2)", correction="polynomial(a=1)")
    server.begin()
    deliver(server, 0, 1.0)
    deliver(server, 1, 1.0)
    assert close(server.x, 0.9)
    deliver(server, 0, 2.0)  # started before the step: τ = 1
    assert server.held == 1
    deliver(server, 1, 4.0)  # started after it
    assert close(server.x, 0.9 - 0.1 * (2 / 2 + 4) / 2)


def test_k_sync_by_hand() -> None:
    """k = 2 of 3: the third is abandoned, gets its batch again, and all start at the new model."""
    server = server_of(workers=3, policy="k-sync(k=2)")
    server.begin()
    assert deliver(server, 0, 1.0) == ("held", [])
    assert deliver(server, 2, 3.0) == ("applied", [0, 1, 2])
    assert close(server.x, 0.8)
    assert server.ledger.cancelled == 1
    assert server.busy[1].index == 0
    assert server.busy[1].launch == 1
    assert {job.version for job in server.busy.values()} == {1}


def test_k_batch_sync_by_hand() -> None:
    server = server_of(workers=3, policy="k-batch-sync(k=2)")
    server.begin()
    assert deliver(server, 0, 1.0) == ("held", [0])
    assert deliver(server, 0, 3.0) == ("applied", [0, 1, 2])
    assert close(server.x, 0.8)
    assert server.ledger.cancelled == 2


def test_k_async_by_hand() -> None:
    server = server_of(workers=3, policy="k-async(k=2)")
    server.begin()
    assert deliver(server, 0, 1.0) == ("held", [])
    assert deliver(server, 2, 3.0) == ("applied", [0, 2])
    assert server.busy[1].version == 0
    assert server.ledger.cancelled == 0


def test_ssp_by_hand() -> None:
    """bound 1, worker 1 slow: worker 0 may finish two, then waits until worker 1 has one."""
    server = server_of(policy="ssp(bound=1)")
    server.begin()
    assert deliver(server, 0, 1.0) == ("applied", [0])
    assert deliver(server, 0, 1.0) == ("applied", [])
    assert deliver(server, 1, 1.0) == ("applied", [0, 1])


def test_the_hybrid_server_by_hand() -> None:
    """Tolerance 0: worker 0 may not push twice before the others pushed once; its gradient is set aside."""
    server = server_of(workers=3, policy="hybrid(num_workers_ps_update=1, staleness_tolerance=0)")
    server.begin()
    assert deliver(server, 0, 1.0) == ("applied", [0])
    assert deliver(server, 0, 2.0) == ("held", [])
    assert close(server.x, 0.9)
    assert deliver(server, 1, 1.0) == ("applied", [1])
    assert deliver(server, 2, 1.0) == ("applied", [2, 0])  # now the gradient set aside is usable too
    assert close(server.x, 1 - 0.1 * (1 + 1 + 1 + 2))
    assert server.k == 4


def test_the_hybrid_server_pulls_by_a_global_counter() -> None:
    """Interval 2: after iterations 0, 2, 4 … workers receive new weights, otherwise old ones."""
    server = server_of(policy="hybrid(pull_weights_interval=2)")
    server.begin()
    deliver(server, 0, 1.0)  # iteration 0
    assert close(server.busy[0].x, 0.9)
    deliver(server, 1, 1.0)  # iteration 1: continues with the weights of iteration 0
    assert close(server.x, 0.8)
    assert close(server.busy[1].x, 0.9)
    assert server.busy[1].version == 1
    deliver(server, 0, 1.0)  # iteration 2
    assert close(server.busy[0].x, 0.7)


def test_the_hybrid_server_sums_on_request() -> None:
    server = server_of(policy="hybrid(num_workers_ps_update=2, aggregate=sum)")
    server.begin()
    deliver(server, 0, 1.0)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0, 1, 10])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("compute", ["constant(1)", "power(1, 1)", "pareto(0.3, 1.2)"])
def test_the_hybrid_server_never_hangs_where_the_original_crashed(
    tolerance: int, k: int, compute: str
) -> None:
    policy = f"hybrid(num_workers_ps_update={k}, staleness_tolerance={tolerance})"

    def within(server: Server) -> None:
        pushes = server.policy.state()["_state"]["pushes"]
        assert max(pushes) - min(pushes) <= tolerance + 1

    story = run_story(within, **QUADRATIC, policy=policy, updates=300, compute=compute)
    assert 300 <= story.server.k < 305  # one arrival may free up to four that were set aside


def test_the_hybrid_server_uses_thousands_of_gradients_set_aside_at_once() -> None:
    """All workers but one have pushed twice; when the last one arrives, all their gradients are used."""
    many = 2000
    server = server_of(workers=many, policy="hybrid(num_workers_ps_update=1, staleness_tolerance=0)")
    server.begin()
    for _ in range(2):
        for worker in range(1, many):
            deliver(server, worker, 0.0)
    assert server.k == many - 1
    deliver(server, 0, 0.0)
    assert server.k == 2 * many - 1


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("tolerance", [0, 9999])
def test_the_hybrid_server_does_not_wait_for_stopped_workers(k: int, tolerance: int) -> None:
    data = {"dataset": "mixture(samples=200, classes=5)", "model": "linear", "batch_size": 10, "lr": 0.01}
    policy = f"hybrid(num_workers_ps_update={k}, staleness_tolerance={tolerance})"
    story = run_story(**data, workers=3, epochs=2, stop="each", partition="label", policy=policy)
    shares = [2 * story.problem.count_batches(worker) for worker in range(3)]
    assert len(set(shares)) > 1
    assert story.server.finished == shares
    assert story.server.in_flight == 0


@pytest.mark.parametrize("optimizer", ["multi(momentum=0.9, nesterov=True)", "dana"])
@pytest.mark.parametrize("warmup", [0, 0.5])
def test_the_hybrid_server_sends_each_worker_its_own_look_ahead(optimizer: str, warmup: float) -> None:
    settings = QUADRATIC | {"optimizer": optimizer, "warmup": warmup}
    assert torch.equal(end(**settings, policy="hybrid"), end(**settings, policy="asynchronous"))


def test_the_hybrid_server_reports_gradients_for_the_next_step_as_held() -> None:
    """Step on two, tolerance 0: when worker 3 is the last to arrive again, two steps are made without it."""
    server = server_of(workers=5, policy="hybrid(num_workers_ps_update=2, staleness_tolerance=0)")
    server.begin()
    first = [deliver(server, worker, 1.0)[0] for worker in range(5)]
    assert first == ["held", "applied", "held", "applied", "held"]
    assert [deliver(server, worker, 1.0)[0] for worker in range(3)] == ["held"] * 3
    assert deliver(server, 3, 1.0) == ("held", [4, 0, 1, 2])
    assert (server.k, server.held) == (4, 1)


def test_the_hybrid_server_continues_after_a_step_of_stopped_workers() -> None:
    data = {"dataset": "mixture(samples=200)", "model": "linear", "batch_size": 8, "lr": 0.01, "seed": 1}
    policy = "hybrid(num_workers_ps_update=2, staleness_tolerance=0)"
    story = run_story(
        **data, workers=5, epochs=2, stop="each", partition="dirichlet(alpha=0.3)", policy=policy
    )
    assert story.server.finished == [2 * story.problem.count_batches(worker) for worker in range(5)]
    assert story.server.in_flight == 0


NONSENSE = {
    "empty chain": ({"correction": []}, "Use none"),
    "dana merges": ({"optimizer": "dana", "policy": "synchronous"}, "one worker's message"),
    "k too large": ({"policy": "k-sync(k=9)"}, "Use k ≤ 5"),
    "hybrid k too large": ({"policy": "hybrid(num_workers_ps_update=9)"}, "num_workers_ps_update ≤ 5"),
    "hybrid never pulls": ({"policy": "hybrid(pull_weights_interval=0)"}, "greater than or equal to 1"),
    "decay divided, then clipped": (
        {"correction": "gap-aware + clip(norm=5)", "momentum": 0.9, "weight_decay": 0.1},
        "Put gap-aware last",
    ),
    "decay divided, then merged at a rate": (
        {"correction": "staleness-aware + gap-aware", "policy": "k-async(k=2)", "weight_decay": 0.1},
        "scale=gradient",
    ),
    "ssp negative": ({"policy": "ssp(bound=-1)"}, "greater than or equal to 0"),
    "momentum twice": ({"optimizer": "sgd(momentum=0.9)", "momentum": 0.5}, "set twice"),
    "adam has no momentum": ({"optimizer": "adam", "momentum": 0.5}, "has no momentum"),
    "unknown link": ({"correction": "dc(lam=1) + clipp(norm=1)"}, "Did you mean 'clip'"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_invalid_settings_are_refused_with_a_reason(case: str) -> None:
    settings, reason = NONSENSE[case]
    with pytest.raises(ValueError, match=reason):
        Experiment(**QUADRATIC | settings)


def test_passed_components_override_a_methods_defaults() -> None:
    assert str(Experiment(method="nag-asgd").optimizer) == "sgd(momentum=0.9, nesterov=True)"
    assert str(Experiment(method="nag-asgd", momentum=0.5).optimizer) == "sgd(momentum=0.5, nesterov=True)"
    assert str(Experiment(method="dana-ga", correction="dc(lam=1)").correction) == "dc(lam=1.0)"


def drive(server: Server, problem: Problem, order: list[int]) -> None:
    """Deliver arrivals in this order, skipping workers that wait."""
    for worker in order:
        if worker in server.busy:
            job = server.busy[worker]
            gradient = problem.gradient(job.x, job.buffers, job.worker, job.index)
            server.receive(Arrival(job, 0.0, 0.0, 1, lambda job, gradient=gradient: gradient))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_continues_from_its_saved_state(method: str) -> None:
    workers = 1 if METHODS[method].single else 4
    experiment = Experiment(**QUADRATIC | {"workers": workers, "method": method})
    problem = experiment.problem()
    server, fresh = experiment.server(problem), experiment.server(problem)
    order = [int(w) for w in torch.randint(0, workers, (200,), generator=torch.Generator().manual_seed(1))]
    server.begin()
    drive(server, problem, order[:77])
    fresh.restore(copy.deepcopy(server.state()))
    drive(server, problem, order[77:])
    drive(fresh, problem, order[77:])
    assert torch.equal(server.x, fresh.x)
    assert server.k == fresh.k > 20
    assert server.ledger == fresh.ledger


STATE = {  # model-sized tensors, in addition to the model and the jobs in flight, for 4 workers
    **dict.fromkeys(METHODS, 0),
    "nag-asgd": 1,
    "async-adam": 2,
    "multi-asgd": 4,
    "sa": 1,
    "ga": 3,
    "dc-asgd-a": 4,
    "dana": 5,
    "dana-slim": 4,
    "dana-sa": 5,
    "dana-ga": 7,
    "dana-dc": 5,
    "ringleader": 5,
    "ia2sgd": 5,
    "aced": 5,
    "ca2fl": 5,
    "diloco": 1,
    "async-diloco": 2,
    "slowmo": 1,
    "ormo": 1,
    "smega2": 2,
    "lookahead": 1,
    "weight-prediction": 1,
    "muon": 1,
    "ringmaster-muon": 1,
    "fadas": 3,
}


WORKER_STATE = {"diloco": 2, "async-diloco": 2, "easgd": 1}  # model-sized tensors of each worker


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_method_stores_unneeded_copies_of_the_model(method: str) -> None:
    """Between steps: the model, one model per job in flight that differs, and the method's own state."""
    size, workers = 10_007, 1 if METHODS[method].single else 4
    settings = Experiment(dataset="quadratic", method=method, workers=workers)
    components = (settings.policy, settings.correction, settings.aggregation, settings.optimizer)
    problem = NullProblem(size)
    program = settings.program(problem)
    server = Server(torch.zeros(size), torch.zeros(0), workers, *components, lambda epoch: 1e-3, program)
    server.begin()
    for number in range(41):
        worker = number % workers
        if worker in server.busy:
            job = server.busy[worker]
            memory = torch.full((program.memory,), 1.0 + number) if program.memory else None
            message = Message(torch.full((size,), 1.0 + number), 0.0, torch.zeros(0), memory)
            server.receive(Arrival(job, 0.0, 0.0, 1, lambda job, message=message: message))
            del memory, message
    del job
    gc.collect()
    alive = [o for o in gc.get_objects() if type(o) in (Tensor, torch.nn.Parameter) and o.numel() == size]
    found = {tensor.data_ptr() for tensor in alive} - {0, problem.zero.data_ptr()}  # 0: without memory
    in_flight = {job.x.data_ptr() for job in server.busy.values()} | {server.x.data_ptr()}
    remembered = {
        tensor.data_ptr() for memory in server.memories.values() if (tensor := memory).numel() == size
    }
    assert len(found - remembered) == len(in_flight) + STATE[method] + (server.held > 0)
    assert program.memory // size == WORKER_STATE.get(method, 0)
    assert len(server.memories) == (workers if program.memory else 0)


def test_the_documents_say_what_every_method_keeps() -> None:
    """The columns `server` and `worker` of the table in docs/methods.md, for 4 workers."""
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (N?)(?: ?\+? ?)(\d?) \| (\d) \|", text, flags=re.MULTILINE)
    server = {name: (4 if per_worker else 0) + int(more or 0) for name, per_worker, more, _ in rows}
    assert server == STATE
    assert {name: int(worker) for name, *_, worker in rows} == dict.fromkeys(METHODS, 0) | WORKER_STATE
