"""Time the list of 1,000 runs in Chromium: first paint, first rows, all rows, a filter and a sort.

Usage: python benchmarks/pages.py [RUNS]
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page

from straggler.experiment import Experiment

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "web"))
from web_testing import launch_browser, serve_site

FILES = ("experiment.toml", "summary.json", "environment.json", "curve.parquet")
METHODS = ("asgd", "ssgd", "dana", "sa")


def write_records(folder: Path, count: int) -> None:
    """Write runs of several methods, learning rates and seeds, as copies of four real ones."""
    settings = {"dataset": "digits", "model": "linear", "gradients": 40, "eval_every": 0.2}
    originals = [
        Experiment(**settings, method=method).run(folder / "originals", jobs=1) for method in METHODS
    ]
    contents = [{name: (record.path / name).read_bytes() for name in FILES} for record in originals]
    for number in range(count):
        place, content = folder / "runs" / f"{number:012x}", contents[number % len(METHODS)]
        place.mkdir(parents=True)
        for name in FILES:
            (place / name).write_bytes(content[name])
        text, summary = content["experiment.toml"].decode(), json.loads(content["summary.json"])
        text = text.replace("seed = 0", f"seed = {number // 4 % 5}")
        text = text.replace("lr = 0.01", f"lr = {0.001 * (1 + number // 20)}")
        (place / "experiment.toml").write_text(text)
        summary |= {"id": place.name, "test_accuracy": 50 + number % 50}
        (place / "summary.json").write_text(json.dumps(summary))


def wait_for(page: Page, condition: str, since: float) -> float:
    """Return the seconds from `since` until a condition holds in the page."""
    page.wait_for_function(condition)
    return time.monotonic() - since


def measure(page: Page, url: str, count: int) -> None:
    rows = "document.querySelectorAll('#table tbody tr').length"
    for name in ("cold", "warm"):
        start = time.monotonic()
        page.goto(f"{url}/?{name}")
        first = wait_for(page, f"() => {rows} > 0", start)
        every = wait_for(
            page, f"() => document.getElementById('count').textContent.includes('{count:,} of')", start
        )
        entry = "performance.getEntriesByName('first-contentful-paint')[0]"
        page.wait_for_function(f"() => {entry} !== undefined")
        paint = page.evaluate(f"() => {entry}.startTime / 1000")
        print(f"{name} server: first paint {paint:.2f} s, first rows {first:.2f} s, all rows {every:.2f} s")
    for what, action in {
        "filter": "document.getElementById('filter').value = 'lr<0.01 method=dana';"
        "document.getElementById('filter').dispatchEvent(new Event('input'))",
        "sort": "document.querySelector('th[data-key=test_accuracy] button').click()",
        "group": "document.getElementById('group').click()",
    }.items():
        spent = page.evaluate(
            f"() => {{ const start = performance.now(); {action}; return performance.now() - start }}"
        )
        print(f"{what}: {spent:.0f} ms")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder, launch_browser() as browser:
        write_records(Path(folder), count)
        with serve_site(Path(folder) / "runs", Path(folder) / "results") as site:
            page = browser.new_page()
            page.goto(f"{site.url}/static/style.css")  # the browser has started
            measure(page, site.url, count)


if __name__ == "__main__":
    main()
