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
    figure.evaluate("shown => shown.scrollIntoView()")  # at once: a live page may draw it anew
    expect(figure.locator(".main-svg, canvas").first).to_be_visible(timeout=PATIENCE)
    return figure


def low_contrast(page: Page) -> list[str]:
    """Visible text that stands out too little from what is behind it (WCAG: 4.5)."""
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
          const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
          if (!own || element.closest("svg") || element.disabled || !element.checkVisibility()) continue;
          if (element.closest("option")) continue;
          const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
          const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          if (ratio < 4.5) bad.push(`${element.tagName} ${element.textContent.slice(0, 30)}: ${ratio}`);
        }
        return bad;
    }"""
    )
    return found


def unnamed(page: Page) -> list[str]:
    """Controls that a screen reader could not name."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select")]
        .filter((one) => one.checkVisibility())
        .filter((one) => !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length))
        .map((one) => one.outerHTML.slice(0, 80))"""
    )
    return found
