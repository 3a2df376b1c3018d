"""Figures of pages: the values they show are the values of the record."""

import json
import shutil
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import polars as pl
import pytest
from web_testing import (
    SLOW_WORKER,
)

from straggler.analysis.timeline import jobs
from straggler.experiment import Experiment
from straggler.timing import Durations
from straggler.web.curves import curves
from straggler.web.figure import thin
from straggler.web.gallery import gallery, partition_counts
from straggler.web.run_facts import RunFacts
from straggler.web.staleness import gaps
from straggler.web.timeline import MOST_BARS, timeline


@pytest.mark.parametrize("method", ["asgd", "ssgd", "k-sync", "k-batch-sync"])
def test_jobs_of_a_worker_follow_each_other_and_last_as_drawn(runs: dict[str, Path], method: str) -> None:
    facts = RunFacts(runs[method])
    experiment = facts.experiment
    assert experiment is not None
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    every = jobs(facts.arrivals)
    for _, mine in every.group_by("worker"):
        assert (mine["started"][1:] >= mine["time"][:-1] - 1e-9).all()
        assert mine["launch"].to_list() == list(range(len(mine)))
    done = every.filter(pl.col("decision") != "cancelled")
    for worker, launch, started, computed, time in done.select(
        "worker", "launch", "started", "computed", "time"
    ).iter_rows():
        compute, delay = durations.parts(worker, launch)
        assert time - started == pytest.approx(compute + delay)
        dropped = done.filter(worker=worker, launch=launch)["decision"][0] == "dropped"
        assert computed - started == pytest.approx(compute + delay if dropped else compute)
        assert delay == (3.0 if worker == 0 else 0.0)


def test_cancelled_jobs_start_with_their_round(runs: dict[str, Path]) -> None:
    every = jobs(RunFacts(runs["k-sync"]).arrivals)
    cancelled = every.filter(pl.col("decision") == "cancelled")
    assert len(cancelled) > 20
    starts = set(every.filter(pl.col("decision") != "cancelled")["started"])
    assert set(cancelled["started"]) <= starts
    assert (cancelled["started"] < cancelled["time"]).all()


def test_workers_wait_under_ssgd_but_not_under_asgd(runs: dict[str, Path]) -> None:
    def waits(method: str) -> int:
        return int(jobs(RunFacts(runs[method]).arrivals)["idle_from"].count())

    assert waits("asgd") == 0
    assert waits("ssgd") >= 30


def test_long_timelines_have_views() -> None:
    count = 200_000
    arrivals = pl.DataFrame(
        {
            "worker": [number % 5 for number in range(count)],
            "started": [float(number // 5) for number in range(count)],
            "time": [float(number // 5 + 1) for number in range(count)],
            "version": list(range(count)),
            "staleness": [4] * count,
            "decision": ["applied"] * count,
            "delay": [0.0] * count,
        }
    )
    figure = timeline(arrivals, "time (s)")
    assert list(figure.views) == ["the beginning", "the middle", "the end"]
    for view in figure.views.values():
        assert sum(len(trace["x"]) for trace in view["data"]) == MOST_BARS
    assert figure.views["the end"]["data"][0]["base"][-1] == count // 5 - 1


def test_worker_failures_are_marked(runs: dict[str, Path]) -> None:
    """Events within the shown time are drawn with their text, others are not."""
    arrivals = RunFacts(runs["asgd"]).arrivals
    events = [{"time": 2.0, "worker": 1, "what": "died"}, {"time": 1e9, "worker": 0, "what": "late"}]
    *_, last = timeline(arrivals, "time (s)", events).data
    assert (last["name"], last["x"], last["y"], last["text"]) == ("failure", [2], [1], ["died"])


def test_thinning_keeps_first_and_last_row() -> None:
    table = pl.DataFrame({"x": range(100_000)})
    few = thin(table, 400)["x"].to_list()
    assert few[0] == 0 and few[-1] == 99_999 and len(few) <= 400
    assert max(np.diff(few)) <= 2 * 100_000 / 400
    assert thin(table[:300], 400).equals(table[:300])


def test_partition_figure_uses_the_partition_of_the_run(runs: dict[str, Path]) -> None:
    counted = partition_counts(RunFacts(runs["asgd"]))
    assert counted is not None
    problem = Experiment(**SLOW_WORKER).problem()
    assert counted[1].sum(axis=1).tolist() == [len(part) for part in problem.parts]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_plotly_accepts_every_figure(runs: dict[str, Path]) -> None:
    """plotly's Python classes reject unknown properties."""
    for some in (["asgd"], list(runs)):
        figures = gallery([RunFacts(runs[name]) for name in some])
        names = {figure.name for figure in figures}
        wanted = {"accuracy", "loss", "staleness", "staleness-time", "gaps", "norms"}
        assert names >= wanted | {"classes", "confusion", "partition", "trajectory"}
        for figure in figures:
            for view in figure.views.values() or [{"data": figure.data, "layout": figure.layout}]:
                text = json.dumps(view).replace('"paper"', '"#ffffff"')
                go.Figure(json.loads(text))


def test_staleness_figure_equals_recorded_staleness(runs: dict[str, Path]) -> None:
    facts = RunFacts(runs["asgd"])
    figure = next(f for f in gallery([facts]) if f.name == "staleness")
    drawn = dict(zip(figure.data[0]["x"], figure.data[0]["y"], strict=True))
    true = facts.arrivals["staleness"].value_counts(normalize=True)
    assert drawn == {tau: pytest.approx(100 * share, rel=1e-5) for tau, share in true.iter_rows()}


def test_seeds_share_colour_and_legend_entry(runs: dict[str, Path]) -> None:
    figures = gallery([RunFacts(runs[name]) for name in ("asgd", "seed 1", "seed 2", "ssgd")])
    traces = next(figure for figure in figures if figure.name == "accuracy").data
    assert [trace["name"] for trace in traces if trace["showlegend"]] == ["asgd", "ssgd"]
    assert len({trace["line"]["color"] for trace in traces[:3]}) == 1


@pytest.mark.filterwarnings("error")
def test_infinite_gaps_are_left_out(runs: dict[str, Path]) -> None:
    arrivals = RunFacts(runs["asgd"]).arrivals
    endless = pl.when(pl.int_range(pl.len()) % 3 == 0).then(float("inf")).otherwise("gap")
    figure = gaps({"a": arrivals.with_columns(gap=endless), "b": arrivals.with_columns(gap=float("inf"))})
    assert sum(figure.data[0]["y"]) > 90 and sum(figure.data[1]["y"]) == 0
    assert 0 < figure.data[0]["x"][-1] < 1e3


@pytest.mark.parametrize(("largest", "scale"), [(99.0, None), (101.0, "log")])
def test_exploding_loss_has_logarithmic_axis(largest: float, scale: str | None) -> None:
    table = pl.DataFrame({"seconds": [0.0, 1.0, 2.0], "test_loss": [0.5, 1.0, largest]})
    (figure,) = curves({"a": table}, "time (s)")
    assert figure.layout["yaxis"].get("type") == scale
    assert all(view["layout"]["yaxis"].get("type") == scale for view in figure.views.values() if view["data"])


def test_figures_say_when_they_show_only_the_first_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    copies = [RunFacts(shutil.copytree(runs["asgd"], tmp_path / str(number))) for number in range(9)]
    said = "Only the first 8 of 9 runs are shown."
    told = {figure.name: said in figure.note for figure in gallery(copies)}
    assert told["staleness"] and told["confusion"] and not told["accuracy"]
    assert not any(said in figure.note for figure in gallery(copies[:8]))
