"""Work at the worker: local steps, accumulation and elastic averaging reduce to what they stand for."""

from typing import Any

import pytest
import torch
from torch import Tensor

from story import run_story
from straggler.config.registry import InputError
from straggler.experiment import Experiment

QUADRATIC: dict[str, Any] = {"dataset": "quadratic(dimension=6, noise=0.1, spread=1)", "workers": 3}
ONE = QUADRATIC | {"workers": 1}


def end(**settings: Any) -> Tensor:
    return run_story(**{"compute": "gamma(1, 0.4)"} | settings).server.x


@pytest.mark.parametrize("channel", ["exact", "bf16"])
def test_one_local_step_at_rate_one_is_a_gradient(channel: str) -> None:
    settings = QUADRATIC | {"updates": 50, "lr": 0.02, "channel": channel}
    local = end(**settings, work="local(steps=1, lr=1)")
    assert torch.allclose(local, end(**settings), atol=1e-6 if channel == "exact" else 1e-2, rtol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "sgd(momentum=0.9)", "adamw", "adam", "adagrad", "rprop"])
def test_one_worker_with_local_steps_is_plain_training(optimizer: str) -> None:
    """H local steps with a kept inner state and outer SGD at rate 1 are H plain steps."""
    keep = f"local(steps=4, lr=0.01, optimizer='{optimizer}', keep=true)"
    ours = end(**ONE, work=keep, updates=10, lr=1.0)
    plain = end(**ONE, optimizer=optimizer, lr=0.01, updates=40)
    assert torch.allclose(ours, plain, atol=1e-6, rtol=0)
    if optimizer != "sgd":  # without memory the inner state starts again in every job
        fresh = end(**ONE, work=keep.replace("keep=true", "keep=false"), updates=10, lr=1.0)
        assert not torch.allclose(fresh, plain, atol=1e-6, rtol=0)


def test_fedavg_is_the_mean_of_the_workers_models() -> None:
    story = run_story(**QUADRATIC, method="local-sgd", work="local(steps=5, lr=0.05)", updates=1)
    models = []
    for worker in range(3):
        x = torch.ones(6, dtype=torch.float64)
        for batch in range(5):
            x = x - 0.05 * story.problem.gradient(x, x[:0], worker, batch).vector
        models.append(x)
    assert torch.allclose(story.server.x, torch.stack(models).mean(dim=0), atol=1e-12)
    assert story.server.gradients == 15 and story.server.ledger.applied == 3


def test_accumulate_is_the_mean_gradient_and_counts_its_batches() -> None:
    story = run_story(**ONE, work="accumulate(batches=3)", updates=1, lr=1.0)
    x = torch.ones(6, dtype=torch.float64)
    mean = torch.stack([story.problem.gradient(x, x[:0], 0, i).vector for i in range(3)]).mean(dim=0)
    assert torch.allclose(story.server.x, x - mean, atol=1e-12)
    assert (story.server.gradients, story.server.samples) == (3, 96)


def test_proximal_pulls_towards_the_servers_model() -> None:
    far = (end(**ONE, work="local(steps=50, lr=0.1)", updates=1, lr=1.0) - 1).norm()
    near = (end(**ONE, work="local(steps=50, lr=0.1, proximal=1)", updates=1, lr=1.0) - 1).norm()
    assert near < 0.7 * far
    assert torch.equal(end(**ONE, work="local(proximal=0)", updates=3), end(**ONE, work="local", updates=3))


def test_elastic_averaging_by_hand() -> None:
    """One worker, f = x²/2 from x = 1, two steps of 0.5: 0.25; then e = 0.1·(0.25 − 1) moves both."""
    one = {"dataset": "quadratic(dimension=1)", "workers": 1, "lr": 1.0}
    story = run_story(**one, work="elastic(steps=2, lr=0.5, alpha=0.1)", updates=1)
    assert story.server.x.item() == pytest.approx(1 - 0.075)
    assert story.server.memories[0].item() == pytest.approx(0.25 + 0.075)
    frozen = run_story(**one, work="elastic(steps=2, lr=0.5, alpha=0)", updates=5).server
    assert frozen.x.item() == 1.0 and frozen.memories[0].item() == pytest.approx(0.25**5)


def test_slow_workers_take_fewer_steps() -> None:
    """DyLU: with times 1, 2 and 3, ten steps of the fastest are five and three of the others."""
    experiment = Experiment(
        **QUADRATIC, work="local(steps=10, balance=true)", compute="power(1, 1)", gradients=100
    )
    assert experiment.count_batches() == [10, 5, 3]
    equal = Experiment(**QUADRATIC, work="local(steps=10, balance=true)", gradients=100)
    assert equal.count_batches() == [10, 10, 10]
    story = run_story(**experiment.to_dict() | {"method": None})
    first = {a.worker: a.time for a, _, _ in reversed(story.arrivals)}
    assert first == {0: 10.0, 1: 10.0, 2: 9.0}


