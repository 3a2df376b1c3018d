"""Fixtures of the web tests: recorded runs, a running site, a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from web_testing import QUADRATIC, SLOW_WORKER, Site, launch_browser, serve_site

from straggler.experiment import Experiment


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Records of one cluster under several methods, and of three seeds of asgd."""
    out = tmp_path_factory.mktemp("records") / "runs"
    found = {}
    for method in ("asgd", "ssgd", "k-sync", "k-batch-sync"):
        found[method] = Experiment(**SLOW_WORKER, method=method, snapshots=5).run(out, jobs=1).path
    for seed in (1, 2):
        found[f"seed {seed}"] = Experiment(**SLOW_WORKER, seed=seed, snapshots=5).run(out, jobs=1).path
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with one asynchronous and one synchronous run."""
    runs = tmp_path_factory.mktemp("site") / "runs"
    for method in ("asgd", "ssgd"):
        Experiment(**QUADRATIC, method=method).run(runs, jobs=1)
    with serve_site(runs, runs.parent / "results") as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launch_browser() as found:
        yield found
