"""Sweeps: grids, paired seeds, one run for identical cells, fail-soft, and going on after a kill."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from straggler.analysis.sweep_tables import SweepTable
from straggler.cli.study import sweep
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record, RecordError
from straggler.sweeps.display import format_duration
from straggler.sweeps.grid import Cell, PlannedRun, expand_grid, plan_runs, read_grid_file
from straggler.sweeps.pool import LocalPool, run_and_summarise
from straggler.sweeps.progress import SweepProgress
from straggler.sweeps.results import summarise_run
from straggler.sweeps.runner import plan_sweep, run_plan
from straggler.sweeps.status_file import ProgressFile
from straggler.sweeps.summaries import SummaryStore, read_summaries

TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}
QUIET = Console(quiet=True)
SCRIPT = str(Path(sys.executable).with_name("straggler"))


def sweep_file(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def results_of(folder: Path) -> pl.DataFrame:
    """What must not depend on when and where it was run."""
    return read_summaries(folder).drop("host_seconds", "train_seconds")


def test_a_list_means_alternatives() -> None:
    cells = expand_grid({"workers": [2, 4], "method": ["asgd", "ssgd", "ssp"], "lr": 0.1})
    assert len(cells) == 6
    assert cells[0].labels == {"workers": 2, "method": "asgd"}
    assert all(cell.settings["lr"] == 0.1 for cell in cells)


def test_a_list_of_delays_is_alternatives_too(tmp_path: Path) -> None:
    text = 'delay = ["constant(1)", ["constant(1)", "constant(2, workers=[0])"]]\nseeds = [0, 7]\n'
    cells, seeds = read_grid_file(sweep_file(tmp_path, text))
    assert seeds == [0, 7]
    assert [len(cell.experiment(0).delay) for cell in cells] == [1, 2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("worker = [2, 4]\n", "Did you mean 'workers'"),
        ("seed = [0, 1]\n", "write seeds"),
        ("seeds = 0\n", "give how many"),
        ("seeds = [1, 1]\n", "different"),
        ("lr = []\n", "at least one"),
        ("lr = [\n", "TOML"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_grid_file(sweep_file(tmp_path, text))


def test_seeds_are_the_same_for_every_cell_unless_it_has_its_own_number() -> None:
    cells = [
        Cell({"row": "a"}, TINY),
        Cell({"row": "b"}, TINY | {"lr": 0.2}),
        Cell({"row": "c"}, TINY | {"lr": 0.3}, seeds=1),
    ]
    found = [(str(task.cells[0].labels["row"]), task.seed) for task in plan_runs(cells, [0, 1])]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)]


def test_identical_cells_are_one_run_and_keep_what_either_asks_for() -> None:
    cells = [
        Cell({"row": "a"}, TINY | {"method": "asgd"}, measurements=("curve",)),
        Cell({"row": "b"}, TINY | {"policy": "asynchronous"}, measurements=("course",)),
    ]
    (task,) = plan_runs(cells, [0])
    assert [cell.labels["row"] for cell in task.cells] == ["a", "b"]
    assert task.measurements == ("curve", "course")


def test_each_seed_after_the_last_and_in_it_table_by_table_the_longest_first(tmp_path: Path) -> None:
    def cell(table: str, epochs: float) -> Cell:
        return Cell({"table": table, "row": str(epochs)}, TINY | {"epochs": epochs})

    cells = [cell("II", 1), cell("II", 3), cell("I", 2)]
    order = [(t.seed, str(t.cells[0].labels["row"])) for t in plan_sweep("x", cells, [0, 1], tmp_path).tasks]
    assert order == [(0, "3"), (0, "1"), (0, "2"), (1, "3"), (1, "1"), (1, "2")]


def test_rows_of_earlier_times_stay_until_the_cell_is_run_again(tmp_path: Path) -> None:
    one, two = (
        plan_runs([Cell({"row": row}, TINY | {"lr": lr})], [0])[0] for row, lr in (("a", 0.1), ("b", 0.2))
    )
    for task, accuracy in ((one, 1.0), (two, 2.0), (one, 3.0)):
        summaries = SummaryStore(tmp_path, ["row"])
        summaries.add(task, {"test_accuracy": accuracy})
        summaries.write()
    assert read_summaries(tmp_path).select("row", "value").rows() == [("a", 3.0), ("b", 2.0)]


def test_a_row_stands_for_its_own_experiment_and_for_what_is_kept_of_it(tmp_path: Path) -> None:
    def task(**settings: Any) -> PlannedRun:
        return plan_runs([Cell({"row": "a"}, TINY | settings)], [0])[0]

    summaries = SummaryStore(tmp_path, ["row"])
    summaries.add(task(), {"test_accuracy": 1.0})
    summaries.write()
    assert SummaryStore(tmp_path, ["row"]).hold(task())
    assert not SummaryStore(tmp_path, ["row"]).hold(task(lr=0.2))
    assert not SummaryStore(tmp_path, ["row"]).hold(plan_runs([Cell({"row": "b"}, TINY)], [0])[0])
    with_curve = plan_runs([Cell({"row": "a"}, TINY, measurements=("curve",))], [0])[0]
    assert not SummaryStore(tmp_path, ["row"]).hold(with_curve)
    summaries.add(with_curve, {"test_accuracy": 1.0, "curve": [{"epochs": 1.0}]})
    summaries.write()
    assert SummaryStore(tmp_path, ["row"]).hold(with_curve)


def swept(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The rows of the table that the command prints."""
    capsys.readouterr()
    sweep(sweep_file(folder, text), jobs=1, results=folder / "results", runs=folder / "runs")
    table = re.split(r"─ *\n", capsys.readouterr().out)[-1].partition("Means over seeds")[0]
    return [line.split() for line in table.splitlines() if line.strip()]


