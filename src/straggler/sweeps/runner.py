"""Plan a sweep and run it. A sweep can be stopped at any time; the same command continues it."""

import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from straggler.config.registry import InputError
from straggler.core.devices import DeviceChoice
from straggler.record import RecordError, find_finished_record
from straggler.running.progress import ProgressBar
from straggler.running.signals import handling_signals
from straggler.sweeps.cost import HIGH, LEARNED_HIGH, LEARNED_LOW, LOW, CostModel, find_kind
from straggler.sweeps.grid import Cell, PlannedRun, plan_runs
from straggler.sweeps.pool import LocalPool, RunEvent
from straggler.sweeps.progress import ProgressFile, SweepProgress, format_duration
from straggler.sweeps.ray_pool import RayPool
from straggler.sweeps.summaries import SummaryStore, collect_labels

WRITE_SECONDS = 20.0  # between two versions of the summaries
MOST_LEARNED = 5  # finished runs of a kind that correct its estimate
Place = Literal["local", "ray"]
Pool = LocalPool | RayPool


@dataclass
class SweepPlan:
    """The runs of a sweep in their order, and where their results go."""

    name: str
    runs: list[PlannedRun]  # that are not in the summaries; records may exist
    all_runs: list[PlannedRun]  # also those in the summaries, in the order of the cells
    seeds: Sequence[int]
    pool: Pool
    store: SummaryStore
    is_learned: bool = False  # whether finished runs have corrected the estimates of all missing runs

    @property
    def cached(self) -> int:
        """The number of runs that are in the summaries already."""
        return len(self.all_runs) - len(self.runs)

    @property
    def missing(self) -> list[PlannedRun]:
        """The runs that will be computed."""
        return [run for run in self.runs if not run.is_cached]

    @property
    def seconds(self) -> float:
        """The estimated time of the sweep: simulations side by side, then real-time runs one by one."""
        real_time = sum(run.seconds for run in self.runs if run.is_real_time)
        virtual = [run.seconds for run in self.runs if not run.is_real_time]
        return max(sum(virtual) / self.pool.cores, max(virtual, default=0.0)) + real_time

    def __str__(self) -> str:
        where = " on Ray" if isinstance(self.pool, RayPool) else ""
        bounds = (LEARNED_LOW, LEARNED_HIGH) if self.is_learned else (LOW, HIGH)
        low, high = (format_duration(bound * self.seconds) for bound in bounds)
        estimate = f": about {low} to {high} with {format_count(self.pool.cores, 'process', 'es')}{where}"
        counts = f"{format_count(len(self.all_runs), 'run')}, {format_count(len(self.seeds), 'seed')}"
        return f"{self.name}: {counts}, {len(self.missing)} missing{estimate if self.missing else ''}"


def plan_sweep(
    name: str,
    cells: Iterable[Cell],
    seeds: Sequence[int],
    pool: Pool,
    results: Path,
    key: Sequence[str] | None = None,
) -> SweepPlan:
    """Plan the runs: seed by seed, within a seed table by table, the longest first.

    A run whose summary is in the results is not planned, even if its record is on another machine. `key` are
    the columns that identify a row of the summaries; by default the labels and the seed.
    """
    cells = list(cells)
    all_runs = plan_runs(cells, seeds)
    labels = collect_labels(all_runs)
    store = SummaryStore(results, labels, key or [*labels, "seed"])
    runs, costs = [run for run in all_runs if not store.has(run)], CostModel(pool.data)
    learn_costs(costs, all_runs, pool.runs)
    for run in runs:
        run.is_cached = find_finished_record(pool.runs / run.id) is not None
        run.seconds = 0.0 if run.is_cached else costs.estimate(run)
    is_learned = all(find_kind(run.experiment) in costs.errors for run in runs if not run.is_cached)
    tables = list(dict.fromkeys(cell.labels.get("table") for cell in cells))
    runs.sort(key=lambda run: (run.seed, tables.index(run.cells[0].labels.get("table")), -run.seconds))
    return SweepPlan(name, runs, all_runs, seeds, pool, store, is_learned)


def learn_costs(costs: CostModel, runs: Sequence[PlannedRun], folder: Path) -> None:
    """Correct the estimates by finished runs of the sweep, a few of each kind, if some are missing."""
    records = {run.id: find_finished_record(folder / run.id) for run in runs}
    kinds = {find_kind(run.experiment) for run in runs if records[run.id] is None}
    seen = Counter[tuple[str, ...]]()
    for run in runs:
        kind, record = find_kind(run.experiment), records[run.id]
        if record is not None and kind in kinds and seen[kind] < MOST_LEARNED:
            with suppress(RecordError):
                costs.learn(run, record)
            seen[kind] += 1


def run_plan(plan: SweepPlan, console: Console) -> dict[str, str]:
    """Run the missing experiments and write their summaries. Return the reasons of failures by id."""
    progress = SweepProgress(plan.runs, plan.cached)
    events, written = run_in_order(plan), time.monotonic()
    with (
        handling_signals(signal.default_int_handler),  # on SIGTERM too, running experiments are saved
        ProgressFile(plan.store.folder, progress) as file,
        ProgressBar(console, plan.name) as bar,
        closing(events),
    ):
        try:
            for event in events:
                progress.update(event)
                if event.kind == "done":
                    plan.store.add(event.run, event.content)
                elif event.kind != "progress":
                    bar.say(f"{event.run.name} {event.kind}: {event.content}")
                bar.advance(progress.fraction, str(progress))
                file.update()
                if time.monotonic() - written > WRITE_SECONDS:
                    plan.store.write()
                    written = time.monotonic()
        finally:
            plan.store.write()
    return progress.failures


def run_in_order(plan: SweepPlan) -> Generator[RunEvent]:
    """Run simulations side by side, then real-time runs one at a time on this machine."""
    pool = plan.pool
    yield from pool.run(run for run in plan.runs if not run.is_real_time)
    alone = LocalPool(1, pool.runs, pool.data, pool.address, pool.device)
    yield from alone.run(run for run in plan.runs if run.is_real_time)


@contextmanager
def open_pool(
    on: Place,
    address: str | None,
    cores: int | None,
    runs: Path,
    data: Path | None,
    device: DeviceChoice = "cpu",
) -> Iterator[Pool]:
    """Open a pool; a cluster that cannot be reached raises before anything is written."""
    if runs.exists() and not runs.is_dir():
        raise InputError(f"--runs {runs} is a file. Choose a folder for the records")
    if on == "local":
        if address is not None:
            raise InputError(f"--address {address} requires --on ray")
        yield LocalPool(cores or os.cpu_count() or 1, runs, data, None, device)
    elif device != "cpu":
        raise InputError(f"--device {device} requires --on local: runs on a cluster use its CPUs.")
    else:
        with closing(RayPool(address, cores, runs, data)) as pool:
            yield pool


def format_count(number: int, noun: str, ending: str = "s") -> str:
    """Return `1 run` or `3 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else ending}"
