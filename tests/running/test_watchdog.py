"""The watchdog of a run: code of the driver that does not return is reported with its place."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import pytest

from straggler import Arrival, Server
from straggler.algorithms.policies import Asynchronous
from straggler.experiment import Experiment
from straggler.running import watchdog

LINES: list[str] = []


class Hanging(Asynchronous):
    """A policy that does not return until the watchdog has reported it, and this thread counts as silent."""

    name: ClassVar[str] = "hanging"

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        while server.k == 3 and not (any("in receive (" in line for line in LINES) and watchdog._silent):
            time.sleep(0.01)
        return super().receive(server, arrival)


@pytest.mark.parametrize("engine", ["simulator", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_policy_that_does_not_return_is_reported(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", -8.0)
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.2)
    LINES.clear()
    policy = Hanging()
    experiment = Experiment(dataset="quadratic", engine=engine, workers=2, gradients=20, policy=policy)
    record = experiment.run(tmp_path, jobs=1, report=LINES.append, worker_timeout=10)
    assert record.summary["gradients"] == 20
    (line,) = [line for line in LINES if "in receive (" in line]
    assert line.startswith("The run has processed no event for 2 s. It is in receive (test_watchdog.py:")
    assert ", called by receive (server.py:" in line
    assert not watchdog.list_silences() and not watchdog._events


def test_a_thread_that_makes_progress_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.01)
    lines: list[str] = []
    with watchdog.Watchdog(1.0 - watchdog.GRACE_SECONDS, lines.append):
        for _ in range(200):
            watchdog.note_progress()
            time.sleep(0.01)
    assert not lines
