"""The renderers: every mark is drawn by matplotlib and accepted by plotly."""

import json
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.figure import Figure

from straggler.analysis.figures import description as d
from straggler.analysis.figures.file_formats import FORMATS, save_figure
from straggler.analysis.figures.matplotlib_renderer import draw_figure, write_figure
from straggler.analysis.figures.plotly_renderer import render_plotly, write_page

GRID = np.linspace(-1, 1, 5)
HEIGHTS = GRID[None] ** 2 + GRID[:, None] ** 2
SURFACE = d.Surface(GRID, GRID, HEIGHTS, np.linspace(0, 2, 7), ["low", "high"], [0.0, 2.0], "height")
MARKS: dict[str, list[d.Mark]] = {
    "line": [d.Line([1, 2, 3], [1, 2, 4], "a", band=([0, 1, 2], [2, 3, 5]))],
    "bars of a line": [d.Line([1, 2], [1, 2], "a", error=([0.1, 0.1], [0.2, 0.2]), marker="circle")],
    "area": [d.Line([1, 2], [1, 2], filled=True, step="middle")],
    "scatter": [d.Scatter([1], [2], "a", 3, error=([0.1], [0.1]), x_error=([0.1], [0.1]), hover=["b"])],
    "ring": [d.Scatter([1], [2], fill="none"), d.Scatter([1], [2], fill="#ffffff", marker="star")],
    "bars": [
        d.Bars([0, 1], [3, 4], "a", error=([1, 1], [1, 1])),
        d.Bars([0, 1], [3, 4], "b", 9, hover=["x", "y"]),
    ],
    "spans": [d.Spans([0, 1], [0.0, 1.0], [1.0, 3.0], "computing", hatch="/", hover=["x", "y"])],
    "heatmap": [d.Heatmap(np.array([[1.0, np.nan]]), ["a", "b"], ["c"], "%", [["1\n2", "NC"]])],
    "reference lines": [d.HLine(1.0, "80 %"), d.VLine(1.0, "mean"), d.Line([0, 2], [0, 2])],
    "text": [d.Text([1], [1], ["word"], ["#ff0000"], "right"), d.Text([0.5], [0.5], ["x"], relative=True)],
    "contour": [SURFACE, d.Trajectory([0, 1], [0, 1], None, "run", hover=["a", "b"])],
}
SPACE = d.Panel([SURFACE, d.Trajectory([0, 1], [0, 1], [0.1, 0.2], "run", hover=["a", "b"])], z=d.Axis("z"))


def check_with_plotly(spec: d.FigureSpec) -> list[dict[str, object]]:
    """Return the traces; plotly raises on a property that it does not know."""
    rendered = json.loads(json.dumps(render_plotly(spec)).replace('"paper"', '"#ffffff"'))
    for view in rendered.get("views", [rendered]):
        go.Figure({"data": view["data"], "layout": view["layout"]})
    return list(rendered.get("views", [rendered])[0]["data"])


@pytest.mark.parametrize("name", MARKS)
def test_both_renderers_draw_every_mark(name: str, tmp_path: Path) -> None:
    spec = d.FigureSpec("f", "Title", [d.Panel(MARKS[name], d.Axis("x", low=0), d.Axis("y"))])
    assert write_figure(spec, tmp_path / "f.svg").stat().st_size > 1_000
    assert check_with_plotly(spec)


def test_panels_stand_in_a_grid_in_both_renderers(tmp_path: Path) -> None:
    flat = d.Panel(MARKS["line"], d.Axis("x", "log2"), d.Axis("y", "log", low=0.5))
    spec = d.FigureSpec("f", "Title", [flat, SPACE, flat], columns=2, caption="Bands.")
    assert len(draw_figure(spec).axes) == 3
    traces = check_with_plotly(spec)
    assert {trace.get("xaxis") or trace.get("scene") for trace in traces} == {None, "scene2", "x3"}
    page = write_page(spec, tmp_path / "f.html").read_text()
    assert "cdn.plot.ly" not in page.split("<body>")[0] and '"showSendToCloud": false' in page


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_written(suffix: str, tmp_path: Path) -> None:
    spec = d.FigureSpec("f", "Title", [d.Panel(MARKS["line"])])
    assert write_figure(spec, tmp_path / f"f{suffix}").stat().st_size > 1_000
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "f.png"
    target.write_text("old")
    monkeypatch.setattr(Figure, "savefig", lambda *a, **k: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        save_figure(Figure(), target)
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_lines_and_points_look_different() -> None:
    assert len({(d.choose_colour(n), d.choose_dash(n)) for n in range(32)}) == 32
    assert len({(d.choose_colour(n), d.choose_marker(n)) for n in range(64)}) == 64


def test_tooltips_of_spans_show_the_duration() -> None:
    """Plotly's x is the end of the bar, so the duration is in the custom data."""
    spec = d.FigureSpec("f", "", [d.Panel([d.Spans([3], [7.7], [8.8], "computing")], y=d.Axis("worker"))])
    (trace,) = render_plotly(spec)["data"]
    assert trace["base"] == [7.7] and trace["customdata"] == [[1.1, ""]]
    assert "(%{customdata[0]:.4~g} s)" in trace["hovertemplate"]


def test_labels_cannot_inject_html_into_tooltips() -> None:
    spec = d.FigureSpec("f", "", [d.Panel([d.Line([1, 2], [1, 2], "<b>%{x}</b>")])])
    hover = render_plotly(spec)["data"][0]["hovertemplate"]
    assert "<b>" not in hover and hover.count("%{x") == 1


def test_json_has_no_nan_and_few_digits() -> None:
    assert d.round_for_json([1.0, float("nan"), float("inf"), 1 / 3, "a", None]) == [
        1,
        None,
        None,
        0.333333,
        "a",
        None,
    ]


def test_a_large_legend_makes_the_figure_taller_but_not_its_panels() -> None:
    few, many = (
        d.FigureSpec("f", "", [d.Panel([d.Line([1, 2], [1, n], f"line {n}", n) for n in range(count)])])
        for count in (2, 20)
    )
    first, second = draw_figure(few), draw_figure(many)
    for figure in (first, second):
        figure.draw_without_rendering()
    heights = [figure.axes[0].get_window_extent().height for figure in (first, second)]
    assert heights[1] == pytest.approx(heights[0], rel=0.2) and second.get_figheight() > first.get_figheight()
    assert draw_figure(many, size=(8, 5)).get_size_inches().tolist() == [8, 5]


@pytest.mark.parametrize(("low", "high"), [(1.2, 1.4), (2.2, 6.0), (0.3, 40.0), (1e-3, 500.0)])
def test_logarithmic_axes_have_readable_numbers(low: float, high: float) -> None:
    panel = d.Panel([d.Line([0, 1], [low, high])], y=d.Axis("y", "log"))
    figure = draw_figure(d.FigureSpec("f", "", [panel]))
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    inside = [tick for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]
    assert 3 <= len(inside) <= 10
