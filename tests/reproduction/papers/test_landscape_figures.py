"""EPFL's landscapes: computed once from five runs, and drawn from the results alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from straggler.cli import study as command
from straggler.reproduction import Cell, load_study
from straggler.reproduction.papers.epfl import landscape
from straggler.reproduction.papers.epfl.landscape import FILE, MOMENTA, compute_landscapes, draw_landscapes


def make_cells(**settings: Any) -> list[Cell]:
    fixed = {"dataset": "quadratic(dimension=6)", "workers": 3, "lr": 0.1, "updates": 40, "snapshots": 6}
    common = {"table": "landscape", "protocol": "as coded", "mode": "async", "delay_ms": 0, "workers": 3}
    common |= {"split": "no split"}
    return [
        Cell(common | {"momentum": m}, fixed | {"momentum": m, "eval_every": 0} | settings) for m in MOMENTA
    ]


def compute(cells: list[Cell], folder: Path, say: Callable[[str], None] = lambda line: None) -> None:
    compute_landscapes(cells, folder / "runs", folder / "results", 1, None, say, lambda done, what: None)


def run(cells: list[Cell], folder: Path) -> None:
    for cell in cells:
        cell.experiment(0).run(folder / "runs", jobs=1)  # type: ignore[union-attr]


@pytest.mark.slow
def test_landscapes_are_computed_once_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landscape, "GRID", 5)
    cells = make_cells()
    run(cells, tmp_path)
    compute(cells[:4], tmp_path)
    assert not (tmp_path / "results").exists(), "four of five runs are not the figure"
    compute(cells, tmp_path)
    table = pl.read_parquet(tmp_path / "results" / FILE)
    paths = table.filter(kind="path").group_by("view").agg(pl.col("run").n_unique()).sort("view")
    assert paths.rows() == [("five momenta", 5), ("without m = 0.99", 4)]
    assert len(table.filter(kind="grid")) == 2 * 25 and table["loss"].is_finite().all()
    monkeypatch.setattr(landscape, "compute_landscape", lambda *_, **__: pytest.fail("again"))
    compute(cells, tmp_path)
    figures = [path for path, _ in draw_landscapes(tmp_path / "results")]
    assert [path.name for path in figures] == ["landscape-as-coded.png", "landscape-as-coded-close.png"]
    assert all(path.stat().st_size > 10_000 for path in figures)
    other = make_cells(lr=0.05)
    run(other, tmp_path)
    with pytest.raises(pytest.fail.Exception, match="again"):
        compute(other, tmp_path)


def test_run_without_snapshots_is_reported_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landscape, "GRID", 3)
    cells, messages = make_cells(), list[str]()
    cells[-1] = Cell(cells[-1].labels, {**cells[-1].settings, "snapshots": 0})
    run(cells, tmp_path)
    compute(cells, tmp_path, messages.append)
    assert any("five momenta" in line and "snapshots" in line for line in messages)
    assert set(pl.read_parquet(tmp_path / "results" / FILE)["view"]) == {"without m = 0.99"}


@pytest.mark.slow
def test_command_draws_the_landscape_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landscape, "GRID", 3)
    tiny = replace(load_study("epfl"), make_cells=lambda scale: make_cells())
    monkeypatch.setattr(command, "load_study", lambda name: tiny)
    monkeypatch.setattr("straggler.reproduction.page.judge_claims", lambda *_: [])
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    command.study("tiny", tables="landscape", dry_run=True, **folders)
    assert not (tmp_path / "results").exists()
    command.study("tiny", tables="landscape", seeds=1, cores=1, **folders)
    page = (tmp_path / "results" / "README.md").read_text()
    assert "(landscape-as-coded.png)" in page and "(landscape-as-coded-close.png)" in page
    assert "one seed (as coded, without momentum 0.99)." in page
