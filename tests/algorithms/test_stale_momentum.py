"""Optimizers and corrections for stale messages, by hand, at the limits of their settings, and resumed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from story import run_story
from straggler.algorithms.corrections import Chain
from straggler.algorithms.matrix_optimizers import orthogonalise
from straggler.algorithms.optimizers import OPTIMIZERS, coerce_optimizer
from straggler.core import Arrival, Message, Optimizer, Server
from straggler.experiment import Experiment
from straggler.running.checkpoints import read_checkpoint, write_checkpoint

QUADRATIC: dict[str, Any] = {"dataset": "quadratic(dimension=6, noise=0.1, spread=1)", "lr": 0.02}
LENET: dict[str, Any] = {"dataset": "digits", "model": "lenet5", "lr": 0.01, "batch_size": 16}
PROBLEMS = [pytest.param(QUADRATIC, id="quadratic"), pytest.param(LENET, id="lenet5", marks=pytest.mark.slow)]
SHAPES = {"wide": (2, 6), "tall": (7, 3), "filters": (4, 2, 3, 3), "bias": (5,), "scale": ()}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())


def end(**settings: Any) -> Server:
    return run_story(**{"workers": 4, "updates": 60, "compute": "gamma(mean=1, cv=0.4)"} | settings).server


def server_of(workers: int = 2, dimension: int = 1, **settings: Any) -> Server:
    """Return a server at x = 1, with η = 0.1, whose workers have started."""
    settings = {"lr": 0.1, "dataset": f"quadratic(dimension={dimension})"} | settings
    experiment = Experiment(workers=workers, **settings)
    server = experiment.server(experiment.problem())
    assert torch.equal(server.x, torch.ones(dimension, dtype=torch.float64))
    server.begin()
    return server


def deliver(server: Server, worker: int, gradient: float | list[float]) -> None:
    vector = torch.atleast_1d(torch.tensor(gradient, dtype=torch.float64))
    server.receive(Arrival(server.busy[worker], 0.0, 0.0, 1, lambda job: Message(vector, 0.0, job.buffers)))


def close(value: Tensor, *expected: float, atol: float = 1e-12) -> bool:
    return bool(torch.allclose(value, torch.tensor(expected, dtype=torch.float64), atol=atol, rtol=0))


def begin(text: str, workers: int, x: Tensor) -> Optimizer:
    optimizer = coerce_optimizer(text)
    optimizer.begin(x, workers, {"x": tuple(x.shape)})
    return optimizer


def random_vectors(count: int, size: int = 3, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, size, generator=generator, dtype=torch.float64))


# Calculations by hand. x = 1 and η = 0.1 unless the test says otherwise.


def test_delay_adaptive_by_hand() -> None:
    """N = 2; worker 1 delivers 3 at τ = 3, which counts 2/3. Up to τ = 2 the weight is 1."""
    server = server_of(correction="delay-adaptive")
    for _ in range(3):
        deliver(server, 0, 1.0)
    assert close(server.x, 0.7)
    deliver(server, 1, 3.0)
    assert close(server.x, 0.7 - 0.1 * 3 * 2 / 3)
    deliver(server, 1, 1.0)
    deliver(server, 0, 1.0)  # τ = 2
    assert close(server.x, 0.5 - 0.1 - 0.1)


def test_mixing_by_hand() -> None:
    """α = .5: the model becomes the mean of itself and the worker's model, which is 0, then 2."""
    for correction, alpha in (("mixing", 0.5), ("mixing + polynomial(a=1)", 0.25)):
        server = server_of(correction=correction, lr=0.5)
        deliver(server, 0, 1.0)  # x_then − xᵢ = 1 − 0
        assert close(server.x, 0.5)
        deliver(server, 1, -1.0)  # 1 − 2, at τ = 1
        assert close(server.x, (1 - alpha) * 0.5 + alpha * 2)


def test_mixing_at_rate_one_takes_the_workers_model() -> None:
    server = server_of(correction="mixing", lr=1.0)
    deliver(server, 0, 0.75)
    assert close(server.x, 0.25)
    deliver(server, 1, -3.0)
    assert close(server.x, 4.0)


