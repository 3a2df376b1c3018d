"""Local steps, channels and memory on every engine: what is sent, what is remembered, what is replayed."""

import os
import signal
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from straggler.algorithms.work import gradient_program
from straggler.core import Job
from straggler.engines.processes import ProcessEngine
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.replay import replay

DIGITS: dict[str, Any] = {"dataset": "digits", "model": "mlp", "workers": 3, "eval_every": 0}
KINDS: dict[str, dict[str, Any]] = {
    "top-k": {"channel": "top-k(0.05)"},
    "qsgd": {"channel": "qsgd(bits=4, down=bf16)"},
    "powersgd": {"channel": "powersgd(rank=2)"},
    "sign": {"channel": "sign(down=fp16)"},
    "local": {"work": "local(steps=3, lr=0.05, optimizer=adam, keep=true)", "lr": 1.0},
    "both": {"work": "local(steps=2, lr=0.05, optimizer='sgd(momentum=0.9)', keep=true)",
             "channel": "top-k(0.1, down=bf16)", "lr": 1.0},
    "elastic": {"work": "elastic(steps=2, lr=0.05)", "lr": 1.0},
    "batches": {"batch_size": [8, 16, 32], "work": "accumulate(batches=2)"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_cores_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    experiment = Experiment(**DIGITS | KINDS[kind], gradients=60, compute="gamma(1, 0.5)")
    one, two = (experiment.run(tmp_path / str(jobs), jobs=jobs).summary for jobs in (1, 2))
    assert one["weights_sha256"] == two["weights_sha256"]
    assert one["bytes_up"] == experiment.program(experiment.problem()).bytes_up * (
        one["applied"] + one["dropped"]
    )


REPLAYED = [
    *(("processes", kind) for kind in KINDS),
    ("ray", "both"),
    *(pytest.param("ray", kind, marks=pytest.mark.chaos) for kind in KINDS if kind != "both"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kind"), REPLAYED)
def test_real_runs_are_replayed_bit_for_bit(
    engine: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_here")
    experiment = Experiment(**DIGITS | KINDS[kind], engine=engine, gradients=48)
    record = experiment.run(tmp_path)
    assert replay(record).matches
    program = experiment.program(experiment.problem())
    assert record.summary["bytes_up"] == record.arrivals.height * program.bytes_up
    # The job that started at the last arrival was never sent.
    assert record.summary["bytes_down"] == (record.summary["dispatched"] - 1) * program.bytes_down


class DiesOnce(torch.nn.Linear):
    """A layer that kills its worker process at the twentieth batch, once in the life of a flag file."""

    def __init__(self, flag: str, home: int) -> None:
        super().__init__(784, 10)
        self.flag, self.home, self.calls = flag, home, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if os.getpid() != self.home and self.calls == 20:
            with suppress(FileExistsError):  # another worker may reach its twentieth batch at the same time
                Path(self.flag).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs.flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.chaos)])
def test_a_killed_worker_gets_its_memory_back(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_here")
    model = partial(DiesOnce, str(tmp_path / "flag"), os.getpid())
    settings = DIGITS | KINDS["both"] | {"model": model, "engine": engine}
    experiment = Experiment(**settings, gradients=120, policy="synchronous")
    record = experiment.run(tmp_path / "runs")
    assert record.summary["restarts"] == 1
    assert replay(record, experiment).matches


def test_the_bytes_in_shared_memory_are_the_counted_bytes() -> None:
    """The message of a worker fills exactly the counted bytes, and its model has the type that was sent."""
    experiment = Experiment(**DIGITS, channel="top-k(0.05, down=bf16)")
    problem = experiment.problem()
    program = experiment.program(problem)
    with use_one_thread(), closing(ProcessEngine(program, experiment.durations(), 3)) as engine:
        x, buffers = problem.initial_model()
        slot = engine._children[0].slots[0]
        assert slot.encoded.nbytes == program.encoded_bytes == round(0.05 * len(x)) * 8
        assert slot.x.nbytes == program.bytes_down == 2 * len(x)
        slot.encoded.fill_(0xFF)
        engine.submit(Job(0, 0, 0, 0, x.bfloat16().float(), buffers))
        arrival = engine.next()
        assert arrival is not None
        expected = program.encode(x.bfloat16().float(), buffers, None, 0, 0)
        assert torch.equal(slot.encoded, expected.encoded)
        assert torch.equal(slot.memory_after, expected.memory)


def test_a_plain_program_has_no_memory() -> None:
    program = gradient_program(Experiment(**DIGITS).problem())
    assert program.memory == 0 and program.bytes_up == program.bytes_down == 4 * program.size


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("size", [16, 2048])
def test_ray_counts_the_messages_and_models_of_cancelled_jobs_that_travelled(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_here: None
) -> None:
    """A cancelled job that the actor computed has sent its message; one that was held back has no model."""
    from straggler.engines.ray import RayEngine

    packed, pack = [], RayEngine._pack_model
    monkeypatch.setattr(RayEngine, "_pack_model", lambda self, x: packed.append(x) or pack(self, x))
    settings = DIGITS | {"model": f"mlp(hidden=[{size}])", "policy": "k-sync(k=1)", "gradients": 60}
    experiment = Experiment(**settings, engine="ray", compute="constant(1)")
    record = experiment.run(tmp_path)
    program = experiment.program(experiment.problem())
    ups, downs = (record.summary[f"bytes_{way}"] / getattr(program, f"bytes_{way}") for way in ("up", "down"))
    assert len(packed) - experiment.workers <= downs <= len(packed) + 2 * experiment.workers
    if size == 16:  # messages that fit into a call are sent with the answer; larger ones stay at their node
        assert len(packed) - 2 * experiment.workers <= ups <= len(packed)
    else:
        assert ups == 60
