"""The commands of docs/cluster.md work as printed, on the hosts of network_testing.py."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from network_testing import Host, open_network

from straggler.record import Record
from straggler.running.replay import replay

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(600)]
PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
SSH = """#!/bin/bash
# Stands in for SSH: the hosts share a disk, where each has a home.
exec env HOME="$(dirname "$0")/host${1##*.}/home" bash -c "$2"
"""
QUICKLY = {"--seconds 600": "--seconds 5 --dataset digits --model mlp", "--workers 2-8": "--workers 2-3"}


def find_blocks(heading: str = "") -> list[str]:
    """Return the blocks of commands below a heading, or of the steps at the beginning of the page."""
    sections = dict(re.findall(r"(?:^|\n)(?:## |# )(.*?)\n(.*?)(?=\n## |\Z)", PAGE, re.DOTALL))
    text = sections[heading] if heading else next(iter(sections.values()))
    return re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def execute(host: Host, commands: str, folder: Path) -> str:
    """Run the commands of a block on a host, in a shell in a folder, with short runs."""
    for printed, quick in QUICKLY.items():
        commands = commands.replace(printed, quick)
    return host.call("bash", "-ec", f"cd {folder}\n{commands}", timeout=300)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    """Three hosts, and a command `ssh` that reaches their homes."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    with open_network(3, tmp_path) as hosts:
        for host in hosts:
            host.environment["PATH"] = f"{tmp_path}:{host.environment['PATH']}"
        yield hosts


def test_the_steps_of_the_page(hosts: list[Host], tmp_path: Path) -> None:
    """A machine without the token cannot join; two workers share the token and the run."""
    _, token, start_head, join, run, _, stop = find_blocks()
    head, *others = hosts
    execute(head, token, tmp_path)
    execute(head, start_head, tmp_path)
    with pytest.raises(AssertionError, match=r"(?i)token"):
        execute(others[0], join.replace("export", "#"), tmp_path)
    for host in others:
        execute(host, join, tmp_path)
    for host in (others[1], head):
        execute(host, run, tmp_path / host.folder)
        (folder,) = (host.folder / "runs").glob("*/")
        record = Record(folder)
        assert record.summary["status"] == "finished"
        assert replay(record).matches
    (elastic,) = find_blocks("Workers that join and leave")
    execute(others[0], f"export RAY_AUTH_MODE=token\n{elastic}", others[0].folder)
    for host in hosts:
        execute(host, stop, tmp_path)
        assert not host.find_processes("raylet")


def test_ray_listens_on_the_ports_of_the_page_only(hosts: list[Host], tmp_path: Path) -> None:
    _, token, start_head, join, run, *_ = find_blocks()
    (fixed,) = find_blocks("Ports")
    options = fixed.split("6379", 1)[1]
    execute(hosts[0], token, tmp_path)
    execute(hosts[0], start_head.rstrip() + options, tmp_path)
    for host in hosts[1:]:
        execute(host, f"{join.splitlines()[0]}\n{fixed}", tmp_path)
    execute(hosts[1], run, hosts[1].folder)
    named = {6379, 10001} | {int(port) for port in re.findall(r"port=(\d+)", fixed)}
    for host in hosts:
        ports = set()
        for line in host.call("ss", "-Hltn").splitlines():
            address, _, port = line.split()[3].rpartition(":")
            if address not in ("127.0.0.1", "[::1]"):
                ports.add(int(port))
        assert not {port for port in ports - named if not 10002 <= port <= 10100}, ports
