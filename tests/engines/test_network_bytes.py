"""The bytes that a run counts are the bytes that cross a network interface.

Two hosts (network_testing.py) are the nodes of a Ray cluster. The counters of the driver's network device and
those of the run are read at two arrivals.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from network_testing import Host, open_network, start_ray

HEADERS = 66  # bytes of each packet: Ethernet 14, IP 20, TCP 32
FIRST, LAST = 3, 23  # arrivals between which the counters are compared

DRIVER = """
import json, sys, time
from pathlib import Path
import ray
from straggler import Experiment, Server

out, address, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
marks = []

def read():
    counters = Path("/proc/net/dev").read_text().split("eth0:")[1].split()
    places = {"up": 0, "up_packets": 1, "down": 8, "down_packets": 9}
    return {name: int(counters[place]) for name, place in places.items()} | {"time": time.monotonic()}

def measured_receive(server, arrival):
    # Before the server counts the message and sends the next model.
    marks.append(read() | {"bytes_up": server.bytes_up, "bytes_down": server.bytes_down})
    return receive(server, arrival)

ray.init(address, log_to_driver=False, logging_level="error")
time.sleep(2)
idle = [read(), time.sleep(4), read()][::2]
receive, Server.receive = Server.receive, measured_receive
record = Experiment(**settings).run(out, address=address, worker_resources={"far": 1})
facts = {"idle": idle, "marks": marks, "summary": record.summary}
(out / "facts.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The head of a cluster of two hosts. Only the other host has the resource `far`."""
    with open_network(2, tmp_path_factory.mktemp("hosts")) as (one, other):
        start_ray([one, other], '--num-cpus=2 --resources={"far":2}')
        yield one


def measure(head: Host, folder: Path, **changes: Any) -> dict[str, float]:
    """Train on the far node; return carried ÷ counted bytes between two arrivals, up and down.

    Headers of packets are left out. They matter where many packets carry nothing but acknowledgements.
    """
    settings: dict[str, Any] = {"dataset": "digits", "model": "mlp(hidden=[2519])", "engine": "ray"}
    settings |= {"workers": 1, "batch_size": 8, "lr": 0.01, "train_metrics": "never", "gradients": LAST + 1}
    arguments = folder, f"{head.address}:6379", json.dumps(settings | changes)
    head.call(sys.executable, "-c", DRIVER, *arguments)
    facts = json.loads((folder / "facts.json").read_text())
    first, last = facts["marks"][FIRST], facts["marks"][LAST]
    quiet, busy = facts["idle"]
    ratios = {}
    for way in ("up", "down"):
        carried, packets = (last[key] - first[key] for key in (way, f"{way}_packets"))
        counted = last[f"bytes_{way}"] - first[f"bytes_{way}"]
        idle = (busy[way] - quiet[way]) / (busy["time"] - quiet["time"]) * (last["time"] - first["time"])
        ratios[way] = (carried - HEADERS * packets) / counted
        print(  # shown by pytest -s, and if the test fails
            f"{changes} {way}: counted {counted:,} bytes, carried {carried:,} in {packets:,} packets, "
            f"of which idle traffic about {idle:,.0f}; without headers {ratios[way]:.4f} of the count"
        )
    return ratios


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "channel",
    [
        pytest.param("exact", marks=pytest.mark.chaos),
        pytest.param("bf16(down=bf16)", marks=pytest.mark.chaos),
        pytest.param("top-k(share=0.01)", marks=pytest.mark.chaos),
    ],
)
def test_an_interface_carries_the_bytes_that_a_run_counts(channel: str, head: Host, tmp_path: Path) -> None:
    ratios = measure(head, tmp_path, channel=channel)
    assert ratios == pytest.approx({"up": 1, "down": 1}, abs=0.05)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(180)
def test_two_workers_of_a_node_fetch_a_model_once(head: Host, tmp_path: Path) -> None:
    """The run counts a model for each worker, but Ray's object store brings it to a node once."""
    ratios = measure(head, tmp_path, method="ssgd", workers=2)
    assert ratios == pytest.approx({"up": 1, "down": 0.5}, abs=0.05)
