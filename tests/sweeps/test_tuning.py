"""Tuning: trials depend on the settings only, the test set decides nothing, sweeps use the best values."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import straggler
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import PRUNED, Record, find_finished_record
from straggler.running.atomic_files import write_parquet_atomically
from straggler.sweeps.grid import Cell, PlannedRun, expand_grid, find_runnable_cells, read_grid_file
from straggler.sweeps.pool import LocalPool, RunEvent, run_and_summarise
from straggler.sweeps.runner import SweepPlan, plan_sweep
from straggler.sweeps.search import Search
from straggler.sweeps.search_report import build_search_figures, describe_choice, tabulate_trials
from straggler.sweeps.search_space import parse_values
from straggler.sweeps.sweep import SweepResult, sweep
from straggler.sweeps.tuning import Tuning, make_tuning

SCRIPT = str(Path(sys.executable).with_name("straggler"))
TINY = {
    "dataset": "mixture(samples=300)",
    "model": "linear",
    "workers": 2,
    "batch_size": 16,
    "epochs": 2,
    "eval_every": 0.5,
    "validation": 0.3,
}
LR = {"lr": parse_values("lr", "log(1e-4, 1)")}


class PoolHere(LocalPool):
    """Runs experiments in this process, in any order, and may stop after some of them as if it was killed."""

    def __init__(self, runs: Path, order: int | None = None, most: int = 1000) -> None:
        super().__init__(1, runs)
        self.order, self.most, self.computed = order, most, list[str]()

    def run(self, planned: Iterable[PlannedRun]) -> Generator[RunEvent]:
        waiting = list(planned)
        if self.order is not None:
            random.Random(self.order).shuffle(waiting)
        for run in waiting:
            if len(self.computed) >= self.most:
                raise KeyboardInterrupt
            if find_finished_record(self.runs / run.id) is None:
                self.computed.append(run.id)
            places = (run.measurements, self.runs, None, None, "cpu", run.callbacks)
            kind, content = run_and_summarise(lambda seen: None, run.id, run.order, *places)
            yield RunEvent(run, kind, content)  # type: ignore[arg-type]


def run_all(cells: list[Cell], pool: PoolHere, seeds: tuple[int, ...] = (0, 1)) -> SweepPlan:
    """Run a plan to its end, without writing summaries."""
    plan = plan_sweep("x", cells, seeds, pool, pool.runs / "none", key=["id"])
    failures: dict[str, str] = {}
    runs = plan.runs
    while runs:
        for event in pool.run(runs):
            if event.kind == "failed":
                failures[event.run.id] = event.content
        runs = plan.advance(failures)
    return plan


def tuned(settings: dict[str, Any] | None = None, space: Any = None, **options: Any) -> list[Cell]:
    """Return a cell with a tuning."""
    shorter = options.pop("shorter", None)
    return [Cell({}, TINY | (settings or {}), tuning=make_tuning(space or LR, shorter, None, **options))]


def trials_of(plan: SweepPlan) -> pl.DataFrame:
    return tabulate_trials(plan.searches).sort("trial")


OPTIONS: dict[str, dict[str, Any]] = {
    "tpe": {"trials": 6, "batch": 2},
    "random": {"trials": 5, "sampler": "random"},
    "pruned": {"trials": 8, "batch": 4, "prune": 40},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_order_of_the_runs_and_a_kill_do_not_change_the_trials(name: str, tmp_path: Path) -> None:
    whole = run_all(tuned(**OPTIONS[name]), PoolHere(tmp_path / "whole"))
    shuffled = run_all(tuned(**OPTIONS[name]), PoolHere(tmp_path / "shuffled", order=1))
    assert trials_of(shuffled).equals(trials_of(whole))

    computed = list[str]()
    for most in (3, 4, 1000):  # killed twice
        pool = PoolHere(tmp_path / "killed", order=most, most=most)
        with nullcontext() if most == 1000 else pytest.raises(KeyboardInterrupt):
            killed = run_all(tuned(**OPTIONS[name]), pool)
        computed += pool.computed
    assert trials_of(killed).equals(trials_of(whole))
    assert len(set(computed)) == len(computed), "a finished run was computed again"


def test_with_all_cores_the_trials_are_those_of_one(tmp_path: Path) -> None:
    results = [
        straggler.tune(
            TINY,
            {"lr": "log(1e-4, 1)"},
            trials=4,
            batch=2,
            seeds=1,
            cores=cores,
            progress=False,
            out=tmp_path / f"runs-{cores}",
            results=tmp_path / f"results-{cores}",
        )
        for cores in (1, 2)
    ]
    one, two = results
    assert one.failures == two.failures == {} and one.trials.equals(two.trials)
    assert one.best == two.best and one.table.equals(two.table)
    assert sorted(path.name for path in (tmp_path / "results-1").iterdir() if path.suffix) == [
        *("progress.json", "search.png", "summaries.parquet", "sweep.csv", "sweep.md", "sweep.tex"),
        "trials.csv",
    ]
    page = (tmp_path / "results-1" / "sweep.md").read_text()
    assert "not by the test set" in page and "![" in page
    assert "<table>" in one._repr_html_() and str(one.best["lr"]) in repr(one)


def test_the_test_set_decides_nothing(tmp_path: Path) -> None:
    pool = PoolHere(tmp_path)
    options = {"trials": 6, "batch": 2, "prune": 50}
    first = run_all(tuned(**options), pool)
    draw = random.Random(0)
    for folder in tmp_path.glob("*/summary.json"):  # other test results
        summary = json.loads(folder.read_text())
        summary |= {key: draw.uniform(0, 100) for key in summary if key.startswith("test_")}
        folder.write_text(json.dumps(summary))
        curve = Record(folder.parent).curve
        noise = [pl.Series(name, [draw.uniform(0, 100) for _ in range(len(curve))]) for name in curve.columns]
        changed = curve.with_columns(*(one for one in noise if one.name.startswith("test_")))
        write_parquet_atomically(folder.parent / "curve.parquet", changed)
    pool.computed.clear()
    again = run_all(tuned(**options), pool)
    assert trials_of(again).equals(trials_of(first))
    assert again.searches[0].best.values == first.searches[0].best.values  # type: ignore[union-attr]
    assert pool.computed == []


@pytest.fixture
def pruned(tmp_path: Path) -> tuple[SweepPlan, SweepPlan, Path]:
    """A tuning with and one without pruning; in a grid, both have the same trials."""
    space = {"lr": parse_values("lr", [0.3, 0.2, 0.1, 0.05, 0.02, 1e-3, 1e-4, 1e-5])}
    whole = run_all(tuned(space=space), PoolHere(tmp_path / "whole"))
    short = run_all(tuned(space=space, prune=40, batch=4), PoolHere(tmp_path / "short"))
    return whole, short, tmp_path


def test_pruning_changes_no_result_of_other_trials(pruned: tuple[SweepPlan, SweepPlan, Path]) -> None:
    whole, short, folder = pruned
    stopped = [trial for trial in short.searches[0].trials if trial.state == "stopped early"]
    assert 0 < len(stopped) < 5
    every = {str(trial.values): trial for trial in whole.searches[0].trials}
    for trial in short.searches[0].trials:
        full = every[str(trial.values)]
        for place, run in trial.runs.items():
            summary = full.runs[place].id == run.id and Record(folder / "whole" / run.id).summary
            assert summary and summary["status"] == "finished"
            if trial.state == "finished":
                found = Record(folder / "short" / run.id).summary
                assert found["weights_sha256"] == summary["weights_sha256"]
                assert trial.outcomes[place] == full.outcomes[place]
    assert whole.searches[0].best.values == short.searches[0].best.values  # type: ignore[union-attr]


def test_a_pruned_run_is_not_the_result_of_its_experiment(
    pruned: tuple[SweepPlan, SweepPlan, Path],
) -> None:
    _, short, folder = pruned
    stopped = next(trial for trial in short.searches[0].trials if trial.state == "stopped early")
    (run,) = [stopped.runs[place] for place, one in stopped.outcomes.items() if one.is_pruned]
    record = Record(folder / "short" / run.id)
    assert record.summary["stopped_by"] == PRUNED and record.summary["epochs"] < 2
    assert find_finished_record(record.path) is None
    assert isinstance(run.experiment, Experiment)
    whole = run.experiment.run(folder / "short", jobs=1)  # asked for the result, it runs to the end
    assert whole.summary["epochs"] >= 2
    expected = Record(folder / "whole" / run.id).summary
    assert whole.summary["weights_sha256"] == expected["weights_sha256"]


def test_whole_runs_of_another_sweep_are_judged_as_pruned_ones(
    pruned: tuple[SweepPlan, SweepPlan, Path],
) -> None:
    whole, short, folder = pruned
    pool = PoolHere(folder / "whole")
    space = whole.searches[0].space
    again = run_all(tuned(space=space, prune=40, batch=4), pool)
    assert trials_of(again).equals(trials_of(short))
    assert pool.computed == []


def test_an_edge_is_named_and_widened_on_request(tmp_path: Path) -> None:
    space = {"lr": parse_values("lr", [0.003, 0.01, 0.03])}
    pool = PoolHere(tmp_path)
    narrow = run_all(tuned(space=space), pool).searches[0]
    (edge,) = narrow.find_edges()
    assert (edge.key, edge.side) == ("lr", "upper")
    assert "lr = 0.03" in str(edge) and "[0.003, 0.01, 0.03, 0.09]" in str(edge)
    wide = run_all(tuned(space=space, widen=True), pool).searches[0]
    assert wide.widenings > 0 and len(wide.trials) == 3 + wide.widenings
    assert wide.best is not None and wide.best.values["lr"] > 0.03
    assert wide.widenings == 3 or not wide.find_edges()


def test_an_impossible_value_beyond_is_no_edge(tmp_path: Path) -> None:
    synchronous = {"method": "ssgd", "compute": "gamma(1, 0.3)", "epochs": None, "updates": 20}
    fewest = tuned(synchronous, {"workers": parse_values("workers", [1, 2])}, objective="seconds")
    (search,) = run_all(fewest, PoolHere(tmp_path)).searches
    assert search.best is not None and search.best.values == {"workers": 1}  # it waits for nobody
    assert search.space["workers"].find_edge(1) == "lower" and search.find_edges() == []
    space = {"nesterov": parse_values("nesterov", [False, True])}
    (search,) = run_all(tuned({"momentum": 0.5}, space), PoolHere(tmp_path)).searches
    assert search.find_edges() == []


def test_values_of_several_types_are_text_in_one_column(tmp_path: Path) -> None:
    space = {"batch_size": parse_values("batch_size", [16, "balanced(16)"])}
    plan = run_all(tuned(space=space), PoolHere(tmp_path), (0,))
    assert trials_of(plan)["batch_size"].to_list() == ["16", "balanced(16)"]
    assert isinstance(plan.all_runs[0].cells[0].labels["batch_size"], str)


def test_times_and_targets_are_objectives(tmp_path: Path) -> None:
    space = {"workers": parse_values("workers", [1, 4])}
    fastest = run_all(tuned(space=space, objective="seconds"), PoolHere(tmp_path)).searches[0]
    assert fastest.best is not None and fastest.best.values == {"workers": 4}
    goal = "time to validation_accuracy >= 101"
    never = run_all(tuned(space=space, objective=goal), PoolHere(tmp_path)).searches[0]
    assert [trial.result.score for trial in never.trials] == [float("inf")] * 2
    assert never.rank_trials()["high"].to_list() == [None, None]
    build_search_figures([never], None)


def test_a_trial_that_fails_is_not_chosen(tmp_path: Path) -> None:
    space = {"model": parse_values("model", ["lenet5", "linear"])}  # the shapes do not fit
    plan = run_all(tuned(space=space), PoolHere(tmp_path))
    states = {trial.values["model"]: trial.state for trial in plan.searches[0].trials}
    assert states == {"lenet5": "failed", "linear": "finished"}
    assert {run.id for run in plan.all_runs} == {Experiment(**TINY, seed=s).id for s in (0, 1)}
    nothing = run_all(tuned({"model": "lenet5"}), PoolHere(tmp_path))
    assert nothing.all_runs == [] and "no trial has finished" in describe_choice(nothing.searches)


GRID = {
    **TINY,
    "method": ["asgd", "ssgd"],
    "workers": [2, 4],
    "tune": {"lr": [0.01, 0.1], "per": ["method"], "epochs": 1, "seeds": 1},
}


def test_cells_of_a_search_share_their_values(tmp_path: Path) -> None:
    cells, seeds = expand_grid(GRID, 2)
    plan = run_all(cells, PoolHere(tmp_path), tuple(seeds))
    assert [search.name for search in plan.searches] == ["method=asgd", "method=ssgd"]
    for search in plan.searches:
        assert len(search.trials) == 2 and all(len(trial.runs) == 2 for trial in search.trials)
        assert search.best is not None
        found = {
            run.cells[0].labels["lr"] for run in plan.all_runs if run.cells[0].labels["method"] in search.name
        }
        assert found == {search.best.values["lr"]}
    labels = [
        (run.cells[0].labels["method"], run.cells[0].labels["workers"], run.seed) for run in plan.all_runs
    ]
    assert labels == [(m, w, seed) for w in (2, 4) for m in ("asgd", "ssgd") for seed in (0, 1)]
    short = plan.searches[0].trials[0].runs[0, 0].experiment
    assert isinstance(short, Experiment) and short.epochs == 1


@pytest.mark.slow
def test_a_sweep_with_tune_reports_validation_and_test(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    result = sweep(GRID, seeds=3, out=tmp_path / "runs", results=folder, cores=1, progress=False)
    assert result.failures == {} and isinstance(result, SweepResult)
    assert {"method", "workers", "lr", "test_accuracy", "validation_accuracy"} <= set(result.table.columns)
    assert len(result.table) == 4 and result.table["seeds"].to_list() == [3] * 4
    assert len(result.trials) == 4 and (folder / "sweep.png").is_file() and (folder / "search.png").is_file()
    again = sweep(GRID, seeds=3, out=tmp_path / "runs", results=folder, cores=1, progress=False, dry_run=True)
    assert again.plan.missing == [] and again.table.equals(result.table) and again.plan.cached == 12


def test_settings_of_a_method_are_a_grid_of_their_own() -> None:
    methods = {"ssgd": {"momentum": 0.5, "workers": 8}}
    cells, _ = expand_grid({**TINY, "method": ["asgd", "ssgd", "ga"], "methods": methods, "lr": [0.1, 0.2]})
    found = [(c.settings["method"], c.settings.get("momentum"), c.settings["workers"]) for c in cells]
    assert found == [("asgd", None, 2)] * 2 + [("ssgd", 0.5, 8)] * 2 + [("ga", None, 2)] * 2
    assert cells[2].labels == {"method": "ssgd", "workers": 8, "lr": 0.1, "momentum": 0.5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[tune]\nlr = "lgo(1e-3, 1)"\n', "Did you mean 'log'"),
        ('[tune]\nlrr = "log(1e-3, 1)"\n', "unknown key 'lrr'. Did you mean 'lr'"),
        ('[tune]\nlr = "log(1e-3, 1)"\ntrial = 3\n', "unknown key 'trial'. Did you mean 'trials'"),
        ('[tune]\nlr = "log(1e-3, 1)"\ntrials = 0\n', "trials .*greater than or equal to 1, got 0"),
        ('[tune]\nlr = "log(1e-3, 1)"\nsampler = "gird"\n', "'grid', 'random' or 'tpe', got 'gird'"),
        ('[tune]\nlr = "log(1e-3, 1)"\nsampler = "grid"\n', r"points=5\)"),
        ('[tune]\nlr = [0.1, 0.2, 0.3]\ntrials = 2\nsampler = "grid"\n', "3 combinations"),
        ('[tune]\nlr = "log(1e-3, 1)"\nper = ["worker"]\n', "Did you mean 'workers'"),
        ('[tune]\nlr = "log(1e-3, 1)"\nper = ["epochs"]\n', "does not vary it"),
        ('[tune]\nlr = "log(1e-3, 1)"\nobjective = "test_accuracy"\n', "Use validation_accuracy"),
        ('[tune]\nlr = "log(1e-3, 1)"\nprune = 150\n', "less than 100, got 150"),
        ('[tune]\nlr = "log(1e-3, 1)"\nseeds = 0\n', "seeds = 0"),
        ('[tune]\nlr = "log(1e-3, 1)"\nepochs = -1\n', "epochs.*-1"),
        ("[tune]\nepochs = 1\n", "searches nothing"),
        ("[tune]\nlr = [-0.1, 0.1]\n", "lr.*-0.1"),
        ('[tune]\nmodel = ["linear", "liner"]\n', "Did you mean 'linear'"),
        ('[tune]\nworkers = "int(1, 4)"\n', "workers"),
        ("tune = 3\n", "must be a table"),
        ("[methods.asg]\nmomentum = 0.9\n", "no such method. Did you mean 'asgd'"),
        ("[methods.asgd]\nmomentm = 0.9\n", "Unknown key 'momentm'"),
        ("[methods.asgd]\nseeds = 3\n", "seeds applies to all methods"),
        ('methods = ["asgd"]\n', "must be tables"),
    ],
)
def test_a_typo_is_refused_before_anything_runs(tmp_path: Path, text: str, reason: str) -> None:
    start = 'dataset = "digits"\nmodel = "linear"\nvalidation = 0.2\n'
    grid = 'method = ["asgd", "ssgd"]\nworkers = [2, 4]\n'
    if "model =" in text:
        start = start.replace('model = "linear"\n', "")
    file = tmp_path / "sweep.toml"
    file.write_text(start + grid + text)
    with pytest.raises(InputError, match=reason):
        cells, seeds = expand_grid(read_grid_file(file))
        find_runnable_cells(cells, seeds[0])


def test_a_setting_is_set_or_searched() -> None:
    with pytest.raises(InputError, match=r"lr is set to 0.1 and searched"):
        tuned({"lr": 0.1})[0].check(0)
    with pytest.raises(InputError, match="epochs is searched and set"):
        tuned(space={"epochs": parse_values("epochs", [1, 2])}, shorter={"epochs": 1})
    with pytest.raises(InputError, match=r"Use seeds=\[7\]"):
        straggler.tune(TINY | {"seed": 7}, {"lr": [0.1, 0.2]})


def test_without_optuna_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'straggler\[tune\]'"):
        straggler.tune(TINY, {"lr": "log(1e-3, 1)"}, out=tmp_path / "runs", results=tmp_path / "x", cores=1)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_the_runs_that_are_not_known_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places: dict[str, Any] = {"out": tmp_path / "runs", "results": tmp_path / "results", "dry_run": True}
    result = straggler.tune(TINY, {"lr": "log(1e-3, 1)"}, trials=10, seeds=2, cores=1, **places)
    assert "10 trials of 1 search, 22 runs, 2 seeds, 22 missing: about" in capsys.readouterr().err
    assert result.plan.later.count == 22 - 4 * 2 and list(tmp_path.iterdir()) == []


def wait_until(condition: Callable[[], bool], seconds: float = 400) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_sweep_that_is_killed_twice_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    text = "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in (TINY | {"method": ["asgd", "ssgd"]}).items()
    )
    file = tmp_path / "sweep.toml"
    file.write_text(text + '[tune]\nlr = "log(1e-4, 1)"\ntrials = 6\nbatch = 2\nseeds = 2\n')
    command = [SCRIPT, "sweep", str(file), "--cores", "2", "--runs", "cut", "--results", "cut-results"]
    for finished in (3, 10):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: len(list(tmp_path.glob("cut/*/weights.safetensors"))) >= finished)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        time.sleep(1.0)  # its processes end with it
    cut = sweep(file, out=tmp_path / "cut", results=tmp_path / "cut-results", cores=2, progress=False)
    whole = sweep(file, out=tmp_path / "whole", results=tmp_path / "results", cores=1, progress=False)
    assert cut.failures == whole.failures == {}
    assert cut.trials.equals(whole.trials) and cut.table.equals(whole.table)
    again = sweep(file, out=tmp_path / "cut", results=tmp_path / "cut-results", progress=False, dry_run=True)
    assert again.plan.missing == []


def test_searches_of_a_study_keep_the_labels_of_their_cells(tmp_path: Path) -> None:
    tuning = make_tuning({"lr": parse_values("lr", [0.1, 0.2])})
    cells = [Cell({"table": "1", "N": n}, TINY | {"workers": n}, tuning=tuning) for n in (1, 2)]
    plan = run_all(cells, PoolHere(tmp_path), (0,))
    assert plan.store.labels == ("table", "N")
    assert [run.cells[0].labels["N"] for run in plan.all_runs] == [1, 2]
    assert all(isinstance(search, Search) and isinstance(search.tuning, Tuning) for search in plan.searches)
