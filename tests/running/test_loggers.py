"""Every logger writes what the curve has: the real libraries write to disk, and are read back."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from straggler import Callback, Experiment, Record
from straggler.config.registry import InputError
from straggler.running.loggers import (
    MLflowLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandbLogger,
    parse_logger,
)

pytestmark = pytest.mark.slow  # the libraries take seconds to import
SMALL: dict[str, Any] = {
    "dataset": "mixture(samples=400)",
    "model": "linear",
    "workers": 2,
    "epochs": 2,
    "metrics": ["perplexity", "top-k(k=2)"],
}
BLOCK = 32768  # bytes of a block in a .wandb file
Points = list[tuple[int, float]]


def run_logged(tmp_path: Path, logger: Callback) -> tuple[Record, dict[str, Points]]:
    """Run with a logger; return the record, and the points of two of its columns."""
    record = Experiment(**SMALL).run(tmp_path, jobs=1, callbacks=[logger])
    names = ("test_loss", "test_perplexity")
    return record, {name: list(record.curve.select("updates", name).iter_rows()) for name in names}


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record, expected = run_logged(tmp_path, TensorBoardLogger())
    events = EventAccumulator(str(record.path / "tensorboard")).Reload()
    for name, points in expected.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(step, pytest.approx(value)) for step, value in points]
    assert "test_top-k(k=2)" in events.Tags()["scalars"]


def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    record, expected = run_logged(tmp_path, MLflowLogger())
    client = MlflowClient((record.path / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("straggler")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    for name, points in expected.items():
        assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] == points
    assert run.data.params["workers"] == "2" and run.info.status == "FINISHED"
    assert "test_top-k_k_2_" in run.data.metrics


def read_log(content: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: LevelDB's log format after seven bytes."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if BLOCK - place % BLOCK < 7:  # too little room for a header
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    record, expected = run_logged(tmp_path, WandbLogger())
    (file,) = record.path.glob("wandb/wandb/offline-run-*/*.wandb")
    rows = list[dict[str, Any]]()
    for data in read_log(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        if entry.WhichOneof("record_type") == "history":
            items = entry.history.item
            rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    for name, points in expected.items():
        assert [(row["_step"], row[name]) for row in rows] == points


def test_trackio(tmp_path: Path) -> None:
    """In a process of its own, because Trackio chooses its folder when it is imported."""
    pytest.importorskip("gradio_client")
    pytest.importorskip("httpx")
    code = f"""
from straggler import Experiment
from straggler.running.loggers import TrackioLogger
record = Experiment(**{SMALL}).run("runs", jobs=1, callbacks=[TrackioLogger()])
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("straggler", record.path.name)
found = [(row["step"], row["test_loss"]) for row in rows]
assert found == list(record.curve.select("updates", "test_loss").iter_rows()), found
print(list((record.path / "trackio").glob("*.db")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "straggler.db" in done.stdout and done.stdout.count("\n") == 1


def test_a_logger_added_to_a_resumed_run_gets_the_earlier_evaluations(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Interrupt(Callback):
        arrival_every = 20

        def on_arrival(self, run: Any, arrival: Any) -> None:
            raise LookupError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        Experiment(**SMALL).run(tmp_path, jobs=1, callbacks=[Interrupt()])
    record, expected = run_logged(tmp_path, TensorBoardLogger())
    events = EventAccumulator(str(record.path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("test_loss")] == [s for s, _ in expected["test_loss"]]


def test_wrong_loggers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Did you mean 'tensorboard'"):
        parse_logger("tensorbord")
    with pytest.raises(InputError, match="unexpected keyword"):
        parse_logger("tensorboard(fold=1)")
    with pytest.raises(InputError, match="not a subclass"):
        parse_logger("pathlib:Path('x')")
    monkeypatch.setattr("straggler.running.loggers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'straggler\[trackio\]'"):
        TrackioLogger()
