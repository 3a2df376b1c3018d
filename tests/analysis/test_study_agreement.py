"""Agreement with a source, and the forest plot of claims."""

from pathlib import Path

import polars as pl
import pytest

from straggler.analysis.figures.description import Scatter, Spans
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.study_agreement import HEADS, measure_agreement
from straggler.analysis.study_figures import VERDICTS, Effect, describe_forest


def make_cell(row: str, source: float, values: list[float], protocol: str = "p") -> list[dict[str, object]]:
    place = {"table": "T", "protocol": protocol, "row": row, "column": "c", "metric": "test_accuracy"}
    return [
        place | {"seed": seed, "source": source, "value": value, "converged": value > 12, "workers": 2}
        for seed, value in enumerate(values)
    ]


def test_cells_are_compared_where_both_converged() -> None:
    rows = make_cell("near", 80.5, [79.0, 80.0, 81.0])
    rows += make_cell("far", 60.0, [79.0, 80.0, 81.0])
    rows += make_cell("few", 70.0, [75.0, 10.0])  # no interval, but a difference
    rows += make_cell("lost", 10.0, [10.0, 80.0])
    rows += make_cell("unknown", 50.0, [], "q")
    (found,) = measure_agreement(pl.DataFrame(rows), source_runs=1)
    assert (found.inside, found.intervals, len(found.differences)) == (1, 2, 3)
    assert (found.lost, found.lost_runs) == (1, (1, 2))
    assert "1 of 2 cells (50 %)" in found.sentence and "median difference +5.00" in found.sentence
    assert len(found.row()) == len(HEADS) and found.row()[-1] == "1 of 2 runs"
    (split,) = measure_agreement(pl.DataFrame(rows), 1, by=["workers"])
    assert split.name == "p, workers=2"


def test_means_of_more_runs_must_be_nearer() -> None:
    rows = pl.DataFrame(make_cell("a", 83.0, [79.0, 80.0, 81.0]))
    one, many = (measure_agreement(rows, runs)[0].inside for runs in (1, 1000))
    assert (one, many) == (1, 0)


@pytest.mark.parametrize("extreme", [False, True])
def test_forest_has_a_row_per_claim_and_a_panel_per_unit(extreme: bool, tmp_path: Path) -> None:
    width = 1e9 if extreme else 2.0
    effects = [
        Effect(f"{unit} {verdict}", unit, verdict, 1.0, 1 - width, 1 + width, 0.0, float("inf"), 3.0)
        for unit in ("points", "×")
        for verdict in VERDICTS
    ]
    spec = describe_forest(effects)
    assert [panel.x.label for panel in spec.panels] == ["difference of accuracy (points)", "ratio"]
    for panel in spec.panels:
        bands = [mark for mark in panel.marks if isinstance(mark, Spans)]
        symbols = [mark for mark in panel.marks if isinstance(mark, Scatter)]
        assert len(bands) == 1 and {mark.label for mark in symbols} == {*VERDICTS, "source"}
        assert len({mark.marker for mark in symbols}) == len(symbols), "told apart without colours"
        assert panel.x.low is not None and panel.x.high is not None
        assert -10 < panel.x.low < panel.x.high < 10, "a long interval does not shrink the others"
    assert write_figure(spec, tmp_path / "forest.png").stat().st_size > 5_000
