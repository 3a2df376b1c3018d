"""What a study makes of its runs: the sources' numbers to the last digit, claims, landscapes, figures."""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from straggler.analysis.intervals import mean_interval
from straggler.analysis.study_figures import cell_means, with_curves
from straggler.analysis.study_tables import Entry, Layout, as_terminal
from straggler.cli import study as command
from straggler.cli.study import fits, show
from straggler.experiment import Experiment
from straggler.reproduction import ASU, EPFL, GAP_AWARE, STUDIES, Study
from straggler.reproduction.figures import caption_of
from straggler.reproduction.page import draw, judged, outdated, restated, source_summaries
from straggler.reproduction.papers.asu import numbers as asu
from straggler.reproduction.papers.epfl import numbers as epfl
from straggler.reproduction.papers.epfl.landscape import FILE, landscape_figures, survey
from straggler.reproduction.papers.epfl.statistics import gained_with_gaussian_delays, spread
from straggler.reproduction.papers.gap_aware import numbers as gap_aware
from straggler.sweeps.grid import Cell
from straggler.sweeps.summaries import read_summaries

pytestmark = pytest.mark.timeout(120)
RESULTS = Path(__file__).parents[2] / "results"


def numbers_in(table: Any) -> list[float]:
    """Every number of a table in its order, without names and what the source lost."""
    if isinstance(table, dict):
        return [number for value in table.values() for number in numbers_in(value)]
    if isinstance(table, tuple):
        return [number for value in table for number in numbers_in(value)]
    return [table] if isinstance(table, int | float) and math.isfinite(table) else []


@pytest.mark.parametrize(
    ("table", "total"),
    [
        (epfl.REPORT, 25603),
        (epfl.COMPARISON, 88081.31),
        (epfl.ONE_SLOW, 12963.74),
        (epfl.COMPENSATION, 9107.01),
        (epfl.GAUSSIAN, 661186.32),
        (epfl.LOG, 3867018.6648),
        (asu.BASELINES, 8107.86),
        (tuple(row[1:] for _, _, rows in asu.ABLATIONS.values() for row in rows), 241450.966),
        (gap_aware.MAP, 145856.32),
    ],
)
def test_every_digit_is_the_sources(table: Any, total: float) -> None:
    """Totals of the published tables, each number times its place: a digit or an order that slips is seen."""
    weighted = sum(place * number for place, number in enumerate(numbers_in(table), start=1))
    assert weighted == pytest.approx(total, abs=1e-6)


def said(study: Study) -> dict[str, float | None]:
    cells = study.chosen("default")
    return {one.claim.key: one.said for one in judged(study, source_summaries(cells), "default")}


def test_what_the_epfl_tables_say_of_their_own_claims() -> None:
    found = said(EPFL)
    assert found["compensation-2"] == pytest.approx(-7.91, abs=0.01), (
        "a loss, where the text says a gain of 7"
    )
    assert found["compensation-5"] == pytest.approx(-3.88, abs=0.01)
    assert found["compensation-where-it-helps"] == pytest.approx(16.86, abs=0.01)
    assert found["one-slow-costs-more"] == pytest.approx(11.60, abs=0.01), "the 11 % of the text"
    assert found["sync-like-async"] == pytest.approx(3.07, abs=0.01)
    assert found["labels-not-viable"] == pytest.approx(5.07, abs=0.01)
    assert found["data-split-withstands-delay"] == pytest.approx(0.55, abs=0.01)
    assert found["gaussian-99-diverges"] == 100


def test_what_compensation_gains_with_gaussian_delays_in_the_report() -> None:
    """Of eighteen cells with five workers: the totals of the report's columns at λ = 2 and at 0."""
    rows = [values for (momentum, _), values in epfl.GAUSSIAN[5].items() if momentum < 0.99]
    totals = [sum(values[place] for values in rows) for place in range(4)]  # dataset 0, 2; labels 0, 2
    by_hand = (totals[1] - totals[0] + totals[3] - totals[2]) / 18
    found = gained_with_gaussian_delays("VII")(source_summaries(EPFL.chosen("default")))
    assert found[0] == pytest.approx(by_hand) == pytest.approx(-2.21, abs=0.01)


