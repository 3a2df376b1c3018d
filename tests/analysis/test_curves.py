"""Curves: they show the record's numbers, and seeds as a mean with a confidence band."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from figure_testing import copy_with, train

from straggler.analysis.figures.curves import (
    AGAINST,
    add_progress,
    average_arrivals,
    build_curve_figure,
    build_gap_figure,
    choose_scale,
    format_time,
    thin_rows,
)
from straggler.analysis.figures.description import Line, Mark
from straggler.analysis.intervals import mean_interval
from straggler.record import Record

pytest_plugins = ["figure_testing"]


def first_lines(groups: dict[str, list[Record]], against: str = "epochs") -> tuple[list[Line], str]:
    """Return the lines of the first panel of the accuracy figure, and the caption."""
    figure = build_curve_figure("accuracy", groups, [against])
    assert figure is not None
    return [mark for mark in figure.choose_panels()[0].marks if isinstance(mark, Line)], figure.caption


@pytest.mark.parametrize("against", AGAINST)
def test_a_curve_shows_the_record(against: str, digits: Record) -> None:
    (line,), caption = first_lines({"a": [digits]}, against)
    curve = digits.curve.with_columns(bytes=(pl.col("bytes_up") + pl.col("bytes_down")) / 1e6)
    assert list(line.x) == curve[against].to_list() and caption == ""
    assert list(line.y) == digits.curve["test_accuracy"].to_list()


def shift(record: Record, by: float, rows: int = 100, stretch: float = 1.0) -> None:
    """Change the recorded curve."""
    table = record.curve.head(rows).with_columns(pl.col("test_accuracy") + by, pl.col("epochs") * stretch)
    table.write_parquet(record.path / "curve.parquet")


def reload(records: list[Record]) -> dict[str, list[Record]]:
    return {"a": [Record(record.path) for record in records]}


def test_three_seeds_are_a_mean_with_a_band(digits: Record, tmp_path: Path) -> None:
    seeds = [copy_with(digits, tmp_path, seed=seed) for seed in range(3)]
    for seed, record in enumerate(seeds):
        shift(record, seed)
    (line,), caption = first_lines(reload(seeds))
    assert np.asarray(line.y) == pytest.approx(digits.curve["test_accuracy"].to_numpy() + 1)
    assert line.band is not None and "95 % confidence interval" in caption
    half = mean_interval([0.0, 1.0, 2.0]).half
    assert np.asarray(line.band[1]) == pytest.approx(np.asarray(line.y) + half)


def test_seeds_evaluated_at_other_points_are_interpolated(digits: Record, tmp_path: Path) -> None:
    seeds = [copy_with(digits, tmp_path, seed=seed) for seed in range(3)]
    shift(seeds[0], 0.0, stretch=1.1)
    (line,), _ = first_lines(reload(seeds))
    assert line.band is not None and len(line.x) == 120
    assert max(line.x) == pytest.approx(digits.curve["epochs"].max())


def test_two_seeds_are_thin_lines_without_an_interval(digits: Record, tmp_path: Path) -> None:
    seeds = [copy_with(digits, tmp_path, seed=seed) for seed in range(2)]
    lines, caption = first_lines(reload(seeds))
    assert len(lines) == 2 and {line.colour for line in lines} == {0}
    assert all(line.band is None for line in lines) and "one seed each" in caption


def test_seeds_that_converge_only_partly_have_no_mean(digits: Record, tmp_path: Path) -> None:
    seeds = [copy_with(digits, tmp_path, {"converged": seed > 0}, seed=seed) for seed in range(3)]
    lines, _ = first_lines(reload(seeds))
    assert len(lines) == 3


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_single_evaluation_is_a_visible_point(seeds: int, tmp_path: Path) -> None:
    tiny = {"dataset": "digits", "model": "linear", "gradients": 8, "eval_every": 0, "delay": []}
    (line,), _ = first_lines(
        {"run": [train(tmp_path, **tiny, seed=seed) for seed in range(seeds)]}, "seconds"
    )
    assert len(line.x) == 1 and (line.error is not None) == (seeds == 3)


def test_several_settings_have_a_panel_for_training(digits: Record) -> None:
    figure = build_curve_figure("loss", {"a": [digits], "b": [digits]}, ["seconds"])
    assert figure is not None
    assert [panel.y.label for panel in figure.choose_panels()] == ["test loss", "batch loss"]
    one = build_curve_figure("loss", {"a": [digits], "b": [digits]}, training=False)
    assert one is not None and all(len(panels) == 1 for panels in one.views.values())


@pytest.mark.parametrize(("largest", "scale"), [(99.0, "linear"), (101.0, "log")])
def test_exploding_values_have_a_logarithmic_axis(largest: float, scale: str) -> None:
    marks: list[Mark] = [Line([0.0, 1.0, 2.0], [0.5, 1.0, largest])]
    assert choose_scale("loss", marks).scale == scale


def test_time_is_virtual_or_wall_clock(digits: Record, tmp_path: Path) -> None:
    real = copy_with(digits, tmp_path, engine="processes")
    assert format_time([digits]) == "virtual time (s)" and format_time([real]) == "wall-clock time (s)"
    assert "virtual and wall-clock" in format_time([digits, real])


def test_averages_of_arrivals_have_few_points() -> None:
    table = pl.DataFrame({"time": np.arange(10_000.0), "gap": np.arange(10_000.0) ** 2})
    thin = average_arrivals(table, "time", "gap")
    assert 100 <= len(thin) <= 120
    assert thin["x"][0] == table["time"][:84].mean()
    assert thin["y"][0] == pytest.approx(table["gap"][:84].mean())
    assert average_arrivals(table.head(50), "time", "gap").rows() == table.head(50).rows()


def test_thinned_rows_include_both_ends() -> None:
    few = thin_rows(pl.DataFrame({"x": range(100_000)}), 400)["x"].to_list()
    assert few[0] == 0 and few[-1] == 99_999 and len(few) <= 400
    assert max(np.diff(few)) <= 2 * 100_000 / 400
    assert len(thin_rows(pl.DataFrame({"x": range(300)}), 400)) == 300


def test_progress_of_arrivals_ends_with_the_run(runs: dict[str, Record]) -> None:
    for record in runs.values():
        last = add_progress(record).row(-1, named=True)
        assert last["gradients"] == record.summary["gradients"]
        assert last["epochs"] == pytest.approx(record.summary["epochs"])
        assert last["updates"] <= record.summary["updates"]


def test_the_gap_figure_has_gap_and_staleness(runs: dict[str, Record]) -> None:
    figure = build_gap_figure({name: [run] for name, run in runs.items()})
    for panel in figure.choose_panels():
        assert len(panel.marks) == len(runs)
