"""Reports in a browser without a network: the surface of a cached landscape, and studies."""

import shutil
from pathlib import Path
from typing import Any, get_args

import plotly.graph_objects as go
import polars as pl
import pytest
from playwright.sync_api import Browser, expect
from web_testing import TIMEOUT_MS, BrowserPage, wait_for_figure

from straggler.analysis.figures.plotly_renderer import render_plotly
from straggler.experiment import Experiment
from straggler.reproduction.verdicts import Verdict
from straggler.running.landscape import compute_landscape
from straggler.web.gallery import build_path_figure
from straggler.web.report import render_html_report
from straggler.web.run_facts import RunFacts
from straggler.web.study_page import StudyPage

RESULTS = Path(__file__).parents[2] / "results"
TINY: dict[str, Any] = {"dataset": "digits", "model": "linear", "workers": 3, "updates": 30, "snapshots": 6}


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two runs, without a landscape."""
    out = tmp_path / "runs"
    return [Experiment(**TINY, lr=lr).run(out, jobs=1).path for lr in (0.05, 0.2)]


def cache_landscape(*runs: Path, grid: int = 4) -> Path:
    """Compute the landscape of these runs; return its cache file."""
    before = set(runs[0].parent.glob("landscapes/*"))
    compute_landscape({run.name: RunFacts(run).record for run in runs}, grid=grid, samples=50, jobs=1)
    return (set(runs[0].parent.glob("landscapes/*")) - before).pop()


def render_paths(*runs: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the figure as JSON, and the problems."""
    facts = {run.name: RunFacts(run) for run in runs}
    spec = build_path_figure(facts, {})
    assert spec is not None
    figure = render_plotly(spec)
    go.Figure({"data": figure["data"], "layout": figure["layout"]})  # rejects unknown properties
    return figure, [line for run in facts.values() for line in run.problems]


def list_types(figure: dict[str, Any]) -> list[str]:
    return [trace["type"] for trace in figure["data"]]


@pytest.mark.slow
def test_a_surface_belongs_to_exactly_its_runs_in_any_order(pair: list[Path]) -> None:
    first, second = pair
    figure, _ = render_paths(first, second)
    assert list_types(figure) == ["scatter3d"] * 2
    assert f"straggler landscape {first.name} {second.name}" in figure["note"]
    points = pl.read_parquet(cache_landscape(second, first))
    for order in (pair, pair[::-1]):
        figure, problems = render_paths(*order)
        assert list_types(figure) == ["surface", "scatter3d", "scatter3d"] and problems == []
        assert [trace["name"] for trace in figure["data"][1:]] == [run.name for run in order]
    grid = points.filter(kind="grid").sort("b", "a")["loss"].log10().to_list()
    assert [height for row in figure["data"][0]["z"] for height in row] == pytest.approx(grid, rel=1e-5)
    assert "50 test samples" in figure["note"]
    assert "% of the variance" in str(figure["layout"]["scene"]["xaxis"])
    assert list_types(render_paths(first)[0]) == ["scatter3d"]
    cache_landscape(first)
    assert list_types(render_paths(first)[0]) == ["surface", "scatter3d"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["nonsense", "other columns", "other points", "unfinished", "infinite"])
def test_a_damaged_grid_leaves_the_paths(pair: list[Path], damage: str) -> None:
    file = cache_landscape(pair[0])
    whole = pl.read_parquet(file)
    changed = {
        "other columns": whole.rename({"loss": "gain"}),
        "other points": whole[:-3],
        "unfinished": whole.with_columns(loss=pl.lit(None, dtype=pl.Float64)),
        "infinite": whole.with_columns(loss=pl.lit(float("inf"))),
    }
    if damage == "nonsense":
        file.write_bytes(b"\x00nonsense")
    else:
        changed[damage].write_parquet(file)
    figure, problems = render_paths(pair[0])
    assert list_types(figure) == ["scatter3d"] and "straggler landscape" in figure["note"]
    assert bool(problems) == (damage != "unfinished")


@pytest.mark.slow
def test_a_surface_is_drawn_from_disk(browser: Browser, pair: list[Path], tmp_path: Path) -> None:
    cache_landscape(*pair)
    file = tmp_path / "report.html"
    file.write_text(render_html_report([RunFacts(run) for run in pair]))
    with BrowserPage(browser, offline=True) as page:
        page.goto(file.as_uri())
        figure = wait_for_figure(page, "trajectory")
        assert figure.locator(".plot").evaluate("plot => plot.data[0].type") == "surface"
        assert len(set(figure.locator("canvas").first.screenshot())) > 10  # more than one colour


@pytest.mark.slow
def test_a_study_is_shown_with_its_sources_numbers(browser: Browser, tmp_path: Path) -> None:
    folder = shutil.copytree(RESULTS / "epfl", tmp_path / "epfl")
    file = tmp_path / "study.html"
    file.write_text(render_html_report([], [StudyPage(folder)]))
    with BrowserPage(browser, offline=True) as page:
        page.goto(file.as_uri())
        page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        claims = page.locator("table", has=page.get_by_role("columnheader", name="verdict", exact=True))
        expect(claims).to_be_visible(timeout=TIMEOUT_MS)
        verdicts = claims.locator("tbody tr td:nth-child(2)").all_inner_texts()
        assert "replicated" in verdicts
        assert set(verdicts) <= set(get_args(Verdict))
        table = page.locator("details[aria-label='II'] table").first
        expect(table).to_be_visible()
        protocols = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
        assert {"as coded", "source"} <= set(protocols)
        broken = "() => [...document.images].filter((one) => !one.naturalWidth).length"
        assert page.locator("img").count() > 0 and page.evaluate(broken) == 0
