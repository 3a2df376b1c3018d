"""The fleet on a Ray cluster: a run wherever a CPU is free; its facts and its record come back as data."""

import os
import shutil
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from straggler.config.registry import InputError
from straggler.engines.ray_errors import needing_ray
from straggler.experiment import Experiment
from straggler.problems.downloads.sources import DataError
from straggler.record import RecordError, find_finished_record
from straggler.running.observer import RunProgress
from straggler.sweeps.data_transfer import SentData, data_of, data_there
from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.pool import LocalPool, RunEvent, run_and_summarise
from straggler.sweeps.record_transfer import pack, unpack

CORES = os.cpu_count() or 1
TRIES = 3  # of a run whose process or node dies
TELL_SECONDS = 1.0  # between two times that a run says how far it is

Said = tuple[str, Any]


class RayPool:
    """Run experiments on a Ray cluster; the nodes need no shared folder, and a lost run is repeated."""

    def __init__(self, address: str | None, jobs: int | None, runs: Path, data: Path | None = None) -> None:
        """Join a cluster; without an address, start one here for so many jobs, or one on each core."""
        with needing_ray("--on ray"):
            from straggler.engines.ray import Calls, Lost
        self.address, self.runs, self.data = address, runs, data
        self._lost, self._most = Lost, jobs
        self._sent: dict[str, Any] = {}  # data sets on the cluster
        self._calls = Calls(run_there, address, jobs or CORES)
        if not self._calls.room:
            self.close()
            raise InputError(f"--address {address}: no node has a CPU for a run; start one that has")

    @property
    def jobs(self) -> int:
        """Runs at the same time: as many as the cluster has room for now, unless fewer were asked for."""
        room = max(1, self._calls.room)
        return min(room, self._most or room)

    def close(self) -> None:
        self._calls.close()

    def run(self, tasks: Iterable[PlannedRun]) -> Generator[RunEvent]:
        """Ends when nothing is left, and leaves the cluster; closed early, the runs at hand are given up."""
        here: list[PlannedRun] = []  # what is there already, and what is only counted
        missing: list[PlannedRun] = []
        for task in tasks:
            trains = (
                isinstance(task.experiment, Experiment) and find_finished_record(self.runs / task.id) is None
            )
            (missing if trains else here).append(task)
        try:
            yield from LocalPool(min(self.jobs, CORES), self.runs, self.data).run(here)
            yield from self._run(missing)
        finally:
            self.close()

    def _run(self, tasks: list[PlannedRun]) -> Iterator[RunEvent]:
        waiting, by_id, losses = deque(tasks), {task.id: task for task in tasks}, Counter[str]()
        while waiting or len(self._calls):
            self._fill(waiting)
            id, said = self._calls.hear()
            if isinstance(said, self._lost):
                losses[id] += 1
                if losses[id] < TRIES:
                    waiting.appendleft(by_id[id])
                yield self._told_of(by_id[id], said.reason, losses[id])
            elif said is not None:
                yield self._received(by_id[id], *said)

    def _told_of(self, task: PlannedRun, loss: str, losses: int) -> RunEvent:
        if losses < TRIES:
            return RunEvent(task, "again", loss)
        return RunEvent(task, "failed", f"given up after {TRIES} tries: {loss}")

    def _fill(self, waiting: deque[PlannedRun]) -> None:
        while waiting and len(self._calls) < self.jobs:
            task = waiting.popleft()
            assert isinstance(task.experiment, Experiment)
            data = self._data(task.experiment)
            self._calls.begin(task.id, task.id, task.order, data, task.measurements, sys.argv)

    def _data(self, experiment: Experiment) -> Any:
        """What a node is given: a folder of this machine if it is no other, else the data set itself."""
        if self.address is None:
            return self.data and self.data.absolute()
        kind = experiment.dataset.name
        if kind not in self._sent:
            try:
                self._sent[kind] = self._calls.shared(data_of(experiment.dataset, self.data))
            except DataError:
                self._sent[kind] = None  # perhaps the node has it
        return self._sent[kind]

    def _received(self, task: PlannedRun, what: Any, content: Any) -> RunEvent:
        if what != "done":
            return RunEvent(task, what, content)
        facts, parcel = content
        try:
            unpack(parcel, self.runs / task.id)
        except (OSError, RecordError) as error:
            return RunEvent(task, "failed", f"its record did not arrive: {error}")
        return RunEvent(task, "done", facts)


def run_there(
    id: str,
    settings: dict[str, Any],
    data: SentData | Path | None,
    keep: tuple[str, ...],
    command: list[str],
) -> Iterator[Said]:
    """On a node: a run in a folder that is gone afterwards; how far it is, then its facts and its record."""
    sys.argv = command  # it is in the record
    experiment = Experiment(**settings)
    if experiment.id != id:
        yield "failed", f"a node calls it {experiment.id}: install the same version of straggler everywhere"
        return
    tidy_up()
    with tempfile.TemporaryDirectory(prefix=f"straggler-{os.getpid()}-") as name:
        folder = data if isinstance(data, Path) else data_there(experiment.dataset, data, Path(name))
        work = Aside(lambda progress: run_and_summarise(progress, settings, Path(name), folder, keep))
        yield from work.followed()
        what, content = work.answer
        yield what, ((content, pack(Path(name) / id)) if what == "done" else content)


def tidy_up() -> None:
    """Remove the folders of processes that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob("straggler-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def alive(process: int) -> bool:
    """Whether a process of this number is running, whoever's it is."""
    try:
        with suppress(PermissionError):
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Aside(threading.Thread):
    """Work in a thread, so that one can hear meanwhile how far it is, and end it."""

    answer: Said

    def __init__(self, work: Callable[[Callable[[RunProgress], None]], Said]) -> None:
        super().__init__(daemon=True)
        self._work, self._spent, self._ended = work, 0.0, False

    def run(self) -> None:
        with suppress(SystemExit):  # it was ended
            self.answer = self._work(self._see)

    def _see(self, seen: RunProgress) -> None:
        self._spent = seen.spent
        if self._ended:
            raise KeyboardInterrupt

    def followed(self) -> Iterator[Said]:
        """How far it is, now and then, until it has its answer; it ends if nobody listens any more."""
        self.start()
        try:
            while self.is_alive():
                self.join(TELL_SECONDS)
                yield "spent", self._spent
        finally:
            self._ended = True
            while self.is_alive():
                with suppress(KeyboardInterrupt):  # Ray may say it again
                    self.join()
