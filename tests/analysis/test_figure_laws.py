"""Laws of figures: every kind, axis, style and format; one colour per method; text that does not overlap."""

import re
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from figure_testing import copy_with, legend_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from straggler.algorithms.methods import METHODS
from straggler.analysis.figures import description as d
from straggler.analysis.figures.colours import POSITIONS, assign_colours, find_position
from straggler.analysis.figures.curves import AGAINST, build_curve_figure, build_gap_figure
from straggler.analysis.figures.file_formats import FORMATS, save_figure
from straggler.analysis.figures.matplotlib_renderer import draw_figure
from straggler.analysis.figures.plot import KINDS, build_figure, plot
from straggler.analysis.figures.styles import STYLES, find_style
from straggler.analysis.labels import name_method
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record

pytest_plugins = ["figure_testing"]

SHOWN_METHODS = ("asgd", "ssgd", "sa", "fedbuff")
WITH_AXIS = ("accuracy", "loss", "gap")
BY_METHOD = [kind for kind in KINDS if kind not in ("timeline", "workers", "heatmap")]
UNITS = re.compile(
    r"\(.+\)|^(updates|gradients.*|epochs|workers?|class|learning rate|momentum|batches)$|loss|norm"
)


@pytest.fixture(scope="module")
def methods(digits: Record, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    """Three seeds of each of several methods, with different numbers."""
    folder, found = tmp_path_factory.mktemp("methods"), {}
    for place, method in enumerate(SHOWN_METHODS):
        settings = Experiment(method=method, workers=8).to_dict()
        chosen = {key: settings[key] for key in ("method", "policy", "correction", "optimizer", "work")}
        found[method] = [
            copy_with(
                digits,
                folder / method / str(seed),
                {
                    "test_accuracy": 70.0 + place + seed,
                    "seconds": 10.0 + seed * place,
                    "weights_sha256": f"{place}{seed}",
                },
                seed=seed,
                **chosen,
            )
            for seed in range(3)
        ]
    return found


def choose_runs(kind: str, methods: dict[str, list[Record]]) -> list[Record]:
    """Return runs that a kind of figure can show: some need one setting."""
    one_setting = kind in ("timeline", "workers", "comparison", "heatmap")
    return (
        methods["asgd"][:2] if one_setting else [record for records in methods.values() for record in records]
    )


def describe(kind: str, records: Any, against: str = "seconds") -> d.FigureSpec:
    return build_figure(records, kind, against, None, Path("runs"), lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "against"),
    [*product(WITH_AXIS, AGAINST), *((kind, "seconds") for kind in KINDS if kind not in WITH_AXIS)],
)
def test_every_kind_is_drawn_on_every_axis_with_units(
    kind: str, against: str, methods: dict[str, list[Record]]
) -> None:
    figure = plot(choose_runs(kind, methods), kind, against=against)
    for axes in figure.axes:
        for label in (axes.get_xlabel(), axes.get_ylabel()):
            assert not label or UNITS.search(label), label
    names = [axes for axes in figure.axes if axes.get_xlabel() and axes.get_ylabel()]
    assert names
    if kind in WITH_AXIS:
        words = {"seconds": "time (s)", "bytes": "data sent", "gradients": "gradients of all workers"}
        assert words.get(against, against) in names[0].get_xlabel()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_in_every_format(
    kind: str, methods: dict[str, list[Record]], tmp_path: Path
) -> None:
    figure = plot(choose_runs(kind, methods), kind, style="paper")
    begins = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml", ".pgf": b"%% A figure"}
    assert begins.keys() == {*FORMATS}
    files = [save_figure(figure, tmp_path / f"{kind}{suffix}") for suffix in begins]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    for file, start in zip(files, begins.values(), strict=True):
        assert file.read_bytes().startswith(start)
    text = files[-1].read_text()  # one file, complete, in which LaTeX sets the text
    assert text.count(r"\begin{pgfscope}") == text.count(r"\end{pgfscope}") > 0
    assert text.rstrip().endswith(r"\endgroup") and r"\pgftext" in text and "includegraphics" not in text


@pytest.mark.parametrize("kind", BY_METHOD)
def test_legends_have_method_names(kind: str, methods: dict[str, list[Record]]) -> None:
    if kind == "comparison":
        figure = plot([records[0] for records in methods.values()], kind)
    else:
        figure = plot(choose_runs(kind, methods), kind)
    entries = [re.sub(r" \(.*", "", entry) for entry in legend_of(figure)]
    assert entries[: len(methods)] == sorted(methods, key=list(METHODS).index)


