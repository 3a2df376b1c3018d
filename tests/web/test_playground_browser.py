"""The playground in headless Chromium: the static build without a network, and the live page that trains."""

import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect
from web_testing import (
    TIMEOUT_MS,
    BrowserPage,
    Site,
    find_low_contrast,
    find_unnamed_controls,
    serve_site,
)

from straggler.web.playground import build_race_settings, list_choices
from straggler.web.playground_build import build_static_playground

pytestmark = pytest.mark.slow
expect.set_options(timeout=TIMEOUT_MS)  # the default of 5 s is short on a busy machine
SIZES = [(1440, 900), (1024, 768), (390, 844)]


@pytest.fixture(scope="module")
def static_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_static_playground(tmp_path_factory.mktemp("static")).as_uri()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("playground")
    with serve_site(folder / "runs", folder / "results") as found:
        yield found


ADDRESS_IS_CURRENT = """() => {
    const moment = Number(new URLSearchParams(location.hash.replace("#/play/", "")).get("t"));
    return Math.abs(moment - Number(document.getElementById("scrub").value)) < 1e-6;
}"""


def read_seconds(page: Page) -> float:
    return float(page.locator("#scrub").input_value())


def draws(page: Page, canvas: str) -> bool:
    """Return whether a canvas shows more than one colour."""
    script = """(canvas) => new Set(new Uint32Array(canvas.getContext("2d")
        .getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""
    return int(page.locator(canvas).evaluate(script)) > 4


def test_it_plays_on_arrival_from_disk_without_network(browser: Browser, static_url: str) -> None:
    with BrowserPage(browser, offline=True) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(static_url)
        page.wait_for_function("() => Number(document.getElementById('canvas-a').dataset.updates) > 10")
        assert int(page.locator("#canvas-b").get_attribute("data-arrived") or 0) > 0
        for canvas in ("#canvas-a", "#canvas-b", "#race"):
            assert draws(page, canvas)
        expect(page.locator("#race-title")).to_have_text("The race to 90 % test accuracy")
        page.locator("#speed").select_option("64")
        # both methods cross the finish line, and the faster one is named first
        expect(page.locator("#race-title")).to_have_text(
            "asgd reaches 90 % after 18.5 s, 4.4× sooner than ssgd"
        )
        page.get_by_role("button", name="Pause").click()
        stopped = read_seconds(page)
        page.get_by_role("button", name="Step").click()
        assert read_seconds(page) > stopped
        page.get_by_role("button", name="Restart").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        assert asked == [static_url]


def test_every_story_races_from_disk(browser: Browser, static_url: str) -> None:
    """Python and the page build the same settings, so every story finds its recorded curves."""
    with BrowserPage(browser, offline=True) as page:
        page.goto(static_url)
        for story in list_choices()["stories"]:
            page.get_by_role("button", name=story["title"]).click()
            expect(page.get_by_role("button", name=story["title"])).to_have_attribute("aria-pressed", "true")
            expect(page.locator("#story")).to_have_text(story["text"])
            expect(page.locator("#race-source")).to_contain_text("Curves of recorded runs")
            state = list_choices()["start"] | story["set"]
            for lane in "ab":
                command = page.locator(f"#command-{lane}").text_content() or ""
                for value in build_race_settings(state, lane).values():
                    for text in value if isinstance(value, list) else [value]:
                        assert str(text) in command


def test_a_link_brings_back_the_same_picture(browser: Browser, static_url: str) -> None:
    with BrowserPage(browser, viewport={"width": 1024, "height": 768}) as page:
        page.goto(static_url)
        page.locator("#set-a").select_option("k-async")
        page.locator("#set-a-policy-k").fill("5")
        page.locator("#set-workers").fill("11")
        page.locator("#set-compute").select_option("pareto")
        page.locator("#set-compute-alpha").fill("1.2")
        page.locator("#set-churn").select_option("preemption")
        page.locator("#set-link").select_option("link")
        page.locator("#set-link-latency").fill("0.7")
        page.locator("#scrub").fill("7")
        page.locator("#lanes").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(ADDRESS_IS_CURRENT)
        address = page.url
        assert "k-async%28k%3D5%29" in address and "t=" in address
        seen = [page.locator(f"#canvas-{lane}").evaluate("canvas => canvas.toDataURL()") for lane in "ab"]
        rows = page.locator("#play-rows").inner_text()
        assert "k-async(k=5)" in rows
        page.goto("about:blank")
        page.goto(address)
        expect(page.locator("#set-a-policy-k")).to_have_value("5")
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
        assert page.locator("#play-rows").inner_text() == rows
        for lane, picture in zip("ab", seen, strict=True):
            page.wait_for_function(
                "([id, picture]) => document.getElementById(id).toDataURL() === picture",
                arg=[f"canvas-{lane}", picture],
            )


def test_wrong_settings_are_explained(browser: Browser, static_url: str) -> None:
    with BrowserPage(browser) as page:
        page.goto(
            static_url + "#/play/a=k-sync&a.policy=k-sync(k%3D40)&workers=9999&compute=os:system&t=1&x=1"
        )
        expect(page.locator("#play-error")).to_contain_text("Use k ≤ 32")  # the number of workers is limited
        expect(page.locator("#set-compute")).to_have_value("gamma")
        page.locator("#set-a-policy-k").fill("0")
        expect(page.locator("#set-a-policy-k")).to_have_attribute("aria-invalid", "true")
        page.locator("#set-a-policy-k").fill("4")
        expect(page.locator("#play-error")).to_be_hidden()
        page.locator("#canvas-a").wait_for()
        page.goto(static_url + "#/play/a=nothing&a.policy=ssp(bound%3D2)&epochs=-3&dataset=x&churn=late(")
        expect(page.locator("#set-a")).to_have_value("asgd")
        expect(page.locator("#play-error")).to_be_hidden()


def test_an_address_adds_no_words_to_the_commands(browser: Browser, static_url: str) -> None:
    work = "local(optimizer='; touch owned; '$(touch owned))"
    wrong = {"compute": "constant(seconds=-1)", "delay": "constant", "link": "link(up=x)", "b": "constructor"}
    wrong |= {"b.policy": "k-async(k=0)", "churn": "late(5, workers=3)"}
    read = """(query) => {
        const settings = new playground.Settings(JSON.parse(document.getElementById("choices").textContent));
        settings.read(query);
        return [settings.command("a"), settings.state];
    }"""
    with BrowserPage(browser) as page:
        page.goto(static_url)
        command, _ = page.evaluate(read, urlencode({"a": "local-sgd", "a.work": work}))
        words = shlex.split(command)
        assert words[words.index("--work") + 1] == work and "touch" not in words
        _, state = page.evaluate(read, urlencode(wrong))
        assert state == list_choices()["start"]


def test_every_method_and_law_can_be_chosen(browser: Browser, static_url: str) -> None:
    with BrowserPage(browser) as page:
        page.goto(static_url)
        problems = page.evaluate(
            """() => {
            const { Settings, simulate } = playground;
            const choices = JSON.parse(document.getElementById("choices").textContent);
            const problems = [];
            const attempt = (name, change) => {
                try {
                    const settings = new Settings(choices);
                    change(settings);
                    const budget = { gradients: 300, seconds: Infinity };
                    const { jobs } = simulate(settings.simulation("a"), budget);
                    if (!jobs.length) problems.push(name);
                    const again = new Settings(choices);
                    again.read(settings.query());
                    if (again.command("a") !== settings.command("a")) problems.push(`${name}: the link`);
                } catch (error) { problems.push(`${name}: ${error.message}`); }
            };
            for (const name of Object.keys(choices.methods)) {
                attempt(name, (settings) => settings.setMethod("a", name));
            }
            return problems;
        }"""
        )
        assert problems == []
        for key in ("compute", "delay", "link", "churn"):
            for name in list_choices()["cluster"][key]:
                page.locator(f"#set-{key}").select_option(name)
                expect(page.locator("#play-error"), name).to_be_hidden()
            page.locator(f"#set-{key}").select_option("gamma" if key == "compute" else "")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_everything_is_in_view(browser: Browser, static_url: str, width: int, height: int) -> None:
    with BrowserPage(browser, viewport={"width": width, "height": height}, color_scheme="dark") as page:
        page.goto(static_url + "#/play/slow=1&t=20")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        if width >= 1024:
            for part in ("#controls", "#toggle", "#canvas-a", "#canvas-b", "#race", "#play-rows"):
                box: Any = page.locator(part).bounding_box()
                assert box["y"] >= 0 and box["y"] + box["height"] <= height, part
        for _ in range(2):
            assert find_low_contrast(page) == [] and find_unnamed_controls(page) == []
            page.locator("#theme").click()


def test_less_motion_and_keyboard_only(browser: Browser, static_url: str) -> None:
    with BrowserPage(browser, reduced_motion="reduce") as page:
        page.goto(static_url)
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
        at_rest = read_seconds(page)
        assert at_rest > 0 and int(page.locator("#canvas-a").get_attribute("data-arrived") or 0) > 0
        page.locator("#stories button").nth(1).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#stories button").nth(1)).to_have_attribute("aria-pressed", "true")
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("() => document.activeElement.id") == "lanes":
                break
        expect(page.locator("#lanes")).to_be_focused()
        before = read_seconds(page)
        page.keyboard.press("ArrowRight")
        assert read_seconds(page) > before
        page.keyboard.press("Home")
        assert read_seconds(page) == 0
        page.keyboard.press("Space")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        page.wait_for_function("() => Number(document.getElementById('scrub').value) > 0")


def press_tab_until(page: Page, reached: str, most: int = 80) -> None:
    """Press Tab until the focus is on an element that matches a selector."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", reached):
            return
    pytest.fail(f"{most} tabs do not reach {reached}")