@pytest.mark.slow
def test_a_file_that_was_edited_prints_its_own_runs_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = 'dataset = "digits"\nmodel = "linear"\neval_every = 0\n'
    first = swept(tmp_path, start + "epochs = 0.1\nworkers = [1, 2]\nseeds = 3\n", capsys)
    assert [(row[0], row[-3]) for row in first] == [("1", "3"), ("2", "3")]
    longer = swept(tmp_path, start + "epochs = 1\nworkers = [4, 2]\nseeds = 1\n", capsys)
    assert [(row[0], row[-3]) for row in longer] == [("4", "1"), ("2", "1")], "in the order of the file"
    other = swept(tmp_path, start + "epochs = 0.1\nlr = [0.1, 0.2]\nworkers = 2\n", capsys)
    assert [row[0] for row in other] == ["0.1", "0.2"]
    assert read_summaries(tmp_path / "results").height == 6 + 2 + 2, "what was run is still known"


@pytest.mark.slow
def test_where_there_is_no_accuracy_a_sweep_shows_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = swept(tmp_path, 'dataset = "quadratic"\nupdates = 30\nlr = [0.1, 0.2]\nseeds = 2\n', capsys)
    assert [(row[0], row[-3]) for row in rows] == [("0.1", "2"), ("0.2", "2")]
    assert all(float(row[1]) > 0 for row in rows)


def test_records_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--runs .* it is a file"):
        sweep(sweep_file(tmp_path, "lr = [0.1, 0.2]\n"), runs=tmp_path / "file")


def test_time_left_follows_from_the_work_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found = plan_runs([Cell({}, TINY), Cell({}, TINY | {"lr": 0.2})], [0])
    for task in found:
        task.seconds = 10.0
    tally = SweepProgress(found)
    assert tally.left() is None
    now[0] = 10.0
    tally.spent(found[0], 0.5)
    assert tally.left() == pytest.approx(30.0)  # 5 of 20 took 10
    tally.succeed(found[0])
    assert tally.left() == pytest.approx(10.0)
    assert [format_duration(s) for s in (40, 720, 11160)] == ["40 s", "12 min", "3.1 h"]


