"""Records: files are complete or absent, readable at any moment, and never execute code."""

import io
import json
import math
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from filelock import FileLock
from rich.console import Console
from torch import nn

from straggler.analysis.record_description import describe_record
from straggler.experiment import Experiment
from straggler.problems.datasets import DATASETS
from straggler.problems.models import MODELS
from straggler.record import ARRIVALS, RESULTS_VERSION, Record, RecordError, find_finished_record
from straggler.running import recorder as recorder_module
from straggler.running.recorder import Recorder
from straggler.running.runner import StragglerVersionWarning
from straggler.web.run_facts import RunFacts

FILES = {
    "experiment.toml",
    "environment.json",
    "curve.parquet",
    "arrivals.parquet",
    "summary.json",
    "weights.safetensors",
    "snapshots.safetensors",
}
QUICK: dict[str, Any] = {"dataset": "mixture(samples=300)", "model": "mlp(hidden=[4])", "workers": 3}


def recorder(folder: Path, force: bool = False) -> Recorder:
    return Recorder(folder, "lr = 1.0\n", ["straggler", "run"], force=force)


def row(number: int, **changes: Any) -> dict[str, Any]:
    values = dict.fromkeys(ARRIVALS, 1.0) | {"time": float(number), "started": None, "decision": "applied"}
    return values | {"worker": number % 3, "index": number, "version": number, "staleness": 2} | changes


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != ".lock"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A finished run with BatchNorm, evaluations and snapshots."""
    experiment = Experiment(
        dataset="digits", model="asu-fashion", workers=2, updates=12, eval_every=0.1, snapshots=3
    )
    return experiment.run(tmp_path_factory.mktemp("runs"), jobs=1)


@pytest.mark.parametrize("every", [0.1, 0.2, 0.7])
def test_the_number_of_evaluations_follows_eval_every(every: float, tmp_path: Path) -> None:
    """Rounding must not lose an evaluation: in floats 1.0 // 0.1 is 9, and 2.1 / 0.7 is below 3."""
    settings = {"dataset": "mixture(samples=20)", "model": "linear", "workers": 1, "batch_size": 1}
    curve = Experiment(**settings, epochs=2.1, eval_every=every).run(tmp_path, jobs=1).curve
    assert len(curve) == 1 + round(2.1 / every) + (round(2.1 / every) * every < 2.09)


def test_a_killed_run_is_lost(finished: Record, tmp_path: Path) -> None:
    """The lock says so on the machine of the run; elsewhere the time of the summary does."""
    folder = tmp_path / "killed"
    shutil.copytree(finished.path, folder)
    (folder / "summary.json").write_text('{"status": "running"}')
    for moment in (0.0, time.time(), time.time() + 1e6):
        os.utime(folder / "summary.json", (moment, moment))
        assert Record(folder).status == "lost" and not Record(folder).ended
    (folder / ".lock").write_text("another machine")
    for moment, status in ((0.0, "lost"), (time.time(), "running"), (time.time() + 1e6, "lost")):
        os.utime(folder / "summary.json", (moment, moment))
        assert Record(folder).status == status
    with FileLock(folder / ".lock"):
        assert Record(folder).status == "running", "a process holds the lock"
    console = Console(file=io.StringIO(), width=100)
    console.print(describe_record(Record(folder)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "killed: lost" in shown and "straggler resume" in shown
    assert RunFacts(folder).status == "lost"


# The files in the folder.


def test_a_record_has_all_files_and_columns(finished: Record) -> None:
    assert visible(finished.path) == FILES
    assert set(finished.arrivals.columns) == set(ARRIVALS)
    wanted = "time worker index version staleness gap loss gradient_norm weight_norm decision"
    assert set(wanted.split()) <= set(finished.arrivals.columns)
    assert {"seconds", "updates", "epochs", "test_accuracy", "test_loss"} <= set(finished.curve.columns)
    assert len(finished.arrivals) == 12 and len(finished.curve) > 2
    assert tomllib.loads(finished.text)["model"] == "asu-fashion"
    assert {"versions", "git", "cores", "python", "command"} <= finished.environment.keys()
    assert finished.environment["versions"]["torch"] == torch.__version__


def test_nothing_on_disk_is_a_pickle(finished: Record) -> None:
    openings = {".toml": b"dataset", ".json": b"{", ".parquet": b"PAR1"}
    for path in finished.path.iterdir():
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            assert all({"dtype", "shape", "data_offsets"} <= entry.keys() for entry in header.values())
        elif path.name != ".lock":
            assert content.startswith(openings[path.suffix])
        with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError)):
            pickle.loads(content)