def test_ormo_by_hand() -> None:
    """μ = .5, buckets of two: versions 0 | 1, 2 | 3, 4."""
    server = server_of(optimizer="ormo(momentum=0.5)")
    deliver(server, 0, 1.0)  # step 0, bucket 0: v = 1
    assert close(server.x, 0.9)
    deliver(server, 1, 2.0)  # step 1 opens bucket 1: v = .5, x = .85; version 0 is one bucket old: v = 1.5
    assert close(server.x, 0.85 - 0.1 * 1.5 * 2)
    deliver(server, 0, 4.0)  # step 2, version 1, its own bucket: v = 5.5
    assert close(server.x, 0.55 - 0.4)
    deliver(server, 1, 2.0)  # step 3 opens bucket 2: v = 2.75, x = −.125; version 2 is one bucket old
    assert close(server.x, 0.15 - 0.275 - 0.1 * 1.5 * 2)
    assert close(server.optimizer.state()["_state"]["velocity"], 2.75 + 0.5 * 2)


def test_delayed_nesterov_by_hand() -> None:
    """μ = .5, N = 2: each gradient moves the model by half; every second one also by μv, v = 2, then 3."""
    server = server_of(optimizer="delayed-nesterov(momentum=0.5)")
    deliver(server, 0, 1.0)
    assert close(server.x, 0.95)
    deliver(server, 1, 3.0)
    assert close(server.x, 0.95 - 0.15 - 0.1 * 0.5 * 2)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.7 - 0.1)
    deliver(server, 0, 2.0)
    assert close(server.x, 0.6 - 0.1 - 0.1 * 0.5 * 3)


def test_smega2_by_hand() -> None:
    """μ = .5, N = 2. Sent: x − .05[(2 − c/2)v + cG/2]."""
    server = server_of(optimizer="smega2(momentum=0.5)")
    deliver(server, 0, 1.0)  # c = 1, G = 1, v = 0
    assert close(server.x, 0.9)
    assert close(server.busy[0].x, 0.9 - 0.05 * 0.5)
    deliver(server, 1, 3.0)  # v = 2, c = 0
    assert close(server.x, 0.6)
    assert close(server.busy[1].x, 0.6 - 0.05 * 4)
    deliver(server, 0, 1.0)  # c = 1, G = 1
    assert close(server.x, 0.6 - 0.1 * (1 + 0.5 * 2))
    assert close(server.busy[0].x, 0.4 - 0.05 * (1.5 * 2 + 0.5))


@pytest.mark.parametrize(
    ("rule", "ahead"), [("lookahead", 0.5), ("spectrain", 2.0), ("msnag", 0.75), ("msnag, steps=1", 0.5)]
)
def test_weight_prediction_by_hand(rule: str, ahead: float) -> None:
    """μ = .5, N = 3, so s = 2: v = 1, then 2.5. Sent: x − .1·(μ, s, or μ + μ²)·v."""
    server = server_of(workers=3, optimizer=f"predict(momentum=0.5, rule={rule})")
    deliver(server, 0, 1.0)
    assert close(server.x, 0.9)
    assert close(server.busy[0].x, 0.9 - 0.1 * ahead)
    deliver(server, 1, 2.0)
    assert close(server.x, 0.65)
    assert close(server.busy[1].x, 0.65 - 0.1 * ahead * 2.5)


def test_weight_decay_of_prediction_by_hand() -> None:
    server = server_of(optimizer="predict(momentum=0.5, weight_decay=0.1)")
    deliver(server, 0, 1.0)
    assert close(server.x, 1 - 0.1 * 1.1)
    assert server.optimizer.decay() == 0.1


def test_fadas_by_hand() -> None:
    """β = .5, .75, ε = 0. The third gradient is 0 at τ = 2: half the rate, and v̂ stays at its largest."""
    server = server_of(workers=3, optimizer="fadas(betas=[0.5, 0.75], eps=0)")
    deliver(server, 0, 2.0)  # m = 1, v = 1; corrected 2 and 4
    assert close(server.x, 0.9)
    deliver(server, 1, -2.0)  # τ = 1: m = −.5, v = 1.75; corrected −2/3 and 4
    assert close(server.x, 0.9 + 0.1 / 3)
    deliver(server, 2, 0.0)  # m = −.25, v = 1.3125, v̂ = 1.75
    move = 0.25 / 0.875 / math.sqrt(1.75 / (1 - 0.75**3))
    assert close(server.x, 0.9 + 0.1 / 3 + 0.1 / 2 * move)