def colours_of(spec: d.FigureSpec) -> dict[str, set[str]]:
    """Return the colours of the marks of a figure by the method in their labels."""
    found: dict[str, set[str]] = {}
    for panel in spec.choose_panels():
        for mark in panel.marks:
            name = re.sub(r" \(.*", "", getattr(mark, "label", "") or getattr(mark, "group", ""))
            if name in METHODS:
                found.setdefault(name, set()).add(d.choose_colour(mark.colour))  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("kind", BY_METHOD)
def test_a_method_has_its_colour_in_every_kind_of_figure(kind: str, methods: dict[str, list[Record]]) -> None:
    """With other methods beside it too, so that figures of one paper can be read together."""
    for names in (SHOWN_METHODS, SHOWN_METHODS[1:], SHOWN_METHODS[::2]):
        count = 1 if kind == "comparison" else 3
        spec = describe(kind, [record for name in names for record in methods[name][:count]])
        assert colours_of(spec) == {name: {d.choose_colour(find_position(name))} for name in names}


def test_every_method_has_a_place_in_the_palette_of_its_own() -> None:
    assert POSITIONS.keys() == METHODS.keys()
    looks = {(d.choose_colour(n), d.choose_marker(n)) for n in POSITIONS.values()}
    assert len(looks) == len(METHODS)
    assert find_position("k-sync(k=7)") == POSITIONS["k-sync"]


