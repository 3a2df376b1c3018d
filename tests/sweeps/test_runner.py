"""Plans of sweeps: their order, their estimates, and cells that fail."""

from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from straggler.experiment import Experiment
from straggler.sweeps.cost import CostModel, MeasuredCosts, estimate_seconds
from straggler.sweeps.grid import Cell, expand_grid, plan_runs
from straggler.sweeps.pool import LocalPool
from straggler.sweeps.runner import plan_sweep, run_plan
from straggler.sweeps.summaries import read_summaries

TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}
QUIET = Console(quiet=True)


def test_runs_are_ordered_by_seed_then_by_table_then_by_length(tmp_path: Path) -> None:
    def cell(table: str, epochs: float) -> Cell:
        return Cell({"table": table, "row": str(epochs)}, TINY | {"epochs": epochs})

    cells = [cell("II", 1), cell("II", 3), cell("I", 2)]
    plan = plan_sweep("x", cells, [0, 1], LocalPool(1, tmp_path), tmp_path)
    order = [(run.seed, str(run.cells[0].labels["row"])) for run in plan.runs]
    assert order == [(0, "3"), (0, "1"), (0, "2"), (1, "3"), (1, "1"), (1, "2")]


@pytest.mark.slow
def test_a_sweep_continues_past_a_bad_cell_and_computes_nothing_twice(tmp_path: Path) -> None:
    bad = Cell({"row": "bad"}, TINY | {"model": "lenet5", "dataset": "mixture"})  # the shapes do not fit
    cells = [Cell({"row": "good"}, TINY, measurements=("curve", "course")), bad]
    results, pool = tmp_path / "results", LocalPool(1, tmp_path / "runs")
    plan = plan_sweep("x", cells, [0, 1], pool, results)
    assert len(plan.missing) == 4
    failures = run_plan(plan, QUIET)
    assert set(failures) == {bad.experiment(seed).id for seed in (0, 1)}
    assert all("lenet5" in reason for reason in failures.values())
    first = read_summaries(results)
    assert first["row"].to_list() == ["good", "good"] and first["seed"].to_list() == [0, 1]
    again = plan_sweep("x", cells, [0, 1], pool, results)
    assert len(again.missing) == 2 and again.cached == 2  # the bad cell is tried again
    run_plan(again, QUIET)
    assert read_summaries(results).equals(first)
    elsewhere = plan_sweep("x", cells[:1], [0, 1, 2], LocalPool(1, tmp_path / "elsewhere"), results)
    assert [run.seed for run in elsewhere.missing] == [2] and elsewhere.cached == 2
    courses = pl.read_parquet(results / "courses.parquet")
    assert courses.group_by("id", "worker").len().height == 2 * 4


def test_estimates_follow_the_budget() -> None:
    budgets = {"epochs": 40}, {"gradients": 1920}, {"updates": 1920}, {"seconds": 480}
    grids = [{"dataset": "digits", "model": "linear", "eval_every": 0, **budget} for budget in budgets]
    costs = CostModel()
    estimates = [costs.estimate(run) for run in plan_runs(expand_grid(grids)[0], [0])]
    assert max(estimates) < 1.2 * min(estimates) and min(estimates) > 0.05
    evaluated = plan_runs([Cell({}, {**grids[0], "eval_every": 0.1})], [0])[0]
    assert costs.estimate(evaluated) > estimates[0]


def test_estimates_count_the_evaluations_of_the_training_set() -> None:
    costs = MeasuredCosts(start=1.0, gradient=0.0, evaluation=10.0, train_evaluation=100.0, samples=320)
    settings = {"dataset": "digits", "model": "linear", "gradients": 40}  # four epochs of 320 samples
    found = {
        when: estimate_seconds(Experiment(**settings, train_metrics=when), costs)
        for when in ("never", "end", "always")
    }
    assert found == {"never": 51.0, "end": 151.0, "always": 551.0}
