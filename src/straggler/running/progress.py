"""Progress bar of a run with loss, staleness and workers; plain lines if the output is not a terminal."""

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from straggler.running.observer import RunProgress

LINE_SECONDS = 10.0  # between plain lines
BARS = "▁▂▃▄▅▆▇█"
IDLE = "·"
REFRESH_PER_SECOND = 8


class ProgressBar:
    """A progress bar in a terminal, or a line every ten seconds elsewhere."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self._live: Live | None = None
        self._details: list[Text] = []
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=self.console,
                expand=True,
            )
            self._task = self._progress.add_task(self.title, total=None)
            self._live = Live(
                get_renderable=self._view, console=self.console, refresh_per_second=REFRESH_PER_SECOND
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(f"{self.title}: {line}", style="dim", markup=False, soft_wrap=True)

    def update(self, seen: RunProgress) -> None:
        """Show the progress of a run."""
        self._advance(seen.spent, format_details(seen, self.console.width))
        self._print_line(seen.spent, f"  {seen.seconds:.0f} s  {format_numbers(seen)}")

    def advance(self, done: float, facts: str, clock: str = "") -> None:
        """Show the finished share (0 to 1) and some facts; plain lines also show the clock."""
        self._advance(done, [Text(f"  {facts}", no_wrap=True, overflow="ellipsis")])
        self._print_line(done, f"{clock}  {facts}")

    def _advance(self, done: float, lines: list[Text]) -> None:
        if self._live is not None:
            self._details = lines
            self._progress.update(self._task, total=1.0, completed=done)

    def _print_line(self, done: float, facts: str) -> None:
        if self._live is None and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self.console.print(f"{self.title}: {done:4.0%}{facts}", markup=False)

    def _view(self) -> RenderableType:
        return Group(self._progress, *self._details)


def format_numbers(seen: RunProgress) -> str:
    """Return loss, accuracy and mean staleness for a plain line."""
    accuracy = "" if seen.accuracy is None else f"  acc {seen.accuracy:.1f} %"
    return f"loss {seen.loss:.3f}{accuracy}  τ {seen.staleness:.1f}"


def format_details(seen: RunProgress, width: int) -> list[Text]:
    """Return the lines below the bar, as far as their values are known."""
    lines = [format_numbers_line(seen)]
    lines += [format_staleness_line(seen, width)] if seen.recent else []
    return lines + ([format_workers_line(seen, width)] if seen.workers else [])


def format_numbers_line(seen: RunProgress) -> Text:
    """Return loss, accuracy, updates and seconds as the first line below the bar."""
    accuracy = "" if seen.accuracy is None else f"   accuracy {seen.accuracy:.1f} %"
    return Text(
        f"  loss {seen.loss:.3f}{accuracy}   {seen.updates:,} updates   {seen.seconds:,.0f} s", no_wrap=True
    )


def format_staleness_line(seen: RunProgress, width: int) -> Text:
    """Return the staleness of the latest arrivals as a line of bars."""
    caption = f" the latest up to {max(seen.recent, default=0):,}, mean {seen.staleness:,.1f}"
    line = Text("  staleness ", style="dim", no_wrap=True, overflow="ellipsis")
    shown = seen.recent[-max(1, min(30, width - len(line) - len(caption))) :]
    return line.append(format_sparkline(shown), style="default").append(caption)


def format_workers_line(seen: RunProgress, width: int) -> Text:
    """Return a bar per worker, for the staleness of its current model, and a dot for an idle worker."""
    waits = seen.workers - seen.busy
    caption = f" {seen.busy:,} compute, {waits:,} wait" if waits else f" all {seen.busy:,} compute"
    shown = seen.behind[: max(1, width - len(caption) - 14)]
    more = "…" if len(shown) < seen.workers else ""
    line = Text("  workers   ", style="dim", no_wrap=True, overflow="ellipsis")
    return line.append(format_sparkline(shown) + more, style="default").append(caption)


def format_sparkline(values: Sequence[int | None]) -> str:
    """Return a bar per value, scaled from 0 to the largest; a dot for None."""
    top = max((value for value in values if value is not None), default=0)
    highest = len(BARS) - 1
    return "".join(IDLE if value is None else BARS[-(-highest * value // max(1, top))] for value in values)