def test_numbers_that_comments_give_follow_from_the_tables() -> None:
    """Of the report's own tables: with its log's 71.43, and without the runs that were lost."""
    sync, free = ([*epfl.COMPARISON[row]] for row in ("sync", "async 0 ms"))
    free[5] = 71.43
    assert mean(map(float.__sub__, free[::2], free[1::2])) == pytest.approx(9.59, abs=0.005)
    assert mean(abs(a - b) for a, b in zip(sync, free, strict=True)) == pytest.approx(5.33, abs=0.005)
    gains = [
        compensated - epfl.COMPARISON[f"one {delay} ms"][2 * place + 1]
        for delay, row in zip(epfl.DELAYS, epfl.COMPENSATION[5.0], strict=True)
        for place, compensated in enumerate(row)
        if compensated > epfl.NC
    ]
    assert mean(gains) == pytest.approx(2.5, abs=0.05)


def test_what_the_asu_tables_say_of_their_own_claims() -> None:
    """Every claim of the report holds in its own numbers."""
    found, bounds = said(ASU), {claim.key: (claim.least, claim.most) for claim in ASU.claims("default")}
    for key, (least, most) in bounds.items():
        assert least <= (found[key] or 0.0) <= most, key
    assert found["hybrids-beat-async"] == pytest.approx(0.56)
    assert found["fashion-lower-rate"] == pytest.approx(38.12)


@pytest.mark.parametrize(
    ("strategy", "workers", "deviation"),
    [
        ("dataset", 2, 0.5),
        ("dataset", 5, 0.3),
        ("labels", 2, 2.0),
        ("labels", 5, 5.5),
    ],
)
def test_one_runs_spread_is_that_of_the_reports_repeats(
    strategy: str, workers: int, deviation: float
) -> None:
    found = spread((strategy, 0.9), workers=(workers,))
    assert found.deviation == pytest.approx(deviation, abs=0.06)
    assert found.degrees == pytest.approx(3), "three pairs"


def test_the_spread_of_a_difference_of_means() -> None:
    """Two equal terms of three degrees of freedom have six, unequal ones fewer."""
    mine = ("labels", 0.9)
    one = spread(mine, workers=(2,))
    twice = spread(mine, mine, workers=(2,))
    assert twice.deviation == pytest.approx(one.deviation * math.sqrt(2))
    assert twice.degrees == pytest.approx(6)
    five, both = spread(mine, workers=(5,)), spread(mine, workers=(2, 5))
    assert both.deviation == pytest.approx(math.hypot(one.deviation, five.deviation) / 2)
    assert 3 < both.degrees < 6


def test_runs_that_may_be_lost_have_no_standard_deviation() -> None:
    with pytest.raises(AssertionError, match="lost"):
        spread(("labels", 0.9), workers=(10,))


def test_cells_of_two_tables_with_the_same_labels_are_two_points_of_the_runs_that_learnt() -> None:
    cell = {"protocol": "as coded", "row": "lr = 0.01", "column": "Fashion-MNIST"}
    runs = pl.DataFrame(
        [
            {"table": "11", **cell, "source": 38.73, "value": 48.0, "converged": True},
            {"table": "11", **cell, "source": 38.73, "value": 50.0, "converged": True},
            {"table": "11", **cell, "source": 38.73, "value": 10.0, "converged": False},
            {"table": "12", **cell, "source": 67.30, "value": 10.0, "converged": False},
        ]
    )
    assert cell_means(runs).select("source", "value").rows() == [(38.73, 49.0), (67.30, 10.0)]


CELL = {"table": "T", "protocol": "p", "row": "r", "column": "c"}
TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}


def row_of(cell: Cell, **facts: Any) -> pl.DataFrame:
    return pl.DataFrame([{**cell.labels, "seed": 0, "id": cell.experiment(0).id, **facts}])


