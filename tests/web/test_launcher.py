"""Runs that a page started and that hang: the page says so, can end them, and the end of the server does."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from web_testing import wait_until

from straggler.experiment import Experiment
from straggler.record import Record
from straggler.web import launcher as module
from straggler.web.launcher import RunLauncher

pytestmark = pytest.mark.slow
SETTINGS: dict[str, Any] = {"dataset": "digits", "model": "linear", "gradients": 10**7}


def start_and_stop_process(launcher: RunLauncher) -> str:
    """Start a run, wait until it trains, and stop its process (SIGSTOP); return its id."""
    experiment = Experiment(**SETTINGS)
    assert launcher.start(experiment, SETTINGS)
    folder = launcher.runs / experiment.id

    def trains() -> bool:
        summary, began = folder / "summary.json", launcher._started[experiment.id].began
        is_new = summary.exists() and summary.stat().st_mtime > began
        return is_new and bool(Record(folder).summary.get("gradients"))

    wait_until(trains, "the run trains", 200)
    os.kill(launcher._started[experiment.id].process.pid, signal.SIGSTOP)
    return experiment.id


def test_a_silent_run_is_shown_and_continues_when_it_is_asked_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 1000.0)
    launcher = RunLauncher(tmp_path / "runs")
    try:
        name = start_and_stop_process(launcher)
        started = launcher._started[name]
        started.began = 0.0

        def is_silent() -> bool:
            os.utime(started.folder / "summary.json", (0, 0))
            return started.count_silent_seconds() >= 10

        wait_until(is_silent, "the run is silent")
        assert launcher.list_states()[name]["silent"] >= 10
        assert launcher.stop(name) and launcher.stop(name)  # a second click does not end it at once
        wait_until(lambda: not started.is_running, "the run saves and ends", 200)
        assert Record(started.folder).status == "interrupted"
        assert launcher.list_states()[name] == {
            "running": False,
            "error": "",
            "silent": 0,
            "can_be_ended": False,
        }
    finally:
        launcher.close()


def test_a_run_that_does_not_stop_is_ended_by_the_page_or_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal that continues a stopped process is left out, so that it never answers."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(module, "STOP_TIMEOUT", 1.0)
    monkeypatch.setattr(module.signal, "SIGCONT", signal.SIGWINCH)
    lines: list[str] = []
    launcher = RunLauncher(tmp_path / "runs", lines.append)
    try:
        name = start_and_stop_process(launcher)
        started = launcher._started[name]
        assert launcher.stop(name)
        assert launcher.list_states()[name]["can_be_ended"]
        assert launcher.stop(name) and not launcher.stop(name)
        assert "resume from its last checkpoint" in launcher.list_states()[name]["error"]
        assert Record(started.folder).status == "lost"
        start_and_stop_process(launcher)
    finally:
        launcher.close()
    assert lines == [
        f"The run {name} did not end within 1 s and was killed. "
        f"Resume it with: straggler resume {started.folder}"
    ]
