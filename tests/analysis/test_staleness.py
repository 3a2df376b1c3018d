"""Distributions of staleness and gap, and the gradients of each worker."""

import numpy as np
import polars as pl
import pytest
from test_timeline import FakeRun

from straggler.analysis.figures.description import Bars, Line
from straggler.analysis.figures.staleness import (
    build_gap_distribution,
    build_staleness_figure,
    build_worker_figure,
)
from straggler.record import Record

pytest_plugins = ["figure_testing"]


def test_shares_add_up_to_100_percent(runs: dict[str, Record]) -> None:
    marks = build_staleness_figure({name: [run] for name, run in runs.items()}).panels[0].marks
    assert len(marks) == len(runs)
    for mark in marks:
        assert isinstance(mark, Bars) and sum(mark.y) == pytest.approx(100)


def test_shares_are_those_of_the_record(runs: dict[str, Record]) -> None:
    run = runs["asynchronous"]
    (mark,) = build_staleness_figure({"a": [run]}).panels[0].marks
    assert isinstance(mark, Bars)
    shown = {x: y for x, y in zip(mark.x, mark.y, strict=True) if y}
    true = run.arrivals["staleness"].value_counts(normalize=True)
    assert shown == {tau: pytest.approx(100 * share) for tau, share in true.iter_rows()}


@pytest.mark.filterwarnings("error")
def test_infinite_gaps_are_left_out(runs: dict[str, Record]) -> None:
    arrivals = runs["asynchronous"].arrivals
    infinite = pl.when(pl.int_range(pl.len()) % 3 == 0).then(float("inf")).otherwise("gap")
    some = FakeRun(arrivals.with_columns(gap=infinite))
    none = FakeRun(arrivals.with_columns(gap=float("inf")))
    first, second = build_gap_distribution({"a": [some], "b": [none]}).panels[0].marks
    assert isinstance(first, Line) and isinstance(second, Line)
    assert np.sum(first.y) > 90 and np.sum(second.y) == 0 and 0 < first.x[-1] < 1e3


def test_gradients_of_all_workers_are_counted(runs: dict[str, Record]) -> None:
    (mark,) = build_worker_figure(runs["asynchronous"]).panels[0].marks
    assert isinstance(mark, Bars) and sum(mark.y) == runs["asynchronous"].summary["gradients"]
    assert len(mark.hover) == len(mark.x) == 4
