"""How a run goes, live: a bar, numbers, who is behind; plain lines where there is no terminal."""

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
WAITING = "·"
REFRESH_PER_SECOND = 8


class ProgressBar:
    """Shows how a run goes."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self._live: Live | None = None
        self._details: list[Text] = []
        self._told = time.monotonic()

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
        """A remark that stays."""
        self.console.print(f"{self.title}: {line}", style="dim", markup=False, soft_wrap=True)

    def update(self, seen: RunProgress) -> None:
        self._advance(seen.spent, details(seen, self.console.width))
        self._line(seen.spent, f"  {seen.seconds:.0f} s  {numbers(seen)}")

    def advance(self, done: float, facts: str, clock: str = "") -> None:
        """So much of it is done, from 0 to 1; a line has no bar and so shows the clock."""
        self._advance(done, [Text(f"  {facts}", no_wrap=True, overflow="ellipsis")])
        self._line(done, f"{clock}  {facts}")

    def _advance(self, done: float, lines: list[Text]) -> None:
        if self._live is not None:
            self._details = lines
            self._progress.update(self._task, total=1.0, completed=done)

    def _line(self, done: float, facts: str) -> None:
        if self._live is None and time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            self.console.print(f"{self.title}: {done:4.0%}{facts}", markup=False)

    def _view(self) -> RenderableType:
        return Group(self._progress, *self._details)


def numbers(seen: RunProgress) -> str:
    accuracy = "" if seen.accuracy is None else f"  acc {seen.accuracy:.1f} %"
    return f"loss {seen.loss:.3f}{accuracy}  τ {seen.staleness:.1f}"


def details(seen: RunProgress, width: int) -> list[Text]:
    """What stands below the bar, as far as it is known."""
    lines = [numbers_line(seen)]
    lines += [staleness_line(seen, width)] if seen.recent else []
    return lines + ([workers_line(seen, width)] if seen.workers else [])


def numbers_line(seen: RunProgress) -> Text:
    accuracy = "" if seen.accuracy is None else f"   accuracy {seen.accuracy:.1f} %"
    return Text(
        f"  loss {seen.loss:.3f}{accuracy}   {seen.updates:,} updates   {seen.seconds:,.0f} s", no_wrap=True
    )


def staleness_line(seen: RunProgress, width: int) -> Text:
    """The staleness of the latest arrivals as a line of bars."""
    said = f" the latest up to {max(seen.recent, default=0):,}, mean {seen.staleness:,.1f}"
    line = Text("  staleness ", style="dim", no_wrap=True, overflow="ellipsis")
    shown = seen.recent[-max(1, min(30, width - len(line) - len(said))) :]
    return line.append(sparkline(shown), style="default").append(said)


def workers_line(seen: RunProgress, width: int) -> Text:
    """A bar for each worker: how old the model is that it computes at; a dot where it waits."""
    waits = seen.workers - seen.busy
    said = f" {seen.busy:,} compute, {waits:,} wait" if waits else f" all {seen.busy:,} compute"
    shown = seen.behind[: max(1, width - len(said) - 14)]
    more = "…" if len(shown) < seen.workers else ""
    line = Text("  workers   ", style="dim", no_wrap=True, overflow="ellipsis")
    return line.append(sparkline(shown) + more, style="default").append(said)


def sparkline(values: Sequence[int | None]) -> str:
    """Bars from 0 to the largest; a dot for nothing."""
    top = max((value for value in values if value is not None), default=0)
    highest = len(BARS) - 1
    return "".join(WAITING if value is None else BARS[-(-highest * value // max(1, top))] for value in values)
