"""The gallery of pages and reports: its figures show the values of the records."""

import shutil
from pathlib import Path

import polars as pl
import pytest
from test_renderers import check_with_plotly
from web_testing import SLOW_WORKER

from straggler.analysis.figures.description import FigureSpec, Line
from straggler.analysis.figures.timeline import split_jobs
from straggler.experiment import Experiment
from straggler.timing import Durations
from straggler.web.gallery import build_gallery, count_partition
from straggler.web.run_facts import RunFacts


@pytest.mark.parametrize("method", ["asgd", "ssgd", "k-sync", "k-batch-sync"])
def test_jobs_of_a_worker_follow_each_other_and_last_as_drawn(runs: dict[str, Path], method: str) -> None:
    facts = RunFacts(runs[method])
    experiment = facts.experiment
    assert experiment is not None
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    every = split_jobs(facts.jobs)
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
    every = split_jobs(RunFacts(runs["k-sync"]).jobs)
    cancelled = every.filter(pl.col("decision") == "cancelled")
    assert len(cancelled) > 20
    starts = set(every.filter(pl.col("decision") != "cancelled")["started"])
    assert set(cancelled["started"]) <= starts
    assert (cancelled["started"] < cancelled["time"]).all()


def test_workers_wait_under_ssgd_but_not_under_asgd(runs: dict[str, Path]) -> None:
    def waits(method: str) -> int:
        return int(split_jobs(RunFacts(runs[method]).jobs)["idle_from"].count())

    assert waits("asgd") == 0
    assert waits("ssgd") >= 30


def test_partition_figure_uses_the_partition_of_the_run(runs: dict[str, Path]) -> None:
    counted = count_partition(RunFacts(runs["asgd"]))
    assert counted is not None
    problem = Experiment(**SLOW_WORKER).problem()
    assert counted[1].sum(axis=1).tolist() == [len(part) for part in problem.parts]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_plotly_accepts_every_figure(runs: dict[str, Path]) -> None:
    for some in (["asgd"], list(runs)):
        figures = build_gallery([RunFacts(runs[name]) for name in some])
        names = {figure.name for figure in figures}
        wanted = {"accuracy", "loss", "staleness", "staleness-time", "gaps", "norms"}
        assert names >= wanted | {"classes", "confusion", "partition", "trajectory"}
        for figure in figures:
            check_with_plotly(figure)


def find_figure(figures: list[FigureSpec], name: str) -> FigureSpec:
    return next(figure for figure in figures if figure.name == name)


def test_seeds_share_a_colour_and_figures_share_the_colours(runs: dict[str, Path]) -> None:
    figures = build_gallery([RunFacts(runs[name]) for name in ("asgd", "seed 1", "seed 2", "ssgd")])
    accuracy = find_figure(figures, "accuracy").choose_panels()[0].marks
    assert [mark.label for mark in accuracy if isinstance(mark, Line)] == ["ssgd", "asgd"]
    for name in ("staleness", "staleness-time", "gaps", "classes"):
        marks = find_figure(figures, name).choose_panels()[0].marks
        colours = {mark.label.split(" (")[0]: mark.colour for mark in marks}  # type: ignore[union-attr]
        assert colours == {"asgd": 0, "ssgd": 1}


@pytest.mark.slow
def test_figures_say_when_they_show_only_the_first_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    copies = [RunFacts(shutil.copytree(runs["asgd"], tmp_path / str(number))) for number in range(9)]
    for number, copy in enumerate(copies):
        copy.settings["seed"] = number
        vars(copy)["summary"] = copy.summary | {"weights_sha256": str(number)}
    note = "Only the first 8 of 9 runs are shown."
    notes = {figure.name: note in figure.note for figure in build_gallery(copies)}
    assert notes["confusion"] and not notes["accuracy"] and not notes["staleness"]
    assert not any(note in figure.note for figure in build_gallery(copies[:8]))
