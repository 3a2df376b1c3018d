"""Tables of a study: mean, interval, NC and the source's number, in four formats."""

import io

import polars as pl
import pytest
from rich.console import Console
from rich.table import Table

from straggler.analysis.intervals import mean_interval
from straggler.analysis.study_figures import average_cells, join_curves
from straggler.analysis.study_tables import (
    FilledTable,
    TableCell,
    build_time_rows,
    fill_table,
    format_latex_table,
)
from straggler.analysis.tables import format_markdown_table


def make_rows(values: dict[int, dict[str, float]], **more: object) -> pl.DataFrame:
    place = {"table": "T", "protocol": "p", "column": "c", **more}
    rows = [
        {**place, "row": row, "seed": seed, "value": value, "converged": value > 12}
        for seed, cells in values.items()
        for row, value in cells.items()
    ]
    return pl.DataFrame(rows)


def make_table(values: dict[int, dict[str, float]], source: float = 88.5) -> FilledTable:
    runs = make_rows(values, source=source)
    return fill_table("T", "50 % of it", runs, runs)


def test_grid_shows_mean_interval_seeds_nc_and_the_source() -> None:
    values = {seed: {"a": 88.0 + seed, "b": 10.0} for seed in range(3)}
    text = format_markdown_table(*make_table(values).grid())
    assert "| a | p | 3 | 89.00 ± 2.48 |" in text and "| a | source |  | 88.50 |" in text
    assert "| b | p | 3 | NC |" in text
    two = format_markdown_table(*make_table({0: {"a": 88.0}, 1: {"a": 90.0}}).grid())
    assert "| a | p | 2 | 89.00 |" in two, "no interval below three seeds"
    assert make_table({0: {"a": 88.0}, 1: {"a": 10.0}}).cells[0].text() == "88.00 (1 of 2 NC)"


def test_tables_as_csv_and_latex() -> None:
    table = make_table({0: {"a": 88.0}, 1: {"a": 90.0}, 2: {"a": 89.0}}, source=10.0)
    assert table.csv().splitlines()[1] == "T,p,a,c,89.0,86.5159,91.4841,3,0,10.0"
    latex = table.latex()
    assert (
        r"\caption{50 \% of it}" in latex and r"a & p & 3 & 89.00 $\pm$ 2.48 \\" in latex and "& NC" in latex
    )
    bracket = format_latex_table("lists", ["a", "b"], [["1", "[]"], ["[2]", "3"]], names=1)
    assert "\n{}[2] & 3" in bracket, "or LaTeX reads it as an argument of the row before"


def test_times_are_compared_with_the_sources() -> None:
    measured = make_rows({0: {"a": 88.0}}, seconds=10.0, source_seconds=340.0)
    again = measured.with_columns(protocol=pl.lit("q"))  # takes as long
    first = measured.with_columns(table=pl.lit("S"), seconds=20.0)
    lost = first.with_columns(seconds=1.0, seed=1, converged=False).cast(first.schema)  # it ended early
    assert build_time_rows(pl.concat([measured, again, first, lost]), "seconds", ["S", "T"])[1] == [
        ["S", "a", "c", "p", "340.0", "20.0", "17.00"],
        ["T", "a", "c", "p, q", "340.0", "10.0", "34.00"],
    ]


def test_fastest_seed_counts_for_the_hosts_time() -> None:
    times = {"host_seconds": 40.0, "source_host_seconds": 400.0, "seconds": 1.0, "source_seconds": 30.0}
    quiet = make_rows({0: {"a": 88.0}}, **times)
    busy = make_rows({1: {"a": 88.0}}, **times | {"host_seconds": 800.0, "seconds": 2.0})
    both = pl.concat([quiet, busy])
    assert [row[4:] for row in build_time_rows(both, "host_seconds", ["T"])[1]] == [
        ["400.0", "40.0", "10.00"]
    ]
    assert [row[4:] for row in build_time_rows(both, "seconds", ["T"])[1]] == [["30.0", "1.5", "20.00"]]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_wide_table_is_split_into_parts_that_fit(width: int) -> None:
    columns = [f"{count} workers, m = 0.5" for count in range(12)]
    interval = mean_interval([88.888, 88.9, 88.91])
    cells = [TableCell("as written", "30 ms", column, interval, 3, 0, None) for column in columns]
    screen = Console(width=width, file=io.StringIO())

    def fits(table: Table) -> bool:
        return screen.measure(table, options=screen.options.update(max_width=10_000)).minimum + 3 <= width

    for table in FilledTable("T", "caption", cells).terminal(fits):
        screen.print(table)
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert words.count("88.90") == words.count("workers,") == 12


def test_means_leave_out_runs_that_did_not_converge_if_others_did() -> None:
    measured = make_rows({0: {"a": 80.0, "b": 10.0}, 1: {"a": 10.0, "b": 10.0}}, source=None)
    assert dict(average_cells(measured).select("row", "value").iter_rows()) == {"a": 80.0, "b": 10.0}
    other = measured.with_columns(table=pl.lit("U"))
    assert len(average_cells(pl.concat([measured, other]))) == 4, "equal labels in two tables are two cells"


def join(points: list[tuple[str, float, float]], ids: tuple[str, str]) -> list[tuple[object, ...]]:
    place = {"protocol": "p", "method": "m", "workers": 4}
    runs = pl.DataFrame([place | {"id": id, "seed": seed} for seed, id in enumerate(ids)])
    curves = pl.DataFrame(points, schema=["id", "epochs", "error"], orient="row")
    return join_curves(runs, curves).sort("id", "epochs").select("id", "epochs", "error").rows()


def test_diverged_run_keeps_its_last_evaluation() -> None:
    points = [("whole", 0.0, 90.0), ("whole", 1.0, 40.0), ("whole", 2.0, 20.0), ("short", 0.0, 90.0)]
    seen = join([*points, ("short", 0.3, 88.0)], ("whole", "short"))
    assert seen == [("short", 0.0, 90.0), ("short", 1.0, 88.0), ("short", 2.0, 88.0), *points[:3]]


def test_epoch_that_only_some_runs_have_is_left_out() -> None:
    new = [("new", 0.0, 90.0), ("new", 1.0, 40.0), ("new", 2.0, 30.0)]
    old = [("old", 1.0, 20.0), ("old", 2.0, 10.0)]
    assert join(new + old, ("old", "new")) == new[1:] + old
