"""Timelines: jobs and waits fill every worker's time."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from figure_testing import POLICIES, train

from straggler.analysis.figures.description import Line, Panel, Scatter, Spans
from straggler.analysis.figures.timeline import (
    JOBS_PER_WORKER,
    MOST_BARS,
    build_timeline_figure,
    build_timelines,
    build_worker_curves,
    split_jobs,
)
from straggler.record import ARRIVALS, Record

pytest_plugins = ["figure_testing"]


def spans_of(panel: Panel) -> dict[str, Spans]:
    return {mark.label: mark for mark in panel.marks if isinstance(mark, Spans)}


def all_spans(run: Record) -> pl.DataFrame:
    """Return worker, begin, end and kind of every bar."""
    panel = next(iter(build_timeline_figure(run).views.values()))[0]
    parts = [
        pl.DataFrame({"worker": spans.rows, "begin": spans.starts, "end": spans.ends, "kind": label})
        for label, spans in spans_of(panel).items()
    ]
    return pl.concat(parts).sort("begin", "worker")


@pytest.mark.parametrize("policy", POLICIES)
def test_bars_fill_every_workers_time(policy: str, runs: dict[str, Record]) -> None:
    table = all_spans(runs[policy])
    jobs = table.filter(~pl.col("kind").is_in(["waiting", "delayed"]))
    assert len(jobs) == len(runs[policy].jobs)
    for _, mine in table.group_by("worker"):
        mine = mine.sort("begin", "end")
        assert mine["begin"][0] == 0
        assert mine["begin"].to_list()[1:] == mine["end"].to_list()[:-1]


def test_cancelled_jobs_start_with_their_round(runs: dict[str, Record]) -> None:
    table = all_spans(runs["k-sync(k=2)"])
    ends = set(table.filter(kind="cancelled")["end"]) | {0.0}
    assert set(table.filter(kind="cancelled")["begin"]) <= ends
    assert set(table.filter(kind="computing")["begin"]) <= ends
    assert set(table.filter(worker=0)["kind"]) == {"cancelled"}


def test_workers_wait_only_in_a_synchronous_run(runs: dict[str, Record]) -> None:
    assert set(all_spans(runs["asynchronous"])["kind"]) == {"computing", "delayed"}
    waits = all_spans(runs["synchronous"]).filter(kind="waiting")
    assert 0 not in waits["worker"] and waits["worker"].n_unique() == 3  # the others wait for worker 0


def test_a_worker_without_arrivals_has_a_row(tmp_path: Path) -> None:
    run = train(tmp_path, updates=20, gradients=None, delay="constant(500, workers=[0])")
    panel = build_timelines({"run": run}).panels[0]
    assert list(panel.y.ticks) == [0, 1, 2, 3] and (panel.y.low, panel.y.high) == (-0.5, 3.5)
    batches = build_worker_curves({"run": run}).panels[2].marks[0]
    assert isinstance(batches, Line) and list(batches.y) == [0, 0]


def test_printed_timelines_show_the_beginning_and_say_so(tmp_path: Path) -> None:
    panel = build_timelines({"run": train(tmp_path, gradients=3000, eval_every=0)}).panels[0]
    assert sum(len(spans.rows) for spans in spans_of(panel).values()) < 3 * JOBS_PER_WORKER * 4
    assert "the first" in panel.title


class FakeRun:
    """A run with these jobs."""

    path, settings, summary, curve = Path(), {"workers": 5}, {}, pl.DataFrame()  # type: ignore[var-annotated]

    def __init__(self, jobs: pl.DataFrame) -> None:
        self.jobs = jobs


def test_long_timelines_have_views() -> None:
    number = np.arange(200_000)
    columns = {"worker": number % 5, "started": (number // 5) * 1.0, "time": (number // 5 + 1) * 1.0}
    more = {"version": number, "staleness": np.full(200_000, 4), "delay": np.zeros(200_000)}
    table = pl.DataFrame(columns | more).with_columns(decision=pl.lit("applied", dtype=ARRIVALS["decision"]))
    figure = build_timeline_figure(FakeRun(table))
    assert list(figure.views) == ["beginning", "middle", "end"]
    for (panel,) in figure.views.values():
        assert len(spans_of(panel)["computing"].rows) == MOST_BARS
    assert spans_of(figure.views["end"][0])["computing"].starts[-1] == 200_000 // 5 - 1


def test_failures_are_marked_where_they_happened(runs: dict[str, Record]) -> None:
    events = [{"time": 2.0, "worker": 1, "what": "died"}, {"time": 1e9, "worker": 0, "what": "late"}]
    figure = build_timeline_figure(runs["asynchronous"], events)
    mark = figure.choose_panels()[0].marks[-1]
    assert isinstance(mark, Scatter)
    assert (list(mark.x), list(mark.y), list(mark.hover)) == ([2.0], [1], ["died"])


def test_jobs_are_numbered_by_worker(runs: dict[str, Record]) -> None:
    for _, mine in split_jobs(runs["asynchronous"].jobs).group_by("worker", maintain_order=True):
        assert mine["launch"].to_list() == list(range(len(mine)))
