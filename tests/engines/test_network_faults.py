"""Runs on a Ray cluster of three hosts (network_testing.py) whose network and processes fail.

Each run continues, or ends with one line, within a stated time. Its ledger and its replay are right, and
nothing is left behind.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from network_testing import Host, join_ray, kill_hard, open_network, start_ray, wait_until

from straggler.record import Record
from straggler.running.replay import replay

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(600)]
GCS = "gcs/gcs_server"
ACTORS = "ray::RayWorker"
PATIENCE = 200.0  # seconds for what takes a few on an idle machine
SETTINGS = "--engine ray --dataset digits --model mlp(hidden=[32]) --delay constant(seconds=0.05)"
LIMITS = "--eval-every 5 --worker-timeout 10 --checkpoint-every 5s"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    """Three hosts that can reach each other. Ray is not started."""
    with open_network(3, tmp_path) as hosts:
        yield hosts


class RunOnCluster:
    """A run on a cluster whose head is the first host, started with the command line."""

    def __init__(self, hosts: list[Host], driver: int = 0, settings: str = "", seconds: int = 30) -> None:
        self.hosts, self.out = hosts, hosts[0].folder.parent / "runs"
        self.address = f"{hosts[0].address}:6379"
        words = f"run {SETTINGS} {LIMITS} --seconds {seconds} {settings or '--workers 3'}".split()
        self.start(driver, *words)
        self.wait_for_progress()

    def start(self, driver: int, *words: object) -> None:
        """Start a command that trains."""
        ends = "--address", self.address, "--json"
        out = ("--out", self.out) if words[0] == "run" else ()
        self.errors = self.out.with_name("errors.txt")
        with self.errors.open("w") as file:
            self.process = self.hosts[driver].straggler(*words, *ends, *out, stderr=file)

    @property
    def folder(self) -> Path:
        (folder,) = self.out.glob("*/")
        return folder

    @property
    def gradients(self) -> int:
        """The number of gradients so far."""
        for summary in self.out.glob("*/summary.json"):
            return int(json.loads(summary.read_text()).get("gradients") or 0)
        return 0

    def wait_for_progress(self, seconds: float = PATIENCE) -> None:
        """Wait until the run has 30 more gradients."""
        before, end = self.gradients, time.monotonic() + seconds
        while self.gradients < before + 30:
            assert self.process.poll() is None and time.monotonic() < end, self.errors.read_text()
            time.sleep(0.1)

    def wait(self, seconds: float) -> tuple[int, str, str]:
        """Wait until the command ends; return its exit code and its output."""
        output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, output, self.errors.read_text()

    def check_end(self, seconds: float = PATIENCE) -> Record:
        """Check that the run ends well within some seconds, and that its record is right."""
        code, output, errors = self.wait(seconds)
        assert code == 0, errors
        assert "Traceback" not in errors
        record = Record(json.loads(output.splitlines()[-1])["record"])
        facts: Any = record.summary
        assert facts["status"] == "finished"
        ended = facts["applied"] + facts["dropped"] + facts["cancelled"] + facts["in_flight"]
        assert facts["dispatched"] == ended
        assert facts["restarts"] == len(record.events)
        assert replay(record).matches
        on = [host for host in self.hosts if host.first.poll() is None]
        wait_until(lambda: not any(host.find_processes(ACTORS) for host in on), PATIENCE, "the actors end")
        return record


def find_error(text: str) -> str:
    """Return the error that a command printed; it is one line, and there is no traceback."""
    assert "Traceback" not in text, text
    (line,) = [line for line in text.splitlines() if line.startswith("error:")]
    return line


def restart_control_store(head: Host) -> Callable[[], object]:
    """Kill the control store; return a function that starts it again, as a container platform does."""
    (pid,) = head.find_processes(GCS)
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    kill_hard(head, GCS)
    return lambda: head.start(*words, env=environment)


@pytest.mark.parametrize("driver", [0, 1])
def test_latency_and_loss(driver: int, hosts: list[Host]) -> None:
    start_ray(hosts)
    for host in hosts:
        host.cable.latency, host.cable.loss = 0.02, 0.005  # 80 ms and 2 % there and back
    run = RunOnCluster(hosts, driver)
    record = run.check_end(30 + PATIENCE)
    assert record.jobs["compute"].count() > 30


@pytest.mark.parametrize(("driver", "victim"), [(0, 2), (1, 0), (1, 1)])
def test_a_cable_is_cut_for_15_seconds(driver: int, victim: int, hosts: list[Host]) -> None:
    """The cable of a worker's host, of the head, and of the driver's host."""
    start_ray(hosts)
    run = RunOnCluster(hosts, driver, seconds=60)
    hosts[victim].cable.is_cut = True
    time.sleep(15)
    hosts[victim].cable.is_cut = False
    run.wait_for_progress()
    run.check_end(60 + PATIENCE)


@pytest.mark.parametrize("method", ["--method asgd --workers 3", "--method ssgd --workers 2-3"])
def test_a_host_dies_and_another_takes_its_place(method: str, hosts: list[Host]) -> None:
    start_ray(hosts)
    run = RunOnCluster(hosts, settings=method, seconds=120)
    hosts[2].cable.is_cut = True  # no process of the host can say goodbye
    wait_until(lambda: bool(Record(run.folder).events), PATIENCE, "the loss is noticed")
    run.wait_for_progress()
    hosts[2].call("ray", "stop", "--force")
    hosts[2].cable.is_cut = False
    join_ray(hosts[2], run.address)
    wait_until(lambda: bool(hosts[2].find_processes(ACTORS)), PATIENCE, "the worker joins again")
    run.wait_for_progress()
    record = run.check_end(120 + PATIENCE)
    assert record.summary["restarts"] >= 1


def test_the_control_store_is_gone_for_30_seconds(hosts: list[Host]) -> None:
    """A control store that keeps its tables on disk can be started again."""
    storage = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(hosts[0].folder / "tables")}
    hosts[0].environment |= storage
    start_ray(hosts)
    run = RunOnCluster(hosts, driver=1, seconds=75)
    start_again = restart_control_store(hosts[0])
    run.wait_for_progress(20)
    time.sleep(25)
    start_again()
    run.wait_for_progress(20)
    record = run.check_end(75 + PATIENCE)
    assert record.summary["seconds"] > 60


def test_the_control_store_is_stopped_for_30_seconds(hosts: list[Host]) -> None:
    start_ray(hosts)
    run = RunOnCluster(hosts, driver=1, seconds=60)
    hosts[0].signal(GCS, signal.SIGSTOP)
    time.sleep(30)
    run.wait_for_progress(20)
    hosts[0].signal(GCS, signal.SIGCONT)
    run.check_end(60 + PATIENCE)


@pytest.mark.parametrize("fault", ["killed", "killed with a worker", "cut off"])
def test_the_control_store_is_gone_for_good(fault: str, hosts: list[Host]) -> None:
    """The run ends with one line before Ray ends the process, and resumes on the next cluster."""
    start_ray(hosts)
    run = RunOnCluster(hosts, driver=1, seconds=100)
    began = time.monotonic()
    if fault == "cut off":
        hosts[0].cable.is_cut = True
    else:
        kill_hard(hosts[0], GCS)
    if fault == "killed with a worker":  # it cannot be replaced
        time.sleep(10)
        kill_hard(hosts[2], ACTORS)
    code, _, errors = run.wait(60 + 15)
    assert time.monotonic() - began < 60 + 10
    assert code == 75
    assert re.search(r"control store at 10\.0\.0\.1:6379 .*resume", find_error(errors))
    assert Record(run.folder).status == "failed"
    hosts[0].cable.is_cut = False
    for host in hosts:
        host.call("ray", "stop", "--force")
    start_ray(hosts)
    run.start(2, "resume", run.folder)
    run.check_end(100 + PATIENCE)


def test_a_supervised_run_continues_on_the_next_cluster(hosts: list[Host]) -> None:
    start_ray(hosts)
    run = RunOnCluster(hosts, driver=1, settings="--workers 3 --supervise", seconds=90)
    kill_hard(hosts[0], GCS)
    wait_until(lambda: "supervisor: " in run.errors.read_text(), 60 + 10, "the supervisor notices it")
    time.sleep(10)  # in which the run cannot join a cluster
    for host in hosts:
        host.call("ray", "stop", "--force")
    start_ray(hosts)
    run.check_end(90 + 2 * PATIENCE)


def test_the_machine_of_the_driver_is_lost(hosts: list[Host]) -> None:
    """Readers see that the run is lost, and another machine resumes it."""
    start_ray(hosts)
    run = RunOnCluster(hosts, driver=2)
    hosts[2].switch_off()
    run.wait(30)
    wait_until(lambda: Record(run.folder).status == "lost", PATIENCE, "readers see that the run is lost")
    wait_until(lambda: not hosts[1].find_processes(ACTORS), PATIENCE, "Ray ends the lost run's workers")
    run.start(1, "resume", run.folder, "--worker-resources", "CPU=0.5")
    run.check_end(30 + PATIENCE)


def test_a_sweep_ends_when_the_control_store_is_gone(hosts: list[Host]) -> None:
    """Finished runs are cached, so the sweep continues on the next cluster."""
    address = start_ray(hosts)
    grid = hosts[1].folder / "grid.toml"
    grid.write_text('seeds = 1\nworkers = 2\ndataset = "digits"\nmodel = "mlp"\nepochs = [1, 500]\n')
    finished = hosts[1].folder / "runs"
    words = "sweep", grid, "--on", "ray", "--address", address, "--runs", finished
    sweep = hosts[1].straggler(*words, stderr=subprocess.PIPE)
    wait_until(
        lambda: bool(list(hosts[1].folder.glob("runs/*/weights.safetensors"))), PATIENCE, "the first run"
    )
    kill_hard(hosts[0], GCS)
    _, errors = sweep.communicate(timeout=60 + 15)
    assert sweep.returncode == 75
    assert "control store" in find_error(errors)


def test_hosts_leave_nothing_behind(tmp_path: Path) -> None:
    """The processes, devices and shared memory of the hosts are gone when the network is closed."""
    with open_network(3, tmp_path) as hosts:
        start_ray(hosts)
        processes = [pid for host in hosts for pid in host.find_processes("")]
        assert len(processes) > 10
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 20, "all processes end")
    assert not list(Path("/sys/class/net").glob(f"sg{os.getpid()}*"))
