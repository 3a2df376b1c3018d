"""The Ray engine: lost nodes, transfer of models and data, and refused clusters."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from test_engines import REAL, UntilHarmed

from straggler.algorithms.work import gradient_program
from straggler.config.registry import InputError
from straggler.core import Job
from straggler.engines import ray as ray_module
from straggler.engines.pool.shared_memory import pack_buffers, unpack_buffers
from straggler.engines.ray import RayEngine
from straggler.engines.ray_cluster import (
    RECONNECT_SETTING,
    ClusterLostError,
    ControlStoreWatch,
    RayConnection,
    check_room,
)
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.replay import replay
from straggler.timing import Durations
from straggler.timing.laws import Constant

ON_RAY: dict[str, Any] = REAL | {"engine": "ray"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes with room for one worker each."""
    ray.shutdown()
    head = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    for _ in range(2):
        made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


def wait_for(true: Callable[[], bool], over: threading.Event) -> None:
    while not true() and not over.wait(0.05):
        pass


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine starts nodes slowly
@pytest.mark.parametrize(
    ("method", "workers", "channel"),
    [
        ("asgd", 3, "exact"),
        pytest.param("ssgd", (2, 3), "exact", marks=pytest.mark.chaos),
        pytest.param("asgd", 3, "top-k(0.1)", marks=pytest.mark.chaos),
    ],
)
def test_a_run_survives_the_loss_of_a_node(
    method: str, workers: Any, channel: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other workers continue while the lost worker has no node; it joins again when there is one.

    Synchronous ones too, if two of three are enough: the lost worker has left, and joins again. So does a
    worker whose memory was on the lost node.
    """
    made: list[RayEngine] = []
    seen: dict[str, Any] = {}
    over = UntilHarmed.over = threading.Event()
    UntilHarmed.least = 0
    wait = RayEngine._wait_until_ready

    def remember(self: RayEngine) -> None:
        made.append(self)
        wait(self)

    def drama() -> None:
        wait_for(lambda: bool(made) and all(made[0].launches.get(worker, 0) > 5 for worker in range(3)), over)
        engine = made[0]
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        wait_for(lambda: engine.restarts > 0 and not all(map(engine._is_ready, range(3))), over)
        lost = next(worker for worker in range(3) if not engine._is_ready(worker))
        before = dict(engine.launches)
        wait_for(lambda: all(engine.launches[w] > before[w] + 20 for w in range(3) if w != lost), over)
        seen["had a place"] = engine._is_ready(lost)
        cluster.add_node(num_cpus=1)
        wait_for(lambda: engine.launches[lost] > before[lost] + 5, over)

    def act() -> None:
        try:
            drama()
        finally:
            over.set()

    monkeypatch.setattr(RayEngine, "_wait_until_ready", remember)
    monkeypatch.setattr(Experiment, "budget", lambda self, problem: UntilHarmed())
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        settings = ON_RAY | {"method": method, "workers": workers, "channel": channel, "updates": 10**9}
        record = Experiment(**settings).run(tmp_path, address=cluster.address, checkpoint_every="20")
    finally:
        over.set()
        thread.join(timeout=60)
        monkeypatch.undo()
    facts = record.summary
    assert seen["had a place"] is False
    assert facts["restarts"] == len(record.events) >= 1
    assert facts["dispatched"] == facts["applied"] + facts["cancelled"] + facts["in_flight"]
    decisions = set(record.history["decision"]) - {"applied", "held", "cancelled"}
    left = workers == (2, 3) or channel != "exact"
    assert decisions == ({"left", "joined"} if left else set())
    assert any("lost its memory" in event["what"] for event in record.events) == (channel != "exact")
    assert replay(record).matches
    assert not ray.is_initialized()  # the run closed its connection


def jobs(x: torch.Tensor, launch: int) -> list[Job]:
    return [Job(worker, launch, launch, 0, x, x[:0]) for worker in range(3)]


@pytest.mark.slow
def test_a_large_model_is_put_once_and_dropped_when_no_job_needs_it(
    ray_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Experiment(dataset="digits", model="mlp(hidden=[200])", workers=3).problem()
    x = problem.initial_model()[0]
    assert x.nbytes > ray_module.MAX_BYTES_IN_PIECES
    puts: list[int] = []
    put = ray.put
    with use_one_thread():
        engine = RayEngine(gradient_program(problem), Durations(Constant(seconds=1), [], 3, seed=0), 3)
        monkeypatch.setattr(ray, "put", lambda value: puts.append(1) or put(value))
        try:
            for launch, model in enumerate([x, x, x + 1]):
                for job in jobs(model, launch):
                    engine.submit(job)
                for _ in range(3):
                    arrival = engine.next()
                    assert arrival is not None
                    expected = problem.gradient(model, model[:0], arrival.worker, launch)
                    assert torch.equal(arrival.message.vector, expected.vector)
            assert len(puts) == 2
            assert [model is x for model, _ in engine._models] == [False]
        finally:
            engine.close()


def test_large_data_stays_outside_of_the_pickle_and_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", np.arange(1_000_000, dtype=np.int64))
    mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
    thing = {"mapped": mapped, "part": mapped[10:], "tensor": torch.ones(1_000_000), "none": np.empty(0)}
    payload, arrays = pack_buffers(thing)
    assert len(payload) < 10_000
    (tmp_path / "big.npy").unlink()  # another node does not have it
    again = unpack_buffers(payload, arrays)
    assert np.array_equal(again["mapped"], thing["mapped"]) and np.array_equal(again["part"], thing["part"])
    assert torch.equal(again["tensor"], thing["tensor"]) and len(again["none"]) == 0
    assert any(np.shares_memory(again["mapped"], array) for array in arrays)
    assert any(np.shares_memory(again["tensor"].numpy(), array) for array in arrays)


@pytest.mark.slow
def test_a_local_ray_listens_on_this_machine_only(ray_here: None) -> None:
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]  # type: ignore[no-untyped-call]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "needs", "said"),
    [
        (7, {"CPU": 1.0}, "room for 6"),
        (1, {"CPU": 1.0, "big": 1.0}, "room for 0"),
        (2, {"CPU": 4.0}, "room for 1"),
    ],
)
def test_workers_that_do_not_fit_are_refused(
    workers: int, needs: dict[str, float], said: str, ray_here: None
) -> None:
    with pytest.raises(InputError, match=f"{workers} workers of .*{said}.*--worker-resources"):
        check_room(workers, needs)


@pytest.mark.slow
def test_workers_that_fit_are_not_refused(ray_here: None) -> None:
    for workers, needs in ((6, {"CPU": 1.0}), (12, {"CPU": 0.5}), (1000, {"CPU": 0.0}), (20, {"CPU": 0.3})):
        check_room(workers, needs)


def test_an_address_that_does_not_answer_is_refused_quickly() -> None:
    ray.shutdown()
    before = time.monotonic()
    with pytest.raises(InputError, match=r"--address 127\.0\.0\.1:1: .*refused.*ray start --head"):
        RayConnection("127.0.0.1:1", 1, {"CPU": 1.0})
    assert time.monotonic() - before < 60  # Ray itself would try for minutes


def test_a_control_store_that_is_gone_is_noticed_before_ray_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RECONNECT_SETTING, "40")
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch = ControlStoreWatch(f"127.0.0.1:{server.getsockname()[1]}")
        assert watch.is_reachable()
        watch.check()
    assert not watch.is_reachable()
    watch.check()  # it may come back within 30 s
    watch._gone_since -= 30
    assert not watch.is_reachable()
    with pytest.raises(ClusterLostError, match=r"not answered for 30 s"):
        watch.check()


def test_a_record_is_not_deleted_if_the_cluster_cannot_be_reached(tmp_path: Path) -> None:
    ray.shutdown()
    experiment = Experiment(**ON_RAY)
    summary = tmp_path / experiment.id / "summary.json"
    summary.parent.mkdir()
    summary.write_text("{}")
    with pytest.raises(InputError, match=r"--address 127\.0\.0\.1:1"):
        experiment.run(tmp_path, force=True, address="127.0.0.1:1")
    assert summary.read_text() == "{}"


def test_without_ray_the_error_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "straggler.engines.ray")
    with pytest.raises(InputError, match=r"requires Ray: pip install 'straggler\[ray\]'"):
        Experiment(**ON_RAY).run(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_line_starts_and_stops_ray(tmp_path: Path) -> None:
    settings = "--dataset digits --model mlp(hidden=[16]) --workers 2 --gradients 30 --engine ray --json"
    more = ["--worker-resources", "CPU=0.5", "--out", str(tmp_path)]
    command = [
        sys.executable,
        "-c",
        "from straggler.cli import main; main()",
        "run",
        *settings.split(),
        *more,
    ]
    with tempfile.TemporaryDirectory(prefix="ray") as session:  # short, as sockets need
        where = os.environ | {"RAY_TMPDIR": session}
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=where)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        assert json.loads(line)["gradients"] == 30
        assert any(Path(session).iterdir())
        listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert not [process for process in listing.splitlines() if session in process]