def test_change_a_method_play_and_share_with_the_tab_key_alone(browser: Browser, static_url: str) -> None:
    with BrowserPage(browser, reduced_motion="reduce") as page:  # nothing plays by itself
        page.goto(static_url)
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
        before = page.locator("#title-a").inner_text()
        press_tab_until(page, "#set-a")
        chosen = page.locator("#set-a").input_value()
        page.keyboard.press("ArrowDown")
        expect(page.locator("#set-a")).not_to_have_value(chosen)
        expect(page.locator("#set-a")).to_be_focused()  # the controls were built again
        expect(page.locator("#title-a")).not_to_have_text(before)
        press_tab_until(page, "#toggle")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Pause")).to_be_focused()
        page.keyboard.press("Enter")
        press_tab_until(page, "#share")
        page.evaluate("""() => new MutationObserver(() => { window.answered = true; })
            .observe(document.getElementById("share"), { childList: true })""")
        page.keyboard.press("Enter")
        page.wait_for_function("() => window.answered")  # "Copied", for a moment
        expect(page.locator("#share")).to_be_focused()
        assert f"a={page.locator('#set-a').input_value()}" in page.url


def test_the_live_page_trains_both_methods(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        before = set(here.list_ids())
        page.goto(f"{here.url}/#/play/a.lr=0.03&b=asgd&b.lr=0.01&epochs=3&seed=4&t=1")
        expect(page.locator("#race-source")).to_contain_text("Press Train")
        page.get_by_role("button", name="Train").click()
        expect(page.locator("#play-status")).to_have_text("finished")
        expect(page.locator("#race-source")).to_have_text("Trained by this server.")
        assert len({*here.list_ids()} - before) == 2
        for row in page.locator("#play-rows tr").all():
            assert "%" in row.locator("td").nth(1).inner_text()
        assert read_seconds(page) == 1
        # the page simulates the run that was recorded, event by event
        runs = [row for row in here.ask("/api/runs").json() if row["id"] not in before]
        expect(page.locator("#play-rows tr").first.locator("td").nth(3)).to_have_text(str(runs[0]["updates"]))
        page.get_by_role("link", name="All figures of these runs").click()
        expect(page.locator("#detail-table tbody tr")).to_have_count(2)
        page.go_back()
        expect(page.locator("#race-source")).to_have_text("Trained by this server.")


def test_training_can_be_stopped(browser: Browser, here: Site) -> None:
    with BrowserPage(browser) as page:
        page.goto(f"{here.url}/#/play/epochs=200&seed=9&model=lenet5&t=1")
        page.get_by_role("button", name="Train").click()
        expect(page.locator("#play-status")).to_contain_text("training")
        expect(page.locator("#stop-runs")).to_be_enabled(timeout=TIMEOUT_MS)
        expect(page.locator("#run")).to_be_enabled()  # both runs have started
        page.locator("#stop-runs").click()
        expect(page.locator("#play-status")).to_contain_text("interrupted")
        expect(page.locator("#stop-runs")).to_be_disabled(timeout=TIMEOUT_MS)