def test_fadas_uses_the_oldest_message_of_a_step() -> None:
    """Steps on two messages: the third step merges τ = 0 and τ = 2."""
    ends = []
    for tau_c in (1, 2):
        server = server_of(workers=3, policy="k-batch-async(k=2)", optimizer=f"fadas(tau_c={tau_c})")
        for _ in range(5):
            deliver(server, 0, 1.0)
        assert close(server.x, 0.8, atol=1e-8)
        deliver(server, 2, 1.0)
        ends.append(float(server.x))
    assert ends == pytest.approx([0.75, 0.7], abs=1e-8)


def test_muon_on_a_vector_by_hand() -> None:
    """μ = .5: d = g + μv has norm 7.5 and direction (.6, .8); then v = (5.5, −1), d = (6.75, −3.5)."""
    server = server_of(dimension=2, optimizer="muon(momentum=0.5, weight_decay=0.1)")
    deliver(server, 0, [3.0, 4.0])
    assert close(server.x, 0.99 - 0.06, 0.99 - 0.08, atol=1e-8)
    deliver(server, 1, [4.0, -3.0])
    norm = math.hypot(6.75, 3.5)
    assert close(server.x, 0.93 * 0.99 - 0.675 / norm, 0.91 * 0.99 + 0.35 / norm, atol=1e-8)


