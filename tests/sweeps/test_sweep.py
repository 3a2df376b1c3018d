"""`straggler.sweep` and the command: tables, caching, custom objects, and sweeps that are killed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from straggler.cli.sweep import sweep as sweep_command
from straggler.config.registry import InputError
from straggler.record import Record
from straggler.running import watchdog
from straggler.sweeps.grid import expand_grid, plan_runs, read_grid_file
from straggler.sweeps.pool import LocalPool, run_and_summarise
from straggler.sweeps.summaries import read_summaries
from straggler.sweeps.sweep import SweepResult, sweep

TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}
SCRIPT = str(Path(sys.executable).with_name("straggler"))


def write_grid(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def run_here(folder: Path, grid: Any, **options: Any) -> SweepResult:
    places = {"out": folder / "runs", "results": folder / "results"}
    return sweep(grid, **places | {"cores": 1, "progress": False} | options)


@pytest.mark.slow
def test_a_sweep_returns_a_table_and_records_and_computes_nothing_twice(tmp_path: Path) -> None:
    grid = TINY | {"workers": [1, 2], "validation": 0.1}
    result = run_here(tmp_path, grid, seeds=3, target=5.0)
    assert result.failures == {} and len(result.records) == 6
    table = result.table
    assert table.columns == [
        *("workers", "test_accuracy", "low", "high", "seeds", "nc", "validation_accuracy"),
        *("mean_staleness", "seconds", "time_to_target", "reached"),
    ]
    assert table["workers"].to_list() == [1, 2] and table["seeds"].to_list() == [3, 3]
    assert (table["low"] < table["test_accuracy"]).all() and (table["test_accuracy"] < table["high"]).all()
    assert "<table" in result._repr_html_() and "6 runs" in repr(result)
    half = run_here(tmp_path, grid, seeds=3).table  # by default, a target that half of the runs reached
    assert half.is_empty() or "time_to_target" not in half.columns or half["reached"].sum() >= 3
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("summary.json")}
    again = run_here(tmp_path, grid, seeds=3, target=5.0)
    assert again.plan.missing == [] and again.table.equals(table)
    assert {path: path.stat().st_mtime_ns for path in files} == files


class Network(nn.Module):
    """A custom module."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, inputs: torch.Tensor) -> Any:
        """Return the outputs."""
        return self.layers(inputs)


@pytest.mark.slow
def test_custom_objects_are_carried_to_the_processes(tmp_path: Path) -> None:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    grid = {"dataset": (data, data), "model": [Network, Network(16)], "epochs": 1, "workers": 2}
    result = run_here(tmp_path, grid, cores=2)
    assert result.failures == {}
    assert result.table["model"].to_list() == ["Network", "Network #2"]
    assert len(result.records) == 2


@pytest.mark.slow
def test_a_script_needs_no_main_guard_and_its_classes_are_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import straggler\nfrom torch import nn\nfrom straggler.sweeps.sweep import sweep\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(784, 10))\n"
        "grid = {'dataset': 'digits', 'model': Net, 'epochs': 0.1, 'lr': [0.1, 0.2], 'eval_every': 0}\n"
        "result = sweep(grid, cores=2, progress=False)\nprint(result.table.height, result.failures)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "{}"], done.stderr


@pytest.mark.slow
def test_import_strings_in_a_file_are_followed_only_with_trust(tmp_path: Path) -> None:
    (tmp_path / "custom.py").write_text(
        "from typing import ClassVar\nfrom torch import nn\n"
        "from straggler.algorithms.policies import Asynchronous\n"
        "class Eager(Asynchronous):\n    name: ClassVar[str] = 'eager'\n    boost: float = 1.0\n"
        "def make(width=4):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Linear(width, 10))\n"
    )
    models, policy = (
        f'["{tmp_path}/custom.py:make(width=8)", "linear"]',
        f"{tmp_path}/custom.py:Eager(boost=2)",
    )
    text = f'dataset = "digits"\nmodel = {models}\npolicy = "{policy}"\nepochs = 0.1\nseeds = 2\n'
    file = write_grid(tmp_path, text)
    with pytest.raises(InputError, match="--trust"):
        run_here(tmp_path, file)
    result = run_here(tmp_path, file, trust=True)
    assert result.failures == {} and result.table["model"].to_list() == ["make(width=8)", "linear"]
    assert "custom.py:Eager(boost=2" in result.records[0].text


