"""A sweep from its cells to its summaries: plan, run, collect; it can be killed at any time and goes on."""

import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console

from straggler.sweeps.cost import CostModel
from straggler.sweeps.display import Display
from straggler.sweeps.grid import Cell, PlannedRun, plan_runs
from straggler.sweeps.pool import LocalPool, RunEvent
from straggler.sweeps.progress import SweepProgress
from straggler.sweeps.ray_pool import RayPool
from straggler.sweeps.status_file import ProgressFile
from straggler.sweeps.summaries import SummaryStore, collect_labels

WRITE_SECONDS = 20.0  # between two times that the summaries are written


@dataclass
class SweepPlan:
    """What a sweep will do, in order."""

    name: str
    tasks: list[PlannedRun]
    every: list[PlannedRun]  # with those that only the results know, as the cells come
    seeds: Sequence[int]
    runs: Path
    data: Path | None = None
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)

    @property
    def known(self) -> int:
        """Runs that are only in the results: their records are elsewhere or gone."""
        return len(self.every) - len(self.tasks)

    @property
    def missing(self) -> list[PlannedRun]:
        return [task for task in self.tasks if task.seconds]

    @property
    def seconds(self) -> float:
        """Of waiting: with all processes busy, and then for one run in real time after another."""
        apart = sum(task.seconds for task in self.tasks if task.in_real_time)
        work = [task.seconds for task in self.tasks if not task.in_real_time]
        return max(sum(work) / self.jobs, max(work, default=0.0)) + apart


def plan_sweep(
    name: str,
    cells: Iterable[Cell],
    seeds: Sequence[int],
    runs: Path,
    data: Path | None = None,
    jobs: int | None = None,
    results: Path | None = None,
) -> SweepPlan:
    """Each seed's runs after the last one's; within a seed table by table, the longest first.

    What is in the results needs no run, even if its record is on another machine.
    """
    cells = list(cells)
    every = plan_runs(cells, seeds)
    watch = CostModel(runs, data)
    for task in every:
        task.seconds = watch.estimate(task)
    summaries = SummaryStore(results, collect_labels(every)) if results else None
    found = [task for task in every if not (task.seconds and summaries and summaries.hold(task))]
    tables = list(dict.fromkeys(cell.labels.get("table") for cell in cells))
    rank = {table: position for position, table in enumerate(tables)}
    found.sort(key=lambda task: (task.seed, rank[task.cells[0].labels.get("table")], -task.seconds))
    return SweepPlan(name, found, every, seeds, runs, data, jobs or os.cpu_count() or 1)


def run_plan(
    plan: SweepPlan, results: Path, console: Console, fleet: LocalPool | RayPool | None = None
) -> dict[str, str]:
    """Run what is missing and write the summaries as they come; the reasons of those that failed, by id."""
    summaries, tally = (
        SummaryStore(results, collect_labels(plan.every)),
        SweepProgress(plan.tasks, plan.known),
    )
    told = in_order(plan, fleet or LocalPool(plan.jobs, plan.runs, plan.data))
    with (
        stoppable(),
        ProgressFile(results, tally) as bulletin,
        kept(summaries) as keep,
        Display(console, plan.name, tally) as display,
        closing(told),
    ):
        for news in told:
            if news.what == "spent":
                tally.spent(news.task, news.content)
            elif news.what == "failed":
                tally.fail(news.task, news.content)
                display.failed(news.task, news.content)
            elif news.what == "again":
                tally.spent(news.task, 0.0)
                display.again(news.task, news.content)
            else:
                tally.succeed(news.task)
                summaries.add(news.task, news.content)
            display.show()
            bulletin.renew()
            keep()
    return tally.failures


def in_order(plan: SweepPlan, fleet: LocalPool | RayPool) -> Generator[RunEvent]:
    """Side by side what is in virtual time; then, one at a time on this machine, what measures real time."""
    yield from fleet.run(task for task in plan.tasks if not task.in_real_time)
    alone = LocalPool(1, plan.runs, plan.data, fleet.address)
    yield from alone.run(task for task in plan.tasks if task.in_real_time)


@contextmanager
def kept(summaries: SummaryStore) -> Iterator[Callable[[], None]]:
    """Writes the summaries when asked and it is time, and at the end whatever happens."""
    written = time.monotonic()

    def keep() -> None:
        nonlocal written
        if time.monotonic() - written > WRITE_SECONDS:
            summaries.write()
            written = time.monotonic()

    try:
        yield keep
    finally:
        summaries.write()


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM is Ctrl-C: what runs is saved."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