def test_batch_sizes_per_worker() -> None:
    digits: dict[str, Any] = {"dataset": "digits", "model": "mlp", "workers": 3, "compute": "power(1, 1)"}
    experiment = Experiment(**digits, batch_size="balanced(22)", updates=6)
    assert experiment.batch_sizes() == [36, 18, 12]
    story = run_story(**experiment.to_dict() | {"method": None})
    assert {a.worker: a.samples for a, _, _ in story.arrivals} == {0: 36, 1: 18, 2: 12}
    assert max(a.time - a.started for a, _, _ in story.arrivals) < 1.05 * 36 / 22  # equally long jobs
    listed = Experiment(**digits, batch_size="[16, 32, 64]", updates=3)
    assert listed.batch_sizes() == [16, 32, 64] and listed.id != Experiment(**digits, updates=3).id


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"work": "local(steps=0)"}, "greater than or equal to 1"),
        ({"work": "local(lr=-1)"}, "greater than 0"),
        ({"work": "local(optimizer=dana)"}, "is for a server"),
        ({"work": "local(optimizer=fadas)"}, r"fadas.* is for a server.*such as adamw"),
        ({"work": "elastic(optimizer=muon)"}, "is for a server"),
        ({"work": "locl"}, "Did you mean 'local'"),
        ({"batch_size": [16, 32]}, "2 numbers for workers=3"),
        ({"batch_size": "many"}, "must be a number, a list"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": "balanced(0)"}, r"at least 1, got balanced\(0\)"),
        ({"aggregation": "latest", "optimizer": "dana"}, "one worker's message"),
        ({"aggregation": "worker-means", "optimizer": "ormo"}, "one worker's message"),
        ({"aggregation": "ringleader"}, "ringleader"),
        ({"policy": "ringleader"}, "requires aggregation='ringleader'"),
        ({"policy": "synchronous(aggregate=sum)", "aggregation": "worker-means"}, "Remove one"),
        ({"link": "link(up=-1)"}, "greater than 0"),
        ({"link": "link(up=1e6)", "engine": "processes"}, "requires engine='simulator'"),
        ({"churn": "leave(5, workers=[0, 1, 2])"}, "nobody|all workers"),
    ],
)
def test_nonsense_is_refused_with_a_reason(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Experiment(**QUADRATIC | settings)


def test_the_average_is_what_is_evaluated(tmp_path: Any) -> None:
    settings = {**QUADRATIC, "updates": 50, "lr": 0.05}
    plain, averaged = run_story(**settings).server, run_story(**settings, ema=0.9).server
    assert torch.equal(plain.x, averaged.x) and torch.equal(plain.readout, plain.x)
    assert not torch.equal(averaged.readout, averaged.x)
    record = Experiment(**settings, ema=0.9).run(tmp_path, jobs=1)
    assert record.summary["test_loss"] != Experiment(**settings).run(tmp_path, jobs=1).summary["test_loss"]


REMEMBERING = ["local(steps=2, lr=0.05, optimizer='sgd(momentum=0.9)', keep=true)", "elastic(steps=2)"]
FORGETTING = ["local(steps=2)", "gradient"]
CHANNELS_WITHOUT_MEMORY = ["exact", "bf16", "qsgd", "top-k(0.5, feedback=false)", "sign(feedback=false)"]
CHANNELS_WITHOUT_MEMORY += ["random-k(0.5, feedback=false)", "powersgd(feedback=false)"]
CHANNELS_WITH_MEMORY = ["top-k(0.5)", "qsgd(feedback=true)", "powersgd(rank=1)"]


@pytest.mark.parametrize("channel", [*CHANNELS_WITHOUT_MEMORY, *CHANNELS_WITH_MEMORY])
@pytest.mark.parametrize("work", [*REMEMBERING, *FORGETTING])
def test_work_and_channel_may_remember_or_not(work: str, channel: str) -> None:
    """The memory of each is given back to it alone, whatever the other remembers."""
    server = run_story(**QUADRATIC, work=work, channel=channel, updates=12, lr=0.1).server
    expected = (work in REMEMBERING) * 6 + (channel in CHANNELS_WITH_MEMORY) * 6
    memories = [memory.numel() for memory in server.memories.values()]
    assert set(memories) == ({expected} if expected else set())
