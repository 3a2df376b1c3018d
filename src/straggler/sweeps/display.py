"""How a sweep goes: a live bar with the time that is left, or plain lines where there is no terminal."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from straggler.sweeps.cells import Task

__all__ = ["Display", "duration"]

LINE_SECONDS = 30.0  # between plain lines


class Display:
    """Counts estimated seconds of work; the time left follows from how fast they are worked off."""

    def __init__(self, console: Console, title: str, tasks: list[Task]) -> None:
        self.console, self.title = console, title
        self._total, self._runs = sum(task.seconds for task in tasks), len(tasks)
        self._spent: dict[str, float] = {}  # estimated seconds worked off, of tasks at hand and done
        self._done, self._failed = 0, 0
        self._began = time.monotonic()
        self._told = -LINE_SECONDS
        self._live: Progress | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            columns = (BarColumn(bar_width=None), TaskProgressColumn(), TextColumn("{task.fields[facts]}"))
            self._live = Progress(
                TextColumn("{task.description}"), *columns, console=self.console, expand=True
            )
            self._live.start()
            self._bar = self._live.add_task(self.title, total=max(self._total, 1e-9), facts="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told = -LINE_SECONDS
        self._show()
        if self._live is not None:
            self._live.stop()

    def spent(self, task: Task, part: float) -> None:
        self._spent[task.id] = part * task.seconds
        self._show()

    def done(self, task: Task) -> None:
        self._done += 1
        self.spent(task, 1.0)

    def failed(self, task: Task, reason: str) -> None:
        self._failed += 1
        self.console.print(f"{self.title}: {task.id} failed: {reason}", style="red", markup=False)
        self.spent(task, 1.0)

    def again(self, task: Task, reason: str) -> None:
        self.console.print(f"{self.title}: {task.id} is run again: {reason}", style="dim", markup=False)
        self.spent(task, 0.0)

    def left(self) -> float | None:
        """Seconds; unknown at first."""
        worked, elapsed = sum(self._spent.values()), time.monotonic() - self._began
        if worked <= 0.01 * self._total or elapsed < 2:
            return None
        return (self._total - worked) * elapsed / worked

    def _show(self) -> None:
        left = self.left()
        counts = f"{self._done} of {self._runs} runs" + (f", {self._failed} failed" if self._failed else "")
        facts = f"{counts}, {'–' if left is None else duration(left)} left"
        if self._live is not None:
            self._live.update(self._bar, completed=sum(self._spent.values()), facts=facts)
        elif time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            self.console.print(f"{self.title}: {facts}", markup=False)


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.1 h`"""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