def test_a_source_that_is_put_right_is_so_in_rows_of_earlier_times() -> None:
    old = row_of(
        Cell(CELL, TINY), value=None, source=1.0, source_seconds=2.0, test_accuracy=80.0, test_error=20.0
    )
    for fact, ours in (("test_accuracy", 80.0), ("test_error", 20.0)):
        now = restated(old, [Cell(CELL, TINY, source=3.0, metric=fact, source_metrics={"seconds": 4.0})])
        assert now.select("value", "source", "source_seconds").row(0) == (ours, 3.0, 4.0)


def test_rows_of_other_settings_are_counted() -> None:
    cell = Cell(CELL, TINY)
    assert outdated(row_of(cell), [cell]) == 0
    assert outdated(row_of(cell), [Cell(CELL, TINY | {"lr": 0.5})]) == 1
    assert outdated(row_of(cell), []) == 1


@pytest.mark.parametrize("name", list(STUDIES))
def test_committed_rows_are_of_the_settings_that_the_study_has(name: str) -> None:
    assert outdated(read_summaries(RESULTS / name), STUDIES[name].chosen("default")) == 0


def test_times_are_printed_beside_the_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summaries.parquet").write_bytes((RESULTS / "asu" / "summaries.parquet").read_bytes())
    show(ASU, tmp_path, "default", ["4"], None, rehearsal=False)
    printed = capsys.readouterr().out
    assert "Training time" in printed and "source (s)" in printed and "ratio" in printed
    verdicts = printed.split("claims")[1]
    assert "not replicated" in verdicts and "inconclusive" in verdicts, "seen on 80 columns too"


@pytest.mark.slow
def test_a_study_is_drawn_whole_from_its_committed_results(tmp_path: Path) -> None:
    for file in (RESULTS / "gap-aware").glob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    draw(GAP_AWARE, tmp_path)
    page = (tmp_path / "README.md").read_text()
    for figure in ("densities", "errors", "training", "gap", "delay_gap", "speeds"):
        assert (tmp_path / f"{figure}.png").stat().st_size > 10_000 and f"({figure}.png)" in page
        assert f"({figure}.png)\n\n{caption_of(Path(f'{figure}.png'))}" in page


def test_a_run_that_diverged_stays_in_the_mean_over_training() -> None:
    runs = pl.DataFrame([CELL | {"id": id, "seed": seed} for seed, id in enumerate(("whole", "short"))])
    points = [("whole", 0.0, 90.0), ("whole", 1.0, 40.0), ("whole", 2.0, 20.0), ("short", 0.0, 90.0)]
    points += [("short", 0.3, 88.0)]
    curves = pl.DataFrame(points, schema=["id", "epochs", "error"], orient="row")
    seen = with_curves(runs, curves).sort("id", "epochs").select("id", "epochs", "error").rows()
    assert seen == [("short", 0.0, 90.0), ("short", 1.0, 88.0), ("short", 2.0, 88.0), *points[:3]]


def test_an_epoch_that_only_some_runs_saw_is_left_out() -> None:
    runs = pl.DataFrame([CELL | {"id": id, "seed": seed} for seed, id in enumerate(("old", "new"))])
    points = [
        ("new", 0.0, 90.0),
        ("new", 1.0, 40.0),
        ("new", 2.0, 30.0),
        ("old", 1.0, 20.0),
        ("old", 2.0, 10.0),
    ]
    curves = pl.DataFrame(points, schema=["id", "epochs", "error"], orient="row")
    seen = with_curves(runs, curves).sort("id", "epochs").select("id", "epochs", "error").rows()
    assert seen == points[1:]


# Figures 1, 2 and 7: what five runs together give.


def landscape_cells(**settings: Any) -> list[Cell]:
    fixed = {"dataset": "quadratic(dimension=6)", "workers": 3, "lr": 0.1, "updates": 40, "snapshots": 6}
    return [
        Cell(
            {"table": "landscape", "protocol": "as coded", "row": f"m = {momentum:g}", "column": "3 workers"},
            fixed | settings | {"momentum": momentum, "eval_every": 0},
        )
        for momentum in epfl.MOMENTA
    ]


def surveyed(cells: list[Cell], folder: Path, say: Callable[[str], None] = lambda line: None) -> None:
    survey(cells, folder / "runs", folder / "results", 1, None, say, lambda done, what: None)


