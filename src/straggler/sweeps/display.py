"""How a sweep goes: a live bar with the time that is left, or plain lines where there is no terminal."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.progress import SweepProgress

LINE_SECONDS = 30.0  # between plain lines


class Display:
    """Shows a tally, as often as it is worth it."""

    def __init__(self, console: Console, title: str, tally: SweepProgress) -> None:
        self.console, self.title, self.tally = console, title, tally
        self._told = -LINE_SECONDS
        self._live: Progress | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            columns = (BarColumn(bar_width=None), TaskProgressColumn(), TextColumn("{task.fields[facts]}"))
            self._live = Progress(
                TextColumn("{task.description}"), *columns, console=self.console, expand=True
            )
            self._live.start()
            self._bar = self._live.add_task(self.title, total=max(self.tally.work, 1e-9), facts="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told = -LINE_SECONDS
        self.show()
        if self._live is not None:
            self._live.stop()

    def failed(self, task: PlannedRun, reason: str) -> None:
        self.console.print(f"{self.title}: {task.name} failed: {reason}", style="red", markup=False)

    def again(self, task: PlannedRun, reason: str) -> None:
        self.console.print(f"{self.title}: {task.name} is run again: {reason}", style="dim", markup=False)

    def show(self) -> None:
        tally, left = self.tally, self.tally.left()
        failed = f", {len(tally.failures)} failed" if tally.failures else ""
        counts = f"{tally.done} of {len(tally.tasks)} runs{failed}"
        facts = f"{counts}, {'–' if left is None else format_duration(left)} left"
        if self._live is not None:
            self._live.update(self._bar, completed=tally.worked, facts=facts)
        elif time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            self.console.print(f"{self.title}: {facts}", markup=False)


def format_duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.1 h`"""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
