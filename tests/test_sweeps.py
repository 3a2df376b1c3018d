"""Sweeps: grids, paired seeds, one run for identical cells, fail-soft, and going on after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from straggler.catalogue import InputError
from straggler.experiment import Experiment
from straggler.sweeps.cells import Cell, grid, read_sweep, tasks
from straggler.sweeps.conduct import conduct, plan
from straggler.sweeps.display import Display, duration
from straggler.sweeps.summaries import Summaries, known

TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}
QUIET = Console(quiet=True)
SCRIPT = str(Path(sys.executable).with_name("straggler"))


def sweep_file(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def results_of(folder: Path) -> pl.DataFrame:
    """What must not depend on when and where it was run."""
    return known(folder).drop("host_seconds", "train_seconds")


def test_a_list_means_alternatives() -> None:
    cells = grid({"workers": [2, 4], "method": ["asgd", "ssgd", "ssp"], "lr": 0.1})
    assert len(cells) == 6
    assert cells[0].labels == {"workers": 2, "method": "asgd"}
    assert all(cell.settings["lr"] == 0.1 for cell in cells)


def test_a_list_of_delays_is_alternatives_too(tmp_path: Path) -> None:
    text = 'delay = ["constant(1)", ["constant(1)", "constant(2, workers=[0])"]]\nseeds = [0, 7]\n'
    cells, seeds = read_sweep(sweep_file(tmp_path, text))
    assert seeds == [0, 7]
    assert [len(cell.experiment(0).delay) for cell in cells] == [1, 2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("worker = [2, 4]\n", "did you mean 'workers'"),
        ("seed = [0, 1]\n", "write seeds"),
        ("seeds = 0\n", "give how many"),
        ("seeds = [1, 1]\n", "different"),
        ("lr = []\n", "at least one"),
        ("lr = [\n", "TOML"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_sweep(sweep_file(tmp_path, text))


def test_seeds_are_the_same_for_every_cell_unless_it_has_its_own_number() -> None:
    cells = [
        Cell({"row": "a"}, TINY),
        Cell({"row": "b"}, TINY | {"lr": 0.2}),
        Cell({"row": "c"}, TINY | {"lr": 0.3}, seeds=1),
    ]
    found = [(str(task.cells[0].labels["row"]), task.seed) for task in tasks(cells, [0, 1])]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)]


def test_identical_cells_are_one_run_and_keep_what_either_asks_for() -> None:
    cells = [
        Cell({"row": "a"}, TINY | {"method": "asgd"}, keep=("curve",)),
        Cell({"row": "b"}, TINY | {"policy": "asynchronous"}, keep=("course",)),
    ]
    (task,) = tasks(cells, [0])
    assert [cell.labels["row"] for cell in task.cells] == ["a", "b"]
    assert task.keep == ("curve", "course")


def test_each_seed_after_the_last_and_in_it_table_by_table_the_longest_first(tmp_path: Path) -> None:
    def cell(table: str, epochs: float) -> Cell:
        return Cell({"table": table, "row": str(epochs)}, TINY | {"epochs": epochs})

    cells = [cell("II", 1), cell("II", 3), cell("I", 2)]
    order = [(t.seed, str(t.cells[0].labels["row"])) for t in plan("x", cells, [0, 1], tmp_path).tasks]
    assert order == [(0, "3"), (0, "1"), (0, "2"), (1, "3"), (1, "1"), (1, "2")]


def test_rows_of_earlier_times_stay_until_the_cell_is_run_again(tmp_path: Path) -> None:
    one, two = (
        tasks([Cell({"row": row}, TINY | {"lr": lr})], [0])[0] for row, lr in (("a", 0.1), ("b", 0.2))
    )
    for task, accuracy in ((one, 1.0), (two, 2.0), (one, 3.0)):
        summaries = Summaries(tmp_path, ["row"])
        summaries.add(task, {"test_accuracy": accuracy})
        summaries.write()
    assert known(tmp_path).select("row", "value").rows() == [("a", 3.0), ("b", 2.0)]


def test_time_left_follows_from_the_work_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found = tasks([Cell({}, TINY), Cell({}, TINY | {"lr": 0.2})], [0])
    for task in found:
        task.seconds = 10.0
    with Display(QUIET, "x", found) as display:
        assert display.left() is None
        now[0] = 10.0
        display.spent(found[0], 0.5)
        assert display.left() == pytest.approx(30.0)  # 5 of 20 took 10
        display.done(found[0])
        assert display.left() == pytest.approx(10.0)
    assert [duration(s) for s in (40, 720, 11160)] == ["40 s", "12 min", "3.1 h"]


@pytest.mark.slow
def test_a_sweep_keeps_going_past_a_bad_cell_and_does_nothing_twice(tmp_path: Path) -> None:
    bad = Cell({"row": "bad"}, TINY | {"model": "lenet5", "dataset": "mixture"})  # the shapes do not fit
    cells = [Cell({"row": "good"}, TINY, keep=("curve", "course")), bad]
    found = plan("x", cells, [0, 1], tmp_path / "runs", jobs=2)
    assert len(found.missing) == 2  # what will fail costs no time
    failures = conduct(found, tmp_path / "results", QUIET)
    assert set(failures) == {bad.experiment(seed).id for seed in (0, 1)}
    assert all("lenet5 takes" in reason for reason in failures.values())
    first = known(tmp_path / "results")
    assert first["row"].to_list() == ["good", "good"] and first["seed"].to_list() == [0, 1]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("summary.json")}
    again = plan("x", cells, [0, 1], tmp_path / "runs", jobs=2)
    assert again.missing == []
    conduct(again, tmp_path / "results", QUIET)
    assert known(tmp_path / "results").equals(first)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    courses = pl.read_parquet(tmp_path / "results" / "courses.parquet")
    assert courses.group_by("id", "worker").len().height == 2 * 4


SWEEP = """
dataset = "digits"
model = "mlp(hidden=[64])"
workers = [2, 3]
epochs = 6
eval_every = 0
method = ["asgd", "ssgd"]
seeds = 2
"""


def start(folder: Path, file: Path) -> "subprocess.Popen[str]":
    command = [SCRIPT, "sweep", str(file), "--jobs", "2"]
    places = ["--runs", str(folder / "runs"), "--results", str(folder / "results")]
    return subprocess.Popen(command + places, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def children(pid: int) -> list[int]:
    told = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in told.stdout.split()]


def wait_until(ready: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except (OSError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_stopped_goes_on_to_the_same_summaries(tmp_path: Path, how: signal.Signals) -> None:
    file = sweep_file(tmp_path, SWEEP)
    whole = start(tmp_path / "whole", file)
    output, _ = whole.communicate(timeout=120)
    assert whole.returncode == 0, output
    process = start(tmp_path / "cut", file)
    runs = tmp_path / "cut" / "runs"
    wait_until(lambda: len(list(runs.glob("*/experiment.toml"))) >= 3)
    helpers = children(process.pid)
    process.send_signal(how)
    process.wait(timeout=60)
    assert process.returncode == (-how if how == signal.SIGKILL else 130)
    wait_until(lambda: not any(map(alive, helpers)))  # nobody computes on behind our back
    again = start(tmp_path / "cut", file)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert results_of(tmp_path / "cut" / "results").equals(results_of(tmp_path / "whole" / "results"))


@pytest.mark.slow
def test_a_process_that_dies_costs_its_own_run_only(tmp_path: Path) -> None:
    file = sweep_file(tmp_path, SWEEP)
    process = start(tmp_path, file)
    wait_until(lambda: len(list((tmp_path / "runs").glob("*/experiment.toml"))) >= 2)
    workers = [
        pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(workers[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "its process died" in output and "1 runs failed" in output
    assert known(tmp_path / "results").height == 7


@pytest.mark.slow
def test_a_dry_run_counts_and_runs_nothing(tmp_path: Path) -> None:
    file = sweep_file(tmp_path, SWEEP)
    command = [
        sys.executable,
        "-m",
        "straggler",
        "sweep",
        str(file),
        "--dry-run",
        "--runs",
        str(tmp_path / "runs"),
    ]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0
    assert "8 runs, 2 seeds, 8 of them missing" in told.stdout
    assert not (tmp_path / "runs").exists()


def test_the_settings_of_a_task_give_its_id_again() -> None:
    for cell in grid({"method": ["asgd", "dana-ga", "hybrid"], "delay": ["constant(0.1)"]}):
        experiment = cell.experiment(3)
        assert Experiment(**experiment.resolved()).id == experiment.id