@pytest.mark.slow
def test_landscapes_are_kept_and_drawn_from_the_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.reproduction.papers.epfl.landscape.GRID", 5)
    cells = landscape_cells()
    for cell in cells:
        cell.experiment(0).run(tmp_path / "runs", jobs=1)
    surveyed(cells[:4], tmp_path)
    assert not (tmp_path / "results").exists(), "four of five are not the figure"
    surveyed(cells, tmp_path)
    table = pl.read_parquet(tmp_path / "results" / FILE)
    paths = table.filter(kind="path").group_by("view").agg(pl.col("run").n_unique()).sort("view")
    assert paths.rows() == [("five momenta", 5), ("without m = 0.99", 4)]
    assert len(table.filter(kind="grid")) == 2 * 25 and table["loss"].is_finite().all()
    monkeypatch.setattr(
        "straggler.reproduction.papers.epfl.landscape.landscape", lambda *_, **__: pytest.fail("again")
    )
    surveyed(cells, tmp_path)
    figures = landscape_figures(tmp_path / "results")
    assert [path.name for path in figures] == ["landscape-as-coded.png", "landscape-as-coded-close.png"]
    assert all(path.stat().st_size > 10_000 for path in figures)
    other = landscape_cells(lr=0.05)
    for cell in other:
        cell.experiment(0).run(tmp_path / "runs", jobs=1)
    with pytest.raises(pytest.fail.Exception, match="again"):
        surveyed(other, tmp_path)


def test_a_run_without_a_path_is_said_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.reproduction.papers.epfl.landscape.GRID", 3)
    cells, told = landscape_cells(), list[str]()
    blank = Cell(cells[-1].labels, {**cells[-1].settings, "snapshots": 0})
    cells = [*cells[:-1], blank]
    for cell in cells:
        cell.experiment(0).run(tmp_path / "runs", jobs=1)
    surveyed(cells, tmp_path, told.append)
    assert any("five momenta" in line and "snapshots" in line for line in told)
    assert set(pl.read_parquet(tmp_path / "results" / FILE)["view"]) == {"without m = 0.99"}


@pytest.mark.slow
def test_the_command_draws_the_landscape_of_the_runs_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("straggler.reproduction.papers.epfl.landscape.GRID", 3)
    tables = {"landscape": "five paths"}
    tiny = replace(EPFL, name="tiny", cells=lambda scale: landscape_cells(), tables=tables)
    monkeypatch.setitem(STUDIES, "tiny", tiny)
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    command.study("tiny", tables="landscape", dry_run=True, **folders)
    assert not (tmp_path / "results").exists()
    command.study("tiny", tables="landscape", seeds=1, jobs=1, **folders)
    page = (tmp_path / "results" / "README.md").read_text()
    assert "(landscape-as-coded.png)" in page and "(landscape-as-coded-close.png)" in page
    assert "one seed (as coded, without momentum .99)." in page


def test_the_landscape_cells_of_the_report_are_those_that_are_surveyed() -> None:
    cells = [cell for cell in EPFL.chosen("default", ["landscape"]) if cell.labels["protocol"] == "as coded"]
    assert [cell.labels["row"] for cell in cells] == [f"m = {momentum:g}" for momentum in epfl.MOMENTA]
    first: Experiment = cells[0].experiment(0)
    assert (first.workers, first.snapshots, first.stop) == (3, 18, "each")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_broad_table_is_shown_in_parts_that_fit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = tuple(f"{count} workers, m = 0.5" for count in range(12))
    layout = Layout("T", "caption", ("as written",), ("30 ms",), columns)
    found = [
        Entry("as written", "30 ms", column, mean_interval([88.888, 88.9, 88.91]), 3, 0, None)
        for column in columns
    ]
    screen = Console(width=width, file=io.StringIO())
    monkeypatch.setattr(command, "out", screen)
    tables = as_terminal(found, layout, fits)
    for table in tables:
        screen.print(table)
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert words.count("88.90") == words.count("workers,") == 12
    assert len(tables) == {60: 4, 80: 3, 100: 2, 200: 1}[width]
