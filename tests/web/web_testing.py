"""Helpers of the web tests: the live pages in a thread, raw requests, and headless Chromium."""

import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.applications import Starlette

from straggler.web.connections import configure_server
from straggler.web.server import build_web_app

TIMEOUT_MS = 120_000  # generous, for busy machines
QUADRATIC: dict[str, Any] = {"dataset": "quadratic(noise=0.1)", "gradients": 40, "compute": "gamma(1, 0.3)"}
SLOW_WORKER: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "workers": 4,
    "compute": "gamma(mean=1, cv=0.3)",
    "delay": ["constant(3, workers=[0])"],
    "gradients": 60,
    "eval_every": 0.5,
}
FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]  # WebGL without a GPU


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Poll a condition; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"timeout: {what}"
        time.sleep(0.05)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """A running server, its token and its folder of runs."""

    port: int
    token: str
    runs: Path
    app: Starlette = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def list_ids(self) -> list[str]:
        return sorted(folder.name for folder in self.runs.glob("*"))

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Reply:
        """Send one request exactly as specified; `_` in a header name stands for a dash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), named)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request as the page does; `headers` override, an empty value removes a header."""
        ours = {
            "Origin": self.url,
            "X_Straggler_Token": self.token,
            "Content_Type": "application/json",
        }
        sent = {key: value for key, value in (ours | headers).items() if value}
        return self.ask(path, "POST", {} if body is None else body, **sent)


@contextmanager
def serve_site(
    runs: Path, results: Path, token: str | None = None, host: str = "127.0.0.1"
) -> Iterator[Site]:
    app, secret = build_web_app(runs, results, host, token)
    config = configure_server(app, port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server starts")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Site(port, secret, runs, app)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def find_chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.fail("Chromium is missing: `make browser` installs it.")


@contextmanager
def launch_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield browser
        browser.close()


class BrowserPage:
    """A page that collects the errors of its console and asserts that there are none."""

    def __init__(self, browser: Browser, offline: bool = False, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(TIMEOUT_MS)
        self.context.set_offline(offline)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: line.type == "error" and self.errors.append(line.text))

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        assert kind is not None or self.errors == []


def wait_for_figure(page: Page, name: str, within: str = "body") -> Any:
    """Scroll to a figure and return it when it is drawn."""
    figure = page.locator(f'{within} [data-figure="{name}"]')
    figure.evaluate("shown => shown.scrollIntoView()")
    expect(figure.locator(".main-svg, canvas").first).to_be_visible(timeout=TIMEOUT_MS)
    return figure


def find_low_contrast(page: Page) -> list[str]:
    """Return visible text with a contrast below 4.5 (WCAG)."""
    found: list[str] = page.evaluate(
        """() => {
        const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
          .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
          .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (element) => {
          for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] > 0.99) return colour;
          }
          return [255, 255, 255];
        };
        const bad = [];
        for (const element of document.querySelectorAll("main *, header *")) {
          const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
          if (!text || element.closest("svg") || element.disabled || !element.checkVisibility()) continue;
          if (element.closest("option")) continue;
          const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
          const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          if (ratio < 4.5) bad.push(`${element.tagName} ${element.textContent.slice(0, 30)}: ${ratio}`);
        }
        return bad;
    }"""
    )
    return found


def find_unnamed_controls(page: Page) -> list[str]:
    """Return controls that have no name for screen readers."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select")]
        .filter((one) => one.checkVisibility())
        .filter((one) => !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length))
        .map((one) => one.outerHTML.slice(0, 80))"""
    )
    return found
