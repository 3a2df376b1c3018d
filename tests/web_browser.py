"""Headless Chromium for tests: a visitor that remembers every complaint, and figures once they are drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from web_server import chromium

PATIENCE = 60_000  # milliseconds, for machines with other things to do
FLAGS = [
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
]  # 3-D without a graphics card


@contextmanager
def headless() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield found
        found.close()


class Visitor:
    """A page that remembers every complaint of its console."""

    def __init__(self, browser: Browser, offline: bool = False, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE)
        self.context.set_offline(offline)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        assert kind is not None or self.complaints == []


def drawn(page: Page, name: str, within: str = "body") -> Any:
    """A figure, once it is drawn."""
    figure = page.locator(f'{within} [data-figure="{name}"]')
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".main-svg, canvas").first).to_be_visible(timeout=PATIENCE)
    return figure
