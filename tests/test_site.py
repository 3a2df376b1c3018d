"""The documentation site builds without warnings, works without a network, and leaves no page out."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from web_testing import BrowserPage, launch_browser

import straggler
from documents import PAGES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does. Broken links, missing anchors and unlisted pages are errors."""
    folder = tmp_path_factory.mktemp("site")
    # With --quiet, --strict would not count warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Loads(HTMLParser):
    """Collect the addresses that a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_canonical = tag == "link" and values.get("rel") in ("canonical", "next", "prev")
        if not is_canonical and (address := values.get(LOADING.get(tag, ""))):
            self.addresses.append(address)


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.addresses, page
        assert [found for found in loads.addresses if re.match(r"[a-z+]+:|//", found)] == [], page


def test_markdown_is_translated(site: Path) -> None:
    """Python-Markdown needs an empty line before a list and knows no words after the language of a fence."""
    for page in site.glob("*.html"):
        text = page.read_text()
        assert re.findall(r"<p>```[^<]*|<p>[^<]*\n[-*] [^<]*|\]\([^)<]*\.md\)", text) == [], page


def test_every_page_is_in_the_summary_for_language_models(site: Path) -> None:
    summary = (site / "llms.txt").read_text()
    assert summary.startswith("# Straggler\n\n> ")
    listed = dict(re.findall(r"^- \[[^\]]+\]\(([^)]+)\): (.*)$", summary, re.MULTILINE))
    pages = {Path(page).with_suffix(".html").name for page in PAGES if page.startswith("docs/")}
    assert pages <= set(listed)
    assert all((site / page).exists() for page in listed)
    assert [page for page, sentence in listed.items() if len(sentence) < 10] == []


def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "api.html").read_text()
    names = [name for name in straggler.__all__ if name != "__version__"]
    assert [name for name in names if f'id="straggler.{name}"' not in page] == []


def test_the_site_works_from_the_disk(site: Path) -> None:
    loaded: list[str] = []
    with launch_browser() as browser, BrowserPage(browser, viewport={"width": 1280, "height": 800}) as page:
        page.on("request", lambda request: loaded.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("ringmaster")
        page.locator(".md-search-result__item a").first.wait_for()
        page.set_viewport_size({"width": 390, "height": 800})
        for name in ("index", "methods", "api", "settings", "comparison", "names"):
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    assert [url for url in loaded if not url.startswith(("file:", "data:"))] == []