def polynomial(s: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


def test_one_iteration_on_a_diagonal_matrix_by_hand() -> None:
    """diag(3, 4)/5 has the singular values .6 and .8, and the polynomial applies to each."""
    result = orthogonalise(torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64)), steps=1)
    first = 3.4445 * 0.6 - 4.775 * 0.216 + 2.0315 * 0.07776
    second = 3.4445 * 0.8 - 4.775 * 0.512 + 2.0315 * 0.32768
    assert close(result.flatten(), first, 0, 0, second, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_equals_a_singular_value_decomposition(dtype: torch.dtype, nesterov: bool) -> None:
    """Each tensor moves by U p(S/‖S‖) Vᵀ √max(1, rows/columns), where p is the iterated polynomial."""
    optimizer = coerce_optimizer(f"muon(nesterov={nesterov})")
    x, *gradients = (vector.to(dtype) for vector in random_vectors(3, SIZE))
    optimizer.begin(x, 2, SHAPES)
    velocity, expected = np.zeros(SIZE), x.double().numpy().copy()
    for step, gradient in enumerate(gradients):
        x = optimizer.step(x, gradient, 0.5, 0, step)
        g = gradient.double().numpy()
        velocity = 0.95 * velocity + g
        direction, start = g + 0.95 * velocity if nesterov else velocity, 0
        for shape in SHAPES.values():
            part = slice(start, start := start + math.prod(shape))
            if len(shape) < 2:
                expected[part] -= 0.5 * direction[part] / np.linalg.norm(direction[part])
                continue
            u, s, vt = np.linalg.svd(direction[part].reshape(shape[0], -1), full_matrices=False)
            values = polynomial(s / np.sqrt((s**2).sum()), 5)
            assert values.min() > 0.65 and values.max() < 1.25  # near 1
            scale = math.sqrt(max(1, len(u) / vt.shape[1]))
            expected[part] -= 0.5 * scale * ((u * values) @ vt).ravel()
    assert x.dtype == dtype
    assert np.abs(x.double().numpy() - expected).max() < 1e-5


# Reductions.

TWO_EQUAL = {"workers": 2, "compute": "constant(1)"}
HEAVY_BALL = {"optimizer": "sgd(momentum=0.9)"}
SYNC = {"policy": "synchronous"}
AMSGRAD = "adam(betas=[0.9, 0.99], amsgrad=True)"
BITWISE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ormo(0) is asgd": ({"optimizer": "ormo(momentum=0)"}, {}),
    "smega2(0) is asgd": ({"optimizer": "smega2(momentum=0)"}, {}),
    "delayed-nesterov(0, 1) is asgd": ({"optimizer": "delayed-nesterov(momentum=0, every=1)"}, {}),
    "lookahead(0) is asgd": ({"optimizer": "predict(momentum=0)"}, {}),
    "msnag(0) is asgd": ({"optimizer": "predict(momentum=0, rule=msnag)"}, {}),
    "spectrain for no steps is momentum": ({"optimizer": "predict(rule=spectrain, steps=0)"}, HEAVY_BALL),
    "msnag for no steps is momentum": ({"optimizer": "predict(rule=msnag, steps=0)"}, HEAVY_BALL),
    "msnag for one step is the look-ahead": (
        {"optimizer": "predict(rule=msnag, steps=1)"},
        {"optimizer": "predict"},
    ),
    "prediction behind a barrier with decay": (
        {"optimizer": "predict(rule=msnag, steps=0, weight_decay=0.01)"} | SYNC,
        {"optimizer": "sgd(momentum=0.9, weight_decay=0.01)"} | SYNC,
    ),
    "fadas up to tau_c is amsgrad": ({"optimizer": "fadas(tau_c=999)"}, {"optimizer": AMSGRAD}),
    "delay-adaptive with τ ≤ N is asgd": ({"correction": "delay-adaptive"} | TWO_EQUAL, TWO_EQUAL),
    "delay-adaptive behind a barrier is ssgd": ({"correction": "delay-adaptive"} | SYNC, SYNC),
    "mixing behind a barrier is ssgd": ({"correction": "mixing"} | SYNC, SYNC),
    "mixing with one worker is sgd": ({"correction": "mixing", "workers": 1}, {"workers": 1}),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("law", BITWISE)
def test_reductions_hold_to_the_bit(problem: dict[str, Any], law: str) -> None:
    one, other = BITWISE[law]
    assert torch.equal(end(**problem | one).x, end(**problem | other).x)


NESTEROV = "sgd(momentum=0.9, nesterov=True)"


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    ("optimizer", "equal"),
    [
        ("smega2", NESTEROV),
        ("predict", NESTEROV),
        ("delayed-nesterov", NESTEROV),
        ("ormo", "sgd(momentum=0.9)"),
    ],
)
def test_one_worker_is_torchs_momentum(problem: dict[str, Any], optimizer: str, equal: str) -> None:
    settings = problem | {"workers": 1, "updates": 20}  # a network amplifies rounding errors in every update
    ours = end(**settings, optimizer=optimizer)
    sent = ours.optimizer.send(ours.x, ours.lr, 0)
    theirs = end(**settings, optimizer=equal).x
    assert (sent - theirs).abs().max() < (1e-12 if theirs.dtype == torch.float64 else 1e-5)


