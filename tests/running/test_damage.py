"""A damaged record resumes to the identical end, or is refused in one line before training."""

import io
import os
import random
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from straggler.cli.train import resume
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record, RecordError
from straggler.running.observer import RunProgress

SETTINGS: dict[str, Any] = {"dataset": "mixture(samples=200)", "model": "linear", "compute": "gamma(1, 0.5)"}
SETTINGS |= {
    "workers": 3,
    "gradients": 120,
    "eval_every": 0.5,
    "snapshots": 3,
    "method": "dana-ga",
    "lr": 0.02,
}
DAMAGES = int(os.environ.get("STRAGGLER_DAMAGES", "0"))


class SimulatedKill(BaseException):
    """The process of a run is killed."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    """Return a whole run, and the folder of the same run killed after two checkpoints and some arrivals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("straggler.running.observer.PROGRESS_SECONDS", 0.0)
        patch.setattr("straggler.running.recorder.FLUSH_SECONDS", 0.0)
        patch.setattr(
            "straggler.running.recorder.Recorder.__exit__", lambda self, *error: self._lock.release()
        )
        experiment, folder = Experiment(**SETTINGS), tmp_path_factory.mktemp("damage")

        def kill(progress: RunProgress) -> None:
            if progress.updates == 70:
                raise SimulatedKill

        with pytest.raises(SimulatedKill):
            experiment.run(folder / "killed", jobs=1, progress=kill, checkpoint_every="30")
        return experiment.run(folder / "whole", jobs=1), folder / "killed" / experiment.id


def damage_record(folder: Path, rng: random.Random) -> str:
    """Flip a bit, truncate, or delete one or all files of a kind; return what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    kinds = sorted({path.suffix if path.parent == folder else "part" for path in files})
    kind = rng.choice(kinds)
    chosen = [path for path in files if kind == (path.suffix if path.parent == folder else "part")]
    file, what = rng.choice(chosen), rng.choice(["flip", "flip", "flip", "truncate", "delete", "delete all"])
    content = bytearray(file.read_bytes())
    if what == "flip" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
    elif what in ("flip", "truncate"):
        file.write_bytes(content[: rng.randrange(max(1, len(content)))])
    else:
        for path in chosen if what == "delete all" else [file]:
            path.unlink()
    return f"{what} {file.name}"


def check_damaged(whole: Record, folder: Path, copy: Path, seed: int) -> str:
    """Damage a copy of a killed run and resume it; return `resumed` or `refused`."""
    shutil.copytree(folder, copy)
    what = damage_record(copy, random.Random(seed))
    try:
        with redirect_stdout(io.StringIO()):
            resume(str(copy), jobs=1)
    except (InputError, RecordError) as error:
        assert "\n" not in str(error), f"{seed}: {what}: {error}"
        state = (copy / "summary.json", folder / "summary.json")
        unchanged = not state[0].exists() or state[0].stat().st_mtime_ns == state[1].stat().st_mtime_ns
        assert unchanged or "summary" in what, f"{seed}: {what}: refused after it began"
        return "refused"
    record = Record(copy)
    for key in ("weights_sha256", "updates", "test_loss", "restarts", "seconds"):
        assert record.summary[key] == whole.summary[key], f"{seed}: {what}: {key}"
    assert record.arrivals.equals(whole.arrivals, null_equal=True), f"{seed}: {what}"
    assert record.curve.equals(whole.curve, null_equal=True), f"{seed}: {what}"
    for name, tensor in whole.snapshots().items():
        assert torch.equal(tensor, record.snapshots()[name]), f"{seed}: {what}"
    left = sorted(path.name for path in copy.iterdir())
    assert left == sorted([*(path.name for path in whole.path.iterdir())]), f"{seed}: {what}"
    return "resumed"


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, pytest.param(30, marks=pytest.mark.chaos)])
@pytest.mark.timeout(3000)
def test_a_damaged_record_resumes_identically_or_is_refused(
    start: int, killed: tuple[Record, Path], tmp_path: Path
) -> None:
    """`STRAGGLER_DAMAGES=2000` sets the number in `make chaos`."""
    outcomes = []
    for seed in range(start, start + (30 if start == 0 else DAMAGES or 300)):
        copy = tmp_path / killed[1].name
        outcomes.append(check_damaged(*killed, copy, seed))
        shutil.rmtree(copy)
    print(f"{outcomes.count('resumed')} resumed, {outcomes.count('refused')} refused")
    assert set(outcomes) == {"resumed", "refused"}
