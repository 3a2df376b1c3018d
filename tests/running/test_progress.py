"""The progress bar of a run, in a terminal of 80 columns and without a terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from straggler.experiment import Experiment
from straggler.running import observer as observe
from straggler.running.observer import RunProgress
from straggler.running.progress import BARS, IDLE, format_details, format_sparkline

counts = st.integers(0, 10**7)


@given(st.lists(st.none() | counts, max_size=80))
def test_bars_rise_with_the_values(values: list[int | None]) -> None:
    line = format_sparkline(values)
    assert len(line) == len(values)
    heights = [None if bar == IDLE else BARS.index(bar) for bar in line]
    assert [height is None for height in heights] == [value is None for value in values]
    known = sorted((v, h) for v, h in zip(values, heights, strict=True) if v is not None and h is not None)
    assert [h for _, h in known] == sorted(h for _, h in known)
    assert all((v == 0) == (h == 0) for v, h in known)


@given(
    st.builds(
        RunProgress,
        spent=st.floats(0, 1),
        seconds=st.floats(0, 1e7),
        updates=counts,
        loss=st.floats(0, 1e4) | st.just(float("nan")),
        staleness=st.floats(0, 1e6),
        accuracy=st.none() | st.floats(0, 100),
        recent=st.lists(counts, min_size=1, max_size=60).map(tuple),
        behind=st.lists(st.none() | counts, min_size=1, max_size=64).map(tuple),
        busy=st.integers(0, 5000),
        workers=st.integers(5000, 10_000),
    )
)
@example(
    RunProgress(
        0.0, 0.0, 0, 1.0, 1e5, None, recent=(0,) * 24 + (10**7,), behind=(None,), busy=0, workers=5000
    )
)
def test_the_view_fits_80_columns(seen: RunProgress) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(*format_details(seen, 80), sep="\n")
    lines = captured.get().rstrip("\n").split("\n")
    assert len(lines) == 3 and max(map(len, lines)) <= 80
    assert "loss" in lines[0] and "staleness" in lines[1] and "workers" in lines[2]


def test_progress_shows_idle_workers_and_staleness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four workers is slow: under ssgd the other three wait for it, under asgd none does."""
    monkeypatch.setattr(observe, "PROGRESS_SECONDS", -1.0)  # after every arrival
    seen_by_method: dict[str, list[RunProgress]] = {"ssgd": [], "asgd": []}
    for method, seen in seen_by_method.items():
        experiment = Experiment(
            dataset="mixture", model="linear", workers=4, method=method, gradients=80, eval_every=0,
            compute="gamma(1, 0.1)", delay=["constant(5, workers=[0])"],
        )  # fmt: skip
        experiment.run(tmp_path, jobs=1, progress=seen.append)
        assert all(len(one.behind) == one.workers == 4 for one in seen)
        assert all(one.busy == sum(tau is not None for tau in one.behind) for one in seen)
    assert any(one.busy == 1 and one.behind[1:] == (None,) * 3 for one in seen_by_method["ssgd"])
    assert all(set(one.recent) == {0} for one in seen_by_method["ssgd"])
    assert all(one.busy == 4 for one in seen_by_method["asgd"])
    assert max(max(one.recent) for one in seen_by_method["asgd"]) > 10


@pytest.mark.slow
def test_a_run_in_a_terminal_of_80_columns(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "straggler", "run", "--dataset", "digits", "--model", "mlp"]
    command += ["--epochs", "20", "--jobs", "1", "--out", str(tmp_path)]
    environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait(150) == 0
    text = re.sub(r"\x1b\[[\d;]*m", "", shown.decode())
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "\n", text))
    for wanted in (
        r"asgd × 4 [━╸╺ ]+\s+\d+%",
        r"loss \d+\.\d+",
        r"staleness [▁-█]+",
        r"workers +[▁-█·]+",
    ):
        assert any(re.search(wanted, line) for line in lines), wanted
    assert max(map(len, lines)) <= 80
