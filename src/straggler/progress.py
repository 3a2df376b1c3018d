"""A progress bar with what matters beside it; plain lines where there is no terminal."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from straggler.observe import Progress as Seen

__all__ = ["Bar"]

LINE_SECONDS = 10.0  # between plain lines


class Bar:
    """Shows how a run goes."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self._live: Progress | None = None
        self._told = time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[facts]}"),
                console=self.console,
                expand=True,
            )
            self._live.start()
            self._task = self._live.add_task(self.title, total=None, facts="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """A remark that stays."""
        self.console.print(f"{self.title}: {line}", style="dim", markup=False, soft_wrap=True)

    def update(self, seen: Seen) -> None:
        accuracy = "" if seen.accuracy is None else f"  acc {seen.accuracy:.1f} %"
        facts = f"loss {seen.loss:.3f}{accuracy}  τ {seen.staleness:.1f}"
        self.advance(seen.spent, facts, f"  {seen.seconds:.0f} s")

    def advance(self, done: float, facts: str, clock: str = "") -> None:
        """So much of it is done, from 0 to 1; a line has no bar and so shows the clock."""
        if self._live is not None:
            self._live.update(self._task, total=1.0, completed=done, facts=facts)
        elif time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            self.console.print(f"{self.title}: {done:4.0%}{clock}  {facts}", markup=False)