@pytest.mark.slow
def test_a_typo_in_one_entry_stops_the_sweep_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = write_grid(tmp_path, 'dataset = "digits"\nmodel = ["linear", "liner"]\n')
    command = [SCRIPT, "sweep", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "model = liner" in done.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_a_dry_run_counts_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_here(
        tmp_path, TINY | {"workers": [2, 3], "lr": [0.1, 0.2]}, seeds=2, dry_run=True, progress=True
    )
    assert re.search(r"8 runs, 2 seeds, 8 missing: about .* with 1 process", capsys.readouterr().err)
    assert result.table.is_empty() and result.records == [] and list(tmp_path.iterdir()) == []


def test_the_folder_of_the_records_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(InputError, match="is a file"):
        run_here(tmp_path, TINY)


def sweep_rows(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the rows of the table that the command prints."""
    capsys.readouterr()
    sweep_command(write_grid(folder, text), cores=1, results=folder / "results", runs=folder / "runs")
    table = re.split(r"─ *\n", capsys.readouterr().out)[-1].partition("Mean ±")[0]
    return [line.split() for line in table.splitlines() if line.strip()]


@pytest.mark.slow
def test_an_edited_file_prints_its_runs_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = 'dataset = "digits"\nmodel = "linear"\neval_every = 0\n'
    first = sweep_rows(tmp_path, start + "epochs = 0.1\nworkers = [1, 2]\nseeds = 3\n", capsys)
    assert [row[0] for row in first] == ["1", "2"]
    longer = sweep_rows(tmp_path, start + "epochs = 1\nworkers = [4, 2]\nseeds = 1\n", capsys)
    assert [row[0] for row in longer] == ["4", "2"], "in the order of the file"
    other = sweep_rows(tmp_path, start + "epochs = 0.1\nlr = [0.1, 0.2]\nworkers = 2\n", capsys)
    assert [row[0] for row in other] == ["0.1", "0.2"]
    assert read_summaries(tmp_path / "results").height == 6 + 2 + 2, "earlier rows stay"


@pytest.mark.slow
def test_without_an_accuracy_the_table_shows_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sweep_rows(tmp_path, 'dataset = "quadratic"\nupdates = 30\nlr = [0.1, 0.2]\nseeds = 2\n', capsys)
    assert [(row[0], row[-3]) for row in rows] == [("0.1", "2"), ("0.2", "2")]
    assert all(float(row[1]) > 0 for row in rows)


@pytest.mark.slow
def test_an_impossible_combination_is_reported_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'dataset = "digits"\nmodel = "linear"\nepochs = 0.1\nworkers = [2, 4]\n'
    text += 'policy = ["k-sync(k=3)", "synchronous"]'
    results = tmp_path / "results"
    with pytest.raises(SystemExit, match="1"):
        sweep_command(write_grid(tmp_path, text), cores=1, results=results, runs=tmp_path / "runs")
    printed = capsys.readouterr()
    assert "workers=2, policy=k-sync(k=3)" in printed.err
    assert len(read_summaries(results)) == 3 and "time (s)" in printed.out
    page = (results / "sweep.md").read_text()
    assert page.count("synchronous") == 2 and "95 % confidence interval" in page
    head, *lines = (results / "sweep.csv").read_text().splitlines()
    columns = "workers,policy,test_accuracy,low,high,seeds,nc,mean_staleness,seconds"
    assert head.startswith(columns) and len(lines) == 3
    accuracy = read_summaries(results).filter(policy="synchronous", workers=2)["test_accuracy"][0]
    assert lines[0].startswith(f"2,synchronous,{round(accuracy, 4)},,,1,")
    assert r"2 & synchronous & " in (results / "sweep.tex").read_text()


SWEEP = """
dataset = "digits"
model = "mlp(hidden=[64])"
workers = [2, 3]
epochs = 6
eval_every = 0
method = ["asgd", "ssgd"]
"""


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def find_descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    children = [int(child) for child in listed.stdout.split()]
    return children + [each for child in children for each in find_descendants(child)]


def wait_until(condition: Callable[[], bool], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_sweep_continues_to_the_same_summaries(tmp_path: Path) -> None:
    grid = SWEEP.replace("workers = [2, 3]", "workers = [2, 3, 4, 5]")  # so that it does not end too early
    file, runs = write_grid(tmp_path, grid), tmp_path / "runs"
    places = ["--runs", str(runs), "--results", str(tmp_path / "cut")]
    command = [SCRIPT, "sweep", str(file), "--cores", "1", *places]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(runs.glob("*/experiment.toml"))) >= 2)
    process.send_signal(signal.SIGSTOP)  # so that it starts no further run
    descendants = find_descendants(process.pid)
    process.kill()
    process.wait(timeout=60)
    wait_until(lambda: not any(map(is_running, descendants)))
    assert 0 < len(list(runs.glob("*/experiment.toml"))) < 8, "the sweep was killed too late"
    for place, name in ((runs, "cut"), (tmp_path / "other", "whole")):
        result = sweep(file, out=place, results=tmp_path / name, cores=1, progress=False)
        assert result.failures == {}
    cut, whole = (
        read_summaries(tmp_path / name).drop("host_seconds", "train_seconds", "started")
        for name in ("cut", "whole")
    )
    assert cut.equals(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "silence", "reason"),
    [
        (signal.SIGKILL, 60.0, "its process died (exit code -9)"),
        (signal.SIGSTOP, 8.0, "its process sent nothing for 8 s"),
    ],
)
def test_a_process_that_dies_or_hangs_fails_its_run_only(
    attack: int, silence: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.sweeps.pool.BEAT_SECONDS", 0.2)
    monkeypatch.setattr("straggler.sweeps.pool.SILENCE_SECONDS", silence)
    cells, seeds = expand_grid(read_grid_file(write_grid(tmp_path, SWEEP)))
    pool, ended, killed = LocalPool(1, tmp_path / "runs"), {}, ""
    for event in pool.run(plan_runs(cells, seeds)):
        if event.kind == "progress" and not killed:
            killed = event.run.id
            os.kill(pool.processes[0].pid, attack)
        elif event.kind != "progress":
            ended[event.run.id] = event
    assert len(ended) == 4
    failed = [event.content for event in ended.values() if event.kind == "failed"]
    assert failed == [reason] and ended[killed].kind == "failed"


HANGING = """
import time
from typing import ClassVar
from straggler.algorithms.policies import Asynchronous
from straggler.running import watchdog

watchdog.GRACE_SECONDS = -58.0  # the run counts as silent after 2 s

class Hanging(Asynchronous):
    name: ClassVar[str] = "hanging"

    def receive(self, server, arrival):
        while server.k == 3 and not any("in receive (" in line for line in watchdog.list_silences()):
            time.sleep(0.01)
        time.sleep(3.0 * (server.k == 3))  # until the pool has heard of it
        return super().receive(server, arrival)
"""


@pytest.mark.slow
def test_a_sweep_says_where_a_run_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", watchdog.GRACE_SECONDS)  # the file below changes it
    (tmp_path / "hanging.py").write_text(HANGING)
    policy = f"{tmp_path}/hanging.py:Hanging"
    runs = plan_runs(expand_grid(TINY | {"workers": 2, "policy": policy})[0], [0])
    events = list(LocalPool(1, tmp_path / "runs").run(runs))
    assert events[-1].kind == "done"
    lines = [event.content for event in events if event.kind == "silent"]
    assert any("2 s. It is in receive (hanging.py:" in line for line in lines)


@pytest.mark.slow
def test_an_interrupted_sweep_saves_its_runs(tmp_path: Path) -> None:
    cells, _ = expand_grid(read_grid_file(write_grid(tmp_path, SWEEP.replace("epochs = 6", "epochs = 600"))))
    events = LocalPool(1, tmp_path).run(plan_runs(cells[:1], [0]))
    run = next(event.run for event in events if event.content > 0)  # it trains
    events.close()  # as Ctrl-C does
    assert Record(tmp_path / run.id).summary["status"] == "interrupted"
    assert list((tmp_path / run.id).glob("checkpoint-*"))


@pytest.mark.slow
def test_real_time_runs_have_the_machine_to_themselves(tmp_path: Path) -> None:
    grid = {**TINY, "epochs": 100, "workers": 1, "engine": ["processes", "simulator"]}
    result = run_here(tmp_path, grid, cores=2)
    runs = sorted(result.plan.runs, key=lambda run: not run.is_real_time)
    assert result.failures == {}
    assert result.plan.seconds == pytest.approx(sum(run.seconds for run in runs))
    real_time, virtual = (
        [
            (tmp_path / "runs" / run.id / file).stat().st_mtime_ns
            for file in ("experiment.toml", "summary.json")
        ]
        for run in runs
    )
    assert virtual[1] < real_time[0] or real_time[1] < virtual[0]


@pytest.mark.slow
def test_runs_of_the_process_engine_ignore_the_address_of_a_cluster(tmp_path: Path) -> None:
    order = TINY | {"workers": 2, "engine": "processes", "gradients": 4, "epochs": None}
    (run,) = plan_runs(expand_grid(order)[0], [0])
    assert isinstance(run.order, dict)
    kind, found = run_and_summarise(
        lambda seen: None, run.id, run.order, (), tmp_path, None, address="10.0.0.1:6379"
    )
    assert kind == "done", found


def test_another_id_in_the_process_is_an_error(tmp_path: Path) -> None:
    kind, reason = run_and_summarise(lambda seen: None, "another", TINY, (), tmp_path, None)
    assert kind == "failed" and "instead of another" in str(reason)
    assert list(tmp_path.iterdir()) == []
