"""`straggler run --supervise`: a lost driver is restarted from its checkpoint; stop signals go through."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from straggler.record import Record
from straggler.running.replay import replay
from straggler.running.supervision import is_supervised

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SUPERVISED = [sys.executable, "-m", "straggler", "run", "--supervise"]
DIGITS = ["--dataset", "digits", "--model", "mlp", "--workers", "3", "--eval-every", "2"]


@contextmanager
def supervise(folder: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a supervised run whose messages go to the file `log`; kill it at the end."""
    with (folder / "log").open("wb") as output:
        command = [*SUPERVISED, *options, "--out", str(folder / "runs")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output)
    try:
        yield process
    finally:
        if process.poll() is None:
            driver = find_driver(process.pid)
            process.kill()
            process.wait()
            if driver is not None:
                os.kill(driver, signal.SIGKILL)


def find_driver(supervisor: int) -> int | None:
    """Return the process of the run that a supervisor started."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return int(children[0]) if children else None


def wait_for(happened: Callable[[], bool], process: "subprocess.Popen[bytes]", seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)


def count_saved(runs: Path) -> int:
    """Return the number of gradients in the newest checkpoint."""
    newest = sorted(runs.glob("*/checkpoint-*.safetensors"))
    return int(newest[-1].stem.split("-")[1]) if newest else 0


CHAOS = pytest.mark.chaos


@pytest.mark.parametrize(
    ("number", "timeout", "said"),
    [
        (signal.SIGKILL, 60, "killed (signal 9)"),
        pytest.param(signal.SIGSTOP, 6, "sent nothing for 6 s", marks=CHAOS),
    ],
)
def test_a_lost_driver_is_restarted_and_ctrl_c_saves(
    number: signal.Signals, timeout: int, said: str, tmp_path: Path
) -> None:
    options = ["--jobs", "1", "--gradients", "10000000", "--worker-timeout", str(timeout)]
    runs, log = tmp_path / "runs", tmp_path / "log"
    with supervise(tmp_path, *DIGITS, *options, "--checkpoint-every", "1s") as process:
        wait_for(lambda: count_saved(runs) > 0, process)
        driver, before = find_driver(process.pid), count_saved(runs)
        assert driver is not None
        os.kill(driver, number)
        wait_for(lambda: said in log.read_text(), process)
        wait_for(lambda: count_saved(runs) > before, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(200) == 130
    (record,) = map(Record, runs.iterdir())
    assert record.summary["status"] == "interrupted"
    text = log.read_text()
    assert "restart 1" in text and "Resuming from the checkpoint" in text


@CHAOS
@pytest.mark.parametrize("lost", ["driver", "node", "driver and node"])
def test_a_supervised_run_on_ray_survives_the_loss_of_its_driver_and_of_a_node(
    lost: str, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        options = f"--engine ray --address {cluster.address} --gradients 1500 --checkpoint-every 1s"
        options += " --delay constant(seconds=0.05) --worker-timeout 20"
        with supervise(tmp_path, *DIGITS, *options.split()) as process:
            wait_for(lambda: count_saved(tmp_path / "runs") > 0, process)
            driver, before = find_driver(process.pid), count_saved(tmp_path / "runs")
            if "driver" in lost:
                assert driver is not None
                os.kill(driver, signal.SIGKILL)
            if "node" in lost:
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            wait_for(lambda: count_saved(tmp_path / "runs") > before, process)
            assert process.wait(400) == 0, (tmp_path / "log").read_text()
    finally:
        cluster.shutdown()
    (record,) = map(Record, (tmp_path / "runs").iterdir())
    facts: Any = record.summary
    assert facts["status"] == "finished" and facts["gradients"] == 1500
    ended = facts["applied"] + facts["dropped"] + facts["cancelled"] + facts["in_flight"]
    assert facts["dispatched"] == ended
    assert ("restart 1" in (tmp_path / "log").read_text()) or lost == "node"
    assert replay(record).matches


@CHAOS
def test_a_run_that_is_always_lost_is_given_up(tmp_path: Path) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    (tmp_path / "deadly.py").write_text(code)
    with supervise(tmp_path, "--model", f"{tmp_path}/deadly.py:Net", "--max-failures", "1") as process:
        assert process.wait(120) == 128 + signal.SIGKILL
    text = (tmp_path / "log").read_text()
    assert text.count("restarting it") == 1 and "lost 2 times, so it is not restarted" in text


HANGING = """
import re
from typing import ClassVar
from straggler.algorithms.policies import Asynchronous

class Hanging(Asynchronous):
    name: ClassVar[str] = "hanging"

    def receive(self, server, arrival):
        while server.k == 3 and {condition}:
            pass
        return super().receive(server, arrival)
"""


@CHAOS
@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("True", "processed no event for 32 s. It is in receive (hanging.py:10)"),
        ("re.match('(a+)+$', 'a' * 60 + 'b')", "in receive"),  # this does not let other threads run
    ],
)
def test_custom_code_that_does_not_return_is_shown_and_given_up(
    condition: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING.format(condition=condition))
    options = ["--policy", f"{tmp_path}/hanging.py:Hanging", "--worker-timeout", "2", "--max-failures", "1"]
    with supervise(tmp_path, *DIGITS, *options, "--jobs", "1") as process:
        assert process.wait(400) == 128 + signal.SIGKILL
    text = (tmp_path / "log").read_text()
    assert said in text and "most recent call first" in text and "hanging.py" in text
    assert text.count("sent nothing for 2 s and was killed") == 2
    assert "lost 2 times, so it is not restarted" in text


def test_a_run_that_ends_with_an_error_is_not_restarted(tmp_path: Path) -> None:
    with supervise(tmp_path, "--workers", "0") as process:
        assert process.wait(200) == 2
    assert (tmp_path / "log").read_text().count("error:") == 1


@CHAOS
def test_a_run_stops_with_its_supervisor(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with supervise(tmp_path, *DIGITS, "--gradients", "10000000", "--jobs", "1") as process:
        wait_for(lambda: bool(list(runs.glob("*/arrivals.parts/*.parquet"))), process)
        process.kill()
        end = time.monotonic() + 200
        while not list(runs.glob("*/checkpoint-*.safetensors")):
            assert time.monotonic() < end
            time.sleep(0.1)


def test_only_commands_that_train_are_supervised() -> None:
    assert is_supervised(["run", "--supervise"]) and is_supervised(["resume", "x", "--supervise"])
    assert not is_supervised(["run"]) and not is_supervised([]) and not is_supervised(["show", "--supervise"])
