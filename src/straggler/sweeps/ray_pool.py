"""A pool of processes on a Ray cluster: summaries and records come back as data."""

import os
import shutil
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from straggler.config.registry import InputError
from straggler.engines import requiring_ray
from straggler.experiment import Experiment
from straggler.problems.downloads.sources import DataError
from straggler.record import RecordError, find_finished_record
from straggler.running.observer import RunProgress
from straggler.running.watchdog import list_silences
from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.pool import LocalPool, RunEvent, run_and_summarise
from straggler.sweeps.transfer import PackedData, pack_dataset, pack_record, unpack_dataset, unpack_record
from straggler.timing.clusters import Repetition

CORES = os.cpu_count() or 1
MAX_TRIES = 3  # of a run whose process or node dies
REPORT_SECONDS = 1.0  # between two progress reports of a run

Message = tuple[str, Any]


class RayPool:
    """Runs experiments wherever the cluster has a free CPU. The nodes need no shared folder."""

    def __init__(self, address: str | None, cores: int | None, runs: Path, data: Path | None = None) -> None:
        """Join a cluster, or start Ray on this machine; `cores` limits the runs at the same time."""
        with requiring_ray("--on ray"):
            from straggler.engines.ray_cluster import LostCall, RemoteCalls
        self.address, self.runs, self.data = address, runs, data
        self.device = "cpu"
        self._lost, self._max_cores = LostCall, cores
        self._open_calls = partial(RemoteCalls, run_on_node, address, cores or CORES)
        self._open()
        if not self._calls.room:
            self.close()
            raise InputError(f"--address {address}: no node has a CPU for a run. Start a node that has one")

    def _open(self) -> None:
        self._datasets: dict[str, Any] = {}  # references to data sets on the cluster, by name
        self._calls, self._is_open = self._open_calls(), True

    @property
    def cores(self) -> int:
        """The number of runs at the same time, which changes as nodes come and go."""
        room = max(1, self._calls.room)
        return min(room, self._max_cores or room)

    def close(self) -> None:
        """Leave the cluster, until `run` is called again."""
        self._calls.close()
        self._is_open = False

    def run(self, planned: Iterable[PlannedRun]) -> Generator[RunEvent]:
        """Yield events until all runs have ended. If it is closed early, the runs are cancelled."""
        if not self._is_open:
            self._open()
        here, missing = list[PlannedRun](), list[PlannedRun]()
        for run in planned:  # cached runs and simulations without gradients are not worth a call
            is_cached = find_finished_record(self.runs / run.id) is not None
            (here if is_cached or isinstance(run.experiment, Repetition) else missing).append(run)
        try:
            with closing(LocalPool(min(self.cores, CORES), self.runs, self.data)) as pool:
                yield from pool.run(here)
            yield from self._run_on_cluster(missing)
        finally:
            if len(self._calls):
                self.close()

    def _run_on_cluster(self, planned: list[PlannedRun]) -> Iterator[RunEvent]:
        waiting, by_id, losses = deque(planned), {run.id: run for run in planned}, Counter[str]()
        while waiting or len(self._calls):
            while waiting and len(self._calls) < self.cores:
                self._start(waiting.popleft())
            id, message = self._calls.receive()
            if isinstance(message, self._lost):
                losses[id] += 1
                if losses[id] < MAX_TRIES:
                    waiting.appendleft(by_id[id])
                    yield RunEvent(by_id[id], "repeated", message.reason)
                else:
                    reason = f"its process or node died {MAX_TRIES} times: {message.reason}"
                    yield RunEvent(by_id[id], "failed", reason)
            elif message is not None:
                yield self._receive(by_id[id], *message)

    def _start(self, run: PlannedRun) -> None:
        order: Any = run.order, run.id, Path.cwd()
        if self.address is not None:  # another machine may lack the user's files
            # Fingerprints of custom code need its source, so the node cannot compute the id.
            order = run.portable_order, None if run.is_custom else run.id, None
        packed = cloudpickle.dumps((*order, run.measurements, run.callbacks, sys.argv, sys.path))
        self._calls.start(run.id, packed, self._find_data(run))

    def _find_data(self, run: PlannedRun) -> Any:
        """Return what a node needs to read the data: a local path on this machine, otherwise the data set."""
        if self.address is None:
            return self.data and self.data.absolute()
        assert isinstance(run.experiment, Experiment)
        dataset = run.experiment.dataset
        name = str(dataset)
        if name not in self._datasets:
            try:
                self._datasets[name] = self._calls.share(pack_dataset(dataset, self.data))
            except DataError:
                self._datasets[name] = None  # the node may have it
        return self._datasets[name]

    def _receive(self, run: PlannedRun, kind: Any, content: Any) -> RunEvent:
        if kind != "done":
            return RunEvent(run, kind, content)
        row, record = content
        assert isinstance(run.experiment, Experiment)
        try:
            unpack_record(record, self.runs / run.id, run.experiment.to_toml())
        except (OSError, RecordError) as error:
            return RunEvent(run, "failed", f"its record could not be written: {error}")
        return RunEvent(run, "done", row)


def run_on_node(packed: bytes, data: PackedData | Path | None) -> Iterator[Message]:
    """Run an experiment in a temporary folder of a node; yield its progress, its summary row and record."""
    order, id, folder, measurements, callbacks, sys.argv, path = cloudpickle.loads(packed)
    sys.path.extend(each for each in path if each not in sys.path)
    if folder is not None:
        os.chdir(folder)
    experiment = Experiment(**order)
    remove_abandoned_folders()
    with tempfile.TemporaryDirectory(prefix=f"straggler-{os.getpid()}-") as name:
        place = data if isinstance(data, Path) else unpack_dataset(experiment.dataset, data, Path(name))
        thread = ReportingThread(
            lambda progress: run_and_summarise(
                progress, id, order, measurements, Path(name), place, callbacks=callbacks
            )
        )
        yield from thread.report_progress()
        kind, content = thread.result
        yield kind, ((content, pack_record(Path(name) / experiment.id)) if kind == "done" else content)


def remove_abandoned_folders() -> None:
    """Remove the temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("straggler-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not is_alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Return whether a process with this number exists."""
    try:
        with suppress(PermissionError):
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class ReportingThread(threading.Thread):
    """A thread that runs a function, reports its progress and can be cancelled."""

    result: Message

    def __init__(self, function: Callable[[Callable[[RunProgress], None]], Message]) -> None:
        super().__init__(daemon=True)
        self._function, self._spent, self._is_cancelled = function, 0.0, False

    def run(self) -> None:
        """Call the function; a cancelled run ends with KeyboardInterrupt."""
        with suppress(KeyboardInterrupt):
            self.result = self._function(self._update)

    def _update(self, progress: RunProgress) -> None:
        self._spent = progress.spent
        if self._is_cancelled:
            raise KeyboardInterrupt

    def report_progress(self) -> Iterator[Message]:
        """Start the thread and yield its progress until it ends, and where it hangs.

        Cancel it if the generator is closed.
        """
        self.start()
        reported: list[str] = []
        try:
            while self.is_alive():
                self.join(REPORT_SECONDS)
                yield "progress", self._spent
                silences = list_silences()
                if silences and not reported:
                    yield "silent", silences[0]
                reported = silences
        finally:
            self._is_cancelled = True
            while self.is_alive():
                with suppress(KeyboardInterrupt):  # Ray may interrupt it again
                    self.join()
