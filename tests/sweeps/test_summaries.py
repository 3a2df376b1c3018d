"""Summary rows on disk, and the table that is made of them."""

import math
from pathlib import Path
from typing import Any

import polars as pl
import torch

from straggler.analysis.sweep_tables import SweepTable
from straggler.experiment import Experiment
from straggler.sweeps.grid import Cell, PlannedRun, plan_runs
from straggler.sweeps.results import summarise_run
from straggler.sweeps.summaries import SummaryStore, read_summaries

TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}


def open_store(folder: Path) -> SummaryStore:
    return SummaryStore(folder, ["row"], ["row", "seed"])


def plan_run(row: str = "a", measurements: tuple[str, ...] = (), **settings: Any) -> PlannedRun:
    return plan_runs([Cell({"row": row}, TINY | settings, measurements=measurements)], [0])[0]


def test_a_study_keeps_rows_until_their_cell_is_run_again(tmp_path: Path) -> None:
    one, two = plan_run("a", lr=0.1), plan_run("b", lr=0.2)
    for run, accuracy in ((one, 1.0), (two, 2.0), (one, 3.0)):
        store = open_store(tmp_path)
        store.add(run, {"test_accuracy": accuracy})
        store.write()
    assert read_summaries(tmp_path).select("row", "value").rows() == [("a", 3.0), ("b", 2.0)]


def test_a_sweep_keeps_rows_until_the_experiment_is_run_again(tmp_path: Path) -> None:
    for run, accuracy in ((plan_run(lr=0.1), 1.0), (plan_run(lr=0.2), 2.0), (plan_run(lr=0.1), 3.0)):
        store = SummaryStore(tmp_path, ["row"], ["id"])
        store.add(run, {"test_accuracy": accuracy})
        store.write()
    assert sorted(read_summaries(tmp_path)["value"]) == [2.0, 3.0]


def test_a_stored_row_stands_for_its_experiment_cell_and_measurements(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add(plan_run(), {"test_accuracy": 1.0})
    store.write()
    assert open_store(tmp_path).has(plan_run())
    assert not open_store(tmp_path).has(plan_run(lr=0.2))
    assert not open_store(tmp_path).has(plan_run("b"))
    with_curve = plan_run(measurements=("curve",))
    assert not open_store(tmp_path).has(with_curve)
    store.add(with_curve, {"test_accuracy": 1.0, "curve": [{"epochs": 1.0}]})
    store.write()
    assert open_store(tmp_path).has(with_curve)


def test_a_sweep_over_a_budget_shows_the_part_that_was_used(tmp_path: Path) -> None:
    """A run that diverges ends before its budget is spent."""
    settings: dict[str, Any] = TINY | {"model": "mlp", "epochs": None, "seconds": 50, "lr": 1e25}
    (run,) = plan_runs([Cell({"seconds": 50.0}, settings)], [0])
    assert isinstance(run.experiment, Experiment)
    row = summarise_run(run.experiment, run.experiment.run(tmp_path / "runs", jobs=1), (), None)
    assert len(row["weights_sha256"]) == 64 and row["torch_version"] == torch.__version__
    assert all(row[name] for name in ("straggler_version", "python_version", "processor", "started"))
    store = SummaryStore(tmp_path, ["seconds"])
    store.add(run, row)
    store.write()
    columns, rows = SweepTable(read_summaries(tmp_path), ["seconds"]).rows()
    assert dict(zip(columns, rows[0], strict=True))["time (s)"] == f"{row['seconds']:,.1f}"
    assert row["seconds"] < 50


def test_small_losses_differ_and_the_time_of_diverged_runs_is_left_out() -> None:
    shared = {"value": None, "mean_staleness": 1.0, "source": None, "lr": 0.1}
    lost = shared | {"seed": 0, "test_loss": math.nan, "converged": False, "seconds": 1.0}
    good = shared | {"seed": 1, "test_loss": 1.25e-12, "converged": True, "seconds": 9.0}
    table = SweepTable(pl.DataFrame([lost, good], infer_schema_length=None), ["lr"])
    assert table.rows()[1] == [["0.1", "1.25e-12 (1 of 2 NC)", "2", "1.00", "9.0"]]
    assert table.csv().splitlines()[1].replace("1.2500e-12", "1.25e-12") == "0.1,1.25e-12,,,2,1,1.0,9.0"


def test_the_time_to_a_target_counts_the_runs_that_reached_it() -> None:
    row = {"value": 90.0, "mean_staleness": 1.0, "lr": 0.1, "converged": True, "seconds": 9.0}
    rows = [row | {"seed": seed, "time_to_target": time} for seed, time in enumerate((4.0, 6.0, None))]
    table = SweepTable(pl.DataFrame(rows), ["lr"], target=80)
    columns, (cells,) = table.rows()
    assert (columns[-1], cells[-1]) == ("time to 80 % (s)", "5.0 (2 of 3)")
    assert table.table.select("time_to_target", "reached").row(0) == (5.0, 2)


def test_rows_may_lack_labels_of_other_cells(tmp_path: Path) -> None:
    """The first rows that are written may be of cells with fewer labels, and the next have them."""
    labels = ["row", "method"]
    for cell in ({"row": "a"}, {"row": "a", "method": "x"}, {"row": "a"}):
        run = plan_runs([Cell(cell, TINY)], [0])[0]
        store = SummaryStore(tmp_path, labels, [*labels, "seed"])
        store.add(run, {"test_accuracy": 1.0})
        store.write()
        assert SummaryStore(tmp_path, labels, [*labels, "seed"]).has(run)
    assert read_summaries(tmp_path)["method"].to_list() == ["x", None]