def test_all_files_have_the_same_permissions(finished: Record) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in finished.path.iterdir()}
    assert {modes[name] for name in FILES} == {modes["summary.json"]}


def test_weights_load_into_the_module(finished: Record) -> None:
    data = DATASETS["digits"]().load()
    module = MODELS["asu-fashion"]().build(data.shape, len(data.classes))
    module.load_state_dict(finished.weights())
    inputs = (torch.from_numpy(data.test_inputs).float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        found = module.eval()(inputs).argmax(dim=1)
    accuracy = 100 * float((found == torch.from_numpy(data.test_labels)).double().mean())
    assert accuracy == pytest.approx(finished.summary["test_accuracy"])


def flat(record: Record, module: nn.Module) -> torch.Tensor:
    weights = record.weights()
    return torch.cat([weights[name].reshape(-1) for name, _ in module.named_parameters()])


@pytest.mark.parametrize(
    "budget",
    [
        {"updates": 40},
        {"gradients": 31},
        {"epochs": 0.9},
        {"seconds": 20.5},
        {"epochs": 1, "stop": "each"},
        {"updates": 12, "method": "ssgd"},
        {"seconds": 30, "compute": "exponential(1, 0.1)"},
        {"seconds": 10, "compute": "constant(3)"},
    ],
    ids=lambda budget: " ".join(f"{key}={value}" for key, value in budget.items()),
)
def test_snapshots_include_the_first_and_the_last_model(budget: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment(**QUICK, **budget, snapshots=6)
    record = experiment.run(tmp_path, jobs=1)
    snapshots, problem = record.snapshots(), experiment.problem()
    assert {len(column) for column in snapshots.values()} == {7}
    assert torch.equal(snapshots["weights"][0], problem.initial_model()[0])
    assert torch.equal(snapshots["weights"][-1], flat(record, problem.module))  # type: ignore[attr-defined]
    for column in ("updates", "seconds"):
        assert snapshots[column].tolist() == sorted(snapshots[column].tolist())
    assert snapshots["updates"][0] == 0 and snapshots["updates"][-1] == record.summary["updates"]


def test_there_are_no_more_snapshots_than_models(tmp_path: Path) -> None:
    experiment = Experiment(**QUICK, updates=3, snapshots=6)
    record = experiment.run(tmp_path, jobs=1)
    snapshots = record.snapshots()["weights"]
    assert len(snapshots) <= 7
    assert torch.equal(snapshots[-1], flat(record, experiment.problem().module))  # type: ignore[attr-defined]


def test_snapshots_carry_buffers(finished: Record) -> None:
    module = MODELS["asu-fashion"]().build((1, 28, 28), 10)
    weights, snapshots = finished.weights(), finished.snapshots()
    buffers = torch.cat([weights[name].reshape(-1).float() for name, _ in module.named_buffers()])
    assert torch.equal(snapshots["buffers"][-1], buffers)


def test_without_the_setting_there_are_no_snapshots(tmp_path: Path) -> None:
    record = Experiment(**QUICK, updates=3).run(tmp_path, jobs=1)
    assert visible(record.path) == FILES - {"snapshots.safetensors"}
    with pytest.raises(RecordError, match=r"snapshots\.safetensors cannot be read"):
        record.snapshots()


def test_time_to(tmp_path: Path) -> None:
    with recorder(tmp_path) as writing:
        record = Record(tmp_path)
        assert record.time_to(10) is None
        for seconds, accuracy in ((1.0, 20.0), (2.0, 60.0), (3.0, 50.0), (4.0, 80.0)):
            writing.add_evaluation({"seconds": seconds, "test_accuracy": accuracy})
    record.reload()
    assert [record.time_to(x) for x in (10, 20, 55, 60, 70, 81)] == [1, 1, 2, 2, 4, None]


# Reading during a run.


def test_arrivals_can_be_read_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "FLUSH_SECONDS", -1.0)  # a part per arrival
    with recorder(tmp_path) as writing:
        record = Record(tmp_path)
        assert record.arrivals.is_empty() and record.arrivals.schema == pl.Schema(ARRIVALS)
        for number in range(25):
            writing.add_arrival(**row(number))
            record.reload()
            assert record.arrivals["index"].to_list() == list(range(number + 1))
        assert len(list((tmp_path / "arrivals.parts").iterdir())) == 25
        before = record.arrivals
        writing.finish({"status": "finished"})
    record.reload()
    assert record.arrivals.equals(before)
    assert not (tmp_path / "arrivals.parts").exists()
    assert visible(tmp_path) == {"experiment.toml", "environment.json", "summary.json", "arrivals.parquet"}


def test_arrivals_are_not_written_one_by_one(tmp_path: Path) -> None:
    with recorder(tmp_path) as writing:
        for number in range(1000):
            writing.add_arrival(**row(number))
        assert len(list(tmp_path.glob("arrivals.parts/*"))) <= 2
    assert len(Record(tmp_path).arrivals) == 1000


def test_columns_may_be_added_later(tmp_path: Path) -> None:
    with recorder(tmp_path) as writing:
        writing.add_evaluation({"seconds": 0.0, "batch_loss": None})
        writing.add_evaluation({"seconds": 1.0, "batch_loss": 2.5, "train_loss": 1.5})
    assert Record(tmp_path).curve["batch_loss"].to_list() == [None, 2.5]
    assert Record(tmp_path).curve["train_loss"].to_list() == [None, 1.5]


@pytest.mark.parametrize("name", ["curve", "summary", "weights"])
def test_a_failed_write_leaves_the_old_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk fills up in the middle of a write, the old file remains."""

    def write_half(*arguments: Any, **_: Any) -> None:
        next(a for a in arguments if isinstance(a, Path)).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    def write_half_text(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:5].encode())
        raise OSError(28, "No space left on device")

    with recorder(tmp_path) as writing:
        record = Record(tmp_path)
        writing.add_evaluation({"seconds": 1.0})
        writing.write_tensors("weights.safetensors", {"x": torch.ones(2)})
        with monkeypatch.context() as patch:
            patch.setattr(pl.DataFrame, "write_parquet", write_half)
            patch.setattr("safetensors.torch.save_file", write_half)
            patch.setattr(Path, "write_text", write_half_text)
            with pytest.raises(OSError, match="No space"):
                if name == "curve":
                    writing.add_evaluation({"seconds": 2.0})
                elif name == "summary":
                    writing.write_summary({"status": "finished"})
                else:
                    writing.write_tensors("weights.safetensors", {"x": torch.zeros(2)})
        assert record.curve["seconds"].to_list() == [1.0]
        assert record.summary == {"status": "running"}
        assert torch.equal(record.weights()["x"], torch.ones(2))


def test_a_growing_curve_is_always_read_completely(tmp_path: Path) -> None:
    """A run replaces the file many times a second; a reader never sees parts of two versions."""
    with recorder(tmp_path) as writing, ThreadPoolExecutor(1) as writer:
        writing.add_evaluation({"seconds": 0.0})
        rows = ({"seconds": float(number), "test_accuracy": number / 7} for number in range(1, 400))
        growing = writer.submit(lambda: [writing.add_evaluation(row) for row in rows])
        while not growing.done():
            seconds = Record(tmp_path).curve["seconds"].to_list()
            assert seconds == [float(number) for number in range(len(seconds))]
        growing.result()


def test_an_incomplete_folder_is_not_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(recorder_module, "describe_environment", killed)
    with pytest.raises(RuntimeError, match="killed"):
        recorder(tmp_path).__enter__()
    with pytest.raises(RecordError, match=r"is not a run: experiment\.toml is missing"):
        Record(tmp_path)


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (ValueError("no"), "failed")]
)
def test_an_exception_is_recorded_as_the_status(error: BaseException, status: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)), recorder(tmp_path) as writing:
        writing.add_arrival(**row(0))
        raise error
    record = Record(tmp_path)
    assert record.summary == {"status": status, "error": f"{type(error).__name__}: {error}"}
    assert len(record.arrivals) == 1  # arrivals in memory were written
    with recorder(tmp_path):  # the lock was released
        assert record.summary == {"status": "running"}


def test_starting_over_removes_only_the_files_of_the_record(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with recorder(tmp_path) as writing:
        writing.add_arrival(**row(0))
        writing.add_evaluation({"seconds": 1.0})
        writing.write_tensors("weights.safetensors", {"x": torch.ones(2)})
        writing.write_tensors("snapshots.safetensors", {"x": torch.ones(2)})
        writing.finish({"status": "finished"})
    for measured in ("calibration.json", "initial_buffers.json", "divided_by.json"):
        (tmp_path / measured).write_text("{}")
    with pytest.raises(RecordError, match="Another process has finished"), recorder(tmp_path):
        pass
    assert Record(tmp_path).ended and len(Record(tmp_path).arrivals) == 1
    with recorder(tmp_path, force=True):
        pass
    assert visible(tmp_path) == {"experiment.toml", "environment.json", "summary.json", "notes.txt"}
    assert Record(tmp_path).arrivals.is_empty()


def test_nan_becomes_null(tmp_path: Path) -> None:
    with recorder(tmp_path) as writing:
        writing.write_summary({"a": math.nan, "b": [1.0, math.inf], "c": {"d": -math.inf, 3: (math.nan,)}})
        text = (tmp_path / "summary.json").read_text()
    assert json.loads(text) == {"a": None, "b": [1.0, None], "c": {"d": None, "3": [None]}}
    assert "NaN" not in text and "Infinity" not in text


# Locks.

HOLD = """
import filelock, sys, time
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
time.sleep(99)
"""


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with recorder(tmp_path):  # a record that must not be overwritten
        pass
    before = (tmp_path / "environment.json").read_bytes()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / ".lock"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RecordError, match="Another process is writing"):
            recorder(tmp_path).__enter__()
        assert (tmp_path / "environment.json").read_bytes() == before
    finally:
        other.kill()
        other.communicate()
    with recorder(tmp_path):  # the lock ends with its process
        pass


def test_the_same_process_has_one_writer_too(tmp_path: Path) -> None:
    with recorder(tmp_path), pytest.raises(RecordError, match="Another process is writing"):
        recorder(tmp_path).__enter__()


def test_a_run_that_another_process_finished_is_not_overwritten(tmp_path: Path) -> None:
    with recorder(tmp_path) as first:
        state = first.state()
        first.finish({"status": "finished"})
    late = Recorder(tmp_path, "", [], resumed=state)
    with pytest.raises(RecordError, match="Another process has finished"):
        late.__enter__()
    assert Record(tmp_path).summary["status"] == "finished"
    with recorder(tmp_path, force=True):  # the lock is free
        pass


# Damaged files.


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"a": nul}'])
@pytest.mark.parametrize("name", ["summary.json", "environment.json"])
def test_damaged_json(name: str, content: bytes, tmp_path: Path) -> None:
    with recorder(tmp_path):
        pass
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordError, match=rf"{name} cannot be read: .+ Run it again with --force") as caught:
        getattr(Record(tmp_path), name.split(".")[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"nonsense"])
@pytest.mark.parametrize("name", ["curve.parquet", "arrivals.parquet", "weights.safetensors"])
def test_damaged_columns(name: str, content: bytes, tmp_path: Path) -> None:
    with recorder(tmp_path):
        pass
    (tmp_path / name).write_bytes(content)
    record = Record(tmp_path)
    with pytest.raises(RecordError, match=rf"{name} cannot be read"):
        record.weights() if name.startswith("weights") else getattr(record, name.split(".")[0])


def test_arrivals_without_a_required_column_cannot_be_read(tmp_path: Path) -> None:
    with recorder(tmp_path):
        pass
    pl.DataFrame({"time": [1.0]}).write_parquet(tmp_path / "arrivals.parquet")
    with pytest.raises(RecordError, match=r"arrivals.parquet cannot be read: the column decision"):
        _ = Record(tmp_path).arrivals


def test_columns_that_an_older_version_did_not_write_are_null(tmp_path: Path) -> None:
    with recorder(tmp_path):
        pass
    old = pl.DataFrame({"time": [1.0], "worker": [2], "decision": ["applied"]})
    old.write_parquet(tmp_path / "arrivals.parquet")
    (arrival,) = Record(tmp_path).arrivals.to_dicts()
    assert list(arrival) == list(ARRIVALS)
    assert arrival == dict.fromkeys(ARRIVALS) | {"time": 1.0, "worker": 2, "decision": "applied"}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"workers = ", b"workers = 1 2"])
def test_damaged_text(content: bytes, tmp_path: Path) -> None:
    with recorder(tmp_path):
        pass
    (tmp_path / "experiment.toml").write_bytes(content)
    with pytest.raises(RecordError, match=r"experiment.toml cannot be read"):
        _ = Record(tmp_path).settings


def test_a_run_whose_summary_is_damaged_is_run_again(tmp_path: Path) -> None:
    experiment = Experiment(**QUICK, updates=3)
    record = experiment.run(tmp_path, jobs=1)
    sha = record.summary["weights_sha256"]
    for content in ("{", "[]", "{}"):
        (record.path / "summary.json").write_text(content)
        assert experiment.run(tmp_path, jobs=1).summary["weights_sha256"] == sha


# Versions.


def test_a_cached_record_of_another_version_is_reused_with_a_warning(tmp_path: Path) -> None:
    experiment, messages = Experiment(**QUICK, updates=3), list[str]()
    record = experiment.run(tmp_path, jobs=1)
    environment = record.environment | {"versions": {"straggler": "0.0.1"}}
    (record.path / "environment.json").write_text(json.dumps(environment))
    with pytest.warns(StragglerVersionWarning, match=r"0\.0\.1"):
        experiment.run(tmp_path, jobs=1, report=messages.append)
    assert len(messages) == 1 and "cached" in messages[0] and "0.0.1" in messages[0]


def test_a_record_of_another_results_version_is_run_again(tmp_path: Path) -> None:
    experiment = Experiment(**QUICK, updates=3)
    record = experiment.run(tmp_path, jobs=1)
    assert record.results_version == RESULTS_VERSION == 1
    (record.path / "environment.json").write_text(json.dumps(record.environment | {"results_version": 99}))
    assert find_finished_record(record.path) is None
    assert experiment.run(tmp_path, jobs=1).results_version == RESULTS_VERSION


def test_a_record_without_a_results_version_counts_as_one(finished: Record, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished.path, tmp_path / "old"))
    environment = {key: value for key, value in finished.environment.items() if key != "results_version"}
    (folder / "environment.json").write_text(json.dumps(environment))
    assert find_finished_record(folder) is not None


# Access in Python.


def test_record_is_read_once_and_shown_in_notebooks(finished: Record, tmp_path: Path) -> None:
    record = Record(shutil.copytree(finished.path, tmp_path / "copy"))
    page = record._repr_html_()
    assert "<table>" in page and "<svg" in page and "test accuracy" in page
    curve = record.curve
    (record.path / "curve.parquet").unlink()
    assert record.curve is curve and record.summary is record.summary
    record.reload()
    assert record.curve.is_empty()


def test_importing_record_does_not_import_torch() -> None:
    program = (
        "import sys, straggler.record\n"
        "print(*{'torch', 'safetensors.torch', 'sklearn', 'matplotlib'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