def test_a_tally_is_told_in_plain_values() -> None:
    """Every run is done, failed or missing."""
    found = plan_runs([Cell({"row": "a"}, TINY), Cell({"row": "b"}, TINY | {"lr": 0.2})], [0, 1])
    for task in found:
        task.seconds = 10.0
    tally = SweepProgress(found, known=3)
    tally.spent(found[1], 0.5)
    tally.succeed(found[0])
    tally.fail(found[2], "no memory")
    facts = tally.facts()
    assert [facts[key] for key in ("runs", "done", "failed", "missing")] == [7, 4, 1, 2]
    assert facts["part"] == pytest.approx(5.5 / 7)
    assert facts["at_hand"] == [{"id": found[1].id, "what": "a, seed 1", "part": 0.5}]
    assert facts["failures"] == [{"id": found[2].id, "what": "b, seed 0", "reason": "no memory"}]


@pytest.mark.parametrize(
    ("error", "status"), [(None, "finished"), (KeyboardInterrupt, "interrupted"), (OSError, "failed")]
)
def test_the_last_word_on_a_sweep_says_how_it_ended(
    tmp_path: Path, error: type[BaseException] | None, status: str
) -> None:
    def said() -> str:
        return str(json.loads((tmp_path / "progress.json").read_text())["status"])

    def until_it_ends() -> None:
        with ProgressFile(tmp_path, SweepProgress([])):
            assert said() == "running"
            with pytest.raises(RecordError, match=r"Another process is writing .*--results"):
                ProgressFile(tmp_path, SweepProgress([])).__enter__()
            if error is not None:
                raise error

    with pytest.raises(error) if error else nullcontext():
        until_it_ends()
    assert said() == status


