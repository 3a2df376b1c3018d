"""Channels: sizes, reductions to the exact channel, conservation with feedback, and unbiasedness."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from story import run_story
from straggler.algorithms.channels import CHANNELS, find_largest
from straggler.config.registry import InputError, parse_entry
from straggler.core import Arrival, Channel
from straggler.experiment import Experiment

SHAPES = {"matrix": (12, 20), "bias": (12,), "kernel": (6, 3, 5, 5)}
SIZE = 12 * 20 + 12 + 6 * 75
LOSSY = [
    "top-k(0.05)",
    "random-k(0.05)",
    "qsgd(bits=2, feedback=true)",
    "qsgd(bits=4, feedback=true)",
    "sign",
]
LOSSY += [
    "qsgd(bits=8, feedback=true)",
    "qsgd(bits=16, feedback=true)",
    "powersgd(rank=1)",
    "powersgd(rank=2)",
]
ALL = [*LOSSY, "exact", "bf16", "fp16", "top-k(0.05, feedback=false)", "random-k(0.05, feedback=false)"]
ALL += ["qsgd", "sign(feedback=false)", "powersgd(feedback=false)"]
QUADRATIC: dict[str, Any] = {"dataset": "quadratic(dimension=30, noise=0.1)", "workers": 4, "updates": 60}


def make(text: str, dtype: torch.dtype = torch.float32) -> tuple[Channel, Tensor, int]:
    channel: Channel = parse_entry(text, CHANNELS)
    x = torch.zeros(SIZE, dtype=dtype)
    return channel, x, channel.prepare(x, SHAPES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("text", ALL)
def test_a_message_has_the_counted_bytes_and_memory(text: str, dtype: torch.dtype) -> None:
    channel, x, size = make(text, dtype)
    vector, memory = torch.randn(SIZE, dtype=dtype), None
    for seed in range(3):
        encoded, memory = channel.encode(vector, memory, seed)
        assert encoded.dtype == torch.uint8 and encoded.numel() == channel.count_bytes(x, SHAPES)
        assert size == (0 if memory is None else memory.numel())
        decoded = channel.decode(encoded, seed)
        assert decoded.dtype == dtype and decoded.shape == vector.shape
        assert torch.equal(decoded, channel.decode(encoded, seed))
        assert channel.decode(channel.encode(torch.zeros_like(vector), None, seed)[0], seed).isfinite().all()


def test_sizes_by_hand() -> None:
    """12×20 matrix, 12 numbers, 6×75 kernel in float32: 702 numbers."""
    expected = {
        "exact": 4 * 702,
        "bf16": 2 * 702,
        "top-k(0.1)": 70 * 8,
        "random-k(0.1)": 70 * 4,
        "qsgd(bits=4)": 2 * 4 + 351,  # two buckets of 512
        "sign": 3 * 4 + 88,
        "powersgd(rank=2)": 4 * (2 * (12 + 20) + 12 + 2 * (6 + 75)),
    }
    for text, size in expected.items():
        channel, x, _ = make(text)
        assert channel.count_bytes(x, SHAPES) == size, text


@pytest.mark.parametrize("text", LOSSY)
def test_sent_plus_kept_is_computed(text: str) -> None:
    channel, x, _ = make(text, torch.float64)
    computed, sent, memory = torch.zeros_like(x), torch.zeros_like(x), None
    for seed in range(40):
        vector = torch.randn(SIZE, dtype=torch.float64)
        encoded, memory = channel.encode(vector, memory, seed)
        computed, sent = computed + vector, sent + channel.decode(encoded, seed)
    assert memory is not None
    kept = memory[:SIZE]
    assert torch.allclose(sent + kept, computed, atol=1e-11, rtol=0)
    assert (sent - computed).abs().max() > 1e-5  # something is really left out


@pytest.mark.slow
@pytest.mark.parametrize("text", ["random-k(0.2, feedback=false)", "qsgd(bits=2)", "qsgd(bits=4)"])
def test_random_channels_are_unbiased(text: str) -> None:
    channel, _, _ = make(text, torch.float64)
    vector = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    mean = sum(channel.decode(channel.encode(vector, None, seed)[0], seed) for seed in range(3000)) / 3000
    assert (mean - vector).abs().max() < 0.15  # a biased rounding would be off by half a level
    assert (mean - vector).abs().mean() < 0.03


def test_top_k_sends_the_largest_numbers_and_powersgd_finds_low_ranks() -> None:
    channel, _, _ = make("top-k(0.01)")
    vector = torch.arange(SIZE, dtype=torch.float32) * (-1) ** torch.arange(SIZE)
    decoded = channel.decode(channel.encode(vector, None, 0)[0], 0)
    assert torch.equal(decoded, torch.where(vector.abs() >= SIZE - 7, vector, 0.0))
    channel, _, _ = make("powersgd(rank=2, feedback=false)", torch.float64)
    parts = [torch.randn(12, 2) @ torch.randn(2, 20), torch.randn(12), torch.randn(6, 2) @ torch.randn(2, 75)]
    low = torch.cat([part.reshape(-1) for part in parts]).double()
    assert torch.allclose(channel.decode(channel.encode(low, None, 0)[0], 0), low, atol=1e-6)


@pytest.mark.parametrize(
    "text", ["top-k(1.0)", "random-k(1.0)", "qsgd(bits=32)", "top-k(1.0, feedback=false)"]
)
def test_full_channels_are_exact_bit_for_bit(text: str) -> None:
    exact = run_story(**QUADRATIC, compute="gamma(1, 0.4)").server.x
    assert torch.equal(run_story(**QUADRATIC, compute="gamma(1, 0.4)", channel=text).server.x, exact)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["top-k(0.1)", "sign", "qsgd(bits=4)", "powersgd", "bf16", "random-k(0.3)"])
def test_training_works_through_a_channel(text: str) -> None:
    story = run_story(**QUADRATIC | {"updates": 1500}, lr=0.05, channel=text)
    assert story.problem.evaluate(story.server.x, story.server.buffers, "test", 0).loss < 0.1


@pytest.mark.parametrize("channel", LOSSY)
@pytest.mark.parametrize("policy", ["k-sync(k=2)", "ringmaster(max_delay=2)", "asynchronous"])
def test_feedback_is_conserved_over_a_run(policy: str, channel: str) -> None:
    """Per worker: what arrived plus what the worker remembers is what it computed, under any policy.

    Jobs are dropped and cancelled, and the server is restored from a checkpoint in the middle of the run.
    """
    experiment = Experiment(**QUADRATIC, policy=policy, channel=channel, lr=1e-9)
    problem = experiment.problem()
    sent, computed = torch.zeros(2, 4, 30, dtype=torch.float64)
    server = experiment.server(problem)
    server.begin()
    rng = torch.Generator().manual_seed(0)
    for number in range(60):
        if number == 33:
            state, server = copy.deepcopy(server.state()), experiment.server(problem)
            server.restore(state)
        workers = sorted(server.busy)
        worker = workers[int(torch.randint(len(workers), (1,), generator=rng))]
        job = server.busy[worker]
        arrival = Arrival(job, 0.0, float(number), 1, server.program.compute)
        sent[worker] += arrival.message.vector
        computed[worker] += problem.gradient(job.x, job.buffers, worker, job.index).vector
        server.receive(arrival)
    for worker, memory in server.memories.items():
        assert isinstance(memory, Tensor)
        assert torch.allclose(sent[worker] + memory[:30], computed[worker], atol=1e-10)
    assert sorted(server.memories) == [0, 1, 2, 3]
    assert policy == "asynchronous" or server.ledger.dropped + server.ledger.cancelled > 5


def test_the_model_is_rounded_on_its_way_down() -> None:
    story = run_story(**QUADRATIC, channel="exact(down=bf16)")
    assert all(torch.equal(a.job.x, a.job.x.bfloat16().double()) for a, _, _ in story.arrivals)
    assert story.server.bytes_down == (story.server.ledger.dispatched - 1) * 30 * 2  # the last was not sent
    assert story.server.bytes_up == len(story.arrivals) * 30 * 8
    assert not torch.equal(story.server.x, story.server.x.bfloat16().double())


@pytest.mark.parametrize(
    ("channel", "reason"),
    [
        ("exact(feedback=true)", "feedback returns what a lossy encoding left out"),
        ("top-k(0)", "greater than 0"),
        ("top-k(1.5)", "less than or equal to 1"),
        ("qsgd(bits=3)", "must be 2, 4, 8, 16 or 32"),
        ("powersgd(rank=0)", "greater than or equal to 1"),
        ("bf17", "Did you mean 'bf16'"),
        ("exact(down=int8)", "'exact', 'bf16' or 'fp16'"),
    ],
)
def test_nonsense_is_refused(channel: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Experiment(channel=channel)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.6, 1.0])
@pytest.mark.parametrize("shape", ["normal", "heavy", "sorted", "periodic", "equal"])
def test_the_largest_numbers_are_found_in_long_vectors(shape: str, share: float) -> None:
    """Also if every 64th number is small, so that the sample misleads."""
    rng = torch.Generator().manual_seed(0)
    numbers = {
        "normal": torch.randn(100_003, generator=rng).abs(),
        "heavy": torch.rand(100_003, generator=rng).clamp(1e-6).reciprocal(),
        "sorted": torch.arange(100_003.0),
        "periodic": (torch.arange(100_003) % 64 == 0).float() * torch.rand(100_003, generator=rng) + 1,
        "equal": torch.ones(100_003),
    }[shape]
    for case in (numbers, numbers.max() + 1 - numbers):
        places = find_largest(case, round(share * len(case)))
        assert torch.equal(places, places.unique())
        assert torch.equal(case[places].sort().values, torch.topk(case, len(places)).values.sort().values)
