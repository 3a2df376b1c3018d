"""A run that is killed at any moment and resumed ends with the same bits."""

import os
import random
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.config.registry import InputError
from straggler.core import Arrival, Job, Message
from straggler.core.server import ServerState
from straggler.experiment import Experiment
from straggler.record import Record, RecordError
from straggler.running import checkpoints as checkpoint
from straggler.running import recorder as recorder_module
from straggler.running.checkpointer import Checkpointer, CheckpointInterval
from straggler.running.observer import Observer, RunProgress
from straggler.running.recorder import Recorder
from straggler.running.replay import replay

pytestmark = pytest.mark.slow  # real processes, many runs
MIXTURE: dict[str, Any] = {
    "dataset": "mixture(samples=400)",
    "model": "mlp(hidden=[8])",
    "compute": "gamma(1, 0.5)",
}


TIMES = {"host_seconds": 0.0, "train_seconds": 0.0}


class SimulatedCrash(BaseException):
    """A crash: no code catches it, and nothing is saved."""


def run_through_crashes(experiment: Experiment, folder: Path, cuts: int, rng: random.Random) -> Record:
    """Run with a checkpoint every few updates, and crash at random moments."""
    for _ in range(cuts):
        left = rng.randint(1, 60)

        def cut(progress: RunProgress, left: list[int] = [left]) -> None:  # noqa: B006
            left[0] -= 1
            if left[0] == 0:
                raise SimulatedCrash

        try:
            return experiment.run(folder, jobs=1, progress=cut, checkpoint_every=str(rng.randint(1, 9)))
        except SimulatedCrash:
            continue
    return experiment.run(folder, jobs=1)