@pytest.mark.slow
def test_what_cannot_be_combined_does_not_stop_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named by its settings; the others run, and what came out is a page too."""
    text = 'dataset = "digits"\nmodel = "linear"\nepochs = 0.1\nworkers = [2, 4]\n'
    text += 'policy = ["k-sync(k=3)", "synchronous"]'
    where = {"jobs": 1, "results": tmp_path / "results", "runs": tmp_path / "runs"}
    with pytest.raises(SystemExit, match="1"):
        sweep(sweep_file(tmp_path, text), **where)
    said = capsys.readouterr()
    assert "workers=2, policy=k-sync(k=3) cannot be run: k-sync(k=3): only 2 workers" in said.err
    assert len(read_summaries(tmp_path / "results")) == 3 and "time (s)" in said.out
    page = (tmp_path / "results" / "sweep.md").read_text()
    assert page.count("synchronous") == 2 and "95 % interval" in page
    head, *lines = (tmp_path / "results" / "sweep.csv").read_text().splitlines()
    assert head == "workers,policy,test_accuracy,low,high,seeds,nc,mean_staleness,seconds" and len(lines) == 3
    accuracy = read_summaries(tmp_path / "results").filter(policy="synchronous", workers=2)["test_accuracy"][
        0
    ]
    assert lines[0].startswith(f"2,synchronous,{round(accuracy, 4)},,,1,")
    assert r"2 & synchronous & " in (tmp_path / "results" / "sweep.tex").read_text()
    with pytest.raises(InputError, match=r"workers=2, policy=k-sync\(k=3\): .*only 2 workers"):
        sweep(sweep_file(tmp_path, text.replace("[2, 4]", "[2]").replace(', "synchronous"]', "]")), **where)


def test_a_sweep_over_a_budget_shows_what_was_used_of_it(tmp_path: Path) -> None:
    """A run that is lost ends before its seconds do."""
    settings: dict[str, Any] = TINY | {"model": "mlp", "epochs": None, "seconds": 50, "lr": 1e25}
    (task,) = plan_runs([Cell({"seconds": 50.0}, settings)], [0])
    facts = summarise_run(task.experiment, task.experiment.run(tmp_path / "runs", jobs=1), (), None)
    summaries = SummaryStore(tmp_path, ["seconds"])
    summaries.add(task, facts)
    summaries.write()
    columns, rows = SweepTable(read_summaries(tmp_path), ["seconds"]).rows()
    assert dict(zip(columns, rows[0], strict=True))["time (s)"] == f"{facts['seconds']:,.1f}"
    assert facts["seconds"] < 50


def test_small_losses_are_told_apart_and_the_time_of_lost_runs_is_left_out() -> None:
    facts = {"value": None, "mean_staleness": 1.0, "source": None, "lr": 0.1}
    lost = facts | {"seed": 0, "test_loss": math.nan, "converged": False, "seconds": 1.0}
    good = [facts | {"seed": 1, "test_loss": 1.25e-12, "converged": True, "seconds": 9.0}]
    table = SweepTable(pl.DataFrame([lost, *good], infer_schema_length=None), ["lr"])
    assert table.rows()[1] == [["0.1", "1.25e-12 (1 of 2 NC)", "2", "1.00", "9.0"]]
    assert table.csv().splitlines()[1] == "0.1,1.25e-12,,,2,1,1.0,9.0"


@pytest.mark.slow
def test_runs_in_real_time_on_processes_need_no_cluster(tmp_path: Path) -> None:
    """A study that is spread over a cluster runs them here."""
    order = TINY | {"workers": 2, "engine": "processes", "gradients": 4, "epochs": None}
    what, found = run_and_summarise(lambda seen: None, order, tmp_path, None, (), address="10.0.0.1:6379")
    assert what == "done", found


def test_a_value_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """It would pass for another seed."""
    for key, value in (("epochs", 1), ("momentum", 0.0)):
        with pytest.raises(InputError, match=f"{key}: {value} is given twice"):
            read_grid_file(sweep_file(tmp_path, f"{key} = [{value}, 0.5, {value}]"))


@pytest.mark.parametrize(("method", "divided"), [("sa", 3.0), ("asgd", 1.0), ("ga", None)])
def test_by_how_much_gradients_are_divided(method: str, divided: float | None, tmp_path: Path) -> None:
    """Four equally fast workers: every gradient of the second half is three updates old."""
    settings: dict[str, Any] = TINY | {"workers": 4, "compute": "constant(1)", "epochs": 1}
    experiment = Experiment(**settings, method=method)
    record = experiment.run(tmp_path, jobs=1)
    found = summarise_run(experiment, record, ("divided-by",), None)["divided_by"]
    assert found == pytest.approx(divided) if divided else 1 < found < 100
    (record.path / "divided_by.json").write_text('{"divided_by": 7.0}')
    assert summarise_run(experiment, record, ("divided-by",), None)["divided_by"] == 7, (
        "it is not measured twice"
    )


@pytest.mark.slow
def test_a_sweep_keeps_going_past_a_bad_cell_and_does_nothing_twice(tmp_path: Path) -> None:
    bad = Cell({"row": "bad"}, TINY | {"model": "lenet5", "dataset": "mixture"})  # the shapes do not fit
    cells = [Cell({"row": "good"}, TINY, measurements=("curve", "course")), bad]
    found = plan_sweep("x", cells, [0, 1], tmp_path / "runs", jobs=1)
    assert len(found.missing) == 2  # what will fail costs no time
    failures = run_plan(found, tmp_path / "results", QUIET)
    assert set(failures) == {bad.experiment(seed).id for seed in (0, 1)}
    assert all("lenet5 takes" in reason for reason in failures.values())
    first = read_summaries(tmp_path / "results")
    assert first["row"].to_list() == ["good", "good"] and first["seed"].to_list() == [0, 1]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("summary.json")}
    again = plan_sweep("x", cells, [0, 1], tmp_path / "runs", jobs=1)
    assert again.missing == []
    run_plan(again, tmp_path / "results", QUIET)
    assert read_summaries(tmp_path / "results").equals(first)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    elsewhere = plan_sweep(
        "x", cells[:1], [0, 1, 2], tmp_path / "elsewhere", jobs=1, results=tmp_path / "results"
    )
    assert [task.seed for task in elsewhere.missing] == [2] and elsewhere.known == 2
    courses = pl.read_parquet(tmp_path / "results" / "courses.parquet")
    assert courses.group_by("id", "worker").len().height == 2 * 4


SWEEP = """
dataset = "digits"
model = "mlp(hidden=[64])"
workers = [2, 3]
epochs = 6
eval_every = 0
method = ["asgd", "ssgd"]
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_until(ready: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_sweep_that_is_killed_goes_on_to_the_same_summaries(tmp_path: Path) -> None:
    file, runs = sweep_file(tmp_path, SWEEP), tmp_path / "runs"
    command = [
        SCRIPT,
        "sweep",
        str(file),
        "--jobs",
        "1",
        "--runs",
        str(runs),
        "--results",
        str(tmp_path / "cut"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(runs.glob("*/experiment.toml"))) >= 2)
    told = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    process.kill()
    process.wait(timeout=60)
    wait_until(lambda: not any(alive(int(pid)) for pid in told.stdout.split()))  # nobody computes on unseen
    cells, seeds = read_grid_file(file)
    assert 0 < len(list(runs.glob("*/experiment.toml"))) < len(cells), "it was killed too late to tell"
    for place, name in ((runs, "cut"), (tmp_path / "other", "whole")):
        assert run_plan(plan_sweep("x", cells, seeds, place, jobs=1), tmp_path / name, QUIET) == {}
    assert results_of(tmp_path / "cut").equals(results_of(tmp_path / "whole"))


@pytest.mark.slow
def test_a_process_that_dies_costs_its_own_run_only(tmp_path: Path) -> None:
    cells, seeds = read_grid_file(sweep_file(tmp_path, SWEEP))
    fleet, found, killed = LocalPool(1, tmp_path / "runs"), {}, ""
    for news in fleet.run(plan_runs(cells, seeds)):
        if news.what == "spent" and not killed:
            killed = news.task.id
            os.kill(fleet._seats[0].process.pid, signal.SIGKILL)
        elif news.what != "spent":
            found[news.task.id] = news
    assert len(found) == 4
    assert [news.content for news in found.values() if news.what == "failed"] == [
        "its process died (exit code -9)"
    ]
    assert found[killed].what == "failed"


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_saves_what_runs(tmp_path: Path) -> None:
    cells, _ = read_grid_file(sweep_file(tmp_path, SWEEP.replace("epochs = 6", "epochs = 600")))
    told = LocalPool(1, tmp_path).run(plan_runs(cells[:1], [0]))
    task = next(news.task for news in told if news.content > 0)  # it trains
    told.close()  # as Ctrl-C does
    assert Record(tmp_path / task.id).summary["status"] == "interrupted"
    assert list((tmp_path / task.id).glob("checkpoint-*"))


@pytest.mark.slow
def test_what_measures_real_time_runs_alone(tmp_path: Path) -> None:
    settings = {**TINY, "epochs": 100, "workers": 1, "engine": ["processes", "simulator"]}
    found = plan_sweep("x", expand_grid(settings), [0], tmp_path / "runs", jobs=2)
    work = [task.seconds for task in found.tasks]
    assert found.seconds == pytest.approx(sum(work))
    assert run_plan(found, tmp_path / "results", QUIET) == {}
    real, virtual = (
        [
            (tmp_path / "runs" / task.id / file).stat().st_mtime_ns
            for file in ("experiment.toml", "summary.json")
        ]
        for task in sorted(found.tasks, key=lambda task: not task.in_real_time)
    )
    assert virtual[1] < real[0] or real[1] < virtual[0]


def test_a_dry_run_counts_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(sweep_file(tmp_path, SWEEP + "seeds = 2"), dry_run=True, runs=tmp_path / "runs")
    assert "8 runs, 2 seeds, 8 missing" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "runs").exists()


def test_the_settings_of_a_task_give_its_id_again() -> None:
    for cell in expand_grid({"method": ["asgd", "dana-ga", "hybrid"], "delay": ["constant(0.1)"]}):
        experiment = cell.experiment(3)
        assert Experiment(**experiment.resolved()).id == experiment.id