def test_n_delayed_nesterov_steps_are_one_nesterov_step_on_the_mean() -> None:
    gradients, x = random_vectors(20), torch.zeros(3, dtype=torch.float64)
    ours, theirs = begin("delayed-nesterov", 4, x), begin(NESTEROV, 1, x)
    expected = x
    for number, gradient in enumerate(gradients):
        x = ours.step(x, gradient, 0.1, number % 4, number)
        if number % 4 == 3:
            mean = torch.stack(gradients[number - 3 : number + 1]).mean(0)
            expected = theirs.step(expected, mean, 0.1, 0, number // 4)
            assert torch.allclose(x, expected, atol=1e-12, rtol=0)


def apply_ormo(messages: list[tuple[int, Tensor]], bucket: int) -> Tensor:
    """Return the model after these messages (version, gradient) in this order."""
    x = torch.zeros(3, dtype=torch.float64)
    optimizer = begin(f"ormo(bucket={bucket})", 9, x)
    for step, (version, gradient) in enumerate(messages):
        assert version <= step
        x = optimizer.step(x, gradient, 0.1, step % 9, version)
    return x


def test_ormo_does_not_depend_on_the_order_of_arrival() -> None:
    """The model depends on the bucket of each gradient, not on its position."""
    versions, gradients = [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 9, 11], random_vectors(12)
    messages, generator = list(zip(versions, gradients, strict=True)), np.random.default_rng(1)
    expected, orders = apply_ormo(messages, bucket=3), set()
    for _ in range(10):
        waiting, order = dict(enumerate(versions)), list[int]()
        for step in range(12):  # any message whose version exists already
            order.append(int(generator.choice([i for i, version in waiting.items() if version <= step])))
            del waiting[order[-1]]
        orders.add(tuple(order))
        model = apply_ormo([messages[i] for i in order], bucket=3)
        assert torch.allclose(model, expected, atol=1e-12, rtol=0)
    assert len(orders) == 10
    swapped = [*messages[:2], (0, gradients[10]), *messages[3:10], (9, gradients[2]), messages[11]]
    assert not torch.allclose(apply_ormo(swapped, bucket=3), expected)  # two gradients in other buckets


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_ormo_is_synchronous_momentum_if_every_gradient_is_in_its_bucket(rounds: int) -> None:
    """One gradient of version 0, then buckets of N = 4: SGD with momentum on the sum of each bucket."""
    gradients, bucket = random_vectors(1 + 4 * rounds), 4
    x = torch.zeros(3, dtype=torch.float64)
    theirs = begin("sgd(momentum=0.9)", 1, x)
    sums = [gradients[0], *(sum(gradients[i : i + 4]) for i in range(1, len(gradients), 4))]
    for step, total in enumerate(sums):
        x = theirs.step(x, torch.as_tensor(total), 0.1, 0, step)
    versions = [0, *(1 + 4 * number for number in range(rounds) for _ in range(4))]
    assert torch.allclose(apply_ormo(list(zip(versions, gradients, strict=True)), bucket), x, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
def test_ormo_behind_a_barrier_is_synchronous_momentum_one_move_ahead(steps: int) -> None:
    """All N gradients of a round have the version of its start. The model is at x − ημv of SGD."""
    gradients, x = random_vectors(4 * steps), torch.zeros(3, dtype=torch.float64)
    theirs = begin("sgd(momentum=0.9)", 1, x)
    for step in range(steps):
        x = theirs.step(x, torch.stack(gradients[4 * step : 4 * step + 4]).sum(0), 0.1, 0, step)
    velocity = theirs.velocity()
    assert velocity is not None
    messages = [(4 * (number // 4), gradient) for number, gradient in enumerate(gradients)]
    assert torch.allclose(apply_ormo(messages, 4), x - 0.09 * velocity, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("optimizer", "ahead"), [("smega2", 4), ("predict(rule=msnag, steps=3)", 3)])
def test_the_predicted_model_is_the_model_after_steps_without_gradients(optimizer: str, ahead: int) -> None:
    for done in range(1, 9):
        x = torch.zeros(3, dtype=torch.float64)
        ours = begin(optimizer, 4, x)
        for step, gradient in enumerate(random_vectors(done)):
            x = ours.step(x, gradient, 0.1, 0, step)
        sent = ours.send(x, 0.1, 0)
        for step in range(ahead):
            x = ours.step(x, torch.zeros_like(x), 0.1, 0, done + step)
        assert torch.allclose(sent, x, atol=1e-12, rtol=0)


def test_fadas_with_unit_moments_is_plain_sgd() -> None:
    x = torch.zeros(3, dtype=torch.float64)
    optimizer, expected = begin("fadas(betas=[0, 0], eps=0)", 2, x), x
    for step, gradient in enumerate(random_vectors(6)):
        x = optimizer.step(x, gradient.sign(), 0.1, 0, step)
        expected = expected.add(gradient.sign(), alpha=-0.1)
    assert torch.equal(x, expected)


# State.


@pytest.mark.parametrize(
    "text",
    [
        *OPTIMIZERS,
        "ormo(bucket=2)",
        "delayed-nesterov(every=4)",
        "predict(rule=msnag)",
        "multi(nesterov=True)",
    ],
)
def test_every_optimizer_continues_from_a_checkpoint_and_modifies_nothing(text: str, tmp_path: Path) -> None:
    x, *gradients = (vector.float() for vector in random_vectors(18, SIZE))
    ours, resumed = coerce_optimizer(text), coerce_optimizer(text)
    ours.begin(x, 3, SHAPES)
    resumed.begin(x, 3, SHAPES)
    again = x
    for step, gradient in enumerate(gradients):
        if step == 7:
            resumed.restore(read_checkpoint(write_checkpoint(tmp_path, 1, ours.state())))
            again = x
        arguments, worker, version = (x.clone(), gradient.clone()), step % 3, max(0, step - 2)
        moved = ours.step(x, gradient, 0.01, worker, version)
        assert torch.equal(x, arguments[0]) and torch.equal(gradient, arguments[1])
        assert moved.data_ptr() not in (x.data_ptr(), gradient.data_ptr()) and moved.dtype == x.dtype
        sent = ours.send(moved, 0.01, worker)
        if step >= 7:
            again = resumed.step(again, gradient, 0.01, worker, version)
            assert torch.equal(again, moved)
            assert torch.equal(resumed.send(again, 0.01, worker), sent)
        x = moved
    assert torch.isfinite(x).all()


@pytest.mark.parametrize("correction", ["delay-adaptive", "mixing + delay-adaptive(scale=gradient)"])
def test_corrections_continue_from_a_checkpoint(correction: str, tmp_path: Path) -> None:
    server, fresh = (server_of(workers=3, correction=correction) for _ in range(2))
    order = [0, 0, 1, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 1, 2]
    for number, worker in enumerate(order):
        if number == 5:
            fresh.restore(read_checkpoint(write_checkpoint(tmp_path, 1, server.state())))
        deliver(server, worker, 1.0 + number)
        if number >= 5:
            deliver(fresh, worker, 1.0 + number)
    assert torch.equal(server.x, fresh.x)


@pytest.mark.parametrize(("settings", "left"), [("", {1, 2}), ("shared=True", {0})])
@pytest.mark.parametrize("chain", ["", "clip(norm=1) + "])
def test_adaptive_delay_compensation_forgets_a_worker_that_left(
    settings: str, left: set[int], chain: str
) -> None:
    server = server_of(workers=3, correction=f"{chain}dc-adaptive({settings})")
    for worker in range(3):
        deliver(server, worker, 1.0)
    server.change(0, joined=False)
    server.change(0, joined=False)  # has no effect
    link = server.correction.links[-1] if isinstance(server.correction, Chain) else server.correction
    assert set(link.state()["_mean_square"]) == left


def test_every_link_of_a_chain_is_told_that_a_worker_left() -> None:
    server = server_of(correction="dc-adaptive + dc-adaptive(lam0=1)")
    deliver(server, 0, 1.0)
    states = server.correction.state().values()
    assert [list(state["_mean_square"]) for state in states] == [[0], [0]]
    server.change(0, joined=False)
    assert [list(state["_mean_square"]) for state in server.correction.state().values()] == [[], []]


@pytest.mark.parametrize("optimizer", ["ormo", "delayed-nesterov", "smega2", "predict", "fadas", "muon"])
def test_gap_aware_measures_the_steps_of_every_optimizer(optimizer: str) -> None:
    """Equal gradients are divided by about 1 + 1 after a step of the usual size, not by a huge or no gap."""
    server = server_of(correction="gap-aware", optimizer=optimizer)
    deliver(server, 0, 1.0)
    gradient = torch.ones(1, dtype=torch.float64)
    arrival = Arrival(server.busy[1], 0.0, 0.0, 1, lambda job: Message(gradient, 0.0, job.buffers))
    corrected, _ = server.correction.correct(gradient, arrival, server)
    assert close(corrected, 0.5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"optimizer": "ormo", "policy": "synchronous"}, "merges several"),
        ({"optimizer": "ormo(bucket=0)"}, "greater than or equal to 1"),
        ({"optimizer": "predict(steps=2)"}, "Use rule=spectrain or rule=msnag"),
        ({"optimizer": "fadas(betas=[0.9, 1])"}, "below 1"),
        ({"optimizer": "muon(ns_steps=0)"}, "greater than or equal to 1"),
        ({"optimizer": "smega2(momentum=1)"}, "less than 1"),
    ],
)
def test_invalid_settings_are_refused_with_a_reason(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Experiment(**QUADRATIC | settings)
