"""Sweeps on a Ray cluster: the results of a local pool, nodes that die, and temporary files."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray
from ray.cluster_utils import Cluster
from torch import nn

from straggler.config.registry import InputError
from straggler.engines import ray_cluster
from straggler.experiment import Experiment
from straggler.problems.datasets import Digits, ImageDataSet
from straggler.problems.downloads.cache import load_published
from straggler.record import Record
from straggler.sweeps import ray_pool
from straggler.sweeps.grid import PlannedRun, expand_grid, plan_runs
from straggler.sweeps.pool import RunEvent, run_and_summarise
from straggler.sweeps.ray_pool import RayPool, is_alive, run_on_node
from straggler.sweeps.sweep import sweep
from straggler.sweeps.transfer import pack_dataset, pack_record, unpack_dataset, unpack_record
from tiny_data import TINY as TINY_DATA
from tiny_data import Fake, same

TINY: dict[str, Any] = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}


def plan_some(**settings: Any) -> list[PlannedRun]:
    return plan_runs(expand_grid(TINY | settings)[0], [0])


def run_as_on_node(run: PlannedRun, id: str | None = None) -> Iterator[Any]:
    return run_on_node(
        cloudpickle.dumps((run.portable_order, id or run.id, None, (), (), sys.argv, [])), None
    )


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with room for one run per node; the temporary folders of the second node are in `killed`."""
    ray.shutdown()
    head = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    (tmp_path / "killed").mkdir()
    made.add_node(num_cpus=1, env_vars={"TMPDIR": str(tmp_path / "killed")})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine starts nodes slowly