@pytest.fixture(autouse=True)
def _progress_at_every_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("straggler.running.observer.PROGRESS_SECONDS", 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_with_the_same_bits_after_crashes(method: str, tmp_path: Path) -> None:
    workers = 1 if METHODS[method].single else 4
    experiment = Experiment(
        **MIXTURE, method=method, workers=workers, gradients=230, eval_every=0.5, snapshots=4, lr=0.02
    )
    whole = experiment.run(tmp_path / "whole", jobs=1)
    resumed = run_through_crashes(experiment, tmp_path / "resumed", cuts=4, rng=random.Random(method))
    same = (
        "weights_sha256",
        "test_accuracy",
        "test_loss",
        "updates",
        "dispatched",
        "cancelled",
        "mean_staleness",
    )
    assert {key: whole.summary[key] for key in same} == {key: resumed.summary[key] for key in same}
    assert resumed.arrivals.equals(whole.arrivals, null_equal=True)
    assert resumed.curve.equals(whole.curve, null_equal=True)
    for name, tensor in whole.snapshots().items():
        assert torch.equal(tensor, resumed.snapshots()[name])
    assert not list(resumed.path.glob("checkpoint-*"))


MESSAGES: dict[str, dict[str, Any]] = {
    "feedback": {"channel": "top-k(0.1, down=bf16)", "policy": "k-sync(k=2)"},
    "power iteration": {"channel": "powersgd(rank=1)"},
    "inner state": {"work": "local(steps=2, optimizer=adam, keep=True)", "lr": 1.0},
    "link": {"link": "link(latency=0.2, up=1e3, down=1e4)", "server_link": "link(up=2e3, down=2e4)"},
    "churn": {"churn": ["exponential-churn(up=6, down=2)", "late(3, workers=[0])"], "ema": 0.9},
    "preemption": {"churn": "preemption(every=8, down=1, warning=0.5)", "channel": "sign",
                   "server_link": "link(up=2e3, down=2e4)", "policy": "k-async(k=2)"},
}  # fmt: skip


@pytest.mark.parametrize("kind", MESSAGES)
def test_memory_queues_and_absent_workers_survive_ten_crashes(kind: str, tmp_path: Path) -> None:
    experiment = Experiment(**MIXTURE | MESSAGES[kind], workers=4, gradients=150, eval_every=0.5)
    whole = experiment.run(tmp_path / "whole", jobs=1)
    resumed = run_through_crashes(experiment, tmp_path / "resumed", cuts=10, rng=random.Random(kind))
    for key in ("weights_sha256", "updates", "cancelled", "bytes_up", "bytes_down", "seconds"):
        assert resumed.summary[key] == whole.summary[key], key
    assert resumed.arrivals.equals(whole.arrivals, null_equal=True)
    assert resumed.curve.equals(whole.curve, null_equal=True)
    assert replay(whole).matches


def test_a_checkpoint_after_the_last_update_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed during the last evaluation: the budget is spent, only the evaluation is done again."""
    experiment = Experiment(**MIXTURE, workers=3, gradients=40, eval_every=0)
    whole = experiment.run(tmp_path / "whole", jobs=1)
    final = Observer.evaluate_final_model

    def cut(self: Observer) -> Any:
        raise SimulatedCrash

    monkeypatch.setattr(Observer, "evaluate_final_model", cut)
    with pytest.raises(SimulatedCrash):
        experiment.run(tmp_path / "cut", jobs=1, checkpoint_every="1")
    monkeypatch.setattr(Observer, "evaluate_final_model", final)
    again = experiment.run(tmp_path / "cut", jobs=1)
    assert again.summary["updates"] == whole.summary["updates"] == 40
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_resumes_to_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    experiment = Experiment(dataset="quadratic(noise=0.1)", workers=3, gradients=60, optimizer=optimizer)
    whole = experiment.run(tmp_path / "whole", jobs=1)
    resumed = run_through_crashes(experiment, tmp_path / "resumed", cuts=4, rng=random.Random(optimizer))
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]


def cut_short(experiment: Experiment, folder: Path, updates: int) -> None:
    """Start a run, and crash after this many arrivals."""

    def cut(progress: RunProgress) -> None:
        if progress.updates == updates:
            raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        experiment.run(folder, jobs=1, progress=cut, checkpoint_every="5")


def test_a_half_written_part_does_not_matter(tmp_path: Path) -> None:
    experiment = Experiment(**MIXTURE, workers=2, gradients=60)
    cut_short(experiment, tmp_path, updates=30)
    (folder,) = tmp_path.iterdir()
    (folder / "arrivals.parts" / "000099.parquet.tmp").write_bytes(b"PAR1 half")
    assert len(Record(folder).arrivals) == 30
    assert experiment.run(tmp_path, jobs=1).summary["gradients"] == 60


@pytest.mark.chaos
@pytest.mark.parametrize(("model", "jobs"), [("lenet5", 2), ("asu-fashion", 1)])
def test_a_process_killed_ten_times_ends_with_the_same_bits(model: str, jobs: int, tmp_path: Path) -> None:
    settings = [
        "--dataset",
        "digits",
        "--model",
        model,
        "--method",
        "dana-ga",
        "--workers",
        "4",
        "--lr",
        "0.01",
    ]
    settings += ["--gradients", "400", "--eval-every", "2", "--compute", "gamma(1, 0.5)", "--jobs", str(jobs)]
    command = [str(Path(sys.executable).with_name("straggler")), "run", *settings, "--checkpoint-every", "5"]
    moments, kills = random.Random(0), 0
    for _ in range(10):
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "killed")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(moments.uniform(2.0, 7.0))
        kills += process.poll() is None
        process.kill()
        process.wait()
    subprocess.run([*command, "--out", str(tmp_path / "killed")], check=True, capture_output=True)
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    (killed,), (whole,) = ((tmp_path / name).glob("*") for name in ("killed", "whole"))
    assert kills > 0
    assert Record(killed).summary["weights_sha256"] == Record(whole).summary["weights_sha256"]
    assert Record(killed).arrivals.equals(Record(whole).arrivals, null_equal=True)


def test_ctrl_c_writes_a_checkpoint_and_resume_continues(tmp_path: Path) -> None:
    settings = [
        "--dataset",
        "digits",
        "--workers",
        "3",
        "--gradients",
        "500",
        "--jobs",
        "1",
        "--out",
        str(tmp_path),
    ]
    straggler = str(Path(sys.executable).with_name("straggler"))
    process = subprocess.Popen([straggler, "run", *settings], stderr=subprocess.PIPE, text=True)
    (folder,) = wait_for(lambda: [path.parent for path in tmp_path.glob("*/arrivals.parts")])
    os.kill(process.pid, signal.SIGINT)
    assert "straggler resume" in process.communicate()[1]
    assert process.returncode == 130
    record = Record(folder)
    assert record.summary["status"] == "interrupted"
    assert len(list(folder.glob("checkpoint-*.safetensors"))) == 1
    done = subprocess.run(
        [straggler, "resume", str(folder), "--jobs", "1"], capture_output=True, text=True, check=True
    )
    assert "Resuming from the checkpoint" in done.stderr
    assert Record(folder).summary["gradients"] == 500
    whole = Experiment(dataset="digits", workers=3, gradients=500).run(tmp_path / "whole", jobs=1)
    assert whole.path.name == folder.name
    assert whole.summary["weights_sha256"] == Record(folder).summary["weights_sha256"]


def test_a_run_that_is_stopped_as_it_diverges_is_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint written at the divergence would continue without the worker that reported it."""
    settings: dict[str, Any] = {"dataset": "quadratic", "lr": 1e3, "workers": 3, "gradients": 10**6}
    whole = Experiment(**settings).run(tmp_path / "whole", jobs=1).summary
    assert whole["status"] == "diverged"
    as_it_diverges = property(lambda self: self.server.ledger.dropped > 0, lambda self, to: None)
    monkeypatch.setattr(Checkpointer, "_stop_requested", as_it_diverges, raising=False)
    stopped = Experiment(**settings).run(tmp_path / "stopped", jobs=1, checkpoint_every="1").summary
    assert {**stopped, "record": 0} | TIMES == {**whole, "record": 0} | TIMES
    assert not list(tmp_path.glob("*/*/checkpoint-*"))


@pytest.mark.parametrize("after", ["write_parquet_atomically", "write_summary"])
def test_a_run_killed_while_it_writes_its_final_files_can_be_resumed(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real time arrivals after the checkpoint differ, so nothing recorded after it may be left."""
    experiment = Experiment(
        dataset="digits", model="linear", engine="processes", workers=2, gradients=150, eval_every=0
    )
    where = recorder_module if after.endswith("atomically") else Recorder
    whole = getattr(where, after)

    def to_the_end(*given: Any, **options: Any) -> None:
        whole(*given, **options)
        if "finish" in {frame.name for frame in traceback.extract_stack()} and "parts" not in str(given[0]):
            raise SimulatedCrash

    with monkeypatch.context() as patched:
        patched.setattr(where, after, to_the_end)
        patched.setattr(Recorder, "__exit__", lambda self, *error: self._lock.release())
        with pytest.raises(SimulatedCrash):
            experiment.run(tmp_path, checkpoint_every="40")
    record = experiment.run(tmp_path)
    assert len(record.arrivals) == record.summary["gradients"]
    assert replay(record).matches


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        ("processes", signal.SIGINT),
        ("processes", signal.SIGTERM),
        pytest.param("ray", signal.SIGINT, marks=pytest.mark.chaos),
        pytest.param("ray", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_signal_before_training_stops_the_run(engine: str, number: signal.Signals, tmp_path: Path) -> None:
    """While Ray starts, its signal handlers would end the process with code 15."""
    settings = ["--dataset", "digits", "--engine", engine, "--workers", "4", "--gradients", "100000"]
    straggler = str(Path(sys.executable).with_name("straggler"))
    command = [straggler, "run", *settings, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    if engine == "ray":
        assert process.stderr is not None and "Starting Ray" in process.stderr.readline()
        time.sleep(0.5)
    else:
        wait_for(lambda: list(tmp_path.glob("*/experiment.toml")))
    os.kill(process.pid, number)
    assert "interrupted" in process.communicate()[1]
    assert process.returncode == 130
    statuses = [Record(folder).summary["status"] for folder in tmp_path.iterdir()]
    # Ray was still starting, unless this process has waited for the processor.
    assert statuses in (([], ["interrupted"]) if engine == "ray" else (["interrupted"],))


def test_replaying_a_run_with_python_objects_is_refused(tmp_path: Path) -> None:
    experiment = Experiment(dataset="digits", model=lambda: torch.nn.Flatten(), updates=1)
    assert "[custom " in str(experiment.model)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    record = Experiment(dataset="digits", model=linear, updates=3).run(tmp_path, jobs=1)
    with pytest.raises(InputError, match="model was a Python object"):
        replay(record)
    smooth = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    record = Experiment(dataset="digits", model="linear", loss=smooth, updates=3).run(tmp_path, jobs=1)
    with pytest.raises(InputError, match="loss was a Python object"):
        replay(record)


def wait_for(look: Any) -> Any:
    deadline = time.monotonic() + 150
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_damaged_checkpoint_is_detected_and_the_previous_one_is_used(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        checkpoint.write_checkpoint(tmp_path, number, {"number": number, "x": torch.arange(1000.0)})
    last = tmp_path / "checkpoint-000000003.safetensors"
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "checkpoint-000000002.safetensors"
    raw = bytearray(last.read_bytes())
    raw[-100] ^= 1
    last.write_bytes(raw)
    said: list[str] = []
    state = checkpoint.read_newest_checkpoint(tmp_path, said.append)
    assert state["number"] == 2
    assert "damaged" in said[0]
    last.write_bytes(raw[:500])
    assert checkpoint.read_newest_checkpoint(tmp_path)["number"] == 2
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    assert checkpoint.read_newest_checkpoint(tmp_path) is None


def test_a_state_is_restored_and_shared_tensors_stay_shared(tmp_path: Path) -> None:
    x = torch.randn(5, dtype=torch.float64)
    job = Job(1, 2, 3, 4, x, torch.zeros(0))
    arrival = Arrival(job, 0.5, 1.5, 32, lambda job: Message(x * 2, float("inf"), torch.zeros(0)))
    state = {
        "x": x,
        "busy": {7: job},
        "pair": (1, [None, True, "text"]),
        "aside": [arrival],
        "nan": float("nan"),
    }
    back = checkpoint.read_checkpoint(checkpoint.write_checkpoint(tmp_path, 1, state))
    assert torch.equal(back["x"], x)
    assert back["busy"][7].x is back["x"]
    assert back["pair"] == (1, [None, True, "text"])
    assert back["aside"][0].time == 1.5
    assert torch.equal(back["aside"][0].message.vector, x * 2)
    with pytest.raises(TypeError, match="cannot store"):
        checkpoint.write_checkpoint(tmp_path, 2, {"file": tmp_path})


@pytest.mark.parametrize(
    ("text", "seconds", "updates"), [("60s", 60, None), ("1.5s", 1.5, None), ("500", None, 500)]
)
def test_checkpoint_intervals_are_parsed(text: str, seconds: float | None, updates: float | None) -> None:
    every = CheckpointInterval.parse(text)
    assert every.seconds == (seconds or float("inf"))
    assert every.updates == (updates or float("inf"))


@pytest.mark.parametrize("text", ["0", "-3s", "often", "nan", ""])
def test_an_invalid_checkpoint_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Write 60s"):
        CheckpointInterval.parse(text)


def test_a_checkpoint_of_another_version_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(**MIXTURE, workers=2, gradients=50)
    cut_short(experiment, tmp_path, updates=20)
    with monkeypatch.context() as later, pytest.raises(RecordError, match=r"another version.*'new'.*--force"):
        newer = make_dataclass("ServerState", ["new"], bases=(ServerState,), kw_only=True)
        later.setattr("straggler.core.server.ServerState", newer)
        experiment.run(tmp_path, jobs=1)
    assert experiment.run(tmp_path, jobs=1).summary["gradients"] == 50


def test_force_starts_over(tmp_path: Path) -> None:
    experiment = Experiment(**MIXTURE, workers=2, gradients=50)
    cut_short(experiment, tmp_path, updates=20)
    record = experiment.run(tmp_path, jobs=1, force=True)
    assert record.arrivals.filter(pl.col("index") == 0).height == 2
    assert record.summary["gradients"] == 50


@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_damaged_arrivals_are_refused_before_training(damage: str, tmp_path: Path) -> None:
    experiment = Experiment(**MIXTURE, workers=3, gradients=120, eval_every=0)
    cut_short(experiment, tmp_path, updates=60)
    part = sorted((tmp_path / experiment.id / "arrivals.parts").glob("*.parquet"))[0]
    content = part.read_bytes()
    if damage == "delete":
        part.unlink()
    else:
        half = len(content) // 2
        changed = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        part.write_bytes(content[:half] if damage == "truncate" else changed)
    with pytest.raises(RecordError, match=r"missing or damaged.*--force"):
        experiment.run(tmp_path, jobs=1)
    part.write_bytes(content)  # restored, so it resumes
    resumed, whole = experiment.run(tmp_path, jobs=1), experiment.run(tmp_path / "whole", jobs=1)
    assert resumed.arrivals.equals(whole.arrivals, null_equal=True)


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    state = {"x": torch.randn(40), "counts": [1, 2, 3], "job": Job(1, 2, 3, 4, torch.ones(3), torch.zeros(0))}
    path = checkpoint.write_checkpoint(tmp_path, 1, state)
    content, rng = path.read_bytes(), random.Random(0)
    for _ in range(400):
        place, bit = rng.randrange(len(content)), rng.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
        with pytest.raises((checkpoint.CheckpointError, RecordError)):
            checkpoint.read_checkpoint(path)


def test_a_closed_terminal_saves_a_checkpoint(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "straggler",
        "run",
        "--dataset",
        "mixture(samples=400)",
        "--model",
        "linear",
    ]
    command += ["--workers", "3", "--gradients", "1000000", "--jobs", "2", "--out", str(tmp_path)]

    def act_as_in_a_terminal() -> None:  # these tests may run under nohup, which ignores the signal
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, preexec_fn=act_as_in_a_terminal)
    while not list(tmp_path.glob("*/arrivals.parts/*")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGHUP)
    _, error = process.communicate(timeout=150)
    assert process.returncode == 130, error
    assert list(tmp_path.glob("*/checkpoint-*.safetensors"))
