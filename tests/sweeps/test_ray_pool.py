"""Sweeps on a Ray cluster: the bits of the local fleet, nodes that die, and what is left behind: nothing."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from straggler.cli.study import sweep
from straggler.config.registry import InputError
from straggler.problems.datasets import Digits, ImageDataSet
from straggler.problems.downloads.cache import load_published
from straggler.record import Record
from straggler.sweeps import ray_pool as ray_fleet
from straggler.sweeps.data_transfer import data_of, data_there
from straggler.sweeps.grid import PlannedRun, expand_grid, plan_runs
from straggler.sweeps.pool import RunEvent, run_and_summarise
from straggler.sweeps.ray_pool import RayPool, run_there
from straggler.sweeps.record_transfer import pack, unpack
from tiny_data import TINY as TINY_DATA
from tiny_data import Fake, same

TINY: dict[str, Any] = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}


def some(**settings: Any) -> list[PlannedRun]:
    return plan_runs(expand_grid(TINY | settings), [0])


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Cluster]:
    """With room for one run each; what the second leaves when it is killed is in a folder of its own."""
    ray.shutdown()
    head = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    (tmp_path / "killed").mkdir()
    made.add_node(num_cpus=1, env_vars={"TMPDIR": str(tmp_path / "killed")})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine starts nodes slowly
def test_a_node_that_dies_costs_its_own_run_only_which_is_run_again(
    two_nodes: Cluster, tmp_path: Path
) -> None:
    wanted = some(method=["asgd", "ssgd"], workers=[2, 3], epochs=30)
    fleet, told, begun = RayPool(two_nodes.address, None, tmp_path / "there"), list[RunEvent](), set[str]()
    assert fleet.jobs == 2
    for news in fleet.run(wanted):
        told.append(news)
        begun.add(news.task.id)
        if len(begun) == 2 and two_nodes.worker_nodes:
            two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
    reasons = [news.content for news in told if news.what == "again"]
    assert "PlannedRun failed because the node it was running on is dead or unavailable" in reasons
    done = {news.task.id: news.content for news in told if news.what == "done"}
    assert len(done) == 4
    for task in wanted:
        here = run_and_summarise(lambda seen: None, task.experiment.resolved(), tmp_path / "here", None, ())
        assert {**done[task.id], **TIMES} == {**here[1], **TIMES}  # type: ignore[dict-item]
        records = [Record(tmp_path / place / task.id) for place in ("here", "there")]
        assert len({record.summary["weights_sha256"] for record in records}) == 1
        assert records[0].arrivals.equals(records[1].arrivals)
        assert records[1].summary["record"] == str(records[1].path)
    assert not ray.is_initialized()


TIMES = {"host_seconds": 0.0, "train_seconds": 0.0}


@pytest.mark.slow
def test_a_run_that_kills_its_process_is_given_up_and_the_others_are_done_once(
    ray_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = some(lr=[0.1, 0.2])

    killer = bad.id

    def deadly(id: str, *rest: Any) -> Iterator[Any]:
        if id == killer:
            os._exit(1)
        from straggler.sweeps.ray_pool import run_there  # who dies need not wait for it

        yield from run_there(id, *rest)

    deadly.__module__ = "__main__"  # so that it travels as a whole
    monkeypatch.setattr(ray_fleet, "run_there", deadly)
    told = list(RayPool(None, 2, tmp_path).run([good, bad]))
    assert [news.what for news in told if news.task is bad] == ["again", "again", "failed"]
    (reason,) = [news.content for news in told if news.what == "failed"]
    assert reason == "given up after 3 tries: The worker died unexpectedly while executing this task"
    assert [news.task for news in told if news.what == "done"] == [good]
    assert [folder.name for folder in tmp_path.iterdir()] == [good.id]
    before = (tmp_path / good.id / "summary.json").stat().st_mtime_ns
    again = [news.what for news in RayPool(None, 2, tmp_path).run([good])]
    assert again[-1] == "done"
    assert (tmp_path / good.id / "summary.json").stat().st_mtime_ns == before


@pytest.mark.chaos  # seldom Ray ends the process before it has tidied up
@pytest.mark.slow
def test_a_sweep_that_is_interrupted_leaves_nothing_on_the_nodes(ray_here: None, tmp_path: Path) -> None:
    (task,) = some(epochs=1e6)
    told = RayPool(None, 1, tmp_path).run([task])
    while not left_of(task):
        assert next(told).what == "spent"
    told.close()  # as Ctrl-C does
    assert not left_of(task)
    assert not list(tmp_path.iterdir())


def left_of(task: PlannedRun) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"straggler-*/{task.id}"))


def test_who_is_no_longer_listened_to_stops_and_tidies_up() -> None:
    (task,) = some(epochs=1e6, lr=0.3)
    run = run_there(task.id, task.experiment.resolved(), None, (), sys.argv)
    assert next(run)[0] == "spent"
    run.close()  # type: ignore[attr-defined]
    assert not left_of(task)


def test_what_a_killed_process_left_is_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f"straggler-{dead.pid}-a", f"straggler-{os.getpid()}-b", "straggler-notes"):
        (tmp_path / name / "run").mkdir(parents=True)
    (task,) = some()
    assert list(run_there(task.id, task.experiment.resolved(), None, (), sys.argv))[-1][0] == "done"
    assert {folder.name for folder in tmp_path.iterdir()} == {f"straggler-{os.getpid()}-b", "straggler-notes"}


def test_a_node_with_another_version_is_told_apart() -> None:
    (task,) = some()
    ((what, reason),) = run_there("another", task.experiment.resolved(), None, (), sys.argv)
    assert what == "failed" and "same version" in reason


def test_an_error_of_a_run_comes_back_as_its_failure() -> None:
    (task,) = some(model="lenet5", dataset="mixture")
    *_, (what, reason) = run_there(task.id, task.experiment.resolved(), None, (), sys.argv)
    assert what == "failed" and "lenet5 takes" in reason


def test_a_record_arrives_whole_in_place_of_what_an_interrupted_run_left(tmp_path: Path) -> None:
    (task,) = some()
    record = task.experiment.run(tmp_path / "there", jobs=1)
    here = tmp_path / "here" / task.id
    here.mkdir(parents=True)
    (here / "checkpoint-000001.safetensors").touch()
    parcel = pack(record.path)
    with pytest.raises(OSError):
        unpack(parcel | {"a" * 300: b""}, here)  # no disk takes such a name
    assert [file.name for file in here.iterdir()] == ["checkpoint-000001.safetensors"]
    arrived = unpack(parcel, here)
    assert set(pack(arrived.path)) == set(parcel)
    assert arrived.arrivals.equals(record.arrivals)
    assert json.loads(parcel["summary.json"]) | {"record": str(here)} == arrived.summary
    assert [folder.name for folder in (tmp_path / "here").iterdir()] == [task.id]


class TinyImages(ImageDataSet):
    """A published data set that is quick to fetch."""

    published, sources, mean, std = TINY_DATA, (Fake(),), (0.0,), (1.0,)


def test_a_data_set_travels_to_a_machine_that_lacks_it_and_stays_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "here"))
    sent = data_of(TinyImages(), None)
    assert data_of(Digits(), None) is None
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "there"))
    named = data_there(TinyImages(), sent, tmp_path)
    assert named == tmp_path
    assert same(load_published(TINY_DATA, [], named))
    assert data_there(TinyImages(), sent, tmp_path) is None


def test_a_wrong_address_or_no_ray_at_all_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.shutdown()
    file = tmp_path / "sweep.toml"
    file.write_text('dataset = "digits"\nmodel = "linear"\n')
    places: dict[str, Any] = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
    with pytest.raises(InputError, match=r"--address 127\.0\.0\.1:1: .*refused"):
        sweep(file, on="ray", address="127.0.0.1:1", **places)
    with pytest.raises(InputError, match="add --on ray"):
        sweep(file, address="127.0.0.1:1", **places)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "straggler.engines.ray", raising=False)
    with pytest.raises(InputError, match=r"--on ray requires Ray: pip install 'straggler\[ray\]'"):
        sweep(file, on="ray", **places)
    assert list(tmp_path.iterdir()) == [file]