def test_the_run_of_a_node_that_dies_is_repeated(two_nodes: Cluster, tmp_path: Path) -> None:
    wanted = plan_some(method=["asgd", "ssgd"], workers=[2, 3], epochs=30)
    pool, events, begun = RayPool(two_nodes.address, None, tmp_path / "there"), list[RunEvent](), set[str]()
    assert pool.cores == 2
    for event in pool.run(wanted):
        events.append(event)
        begun.add(event.run.id)
        if len(begun) == 2 and two_nodes.worker_nodes:
            two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
    reasons = [event.content for event in events if event.kind == "repeated"]
    assert "Task failed because the node it was running on is dead or unavailable" in reasons
    done = {event.run.id: event.content for event in events if event.kind == "done"}
    assert len(done) == 4
    for run in wanted:
        here = run_and_summarise(lambda seen: None, run.id, run.portable_order, (), tmp_path / "here", None)
        assert {**done[run.id], **TIMES} == {**here[1], **TIMES}  # type: ignore[dict-item]
        records = [Record(tmp_path / place / run.id) for place in ("here", "there")]
        assert len({record.summary["weights_sha256"] for record in records}) == 1
        assert records[0].arrivals.equals(records[1].arrivals)
        assert records[1].summary["record"] == str(records[1].path)
    pool.close()
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_process_is_stopped_is_repeated(
    ray_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process sends nothing. It is killed, and its run finishes in another process."""
    monkeypatch.setattr(ray_cluster, "SILENCE_SECONDS", 8.0)
    (run,) = plan_some(epochs=30)
    pool, events, stopped = RayPool(None, 1, tmp_path), list[RunEvent](), list[int]()
    for event in pool.run([run]):
        events.append(event)
        places = [call.place for call in pool._calls._calls.values()]
        if not stopped and places and places[0] is not None:
            stopped.append(places[0][0])
            os.kill(stopped[0], signal.SIGSTOP)
    reasons = [event.content for event in events if event.kind == "repeated"]
    assert reasons[:1] == ["it sent nothing for 8 s, and its process was ended"]
    assert events[-1].kind == "done"
    end = time.monotonic() + 60
    while is_alive(stopped[0]):
        assert time.monotonic() < end, "the stopped process was not killed"
        time.sleep(0.1)


DEATH = "The worker died unexpectedly while executing this task"
TIMES = {"host_seconds": 0.0, "train_seconds": 0.0, "started": ""}


@pytest.mark.chaos
def test_a_run_that_kills_its_process_fails_after_three_tries(
    ray_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = plan_some(lr=[0.1, 0.2])

    killer = bad.id

    def deadly(packed: bytes, *rest: Any) -> Iterator[Any]:
        if killer.encode() in packed:
            os._exit(1)
        from straggler.sweeps.ray_pool import run_on_node

        yield from run_on_node(packed, *rest)

    deadly.__module__ = "__main__"  # so that Ray pickles it by value
    monkeypatch.setattr(ray_pool, "run_on_node", deadly)
    with closing(RayPool(None, 2, tmp_path)) as pool:
        events = list(pool.run([good, bad]))
    assert [event.kind for event in events if event.run is bad] == ["repeated", "repeated", "failed"]
    (reason,) = [event.content for event in events if event.kind == "failed"]
    assert reason == f"its process or node died 3 times: {DEATH}"
    assert [event.run for event in events if event.kind == "done"] == [good]
    assert [folder.name for folder in tmp_path.iterdir()] == [good.id]
    before = (tmp_path / good.id / "summary.json").stat().st_mtime_ns
    with closing(RayPool(None, 2, tmp_path)) as pool:
        again = [event.kind for event in pool.run([good])]
    assert again[-1] == "done"
    assert (tmp_path / good.id / "summary.json").stat().st_mtime_ns == before


@pytest.mark.chaos  # sometimes Ray kills the process before it has removed its folder
@pytest.mark.slow
def test_an_interrupted_sweep_leaves_nothing_on_the_nodes(ray_here: None, tmp_path: Path) -> None:
    (run,) = plan_some(epochs=1e6)
    events = RayPool(None, 1, tmp_path).run([run])
    while not find_temporary_folders(run):
        assert next(events).kind == "progress"
    events.close()  # as Ctrl-C does
    assert not find_temporary_folders(run)
    assert not list(tmp_path.iterdir())


def find_temporary_folders(run: PlannedRun) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"straggler-*/{run.id}"))


def test_a_cancelled_run_stops_and_removes_its_folder() -> None:
    (run,) = plan_some(epochs=1e6, lr=0.3)
    events = run_as_on_node(run)
    assert next(events)[0] == "progress"
    events.close()  # type: ignore[attr-defined]
    assert not find_temporary_folders(run)


def test_the_next_run_removes_the_folders_of_killed_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f"straggler-{dead.pid}-a", f"straggler-{os.getpid()}-b", "straggler-notes"):
        (tmp_path / name / "run").mkdir(parents=True)
    (run,) = plan_some()
    assert list(run_as_on_node(run))[-1][0] == "done"
    assert {folder.name for folder in tmp_path.iterdir()} == {f"straggler-{os.getpid()}-b", "straggler-notes"}


def test_a_node_with_another_version_is_an_error() -> None:
    (run,) = plan_some()
    *_, (kind, reason) = run_as_on_node(run, "another")
    assert kind == "failed" and "versions of straggler differ" in reason


def test_an_error_of_a_run_is_the_reason_of_its_failure() -> None:
    (run,) = plan_some(model="lenet5", dataset="mixture")
    *_, (kind, reason) = run_as_on_node(run)
    assert kind == "failed" and "lenet5" in reason


def test_a_record_replaces_an_interrupted_run_completely_or_not_at_all(tmp_path: Path) -> None:
    (run,) = plan_some()
    assert isinstance(run.experiment, Experiment)
    record = run.experiment.run(tmp_path / "there", jobs=1)
    here = tmp_path / "here" / run.id
    here.mkdir(parents=True)
    (here / "checkpoint-000001.safetensors").touch()
    packed = pack_record(record.path)
    with pytest.raises(OSError):
        unpack_record(packed | {"a" * 300: b""}, here, record.text)  # too long for a file name
    assert [file.name for file in here.iterdir()] == ["checkpoint-000001.safetensors"]
    arrived = unpack_record(packed, here, record.text)
    assert set(pack_record(arrived.path)) == set(packed)
    assert arrived.arrivals.equals(record.arrivals)
    assert json.loads(packed["summary.json"]) | {"record": str(here)} == arrived.summary
    assert [folder.name for folder in (tmp_path / "here").iterdir()] == [run.id]


class TinyImages(ImageDataSet):
    """A published data set that is quick to download."""

    published, sources, mean, std = TINY_DATA, (Fake(),), (0.0,), (1.0,)


def test_a_data_set_is_sent_to_a_machine_without_it_and_then_cached_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "here"))
    packed = pack_dataset(TinyImages(), None)
    assert pack_dataset(Digits(), None) is None
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "there"))
    folder = unpack_dataset(TinyImages(), packed, tmp_path)
    assert folder == tmp_path
    assert same(load_published(TINY_DATA, [], folder))
    assert unpack_dataset(TinyImages(), packed, tmp_path) is None


def test_a_wrong_address_or_a_missing_ray_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.shutdown()
    file = tmp_path / "sweep.toml"
    file.write_text('dataset = "digits"\nmodel = "linear"\n')
    places: dict[str, Any] = {"out": tmp_path / "runs", "results": tmp_path / "results"}
    with pytest.raises(InputError, match=r"--address 127\.0\.0\.1:1: .*refused"):
        sweep(file, on="ray", address="127.0.0.1:1", **places)
    with pytest.raises(InputError, match="requires --on ray"):
        sweep(file, address="127.0.0.1:1", **places)
    monkeypatch.setitem(sys.modules, "ray", None)
    for module in ("ray", "ray_cluster"):
        monkeypatch.delitem(sys.modules, f"straggler.engines.{module}", raising=False)
    with pytest.raises(InputError, match=r"--on ray requires Ray: pip install 'straggler\[ray\]'"):
        sweep(file, on="ray", **places)
    assert list(tmp_path.iterdir()) == [file]


CUSTOM = """
from typing import ClassVar
from torch import nn
from straggler.algorithms.policies import Asynchronous

class Eager(Asynchronous):
    name: ClassVar[str] = "eager"
    boost: float = 1.0

def make(width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Linear(width, 10))
"""


@pytest.mark.slow
def test_custom_objects_and_import_strings_work_on_ray(
    ray_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "custom.py").write_text(CUSTOM)
    monkeypatch.chdir(tmp_path)
    models = [nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), "./custom.py:make(width=8)"]
    grid = TINY | {"policy": "./custom.py:Eager(boost=2)", "model": models}
    result = sweep(grid, on="ray", cores=2, progress=False)
    assert result.failures == {} and result.table["model"].to_list() == ["Sequential", "make(width=8)"]
    assert "./custom.py:make(width=8)" in result.records[1].text


@pytest.mark.slow
def test_custom_code_is_sent_to_nodes_that_lack_its_file(two_nodes: Cluster, tmp_path: Path) -> None:
    (tmp_path / "custom.py").write_text(CUSTOM)
    names = {"policy": f"{tmp_path}/custom.py:Eager(boost=2)", "model": f"{tmp_path}/custom.py:make(width=8)"}
    (run,) = plan_some(**names)
    (tmp_path / "custom.py").unlink()
    with closing(RayPool(two_nodes.address, 1, tmp_path / "runs")) as pool:
        *_, event = pool.run([run])
    assert event.kind == "done", event.content
    record = Record(tmp_path / "runs" / run.id)
    assert record.summary["id"] == run.id and names["model"] in record.text
