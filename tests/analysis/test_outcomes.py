"""Figures of results: Pareto front, heatmap, error against workers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from figure_testing import copy_with

from straggler.analysis.figures.description import Heatmap, Line, Scatter
from straggler.analysis.figures.outcomes import (
    build_accuracy_heatmap,
    build_error_figure,
    build_pareto_figure,
    collect_outcomes,
    find_pareto_front,
)
from straggler.analysis.labels import group_seeds
from straggler.record import Record

pytest_plugins = ["figure_testing"]


def front(points: list[tuple[float, float]]) -> list[tuple[float, ...]]:
    return find_pareto_front(
        pl.DataFrame(points, schema={"seconds": float, "accuracy": float}, orient="row")
    ).rows()


def test_the_front_has_the_points_that_no_other_beats() -> None:
    assert front([(1, 50), (2, 60), (3, 55), (4, 70), (4, 65), (1, 40)]) == [(1, 50), (2, 60), (4, 70)]
    points = [(float(a), float(b)) for a, b in np.random.default_rng(0).random((200, 2))]
    chosen = front(points)
    for point in points:
        beaten = any(s <= point[0] and a >= point[1] and (s, a) != point for s, a in points)
        assert (point in chosen) is not beaten


def test_outcomes_have_the_runs_settings_and_result(digits: Record) -> None:
    row = collect_outcomes({"x": [digits]}).row(0, named=True)
    assert row["setting"] == "x" and row["workers"] == 4
    assert row["accuracy"] == digits.summary["test_accuracy"]


def test_the_heatmap_marks_runs_that_did_not_converge(digits: Record, tmp_path: Path) -> None:
    cells = [(0.1, 0.0, 80.0), (0.1, 0.0, 90.0), (0.2, 0.0, None), (0.2, 0.9, 70.0)]
    some = [
        copy_with(
            digits,
            tmp_path / str(seed),
            {"test_accuracy": accuracy or 10.0, "converged": accuracy is not None},
            lr=lr,
            momentum=momentum,
            seed=seed,
        )
        for seed, (lr, momentum, accuracy) in enumerate(cells)
    ]
    (mark,) = build_accuracy_heatmap({"": some}).panels[0].marks
    assert isinstance(mark, Heatmap)
    assert mark.text == [["85.0", "NC"], ["", "70.0"]] and mark.columns == ["0.1", "0.2"]


def test_errors_leave_out_runs_that_did_not_converge(mixed: list[str]) -> None:
    panel = build_error_figure(group_seeds([Record(path) for path in mixed], ("workers",))).panels[0]
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    assert [line.label for line in lines] == ["asgd, iid", "asgd, label (1 of 3 NC at 2, NC at 10)"]
    assert [list(line.y) for line in lines] == [pytest.approx([19.0, 19.0]), pytest.approx([18.5])]
    assert panel.y.low is not None and panel.y.low < 0


def test_a_single_seed_has_no_error_bar(digits: Record, tmp_path: Path) -> None:
    groups = {"a": [copy_with(digits, tmp_path, workers=3)]}
    line = build_error_figure(groups).panels[0].marks[0]
    point = build_pareto_figure(groups).panels[0].marks[1]
    assert isinstance(line, Line) and line.error is not None and np.isnan(line.error[0]).all()
    assert isinstance(point, Scatter) and point.error is not None and np.isnan(point.error[0]).all()


def test_the_front_consists_of_settings_and_not_of_seeds(mixed: list[str]) -> None:
    marks = build_pareto_figure(group_seeds([Record(path) for path in mixed])).panels[0].marks
    labels = [mark.label for mark in marks if isinstance(mark, Scatter)]
    first = ["asgd, workers 2, iid", "asgd, workers 2, label (1 of 3 NC)"]
    assert labels == [*first, "asgd, workers 10, iid", "asgd, workers 10, label (NC)", "Pareto front"]