@pytest.mark.parametrize("pair", [*combinations(["asgd", "ringmaster", "smega2", "custom × thing"], 2)])
def test_settings_in_one_figure_look_different(pair: tuple[str, str], digits: Record) -> None:
    class Run:
        path, summary, curve, jobs = digits.path, digits.summary, digits.curve, digits.jobs

        def __init__(self, method: str, lr: float) -> None:
            self.settings = {"method": "", "policy": "", "lr": lr}
            if method in METHODS:
                settings = Experiment(method=method, workers=8).to_dict()
                self.settings |= {key: settings[key] for key in settings if key != "lr"}

    groups = {f"{method} {n}": [Run(method, n)] for method in pair for n in range(4)}
    found = assign_colours(groups)
    assert len({(d.choose_colour(n), d.choose_dash(n), d.choose_marker(n)) for n in found.values()}) == 8
    for label in groups:
        hues = {d.choose_colour(found[other]) for other in groups if other[:-1] == label[:-1]}
        assert len(hues) == 1 or name_method(groups[label][0].settings) == "?"
    single = assign_colours({label: runs for label, runs in groups.items() if label.startswith(pair[0])})
    assert len({d.choose_colour(n) for n in single.values()}) == 4


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, as the web's guidelines define it."""

    def luminance(colour: str) -> float:
        channels = np.array([int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_seen_on_light_and_dark_pages() -> None:
    """Black becomes the colour of the text on a page. The two brightest also have dashes."""
    for colour in set(d.COLOURS) - {"#000000"}:
        assert contrast(colour, "#1e2329") >= 3 and contrast(colour, "#ffffff") >= 2.2


def visible_texts(figure: Figure, axes: Axes) -> dict[str, list[Text]]:
    """Return the labels of the ticks of both axes, without empty ones."""
    found = {"x": axes.get_xticklabels(which="both"), "y": axes.get_yticklabels(which="both")}
    inside = axes.get_window_extent().padded(2)
    return {
        name: [
            text for text in texts if text.get_text() and text.get_visible() and is_within(text, name, inside)
        ]
        for name, texts in found.items()
    }


def is_within(text: Text, name: str, inside: Any) -> bool:
    box = text.get_window_extent()
    middle = (box.x0 + box.x1) / 2 if name == "x" else (box.y0 + box.y1) / 2
    low, high = (inside.x0, inside.x1) if name == "x" else (inside.y0, inside.y1)
    return bool(low <= middle <= high)


def check_layout(figure: Figure) -> None:
    """Check that labels of ticks do not overlap, and that all text is within the figure."""
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    for axes in figure.axes:
        if axes.name == "3d" or not axes.axison:
            continue
        for name, texts in visible_texts(figure, axes).items():
            starts = sorted(
                (box.x0, box.x1) if name == "x" else (box.y0, box.y1)
                for box in (text.get_window_extent() for text in texts)
            )
            assert all(after[0] > before[1] - 1 for before, after in pairwise(starts)), (
                name,
                [text.get_text() for text in texts],
            )
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            box = label.get_window_extent()
            assert not label.get_text() or (
                box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
            ), label
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert box.x0 >= -1 and box.x1 <= width + 1, legend


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", ["screen", "paper", pytest.param("paper-wide", marks=pytest.mark.chaos)])
def test_text_does_not_overlap(kind: str, style: str, methods: dict[str, list[Record]]) -> None:
    figure = plot(choose_runs(kind, methods), kind, against="gradients", style=style)
    check_layout(figure)
    if (width := find_style(style).width) is not None:
        assert figure.get_figwidth() == width
        assert all(text.get_fontsize() >= 5 for text in figure.findobj(Text) if text.get_text())


def test_every_style_is_checked() -> None:
    assert {*STYLES} == {"screen", "paper", "paper-wide"}


def test_long_names_below_an_axis_are_turned() -> None:
    names = [f"a long name {n}" for n in range(10)]
    panel = d.Panel([d.Bars(names, range(10))], d.Axis("class", "category"), d.Axis("share (%)"))
    check_layout(draw_figure(d.FigureSpec("f", "", [panel]), style="paper"))
    check_layout(
        draw_figure(d.FigureSpec("f", "", [d.Panel([d.Line([0, 123_456_789], [0, 1])])]), size=(1.6, 1.5))
    )
    check_layout(
        draw_figure(
            d.FigureSpec("f", "", [d.Panel([d.Line([1, 1024], [0, 1])], d.Axis("workers", "log2"))]),
            size=(1.6, 1.5),
        )
    )


def test_an_own_size_wins_over_the_style(digits: Record) -> None:
    assert plot(digits, style="paper", size=(5, 4)).get_size_inches().tolist() == [5, 4]
    with pytest.raises(InputError, match=r"Unknown style 'papre'\. Did you mean"):
        plot(digits, style="papre")


def test_a_paper_has_no_caption_in_the_figure_and_lines_that_differ_in_grey(
    methods: dict[str, list[Record]],
) -> None:
    figure = plot(choose_runs("loss", methods), "loss", style="paper")
    assert not figure.get_suptitle() and "95 %" in plot(choose_runs("loss", methods), "loss").get_suptitle()
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 1]  # type: ignore[arg-type]
    looks = {(line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines) == len(methods)
    bars = plot(choose_runs("staleness", methods), "staleness", style="paper").axes[0].containers
    assert len({patch.get_hatch() for bar in bars for patch in bar if hasattr(patch, "get_hatch")}) == len(
        methods
    )


@pytest.mark.parametrize("against", AGAINST)
def test_seeds_have_a_band_on_every_axis(against: str, methods: dict[str, list[Record]]) -> None:
    for spec in (build_curve_figure("accuracy", methods, [against]), build_gap_figure(methods, [against])):
        assert spec is not None
        for panel in spec.choose_panels():
            assert [mark.label for mark in panel.marks if isinstance(mark, d.Line) and mark.band] == [
                *methods
            ]


@pytest.mark.parametrize("worst", [1e3, 1e20, 1e200])
def test_a_diverged_run_does_not_shrink_the_others(worst: float, digits: Record, tmp_path: Path) -> None:
    good, bad = copy_with(digits, tmp_path, lr=0.1), copy_with(digits, tmp_path, {"converged": False}, lr=9.0)
    table = bad.curve.with_columns(test_loss=np.geomspace(2, worst, len(bad.curve)))
    table.write_parquet(bad.path / "curve.parquet")
    alone, both = (
        build_curve_figure("loss", groups)
        for groups in ({"a": [good], "c": [good]}, {"a": [good], "b": [Record(bad.path)]})
    )
    assert alone is not None and both is not None and "diverged" in both.caption and not alone.caption
    limits = [draw_figure(spec).axes[0].get_ylim() for spec in (alone, both)]
    assert np.diff(limits[1])[0] < 1.3 * np.diff(limits[0])[0]
    only = build_curve_figure("loss", {"b": [Record(bad.path)], "c": [Record(bad.path)]})
    assert only is not None and draw_figure(only).axes[0].get_ylim()[1] >= worst  # nothing else to show


def test_drawing_leaves_no_global_setting(digits: Record) -> None:
    before = dict(mpl.rcParams)
    plot(digits, style="paper")
    assert dict(mpl.rcParams) == before
