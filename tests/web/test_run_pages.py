"""The list of runs, comparisons, sweeps and the worker panel in headless Chromium."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from playwright.sync_api import Browser, Page, expect
from web_testing import (
    TIMEOUT_MS,
    BrowserPage,
    Site,
    find_low_contrast,
    find_unnamed_controls,
    serve_site,
    wait_for_figure,
)

from straggler.experiment import Experiment
from straggler.web.run_labels import LABEL_FILE, read_labels

pytestmark = pytest.mark.slow
TINY: dict[str, Any] = {"dataset": "digits", "model": "linear", "compute": "gamma(1, 0.3)", "epochs": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "fast": {"lr": 0.05},
    "seed1": {"lr": 0.05, "seed": 1},
    "seed2": {"lr": 0.05, "seed": 2},
    "sync": {"method": "ssgd", "lr": 0.05},
    "momentum": {"method": "dana", "lr": 0.02, "workers": 8, "delay": ["constant(2, workers=[0])"]},
    "lost": {"lr": 0.2},
    "real": {"lr": 0.1},
    "doomed": {"lr": 0.3},
}
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


def edit_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with runs of several methods: one did not converge, one says that it ran in real time."""
    folder = tmp_path_factory.mktemp("pages")
    for name, settings in SETTINGS.items():
        path = Experiment(**TINY | {"eval_every": 0.25} | settings).run(folder / "made", jobs=1).path
        shutil.copytree(path, folder / "runs" / name)
    edit_json(folder / "runs" / "lost" / "summary.json", converged=False)
    real = folder / "runs" / "real"
    (real / "experiment.toml").write_text(
        (real / "experiment.toml").read_text().replace('"simulator"', '"processes"')
    )
    events = [{"time": 1.0, "worker": 1, "what": "killed (signal 9)"}]
    (folder / "runs" / "momentum" / "events.json").write_text(json.dumps(events))
    rows = [
        {"method": method, "lr": lr, "seed": seed, "id": "fast", "test_accuracy": 80.0 + seed, "seconds": lr}
        for method in ("asgd", "ssgd")
        for lr in (0.1, 0.2)
        for seed in range(3)
    ]
    (folder / "results" / "rates").mkdir(parents=True)
    pl.DataFrame(rows).write_parquet(folder / "results" / "rates" / "summaries.parquet")
    with serve_site(folder / "runs", folder / "results") as found:
        yield found


def open_list(page: Page, here: Site, query: str = "") -> Any:
    page.goto(f"{here.url}/{query}")
    rows = page.locator("#table tbody tr")
    expect(page.locator("#count")).to_contain_text(f"of {len(here.list_ids())} runs", timeout=TIMEOUT_MS)
    return rows


def list_names(page: Page) -> list[str]:
    """Return the ids of the runs in the table, in order."""
    links = page.locator("#table tbody td.name a").evaluate_all("all => all.map((a) => a.hash)")
    return [link.removeprefix("#/run/") for link in links]


QUERIES: dict[str, set[str]] = {
    "lr=0.05": {"fast", "seed1", "seed2", "sync"},
    "lr = 0.05 seed>=1": {"seed1", "seed2"},
    "lr>0.05 lr<=0.2": {"lost", "real"},
    "method=ssgd": {"sync"},
    "method!=asgd": {"sync", "momentum"},
    "workers>4": {"momentum"},
    "delay~workers=[0]": {"momentum"},
    "accuracy=nc": {"lost"},
    "engine=processes": {"real"},
    "dataset=digits ssgd": {"sync"},
    '"gamma(mean=1" method=dana': {"momentum"},
    "batch_size>32": set(),
}


