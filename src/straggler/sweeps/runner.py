"""Plan a sweep and run it. A sweep can be stopped at any time; the same command continues it."""

import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
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
from straggler.sweeps.progress import LaterRuns, ProgressFile, SweepProgress, format_duration
from straggler.sweeps.ray_pool import RayPool
from straggler.sweeps.search import group_searches
from straggler.sweeps.summaries import SummaryStore

WRITE_SECONDS = 20.0  # between two versions of the summaries
MOST_LEARNED = 5  # finished runs of a kind that correct its estimate
Place = Literal["local", "ray"]
Pool = LocalPool | RayPool


class SweepPlan:
    """The runs of a sweep in their order, and where their results go.

    If cells have a tuning, the plan begins with the first trials. `advance` adds the runs that follow from
    the results: more trials, and each cell with the best values.
    """

    def __init__(
        self, name: str, cells: Sequence[Cell], seeds: Sequence[int], pool: Pool, store: SummaryStore
    ) -> None:
        self.name, self.seeds, self.pool, self.store = name, seeds, pool, store
        self.runs: list[PlannedRun] = []  # that are not in the summaries; records may exist
        # Also the runs in the summaries, in the order of the cells, but no trials.
        self.all_runs: list[PlannedRun] = []
        self.searches = group_searches(cells, seeds, pool.runs)
        self._open, self._costs = list(self.searches), CostModel(pool.data)
        self._places = {id(cell): number for number, cell in enumerate(cells)}
        self._add_cells([cell for cell in cells if cell.tuning is None])
        self.advance()

    def advance(self, failures: Mapping[str, str] | None = None) -> list[PlannedRun]:
        """Read the results of the runs so far; plan the runs that follow from them, and return these."""
        first, trials = len(self.runs), list[PlannedRun]()
        for search in list(self._open):
            trials += search.advance(failures or {})
            if search.is_over:
                self._open.remove(search)
                chosen = search.choose_cells()
                for cell, final in zip(search.cells, chosen, strict=False):
                    self._places[id(final)] = self._places[id(cell)]
                self._add_cells(chosen)
        known = {run.id for run in self.runs[first:]} if trials else set()
        for run in trials:
            if run.id not in known:  # one run may serve several searches
                known.add(run.id)
                run.seconds = self._costs.estimate(run)
                self.runs.append(run)
        return self.runs[first:]

    def _add_cells(self, cells: Sequence[Cell]) -> None:
        """Plan these cells: seed by seed, within a seed table by table, the longest first."""
        planned = plan_runs(cells, self.seeds)
        learn_costs(self._costs, planned, self.pool.runs)
        runs = [run for run in planned if not self.store.has(run)]
        for run in runs:
            run.is_cached = find_finished_record(self.pool.runs / run.id) is not None
            run.seconds = 0.0 if run.is_cached else self._costs.estimate(run)
        tables = list(dict.fromkeys(cell.labels.get("table") for cell in cells))
        runs.sort(key=lambda run: (run.seed, tables.index(run.cells[0].labels.get("table")), -run.seconds))
        self.runs += runs
        self.all_runs = sorted(self.all_runs + planned, key=lambda run: self._places[id(run.cells[0])])

    @property
    def later(self) -> LaterRuns:
        """The runs of searches that are planned when others have ended; pruning and widening change them."""
        count, seconds = 0, 0.0
        for search in self._open:
            trials, final = search.count_later(), len(search.cells) * len(self.seeds)
            trial_cell, final_cell = search.example_cells()
            count += trials + final
            seconds += trials * self._estimate(trial_cell)
            seconds += 0.0 if search.includes(self.seeds) else final * self._estimate(final_cell)
        return LaterRuns(count, seconds)

    def _estimate(self, cell: Cell) -> float:
        return self._costs.estimate(PlannedRun(cell.experiment(self.seeds[0]), self.seeds[0], cells=[cell]))

    @property
    def is_learned(self) -> bool:
        """Whether finished runs have corrected the estimates of all missing ones."""
        return all(find_kind(run.experiment) in self._costs.errors for run in self.missing)

    @property
    def cached(self) -> int:
        """The number of runs that are in the summaries already."""
        return len(self.all_runs) - sum(not run.is_trial for run in self.runs)

    @property
    def missing(self) -> list[PlannedRun]:
        """The runs that will be computed, as far as they are known."""
        return [run for run in self.runs if not run.is_cached]

    @property
    def seconds(self) -> float:
        """The estimated time of the sweep: simulations side by side, then real-time runs one by one."""
        real_time = sum(run.seconds for run in self.runs if run.is_real_time)
        virtual = [run.seconds for run in self.runs if not run.is_real_time]
        side_by_side = (sum(virtual) + self.later.seconds) / self.pool.cores
        return max(side_by_side, max(virtual, default=0.0)) + real_time

    def __str__(self) -> str:
        where = " on Ray" if isinstance(self.pool, RayPool) else ""
        bounds = (LEARNED_LOW, LEARNED_HIGH) if self.is_learned else (LOW, HIGH)
        low, high = (format_duration(bound * self.seconds) for bound in bounds)
        estimate = f": about {low} to {high} with {format_count(self.pool.cores, 'process', 'es')}{where}"
        later, missing = self.later.count, len(self.missing) + self.later.count
        trials = sum(search.most_trials for search in self.searches)
        tuning = f"{format_count(trials, 'trial')} of {format_count(len(self.searches), 'search', 'es')}, "
        runs = sum(run.is_trial for run in self.runs) + len(self.all_runs) + later
        counts = f"{format_count(runs, 'run')}, {format_count(len(self.seeds), 'seed')}"
        return (
            f"{self.name}: {tuning if trials else ''}{counts}, {missing} missing{estimate if missing else ''}"
        )


def plan_sweep(
    name: str,
    cells: Iterable[Cell],
    seeds: Sequence[int],
    pool: Pool,
    results: Path,
    key: Sequence[str] | None = None,
) -> SweepPlan:
    """Plan the runs of these cells.

    A run whose summary is in the results is not planned, even if its record is on another machine. `key` are
    the columns that identify a row of the summaries; by default the labels and the seed.
    """
    cells = list(cells)
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    return SweepPlan(name, cells, seeds, pool, SummaryStore(results, labels, key or [*labels, "seed"]))


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
    progress = SweepProgress(plan.runs, plan.cached, plan.later)
    events, written = run_in_rounds(plan, progress), time.monotonic()
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
                    if not event.run.is_trial:
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


def run_in_rounds(plan: SweepPlan, progress: SweepProgress) -> Generator[RunEvent]:
    """Run what is planned, then what follows from its results, until nothing does.

    Simulations run side by side, then real-time runs one at a time on this machine.
    """
    runs = plan.runs
    while runs:
        yield from plan.pool.run(run for run in runs if not run.is_real_time)
        if real_time := [run for run in runs if run.is_real_time]:
            pool = plan.pool
            pool.close()  # its CPUs are for the workers of these runs
            with closing(LocalPool(1, pool.runs, pool.data, pool.address, pool.device)) as alone:
                yield from alone.run(real_time)
        runs = plan.advance(progress.failures)
        progress.add(runs, plan.later)


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
        pool: Pool = LocalPool(cores or os.cpu_count() or 1, runs, data, None, device)
    elif device != "cpu":
        raise InputError(f"--device {device} requires --on local: runs on a cluster use its CPUs.")
    else:
        pool = RayPool(address, cores, runs, data)
    with closing(pool):
        yield pool


def format_count(number: int, noun: str, ending: str = "s") -> str:
    """Return `1 run` or `3 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else ending}"