def test_queries_find(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        open_list(page, here)
        for query, expected in QUERIES.items():
            page.fill("#filter", query)
            assert set(list_names(page)) == expected, query
            expect(page.locator("#filter-problem")).to_have_text("")


def test_sort_group_columns_and_links_that_remember(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        rows = open_list(page, here)
        heads = [text.replace("\u00a0", " ") for text in page.locator("#table thead th").all_inner_texts()]
        assert heads[1:5] == ["run", "status", "accuracy (%)", "time to 80 % (s)"]
        assert "engine" in heads and "real" in rows.filter(has_text="processes").inner_text()
        for _ in range(2):  # NC is last in both directions
            page.get_by_role("button", name="accuracy (%)").click()
            assert list_names(page)[-1] == "lost"
        page.fill("#filter", "nothing=3")
        expect(page.locator("#filter-problem")).to_contain_text("nothing")
        page.fill("#filter", "lr=0.05")
        page.get_by_label("Group seeds").check()
        expect(rows).to_have_count(2)
        group = rows.filter(has_text="3 runs")
        expect(group.locator(".column-test_accuracy")).to_contain_text("±")
        group.get_by_role("button", name="Show the 3 runs").click()
        expect(rows).to_have_count(5)
        page.locator("#columns summary").click()
        page.get_by_label("batch size").check()
        expect(page.get_by_role("columnheader", name="batch size")).to_be_visible()
        page.locator("#target").fill("50")
        page.locator("#target").press("Enter")
        expect(page.get_by_role("columnheader", name="time to 50 % (s)")).to_be_visible()
        reached = rows.first.locator(".column-time_to_target")
        expect(reached).not_to_have_text("–", timeout=TIMEOUT_MS)
        address = page.url
        assert "q=lr" in address and "group=1" in address and "target=50" in address
        other = page.context.new_page()
        other.goto(address)
        expect(other.locator("#table tbody tr")).to_have_count(2, timeout=TIMEOUT_MS)
        expect(other.get_by_role("columnheader", name="batch size")).to_be_visible()
        page.get_by_label("Select all runs").check()
        page.get_by_role("button", name="Compare 4 runs").click()
        expect(page.locator("#detail-title")).to_have_text("4 runs", timeout=TIMEOUT_MS)


def test_name_tag_archive_and_delete_with_the_keyboard(browser: Browser, here: Site) -> None:
    """Everything with keys only; what a user wrote is shown as text."""
    with BrowserPage(browser, viewport={"width": 1024, "height": 768}) as page:
        rows = open_list(page, here, "?q=lr%3D0.3")
        expect(rows).to_have_count(1)
        page.get_by_label("Select run doomed").focus()
        page.keyboard.press("Space")
        expect(page.locator("#selected-count")).to_have_text("1 run selected")
        page.get_by_role("button", name="Name, tags, notes…").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Name")).to_be_focused()
        page.keyboard.type(HOSTILE)
        page.keyboard.press("Tab")
        page.keyboard.type("paper, <b>bold</b>")
        page.keyboard.press("Tab")
        page.keyboard.type("A note")
        assert find_low_contrast(page) == [] and find_unnamed_controls(page) == []
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
        expect(rows.first).to_contain_text("<img src=x", timeout=TIMEOUT_MS)
        expect(rows.first.locator(".column-tags")).to_have_text("<b>bold</b> paper")
        assert page.locator("#table img, #table script, #table b").count() == 0
        page.fill("#filter", "tag=paper")
        expect(rows).to_have_count(1)
        rows.first.locator("a").press("Enter")
        expect(page.locator("#detail-title")).to_contain_text("<img src=x", timeout=TIMEOUT_MS)
        expect(page.locator("#detail-labels .notes")).to_have_text("A note")
        assert page.evaluate("window.hacked") is None
        page.go_back()
        page.get_by_role("button", name="Archive").press("Enter")
        expect(rows).to_have_count(0, timeout=TIMEOUT_MS)
        assert read_labels(here.runs / "doomed").archived
        page.locator("#status").select_option("archived")
        expect(rows).to_have_count(1)
        page.get_by_label("Select all runs").press("Space")
        page.get_by_role("button", name="Delete…").press("Enter")
        expect(dialog).to_contain_text("cannot be undone")
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Delete…")).to_be_focused()
        assert (here.runs / "doomed").exists()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Delete the run").press("Enter")
        expect(page.locator("#count")).to_contain_text("of 7 runs", timeout=TIMEOUT_MS)
        assert not (here.runs / "doomed").exists() and len(here.list_ids()) == 7
        assert not list(here.runs.glob("fast/" + LABEL_FILE))


def read_range(page: Page, name: str, axis: str = "xaxis") -> list[float]:
    found = page.locator(f'[data-figure="{name}"] .plot').evaluate(
        f"plot => plot._fullLayout.{axis}.range.map(Number)"
    )
    return [float(end) for end in found]


ZOOM = "(plot) => Plotly.relayout(plot, {'xaxis.range[0]': 2, 'xaxis.range[1]': 3})"


def test_compare_differences_linked_zoom_smoothing_and_log(browser: Browser, here: Site) -> None:
    with BrowserPage(browser, viewport={"width": 1440, "height": 900}) as page:
        page.goto(f"{here.url}/#/run/fast,seed1,seed2,momentum,lost")
        accuracy = wait_for_figure(page, "accuracy")
        loss = wait_for_figure(page, "loss")
        table = page.locator("#detail-differences > table")
        assert table.locator("tbody th").all_inner_texts() == ["method", "lr", "workers", "delay"]
        expect(page.locator("#detail-table thead")).to_contain_text("time to 80 % (s)")
        assert [row.count("±") > 0 for row in page.locator("#detail-table tbody tr").all_inner_texts()].count(
            True
        ) == 1
        accuracy.locator(".plot").evaluate(ZOOM)
        page.wait_for_function(
            "() => document.querySelector('[data-figure=loss] .plot')._fullLayout.xaxis.range[0] === 2"
        )
        accuracy.get_by_role("button", name="epochs").click()  # another axis: the zoom would show nothing
        page.wait_for_function(
            "() => document.querySelector('[data-figure=loss] .plot').layout.xaxis.title.text === 'epochs'"
        )
        low, high = read_range(page, "accuracy")
        assert low < 0.3 and high > 0.9
        before = loss.locator(".plot").evaluate("plot => [...plot.data[0].y]")
        page.get_by_label("Smoothing").fill("0.8")
        page.wait_for_function(
            f"() => document.querySelector('[data-figure=loss] .plot').data[0].y[2] !== {before[2]}"
        )
        scale = loss.get_by_role("button", name="logarithmic")
        pressed = scale.get_attribute("aria-pressed")
        scale.press("Enter")
        expect(scale).to_have_attribute("aria-pressed", "false" if pressed == "true" else "true")
        page.wait_for_function(
            "() => document.querySelector('[data-figure=loss] .plot')._fullLayout.yaxis.type === "
            + ("'linear'" if pressed == "true" else "'log'")
        )


def test_pointer_is_shown_in_linked_figures_and_nothing_is_uploaded(browser: Browser, here: Site) -> None:
    with BrowserPage(browser, viewport={"width": 1440, "height": 900}) as page:
        page.goto(f"{here.url}/#/run/momentum")
        for name in ("accuracy", "loss", "timeline"):
            wait_for_figure(page, name)
        place = page.locator('[data-figure="accuracy"] .plot')
        place.hover()
        expect(page.locator('[data-figure="loss"] .crosshair')).to_be_visible()
        gap = "plot => { const line = plot.querySelector('.crosshair'), x = plot._fullLayout.xaxis; return "
        there = page.locator('[data-figure="loss"] .plot').evaluate(
            gap + "x.p2d(parseFloat(line.style.left) - x._offset) }"
        )
        box, middle = (
            place.bounding_box(),
            "(plot, at) => plot._fullLayout.xaxis.p2d(at - plot._fullLayout.xaxis._offset)",
        )
        assert box is not None
        assert there == pytest.approx(place.evaluate(middle, box["width"] / 2), abs=0.1)
        titles = page.locator(".modebar-btn").evaluate_all("all => all.map((one) => one.dataset.title)")
        assert titles and not any(
            "share" in str(title).lower() or "cloud" in str(title).lower() for title in titles
        )
        timeline = page.locator('[data-figure="timeline"] .plot')
        trace = timeline.evaluate("plot => plot.data.findIndex((one) => one.name === 'delayed')")
        timeline.evaluate(
            f"plot => Plotly.Fx.hover(plot, [{{curveNumber: {trace}, pointNumber: 0}}])"
        )  # a delay of two seconds, whenever it begins
        expect(timeline.locator(".hovertext").first).to_contain_text("s (2 s)")  # not its end


def test_virtual_and_wall_clock_are_never_mixed_silently(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        page.goto(f"{here.url}/#/run/fast,real")
        figure = wait_for_figure(page, "accuracy")
        expect(page.locator("#detail-notes")).to_contain_text(
            "Virtual and wall-clock seconds cannot be compared"
        )
        title = figure.locator(".plot").evaluate("plot => plot.layout.xaxis.title.text")
        assert "virtual" in title and "wall-clock" in title
        colours = figure.locator(".plot").evaluate("plot => plot.data.map((one) => one.line.color)")
        assert len(set(colours)) == 2
        clocks = page.locator("#detail-table tbody tr td:last-child").all_inner_texts()
        assert sorted(clocks) == ["virtual", "wall-clock"]


def test_a_run_has_one_colour_alone_and_beside_others(browser: Browser, here: Site) -> None:
    found = {}
    with BrowserPage(browser) as page:
        for names in ("sync", "sync,fast", "fast", "momentum,sync,fast"):
            page.goto(f"{here.url}/?{names}#/run/{names}")
            wait_for_figure(page, "norms")
            found[names] = page.locator('[data-figure="norms"] .plot').evaluate(
                "plot => Object.fromEntries(plot.data.map((one) => [one.name.split(',')[0], one.line.color]))"
            )
    assert found["sync"]["ssgd"] == found["sync,fast"]["ssgd"] == found["momentum,sync,fast"]["ssgd"]
    assert found["fast"]["asgd"] == found["sync,fast"]["asgd"] != found["sync"]["ssgd"]


def test_synchronous_runs_have_no_empty_figures(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        page.goto(f"{here.url}/#/run/sync")
        wait_for_figure(page, "norms")
        names = page.locator("#detail-figures figure").evaluate_all(
            "all => all.map((one) => one.dataset.figure)"
        )
        assert not {"staleness", "staleness-time", "gaps"} & set(names)
        expect(page.locator("#detail-notes")).to_contain_text("No gradient is stale")


def test_timelines_of_a_comparison_have_one_time_axis(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        page.goto(f"{here.url}/#/run/fast,seed1,seed2,sync,momentum")
        wait_for_figure(page, "accuracy")
        page.wait_for_function(
            "() => document.querySelectorAll('[data-figure^=timeline] .main-svg').length >= 3"
        )
        timelines = page.locator('[data-figure^="timeline"] .plot')
        ranges = timelines.evaluate_all("all => all.map((plot) => plot._fullLayout.xaxis.range.join())")
        assert len(ranges) == 3 and len(set(ranges)) == 1  # one per setting


def test_worker_panel(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        page.goto(f"{here.url}/#/run/momentum")
        panel = page.locator("#detail-workers")
        expect(panel.locator("summary")).to_contain_text("1 restarts", timeout=TIMEOUT_MS)
        expect(panel.locator("tbody tr")).to_have_count(8)
        expect(panel.locator("tbody tr").nth(1)).to_contain_text("killed (signal 9)")
        expect(panel.locator("thead")).to_contain_text("last sign of life")


def test_results_of_a_sweep(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        page.goto(f"{here.url}/#/studies")
        page.get_by_role("link", name="Results of rates").click()
        for name in ("heatmap", "parallel", "time"):
            wait_for_figure(page, name)
        expect(page.locator("#sweep-table tbody tr")).to_have_count(4)
        expect(page.locator("#sweep-table thead")).to_contain_text("time to 80 % (s)")
        page.locator("#sweep-table tbody a").first.click()
        expect(page.locator("#detail-title")).to_contain_text("asgd", timeout=TIMEOUT_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_are_readable(browser: Browser, here: Site, scheme: Any) -> None:
    with BrowserPage(browser, color_scheme=scheme) as page:
        for address in ("?group=1#/runs", "?a#/run/fast,sync", "?b#/run/momentum", "?c#/sweep/rates"):
            page.goto(f"{here.url}/{address}")
            drawn = "document.querySelector('section:not([hidden]) .main-svg, #runs:not([hidden]) tbody tr')"
            page.wait_for_function(f"() => {drawn} !== null")
            if address.endswith("runs"):
                page.get_by_label("Select all runs").check()
                page.locator("#columns summary").click()
            for width in (1440, 1024, 390):
                page.set_viewport_size({"width": width, "height": 800})
                page.wait_for_function(f"() => document.documentElement.scrollWidth <= {width}")
                assert find_low_contrast(page) == [] and find_unnamed_controls(page) == []


def press_tab_until(page: Page, reached: str, most: int = 80) -> None:
    """Press Tab until the focus is on an element that matches a selector."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", reached):
            return
    pytest.fail(f"{most} tabs do not reach {reached}")


def test_runs_are_compared_and_smoothed_with_the_tab_key_alone(browser: Browser, here: Site) -> None:
    with BrowserPage(browser, viewport={"width": 1024, "height": 768}) as page:
        open_list(page, here)
        press_tab_until(page, 'tbody input[type="checkbox"]')
        page.keyboard.press("Space")
        expect(page.locator("#selected-count")).to_have_text("1 run selected")
        press_tab_until(page, 'tbody input[type="checkbox"]')
        page.keyboard.press("Space")
        expect(page.locator("#compare")).to_have_text("Compare 2 runs")
        for _ in range(80):
            page.keyboard.press("Shift+Tab")
            if page.evaluate("() => document.activeElement.id") == "compare":
                break
        expect(page.locator("#compare")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#detail-title")).to_have_text("2 runs")
        wait_for_figure(page, "accuracy")
        press_tab_until(page, "#smoothing")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#smoothing-value")).to_have_text("0.02")
